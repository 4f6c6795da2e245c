//! Files that trusted programs map for stores by the direct door of real mounts (`-o direct=GROUP,direct_stores=GROUP`; SEMANTICS, *Mappings for stores*). The programs are
//! this test program, which runs itself again. As root: the daemon must see who its clients are.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use support::{Place, eventually, fails, has_no_copies, pattern, run, start, succeeds};
use tandemfs_client::{Error, File, Mapping, Mount, OpenOptions, Options, Why};

const FILE_BYTES: usize = 2 << 20;
const ROLE: &str = "TANDEMFS_MAPPED_ROLE";
const ROOT: &str = "TANDEMFS_MAPPED_ROOT";

/// A drive that is memory alone, formatted.
fn formatted() -> (Place, String) {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    (place, device)
}

fn connected(root: &Path) -> (Mount, File) {
    let client = Mount::connect_with(root, &Options { maps: true, ..Options::default() }).expect("let in");
    let file = OpenOptions::new().read(true).write(true).open(&client, "file").expect("opened");
    (client, file)
}

/// Maps so much of a file for stores, once nobody has it open by the mount: the kernel tells of a close a moment after it.
fn mapped(file: &File, length: u64) -> Mapping {
    has_no_copies();
    let begun = Instant::now();
    loop {
        match file.map_writable(0..length) {
            Err(Error::Crossed(crossed)) if crossed.why == Why::Cached && begun.elapsed() < support::WITHIN => {
                std::thread::sleep(Duration::from_millis(1));
            }
            mapped => return mapped.expect("mapped"),
        }
    }
}

fn stored() -> Vec<u8> {
    pattern(9, FILE_BYTES)
}

/// A program that has mapped `file` and stored to it, durably.
struct Program(Child, Option<BufReader<ChildStdout>>);

