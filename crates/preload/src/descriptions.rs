//! Open files of the door under numbers that the kernel knows as placeholders ([PRL12]–[PRL15] of `lib.rs`).
//!
//! A placeholder is a descriptor that can do nothing: O_PATH of the symbolic link `/proc/self`. A call that was missed fails (EBADF, ELOOP,
//! ENOTDIR) and reaches no file. Behind it is a description, which has the open file of the door and the offset. Numbers that `dup` and F_DUPFD
//! give share a description; what else would share it makes it real before.

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandemfs_client::{Crossed, Errno, Error, File, Result, Unless, Why};

use crate::code;
use crate::door::{self, Door};
use crate::inside::Within;
use crate::mutant::{Mutant, on};
use crate::outside;
use crate::report::{Call, Way, count};
use crate::sys;

/// Numbers below are those of standard input, output and error, which libc's streams have without a call that could be seen.
const NUMBERS_FROM: c_int = 3;
const NUMBERS: usize = 1024;
/// Files that are the mount's in this process: most of them, after which all are.
const FILES_OF_MOUNT_MAX: usize = 1024;

/// A file that is opened by the door and becomes real soon costs more than one of the mount. What closes as a placeholder counts one, what
/// becomes real so many against it, and below zero the next opens go by the mount: the more of them, the more often that has happened with nothing
/// closed as a placeholder meanwhile.
const COST_OF_REAL: i32 = 4;
const COST_OF_REAL_MAX: i32 = 64;
const SCORE: std::ops::RangeInclusive<i32> = -64..=32;
/// A program that closes one of the numbers below [`NUMBERS_FROM`] and opens files there does so again and again (touch).
const LOW_NUMBERS_MAX: u32 = 32;

/// Reads by the door of a file that is opened to be read alone ([PRL10] of `lib.rs`). Then it becomes real, and the kernel keeps its pages.
const READS_MAX: u32 = 32;

/// How a file was opened.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) inode: u64,
    /// Flags of open(2).
    pub(crate) flags: c_int,
    pub(crate) is_directory: bool,
    /// Few reads go by the door, and none of what the kernel has pages of.
    pub(crate) is_read_seldom: bool,
    /// The call has made the file.
    pub(crate) is_made: bool,
}

/// An open file of a program.
pub(crate) struct Description {
    pub(crate) file: Arc<File>,
    inode: u64,
    flags: c_int,
    is_directory: bool,
    /// Reads that are left to the door; of a file that is also written all are.
    reads_left: Option<AtomicU32>,
    /// Nothing from the moment on at which the descriptor is real.
    position: Mutex<Option<u64>>,
    /// By which descriptor and path it was opened.
    place: (c_int, CString),
    /// Its connection keeps its descriptors ([PRL6]) until the last file of it is closed.
    _door: Arc<Door>,
}

impl Description {
    /// Of a descriptor of the kernel's, opened anew by the path that the kernel has for it.
    pub(crate) fn of_kernels((file, door): (File, Arc<Door>), inode: u64, flags: c_int, path: CString) -> Arc<Self> {
        let (file, position, place) = (Arc::new(file), Mutex::new(None), (libc::AT_FDCWD, path));
        Arc::new(Self { file, inode, flags, is_directory: false, reads_left: None, position, place, _door: door })
    }

    /// O_APPEND: writes go to the end.
    pub(crate) fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Calls that the kernel answers for directories.
    pub(crate) fn must_be_a_file(&self) -> Result<()> {
        if self.is_directory { Err(Error::Crossed(Crossed { why: Why::NotServed, argument: 0 })) } else { Ok(()) }
    }

