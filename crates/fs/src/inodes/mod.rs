//! In-core inodes: loaded on demand, evictable, each with its lock.
//!
//! [IN1] The inode's lock owns its two lines and all its mapping, leaf and checksum lines (RULES R5). The in-memory inode changes only
//!       after its transaction is persistent (RULES R4).
//! [IN2] Several inodes are locked in the order of their numbers (RULES R4).
//! [IN3] An in-core inode in use is never evicted, so an inode has only one lock.
//! [IN4] Holds from outside (a kernel's look-up, an open file) are counted apart. An inode without names lives until that count is zero
//!       (RULES R21).
//! [IN5] The eviction order names each in-core inode once, and at most as many numbers that are gone: creating and removing files for years
//!       takes no more memory.

pub(crate) mod attribute_set;
pub(crate) mod directory;
pub(crate) mod range_lock;
pub(crate) mod read_ahead;
mod room;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Limit; // limits change seldom, and order nothing

use tandemfs_device::{Apart, Fenced, Flushed, Structure};
use tandemfs_format::attributes::AttributePointer;
use tandemfs_format::inode::{Inode, file_type, state};
use tandemfs_format::mapping::RecordBytes;
use tandemfs_format::{InodeNumber, LineAddress};

use crate::cache::file_pages::PagesOfFile;
use crate::cache::{LineStore, Owner, damaged};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::near::{NearMap, SHARDS, shard_of};
use crate::quota::Ids;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use crate::sync::{EXPLORED, Mutex, RwLockWriteGuard};
use crate::types::NewInode;
use crate::volume::{Tx, Volume, now};
use crate::wait::{LongMutex, LongRwLock};
use attribute_set::AttributeSet;
use directory::DirectoryIndex;
use range_lock::RangeLock;
use read_ahead::Stream;

/// Numbers that a shard's order may have beyond twice its inodes, so that a small order is not scanned at every change.
const ORDER_SLACK: usize = 64;

/// Steps of eviction under one hold of a shard's lock, when the memory option falls.
const EVICTED_AT_ONCE: usize = 256;

/// An inode in memory, with its lock and its range lock. Variables name it `file`, whatever its type; `inode` is its persistent content.
pub(crate) struct InCoreInode {
    pub(crate) number: InodeNumber,
    pub(crate) address: LineAddress,
    pub(crate) state: LongRwLock<State>,
    pub(crate) ranges: RangeLock,
    /// Position of its sequential reader.
    pub(crate) stream: Mutex<Stream>,
    /// Its pages in host memory.
    pub(crate) pages: PagesOfFile,
    /// Looked up since it was last considered for eviction: a directory that is in use outlives the files made in it.
    referenced: AtomicBool,
}

/// What the lock of an inode guards.
pub(crate) struct State {
    pub(crate) inode: Inode,
    /// The slot was freed; the number may already belong to another file.
    pub(crate) removed: bool,
    /// The index of a directory, once loaded.
    pub(crate) directory: Option<Box<DirectoryIndex>>,
    /// The extended attributes, once loaded; values that are stored apart are not loaded.
    pub(crate) attributes: Option<AttributeSet>,
}

impl State {
    pub(crate) fn owner(&self, number: InodeNumber) -> Owner {
        Owner { inode: number, generation: self.inode.generation }
    }

    pub(crate) fn root(&self) -> RecordBytes {
        self.inode.root_record()
    }

    /// Whether this is still the inode of that owner: numbers are reused, generations are not.
    pub(crate) fn is_life_of(&self, owner: Owner) -> bool {
        !self.removed && self.inode.generation == owner.generation
    }

    /// Whether the root maps data blocks. False for a directory, the text of a link and the number of a device.
    pub(crate) fn has_blocks(&self) -> bool {
        self.inode.has_mapping() && !self.inode.is_directory()
    }
}

