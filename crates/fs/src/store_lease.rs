//! Leases for stores, as the range lock, the door and whoever ends them know them. Why they are as they are stands in `data/lent_stores.rs`
//! ([SL1]–[SL9]), which makes and ends them; of room behind the end of the file, in `data/lent_room.rs` ([LR1]–[LR8]).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_format::lent_room::{LENT_SLOTS, LentRoom, lent_line};
use tandemfs_format::{InodeNumber, LineAddress, PAGE_BYTES};

use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use crate::sync::{EXPLORED, Mutex};
use crate::types::LentExtent;

/// Leases for stores that one program can have at once.
pub const STORE_LEASES_MAX: usize = 64;
/// How long the end of a lease waits for a program that is storing: a thousand times what a store of a window takes. Only time counts in which
/// who waits could run ([SL3]). In an explored schedule, where time does not pass, until it has stopped.
pub const STORES_END_MAX: Duration = Duration::from_secs(1);
/// A lease without a store ends after this time ([SL7]).
pub const IDLE_MAX: Duration = Duration::from_secs(2);
/// The end of a lease looks again after this time at first, and after at most the second one.
const LOOKS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// What counts at most of the time between two looks.
const LOOK_COUNTS_MAX: Duration = Duration::from_millis(10);

/// The access of a program to what one lease lends.
pub trait StoreAccess: Send + Sync {
    /// From now on no thread of the program begins to store. Never waits; may be called again.
    fn revoke(&self);

    /// Whether a thread that began before may be storing still.
    fn is_storing(&self) -> bool;

    /// Waits until nobody may be storing any more, or for about this time; also shorter.
    fn wait(&self, at_most: Duration) {
        std::thread::sleep(at_most);
    }

    /// Whoever is storing learns, when it ends, that its bytes may be lost ([SL4]). Never waits; may be called again.
    fn take_away(&self);

    /// Whether something may have been stored since the last call.
    fn has_stored(&self) -> bool;

    /// Whether there is any mapping of the memory zone by which somebody could store for this program, also past its end.
    fn is_possible(&self) -> bool;
}

/// A program that stores to lent memory.
#[derive(Debug, Default)]
pub struct Borrower {
    leases: AtomicUsize,
    is_late: AtomicBool,
}

impl Borrower {
    /// Whether it did not end a lease in time, and gets none any more ([SL5]).
    pub fn is_late(&self) -> bool {
        self.is_late.load(SeqCst)
    }

    /// One more lease, if it may have one.
    pub(crate) fn enter(&self) -> bool {
        !self.is_late() && self.leases.fetch_update(SeqCst, SeqCst, |leases| (leases < STORE_LEASES_MAX).then_some(leases + 1)).is_ok()
    }

    /// One lease less.
    pub(crate) fn leave(&self) {
        self.leases.fetch_sub(1, SeqCst);
    }
}

/// Room behind the end of a file that is lent with its last block.
#[derive(Debug)]
pub struct Room {
    slot: u64,
    lent: LentRoom,
    /// What the program had reached when its bytes were taken away ([LR7]).
    taken_at: Mutex<Option<u64>>,
    /// What it says is the size of the file, and it says nothing more ([LR9]).
    is_settled: AtomicBool,
    /// Its slot was given back ([LR5]).
    is_back: AtomicBool,
}

impl Room {
    pub(crate) fn new(slot: u64, lent: LentRoom) -> Self {
        Self { slot, lent, taken_at: Mutex::new(None), is_settled: AtomicBool::new(false), is_back: AtomicBool::new(false) }
    }

    pub(crate) fn slot(&self) -> u64 {
        self.slot
    }

    /// The size of the file when it was lent, in bytes.
    pub fn size(&self) -> u64 {
        self.lent.size
    }

    /// The room, in bytes. It follows the last extent of the lease, in the file and in the memory zone.
    pub fn bytes(&self) -> u64 {
        self.lent.bytes
    }

