//! `tandemfs run` on mounts that lend the drive's memory (SEMANTICS, *Programs under `tandemfs run`*): an unchanged program loads and stores it, and says
//! what it says by the mount. As root, who is trusted. What a durable overwrite costs is a measurement:
//!
//!     cargo test --profile soak -p tandemfs --test run_lent -- --ignored --nocapture cost

#[path = "direct_door/mapping.rs"]
#[allow(dead_code, reason = "each test file uses a part")]
mod mapping;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::{Mount, Place, run, start, succeeds, under_run};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/lent.c");
/// Nobody is a member of the group.
const STORES: &str = "direct=54321,direct_stores=54321";
const LOADS: &str = "direct=54321";

/// A mount of memory alone, and the program `run/lent.c`.
struct Scene {
    place: Place,
    device: String,
    mount: Mount,
    program: String,
}

impl Scene {
    fn new(options: &str) -> Self {
        Self::of(Place::empty(), 96 << 20, options)
    }

    fn of(place: Place, bytes: u64, options: &str) -> Self {
        let memory = place.path("memory");
        fs::File::create(&memory).and_then(|file| file.set_len(bytes)).expect("a file");
        let device = format!("memory={memory}");
        Self::on(place, device, options)
    }

    /// On a drive whose domain is `adr`.
    fn flushed(options: &str) -> Self {
        let place = Place::empty();
        let image = place.image();
        succeeds(&["device", "create", &image, "--profile", "optane", "--memory", "96M"]);
        Self::on(place, image, options)
    }

    fn on(place: Place, device: String, options: &str) -> Self {
        succeeds(&["mkfs", &device]);
        let mount = place.mount_device(&device, options);
        let program = place.path("lent");
        let compiled = run(Command::new("cc").args(["-O1", "-pthread", "-o", &program, SOURCE]));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Self { place, device, mount, program }
    }

    fn directory(&self, name: &str) -> String {
        let path = self.mount.path(name);
        fs::create_dir_all(&path).expect("made");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// What a part says by the mount.
    fn by_mount(&self, part: &str) -> String {
        let output = run(Command::new(&self.program).args([part, &self.directory(&format!("{part}-mount"))]));
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && said.ends_with("done\n"), "{part}: {said}");
        said
    }

    fn under(&self, options: &[&str]) -> Command {
        under_run(&self.place.mountpoint(), options)
    }

    /// Starts a part, which pauses.
    fn start(&self, part: &str, options: &[&str], bug: &str) -> Child {
        let directory = self.directory(&format!("{part}{}-{bug}", options.concat()));
        let mut command = self.under(options);
        command.env("PAUSES", "1").env("TANDEMFS_RUN_MUTANT", bug).args(["timeout", "-s", "KILL", "40", &self.program, part, &directory]);
        start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())).expect("run")
    }

    /// Waits until a part pauses; the error is what it says instead.
    fn paused(child: &mut Child) -> Result<(), String> {
        let mut said = String::new();
        BufReader::new(child.stderr.as_mut().expect("a pipe")).read_line(&mut said).expect("read");
        if said == "ready\n" {
            return Ok(());
        }
        let mut output = String::new();
        child.stdout.as_mut().expect("a pipe").read_to_string(&mut output).expect("read");
        Err(format!("{said:?}, {output:?}: {:?}", child.wait()))
    }

    /// Lets it go on to its end; what it says.
    fn ended(mut child: Child) -> String {
        child.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
        let output = child.wait_with_output().expect("ended");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        format!("{said}{}", if output.status.success() { String::new() } else { output.status.to_string() })
    }

    /// A count of the only client, by its path in `tandemfs stats`.
    fn count(&self, path: &[&str]) -> u64 {
        let stats = self.mount.stats();
        let client = &stats["direct"]["clients"][0];
        path.iter().fold(client, |found, name| &found[*name]).as_u64().unwrap_or(0)
    }

    fn end(self) {
        self.mount.unmount();
        succeeds(&["check", &self.device]);
    }
}

