//! `check --rescue` rebuilds the segment table and superblocks from what proves itself, and only from that. Afterwards the image is clean,
//! and every file is what it was.

mod support;

use support::restored::*;
use support::*;
use tandemfs_check::Finding::*;
use tandemfs_check::{CheckError, CheckOptions, Report, RestoreOptions, check, undo};
use tandemfs_device::Drive;
use tandemfs_format::identity::Stamps;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{Superblock, compat, ro_compat};
use tandemfs_format::{EMPTY_LINE, LineAddress};

/// Lines of the table that the image uses.
const SEGMENTS: u64 = 5;

fn rescue() -> CheckOptions {
    CheckOptions { rescue: true, ..options(true) }
}

fn table_line(image: &Image, index: u64) -> u64 {
    image.superblock.geometry.segment_line(index).number()
}

fn files(image: &Image) -> Tree {
    restored(image.device(), &RestoreOptions::default()).1
}

/// Damages lines of the table, and takes nothing from the rest.
fn without(lines: &[u64], bytes: impl Fn(u64) -> [u8; 64]) -> Image {
    let mut image = Image::attributed();
    for index in lines {
        let line = table_line(&image, *index);
        image.put(line, bytes(*index));
    }
    image
}

fn segments(image: &Image) -> Vec<Segment> {
    let units = image.superblock.geometry.memory_units();
    (0..16)
        .filter_map(|index| {
            let line = table_line(image, index);
            Segment::decode(&image.line(line), image.pair(), LineAddress::new(line), units).expect("verifies")
        })
        .collect()
}

fn with_bytes(image: &Image, (memory, blocks): (Vec<u8>, Vec<u8>)) -> Image {
    let mut image = image.clone();
    (image.memory, image.blocks) = (memory, blocks);
    image
}

fn rescued(image: &Image) -> (Report, Image) {
    let device = image.device();
    let report = report_with(&device, &rescue());
    (report, with_bytes(image, device.bytes()))
}

/// A rescued image is clean, has all files, and its segments have the units that they had.
fn assert_rescued(image: &Image, whole: &Tree) {
    assert!(!report(&image.device(), false).is_consistent(), "there is something to do");
    assert_eq!(files(image), *whole, "restore needs no rescue");
    let (report, after) = rescued(image);
    assert!(report.is_consistent(), "{:?}", report.findings);
    assert!(report.lost.is_empty() && report.placed.is_empty(), "{:?} {:?}", report.lost, report.placed);
    assert!(support::report(&after.device(), false).is_consistent());
    assert_eq!(files(&after), *whole);
    let mut found: Vec<(Region, u64, u64)> =
        segments(&after).iter().map(|segment| (segment.region, segment.start_unit, segment.region_unit)).collect();
    found.sort_unstable();
    let regions = [Region::Inodes, Region::Dentries, Region::Mappings, Region::Leaves, Region::Attributes];
    let starts = [1, 2, 3, 4, 6];
    assert_eq!(found, regions.into_iter().zip(starts).map(|(region, start)| (region, start, 0)).collect::<Vec<_>>());
}

#[test]
fn each_line_of_the_table_is_rebuilt() {
    let whole = files(&Image::attributed());
    for index in 0..SEGMENTS {
        assert_rescued(&without(&[index], |_| [0x3c; 64]), &whole);
    }
}

#[test]
fn a_table_of_which_nothing_is_left_is_rebuilt() {
    let whole = files(&Image::attributed());
    let all: Vec<u64> = (0..tandemfs_format::geometry::SEGMENT_TABLE_LINES).collect();
    assert_rescued(&without(&all[..64], |_| [0x3c; 64]), &whole);
    assert_rescued(&without(&all, |index| [index as u8 | 1; 64]), &whole);
    assert_rescued(&without(&all, |_| EMPTY_LINE), &whole);
    assert_rescued(&without(&[0, 1, 2, 3], |_| EMPTY_LINE), &whole);
}

#[test]
fn a_table_that_contradicts_itself_is_rebuilt() {
    let whole = files(&Image::attributed());
    let mut image = Image::attributed();
    let twice = Segment { region: Region::Leaves, start_unit: 1, unit_count: 1, region_unit: 1, high_water_lines: 64 };
    image.put_segment(9, &twice);
    assert_rescued(&image, &whole);
    let mut image = Image::attributed();
    image.put_segment(2, &Segment { region: Region::Mappings, start_unit: 0, unit_count: 1, region_unit: 0, high_water_lines: 64 });
    assert_rescued(&image, &whole);
}

