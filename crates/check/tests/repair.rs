//! Repair ends with a clean image, keeps what verifies, and an interruption anywhere never makes the image worse.

mod support;

use support::*;
use tandemfs_check::Finding::*;
use tandemfs_check::{CheckError, Finding, Target, check};
use tandemfs_device::Drive;
use tandemfs_format::attributes::Namespace;
use tandemfs_format::inode::{file_type, state};
use tandemfs_format::mapping::{BlockChecksum, Extent, LeafPointer, LogEntry, Record, SlotClass, leaf_line, line_entries};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{Superblock, incompat, ro_compat};
use tandemfs_format::{DataAddress, EMPTY_LINE, InodeNumber, LineAddress};

/// Repairs an image; what was repaired, what is left, and the image's own opinion afterwards.
fn repaired(image: &Image) -> (Vec<Finding>, Vec<Finding>) {
    let device = image.device();
    let report = report(&device, true);
    let left = findings(&report);
    assert_eq!(findings(&support::report(&device, false)), left, "a second check sees what repair said is left");
    (report.repaired.into_iter().map(|located| located.finding).collect(), left)
}

macro_rules! mends {
    ($( $name:ident($image:ident: $base:ident) $plant:block => $repaired:pat, left [$($left:expr),*]; )*) => { $(
        #[test]
        fn $name() {
            let mut $image = Image::$base();
            $plant
            let (repaired, left) = self::repaired(&$image);
            assert!(matches!(repaired.as_slice(), $repaired), "{repaired:?}");
            assert_eq!(left, [$($left),*] as [Finding; 0 $(+ { let _ = &$left; 1 })*]);
        }
    )* };
}

mends! {
    superblock_copy(image: small) { image.memory[7] ^= 1; } => [SuperblockDamaged { copy: 0 }], left [];
    superblock_copies_of_two_times(image: small) {
        let older = Superblock { sequence: 9, watermark: 50, ..image.superblock.clone() };
        image.write_superblock_copy(0, &older);
    } => [SuperblocksDiffer { .. }], left [];
    identity_that_data_prove(image: small) { image.blocks[..64].fill(0); } => [IdentityDamaged {}], left [];
    record_on_a_clean_image(image: small) {
        let mut inode = image.inode(FILE);
        inode.uid = 7;
        let old = image.clone();
        image.set_inode(FILE, &inode);
        let changed = image.line(Image::inode_line(FILE) + 1);
        image = old;
        image.put_journal(3, 0, 101, &[(Image::inode_line(FILE) + 1, changed)]);
    } => [RecordAfterCleanUnmount { .. }], left [];
    orphan_on_a_clean_image(image: small) {
        image.add_empty(9, file_type::REGULAR, 0);
    } => [OrphanLeft { inode: 9 }, MapWrong { piece: 1, .. }], left [];
    link_count(image: small) { image.edit_inode(FILE, |inode| inode.nlink = 5); } => [LinkCount { inode: FILE, .. }], left [];
    space(image: small) { image.edit_inode(TREE, |inode| inode.space_512 = 0); } => [SpaceWrong { inode: TREE, .. }], left [];
    link_count_and_space_of_one_line(image: crashed) {
        image.edit_inode(FILE, |inode| (inode.nlink, inode.space_512) = (5, 5));
    } => [SpaceWrong { inode: FILE, .. }, LinkCount { inode: FILE, .. }], left [];
    damaged_attributes(image: attributed) {
        image.damage(ATTRIBUTES);
    } => [AttributesDamaged { inode: FILE, .. }, SpaceWrong { inode: FILE, found: 42, expected: 26 }], left [];
    damaged_attribute_value(image: attributed) {
        image.damage(ATTRIBUTES + 128);
    } => [AttributesDamaged { inode: FILE, .. }, SpaceWrong { inode: FILE, .. }], left [];
    attributes_of_two_files(image: attributed) {
        let pointer = image.inode(FILE).attributes;
        image.edit_inode(SMALL, |inode| inode.attributes = pointer);
    } => [AttributesShared { inode: SMALL, .. }], left [];
    attributes_out_of_their_region(image: attributed) {
        image.edit_inode(SMALL, |inode| inode.attributes.address = tandemfs_format::LineAddress::new(TREE_PAGE));
    } => [AttributesMisplaced { inode: SMALL, .. }], left [];
    parent(image: crashed) {
        image.edit_inode(DIRECTORY, |inode| inode.parent = InodeNumber::new(7));
    } => [ParentWrong { .. }], left [];
    entry_type_and_hash(image: crashed) {
        image.edit_head(ROOT, ROOT_PAGE + 9, |head| (head.file_type, head.hash) = (8, 5.into()));
    } => [EntryHash { .. }, EntryType { .. }], left [];
    dangling_name(image: small) { image.remove_inode(NULL); } => [EntryDangling { slot: 9, .. }, MapWrong { piece: 1, .. }], left [];
    dangling_name_of_two_slots(image: crashed) { image.remove_inode(LINK); } => [EntryDangling { slot: 2, .. }], left [];
    damaged_name(image: crashed) { image.damage(ROOT_PAGE + 4); } => [EntryDamaged { slot: 4, .. }, Unreachable { inode: TREE }], left [];
    name_without_its_end(image: crashed) {
        image.damage(ROOT_PAGE + 3);
    } => [EntryDamaged { slot: 2, .. }, Unreachable { inode: LINK }], left [];
    name_without_its_start(image: crashed) {
        image.damage(ROOT_PAGE + 2);
    } => [EntryDamaged { slot: 2, .. }, EntryPartStray { slot: 3, .. }, Unreachable { inode: LINK }], left [];
    one_of_two_damaged_names(image: crashed) {
        image.damage(ROOT_PAGE + 5);
    } => [EntryDamaged { slot: 5, .. }, LinkCount { inode: FILE, found: 2, expected: 1 }], left [];
    map(image: small) { image.write_piece(5, tandemfs_format::allocation_map::PieceKind::Data, &[0; 4096]); } => [MapWrong { .. }], left [];
}

