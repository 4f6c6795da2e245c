//! Clients that reach the files of this mount without the kernel (the mount option `direct`): the kernel's caches must not show them, nor
//! overwrite what they write.
//!
//! [BS1] Names and attributes are valid for no time, absent names too, and a directory is not cached while it is open. So a reply that was
//!       under way while a client changed something serves the one call that asked. A notification instead could come before the reply that
//!       it has to undo, and the kernel forgets it for an inode that it does not have yet.
//! [BS2] There is no write-back cache: with it the kernel keeps sizes and times of its own. Changed pages come from mappings alone.
//! [BS3] Before the kernel gets or changes pages of a file by READ or WRITE, the file is noted. A client that reads or changes a noted file
//!       removes the note, then has the kernel write back and drop the file's pages, and goes on when that is done; a second one waits for
//!       the first. A page is locked from before its READ until its reply, so no old page comes in behind the drop.
//! [BS14] A client that wants reads of a noted file left to the mount has them left, but of a small file only [`LEFT_MAX`] times: then its pages are dropped, and the
//!       door serves it. Otherwise files that the mount has read once would be opened twice by each program of the door for good.
//! [BS4] A change by a client is a direct write to the page cache ([PC3] of `page_cache.rs`): pages that are written back leave out its bytes.
//!       Pages are dropped before it, so that stores of mappings behind the end do not appear when the file grows ([DR4] of
//!       `data_requests.rs`), and again behind it.
//! [BS6] A thread that does not wait (`no_wait`) is refused where pages would have to be dropped or writeback be waited for, before either
//!       has begun. If pages came in during its change, they are dropped by whoever answers the client, and the change goes on until then.
//! [BS7] A mapping does not ask for sizes: where a client lets a file grow of which the kernel has had pages since it learned of the file,
//!       the kernel is told the new size. Otherwise a process that maps the file would get SIGBUS for bytes that are there. It is told no byte: the page
//!       may belong to a WRITE on its way here ([NO2] of `wire/src/notify.rs`). Who appends by stores tells nobody: while such a file is open, as it is while it is mapped, no room of it
//!       is lent, and room that is lent ends behind the note.
//! [BS5] A WRITE of a descriptor with O_APPEND has the end that the kernel knows, or with RWF_NOAPPEND the offset of the call. The kernel's end
//!       is right unless a client has changed the file since the kernel learned of it. So the WRITE goes to its offset if no client has
//!       reached behind it (as [DR1]); otherwise to the end that the file system has. So does one whose
//!       offset is behind the end of a file that a client has made shorter, unless it is a direct one: that may be a piece of a call whose earlier pieces are
//!       still on their way, so it goes to its offset, and may leave a hole. This is decided once more under the lock of the range: the end may be behind
//!       a piece of the same call by then. The kernel's pages of the file are wrong then. Whole pages of the WRITE, which the kernel has let go of, are dropped
//!       before the reply, the others behind it: it locks them until then. Where the bytes went they count as written by a client ([BS4]). The kernel's end stays behind by what the WRITE was moved, so the end of the file counts as
//!       reached by clients from then on: the next WRITE may point to bytes of this one. A client is noted before it changes anything and until it has, so whoever looks at the
//!       size first and then at the note misses none. A client that appends by stores tells nobody: once
//!       it may, clients count as having reached any offset, and a WRITE with RWF_NOAPPEND goes to the end, too. The note stays while anybody has the file, and is of one generation:
//!       a number may be taken again of which the kernel has known nothing.
//! [BS11] Where a program has a file mapped for stores, no page of it may stay in the kernel: nobody is told of a store. Nobody has it open by the mount
//!       but past the cache ([FOP2] of `opens.rs`), so calls see what is stored, and there are no shared mappings. Pages come in by private mappings
//!       alone. What a READ brings in is dropped right behind it, by a thread for which nobody waits, as a drop waits for the page, which is locked
//!       until the reply; until that drop such a mapping may see bytes of the moment before.
//! [BS13] Behind a direct WRITE that fails and would have let the file grow, the kernel cuts the file to the end that it knows, which clients may have
//!        reached behind. So of a file that clients have changed a SETATTR of the size by the same thread, within [`CUT_WITHIN`], changes nothing then: to where
//!        that call began, or, where the kernel is told no sizes ([BS7]), to anything that it would have written. It looks like an ftruncate(2), and one that comes first is taken for it. A WRITE that begins behind the end
//!        that the kernel knows is not covered.
//! [BS12] An fsync of the mount makes such stores durable as well: where they have to be flushed, the daemon answers it instead of the kernel. It then
//!       also makes the times of stores under leases durable; an fdatasync does not.
//! [BS10] A note about a file goes only when nobody has the file any more ([NT1] of `notes.rs`): the kernel has no pages of a file that it has
//!       forgotten. A LOOKUP counts before it reads the attributes that it replies, so what changes from then on is noted.
//! [BS9] Bytes that clients know are revoked after a file was noted: nothing of a noted file is given to be kept, so from then on they ask.
//! [BS8] The kernel keeps an inode that it was told of until it drops the name, and the file system keeps the space of one that the kernel
//!       has. So it is told of names that a client took away, afterwards and by a thread that serves nothing; until then their space is as
//!       that of a file that is open.

