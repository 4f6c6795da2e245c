//! Deliberate bugs of changes of settings, each of which a scenario finds. A mutant is global to the process, so the scenarios run one after the other.

mod support;

use support::bugs::{caught, sound};
use tandemfs_crash::{Setting, check_device, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Kept, MountOptions, NewInode, ReadOptions, SettingsChange, Threshold, WriteOptions};

const BYTES: usize = 3 << 20;

fn setting() -> Setting {
    let mut setting = Setting { block_zone_bytes: 32 << 20, ..Setting::small(PersistenceDomain::Gpf, 64 << 10) };
    setting.mount.memory_bytes = 64 << 20;
    setting
}

/// [CS1]: a threshold that does not suit the blocks, beside less memory.
fn a_part_is_refused(setting: &Setting) -> Result<(), String> {
    let fs = mount(&setting.format(), &setting.mount)?;
    let change = SettingsChange { threshold: Some(Threshold::Bytes(4096)), memory_bytes: Some(8 << 20), ..SettingsChange::default() };
    match fs.change_settings(&change) {
        Ok(options) => Err(format!("nothing was refused: {options:?}")),
        Err(_) if fs.options() == setting.mount => Ok(()),
        Err(_) => Err(format!("{:?}", fs.options())),
    }
}

/// [CS3]: host memory that is full of a file, and then may be less.
fn memory_falls(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).map_err(|error| error.to_string())?.inode;
    let bytes = fill(1, BYTES);
    fs.write(file, 0, &bytes, WriteOptions::default()).map_err(|error| error.to_string())?;
    let mut found = vec![0; BYTES];
    for (at, piece) in (0..).step_by(64 << 10).zip(found.chunks_mut(64 << 10)) {
        fs.read_with(file, at, piece, ReadOptions { kept: Kept::Here }).map_err(|error| error.to_string())?;
    }
    if found != bytes || fs.file_pages_bytes() < BYTES as u64 {
        return Err("the file is not in memory: the test shows nothing".into());
    }
    let change = SettingsChange { memory_bytes: Some(1 << 20), ..SettingsChange::default() };
    let options = fs.change_settings(&change).map_err(|error| error.to_string())?;
    let expected = MountOptions { memory_bytes: 1 << 20, read_ahead_bytes: options.read_ahead_bytes, ..setting.mount.clone() };
    if options != expected {
        return Err(format!("{options:?}"));
    }
    if fs.file_pages_bytes() > 1 << 20 {
        return Err(format!("{} B of pages are left", fs.file_pages_bytes()));
    }
    fs.unmount().map_err(|error| error.to_string())?;
    check_device(&device, false).map(drop)
}

#[test]
fn without_a_bug_nothing_is_found() {
    sound(&[setting()], a_part_is_refused);
    sound(&[setting()], memory_falls);
}

#[test]
fn every_bug_is_found() {
    caught(Mutant::SettingsChangedInPart, &setting(), a_part_is_refused);
    caught(Mutant::LowerMemoryNotGivenBack, &setting(), memory_falls);
}
