//! File systems on a memory half alone, by the commands that users have: an emulated drive without a block region, and `memory=FILE`.

mod support;

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;
use support::{Place, fails, has_no_copies, pattern, run, succeeds};

const MIB: usize = 1 << 20;

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeeds(words)).expect("JSON")
}

/// What a file system does on such a device, whatever the device is.
fn lives(place: &Place, device: &str) {
    let made = succeeds(&["mkfs", device, "--label", "alone"]);
    assert!(made.contains("block none"), "{made}");
    fails(1, "TandemFS", &["mkfs", device]);
    let mount = place.mount_device(device, "strict");
    let (file, content) = (mount.path("file"), pattern(1, 20 * MIB));
    fs::write(&file, &content).expect("written");
    fs::write(mount.path("small"), b"a few bytes").expect("written");
    let path = file.to_str().expect("UTF-8");
    fails(1, "no block zone", &["home", "set", "block", path]);
    succeeds(&["home", "set", "memory", path, "--wait"]);
    fails(1, "no block zone", &["trim", &place.mountpoint()]);
    succeeds(&["scrub", &place.mountpoint()]);
    let df = run(std::process::Command::new("df").args(["--output=size,avail", "-B1", &place.mountpoint()]));
    let numbers: Vec<u64> = String::from_utf8_lossy(&df.stdout).split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] > 40 * MIB as u64 && numbers[1] > 10 * MIB as u64 && numbers[1] < numbers[0] - 20 * MIB as u64, "{numbers:?}");
    let info = json(&["info", &place.mountpoint(), "--json"]);
    assert_eq!(info["label"], "alone", "{info}");
    mount.unmount();
    succeeds(&["check", device]);
    let mount = place.mount_device(device, "relaxed");
    assert!(fs::read(mount.path("file")).expect("read") == content);
    fs::write(mount.path("second"), pattern(2, MIB)).expect("written");
    mount.kill();
    succeeds(&["check", device]);
    let mount = place.mount_device(device, "relaxed");
    assert!(fs::read(mount.path("file")).expect("read") == content);
    mount.unmount();
    let info = json(&["info", device, "--json"]);
    assert_eq!(info["block_zone"]["total_bytes"], 0, "{info}");
    succeeds(&["label", device, "renamed"]);
    succeeds(&["uuid", device, "random"]);
    succeeds(&["upgrade", device, "--list"]);
    assert!(succeeds(&["dump", device, "superblock"]).contains("blocks       none"));
    let copy = place.path("copy");
    succeeds(&["restore", device, &copy]);
    assert!(fs::read(format!("{copy}/file")).expect("read") == content);
    fails(1, "without a block zone", &["resize", device, "--block", "64M"]);
    succeeds(&["check", device, "--repair"]);
    fs::remove_dir_all(copy).expect("removed");
}

#[test]
fn an_emulated_drive_without_a_block_region() {
    let place = Place::empty();
    let image = place.image();
    let made = succeeds(&["device", "create", &image, "--profile", "optane", "--memory", "96M"]);
    assert!(made.contains("block none"), "{made}");
    lives(&place, &image);
    succeeds(&["resize", &image, "--memory", "128M"]);
    succeeds(&["check", &image]);
    let plain = place.path("plain.image");
    succeeds(&["device", "create", &plain, "--profile", "off", "--memory", "64M", "--block", "0"]);
    assert_eq!(json(&["device", "info", &plain, "--json"])["block_bytes"], 0);
    fails(1, "has a block region", &["device", "create", &place.path("x"), "--profile", "bytefs", "--memory", "64M", "--block", "0"]);
}

#[test]
fn a_memory_half_alone() {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    lives(&place, &device);
    assert_eq!(json(&["probe", &memory, "--json"])["part"], "memory half, alone");
    fs::File::options().write(true).open(&memory).and_then(|file| file.set_len(128 << 20)).expect("grown");
    succeeds(&["resize", &device]);
    succeeds(&["check", &device]);
    // The same half named with another one beside it: that one is not touched.
    let block = place.path("block");
    fs::write(&block, pattern(7, 8 * MIB)).expect("a file");
    succeeds(&["check", &format!("{device},block={block}")]);
    assert!(fs::read(&block).expect("read") == pattern(7, 8 * MIB));
}

