//! The greeting on the socket (SOCK_SEQPACKET): one message each way. With a welcome come the descriptors of the arena, of the word file, if the
//! doorbell is one, of an eventfd, if the daemon publishes versions, of their words, and if the client is trusted and wants them, of the memory
//! zone for loads, and of the memory zone for stores and its lease words, in this order. The socket then says nothing more: its hang-up is the
//! end of the connection.
//!
//! No descriptor comes with the hello: whoever closes one may wait for who made it. The hello has the number that the root directory of the mount,
//! opened with O_PATH, has in the process that connected. It shows that this process can reach the mount.
//!
//! Hello, 64 bytes: 0 magic `TFSHELLO` (8), 8 version (4), 12 slots (4), 16 bytes of the data area (8), 24 whether it wants the memory zone (4), 28 whether it leaves what is watched to the mount (4), 32 whether it wants the memory zone for stores (4), 36 the number of the root directory (4), zeros.
//!
//! Reception, 256 bytes: 0 magic `TFSDOOR\0` (8), 8 version (4), 12 kind (4): 1 welcome, 2 refusal; 16 operations (8), 24 bytes of the data area (8),
//! 32 slots (4), 36 most bytes of a transfer (4), 40 number of version words of a welcome (4), or errno of a refusal (4), 44 length of its sentence (4), 48 the sentence (208). Of a welcome with a memory zone 48 where it begins in its file (8), 56 its bytes (8), 0 for none;
//! with a memory zone for stores 64 and 72 the same of that, 80 whether stores have to be flushed (4).

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::VERSION;

const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"TFSHELLO");
const RECEPTION_MAGIC: u64 = u64::from_le_bytes(*b"TFSDOOR\0");
const HELLO_BYTES: usize = 64;
const WELCOME: u32 = 1;
const REFUSAL: u32 = 2;
const SENTENCE_AT: usize = 48;
const SENTENCE_BYTES_MAX: usize = GREETING_BYTES - SENTENCE_AT;

/// No greeting is longer.
pub const GREETING_BYTES: usize = 256;

/// Why a greeting is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is none.
    #[error("the other side does not speak the protocol of this socket")]
    Unknown,
    /// It is of another version.
    #[error("the other side speaks version {}.{}, this program version {}.{}; install the same release for both", found >> 16, found & 0xffff, VERSION >> 16, VERSION & 0xffff)]
    Version {
        /// The other side's version.
        found: u32,
    },
}

/// The first message: what a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Its version.
    pub version: u32,
    /// Slots that it wants.
    pub slots: u32,
    /// Bytes of a data area that it wants.
    pub data_bytes: u64,
    /// Whether it wants the memory zone, if it is trusted: who loads nothing gets no descriptor of the drive.
    pub wants_zone: bool,
    /// Whether calls that somebody watches by the kernel (inotify, fanotify) are handed back: [`Why::Watched`](crate::Why::Watched).
    pub leaves_watched: bool,
    /// Whether it wants the memory zone for stores, if it is trusted.
    pub wants_stores: bool,
    /// The root directory of the mount, as a descriptor of the process that connected; it stays open until the reception.
    pub root: u32,
}

/// The memory zone that comes with a welcome, in a descriptor of the client's own that can only be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZonePlace {
    /// Where it begins in the file, in bytes.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The memory zone for stores that comes with a welcome, in a descriptor of the client's own, and behind it the lease words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorePlace {
    /// Where it is.
    pub zone: ZonePlace,
    /// What is stored survives a loss of power only when it was flushed from the CPU's caches.
    pub needs_flush: bool,
}

/// A client is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Slots that it gets, at most as many as it wanted.
    pub slots: u32,
    /// Bytes of the data area that it gets.
    pub data_bytes: u64,
    /// Operations that the daemon serves, by [`crate::Number::bit`].
    pub operations: u64,
    /// Most bytes of a READ or WRITE.
    pub transfer_bytes_max: u32,
    /// Version words, whose file comes with the welcome; 0 for none.
    pub version_words: u32,
    /// The memory zone, whose descriptor comes with the welcome.
    pub zone: Option<ZonePlace>,
    /// The memory zone for stores, whose descriptor comes with the welcome, as do the lease words.
    pub stores: Option<StorePlace>,
}

/// A client is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The daemon's version.
    pub version: u32,
    /// An errno.
    pub errno: i32,
    /// A sentence for people, cut after 208 bytes.
    pub sentence: String,
}

