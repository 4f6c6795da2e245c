//! The smallest `memory` option with working sets many times as large: everything works, and host memory stays bounded.

use std::collections::BTreeMap;

use tandemfs_crash::{MemoryDevice, Random, Setting, check_device, content, fill, mount, seed_or};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, MountOptions, NewInode, RenameMode, SetAttributes, WriteOptions};

/// Names of the large directory.
const NAMES: u32 = 10_000;
/// Directories beside it, and names in each: more indexes than the option has room for.
const DIRECTORIES: u32 = 150;
const NAMES_EACH: u32 = 20;
/// What the caches keep however small the option is: 64 shards of 4 pages, with what a page needs beside its 4 KiB.
const FLOOR_PAGES: u64 = 64 * 4;
const PAGE_BYTES: u64 = 4096 + 64 * 4 + 64;
/// A quarter of them may be dirty, and may all lie in shards that are full; one transaction may come on top.
const DIRTY_PAGES: u64 = FLOOR_PAGES / 4 + 32;
/// A directory in use has its index in memory: a table of 9 B an entry at a load of at least 7/16, and 24 B for each page of 64 slots.
const INDEX_BYTES: u64 = NAMES as u64 * 24;

/// Watches the memory of a file system.
struct Watch {
    option: u64,
    most: u64,
}

impl Watch {
    fn look(&mut self, fs: &FileSystem) {
        let bound = self.option.max(FLOOR_PAGES * PAGE_BYTES) + INDEX_BYTES + DIRTY_PAGES * PAGE_BYTES;
        let found = fs.memory_bytes();
        assert!(found <= bound, "{found} B of host memory, the bound is {bound} B");
        self.most = self.most.max(found);
    }
}

fn name(number: u32) -> Vec<u8> {
    format!("name-{number:05}").into_bytes()
}

fn new(kind: u16) -> NewInode<'static> {
    NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn read_all(fs: &FileSystem, directory: InodeNumber, expected: &BTreeMap<Vec<u8>, (u64, usize)>, random: &mut Random, watch: &mut Watch) {
    let mut listed = Vec::new();
    fs.read_directory(directory, 2, &mut |entry| {
        listed.push(entry.name.to_vec());
        true
    })
    .expect("listed");
    listed.sort();
    assert!(listed.iter().eq(expected.keys()), "{} names, expected {}", listed.len(), expected.len());
    let mut names: Vec<&Vec<u8>> = expected.keys().collect();
    while !names.is_empty() {
        let name = names.swap_remove(random.below(names.len() as u64) as usize);
        let (seed, length) = expected[name];
        let inode = fs.lookup(directory, name).expect("there").inode;
        let bytes = content(fs, inode).expect("read");
        assert!(bytes[bytes.len() - length..] == fill(seed, length)[..], "{}", String::from_utf8_lossy(name));
        watch.look(fs);
    }
}

fn work(device: &MemoryDevice, options: &MountOptions) -> u64 {
    let mut watch = Watch { option: options.memory_bytes, most: 0 };
    let mut random = Random::new(seed_or(5));
    let fs = mount(device, options).expect("mounts");
    let directory = fs.create(InodeNumber::ROOT, b"large", &new(file_type::DIRECTORY)).expect("made").inode;
    let mut expected = BTreeMap::new();
    for number in 0..NAMES {
        let file = fs.create(directory, &name(number), &new(file_type::REGULAR)).expect("made").inode;
        // Every third file has a page of records.
        let (offset, length) = (u64::from(number % 3) * 4096, 50 + number as usize % 40);
        fs.write(file, offset, &fill(number.into(), length), WriteOptions::default()).expect("written");
        expected.insert(name(number), (number.into(), length));
        watch.look(&fs);
    }
    for outer in 0..DIRECTORIES {
        let other = fs.create(InodeNumber::ROOT, format!("d{outer}").as_bytes(), &new(file_type::DIRECTORY)).expect("made").inode;
        for inner in 0..NAMES_EACH {
            fs.create(other, &name(inner), &new(file_type::REGULAR)).expect("made");
        }
        watch.look(&fs);
    }
    read_all(&fs, directory, &expected, &mut random, &mut watch);
    for number in 0..NAMES {
        match number % 4 {
            0 => {
                fs.unlink(directory, &name(number)).expect("removed");
                expected.remove(&name(number));
            }
            1 => {
                let to = format!("renamed-{number}").into_bytes();
                fs.rename(directory, &name(number), directory, &to, RenameMode::Replace).expect("renamed");
                let moved = expected.remove(&name(number)).expect("known");
                expected.insert(to, moved);
            }
            _ => {}
        }
        watch.look(&fs);
    }
    drop(fs); // as a power cut
    let fs = mount(device, options).expect("mounts");
    read_all(&fs, directory, &expected, &mut random, &mut watch);
    for outer in 0..DIRECTORIES {
        let other = fs.lookup(InodeNumber::ROOT, format!("d{outer}").as_bytes()).expect("there").inode;
        let mut names = 0;
        fs.read_directory(other, 2, &mut |_| {
            names += 1;
            true
        })
        .expect("listed");
        assert_eq!(names, NAMES_EACH);
        watch.look(&fs);
    }
    fs.unmount().expect("unmounts");
    check_device(device, false).expect("check");
    watch.most
}

/// Lines that are committed and not yet home were kept until a ring was half full: on a busy machine, where the checkpoint behind came
/// late, more of them than the option allows, whatever its size.
#[test]
fn regression_pages_that_are_not_home_stay_within_the_option() {
    let mut setting = Setting::small(PersistenceDomain::Adr, 4 << 10);
    setting.memory_bytes = 64 << 20;
    setting.mount.memory_bytes = 0;
    let fs = mount(&setting.format(), &setting.mount).expect("mounts"); // with nobody behind it
    let mut watch = Watch { option: 0, most: 0 };
    let files: Vec<_> =
        (0..2000).map(|file| fs.create(InodeNumber::ROOT, &name(file), &new(file_type::REGULAR)).expect("made").inode).collect();
    // Small records that each touch another page.
    let checkpoints = fs.statistics().work.checkpoints;
    for _ in 0..4 {
        for file in files.iter().step_by(32) {
            fs.set_attributes(*file, &SetAttributes { permissions: Some(0o600), ..SetAttributes::default() }).expect("changed");
            watch.look(&fs);
        }
        for file in &files {
            fs.write(*file, u64::from(file.get() as u32) * 192 * 4096, b"a page of records", WriteOptions::default()).expect("written");
            watch.look(&fs);
        }
    }
    assert!(fs.statistics().work.checkpoints > checkpoints + 4);
}

#[test]
fn working_sets_far_beyond_the_memory_option_work_within_a_bound() {
    for option in [0, 64 << 10, 2 << 20] {
        let mut setting = Setting::small(PersistenceDomain::Adr, 4 << 10);
        setting.memory_bytes = 64 << 20;
        setting.block_zone_bytes = 64 << 20;
        setting.mount.memory_bytes = option;
        let most = work(&setting.format(), &setting.mount);
        println!("memory option {option} B: at most {most} B in use");
    }
}