    /// Where in the memory zone the program stores how many bytes of the room are the file's, in bytes.
    pub fn word_offset(&self) -> u64 {
        lent_line(self.slot).nth(1).offset_bytes()
    }

    /// The word that says so many bytes.
    pub fn word(&self, length: u64) -> u64 {
        self.lent.word(length)
    }

    /// The size that the file got by this room when it was taken away: what the program had said until then. None as long as it was not.
    pub fn appended_to(&self) -> Option<u64> {
        *self.taken_at.lock()
    }

    /// The size that the program has reached, by its word. What it says beyond the room is not believed.
    pub(crate) fn reached<E>(&self, load: impl FnOnce() -> std::result::Result<u64, E>) -> std::result::Result<u64, E> {
        let taken_at = self.taken_at.lock();
        match *taken_at {
            Some(size) => Ok(size),
            None => Ok(self.lent.size_by(load()?).unwrap_or(self.lent.size)),
        }
    }

    /// The last fold is committed ([LR9]).
    pub(crate) fn settle(&self) {
        self.is_settled.store(true, SeqCst);
    }

    /// Whether nothing is to be folded any more ([LR9]).
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled.load(SeqCst) && !on(Mutant::LentSizeFoldedLate)
    }

    /// Whether its slot is to be given back now: once, as another file may get it then ([LR5]).
    pub(crate) fn goes_back(&self) -> bool {
        !self.is_back.swap(true, SeqCst)
    }

    /// From now on its word means nothing ([LR7]).
    pub(crate) fn take<E>(&self, load: impl FnOnce() -> std::result::Result<u64, E>) -> std::result::Result<(), E> {
        let mut taken_at = self.taken_at.lock();
        if taken_at.is_none() {
            *taken_at = Some(self.lent.size_by(load()?).unwrap_or(self.lent.size));
        }
        Ok(())
    }
}

/// Blocks of a file that are lent for stores ([`FileSystem::lend_stores`]).
pub struct StoreLease {
    number: InodeNumber,
    blocks: Range<u64>,
    extents: Vec<LentExtent>,
    room: Option<Arc<Room>>,
    pub(crate) access: Arc<dyn StoreAccess>,
    pub(crate) borrower: Arc<Borrower>,
    /// When it was made, or a store was noticed last.
    used: Mutex<Instant>,
    /// Something was stored, and the times of the file do not say so yet.
    is_untimed: AtomicBool,
    /// Its pages are kept back when they are freed.
    is_taken: AtomicBool,
    /// The program was told that it has it no more, and asks how far its appends count.
    is_taken_away: AtomicBool,
    ender: Mutex<Option<Ender>>,
}

/// Ends a lease, for who has claimed that in the range lock of the file. It keeps the file in memory, so that there is one range lock of it
/// ([IN3] of `inodes/`).
pub(crate) type Ender = Arc<dyn Fn(&Arc<StoreLease>) -> Result<()> + Send + Sync>;

