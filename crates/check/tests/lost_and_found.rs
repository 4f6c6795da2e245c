//! What a repair loses, what it keeps, and where inodes without a name go.

mod support;

use support::*;
use tandemfs_check::Finding::{self, *};
use tandemfs_check::{CheckOptions, Dump, Report};
use tandemfs_device::Drive;
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::Record;
use tandemfs_format::superblock::{Superblock, compat, ro_compat};
use tandemfs_format::{DataAddress, EMPTY_LINE, InodeNumber, LineAddress};

/// Repairs; the report, the names and the image afterwards.
fn repaired(image: &Image) -> (Report, String, Image) {
    repaired_with(image, &options(true))
}

fn repaired_with(image: &Image, options: &CheckOptions) -> (Report, String, Image) {
    let device = image.device();
    let report = report_with(&device, options);
    let mut out = Vec::new();
    Dump::open(&Drive::new(device.clone())).expect("opens").tree("/", &mut out).expect("prints");
    let mut after = image.clone();
    (after.memory, after.blocks) = device.bytes();
    (report, String::from_utf8(out).expect("text"), after)
}

fn has(report: &Report, finding: impl Fn(&Finding) -> bool) -> bool {
    report.repaired.iter().any(|located| finding(&located.finding))
}

fn lost(report: &Report) -> Vec<(u64, u64, Option<u64>)> {
    report.lost.iter().map(|lost| (lost.inode, lost.offset, lost.bytes)).collect()
}

#[test]
fn a_file_without_a_name_goes_to_the_directory_that_it_names() {
    let mut image = Image::crashed();
    image.damage(DIRECTORY_PAGE);
    let (report, tree, _) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    let placed: Vec<(u64, &str)> = report.placed.iter().map(|placed| (placed.inode, placed.path.as_str())).collect();
    assert_eq!(placed, [(SMALL, "/directory/#6")], "{tree}");
    assert!(!tree.contains("lost+found") && tree.contains("link"), "{tree}");
    assert!(report.lost.is_empty());
}

#[test]
fn files_of_a_lost_directory_go_to_lost_and_found() {
    let mut image = Image::crashed();
    image.damage(Image::inode_line(DIRECTORY));
    let (report, tree, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.placed.iter().any(|placed| placed.path == "/lost+found/#6"), "{tree}");
    assert!(report.placed.iter().any(|placed| placed.path == "/lost+found/#7"), "{tree}");
    assert_eq!(lost(&report), [(DIRECTORY, 0, None)]);
    let found = report.placed.iter().find(|placed| placed.path == "/lost+found").expect("made").inode;
    let line = Image::inode_line(found);
    let inode = tandemfs_format::inode::Inode::decode(
        after.pair(),
        InodeNumber::new(found),
        LineAddress::new(line),
        &after.line(line),
        &after.line(line + 1),
    );
    let inode = inode.expect("verifies").expect("in use");
    assert_eq!((inode.mode, inode.uid, inode.gid, inode.nlink), (file_type::DIRECTORY | 0o700, 0, 0, 2));
}

#[test]
fn a_lost_directory_keeps_the_directories_below_it() {
    let mut image = Image::crashed();
    image.add_empty(9, file_type::DIRECTORY | 0o755, 2);
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 5, b"below", 9);
    image.edit_inode(9, |inode| inode.parent = InodeNumber::new(DIRECTORY));
    image.edit_inode(DIRECTORY, |inode| inode.nlink = 3);
    image.damage(Image::inode_line(DIRECTORY));
    image.damage(Image::inode_line(DIRECTORY) + 1);
    let (report, tree, _) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.placed.iter().any(|placed| placed.path == "/lost+found/#9"), "{tree}");
}

