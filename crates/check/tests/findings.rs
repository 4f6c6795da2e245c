//! Plants one damage for each finding: check reports that finding and nothing else.

mod support;

use std::collections::BTreeSet;

use support::*;
use tandemfs_check::Finding::*;
use tandemfs_check::{CheckError, Damage, Finding, Target, check};
use tandemfs_device::Drive;
use tandemfs_format::allocation_map::PieceKind;
use tandemfs_format::attributes::{AttributePointer, Namespace};
use tandemfs_format::identity::{BlockIdentity, Stamps};
use tandemfs_format::inode::{file_type, state};
use tandemfs_format::lent_room::{LentRoom, lent_line};
use tandemfs_format::mapping::{BlockChecksum, Extent, LeafPointer, Record, SlotClass};
use tandemfs_format::run::Run;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{Superblock, incompat, ro_compat};
use tandemfs_format::{DataAddress, EMPTY_LINE, InodeNumber, LINE_BYTES, LineAddress, SECTOR_BYTES, Sector, UNIT_LINES};
use zerocopy::IntoBytes;

/// An image, and what check must find in it.
type Case = (Image, Vec<Finding>);

/// A finding with the damage left open: checksums are not worth spelling out.
fn without_checksums(mut finding: Finding) -> Finding {
    match &mut finding {
        SegmentDamaged { damage, .. }
        | InodeDamaged { damage, .. }
        | MappingDamaged { damage, .. }
        | EntryDamaged { damage, .. }
        | AttributesDamaged { damage, .. }
        | LentRoomDamaged { damage, .. }
            if matches!(damage, Damage::Checksum { .. }) =>
        {
            *damage = CHECKSUM;
        }
        _ => {}
    }
    finding
}

const CHECKSUM: Damage = Damage::Checksum { found: 0, expected: 0 };

/// Room behind [`FILE`].
fn room() -> LentRoom {
    room_behind(FILE, Image::crashed().inode(FILE).size)
}

fn room_behind(number: u64, size: u64) -> LentRoom {
    let generation = Image::crashed().inode(number).generation;
    LentRoom { inode: InodeNumber::new(number), generation, epoch: 7, size, bytes: 100 }
}

fn put_room(image: &mut Image, slot: u64, room: LentRoom) {
    image.edit_superblock(|superblock| superblock.incompat |= incompat::LENT_ROOM | incompat::MEMORY_HOME);
    let line = lent_line(slot);
    let bytes = room.encode(image.pair(), line);
    image.put(line.number(), bytes);
    put_word(image, slot, room.word(0));
}

fn put_word(image: &mut Image, slot: u64, word: u64) {
    let mut line = [0x77; LINE_BYTES];
    line[..8].copy_from_slice(&word.to_le_bytes());
    image.put(lent_line(slot).nth(1).number(), line);
}

macro_rules! plants {
    ($( $name:ident($image:ident: $base:ident) $plant:block => [$($finding:expr),* $(,)?]; )*) => {
        $( fn $name() -> Case {
            #[allow(unused_mut)]
            let mut $image = Image::$base();
            $plant
            ($image, vec![$($finding),*])
        } )*

        const PLANTS: &[(&str, fn() -> Case)] = &[$( (stringify!($name), $name) ),*];

        mod plants {
            $( #[test] fn $name() {
                let (image, expected) = super::$name();
                let found: Vec<_> = image.findings().into_iter().map(super::without_checksums).collect();
                assert_eq!(found, expected);
            } )*
        }
    };
}