#[test]
fn a_block_half_that_proves_nothing_is_not_claimed() {
    let mut image = Image::small();
    image.blocks.fill(0x11);
    let (repaired, left) = repaired(&image);
    assert!(repaired.is_empty());
    assert!(left.contains(&IdentityDamaged {}));
}

#[test]
fn inodes_out_of_sight_do_not_cost_their_names() {
    let mut image = Image::crashed();
    let line = image.superblock.geometry.segment_line(0).number();
    image.damage(line);
    let device = image.device();
    let before = device.bytes();
    assert!(!report(&device, true).is_consistent());
    assert!(device.bytes() == before);
}

#[test]
fn repair_replays_the_journal_first() {
    let mut image = Image::crashed();
    let old = image.clone();
    image.edit_inode(FILE, |inode| (inode.uid, inode.nlink) = (7, 9));
    let line = Image::inode_line(FILE);
    let (hot, cold) = (image.line(line), image.line(line + 1));
    image = old;
    image.put_journal(2, 0, 150, &[(line, hot), (line + 1, cold)]);
    let device = image.device();
    let report = report(&device, true);
    assert!(report.is_consistent());
    assert_eq!(report.repaired[0].finding, LinkCount { inode: FILE, found: 9, expected: 2 });
    (image.memory, image.blocks) = device.bytes();
    assert_eq!((image.inode(FILE).uid, image.inode(FILE).nlink), (7, 2));
    let superblock = Superblock::decode(&image.memory).expect("verifies");
    assert_eq!((superblock.generation, superblock.watermark, superblock.clean), (4, 151, false));
}

#[test]
fn repair_refuses_features_that_it_cannot_write() {
    let mut image = Image::small();
    image.edit_superblock(|superblock| superblock.ro_compat = 1 << 40);
    assert!(report(&image.device(), false).is_consistent());
    let refused = check(&Drive::new(image.device()), &options(true), &mut |_| {});
    assert!(matches!(refused, Err(CheckError::ReadOnlyFeatures { unknown: 0x100_0000_0000, .. })));
}

