//! Crash states: everything that a power cut may leave of a recording.
//!
//! The fault model for each zone, and nothing beyond it:
//!
//! * *memory, adr*: each line that was stored but not flushed and fenced since is lost or kept independently. It may contain any prefix of
//!   its stores, and be torn between its 8 B words. Lines that were stored without a flush stay at risk after every fence.
//! * *memory, gpf* (and *eadr*): no retired store is lost; the cut is at any store, or inside it at any 8 B word.
//! * *blocks*: any subset of the sectors written since the last FLUSH, torn at 512 B, independent of what the memory zone kept.
//! * *process*: the process dies, the host survives. Both zones keep all completed accesses in program order; the cut is at any store or
//!   block write, or inside it at any 8 B word or 512 B.
//! * *firmware*: a tagged store is on the drive when an untagged one would be durable. It is *committed* only by COMMIT, together with its
//!   whole transaction. An earlier cut leaves it uncommitted for the drive's recovery to discard. Stores that were not in the persistence
//!   domain at COMMIT are lost or kept afterwards like untagged stores: COMMIT covers only fenced stores.
//! * *moves*: from the submission of a MOVE to its completion its target holds any part of what was moved ([CMV5] of `device`): lines of the
//!   cache torn at 8 B, sectors at 512 B, in every domain, *process* included. No fence and no FLUSH in between makes any of it durable.
//!   One to the flash lacks every store that was not in the persistence domain at its submission.
//!   From its completion on a MOVE to the cache is durable ([CMV3]), and one to the flash as at risk as a block write ([CMV2]).
//! * Both zones are cut at the same instant, but neither waits for the other.
//!
//! The set of stores at risk only grows until a fence or a FLUSH. So it is enough to cut right before each of them, at each call's border
//! and at the end (*gpf*: at each store): these states include every earlier cut. States that are equal byte for byte have equal
//! [`CrashState::hash`].

use std::collections::BTreeMap;

use tandemfs_device::{MoveDirection, PersistenceDomain, TxId};
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES};

use crate::memory_device::{DISCARDED, Event, MemoryDevice, Zone};
use crate::random::{Random, mix};

const WORD_BYTES: usize = 8;
const TEAR_BYTES: usize = 512;

/// Bytes that are lost or kept together, and may be torn between their words: a line, or a sector.
#[derive(Debug, Clone)]
struct Pending {
    /// What was stored, in order.
    stores: Vec<PendingStore>,
    /// Stores that the next fence makes durable.
    flushed: usize,
}

#[derive(Debug, Clone)]
struct PendingStore {
    within: usize,
    bytes: Vec<u8>,
    /// The open transaction that it is part of.
    transaction: Option<TxId>,
    /// The MOVE under way that it is part of.
    moving: Option<u64>,
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

/// Replays a recording and tracks durable and pending state.
#[derive(Debug, Clone)]
pub struct Tracker {
    domain: PersistenceDomain,
    durable: MemoryDevice,
    /// Sum of what the durable units have become; the identity of the durable state.
    hash: u64,
    pending: BTreeMap<Unit, Pending>,
    /// The targets of MOVEs under way: zone, offset and length.
    moving: BTreeMap<u64, (Zone, u64, u64)>,
}

impl Pending {
    /// What was stored so far is durable from the next fence or FLUSH on, up to what a MOVE is still bringing.
    fn flush(&mut self) {
        self.flushed = self.stores.iter().take_while(|store| store.moving.is_none()).count();
    }

    /// How many of its stores may be kept: none to all, or nothing to choose where all are of open transactions.
    fn choices(&self) -> u64 {
        if self.stores.iter().all(|store| store.transaction.is_some()) { 1 } else { self.stores.len() as u64 + 1 }
    }
}

/// The fate of one pending unit.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// The first stores are kept, the others are lost.
    Kept(usize),
    /// All stores are kept in the words of the mask, none elsewhere.
    Torn(u64),
}

/// The state of a device after a power cut.
#[derive(Debug)]
pub struct CrashState {
    /// The device, with nothing pending.
    pub device: MemoryDevice,
    /// Equal for states that are equal byte for byte (with the same start).
    pub hash: u64,
}