#[test]
fn a_damaged_root_is_made_anew_with_its_pages() {
    for (line, generation) in [(0, 0), (1, 1001)] {
        let mut image = Image::crashed();
        if generation == 0 {
            // mkfs gives the root the generation 0; its names are sealed with it.
            let names: Vec<[u8; 64]> = (0..64).map(|slot| image.line(ROOT_PAGE + slot)).collect();
            for (slot, bytes) in (0..).zip(names).filter(|(_, bytes)| *bytes != [0; 64]) {
                let mut place = image.place(ROOT, ROOT_PAGE + slot);
                place.generation = 0;
                image.put(ROOT_PAGE + slot, place.seal(bytes));
            }
        }
        image.damage(Image::inode_line(ROOT) + line);
        let (report, tree, after) = repaired(&image);
        assert!(report.is_consistent(), "{:?}", report.findings);
        for name in ["file", "directory", "tree", "hard link", "null", "small"] {
            assert!(tree.contains(name), "{name} after damage of line {line}: {tree}");
        }
        assert!(!tree.contains("lost+found"), "{tree}");
        assert_eq!(after.line(FILE_LEAF), image.line(FILE_LEAF));
    }
}

#[test]
fn a_root_without_pages_is_empty_and_everything_is_found() {
    let mut image = Image::crashed();
    image.damage(Image::inode_line(ROOT));
    let (report, tree, _) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(has(&report, |finding| matches!(finding, InodeDamaged { inode: ROOT, .. })));
    for number in [FILE, DIRECTORY, LINK, TREE, NULL] {
        assert!(report.placed.iter().any(|placed| placed.path == format!("/#{number}")), "{number}: {tree}");
    }
}