    /// Whether its bytes may be read, and be written.
    pub(crate) fn rights(&self) -> (bool, bool) {
        match self.flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            _ => (true, true),
        }
    }

    /// Before bytes are read by the door: where they are left to the mount.
    pub(crate) fn reads(&self) -> Result<Unless> {
        let Some(left) = &self.reads_left else { return Ok(Unless::default()) };
        match left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(Unless { cached: true, grows: false }),
            Err(_) => Err(Error::Crossed(Crossed { why: Why::Cached, argument: 0 })),
        }
    }

    /// A descriptor of the mount. It is opened by number, and the kernel knows in which directory the file is only if somebody has looked its name up:
    /// whoever watches that directory is told then ([PRL17]). Where the name is gone by now, or leads elsewhere, nothing is lost but that.
    fn real(&self) -> Result<OwnedFd> {
        if is_directory(self.place.0) && !on(Mutant::DirectoryKept) {
            let _or_not_told = become_real_if_free(self.place.0);
        }
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let arguments = [self.place.0 as usize, self.place.1.as_ptr() as usize, flags as usize, 0, 0];
        // SAFETY: the path ends with NUL.
        let looked_up = unsafe { sys::call(libc::SYS_openat, arguments) };
        let real = self.file.descriptor();
        if looked_up >= 0 {
            sys::close(looked_up as c_int);
        }
        real
    }
}

/// [PRL17]: whoever watches the file is told of its end by a descriptor of the kernel's.
impl Drop for Description {
    fn drop(&mut self) {
        if matches!(self.file.finish(), Err(Error::Crossed(_)))
            && let Ok(real) = self.real()
        {
            count(Call::Close, Way::Watched);
            sys::close(real.into_raw_fd());
        }
    }
}

/// By number.
static TABLE: Mutex<Vec<Option<Arc<Description>>>> = Mutex::new(Vec::new());
static TAKEN: [AtomicBool; NUMBERS] = [const { AtomicBool::new(false) }; NUMBERS];
/// Those of directories among them.
static DIRECTORIES: [AtomicBool; NUMBERS] = [const { AtomicBool::new(false) }; NUMBERS];
static COUNT: AtomicU32 = AtomicU32::new(0);
/// No more placeholders in this process.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Since some code calls the kernel by itself.
static HAS_OWN_CALLS: AtomicBool = AtomicBool::new(false);
static SAVED: AtomicI32 = AtomicI32::new(0);
/// So many opens are left to the mount without a look, since the next number is one that no placeholder can have.
static LOW_NUMBERS: AtomicU32 = AtomicU32::new(0);
static COST: AtomicI32 = AtomicI32::new(COST_OF_REAL);
/// Inodes that only the mount opens, since the kernel has more of them than bytes: mappings, locks, pages that it sends.
static FILES_OF_MOUNT: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// What a placeholder is, once the first is made.
static IDENTITY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that nobody knows yet.
pub(crate) struct Reserved(c_int);

impl Drop for Reserved {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// What a descriptor is, as long as it is a symbolic link.
fn identity(number: c_int) -> Option<[u64; 2]> {
    let found = sys::known(number, c"", libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW, libc::STATX_INO | libc::STATX_TYPE)?;
    let is_link = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFLNK;
    is_link.then(|| [libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino])
}

/// Whether the kernel has a placeholder of that number now ([PRL12]).
fn is_placeholder(number: c_int) -> bool {
    on(Mutant::PlaceholderNotAsked) || identity(number) == Some(IDENTITY.each_ref().map(|word| word.load(Relaxed)))
}

/// Takes a number for a file that is about to be opened, as open(2) would.
pub(crate) fn reserve(flags: c_int) -> std::result::Result<std::result::Result<Reserved, Errno>, Way> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | flags & libc::O_CLOEXEC;
    let arguments = [libc::AT_FDCWD as usize, c"/proc/self".as_ptr() as usize, flags as usize, 0, 0];
    // SAFETY: the path ends with NUL.
    let number = match unsafe { sys::call(libc::SYS_openat, arguments) } {
        number @ 0.. => Reserved(number as c_int),
        failed if failed == -(libc::EMFILE as isize) => return Ok(Err(Errno::MFILE)),
        _ => return Err(Way::NoNumber),
    };
    if number.0 < NUMBERS_FROM || number.0 as usize >= NUMBERS {
        LOW_NUMBERS.store(LOW_NUMBERS_MAX, Relaxed);
        return Err(Way::NoNumber);
    }
    let found = identity(number.0).ok_or(Way::NoNumber)?;
    let known = IDENTITY.each_ref().map(|word| word.load(Relaxed));
    if known[1] == 0 {
        IDENTITY.iter().zip(found).for_each(|(known, found)| known.store(found, Relaxed));
    } else if known != found {
        return Err(Way::NoNumber); // another procfs
    }
    Ok(Ok(number))
}

