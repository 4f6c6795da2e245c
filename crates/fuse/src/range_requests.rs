//! FALLOCATE and COPY_FILE_RANGE: requests that change a range of a file without bringing its bytes. The kernel's page cache and the file
//! system must agree about that range ([DR4] of `data_requests.rs`: stores of a mapping behind the end of a file).
//!
//! [RR1] A copy changes whole pages, up to the end of the file. The kernel drops every page that a copy touched, together with a mapping's
//!       stores in the rest of the page. On EXDEV the kernel copies parts of pages itself, by reading and writing.

use std::ops::Range;
use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{AllocateMode, Result, WriteOptions};
use tandemfs_vfs::allocate_mode;
use tandemfs_wire::{CopyFileRange, Errno, Reply, Request};

use crate::attributes::inode;
use crate::door::Door;
use crate::page_cache::{PAGE_BYTES, page_of};

/// Most bytes that one request copies.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// The common part of FALLOCATE and COPY_FILE_RANGE.
#[derive(Debug)]
struct Change {
    file: InodeNumber,
    offset: u64,
    length: u64,
    /// Only reserved space is left, and the caller may not use it.
    bound: bool,
    /// Pages to drop before the change.
    tail: Option<Range<u64>>,
    /// The bytes of the range become others.
    replaces: bool,
}

impl Door {
    pub(crate) fn allocate(self: &Arc<Self>, request: &Request<'_>, (offset, length): (u64, u64), mode: u32, reply: Reply<'_>) {
        // EOPNOTSUPP refuses this mode only; after ENOSYS the kernel would send no FALLOCATE at all.
        let Some(mode) = allocate_mode(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        let (node, file) = (request.node, inode(request.node));
        let bound = mode != AllocateMode::Punch && self.is_bound_by_reserve(request);
        let grows = matches!(mode, AllocateMode::Allocate { keep_size: false } | AllocateMode::Zero { keep_size: false });
        let tail = if grows { self.tail_before_growth(file, offset.saturating_add(length)) } else { None };
        let allocate = move |door: &Self| door.fs.allocate(file, offset, length, mode);
        let replaces = !matches!(mode, AllocateMode::Allocate { .. });
        let change = Change { file, offset, length, bound, tail, replaces };
        self.change(
            change,
            allocate,
            move |()| length,
            reply,
            move |door, result, reply| door.reply_empty("fallocate", node, result, reply),
        );
    }

    /// Before the request the kernel has written back both files from the start of their ranges; afterwards it drops its pages of the
    /// target. One request copies a bounded part, so that the caller can be killed; callers must continue after a short copy anyway.
    pub(crate) fn copy(self: &Arc<Self>, request: &Request<'_>, copy: &CopyFileRange, reply: Reply<'_>) {
        if copy.flags != 0 {
            return reply.error(Errno::EINVAL);
        }
        let (from, from_offset) = (inode(request.node), copy.offset);
        let (node, file, offset) = (copy.target, inode(copy.target), copy.target_offset);
        let length = match self.whole_pages((from, from_offset), (file, offset), copy.length.min(COPY_BYTES_MAX)) {
            Ok(Some(length)) => length,
            Ok(None) => return reply.error(Errno::EXDEV), // [RR1]
            Err(error) => return reply.error(self.failed("copy_file_range", node, &error)),
        };
        let bound = self.is_bound_by_reserve(request);
        let tail = if self.fs.size(file).is_ok_and(|size| offset > size) { self.tail_before_growth(file, offset) } else { None };
        let copy = move |door: &Self| door.fs.copy_range((from, from_offset), (file, offset), length, WriteOptions::default());
        let change = Change { file, offset, length, bound, tail, replaces: true };
        self.change(
            change,
            copy,
            |copied| *copied,
            reply,
            move |door, result, reply| match result {
                Ok(copied) => reply.copied(copied),
                Err(error) => reply.error(door.failed("copy_file_range", node, &error)),
            },
        );
    }

    /// Changes a range of a file: drops pages first, enforces the reserve, and retries when space is returned. `changed` says how many bytes from the start
    /// of the range it has replaced.
    fn change<T: Send + 'static>(
        self: &Arc<Self>,
        Change { file, offset, length, bound, tail, replaces }: Change,
        change: impl Fn(&Self) -> Result<T> + Copy + Send + 'static,
        changed: impl FnOnce(&T) -> u64 + Send + 'static,
        reply: Reply<'_>,
        finish: impl FnOnce(&Arc<Self>, Result<T>, Reply<'_>) + Send + 'static,
    ) {
        let change = move |door: &Self| {
            if bound {
                door.leaves_reserve(file, offset, length)?;
            }
            change(door)
        };
        self.after_drop(file, tail, reply, move |door, reply| {
            // [PC4]: what mappings have stored since the kernel wrote the range back does not come over it.
            let mut held = replaces.then(|| door.page_cache.begin_change(file, offset..offset.saturating_add(length)));
            door.or_with_returned_space(
                change(door),
                || change,
                reply,
                move |door, result, reply| {
                    if let (Some(held), Ok(done)) = (&mut held, &result) {
                        held.has_replaced(offset..offset.saturating_add(changed(done)));
                    }
                    finish(door, result, reply);
                    drop(held);
                },
            );
        });
    }

    /// How much of a copy changes no page that also holds other bytes of the target; `None` if its first page does ([RR1]).
    fn whole_pages(
        &self,
        (from, from_offset): (InodeNumber, u64),
        (to, to_offset): (InodeNumber, u64),
        length: u64,
    ) -> Result<Option<u64>> {
        let length = length.min(self.fs.size(from)?.saturating_sub(from_offset));
        // The kernel has written back the pages of the range, so the daemon's end is not before any byte in them.
        let (end, size) = (to_offset.saturating_add(length), self.fs.size(to)?);
        if length == 0 {
            return Ok(Some(0));
        }
        if !to_offset.is_multiple_of(PAGE_BYTES) && page_of(to_offset) < size {
            return Ok(None);
        }
        if end.is_multiple_of(PAGE_BYTES) || end >= size {
            return Ok(Some(length));
        }
        let length = page_of(end).saturating_sub(to_offset);
        Ok((length > 0).then_some(length))
    }

    /// The pages to drop before a file grows to `end` by a request that does not touch its last page ([DR4]).
    fn tail_before_growth(&self, file: InodeNumber, end: u64) -> Option<Range<u64>> {
        let size = self.fs.size(file).ok()?;
        if end > size { self.tail(size) } else { None }
    }
}
