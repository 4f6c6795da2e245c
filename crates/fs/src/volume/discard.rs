//! Discards: tells the drive which sectors of the block zone hold nothing any more, so that its garbage collection does not move them, and
//! so that an image gives their space back to the host.
//!
//! [DQ1] Sectors are discarded only while the allocator has them taken for that purpose ([SE3] of `alloc/sectors.rs`). So nobody reads
//!       them, nobody writes them, and no record names them.
//! [DQ2] Sectors are noted as freed when they are given back, that is after the transaction that frees them is persistent (RULES R7). No
//!       replay undoes it.
//! [DQ3] A discard is a hint. When a drive refuses it, the sectors are free as before, and after a refusal for lack of support nothing is
//!       discarded any more during this mount.
//!       Nothing is discarded either while damaged metadata may name free space ([HB1] of `held_back.rs`).
//! [DQ4] No discard is under way while maps are saved: [`Volume::end_discards`] waits for it.

use std::time::{Duration, Instant};

use tandemfs_device::DeviceError;
use tandemfs_format::SECTOR_BYTES;

use super::Volume;
use crate::error::Error;
use crate::space::Run;
use crate::statistics::add;
use crate::sync::Mutex;

/// Sectors that are out of the allocator at a time, at most: 64 MiB. At most a quarter of the free space, so that others find some.
const STEP_SECTORS: u64 = 16 << 10;

/// The background thread discards once in this time ...
const INTERVAL: Duration = Duration::from_secs(1);
/// ... for at most this time.
const SHARE: Duration = Duration::from_millis(250);
/// A full disk under an image has everything discarded that is free at most once in this time ...
const ALL_EVERY: Duration = Duration::from_secs(30);
/// ... and is logged once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What discarding has come to.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The maps are being saved, or were ([DQ4]).
    has_ended: bool,
    /// The drive does not know the command ([DQ3]).
    is_unsupported: bool,
    /// The group of sectors with which the next pass begins.
    next_group: usize,
    /// When the background thread discarded last.
    last: Option<Instant>,
    /// When everything was discarded for a full disk under the image.
    last_all: Option<Instant>,
    /// When a full disk under the image was logged last.
    told: Option<Instant>,
}

impl Volume {
    /// Discards what was freed during this mount, for about this time. Returns the bytes.
    pub(crate) fn discard_freed(&self, at_most: Duration) -> u64 {
        let start = Instant::now();
        let mut progress = self.discards.progress.lock();
        let groups = self.sectors.groups();
        let mut bytes = 0;
        for _ in 0..groups {
            loop {
                if !self.may_discard(&progress) || start.elapsed() >= at_most {
                    return bytes;
                }
                let runs = self.sectors.take_freed(progress.next_group, self.step_sectors());
                if runs.is_empty() {
                    break;
                }
                bytes += self.discard(&mut progress, runs);
            }
            progress.next_group = (progress.next_group + 1) % groups;
        }
        bytes
    }

    /// [`Volume::discard_freed`] beside other work: at most a quarter of the time.
    pub(crate) fn discard_behind(&self) {
        let is_due = {
            let last = &mut self.discards.progress.lock().last;
            let is_due = last.is_none_or(|last| last.elapsed() >= INTERVAL);
            if is_due {
                *last = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            self.discard_freed(SHARE);
        }
    }

    /// Logs that the disk under the image is full, unless that was logged a short time ago.
    pub(crate) fn tell_host_is_full(&self, error: &Error) {
        let mut progress = self.discards.progress.lock();
        if progress.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            progress.told = Some(Instant::now());
            let device = &self.drive.description().name;
            tracing::error!(%device, %error, "the disk that holds the image is full: writes fail until there is room on it, or files are removed");
        }
    }

    /// Discards free runs of at least `least` sectors of a group, from sector `from` of the group on, at most a step. Returns the bytes,
    /// and where to go on in the group.
    ///
    /// # Errors
    /// `None` if the drive has no such command, the mount ends, or damaged metadata holds space back.
    pub(crate) fn discard_free(&self, group: usize, from: u64, least: u64) -> Option<(u64, Option<u64>)> {
        let mut progress = self.discards.progress.lock();
        if !self.may_discard(&progress) {
            return None;
        }
        let (runs, next) = self.sectors.take_free(group, from, least, self.step_sectors());
        let bytes = self.discard(&mut progress, runs);
        (!progress.is_unsupported).then_some((bytes, next))
    }

    /// Discards everything that is free, also what was freed before this mount, for about this time and unless that was done a short time
    /// ago: for an image whose disk is full. Returns the bytes.
    pub(crate) fn discard_all(&self, at_most: Duration) -> u64 {
        let start = Instant::now();
        {
            let last = &mut self.discards.progress.lock().last_all;
            if last.is_some_and(|last| last.elapsed() < ALL_EVERY) {
                return 0;
            }
            *last = Some(start);
        }
        let mut bytes = 0;
        for group in 0..self.sectors.groups() {
            let mut next = Some(0);
            while let Some(from) = next.filter(|_| start.elapsed() < at_most) {
                let Some(step) = self.discard_free(group, from, 1) else { return bytes };
                bytes += step.0;
                next = step.1;
            }
        }
        bytes
    }

    /// Waits for the discard that is under way; there are none after it ([DQ4]).
    pub(crate) fn end_discards(&self) {
        self.discards.progress.lock().has_ended = true;
    }

    fn may_discard(&self, progress: &Progress) -> bool {
        let is_possible = self.drive.description().discard && !progress.is_unsupported && !progress.has_ended;
        is_possible && !self.held_back.is_any() && self.health.check_writable().is_ok()
    }

    fn step_sectors(&self) -> u64 {
        (self.sectors.space().free_bytes / SECTOR_BYTES as u64 / 4).clamp(1, STEP_SECTORS)
    }

    /// Discards sectors that are taken for it ([DQ1]), and gives them back. Returns the bytes that the drive took.
    fn discard(&self, progress: &mut Progress, runs: Vec<Run>) -> u64 {
        let mut sectors = 0;
        for run in runs {
            let (sector, count) = run;
            if progress.is_unsupported {
                self.sectors.not_discarded(run);
                continue;
            }
            match self.drive.discard(sector, count) {
                Ok(()) => {
                    self.sectors.discarded(run);
                    sectors += count;
                }
                Err(error) => {
                    progress.is_unsupported = is_unsupported(&error);
                    tracing::warn!(%error, "discard"); // [DQ3]
                    self.sectors.discarded(run);
                }
            }
        }
        let bytes = sectors * SECTOR_BYTES as u64;
        add(&self.live.work.discarded_bytes, bytes);
        bytes
    }
}

fn is_unsupported(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Block { source, .. } if source.kind() == std::io::ErrorKind::Unsupported)
}
