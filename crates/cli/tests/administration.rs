//! Remounts, forced unmounts and memory limits: each does what it says, all of it, or says why not; `info` tells how it is afterwards.

mod support;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{Place, failed, fails, program_named, run, start, succeeds, tandemfs, umount};

fn info(place: &str) -> Value {
    serde_json::from_str(&succeeds(&["info", place, "--json"])).expect("JSON")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_remount_changes_what_it_names_and_info_tells_it() {
    if !is_root() {
        return println!("not tried: only root remounts");
    }
    let place = Place::formatted();
    let mount = place.mount("strict,nosuid,threads=2,numa=off,home_limit=25%");
    let at = place.mountpoint();
    let remount = |options: &str| tandemfs(&["mount", &place.image(), &at, "-o", &format!("remount,{options}")]);
    let done = |options: &str| {
        let output = remount(options);
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        let info = info(&at);
        (info["read_only"].as_bool().expect("known"), info["flags"].as_str().expect("known").to_owned())
    };
    assert_eq!(done("ro"), (true, "ro,nosuid,noatime".into()));
    assert_eq!(fs::write(mount.path("x"), "x").expect_err("read-only").raw_os_error(), Some(30));
    assert_eq!(done("nodev,noexec"), (true, "ro,nosuid,nodev,noexec,noatime".into()), "what is not named stays");
    assert_eq!(done("rw,dev,exec,suid,sync"), (false, "rw,noatime,sync".into()));
    fs::write(mount.path("x"), "x").expect("written");
    // What the mount has is accepted, in any spelling.
    assert!(!done("strict,threads=2,home_limit=25%,large_extents=0,async,nosuid").0);
    for (option, is) in [
        ("threads=3", "threads=2"),
        ("numa=on", "numa=off"),
        ("home_limit=64M", "home_limit=25%"),
        ("reserved=5%", "reserved=0%"),
        ("timing=on", "timing=off"),
        ("noxattr", "xattr=on"),
        ("dirsync", "dirsync=off"),
        ("relaxed", "strict"),
        ("log=/elsewhere", "log="),
        ("allow_other", "allow_other=off"),
        ("large_extents=4M", "large_extents=0"),
        ("direct_spin=7", "direct_spin=50"),
    ] {
        let said = failed(&remount(&format!("ro,{option}")), 1, option, "a remount");
        assert!(said.contains(is) && said.contains("unmount, and mount with the new options"), "{said}");
        assert!(!info(&at)["read_only"].as_bool().expect("known"), "{option}: nothing was changed");
    }
    failed(&remount("colour=red"), 2, "'colour=red'", "a remount");
    let of_mount = &info(&at)["options"];
    assert_eq!((&of_mount["mode"], &of_mount["threads"], &of_mount["memory"]), (&"strict".into(), &"2".into(), &"256M".into()));
    mount.unmount();
    place.check();
}

/// A program that uses a mount until its standard input ends, and says when it does.
struct User(Child);

impl User {
    fn start(command: &mut Command) -> Self {
        let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null())).expect("started");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it is there");
        Self(child)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// With open files, a current directory or a mapping, by themselves and together: the mount is gone, the daemon has ended, and what was
/// synced is there.
#[test]
fn a_forced_unmount_of_a_busy_mount_ends_all_of_it() {
    if !is_root() {
        return println!("not tried: only root disconnects a daemon");
    }
    let map = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nf.close()\nprint('x',flush=True)\nsys.stdin.read()";
    for uses in [&["file"][..], &["directory"], &["mapping"], &["file", "directory", "mapping"]] {
        let place = Place::formatted();
        let mount = place.mount("relaxed");
        let path = mount.path("file");
        fs::write(&path, "synced").and_then(|()| File::open(&path)?.sync_all()).expect("written");
        let users: Vec<User> = uses
            .iter()
            .map(|used| {
                let mut command = Command::new(if *used == "mapping" { "python3" } else { "sh" });
                match *used {
                    "file" => command.args(["-c", "exec 3<\"$0\"; echo x; read end"]).arg(&path),
                    "directory" => command.args(["-c", "echo x; read end"]).current_dir(mount.root()),
                    _ => command.args(["-c", map]).arg(&path),
                };
                User::start(&mut command)
            })
            .collect();
        fails(1, "in use by", &["umount", &place.mountpoint()]);
        assert_eq!(fs::read(&path).expect("left alone"), b"synced", "{uses:?}: a plain unmount changes nothing");
        succeeds(&["umount", "--force", &place.mountpoint()]);
        assert!(mount.daemon_ends_within(Duration::ZERO), "{uses:?}: the daemon has ended");
        assert!(fs::read_dir(place.mountpoint()).expect("listed").next().is_none(), "{uses:?}: the mount is gone");
        // The device is free although the users are still there.
        place.check();
        drop(mount);
        let mount = place.mount("relaxed");
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"synced");
        mount.unmount();
        drop(users);
    }
}

