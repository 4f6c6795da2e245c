//! What operations are recorded into ([TRC1]–[TRC3]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::thread::sched_getcpu;
use tandemfs_device::Apart;

use crate::file::End;
use crate::record::Record;

/// Buffers; CPUs share them where there are more.
const BUFFERS: usize = 16;
/// Room of one buffer, in bytes: some seven thousand operations.
pub const BUFFER_BYTES: usize = 1 << 20;

/// Records operations of a mount, by whichever way they come, while somebody reads them.
#[derive(Debug)]
pub struct Recorder {
    is_on: AtomicBool,
    /// Somebody reads, or is about to.
    is_taken: AtomicBool,
    dropped: AtomicU64,
    /// When the mount began.
    epoch: Instant,
    /// When the trace did, in nanoseconds since then. An operation that began before is none of its own.
    began_ns: AtomicU64,
    /// Who reads: its own operations are left out.
    reader: AtomicU64,
    buffers: [Apart<Mutex<Vec<u8>>>; BUFFERS],
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            epoch: Instant::now(),
            began_ns: AtomicU64::new(0),
            reader: AtomicU64::new(u64::MAX),
            buffers: Default::default(),
        }
    }
}

impl Recorder {
    /// The start of an operation that a trace is to have; none if nobody records.
    #[inline]
    pub fn start(&self) -> Option<Instant> {
        self.is_on.load(Relaxed).then(Instant::now)
    }

    /// Adds an operation that has ended, with its times filled in.
    pub fn record(&self, started: Instant, mut record: Record<'_>) {
        let ended = Instant::now();
        if !self.is_on.load(Relaxed) || self.reader.load(Relaxed) == u64::from(record.thread) {
            return;
        }
        let mut buffer = self.buffers[sched_getcpu() % BUFFERS].lock();
        // Under the lock, so of the trace that this buffer is of.
        let since = self.since_epoch(started).checked_sub(self.began_ns.load(Relaxed));
        let Some(started_ns) = since else { return };
        record.started_ns = started_ns;
        record.took_ns = ended.saturating_duration_since(started).as_nanos() as u64;
        if buffer.len() + record.encoded_bytes() > BUFFER_BYTES {
            self.dropped.fetch_add(1, Relaxed); // [TRC2]
        } else {
            record.encode(&mut buffer);
        }
    }

    /// Begins a trace, without operations of the thread `reader`. None if somebody else has one ([TRC3]).
    pub fn begin(&self, reader: u32) -> Option<Recording<'_>> {
        if self.is_taken.swap(true, SeqCst) {
            return None;
        }
        self.began_ns.store(self.since_epoch(Instant::now()), Relaxed);
        self.dropped.store(0, Relaxed);
        self.reader.store(if reader == 0 { u64::MAX } else { reader.into() }, Relaxed);
        for buffer in &self.buffers {
            let mut buffer = buffer.lock();
            buffer.clear();
            buffer.reserve_exact(BUFFER_BYTES);
        }
        self.is_on.store(true, SeqCst);
        Some(Recording { recorder: self, spare: Vec::with_capacity(BUFFER_BYTES) })
    }

    fn since_epoch(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }
}

/// A trace that is being recorded; it ends when this is dropped.
#[derive(Debug)]
pub struct Recording<'r> {
    recorder: &'r Recorder,
    /// Takes the place of a full buffer, so that who records waits for no copy.
    spare: Vec<u8>,
}

