//! One directory: its index in memory and its slots on the device.
//!
//! The index holds 8 B per entry (hash and slot), and for each page its address, a mask of used slots and its room. It is built from the
//! pages at the directory's first use, and evicted with its inode. A change takes no more steps with a million names than with a thousand:
//! a look-up is one place of a hash table, `room.rs` finds room, a listing goes on at the slot of its cookie.
//!
//! [DI1] The index changes only after the transaction of the change is persistent (RULES R4): a change is planned first
//!       ([`DirectoryIndex::plan_insert`]) and applied after the commit ([`DirectoryIndex::inserted`], [`DirectoryIndex::removed`]).
//! [DI2] An entry never moves: its cookie is its slot number + 3.
//! [DI3] Damaged slots do not take the directory away. Names that can be read are found, listed and removed. If the head of a damaged entry
//!       is known (one bit of it is wrong, or only a continuation is damaged), that name alone fails. Otherwise any name that is not
//!       found may be in a damaged slot: then looking it up fails, and no name can be added. A listing fails behind its last entry.
//! [DI4] A damaged slot is in use: nothing is stored there, and only the removal of the whole directory ends it.
//! [DI5] A directory of which no name can be read is empty, unless a repair would give it names: an entry whose damaged lines have one wrong
//!       bit each, or pages that are missing while such a line of the mapping may lead to them. Then nobody knows whether it is empty.

use hashbrown::HashTable;
use tandemfs_device::Structure;
use tandemfs_format::dentry::{Dentry, PAGE_SLOTS, Slot, decode_slot, slots};
use tandemfs_format::mapping::{Record, RecordBytes};
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_BYTES, PAGE_LINES};

use super::room::Room;
use crate::alloc::Need;
use crate::cache::damaged;
use crate::cache::{LineStore, Owner};
use crate::error::{Error, Result};
use crate::index::salvage::{Piece, Salvage, Trust};
use crate::index::tree;
use crate::mutant::{Mutant, on};
use crate::space::{self, Kinds};
use crate::volume::{Tx, Volume};

/// Most pages of a directory: its slots are 32-bit numbers.
const PAGES_MAX: usize = 1 << 26;

/// Most pages that may be lost between two that are found: a damaged size asks for no more memory than that.
const LOST_RUN_MAX: usize = 1 << 16;
/// In the place of a page that cannot be found: no page is at this address.
const LOST: LineAddress = LineAddress::new(0);

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    hash: u32,
    slot: u32,
}

#[derive(Debug, Default)]
pub(crate) struct DirectoryIndex {
    entries: HashTable<IndexEntry>,
    pages: Vec<LineAddress>,
    used: Vec<u64>,
    room: Room,
    /// Heads of entries that are known but cannot be read ([DI3]).
    unreadable: Vec<u32>,
    /// Whether a damaged slot may hold any name, or a page is lost ([DI3]).
    has_unknown: bool,
    /// A repair would give the directory names that cannot be read now ([DI5]).
    could_correct: bool,
    /// The first damage.
    damage: Option<Corrupt>,
    counted_bytes: usize,
}

/// An entry that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundEntry {
    pub(crate) slot: u32,
    pub(crate) dentry: Dentry,
}

/// Where a new entry goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Insertion {
    slot: u32,
    slots: usize,
    hash: u32,
    new_page: Option<LineAddress>,
    /// Mapping pages that were added to the directory's tree.
    pub(crate) mapping_pages: u64,
}

impl Insertion {
    pub(crate) fn adds_page(&self) -> bool {
        self.new_page.is_some()
    }
}

impl DirectoryIndex {
    /// Reads all pages of a directory and verifies their slots ([DI3]).
    pub(crate) fn load(store: &LineStore, owner: Owner, root: RecordBytes, size: u64) -> Result<Self> {
        let mut index = Self::default();
        let expected = size / PAGE_BYTES as u64;
        let mut salvage = Salvage::new(store, owner, true, false);
        salvage.walk(root, Trust::Proved, &mut |salvage, _, piece| {
            if let Piece::Block(block, record) = piece {
                match record {
                    Record::Memory(page)
                        if block < expected.min((index.pages.len() + LOST_RUN_MAX) as u64)
                            && store.geometry.holds_lines(page, PAGE_LINES) =>
                    {
                        let end = block as usize + 1;
                        if index.pages.len() < end {
                            index.pages.resize(end, LOST);
                        }
                        index.pages[end - 1] = page;
                    }
                    _ => salvage.note(Corrupt::Field { address: LineAddress::new(block), field: "state", found: block }, Kinds::NONE),
                }
            }
            Ok(true)
        })?;
        index.damage = salvage.first;
        if index.pages.len() as u64 != expected || index.pages.contains(&LOST) {
            index.damage.get_or_insert(Corrupt::Field { address: LineAddress::new(0), field: "size", found: size });
            index.could_correct = salvage.could_correct;
        }
        index.has_unknown = index.damage.is_some();
        for page_index in 0..index.pages.len() {
            let used = match index.pages[page_index] {
                LOST => u64::MAX,
                page => index.load_page(store, owner, page_index as u32, page)?,
            };
            index.used.push(used);
            index.room.note(page_index, used);
        }
        index.counted_bytes = index.memory_bytes();
        Ok(index)
    }

