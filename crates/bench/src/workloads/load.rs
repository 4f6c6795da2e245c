//! Parameters of the loads: counts and sizes from ByteFS Table 5, sequences of operations from Filebench's personalities.

use clap::ValueEnum;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One call, after Filebench's *flowops*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Creates one of the worker's missing files, and keeps it open.
    Create,
    /// Opens one of the worker's existing files.
    Open,
    /// Writes the open file completely.
    WriteWhole,
    /// Appends up to [`Load::append_bytes_max`] to the open file.
    Append,
    /// fdatasync of the open file.
    Synchronize,
    /// Reads the open file completely.
    ReadWhole,
    /// Closes the open file.
    Close,
    /// Removes one of the worker's files.
    Delete,
    /// Reads the size of one of the worker's files.
    Stat,
    /// Makes one of the worker's directories.
    MakeDirectory,
    /// Removes one of the worker's directories.
    RemoveDirectory,
    /// Appends up to [`Load::append_bytes_max`] to the one log of all workers.
    AppendLog,
    /// Reads a record of any file.
    ReadRecord,
    /// Overwrites one of the worker's records in any file, and syncs it.
    WriteRecord,
    /// Overwrites [`Load::log_write_bytes`] of the log and syncs it; done by the first worker only, once in a number of its loops.
    WriteLog,
}

impl Step {
    /// Number of steps.
    pub const COUNT: usize = Self::WriteLog as usize + 1;
}

/// A load of Table 5. YCSB on RocksDB is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Workload {
    /// Files of 4 KiB are made.
    Create,
    /// They are removed.
    Delete,
    /// Directories are made.
    Mkdir,
    /// They are removed.
    Rmdir,
    /// Mails are removed, stored, read and added to, each durable at once.
    Varmail,
    /// Files of 128 KiB are stored, added to, read, removed and asked about.
    Fileserver,
    /// Files are replaced, and read five times as often.
    Webproxy,
    /// Files are read, and a log is written.
    Webserver,
    /// Records of 2 KiB are read and durably overwritten, and a log is written.
    Oltp,
}

impl Workload {
    /// All, in the order of the paper.
    pub const ALL: [Self; 9] = [
        Self::Create,
        Self::Delete,
        Self::Mkdir,
        Self::Rmdir,
        Self::Varmail,
        Self::Fileserver,
        Self::Webproxy,
        Self::Webserver,
        Self::Oltp,
    ];

    /// The application loads.
    pub const MACRO: [Self; 5] = [Self::Varmail, Self::Fileserver, Self::Webproxy, Self::Webserver, Self::Oltp];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Mkdir => "mkdir",
            Self::Rmdir => "rmdir",
            Self::Varmail => "varmail",
            Self::Fileserver => "fileserver",
            Self::Webproxy => "webproxy",
            Self::Webserver => "webserver",
            Self::Oltp => "oltp",
        }
    }

    /// The steps of one loop of a worker.
    pub fn steps(self) -> &'static [Step] {
        use Step::{
            Append, AppendLog, Close, Create, Delete, MakeDirectory, Open, ReadRecord, ReadWhole, RemoveDirectory, Stat, Synchronize,
            WriteLog, WriteRecord, WriteWhole,
        };
        match self {
            Self::Create => &[Create, WriteWhole, Close],
            Self::Delete => &[Delete],
            Self::Mkdir => &[MakeDirectory],
            Self::Rmdir => &[RemoveDirectory],
            Self::Varmail => {
                &[Delete, Create, Append, Synchronize, Close, Open, ReadWhole, Append, Synchronize, Close, Open, ReadWhole, Close]
            }
            Self::Fileserver => &[Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat],
            // Five reads of a whole file.
            Self::Webproxy => &[
                Delete, Create, Append, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole,
                Close, Open, ReadWhole, Close,
            ],
            // Ten reads of a whole file.
            Self::Webserver => &[
                Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
                Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
                AppendLog,
            ],
            Self::Oltp => &[ReadRecord, WriteRecord, WriteLog],
        }
    }
}

/// A load with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The kind of load.
    pub workload: Workload,
    /// Files (or directories) of the set.
    pub files: u64,
    /// Percentage of the set's files that exist before the load.
    pub laid_out_percent: u64,
    /// Mean size of a file.
    pub file_bytes: u64,
    /// File sizes are gamma distributed; otherwise all are equal.
    pub is_gamma: bool,
    /// Files per directory.
    pub width: u64,
    /// Number of workers.
    pub workers: u64,
    /// Loops of all workers together; `None`: until every file of the set was processed.
    pub loops: Option<u64>,
    /// Longest append; lengths are random up to this.
    pub append_bytes_max: u64,
    /// Longest request.
    pub request_bytes_max: u64,
    /// Bytes of a record (OLTP).
    pub record_bytes: u64,
    /// Bytes of a write to the log of records (OLTP).
    pub log_write_bytes: u64,
    /// Record reads per write of the log (OLTP).
    pub reads_a_log_write: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether reads are verified.
    pub verify: bool,
}

