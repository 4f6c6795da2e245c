//! A program that stores to memory lent to it (`tandemfs_fs::StoreAccess`): what the words of `tandemfs_ring` do between processes, within one.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tandemfs_device::sync::{Condvar, Mutex};
use tandemfs_device::{Drive, MappedMemory, MemoryRange};
use tandemfs_format::{LINE_BYTES, PAGE_BYTES};
use tandemfs_fs::{LentExtent, StoreAccess, StoreLease};

/// The access of a program to what one lease lends.
#[derive(Debug, Default)]
pub struct Storing {
    word: Mutex<Word>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Word {
    inside: usize,
    is_revoked: bool,
    is_taken: bool,
    has_stored: bool,
    is_unmapped: bool,
}

impl Storing {
    /// One for a lease: as the program has it, and as the file system takes it.
    pub fn new() -> (Arc<Self>, Arc<dyn StoreAccess>) {
        let access = Arc::<Self>::default();
        (access.clone(), access)
    }

    /// Begins to store; false if the lease has ended.
    pub fn enter(&self) -> bool {
        let mut word = self.word.lock();
        let may = !word.is_revoked;
        word.inside += usize::from(may);
        word.has_stored |= may;
        may
    }

    /// Has stored; false if the lease was taken away.
    pub fn leave(&self) -> bool {
        let mut word = self.word.lock();
        word.inside -= 1;
        self.left.notify_all();
        !word.is_taken
    }

    /// Whether the lease has ended, or somebody waits for the end of what is being stored.
    pub fn is_revoked(&self) -> bool {
        self.word.lock().is_revoked
    }

    /// The memory is not mapped any more.
    pub fn unmap(&self) {
        self.word.lock().is_unmapped = true;
    }
}

impl StoreAccess for Storing {
    fn revoke(&self) {
        self.word.lock().is_revoked = true;
    }

    fn is_storing(&self) -> bool {
        self.word.lock().inside > 0
    }

    fn wait(&self, at_most: Duration) {
        let mut word = self.word.lock();
        if word.inside > 0 {
            self.left.wait_for(&mut word, at_most);
        }
    }

    fn take_away(&self) {
        let mut word = self.word.lock();
        (word.is_revoked, word.is_taken) = (true, true);
    }

    fn has_stored(&self) -> bool {
        std::mem::take(&mut self.word.lock().has_stored)
    }

    fn is_possible(&self) -> bool {
        !self.word.lock().is_unmapped
    }
}

/// What a lease lends, mapped.
#[derive(Debug)]
pub struct Window {
    memory: Box<dyn MappedMemory>,
    first: u64,
    end: u64,
    needs_flush: bool,
    room: Option<Behind>,
}

/// Room behind the end of the file.
#[derive(Debug)]
struct Behind {
    size: u64,
    bytes: u64,
    /// The word that says nothing of it, and where it is in the mapped memory.
    word: u64,
    word_at: u64,
}

impl Window {
    /// Maps it.
    ///
    /// # Errors
    /// What the device says.
    pub fn of(drive: &Drive, lease: &StoreLease) -> Result<Self, String> {
        let (extents, page) = (lease.extents(), PAGE_BYTES as u64);
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Err("nothing is lent".into()) };
        let (first, end) = (first.file_offset, last.file_offset + last.bytes);
        let range = |extent: &LentExtent| MemoryRange { offset: extent.device_offset, length: extent.bytes.next_multiple_of(page) };
        let mut ranges: Vec<_> = extents.iter().map(range).collect();
        let mut behind = None;
        if let (Some(room), Some(range)) = (lease.room(), ranges.last_mut()) {
            range.length = (last.bytes + room.bytes()).next_multiple_of(page);
            let at: u64 = ranges.iter().map(|range| range.length).sum();
            ranges.push(MemoryRange { offset: room.word_offset() / page * page, length: page });
            let word_at = at + room.word_offset() % page;
            behind = Some(Behind { size: room.size(), bytes: room.bytes(), word: room.word(0), word_at });
        }
        let memory = drive.map(&ranges, true).map_err(|error| error.to_string())?;
        Ok(Self { memory, first, end, needs_flush: drive.domain().needs_flush(), room: behind })
    }

    /// The room behind the end of the file, when it was lent, in bytes.
    pub fn room(&self) -> u64 {
        self.room.as_ref().map_or(0, |room| room.bytes)
    }

    /// Says that the file has this size, durably if that is asked for.
    ///
    /// # Errors
    /// There is no room; what the device says.
    pub fn say(&self, size: u64, durably: bool) -> Result<(), String> {
        let room = self.room.as_ref().ok_or("no room is lent")?;
        self.memory.store_word(room.word_at, room.word + (size - room.size)).map_err(|error| error.to_string())?;
        if !durably {
            return Ok(());
        }
        if self.needs_flush {
            self.memory.flush(room.word_at, LINE_BYTES as u64).map_err(|error| error.to_string())?;
        }
        self.memory.fence();
        Ok(())
    }

    /// Appends bytes to a file of this size, durably.
    ///
    /// # Errors
    /// There is no room for them; what the device says.
    pub fn append(&self, size: u64, bytes: &[u8]) -> Result<(), String> {
        self.store(size, bytes)?;
        self.persist(size, bytes.len() as u64)?;
        self.say(size + bytes.len() as u64, true)
    }

    /// The bytes of the file that it had when it was lent.
    pub fn bytes(&self) -> Range<u64> {
        self.first..self.end
    }

    /// Stores bytes of the file.
    ///
    /// # Errors
    /// They are not lent; what the device says.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        if offset < self.first || offset + bytes.len() as u64 > self.end + self.room() {
            return Err(format!("{} bytes at {offset} are not lent", bytes.len()));
        }
        self.memory.copy_in(offset - self.first, bytes).map_err(|error| error.to_string())
    }

    /// Makes bytes of the file durable.
    ///
    /// # Errors
    /// What the device says.
    pub fn persist(&self, offset: u64, length: u64) -> Result<(), String> {
        if self.needs_flush {
            let (at, line) = (offset - self.first, LINE_BYTES as u64);
            self.memory.flush(at / line * line, at % line + length).map_err(|error| error.to_string())?;
        }
        self.memory.fence();
        Ok(())
    }
}
