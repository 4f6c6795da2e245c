//! `vfs` beside the kernel: random operations of random users, once by system calls on a mount and once by `tandemfs-vfs` on a second file
//! system. Errno and result of each call must be the same, and so must the trees: modes, owners, link counts, sizes, which times have
//! changed, in the end also contents, targets and extended attributes.
//!
//! On a strict and on a relaxed mount.
//!
//!     TANDEMFS_SEED=N TANDEMFS_ROUNDS=100 cargo test -p tandemfs --test without_the_kernel
//!
//! Left out is what `vfs` hands to the kernel, which is not called then; and SEEK_DATA and SEEK_HOLE, because where a file has holes depends
//! on how the kernel splits writes into requests.

mod on_mount;
mod on_vfs;
mod operation;
#[path = "../support/mod.rs"]
mod support;
mod tree;
mod user;

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use on_mount::OnMount;
use on_vfs::OnVfs;
use operation::{Operation, SLOTS};
use support::{Place, succeeds};
use tandemfs_crash::{Random, rounds_or, seed_or};
use tandemfs_device::Drive;
use tandemfs_emulator::DeviceOptions;
use tandemfs_fs::{FileSystem, MountOptions};
use tandemfs_vfs::{Settings, Vfs};
use tree::Tree;
use user::{ROOT, USERS, User};

/// What a call returns, as text.
pub type Answer = String;

/// Operations of a round, and after how many the trees are compared.
const OPERATIONS: usize = 1500;
const TREES_AFTER: usize = 12;

/// Type, permissions and size of what a call has found; the size of a directory depends on the hashes of its names.
pub fn entry(mode: u32, size: u64) -> Answer {
    format!("{mode:o} {}", if mode & 0o170_000 == 0o040_000 { 0 } else { size })
}

/// What is written.
pub fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// The names of listxattr(2), in order.
pub fn sorted_names(list: &[u8]) -> Answer {
    let mut names: Vec<_> = list.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    names.sort();
    names.join(" ")
}

fn open(image: &str) -> Arc<FileSystem> {
    let options = DeviceOptions { timing: false, ..DeviceOptions::default() };
    let drive = Drive::new(tandemfs_emulator::open_device(image, &options).expect("opens"));
    Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts"))
}

/// In relaxed mode the kernel keeps times of its own of what it caches. They differ from the daemon's by how long a request takes, and
/// `stat` shows one or the other.
const OWN_TIMES: Duration = Duration::from_millis(40);

/// How far times may differ that are the same. Where a call took longer than the kernel's may be off, times that were set by no call say nothing.
fn tolerance(mode: &str, slowest: Duration) -> i128 {
    match mode {
        "relaxed" if slowest > OWN_TIMES => i128::MAX,
        "relaxed" => OWN_TIMES.as_nanos() as i128,
        _ => 0,
    }
}

/// Waits until the clock of the file systems has gone on, so that a change of a time can be seen.
fn tick(mode: &str) {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let before = now();
    while now() == before {
        std::thread::sleep(Duration::from_micros(500));
    }
    if tolerance(mode, Duration::ZERO) > 0 {
        std::thread::sleep(OWN_TIMES * 3 / 2);
    }
}

/// Both sides, and what was done on them.
struct Sides {
    mode: String,
    mount: OnMount,
    vfs: OnVfs,
    before: (Tree, Tree),
    done: Vec<String>,
    /// Calls that failed on both sides and for different reasons; such a round goes on.
    different: Vec<String>,
    /// Who opened what is open.
    openers: [Option<User>; SLOTS],
    /// The longest that a call on the mount took since the trees were compared.
    slowest: Duration,
}

impl Sides {
    /// linkat(2) with AT_EMPTY_PATH is for the credentials that opened the file, of which each call here has its own: the kernel compares
    /// no numbers.
    fn is_for_the_opener(&self, user: User, operation: &Operation) -> bool {
        matches!(operation, Operation::LinkOpen { slot, .. } if self.openers[*slot] == Some(user))
    }

    fn trees(&self) -> (Tree, Tree) {
        (tree::of_mount(self.mount.root.as_fd()), tree::of_file_system(self.vfs.vfs.file_system(), false))
    }

    /// One operation; says what is different.
    fn step(&mut self, user: User, umask: u16, operation: &Operation) -> Result<(), String> {
        let what = format!("{user:?} umask {umask:o} {operation:?}");
        if self.is_for_the_opener(user, operation) {
            return Ok(());
        }
        let Some(by_vfs) = self.vfs.does(user, umask, operation) else { return Ok(()) };
        let asked = Instant::now();
        let by_mount = self.mount.does(user, umask, operation);
        self.slowest = self.slowest.max(asked.elapsed());
        let is_same = by_mount == by_vfs;
        self.done.push(format!("{what} -> {}", shortened(&by_mount)));
        if let (Operation::Open { slot, .. } | Operation::OpenIn { slot, .. }, Ok(_)) = (operation, &by_mount) {
            self.openers[*slot] = Some(user);
        }
        if is_same {
            return Ok(());
        }
        let difference = format!("{what}\n  mount: {}\n  vfs:   {}", shortened(&by_mount), shortened(&by_vfs));
        if by_mount.is_ok() || by_vfs.is_ok() {
            return Err(difference);
        }
        self.different.push(difference);
        Ok(())
    }

