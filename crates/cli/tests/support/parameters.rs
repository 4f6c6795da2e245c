//! Parameters of the kernel that a mount takes when it is made. They are the same for all of the machine: who mounts by a value of its own has the
//! parameter alone for so long and puts it back, and whoever else mounts has it together with others, so that nobody mounts by another's value.
//! That holds between tests of this process and between those of all programs, which lock the parameter's file.

use std::cell::RefCell;
use std::fs::{self, File};

const IO_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

thread_local! {
    /// Those that this thread has set.
    static SET: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// A parameter that is set as long as this lives: not longer than it takes to mount.
pub struct Parameter {
    path: &'static str,
    before: String,
    _locked: File,
}

impl Parameter {
    /// Whether mounts have their requests over io_uring. `None` where the kernel has no such thing or this process may not.
    pub fn over_io_uring(on: bool) -> Option<Self> {
        Self::set(IO_URING, if on { "Y" } else { "N" })
    }

    /// The largest request of a mount, in pages. `None` where the kernel has no such thing (before Linux 6.13) or this process may not.
    pub fn pages_limit(pages: u32) -> Option<Self> {
        Self::set(PAGES_LIMIT, &pages.to_string())
    }

    fn set(path: &'static str, value: &str) -> Option<Self> {
        let locked = File::open(path).ok()?;
        locked.lock().ok()?;
        let before = fs::read_to_string(path).ok()?;
        fs::write(path, value).ok()?;
        SET.with_borrow_mut(|set| set.push(path));
        Some(Self { path, before, _locked: locked })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _as_before = fs::write(self.path, self.before.trim());
        SET.with_borrow_mut(|set| set.retain(|path| *path != self.path));
    }
}

/// Keeps those that this thread has not set as they are, as long as this lives.
pub fn kept() -> Vec<File> {
    let others = [IO_URING, PAGES_LIMIT].into_iter().filter(|path| SET.with_borrow(|set| !set.contains(path)));
    others.filter_map(|path| File::open(path).ok()).filter(|parameter| parameter.lock_shared().is_ok()).collect()
}
