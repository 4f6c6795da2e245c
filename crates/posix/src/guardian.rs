//! Unmounts a mount if the program that made it is killed.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits until its standard input ends, which happens when the program that started it ends; then unmounts and removes the
/// directory around it. A daemon, or a loop device, ends with its mount.
const SCRIPT: &str = r#"cat > /dev/null; umount --lazy "$1" 2>/dev/null; [ ! -e "$2" ] || rm -rf "$2""#;

/// A process of its own group, so that no signal from a terminal reaches it.
#[derive(Debug)]
pub struct Guardian(Child);

impl Guardian {
    /// Guards a mountpoint inside a directory that nobody else uses.
    pub fn new(mountpoint: &Path, directory: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guardian"]).arg(mountpoint).arg(directory).stdin(Stdio::piped()).process_group(0);
        Self(command.spawn().unwrap_or_else(|error| panic!("sh: {error}")))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