/// Whether the next file that a program opens may be a placeholder, as far as that is known without a look. `always`: whatever it costs.
pub(crate) fn may_try(always: bool) -> std::result::Result<(), Way> {
    if IS_OVER.load(Relaxed) {
        return Err(if HAS_OWN_CALLS.load(Relaxed) { Way::OwnCalls } else { Way::KernelNeeded });
    }
    if always {
        return Ok(());
    }
    match (SAVED.load(Relaxed), LOW_NUMBERS.load(Relaxed)) {
        (..0, _) => Err(Way::MostlyReal),
        (_, 1..) => Err(Way::NoNumber),
        _ => Ok(()),
    }
}

/// A file of the mount is opened without a look.
pub(crate) fn passes() {
    // Threads may lose changes of each other.
    if SAVED.load(Relaxed) < 0 {
        score(1);
    } else {
        LOW_NUMBERS.store(LOW_NUMBERS.load(Relaxed).saturating_sub(1), Relaxed);
    }
}

/// Whether the next file that a program opens may be a placeholder, as seen now. Inside.
pub(crate) fn may_open() -> std::result::Result<code::Moment, Way> {
    let moment = code::look();
    if moment == Err(Way::OwnCalls) {
        HAS_OWN_CALLS.store(true, Relaxed);
        are_no_more();
        all_real_alone(Way::OwnCalls);
    }
    moment
}

/// Before the calling thread loads code ([PRL16]).
pub(crate) fn before_loading() {
    if !on(Mutant::LoadedAmongPlaceholders)
        && let Some(_within) = Within::enter()
    {
        code::loading();
        all_real_alone(Way::Loads);
    }
}

/// In a child of a process that had threads: one that is not there may have the loader's lock, by which code is looked through.
pub(crate) fn no_more() {
    IS_OVER.store(true, SeqCst);
}

fn score(change: i32) {
    // Threads may lose changes of each other.
    SAVED.store((SAVED.load(Relaxed) + change).clamp(*SCORE.start(), *SCORE.end()), Relaxed);
}

/// Whether the kernel has more of a file than bytes.
pub(crate) fn is_of_mount(inode: u64) -> bool {
    locked(&FILES_OF_MOUNT).contains(&inode)
}

/// Only the mount opens a file from now on.
pub(crate) fn leave_to_mount(inode: u64) {
    let mut files = locked(&FILES_OF_MOUNT);
    if files.contains(&inode) {
        return;
    }
    if files.len() >= FILES_OF_MOUNT_MAX {
        IS_OVER.store(true, SeqCst);
        return;
    }
    files.push(inode);
}

/// A number has its file from now on, as a placeholder if there may be one still; inside. It may not where the kernel has got more of the file than
/// bytes since the look ([PRL14]), or where placeholders have ended: the mount opens the file then. Both are said under the lock that is held here, and
/// only then placeholders are looked for, so no open is missed. A file that the call has made stays: the mount would find that it exists.
pub(crate) fn add(
    number: Reserved,
    (file, door): (File, Arc<Door>),
    opening: Opening,
    (descriptor, path): (c_int, &CStr),
    moment: code::Moment,
) -> std::result::Result<c_int, Way> {
    let (file, position) = (Arc::new(file), Mutex::new(Some(0)));
    let Opening { inode, flags, is_directory, is_read_seldom, is_made } = opening;
    let reads_left = is_read_seldom.then(|| AtomicU32::new(READS_MAX));
    let place = (descriptor, path.to_owned());
    let description = Arc::new(Description { file, inode, flags, is_directory, reads_left, position, place, _door: door });
    if on(Mutant::OpensNotMet) {
        (0..20).for_each(|_| sys::pause()); // who locks the file, or ends placeholders, meets nobody
    }
    let files = locked(&FILES_OF_MOUNT);
    if (files.contains(&inode) || IS_OVER.load(SeqCst)) && !is_made && !on(Mutant::OpensNotMet) {
        return Err(Way::KernelNeeded); // [PRL14]
    }
    let (taken, before) = enter(number, description);
    drop(files);
    drop(before);
    fence(SeqCst);
    // Who loads code, or ends placeholders, has not met it.
    if (IS_OVER.load(SeqCst) || !code::is_as_at(moment)) && !on(Mutant::OpensNotMet) {
        counted(become_real(taken), Way::Loads);
    }
    Ok(taken)
}