use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, Result, WriteOptions, may_wait};
use tandemfs_vfs::{Caches, Change};
use tandemfs_wire::Reply;

use crate::door::Door;
use crate::mutant::{self, Mutant};
use crate::notes::{IsHeld, Note, Notes, Shards};
use crate::page_cache::DirectWrite;

/// How long after the error of a direct WRITE the kernel may cut the file ([BS13]).
const CUT_WITHIN: Duration = Duration::from_secs(1);
/// How often a small file is left to the mount ([BS14]), and how small, in bytes.
const LEFT_MAX: u8 = 4;
const LEFT_SMALL: u64 = 64 << 10;
const END_OF_FILES: u64 = i64::MAX as u64;

/// Files of which the kernel may have pages ([BS3]).
#[derive(Debug, Default)]
pub(crate) struct Noted(Shards<Files>);

#[derive(Debug, Default)]
struct Files {
    states: Notes<State>,
    /// Files of which the kernel has had pages ([BS7]).
    read: Notes<()>,
    /// Files that clients have changed ([BS5]). One that is not named where there is no more room counts as being changed now.
    changed: Notes<ByClients>,
    /// Direct WRITEs that have failed ([BS13]).
    failed: Vec<Failed>,
}

/// A direct WRITE that has failed.
#[derive(Debug)]
struct Failed {
    file: InodeNumber,
    thread: u32,
    bytes: Range<u64>,
    /// The kernel is told how far clients reach ([BS7]).
    is_told: bool,
    since: Instant,
}

/// What clients do to a file.
#[derive(Debug, Clone, Copy, Default)]
struct ByClients {
    under_way: u32,
    /// Of which file of the number the end is.
    generation: u32,
    /// The largest size that the file had after a change, or after a WRITE that was moved behind one.
    end: u64,
    /// A change has made it shorter, so the kernel's end may be behind the file's.
    is_cut: bool,
}

impl ByClients {
    fn reach(&mut self, size: u64, generation: u32) {
        let is_same = self.generation == generation;
        (self.end, self.is_cut) = if is_same { (self.end.max(size), self.is_cut) } else { (size, false) };
        self.generation = generation;
    }
}

impl Note for ByClients {
    fn is_under_way(&self) -> bool {
        self.under_way > 0
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    is_noted: bool,
    is_dropping: bool,
    /// How often clients were sent to the mount ([BS14]).
    left: u8,
}

impl Note for State {
    fn is_under_way(&self) -> bool {
        self.is_dropping
    }
}

impl Noted {
    /// Notes a file.
    pub(crate) fn note(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        let mut files = self.0.of(file).lock();
        files.read.note(file, is_held);
        if let Some(state) = files.states.note(file, is_held) {
            state.is_noted = true;
        }
    }

    /// Notes a file, and then has its pages dropped behind the READ or WRITE if a program has it mapped for stores ([BS11]): who maps a file looks at the
    /// note once it is mapped.
    fn note_and_drop_mapped(&self, file: InodeNumber, is_held: &IsHeld<'_>, is_mapped: impl FnOnce() -> bool, drop_behind: impl FnOnce()) {
        let asked_early = mutant::on(Mutant::MappedAskedBeforeNote);
        if !asked_early {
            self.note(file, is_held);
        }
        let is_mapped = is_mapped();
        if asked_early {
            self.note(file, is_held);
        }
        if is_mapped && !mutant::on(Mutant::MappedPagesKept) {
            drop_behind();
        }
    }

    /// Whether the kernel has had pages of a file.
    fn has_been_read(&self, file: InodeNumber) -> bool {
        self.0.of(file).lock().read.is_noted(file)
    }

    /// Somebody has the file no more ([BS10]).
    fn forget(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        let mut files = self.0.of(file).lock();
        files.states.forget(file, is_held);
        files.read.forget(file, is_held);
        files.changed.forget(file, is_held);
    }