    /// Compares the trees; says what is different.
    fn compare(&mut self) -> Result<(), String> {
        let after = self.trees();
        let tolerance = tolerance(&self.mode, std::mem::take(&mut self.slowest));
        let differences = tree::differences((&self.before.0, &self.before.1), (&after.0, &after.1), tolerance);
        tick(&self.mode);
        self.before = after;
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
    }

    fn failed(&self, seed: u64, what: &str) -> ! {
        let last = &self.done[self.done.len().saturating_sub(2 * TREES_AFTER)..];
        panic!(
            "TANDEMFS_SEED={seed}, {}, operation {}:\n{what}\nafter:\n{}\nand before:\n{}",
            self.mode,
            self.done.len(),
            last.join("\n"),
            self.different.join("\n")
        );
    }
}

fn shortened(result: &Result<Answer, rustix::io::Errno>) -> String {
    format!("{result:?}").chars().take(300).collect()
}

fn round(seed: u64, mode: &str, counts: &mut (usize, usize)) {
    let place = Place::empty();
    let second = place.path("second.image");
    for image in [&place.image(), &second] {
        succeeds(&["device", "create", image, "--profile", "off", "--memory", "64M", "--block", "128M"]);
        succeeds(&["mkfs", image]);
    }
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).expect("changed");
    let mount = place.mount(&format!("{mode},allow_other"));
    let settings = Settings { protected: None, ..Settings::default() };
    let vfs = OnVfs::new(Vfs::new(open(&second), settings));
    let mut sides = Sides {
        mode: mode.into(),
        mount: OnMount::new(mount.root()),
        vfs,
        before: Default::default(),
        done: Vec::new(),
        different: Vec::new(),
        openers: [None; SLOTS],
        slowest: Duration::ZERO,
    };
    let everybody = Operation::ChangeMode { path: ".".into(), mode: 0o1777 };
    sides.step(ROOT, 0, &everybody).unwrap_or_else(|what| sides.failed(seed, &what));
    tick(mode);
    sides.before = sides.trees();

    let mut random = Random::new(seed);
    for number in 0..OPERATIONS {
        let (user, umask) = (*random.pick(&USERS), *random.pick(&[0_u16, 0o022, 0o077, 0o027]));
        let operation = Operation::random(&mut random);
        let compares = number % TREES_AFTER == TREES_AFTER - 1;
        let result = sides.step(user, umask, &operation).and_then(|()| if compares { sides.compare() } else { Ok(()) });
        result.unwrap_or_else(|what| sides.failed(seed, &what));
    }
    if !sides.different.is_empty() {
        sides.failed(seed, "errno differs");
    }
    counts.0 += sides.done.len();
    counts.1 += sides.done.iter().filter(|done| done.contains("-> Ok")).count();

    // Closed here and unmounted: what is left is the same, byte by byte.
    sides.mount.close_all();
    sides.vfs.close_all();
    let Sides { mount: on_mount, vfs: on_vfs, .. } = sides;
    drop(on_mount);
    let right = tree::of_file_system(on_vfs.vfs.file_system(), true);
    on_vfs.vfs.file_system().unmount().expect("unmounts");
    drop(on_vfs);
    mount.unmount();
    let left = tree::of_file_system(&open(&place.image()), true);
    let differences = tree::differences((&left, &right), (&left, &right), 0);
    assert!(differences.is_empty(), "TANDEMFS_SEED={seed}, {mode}, in the end:\n{}", differences.join("\n"));
    place.check();
    succeeds(&["check", &second]);
}

/// The kernel sends such a chown(2) as a SETATTR without fields, as it does before changes of data; the directory then lost the bit
/// (seed 1).
#[test]
fn regression_chown_of_nothing_keeps_set_group_id_of_a_directory() {
    let place = Place::formatted();
    for mode in support::MODES {
        let mount = place.mount(mode);
        let path = mount.path(&format!("directory {mode}"));
        std::fs::create_dir(&path).expect("made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o2775)).expect("changed");
        rustix::fs::chown(&path, None, None).expect("nothing to change");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o2775, "{mode}");
        mount.unmount();
    }
}

fn rounds(mode: &str) {
    if !rustix::process::geteuid().is_root() {
        return println!("not run: only root may act as others");
    }
    let (seed, rounds) = (seed_or(1), rounds_or(2));
    let mut counts = (0, 0);
    for number in 0..rounds {
        round(seed + number, mode, &mut counts);
    }
    println!("TANDEMFS_SEED={seed} TANDEMFS_ROUNDS={rounds}, {mode}: {} operations, {} of them succeeded", counts.0, counts.1);
    assert!(counts.1 * 10 > counts.0, "operations that only fail compare little: {counts:?}");
}

/// The umask belongs to the process, so the modes take turns.
#[test]
fn programs_meet_the_same_rules_with_and_without_the_kernel() {
    rounds("strict");
    rounds("relaxed");
}
