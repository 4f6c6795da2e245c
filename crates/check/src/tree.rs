//! Walks a mapping tree without recursion. The caller decides which pages to enter, so that it can claim them first ([CK2]).

use tandemfs_device::{DeviceError, Structure};
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records};
use tandemfs_format::segment::Region;
use tandemfs_format::{LineAddress, PAGE_LINES};

use crate::finding::Damage;
use crate::image::{Image, Page, line_of};

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// In the inode.
    Inode,
    /// In a line of a mapping page.
    Line { line: LineAddress, index: usize },
}

impl Site {
    /// The line that findings name: 0 for the record in the inode.
    pub(crate) fn line(self) -> LineAddress {
        match self {
            Self::Inode => IN_INODE,
            Self::Line { line, .. } => line,
        }
    }
}

/// The blocks that a part of a mapping covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Span {
    fn of(first: u64, count: u64) -> Self {
        Self { first, count }
    }
}

/// A step of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A pointer to a page one level down. [`Walk::enter`] goes there.
    Pointer { site: Site, span: Span, page: LineAddress, height: u32 },
    /// A block that is not a hole.
    Block { block: u64, site: Site, record: Record },
    /// Everything below a record was given up by a repair.
    Lost { site: Site, span: Span },
    /// A record that belongs on another level.
    Misfit { site: Site, span: Span },
    /// A record that has no meaning, in a line that verifies.
    DamagedRecord { site: Site, span: Span, damage: Damage },
    /// A line that does not verify, of a page of this height. The walk skips its contents.
    DamagedLine { line: LineAddress, height: u32, span: Span, damage: Damage },
}

/// Blocks below a record of a page of this height.
fn below(height: u32) -> u64 {
    PAGE_RECORDS.saturating_pow(height.saturating_sub(1))
}

struct Frame {
    page: LineAddress,
    height: u32,
    base: u64,
    next: u64,
    bytes: Page,
}

impl Frame {
    /// The first block of the next record.
    fn first_block(&self) -> u64 {
        self.base.saturating_add(below(self.height).saturating_mul(self.next))
    }
}

/// A walk over the records of one inode, in the order of blocks.
pub(crate) struct Walk {
    inode: u64,
    generation: u32,
    root: Option<RecordBytes>,
    stack: Vec<Frame>,
}

/// Line that findings name for the record in the inode.
const IN_INODE: LineAddress = LineAddress::new(0);

impl Walk {
    pub(crate) fn new(number: u64, inode: &Inode) -> Self {
        Self { inode: number, generation: inode.generation, root: Some(inode.root_record()), stack: Vec::new() }
    }

    /// Goes down to a page that [`Step::Pointer`] named. Heights fall with every step, so there are at most eight pages.
    pub(crate) fn enter(&mut self, image: &Image<'_>, page: LineAddress, height: u32, block: u64) -> Result<(), DeviceError> {
        let bytes = image.page(Structure::Mapping, page)?;
        self.stack.push(Frame { page, height, base: block, next: 0, bytes });
        Ok(())
    }

    /// The next step; holes are skipped.
    pub(crate) fn next(&mut self, image: &Image<'_>) -> Option<Step> {
        if let Some(root) = self.root.take() {
            let site = Site::Inode;
            match root.decode(IN_INODE) {
                Err(corrupt) => return Some(Step::DamagedRecord { site, span: Span::of(0, u64::MAX), damage: corrupt.into() }),
                Ok(Record::HOLE) => return None,
                Ok(Record::Pointer { page, height }) => {
                    return Some(Step::Pointer { site, span: Span::of(0, below(height + 1)), page, height });
                }
                Ok(Record::Lost { height: height @ 1.., .. }) => return Some(Step::Lost { site, span: Span::of(0, below(height + 1)) }),
                Ok(record) => return Some(Step::Block { block: 0, site, record }),
            }
        }
        loop {
            let frame = self.stack.last_mut()?;
            if frame.next >= PAGE_RECORDS {
                self.stack.pop();
                continue;
            }
            let (line_index, index) = (frame.next / LINE_RECORDS as u64, (frame.next % LINE_RECORDS as u64) as usize);
            let address = frame.page.nth(line_index);
            let line = line_of(frame.bytes.as_slice(), line_index as usize);
            if index == 0 {
                let place = image.place(self.inode, self.generation, address);
                if let Err(corrupt) = image.superblock.hole_lines().verify(&line, &place) {
                    let span = Span::of(frame.first_block(), below(frame.height).saturating_mul(LINE_RECORDS as u64));
                    frame.next += LINE_RECORDS as u64;
                    return Some(Step::DamagedLine { line: address, height: frame.height, span, damage: corrupt.into() });
                }
            }
            let span = Span::of(frame.first_block(), below(frame.height));
            let site = Site::Line { line: address, index };
            let height = frame.height;
            frame.next += 1;
            let Some(record) = line_records(&line).get(index).map(|record| record.decode(address)) else { continue };
            return Some(match record {
                Err(corrupt) => Step::DamagedRecord { site, span, damage: corrupt.into() },
                Ok(Record::HOLE) => continue,
                Ok(Record::Pointer { page, height: below }) if below + 1 == height => Step::Pointer { site, span, page, height: below },
                Ok(Record::Lost { height: below @ 1.., .. }) if below + 1 == height => Step::Lost { site, span },
                Ok(Record::Pointer { .. } | Record::Lost { height: 1.., .. }) => Step::Misfit { site, span },
                Ok(record) if height == 1 => Step::Block { block: span.first, site, record },
                Ok(_) => Step::Misfit { site, span },
            });
        }
    }
}

/// Visits the pages of a directory that can be read, until `visit` says stop.
pub(crate) fn directory_pages(image: &Image<'_>, number: u64, inode: &Inode, visit: &mut dyn FnMut(u64, LineAddress) -> bool) {
    let mut walk = Walk::new(number, inode);
    let mut left = image.geometry.memory_units() * tandemfs_format::UNIT_LINES / PAGE_LINES; // a damaged tree may name a page again
    while let Some(step) = walk.next(image) {
        match step {
            Step::Pointer { span, page, height, .. } if left > 0 && image.segments.holds(Region::Mappings, page, PAGE_LINES) => {
                left -= 1;
                if walk.enter(image, page, height, span.first).is_err() {
                    return;
                }
            }
            Step::Block { block, record: Record::Memory(page), .. }
                if image.segments.holds(Region::Dentries, page, PAGE_LINES) && !visit(block, page) =>
            {
                return;
            }
            _ => {}
        }
    }
}