    /// The kernel is told sizes of a file from now on ([BS7]).
    fn note_read(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        self.0.of(file).lock().read.note(file, is_held);
    }

    /// A client is about to change a file ([BS5]).
    fn change_begins(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        if let Some(by_clients) = self.0.of(file).lock().changed.note(file, is_held) {
            by_clients.under_way += 1;
        }
    }

    /// It has, and the file, which had the size `before`, has this size and generation; none if it is gone.
    fn change_ends(&self, file: InodeNumber, reached: Option<(u64, u32)>, before: u64) {
        let mut files = self.0.of(file).lock();
        let Some(by_clients) = files.changed.get_mut(file) else { return };
        by_clients.under_way = by_clients.under_way.saturating_sub(1);
        match reached {
            Some((size, generation)) => {
                by_clients.reach(size, generation);
                by_clients.is_cut |= size < before && !mutant::on(Mutant::CutsForgotten);
            }
            None if by_clients.under_way == 0 => drop(files.changed.remove(file)),
            None => {}
        }
    }

    /// From now on a client appends to a file by stores, so where it has reached is not known ([BS5]).
    fn appends_by_stores(&self, file: InodeNumber, generation: u32, is_held: &IsHeld<'_>) {
        if let Some(by_clients) = self.0.of(file).lock().changed.note(file, is_held) {
            by_clients.reach(u64::MAX, generation);
        }
    }

    /// A WRITE of the kernel went behind what clients have written, whereupon the file has this size and generation ([BS5]).
    fn is_moved(&self, file: InodeNumber, size: u64, generation: u32) {
        if let Some(by_clients) = self.0.of(file).lock().changed.get_mut(file) {
            by_clients.reach(size, generation);
        }
    }

    /// What clients may have written of a file ends before this; 0 if they have changed nothing.
    pub(crate) fn end_by_clients(&self, file: InodeNumber, generation: u32) -> u64 {
        let files = self.0.of(file).lock();
        match files.changed.get(file) {
            None if files.changed.is_full() => u64::MAX,
            None => 0,
            Some(by_clients) if by_clients.under_way > 0 && !mutant::on(Mutant::ChangesUnderWayIgnored) => u64::MAX,
            Some(by_clients) if by_clients.generation == generation || mutant::on(Mutant::GenerationIgnored) => by_clients.end,
            Some(_) => 0,
        }
    }

    /// A direct WRITE has failed ([BS13]).
    pub(crate) fn direct_write_failed(&self, file: InodeNumber, thread: u32, mut bytes: Range<u64>) {
        let mut files = self.0.of(file).lock();
        if files.changed.get(file).is_none() && !files.changed.is_full() {
            return; // the kernel's end is the file's
        }
        let is_of_call = |failed: &Failed| failed.file == file && failed.thread == thread && failed.since.elapsed() < CUT_WITHIN;
        if let Some(pieces) = files.failed.iter().find(|failed| is_of_call(failed)) {
            bytes = pieces.bytes.start.min(bytes.start)..pieces.bytes.end.max(bytes.end);
        }
        files.failed.retain(|failed| failed.thread != thread && failed.since.elapsed() < CUT_WITHIN);
        let is_told = files.read.is_noted(file);
        files.failed.push(Failed { file, thread, bytes, is_told, since: Instant::now() });
    }

    /// Whether a thread's SETATTR of a size is the kernel's behind such a WRITE ([BS13]).
    pub(crate) fn take_failed(&self, file: InodeNumber, thread: u32, size: u64) -> bool {
        let mut files = self.0.of(file).lock();
        let Some(at) = files.failed.iter().position(|failed| failed.file == file && failed.thread == thread) else { return false };
        let failed = files.failed.swap_remove(at);
        let is_end = if failed.is_told { size == failed.bytes.start } else { failed.bytes.contains(&size) };
        is_end && failed.since.elapsed() < CUT_WITHIN
    }

    /// Whether clients have made a file shorter since the kernel learned of it, or may have.
    fn have_clients_cut(&self, file: InodeNumber, generation: u32) -> bool {
        let files = self.0.of(file).lock();
        match files.changed.get(file) {
            None => files.changed.is_full(),
            Some(by_clients) => by_clients.is_cut && by_clients.generation == generation,
        }
    }

