//! Ranges of files, mapped from the memory zone that the daemon has lent ([MAP1]–[MAP5] of `crates/direct`).
//!
//! [CMP1] The daemon keeps the pages of a mapping where they are until it is told that the mapping is gone, or nothing maps the connection's
//!       description of the zone any more. So it is told behind the munmap(2), never before.
//! [CMP2] What the daemon says is mapped as far as it is whole pages inside of the zone ([MSG7] of the protocol).
//! [CMP3] A mapping is not inherited by forked children ([LZ4] of the device layer): the daemon would not know when the last of them is gone.

use std::num::NonZeroU64;
use std::sync::Arc;

use rustix::io::Errno;
use tandemfs_device::{LentZone, MappedMemory, MemoryRange};
use tandemfs_protocol::LentRange;

use crate::Result;
use crate::connection::Connection;
use crate::mutant::{self, Mutant};

/// Pages of the zone, mapped, and the daemon's number for them.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: Box<dyn MappedMemory>,
    number: NonZeroU64,
}

impl Mapped {
    pub(crate) fn new(
        zone: &LentZone,
        ranges: &[LentRange],
        number: NonZeroU64,
    ) -> std::result::Result<Self, tandemfs_device::DeviceError> {
        let ranges: Vec<_> = ranges.iter().map(|range| MemoryRange { offset: range.zone_offset, length: range.bytes }).collect();
        Ok(Self { memory: zone.map_ranges(&ranges)?, number })
    }
}

/// A mapped range of a file ([`File::map`](crate::File::map)). It goes when it is dropped; the file may be closed before.
///
/// Others change its bytes at any time, as those of any shared mapping; aligned words of 8 bytes are whole. Where the file is truncated, its bytes
/// are zeros; where it grows again they are the file's again. When the daemon or its connection ends, nothing says whose bytes they are:
/// [`Mount::has_ended`](crate::Mount::has_ended).
#[derive(Debug)]
pub struct Mapping {
    /// None once it is unmapped.
    mapped: Option<Mapped>,
    length: u64,
    connection: Arc<Connection>,
}

impl Mapping {
    pub(crate) fn new(connection: Arc<Connection>, mapped: Mapped, length: u64) -> Self {
        Self { mapped: Some(mapped), length, connection }
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its first byte, for loads. It is valid for [`length`](Self::length) bytes as long as this lives, and the rest of the last page is mapped as
    /// well. A load of a line that cannot be read, or of an image that was cut short, is a SIGBUS.
    pub fn as_ptr(&self) -> *const u8 {
        let address = self.mapped.as_ref().and_then(|mapped| mapped.memory.address());
        address.map_or(std::ptr::null(), |address| address.as_ptr().cast_const())
    }

    /// Copies bytes out of it, from an offset in the mapping.
    ///
    /// # Errors
    /// `EINVAL` behind its end; `EIO` where memory cannot be read, instead of a SIGBUS.
    pub fn load(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mapped = self.mapped.as_ref().ok_or(Errno::INVAL)?;
        match offset.checked_add(into.len() as u64) {
            Some(end) if end <= self.length => Ok(mapped.memory.copy_out(offset, into).map_err(|_| Errno::IO)?),
            _ => Err(Errno::INVAL.into()),
        }
    }
}

impl Drop for Mapping {
    /// [CMP1]
    fn drop(&mut self) {
        if let Some(Mapped { memory, number }) = self.mapped.take() {
            drop(memory);
            if !mutant::on(Mutant::UnmapNotTold) {
                self.connection.unmap(number);
            }
        }
    }
}
