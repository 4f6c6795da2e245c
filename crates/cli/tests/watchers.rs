//! Programs that watch files of a mount by inotify and fanotify, beside programs under `tandemfs run` that change them: they are told what they are told of
//! the same program by the mount. As root.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use support::{Mount, Place, has_no_copies, run, start, under_run};

/// How long something may take on a machine that does much else.
const WITHIN: Duration = Duration::from_secs(60);
/// A watch counts for clients so long after it began, and more.
const KNOWN_AFTER: Duration = Duration::from_millis(300);

struct Scene {
    place: Place,
    mount: Mount,
}

impl Scene {
    fn new() -> Self {
        let place = Place::formatted();
        let mount = place.mount("direct,strict,allow_other");
        Self { place, mount }
    }

    fn directory(&self, name: &str) -> String {
        let path = self.mount.path(name);
        fs::create_dir(&path).expect("made");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// A Python program by a way to the mount: none for the mount itself.
    fn python(&self, way: Option<&str>, script: &str, directory: &str) -> Command {
        let mut command = match way {
            Some(way) => under_run(&self.place.mountpoint(), &[way, "--report"]),
            None => Command::new("env"),
        };
        command.args(["python3", "-c", script]).current_dir(directory);
        command
    }

    fn end(self) {
        self.mount.unmount();
        self.place.check();
    }
}

fn said(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {}{errors}", output.status, String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// How many calls of a report went which way.
fn ways(output: &Output) -> BTreeMap<String, u64> {
    let mut ways = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let mut words = line.strip_prefix("tandemfs: ").unwrap_or_default().split_whitespace().skip(1);
        if let Some(Ok(count)) = words.next().map(str::parse::<u64>) {
            *ways.entry(words.collect::<Vec<_>>().join(" ")).or_default() += count;
        }
    }
    ways
}

const WATCHED: &str = "mount: somebody watches the file or directory";

/// A group that watches paths for everything that is done from here on.
fn watching(paths: &[&str]) -> OwnedFd {
    has_no_copies(); // it would be told when they are closed
    let group = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a group");
    paths.iter().for_each(|path| {
        inotify::add_watch(&group, *path, WatchFlags::ALL_EVENTS).expect("watched");
    });
    group
}

/// An event: which watch, what, the name.
type Event = (i32, ReadFlags, String);

/// The events that have come.
fn events(group: &OwnedFd) -> Vec<Event> {
    let mut space = [MaybeUninit::uninit(); 1 << 16];
    let mut reader = Reader::new(group, &mut space);
    let mut events = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        events.push((event.wd(), event.events(), name));
    }
    events
}

/// Whether an event of a kind is among them.
fn has(events: &[Event], kind: ReadFlags) -> bool {
    events.iter().any(|(_, kinds, _)| kinds.contains(kind))
}