#[test]
fn a_damaged_mapping_line_costs_its_blocks_only() {
    let mut image = Image::crashed();
    image.damage(TREE_PAGE);
    let (report, _, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert_eq!(lost(&report), [(TREE, 0, Some(3 * BLOCK))]);
    assert_eq!(report.lost[0].path.as_deref(), Some("/tree"));
    assert!(matches!(after.record(TREE_PAGE, 3), Record::SingleLog(_)), "the neighbour's record");
    assert_eq!(after.inode(TREE).space_512, 1);
}

#[test]
fn a_mapping_line_that_is_cut_is_sealed() {
    let mut image = Image::crashed();
    image.seal_holes();
    image.put(TREE_PAGE, EMPTY_LINE);
    let (report, _, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert_eq!(lost(&report), [(TREE, 0, Some(3 * BLOCK))]);
    assert_ne!(after.line(TREE_PAGE), EMPTY_LINE);
}

fn with_lost_records(image: &mut Image) {
    image.seal_holes();
    image.edit_superblock(|superblock| {
        superblock.ro_compat |= ro_compat::LOST_RECORDS;
        superblock.compat |= compat::ERROR_COUNTERS;
    });
}

/// With the feature nothing that is given up becomes a hole.
#[test]
fn what_is_given_up_is_recorded_as_lost() {
    let mut image = Image::crashed();
    with_lost_records(&mut image);
    image.damage(TREE_PAGE);
    image.damage(FILE_LEAF);
    image.damage(Image::inode_line(SMALL));
    let (report, _, mut after) = repaired(&image);
    assert!(report.is_consistent() && report.lost_before.is_empty(), "{:?}", report.findings);
    assert!(lost(&report).contains(&(TREE, 0, Some(3 * BLOCK))) && lost(&report).contains(&(FILE, 0, Some(12_188))));
    assert_eq!([0, 1, 2].map(|index| after.record(TREE_PAGE, index)), [Record::LOST; 3]);
    assert!(matches!(after.record(TREE_PAGE, 3), Record::SingleLog(_)), "the neighbour's record");
    assert_eq!(after.inode(FILE).root_record().decode(LineAddress::new(0)), Ok(Record::LOST), "the sectors hold older bytes");
    let counters = Superblock::decode(&after.memory[..1024]).expect("whole").error_counters;
    assert!(counters.repairs >= 3 && counters.check_findings > 0 && counters.check_seconds > 1_500_000_000, "{counters:?}");
    let (again, _, last) = repaired(&after);
    assert!(again.is_consistent() && again.repaired.is_empty());
    let ranges: Vec<_> = again.lost_before.iter().map(|range| (range.inode, range.offset, range.bytes)).collect();
    assert_eq!(ranges, [(FILE, 0, Some(12_188)), (TREE, 0, Some(3 * BLOCK))]);
    assert_eq!(again.lost_before[1].path.as_deref(), Some("/tree"));
    assert!(last.memory == after.memory, "nothing is written");
    // A log that goes makes its neighbours no hole either.
    after.damage(TREE_PAGE + 1);
    let (third, _, _) = repaired(&after);
    assert_eq!(third.lost_before.len(), 2);
}

/// A pointer that leads nowhere covers as much as the file has, and no block behind its end.
#[test]
fn a_lost_subtree_ends_with_the_file() {
    for height in 2..=4 {
        let mut image = Image::crashed();
        with_lost_records(&mut image);
        let above = LineAddress::new(MAPPINGS + MARK);
        image.edit_cold(TREE, |cold| cold.root = Record::Pointer { page: above, height }.encode().to_bytes());
        image.edit_inode(TREE, |inode| inode.size = 200 * BLOCK + 5);
        let (report, _, after) = repaired(&image);
        assert!(report.is_consistent(), "height {height}: {:?}", report.findings);
        assert_eq!(lost(&report), [(TREE, 0, Some(200 * BLOCK + 5))], "height {height}");
        let (again, _, _) = repaired(&after);
        assert_eq!(again.lost_before.len(), 1, "one range: {:?}", again.lost_before);
        assert_eq!((again.lost_before[0].offset, again.lost_before[0].bytes), (0, Some(200 * BLOCK + 5)));
        // 192 blocks are one record, nine more and the holes behind them are a page.
        let Record::Pointer { page, height: 2 } = after.inode(TREE).root_record().decode(LineAddress::new(0)).expect("valid") else {
            panic!("a page of height 2")
        };
        assert_eq!(after.record(page.number(), 0), Record::Lost { height: 1, leaf: None });
        let Record::Pointer { page, height: 1 } = after.record(page.number(), 1) else { panic!("a page of height 1") };
        assert_eq!(
            [0, 8, 9, 191].map(|index| after.record(page.number(), index)),
            [Record::LOST, Record::LOST, Record::HOLE, Record::HOLE]
        );
    }
}

#[test]
fn a_damaged_leaf_does_not_show_the_older_bytes_below() {
    let mut image = Image::crashed();
    image.damage(FILE_LEAF);
    let (report, _, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert_eq!(lost(&report), [(FILE, 0, Some(12_188))]);
    assert_eq!(after.inode(FILE).root, [0; 20]);
}

#[test]
fn damaged_sectors_and_logs_become_zeros() {
    let mut image = Image::crashed();
    image.blocks[2 * 4096 + 9] ^= 1;
    image.damage(DATA + 4);
    let (report, _, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert_eq!(lost(&report), [(FILE, 4096, Some(4096)), (FILE, 5000, Some(200))]);
    assert_eq!(after.blocks[2 * 4096..3 * 4096], [0; 4096]);
    assert_eq!(after.blocks[4096..2 * 4096], image.blocks[4096..2 * 4096], "the neighbours stay");
}

#[test]
fn two_claims_of_sectors_both_keep_their_bytes() {
    let mut image = Image::crashed();
    let Record::Block { extent: Some(extent), .. } = image.record(TREE_PAGE, 2) else { panic!("a block") };
    image.put_record(TREE, TREE_PAGE, 4, Record::Block { extent: Some(extent), leaf: None });
    image.edit_inode(TREE, |inode| (inode.size, inode.space_512) = (5 * BLOCK, inode.space_512 + 8));
    let (report, _, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let Record::Block { extent: Some(copy), .. } = after.record(TREE_PAGE, 4) else { panic!("a block") };
    assert_ne!(copy.at, extent.at);
    let at = |at: DataAddress| {
        let first = at.sector().expect("a sector").number() as usize * 4096;
        first..first + 4096
    };
    assert_eq!(after.blocks[at(copy.at)], after.blocks[at(extent.at)]);
}

#[test]
fn a_page_that_a_mapping_lost_is_found_again() {
    let mut image = Image::crashed();
    image.edit_inode(DIRECTORY, |inode| inode.root = [0; 20]);
    let (report, tree, _) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(tree.contains("small") && tree.contains("link") && report.placed.is_empty(), "{tree}");
}

#[test]
fn a_damaged_name_does_not_take_its_neighbours() {
    let mut image = Image::crashed();
    image.damage(ROOT_PAGE + 3);
    let (report, tree, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    for slot in [0, 1, 4, 5, 9] {
        assert_eq!(after.line(ROOT_PAGE + slot), image.line(ROOT_PAGE + slot), "slot {slot}: {tree}");
    }
}

#[test]
fn a_cycle_of_directories_is_cut_and_found() {
    let mut image = Image::crashed();
    image.add_empty(9, file_type::DIRECTORY | 0o755, 3);
    image.edit_inode(9, |inode| inode.parent = InodeNumber::new(DIRECTORY));
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 5, b"below", 9);
    let page = DENTRIES + 128;
    image.edit_inode(9, |inode| {
        (inode.size, inode.space_512, inode.root) = (4096, 8, Record::Memory(LineAddress::new(page)).encode().to_bytes());
    });
    image.put(ROOT_PAGE + 1, [0; 64]);
    image.put_name(9, page, 0, b"above", DIRECTORY);
    image.edit_inode(DIRECTORY, |inode| (inode.parent, inode.nlink) = (InodeNumber::new(9), 3));
    image.edit_inode(ROOT, |inode| inode.nlink = 2);
    assert!(image.findings().contains(&DirectoryCircle { inode: DIRECTORY }), "{:?}", image.findings());
    let (report, tree, _) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.placed.iter().any(|placed| placed.path == "/lost+found/#3"), "{tree}");
}

#[test]
fn what_contradicts_itself_is_repaired() {
    for plant in [
        |image: &mut Image| image.put_name(ROOT, ROOT_PAGE, 7, b"file", TREE),
        |image: &mut Image| image.put_name(DIRECTORY, DIRECTORY_PAGE, 7, b"again", DIRECTORY),
        |image: &mut Image| image.put_name(DIRECTORY, DIRECTORY_PAGE, 7, b"root", ROOT),
        |image: &mut Image| image.put_name(ROOT, ROOT_PAGE, 7, b"a/b", TREE),
        |image: &mut Image| image.edit_inode(FILE, |inode| inode.size = 100),
        |image: &mut Image| image.edit_inode(TREE, |inode| inode.size = 100),
        |image: &mut Image| image.edit_inode(DIRECTORY, |inode| inode.size = 0),
        |image: &mut Image| image.edit_inode(DIRECTORY, |inode| inode.size = 3 * 4096),
        |image: &mut Image| image.edit_inode(DIRECTORY, |inode| inode.size = 77),
        |image: &mut Image| image.edit_inode(NULL, |inode| inode.size = 77),
        |image: &mut Image| image.edit_inode(LINK, |inode| inode.size = 0),
        |image: &mut Image| image.edit_hot(FILE, |hot| hot.atime = u64::MAX.into()),
        |image: &mut Image| image.edit_extent(FILE, |extent| extent.at = DataAddress::Sector(tandemfs_format::Sector::new(1 << 30))),
        |image: &mut Image| image.edit_leaf(|log| log.offset = 100),
        |image: &mut Image| image.edit_leaf(|log| log.address = LineAddress::new(DATA)),
        |image: &mut Image| image.edit_single_log(SMALL, |log| log.address = LineAddress::new(LEAVES)),
        |image: &mut Image| image.add_empty(9, file_type::REGULAR, 1),
        |image: &mut Image| image.remove_inode(ROOT),
        |image: &mut Image| image.edit_inode(ROOT, |inode| inode.mode = file_type::REGULAR | 0o644),
    ] {
        let mut image = Image::crashed();
        plant(&mut image);
        let before = image.findings();
        let (report, _, _) = repaired(&image);
        assert!(!before.is_empty() && report.is_consistent(), "{before:?} left {:?}", report.findings);
    }
}

/// Many directories without a name, more than one directory takes.
#[test]
fn a_full_lost_and_found_gets_subdirectories() {
    let mut image = Image::crashed();
    for number in 100..400 {
        image.add_empty(number, file_type::DIRECTORY | 0o755, 2);
        image.edit_inode(number, |inode| inode.parent = InodeNumber::new(NOBODY));
    }
    let options = CheckOptions { subdirectories_max: 100, ..options(true) };
    let (report, tree, _) = repaired_with(&image, &options);
    assert!(report.is_consistent(), "{:?}", report.findings);
    let under = |prefix: &str| report.placed.iter().filter(|placed| placed.path.starts_with(prefix) && placed.path.contains('#')).count();
    assert_eq!(under("/lost+found/"), 300, "{tree}");
    assert_eq!(under("/lost+found/#"), 99);
    assert_eq!(under("/lost+found/more/#"), 99);
    assert_eq!(under("/lost+found/more/more/#"), 99);
    assert_eq!(under("/lost+found/more/more/more/#"), 3);
}

/// Thousands of names: new pages and a new tree of them are linked by one record.
#[test]
fn many_files_without_a_name_get_pages_of_their_own() {
    let mut image = Image::crashed();
    for number in 40..1900 {
        image.add_empty(number, file_type::REGULAR | 0o600, 1);
    }
    let (report, _, after) = repaired(&image);
    assert!(report.is_consistent(), "{:?}", report.findings.first());
    assert_eq!(report.placed.len(), 1860);
    assert_eq!(after.inode(ROOT).size / 4096, 1 + (1860 - 57_u64).div_ceil(64));
}

#[test]
fn without_free_lines_inodes_stay_in_use_without_a_name() {
    let mut image = Image::crashed();
    image.damage(Image::inode_line(DIRECTORY));
    // No free slot for lost+found: all of the segment is in use.
    for number in 9..MARK / 2 {
        image.add_empty(number, file_type::FIFO, 0);
    }
    let full = tandemfs_format::segment::Segment {
        region: tandemfs_format::segment::Region::Inodes,
        start_unit: 1,
        unit_count: 1,
        region_unit: 0,
        high_water_lines: tandemfs_format::UNIT_LINES,
    };
    image.put_segment(0, &full);
    for number in MARK / 2..tandemfs_format::UNIT_LINES / 2 {
        image.add_empty(number, file_type::FIFO, 0);
    }
    // The slot of the lost directory is free, and is used.
    let (report, tree, _) = repaired(&image);
    assert!(report.is_consistent(), "{tree} {:?}", report.findings);

    image.add_empty(DIRECTORY, file_type::FIFO, 0);
    image.put(ROOT_PAGE + 1, [0; 64]);
    image.edit_inode(ROOT, |inode| inode.nlink = 2);
    let (report, _, _) = repaired(&image);
    let left: Vec<&Finding> = report.findings.iter().map(|located| &located.finding).collect();
    assert!(left.contains(&&Unreachable { inode: SMALL }), "{left:?}");
}

#[test]
fn preening_loses_nothing() {
    for (plant, left) in [
        ((|image| image.damage(TREE_PAGE)) as fn(&mut Image), 1),
        (|image| image.damage(Image::inode_line(FILE)), 1),
        (|image| image.damage(ROOT_PAGE), 1),
        (|image| image.blocks[4096] ^= 1, 1),
        (|image| image.edit_inode(FILE, |inode| inode.nlink = 7), 0),
        (|image| image.edit_head(ROOT, ROOT_PAGE + 9, |head| head.file_type = 8), 0),
        (|image| image.add_empty(9, file_type::REGULAR, 1), 0),
        (|image| image.memory[7] ^= 1, 0),
    ] {
        let mut image = Image::small();
        plant(&mut image);
        let before = image.findings();
        let (report, _, after) = repaired_with(&image, &CheckOptions { preen: true, ..options(true) });
        assert!(report.lost.is_empty() && !before.is_empty());
        assert_eq!(report.findings.len(), left, "{before:?}: {:?}", report.findings);
        assert_eq!(after.blocks, image.blocks);
    }
}

#[test]
fn a_dry_run_says_what_a_repair_does_and_writes_nothing() {
    let mut image = Image::crashed();
    image.damage(Image::inode_line(DIRECTORY));
    image.damage(TREE_PAGE);
    image.blocks[4096] ^= 1;
    let device = image.device();
    let before = device.bytes();
    let said = report_with(&device, &CheckOptions { dry_run: true, ..options(true) });
    assert!(device.bytes() == before && said.dry_run);
    let (done, _, _) = repaired(&image);
    assert_eq!((said.repaired, said.lost, said.placed), (done.repaired, done.lost, done.placed));
    assert!(said.findings.is_empty());
}
