//! Settings of a mount in use: `tandemfs set` and `-o remount` change them, `info` tells them, the log says it, and nothing is lost meanwhile.

mod support;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use support::{MODES, Place, failed, fails, pattern, run, succeeds, tandemfs};

const MIB: usize = 1 << 20;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn json_of(words: &[&str]) -> Value {
    let text = succeeds(words);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
}

/// The settings of a mount, as `tandemfs set` shows them; `info` tells the same.
fn settings(at: &str) -> Value {
    let settings = json_of(&["set", at, "--json"])["settings"].clone();
    let options = &json_of(&["info", at, "--json"])["options"];
    for (name, value) in settings.as_object().expect("names and values") {
        assert_eq!(&options[name], value, "{name}");
    }
    settings
}

/// Lines of the daemon's log about changes.
fn logged(place: &Place) -> Vec<String> {
    let log = fs::read_to_string(place.path("log")).expect("a log");
    log.lines().filter_map(|line| line.split_once("settings changed: ")).map(|(_, changes)| changes.to_owned()).collect()
}

#[test]
fn settings_are_changed_together_shown_and_logged() {
    let place = Place::formatted();
    let mount = place.mount("relaxed,threshold=128K,memory=64M,modified_ratio=1/4,discard");
    let at = place.mountpoint();
    let first = json!({
        "threshold": "128K", "write_back": "most-space", "write_back_limit": "10%", "promote": "off", "read_ahead": "1M", "in_place": "512",
        "modified_ratio": "16/64", "discard": "batched", "memory": "64M", "log_level": "info",
    });
    assert_eq!(settings(&at), first);
    assert_eq!(logged(&place), Vec::<String>::new(), "to show is no change");
    let shown = succeeds(&["set", &at, "threshold=64K", "memory=32M,promote=on", "log_level=debug"]);
    for row in
        ["threshold         64K", "memory            32M", "promote           on", "log_level         debug", "discard           batched"]
    {
        assert!(shown.lines().any(|line| line == row), "{row}: {shown}");
    }
    assert_eq!(
        logged(&place),
        ["log_level from info to debug, memory from 64M to 32M, promote from off to on, threshold from 128K to 64K"]
    );
    let said = json_of(&[
        "set",
        &at,
        "write_back=coldest",
        "write_back_limit=20",
        "nodiscard",
        "in_place=0",
        "read_ahead=64K",
        "modified_ratio=0",
        "--json",
    ]);
    let all = json!({
        "threshold": "64K", "write_back": "coldest", "write_back_limit": "20%", "promote": "on", "read_ahead": "64K", "in_place": "0",
        "modified_ratio": "0/64", "discard": "none", "memory": "32M", "log_level": "debug",
    });
    assert_eq!((&said["settings"], &said["mountpoint"], &said["warnings"]), (&all, &at.clone().into(), &json!([])));
    assert_eq!(settings(&at), all);
    assert_eq!(mount.stats()["write_back"]["limit_percent"], 20);
    assert_eq!(mount.stats()["threshold"]["bytes"], 64 << 10);
    // The line of a change is there if one of the two levels has it.
    succeeds(&["set", &at, "log_level=error"]);
    succeeds(&["set", &at, "threshold=auto"]);
    assert!(!mount.stats()["threshold"]["measured"].as_array().expect("a list").is_empty(), "both paths were measured");
    succeeds(&["set", &at, "log_level=info"]);
    let lines = logged(&place);
    assert_eq!(lines[2..], ["log_level from debug to error", "log_level from error to info"]);
    // What is adapted to the machine is said.
    let output = tandemfs(&["set", &at, "memory=1000000G", "--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(said["warnings"][0].as_str().is_some_and(|warning| warning.contains("more than the memory of this machine")), "{said}");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).starts_with("tandemfs: warning: memory="));
    mount.unmount();
    // They do not outlive the mount.
    let mount = place.mount("relaxed,threshold=128K,memory=64M,modified_ratio=1/4,discard");
    assert_eq!(settings(&at), first);
    mount.unmount();
    place.check();
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let at = place.mountpoint();
    let before = settings(&at);
    for (word, status, said) in [
        ("threshold=many", 2, "'many'"),
        ("threshold=100K", 1, "not a multiple of the block size"),
        ("memory=1K", 2, "at least 8 MiB"),
        ("write_back=newest", 2, "use one of 'most-space', 'oldest', 'coldest'"),
        ("write_back_limit=0%", 2, "a share from 1% to 90%"),
        ("promote=maybe", 2, "use one of 'on', 'off', 'always'"),
        ("promote", 2, "write promote=VALUE"),
        ("log_level=loud", 2, "use one of 'error'"),
        ("in_place=8K", 2, "at most 4K"),
        ("threads=3", 2, "'threads=3' cannot change while the mount is in use"),
        ("timing=on", 2, "'timing=on' cannot change while the mount is in use"),
        ("colour=red", 2, "unknown setting 'colour=red'"),
    ] {
        let sentence = fails(status, said, &["set", &at, "memory=16M", "promote=on", "log_level=debug", word]);
        assert_eq!(sentence.trim_end().lines().count(), 1, "{word}: {sentence}");
        assert_eq!(settings(&at), before, "{word}");
    }
    assert_eq!(logged(&place), Vec::<String>::new());
    fails(1, "no TandemFS is mounted there", &["set", &place.path(""), "memory=16M"]);
    mount.unmount();
    place.check();
}

#[test]
fn only_who_mounted_and_root_change_settings() {
    if !is_root() {
        return println!("not tried: other users need root");
    }
    let place = Place::formatted();
    fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).expect("changed");
    let program = support::program_for_everybody(&place);
    let mount = place.mount("strict,allow_other");
    let at = place.mountpoint();
    let before = settings(&at);
    for words in [&["set", &at, "memory=16M"][..], &["set", &at], &["mount", &place.image(), &at, "-o", "remount,memory=16M"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &program]).args(words);
        failed(&run(&mut command), 1, "another user mounted it; its daemon answers that user and root", &format!("{words:?}"));
    }
    assert_eq!(settings(&at), before);
    mount.unmount();
    place.check();
}

