//! The settings of a mount that can change while it is in use. Operations read them here; `changing.rs` changes them.
//!
//! A load of a setting is relaxed and orders nothing. An operation that reads a setting at several places may see it before a change at one and
//! after it at another, so whatever has to agree is read once ([TH3], `data/policy.rs`). Nothing on the device depends on a setting: each state
//! that a mount leaves behind is one that a mount with other options goes on from.
//!
//! [TH3]: crate::tuning::threshold

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed}; // not of `sync`: explored schedules need no step here

use crate::sync::Mutex;
use crate::types::{Discard, MountOptions, Promote, Threshold, WriteBackPolicy};

/// Settings to change ([`FileSystem::change_settings`](crate::FileSystem::change_settings)); `None` leaves one as it is. What they mean: [`MountOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SettingsChange {
    /// Where writes are split. `Auto` measures, also if it was `Auto` before.
    pub threshold: Option<Threshold>,
    /// Limit of the host memory, in bytes. What is more than a lower limit is given back before the change returns.
    pub memory_bytes: Option<u64>,
    /// Which blocks are written back first. Blocks used before the change count as the oldest.
    pub write_back: Option<WriteBackPolicy>,
    /// Write-back starts when less than this share of the data area is free, in percent.
    pub write_back_percent: Option<u8>,
    /// Which reads leave copies. `Off` frees the copies that there are.
    pub promote: Option<Promote>,
    /// Most bytes to read ahead.
    pub read_ahead_bytes: Option<u32>,
    /// Longest piece of a write that is stored in place, in bytes.
    pub in_place_bytes: Option<u32>,
    /// A page that a page cache writes back is written by lines if fewer of its 64 lines changed.
    pub modified_lines: Option<u32>,
    /// Whether freed sectors are discarded: `Batched` also discards what was freed since the mount.
    pub discard: Option<Discard>,
}

/// One of a few values, in an atomic.
#[derive(Debug)]
struct OneOf<T: 'static> {
    values: &'static [T],
    index: AtomicU8,
}

impl<T: Copy + PartialEq> OneOf<T> {
    fn new(values: &'static [T], value: T) -> Self {
        let one = Self { values, index: AtomicU8::new(0) };
        one.set(value);
        one
    }

    fn get(&self) -> T {
        self.values[usize::from(self.index.load(Relaxed))]
    }

    fn set(&self, value: T) {
        if let Some(index) = self.values.iter().position(|known| *known == value) {
            self.index.store(index as u8, Relaxed);
        }
    }
}

/// A threshold in one word, so that one load has all of it: the bytes, above them the kind.
fn word_of(threshold: Threshold) -> u64 {
    match threshold {
        Threshold::BlockSize => 0,
        Threshold::Bytes(bytes) => 1 << 32 | u64::from(bytes),
        Threshold::Auto => 2 << 32,
        Threshold::BlocksOnly => 3 << 32,
    }
}

fn threshold_of(word: u64) -> Threshold {
    match word >> 32 {
        0 => Threshold::BlockSize,
        1 => Threshold::Bytes(word as u32),
        2 => Threshold::Auto,
        _ => Threshold::BlocksOnly,
    }
}

/// The settings of a mount.
#[derive(Debug)]
pub(crate) struct Settings {
    /// As mounted: options that last as long as the mount.
    mounted: MountOptions,
    threshold: AtomicU64,
    memory_bytes: AtomicU64,
    write_back: OneOf<WriteBackPolicy>,
    write_back_percent: AtomicU8,
    promote: OneOf<Promote>,
    read_ahead_bytes: AtomicU32,
    in_place_bytes: AtomicU32,
    modified_lines: AtomicU32,
    discard: OneOf<Discard>,
    /// Held by whoever changes them.
    pub(crate) changing: Mutex<()>,
}

impl Settings {
    /// Those that a mount begins with.
    pub(crate) fn new(options: &MountOptions) -> Self {
        Self {
            threshold: AtomicU64::new(word_of(options.threshold)),
            memory_bytes: AtomicU64::new(options.memory_bytes),
            write_back: OneOf::new(&[WriteBackPolicy::MostSpace, WriteBackPolicy::Oldest, WriteBackPolicy::Coldest], options.write_back),
            write_back_percent: AtomicU8::new(options.write_back_percent),
            promote: OneOf::new(&[Promote::Off, Promote::Hot, Promote::EveryRead], options.promote),
            read_ahead_bytes: AtomicU32::new(options.read_ahead_bytes),
            in_place_bytes: AtomicU32::new(options.in_place_bytes),
            modified_lines: AtomicU32::new(options.modified_lines),
            discard: OneOf::new(&[Discard::None, Discard::Batched], options.discard),
            changing: Mutex::default(),
            mounted: options.clone(),
        }
    }

