//! Ranges of files that clients have mapped from the memory zone, for loads.
//!
//! A mapping is *none -(Map)-> kept -(Unmap)-> none*, or *kept -(the client ends)-> left -(nothing maps its zone any more)-> none*.
//!
//! [MAP1] The daemon keeps a pin of the file system for each mapping ([FM2] of `crates/fs`): its pages stay where they are, and the file's. Their
//!        number and their bytes are bounded for each client. A pin costs others no wait; writeback and moves pass the range over meanwhile.
//! [MAP2] A client has the number of a mapping, and ends it with that. When the client ends, whatever process maps its description of the zone may
//!        still load: a child that shares its memory, or the process itself after its connection was cut. So its pins stay until the lock of
//!        that description is gone ([LZ5] of the device layer), which is asked every 100 ms. They end with the server in any case.
//! [MAP3] A client without the zone maps nothing, and neither does one whose description could not be locked: the greeting does not name the
//!        operation.
//! [MAP4] A file of which the kernel has pages is left to the mount: stores of the mount's mappings would be seen late.
//! [MAP5] A client that says that a mapping has ended and loads there all the same loads what others have there: it could read that anyway
//!        ([LND1]), and it cannot store.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use rustix::io::Errno;
use tandemfs_device::LentZone;
use tandemfs_fs::MappedElsewhere;

use crate::mutant::{self, Mutant};

/// The byte of a client's description that is locked, and a description of the daemon's that tells whether it still is.
pub(crate) struct Hold {
    looks: LentZone,
    byte: u64,
}

impl Hold {
    /// Locks a byte by the client's description, before it is sent.
    pub(crate) fn of(zone: &LentZone, looks: LentZone, byte: u64) -> std::io::Result<Self> {
        zone.hold(byte)?;
        Ok(Self { looks, byte })
    }

    /// Whether somebody may load by that description. What cannot be told counts as yes.
    fn is_held(&self) -> bool {
        self.looks.is_held(self.byte).unwrap_or(true) && !mutant::on(Mutant::PinsEndWithClients)
    }
}

/// A pin, counted.
struct Pin {
    mapped: MappedElsewhere,
    all: Arc<AtomicUsize>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.all.fetch_sub(1, SeqCst);
    }
}

/// What clients that have ended have left ([MAP2]).
#[derive(Default)]
pub(crate) struct Left {
    all: Mutex<Vec<(Hold, Vec<Pin>)>>,
    /// A thread of the pool looks, or is going to.
    is_looked_at: AtomicBool,
    /// Pins of all clients, also of those that have ended.
    pins: Arc<AtomicUsize>,
}

impl Left {
    /// How many pins there are.
    pub(crate) fn pins(&self) -> usize {
        self.pins.load(SeqCst)
    }

    /// Whether somebody is to call [`sweep`](Self::sweep): there is something, and nobody does already.
    pub(crate) fn wants_sweep(&self) -> bool {
        !self.all.lock().is_empty() && !self.is_looked_at.swap(true, SeqCst)
    }

    /// Ends what nobody maps any more; may wait.
    pub(crate) fn sweep(&self) {
        let ended: Vec<_> = self.all.lock().extract_if(.., |(hold, _)| !hold.is_held()).collect();
        drop(ended); // without the lock
        self.is_looked_at.store(false, SeqCst);
    }

    /// Ends everything.
    pub(crate) fn clear(&self) {
        let ended = std::mem::take(&mut *self.all.lock());
        drop(ended);
    }
}

#[derive(Default)]
struct Held {
    pins: HashMap<u64, Pin>,
    /// The last number that was given.
    last: u64,
    bytes: u64,
}

/// Mappings of one client.
pub(crate) struct Mappings {
    held: Mutex<Held>,
    hold: Option<Hold>,
    most: (usize, u64),
    left: Arc<Left>,
}

impl Mappings {
    /// At most so many, and so many bytes of them together. Without a hold there are none.
    pub(crate) fn new(hold: Option<Hold>, most: (usize, u64), left: Arc<Left>) -> Self {
        Self { held: Mutex::default(), hold, most, left }
    }

    /// ENOSYS for a client that maps nothing ([MAP3]).
    pub(crate) fn are_served(&self) -> Result<(), Errno> {
        if self.hold.is_some() || mutant::on(Mutant::MappedWithoutZone) { Ok(()) } else { Err(Errno::NOSYS) }
    }

    /// ENOMEM where a further one of so many bytes is too much ([MAP1]).
    pub(crate) fn have_room(&self, bytes: u64) -> Result<(), Errno> {
        self.held.lock().has_room(bytes, self.most)
    }

    /// Keeps a mapping; its number. ENOMEM as above.
    pub(crate) fn add(&self, mapped: MappedElsewhere) -> Result<u64, Errno> {
        let bytes = mapped.length();
        let mut held = self.held.lock();
        if let Err(errno) = held.has_room(bytes, self.most) {
            drop(held); // before the mapping, which may wait
            return Err(errno);
        }
        let all = Arc::clone(&self.left.pins);
        all.fetch_add(1, SeqCst);
        (held.last, held.bytes) = (held.last + 1, held.bytes + bytes);
        let number = held.last;
        held.pins.insert(number, Pin { mapped, all });
        Ok(number)
    }

    /// Ends a mapping; EINVAL for a number that is none.
    pub(crate) fn remove(&self, number: u64) -> Result<(), Errno> {
        let mut held = self.held.lock();
        let pin = held.pins.remove(&number).ok_or(Errno::INVAL)?;
        held.bytes -= pin.mapped.length();
        drop(held);
        drop(pin);
        Ok(())
    }
}

impl Held {
    fn has_room(&self, bytes: u64, (count, most): (usize, u64)) -> Result<(), Errno> {
        let fits = self.pins.len() < count && self.bytes.checked_add(bytes).is_some_and(|bytes| bytes <= most);
        if fits || mutant::on(Mutant::MappingsUnbounded) { Ok(()) } else { Err(Errno::NOMEM) }
    }
}

impl Drop for Mappings {
    /// [MAP2]
    fn drop(&mut self) {
        let pins: Vec<Pin> = self.held.get_mut().pins.drain().map(|(_, pin)| pin).collect();
        match self.hold.take() {
            Some(hold) if !pins.is_empty() && hold.is_held() => self.left.all.lock().push((hold, pins)),
            _ => drop(pins),
        }
    }
}