/// A number has this description from now on; also what it had, which was closed past this library.
fn enter(number: Reserved, description: Arc<Description>) -> (c_int, Option<Arc<Description>>) {
    let mut table = locked(&TABLE);
    if table.is_empty() {
        table.resize(NUMBERS, None);
    }
    DIRECTORIES[number.0 as usize].store(description.is_directory, Relaxed);
    let before = table[number.0 as usize].replace(description);
    if before.is_none() {
        COUNT.fetch_add(1, Relaxed);
    }
    TAKEN[number.0 as usize].store(true, Relaxed);
    drop(table);
    let taken = number.0;
    std::mem::forget(number);
    (taken, before)
}

/// Another number, as dup(2) and F_DUPFD give it by their call of the kernel: it shares the description. None if the mount
/// has to do it.
pub(crate) fn share(number: c_int, duplicate: impl FnOnce() -> isize) -> Option<std::result::Result<c_int, Errno>> {
    if !is_taken(number) {
        return None;
    }
    let _within = Within::enter()?;
    let description = description(number)?;
    let position = locked(&description.position);
    (*position)?;
    let copy = match duplicate() {
        failed @ ..0 => return Some(Err(Errno::from_raw_os_error(-failed as i32))),
        copy => Reserved(copy as c_int),
    };
    if copy.0 < NUMBERS_FROM || copy.0 as usize >= NUMBERS {
        return None;
    }
    // Its offset is held, so the description is not becoming real meanwhile.
    let (copy, before) = enter(copy, Arc::clone(&description));
    drop(position);
    drop(before);
    count(Call::Duplicate, Way::Door);
    Some(Ok(copy))
}

/// The description of a placeholder of a directory; inside.
pub(crate) fn directory(number: c_int) -> Option<Arc<Description>> {
    description(number).filter(|description| description.is_directory)
}

/// Whether there may be placeholders of directories.
pub(crate) fn has_directories() -> bool {
    are_there() && numbers(0, u32::MAX).any(is_directory)
}

/// What is open of a directory becomes real; inside.
pub(crate) fn directory_becomes_real(inode: u64) {
    for number in numbers(0, u32::MAX).filter(|number| is_directory(*number)) {
        if description(number).is_some_and(|description| description.inode == inode) {
            counted(become_real(number), Way::RemovedDirectory);
        }
    }
}

/// Whether a number may be a placeholder of a directory.
#[inline]
pub(crate) fn is_directory(number: c_int) -> bool {
    is_taken(number) && DIRECTORIES[number as usize].load(Relaxed)
}

/// Whether there are placeholders.
pub(crate) fn are_there() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Whether there are no placeholders, and will not be any.
pub(crate) fn are_over() -> bool {
    IS_OVER.load(Relaxed) && !are_there()
}

/// Whether a number may be a placeholder.
#[inline]
pub(crate) fn is_taken(number: c_int) -> bool {
    usize::try_from(number).ok().and_then(|number| TAKEN.get(number)).is_some_and(|taken| taken.load(Relaxed))
}

fn take(table: &mut [Option<Arc<Description>>], number: c_int) -> Option<Arc<Description>> {
    let description = table.get_mut(usize::try_from(number).ok()?)?.take()?;
    TAKEN[number as usize].store(false, Relaxed);
    COUNT.fetch_sub(1, Relaxed);
    Some(description)
}

