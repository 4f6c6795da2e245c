//! Blocks that lie in the memory zone: each way to be wrong has its finding, a repair keeps what verifies, and a copy takes them out.

mod support;

use std::sync::Arc;

use support::restored::restored;
use support::*;
use tandemfs_check::Finding::{self, *};
use tandemfs_check::{Damage, Dump, RestoreOptions, Target, check};
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, encode};
use tandemfs_format::geometry::{Geometry, RING_BYTES_MIN};
use tandemfs_format::inode::{file_type, flags, state};
use tandemfs_format::mapping::{BlockChecksum, Extent, LeafPointer, Record, RecordBytes, SlotClass, leaf_line, vector_lines};
use tandemfs_format::run::Run;
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
    let extent = Extent { at: DataAddress::Page(LineAddress::new(line)), count: count as u32, checksum, unwritten: false, overlaid: false };
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

/// An image where block 2 of [`TREE`] has a log of 50 B at 100 and the checksum of its page with the log over it; `is_copied`: as much of the
/// log as is in the page already.
fn overlaid(is_copied: usize) -> Image {
    let mut image = homes();
    let log = image.log(DATA + 640, 100, 50, SlotClass::Line);
    let leaf = LEAVES + 40;
    let entries = [Some(log), None, None, None];
    image.put(leaf, leaf_line(&entries, &image.place(TREE, leaf)));
    image.edit_inode(TREE, |inode| inode.space_512 += 1);
    let of_log = data_of(DATA + 640, 50);
    let mut page = data_of(PAGES, SECTOR_BYTES);
    page[100..150].copy_from_slice(&of_log);
    image.memory[PAGES as usize * LINE_BYTES + 100..][..is_copied].copy_from_slice(&of_log[..is_copied]);
    let checksum = BlockChecksum::Inline(image.pair().data(&page));
    let extent = Extent { at: DataAddress::Page(LineAddress::new(PAGES)), count: 1, checksum, unwritten: false, overlaid: true };
    let leaf = Some(LeafPointer { address: LineAddress::new(leaf), class: 0 });
    image.put_record(TREE, TREE_PAGE, 2, Record::Block { extent: Some(extent), leaf });
    image
}

fn copies_in_order() {
    for is_copied in [0, 20, 50] {
        assert_eq!(overlaid(is_copied).findings(), [], "{is_copied} B are copied");
    }
}

/// Of whatever was copied when a crash came, the page and the log make what the checksum is of; damage beside the log is found, and a copy of the
/// file has the page's bytes as good ones.
#[test]
fn pages_whose_logs_are_being_copied_verify_with_them() {
    copies_in_order();
    let mut text = Vec::new();
    Dump::open(&Drive::new(overlaid(20).device())).expect("opens").inode(TREE, &mut text).expect("dumps");
    assert!(String::from_utf8(text).expect("text").contains("with the data logs over them"));
    let (restored, _) = restored(overlaid(20).device(), &RestoreOptions::default());
    assert_eq!(restored.damaged, []);
    let mut image = overlaid(20);
    image.memory[PAGES as usize * LINE_BYTES + 99] ^= 1;
    assert_eq!(image.findings(), [DataDamaged { inode: TREE, offset: 2 * BLOCK, sectors: 1 }]);
    let mut image = overlaid(20);
    image.memory[PAGES as usize * LINE_BYTES + 130] ^= 1;
    assert_eq!(image.findings(), [], "what the log covers is the log's");
}

/// A sector that cannot be read is what is wrong, and not the pages of another file that are read in the same batch.
fn pages_beside_a_bad_sector() {
    let device = overlaid(0).device();
    device.faults.lock().expect("lock").bad_sector = Some(2);
    assert_eq!(findings(&report(&device, false)), [DataUnreadable { inode: FILE, offset: 4096, bytes: 4096 }]);
}

#[test]
fn regression_a_bad_sector_made_overlaid_pages_of_another_file_damaged() {
    pages_beside_a_bad_sector();
}