impl InCoreInode {
    /// Refuses directories, and with `why` everything else that is not a regular file.
    pub(crate) fn must_be_regular(&self, why: &'static str) -> Result<()> {
        match self.state.read()?.inode.file_type() {
            file_type::REGULAR => Ok(()),
            file_type::DIRECTORY => Err(Error::IsDirectory),
            _ => Err(Error::InvalidArgument(why)),
        }
    }

    pub(crate) fn new(number: InodeNumber, address: LineAddress, inode: Inode) -> Arc<Self> {
        let state = State { inode, removed: false, directory: None, attributes: None };
        Arc::new(Self {
            number,
            address,
            state: LongRwLock::new(state),
            ranges: RangeLock::default(),
            stream: Mutex::default(),
            pages: PagesOfFile::default(),
            referenced: AtomicBool::new(false),
        })
    }

    /// Adds the lines of a changed inode to a transaction; the cold line only if it differs. The inode is locked ([VS1] of `versions.rs`).
    pub(crate) fn put(&self, tx: &mut Tx<'_>, store: &LineStore, old: Option<&Inode>, new: &Inode) -> Result<()> {
        tx.volume().versions.inode_changes(self.number, old, new);
        let place = |address| Inode::place(store.pair, self.number, address);
        tx.put(Structure::Inode, self.address, new.encode_hot(&place(self.address)))?;
        let cold_address = self.address.nth(1);
        let cold_differs = old.is_none_or(|old| {
            (old.uid, old.gid, old.project, old.flags, old.birth, old.parent, old.attributes, old.root)
                != (new.uid, new.gid, new.project, new.flags, new.birth, new.parent, new.attributes, new.root)
        });
        if cold_differs {
            tx.put(Structure::Inode, cold_address, new.encode_cold(&place(cold_address)))?;
        }
        Ok(())
    }

    /// Commits a transaction whose last part is the inode's new version. The in-core inode changes after that (RULES R4).
    pub(crate) fn commit(&self, mut tx: Tx<'_>, state: &mut State, mut new: Inode, stored: Fenced, written: Flushed) -> Result<()> {
        new.change_count += 1;
        tx.charge_to(Ids::of(&new));
        let volume = tx.volume();
        self.put(&mut tx, volume, Some(&state.inode), &new)?;
        if on(Mutant::InodeBeforeRefusal) {
            state.inode = new.clone();
        }
        tx.commit(stored, written)?;
        state.inode = new;
        Ok(())
    }
}

impl InCoreInode {
    /// Commits a transaction that moved what the inode names. Neither its times nor its change count change: its content does not.
    pub(crate) fn commit_moved(&self, mut tx: Tx<'_>, state: &mut State, new: Inode, stored: Fenced) -> Result<()> {
        tx.charge_to(Ids::of(&new));
        let volume = tx.volume();
        if new != state.inode {
            self.put(&mut tx, volume, Some(&state.inode), &new)?;
        }
        tx.commit(stored, Flushed::nothing_written())?;
        state.inode = new;
        Ok(())
    }
}

#[derive(Default)]
struct Shard {
    inodes: NearMap<Arc<InCoreInode>>,
    order: VecDeque<u64>,
}

impl Shard {
    /// Adds a number to the order. Where stale and duplicate numbers are the most of it, removes them first ([IN5]).
    fn join(&mut self, number: u64) {
        if self.order.len() > 2 * self.inodes.len() + ORDER_SLACK {
            let mut seen: NearMap<()> = NearMap::default();
            self.order.retain(|known| self.inodes.contains_key(known) && seen.insert(*known, ()).is_none());
        }
        self.order.push_back(number);
    }
}

pub(crate) struct InodeTable {
    /// Each apart from the others ([APT1] of the device's `apart.rs`).
    shards: Vec<Apart<LongMutex<Shard>>>,
    /// Holds from outside ([IN4]), apart from the shards: those are locked while an inode is loaded.
    held: Vec<Apart<Mutex<NearMap<u64>>>>,
    shard_inodes_max: Limit,
    /// Bytes of directory indexes and extended attributes in memory.
    pub(crate) index_bytes: AtomicUsize,
    index_bytes_max: Limit,
}