    /// Adds the entries of a page. Returns its used slots.
    fn load_page(&mut self, store: &LineStore, owner: Owner, page_index: u32, page: LineAddress) -> Result<u64> {
        let cached = store.page(Structure::Dentry, page)?;
        let line_of = |line: usize| cached.line(page.nth(line as u64));
        let place_of = |line: usize| store.place(owner, page.nth(line as u64));
        let (mut used, mut covered_to) = (0, 0);
        for line in 0..PAGE_LINES as usize {
            let bytes = line_of(line);
            let (slot, is_corrected) = match decode_slot(&bytes, &place_of(line)) {
                Ok(slot) => (slot, false),
                Err(source) => {
                    let corrected = place_of(line).corrected(&bytes).and_then(|bytes| decode_slot(&bytes, &place_of(line)).ok());
                    self.has_unknown |= corrected.is_none() && line >= covered_to;
                    self.damage.get_or_insert(source);
                    (corrected.unwrap_or(Slot::Continuation), true)
                }
            };
            match slot {
                Slot::Empty => continue,
                Slot::Continuation => {}
                Slot::Head { hash, name_length, .. } => {
                    covered_to = line + slots(name_length);
                    let entry = IndexEntry { hash, slot: page_index * PAGE_SLOTS as u32 + line as u32 };
                    self.entries.insert_unique(spread(hash), entry, |entry| spread(entry.hash));
                    if (slots(name_length) > 1 || is_corrected)
                        && let Err(source) = Dentry::decode(line, line_of, place_of)
                    {
                        self.damage.get_or_insert(source);
                        self.unreadable.push(entry.slot);
                        let can_be_read = |line: usize| {
                            let (place, bytes) = (place_of(line), line_of(line));
                            place.verify(&bytes).is_ok() || place.corrected(&bytes).is_some()
                        };
                        self.could_correct |= (line..covered_to.min(PAGE_LINES as usize)).all(can_be_read);
                    }
                }
            }
            used |= 1 << line;
        }
        Ok(used)
    }

    fn memory_bytes(&self) -> usize {
        let of_pages = self.pages.capacity() * size_of::<LineAddress>() + self.used.capacity() * size_of::<u64>();
        size_of::<Self>() + self.entries.allocation_size() + of_pages + self.room.memory_bytes()
    }

    /// Bytes that the table of inodes counts for this index.
    pub(crate) fn counted_bytes(&self) -> usize {
        self.counted_bytes
    }

    /// Recounts the index's memory; returns the count before and the count now.
    pub(crate) fn recount(&mut self) -> (usize, usize) {
        let now = self.memory_bytes();
        (std::mem::replace(&mut self.counted_bytes, now), now)
    }

    /// Whether the directory has no names that can be read; `Damaged` if a repair would find some ([DI5]).
    pub(crate) fn is_empty(&self, number: InodeNumber) -> Result<bool> {
        let has_none = self.entries.len() == self.unreadable.len();
        match &self.damage {
            Some(source) if has_none && self.could_correct && !on(Mutant::CorrectableIsEmpty) => {
                Err(Error::Damaged { inode: number, source: source.clone() })
            }
            _ => Ok(has_none),
        }
    }

    /// The damage that may hide any name ([DI3]).
    fn check_names(&self, owner: Owner) -> Result<()> {
        match &self.damage {
            Some(source) if self.has_unknown => Err(Error::Damaged { inode: owner.inode, source: source.clone() }),
            _ => Ok(()),
        }
    }

    fn address(&self, slot: u32) -> LineAddress {
        self.pages[(u64::from(slot) / PAGE_SLOTS) as usize].nth(u64::from(slot) % PAGE_SLOTS)
    }

