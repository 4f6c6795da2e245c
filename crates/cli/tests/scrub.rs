//! `tandemfs scrub` of real mounts: what it finds, the places that it names, and how it can be stopped.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{MODES, Place, eventually, failed, fails, pattern, run, succeeds, tandemfs};

const BLOCK: usize = 64 << 10;

/// Changes one byte of the image, in the place of some bytes of which there is only one, and returns where they start.
fn damage(place: &Place, bytes: &[u8], at: usize) -> u64 {
    let mut image = Vec::new();
    File::open(place.image()).and_then(|mut file| file.read_to_end(&mut image)).expect("read");
    let found: Vec<usize> = image.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes).map(|(at, _)| at).collect();
    assert_eq!(found.len(), 1, "these bytes are there once");
    let file = OpenOptions::new().write(true).open(place.image()).expect("opened");
    file.write_all_at(&[image[found[0] + at] ^ 1], (found[0] + at) as u64).expect("written");
    found[0] as u64
}

/// Bytes of which no piece comes twice.
fn noise(mut state: u64, length: usize) -> Vec<u8> {
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

fn scrub(place: &Place, status: i32) -> Value {
    let output = tandemfs(&["scrub", &place.mountpoint(), "--json"]);
    assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no bar in a pipe");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn what_is_whole_is_clean_in_every_mode() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        fs::write(mount.path("blocks"), pattern(1, 10 * BLOCK)).expect("written");
        fs::create_dir(mount.path("directory")).expect("made");
        fs::write(mount.path("directory/log"), pattern(2, 300)).expect("written");
        rustix::fs::syncfs(File::open(mount.root()).expect("opened")).expect("synced");
        File::open(mount.path("blocks")).and_then(|file| file.sync_all()).expect("synced");
        let result = scrub(&place, 0);
        assert_eq!((&result["clean"], &result["exit_status"]), (&Value::Bool(true), &0.into()), "{result}");
        assert_eq!((result["sectors"].as_u64(), result["inodes"].as_u64()), (Some(160), Some(4)), "{result}");
        let text = succeeds(&["scrub", &place.mountpoint(), "--limit", "1G"]);
        assert!(text.lines().last().is_some_and(|line| line.ends_with(": clean")), "{text}");
        mount.unmount();
        place.check();
    }
}

#[test]
fn damage_is_named_with_path_offset_and_length() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let (blocks, log) = (noise(1, 10 * BLOCK), noise(2, 900));
    fs::create_dir(mount.path("directory")).expect("made");
    fs::write(mount.path("directory/blocks"), &blocks).expect("written");
    fs::write(mount.path("log"), &log).expect("written");
    mount.unmount();
    let offset = 3 * BLOCK + 5 * 4096;
    damage(&place, &blocks[offset..offset + 4096], 99);
    damage(&place, &log, 500);

    let mount = place.mount("strict");
    let result = scrub(&place, 4);
    let find = |what: &str| {
        let found: Vec<&Value> = result["findings"].as_array().expect("a list").iter().filter(|finding| finding["what"] == what).collect();
        assert_eq!(found.len(), 1, "{result}");
        found[0]
    };
    assert_eq!(result["findings"].as_array().map(Vec::len), Some(2), "{result}");
    let sectors = find("sectors");
    assert_eq!(
        (&sectors["path"], &sectors["file_offset"], &sectors["length"]),
        (&"/directory/blocks".into(), &offset.into(), &4096.into())
    );
    let found = find("log");
    assert_eq!((&found["path"], &found["file_offset"], &found["length"]), (&"/log".into(), &0.into(), &900.into()));
    let output = tandemfs(&["scrub", &place.mountpoint()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(4));
    assert!(text.contains("/directory/blocks: inode") && text.contains(&format!("4096 B of data at byte {offset}")), "{text}");
    assert!(text.contains("NOT clean"), "{text}");
    let journal = fs::read_to_string(place.path("log")).expect("a log");
    assert!(journal.contains("/directory/blocks") && journal.contains(&format!("byte {offset} ")), "{journal}");

    // It is an error for exactly that range, and the rest goes on.
    let file = File::open(mount.path("directory/blocks")).expect("opened");
    let mut sector = [0; 4096];
    for at in [offset - 4096, offset + 4096] {
        assert_eq!(direct_read(&mount.path("directory/blocks"), at as u64, &mut sector).ok(), Some(4096));
        assert!(sector[..] == blocks[at..at + 4096]);
    }
    let refused = direct_read(&mount.path("directory/blocks"), offset as u64, &mut sector);
    assert_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(5));
    drop(file);
    fs::write(mount.path("other"), pattern(3, 100_000)).expect("written");
    // Written anew it is whole again.
    let whole = OpenOptions::new().write(true).open(mount.path("directory/blocks")).expect("opened");
    whole.write_all_at(&blocks[3 * BLOCK..4 * BLOCK], 3 * BLOCK as u64).expect("written");
    fs::remove_file(mount.path("log")).expect("removed");
    scrub(&place, 0);
    drop(whole);
    mount.unmount();
    place.check();
}

