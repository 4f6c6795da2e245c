//! Ranges of files that clients have mapped from the memory zone.
//!
//! A mapping is *none -(Map)-> kept -(Unmap)-> none*, or *kept -(the client ends)-> left -(nothing maps its zone any more)-> none*. One for stores
//! is left by Unmap, too.
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
//!        ([LND1]), and by that description it cannot store.
//! [MAP6] Each mapping for stores has a description of the zone of its own, with a lock of its own ([SZ1] of the device layer). The daemon sends
//!        it by the client's socket before the answer, and closes its own copy. It believes nobody that such a mapping is gone: the pin
//!        ends when the lock is gone, for which the kernel is asked when the client says so or ends, and every 100 ms from then on. One
//!        description a client would be held as long as any of its mappings, so that each single end would have to be believed. Also a
//!        forked child keeps the mapping with its lock, and so does who unmaps only a part.
//! [MAP7] A file is mapped for stores by who has the zone, is trusted with stores ([LNS1] of `lent_stores.rs`; [LND5] keeps that), and has it open for reading and writing. Numbers of locks are those from 2^31 on, in turn; one that
//!        is held, by what an earlier server left, is passed over.
//! [MAP8] What is said to be gone, or was a client's that has ended, and is still held, counts against all clients: where there are so many as
//!        one client may have, nobody maps for stores, and the same for loads. Each client that has ended and left mappings for loads costs
//!        a descriptor of the daemon: where there are as many as clients are let in, newcomers map nothing.
//! [MAP9] A server that ends leaves pins whose lock is held to the file system ([FM8] of `crates/fs`): somebody may still store there.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tandemfs_device::{Drive, LentZone, StoreZone, ZoneHold};
use tandemfs_fs::MappedElsewhere;
use tandemfs_protocol::StoreMessage;

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

/// Mappings for stores that are left are looked at so many at a time.
const LOOKS_MAX: usize = 256;
/// Numbers that are tried for a lock.
const TRIES_MAX: usize = 64;

/// A pin, counted.
struct Pin {
    mapped: MappedElsewhere,
    /// Tells whether somebody may store there ([MAP6]).
    stores: Option<ZoneHold>,
    all: Arc<AtomicUsize>,
}

impl Pin {
    /// Whether somebody may store by its description. What cannot be told counts as yes.
    fn is_held(&self) -> bool {
        self.stores.as_ref().is_some_and(|hold| hold.is_held().unwrap_or(true)) && !mutant::on(Mutant::EndsBelieved)
    }

    /// Ends with the server ([MAP9]).
    fn leave(self) {
        let is_held = self.is_held();
        let Self { mapped, stores, all } = self;
        all.fetch_sub(1, SeqCst);
        match is_held && stores.is_some() {
            true => mapped.leave(),
            false => drop(mapped),
        }
    }

    fn end(self) {
        self.all.fetch_sub(1, SeqCst);
    }
}

/// What clients that have ended have left ([MAP2]), and mappings for stores that they have ended ([MAP6]).
#[derive(Default)]
pub(crate) struct Left {
    all: Mutex<Vec<(Hold, Vec<Pin>)>>,
    stores: Mutex<VecDeque<Pin>>,
    /// A thread of the pool looks, or is going to.
    is_looked_at: AtomicBool,
    /// Pins of all clients, also of those that have ended.
    pins: Arc<AtomicUsize>,
    /// The number of the last lock.
    last_lock: AtomicU32,
}

impl Left {
    /// How many pins there are.
    pub(crate) fn pins(&self) -> usize {
        self.pins.load(SeqCst)
    }

    /// How many mappings for loads clients that have ended have left.
    fn loads(&self) -> usize {
        self.all.lock().iter().map(|(_, pins)| pins.len()).sum()
    }

    /// Whether the zone of another client may be held: each that is left costs a descriptor ([MAP8]).
    pub(crate) fn has_room(&self, clients: usize) -> bool {
        self.all.lock().len() < clients || mutant::on(Mutant::LoadsLeftUnbounded)
    }

    /// Whether somebody is to call [`sweep`](Self::sweep): there is something, and nobody does already.
    pub(crate) fn wants_sweep(&self) -> bool {
        let is_any = !self.all.lock().is_empty() || !self.stores.lock().is_empty();
        is_any && !self.is_looked_at.swap(true, SeqCst)
    }

    /// Ends what nobody maps any more; may wait.
    pub(crate) fn sweep(&self) {
        let ended: Vec<_> = self.all.lock().extract_if(.., |(hold, _)| !hold.is_held()).collect();
        ended.into_iter().flat_map(|(_, pins)| pins).for_each(Pin::end); // without the lock
        let looks = self.stores.lock().len().min(LOOKS_MAX);
        for _ in 0..looks {
            let Some(pin) = self.stores.lock().pop_front() else { break };
            self.end_stores(pin);
        }
        self.is_looked_at.store(false, SeqCst);
    }

    /// Ends a mapping for stores, now or when nothing has its description any more ([MAP6]).
    fn end_stores(&self, pin: Pin) {
        match pin.is_held() {
            true => self.stores.lock().push_back(pin),
            false => pin.end(),
        }
    }

    /// Ends everything ([MAP2], [MAP9]).
    pub(crate) fn clear(&self) {
        let ended = std::mem::take(&mut *self.all.lock());
        ended.into_iter().flat_map(|(_, pins)| pins).for_each(Pin::end);
        let stores = std::mem::take(&mut *self.stores.lock());
        stores.into_iter().for_each(Pin::leave);
    }

