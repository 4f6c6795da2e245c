//! `tandemfs trace`: what programs do by the mount and by the direct door is in the file, and nothing else.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Place, eventually, failed, fails, pattern, run, succeeds, tandemfs};
use tandemfs_client::OpenOptions;
use tandemfs_trace::record::set;
use tandemfs_trace::{Door, End, Frame, Known, Operation, Reader, Record};

/// A trace that was read.
struct Trace {
    known: Vec<Known>,
    records: Vec<Record<'static>>,
    end: Option<End>,
}

fn read(path: &str) -> Trace {
    let mut reader = Reader::new(BufReader::new(File::open(path).expect("opens"))).expect("a trace");
    let mut trace = Trace { known: Vec::new(), records: Vec::new(), end: None };
    while let Some(frame) = reader.next_frame().expect("whole") {
        match frame {
            Frame::Tree(known) => trace.known.extend(known),
            Frame::Operations(records) => trace.records.extend(records),
            Frame::End(end) => trace.end = Some(end),
        }
    }
    trace.records.sort_by_key(|record| record.started_ns);
    trace
}

impl Trace {
    fn of(&self, operation: Operation) -> Vec<&Record<'static>> {
        self.records.iter().filter(|record| record.operation == operation).collect()
    }

    fn named(&self, operation: Operation, name: &str) -> &Record<'static> {
        let found = self.of(operation).into_iter().find(|record| *record.name == *name.as_bytes());
        found.unwrap_or_else(|| panic!("no {operation:?} of {name} in {:#?}", self.records))
    }
}

/// A trace that is being recorded by another process.
struct Recording(Child);

impl Recording {
    fn start(mountpoint: &str, file: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
        let child = command.args(["trace", mountpoint, file]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        // The names that are there are written after the recording began.
        eventually("a tree", || fs::metadata(file).is_ok_and(|file| file.len() > 24));
        Self(child)
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("sent");
        let output = {
            let status = self.0.wait().expect("ended");
            let mut said = String::new();
            std::io::Read::read_to_string(self.0.stderr.as_mut().expect("a pipe"), &mut said).expect("read");
            (status, said)
        };
        assert!(output.0.success(), "{output:?}");
    }
}

#[test]
fn what_programs_do_by_the_mount_is_recorded() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    fs::create_dir(mount.path("before")).expect("made");
    fs::write(mount.path("before/file"), pattern(1, 3000)).expect("written");
    let inode = fs::metadata(mount.path("before/file")).expect("there").ino();
    let (mountpoint, file) = (place.mountpoint(), place.path("trace"));
    let script = "cd \"$1\" && mkdir d && printf 12345 > d/new && mv d/new d/moved && ln -s to d/link && rm d/moved && truncate -s 100 before/file \
                  && cat before/file > /dev/null && ! cat absent 2> /dev/null";
    let said = succeeds(&["trace", &mountpoint, &file, "--json", "--", "sh", "-c", script, "sh", &mountpoint]);
    let result: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let trace = read(&file);
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600, "[TRC4]");
    assert_eq!(trace.end, Some(End { recorded: trace.records.len() as u64, dropped: 0 }));
    assert_eq!((result["recorded"].as_u64(), result["dropped"].as_u64()), (Some(trace.records.len() as u64), Some(0)));

    // The tree as it was, with sizes; nothing of what was made later.
    let names: BTreeSet<(&[u8], u64)> = trace.known.iter().map(|known| (known.name.as_slice(), known.size)).collect();
    assert_eq!(names, BTreeSet::from([(b"".as_slice(), 0), (b"before", 0), (b"file", 3000)]));
    assert_eq!(result["names"].as_u64(), Some(3));

    let (directory, made) = (trace.named(Operation::Mkdir, "d"), trace.named(Operation::Create, "new"));
    assert_eq!((directory.inode, made.inode, made.errno), (1, directory.value, 0));
    assert_eq!(directory.mode & 0o777, 0o755);
    let written = trace.of(Operation::Write).into_iter().find(|write| write.inode == made.value).expect("written");
    assert_eq!((written.offset, written.length, written.value, written.door), (0, 5, 5, Door::Mount));
    assert!(written.thread > 0 && written.started_ns > made.started_ns && written.took_ns > 0, "{written:?}");
    let moved = trace.named(Operation::Rename, "new");
    assert_eq!((moved.inode, moved.other, &*moved.other_name), (directory.value, directory.value, b"moved".as_slice()));
    assert_eq!(&*trace.named(Operation::Symlink, "link").other_name, b"to");
    assert_eq!(trace.named(Operation::Unlink, "moved").errno, 0);
    let cut =
        trace.of(Operation::Setattr).into_iter().find(|record| record.inode == inode && record.set & set::SIZE != 0).expect("truncated");
    assert_eq!(cut.length, 100);
    let read = trace.of(Operation::Read).into_iter().find(|record| record.inode == inode).expect("read");
    assert_eq!(read.value, 100);
    assert_eq!(trace.named(Operation::Lookup, "absent").errno, libc::ENOENT.cast_unsigned());
    mount.unmount();
    place.check();
}