const CHANGES: &str = r#"
import os
f = os.open('new', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
os.write(f, b'first')
os.pwrite(f, b'second', 100)
os.ftruncate(f, 50)
os.posix_fallocate(f, 0, 200)
os.fchmod(f, 0o600)
os.pread(f, 10, 0)
os.fsync(f)
os.close(f)
f = os.open('there', os.O_WRONLY | os.O_APPEND)
for n in range(20):
    os.write(f, b'line\n')
os.close(f)
f = os.open('there', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(f, b'anew')
os.close(f)
os.chmod('there', 0o640)
os.utime('there', (1, 2))
os.chown('there', 7, 7)
os.setxattr('there', 'user.a', b'1')
os.removexattr('there', 'user.a')
os.truncate('there', 2)
os.mkdir('sub')
os.symlink('there', 'link')
os.link('there', 'second')
os.rename('new', 'sub/moved')
os.rename('sub/moved', 'back')
os.rename('back', 'second')
os.unlink('second')
os.unlink('link')
os.rmdir('sub')
os.unlink('there')
print('done')
"#;

/// A directory is watched, and a file in it, before the program starts.
#[test]
fn watchers_are_told_what_they_are_told_by_the_mount() {
    let scene = Scene::new();
    let mut told = Vec::new();
    for way in [None, Some("--real"), Some("--placeholders")] {
        let directory = scene.directory(&format!("of-{}", way.unwrap_or("mount")));
        let there = format!("{directory}/there");
        fs::write(&there, "was there").expect("written");
        let group = watching(&[&directory, &there]);
        let output = run(scene.python(way, CHANGES, &directory).env("TANDEMFS_RUN_AFTER", "0"));
        assert_eq!(said(&output), "done\n");
        told.push(events(&group));
        if way.is_some() {
            assert!(ways(&output).get(WATCHED).is_some_and(|count| *count > 10), "{:?}", ways(&output));
        }
    }
    assert!(told[0].len() > 60, "{:?}", told[0]);
    for kind in [ReadFlags::CREATE, ReadFlags::MODIFY, ReadFlags::CLOSE_WRITE, ReadFlags::MOVED_TO, ReadFlags::DELETE, ReadFlags::ATTRIB] {
        assert!(has(&told[0], kind), "{kind:?}: {:?}", told[0]);
    }
    for (way, told_by_door) in ["--real", "--placeholders"].into_iter().zip(&told[1..]) {
        assert_eq!(told_by_door, &told[0], "{way}");
    }
    scene.end();
}

/// A program that says when it has reached a point, and waits there.
struct InSteps {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl InSteps {
    fn start(mut command: Command) -> Self {
        let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())).expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    fn reaches(&mut self, point: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        assert_eq!(line.trim_end(), point);
    }

    fn goes_on(&mut self) {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("written");
    }

    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut errors = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("read");
        assert!(self.child.wait().expect("ended").success(), "{errors}");
        errors
    }
}

const LATER: &str = r#"
import os, sys
def step(name):
    print(name, flush=True)
    sys.stdin.readline()
def opened(name):
    f = os.open(name, os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(f, b'before')
    return f
f, g, h = opened('written'), opened('closed'), opened('sub/elsewhere')
step('open')
os.write(f, b'behind')
step('written')
os.close(f)
os.close(g)
os.close(h)
step('closed')
"#;

/// A watch that begins while files are open by the door alone.
#[test]
fn a_watch_that_begins_later_is_told_of_writes_and_closes() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    scene.directory("d/sub");
    let mut program = InSteps::start({
        let mut command = scene.python(Some("--placeholders"), LATER, &directory);
        command.env("TANDEMFS_RUN_AFTER", "0");
        command
    });
    program.reaches("open");
    let group = watching(&[&format!("{directory}/written"), &format!("{directory}/closed")]);
    let of_directory = watching(&[&directory]);
    std::thread::sleep(KNOWN_AFTER);
    program.goes_on();
    program.reaches("written");
    let told = events(&group);
    assert!(has(&told, ReadFlags::MODIFY), "{told:?}");
    let names = |told: &[Event], kind: ReadFlags| {
        let of = told.iter().filter(|(_, kinds, _)| kinds.contains(kind)).map(|(_, _, name)| name.clone());
        of.collect::<Vec<String>>()
    };
    let told = events(&of_directory);
    assert_eq!(names(&told, ReadFlags::MODIFY), ["written"], "{told:?}");
    program.goes_on();
    program.reaches("closed");
    let told = events(&group);
    let closed = told.iter().filter(|(_, kinds, _)| kinds.contains(ReadFlags::CLOSE_WRITE)).count();
    assert_eq!(closed, 2, "each once: {told:?}");
    let told = events(&of_directory);
    assert_eq!(names(&told, ReadFlags::CLOSE_WRITE), ["written", "closed"], "{told:?}");
    program.goes_on();
    let report = program.end();
    // What nobody watches stays the door's.
    assert!(report.lines().any(|line| line.contains("close") && line.contains("door")), "{report}");
    assert_eq!(fs::read(format!("{directory}/written")).expect("read"), b"beforebehind");
    scene.end();
}

const BELOW: &str = r#"
import os, sys
def step(name):
    print(name, flush=True)
    sys.stdin.readline()
d = os.open('sub', os.O_RDONLY | os.O_DIRECTORY)
f = os.open('file', os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=d)
step('open')
os.write(f, b'written')
os.close(f)
step('closed')
os.close(d)
step('done')
"#;

/// Runs [`BELOW`] with a watch of its directory that begins when both are open; what is told of the file, and of the end of the directory.
fn told_of_what_is_below(bug: Option<&str>) -> (Vec<Event>, Vec<Event>) {
    let scene = Scene::new();
    let directory = scene.directory("d");
    scene.directory("d/sub");
    let mut command = scene.python(Some("--placeholders"), BELOW, &directory);
    command.env("TANDEMFS_RUN_AFTER", "0").envs(bug.map(|bug| ("TANDEMFS_RUN_MUTANT", bug)));
    let mut program = InSteps::start(command);
    program.reaches("open");
    let group = watching(&[&format!("{directory}/sub")]);
    std::thread::sleep(KNOWN_AFTER);
    program.goes_on();
    program.reaches("closed");
    let file = events(&group);
    program.goes_on();
    program.reaches("done");
    let ended = events(&group);
    program.goes_on();
    program.end();
    scene.end();
    (file, ended)
}

/// A file that was opened below a directory, while both are open by the door alone: the kernel has to know the directory first.
#[test]
fn a_watch_of_a_directory_that_is_open_by_the_door_is_told_of_files_below() {
    let (file, ended) = told_of_what_is_below(None);
    let of = |kind: ReadFlags| file.iter().any(|(_, kinds, name)| kinds.contains(kind) && name == "file");
    assert!(of(ReadFlags::MODIFY) && of(ReadFlags::CLOSE_WRITE), "{file:?}");
    assert!(has(&ended, ReadFlags::CLOSE_NOWRITE), "{ended:?}");
    let (file, _) = told_of_what_is_below(Some("DirectoryKept"));
    assert!(!has(&file, ReadFlags::MODIFY), "the bug is not there: {file:?}");
}

const AFTERWARDS: &str = r#"
import os, sys
for n in range(20000):
    os.close(os.open('f%d' % (n % 10), os.O_CREAT | os.O_WRONLY, 0o644))
    os.unlink('f%d' % (n % 10))
    if n == 1000:
        print('watched', flush=True)
        sys.stdin.readline()
"#;

/// When nobody watches any more, calls go by the door again.
#[test]
fn the_door_serves_again_when_nobody_watches() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let group = watching(&[&directory]);
    let mut program = InSteps::start(scene.python(Some("--placeholders"), AFTERWARDS, &directory));
    program.reaches("watched");
    let told = events(&group);
    assert!(has(&told, ReadFlags::CREATE) && has(&told, ReadFlags::DELETE), "{} events", told.len());
    drop(group);
    program.goes_on();
    let report = program.end();
    let count = |way: &str| {
        let rows = report.lines().filter(|line| line.contains("unlink") && line.ends_with(way));
        rows.filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum::<u64>()
    };
    assert!(count(WATCHED) > 500 && count("door") > 1000, "{report}");
    scene.end();
}

