//! Usage and limits of each id.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use smallvec::SmallVec;
use tandemfs_format::quota::{CHUNK_RECORDS, ChunkName, GRACE_SECONDS_DEFAULT, Limit, QuotaChunk, QuotaKind, QuotaRecord};

use super::grace;
use super::usage::{Change, Ids, QuotaEntry, QuotaUse, RESOURCES};
use crate::error::{Error, Result};

/// An id of a kind.
pub(super) type Key = (QuotaKind, u32);
/// Changes, by id.
pub(super) type Sums = SmallVec<[(Key, Change); 6]>;

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    used: [u64; 3],
    limits: [Limit; 3],
    over_since: [u64; 3],
}

/// How long after a failure storing grace periods is not tried again, in seconds.
const RETRY_SECONDS: u64 = 60;

/// Usage and limits of each id.
#[derive(Debug)]
pub(crate) struct Table {
    accounts: HashMap<Key, Account>,
    grace_seconds: [u32; 3],
    /// Kinds of which a grace period began or ended since the limits were stored.
    is_stale: [bool; 3],
    /// Seconds since 1970 before which storing them is not tried: the last try failed.
    retry_at: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self { accounts: HashMap::new(), grace_seconds: [GRACE_SECONDS_DEFAULT; 3], is_stale: [false; 3], retry_at: 0 }
    }
}

impl Table {
    /// Adds what takes ([QT2]), all of it or nothing.
    pub(super) fn add(&mut self, sums: &Sums, may_refuse: bool, now: u64) -> Result<()> {
        for ((kind, id), change) in sums.iter().filter(|_| may_refuse) {
            let Some(account) = self.accounts.get(&(*kind, *id)) else { continue };
            let grace_seconds = self.grace_seconds[kind.index()];
            for resource in (0..3).filter(|resource| change[*resource] > 0) {
                let used = account.used[resource].saturating_add_signed(change[resource]);
                if grace::refuses(account.limits[resource], used, account.over_since[resource], grace_seconds, now) {
                    return Err(Error::QuotaExceeded { kind: *kind, id: *id, resource: RESOURCES[resource] }); // [QT5]
                }
            }
        }
        self.change(sums, |change| change.max(0), now);
        Ok(())
    }

    /// Takes off what `part` says of each change.
    pub(super) fn take_off(&mut self, sums: &Sums, part: impl Fn(i64) -> i64, now: u64) {
        self.change(sums, |change| -part(change), now);
    }

    fn change(&mut self, sums: &Sums, part: impl Fn(i64) -> i64, now: u64) {
        for (key, change) in sums {
            let account = self.accounts.entry(*key).or_default();
            for (used, change) in account.used.iter_mut().zip(change) {
                // Damage may hide space that a removal finds, and the other way round: usage then ends at 0 until the next mount counts.
                *used = used.saturating_add_signed(part(*change));
            }
            self.is_stale[key.0.index()] |= account.note_time(now);
        }
    }

    /// Adds what an inode uses, where all of them are counted.
    pub(crate) fn count(&mut self, ids: Ids, usage: Change) {
        for key in ids.each() {
            let account = self.accounts.entry(key).or_default();
            account.used.iter_mut().zip(usage).for_each(|(used, usage)| *used = used.saturating_add_signed(usage));
        }
    }

    /// Starts and ends grace periods after a count, or after limits changed.
    pub(crate) fn note_times(&mut self, now: u64) {
        for ((kind, _), account) in &mut self.accounts {
            self.is_stale[kind.index()] |= account.note_time(now);
        }
    }

    /// Whether an id has room for so much more data logs in the memory zone: it leaves a sixteenth of its limit to metadata, as the data area
    /// does. Above that, writes go by blocks.
    pub(crate) fn has_room_for_logs(&self, ids: Ids, bytes: u64) -> bool {
        ids.each().iter().all(|key| {
            let Some(account) = self.accounts.get(key) else { return true };
            let Limit { soft, hard } = account.limits[0];
            let least = [soft, hard].into_iter().filter(|limit| *limit > 0).min();
            least.is_none_or(|limit| account.used[0].saturating_add(bytes) <= limit - limit / 16)
        })
    }

    /// Whether a limit concerns one of these ids.
    pub(crate) fn has_limits(&self, ids: Ids) -> bool {
        ids.each().iter().any(|key| self.accounts.get(key).is_some_and(Account::has_limits))
    }

    /// Whether there is any limit.
    pub(crate) fn has_any_limits(&self) -> bool {
        self.accounts.values().any(Account::has_limits)
    }

    /// Takes the limits of stored chunks.
    pub(crate) fn adopt(&mut self, chunks: &[(ChunkName, QuotaChunk)]) {
        for (name, chunk) in chunks {
            if name.index == 0 {
                self.grace_seconds[name.kind.index()] = chunk.grace_seconds;
            }
            for record in &chunk.records {
                let account = self.accounts.entry((name.kind, record.id)).or_default();
                (account.limits, account.over_since) = (record.limits, record.over_since);
            }
        }
    }

