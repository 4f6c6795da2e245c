//! Answers ahead of their questions: a stat of a name brings those of further names of its directory, for programs that ask about all of them
//! (`ls -l`, `git status`, `find -size`). The client keeps them as if it had asked. And who opens a directory gets its first entries, who opens a small file its
//! bytes.
//!
//! [AHD1] Each answer is made as that to a question of its own: by the whole path, with the rights of the client, and noted by itself ([KNW1]).
//!        That the directory had the name a moment before is a hint.
//! [AHD2] Who may not list the directory is told of no name in it.
//! [AHD3] Nobody waits for them: at most [`NAMES`], fewer below deep paths, and none that cannot be answered at once. What fails is left out.
//! [AHD4] Entries are noted where they are listed ([VS7] of the file system), behind all that the path of the open has met: who finds all of it as it was
//!        knows that the path leads to a directory with these names. They come to who may also search it, so that a name which is not among all of them
//!        is absent for him. A listing that failed is not known.
//! [AHD5] Who opens a small file for reading gets all of it, as by a read of its own: it is noted by itself, depends on its bytes alone, and is left out
//!        where a read would not be kept ([KNW5] of `known.rs`) or has to be left to the mount.

use rustix::io::Errno;
use tandemfs_protocol::{AheadWriter, EntryWriter, FirstListed, Foretold, Handle, Listed, Operation, Outcome, Subject as Named};
use tandemfs_ring::{Answer, Attributes, Range, Seen};
use tandemfs_vfs::{Process, QUICK_ENTRIES, Result, Subject, no_wait};

use super::{Call, Served, shown, transfer, with_attributes};
use crate::known::Keeps;
use crate::mutant::{self, Mutant};

/// Most names of one answer, and most components of the paths of all: as much work as the poller does for one request.
const NAMES: usize = 32;
const COMPONENTS: usize = 128;
/// Most entries that come with an open: fewer than a call lists without waiting.
const ENTRIES: u32 = QUICK_ENTRIES - 2;

/// A name of a directory, and behind which cookie the next one stands.
struct Next {
    name: Vec<u8>,
    cookie: u64,
}