/// The description of a number, if the kernel has a placeholder there; inside.
fn description(number: c_int) -> Option<Arc<Description>> {
    let mut table = locked(&TABLE);
    let found = table.get(usize::try_from(number).ok()?)?.clone()?;
    if is_placeholder(number) {
        return Some(found);
    }
    let _closed_past_us = take(&mut table, number);
    drop(table);
    None
}

/// A call by a placeholder; none if the number is none, or is real now: then the kernel serves the call.
pub(crate) fn by<T>(call: Call, number: c_int, work: impl FnOnce(&Description) -> Result<T>) -> Option<std::result::Result<T, Errno>> {
    if !is_taken(number) {
        return None;
    }
    let _within = Within::enter()?;
    let description = description(number)?;
    answered(call, &[number], work(&description))
}

/// As [`by`], for work that keeps the description.
pub(crate) fn by_shared<T>(
    call: Call,
    number: c_int,
    work: impl FnOnce(&Arc<Description>) -> Result<T>,
) -> Option<std::result::Result<T, Errno>> {
    if !is_taken(number) {
        return None;
    }
    let _within = Within::enter()?;
    let description = description(number)?;
    answered(call, &[number], work(&description))
}

/// As [`by`], of two different descriptions, which become real together.
pub(crate) fn by_two<T>(
    call: Call,
    numbers: [c_int; 2],
    work: impl FnOnce(&Description, &Description) -> Result<T>,
) -> Option<std::result::Result<T, Errno>> {
    if numbers[0] == numbers[1] || !numbers.into_iter().all(is_taken) {
        return None;
    }
    let _within = Within::enter()?;
    let (first, second) = (description(numbers[0])?, description(numbers[1])?);
    if Arc::ptr_eq(&first, &second) {
        return None; // its offset is one
    }
    answered(call, &numbers, work(&first, &second))
}

/// What a call by placeholders gives; none if they are real now.
fn answered<T>(call: Call, numbers: &[c_int], result: Result<T>) -> Option<std::result::Result<T, Errno>> {
    match result {
        Ok(result) => {
            count(call, Way::Door);
            Some(Ok(result))
        }
        Err(Error::Errno(Errno::NOTCONN | Errno::PROTO)) => Some(Err(Errno::NOTCONN)),
        // The mount waits for memory, and for space that is about to come back.
        Err(error @ (Error::Crossed(_) | Error::Errno(Errno::NOMEM | Errno::NOSPC))) => {
            let why = match error {
                Error::Crossed(Crossed { why: Why::Watched, .. }) => Way::Watched,
                Error::Crossed(Crossed { why: Why::Cached, .. }) => Way::Pages,
                _ => Way::KernelNeeded,
            };
            count(call, why);
            numbers.iter().find_map(|number| become_real(*number).err()).map(Err)
        }
        Err(Error::Errno(error)) => {
            count(call, Way::Door);
            Some(Err(error))
        }
    }
}

/// The offsets of two descriptions, which threads take in one order; none if a number is real now.
pub(crate) fn with_offsets<T>(
    first: &Description,
    second: &Description,
    work: impl FnOnce(&mut u64, &mut u64) -> Result<T>,
) -> Result<Option<T>> {
    let is_in_order = std::ptr::from_ref(first) < std::ptr::from_ref(second);
    let (lower, upper) = if is_in_order { (first, second) } else { (second, first) };
    let (mut lower, mut upper) = (locked(&lower.position), locked(&upper.position));
    let (first, second) = if is_in_order { (&mut *lower, &mut *upper) } else { (&mut *upper, &mut *lower) };
    let (Some(first), Some(second)) = (first, second) else { return Ok(None) };
    work(first, second).map(Some)
}

