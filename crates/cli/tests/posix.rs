//! The behaviour tests of `tandemfs-posix` on real mounts, one mount for all tests of each mode, and by the door of two more, in a
//! process of their own under `tandemfs run`, without and with placeholders, and where asked for with memory of the drive.
//!
//! Without the standard harness, which has no hook after the last test: this program unmounts and checks the device, also when a test
//! fails; a guardian process unmounts if this program is killed.
//!
//! Every mode, both ways of requests and drives without blocks always run. The other combinations of these run by name (`cargo test --test
//! posix -- atomic-ring`) and with `TANDEMFS_EVERYTHING=1`, as in continuous integration.

mod support;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use support::parameters::Parameter;
use support::{Mount, Place, succeeds};
use tandemfs_posix::{Arguments, Difference, Guardian, Host, Memory, run, whole_size};

/// What the mounts may take for metadata.
const MEMORY_OPTION_BYTES: u64 = 128 << 20;
/// What a daemon takes beside that: stacks and buffers of its threads, the allocation maps, what the kernel holds (a number each), metadata
/// that is committed and not yet home.
const MEMORY_BESIDE_BYTES: u64 = 64 << 20;

/// A mount in one mode.
struct Mounted {
    mode: &'static str,
    name: &'static str,
    /// Whether requests come over io_uring; as this machine has it where nothing is said.
    ring: Option<bool>,
    root: PathBuf,
    // In this order they go: the mount, who guards it, the device.
    mount: RefCell<Option<Mount>>,
    _guardian: Guardian,
    place: Place,
}

impl Mounted {
    /// `has_blocks`: else all files lie in the memory zone.
    fn new(mode: &'static str, name: &'static str, ring: Option<bool>, has_blocks: bool) -> Self {
        // Whole sizes do not fit into memory.
        let place = if whole_size() { Place::empty_in(&std::env::temp_dir()) } else { Place::empty() };
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("changed");
        let (memory, block) = match (has_blocks, whole_size()) {
            (true, true) => ("4G", "16G"),
            (true, false) => ("256M", "1G"),
            (false, true) => ("20G", "0"),
            (false, false) => ("1280M", "0"),
        };
        succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", memory, "--block", block]);
        succeeds(&["mkfs", &place.image()]);
        let guardian = Guardian::new(place.mountpoint().as_ref(), place.path("").as_ref());
        let root = place.mountpoint().into();
        let mounted = Self { mode, name, ring, place, root, mount: RefCell::new(None), _guardian: guardian };
        mounted.mount("");
        mounted
    }

    fn mount(&self, options: &str) {
        let memory = format!("memory={}M", MEMORY_OPTION_BYTES >> 20);
        let _set = self.ring.map(Parameter::over_io_uring);
        let mount = self.place.mount(&format!("allow_other,{memory},{}{}{options}", self.mode, if options.is_empty() { "" } else { "," }));
        *self.mount.borrow_mut() = Some(mount);
    }

    /// Holds what the mount says of itself against what was asked for.
    fn comes_over(&self, ring: bool) {
        let info: serde_json::Value = serde_json::from_str(&succeeds(&["info", "--json", &self.place.mountpoint()])).expect("JSON");
        assert_eq!(info["requests_over"], if ring { "io_uring" } else { "device" });
    }

    /// None where a remount failed before.
    fn take(&self) -> Option<Mount> {
        self.mount.borrow_mut().take()
    }

    /// Unmounts and checks what is left.
    fn end(self) {
        self.take().expect("mounted").unmount();
        self.place.check();
    }
}

/// Whether mounts in a mode differ from ext4.
fn differs(mode: &str, difference: Difference) -> bool {
    match difference {
        Difference::HolesAreData | Difference::TimesOutOfRange | Difference::StoredBehindTheEnd | Difference::CachedWritesMayNotFit => {
            mode == "relaxed"
        }
        Difference::StoredBehindTheEndInThePage | Difference::RefusedBytesAreLoaded => matches!(mode, "strict" | DOOR_MODE),
        Difference::NoAppendIgnored | Difference::WatchesNoticedLater => mode == DOOR_MODE,
        _ => true,
    }
}

/// The mode of a mount with a door, and what its tests are called.
const DOOR_MODE: &str = "strict,direct";
const DOOR: &str = "door";
/// The same, with regular files that are the door's alone.
const PLACEHOLDERS: &str = "placeholders";
/// The same, with files in memory that is lent for stores (not by default).
const STORES: &str = "lending";
const STORES_MODE: &str = "relaxed,direct=54321,direct_stores=54321";
/// Names that mount to the process that runs the tests by its door, and says what they are called.
const UNDER: &str = "TANDEMFS_TEST_UNDER";
const UNDER_NAME: &str = "TANDEMFS_TEST_UNDER_NAME";

/// A mount of another process, in front of whose door this one is: `tandemfs run` has started it.
struct ByDoor {
    root: PathBuf,
    name: &'static str,
}