    /// The zone in a description for one mapping, and what tells how long it is held ([MAP7]).
    fn zone(&self, drive: &Drive) -> Result<(StoreZone, ZoneHold), Errno> {
        for _ in 0..TRIES_MAX {
            let number = 1 << 31 | self.last_lock.fetch_add(1, Relaxed);
            match drive.store_zone(number).ok_or(Errno::OPNOTSUPP)? {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
                zone => return zone.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        Err(Errno::NOMEM)
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
    /// Where descriptions go ([MAP6]); with the hold alone.
    socket: Option<OwnedFd>,
    most: (usize, u64),
    left: Arc<Left>,
}

impl Mappings {
    /// At most so many, and so many bytes of them together. Without a hold there are none; descriptions go to the client's socket.
    pub(crate) fn new(hold: Option<(Hold, OwnedFd)>, most: (usize, u64), left: Arc<Left>) -> Self {
        let (hold, socket) = hold.unzip();
        Self { held: Mutex::default(), hold, socket, most, left }
    }

    /// ENOSYS for a client that maps nothing ([MAP3]).
    pub(crate) fn are_served(&self) -> Result<(), Errno> {
        if self.hold.is_some() || mutant::on(Mutant::MappedWithoutZone) { Ok(()) } else { Err(Errno::NOSYS) }
    }

    /// ENOMEM where a further one of so many bytes is too much ([MAP1]).
    pub(crate) fn have_room(&self, bytes: u64) -> Result<(), Errno> {
        self.held.lock().has_room(bytes, self.most)
    }

    /// How many mappings for stores there are, and their bytes, without those that it has ended.
    pub(crate) fn stored(&self) -> (usize, u64) {
        let held = self.held.lock();
        let stored = held.pins.values().filter(|pin| pin.stores.is_some());
        stored.fold((0, 0), |(count, bytes), pin| (count + 1, bytes + pin.mapped.length()))
    }

    /// How many mappings there are, without those that it has ended.
    pub(crate) fn count(&self) -> usize {
        self.held.lock().pins.len()
    }

    /// Keeps a mapping for loads; its number. ENOMEM as above, and where too many are left ([MAP8]).
    pub(crate) fn add(&self, mapped: MappedElsewhere) -> Result<u64, Errno> {
        if self.left.loads() >= self.most.0 && !mutant::on(Mutant::LoadsLeftUnbounded) {
            return Err(Errno::NOMEM);
        }
        self.keep(mapped, None)
    }

    /// Keeps a mapping for stores, and sends the client a description for it; its number ([MAP6]). ENOMEM as above, and where too many are left
    /// ([MAP8]); what the kernel refuses.
    pub(crate) fn add_for_stores(&self, mapped: MappedElsewhere, drive: &Drive) -> Result<u64, Errno> {
        let socket = self.socket.as_ref().ok_or(Errno::NOSYS)?;
        if self.left.stores.lock().len() >= self.most.0 && !mutant::on(Mutant::MappingsUnbounded) {
            return Err(Errno::NOMEM);
        }
        let (zone, hold) = self.left.zone(drive)?;
        let number = self.keep(mapped, Some(hold))?;
        let mapping = NonZeroU64::new(number).ok_or(Errno::OVERFLOW)?;
        let sent = send(socket, &StoreMessage { mapping, needs_flush: drive.domain().needs_flush() }, &zone);
        drop(zone);
        match sent {
            Ok(()) => Ok(number),
            Err(errno) => {
                self.remove(number)?;
                Err(errno)
            }
        }
    }

    fn keep(&self, mapped: MappedElsewhere, stores: Option<ZoneHold>) -> Result<u64, Errno> {
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
        held.pins.insert(number, Pin { mapped, stores, all });
        Ok(number)
    }

    /// Ends a mapping; EINVAL for a number that is none.
    pub(crate) fn remove(&self, number: u64) -> Result<(), Errno> {
        let mut held = self.held.lock();
        let pin = held.pins.remove(&number).ok_or(Errno::INVAL)?;
        held.bytes -= pin.mapped.length();
        drop(held);
        match pin.stores.is_some() {
            true => self.left.end_stores(pin), // [MAP6]
            false => pin.end(),
        }
        Ok(())
    }
}

/// Sends a description of the zone, without waiting until the client takes it.
fn send(socket: &OwnedFd, message: &StoreMessage, zone: &StoreZone) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sent: [BorrowedFd<'_>; 1] = [zone.descriptor()];
    control.push(SendAncillaryMessage::ScmRights(&sent));
    sendmsg(socket, &[IoSlice::new(&message.encode())], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

impl Held {
    fn has_room(&self, bytes: u64, (count, most): (usize, u64)) -> Result<(), Errno> {
        let fits = self.pins.len() < count && self.bytes.checked_add(bytes).is_some_and(|bytes| bytes <= most);
        if fits || mutant::on(Mutant::MappingsUnbounded) { Ok(()) } else { Err(Errno::NOMEM) }
    }
}

impl Drop for Mappings {
    /// [MAP2], [MAP6]
    fn drop(&mut self) {
        let (stores, loads): (Vec<Pin>, Vec<Pin>) =
            self.held.get_mut().pins.drain().map(|(_, pin)| pin).partition(|pin| pin.stores.is_some());
        match self.hold.take() {
            Some(hold) if !loads.is_empty() && hold.is_held() => self.left.all.lock().push((hold, loads)),
            _ => loads.into_iter().for_each(Pin::end),
        }
        stores.into_iter().for_each(|pin| self.left.end_stores(pin));
    }
}
