//! The daemon's side of `tandemfs quota`.

use serde_json::{Value, json};
use tandemfs_format::InodeNumber;
use tandemfs_format::quota::{Limit, QuotaKind};
use tandemfs_fs::{Error, FileSystem, QuotaEntry, QuotaSet, QuotaUse};

use crate::control::{Listener, Request};

/// Serves a request of quota. Returns the last line for the listener.
pub(crate) fn run(fs: &FileSystem, request: &Request, listener: &Listener<'_>) -> Value {
    let answer = match request {
        Request::QuotaReport => report(fs),
        Request::QuotaGet { kind, id } => named(kind).and_then(|kind| get(fs, kind, *id)),
        Request::QuotaSet { kind, id, limits } => named(kind).and_then(|kind| set(fs, kind, *id, limits)),
        Request::QuotaGrace { kind, seconds } => named(kind).and_then(|kind| {
            fs.set_quota(&QuotaSet { kind, limits: None, grace_seconds: Some(*seconds) })?;
            Ok(json!({ "kind": kind.name(), "grace_seconds": seconds }))
        }),
        Request::QuotaProject { inode, project } => fs
            .set_project_of_tree(InodeNumber::new(*inode), *project, &mut || listener.is_there())
            .map(|inodes| json!({ "project": project, "inodes": inodes })),
        _ => Err(Error::InvalidArgument("no request of quota")),
    };
    answer.unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

fn named(kind: &str) -> Result<QuotaKind, Error> {
    QuotaKind::named(kind).ok_or(Error::InvalidArgument("limits are of a user, a group or a project"))
}

fn report(fs: &FileSystem) -> Result<Value, Error> {
    let entries: Vec<Value> = fs.quota_entries()?.iter().map(entry).collect();
    Ok(json!({ "grace_seconds": grace(fs)?, "entries": entries }))
}

fn get(fs: &FileSystem, kind: QuotaKind, id: u32) -> Result<Value, Error> {
    let found = fs.quota_entries()?.into_iter().find(|entry| (entry.kind, entry.id) == (kind, id));
    let nothing = QuotaUse::default();
    let found = found.unwrap_or(QuotaEntry { kind, id, memory: nothing, block: nothing, inodes: nothing });
    Ok(json!({ "grace_seconds": grace(fs)?, "entries": [entry(&found)] }))
}

fn set(fs: &FileSystem, kind: QuotaKind, id: u32, given: &[[Option<u64>; 2]; 3]) -> Result<Value, Error> {
    let limits = fs.change_limits(kind, id, |mut limits| {
        for (limit, [soft, hard]) in limits.iter_mut().zip(given) {
            *limit = Limit { soft: soft.unwrap_or(limit.soft), hard: hard.unwrap_or(limit.hard) };
        }
        limits
    })?;
    let [memory, block, inodes] = limits.map(|limit| json!({ "soft": limit.soft, "hard": limit.hard }));
    Ok(json!({ "kind": kind.name(), "id": id, "memory": memory, "block": block, "inodes": inodes }))
}

fn grace(fs: &FileSystem) -> Result<Value, Error> {
    let [user, group, project] = fs.quota_grace_seconds()?;
    Ok(json!({ "user": user, "group": group, "project": project }))
}

fn entry(entry: &QuotaEntry) -> Value {
    let of = |it: &QuotaUse| json!({ "used": it.used, "soft": it.limit.soft, "hard": it.limit.hard, "grace_seconds_left": it.grace_seconds_left });
    json!({
        "kind": entry.kind.name(),
        "id": entry.id,
        "memory": of(&entry.memory),
        "block": of(&entry.block),
        "inodes": of(&entry.inodes),
    })
}