plants! {
    nothing_in_a_clean_image(image: small) {} => [];
    nothing_in_a_crashed_image(image: crashed) {} => [];

    superblock_copy(image: small) { image.memory[64 << 10] ^= 1; } => [SuperblockDamaged { copy: 1 }];
    superblock_copies_of_two_times(image: small) {
        let older = Superblock { sequence: 9, watermark: 50, ..image.superblock.clone() };
        image.write_superblock_copy(1, &older);
    } => [SuperblocksDiffer { first: 10, second: 9 }];
    superblock_copy_torn_by_a_cut(image: crashed) { image.memory[64 << 10] ^= 1; } => [];
    superblock_copy_of_before_a_cut(image: crashed) {
        let older = Superblock { sequence: 9, watermark: 50, ..image.superblock.clone() };
        image.write_superblock_copy(1, &older);
    } => [];
    identity(image: small) { image.blocks[40] ^= 1; } => [IdentityDamaged {}];

    segment(image: crashed) {
        let line = image.superblock.geometry.segment_line(7).number();
        image.put(line, [9; 64]);
    } => [SegmentDamaged { segment: 7, damage: CHECKSUM }];
    segments_that_overlap(image: crashed) {
        image.put_segment(9, &Segment { region: Region::Leaves, start_unit: 3, unit_count: 4, region_unit: 1, high_water_lines: 0 });
    } => [SegmentsOverlap { segment: 9, other: 3, unit: 4 }];
    segment_in_the_fixed_part(image: crashed) {
        image.put_segment(9, &Segment { region: Region::Leaves, start_unit: 0, unit_count: 1, region_unit: 1, high_water_lines: 0 });
    } => [SegmentInFixedPart { segment: 9, unit: 0 }];
    segments_with_a_gap(image: crashed) {
        image.put_segment(4, &Segment { region: Region::Dentries, start_unit: 6, unit_count: 1, region_unit: 2, high_water_lines: 0 });
    } => [SegmentGap { segment: 4, found: 2, expected: 1 }];
    region_without_a_segment(image: crashed) {
        let line = image.superblock.geometry.segment_line(2).number();
        image.put(line, EMPTY_LINE);
    } => [
        RegionMissing { region: 3 },
        PointerMisplaced { inode: TREE, block: 0, target: Target::MappingPage, line: TREE_PAGE },
        UnitLost { unit: 3, region: 3 }
    ];

    room_that_is_lent(image: crashed) { put_room(&mut image, 3, room()); } => [];
    room_that_was_used(image: crashed) {
        // The file's log reaches to the end that a program has made.
        let end = image.inode(SMALL).size - 10;
        image.edit_inode(SMALL, |inode| inode.size = end);
        let room = room_behind(SMALL, end);
        put_room(&mut image, 3, room);
        put_word(&mut image, 3, room.word(10));
    } => [];
    room_without_the_feature(image: crashed) {
        put_room(&mut image, 3, LentRoom { generation: 9, ..room() });
        image.edit_superblock(|superblock| superblock.incompat = 0);
    } => [];
    room_that_is_damaged(image: crashed) {
        put_room(&mut image, 3, room());
        image.memory[lent_line(3).offset_bytes() as usize + 20] ^= 1;
    } => [LentRoomDamaged { slot: 3, damage: CHECKSUM }];
    room_on_a_clean_image(image: small) { put_room(&mut image, 255, room()); } => [LentRoomLeft { slot: 255, inode: FILE }];
    room_of_two_slots(image: crashed) {
        put_room(&mut image, 3, room());
        put_room(&mut image, 4, room());
    } => [LentRoomTwice { slot: 4, inode: FILE }];
    room_of_an_earlier_file(image: crashed) {
        put_room(&mut image, 0, LentRoom { generation: 9, ..room() });
        put_room(&mut image, 1, LentRoom { inode: InodeNumber::new(NOBODY), ..room() });
        put_room(&mut image, 2, LentRoom { inode: InodeNumber::new(DIRECTORY), ..room() });
    } => [
        LentRoomOfNobody { slot: 0, inode: FILE },
        LentRoomOfNobody { slot: 1, inode: NOBODY },
        LentRoomOfNobody { slot: 2, inode: DIRECTORY },
    ];
    room_behind_another_end(image: crashed) {
        put_room(&mut image, 0, LentRoom { size: room().size + 1, ..room() });
    } => [LentRoomElsewhere { slot: 0, inode: FILE, size: room().size, expected: room().size + 1 }];
    room_that_is_exceeded(image: crashed) {
        put_room(&mut image, 3, room());
        put_word(&mut image, 3, room().word(101));
    } => [LentRoomExceeded { slot: 3, inode: FILE, most: 100 }];

    record_outside(image: crashed) { image.put_journal(1, 0, 101, &[(8, [1; 64])]); } => [RecordOutOfPlace { ring: 1, txid: 101, line: 8 }];
    record_on_a_clean_image(image: small) {
        let line = image.line(Image::inode_line(FILE));
        image.put_journal(3, 0, 101, &[(Image::inode_line(FILE), line)]);
    } => [RecordAfterCleanUnmount { ring: 3, txid: 101 }];
    record_twice(image: crashed) {
        let change = [(ROOT_PAGE + 40, EMPTY_LINE)];
        image.put_journal(0, 0, 101, &change);
        image.put_journal(2, 0, 101, &change);
    } => [RecordTwice { txid: 101 }];
    record_damaged_before_a_valid_one(image: crashed) {
        let line = Image::inode_line(FILE);
        let first = image.put_journal(1, 0, 101, &[(line, image.line(line))]);
        image.put_journal(1, first, 102, &[(line, image.line(line))]);
        let at = image.superblock.geometry.ring(1).offset_bytes() as usize + 128 + 60;
        image.memory[at] ^= 1;
    } => [RecordDamaged { ring: 1, offset: 128, next: 102 }];

    inode_with_a_flipped_bit(image: crashed) { image.damage(Image::inode_line(SMALL)); } => [InodeDamaged { inode: SMALL, damage: CHECKSUM }];
    inode_without_its_cold_line(image: crashed) {
        image.put(Image::inode_line(FILE) + 1, EMPTY_LINE);
    } => [InodeDamaged { inode: FILE, damage: Damage::Field { field: "cold line", found: 0 } }];
    inode_without_its_hot_line(image: crashed) {
        image.put(Image::inode_line(FILE), EMPTY_LINE);
    } => [InodeDamaged { inode: FILE, damage: Damage::Field { field: "state", found: 0 } }];
    inode_in_a_state_without_meaning(image: crashed) {
        image.edit_inode(FILE, |inode| inode.state = state::IN_USE | 1 << 9);
    } => [InodeDamaged { inode: FILE, damage: Damage::Field { field: "state", found: 513 } }];
    inode_with_a_time_without_meaning(image: crashed) {
        image.edit_hot(FILE, |hot| hot.mtime = (hot.mtime.get() | 0x3fff_ffff).into());
    } => [InodeField { inode: FILE, field: "mtime", found: 0x3fff_ffff }];
    attributes_of_a_class_without_meaning(image: crashed) {
        image.edit_cold(FILE, |cold| cold.attributes_class = 2);
    } => [AttributesDamaged { inode: FILE, line: 0, damage: Damage::Field { field: "attributes_class", found: 2 } }];
    attributes_of_any_size(image: attributed) {} => [];
    attributes_in_pages_that_are_not_counted(image: attributed) {
        image.edit_inode(FILE, |inode| inode.space_512 -= 8);
    } => [SpaceWrong { inode: FILE, found: 26 + 8, expected: 26 + 16 }];
    attributes_with_a_flipped_bit(image: attributed) { image.damage(ATTRIBUTES); } => [
        AttributesDamaged { inode: FILE, line: ATTRIBUTES, damage: CHECKSUM },
    ];
    attribute_value_with_a_flipped_bit(image: attributed) { image.damage(ATTRIBUTES + 128 + 3); } => [
        AttributesDamaged { inode: FILE, line: ATTRIBUTES + 128 + 3, damage: CHECKSUM },
    ];
    attribute_value_with_an_empty_line(image: attributed) { image.put(ATTRIBUTES + 128 + 3, EMPTY_LINE); } => [
        AttributesDamaged { inode: FILE, line: ATTRIBUTES + 64, damage: CHECKSUM },
    ];
    attributes_of_another_file(image: attributed) {
        let pointer = image.inode(FILE).attributes;
        image.edit_inode(SMALL, |inode| inode.attributes = pointer);
    } => [AttributesShared { inode: SMALL, line: ATTRIBUTES }];
    attributes_above_the_mark(image: attributed) {
        image.edit_inode(SMALL, |inode| inode.attributes = AttributePointer { address: LineAddress::new(ATTRIBUTES + MARK), class: 0 });
    } => [AttributesMisplaced { inode: SMALL, line: ATTRIBUTES + MARK }];
    attributes_in_another_region(image: attributed) {
        image.edit_inode(SMALL, |inode| inode.attributes = AttributePointer { address: LineAddress::new(TREE_PAGE + 128), class: 0 });
    } => [AttributesMisplaced { inode: SMALL, line: TREE_PAGE + 128 }];
    attribute_twice(image: attributed) {
        image.put_attributes(SMALL, ATTRIBUTES + 512, &[near(Namespace::User, b"a", b"1"), near(Namespace::User, b"a", b"2")]);
    } => [AttributeInvalid { inode: SMALL, attribute: 1, field: "name" }];
    attribute_of_users_on_a_device(image: attributed) {
        image.put_attributes(NULL, ATTRIBUTES + 512, &[near(Namespace::Trusted, b"a", b""), near(Namespace::User, b"a", b"")]);
    } => [AttributeInvalid { inode: NULL, attribute: 1, field: "namespace" }];
    default_access_list_of_a_file(image: attributed) {
        let list = access_list(&[(1, 6, u32::MAX), (4, 4, u32::MAX), (32, 4, u32::MAX)]);
        image.put_attributes(SMALL, ATTRIBUTES + 512, &[near(Namespace::DefaultAcl, b"", &list)]);
        image.put_attributes(DIRECTORY, ATTRIBUTES + 520, &[near(Namespace::DefaultAcl, b"", &list)]);
    } => [AttributeInvalid { inode: SMALL, attribute: 0, field: "namespace" }];
    access_list_that_is_none(image: attributed) {
        image.put_attributes(SMALL, ATTRIBUTES + 512, &[near(Namespace::AccessAcl, b"", b"list")]);
    } => [AttributeInvalid { inode: SMALL, attribute: 0, field: "access list" }];
    access_list_without_its_mask(image: attributed) {
        let list = access_list(&[(1, 6, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (32, 4, u32::MAX)]);
        image.put_attributes(SMALL, ATTRIBUTES + 512, &[near(Namespace::AccessAcl, b"", &list)]);
    } => [AttributeInvalid { inode: SMALL, attribute: 0, field: "access list" }];
    access_list_that_says_another_mode(image: attributed) {
        let list = access_list(&[(1, 6, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)]);
        image.put_attributes(SMALL, ATTRIBUTES + 512, &[near(Namespace::AccessAcl, b"", &list)]);
    } => [AttributeInvalid { inode: SMALL, attribute: 0, field: "mode" }];
    access_list_that_says_the_mode(image: attributed) {
        let list = access_list(&[(1, 6, u32::MAX), (2, 7, 1000), (4, 7, u32::MAX), (16, 4, u32::MAX), (32, 4, u32::MAX)]);
        image.put_attributes(SMALL, ATTRIBUTES + 512, &[near(Namespace::AccessAcl, b"", &list)]);
    } => [];
    directory_of_half_a_page(image: crashed) {
        image.edit_inode(DIRECTORY, |inode| inode.size = 4100);
    } => [InodeField { inode: DIRECTORY, field: "size", found: 4100 }];
    no_root(image: crashed) {
        image.add_empty(ROOT, file_type::REGULAR, 1);
    } => [RootMissing {}];
    orphan_on_a_crashed_image(image: crashed) { image.add_empty(9, file_type::REGULAR, 0); } => [];
    orphan_on_a_clean_image(image: small) {
        image.add_empty(9, file_type::REGULAR, 0);
        let (kind, bits) = image.piece_bits(1);
        image.write_piece(1, kind, &bits);
    } => [OrphanLeft { inode: 9 }];

    mapping_line(image: crashed) { image.damage(TREE_PAGE); } => [MappingDamaged { inode: TREE, line: TREE_PAGE, damage: CHECKSUM }];
    mapping_line_of_another_file(image: crashed) {
        let line = image.line(TREE_PAGE);
        let sealed = image.place(FILE, TREE_PAGE).seal(line);
        image.put(TREE_PAGE, sealed);
    } => [MappingDamaged { inode: TREE, line: TREE_PAGE, damage: CHECKSUM }];
    sealed_lines_of_holes(image: crashed) { image.seal_holes(); } => [];
    sealed_lines_of_holes_without_the_feature(image: crashed) {
        image.seal_holes();
        image.edit_superblock(|superblock| superblock.ro_compat = 0);
    } => [];
    mapping_line_of_zeros(image: crashed) {
        image.seal_holes();
        image.put(TREE_PAGE, EMPTY_LINE);
    } => [MappingDamaged { inode: TREE, line: TREE_PAGE, damage: CHECKSUM }];
    mapping_line_of_holes_and_zeros(image: crashed) {
        image.seal_holes();
        image.put(TREE_PAGE + 60, EMPTY_LINE);
    } => [MappingDamaged { inode: TREE, line: TREE_PAGE + 60, damage: CHECKSUM }];
    lost_record_without_the_feature(image: crashed) {
        image.put_record(TREE, TREE_PAGE, 1, Record::LOST);
    } => [RecordKind { inode: TREE, block: 1, line: TREE_PAGE }];
    lost_record(image: crashed) {
        image.seal_holes();
        image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
        image.put_record(TREE, TREE_PAGE, 1, Record::LOST);
    } => [];
    lost_record_behind_the_end(image: crashed) {
        image.seal_holes();
        image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
        image.put_record(TREE, TREE_PAGE, 9, Record::LOST);
    } => [BlockPastEnd { inode: TREE, block: 9 }];
    lost_record_of_another_height(image: crashed) {
        image.seal_holes();
        image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
        image.put_record(TREE, TREE_PAGE, 1, Record::Lost { height: 1, leaf: None });
    } => [RecordKind { inode: TREE, block: 1, line: TREE_PAGE }];
    lost_record_in_a_directory(image: crashed) {
        image.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::LOST_RECORDS);
        image.edit_cold(DIRECTORY, |cold| cold.root = Record::Lost { height: 1, leaf: None }.encode().to_bytes());
    } => [
        RecordKind { inode: DIRECTORY, block: 0, line: 0 },
        DirectoryPageMissing { inode: DIRECTORY, page: 0 },
    ];
    mapping_record_without_meaning(image: crashed) {
        let mut record = Record::HOLE.encode();
        record.tag = (5 << 9).into();
        image.put_record_bytes(TREE, TREE_PAGE, 1, record);
    } => [MappingDamaged { inode: TREE, line: TREE_PAGE, damage: Damage::Field { field: "sector", found: 0 } }];
    open_page_with_bytes_behind_the_end(image: crashed) {
        image.edit_superblock(|superblock| superblock.incompat |= incompat::MEMORY_HOME);
        image.memory[6 * UNIT_LINES as usize * LINE_BYTES..][..SECTOR_BYTES].fill(0);
        image.memory[6 * UNIT_LINES as usize * LINE_BYTES + 50] = 1;
        let at = DataAddress::Page(LineAddress::new(6 * UNIT_LINES));
        let extent = Extent { at, count: 1, checksum: BlockChecksum::Open(None), unwritten: false, overlaid: false };
        image.put_record(TREE, TREE_PAGE, 3, Record::Block { extent: Some(extent), leaf: None });
        image.edit_inode(TREE, |inode| inode.space_512 += 7);
    } => [OpenEndNotZero { inode: TREE, block: 3, offset: 3 * BLOCK + 50 }];
    run_that_is_too_long(image: crashed) {
        image.edit_superblock(|superblock| superblock.incompat |= incompat::MEMORY_HOME);
        let run = Run { first: LineAddress::new(6 * UNIT_LINES), blocks: 33, vector: Some(LineAddress::new(LEAVES + 32)), open: false };
        image.put_record(TREE, TREE_PAGE, 100, Record::Run(run));
    } => [RunMisplaced { inode: TREE, block: 100, count: 33 }];
    record_within_a_run(image: crashed) {
        image.edit_superblock(|superblock| superblock.incompat |= incompat::MEMORY_HOME);
        let zero = image.pair().data(&[0; SECTOR_BYTES]).to_le_bytes();
        image.memory[6 * UNIT_LINES as usize * LINE_BYTES..][..BLOCK as usize].fill(0);
        for sector in 0..16 {
            image.memory[(LEAVES as usize + 32) * LINE_BYTES + sector * 4..][..4].copy_from_slice(&zero);
        }
        let run = Run { first: LineAddress::new(6 * UNIT_LINES), blocks: 2, vector: Some(LineAddress::new(LEAVES + 32)), open: false };
        image.put_record(TREE, TREE_PAGE, 1, Record::Run(run));
    } => [RunOverlapped { inode: TREE, block: 1, overlapped: 2 }];
    leaf_line(image: crashed) { image.damage(FILE_LEAF); } => [MappingDamaged { inode: FILE, line: FILE_LEAF, damage: CHECKSUM }];

    page_above_the_mark(image: crashed) {
        image.edit_root(TREE, |_| Record::Pointer { page: LineAddress::new(MAPPINGS + MARK), height: 1 });
    } => [PointerMisplaced { inode: TREE, block: 0, target: Target::MappingPage, line: MAPPINGS + MARK }];
    page_in_another_region(image: crashed) {
        image.edit_root(TREE, |_| Record::Pointer { page: LineAddress::new(DENTRIES + 640), height: 1 });
    } => [PointerMisplaced { inode: TREE, block: 0, target: Target::MappingPage, line: DENTRIES + 640 }];
    leaf_off_its_alignment(image: crashed) {
        image.edit_root(FILE, |record| match record {
            Record::Block { extent, .. } => {
                Record::Block { extent, leaf: Some(LeafPointer { address: LineAddress::new(LEAVES + 9), class: 1 }) }
            }
            other => other,
        });
    } => [PointerMisplaced { inode: FILE, block: 0, target: Target::Leaf, line: LEAVES + 9 }];
    slot_in_a_segment(image: crashed) {
        image.edit_single_log(SMALL, |log| log.address = LineAddress::new(LEAVES + 8));
    } => [PointerMisplaced { inode: SMALL, block: 0, target: Target::Slot, line: LEAVES + 8 }];
    slot_out_of_the_zone(image: crashed) {
        image.edit_single_log(SMALL, |log| log.address = LineAddress::new((1 << 40) - 4));
    } => [PointerMisplaced { inode: SMALL, block: 0, target: Target::Slot, line: (1 << 40) - 4 }];

    slot_of_two_files(image: crashed) {
        image.edit_single_log(LONG_LINK, |log| log.address = LineAddress::new(DATA + 2));
    } => [LinesShared { inode: LONG_LINK, block: 0, target: Target::Slot, line: DATA + 2 }];
    vector_over_a_leaf(image: crashed) {
        image.edit_extent(FILE, |extent| extent.checksum = BlockChecksum::Vector(LineAddress::new(FILE_LEAF)));
    } => [
        LinesShared { inode: FILE, block: 0, target: Target::Vector, line: FILE_LEAF },
    ];
    page_that_points_to_itself(image: crashed) {
        image.edit_root(TREE, |_| Record::Pointer { page: LineAddress::new(TREE_PAGE + 64), height: 3 });
        image.put_record(TREE, TREE_PAGE + 64, 0, Record::Pointer { page: LineAddress::new(TREE_PAGE + 64), height: 2 });
    } => [LinesShared { inode: TREE, block: 0, target: Target::MappingPage, line: TREE_PAGE + 64 }];

    page_of_a_wrong_height(image: crashed) {
        image.edit_root(TREE, |_| Record::Pointer { page: LineAddress::new(TREE_PAGE), height: 2 });
        for index in [0, 2, 3] {
            image.put_record(TREE, TREE_PAGE, index, Record::HOLE);
        }
        image.put_record(TREE, TREE_PAGE, 5, Record::Pointer { page: LineAddress::new(TREE_PAGE + 64), height: 2 });
    } => [RecordKind { inode: TREE, block: 960, line: TREE_PAGE + 1 }];
    file_with_a_page_of_names(image: crashed) {
        image.edit_root(SMALL, |_| Record::Memory(LineAddress::new(DENTRIES + 640)));
    } => [RecordKind { inode: SMALL, block: 0, line: 0 }];

    block_past_the_end(image: crashed) { image.edit_inode(TREE, |inode| inode.size = 3 * 65536); } => [BlockPastEnd { inode: TREE, block: 3 }];
    extent_outside_the_zone(image: crashed) {
        image.edit_extent(FILE, |extent| extent.at = DataAddress::Sector(Sector::new(4094)));
    } => [ExtentOutside { inode: FILE, block: 0, sector: 4094, count: 3 }];
    extent_longer_than_its_file(image: crashed) {
        image.edit_inode(FILE, |inode| inode.size = 8192);
    } => [ExtentTooLong { inode: FILE, block: 0, count: 3, most: 2 }];
    extent_longer_than_its_block(image: crashed) {
        image.edit_inode(TREE, |inode| inode.size = 1 << 30);
        let Record::Block { extent: Some(mut extent), leaf } = image.record(TREE_PAGE, 0) else { panic!("no block") };
        (extent.count, extent.unwritten, extent.at) = (17, true, DataAddress::Sector(Sector::new(100)));
        image.put_record(TREE, TREE_PAGE, 0, Record::Block { extent: Some(extent), leaf });
        image.edit_inode(TREE, |inode| inode.space_512 += 8);
    } => [ExtentTooLong { inode: TREE, block: 0, count: 17, most: 16 }];
    room_inside_and_behind_the_end(image: crashed) {
        image.reserve(TREE_PAGE, 1, 60, 16, Some(LEAVES + 20));
        image.reserve(TREE_PAGE, 7, 50, 1, None);
        image.edit_inode(TREE, |inode| inode.space_512 += 17 * 8);
    } => [];
    room_without_a_vector(image: crashed) {
        image.reserve(TREE_PAGE, 1, 60, 16, None);
        image.edit_inode(TREE, |inode| inode.space_512 += 16 * 8);
    } => [ChecksumKindWrong { inode: TREE, block: 1 }];
    room_with_the_vector_of_another_block(image: crashed) {
        image.reserve(TREE_PAGE, 1, 60, 16, Some(TREE_VECTOR));
    } => [LinesShared { inode: TREE, block: 1, target: Target::Vector, line: TREE_VECTOR }];
    room_that_another_block_uses(image: crashed) {
        image.reserve(TREE_PAGE, 1, 16, 1, None);
    } => [SectorsShared { inode: TREE, block: 1, sector: 16 }];
    room_behind_the_end_with_a_log(image: crashed) {
        image.reserve(TREE_PAGE, 7, 50, 1, None);
        let Record::Block { extent, .. } = image.record(TREE_PAGE, 7) else { panic!("no block") };
        let log = image.log(DATA + 20, 0, 10, SlotClass::Line);
        let line = tandemfs_format::mapping::leaf_line(&[Some(log), None, None, None], &image.place(TREE, LEAVES + 11));
        image.put(LEAVES + 11, line);
        let leaf = Some(LeafPointer { address: LineAddress::new(LEAVES + 11), class: 0 });
        image.put_record(TREE, TREE_PAGE, 7, Record::Block { extent, leaf });
        image.edit_inode(TREE, |inode| inode.space_512 += 9);
    } => [BlockPastEnd { inode: TREE, block: 7 }];
    data_behind_the_end_in_room_that_was_filled(image: crashed) {
        image.fill_room(FILE, 40, &[1, 2, 3, 0]);
        image.edit_inode(FILE, |inode| inode.space_512 += 8);
    } => [];
    old_bytes_behind_the_end_in_room_that_was_filled(image: crashed) {
        image.fill_room(FILE, 40, &[1, 2, 3, 4]);
        image.edit_inode(FILE, |inode| inode.space_512 += 8);
    } => [ExtentTooLong { inode: FILE, block: 0, count: 4, most: 3 }];
    pages_in_a_unit_of_data_logs(image: crashed) {
        image.edit_superblock(|superblock| superblock.incompat |= incompat::MEMORY_HOME);
        let Record::Block { extent: Some(mut extent), leaf } = image.record(TREE_PAGE, 2) else { panic!("no block") };
        image.memory[(DATA as usize + 640) * 64..][..4096].copy_from_slice(&data_of(5, 4096));
        extent.at = DataAddress::Page(LineAddress::new(DATA + 640));
        image.put_record(TREE, TREE_PAGE, 2, Record::Block { extent: Some(extent), leaf });
    } => [UnitMixed { inode: TREE, block: 2, target: Target::Pages, unit: 5 }];
    sectors_of_two_files(image: crashed) {
        image.edit_extent(FILE, |extent| extent.at = DataAddress::Sector(Sector::new(14)));
    } => [
        SectorsShared { inode: TREE, block: 0, sector: 16 },
        DataDamaged { inode: FILE, offset: 0, sectors: 3 },
    ];
    extent_without_checksums(image: crashed) {
        image.edit_extent(FILE, |extent| extent.checksum = BlockChecksum::None);
    } => [ChecksumKindWrong { inode: FILE, block: 0 }];

    log_over_the_end_of_its_block(image: crashed) {
        image.edit_inode(FILE, |inode| inode.size = 1 << 20);
        image.edit_leaf(|log| log.offset = 65_400);
    } => [LogOutsideBlock { inode: FILE, block: 0, offset: 65_400, length: 200 }];
    logs_that_overlap(image: crashed) { image.edit_leaf(|log| log.offset = 163); } => [LogsOverlap { inode: FILE, block: 0, offset: 163 }];
    logs_that_touch(image: crashed) { image.edit_leaf(|log| log.offset = 164); } => [];
    log_over_the_end_of_its_file(image: crashed) {
        image.edit_leaf(|log| log.offset = 12_000);
    } => [LogPastEnd { inode: FILE, block: 0, offset: 12_000, length: 200 }];

    wrong_space(image: small) {
        image.edit_inode(FILE, |inode| inode.space_512 = 24);
    } => [SpaceWrong { inode: FILE, found: 24, expected: 26 }];
    logs_over_sectors_that_are_counted_and_should_not_be(image: crashed) {
        image.edit_superblock(|superblock| superblock.ro_compat = ro_compat::COVERED_LOGS_UNCOUNTED);
    } => [SpaceWrong { inode: FILE, found: 26, expected: 24 }];
    logs_over_sectors_that_are_not_counted(image: crashed) {
        image.edit_superblock(|superblock| superblock.ro_compat = ro_compat::COVERED_LOGS_UNCOUNTED);
        image.edit_inode(FILE, |inode| inode.space_512 = 24);
    } => [];
    missing_directory_page(image: crashed) {
        image.edit_inode(DIRECTORY, |inode| inode.size = 8192);
    } => [DirectoryPageMissing { inode: DIRECTORY, page: 1 }];
    directory_page_past_the_end(image: crashed) {
        image.edit_inode(DIRECTORY, |inode| inode.size = 0);
    } => [BlockPastEnd { inode: DIRECTORY, block: 0 }];

    name_with_a_flipped_bit(image: crashed) {
        image.damage(ROOT_PAGE + 4);
    } => [EntryDamaged { directory: ROOT, slot: 4, damage: CHECKSUM }];
    name_without_its_end(image: crashed) {
        image.put(ROOT_PAGE + 3, EMPTY_LINE);
    } => [EntryDamaged { directory: ROOT, slot: 2, damage: Damage::Field { field: "name_length", found: 60 } }];
    name_without_its_start(image: crashed) {
        image.put(ROOT_PAGE + 2, EMPTY_LINE);
    } => [EntryPartStray { directory: ROOT, slot: 3 }, Unreachable { inode: LINK }];
    name_with_a_slash(image: crashed) { image.put_name(ROOT, ROOT_PAGE, 9, b"a/b", NULL); } => [NameInvalid { directory: ROOT, slot: 9 }];
    name_of_nobody(image: crashed) {
        image.remove_inode(NULL);
    } => [EntryDangling { directory: ROOT, slot: 9, inode: NULL }];
    name_of_a_number_above_the_mark(image: crashed) {
        image.put_dentry(ROOT, ROOT_PAGE, 20, b"far", 1 << 47, 8);
    } => [EntryDangling { directory: ROOT, slot: 20, inode: 1 << 47 }];
    name_of_a_wrong_type(image: crashed) {
        image.edit_head(ROOT, ROOT_PAGE + 9, |head| head.file_type = 8);
    } => [EntryType { directory: ROOT, slot: 9, inode: NULL, found: 8, expected: 2 }];
    name_with_a_wrong_hash(image: crashed) {
        image.edit_head(ROOT, ROOT_PAGE + 9, |head| head.hash = (head.hash.get() ^ 1).into());
    } => [EntryHash { directory: ROOT, slot: 9 }];
    name_twice(image: crashed) { image.put_name(ROOT, ROOT_PAGE, 5, b"file", FILE); } => [NameTwice { directory: ROOT, slot: 0, other: 5 }];
    directory_with_two_names(image: crashed) {
        image.put_name(ROOT, ROOT_PAGE, 20, b"again", DIRECTORY);
    } => [DirectoryTwice { directory: ROOT, slot: 20, inode: DIRECTORY }];
    root_with_a_name(image: crashed) {
        image.put_name(DIRECTORY, DIRECTORY_PAGE, 20, b"up", ROOT);
    } => [DirectoryTwice { directory: DIRECTORY, slot: 20, inode: ROOT }];

    wrong_parent(image: crashed) {
        image.edit_inode(DIRECTORY, |inode| inode.parent = InodeNumber::new(7));
    } => [ParentWrong { inode: DIRECTORY, found: 7, expected: ROOT }];
    root_with_a_parent(image: crashed) {
        image.edit_inode(ROOT, |inode| inode.parent = InodeNumber::new(DIRECTORY));
    } => [ParentWrong { inode: ROOT, found: DIRECTORY, expected: ROOT }];
    wrong_link_count(image: small) {
        image.edit_inode(FILE, |inode| inode.nlink = 5);
    } => [LinkCount { inode: FILE, found: 5, expected: 2 }];
    wrong_link_count_of_a_directory(image: small) {
        image.edit_inode(ROOT, |inode| inode.nlink = 2);
    } => [LinkCount { inode: ROOT, found: 2, expected: 3 }];
    removed_directory_with_names(image: crashed) {
        image.put(ROOT_PAGE + 1, EMPTY_LINE);
        image.edit_inode(ROOT, |inode| inode.nlink = 2);
        image.edit_inode(DIRECTORY, |inode| inode.nlink = 0);
    } => [OrphanWithEntries { inode: DIRECTORY }];
    file_without_a_name(image: crashed) {
        image.add_empty(9, file_type::REGULAR, 1);
    } => [Unreachable { inode: 9 }];
    directories_in_a_circle(image: crashed) {
        image.edit_inode(ROOT, |inode| inode.nlink = 2);
        image.put(ROOT_PAGE + 1, EMPTY_LINE);
        image.put_name(DIRECTORY, DIRECTORY_PAGE, 5, b"myself", DIRECTORY);
        image.edit_inode(DIRECTORY, |inode| (inode.parent, inode.nlink) = (InodeNumber::new(DIRECTORY), 3));
    } => [DirectoryCircle { inode: DIRECTORY }];

    map_of_another_mount(image: small) {
        let bits = image.piece_bits(5).1;
        let generation = std::mem::replace(&mut image.superblock.generation, 2);
        image.write_piece(5, PieceKind::Data, &bits);
        image.superblock.generation = generation;
    } => [MapDamaged { piece: 5 }];
    map_of_another_kind(image: small) {
        let bits = image.piece_bits(4).1;
        image.write_piece(4, PieceKind::Data, &bits);
    } => [MapKind { piece: 4 }];
    map_with_wrong_bits(image: small) {
        let mut bits = image.piece_bits(8).1;
        bits[0] ^= 0b0100_0010; // sector 1 is used, sector 6 is free
        image.write_piece(8, PieceKind::Sectors, &bits);
    } => [MapWrong { piece: 8, free_but_used: 1, used_but_free: 1 }];
    slots_in_a_unit_marked_free(image: small) {
        image.write_piece(5, PieceKind::Free, &[0; 4096]);
    } => [MapWrong { piece: 5, free_but_used: 11, used_but_free: 0 }];
    empty_unit_kept_by_the_data_area(image: small) { image.write_piece(6, PieceKind::Data, &[0; 4096]); } => [];

    data_with_flipped_bits(image: small) {
        image.blocks[17 * 4096 + 9] ^= 1;
        image.blocks[18 * 4096 + 9] ^= 1;
        image.blocks[20 * 4096 + 9] ^= 1;
        image.blocks[5 * 4096 + 9] ^= 1;
    } => [
        DataDamaged { inode: TREE, offset: 4096, sectors: 2 },
        DataDamaged { inode: TREE, offset: 4 * 4096, sectors: 1 },
        DataDamaged { inode: TREE, offset: 2 * 65536, sectors: 1 },
    ];
    vector_with_a_flipped_bit(image: small) {
        image.memory[TREE_VECTOR as usize * 64 + 4] ^= 1;
    } => [DataDamaged { inode: TREE, offset: 4096, sectors: 1 }];
    log_with_a_flipped_bit(image: small) {
        image.memory[(DATA as usize + 4) * 64 + 199] ^= 1;
    } => [LogDamaged { inode: FILE, offset: 5000, length: 200 }];
    slot_with_other_bytes_behind_its_log(image: small) { image.memory[(DATA as usize + 4) * 64 + 200] ^= 1; } => [];

    leaf_with_an_empty_line(image: crashed) {
        image.edit_root(FILE, |record| match record {
            Record::Block { extent, .. } => {
                Record::Block { extent, leaf: Some(LeafPointer { address: LineAddress::new(LEAVES + 10), class: 1 }) }
            }
            other => other,
        });
        let log = image.log(DATA + 16, 0, 10, SlotClass::Line);
        let line = tandemfs_format::mapping::leaf_line(&[None, Some(log), None, None], &image.place(FILE, LEAVES + 11));
        image.put(LEAVES + 11, line);
        image.edit_inode(FILE, |inode| inode.space_512 = 25);
    } => [];
}

