//! Layouts beside writers, under explored schedules: what a valid layout names on the device is what `read` returns. Times do not pass in a
//! schedule, so a change waits until the layouts that it recalled are returned: a holder that no change ever recalls would be a deadlock.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::sync::Arc;

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, fill, mount_device};
use tandemfs_device::{BlockRequest, PersistenceDomain, Structure};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, FileSystem, Layout, LayoutExtent, LayoutOptions, LayoutPlace, NewInode, SetAttributes, WriteOptions};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 3;

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

/// The bytes of an extent as its place says; `None` where only `read` knows them.
fn bytes_of(fs: &FileSystem, extent: &LayoutExtent) -> Result<Option<Vec<u8>>, String> {
    let mut buffer = vec![0; extent.bytes as usize];
    match extent.place {
        LayoutPlace::Sectors { sector } => {
            let mut requests = [BlockRequest::Read { sector, buffer: (&mut buffer).into() }];
            drop(fs.drive().transfer(Structure::Data, &mut requests, &mut || {}).map_err(|error| error.to_string())?);
        }
        LayoutPlace::Hole | LayoutPlace::Unwritten { .. } => {}
        _ => return Ok(None),
    }
    Ok(Some(buffer))
}

/// Compares a held layout with what `read` returns.
fn compare(fs: &FileSystem, file: InodeNumber, layout: &Layout) -> Result<(), String> {
    for extent in layout.extents() {
        let Some(named) = bytes_of(fs, extent)? else { continue };
        let mut read = vec![0; extent.bytes as usize];
        let count = fs.read(file, extent.file_offset, &mut read).map_err(text)?;
        if named[..count] != read[..count] {
            return Err(format!("{extent:?} has other bytes than the file has"));
        }
    }
    if layout.is_valid() { Ok(()) } else { Err("a layout was revoked, though no time has passed".into()) }
}

/// A holder that takes two layouts, one after the other.
fn hold(fs: &FileSystem, file: InodeNumber, ranges: [(u64, u64); 2]) -> Result<(), String> {
    for (first, count) in ranges {
        let layout = fs.layout(file, first * BLOCK, count * BLOCK, LayoutOptions { settle: count == 1 }, || {}).map_err(text)?;
        compare(fs, file, &layout)?;
        compare(fs, file, &layout)?;
    }
    Ok(())
}

/// A change of the file; `number` chooses which.
fn change(fs: &FileSystem, file: InodeNumber, number: u64) -> Result<(), String> {
    let block = number / 6 % BLOCKS * BLOCK;
    match number % 6 {
        0 | 1 => fs.write(file, block, &fill(number, BLOCK as usize), WriteOptions::default()).map(drop),
        2 => fs.write(file, block + 100, &fill(number, 64), WriteOptions::default()).map(drop),
        3 => fs.allocate(file, block, BLOCK, AllocateMode::Punch),
        4 => fs.allocate(file, block, BLOCK, AllocateMode::Zero { keep_size: true }),
        _ => fs.set_attributes(file, &SetAttributes { size: Some(block + 10), ..SetAttributes::default() }).map(drop),
    }
    .map_err(text)
}

/// One holder, and two threads that change the file. The last name of the file may go meanwhile, while it is held.
fn holders_and_writers(random: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32);
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?;
    let file = made.inode;
    fs.remember(file, made.generation, 1).map_err(text)?;
    fs.write(file, 0, &fill(1, (BLOCKS * BLOCK) as usize), WriteOptions::default()).map_err(text)?;
    let mut draw = |most: u64| random.below(most);
    let ranges = [(draw(BLOCKS), 1 + draw(2)), (draw(BLOCKS), 1 + draw(2))];
    let changes = [[draw(18), draw(18)], [draw(18), draw(18)]];
    let removes = draw(3) == 0;
    let own = fs.clone();
    let mut threads = vec![shuttle::thread::spawn(move || hold(&own, file, ranges))];
    for numbers in changes {
        let own = fs.clone();
        threads.push(shuttle::thread::spawn(move || numbers.into_iter().try_for_each(|number| change(&own, file, number))));
    }
    if removes {
        fs.unlink(InodeNumber::ROOT, b"file").map_err(text)?;
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

#[test]
fn layouts_stay_true_beside_changes() {
    is_sound(400, "layouts", holders_and_writers);
}

#[test]
fn leases_not_recalled() {
    is_caught(Mutant::LeasesNotRecalled, "layouts", holders_and_writers);
}

#[test]
fn lease_after_range() {
    is_caught(Mutant::LeaseAfterRange, "layouts", holders_and_writers);
}
