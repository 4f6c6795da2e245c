//! Reading a mapping that may be damaged: everything that can be found of it, and what is lost.
//!
//! [SA1] A line that does not verify is read if *one* changed bit makes it verify for its place (`Place::corrected`), and only by a caller
//!       that asks for that. What a corrected line names is *supposed*: it is marked as taken, but never freed, and no data is served by it.
//! [SA2] Any other damaged line is skipped, with everything that only it leads to. [`Salvage::lost`] says which kinds of space that may be.
//! [SA3] The walk ends soon, whatever the lines say: each step goes one height down, and a page is entered once by proof and once by
//!       supposition. A second proof is damage ([`Piece::Again`]): lines that verify can still name one page many times.
//! [SA4] Nothing is freed but what verified lines name, by [`free_all`] and [`cut`].
//! [SA5] Where a mapping is dropped, a line that the device cannot read is skipped like a damaged one: nothing names it afterwards.

use hashbrown::HashSet;
use tandemfs_device::Structure;
use tandemfs_format::hole_lines::holds_only_holes;
use tandemfs_format::mapping::{LINE_ENTRIES, LINE_RECORDS, LeafPointer, Record, RecordBytes, line_entries, line_records};
use tandemfs_format::run::Run;
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, Line, LineAddress, PAGE_BYTES, PAGE_LINES};

use super::block::Block;
use super::runs::{self, BlockPage};
use super::tree::{self, Below, IN_INODE, capacity, decode};
use crate::alloc::Need;
use crate::cache::{LineStore, Owner, damaged};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::space::{self, Kinds};
use crate::volume::{Tx, Volume};

/// How sure a piece of a mapping is ([SA1]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Reached by verified lines alone.
    Proved,
    /// Reached by a corrected line.
    Supposed,
}

impl Trust {
    /// The trust in what is reached through both.
    pub(crate) fn below(self, other: Self) -> Self {
        if self == Self::Supposed { self } else { other }
    }
}

/// What the walk finds.
pub(crate) enum Piece {
    /// A page of the mapping, before its content. The visitor returns whether it is entered.
    Page(LineAddress),
    /// A page that was entered before ([SA3]), and is not again.
    Again(LineAddress),
    /// A checksum line that belongs to a run ([BR3] of `runs.rs`).
    RunLine(LineAddress),
    /// A record of a block that is not a hole.
    Block(u64, Record),
}

/// A reader of one owner's lines.
pub(crate) struct Salvage<'s> {
    store: &'s LineStore,
    owner: Owner,
    corrects: bool,
    is_directory: bool,
    /// [SA5]
    skips_unreadable: bool,
    /// The first damage.
    pub(crate) first: Option<Corrupt>,
    /// Kinds of space that skipped lines may name ([SA2]).
    pub(crate) lost: Kinds,
    /// A skipped line verifies with one bit changed, so a repair would find what it leads to.
    pub(crate) could_correct: bool,
    /// Pages that were entered: by proof, by supposition.
    entered: [HashSet<LineAddress>; 2],
}

impl<'s> Salvage<'s> {
    /// `corrects`: lines with one wrong bit are read too.
    pub(crate) fn new(store: &'s LineStore, owner: Owner, is_directory: bool, corrects: bool) -> Self {
        Self {
            store,
            owner,
            corrects,
            is_directory,
            skips_unreadable: false,
            first: None,
            lost: Kinds::NONE,
            could_correct: false,
            entered: [HashSet::new(), HashSet::new()],
        }
    }

    /// The same for a mapping that is dropped ([SA5]).
    fn of_dropped(store: &'s LineStore, owner: Owner, is_directory: bool) -> Self {
        Self { skips_unreadable: !on(Mutant::UnreadableKeepsInodes), ..Self::new(store, owner, is_directory, false) }
    }

    /// Notes damage, and what it may hide.
    pub(crate) fn note(&mut self, what: Corrupt, hides: Kinds) {
        self.first.get_or_insert(what);
        self.lost = self.lost.and(hides);
    }