/// What cannot be read hides nothing beside it.
fn damage_beside_what_cannot_be_read() {
    let mut image = Image::crashed();
    image.blocks[17 * SECTOR_BYTES] ^= 1;
    image.blocks[20 * SECTOR_BYTES] ^= 1;
    let device = image.device();
    device.faults.lock().expect("lock").bad_sector = Some(18);
    let damaged = |page: u64| DataDamaged { inode: TREE, offset: page * 4096, sectors: 1 };
    let unreadable = |page: u64| DataUnreadable { inode: TREE, offset: page * 4096, bytes: 4096 };
    assert_eq!(findings(&report(&device, false)), [damaged(1), unreadable(2), damaged(4)]);

    let mut image = runs();
    image.memory[(RUN_PAGES + 64) as usize * LINE_BYTES] ^= 1;
    let device = image.device();
    let line = (RUN_PAGES + 2 * 64 + 5) * LINE_BYTES as u64;
    device.faults.lock().expect("lock").bad_memory = Some(line..line + 64);
    let found = findings(&report(&device, false));
    let page = RUN_BLOCK * 16;
    assert_eq!(found, [damaged(page + 1), unreadable(page + 2)]);
}

#[test]
fn regression_a_bad_sector_hid_damage_beside_it() {
    damage_beside_what_cannot_be_read();
}

#[test]
fn a_check_that_fails_beside_what_cannot_be_read_is_caught() {
    use tandemfs_check::mutant::Mutant;
    assert_caught(&[(pages_beside_a_bad_sector, Mutant::LogsNotLaidAgain), (damage_beside_what_cannot_be_read, Mutant::ExtentsReadWhole)]);
}

#[test]
fn pages_verified_without_their_logs() {
    support::assert_caught(&[(copies_in_order, tandemfs_check::mutant::Mutant::OverlaidCheckedBare)]);
}

/// A log in a unit of extents: whoever comes second is wrong, and a repair moves it.
#[test]
fn a_log_in_a_unit_of_extents_is_found() {
    let mut image = homes();
    let log = image.log(PAGES + 640, 0, 50, SlotClass::Line);
    image.put_record(TREE, TREE_PAGE, 3, Record::SingleLog(log));
    assert_eq!(image.findings(), [UnitMixed { inode: TREE, block: 3, target: Target::Slot, unit: 6 }]);
    let (_, after, lost) = after_repair(&image);
    let Record::SingleLog(moved) = after.record(TREE_PAGE, 3) else { panic!("a log") };
    assert_eq!((lost, moved.address.unit(), moved.crc), (vec![], 5, log.crc));
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
    assert!(text.contains("block 0: run of 3 blocks, pages from line 0x"), "{text}");
}

/// Where runs are planted: their first block, first page, first checksum line, and number of blocks.
const RUN_BLOCK: u64 = 100;
const RUN_PAGES: u64 = PAGES + 64;
const RUN_LINES: u64 = LEAVES + 32;
const RUN_BLOCKS: u64 = 3;

/// An image where blocks 100 to 102 of [`TREE`] are a run.
fn runs() -> Image {
    let mut image = homes();
    image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
    for page in 0..RUN_BLOCKS * 16 {
        let line = RUN_PAGES + page * 64;
        let data = data_of(line, SECTOR_BYTES);
        let checksum = image.pair().data(&data).to_le_bytes();
        image.memory[line as usize * LINE_BYTES..][..SECTOR_BYTES].copy_from_slice(&data);
        image.memory[RUN_LINES as usize * LINE_BYTES + page as usize * 4..][..4].copy_from_slice(&checksum);
    }
    put_run(&mut image, RUN_BLOCK, |_| {});
    image.edit_inode(TREE, |inode| {
        inode.size = (RUN_BLOCK + RUN_BLOCKS) * BLOCK;
        inode.space_512 += RUN_BLOCKS * 128;
    });
    image
}

/// Plants the record of the run at a block, changed.
fn put_run(image: &mut Image, block: u64, change: impl FnOnce(&mut Run)) {
    let mut run =
        Run { first: LineAddress::new(RUN_PAGES), blocks: RUN_BLOCKS as u32, vector: Some(LineAddress::new(RUN_LINES)), open: false };
    change(&mut run);
    image.put_record(TREE, TREE_PAGE, block, Record::Run(run));
}

#[test]
fn a_run_is_in_order_and_dumped() {
    let image = runs();
    assert_eq!(image.findings(), []);
    let mut text = Vec::new();
    Dump::open(&Drive::new(image.device())).expect("opens").inode(TREE, &mut text).expect("dumps");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("block 100: run of 3 blocks, pages from line 0x"), "{text}");
}

