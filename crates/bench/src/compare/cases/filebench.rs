//! Filebench's personalities ([`crate::workloads`]) through system calls, in the two kinds of the papers.
//!
//! [FB1] `varmail`, `fileserver`, `webserver`, `webproxy`, `oltp`: parameters of ByteFS Table 5, operations of Filebench's own files, with 12
//!       threads (oltp 200). Filebench's files have 16, 50, 100 and 100 threads and fewer files; the paper's parameters are used because its
//!       results are compared with ours.
//! [FB2] `fileserver-fsync`, `webproxy-fsync`: RomeFS §4.3 calls fsync after each write of a file, on drives with 512 MB of memory for
//!       2.44 GB and 19.53 GB of files. With Filebench's sizes of files (128 KiB, 16 KiB) these are 20,000 and 1,280,000 files. A comparison
//!       has a share of the files, and drives whose memory zone is the same share of 512 MB: so as much of the data fits in it as in the
//!       paper. webproxy has four times that: 512 MB for 1,280,000 files are 400 B a file, and TandemFS, which keeps all metadata in the
//!       memory zone, runs out of space there. RomeFS's varmail has fsyncs by itself.
//! [FB3] One option scales the number of files and of loops only. At scale 1 a comparison has [`Personality::share`] of the paper's files.
//! [FB4] Durable writes are those of Filebench: mails of varmail by fsync; records and log of oltp, which Filebench opens with O_DSYNC, by
//!       fdatasync after each write. Without `-fsync` the others do no durable writes.
//! [FB5] At small scales (a tenth and less) reads are compared with what was written; at larger scales reads are only load.
//! [FB6] The outcome counts flow operations without closes, which ask nothing of a file system; Filebench counts closes too. The fsyncs of
//!       [FB2] are not counted: they belong to their writes.
//!
//! Differences from Filebench: directories have one level. In oltp readers also write: Filebench's ten writers write a tenth of a record
//! for each read, so reads and writes are as many. There is no computation between reads (`hog`).

use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::workloads::{DirectoryTarget, Durability, Load, Worker, Workload, lay_out, run_on_threads};

/// Divisor of its loops, so that a run takes a few seconds; not for fileserver, which has a tenth of the others' files.
const LOOPS_SHARE: u64 = 4;
/// Largest scale at which reads are verified ([FB5]).
const VERIFIED_MAX: f64 = 0.1;
/// Memory of RomeFS's drives for these loads ([FB2]).
const ROMEFS_MEMORY_BYTES: u64 = 512 << 20;
/// How many times that share webproxy has, so that its metadata fits ([FB2]).
const WEBPROXY_MEMORY_TIMES: f64 = 4.0;

/// The cases of this file.
pub fn cases() -> Cases {
    let plain = Workload::MACRO.map(|workload| Personality { workload, synchronizes: false });
    let synchronized = [Workload::Fileserver, Workload::Webproxy].map(|workload| Personality { workload, synchronizes: true });
    plain.into_iter().chain(synchronized).map(Personality::case).collect()
}

#[derive(Clone, Copy)]
struct Personality {
    workload: Workload,
    /// Whether each write of a file is followed by an fsync ([FB2]).
    synchronizes: bool,
}

impl Personality {
    /// Share of the paper's files at scale 1: 20,000 mails; 5,000 and 80,000 files with fsyncs.
    fn share(self) -> f64 {
        match (self.synchronizes, self.workload) {
            (false, _) => 0.02,
            (true, Workload::Fileserver) => 1.0 / 4.0,
            (true, _) => 1.0 / 16.0,
        }
    }

    /// Files of the paper, in millions as [`Load::new`] scales them.
    fn files_share(self) -> f64 {
        match (self.synchronizes, self.workload) {
            (false, _) => 1.0,
            (true, Workload::Fileserver) => 0.2,
            (true, _) => 1.28,
        }
    }

    fn load(self, scale: f64, seed: u64) -> Load {
        let load = Load { verify: scale <= VERIFIED_MAX, ..Load::new(self.workload, self.files_share() * self.share() * scale, seed) };
        let divisor = if self.workload == Workload::Fileserver { 1 } else { LOOPS_SHARE };
        Load { loops: load.loops.map(|loops| (loops / divisor).max(load.workers * 2)), ..load }
    }

    fn case(self) -> Case {
        let load = self.load(1.0, 0);
        Case {
            clients: load.workers as u32,
            share_least: 1.0,
            is_quick: self.workload == Workload::Varmail,
            is_durable: self.synchronizes || matches!(self.workload, Workload::Varmail | Workload::Oltp),
            bytes_needed: load.bytes_max() * 3 / 2,
            memory_bytes: self.memory_bytes(),
            ..Case::new(Group::Filebench, self.name(), self.description(), move |stage| self.run(stage))
        }
    }

    fn name(self) -> String {
        format!("{}{}", self.workload.name(), if self.synchronizes { "-fsync" } else { "" })
    }

