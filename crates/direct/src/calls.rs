//! Messages as calls of `vfs`, in the poller's thread or those of the pool.

mod ahead;

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use rustix::io::Errno;
use tandemfs_device::{SharedBytes, Sink, Source};
use tandemfs_format::inode::Timestamp;
use tandemfs_fs::{Error, LentExtent, Noted, may_wait};
use tandemfs_protocol::{
    Crossed, EntryWriter, Handle, LENT_TAIL_BYTES, LENT_WINDOW_BYTES, LentRange, LentTail, Listed, Operation, Outcome, Place, Space,
    StoreLease, Subject as Named, TAIL_LENGTH_BITS, TEXT_BYTES_MAX, TRANSFER_BYTES_MAX, Text, TimeToSet as TimeGiven, Unless, Whence, Why,
};
use tandemfs_ring::{Answer, Attributes as Shown, Range, Request, Seen, Ticket, Time};
use tandemfs_trace::Recorder;
use tandemfs_vfs::{
    At, NAME_BYTES_MAX, OpenFile, Owed, Process, QUICK_BYTES, Refused, Result, SPACE_UNIT_BYTES, Seek, SetTimes, Subject, TimeToSet, Vfs,
    is_failure, no_wait,
};

use crate::clients::Client;
use crate::descriptors;
use crate::known::Keeps;
use crate::lent_stores::{Part, Storing};
use crate::mutant::{self, Mutant};
use crate::traced::Traced;

/// `st_blksize`, as behind the mount.
const BLOCK_BYTES: u32 = 4096;

const _: () = assert!(LENT_WINDOW_BYTES == tandemfs_fs::LENT_BYTES && TAIL_LENGTH_BITS == tandemfs_format::lent_room::LENGTH_BITS);

thread_local! {
    /// Bytes on their way between a client and the file system; a client may change its own at any time ([D1]).
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a call has come to.
pub(crate) struct Served {
    pub(crate) outcome: Outcome,
    /// A failure for the log.
    pub(crate) failure: Option<String>,
    /// What the outcome depends on, if the client may keep it.
    seen: Option<Seen>,
}

impl Served {
    /// Gives it to the client.
    pub(crate) fn answer(&self, ticket: Ticket) {
        ticket.answer_for(&self.outcome.encode(), self.seen.as_ref());
    }
}

/// Serves a request that was decoded before; may wait.
pub(crate) fn serve(vfs: &Vfs, recorder: &Recorder, client: &Client, request: &Request, ticket: &Ticket) -> Served {
    let call = Call { vfs, client, ticket };
    match Operation::decode(request) {
        Ok(operation) => {
            let traced = Traced::begin(recorder, client, &operation, ticket);
            let keeps = Keeps::of(&operation);
            let served = call.noting(keeps, || call.run(operation), |result, noted| call.served(result, keeps, noted));
            if let Some(traced) = traced {
                traced.end(&served.outcome);
            }
            call.with_answers_ahead(&operation, served)
        }
        Err(_) => call.served(Err(Errno::INVAL.into()), Keeps::Nothing, None),
    }
}

/// Whether an operation is for the pool in any case: it has no form that does not wait, or its bytes alone take longer to copy than the poller
/// works for one request ([SRV1]).
pub(crate) fn is_for_the_pool(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Write { from: bytes, .. } | Operation::SetAttribute { value: bytes, .. } => u64::from(bytes.length) > QUICK_BYTES,
        Operation::CopyRange { .. }
        | Operation::Allocate { .. }
        | Operation::FileSystemSpace { .. }
        | Operation::SyncFileSystem
        | Operation::Descriptor { .. }
        | Operation::Lend { .. } // [LND3]
        | Operation::Map { .. }
        | Operation::MapForStores { .. }
        | Operation::Unmap { .. }
        | Operation::LendStores { .. } // [LNS7]
        | Operation::ReturnStores { .. }
        | Operation::LendTail { .. }
        | Operation::Appended { .. } => true,
        _ => false,
    }
}