/// Without this, a repair would take all inodes for gone, and every name with them.
#[test]
fn regression_repair_of_a_zeroed_line_of_the_table() {
    for index in 0..SEGMENTS {
        let image = without(&[index], |_| EMPTY_LINE);
        let device = image.device();
        let before = device.bytes();
        let report = report(&device, true);
        assert!(
            report.findings.iter().any(|located| matches!(located.finding, RegionMissing { .. } | UnitLost { .. })),
            "{:?}",
            report.findings
        );
        assert!(device.bytes() == before, "a repair writes nothing");
    }
}

#[test]
fn a_clean_image_is_left_as_it_is() {
    let image = Image::small();
    let (report, after) = rescued(&image);
    assert!(report.is_consistent() && report.rescued.is_empty());
    assert!(after.memory == image.memory && after.blocks == image.blocks);
}

#[test]
fn a_dry_run_writes_nothing_and_an_undo_takes_everything_back() {
    let image = without(&[0, 1, 2], |_| [0x3c; 64]);
    let device = image.device();
    let before = device.bytes();
    let dry = report_with(&device, &CheckOptions { dry_run: true, ..rescue() });
    assert!(dry.is_consistent() && !dry.rescued.is_empty() && device.bytes() == before);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("undo");
    let report = report_with(&device, &CheckOptions { undo: Some(file.clone()), ..rescue() });
    assert_eq!(report.rescued, dry.rescued);
    assert!(report.is_consistent() && device.bytes() != before);
    undo(&Drive::new(device.clone()), &file).expect("undone");
    assert!(device.bytes() == before);
}

#[test]
fn a_rescue_cut_anywhere_only_has_to_be_repeated() {
    cuts(5, 1);
}

/// A table that takes two records.
#[test]
fn a_rescue_of_many_lines_only_has_to_be_repeated() {
    cuts(700, 151);
}

fn cuts(lines: u64, step: usize) {
    let whole = files(&Image::attributed());
    let all: Vec<u64> = (0..lines).collect();
    let image = without(&all, |_| [0x3c; 64]);
    let device = image.device();
    assert!(report_with(&device, &rescue()).is_consistent());
    for cut in (0..device.writes()).step_by(step) {
        let device = image.device();
        device.faults.lock().expect("lock").writes_left = Some(cut);
        assert!(check(&Drive::new(device.clone()), &rescue(), &mut |_| {}).is_err(), "cut {cut}");
        let cut_image = with_bytes(&image, device.bytes());
        assert_eq!(files(&cut_image), whole, "cut {cut}");
        // Nobody who repairs instead makes it worse.
        let repaired = cut_image.device();
        report(&repaired, true);
        let (report, after) = rescued(&with_bytes(&image, repaired.bytes()));
        assert!(report.is_consistent() && report.lost.is_empty(), "cut {cut}");
        assert_eq!(files(&after), whole, "cut {cut}");
    }
}

fn both_copies(image: &mut Image, damage: impl Fn(&mut [u8], usize)) {
    for (copy, start) in [0, 64 << 10].into_iter().enumerate() {
        damage(&mut image.memory[start..start + 1024], copy);
    }
}

#[test]
fn two_damaged_superblocks_are_put_together() {
    let whole = files(&Image::attributed());
    let scenes: [fn(&mut [u8], usize); 4] = [
        |bytes, copy| bytes[200 + copy] ^= 0x10,              // a wrong bit in each
        |bytes, _| bytes[4] ^= 1,                             // in the magic number
        |bytes, copy| bytes[64 * (copy + 1)..][..64].fill(9), // a line of each
        |bytes, copy| bytes[512 * copy..][..512].fill(0xff),  // a half of each
    ];
    for damage in scenes {
        let mut image = Image::attributed();
        both_copies(&mut image, damage);
        let refused = check(&Drive::new(image.device()), &options(true), &mut |_| {}).expect_err("refused").to_string();
        assert!(refused.contains("restore") || refused.contains("no superblock"), "{refused}");
        assert_eq!(files(&image), whole);
        let (report, after) = rescued(&image);
        assert!(report.is_consistent(), "{:?}", report.findings);
        assert!(support::report(&after.device(), false).is_consistent());
        assert_eq!(files(&after), whole);
    }
}

#[test]
fn superblocks_that_prove_nothing_are_not_invented() {
    let mut image = Image::attributed();
    both_copies(&mut image, |bytes, _| bytes[8..300].fill(7));
    let device = image.device();
    let before = device.bytes();
    let refused = check(&Drive::new(device.clone()), &rescue(), &mut |_| {});
    assert!(matches!(refused, Err(CheckError::Superblock { .. })));
    assert!(device.bytes() == before);
}

