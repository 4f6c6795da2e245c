//! Traffic to a drive with transactions, counted.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{CountersSnapshot, Drive, PersistenceDomain, Structure};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Engine, FileSystem, FormatOptions, MountOptions, NewInode, make_file_system};

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn drive() -> Drive {
    let drive = Drive::new(Arc::new(MemoryDevice::with_firmware(32 << 20, 32 << 20, PersistenceDomain::Adr)));
    make_file_system(&drive, &FormatOptions::default()).expect("formats");
    drive
}

fn mount(drive: &Drive, engine: Engine) -> FileSystem {
    FileSystem::mount(drive.clone(), &MountOptions { engine, ..MountOptions::default() }).expect("mounts")
}

/// Bytes written on the byte path and on the block path.
fn written(counters: &CountersSnapshot) -> (u64, u64) {
    counters.by_structure.iter().fold((0, 0), |sum, of| (sum.0 + of.byte_written_bytes, sum.1 + of.block_written_bytes))
}

/// Bytes written per create on both paths, averaged over many creates, with growth and later checkpoints included.
fn bytes_of_a_create(engine: Engine) -> (u64, u64) {
    const FILES: u64 = 4000;
    let fs = mount(&drive(), engine);
    fs.reset_statistics();
    for number in 0..FILES {
        fs.create(InodeNumber::ROOT, format!("a file with number {number}").as_bytes(), &file()).expect("created");
    }
    fs.checkpoint().expect("home");
    let (bytes, blocks) = written(&fs.drive().counters().snapshot());
    println!("{engine:?}: {bytes} B by bytes, {blocks} B by blocks for {FILES} creates");
    (bytes / FILES, blocks / FILES)
}

/// Issue 6: a create writes at most 512 B of metadata in all: two lines of the inode, the name, the parent, a share of fresh pages.
#[test]
fn a_create_writes_at_most_512_bytes() {
    let (bytes, blocks) = bytes_of_a_create(Engine::Firmware);
    assert!(bytes + blocks <= 512, "{bytes} B by bytes and {blocks} B by blocks");
    let (journal_bytes, _) = bytes_of_a_create(Engine::Journal);
    assert!(bytes < journal_bytes, "the journal writes everything twice: {journal_bytes} B");
}

#[test]
fn a_create_is_one_commit_and_no_journal() {
    let fs = mount(&drive(), Engine::Auto);
    fs.create(InodeNumber::ROOT, b"first", &file()).expect("created");
    fs.reset_statistics();
    fs.create(InodeNumber::ROOT, b"second", &file()).expect("created");
    let counts = fs.drive_counts();
    let lines = written(&fs.drive().counters().snapshot()).0 / 64;
    assert_eq!((counts.firmware.commits, counts.firmware.tagged_stores), (1, lines), "{counts:?}");
    assert!(lines <= 5, "{lines} lines: the inode's two, the name's, the parent's");
    assert_eq!(fs.drive().counters().snapshot().by_structure[Structure::Journal as usize].byte_written_bytes, 0);
}

/// ByteFS Table 3: metadata is read by pages over the block path, and allocation state is saved by lines of 64 B.
#[test]
fn metadata_is_read_by_pages_and_maps_are_saved_by_lines() {
    let drive = drive();
    let fs = mount(&drive, Engine::Auto);
    for number in 0..200 {
        fs.create(InodeNumber::ROOT, format!("{number}").as_bytes(), &file()).expect("created");
    }
    drive.counters().reset();
    fs.unmount().expect("unmounts");
    let maps = drive.counters().snapshot().by_structure[Structure::AllocationMap as usize];
    let pieces = fs.superblock().geometry.piece_count();
    assert!(maps.byte_written_bytes <= (pieces + 20) * 64, "{maps:?} for {pieces} pieces, of which a few changed");

    drive.counters().reset();
    let fs = mount(&drive, Engine::Auto);
    fs.lookup(InodeNumber::ROOT, b"17").expect("found");
    let by_structure = drive.counters().snapshot().by_structure;
    for structure in [Structure::Inode, Structure::Dentry] {
        let found = by_structure[structure as usize];
        assert!(found.block_read_bytes > 0 && found.byte_read_bytes == 0, "{structure:?}: {found:?}");
    }
    assert!(by_structure[Structure::AllocationMap as usize].block_read_bytes > pieces * 4000, "the maps come by pages");
}

/// Each engine continues on what the other one left, also after a crash.
#[test]
fn engines_alternate_on_one_image() {
    let drive = drive();
    let mut expected = 0;
    for round in 0..8 {
        let engine = if round % 2 == 0 { Engine::Journal } else { Engine::Firmware };
        let fs = mount(&drive, engine);
        assert_eq!(fs.commits_on_drive(), engine == Engine::Firmware);
        for number in 0..100 {
            fs.create(InodeNumber::ROOT, format!("{round}-{number}").as_bytes(), &file()).expect("created");
            expected += 1;
        }
        let mut found = 0;
        fs.read_directory(InodeNumber::ROOT, 2, &mut |_| {
            found += 1;
            true
        })
        .expect("lists");
        assert_eq!(found, expected, "round {round}");
        assert_eq!(fs.recovery().records_replayed > 0, engine == Engine::Firmware && round > 0 && round % 4 != 0, "round {round}");
        if round % 4 == 3 {
            fs.unmount().expect("unmounts");
        }
    }
}
