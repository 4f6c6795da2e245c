//! `tandemfs restore` and `tandemfs check --rescue` on devices that a mount refuses, against what a mount had written.

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use support::{Place, fails, pattern, succeeds, tandemfs};

/// Offset of a zone in the image of a drive without firmware: where the first superblock is.
fn memory_zone(place: &Place) -> u64 {
    let image = fs::read(place.image()).expect("reads");
    let magic = image.windows(8).enumerate().find(|(at, bytes)| *bytes == b"TandemFS" && at % 4096 == 4).expect("a superblock");
    magic.0 as u64 - 4
}

fn overwrite(place: &Place, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(place.image()).expect("opens").write_all_at(bytes, at).expect("written");
}

fn fill(root: &Path) {
    fs::create_dir_all(root.join("mail/new")).expect("made");
    for number in 0..200 {
        fs::write(root.join(format!("mail/new/{number}")), pattern(number, 100 + number as usize * 97)).expect("written");
    }
    let large = fs::File::create(root.join("large")).expect("created");
    large.write_all_at(&pattern(7, 300_000), 0).expect("written");
    large.write_all_at(b"end", 50 << 20).expect("written");
    fs::hard_link(root.join("mail/new/7"), root.join("seven")).expect("linked");
    std::os::unix::fs::symlink("mail/new", root.join("link")).expect("linked");
    fs::set_permissions(root.join("mail"), fs::Permissions::from_mode(0o2750)).expect("changed");
}

/// Path, type and mode, size, time, content.
type Listing = Vec<(String, u32, u64, i64, Vec<u8>)>;

/// Everything below a directory.
fn listing(root: &Path) -> Listing {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("lists") {
            let path = entry.expect("reads").path();
            let data = fs::symlink_metadata(&path).expect("exists");
            let content = match () {
                () if data.is_dir() => Vec::new(),
                () if data.is_symlink() => fs::read_link(&path).expect("reads").into_os_string().into_encoded_bytes(),
                () => fs::read(&path).expect("reads"),
            };
            let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
            found.push((name, data.mode(), if data.is_dir() { 0 } else { data.len() }, data.mtime(), content));
            if data.is_dir() {
                waiting.push(path);
            }
        }
    }
    found.sort();
    found
}

fn filled() -> (Place, Listing) {
    let place = Place::formatted();
    let mount = place.mount("");
    fill(mount.root());
    let before = listing(mount.root());
    mount.unmount();
    (place, before)
}

#[test]
fn a_device_without_a_segment_table_is_refused_restored_and_rescued() {
    let (place, before) = filled();
    let image = place.image();
    overwrite(&place, memory_zone(&place) + (128 << 10), &vec![0xee; 384 << 10]);
    fails(1, "check --rescue", &["mount", &image, &place.mountpoint()]);
    let output = tandemfs(&["check", "--repair", &image]);
    assert!(output.status.code() == Some(4) && String::from_utf8_lossy(&output.stdout).contains("check --rescue"), "{output:?}");

    let copy = place.path("copy");
    let text = succeeds(&["restore", &image, &copy]);
    assert!(text.contains("everything was copied") && text.contains("found to be of the region inodes"), "{text}");
    assert!(listing(Path::new(&copy)) == before);
    let large = fs::metadata(Path::new(&copy).join("large")).expect("exists");
    assert!(large.blocks() * 512 < 10 << 20, "the hole is one");
    fails(2, "is not empty", &["restore", &image, &copy]);
    let json: serde_json::Value = serde_json::from_str(&succeeds(&["restore", "--force", "--json", &image, &copy])).expect("JSON");
    assert!(json["whole"] == true && json["files"] == 0 && json["complete_before"].as_u64() > Some(200), "{json}");

    let undo = place.path("undo");
    let output = tandemfs(&["check", "--rescue", "--undo", &undo, &image]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("rescue: segment table") && text.contains("clean after"), "{output:?}");
    place.check();
    let mount = place.mount("");
    assert!(listing(mount.root()) == before);
    fs::write(mount.path("after"), "works").expect("written");
    mount.unmount();
    place.check();
}

#[test]
fn a_device_with_two_damaged_superblocks_is_rescued() {
    let (place, before) = filled();
    let (image, zone) = (place.image(), memory_zone(&place));
    overwrite(&place, zone + 128, &[9; 64]);
    overwrite(&place, zone + (64 << 10) + 512, &[9; 64]);
    fails(1, "check --rescue", &["mount", &image, &place.mountpoint()]);
    succeeds(&["restore", &image, &place.path("copy")]);
    assert!(listing(Path::new(&place.path("copy"))) == before);
    assert_eq!(tandemfs(&["check", "--rescue", &image]).status.code(), Some(1));
    place.check();
    place.mount("").unmount();

    overwrite(&place, zone, &[9; 512]);
    overwrite(&place, zone + (64 << 10), &[9; 512]);
    for words in [&["check", "--rescue", &image][..], &["restore", &image, &place.path("other")]] {
        fails(8, "superblock", words);
    }
}

#[test]
fn damaged_data_is_listed_with_its_place() {
    let (place, before) = filled();
    let content = pattern(7, 300_000);
    let image = fs::read(place.image()).expect("reads");
    let wanted = &content[40_960..45_056];
    let at = image.windows(4096).position(|bytes| bytes == wanted).expect("the sector");
    let wrong = wanted[5] ^ 4;
    overwrite(&place, at as u64 + 5, &[wrong]);
    let copy = place.path("copy");
    let output = tandemfs(&["restore", &place.image(), &copy]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(text.contains("damaged: /large (inode") && text.contains("4096 B at byte 40960, left as a hole"), "{text}");
    let mut expected = content.clone();
    expected[40_960..45_056].fill(0);
    assert!(fs::read(Path::new(&copy).join("large")).expect("reads")[..300_000] == expected);
    let copy = place.path("unverified");
    let output = tandemfs(&["restore", "--ignore-errors", &place.image(), &copy]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let mut expected = content;
    expected[40_965] = wrong;
    assert!(fs::read(Path::new(&copy).join("large")).expect("reads")[..300_000] == expected);
    assert_eq!(listing(Path::new(&copy)).len(), before.len());
}
