//! A device that ends everything at one exact step of a commit.
//!
//! It wraps the drive's device and counts the steps of one kind. At the chosen step it writes a note and cuts the machine's power, or kills
//! its own process, and the step's thread does nothing more. It is not part of the product: the program `mount-until-cut` mounts a file
//! system on it.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tandemfs_device::{BlockRequest, Device, DeviceError, Layer};
use tandemfs_format::LINE_BYTES;
use tandemfs_format::geometry::{Geometry, SUPERBLOCK_OFFSETS};

use crate::power;

/// Steps at which everything can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Step {
    /// Half of a journal record's bytes are stored.
    RecordTorn,
    /// A journal record is stored, not flushed.
    RecordStored,
    /// A journal record's lines are flushed, not fenced. Only where the domain needs flushes.
    RecordFlushed,
    /// A journal record is fenced, the call has not returned.
    RecordFenced,
    /// Half of the first copy of the superblock is stored.
    FirstSuperblockTorn,
    /// The first copy of the superblock is stored.
    FirstSuperblockStored,
    /// Half of the second copy of the superblock is stored.
    SecondSuperblockTorn,
    /// One line is stored outside of journal and superblock: mostly metadata going home.
    LineStored,
    /// Half of something longer is stored outside of journal and superblock: a data log.
    DataTorn,
    /// Block writes are submitted, and may have completed or not.
    BlocksInFlight,
    /// Block writes have completed, no FLUSH has begun.
    BlocksWritten,
    /// A FLUSH has completed, the record is not yet stored.
    BlocksFlushed,
}

/// What ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum End {
    /// The virtual machine's power.
    Power,
    /// This process.
    Kill,
}

/// Where the end is.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The step; none for a device that never ends.
    pub step: Option<Step>,
    /// Number of such steps that complete before it.
    pub after: u64,
    /// What ends.
    pub end: End,
    /// Gets a line right before the end.
    pub note: Option<PathBuf>,
}

/// Parts of the memory zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Superblock(usize),
    Journal,
    Other,
}

thread_local! {
    /// What this thread flushed last: a fence does not say what it is for.
    static FLUSHED: Cell<Option<Part>> = const { Cell::new(None) };
}

/// A device that ends at a planned step.
pub struct PowerCutDevice {
    inner: Arc<dyn Device>,
    /// First and last byte of the journal's rings.
    journal: (u64, u64),
    plan: Plan,
    armed: AtomicBool,
    passed: AtomicU64,
    skips_flushes: AtomicBool,
}

impl PowerCutDevice {
    /// Puts the plan before a formatted device.
    pub fn new(inner: Arc<dyn Device>, geometry: &Geometry, plan: Plan) -> Self {
        let start = geometry.ring(0).offset_bytes();
        let journal = (start, start + u64::from(geometry.ring_count()) * geometry.ring_bytes());
        Self { inner, journal, plan, armed: AtomicBool::new(false), passed: AtomicU64::new(0), skips_flushes: AtomicBool::new(false) }
    }

    /// Starts counting steps.
    pub fn arm(&self) {
        self.armed.store(true, SeqCst);
    }

    /// A deliberate bug from now on: FLUSH of the drive is not passed on.
    pub fn skip_flushes(&self) {
        self.skips_flushes.store(true, SeqCst);
    }

    fn part(&self, offset: u64) -> Part {
        let page = LINE_BYTES as u64 * 16; // a superblock has 1 KiB
        match SUPERBLOCK_OFFSETS.iter().position(|start| (*start..*start + page).contains(&offset)) {
            Some(copy) => Part::Superblock(copy),
            None if (self.journal.0..self.journal.1).contains(&offset) => Part::Journal,
            None => Part::Other,
        }
    }

    /// Whether this is the step.
    fn is_due(&self, step: Step) -> bool {
        self.plan.step == Some(step) && self.armed.load(SeqCst) && self.passed.fetch_add(1, SeqCst) == self.plan.after
    }

    /// Ends everything here if this is the step.
    fn reached(&self, step: Step) {
        if self.is_due(step) {
            self.end(step);
        }
    }

    fn end(&self, step: Step) -> ! {
        let line = format!("cut at {step:?} {}\n", self.plan.after);
        if let Some(note) = &self.plan.note
            && let Err(error) = File::options().append(true).create(true).open(note).and_then(|mut file| file.write_all(line.as_bytes()))
        {
            eprintln!("{}: {error}", note.display());
        }
        match self.plan.end {
            End::Power => eprintln!("{}", power::cut()),
            End::Kill => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
        }
        // Whatever happens, this thread does nothing more.
        loop {
            std::thread::park();
        }
    }
}

impl Layer for PowerCutDevice {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let bytes = self.inner.byte_path();
        let (torn, stored) = match self.part(offset) {
            Part::Journal => (Some(Step::RecordTorn), Some(Step::RecordStored)),
            Part::Superblock(0) => (Some(Step::FirstSuperblockTorn), Some(Step::FirstSuperblockStored)),
            Part::Superblock(_) => (Some(Step::SecondSuperblockTorn), None),
            Part::Other if from.len() == LINE_BYTES => (None, Some(Step::LineStored)),
            Part::Other => (Some(Step::DataTorn), None),
        };
        if let Some(step) = torn
            && self.is_due(step)
        {
            // Whole words, of which the device keeps each or loses it.
            bytes.store(offset, &from[..from.len() / 2 / 8 * 8])?;
            self.end(step);
        }
        bytes.store(offset, from)?;
        if let Some(step) = stored {
            self.reached(step);
        }
        // Where lines need no flush a fence follows the store.
        FLUSHED.set(Some(self.part(offset)));
        Ok(())
    }

    fn flush_lines(&self, offset: u64, length: u64) {
        self.inner.byte_path().flush(offset, length);
        if self.part(offset) == Part::Journal {
            self.reached(Step::RecordFlushed);
        }
        FLUSHED.set(Some(self.part(offset)));
    }

    fn fence(&self) {
        self.inner.byte_path().fence();
        if FLUSHED.take() == Some(Part::Journal) {
            self.reached(Step::RecordFenced);
        }
    }

    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let writes = requests.iter().any(|request| matches!(request, BlockRequest::Write { .. }));
        let mut meanwhile = || {
            if writes {
                self.reached(Step::BlocksInFlight);
            }
            meanwhile();
        };
        self.inner.block_path().transfer_each(requests, &mut meanwhile, completed)?;
        if writes {
            self.reached(Step::BlocksWritten);
        }
        Ok(())
    }

    fn flush_blocks(&self) -> Result<(), DeviceError> {
        if !self.skips_flushes.load(SeqCst) {
            self.inner.block_path().flush()?;
        }
        self.reached(Step::BlocksFlushed);
        Ok(())
    }
}