    /// Whether clients are why the kernel takes this offset for the end of a file of this size ([BS5]).
    fn is_wrong_end(&self, file: InodeNumber, generation: u32, (offset, is_direct): (u64, bool), size: u64) -> bool {
        if is_direct && offset > size && !mutant::on(Mutant::PiecesOutOfOrder) {
            return false;
        }
        offset < self.end_by_clients(file, generation) || offset > size && self.have_clients_cut(file, generation)
    }

    /// Whether nothing is noted and nobody drops pages.
    fn is_settled(&self, file: InodeNumber) -> bool {
        let files = self.0.of(file).lock();
        let state = files.states.get(file).copied().unwrap_or_default();
        let is_dropping = state.is_dropping && !mutant::on(Mutant::DroppingIsSettled);
        !(is_dropping || state.is_noted || files.states.is_full())
    }

    /// Whether a client is sent to the mount, which has pages of a file ([BS14]).
    fn leaves(&self, file: InodeNumber, is_small: impl FnOnce() -> bool) -> bool {
        if self.is_settled(file) {
            return false;
        }
        let is_small = is_small();
        let mut files = self.0.of(file).lock();
        let Some(state) = files.states.get_mut(file).filter(|_| is_small) else { return true };
        state.left = state.left.saturating_add(1);
        state.left <= LEFT_MAX
    }

    /// Drops the pages of a noted file by `drop_pages`; returns when nobody drops them any more and the note is gone.
    fn settle(&self, file: InodeNumber, drop_pages: impl FnOnce()) {
        let shard = self.0.of(file);
        let mut files = shard.lock();
        loop {
            let state = files.states.get(file).copied().unwrap_or_default();
            match (state.is_dropping, state.is_noted || files.states.is_full()) {
                (true, _) => files = shard.changed.wait(files).unwrap_or_else(PoisonError::into_inner),
                (false, false) => return,
                (false, true) => break,
            }
        }
        *files.states.note_in_any_case(file) = State { is_dropping: true, ..State::default() };
        drop(files);
        drop_pages();
        let mut files = shard.lock();
        match files.states.get_mut(file) {
            Some(state) if state.is_noted && !mutant::on(Mutant::UnnotedBehindDrop) => state.is_dropping = false,
            _ => drop(files.states.remove(file)),
        }
        drop(files);
        shard.changed.notify_all();
    }
}

/// A change by a client ([BS4]).
struct Changing {
    door: Arc<Door>,
    file: InodeNumber,
    /// Registered until its pages are dropped.
    write: Option<DirectWrite>,
    /// If the file has grown then, by this change or by one beside it, a kernel that has read it is to be told ([BS7]).
    size_before: u64,
}

impl Changing {
    /// The size that the kernel is to be told.
    fn grows_to(&self) -> Option<u64> {
        let has_been_read = self.door.beside.as_ref().is_some_and(|noted| noted.has_been_read(self.file));
        let size = has_been_read.then(|| self.door.fs.size(self.file).ok()).flatten()?;
        (size > self.size_before).then_some(size)
    }
}

impl Change for Changing {
    fn moves_to(&mut self, bytes: Range<u64>) -> bool {
        if self.write.as_ref().is_some_and(|write| write.covers(&bytes)) {
            return true;
        }
        // The bytes that it was to change first may be another's by now, and stored to.
        let moved = self.door.page_cache.try_begin_direct(self.file, bytes);
        let is_registered = moved.is_some();
        self.write = moved.or(self.write.take());
        is_registered
    }

    fn ends_at_once(&mut self) -> bool {
        let is_settled = self.door.beside.as_ref().is_none_or(|noted| noted.is_settled(self.file));
        let ends = is_settled && self.grows_to().is_none();
        if ends {
            self.write = None;
        }
        ends
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if let Some(noted) = &self.door.beside {
            match self.door.fs.size_and_generation(self.file) {
                Ok(reached) => noted.change_ends(self.file, Some(reached), self.size_before),
                Err(Error::Stale(_)) => noted.change_ends(self.file, None, self.size_before),
                Err(_) => {} // where it ends is unknown from now on, as during a change
            }
        }
        if self.write.is_some() {
            self.door.drop_noted_pages(self.file);
            if let Some(end) = self.grows_to() {
                self.door.tell_size(self.file, end);
            }
        }
    }
}

impl Caches for Door {
    fn settle(&self, file: InodeNumber) -> Result<()> {
        if self.beside.as_ref().is_some_and(|noted| !noted.is_settled(file)) {
            may_wait()?; // [BS6]
            self.drop_noted_pages(file);
        }
        Ok(())
    }

