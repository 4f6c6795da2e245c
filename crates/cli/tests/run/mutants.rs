//! A deliberate bug for each rule of `crates/preload`, and a part of `client.c` that finds it (`docs/TESTING.md`).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Scene, by_door, report, said};
use crate::support::{WITHIN, run, start};

/// Longer than any part takes.
const SECONDS: &str = "60";
/// How long a file that nobody holds is watched with a bug that keeps it.
const KEPT_FOR: Duration = Duration::from_secs(4);
/// A program waits for the daemon if it was found to wait so many times.
const LOOKS: usize = 20;

/// What a part of the client says by the door of a process with a bug; the error is what is wrong with it.
fn part_with(scene: &Scene, part: &str, bug: &str) -> Result<(), String> {
    part_under(scene, part, bug, &["--report", "--real"])
}

/// As [`part_with`], with options of `tandemfs run`.
fn part_under(scene: &Scene, part: &str, bug: &str, options: &[&str]) -> Result<(), String> {
    part_with_environment(scene, part, bug, options, &[])
}

/// What a command says until it ends. Then its process group, of which `timeout` makes it the leader, is killed: a child that a bug left waiting would keep
/// the pipes open for ever.
fn run_alone(command: &mut Command) -> std::process::Output {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).expect("read");
            bytes
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("a pipe")));
    let stderr = read(Box::new(child.stderr.take().expect("a pipe")));
    let group = rustix::process::Pid::from_child(&child);
    let status = child.wait().expect("ended");
    let _nobody_left = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    std::process::Output { status, stdout: stdout.join().expect("no panic"), stderr: stderr.join().expect("no panic") }
}

fn part_with_environment(scene: &Scene, part: &str, bug: &str, options: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    let (first, second) = (scene.directory(&format!("{part}-mount-{bug}")), scene.directory(&format!("{part}-door-{bug}")));
    let mount = said(&run(Command::new(&scene.client).args([part, &first]).envs(variables.iter().copied())), part);
    let mut command = scene.under(options);
    // Killed with all its children: one that the bug left waiting takes no other signal, and who reads its output would wait for it.
    let killed_late = ["timeout", "-s", "KILL", SECONDS];
    command.envs(variables.iter().copied()).env("TANDEMFS_RUN_MUTANT", bug).args(killed_late);
    let output = run_alone(command.args([&scene.client, part, &second]));
    let (door, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!errors.contains("no such bug"), "{errors}");
    let report = report(&output);
    let ways = |word: &str| report.iter().filter(|((_, way), _)| way.contains(word)).map(|(_, count)| count).sum::<u64>();
    match () {
        () if !output.status.success() => Err(format!("{}: {}", output.status, door.lines().last().unwrap_or_default())),
        () if door != mount => {
            let lines = mount.lines().zip(door.lines()).find(|(mount, door)| mount != door);
            Err(format!("{:?}", lines.unwrap_or_default()))
        }
        () if part == "forks" && ways("another process") == 0 => Err("all processes used the connection".into()),
        // One thread never has to wait for a slot, and a connection that nobody closes does not end.
        () if part == "signals" && ways("as many threads") > 0 => Err("a slot was lost".into()),
        () if part == "closes" && by_door(&report, "mkdir") != 6 => Err(format!("{report:?}")),
        () => Ok(()),
    }
}

/// Whether the space of a file comes back that others remove when the program has closed it.
fn gives_back_with(scene: &Scene, bug: &str) -> Result<(), String> {
    let directory = scene.directory(&format!("gives_back-{bug}"));
    let mut command = scene.under(&["--real"]);
    command.env("TANDEMFS_RUN_MUTANT", bug).args([&scene.client, "gives_back", &directory]);
    let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("run");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    assert_eq!(line, "closed\n");
    let free = || rustix::fs::statvfs(scene.mount.root()).expect("there").f_ffree;
    let before = free();
    fs::remove_file(format!("{directory}/file")).expect("removed");
    let (start, within) = (Instant::now(), if bug.is_empty() { WITHIN } else { KEPT_FOR });
    while free() <= before && start.elapsed() < within {
        std::thread::sleep(Duration::from_millis(20));
    }
    let is_back = free() > before;
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    assert!(child.wait().expect("ended").success());
    if is_back { Ok(()) } else { Err("the file is still there".into()) }
}

