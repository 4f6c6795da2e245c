//! Halves of different times are refused; features are gained by an upgrade; the UUID that users see can be changed.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Random, Recorded, Setting, Tree, check_device, cut_everywhere, mount};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::identity::{BlockIdentity, Stamps};
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::{Superblock, ro_compat};
use tandemfs_fs::{
    Error, FEATURES, FileSystem, Growth, MountOptions, NewInode, WriteOptions, grow, missing_features, read_superblock, set_label,
    set_uuid, upgrade,
};
use uuid::Uuid;
use zerocopy::IntoBytes;

const DOMAINS: [PersistenceDomain; 3] = [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process];

fn drive(device: &MemoryDevice) -> Drive {
    Drive::new(Arc::new(device.clone()))
}

fn options() -> MountOptions {
    MountOptions { memory_bytes: 4 << 20, ..MountOptions::default() }
}

/// Adds a file; the file system is mounted, and unmounted if `ends`.
fn write(device: &MemoryDevice, name: &str, ends: bool) -> Tree {
    let fs = mount(device, &options()).expect("mounts");
    let file = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let inode = fs.create(InodeNumber::ROOT, name.as_bytes(), &file).expect("made").inode;
    fs.write(inode, 0, &[7; 70_000], WriteOptions::default()).expect("written");
    let tree = Tree::read(&fs).expect("reads");
    if ends {
        fs.unmount().expect("unmounts");
    }
    tree
}

/// The memory half of one device with the block half of another.
fn joined(memory: &MemoryDevice, blocks: &MemoryDevice) -> MemoryDevice {
    MemoryDevice::from_zones(Recorded { memory: memory.zones().memory, blocks: blocks.zones().blocks }, memory.domain())
        .given_firmware(memory.has_firmware())
}

fn is_of_another_time<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(error @ Error::StampMismatch { .. }) => {
            let said = error.to_string();
            said.contains("different times") && said.contains("older copy") && said.contains("put the halves back")
        }
        _ => false,
    }
}

/// By everything that opens a file system.
fn is_refused(device: &MemoryDevice) {
    let before = device.zones();
    let read_only = MountOptions { read_only: true, ..options() };
    assert!(is_of_another_time(FileSystem::mount(drive(device), &options())));
    assert!(is_of_another_time(FileSystem::mount(drive(device), &read_only)));
    assert!(is_of_another_time(read_superblock(&drive(device))));
    assert!(is_of_another_time(set_label(&drive(device), "x")));
    assert!(is_of_another_time(set_uuid(&drive(device), Uuid::nil())));
    assert!(is_of_another_time(grow(&drive(device), &Growth::default())));
    assert!(is_of_another_time(upgrade(&drive(device))));
    let said = check_device(device, true).expect_err("refused");
    assert!(said.contains("different times"), "{said}");
    let after = device.zones();
    assert!(before.memory == after.memory && before.blocks == after.blocks, "nothing was written");
}

#[test]
fn an_older_copy_of_either_half_is_refused() {
    for setting in [Setting::small(PersistenceDomain::Gpf, 64 << 10), Setting::small(PersistenceDomain::Gpf, 64 << 10).with_firmware()] {
        let device = setting.format();
        write(&device, "a", true);
        let yesterday = device.fork();
        for ends in [false, true] {
            let device = yesterday.fork();
            write(&device, "b", ends);
            is_refused(&joined(&device, &yesterday));
            is_refused(&joined(&yesterday, &device));
            // A mount that changed nothing leaves another stamp, too.
            let mounted = device.fork();
            mount(&mounted, &options()).expect("mounts").unmount().expect("unmounts");
            is_refused(&joined(&mounted, &device));
            mount(&joined(&device, &device), &options()).expect("halves of one time");
        }
    }
}

#[test]
fn read_only_mounts_leave_the_stamp() {
    let device = Setting::small(PersistenceDomain::Gpf, 64 << 10).format();
    let before = device.zones();
    mount(&device, &MountOptions { read_only: true, ..options() }).expect("mounts").unmount().expect("unmounts");
    let after = device.zones();
    assert!(before.memory == after.memory && before.blocks == after.blocks);
}

