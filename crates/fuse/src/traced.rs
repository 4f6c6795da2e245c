//! Operations of the mount for a trace, and the daemon's side of `tandemfs trace`.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_trace::record::set;
use tandemfs_trace::{Door, Operation as Kind, Record, Recorder, Recording};
use tandemfs_wire::{Operation, Reply, Request};

use crate::control::Listener;

/// How often what was recorded is handed on: a buffer then holds what comes at 350,000 operations a second on its CPU.
const EVERY: Duration = Duration::from_millis(20);

/// The reply, of which a trace is told if there is one.
#[inline]
pub(crate) fn watched<'r>(recorder: &Arc<Recorder>, request: &Request<'_>, reply: Reply<'r>) -> Reply<'r> {
    match recorder.start() {
        Some(started) => told(recorder, started, request, reply),
        None => reply,
    }
}

#[cold]
fn told<'r>(recorder: &Arc<Recorder>, started: Instant, request: &Request<'_>, reply: Reply<'r>) -> Reply<'r> {
    let Some(record) = record(request) else { return reply };
    let (recorder, mut record) = (Arc::clone(recorder), record.into_owned());
    reply.watched(Box::new(move |said| {
        record.value = said.value;
        record.errno = match said.error {
            Some(error) => error.code().cast_unsigned(),
            // A name that is not there is an entry without a node, which the kernel may keep.
            None if record.operation == Kind::Lookup && said.value == 0 => libc::ENOENT.cast_unsigned(),
            None => 0,
        };
        recorder.record(started, record);
    }))
}

/// What a trace has of a request; none for what only says that something is kept or forgotten.
fn record<'a>(request: &Request<'a>) -> Option<Record<'a>> {
    let new = |kind| Record { thread: request.pid, user: request.uid, ..Record::new(kind, Door::Mount, request.node) };
    let named = |kind, name: &'a [u8]| Record { name: name.into(), ..new(kind) };
    Some(match request.operation {
        Operation::Lookup { name } => named(Kind::Lookup, name),
        Operation::Getattr { .. } | Operation::Statx { .. } => new(Kind::Getattr),
        Operation::Setattr(given) => {
            let bits = [
                (given.mode.is_some(), set::MODE),
                (given.uid.is_some(), set::USER),
                (given.gid.is_some(), set::GROUP),
                (given.size.is_some(), set::SIZE),
                (given.atime.is_some(), set::ACCESSED),
                (given.mtime.is_some(), set::MODIFIED),
            ];
            Record {
                set: bits.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum(),
                mode: given.mode.unwrap_or_default(),
                other: u64::from(given.uid.unwrap_or_default()) | u64::from(given.gid.unwrap_or_default()) << 32,
                length: given.size.unwrap_or_default(),
                ..new(Kind::Setattr)
            }
        }
        Operation::Readlink => new(Kind::Readlink),
        Operation::Symlink { name, target } => Record { other_name: target.into(), ..named(Kind::Symlink, name) },
        Operation::Mknod { name, mode, umask, .. } => Record { mode: mode & !(umask & 0o777), ..named(Kind::Mknod, name) },
        Operation::Mkdir { name, mode, umask } => Record { mode: mode & !(umask & 0o777), ..named(Kind::Mkdir, name) },
        Operation::Unlink { name } => named(Kind::Unlink, name),
        Operation::Rmdir { name } => named(Kind::Rmdir, name),
        Operation::Rename { name, new_parent, new_name, flags } => {
            Record { other: new_parent, other_name: new_name.into(), flags, ..named(Kind::Rename, name) }
        }
        Operation::Link { target, name } => Record { other: target, ..named(Kind::Link, name) },
        Operation::Open { flags, .. } => Record { flags, ..new(Kind::Open) },
        Operation::Read { offset, size, .. } => Record { offset, length: size.into(), ..new(Kind::Read) },
        Operation::Write(write) => {
            let (thread, user) = if write.from_cache { (0, 0) } else { (request.pid, request.uid) };
            Record { thread, user, offset: write.offset, length: write.data.len() as u64, ..new(Kind::Write) }
        }
        Operation::Release { .. } => new(Kind::Release),
        Operation::Fsync { data_only, .. } | Operation::Fsyncdir { data_only, .. } => {
            Record { flags: data_only.into(), ..new(Kind::Fsync) }
        }
        Operation::Setxattr { name, value, flags, .. } => {
            Record { other_name: name.into(), length: value.len() as u64, flags, ..new(Kind::Setxattr) }
        }
        Operation::Getxattr { name, size } => Record { other_name: name.into(), length: size.into(), ..new(Kind::Getxattr) },
        Operation::Listxattr { size } => Record { length: size.into(), ..new(Kind::Listxattr) },
        Operation::Removexattr { name } => Record { other_name: name.into(), ..new(Kind::Removexattr) },
        Operation::Readdir { offset, size, .. } | Operation::Readdirplus { offset, size, .. } => {
            Record { offset, length: size.into(), ..new(Kind::Readdir) }
        }
        Operation::Create { name, mode, umask, flags, .. } => Record { mode: mode & !(umask & 0o777), flags, ..named(Kind::Create, name) },
        Operation::Tmpfile { mode, umask, flags, .. } => Record { mode: mode & !(umask & 0o777), flags, ..new(Kind::Tmpfile) },
        Operation::Fallocate { offset, length, mode, .. } => Record { offset, length, mode, ..new(Kind::Fallocate) },
        Operation::Lseek { offset, whence, .. } => Record { offset, flags: whence, ..new(Kind::Lseek) },
        Operation::CopyFileRange(copy) => Record {
            offset: copy.offset,
            other: copy.target,
            other_offset: copy.target_offset,
            length: copy.length,
            ..new(Kind::CopyRange)
        },
        Operation::Statfs => new(Kind::Statfs),
        Operation::Access { mask } => Record { mode: mask, ..new(Kind::Access) },
        Operation::Syncfs => new(Kind::Syncfs),
        _ => return None,
    })
}

/// Records while the listener stays and hands it what was recorded; returns the last line for it.
pub(crate) fn run(recorder: &Recorder, listener: &Listener<'_>) -> Value {
    let reader = listener.process().unwrap_or_default();
    let Some(mut recording) = recorder.begin(reader) else {
        return json!({ "error": "a trace of this mount is being recorded already; wait for its end, or end it" });
    };
    tracing::info!(reader, "a trace begins");
    let result = hand_on(&mut recording, listener);
    tracing::info!(dropped = recording.dropped(), "the trace ends");
    match result {
        Ok(()) => json!({ "dropped": recording.dropped() }),
        Err(error) => json!({ "error": format!("who records the trace does not take it: {error}") }),
    }
}

fn hand_on(recording: &mut Recording<'_>, listener: &Listener<'_>) -> io::Result<()> {
    listener.say(&json!({ "progress": { "bytes": 0 } }))?; // it is on
    loop {
        let stays = listener.stays_for(EVERY);
        if !stays {
            recording.stop();
        }
        recording.drain(|bytes| {
            listener.say(&json!({ "progress": { "bytes": bytes.len() } }))?;
            listener.send(bytes)
        })?;
        if !stays {
            return Ok(());
        }
    }
}
