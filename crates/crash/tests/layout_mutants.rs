//! Deliberate bugs of layouts and their leases, each caught. A mutant is global to the process, so the tests of this file run one after the
//! other.

mod support;

use support::bugs::{Catcher, alone, is_caught, run};
use tandemfs_crash::{Setting, fill, mount};
use tandemfs_device::{BlockRequest, PersistenceDomain, Structure};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, Error, FileSystem, Layout, LayoutOptions, LayoutPlace, NewInode, WriteOptions};

const BLOCK: u64 = 64 << 10;
const BLOCKS: u64 = 8;

fn failed(error: Error) -> String {
    error.to_string()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(failed)
}

fn on_device(fs: &FileSystem, layout: &Layout) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for extent in layout.extents() {
        let LayoutPlace::Sectors { sector } = extent.place else { continue };
        let mut buffer = vec![0; extent.bytes as usize];
        let mut requests = [BlockRequest::Read { sector, buffer: (&mut buffer).into() }];
        drop(fs.drive().transfer(Structure::Data, &mut requests, &mut || {}).map_err(|error| error.to_string())?);
        bytes.extend(buffer);
    }
    Ok(bytes)
}

/// Overwrites and punches a file under a layout whose holder does not answer, then fills the file system with other bytes.
fn holder_that_does_not_answer(changed: impl Fn(&FileSystem, InodeNumber) -> tandemfs_fs::Result<()>) -> Result<(), String> {
    let setting = Setting { block_zone_bytes: 16 << 20, ..Setting::small(PersistenceDomain::Gpf, BLOCK as u32) };
    let fs = mount(&setting.format(), &setting.mount)?;
    let file = create(&fs, b"file")?;
    let content = fill(1, (BLOCKS * BLOCK) as usize);
    fs.write(file, 0, &content, WriteOptions::default()).map_err(failed)?;
    let layout = fs.layout(file, 0, BLOCKS * BLOCK, LayoutOptions::default(), || {}).map_err(failed)?;
    changed(&fs, file).map_err(failed)?;
    if layout.is_valid() || !layout.is_recalled() {
        return Err("the file has changed, and its layout claims to be valid".into());
    }
    let other = create(&fs, b"other")?;
    let (mut offset, bytes) = (0, fill(2, BLOCK as usize));
    while fs.write(other, offset, &bytes, WriteOptions::default()).is_ok() {
        offset += BLOCK;
    }
    if on_device(&fs, &layout)? != content {
        return Err("sectors of a layout that is not returned have bytes of another file".into());
    }
    drop(layout);
    fs.unmount().map_err(failed)
}

fn overwritten() -> Result<(), String> {
    holder_that_does_not_answer(|fs, file| fs.write(file, 0, &fill(3, (BLOCKS * BLOCK) as usize), WriteOptions::default()).map(drop))
}

fn punched() -> Result<(), String> {
    holder_that_does_not_answer(|fs, file| fs.allocate(file, 0, BLOCKS * BLOCK, AllocateMode::Punch))
}

fn removed() -> Result<(), String> {
    holder_that_does_not_answer(|fs, _| fs.unlink(InodeNumber::ROOT, b"file"))
}

const CATCHERS: [Catcher; 3] = [overwritten, punched, removed];

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    for (index, catcher) in CATCHERS.into_iter().enumerate() {
        if let Err(what) = run(Mutant::None, catcher) {
            panic!("catcher {index}: {what}");
        }
    }
}

#[test]
fn leases_not_recalled() {
    is_caught(Mutant::LeasesNotRecalled, &CATCHERS);
}

#[test]
fn leased_sectors_freed() {
    is_caught(Mutant::LeasedSectorsFreed, &CATCHERS);
}
