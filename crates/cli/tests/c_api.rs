//! `libtandemfs` and `tandemfs.h` on real mounts: C programs (`c_api/client.c`, and the example of `crates/c-api`), compiled here. As root: the daemon
//! must see who its clients are.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{Mount, Place, run, succeeds};

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../c-api/include");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../c-api/examples/notes.c");
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c_api/client.c");
/// For programs that include the header.
const STRICT: [&str; 4] = ["-std=c99", "-pedantic", "-Wall", "-Wextra"];
const CONNECTION_REFUSED: i32 = 111;

/// The library, where tests find it.
fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    tests.parent().expect("a directory").join("libtandemfs.so")
}

/// Compiles a program as a user would.
fn compiled(place: &Place, source: &str) -> String {
    let (program, library) = (place.path("program"), library());
    // What it is called when a program runs, as it is installed.
    let _is_linked = std::os::unix::fs::symlink(&library, place.path("libtandemfs.so.0"));
    let mut compiler = Command::new("cc");
    compiler.args(STRICT).args(["-O1", "-pthread", "-I", HEADER, "-o", &program, source, "-L"]);
    compiler.arg(library.parent().expect("a directory")).arg("-ltandemfs").arg(format!("-Wl,-rpath,{}", place.path("")));
    said(&run(&mut compiler), source);
    program
}

/// What a program printed; it must have succeeded.
#[track_caller]
fn said(output: &Output, what: &str) -> String {
    let printed = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert!(output.status.success(), "{what}: {} {printed}{}", output.status, String::from_utf8_lossy(&output.stderr));
    printed
}

/// A mount with a door, and the program `c_api/client.c`.
fn scene() -> (Place, Mount, String) {
    let place = Place::formatted();
    let mount = place.mount("direct,strict");
    let client = compiled(&place, CLIENT);
    (place, mount, client)
}

fn part(client: &str, part: &str, root: &Path) -> Command {
    let mut command = Command::new(client);
    command.arg(part).arg(root);
    command
}

#[test]
fn the_example_keeps_notes_on_a_mount() {
    let place = Place::formatted();
    let notes = compiled(&place, EXAMPLE);
    for mode in ["direct,strict", "direct,relaxed"] {
        let mount = place.mount(mode);
        let first = said(&run(Command::new(&notes).arg(mount.root())), "notes");
        assert!(first.starts_with("milk\nbread\n") && first.contains("list is inode ") && first.contains("No such file"), "{first}");
        assert_eq!(fs::read_to_string(mount.path("notes/list")).expect("there"), "milk\nbread\n");
        fs::write(mount.path("notes/nothing"), "by the mount").expect("written");
        let second = said(&run(Command::new(&notes).arg(mount.root())), "notes");
        assert!(second.starts_with("milk\nbread\nmilk\nbread\n") && second.ends_with("12 bytes\n"), "{second}");
        fs::remove_dir_all(mount.path("notes")).expect("removed");
        mount.unmount();
        place.check();
    }
    let output = run(Command::new(&notes).arg(place.mountpoint()));
    assert!(output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("no TandemFS is mounted"), "{output:?}");
}

#[test]
fn the_header_is_for_c_and_for_cpp() {
    let place = Place::empty();
    let include = place.path("include.c");
    fs::write(&include, "#include <tandemfs.h>\n#include <tandemfs.h>\n").expect("written");
    for standard in ["c99", "c11", "c17"] {
        let mut compiler = Command::new("cc");
        compiler.args(["-fsyntax-only", "-pedantic", "-Wall", "-Wextra", "-Werror", &format!("-std={standard}"), "-I", HEADER, &include]);
        said(&run(&mut compiler), standard);
    }
    match Command::new("c++").args(["-x", "c++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", HEADER, &include]).output() {
        Ok(output) => drop(said(&output, "c++")),
        Err(error) => println!("not tried as C++: {error}"),
    }
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let header = fs::read_to_string(Path::new(HEADER).join("tandemfs.h")).expect("there");
    let without_comments: String = header.split("/*").filter_map(|part| part.split_once("*/")).map(|(_, code)| code).collect();
    let words = without_comments.split(|character: char| !character.is_alphanumeric() && !"_(".contains(character));
    let mut declared: Vec<&str> = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name).collect();
    let symbols = said(&run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library())), "nm");
    let mut exported: Vec<&str> = symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    declared.sort_unstable();
    exported.sort_unstable();
    assert!(declared.len() > 30 && declared.iter().all(|name| name.starts_with("tandemfs_")), "{declared:?}");
    assert_eq!(exported, declared);
    let dynamic = said(&run(Command::new("objdump").arg("-p").arg(library())), "objdump");
    let name = dynamic.lines().find_map(|line| line.trim().strip_prefix("SONAME")).map(str::trim);
    assert_eq!(name, Some("libtandemfs.so.0"), "what `docs/ADMINISTRATION.md` installs");
}