const ITSELF: &str = r#"
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def opened(name):
    return os.open(name, os.O_CREAT | os.O_WRONLY, 0o644)
for n in range(40):
    os.close(opened('warm')) # connected, by the door
f = opened('open')
group = libc.inotify_init1(os.O_NONBLOCK)
assert group >= 0 and libc.inotify_add_watch(group, b'.', 0xfff) == 1 and libc.inotify_add_watch(group, b'open', 0xfff) == 2
os.write(f, b'at once')
os.close(f)
os.close(opened('new'))
os.unlink('new')
data, kinds = os.read(group, 1 << 16), []
while data:
    wd, mask, cookie, length = struct.unpack_from('iIII', data)
    kinds.append('%d %x %s' % (wd, mask, data[16:16 + length].rstrip(b'\0').decode()))
    data = data[16 + length:]
print('\n'.join(kinds))
"#;

/// A program that watches what it changes itself is told at once.
#[test]
fn a_program_is_told_of_its_own_changes_at_once() {
    let scene = Scene::new();
    let of = |way: Option<&str>| {
        let directory = scene.directory(&format!("of-{}", way.unwrap_or("mount")));
        said(&run(&mut scene.python(way, ITSELF, &directory)))
    };
    let by_mount = of(None);
    // IN_MODIFY of what was open, IN_CREATE of what is new.
    assert!(by_mount.contains("2 2 \n") && by_mount.contains("1 100 new") && by_mount.contains("1 200 new"), "{by_mount}");
    for way in ["--real", "--placeholders"] {
        assert_eq!(of(Some(way)), by_mount, "{way}");
    }
    scene.end();
}

