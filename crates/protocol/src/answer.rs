//! Answers: what the error of the ring's answer means ([MSG5]).

use tandemfs_ring::{Answer, Range};

use crate::Malformed;

/// Largest errno of Linux.
const ERRNO_MAX: u32 = 4095;
/// In the place of an errno: the mount has to do it.
const CROSSED: u32 = 1 << 16;

/// What was met that only the kernel can decide, or that the client wants left to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// A path, or the target of a link, that begins with a slash.
    Absolute = 1,
    /// `..` in the root.
    AboveRoot = 2,
    /// Something is mounted there.
    MountPoint = 3,
    /// `..` in a directory that was removed.
    RemovedDirectory = 4,
    /// A device, pipe or socket that is opened.
    SpecialFile = 5,
    /// This mount leaves the operation to the kernel.
    NotServed = 6,
    /// The kernel may have pages of the file, and the client asked to leave them ([`crate::Unless`]).
    Cached = 7,
    /// The file would grow, and the client asked to leave that to the mount.
    Grows = 8,
    /// Somebody watches the file or its directory by the kernel, and the client leaves that to the mount ([`crate::Hello::leaves_watched`]). A file
    /// that would be closed stays open until the next CLOSE.
    Watched = 9,
}

impl Why {
    const ALL: [Self; 9] = [
        Self::Absolute,
        Self::AboveRoot,
        Self::MountPoint,
        Self::RemovedDirectory,
        Self::SpecialFile,
        Self::NotServed,
        Self::Cached,
        Self::Grows,
        Self::Watched,
    ];
}

/// The kernel has to do the operation: the client makes the whole call through the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossed {
    /// What was met.
    pub why: Why,
    /// In which path of the call: 0 or 1.
    pub argument: u8,
}

/// An answer, typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; [`Answer::error`] is 0.
    Done(Answer),
    /// An errno of Linux.
    Errno(i32),
    /// For the kernel.
    Crossed(Crossed),
}

impl Outcome {
    /// Done, with a value.
    pub fn value(value: u64) -> Self {
        Self::Done(Answer { value, ..Answer::default() })
    }

    /// As the ring carries it. An errno that Linux does not have becomes EIO.
    pub fn encode(self) -> Answer {
        let error = match self {
            Self::Done(answer) => return Answer { error: 0, ..answer },
            Self::Errno(number) => {
                number.try_into().ok().filter(|number| (1..=ERRNO_MAX).contains(number)).unwrap_or(tandemfs_ring::DROPPED)
            }
            Self::Crossed(crossed) => CROSSED | crossed.why as u32 | u32::from(crossed.argument) << 8,
        };
        Answer { error, ..Answer::default() }
    }

    /// The meaning of an answer.
    ///
    /// # Errors
    /// [`Malformed`] for an error that no daemon of this version returns.
    pub fn decode(answer: Answer) -> Result<Self, Malformed> {
        match answer.error {
            0 => Ok(Self::Done(answer)),
            number @ 1..=ERRNO_MAX => Ok(Self::Errno(number.cast_signed())),
            error => {
                let why = Why::ALL.into_iter().find(|why| *why as u32 == error & 0xff);
                let argument = (error >> 8 & 0xff) as u8;
                match why {
                    Some(why) if error >> 16 == CROSSED >> 16 && argument < 2 => Ok(Self::Crossed(Crossed { why, argument })),
                    _ => Err(Malformed::Field("an answer with an unknown error")),
                }
            }
        }
    }

    /// A returned number of bytes, held against the buffer ([MSG4]).
    ///
    /// # Errors
    /// [`Malformed`] for more than the buffer has.
    pub fn bytes(answer: &Answer, buffer: Range) -> Result<u32, Malformed> {
        match u32::try_from(answer.value) {
            Ok(bytes) if bytes <= buffer.length => Ok(bytes),
            _ => Err(Malformed::Field("more bytes returned than the buffer has")),
        }
    }
}