#[test]
fn halves_that_do_not_belong_together_are_refused() {
    let mut image = Image::small();
    let other = Superblock { pair: uuid::Uuid::from_u128(9), ..image.superblock.clone() };
    let identity = tandemfs_format::identity::BlockIdentity::of(&other);
    image.blocks[..64].copy_from_slice(zerocopy::IntoBytes::as_bytes(&identity));
    let refused = check(&Drive::new(image.device()), &options(true), &mut |_| {});
    assert!(matches!(refused, Err(CheckError::PairMismatch { .. })));

    let image = Image::small();
    let truncated = MemoryDevice::new(image.memory.clone(), image.blocks[..ZONE_BYTES / 2].to_vec());
    let refused = check(&Drive::new(truncated), &options(true), &mut |_| {});
    assert!(matches!(refused, Err(CheckError::Truncated { zone: "block", .. })));

    let nothing = MemoryDevice::new(vec![0; 4096], vec![0; 4096]);
    assert!(matches!(check(&Drive::new(nothing), &options(true), &mut |_| {}), Err(CheckError::Superblock { .. })));
}

/// A bit of everything that repair mends, on an image that needs replay.
fn much_to_do() -> Image {
    let mut image = Image::small();
    image.remove_inode(LINK);
    image.edit_inode(FILE, |inode| (inode.nlink, inode.space_512) = (5, 5));
    image.edit_inode(DIRECTORY, |inode| inode.parent = InodeNumber::new(7));
    image.edit_head(ROOT, ROOT_PAGE + 9, |head| head.file_type = 8);
    let old = image.clone();
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 7, b"third", FILE);
    let (name, empty) = (image.line(DIRECTORY_PAGE + 7), EMPTY_LINE);
    image = old;
    image.edit_superblock(|superblock| superblock.clean = false);
    let bytes = image.put_journal(0, 0, 101, &[(DIRECTORY_PAGE + 7, name), (DIRECTORY_PAGE + 8, name)]);
    image.put_journal(0, bytes, 102, &[(DIRECTORY_PAGE + 8, empty)]);
    image.memory[64 << 10] ^= 1;
    image.blocks[8] ^= 1;
    image
}

#[test]
fn a_repair_cut_anywhere_is_never_worse_and_can_go_on() {
    let image = much_to_do();
    let before = image.findings();
    assert_eq!(before.len(), 6, "{before:?}");
    let device = image.device();
    assert!(report(&device, true).is_consistent());
    let writes = device.faults.lock().expect("lock").writes;
    assert!(writes >= 15, "{writes}");
    for cut in 0..writes {
        let device = image.device();
        device.faults.lock().expect("lock").writes_left = Some(cut);
        let result = check(&Drive::new(device.clone()), &options(true), &mut |_| {});
        assert!(matches!(result, Err(CheckError::Device(_))), "cut {cut}");
        let (memory, blocks) = device.bytes();
        let device = MemoryDevice::new(memory, blocks);
        for finding in findings(&report(&device, false)) {
            let of_superblock = matches!(finding, SuperblockDamaged { .. } | SuperblocksDiffer { .. });
            assert!(of_superblock || before.contains(&finding), "cut {cut}: {finding}");
        }
        assert!(report(&device, true).is_consistent(), "cut {cut}");
        assert!(report(&device, false).is_consistent(), "cut {cut}");
    }
}

#[test]
fn a_superblock_with_extreme_fields_does_not_count() {
    let mut image = Image::crashed();
    image.edit_superblock(|superblock| superblock.sequence = u64::MAX);
    let refusal = check(&Drive::new(image.device()), &options(true), &mut |_| {}).expect_err("refused").to_string();
    assert!(refusal.contains("sequence is 18446744073709551615"), "{refusal}");

    let mut image = Image::small();
    image.memory[56..120].fill(0xff); // a label that is no text, under a checksum that fits: the other copy counts
    let crc = tandemfs_format::checksum::crc32c(&image.memory[4..1024]);
    image.memory[..4].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(repaired(&image), (vec![SuperblockDamaged { copy: 0 }], vec![]));
}

