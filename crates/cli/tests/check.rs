//! `tandemfs check` of a damaged pair: dry run, preening, repair, taking it back; exit status as of fsck(8).

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use support::{Place, fails, succeeds, tandemfs};

/// A pair of files with a file system whose root inode has a flipped bit.
fn damaged(place: &Place) -> String {
    with_root_changed(place, 3)
}

/// The same, with these bits of a byte of the root's inode changed.
fn with_root_changed(place: &Place, bits: u8) -> String {
    for name in ["memory", "block"] {
        File::create(place.path(name)).and_then(|file| file.set_len(32 << 20)).expect("made");
    }
    let device = format!("memory={},block={}", place.path("memory"), place.path("block"));
    succeeds(&["mkfs", &device]);
    let text = succeeds(&["dump", &device, "inode", "1"]);
    let line = text.lines().next().and_then(|line| line.split("0x").nth(1)).expect("says where the root is");
    let at = u64::from_str_radix(line.trim(), 16).expect("a number") * 64 + 40;
    let file = OpenOptions::new().read(true).write(true).open(place.path("memory")).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[byte[0] ^ bits], at).expect("writes");
    device
}

/// Runs check; the exit status and what it printed.
fn check(words: &[&str]) -> (i32, String) {
    let output = tandemfs(&[&["check"], words].concat());
    (output.status.code().expect("ends"), String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn a_damaged_file_system_is_repaired_and_taken_back() {
    let place = Place::empty();
    let device = damaged(&place);
    let zones = || (fs::read(place.path("memory")).expect("reads"), fs::read(place.path("block")).expect("reads"));
    let before = zones();

    let (status, text) = check(&[&device]);
    assert!(status == 4 && text.contains("inode 1 is damaged") && text.contains("NOT clean"), "{status}: {text}");
    let (status, text) = check(&["-n", &device]);
    assert!(status == 4 && text.contains("would repair: inode 1 is damaged"), "{status}: {text}");
    assert!(zones() == before, "a dry run writes nothing");
    let (status, text) = check(&["-p", "--metadata-only", &device]);
    assert!(status == 4 && text.contains("--repair repairs the rest") && text.contains("data not read"), "{status}: {text}");
    assert!(zones() == before, "preening has nothing to do");

    let undo = place.path("undo");
    let (status, text) = check(&["--repair", "--undo", &undo, &device]);
    assert!(status == 1 && text.contains("repaired: inode 1 is damaged") && text.contains("--undo-apply"), "{status}: {text}");
    let (status, text) = check(&[&device]);
    assert!(status == 0 && text.contains("clean"), "{status}: {text}");

    let (status, text) = check(&["--undo-apply", &undo, &device]);
    assert!(status == 0 && text.contains("put back"), "{status}: {text}");
    assert!(zones() == before, "byte for byte");
    let (status, text) = check(&["-y", "--json", &device]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(status == 1 && json["exit_status"] == 1 && json["consistent"] == true && json["lost"].is_array(), "{text}");
}

#[test]
fn a_boot_corrects_a_single_wrong_bit() {
    let place = Place::empty();
    let device = with_root_changed(&place, 4);
    let (status, text) = check(&["-p", "--metadata-only", &device]);
    assert!(status == 1 && text.contains("repair: lines with a single wrong bit were corrected: 1"), "{status}: {text}");
    assert!(text.contains("clean after 1 repair\n") && !text.contains("gave up"), "{text}");
    let (status, text) = check(&["-p", &device]);
    assert!(status == 0 && text.contains("clean"), "{status}: {text}");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = Place::empty();
    let device = damaged(&place);
    fails(16, "--zero-data needs", &["check", "--zero-data", &device]);
    fails(16, "--undo needs", &["check", "--undo", &place.path("undo"), &device]);
    for words in [&["-y", "-p"][..], &["-n", "--undo", "x"], &["-y", "--undo-apply", "x"]] {
        fails(2, "cannot be used with", &[&["check"], words, &[device.as_str()]].concat());
    }
    fails(8, "undo", &["check", "--undo-apply", &place.path("undo"), &device]);
}