    fn description(self) -> String {
        let Load { files, file_bytes, workers, loops, .. } = self.load(1.0, 0);
        let what = match self.workload {
            Workload::Varmail => "mails are removed, stored, read and added to, an fsync after each write",
            Workload::Fileserver => "files are stored, added to, read, removed and asked about",
            Workload::Webserver => "files are read, ten for each append of up to 16 KiB to one log",
            Workload::Webproxy => "files are replaced, and read five times as often",
            _ => "records of 2 KiB are read and overwritten with fdatasync, and a log of 256 KiB writes",
        };
        let (paper, after) = match self.synchronizes {
            false => ("ByteFS Table 5", ""),
            true => ("RomeFS §4.3", ", an fsync after each write of a file"),
        };
        format!(
            "Filebench's {}: {what}{after}; {files} files of {} KiB{}, {workers} threads, {} loops in all; {paper} has {} times as many files",
            self.workload.name(),
            file_bytes >> 10,
            if self.workload == Workload::Oltp { "" } else { " on average (gamma 1.5)" },
            loops.unwrap_or_default(),
            (1.0 / self.share()).round(),
        )
    }

    fn memory_bytes(self) -> Option<u64> {
        let times = if self.workload == Workload::Webproxy { WEBPROXY_MEMORY_TIMES } else { 1.0 };
        self.synchronizes.then(|| (ROMEFS_MEMORY_BYTES as f64 * self.share() * times) as u64)
    }

    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let load = self.load(stage.scale, stage.seed);
        // [FB2], [FB4].
        let durability = match (self.synchronizes, self.workload) {
            _ if !stage.is_durable => Durability::None,
            (true, _) => Durability::EachWrite,
            (false, Workload::Oltp) => Durability::Data,
            (false, _) => Durability::Attributes,
        };
        let target = DirectoryTarget::new(stage.directory, durability);
        lay_out(&load, &DirectoryTarget::new(stage.directory, Durability::Data))?;
        let mut workers = Worker::all(&load);
        workers.iter_mut().try_for_each(|worker| worker.begin(&target))?;
        let (done, elapsed) = stage.time(|| run_on_threads(&mut workers, &target))?;
        if load.loops.is_some_and(|loops| loops != done.loops) {
            return Err(Failure::new(format!("{} loops were done instead of {:?}", done.loops, load.loops)));
        }
        Ok(Outcome::of_own_time(done.operations() as f64, "operations", elapsed.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;
    use crate::workloads::Step;

    #[test]
    fn every_personality_runs_and_checks_what_it_reads() {
        run_all(&cases(), 1e-4, |case, outcome, _| assert!(outcome.units > 100.0 && outcome.own_time.is_some(), "{}", case.name));
    }

    /// filebench/workloads/*.f, version 1.5: the steps of a loop, in order.
    #[test]
    fn loops_are_those_of_filebench() {
        use Step::{Append, Close, Create, Delete, Open, ReadWhole, Stat, Synchronize, WriteWhole};
        let varmail =
            [Delete, Create, Append, Synchronize, Close, Open, ReadWhole, Append, Synchronize, Close, Open, ReadWhole, Close].as_slice();
        let fileserver = [Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat].as_slice();
        assert_eq!((Workload::Varmail.steps(), Workload::Fileserver.steps()), (varmail, fileserver));
        let proxy = Workload::Webproxy.steps();
        assert_eq!((&proxy[..4], proxy.len()), ([Delete, Create, Append, Close].as_slice(), 4 + 5 * 3));
        let server = Workload::Webserver.steps();
        assert_eq!((server.len(), server[30]), (10 * 3 + 1, Step::AppendLog));
    }

    /// ByteFS Table 5; RomeFS §4.3: 2.44 GiB and 19.53 GiB of files beside 512 MiB.
    #[test]
    fn shares_are_those_of_the_papers() {
        for workload in Workload::MACRO {
            let case = Personality { workload, synchronizes: false };
            let [full, small] = [1.0, 0.1].map(|scale| case.load(scale, 1));
            assert_eq!((full.file_bytes, full.workers, full.width), (small.file_bytes, small.workers, small.width), "{workload:?}");
            assert!(full.files > small.files && full.loops > small.loops && case.memory_bytes().is_none(), "{workload:?}");
            assert!(small.verify && !full.verify);
        }
        for (workload, gibibytes, times) in [(Workload::Fileserver, 2.44, 1.0), (Workload::Webproxy, 19.53, WEBPROXY_MEMORY_TIMES)] {
            let case = Personality { workload, synchronizes: true };
            let load = case.load(1.0, 1);
            let ratio = (load.files * load.file_bytes) as f64 / case.memory_bytes().expect("its own") as f64;
            assert!((ratio * times / (gibibytes * 2.0) - 1.0).abs() < 0.01, "{workload:?}: {ratio}");
        }
    }
}