impl InodeTable {
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            held: (0..SHARDS).map(|_| Apart::default()).collect(),
            shard_inodes_max: Limit::new(Self::shard_inodes_max(memory_bytes)),
            index_bytes: AtomicUsize::new(0),
            index_bytes_max: Limit::new(Self::index_bytes_max(memory_bytes)),
        }
    }

    /// A quarter of the memory option is for inodes, a quarter for directory indexes, the rest for pages.
    fn shard_inodes_max(memory_bytes: u64) -> usize {
        let inode_bytes = size_of::<InCoreInode>() + 64;
        (memory_bytes as usize / 4 / inode_bytes / SHARDS).max(if EXPLORED { 1 } else { 16 })
    }

    fn index_bytes_max(memory_bytes: u64) -> usize {
        memory_bytes as usize / 4
    }

    /// Another memory option. Evicts what is more than it allows, but for inodes in use; others find their shard locked for [`EVICTED_AT_ONCE`]
    /// inodes at most.
    pub(crate) fn resize(&self, memory_bytes: u64) {
        let (inodes_max, index_bytes_max) = (Self::shard_inodes_max(memory_bytes), Self::index_bytes_max(memory_bytes));
        self.shard_inodes_max.store(inodes_max, Relaxed);
        self.index_bytes_max.store(index_bytes_max, Relaxed);
        for shard in &self.shards {
            // Twice around the clock: the first round may find all inodes referenced.
            let mut steps = 2 * shard.lock_waiting().order.len();
            while steps > 0 {
                let mut shard = shard.lock_waiting();
                let is_tight = self.index_bytes.load(Relaxed) > index_bytes_max;
                if shard.inodes.len() <= inodes_max && !is_tight || shard.order.is_empty() {
                    break;
                }
                for _ in 0..steps.min(EVICTED_AT_ONCE) {
                    self.evict_oldest(&mut shard);
                }
                steps = steps.saturating_sub(EVICTED_AT_ONCE);
            }
            let mut shard = shard.lock_waiting();
            shard.inodes.shrink_to_fit();
            shard.order.shrink_to_fit();
        }
    }

    fn shard(&self, number: InodeNumber) -> &LongMutex<Shard> {
        &self.shards[shard_of(number.get())]
    }

    /// The inode with this number; `Stale` where the slot is free.
    pub(crate) fn get(&self, volume: &Volume, number: InodeNumber) -> Result<Arc<InCoreInode>> {
        let mut shard = self.shard(number).lock()?;
        if let Some(file) = shard.inodes.get(&number.get()) {
            file.referenced.store(true, Relaxed);
            return Ok(file.clone());
        }
        let address = volume.memory.inode_address(number).ok_or(Error::Stale(number))?;
        if volume.held_back.is_shut_off(number) {
            return Err(damaged(Owner { inode: number, generation: 0 }, address, "address")); // [HB3] of `held_back.rs`
        }
        let inode = match read_inode(volume, number, address) {
            Ok(Some(inode)) => inode,
            Err(error) if volume.memory.inode_address(number) == Some(address) => return Err(error),
            Ok(None) | Err(_) => return Err(Error::Stale(number)), // [GU4] of `alloc/departure.rs`
        };
        let file = InCoreInode::new(number, address, inode);
        self.insert(&mut shard, file.clone());
        Ok(file)
    }

    /// Adds a new inode to the table, locked, before its transaction: a thread that finds the number in use finds this in-core inode ([IN3]).
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn add(&self, file: Arc<InCoreInode>) -> Result<()> {
        self.insert(&mut *self.shard(file.number).lock()?, file);
        Ok(())
    }

    /// Removes an inode whose slot is free. The number may already belong to another file.
    /// With a refusal it stays until the table is short of room: whoever finds it sees that it was removed.
    pub(crate) fn remove(&self, file: &InCoreInode) {
        let Ok(mut shard) = self.shard(file.number).lock() else { return };
        if shard.inodes.get(&file.number.get()).is_some_and(|known| std::ptr::eq(&raw const **known, file)) {
            shard.inodes.remove(&file.number.get());
        }
    }

    fn insert(&self, shard: &mut Shard, file: Arc<InCoreInode>) {
        let tight = self.index_bytes.load(Relaxed) > self.index_bytes_max.load(Relaxed);
        let inodes_max = self.shard_inodes_max.load(Relaxed);
        for _ in 0..shard.order.len() {
            if shard.inodes.len() < inodes_max && !tight {
                break;
            }
            let was_evicted = self.evict_oldest(shard);
            if was_evicted && tight && shard.inodes.len() < inodes_max {
                break;
            }
        }
        shard.join(file.number.get());
        shard.inodes.insert(file.number.get(), file);
    }

    /// One step of the hand over a shard: evicts the oldest inode unless it is in use, or was since the hand passed it. True if it was evicted.
    fn evict_oldest(&self, shard: &mut Shard) -> bool {
        let Some(oldest) = shard.order.pop_front() else { return false };
        match shard.inodes.get(&oldest) {
            None => false,
            // [IN3]
            Some(used) if (Arc::strong_count(used) > 1 && !on(Mutant::EvictedInUse)) || used.referenced.swap(false, Relaxed) => {
                shard.order.push_back(oldest);
                false
            }
            Some(used) => {
                if !on(Mutant::LentPastEviction) {
                    used.ranges.revoke_all(); // [LM4] of `data/lent.rs`
                }
                if let Some(evicted) = shard.inodes.remove(&oldest)
                    && let Some(mut state) = evicted.state.try_write()
                {
                    self.forget(&mut state); // nobody else has it
                }
                true
            }
        }
    }

    /// Drops a directory's index and an inode's attributes from memory.
    pub(crate) fn forget(&self, state: &mut State) {
        if let Some(index) = state.directory.take() {
            self.index_bytes.fetch_sub(index.counted_bytes(), Relaxed);
        }
        self.put_attributes(state, None);
    }

    /// Replaces the attributes of an inode in memory.
    pub(crate) fn put_attributes(&self, state: &mut State, attributes: Option<AttributeSet>) {
        if attributes.is_none() && state.attributes.is_none() {
            return; // most inodes
        }
        self.index_bytes.fetch_add(attributes.as_ref().map_or(0, AttributeSet::memory_bytes), Relaxed);
        let before = std::mem::replace(&mut state.attributes, attributes);
        self.index_bytes.fetch_sub(before.as_ref().map_or(0, AttributeSet::memory_bytes), Relaxed);
    }

    /// Counts an index again after it has changed.
    pub(crate) fn recount_index(&self, index: &mut DirectoryIndex) {
        let (before, after) = index.recount();
        if before != after {
            self.index_bytes.fetch_add(after, Relaxed);
            self.index_bytes.fetch_sub(before, Relaxed);
        }
    }

    // ---- holders from outside ([IN4]) --------------------------------------------------------------------------------------------

    fn holds(&self, number: InodeNumber) -> &Mutex<NearMap<u64>> {
        &self.held[shard_of(number.get())]
    }

    pub(crate) fn hold(&self, number: InodeNumber, count: u64) {
        *self.holds(number).lock().entry(number.get()).or_insert(0) += count;
    }

    /// True if nobody holds the inode any more.
    pub(crate) fn release(&self, number: InodeNumber, count: u64) -> bool {
        let mut holds = self.holds(number).lock();
        let Some(held) = holds.get_mut(&number.get()) else { return true };
        *held = held.saturating_sub(count);
        let last = *held == 0;
        if last {
            holds.remove(&number.get());
        }
        last
    }

    pub(crate) fn is_held(&self, number: InodeNumber) -> bool {
        self.holds(number).lock().contains_key(&number.get())
    }
}