/// Checksums of the files of a directory.
fn files(directory: &str) -> String {
    let output = run(Command::new("sh").args(["-c", "cksum *"]).current_dir(directory));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a part says by the door and what it leaves, held against the same by the mount, unless it has the bug that it is given.
fn held_against_mount(scene: &Scene, part: &str, options: &[&str], bug: &str, look: impl FnOnce()) -> Result<(), String> {
    let expected = scene.by_mount(part);
    let mut child = scene.start(part, options, bug);
    Scene::paused(&mut child)?;
    look();
    let taken_away = scene.count(&["store_leases", "taken_away"]);
    let said = Scene::ended(child);
    let left = [format!("{part}-mount"), format!("{part}{}-{bug}", options.concat())].map(|name| files(&scene.directory(&name)));
    match () {
        () if said != expected => Err(said),
        () if left[0] != left[1] => Err(format!("{left:?}")),
        () if taken_away > 0 => Err(format!("{taken_away} leases were taken away")),
        () => Ok(()),
    }
}

/// Overwrites, reads, and what else is done with a file, by placeholders and by real descriptors.
#[test]
fn what_a_program_stores_is_what_the_mount_writes() {
    let scene = Scene::new(STORES);
    for options in [&["--stores", "--placeholders"][..], &["--stores", "--real"]] {
        let look = || {
            let of = |path: &[&str]| scene.count(path);
            let (leases, writes) = (of(&["store_leases", "lent"]), of(&["operations", "write"]));
            println!("{options:?}: {leases} leases, {writes} writes by requests");
            // It writes 6800 times, and much ends its leases.
            assert!(leases > 10 && writes < 5500, "{options:?}: {leases} leases, {writes} writes by requests");
        };
        assert_eq!(held_against_mount(&scene, "overwrites", options, "", look), Ok(()), "{options:?}");
    }
    scene.end();
}

/// Appends by every call, by descriptors with and without O_APPEND, and what else is done with a log. Real descriptors grow by the mount alone ([PRL9]).
#[test]
fn what_a_program_appends_is_what_the_mount_appends() {
    let scene = Scene::new(STORES);
    for (options, stores) in [(&["--stores", "--placeholders"][..], true), (&["--stores", "--real"], false), (&["--placeholders"], false)] {
        let look = || {
            let of = |path: &[&str]| scene.count(path);
            let (tails, writes) = (of(&["store_leases", "tails_lent"]), of(&["operations", "write"]));
            println!("{options:?}: {tails} tails, {writes} writes by requests");
            assert!(
                if stores { tails > 14 && writes < 3000 } else { tails == 0 },
                "{options:?}: {tails} tails, {writes} writes by requests"
            );
        };
        assert_eq!(held_against_mount(&scene, "appends", options, "", look), Ok(()), "{options:?}");
    }
    scene.end();
}

/// Who does not ask for it, or is not trusted with it, stores nothing; reads are loads where that is lent.
#[test]
fn who_does_not_ask_stores_nothing() {
    for (mount, options, stores, loads) in
        [(STORES, "--placeholders", false, true), (LOADS, "--stores", false, true), ("direct", "--stores", false, false)]
    {
        let scene = Scene::new(mount);
        let look = || {
            let of = |path: &[&str]| scene.count(path);
            assert_eq!(of(&["store_leases", "lent"]) > 0, stores, "{mount} {options}");
            assert_eq!(of(&["operations", "lend"]) > 0, loads, "{mount} {options}");
        };
        assert_eq!(held_against_mount(&scene, "overwrites", &[options], "", look), Ok(()), "{mount} {options}");
        scene.end();
    }
}

/// [STR2], [APN1] of the client: a program on a drive of the domain `adr` flushes each line that it stores, and fences, by itself: an overwrite at least once, an
/// append before the word and behind it. Its instructions are counted.
#[test]
fn lines_are_flushed_where_the_domain_asks_for_it() {
    const COUNTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/flushes.py");
    for is_flushed in [true, false] {
        let scene = if is_flushed { Scene::flushed(STORES) } else { Scene::new(STORES) };
        let directory = scene.directory("flushes");
        let mut command = scene.under(&["--stores"]);
        command.env("PAUSES", "1").args([&scene.program, "flushes", &directory]);
        let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())).expect("run");
        Scene::paused(&mut child).expect("pauses");
        let held = (scene.count(&["store_leases", "held"]), scene.count(&["store_leases", "tails_held"]));
        assert_eq!(held, (2, 1));
        let mut counter = Command::new("python3");
        let mut counter = start(counter.args([COUNTER, &child.id().to_string()]).stdout(Stdio::piped())).expect("python3");
        let mut lines = BufReader::new(counter.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("attached"));
        assert_eq!(Scene::ended(child), "done\n");
        let counts: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line).expect("JSON")).collect();
        counter.wait().expect("ended");
        println!("flushed {is_flushed}: {counts:?}");
        let of = |part: usize, name: &str| counts[part][name].as_u64().expect("a number");
        assert_eq!(counts.len(), 2);
        match is_flushed {
            true => {
                assert!(of(0, "flush") >= 64 && of(0, "sfence") >= 1, "a page of 64 lines");
                assert!(of(1, "flush") >= 3 && of(1, "sfence") >= 2, "100 B and a word");
            }
            false => assert!((0..2).all(|part| of(part, "flush") + of(part, "sfence") + of(part, "movnti") == 0)),
        }
        scene.end();
    }
}

