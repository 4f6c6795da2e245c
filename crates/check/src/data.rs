//! Verifies file data against its checksums: collected into batches, read with many requests in flight, verified by several threads.

use tandemfs_device::{BlockRequest, Structure};
use tandemfs_format::{LineAddress, PairSeed, SECTOR_BYTES, Sector};

use crate::checker::Checker;
use crate::finding::Finding;
use crate::mutant::{Mutant, on};

/// Bytes of a batch. A job adds at most a block of 1 MiB.
const BATCH_BYTES: usize = 8 << 20;
/// Jobs of a batch.
const BATCH_JOBS: usize = 1024;

/// Place of data and its checksums.
pub(crate) enum Source {
    /// Sectors in a row, a checksum each.
    Sectors { first: Sector, checksums: Vec<u32> },
    /// A data log.
    Log { address: LineAddress, length: u32, checksum: u32 },
}

/// Data to verify.
pub(crate) struct Job {
    pub(crate) inode: u64,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) source: Source,
}

impl Job {
    fn bytes(&self) -> usize {
        match &self.source {
            Source::Sectors { checksums, .. } => checksums.len() * SECTOR_BYTES,
            Source::Log { length, .. } => *length as usize,
        }
    }
}

/// The queue of data to verify.
#[derive(Default)]
pub(crate) struct DataQueue {
    jobs: Vec<Job>,
    bytes: usize,
    /// Number of sectors that matched their checksums; they prove that the block half belongs to the pair.
    pub(crate) sectors_good: u64,
}

/// A job with its bytes, once read.
struct Loaded<'b> {
    job: Job,
    bytes: &'b mut [u8],
    readable: bool,
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
            loaded.push(Loaded { job, bytes, readable: true });
        }
        self.load_all(&mut loaded);
        let pair = self.image.pair;
        let share = loaded.len().div_ceil(self.options.threads.max(1)).max(1);
        let verified: Vec<(Vec<Finding>, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = loaded.chunks(share).map(|part| scope.spawn(move || verify_part(pair, part))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        for (findings, good) in verified {
            self.data.sectors_good += good;
            for finding in findings {
                self.find(finding);
            }
        }
    }

    fn load_all(&self, loaded: &mut [Loaded<'_>]) {
        let drive = self.image.drive;
        let mut requests = Vec::new();
        for part in loaded.iter_mut() {
            match &part.job.source {
                Source::Sectors { first, .. } => requests.push(BlockRequest::Read { sector: *first, buffer: &mut *part.bytes }),
                Source::Log { address, .. } => part.readable = self.image.load_part(Structure::DataLog, *address, part.bytes).is_ok(),
            }
        }
        if requests.is_empty() || drive.transfer(Structure::Data, &mut requests, &mut || {}).is_ok() {
            return;
        }
        drop(requests);
        // Part of the batch cannot be read: read one by one to find out which.
        for part in loaded.iter_mut() {
            if let Source::Sectors { first, .. } = &part.job.source {
                let mut request = [BlockRequest::Read { sector: *first, buffer: &mut *part.bytes }];
                let read = drive.transfer(Structure::Data, &mut request, &mut || {});
                part.readable = read.is_ok();
            }
        }
    }
}

/// Findings of some jobs, and the number of correct sectors.
fn verify_part(pair: PairSeed, part: &[Loaded<'_>]) -> (Vec<Finding>, u64) {
    let (mut findings, mut good) = (Vec::new(), 0);
    for Loaded { job, bytes, readable } in part {
        let (inode, offset) = (job.inode, job.offset);
        if !readable {
            findings.push(Finding::DataUnreadable { inode, offset, bytes: bytes.len() as u64 });
            continue;
        }
        match &job.source {
            Source::Log { length, checksum, .. } => {
                if pair.data(bytes) != *checksum {
                    findings.push(Finding::LogDamaged { inode, offset, length: *length });
                }
            }
            Source::Sectors { checksums, .. } => {
                let mut run: Option<(u64, u64)> = None;
                for (index, (sector, checksum)) in (0..).zip(bytes.chunks_exact(SECTOR_BYTES).zip(checksums)) {
                    if pair.data(sector) == *checksum {
                        good += 1;
                        continue;
                    }
                    let at = offset.saturating_add(index * SECTOR_BYTES as u64);
                    run = match run {
                        Some((start, sectors)) if start + sectors * SECTOR_BYTES as u64 == at => Some((start, sectors + 1)),
                        Some((offset, sectors)) => {
                            findings.push(Finding::DataDamaged { inode, offset, sectors });
                            Some((at, 1))
                        }
                        None => Some((at, 1)),
                    };
                }
                if let Some((offset, sectors)) = run {
                    findings.push(Finding::DataDamaged { inode, offset, sectors });
                }
            }
        }
    }
    (findings, good)
}
