//! Tasks of an administrator: growing, labels, the reserve, fstab, units, lazy unmounts, reading the log.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::parameters::Parameter;
use support::{MODES, Mount, Place, ends_within, eventually, fails, pattern, run, start, succeeds, unmounts};
use tandemfs_posix::IdMapped;

const NOBODY: u32 = 65_534;
const MIB: u64 = 1 << 20;

/// A formatted image of sizes.
fn image(memory: &str, block: &str, format: &[&str]) -> Place {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", memory, "--block", block]);
    succeeds(&[&["mkfs", &place.image()], format].concat());
    place
}

/// Files by both paths.
fn fill_some(mount: &Mount) {
    fs::create_dir(mount.path("dir")).expect("made");
    for number in 0..30_u64 {
        fs::write(mount.path(&format!("dir/{number}")), pattern(number, number as usize * 7_000)).expect("written");
    }
}

fn look(mount: &Mount) {
    for number in 0..30_u64 {
        assert!(
            fs::read(mount.path(&format!("dir/{number}"))).expect("read") == pattern(number, number as usize * 7_000)[..],
            "file {number}"
        );
    }
}

fn info(place: &str) -> serde_json::Value {
    serde_json::from_str(&succeeds(&["info", place, "--json"])).expect("JSON")
}

fn sizes(device: &str) -> (u64, u64) {
    let info = info(device);
    let of = |zone: &str| info[zone]["total_bytes"].as_u64().expect("a size");
    (of("memory_zone"), of("block_zone"))
}

#[test]
fn an_image_grows_and_every_file_stays() {
    let place = image("16M", "64M", &["--label", "mail"]);
    let device = place.image();
    let mount = place.mount("relaxed");
    fill_some(&mount);
    mount.unmount();
    for (words, memory, block) in [
        (&["--block", "128M"][..], 16, 128),
        (&["--memory", "64M"], 64, 128),
        (&["--memory", "400M", "--block", "1G"], 400, 1024),
        (&["--block", "2G"], 400, 2048),
    ] {
        let said = succeeds(&[&["resize", &device], words].concat());
        assert!(said.contains("grown"), "{said}");
        assert_eq!(sizes(&device), (memory * MIB, block * MIB));
        place.check();
        let said = succeeds(&["resize", &device]);
        assert!(said.contains("nothing to do"), "{said}");
        let mount = place.mount("relaxed");
        look(&mount);
        assert_eq!(info(&place.mountpoint())["recovery"]["clean"], true);
        fs::write(mount.path("new"), pattern(99, 40 * MIB as usize)).expect("the new space is written");
        assert!(fs::read(mount.path("new")).expect("read") == pattern(99, 40 * MIB as usize));
        mount.unmount();
        place.check();
    }
    // 200 pieces of units and more: the maps have units of their own.
    assert!(succeeds(&["dump", &device, "superblock"]).contains("maps         units"));
    assert_eq!(succeeds(&["label", &device]), "mail\n");
}

/// Only the block zone grows, to more map pieces than there is room for: they find free units in the memory zone. Where there are not
/// enough in a row nothing is changed.
#[test]
fn maps_of_a_large_block_zone_move_into_free_units() {
    let place = image("18M", "1G", &["--block-size", "1M", "--checksum", "none"]);
    let device = place.image();
    let mount = place.mount("strict");
    fill_some(&mount);
    for log in 0..700 {
        fs::write(mount.path(&format!("log-{log}")), pattern(log, 4000)).expect("written");
    }
    mount.unmount();
    let maps = || succeeds(&["dump", &device, "superblock"]).lines().find(|line| line.starts_with("maps")).map(str::to_owned);
    assert_eq!(maps(), None);
    // Of nine units one is fixed, four are regions, and at least two have data logs, of which 512 fill one.
    let mut places = Vec::new();
    for block in ["20G", "50G"] {
        succeeds(&["resize", &device, "--block", block]);
        places.extend(maps());
        place.check();
        // Read-only: a mount that writes and lasts would turn the logs into sectors and have more units free.
        let mount = place.mount("strict,ro");
        look(&mount);
        assert_eq!(info(&place.mountpoint())["recovery"]["clean"], true);
        mount.unmount();
    }
    assert!(places.len() == 2 && places[0] == places[1], "a unit has room for 61 GiB: {places:?}");
    let (before, length) = (sizes(&device), fs::metadata(&device).expect("there").len());
    fails(1, "2 free units of 2 MiB in a row", &["resize", &device, "--block", "100G"]);
    assert_eq!((sizes(&device), fs::metadata(&device).expect("there").len()), (before, length), "nothing was changed");
    place.check();
    succeeds(&["resize", &device, "--block", "100G", "--memory", "22M"]);
    assert_eq!(maps().as_deref(), Some("maps         units 9 to 10"));
    place.check();
    let mount = place.mount("relaxed");
    look(&mount);
    fs::write(mount.path("new"), pattern(7, 30 * MIB as usize)).expect("written");
    mount.kill();
    let mount = place.mount("relaxed");
    look(&mount);
    mount.unmount();
    place.check();
}

