//! A device wrapper. It records the engine's stores, so that a limit can repeat them, and can present another persistence domain.

use std::sync::Arc;

use parking_lot::Mutex;
use tandemfs_device::{BlockPath, BytePath, Device, DeviceDescription, DeviceError, DriveCounts, Firmware, PersistenceDomain};
use tandemfs_format::geometry::Geometry;

/// A store: offset in the memory zone and length, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store {
    /// Offset in the memory zone.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// The wrapper.
pub struct Probe {
    inner: Arc<dyn Device>,
    description: DeviceDescription,
    stores: Option<Mutex<Vec<Store>>>,
}

impl Probe {
    /// The same device in another domain. With `adr`, flushes and fences are really executed on memory that does not need them; the CPU
    /// cost is the same as on memory that does.
    pub fn with_domain(inner: Arc<dyn Device>, domain: PersistenceDomain) -> Self {
        let description = DeviceDescription { domain, ..inner.description().clone() };
        Self { inner, description, stores: None }
    }

    /// The same device; records stores from now on.
    pub fn noting(inner: Arc<dyn Device>) -> Self {
        let description = inner.description().clone();
        Self { inner, description, stores: Some(Mutex::default()) }
    }

    /// The stores since the last call: journal records, and the others.
    pub fn take(&self, geometry: &Geometry) -> (Vec<Store>, Vec<Store>) {
        let first = geometry.ring(0).offset_bytes();
        let rings = first..first + u64::from(geometry.ring_count()) * geometry.ring_bytes();
        let stores = self.stores.as_ref().map(|stores| std::mem::take(&mut *stores.lock())).unwrap_or_default();
        stores.into_iter().partition(|store| rings.contains(&store.offset))
    }
}

impl Device for Probe {
    fn byte_path(&self) -> &dyn BytePath {
        if self.stores.is_some() { self } else { self.inner.byte_path() }
    }

    fn block_path(&self) -> &dyn BlockPath {
        self.inner.block_path()
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }

    fn firmware(&self) -> Option<&dyn Firmware> {
        self.inner.firmware()
    }

    fn counts(&self) -> Option<DriveCounts> {
        self.inner.counts()
    }
}

impl BytePath for Probe {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.byte_path().load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        if let Some(stores) = &self.stores {
            stores.lock().push(Store { offset, length: from.len() as u64 });
        }
        self.inner.byte_path().store(offset, from)
    }

    fn flush(&self, offset: u64, length: u64) {
        self.inner.byte_path().flush(offset, length);
    }

    fn fence(&self) {
        self.inner.byte_path().fence();
    }
}