/// Bytes that do not match their checksums may still be of use to somebody, so a repair does not touch them unless it is told to.
#[test]
fn damaged_data_stay_unless_they_are_given_up() {
    let mut image = Image::attributed();
    image.put(DATA, [7; 64]);
    let device = image.device();
    let before = device.bytes();
    let report = report_with(&device, &tandemfs_check::CheckOptions { zero_data: false, ..options(true) });
    assert!(matches!(findings(&report).as_slice(), [LogDamaged { .. }]) && report.lost.is_empty(), "{:?}", report.findings);
    assert!(device.bytes() == before, "nothing is written");
    let given_up = support::report(&device, true);
    assert!(given_up.is_consistent() && given_up.lost.len() == 1, "{:?}", given_up.findings);
}

/// One line that cannot be read costs what was in it: a repair gave up the page with it.
fn one_unreadable_line() {
    // The second line of an inode without content, a line of a mapping, a name.
    for line in [Image::inode_line(SMALL) + 1, TREE_PAGE + 1, ROOT_PAGE + 9] {
        let image = Image::crashed();
        let device = image.device();
        device.faults.lock().expect("lock").bad_memory = Some(line * 64 + 8..line * 64 + 9);
        report(&device, true);
        device.faults.lock().expect("lock").bad_memory = None;
        let last = report(&device, true);
        assert!(last.is_consistent(), "{line:#x}: {:?}", last.findings);
        let mut after = image.clone();
        (after.memory, after.blocks) = device.bytes();
        let hit = |number: &u64| line / 2 == Image::inode_line(*number) / 2;
        for number in [ROOT, FILE, DIRECTORY, LINK, TREE, SMALL, LONG_LINK, NULL].into_iter().filter(|number| !hit(number)) {
            assert_eq!(after.inode(number).size, image.inode(number).size, "{line:#x}: inode {number}");
        }
        if line == TREE_PAGE + 1 {
            assert_eq!(after.line(TREE_PAGE), image.line(TREE_PAGE), "the blocks before it are there");
        }
        for slot in [0, 1, 2, 4, 5] {
            assert_eq!(after.line(ROOT_PAGE + slot), image.line(ROOT_PAGE + slot), "{line:#x}: slot {slot}");
        }
    }
}

#[test]
fn regression_an_unreadable_line_took_its_page_with_it() {
    one_unreadable_line();
}

/// What could not be read once, and can be now, is not given up.
#[test]
fn an_inode_that_can_be_read_again_stays() {
    for number in [SMALL, ROOT] {
        let image = Image::crashed();
        let device = image.device();
        let line = Image::inode_line(number);
        {
            // The scan of the inodes tries all of them at once, their page, and the line.
            let mut faults = device.faults.lock().expect("lock");
            (faults.bad_memory, faults.bad_loads) = (Some(line * 64..line * 64 + 1), Some(3));
        }
        let first = report(&device, true);
        assert!(first.lost.is_empty(), "{:?}", first.lost);
        assert!(report(&device, true).is_consistent());
        let mut after = image.clone();
        (after.memory, after.blocks) = device.bytes();
        assert_eq!(after.inode(number), image.inode(number));
    }
}

#[test]
fn a_repair_that_gives_up_pages_for_one_line_is_caught() {
    assert_caught(&[(one_unreadable_line, tandemfs_check::mutant::Mutant::PagesReadWhole)]);
}

/// An older line of an inode names what another has now: the other keeps it, although its number is higher.
fn older_pointers() {
    // A page of a mapping.
    let mut image = Image::crashed();
    image.edit_inode(FILE, |inode| {
        inode.root = Record::Pointer { page: LineAddress::new(TREE_PAGE), height: 1 }.encode().to_bytes();
    });
    assert_kept(&image, TREE, TREE_PAGE..TREE_PAGE + 64);

    // A page of names.
    let mut image = Image::crashed();
    let page = DENTRIES + 128;
    image.add_empty(9, file_type::DIRECTORY | 0o755, 2);
    image.put_name(ROOT, ROOT_PAGE, 10, b"other", 9);
    image.edit_inode(ROOT, |inode| inode.nlink += 1);
    let root = Record::Memory(LineAddress::new(page)).encode().to_bytes();
    image.edit_inode(9, |inode| (inode.size, inode.space_512, inode.root) = (4096, 8, root));
    image.add_empty(10, file_type::REGULAR | 0o644, 1);
    image.put_name(9, page, 0, b"name", 10);
    assert_eq!(image.findings(), []);
    image.edit_inode(DIRECTORY, |inode| inode.root = root);
    assert_kept(&image, 9, page..page + 64);

    // A leaf.
    let (mut image, line) = with_leaf();
    let leaf = Some(LeafPointer { address: LineAddress::new(line), class: 0 });
    image.edit_root(FILE, |record| match record {
        Record::Block { extent, .. } => Record::Block { extent, leaf },
        other => other,
    });
    assert_kept(&image, 9, line..line + 1);
}

