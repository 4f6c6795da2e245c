//! Crash states: everything that a power cut may leave of a recording.
//!
//! The fault model, zone by zone, and exactly that:
//!
//! * *memory, adr*: a line that was stored but not flushed and fenced since is lost or kept, each line by itself, in any order. It may stop
//!   at any of the stores it got, and be torn between its 8 B words. Lines that were stored without a flush stay so past every fence.
//! * *memory, gpf* (and *eadr*): nothing that retired is lost; the cut is at any store, inside it at any 8 B word.
//! * *blocks*: any subset of the sectors written since the last flush, torn at 512 B, whatever the memory zone kept.
//! * *process*: the process dies, the host lives. Both zones keep what was done, in program order; the cut is at any store or block write,
//!   inside it at any 8 B word or 512 B.
//! * Both zones are cut at the same instant, but neither waits for the other.
//!
//! What is not durable yet only grows until a fence or a flush, so it is enough to cut right before each of them, at each call's border and
//! at the end (*gpf*: at each store): every earlier cut is among those states. States that are equal byte for byte have equal
//! [`CrashState::hash`].

use std::collections::BTreeMap;

use tandemfs_device::PersistenceDomain;
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES};

use crate::memory_device::{DISCARDED, Event, MemoryDevice, Zone};
use crate::random::{Random, mix};

const WORD_BYTES: usize = 8;
const TEAR_BYTES: usize = 512;

/// Bytes that are lost or kept together, and may be torn between their words: a line, or a sector.
#[derive(Debug, Clone)]
struct Pending {
    /// What was stored, in order: offset in the unit and bytes.
    stores: Vec<(usize, Vec<u8>)>,
    /// Stores that the next fence makes durable.
    flushed: usize,
}

type Unit = (Zone, u64);

fn unit_bytes(zone: Zone) -> usize {
    match zone {
        Zone::Memory => LINE_BYTES,
        Zone::Blocks => SECTOR_BYTES,
    }
}

fn word_bytes(zone: Zone) -> usize {
    match zone {
        Zone::Memory => WORD_BYTES,
        Zone::Blocks => TEAR_BYTES,
    }
}

/// Follows a recording: what is durable, and what is not yet.
#[derive(Debug, Clone)]
pub struct Tracker {
    domain: PersistenceDomain,
    durable: MemoryDevice,
    /// Sum of what the durable units have become; the identity of the durable state.
    hash: u64,
    pending: BTreeMap<Unit, Pending>,
}

/// What becomes of one pending unit.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// The first stores are kept, the others are lost.
    Kept(usize),
    /// All stores are kept in the words of the mask, none elsewhere.
    Torn(u64),
}

/// A device as a power cut left it.
#[derive(Debug)]
pub struct CrashState {
    /// The device, with nothing pending.
    pub device: MemoryDevice,
    /// Equal for states that are equal byte for byte (with the same start).
    pub hash: u64,
}

fn hash_unit(unit: Unit, bytes: &[u8]) -> u64 {
    let mut hash = mix(unit.1.wrapping_mul(2).wrapping_add(u64::from(unit.0 == Zone::Blocks)).wrapping_add(1));
    for chunk in bytes.chunks_exact(8) {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(word)).wrapping_add(0x1234_5678_9abc_def1);
    }
    hash
}

impl Tracker {
    /// Starts where everything in `start` is durable.
    pub fn new(start: &MemoryDevice) -> Self {
        Self { domain: start.domain(), durable: start.fork(), hash: 0, pending: BTreeMap::new() }
    }

    fn current(&self, unit: Unit) -> Vec<u8> {
        let mut bytes = vec![0; unit_bytes(unit.0)];
        self.durable.peek(unit.0, unit.1 * unit_bytes(unit.0) as u64, &mut bytes);
        bytes
    }