    /// All options as they are now: those that last as they were at the mount.
    pub(crate) fn in_force(&self) -> MountOptions {
        MountOptions {
            threshold: self.threshold(),
            memory_bytes: self.memory_bytes(),
            write_back: self.write_back(),
            write_back_percent: self.write_back_percent(),
            promote: self.promote(),
            read_ahead_bytes: self.read_ahead_bytes(),
            in_place_bytes: self.in_place_bytes(),
            modified_lines: self.modified_lines(),
            discard: self.discard(),
            ..self.mounted.clone()
        }
    }

    /// The options of the mount; only those that last are still in force.
    pub(crate) fn mounted(&self) -> &MountOptions {
        &self.mounted
    }

    pub(crate) fn threshold(&self) -> Threshold {
        threshold_of(self.threshold.load(Relaxed))
    }

    pub(crate) fn set_threshold(&self, threshold: Threshold) {
        self.threshold.store(word_of(threshold), Relaxed);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Relaxed)
    }

    pub(crate) fn set_memory_bytes(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Relaxed);
    }

    #[inline]
    pub(crate) fn write_back(&self) -> WriteBackPolicy {
        self.write_back.get()
    }

    pub(crate) fn set_write_back(&self, policy: WriteBackPolicy) {
        self.write_back.set(policy);
    }

    #[inline]
    pub(crate) fn write_back_percent(&self) -> u8 {
        self.write_back_percent.load(Relaxed)
    }

    pub(crate) fn set_write_back_percent(&self, percent: u8) {
        self.write_back_percent.store(percent, Relaxed);
    }

    #[inline]
    pub(crate) fn promote(&self) -> Promote {
        self.promote.get()
    }

    pub(crate) fn set_promote(&self, promote: Promote) {
        self.promote.set(promote);
    }

    pub(crate) fn read_ahead_bytes(&self) -> u32 {
        self.read_ahead_bytes.load(Relaxed)
    }

    pub(crate) fn set_read_ahead_bytes(&self, bytes: u32) {
        self.read_ahead_bytes.store(bytes, Relaxed);
    }

    pub(crate) fn in_place_bytes(&self) -> u32 {
        self.in_place_bytes.load(Relaxed)
    }

    pub(crate) fn set_in_place_bytes(&self, bytes: u32) {
        self.in_place_bytes.store(bytes, Relaxed);
    }

    #[inline]
    pub(crate) fn modified_lines(&self) -> u32 {
        self.modified_lines.load(Relaxed)
    }

    pub(crate) fn set_modified_lines(&self, lines: u32) {
        self.modified_lines.store(lines, Relaxed);
    }

    pub(crate) fn discard(&self) -> Discard {
        self.discard.get()
    }

    pub(crate) fn set_discard(&self, discard: Discard) {
        self.discard.set(discard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_in_force_and_the_rest_stays() {
        let options = MountOptions { large_extent_bytes: 4 << 20, ..MountOptions::DEFAULT };
        let settings = Settings::new(&options);
        assert_eq!(settings.in_force(), options);
        for threshold in [Threshold::Auto, Threshold::Bytes(1 << 31), Threshold::BlocksOnly, Threshold::Bytes(4096), Threshold::BlockSize] {
            settings.set_threshold(threshold);
            assert_eq!(settings.in_force(), MountOptions { threshold, ..options.clone() });
        }
        settings.set_memory_bytes(1 << 40);
        settings.set_write_back(WriteBackPolicy::Coldest);
        settings.set_write_back_percent(90);
        settings.set_promote(Promote::EveryRead);
        settings.set_read_ahead_bytes(7);
        settings.set_in_place_bytes(8);
        settings.set_modified_lines(9);
        settings.set_discard(Discard::Batched);
        let changed = MountOptions {
            memory_bytes: 1 << 40,
            write_back: WriteBackPolicy::Coldest,
            write_back_percent: 90,
            promote: Promote::EveryRead,
            read_ahead_bytes: 7,
            in_place_bytes: 8,
            modified_lines: 9,
            discard: Discard::Batched,
            ..options.clone()
        };
        assert_eq!((settings.in_force(), settings.mounted()), (changed, &options));
    }
}
