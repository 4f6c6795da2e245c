//! Parameters of the model: those of its profile, with what was chosen at the image's creation.

use tandemfs_format::LINE_BYTES;
use tandemfs_format::size::size;

use super::buffer::MEDIA_LINE_BYTES;

/// Largest cache, in bytes: the model takes an eighth of it.
const CACHE_BYTES_MAX: u64 = 4 << 30;
const WAYS_MAX: u32 = 64;
const DIMMS_MAX: u32 = 64;
const BUFFER_BYTES_MAX: u32 = 1 << 20;

/// A CPU's cache in front of DIMMs of persistent memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaModel {
    /// Size of the cache, in bytes: whole sets.
    pub cache_bytes: u64,
    /// Lines of a set.
    pub cache_ways: u32,
    /// Ways of each set that can be reserved for pinned lines; fewer than all.
    pub reservable_ways: u32,
    /// DIMMs, which take turns every 4 KiB.
    pub dimm_count: u32,
    /// The buffer of a DIMM in which lines meet, in bytes: whole media lines. The DIMM has another one of this size for what was read.
    pub buffer_bytes: u32,
    /// What the media of a DIMM read, in bytes a second.
    pub read_bytes_per_second: u64,
    /// What they write, in bytes a second.
    pub write_bytes_per_second: u64,
    /// A load or a store of a line that is in the cache, in nanoseconds.
    pub hit_ns: u32,
    /// The flush of a modified line, with the fence behind it, in nanoseconds.
    pub flush_ns: u32,
}

/// Choices for the model at an image's creation; `None` keeps the profile's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaOptions {
    /// Size of the cache, in bytes: whole sets.
    pub cache_bytes: Option<u64>,
    /// DIMMs.
    pub dimm_count: Option<u32>,
    /// A power failure does not lose what is in the CPU's caches (eADR, CXL Global Persistent Flush): the drive is of the domain `gpf`.
    pub persistent_caches: bool,
}

impl MediaModel {
    /// This model with the given choices.
    ///
    /// Errors: a sentence that names the choice that makes no sense.
    pub(crate) fn chosen(mut self, options: &MediaOptions) -> Result<Self, String> {
        self.cache_bytes = options.cache_bytes.unwrap_or(self.cache_bytes);
        self.dimm_count = options.dimm_count.unwrap_or(self.dimm_count);
        self.check()?;
        Ok(self)
    }

    /// One sentence that says why there is no such memory, if so.
    pub(crate) fn check(&self) -> Result<(), String> {
        let set_bytes = u64::from(self.cache_ways) * LINE_BYTES as u64;
        let shape = |is_sane: bool| if is_sane { Ok(()) } else { Err("no CPU and no DIMM have these parameters".to_owned()) };
        shape((2..=WAYS_MAX).contains(&self.cache_ways) && self.reservable_ways < self.cache_ways)?;
        if self.cache_bytes < set_bytes || self.cache_bytes > CACHE_BYTES_MAX {
            let (found, most) = (size(self.cache_bytes), size(CACHE_BYTES_MAX));
            return Err(format!("a CPU cache of {found} is outside {set_bytes} B to {most}; name another size"));
        }
        if !self.cache_bytes.is_multiple_of(set_bytes) {
            let found = size(self.cache_bytes);
            return Err(format!(
                "a CPU cache of {found} is not a multiple of {set_bytes} B, a set of {} lines; name another size",
                self.cache_ways
            ));
        }
        if !(1..=DIMMS_MAX).contains(&self.dimm_count) {
            return Err(format!("{} DIMMs are outside 1 to {DIMMS_MAX}; name another number", self.dimm_count));
        }
        let media_line = MEDIA_LINE_BYTES as u32;
        shape((media_line..=BUFFER_BYTES_MAX).contains(&self.buffer_bytes) && self.buffer_bytes.is_multiple_of(media_line))?;
        shape(self.read_bytes_per_second > 0 && self.write_bytes_per_second > 0)
    }

    /// Sets of the cache.
    pub(crate) fn sets(&self) -> u64 {
        self.cache_bytes / (u64::from(self.cache_ways) * LINE_BYTES as u64)
    }
}
