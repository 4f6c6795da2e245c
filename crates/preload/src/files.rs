//! Regular files that the program writes by offset: handles of the door for descriptors that are the kernel's ([PRL7]–[PRL11] of `lib.rs`).

use std::ffi::{CString, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tandemfs_client::{File, Tree, Unless};

use crate::descriptions::Description;
use crate::door::Door;
use crate::hints;
use crate::inside::Inside;
use crate::mutant::{Mutant, on};
use crate::report::Way;
use crate::settings::{self, Settings};
use crate::sys;
use crate::turn::Turn;

/// Files that are known. Each that was opened is held until the program closes it or others take its place.
const KNOWN_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 4096;

/// Files that are open by the door, of this process.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    Read,
    Write,
}

/// What the kernel says of a descriptor at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) inode: u64,
    /// The size that the kernel has; another client may know better.
    pub(crate) size: u64,
}

/// An open file, and the access mode that it was opened with.
type Opened = (Arc<File>, c_int);

struct Known {
    inode: u64,
    turn: Turn,
    file: Option<Opened>,
}

/// Files by inode.
#[derive(Default)]
pub(crate) struct Files {
    known: Vec<Known>,
    /// The one that goes next.
    hand: usize,
}

/// Whether a file may be open by the door.
pub(crate) fn are_open() -> bool {
    OPENED.load(Relaxed) > 0
}

/// None is: the connection is gone.
pub(crate) fn none_is_open() {
    OPENED.store(0, Relaxed);
}

/// What the kernel knows of a descriptor; none if it is no regular file of the mount.
pub(crate) fn described(settings: &Settings, descriptor: c_int) -> Option<Described> {
    if on(Mutant::NumberRemembered)
        && let Some(inode) = remembered(descriptor).map(|number| number.load(Relaxed)).filter(|inode| *inode != 0)
    {
        return Some(Described { inode, size: i64::MAX as u64 });
    }
    let found = settings.mount.known(descriptor)?;
    if on(Mutant::NumberRemembered)
        && let Some(number) = remembered(descriptor)
    {
        number.store(found.stx_ino, Relaxed);
    }
    let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    is_regular.then_some(Described { inode: found.stx_ino, size: found.stx_size })
}

/// For a deliberate bug: inodes of descriptors.
fn remembered(descriptor: c_int) -> Option<&'static AtomicU64> {
    static NUMBERS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    NUMBERS.get(usize::try_from(descriptor).ok()?)
}

fn allows(access: c_int, transfer: Transfer) -> bool {
    match transfer {
        Transfer::Read => access == libc::O_RDONLY || access == libc::O_RDWR,
        Transfer::Write => access == libc::O_WRONLY || access == libc::O_RDWR,
    }
}

/// How a descriptor was opened, if the door may do this by it ([PRL8], [PRL9]). Where the process may store by itself, what is written with O_SYNC or
/// O_DIRECT is left to the mount: a store makes no times durable.
fn access(descriptor: c_int, transfer: Transfer, may_store: bool) -> Option<c_int> {
    const NOT_STORED: c_int = libc::O_DIRECT | libc::O_SYNC & !libc::O_DSYNC;
    let flags = sys::file_flags(descriptor)?;
    if may_store && flags & NOT_STORED != 0 {
        return None;
    }
    let access = if on(Mutant::AccessNotAsked) { libc::O_RDWR } else { flags & libc::O_ACCMODE };
    let appends = flags & libc::O_APPEND != 0 && transfer == Transfer::Write && !on(Mutant::AppendNotAsked);
    (flags & libc::O_PATH == 0 && !appends && allows(access, transfer)).then_some(access)
}

/// The file of the door that a descriptor is, and what it has to leave to the mount; or why the mount serves this call. The kernel is asked
/// when the file is held already, so an inode of the same number is the same ([PRL7]).
pub(crate) fn of(
    door: &Door,
    settings: &Settings,
    descriptor: c_int,
    seen: Described,
    transfer: Transfer,
) -> Result<(Arc<File>, Unless), Way> {
    let mut gone = None;
    let turn = door.files().turn((descriptor, seen.inode), settings.calls_before, transfer, &mut gone);
    drop(gone);
    let (unless, kept) = turn.ok_or(Way::Pages)?;
    let access = access(descriptor, transfer, settings.stores).ok_or(Way::Access)?;
    let file = match kept.filter(|(_, kept)| allows(*kept, transfer)) {
        Some((file, _)) => file,
        None => opened(door, settings, descriptor, seen.inode, access).ok_or(Way::UnknownFile)?,
    };
    let is_same = described(settings, descriptor).is_some_and(|now| now.inode == seen.inode);
    if is_same { Ok((file, unless)) } else { Err(Way::OtherFile) }
}

