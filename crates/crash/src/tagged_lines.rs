//! The firmware state of a [`crate::MemoryDevice`]: which lines belong to uncommitted transactions, and their committed versions.
//!
//! [TL1] The image shows every stored line, committed or not. For each line that an open transaction has stored, this module keeps the
//!       version that a recovery leaves, and every open version above it.
//! [TL2] A store without a transaction is committed at once: it also changes the committed version below open versions.
//! [TL3] A block write makes all versions of its lines obsolete, of all transactions. The transactions stay open.
//! [TL4] A committed number is refused until the log is empty, after a cleaning or a recovery.

use std::collections::{BTreeMap, HashSet};

use tandemfs_device::{FirmwareCounts, TxId};
use tandemfs_format::{LINE_BYTES, Line};

/// A line that open transactions have stored.
#[derive(Debug, Clone)]
struct Versions {
    committed: Line,
    open: Vec<(TxId, Line)>,
}

/// The lines, by their number in the byte window.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaggedLines {
    lines: BTreeMap<u64, Versions>,
    open: HashSet<TxId>,
    committed: HashSet<TxId>,
    pub(crate) counts: FirmwareCounts,
}

impl TaggedLines {
    /// Takes a tagged line in; `shown` is what the image has there until now.
    pub(crate) fn store(&mut self, transaction: TxId, line: u64, shown: Line, bytes: Line) -> Result<(), String> {
        self.check_open(transaction)?;
        self.open.insert(transaction);
        self.lines.entry(line).or_insert(Versions { committed: shown, open: Vec::new() }).open.push((transaction, bytes));
        self.counts.tagged_stores += 1;
        self.counts.log_appends += 1;
        Ok(())
    }

    /// Refuses a number that was committed and not cleaned since ([TL4]).
    pub(crate) fn check_open(&self, transaction: TxId) -> Result<(), String> {
        if self.committed.contains(&transaction) { Err(format!("transaction {transaction} was committed")) } else { Ok(()) }
    }

    pub(crate) fn commit(&mut self, transaction: TxId) -> Result<(), String> {
        self.check_open(transaction)?;
        if !self.open.remove(&transaction) {
            return Err(format!("transaction {transaction} stored nothing"));
        }
        self.committed.insert(transaction);
        self.counts.commits += 1;
        self.lines.retain(|_, versions| {
            if let Some((_, bytes)) = versions.open.iter().rfind(|(other, _)| *other == transaction) {
                versions.committed = *bytes;
            }
            versions.open.retain(|(other, _)| *other != transaction);
            !versions.open.is_empty()
        });
        Ok(())
    }

    /// A store without a transaction, inside one line ([TL2]).
    pub(crate) fn store_untagged(&mut self, line: u64, within: usize, bytes: &[u8]) {
        if let Some(versions) = self.lines.get_mut(&line) {
            versions.committed[within..within + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// A block write of so many lines ([TL3]).
    pub(crate) fn forget(&mut self, first: u64, count: u64) {
        let kept = self.lines.len();
        self.lines.retain(|line, _| !(first..first + count).contains(line));
        self.counts.log_invalidations += (kept - self.lines.len()) as u64;
    }

    /// What the image must show after a recovery, line by line; the log is empty then.
    pub(crate) fn recover(&mut self) -> (Vec<(u64, Line)>, u64) {
        self.open.clear();
        let transactions = self.committed.len() as u64;
        self.committed.clear();
        (std::mem::take(&mut self.lines).into_iter().map(|(line, versions)| (line, versions.committed)).collect(), transactions)
    }

    pub(crate) fn clean(&mut self) -> Result<(), String> {
        if let Some(transaction) = self.open.iter().next() {
            return Err(format!("transaction {transaction} is open"));
        }
        self.committed.clear();
        self.counts.log_cleanings += 1;
        Ok(())
    }

    /// Lines of open transactions, and what is committed under them.
    pub(crate) fn uncommitted(&self) -> impl Iterator<Item = (u64, &Line)> {
        self.lines.iter().map(|(line, versions)| (*line, &versions.committed))
    }
}

/// A piece of a line as an array.
pub(crate) fn line_of(bytes: &[u8]) -> Line {
    let mut line = [0; LINE_BYTES];
    line.copy_from_slice(bytes);
    line
}
