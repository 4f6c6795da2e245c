//! Timing of persistent memory behind a CPU's cache: what reaches the media takes their time ([TI8]).
//!
//! [TI8]: super

use tandemfs_format::LINE_BYTES;

use super::plain::{Timing, transfer_ns};
use super::resource::Resource;
use crate::media::MediaModel;

/// What an access made the cache and the media do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MediaWork {
    /// Lines that were in the cache.
    pub(crate) hit_lines: u64,
    /// Lines that had to be fetched.
    pub(crate) missed_lines: u64,
    /// Modified lines that a flush wrote.
    pub(crate) flushed_lines: u64,
    /// Lines stored past the cache.
    pub(crate) bypassing_lines: u64,
    /// Read from the media, in bytes.
    pub(crate) read_bytes: u64,
    /// Written to the media, in bytes.
    pub(crate) written_bytes: u64,
}

/// When the media are free again.
#[derive(Debug)]
pub(crate) struct MediaTimeline {
    timing: Timing,
    model: MediaModel,
    /// All DIMMs: addresses take turns among them, so they are busy alike.
    media: Resource,
    /// How far the media may be behind a store that is complete: what waits is in the buffers.
    behind_ns: u64,
}

impl MediaTimeline {
    /// `timing` has the latencies of loads, and of stores past the caches.
    pub(crate) fn new(timing: Timing, model: MediaModel) -> Self {
        let behind_ns = transfer_ns(model.buffer_bytes.into(), model.write_bytes_per_second);
        Self { timing, model, media: Resource::default(), behind_ns }
    }

    /// A load that arrived at `arrival`. Returns when it is complete: its lines have come.
    pub(crate) fn load(&mut self, arrival: u64, work: &MediaWork) -> u64 {
        let latency = match work.missed_lines {
            0 => 0,
            lines => self.timing.load.latency_ns(lines * LINE_BYTES as u64),
        };
        let read = self.read(arrival, work);
        self.written(arrival, work);
        read.max(arrival + work.hit_lines * u64::from(self.model.hit_ns) + latency)
    }

    /// A store or a flush that arrived at `arrival`. Returns when it is complete: the DIMMs have room for what it sent.
    pub(crate) fn post(&mut self, arrival: u64, work: &MediaWork) -> u64 {
        let line = LINE_BYTES as u64;
        let (first, second) = (self.timing.load.latency_ns(line), self.timing.load.latency_ns(2 * line));
        let further_flush_ns = transfer_ns(line, self.model.write_bytes_per_second);
        let latency = work.hit_lines * u64::from(self.model.hit_ns)
            // Nobody waits for the line itself: fetches overlap, as those of a long load.
            + work.missed_lines * (second - first)
            + work.flushed_lines.min(1) * u64::from(self.model.flush_ns)
            + work.flushed_lines.saturating_sub(1) * further_flush_ns
            + match work.bypassing_lines {
                0 => 0,
                lines => self.timing.store.latency_ns(lines * line),
            };
        let done = self.read(arrival, work).max(self.written(arrival, work));
        (arrival + latency).max(done.saturating_sub(self.behind_ns))
    }

    /// When the media have read what they must; `arrival` where that is nothing.
    fn read(&mut self, arrival: u64, work: &MediaWork) -> u64 {
        self.use_media(arrival, work.read_bytes, self.model.read_bytes_per_second)
    }

    fn written(&mut self, arrival: u64, work: &MediaWork) -> u64 {
        self.use_media(arrival, work.written_bytes, self.model.write_bytes_per_second)
    }

    fn use_media(&mut self, arrival: u64, bytes: u64, bytes_per_second: u64) -> u64 {
        if bytes == 0 {
            return arrival;
        }
        self.media.share(arrival, transfer_ns(bytes, bytes_per_second.saturating_mul(self.model.dimm_count.into())).max(1))
    }
}