impl Recording<'_> {
    /// Hands what was recorded since the last call to `take`, buffer by buffer, as the records of one frame each.
    ///
    /// # Errors
    /// Those of `take`; what it was given is lost then.
    pub fn drain<E>(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        for buffer in &self.recorder.buffers {
            self.spare.clear();
            std::mem::swap(&mut *buffer.lock(), &mut self.spare);
            if !self.spare.is_empty() {
                take(&self.spare)?;
            }
        }
        Ok(())
    }

    /// Nothing more is recorded. What was, is still to be drained.
    pub fn stop(&self) {
        self.recorder.is_on.store(false, SeqCst);
    }

    /// Operations for which there was no room.
    pub fn dropped(&self) -> u64 {
        self.recorder.dropped.load(Relaxed)
    }

    /// How it stands; `recorded` is counted by who decodes.
    pub fn end(&self, recorded: u64) -> End {
        End { recorded, dropped: self.dropped() }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.stop();
        for buffer in &self.recorder.buffers {
            *buffer.lock() = Vec::new();
        }
        self.recorder.is_taken.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Door, Operation};

    fn record(thread: u32, inode: u64) -> Record<'static> {
        Record { thread, ..Record::new(Operation::Read, Door::Mount, inode) }
    }

    fn drained(recording: &mut Recording<'_>) -> Vec<Record<'static>> {
        let mut records = Vec::new();
        let taken = recording.drain(|mut bytes| {
            while !bytes.is_empty() {
                let (record, rest) = Record::decode(bytes)?;
                records.extend(record.map(Record::into_owned));
                bytes = rest;
            }
            Ok::<(), &str>(())
        });
        taken.expect("whole records");
        records
    }

    #[test]
    fn operations_are_recorded_while_somebody_reads() {
        let recorder = Recorder::default();
        assert_eq!(recorder.start(), None, "[TRC1]");
        let before = Instant::now();
        let mut recording = recorder.begin(77).expect("nobody else");
        assert!(recorder.begin(0).is_none(), "[TRC3]");
        let started = recorder.start().expect("on");
        std::thread::sleep(std::time::Duration::from_millis(2));
        recorder.record(started, record(5, 1));
        recorder.record(started, record(77, 2)); // who reads
        recorder.record(before, record(5, 3)); // began before
        let records = drained(&mut recording);
        assert_eq!(records.iter().map(|record| record.inode).collect::<Vec<_>>(), [1]);
        assert!(records[0].took_ns >= 2_000_000 && records[0].started_ns < records[0].took_ns * 1000, "{records:?}");
        recording.stop();
        recorder.record(started, record(5, 4));
        assert_eq!(drained(&mut recording), []);
        drop(recording);
        assert_eq!(recorder.start(), None);
        assert!(recorder.buffers.iter().all(|buffer| buffer.lock().capacity() == 0), "memory goes with the trace");
        assert_eq!(drained(&mut recorder.begin(0).expect("free again")), []);
    }

    /// [TRC2]
    #[test]
    fn what_has_no_room_is_counted() {
        let recorder = Recorder::default();
        let mut recording = recorder.begin(0).expect("nobody else");
        let count = (BUFFERS * BUFFER_BYTES / 96 + 1000) as u64;
        let started = recorder.start().expect("on");
        for inode in 0..count {
            recorder.record(started, record(1, inode));
        }
        let recorded = drained(&mut recording).len() as u64;
        assert!(recording.dropped() >= 1000);
        assert_eq!(recorded + recording.dropped(), count);
        assert_eq!(recording.end(recorded), End { recorded, dropped: count - recorded });
        recorder.record(started, record(1, 0));
        assert_eq!(drained(&mut recording).len(), 1, "there is room again");
    }

    #[test]
    fn nothing_is_lost_or_torn_between_threads() {
        let recorder = Recorder::default();
        let mut recording = recorder.begin(0).expect("nobody else");
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..5)
                .map(|thread| {
                    let recorder = &recorder;
                    scope.spawn(move || (0..20_000).for_each(|inode| recorder.record(recorder.start().expect("on"), record(thread, inode))))
                })
                .collect();
            while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                all.extend(drained(&mut recording));
            }
        });
        all.extend(drained(&mut recording));
        assert_eq!(all.len() as u64 + recording.dropped(), 80_000);
        for thread in 1..5 {
            let mut inodes: Vec<u64> = all.iter().filter(|record| record.thread == thread).map(|record| record.inode).collect();
            inodes.sort_unstable();
            inodes.dedup();
            assert_eq!(inodes.len(), all.iter().filter(|record| record.thread == thread).count(), "none twice");
        }
    }

    /// What recording costs: `cargo test --profile soak -p tandemfs-trace --lib recording_cost -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn recording_cost() {
        const TURNS: u32 = 1_000_000;
        let recorder = Recorder::default();
        for _ in 0..3 {
            let start = Instant::now();
            (0..TURNS).for_each(|_| assert!(std::hint::black_box(&recorder).start().is_none()));
            let off = start.elapsed() / TURNS;
            let mut recording = recorder.begin(0).expect("nobody else");
            let mut on = std::time::Duration::ZERO;
            for turn in 0..TURNS {
                let start = Instant::now();
                recorder.record(recorder.start().expect("on"), Record { name: b"some name".into(), ..record(1, turn.into()) });
                on += start.elapsed();
                if turn % 5000 == 0 {
                    drained(&mut recording);
                }
            }
            println!("off {off:?}, on {:?} (with two more clock readings), {} dropped", on / TURNS, recording.dropped());
        }
    }
}