#[test]
fn a_mount_writes_one_sector_and_two_superblocks_for_all() {
    let device = Setting::small(PersistenceDomain::Gpf, 64 << 10).format();
    let drive = drive(&device);
    let (sequence, first) = (read_superblock(&drive).expect("whole").sequence, device.zones().blocks[64..4096].to_vec());
    let fs = FileSystem::mount(drive.clone(), &options()).expect("mounts");
    assert_eq!(read_superblock(&drive).expect("whole").sequence, sequence + 2);
    assert!(!read_superblock(&drive).expect("whole").stamps.is_changing());
    drop(fs);
    assert_eq!(device.zones().blocks[64..4096], first, "the rest of the sector stays");
}

#[test]
fn a_mount_that_is_cut_off_anywhere_leaves_halves_of_one_time() {
    for domain in DOMAINS {
        let setting = Setting::small(domain, 64 << 10);
        let device = setting.format();
        for ends in [true, false] {
            let start = device.fork();
            let tree = write(&start, "a", ends);
            let mut whole = |drive: &Drive| FileSystem::mount(drive.clone(), &options()).map(drop).map_err(|error| error.to_string());
            let count = cut_everywhere(&start, &mut whole, &tree, 1, &mut Random::new(1), &mut |_| Ok(())).expect("mounts");
            assert!(count > 100, "{count}");
        }
    }
}

#[test]
fn an_upgrade_gives_all_features_and_changes_nothing_that_users_see() {
    for features in [0, ro_compat::COVERED_LOGS_UNCOUNTED, ro_compat::COVERED_LOGS_UNCOUNTED | ro_compat::STAMP] {
        let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
        let device = setting.format_with(features);
        let tree = write(&device, "a", true);
        let before = read_superblock(&drive(&device)).expect("whole");
        let lacks: Vec<&str> = FEATURES.iter().filter(|feature| !feature.is_of(&before)).map(|feature| feature.name).collect();
        let names = |found: Vec<&tandemfs_fs::Feature>| found.iter().map(|feature| feature.name).collect::<Vec<_>>();
        assert_eq!(names(missing_features(&drive(&device)).expect("whole")), lacks);
        assert_eq!(names(upgrade(&drive(&device)).expect("upgrades")), lacks);
        assert_eq!(names(upgrade(&drive(&device)).expect("again")), [] as [&str; 0]);
        let after = read_superblock(&drive(&device)).expect("whole");
        assert!(FEATURES.iter().all(|feature| feature.is_of(&after)));
        assert_eq!((after.uuid(), after.pair, after.clean), (before.uuid(), before.pair, true));
        assert!(after.stamps.current != 0 && !after.stamps.is_changing());
        check_device(&device, false).expect("check finds nothing");
        let fs = mount(&device, &options()).expect("mounts");
        assert!(fs.recovery().clean);
        assert_eq!(Tree::read(&fs).expect("reads").difference(&tree), None);
    }
}

#[test]
fn an_upgrade_that_is_cut_off_anywhere_is_completed_by_the_next() {
    for domain in DOMAINS {
        let device = Setting::small(domain, 64 << 10).format_with(ro_compat::COVERED_LOGS_UNCOUNTED);
        let tree = write(&device, "a", true);
        let mut whole = |drive: &Drive| upgrade(drive).map(drop).map_err(|error| error.to_string());
        let mut again = |device: &MemoryDevice| {
            upgrade(&drive(device)).map_err(|error| format!("again: {error}"))?;
            check_device(device, false).map_err(|what| format!("after the second upgrade: {what}"))?;
            let superblock = read_superblock(&drive(device)).map_err(|error| error.to_string())?;
            match FEATURES.iter().find(|feature| !feature.is_of(&superblock)) {
                Some(missing) => Err(format!("'{}' is missing", missing.name)),
                None => Ok(()),
            }
        };
        cut_everywhere(&device, &mut whole, &tree, 1, &mut Random::new(3), &mut again).expect("upgrades");
    }
}