/// Opens a file by the path that the kernel has for its descriptor, with the same access mode and the rights of this process.
fn opened(door: &Door, settings: &Settings, descriptor: c_int, inode: u64, access: c_int) -> Option<Arc<File>> {
    let file = opened_by_path(door, settings, descriptor, inode, access).map(|(file, _)| Arc::new(file));
    let mut files = door.files();
    let known = files.known.iter_mut().find(|known| known.inode == inode)?;
    let Some(file) = file else {
        known.turn.refused();
        return None;
    };
    let replaced = known.file.replace((Arc::clone(&file), access));
    files.count();
    drop(files); // before the one that is replaced is closed
    drop(replaced);
    Some(file)
}

/// As [`opened`], of a file of which nothing is remembered; also the path.
fn opened_by_path(door: &Door, settings: &Settings, descriptor: c_int, inode: u64, access: c_int) -> Option<(File, CString)> {
    let mut buffer = vec![0; PATH_BYTES_MAX];
    let path = sys::path_of(descriptor, &mut buffer)?;
    let inside = Path::new(OsStr::from_bytes(crate::start::inside(settings, path)?));
    let (file, found) = door.mount().open_and_stat(inside, access | libc::O_NOFOLLOW, 0).ok()?;
    (found.node == inode || on(Mutant::OpenedNotCompared)).then_some((file, CString::new(path).ok()?))
}

/// The file that a descriptor of the kernel's has open, with its rights, to be mapped ([PRL20]): its path leads to it still ([PRL8]), and the
/// kernel says so when it is held ([PRL7]).
pub(crate) fn to_be_mapped(door: &Arc<Door>, settings: &Settings, descriptor: c_int, writes: bool) -> Option<Arc<Description>> {
    let seen = described(settings, descriptor)?;
    let access = access(descriptor, Transfer::Read, false).filter(|access| !writes || allows(*access, Transfer::Write))?;
    let (file, path) = opened_by_path(door, settings, descriptor, seen.inode, access)?;
    let is_same = described(settings, descriptor).is_some_and(|now| now.inode == seen.inode);
    is_same.then(|| Description::of_kernels((file, Arc::clone(door)), seen.inode, access, path))
}

/// The program closes a descriptor: its file is not held any longer ([PRL11]). Another descriptor of it opens it anew.
pub(crate) fn closing(descriptor: c_int) {
    hints::forget(descriptor);
    if !are_open() || on(Mutant::KeptBehindClose) {
        return;
    }
    let Some(settings) = settings::get() else { return };
    let Some(found) = described(settings, descriptor) else { return };
    if let Ok(inside) = Inside::enter(settings) {
        let gone = inside.door().files().give_up(found.inode);
        drop(gone); // inside, and with nothing locked
    }
}

/// The program closes many descriptors.
pub(crate) fn closing_many() {
    if are_open()
        && let Some(settings) = settings::get()
        && let Ok(inside) = Inside::enter(settings)
    {
        let gone = inside.door().files().give_up_all();
        drop(gone);
    }
}

/// The kernel has pages of a file again.
pub(crate) fn cached(door: &Door, inode: u64) {
    if let Some(known) = door.files().known.iter_mut().find(|known| known.inode == inode) {
        known.turn.ends();
    }
}

impl Files {
    /// What is to be left to the mount of a call on a file, and the file if it is open; none if the mount has to serve the call. A file whose
    /// place is taken is returned in `gone`, to be closed when nothing is locked.
    fn turn(
        &mut self,
        (descriptor, inode): (c_int, u64),
        first: u32,
        transfer: Transfer,
        gone: &mut Option<Arc<File>>,
    ) -> Option<(Unless, Option<Opened>)> {
        let at = match (self.known.iter().position(|known| known.inode == inode), transfer) {
            (Some(at), _) => at,
            (None, Transfer::Read) => return None,
            (None, Transfer::Write) => self.add(Known { inode, turn: Turn::new(first), file: None }, gone),
        };
        let known = &mut self.known[at];
        let unless = match transfer {
            Transfer::Read => known.turn.read(),
            Transfer::Write => known.turn.write(),
        };
        if unless.is_none() {
            let (count, most) = known.turn.passed();
            hints::pass(descriptor, true, count, most);
        }
        Some((unless?, known.file.clone()))
    }

    fn add(&mut self, new: Known, gone: &mut Option<Arc<File>>) -> usize {
        if self.known.len() < KNOWN_MAX {
            self.known.push(new);
            return self.known.len() - 1;
        }
        let hand = self.hand;
        self.hand = (hand + 1) % KNOWN_MAX;
        *gone = std::mem::replace(&mut self.known[hand], new).file.map(|(file, _)| file);
        self.count();
        hand
    }

    fn count(&self) {
        OPENED.store(self.known.iter().filter(|known| known.file.is_some()).count() as u32, Relaxed);
    }

    /// Forgets a file.
    pub(crate) fn give_up(&mut self, inode: u64) -> Option<Arc<File>> {
        let at = self.known.iter().position(|known| known.inode == inode)?;
        let gone = self.known.swap_remove(at);
        self.count();
        Some(gone.file?.0)
    }

    /// Forgets all.
    pub(crate) fn give_up_all(&mut self) -> Vec<Arc<File>> {
        let all = std::mem::take(&mut self.known);
        self.count();
        all.into_iter().filter_map(|known| Some(known.file?.0)).collect()
    }
}