impl Load {
    /// The paper's load scaled by `scale` ([WO4]); 1 has its million files.
    ///
    /// Filebench's numbers: appends up to 16 KiB (`meanappendsize`), requests up to 1 MiB (`iosize`), 80 % of the files preallocated where
    /// files are made and removed. Directories hold 20 files (fileserver, webserver), 100 files (create, delete) or 100 directories; mails
    /// and the proxy have one directory each. There is one level of directories. OLTP: records of 2 KiB, and 256 KiB of log for every 3,200
    /// reads. In Filebench each read releases a tenth of a write for each of ten writers, so there are as many writes as reads; here each
    /// of 200 workers alternates both, and the first worker writes the log.
    ///
    /// [WO4]: super
    pub fn new(workload: Workload, scale: f64, seed: u64) -> Self {
        let share = |full: u64| (full as f64 * scale).ceil() as u64;
        let base = Self {
            workload,
            files: share(1_000_000).max(120),
            laid_out_percent: 80,
            file_bytes: 16 * KIB,
            is_gamma: true,
            width: u64::MAX,
            workers: 12,
            loops: Some(share(1_000_000).max(24)),
            append_bytes_max: 16 * KIB,
            request_bytes_max: MIB,
            record_bytes: 2 * KIB,
            log_write_bytes: 256 * KIB,
            reads_a_log_write: 3200,
            seed,
            verify: false,
        };
        match workload {
            Workload::Create => Self { laid_out_percent: 0, file_bytes: 4 * KIB, is_gamma: false, width: 100, loops: None, ..base },
            Workload::Delete => Self { laid_out_percent: 100, file_bytes: 4 * KIB, is_gamma: false, width: 100, loops: None, ..base },
            Workload::Mkdir => Self { laid_out_percent: 0, file_bytes: 0, width: 100, loops: None, ..base },
            Workload::Rmdir => Self { laid_out_percent: 100, file_bytes: 0, width: 100, loops: None, ..base },
            Workload::Varmail | Workload::Webproxy => base,
            Workload::Fileserver => {
                Self { files: share(100_000).max(120), loops: Some(share(100_000).max(24)), file_bytes: 128 * KIB, width: 20, ..base }
            }
            Workload::Webserver => Self { laid_out_percent: 100, width: 20, ..base },
            Workload::Oltp => Self {
                files: share(1600).max(2),
                laid_out_percent: 100,
                file_bytes: 10 * MIB,
                is_gamma: false,
                workers: 200,
                loops: Some(share(2_000_000).max(400)),
                ..base
            },
        }
    }

    /// Largest number of file bytes at any time: the initial files and those that the load adds.
    pub fn bytes_max(&self) -> u64 {
        let logs = match self.workload {
            Workload::Webserver => self.loops.unwrap_or_default() * (self.append_bytes_max / 2),
            Workload::Oltp => self.file_bytes,
            _ => 0,
        };
        // Sizes rounded up to blocks, a margin for varying sizes, and appends that precede removals.
        self.files * (self.file_bytes.next_multiple_of(4 * KIB) * 5 / 4 + self.append_bytes_max / 2) + logs
    }

    /// One loop of a worker.
    pub fn steps(&self) -> &'static [Step] {
        self.workload.steps()
    }

    /// Whether workers share the files and access records.
    pub fn is_of_records(&self) -> bool {
        self.workload == Workload::Oltp
    }

    /// Whether the set consists of directories.
    pub fn is_of_directories(&self) -> bool {
        matches!(self.workload, Workload::Mkdir | Workload::Rmdir)
    }

    /// The path of a file or directory of the set.
    pub fn path(&self, number: u64) -> String {
        format!("{}/f{number:07}", self.directory(number / self.width))
    }

    /// The path of a directory that holds files of the set.
    pub fn directory(&self, number: u64) -> String {
        format!("d{number:05}")
    }

    /// Number of directories that hold the set.
    pub fn directories(&self) -> u64 {
        self.files.div_ceil(self.width)
    }

    /// The log shared by all workers, if the load has one.
    pub fn log(&self) -> Option<&'static str> {
        matches!(self.workload, Workload::Webserver | Workload::Oltp).then_some("log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_full_scale_it_is_table_5() {
        for workload in Workload::ALL {
            let load = Load::new(workload, 1.0, 1);
            let (files, bytes, workers) = match workload {
                Workload::Create | Workload::Delete => (1_000_000, 4 * KIB, 12),
                Workload::Mkdir | Workload::Rmdir => (1_000_000, 0, 12),
                Workload::Fileserver => (100_000, 128 * KIB, 12),
                Workload::Oltp => (1600, 10 * MIB, 200),
                _ => (1_000_000, 16 * KIB, 12),
            };
            assert_eq!((load.files, load.file_bytes, load.workers), (files, bytes, workers), "{workload:?}");
            let small = Load::new(workload, 0.01, 1);
            assert_eq!((small.files, small.file_bytes, small.workers), (files / 100, bytes, workers), "{workload:?}");
        }
    }
}
