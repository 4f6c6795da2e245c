//! Verifies file data against its checksums: collected into batches, read with many requests in flight, verified by several threads.
//!
//! [VD1] What cannot be read costs itself: of a batch that fails the extents are read one by one, and of an extent that fails the sectors or
//!       pages, so that all others are verified. Logs are laid over pages after the last of these reads.

use tandemfs_device::{BlockRequest, Structure};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{DataAddress, LineAddress, PairSeed, SECTOR_BYTES};

use crate::checker::Checker;
use crate::finding::Finding;
use crate::image::Image;
use crate::mend::{Lost, Mend, Origin, Owner};
use crate::mutant::{Mutant, on};

/// Bytes of a batch. A job adds at most a block of 1 MiB.
const BATCH_BYTES: usize = 8 << 20;
/// Jobs of a batch.
const BATCH_JOBS: usize = 1024;

/// Place of data and its checksums.
pub(crate) enum Source {
    /// Sectors or pages in a row, a checksum each, of what they hold with some logs over it.
    Extent { first: DataAddress, checksums: Vec<u32>, over: Vec<LogEntry> },
    /// A data log.
    Log { address: LineAddress, length: u32, checksum: u32 },
}

/// Data to verify.
pub(crate) struct Job {
    pub(crate) owner: Owner,
    /// Where its checksums are; `None` if other damage decides what becomes of it.
    pub(crate) origin: Option<Origin>,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) source: Source,
}

impl Job {
    fn bytes(&self) -> usize {
        match &self.source {
            Source::Extent { checksums, .. } => checksums.len() * SECTOR_BYTES,
            Source::Log { length, .. } => *length as usize,
        }
    }
}

/// The queue of data to verify.
#[derive(Default)]
pub(crate) struct DataQueue {
    jobs: Vec<Job>,
    bytes: usize,
    /// Number of sectors of the block zone that matched their checksums; they prove that the block half belongs to the pair.
    pub(crate) sectors_good: u64,
}

/// A job with its bytes, once read.
struct Loaded<'b> {
    job: Job,
    bytes: &'b mut [u8],
    /// Its sectors or pages that cannot be read, in order; 0 for a log.
    unreadable: Vec<u64>,
}

impl Loaded<'_> {
    /// Reads the data of an extent, one by one if not all of it can be read ([VD1]).
    fn read_extent(&mut self, image: &Image<'_>, first: DataAddress) {
        if image.data(first, self.bytes).is_ok() {
            return;
        }
        if on(Mutant::ExtentsReadWhole) {
            self.unreadable = (0..self.bytes.len() as u64 / SECTOR_BYTES as u64).collect();
            return;
        }
        let each = self.bytes.chunks_mut(SECTOR_BYTES);
        self.unreadable =
            (0..).zip(each).filter_map(|(index, bytes)| image.data(first.nth(index), bytes).is_err().then_some(index)).collect();
    }
}

