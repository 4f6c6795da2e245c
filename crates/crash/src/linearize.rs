//! The oracle for several threads. A history is correct if its calls can be put in one order such that a call that returned before another
//! began comes first, and the reference model gives every observed answer. After a cut the tree must result from such an order of all calls
//! that had returned and any of those in flight (durable linearizability).
//!
//! The order covers what the library promises: single calls on inodes. So paths can be bound to their inodes before the threads start, like
//! a program's open files and directories. If a call needs an inode, a bound path means the inode that it was bound to, even after renames.
//! Every directory of a workload is bound. Names that a call looks up, creates, removes or moves stay names.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, Kept, NewInode, ReadOptions, SetAttributes, SetExtendedAttribute, WriteOptions, no_wait,
};

use crate::harness::{move_homes, set_aligned, set_home};
use crate::model::{DEFAULT_LIST, Model, Refusal, default_list, link_target};
use crate::operation::{Operation, SLOTS};
use crate::random::fill;
use crate::tree::Tree;

/// A step of a thread: a change or an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An operation of one call.
    Do(Operation),
    /// Attributes by name.
    Look(&'static str),
    /// All names of a directory.
    List(&'static str),
    /// Bytes of a file: path, offset, length.
    Read(&'static str, u64, u32),
    /// Bytes of a held file: slot, offset, length.
    ReadHeld(usize, u64, u32),
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was done; the bytes that a write wrote.
    Done(u64),
    /// It was refused and changed nothing.
    Refused(Refusal),
    /// Type, names and, of a file, its size in bytes.
    Seen(u16, u32, u64),
    /// Names in order.
    Listed(Vec<Vec<u8>>),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// One call of a history. Times are points of one clock, all different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The calling thread.
    pub thread: usize,
    /// The step.
    pub step: Step,
    /// When.
    pub begun: usize,
    /// Time and result of its return; `None` while it is in flight.
    pub returned: Option<(usize, Answer)>,
}

/// Calls of several threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History(pub Vec<Call>);

impl History {
    /// The history at an instant: later calls are removed, calls that had not returned are in flight.
    #[must_use]
    pub fn until(&self, instant: usize) -> Self {
        let begun = self.0.iter().filter(|call| call.begun < instant);
        let known = |call: &Call| Call { returned: call.returned.clone().filter(|(returned, _)| *returned < instant), ..call.clone() };
        Self(begun.map(known).collect())
    }

    /// The model states that result from some valid order of all returned calls and any calls in flight. States with the same
    /// tree count once. None: no order explains the answers.
    pub fn outcomes(&self, start: &Model) -> Vec<Model> {
        assert!(self.0.len() <= 64, "a history of few calls");
        let mut found: Vec<(Tree, Model)> = Vec::new();
        self.search(start, 0, &mut HashSet::new(), &mut found);
        found.into_iter().map(|(_, model)| model).collect()
    }

    /// `seen` holds what was searched already: calls done, and the state that they left.
    fn search(&self, model: &Model, done: u64, seen: &mut HashSet<(u64, u64)>, found: &mut Vec<(Tree, Model)>) {
        if !seen.insert((done, model.fingerprint())) {
            return;
        }
        let left = || (0..self.0.len()).filter(|index| done >> index & 1 == 0);
        if left().all(|index| self.0[index].returned.is_none()) {
            let tree = model.tree();
            if !found.iter().any(|(other, _)| *other == tree) {
                found.push((tree, model.clone()));
            }
        }
        for next in left() {
            let call = &self.0[next];
            let waits_for = |other: &Call| other.returned.as_ref().is_some_and(|(returned, _)| *returned < call.begun);
            if left().any(|other| waits_for(&self.0[other])) {
                continue;
            }
            let mut after = model.clone();
            let answer = after.answer(&call.step, call.returned.as_ref().map(|(_, answer)| answer));
            if call.returned.as_ref().is_none_or(|(_, given)| *given == answer) {
                self.search(&after, done | 1 << next, seen, found);
            }
        }
    }

    /// Whether the tree that was found at the end is explained; the states of the model that have it.
    ///
    /// # Errors
    /// A sentence and the history.
    pub fn explain(&self, start: &Model, found: &Tree) -> Result<Model, String> {
        let outcomes = self.outcomes(start);
        if outcomes.is_empty() {
            return Err(format!("no order of the calls gives their answers\n{}", self.describe()));
        }
        let differences: Vec<String> = outcomes.iter().filter_map(|model| found.difference(&model.tree())).collect();
        outcomes.into_iter().find(|model| found.difference(&model.tree()).is_none()).ok_or_else(|| {
            format!("the tree is none of {} that an order leaves: {}\n{}", differences.len(), differences.join("; or "), self.describe())
        })
    }

    /// One line a call, in the order of their beginnings.
    pub fn describe(&self) -> String {
        let mut calls: Vec<&Call> = self.0.iter().collect();
        calls.sort_by_key(|call| call.begun);
        let line = |call: &&Call| {
            let end = call.returned.as_ref().map_or("on its way".into(), |(at, answer)| format!("{at}: {answer:.120?}"));
            format!("  thread {} {}..{end:.160}  <- {:?}", call.thread, call.begun, call.step)
        };
        calls.iter().map(line).collect::<Vec<String>>().join("\n")
    }
}

/// Why a step of a thread that does not wait has no answer.
enum Tried {
    Refused,
    Failed(String),
}

impl From<Error> for Tried {
    fn from(error: Error) -> Self {
        match error {
            Error::WouldWait => Self::Refused,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// A file system with paths bound to inodes, and held files: what the threads of a workload share.
pub struct Bound {
    inodes: HashMap<String, InodeNumber>,
    held: Mutex<[Option<InodeNumber>; SLOTS]>,
}

fn parent_and_name(path: &str) -> (&str, &[u8]) {
    match path.rsplit_once('/') {
        Some((parent, name)) => (parent, name.as_bytes()),
        None => ("", path.as_bytes()),
    }
}

impl Bound {
    /// Binds these paths of a file system, and the root.
    ///
    /// # Errors
    /// Where one does not resolve.
    pub fn new(fs: &FileSystem, paths: &[&str]) -> Result<Self, Error> {
        let mut bound = HashMap::from([(String::new(), InodeNumber::ROOT)]);
        for path in paths {
            let mut at = InodeNumber::ROOT;
            for part in path.split('/') {
                at = fs.lookup(at, part.as_bytes())?.inode;
            }
            bound.insert((*path).to_owned(), at);
        }
        Ok(Self { inodes: bound, held: Mutex::default() })
    }

    fn parent<'p>(&self, path: &'p str) -> (InodeNumber, &'p [u8]) {
        let (parent, name) = parent_and_name(path);
        match self.inodes.get(parent) {
            Some(inode) => (*inode, name),
            None => unreachable!("the workload binds '{parent}'"),
        }
    }

    fn held(&self, slot: usize) -> Option<InodeNumber> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)[slot]
    }

    fn set_held(&self, slot: usize, inode: Option<InodeNumber>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)[slot] = inode;
    }

    /// Looks a name up and does something with its inode; again where the inode was removed in between, as a kernel does.
    fn with_file<T>(&self, fs: &FileSystem, path: &str, run: impl Fn(InodeNumber) -> Result<T, Error>) -> Result<T, Error> {
        let (parent, name) = self.parent(path);
        if let Some(inode) = self.inodes.get(path) {
            return run(*inode);
        }
        for _ in 0..1000 {
            let found = fs.lookup(parent, name)?.inode;
            match run(found) {
                Err(Error::Stale(_)) => {}
                Err(Error::NotFound) if fs.lookup(parent, name).is_ok_and(|now| now.inode != found) => {}
                other => return other,
            }
        }
        Err(Error::InvalidArgument("a name led to a removed inode again and again"))
    }

    /// Does one step.
    ///
    /// # Errors
    /// Errors that no caller can cause.
    pub fn perform(&self, fs: &FileSystem, step: &Step) -> Result<Answer, String> {
        let answer = match *step {
            Step::Do(operation) => self.operate(fs, &operation).map(Answer::Done),
            Step::Look(path) => {
                let (parent, name) = self.parent(path);
                fs.lookup(parent, name).map(|found| {
                    let kind = found.mode & file_type::MASK;
                    Answer::Seen(kind, found.nlink, if kind == file_type::REGULAR { found.size } else { 0 })
                })
            }
            Step::List(path) => self.with_file(fs, path, |inode| {
                let mut names = Vec::new();
                fs.read_directory(inode, 2, &mut |entry| {
                    names.push(entry.name.to_vec());
                    true
                })?;
                names.sort();
                Ok(Answer::Listed(names))
            }),
            Step::Read(path, offset, length) => self.with_file(fs, path, |inode| read(fs, inode, offset, length)),
            Step::ReadHeld(slot, offset, length) => {
                self.held(slot).ok_or(Error::NotFound).and_then(|inode| read(fs, inode, offset, length))
            }
        };
        answer.or_else(|error| match error {
            Error::Stale(number) if self.passes(step, number) => Ok(Answer::Refused(Refusal::NotFound)),
            error => Refusal::of(&error).map(Answer::Refused).ok_or_else(|| format!("{step:?}: {error}")),
        })
    }

    /// Does one step on a thread that does not wait. `None` if it was refused: then nothing has changed, and it can be repeated.
    ///
    /// # Errors
    /// As [`Bound::perform`].
    pub fn try_perform(&self, fs: &FileSystem, step: &Step) -> Result<Option<Answer>, String> {
        match no_wait(|| self.perform(fs, step).map_err(Tried::Failed)) {
            Ok(answer) => Ok(Some(answer)),
            Err(Tried::Refused) => Ok(None),
            Err(Tried::Failed(what)) => Err(what),
        }
    }

    /// Whether the caller named this inode itself. Only such an inode may be stale; the caller treats it like a missing name.
    fn passes(&self, step: &Step, number: InodeNumber) -> bool {
        match step {
            Step::Look(path)
            | Step::Do(
                Operation::Create(path)
                | Operation::MakeDirectory(path)
                | Operation::Symlink(path, _)
                | Operation::Unlink(path)
                | Operation::RemoveDirectory(path),
            ) => self.parent(path).0 == number,
            Step::Do(Operation::Rename(from, to, _) | Operation::LeaveWhiteout(from, to)) => {
                self.parent(from).0 == number || self.parent(to).0 == number
            }
            _ => true,
        }
    }

    fn operate(&self, fs: &FileSystem, operation: &Operation) -> Result<u64, Error> {
        let create = |path: &str, mode: u16, target: &[u8]| {
            let (parent, name) = self.parent(path);
            fs.create(parent, name, &NewInode { mode, uid: 1, gid: 2, rdev: 0, target }).map(drop)
        };
        let written = |inode, offset, length: u32, seed, append| {
            let options = WriteOptions { append, kept: true, ..WriteOptions::default() };
            fs.write(inode, offset, &fill(seed, length as usize), options).map(|done| done as u64)
        };
        let done = match *operation {
            Operation::Create(path) => create(path, file_type::REGULAR | 0o644, b""),
            Operation::MakeDirectory(path) => create(path, file_type::DIRECTORY | 0o755, b""),
            Operation::Symlink(path, length) => create(path, file_type::SYMLINK | 0o777, &link_target(length)),
            Operation::Link(from, to) => {
                let (parent, name) = self.parent(to);
                self.with_file(fs, from, |inode| fs.link(inode, parent, name).map(drop))
            }
            Operation::Unlink(path) => {
                let (parent, name) = self.parent(path);
                fs.unlink(parent, name)
            }
            Operation::RemoveDirectory(path) => {
                let (parent, name) = self.parent(path);
                fs.remove_directory(parent, name)
            }
            Operation::Rename(from, to, mode) => {
                let ((parent, name), (new_parent, new_name)) = (self.parent(from), self.parent(to));
                fs.rename(parent, name, new_parent, new_name, mode)
            }
            Operation::Write(path, offset, length, seed) => {
                return self.with_file(fs, path, |inode| written(inode, offset, length, seed, false));
            }
            Operation::Append(path, length, seed) => return self.with_file(fs, path, |inode| written(inode, 0, length, seed, true)),
            Operation::Truncate(path, size) => self.with_file(fs, path, |inode| {
                fs.set_attributes(inode, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop)
            }),
            Operation::Allocate(path, offset, length, keep_size) => {
                self.with_file(fs, path, |inode| fs.allocate(inode, offset, length, AllocateMode::Allocate { keep_size }))
            }
            Operation::Punch(path, offset, length) => {
                self.with_file(fs, path, |inode| fs.allocate(inode, offset, length, AllocateMode::Punch))
            }
            Operation::Zero(path, offset, length, keep_size) => {
                self.with_file(fs, path, |inode| fs.allocate(inode, offset, length, AllocateMode::Zero { keep_size }))
            }
            Operation::Collapse(path, offset, length) => {
                self.with_file(fs, path, |inode| fs.allocate(inode, offset, length, AllocateMode::Collapse))
            }
            Operation::Insert(path, offset, length) => {
                self.with_file(fs, path, |inode| fs.allocate(inode, offset, length, AllocateMode::Insert))
            }
            Operation::CopyRange(from, from_offset, to, to_offset, length) => {
                return self.with_file(fs, from, |from| {
                    self.with_file(fs, to, |to| fs.copy_range((from, from_offset), (to, to_offset), length, WriteOptions::default()))
                });
            }
            Operation::SetAttribute(path, name, length, seed) => self.with_file(fs, path, |inode| {
                fs.set_extended_attribute(inode, name.as_bytes(), &fill(seed, length as usize), SetExtendedAttribute::default())
            }),
            Operation::RemoveAttribute(path, name) => {
                self.with_file(fs, path, |inode| fs.remove_extended_attribute(inode, name.as_bytes()))
            }
            Operation::SetDefaultList(path, user) => self.with_file(fs, path, |inode| {
                fs.set_extended_attribute(inode, DEFAULT_LIST, &default_list(user), SetExtendedAttribute::default())
            }),
            Operation::SetHome(path, home) => self.with_file(fs, path, |inode| set_home(fs, inode, home)),
            Operation::SetAligned(path, is_aligned) => self.with_file(fs, path, |inode| set_aligned(fs, inode, is_aligned)),
            Operation::MoveHomes => move_homes(fs),
            Operation::Sync => fs.sync(),
            Operation::Checkpoint => fs.checkpoint(),
            Operation::WriteBack => fs.write_back().map(drop),
            Operation::WriteBackAll => fs.write_back_all().map(drop),
            Operation::Discard => {
                fs.discard_freed();
                Ok(())
            }
            Operation::Hold(slot, path) => self.with_file(fs, path, |inode| {
                let found = fs.attributes(inode)?;
                if found.mode & file_type::MASK != file_type::REGULAR {
                    return Err(Error::InvalidArgument("only files are held"));
                }
                if self.held(slot).is_some() {
                    return Err(Error::Exists);
                }
                fs.remember(inode, found.generation, 1)?;
                self.set_held(slot, Some(inode));
                Ok(())
            }),
            Operation::CreateNameless(slot, path) => {
                if self.held(slot).is_some() {
                    return Err(Error::Exists);
                }
                let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 1, gid: 2, rdev: 0, target: b"" };
                self.with_file(fs, path, |parent| fs.create_nameless(parent, &new, 0)).map(|made| self.set_held(slot, Some(made.inode)))
            }
            Operation::LinkHeld(slot, path) => {
                let (parent, name) = self.parent(path);
                self.held(slot).ok_or(Error::NotFound).and_then(|inode| fs.link(inode, parent, name).map(drop))
            }
            Operation::LeaveWhiteout(from, to) => {
                fs.rename_leaving_whiteout(self.parent(from), self.parent(to), tandemfs_fs::RenameMode::Replace, (1, 2))
            }
            Operation::WriteHeld(slot, offset, length, seed) => {
                return self.held(slot).ok_or(Error::NotFound).and_then(|inode| written(inode, offset, length, seed, false));
            }
            Operation::Forget(slot) => {
                if let Some(inode) = self.held(slot) {
                    self.set_held(slot, None);
                    fs.forget(inode, 1);
                }
                Ok(())
            }
            Operation::Remount | Operation::Crash | Operation::Scatter(..) | Operation::CreateMany(..) | Operation::UnlinkMany(..) => {
                unreachable!("{operation:?} is not one call")
            }
        };
        done.map(|()| u64::MAX)
    }
}