#[test]
fn a_pair_grows_to_what_its_devices_have() {
    let place = Place::empty();
    let (memory, block) = (place.path("memory"), place.path("block"));
    let file =
        |path: &str, size: u64| OpenOptions::new().create(true).truncate(false).write(true).open(path).and_then(|file| file.set_len(size));
    file(&memory, 32 * MIB).and_then(|()| file(&block, 64 * MIB)).expect("made");
    let device = format!("memory={memory},block={block}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "strict");
    fill_some(&mount);
    mount.unmount();
    assert!(succeeds(&["resize", &device]).contains("nothing to do"));
    fails(1, "enlarge the device first", &["resize", &device, "--block", "128M"]);
    file(&memory, 64 * MIB).and_then(|()| file(&block, 256 * MIB)).expect("enlarged");
    succeeds(&["resize", &device, "--block", "128M"]);
    assert_eq!(sizes(&device), (32 * MIB, 128 * MIB));
    succeeds(&["resize", &device]);
    assert_eq!(sizes(&device), (64 * MIB, 256 * MIB));
    let mount = place.mount_device(&device, "strict");
    look(&mount);
    fs::write(mount.path("new"), pattern(9, 100 * MIB as usize)).expect("the new space is written");
    mount.unmount();
    succeeds(&["check", &device]);
}

#[test]
fn what_cannot_grow_says_so_and_is_left_alone() {
    let place = image("32M", "64M", &["--block-size", "4K"]);
    let device = place.image();
    let (before, length) = (sizes(&device), fs::metadata(&device).expect("there").len());
    for (said, words) in [
        ("too small", &["--memory", "14M"][..]),
        ("too small", &["--block", "1M"]),
        ("one zone cannot grow", &["--memory", "16M", "--block", "10G"]),
        ("60 %", &["--block", "100G"]),
        ("multiple", &["--memory", "33M"]),
        ("too large", &["--block", "8000T"]),
    ] {
        fails(1, said, &[&["resize", &device], words].concat());
        assert_eq!((sizes(&device), fs::metadata(&device).expect("there").len()), (before, length), "{words:?}");
    }
    let mount = place.mount("relaxed");
    fails(1, "in use", &["resize", &device, "--block", "1G"]);
    fails(1, "in use", &["resize", &device]);
    fails(1, "in use", &["label", &device, "other"]);
    mount.unmount();
    place.check();
    let drive = Place::with_firmware();
    let before = sizes(&drive.image());
    fails(1, "firmware", &["resize", &drive.image(), "--block", "1G"]);
    assert!(succeeds(&["resize", &drive.image()]).contains("nothing to do"));
    assert_eq!(sizes(&drive.image()), before);
    drive.check();
    fails(2, "", &["resize", &device, "--block", "much"]);
    fails(1, "does not exist", &["resize", &place.path("absent")]);
}

/// Files stay, and the image takes less of its disk; the device grows again.
#[test]
fn an_image_shrinks_and_every_file_stays() {
    let place = image("64M", "256M", &["--block-size", "16K"]);
    let device = place.image();
    let mount = place.mount("strict");
    fs::write(mount.path("large"), pattern(3, 150 * MIB as usize)).expect("written");
    fill_some(&mount);
    fs::remove_file(mount.path("large")).expect("removed");
    mount.unmount();
    let said = succeeds(&["resize", &device, "--block", "40M", "--memory", "24M"]);
    assert_eq!(said, format!("{device}: shrunk, memory 64 MiB to 24 MiB, block 256 MiB to 40 MiB\n"));
    assert_eq!(sizes(&device), (24 * MIB, 40 * MIB));
    place.check();
    let taken = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&device).expect("there")) * 512;
    assert!(taken < 70 * MIB, "{taken} B");
    let mount = place.mount("strict");
    look(&mount);
    fails(1, "cannot shrink in use; unmount it", &["resize", &place.mountpoint(), "--block", "20M"]);
    fs::write(mount.path("new"), pattern(9, 20 * MIB as usize)).expect("written");
    mount.unmount();
    fails(1, "does not fit into 16 MiB", &["resize", &device, "--block", "16M"]);
    assert_eq!(sizes(&device), (24 * MIB, 40 * MIB));
    place.check();
    assert!(succeeds(&["resize", &device]).contains("nothing to do"), "the drive is as small");
    succeeds(&["resize", &device, "--block", "256M", "--memory", "64M"]);
    let mount = place.mount("relaxed");
    look(&mount);
    mount.unmount();
    place.check();
}

