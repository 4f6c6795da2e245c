//! `tandemfs run`: unchanged programs by the direct door, beside the same by the mount. As root: the daemon must see who its clients are.

#[path = "run/mutants.rs"]
mod mutants;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use support::{Mount, Place, run, start, under_run};
use tandemfs_protocol::{Reception, Refusal, VERSION};

const OWN_CALLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/own_calls.c");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/client.c");

/// A mount with a door, and the program `run/client.c`.
struct Scene {
    place: Place,
    mount: Mount,
    client: String,
}

impl Scene {
    fn new() -> Self {
        Self::with("direct,strict,allow_other", &[])
    }

    fn with(options: &str, compiler_options: &[&str]) -> Self {
        let place = Place::formatted();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("changed");
        let mount = place.mount(options);
        let client = place.path("client");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-D_FORTIFY_SOURCE=2", "-pthread", "-o", &client, SOURCE]).args(compiler_options);
        let compiled = run(&mut compiler);
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Self { place, mount, client }
    }

    fn directory(&self, name: &str) -> String {
        let path = self.mount.path(name);
        fs::create_dir(&path).expect("made");
        path.to_str().expect("UTF-8").to_owned()
    }

    fn under(&self, options: &[&str]) -> Command {
        under_run(&self.place.mountpoint(), options)
    }

    fn end(self) {
        self.mount.unmount();
        self.place.check();
    }
}

/// What a program printed; it must have succeeded.
fn said(output: &Output, what: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {} {}{errors}", output.status, String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The report: counts by call and way.
fn report(output: &Output) -> BTreeMap<(String, String), u64> {
    let text = String::from_utf8_lossy(&output.stderr);
    let row = |line: &str| {
        let mut words = line.strip_prefix("tandemfs: ")?.split_whitespace();
        let (call, count) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(((call, words.collect::<Vec<_>>().join(" ")), count))
    };
    text.lines().filter_map(row).collect()
}

fn by_door(report: &BTreeMap<(String, String), u64>, call: &str) -> u64 {
    report.get(&(call.to_owned(), "door".to_owned())).copied().unwrap_or(0)
}

/// Runs a part of the client by the mount and by the door; both must say the same. Returns the report.
fn same_by_both_ways(scene: &Scene, part: &str) -> BTreeMap<(String, String), u64> {
    same_by_both_ways_after(scene, part, 0)
}

/// The same, where the first calls of a process go by the mount.
fn same_by_both_ways_after(scene: &Scene, part: &str, calls: u32) -> BTreeMap<(String, String), u64> {
    let (first, second) = (scene.directory(&format!("{part}-mount-{calls}")), scene.directory(&format!("{part}-door-{calls}")));
    let mount = said(&run(Command::new(&scene.client).args([part, &first])), part);
    held_against(
        &mount,
        scene.under(&["--report", "--real"]).env("TANDEMFS_RUN_AFTER", calls.to_string()).args([&scene.client, part, &second]),
        part,
    )
}

/// Runs a part of the client, whose files are the door's alone where they can be, as it runs by the mount. Returns the report.
fn same_with_placeholders(scene: &Scene, part: &str, calls: u32) -> BTreeMap<(String, String), u64> {
    let (first, second) = (scene.directory(&format!("{part}-mount-of-{calls}")), scene.directory(&format!("{part}-placeholders-{calls}")));
    let mount = said(&run(Command::new(&scene.client).args([part, &first])), part);
    let mut command = scene.under(&["--report", "--placeholders"]);
    held_against(&mount, command.env("TANDEMFS_RUN_AFTER", calls.to_string()).args([&scene.client, part, &second]), part)
}

/// Runs a command that must say what is expected; returns its report.
fn held_against(mount: &str, command: &mut Command, part: &str) -> BTreeMap<(String, String), u64> {
    let output = run(command);
    let door = said(&output, part);
    for (mount, door) in mount.lines().zip(door.lines()) {
        assert_eq!(door, mount, "{part}");
    }
    assert_eq!(door.lines().count(), mount.lines().count());
    assert!(door.ends_with("done\n"), "{door}");
    report(&output)
}

#[test]
fn each_call_returns_what_the_mount_returns() {
    let scene = Scene::new();
    let report = same_by_both_ways(&scene, "calls");
    for call in ["stat", "access", "unlink", "rmdir", "mkdir", "rename", "link", "symlink", "readlink", "chmod", "chown", "utimensat"] {
        assert!(by_door(&report, call) > 0, "{call}: {report:?}");
    }
    for call in ["getxattr", "setxattr", "listxattr", "removexattr"] {
        assert!(by_door(&report, call) > 0, "{call}: {report:?}");
    }
    scene.end();
}

#[test]
fn attributes_are_the_kernels_to_the_bit() {
    let scene = Scene::new();
    let report = same_by_both_ways(&scene, "structures");
    assert!(by_door(&report, "stat") > 0 && by_door(&report, "statx") > 0, "{report:?}");
    scene.end();
}

#[test]
fn a_signal_may_come_at_any_moment_and_its_handler_may_jump() {
    let scene = Scene::new();
    for part in ["signals", "left"] {
        let report = same_by_both_ways(&scene, part);
        assert!(by_door(&report, "stat") > 0 && by_door(&report, "mkdir") > 0, "{part}: {report:?}");
    }
    scene.end();
}

/// What a program does with descriptors is the same, and some of it goes by the door.
#[test]
fn bytes_are_the_same_by_both_ways() {
    let scene = Scene::new();
    for part in ["data", "numbers", "together"] {
        let report = same_by_both_ways(&scene, part);
        assert!(by_door(&report, "pwrite") > 20 && by_door(&report, "pread") > 0, "{part}: {report:?}");
        // With pages that stay in the kernel, files that change their way, and calls that pass without a look.
        for calls in [3, 16] {
            assert!(by_door(&same_by_both_ways_after(&scene, part, calls), "pwrite") > 0, "{part}, {calls}");
        }
    }
    scene.end();
}

/// A program that reads what it writes, or has it mapped, keeps the kernel's pages.
#[test]
fn pages_of_the_kernel_are_not_dropped_again_and_again() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let script = "import os, mmap\nf = os.open('f', os.O_CREAT | os.O_RDWR)\nos.write(f, bytes(1 << 16))\nm = mmap.mmap(f, 1 << 16)\nn = 0\n\
                  for round in range(4000):\n    os.pwrite(f, bytes([round % 251]), 4096 * (round % 16))\n    n += m[4096 * (round % 16)] == round % 251\nprint(n)";
    let output =
        run(scene.under(&["--report", "--real"]).env_remove("TANDEMFS_RUN_AFTER").args(["python3", "-c", script]).current_dir(directory));
    assert_eq!(said(&output, "python3"), "4000\n");
    let report = report(&output);
    let by_mount = report.get(&("pwrite".to_owned(), "mount: the kernel keeps pages of the file".to_owned())).copied().unwrap_or(0);
    let all: u64 = report.iter().filter(|((call, _), _)| call == "pwrite").map(|(_, count)| count).sum();
    assert!(by_mount > 3900 && all == 4000 && by_door(&report, "pwrite") > 0, "{report:?}");
    scene.end();
}

