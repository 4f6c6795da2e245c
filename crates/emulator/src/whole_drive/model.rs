//! The reference model: visible bytes, committed bytes, and the stores of open transactions.

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_format::{LINE_BYTES, Line};

use crate::medium::FLASH_PAGE_BYTES;

const LINE: u64 = LINE_BYTES as u64;

/// What happens whole or not at all ([WD3]). Offsets are in the byte window, in bytes.
///
/// [WD3]: super
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Atom {
    /// Bytes of one line, of a transaction or of none (0).
    Store {
        transaction: u32,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// A page written or discarded by blocks.
    Page {
        page: u64,
        bytes: Vec<u8>,
    },
    Commit(u32),
}

/// A drive as its hosts see it.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) visible: Vec<u8>,
    pub(super) committed: Vec<u8>,
    /// Lines of open transactions by their numbers.
    pub(super) open: BTreeMap<u32, BTreeMap<u64, Line>>,
    /// Numbers that the TxLog may still have.
    pub(super) used: BTreeSet<u32>,
}

impl Model {
    pub(super) fn new(bytes: usize) -> Self {
        Self { visible: vec![0; bytes], committed: vec![0; bytes], open: BTreeMap::new(), used: BTreeSet::new() }
    }

    pub(super) fn uncommitted_lines(&self) -> u64 {
        self.open.values().map(|lines| lines.len() as u64).sum()
    }

    /// Of a tagged store, line by line, how many come before the one that is refused because transactions may hold no more than so many.
    pub(super) fn admitted(&self, atoms: &[Atom], uncommitted_max: u64) -> usize {
        let mut held = self.uncommitted_lines();
        let mut new = BTreeSet::new();
        for (index, atom) in atoms.iter().enumerate() {
            let Atom::Store { transaction, offset, .. } = atom else { continue };
            if *transaction == 0 {
                continue;
            }
            if held >= uncommitted_max {
                return index;
            }
            let line = offset / LINE;
            let is_there = self.open.get(transaction).is_some_and(|lines| lines.contains_key(&line));
            held += u64::from(!is_there && new.insert(line));
        }
        atoms.len()
    }

    pub(super) fn apply(&mut self, atom: &Atom) {
        match atom {
            Atom::Store { transaction, offset, bytes } => {
                let at = *offset as usize;
                self.visible[at..at + bytes.len()].copy_from_slice(bytes);
                let line = offset / LINE;
                let whole = (line * LINE) as usize..((line + 1) * LINE) as usize;
                if *transaction == 0 {
                    // The rest of the line goes with it, as it is seen: lines are what the log keeps.
                    self.committed[whole.clone()].copy_from_slice(&self.visible[whole]);
                } else {
                    let image = self.visible[whole].try_into().expect("a line");
                    self.open.entry(*transaction).or_default().insert(line, image);
                    self.used.remove(transaction);
                }
            }
            Atom::Page { page, bytes } => {
                let at = *page as usize * FLASH_PAGE_BYTES;
                self.visible[at..at + FLASH_PAGE_BYTES].copy_from_slice(bytes);
                self.committed[at..at + FLASH_PAGE_BYTES].copy_from_slice(bytes);
                for lines in self.open.values_mut() {
                    lines.retain(|line, _| line * LINE / FLASH_PAGE_BYTES as u64 != *page);
                }
            }
            Atom::Commit(transaction) => {
                for (line, image) in self.open.remove(transaction).unwrap_or_default() {
                    let at = (line * LINE) as usize;
                    self.visible[at..at + LINE_BYTES].copy_from_slice(&image);
                    self.committed[at..at + LINE_BYTES].copy_from_slice(&image);
                }
                self.used.insert(*transaction);
            }
        }
    }

    /// A CLEAN: no number is used any more.
    pub(super) fn clean(&mut self) {
        self.used.clear();
    }

    pub(super) fn recover(&mut self) {
        self.open.clear();
        self.used.clear();
        self.visible.clone_from(&self.committed);
    }

    /// The drive was opened without a RECOVER: a transaction of which no line is left is not known any more.
    pub(super) fn open_again(&mut self) {
        self.open.retain(|_, lines| !lines.is_empty());
    }
}
