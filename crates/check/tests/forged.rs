//! Clean images whose every line verifies, and that no engine writes: what walks them ends.

mod support;

use std::sync::mpsc::channel;
use std::time::Duration;

use support::*;
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::LineAddress;
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::Record;
use tandemfs_fs::{Error, FileSystem, MountOptions, SeekTo, SetAttributes};

/// Pages of the forged trees, one below the other: a walk that enters each as often as it is named enters 192^5 of them.
const PAGES: u64 = 6;
/// A walk of so few pages takes a few milliseconds.
const MUCH_TOO_LONG: Duration = Duration::from_secs(120);

/// Gives an inode a tree of [`PAGES`] pages, in each of which all records lead to the next page. The last one has `last` in all its records.
fn forge(image: &mut Image, inode: u64, first: u64, last: Record) {
    for page in 0..PAGES {
        let next = LineAddress::new(first + (page + 1) * 64);
        let height = (PAGES - 1 - page) as u32;
        let record = if height > 0 { Record::Pointer { page: next, height } } else { last };
        (0..192).for_each(|index| image.put_record(inode, first + page * 64, index, record));
    }
    let root = Record::Pointer { page: LineAddress::new(first), height: PAGES as u32 };
    image.edit_inode(inode, |inode| inode.root = root.encode().to_bytes());
}

/// A clean image with a forged directory and a forged file, whose saved maps have their pages.
fn forged() -> Image {
    let mut image = Image::small();
    let (of_directory, of_file) = (MAPPINGS + 64, MAPPINGS + 64 * (PAGES + 1));
    image.add_empty(9, file_type::DIRECTORY | 0o755, 2);
    image.edit_inode(9, |inode| inode.size = 4096 * 10);
    forge(&mut image, 9, of_directory, Record::HOLE);
    image.add_empty(10, file_type::REGULAR | 0o644, 1);
    image.edit_inode(10, |inode| inode.size = 1 << 55);
    forge(&mut image, 10, of_file, Record::HOLE);
    image.put_name(ROOT, ROOT_PAGE, 10, b"forged", 9);
    image.put_name(ROOT, ROOT_PAGE, 11, b"forged file", 10);
    image.edit_inode(ROOT, |inode| inode.nlink += 1);
    for (unit, lines) in [(1, Image::inode_line(9)..Image::inode_line(11)), (3, of_directory..of_file + 64 * PAGES)] {
        let (kind, mut bits) = image.piece_bits(unit);
        lines.for_each(|line| bits[(line % 32_768 / 8) as usize] |= 1 << (line % 8));
        image.write_piece(unit, kind, &bits);
    }
    image
}

/// Works on a mounted image, and fails if that does not end.
fn ends(what: &'static str, work: fn(&FileSystem)) {
    let (done, wait) = channel();
    std::thread::spawn(move || {
        let fs = FileSystem::mount(Drive::new(forged().device()), &MountOptions::default()).expect("mounts");
        work(&fs);
        done.send(()).expect("somebody waits");
    });
    wait.recv_timeout(MUCH_TOO_LONG).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn regression_a_look_up_in_a_forged_directory_did_not_end() {
    ends("a look-up", |fs| {
        let found = fs.lookup(InodeNumber::new(9), b"name");
        assert!(matches!(found, Err(Error::Damaged { .. })), "{found:?}");
    });
}

#[test]
fn regression_the_removal_of_a_forged_file_did_not_end() {
    ends("a removal", |fs| fs.unlink(InodeNumber::ROOT, b"forged file").expect("removed"));
}

#[test]
fn regression_a_search_in_a_forged_file_did_not_end() {
    ends("a search for data", |fs| {
        let found = fs.seek(InodeNumber::new(10), 0, SeekTo::Data);
        assert!(matches!(found, Err(Error::Damaged { .. })), "{found:?}");
    });
}

#[test]
fn regression_a_truncation_of_a_forged_file_did_not_end() {
    ends("a truncation", |fs| {
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        fs.set_attributes(InodeNumber::new(10), &size).expect("emptied");
    });
}