    /// The chunks of a kind that store its limits, with these instead of the limits and the grace period in the table; later ones are empty.
    pub(crate) fn chunks_with(&self, kind: QuotaKind, changed: &QuotaSet) -> Vec<QuotaChunk> {
        let of_kind = |(key, account): (&Key, &Account)| (key.0 == kind && account.has_limits()).then_some((key.1, *account));
        let mut accounts: BTreeMap<u32, Account> = self.accounts.iter().filter_map(of_kind).collect();
        if let Some((id, limits)) = changed.limits.filter(|_| changed.kind == kind) {
            let account = accounts.entry(id).or_insert_with(|| self.accounts.get(&(kind, id)).copied().unwrap_or_default());
            account.limits = limits;
            if !account.has_limits() {
                accounts.remove(&id);
            }
        }
        let grace_seconds = changed.grace_seconds.filter(|_| changed.kind == kind).unwrap_or(self.grace_seconds[kind.index()]);
        let records: Vec<QuotaRecord> =
            accounts.into_iter().map(|(id, account)| QuotaRecord { id, limits: account.limits, over_since: account.over_since }).collect();
        let mut chunks: Vec<QuotaChunk> =
            records.chunks(CHUNK_RECORDS).map(|records| QuotaChunk { grace_seconds: 0, records: records.to_vec() }).collect();
        if chunks.is_empty() {
            chunks.push(QuotaChunk::default());
        }
        chunks[0].grace_seconds = grace_seconds;
        chunks
    }

    /// Sets limits or a grace period, once they are stored.
    pub(crate) fn set(&mut self, changed: &QuotaSet, now: u64) {
        if let Some(grace_seconds) = changed.grace_seconds {
            self.grace_seconds[changed.kind.index()] = grace_seconds;
        }
        if let Some((id, limits)) = changed.limits {
            let account = self.accounts.entry((changed.kind, id)).or_default();
            account.limits = limits;
            self.is_stale[changed.kind.index()] |= account.note_time(now);
        }
    }

    /// Kinds whose grace periods are to be stored now; they count as stored from now on.
    pub(crate) fn take_stale(&mut self, now: u64) -> Vec<QuotaKind> {
        // A clock that was set back does not put it off.
        let is_due = now >= self.retry_at || self.retry_at > now.saturating_add(RETRY_SECONDS);
        QuotaKind::ALL.into_iter().filter(|kind| is_due && std::mem::take(&mut self.is_stale[kind.index()])).collect()
    }

    /// Grace periods were not stored.
    pub(crate) fn stays_stale(&mut self, kinds: &[QuotaKind], now: u64) {
        kinds.iter().for_each(|kind| self.is_stale[kind.index()] = true);
        self.retry_at = now.saturating_add(RETRY_SECONDS);
    }

    /// The grace periods of users, groups and projects, in seconds.
    pub(crate) fn grace_seconds(&self) -> [u32; 3] {
        self.grace_seconds
    }

    /// The limits of an id.
    pub(crate) fn limits(&self, kind: QuotaKind, id: u32) -> [Limit; 3] {
        self.accounts.get(&(kind, id)).map_or([Limit::default(); 3], |account| account.limits)
    }

    /// Every id that uses something or has limits, by kind and id.
    pub(crate) fn entries(&self, now: u64) -> Vec<QuotaEntry> {
        let is_shown = |account: &Account| account.has_limits() || account.used != [0; 3];
        let mut entries: Vec<QuotaEntry> =
            self.accounts.iter().filter(|(_, account)| is_shown(account)).map(|(key, account)| self.entry(*key, account, now)).collect();
        entries.sort_by_key(|entry| (entry.kind, entry.id));
        entries
    }

    /// What an id that has limits uses.
    pub(crate) fn limited(&self, key: Key, now: u64) -> Option<QuotaEntry> {
        self.accounts.get(&key).filter(|account| account.has_limits()).map(|account| self.entry(key, account, now))
    }

    fn entry(&self, (kind, id): Key, account: &Account, now: u64) -> QuotaEntry {
        let of = |resource: usize| {
            let since = account.over_since[resource];
            QuotaUse {
                used: account.used[resource],
                limit: account.limits[resource],
                grace_seconds_left: (since > 0).then(|| grace::seconds_left(since, self.grace_seconds[kind.index()], now)),
            }
        };
        QuotaEntry { kind, id, memory: of(0), block: of(1), inodes: of(2) }
    }
}

impl Account {
    fn has_limits(&self) -> bool {
        self.limits.iter().any(|limit| !limit.is_none())
    }

    /// Begins and ends grace periods. True if one did.
    fn note_time(&mut self, now: u64) -> bool {
        let before = self.over_since;
        for (resource, since) in before.into_iter().enumerate() {
            self.over_since[resource] = grace::over_since(self.limits[resource], self.used[resource], since, now);
        }
        before != self.over_since
    }
}

/// A change of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaSet {
    /// Of which kind.
    pub kind: QuotaKind,
    /// An id, and its new limits: bytes of the memory zone, bytes of the block zone, inodes.
    pub limits: Option<(u32, [Limit; 3])>,
    /// The new grace period of the kind, in seconds.
    pub grace_seconds: Option<u32>,
}