/// As [`by`], for calls that use the offset, and move it to where they say.
pub(crate) fn by_offset<T>(
    call: Call,
    number: c_int,
    work: impl FnOnce(&Description, u64) -> Result<(T, u64)>,
) -> Option<std::result::Result<T, Errno>> {
    let done = by(call, number, |description| {
        let mut position = locked(&description.position);
        let Some(offset) = *position else { return Ok(None) };
        let (result, offset) = work(description, offset)?;
        *position = Some(offset);
        Ok(Some(result))
    })?;
    done.transpose()
}

/// close(2) of a placeholder; false for other numbers.
pub(crate) fn close(number: c_int) -> bool {
    if !is_taken(number) {
        return false;
    }
    let Some(_within) = Within::enter() else { return false };
    let mut table = locked(&TABLE);
    let is_ours = is_placeholder(number);
    let Some(description) = take(&mut table, number) else { return false };
    if is_ours {
        sys::close(number);
        count(Call::Close, Way::Door);
        COST.store(COST_OF_REAL, Relaxed);
        score(1);
    }
    drop(table);
    drop(description);
    is_ours
}

/// Numbers from one to another that may be placeholders.
fn numbers(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let numbers = (0..NUMBERS as u32).filter(move |number| (first..=last).contains(number) && are_there());
    numbers.map(|number| number as c_int).filter(|number| is_taken(*number))
}

/// close(2) of all placeholders among these numbers.
pub(crate) fn close_all(first: u32, last: u32) {
    numbers(first, last).for_each(|number| {
        close(number);
    });
}

/// Gives a number a descriptor of the mount, with flags and offset of the description ([PRL13]); inside.
fn become_real(number: c_int) -> std::result::Result<(), Errno> {
    let Some(description) = description(number) else { return Ok(()) };
    let becomes = all_become_real(&description, locked(&description.position));
    drop(description); // inside, and with nothing locked
    becomes
}

/// As [`become_real`], unless another thread has the offset, which may be waiting for one of the calling thread's.
fn become_real_if_free(number: c_int) -> std::result::Result<(), Errno> {
    let Some(description) = description(number) else { return Ok(()) };
    let Ok(position) = description.position.try_lock() else { return Ok(()) };
    let becomes = all_become_real(&description, position);
    drop(description);
    becomes
}

/// All numbers of a description get the same descriptor of the mount.
fn all_become_real(description: &Arc<Description>, mut position: MutexGuard<'_, Option<u64>>) -> std::result::Result<(), Errno> {
    let Some(offset) = *position else { return Ok(()) };
    let real = match description.real() {
        Ok(real) => real.into_raw_fd(),
        Err(Error::Errno(error)) => return Err(error),
        Err(Error::Crossed(_)) => return Err(Errno::NOSYS),
    };
    let sought = if offset == 0 || on(Mutant::OffsetLost) {
        Ok(0)
    } else {
        on_descriptors(libc::SYS_lseek, [real as usize, offset as usize, libc::SEEK_SET as usize, 0, 0])
    };
    let most = if on(Mutant::SharedKept) { 1 } else { NUMBERS };
    let is_its = |found: &Option<Arc<Description>>| found.as_ref().is_some_and(|found| Arc::ptr_eq(found, description));
    // [PRL18]
    let numbers: Vec<c_int> =
        locked(&TABLE).iter().zip(0..).filter(|(found, _)| is_its(found)).map(|(_, number)| number).take(most).collect();
    let placed = sought.and_then(|_| numbers.into_iter().try_fold(false, |any, number| Ok(place(number, description, real)? || any)));
    sys::close(real);
    if placed? {
        *position = None;
        let cost = COST.load(Relaxed);
        COST.store((2 * cost).min(COST_OF_REAL_MAX), Relaxed);
        score(-cost);
    }
    Ok(())
}

/// A call on descriptors, without memory.
fn on_descriptors(number: libc::c_long, arguments: [usize; 5]) -> std::result::Result<isize, Errno> {
    // SAFETY: such a call.
    match unsafe { sys::call(number, arguments) } {
        failed @ ..0 => Err(Errno::from_raw_os_error(-failed as i32)),
        result => Ok(result),
    }
}