/// [PRL3], [PRL19]: nobody comes in while a thread is inside of a lease.
#[test]
fn handlers_that_jump_leave_no_lease_behind() {
    let scene = Scene::new(STORES);
    assert_eq!(held_against_mount(&scene, "jumps", &["--stores"], "", || ()), Ok(()));
    let caught = held_against_mount(&scene, "jumps", &["--stores"], "SignalsTaken", || ());
    println!("SignalsTaken: {caught:?}");
    assert!(caught.is_err(), "SignalsTaken escaped");
    scene.end();
}

/// An image that is cut short: the daemon is asked, and says what it says by the mount.
#[test]
fn a_fault_of_lent_memory_is_an_error() {
    fn cut(bug: &str) -> String {
        let scene = Scene::new(LOADS);
        let directory = scene.directory("faults--placeholders-");
        let other = scene.directory(&format!("faults--placeholders-{bug}"));
        for directory in [directory, other] {
            fs::write(format!("{directory}/faults"), vec![7; 1 << 20]).expect("written");
        }
        let mut child = scene.start("faults", &["--placeholders"], bug);
        Scene::paused(&mut child).expect("pauses");
        assert_eq!(scene.count(&["operations", "lend"]), 1);
        let memory = fs::File::options().write(true).open(scene.place.path("memory")).expect("opened");
        memory.set_len(4096).expect("cut");
        let said = Scene::ended(child);
        memory.set_len(96 << 20).expect("of its length");
        scene.mount.kill();
        said
    }
    assert_eq!(cut(""), format!("pread(file, found, 5000, (1 << 20) - 30000) = -1, {}\ndone\n", libc::EIO));
    let caught = cut("FaultsBlocked");
    println!("FaultsBlocked: {caught}");
    assert!(!caught.contains("done"), "FaultsBlocked escaped");
}

/// Numbers of the file `acknowledged`: no page is older than what was acknowledged, none is torn (of processes alone; an image survives them).
fn has_acknowledged(directory: &str, last: u64) {
    let bytes = fs::read(format!("{directory}/acknowledged")).expect("read");
    assert_eq!(bytes.len(), 300 * 4096);
    for (page, bytes) in bytes.chunks(4096).enumerate() {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // The last number of that page, or the one that was on its way.
        let of_page = (0..=last).rev().find(|number| number % 300 == page as u64).unwrap_or(0);
        let next = last + 1;
        let is_next = |word: &u64| *word == next && next % 300 == page as u64;
        assert!(words.iter().all(|word| *word == of_page || is_next(word)), "page {page} of {last}: {} {}", words[0], words[511]);
    }
}