impl fmt::Debug for StoreLease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lease = formatter.debug_struct("StoreLease");
        lease.field("inode", &self.number).field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl StoreLease {
    pub(crate) fn new(
        (number, blocks): (InodeNumber, Range<u64>),
        (extents, room): (Vec<LentExtent>, Option<Room>),
        (access, borrower): (Arc<dyn StoreAccess>, Arc<Borrower>),
        ender: Ender,
    ) -> Arc<Self> {
        Arc::new(Self {
            number,
            blocks,
            extents,
            room: room.map(Arc::new),
            access,
            borrower,
            used: Mutex::new(Instant::now()),
            is_untimed: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
            is_taken_away: AtomicBool::new(false),
            ender: Mutex::new(Some(ender)),
        })
    }

    /// The file.
    pub fn inode(&self) -> InodeNumber {
        self.number
    }

    /// What may be stored to, in order, without gaps in the file; the last one may end with the file, in the middle of a page.
    pub fn extents(&self) -> &[LentExtent] {
        &self.extents
    }

    /// The room behind the end of the file, if it was lent some ([`FileSystem::lend_stores_to_append`](crate::FileSystem::lend_stores_to_append)).
    pub fn room(&self) -> Option<&Arc<Room>> {
        self.room.as_ref()
    }

    /// As [`Room::appended_to`].
    pub fn appended_to(&self) -> Option<u64> {
        self.room.as_ref().and_then(|room| room.appended_to())
    }

    /// Its blocks.
    pub(crate) fn block_range(&self) -> Range<u64> {
        self.blocks.clone()
    }

    /// What it holds, first and last: its blocks, and with room all behind them ([LR4]).
    pub(crate) fn blocks(&self) -> (u64, u64) {
        (self.blocks.start, if self.room.is_some() { u64::MAX } else { self.blocks.end - 1 })
    }

    /// Its extents, the last one with the room.
    fn with_room(&self) -> impl Iterator<Item = Range<u64>> {
        let last = self.extents.len().wrapping_sub(1);
        let room = self.room.as_ref().map_or(0, |room| room.bytes());
        self.extents
            .iter()
            .enumerate()
            .map(move |(index, extent)| extent.device_offset..extent.device_offset + extent.bytes + if index == last { room } else { 0 })
    }

    /// Whether a page is its.
    pub(crate) fn has_page(&self, page: LineAddress) -> bool {
        let at = page.offset_bytes();
        self.with_room().any(|bytes| bytes.contains(&at))
    }

    /// Its pages: first bytes and ends in the memory zone, whole pages.
    pub(crate) fn pages(&self) -> Vec<Range<u64>> {
        self.with_room().map(|bytes| bytes.start..bytes.end.next_multiple_of(PAGE_BYTES as u64)).collect()
    }

    /// Whether something was stored that the times of the file do not say ([SL6]). The caller says so, or gives it back.
    pub(crate) fn take_untimed(&self) -> bool {
        if self.access.has_stored() && !on(Mutant::StoresUntimed) {
            *self.used.lock() = Instant::now();
            self.is_untimed.store(true, SeqCst);
        }
        self.is_untimed.swap(false, SeqCst)
    }

    /// Waits until nobody is storing; false if that takes too long ([SL3]).
    pub(crate) fn wait_until_ended(&self) -> bool {
        let (mut waited, mut pause) = (Duration::ZERO, LOOKS.0);
        while self.access.is_storing() && self.access.is_possible() && !on(Mutant::StoresNotWaitedFor) {
            if !EXPLORED && (self.borrower.is_late() || waited >= STORES_END_MAX) {
                self.borrower.is_late.store(true, SeqCst);
                return false;
            }
            let look = Instant::now();
            self.access.wait(pause);
            // A longer one: this thread did not run, as when the machine was stopped or is too busy, and so perhaps did not the program.
            waited += look.elapsed().min(LOOK_COUNTS_MAX);
            pause = (2 * pause).min(LOOKS.1);
        }
        true
    }

    /// Says that the times of the file do not say what was stored, after all.
    pub(crate) fn stays_untimed(&self) {
        self.is_untimed.store(true, SeqCst);
    }

    /// Whether nothing was stored for so long that it ends.
    pub(crate) fn is_idle(&self) -> bool {
        self.used.lock().elapsed() >= IDLE_MAX
    }

    /// True at the first call: its pages are to be kept back.
    pub(crate) fn begin_taking(&self) -> bool {
        !self.is_taken.swap(true, SeqCst)
    }

    /// Tells the program that it has it no more.
    pub(crate) fn take_away(&self) {
        self.access.take_away();
        self.is_taken_away.store(true, SeqCst);
    }

    /// Whether the program was told so, also by an end that failed.
    pub(crate) fn is_taken_away(&self) -> bool {
        self.is_taken_away.load(SeqCst)
    }

    /// Ends it, for who has claimed that in the range lock of the file. Afterwards the range is free.
    ///
    /// # Errors
    /// `Mapped`: it could not be ended ([SL4]).
    pub(crate) fn end(self: &Arc<Self>) -> Result<()> {
        let ender = self.ender.lock().clone();
        ender.map_or(Ok(()), |ender| ender(self))
    }

    /// Nobody ends it any more: it has ended, or the file system is gone.
    pub(crate) fn forget(&self) {
        let ender = self.ender.lock().take();
        drop(ender); // it may own the last reference to the file
    }
}

