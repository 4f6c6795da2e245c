//! `tandemfs resize` of a mount in use: programs go on, one that found no space finds some, and a killed daemon leaves the old sizes or the new ones.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Place, eventually, failed, fails, pattern, program_for_everybody, run, start, succeeds};
use tandemfs_client::{Mount as Client, Options};

const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65_534;

fn json_of(words: &[&str]) -> Value {
    let text = succeeds(words);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
}

/// Sizes of the zones in MiB, of a device or a mount.
fn sizes(at: &str) -> (u64, u64) {
    let info = json_of(&["info", at, "--json"]);
    // A mount does not count the sector that no file can have.
    let of = |zone: &str| info[zone]["total_bytes"].as_u64().expect("a size").div_ceil(MIB);
    (of("memory_zone"), of("block_zone"))
}

/// Ends what goes on beside a test, also if that fails.
struct Ends<'d>(&'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn image(memory: &str, block: &str) -> Place {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", memory, "--block", block]);
    succeeds(&["mkfs", &place.image()]);
    place
}

/// A pair of files in a place, which grow to these sizes in MiB.
fn enlarge(place: &Place, memory: u64, block: u64) -> String {
    for (name, size) in [("memory", memory), ("block", block)] {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(place.path(name));
        file.and_then(|file| file.set_len(size * MIB)).expect("a file");
    }
    format!("memory={},block={}", place.path("memory"), place.path("block"))
}

#[test]
fn a_full_image_grows_and_its_writer_goes_on() {
    for mode in support::MODES {
        let place = image("32M", "32M");
        let mount = place.mount(mode);
        let at = place.mountpoint();
        fs::write(mount.path("kept"), pattern(1, 3 << 20)).expect("written");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(mount.path("file")).expect("made");
        let write = |block: u64| file.write_all_at(&pattern(block, 64 << 10), block << 16).and_then(|()| file.sync_data());
        let full = (0..2000).find(|block| write(*block).is_err()).expect("full");
        assert_eq!(write(full).expect_err("full").raw_os_error(), Some(28), "ENOSPC");
        let units = || rustix::fs::statvfs(mount.root()).expect("statfs").f_blocks;
        let before = units();
        let said = succeeds(&["resize", &at, "--block", "96M"]);
        assert_eq!(said, format!("{at}: grown, memory 32 MiB to 32 MiB, block 32 MiB to 96 MiB\n"));
        assert!(units() > before);
        assert_eq!(sizes(&at), (32, 96));
        // A write back of the kernel may have failed since, which the next sync says.
        eventually("the writer goes on", || write(full).is_ok());
        (full..full + 700).for_each(|block| write(block).expect("written to new space"));
        let again = json_of(&["resize", &at, "--block", "96M", "--json"]);
        assert_eq!((&again["grown"], &again["block_bytes"], &again["memory_left"]), (&json!(false), &json!(96 * MIB), &json!(false)));
        // The memory region of an image lies before its blocks.
        let why = fails(1, "cannot grow in use; unmount it and run tandemfs resize", &["resize", &at, "--memory", "64M"]);
        assert!(why.contains("no room behind its memory region"), "{why}");
        drop(file);
        mount.unmount();
        place.check();
        succeeds(&["resize", &place.image(), "--memory", "64M"]);
        let mount = place.mount(mode);
        let file = File::open(mount.path("file")).expect("opened");
        for block in 0..full + 700 {
            let mut bytes = vec![0; 64 << 10];
            file.read_exact_at(&mut bytes, block << 16).expect("read");
            assert!(bytes == pattern(block, 64 << 10), "{mode}: block {block}");
        }
        assert!(fs::read(mount.path("kept")).expect("read") == pattern(1, 3 << 20));
        drop(file);
        mount.unmount();
        place.check();
    }
}