#[test]
fn units_of_which_nothing_is_left_are_said() {
    let mut image = without(&[0], |_| [0x3c; 64]);
    for number in 0..16 {
        image.put(INODES + 2 * number, [1; 64]);
        image.put(INODES + 2 * number + 1, [1; 64]);
    }
    let (report, after) = rescued(&image);
    assert!(report.rescued.iter().any(|sentence| sentence.contains("inodes 0 to 16383 were not found")), "{:?}", report.rescued);
    assert!(report.is_consistent() && support::report(&after.device(), false).is_consistent(), "{:?}", report.findings);
}

/// Every line of metadata of the image that carries a checksum.
fn checked_lines() -> Vec<u64> {
    let mut lines: Vec<u64> = (1..=8).flat_map(|number| [0, 1].map(|line| Image::inode_line(number) + line)).collect();
    lines.extend((0..6).chain([9]).map(|slot| ROOT_PAGE + slot));
    lines.extend([DIRECTORY_PAGE, DIRECTORY_PAGE + 1, TREE_PAGE, TREE_PAGE + 1, FILE_LEAF, ATTRIBUTES, ATTRIBUTES + 128]);
    lines
}

#[test]
fn a_wrong_bit_in_any_line_or_in_all_of_them_loses_nothing() {
    let whole = files(&Image::attributed());
    let all = checked_lines();
    let mut sets: Vec<Vec<u64>> = all.iter().map(|line| vec![*line]).collect();
    let mut with_table = all;
    with_table.extend((0..SEGMENTS).map(|index| table_line(&Image::attributed(), index)));
    sets.push(with_table);
    for lines in sets {
        let mut image = Image::attributed();
        lines.iter().for_each(|line| image.flip(*line));
        assert_eq!(files(&image), whole, "restored: {lines:?}");
        // A repair; of all together also a rescue, and a boot's repair of what loses nothing.
        let all = [options(true), rescue(), CheckOptions { preen: true, ..options(true) }];
        for options in &all[..if lines.len() > 1 { 3 } else { 1 }] {
            let device = image.device();
            let report = report_with(&device, options);
            let after = with_bytes(&image, device.bytes());
            assert!(report.is_consistent() && report.lost.is_empty() && report.placed.is_empty(), "{lines:?}: {:?}", report.findings);
            assert!(report.rescued.iter().any(|sentence| sentence.contains("single wrong bit")), "{:?}", report.rescued);
            assert_eq!(files(&after), whole, "{lines:?}");
            lines.iter().for_each(|line| assert!(after.line(*line) == Image::attributed().line(*line), "line {line} is what it was"));
        }
    }
}

/// The first line of an inode is lost in more than one bit: name, owner, attributes and content are there.
#[test]
fn inodes_without_their_first_line_keep_their_content() {
    let whole = files(&Image::attributed());
    for (number, path, size) in [
        (FILE, "/file", 12_288),
        (TREE, "/tree", 3 * BLOCK + 50),
        (SMALL, "/directory/small", 100),
        (LINK, "", 4),
        (DIRECTORY, "/directory", 0),
    ] {
        let mut image = Image::attributed();
        image.put(Image::inode_line(number), [0x5b; 64]);
        let generation = Image::attributed().inode(number).generation;
        let (report, after) = rescued(&image);
        assert!(report.is_consistent() && report.lost.is_empty() && report.placed.is_empty(), "{number}: {:?}", report.findings);
        assert!(report.rescued.iter().any(|sentence| sentence.contains(&format!("inode {number}: "))), "{:?}", report.rescued);
        let inode = after.inode(number);
        assert_eq!((inode.uid, inode.gid), (1000, 100));
        if [FILE, TREE, DIRECTORY].contains(&number) {
            assert_eq!(inode.generation, generation);
        }
        let now = files(&after);
        assert_eq!(paths(&now), paths(&whole), "{number}");
        assert_eq!(files(&image).keys().collect::<Vec<_>>(), now.keys().collect::<Vec<_>>());
        if !path.is_empty() && number != DIRECTORY {
            assert_eq!(now[path].size, size);
            assert!(now[path].content.starts_with(&whole[path].content), "{path}");
            assert!(files(&image)[path].content == now[path].content);
        }
        if number != SMALL {
            assert_eq!(now["/directory/small"], whole["/directory/small"]);
        }
    }
}

fn marks() {
    let whole = files(&Image::attributed());
    let image = without(&[1, 2], |_| [0x3c; 64]);
    let (report, after) = rescued(&image);
    assert!(report.is_consistent() && report.lost.is_empty(), "{:?}", report.findings);
    assert_eq!(files(&after), whole);
}

