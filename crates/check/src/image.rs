//! Reads an image as the next mount would see it: the device's bytes with the replayed lines over them ([CK1]).

use std::collections::BTreeMap;

use tandemfs_device::{BlockRequest, DeviceError, Drive, Structure};
use tandemfs_format::geometry::Geometry;
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{DataAddress, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_BYTES, PairSeed, Place};

use crate::mutant::{Mutant, on};
use crate::segments::Segments;

/// A page of metadata.
pub(crate) type Page = Box<[u8; PAGE_BYTES]>;

/// A page, and which of its lines (bits) cannot be read.
pub(crate) struct ReadPage {
    pub(crate) bytes: Page,
    pub(crate) unreadable: u64,
}

/// Stands for each byte that cannot be read: such a line is not empty.
pub(crate) const UNREADABLE: u8 = 0xff;

/// An image under inspection.
pub(crate) struct Image<'d> {
    pub(crate) drive: &'d Drive,
    pub(crate) superblock: Superblock,
    pub(crate) pair: PairSeed,
    pub(crate) geometry: Geometry,
    pub(crate) segments: Segments,
    /// Lines changed by the replay, by number.
    pub(crate) overlay: BTreeMap<u64, Line>,
}

impl<'d> Image<'d> {
    /// An image without segments and overlay, through which these are read.
    pub(crate) fn new(drive: &'d Drive, superblock: Superblock) -> Self {
        let pair = PairSeed::new(superblock.pair);
        let geometry = superblock.geometry;
        Self { drive, superblock, pair, geometry, segments: Segments::default(), overlay: BTreeMap::new() }
    }

    /// The same image, to be changed in memory.
    pub(crate) fn copied(&self) -> Self {
        let copy = Self::new(self.drive, self.superblock.clone());
        Self { overlay: self.overlay.clone(), segments: self.segments.clone(), ..copy }
    }

    /// Loads whole lines.
    pub(crate) fn load(&self, structure: Structure, address: LineAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        self.drive.load(structure, address, into)?;
        let first = address.number();
        let count = (into.len() / LINE_BYTES) as u64;
        for (line, image) in self.overlay.range(first..first.saturating_add(count)) {
            let at = (line - first) as usize * LINE_BYTES;
            if let Some(bytes) = into.get_mut(at..at + LINE_BYTES) {
                bytes.copy_from_slice(image);
            }
        }
        Ok(())
    }

    /// Loads bytes from the start of a line; the last line may be partial. Data logs go through the overlay too: a record may name a line
    /// of a log, and then replay overwrites it.
    pub(crate) fn load_part(&self, structure: Structure, address: LineAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        if self.overlay.is_empty() {
            return self.drive.load(structure, address, into);
        }
        let mut lines = vec![0; into.len().next_multiple_of(LINE_BYTES)];
        self.load(structure, address, &mut lines)?;
        into.copy_from_slice(lines.get(..into.len()).unwrap_or_default());
        Ok(())
    }

    /// Lays the bytes of a data log over bytes of its block from an offset on. A log that cannot be loaded changes nothing: what is below it
    /// does not fit its checksum then.
    pub(crate) fn lay_log(&self, log: &LogEntry, offset: usize, bytes: &mut [u8]) {
        let (from, to) = ((log.offset as usize).max(offset), (log.end() as usize).min(offset + bytes.len()));
        let mut of_log = vec![0; log.length as usize];
        let is_inside = self.geometry.holds_lines(log.address, log.class.lines());
        if from < to && is_inside && self.load_part(Structure::DataLog, log.address, &mut of_log).is_ok() {
            let skip = log.offset as usize;
            let laid = of_log.get(from - skip..to - skip).unwrap_or_default();
            bytes.iter_mut().skip(from - offset).zip(laid).for_each(|(to, from)| *to = *from);
        }
    }

    /// Reads sectors or pages with file data.
    pub(crate) fn data(&self, at: DataAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        match at {
            DataAddress::Sector(sector) => {
                let mut request = [BlockRequest::Read { sector, buffer: into.into() }];
                self.drive.transfer(Structure::Data, &mut request, &mut || {}).map(drop)
            }
            DataAddress::Page(page) => self.load(Structure::Data, page, into),
        }
    }

    /// Loads one line.
    pub(crate) fn line(&self, structure: Structure, address: LineAddress) -> Result<Line, DeviceError> {
        let mut line = EMPTY_LINE;
        self.load(structure, address, &mut line)?;
        Ok(line)
    }

    /// Loads a page, line by line if it cannot be loaded as a whole ([CK5]). Fails if none of its lines can be read.
    pub(crate) fn page_by_lines(&self, structure: Structure, address: LineAddress) -> Result<ReadPage, DeviceError> {
        let error = match self.page(structure, address) {
            Ok(bytes) => return Ok(ReadPage { bytes, unreadable: 0 }),
            Err(error) => error,
        };
        let mut read = ReadPage { bytes: Box::new([UNREADABLE; PAGE_BYTES]), unreadable: 0 };
        for (index, into) in (0..).zip(read.bytes.as_chunks_mut::<LINE_BYTES>().0) {
            match self.line(structure, address.nth(index)) {
                Ok(line) => *into = line,
                Err(_) => read.unreadable |= 1 << index,
            }
        }
        if read.unreadable == u64::MAX || on(Mutant::PagesReadWhole) { Err(error) } else { Ok(read) }
    }

    /// Loads a page.
    pub(crate) fn page(&self, structure: Structure, address: LineAddress) -> Result<Page, DeviceError> {
        let mut page = Box::new([0; PAGE_BYTES]);
        self.load(structure, address, page.as_mut_slice())?;
        Ok(page)
    }

    /// The place of a line of an inode's mapping or directory.
    pub(crate) fn place(&self, inode: u64, generation: u32, address: LineAddress) -> Place {
        Place { pair: self.pair, address, inode: InodeNumber::new(inode), generation }
    }
}

/// Line `index` of a piece of memory; empty beyond its end.
pub(crate) fn line_of(bytes: &[u8], index: usize) -> Line {
    let mut line = EMPTY_LINE;
    if let Some(found) = bytes.get(index * LINE_BYTES..(index + 1) * LINE_BYTES) {
        line.copy_from_slice(found);
    }
    line
}