#[test]
fn each_way_in_which_a_run_can_be_wrong_is_found_and_repaired() {
    type Case = (&'static str, fn(&mut Image), Finding, Vec<(u64, u64)>);
    let misplaced = RunMisplaced { inode: TREE, block: RUN_BLOCK, count: 3 };
    let block = |number: u64| (number * BLOCK, BLOCK);
    let all = vec![block(100), block(101), block(102)];
    #[rustfmt::skip]
    let cases: [Case; 11] = [
        ("one that is too long", |image| put_run(image, RUN_BLOCK, |run| run.blocks = 33),
            RunMisplaced { inode: TREE, block: RUN_BLOCK, count: 33 }, all.clone()),
        ("across the end of its page of records", |image| {
            image.put_record(TREE, TREE_PAGE, RUN_BLOCK, Record::HOLE);
            put_run(image, 190, |_| {});
            image.edit_inode(TREE, |inode| inode.size = 192 * BLOCK);
        }, RunMisplaced { inode: TREE, block: 190, count: 3 }, vec![block(190), block(191)]),
        ("across the end of a unit", |image| put_run(image, RUN_BLOCK, |run| run.first = LineAddress::new(PAGES + 470 * 64)),
            misplaced.clone(), all.clone()),
        ("checksum lines outside the zone", |image| put_run(image, RUN_BLOCK, |run| run.vector = Some(LineAddress::new(1 << 38))),
            misplaced, all.clone()),
        ("checksum lines of another region", |image| put_run(image, RUN_BLOCK, |run| run.vector = Some(LineAddress::new(DATA + 640))),
            PointerMisplaced { inode: TREE, block: 101, target: Target::Vector, line: DATA + 641 }, all.clone()),
        ("checksum lines of another block", |image| put_run(image, RUN_BLOCK, |run| run.vector = Some(LineAddress::new(TREE_VECTOR))),
            LinesShared { inode: TREE, block: 100, target: Target::Vector, line: TREE_VECTOR }, vec![]),
        ("without checksums", |image| put_run(image, RUN_BLOCK, |run| run.vector = None),
            ChecksumKindWrong { inode: TREE, block: 101 }, all.clone()),
        ("pages of another block", |image| put_run(image, RUN_BLOCK, |run| run.first = LineAddress::new(PAGES)),
            LinesShared { inode: TREE, block: 100, target: Target::Pages, line: PAGES }, vec![]),
        ("a record within it", |image| {
            let log = image.log(DATA + 640, 0, 50, SlotClass::Line);
            image.put_record(TREE, TREE_PAGE, 101, Record::SingleLog(log));
            image.edit_inode(TREE, |inode| inode.space_512 -= 127);
        }, RunOverlapped { inode: TREE, block: RUN_BLOCK, overlapped: 101 }, vec![]),
        ("damaged data", |image| image.memory[(RUN_PAGES + 20 * 64) as usize * LINE_BYTES] ^= 1,
            DataDamaged { inode: TREE, offset: RUN_BLOCK * BLOCK + 20 * 4096, sectors: 1 }, vec![(RUN_BLOCK * BLOCK + 20 * 4096, 4096)]),
        ("behind the end", |image| image.edit_inode(TREE, |inode| inode.size = 101 * BLOCK),
            BlockPastEnd { inode: TREE, block: 101 }, vec![]),
    ];
    for (what, plant, finding, lost) in cases {
        let mut image = runs();
        plant(&mut image);
        assert!(image.findings().contains(&finding), "{what}: {:?}", image.findings());
        let (mended, found_lost, left) = repaired(&image);
        assert!(mended.contains(&finding), "{what}: {mended:?}");
        assert_eq!(left, [], "{what}");
        if !lost.is_empty() {
            assert_eq!(found_lost, lost, "{what}");
        }
    }
}

/// Makes block 2 of [`TREE`] open pages, and blocks 100 to 102 an open run.
fn open(image: &mut Image) {
    let Record::Block { extent: Some(extent), .. } = image.record(TREE_PAGE, 2) else { panic!("a block") };
    let checksum = BlockChecksum::Open(None);
    image.put_record(TREE, TREE_PAGE, 2, Record::Block { extent: Some(Extent { checksum, ..extent }), leaf: None });
    put_run(image, RUN_BLOCK, |run| run.open = true);
}

#[test]
fn open_pages_are_counted_and_dumped_and_not_verified() {
    let mut image = runs();
    open(&mut image);
    for line in [PAGES, RUN_PAGES, RUN_PAGES + 40 * 64, RUN_LINES] {
        image.memory[line as usize * LINE_BYTES + 20] ^= 0x5a;
    }
    assert_eq!(image.findings(), []);
    assert_eq!(report(&image.device(), false).counts.open_pages, 1 + RUN_BLOCKS * 16);
    let mut text = Vec::new();
    Dump::open(&Drive::new(image.device())).expect("opens").inode(TREE, &mut text).expect("dumps");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("block 2: 1 pages from line") && text.contains(", open\n"), "{text}");
    assert!(text.contains("block 100: run of 3 blocks") && text.contains(", open\n"), "{text}");
    let (restored, tree) = restored(image.device(), &RestoreOptions::default());
    assert_eq!(restored.damaged, []);
    assert_eq!(tree["/tree"].content.len() as u64, (RUN_BLOCK + RUN_BLOCKS) * BLOCK);
}