/// A daemon outlives an upgrade of the program. One that does not know the request says so as all builds do.
#[test]
fn a_daemon_of_an_older_build_is_said_to_be_one() {
    if !is_root() {
        return println!("not tried: the test's socket lies where root's are");
    }
    let place = Place::formatted();
    let mount = place.mount("strict");
    let at = place.mountpoint();
    let info = json_of(&["info", &at, "--json"]);
    let mounted = tandemfs_fuse::mounts::find(mount.root()).expect("read").expect("mounted");
    let name = |process: u32| format!("{}.{process}.socket", mounted.device_number.replace(':', "-"));
    let real = name(mount.process_id().as_raw_nonzero().get().cast_unsigned());
    let directory = ["/run/tandemfs", "/tmp/tandemfs-0"].into_iter().find(|directory| Path::new(directory).join(&real).exists());
    // The newest socket of the mount is asked.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let path = Path::new(directory.expect("the daemon's socket")).join(name(std::process::id()));
    let listener = UnixListener::bind(&path).expect("bound");
    let older = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accepted");
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("read");
            let answer = match serde_json::from_str::<Value>(&line).expect("JSON")["request"].as_str() {
                Some("info") => info.clone(),
                Some("stats") => return,
                Some(other) => {
                    json!({ "error": format!("not a request: unknown variant `{other}`, expected one of `stats`, `info` at line 1 column 18") })
                }
                None => panic!("{line}"),
            };
            writeln!(stream, "{answer}").expect("answered");
        }
    });
    for words in [&["set", &at][..], &["set", &at, "memory=16M"], &["mount", &place.image(), &at, "-o", "remount,ro,memory=16M"]] {
        fails(1, "its daemon is of an older build, which does not know this command; unmount, and mount again", words);
    }
    let _closed = tandemfs(&["stats", &at]);
    older.join().expect("it answered");
    fs::remove_file(&path).expect("removed");
    fs::write(mount.path("still-writable"), "x").expect("the remount changed nothing");
    mount.unmount();
    place.check();
}