/// Both halves grow again and again beside a writer and a reader, and so do images and a mount's answers to `df`.
#[test]
fn a_pair_grows_beside_a_writer_and_a_reader() {
    let place = Place::empty();
    let device = enlarge(&place, 32, 64);
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "strict");
    let at = place.mountpoint();
    fs::write(mount.path("kept"), pattern(1, 3 << 20)).expect("written");
    assert!(succeeds(&["resize", &at]).contains("nothing to do"));
    fails(1, "enlarge the device first", &["resize", &at, "--block", "128M"]);
    let (done, slowest) = (AtomicBool::new(false), AtomicU64::new(0));
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = File::create(mount.path("file")).expect("made");
            let (mut written, mut full) = (0, 0);
            while !done.load(Relaxed) && written < 3000 {
                let begun = Instant::now();
                match file.write_all_at(&pattern(written, 64 << 10), written << 16) {
                    Ok(()) => written += 1,
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(28), "ENOSPC and nothing else");
                        full += 1;
                    }
                }
                slowest.fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
            }
            (written, full)
        });
        scope.spawn(|| {
            let file = File::open(mount.path("kept")).expect("opened");
            let mut bytes = vec![0; 3 << 20];
            while !done.load(Relaxed) {
                file.read_exact_at(&mut bytes, 0).expect("read");
                assert!(bytes == pattern(1, 3 << 20));
            }
        });
        let ends = Ends(&done);
        for step in 1..=8 {
            std::thread::sleep(Duration::from_millis(100));
            enlarge(&place, 32 + 8 * step, 64 + 32 * step);
            let begun = Instant::now();
            let grown = json_of(&["resize", &at, "--json"]);
            assert_eq!((&grown["grown"], &grown["block_bytes"]), (&json!(true), &json!((64 + 32 * step) * MIB)));
            eprintln!("step {step}: {:?}", begun.elapsed());
            assert_eq!(sizes(&at), (32 + 8 * step, 64 + 32 * step));
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(ends);
        writer.join().expect("the writer")
    });
    eprintln!("{written:?} blocks, and times full; the slowest call took {slowest:?} ms");
    let look = |mount: &support::Mount| {
        let file = File::open(mount.path("file")).expect("opened");
        for block in 0..written.0 {
            let mut bytes = vec![0; 64 << 10];
            file.read_exact_at(&mut bytes, block << 16).expect("read");
            assert!(bytes == pattern(block, 64 << 10), "block {block}");
        }
    };
    look(&mount);
    mount.unmount();
    succeeds(&["check", &device]);
    let mount = place.mount_device(&device, "strict");
    look(&mount);
    mount.unmount();
}

/// A client that was told of the smaller zone reads and maps files in the new space by requests, or not at all; one that comes later knows all of it.
#[test]
fn programs_at_the_direct_door_go_on() {
    let place = Place::empty();
    let memory = place.path("memory");
    let enlarge = |size: u64| OpenOptions::new().create(true).truncate(false).write(true).open(&memory)?.set_len(size * MIB);
    enlarge(32).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    let at = place.mountpoint();
    let options = Options { loads: true, stores: true, maps: true, ..Options::default() };
    let early = Client::connect_with(mount.root(), &options).expect("let in");
    let all = |number: u64| pattern(number, 1 << 20);
    let mut names = Vec::new();
    let write = |client: &Client, number: u64| {
        let name = format!("file {number}");
        let open = tandemfs_client::OpenOptions::new().read(true).write(true).create(true).open(client, &name);
        open.and_then(|file| file.write_all_at(&all(number), 0).map(|()| (name, file)))
    };
    let look = |client: &Client, number: u64, name: &str| {
        let file = tandemfs_client::OpenOptions::new().read(true).write(true).open(client, name).expect("opened");
        let mut bytes = vec![0; 1 << 20];
        for _ in 0..6 {
            bytes.fill(0);
            file.read_exact_at(&mut bytes, 0).expect("read");
            assert!(bytes == all(number), "{name}");
            // Overwritten in pieces, which a lease for stores would serve.
            for piece in 0..16_usize {
                file.write_all_at(&all(number)[piece << 12..][..4096], (piece as u64) << 12).expect("written");
            }
        }
        match file.map(0..1 << 20) {
            Ok(mapped) => {
                let mut bytes = vec![0; 1 << 20];
                mapped.load(0, &mut bytes).expect("read");
                assert!(bytes == all(number), "{name}, mapped");
                true
            }
            Err(error) => {
                assert_eq!(error, tandemfs_client::Error::Errno(tandemfs_client::Errno::OPNOTSUPP), "{name}");
                false
            }
        }
    };
    while let Ok((name, _file)) = write(&early, names.len() as u64) {
        names.push(name);
    }
    assert!(names.len() > 5, "{names:?}");
    enlarge(128).expect("enlarged");
    succeeds(&["resize", &at]);
    assert_eq!(sizes(&at).0, 128);
    for _ in 0..40 {
        let (name, _file) = write(&early, names.len() as u64).expect("written to new space");
        names.push(name);
    }
    let by = |client: &Client| {
        names
            .iter()
            .enumerate()
            .map(|(number, name)| (number as u64, name))
            .rev()
            .filter(|(number, name)| look(client, *number, name))
            .map(|(number, _)| number)
            .collect()
    };
    let by_early: Vec<u64> = by(&early);
    drop(early); // all of a process share a connection
    let late = Client::connect_with(mount.root(), &options).expect("let in");
    let by_late: Vec<u64> = by(&late);
    assert_eq!(by_late.len(), names.len(), "who knows the whole zone maps all files");
    assert!(!by_early.is_empty() && by_early.len() <= names.len() - 30, "{by_early:?}");
    drop(late);
    mount.unmount();
    succeeds(&["check", &device]);
}