/// Serves an operation without waiting; none if it has to be served by [`serve`]. Then nothing has changed. What is owed comes before the
/// answer, or before the operation is served anew.
pub(crate) fn try_serve(
    vfs: &Vfs,
    recorder: &Recorder,
    client: &Client,
    operation: Operation<'_>,
    ticket: &Ticket,
) -> (Option<Served>, Owed) {
    let call = Call { vfs, client, ticket };
    let traced = Traced::begin(recorder, client, &operation, ticket);
    let keeps = Keeps::of(&operation);
    let run = || match mutant::on(Mutant::PollerWaits) {
        false => no_wait(|| call.run(operation)),
        true => (call.run(operation), Owed::default()),
    };
    let (served, owed) = call.noting(keeps, run, |(result, owed), noted| match result {
        Err(Refused::FileSystem(Error::WouldWait)) => (None, owed),
        result => (Some(call.served(result, keeps, noted)), owed),
    });
    if let (Some(traced), Some(served)) = (traced, &served) {
        traced.end(&served.outcome);
    }
    (served.map(|served| call.with_answers_ahead(&operation, served)), owed)
}

/// What a call gives.
struct Given {
    answer: Answer,
    /// A file that it has opened. It gets its number when nothing of the call can be refused any more.
    opened: Option<OpenFile>,
}

impl From<Answer> for Given {
    fn from(answer: Answer) -> Self {
        Self { answer, opened: None }
    }
}

fn outcome(refused: &Refused) -> Outcome {
    match refused {
        Refused::Crossed(crossed) => {
            let why = match crossed.why {
                tandemfs_vfs::Why::Absolute => Why::Absolute,
                tandemfs_vfs::Why::AboveRoot => Why::AboveRoot,
                tandemfs_vfs::Why::MountPoint => Why::MountPoint,
                tandemfs_vfs::Why::RemovedDirectory => Why::RemovedDirectory,
                tandemfs_vfs::Why::SpecialFile => Why::SpecialFile,
                tandemfs_vfs::Why::Cached => Why::Cached,
                tandemfs_vfs::Why::Grows => Why::Grows,
                tandemfs_vfs::Why::Watched => Why::Watched,
            };
            Outcome::Crossed(Crossed { why, argument: crossed.argument as u8 }) // [D14]
        }
        Refused::FileSystem(error) => Outcome::Errno(tandemfs_vfs::errno(error).raw_os_error()), // [D2]
        Refused::Errno(errno) => Outcome::Errno(errno.raw_os_error()),
    }
}

struct Call<'c> {
    vfs: &'c Vfs,
    client: &'c Client,
    ticket: &'c Ticket,
}

/// Where a path begins; keeps the directory open.
struct Start(Option<Arc<OpenFile>>);

impl Start {
    fn at(&self) -> At<'_> {
        self.0.as_deref().map_or(At::Root, At::Open)
    }
}

/// A file of a call, with what it needs.
struct Meant<'a> {
    start: Start,
    path: Cow<'a, [u8]>,
    flags: i32,
    is_open: bool,
}

impl Meant<'_> {
    fn subject(&self) -> Result<Subject<'_>> {
        match (&self.start.0, self.is_open) {
            (Some(file), true) => Ok(Subject::Open(file)),
            _ => Subject::at(self.start.at(), &self.path, self.flags),
        }
    }
}

fn value(value: u64) -> Answer {
    Answer { value, ..Answer::default() }
}

fn range(extent: &LentExtent) -> LentRange {
    LentRange { file_offset: extent.file_offset, zone_offset: extent.device_offset, bytes: extent.bytes }
}

fn with_attributes(attributes: &tandemfs_fs::Attributes) -> Answer {
    Answer { attributes: Some(shown(attributes)), ..Answer::default() }
}

fn shown(attributes: &tandemfs_fs::Attributes) -> Shown {
    let time = |time: Timestamp| Time { seconds: time.seconds, nanoseconds: time.nanoseconds };
    Shown {
        node: attributes.inode.get(),
        size_bytes: attributes.size,
        space_512: attributes.space_512,
        mode: attributes.mode.into(),
        links: attributes.nlink,
        user: attributes.uid,
        group: attributes.gid,
        device_number: attributes.rdev.into(),
        block_bytes: BLOCK_BYTES,
        flags: if attributes.has_extended_attributes { 0 } else { Shown::NOTHING_EXTENDED },
        accessed: time(attributes.atime),
        modified: time(attributes.mtime),
        changed: time(attributes.ctime),
        created: time(attributes.birth),
    }
}

