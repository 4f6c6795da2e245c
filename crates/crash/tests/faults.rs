//! Every access of a workload fails in its own run, once or permanently (RULES R15): during mount, recovery, work, reading back, writeback,
//! unmount and the next mount.

mod support;

use std::sync::Arc;

use support::{Start, almost_full, small, small_in_memory, small_on_firmware, split};
use tandemfs_crash::{
    Access, FaultDevice, Harness, MemoryDevice, Operation, Tree, check_device, chosen, content, mount, mount_device, stay_on_one_cpu,
};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, FileSystem};

use Operation::*;

/// What one fault did, first of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The fault was not reached, or had no visible effect.
    Unnoticed,
    MountFailed,
    CallFailed,
    ReadFailed,
    Stopped,
    UnmountFailed,
}

fn content_of(fs: &FileSystem, path: &str) -> Result<Vec<u8>, Error> {
    let mut at = InodeNumber::ROOT;
    for part in path.split('/') {
        at = fs.lookup(at, part.as_bytes())?.inode;
    }
    content(fs, at)
}

/// Only the fault may be the reason.
fn is_device_error(error: &Error) -> bool {
    matches!(error, Error::Device(_) | Error::Stopped { .. })
}

struct Run<'s> {
    start: &'s Start,
    faulty: Arc<FaultDevice>,
    device: MemoryDevice,
    lasting: bool,
    what: String,
    first: Outcome,
    /// Trees that may be found at the end.
    allowed: Vec<Tree>,
}

impl Run<'_> {
    fn note(&mut self, outcome: Outcome) {
        assert!(self.faulty.hit(), "{}: {outcome:?} without a fault", self.what);
        if self.first == Outcome::Unnoticed {
            self.first = outcome;
        }
    }

    fn mount(&mut self) -> Option<FileSystem> {
        for attempt in 0..2 {
            match mount_device(self.faulty.clone(), &self.start.setting.mount) {
                Ok(fs) => return Some(fs),
                Err(error) => {
                    assert!(is_device_error(&error), "{}: mount: {error}", self.what);
                    self.note(Outcome::MountFailed);
                    assert!(self.lasting || attempt == 0, "{}: mount again: {error}", self.what);
                }
            }
        }
        None
    }

    /// Reads back what an operation touched. A fault that lasts may fail it for ever, one that does not only once.
    fn read_back(&mut self, harness: &Harness, operation: &Operation) {
        let (Write(path, ..) | Append(path, ..) | Truncate(path, ..)) = *operation else { return };
        for attempt in 0..2 {
            match content_of(&harness.fs, path) {
                Ok(found) => {
                    let tree = harness.model.tree();
                    let tandemfs_crash::Kind::File(expected) = &tree.0[path.as_bytes()].kind else { panic!("{path} is a file") };
                    assert!(found == **expected, "{}: {operation:?}: other bytes", self.what);
                    return;
                }
                Err(error) => {
                    assert!(matches!(error, Error::Device(_)), "{}: {operation:?}: reading: {error}", self.what);
                    self.note(Outcome::ReadFailed);
                    assert!(self.lasting || attempt == 0, "{}: {operation:?}: reading again: {error}", self.what);
                }
            }
        }
    }

    /// Everything that is visible is as the model has it. False where a lasting fault forbids to look.
    fn compare(&mut self, fs: &FileSystem) -> bool {
        for attempt in 0..2 {
            match Tree::read(fs) {
                Ok(found) => {
                    let differences: Vec<_> = self.allowed.iter().filter_map(|tree| found.difference(tree)).collect();
                    assert!(self.allowed.contains(&found), "{}: {differences:?}", self.what);
                    return true;
                }
                // What a transaction that failed had stored in place reads as damaged until the drive recovers.
                Err(error) if fs.stopped().is_some() && fs.drive().has_transactions() && error.contains("checksum mismatch") => {
                    return false;
                }
                Err(error) => {
                    assert!(error.contains("fault device"), "{}: {error}", self.what);
                    self.note(Outcome::ReadFailed);
                    assert!(self.lasting || attempt == 0, "{}: reading again: {error}", self.what);
                }
            }
        }
        false
    }

    fn work(&mut self, harness: &mut Harness) {
        for operation in &self.start.workload {
            let before = harness.model.clone();
            for attempt in 0..2 {
                match harness.perform(operation) {
                    Ok(done) => {
                        if harness.model.apply_piece(operation, done).is_err() {
                            assert!(self.lasting, "{}: {operation:?} should fail", self.what);
                        }
                        self.allowed = vec![harness.model.tree()];
                        self.read_back(harness, operation);
                        break;
                    }
                    Err(error) if harness.fs.stopped().is_some() => {
                        assert!(matches!(error, Error::Stopped { .. }), "{}: {operation:?}: {error}", self.what);
                        self.note(Outcome::Stopped);
                        self.allowed.extend(before.allowed(operation));
                        self.stay_stopped(harness);
                        return;
                    }
                    Err(Error::Device(error)) => {
                        // Nothing has changed, and where the fault was for a moment the next attempt succeeds.
                        self.note(Outcome::CallFailed);
                        assert!(self.lasting || attempt == 0, "{}: {operation:?} again: {error}", self.what);
                        if !self.compare(&harness.fs) || self.lasting {
                            break;
                        }
                    }
                    // What an earlier operation that failed did not make is not there.
                    Err(error) if self.lasting && self.first != Outcome::Unnoticed => {
                        let expected = harness.model.clone().apply(operation).err();
                        assert_eq!(tandemfs_crash::Refusal::of(&error), expected, "{}: {operation:?}: {error}", self.what);
                        break;
                    }
                    Err(error) => panic!("{}: {operation:?}: {error}", self.what),
                }
            }
        }
        self.compare(&harness.fs);
    }

    /// After a stop nothing is written any more, the first cause is kept, and reads go on.
    fn stay_stopped(&mut self, harness: &mut Harness) {
        let cause = harness.fs.stopped();
        for operation in [Create("late"), MakeDirectory("late"), Write("a", 0, 10, 9), Unlink("a"), Checkpoint, Sync] {
            match harness.perform(&operation) {
                Err(Error::Stopped { .. } | Error::NotFound) => {}
                Err(Error::Device(_)) if self.lasting => {}
                other => panic!("{}: {operation:?} after the stop: {other:?}", self.what),
            }
        }
        assert_eq!(harness.fs.stopped(), cause, "the first cause is kept");
        self.compare(&harness.fs);
    }

    fn unmount(&mut self, fs: &FileSystem) -> bool {
        match fs.unmount() {
            Ok(()) => true,
            Err(error) => {
                assert!(is_device_error(&error), "{}: unmount: {error}", self.what);
                self.note(Outcome::UnmountFailed);
                false
            }
        }
    }

    fn all(&mut self) -> Outcome {
        let options = &self.start.setting.mount;
        let mut clean = false;
        if let Some(fs) = self.mount() {
            let mut harness = Harness::over(self.device.clone(), fs, options, self.start.model.clone());
            self.work(&mut harness);
            clean = self.unmount(&harness.fs);
            drop(harness);
            // A clean mount has other things to read than a recovery.
            clean = match self.mount() {
                Some(fs) => {
                    self.compare(&fs);
                    self.unmount(&fs)
                }
                None => clean && !self.faulty.hit(),
            };
        }
        // The power goes; the device is replaced by one without faults.
        check_device(&self.device, !clean).unwrap_or_else(|findings| panic!("{}: {findings}", self.what));
        let fs = mount(&self.device, options).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        let found = Tree::read(&fs).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        let differences: Vec<_> = self.allowed.iter().filter_map(|tree| found.difference(tree)).collect();
        assert!(self.allowed.contains(&found), "{}: {differences:?}", self.what);
        fs.unmount().unwrap_or_else(|error| panic!("{}: {error}", self.what));
        check_device(&self.device, false).unwrap_or_else(|findings| panic!("{}: {findings}", self.what));
        self.first
    }
}