/// Whether a path is asked for anew when something was mounted at the mountpoint.
fn covered_with(scene: &Scene, bug: &str) -> Result<(), String> {
    let script = "cd /; touch $0/seen; test -e $0/seen || exit 3; mount -t tmpfs tmpfs $0 || exit 4; test -e $0/seen; found=$?; umount $0; rm $0/seen; exit $found";
    let mountpoint = scene.place.mountpoint();
    let status = run(scene.under(&[]).env("TANDEMFS_RUN_MUTANT", bug).args(["sh", "-c", script, &mountpoint])).status;
    match status.code() {
        Some(1) => Ok(()),
        Some(0) => Err("what is covered is seen".into()),
        _ => panic!("{status}"),
    }
}

fn is_caught(bug: &str, with: impl Fn(&Scene, &str) -> Result<(), String>) {
    let scene = Scene::new();
    assert_eq!(with(&scene, ""), Ok(()), "without a bug");
    match with(&scene, bug) {
        Err(what) => println!("{bug}: {what}"),
        Ok(()) => panic!("{bug} escaped"),
    }
    scene.end();
}

fn is_caught_by(bug: &str, part: &str) {
    is_caught(bug, |scene, bug| part_with(scene, part, bug));
}

#[test]
fn a_mountpoint_that_is_remembered_is_caught() {
    is_caught("MountpointRemembered", covered_with);
}

#[test]
fn a_working_directory_that_is_remembered_is_caught() {
    is_caught_by("DirectoryRemembered", "calls");
}

#[test]
fn ids_that_are_remembered_are_caught() {
    is_caught_by("IdsRemembered", "ids");
}

#[test]
fn answers_that_outlive_the_ids_are_caught() {
    is_caught_with_placeholders("AnswersKept", "ids");
}

#[test]
fn a_connection_of_another_process_is_caught() {
    is_caught_by("ProcessNotAsked", "forks");
}

#[test]
fn signals_that_are_taken_inside_are_caught() {
    is_caught_by("SignalsTaken", "signals");
}

#[test]
fn closed_descriptors_of_the_connection_are_caught() {
    is_caught_by("OursClosed", "closes");
}

#[test]
fn a_number_that_is_remembered_is_caught() {
    is_caught_by("NumberRemembered", "numbers");
}

#[test]
fn a_file_that_is_opened_by_a_name_alone_is_caught() {
    is_caught_by("OpenedNotCompared", "numbers");
}

#[test]
fn access_that_is_not_asked_for_is_caught() {
    is_caught_by("AccessNotAsked", "data");
}

#[test]
fn appends_that_are_not_seen_are_caught() {
    is_caught_by("AppendNotAsked", "data");
}

#[test]
fn growth_that_the_kernel_does_not_know_is_caught() {
    is_caught_by("GrowsByDoor", "data");
}

#[test]
fn files_that_are_kept_behind_their_close_are_caught() {
    is_caught("KeptBehindClose", gives_back_with);
}

fn is_caught_with_placeholders(bug: &str, part: &str) {
    is_caught(bug, |scene, bug| part_under(scene, part, bug, &["--report", "--placeholders"]));
}

#[test]
fn a_number_that_is_no_placeholder_any_more_is_caught() {
    is_caught_with_placeholders("PlaceholderNotAsked", "files");
}

#[test]
fn placeholders_of_children_are_caught() {
    is_caught_with_placeholders("ForkedPlaceholders", "inherits");
}

#[test]
fn lost_offsets_are_caught() {
    is_caught_with_placeholders("OffsetLost", "inherits");
}

#[test]
fn long_appends_that_are_divided_are_caught() {
    // Threads have to meet between the parts of a write, which they do most times.
    let caught_at_last = |scene: &Scene, bug: &str| {
        let rounds = if bug.is_empty() { 1 } else { 20 };
        (0..rounds).try_for_each(|_| part_under(scene, "appended", bug, &["--report", "--placeholders"]))
    };
    is_caught("LongAppendsDivided", caught_at_last);
}

