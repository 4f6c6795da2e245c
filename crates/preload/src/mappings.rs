//! Ranges of files that this process has mapped by the door ([PRL20] of `lib.rs`).
//!
//! An entry is *none -(mmap)-> mapped -(munmap of all of it)-> none*, or *mapped -(a fork, mremap, mprotect, other credentials)-> the mount's*, if it is for
//! loads. Addresses that are given back in part stay reserved until all are, so that nobody else has them when the entry is unmapped as a whole.
//!
//! The table is locked with signals blocked, for the time of some system calls, by a lock that knows its owner: what the client library maps and
//! unmaps meanwhile goes on to the kernel. Who changes the table is inside, so that nobody does while the process forks.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use tandemfs_client::{Crossed, Errno, Error, Mapping, Result, Why};

use crate::descriptions::{self, Description};
use crate::inside::{Inside, Within};
use crate::mutant::{Mutant, on};
use crate::report::Call;
use crate::settings;
use crate::sys::{self, Signals};
use crate::{door, files};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Flags of mmap(2) that change nothing for memory, besides MAP_SHARED.
const IGNORED: c_int = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_NONBLOCK;

/// A mapping.
struct Entry {
    addresses: Range<usize>,
    /// Where in the file it begins.
    offset: u64,
    /// What is still mapped of it, in order.
    left: Vec<Range<usize>>,
    /// Something else lies at some of the addresses.
    is_covered: bool,
    stores: bool,
    /// It never becomes the mount's.
    stays: bool,
    mapping: Mapping,
    /// What it is of, and the connection. None once that has ended, and in a forked child.
    open: Option<Arc<Description>>,
}

/// The mappings, and the thread that has them.
struct Table {
    owner: AtomicI32,
    entries: UnsafeCell<Vec<Entry>>,
}

// SAFETY: `entries` is used by the thread whose id is `owner`, alone.
unsafe impl Sync for Table {}

static TABLE: Table = Table { owner: AtomicI32::new(0), entries: UnsafeCell::new(Vec::new()) };
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The table, locked, with all signals blocked.
struct Locked {
    before: Signals,
}

impl Locked {
    /// None if the calling thread has it already.
    fn lock() -> Option<Self> {
        let (before, own) = (Signals::ALL.set(), sys::thread_id());
        while let Err(owner) = TABLE.owner.compare_exchange(0, own, Acquire, Relaxed) {
            // In a child that came about otherwise than by a fork that is watched, the owner may not be there.
            if owner == own || !door::is_own_process() {
                before.set();
                return None;
            }
            sys::pause();
        }
        Some(Self { before })
    }

    fn entries(&mut self) -> &mut Vec<Entry> {
        // SAFETY: this thread has the lock, and one value of this type, which is borrowed as long.
        unsafe { &mut *TABLE.entries.get() }
    }

    /// Entries without a page go; inside, as they ask the daemon.
    fn sweep(mut self) {
        let gone: Vec<Entry> = self.entries().extract_if(.., |entry| entry.left.is_empty()).collect();
        COUNT.store(self.entries().len(), Relaxed);
        drop(self);
        gone.into_iter().for_each(Entry::end);
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        TABLE.owner.store(0, Release);
        self.before.set();
    }
}

fn overlap(first: &Range<usize>, second: &Range<usize>) -> Range<usize> {
    first.start.max(second.start)..first.end.min(second.end)
}