#[test]
fn calls_do_and_say_what_system_calls_do_and_say() {
    let (place, mount, client) = scene();
    for name in ["names", "bytes", "listing", "nulls", "failures", "threads", "forks"] {
        said(&run(&mut part(&client, name, mount.root())), name);
    }
    mount.unmount();
    place.check();
}

#[test]
fn memory_that_is_lent_is_mapped_and_stored_to() {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    let client = compiled(&place, CLIENT);
    said(&run(&mut part(&client, "maps", mount.root())), "maps");
    mount.unmount();
    succeeds(&["check", &device]);
}

/// Which errno is which refusal stands in the header.
#[test]
fn a_connection_that_is_refused_says_why() {
    const NOT_MOUNTED: i32 = 19;
    const NOT_A_ROOT: i32 = 22;
    const NOT_THERE: i32 = 2;
    const BY_THE_MOUNT: i32 = 66;
    let place = Place::formatted();
    let client = compiled(&place, CLIENT);
    let refused = |at: &Path, errno: i32| said(&run(part(&client, "refused", at).arg(errno.to_string())), "refused");
    assert!(refused(place.path("").as_ref(), NOT_MOUNTED).contains("no TandemFS is mounted there"));
    let mount = place.mount("strict");
    assert!(refused(mount.root(), CONNECTION_REFUSED).contains("it needs -o direct"));
    mount.unmount();
    let mount = place.mount("direct,strict");
    fs::create_dir(mount.path("below")).expect("made");
    assert!(refused(&mount.path("below"), NOT_A_ROOT).contains("not the root of a mount"));
    refused(&mount.path("none"), NOT_THERE);
    if rustix::process::geteuid().is_root() {
        let part = PathBuf::from(place.path("part"));
        fs::create_dir(&part).expect("made");
        rustix::mount::mount_bind(mount.path("below"), &part).expect("bound");
        let sentence = refused(&part, BY_THE_MOUNT);
        rustix::mount::unmount(&part, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
        assert!(sentence.trim_end().ends_with("; use the mount"), "{sentence}");
    }
    mount.unmount();
}

#[test]
fn a_daemon_that_is_killed_is_an_errno() {
    let (_place, mount, client) = scene();
    let mut child = part(&client, "daemon_ends", mount.root()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    assert_eq!(line, "ready\n");
    mount.kill();
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    let wrong: Vec<_> = output.lines().collect();
    let status = child.wait().expect("ended");
    assert!(status.success(), "{status} {wrong:?}");
}

/// Each of `mutant.rs` of `crates/c-api` that does not meet its unit test.
#[test]
fn deliberate_bugs_are_found() {
    let (_place, mount, client) = scene();
    for (name, bug) in
        [("nulls", "NullIsEmpty"), ("forks", "ForkForgotten"), ("failures", "CrossedUnsaid"), ("failures", "ClearedOnFailure")]
    {
        let output = run(part(&client, name, mount.root()).env("TANDEMFS_C_MUTANT", bug));
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("no such bug"), "{bug}");
        assert!(output.status.signal().is_some() || printed.starts_with("line "), "{bug} escaped: {} {printed}", output.status);
        println!("{bug}: {} {}", output.status, printed.trim());
        for made in ["f", "absolute", "pipe"] {
            let _is_there = fs::remove_file(mount.path(made));
        }
    }
    mount.unmount();
}