#[test]
fn unreadable_memory_and_sectors_are_findings() {
    let poison = |line: u64| {
        let device = Image::crashed().device();
        device.faults.lock().expect("lock").bad_memory = Some(line * 64..line * 64 + 1);
        findings(&report(&device, false))
    };
    assert_eq!(poison(TREE_PAGE), [MappingDamaged { inode: TREE, line: TREE_PAGE, damage: Damage::Unreadable }]);
    assert_eq!(poison(FILE_VECTOR), [MappingDamaged { inode: FILE, line: FILE_VECTOR, damage: Damage::Unreadable }]);
    assert_eq!(poison(DIRECTORY_PAGE), [EntryDamaged { directory: DIRECTORY, slot: 0, damage: Damage::Unreadable }]);
    assert_eq!(poison(DATA + 4), [DataUnreadable { inode: FILE, offset: 5000, bytes: 200 }]);
    assert_eq!(poison(Image::inode_line(64)), [InodeDamaged { inode: 64, damage: Damage::Unreadable }], "it may have been in use");
    let (image, expected) = sector_that_cannot_be_read();
    let device = image.device();
    device.faults.lock().expect("lock").bad_sector = Some(17);
    assert_eq!(findings(&report(&device, false)), expected);
}

#[test]
fn a_page_that_cannot_be_read_is_a_finding_for_each_line_that_may_be_in_use() {
    let poison = |line: u64| {
        let device = Image::crashed().device();
        device.faults.lock().expect("lock").bad_memory = Some(line * 64..(line + 64) * 64);
        findings(&report(&device, false))
    };
    assert_eq!(poison(TREE_PAGE), [MappingDamaged { inode: TREE, line: TREE_PAGE, damage: Damage::Unreadable }]);
    assert_eq!(poison(DIRECTORY_PAGE), [MappingDamaged { inode: DIRECTORY, line: DIRECTORY_PAGE, damage: Damage::Unreadable }]);
    assert_eq!(poison(Image::inode_line(64)).len(), 32, "every slot of the page may have been in use");
}

