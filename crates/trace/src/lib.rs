//! Traces: which operations a mount served, for whom, where, with what result, and how long each took. `tandemfs trace` records one,
//! `tandemfs-bench replay` runs it again.
//!
//! [`record`] is one operation, [`file`](mod@file) the file that has many of them (docs/TRACE.md), [`recorder`] what the two ways to a mount
//! record into.
//!
//! [TRC1] Recording is off unless somebody records: an operation then pays one load.
//! [TRC2] Who records an operation never waits: its bytes go to a buffer of bounded size, of its CPU, and where that is full the operation is
//!       counted as dropped, and the trace says how many.
//! [TRC3] One trace at a time. It ends with whoever reads it.
//! [TRC4] A trace has no data of files and no values of attributes, but their lengths. It has names, so it is only for who may read them all: root,
//!       and who mounted.
//!
//! *Architecture invariant:* this crate knows neither the mount's protocol nor the direct door's, and no file system.

#![forbid(unsafe_code)]

pub mod file;
pub mod record;
pub mod recorder;

pub use file::{End, Frame, Reader, TraceError, Writer};
pub use record::{Door, Known, Operation, Record};
pub use recorder::{Recorder, Recording};