fn read(fs: &FileSystem, inode: InodeNumber, offset: u64, length: u32) -> Result<Answer, Error> {
    let mut bytes = vec![0; length as usize];
    let done = fs.read_with(inode, offset, &mut bytes, ReadOptions { kept: Kept::Here })?;
    bytes.truncate(done);
    Ok(Answer::Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::*;

    /// Calls of (thread, step, begun, returned, answer).
    fn history(calls: &[(usize, Step, usize, usize, Answer)]) -> History {
        let call = |(thread, step, begun, returned, answer): &(usize, Step, usize, usize, Answer)| Call {
            thread: *thread,
            step: *step,
            begun: *begun,
            returned: (*returned > 0).then(|| (*returned, answer.clone())),
        };
        History(calls.iter().map(call).collect())
    }

    const DONE: Answer = Answer::Done(u64::MAX);
    const MISSING: Answer = Answer::Refused(Refusal::NotFound);
    const TAKEN: Answer = Answer::Refused(Refusal::Exists);

    fn with(operations: &[Operation]) -> Model {
        let mut model = Model::default();
        for operation in operations {
            model.apply(operation).expect("prepares");
        }
        model
    }

    #[test]
    fn of_two_creations_of_a_name_one_succeeds() {
        let both = |second: Answer| history(&[(0, Step::Do(Create("a")), 1, 4, DONE), (1, Step::Do(Create("a")), 2, 3, second)]);
        assert_eq!(both(TAKEN).outcomes(&Model::default()).len(), 1);
        assert!(both(DONE).outcomes(&Model::default()).is_empty(), "both cannot have made it");
    }

    #[test]
    fn a_call_that_returned_before_another_began_comes_first() {
        let look = |begun, returned| (1, Step::Look("a"), begun, returned, MISSING);
        let creation = (0, Step::Do(Create("a")), 1, 4, DONE);
        assert_eq!(history(&[creation.clone(), look(2, 3)]).outcomes(&Model::default()).len(), 1);
        assert!(history(&[creation, look(5, 6)]).outcomes(&Model::default()).is_empty(), "it was there when the look began");
    }

    #[test]
    fn a_name_that_is_renamed_over_is_never_missing() {
        let start = with(&[Create("a"), Create("b")]);
        let rename = (0, Step::Do(Rename("b", "a", tandemfs_fs::RenameMode::Replace)), 1, 4, DONE);
        assert!(history(&[rename.clone(), (1, Step::Look("a"), 2, 3, MISSING)]).outcomes(&start).is_empty());
        assert_eq!(history(&[rename, (1, Step::Look("b"), 2, 3, MISSING)]).outcomes(&start).len(), 1);
    }

    #[test]
    fn a_read_sees_all_of_a_write_or_nothing() {
        let start = with(&[Create("a"), Write("a", 0, 200, 1)]);
        let read = |bytes: Vec<u8>| {
            history(&[
                (0, Step::Do(Write("a", 0, 200, 2)), 1, 4, Answer::Done(200)),
                (1, Step::Read("a", 0, 200), 2, 3, Answer::Bytes(bytes)),
            ])
        };
        let (old, new) = (fill(1, 200), fill(2, 200));
        assert_eq!(read(old.clone()).outcomes(&start).len(), 1);
        assert_eq!(read(new.clone()).outcomes(&start).len(), 1);
        assert!(read([&new[..100], &old[100..]].concat()).outcomes(&start).is_empty());
    }

    #[test]
    fn a_cut_keeps_what_had_returned_and_any_of_the_rest() {
        let calls = history(&[
            (0, Step::Do(Create("a")), 1, 2, DONE),
            (0, Step::Do(Create("b")), 3, 6, DONE),
            (1, Step::Do(Unlink("a")), 4, 7, DONE),
            (1, Step::Do(Create("c")), 8, 9, DONE),
        ]);
        let start = Model::default();
        let trees = |instant| {
            let models = calls.until(instant).outcomes(&start);
            let names = |model: &Model| model.tree().0.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<String>();
            let mut names: Vec<String> = models.iter().map(names).collect();
            names.sort();
            names
        };
        assert_eq!(trees(1), [""]);
        assert_eq!(trees(2), ["", "a"]);
        assert_eq!(trees(3), ["a"], "it had returned");
        assert_eq!(trees(5), ["", "a", "ab", "b"], "two on their way");
        assert_eq!(trees(7), ["ab", "b"]);
        assert_eq!(trees(9), ["b", "bc"]);
        let mut lost = with(&[Create("b")]);
        assert!(calls.until(7).explain(&start, &lost.tree()).is_ok());
        lost.apply(&Unlink("b")).expect("there");
        let refused = calls.until(7).explain(&start, &lost.tree()).expect_err("b had been answered");
        assert!(refused.contains("'b' is missing"), "{refused}");
    }

    #[test]
    fn a_bound_directory_is_meant_under_its_new_name() {
        let mut start = with(&[MakeDirectory("d")]);
        start.bind(&["d"]);
        let calls = history(&[
            (0, Step::Do(Rename("d", "e", tandemfs_fs::RenameMode::Replace)), 1, 2, DONE),
            (1, Step::Do(Create("d/x")), 3, 4, DONE),
        ]);
        let outcomes = calls.outcomes(&start);
        assert!(outcomes.len() == 1 && outcomes[0].tree().0.contains_key(&b"e/x"[..]));
    }
}
