//! Blocks that lie in the memory zone: each way to be wrong has its finding, a repair keeps what verifies, and a copy takes them out.

mod support;

use std::sync::Arc;

use support::*;
use tandemfs_check::Finding::{self, *};
use tandemfs_check::{Dump, Target, check};
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, encode};
use tandemfs_format::inode::{file_type, flags};
use tandemfs_format::mapping::{BlockChecksum, Extent, Record, SlotClass};
use tandemfs_format::superblock::{incompat, ro_compat};
use tandemfs_format::{DataAddress, InodeNumber, LINE_BYTES, LineAddress, PairSeed, SECTOR_BYTES, UNIT_LINES};
use tandemfs_fs::{FileSystem, FormatOptions, Home, MountOptions, NewInode, WriteOptions, make_file_system};

/// The first line of a unit of the data area in which nothing lies.
const PAGES: u64 = 6 * UNIT_LINES;

/// An image where block 2 of [`TREE`], which was one sector, is one page of the memory zone.
fn homes() -> Image {
    let mut image = Image::crashed();
    image.edit_superblock(|superblock| superblock.incompat |= incompat::MEMORY_HOME);
    put_pages(&mut image, 2, PAGES, 1);
    image
}

/// Makes a block of [`TREE`] consist of pages with bytes and a checksum; several pages share the checksum vector of block 0.
fn put_pages(image: &mut Image, block: u64, line: u64, count: u64) {
    let data = data_of(line, SECTOR_BYTES);
    for page in 0..count {
        let at = (line + page * 64) as usize * LINE_BYTES;
        if let Some(bytes) = image.memory.get_mut(at..at + SECTOR_BYTES) {
            bytes.copy_from_slice(&data);
        }
    }
    let checksum = match count {
        1 => BlockChecksum::Inline(image.pair().data(&data)),
        _ => BlockChecksum::Vector(LineAddress::new(LEAVES + 10)),
    };
    let extent = Extent { at: DataAddress::Page(LineAddress::new(line)), count: count as u32, checksum, unwritten: false };
    image.put_record(TREE, TREE_PAGE, block, Record::Block { extent: Some(extent), leaf: None });
}

/// Repairs; what was repaired, what is lost, what is left, and the image after it.
fn repaired(image: &Image) -> (Vec<Finding>, Vec<(u64, u64)>, Vec<Finding>) {
    let device = image.device();
    let report = report(&device, true);
    let lost = report.lost.iter().map(|lost| (lost.offset, lost.bytes.unwrap_or(0))).collect();
    (report.repaired.iter().map(|located| located.finding.clone()).collect(), lost, findings(&support::report(&device, false)))
}

#[test]
fn a_block_in_the_memory_zone_is_in_order() {
    assert_eq!(homes().findings(), []);
}

