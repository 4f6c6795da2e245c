//! Quota: how much each user, group and project uses, and limits of it.
//!
//! [QT1] An inode uses the space that its metadata names: sectors in the block zone; slots, pages, and lines of metadata (but its own two) in
//!       the memory zone. A transaction knows what it takes and frees, and for whom (`Charges`); usage changes by exactly that.
//! [QT2] What a transaction takes is checked and added under the journal's gate, before its record is written, and taken off again if the record is
//!       not. What it frees is taken off when the record is persistent (RULES R4). So usage is never below what is durable, and two
//!       transactions cannot share the room below one limit.
//! [QT3] Counting begins while the gate is held exclusively, with what all inodes use then (`quota_count.rs`): a transaction is either in that
//!       count or counted by itself. Without limits nothing is counted, and a commit reads one flag.
//! [QT4] Only operations for a caller who is bound by limits are refused (`bound.rs`). Work behind them never is: write-back, compaction, moves.
//! [QT5] Only growth is refused. What takes no more than it gives back passes, also above a limit.
//! [QT6] Owner and project of an inode change with [`Quota::owners`] shared, from before its usage is looked at to the end of the commit.
//!       Who begins to count holds it exclusively.
//!
//! Limits are attributes of the root directory (`namespace/quota_limits.rs`); here they are numbers.

mod bound;
mod charges;
mod grace;
mod table;
mod usage;

use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::wait::{LongMutex, LongRwLock};

pub(crate) use bound::{Bound, bound_to, current, is_bound, on_behalf_of, unbound};
pub(crate) use charges::Charges;
pub(crate) use grace::seconds_now;
pub use table::QuotaSet;
pub(crate) use table::Table;
pub(crate) use usage::{Change, Ids, add_change, change_of};
pub use usage::{QuotaEntry, QuotaUse};

/// Usage and limits of a mount.
#[derive(Default)]
pub(crate) struct Quota {
    /// Whether usage is counted ([QT3]); changes with the journal's gate.
    is_counting: AtomicBool,
    table: Mutex<Table>,
    /// One change of limits at a time ([QL2] of `namespace/quota_limits.rs`).
    pub(crate) setting: LongMutex<()>,
    /// [QT6]
    pub(crate) owners: LongRwLock<()>,
}

impl Quota {
    /// Whether usage is counted.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.is_counting.load(Relaxed)
    }

    /// Begins to count, from this table on. The caller holds the journal's gate exclusively ([QT3]).
    pub(crate) fn begin(&self, table: Table) {
        *self.table.lock() = table;
        self.is_counting.store(true, Relaxed);
    }

    /// Ends it: there are no limits any more. The caller holds the journal's gate exclusively.
    pub(crate) fn end(&self) {
        self.is_counting.store(false, Relaxed);
        *self.table.lock() = Table::default();
    }

    /// Looks at the table, or changes limits in it.
    pub(crate) fn with_table<T>(&self, look: impl FnOnce(&mut Table) -> T) -> T {
        look(&mut self.table.lock())
    }

    /// Checks and adds what a transaction takes ([QT2]); `None` where nothing is counted. The caller holds the journal's gate.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    #[inline]
    pub(crate) fn charge(&self, charges: &Charges) -> Result<Option<Charged<'_>>> {
        if self.is_counting() { self.charge_counted(charges).map(Some) } else { Ok(None) }
    }

    fn charge_counted(&self, charges: &Charges) -> Result<Charged<'_>> {
        let sums = charges.sums();
        let may_refuse = bound::is_bound() && !on(Mutant::LimitsIgnored);
        let refused = self.table.lock().add(&sums, may_refuse, seconds_now());
        if let Err(error) = refused {
            // Who it is may have to be read from `/proc`, so it is asked only here, without the lock.
            if !bound::may_exceed() {
                return Err(error);
            }
            self.table.lock().add(&sums, false, seconds_now())?;
        }
        Ok(Charged { quota: self, sums, is_settled: false })
    }
}

/// What a transaction has added to usage. Dropped, it is taken off again.
#[must_use = "dropped, it is taken off again"]
pub(crate) struct Charged<'q> {
    quota: &'q Quota,
    sums: table::Sums,
    is_settled: bool,
}

impl Charged<'_> {
    /// The transaction is persistent: takes off what it has freed ([QT2]).
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
        if !on(Mutant::FreedStaysCounted) {
            self.quota.table.lock().take_off(&self.sums, |change| (-change).max(0), seconds_now());
        }
    }
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        if !self.is_settled && !on(Mutant::RefusedStaysCounted) {
            self.quota.table.lock().take_off(&self.sums, |change| change.max(0), seconds_now());
        }
    }
}