/// What SQLite has acknowledged is there after it was killed, whichever journal it has.
#[test]
fn databases_of_killed_programs_have_what_was_acknowledged() {
    let scene = Scene::new();
    let modes = ["wal", "delete", "truncate", "persist"].map(|mode| [(mode, "--real"), (mode, "--placeholders")]);
    for (mode, way) in modes.into_iter().flatten() {
        let directory = scene.directory(&format!("{mode}{way}"));
        let script = format!(
            "import sqlite3\nd = sqlite3.connect('db', isolation_level=None)\nd.execute('pragma journal_mode={mode}')\n\
             d.execute('pragma synchronous=full')\nd.execute('pragma wal_autocheckpoint=20')\n\
             d.execute('create table if not exists t(a integer primary key, b)')\n\
             for n in range(1, 1 << 30):\n    d.execute('insert into t values((select coalesce(max(a), 0) + 1 from t), randomblob(700))')\n    print(n, flush=True)"
        );
        let mut acknowledged = 0;
        for lines in [40, 160, 90] {
            let mut command = scene.under(&[way]);
            command.args(["python3", "-c", &script]).current_dir(&directory).stdout(Stdio::piped());
            let mut child = start(&mut command).expect("run");
            let output = BufReader::new(child.stdout.take().expect("a pipe"));
            let mut rows = output.lines().map_while(Result::ok);
            let mut count = rows.by_ref().take(lines).count();
            child.kill().expect("killed");
            count += rows.count();
            child.wait().expect("ended");
            assert!(count >= lines, "{mode}: {count}");
            acknowledged += count;
        }
        let query = "pragma integrity_check; select count(*), max(a) from t";
        let found = said(&run(Command::new("sqlite3").args(["db", query]).current_dir(&directory)), mode);
        let rows = found.strip_prefix("ok\n").and_then(|rows| rows.trim().split_once('|')).map(|(rows, last)| (rows.parse(), last.parse()));
        let Some((Ok::<usize, _>(rows), Ok::<usize, _>(last))) = rows else { panic!("{mode}: {found}") };
        // Each killed one may have had one more on its way.
        assert!(rows == last && (acknowledged..=acknowledged + 3).contains(&rows), "{mode}: {acknowledged} acknowledged, {rows} there");
    }
    scene.end();
}

#[test]
fn threads_fork_and_spawn() {
    let scene = Scene::new();
    let report = same_by_both_ways(&scene, "forks");
    assert!(by_door(&report, "mkdir") > 0, "{report:?}");
    // Those of vfork and of a raw system call.
    assert!(report.keys().any(|(_, way)| way.starts_with("mount: another process")), "{report:?}");
    scene.end();
}

