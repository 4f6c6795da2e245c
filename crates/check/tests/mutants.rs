//! Each deliberate bug of the repair is caught by a scene that a right repair passes.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use support::*;
use tandemfs_check::mutant::{Mutant, select};
use tandemfs_check::{CheckError, CheckOptions, Report, check, undo};
use tandemfs_device::Drive;
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::Record;
use tandemfs_format::{InodeNumber, LineAddress};

fn repaired(image: &Image) -> (Report, Image) {
    let device = image.device();
    let report = report(&device, true);
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    (report, after)
}

fn saved_map() {
    let mut image = Image::small();
    image.write_piece(5, tandemfs_format::allocation_map::PieceKind::Data, &[0; 4096]);
    assert!(repaired(&image).0.is_consistent());
}

fn replay() {
    let mut image = Image::crashed();
    let old = image.clone();
    image.edit_inode(FILE, |inode| (inode.uid, inode.nlink) = (7, 9));
    let line = Image::inode_line(FILE);
    let (hot, cold) = (image.line(line), image.line(line + 1));
    image = old;
    image.put_journal(2, 0, 150, &[(line, hot), (line + 1, cold)]);
    assert_eq!(repaired(&image).1.inode(FILE).uid, 7);
}

/// Repairs that are cut anywhere end clean when they are repeated, with the same names.
fn cuts() {
    let mut image = Image::crashed();
    image.edit_inode(FILE, |inode| (inode.nlink, inode.space_512) = (5, 5));
    for number in 40..180 {
        image.add_empty(number, file_type::REGULAR | 0o600, 1);
    }
    let device = image.device();
    assert!(report(&device, true).is_consistent());
    for cut in (0..device.writes()).step_by(2) {
        let device = image.device();
        device.faults.lock().expect("lock").writes_left = Some(cut);
        assert!(check(&Drive::new(device.clone()), &options(true), &mut |_| {}).is_err());
        let (memory, blocks) = device.bytes();
        let device = MemoryDevice::new(memory, blocks);
        for located in report(&device, false).findings {
            let id = located.finding.id();
            assert!(
                ["superblock_damaged", "superblocks_differ", "link_count", "space_wrong", "unreachable"].contains(&id),
                "cut {cut}: {located}"
            );
        }
        let report = report(&device, true);
        assert!(report.is_consistent() && report.lost.is_empty(), "cut {cut}");
    }
}

fn leaf() {
    let mut image = Image::crashed();
    image.damage(FILE_LEAF);
    let (report, after) = repaired(&image);
    assert!(report.is_consistent());
    assert_eq!(after.inode(FILE).root, [0; 20], "no older bytes");
}

fn mapping_line() {
    let mut image = Image::crashed();
    image.damage(TREE_PAGE);
    assert_eq!(repaired(&image).0.lost.len(), 1);
}

fn one_name() {
    let mut image = Image::crashed();
    image.damage(ROOT_PAGE + 4);
    assert_eq!(repaired(&image).0.placed.len(), 1);
}

fn lost_page() {
    let mut image = Image::crashed();
    image.edit_inode(DIRECTORY, |inode| inode.root = [0; 20]);
    assert!(repaired(&image).0.placed.is_empty());
}

/// A file whose directory has no name either.
fn directory_and_file() {
    let mut image = Image::crashed();
    image.put(ROOT_PAGE + 1, [0; 64]);
    image.put(DIRECTORY_PAGE, [0; 64]);
    let (report, _) = repaired(&image);
    assert!(report.placed.iter().any(|placed| placed.path == "/#3/#6"), "{:?}", report.placed);
}

/// A directory whose parent is below it.
fn below_itself() {
    let mut image = Image::crashed();
    image.add_empty(9, file_type::DIRECTORY | 0o755, 3);
    let page = DENTRIES + 128;
    image.edit_inode(9, |inode| {
        inode.parent = InodeNumber::new(DIRECTORY);
        (inode.size, inode.space_512, inode.root) = (4096, 8, Record::Memory(LineAddress::new(page)).encode().to_bytes());
    });
    image.put(ROOT_PAGE + 1, [0; 64]);
    image.put_name(9, page, 0, b"above", DIRECTORY);
    image.edit_inode(DIRECTORY, |inode| inode.parent = InodeNumber::new(9));
    let (report, _) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.placed.iter().any(|placed| placed.path == "/lost+found/#9"), "{:?}", report.placed);
}

fn taken_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("undo");
    let mut image = Image::small();
    image.damage(ROOT_PAGE);
    let device = image.device();
    let before = device.bytes();
    report_with(&device, &CheckOptions { undo: Some(file.clone()), ..options(true) });
    undo(&Drive::new(device.clone()), &file).expect("undone");
    assert!(device.bytes() == before);
    let mut bytes = std::fs::read(&file).expect("reads");
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).expect("writes");
    assert!(matches!(undo(&Drive::new(device), &file), Err(CheckError::Undo { .. })));
}

fn damaged_record() {
    let mut image = Image::crashed();
    let change = |image: &Image, uid: u32| {
        let mut other = image.clone();
        other.edit_inode(FILE, |inode| inode.uid = uid);
        (Image::inode_line(FILE) + 1, other.line(Image::inode_line(FILE) + 1))
    };
    let first = image.put_journal(0, 0, 101, &[change(&image.clone(), 5)]);
    image.put_journal(0, first, 102, &[change(&image.clone(), 6)]);
    let at = image.superblock.geometry.ring(0).offset_bytes() as usize + 128 + 60;
    image.memory[at] ^= 1;
    let (report, after) = repaired(&image);
    assert_eq!(report.repaired.len(), 1, "{:?}", report.repaired);
    assert_eq!(after.inode(FILE).uid, 6);
}

/// The sectors of another device.
fn foreign_sectors() {
    let mut image = Image::small();
    image.blocks.fill(0x11);
    let (report, after) = repaired(&image);
    assert!(report.lost.is_empty() && after.blocks == image.blocks);
}

type Scene = (&'static str, fn());

#[test]
fn deliberate_bugs_of_the_repair_are_caught() {
    let scenes: [(Scene, &[Mutant]); 12] = [
        (("saved_map", saved_map), &[Mutant::RepairKeepsClean]),
        (("replay", replay), &[Mutant::RepairDropsJournal]),
        (("cuts", cuts), &[Mutant::RepairHomeFirst, Mutant::LinkedBeforeWritten]),
        (("leaf", leaf), &[Mutant::OldBytesKept]),
        (("mapping_line", mapping_line), &[Mutant::LossUnlisted]),
        (("one_name", one_name), &[Mutant::NeighboursCut]),
        (("lost_page", lost_page), &[Mutant::PagesNotSalvaged]),
        (("directory_and_file", directory_and_file), &[Mutant::FilesFirst]),
        (("below_itself", below_itself), &[Mutant::PlacedBelowItself]),
        (("taken_back", taken_back), &[Mutant::UndoForgets, Mutant::UndoUnverified]),
        (("damaged_record", damaged_record), &[Mutant::RingEndsAtDamage]),
        (("foreign_sectors", foreign_sectors), &[Mutant::ForeignSectorsZeroed]),
    ];
    for ((name, scene), bugs) in scenes {
        assert!(catch_unwind(scene).is_ok(), "{name} fails without a bug");
        for bug in bugs {
            let result = catch_unwind(AssertUnwindSafe(|| {
                select(*bug);
                scene();
            }));
            select(Mutant::None);
            assert!(result.is_err(), "{bug:?} escaped {name}");
        }
    }
}