/// Whole pages from an address on.
fn pages(start: usize, bytes: usize) -> Range<usize> {
    start..start.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

/// For the mount.
fn left<T>() -> Result<T> {
    Err(Error::Crossed(Crossed { why: Why::NotServed, argument: 0 }))
}

impl Entry {
    fn has(&self, range: &Range<usize>) -> bool {
        self.left.iter().any(|left| !overlap(left, range).is_empty())
    }

    /// The range is not its any more.
    fn give_up(&mut self, range: &Range<usize>) {
        let rest = |left: Range<usize>| [left.start..left.end.min(range.start), left.start.max(range.end)..left.end];
        self.left = std::mem::take(&mut self.left).into_iter().flat_map(rest).filter(|part| !part.is_empty()).collect();
    }

    /// Unmaps what is left, and tells the daemon.
    fn end(self) {
        match self.is_covered {
            true => self.mapping.replaced(), // the addresses around it stay reserved
            false => drop(self.mapping),
        }
    }

    /// Puts a mapping of the mount in its place; it is to be swept then.
    fn becomes_the_mounts(&mut self) -> Result<()> {
        let Some(open) = self.open.as_ref().filter(|_| !self.stays) else { return left() };
        let real: OwnedFd = open.file.descriptor()?;
        for part in &self.left {
            let offset = self.offset + (part.start - self.addresses.start) as u64;
            sys::map_shared_at(part.clone(), libc::PROT_READ, real.as_raw_fd(), offset)?;
        }
        descriptions::leave_to_mount(open.inode());
        (self.left, self.is_covered) = (Vec::new(), true);
        Ok(())
    }
}

/// Whether there are mappings.
#[inline]
pub(crate) fn are_there() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Whether some of these addresses are of mappings, for a caller that is not at work on them.
pub(crate) fn touches(start: usize, bytes: usize) -> bool {
    let range = pages(start, bytes);
    are_there() && Locked::lock().is_some_and(|mut locked| locked.entries().iter().any(|entry| entry.has(&range)))
}

/// Does something with the mappings that have some of these addresses, inside; none in another process.
fn with<T>(range: &Range<usize>, work: impl FnOnce(&mut [&mut Entry]) -> T) -> Option<T> {
    let _within = Within::enter()?;
    let mut locked = Locked::lock()?;
    let mut entries: Vec<_> = locked.entries().iter_mut().filter(|entry| entry.has(range)).collect();
    let done = work(&mut entries);
    drop(entries);
    locked.sweep();
    Some(done)
}

/// What is asked of mmap(2), where the door may do it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    offset: u64,
    bytes: usize,
    stores: bool,
}

impl Wanted {
    pub(crate) fn of(bytes: usize, (protection, flags): (c_int, c_int), offset: i64) -> Option<Self> {
        settings::get().filter(|settings| settings.stores)?;
        let is_of_memory = protection & !libc::PROT_WRITE == libc::PROT_READ && flags & !IGNORED == libc::MAP_SHARED;
        let offset = u64::try_from(offset).ok().filter(|offset| offset.is_multiple_of(PAGE as u64))?;
        (is_of_memory && bytes > 0).then_some(Self { offset, bytes, stores: protection & libc::PROT_WRITE != 0 })
    }
}

/// mmap(2) of a placeholder; none if the mount has to do it.
pub(crate) fn map(number: c_int, wanted: Wanted) -> Option<std::result::Result<usize, Errno>> {
    descriptions::by_shared(Call::Map, number, |open| {
        open.must_be_a_file()?;
        map_of(open, wanted)
    })
}

/// mmap(2) of a descriptor of the kernel's which refuses it, perhaps since the file was mapped for stores when it was opened, by this process or by
/// another one, as a child that has its mappings.
pub(crate) fn map_again(number: c_int, wanted: Wanted) -> Option<usize> {
    map_with_another(number, wanted).or_else(|| {
        let settings = settings::get()?;
        let inside = Inside::enter(settings).ok()?;
        let open = files::to_be_mapped(inside.door(), settings, number, wanted.stores)?;
        map_of(&open, wanted).ok()
    })
}

/// By the description of a mapping that this process has, with the rights of both.
fn map_with_another(number: c_int, wanted: Wanted) -> Option<usize> {
    if !are_there() {
        return None;
    }
    let _within = Within::enter()?;
    let inode = settings::get()?.mount.known(number)?.stx_ino;
    let access = sys::file_flags(number)? & libc::O_ACCMODE;
    let may = access == libc::O_RDWR || access == libc::O_RDONLY && !wanted.stores;
    let is_its = |open: &Arc<Description>| may && open.inode() == inode;
    let open = Locked::lock()?.entries().iter().find_map(|entry| entry.open.clone().filter(is_its))?;
    map_of(&open, wanted).ok()
}

fn map_of(open: &Arc<Description>, Wanted { offset, bytes, stores }: Wanted) -> Result<usize> {
    let (reads, writes) = open.rights();
    let size = open.file.attributes()?.size_bytes;
    let Some(end) = offset.checked_add(bytes as u64).map(|end| end.min(size)) else { return left() };
    // What is mapped behind the last page of a file becomes its when it grows, by the mount alone.
    let is_inside = offset < size && offset + bytes as u64 <= size.next_multiple_of(PAGE as u64);
    if !is_inside || !reads || stores && !writes {
        return left();
    }
    let mapped = if stores { open.file.map_writable(offset..end) } else { open.file.map(offset..end) };
    let mapping = match mapped {
        Ok(mapping) => mapping,
        Err(error @ Error::Errno(Errno::NOTCONN | Errno::PROTO)) => return Err(error),
        Err(_) => return left(),
    };
    let addresses = pages(mapping.as_ptr() as usize, (end - offset) as usize);
    let start = addresses.start;
    let entry = Entry {
        left: vec![addresses.clone()],
        addresses,
        offset,
        is_covered: false,
        stores,
        stays: false,
        mapping,
        open: Some(Arc::clone(open)),
    };
    let Some(mut locked) = Locked::lock() else { return left() };
    locked.entries().push(entry);
    COUNT.store(locked.entries().len(), Relaxed);
    Ok(start)
}

