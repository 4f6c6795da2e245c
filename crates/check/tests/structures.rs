//! Every structure of FORMAT.md, damaged in every way: a repair ends clean, a second one writes nothing, and the real file system mounts
//! the result, works on it and leaves it clean.

mod support;

use std::sync::Arc;

use support::*;
use tandemfs_crash::Recorded;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::inode::file_type;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES};
use tandemfs_fs::{FileSystem, MountOptions, NewInode, WriteOptions};

#[derive(Debug, Clone, Copy)]
enum Harm {
    Bit,
    Word,
    Zeros,
    Noise,
    Page,
}

const HARMS: [Harm; 5] = [Harm::Bit, Harm::Word, Harm::Zeros, Harm::Noise, Harm::Page];

fn noise(random: &mut Random) -> [u8; LINE_BYTES] {
    std::array::from_fn(|_| random.below(256) as u8)
}

fn harm(image: &mut Image, line: u64, how: Harm) {
    let mut random = Random(line * 77 + how as u64 + 1);
    match how {
        Harm::Bit => image.flip(line),
        Harm::Word => image.damage(line),
        Harm::Zeros => image.put(line, EMPTY_LINE),
        Harm::Noise => image.put(line, noise(&mut random)),
        Harm::Page => (line / 64 * 64..line / 64 * 64 + 64).for_each(|line| image.put(line, noise(&mut random))),
    }
}

/// A line of each structure.
fn structures(image: &Image) -> Vec<(&'static str, u64)> {
    vec![
        ("superblock A", 0),
        ("superblock B", 1024),
        ("hot line of a file", Image::inode_line(FILE)),
        ("cold line of a file", Image::inode_line(FILE) + 1),
        ("hot line of a directory", Image::inode_line(DIRECTORY)),
        ("cold line of a directory", Image::inode_line(DIRECTORY) + 1),
        ("hot line of the root", Image::inode_line(ROOT)),
        ("cold line of the root", Image::inode_line(ROOT) + 1),
        ("hot line of a link", Image::inode_line(LONG_LINK)),
        ("free slot of the inodes", Image::inode_line(NOBODY)),
        ("slot 0 of the inodes", INODES),
        ("mapping line", TREE_PAGE),
        ("other mapping line", TREE_PAGE + 1),
        ("unused mapping line", TREE_PAGE + 9),
        ("leaf", FILE_LEAF),
        ("vector", FILE_VECTOR),
        ("full vector", TREE_VECTOR),
        ("head of a name", ROOT_PAGE),
        ("head of a long name", ROOT_PAGE + 2),
        ("continuation of a name", ROOT_PAGE + 3),
        ("name of a directory", ROOT_PAGE + 1),
        ("empty slot", ROOT_PAGE + 20),
        ("directory page", DIRECTORY_PAGE + 1),
        ("attributes", ATTRIBUTES),
        ("value of an attribute", ATTRIBUTES + 64),
        ("log", DATA),
        ("map piece", image.superblock.geometry.piece(2).number() + 3),
    ]
}

/// Repairs, and proves that the result is one.
fn repaired(name: &str, image: &Image) -> tandemfs_check::Report {
    let device = image.device();
    let report = report(&device, true);
    assert!(report.is_consistent(), "{name}: {:?}", report.findings);
    let writes = device.writes();
    let again = support::report(&device, true);
    assert!(again.is_consistent() && again.repaired.is_empty(), "{name}: {:?} {:?}", again.repaired, again.findings);
    assert_eq!(device.writes(), writes, "{name}: a second repair writes nothing");
    works(name, &device);
    report
}

/// The engine mounts the image, works on it, and leaves it clean.
fn works(name: &str, device: &Arc<MemoryDevice>) {
    let (memory, blocks) = device.bytes();
    let device = tandemfs_crash::MemoryDevice::from_zones(Recorded { memory, blocks }, PersistenceDomain::Gpf);
    let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default());
    let fs = fs.unwrap_or_else(|error| panic!("{name}: {error}"));
    tandemfs_crash::Tree::read(&fs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"new", &new).unwrap_or_else(|error| panic!("{name}: {error}")).inode;
    fs.write(file, 0, &[7; 100_000], WriteOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    fs.unmount().unwrap_or_else(|error| panic!("{name}: {error}"));
    let report = tandemfs_check::check(&Drive::new(Arc::new(device)), &options(false), &mut |_| {}).expect("can be checked");
    assert!(report.is_consistent() && report.clean, "{name}: {:?}", report.findings);
}

#[test]
fn every_damaged_structure_is_repaired() {
    for (what, line) in structures(&Image::attributed()) {
        for how in HARMS {
            if line < 4096 && matches!(how, Harm::Page) {
                continue; // the page of a superblock copy is its 64 lines: the same as noise
            }
            let mut image = Image::attributed();
            harm(&mut image, line, how);
            repaired(&format!("{what}, {how:?}"), &image);
        }
    }
}

#[test]
fn every_two_damaged_structures_are_repaired() {
    let all = structures(&Image::attributed());
    for (first, (what, line)) in all.iter().enumerate().skip(2) {
        let (other_what, other_line) = all[2 + (first * 7 + 5) % (all.len() - 2)];
        for (how, other) in [(Harm::Bit, Harm::Noise), (Harm::Word, Harm::Word), (Harm::Noise, Harm::Page), (Harm::Zeros, Harm::Zeros)] {
            let mut image = Image::attributed();
            harm(&mut image, *line, how);
            harm(&mut image, other_line, other);
            repaired(&format!("{what}, {how:?}; {other_what}, {other:?}"), &image);
        }
    }
}

#[test]
fn a_clean_image_stays_one_after_its_maps_are_damaged() {
    let mut image = Image::small();
    let line = image.superblock.geometry.piece(5).number();
    image.damage(line);
    repaired("map piece", &image);
}

#[test]
fn noise_in_whole_regions_is_repaired() {
    for (what, first) in [("inodes", INODES), ("names", DENTRIES), ("mappings", MAPPINGS), ("leaves", LEAVES), ("attributes", ATTRIBUTES)] {
        let mut image = Image::attributed();
        let mut random = Random(first + 5);
        (first..first + 256).for_each(|line| image.put(line, noise(&mut random)));
        repaired(what, &image);
    }
}