/// An end within the last page but one of the run.
const OPEN_END: u64 = (RUN_BLOCK + RUN_BLOCKS) * BLOCK - 5000;

fn open_end_not_zero() -> Finding {
    OpenEndNotZero { inode: TREE, block: RUN_BLOCK + RUN_BLOCKS - 1, offset: OPEN_END }
}

/// Behind the end of a file, open pages hold zeros, unless its inode says that they may hold anything.
fn bytes_behind_an_open_end() {
    let mut image = runs();
    open(&mut image);
    image.edit_inode(TREE, |inode| inode.size = OPEN_END);
    assert_eq!(image.findings(), [open_end_not_zero()]);
    let mut marked = image.clone();
    marked.edit_inode(TREE, |inode| inode.state |= state::TAIL_STALE);
    assert_eq!(marked.findings(), []);
    let end = (RUN_PAGES + RUN_BLOCKS * 16 * 64) as usize * LINE_BYTES;
    image.memory[end - 5000..end].fill(0);
    assert_eq!(image.findings(), []);
    for at in [end - 5000, end - 1] {
        image.memory[at] = 1;
        assert_eq!(image.findings(), [open_end_not_zero()]);
        image.memory[at] = 0;
    }
}

/// A repair changes the inode, and no byte of the pages.
#[test]
fn an_open_end_is_found_and_marked() {
    bytes_behind_an_open_end();
    let mut image = runs();
    open(&mut image);
    image.edit_inode(TREE, |inode| inode.size = OPEN_END);
    let device = image.device();
    assert!(report(&device, true).is_consistent());
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    assert_eq!(after.inode(TREE).state, state::IN_USE | state::TAIL_STALE);
    let pages = RUN_PAGES as usize * LINE_BYTES..(RUN_PAGES + RUN_BLOCKS * 16 * 64) as usize * LINE_BYTES;
    assert!(after.memory[pages.clone()] == image.memory[pages]);
}

#[test]
fn an_open_end_that_is_not_read() {
    support::assert_caught(&[(bytes_behind_an_open_end, tandemfs_check::mutant::Mutant::OpenEndUnread)]);
}