#[test]
fn a_program_may_close_everything() {
    let scene = Scene::new();
    let report = same_by_both_ways(&scene, "closes");
    assert!(by_door(&report, "mkdir") > 0, "{report:?}");
    scene.end();
}

#[test]
fn credentials_hold_from_the_call_that_sets_them() {
    let scene = Scene::new();
    let report = same_by_both_ways(&scene, "ids");
    assert!(by_door(&report, "stat") > 0, "{report:?}");
    scene.end();
}

#[test]
fn another_root_is_the_kernels() {
    let scene = Scene::new();
    let report = same_by_both_ways(&scene, "roots");
    assert!(by_door(&report, "stat") > 0, "{report:?}");
    scene.end();
}

#[test]
fn static_programs_run_by_the_mount() {
    let scene = Scene::with("direct,strict,allow_other", &["-static"]);
    let report = same_by_both_ways(&scene, "calls");
    assert_eq!(report.len(), 0, "{report:?}");
    scene.end();
}

#[test]
fn programs_find_the_kernels_errors_when_the_daemon_dies() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let mut command = scene.under(&[]);
    let mut child = start(command.args([&scene.client, "until_it_fails", &directory]).stdout(Stdio::piped())).expect("run");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    assert_eq!(line, "ready\n");
    std::thread::sleep(Duration::from_millis(200));
    scene.mount.kill();
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("read");
    assert!(child.wait().expect("ended").success(), "{rest}");
    // By the mount a request in flight is called off, and a path may be looked up when the mount is gone as well.
    let ends = [libc::ENOTCONN, libc::ECONNABORTED].map(|number| format!(" {number}"));
    let gone = format!(" {}", libc::ENOENT);
    let lines: Vec<&str> = rest.lines().collect();
    let is_told = |line: &&str| ends.iter().any(|end| line.ends_with(end));
    assert!(lines.len() == 5 && lines[..3].iter().all(is_told) && (is_told(&lines[3]) || lines[3].ends_with(&gone)), "{rest}");
    scene.place.mount("strict").unmount();
    scene.place.check();
}