impl Program {
    fn start(role: &str, root: &Path) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.args(["--ignored", "--exact", "a_program", "--nocapture", "--test-threads=1"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = start(command.env(ROLE, role).env(ROOT, root)).expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        assert!(output.by_ref().lines().any(|line| line.expect("text").contains("it has stored")), "it ended before");
        Self(child, Some(output))
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited for");
    }

    /// Kills it, but not the child that it has forked: that goes on when its standard input ends, and has ended when its output has.
    fn leaves_its_child(mut self) -> (ChildStdin, BufReader<ChildStdout>) {
        let pipes = (self.0.stdin.take().expect("a pipe"), self.1.take().expect("a pipe"));
        self.kill();
        pipes
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[test]
#[ignore = "a program that the others run"]
fn a_program() {
    let (Ok(role), Some(root)) = (std::env::var(ROLE), std::env::var_os(ROOT)) else { return };
    let (_client, file) = connected(root.as_ref());
    let mapping = mapped(&file, FILE_BYTES as u64);
    mapping.store(0, &stored()).expect("stored");
    mapping.sync(0, FILE_BYTES as u64).expect("durable");
    if role == "forks" {
        // SAFETY: the child makes system calls and stores to the mapping that it has inherited, nothing else.
        if unsafe { libc::fork() } == 0 {
            let mut byte = 0_u8;
            // SAFETY: the byte is the child's own. It waits until its standard input ends.
            unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
            // SAFETY: the mapping is the child's, too.
            unsafe { std::ptr::write_bytes(mapping.as_mut_ptr(), 7, FILE_BYTES) };
            // SAFETY: it ends at once.
            unsafe { libc::_exit(0) };
        }
        drop(mapping);
        println!("it has stored");
        return std::thread::sleep(Duration::from_secs(120));
    }
    println!("it has stored");
    // The same again and again: a program that goes on stores to whatever its pages have become.
    for _ in 0..10_000 {
        std::thread::sleep(Duration::from_millis(10));
        mapping.store(0, &stored()).expect("stored");
    }
}

/// What the mount reads: at once what was stored ([FOP2] of `crates/fuse`).
fn is_read(path: &Path, expected: &[u8]) {
    assert!(fs::read(path).expect("read") == expected, "the mount reads what was stored");
}

fn mappings(mount: &support::Mount) -> Vec<u64> {
    let stats = mount.stats();
    let clients = stats["direct"]["clients"].as_array().expect("clients");
    clients.iter().map(|client| client["mappings_for_stores"].as_u64().expect("a number")).collect()
}

#[test]
fn what_a_killed_program_stored_is_there() {
    let (place, device) = formatted();
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    let path = mount.path("file");
    fs::write(&path, pattern(1, FILE_BYTES)).expect("written");
    let modified = fs::metadata(&path).and_then(|found| found.modified()).expect("there");
    let program = Program::start("stores", mount.root());
    is_read(&path, &stored());
    assert_eq!(mappings(&mount), [1]);
    assert_eq!(mount.stats()["direct"]["clients"][0]["bytes_mapped_for_stores"], FILE_BYTES);
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("durable");
    program.kill();
    eventually("the client has ended", || mappings(&mount).is_empty());
    let ended = || fs::metadata(&path).and_then(|found| found.modified()).expect("there");
    eventually("its end is a change", || ended() > modified);
    assert!(fs::read(&path).expect("read") == stored() && ended() <= SystemTime::now());
    mount.unmount();
    succeeds(&["check", &device]);
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    assert!(fs::read(mount.path("file")).expect("read") == stored());
    mount.unmount();
}

#[test]
fn what_was_stored_survives_the_daemon_and_the_next_one_waits_for_the_program() {
    for is_killed in [true, false] {
        let (place, device) = formatted();
        let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
        fs::write(mount.path("file"), pattern(1, FILE_BYTES)).expect("written");
        let program = Program::start("stores", mount.root());
        if is_killed {
            mount.kill()
        } else {
            mount.unmount()
        }
        fails(1, "program", &["mount", &device, &place.mountpoint(), "-o", "direct=54321,direct_stores=54321"]);
        program.kill();
        let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
        assert!(fs::read(mount.path("file")).expect("read") == stored());
        mount.unmount();
        succeeds(&["check", &device]);
    }
}

/// Fills the mount, whose file `file` was removed, and looks whether what fills it stays as it was written.
fn pages_are_nobodys(mount: &support::Mount, end: impl FnOnce()) {
    fs::remove_file(mount.path("file")).expect("removed");
    let filler = fs::File::options().read(true).write(true).create(true).truncate(false).open(mount.path("filler")).expect("made");
    let mut at = 0;
    while filler.write_at(&[2; 64 << 10], at).is_ok_and(|done| done == 64 << 10) {
        at += 64 << 10;
    }
    end();
    let mut bytes = Vec::new();
    fs::File::open(mount.path("filler")).and_then(|mut file| file.read_to_end(&mut bytes)).expect("read");
    assert!(bytes.len() as u64 >= at && bytes.iter().all(|byte| *byte == 2), "what a program stored is in another file");
}

#[test]
fn a_stopped_program_keeps_its_pages() {
    let (place, device) = formatted();
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    fs::write(mount.path("file"), pattern(1, FILE_BYTES)).expect("written");
    let program = Program::start("stores", mount.root());
    kill_process(program.id(), Signal::STOP).expect("stopped");
    pages_are_nobodys(&mount, || {
        kill_process(program.id(), Signal::CONT).expect("it goes on");
        std::thread::sleep(Duration::from_millis(300));
        program.kill();
    });
    mount.unmount();
    succeeds(&["check", &device]);
}

#[test]
fn a_forked_child_keeps_the_pages() {
    let (place, device) = formatted();
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    fs::write(mount.path("file"), pattern(1, FILE_BYTES)).expect("written");
    let program = Program::start("forks", mount.root());
    assert_eq!(mappings(&mount), [0], "the program has unmapped it");
    let (tells, mut says) = program.leaves_its_child();
    pages_are_nobodys(&mount, || {
        drop(tells);
        says.read_to_end(&mut Vec::new()).expect("the child has stored, and ended");
    });
    mount.unmount();
    succeeds(&["check", &device]);
}

/// [BS12] of `crates/fuse`: on a drive whose lines have to be flushed, an fsync of the mount flushes those of the file's mappings.
#[test]
fn an_fsync_of_the_mount_flushes_what_was_stored() {
    let place = Place::empty();
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "optane", "--memory", "96M"]);
    succeeds(&["mkfs", &image]);
    for (options, is_asked) in [("direct=54321,direct_stores=54321", true), ("direct", false)] {
        let mount = place.mount_device(&image, options);
        fs::write(mount.path("file"), pattern(1, FILE_BYTES)).expect("written");
        let by_mount = || fs::File::options().read(true).write(true).open(mount.path("file")).expect("opened");
        let counted = || {
            let stats = mount.stats();
            let fsyncs = stats["file_system"]["operations"]["fsync"].as_u64().expect("a number");
            (fsyncs, stats["byte_path"]["flushed_lines"].as_u64().expect("a number"))
        };
        by_mount().sync_all().expect("durable");
        let before = counted();
        let client = is_asked.then(|| connected(mount.root()));
        let mapping = client.as_ref().map(|(_, file)| mapped(file, FILE_BYTES as u64));
        let mapped = counted();
        by_mount().sync_all().expect("durable");
        let after = counted();
        assert_eq!(after.0 - before.0, u64::from(is_asked), "{options}");
        assert!(!is_asked || after.1 - mapped.1 >= FILE_BYTES as u64 / 64, "{options}: {mapped:?}, {after:?}");
        drop((mapping, client));
        mount.unmount();
    }
    succeeds(&["check", &image]);
}

/// Stores by a mapping, writes by the mount and reads by both.
#[test]
fn the_mount_sees_stores_and_a_mapping_sees_writes() {
    let (place, device) = formatted();
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    let (path, mut model) = (mount.path("file"), pattern(1, FILE_BYTES));
    fs::write(&path, &model).expect("written");
    let (client, file) = connected(mount.root());
    let mapping = mapped(&file, FILE_BYTES as u64);
    let by_mount = fs::File::options().read(true).write(true).open(&path).expect("opened");
    let loaded = |mapping: &Mapping| {
        let mut bytes = vec![0; FILE_BYTES];
        mapping.load(0, &mut bytes).expect("loaded");
        bytes
    };
    for round in 0..40_u8 {
        let (at, bytes) = (usize::from(round) * 50_021, [round; 9000]);
        model[at..at + bytes.len()].copy_from_slice(&bytes);
        match round % 2 {
            0 => by_mount.write_all_at(&bytes, at as u64).expect("written"),
            _ => mapping.store(at as u64, &bytes).expect("stored"),
        }
        assert!(loaded(&mapping) == model, "round {round}");
        is_read(&path, &model);
    }
    by_mount.set_len(100_000).expect("cut");
    by_mount.set_len(FILE_BYTES as u64).expect("grown");
    model[100_000..].fill(0);
    mapping.store(500_000, b"later").expect("stored");
    model[500_000..500_005].copy_from_slice(b"later");
    assert!(loaded(&mapping) == model);
    is_read(&path, &model);
    drop((mapping, file, client));
    assert!(fs::read(&path).expect("read") == model);
    drop(by_mount);
    mount.unmount();
    succeeds(&["check", &device]);
}

/// [FOP1], [FOP3] of `crates/fuse`: what the mount has open is not mapped for stores, and what is mapped for stores is opened past the kernel's cache.
#[test]
fn a_file_is_mapped_for_stores_or_cached_by_the_mount() {
    let (place, device) = formatted();
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    let path = mount.path("file");
    fs::write(&path, pattern(1, FILE_BYTES)).expect("written");
    let (client, file) = connected(mount.root());
    let map = || mapped(&file, FILE_BYTES as u64);
    let python = |script: &str| {
        let output = run(Command::new("python3").args(["-c", script]).arg(&path));
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let is_refused = || matches!(file.map_writable(0..FILE_BYTES as u64), Err(Error::Crossed(crossed)) if crossed.why == Why::Cached);
    let first = fs::File::open(&path).expect("opened");
    let second = first.try_clone().expect("duplicated");
    drop(first);
    assert!(is_refused(), "it is open");
    drop(second);
    let made = fs::File::create_new(mount.path("new")).expect("made");
    made.set_len(8192).expect("sized");
    let of_new = OpenOptions::new().read(true).write(true).open(&client, "new").expect("opened");
    assert!(of_new.map_writable(0..8192).is_err(), "the file that was made is open");
    drop(made);
    drop(mapped(&of_new, 8192));
    // A mapping of the mount keeps it open.
    let mut child = Command::new("python3");
    let script =
        "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); f.close(); print('mapped',flush=True); sys.stdin.read()";
    let mut child = start(child.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped())).expect("python3");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("read");
    assert!(line == "mapped\n" && is_refused(), "it is mapped by the mount");
    drop(child.stdin.take());
    child.wait().expect("ended");
    let mapping = map();
    let by_mount = fs::File::options().read(true).write(true).open(&path).expect("opened");
    for word in 0..3000_u64 {
        let at = 8 * (word % 7000);
        mapping.store_word(at, word).expect("stored");
        let mut read = [0; 8];
        by_mount.read_exact_at(&mut read, at).expect("read");
        assert_eq!(u64::from_le_bytes(read), word, "a store is read at once");
        by_mount.write_all_at(&(!word).to_le_bytes(), at).expect("written");
        mapping.load(at, &mut read).expect("loaded");
        assert_eq!(u64::from_le_bytes(read), !word, "and a write is loaded");
    }
    let (_, shared) = python("import mmap,sys; f=open(sys.argv[1],'r+b'); mmap.mmap(f.fileno(),0)");
    assert!(shared.contains("[Errno 19]"), "a shared mapping of the mount: {shared}");
    drop(mapping);
    // What was opened meanwhile stays past the cache, and does not count.
    drop(map());
    drop(by_mount);
    let (said, errors) = python("import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); m[0]=77; m.flush(); print(m[0])");
    assert_eq!((said.as_str(), errors.as_str()), ("77\n", ""), "with nobody's mapping it is as ever");
    drop((file, of_new, client));
    mount.unmount();
    succeeds(&["check", &device]);
}