fn sector_that_cannot_be_read() -> Case {
    (Image::small(), vec![DataUnreadable { inode: TREE, offset: 4096, bytes: 4096 }])
}

/// As a mount leaves the identity that is cut off in it: torn, or with the old stamp or UUID.
#[test]
fn an_identity_that_is_behind_is_said_and_left_to_the_next_mount() {
    let features = ro_compat::STAMP | ro_compat::VOLUME_UUID;
    let mut image = Image::small();
    image.edit_superblock(|superblock| {
        (superblock.ro_compat, superblock.volume_uuid) = (features, uuid::Uuid::from_u128(5));
        superblock.stamps = Stamps { current: 7, pending: 8 };
    });
    let changing = image.superblock.clone();
    let identity = |stamp, uuid| {
        let superblock = Superblock { volume_uuid: uuid::Uuid::from_u128(uuid), ..changing.clone() };
        BlockIdentity::stamped(&superblock, stamp).as_bytes().to_vec()
    };
    let torn = [&identity(7, 5)[..32], &identity(8, 5)[32..]].concat();
    for (bytes, behind) in [(identity(7, 5), false), (identity(8, 5), false), (identity(7, 6), true), (torn.clone(), true)] {
        let mut image = image.clone();
        image.blocks[..64].copy_from_slice(&bytes);
        let device = image.device();
        let before = device.bytes();
        let report = report(&device, true);
        assert_eq!((report.identity_behind, report.is_consistent(), report.repaired.len()), (behind, true, 0));
        assert!(device.bytes() == before, "nothing is written");
    }
    // The same bytes where nothing changed are damage, and repaired.
    image.edit_superblock(|superblock| superblock.stamps.pending = 7);
    for bytes in [torn, identity(7, 6)] {
        let mut image = image.clone();
        image.blocks[..64].copy_from_slice(&bytes);
        assert_eq!(findings(&report(&image.device(), false)), [IdentityDamaged {}]);
        let device = image.device();
        assert!(report(&device, true).is_consistent());
        assert_eq!(device.bytes().1[..64], identity(7, 5));
    }
}

