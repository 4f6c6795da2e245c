//! The behaviour tests of `tandemfs-posix` on real mounts, one mount for all of them in each mode.
//!
//! Without the usual harness, which has no place for what comes after the last test: here the mount is taken down and the device checked,
//! also when a test fails; a guardian does it where this program is killed.

mod support;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use support::{Mount, Place, succeeds};
use tandemfs_posix::{Arguments, Difference, Host, run, whole_size};

/// Waits until its standard input ends, which it does with the program that started it; then takes the mount out of the tree. The daemon
/// ends with its mount, and the image is in memory.
const GUARDIAN: &str = r#"cat > /dev/null; umount --lazy "$1" 2>/dev/null; [ ! -e "$2" ] || rm -rf "$2""#;

/// A mount in one mode.
struct Mounted {
    mode: &'static str,
    name: &'static str,
    place: Place,
    root: PathBuf,
    mount: RefCell<Option<Mount>>,
    guardian: Child,
}

impl Mounted {
    fn new(mode: &'static str, name: &'static str) -> Self {
        let place = Place::empty();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("changed");
        let (memory, block) = if whole_size() { ("4G", "16G") } else { ("256M", "1G") };
        succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", memory, "--block", block]);
        succeeds(&["mkfs", &place.image()]);
        let mut guardian = Command::new("sh");
        guardian.args(["-c", GUARDIAN, "guardian", &place.mountpoint(), &place.path("")]).stdin(Stdio::piped()).process_group(0);
        let guardian = guardian.spawn().expect("a shell");
        let root = place.mountpoint().into();
        let mounted = Self { mode, name, place, root, mount: RefCell::new(None), guardian };
        mounted.mount("");
        mounted
    }

    fn mount(&self, options: &str) {
        let mount = self.place.mount(&format!("allow_other,{}{}{options}", self.mode, if options.is_empty() { "" } else { "," }));
        *self.mount.borrow_mut() = Some(mount);
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

impl Host for Mounted {
    fn name(&self) -> &str {
        self.name
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn differs(&self, difference: Difference) -> bool {
        match difference {
            Difference::HolesAreData | Difference::TimesOutOfRange => self.mode == "relaxed",
            _ => true,
        }
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

    fn can_crash(&self) -> bool {
        true
    }

    fn crash(&self) {
        self.take().expect("mounted").kill();
        self.mount("");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.mount.borrow_mut().take());
        // Its input ends, and it finds nothing to do but the directory.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let modes = [("relaxed", "relaxed"), ("strict", "strict"), ("strict,atomic", "atomic")];
    if arguments.lists(&modes.map(|(_, name)| name)) {
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("behaviour tests: not run, only root may act as others and make devices");
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (mode, name) in modes {
        if arguments.wants_any(name) {
            let mounted = Mounted::new(mode, name);
            failed += run(&mounted, &arguments);
            mounted.end();
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
