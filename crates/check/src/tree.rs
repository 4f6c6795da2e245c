//! Walks a mapping tree without recursion. The caller decides which pages to enter, so that it can claim them first ([CK2]).

use tandemfs_device::{DeviceError, Structure};
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records};
use tandemfs_format::run::RunShape;
use tandemfs_format::segment::Region;
use tandemfs_format::{Line, LineAddress, PAGE_LINES};

use crate::finding::Damage;
use crate::image::{Image, ReadPage, line_of};
use crate::runs::{FoundRun, position};

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// In the inode.
    Inode,
    /// In a line of a mapping page.
    Line { line: LineAddress, index: usize },
    /// In a run: where the block would have a record of its own. Index of the run in its page, and the block from the run's start.
    InRun { page: LineAddress, head: u64, block: u64 },
}

impl Site {
    /// The line that findings name: 0 for the record in the inode.
    pub(crate) fn line(self) -> LineAddress {
        match self {
            Self::Inode => IN_INODE,
            Self::Line { line, .. } => line,
            Self::InRun { page, head, .. } => position(page, head).0,
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
    /// A run, before its blocks. [`Walk::leave_run`] leaves them out; those of a run that cannot be are left out anyway.
    Run(Box<FoundRun>),
    /// Everything below a record was given up by a repair.
    Lost { site: Site, span: Span },
    /// A record that belongs on another level.
    Misfit { site: Site, span: Span },
    /// A record that has no meaning, in a line that verifies.
    DamagedRecord { site: Site, span: Span, damage: Damage },
    /// A line that does not verify, of a page of this height. The walk skips its contents. Within a run it has only holes: its span is
    /// empty. Else it may have had a run: so many holes behind its records may have been blocks of that.
    DamagedLine { line: LineAddress, height: u32, span: Span, hidden: u64, damage: Damage },
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
    /// The records before this one are in runs that were found.
    of_run: u64,
    bytes: ReadPage,
}

impl Frame {
    /// A line, whether it verifies or not.
    fn line(&self, line_index: u64) -> Result<Line, Damage> {
        match self.bytes.unreadable >> line_index & 1 {
            0 => Ok(line_of(self.bytes.bytes.as_slice(), line_index as usize)),
            _ => Err(Damage::Unreadable),
        }
    }

    /// A line, if it verifies.
    fn verified(&self, image: &Image<'_>, (inode, generation): (u64, u32), line_index: u64) -> Option<Line> {
        let place = image.place(inode, generation, self.page.nth(line_index));
        let line = self.line(line_index).ok()?;
        image.superblock.hole_lines().verify(&line, &place).is_ok().then_some(line)
    }

    /// The holes from the next record on that a run in the line before it may have covered.
    fn hidden(&self, image: &Image<'_>, owner: (u64, u32)) -> u64 {
        if self.height != 1 || !image.superblock.has_memory_homes() {
            return 0;
        }
        let reach = RunShape::new(&image.geometry, false).blocks_max() - 1;
        let is_hole = |index: &u64| {
            let records = self.verified(image, owner, index / LINE_RECORDS as u64).map(|line| line_records(&line));
            records.is_some_and(|records| records.get((index % LINE_RECORDS as u64) as usize) == Some(&Record::HOLE.encode()))
        };
        (self.next..PAGE_RECORDS.min(self.next + reach)).take_while(is_hole).count() as u64
    }

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
    /// The run whose blocks are visited, and how many of them were.
    run: Option<(Box<FoundRun>, usize)>,
}

/// Line that findings name for the record in the inode.
const IN_INODE: LineAddress = LineAddress::new(0);

impl Walk {
    pub(crate) fn new(number: u64, inode: &Inode) -> Self {
        Self { inode: number, generation: inode.generation, root: Some(inode.root_record()), stack: Vec::new(), run: None }
    }

    /// Goes down to a page that [`Step::Pointer`] named. Heights fall with every step, so there are at most eight pages.
    pub(crate) fn enter(&mut self, image: &Image<'_>, page: LineAddress, height: u32, block: u64) -> Result<(), DeviceError> {
        let bytes = image.page_by_lines(Structure::Mapping, page)?;
        self.stack.push(Frame { page, height, base: block, next: 0, of_run: 0, bytes });
        Ok(())
    }

    /// Leaves out the blocks of the run of the last step.
    pub(crate) fn leave_run(&mut self) {
        self.run = None;
    }

    /// The next block of a run.
    fn next_of_run(&mut self) -> Option<Step> {
        let (run, next) = self.run.as_mut()?;
        let Some(block) = run.blocks.get(*next).copied() else {
            self.run = None;
            return None;
        };
        *next += 1;
        Some(Step::Block { block: run.first + block, site: run.site(block), record: run.record(block) })
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
                Ok(Record::Run(_)) => return Some(Step::Misfit { site, span: Span::of(0, u64::MAX) }),
                Ok(record) => return Some(Step::Block { block: 0, site, record }),
            }
        }
        if let Some(step) = self.next_of_run() {
            return Some(step);
        }
        loop {
            let frame = self.stack.last_mut()?;
            if frame.next >= PAGE_RECORDS {
                self.stack.pop();
                continue;
            }
            let (line_index, index) = (frame.next / LINE_RECORDS as u64, (frame.next % LINE_RECORDS as u64) as usize);
            let address = frame.page.nth(line_index);
            let line = frame.line(line_index);
            if index == 0 {
                let place = image.place(self.inode, self.generation, address);
                let verify = |line: Line| image.superblock.hole_lines().verify(&line, &place).map_err(Damage::from);
                if let Err(damage) = line.and_then(verify) {
                    let is_in_run = frame.next + LINE_RECORDS as u64 <= frame.of_run;
                    let count = if is_in_run { 0 } else { below(frame.height).saturating_mul(LINE_RECORDS as u64) };
                    let span = Span::of(frame.first_block(), count);
                    frame.next += LINE_RECORDS as u64;
                    let hidden = if is_in_run { 0 } else { frame.hidden(image, (self.inode, self.generation)) };
                    return Some(Step::DamagedLine { line: address, height: frame.height, span, hidden, damage });
                }
            }
            let Ok(line) = line else { continue };
            let span = Span::of(frame.first_block(), below(frame.height));
            let site = Site::Line { line: address, index };
            let height = frame.height;
            frame.next += 1;
            let record = line_records(&line).get(index).map(|record| record.decode(address));
            if let (1, Some(Ok(Record::Run(run)))) = (height, &record) {
                let at = (frame.page, frame.next - 1, span.first);
                let verified = |line_index: u64| frame.verified(image, (self.inode, self.generation), line_index);
                let found = Box::new(FoundRun::of(image, at, *run, verified));
                if found.is_possible {
                    frame.of_run = frame.next - 1 + u64::from(run.blocks);
                }
                self.run = (found.is_possible && found.inline.is_some()).then(|| (found.clone(), 0));
                return Some(Step::Run(found));
            }
            return Some(match record {
                None => continue,
                Some(Err(corrupt)) => Step::DamagedRecord { site, span, damage: corrupt.into() },
                Some(Ok(Record::HOLE)) => continue,
                Some(Ok(Record::Pointer { page, height: below })) if below + 1 == height => {
                    Step::Pointer { site, span, page, height: below }
                }
                Some(Ok(Record::Lost { height: below @ 1.., .. })) if below + 1 == height => Step::Lost { site, span },
                Some(Ok(Record::Pointer { .. } | Record::Lost { height: 1.., .. })) => Step::Misfit { site, span },
                Some(Ok(record)) if height == 1 => Step::Block { block: span.first, site, record },
                Some(Ok(_)) => Step::Misfit { site, span },
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