#[test]
fn halves_of_different_times_are_refused_and_left_alone() {
    let mut image = Image::small();
    image.edit_superblock(|superblock| (superblock.ro_compat, superblock.stamps) = (ro_compat::STAMP, Stamps { current: 7, pending: 8 }));
    image.blocks[..64].copy_from_slice(BlockIdentity::stamped(&image.superblock, 9).as_bytes());
    let device = image.device();
    let before = device.bytes();
    let refused = check(&Drive::new(device.clone()), &options(true), &mut |_| {});
    assert!(matches!(refused, Err(CheckError::StampMismatch { found: 9, expected: 7, .. })));
    assert!(matches!(tandemfs_check::Dump::open(&Drive::new(device.clone())).map(drop), Err(CheckError::StampMismatch { .. })));
    assert!(device.bytes() == before);
}

/// A power cut between the two writes is nothing to repair; check says it all the same. A copy that cannot be read is damage.
#[test]
fn a_copy_of_the_superblock_that_is_behind_is_said_and_left_to_the_next_mount() {
    for (image, behind) in
        [(Image::crashed(), false), (superblock_copy_torn_by_a_cut().0, true), (superblock_copy_of_before_a_cut().0, true)]
    {
        let device = image.device();
        let before = device.bytes();
        let report = report(&device, true);
        assert_eq!((report.superblock_copy_behind, report.is_consistent(), report.repaired.len()), (behind, true, 0));
        assert!(device.bytes() == before, "nothing is written");
    }
    let device = Image::crashed().device();
    device.faults.lock().expect("lock").bad_memory = Some(65_536..65_600);
    assert_eq!(findings(&report(&device, false)), [SuperblockDamaged { copy: 1 }]);
}

