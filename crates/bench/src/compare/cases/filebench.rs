//! Filebench's personalities ([`crate::workloads`]) through system calls.
//!
//! [FB1] Parameters are those of ByteFS Table 5, operations those of Filebench's own files: varmail, fileserver, webserver and webproxy
//!       with 12 threads, oltp with 200. Filebench's files have 16, 50, 100 and 100 threads and fewer files; the paper's parameters are
//!       used because its results are compared with ours.
//! [FB2] One option scales the number of files and of loops only. At scale 1 a comparison has [`FULL`] of the paper's files.
//! [FB3] Durable writes are those of Filebench: mails of varmail by fsync; records and log of oltp, which Filebench opens with O_DSYNC, by
//!       fdatasync after each write. The others do no durable writes.
//! [FB4] At small scales (a tenth and less) reads are compared with what was written; at larger scales reads are only load.
//! [FB5] The outcome counts flow operations without closes, which ask nothing of a file system; Filebench counts closes too.
//!
//! Differences from Filebench: directories have one level. In oltp readers also write: Filebench's ten writers write a tenth of a record
//! for each read, so reads and writes are as many. There is no computation between reads (`hog`).

use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::workloads::{DirectoryTarget, Load, Worker, Workload, lay_out, run_on_threads};

/// Share of Table 5's files at scale 1 ([FB2]): 20,000 mails.
const FULL: f64 = 0.02;
/// Divisor of its loops, so that a run takes a few seconds; not for fileserver, which has a tenth of the others' files.
const LOOPS_SHARE: u64 = 4;
/// Largest scale at which reads are verified ([FB4]).
const VERIFIED_MAX: f64 = 0.1;

/// The cases of this file.
pub fn cases() -> Cases {
    Workload::MACRO.into_iter().map(|workload| Box::new(Personality(workload)) as Box<dyn Case>).collect()
}

struct Personality(Workload);

impl Personality {
    fn load(&self, scale: f64, seed: u64) -> Load {
        let load = Load { verify: scale <= VERIFIED_MAX, ..Load::new(self.0, FULL * scale, seed) };
        let share = if self.0 == Workload::Fileserver { 1 } else { LOOPS_SHARE };
        Load { loops: load.loops.map(|loops| (loops / share).max(load.workers * 2)), ..load }
    }
}

impl Case for Personality {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn group(&self) -> Group {
        Group::Filebench
    }

    fn description(&self) -> String {
        let Load { files, file_bytes, workers, loops, .. } = self.load(1.0, 0);
        let what = match self.0 {
            Workload::Varmail => "mails are removed, stored, read and added to, an fsync after each write",
            Workload::Fileserver => "files are stored, added to, read, removed and asked about",
            Workload::Webserver => "files are read, ten for each append of up to 16 KiB to one log",
            Workload::Webproxy => "files are replaced, and read five times as often",
            _ => "records of 2 KiB are read and overwritten with fdatasync, and a log of 256 KiB writes",
        };
        format!(
            "Filebench's {}: {what}; {files} files of {} KiB{}, {workers} threads, {} loops in all; ByteFS Table 5 has {} times as many files",
            self.0.name(),
            file_bytes >> 10,
            if self.0 == Workload::Oltp { "" } else { " on average (gamma 1.5)" },
            loops.unwrap_or_default(),
            (1.0 / FULL).round(),
        )
    }

    fn clients(&self) -> u32 {
        self.load(1.0, 0).workers as u32
    }

    fn share_least(&self) -> f64 {
        1.0
    }

    fn is_quick(&self) -> bool {
        self.0 == Workload::Varmail
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        self.load(1.0, 0).bytes_max() * 3 / 2
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let load = self.load(stage.scale, stage.seed);
        // [FB3].
        let target = match self.0 {
            Workload::Oltp => DirectoryTarget::new(stage.directory),
            _ => DirectoryTarget::new(stage.directory).with_attributes_synchronized(),
        };
        lay_out(&load, &target)?;
        let mut workers = Worker::all(&load);
        workers.iter_mut().try_for_each(|worker| worker.begin(&target))?;
        let (done, elapsed) = stage.time(|| run_on_threads(&mut workers, &target))?;
        if load.loops.is_some_and(|loops| loops != done.loops) {
            return Err(Failure::new(format!("{} loops were done instead of {:?}", done.loops, load.loops)));
        }
        Ok(Outcome { units: done.operations() as f64, unit: "operations", latencies: None, own_time: Some(elapsed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_once;
    use crate::workloads::Step;

    #[test]
    fn every_personality_runs_and_checks_what_it_reads() {
        for case in cases() {
            let (outcome, clock) = run_once(&*case, 1e-4).unwrap_or_else(|failure| panic!("{}: {failure}", case.name()));
            assert!(outcome.units > 100.0 && outcome.own_time.is_some(), "{}: {}", case.name(), outcome.units);
            assert_eq!(clock.ended, 1, "{}", case.name());
        }
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

    #[test]
    fn scale_changes_numbers_alone() {
        for workload in Workload::MACRO {
            let [full, small] = [1.0, 0.1].map(|scale| Personality(workload).load(scale, 1));
            assert_eq!((full.file_bytes, full.workers, full.width), (small.file_bytes, small.workers, small.width), "{workload:?}");
            assert!(full.files > small.files && full.loops > small.loops, "{workload:?}");
            assert!(small.verify && !full.verify);
        }
    }
}
