//! READ and WRITE: the requests for which the kernel's page cache and the file system must agree, and what they share with FALLOCATE and
//! COPY_FILE_RANGE (`range_requests.rs`) and with SETATTR.
//!
//! A request with a lock owner is *direct*: it bypasses the page cache (O_DIRECT, or a file opened with FOPEN_DIRECT_IO). Other READs fill
//! the cache; other WRITEs are written back from it (FUSE_WRITE_CACHE) or go through it (`write` in strict mode).
//!
//! [DR1] A WRITE goes to the offset that the kernel gave, also with O_APPEND. The kernel holds the inode lock and has chosen the end of
//!       file that it knows. With dirty pages in the write-back cache that end is behind the daemon's.
//! [DR2] A direct READ that reaches behind the daemon's end of file waits until the kernel has written back its dirty pages behind that
//!       end: only the kernel knows which bytes before its own end are holes.
//! [DR3] A WRITE is acknowledged when no cached page has older bytes ([PC1]–[PC3] of `page_cache.rs`, [OT1]–[OT4] of `overtaken.rs`).
//! [DR4] A mapping may have stored bytes behind the end of the file, in its last page; they must not appear when the file grows. A request
//!       that makes the file grow and does not touch that page waits until the kernel has dropped the page. During SETATTR the kernel
//!       allows no writeback of the file, so those bytes of the page are zeroed instead, if that can be ([OT7] of `overtaken.rs`).
//! [DR5] Dirty data of the write-back cache for which there is no space is lost, as on any file system with delayed allocation. The file
//!       keeps the size that programs saw, its pages are dropped, and the next `write` gets the error ([WR2] of `writers.rs`), as do
//!       `fsync` and `close`.

use std::ops::Range;
use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Attributes, Error, Kept, OnBehalf, ReadOptions, Result, SetAttributes, WriteOptions};
use tandemfs_vfs::keeps_set_group_id_for_its_group;
use tandemfs_wire::{self as wire, ParkedReply, Reply, Request};

use crate::attributes::{inode, shown};
use crate::caller::Caller;
use crate::door::{Door, errno};
use crate::overtaken::ReadAgain;
use crate::page_cache::{DirectWrite, PAGE_BYTES, READ_HOLDS, WRITE_HOLDS, WritingBack, page_of};
use crate::settings::Mode;

/// The kernel's largest file size.
const END_OF_FILES: u64 = i64::MAX as u64;

/// The path by which the bytes of a WRITE come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Bypassing the page cache.
    Direct,
    /// Writeback of pages that a cached `write` or a mapping made dirty.
    FromCache,
    /// A `write` that also changes the cached page.
    Through,
}

/// A WRITE without its bytes.
#[derive(Debug, Clone, Copy)]
struct Write {
    unique: u64,
    node: u64,
    /// The thread that writes, as the kernel calls it here; 0 if unknown.
    thread: u32,
    offset: u64,
    length: u64,
    way: Way,
    options: WriteOptions,
    /// Only reserved space is left, and the writer may not use it.
    bound_by_reserve: bool,
    /// Its descriptor has O_APPEND, on a mount with clients beside it ([BS5] of `beside.rs`).
    appends: bool,
    /// The write clears a set-group-id bit that `kill_set_id` leaves.
    kill_set_group_id: bool,
}

