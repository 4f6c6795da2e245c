//! Discards on a real mount: an image gives freed space back to the host's disk, and work goes on where that disk was full.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use support::{Mount, Place, fails, has_no_copies, pattern, run, succeeds};

const MIB: u64 = 1 << 20;

/// What a file takes on its disk, in bytes.
fn taken(path: &str) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

/// Its space comes back when it is removed, since nobody else has it open.
fn write(mount: &Mount, name: &str, length: u64) -> std::io::Result<()> {
    let written = File::create(mount.path(name)).and_then(|mut file| {
        file.write_all(&pattern(7, length as usize))?;
        file.sync_all()
    });
    has_no_copies();
    written
}

#[test]
fn a_trim_gives_the_space_of_removed_files_back() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    write(&mount, "kept", 8 * MIB).expect("written");
    write(&mount, "removed", 32 * MIB).expect("written");
    let full = taken(&place.image());
    fs::remove_file(mount.path("removed")).expect("removed");
    support::eventually("the space is free", || {
        let text = succeeds(&["trim", &place.mountpoint(), "--minimum", "64K", "--json"]);
        assert!(text.contains("discarded_bytes"), "{text}");
        taken(&place.image()) + 30 * MIB < full
    });
    assert!(fs::read(mount.path("kept")).expect("read") == pattern(7, 8 * MIB as usize));
    let none = succeeds(&["trim", &place.mountpoint(), "-m", "1T"]);
    assert!(none.ends_with(": 0 B discarded\n"), "{none}");
    mount.unmount();
    place.check();
    let mount = place.mount("ro");
    assert!(fs::read(mount.path("kept")).expect("read") == pattern(7, 8 * MIB as usize));
    fails(1, "read-only", &["trim", &place.mountpoint()]);
    mount.unmount();
    fails(1, "no TandemFS", &["trim", &place.mountpoint()]);
}

#[test]
fn discards_in_the_background_follow_the_removal() {
    let place = Place::formatted();
    let mount = place.mount("strict,discard=batched");
    write(&mount, "kept", 4 * MIB).expect("written");
    write(&mount, "removed", 32 * MIB).expect("written");
    let full = taken(&place.image());
    fs::remove_file(mount.path("removed")).expect("removed");
    support::eventually("the image gets smaller", || taken(&place.image()) + 30 * MIB < full);
    // Counted when it is done.
    support::eventually("it is counted", || mount.stats()["file_system"]["discarded_bytes"].as_u64() >= Some(30 * MIB));
    assert!(fs::read(mount.path("kept")).expect("read") == pattern(7, 4 * MIB as usize));
    mount.unmount();
    place.check();
}

/// A small disk of its own for an image.
struct Disk(String);

impl Disk {
    fn new(at: &Path, size: &str) -> Self {
        fs::create_dir(at).expect("made");
        let at = at.to_str().expect("a text").to_owned();
        let mounted = run(std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &at]));
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = run(std::process::Command::new("umount").args(["-l", &self.0]));
    }
}

/// 5 MiB failed after everything was removed from a file system that had filled its disk.
#[test]
fn regression_work_goes_on_when_files_are_removed_on_a_full_disk() {
    let place = Place::empty();
    let disk = Disk::new(Path::new(&place.path("disk")), "60M");
    let image = format!("{}/image", disk.0);
    succeeds(&["device", "create", &image, "--memory", "32M", "--block", "512M"]);
    succeeds(&["mkfs", &image]);
    for options in ["relaxed", "strict"] {
        let mount = place.mount_device(&image, options);
        write(&mount, "kept", MIB).expect("written");
        let full = write(&mount, "large", 100 * MIB).expect_err("the disk is full");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{options}: {full}");
        fs::remove_file(mount.path("large")).expect("removed");
        for name in ["a", "b", "c"] {
            write(&mount, name, 5 * MIB).unwrap_or_else(|error| panic!("{options}: {name}: {error}"));
            assert!(fs::read(mount.path(name)).expect("read") == pattern(7, 5 * MIB as usize), "{options}");
        }
        assert!(fs::read(mount.path("kept")).expect("read") == pattern(7, MIB as usize), "{options}");
        for name in ["a", "b", "c", "kept"] {
            fs::remove_file(mount.path(name)).expect("removed");
        }
        mount.unmount();
        succeeds(&["check", &image]);
    }
}

