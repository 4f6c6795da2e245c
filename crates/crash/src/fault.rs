//! A device that fails on the n-th access of a kind.
//!
//! The fault model: a failed load, store or read changes nothing on the device; a failed write leaves its sectors as they were; a failed
//! FLUSH makes nothing durable that was not. A lasting fault fails every access of the kind from the n-th on. Flushes of lines and fences
//! cannot fail on a CPU.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError};
use tandemfs_format::Sector;

use crate::memory_device::MemoryDevice;

/// Kinds of accesses that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// From the memory zone.
    Load,
    /// To the memory zone.
    Store,
    /// Of sectors.
    Read,
    /// Of sectors.
    Write,
    /// FLUSH of the drive.
    Flush,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Load, Self::Store, Self::Read, Self::Write, Self::Flush];
}

/// A device with one planned fault.
#[derive(Debug)]
pub struct FaultDevice {
    inner: MemoryDevice,
    access: Access,
    /// Accesses of the kind that still succeed.
    left: AtomicU64,
    lasting: bool,
    hit: AtomicBool,
}

impl FaultDevice {
    /// Fails the access after `succeed` accesses of its kind, and all later ones if the fault is lasting.
    pub fn new(inner: MemoryDevice, access: Access, succeed: u64, lasting: bool) -> Self {
        Self { inner, access, left: AtomicU64::new(succeed), lasting, hit: AtomicBool::new(false) }
    }

    /// Whether the fault has happened.
    pub fn hit(&self) -> bool {
        self.hit.load(SeqCst)
    }

    fn fails(&self, access: Access) -> bool {
        if access != self.access {
            return false;
        }
        let before = self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let fails = before.is_err() && (self.lasting || !self.hit());
        if fails {
            self.hit.store(true, SeqCst);
        }
        fails
    }

    fn error(&self, operation: &'static str, offset: u64, length: usize) -> DeviceError {
        let source = io::Error::other("an injected fault");
        DeviceError::Block { device: "fault device".into(), operation, offset, length: length as u64, source }
    }
}

impl Device for FaultDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        self.inner.description()
    }
}

impl BytePath for FaultDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        if self.fails(Access::Load) {
            return Err(DeviceError::Poisoned { device: "fault device".into(), offset });
        }
        self.inner.load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        if self.fails(Access::Store) {
            return Err(DeviceError::Poisoned { device: "fault device".into(), offset });
        }
        self.inner.store(offset, from)
    }

    fn flush(&self, offset: u64, length: u64) {
        BytePath::flush(&self.inner, offset, length);
    }

    fn fence(&self) {
        self.inner.fence();
    }
}

impl BlockPath for FaultDevice {
    fn transfer(&self, requests: &mut [BlockRequest<'_>], meanwhile: &mut dyn FnMut()) -> Result<(), DeviceError> {
        let mut first = None;
        let mut run_meanwhile = Some(meanwhile);
        for request in requests.iter_mut() {
            let (access, name, sector, length) = match request {
                BlockRequest::Read { sector, buffer } => (Access::Read, "read", *sector, buffer.len()),
                BlockRequest::Write { sector, buffer } => (Access::Write, "write", *sector, buffer.len()),
            };
            if self.fails(access) {
                first.get_or_insert(self.error(name, sector.offset_bytes(), length));
                continue;
            }
            self.inner.transfer(std::slice::from_mut(request), &mut || {
                if let Some(meanwhile) = run_meanwhile.take() {
                    meanwhile();
                }
            })?;
        }
        if let Some(meanwhile) = run_meanwhile.take() {
            meanwhile();
        }
        first.map_or(Ok(()), Err)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.fails(Access::Flush) {
            return Err(self.error("flush", 0, 0));
        }
        BlockPath::flush(&self.inner)
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.inner.discard(sector, count)
    }
}
