//! Home nodes of processes (`numa.rs`): real processes, a memory zone that is said to lie on several nodes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use tandemfs_crash::{MemoryDevice, check_device, fill};
use tandemfs_device::{Drive, NodeSpec, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, Home, MountOptions, NewInode, NumaReport, WriteOptions, make_file_system};

const MIB: u64 = 1 << 20;
const ZONE: u64 = 64 * MIB;

fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(ZONE, 16 * MIB, PersistenceDomain::Adr));
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts");
    fs.set_home(InodeNumber::ROOT, Home::Memory).expect("has a home");
    fs.unmount().expect("unmounts");
    device
}

/// Nodes without CPUs: no program is bound to one.
fn equal(nodes: u64) -> String {
    (0..nodes).map(|node| format!("{}M:{node}:", (ZONE >> 20) / nodes)).collect::<Vec<_>>().join("/")
}

fn mounted(device: &Arc<MemoryDevice>, nodes: &str, numa: bool) -> FileSystem {
    let nodes = nodes.parse::<NodeSpec>().and_then(|spec| spec.over(ZONE, 2)).expect("nodes");
    let options = MountOptions { numa, ..MountOptions::default() };
    FileSystem::mount(Drive::new(device.clone()).with_nodes(nodes), &options).expect("mounts")
}

