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
//! [BS14] A client may want reads of a noted file left to the mount. Those of a small file are left four times at most. Then its pages are dropped, and the
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
//!       offset is behind the end of a file that a client has made shorter, unless the WRITE is a direct one. That may be a piece of a call whose earlier
//!       pieces are still on their way: it goes to its offset, and may leave a hole. The decision is made once more under the lock of the range: the end may be behind
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
//!        reached behind. So a SETATTR of the size changes nothing, if clients have changed the file and the same thread sends it within a second. The size has
//!        to be where that call began. Where the kernel is told no sizes ([BS7]), it may be anything that the call would have written. The SETATTR of an
//!        ftruncate(2) looks alike, and one that comes first is taken for it. A WRITE that begins behind the end that the kernel knows is not covered.
//! [BS12] An fsync of the mount makes such stores durable as well: where they have to be flushed, the daemon answers it instead of the kernel. It then
//!       also makes the times of stores under leases durable; an fdatasync does not.
//! [BS10] A note about a file goes only when nobody has the file any more ([NT1] of `notes.rs`): the kernel has no pages of a file that it has
//!       forgotten. A LOOKUP counts before it reads the attributes that it replies, so what changes from then on is noted.
//! [BS9] Bytes that clients know are revoked after a file was noted: nothing of a noted file is given to be kept, so from then on they ask.
//! [BS8] The kernel keeps an inode that it was told of until it drops the name, and the file system keeps the space of one that the kernel
//!       has. So it is told of names that a client took away, afterwards and by a thread that serves nothing; until then their space is as
//!       that of a file that is open.

use std::ops::Range;
use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, Result, WriteOptions, may_wait};
use tandemfs_vfs::{Caches, Change};
use tandemfs_wire::Reply;

use crate::door::Door;
use crate::noted::SMALL_BYTES_MAX;
use crate::page_cache::DirectWrite;

const END_OF_FILES: u64 = i64::MAX as u64;

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
        let is_small = || self.fs.size(file).is_ok_and(|size| size <= SMALL_BYTES_MAX);
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