    /// Passes a result on. Damage is noted and becomes `None`.
    pub(crate) fn noted<T>(&mut self, result: Result<T>, hides: Kinds) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Damaged { source, .. }) => {
                self.note(source, hides);
                Ok(None)
            }
            Err(error) => match error.unreadable().filter(|_| self.skips_unreadable) {
                Some(unreadable) => {
                    self.note(unreadable, hides);
                    Ok(None)
                }
                None => Err(error),
            },
        }
    }

    /// A line of the owner: verified, or corrected; `None` if it is lost. `hides` is what it may name.
    pub(crate) fn line(&mut self, structure: Structure, address: LineAddress, hides: Kinds) -> Result<Option<(Line, Trust)>> {
        let line = self.store.line(self.owner, structure, address);
        self.proved_or_corrected(line, structure, address, hides)
    }

    /// A line of a mapping page, like `line`. Zeros may be a lost one.
    fn mapping_line(&mut self, address: LineAddress, hides: Kinds) -> Result<Option<(Line, Trust)>> {
        let line = self.store.mapping_line(self.owner, address);
        self.proved_or_corrected(line, Structure::Mapping, address, hides)
    }

    fn proved_or_corrected(
        &mut self,
        line: Result<Line>,
        structure: Structure,
        address: LineAddress,
        hides: Kinds,
    ) -> Result<Option<(Line, Trust)>> {
        let source = match line {
            Ok(line) => return Ok(Some((line, Trust::Proved))),
            Err(Error::Damaged { source, .. }) => source,
            Err(error) => return self.noted(Err(error), hides),
        };
        if matches!(source, Corrupt::Checksum { .. }) {
            let raw = self.store.raw_line(structure, address)?;
            match self.store.place(self.owner, address).corrected(&raw) {
                Some(line) if self.corrects => {
                    self.note(source, Kinds::NONE);
                    return Ok(Some((line, Trust::Supposed)));
                }
                corrected => self.could_correct |= corrected.is_some(),
            }
        }
        self.note(source, hides);
        Ok(None)
    }

    fn hidden(&self) -> Kinds {
        if self.is_directory { Kinds::OF_DIRECTORY } else { Kinds::OF_FILE }
    }

    /// Visits everything that can be found from a root.
    pub(crate) fn walk(
        &mut self,
        root: RecordBytes,
        trust: Trust,
        visit: &mut dyn FnMut(&mut Self, Trust, Piece) -> Result<bool>,
    ) -> Result<()> {
        let hides = self.hidden();
        let decoded = decode(self.owner, &root, IN_INODE);
        match self.noted(decoded, hides)? {
            None | Some(Record::HOLE | Record::Lost { height: 1.., .. }) => Ok(()),
            Some(Record::Pointer { page, height }) => self.page(page, height, 0, trust, visit),
            Some(record) => visit(self, trust, Piece::Block(0, record)).map(drop),
        }
    }

    fn page(
        &mut self,
        page: LineAddress,
        height: u32,
        base: u64,
        trust: Trust,
        visit: &mut dyn FnMut(&mut Self, Trust, Piece) -> Result<bool>,
    ) -> Result<()> {
        let hides = self.hidden();
        if !self.store.geometry.holds_lines(page, PAGE_LINES) {
            let found = page.number();
            self.note(Corrupt::Field { address: page, field: "address", found }, hides);
            return Ok(());
        }
        let [proved, supposed] = &mut self.entered;
        if trust == Trust::Supposed && !supposed.insert(page) {
            return Ok(());
        }
        if trust == Trust::Proved && !proved.insert(page) {
            self.note(Corrupt::Field { address: page, field: "page", found: page.number() }, Kinds::NONE);
            return visit(self, trust, Piece::Again(page)).map(drop);
        }
        if !visit(self, trust, Piece::Page(page))? {
            return Ok(());
        }
        let below = capacity(height - 1);
        for line_index in 0..PAGE_LINES {
            let address = page.nth(line_index);
            let Some((line, of_line)) = self.mapping_line(address, hides)? else { continue };
            if holds_only_holes(&line) {
                continue;
            }
            let trust = trust.below(of_line);
            for (index, record) in (line_index * LINE_RECORDS as u64..).zip(line_records(&line)) {
                let block = base.saturating_add(index.saturating_mul(below));
                let decoded = decode(self.owner, &record, address);
                let Some(record) = self.noted(decoded, hides)?.filter(|record| *record != Record::HOLE) else { continue };
                let down = tree::below(self.owner, record, address, height);
                match self.noted(down, hides)? {
                    Some(Below::Page(next)) => self.page(next, height - 1, block, trust, visit)?,
                    Some(Below::Block) => drop(visit(self, trust, Piece::Block(block, record))?),
                    Some(Below::Run(run)) => self.run((block, run), (page, block - base), trust, visit)?,
                    Some(Below::Hole | Below::Lost) | None => {} // what is lost has no space
                }
            }
        }
        Ok(())
    }

    /// The lines of a run and its blocks, without inline checksums: what they name is asked, not their data.
    fn run(
        &mut self,
        (block, run): (u64, Run),
        (page, index): (LineAddress, u64),
        trust: Trust,
        visit: &mut dyn FnMut(&mut Self, Trust, Piece) -> Result<bool>,
    ) -> Result<()> {
        let shape = runs::verified(self.store, self.owner, &run, page, index);
        let Some(shape) = self.noted(shape, Kinds::OF_FILE)? else { return Ok(()) };
        for line in runs::own_lines(&run, shape, 0..run.blocks.into()) {
            visit(self, trust, Piece::RunLine(line))?;
        }
        for index in 0..u64::from(run.blocks) {
            visit(self, trust, Piece::Block(block + index, run.block(shape, index, 0)))?;
        }
        Ok(())
    }

    /// What can be found of a block: without the logs of lost leaf lines. `None` if the record itself names impossible space.
    pub(crate) fn block(&mut self, volume: &Volume, record: Record) -> Result<Option<(Block, Trust)>> {
        let without_leaf = match record {
            Record::Block { extent, leaf: Some(_) } => Record::Block { extent, leaf: None },
            Record::Lost { height: 0, leaf: Some(_) } => Record::LOST,
            other => other,
        };
        let found = Block::of_record(volume, self.owner, without_leaf);
        let Some(mut block) = self.noted(found, Kinds::OF_FILE)? else { return Ok(None) };
        let (Record::Block { leaf: Some(leaf), .. } | Record::Lost { leaf: Some(leaf), .. }) = record else {
            return Ok(Some((block, Trust::Proved)));
        };
        if !volume.geometry.holds_lines(leaf.address, leaf.lines()) {
            let found = leaf.address.number();
            self.note(Corrupt::Field { address: leaf.address, field: "leaf", found }, Kinds::OF_FILE);
            return Ok(Some((block, Trust::Proved)));
        }
        let trust = self.logs(volume, &mut block, leaf)?;
        Ok(Some((block, trust)))
    }

    fn logs(&mut self, volume: &Volume, block: &mut Block, leaf: LeafPointer) -> Result<Trust> {
        let mut trust = Trust::Proved;
        let before = self.first.is_some();
        for index in 0..leaf.lines() {
            let address = leaf.address.nth(index);
            let Some((line, of_line)) = self.line(Structure::Mapping, address, Kinds::SLOTS)? else { continue };
            trust = trust.below(of_line);
            let decoded = line_entries(&line, address).map_err(Error::from);
            let Some(mut entries) = self.noted(decoded, Kinds::SLOTS)? else { continue };
            for entry in &mut entries {
                let fits = |log: &tandemfs_format::mapping::LogEntry| {
                    volume.geometry.holds_lines(log.address, log.class.lines()) && log.end() <= volume.geometry.block_bytes()
                };
                if let Some(log) = entry.take_if(|log| !fits(log)) {
                    self.note(Corrupt::Field { address, field: "log", found: log.address.number() }, Kinds::SLOTS);
                }
            }
            let at = index as usize * LINE_ENTRIES;
            block.logs[at..at + LINE_ENTRIES].copy_from_slice(&entries);
        }
        // A block without logs has no leaf, so these lines were lost.
        if !block.has_logs() && self.first.is_some() == before {
            self.note(Corrupt::Field { address: leaf.address, field: "entries", found: 0 }, Kinds::SLOTS);
        }
        block.set_leaf(leaf);
        Ok(trust)
    }
}