impl Write {
    fn bytes(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// A WRITE that has changed the file and is not acknowledged.
struct Wrote {
    bytes: usize,
    pages: Pages,
}

/// What is to be done about the page cache.
enum Pages {
    /// Nothing.
    Right,
    Stale(Stale),
    /// All are dropped, as the bytes went elsewhere ([BS5] of `beside.rs`), where they are in progress.
    Moved(Vec<DirectWrite>),
}

/// What of the page cache may be older than a WRITE ([DR3]).
enum Stale {
    /// What a direct WRITE finds noted; it is still in progress.
    Noted(DirectWrite),
    /// Pages of a WRITE through the page cache that were dropped and read again.
    ReadAgain(ReadAgain),
}

impl Door {
    /// `direct`: the flags of the open file, if the READ bypasses the page cache.
    pub(crate) fn read(self: &Arc<Self>, request: &Request<'_>, offset: u64, size: u32, direct: Option<u32>, reply: Reply<'_>) {
        let (node, unique) = (request.node, request.unique);
        let (file, size) = (inode(node), size.min(self.request_bytes_max));
        let bytes = offset..offset.saturating_add(size.into());
        if let Some(flags) = direct {
            let behind = self.cached_behind_the_end(file, bytes.end);
            let kept = if flags.cast_signed() & libc::O_DIRECT == 0 { Kept::Here } else { Kept::Nowhere };
            return self.after_drop(file, behind, reply, move |door, reply| door.read_now(node, offset, size, kept, reply)); // [DR2]
        }
        self.note_pages(file); // [BS3]
        self.kernel.overtaken.read_begins(file, &bytes, unique); // [OT1]
        self.page_cache.note(file, bytes, READ_HOLDS); // [PC1]
        let kept = if self.may_come_back(file, size) { Kept::ToCompare } else { Kept::Nowhere };
        self.read_now(node, offset, size, kept, reply);
    }

    fn read_now(&self, node: u64, offset: u64, size: u32, kept: Kept, reply: Reply<'_>) {
        let options = ReadOptions { kept };
        reply.fill(size as usize, |buffer| {
            self.fs.read_with(inode(node), offset, buffer, options).map_err(|error| self.failed("read", node, &error))
        });
    }

    pub(crate) fn write(self: &Arc<Self>, request: &Request<'_>, given: &wire::Write<'_>, reply: Reply<'_>) {
        let (node, offset, data) = (request.node, given.offset, given.data);
        let way = match given.lock_owner {
            _ if given.from_cache => Way::FromCache,
            Some(_) => Way::Direct,
            None => Way::Through,
        };
        let options = write_options(self.mode, given);
        // For writeback the writer is unknown. The request that dirtied the page has already been checked.
        let by_writer = way != Way::FromCache;
        let write = Write {
            unique: request.unique,
            node,
            thread: if by_writer { request.pid } else { self.writers.thread_of(inode(node)) },
            offset,
            length: data.len() as u64,
            way,
            options,
            appends: self.beside.is_some() && way != Way::FromCache && given.flags.cast_signed() & libc::O_APPEND != 0,
            bound_by_reserve: by_writer && self.is_bound_by_reserve(request),
            kill_set_group_id: by_writer && options.kill_set_id && self.loses_set_group_id(request, inode(node)).unwrap_or(false),
        };
        let held = self.begin(&write);
        match self.park_for(self.tail_before(&write, held.as_ref()), reply) {
            Err(reply) => self.write_now(write, held, data, reply),
            Ok((tail, parked)) => {
                let (door, caller, data) = (Arc::clone(self), OnBehalf::current(), data.to_vec());
                let answer = move || {
                    door.kernel.drop_pages(inode(node), tail); // [DR4]
                    caller.run(|| parked.finish(|reply| door.write_now(write, held, &data, reply)));
                };
                self.at_once(answer);
            }
        }
    }

    fn write_now(self: &Arc<Self>, write: Write, held: Option<DirectWrite>, data: &[u8], reply: Reply<'_>) {
        let first = self.put(&write, data, held);
        let again = || {
            let data = data.to_vec();
            move |door: &Self| door.put(&write, &data, door.begin(&write))
        };
        let finish = move |door: &Arc<Self>, result, reply: Reply<'_>| door.wrote(&write, result, reply);
        match write.way {
            Way::FromCache => self.or_with_returned_space_in_any_case(first, again, reply, finish),
            Way::Direct | Way::Through => self.or_with_returned_space(first, again, reply, finish),
        }
    }

    /// Begins a direct WRITE ([PC3]).
    fn begin(&self, write: &Write) -> Option<DirectWrite> {
        (write.way == Way::Direct).then(|| self.page_cache.begin_piece(inode(write.node), write.bytes()))
    }

    /// Changes the file. What may be older in the page cache then is not dropped yet.
    fn put(&self, write: &Write, data: &[u8], held: Option<DirectWrite>) -> Result<Wrote> {
        let (bytes, moved) = self.fs.for_caller(write.thread, || self.put_bytes(write, data, held.as_ref()))?;
        if let Some(moved) = moved {
            return Ok(Wrote { bytes, pages: Pages::Moved(held.into_iter().chain(moved).collect()) });
        }
        let stale = match held {
            Some(held) => held.must_drop().then_some(Stale::Noted(held)),
            None if write.way == Way::Through => {
                let written = write.offset..write.offset + bytes as u64;
                self.kernel.overtaken.written(inode(write.node), &written, write.unique).map(Stale::ReadAgain) // [OT2]
            }
            None => None,
        };
        Ok(Wrote { bytes, pages: stale.map_or(Pages::Right, Pages::Stale) })
    }

    /// How many bytes were written, and registrations if they went to another place.
    fn put_bytes(&self, write: &Write, data: &[u8], held: Option<&DirectWrite>) -> Result<(usize, Option<Vec<DirectWrite>>)> {
        let file = inode(write.node);
        if write.bound_by_reserve {
            self.leaves_reserve(file, write.offset, write.length)?;
        }
        if write.way != Way::FromCache {
            self.fs.kill_capabilities(file)?;
        }
        if write.kill_set_group_id {
            self.fs.set_attributes(file, &SetAttributes { kill_set_group_id: true, ..SetAttributes::default() })?;
        }
        if write.way != Way::Direct {
            self.note_pages(file); // [BS3]
            self.page_cache.note(file, write.bytes(), WRITE_HOLDS); // [PC1]
        } else if write.appends {
            self.tell_sizes_of(file);
        }
        if write.appends {
            // Past the cache the kernel sends the pieces of a long append at once.
            let is_alone = write.way == Way::Through || write.length < u64::from(self.request_bytes_max);
            if self.goes_to_the_end(file, write.offset, is_alone, held)? {
                return self.append(file, (write.bytes(), write.way == Way::Direct), data, write.options);
            }
        }
        if write.way != Way::FromCache {
            return self.fs.write(file, write.offset, data, write.options).map(|bytes| (bytes, None));
        }
        let writing_back = self.page_cache.begin_writing_back(file, write.bytes()); // [PC3]
        for part in writing_back.parts() {
            let mut at = part.start;
            // The kernel ignores short writes during writeback, so everything must be written.
            while at < part.end {
                let rest = &data[(at - write.offset) as usize..(part.end - write.offset) as usize];
                at += self.fs.write(file, at, rest, write.options)? as u64;
            }
        }
        Ok((data.len(), None))
    }

    fn wrote(self: &Arc<Self>, write: &Write, result: Result<Wrote>, reply: Reply<'_>) {
        let (file, bytes) = (inode(write.node), write.bytes());
        let (written, pages) = match result {
            Ok(wrote) => (wrote.bytes as u32, wrote.pages),
            Err(error) => {
                match (write.way, &self.beside) {
                    (Way::FromCache, _) => self.lost(write, &error),
                    (Way::Direct, Some(noted)) => noted.direct_write_failed(file, write.thread, bytes.clone()),
                    _ => {}
                }
                return reply.error(self.failed("write", write.node, &error));
            }
        };
        let stale = match pages {
            Pages::Right => return reply.written(written),
            Pages::Moved(held) => return self.wrote_elsewhere(write, held, written, reply),
            Pages::Stale(stale) => stale,
        };
        let door = Arc::clone(self);
        let drop_stale = move || match stale {
            Stale::Noted(held) => {
                door.kernel.drop_pages(file, bytes); // [PC2]
                drop(held);
            }
            Stale::ReadAgain(again) => door.kernel.drop_read_again(file, &again),
        };
        match reply.try_park() {
            Ok(parked) => {
                let answer = move || {
                    drop_stale();
                    parked.finish(|reply| reply.written(written));
                };
                self.at_once(answer);
            }
            Err(reply) => {
                // [LT3] of `later.rs`: acknowledged before the pages are dropped. A direct WRITE stays registered until then.
                self.pages.push(drop_stale);
                reply.written(written);
            }
        }
    }

    /// Answers a WRITE that went behind what clients have written ([BS5]).
    fn wrote_elsewhere(self: &Arc<Self>, write: &Write, held: Vec<DirectWrite>, written: u32, reply: Reply<'_>) {
        let (file, bytes, door) = (inode(write.node), write.bytes(), Arc::clone(self));
        let whole_pages = page_of(bytes.start.saturating_add(PAGE_BYTES - 1))..page_of(bytes.end);
        // It may wait for a page of the next WRITE, so nothing that answers one may be behind it.
        let drop_all = move || {
            let kernel = door.kernel.clone();
            let drop_all = move || {
                kernel.drop_pages(file, 0..END_OF_FILES);
                drop(held);
            };
            door.at_once(drop_all);
        };
        let parked = if write.way == Way::Through && !whole_pages.is_empty() { reply.try_park() } else { Err(reply) };
        match parked {
            Ok(parked) => {
                let kernel = self.kernel.clone();
                let answer = move || {
                    kernel.drop_unlocked_pages(file, whole_pages);
                    parked.finish(|reply| reply.written(written));
                    drop_all();
                };
                self.at_once(answer);
            }
            Err(reply) => {
                drop_all();
                reply.written(written);
            }
        }
    }

    /// What drops pages, and what answers requests for whose pages a drop may wait ([LT5] of `later.rs`).
    fn at_once(&self, job: impl FnOnce() + Send + 'static) {
        self.kernel.dropping.run(job);
    }

    /// Handles failed writeback ([DR5]).
    fn lost(self: &Arc<Self>, write: &Write, error: &Error) {
        let (file, bytes) = (inode(write.node), write.bytes());
        if let Err(error) = self.fs.grow_over(file, bytes.end) {
            tracing::warn!(inode = file.get(), "the size that programs saw of a file cannot be kept: {error}");
        }
        self.writers.lost(file, errno(error));
        let door = Arc::clone(self);
        self.pages.push(move || door.kernel.drop_pages(file, bytes));
    }

    /// The range behind the daemon's end of file in which the kernel may have dirty pages, if a direct READ reaches behind that end
    /// ([DR2]).
    fn cached_behind_the_end(&self, file: InodeNumber, end: u64) -> Option<Range<u64>> {
        if !self.caches_writes() || !self.writers.contains(file) {
            return None;
        }
        let size = self.fs.size(file).ok()?;
        (end > size).then(|| page_of(size)..END_OF_FILES)
    }

    /// The pages to drop before a WRITE that makes a file grow ([DR4]): from the page of the old end up to the first page that the WRITE
    /// touches.
    fn tail_before(&self, write: &Write, held: Option<&DirectWrite>) -> Option<Range<u64>> {
        if write.way == Way::FromCache {
            return None;
        }
        let size = self.fs.size(inode(write.node)).ok()?;
        if write.offset <= size || held.is_some_and(|held| held.follows_from(size)) {
            return None;
        }
        let tail = self.tail(size)?;
        let tail = tail.start..tail.end.min(page_of(write.offset));
        (!tail.is_empty()).then_some(tail)
    }

    /// Where pages may hold bytes behind the end of a file. With the write-back cache the kernel's end may be anywhere behind the daemon's.
    pub(crate) fn tail(&self, size: u64) -> Option<Range<u64>> {
        let first = page_of(size);
        if self.caches_writes() { Some(first..END_OF_FILES) } else { (first < size).then(|| first..first + PAGE_BYTES) }
    }

    /// Continues after pages were dropped; at once if there are none to drop.
    pub(crate) fn after_drop(
        self: &Arc<Self>,
        file: InodeNumber,
        pages: Option<Range<u64>>,
        reply: Reply<'_>,
        go_on: impl FnOnce(&Arc<Self>, Reply<'_>) + Send + 'static,
    ) {
        match self.park_for(pages, reply) {
            Err(reply) => go_on(self, reply),
            Ok((pages, parked)) => {
                let (door, caller) = (Arc::clone(self), OnBehalf::current());
                self.pages.push(move || {
                    door.kernel.drop_pages(file, pages);
                    caller.run(|| parked.finish(|reply| go_on(&door, reply)));
                });
            }
        }
    }

    /// Parks a reply that has to wait for pages. An error returns the reply, which continues at once ([LT3] of `later.rs`).
    fn park_for<'r>(&self, pages: Option<Range<u64>>, reply: Reply<'r>) -> std::result::Result<(Range<u64>, ParkedReply), Reply<'r>> {
        match pages {
            None => Err(reply),
            Some(pages) => reply.try_park().map(|parked| (pages, parked)),
        }
    }

    /// Replies to a SETATTR that may have made a file grow from size `before` ([DR4]).
    /// Meanwhile clients change nothing in the rest of that page, and the kernel has no pages of the file dropped ([OT6] of `overtaken.rs`).
    pub(crate) fn reply_resized(self: &Arc<Self>, before: Option<(u64, WritingBack)>, attributes: Attributes, reply: Reply<'_>) {
        // With the write-back cache the kernel's end may be behind the daemon's; only the kernel knows where the bytes behind that end
        // begin.
        let file = attributes.inode;
        let tail = before.filter(|_| !self.caches_writes()).and_then(|(size, changing)| {
            let end = attributes.size.min(size.next_multiple_of(PAGE_BYTES));
            let filling = (end > size).then(|| self.kernel.overtaken.begin_filling(file, &|file| self.fs.is_held(file))).flatten()?;
            let own = |part: &Range<u64>| part.start.max(size)..part.end.min(end);
            Some((changing.parts().iter().map(own).filter(|part| !part.is_empty()).collect::<Vec<_>>(), changing, filling))
        });
        let told = |door: &Self, attributes: &Attributes, reply: Reply<'_>| {
            reply.attributes(&shown(attributes), door.valid_after_setattr(attributes));
        };
        let Some((parts, changing, filling)) = tail else { return told(self, &attributes, reply) };
        match reply.try_park() {
            Err(reply) => told(self, &attributes, reply),
            Ok(parked) => {
                let door = Arc::clone(self);
                let answer = move || {
                    door.kernel.put_zeros(file, parts);
                    drop((changing, filling));
                    parked.finish(|reply| told(&door, &attributes, reply));
                };
                self.at_once(answer);
            }
        }
    }

