//! MOVE commands: pages between flash and a cache that the host manages (Habicht et al., §3.1).
//!
//! The cache is memory behind the memory zone, in the same range of loads and stores ([`DeviceDescription::cache`]): it is loaded, stored,
//! flushed, fenced and mapped as the memory zone is, and its bytes survive what stores to that zone survive. The drive keeps no mapping
//! between cache and flash. Who caches what, and which of two copies is the newer one, is the host's affair.
//!
//! [CMV1] A MOVE copies pages of 4 KiB, which follow each other on both sides, and leaves its source as it was. It runs after its submission
//!       returned; nothing is promised of it until its completion was taken, by [`CacheMoves::poll`] or [`CacheMoves::wait`].
//! [CMV2] A completed MOVE to the flash is a completed block write of the bytes that the pages had: durable at once, or from the next FLUSH
//!       on where the drive has a volatile write cache. It takes stores that were in the persistence domain when it was submitted. One that
//!       was not flushed and fenced, where the domain needs that, may be missing.
//! [CMV3] A completed MOVE to the cache is durable as fenced stores are. Who submits it has no unfenced stores to its pages: a line that
//!       leaves a CPU's cache later would replace what was moved.
//! [CMV4] From submission to completion the pages are in motion. A store to the source is in the copy or not, 8 B by 8 B. What is stored or
//!       written to the target meanwhile, and what is loaded or read from it, is any mixture of old and new.
//! [CMV5] A power failure before the completion, and a MOVE that failed, leave in its target any part of what was moved: sectors of the flash
//!       as an interrupted block write leaves them, pages of the cache torn at 8 B. The source keeps its bytes.
//! [CMV6] Commands are not ordered, neither among each other nor with loads, stores and block commands. Who needs an order waits for the
//!       completion first.
//! [CMV7] A drive takes so many commands at once. One more is not taken (`None`) until a completion was taken. A ticket that is dropped keeps
//!       its place until the device is closed.
//!
//! [`DeviceDescription::cache`]: crate::DeviceDescription::cache

use std::time::Duration;

use tandemfs_format::{PAGE_BYTES, SECTOR_BYTES, Sector};

use crate::{DeviceDescription, DeviceError, MemoryRange};

const _: () = assert!(PAGE_BYTES == SECTOR_BYTES, "a page of the cache holds a sector");

/// Where a MOVE brings pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoveDirection {
    /// From the flash.
    ToCache,
    /// From the cache.
    ToFlash,
}

impl MoveDirection {
    /// The operation in [`DeviceError::Block`].
    pub fn operation(self) -> &'static str {
        match self {
            Self::ToCache => "move to cache",
            Self::ToFlash => "move to flash",
        }
    }
}

/// A MOVE command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheMove {
    /// Where it brings the pages.
    pub direction: MoveDirection,
    /// First page of the cache, from its start.
    pub cache_page: u64,
    /// First sector of the block zone.
    pub sector: Sector,
    /// Pages, at least one.
    pub count: u32,
}

impl CacheMove {
    /// Bytes that it copies.
    pub fn bytes(&self) -> u64 {
        u64::from(self.count) * PAGE_BYTES as u64
    }

    /// Where its pages are in the range of loads and stores.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where pages or sectors are outside of the device, [`DeviceError::Block`] for no pages at all.
    pub fn check(&self, description: &DeviceDescription) -> Result<MemoryRange, DeviceError> {
        let (cache, length) = (description.cache(), self.bytes());
        if length == 0 {
            return Err(self.failed(&description.name, std::io::ErrorKind::InvalidInput.into()));
        }
        let inside = |number: u64, size: u64| {
            let offset = number.saturating_mul(PAGE_BYTES as u64);
            let device = || description.name.clone();
            match offset.checked_add(length) {
                Some(end) if end <= size => Ok(offset),
                _ => Err(DeviceError::OutOfRange { device: device(), offset, length, size }),
            }
        };
        inside(self.sector.number(), description.block_bytes)?;
        Ok(MemoryRange { offset: cache.offset + inside(self.cache_page, cache.length)?, length })
    }

    /// The error of a MOVE that failed.
    pub fn failed(&self, device: &str, source: std::io::Error) -> DeviceError {
        let (operation, offset) = (self.direction.operation(), self.sector.number().saturating_mul(SECTOR_BYTES as u64));
        DeviceError::Block { device: device.to_owned(), operation, offset, length: self.bytes(), source }
    }
}

/// A MOVE that was submitted. There is one for each, and taking the completion consumes it.
#[must_use = "the completion of a MOVE is to be taken; it keeps a place in the drive's queue until then"]
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct MoveTicket(u64);

impl MoveTicket {
    /// The ticket of this number, for a device that submits.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number: not used twice while the device is open.
    pub fn number(&self) -> u64 {
        self.0
    }
}

/// State of a MOVE.
#[must_use = "a MOVE that is pending is to be asked for again"]
#[derive(Debug)]
pub enum MoveState {
    /// It is not complete.
    Pending(MoveTicket),
    /// It is complete, and this is its completion.
    Done(Result<(), DeviceError>),
}

impl MoveState {
    /// The answer for a ticket that no MOVE of this device has.
    pub fn unknown(device: &str) -> Self {
        let reason = "no MOVE under way has this ticket".to_owned();
        Self::Done(Err(DeviceError::Firmware { device: device.to_owned(), command: "MOVE", reason }))
    }
}

/// Commands of a drive whose cache the host manages ([CMV1]–[CMV7]).
pub trait CacheMoves: Send + Sync {
    /// Commands that it takes at once.
    fn queue_depth(&self) -> u32;

    /// Submits a MOVE, and returns before it is done; `None` where as many as [`queue_depth`](Self::queue_depth) are under way ([CMV7]).
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`]; [`DeviceError::Block`] with EROFS on a device that is open for reading. Whatever happens later is in the
    /// completion.
    fn submit(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError>;

    /// Takes the completion if there is one, and does not wait.
    fn poll(&self, ticket: MoveTicket) -> MoveState;

    /// Waits for the completion, so long at most, and takes it.
    fn wait(&self, ticket: MoveTicket, timeout: Duration) -> MoveState;
}