/// Puts a descriptor in the place of a number, if it is still that description's.
fn place(number: c_int, description: &Arc<Description>, real: c_int) -> std::result::Result<bool, Errno> {
    let mut table = locked(&TABLE);
    let is_its = table.get(number as usize).and_then(Option::as_ref).is_some_and(|found| Arc::ptr_eq(found, description));
    if !is_its || !is_placeholder(number) {
        return Ok(false);
    }
    let is_closed_by_exec =
        on_descriptors(libc::SYS_fcntl, [number as usize, libc::F_GETFD as usize, 0, 0, 0])? & libc::FD_CLOEXEC as isize != 0;
    let flags = if is_closed_by_exec { libc::O_CLOEXEC } else { 0 };
    on_descriptors(libc::SYS_dup3, [real as usize, number as usize, flags as usize, 0, 0])?;
    let _ours = take(&mut table, number); // the caller has another
    Ok(true)
}

/// Does something to flags of descriptors, among them those of placeholders, while none becomes real: it would get those of before. `work` returns no errno.
pub(crate) fn keeping_flags<T>(work: impl FnOnce() -> T) -> T {
    let within = if are_there() { Within::enter() } else { None };
    let _table = within.as_ref().map(|_| locked(&TABLE));
    work()
}

fn counted(result: std::result::Result<(), Errno>, why: Way) {
    count(Call::Real, if result.is_ok() { why } else { Way::NotMadeReal });
}

/// A number becomes real.
pub(crate) fn real(number: c_int) {
    if is_taken(number)
        && let Some(_within) = Within::enter()
    {
        counted(become_real(number), Way::KernelNeeded);
    }
}

/// A directory becomes real for a call that begins there; the error if that is impossible.
pub(crate) fn real_directory(number: c_int) -> Option<Errno> {
    if !is_directory(number) {
        return None;
    }
    let _within = Within::enter()?;
    let becomes = become_real(number);
    counted(becomes, Way::KernelNeeded);
    becomes.err()
}

/// The kernel has more of a file than bytes: what this process has open of it becomes real, and the file is the mount's from now on ([PRL14]).
pub(crate) fn is_used_by_kernel(inode: u64) {
    if on(Mutant::BothWays) {
        return;
    }
    if let Some(_within) = Within::enter() {
        leave_to_mount(inode);
        numbers(0, u32::MAX).for_each(|number| {
            if description(number).is_some_and(|description| description.inode == inode) {
                counted(become_real(number), Way::KernelNeeded);
            }
        });
    }
}

/// All become real.
pub(crate) fn all_real(why: Way) {
    if !are_there() {
        return;
    }
    if let Some(_within) = Within::enter() {
        all_real_alone(why);
    }
}

/// As [`all_real`], inside, or while nobody is there.
pub(crate) fn all_real_alone(why: Way) {
    numbers(0, u32::MAX).for_each(|number| counted(become_real(number), why));
}

/// All become real, and there are no more in this process.
pub(crate) fn end() {
    outside::no_more();
    if are_over() {
        return;
    }
    match door::is_own_process() {
        true => {
            // Not inside: that may be closed to a handler in the middle of a fork.
            let blocked = sys::Signals::ALL.set();
            are_no_more();
            blocked.set();
        }
        false => IS_OVER.store(true, SeqCst),
    }
    all_real(Way::KernelNeeded);
}

/// There are no more in this process, for a thread all of whose signals are blocked. An open that is under way sees that, or has its number before: see [`add`].
fn are_no_more() {
    let _files = locked(&FILES_OF_MOUNT);
    IS_OVER.store(true, SeqCst);
}

/// What could not become real is nobody's, and its connection is not touched any more: in a forked child it is the parent's.
pub(crate) fn forget_all() {
    if !are_there() {
        return;
    }
    let table = std::mem::take(&mut *locked(&TABLE));
    TAKEN.iter().for_each(|taken| taken.store(false, Relaxed));
    COUNT.store(0, Relaxed);
    std::mem::forget(table);
}
