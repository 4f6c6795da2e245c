//! Ranges of files, mapped from the memory zone that the daemon has lent ([MAP1]–[MAP9] of `crates/direct`).
//!
//! [CMP1] The daemon keeps the pages of a mapping where they are until it is told that the mapping is gone, or nothing maps the connection's
//!       description of the zone any more. So it is told behind the munmap(2), never before.
//! [CMP2] What the daemon says is mapped as far as it is whole pages inside of the zone ([MSG7] of the protocol).
//! [CMP3] A mapping for loads is not inherited by forked children ([LZ4] of the device layer): the daemon would not know when the last of them is
//!       gone. One for stores is: it has a description of its own, which is closed once it is mapped, so that the mapping alone keeps it.
//! [CMP4] What was stored is durable when its lines were flushed and a fence has passed, where the daemon says that the drive needs that; else at
//!       the fence. No request is made.

use std::num::NonZeroU64;
use std::sync::Arc;

use rustix::io::Errno;
use tandemfs_device::{DeviceError, LentZone, MappedMemory, MemoryRange, StoreZone};
use tandemfs_protocol::LentRange;

use crate::Result;
use crate::connection::Connection;
use crate::mutant::{self, Mutant};

/// Bytes of a line of the CPU's caches.
const LINE_BYTES: u64 = 64;

/// Pages of the zone, mapped, and the daemon's number for them.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: Box<dyn MappedMemory>,
    number: NonZeroU64,
    /// It can be stored to; whether lines are to be flushed.
    stores: Option<bool>,
}

fn in_zone(ranges: &[LentRange]) -> Vec<MemoryRange> {
    ranges.iter().map(|range| MemoryRange { offset: range.zone_offset, length: range.bytes }).collect()
}

impl Mapped {
    pub(crate) fn new(zone: &LentZone, ranges: &[LentRange], number: NonZeroU64) -> std::result::Result<Self, DeviceError> {
        Ok(Self { memory: zone.map_ranges(&in_zone(ranges))?, number, stores: None })
    }

    /// For stores, by a description that nobody else has ([CMP3]).
    pub(crate) fn for_stores(
        zone: StoreZone,
        ranges: &[LentRange],
        number: NonZeroU64,
        needs_flush: bool,
    ) -> std::result::Result<Self, DeviceError> {
        let memory = zone.map_ranges(&in_zone(ranges))?;
        drop(zone);
        Ok(Self { memory, number, stores: Some(needs_flush) })
    }

    /// [CMP4]
    fn sync(&self, offset: u64, length: u64) -> std::result::Result<(), DeviceError> {
        let first = offset / LINE_BYTES * LINE_BYTES;
        if self.stores == Some(true) && length > 0 && !mutant::on(Mutant::SyncUnflushed) {
            self.memory.flush(first, offset + length - first)?;
        }
        self.memory.fence();
        Ok(())
    }
}

/// A mapped range of a file ([`File::map`](crate::File::map), [`File::map_writable`](crate::File::map_writable)). It goes when it is dropped;
/// the file may be closed before.
///
/// Others change its bytes at any time, as those of any shared mapping; aligned words of 8 bytes are whole. Where the file is truncated, its bytes
/// are zeros; where it grows again they are the file's again. When the daemon or its connection ends, nothing says whose bytes those of a mapping for
/// loads are: [`Mount::has_ended`](crate::Mount::has_ended). Those of a writable one stay the file's: nobody else gets them, and no
/// daemon serves the drive anew, before it is gone.
#[derive(Debug)]
pub struct Mapping {
    /// None once it is unmapped.
    mapped: Option<Mapped>,
    length: u64,
    /// None once it has left its connection.
    connection: Option<Arc<Connection>>,
}

impl Mapping {
    pub(crate) fn new(connection: Arc<Connection>, mapped: Mapped, length: u64) -> Self {
        Self { mapped: Some(mapped), length, connection: Some(connection) }
    }

    /// Says that it is gone, where its addresses have been unmapped already, or are used otherwise: unmaps nothing.
    pub fn replaced(mut self) {
        if let Some(Mapped { memory, number, .. }) = self.mapped.take() {
            std::mem::forget(memory);
            self.tell_end(number);
        }
    }

    /// Stays when its connection ends, and does not keep that. The daemon learns of the end of one for stores from the kernel; one for loads
    /// shows whatever is in its pages later.
    pub fn leave_connection(&mut self) {
        self.connection = None;
    }

    fn tell_end(&self, number: NonZeroU64) {
        if let Some(connection) = &self.connection
            && !mutant::on(Mutant::UnmapNotTold)
        {
            connection.unmap(number);
        }
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether it can be stored to.
    pub fn is_writable(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.stores.is_some())
    }