/// The same of what does not say whose it is: slots of logs, checksum lines, and pages of the memory zone.
fn older_pointers_of_blocks() {
    let to_vector = |extent: &mut Extent, line| extent.checksum = BlockChecksum::Vector(LineAddress::new(line));

    // A slot.
    let mut image = Image::crashed();
    image.edit_leaf(|log| log.address = LineAddress::new(DATA + 8));
    let found = image.findings();
    assert!(matches!(found[..], [LinesShared { inode: FILE, target: Target::Slot, .. }]), "{found:?}");
    assert_kept(&image, SMALL, DATA + 8..DATA + 12);

    // A larger slot, over several that are another file's by now.
    let mut image = Image::crashed();
    image.edit_leaf(|log| (log.address, log.class) = (LineAddress::new(DATA), SlotClass::Kilobyte));
    assert_kept(&image, SMALL, DATA + 8..DATA + 12);
    assert_kept(&image, TREE, DATA + 2..DATA + 3);

    // Checksums.
    let mut image = Image::crashed();
    image.edit_extent(FILE, |extent| to_vector(extent, TREE_VECTOR));
    let found = image.findings();
    assert!(matches!(found[..], [LinesShared { inode: FILE, target: Target::Vector, .. }]), "{found:?}");
    assert_kept(&image, TREE, TREE_VECTOR..TREE_VECTOR + 1);

    // A leaf where checksums are now, and checksums where a leaf is now.
    let mut image = Image::crashed();
    image.edit_root(FILE, |record| match record {
        Record::Block { extent, .. } => {
            Record::Block { extent, leaf: Some(LeafPointer { address: LineAddress::new(TREE_VECTOR), class: 0 }) }
        }
        other => other,
    });
    assert_kept(&image, TREE, TREE_VECTOR..TREE_VECTOR + 1);
    let (mut image, leaf) = with_leaf();
    image.edit_extent(FILE, |extent| to_vector(extent, leaf));
    assert_kept(&image, 9, leaf..leaf + 1);

    // Space for checksums that was never used.
    let (mut image, leaf) = with_leaf();
    image.reserve(TREE_PAGE, 1, 60, 16, Some(leaf));
    image.edit_inode(TREE, |inode| inode.space_512 += 16 * 8);
    assert_kept(&image, 9, leaf..leaf + 1);

    // A page of the memory zone where slots are now: what is beside them in their unit is another use of it.
    let mut image = Image::crashed();
    image.edit_superblock(|superblock| superblock.incompat |= incompat::MEMORY_HOME);
    image.edit_extent(FILE, |extent| {
        (extent.at, extent.count, extent.checksum) = (DataAddress::Page(LineAddress::new(DATA)), 1, BlockChecksum::Inline(7));
    });
    assert_kept(&image, SMALL, DATA + 8..DATA + 12);
}

/// An image with an inode 9 of one log in a leaf at a line.
fn with_leaf() -> (Image, u64) {
    let (mut image, line) = (Image::crashed(), LEAVES + 10);
    let leaf = Some(LeafPointer { address: LineAddress::new(line), class: 0 });
    let log = image.log(DATA + 16, 0, 50, SlotClass::Line);
    image.add_empty(9, file_type::REGULAR | 0o644, 1);
    image.put_name(ROOT, ROOT_PAGE, 10, b"other", 9);
    let root = Record::Block { extent: None, leaf }.encode().to_bytes();
    image.edit_inode(9, |inode| (inode.size, inode.space_512, inode.root) = (50, 1, root));
    let entries = leaf_line(&[Some(log), None, None, None], &image.place(9, line));
    image.put(line, entries);
    assert_eq!(image.findings(), []);
    (image, line)
}