fn time_to_set(given: TimeGiven) -> TimeToSet {
    match given {
        TimeGiven::Omit => TimeToSet::Omit,
        TimeGiven::Now => TimeToSet::Now,
        TimeGiven::At { seconds, nanoseconds } => TimeToSet::At(seconds, nanoseconds.into()),
    }
}

impl Call<'_> {
    /// Runs an operation, with what it reads noted if its answer may be kept.
    fn noting<T, R>(&self, keeps: Keeps, run: impl FnOnce() -> T, then: impl FnOnce(T, Option<&Noted>) -> R) -> R {
        match keeps {
            Keeps::Nothing => then(run(), None),
            _ if self.client.knows_versions => self.vfs.file_system().noting(run, |result, noted| then(result, Some(noted))),
            _ => then(run(), None),
        }
    }

    fn served(&self, result: Result<Given>, keeps: Keeps, noted: Option<&Noted>) -> Served {
        let failure = match &result {
            Err(Refused::FileSystem(error)) if is_failure(error) => Some(error.to_string()),
            _ => None,
        };
        let outcome = match result.and_then(|given| self.numbered(given)) {
            Ok(answer) => Outcome::Done(answer),
            Err(refused) => outcome(&refused),
        };
        let seen = noted.filter(|_| self.may_be_kept(keeps)).map(|noted| keeps.seen(&outcome, noted));
        Served { seen, outcome, failure }
    }

    /// [KNW5]
    fn may_be_kept(&self, keeps: Keeps) -> bool {
        let (Keeps::Bytes(handle) | Keeps::Places(handle) | Keeps::Synced(handle)) = keeps else { return true };
        let Ok(file) = self.client.handles.get(handle) else { return false };
        let is_shared = self.vfs.leaves_pages(&file).is_err() && !mutant::on(Mutant::KernelPagesKept);
        file.flags() & libc::O_DIRECT == 0 && !is_shared
    }

    fn numbered(&self, given: Given) -> Result<Answer> {
        let Some(file) = given.opened else { return Ok(given.answer) };
        let handle = self.client.handles.add(file)?;
        Ok(Answer { value: handle.get(), ..given.answer })
    }

    fn run(&self, operation: Operation<'_>) -> Result<Given> {
        match operation {
            Operation::Open { at, path, flags, mode, umask, .. } => self.open(at, path, flags, mode, umask),
            other => self.run_on_open_files(other).map(Given::from),
        }
    }

    fn run_on_open_files(&self, operation: Operation<'_>) -> Result<Answer> {
        let process = self.client.process();
        let done = |()| Answer::default();
        match operation {
            Operation::Nothing => Ok(Answer::default()),
            Operation::Close { handle } => {
                if process.leaves_watched {
                    self.vfs.leaves_watched_end(&process, &*self.file(handle)?)?;
                }
                let close = || self.client.handles.remove(handle);
                let Some(storing) = &self.client.storing else { return Ok(close().map(|_| Answer::default())?) };
                if let Some(closed) = storing.unless_lent(handle, close) {
                    return Ok(closed.map(|_| Answer::default())?);
                }
                may_wait()?; // the end of leases
                close()?;
                // The file is closed in any case.
                storing.end_of(handle).unwrap_or_else(|error| tracing::warn!("a lease for stores could not be ended yet: {error}"));
                Ok(Answer::default())
            }
            Operation::Read { handle, offset, into, unless } => {
                self.is_for_the_door(handle, offset, into, unless)?;
                if process.leaves_watched {
                    self.vfs.leaves_watched_file(&process, &*self.file(handle)?)?;
                }
                self.read(handle, offset, into)
            }
            Operation::Write { handle, offset, from, flags, unless } => {
                self.is_for_the_door(handle, offset, from, unless)?;
                self.write(&process, handle, offset, from, flags)
            }
            Operation::ReadDirectory { handle, cookie, into } => {
                if process.leaves_watched {
                    self.vfs.leaves_watched_file(&process, &*self.file(handle)?)?;
                }
                self.list(handle, cookie, into)
            }
            Operation::Allocate { handle, flags, offset, length } => {
                self.vfs.allocate(&process, &*self.file(handle)?, flags, offset, length).map(done)
            }
            Operation::Sync { handle, data_only } => self.vfs.sync(&*self.file(handle)?, data_only).map(done),
            Operation::CopyRange { from, to, length, flags } => {
                let (source, target) = (self.file(from.0)?, self.file(to.0)?);
                self.vfs.copy_range(&process, (&source, from.1), (&target, to.1), length, flags).map(value)
            }
            Operation::Seek { handle, offset, whence } => {
                let from = if whence == Whence::Data { Seek::Data } else { Seek::Hole };
                self.vfs.seek(&*self.file(handle)?, offset, from).map(value)
            }
            Operation::SetFlags { handle, flags } => self.set_flags(&process, handle, flags).map(done),
            Operation::Descriptor { handle } => {
                let file = self.file(handle)?;
                descriptors::send(&self.client.sending, handle, &file)?;
                file.tell_end(); // by that descriptor
                Ok(Answer::default())
            }
            Operation::Lend { handle, offset, into } => self.lend(handle, offset, into),
            Operation::Map { handle, offset, length, into } => self.map(&process, (handle, false), offset, length, into),
            Operation::MapForStores { handle, offset, length, into } => self.map(&process, (handle, true), offset, length, into),
            Operation::Unmap { mapping } => Ok(self.client.mappings.remove(mapping.get()).map(done)?),
            Operation::LendStores { handle, offset, into } => self.lend_stores(&process, handle, offset, into),
            Operation::ReturnStores { lease } => {
                let lease = StoreLease::decode(lease.get()).map_err(|_| Errno::INVAL)?;
                Ok(self.storing()?.give_back(lease.0).map(done)?)
            }
            Operation::LendTail { handle, into } => self.lend_tail(&process, handle, into),
            Operation::Appended { lease } => {
                let lease = StoreLease::decode(lease.get()).map_err(|_| Errno::INVAL)?;
                self.storing()?.appended(lease.0).map(value)
            }
            Operation::FileSystemSpace { into } => self.space(into),
            Operation::SyncFileSystem => match self.vfs.file_system().is_read_only() {
                true => Ok(Answer::default()),
                false => Ok(self.vfs.file_system().sync_mapped(None).map(done)?),
            },
            Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::MakeDirectory { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeLink { .. }
            | Operation::Link { .. }
            | Operation::ReadLink { .. }
            | Operation::Rename { .. } => self.change_names(&process, operation),
            _ => self.of_subject(&process, operation),
        }
    }

    fn change_names(&self, process: &Process, operation: Operation<'_>) -> Result<Answer> {
        let done = |()| Answer::default();
        match operation {
            Operation::Unlink { at, path } => self.vfs.unlink(process, self.start(at)?.at(), &self.text(path)?).map(done),
            Operation::RemoveDirectory { at, path } => {
                self.vfs.remove_directory(process, self.start(at)?.at(), &self.text(path)?).map(done)
            }
            Operation::MakeDirectory { at, path, mode, umask } => {
                let process = self.client.process_under(umask);
                let made = self.vfs.make_directory(&process, self.start(at)?.at(), &self.text(path)?, mode)?;
                Ok(with_attributes(&made))
            }
            Operation::MakeNode { at, path, mode, umask, device } => {
                let process = self.client.process_under(umask);
                let made = self.vfs.make_node(&process, self.start(at)?.at(), &self.text(path)?, mode, device)?;
                Ok(with_attributes(&made))
            }
            Operation::MakeLink { at, path, target } => {
                let target = self.text(target)?;
                if target.contains(&0) {
                    return Err(Errno::INVAL.into());
                }
                let made = self.vfs.make_link(process, &target, self.start(at)?.at(), &self.text(path)?)?;
                Ok(with_attributes(&made))
            }
            Operation::Link { from, to, flags } => {
                let (first, second) = (self.start(from.0)?, self.start(to.0)?);
                let (from, to) = (self.text(from.1)?, self.text(to.1)?);
                self.vfs.link(process, (first.at(), &from), (second.at(), &to), flags).map(done)
            }
            Operation::Rename { from, to, flags } => {
                let (first, second) = (self.start(from.0)?, self.start(to.0)?);
                let (from, to) = (self.text(from.1)?, self.text(to.1)?);
                self.vfs.rename(process, (first.at(), &from), (second.at(), &to), flags).map(done)
            }
            Operation::ReadLink { at, path, into } => {
                let target = self.vfs.read_link(process, self.start(at)?.at(), &self.text(path)?)?;
                let cut = &target[..target.len().min(into.length as usize)];
                if cut.is_empty() {
                    return Err(Errno::INVAL.into()); // a buffer of no length
                }
                self.put(into, cut)
            }
            other => unreachable!("{:?} changes no name", other.number()),
        }
    }

    fn of_subject(&self, process: &Process, operation: Operation<'_>) -> Result<Answer> {
        let done = |()| Answer::default();
        match operation {
            Operation::Stat { subject } | Operation::StatAhead { subject, .. } => {
                let attributes = self.vfs.stat(process, self.meant(subject)?.subject()?)?;
                Ok(with_attributes(&attributes))
            }
            Operation::Access { subject, mode, effective } => {
                self.vfs.access(process, self.meant(subject)?.subject()?, mode, effective).map(done)
            }
            Operation::Truncate { subject, length } => self.vfs.truncate(process, self.meant(subject)?.subject()?, length).map(done),
            Operation::ChangeMode { subject, mode } => self.vfs.change_mode(process, self.meant(subject)?.subject()?, mode).map(done),
            Operation::ChangeOwner { subject, user, group } => {
                self.vfs.change_owner(process, self.meant(subject)?.subject()?, user, group).map(done)
            }
            Operation::SetTimes { subject, accessed, modified } => {
                let times = SetTimes { atime: time_to_set(accessed), mtime: time_to_set(modified) };
                self.vfs.set_times(process, self.meant(subject)?.subject()?, times).map(done)
            }
            Operation::GetAttribute { subject, name, into } => {
                let value = self.vfs.extended_attribute(process, self.meant(subject)?.subject()?, attribute_name(name)?)?;
                self.put_whole(into, &value)
            }
            Operation::SetAttribute { subject, name, value, flags } => {
                let name = attribute_name(name)?;
                let meant = self.meant(subject)?;
                self.with_bytes(value, |bytes| self.vfs.set_extended_attribute(process, meant.subject()?, name, bytes, flags)).map(done)
            }
            Operation::ListAttributes { subject, into } => {
                let names = self.vfs.list_extended_attributes(process, self.meant(subject)?.subject()?)?;
                self.put_whole(into, &names)
            }
            Operation::RemoveAttribute { subject, name } => {
                self.vfs.remove_extended_attribute(process, self.meant(subject)?.subject()?, attribute_name(name)?).map(done)
            }
            other => unreachable!("{:?} has no subject", other.number()),
        }
    }

    fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        Ok(self.client.handles.get(handle)?)
    }

    fn start(&self, at: Place) -> Result<Start> {
        match at {
            Place::Root => Ok(Start(None)),
            Place::Open(handle) => Ok(Start(Some(self.file(handle)?))),
        }
    }

    /// A text, copied once.
    fn text<'a>(&self, text: Text<'a>) -> Result<Cow<'a, [u8]>> {
        match text {
            Text::Here(bytes) => Ok(Cow::Borrowed(bytes)),
            Text::There(range) if range.length <= TEXT_BYTES_MAX => {
                let mut bytes = vec![0; range.length as usize];
                self.ticket.data(range).ok_or(Errno::FAULT)?.read(0, &mut bytes);
                Ok(Cow::Owned(bytes))
            }
            Text::There(_) => Err(Errno::NAMETOOLONG.into()),
        }
    }

    fn meant<'a>(&self, subject: Named<'a>) -> Result<Meant<'a>> {
        Ok(match subject {
            Named::Path { at, path, flags } => Meant { start: self.start(at)?, path: self.text(path)?, flags, is_open: false },
            Named::Open(handle) => Meant { start: Start(Some(self.file(handle)?)), path: Cow::Borrowed(&[]), flags: 0, is_open: true },
        })
    }

    fn open(&self, at: Place, path: Text<'_>, flags: i32, mode: u32, umask: u16) -> Result<Given> {
        let process = self.client.process_under(umask);
        if !self.client.handles.has_room() {
            return Err(Errno::MFILE.into()); // before a file is made
        }
        self.vfs.file_system().note_watchers(); // [KNW6]
        let (file, attributes) = self.vfs.open_and_stat(&process, self.start(at)?.at(), &self.text(path)?, flags, mode)?;
        Ok(Given { answer: with_attributes(&attributes), opened: Some(file) }) // [SRV2]
    }

    /// Hands a transfer back that its client wants left to the mount.
    fn is_for_the_door(&self, handle: Handle, offset: i64, bytes: Range, unless: Unless) -> Result<()> {
        if unless == Unless::default() {
            return Ok(());
        }
        let file = self.file(handle)?;
        if unless.cached {
            self.vfs.leaves_reads(&file)?;
        }
        if unless.grows { self.vfs.leaves_growth(&file, offset, bytes.length.into()) } else { Ok(()) }
    }

    fn read(&self, handle: Handle, offset: i64, into: Range) -> Result<Answer> {
        let (file, length) = (self.file(handle)?, transfer(into)?);
        if into.length >= self.client.lent_bytes_min {
            let done = self.vfs.read_into(&file, offset, Sink::Shared(self.shared(into)?))?;
            return Ok(value(done as u64));
        }
        BYTES.with_borrow_mut(|bytes| {
            grow(bytes, length);
            let done = self.vfs.read_at(&file, offset, &mut bytes[..length])?;
            self.put(into, &bytes[..done])
        })
    }

    fn lend(&self, handle: Handle, offset: i64, into: Range) -> Result<Answer> {
        if !self.client.has_zone && !mutant::on(Mutant::LentWithoutZone) {
            return Err(Errno::NOSYS.into()); // [LND2]
        }
        let extents = self.vfs.lend(&*self.file(handle)?, offset)?;
        let ranges = extents.iter().map(range).filter(|range| self.knows(range));
        self.put(into, &LentRange::encode(ranges, transfer(into)?))
    }

    /// Whether a range lies in the zone as the client was told of it ([LND4]).
    fn knows(&self, range: &LentRange) -> bool {
        range.zone_offset.checked_add(range.bytes).is_some_and(|end| end <= self.client.zone_bytes)
    }

    /// ENOSYS for a client that stores nothing ([LNS1] of `lent_stores.rs`).
    fn storing(&self) -> Result<&Storing> {
        Ok(self.client.storing.as_ref().ok_or(Errno::NOSYS)?)
    }

    fn lend_stores(&self, process: &Process, handle: Handle, offset: i64, into: Range) -> Result<Answer> {
        let (storing, room) = (self.storing()?, transfer(into)?);
        let lent = storing.lend(self.vfs, process, (&self.client.handles, handle), Part::Around(offset))?;
        let Some((token, lease)) = lent else { return Ok(Answer::default()) };
        let ranges = lease.extents().iter().map(range).filter(|range| self.knows(range));
        // What has no room in the list, or lies where the client does not see it, is lent, and not stored to.
        let answer = self.put(into, &LentRange::encode(ranges, room))?;
        Ok(Answer { further: StoreLease(token).encode(), ..answer })
    }

    fn lend_tail(&self, process: &Process, handle: Handle, into: Range) -> Result<Answer> {
        let storing = self.storing()?;
        if transfer(into)? < LENT_TAIL_BYTES {
            return Err(Errno::INVAL.into());
        }
        let lent = storing.lend(self.vfs, process, (&self.client.handles, handle), Part::Tail)?;
        let Some((token, lease)) = lent else { return Ok(Answer::default()) };
        let (Some(room), Some(last)) = (lease.room(), lease.extents().last()) else { return Ok(Answer::default()) };
        let last = range(last);
        if !self.knows(&LentRange { bytes: last.bytes.saturating_add(room.bytes()), ..last }) {
            storing.give_back(token)?;
            return Ok(Answer::default());
        }
        let tail = LentTail { last, room_bytes: room.bytes(), word_offset: room.word_offset(), word: room.word(0) };
        let answer = self.put(into, &tail.encode())?;
        Ok(Answer { further: StoreLease(token).encode(), ..answer })
    }

    /// [LNS3]
    fn set_flags(&self, process: &Process, handle: Handle, flags: i32) -> Result<()> {
        let (file, storing) = (self.file(handle)?, self.client.storing.as_ref());
        if storing.is_some_and(|storing| storing.has_of(handle)) {
            may_wait()?; // the end of leases
        }
        self.vfs.set_flags(process, &file, flags)?;
        match storing.filter(|_| !file.may_be_stored_to()) {
            Some(storing) => Ok(storing.end_of(handle)?),
            None => Ok(()),
        }
    }

    /// [MAP1]–[MAP4], [MAP6] of `mappings.rs`
    fn map(&self, process: &Process, (handle, for_stores): (Handle, bool), offset: i64, length: u64, into: Range) -> Result<Answer> {
        let mappings = &self.client.mappings;
        mappings.are_served()?;
        mappings.have_room(length)?;
        let mapped = self.vfs.map(process, &*self.file(handle)?, offset, length, for_stores)?;
        let ranges: Vec<_> = mapped
            .extents()
            .iter()
            .map(|extent| LentRange { file_offset: extent.file_offset, zone_offset: extent.device_offset, bytes: extent.bytes })
            .collect();
        if !ranges.iter().all(|range| self.knows(range)) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let bytes = LentRange::encode_mapped(&ranges, transfer(into)?).ok_or(Errno::NOMEM)?;
        let answer = self.put(into, &bytes)?; // before anybody may store
        let number = match for_stores {
            true => mappings.add_for_stores(mapped, self.vfs.file_system().drive())?,
            false => mappings.add(mapped)?,
        };
        Ok(Answer { further: number, ..answer })
    }

    fn write(&self, process: &Process, handle: Handle, offset: i64, from: Range, flags: i32) -> Result<Answer> {
        let file = self.file(handle)?;
        let write = |bytes: Source<'_>| self.vfs.write_to(process, &file, offset, bytes, flags);
        let (done, end) = match transfer(from)? {
            length if length < self.client.lent_bytes_min as usize => self.with_bytes(from, |bytes| write(bytes.into()))?,
            _ => write(Source::Shared(self.shared(from)?))?,
        };
        Ok(Answer { value: done as u64, further: end, ..Answer::default() })
    }

    fn list(&self, handle: Handle, cookie: u64, into: Range) -> Result<Answer> {
        let (file, mut writer) = (self.file(handle)?, EntryWriter::new(transfer(into)?));
        let mut is_full = false;
        self.vfs.read_directory_behind(&file, cookie, &mut |entry| {
            let listed = Listed { inode: entry.inode.get(), cookie: entry.cookie, kind: entry.file_type, name: entry.name };
            is_full = !writer.push(&listed);
            !is_full
        })?;
        if is_full && writer.bytes().is_empty() {
            return Err(Errno::INVAL.into()); // as getdents64(2)
        }
        self.put(into, writer.bytes())
    }

    fn space(&self, into: Range) -> Result<Answer> {
        let space = self.vfs.statfs();
        let space = Space {
            unit_bytes: SPACE_UNIT_BYTES,
            units: space.units,
            free: space.free,
            available: space.available,
            files: space.files,
            files_free: space.files_free,
            name_bytes_max: NAME_BYTES_MAX.into(),
        };
        self.put_whole(into, &space.encode())
    }

    /// Bytes of a client where they are.
    fn shared(&self, range: Range) -> Result<SharedBytes<'_>> {
        Ok(SharedBytes::new(self.ticket.data(range).ok_or(Errno::FAULT)?.atomics()))
    }

    /// Bytes of a client, copied once.
    fn with_bytes<T>(&self, from: Range, take: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let length = transfer(from)?;
        BYTES.with_borrow_mut(|bytes| {
            grow(bytes, length);
            self.ticket.data(from).ok_or(Errno::FAULT)?.read(0, &mut bytes[..length]);
            take(&bytes[..length])
        })
    }

    /// Returns bytes, which fit.
    fn put(&self, into: Range, bytes: &[u8]) -> Result<Answer> {
        self.ticket.data(into).ok_or(Errno::FAULT)?.write(0, bytes);
        Ok(value(bytes.len() as u64))
    }

    /// Returns bytes if they fit; their number alone to an empty range.
    fn put_whole(&self, into: Range, bytes: &[u8]) -> Result<Answer> {
        match into.length as usize {
            0 => Ok(value(bytes.len() as u64)),
            room if room < bytes.len() => Err(Errno::RANGE.into()),
            _ => self.put(into, bytes),
        }
    }
}

/// The length of a transfer, bounded.
fn transfer(range: Range) -> Result<usize> {
    if range.length <= TRANSFER_BYTES_MAX { Ok(range.length as usize) } else { Err(Errno::INVAL.into()) }
}

fn grow(bytes: &mut Vec<u8>, length: usize) {
    if bytes.len() < length {
        bytes.resize(length, 0);
    }
}

fn attribute_name(name: &[u8]) -> Result<&[u8]> {
    if name.contains(&0) { Err(Errno::INVAL.into()) } else { Ok(name) }
}
