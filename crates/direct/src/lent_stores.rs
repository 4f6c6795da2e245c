//! Memory lent to clients for stores ([SL1]–[SL9] of `crates/fs`): what a client gets at the greeting, its leases, and how they end.
//!
//! A lease is *none -(LendStores, LendTail)-> lent -(somebody wants the blocks, ReturnStores, Close, F_SETFL, a watch, two seconds without a store, the
//! client's end)-> ended*. What is lent is overwritten by the client without a request; everything else goes by requests, which end the lease
//! first where they concern its blocks.
//!
//! [LNS1] Who may store can destroy everything on the drive, so that has a setting of its own ([`Limits::stores_by`](crate::Limits::stores_by)): root,
//!        who mounted, and the members of a group, if they ask for it at the greeting. A client without it is not served the operations.
//! [LNS2] Each client gets a description of the zone of its own, locked before it is sent ([SZ1] of the device layer), and lease words of its
//!        own ([LSE1]–[LSE7] of the ring). What a client writes there concerns its own leases alone.
//! [LNS3] A lease is lent by an open file that may be written, and ends with it. It ends when the file gets flags by which stores would not be
//!        what its writes are (O_APPEND, O_DIRECT), and when the client ends. What comes while it is being lent is looked for behind it.
//! [LNS4] A client that leaves what is watched to the mount loses its leases of watched files with the next look, at most 100 ms after the watch
//!        counts; a file that is watched is not lent to it.
//! [LNS5] A client that did not stop storing in time gets no lease any more, and neither does its process by another connection.
//! [LNS6] While pages of more than [`Limits::kept_back_bytes`](crate::Limits::kept_back_bytes) are kept back since they were taken away from
//!        clients, nothing is lent.
//! [LNS7] Nothing waits for a client but the end of a lease that it is storing under, at most a second, in the pool or in the thread that asked.
//! [LNS8] The room behind the end of a file is lent in the same way ([LR1]–[LR8] of `crates/fs`), also by a file with O_APPEND; the rules above hold of it,
//!        but for that flag. A client whose bytes were taken away asks how far its appends count. It is told when the lease has ended: until then
//!        that is not decided.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tandemfs_device::{StoreZone, ZoneHold};
use tandemfs_fs::{Borrower, FileSystem, Room, StoreAccess, StoreLease};
use tandemfs_protocol::Handle;
use tandemfs_ring::{LeaseToken, LeaseWord, LeaseWords};
use tandemfs_vfs::{OpenFile, Process, Refused, Vfs};

use crate::handles::Handles;
use crate::mutant::{self, Mutant};
use crate::tally::StoreCounts;

/// Processes of [LNS5] that are remembered.
const LATE_MAX: usize = 1024;
/// Numbers of descriptions that are tried: clients of a server before this one may have some still.
const NUMBERS_TRIED: u32 = 64;

/// Processes that did not stop storing in time, and live ([LNS5]).
#[derive(Default)]
pub(crate) struct Late(Mutex<Vec<(i32, OwnedFd)>>);

fn lives(pidfd: &OwnedFd) -> bool {
    matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())), Ok(0))
}

impl Late {
    fn add(&self, pid: i32, pidfd: OwnedFd) {
        let mut late = self.0.lock();
        late.retain(|(other, pidfd)| *other != pid && lives(pidfd));
        if late.len() >= LATE_MAX {
            late.remove(0);
        }
        late.push((pid, pidfd));
    }

    fn has(&self, pid: i32) -> bool {
        let mut late = self.0.lock();
        late.retain(|(_, pidfd)| lives(pidfd));
        late.iter().any(|(other, _)| *other == pid) && !mutant::on(Mutant::LateForgotten)
    }
}

/// What has become of a client's leases.
#[derive(Default)]
struct Counters {
    lent: AtomicU64,
    tails: AtomicU64,
    ended: AtomicU64,
    taken_away: AtomicU64,
}

/// What all leases of a client share.
struct Common {
    hold: ZoneHold,
    counters: Counters,
    late: Arc<Late>,
    process: Mutex<Option<(i32, OwnedFd)>>,
}

/// A word of the ring as the file system asks for it.
struct Access {
    word: LeaseWord,
    common: Arc<Common>,
    is_revoked: AtomicBool,
    is_taken: AtomicBool,
}

impl StoreAccess for Access {
    fn revoke(&self) {
        self.word.revoke();
        if !self.is_revoked.swap(true, Relaxed) {
            self.common.counters.ended.fetch_add(1, Relaxed);
        }
    }

    fn is_storing(&self) -> bool {
        self.word.is_storing()
    }

    fn take_away(&self) {
        self.word.take_away();
        if !self.is_taken.swap(true, Relaxed) {
            self.common.counters.taken_away.fetch_add(1, Relaxed);
        }
        if let Some((pid, pidfd)) = self.common.process.lock().take() {
            self.common.late.add(pid, pidfd); // [LNS5]
        }
    }

