use crate::{DeviceError, StoreWay, Structure};

/// Loads and stores of a device. Offsets are bytes from the start of the memory zone.
///
/// Implementations never return references into the mapping. They report a failing access as [`DeviceError::Poisoned`] (RULES R23).
pub trait BytePath: Send + Sync {
    /// Copies `into.len()` bytes from the device. After an error the contents of `into` are unspecified.
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies `from` to the device. Loads see it at once; the persistence domain decides when it survives a failure.
    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// As [`BytePath::load`]; says what is loaded, for devices that count by structure.
    #[inline]
    fn load_of(&self, _structure: Structure, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.load(offset, into)
    }

    /// As [`BytePath::store`]; says what is stored and which way it should go to the media. A device without that way takes another:
    /// what survives a failure is the same, and so is what the caller has to flush.
    #[inline]
    fn store_by(&self, _structure: Structure, _way: StoreWay, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.store(offset, from)
    }

    /// Starts writing the lines of a range back from the CPU's caches. Ordered only by [`BytePath::fence`].
    fn flush(&self, offset: u64, length: u64);

    /// Waits until all lines flushed before are in the persistence domain.
    fn fence(&self);

    /// Whether all lines could be written back, of those flushed so far.
    ///
    /// # Errors
    /// [`DeviceError::Poisoned`] at the first line that could not.
    fn flushed(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
