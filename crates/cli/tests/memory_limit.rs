//! A daemon that cannot allocate more memory returns an error or ends; after a remount everything acknowledged exists.

mod support;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::{Place, pattern};

/// A size from the status of a process, in bytes.
fn size_of(process_id: Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process_id.as_raw_nonzero())).expect("a daemon");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("its size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Leaves a process so much room above what it has. The address space alone does not limit it: an allocator reserves more of that than it
/// uses, so the private memory is limited as well.
fn limit(process_id: Pid, room_bytes: u64) {
    for (resource, field) in [(Resource::As, "VmSize:"), (Resource::Data, "VmData:")] {
        let bytes = size_of(process_id, field) + room_bytes;
        prlimit(Some(process_id), resource, Rlimit { current: Some(bytes), maximum: Some(bytes) }).expect("limited");
    }
}

/// Writes a file, on this device: a daemon that ends in order takes its mount away, and what lies below it acknowledges anything.
fn write(path: impl AsRef<Path>, device: u64, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.dev() != device {
        return Err(io::ErrorKind::NotConnected.into());
    }
    file.write_all_at(bytes, 0)
}

#[test]
fn a_daemon_without_memory_loses_nothing_acknowledged() {
    // From no room at all, to enough for a part of the work.
    let mut ran_out = 0;
    for room_bytes in [0, 256 << 10, 1 << 20, 2 << 20] {
        let place = Place::formatted();
        let mount = place.mount("strict,memory=256M");
        let device = fs::metadata(mount.path("")).expect("mounted").dev();
        limit(mount.process_id(), room_bytes);
        let mut acknowledged: Vec<(String, u64, usize)> = Vec::new();
        let mut failures = 0;
        let _maybe_not = fs::create_dir(mount.path("many"));
        for number in 0..6000_u64 {
            let name = format!("many/{number:05}-{}", "n".repeat(150));
            match write(mount.path(&name), device, &pattern(number, 100)) {
                Ok(()) => acknowledged.push((name, number, 100)),
                Err(_) => failures += 1,
            }
            if failures > 20 {
                break;
            }
        }
        for number in 0..4_u64 {
            let name = format!("large-{number}");
            let bytes = pattern(number, 12_000_001);
            match write(mount.path(&name), device, &bytes) {
                Ok(()) => acknowledged.push((name, number, bytes.len())),
                Err(_) => failures += 1,
            }
        }
        let listed = fs::read_dir(mount.path("many")).map(|entries| entries.filter(Result::is_ok).count());
        let alive = !mount.daemon_ends_within(Duration::ZERO);
        ran_out += u32::from(failures > 0);
        println!(
            "{} KiB of room: {} files acknowledged, {failures} calls failed, listed {listed:?}, the daemon {}",
            room_bytes >> 10,
            acknowledged.len(),
            if alive { "lives" } else { "has ended" }
        );
        if alive {
            // It may still end while it unmounts; then the next mount recovers.
            mount.kill();
        } else {
            drop(mount);
        }
        let mount = place.mount("strict");
        for (name, seed, length) in &acknowledged {
            let found = fs::read(mount.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == pattern(*seed, *length), "{name} differs");
        }
        mount.unmount();
        place.check();
    }
    assert!(ran_out > 0, "every daemon had enough memory: the test tested nothing");
}
