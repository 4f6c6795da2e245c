//! The model again, with a stamp on everything instead of orders, and with searches instead of places.

use std::collections::BTreeMap;

use tandemfs_device::{Mechanism, MediaCounts, StoreWay, Structure};

use crate::media::model::MediaModel;
use crate::timing::MediaWork;

struct Line {
    number: u64,
    used: u64,
    dirty: bool,
    owner: Option<Structure>,
    pinned: bool,
}

/// A media line that waits: when it was written to last, and who brought its four lines.
type Waiting = (u64, [Option<(Option<Structure>, Mechanism)>; 4]);

pub(super) struct Reference {
    model: MediaModel,
    reserved: u32,
    stamp: u64,
    lines: Vec<Line>,
    waiting: BTreeMap<u64, Waiting>,
    was_read: BTreeMap<u64, u64>,
    pub(super) counts: MediaCounts,
    work: MediaWork,
}

impl Reference {
    pub(super) fn new(model: &MediaModel) -> Self {
        Self {
            model: *model,
            reserved: 0,
            stamp: 0,
            lines: Vec::new(),
            waiting: BTreeMap::new(),
            was_read: BTreeMap::new(),
            counts: MediaCounts::default(),
            work: MediaWork::default(),
        }
    }

    fn now(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn set(&self, number: u64) -> u64 {
        number % (self.model.cache_bytes / 64 / u64::from(self.model.cache_ways))
    }

    fn dimm(&self, media_line: u64) -> u64 {
        media_line * 256 / 4096 % u64::from(self.model.dimm_count)
    }

    /// Makes room in a set for one more line of its kind.
    fn make_room(&mut self, set: u64, pinned: bool) {
        let room = if pinned { self.reserved } else { self.model.cache_ways - self.reserved } as usize;
        let of_kind = |line: &&Line| self.set(line.number) == set && line.pinned == pinned;
        if self.lines.iter().filter(of_kind).count() < room {
            return;
        }
        let oldest = self.lines.iter().filter(of_kind).min_by_key(|line| line.used).map(|line| line.number);
        let at = self.lines.iter().position(|line| Some(line.number) == oldest).expect("a line");
        let line = self.lines.remove(at);
        if line.dirty {
            self.write(line.number, line.owner, if line.pinned { Mechanism::Pinned } else { Mechanism::Evicted });
        }
    }

    fn touch(&mut self, number: u64, stored_for: Option<Option<Structure>>, read_for: Option<Structure>, pins: bool) {
        let used = self.now();
        let pins = pins && self.reserved > 0;
        let found = self.lines.iter().position(|line| line.number == number).map(|at| self.lines.remove(at));
        if found.is_some() {
            self.counts.hit_lines += 1;
            self.work.hit_lines += 1;
        } else {
            self.counts.missed_lines += 1;
            self.work.missed_lines += 1;
            self.fetch(number, read_for);
        }
        let mut line = found.unwrap_or(Line { number, used, dirty: false, owner: None, pinned: false });
        line.used = used;
        line.pinned |= pins;
        if let Some(owner) = stored_for {
            (line.dirty, line.owner) = (true, owner);
        }
        self.make_room(self.set(number), line.pinned);
        self.lines.push(line);
    }

    fn fetch(&mut self, number: u64, structure: Option<Structure>) {
        let media_line = number / 4;
        if self.waiting.get(&media_line).is_some_and(|(_, parts)| parts[number as usize % 4].is_some()) {
            return;
        }
        let now = self.now();
        if self.was_read.insert(media_line, now).is_some() {
            return;
        }
        self.counts.of_mut(structure).read_bytes += 256;
        self.work.read_bytes += 256;
        let dimm = self.dimm(media_line);
        let here = |line: &u64| self.dimm(*line) == dimm;
        if self.was_read.keys().filter(|line| here(line)).count() > self.model.buffer_bytes as usize / 256 {
            let oldest = self.was_read.iter().filter(|(line, _)| here(line)).min_by_key(|(_, used)| **used).map(|(line, _)| *line);
            self.was_read.remove(&oldest.expect("a line"));
        }
    }

    fn write(&mut self, number: u64, owner: Option<Structure>, mechanism: Mechanism) {
        let (media_line, now) = (number / 4, self.now());
        let waits = self.waiting.entry(media_line).or_default();
        waits.0 = now;
        waits.1[number as usize % 4] = Some((owner, mechanism));
        let dimm = self.dimm(media_line);
        let here = |line: &u64| self.dimm(*line) == dimm;
        if self.waiting.keys().filter(|line| here(line)).count() > self.model.buffer_bytes as usize / 256 {
            let oldest = self.waiting.iter().filter(|(line, _)| here(line)).min_by_key(|(_, (used, _))| *used).map(|(line, _)| *line);
            self.written(oldest.expect("a line"));
        }
    }

    fn written(&mut self, media_line: u64) {
        let (_, parts) = self.waiting.remove(&media_line).expect("it waits");
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        self.work.written_bytes += 256;
        let merges = parts.len() < 4;
        self.work.read_bytes += 256 * u64::from(merges);
        let mut left = 256;
        for (index, (owner, mechanism)) in parts.iter().enumerate() {
            let share = (left as f64 / (parts.len() - index) as f64).ceil() as u64;
            left -= share;
            let of = self.counts.of_mut(*owner);
            of.written_bytes[*mechanism as usize] += share;
            of.merge_read_bytes += share * u64::from(merges);
        }
    }

    fn numbers(offset: u64, length: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (offset..offset + length).map(|byte| byte / 64).collect();
        numbers.dedup();
        numbers
    }

    pub(super) fn load(&mut self, structure: Option<Structure>, offset: u64, length: u64) -> MediaWork {
        Self::numbers(offset, length).into_iter().for_each(|number| self.touch(number, None, structure, false));
        std::mem::take(&mut self.work)
    }

    pub(super) fn store(&mut self, structure: Option<Structure>, way: StoreWay, offset: u64, length: u64) -> MediaWork {
        self.counts.of_mut(structure).stored_bytes += length;
        for number in Self::numbers(offset, length) {
            let is_whole = number * 64 >= offset && number * 64 + 64 <= offset + length;
            if way == StoreWay::NonTemporal && is_whole {
                self.lines.retain(|line| line.number != number);
                self.work.bypassing_lines += 1;
                self.write(number, structure, Mechanism::NonTemporal);
            } else {
                self.touch(number, Some(structure), structure, way == StoreWay::Pinned);
            }
        }
        std::mem::take(&mut self.work)
    }

    pub(super) fn flush(&mut self, offset: u64, length: u64) -> MediaWork {
        for number in Self::numbers(offset, length) {
            let found = self.lines.iter_mut().find(|line| line.number == number && line.dirty);
            if let Some(line) = found {
                line.dirty = false;
                let owner = line.owner;
                self.work.flushed_lines += 1;
                self.write(number, owner, Mechanism::Flushed);
            }
        }
        std::mem::take(&mut self.work)
    }

    pub(super) fn reserve_ways(&mut self, ways: u32) -> Result<(), u32> {
        if ways > self.model.reservable_ways {
            return Err(self.model.reservable_ways);
        }
        self.reserved = ways;
        for set in 0..self.set(u64::MAX).max(3) + 1 {
            // Pinned lines beyond the room become ordinary ones, used now, the oldest first.
            let mut pinned: Vec<(u64, u64)> =
                self.lines.iter().filter(|line| line.pinned && self.set(line.number) == set).map(|line| (line.used, line.number)).collect();
            pinned.sort_unstable();
            pinned.truncate(pinned.len().saturating_sub(ways as usize));
            for (_, number) in pinned {
                let used = self.now();
                let line = self.lines.iter_mut().find(|line| line.number == number).expect("it is there");
                (line.pinned, line.used) = (false, used);
            }
            let room = (self.model.cache_ways - ways) as usize;
            let ordinary =
                |reference: &Self| reference.lines.iter().filter(|line| !line.pinned && reference.set(line.number) == set).count();
            while ordinary(self) > room {
                // One more place is asked for than there is, until the lines fit.
                self.make_room(set, false);
            }
        }
        self.work = MediaWork::default();
        Ok(())
    }

    pub(super) fn write_back_all(&mut self) {
        // In the order of the sets, ordinary lines before pinned ones, the ones used last first.
        let mut dirty: Vec<usize> = (0..self.lines.len()).filter(|at| self.lines[*at].dirty).collect();
        dirty.sort_by_key(|at| (self.set(self.lines[*at].number), self.lines[*at].pinned, u64::MAX - self.lines[*at].used));
        for at in dirty {
            let line = &mut self.lines[at];
            line.dirty = false;
            let (number, owner, pinned) = (line.number, line.owner, line.pinned);
            self.write(number, owner, if pinned { Mechanism::Pinned } else { Mechanism::Evicted });
        }
        let left: Vec<u64> = self.waiting.keys().copied().collect();
        left.into_iter().for_each(|media_line| self.written(media_line));
        self.work = MediaWork::default();
    }
}
