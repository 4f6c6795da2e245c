//! Counts errors since the file system was made ([`ErrorCounters`] of the superblock).
//!
//! [KE1] They go to the device with writes of the superblock that happen anyway, and when a scrub ends. So a crash may lose the latest
//!       counts, and nothing waits for them. A superblock that could not be written for them alone is no reason to stop.

use tandemfs_device::{Drive, FailureCounts};
use tandemfs_format::error_counters::ErrorCounters;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of a mount.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    /// As the superblock had them at the mount, with the last scrub since then.
    base: Mutex<ErrorCounters>,
    /// What the drive had counted then.
    drive_before: FailureCounts,
    metadata: AtomicU64,
    data: AtomicU64,
    last_seconds: AtomicU64,
}

fn seconds() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec.max(0) as u64
}

impl ErrorCounts {
    /// Goes on counting where the superblock left off.
    pub(crate) fn since(counters: ErrorCounters, drive: &Drive) -> Self {
        Self { base: Mutex::new(counters), drive_before: drive.counters().failures(), ..Self::default() }
    }

    /// An object whose metadata is damaged.
    pub(crate) fn metadata_damaged(&self) {
        self.metadata.fetch_add(1, Relaxed);
        self.last_seconds.store(seconds(), Relaxed);
    }

    /// Data that does not match its checksum.
    pub(crate) fn data_damaged(&self) {
        self.data.fetch_add(1, Relaxed);
        self.last_seconds.store(seconds(), Relaxed);
    }

    /// Mismatches that were counted and are none: others wrote while the bytes were read without a lock.
    pub(crate) fn data_not_damaged(&self, mismatches: u64) {
        self.data.fetch_sub(mismatches, Relaxed);
    }

    /// A scrub that ended.
    pub(crate) fn scrubbed(&self, findings: u64, bytes: u64) {
        let mut base = self.base.lock();
        (base.scrub_seconds, base.scrub_findings, base.scrub_bytes) = (seconds(), findings, bytes);
    }

    /// All of them now.
    pub(crate) fn total(&self, drive: &Drive) -> ErrorCounters {
        let base = *self.base.lock();
        let (now, before) = (drive.counters().failures(), self.drive_before);
        let of_drive = if now == before { 0 } else { now.last_seconds };
        ErrorCounters {
            metadata_damaged: base.metadata_damaged.saturating_add(self.metadata.load(Relaxed)),
            data_damaged: base.data_damaged.saturating_add(self.data.load(Relaxed)),
            device_reads_failed: base.device_reads_failed.saturating_add(now.reads.saturating_sub(before.reads)),
            device_writes_failed: base.device_writes_failed.saturating_add(now.writes.saturating_sub(before.writes)),
            last_error_seconds: base.last_error_seconds.max(self.last_seconds.load(Relaxed)).max(of_drive),
            ..base
        }
    }
}
