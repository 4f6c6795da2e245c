//! A repair can be taken back, byte for byte, also one that was cut.

mod support;

use std::path::Path;

use support::*;
use tandemfs_check::{CheckError, CheckOptions, check, undo};
use tandemfs_device::Drive;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
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

/// What cannot be read is repaired also where old bytes are kept, and is damaged when they are put back.
fn unreadable_places() {
    let folder = tempfile::tempdir().expect("a folder");
    let second_superblock = SUPERBLOCK_OFFSETS[1] / 64;
    let lines = [TREE_PAGE + 1, ROOT_PAGE + 9, Image::inode_line(SMALL) + 1, second_superblock];
    for (index, line) in lines.map(Some).into_iter().chain([None]).enumerate() {
        let mut image = Image::small();
        image.edit_inode(FILE, |inode| inode.nlink = 9);
        let device = image.device();
        {
            let mut faults = device.faults.lock().expect("lock");
            faults.heals = true;
            match line {
                Some(line) => faults.bad_memory = Some(line * 64..line * 64 + 64),
                None => faults.bad_sector = Some(0),
            }
        }
        let before = device.bytes();
        let file = folder.path().join(index.to_string());
        let repaired = report_with(&device, &with_undo(&file));
        assert!(repaired.is_consistent(), "{line:x?}: {:?}", repaired.findings);
        undo(&Drive::new(device.clone()), &file).expect("undone");
        let (mut memory, mut blocks) = device.bytes();
        let (now, old) = match line {
            Some(line) => (&mut memory[line as usize * 64..][..64], &before.0[line as usize * 64..][..64]),
            None => (&mut blocks[..4096], &before.1[..4096]),
        };
        assert!(now.iter().all(|byte| *byte == 0xff), "{line:x?}");
        now.copy_from_slice(old);
        assert!((memory, blocks) == before, "{line:x?}: all else byte for byte");
        let lost =
            |report: &tandemfs_check::Report| report.lost.iter().map(|lost| (lost.inode, lost.offset, lost.bytes)).collect::<Vec<_>>();
        let again = report(&device, true);
        assert!(again.is_consistent() && lost(&again) == lost(&repaired), "{line:x?}: {:?}", again.findings);
    }
}

#[test]
fn regression_a_repair_that_keeps_old_bytes_ended_at_what_cannot_be_read() {
    unreadable_places();
}

#[test]
fn a_repair_that_needs_all_old_bytes_is_caught() {
    assert_caught(&[(unreadable_places, tandemfs_check::mutant::Mutant::UndoNeedsBytes)]);
}