    fn after(&self, unit: Unit, pending: &Pending, fate: Fate) -> Vec<u8> {
        let old = self.current(unit);
        let mut new = old.clone();
        let count = match fate {
            Fate::Kept(count) => count,
            Fate::Torn(_) => pending.stores.len(),
        };
        for (offset, bytes) in &pending.stores[..count] {
            new[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        if let Fate::Torn(mask) = fate {
            let word = word_bytes(unit.0);
            for (index, range) in (0..old.len()).step_by(word).enumerate() {
                if mask >> index & 1 == 0 {
                    new[range..range + word].copy_from_slice(&old[range..range + word]);
                }
            }
        }
        new
    }

    /// Makes bytes of one unit durable.
    fn settle(&mut self, unit: Unit, new: &[u8]) {
        let old = self.current(unit);
        self.hash = self.hash.wrapping_sub(hash_unit(unit, &old)).wrapping_add(hash_unit(unit, new));
        self.durable.poke(unit.0, unit.1 * unit_bytes(unit.0) as u64, new);
    }

    /// Cuts a range into units and does something with each: unit, offset in it, bytes.
    fn each_unit(zone: Zone, offset: u64, bytes: &[u8], mut visit: impl FnMut(Unit, usize, &[u8])) {
        let size = unit_bytes(zone) as u64;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % size) as usize;
            let here = (size as usize - within).min(rest.len());
            visit((zone, at / size), within, &rest[..here]);
            at += here as u64;
            rest = &rest[here..];
        }
    }

    fn hold_back(&mut self, zone: Zone, offset: u64, bytes: &[u8]) {
        let pending = &mut self.pending;
        Self::each_unit(zone, offset, bytes, |unit, within, piece| {
            pending.entry(unit).or_insert_with(|| Pending { stores: Vec::new(), flushed: 0 }).stores.push((within, piece.to_vec()));
        });
    }

    fn write_durably(&mut self, zone: Zone, offset: u64, bytes: &[u8]) {
        let mut units = Vec::new();
        Self::each_unit(zone, offset, bytes, |unit, within, piece| units.push((unit, within, piece.to_vec())));
        for (unit, within, piece) in units {
            let mut new = self.current(unit);
            new[within..within + piece.len()].copy_from_slice(&piece);
            self.settle(unit, &new);
        }
    }