/// Reads and verifies an inode; `None` where the slot is free. One that does not verify is loaded a second time, since it may be right on
/// the drive. It is not in core, so no transaction has its lines ([CA8] of `cache/`), as long as its unit stays ([GU4] of
/// `alloc/departure.rs`).
fn read_inode(volume: &Volume, number: InodeNumber, address: LineAddress) -> Result<Option<Inode>> {
    let page = volume.page(Structure::Inode, address)?;
    let decode = || Inode::decode(volume.pair, number, address, &page.line(address), &page.line(address.nth(1)));
    let reload = || volume.memory.while_inode_at(number, address, || volume.pages.reload(&volume.drive, &page, address, 2));
    let found = match decode() {
        Err(_) if reload().transpose()?.unwrap_or_default() => decode(),
        found => found,
    };
    found.map_err(|source| Error::Damaged { inode: number, source })
}

/// Locks of several inodes, taken in the order of their numbers ([IN2]). Duplicates are locked once.
pub(crate) struct Locked<'f> {
    guards: Vec<(InodeNumber, RwLockWriteGuard<'f, State>)>,
}

impl<'f> Locked<'f> {
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn new(mut files: Vec<&'f Arc<InCoreInode>>) -> Result<Self> {
        files.sort_by_key(|file| file.number);
        files.dedup_by_key(|file| file.number);
        let guards = files.into_iter().map(|file| Ok((file.number, file.state.write()?))).collect::<Result<_>>()?;
        Ok(Self { guards })
    }