#[test]
fn every_finding_is_planted() {
    let mut planted: BTreeSet<&str> = PLANTS.iter().flat_map(|(_, plant)| plant().1).map(|finding| finding.id()).collect();
    planted.extend(sector_that_cannot_be_read().1.iter().map(Finding::id));
    let all: BTreeSet<&str> = Finding::IDS.iter().copied().collect();
    assert_eq!(planted, all);
}

#[test]
fn findings_speak_to_people_and_scripts() {
    let (image, _) = wrong_link_count();
    let report = report(&image.device(), false);
    assert_eq!(report.findings[0].to_string(), "inode 2 has link count 5; the correct count is 2 (/file)");
    let json = serde_json::to_value(&report).expect("serialises");
    assert_eq!(json["findings"][0]["finding"], "link_count");
    assert_eq!(json["findings"][0]["inode"], 2);
    assert_eq!(json["findings"][0]["severity"], "error");
    assert_eq!(json["findings"][0]["repairable"], true);
    assert_eq!(json["findings"][0]["path"], "/file");
    assert_eq!((json["counts"]["inodes"].as_u64(), json["counts"]["names"].as_u64()), (Some(8), Some(8)));
    for (name, plant) in PLANTS {
        for finding in plant().1 {
            let json = serde_json::to_value(&finding).expect("serialises");
            assert_eq!(json["finding"], finding.id(), "{name}");
            assert!(!finding.to_string().contains('\n'), "{name}");
        }
    }
}

