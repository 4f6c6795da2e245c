//! Pages of mappings and names, and leaves, of which the checksums say whose they are.
//!
//! [PO1] Of two inodes that name a page or a leaf, the one for which lines of it verify keeps it, whatever their order. An older pointer, which a
//!       lost write leaves behind, verifies as well as the right one, and what it names may be another's by now. So where no line in use
//!       verifies for who names it, and lines verify for another inode that names it too, nothing is claimed and only the pointer goes.
//! [PO2] The search for those others is made once, when the first such page is met. It enters a page only for the inode for which it
//!       verifies, and only once, so it ends ([CK2]).

use tandemfs_device::Structure;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{LeafPointer, LogEntry, Record, line_entries};
use tandemfs_format::segment::Region;
use tandemfs_format::{EMPTY_LINE, LINE_BYTES, LineAddress, PAGE_LINES};

use crate::claims::Claims;
use crate::image::{Image, line_of};
use crate::inodes::sweep;
use crate::mend::Owner;
use crate::tree::{Step, Walk};

/// Lines of one structure of an inode, as a pointer names them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) owner: Owner,
    pub(crate) region: Region,
    pub(crate) first: LineAddress,
    pub(crate) count: u64,
}

impl Named {
    pub(crate) fn page(owner: Owner, region: Region, first: LineAddress) -> Self {
        Self { owner, region, first, count: PAGE_LINES }
    }

    pub(crate) fn leaf(owner: Owner, leaf: LeafPointer) -> Self {
        Self { owner, region: Region::Leaves, first: leaf.address, count: leaf.lines() }
    }

    /// For how many of the lines in use it verifies, and how many there are. `None` if the lines cannot be there, or not be read.
    fn verified(&self, image: &Image<'_>) -> Option<(usize, usize)> {
        let may_be = image.segments.holds(self.region, self.first, self.count) && self.first.number().is_multiple_of(self.count);
        let structure = if self.region == Region::Dentries { Structure::Dentry } else { Structure::Mapping };
        let mut bytes = vec![0; self.count as usize * LINE_BYTES];
        if !may_be || image.load(structure, self.first, &mut bytes).is_err() {
            return None;
        }
        let lines = (0..self.count).map(|index| (index, line_of(&bytes, index as usize))).filter(|(_, line)| *line != EMPTY_LINE);
        let place = |index| image.place(self.owner.inode, self.owner.generation, self.first.nth(index));
        Some(lines.fold((0, 0), |(good, all), (index, line)| (good + usize::from(place(index).verify(&line).is_ok()), all + 1)))
    }

    /// Whether lines are in use, and none of them verifies for the owner.
    pub(crate) fn is_foreign(&self, image: &Image<'_>) -> bool {
        matches!(self.verified(image), Some((0, 1..)))
    }

    /// Whether a line verifies for the owner.
    pub(crate) fn is_proved(&self, image: &Image<'_>) -> bool {
        matches!(self.verified(image), Some((1.., _)))
    }

    /// The logs of a leaf, in its lines that verify.
    pub(crate) fn logs(&self, image: &Image<'_>) -> Vec<LogEntry> {
        let may_be = image.segments.holds(self.region, self.first, self.count) && self.first.number().is_multiple_of(self.count);
        let of_line = |index| {
            let address = self.first.nth(index);
            let line = image.line(Structure::Mapping, address).ok()?;
            image.place(self.owner.inode, self.owner.generation, address).verify(&line).ok()?;
            line_entries(&line, address).ok()
        };
        (0..self.count).filter(|_| may_be).filter_map(of_line).flatten().flatten().collect()
    }
}

/// The pages and leaves that verify for an inode that names them.
#[derive(Default)]
pub(crate) struct Proved(Claims);

impl Proved {
    /// Searches the mappings of all inodes ([PO2]).
    pub(crate) fn search(image: &Image<'_>) -> Self {
        let mut proved = Self::default();
        sweep(image, &mut |_, _, found| {
            let Some(found) = found else { return };
            if let Ok(inode) = found.decoded
                && inode.has_mapping()
            {
                proved.add(image, found.number, &inode);
            }
        });
        proved
    }

    fn add(&mut self, image: &Image<'_>, number: u64, inode: &Inode) {
        let owner = Owner { inode: number, generation: inode.generation };
        let mut walk = Walk::new(number, inode);
        while let Some(step) = walk.next(image) {
            match step {
                Step::Pointer { span, page, height, .. } if self.take(image, Named::page(owner, Region::Mappings, page)) => {
                    let _ = walk.enter(image, page, height, span.first); // one that cannot be read now leads to nothing
                }
                Step::Block { record: Record::Memory(page), .. } if inode.is_directory() => {
                    self.take(image, Named::page(owner, Region::Dentries, page));
                }
                Step::Block { record: Record::Block { leaf: Some(leaf), .. } | Record::Lost { leaf: Some(leaf), .. }, .. } => {
                    self.take(image, Named::leaf(owner, leaf));
                }
                _ => {}
            }
        }
    }

    /// Whether these lines verify, and nobody had them before.
    fn take(&mut self, image: &Image<'_>, named: Named) -> bool {
        named.is_proved(image) && self.0.is_free(named.first.number(), named.count) && self.0.claim(named.first.number(), named.count)
    }

    /// Whether all of these lines are proved to be somebody's.
    pub(crate) fn has(&self, named: &Named) -> bool {
        (named.first.number()..named.first.number() + named.count).all(|line| !self.0.is_free(line, 1))
    }
}