#[test]
fn regression_an_older_pointer_took_the_log_and_the_checksums_that_another_inode_has() {
    older_pointers_of_blocks();
}

/// The same of attributes: the set of a file with a higher number stays.
fn older_pointers_to_attributes() {
    for (first, count) in [(ATTRIBUTES, 1), (ATTRIBUTES, 4)] {
        let mut image = Image::crashed();
        image.add_attributes_region();
        let set = [near(Namespace::Security, b"label", &vec![b'l'; 50 * count as usize - 40])];
        image.put_attributes(FILE, first, &set);
        let pointer = image.inode(FILE).attributes;
        image.put_attributes(SMALL, first, &set);
        assert_eq!(image.inode(FILE).attributes, pointer);
        let found = image.findings();
        assert!(matches!(found[..], [AttributesDamaged { inode: FILE, .. }]), "{found:?}");
        assert_kept(&image, SMALL, first..first + count);
    }

    // Some of the lines that the older pointer names still verify.
    let mut image = Image::crashed();
    image.add_attributes_region();
    image.put_attributes(FILE, ATTRIBUTES, &[near(Namespace::Security, b"label", &[7; 150])]);
    image.put_attributes(SMALL, ATTRIBUTES + 2, &[near(Namespace::Security, b"label", b"a label")]);
    assert_kept(&image, SMALL, ATTRIBUTES + 2..ATTRIBUTES + 3);
}

#[test]
fn regression_an_older_pointer_took_the_attributes_of_another_inode() {
    older_pointers_to_attributes();
}

/// What several verify for, or nobody, is copied for all but the first: nobody loses bytes that are there.
fn claims_that_nothing_decides() {
    // A log of two blocks, and one of two files that neither has.
    let mut image = Image::crashed();
    image.put_record(TREE, TREE_PAGE, 4, image.record(TREE_PAGE, 3));
    image.edit_inode(TREE, |inode| (inode.size, inode.space_512) = (5 * BLOCK, inode.space_512 + 1));
    let (report, after) = repaired_image(&image);
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    assert_eq!(after.record(TREE_PAGE, 3), image.record(TREE_PAGE, 3));
    let Record::SingleLog(log) = after.record(TREE_PAGE, 4) else { panic!("one log") };
    assert_ne!(log.address, LineAddress::new(DATA + 2));
    let at = log.address.offset_bytes() as usize;
    assert_eq!(after.memory[at..at + 50], data_of(DATA + 2, 50));

    let mut image = Image::crashed();
    image.edit_leaf(|log| log.address = LineAddress::new(DATA + 8));
    image.damage(DATA + 8);
    let device = image.device();
    let report = report_with(&device, &tandemfs_check::CheckOptions { zero_data: false, ..options(true) });
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let found = findings(&report);
    assert!(matches!(found[..], [LogDamaged { inode: FILE, .. }, LogDamaged { inode: SMALL, .. }]), "{found:?}");

    // A block twice: sectors first, then the checksums of the copy.
    let mut image = Image::crashed();
    image.put_record(TREE, TREE_PAGE, 1, image.record(TREE_PAGE, 0));
    image.edit_inode(TREE, |inode| inode.space_512 += 16 * 8);
    let (report, after) = repaired_image(&image);
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let Record::Block { extent: Some(copy), .. } = after.record(TREE_PAGE, 1) else { panic!("a block") };
    let sector = copy.at.sector().expect("sectors").number() as usize;
    assert!(sector != 16 && copy.checksum != BlockChecksum::Vector(LineAddress::new(TREE_VECTOR)), "{copy:?}");
    assert_eq!(after.blocks[sector * 4096..][..4096], data_of(16, 4096));
    assert_eq!(report_with(&after.device(), &options(false)).findings, []);
}

#[test]
fn claims_that_nothing_decides_both_keep_their_bytes() {
    claims_that_nothing_decides();
}