    fn change(self: Arc<Self>, file: InodeNumber, bytes: Range<u64>) -> Result<Box<dyn Change>> {
        self.settle(file)?;
        let size_before = self.fs.size(file)?;
        let write = match self.page_cache.try_begin_direct(file, bytes.clone()) {
            Some(write) => write,
            None => {
                may_wait()?; // [BS6]
                self.page_cache.begin_direct(file, bytes)
            }
        };
        if let Some(noted) = &self.beside {
            noted.change_begins(file, &|file| self.fs.is_held(file)); // [BS5]
        }
        Ok(Box::new(Changing { door: self, file, write: Some(write), size_before }))
    }

    fn appends_by_stores(&self, file: InodeNumber) -> Result<()> {
        if let Some(noted) = &self.beside {
            let (_, generation) = self.fs.size_and_generation(file)?;
            noted.appends_by_stores(file, generation, &|file| self.fs.is_held(file));
        }
        Ok(())
    }

    fn goes_by_sizes(&self, file: InodeNumber) -> bool {
        let is_open = || self.opens.as_ref().is_none_or(|opens| opens.is_any(file));
        self.beside.as_ref().is_some_and(|noted| noted.has_been_read(file)) && is_open()
    }

    fn has_pages(&self, file: InodeNumber) -> bool {
        self.beside.as_ref().is_some_and(|noted| !noted.is_settled(file))
    }

    fn keeps_reads(&self, file: InodeNumber) -> bool {
        let is_small = || self.fs.size(file).is_ok_and(|size| size <= LEFT_SMALL);
        self.beside.as_ref().is_some_and(|noted| noted.leaves(file, is_small))
    }

    fn is_open(&self, file: InodeNumber) -> bool {
        self.opens.as_ref().is_some_and(|opens| opens.is_any(file))
    }

    fn is_watched(&self, inodes: &[InodeNumber]) -> Result<bool> {
        self.watches.as_ref().map_or(Ok(false), |watches| watches.is_any(inodes))
    }

    fn may_be_watched(&self) -> bool {
        self.watches.as_ref().is_some_and(|watches| watches.looks())
    }

    fn name_gone(&self, directory: InodeNumber, name: &[u8]) {
        if self.beside.is_some() {
            self.name_taken(directory, name); // [BS8]
        }
    }
}

impl Door {
    fn drop_noted_pages(&self, file: InodeNumber) {
        if let Some(noted) = &self.beside {
            noted.settle(file, || self.kernel.drop_pages(file, 0..END_OF_FILES));
        }
    }

    /// [BS3]
    pub(crate) fn note_pages(&self, file: InodeNumber) {
        let Some(noted) = &self.beside else { return };
        let is_mapped = || {
            self.fs.revoke_bytes(file); // [BS9]
            self.fs.is_mapped_for_stores(file)
        };
        noted.note_and_drop_mapped(file, &|file| self.fs.is_held(file), is_mapped, || {
            let (noted, kernel) = (Arc::clone(noted), self.kernel.clone());
            self.mapped.push(move || noted.settle(file, || kernel.drop_pages(file, 0..END_OF_FILES)));
        });
        self.fs.end_rooms(file); // [BS7]
    }

    /// [BS7], for a change that ends at `end` or at the end of the file.
    fn tell_size(&self, file: InodeNumber, end: u64) {
        if let Ok(size @ 1..) = self.fs.size(file) {
            self.kernel.raise_size(file, end.min(size));
        }
    }

    /// The kernel has dropped an inode from its memory, and the file system knows that ([BS10]).
    pub(crate) fn forget_notes(&self, file: InodeNumber) {
        self.kernel.overtaken.forget(file, &|file| self.fs.is_held(file));
        if let Some(noted) = &self.beside {
            noted.forget(file, &|file| self.fs.is_held(file));
        }
    }

    /// The kernel is told how far clients let a file grow that is appended to past its cache, as the pieces of a long append come at once:
    /// their order is in their offsets alone.
    pub(crate) fn tell_sizes_of(&self, file: InodeNumber) {
        if let Some(noted) = &self.beside {
            noted.note_read(file, &|file| self.fs.is_held(file));
        }
    }

    /// Whether a WRITE of a descriptor with O_APPEND goes to the end that the file system has ([BS5]). One that is at the end and alone does too:
    /// a client may let the file grow in this moment. `held` is the registration of a direct WRITE.
    pub(crate) fn goes_to_the_end(&self, file: InodeNumber, offset: u64, is_alone: bool, held: Option<&DirectWrite>) -> Result<bool> {
        let (size, generation) = self.fs.size_and_generation(file)?; // before the note
        let is_piece = offset > size && held.is_some_and(|held| held.follows_from(size));
        Ok(is_alone && offset == size || !is_piece && self.is_wrong_end(file, generation, (offset, held.is_some()), size))
    }

