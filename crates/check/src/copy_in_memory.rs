//! A device over another one that is only read: what is written stays in host memory. A dry run repairs it, and so reports exactly what a
//! repair would do.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, Drive, Structure};
use tandemfs_format::{LINE_BYTES, Line, LineAddress, SECTOR_BYTES, Sector};

/// The copy.
pub(crate) struct CopyInMemory {
    below: Drive,
    description: DeviceDescription,
    lines: Mutex<BTreeMap<u64, Line>>,
    sectors: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl CopyInMemory {
    pub(crate) fn new(below: &Drive) -> Self {
        let description = DeviceDescription { overlapping: false, discard: false, ..below.description().clone() };
        Self { below: below.clone(), description, lines: Mutex::default(), sectors: Mutex::default() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BytePath for CopyInMemory {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let line_bytes = LINE_BYTES as u64;
        self.below.load(Structure::Mapping, LineAddress::new(offset / line_bytes), into)?;
        let lines = locked(&self.lines);
        let first = offset / line_bytes;
        let end = first + (into.len() as u64).div_ceil(line_bytes);
        for (line, image) in lines.range(first..end) {
            let at = ((line - first) * line_bytes) as usize;
            for (to, from) in into.iter_mut().skip(at).zip(image) {
                *to = *from;
            }
        }
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let mut lines = locked(&self.lines);
        for (line, bytes) in (offset / LINE_BYTES as u64..).zip(from.chunks(LINE_BYTES)) {
            let mut image = [0; LINE_BYTES];
            for (to, from) in image.iter_mut().zip(bytes) {
                *to = *from;
            }
            lines.insert(line, image);
        }
        Ok(())
    }

    fn flush(&self, _offset: u64, _length: u64) {}

    fn fence(&self) {}
}

impl BlockPath for CopyInMemory {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        meanwhile();
        let mut sectors = locked(&self.sectors);
        for (index, request) in requests.iter_mut().enumerate() {
            match request {
                BlockRequest::Read { sector, buffer } => {
                    let whole = buffer.len();
                    let mut below = [BlockRequest::Read { sector: *sector, buffer: buffer.reborrow() }];
                    drop(self.below.transfer(Structure::Data, &mut below, &mut || {})?);
                    for (number, at) in (sector.number()..).zip((0..whole).step_by(SECTOR_BYTES)) {
                        if let Some(image) = sectors.get(&number) {
                            buffer.copy_from(at, image);
                        }
                    }
                }
                BlockRequest::Write { sector, buffer } => {
                    for (number, part) in (sector.number()..).zip(buffer.chunks(SECTOR_BYTES)) {
                        sectors.insert(number, part.to_vec().into());
                    }
                }
            }
            completed(index, request);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _sector: Sector, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Device for CopyInMemory {
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