    fn has_stored(&self) -> bool {
        self.word.has_stored()
    }

    /// What cannot be told counts as yes.
    fn is_possible(&self) -> bool {
        self.common.hold.is_held().unwrap_or(true)
    }
}

/// A lease that a client was told of; it may have ended since.
struct Told {
    handle: Handle,
    token: LeaseToken,
    lease: Weak<StoreLease>,
    /// The room that it has, of which the client may ask when the lease is gone ([LNS8]).
    room: Option<Arc<Room>>,
}

impl Told {
    fn is_lent(&self) -> bool {
        self.lease.strong_count() > 0
    }

    /// Bounded: who has a lease taken away gets none any more.
    fn is_kept(&self) -> bool {
        self.is_lent() || self.room.as_ref().is_some_and(|room| room.appended_to().is_some())
    }
}

/// What of a file is to be lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Blocks around an offset.
    Around(i64),
    /// The last block, with the room behind the end.
    Tail,
}

/// What a client needs to store by itself.
pub(crate) struct Storing {
    fs: Arc<FileSystem>,
    words: Arc<LeaseWords>,
    common: Arc<Common>,
    borrower: Arc<Borrower>,
    told: Mutex<Vec<Told>>,
    kept_back_bytes: u64,
}

/// What is lent, as the client is told it.
pub(crate) type Lent = (LeaseToken, Arc<StoreLease>);