const MARKS: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
FAN_NONBLOCK, FAN_MARK_ADD, FAN_MARK_FILESYSTEM, FAN_MODIFY = 2, 1, 0x100, 2
group = libc.fanotify_init(FAN_NONBLOCK, os.O_RDONLY)
done = libc.fanotify_mark(group, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, ctypes.c_uint64(FAN_MODIFY), -100, sys.argv[1].encode())
assert group >= 0 and done == 0, ctypes.get_errno()
print('watches', flush=True)
sys.stdin.readline()
try:
    data = os.read(group, 1 << 16)
except BlockingIOError:
    data = b''
print(len(data) >= 24, flush=True)
sys.stdin.readline()
"#;

/// A mark of fanotify on the whole file system.
#[test]
fn marks_of_a_whole_file_system_are_told() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    for way in [None, Some("--placeholders")] {
        let mut watcher = Command::new("python3");
        watcher.args(["-c", MARKS, &directory]);
        let mut watcher = InSteps::start(watcher);
        watcher.reaches("watches");
        std::thread::sleep(KNOWN_AFTER);
        let write = "import os\nf = os.open('f', os.O_CREAT | os.O_WRONLY)\nos.write(f, b'bytes')\nprint('done')";
        assert_eq!(said(&run(scene.python(way, write, &directory).env("TANDEMFS_RUN_AFTER", "0"))), "done\n");
        watcher.goes_on();
        watcher.reaches("True");
        watcher.goes_on();
        watcher.end();
    }
    scene.end();
}

/// `tail -f`, which looks by itself on a file system like this one.
#[test]
fn tail_follows_what_grows_by_the_door() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let log = format!("{directory}/log");
    fs::write(&log, "first\n").expect("written");
    let mut tail = start(Command::new("tail").args(["-n", "+1", "-f", &log]).stdout(Stdio::piped())).expect("tail");
    let lines = BufReader::new(tail.stdout.take().expect("a pipe"));
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
    let next = || receiver.recv_timeout(WITHIN).expect("a line");
    assert_eq!(next(), "first");
    let script =
        "import os\nf = os.open('log', os.O_WRONLY | os.O_APPEND)\nfor n in range(3):\n    os.write(f, b'line %d\\n' % n)\nprint('done')";
    assert_eq!(said(&run(scene.python(Some("--placeholders"), script, &directory).env("TANDEMFS_RUN_AFTER", "0"))), "done\n");
    assert_eq!([next(), next(), next()], ["line 0", "line 1", "line 2"]);
    tail.kill().expect("killed");
    tail.wait().expect("ended");
    reader.join().expect("no panic");
    scene.end();
}

/// [PRL17]: a bug by which watched files are changed by the door is found.
#[test]
fn watchers_who_are_not_told_are_found() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let group = watching(&[&directory]);
    let mut command = scene.python(Some("--placeholders"), "import os\nos.mkdir('new')\nprint('done')", &directory);
    assert_eq!(said(&run(command.env("TANDEMFS_RUN_AFTER", "0").env("TANDEMFS_RUN_MUTANT", "WatchersUntold"))), "done\n");
    assert!(Path::new(&directory).join("new").exists() && !has(&events(&group), ReadFlags::CREATE), "the bug is not there");
    scene.end();
}

#[test]
fn nothing_is_told_later_than_the_call_returns() {
    let scene = Scene::new();
    let directory = scene.directory("d");
    let group = watching(&[&directory]);
    std::thread::sleep(KNOWN_AFTER);
    let mut program = InSteps::start({
        let script = "import os, sys\nfor n in range(5):\n    os.mkdir(str(n))\n    print(n, flush=True)\n    sys.stdin.readline()";
        let mut command = scene.python(Some("--placeholders"), script, &directory);
        command.env("TANDEMFS_RUN_AFTER", "0");
        command
    });
    let begun = Instant::now();
    for step in 0..5 {
        program.reaches(&step.to_string());
        assert!(has(&events(&group), ReadFlags::CREATE), "step {step}");
        program.goes_on();
    }
    program.end();
    assert!(begun.elapsed() < WITHIN);
    scene.end();
}
