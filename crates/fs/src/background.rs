//! The thread behind the foreground: checkpoints before a ring is full, write-back before the memory zone is.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::FileSystem;
use crate::data::LOW_PERCENT;

/// How often the thread looks by itself.
const INTERVAL: Duration = Duration::from_secs(1);

/// The running thread; stops when dropped.
pub struct Background {
    file_system: Arc<FileSystem>,
    thread: Option<JoinHandle<()>>,
}

impl FileSystem {
    /// Starts the thread that checkpoints and writes back behind the foreground. Without it, operations do both themselves when they must.
    ///
    /// # Errors
    /// What the system says when it gives no thread.
    pub fn start_background(self: &Arc<Self>) -> std::io::Result<Background> {
        let file_system = self.clone();
        self.volume.journal.background.store(true, Relaxed);
        let thread = std::thread::Builder::new().name("tandemfs-checkpoint".into()).spawn({
            let file_system = self.clone();
            move || file_system.run_background()
        })?;
        Ok(Background { file_system, thread: Some(thread) })
    }

    fn run_background(&self) {
        let (lock, condition) = &self.volume.journal.wake;
        loop {
            let wake = {
                let mut wake = lock.lock();
                if *wake == Default::default() {
                    condition.wait_for(&mut wake, INTERVAL);
                }
                std::mem::take(&mut *wake)
            };
            if wake.stop {
                return;
            }
            self.remove_late_orphans();
            if self.is_read_only() || self.stopped().is_some() {
                continue;
            }
            if wake.checkpoint {
                if let Err(error) = self.checkpoint() {
                    tracing::error!(%error, "checkpoint");
                }
            }
            if wake.write_back || self.volume.memory.free_data_percent() < LOW_PERCENT {
                if let Err(error) = self.write_back() {
                    tracing::error!(%error, "write-back");
                }
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.file_system.stop_background.store(true, Relaxed);
        self.file_system.volume.journal.ask(|wake| wake.stop = true);
        self.file_system.volume.journal.background.store(false, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}
