//! The versions of a line in the log, newest first. The index holds the newest; older versions that are still needed are linked below it.
//!
//! [VE1] Kept are the latest version of each open transaction and the latest committed version. Other versions are dropped when a newer one
//!       arrives; their slots are freed when the tail passes them.
//! [VE2] A hidden version, or a version of an open transaction below a newer one, is in `overlaid` until its transaction commits.

use tandemfs_device::DeviceError;
use tandemfs_format::{Line, PAGE_LINES};

use super::WriteLog;
use crate::medium::{Medium, Pages};

/// A transaction that is open, with the number of its lines in the log, or in the TxLog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transaction(u32);

impl Transaction {
    pub(super) const COMMITTED: Self = Self(u32::MAX);
    const OPEN: Self = Self(0);

    pub(super) fn is_committed(&self) -> bool {
        *self == Self::COMMITTED
    }
}

/// A version of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) slot: u32,
    pub(super) transaction: u32,
    pub(super) is_committed: bool,
}

impl<M: Medium> WriteLog<M> {
    pub(super) fn is_committed(&self, transaction: u32) -> bool {
        transaction == 0 || self.transactions.get(&transaction).is_some_and(Transaction::is_committed)
    }

    /// The version in a slot and those below it, newest first.
    pub(super) fn versions(&self, top: u32) -> impl Iterator<Item = Result<Version, DeviceError>> + '_ {
        std::iter::successors(Some(top), |slot| self.older.get(slot).copied()).map(|slot| {
            let transaction = self.region.transaction(slot)?;
            Ok(Version { slot, transaction, is_committed: self.is_committed(transaction) })
        })
    }

    /// The versions of all lines of a page, with their places in it: lines in order, versions newest first.
    pub(super) fn page_versions(&self, page: u64) -> Result<Vec<(u32, Version)>, DeviceError> {
        let mut versions = Vec::with_capacity(16);
        for (at, top) in self.index.chunks(page) {
            for version in self.versions(top) {
                versions.push((at, version?));
            }
        }
        Ok(versions)
    }

    /// The newest version that is not hidden.
    pub(super) fn visible(&self, top: u32) -> Result<Option<u32>, DeviceError> {
        if self.overlaid.is_empty() {
            return Ok(Some(top)); // nothing is hidden ([VE2])
        }
        for slot in std::iter::successors(Some(top), |slot| self.older.get(slot).copied()) {
            if !self.region.is_hidden(slot)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Makes a slot the newest version of a line and drops what is needed no more ([VE1]).
    pub(super) fn link(&mut self, line: u64, slot: u32, transaction: u32, is_hidden: bool) -> Result<(), DeviceError> {
        let is_committed = self.is_committed(transaction);
        let pages_before = self.index.pages();
        let replaced = self.index.insert(line, slot);
        if let Some(cleaning) = &mut self.cleaning {
            cleaning.pages_left += self.index.pages() - pages_before;
        }
        if !is_committed {
            self.transactions.entry(transaction).or_insert(Transaction::OPEN).0 += 1;
            self.uncommitted += 1;
        }
        if is_hidden {
            self.overlaid.insert((transaction, line));
        }
        let Some(replaced) = replaced else { return Ok(()) };
        let (mut above, mut has_committed) = (slot, is_committed);
        let mut at = Some(replaced);
        while let Some(below) = at {
            at = self.older.remove(&below);
            let owner = self.region.transaction(below)?;
            let is_kept = if self.is_committed(owner) {
                !std::mem::replace(&mut has_committed, true)
            } else if owner == transaction {
                self.forget_uncommitted(owner);
                false
            } else {
                self.overlaid.insert((owner, line));
                true
            };
            if is_kept {
                self.older.insert(above, below);
                above = below;
            }
        }
        Ok(())
    }

    /// One line less of an open transaction.
    fn forget_uncommitted(&mut self, transaction: u32) {
        self.uncommitted -= 1;
        if let Some(Transaction(lines)) = self.transactions.get_mut(&transaction) {
            *lines -= 1;
        }
    }

    /// Removes a page from the index; answers how many lines it had.
    pub(super) fn unlink_page(&mut self, page: u64) -> Result<u64, DeviceError> {
        let tops: Vec<u32> = self.index.chunks(page).map(|(_, slot)| slot).collect();
        for top in &tops {
            let mut at = Some(*top);
            while let Some(slot) = at {
                at = self.older.remove(&slot);
                let owner = self.region.transaction(slot)?;
                if !self.is_committed(owner) {
                    self.forget_uncommitted(owner);
                }
            }
        }
        self.index.remove_page(page);
        Ok(tops.len() as u64)
    }

    /// The transaction is in the TxLog now.
    pub(super) fn commit_in_memory(&mut self, transaction: u32) {
        if let Some(Transaction(lines)) = self.transactions.insert(transaction, Transaction::COMMITTED) {
            self.uncommitted -= u64::from(lines);
        }
        if !self.overlaid.is_empty() {
            self.overlaid.retain(|(owner, _)| *owner != transaction);
        }
    }

    /// Appends the lines of a transaction again over which others stored since ([WL2]).
    pub(super) fn raise(&mut self, pages: &mut impl Pages, transaction: u32) -> Result<(), DeviceError> {
        if self.overlaid.is_empty() {
            return Ok(());
        }
        let lines: Vec<u64> = self.overlaid.iter().filter(|(owner, _)| *owner == transaction).map(|(_, line)| *line).collect();
        for line in lines {
            // Making room may clean the page and move its lines: it comes first.
            self.make_room(pages, 2)?;
            let Some(top) = self.index.top(line) else { continue };
            let versions: Vec<Version> = self.versions(top).collect::<Result<_, _>>()?;
            let Some(own) = versions.iter().find(|version| version.transaction == transaction) else { continue };
            let mut bytes: Line = [0; _];
            self.region.load_line(own.slot, &mut bytes)?;
            self.place(transaction, line, false, &bytes)?;
        }
        Ok(())
    }

    /// The number in the byte window of a line of a page.
    pub(super) fn line_of(page: u64, line_in_page: u32) -> u64 {
        page * PAGE_LINES + u64::from(line_in_page)
    }
}
