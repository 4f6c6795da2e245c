//! Bugs that explored schedules found, each with the steps that showed it.

mod support;

use std::sync::Arc;

use tandemfs_crash::{Operation, PausingDevice, Setting, Step, mount_device};
use tandemfs_device::PersistenceDomain::Gpf;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AllocateMode, Error, NewInode, RenameMode, WriteOptions};
use tandemfs_schedules::{Effort, Scene, Workload, explore, rounds_or};

use Operation::*;
use Step::{Do, Look};
use support::must;

/// Runs these steps in many schedules.
fn always_right(threads: &'static [&'static [Step]]) {
    let preparation = &[Create("a"), Create("b"), Link("a", "other")];
    let scene = Scene::new(&Setting::small(Gpf, 4 << 10), preparation, &[]).expect("prepares");
    let workload = Workload { threads: threads.iter().map(|steps| steps.to_vec()).collect(), ..Workload::default() };
    must(explore("regression", rounds_or(150), move |random| scene.run(&workload, Effort::SCHEDULES, random)));
}

/// A look-up read the inode after the directory: a name that was being renamed over was missing for an instant.
#[test]
fn regression_a_name_that_is_renamed_over_is_there_at_every_instant() {
    always_right(&[&[Do(Rename("b", "a", RenameMode::Replace)), Do(Unlink("other"))], &[Look("a"), Look("a")]]);
}

/// A look-up read the inode after the directory: a name was shown with attributes from after it was gone.
#[test]
fn regression_a_name_is_shown_as_it_was_when_it_was_found() {
    always_right(&[&[Do(Unlink("a"))], &[Look("a")]]);
}

/// Both saw the other's file under the new name and said that there was nothing to do, or refused what was never true of both names.
#[test]
fn regression_of_two_equal_renames_one_finds_nothing() {
    always_right(&[&[Do(Rename("b", "c", RenameMode::Replace))], &[Do(Rename("b", "c", RenameMode::Replace))]]);
    always_right(&[&[Do(Rename("b", "c", RenameMode::NoReplace))], &[Do(Rename("b", "c", RenameMode::NoReplace))]]);
}

/// A removal or rename whose name was removed meanwhile said that an inode was stale, not that the name was gone.
#[test]
fn regression_who_loses_a_race_for_a_name_hears_that_it_is_gone() {
    always_right(&[&[Do(Unlink("b"))], &[Do(Unlink("b"))]]);
    always_right(&[&[Do(Unlink("b"))], &[Do(Rename("b", "c", RenameMode::Replace))]]);
}

/// Two threads of one CPU that found no room brought a unit each; the second stayed unused in the pool, lost to metadata.
#[test]
fn regression_no_unit_stays_unused_in_a_pool() {
    always_right(&[&[Do(Write("a", 10, 50, 1)), Do(Truncate("a", 0))], &[Do(Write("b", 10, 50, 2)), Do(Truncate("b", 0))]]);
}

/// A new file joined the table of in-core inodes after its commit: a write to its number in between used a second in-core inode with its own
/// lock, and the first one lost the written data.
#[test]
fn regression_a_file_has_one_in_core_inode_from_its_first_instant() {
    must(explore("one in-core inode", rounds_or(400), |_| {
        let setting = Setting::small(Gpf, 4 << 10);
        let device = Arc::new(PausingDevice::new(setting.format(), shuttle::thread::yield_now));
        let fs = Arc::new(mount_device(device, &setting.mount).map_err(|error| error.to_string())?);
        let file = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let first = fs.create(InodeNumber::ROOT, b"first", &file).map_err(|error| error.to_string())?.inode;
        let expected = InodeNumber::new(first.get() + 1);
        let writer = {
            let fs = fs.clone();
            shuttle::thread::spawn(move || (0..3).any(|_| fs.write(expected, 0, b"written", WriteOptions::default()).is_ok()))
        };
        let made = fs.create(InodeNumber::ROOT, b"second", &file).map_err(|error| error.to_string())?.inode;
        if made != expected {
            return Err(format!("inode {made} instead of {expected}"));
        }
        let written = writer.join().map_err(|_| "the writer panicked".to_owned())?;
        let mut bytes = [0; 16];
        match fs.read(expected, 0, &mut bytes) {
            Ok(7) if written && bytes[..7] == *b"written" => Ok(()),
            Ok(0) if !written => Ok(()),
            Err(error @ Error::Damaged { .. }) => Err(error.to_string()),
            other => Err(format!("written: {written}, read: {other:?}")),
        }
    }));
}

/// A look-up went down from a root that it had read before: the page of its hole was freed with the last block in it, and another file's by
/// the time that it was read. Intact metadata was called damaged.
#[test]
fn regression_a_hole_is_read_while_its_page_goes_to_another_file() {
    must(explore("hole and page", rounds_or(400), |_| {
        let setting = Setting::small(Gpf, 4 << 10);
        let device = Arc::new(PausingDevice::new(setting.format(), shuttle::thread::yield_now));
        let fs = Arc::new(mount_device(device, &setting.mount).map_err(|error| error.to_string())?);
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let make = |name: &[u8]| fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(|error| error.to_string());
        let (first, other) = (make(b"first")?, make(b"other")?);
        // A tree of one page, which goes with block 100.
        fs.write(first, 100 << 12, &[1; 4096], WriteOptions::default()).map_err(|error| error.to_string())?;
        let user = {
            let fs = fs.clone();
            shuttle::thread::spawn(move || {
                let mut byte = [0];
                fs.read(first, 40 << 12, &mut byte)?;
                fs.write(first, 41 << 12, b"x", WriteOptions::default())?;
                fs.allocate(first, 41 << 12, 4096, AllocateMode::Punch)
            })
        };
        let taker = (|| {
            fs.allocate(first, 100 << 12, 4096, AllocateMode::Punch)?;
            fs.checkpoint()?;
            (0..3).try_for_each(|block| fs.write(other, (40 + block) << 12, b"y", WriteOptions::default()).map(drop))
        })();
        let used = user.join().map_err(|_| "the user panicked".to_owned())?;
        used.and(taker).map_err(|error| error.to_string())
    }));
}

/// A thread without space was refused while another thread was freeing all of it.
#[test]
fn regression_space_that_is_about_to_be_free_is_waited_for() {
    must(explore("leaving", rounds_or(120), |_| {
        let setting = Setting::small(Gpf, 4 << 10);
        let device = Arc::new(PausingDevice::new(setting.format(), shuttle::thread::yield_now));
        let fs = Arc::new(mount_device(device, &setting.mount).map_err(|error| error.to_string())?);
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let make = |name: &[u8]| fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(|error| error.to_string());
        let (large, other) = (make(b"large")?, make(b"other")?);
        let allocate = AllocateMode::Allocate { keep_size: false };
        fs.allocate(large, 0, fs.large_file_bytes(), allocate).map_err(|error| error.to_string())?;
        let leaver = {
            let fs = fs.clone();
            shuttle::thread::spawn(move || fs.unlink(InodeNumber::ROOT, b"large"))
        };
        let is_leaving = fs.space_may_return();
        let given = fs.allocate(other, 0, 4096, allocate);
        leaver.join().map_err(|_| "the leaver panicked".to_owned())?.map_err(|error| error.to_string())?;
        match given {
            Err(Error::NoSpace { .. }) if !is_leaving => Ok(()), // it came first
            other => other.map_err(|error| format!("{error}, while a file was leaving")),
        }
    }));
}