/// Killed at any instant, a shrink leaves the old sizes or the new ones and every file, and the same command goes on.
#[test]
fn a_killed_shrink_leaves_the_old_sizes_or_the_new_ones() {
    let original = image("64M", "256M", &["--block-size", "16K"]);
    let mount = original.mount("strict");
    fill_some(&mount);
    for number in 0..300_u64 {
        fs::write(mount.path(&format!("{number}")), pattern(number, 500_000)).expect("written");
    }
    (0..300_u64).filter(|number| number % 5 > 0).for_each(|number| fs::remove_file(mount.path(&format!("{number}"))).expect("removed"));
    mount.unmount();
    let place = Place::empty();
    let device = place.image();
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..24_u64 {
        run(Command::new("cp").args(["--sparse=always", &original.image(), &device]));
        let mut resize = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
        resize.args(["resize", &device, "--memory", "24M", "--block", "60M"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = start(&mut resize).expect("started");
        std::thread::sleep(Duration::from_micros(round * 12_000));
        let _ended = child.kill();
        child.wait().expect("waited for");
        let found = sizes(&device);
        assert!([(64 * MIB, 256 * MIB), (24 * MIB, 60 * MIB)].contains(&found), "{found:?}");
        *seen.entry(found).or_insert(0) += 1;
        place.check();
        succeeds(&["resize", &device, "--memory", "24M", "--block", "60M"]);
        assert_eq!(sizes(&device), (24 * MIB, 60 * MIB));
        let mount = place.mount("relaxed");
        look(&mount);
        for number in (0..300_u64).step_by(5) {
            assert!(fs::read(mount.path(&format!("{number}"))).expect("read") == pattern(number, 500_000), "{number}");
        }
        mount.unmount();
        place.check();
        fs::remove_file(&device).expect("removed");
    }
    eprintln!("sizes after a kill: {seen:?}");
}

/// Killed at any instant: the old sizes or the new ones, every file, and the same command goes on.
#[test]
fn a_killed_resize_leaves_the_old_sizes_or_the_new_ones() {
    let original = image("16M", "64M", &[]);
    let mount = original.mount("strict");
    fill_some(&mount);
    mount.unmount();
    let place = Place::empty();
    let device = place.image();
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..40_u64 {
        run(Command::new("cp").args(["--sparse=always", &original.image(), &device]));
        let mut resize = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
        resize.args(["resize", &device, "--memory", "96M", "--block", "512M"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = start(&mut resize).expect("started");
        std::thread::sleep(Duration::from_micros(round * 2_500));
        let _ended = child.kill();
        child.wait().expect("waited for");
        let found = sizes(&device);
        assert!(
            [16, 96].contains(&(found.0 / MIB)) && [64, 512].contains(&(found.1 / MIB)) && (found.0 == 16 * MIB) == (found.1 == 64 * MIB),
            "{found:?}"
        );
        *seen.entry(found).or_insert(0) += 1;
        place.check();
        if round % 4 == 0 {
            succeeds(&["resize", &device, "--memory", "96M", "--block", "512M"]);
            assert_eq!(sizes(&device), (96 * MIB, 512 * MIB));
            let mount = place.mount("relaxed");
            look(&mount);
            mount.unmount();
            place.check();
        }
        fs::remove_file(&device).expect("removed");
    }
    eprintln!("sizes after a kill: {seen:?}");
}

#[test]
fn labels_are_shown_and_set_on_devices_and_mounts() {
    let place = image("16M", "64M", &["--label", "first"]);
    let device = place.image();
    assert_eq!(succeeds(&["label", &device]), "first\n");
    succeeds(&["label", &device, "second"]);
    assert_eq!((succeeds(&["label", &device]).as_str(), &info(&device)["label"]), ("second\n", &"second".into()));
    place.check();
    let longest = "x".repeat(64);
    succeeds(&["label", &device, &longest]);
    fails(1, "at most 64 B", &["label", &device, &"x".repeat(65)]);
    assert_eq!(succeeds(&["label", &device]), format!("{longest}\n"));

    let mount = place.mount("relaxed");
    let mountpoint = place.mountpoint();
    fs::write(mount.path("file"), "x").expect("written");
    succeeds(&["label", &mountpoint, "third"]);
    assert_eq!((succeeds(&["label", &mountpoint]).as_str(), &info(&mountpoint)["label"]), ("third\n", &"third".into()));
    fails(1, "at most 64 B", &["label", &mountpoint, &"ü".repeat(33)]);
    mount.kill();
    assert_eq!(succeeds(&["label", &device]), "third\n", "durable when the command returns");
    succeeds(&["label", &device, ""]);
    assert_eq!(succeeds(&["label", &device]), "\n");
    let mount = place.mount("relaxed");
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"x", "what was in the journal is there");
    mount.unmount();
    place.check();
    let mount = place.mount("ro");
    fails(1, "read-only", &["label", &mountpoint, "other"]);
    mount.unmount();
    fails(1, "no TandemFS is mounted", &["label", &mountpoint, "other"]);
}

fn as_nobody(words: &[&str], directory: &Path) -> Output {
    run(Command::new(words[0]).args(&words[1..]).current_dir(directory).uid(NOBODY).gid(NOBODY))
}

fn available(mount: &Mount) -> (u64, u64) {
    let found = rustix::fs::statvfs(mount.root()).expect("statvfs");
    (found.f_bfree * found.f_frsize, found.f_bavail * found.f_frsize)
}

/// Users stop at the reserve, with ENOSPC; what needs no more space works; root goes on.
#[test]
fn a_reserve_is_left_to_root() {
    assert!(rustix::process::geteuid().is_root(), "this test mounts for others: it needs root");
    for mode in MODES {
        let place = image("32M", "64M", &[]);
        fs::set_permissions(place.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changed");
        let mount = place.mount(&format!("{mode},allow_other,reserved=25%"));
        fs::create_dir(mount.path("user")).expect("made");
        std::os::unix::fs::chown(mount.path("user"), Some(NOBODY), Some(NOBODY)).expect("given");
        let (free, left) = available(&mount);
        assert!(left + 20 * MIB < free, "{mode}: {left} of {free}");
        let user = mount.path("user");
        fs::write(mount.path("before"), pattern(1, 100_000)).expect("written");
        fs::write(mount.path("of-root"), "").expect("made");
        std::os::unix::fs::chown(mount.path("before"), Some(NOBODY), Some(NOBODY)).expect("given");

        let filled = as_nobody(&["dd", "if=/dev/zero", "of=file", "bs=64K", "count=2000", "oflag=direct"], &user);
        let said = String::from_utf8_lossy(&filled.stderr).into_owned();
        assert!(!filled.status.success() && said.contains("No space left"), "{mode}: {said}");
        let left = info(&place.mountpoint())["block_zone"]["available_bytes"].as_u64().expect("space");
        assert!((15 * MIB..17 * MIB).contains(&left), "{mode}: a quarter of the zone is left, not {left}");
        // In the cache's way too, since files are opened past it now.
        let more = as_nobody(&["dd", "if=/dev/zero", "of=other", "bs=64K", "count=10"], &user);
        assert!(!more.status.success() && String::from_utf8_lossy(&more.stderr).contains("No space left"), "{mode}");
        for (words, what) in [
            (&["dd", "if=/dev/urandom", "of=file", "bs=64K", "count=4", "conv=notrunc"][..], "overwriting"),
            (&["dd", "if=/dev/urandom", "of=../before", "bs=4096", "count=5", "conv=notrunc"], "overwriting another"),
        ] {
            let done = as_nobody(words, &user);
            assert!(done.status.success(), "{mode}: {what}: {}", String::from_utf8_lossy(&done.stderr));
        }
        assert!(!as_nobody(&["mkdir", "dir"], &user).status.success(), "{mode}: a name takes space");
        assert!(!as_nobody(&["fallocate", "-l", "1M", "file2"], &user).status.success(), "{mode}");

        // Who is root of the file system by an id-mapped mount is no root of the machine.
        if support::maps_ids() {
            let mapped = IdMapped::of(mount.root());
            let as_mapped = |words: &[&str]| {
                let mut command = Command::new(words[0]);
                run(command.args(&words[1..]).current_dir(mapped.path(".")).uid(IdMapped::FIRST).gid(IdMapped::FIRST))
            };
            for words in [&["mkdir", "dir"][..], &["dd", "if=/dev/zero", "of=of-root", "bs=64K", "count=1", "oflag=direct"]] {
                let refused = as_mapped(words);
                let said = String::from_utf8_lossy(&refused.stderr).into_owned();
                assert!(!refused.status.success() && said.contains("No space left"), "{mode}: {words:?}: {said}");
            }
        }
        // Root goes on.
        fs::write(mount.path("of-root"), pattern(3, 8 * MIB as usize)).expect("root writes");
        File::open(mount.path("of-root")).and_then(|file| file.sync_all()).expect("synced");
        assert!(fs::read(mount.path("of-root")).expect("read") == pattern(3, 8 * MIB as usize), "{mode}");
        // Who deletes has room again.
        assert!(as_nobody(&["rm", "-f", "file", "other"], &user).status.success(), "{mode}");
        let again = as_nobody(&["dd", "if=/dev/zero", "of=file", "bs=64K", "count=20"], &user);
        assert!(again.status.success(), "{mode}: {}", String::from_utf8_lossy(&again.stderr));
        mount.unmount();
        place.check();
        // Without the option there is none.
        let mount = place.mount(&format!("{mode},allow_other"));
        let (_, left) = available(&mount);
        let of_zone = info(&place.mountpoint())["block_zone"]["available_bytes"].as_u64().expect("space");
        assert!(left <= of_zone && of_zone - left < MIB, "{mode}: {left} of {of_zone}");
        mount.unmount();
    }
}

/// A line of fstab, by mount(8) and its helper. Seen by the test alone: the helper's name lies over /sbin in a namespace of its own.
#[test]
fn a_line_of_fstab_mounts() {
    support::require_fuse();
    let place = image("16M", "64M", &[]);
    let helpers = place.path("helpers");
    fs::create_dir(&helpers).expect("made");
    for name in ["mount.tandemfs", "fsck.tandemfs"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tandemfs"), format!("{helpers}/{name}")).expect("linked");
    }
    let fstab = place.path("fstab");
    let line = format!(
        "{} {} tandemfs strict,nodev,nofail,x-systemd.device-timeout=5,log={} 0 2\n",
        place.image(),
        place.mountpoint(),
        place.path("log")
    );
    fs::write(&fstab, line).expect("written");
    let script = r#"
        set -eu
        # Mounts of tests beside this one would live as long as this namespace.
        for other in $(findmnt -n -l -o TARGET -t fuse.tandemfs); do umount -l "$other" 2>/dev/null || true; done
        sbin=$(readlink -f /sbin)
        mount -t overlay overlay -o "lowerdir=$1:$sbin" "$sbin"
        mount -T "$2" "$3"
        trap 'umount -l "$3" 2>/dev/null || true' EXIT
        findmnt -n -o FSTYPE,OPTIONS "$3" | grep fuse.tandemfs | grep -q nodev
        echo hello > "$3/file"
        mount -T "$2" -o remount,ro "$3"
        ! touch "$3/file" 2>/dev/null
        mount -T "$2" -o remount,rw "$3"
        test "$(cat "$3/file")" = hello
        "$4" umount "$3"
        fsck -T "$5" -t tandemfs -a 2>&1 || fsck.tandemfs -a "$5"
    "#;
    let arguments = [&helpers, &fstab, &place.mountpoint(), env!("CARGO_BIN_EXE_tandemfs"), &place.image()];
    let output = run(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).args(arguments));
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    place.check();
    let mount = place.mount("relaxed");
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"hello\n");
    mount.unmount();
}

/// The units that are shipped are ones that systemd understands, with the program where they say.
#[test]
fn the_units_of_systemd_are_accepted() {
    if run(Command::new("sh").args(["-c", "command -v systemd-analyze"])).stdout.is_empty() {
        eprintln!("systemd-analyze is not there: the units are not looked at");
        return;
    }
    let place = Place::empty();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    for name in ["tandemfs@.service", "srv-mail.mount", "tandemfs-scrub@.service", "tandemfs-scrub@.timer"] {
        let unit = fs::read_to_string(shipped.join(name)).expect("a unit");
        let unit = unit.replace("/usr/local/bin/tandemfs", env!("CARGO_BIN_EXE_tandemfs"));
        let path = place.path(&name.replace('@', "@test"));
        fs::write(&path, unit).expect("written");
        let output = run(Command::new("systemd-analyze").args(["verify", "--recursive-errors=no", "--man=no", &path]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains(name.split('@').next().expect("a name")), "{name}: {said}");
    }
    // What `systemd-analyze` cannot tell: that the commands of the service do what it needs of them.
    let service = fs::read_to_string(shipped.join("tandemfs@.service")).expect("a unit");
    let place = image("16M", "64M", &[]);
    let options = format!("strict,log={}", place.path("log"));
    let command = |key: &str| {
        let line = service.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).expect("a command");
        let words = line.trim_start_matches('-').split(' ').map(|word| match word {
            "${DEVICE}" => place.image(),
            "${MOUNTPOINT}" => place.mountpoint(),
            "${OPTIONS}" => options.clone(),
            "/usr/local/bin/tandemfs" => env!("CARGO_BIN_EXE_tandemfs").to_owned(),
            word => word.to_owned(),
        });
        let words: Vec<String> = words.collect();
        (run(Command::new(&words[0]).args(&words[1..])), line.starts_with('-'))
    };
    let runs = |key: &str| {
        let (output, may_fail) = command(key);
        assert!(may_fail || output.status.success(), "{key}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for round in ["stopped", "killed"] {
        runs("ExecStartPre");
        runs("ExecStart");
        fs::write(place.path("mnt/file"), round).expect("written");
        let process_id = info(&place.mountpoint())["process_id"].as_i64().expect("a process");
        if round == "killed" {
            let process_id = rustix::process::Pid::from_raw(process_id as i32).expect("a process");
            let daemon = rustix::process::pidfd_open(process_id, rustix::process::PidfdFlags::empty()).expect("there");
            rustix::process::kill_process(process_id, Signal::KILL).expect("killed");
            eventually("ENOTCONN", || fs::read(place.path("mnt/file")).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN)));
            // As systemd does, before it goes on: the image is in use until the process has ended.
            assert!(ends_within(&daemon, support::WITHIN), "the daemon ends");
        } else {
            runs("ExecStop");
        }
        runs("ExecStopPost");
        assert!(fs::read_dir(place.mountpoint()).expect("listed").next().is_none(), "{round}: nothing is mounted");
    }
    runs("ExecStart");
    assert_eq!(fs::read(place.path("mnt/file")).expect("read"), b"killed");
    runs("ExecStop");
    place.check();
}

#[test]
fn umount_lazily_serves_open_files_to_their_end() {
    for words in [&["umount", "-l"][..], &["fusermount3", "-u", "-z"]] {
        let place = Place::formatted();
        let mount = place.mount("relaxed");
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(mount.path("open")).expect("created");
        file.write_all_at(&pattern(1, 100_000), 0).expect("written");
        let output = run(Command::new(words[0]).args(&words[1..]).arg(place.mountpoint()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read_dir(place.mountpoint()).expect("listed").next().is_none(), "out of the tree at once");
        assert!(!mount.daemon_ends_within(Duration::from_millis(200)), "it serves what is open");
        fails(8, "in use", &["check", &place.image()]);
        file.write_all_at(&pattern(2, 50_000), 100_000).expect("written after it");
        let mut found = vec![0; 100_000];
        file.read_exact_at(&mut found, 0).expect("read after it");
        assert!(found == pattern(1, 100_000));
        file.sync_all().expect("synced after it");
        drop(file);
        assert!(mount.daemon_ends_within(support::WITHIN), "it ends with the last file");
        place.check();
        let mount = place.mount("strict");
        assert!(fs::read(mount.path("open")).expect("read") == [pattern(1, 100_000), pattern(2, 50_000)].concat());
        mount.unmount();
    }
}

#[test]
fn fusermount_unmounts_and_everything_is_there() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    fs::write(mount.path("file"), pattern(5, 300_000)).expect("written");
    let open = File::open(mount.path("file")).expect("opened");
    let busy = run(Command::new("fusermount3").args(["-u", &place.mountpoint()]));
    assert!(!busy.status.success() && String::from_utf8_lossy(&busy.stderr).contains("busy"), "in use");
    drop(open);
    unmounts(Command::new("fusermount3").args(["-u", &place.mountpoint()]));
    assert!(mount.daemon_ends_within(support::WITHIN));
    place.check();
    let mount = place.mount("relaxed");
    assert!(fs::read(mount.path("file")).expect("read") == pattern(5, 300_000));
    mount.unmount();
}

/// ENOTCONN to whoever stands in it, in every mode and by whichever way requests come, until `umount`; then a mount recovers what was
/// acknowledged.
#[test]
fn a_killed_daemon_leaves_enotconn_and_the_next_mount_recovers() {
    for (mode, ring) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let place = Place::formatted();
        let set = Parameter::over_io_uring(ring);
        let mount = place.mount(mode);
        drop(set);
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(mount.path("file")).expect("created");
        file.write_all_at(&pattern(1, 70_000), 0).and_then(|()| file.sync_all()).expect("synced");
        mount.signal(Signal::KILL);
        assert!(mount.daemon_ends_within(support::WITHIN));
        let not_connected = |error: std::io::Error| error.raw_os_error() == Some(libc::ENOTCONN);
        // A queue of a CPU outlives the daemon for a moment, and what comes to it meanwhile is called off.
        eventually("the connection is gone", || {
            let error = fs::metadata(place.mountpoint()).expect_err("nobody answers").raw_os_error();
            assert!(error == Some(libc::ENOTCONN) || ring && matches!(error, Some(libc::ECANCELED | libc::ECONNABORTED)), "{error:?}");
            error == Some(libc::ENOTCONN)
        });
        assert!(fs::metadata(place.mountpoint()).is_err_and(not_connected), "{mode}: stat");
        assert!(fs::read_dir(place.mountpoint()).is_err_and(not_connected), "{mode}: readdir");
        assert!(fs::write(mount.path("new"), "x").is_err_and(not_connected), "{mode}: create");
        // The kernel may answer with "aborted" to who had it open.
        assert!(file.write_all_at(b"x", 0).and_then(|()| file.sync_all()).is_err() || mode != "relaxed", "{mode}: write");
        drop(file);
        // A child that another test is just starting may hold the file for a moment more.
        eventually("the dead mount is taken away", || run(Command::new("umount").arg(place.mountpoint())).status.success());
        drop(mount);
        let mount = place.mount(mode);
        assert_eq!(info(&place.mountpoint())["recovery"]["clean"], false, "{mode}");
        assert!(fs::read(mount.path("file")).expect("read")[1..] == pattern(1, 70_000)[1..], "{mode}");
        mount.unmount();
        place.check();
    }
}

