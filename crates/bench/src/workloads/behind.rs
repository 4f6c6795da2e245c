//! The work of a mount's background thread in virtual time, as a worker of its own: checkpoints, write-back, discards.

use std::sync::Arc;

use tandemfs_device::sync::{Condvar, Mutex};
use tandemfs_device::{Structure, VirtualTime};
use tandemfs_fs::FileSystem;

use super::run::{Actor, together};
use crate::failure::Result;

/// Calls between two checks of how full the memory zone is, of small calls.
const CALLS_A_LOOK: u64 = 512;
/// Background write-back starts when less than this percentage of the data area is free; foreground write-back starts later.
const WRITE_BACK_PERCENT: u64 = 15;

/// The background work of a file system that was mounted without its thread.
pub struct Behind<'c> {
    fs: Arc<FileSystem>,
    time: &'c dyn VirtualTime,
    state: Mutex<State>,
    asked: Condvar,
    /// Journal bytes after which a mount's thread is woken.
    journal_bytes_max: u64,
    /// How often freed sectors are discarded; `None`: never.
    pub discard_every_ns: Option<u64>,
    /// Calls between two checks of how full the memory zone is.
    pub calls_a_look: u64,
}

#[derive(Default)]
struct State {
    jobs: Jobs,
    has_ended: bool,
    idle_at_ns: u64,
    calls: u64,
    journal_bytes: u64,
    discarded_at_ns: u64,
    discarded_bytes: u64,
    is_discarding: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Jobs {
    checkpoint: bool,
    write_back: bool,
    discard: bool,
}

impl<'c> Behind<'c> {
    /// The background work of a file system that so many workers use; nothing is discarded.
    pub fn new(fs: &Arc<FileSystem>, time: &'c dyn VirtualTime, workers: usize) -> Self {
        let geometry = &fs.superblock().geometry;
        // A mount's thread is woken when half of one ring is full, and each CPU has its own.
        let rings = u64::from(geometry.ring_count()).min(workers as u64);
        let state = State { discarded_at_ns: time.now_ns(), ..State::default() };
        let journal_bytes_max = rings * geometry.ring_bytes() / 2;
        Self {
            fs: fs.clone(),
            time,
            state: Mutex::new(state),
            asked: Condvar::default(),
            journal_bytes_max,
            discard_every_ns: None,
            calls_a_look: CALLS_A_LOOK,
        }
    }

    /// When the work that was asked for until the end of the actors was done.
    pub fn idle_at_ns(&self) -> u64 {
        self.state.lock().idle_at_ns
    }

    /// Bytes of sectors that were discarded.
    pub fn discarded_bytes(&self) -> u64 {
        self.state.lock().discarded_bytes
    }

    /// Whether sectors are being discarded now.
    pub fn is_discarding(&self) -> bool {
        self.state.lock().is_discarding
    }

    /// Runs actors with this work beside them. Returns the nanoseconds that they took.
    pub fn beside<'a>(&'a self, actors: Vec<Actor<'a>>) -> Result<u64> {
        self.state.lock().has_ended = false;
        together(
            self.time,
            actors,
            || self.work(),
            || {
                self.state.lock().has_ended = true;
                self.asked.notify_one();
            },
        )
    }

    /// Called after each call of a worker.
    pub fn tend(&self) -> Result<()> {
        let journal = self.fs.drive().counters().snapshot().by_structure[Structure::Journal as usize].byte_written_bytes;
        let now = self.time.now_ns();
        let mut state = self.state.lock();
        if journal.saturating_sub(state.journal_bytes) > self.journal_bytes_max {
            (state.journal_bytes, state.jobs.checkpoint) = (journal, true);
        }
        state.calls += 1;
        if state.calls.is_multiple_of(self.calls_a_look) {
            let memory = self.fs.space().memory;
            state.jobs.write_back |= memory.free_bytes * 100 < (memory.free_bytes + memory.data_log_bytes) * WRITE_BACK_PERCENT;
        }
        if self.discard_every_ns.is_some_and(|interval_ns| now >= state.discarded_at_ns + interval_ns) {
            (state.discarded_at_ns, state.jobs.discard) = (now, true);
        }
        if state.jobs != Jobs::default() {
            self.asked.notify_one();
        }
        Ok(())
    }

    fn work(&self) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let jobs = std::mem::take(&mut state.jobs);
            if jobs == Jobs::default() {
                if state.has_ended {
                    state.idle_at_ns = self.time.now_ns();
                    return Ok(());
                }
                self.asked.wait(&mut state);
                continue;
            }
            state.is_discarding = jobs.discard;
            drop(state);
            let discarded_bytes = if jobs.discard { self.fs.discard_freed() } else { 0 };
            self.state.lock().is_discarding = false;
            if jobs.checkpoint {
                self.fs.checkpoint()?;
            }
            if jobs.write_back {
                self.fs.write_back()?;
            }
            state = self.state.lock();
            state.discarded_bytes += discarded_bytes;
        }
    }
}
