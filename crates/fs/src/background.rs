//! The background thread: it checkpoints before a journal ring is full, writes back before the memory zone is full, and lets empty units
//! leave their regions ([GU5] of `alloc/departure.rs`).
//!
//! The thread holds a strong reference to the file system only while it works, so a dropped file system is freed. An unmount stops and
//! joins the thread first, so nothing changes while the allocation maps are saved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::alloc::departure::Pace;
use crate::error::Result;
use crate::file_system::FileSystem;
use crate::journal::Requests;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{Discard, Promote};

/// How often the thread wakes without being asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often it looks for empty units of metadata.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

impl FileSystem {
    /// Starts the background thread for checkpoints and write-back, unless it runs already. Without it, operations do both themselves when
    /// they must.
    ///
    /// # Errors
    /// The error of the system if it cannot start a thread.
    pub fn start_background(self: &Arc<Self>) -> std::io::Result<()> {
        let mut background = self.background.lock();
        if background.is_some() {
            return Ok(()); // of two threads only one would see the stop flag
        }
        let (file_system, notifier) = (Arc::downgrade(self), self.volume.journal.notifier.clone());
        notifier.is_listening.store(true, Relaxed);
        let run = move || {
            let mut rest = INTERVAL;
            loop {
                let requests = {
                    let mut requests = notifier.requests.lock();
                    if *requests == Requests::default() {
                        notifier.condition.wait_for(&mut requests, rest);
                    }
                    std::mem::take(&mut *requests)
                };
                match file_system.upgrade() {
                    Some(file_system) if !requests.stop => rest = file_system.work_behind(requests),
                    _ => return,
                }
            }
        };
        *background = Some(std::thread::Builder::new().name("tandemfs-checkpoint".into()).spawn(run)?);
        Ok(())
    }

    /// Returns how long the thread may sleep.
    fn work_behind(&self, requests: Requests) -> Duration {
        self.remove_late_orphans();
        if self.is_read_only() || self.stopped().is_some() {
            return INTERVAL;
        }
        if self.settings.discard() == Discard::Batched {
            let _leaving = self.leaving.enter(); // who finds no space meanwhile waits for the sectors that are taken
            self.volume.discard_behind();
        }
        if self.settings.promote() == Promote::Off {
            self.drop_promoted(); // a read that began before promotion ended may have left a copy
        }
        if requests.checkpoint
            && let Err(error) = self.checkpoint()
        {
            tracing::error!(%error, "checkpoint");
        }
        if let Err(error) = self.give_back_behind() {
            tracing::error!(%error, "empty units of metadata");
        }
        if let Err(error) = self.compact_behind() {
            tracing::error!(%error, "compaction of metadata");
        }
        if let Err(error) = self.store_grace_periods(false) {
            tracing::warn!(%error, "grace periods of quota");
        }
        if let Err(error) = self.move_homes_behind() {
            tracing::error!(%error, "moving files to their homes");
        }
        self.end_idle_stores();
        if let Err(error) = self.close_open_pages_behind() {
            tracing::error!(%error, "closing pages that were mapped");
        }
        if !self.volume.held_back.stops_write_back()
            && (requests.write_back || self.is_data_area_low() || self.volume.memory.is_metadata_short())
            && let Err(error) = self.write_back_behind()
        {
            tracing::error!(%error, "write-back");
        }
        self.compaction_rest().min(INTERVAL)
    }

    /// Lets empty units leave their regions: at once if units are short, else those that were empty at this look and at the one before it.
    fn give_back_behind(&self) -> Result<()> {
        if self.are_units_short() && self.volume.give_back_units(Pace::Short)? > 0 {
            return Ok(());
        }
        {
            let mut looked_at = self.looked_for_units.lock();
            if looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
                return Ok(());
            }
            *looked_at = Some(Instant::now());
        }
        self.volume.look_for_empty_units();
        self.volume.give_back_units(Pace::Rested).map(drop)
    }

    /// Write-back passes until enough is free. After a pass that frees nothing, nobody asks again before the next tick ([WB5]).
    fn write_back_behind(&self) -> Result<()> {
        let asked = &self.write_back.asked;
        asked.store(true, Relaxed);
        if self.volume.memory.is_metadata_short() {
            self.empty_units()?;
        }
        loop {
            let pass = self.write_back_pass()?;
            for (inode, error) in pass.failed.into_iter().chain(pass.damaged) {
                let path = self.path_text(inode, None);
                tracing::error!(inode = inode.get(), path, "write-back of a block: {error}"); // the other blocks go on
            }
            if pass.blocks == 0 || !self.is_data_area_low() || self.write_back.stop.load(Relaxed) {
                break;
            }
        }
        asked.store(self.is_data_area_low(), Relaxed);
        Ok(())
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop_background(&self) {
        self.write_back.stop.store(true, Relaxed);
        self.volume.journal.ask(|requests| requests.stop = true);
        self.volume.journal.notifier.is_listening.store(false, Relaxed);
        if let Some(thread) = self.background.lock().take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for FileSystem {
    /// The thread then ends by itself: the upgrade of its weak reference fails.
    fn drop(&mut self) {
        self.store_leases.drop_all();
        self.volume.journal.ask(|requests| requests.stop = true);
    }
}