/// The kernel drops cached pages that it cannot send, without an error of their own: the request for the fsync has to fail. It is why relaxed
/// mode does not answer ENOSYS to it, though nothing is left to write.
#[test]
fn fsync_fails_when_the_daemon_died_with_bytes_in_the_cache() {
    for ring in [false, true] {
        let place = Place::formatted();
        let set = Parameter::over_io_uring(ring);
        let mount = place.mount("relaxed");
        drop(set);
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(mount.path("file")).expect("created");
        file.write_all_at(&pattern(1, 70_000), 0).and_then(|()| file.sync_all()).expect("synced");
        file.write_all_at(&pattern(2, 70_000), 0).expect("into the cache");
        mount.signal(Signal::KILL);
        assert!(mount.daemon_ends_within(support::WITHIN));
        eventually("the connection is gone", || {
            fs::metadata(place.mountpoint()).expect_err("nobody answers").raw_os_error() == Some(libc::ENOTCONN)
        });
        assert!(file.sync_all().is_err(), "the first");
        assert!(file.sync_all().is_err(), "and every other, with nothing left in the cache");
        drop(file);
        eventually("the dead mount is taken away", || run(Command::new("umount").arg(place.mountpoint())).status.success());
        drop(mount);
        let mount = place.mount("relaxed");
        // What was in the cache may have been written back before.
        let (read, old, new) = (fs::read(mount.path("file")).expect("read"), pattern(1, 70_000), pattern(2, 70_000));
        assert_eq!(read.len(), old.len());
        assert!((0..read.len()).all(|at| read[at] == old[at] || read[at] == new[at]), "what was acknowledged");
        mount.unmount();
    }
}

