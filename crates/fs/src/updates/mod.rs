//! How bytes reach the media of the memory zone (FusionFS §2.1). What is durable does not depend on it: nothing else chooses this, and this chooses
//! nothing else.
//!
//! | bytes | CPU caches survive a power failure | they are lost |
//! |---|---|---|
//! | hot | in place | flushed |
//! | cold, at most 64 B | in place | flushed |
//! | cold, fewer than a threshold | flushed | flushed |
//! | cold, more | past the caches | past the caches |
//!
//! Media of persistent memory are written in lines of 256 B, and CPU caches give lines of 64 B away in the order of their evictions. So bytes that
//! stay in the cache until they are stored again cost the media nothing, and bytes that are evicted one line at a time cost four times their size.
//!
//! [UP1] Where CPU caches are lost, everything is flushed and fenced that must be, whatever was chosen ([`Drive::flush_lines`]). Where they survive, a choice may
//!       flush more than durability needs, never less.
//! [UP2] Cold and hot are told apart by the pages of a file (`hot_pages.rs`); what is no file's is cold. Write-back of hot pages stores them as their
//!       writes did: composed anew again and again, a hot block would cost the media more than all its writes.
//! [UP3] Only media with large lines have something to gain. Elsewhere stores take the way that the device layer chooses, and nothing is counted.
//! [UP4] The threshold is measured at the mount (`tuning/updates.rs`); the paper's is 32 KiB. Data logs are stored out of place whatever way they take, so nothing
//!       speaks for the caches but the time of the stores themselves.
//! [UP5] The paper pins hot bytes of fewer than 256 B to reserved ways of the cache. They are not pinned here, unless the option says so: on the
//!       model of `tests/updates.rs` that costs the media more (pinned ways are a part of the cache, and hot bytes stay in it anyway).

mod hot_pages;

use std::ops::Range;

use tandemfs_device::{Drive, InFlight, Lines, StoreWay, Structure};
use tandemfs_format::{InodeNumber, LineAddress, PAGE_BYTES};

use crate::error::Result;
use crate::statistics::{LiveWork, add};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::types::{Update, UpdateMode};
use hot_pages::HotPages;

/// Cold bytes of a line of the CPU's caches: to flush it changes nothing.
const IN_PLACE_BYTES_MAX: u64 = 64;
/// Cold bytes from here on go past the caches, unless something else was measured (FusionFS §2.1: 32 KiB).
pub(crate) const PAST_CACHES_BYTES: u32 = 32 << 10;
/// Ways of each set that are reserved for pinned lines.
const PINNED_WAYS: u32 = 2;
/// The share of the cache that hot pages may fill: the rest passes through it.
const HOT_SHARE: u64 = 2;
/// A CPU's cache where nobody says how large it is.
const CACHE_BYTES_DEFAULT: u64 = 32 << 20;

/// The choices of a mount.
#[derive(Debug)]
pub(crate) struct Updates {
    mode: Mode,
    /// Nothing needs to be flushed.
    caches_survive: bool,
    /// [UP4]
    past_caches_bytes: AtomicU32,
}

#[derive(Debug)]
enum Mode {
    /// [UP3]
    Devices,
    Fixed(Update),
    /// Without hot pages where CPU caches are lost: there all is flushed.
    Adaptive(Option<HotPages>),
}

impl Updates {
    pub(crate) fn new(drive: &Drive, mode: UpdateMode) -> Self {
        let (media, caches_survive) = (drive.media(), !drive.domain().needs_flush());
        let is_adaptive = mode == UpdateMode::Adaptive || mode == UpdateMode::Auto && media.is_some();
        if let (UpdateMode::Always(Update::Pinned), Some(media)) = (mode, media)
            && let Err(most) = media.reserve_ways(PINNED_WAYS)
        {
            let _fewer = media.reserve_ways(most);
        }
        let hot_pages = || {
            let cache_bytes = media.map(|media| media.cache_bytes()).or_else(cache_of_this_machine).unwrap_or(CACHE_BYTES_DEFAULT);
            HotPages::new((cache_bytes / HOT_SHARE / PAGE_BYTES as u64).max(1) as usize)
        };
        let mode = match mode {
            UpdateMode::Always(update) => Mode::Fixed(update),
            _ if is_adaptive => Mode::Adaptive(caches_survive.then(hot_pages)),
            _ => Mode::Devices,
        };
        Self { mode, caches_survive, past_caches_bytes: AtomicU32::new(PAST_CACHES_BYTES) }
    }

