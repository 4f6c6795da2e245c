//! A repair can be taken back, byte for byte, also one that was cut.

mod support;

use std::path::Path;

use support::*;
use tandemfs_check::{CheckError, CheckOptions, check, undo};
use tandemfs_device::Drive;
use tandemfs_format::mapping::Record;

/// Work of every kind: replay, cut lines, lost+found, zeroed sectors, a clone.
fn damaged() -> Image {
    let mut image = Image::small();
    image.damage(Image::inode_line(DIRECTORY));
    image.damage(FILE_LEAF);
    image.blocks[5 * 4096] ^= 1;
    let Record::Block { extent: Some(extent), .. } = image.record(TREE_PAGE, 2) else { panic!("a block") };
    image.put_record(TREE, TREE_PAGE, 4, Record::Block { extent: Some(extent), leaf: None });
    image.edit_inode(TREE, |inode| inode.size = 5 * BLOCK);
    let old = image.clone();
    image.edit_inode(FILE, |inode| inode.nlink = 9);
    let line = image.line(Image::inode_line(FILE));
    image = old;
    image.edit_superblock(|superblock| superblock.clean = false);
    image.put_journal(0, 0, 101, &[(Image::inode_line(FILE), line)]);
    image.memory[64 << 10] ^= 1;
    image.blocks[8] ^= 1;
    image
}

fn with_undo(file: &Path) -> CheckOptions {
    CheckOptions { undo: Some(file.to_owned()), ..options(true) }
}

#[test]
fn a_repair_is_taken_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("undo");
    let device = damaged().device();
    let before = device.bytes();
    let report = report_with(&device, &with_undo(&file));
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(device.bytes() != before);
    assert_eq!(report.undo_bytes, std::fs::metadata(&file).expect("there").len());
    let undone = undo(&Drive::new(device.clone()), &file).expect("undone");
    assert!(device.bytes() == before, "byte for byte");
    assert!(undone.lines > 10 && undone.sectors > 1, "{undone:?}");
}

#[test]
fn a_repair_that_was_cut_is_taken_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = damaged().device();
    let before = device.bytes();
    report_with(&device, &options(true));
    let writes = device.writes();
    for cut in (0..writes).step_by(3) {
        let file = folder.path().join(cut.to_string());
        let device = damaged().device();
        device.faults.lock().expect("lock").writes_left = Some(cut);
        let result = check(&Drive::new(device.clone()), &with_undo(&file), &mut |_| {});
        assert!(matches!(result, Err(CheckError::Device(_))), "cut {cut}");
        let (memory, blocks) = device.bytes();
        let device = MemoryDevice::new(memory, blocks);
        undo(&Drive::new(device.clone()), &file).expect("undone");
        assert!(device.bytes() == before, "cut {cut}");
    }
}

#[test]
fn no_file_is_made_where_nothing_is_repaired() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("undo");
    assert_eq!(report_with(&Image::small().device(), &with_undo(&file)).undo_bytes, 0);
    assert!(!file.exists());
}

#[test]
fn files_that_do_not_fit_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("undo");
    let device = damaged().device();
    report_with(&device, &with_undo(&file));
    let refused = check(&Drive::new(damaged().device()), &with_undo(&file), &mut |_| {});
    assert!(matches!(refused, Err(CheckError::Undo { .. })), "the file exists");
    let whole = std::fs::read(&file).expect("reads");
    let before = device.bytes();
    for at in [0, 9, 20, 40, 63, 70, 90, 200, whole.len() / 2, whole.len() - 40] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&file, &bytes).expect("writes");
        let refused = undo(&Drive::new(device.clone()), &file);
        assert!(matches!(refused, Err(CheckError::Undo { .. })), "byte {at}: {refused:?}");
        assert!(device.bytes() == before, "byte {at}");
    }
    std::fs::write(&file, &whole).expect("writes");
    let mut other = Image::small();
    other.edit_superblock(|superblock| superblock.pair = uuid::Uuid::from_u128(5));
    assert!(matches!(undo(&Drive::new(other.device()), &file), Err(CheckError::Undo { .. })), "another pair");
    std::fs::write(&file, &whole[..30]).expect("writes");
    assert!(matches!(undo(&Drive::new(device), &file), Err(CheckError::Undo { .. })), "no header");
}
