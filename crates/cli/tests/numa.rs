//! Home nodes of processes through real mounts of one memory zone that is said to lie on several nodes.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use support::{Mount, Place, fails, start, succeeds};

const MIB: u64 = 1 << 20;
/// Nodes without CPUs: no program is bound to one.
const NODES: &str = "numa_nodes=64M:0:/*:1:";

/// A shell that runs a command for each line that it gets, and says so.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn new() -> Self {
        let mut command = Command::new("sh");
        let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("sh(1)");
        let (input, output) = (child.stdin.take().expect("a pipe"), BufReader::new(child.stdout.take().expect("a pipe")));
        Self { child, input, output }
    }

    fn run(&mut self, command: &str) {
        writeln!(self.input, "{command}; echo $?").expect("said");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("answered");
        assert_eq!(line, "0\n", "{command}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn numa(mount: &Mount, name: &str) -> u64 {
    mount.stats()["numa"][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", mount.stats()))
}

/// Files, written by two shells and what they run, in turns: bytes by small writes and whole blocks.
fn write_all(mount: &Mount, round: &str) {
    // Not by this process: its children would inherit a home.
    assert!(support::run(Command::new("mkdir").arg(mount.path(round))).status.success());
    succeeds(&["home", "set", "memory", mount.path(round).to_str().expect("UTF-8")]);
    let mut shells = [Shell::new(), Shell::new()];
    for (index, shell) in shells.iter_mut().enumerate() {
        let path = mount.path(round).join(format!("first{index}"));
        shell.run(&format!(": > {}", path.display()));
        // So much that the other node is the freer one: one of them has the fixed parts.
        shell.run(&format!("dd if=/dev/zero of={} bs=1M count=16 conv=fsync status=none", path.display()));
    }
    for file in 0..4 {
        for (index, shell) in shells.iter_mut().enumerate() {
            let path = mount.path(round).join(format!("file{index}.{file}"));
            shell.run(&format!("dd if=/dev/zero of={} bs=1M count=3 conv=fsync status=none", path.display()));
            shell.run(&format!("echo a small one >> {}", path.display()));
        }
    }
}

/// Two programs, in each mode of the mount: with homes nothing is remote. In the mode `relaxed` the kernel does not say for whom
/// it writes pages back, so they go to the home of the process that opened the file.
#[test]
fn two_programs_write_to_two_nodes() {
    for mode in support::MODES {
        let place = Place::formatted();
        let mount = place.mount(&format!("{mode},{NODES}"));
        write_all(&mount, "on");
        let stats = mount.stats();
        let nodes = stats["numa"]["nodes"].as_array().expect("nodes").clone();
        assert_eq!((numa(&mount, "remote_written_bytes"), nodes.len()), (0, 2), "{mode}: {stats}");
        assert!(numa(&mount, "local_written_bytes") >= 24 * MIB, "{mode}: {stats}");
        assert!(nodes.iter().all(|node| node["processes"].as_u64() >= Some(1)), "{mode}: {stats}");
        mount.unmount();
        place.check();
        let mount = place.mount(&format!("{mode},numa=off,{NODES}"));
        let info: serde_json::Value = serde_json::from_str(&succeeds(&["info", &place.mountpoint(), "--json"])).expect("JSON");
        assert_eq!((&info["options"]["numa"], &info["options"]["numa_nodes"]), (&"off".into(), &"64M:0:/*:1:".into()));
        write_all(&mount, "off");
        let (stats, counts) = (mount.stats(), ["local_written_bytes", "remote_written_bytes"].map(|name| numa(&mount, name)));
        println!("{mode} without homes: {} of {} B remote", counts[1], counts[0] + counts[1]);
        assert!(counts[0] + counts[1] >= 24 * MIB, "{mode}: {stats}");
        mount.unmount();
        place.check();
    }
}

/// The direct door knows its clients: what they write goes to their homes.
#[test]
fn clients_of_the_direct_door_have_homes() {
    let place = Place::formatted();
    let mount = place.mount(&format!("direct,{NODES}"));
    succeeds(&["home", "set", "memory", &place.mountpoint()]);
    for index in 0..4 {
        let path = mount.path(&format!("file{index}"));
        let mut program = support::under_run(&place.mountpoint(), &["--placeholders"]);
        let written = program.args(["dd", "if=/dev/zero", "bs=64K", "count=48", "status=none"]).arg(format!("of={}", path.display()));
        assert!(support::run(written).status.success(), "{written:?}");
    }
    let stats = mount.stats();
    assert_eq!(numa(&mount, "remote_written_bytes"), 0, "{stats}");
    assert!(numa(&mount, "local_written_bytes") >= 12 * MIB, "{stats}");
    mount.unmount();
    place.check();
}

#[test]
fn nodes_that_are_not_those_of_the_zone_are_refused() {
    let place = Place::formatted();
    for (nodes, said) in
        [("0", "neither a number"), ("1M:0/*:1", "2 MiB"), ("2M:0:/4M:1:", "memory zone has"), ("2M:60000/*:0", "no node 60000")]
    {
        fails(2, said, &["mount", &place.image(), &place.mountpoint(), "-o", &format!("numa_nodes={nodes}")]);
    }
    fails(2, "numa=few", &["mount", &place.image(), &place.mountpoint(), "-o", "numa=few"]);
    let mount = place.mount("numa_nodes=*:0:0");
    std::fs::write(mount.path("file"), "a small one").expect("written");
    let stats = mount.stats();
    let one = (numa(&mount, "local_written_bytes"), numa(&mount, "remote_written_bytes"), stats["numa"]["nodes"].as_array().map(Vec::len));
    assert_eq!(one, (0, 0, Some(1)), "one node counts nothing: {stats}");
    mount.unmount();
    place.check();
}