/// A full disk below an image is not a full file system: the log says which it is, and writes work again when the disk has room, without a
/// new mount.
#[test]
fn a_full_disk_is_told_from_a_full_file_system_and_work_goes_on() {
    let place = Place::empty();
    let disk = Disk::new(Path::new(&place.path("disk")), "60M");
    let image = format!("{}/image", disk.0);
    succeeds(&["device", "create", &image, "--memory", "32M", "--block", "512M"]);
    succeeds(&["mkfs", &image]);
    let other = format!("{}/other", disk.0);
    fs::write(&other, pattern(1, 12 << 20)).expect("written");
    let log = place.path("log");
    let mount = place.mount_device(&image, &format!("strict,log={log}"));
    let full = write(&mount, "large", 100 * MIB).expect_err("the disk is full");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    let kept = fs::metadata(mount.path("large")).expect("there").len();
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("the disk that holds the image is full"), "{said}");
    assert!(!said.contains("no space left in the block zone"), "{said}");
    assert_eq!(mount.stats()["short"], serde_json::json!([]), "the file system itself has room");
    fs::remove_file(&other).expect("removed");
    write(&mount, "more", 8 * MIB).expect("the disk has room");
    assert!(fs::read(mount.path("more")).expect("read") == pattern(7, 8 * MIB as usize));
    assert!(fs::read(mount.path("large")).expect("read") == pattern(7, 100 * MIB as usize)[..kept as usize]);
    mount.unmount();
    succeeds(&["check", &image]);
}

/// A store for which the flash found no space on the disk stopped the file system.
#[test]
fn regression_an_image_of_a_drive_with_firmware_goes_on_while_its_disk_is_full() {
    let place = Place::empty();
    let disk = Disk::new(Path::new(&place.path("disk")), "110M");
    let image = format!("{}/image", disk.0);
    let sizes = ["--memory", "32M", "--block", "512M", "--write-log", "4M", "--no-timing"];
    succeeds(&[&["device", "create", &image, "--profile", "bytefs"], &sizes[..]].concat());
    succeeds(&["mkfs", &image]);
    for options in ["strict,engine=firmware", "strict,engine=journal", "relaxed"] {
        let mount = place.mount_device(&image, options);
        write(&mount, "kept", MIB).expect("written");
        let full = write(&mount, "large", 70 * MIB).expect_err("the disk is full");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{options}: {full}");
        // What is there can be changed, and metadata has its space: more of both than the write log holds.
        for number in 0..300 {
            let name = format!("directory {number}");
            fs::create_dir(mount.path(&name)).unwrap_or_else(|error| panic!("{options}: {name}: {error}"));
            fs::write(mount.path(&format!("{name}/file")), &name).unwrap_or_else(|error| panic!("{options}: {name}: {error}"));
        }
        for _ in 0..4 {
            write(&mount, "kept", MIB).unwrap_or_else(|error| panic!("{options}: kept: {error}"));
        }
        fs::remove_file(mount.path("large")).expect("removed");
        for name in ["a", "b", "c"] {
            write(&mount, name, 8 * MIB).unwrap_or_else(|error| panic!("{options}: {name}: {error}"));
            assert!(fs::read(mount.path(name)).expect("read") == pattern(7, 8 * MIB as usize), "{options}: {name}");
            fs::remove_file(mount.path(name)).expect("removed");
        }
        for number in 0..300 {
            fs::remove_dir_all(mount.path(&format!("directory {number}"))).unwrap_or_else(|error| panic!("{options}: {error}"));
        }
        assert!(fs::read(mount.path("kept")).expect("read") == pattern(7, MIB as usize), "{options}");
        mount.unmount();
        succeeds(&["check", &image]);
    }
}
