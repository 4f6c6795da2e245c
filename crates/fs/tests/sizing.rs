//! The numbers of `docs/ADMINISTRATION.md`, *Sizing*: what files, names, directories and data take in the memory zone.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::allocation_map::{PieceKind, decode};
use tandemfs_format::geometry::PIECE_LINES;
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, LINE_BYTES, Line, PairSeed};
use tandemfs_fs::{AllocateMode, FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system, read_superblock};

const MIB: u64 = 1 << 20;

/// Bytes of the memory zone in use on a clean device, from its saved maps.
fn used(drive: &Drive) -> u64 {
    let superblock = read_superblock(drive).expect("reads");
    assert!(superblock.clean);
    let mut lines = 0;
    for index in 0..superblock.geometry.memory_units() {
        let mut piece = vec![0; PIECE_LINES as usize * LINE_BYTES];
        drive.load(Structure::AllocationMap, superblock.geometry.piece(index), &mut piece).expect("loads");
        let (head, bits) = piece.split_at(LINE_BYTES);
        let mut line: Line = [0; LINE_BYTES];
        line.copy_from_slice(head);
        let kind = decode(PairSeed::new(superblock.pair), index, superblock.generation, &line, bits).expect("verifies");
        if matches!(kind, PieceKind::Region | PieceKind::Data) {
            lines += bits.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        }
    }
    lines * LINE_BYTES as u64
}

/// What `work` takes, in bytes.
fn taken(block_bytes: u32, work: impl FnOnce(&FileSystem)) -> u64 {
    let drive = Drive::new(Arc::new(MemoryDevice::new(128 * MIB, 300 * MIB, PersistenceDomain::Gpf)));
    make_file_system(&drive, &FormatOptions { block_bytes, ..FormatOptions::default() }).expect("mkfs");
    let before = used(&drive);
    let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
    work(&fs);
    fs.unmount().expect("unmounts");
    used(&drive) - before
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> InodeNumber {
    let new = NewInode { mode: kind | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(parent, name.as_bytes(), &new).expect("made").inode
}

#[track_caller]
fn is_about(what: &str, found: u64, said: u64) {
    println!("{what}: {found} B, said {said} B");
    assert!(found.abs_diff(said) * 25 <= said, "{what}: {found} B, said {said} B");
}

#[test]
fn files_names_and_directories_take_what_is_said() {
    const FILES: u64 = 10_000;
    let files = |name_bytes: usize, content: usize| {
        let bytes = taken(64 << 10, |fs| {
            for number in 0..FILES {
                let file = make(fs, InodeNumber::ROOT, &format!("{number:0name_bytes$}"), file_type::REGULAR);
                if content > 0 {
                    fs.write(file, 0, &vec![1; content], WriteOptions::default()).expect("written");
                }
            }
        });
        bytes / FILES
    };
    is_about("an empty file", files(12, 0), 192);
    is_about("a file with a name of 100 B", files(100, 0), 257);
    is_about("a file of 1000 B", files(12, 1000), 192 + 1024);
    is_about("a file of 4000 B", files(12, 4000), 192 + 4096);
    let directories = taken(64 << 10, |fs| {
        for number in 0..2000 {
            let directory = make(fs, InodeNumber::ROOT, &number.to_string(), file_type::DIRECTORY);
            make(fs, directory, "file", file_type::REGULAR);
        }
    });
    is_about("a directory with a file", directories / 2000, 192 + 128 + 4096);
}

#[test]
fn data_takes_what_is_said() {
    // A quarter of a GiB; the numbers are those of a GiB.
    let of_a_gibibyte = |block_bytes: u32| {
        4 * taken(block_bytes, |fs| {
            let file = make(fs, InodeNumber::ROOT, "file", file_type::REGULAR);
            fs.allocate(file, 0, 256 * MIB, AllocateMode::Allocate { keep_size: false }).expect("room");
        })
    };
    is_about("a GiB in blocks of 4 KiB", of_a_gibibyte(4 << 10), 54 * MIB / 10);
    is_about("a GiB in blocks of 64 KiB", of_a_gibibyte(64 << 10), 14 * MIB / 10);
    is_about("a GiB in blocks of 1 MiB", of_a_gibibyte(1 << 20), 105 * MIB / 100);
    // 32 MiB, as data logs.
    let logs = taken(64 << 10, |fs| {
        let file = make(fs, InodeNumber::ROOT, "file", file_type::REGULAR);
        for page in 0..32 * MIB / 4096 {
            fs.write(file, page * 4096, &[1; 4096], WriteOptions::default()).expect("written");
        }
        assert_eq!(fs.space().memory.data_log_bytes, 32 * MIB, "not written back");
    });
    is_about("a GiB of small writes, before it is written back", logs * 32, 1029 * MIB);
}
