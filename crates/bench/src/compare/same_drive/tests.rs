//! Tests of a drive with kernel file systems. They are skipped with a message if loop devices cannot be made (no root, no FUSE).

use std::fs;
use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;

fn is_possible() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !possible {
        eprintln!("skipped: this needs root, /dev/fuse and loop devices");
    }
    possible
}

/// Other programs scan mounts and keep them busy for a moment.
const UNMOUNT: &str = "unmount() { for i in $(seq 100); do umount \"$1\" 2>/dev/null && return; sleep 0.1; done; umount \"$1\"; }; ";

fn shell(script: &str, arguments: &[&Path]) {
    let output = Command::new("bash").args(["-euc", &format!("{UNMOUNT}{script}"), "test"]).args(arguments).output().expect("bash");
    assert!(output.status.success(), "{script}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

/// The kernel's counters of bytes written to and read from a block device; none while requests are in flight.
fn kernel_counts(device: &Path) -> Option<(u64, u64)> {
    let name = device.file_name().expect("a name").to_str().expect("text").to_owned();
    let text = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("statistics");
    let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().expect("a number")).collect();
    (fields[8] == 0).then_some((fields[6] * 512, fields[2] * 512))
}

/// What the drive and the kernel have counted, while neither counts anything: file systems also write by themselves, and the drive counts
/// a request when it arrives, the kernel when it is done.
fn counted_by_both(drive: &Drive) -> (Traffic, (u64, u64)) {
    let counts = || (drive.traffic().expect("answers"), kernel_counts(drive.block_device()));
    let mut counted = counts();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut counted, counts());
        if let (traffic, Some(kernel)) = &counted
            && before == counted
        {
            return (*traffic, *kernel);
        }
    }
    panic!("the drive is never idle");
}

fn is_mounted(directory: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").expect("mounts").contains(directory.to_str().expect("text"))
}

/// Makes a file system, mounts it, and does a little work: files, directories, an overwrite.
fn work(drive: &Drive, make: &str, mountpoint: &Path) -> Traffic {
    shell(&format!("{make} \"$1\"; mount \"$1\" \"$2\""), &[drive.block_device(), mountpoint]);
    shell("sync -f \"$1\"", &[mountpoint]);
    let (begun, before) = counted_by_both(drive);
    let fill = "cd \"$1\"; mkdir -p a b c; for i in $(seq 60); do head -c 9000 /dev/urandom >a/$i; mkdir c/$i; done; sync -f .";
    shell(fill, &[mountpoint]);
    let (ended, after) = counted_by_both(drive);
    let counted = ended.since(&begun);
    assert_eq!(counted.written_bytes, after.0 - before.0, "the kernel counts the same writes");
    assert_eq!(counted.read_bytes, after.1 - before.1, "and reads");
    assert_eq!(counted.flushes, 0, "a drive without a volatile cache is asked for no flush");
    assert!(counted.written_bytes >= 60 * 9000, "{counted:?}");
    counted
}

#[test]
fn ext4_works_on_a_drive_and_its_bytes_are_counted() {
    if !is_possible() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mountpoint = directory.path().join("mnt");
    fs::create_dir(&mountpoint).expect("made");
    let drive = start(directory.path(), 256 * MIB, &Settings::new("romefs-a", 64 * MIB)).expect("started");
    let device = drive.block_device().to_owned();
    let traffic = work(&drive, "mkfs.ext4 -q -E lazy_itable_init=0", &mountpoint);
    assert_eq!(traffic.flash_programmed_bytes, None, "this profile has no flash");
    // Deleted and trimmed blocks read as zeros or as before, and the file system is intact.
    let sums =
        "cd \"$2\"; find a -type f | sort | xargs md5sum >\"$2.sums\"; rm -r c; cd /; fstrim \"$2\"; unmount \"$2\"; e2fsck -fn \"$1\"";
    shell(sums, &[&device, &mountpoint]);
    shell(
        "mount \"$1\" \"$2\"; cd \"$2\"; md5sum --quiet -c \"$2.sums\"; test -e c && exit 1; cd /; unmount \"$2\"",
        &[&device, &mountpoint],
    );
    drop(drive);
    assert!(!loop_device::is_attached(&device, directory.path()) && !is_mounted(directory.path()), "everything is taken down");
}

#[test]
fn xfs_works_on_a_drive_with_flash_and_is_taken_down_while_mounted() {
    if !is_possible() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mountpoint = directory.path().join("mnt");
    fs::create_dir(&mountpoint).expect("made");
    let drive = start(directory.path(), 320 * MIB, &Settings::new("bytefs", 64 * MIB)).expect("started");
    let device = drive.block_device().to_owned();
    let traffic = work(&drive, "mkfs.xfs -q", &mountpoint);
    assert!(traffic.flash_programmed_bytes.is_some());
    drop(drive);
    assert!(!loop_device::is_attached(&device, directory.path()) && !is_mounted(directory.path()), "a mount on it goes, too");
}

#[test]
fn a_drive_goes_when_nobody_is_there_any_more() {
    if !is_possible() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut drive = start(directory.path(), 64 * MIB, &Settings::new("romefs-a", 16 * MIB)).expect("started");
    let device = drive.block_device().to_owned();
    let process = drive.process.get_mut();
    // Signals do not end it; end-of-file on its standard input does, as when the other process is killed.
    shell(&format!("kill -INT {0}; kill -TERM {0}; kill -HUP {0}; sleep 0.2", process.id()), &[]);
    assert!(!process.has_ended(), "a signal ended it");
    assert!(process.end(), "it ends by itself");
    assert!(!loop_device::is_attached(&device, directory.path()) && !is_mounted(directory.path()));
    let left = fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(left, 0, "the image is removed, too");
}