#[test]
fn each_way_to_be_wrong_is_found_and_repaired() {
    type Plant = fn(&mut Image);
    // What is wrong, the finding, and what is lost: offsets and lengths in bytes.
    type Case = (&'static str, Plant, Finding, Vec<(u64, u64)>);
    let misplaced = |line| PointerMisplaced { inode: TREE, block: 2, target: Target::Pages, line };
    let gone = vec![(2 * BLOCK, BLOCK)];
    #[rustfmt::skip]
    let cases: [Case; 9] = [
        ("without the feature", |image| image.edit_superblock(|superblock| superblock.incompat = 0),
            RecordKind { inode: TREE, block: 2, line: TREE_PAGE }, gone.clone()),
        ("in the fixed part", |image| put_pages(image, 2, 64, 1), misplaced(64), gone.clone()),
        ("in a region", |image| put_pages(image, 2, LEAVES + 64, 1), misplaced(LEAVES + 64), gone.clone()),
        ("across the end of a unit", |image| {
            put_pages(image, 2, PAGES + 511 * 64, 2);
            image.edit_inode(TREE, |inode| inode.space_512 += 8);
        }, misplaced(PAGES + 511 * 64), gone.clone()),
        ("outside the zone", |image| put_pages(image, 2, 8 * UNIT_LINES, 1), misplaced(8 * UNIT_LINES), gone.clone()),
        ("in a unit of data logs", |image| {
            put_pages(image, 3, DATA + 640, 1);
            image.edit_inode(TREE, |inode| inode.space_512 += 7);
        }, UnitMixed { inode: TREE, block: 3, target: Target::Pages, unit: 5 }, vec![]),
        ("of two blocks", |image| {
            put_pages(image, 4, PAGES, 1);
            image.edit_inode(TREE, |inode| (inode.size, inode.space_512) = (5 * BLOCK, inode.space_512 + 8));
        }, LinesShared { inode: TREE, block: 4, target: Target::Pages, line: PAGES }, vec![]),
        ("damaged", |image| image.memory[PAGES as usize * LINE_BYTES + 100] ^= 1,
            DataDamaged { inode: TREE, offset: 2 * BLOCK, sectors: 1 }, vec![(2 * BLOCK, 4096)]),
        ("a file of two homes", |image| image.edit_inode(TREE, |inode| inode.flags = flags::HOME_MEMORY | flags::HOME_BLOCK),
            InodeField { inode: TREE, field: "flags", found: 3 }, vec![]),
    ];
    for (what, plant, finding, lost) in cases {
        let mut image = homes();
        image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
        plant(&mut image);
        assert!(image.findings().contains(&finding), "{what}: {:?}", image.findings());
        let (mended, found_lost, left) = repaired(&image);
        assert!(mended.contains(&finding), "{what}: {mended:?}");
        assert_eq!((found_lost, left), (lost, vec![]), "{what}");
    }
}

#[test]
fn a_flag_without_the_feature_is_found() {
    let mut image = Image::crashed();
    image.edit_inode(TREE, |inode| inode.flags = flags::HOME_MEMORY);
    assert_eq!(image.findings(), [InodeField { inode: TREE, field: "flags", found: 1 }]);
    let (mended, lost, left) = repaired(&image);
    assert_eq!((mended.len(), lost, left), (1, vec![], vec![]));
}

/// The second claim gets sectors of its own, with the bytes.
#[test]
fn two_claims_of_a_page_both_keep_their_bytes() {
    let mut image = homes();
    put_pages(&mut image, 4, PAGES, 1);
    image.edit_inode(TREE, |inode| (inode.size, inode.space_512) = (5 * BLOCK, inode.space_512 + 8));
    let device = image.device();
    assert!(report(&device, true).is_consistent());
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    let Record::Block { extent: Some(copy), .. } = after.record(TREE_PAGE, 4) else { panic!("a block") };
    let sector = copy.at.sector().expect("the copy lies in the block zone").number() as usize;
    assert_eq!(after.blocks[sector * SECTOR_BYTES..][..SECTOR_BYTES], data_of(PAGES, SECTOR_BYTES));
}

/// A log in a unit of extents: whoever comes second is wrong.
#[test]
fn a_log_in_a_unit_of_extents_is_found() {
    let mut image = homes();
    let log = image.log(PAGES + 640, 0, 50, SlotClass::Line);
    image.put_record(TREE, TREE_PAGE, 3, Record::SingleLog(log));
    assert_eq!(image.findings(), [UnitMixed { inode: TREE, block: 3, target: Target::Slot, unit: 6 }]);
}

/// A file system whose one file lies in the memory zone, unmounted.
fn made() -> (Arc<tandemfs_crash::MemoryDevice>, Vec<u8>, InodeNumber) {
    let device = Arc::new(tandemfs_crash::MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf));
    let drive = Drive::new(device.clone());
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
    fs.set_home(file, Home::Memory).expect("has a home");
    let content = data_of(1, 200_000);
    fs.write(file, 0, &content, WriteOptions::default()).expect("written");
    fs.unmount().expect("unmounts");
    (device, content, file)
}

#[test]
fn units_with_extents_have_map_pieces_of_their_own() {
    let (device, ..) = made();
    let drive = Drive::new(device);
    let options = options(false);
    assert!(check(&drive, &options, &mut |_| {}).expect("checks").is_consistent());
    let superblock = tandemfs_fs::read_superblock(&drive).expect("there");
    let (pair, geometry) = (PairSeed::new(superblock.pair), superblock.geometry);
    let mut pieces = 0;
    for unit in 0..geometry.memory_units() {
        let mut piece = vec![0; LINE_BYTES + PIECE_BYTES];
        drive.load(Structure::AllocationMap, geometry.piece(unit), &mut piece).expect("loads");
        let (head, bits) = piece.split_at(LINE_BYTES);
        if head != encode(pair, PieceKind::Extents, unit, superblock.generation, bits) {
            continue;
        }
        pieces += 1;
        let head = encode(pair, PieceKind::Data, unit, superblock.generation, bits);
        drop(drive.persist(Structure::AllocationMap, geometry.piece(unit), &head).expect("stores"));
        assert_eq!(findings(&check(&drive, &options, &mut |_| {}).expect("checks")), [MapKind { piece: unit }]);
    }
    assert_eq!(pieces, 1);
}

#[test]
fn a_dump_says_where_a_block_lies() {
    let (device, _, file) = made();
    let mut text = Vec::new();
    Dump::open(&Drive::new(device)).expect("opens").inode(file.get(), &mut text).expect("dumps");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("block 0: 16 pages from line 0x"), "{text}");
}