fn run(start: &Start, make: impl FnOnce(MemoryDevice) -> FaultDevice, lasting: bool, what: String) -> (Outcome, Arc<FaultDevice>) {
    let device = start.setting.over(start.base.clone());
    let faulty = Arc::new(make(device.clone()));
    let allowed = vec![start.model.tree()];
    let outcome = Run { start, faulty: faulty.clone(), device, lasting, what, first: Outcome::Unnoticed, allowed }.all();
    (outcome, faulty)
}

/// Runs with each access of a kind failing, once and for good. Returns what each fault did first.
fn every_access_fails(start: &Start, access: Access, most: u64) -> Vec<(bool, Outcome)> {
    stay_on_one_cpu().expect("bound"); // pools and rings are a CPU's: elsewhere there would be other accesses than were counted
    let (outcome, counted) = run(start, FaultDevice::counting, false, "no fault".into());
    assert_eq!(outcome, Outcome::Unnoticed);
    let count = counted.count(access);
    assert!(count > 0, "no {access:?} at all");
    let mut outcomes = Vec::new();
    for lasting in [false, true] {
        let name = format!("{access:?}{}", if start.is_full { " on an almost full zone" } else { "" });
        for succeed in chosen(&name, count, most) {
            let what = format!("{name} {succeed} of {count}, lasting: {lasting}");
            let (outcome, faulty) = run(start, |device| FaultDevice::new(device, access, succeed, lasting), lasting, what.clone());
            assert!(faulty.hit(), "{what}: not reached");
            outcomes.push((lasting, outcome));
        }
    }
    println!("{}", summary(start, access, &outcomes));
    outcomes
}

fn summary(start: &Start, access: Access, outcomes: &[(bool, Outcome)]) -> String {
    use Outcome::*;
    let mut text = format!("{access:?}{}: {} faults", if start.is_full { ", almost full" } else { "" }, outcomes.len());
    for kind in [MountFailed, CallFailed, ReadFailed, Stopped, UnmountFailed, Unnoticed] {
        let count = outcomes.iter().filter(|(_, outcome)| *outcome == kind).count();
        text += &format!(", {kind:?} {count}");
    }
    text
}