    /// Whether the kernel keeps dirty pages of `write` (write-back cache).
    fn caches_writes(&self) -> bool {
        self.mode == Mode::Relaxed && !self.read_only
    }

    /// Whether a change by this caller clears the set-group-id bit of a file without group execute permission.
    pub(crate) fn loses_set_group_id(&self, request: &Request<'_>, file: InodeNumber) -> Result<bool> {
        let attributes = self.fs.attributes(file)?;
        Ok(keeps_set_group_id_for_its_group(attributes.mode) && !Caller::of(request).is_in_group(attributes.gid))
    }
}

/// Options of a WRITE. Writeback carries the flags of some opener, not of the writer. With the write-back cache the kernel sends timestamps
/// itself (RULES R20). Without it, writeback comes from mappings, and the file system sets their timestamps.
fn write_options(mode: Mode, given: &wire::Write<'_>) -> WriteOptions {
    WriteOptions {
        keep_times: given.from_cache && mode == Mode::Relaxed,
        append: false, // [DR1]
        kill_set_id: given.kill_suidgid,
        // Writeback sends whole pages, however few of their bytes have changed (ByteFS §4.6).
        compare: given.from_cache,
        // Past the page cache, and not because the program asked for that.
        kept: given.lock_owner.is_some() && given.flags.cast_signed() & libc::O_DIRECT == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_pages_change_no_times_with_the_write_back_cache() {
        let write = |from_cache, kill_suidgid| wire::Write {
            handle: 0,
            offset: 0,
            data: &[],
            flags: 0,
            from_cache,
            kill_suidgid,
            lock_owner: None,
        };
        let late = write_options(Mode::Relaxed, &write(true, false));
        assert!(late.keep_times && late.compare);
        let mapped = write_options(Mode::Strict, &write(true, false));
        assert!(!mapped.keep_times && mapped.compare);
        let direct = write_options(Mode::Relaxed, &write(false, false));
        assert!(!direct.keep_times && !direct.compare);
        assert!(write_options(Mode::Strict, &write(false, true)).kill_set_id);
    }
}
