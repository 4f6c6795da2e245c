//! The attached device: a pair of real parts. The memory half is mapped (`/dev/daxX.Y`, a file on a DAX mount, any file or block device),
//! the block half is driven by io_uring with `O_DIRECT` (NVMe, any block device or file).
//!
//! [AT1] The persistence domain is what the kernel says of the memory half: `gpf` where the platform keeps CPU caches, `adr` where it keeps
//!       what was flushed, `process` where stores go to a page cache.
//! [AT2] Both halves are locked while in use; a block device that is mounted elsewhere is refused.

mod block_half;
mod memory_half;
mod rings;
mod sysfs;

use std::path::Path;

use block_half::BlockHalf;
use memory_half::MemoryHalf;

use crate::{BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, PersistenceDomain};

/// A memory device and a block device that serve as one hybrid SSD.
#[derive(Debug)]
pub struct PairDevice {
    description: DeviceDescription,
    memory: MemoryHalf,
    block: BlockHalf,
}

impl PairDevice {
    /// Takes both halves into use.
    ///
    /// # Errors
    /// `Open` with one sentence where a half cannot be used, `Busy` where another process has it.
    pub fn open(memory: &Path, block: &Path, read_only: bool) -> Result<Self, DeviceError> {
        let name = format!("memory={},block={}", memory.display(), block.display());
        if sysfs::same_file(memory, block) {
            return Err(DeviceError::Open { path: name, reason: "both halves are the same file; name two".into() });
        }
        let memory = MemoryHalf::open(memory, read_only)?;
        let block = BlockHalf::open(block, read_only)?;
        let description = DeviceDescription {
            name,
            memory_bytes: memory.bytes(),
            block_bytes: block.bytes(),
            domain: memory.domain(),
            // Below `adr` nothing is promised that a FLUSH could keep.
            volatile_write_cache: block.has_volatile_cache() && memory.domain() > PersistenceDomain::Process,
            discard: block.can_discard(),
        };
        Ok(Self { description, memory, block })
    }
}

impl Device for PairDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }
}

impl BytePath for PairDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.mapping().load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.memory.mapping().store(offset, from)
    }

    fn flush(&self, offset: u64, length: u64) {
        self.memory.mapping().flush(offset, length);
    }

    fn fence(&self) {
        self.memory.mapping().fence();
    }
}

impl BlockPath for PairDevice {
    fn transfer(&self, requests: &mut [BlockRequest<'_>], meanwhile: &mut dyn FnMut()) -> Result<(), DeviceError> {
        self.block.transfer(requests, meanwhile)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.block.flush()
    }

    fn discard(&self, sector: tandemfs_format::Sector, count: u64) -> Result<(), DeviceError> {
        self.block.discard(sector, count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tandemfs_format::{SECTOR_BYTES, Sector};

    use super::*;

    fn pair(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
        let (memory, block) = (folder.join("memory"), folder.join("block"));
        File::create(&memory).and_then(|file| file.set_len(4 << 20)).expect("a file");
        File::create(&block).and_then(|file| file.set_len(8 << 20)).expect("a file");
        (memory, block)
    }

    #[test]
    fn files_serve_as_a_pair_with_requests_of_any_alignment() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let device = PairDevice::open(&memory, &block, false).expect("opens");
        assert_eq!((device.description().memory_bytes, device.description().block_bytes), (4 << 20, 8 << 20));
        assert_eq!(device.description().domain, PersistenceDomain::Process);
        device.store(77, b"by bytes").expect("stores");
        let mut bytes = [0; 8];
        device.load(77, &mut bytes).expect("loads");
        assert_eq!(&bytes, b"by bytes");
        // 200 requests, more than a ring takes at once, from memory that is aligned to nothing.
        let data: Vec<u8> = (0..201 * SECTOR_BYTES).map(|i| (i / 61) as u8).collect();
        let mut requests: Vec<BlockRequest<'_>> = (0..200)
            .map(|i| BlockRequest::Write { sector: Sector::new(i * 3), buffer: &data[1 + i as usize * SECTOR_BYTES..][..SECTOR_BYTES] })
            .collect();
        let mut called = 0;
        device.transfer(&mut requests, &mut || called += 1).expect("writes");
        device.block_path().flush().expect("flushes");
        assert_eq!(called, 1);
        for i in 0..200 {
            let mut sector = vec![0; SECTOR_BYTES + 3];
            let mut request = [BlockRequest::Read { sector: Sector::new(i * 3), buffer: &mut sector[3..] }];
            device.transfer(&mut request, &mut || {}).expect("reads");
            assert_eq!(sector[3..], data[1 + i as usize * SECTOR_BYTES..][..SECTOR_BYTES]);
        }
        let mut sector = vec![0; SECTOR_BYTES];
        let mut beyond = [BlockRequest::Read { sector: Sector::new(2048), buffer: &mut sector }];
        assert!(matches!(device.transfer(&mut beyond, &mut || {}), Err(DeviceError::OutOfRange { .. })));
    }

    #[test]
    fn halves_that_cannot_be_used_are_refused_in_a_sentence() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let _used = PairDevice::open(&memory, &block, false).expect("opens");
        assert!(matches!(PairDevice::open(&memory, &block, false), Err(DeviceError::Busy { .. })));
        let refused = |memory: &Path, block: &Path| PairDevice::open(memory, block, false).map(drop).expect_err("refused").to_string();
        assert!(refused(&block, &block).contains("same file"));
        assert!(refused(&folder.path().join("nothing"), &block).contains("nothing"));
        assert!(refused(folder.path(), &block).contains("directory"));
        let empty = folder.path().join("empty");
        File::create(&empty).expect("a file");
        assert!(refused(&empty, &block).contains("empty"));
    }

    #[test]
    fn many_threads_drive_the_block_half_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let device = PairDevice::open(&memory, &block, false).expect("opens");
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        let sector = Sector::new(thread * 16 + u64::from(round) % 16);
                        let bytes = vec![round ^ thread as u8; SECTOR_BYTES];
                        device.transfer(&mut [BlockRequest::Write { sector, buffer: &bytes }], &mut || {}).expect("writes");
                        let mut read = vec![0; SECTOR_BYTES];
                        device.transfer(&mut [BlockRequest::Read { sector, buffer: &mut read }], &mut || {}).expect("reads");
                        assert_eq!(read, bytes);
                    }
                });
            }
        });
    }
}