/// Records of the file `log`: all that were acknowledged, in order, whole, and at most the one that was on its way.
fn log_has_acknowledged(directory: &str, last: u64) {
    let bytes = fs::read(format!("{directory}/log")).expect("read");
    let (records, rest) = bytes.as_chunks::<40>();
    assert!(rest.is_empty() && (last..=last + 1).contains(&(records.len() as u64)), "{} B for {last} records", bytes.len());
    for (record, number) in records.iter().zip(1_u64..) {
        assert!(record.as_chunks().0.iter().all(|word| u64::from_le_bytes(*word) == number), "record {number} of {last}: {record:?}");
    }
}

/// Kills a program that acknowledges, or the daemon below it, or that while the program is stopped, at several moments, and looks what is there.
fn killed_again_and_again(part: &str, is_lent: impl Fn(&Scene) -> bool, has_acknowledged: fn(&str, u64)) {
    let mut scene = Scene::new(STORES);
    for round in 0..12_u64 {
        let directory = scene.directory("killed");
        let mut command = scene.under(&["--stores"]);
        let mut child = start(command.args([&scene.program, part, &directory]).stdout(Stdio::piped())).expect("run");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let mut numbers = lines.filter_map(|line| line.parse::<u64>().ok());
        let mut last = numbers.by_ref().take(2000 + 777 * round as usize).last().expect("a number");
        assert!(is_lent(&scene), "{part}: nothing is lent");
        std::thread::sleep(Duration::from_millis(round * 3));
        if round % 2 == 1 {
            let Scene { place, device, mount, program } = scene;
            let unread = std::thread::scope(|scope| {
                let rest = scope.spawn(|| numbers.last());
                if round % 4 == 3 {
                    let process = Pid::from_raw(child.id() as i32).expect("a process");
                    kill_process(process, Signal::STOP).expect("stopped");
                }
                mount.kill();
                std::thread::sleep(Duration::from_millis(20));
                child.kill().expect("killed");
                rest.join().expect("no panic")
            });
            last = unread.unwrap_or(last);
            child.wait().expect("ended");
            let mount = place.mount_device(&device, STORES);
            scene = Scene { place, device, mount, program };
        } else {
            child.kill().expect("killed");
            last = numbers.last().unwrap_or(last);
            child.wait().expect("ended");
        }
        has_acknowledged(&directory, last);
    }
    scene.end();
}

/// What was acknowledged is there when the program, or the daemon, is killed while it stores.
#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    killed_again_and_again("acknowledges", |scene| scene.count(&["store_leases", "lent"]) > 0, has_acknowledged);
}

#[test]
fn what_was_appended_is_there_after_a_kill() {
    killed_again_and_again("appends_acknowledge", |scene| scene.count(&["store_leases", "tails_lent"]) > 0, log_has_acknowledged);
}

/// A mapping of the mount asks for no sizes, and a program that appends by stores tells none: it appends by requests from then on ([BS7] of `crates/fuse`).
/// SIGBUS would end this test.
#[test]
fn regression_a_mapping_of_the_mount_did_not_reach_what_was_appended_by_stores() {
    let scene = Scene::new(STORES);
    let directory = scene.directory("mapped");
    let mut command = scene.under(&["--stores"]);
    let mut child = start(command.args([&scene.program, "appends_acknowledge", &directory]).stdout(Stdio::piped())).expect("run");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut numbers = lines.filter_map(|line| line.parse::<u64>().ok());
    let mut next = |count| numbers.by_ref().take(count).last().expect("a number");
    next(2000);
    assert!(scene.count(&["store_leases", "tails_lent"]) > 0, "nothing was lent");
    let file = fs::File::options().read(true).write(true).open(format!("{directory}/log")).expect("opened");
    let mapping = mapping::Mapped::new(file.as_fd(), 64 << 20);
    mapping.load(0, 1);
    next(20_000); // more than the pipe holds: what comes then was appended behind the load
    for _ in 0..20 {
        let last = next(300);
        let record = mapping.load((last as usize - 1) * 40, 40);
        assert!(record.as_chunks().0.iter().all(|word| u64::from_le_bytes(*word) == last), "record {last}: {record:?}");
    }
    assert_eq!(scene.count(&["store_leases", "tails_held"]), 0);
    child.kill().expect("killed");
    child.wait().expect("ended");
    drop((mapping, file));
    scene.end();
}