/// Only the drive's recovery decides whether a failed transaction was committed: until then it is invisible, and no transaction follows (R16).
#[test]
fn after_a_failed_tagged_store_or_commit_the_file_system_stopped() {
    let start = small_on_firmware();
    for access in [Access::StoreTagged, Access::Commit] {
        let outcomes = every_access_fails(&start, access, 200);
        let fits = |outcome: &Outcome| matches!(outcome, Outcome::Stopped | Outcome::MountFailed | Outcome::UnmountFailed);
        assert!(outcomes.iter().all(|(_, outcome)| fits(outcome)), "{outcomes:?}");
        assert!(outcomes.iter().any(|(_, outcome)| *outcome == Outcome::Stopped));
    }
}

#[test]
fn other_faults_of_a_drive_with_firmware_do_what_they_do_elsewhere() {
    let start = small_on_firmware();
    for (access, most) in [(Access::Load, 100), (Access::Read, 200), (Access::Store, 100), (Access::Write, 60), (Access::Flush, 60)] {
        let outcomes = every_access_fails(&start, access, most);
        let wanted = match access {
            Access::Flush => Outcome::Stopped,
            Access::Write | Access::Store => Outcome::CallFailed,
            _ => Outcome::ReadFailed,
        };
        assert!(outcomes.iter().any(|(_, outcome)| *outcome == wanted), "{access:?}: {outcomes:?}");
    }
}

#[test]
fn after_a_failed_flush_nothing_is_written_any_more() {
    for start in [small(), almost_full()] {
        let outcomes = every_access_fails(&start, Access::Flush, 100);
        // A mount flushes the identity.
        let fits = |outcome: &Outcome| matches!(outcome, Outcome::Stopped | Outcome::MountFailed);
        let stopped = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Stopped).count();
        assert!(outcomes.iter().all(|(_, outcome)| fits(outcome)) && stopped >= 2, "{outcomes:?}");
    }
}

#[test]
fn after_a_failed_data_write_the_call_failed_and_nothing_changed() {
    for start in [small(), almost_full()] {
        let outcomes = every_access_fails(&start, Access::Write, 100);
        // Writeback retries a failed block once with other sectors, so a single failure has no visible effect. A mount writes the identity.
        let fits = |(lasting, outcome): &(bool, Outcome)| match outcome {
            Outcome::CallFailed | Outcome::MountFailed => true,
            Outcome::Unnoticed => !lasting,
            _ => false,
        };
        let failed_at_once = outcomes.iter().filter(|(lasting, outcome)| *outcome == Outcome::CallFailed && !lasting).count();
        assert!(outcomes.iter().all(fits) && (failed_at_once >= 5 || start.is_full), "{outcomes:?}");
    }
}

#[test]
fn after_a_failed_store_the_call_failed_or_the_file_system_stopped() {
    for (start, most) in [(small(), 400), (small_in_memory(), 150), (almost_full(), 60)] {
        let outcomes = every_access_fails(&start, Access::Store, most);
        for wanted in [Outcome::MountFailed, Outcome::CallFailed, Outcome::Stopped] {
            assert!(start.is_full || outcomes.iter().any(|(_, outcome)| *outcome == wanted), "{wanted:?}");
        }
    }
}

#[test]
fn after_a_failed_load_nothing_changed() {
    for (start, most) in [(small(), 400), (small_in_memory(), 150), (almost_full(), 60)] {
        let outcomes = every_access_fails(&start, Access::Load, most);
        assert!(outcomes.iter().any(|(_, outcome)| *outcome == Outcome::ReadFailed), "no read of data failed");
    }
}

#[test]
fn after_a_failed_read_nothing_changed() {
    for start in [small(), almost_full()] {
        let outcomes = every_access_fails(&start, Access::Read, 100);
        assert!(outcomes.iter().any(|(_, outcome)| *outcome == Outcome::ReadFailed), "no read of data failed");
    }
}

/// EIO on either path of a write that both share, and of a copy of it: nothing acknowledged is lost, nothing leaks, the next attempt
/// succeeds.
#[test]
fn after_a_fault_in_a_split_write_or_its_copy_nothing_changed() {
    let start = split();
    for access in Access::PLAIN {
        let outcomes = every_access_fails(&start, access, 100);
        let wanted = match access {
            Access::Flush => Outcome::Stopped,
            Access::Write | Access::Store => Outcome::CallFailed,
            Access::Load | Access::Read => Outcome::ReadFailed,
            Access::StoreTagged | Access::Commit | Access::MoveToCache | Access::MoveToFlash => unreachable!("not of a plain device"),
        };
        assert!(outcomes.iter().any(|(_, outcome)| *outcome == wanted), "{access:?}: {outcomes:?}");
    }
}