fn hash_bytes(unit: Unit, bytes: &[u8]) -> u64 {
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
        Self { domain: start.domain(), durable: start.fork(), hash: 0, pending: BTreeMap::new(), moving: BTreeMap::new() }
    }

    /// What a unit adds to the identity of a state. Where both paths reach the same bytes, their lines count, whichever path changed them.
    fn hash_unit(&self, unit: Unit, bytes: &[u8]) -> u64 {
        if !self.durable.has_firmware() {
            return hash_bytes(unit, bytes);
        }
        let first = self.durable.line_number(unit.0, unit.1 * unit_bytes(unit.0) as u64);
        let lines = (first..).zip(bytes.chunks(LINE_BYTES));
        lines.fold(0, |hash, (line, bytes)| hash.wrapping_add(hash_bytes((Zone::Memory, line), bytes)))
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
        for store in &pending.stores[..count] {
            // One of an open transaction that no fence has reached is taken as lost: if it is kept, the drive's recovery discards it.
            if store.transaction.is_none() {
                new[store.within..store.within + store.bytes.len()].copy_from_slice(&store.bytes);
            }
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
        if old == new && unit.0 == Zone::Memory {
            return;
        }
        self.hash = self.hash.wrapping_sub(self.hash_unit(unit, &old)).wrapping_add(self.hash_unit(unit, new));
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

    fn hold_back(&mut self, zone: Zone, offset: u64, bytes: &[u8], transaction: Option<TxId>, moving: Option<u64>) {
        let pending = &mut self.pending;
        Self::each_unit(zone, offset, bytes, |unit, within, piece| {
            let store = PendingStore { within, bytes: piece.to_vec(), transaction, moving };
            pending.entry(unit).or_insert_with(|| Pending { stores: Vec::new(), flushed: 0 }).stores.push(store);
        });
    }

    /// A tagged store is on the drive: shown, and not committed.
    fn log(&mut self, transaction: TxId, offset: u64, bytes: &[u8]) {
        let unit = (Zone::Memory, offset / LINE_BYTES as u64);
        for (index, bytes) in (0..).zip(bytes.chunks(LINE_BYTES)) {
            let unit = (unit.0, unit.1 + index);
            let old = self.current(unit);
            self.hash = self.hash.wrapping_sub(self.hash_unit(unit, &old)).wrapping_add(self.hash_unit(unit, bytes));
        }
        self.durable.poke_tagged(transaction, offset, bytes).expect("what was recorded was accepted");
    }

    fn commit(&mut self, transaction: TxId) {
        for store in self.pending.values_mut().flat_map(|pending| &mut pending.stores) {
            if store.transaction == Some(transaction) {
                store.transaction = None;
            }
        }
        // A transaction of which nothing was fenced has nothing on the drive.
        let _nothing_logged = self.durable.commit_unrecorded(transaction);
    }

    fn recover(&mut self) {
        for (line, bytes) in self.durable.uncommitted() {
            let unit = (Zone::Memory, line);
            let old = self.current(unit);
            self.hash = self.hash.wrapping_sub(self.hash_unit(unit, &old)).wrapping_add(self.hash_unit(unit, &bytes));
        }
        self.durable.recover_unrecorded();
        self.pending.retain(|_, pending| {
            let flushed = pending.stores[..pending.flushed].iter().filter(|store| store.transaction.is_none()).count();
            pending.stores.retain(|store| store.transaction.is_none());
            pending.flushed = flushed;
            !pending.stores.is_empty()
        });
    }

    /// What the lines of open transactions add to the identity of a device.
    fn hash_uncommitted(device: &MemoryDevice) -> u64 {
        device.uncommitted().iter().fold(0, |hash, (line, bytes)| hash.wrapping_add(mix(hash_bytes((Zone::Memory, *line), bytes))))
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

    /// Applies one event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Store { offset, bytes } if self.domain == PersistenceDomain::Adr => {
                self.hold_back(Zone::Memory, *offset, bytes, None, None)
            }
            Event::Store { offset, bytes } => self.write_durably(Zone::Memory, *offset, bytes),
            Event::StoreTagged { transaction, offset, bytes } if self.domain == PersistenceDomain::Adr => {
                self.hold_back(Zone::Memory, *offset, bytes, Some(*transaction), None);
            }
            Event::StoreTagged { transaction, offset, bytes } => self.log(*transaction, *offset, bytes),
            Event::Commit(transaction) => self.commit(*transaction),
            Event::Recover => self.recover(),
            Event::Clean => drop(self.durable.clean_unrecorded()),
            Event::FlushLines { offset, length } => {
                let first = offset / LINE_BYTES as u64;
                let end = (offset + length).div_ceil(LINE_BYTES as u64);
                self.pending.range_mut((Zone::Memory, first)..(Zone::Memory, end)).for_each(|(_, pending)| pending.flush());
            }
            Event::Fence => self.settle_pending(Zone::Memory),
            Event::Write { sector, bytes } if self.domain == PersistenceDomain::Process => {
                self.write_durably(Zone::Blocks, sector.offset_bytes(), bytes);
            }
            Event::Write { sector, bytes } => self.hold_back(Zone::Blocks, sector.offset_bytes(), bytes, None, None),
            Event::Discard { sector, count } => {
                let bytes = vec![DISCARDED; *count as usize * SECTOR_BYTES];
                match self.domain {
                    PersistenceDomain::Process => self.write_durably(Zone::Blocks, sector.offset_bytes(), &bytes),
                    _ => self.hold_back(Zone::Blocks, sector.offset_bytes(), &bytes, None, None),
                }
            }
            Event::FlushBlocks => {
                self.pending.range_mut((Zone::Blocks, 0)..).for_each(|(_, pending)| pending.flush());
                self.settle_pending(Zone::Blocks);
            }
            Event::MoveBegun { number, command, bytes } => {
                let (zone, offset) = self.durable.target(command);
                self.hold_back(zone, offset, bytes, None, Some(*number));
                if command.direction == MoveDirection::ToFlash {
                    // [CMV2] of `device`: stores that are not in the persistence domain are missing, which is the worse case.
                    let mut persistent = vec![0; bytes.len()];
                    self.durable.peek(Zone::Memory, self.durable.cache_offset(command), &mut persistent);
                    if persistent != *bytes {
                        self.hold_back(zone, offset, &persistent, None, Some(*number));
                    }
                }
                self.moving.insert(*number, (zone, offset, bytes.len() as u64));
            }
            Event::MoveDone { number } => self.move_done(*number),
            Event::Call(_) | Event::Return(_) => {}
        }
    }

    fn move_done(&mut self, number: u64) {
        let Some((zone, offset, length)) = self.moving.remove(&number) else { return };
        let unit = unit_bytes(zone) as u64;
        let is_durable = zone == Zone::Memory || self.domain == PersistenceDomain::Process;
        for (_, pending) in self.pending.range_mut((zone, offset / unit)..(zone, (offset + length).div_ceil(unit))) {
            for store in pending.stores.iter_mut().filter(|store| store.moving == Some(number)) {
                store.moving = None;
            }
            if is_durable {
                pending.flush();
            }
        }
        if is_durable {
            self.settle_pending_in(zone, offset / unit..(offset + length).div_ceil(unit));
        }
    }

    fn settle_pending(&mut self, zone: Zone) {
        self.settle_pending_in(zone, 0..u64::MAX);
    }

    fn settle_pending_in(&mut self, zone: Zone, numbers: std::ops::Range<u64>) {
        let units: Vec<Unit> = self
            .pending
            .range((zone, numbers.start)..(zone, numbers.end))
            .filter(|(_, pending)| pending.flushed > 0)
            .map(|(unit, _)| *unit)
            .collect();
        for unit in units {
            let Some(mut pending) = self.pending.remove(&unit) else { continue };
            let new = self.after(unit, &pending, Fate::Kept(pending.flushed));
            self.settle(unit, &new);
            for store in pending.stores.drain(..pending.flushed) {
                if let Some(transaction) = store.transaction {
                    self.log(transaction, unit.1 * LINE_BYTES as u64, &store.bytes);
                }
            }
            pending.flushed = 0;
            if !pending.stores.is_empty() {
                self.pending.insert(unit, pending);
            }
        }
    }

    fn is_cut_before(&self, event: &Event) -> bool {
        match event {
            Event::Fence
            | Event::FlushBlocks
            | Event::Commit(_)
            | Event::Recover
            | Event::Call(_)
            | Event::Return(_)
            | Event::MoveDone { .. } => true,
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
            if new == self.current(*unit) {
                continue; // above all, it must not commit what an open transaction stored there
            }
            hash = hash.wrapping_sub(self.hash_unit(*unit, &self.current(*unit))).wrapping_add(self.hash_unit(*unit, &new));
            device.poke(unit.0, unit.1 * unit_bytes(unit.0) as u64, &new);
        }
        if device.has_firmware() {
            hash = hash.wrapping_add(Self::hash_uncommitted(&device));
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
            count = count.saturating_mul(pending.choices());
        }
        if count <= budget {
            for mut index in 0..count {
                let fates: Vec<Fate> = self
                    .pending
                    .values()
                    .map(|pending| {
                        let choices = pending.choices();
                        let choice = index % choices;
                        index /= choices;
                        Fate::Kept(choice as usize)
                    })
                    .collect();
                visit(self.state(&fates));
            }
            if count > 1 {
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

    /// What the first bytes of three lines may be after the drive's recovery, of lines that two transactions store.
    fn recovered(domain: PersistenceDomain, events: &[Event]) -> HashSet<[u8; 3]> {
        let start = MemoryDevice::with_firmware(4096, 8192, domain);
        let mut found = HashSet::new();
        each_state(&start, events, 0, 64, &mut Random::new(1), &mut |_, state| {
            state.device.recover_unrecorded();
            let memory = state.device.zones().memory;
            found.insert([memory[0], memory[64], memory[128]]);
        });
        found
    }

    fn tagged(transaction: u32, offset: u64, byte: u8) -> Event {
        Event::StoreTagged { transaction: TxId::new(transaction).expect("not 0"), offset, bytes: vec![byte; 64] }
    }

    fn commit(transaction: u32) -> Event {
        Event::Commit(TxId::new(transaction).expect("not 0"))
    }

    #[test]
    fn a_transaction_survives_as_a_whole_from_its_commit_on() {
        let flush = Event::FlushLines { offset: 0, length: 192 };
        let events = [tagged(1, 0, 1), tagged(2, 64, 9), tagged(1, 128, 3), flush, Event::Fence, commit(1)];
        for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
            assert_eq!(recovered(domain, &events), HashSet::from([[0, 0, 0], [1, 0, 3]]), "{domain}");
        }
    }

    #[test]
    fn commit_vouches_for_what_was_fenced() {
        let events = [tagged(1, 0, 1), tagged(1, 64, 2), commit(1)];
        let found = recovered(PersistenceDomain::Adr, &events);
        assert!(found.contains(&[1, 0, 0]) && found.contains(&[0, 2, 0]), "{found:?}");
        assert_eq!(recovered(PersistenceDomain::Gpf, &events), HashSet::from([[0, 0, 0], [1, 2, 0]]));
    }

    #[test]
    fn states_before_and_after_a_commit_differ_though_they_show_the_same() {
        let start = MemoryDevice::with_firmware(4096, 8192, PersistenceDomain::Gpf);
        let mut hashes = HashSet::new();
        each_state(&start, &[tagged(1, 0, 1), commit(1)], 0, 8, &mut Random::new(1), &mut |_, state| {
            hashes.insert(state.hash);
        });
        assert_eq!(hashes.len(), 2);
    }

    #[test]
    fn a_block_write_makes_logged_lines_obsolete_once_it_is_durable() {
        let write = Event::Write { sector: Sector::new(2), bytes: vec![7; 4096] };
        let found = recovered(PersistenceDomain::Gpf, &[tagged(1, 0, 1), write, commit(1), Event::FlushBlocks]);
        assert!(found.contains(&[7, 7, 7]) && found.contains(&[1, 0, 0]), "{found:?}");
        let durable =
            recovered(PersistenceDomain::Process, &[tagged(1, 0, 1), Event::Write { sector: Sector::new(2), bytes: vec![7; 4096] }]);
        assert!(durable.contains(&[7, 7, 7]) && durable.contains(&[0, 0, 0]), "{durable:?}");
    }
}