/// Programs of Debian, from a script, whose output and files must be the same by both ways.
const SCRIPT: &str = r#"
set -eu
mkdir tree && cd tree
for directory in a b c; do mkdir $directory; for file in 1 2 3 4 5; do echo "$directory $file" > $directory/$file; done; done
ln -s a/1 link; ln a/2 hard; mkfifo pipe; chmod 600 b/1; touch -d '2001-02-03 04:05:06.7 UTC' b/2; ln -s /etc absolute; ln -s nowhere dangling
cp -a . ../copy; diff -r --no-dereference a ../copy/a
find . -printf '%p %y %m %s %n %l\n' | sort
ls -R1F . ; ls -l b/2 --time-style=full-iso | cut -d' ' -f1,2,5-
tar cf ../archive.tar . ; mkdir ../unpacked; tar xf ../archive.tar -C ../unpacked; (cd ../unpacked; find . -type f | sort | xargs md5sum)
mv a/1 moved; mv c renamed; rm -r b; rmdir ../unpacked/b 2>&1 || true; rm -rf ../unpacked
cat moved | (while read -r line; do echo "read $line"; done)
dd if=/dev/zero of=zeros bs=4096 count=100 conv=fsync status=none; stat -c '%s %F' zeros; truncate -s 1M zeros; du --apparent-size -b zeros
for number in $(seq 200 -1 1); do echo $number; done | sort -n -S 1M -T . | md5sum
test -e link && test ! -e dangling && test -L dangling && echo tested
cat none 2>&1 || true; mkdir renamed 2>&1 || true; rm renamed 2>&1 || true; cd /; cd "$OLDPWD"; pwd -P | sed 's/.*tree/tree/'
chmod -R g-w . ; chgrp -R 7 renamed; stat -c '%n %g %a' renamed/*
install -m 750 moved installed; stat -c %a installed; readlink -f link | sed 's/.*tree/tree/' || true
"#;
const PYTHON: &str = r#"
import os, shutil, subprocess, tempfile, multiprocessing, sqlite3, mmap
os.makedirs("p/q/r"); open("p/f", "w").write("x" * 1000)
print(sorted(os.listdir("p")), os.path.getsize("p/f"), os.access("p/f", os.W_OK), os.path.exists("p/none"))
shutil.copytree("p", "s"); os.replace("s/f", "s/g"); print([sorted(x[1:]) for x in os.walk("s")])
with tempfile.TemporaryDirectory(dir=".") as d: open(d + "/t", "w").close()
print(subprocess.run(["sh", "-c", "stat -c %s p/f; mkdir u; rmdir u"], capture_output=True, close_fds=True, cwd=".").stdout)
def work(n): os.mkdir(f"w{n}"); os.rename(f"w{n}", f"v{n}"); return os.stat(f"v{n}").st_nlink
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(4) as pool: print(pool.map(work, range(20)))
    db = sqlite3.connect("db"); db.execute("pragma journal_mode=delete"); db.execute("create table t(a)")
    for n in range(20): db.execute("insert into t values(?)", (n,)); db.commit()
    print(db.execute("select sum(a) from t").fetchone(), sorted(n for n in os.listdir(".") if n.startswith("db")))
    f = open("p/f", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0:3] = b"abc"; m.flush(); print(open("p/f").read(4), os.stat("p/f").st_size)
    try: os.rmdir("p")
    except OSError as e: print(e.errno)
    shutil.rmtree("s"); print(os.path.exists("s"))
"#;

const GIT: &str = r#"
set -eu
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE=2001-01-01T00:00:00Z GIT_COMMITTER_DATE=2001-01-01T00:00:00Z
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main repository; cd repository
for file in 1 2 3; do mkdir d$file; for n in $(seq 30); do echo $file $n > d$file/$n; done; done
git add .; git commit -qm one; git mv d1 e1; echo x >> d2/1; git status --porcelain | sort; git commit -qam two; git log --oneline
git checkout -q HEAD~1; ls; git checkout -q main; git gc -q; git fsck --no-progress; git clone -q . ../clone; (cd ../clone; git status --porcelain; git log --format=%H)
sqlite3 ../s.db 'pragma journal_mode=wal; create table t(a); insert into t values(1),(2); select sum(a) from t;'
perl -e 'mkdir "p" or die; open F, ">", "p/f"; close F; rename "p/f", "p/g"; print -e "p/g", " ", (stat "p/g")[7], "\n"; unlink "p/g"; rmdir "p" or die; print fork() ? (wait, $?)[1] : exit 0, "\n"; chdir "/"; '
"#;

fn script_is_the_same_by_both_ways(scene: &Scene, name: &str, program: &[&str]) {
    script_is_the_same(scene, name, program, &["--report", "--real"]);
}

fn script_is_the_same(scene: &Scene, name: &str, program: &[&str], options: &[&str]) {
    let (first, second) = (scene.directory(&format!("{name}-mount")), scene.directory(&format!("{name}-door")));
    let mount = run(Command::new(program[0]).args(&program[1..]).current_dir(&first));
    let door = run(scene.under(options).args(program).current_dir(&second));
    assert_eq!(said(&door, name).replace(&second, "HERE"), said(&mount, name).replace(&first, "HERE"), "{name}");
    let report = report(&door);
    assert!(by_door(&report, "stat") + by_door(&report, "statx") > 10, "{name}: {report:?}");
    let tree = |directory: &str| {
        let listed = run(Command::new("sh")
            .args(["-c", "find . -type f ! -path '*/.git/*' ! -name '*.tar' ! -name 'db*' | sort | xargs md5sum"])
            .current_dir(directory));
        said(&listed, name)
    };
    assert_eq!(tree(&second), tree(&first), "{name}");
}

#[test]
fn unchanged_programs_do_the_same() {
    let scene = Scene::new();
    for (name, program) in [("shell", ["bash", "-c", SCRIPT]), ("python", ["python3", "-c", PYTHON]), ("git", ["bash", "-c", GIT])] {
        script_is_the_same_by_both_ways(&scene, name, &program);
    }
    scene.end();
}

/// Everything that a program does with descriptors is the same when regular files are the door's alone.
#[test]
fn placeholders_are_files_in_every_call() {
    let scene = Scene::new();
    for part in ["files", "inherits"] {
        let report = same_with_placeholders(&scene, part, 0);
        for call in ["open", "write", "close"] {
            assert!(by_door(&report, call) > 0, "{part}, {call}: {report:?}");
        }
        assert!(report.keys().any(|(call, way)| call == "real" && way.starts_with("mount")), "{part}: {report:?}");
        assert!(!report.keys().any(|(call, way)| call == "real" && way.starts_with("nobody")), "{part}: {report:?}");
        same_with_placeholders(&scene, part, 5);
    }
    scene.end();
}

/// It is what `tandemfs run` does by itself.
#[test]
fn placeholders_are_the_default() {
    let scene = Scene::new();
    let opened = |options: &[&str]| {
        let output = run(scene.under(options).args(["touch", &format!("{}/file", scene.place.mountpoint())]));
        said(&output, "touch");
        report(&output).keys().any(|(call, _)| call == "open")
    };
    assert_eq!((opened(&["--report"]), opened(&["--report", "--placeholders"]), opened(&["--report", "--real"])), (true, true, false));
    support::fails(2, "cannot be used with", &["run", "--real", "--placeholders", "--", "true"]);
    scene.end();
}

/// The parts that were there before: signals, threads, forks, closed numbers, credentials.
#[test]
fn placeholders_change_nothing_else() {
    let scene = Scene::new();
    for part in [
        "calls",
        "structures",
        "signals",
        "left",
        "forks",
        "closes",
        "ids",
        "roots",
        "data",
        "numbers",
        "together",
        "cancelled",
        "directories",
        "copies",
    ] {
        let report = same_with_placeholders(&scene, part, 0);
        assert!(by_door(&report, "open") > 0, "{part}: {report:?}");
    }
    scene.end();
}

/// [PRL22]
#[test]
fn regression_long_appends_of_several_threads_were_torn() {
    let scene = Scene::new();
    same_with_placeholders(&scene, "appended", 0);
    scene.end();
}

#[test]
fn unchanged_programs_do_the_same_with_placeholders() {
    let scene = Scene::new();
    for (name, program) in [("shell", ["bash", "-c", SCRIPT]), ("python", ["python3", "-c", PYTHON]), ("git", ["bash", "-c", GIT])] {
        script_is_the_same(&scene, name, &program, &["--report", "--placeholders"]);
    }
    scene.end();
}

/// Where placeholders cost more than they save there are few: files that are large or read often, and a shell, which duplicates what it opens.
#[test]
fn files_that_the_kernel_serves_better_are_its_own() {
    let scene = Scene::new();
    let opened = |name: &str, script: &[&str]| {
        let directory = scene.directory(name);
        let mut command = scene.under(&["--report", "--placeholders"]);
        let output = run(command.env_remove("TANDEMFS_RUN_AFTER").args(script).current_dir(directory));
        said(&output, script[0]);
        let report = report(&output);
        let by_mount = |why: &str| report.get(&("open".to_owned(), format!("mount: {why}"))).copied().unwrap_or(0);
        (by_door(&report, "open"), by_mount("the kernel keeps pages of the file"), by_mount("most files of this process become real"))
    };
    let reads = "import os\nfor n in range(100):\n    w = os.open(str(n), os.O_CREAT | os.O_WRONLY, 0o600); os.write(w, b'x'); os.close(w)\n    \
                 r = os.open(str(n), os.O_RDONLY); assert os.read(r, 9) == b'x'; os.close(r)";
    let (by_door, pages, real) = opened("reads", &["python3", "-c", reads]);
    assert!(by_door > 180 && pages == 0 && real == 0, "{by_door} {pages} {real}");
    let large = "import os\nf = os.open('large', os.O_CREAT | os.O_WRONLY, 0o600); os.ftruncate(f, (1 << 20) + 1); os.close(f)\n\
                 for n in range(100): os.close(os.open('large', os.O_RDONLY))";
    let (_, pages, real) = opened("large", &["python3", "-c", large]);
    assert!(pages > 90 && real == 0, "{pages} {real}");
    let (by_door, _, real) = opened("shell", &["sh", "-c", "n=0; while [ $n -lt 300 ]; do echo x > $n; n=$((n+1)); done"]);
    assert!((1..20).contains(&by_door) && real > 250, "{by_door} {real}");
    scene.end();
}

/// The library `run/own_calls.c`.
fn own_calls_library(scene: &Scene) -> String {
    let library = scene.place.path("own_calls.so");
    said(&run(Command::new("cc").args(["-O1", "-DLIBRARY", "-shared", "-fPIC", "-o", &library, OWN_CALLS])), "cc");
    library
}

/// A descriptor that can do nothing would be EBADF for a program, or a library that it loads, with system calls of its own.
#[test]
fn regression_descriptors_of_code_that_calls_the_kernel_by_itself_could_do_nothing() {
    let loads = Scene::new();
    let library = own_calls_library(&loads);
    let directories = [loads.directory("mount"), loads.directory("door")];
    let said_by_mount =
        said(&run(Command::new(&loads.client).args(["own_calls", &directories[0]]).env("OWN_CALLS", &library)), "own_calls");
    let mut command = loads.under(&["--report", "--placeholders"]);
    let loaded =
        held_against(&said_by_mount, command.env("OWN_CALLS", &library).args([&loads.client, "own_calls", &directories[1]]), "loads");
    assert!(by_door(&loaded, "open") > 0, "before: {loaded:?}");
    let is_there =
        |report: &BTreeMap<(String, String), u64>, call: &str, why: &str| report.contains_key(&(call.to_owned(), why.to_owned()));
    assert!(is_there(&loaded, "real", "mount: code is being loaded"), "{loaded:?}");
    assert!(is_there(&loaded, "open", "mount: code is being loaded"), "{loaded:?}");
    assert!(is_there(&loaded, "open", "mount: code that calls the kernel past libc"), "{loaded:?}");
    loads.end();
    let has = Scene::with("direct,strict,allow_other", &[OWN_CALLS]);
    for round in 0..2 {
        let report = same_with_placeholders(&has, "own_calls", round);
        assert!(by_door(&report, "open") == 0, "{report:?}");
        assert!(is_there(&report, "open", "mount: code that calls the kernel past libc"), "{report:?}");
    }
    has.end();
}

/// They found a descriptor that can do nothing: EBADF instead of what they say of a file. A lock of lockf stayed when another descriptor was closed.
#[test]
fn regression_calls_that_are_not_for_files_or_take_two_found_no_file() {
    let scene = Scene::new();
    let report = same_with_placeholders(&scene, "others", 0);
    assert!(by_door(&report, "open") > 0 && !report.keys().any(|(_, way)| way.starts_with("nobody")), "{report:?}");
    scene.end();
}

/// The library's own calls ended the process.
#[test]
fn regression_a_process_that_limits_its_system_calls_was_killed() {
    let scene = Scene::new();
    for (name, options, by_prctl) in [("real", "--real", false), ("files", "--placeholders", false), ("prctl", "--placeholders", true)] {
        let directories = ["mount", "door"].map(|way| scene.directory(&format!("{name}-{way}")));
        let variable = by_prctl.then_some(("BY_PRCTL", "1"));
        let mount = said(&run(Command::new(&scene.client).args(["sandbox", &directories[0]]).envs(variable)), name);
        let mut command = scene.under(&["--report", options]);
        let report = held_against(&mount, command.envs(variable).args([&scene.client, "sandbox", &directories[1]]), name);
        assert!(by_door(&report, "pwrite") > 0, "before: {report:?}");
    }
    scene.end();
}

/// An open that was under way when a file was locked, or when placeholders ended, left one behind.
#[test]
fn regression_opens_under_way_left_placeholders() {
    let scene = Scene::new();
    for part in ["locks_met", "ends_met"] {
        let report = same_with_placeholders(&scene, part, 0);
        assert!(by_door(&report, "open") > 0, "{part}: {report:?}");
    }
    scene.end();
}

/// A number of one thread was the file of another one's; a process that shares memory and descriptors found a file that can do nothing.
#[test]
fn regression_descriptors_that_are_shared_in_part_were_mixed_up() {
    let scene = Scene::new();
    for part in ["unshared", "cloned"] {
        let report = same_with_placeholders(&scene, part, 0);
        assert!(by_door(&report, "open") > 0, "{part}: {report:?}");
    }
    scene.end();
}

/// Functions found in libc by its name (ctypes, JNA) met placeholders.
#[test]
fn regression_functions_found_in_libc_itself_met_placeholders() {
    let scene = Scene::new();
    let report = same_with_placeholders(&scene, "by_handle", 0);
    assert!(by_door(&report, "open") > 0, "before: {report:?}");
    let script = "import ctypes, os\nlibc = ctypes.CDLL('libc.so.6', use_errno=True)\nf = os.open('f', os.O_CREAT | os.O_RDWR)\nprint(libc.write(f, b'abc', 3), os.pread(f, 9, 0))";
    let output = run(scene.under(&[]).args(["python3", "-c", script]).current_dir(scene.directory("python")));
    assert_eq!(said(&output, "python3"), "3 b'abc'\n");
    scene.end();
}

/// A library that is compiled from a source of these tests.
fn library(scene: &Scene, source: &str) -> String {
    let library = scene.place.path(&format!("{source}.so"));
    let source = format!("{}/tests/run/{source}.c", env!("CARGO_MANIFEST_DIR"));
    said(&run(Command::new("cc").args(["-O1", "-shared", "-fPIC", "-pthread", "-o", &library, &source])), "cc");
    library
}

/// Both waited for ever: the thread for the loader, which was looked for the function behind the library's, and the constructor for the thread.
#[test]
fn regression_a_constructor_that_waits_for_a_thread_waited_for_ever() {
    let scene = Scene::new();
    let library = library(&scene, "waits");
    let mut command = scene.under(&["--report"]);
    let output = run(command.env("WAITS", &library).args([&scene.client, "constructs", &scene.directory("d")]));
    assert_eq!(said(&output, "constructs"), "waited() = 0, 0\ndone\n");
    scene.end();
}

/// [PRL18] Those that the process itself removes or replaces become real before.
#[test]
fn regression_a_directory_that_was_replaced_or_removed_otherwise_was_lost() {
    let scene = Scene::new();
    let report = same_with_placeholders(&scene, "replaced", 0);
    assert!(report.contains_key(&("real".to_owned(), "mount: .. of a removed directory".to_owned())), "{report:?}");
    scene.end();
}

/// The parent went by the mount from then on.
#[test]
fn regression_a_child_of_vfork_that_is_limited_ended_the_door_of_its_parent() {
    let scene = Scene::new();
    let report = same_with_placeholders(&scene, "vfork_sandbox", 0);
    assert!(by_door(&report, "open") >= 30, "{report:?}");
    scene.end();
}

/// The library's own calls ended it.
#[test]
fn regression_a_program_that_was_started_with_a_limit_was_killed() {
    let scene = Scene::new();
    same_with_placeholders(&scene, "executes_limited", 0);
    scene.end();
}

/// A signal that is ignored stays ignored, also SIGPIPE, which Rust ignores by itself.
#[test]
fn regression_ignored_signals_were_not() {
    let scene = Scene::new();
    let of_mask = |mask: &str| {
        let mask = u64::from_str_radix(mask, 16).expect("a mask");
        [libc::SIGPIPE, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT].map(|signal| mask >> (signal - 1) & 1 == 1)
    };
    // What is ignored already, as in the background of a shell; SIGPIPE is not passed on by Rust.
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let inherited = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(|mask| of_mask(mask.trim())).expect("a mask");
    let beside_inherited = |pipe: bool, others: bool| [pipe, others || inherited[1], others || inherited[2], others || inherited[3]];
    for report in ["", "--report"] {
        let ignored = |trap: &str| {
            let script = format!("{trap} exec \"$0\" \"$@\" {report} -- grep SigIgn /proc/self/status");
            let words = [env!("CARGO_BIN_EXE_tandemfs"), "run", "--mount", &scene.place.mountpoint()];
            let output = run(Command::new("sh").args(["-c", &script]).args(words).env("TANDEMFS_PRELOAD", preload_library()));
            let said = said(&output, trap);
            of_mask(said.split_whitespace().last().expect("a mask"))
        };
        assert_eq!(ignored(""), beside_inherited(false, false), "{report}");
        assert_eq!(ignored("trap '' PIPE;"), beside_inherited(true, false), "{report}");
        assert_eq!(ignored("trap '' HUP INT QUIT;"), beside_inherited(false, true), "{report}");
    }
    scene.end();
}

/// A library that the user preloads was called by nobody where this one serves a call.
#[test]
fn regression_libraries_of_the_user_stood_behind() {
    let scene = Scene::new();
    let library = library(&scene, "counts");
    let directory = scene.directory("d");
    let mkdir = |nested: bool| {
        let mut command = scene.under(&["--report"]);
        command.env("LD_PRELOAD", &library).current_dir(&directory);
        if nested {
            command.args([env!("CARGO_BIN_EXE_tandemfs"), "run", "--mount", &scene.place.mountpoint(), "--"]);
        }
        command.args(["python3", "-c", &format!("import os; os.mkdir('{nested}'); print(os.environ['LD_PRELOAD'].count('preload'))")]);
        let output = run(&mut command);
        assert_eq!(said(&output, "mkdir"), "mkdir of a user\n1\n");
        assert_eq!(by_door(&report(&output), "mkdir"), 1, "{:?}", report(&output));
    };
    [false, true].into_iter().for_each(mkdir);
    scene.end();
}

#[test]
fn programs_that_are_executed_are_not_written() {
    let scene = Scene::new();
    let report = same_with_placeholders(&scene, "programs", 0);
    assert!(report.contains_key(&("open".to_owned(), "mount: a program is opened for writing".to_owned())), "{report:?}");
    scene.end();
}

#[test]
fn io_past_libc_is_coherent() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    for (engine, way) in [("psync", "--real"), ("psync", "--placeholders"), ("libaio", "--placeholders"), ("io_uring", "--placeholders")] {
        let words = [
            "--name=j",
            "--rw=randrw",
            "--bs=4k",
            "--size=2m",
            "--verify=crc32c",
            "--output-format=terse",
            "--verify_fatal=1",
            "--direct=1",
        ];
        let job = format!("--filename={directory}/{engine}");
        let output = run(scene.under(&[way]).current_dir(&directory).arg("fio").args(words).args([&format!("--ioengine={engine}"), &job]));
        said(&output, engine);
        assert_eq!(fs::metadata(format!("{directory}/{engine}")).expect("there").size(), 2 << 20);
    }
    scene.end();
}

#[test]
fn a_mount_inside_is_the_kernels() {
    let scene = Scene::new();
    let inner = scene.directory("inner");
    fs::write(format!("{inner}/below"), "").expect("written");
    said(&run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", &inner])), "mount");
    let seen = run(scene.under(&["--report"]).args(["sh", "-c", "stat -c %s \"$0/below\"; mkdir $0/x && ls -F $0", &inner]));
    said(&run(Command::new("umount").arg(&inner)), "umount");
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "x/\n");
    assert!(report(&seen).keys().any(|(_, way)| way == "mount: something is mounted there"), "{:?}", report(&seen));
    scene.end();
}

#[test]
fn without_a_door_the_program_runs_by_the_mount() {
    let scene = Scene::with("strict", &[]);
    let output = run(scene.under(&[]).args(["stat", "-c", "%F", &scene.place.mountpoint()]));
    assert_eq!(said(&output, "stat"), "directory\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no direct door") && errors.contains("runs by the mount") && errors.lines().count() == 1, "{errors}");
    let output = run(scene.under(&[]).env("TANDEMFS_PRELOAD", "/none.so").args(["echo", "done"]));
    assert_eq!(said(&output, "echo"), "done\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none.so: there is no such library"));
    scene.end();
}

#[test]
fn a_door_of_another_version_is_not_used() {
    let scene = Scene::new();
    let device = fs::metadata(scene.mount.root()).expect("there").dev();
    let prefix = tandemfs_protocol::socket::prefix(rustix::fs::major(device), rustix::fs::minor(device));
    let directories = tandemfs_protocol::socket::directories(0);
    let directory = directories.iter().find(|directory| {
        fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
    });
    // Newer than the daemon's own, so it is asked first.
    let path = directory.expect("a daemon's").join(format!("{prefix}0.socket"));
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).expect("a path")).expect("bound");
    rustix::net::listen(&socket, 4).expect("listening");
    let later = rustix::fs::Timespec {
        tv_sec: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after").as_secs() as i64 + 9,
        tv_nsec: 0,
    };
    let times = rustix::fs::Timestamps { last_access: later, last_modification: later };
    rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).expect("set");
    let refusal = Refusal { version: VERSION + (1 << 16), errno: libc::EPROTONOSUPPORT, sentence: "another".into() };
    let daemon = std::thread::spawn(move || {
        let peer = rustix::net::accept(&socket).expect("somebody");
        let _hello = rustix::net::recv(&peer, &mut [0; 256][..], RecvFlags::empty());
        let _gone = rustix::net::send(&peer, &Reception::Refusal(refusal).encode(), SendFlags::NOSIGNAL);
    });
    let output = run(scene.under(&[]).args(["echo", "done"]));
    fs::remove_file(&path).expect("removed");
    assert_eq!(said(&output, "echo"), "done\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("speaks version") && errors.contains("runs by the mount") && errors.lines().count() == 1, "{errors}");
    daemon.join().expect("no panic");
    scene.end();
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    let scene = Scene::new();
    for options in [&[][..], &["--report"]] {
        let status = |words: &[&str]| run(scene.under(options).args(words)).status.code();
        assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7), "{options:?}");
        assert_eq!(status(&["/none"]), Some(127), "{options:?}");
        assert_eq!(status(&["/etc/passwd"]), Some(126), "{options:?}");
    }
    assert_eq!(run(scene.under(&["--report"]).args(["sh", "-c", "kill -KILL $$"])).status.code(), Some(128 + libc::SIGKILL));
    let said = support::fails(1, "no TandemFS is mounted there", &["run", "--mount", "/proc", "--", "true"]);
    assert!(said.starts_with("tandemfs: /proc"), "{said}");
    support::fails(2, "COMMAND", &["run"]);
    scene.end();
}

/// A process connects when it has made some calls on the mount: many make a few and end.
#[test]
fn the_first_calls_go_by_the_mount() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let script = "import os\nfor n in range(100): os.mkdir(f'{n}')";
    let output = run(scene.under(&["--report"]).env_remove("TANDEMFS_RUN_AFTER").args(["python3", "-c", script]).current_dir(directory));
    said(&output, "python3");
    let report = report(&output);
    let early = ("mkdir".to_owned(), "mount: one of the first calls of a process".to_owned());
    assert!(report.get(&early) == Some(&8) && by_door(&report, "mkdir") == 92, "{report:?}");
    scene.end();
}

/// The library of `tandemfs run`, beside the tests.
fn preload_library() -> std::path::PathBuf {
    std::env::current_exe().expect("this").parent().expect("a directory").join("libtandemfs_preload.so")
}

/// Names of the dynamic symbols that a library defines.
fn exports(elf: &[u8]) -> Vec<String> {
    let number = |at: usize, bytes: usize| elf[at..at + bytes].iter().rev().fold(0_usize, |value, byte| value << 8 | usize::from(*byte));
    let (table, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let sections: Vec<usize> = (0..count).map(|index| table + index * size).collect();
    let symbols = *sections.iter().find(|at| number(**at + 4, 4) == 11).expect("SHT_DYNSYM");
    let names = number(sections[number(symbols + 0x28, 4)] + 0x18, 8);
    let (start, bytes) = (number(symbols + 0x18, 8), number(symbols + 0x20, 8));
    let defined = (start..start + bytes).step_by(24).filter(|at| number(at + 6, 2) != 0);
    let name = |at: usize| elf[names + number(at, 4)..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    defined.map(name).filter(|name: &String| !name.is_empty()).collect()
}

#[test]
fn only_functions_of_libc_are_exported() {
    let names = exports(&fs::read(preload_library()).expect("built"));
    assert!(names.len() > 60, "{names:?}");
    // Of libaio, liburing, and later ones of libc.
    let others = |name: &String| name.starts_with("io_") || name.starts_with("pidfd_spawn") || name == "openat2";
    for name in names.into_iter().filter(|name| !others(name)) {
        let text = std::ffi::CString::new(name.clone()).expect("no NUL");
        // SAFETY: names that end with NUL.
        let found = unsafe {
            let newest = libc::dlsym(libc::RTLD_DEFAULT, text.as_ptr());
            if newest.is_null() { libc::dlvsym(libc::RTLD_DEFAULT, text.as_ptr(), c"GLIBC_2.2.5".as_ptr()) } else { newest }
        };
        assert!(!found.is_null(), "{name} is no function of libc");
    }
}