#[test]
fn what_was_acknowledged_by_a_mapping_is_there_after_a_kill() {
    killed_again_and_again("maps_acknowledge", |scene| scene.count(&["mappings_for_stores"]) == 1, has_acknowledged);
}

/// [PRL20]
#[test]
fn what_a_program_maps_is_the_file() {
    let scene = Scene::new(STORES);
    let look = || {
        let of = |path: &[&str]| scene.count(path);
        assert_eq!((of(&["mappings_for_stores"]), of(&["mappings"])), (1, 2));
    };
    assert_eq!(held_against_mount(&scene, "maps", &["--stores"], "", look), Ok(()));
    let caught = held_against_mount(&scene, "maps", &["--stores"], "MappingsNotInherited", || ());
    println!("MappingsNotInherited: {caught:?}");
    assert!(caught.is_err(), "MappingsNotInherited escaped");
    // By the mount, as ever.
    let look = || assert_eq!(scene.count(&["mappings"]), 0);
    assert_eq!(held_against_mount(&scene, "maps", &["--placeholders"], "", look), Ok(()));
    assert_eq!(held_against_mount(&scene, "maps", &["--stores", "--real"], "", || ()), Ok(()));
    scene.end();
}

/// [PRL20]
#[test]
fn regression_a_file_that_a_child_has_mapped_could_not_be_mapped() {
    let scene = Scene::new(STORES);
    for options in [&["--stores"][..], &["--stores", "--real"]] {
        assert_eq!(held_against_mount(&scene, "maps_beside_child", options, "", || ()), Ok(()), "{options:?}");
    }
    scene.end();
}

/// A descriptor by which such a mapping became the mount's when a child was made, and which was closed then, ended the lock.
#[test]
fn regression_a_mapping_that_became_the_mounts_ended_a_lock() {
    let scene = Scene::new(STORES);
    assert_eq!(held_against_mount(&scene, "maps_locked", &["--stores"], "", || ()), Ok(()));
    let caught = held_against_mount(&scene, "maps_locked", &["--stores"], "MappedWhenLocked", || ());
    println!("MappedWhenLocked: {caught:?}");
    assert!(caught.is_err(), "MappedWhenLocked escaped");
    scene.end();
}

/// `errno` was that of before the call, and munmap returned a number of the kernel's, having unmapped a part.
#[test]
fn regression_calls_on_mapped_addresses_that_fail_did_not_say_why() {
    let scene = Scene::new(STORES);
    let look = || assert_eq!(scene.count(&["mappings_for_stores"]), 1);
    assert_eq!(held_against_mount(&scene, "maps_refused", &["--stores"], "", look), Ok(()));
    scene.end();
}

/// Nobody waits for ever, and every child has the mappings that are inherited.
#[test]
fn threads_map_beside_forks() {
    let scene = Scene::new(STORES);
    for options in [&["--stores"][..], &["--stores", "--real"]] {
        assert_eq!(held_against_mount(&scene, "maps_threads", options, "", || ()), Ok(()), "{options:?}");
    }
    scene.end();
}

/// Programs of Debian that map their files: the same output and the same files by both ways.
const SCRIPT: &str = r#"
set -eu
sqlite3 db 'pragma journal_mode=delete; create table t(a integer primary key, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000) insert into t select i, hex(i * 7919) || printf("%0200d", i) from n; select count(*), sum(length(b)) from t;'
sqlite3 db 'pragma mmap_size=268435456; select count(*), sum(length(b)) from t; update t set b = a || b where a % 3 = 0; select sum(length(b)) from t; insert into t select a + 10000, b from t; delete from t where a % 5 = 0; select count(*), sum(a), sum(length(b)) from t; pragma integrity_check; vacuum; select count(*) from t; pragma integrity_check;'
sqlite3 db 'pragma mmap_size=268435456; pragma journal_mode=wal; update t set b = b || a; pragma wal_checkpoint(truncate); select sum(length(b)) from t; pragma integrity_check;' | grep -v '^0|'
if command -v mdb_load > /dev/null; then
    (printf 'VERSION=3\nformat=print\ntype=btree\nmapsize=10485760\nHEADER=END\n'; for n in $(seq 1 2000); do printf ' key%05d\n value %d\n' $n $((n * n)); done; echo DATA=END) > dump
    mkdir lmdb; mdb_load -f dump lmdb; mdb_stat -e lmdb | grep -v Number; mdb_dump lmdb | md5sum