/// munmap(2) of addresses some of which are of mappings; `unmap` unmaps a part of them that is not, and returns what the kernel does.
pub(crate) fn unmap(start: usize, bytes: usize, unmap: impl Fn(usize, usize) -> isize) -> Option<std::result::Result<(), Errno>> {
    let range = pages(start, bytes);
    with(&range, |entries| {
        let mut others = vec![range.clone()];
        let mut parts = Vec::new();
        for entry in entries.iter_mut() {
            for part in entry.left.iter().map(|left| overlap(left, &range)).filter(|part| !part.is_empty()) {
                others = others
                    .into_iter()
                    .flat_map(|other| [other.start..other.end.min(part.start), other.start.max(part.end)..other.end])
                    .collect();
                parts.push(part);
            }
        }
        // First what the kernel may refuse.
        for other in others.into_iter().filter(|other| !other.is_empty()) {
            if let failed @ ..0 = unmap(other.start, other.end - other.start) {
                return Err(Errno::from_raw_os_error(-failed as i32));
            }
        }
        for part in parts {
            sys::reserve(part.clone())?;
            entries.iter_mut().filter(|entry| entry.has(&part)).for_each(|entry| entry.give_up(&part));
        }
        Ok(())
    })
}

/// A call of libc that puts something else at addresses some of which are of mappings.
pub(crate) fn covered(start: usize, bytes: usize, call: impl FnOnce() -> isize) -> Option<std::result::Result<isize, Errno>> {
    let range = pages(start, bytes);
    with(&range, |entries| match call() {
        -1 => Err(Errno::from_raw_os_error(sys::errno())), // what errno is here is lost at the end
        result => {
            entries.iter_mut().for_each(|entry| {
                entry.give_up(&range);
                entry.is_covered = true;
            });
            Ok(result)
        }
    })
}

/// What mremap(2) of a mapping comes to.
pub(crate) enum Moved {
    To(usize),
    Refused(Errno),
    /// It is the mount's now.
    ByKernel,
}

/// mremap(2) of addresses some of which are of mappings.
pub(crate) fn remap(start: usize, (bytes, new_bytes): (usize, usize), flags: c_int) -> Option<Moved> {
    let (range, new) = (pages(start, bytes), pages(start, new_bytes));
    if flags & !libc::MREMAP_MAYMOVE == 0 && bytes > 0 && new_bytes > 0 && new.end <= range.end {
        return unmap(new.end, range.end - new.end, |_, _| 0).map(|unmapped| match unmapped {
            Ok(()) => Moved::To(start),
            Err(error) => Moved::Refused(error),
        });
    }
    let found = with(&range, |entries| match entries {
        [entry] if entry.addresses == range && entry.left == [range.clone()] && flags == libc::MREMAP_MAYMOVE => {
            entry.open.clone().map(|open| (open, entry.offset, entry.stores))
        }
        _ => None,
    })?;
    if let Some((open, offset, stores)) = found {
        let within = Within::enter()?;
        let moved = map_of(&open, Wanted { offset, bytes: new_bytes, stores });
        drop(open);
        drop(within); // nobody enters twice
        if let Ok(moved) = moved {
            let _left_at_both_places = unmap(start, bytes, |_, _| 0);
            return Some(Moved::To(moved));
        }
    }
    with(&range, |entries| match leave_loads_to_mount(entries) {
        true => Moved::ByKernel,
        false => Moved::Refused(Errno::NOMEM),
    })
}

/// Mappings for loads become the mount's; false if one is for stores, or cannot.
fn leave_loads_to_mount(entries: &mut [&mut Entry]) -> bool {
    entries.iter_mut().all(|entry| !entry.stores && entry.becomes_the_mounts().is_ok())
}