#[test]
fn a_forced_unmount_makes_open_files_fail() {
    if !is_root() {
        return println!("not tried: only root disconnects a daemon");
    }
    let place = Place::formatted();
    let mount = place.mount("strict");
    let mut file = File::create_new(mount.path("file")).expect("created");
    file.write_all(b"acknowledged").expect("written");
    succeeds(&["umount", "--force", &place.mountpoint()]);
    assert_eq!(file.write_all(b"x").expect_err("no file system").raw_os_error(), Some(107), "ENOTCONN");
    assert!(file.seek(SeekFrom::End(0)).is_err() || file.read(&mut [0]).is_err());
    drop(mount);
    let mount = place.mount("strict");
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"acknowledged");
    mount.unmount();
}

#[test]
fn a_daemon_that_hangs_or_died_is_called_so() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    mount.signal(Signal::KILL);
    assert!(mount.daemon_ends_within(support::WITHIN));
    for words in [&["info", &place.mountpoint()][..], &["stats", &place.mountpoint()], &["label", &place.mountpoint()]] {
        let said = fails(1, "its daemon died; unmount it and mount it again", words);
        assert!(!said.contains("os error"), "{said}");
    }
    fails(8, "its daemon died", &["scrub", &place.mountpoint()]);
    umount(&place.mountpoint());
    drop(mount);
    place.mount("relaxed").unmount();
}

#[test]
fn memory_limits_without_sense_are_refused_or_lowered_with_a_sentence() {
    let place = Place::formatted();
    let (image, at) = (place.image(), place.mountpoint());
    for (option, word) in [("memory=1K", "at least 8 MiB"), ("memory=0", "at least 8 MiB"), ("memory=7M", "at least 8 MiB")] {
        fails(2, word, &["mount", &image, &at, "-o", option]);
    }
    let log = place.path("log");
    let output = tandemfs(&["mount", &image, &at, "-o", &format!("memory=1000G,read_ahead=3G,log={log}")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = info(&at);
    umount(&at);
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("tandemfs: warning: memory=1000 GiB is more than the memory of this machine; the limit is "), "{said}");
    let total = fs::read_to_string("/proc/meminfo").expect("procfs");
    let kib: u64 = total.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    let word = if kib.is_multiple_of(1 << 20) {
        format!("{}G", kib >> 20)
    } else if kib.is_multiple_of(1 << 10) {
        format!("{}M", kib >> 10)
    } else {
        format!("{kib}K")
    };
    assert_eq!(found["options"]["memory"], word, "as the warning says");
    assert!(fs::read_to_string(log).expect("a log").contains("more than the memory of this machine"));
    // The smallest limit works.
    let mount = place.mount("memory=8M");
    for number in 0..2000 {
        fs::write(mount.path(&format!("file-{number}")), "x").expect("written");
    }
    assert_eq!(fs::read_dir(mount.root()).expect("listed").count(), 2000);
    mount.unmount();
    place.check();
}

#[test]
fn other_sizes_without_sense_are_refused() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    fails(2, "at least 64 KiB", &["scrub", &place.mountpoint(), "--limit", "1"]);
    mount.unmount();
    let drive = place.path("other.image");
    let said = fails(1, "1 MiB is too small", &["device", "create", &drive, "--memory", "1M", "--block", "1G"]);
    assert!(said.contains("16 MiB to 64 TiB"), "{said}");
    fails(1, "too large", &["device", "create", &drive, "--memory", "64M", "--block", "100T"]);
    assert!(!fs::exists(&drive).expect("looked"));
}

