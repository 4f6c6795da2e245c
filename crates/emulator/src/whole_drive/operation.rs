//! Random host operations on a drive.

use super::model::Atom;
use super::rig::{BLOCK_PAGES, MEMORY_PAGES, PAGES, Rig};
use crate::medium::FLASH_PAGE_BYTES;
use tandemfs_format::LINE_BYTES;

const PAGE: u64 = FLASH_PAGE_BYTES as u64;
const LINE: u64 = LINE_BYTES as u64;
/// TxIDs are drawn from 1 to this, so that they come again and meet their TxLog entries.
const NUMBERS: u64 = 60;
/// Transactions that are open beside each other.
const OPEN_MAX: usize = 4;

/// Numbers that look drawn (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
        bytes
    }
}

/// An operation. Offsets are in the byte window, in bytes; sectors in the block window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Store {
        offset: u64,
        bytes: Vec<u8>,
    },
    StoreTagged {
        transaction: u32,
        offset: u64,
        bytes: Vec<u8>,
    },
    Commit {
        transaction: u32,
    },
    Load {
        offset: u64,
        length: u64,
    },
    Read {
        sector: u64,
        count: u64,
    },
    Write {
        sector: u64,
        bytes: Vec<u8>,
    },
    Discard {
        sector: u64,
        count: u64,
    },
    Fence,
    Clean,
    Recover,
    /// Closed and opened, with a RECOVER or without.
    Reopen {
        recovers: bool,
    },
    /// A copy of what a power failure would leave now is opened beside the drive, for reading only or not, and compared.
    Copy {
        read_only: bool,
    },
}

impl Operation {
    /// Its name, and what it is about without the bytes.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Store { offset, bytes } => format!("Store {{ offset: {offset}, length: {} }}", bytes.len()),
            Self::StoreTagged { transaction, offset, bytes } => {
                format!("StoreTagged {{ transaction: {transaction}, offset: {offset}, length: {} }}", bytes.len())
            }
            Self::Write { sector, bytes } => format!("Write {{ sector: {sector}, count: {} }}", bytes.len() as u64 / PAGE),
            other => format!("{other:?}"),
        }
    }

    /// The next operation on a drive.
    pub(super) fn draw(draw: &mut Draw, rig: &Rig) -> Self {
        // Mostly few pages, so that they are hit again: two of each zone.
        let page = match draw.below(3) {
            0 => draw.below(PAGES),
            _ => [0, 1, MEMORY_PAGES, PAGES - 1][draw.below(4) as usize],
        };
        let sector = (page + BLOCK_PAGES) % PAGES;
        let count = if draw.below(4) == 0 { 1 + draw.below(4) } else { 1 }.min(PAGES - sector);
        let has_transactions = rig.shape.has_transactions();
        match draw.below(100) {
            0..24 => {
                let offset = page * PAGE + draw.below(PAGE);
                let length = [8, 64, 100, 200, 5000][(draw.below(41) / 10) as usize];
                let length = (1 + draw.below(length)).min(PAGES * PAGE - offset);
                Self::Store { offset, bytes: draw.bytes(length) }
            }
            24..44 if has_transactions => {
                let offset = page * PAGE + draw.below(PAGE / LINE) * LINE;
                let lines = [1, 1, 2, 5][draw.below(4) as usize].min((PAGES * PAGE - offset) / LINE);
                let open = rig.model.open.len();
                let chosen = draw.below(OPEN_MAX as u64) as usize;
                let transaction = match rig.model.open.keys().nth(chosen) {
                    Some(number) => *number,
                    None if open < OPEN_MAX => 1 + draw.below(NUMBERS) as u32,
                    None => 1,
                };
                Self::StoreTagged { transaction, offset, bytes: draw.bytes(lines * LINE) }
            }
            44..54 if has_transactions => {
                let chosen = draw.below(OPEN_MAX as u64 + 1) as usize;
                // One that is not open, now and then.
                let transaction = rig.model.open.keys().nth(chosen).copied().unwrap_or(1 + draw.below(NUMBERS) as u32);
                Self::Commit { transaction }
            }
            // Small stores fill a log.
            24..54 => Self::Store { offset: page * PAGE + draw.below(PAGE - 8), bytes: draw.bytes(8) },
            54..62 => {
                let offset = page * PAGE + draw.below(PAGE);
                Self::Load { offset, length: (1 + draw.below(300)).min(PAGES * PAGE - offset) }
            }
            62..70 => Self::Read { sector, count },
            70..82 => Self::Write { sector, bytes: draw.bytes(count * PAGE) },
            82..88 => Self::Discard { sector, count },
            88..90 => Self::Fence,
            90..92 => Self::Copy { read_only: draw.below(2) == 0 },
            _ => match draw.below(40) {
                0..4 => Self::Clean,
                4 if has_transactions => Self::Recover,
                5..8 => Self::Reopen { recovers: draw.below(2) == 0 && has_transactions },
                _ => Self::Load { offset: page * PAGE, length: PAGE },
            },
        }
    }

    /// What it changes, in its order ([WD3]).
    ///
    /// [WD3]: super
    pub(super) fn atoms(&self, has_log: bool) -> Vec<Atom> {
        // What is stored in one step: a line of the log, a word of a cache.
        let unit = if has_log { LINE } else { 8 };
        let stores = |transaction: u32, offset: u64, bytes: &[u8]| {
            let mut atoms = vec![];
            let mut done = 0;
            while done < bytes.len() {
                let at = offset + done as u64;
                let length = ((unit - at % unit) as usize).min(bytes.len() - done);
                atoms.push(Atom::Store { transaction, offset: at, bytes: bytes[done..done + length].to_vec() });
                done += length;
            }
            atoms
        };
        let page_of = |sector: u64| (sector + MEMORY_PAGES) % PAGES;
        match self {
            Self::Store { offset, bytes } => stores(0, *offset, bytes),
            Self::StoreTagged { transaction, offset, bytes } => stores(*transaction, *offset, bytes),
            Self::Commit { transaction } => vec![Atom::Commit(*transaction)],
            Self::Write { sector, bytes } => bytes
                .chunks_exact(FLASH_PAGE_BYTES)
                .zip(*sector..)
                .map(|(bytes, sector)| Atom::Page { page: page_of(sector), bytes: bytes.to_vec() })
                .collect(),
            Self::Discard { sector, count } => {
                (*sector..sector + count).map(|sector| Atom::Page { page: page_of(sector), bytes: vec![0; FLASH_PAGE_BYTES] }).collect()
            }
            _ => vec![],
        }
    }
}