/// The slots of the table, as this mount uses them.
#[derive(Default)]
pub(crate) struct LentRooms(pub(crate) Mutex<Slots>);

#[derive(Default)]
pub(crate) struct Slots {
    /// The table is there.
    pub(crate) has_table: bool,
    slots: Vec<Slot>,
}

/// What a slot is used for.
#[derive(Clone, Default)]
pub(crate) enum Slot {
    #[default]
    Unused,
    InUse,
    /// Somebody may store to its word ([LR7]).
    TakenAway(Arc<dyn StoreAccess>),
}

impl Slot {
    fn is_free(&self) -> bool {
        match self {
            Self::Unused => true,
            Self::InUse => false,
            Self::TakenAway(access) => !access.is_possible() || on(Mutant::LentWordReused),
        }
    }
}

impl LentRooms {
    /// A free slot, which is in use from now on.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut slots = self.0.lock();
        slots.slots.resize(LENT_SLOTS as usize, Slot::Unused);
        let free = slots.slots.iter().position(Slot::is_free)?;
        slots.slots[free] = Slot::InUse;
        Some(free as u64)
    }

    /// A slot of an earlier mount stays in use.
    pub(crate) fn keep(&self, slot: u64) {
        self.0.lock().slots.resize(LENT_SLOTS as usize, Slot::Unused);
        self.leave(slot, Slot::InUse);
    }

    pub(crate) fn leave(&self, slot: u64, as_what: Slot) {
        if let Some(place) = self.0.lock().slots.get_mut(slot as usize) {
            *place = as_what;
        }
    }
}

/// All leases for stores of a file system.
#[derive(Default)]
pub(crate) struct StoreLeases(Mutex<Known>);

#[derive(Default)]
struct Known {
    leases: Vec<Arc<StoreLease>>,
    /// Threads that are about to add one.
    entering: usize,
    is_closed: bool,
}

impl StoreLeases {
    /// Somebody is about to add one.
    ///
    /// # Errors
    /// `Unmounting`.
    pub(crate) fn enter(&self) -> Result<()> {
        let mut known = self.0.lock();
        if known.is_closed {
            return Err(Error::Unmounting);
        }
        known.entering += 1;
        Ok(())
    }

    /// Adds it, before anybody can end it ([SL9]).
    pub(crate) fn add(&self, lease: &Arc<StoreLease>) {
        self.0.lock().leases.push(lease.clone());
    }

    /// It was added and its range handed over, or there is none, after all.
    pub(crate) fn entered(&self) {
        self.0.lock().entering -= 1;
    }

    /// It has ended.
    pub(crate) fn remove(&self, lease: &Arc<StoreLease>) {
        self.0.lock().leases.retain(|known| !Arc::ptr_eq(known, lease));
    }

    /// Those that there are.
    pub(crate) fn all(&self) -> Vec<Arc<StoreLease>> {
        self.0.lock().leases.clone()
    }

    /// The file system is gone: no lease keeps a file of it in memory.
    pub(crate) fn drop_all(&self) {
        self.all().iter().for_each(|lease| lease.forget());
    }

    /// None are made from now on. False if somebody is about to.
    pub(crate) fn close(&self) -> bool {
        let mut known = self.0.lock();
        known.is_closed = known.entering == 0;
        known.is_closed
    }

    /// They are made again.
    pub(crate) fn open(&self) {
        self.0.lock().is_closed = false;
    }
}
