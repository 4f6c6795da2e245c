//! For arbitrary bytes check, repair and dump return, and a second check agrees with the result of the repair.
//!
//! A failure prints the seed of its damage: flipped bits, lines swapped or overwritten, and lines of random fields with valid checksums,
//! which reach the most code.

mod support;

use support::*;
use tandemfs_check::{Dump, Finding, check};
use tandemfs_device::Drive;
use tandemfs_format::checksum::crc32c;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::{EMPTY_LINE, InodeNumber, Line, LineAddress, Place};

/// Seeds of an ordinary run; `TANDEMFS_CHECK_SEEDS=FIRST-LAST` asks for others.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=150;

fn seeds() -> std::ops::RangeInclusive<u64> {
    let asked = std::env::var("TANDEMFS_CHECK_SEEDS").ok();
    let range =
        asked.as_deref().and_then(|text| text.split_once('-')).and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    range.unwrap_or(SEEDS)
}

/// Lines with a meaning, and the inode that owns each (0 for segments).
fn lines(image: &Image) -> Vec<(u64, u64)> {
    let mut lines: Vec<(u64, u64)> = (0..8).map(|index| (image.superblock.geometry.segment_line(index).number(), 0)).collect();
    lines.extend((1..=8).flat_map(|number| [0, 1].map(|line| (Image::inode_line(number) + line, number))));
    lines.extend((0..10).map(|slot| (ROOT_PAGE + slot, ROOT)));
    lines.extend((0..3).map(|slot| (DIRECTORY_PAGE + slot, DIRECTORY)));
    lines.extend((0..3).map(|line| (TREE_PAGE + line, TREE)));
    lines.extend([(FILE_VECTOR, FILE), (FILE_LEAF, FILE), (TREE_VECTOR, TREE)]);
    lines
}

fn random_line(random: &mut Random) -> Line {
    let mut line = EMPTY_LINE;
    line.fill_with(|| random.below(256) as u8);
    line
}

/// The place of a line as its owner seals it.
fn place_of(image: &Image, (line, owner): (u64, u64)) -> Place {
    let of_inodes = (INODES..DENTRIES).contains(&line) || owner == 0;
    let generation = if of_inodes { 0 } else { 1000 + owner as u32 };
    Place { pair: image.pair(), address: LineAddress::new(line), inode: InodeNumber::new(owner), generation }
}