#[test]
fn a_drive_whose_process_was_killed_is_taken_down_by_who_started_it() {
    if !is_possible() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mountpoint = directory.path().join("mnt");
    fs::create_dir(&mountpoint).expect("made");
    let drive = start(directory.path(), 64 * MIB, &Settings::new("romefs-a", 16 * MIB)).expect("started");
    let device = drive.block_device().to_owned();
    shell("mkfs.ext4 -q \"$1\"; mount \"$1\" \"$2\"; sync -f \"$2\"", &[&device, &mountpoint]);
    shell(&format!("kill -KILL {}", drive.process_id()), &[]);
    assert!(drive.traffic().is_err(), "it says so");
    drop(drive);
    assert!(!loop_device::is_attached(&device, directory.path()) && !is_mounted(directory.path()));
    assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1, "only the mountpoint is left");
    // Other drives, also of other programs, keep kernel workers off their CPU as long as they are there.
    while !kernel_threads::may_use_first() {
        assert!(is_a_drive_there() || kernel_threads::may_use_first(), "the kernel's threads stay off the first CPU");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process is a drive, by its order.
fn is_a_drive_there() -> bool {
    let processes = fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path());
    let mut orders = processes.flat_map(|process| ["cmdline", "environ"].map(|order| fs::read(process.join(order)).unwrap_or_default()));
    orders.any(|order| String::from_utf8_lossy(&order).contains("\"same_drive\""))
}

#[test]
fn what_cannot_be_a_drive_is_refused_by_a_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    for (profile, said) in [("off", "'off' has none"), ("nonesuch", "'nonesuch' has none")] {
        let failure = start(directory.path(), 64 * MIB, &Settings::new(profile, 16 * MIB)).err().expect("refused").to_string();
        assert!(failure.contains(said), "{failure}");
    }
    let failure = start(Path::new("/nonesuch"), 64 * MIB, &Settings::new("romefs-a", 16 * MIB)).err().expect("refused").to_string();
    assert!(failure.contains("/nonesuch"), "{failure}");
    assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 0);
}

#[test]
fn a_drive_says_what_was_changed_for_everybody() {
    let mut settings = Settings::new("romefs-a", 64 * MIB);
    settings.way = Some(way::Way { command_ns: 53_000, commands_at_once: 2, bytes_per_second: 3_000_000_000 });
    for times in [true, false].map(|is_read| settings.times(is_read).expect("a profile")) {
        assert_eq!((times.command_ns, times.commands_at_once, times.bytes_per_second), (53_000, Some(2), 3_000_000_000));
    }
    // The settings are in the image, so every opener of TandemFS's drive finds them.
    let directory = tempfile::tempdir().expect("a directory");
    settings.create_own_image(&directory.path().join("image"), 64 * MIB).expect("created");
    let block = tandemfs_emulator::info(&directory.path().join("image")).expect("an image").timing.expect("timed").block;
    assert_eq!((block.read_latency_ns, block.write_latency_ns, block.channel_count), (53_000, 53_000, 2));
    let cache = settings.create_peer_image(&directory.path().join("peers"), 64 * MIB).expect("created");
    let peers = tandemfs_emulator::info(&directory.path().join("peers")).expect("an image");
    assert_eq!((cache, peers.timing.expect("timed").block), (64 * MIB, block), "the same drive, its memory a cache");

    let settings = Settings { profile: "bytefs".into(), ..settings };
    settings.create_own_image(&directory.path().join("own-firmware"), 192 * MIB).expect("created");
    settings.create_peer_image(&directory.path().join("peers-firmware"), 192 * MIB).expect("created");
    let model = |name: &str| tandemfs_emulator::info(&directory.path().join(name)).expect("an image").firmware.expect("firmware");
    let (own, peers) = (model("own-firmware"), model("peers-firmware"));
    let dram = |model: &tandemfs_emulator::FirmwareModel| match model.staging {
        Staging::WriteLog { log_bytes, transaction_log_bytes, .. } => {
            log_bytes + transaction_log_bytes + u64::from(model.write_buffer_pages) * PAGE
        }
        Staging::Cache { .. } | Staging::HostCache { .. } => unreachable!("a drive with a write log"),
    };
    assert_eq!(dram(&own), dram(&peers), "the same DRAM");
    assert_eq!(own.timing, peers.timing);
    let timing = own.timing.expect("timed");
    assert_eq!((timing.command_ns, timing.commands_at_once, timing.write_bytes_per_second), (53_000, 2, 2_500_000_000));
    assert_eq!(
        (own.blocks_per_plane, own.pages_per_block, own.die_count()),
        (peers.blocks_per_plane, peers.pages_per_block, peers.die_count())
    );
}

/// Run manually on an idle machine: `cargo test -p tandemfs-bench calibration_by_hand -- --ignored --nocapture`.
#[test]
#[ignore = "takes a minute, and a quiet machine"]
fn calibration_by_hand() {
    let profile = std::env::var("PROFILE").unwrap_or_else(|_| "romefs-a".into());
    let us = std::env::var("LATENCY").ok().and_then(|us| us.parse().ok()).unwrap_or(50);
    let (directory, plain) = (Path::new("/dev/shm"), Settings::new(&profile, 64 * MIB));
    let carried = calibrate::carried(directory, &plain).expect("measured");
    let settings = plain.with_latency(us, &carried).expect("a profile").unwrap_or_else(|| panic!("not carried: {carried:?}"));
    match calibrate::calibrate(directory, &settings) {
        Ok(found) => eprintln!("{found:?}"),
        Err(failure) => panic!("{failure}"),
    }
}
