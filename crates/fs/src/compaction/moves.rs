//! What an inode names in units that are emptied, and how each kind of it moves ([CZ2]-[CZ6]).
//!
//! What is wanted is asked anew before each object: somebody who finds no other lines ends the emptying of a region at any time ([EU1] of
//! `alloc/emptying.rs`), and from then on lines that move may come from the very units they leave.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tandemfs_device::Fenced;
use tandemfs_format::mapping::Record;
use tandemfs_format::segment::Region;
use tandemfs_format::{DataAddress, InodeNumber, LINE_BYTES, LineAddress, PAGE_LINES};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block};
use crate::index::runs;
use crate::index::tree::{self, Found};
use crate::inodes::attribute_set::AttributeSet;
use crate::inodes::directory::DirectoryIndex;
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::statistics::add;
use crate::sync::RwLockWriteGuard;
use crate::tuning::compaction::Pass;
use crate::volume::{Owner, Tx, Volume};

/// Records of a mapping that one look visits under one lock.
const LOOK_RECORDS: usize = 256;

/// Something that may be in a unit that is emptied.
pub(super) enum Place {
    Attributes,
    /// A page of the mapping: a block that it covers, and its height.
    Page(u64, u32),
    /// A page of directory entries: its index.
    Entries(u64),
    /// The leaf or the vector of a block.
    Block(u64),
    /// The data of a block, or of a run that begins there: logs, pages of the memory zone, or sectors.
    Data(u64),
}

/// Which addresses are to be left.
pub(super) struct Wanted {
    units: BTreeMap<u64, Region>,
    /// Units of the data area are among them.
    has_data: bool,
    /// Units of the block zone are to be left.
    has_sectors: bool,
    everything: bool,
}

impl Wanted {
    /// Whether an object of a region is to leave this address. A forged address may lie in a unit of another region.
    fn has(&self, region: Region, address: LineAddress) -> bool {
        self.everything || self.units.get(&address.unit()) == Some(&region)
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.everything && !self.has_data && !self.has_sectors && self.units.is_empty()
    }

    /// Whether data is to leave this address.
    fn has_data(&self, volume: &Volume, at: DataAddress) -> bool {
        match at {
            DataAddress::Page(address) => self.has_data && (self.everything || volume.memory.is_gathered(address)),
            DataAddress::Sector(sector) => self.has_sectors && (self.everything || volume.sectors.is_gathered(sector)),
        }
    }

    /// Whether there are any of a region.
    fn has_any(&self, region: Region) -> bool {
        self.everything || self.units.values().any(|of| *of == region)
    }
}

/// What a look at an inode found.
pub(super) struct Looked {
    file: Arc<InCoreInode>,
    pub(super) owner: Owner,
    pub(super) places: Vec<Place>,
    /// Where to go on in it.
    pub(super) next: Option<u64>,
}

impl FileSystem {
    /// What is wanted now.
    pub(super) fn wanted(&self, everything: bool) -> Wanted {
        let memory = &self.volume.memory;
        let has_data = memory.is_any_left_to_gather() || everything && self.volume.has_memory_homes();
        let has_sectors = self.volume.sectors.is_any_left_to_gather() || everything && self.volume.geometry.has_block_zone();
        Wanted { units: memory.emptied_units(), has_data, has_sectors, everything }
    }