#[test]
fn counts_are_those_of_the_tree() {
    let counts = report(&Image::small().device(), false).counts;
    assert_eq!((counts.directories, counts.files, counts.links, counts.special), (2, 3, 2, 1));
    assert_eq!((counts.blocks, counts.sectors, counts.logs, counts.log_bytes), (6, 20, 5, 444));
    assert_eq!(counts.data_bytes, 20 * 4096 + 444);
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let (image, _) = data_with_flipped_bits();
    let options = tandemfs_check::CheckOptions { findings_max: 1, ..options(false) };
    let drive = tandemfs_device::Drive::new(image.device());
    let report = tandemfs_check::check(&drive, &options, &mut |_| {}).expect("can be checked");
    assert_eq!((report.findings.len(), report.findings_left_out), (1, 2));
    assert!(!report.is_consistent());
}

/// Each deliberate bug of the checker lets a planted damage through.
#[test]
fn deliberate_bugs_of_the_checker_are_caught() {
    use tandemfs_check::mutant::{Mutant, select};
    let wrong = |bug: Mutant| -> Vec<&str> {
        select(bug);
        let differs = |plant: fn() -> Case| {
            let (image, expected) = plant();
            image.findings().into_iter().map(without_checksums).collect::<Vec<_>>() != expected
        };
        let names = PLANTS.iter().filter(|(_, plant)| differs(*plant)).map(|(name, _)| *name).collect();
        select(Mutant::None);
        names
    };
    assert!(wrong(Mutant::None).is_empty());
    for bug in [
        Mutant::JournalIgnored,
        Mutant::SharedSpaceIgnored,
        Mutant::LinkCountsIgnored,
        Mutant::MapsIgnored,
        Mutant::DataIgnored,
        Mutant::AppendedIgnored,
    ] {
        let by = wrong(bug);
        assert!(!by.is_empty(), "{bug:?} escaped");
        println!("{bug:?}: {}", by.join(", "));
    }
}
