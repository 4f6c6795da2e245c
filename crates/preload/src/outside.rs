//! Answers that are known are given outside ([PRL21] of `lib.rs`): no signal is blocked, no lock is taken and nothing is counted, so a call costs
//! what the kernel says of its start and no more.
//!
//! What is looked up stays in memory for good, of at most [`CONNECTIONS_MAX`] connections of a process: a thread may be stopped in the middle.
//! Where to look is a page that a forked child finds empty, however it was forked. It is emptied before who this process is changes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::SeqCst};

use tandemfs_client::{AtFlags, Attributes, Errno, File, KnownAnswers, KnownStart};

use crate::code;
use crate::door::Door;
use crate::mutant::{Mutant, on};
use crate::report::Way;
use crate::{settings, sys};

/// Connections whose memory stays. Programs that change their ids for each request would gather it.
pub(crate) const CONNECTIONS_MAX: u32 = 4;
/// Places for directories where relative paths begin.
const DIRECTORIES: usize = 64;

/// A directory of the door. Whoever reads it while it changes finds that the words do not belong together.
struct Directory {
    start: AtomicU64,
    /// The inode, mixed with the other word.
    check: AtomicU64,
}

fn check(inode: u64, start: u64) -> u64 {
    inode ^ start.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

struct Shown {
    answers: AtomicPtr<KnownAnswers>,
    directories: [Directory; DIRECTORIES],
}

/// A page, zero at first and in every forked child.
static SHOWN: AtomicPtr<Shown> = AtomicPtr::new(ptr::null_mut());
/// Nothing is shown any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn shown() -> Option<&'static Shown> {
    let shown = SHOWN.load(SeqCst);
    // SAFETY: null, or a page that stays, of atomics, for which zeros are values.
    unsafe { shown.as_ref() }
}

/// The start: makes the page.
pub(crate) fn prepare() {
    if let Some(page) = sys::page_empty_in_children(size_of::<Shown>()) {
        SHOWN.store(page.cast(), SeqCst);
    }
}

/// The attributes of a path, or why there are none, if that is known. Where the path begins is looked up in between: the numbers of another connection's
/// directories are others.
pub(crate) fn attributes(start: impl FnOnce() -> Option<KnownStart>, path: &Path, flags: AtFlags) -> Option<Result<Attributes, Errno>> {
    let shown = shown()?;
    let place = shown.answers.load(SeqCst);
    // SAFETY: null, or what stays ([`Door::shown`]).
    let answers = unsafe { place.as_ref() }?;
    let errno = sys::errno();
    let told = start().and_then(|start| answers.attributes(start, path.as_os_str().as_bytes(), flags));
    sys::set_errno(errno);
    told.filter(|_| shown.answers.load(SeqCst) == place)
}

/// The start of paths below a directory with this inode, which the kernel has just named.
pub(crate) fn directory(inode: u64) -> Option<KnownStart> {
    let place = &shown()?.directories[inode as usize % DIRECTORIES];
    let start = place.start.load(SeqCst);
    (start != 0 && place.check.load(SeqCst) == check(inode, start)).then(|| KnownStart::from_bits(start))
}

/// The door has a directory open; with the lock of the directories.
pub(crate) fn is_open(inode: u64, file: &File) {
    if let Some(shown) = shown() {
        let (place, start) = (&shown.directories[inode as usize % DIRECTORIES], file.known_start().to_bits());
        place.start.store(start, SeqCst);
        place.check.store(check(inode, start), SeqCst);
    }
}

/// The door is about to close it; with that lock.
pub(crate) fn is_closed(inode: u64) {
    if let Some(shown) = shown() {
        shown.directories[inode as usize % DIRECTORIES].start.store(0, SeqCst);
    }
}

/// Shows what a connection knows; inside, by one of its calls. Only where all code calls the kernel by libc: else ids could change unseen. Without
/// placeholders nobody notices that code is loaded.
pub(crate) fn show(door: &Door) {
    if !settings::get().is_some_and(|settings| settings.placeholders) {
        return;
    }
    let Some(shown) = shown().filter(|shown| !IS_OVER.load(SeqCst) && shown.answers.load(SeqCst).is_null()) else { return };
    let moment = match code::look() {
        Ok(moment) => moment,
        Err(Way::OwnCalls) => return no_more(),
        Err(_) => return,
    };
    let Some(answers) = door.shown() else { return no_more() };
    shown.answers.store(ptr::from_ref(answers).cast_mut(), SeqCst);
    if !code::is_as_at(moment) || IS_OVER.load(SeqCst) {
        withdraw();
    }
}

/// Nothing is shown, until a call shows it again.
pub(crate) fn withdraw() {
    if on(Mutant::AnswersKept) {
        return;
    }
    if let Some(shown) = shown() {
        shown.answers.store(ptr::null_mut(), SeqCst);
        shown.directories.iter().for_each(|place| place.start.store(0, SeqCst));
    }
}

/// Nothing is shown any more.
pub(crate) fn no_more() {
    IS_OVER.store(true, SeqCst);
    withdraw();
}