#[test]
fn a_remount_changes_settings_and_flags_or_neither() {
    if !is_root() {
        return println!("not tried: only root remounts");
    }
    let place = Place::formatted();
    let mount = place.mount("strict,nosuid,memory=64M,threads=2");
    let at = place.mountpoint();
    let remount = |options: &str| tandemfs(&["mount", &place.image(), &at, "-o", &format!("remount,{options}")]);
    let done = |options: &str| {
        let output = remount(options);
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        (settings(&at), json_of(&["info", &at, "--json"])["flags"].as_str().expect("known").to_owned())
    };
    let (now, flags) = done("threshold=128K,nodev,memory=65536K");
    assert_eq!((&now["threshold"], &now["memory"], flags.as_str()), (&"128K".into(), &"64M".into(), "rw,nosuid,nodev,noatime"));
    assert_eq!(logged(&place), ["threshold from 64K to 128K"], "what the mount has is no change");
    let (now, flags) = done("promote=on,promote=always,dev,discard,threads=2");
    assert_eq!((&now["promote"], &now["discard"], flags.as_str()), (&"always".into(), &"batched".into(), "rw,nosuid,noatime"));
    // One part that cannot be: nothing changes.
    let before = settings(&at);
    for (options, status, said) in [
        ("memory=32M,threads=3", 1, "cannot change threads=2 to threads=3; unmount, and mount with the new options"),
        ("memory=32M,threshold=100K,nodev", 1, "not a multiple of the block size"),
        ("memory=32M,promote=maybe,nodev", 2, "use one of 'on', 'off', 'always'"),
    ] {
        failed(&remount(options), status, said, options);
        assert_eq!(settings(&at), before, "{options}");
        assert_eq!(json_of(&["info", &at, "--json"])["flags"], "rw,nosuid,noatime", "{options}");
    }
    // The kernel refuses `ro` while a file is open for writing: the settings are as they were.
    let open = File::create(mount.path("open")).expect("open for writing");
    failed(&remount("ro,memory=32M"), 1, "in use", "ro beside a writer");
    assert_eq!(settings(&at), before);
    drop(open);
    mount.unmount();
    place.check();
}

/// Each writer overwrites and syncs a file of its own at random places, and compares it all the time; settings change all the time.
#[test]
fn no_byte_is_lost_while_settings_change_under_load() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(&format!("{mode},memory=32M"));
        let at = place.mountpoint();
        let ended = AtomicBool::new(false);
        let contents: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3_u64)
                .map(|writer| {
                    let path = mount.path(&format!("file{writer}"));
                    scope.spawn(move || write(&path, writer))
                })
                .collect();
            let changer = scope.spawn(|| {
                let mut rounds = 0;
                while !ended.load(SeqCst) || rounds < 4 {
                    change(&place, &at, rounds);
                    rounds += 1;
                }
            });
            let contents: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            ended.store(true, SeqCst);
            changer.join().expect("changed");
            contents.into_iter().map(|content| content.expect("as written")).collect()
        });
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        for (writer, content) in contents.iter().enumerate() {
            assert!(&fs::read(mount.path(&format!("file{writer}"))).expect("read") == content, "{mode}: file {writer}");
        }
        mount.unmount();
    }
}