    /// Its first byte, for loads. It is valid for [`length`](Self::length) bytes as long as this lives, and the rest of the last page is mapped as
    /// well. A load of a line that cannot be read, or of an image that was cut short, is a SIGBUS.
    pub fn as_ptr(&self) -> *const u8 {
        let address = self.mapped.as_ref().and_then(|mapped| mapped.memory.address());
        address.map_or(std::ptr::null(), |address| address.as_ptr().cast_const())
    }

    /// Its first byte, for stores as well; null if it is for loads alone. Forked children have it too, and keep the pages as long. What is stored
    /// behind [`length`](Self::length), in the rest of the last page, is no part of the file where the file ends there.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        if self.is_writable() { self.as_ptr().cast_mut() } else { std::ptr::null_mut() }
    }

    fn within(&self, offset: u64, length: u64) -> Result<&Mapped> {
        let mapped = self.mapped.as_ref().ok_or(Errno::INVAL)?;
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(mapped),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Copies bytes out of it, from an offset in the mapping.
    ///
    /// # Errors
    /// `EINVAL` behind its end; `EIO` where memory cannot be read, instead of a SIGBUS.
    pub fn load(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        Ok(self.within(offset, into.len() as u64)?.memory.copy_out(offset, into).map_err(|_| Errno::IO)?)
    }

    /// Copies bytes into it, at an offset in the mapping. Others see them at once; they are durable when [`sync`](Self::sync) has returned.
    ///
    /// # Errors
    /// `EACCES` if it is for loads alone; `EINVAL` behind its end; `EIO` where memory cannot be written.
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mapped = self.within(offset, from.len() as u64)?;
        if mapped.stores.is_none() {
            return Err(Errno::ACCESS.into());
        }
        Ok(mapped.memory.copy_in(offset, from).map_err(|_| Errno::IO)?)
    }

    /// Stores 8 bytes at a multiple of 8, at once: a crash leaves the old ones or these.
    ///
    /// # Errors
    /// As [`store`](Self::store); `EINVAL` at another offset.
    pub fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        let mapped = self.within(offset, size_of::<u64>() as u64)?;
        match mapped.stores {
            None => Err(Errno::ACCESS.into()),
            Some(_) if !offset.is_multiple_of(size_of::<u64>() as u64) => Err(Errno::INVAL.into()),
            Some(_) => Ok(mapped.memory.store_word(offset, word).map_err(|_| Errno::IO)?),
        }
    }

    /// Makes durable what was stored to a range by this process, as msync(2) with MS_SYNC, without a call ([CMP4]).
    ///
    /// # Errors
    /// `EINVAL` behind its end; `EIO` where memory cannot be written.
    pub fn sync(&self, offset: u64, length: u64) -> Result<()> {
        Ok(self.within(offset, length)?.sync(offset, length).map_err(|_| Errno::IO)?)
    }
}

impl Drop for Mapping {
    /// [CMP1]
    fn drop(&mut self) {
        if let Some(Mapped { memory, number, .. }) = self.mapped.take() {
            drop(memory);
            self.tell_end(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use parking_lot::Mutex;

    use super::*;

    /// What is flushed; none for a fence.
    type Flushed = Option<(u64, u64)>;

    /// Notes what is flushed and fenced.
    #[derive(Debug, Clone, Default)]
    struct Noting(Arc<Mutex<Vec<Flushed>>>);

    impl MappedMemory for Noting {
        fn length(&self) -> u64 {
            8192
        }

        fn copy_out(&self, _: u64, _: &mut [u8]) -> std::result::Result<(), DeviceError> {
            Ok(())
        }

        fn copy_in(&self, _: u64, _: &[u8]) -> std::result::Result<(), DeviceError> {
            Ok(())
        }

        fn store_word(&self, _: u64, _: u64) -> std::result::Result<(), DeviceError> {
            Ok(())
        }

        fn flush(&self, offset: u64, length: u64) -> std::result::Result<(), DeviceError> {
            self.0.lock().push(Some((offset, length)));
            Ok(())
        }

        fn fence(&self) {
            self.0.lock().push(None);
        }

        fn address(&self) -> Option<NonNull<u8>> {
            None
        }
    }

    /// [CMP4]
    #[test]
    fn a_sync_flushes_whole_lines_where_that_is_needed_and_fences() {
        let synced = |stores| {
            let noting = Noting::default();
            let mapped = Mapped { memory: Box::new(noting.clone()), number: NonZeroU64::MIN, stores };
            mapped.sync(70, 100).expect("durable");
            mapped.sync(128, 0).expect("nothing to do");
            noting.0.lock().clone()
        };
        assert_eq!(synced(Some(true)), [Some((64, 106)), None, None]);
        assert_eq!((synced(Some(false)), synced(None)), (vec![None, None], vec![None, None]));
        #[cfg(feature = "mutants")]
        {
            let _alone = crate::mutant::ALONE.lock();
            crate::mutant::select(Mutant::SyncUnflushed);
            let found = synced(Some(true));
            crate::mutant::select(Mutant::None);
            assert_eq!(found, [None, None], "SyncUnflushed escaped");
        }
    }
}