    /// Takes one event in.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Store { offset, bytes } if self.domain == PersistenceDomain::Adr => self.hold_back(Zone::Memory, *offset, bytes),
            Event::Store { offset, bytes } => self.write_durably(Zone::Memory, *offset, bytes),
            Event::FlushLines { offset, length } => {
                let first = offset / LINE_BYTES as u64;
                let end = (offset + length).div_ceil(LINE_BYTES as u64);
                for (_, pending) in self.pending.range_mut((Zone::Memory, first)..(Zone::Memory, end)) {
                    pending.flushed = pending.stores.len();
                }
            }
            Event::Fence => self.settle_pending(Zone::Memory),
            Event::Write { sector, bytes } if self.domain == PersistenceDomain::Process => {
                self.write_durably(Zone::Blocks, sector.offset_bytes(), bytes);
            }
            Event::Write { sector, bytes } => self.hold_back(Zone::Blocks, sector.offset_bytes(), bytes),
            Event::Discard { sector, count } => {
                let bytes = vec![DISCARDED; *count as usize * SECTOR_BYTES];
                match self.domain {
                    PersistenceDomain::Process => self.write_durably(Zone::Blocks, sector.offset_bytes(), &bytes),
                    _ => self.hold_back(Zone::Blocks, sector.offset_bytes(), &bytes),
                }
            }
            Event::FlushBlocks => {
                for (_, pending) in self.pending.range_mut((Zone::Blocks, 0)..) {
                    pending.flushed = pending.stores.len();
                }
                self.settle_pending(Zone::Blocks);
            }
            Event::Call(_) | Event::Return(_) => {}
        }
    }

    fn settle_pending(&mut self, zone: Zone) {
        let units: Vec<Unit> =
            self.pending.iter().filter(|(unit, pending)| unit.0 == zone && pending.flushed > 0).map(|(unit, _)| *unit).collect();
        for unit in units {
            let Some(mut pending) = self.pending.remove(&unit) else { continue };
            let new = self.after(unit, &pending, Fate::Kept(pending.flushed));
            self.settle(unit, &new);
            pending.stores.drain(..pending.flushed);
            pending.flushed = 0;
            if !pending.stores.is_empty() {
                self.pending.insert(unit, pending);
            }
        }
    }

    fn is_cut_before(&self, event: &Event) -> bool {
        match event {
            Event::Fence | Event::FlushBlocks | Event::Call(_) | Event::Return(_) => true,
            Event::Store { .. } => self.domain != PersistenceDomain::Adr,
            Event::Write { .. } => self.domain == PersistenceDomain::Process,
            _ => false,
        }
    }

    /// What an event writes, where it survives by itself as far as it got.
    fn in_program_order<'e>(&self, event: &'e Event) -> Option<(Zone, u64, &'e [u8])> {
        match event {
            Event::Store { offset, bytes } if self.domain != PersistenceDomain::Adr => Some((Zone::Memory, *offset, bytes)),
            Event::Write { sector, bytes } if self.domain == PersistenceDomain::Process => {
                Some((Zone::Blocks, sector.offset_bytes(), bytes))
            }
            _ => None,
        }
    }

    fn state(&self, fates: &[Fate]) -> CrashState {
        let mut hash = self.hash;
        let device = self.durable.fork();
        for ((unit, pending), fate) in self.pending.iter().zip(fates) {
            if matches!(fate, Fate::Kept(0) | Fate::Torn(0)) {
                continue;
            }
            let new = self.after(*unit, pending, *fate);
            hash = hash.wrapping_sub(hash_unit(*unit, &self.current(*unit))).wrapping_add(hash_unit(*unit, &new));
            device.poke(unit.0, unit.1 * unit_bytes(unit.0) as u64, &new);
        }
        CrashState { device, hash }
    }

    /// One state of those that a cut now may leave.
    pub fn cut(&self, random: &mut Random) -> CrashState {
        let style = random_style(random);
        let fates = self.draw(random, style);
        self.state(&fates)
    }

    fn draw(&self, random: &mut Random, style: Style) -> Vec<Fate> {
        let one = random.below(self.pending.len() as u64) as usize;
        let share = 1 + random.below(7);
        self.pending
            .iter()
            .enumerate()
            .map(|(index, (unit, pending))| {
                let all = Fate::Kept(pending.stores.len());
                match style {
                    Style::None => Fate::Kept(0),
                    Style::All => all,
                    Style::AllButOne => {
                        if index == one {
                            Fate::Kept(0)
                        } else {
                            all
                        }
                    }
                    Style::OnlyOne => {
                        if index == one {
                            all
                        } else {
                            Fate::Kept(0)
                        }
                    }
                    Style::TearOne => {
                        if index == one {
                            torn(random, *unit)
                        } else {
                            all
                        }
                    }
                    Style::TearOnlyOne => {
                        if index == one {
                            torn(random, *unit)
                        } else {
                            Fate::Kept(0)
                        }
                    }
                    Style::MemoryOnly => {
                        if unit.0 == Zone::Memory {
                            all
                        } else {
                            Fate::Kept(0)
                        }
                    }
                    Style::BlocksOnly => {
                        if unit.0 == Zone::Blocks {
                            all
                        } else {
                            Fate::Kept(0)
                        }
                    }
                    Style::Mixed => match random.below(8) {
                        less if less < share => Fate::Kept(random.below(pending.stores.len() as u64 + 1) as usize),
                        7 => torn(random, *unit),
                        _ => all,
                    },
                }
            })
            .collect()
    }

    /// States that a cut now may leave: all of them if they are at most `budget` (whole units; some torn ones follow), else that many.
    fn each_cut(&self, budget: u64, random: &mut Random, visit: &mut dyn FnMut(CrashState)) {
        let mut count = 1_u64;
        for pending in self.pending.values() {
            count = count.saturating_mul(pending.stores.len() as u64 + 1);
        }
        if count <= budget {
            for mut index in 0..count {
                let fates: Vec<Fate> = self
                    .pending
                    .values()
                    .map(|pending| {
                        let choices = pending.stores.len() as u64 + 1;
                        let choice = index % choices;
                        index /= choices;
                        Fate::Kept(choice as usize)
                    })
                    .collect();
                visit(self.state(&fates));
            }
            if !self.pending.is_empty() {
                for index in 0..(budget / 4).clamp(1, 2 * count) {
                    let style = [Style::TearOne, Style::TearOnlyOne, Style::Mixed][index as usize % 3];
                    visit(self.state(&self.draw(random, style)));
                }
            }
            return;
        }
        for style in [Style::All, Style::None, Style::MemoryOnly, Style::BlocksOnly] {
            visit(self.state(&self.draw(random, style)));
        }
        for _ in 4..budget {
            let style = random_style(random);
            visit(self.state(&self.draw(random, style)));
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Style {
    None,
    All,
    AllButOne,
    OnlyOne,
    TearOne,
    TearOnlyOne,
    MemoryOnly,
    BlocksOnly,
    Mixed,
}

fn random_style(random: &mut Random) -> Style {
    *random.pick(&[
        Style::None,
        Style::All,
        Style::AllButOne,
        Style::AllButOne,
        Style::OnlyOne,
        Style::OnlyOne,
        Style::TearOne,
        Style::TearOne,
        Style::TearOnlyOne,
        Style::MemoryOnly,
        Style::BlocksOnly,
        Style::Mixed,
        Style::Mixed,
    ])
}

fn torn(random: &mut Random, unit: Unit) -> Fate {
    let words = unit_bytes(unit.0) / word_bytes(unit.0);
    let all = (1 << words) - 1;
    Fate::Torn(match random.below(3) {
        0 => (1 << random.below(words as u64)) - 1, // the first words
        1 => all ^ (1 << random.below(words as u64)),
        _ => random.next() & all,
    })
}

/// Where a cut happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The last call that had begun; nothing before the first mark.
    pub call: Option<usize>,
    /// Whether the call had returned (the cut is right before the next mark, or at the end).
    pub between: bool,
    /// The event before which the power was cut; the number of events at the end.
    pub event: usize,
}

/// Visits crash states of a recording that began with `start`: cuts in the calls from `first_call` on (0: and before the first mark).
/// `budget` bounds the states of each cut.
pub fn each_state(
    start: &MemoryDevice,
    events: &[Event],
    first_call: usize,
    budget: u64,
    random: &mut Random,
    visit: &mut dyn FnMut(Cut, CrashState),
) {
    let mut tracker = Tracker::new(start);
    let mut call = None;
    for (index, event) in events.iter().enumerate() {
        if call.unwrap_or(0) >= first_call && tracker.is_cut_before(event) {
            let cut = Cut { call, between: matches!(event, Event::Call(_)), event: index };
            tracker.each_cut(budget, random, &mut |state| visit(cut, state));
            if let Some((zone, offset, bytes)) = tracker.in_program_order(event) {
                let word = word_bytes(zone);
                let words = bytes.len().div_ceil(word) as u64;
                for step in 0..words.saturating_sub(1).min(budget) {
                    let kept = if words <= budget { step + 1 } else { 1 + random.below(words - 1) };
                    let mut torn = tracker.clone();
                    torn.durable = tracker.durable.fork();
                    torn.write_durably(zone, offset, &bytes[..kept as usize * word]);
                    visit(cut, torn.cut(random));
                }
            }
        }
        if let Event::Call(next) = event {
            call = Some(*next);
        }
        tracker.apply(event);
    }
    let cut = Cut { call, between: true, event: events.len() };
    tracker.each_cut(budget, random, &mut |state| visit(cut, state));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tandemfs_format::Sector;

    use super::*;

    fn states(domain: PersistenceDomain, events: &[Event], budget: u64) -> HashSet<Vec<u8>> {
        let start = MemoryDevice::new(4096, 8192, domain);
        let mut found = HashSet::new();
        let mut hashes = HashSet::new();
        each_state(&start, events, 0, budget, &mut Random::new(1), &mut |_, state| {
            let zones = state.device.zones();
            let bytes = [&zones.memory[..256], &zones.blocks[..]].concat();
            assert_eq!(found.insert(bytes), hashes.insert(state.hash), "equal hashes for equal states only");
        });
        found
    }

    fn store(offset: u64, byte: u8, length: usize) -> Event {
        Event::Store { offset, bytes: vec![byte; length] }
    }

    fn has(found: &HashSet<Vec<u8>>, at: [(usize, u8); 3]) -> bool {
        found.iter().any(|bytes| at.iter().all(|(offset, byte)| bytes[*offset] == *byte))
    }

    #[test]
    fn adr_keeps_any_subset_of_lines_until_a_fence_that_follows_a_flush() {
        let flush = |offset| Event::FlushLines { offset, length: 64 };
        let events = [store(0, 1, 64), store(64, 2, 64), flush(0), Event::Fence, store(128, 3, 64), flush(128), Event::Fence];
        let found = states(PersistenceDomain::Adr, &events, 4096);
        for (first, second) in [(0, 0), (0, 2), (1, 0), (1, 2)] {
            assert!(has(&found, [(0, first), (64, second), (128, 0)]));
        }
        assert!(!has(&found, [(0, 0), (64, 2), (128, 3)]), "line 0 was fenced before line 2 was stored");
        assert!(has(&found, [(0, 1), (64, 0), (128, 3)]), "line 1 was never flushed");
        assert!(found.iter().any(|bytes| bytes[0] != bytes[63] || bytes[64] != bytes[127]), "a line is torn at 8 B");
        assert!(found.iter().all(|bytes| bytes[..8].iter().all(|byte| *byte == bytes[0])), "8 B are whole");
    }

    #[test]
    fn gpf_cuts_in_program_order() {
        let events = [store(0, 1, 64), store(64, 2, 64), store(128, 3, 64)];
        let found = states(PersistenceDomain::Gpf, &events, 4096);
        assert_eq!(found.len(), 3 * 8 + 1);
        assert!(!has(&found, [(0, 0), (64, 2), (128, 0)]));
    }

    #[test]
    fn a_killed_process_leaves_both_zones_in_program_order() {
        let write = |sector, byte| Event::Write { sector: Sector::new(sector), bytes: vec![byte; 4096] };
        let found = states(PersistenceDomain::Process, &[store(0, 1, 64), write(0, 7), store(64, 2, 64), write(1, 8)], 4096);
        assert_eq!(found.len(), 2 * 8 + 2 * 8 + 1, "a line of 8 words and a sector of 8 pieces, twice each");
        assert!(!has(&found, [(64, 2), (256, 0), (256 + 4096, 0)]), "the sector was written before line 1");
        assert!(found.iter().any(|bytes| bytes[256] != bytes[256 + 512]), "a sector is torn at 512 B");
    }

    #[test]
    fn blocks_are_kept_in_any_subset_until_a_flush_whatever_the_memory_did() {
        let write = |sector, byte| Event::Write { sector: Sector::new(sector), bytes: vec![byte; 4096] };
        let events = [write(0, 7), write(1, 8), store(0, 1, 64), Event::FlushBlocks, store(64, 2, 64)];
        let found = states(PersistenceDomain::Gpf, &events, 4096);
        for (first, second) in [(0, 0), (0, 8), (7, 0), (7, 8)] {
            assert!(has(&found, [(0, 1), (256, first), (256 + 4096, second)]));
        }
        assert!(!has(&found, [(64, 2), (256, 0), (256 + 4096, 8)]), "flushed before the last store");
        assert!(found.iter().any(|bytes| bytes[256] != bytes[256 + 512]), "a sector is torn at 512 B");
    }
}
