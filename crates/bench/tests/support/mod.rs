//! Shared code of the tests of the program.

#![allow(dead_code, reason = "each test file uses a part")]

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tandemfs-bench");

/// Asserts that mounts can be measured: FUSE, and `tandemfs` beside the program under test.
pub fn require_mounts() {
    let is_device = std::fs::metadata("/dev/fuse").is_ok_and(|metadata| metadata.file_type().is_char_device());
    assert!(is_device, "this test needs /dev/fuse: load the kernel module (modprobe fuse), or give the container the device");
    let beside = Path::new(PROGRAM).with_file_name("tandemfs");
    assert!(beside.is_file(), "this test needs {}: cargo build -p tandemfs", beside.display());
}

/// The library of `tandemfs run`, which a build of all tests leaves beside them.
pub fn preload() -> PathBuf {
    let library = std::env::current_exe().expect("this program").with_file_name("libtandemfs_preload.so");
    assert!(library.is_file(), "this test needs {}: cargo test --no-run -p tandemfs-preload", library.display());
    library
}

/// Asserts that the program failed with one sentence that contains a word.
pub fn failed(output: &Output, word: &str, what: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{what}: {said}");
    assert!(said.starts_with("tandemfs-bench: ") && said.contains(word), "{what} should say '{word}': {said}");
    assert!(said.trim_end().lines().count() == 1 && !said.contains("panicked"), "{what}: one sentence, not {said}");
}

/// Waits for something that comes about by itself.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}