    /// What an inode names in units that are wanted, as far as one look goes.
    pub(super) fn look(&self, number: InodeNumber, within: Option<(u32, u64)>, wanted: &Wanted) -> Result<Looked> {
        let volume = &self.volume;
        let file = self.inodes.get(volume, number)?;
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        let owner = state.owner(number);
        let from = within.filter(|(generation, _)| *generation == owner.generation).map_or(0, |(_, block)| block);
        let mut places = Vec::new();
        // An error is met again by the move, and counted there. Attributes are loaded only if they may have to move.
        let has_wanted = || AttributeSet::is_any_wanted(volume, owner, &state, &|first| wanted.has(Region::Attributes, first));
        if from == 0 && wanted.has_any(Region::Attributes) && has_wanted().unwrap_or(true) {
            places.push(Place::Attributes);
        }
        let (mut looked, mut next) = (0, None);
        let mut visit = |found| {
            let (block, record) = match found {
                Found::Page { page, height, first } => {
                    places.extend(wanted.has(Region::Mappings, page).then_some(Place::Page(first, height)));
                    return Ok(ControlFlow::Continue(()));
                }
                Found::Lost(_) => return Ok(ControlFlow::Continue(())),
                Found::Run(block, run) => {
                    // Where the lines belong to its blocks, those are asked ([BR3] of `index/runs.rs`).
                    let line = run.inline_line(run.shape(&volume.geometry), 0);
                    let is_wanted = line.is_some_and(|line| wanted.has(Region::Leaves, line));
                    places.extend(is_wanted.then_some(Place::Block(block)));
                    places.extend(wanted.has_data(volume, DataAddress::Page(run.first)).then_some(Place::Data(block)));
                    return Ok(ControlFlow::Continue(()));
                }
                Found::Block(block, record) => (block, record),
            };
            if looked == LOOK_RECORDS {
                next = Some(block);
                return Ok(ControlFlow::Break(()));
            }
            looked += 1;
            match record {
                Record::Memory(page) => places.extend(wanted.has(Region::Dentries, page).then_some(Place::Entries(block))),
                record => {
                    let is_wanted = Block::relocatable(&record).any(|address| wanted.has(Region::Leaves, address));
                    places.extend(is_wanted.then_some(Place::Block(block)));
                    let is_wanted = (wanted.has_data || wanted.has_sectors) && self.names_data(owner, record, wanted);
                    places.extend(is_wanted.then_some(Place::Data(block)));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        if state.inode.has_mapping() {
            let _ended = tree::walk_range(volume, owner, state.root(), from..u64::MAX, &mut visit)?;
        }
        drop(state);
        Ok(Looked { file, owner, places, next })
    }

    /// Whether a block has data that is to move. A damaged one has none that could.
    fn names_data(&self, owner: Owner, record: Record, wanted: &Wanted) -> bool {
        let wants = |at| wanted.has_data(&self.volume, at);
        if Base::of_record(&self.volume, owner, &record).is_ok_and(|base| base.run().is_some_and(|run| wants(run.at))) {
            return true;
        }
        let of_log = |block: Block| block.logs().any(|log| wants(DataAddress::Page(log.address)));
        wanted.has_data && Block::of_record(&self.volume, owner, record).is_ok_and(of_log)
    }

    /// Moves one object, if it is still where it is wanted. What cannot be moved is counted.
    pub(super) fn move_one(&self, pass: &mut Pass, looked: &Looked, place: &Place) -> Result<()> {
        let (file, owner) = (&looked.file, looked.owner);
        let wanted = self.wanted(pass.everything);
        if !place.region().map_or(wanted.has_data || wanted.has_sectors, |region| wanted.has_any(region)) {
            return Ok(());
        }
        let moved = match place {
            Place::Attributes => self.move_attributes(file, owner, wanted),
            Place::Page(block, height) => self.move_page(file, owner, (*block, *height), &wanted),
            Place::Entries(index) => self.move_entries(file, owner, *index, &wanted),
            Place::Block(block) => self.move_block(file, owner, *block, &wanted),
            Place::Data(block) => self.gather_block(file, owner, *block, &|at| wanted.has_data(&self.volume, at)),
        };
        match moved {
            Ok(Some(lines)) => add(&self.volume.live.work.compacted_bytes, lines * LINE_BYTES as u64),
            Ok(None) => pass.left += 1,
            Err(Error::NoSpace { .. }) => match place.region() {
                Some(region) => self.volume.memory.end_emptying(&[region]), // [EU4] of `alloc/emptying.rs`
                None => pass.left += 1,                                     // something smaller may have room
            },
            Err(error) => pass.left += u64::from(is_left(error)?),
        }
        Ok(())
    }

    fn move_page(&self, file: &InCoreInode, owner: Owner, page: (u64, u32), wanted: &Wanted) -> Result<Option<u64>> {
        let mut state = locked(file, owner)?;
        let (mut tx, mut root, mut new) = (Tx::new(&self.volume), state.root(), state.inode.clone());
        if !state.inode.has_mapping() || !tree::relocate(&mut tx, owner, &mut root, page, &|address| wanted.has(Region::Mappings, address))?
        {
            return Ok(Some(0));
        }
        new.root = root.to_bytes();
        file.commit_moved(tx, &mut state, new, Fenced::nothing_stored())?;
        Ok(Some(PAGE_LINES))
    }

    fn move_entries(&self, file: &InCoreInode, owner: Owner, index: u64, wanted: &Wanted) -> Result<Option<u64>> {
        let mut state = locked(file, owner)?;
        let (mut tx, mut root, mut new) = (Tx::new(&self.volume), state.root(), state.inode.clone());
        if !state.inode.is_directory() {
            return Ok(Some(0));
        }
        let moved = DirectoryIndex::relocate_page(&mut tx, owner, &mut root, index, &|address| wanted.has(Region::Dentries, address))?;
        let Some(fresh) = moved else { return Ok(Some(0)) };
        new.root = root.to_bytes();
        file.commit_moved(tx, &mut state, new, Fenced::nothing_stored())?;
        if let Some(known) = state.directory.as_mut().filter(|_| !on(Mutant::MovedPageNotFollowed)) {
            known.page_moved(index, fresh); // [CZ5]
        }
        Ok(Some(PAGE_LINES))
    }

    /// `None` if the block is in use ([CZ3]). The checksum lines of a run move together, so all its blocks must be free for it.
    fn move_block(&self, file: &InCoreInode, owner: Owner, block: u64, wanted: &Wanted) -> Result<Option<u64>> {
        let run_now = |state: &State| {
            if state.has_blocks() { tree::run_of(&self.volume, owner, state.root(), block) } else { Ok(None) }
        };
        let run = run_now(&*file.state.read()?)?;
        let (first, last) = run.map_or((block, block), |(first, run)| (first, first + u64::from(run.blocks) - 1));
        let range = file.ranges.try_exclusive(first, last);
        if range.is_none() && !on(Mutant::MovedUnderReaders) {
            return Ok(None);
        }
        let mut state = locked(file, owner)?;
        if !state.has_blocks() {
            return Ok(Some(0));
        }
        if run_now(&state)? != run {
            return Ok(None); // it was split meanwhile
        }
        let (mut tx, mut root, mut new) = (Tx::new(&self.volume), state.root(), state.inode.clone());
        let wants = |address| wanted.has(Region::Leaves, address);
        let lines = match run {
            Some(run) => runs::relocate(&mut tx, owner, &mut root, run, &wants)?,
            None => Block::lookup(&self.volume, owner, root, block)?.relocate(&mut tx, owner, &mut root, block, &wants)?,
        };
        if lines > 0 {
            new.root = root.to_bytes();
            file.commit_moved(tx, &mut state, new, Fenced::nothing_stored())?;
        }
        Ok(Some(lines))
    }

    fn move_attributes(&self, file: &InCoreInode, owner: Owner, mut wanted: Wanted) -> Result<Option<u64>> {
        let mut moved = 0;
        loop {
            let mut state = locked(file, owner)?;
            self.load_attributes(owner.inode, &mut state)?;
            let (mut tx, mut new, pointer) = (Tx::new(&self.volume), state.inode.clone(), state.inode.attributes);
            let Some(set) = &state.attributes else { return Ok(Some(moved)) };
            let wants = |address| wanted.has(Region::Attributes, address);
            let Some((changed, is_all)) = set.plan_move(&mut tx, owner, pointer, &wants)? else { return Ok(Some(moved)) };
            moved += changed.lines();
            let (set, stored) = changed.store(&mut tx, owner, &mut new)?;
            file.commit_moved(tx, &mut state, new, stored)?;
            self.inodes.put_attributes(&mut state, Some(set)); // [CZ5]
            if is_all || wanted.everything {
                return Ok(Some(moved)); // everything would move for ever
            }
            drop(state);
            wanted = self.wanted(false);
        }
    }
}

impl Place {
    /// The region that it is in; `None` for the data area.
    fn region(&self) -> Option<Region> {
        match self {
            Self::Attributes => Some(Region::Attributes),
            Self::Page(..) => Some(Region::Mappings),
            Self::Entries(_) => Some(Region::Dentries),
            Self::Block(_) => Some(Region::Leaves),
            Self::Data(_) => None,
        }
    }
}

/// The state of an inode that is still the one that was looked at, locked.
fn locked(file: &InCoreInode, owner: Owner) -> Result<RwLockWriteGuard<'_, State>> {
    let state = file.state.write()?;
    if state.is_life_of(owner) { Ok(state) } else { Err(Error::Stale(file.number)) }
}

/// Whether an error means that an object stays where it is; false if it is gone. Other errors end the pass.
pub(super) fn is_left(error: Error) -> Result<bool> {
    match error {
        Error::Stale(_) => Ok(false),
        Error::Damaged { .. } | Error::DamagedData { .. } | Error::LostData { .. } | Error::Device(_) => Ok(true),
        other => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::UNIT_LINES;
    use tandemfs_format::inode::file_type;
    use tandemfs_format::mapping::{BlockChecksum, Extent};

    use super::*;
    use crate::alloc::Need;
    use crate::alloc::departure::Pace;
    use crate::{FormatOptions, MountOptions, NewInode, SetExtendedAttribute, make_file_system};

    const VALUE_BYTES: usize = 60_000;
    const VALUES: u64 = 12;

    fn value(number: u64) -> Vec<u8> {
        tandemfs_crash::fill(number, VALUE_BYTES)
    }

    fn with_values(fs: &FileSystem, name: &str, values: u64) -> InodeNumber {
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let file = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("made").inode;
        for number in 0..values {
            let name = format!("user.{number}");
            fs.set_extended_attribute(file, name.as_bytes(), &value(number), SetExtendedAttribute::default()).expect("set");
        }
        file
    }

    /// A file with more attributes than one move takes, in a unit that is being emptied.
    fn with_attributes() -> (FileSystem, InodeNumber) {
        let drive = Drive::new(Arc::new(MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        for number in 0..105 {
            with_values(&fs, &number.to_string(), 1);
        }
        let file = with_values(&fs, "file", VALUES);
        for number in (0..105).filter(|number| number % 3 == 0 || *number > 95) {
            fs.unlink(InodeNumber::ROOT, number.to_string().as_bytes()).expect("removed");
        }
        fs.checkpoint().expect("home");
        fs.volume.release_pending();
        assert!(fs.volume.memory.begin_emptying(Region::Attributes, Pace::Short, true) > 0);
        (fs, file)
    }

    /// Names other lines as the checksum vector of a file's first block.
    fn forge(fs: &FileSystem, file: InodeNumber, address: LineAddress) {
        let known = fs.inodes.get(&fs.volume, file).expect("there");
        let mut state = known.state.write_waiting();
        let (owner, mut tx, mut root, mut new) = (state.owner(file), Tx::new(&fs.volume), state.root(), state.inode.clone());
        let found = tree::lookup(&fs.volume, owner, root, 0).expect("a record");
        let Record::Block { leaf, extent: Some(extent) } = found else { panic!("no sectors: {found:?}") };
        let forged = Record::Block { leaf, extent: Some(Extent { checksum: BlockChecksum::Vector(address), ..extent }) };
        tree::set(&mut tx, &fs.volume, owner, &mut root, 0, forged, Need::Growth).expect("set");
        new.root = root.to_bytes();
        known.commit_moved(tx, &mut state, new, Fenced::nothing_stored()).expect("committed");
    }

    /// Lines that nobody had were freed, which stopped the file system.
    #[test]
    fn regression_a_forged_vector_stays_where_it_is() {
        let (fs, file) = with_attributes();
        fs.write(file, 0, &[7; 64 << 10], crate::WriteOptions::default()).expect("written");
        let first_of = |region| LineAddress::new(fs.volume.memory.units_of(region)[0] * UNIT_LINES);
        let vector = first_of(Region::Leaves); // the only one
        let ends = LineAddress::new((64 << 20) / LINE_BYTES as u64 - 1);
        for forged in [ends, vector.nth(1), vector.nth(PAGE_LINES), first_of(Region::Dentries), LineAddress::new(1)] {
            forge(&fs, file, forged);
            fs.move_everything().expect("works");
            fs.checkpoint().expect("home");
            fs.volume.release_pending();
            assert!(fs.stopped().is_none(), "{forged}: {:?}", fs.stopped());
        }
        let moved = fs.volume.live.work.compacted_bytes.value();
        forge(&fs, file, vector);
        fs.move_everything().expect("works");
        assert!(fs.volume.live.work.compacted_bytes.value() > moved);
        let mut bytes = vec![0; 64 << 10];
        fs.read(file, 0, &mut bytes).expect("its checksums have moved with it");
    }

    fn look(fs: &FileSystem, file: InodeNumber) -> Looked {
        fs.look(file, None, &fs.wanted(false)).expect("there")
    }

    #[test]
    fn attributes_of_several_moves_leave_their_unit() {
        let (fs, file) = with_attributes();
        let looked = look(&fs, file);
        assert!(matches!(looked.places[..], [Place::Attributes]));
        fs.move_one(&mut Pass::new(Pace::Short), &looked, &Place::Attributes).expect("moves");
        assert!(fs.volume.live.work.compacted_bytes.value() >= VALUES * VALUE_BYTES as u64);
        assert!(!fs.volume.memory.emptied_units().is_empty() && look(&fs, file).places.is_empty());
        for number in 0..VALUES {
            assert_eq!(fs.extended_attribute(file, format!("user.{number}").as_bytes()).expect("there"), value(number));
        }
    }

    /// They moved to and fro in their unit, for ever where freed lines are free at once, when an operation had taken the unit's lines.
    #[test]
    fn regression_attributes_stop_moving_when_their_unit_is_no_more_emptied() {
        let (fs, file) = with_attributes();
        let (wanted, looked) = (fs.wanted(false), look(&fs, file));
        fs.volume.memory.end_emptying(&[Region::Attributes]); // as an operation does that finds no other lines
        let moved = fs.move_attributes(&looked.file, looked.owner, wanted).expect("room").expect("known");
        assert!(moved * (LINE_BYTES as u64) < VALUES * VALUE_BYTES as u64, "{moved} lines in more than one move");
        fs.move_one(&mut Pass::new(Pace::Short), &looked, &Place::Attributes).expect("nothing to do");
        assert_eq!(fs.volume.live.work.compacted_bytes.value(), 0, "an object of an earlier look");
    }
}
