//! Files that were opened to be read, closed by the program, and kept for the next open of the same path ([KNW6] of `crates/direct`): who opens, reads and closes
//! the same small files again and again asks nobody.
//!
//! [IDF1] An open is repeated while nothing that it depends on has changed ([KN2] of `known.rs`), by the same path with the same flags, from the same start. What came
//!        with it, attributes and the bytes of a small file, is given again: it depends on the same words.
//! [IDF2] A file becomes idle by the rules of the ring ([IDL1]–[IDL3]): its number is stored, then the words are compared. Where they have changed, it is closed.
//!        Whoever finds that the daemon has taken a file back has nothing to close.
//! [IDF3] Only one that was opened to be read alone, with none of the flags that make, empty, or need the kernel, whose flags were not changed, and that
//!        has got no descriptor of the mount.
//! [IDF4] Bounded: [`IDLE_PLACES`](tandemfs_ring::IDLE_PLACES), eight for the inodes that share places. Who needs one closes a file there, each in turn. One file for each path.
//! [IDF5] Nobody waits for anybody here ([KN4]): who finds the table in use asks the daemon.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::OFlags;
use tandemfs_protocol::{Handle, Place};
use tandemfs_ring::{Attributes, Client, Seen, idle_places};

use crate::known::start;
use crate::mutant::{self, Mutant};
use crate::whole::WholeFile;

/// Flags with which a file can be kept ([IDF3]).
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).union(OFlags::NONBLOCK).union(OFlags::LARGEFILE);

/// What is opened: where the path begins, flags, and the path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Opening {
    start: u64,
    flags: i32,
    path: Box<[u8]>,
}

impl Opening {
    /// None of what is not kept.
    pub(crate) fn of(at: Place, path: &[u8], flags: i32) -> Option<Self> {
        let others = OFlags::from_bits_retain(flags.cast_unsigned()).difference(FLAGS);
        others.is_empty().then(|| Self { start: start(at), flags, path: path.into() })
    }
}

/// An open that is known.
#[derive(Debug)]
pub(crate) struct KnownOpen {
    pub(crate) opening: Opening,
    pub(crate) attributes: Attributes,
    pub(crate) seen: Seen,
    pub(crate) whole: Option<Arc<WholeFile>>,
}

#[derive(Debug)]
struct Idle {
    open: Box<KnownOpen>,
    handle: Handle,
    place: usize,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<Opening, Idle>,
    /// Which file is at a place.
    at: HashMap<usize, Opening>,
    /// Which of the places of an inode makes room next.
    turn: usize,
}

impl Table {
    fn remove(&mut self, opening: &Opening) -> Option<Idle> {
        let idle = self.files.remove(opening)?;
        self.at.remove(&idle.place);
        Some(idle)
    }
}

/// The idle files of a connection; none ever if they are not wanted.
#[derive(Debug)]
pub(crate) struct IdleFiles(Option<Mutex<Table>>);

/// What there is of an open.
pub(crate) enum Found {
    Nothing,
    /// The file is the caller's.
    Open(Handle, Box<KnownOpen>),
    /// It has changed; the caller closes this.
    Stale(Handle),
}

impl IdleFiles {
    pub(crate) fn new(are_wanted: bool) -> Self {
        Self(are_wanted.then(Mutex::default))
    }

    pub(crate) fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the file of an open ([IDF1]).
    pub(crate) fn take(&self, ring: &Client, opening: &Opening) -> Found {
        let Some(mut table) = self.0.as_ref().and_then(Mutex::try_lock) else { return Found::Nothing };
        let Some(idle) = table.files.get(opening) else { return Found::Nothing };
        let is_so = ring.is_still_so(&idle.open.seen) || mutant::on(Mutant::IdleNotCompared);
        let Some(idle) = table.remove(opening) else { return Found::Nothing };
        match ring.take_idle(idle.place, idle.handle.get()) {
            true if is_so => Found::Open(idle.handle, idle.open),
            true => Found::Stale(idle.handle),
            false => Found::Nothing,
        }
    }

    /// Keeps a file that its program has closed ([IDF2]). Returns files to close: this one, and one that has made room.
    pub(crate) fn keep(&self, ring: &Client, handle: Handle, open: Box<KnownOpen>) -> [Option<Handle>; 2] {
        let Some(mut table) = self.0.as_ref().and_then(Mutex::try_lock) else { return [Some(handle), None] };
        if table.files.contains_key(&open.opening) || !ring.is_still_so(&open.seen) {
            return [Some(handle), None];
        }
        let places = idle_places(open.attributes.node);
        let (place, closed) = match places.clone().find(|place| ring.is_idle_free(*place)) {
            Some(place) => (place, None),
            None => {
                table.turn = (table.turn + 1) % places.len();
                let place = places.start + table.turn;
                let Some(other) = table.at.get(&place).cloned().and_then(|other| table.remove(&other)) else { return [Some(handle), None] };
                (place, ring.take_idle(place, other.handle.get()).then_some(other.handle))
            }
        };
        // The daemon has taken back what was there.
        if let Some(gone) = table.at.remove(&place) {
            table.files.remove(&gone);
        }
        ring.set_idle(place, handle.get());
        if !ring.is_still_so(&open.seen) {
            return [ring.take_idle(place, handle.get()).then_some(handle), closed];
        }
        table.at.insert(place, open.opening.clone());
        table.files.insert(open.opening.clone(), Idle { open, handle, place });
        [None, closed]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_or_needs_the_kernel_is_not_kept() {
        let flags = |flags: OFlags| flags.bits().cast_signed();
        let kept = |of: OFlags| Opening::of(Place::Root, b"a", flags(of)).is_some();
        assert!(kept(OFlags::LARGEFILE) && OFlags::LARGEFILE != OFlags::empty());
        assert!(kept(OFlags::RDONLY) && kept(OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK));
        for other in
            [OFlags::WRONLY, OFlags::RDWR, OFlags::CREATE, OFlags::TRUNC, OFlags::APPEND, OFlags::DIRECT, OFlags::DIRECTORY, OFlags::PATH]
        {
            assert!(!kept(other), "{other:?}");
        }
    }

    #[test]
    fn openings_differ_by_all_that_is_asked() {
        let open = |at, path: &[u8], flags| Opening::of(at, path, flags).expect("kept");
        let (one, two) = (Handle::of(1).expect("a number"), Handle::of(2).expect("a number"));
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let all = [
            open(Place::Root, b"a", 0),
            open(Place::Root, b"a/", 0),
            open(Place::Root, b"a", nofollow),
            open(Place::Open(one), b"a", 0),
            open(Place::Open(two), b"a", 0),
        ];
        assert!(all.iter().enumerate().all(|(at, one)| all.iter().skip(at + 1).all(|other| one != other)));
    }
}
