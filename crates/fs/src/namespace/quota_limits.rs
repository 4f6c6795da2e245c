//! Limits of quota: attributes of the root directory, which programs do not see, and what of them a mount keeps in host memory (`quota/`).
//!
//! [QL1] The feature *quota* is durable in the superblock before the first limit, and before the first directory whose project is inherited; it is
//!       never cleared: builds that do not know it refuse the device from then on.
//! [QL2] A change of limits is one transaction of the root directory ([EA1] of `extended_attributes.rs`); host memory follows it (RULES R4). One
//!       change at a time is made.
//! [QL3] When a grace period began is stored behind the operation that began it, within seconds and at the unmount: a crash before that begins
//!       the period anew, at the next mount.
//! [QL4] Limits that are damaged do not stop a mount. Nothing is limited then, the log says so, and no limit is set until a repair has removed
//!       them.

use tandemfs_device::Fenced;
use tandemfs_format::attributes::Namespace;
use tandemfs_format::quota::{CHUNK_RECORDS, CHUNKS_MAX, ChunkName, Limit, QuotaChunk, QuotaKind};
use tandemfs_format::superblock::{Superblock, incompat};
use tandemfs_format::{Corrupt, InodeNumber};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::State;
use crate::inodes::attribute_set::{AttributeSet, Change, value_bytes};
use crate::mutant::{Mutant, on};
use crate::quota::{Ids, QuotaEntry, QuotaSet, Table, bound_to, seconds_now, unbound};
use crate::sync::MutexGuard;
use crate::wait::may_wait;

/// Stored chunks of limits.
type Chunks = Vec<(ChunkName, QuotaChunk)>;

impl FileSystem {
    /// Sets limits of an id, or a grace period. With the first one of a file system it gains the feature *quota* ([QL1]); with the first limit usage
    /// is counted, and commits wait until that is done. Usage may be above a new limit: then it cannot grow.
    ///
    /// # Errors
    /// `InvalidArgument` for a soft limit above the hard one, project 0, and more than 32,768 ids of one kind; `NoSpace`, `ReadOnly`, `Stopped`,
    /// `Damaged`.
    pub fn set_quota(&self, set: &QuotaSet) -> Result<()> {
        let _one = self.begin_setting()?;
        self.set_quota_alone(set)
    }

    /// Changes limits of an id, from those that it has. Returns the new ones.
    ///
    /// # Errors
    /// As [`FileSystem::set_quota`].
    pub fn change_limits(&self, kind: QuotaKind, id: u32, change: impl FnOnce([Limit; 3]) -> [Limit; 3]) -> Result<[Limit; 3]> {
        let _one = self.begin_setting()?;
        let limits = change(self.quota_limits(kind, id));
        self.set_quota_alone(&QuotaSet { kind, limits: Some((id, limits)), grace_seconds: None })?;
        Ok(limits)
    }

