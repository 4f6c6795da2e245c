//! What the ways of stores cost persistent memory behind persistent CPU caches, by the model of an emulated drive in virtual time (FusionFS §2.1, Fig. 3a):
//! bytes to the media for each byte that was written, whatever the host's speed.
//!
//!     cargo test --release -p tandemfs-fs --test updates -- --ignored --nocapture      prints the table of docs/PERFORMANCE.md

use std::path::PathBuf;

use tandemfs_crash::stay_on_one_cpu;
use tandemfs_device::{Drive, MediaCounts, PersistenceDomain};
use tandemfs_emulator::{CreateOptions, MediaOptions, ModelOptions, NO_BLOCKS, OpenOptions, create_with, open_image};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, Update, UpdateMode, WriteOptions, make_file_system};
use tempfile::TempDir;

const MEMORY_BYTES: u64 = 256 << 20;
const CACHE_BYTES: u64 = 3 << 20;

struct Rig {
    fs: FileSystem,
    _directory: TempDir,
}

impl Rig {
    fn new(persistent_caches: bool, update: UpdateMode) -> Self {
        let directory = TempDir::new_in("/dev/shm").expect("a directory");
        let path: PathBuf = directory.path().join("disk.img");
        let options = CreateOptions { profile: "optane".into(), memory_bytes: MEMORY_BYTES, block_bytes: NO_BLOCKS };
        let media = MediaOptions { cache_bytes: Some(CACHE_BYTES), persistent_caches, ..MediaOptions::default() };
        create_with(&path, &options, &ModelOptions { media: Some(media), ..ModelOptions::default() }).expect("created");
        let drive = Drive::new(open_image(&path, &OpenOptions { virtual_time: true, ..OpenOptions::default() }).expect("opened"));
        assert_eq!(drive.domain() == PersistenceDomain::Gpf, persistent_caches);
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions { update, ..MountOptions::default() }).expect("mounts");
        Self { fs, _directory: directory }
    }

    fn counts(&self) -> MediaCounts {
        let media = self.fs.drive().media().expect("a model");
        media.write_back_all();
        media.counts()
    }

    fn file(&self, bytes: u64) -> InodeNumber {
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let file = self.fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
        for at in (0..bytes).step_by(1 << 20) {
            self.fs.write(file, at, &vec![1; 1 << 20], WriteOptions::default()).expect("written");
        }
        self.fs.write_back().expect("written back");
        file
    }
}

/// A load of one file: its size, and how long its writes are; hot ones go to the first hundredth of it.
#[derive(Debug, Clone, Copy)]
struct Load {
    name: &'static str,
    file_bytes: u64,
    write_bytes: u64,
    hot_percent: u64,
}

const LOADS: [Load; 6] = [
    Load { name: "4 KiB, uniform", file_bytes: 64 << 20, write_bytes: 4096, hot_percent: 0 },
    Load { name: "4 KiB, 90 % to 1 %", file_bytes: 64 << 20, write_bytes: 4096, hot_percent: 90 },
    Load { name: "64 B, uniform", file_bytes: 64 << 20, write_bytes: 64, hot_percent: 0 },
    Load { name: "128 B, 90 % to 1 %", file_bytes: 64 << 20, write_bytes: 128, hot_percent: 90 },
    Load { name: "1 KiB, uniform", file_bytes: 64 << 20, write_bytes: 1024, hot_percent: 0 },
    Load { name: "64 KiB, uniform", file_bytes: 64 << 20, write_bytes: 64 << 10, hot_percent: 0 },
];

/// Bytes to the media for each byte of file data, and for each one written by all that is stored; the model's time for a write, in nanoseconds.
fn cost(load: &Load, persistent_caches: bool, update: UpdateMode, stored_bytes: u64) -> (f64, f64, f64) {
    let rig = Rig::new(persistent_caches, update);
    let file = rig.file(load.file_bytes);
    let writes = stored_bytes / load.write_bytes.max(1024);
    let places = load.file_bytes / load.write_bytes;
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let bytes = vec![2; load.write_bytes as usize];
    let mut write = |count: u64| {
        for _ in 0..count {
            let among = if random() % 100 < load.hot_percent { places / 100 } else { places };
            let at = random() % among * load.write_bytes;
            rig.fs.write(file, at, &bytes, WriteOptions::default()).expect("written");
        }
    };
    write(writes); // so that it is known what is hot
    let (before, since) = (rig.counts(), rig.fs.drive().now_ns());
    write(writes);
    let took = rig.fs.drive().now_ns() - since;
    let counts = rig.counts().since(&before);
    let data =
        counts.by_structure().filter(|(name, _)| matches!(*name, "data" | "data_log")).map(|(_, bytes)| bytes.written()).sum::<u64>();
    let stored = (writes * load.write_bytes) as f64;
    (data as f64 / stored, counts.total().written() as f64 / stored, took as f64 / writes as f64)
}

const FIXED: [(&str, UpdateMode); 4] = [
    ("in place", UpdateMode::Always(Update::InPlace)),
    ("pinned", UpdateMode::Always(Update::Pinned)),
    ("flush", UpdateMode::Always(Update::Flush)),
    ("non-temporal", UpdateMode::Always(Update::NonTemporal)),
];

/// Each way is the wrong one for some load; the adaptive choice never is (FusionFS, Fig. 3a).
#[test]
fn the_adaptive_choice_is_near_the_best_way_of_each_load() {
    const STORED_BYTES: u64 = 24 << 20;
    stay_on_one_cpu().expect("pinned"); // whose pool of slots serves decides which lines of the cache are used again
    let mut is_wrong = [false; 3];
    for load in [LOADS[0], LOADS[1], LOADS[3]] {
        let (adaptive, ..) = cost(&load, true, UpdateMode::Auto, STORED_BYTES);
        let fixed: Vec<f64> =
            FIXED.iter().filter(|(name, _)| *name != "pinned").map(|(_, update)| cost(&load, true, *update, STORED_BYTES).0).collect();
        let best = fixed.iter().copied().fold(f64::MAX, f64::min);
        println!("{}: adaptive {adaptive:.3}, fixed {fixed:.3?}", load.name);
        assert!(adaptive < best * 1.15, "{}: {adaptive:.2} B to the media for each byte, best {best:.2}", load.name);
        is_wrong.iter_mut().zip(&fixed).for_each(|(is_wrong, cost)| *is_wrong |= *cost > adaptive * 1.08);
    }
    assert_eq!(is_wrong, [true; 3], "the loads show a weakness of each way");
}

#[test]
#[ignore = "figures"]
fn what_the_ways_cost() {
    const STORED_BYTES: u64 = 24 << 20;
    stay_on_one_cpu().expect("pinned");
    for persistent in [true, false] {
        println!("{}", if persistent { "caches survive (gpf)" } else { "caches are lost (adr)" });
        for load in &LOADS {
            let adaptive = cost(load, persistent, UpdateMode::Auto, STORED_BYTES);
            let fixed = FIXED.map(|(name, update)| (name, cost(load, persistent, update, STORED_BYTES)));
            let text = |(data, all, time): (f64, f64, f64)| format!("{data:.2} / {all:.2} / {time:.0} ns");
            let others: Vec<String> = fixed.iter().map(|(name, cost)| format!("{name} {}", text(*cost))).collect();
            println!("  {:22} adaptive {}; {}", load.name, text(adaptive), others.join("; "));
        }
    }
}