#[test]
fn only_who_may_can_grow_and_bad_sizes_change_nothing() {
    let place = image("32M", "64M");
    let mount = place.mount("relaxed");
    let at = place.mountpoint();
    let length = fs::metadata(place.image()).expect("there").len();
    for (said, words) in [
        ("cannot shrink", &["--memory", "16M"][..]),
        ("cannot shrink", &["--block", "32M"]),
        ("cannot shrink", &["--block", "32M", "--memory", "16M"]),
        ("60 %", &["--block", "100G"]),
        ("too large", &["--block", "8000T"]),
    ] {
        let why = fails(1, said, &[&["resize", &at], words].concat());
        assert!(why.contains(&at), "{why}");
        assert_eq!((sizes(&at), fs::metadata(place.image()).expect("there").len()), ((32, 64), length), "{words:?}");
    }
    fails(2, "", &["resize", &at, "--block", "much"]);
    fails(1, "in use", &["resize", &place.image(), "--block", "128M"]);
    fails(1, "no TandemFS is mounted there", &["resize", &place.path("")]);
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("changed");
        let output = run(Command::new(program_for_everybody(&place)).args(["resize", &at, "--block", "128M"]).uid(NOBODY).gid(NOBODY));
        failed(&output, 1, "another user mounted it", "nobody");
        assert_eq!(sizes(&at), (32, 64));
    }
    mount.unmount();
    let mount = place.mount("ro");
    fails(1, "read-only", &["resize", &at, "--block", "128M"]);
    mount.unmount();
    let firmware = Place::with_firmware();
    let mount = firmware.mount("relaxed");
    let why = fails(1, "firmware", &["resize", &firmware.mountpoint(), "--block", "1G"]);
    assert!(why.contains("flash has the size"), "{why}");
    assert!(succeeds(&["resize", &firmware.mountpoint()]).contains("nothing to do"));
    mount.unmount();
    place.check();
    firmware.check();
}

/// The daemon is killed at any instant of a growth: the old sizes or the new ones, every acknowledged file, and the same command goes on. That the
/// program which asked is killed changes nothing.
#[test]
fn a_killed_daemon_leaves_the_old_sizes_or_the_new_ones() {
    let mut seen = BTreeMap::new();
    for round in 0..12_u64 {
        let (place, is_pair) = if round % 2 == 0 { (image("32M", "32M"), false) } else { (Place::empty(), true) };
        let device = if is_pair { enlarge(&place, 32, 32) } else { place.image() };
        if is_pair {
            succeeds(&["mkfs", &device]);
        }
        let mount = place.mount_device(&device, "strict");
        let at = place.mountpoint();
        for number in 0..20_u64 {
            fs::write(mount.path(&format!("{number}")), pattern(number, number as usize * 9000)).expect("written");
        }
        if is_pair {
            enlarge(&place, 64, 128);
        }
        let mut resize = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
        resize.args(["resize", &at, "--block", "128M"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = start(&mut resize).expect("started");
        std::thread::sleep(Duration::from_micros(round * 30_000));
        if round % 6 == 5 {
            let _ended = child.kill(); // who asked, not who does it
            child.wait().expect("waited for");
            eventually("the growth ends", || json_of(&["info", &at, "--json"]).is_object());
        }
        mount.kill();
        let _ended = child.kill();
        child.wait().expect("waited for");
        let found = sizes(&device);
        assert!([(32, 32), (32, 128)].contains(&found), "{found:?}");
        *seen.entry(found.1).or_insert(0) += 1;
        let mount = place.mount_device(&device, "strict");
        for number in 0..20_u64 {
            let bytes = fs::read(mount.path(&format!("{number}"))).expect("read");
            assert!(bytes == pattern(number, number as usize * 9000), "file {number}, round {round}");
        }
        succeeds(&["resize", &at, "--block", "128M"]);
        assert_eq!(sizes(&at), (32, 128));
        fs::write(mount.path("new"), pattern(9, 50 << 20)).expect("the new space is written");
        mount.unmount();
        succeeds(&["check", &device]);
    }
    eprintln!("block zones in MiB after a kill: {seen:?}");
}