    fn read(&self, store: &LineStore, owner: Owner, slot: u32) -> Result<Option<Dentry>> {
        let page = self.pages[(u64::from(slot) / PAGE_SLOTS) as usize];
        let cached = store.page(Structure::Dentry, page)?;
        let place = |line: usize| store.place(owner, page.nth(line as u64));
        Dentry::decode((u64::from(slot) % PAGE_SLOTS) as usize, |line| cached.line(page.nth(line as u64)), place)
            .map_err(|source| Error::Damaged { inode: owner.inode, source })
    }

    /// Looks a name up.
    pub(crate) fn find(&self, store: &LineStore, owner: Owner, name: &[u8]) -> Result<Option<FoundEntry>> {
        let hash = store.pair.name_hash(name);
        for entry in self.entries.iter_hash(spread(hash)).filter(|entry| entry.hash == hash) {
            match self.read(store, owner, entry.slot)? {
                Some(dentry) if dentry.name == name => return Ok(Some(FoundEntry { slot: entry.slot, dentry })),
                Some(_) => {}
                None => return Err(damaged(owner, self.address(entry.slot), "kind")),
            }
        }
        self.check_names(owner)?;
        Ok(None)
    }

    /// Adds a new entry to a transaction: in free slots, or in a new page. `root` is the directory's; the caller writes its inode.
    pub(crate) fn plan_insert(
        &self,
        tx: &mut Tx<'_>,
        volume: &Volume,
        owner: Owner,
        root: &mut RecordBytes,
        dentry: &Dentry,
    ) -> Result<Insertion> {
        self.check_names(owner)?;
        volume.versions.name_changes(owner.inode, dentry.hash); // [VS1] of `versions.rs`
        let count = slots(dentry.name.len());
        let room = self.room.first_with(count).and_then(|page| run_of_free(self.used[page], count).map(|line| (page, line)));
        let (page_index, line, new_page, mapping_pages) = match room {
            Some((page, line)) => (page, line, None, 0),
            None => {
                if self.pages.len() == PAGES_MAX {
                    return Err(Error::NoSpace { zone: "memory" });
                }
                let page = volume.take_page(Region::Dentries, Structure::Dentry, Need::Growth)?;
                tx.took(space::region(Region::Dentries, page, PAGE_LINES));
                let added = tree::set(tx, volume, owner, root, self.pages.len() as u64, Record::Memory(page), Need::Growth)?;
                (self.pages.len(), 0, Some(page), added)
            }
        };
        let page = new_page.unwrap_or_else(|| self.pages[page_index]);
        let first = page.nth(u64::from(line));
        let lines = dentry.encode(|index| volume.place(owner, first.nth(index as u64)));
        for (index, image) in (0..).zip(lines) {
            tx.put(Structure::Dentry, first.nth(index), image)?;
        }
        Ok(Insertion { slot: page_index as u32 * PAGE_SLOTS as u32 + line, slots: count, hash: dentry.hash, new_page, mapping_pages })
    }

    /// Applies an insertion to the index, after it is durable ([DI1]).
    pub(crate) fn inserted(&mut self, insertion: Insertion) {
        if let Some(page) = insertion.new_page {
            self.pages.push(page);
            self.used.push(0);
        }
        let (page, line) = ((u64::from(insertion.slot) / PAGE_SLOTS) as usize, u64::from(insertion.slot) % PAGE_SLOTS);
        self.used[page] |= ((1 << insertion.slots) - 1) << line;
        self.room.note(page, self.used[page]);
        let entry = IndexEntry { hash: insertion.hash, slot: insertion.slot };
        self.entries.insert_unique(spread(entry.hash), entry, |entry| spread(entry.hash));
    }

