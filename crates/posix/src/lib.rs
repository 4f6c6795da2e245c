//! Promises of POSIX and Linux about files, as tests that run on any directory: on mounts of TandemFS (`cargo test -p tandemfs --test
//! posix`) and on ext4 (`cargo test -p tandemfs-posix`), which shows that the tests themselves are right.
//!
//! [PX1] A test knows nothing of the file system below it. If TandemFS differs from ext4, the difference is a [`Difference`] with a line in
//!       `docs/SEMANTICS.md`, and the test asserts the difference.
//! [PX2] All tests share one mount. Each has its own directory, created before it and removed after it.
//! [PX3] A test that cannot run (the directory cannot be remounted, the caller is not root) is reported by name; it never passes silently.
//! [PX4] After every test the host's memory use is measured; exceeding the limit is a failure of that test.

mod asynchronous;
mod behaviour;
mod filled;
mod guardian;
mod id_map;
mod scene;
mod sys;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

pub use guardian::Guardian;
pub use id_map::IdMapped;
pub use scene::{Difference, Host, Memory, Scene};
pub use sys::truncate_path;

/// A test: its name, which says what must hold, and the host capabilities that it needs.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// Its name.
    pub name: &'static str,
    /// The capability that it needs.
    needs: Needs,
    run: fn(&Scene<'_>),
}

/// A host capability that a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A host that can unmount and mount again.
    Remount,
    /// A host whose mounts can be id-mapped.
    IdMaps,
    /// A host whose daemon can be killed.
    Crash,
}

/// All tests.
pub fn tests() -> Vec<Test> {
    behaviour::tests()
}

/// Whether to use full sizes (a million names, 10 GiB) instead of those that a normal test run has time for.
pub fn whole_size() -> bool {
    std::env::var_os("TANDEMFS_WHOLE_SIZE").is_some()
}

/// The words of a test program's command line.
#[derive(Debug, Default)]
pub struct Arguments {
    filters: Vec<String>,
    list: bool,
}

impl Arguments {
    /// Reads what `cargo test` passes on: words of names, `--list`; other options are those of another harness.
    pub fn of_process() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        Self { list: words.iter().any(|word| word == "--list"), filters: words.into_iter().filter(|word| !word.starts_with('-')).collect() }
    }

    /// Prints the names of the tests if `--list` was given. Returns whether it was.
    pub fn lists(&self, hosts: &[&str]) -> bool {
        if self.list {
            for host in hosts {
                tests().iter().for_each(|test| println!("{host}::{}: test", test.name));
            }
        }
        self.list
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    /// Whether a word of the command line has the name of a host in it.
    pub fn names(&self, host: &str) -> bool {
        self.filters.iter().any(|filter| filter.contains(host))
    }

    /// Whether any test of a host is wanted; a mount is made for no other.
    pub fn wants_any(&self, host: &str) -> bool {
        tests().iter().any(|test| self.wants(&format!("{host}::{}", test.name)))
    }
}

/// Runs the tests that are wanted on a host and returns how many failed.
pub fn run(host: &dyn Host, arguments: &Arguments) -> usize {
    let (mut failed, mut passed, mut absent, start) = (0, 0, Vec::new(), Instant::now());
    for test in tests() {
        let name = format!("{}::{}", host.name(), test.name);
        if !arguments.wants(&name) {
            continue;
        }
        let possible = match test.needs {
            Needs::Nothing => true,
            Needs::Remount => host.can_remount(),
            Needs::IdMaps => host.can_map_ids(),
            Needs::Crash => host.can_crash(),
        };
        if !possible {
            absent.push(test.name);
            continue;
        }
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| Scene::run(host, test.name, test.run)));
        let time = began.elapsed().as_millis();
        let memory = host.memory();
        let too_much = memory.is_some_and(|memory| memory.resident_bytes > memory.resident_bytes_max); // [PX4]
        let memory =
            memory.map_or(String::new(), |memory| format!(", {} of {} MiB", memory.resident_bytes >> 20, memory.resident_bytes_max >> 20));
        if result.is_ok() && !too_much {
            passed += 1;
            println!("test {name} ... ok ({time} ms{memory})");
        } else {
            failed += 1;
            println!("test {name} ... FAILED ({time} ms{memory})");
        }
    }
    println!("{}: {passed} passed, {failed} failed in {:.1} s; not possible here: {absent:?}", host.name(), start.elapsed().as_secs_f64());
    failed
}

/// A directory named by the user: it is not mounted or remounted by the tests.
#[derive(Debug)]
pub struct NamedDirectory<'p>(pub &'p Path);

impl Host for NamedDirectory<'_> {
    fn name(&self) -> &str {
        "directory"
    }

    fn root(&self) -> &Path {
        self.0
    }
}