/// A change by one of both ways.
fn change(place: &Place, at: &str, round: usize) {
    let pick = |from: &[&'static str]| from[round % from.len()];
    let words = [
        format!("threshold={}", pick(&["64K", "auto", "0", "1M", "128K"])),
        format!("memory={}", pick(&["8M", "64M", "16M"])),
        format!("write_back={}", pick(&["most-space", "oldest", "coldest"])),
        format!("write_back_limit={}", pick(&["10%", "80%"])),
        format!("promote={}", pick(&["off", "on", "always"])),
        format!("read_ahead={}", pick(&["0", "256K"])),
        format!("modified_ratio={}", pick(&["0", "1/8", "1/1"])),
        format!("in_place={}", pick(&["0", "512"])),
        format!("discard={}", pick(&["none", "batched"])),
        format!("log_level={}", pick(&["info", "warn"])),
    ];
    if round % 2 == 1 && is_root() {
        succeeds(&["mount", &place.image(), at, "-o", &format!("remount,{}", words.join(","))]);
    } else {
        succeeds(&[&["set", at][..], &words.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    }
    let is = settings(at);
    assert_eq!((&is["promote"], &is["log_level"]), (&pick(&["off", "on", "always"]).into(), &pick(&["info", "warn"]).into()));
}

/// Returns what the file contains at the end.
fn write(path: &Path, writer: u64) -> Vec<u8> {
    let mut content = pattern(writer, 2 * MIB);
    fs::write(path, &content).expect("written");
    let file = File::options().read(true).write(true).open(path).expect("opened");
    for step in 0..150_u64 {
        let length = [1, 64, 500, 4096, 5000, 65_536, 200_000][(step % 7) as usize];
        let at = (step.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20) % (content.len() - length) as u64) as usize;
        let at = if step % 3 == 0 { at / 65_536 * 65_536 } else { at };
        let bytes = pattern(writer * 1000 + step, length);
        file.write_all_at(&bytes, at as u64).expect("written");
        content[at..at + length].copy_from_slice(&bytes);
        if step % 4 == 0 {
            file.sync_all().expect("synced");
        }
        let from = at / 2;
        let mut found = vec![0; 70_000];
        file.read_exact_at(&mut found, from as u64).expect("read");
        assert!(found == content[from..from + 70_000], "writer {writer}, step {step}");
    }
    file.sync_all().expect("synced");
    content
}

/// A reader of metrics that leaves before its answer is an event for whoever looks for it.
#[test]
fn the_log_says_more_while_that_is_asked_for() {
    let place = Place::formatted();
    let socket = place.path("metrics");
    let mount = place.mount(&format!("strict,metrics=unix:{socket}"));
    let at = place.mountpoint();
    let leaves = || UnixStream::connect(&socket).and_then(|mut stream| stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")).expect("asked");
    let events = || fs::read_to_string(place.path("log")).expect("a log").matches("a connection for metrics").count();
    (0..5).for_each(|_| leaves());
    succeeds(&["set", &at, "log_level=debug"]);
    support::eventually("an event", || {
        leaves();
        events() > 0
    });
    succeeds(&["set", &at, "log_level=info"]);
    mount.unmount();
    place.check();
}

/// Anonymous memory of a process, in bytes.
fn memory_of(process: rustix::process::Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a kernel that tells it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The daemon's memory goes back to the machine, not only to the daemon's heap.
#[test]
fn lower_memory_goes_back_to_the_machine() {
    let place = Place::formatted();
    let mount = place.mount("strict,atomic,memory=256M"); // files bypass the kernel's cache
    let (at, bytes) = (place.mountpoint(), pattern(5, 48 * MIB));
    fs::write(mount.path("file"), &bytes).expect("written");
    let is_as_written = || {
        let file = File::open(mount.path("file")).expect("opened");
        let mut found = vec![0; 64 << 10];
        bytes.chunks(found.len()).zip((0..).step_by(64 << 10)).all(|(piece, offset)| {
            file.read_exact_at(&mut found, offset).expect("read");
            found == piece
        })
    };
    assert!(is_as_written());
    let before = memory_of(mount.process_id());
    succeeds(&["set", &at, "memory=8M"]);
    let after = memory_of(mount.process_id());
    assert!(after + (30 << 20) < before, "{before} B before, {after} B after");
    assert!(is_as_written());
    mount.unmount();
    place.check();
}