#[test]
fn what_is_not_clean_is_not_upgraded() {
    let device = Setting::small(PersistenceDomain::Gpf, 64 << 10).format_with(ro_compat::COVERED_LOGS_UNCOUNTED);
    write(&device, "a", false);
    let before = device.zones();
    assert!(matches!(missing_features(&drive(&device)), Err(Error::NotClean { .. })));
    assert!(matches!(upgrade(&drive(&device)), Err(Error::NotClean { .. })));
    assert!(matches!(set_uuid(&drive(&device), Uuid::from_u128(1)), Err(Error::NotClean { .. })));
    assert!(before.memory == device.zones().memory && before.blocks == device.zones().blocks);
    write(&device, "b", true);
    assert!(matches!(set_uuid(&drive(&device), Uuid::from_u128(1)), Err(Error::NeedsFeature { feature: "volume UUID", .. })));
}

#[test]
fn the_uuid_changes_at_once_and_the_pair_stays() {
    for domain in DOMAINS {
        let device = Setting::small(domain, 64 << 10).format();
        let tree = write(&device, "a", true);
        let before = read_superblock(&drive(&device)).expect("whole");
        let new = Uuid::from_u128(0x5678);
        let mut change = |drive: &Drive| set_uuid(drive, new).map_err(|error| error.to_string());
        let mut old_or_new = |device: &MemoryDevice| {
            let found = read_superblock(&drive(device)).map_err(|error| error.to_string())?;
            assert_eq!((found.pair, found.clean), (before.pair, true));
            if [before.uuid(), new].contains(&found.uuid()) { Ok(()) } else { Err(format!("{} is neither", found.uuid())) }
        };
        cut_everywhere(&device, &mut change, &tree, 1, &mut Random::new(4), &mut old_or_new).expect("changes");
        set_uuid(&drive(&device), new).expect("changes");
        let after = read_superblock(&drive(&device)).expect("whole");
        assert_eq!((after.uuid(), after.pair), (new, before.pair));
        check_device(&device, false).expect("check finds nothing");
        let fs = mount(&device, &options()).expect("mounts");
        assert_eq!((fs.superblock().uuid(), Tree::read(&fs).expect("reads").difference(&tree)), (new, None));
    }
}

/// A kill in the middle of a copy to an image tears the sector at any byte, which a power cut of a drive does not.
#[test]
fn a_torn_identity_is_written_again_and_a_damaged_one_is_refused() {
    let setting = Setting::small(PersistenceDomain::Process, 64 << 10);
    let device = setting.format();
    let tree = write(&device, "a", true);
    let settled = read_superblock(&drive(&device)).expect("whole");
    let changing = Superblock { stamps: Stamps { pending: !settled.stamps.current, ..settled.stamps }, ..settled.clone() };
    let identity = |stamp| BlockIdentity::stamped(&changing, stamp).as_bytes().to_vec();
    let (old, new) = (identity(changing.stamps.current), identity(changing.stamps.pending));
    for cut in [1, 3, 4, 32, 33, 36, 39] {
        for (superblock, is_torn) in [(&changing, true), (&settled, false)] {
            let mut zones = device.zones();
            for offset in SUPERBLOCK_OFFSETS {
                zones.memory[offset as usize..][..1024].copy_from_slice(superblock.encode().as_bytes());
            }
            zones.blocks[..64].copy_from_slice(&[&new[..cut], &old[cut..]].concat());
            let device = MemoryDevice::from_zones(zones, PersistenceDomain::Process);
            if !is_torn {
                let refused = FileSystem::mount(drive(&device), &options()).map(drop);
                let says = |error: &Error| error.to_string().contains("damaged or missing") && error.to_string().contains("check --repair");
                assert!(matches!(&refused, Err(error @ Error::IdentityDamaged { .. }) if says(error)), "{cut}: {refused:?}");
                continue;
            }
            check_device(&device, true).expect("check finds nothing");
            let read_only = MountOptions { read_only: true, ..options() };
            assert_eq!(Tree::read(&mount(&device, &read_only).expect("mounts")).expect("reads").difference(&tree), None);
            let fs = mount(&device, &options()).expect("mounts");
            assert_eq!(Tree::read(&fs).expect("reads").difference(&tree), None);
            fs.unmount().expect("unmounts");
            check_device(&device, false).expect("check finds nothing");
            assert!(!read_superblock(&drive(&device)).expect("whole").stamps.is_changing());
        }
    }
}