    fn position(&self, number: InodeNumber) -> usize {
        match self.guards.iter().position(|(other, _)| *other == number) {
            Some(position) => position,
            None => unreachable!("inode {number} was locked"),
        }
    }

    pub(crate) fn get(&self, number: InodeNumber) -> &State {
        &self.guards[self.position(number)].1
    }

    pub(crate) fn get_mut(&mut self, number: InodeNumber) -> &mut State {
        let position = self.position(number);
        &mut self.guards[position].1
    }
}

/// A new inode: one name, two for a directory. Generation, target and mapping are set later.
pub(crate) fn new_inode(new: &NewInode<'_>, parent: InodeNumber) -> Inode {
    let (kind, time) = (new.mode & file_type::MASK, now());
    let mut inode = Inode {
        mode: new.mode,
        state: state::IN_USE,
        nlink: if kind == file_type::DIRECTORY { 2 } else { 1 },
        generation: 0,
        size: 0,
        space_512: 0,
        atime: time,
        mtime: time,
        ctime: time,
        change_count: 1,
        uid: new.uid,
        gid: new.gid,
        project: 0,
        flags: 0,
        birth: time,
        parent,
        attributes: AttributePointer::NONE,
        root: [0; 20],
    };
    if matches!(kind, file_type::CHARACTER | file_type::BLOCK) {
        inode.root[..4].copy_from_slice(&new.rdev.to_le_bytes());
    }
    inode
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64) -> Arc<InCoreInode> {
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        InCoreInode::new(InodeNumber::new(number), LineAddress::new(0), new_inode(&new, InodeNumber::ROOT))
    }

    /// Below the limit nothing was evicted, so every file ever made stayed in the order, 8 B each.
    #[test]
    fn regression_the_order_of_eviction_forgets_what_is_gone() {
        let table = InodeTable::new(64 << 20);
        let stays: Vec<_> = (0..1000).map(|number| file(8 + number)).collect();
        stays.iter().for_each(|file| table.add(file.clone()).expect("added"));
        for round in 0..100_000 {
            // Numbers that are reused, and ever new ones.
            for number in [5000 + round % 70, 10_000 + round] {
                let file = file(number);
                table.add(file.clone()).expect("added");
                table.remove(&file);
            }
        }
        for shard in &table.shards {
            let shard = shard.lock_waiting();
            assert!(shard.order.len() <= 2 * (shard.inodes.len() + 1) + ORDER_SLACK, "{} numbers", shard.order.len());
        }
        for file in &stays {
            let number = file.number.get();
            let shard = table.shard(file.number).lock_waiting();
            assert!(shard.inodes.contains_key(&number));
            assert_eq!(shard.order.iter().filter(|known| **known == number).count(), 1, "it can still be evicted");
        }
    }
}