    /// Writes the page of entries at this index of a directory's mapping to a fresh page, if `wants` says so of its address. Every line is
    /// verified before it is sealed for its new place. Returns the fresh page; `root` is the directory's, and the caller writes its inode.
    pub(crate) fn relocate_page(
        tx: &mut Tx<'_>,
        owner: Owner,
        root: &mut RecordBytes,
        index: u64,
        wants: &dyn Fn(LineAddress) -> bool,
    ) -> Result<Option<LineAddress>> {
        let volume = tx.volume();
        let Record::Memory(old) = tree::lookup(volume, owner, *root, index)? else { return Ok(None) };
        if !wants(old) {
            return Ok(None);
        }
        volume.check_object(owner, Region::Dentries, old, PAGE_LINES)?;
        let fresh = volume.take_lines(Region::Dentries, PAGE_LINES, Need::Move)?;
        tx.took(space::region(Region::Dentries, fresh, PAGE_LINES));
        let mut bytes = Box::new([0; PAGE_BYTES]);
        for (line, number) in bytes.as_chunks_mut::<LINE_BYTES>().0.iter_mut().zip(0..) {
            let found = match on(Mutant::DamagedMoved) {
                true => volume.raw_line(Structure::Dentry, old.nth(number))?,
                false => volume.line(owner, Structure::Dentry, old.nth(number))?,
            };
            if found != EMPTY_LINE {
                *line = volume.place(owner, fresh.nth(number)).seal(found);
                if !on(Mutant::MovedEntriesLeft) {
                    tx.put(Structure::Dentry, old.nth(number), EMPTY_LINE)?; // [CZ9]
                }
            }
        }
        tx.suspect_if_failed(volume.write_fresh_page(Structure::Dentry, fresh, &bytes).map(drop))?;
        volume.pages.insert_fresh(&volume.live.work, Structure::Dentry, fresh, &bytes)?;
        tree::set(tx, volume, owner, root, index, Record::Memory(fresh), Need::Move)?;
        tx.free(space::region(Region::Dentries, old, PAGE_LINES));
        Ok(Some(fresh))
    }

    /// A page has moved, after that is durable ([DI1]).
    pub(crate) fn page_moved(&mut self, index: u64, to: LineAddress) {
        if let Some(page) = self.pages.get_mut(index as usize) {
            *page = to;
        }
    }

    /// Adds the removal of an entry to a transaction.
    pub(crate) fn plan_remove(&self, tx: &mut Tx<'_>, owner: Owner, entry: &FoundEntry) -> Result<()> {
        tx.volume().versions.name_changes(owner.inode, entry.dentry.hash);
        for index in 0..slots(entry.dentry.name.len()) as u64 {
            tx.put(Structure::Dentry, self.address(entry.slot).nth(index), EMPTY_LINE)?;
        }
        Ok(())
    }

    /// Applies a removal to the index, after it is durable ([DI1]).
    pub(crate) fn removed(&mut self, entry: &FoundEntry) {
        let (page, line) = ((u64::from(entry.slot) / PAGE_SLOTS) as usize, u64::from(entry.slot) % PAGE_SLOTS);
        self.used[page] &= !(((1 << slots(entry.dentry.name.len())) - 1) << line);
        self.room.note(page, self.used[page]);
        if let Ok(found) = self.entries.find_entry(spread(entry.dentry.hash), |other| other.slot == entry.slot) {
            found.remove();
        }
    }

    /// Adds an entry's new target (inode and type) to a transaction; its slot and cookie stay.
    pub(crate) fn plan_retarget(&self, tx: &mut Tx<'_>, store: &LineStore, owner: Owner, slot: u32, dentry: &Dentry) -> Result<()> {
        tx.volume().versions.name_changes(owner.inode, dentry.hash);
        let first = self.address(slot);
        let image: Line = dentry.encode(|index| store.place(owner, first.nth(index as u64)))[0];
        tx.put(Structure::Dentry, first, image)
    }

    /// Visits entries from slot `from` on, in the order of slots, until `visit` returns false. Fails behind the last of them if there are
    /// others that cannot be read ([DI3]).
    pub(crate) fn list(&self, store: &LineStore, owner: Owner, from: u64, visit: &mut dyn FnMut(u64, &Dentry) -> bool) -> Result<()> {
        let first = (from / PAGE_SLOTS) as usize;
        let mut damage = self.damage.clone();
        for (page, used) in self.used.iter().enumerate().skip(first).filter(|(page, _)| self.pages[*page] != LOST) {
            let before = if page == first { from % PAGE_SLOTS } else { 0 };
            let mut rest = used & u64::MAX << before;
            while rest != 0 {
                let slot = page as u64 * PAGE_SLOTS + u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                match self.read(store, owner, slot as u32) {
                    Ok(Some(dentry)) if !visit(slot, &dentry) => return Ok(()),
                    Err(Error::Damaged { source, .. }) => drop(damage.get_or_insert(source)),
                    other => drop(other?),
                }
            }
        }
        match damage {
            Some(source) => Err(Error::Damaged { inode: owner.inode, source }),
            None => Ok(()),
        }
    }
}

/// Spreads a hash: the table uses the upper bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The first line of a run of `count` free lines in a page.
fn run_of_free(used: u64, count: usize) -> Option<u32> {
    crate::alloc::bits::Bits::fit(used, count as u32, false)
}
