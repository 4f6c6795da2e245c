//! Listings.
//!
//! [FEN1] The first entries of a directory come when it is opened. They are given once, when it is listed from the start, and only if nothing
//!        that they depend on has changed ([KN2]); otherwise the daemon is asked. If the directory has no others, the connection keeps its names
//!        ([KN7] of `known.rs`).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use rustix::io::Errno;
use tandemfs_protocol::{FirstListed, LISTED_BYTES_MAX, Listed, Listing, Operation};
use tandemfs_ring::{Answer, Seen};

use crate::area::Piece;
use crate::connection::Call;
use crate::known::AllNames;
use crate::mutant::{self, Mutant};
use crate::tree::sealed::Base;
use crate::{File, Result};

/// Bytes of the first entries.
pub(crate) const FIRST_BYTES: u32 = 4 << 10;
/// Bytes of a piece of a listing.
const PIECE_BYTES: usize = 32 << 10;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    name: OsString,
    inode: u64,
    cookie: u64,
    kind: u8,
}

impl Entry {
    /// Its name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Its inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Where a listing goes on behind it, for [`Directory::seek`].
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The type of the file: a `DT_` number of readdir(3).
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        const DIRECTORY: u8 = 4;
        self.kind == DIRECTORY
    }
}

/// The entries of a directory, with `.` and `..`, as an iterator. It ends behind the first error.
#[derive(Debug)]
pub struct Directory {
    file: File,
    /// What was copied out of the shared memory and not yet returned.
    entries: VecDeque<Entry>,
    cookie: u64,
    is_at_end: bool,
}

impl Directory {
    pub(crate) fn new(file: File) -> Self {
        Self { file, entries: VecDeque::new(), cookie: 0, is_at_end: false }
    }

    /// Goes on behind an entry, by its cookie; 0 is the start.
    pub fn seek(&mut self, cookie: u64) {
        (self.cookie, self.is_at_end) = (cookie, false);
        self.entries.clear();
    }

    /// The directory, as the place where paths begin.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads on; leaves no entries at the end.
    fn fill(&mut self) -> Result<()> {
        let (entries, cookie) = (&mut self.entries, &mut self.cookie);
        self.is_at_end = self.file.list_behind(*cookie, |entry| {
            let name = OsString::from_vec(entry.name.to_vec());
            entries.push_back(Entry { name, inode: entry.inode, cookie: entry.cookie, kind: entry.kind });
            *cookie = entry.cookie;
        })?;
        Ok(())
    }
}

/// The first entries of a directory, which came when it was opened ([FEN1]).
#[derive(Debug)]
pub(crate) struct FirstEntries {
    bytes: Vec<u8>,
    seen: Seen,
    are_all: bool,
}

impl FirstEntries {
    /// Those of an answer, if it has any that may be kept.
    pub(crate) fn taken(call: &mut Call<'_>, into: Piece, answer: &Answer, seen: Seen) -> Option<Self> {
        let first =
            FirstListed::decode(answer.further).filter(|first| first.bytes > 0 && first.bytes <= into.range.length && !seen.is_none())?;
        let mut bytes = vec![0; first.bytes as usize];
        call.get(into, &mut bytes);
        Some(Self { bytes, seen, are_all: first.are_all })
    }

    /// All names of the directory, and what they depend on; none if there are others, or these are not what a daemon says.
    pub(crate) fn all_names(&self) -> Option<(AllNames, Seen)> {
        if !self.are_all && !mutant::on(Mutant::PartsCountAsAll) {
            return None;
        }
        let mut names = AllNames::default();
        for listed in Listing::new(&self.bytes) {
            names.add(listed.ok()?.name);
        }
        Some((names, self.seen))
    }
}

impl File {
    /// Lists a directory behind a cookie, 0 for the start, as far as one request goes; whether that surely was its end.
    ///
    /// # Errors
    /// As getdents64(2).
    pub fn list_behind(&self, cookie: u64, entry: impl FnMut(&Listed<'_>)) -> Result<bool> {
        if cookie == 0
            && let Some(first) = self.take_first_entries()
            && (self.connection().is_still_so(&first.seen) || mutant::on(Mutant::EntriesNotCompared))
        {
            return visited(&first.bytes, cookie, entry).map(|()| first.are_all);
        }
        let mut call = self.connection().begin()?;
        let into = call.part_of(PIECE_BYTES)?;
        let answer = call.send(&Operation::ReadDirectory { handle: self.handle(), cookie, into: into.range })?;
        let bytes = call.returned(&answer, into)?;
        drop(call);
        visited(&bytes, cookie, entry)?;
        Ok(bytes.len() + LISTED_BYTES_MAX <= into.range.length as usize)
    }
}

/// Visits the entries of a piece of a listing.
fn visited(bytes: &[u8], cookie: u64, mut entry: impl FnMut(&Listed<'_>)) -> Result<()> {
    let mut last = cookie;
    for listed in Listing::new(bytes) {
        let listed = listed?;
        // A listing that stands still would not end.
        if listed.cookie == last {
            return Err(Errno::PROTO.into());
        }
        last = listed.cookie;
        entry(&listed);
    }
    Ok(())
}

impl Iterator for Directory {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.entries.is_empty() && !self.is_at_end {
            let filled = self.fill();
            self.is_at_end |= filled.is_err() || self.entries.is_empty();
            if let Err(error) = filled {
                self.entries.clear();
                return Some(Err(error));
            }
        }
        self.entries.pop_front().map(Ok)
    }
}