/// A process that sleeps until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("sleep(1)"))
    }

    /// A process and its child.
    fn with_child() -> (Self, Other) {
        let mut parent = Command::new("sh");
        parent.args(["-c", "sleep 600 >/dev/null & echo $!; exec sleep 600 >/dev/null"]).stdout(Stdio::piped());
        let mut parent = parent.spawn().expect("sh(1)");
        let mut line = String::new();
        BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        (Self(parent), Other(line.trim().parse().expect("a number")))
    }

    fn number(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A process that somebody else began.
struct Other(u32);

impl Drop for Other {
    fn drop(&mut self) {
        let _ended = Pid::from_raw(self.0.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
    }
}

fn create(fs: &FileSystem, process: u32, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.for_caller(process, || fs.create(InodeNumber::ROOT, name.as_bytes(), &new)).expect("made").inode
}

fn write(fs: &FileSystem, process: u32, file: InodeNumber, offset: u64, bytes: &[u8]) {
    let written = fs.for_caller(process, || fs.write(file, offset, bytes, WriteOptions::default()));
    assert_eq!(written.expect("written"), bytes.len());
}

/// Bytes of a file's extents on each node, as ranges of equal size.
fn on_nodes(fs: &FileSystem, file: InodeNumber, size: u64, nodes: u64) -> Vec<u64> {
    let mut bytes = vec![0; nodes as usize];
    for window in (0..size).step_by(MIB as usize) {
        for extent in fs.lend(file, window).expect("lent") {
            bytes[(extent.device_offset / (ZONE / nodes)) as usize] += extent.bytes;
        }
    }
    bytes
}

fn processes(report: &NumaReport) -> Vec<u64> {
    report.nodes.iter().map(|node| node.processes).collect()
}

/// The node of most free space.
fn freest(fs: &FileSystem) -> usize {
    let nodes = fs.numa().nodes;
    (0..nodes.len()).max_by_key(|node| nodes[*node].free_bytes).expect("a node")
}

#[test]
fn each_process_writes_to_its_home_which_is_the_freest_node() {
    for nodes in [2, 4] {
        let device = device();
        let fs = mounted(&device, &equal(nodes), true);
        let mut programs = Vec::new();
        for round in 0..nodes {
            let process = Sleeper::new();
            let free: Vec<u64> = fs.numa().nodes.iter().map(|node| node.free_bytes).collect();
            let file = create(&fs, process.number(), &format!("file{round}"));
            let size = 4 * MIB + 70_000; // more than any other node has less
            write(&fs, process.number(), file, 0, &fill(round, size as usize));
            (0..8).for_each(|small| write(&fs, process.number(), file, small * 500_000, b"a small one"));
            let found = on_nodes(&fs, file, size, nodes);
            let used: Vec<usize> = (0..nodes as usize).filter(|node| found[*node] > 0).collect();
            assert!(used.len() == 1 && free.iter().all(|other| free[used[0]] + 2 * MIB > *other), "{used:?} of {free:?}");
            programs.push(process);
        }
        let report = fs.numa();
        assert_eq!((report.remote_written_bytes, processes(&report).iter().sum::<u64>()), (0, nodes), "{report:?}");
        assert!(report.local_written_bytes > nodes * 4 * MIB, "{report:?}");
        assert_eq!(report.nodes.iter().map(|node| node.total_bytes).sum::<u64>(), ZONE);
        fs.reset_statistics();
        assert_eq!((fs.numa().local_written_bytes, processes(&fs.numa())), (0, processes(&report)), "counts begin anew, homes stay");
        fs.unmount().expect("unmounts");
        check_device(&device, false).expect("clean");
    }
}

/// With homes no byte is remote; without, those of all processes but the ones are whose home the CPU takes from.
#[test]
fn without_homes_bytes_are_remote() {
    for numa in [true, false] {
        let device = device();
        let fs = mounted(&device, &equal(4), numa);
        let programs: Vec<Sleeper> = (0..4).map(|_| Sleeper::new()).collect(); // they inherit nothing of what follows
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).expect("stays on this CPU");
        for (index, program) in programs.iter().enumerate() {
            let file = create(&fs, program.number(), &format!("file{index}"));
            write(&fs, program.number(), file, 0, &fill(index as u64, 2 * MIB as usize));
            (0..100).for_each(|small| write(&fs, program.number(), file, small * 5000, b"a small one"));
        }
        let report = fs.numa();
        let (all, remote) = (report.local_written_bytes + report.remote_written_bytes, report.remote_written_bytes);
        println!("numa={numa}: {remote} of {all} B remote");
        let most = processes(&report).into_iter().max().expect("a node");
        assert_eq!((report.places, processes(&report).iter().sum::<u64>()), (numa, 4));
        assert!(most <= 2, "{report:?}");
        assert!(all >= 8 * MIB, "{report:?}");
        if numa { assert_eq!(remote, 0) } else { assert!(remote * 5 >= all * (4 - most), "{report:?}") }
    }
}

#[test]
fn children_and_threads_have_the_home_of_the_process() {
    let device = device();
    let fs = mounted(&device, &equal(4), true);
    let (parent, child) = Sleeper::with_child();
    let file = create(&fs, parent.number(), "parent");
    write(&fs, parent.number(), file, 0, &fill(1, 4 * MIB as usize));
    let home = on_nodes(&fs, file, 4 * MIB, 4);
    let file = create(&fs, child.0, "child");
    write(&fs, child.0, file, 0, &fill(1, 4 * MIB as usize));
    assert_eq!(on_nodes(&fs, file, 4 * MIB, 4), home, "although it is not the freest any more");
    let own = std::process::id();
    let file = create(&fs, own, "own");
    write(&fs, own, file, 0, &fill(1, 4 * MIB as usize));
    let home = on_nodes(&fs, file, 4 * MIB, 4);
    let file = create(&fs, own, "thread");
    std::thread::scope(|scope| {
        let write_all = || {
            let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            assert_ne!(thread, own);
            write(&fs, thread, file, 0, &fill(1, 4 * MIB as usize));
        };
        scope.spawn(write_all).join().expect("ended");
    });
    assert_eq!((on_nodes(&fs, file, 4 * MIB, 4), fs.numa().remote_written_bytes), (home, 0));
    assert_eq!(processes(&fs.numa()).iter().sum::<u64>(), 3);
}

#[test]
fn a_full_home_is_left_for_a_new_one() {
    let device = device();
    let fs = mounted(&device, &equal(2), true);
    let process = Sleeper::new();
    let first = freest(&fs);
    let file = create(&fs, process.number(), "file");
    let size = 44 * MIB;
    for piece in 0..44 {
        write(&fs, process.number(), file, piece * MIB, &fill(piece, MIB as usize));
    }
    let (found, report) = (on_nodes(&fs, file, size, 2), fs.numa());
    assert_eq!(found.iter().sum::<u64>(), size, "all of it lies in the memory zone");
    assert!(found[first] > 20 * MIB && found[1 - first] > 10 * MIB, "{found:?}");
    assert_eq!((report.nodes[first].processes, report.nodes[1 - first].processes, report.remote_written_bytes), (0, 1, 0), "{report:?}");
    assert!(report.nodes[first].free_bytes < 2 * MIB, "{report:?}");
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("clean");
}

/// Homes are in host memory alone: after a crash, and on a machine with other nodes, everything is there.
#[test]
fn a_crash_and_other_nodes_change_nothing() {
    let device = device();
    let process = Sleeper::new();
    let content = fill(7, 3 * MIB as usize + 333);
    let mut files = Vec::new();
    for (round, nodes) in ["4", "1", "2M:5:/40M:6:/*:5:", "2"].into_iter().enumerate() {
        let fs = mounted(&device, nodes, round != 3);
        for (file, name) in &files {
            let mut bytes = vec![0; content.len()];
            assert_eq!(fs.read(*file, 0, &mut bytes).expect("read"), content.len());
            assert!(bytes == content, "{name} with nodes {nodes}");
        }
        let name = format!("file{round}");
        let file = create(&fs, process.number(), &name);
        write(&fs, process.number(), file, 0, &content);
        files.push((file, name));
        drop(fs); // as a crash
        check_device(&device, true).expect("recoverable");
    }
    let fs = mounted(&device, "4", true);
    fs.for_caller(0, || fs.write(files[0].0, 5, b"who is that?", WriteOptions::default())).expect("an unknown caller writes too");
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("clean");
}

/// What a write costs for a process that is known, on one node and on four, in turns: `cargo test --profile soak -p tandemfs-fs --test numa
/// costs -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn what_homes_cost() {
    const TURNS: u32 = 20_000;
    let process = Sleeper::new();
    let mounts = ["1", &equal(4)].map(|nodes| {
        let fs = mounted(&device(), nodes, true);
        let file = create(&fs, process.number(), "file");
        write(&fs, process.number(), file, 0, &fill(1, MIB as usize));
        (fs, file)
    });
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..30 {
        for ((fs, file), times) in mounts.iter().zip(&mut times) {
            let start = std::time::Instant::now();
            (0..TURNS).for_each(|turn| write(fs, process.number(), *file, u64::from(turn % 256) * 4096, b"some bytes"));
            times.push(start.elapsed().as_nanos() as u64 / u64::from(TURNS));
        }
    }
    times.iter_mut().for_each(|times| times.sort_unstable());
    println!("ns a write, least and median: one node {} {}, four {} {}", times[0][0], times[0][15], times[1][0], times[1][15]);
}