#[test]
fn streams_that_begin_anew_are_caught() {
    is_caught_with_placeholders("StreamRestarted", "directories");
}

#[test]
fn numbers_that_stay_placeholders_alone_are_caught() {
    is_caught_with_placeholders("SharedKept", "directories");
}

#[test]
fn a_file_that_goes_both_ways_is_caught() {
    is_caught_with_placeholders("BothWays", "files");
}

#[test]
fn opens_under_way_that_nobody_meets_are_caught() {
    is_caught_with_placeholders("OpensNotMet", "locks_met");
    is_caught_with_placeholders("OpensNotMet", "ends_met");
}

#[test]
fn descriptors_that_are_mixed_up_are_caught() {
    is_caught_with_placeholders("UnsharedNotLeft", "unshared");
}

#[test]
fn functions_of_libc_that_meet_placeholders_are_caught() {
    is_caught_with_placeholders("LibcLoaded", "by_handle");
}

#[test]
fn functions_that_are_looked_up_late_are_caught() {
    is_caught("LookedUpLate", |scene, bug| {
        let library = super::library(scene, "waits");
        part_with_environment(scene, "constructs", bug, &["--report", "--placeholders"], &[("WAITS", &library)])
    });
}

#[test]
fn a_program_that_is_written_while_it_runs_is_caught() {
    is_caught_with_placeholders("ProgramsWritten", "programs");
}

/// Code that calls the kernel past libc: of a library that is loaded when files are open, while no others are opened.
fn own_calls_with(scene: &Scene, bug: &str) -> Result<(), String> {
    let library = super::own_calls_library(scene);
    part_with_environment(scene, "own_calls", bug, &["--report", "--placeholders"], &[("OWN_CALLS", &library), ("QUIET", "1")])
}

#[test]
fn code_that_is_not_looked_through_is_caught() {
    is_caught("OwnCallsNotSought", own_calls_with);
}

#[test]
fn code_that_comes_later_and_is_not_looked_through_is_caught() {
    is_caught("LoadedNotSought", own_calls_with);
}

#[test]
fn code_that_meets_placeholders_is_caught() {
    is_caught("LoadedAmongPlaceholders", own_calls_with);
}

#[test]
fn a_fork_from_inside_is_caught() {
    is_caught_by("ForkInside", "forks");
}

/// A directory is made by the door of a stopped daemon, which is killed when the mount is gone from its place. Who makes the call again makes
/// it there.
fn once_with(scene: &Scene, bug: &str) -> Result<(), String> {
    let directory = scene.directory(&format!("once-{bug}"));
    let mut command = scene.under(&[]);
    command.env("TANDEMFS_RUN_MUTANT", bug).args([&scene.client, "once", &directory]);
    let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("run");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    assert_eq!(line, "ready\n");
    scene.mount.stop();
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    let mut looks = 0;
    let wait = format!("/proc/{}/wchan", child.id());
    while looks < LOOKS {
        let waits = fs::read_to_string(&wait).expect("there").contains("futex");
        looks = if waits { looks + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::mount::unmount(scene.mount.root(), rustix::mount::UnmountFlags::DETACH).expect("detached");
    fs::create_dir(&directory).expect("below the mount");
    scene.mount.signal(rustix::process::Signal::KILL);
    line.clear();
    output.read_line(&mut line).expect("read");
    assert!(child.wait().expect("ended").success());
    let is_there = fs::exists(format!("{directory}/made")).expect("asked");
    fs::remove_dir_all(&directory).expect("removed");
    let refused = line.ends_with(&format!("= -1, {}\n", libc::ENOTCONN));
    if refused && !is_there { Ok(()) } else { Err(format!("{line}, made: {is_there}")) }
}

#[test]
fn a_change_that_is_made_again_is_caught() {
    assert_eq!(once_with(&Scene::new(), ""), Ok(()), "without a bug");
    let caught = once_with(&Scene::new(), "ChangeRepeated");
    assert!(caught.is_err(), "ChangeRepeated escaped");
}
