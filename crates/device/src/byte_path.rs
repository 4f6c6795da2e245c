use crate::DeviceError;

/// Loads and stores of a device. Offsets are bytes from the start of the memory zone.
///
/// Implementations never hand out references into the mapping and turn a failing access into [`DeviceError::Poisoned`] (RULES R23).
pub trait BytePath: Send + Sync {
    /// Copies `into.len()` bytes from the device. May be cut at a poisoned page: then nothing of `into` has a meaning.
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies `from` to the device. It is visible to loads at once; whether it survives is the persistence domain's affair.
    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// Starts writing the lines of a range back from the CPU's caches. Ordered only by [`BytePath::fence`].
    fn flush(&self, offset: u64, length: u64);

    /// Waits until what was flushed before is in the persistence domain.
    fn fence(&self);
}