/// More than a bit of the same 64 B of both copies: what is known from elsewhere, or needed by nothing, comes back.
#[test]
fn superblocks_damaged_in_the_same_place_are_made_anew_from_what_is_known() {
    let labelled = || {
        let mut image = Image::attributed();
        image.edit_superblock(|superblock| {
            superblock.label = "mail".into();
            superblock.compat |= compat::ERROR_COUNTERS;
            superblock.ro_compat |= ro_compat::STAMP | ro_compat::VOLUME_UUID;
            superblock.stamps = Stamps::settled(77);
            superblock.volume_uuid = uuid::Uuid::from_u128(5);
            superblock.error_counters.data_damaged = 3;
        });
        image
    };
    let whole = files(&labelled());
    // Bytes of the superblock that are lost, and whether label and counters come back too.
    for (lost, keeps) in [
        (4..16, true),     // magic number, version
        (40..56, true),    // pair
        (120..128, true),  // memory size
        (128..136, true),  // block size
        (188..220, true),  // stamps, UUID
        (400..512, true),  // reserved
        (600..1024, true), // tails of rings that there are not
        (64..128, false),
        (192..256, false),
        (256..320, false),
        (320..384, false),
    ] {
        for is_same in [true, false] {
            let mut image = labelled();
            let before = image.superblock.clone();
            both_copies(&mut image, |bytes, copy| bytes[lost.clone()].fill(if is_same { 0x77 } else { 0x71 + copy as u8 }));
            if is_same && !keeps {
                let device = image.device();
                let zones = device.bytes();
                assert!(check(&Drive::new(device.clone()), &rescue(), &mut |_| {}).is_err(), "{lost:?}: nothing shows where the damage is");
                assert!(device.bytes() == zones);
                continue;
            }
            assert_eq!(files(&image), whole, "{lost:?}");
            let (report, after) = rescued(&image);
            assert!(report.is_consistent() && report.lost.is_empty(), "{lost:?}: {:?}", report.findings);
            let now = Superblock::decode(&after.memory[..1024]).expect("verifies");
            assert_eq!(
                (now.pair, now.volume_uuid, now.geometry, now.stamps),
                (before.pair, before.volume_uuid, before.geometry, before.stamps)
            );
            assert_eq!(now.label == "mail" && now.error_counters.data_damaged == 3, keeps, "{lost:?}");
            let is_said = report.rescued.iter().any(|sentence| sentence.contains("made anew without"));
            assert_eq!(is_said, !keeps, "{:?}", report.rescued);
            assert!(support::report(&after.device(), false).is_consistent());
        }
    }
}

/// Where the rings begin matters only while they hold something.
#[test]
fn tails_that_are_lost_are_made_anew_after_a_clean_unmount_only() {
    for (mut image, is_clean) in [(Image::small(), true), (Image::crashed(), false)] {
        both_copies(&mut image, |bytes, copy| bytes[512..576].fill(0x20 + copy as u8));
        let result = check(&Drive::new(image.device()), &rescue(), &mut |_| {});
        assert_eq!(result.is_ok_and(|report| report.is_consistent()), is_clean);
    }
}

#[test]
fn damage_of_the_same_place_in_both_superblocks_is_too_much() {
    let mut image = Image::attributed();
    both_copies(&mut image, |bytes, copy| bytes[160 + 64 * copy] ^= 3);
    assert!(check(&Drive::new(image.device()), &rescue(), &mut |_| {}).is_ok(), "two lines that differ");
    let mut image = Image::attributed();
    both_copies(&mut image, |bytes, _| bytes[160] ^= 3);
    assert!(check(&Drive::new(image.device()), &rescue(), &mut |_| {}).is_err(), "two wrong bits in the same place of both");
}

/// A unit of the data area with one line that verifies as an inode's of a position far behind the others.
fn one_line() {
    let mut image = without(&[0], |_| [0x3c; 64]);
    let number = 5 * tandemfs_format::UNIT_LINES / 2 + 7;
    let line = 7 * tandemfs_format::UNIT_LINES + 14;
    let place = tandemfs_format::Place {
        pair: image.pair(),
        address: LineAddress::new(line),
        inode: tandemfs_format::InodeNumber::new(number),
        generation: 0,
    };
    image.put(line, place.seal([0x44; 64]));
    let (report, _) = rescued(&image);
    assert!(report.is_consistent() && !report.rescued.iter().any(|sentence| sentence.contains("unit 7 found")), "{:?}", report.rescued);
}

#[test]
fn deliberate_bugs_of_the_rescue_are_caught() {
    use tandemfs_check::mutant::Mutant;
    support::assert_caught(&[
        (marks, Mutant::MarksTooLow),
        (one_line, Mutant::OneLineProves),
        (regression_repair_of_a_zeroed_line_of_the_table, Mutant::LostUnitsUnseen),
    ]);
}