/// Without space for a copy the second log is lost with what is below it, and nothing else.
#[test]
fn without_space_for_a_copy_the_second_log_is_lost() {
    let mut image = Image::crashed();
    image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
    let segment = Segment { region: Region::Leaves, start_unit: 6, unit_count: 2, region_unit: 1, high_water_lines: 0 };
    image.put_segment(4, &segment);
    let slot = |image: &mut Image, page: u64, offset: u64| image.log(DATA + page * 64, offset as u32, 4096, SlotClass::Page);
    let put_leaf = |image: &mut Image, block: u64, line: u64, logs: &[LogEntry]| {
        let entries: Vec<_> = (0..16).map(|index| logs.get(index).copied()).collect();
        for (index, entries) in (0..).zip(entries.chunks_exact(4)) {
            let bytes = leaf_line(entries.try_into().expect("four"), &image.place(TREE, line + index));
            image.put(line + index, bytes);
        }
        let leaf = Some(LeafPointer { address: LineAddress::new(line), class: 2 });
        image.put_record(TREE, TREE_PAGE, block, Record::Block { extent: None, leaf });
    };
    // All pages of the unit of logs but the one with the small logs.
    for leaf in 0..32 {
        let pages = 1 + leaf * 16..(17 + leaf * 16).min(512);
        let logs: Vec<_> = (0..).zip(pages).map(|(index, page)| slot(&mut image, page, index * 4096)).collect();
        put_leaf(&mut image, 10 + leaf, LEAVES + 64 + leaf * 4, &logs);
    }
    let first = slot(&mut image, 1, 0);
    image.put_record(TREE, TREE_PAGE, 4, Record::SingleLog(first));
    put_leaf(&mut image, 5, LEAVES + 32, &[LogEntry { offset: 8192, ..first }]);
    let of_both = image.log(DATA + 16, 100, 50, SlotClass::Line);
    put_leaf(&mut image, 6, LEAVES + 36, &[LogEntry { offset: 8192, ..first }, of_both]);
    image.edit_inode(TREE, |inode| inode.size = 50 * BLOCK);
    let (report, after) = repaired_image(&image);
    let mut lost: Vec<_> = report.lost.iter().map(|lost| (lost.inode, lost.offset / BLOCK)).collect();
    lost.sort_unstable();
    assert_eq!(lost, [(TREE, 5), (TREE, 6), (TREE, 10)]);
    assert_eq!(after.record(TREE_PAGE, 4), Record::SingleLog(first));
    assert_eq!(after.record(TREE_PAGE, 5), Record::Lost { height: 0, leaf: None });
    let Record::Lost { height: 0, leaf: Some(leaf) } = after.record(TREE_PAGE, 6) else { panic!("{:?}", after.record(TREE_PAGE, 6)) };
    let [entry, other, ..] = line_entries(&after.line(leaf.address.number()), leaf.address).expect("has a meaning");
    assert_eq!((entry, other), (None, Some(of_both)));
    assert!(matches!(after.record(TREE_PAGE, 10), Record::Lost { leaf: Some(_), .. }));
}

/// A repair leaves these lines, and the inode that has them, as they are.
fn assert_kept(image: &Image, number: u64, lines: std::ops::Range<u64>) {
    let device = image.device();
    let report = report(&device, true);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.lost.iter().all(|lost| lost.inode != number), "{:?}", report.lost);
    let of_other = |finding: &Finding| finding.inode() == Some(number);
    assert!(!report.repaired.iter().any(|located| of_other(&located.finding)), "{:?}", report.repaired);
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    assert_eq!(after.inode(number), image.inode(number));
    for line in lines {
        assert_eq!(after.line(line), image.line(line), "line {line:#x}");
    }
}

#[test]
fn regression_an_older_pointer_took_what_another_inode_has() {
    older_pointers();
}