/// What fsck(8) and administrators call e2fsck with, and its exit statuses.
#[test]
fn fsck_takes_the_options_of_e2fsck() {
    let place = Place::formatted();
    let fsck = |words: &[&str]| run(Command::new(program_named(&place, "fsck.tandemfs")).args(words).arg(place.image()));
    for words in [&[][..], &["-a"], &["-p"], &["-y"], &["-n"], &["-f"], &["-v"], &["-C0"], &["-C", "0"], &["-f", "-p", "-C", "3"]] {
        let output = fsck(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let version = run(Command::new(program_named(&place, "fsck.tandemfs")).arg("-V"));
    assert!(version.status.success() && String::from_utf8_lossy(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
    failed(&fsck(&["-q"]), 16, "'-q'", "fsck");
    failed(&fsck(&["-n", "-y"]), 16, "-n", "fsck");
    failed(&fsck(&["/another"]), 16, "one device", "fsck");
    let mount = place.mount("relaxed");
    failed(&fsck(&["-p"]), 8, "in use", "fsck of what is mounted");
    mount.unmount();
}

/// fsck(8) reads the lines of docs/ADMINISTRATION.md, here from a private table.
#[test]
fn lines_of_fstab_pass_fsck() {
    let place = Place::formatted();
    program_named(&place, "fsck.tandemfs");
    let (memory, block) = (place.path("memory"), place.path("block"));
    for (path, bytes) in [(&memory, 64 << 20), (&block, 256 << 20)] {
        File::create(path).and_then(|file| file.set_len(bytes)).expect("made");
    }
    let pair = format!("memory={memory},block={block}");
    succeeds(&["mkfs", &pair]);
    let fsck_all = |lines: &str| {
        fs::write(place.path("fstab"), lines).expect("written");
        let path = format!("{}:{}", place.path(""), std::env::var("PATH").unwrap_or_default());
        let fsck = ["/usr/sbin/fsck", "/sbin/fsck"].into_iter().find(|fsck| fs::exists(fsck).unwrap_or(false)).expect("util-linux");
        let output = run(Command::new(fsck).args(["-A", "-a"]).env("PATH", path).env("FSTAB_FILE", place.path("fstab")));
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let image = place.image();
    let line = |device: &str, options: &str| format!("{device}  /srv/mail  tandemfs  {options}  0  2\n");
    for (device, options) in [(&image, "strict,allow_other"), (&pair, "strict,allow_other")] {
        let (status, said) = fsck_all(&line(device, options));
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("{device}: clean")), "it was checked: {said}");
    }
    let (status, said) = fsck_all(&(line(&image, "strict") + &line(&pair, "strict").replace("/srv/mail", "/srv/db")));
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches(": clean").count(), 2, "{said}");
    // With nofail fsck(8) skips what is no block device; what is absent is an error otherwise.
    for device in [&image, &pair] {
        let (status, said) = fsck_all(&line(device, "strict,nofail"));
        assert!(status == Some(0) && !said.contains("clean"), "{said}");
    }
    let (status, said) = fsck_all(&line("/absent.image", "strict"));
    assert_eq!(status, Some(8), "{said}");
}

#[test]
fn info_of_an_image_tells_what_survives() {
    let place = Place::empty();
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "romefs-a", "--memory", "64M", "--block", "256M"]);
    succeeds(&["mkfs", &image]);
    let says = |found: &Value| {
        assert_eq!(found["persistence_domain"], "process", "{found}");
        assert!(found["emulated_domain"].is_string(), "{found}");
        assert!(found["survives"].as_str().is_some_and(|text| text.contains("not a power failure")), "{found}");
    };
    says(&info(&image));
    assert!(succeeds(&["info", &image]).contains("not a power failure"));
    let mount = place.mount("relaxed");
    says(&info(&place.mountpoint()));
    mount.unmount();
}