    fn begin_setting(&self) -> Result<MutexGuard<'_, ()>> {
        may_wait()?;
        self.volume.health.check_writable()?;
        self.volume.quota.setting.lock()
    }

    fn set_quota_alone(&self, set: &QuotaSet) -> Result<()> {
        if let Some((id, limits)) = set.limits {
            if !limits.iter().all(|limit| limit.is_possible()) {
                return Err(Error::InvalidArgument("a soft limit is not above the hard limit"));
            }
            if set.kind == QuotaKind::Project && id == 0 {
                return Err(Error::InvalidArgument("project 0 is no project, and has no limits"));
            }
        }
        if set.has_nothing() && !self.superblock().has_quota() {
            return Ok(());
        }
        self.gain_quota()?;
        let stored = self.stored_chunks()?;
        if !self.volume.quota.is_counting() {
            self.begin_counting(&stored)?;
        }
        let stored = unbound(|| self.store_chunks(&[set.kind], set)); // [QL2]
        if stored.is_ok() {
            self.volume.quota.with_table(|table| table.set(set, seconds_now()));
        }
        if self.volume.quota.with_table(|table| !table.has_any_limits()) {
            let _gate = self.volume.journal.hold_commits()?; // [QT3] of `quota/`
            self.volume.quota.end();
        }
        stored
    }

    /// What every user, group and project uses, and their limits, by kind and id. Without limits it is counted for this call, and commits wait
    /// meanwhile.
    ///
    /// # Errors
    /// Damage of metadata that hides the limits; errors of devices.
    pub fn quota_entries(&self) -> Result<Vec<QuotaEntry>> {
        may_wait()?;
        if self.volume.quota.is_counting() {
            return Ok(self.volume.quota.with_table(|table| table.entries(seconds_now())));
        }
        let stored = if self.superblock().has_quota() { self.stored_chunks()? } else { Chunks::new() };
        let _gate = self.volume.journal.hold_commits()?;
        let mut table = self.count_usage()?;
        table.adopt(&stored);
        Ok(table.entries(seconds_now()))
    }

    /// Whether the file system has the feature *quota*: limits, or directories whose project is inherited.
    pub fn has_quota(&self) -> bool {
        self.superblock().has_quota()
    }

    /// The grace periods of users, groups and projects, in seconds.
    ///
    /// # Errors
    /// As [`FileSystem::quota_entries`].
    pub fn quota_grace_seconds(&self) -> Result<[u32; 3]> {
        if self.volume.quota.is_counting() {
            return Ok(self.volume.quota.with_table(|table| table.grace_seconds()));
        }
        let mut table = Table::default();
        if self.superblock().has_quota() {
            table.adopt(&self.stored_chunks()?);
        }
        Ok(table.grace_seconds())
    }

    /// Runs operations for a caller who is bound by limits, unless `may_exceed` says of `caller` that he is not; it is asked only where a limit is
    /// reached. Other threads' work, and operations outside of such a call, are never refused for limits.
    #[inline]
    pub fn bound_by_quota<T>(&self, caller: u64, may_exceed: fn(u64) -> bool, operation: impl FnOnce() -> T) -> T {
        if self.volume.quota.is_counting() { bound_to(caller, may_exceed, operation) } else { operation() }
    }

    /// Whether there are limits, so that usage is counted.
    #[inline]
    pub fn counts_usage(&self) -> bool {
        self.volume.quota.is_counting()
    }

    /// The limits of an id: bytes of the memory zone, bytes of the block zone, inodes.
    fn quota_limits(&self, kind: QuotaKind, id: u32) -> [Limit; 3] {
        // Without counting there are none.
        if self.volume.quota.is_counting() { self.volume.quota.with_table(|table| table.limits(kind, id)) } else { [Limit::default(); 3] }
    }

    /// Whether limits concern an inode, so that a write into a cache of the kernel's might be refused later.
    ///
    /// # Errors
    /// `Stale`; `WouldWait`.
    pub fn has_limits(&self, number: InodeNumber) -> Result<bool> {
        if !self.volume.quota.is_counting() {
            return Ok(false);
        }
        let file = self.inode(number)?;
        let ids = Ids::of(&file.state.read()?.inode);
        Ok(self.volume.quota.with_table(|table| table.has_limits(ids)))
    }

    /// Begins to count at a mount, if there are limits ([QC1] of `quota_count.rs`).
    pub(crate) fn begin_counting_at_mount(&self) {
        if !self.superblock().has_quota() {
            return;
        }
        let counted = self.stored_chunks().and_then(|stored| {
            let has_any = stored.iter().any(|(_, chunk)| !chunk.records.is_empty());
            if has_any { self.begin_counting(&stored) } else { Ok(()) }
        });
        if let Err(error) = counted {
            tracing::error!(%error, "the limits of quota cannot be read: nothing is limited; unmount and run tandemfs check --repair"); // [QL4]
        }
    }

    fn begin_counting(&self, stored: &Chunks) -> Result<()> {
        let quota = &self.volume.quota;
        let _owners = quota.owners.write()?; // [QT6] of `quota/`
        let _gate = self.volume.journal.hold_commits()?;
        let mut table = self.count_usage()?;
        table.adopt(stored);
        table.note_times(seconds_now());
        quota.begin(table);
        Ok(())
    }

    /// Makes the feature bit durable ([QL1]).
    pub(super) fn gain_quota(&self) -> Result<()> {
        let volume = &self.volume;
        if self.superblock().has_quota() || on(Mutant::QuotaBitForgotten) {
            return Ok(());
        }
        let gain = |superblock: &mut Superblock| superblock.incompat |= incompat::QUOTA;
        volume.journal.update_superblock(&volume.line_store, Fenced::nothing_stored(), gain)
    }

    /// Stores when grace periods began, if that changed ([QL3]). After a failure it is tried again once a minute, or if it `must` be now.
    pub(crate) fn store_grace_periods(&self, must: bool) -> Result<()> {
        let (quota, now) = (&self.volume.quota, seconds_now());
        if !quota.is_counting() {
            return Ok(());
        }
        let kinds = quota.with_table(|table| table.take_stale(if must { u64::MAX } else { now }));
        if kinds.is_empty() {
            return Ok(());
        }
        let stored = (|| {
            let _one = quota.setting.lock()?;
            let nothing = QuotaSet { kind: QuotaKind::User, limits: None, grace_seconds: None };
            unbound(|| self.store_chunks(&kinds, &nothing))
        })();
        stored.inspect_err(|_| quota.with_table(|table| table.stays_stale(&kinds, now)))
    }

    /// The stored limits.
    fn stored_chunks(&self) -> Result<Chunks> {
        let root = self.inode(InodeNumber::ROOT)?;
        self.with_attributes(&root, |state, set| {
            let mut chunks = Chunks::new();
            for (name, value) in self.chunk_values(state, set)? {
                let decoded = ChunkName::parse(&name).ok_or("name").and_then(|name| Ok((name, QuotaChunk::decode(name, &value)?)));
                chunks.push(decoded.map_err(|field| Error::Damaged {
                    inode: InodeNumber::ROOT,
                    source: Corrupt::Field { address: state.inode.attributes.address, field, found: 0 },
                })?);
            }
            Ok(chunks)
        })
    }

    /// Names and values of the attributes that hold limits.
    fn chunk_values(&self, state: &State, set: &AttributeSet) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let of_quota = set.list.iter().filter(|attribute| attribute.namespace == Namespace::Quota);
        let owner = state.owner(InodeNumber::ROOT);
        of_quota.map(|attribute| Ok((attribute.name.clone(), value_bytes(&self.volume, owner, &attribute.value)?))).collect()
    }

    /// Stores the limits of these kinds, as the table has them and `set` changes them, in one transaction.
    fn store_chunks(&self, kinds: &[QuotaKind], set: &QuotaSet) -> Result<()> {
        self.with_room(|| {
            let root = self.inode(InodeNumber::ROOT)?;
            let mut state = root.state.write()?;
            self.load_attributes(InodeNumber::ROOT, &mut state)?;
            let nothing = AttributeSet::default();
            let before = self.chunk_values(&state, state.attributes.as_ref().unwrap_or(&nothing))?;
            let mut after = Vec::new();
            for kind in kinds {
                let chunks = self.volume.quota.with_table(|table| table.chunks_with(*kind, set));
                if chunks.len() > CHUNKS_MAX as usize {
                    return Err(Error::InvalidArgument("32,768 ids of one kind have limits, which is the most"));
                }
                let named = (0..).zip(&chunks).map(|(index, chunk)| (ChunkName { kind: *kind, index }, chunk.encode()));
                after.extend(named.map(|(name, value)| (name.to_string().into_bytes(), value)));
            }
            let is_of_kinds = |name: &[u8]| ChunkName::parse(name).is_some_and(|name| kinds.contains(&name.kind));
            let is_gone = |name: &[u8]| is_of_kinds(name) && !after.iter().any(|(other, _)| other == name);
            let mut changes: Vec<Change<'_>> = Vec::new();
            for (name, value) in &after {
                if !before.iter().any(|(other, stored)| (other, stored) == (name, value)) {
                    changes.push((Namespace::Quota, name, Some(value)));
                }
            }
            for (name, _) in before.iter().filter(|(name, _)| is_gone(name)) {
                changes.push((Namespace::Quota, name, None));
            }
            if changes.is_empty() {
                return Ok(());
            }
            let new = state.inode.clone();
            self.change_attributes(&root, &mut state, new, &changes)
        })
    }
}

const _: () = assert!(CHUNK_RECORDS * CHUNKS_MAX as usize == 32_768, "as the messages say");