#[test]
fn what_a_program_does_by_the_door_is_recorded() {
    let place = Place::formatted();
    let mount = place.mount("strict,direct");
    let (mountpoint, trace_file) = (place.mountpoint(), place.path("trace"));
    let door = tandemfs_client::Mount::connect(mount.root()).expect("let in");
    let recording = Recording::start(&mountpoint, &trace_file);
    let file = OpenOptions::new().read(true).write(true).create(true).open(&door, "by_the_door").expect("made");
    file.write_all_at(&pattern(3, 5000), 77).expect("written");
    let mut back = vec![0; 5000];
    file.read_exact_at(&mut back, 77).expect("read");
    drop(file);
    recording.stop();
    let trace = read(&trace_file);
    let made = trace.named(Operation::Create, "by_the_door");
    let inode = fs::metadata(mount.path("by_the_door")).expect("there").ino();
    assert_eq!((made.door, made.value, made.thread, made.errno), (Door::Direct, inode, std::process::id(), 0));
    let write = trace.of(Operation::Write).into_iter().find(|record| record.door == Door::Direct).expect("written");
    assert_eq!((write.inode, write.offset, write.length, write.value), (inode, 77, 5000, 5000));
    assert!(trace.of(Operation::Release).iter().any(|record| record.inode == inode && record.door == Door::Direct));
    mount.unmount();
}

#[test]
fn a_trace_ends_in_each_way() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let mountpoint = place.mountpoint();
    // By its time.
    succeeds(&["trace", &mountpoint, &place.path("timed"), "--seconds", "0.2"]);
    assert!(read(&place.path("timed")).end.is_some());
    // By the end of a command, whose status it has.
    let output = tandemfs(&["trace", &mountpoint, &place.path("command"), "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(read(&place.path("command")).end.is_some());
    // By a signal; one trace at a time.
    let recording = Recording::start(&mountpoint, &place.path("signalled"));
    fails(1, "being recorded already", &["trace", &mountpoint, &place.path("second"), "--seconds", "0.1"]);
    assert!(!Path::new(&place.path("second")).exists(), "who is refused leaves no file");
    fs::write(mount.path("file"), b"x").expect("written");
    recording.stop();
    assert!(!read(&place.path("signalled")).of(Operation::Create).is_empty());
    // By the end of the mount.
    let mut recording = Recording::start(&mountpoint, &place.path("unmounted"));
    mount.unmount();
    let ended = recording.0.wait().expect("ended");
    assert!(ended.code().is_some());
    assert!(read(&place.path("unmounted")).known.len() <= 2);
}

#[test]
fn a_recorder_that_dies_costs_the_mount_nothing() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let (mountpoint, file) = (place.mountpoint(), place.path("killed"));
    let mut recording = Recording::start(&mountpoint, &file);
    fs::write(mount.path("file"), b"x").expect("written");
    recording.0.kill().expect("killed");
    recording.0.wait().expect("ended");
    let after = place.path("after");
    eventually("the next one may record", || tandemfs(&["trace", &mountpoint, &place.path("next"), "--seconds", "0.1"]).status.success());
    assert!(!Path::new(&after).exists());
    let file = File::create(mount.path("again")).expect("made");
    file.write_all_at(b"more", 0).expect("written");
    drop(file);
    mount.unmount();
    place.check();
}

/// The file may not grow as far as it would, as on a full disk.
#[test]
fn a_command_is_waited_for_also_when_its_trace_fails() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let (mountpoint, file) = (place.mountpoint(), place.path("trace"));
    let script = "cd \"$1\" && for i in $(seq 300); do : > file$i; done; sleep 1; echo done > marker";
    let words = ["trace", &mountpoint, &file, "--", "sh", "-c", script, "sh", &mountpoint];
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 8 && trap '' XFSZ && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tandemfs")]).args(words);
    failed(&run(&mut limited), 1, "the trace is incomplete", "no room for the trace");
    assert_eq!(fs::read_to_string(mount.path("marker")).expect("the command has ended"), "done\n");
    assert!(fs::metadata(&file).expect("there").len() <= 8 * 1024);
    mount.unmount();
}

#[test]
fn what_cannot_be_recorded_is_refused_in_one_sentence() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let (mountpoint, file) = (place.mountpoint(), place.path("file"));
    fs::write(&file, "mine").expect("written");
    fails(1, "exists already", &["trace", &mountpoint, &file]);
    assert_eq!(fs::read(&file).expect("there"), b"mine");
    fails(1, "would record itself", &["trace", &mountpoint, mount.path("trace").to_str().expect("UTF-8")]);
    fails(1, "no TandemFS", &["trace", "/proc", &place.path("trace")]);
    fails(1, "no/such", &["trace", &mountpoint, &place.path("no/such/file")]);
    fails(2, "seconds", &["trace", &mountpoint, &place.path("trace"), "--seconds", "0"]);
    fails(2, "required", &["trace", &mountpoint]);
    let absent = run(Command::new(env!("CARGO_BIN_EXE_tandemfs")).args(["trace", &mountpoint, &place.path("t"), "--", "/no/such/program"]));
    failed(&absent, 1, "/no/such/program", "a program that is not there");
    mount.unmount();
}