/// Frees what can be found of a whole mapping, in the transaction that drops it ([SA4]). Returns the space that was found, in units of
/// 512 B as the inode counts it, and the first damage.
pub(crate) fn free_all(
    tx: &mut Tx<'_>,
    volume: &Volume,
    owner: Owner,
    root: RecordBytes,
    is_directory: bool,
) -> Result<(u64, Option<Corrupt>)> {
    let mut salvage = Salvage::of_dropped(volume, owner, is_directory);
    let mut found_512 = 0;
    salvage.walk(root, Trust::Proved, &mut |salvage, _, piece| {
        found_512 += free(tx, volume, salvage, piece)?;
        Ok(true)
    })?;
    Ok((found_512, salvage.first))
}

/// Frees one piece. Returns its space as the inode counts it.
fn free(tx: &mut Tx<'_>, volume: &Volume, salvage: &mut Salvage<'_>, piece: Piece) -> Result<u64> {
    match piece {
        Piece::Page(page) => tx.free(space::region(Region::Mappings, page, PAGE_LINES)),
        Piece::Again(_) => {}
        Piece::RunLine(line) => tx.free(space::region(Region::Leaves, line, 1)),
        Piece::Block(_, Record::Memory(page)) if salvage.is_directory => {
            if volume.geometry.holds_lines(page, PAGE_LINES) {
                tx.free(space::region(Region::Dentries, page, PAGE_LINES));
                return Ok(PAGE_BYTES as u64 / 512);
            } else {
                salvage.note(Corrupt::Field { address: page, field: "address", found: page.number() }, Kinds::DENTRIES);
            }
        }
        Piece::Block(_, record) => {
            if let Some((block, _)) = salvage.block(volume, record)? {
                block.free_all(tx, volume);
                return Ok(block.space_512(volume.log_counting));
            }
        }
    }
    Ok(0)
}