fn direct_read(path: &std::path::Path, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)?.read_at(into, offset)
}

#[test]
fn a_damaged_line_of_metadata_is_named_with_its_place() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    fs::create_dir(mount.path("directory")).expect("made");
    fs::write(mount.path("directory/a-name-that-is-there-once"), pattern(1, 100)).expect("written");
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(mount.path("directory")).expect("there"));
    mount.unmount();
    // The journal of a clean device proves nothing any more, but the name is in it as well: take the last, which is at home.
    let name = b"a-name-that-is-there-once";
    let mut image = Vec::new();
    File::open(place.image()).and_then(|mut file| file.read_to_end(&mut image)).expect("read");
    let found: Vec<usize> = image.windows(name.len()).enumerate().filter(|(_, window)| window == name).map(|(at, _)| at).collect();
    let at = *found.last().expect("the name");
    let file = OpenOptions::new().write(true).open(place.image()).expect("opened");
    file.write_all_at(b"A", at as u64).expect("written");

    let mount = place.mount("strict");
    let result = scrub(&place, 4);
    let finding = &result["findings"][0];
    assert_eq!(result["findings"].as_array().map(Vec::len), Some(1), "{result}");
    assert_eq!((&finding["what"], &finding["inode"], &finding["length"]), (&"line".into(), &inode.into(), &64.into()), "{result}");
    assert_eq!(finding["path"], "/directory");
    let zone_start = at as u64 - finding["device_offset"].as_u64().expect("a place");
    assert!(zone_start % 4096 < 64, "the slot holds the name: {zone_start}");
    mount.unmount();
    fails(8, "no TandemFS is mounted", &["scrub", &place.mountpoint()]);
}

fn start(place: &Place, limit: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
    command.args(["scrub", &place.mountpoint(), "--limit", limit]).stdout(Stdio::piped()).stderr(Stdio::piped());
    support::start(&mut command).expect("started")
}

/// The daemon says in its log when a scrub begins and ends.
fn log_has(place: &Place, count: usize, word: &str) -> bool {
    fs::read_to_string(place.path("log")).unwrap_or_default().matches(word).count() >= count
}

#[test]
fn one_scrub_at_a_time_which_ends_with_its_command_or_its_mount() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    let file = File::create(mount.path("file")).expect("created");
    (&file).write_all(&pattern(1, 40 << 20)).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    let mut first = start(&place, "64K");
    eventually("a scrub", || log_has(&place, 1, "scrub begins"));
    fails(8, "running already", &["scrub", &place.mountpoint()]);
    assert!(mount.stats()["block_path"]["read_bytes"].as_u64().is_some(), "others are answered beside it");
    succeeds(&["info", &place.mountpoint()]);
    fs::write(mount.path("other"), pattern(2, 200_000)).expect("written");
    // The one that is killed ends its scrub.
    first.kill().expect("killed");
    first.wait().expect("ended");
    eventually("the end of the scrub", || log_has(&place, 1, "scrub ends early: nobody waits"));
    let second = start(&place, "64K");
    eventually("another scrub", || log_has(&place, 2, "scrub begins"));
    mount.unmount();
    // Waited for, it would have succeeded, after the ten minutes that its limit lets it take.
    failed(&second.wait_with_output().expect("ended"), 8, "the mount ended", "scrub of a mount that ends");
    place.check();
}

#[test]
fn the_limit_holds() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    fs::write(mount.path("file"), pattern(1, 8 << 20)).expect("written");
    let start = Instant::now();
    succeeds(&["scrub", &place.mountpoint(), "--limit", "4M"]);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(1900), "8 MiB at 4 MiB a second took {took:?}");
    let refused = run(Command::new(env!("CARGO_BIN_EXE_tandemfs")).args(["scrub", &place.mountpoint(), "--limit", "0"]));
    failed(&refused, 2, "--limit 0", "no pace at all");
    mount.unmount();
}