#[test]
fn each_way_in_which_open_pages_can_be_wrong_is_found_and_repaired() {
    type Case = (&'static str, fn(&mut Image), Finding);
    let damage = Damage::Field { field: "flags", found: 1 };
    #[rustfmt::skip]
    let cases: [Case; 5] = [
        ("bytes behind the end", |image| image.edit_inode(TREE, |inode| inode.size = OPEN_END), open_end_not_zero()),
        ("sectors", |image| {
            let mut bytes = image.record(TREE_PAGE, 0).encode().to_bytes();
            bytes[18] = 1;
            image.put_record_bytes(TREE, TREE_PAGE, 0, RecordBytes::from_bytes(bytes));
        }, MappingDamaged { inode: TREE, line: TREE_PAGE, damage }),
        ("pages of another block", |image| {
            put_run(image, RUN_BLOCK, |run| (run.first, run.open) = (LineAddress::new(PAGES), true));
        }, LinesShared { inode: TREE, block: 100, target: Target::Pages, line: PAGES }),
        ("the checksum lines of another block", |image| {
            put_run(image, RUN_BLOCK, |run| (run.vector, run.open) = (Some(LineAddress::new(TREE_VECTOR)), true));
        }, LinesShared { inode: TREE, block: 100, target: Target::Vector, line: TREE_VECTOR }),
        ("without the feature", |image| image.edit_superblock(|superblock| superblock.incompat = 0),
            RecordKind { inode: TREE, block: 2, line: TREE_PAGE }),
    ];
    for (what, plant, finding) in cases {
        let mut image = runs();
        open(&mut image);
        plant(&mut image);
        assert!(image.findings().contains(&finding), "{what}: {:?}", image.findings());
        let (mended, _, left) = repaired(&image);
        assert!(mended.contains(&finding), "{what}: {mended:?}");
        assert_eq!(left, [], "{what}");
    }
}

#[test]
fn a_run_without_the_feature_is_found() {
    let mut image = runs();
    image.edit_superblock(|superblock| superblock.incompat = 0);
    let finding = RecordKind { inode: TREE, block: RUN_BLOCK, line: TREE_PAGE + RUN_BLOCK / 3 };
    assert!(image.findings().contains(&finding), "{:?}", image.findings());
    assert_eq!(repaired(&image).2, []);
}

#[test]
fn a_run_is_restored_and_what_it_no_longer_says_is_listed() {
    let content: Vec<u8> = (0..RUN_BLOCKS * 16).flat_map(|page| data_of(RUN_PAGES + page * 64, SECTOR_BYTES)).collect();
    let (report, tree) = restored(runs().device(), &RestoreOptions::default());
    assert_eq!(report.damaged, []);
    assert!(tree["/tree"].content[(RUN_BLOCK * BLOCK) as usize..] == content);
    for wrong in [
        |image: &mut Image| put_run(image, RUN_BLOCK, |run| run.blocks = 33),
        |image: &mut Image| image.memory[(TREE_PAGE + RUN_BLOCK / 3) as usize * LINE_BYTES + 40] ^= 0x5a,
    ] {
        let mut image = runs();
        wrong(&mut image);
        let (report, tree) = restored(image.device(), &RestoreOptions::default());
        let is_listed =
            report.damaged.iter().any(|range| range.inode == TREE && range.offset <= RUN_BLOCK * BLOCK && range.bytes >= 3 * BLOCK);
        assert!(is_listed, "what was in the run is missing: {:?}", report.damaged);
        assert!(tree["/tree"].content.iter().skip((RUN_BLOCK * BLOCK) as usize).all(|byte| *byte == 0), "nothing else is taken for it");
    }
}

/// A damaged line takes the run that it may have named with it: what is behind it does not read as a hole.
#[test]
fn a_damaged_line_with_the_record_of_a_run_loses_all_of_its_blocks() {
    let mut image = runs();
    image.memory[(TREE_PAGE + RUN_BLOCK / 3) as usize * LINE_BYTES + 40] ^= 0x5a; // more than one bit, which would be corrected
    let (_, lost, left) = repaired(&image);
    assert_eq!(left, []);
    let all = [(99 * BLOCK, 4 * BLOCK)]; // the three records of the line, and the hole behind it
    let total: u64 = lost.iter().map(|(_, bytes)| bytes).sum();
    assert!(all[0].1 == total && lost.iter().all(|(offset, _)| *offset >= all[0].0), "{lost:?}");
}

/// A damaged line within a run had only holes: it is made anew and nothing is lost.
#[test]
fn a_damaged_line_within_a_run_loses_nothing() {
    let mut image = runs();
    image.edit_inode(TREE, |inode| inode.size = (RUN_BLOCK + 8) * BLOCK);
    put_run(&mut image, 96, |run| (run.blocks, run.first) = (8, LineAddress::new(RUN_PAGES)));
    image.put_record(TREE, TREE_PAGE, RUN_BLOCK, Record::HOLE);
    for page in 0..8 * 16 {
        let line = RUN_PAGES + page * 64;
        let data = data_of(line, SECTOR_BYTES);
        let checksum = image.pair().data(&data).to_le_bytes();
        image.memory[line as usize * LINE_BYTES..][..SECTOR_BYTES].copy_from_slice(&data);
        image.memory[RUN_LINES as usize * LINE_BYTES + page as usize * 4..][..4].copy_from_slice(&checksum);
    }
    image.edit_inode(TREE, |inode| inode.space_512 += 5 * 128);
    assert_eq!(image.findings(), []);
    image.memory[(TREE_PAGE + 33) as usize * LINE_BYTES + 40] ^= 0x5a; // blocks 99 to 101
    let (mended, lost, left) = repaired(&image);
    assert_eq!((mended.len(), lost, left), (1, vec![], vec![]));
}

/// An older pointer to the checksum lines of a run leaves the run as it is.
#[test]
fn regression_an_older_pointer_took_the_checksums_of_a_run() {
    let mut image = runs();
    image.edit_extent(FILE, |extent| extent.checksum = BlockChecksum::Vector(LineAddress::new(RUN_LINES)));
    let (_, after, lost) = after_repair(&image);
    assert_eq!((lost, after.line(TREE_PAGE + RUN_BLOCK / 3)), (vec![FILE], image.line(TREE_PAGE + RUN_BLOCK / 3)));

    // Blocks of one page: sixteen have their checksums in a line of the run.
    let (one, other, pages, line) = (30, 31, MAPPINGS + 64, LEAVES + 60);
    let mut image = runs();
    for number in [FILE, TREE, SMALL] {
        image.remove_inode(number);
    }
    image.edit_superblock(|superblock| {
        superblock.geometry = Geometry::new(ZONE_BYTES as u64, ZONE_BYTES as u64, 4096, 4, RING_BYTES_MIN).expect("fits");
    });
    for (index, number) in [one, other].into_iter().enumerate() {
        let page = pages + index as u64 * 64;
        image.add_empty(number, file_type::REGULAR | 0o644, 1);
        image.put_name(ROOT, ROOT_PAGE, 20 + index as u64, format!("file {index}").as_bytes(), number);
        let root = Record::Pointer { page: LineAddress::new(page), height: 1 }.encode().to_bytes();
        image.edit_inode(number, |inode| (inode.size, inode.space_512, inode.root) = (16 * 4096, 16 * 8, root));
        let first = LineAddress::new(RUN_PAGES + index as u64 * 16 * 64);
        let run = Run { first, blocks: 16, vector: Some(LineAddress::new(line)), open: false };
        image.put_record(number, page, 0, Record::Run(run));
    }
    for page in 0..32 {
        let at = RUN_PAGES + page * 64;
        image.memory[at as usize * LINE_BYTES..][..SECTOR_BYTES].copy_from_slice(&data_of(page, SECTOR_BYTES));
    }
    let checksums: Vec<u32> = (16..32).map(|page| image.pair().data(&data_of(page, SECTOR_BYTES))).collect();
    image.put(line, vector_lines(&checksums, 1)[0]);
    let (mended, after, lost) = after_repair(&image);
    let first = mended.iter().find(|finding| matches!(finding, LinesShared { .. }));
    assert_eq!(first, Some(&LinesShared { inode: one, block: 0, target: Target::Vector, line }));
    assert!(!lost.contains(&other) && after.line(pages + 64) == image.line(pages + 64), "{lost:?}");

    // Both runs fit: the second gets records of its blocks, with the checksums in them.
    for page in 16..32 {
        let (from, to) = ((RUN_PAGES + (page - 16) * 64) as usize * LINE_BYTES, (RUN_PAGES + page * 64) as usize * LINE_BYTES);
        image.memory.copy_within(from..from + SECTOR_BYTES, to);
    }
    let checksums: Vec<u32> = (0..16).map(|page| image.pair().data(&data_of(page, SECTOR_BYTES))).collect();
    image.put(line, vector_lines(&checksums, 1)[0]);
    let (_, after, lost) = after_repair(&image);
    assert!(!lost.contains(&one) && !lost.contains(&other), "{lost:?}");
    assert_eq!(after.line(pages), image.line(pages));
    let Record::Block { extent: Some(extent), leaf: None } = after.record(pages + 64, 15) else { panic!("a block") };
    assert_eq!(extent.checksum, BlockChecksum::Inline(checksums[15]));
}

/// What was repaired, the image after it, and the inodes that lost something. Nothing is left.
fn after_repair(image: &Image) -> (Vec<Finding>, Image, Vec<u64>) {
    let device = image.device();
    let report = report(&device, true);
    assert!(report.is_consistent(), "{:?}", report.findings);
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    (report.repaired.into_iter().map(|located| located.finding).collect(), after, report.lost.iter().map(|lost| lost.inode).collect())
}