impl Checker<'_> {
    /// Queues data for verification; may verify the queue.
    pub(crate) fn queue_data(&mut self, job: Job) {
        if !self.options.data {
            return;
        }
        if on(Mutant::DataIgnored) {
            return;
        }
        self.data.bytes += job.bytes();
        self.data.jobs.push(job);
        if self.data.bytes >= BATCH_BYTES || self.data.jobs.len() >= BATCH_JOBS {
            self.verify_data();
        }
    }

    /// Verifies the queue.
    pub(crate) fn verify_data(&mut self) {
        let jobs = std::mem::take(&mut self.data.jobs);
        self.counts.data_bytes += self.data.bytes as u64;
        let mut buffer = vec![0; std::mem::take(&mut self.data.bytes)];
        let mut loaded = Vec::with_capacity(jobs.len());
        let mut rest = buffer.as_mut_slice();
        for job in jobs {
            let (bytes, after) = rest.split_at_mut(job.bytes());
            rest = after;
            loaded.push(Loaded { job, bytes, unreadable: Vec::new() });
        }
        self.load_all(&mut loaded);
        let pair = self.image.pair;
        let share = loaded.len().div_ceil(self.options.threads.max(1)).max(1);
        let verified: Vec<Verified> = std::thread::scope(|scope| {
            let threads: Vec<_> = loaded.chunks(share).map(|part| scope.spawn(move || verify_part(pair, part))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        for Verified { findings, mends, good } in verified {
            self.data.sectors_good += good;
            findings.into_iter().for_each(|finding| self.find(finding));
            mends.into_iter().for_each(|mend| self.mend(mend));
        }
    }

    fn load_all(&self, loaded: &mut [Loaded<'_>]) {
        let (drive, image) = (self.image.drive, self.image);
        let mut requests = Vec::new();
        for part in loaded.iter_mut() {
            match part.job.source {
                Source::Extent { first: DataAddress::Sector(sector), .. } => {
                    requests.push(BlockRequest::Read { sector, buffer: (&mut *part.bytes).into() });
                }
                Source::Extent { first: first @ DataAddress::Page(_), .. } => part.read_extent(image, first),
                Source::Log { address, .. } => {
                    let is_read = image.load_part(Structure::DataLog, address, part.bytes).is_ok();
                    part.unreadable.extend((!is_read).then_some(0));
                }
            }
        }
        let is_read = requests.is_empty() || drive.transfer(Structure::Data, &mut requests, &mut || {}).is_ok();
        drop(requests);
        for part in loaded.iter_mut() {
            match &part.job.source {
                Source::Extent { first: first @ DataAddress::Sector(_), .. } if !is_read => part.read_extent(image, *first),
                Source::Extent { first, .. } if !is_read && on(Mutant::LogsNotLaidAgain) => part.read_extent(image, *first),
                Source::Extent { over, .. } => over.iter().for_each(|log| image.lay_log(log, 0, part.bytes)),
                Source::Log { .. } => {}
            }
        }
    }
}

/// The result of some jobs.
#[derive(Default)]
struct Verified {
    findings: Vec<Finding>,
    mends: Vec<Mend>,
    /// Correct sectors of the block zone.
    good: u64,
}

impl Verified {
    /// Sectors or pages in a row with which something is wrong.
    fn sectors_are(&mut self, fault: SectorFault, job: &Job, first: DataAddress, (index, count): (u64, u64)) {
        let (inode, offset) = (job.owner.inode, job.offset.saturating_add(index * SECTOR_BYTES as u64));
        if fault == SectorFault::Unreadable {
            self.findings.push(Finding::DataUnreadable { inode, offset, bytes: count * SECTOR_BYTES as u64 });
            return;
        }
        self.findings.push(Finding::DataDamaged { inode, offset, sectors: count });
        if let Some(origin) = job.origin {
            let lost = Lost { inode, offset, bytes: count * SECTOR_BYTES as u64 };
            self.mends.push(Mend::ZeroSectors { owner: job.owner, origin, first: first.nth(index), index, count, lost });
        }
    }

    fn log_damaged(&mut self, job: &Job, length: u32) {
        let (inode, offset) = (job.owner.inode, job.offset);
        self.findings.push(Finding::LogDamaged { inode, offset, length });
        if let Some(origin) = job.origin {
            self.mends.push(Mend::ZeroLog { owner: job.owner, origin, lost: Lost { inode, offset, bytes: length.into() } });
        }
    }
}

/// What is wrong with a sector or page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SectorFault {
    Unreadable,
    /// It does not fit its checksum.
    Damaged,
}

fn verify_part(pair: PairSeed, part: &[Loaded<'_>]) -> Verified {
    let mut verified = Verified::default();
    for Loaded { job, bytes, unreadable } in part {
        match &job.source {
            Source::Log { length, .. } if !unreadable.is_empty() => {
                let (inode, offset) = (job.owner.inode, job.offset);
                verified.findings.push(Finding::DataUnreadable { inode, offset, bytes: (*length).into() });
            }
            Source::Log { length, checksum, .. } => {
                if pair.data(bytes) != *checksum {
                    verified.log_damaged(job, *length);
                }
            }
            Source::Extent { first, checksums, .. } => {
                let mut faults = Vec::new();
                for (index, (sector, checksum)) in (0..).zip(bytes.chunks_exact(SECTOR_BYTES).zip(checksums)) {
                    if unreadable.binary_search(&index).is_ok() {
                        faults.push((index, SectorFault::Unreadable));
                    } else if pair.data(sector) != *checksum {
                        faults.push((index, SectorFault::Damaged));
                    } else {
                        verified.good += u64::from(first.sector().is_some());
                    }
                }
                for run in faults.chunk_by(|(index, fault), (next, other)| index + 1 == *next && fault == other) {
                    if let [(start, fault), ..] = run {
                        verified.sectors_are(*fault, job, *first, (*start, run.len() as u64));
                    }
                }
            }
        }
    }
    verified
}