impl QuotaSet {
    /// Whether it only takes limits away.
    pub(crate) fn has_nothing(&self) -> bool {
        self.grace_seconds.is_none() && self.limits.is_none_or(|(_, limits)| limits.iter().all(|limit| limit.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limits: [Limit; 3]) -> Table {
        let mut table = Table::default();
        table.set(&QuotaSet { kind: QuotaKind::User, limits: Some((7, limits)), grace_seconds: Some(60) }, 1);
        table
    }

    fn sums(change: Change) -> Sums {
        Sums::from_iter([((QuotaKind::User, 7), change), ((QuotaKind::Group, 8), change)])
    }

    fn used(table: &Table) -> [u64; 3] {
        table.entries(1).iter().find(|entry| entry.id == 7).map_or([0; 3], |entry| [entry.memory.used, entry.block.used, entry.inodes.used])
    }

    #[test]
    fn a_refusal_adds_nothing_and_what_shrinks_is_never_refused() {
        let limit = Limit { soft: 0, hard: 10 };
        let mut table = limited([limit, Limit::default(), Limit { soft: 0, hard: 1 }]);
        table.add(&sums([10, 5, 1]), true, 1).expect("below");
        let refused = table.add(&sums([0, 1, 1]), true, 1);
        assert!(matches!(refused, Err(Error::QuotaExceeded { kind: QuotaKind::User, id: 7, resource: "inodes" })), "{refused:?}");
        assert_eq!(used(&table), [10, 5, 1]);
        table.add(&sums([0, 1, 1]), false, 1).expect("not bound");
        table.add(&sums([-4, 1, 0]), true, 1).expect("above, but not growing there");
        table.take_off(&sums([-4, 1, 0]), |change| (-change).max(0), 1);
        assert_eq!(used(&table), [6, 7, 2]);
        table.take_off(&sums([100, 0, 0]), |change| change, 1);
        assert_eq!(used(&table), [0, 7, 2]);
    }

    #[test]
    fn limits_are_stored_in_chunks_and_adopted_again() {
        let mut table = Table::default();
        let limits = [Limit { soft: 1, hard: 2 }, Limit::default(), Limit::default()];
        for id in 0..CHUNK_RECORDS as u32 + 3 {
            table.set(&QuotaSet { kind: QuotaKind::Project, limits: Some((id * 2 + 1, limits)), grace_seconds: None }, 1);
        }
        let changed = QuotaSet { kind: QuotaKind::Project, limits: Some((3, [Limit::default(); 3])), grace_seconds: Some(9) };
        let chunks = table.chunks_with(QuotaKind::Project, &changed);
        assert_eq!(chunks.iter().map(|chunk| (chunk.grace_seconds, chunk.records.len())).collect::<Vec<_>>(), [(9, 512), (0, 2)]);
        assert!(chunks.iter().all(|chunk| chunk.records.iter().all(|record| record.id != 3)));
        assert_eq!(
            table.chunks_with(QuotaKind::User, &changed),
            [QuotaChunk { grace_seconds: GRACE_SECONDS_DEFAULT, records: Vec::new() }]
        );
        let mut again = Table::default();
        let named: Vec<_> = (0..).zip(chunks).map(|(index, chunk)| (ChunkName { kind: QuotaKind::Project, index }, chunk)).collect();
        again.adopt(&named);
        table.set(&changed, 1);
        assert_eq!(again.entries(1), table.entries(1).into_iter().filter(|entry| entry.id != 3).collect::<Vec<_>>());
        assert_eq!(again.grace_seconds()[2], 9);
    }

    #[test]
    fn grace_periods_are_stored_by_kind_and_again_a_minute_after_a_failure() {
        let mut table = limited([Limit { soft: 4, hard: 0 }, Limit::default(), Limit::default()]);
        assert!(table.take_stale(1).is_empty());
        table.add(&sums([5, 0, 0]), true, 1).expect("a grace period begins");
        assert_eq!(table.take_stale(1), [QuotaKind::User]);
        table.stays_stale(&[QuotaKind::User], 1);
        assert!(table.take_stale(60).is_empty());
        assert_eq!(table.take_stale(61), [QuotaKind::User]);
        assert!(table.take_stale(61).is_empty());
        table.stays_stale(&[QuotaKind::User], 1_000_000);
        assert_eq!(table.take_stale(10), [QuotaKind::User], "the clock was set back");
    }

    #[test]
    fn logs_leave_a_sixteenth_of_the_limit() {
        let table = limited([Limit { soft: 0, hard: 1600 }, Limit::default(), Limit::default()]);
        let ids = Ids { user: 7, group: 0, project: 0 };
        assert!(table.has_room_for_logs(ids, 1500) && !table.has_room_for_logs(ids, 1501));
        assert!(table.has_limits(ids) && !table.has_limits(Ids { user: 8, ..ids }));
        assert!(table.has_room_for_logs(Ids { user: 8, ..ids }, u64::MAX));
    }
}