fi
python3 -c '
import mmap, os
f = open("m", "w+b"); f.truncate(1 << 20); f.close()
f = open("m", "r+b"); m = mmap.mmap(f.fileno(), 0)
for n in range(0, 1 << 20, 4096): m[n:n + 8] = n.to_bytes(8, "little")
m.flush(); m.resize(3 << 20); m[2 << 20] = 7; m.move(100, 4096, 5000); m.flush(4096, 8192); print(len(m), m.find(b"\x07", 2 << 20))
if os.fork() == 0: m[9] = 3; m.flush(); os._exit(0)
os.wait(); print(m[9]); m.close(); print(os.path.getsize("m"))'
"#;

#[test]
fn programs_that_map_their_files_do_the_same() {
    let scene = Scene::new(STORES);
    let (first, second) = (scene.directory("mount"), scene.directory("door"));
    let mount = run(Command::new("bash").args(["-c", SCRIPT]).current_dir(&first));
    let door = run(scene.under(&["--stores", "--report"]).args(["bash", "-c", SCRIPT]).current_dir(&second));
    let (said, errors) = (String::from_utf8_lossy(&door.stdout), String::from_utf8_lossy(&door.stderr));
    assert!(mount.status.success() && door.status.success(), "{said} {errors} {}", String::from_utf8_lossy(&mount.stderr));
    assert_eq!(said, String::from_utf8_lossy(&mount.stdout));
    let by_door = errors.lines().any(|line| line.starts_with("tandemfs: mmap ") && line.ends_with("door"));
    assert!(by_door, "{errors}");
    let left = |directory: &str| {
        let output = run(Command::new("sh").args(["-c", "sqlite3 db .dump | md5sum; cksum m"]).current_dir(directory));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(left(&second), left(&first));
    scene.end();
}

/// How long durable overwrites and reads of 4 KiB take by the mount, by requests and by lent memory, in turns.
#[test]
#[ignore = "a measurement"]
fn cost() {
    costs("cost");
}

/// The same of appends of 100 B.
#[test]
#[ignore = "a measurement"]
fn appending_cost() {
    costs("cost_of_appends");
}

fn costs(part: &str) {
    let scene = Scene::new(STORES);
    let by_mount = Command::new(&scene.program);
    let mut ways = [("mount", by_mount), ("requests", scene.under(&[])), ("leases", scene.under(&["--stores"]))];
    ways[1..].iter_mut().for_each(|(_, command)| {
        command.arg(&scene.program);
    });
    for _ in 0..3 {
        for (name, command) in &mut ways {
            let directory = scene.directory(&format!("{part}-{name}"));
            let output = run(Command::new(command.get_program())
                .args(command.get_args())
                .args([part, &directory])
                .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))));
            println!("{name}:\n{}", String::from_utf8_lossy(&output.stdout));
        }
    }
    scene.end();
}

/// Page faults of a mapped gigabyte by the mount and by the drive's own pages, on memory of huge pages.
#[test]
#[ignore = "a measurement"]
fn page_faults() {
    let memory = tempfile::tempdir().expect("a directory");
    let path = memory.path().to_str().expect("UTF-8");
    assert!(run(Command::new("mount").args(["-t", "tmpfs", "-o", "huge=always,size=1700M", "tmpfs", path])).status.success());
    let scene = Scene::of(Place::empty_in(memory.path()), 1500 << 20, STORES);
    let directory = scene.directory("faults");
    for _ in 0..3 {
        for (name, mut command) in [("mount", Command::new(&scene.program)), ("mapped", scene.under(&["--stores"]))] {
            if name == "mapped" {
                command.arg(&scene.program);
            }
            let output = run(command.args(["page_faults", &directory]));
            println!("{name}:\n{}", String::from_utf8_lossy(&output.stdout));
        }
    }
    scene.end();
    assert!(run(Command::new("umount").arg("-l").arg(path)).status.success());
}