/// Small files until the drive is full, most of them removed, a large file until it is full, and small ones again: room that is free serves
/// whatever comes, and nothing leaks.
#[test]
fn a_full_drive_is_filled_again_with_files_of_another_size() {
    let place = Place::empty();
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "off", "--memory", "64M", "--block", "0"]);
    succeeds(&["mkfs", &image, "--block-size", "16K"]);
    for options in ["strict", "relaxed"] {
        let mount = place.mount_device(&image, options);
        let available = || {
            let df = run(std::process::Command::new("df").args(["--output=avail", "-B1", &place.mountpoint()]));
            String::from_utf8_lossy(&df.stdout).split_whitespace().nth(1).and_then(|word| word.parse::<usize>().ok()).expect("a number")
        };
        let empty = available();
        let small = |number: usize| mount.path(&format!("s{number}"));
        let mut count = 0;
        while fs::write(small(count), pattern(count as u64, 1000)).is_ok() {
            count += 1;
        }
        assert!(count > 10_000, "{count}");
        (0..=count).filter(|number| number % 50 > 0).for_each(|number| drop(fs::remove_file(small(number))));
        let large = mount.path("large");
        let piece = pattern(7, MIB);
        let mut file = fs::File::create(&large).expect("room");
        let mut length = 0;
        while std::io::Write::write_all(&mut file, &piece).and_then(|()| file.sync_data()).is_ok() {
            length += MIB;
        }
        drop(file);
        assert!(length + 14 * MIB > empty, "{length} of {empty} B");
        let read = fs::read(&large).expect("read");
        has_no_copies(); // they would keep its space
        assert!(read[..length].chunks(MIB).all(|one| one == piece));
        fs::remove_file(&large).expect("removed");
        for number in (0..count).step_by(50) {
            assert!(fs::read(small(number)).expect("read") == pattern(number as u64, 1000), "s{number}");
            fs::write(small(number + 1), pattern(1, 3000)).expect("room");
        }
        for number in (0..=count + 1).filter(|number| small(*number).exists()) {
            fs::remove_file(small(number)).expect("removed");
        }
        mount.unmount();
        succeeds(&["check", &image]);
    }
}

/// Where metadata and data share all space: when `unlink` and `close` have returned, a name or an attribute gets the space of the file ([RTS1] of
/// the mount).
#[test]
fn a_name_or_an_attribute_gets_the_space_of_a_removed_file() {
    support::require_fuse();
    let place = Place::empty();
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "off", "--memory", "24M", "--block", "0"]);
    succeeds(&["mkfs", &image]);
    let mount = place.mount_device(&image, "strict");
    for name in ["of-links", "of-renames"] {
        fs::create_dir(mount.path(name)).expect("made");
    }
    let target = mount.path("of-links/target");
    fs::write(&target, "").expect("made");
    let with_attributes: Vec<PathBuf> = (0..300).map(|number| mount.path(&format!("with-attribute-{number}"))).collect();
    with_attributes.iter().for_each(|path| fs::write(path, "").expect("made"));
    let mut with_attributes = with_attributes.iter();
    let set = |path: &PathBuf| rustix::fs::setxattr(path, "user.a", &[7; 60_000], rustix::fs::XattrFlags::empty()).map_err(io::Error::from);
    let mut names = 0;
    let mut next = |directory: &str| {
        names += 1;
        mount.path(&format!("{directory}/{names:0>200}"))
    };
    for round in 0..3 {
        let file = fs::File::create_new(mount.path("file")).expect("made");
        let (mut length, mut piece) = (0, 8 * MIB as u64);
        while piece >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), length, piece) {
                Ok(()) => length += piece,
                Err(rustix::io::Errno::NOSPC) => piece /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(length > 0, "the file has space to give back");
        // Directories take most of what is left for names, and links the rest.
        for make in
            [&|path: &Path| fs::create_dir(path), &|path: &Path| fs::hard_link(&target, path)] as [&dyn Fn(&Path) -> io::Result<()>; 2]
        {
            let full = (0..100_000).find_map(|_| make(&next("of-links")).err()).expect("it fills");
            assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        }
        let full = with_attributes.find_map(|path| set(path).err()).expect("it fills");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        drop(file);
        has_no_copies(); // they would keep its space
        fs::remove_file(mount.path("file")).expect("removed");
        let made = match round % 3 {
            0 => fs::hard_link(&target, next("of-links")),
            1 => set(with_attributes.next().expect("one more")),
            _ => fs::rename(&target, next("of-renames")).and_then(|()| fs::write(&target, "")),
        };
        made.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    mount.unmount();
    succeeds(&["check", &image]);
}