    /// Whether clients are why the kernel takes this offset for the end of a file of this size.
    fn is_wrong_end(&self, file: InodeNumber, generation: u32, (offset, is_direct): (u64, bool), size: u64) -> bool {
        self.beside.as_ref().is_some_and(|noted| noted.is_wrong_end(file, generation, (offset, is_direct), size))
    }

    /// A WRITE to the end ([BS5]). Returns how much was written, and if it did not go to its offset the registrations of that and of where it went.
    pub(crate) fn append(
        &self,
        file: InodeNumber,
        (asked, is_direct): (Range<u64>, bool),
        data: &[u8],
        options: WriteOptions,
    ) -> Result<(usize, Option<Vec<DirectWrite>>)> {
        let (_, generation) = self.fs.size_and_generation(file)?;
        let mut held: Option<DirectWrite> = None;
        loop {
            let (mut is_piece, mut waits_for) = (false, None);
            let mut may_go_to = |bytes: Range<u64>| {
                if bytes.start == asked.start || held.as_ref().is_some_and(|write| write.covers(&bytes)) {
                    return true;
                }
                is_piece = !self.is_wrong_end(file, generation, (asked.start, is_direct), bytes.start);
                if is_piece {
                    return false;
                }
                held = self.page_cache.try_begin_direct(file, bytes.clone());
                waits_for = held.is_none().then_some(bytes);
                held.is_some()
            };
            match (self.fs.append_where(file, data.into(), options, &mut may_go_to), waits_for) {
                (Err(Error::WouldWait), Some(bytes)) => {
                    may_wait()?;
                    held = Some(self.page_cache.begin_direct(file, bytes));
                }
                (Err(Error::WouldWait), None) if is_piece => {
                    return self.fs.write(file, asked.start, data, options).map(|done| (done, None));
                }
                (appended, _) => {
                    let (done, end) = appended?;
                    if end - done as u64 == asked.start {
                        return Ok((done, None));
                    }
                    if let (Some(noted), Ok((size, generation))) = (&self.beside, self.fs.size_and_generation(file)) {
                        noted.is_moved(file, size, generation); // before the reply: the kernel holds its next one back until then
                    }
                    // Until its pages are dropped, what the kernel has there may come back.
                    let asked = self.page_cache.begin_direct(file, asked); // waits for WRITEs that are here already
                    return Ok((done, Some(held.into_iter().chain([asked]).collect())));
                }
            }
        }
    }

