use tandemfs_format::Sector;

use crate::{DeviceError, Sink, Source};

/// One request of a batch. Buffers are whole sectors of 4 KiB with any alignment in memory (an implementation copies if its
/// transport needs more).
#[derive(Debug)]
pub enum BlockRequest<'b> {
    /// Read into the buffer.
    Read {
        /// First sector.
        sector: Sector,
        /// Whole sectors.
        buffer: Sink<'b>,
    },
    /// Write from the buffer.
    Write {
        /// First sector.
        sector: Sector,
        /// Whole sectors.
        buffer: Source<'b>,
    },
}

impl BlockRequest<'_> {
    /// The first sector.
    pub fn sector(&self) -> Sector {
        match self {
            Self::Read { sector, .. } | Self::Write { sector, .. } => *sector,
        }
    }

    /// The bytes that were read or will be written.
    pub fn bytes(&self) -> Source<'_> {
        match self {
            Self::Read { buffer, .. } => buffer.bytes(),
            Self::Write { buffer, .. } => *buffer,
        }
    }
}

/// Block commands of a device. Addresses are sectors of 4 KiB from the start of the block zone.
pub trait BlockPath: Send + Sync {
    /// Submits all requests, runs `meanwhile` (the byte path's share of the work) while they are in flight, and returns when `meanwhile`
    /// has run once and every request has completed. Requests of a batch may complete in any order and must not overlap.
    /// On an error the others are still waited for; which sectors were written is then unknown.
    ///
    /// `completed` is called with each request and its index as soon as the request completes, in any order, while others are in flight:
    /// so a reader verifies early parts before late ones arrive. It runs in the caller's thread, after `meanwhile` began.
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError>;

    /// The same for callers that only need the completion of the whole batch.
    fn transfer(&self, requests: &mut [BlockRequest<'_>], meanwhile: &mut dyn FnMut()) -> Result<(), DeviceError> {
        self.transfer_each(requests, meanwhile, &mut |_, _| {})
    }

    /// Makes every write that completed before this call durable. Does nothing on a drive without a volatile cache.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the drive that the sectors' contents are no longer needed. A hint: they may read as anything afterwards.
    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError>;
}