/// Bytes of which no piece comes twice.
fn noise(mut state: u64, length: usize) -> Vec<u8> {
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

/// Changes one byte of the image, behind bytes of which the last is meant.
fn damage(place: &Place, bytes: &[u8], at: usize) {
    let image = fs::read(place.image()).expect("read");
    let found = image.windows(bytes.len()).rposition(|window| window == bytes).expect("the bytes");
    let file = OpenOptions::new().write(true).open(place.image()).expect("opened");
    file.write_all_at(&[image[found + at] ^ 1], (found + at) as u64).expect("written");
}

/// A line of the daemon's log about an inode names it and its path.
#[test]
fn the_log_names_inode_and_path() {
    use std::os::unix::fs::MetadataExt;
    let place = image("16M", "64M", &[]);
    let mount = place.mount("strict");
    fs::create_dir_all(mount.path("spool/in box")).expect("made");
    let (large, small) = (noise(11, 200_000), noise(12, 4000));
    fs::write(mount.path("spool/in box/large"), &large).expect("written");
    fs::write(mount.path("spool/in box/small"), &small).expect("written");
    fs::write(mount.path("spool/first"), &small[..100]).expect("written");
    // Its name of birth goes: what the inode says of its directory is no more than a hint.
    fs::hard_link(mount.path("spool/in box/large"), mount.path("moved")).expect("linked");
    fs::remove_file(mount.path("spool/in box/large")).expect("removed");
    fs::create_dir(mount.path("holds")).expect("made");
    fs::write(mount.path("holds/a-name-that-is-there-once"), "x").expect("written");
    let ino = |name: &str| fs::metadata(mount.path(name)).expect("there").ino();
    let (of_large, of_small, of_directory) = (ino("moved"), ino("spool/in box/small"), ino("holds"));
    mount.unmount();
    damage(&place, &large[70_000..70_200], 100);
    damage(&place, &small[200..], 50);
    damage(&place, b"a-name-that-is-there-once", 0);

    let mount = place.mount("strict");
    assert_eq!(fs::read(mount.path("moved")).expect_err("damaged").raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(mount.path("spool/in box/small")).expect_err("damaged").raw_os_error(), Some(libc::EIO));
    assert_eq!(
        fs::read_dir(mount.path("holds")).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()).expect_err("damaged").raw_os_error(),
        Some(libc::EUCLEAN)
    );
    assert_eq!(fs::read(mount.path("spool/first")).expect("whole"), &small[..100]);
    mount.unmount();
    let log = fs::read_to_string(place.path("log")).expect("a log");
    for (inode, path, what) in [
        (of_large, "/moved", "checksum mismatch"),
        (of_small, "/spool/in box/small", "checksum mismatch"),
        (of_directory, "/holds", "run tandemfs check"),
    ] {
        let names =
            |line: &str| line.contains(&format!("inode={inode} ")) && line.contains(&format!("path=\"{path}\"")) && line.contains(what);
        assert!(log.lines().any(|line| line.contains("ERROR") && names(line)), "inode {inode}, {path}:\n{log}");
    }
    // Behind the foreground as well: a log that cannot be written back.
    let mount = place.mount("strict,write_back_limit=90%");
    for log in 0..600 {
        fs::write(mount.path(&format!("log-{log}")), pattern(log, 4000)).expect("written");
    }
    let names = |line: &str| line.contains(&format!("inode={of_small} ")) && line.contains("path=\"/spool/in box/small\"");
    let log = || fs::read_to_string(place.path("log")).expect("a log");
    eventually("write-back meets the damaged log", || log().lines().any(|line| line.contains("write-back of a block") && names(line)));
    mount.unmount();
    let log = log();
    // No line about damage is without a path.
    for line in log.lines().filter(|line| line.contains("ERROR") && line.contains("inode=")) {
        assert!(line.contains("path="), "{line}");
    }
}
