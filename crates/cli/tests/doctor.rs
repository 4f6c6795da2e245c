//! `tandemfs doctor`: each finding that an image or a mount can have, and its exit status.

mod support;

use std::fs::File;

use serde_json::Value;
use support::{Place, fails, succeeds, tandemfs};

/// Names of what is unusual, and of notes. What the machine itself has is left out: it is the same for all places.
fn findings(place: &str) -> (Vec<String>, Vec<String>) {
    const OF_MACHINE: [&str; 9] = [
        "kernel_old",
        "io_uring_off",
        "fuse_uring_absent",
        "fuse_uring_off",
        "few_maps",
        "fuse_missing",
        "fusermount_missing",
        "user_allow_other_absent",
        "no_huge_pages",
    ];
    let output = tandemfs(&["doctor", "--json", place]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let unusual = found["unusual"].as_u64().expect("a count");
    let status = if unusual == 0 { 0 } else { 4 };
    assert_eq!((output.status.code(), found["exit_status"].as_i64()), (Some(status), Some(status.into())), "{found:#}");
    let all = found["findings"].as_array().expect("a list");
    assert!(
        all.iter()
            .all(|finding| !finding["what"].as_str().unwrap_or("").is_empty() && !finding["advice"].as_str().unwrap_or("").is_empty())
    );
    let of = |level: &str| {
        let of_level = all.iter().filter(|finding| finding["level"] == level).filter_map(|finding| finding["name"].as_str());
        of_level.filter(|name| !OF_MACHINE.contains(name)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(all.iter().filter(|finding| finding["level"] == "unusual").count() as u64, unusual);
    (of("unusual"), of("note"))
}

fn unusual(place: &str) -> Vec<String> {
    findings(place).0
}

#[test]
fn a_device_that_is_well_has_notes_alone() {
    let place = Place::formatted();
    assert_eq!(findings(&place.image()), (vec![], vec!["emulated".to_owned()]));
    let mount = place.mount("relaxed");
    assert_eq!(findings(&place.mountpoint()), (vec![], vec!["emulated".to_owned()]));
    assert_eq!(findings(&place.image()), findings(&place.mountpoint()), "a mounted device is its mount");
    let page = succeeds(&["doctor", &place.mountpoint()]);
    assert!(page.contains("note") && page.contains("[emulated]") && page.contains("nothing is unusual"), "{page}");
    assert!(page.lines().all(|line| !line.is_empty()), "{page}");
    mount.kill();
    assert_eq!(findings(&place.image()).1, ["emulated", "not_clean"]);
}

#[test]
fn formats_that_are_unusual_are_found() {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "128M", "--block", "64M"]);
    succeeds(&["mkfs", &place.image(), "--checksum", "none"]);
    assert_eq!(unusual(&place.image()), ["no_checksums", "zones_odd"]);
}

#[test]
fn a_pair_of_files_is_noted() {
    let place = Place::empty();
    let (memory, block) = (place.path("memory"), place.path("block"));
    File::create(&memory).and_then(|file| file.set_len(128 << 20)).expect("made");
    File::create(&block).and_then(|file| file.set_len(512 << 20)).expect("made");
    let device = format!("memory={memory},block={block}");
    succeeds(&["mkfs", &device]);
    let (unusual, notes) = findings(&device);
    assert_eq!((unusual, notes), (vec![], vec!["file_as_half".to_owned(), "file_as_half".to_owned()]));
}

#[test]
fn options_that_are_unusual_are_found() {
    let place = Place::with_firmware();
    for (options, name) in [
        ("domain=process", "domain_lowered"),
        ("engine=journal", "engine_chosen"),
        ("timing=on", "timing_on"),
        ("write_back_limit=2%", "reserve_small"),
    ] {
        let mount = place.mount(options);
        assert_eq!(unusual(&place.mountpoint()), [name]);
        mount.unmount();
    }
    let mount = place.mount("allow_other");
    assert!(findings(&place.mountpoint()).1.contains(&"no_reserve".to_owned()));
    mount.unmount();
    let mount = place.mount("allow_other,reserved=5%,direct");
    assert_eq!(findings(&place.mountpoint()), (vec![], vec!["emulated".to_owned()]));
    mount.unmount();
}

#[test]
fn zones_that_are_short_are_found() {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "64M", "--block", "64M"]);
    succeeds(&["mkfs", &place.image()]);
    let mount = place.mount("strict");
    let piece = vec![7; 1 << 20];
    for number in 0.. {
        if std::fs::write(mount.path(&format!("file{number}")), &piece).is_err() {
            break;
        }
    }
    assert!(unusual(&place.mountpoint()).contains(&"zone_short".to_owned()));
    mount.unmount();
    place.check();
}

#[test]
fn damage_is_found() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    std::fs::write(mount.path("file"), vec![5; 1 << 20]).expect("written");
    mount.unmount();
    // Some sector of the file's data, wherever that lies.
    damage_data(&place.image());
    let mount = place.mount("strict");
    assert!(std::fs::read(mount.path("file")).is_err(), "damaged");
    assert_eq!(unusual(&place.mountpoint()), ["errors_counted"]);
    mount.unmount();
    assert_eq!(unusual(&place.image()), ["errors_counted"]);
}

fn damage_data(image: &str) {
    use tandemfs_device::{BlockRequest, Drive, Structure};
    use tandemfs_emulator::DeviceOptions;
    use tandemfs_format::Sector;
    let options = DeviceOptions { timing: false, ..DeviceOptions::default() };
    let drive = Drive::new(tandemfs_emulator::open_device(image, &options).expect("opens"));
    let mut damaged = 0;
    for number in 0..drive.description().block_bytes / 4096 {
        let mut sector = vec![0; 4096];
        let mut requests = [BlockRequest::Read { sector: Sector::new(number), buffer: (&mut sector).into() }];
        drop(drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("read"));
        if sector.iter().all(|byte| *byte == 5) {
            sector[17] ^= 1;
            let mut requests = [BlockRequest::Write { sector: Sector::new(number), buffer: (&sector).into() }];
            let written = drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("written");
            drop(drive.flush_blocks(written).expect("flushed"));
            damaged += 1;
            if damaged == 3 {
                return;
            }
        }
    }
    assert!(damaged > 0, "the file's data is not in the block zone");
}

#[test]
fn what_cannot_be_looked_at_is_said_in_one_sentence() {
    let place = Place::empty();
    fails(8, "a directory is no device", &["doctor", &place.mountpoint()]);
    fails(8, "does not exist", &["doctor", &place.path("absent")]);
    let file = place.path("file");
    std::fs::write(&file, vec![0; 1 << 20]).expect("written");
    fails(8, &file, &["doctor", &file]);
    fails(2, "required", &["doctor"]);
}