fn harm(image: &mut Image, random: &mut Random) {
    let lines = lines(image);
    let any = |random: &mut Random| lines[random.below(lines.len() as u64) as usize];
    let target = any(random);
    let mut line = image.line(target.0);
    match random.below(8) {
        0 => line[random.below(64) as usize] ^= 1 << random.below(8),
        1 => line = image.line(any(random).0),
        2 => line = random_line(random),
        3 => line = EMPTY_LINE,
        // A few bytes changed, or all, and sealed.
        4 | 5 => {
            for _ in 0..=random.below(4) {
                line[4 + random.below(60) as usize] = [0, 1, 0xff, random.below(256) as u8][random.below(4) as usize];
            }
            line = place_of(image, target).seal(line);
        }
        6 => line = place_of(image, target).seal(image.line(any(random).0)),
        _ => {
            // Superblock: a field changed under a checksum that fits.
            let at = SUPERBLOCK_OFFSETS[random.below(2) as usize] as usize;
            let field = 12 + random.below(560) as usize;
            image.memory[at + field] = random.below(256) as u8;
            let crc = crc32c(&image.memory[at + 4..at + 1024]);
            image.memory[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            return;
        }
    }
    image.put(target.0, line);
}

#[test]
fn check_repair_and_dump_return_whatever_the_bytes() {
    let (mut consistent, mut refused) = (0, 0);
    for seed in seeds() {
        eprintln!("seed {seed}");
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut image = if random.below(2) == 0 { Image::small() } else { Image::crashed() };
        if random.below(3) == 0 {
            let known = lines(&image);
            let changes: Vec<(u64, Line)> = (0..random.below(6))
                .map(|_| {
                    let target = known[random.below(known.len() as u64) as usize];
                    (target.0, place_of(&image, target).seal(random_line(&mut random)))
                })
                .collect();
            image.put_journal(0, 0, 101, &changes);
        }
        for _ in 0..=random.below(6) {
            harm(&mut image, &mut random);
        }
        let device = image.device();
        let drive = Drive::new(device.clone());
        if let Ok(dump) = Dump::open(&drive) {
            let mut out = Vec::new();
            for number in 0..12 {
                drop(dump.inode(number, &mut out));
            }
            drop((dump.superblock(&mut out), dump.segments(&mut out), dump.journal(&mut out), dump.tree("/", &mut out)));
            assert!(out.len() < 4 << 20, "{}", out.len());
        }
        let Ok(_) = check(&drive, &options(false), &mut |_| {}) else {
            refused += 1;
            continue;
        };
        let Ok(report) = check(&drive, &options(true), &mut |_| {}) else { continue };
        let again = support::report(&device, false);
        assert_eq!(findings(&report).len(), again.findings.len());
        for finding in findings(&again) {
            assert!(findings(&report).contains(&finding), "{finding}");
        }
        // What no repair removes: a damaged segment table, records that a mount refuses, a block half that may be another's.
        let is_left = |finding: &Finding| {
            let id = finding.id();
            id.starts_with("segment") || ["record_out_of_place", "record_twice", "identity_damaged"].contains(&id)
        };
        // A segment may be gone without a finding of its own.
        let table = image.superblock.geometry.segment_line(0).number();
        let table_changed = (table..table + 8).any(|line| image.line(line) != Image::small().line(line));
        let is_all_repaired = again.is_consistent() || table_changed || findings(&again).iter().any(is_left);
        assert!(is_all_repaired, "left {:?}", again.findings);
        consistent += u64::from(again.is_consistent());
    }
    let count = seeds().count() as u64;
    assert!(
        count < 100 || consistent > count / 20 && refused < count / 4,
        "{consistent} mended, {refused} refused: the damage is too dull"
    );
}

/// Restores of damaged images end, stay inside their directory, and write nothing to the image.
#[test]
fn restore_returns_and_stays_inside_whatever_the_bytes() {
    use support::restored::restored_to;
    use tandemfs_check::RestoreOptions;
    let mut with_files = 0;
    for seed in seeds() {
        eprintln!("seed {seed}");
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut image = if random.below(2) == 0 { Image::attributed() } else { Image::crashed() };
        for _ in 0..=random.below(12) {
            harm(&mut image, &mut random);
        }
        for _ in 0..random.below(3) {
            let table = image.superblock.geometry.segment_line(random.below(6)).number();
            image.put(table, random_line(&mut random));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let device = image.device();
        let before = device.bytes();
        let options = RestoreOptions { ignore_errors: random.below(2) == 0, ..RestoreOptions::default() };
        let top = folder.path().join("top/copy");
        std::fs::create_dir(folder.path().join("top")).expect("a directory");
        let restored = restored_to(device.clone(), &top, &options);
        assert!(device.bytes() == before, "the image is only read");
        assert!(std::fs::read_dir(folder.path().join("top")).expect("reads").count() <= 1, "nothing beside");
        assert!(std::fs::read_dir(folder.path()).expect("reads").count() == 1, "nothing outside");
        let Ok(report) = restored else { continue };
        assert_eq!(report.stopped, None);
        with_files += u64::from(report.files > 0);
    }
    let count = seeds().count() as u64;
    assert!(count < 100 || with_files > count / 2, "{with_files} with files: the damage is too much");
}

/// A rescue of an image of which anything may be wrong ends, and what it rebuilt stays.
#[test]
fn rescue_returns_whatever_the_bytes() {
    let mut consistent = 0;
    for seed in seeds() {
        eprintln!("seed {seed}");
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut image = if random.below(2) == 0 { Image::attributed() } else { Image::crashed() };
        for _ in 0..random.below(4) {
            harm(&mut image, &mut random);
        }
        for _ in 0..=random.below(4) {
            let table = image.superblock.geometry.segment_line(random.below(6)).number();
            image.put(table, if random.below(2) == 0 { EMPTY_LINE } else { random_line(&mut random) });
        }
        let device = image.device();
        let drive = Drive::new(device.clone());
        let rescue = tandemfs_check::CheckOptions { rescue: true, ..options(true) };
        let Ok(report) = check(&drive, &rescue, &mut |_| {}) else { continue };
        let again = support::report(&device, false);
        assert_eq!(findings(&report), findings(&again));
        consistent += u64::from(again.is_consistent());
    }
    let count = seeds().count() as u64;
    assert!(count < 100 || consistent > count / 2, "{consistent} of {count} rescued");
}