/// Before a mapping for loads can be stored to, as its descriptor may allow.
pub(crate) fn before_stores(start: usize, bytes: usize) {
    with(&pages(start, bytes), |entries| {
        entries.iter_mut().filter(|entry| !entry.stores).for_each(|entry| {
            let _or_refused_by_the_kernel = entry.becomes_the_mounts();
        });
    });
}

/// msync(2) with MS_SYNC; whether all of the addresses are of mappings. An error is one of the memory.
pub(crate) fn sync(start: usize, bytes: usize) -> Option<std::result::Result<bool, Errno>> {
    let range = pages(start, bytes);
    with(&range, |entries| {
        let mut covered = 0;
        for entry in entries {
            for part in entry.left.iter().map(|left| overlap(left, &range)).filter(|part| !part.is_empty()) {
                covered += part.end - part.start;
                let from = (part.start - entry.addresses.start) as u64;
                let length = ((part.end - part.start) as u64).min(entry.mapping.length() - from);
                if entry.stores {
                    entry.mapping.sync(from, length).map_err(|_| Errno::IO)?;
                }
            }
        }
        Ok(covered == range.end - range.start)
    })
}

/// madvise(2) with MADV_REMOVE: a hole in the file, not in the drive.
pub(crate) fn punch(start: usize, bytes: usize) -> Option<Errno> {
    let range = pages(start, bytes);
    let flags = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).cast_unsigned();
    let found = with(&range, |entries| match entries {
        [entry] if entry.stores && entry.left.iter().any(|left| overlap(left, &range) == range) => {
            entry.open.clone().map(|open| (open, entry.offset + (range.start - entry.addresses.start) as u64))
        }
        _ => None,
    })?;
    let Some((open, offset)) = found else { return Some(Errno::ACCESS) };
    let within = Within::enter()?;
    let punched = open.file.allocate(flags, offset, (range.end - range.start) as u64);
    drop(open); // inside
    drop(within);
    match punched {
        Ok(()) => None,
        Err(Error::Errno(error)) => Some(error),
        Err(Error::Crossed(_)) => Some(Errno::OPNOTSUPP),
    }
}

/// Before this process locks a file, of which nothing may be closed afterwards: mappings of it for loads become the mount's. One that cannot, since the
/// file is mapped for stores, stays for good.
pub(crate) fn before_lock(inode: u64) {
    if on(Mutant::MappedWhenLocked) {
        return;
    }
    if let Some(_within) = Within::enter()
        && let Some(mut locked) = Locked::lock()
    {
        let is_its = |entry: &&mut Entry| !entry.stores && entry.open.as_ref().is_some_and(|open| open.inode() == inode);
        locked.entries().iter_mut().filter(is_its).for_each(|entry| entry.stays |= entry.becomes_the_mounts().is_err());
        locked.sweep();
    }
}

/// Before a fork: a child has the mappings for stores, and those for loads are the mount's ([PRL20]).
pub(crate) fn before_fork() {
    if are_there()
        && let Some(_within) = Within::enter()
    {
        before_fork_alone();
    }
}

/// As [`before_fork`], inside, or while nobody is there.
pub(crate) fn before_fork_alone() {
    if !are_there() || on(Mutant::MappingsNotInherited) {
        return;
    }
    if let Some(mut locked) = Locked::lock() {
        locked.entries().iter_mut().filter(|entry| !entry.stores).for_each(|entry| {
            let _or_not_there_in_the_child = entry.becomes_the_mounts();
        });
        locked.sweep();
    }
}

/// In a forked child: the connection is the parent's.
pub(crate) fn after_fork_in_child() {
    if !are_there() {
        return;
    }
    // Nobody was inside, and who only looked at the table is not here.
    TABLE.owner.store(0, Relaxed);
    let Some(mut locked) = Locked::lock() else { return };
    let (stores, loads): (Vec<Entry>, Vec<Entry>) = std::mem::take(locked.entries()).into_iter().partition(|entry| entry.stores);
    std::mem::forget(loads); // not in this child
    let inherited = stores.into_iter().map(|mut entry| {
        std::mem::forget(entry.open.take());
        entry.mapping.leave_connection();
        entry
    });
    locked.entries().extend(inherited);
    COUNT.store(locked.entries().len(), Relaxed);
}

/// Before the connection ends, while nobody is inside.
pub(crate) fn leave_connection() {
    before_fork_alone();
    if let Some(mut locked) = Locked::lock() {
        let open: Vec<_> = locked
            .entries()
            .iter_mut()
            .map(|entry| {
                entry.mapping.leave_connection();
                entry.open.take()
            })
            .collect();
        drop(open); // files are closed
    }
}
