//! The FUSE kernel protocol of Linux: requests are parsed once and borrow from the buffer that they came in ([`Operation`]).
//!
//! The protocol is spoken from version 7.31 (Linux 5.2) to 7.45 (Linux 6.18). Names are bytes, times are [`Time`], errors are [`Errno`].

#![deny(unsafe_code)]

pub mod abi;
mod errno;
mod negotiation;
mod request;
mod time;

pub use errno::Errno;
pub use negotiation::{Agreed, InitFlags, Wanted};
pub use request::{
    CopyFileRange, Dialect, Extensions, FileLock, Forgets, Groups, Init, Ioctl, Mappings, Operation, Request, RequestError, SecurityContext,
    SetAttributes, Write,
};
pub use time::{SetTime, Time};