impl Call<'_> {
    /// Adds answers about other names to that of a stat. The caller is in no other scope that notes or does not wait.
    pub(super) fn with_answers_ahead(&self, operation: &Operation<'_>, served: Served) -> Served {
        let Outcome::Done(answer) = &served.outcome else { return served };
        if !self.client.knows_versions {
            return served;
        }
        let answer = match *operation {
            Operation::StatAhead { subject, cookie, into } => {
                let (ahead, _nothing_is_owed) = no_wait(|| self.ahead(subject, cookie, into, served.seen));
                let Ok((bytes, next)) = ahead else { return served };
                Answer { value: bytes, further: next, ..*answer }
            }
            Operation::Open { into, .. } if into.length > 0 => {
                let (Some(handle), Some(of_open)) = (Handle::of(answer.value), served.seen) else { return served };
                let may_be_watched = || !self.vfs.leaves_no_watchers(&self.client.process()) && !mutant::on(Mutant::WatchersUnasked);
                let attributes = answer.attributes.filter(|found| found.mode & libc::S_IFMT != libc::S_IFDIR);
                if let Some(Attributes { size_bytes, .. }) = attributes {
                    let is_small = size_bytes < u64::from(into.length);
                    let whole = if is_small { self.whole(handle, into).unwrap_or_default() } else { None };
                    let of_open = if may_be_watched() { Seen::default() } else { of_open }; // [KNW6]
                    let (first, seen) = with_open(of_open, whole);
                    let outcome = Outcome::Done(Answer { further: first.map_or(0, FirstListed::encode), ..*answer });
                    return Served { outcome, seen: Some(seen), ..served };
                }
                let listed = self.vfs.file_system().noting(
                    || no_wait(|| self.first_entries(handle, into)).0,
                    |listed, noted| listed.map(|first| (first, Seen::of(noted.versions(None)))),
                );
                let (first, seen) = match listed {
                    Ok((first, seen)) => (first.encode(), of_open.and(&seen)),
                    Err(_) => (0, Seen::default()),
                };
                let outcome = Outcome::Done(Answer { further: first, ..*answer });
                return Served { outcome, seen: Some(seen), ..served };
            }
            _ => return served,
        };
        Served { outcome: Outcome::Done(answer), ..served }
    }

    /// Writes the first entries of a directory that was opened ([AHD4]).
    fn first_entries(&self, handle: Handle, into: Range) -> Result<FirstListed> {
        let (file, process) = (self.file(handle)?, self.client.process());
        if !mutant::on(Mutant::ListedUnsearched) {
            self.vfs.access(&process, Subject::Open(&file), libc::X_OK.cast_unsigned(), true)?;
        }
        let (mut writer, mut are_all, mut count) = (EntryWriter::new(transfer(into)?), true, 0);
        self.vfs.read_directory_behind(&file, 0, &mut |entry| {
            let listed = Listed { inode: entry.inode.get(), cookie: entry.cookie, kind: entry.file_type, name: entry.name };
            are_all = count < ENTRIES && writer.push(&listed);
            count += 1;
            are_all
        })?;
        let bytes = self.put(into, writer.bytes())?.value;
        // By other real ids the directory may be out of reach, and nothing in it is absent for access(2).
        Ok(FirstListed { bytes: bytes as u32, are_all: are_all && process.acts_by_real_ids(), is_open_known: false })
    }

    /// Writes all bytes of a small file that was opened, and what they depend on ([AHD5]); none of one that is longer than there is room.
    fn whole(&self, handle: Handle, into: Range) -> Result<Option<(u32, Seen)>> {
        let read = || {
            let process = self.client.process();
            if process.leaves_watched {
                self.vfs.leaves_watched_file(&process, &*self.file(handle)?)?;
            }
            self.read(handle, 0, into)
        };
        let read = || no_wait(read).0;
        let (found, seen) = self.vfs.file_system().noting(read, |found, noted| (found, Seen::of(noted.versions(None))));
        let bytes = found?.value as u32;
        let is_whole = bytes < into.length && self.may_be_kept(Keeps::Bytes(handle)) && !seen.is_none();
        Ok(is_whole.then_some((bytes, seen)))
    }

    /// Writes answers; returns the number of their bytes, and the cookie behind which the next ones are, 0 at the end.
    fn ahead(&self, subject: Named<'_>, cookie: u64, into: Range, of_asked: Option<Seen>) -> Result<(u64, u64)> {
        let (process, meant) = (self.client.process(), self.meant(subject)?);
        let (at, flags) = (meant.start.at(), meant.flags);
        let (before, asked) = meant.path.split_at(meant.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1));
        if asked.is_empty() || flags & libc::AT_EMPTY_PATH != 0 {
            return Err(Errno::INVAL.into());
        }
        let directory = Subject::followed(at, if before.is_empty() { b"." } else { before });
        let inode = self.vfs.stat(&process, directory)?.inode;
        if !mutant::on(Mutant::ForetoldToAll) {
            self.vfs.access(&process, directory, libc::R_OK.cast_unsigned(), true)?; // [AHD2]
        }
        let components = before.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
        let most = (COMPONENTS / (components + 1)).clamp(1, NAMES);
        let (mut names, mut is_over) = (Vec::new(), true);
        self.vfs.file_system().read_directory(inode, cookie, &mut |entry| {
            is_over = names.len() < most;
            if is_over {
                names.push(Next { name: entry.name.to_vec(), cookie: entry.cookie });
            }
            is_over
        })?;
        let (mut writer, mut path, mut behind) = (AheadWriter::new(transfer(into)?), before.to_vec(), cookie);
        for next in &names {
            path.truncate(before.len());
            path.extend_from_slice(&next.name);
            let is_of_interest = next.name != b"." && next.name != b".." && next.name != asked;
            if is_of_interest && !self.foretell(&process, &mut writer, &next.name, Subject::at(at, &path, flags)?, of_asked) {
                is_over = false;
                break;
            }
            behind = next.cookie;
        }
        let bytes = self.put(into, writer.bytes())?.value;
        Ok((bytes, if is_over { 0 } else { behind }))
    }

    /// Answers about one name ([AHD1]); false if there is no room for it.
    fn foretell(&self, process: &Process, writer: &mut AheadWriter, name: &[u8], subject: Subject<'_>, of_asked: Option<Seen>) -> bool {
        let stat = || self.vfs.stat(process, subject);
        self.vfs.file_system().noting(stat, |found, noted| {
            let Ok(found) = found else { return true };
            let own = Keeps::Attributes.seen(&Outcome::Done(with_attributes(&found)), noted);
            let seen = of_asked.filter(|_| mutant::on(Mutant::ForetoldByTheAsked)).unwrap_or(own);
            seen.is_none() || writer.push(&Foretold { name, attributes: shown(&found), seen })
        })
    }
}

/// What comes with the open of a file: all its bytes, if there are some that may be kept, and that the open is known ([KNW6] of `known.rs`), as far as the words of
/// both have room in one answer.
fn with_open(of_open: Seen, whole: Option<(u32, Seen)>) -> (Option<FirstListed>, Seen) {
    match whole {
        None if of_open.is_none() => (None, Seen::default()),
        None => (Some(FirstListed { bytes: 0, are_all: false, is_open_known: true }), of_open),
        Some((bytes, of_bytes)) => match of_open.and(&of_bytes) {
            both if both.is_none() => (Some(FirstListed { bytes, are_all: true, is_open_known: false }), of_bytes),
            both => (Some(FirstListed { bytes, are_all: true, is_open_known: true }), both),
        },
    }
}