/// The daemon's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reception {
    /// Come in.
    Welcome(Welcome),
    /// Go by the mount.
    Refusal(Refusal),
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn short(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

impl Hello {
    /// For this version; it shows no root yet.
    pub fn new(slots: u32, data_bytes: u64) -> Self {
        Self { version: VERSION, slots, data_bytes, wants_zone: false, leaves_watched: false, wants_stores: false, root: u32::MAX }
    }

    /// With the root directory of the mount.
    pub fn showing(self, root: BorrowedFd<'_>) -> Self {
        Self { root: root.as_raw_fd().cast_unsigned(), ..self }
    }

    /// With the wish for the memory zone.
    pub fn wanting_zone(self, wants_zone: bool) -> Self {
        Self { wants_zone, ..self }
    }

    /// Leaving what somebody watches to the mount.
    pub fn leaving_watched(self, leaves_watched: bool) -> Self {
        Self { leaves_watched, ..self }
    }

    /// With the wish for the memory zone for stores.
    pub fn wanting_stores(self, wants_stores: bool) -> Self {
        Self { wants_stores, ..self }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        put(&mut bytes, 0, &HELLO_MAGIC.to_le_bytes());
        put(&mut bytes, 8, &self.version.to_le_bytes());
        put(&mut bytes, 12, &self.slots.to_le_bytes());
        put(&mut bytes, 16, &self.data_bytes.to_le_bytes());
        put(&mut bytes, 24, &u32::from(self.wants_zone).to_le_bytes());
        put(&mut bytes, 28, &u32::from(self.leaves_watched).to_le_bytes());
        put(&mut bytes, 32, &u32::from(self.wants_stores).to_le_bytes());
        put(&mut bytes, 36, &self.root.to_le_bytes());
        bytes
    }

    /// From a message.
    ///
    /// # Errors
    /// [`HelloError`]; the version comes first, since the rest may mean something else there.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let read = || {
            let (magic, version) = (long(bytes, 0)?, short(bytes, 8)?);
            (magic == HELLO_MAGIC).then_some(version)
        };
        let version = read().ok_or(HelloError::Unknown)?;
        if version != VERSION {
            return Err(HelloError::Version { found: version });
        }
        let flag = |at| match short(bytes, at)? {
            word @ 0..=1 => Some(word == 1),
            _ => None,
        };
        let read = || {
            let (slots, data_bytes) = (short(bytes, 12)?, long(bytes, 16)?);
            let (wants_zone, leaves_watched, wants_stores) = (flag(24)?, flag(28)?, flag(32)?);
            Some(Self { version, slots, data_bytes, wants_zone, leaves_watched, wants_stores, root: short(bytes, 36)? })
        };
        (bytes.len() == HELLO_BYTES).then(read).flatten().ok_or(HelloError::Unknown)
    }
}

impl Refusal {
    /// Of this version.
    pub fn new(errno: i32, sentence: impl Into<String>) -> Self {
        Self { version: VERSION, errno, sentence: sentence.into() }
    }
}

impl Reception {
    /// As bytes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        put(&mut bytes, 0, &RECEPTION_MAGIC.to_le_bytes());
        match self {
            Self::Welcome(welcome) => {
                put(&mut bytes, 8, &VERSION.to_le_bytes());
                put(&mut bytes, 12, &WELCOME.to_le_bytes());
                put(&mut bytes, 16, &welcome.operations.to_le_bytes());
                put(&mut bytes, 24, &welcome.data_bytes.to_le_bytes());
                put(&mut bytes, 32, &welcome.slots.to_le_bytes());
                put(&mut bytes, 36, &welcome.transfer_bytes_max.to_le_bytes());
                put(&mut bytes, 40, &welcome.version_words.to_le_bytes());
                let zone = welcome.zone.unwrap_or(ZonePlace { start: 0, bytes: 0 });
                put(&mut bytes, 48, &zone.start.to_le_bytes());
                put(&mut bytes, 56, &zone.bytes.to_le_bytes());
                let none = StorePlace { zone: ZonePlace { start: 0, bytes: 0 }, needs_flush: false };
                let StorePlace { zone, needs_flush } = welcome.stores.unwrap_or(none);
                put(&mut bytes, 64, &zone.start.to_le_bytes());
                put(&mut bytes, 72, &zone.bytes.to_le_bytes());
                put(&mut bytes, 80, &u32::from(needs_flush).to_le_bytes());
            }
            Self::Refusal(refusal) => {
                let sentence = refusal.sentence.as_bytes();
                let sentence = &sentence[..refusal.sentence.floor_char_boundary(SENTENCE_BYTES_MAX)];
                put(&mut bytes, 8, &refusal.version.to_le_bytes());
                put(&mut bytes, 12, &REFUSAL.to_le_bytes());
                put(&mut bytes, 40, &refusal.errno.to_le_bytes());
                put(&mut bytes, 44, &(sentence.len() as u32).to_le_bytes());
                put(&mut bytes, SENTENCE_AT, sentence);
            }
        }
        bytes
    }

    /// From a message. A refusal is understood from every version.
    ///
    /// # Errors
    /// [`HelloError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let bytes: &[u8; GREETING_BYTES] = bytes.try_into().map_err(|_| HelloError::Unknown)?;
        let (short, long) = (|at| short(bytes, at).unwrap_or_default(), |at| long(bytes, at).unwrap_or_default());
        let version = short(8);
        match (long(0), short(12)) {
            (RECEPTION_MAGIC, REFUSAL) => {
                let length = (short(44) as usize).min(SENTENCE_BYTES_MAX);
                let sentence = String::from_utf8_lossy(&bytes[SENTENCE_AT..SENTENCE_AT + length]).into_owned();
                Ok(Self::Refusal(Refusal { version, errno: short(40).cast_signed(), sentence }))
            }
            (RECEPTION_MAGIC, _) if version != VERSION => Err(HelloError::Version { found: version }),
            (RECEPTION_MAGIC, WELCOME) => {
                let (slots, transfer_bytes_max, version_words) = (short(32), short(36), short(40));
                let place = |at: usize| Some(ZonePlace { start: long(at), bytes: long(at + 8) }).filter(|zone| zone.bytes > 0);
                let (data_bytes, operations, zone) = (long(24), long(16), place(48));
                // Who does not know loses no byte by a flush.
                let stores = place(64).map(|zone| StorePlace { zone, needs_flush: short(80) != 0 });
                Ok(Self::Welcome(Welcome { slots, data_bytes, operations, transfer_bytes_max, version_words, zone, stores }))
            }
            _ => Err(HelloError::Unknown),
        }
    }
}