    /// Whether the threshold of cold bytes decides anything.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.mode, Mode::Adaptive(_))
    }

    /// Cold bytes go past the caches from so many on.
    pub(crate) fn set_past_caches_bytes(&self, bytes: u32) {
        self.past_caches_bytes.store(bytes, Relaxed);
    }

    /// The table above.
    fn adaptive(&self, is_hot: bool, bytes: usize) -> Update {
        match bytes as u64 {
            _ if is_hot => Update::InPlace,
            ..=IN_PLACE_BYTES_MAX => Update::InPlace,
            bytes if bytes >= self.past_caches_bytes.load(Relaxed).into() => Update::NonTemporal,
            _ => Update::Flush,
        }
    }

    /// How a write stores bytes of a file. They count as used once more.
    #[inline]
    pub(crate) fn of_write(&self, file: InodeNumber, offset: u64, bytes: usize) -> Update {
        self.choose(bytes, |hot| hot.note(file, pages(offset, bytes)))
    }

    /// How bytes of a file are stored behind operations: they move, and do not count as used.
    #[inline]
    pub(crate) fn of_move(&self, file: InodeNumber, offset: u64, bytes: usize) -> Update {
        self.choose(bytes, |hot| hot.are_hot(file, pages(offset, bytes)))
    }

    /// How cold bytes are stored ([UP2]).
    #[inline]
    pub(crate) fn of_cold(&self, bytes: usize) -> Update {
        self.choose(bytes, |_| false)
    }

    #[inline]
    fn choose(&self, bytes: usize, are_hot: impl FnOnce(&HotPages) -> bool) -> Update {
        match &self.mode {
            Mode::Devices => Update::InPlace,
            Mode::Fixed(update) => *update,
            Mode::Adaptive(hot) => self.adaptive(hot.as_ref().is_some_and(are_hot), bytes),
        }
    }

    /// Copies bytes to the memory zone, from `skip` bytes after the start of a line, and starts to flush what has to be flushed or is to be.
    pub(crate) fn store(
        &self,
        (drive, work): (&Drive, &LiveWork),
        update: Update,
        structure: Structure,
        (address, skip): (LineAddress, u64),
        bytes: &[u8],
    ) -> Result<Lines<InFlight>> {
        if matches!(self.mode, Mode::Devices) {
            return Ok(drive.flush_lines(drive.store_within(structure, address, skip, bytes)?));
        }
        let (way, counter) = match update {
            Update::InPlace => (StoreWay::Cached, &work.stored_in_place_bytes),
            Update::Pinned => (StoreWay::Pinned, &work.stored_pinned_bytes),
            Update::Flush => (StoreWay::Cached, &work.stored_flushed_bytes),
            Update::NonTemporal => (StoreWay::NonTemporal, &work.stored_past_caches_bytes),
        };
        add(counter, bytes.len() as u64);
        let lines = drive.store_by(structure, way, address, skip, bytes)?;
        let flushes_more = self.caches_survive && update == Update::Flush;
        Ok(if flushes_more { drive.write_back_lines(lines) } else { drive.flush_lines(lines) }) // [UP1]
    }
}

/// The pages of a range of bytes.
fn pages(offset: u64, bytes: usize) -> Range<u64> {
    offset / PAGE_BYTES as u64..(offset + bytes as u64).div_ceil(PAGE_BYTES as u64)
}

/// The largest cache of the first CPU, in bytes, as Linux shows it.
fn cache_of_this_machine() -> Option<u64> {
    let sizes = (0..8).filter_map(|index| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let kibibytes: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kibibytes << 10)
    });
    sizes.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_and_size_decide() {
        let updates = Updates { mode: Mode::Devices, caches_survive: true, past_caches_bytes: AtomicU32::new(PAST_CACHES_BYTES) };
        for (is_hot, bytes, expected) in [
            (true, 1, Update::InPlace),
            (true, 1 << 20, Update::InPlace),
            (false, 64, Update::InPlace),
            (false, 65, Update::Flush),
            (false, (32 << 10) - 1, Update::Flush),
            (false, 32 << 10, Update::NonTemporal),
        ] {
            assert_eq!(updates.adaptive(is_hot, bytes), expected, "{is_hot} {bytes}");
        }
        updates.set_past_caches_bytes(1024);
        assert_eq!(updates.adaptive(false, 1024), Update::NonTemporal);
    }
}