/// Clears every record from block `from` on and frees what can be found there ([SA4]), for a file whose mapping is damaged behind it. A
/// damaged line that may also name a block before `from` is not given up: that is `Damaged`.
pub(crate) fn cut(tx: &mut Tx<'_>, volume: &Volume, owner: Owner, root: &mut RecordBytes, from: u64) -> Result<()> {
    let mut salvage = Salvage::new(volume, owner, false, false);
    if from == 0 {
        salvage.walk(*root, Trust::Proved, &mut |salvage, _, piece| free(tx, volume, salvage, piece).map(|_| true))?;
        *root = Record::HOLE.encode();
        return Ok(());
    }
    match decode(owner, root, IN_INODE)? {
        Record::Pointer { page, height } => cut_page(tx, volume, &mut salvage, (page, height, 0), from),
        _ => Ok(()),
    }
}

/// One page across the cut, so that something in it stays.
fn cut_page(
    tx: &mut Tx<'_>,
    volume: &Volume,
    salvage: &mut Salvage<'_>,
    (page, height, base): (LineAddress, u32, u64),
    from: u64,
) -> Result<()> {
    let owner = salvage.owner;
    if !volume.geometry.holds_lines(page, PAGE_LINES) {
        return Err(damaged(owner, page, "address"));
    }
    let below = capacity(height - 1);
    let start_of = |index: u64| base.saturating_add(index.saturating_mul(below));
    if height == 1 {
        runs::split_at(tx, owner, BlockPage { page, base }, from.saturating_sub(base))?;
    }
    for line_index in 0..PAGE_LINES {
        let (first, address) = (line_index * LINE_RECORDS as u64, page.nth(line_index));
        if start_of(first + LINE_RECORDS as u64) <= from {
            continue;
        }
        let is_behind = start_of(first) >= from;
        let line = match is_behind {
            true => salvage.noted(tx.mapping_line(owner, address), Kinds::OF_FILE)?,
            false => Some(tx.mapping_line(owner, address)?),
        };
        for (index, bytes) in (first..).zip(line.iter().flat_map(line_records)) {
            let (start, end) = (start_of(index), start_of(index + 1));
            if end <= from {
                continue;
            }
            let decoded = decode(owner, &bytes, address).and_then(|record| Ok((record, tree::below(owner, record, address, height)?)));
            let Some((record, down)) = (if start < from { Some(decoded?) } else { salvage.noted(decoded, Kinds::OF_FILE)? }) else {
                continue;
            };
            match down {
                Below::Hole => {}
                Below::Page(next) if start < from => cut_page(tx, volume, salvage, (next, height - 1, start), from)?,
                Below::Page(_) => {
                    let mut gone = |salvage: &mut Salvage<'_>, _, piece| free(tx, volume, salvage, piece).map(|_| true);
                    salvage.walk(bytes, Trust::Proved, &mut gone)?;
                }
                Below::Lost if start < from => {
                    let left = tree::split_lost(tx, owner, (height - 1, start), &(from..u64::MAX), Need::Transient)?;
                    tree::put(tx, owner, page, index, left)?;
                }
                Below::Lost => {}
                Below::Block => drop(free(tx, volume, salvage, Piece::Block(start, record))?),
                Below::Run(run) => {
                    let mut gone = |salvage: &mut Salvage<'_>, _, piece| free(tx, volume, salvage, piece).map(|_| true);
                    salvage.run((start, run), (page, index), Trust::Proved, &mut gone)?;
                }
            }
            if start >= from && !is_behind {
                tree::put(tx, owner, page, index, Record::HOLE)?;
            }
        }
        let empty = volume.holes.line_of_holes(&volume.place(owner, address));
        if is_behind && tx.raw_line(Structure::Mapping, address)? != empty {
            tx.put(Structure::Mapping, address, empty)?;
        }
    }
    Ok(())
}