impl Host for ByDoor {
    fn name(&self) -> &str {
        self.name
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn differs(&self, difference: Difference) -> bool {
        differs(DOOR_MODE, difference)
    }
}

/// Runs the tests once more, by the door; whether all passed, and calls went by it.
fn passes_by_door(name: &'static str) -> bool {
    let (mode, way) = match name {
        STORES => (STORES_MODE, &["--report", "--stores"][..]),
        PLACEHOLDERS => (DOOR_MODE, &["--report", "--placeholders"][..]),
        _ => (DOOR_MODE, &["--report", "--real"][..]),
    };
    let mounted = Mounted::new(mode, name, None, name != STORES);
    let mut command = support::under_run(&mounted.root.to_string_lossy(), way);
    command.arg(std::env::current_exe().expect("this program")).args(std::env::args_os().skip(1));
    command.env(UNDER, &mounted.root).env(UNDER_NAME, name);
    if name != DOOR {
        // This program has system calls of its own (rustix), which would keep it from placeholders; what the tests open by libc they use by libc.
        command.env("TANDEMFS_RUN_MUTANT", "OwnCallsNotSought");
    }
    let output = command.stderr(std::process::Stdio::piped()).spawn().and_then(std::process::Child::wait_with_output).expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    eprintln!("{said}");
    mounted.end();
    let call = if name != DOOR { "tandemfs: open " } else { "tandemfs: " };
    let went = said.lines().any(|line| line.starts_with(call) && line.ends_with("  door"));
    let kept = said.lines().any(|line| line.contains("calls the kernel past libc"));
    output.status.success() && went && !kept
}

impl Host for Mounted {
    fn name(&self) -> &str {
        self.name
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn differs(&self, difference: Difference) -> bool {
        differs(self.mode, difference)
    }

    fn can_remount(&self) -> bool {
        true
    }

    fn remount(&self, options: &str) {
        if let Some(mount) = self.take() {
            mount.unmount();
        }
        self.mount(options);
    }

    fn can_map_ids(&self) -> bool {
        support::maps_ids()
    }

    /// The image is a mapped file, which is not counted.
    fn memory(&self) -> Option<Memory> {
        let process_id = self.mount.borrow().as_ref()?.process_id();
        let status = fs::read_to_string(format!("/proc/{}/status", process_id.as_raw_nonzero())).ok()?;
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        let resident_bytes = anonymous.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10;
        Some(Memory { resident_bytes, resident_bytes_max: MEMORY_OPTION_BYTES + MEMORY_BESIDE_BYTES })
    }

    fn can_crash(&self) -> bool {
        true
    }

    fn crash(&self) {
        self.take().expect("mounted").kill();
        self.mount("");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    // Mode, name, whether requests come over io_uring, whether the drive has a block path, and whether it always runs.
    let modes = [
        ("relaxed", "relaxed", false, true, true),
        ("strict", "strict", false, true, true),
        ("strict,atomic", "atomic", false, true, true),
        ("relaxed", "relaxed-ring", true, true, false),
        ("strict", "strict-ring", true, true, true),
        ("strict,atomic", "atomic-ring", true, true, false),
        ("relaxed", "relaxed-memory", false, false, true),
        ("strict", "strict-memory", false, false, false),
    ];
    let everything = std::env::var_os("TANDEMFS_EVERYTHING").is_some();
    let names: Vec<&str> = modes.iter().map(|(_, name, ..)| *name).chain([DOOR, PLACEHOLDERS, STORES]).collect();
    if arguments.lists(&names) {
        return ExitCode::SUCCESS;
    }
    if let Some(root) = std::env::var_os(UNDER) {
        let told = std::env::var_os(UNDER_NAME).unwrap_or_default();
        let name = [PLACEHOLDERS, STORES].into_iter().find(|name| told == *name).unwrap_or(DOOR);
        return if run(&ByDoor { root: root.into(), name }, &arguments) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if !rustix::process::geteuid().is_root() {
        println!("behaviour tests: not run, only root may act as others and make devices");
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (mode, name, ring, has_blocks, always) in modes {
        if !(always || everything || arguments.names(name)) {
            println!("{name}: not run without TANDEMFS_EVERYTHING=1");
        } else if arguments.wants_any(name) {
            if ring && Parameter::over_io_uring(true).is_none() {
                println!("{name}: not run, this kernel has no FUSE over io_uring");
                continue;
            }
            let mounted = Mounted::new(mode, name, Some(ring), has_blocks);
            mounted.comes_over(ring);
            failed += run(&mounted, &arguments);
            mounted.end();
        }
    }
    for name in [DOOR, PLACEHOLDERS, STORES] {
        if name == STORES && !(everything || arguments.names(name)) {
            println!("{name}: not run without TANDEMFS_EVERYTHING=1");
        } else if arguments.wants_any(name) && !passes_by_door(name) {
            failed += 1;
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