    /// Without a cache of its entries ([BS1], [PRI1] of `private.rs`). Otherwise the kernel opens directories by itself from then on and may cache their entries
    /// ([DO1]).
    pub(crate) fn opendir(&self, reply: Reply<'_>) {
        if self.beside.is_some() || self.private.checks_opens() {
            reply.open(tandemfs_wire::Opened { handle: 0, flags: tandemfs_wire::OpenFlags::default() });
        } else {
            reply.error(tandemfs_wire::Errno::ENOSYS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;
    use crate::mutant::is_caught;
    use crate::notes::{NOTES_MAX, SHARDS};

    const FILE: InodeNumber = InodeNumber::new(7);
    const HELD: fn(InodeNumber) -> bool = |_| true;
    const NOT_HELD: fn(InodeNumber) -> bool = |_| false;

    #[test]
    fn a_note_costs_one_drop() {
        let (noted, drops) = (Noted::default(), AtomicUsize::new(0));
        let settle = |file| {
            noted.settle(file, || {
                drops.fetch_add(1, SeqCst);
            })
        };
        settle(FILE);
        assert_eq!(drops.load(SeqCst), 0);
        noted.note(FILE, &HELD);
        settle(InodeNumber::new(8));
        assert_eq!(drops.load(SeqCst), 0);
        settle(FILE);
        settle(FILE);
        assert_eq!(drops.load(SeqCst), 1);
        noted.settle(FILE, || panic!("no note"));
        noted.note(FILE, &HELD);
        noted.settle(FILE, || noted.note(FILE, &HELD)); // a READ that came meanwhile
        settle(FILE);
        assert_eq!(drops.load(SeqCst), 2);
    }

    #[test]
    fn too_many_notes_count_for_every_file() {
        let noted = Noted::default();
        let of_one_shard = |index: usize| InodeNumber::new((index * SHARDS) as u64);
        (1..=NOTES_MAX + 1).for_each(|index| noted.note(of_one_shard(index), &HELD));
        let drops = AtomicUsize::new(0);
        for _ in 0..2 {
            noted.settle(of_one_shard(NOTES_MAX + 1), || {
                drops.fetch_add(1, SeqCst);
            });
        }
        assert_eq!(drops.load(SeqCst), 2);
    }

    #[test]
    fn a_second_reader_waits_until_the_pages_are_written_back() {
        let noted = Arc::new(Noted::default());
        noted.note(FILE, &HELD);
        let is_dropped = Arc::new(AtomicUsize::new(0));
        let (began, begins) = std::sync::mpsc::channel();
        let first = {
            let (noted, is_dropped) = (Arc::clone(&noted), Arc::clone(&is_dropped));
            std::thread::spawn(move || {
                noted.settle(FILE, || {
                    began.send(()).expect("somebody waits");
                    std::thread::sleep(Duration::from_millis(50));
                    is_dropped.store(1, SeqCst);
                });
            })
        };
        begins.recv().expect("it drops");
        noted.settle(FILE, || panic!("one drop is enough"));
        assert_eq!(is_dropped.load(SeqCst), 1);
        first.join().expect("no panic");
    }

    /// [BS5], [BS10]
    #[test]
    fn what_clients_reach_is_known_until_nobody_has_the_file() {
        let noted = Noted::default();
        assert_eq!(noted.end_by_clients(FILE, 1), 0);
        noted.change_begins(FILE, &HELD);
        noted.change_begins(FILE, &HELD);
        noted.change_ends(FILE, Some((100, 1)), 0);
        noted.forget(FILE, &NOT_HELD);
        assert_eq!(noted.end_by_clients(FILE, 1), u64::MAX, "one is under way still, and may change anything");
        assert!(!noted.have_clients_cut(FILE, 1));
        noted.change_ends(FILE, Some((50, 1)), 100);
        assert!(noted.have_clients_cut(FILE, 1) && !noted.have_clients_cut(FILE, 2), "it was 100 bytes long before");
        noted.forget(FILE, &HELD);
        assert_eq!((noted.end_by_clients(FILE, 1), noted.end_by_clients(InodeNumber::new(8), 1)), (100, 0));
        noted.forget(FILE, &NOT_HELD);
        assert_eq!(noted.end_by_clients(FILE, 1), 0);
    }

    /// [BS13]
    #[test]
    fn one_cut_behind_a_failed_direct_write_is_the_kernels() {
        let noted = Noted::default();
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(!noted.take_failed(FILE, 5, 4096), "no client has changed it");
        noted.change_begins(FILE, &HELD);
        noted.change_ends(FILE, Some((20_000, 1)), 0);
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(!noted.take_failed(FILE, 6, 4096) && !noted.take_failed(InodeNumber::new(8), 5, 4096));
        assert!(noted.take_failed(FILE, 5, 4096));
        assert!(!noted.take_failed(FILE, 5, 4096), "the next one is the program's");
        // Pieces of one call, in any order; the kernel knew an end within the first.
        for piece in [8192..12_288, 0..8192] {
            noted.direct_write_failed(FILE, 5, piece);
        }
        assert!(noted.take_failed(FILE, 5, 4096));
        noted.direct_write_failed(FILE, 5, 8192..12_288);
        assert!(!noted.take_failed(FILE, 5, 4096), "the kernel cuts off nothing there");
        // It knows the end, so that call let nothing grow: the cut is the program's.
        noted.note_read(FILE, &HELD);
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(!noted.take_failed(FILE, 5, 5000));
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(noted.take_failed(FILE, 5, 4096));
    }

    /// [BS5]
    #[test]
    fn a_direct_write_behind_a_cut_may_be_a_later_piece() {
        let noted = Noted::default();
        noted.change_begins(FILE, &HELD);
        noted.change_ends(FILE, Some((0, 1)), 10_000);
        assert!(noted.is_wrong_end(FILE, 1, (10_000, false), 0), "through the cache they come one after the other");
        assert!(!noted.is_wrong_end(FILE, 1, (10_000, true), 0));
        noted.change_begins(FILE, &HELD);
        assert!(noted.is_wrong_end(FILE, 1, (10_000, true), 20_000) && !noted.is_wrong_end(FILE, 1, (30_000, true), 20_000));
    }

    /// [BS5]: the kernel has known neither of the first two files, so it does not forget them.
    #[test]
    fn what_clients_reach_is_of_one_generation() {
        let noted = Noted::default();
        let change = |reached| {
            noted.change_begins(FILE, &HELD);
            noted.change_ends(FILE, reached, 0);
        };
        change(Some((100, 1)));
        assert_eq!(noted.end_by_clients(FILE, 2), 0);
        change(Some((10, 2)));
        assert_eq!(noted.end_by_clients(FILE, 2), 10, "not that of the file before");
        change(None);
        assert!(noted.0.of(FILE).lock().changed.is_empty());
    }

    /// [BS10]
    #[test]
    fn a_note_goes_with_the_last_who_has_the_file() {
        let noted = Noted::default();
        noted.note(FILE, &HELD);
        noted.forget(FILE, &HELD);
        assert!(!noted.is_settled(FILE) && noted.has_been_read(FILE));
        noted.forget(FILE, &NOT_HELD);
        assert!(noted.is_settled(FILE) && !noted.has_been_read(FILE));
    }

    /// [BS10]
    #[test]
    fn notes_of_files_that_nobody_has_make_room() {
        let of_one_shard = |index: usize| InodeNumber::new((index * SHARDS) as u64);
        for (is_held, reached) in [(NOT_HELD, 0), (HELD, u64::MAX)] {
            let noted = Noted::default();
            for file in (1..=NOTES_MAX + 1).map(of_one_shard) {
                noted.note_read(file, &is_held);
                noted.change_begins(file, &is_held);
                noted.change_ends(file, Some((100, 1)), 0);
            }
            let unknown = of_one_shard(NOTES_MAX + 9);
            assert_eq!(noted.end_by_clients(unknown, 1), reached, "nobody can be told apart where all stay");
            assert_eq!(noted.has_been_read(unknown), reached > 0);
            assert_eq!(noted.end_by_clients(of_one_shard(NOTES_MAX), 1), if reached > 0 { 100 } else { 0 });
        }
    }

    #[test]
    fn bugs_are_caught() {
        is_caught(Mutant::UnnotedBehindDrop, a_note_costs_one_drop);
        is_caught(Mutant::DroppingIsSettled, a_note_is_not_settled_where_nobody_waits);
        is_caught(Mutant::PiecesOutOfOrder, a_direct_write_behind_a_cut_may_be_a_later_piece);
        is_caught(Mutant::CutsForgotten, what_clients_reach_is_known_until_nobody_has_the_file);
        is_caught(Mutant::ChangesUnderWayIgnored, what_clients_reach_is_known_until_nobody_has_the_file);
        is_caught(Mutant::GenerationIgnored, what_clients_reach_is_of_one_generation);
        is_caught(Mutant::MappedPagesKept, pages_of_a_file_that_is_mapped_for_stores_are_dropped);
        is_caught(Mutant::MappedAskedBeforeNote, pages_of_a_file_that_is_mapped_for_stores_are_dropped);
    }

    /// [BS11]
    #[test]
    fn pages_of_a_file_that_is_mapped_for_stores_are_dropped() {
        for is_mapped in [true, false] {
            let (noted, drops) = (Noted::default(), std::cell::Cell::new(0));
            let asked = || {
                assert!(!noted.is_settled(FILE), "who maps it now sees that the kernel may get pages");
                is_mapped
            };
            noted.note_and_drop_mapped(FILE, &HELD, asked, || drops.set(drops.get() + 1));
            assert_eq!((drops.get(), noted.is_settled(FILE)), (u32::from(is_mapped), false));
        }
    }

    /// [BS14]
    #[test]
    fn small_files_are_left_to_the_mount_some_times() {
        let noted = Noted::default();
        assert!(!noted.leaves(FILE, || true));
        for _ in 0..2 {
            noted.note(FILE, &HELD);
            assert!((0..100).all(|_| noted.leaves(FILE, || false)), "a long file is");
            assert_eq!((0..100).filter(|_| noted.leaves(FILE, || true)).count(), usize::from(LEFT_MAX));
            noted.settle(FILE, || {});
            assert!(!noted.leaves(FILE, || true));
        }
    }

    /// [BS6]
    #[test]
    fn a_note_is_not_settled_where_nobody_waits() {
        let noted = Noted::default();
        assert!(noted.is_settled(FILE));
        noted.note(FILE, &HELD);
        assert!(!noted.is_settled(FILE) && noted.is_settled(InodeNumber::new(8)));
        noted.settle(FILE, || assert!(!noted.is_settled(FILE), "while pages are dropped"));
        assert!(noted.is_settled(FILE));
    }
}