/// Lines that verify for nobody are whose they are named by first; lines of which some verify for each are shared.
#[test]
fn pages_that_verify_for_nobody_are_damaged_and_not_anothers() {
    let mut image = Image::crashed();
    for line in [TREE_PAGE, TREE_PAGE + 1] {
        image.damage(line);
    }
    let found = image.findings();
    assert!(matches!(found[..], [MappingDamaged { inode: TREE, .. }, MappingDamaged { inode: TREE, .. }]), "{found:?}");
    let mut image = Image::crashed();
    image.edit_inode(FILE, |inode| {
        inode.root = Record::Pointer { page: LineAddress::new(TREE_PAGE), height: 1 }.encode().to_bytes();
    });
    image.put_record(FILE, TREE_PAGE, 30, Record::LOST);
    let found = image.findings();
    assert!(found.iter().any(|finding| matches!(finding, LinesShared { inode: TREE, .. })), "{found:?}");
}

#[test]
fn a_first_claim_that_takes_what_is_anothers_is_caught() {
    use tandemfs_check::mutant::Mutant;
    assert_caught(&[(older_pointers, Mutant::FirstClaimWins), (older_pointers_of_blocks, Mutant::FirstClaimWins)]);
    assert_caught(&[(claims_that_nothing_decides, Mutant::SecondClaimLost), (older_pointers_to_attributes, Mutant::SetsClaimedUnread)]);
}

/// A file is shorter than its logs say, as an older line of its inode leaves it: its bytes are there after a repair as they were before.
fn logs_across_the_end() {
    let mut image = Image::crashed();
    image.edit_inode(SMALL, |inode| inode.size -= 10);
    let (report, after) = repaired_image(&image);
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let crc = image.pair().data(&data_of(DATA + 8, 90));
    let log = LogEntry { address: LineAddress::new(DATA + 8), crc, offset: 0, length: 90, class: SlotClass::Quarter };
    assert_eq!(after.inode(SMALL).root_record().decode(LineAddress::new(0)).expect("has a meaning"), Record::SingleLog(log));

    // The log of 200 B at 5000 across the end, and behind it, over sectors.
    for size in [5100, 4950] {
        let mut image = Image::crashed();
        image.edit_inode(FILE, |inode| inode.size = size);
        let (report, after) = repaired_image(&image);
        assert!(report.lost.is_empty(), "{:?}", report.lost);
        let record = after.inode(FILE).root_record().decode(LineAddress::new(0)).expect("has a meaning");
        let Record::Block { extent: Some(extent), leaf: Some(_) } = record else { panic!("{record:?}") };
        assert_eq!(extent.count, 2, "the sectors of the file stay");
        assert_eq!(after.inode(FILE).state & state::TAIL_STALE, state::TAIL_STALE, "older bytes are behind the end");
        let [first, _, second, _] = line_entries(&after.line(FILE_LEAF), LineAddress::new(FILE_LEAF)).expect("has a meaning");
        assert_eq!(first.map(|log| log.length), Some(64));
        let crc = image.pair().data(&data_of(DATA + 4, 100));
        assert_eq!(second.map(|log| (log.offset, log.length, log.crc)), (size > 5000).then_some((5000, 100, crc)));
    }

    // Bytes that do not match are no content, and a link that lost a part of its target leads elsewhere.
    let mut image = Image::crashed();
    image.edit_inode(SMALL, |inode| inode.size -= 10);
    image.damage(DATA + 8);
    assert_eq!(repaired_image(&image).0.lost.iter().map(|lost| lost.inode).collect::<Vec<_>>(), [SMALL]);
    let mut image = Image::crashed();
    image.edit_inode(LONG_LINK, |inode| inode.size -= 5);
    assert_eq!(repaired_image(&image).0.lost.iter().map(|lost| lost.inode).collect::<Vec<_>>(), [LONG_LINK]);
}

fn repaired_image(image: &Image) -> (tandemfs_check::Report, Image) {
    let device = image.device();
    let report = report(&device, true);
    assert!(report.is_consistent(), "{:?}", report.findings);
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    (report, after)
}

#[test]
fn regression_bytes_before_the_end_went_with_a_log_across_it() {
    logs_across_the_end();
}

#[test]
fn a_repair_that_drops_logs_across_the_end_is_caught() {
    assert_caught(&[(logs_across_the_end, tandemfs_check::mutant::Mutant::LogsAcrossEndDropped)]);
}
