//! Check sees an image as the next mount would: with the journal replayed, in host memory only.

mod support;

use support::*;
use tandemfs_check::Finding::{LinkCount, LogDamaged, RecordDamaged};
use tandemfs_format::Line;
use tandemfs_format::geometry::RING_BYTES_MIN;
use tandemfs_format::superblock::Tail;

/// The hot line of [`FILE`] with another link count: whichever version check reports is the one it saw.
fn version(image: &Image, nlink: u32) -> (u64, Line) {
    let mut other = image.clone();
    other.edit_inode(FILE, |inode| inode.nlink = nlink);
    let line = Image::inode_line(FILE);
    (line, other.line(line))
}

fn seen(image: &Image) -> u32 {
    let device = image.device();
    let before = device.bytes();
    let found = findings(&report(&device, false));
    assert!(device.bytes() == before, "check writes nothing");
    match found.as_slice() {
        [] => 2,
        [LinkCount { inode: FILE, found, .. }] => *found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_of_all_rings_are_replayed_in_the_order_of_their_numbers() {
    let mut image = Image::crashed();
    let (old, middle, new) = (version(&image, 7), version(&image, 8), version(&image, 9));
    image.put_journal(3, 0, 103, &[old]);
    let first = image.put_journal(1, 0, 102, &[middle]);
    assert_eq!(seen(&image), 7);
    image.put_journal(1, first, 104, &[new]);
    assert_eq!(seen(&image), 9);
}

#[test]
fn records_at_or_below_the_watermark_are_home() {
    let mut image = Image::crashed();
    let (old, new) = (version(&image, 7), version(&image, 8));
    let first = image.put_journal(0, 0, 100, &[old]);
    assert_eq!(seen(&image), 2);
    image.put_journal(0, first, 101, &[new]);
    assert_eq!(seen(&image), 8);
}

#[test]
fn a_torn_record_ends_its_ring() {
    let mut image = Image::crashed();
    let (first, second, third) = (version(&image, 7), version(&image, 8), version(&image, 9));
    let one = image.put_journal(0, 0, 101, &[first]);
    let two = image.put_journal(0, one, 102, &[second]);
    image.put_journal(0, one + two, 103, &[third]);
    assert_eq!(seen(&image), 9);
    let at = |skip: u32| image.superblock.geometry.ring(0).offset_bytes() as usize + (128 + skip + 60) as usize;
    let (second, third) = (at(one), at(one + two));
    image.memory[third] ^= 1;
    assert_eq!(seen(&image), 8);
    image.memory[second] ^= 1;
    assert_eq!(seen(&image), 7);
}

/// A cut tears only the last record of a ring. If one behind is valid, the record before it was damaged.
#[test]
fn a_damaged_record_in_the_middle_is_no_end() {
    let mut image = Image::crashed();
    let (first, second, third) = (version(&image, 7), version(&image, 8), version(&image, 9));
    let one = image.put_journal(0, 0, 101, &[first]);
    let two = image.put_journal(0, one, 102, &[second]);
    image.put_journal(0, one + two, 103, &[third]);
    let other = image.put_journal(1, 0, 104, &[(Image::inode_line(SMALL), image.line(Image::inode_line(SMALL)))]);
    image.put_journal(1, other + 64, 106, &[(Image::inode_line(NULL), image.line(Image::inode_line(NULL)))]);
    let at = image.superblock.geometry.ring(0).offset_bytes() as usize + (128 + one + 60) as usize;
    image.memory[at] ^= 1;
    let device = image.device();
    let found = findings(&report(&device, false));
    let damaged = |ring, offset, next| RecordDamaged { ring, offset, next };
    assert_eq!(found[..2], [damaged(0, 128 + one, 103), damaged(1, 128 + other, 106)], "{found:?}");
    assert!(matches!(found[2..], [LinkCount { inode: FILE, found: 9, .. }]), "the record behind it counts: {found:?}");
    let repaired = report(&device, true);
    assert!(repaired.is_consistent(), "{:?}", repaired.findings);
    assert_eq!(repaired.repaired.len(), 3, "{:?}", repaired.repaired);
    assert!(report(&device, false).is_consistent());
}

/// A mount refused a forged ring whose txids fall; check found nothing.
#[test]
fn regression_records_behind_a_higher_number_were_not_seen() {
    let mut image = Image::crashed();
    let (first, second, third) = (version(&image, 7), version(&image, 8), version(&image, 9));
    let one = image.put_journal(0, 0, 150, &[first]);
    let two = image.put_journal(0, one, 102, &[second]);
    image.put_journal(0, one + two, 103, &[third]);
    let device = image.device();
    let found = findings(&report(&device, false));
    assert!(matches!(found[..], [RecordDamaged { ring: 0, next: 103, .. }, LinkCount { inode: FILE, found: 7, .. }]), "{found:?}");
    assert!(report(&device, true).is_consistent());
    assert!(report(&device, false).is_consistent());
}

#[test]
fn a_damaged_record_before_a_wrap_is_no_end() {
    let mut image = Image::crashed();
    let near_end = RING_BYTES_MIN as u32 - 192;
    let (first, second) = (version(&image, 7), version(&image, 8));
    image.superblock.tails[0] = Tail { offset_bytes: 0, wrap: 7 };
    image.put_journal(0, 0, 103, &[second]);
    image.edit_superblock(|superblock| superblock.tails[0] = Tail { offset_bytes: near_end - 128, wrap: 6 });
    let length = image.put_journal(0, 0, 101, &[first]);
    image.put_journal(0, length, 102, &[first]);
    assert_eq!(seen(&image), 8);
    let at = image.superblock.geometry.ring(0).offset_bytes() as usize + (near_end + 60) as usize;
    image.memory[at] ^= 1;
    let found = findings(&report(&image.device(), false));
    assert!(matches!(found[..], [RecordDamaged { ring: 0, next: 103, .. }, LinkCount { inode: FILE, found: 8, .. }]), "{found:?}");
}

/// The record before the wrap has lost its header, so nothing at its place says that it was there. But the one at the front would have fitted
/// there: check found nothing, and the mount refused the journal.
#[test]
fn a_record_without_its_header_before_a_wrap_is_no_end() {
    header_lost_before_a_wrap();
}

fn header_lost_before_a_wrap() {
    let near_end = RING_BYTES_MIN as u32 - 192;
    for lost in [0..64, 4..8, 16..24, 24..28] {
        let mut image = Image::crashed();
        let (first, second) = (version(&image, 7), version(&image, 8));
        image.superblock.tails[0] = Tail { offset_bytes: 0, wrap: 7 };
        image.put_journal(0, 0, 102, &[second]);
        image.edit_superblock(|superblock| superblock.tails[0] = Tail { offset_bytes: near_end, wrap: 6 });
        image.put_journal(0, 0, 101, &[first]);
        assert_eq!(seen(&image), 8);
        let at = image.superblock.geometry.ring(0).offset_bytes() as usize + near_end as usize;
        image.memory[at + lost.start..at + lost.end].fill(0);
        let device = image.device();
        let found = findings(&report(&device, false));
        let expected = RecordDamaged { ring: 0, offset: near_end, next: 102 };
        assert!(matches!(&found[..], [first, LinkCount { inode: FILE, found: 8, .. }] if *first == expected), "{found:?}");
        let repaired = report(&device, true);
        assert!(repaired.is_consistent() && repaired.repaired.len() == 2, "{repaired:?}");
        assert!(report(&device, false).is_consistent());
    }
}

#[test]
fn a_front_that_is_taken_though_it_would_have_fitted_is_caught() {
    assert_caught(&[(header_lost_before_a_wrap, tandemfs_check::mutant::Mutant::FrontFollowsDamage)]);
}

#[test]
fn a_record_that_does_not_fit_starts_at_the_front() {
    let mut image = Image::crashed();
    let near_end = RING_BYTES_MIN as u32 - 192;
    image.edit_superblock(|superblock| superblock.tails[0] = Tail { offset_bytes: near_end, wrap: 6 });
    let (first, second) = (version(&image, 7), version(&image, 8));
    assert_eq!(image.put_journal(0, 0, 101, &[first]), 128);
    assert_eq!(seen(&image), 7);
    image.superblock.tails[0] = Tail { offset_bytes: 0, wrap: 7 };
    image.put_journal(0, 0, 102, &[second]); // the 64 B behind the first were too few
    image.superblock.tails[0] = Tail { offset_bytes: near_end, wrap: 6 };
    assert_eq!(seen(&image), 8);
}

#[test]
fn records_of_another_mount_prove_nothing() {
    let mut image = Image::crashed();
    let newer = version(&image, 7);
    image.put_journal(0, 0, 101, &[newer]);
    image.edit_superblock(|superblock| superblock.generation += 1);
    assert_eq!(seen(&image), 2);
}

/// Data in logs was verified as it stood, not as replay leaves it: check found nothing, and the next mount could not read the file.
#[test]
fn regression_a_record_over_a_data_log_is_seen() {
    let mut image = Image::crashed();
    image.put_journal(0, 0, 101, &[(DATA, [9; 64])]);
    let found = findings(&report(&image.device(), false));
    assert!(matches!(found.as_slice(), [LogDamaged { inode: FILE, .. }]), "{found:?}");
}