impl Storing {
    /// For a process, with the zone that is sent to it. None for one that was late ([LNS5]), and where the drive lends nothing.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(crate) fn open(
        fs: &Arc<FileSystem>,
        (pid, pidfd): (i32, OwnedFd),
        late: &Arc<Late>,
        kept_back_bytes: u64,
    ) -> std::io::Result<Option<(Self, StoreZone)>> {
        if late.has(pid) {
            return Ok(None);
        }
        let Some((zone, hold)) = numbered(fs)? else { return Ok(None) };
        let words = LeaseWords::new().map_err(std::io::Error::other)?;
        let process = Mutex::new(Some((pid, pidfd)));
        let common = Arc::new(Common { hold, counters: Counters::default(), late: Arc::clone(late), process });
        let storing = Self { fs: Arc::clone(fs), words, common, borrower: Arc::default(), told: Mutex::default(), kept_back_bytes };
        Ok(Some((storing, zone)))
    }

    /// What is sent to the client beside the zone.
    pub(crate) fn words(&self) -> &LeaseWords {
        &self.words
    }

    /// Lends a part of an open file; none where nothing is lent. May wait.
    pub(crate) fn lend(
        &self,
        vfs: &Vfs,
        process: &Process,
        (handles, handle): (&Handles, Handle),
        part: Part,
    ) -> Result<Option<Lent>, Refused> {
        let file = handles.get(handle)?;
        if self.fs.stores_lent().1 > self.kept_back_bytes {
            return Ok(None); // [LNS6]
        }
        let Some(word) = self.words.lend() else { return Ok(None) };
        let (token, common) = (word.token(), Arc::clone(&self.common));
        let access: Arc<dyn StoreAccess> =
            Arc::new(Access { word, common, is_revoked: AtomicBool::new(false), is_taken: AtomicBool::new(false) });
        let lent = match part {
            Part::Around(offset) => vfs.lend_stores(process, &file, offset, &self.borrower, &access)?,
            Part::Tail => vfs.lend_stores_to_append(process, &file, &self.borrower, &access)?,
        };
        let Some(lease) = lent else { return Ok(None) };
        drop(access);
        self.common.counters.lent.fetch_add(1, Relaxed);
        if part == Part::Tail {
            if lease.room().is_none() {
                self.fs.end_stores(&lease)?; // it would be of no use
                return Ok(None);
            }
            self.common.counters.tails.fetch_add(1, Relaxed);
        }
        let mut told = self.told.lock();
        told.retain(Told::is_kept);
        told.push(Told { handle, token, lease: Arc::downgrade(&lease), room: lease.room().cloned() });
        drop(told);
        // [LNS3]: who closes the file, or changes its flags, looks at the list behind that.
        let may = if part == Part::Tail { file.may_be_appended_to() } else { file.may_be_stored_to() };
        let is_still_open = handles.get(handle).is_ok_and(|now| Arc::ptr_eq(&now, &file)) && may;
        if !is_still_open {
            self.end(|told| told.token == token)?;
            return Ok(None);
        }
        Ok(Some((token, lease)))
    }

    /// The size that a file got by room that was taken away ([LNS8]). May wait.
    ///
    /// # Errors
    /// `EINVAL` for what is no such lease; errors of its end.
    pub(crate) fn appended(&self, token: LeaseToken) -> Result<u64, Refused> {
        let found =
            self.told.lock().iter().find(|told| told.token == token).and_then(|told| Some((told.lease.upgrade(), told.room.clone()?)));
        let (lease, room) = found.ok_or(Errno::INVAL)?;
        let ended = match lease {
            Some(_) if mutant::on(Mutant::AppendedAtOnce) => return Ok(room.appended_to().unwrap_or(room.size())),
            Some(lease) => self.fs.end_stores(&lease),
            None => Ok(()),
        };
        match room.appended_to() {
            Some(size) => Ok(size), // decided, also where the bytes could not be copied yet
            None => Err(ended.err().map_or(Refused::Errno(Errno::INVAL), Refused::from)),
        }
    }

    /// Ends the leases that are meant. May wait.
    fn end(&self, is_meant: impl Fn(&Told) -> bool) -> tandemfs_fs::Result<()> {
        let mut told = self.told.lock();
        let meant: Vec<_> = told.iter().filter(|told| is_meant(told)).filter_map(|told| told.lease.upgrade()).collect();
        told.retain(Told::is_kept);
        drop(told);
        meant.iter().try_for_each(|lease| self.fs.end_stores(lease))
    }

    /// Whether a handle has leases, or had some a moment ago. Does not wait.
    pub(crate) fn has_of(&self, handle: Handle) -> bool {
        self.told.lock().iter().any(|told| told.handle == handle && told.is_lent())
    }

    /// Closes a handle that has no leases. Who lends by it tells of the lease before or behind that, and looks behind its telling whether the
    /// handle is open still ([LNS3]). Does not wait.
    pub(crate) fn unless_lent<T>(&self, handle: Handle, close: impl FnOnce() -> T) -> Option<T> {
        let told = self.told.lock();
        let is_lent = told.iter().any(|told| told.handle == handle && told.is_lent());
        (!is_lent).then(close)
    }

    /// Ends a lease that the client gives back.
    pub(crate) fn give_back(&self, token: LeaseToken) -> tandemfs_fs::Result<()> {
        self.end(|told| told.token == token)
    }

    /// Ends the leases of a handle ([LNS3]).
    pub(crate) fn end_of(&self, handle: Handle) -> tandemfs_fs::Result<()> {
        if mutant::on(Mutant::LeasesOutliveFiles) { Ok(()) } else { self.end(|told| told.handle == handle) }
    }

    /// Ends the leases of watched files ([LNS4]). May wait.
    pub(crate) fn end_watched(&self, vfs: &Vfs, process: &Process, handles: &Handles) {
        let mut of: Vec<Handle> = self.told.lock().iter().map(|told| told.handle).collect();
        of.dedup();
        for handle in of {
            let is_watched = |file: &OpenFile| matches!(vfs.leaves_watched_file(process, file), Err(Refused::Crossed(_)));
            if handles.get(handle).is_ok_and(|file| is_watched(&file)) && !mutant::on(Mutant::WatchedStoredTo) {
                log_failed(self.end_of(handle));
            }
        }
    }

    /// Whether it has leases.
    pub(crate) fn has_leases(&self) -> bool {
        self.told.lock().iter().any(Told::is_lent)
    }

    /// What has become of its leases.
    pub(crate) fn counts(&self) -> StoreCounts {
        let counters = &self.common.counters;
        let told = self.told.lock();
        let held = |has_room: bool| told.iter().filter(|told| told.is_lent() && (told.room.is_some() || !has_room)).count();
        StoreCounts {
            held: held(false),
            tails_held: held(true),
            tails_lent: counters.tails.load(Relaxed),
            lent: counters.lent.load(Relaxed),
            ended: counters.ended.load(Relaxed),
            taken_away: counters.taken_away.load(Relaxed),
            is_late: self.borrower.is_late(),
        }
    }
}

impl Drop for Storing {
    /// The client has ended ([LNS3]). A lease that cannot be ended now is ended by who wants its blocks.
    fn drop(&mut self) {
        if !mutant::on(Mutant::LeasesOutliveClients) {
            log_failed(self.end(|_| true));
        }
    }
}

fn log_failed(ended: tandemfs_fs::Result<()>) {
    if let Err(error) = ended {
        tracing::warn!("a lease for stores of a client of the direct door could not be ended yet: {error}");
    }
}

/// A description of the zone with a number that nobody has ([LNS2]); none where the drive lends nothing.
fn numbered(fs: &FileSystem) -> std::io::Result<Option<(StoreZone, ZoneHold)>> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    for _ in 0..NUMBERS_TRIED {
        match fs.drive().store_zone(NEXT.fetch_add(1, Relaxed)) {
            None => return Ok(None),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
            Some(opened) => return opened.map(Some),
        }
    }
    Err(Errno::BUSY.into())
}
