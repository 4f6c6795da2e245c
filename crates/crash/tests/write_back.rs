//! Writeback of several blocks at once: which blocks are chosen, the effect of a fault in a batch, and its behaviour when both zones are
//! full.

use std::sync::Arc;
use std::time::Duration;

use tandemfs_crash::{
    Access, Effort, Explorer, FaultDevice, Harness, Model, Operation, Place, Scene, Setting, Tree, check_device, mount, mount_device,
    seed_or,
};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, FileSystem, MountOptions, SettingsChange, WriteBackPolicy, WriteOptions};

use Operation::*;

const BLOCK: u32 = 64 << 10;

fn setting(block_zone_bytes: u64) -> Setting {
    Setting { block_zone_bytes, ..Setting::small(PersistenceDomain::Adr, BLOCK) }
}

fn prepared(setting: &Setting, operations: &[Operation]) -> Harness {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in operations {
        harness.apply(operation).unwrap_or_else(|what| panic!("{what}"));
    }
    harness
}

/// What the file system counts is what a rebuild finds, and `tandemfs_check` has nothing to say.
fn all_is_right(mut harness: Harness) {
    harness.compare().unwrap_or_else(|what| panic!("{what}"));
    harness.compare_space().unwrap_or_else(|what| panic!("{what}"));
    harness.fs.unmount().expect("unmounts");
    check_device(&harness.device, false).unwrap_or_else(|findings| panic!("{findings}"));
}

/// Files whose blocks have logs: over sectors, over a hole, at an end, and alone.
const FILES: &[Operation] = &[
    Create("a"),
    Write("a", 0, 3 * BLOCK, 1),
    Write("a", 100, 300, 2),
    Write("a", 60_000, 9000, 3),
    Write("a", 150_000, 64, 4),
    Create("b"),
    Write("b", 200_000, 5000, 5),
    Append("b", 60, 6),
    Allocate("b", 0, BLOCK as u64, true),
    Write("b", 10, 50, 7),
    Create("c"),
    Write("c", 0, 90, 8),
    MakeDirectory("d"),
    CreateMany("d", 0, 40),
];

#[test]
fn every_cut_of_a_batch_leaves_every_file_as_it_was() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf] {
        for block_bytes in [4 << 10, 64 << 10] {
            let effort = Effort { states: 12, ..Effort::QUICK };
            let scene = Scene { preparation: FILES.to_vec(), ..Scene::small(&Setting::small(domain, block_bytes)) };
            let mut explorer = Explorer::new(&scene, effort, seed_or(5)).expect("prepares");
            for operations in [&[WriteBackAll][..], &[Write("a", 4000, 200, 9), WriteBackAll, Truncate("a", 70_000), WriteBackAll]] {
                explorer.explore(operations, 0).unwrap_or_else(|what| panic!("{what}"));
            }
            println!("{domain}, blocks of {block_bytes}: {:?}", explorer.tried);
        }
    }
}

#[test]
fn everything_is_written_back_and_nothing_changes() {
    let mut harness = prepared(&setting(8 << 20), FILES);
    let blocks = harness.fs.write_back_all().expect("works");
    assert!(blocks >= 40 + 6, "{blocks} blocks");
    assert_eq!(harness.fs.space().memory.data_log_bytes, 0);
    let work = harness.fs.statistics().work;
    assert!(work.write_back_batches < blocks / 4, "{blocks} blocks in {} batches", work.write_back_batches);
    assert_eq!(harness.fs.write_back_all().expect("works"), 0, "doing it again does nothing");
    harness.apply(&Crash).expect("mounts");
    all_is_right(harness);
}

/// Each block access of a write-back fails once. The other blocks are written back, no space is lost, the next attempt does the rest.
#[test]
fn a_failed_access_costs_no_other_block_anything() {
    let setting = setting(8 << 20);
    let harness = prepared(&setting, &[FILES, &[Remount]].concat());
    harness.fs.unmount().expect("unmounts");
    let (base, model) = (Arc::new(harness.device.zones()), harness.model.clone());
    let over = || setting.over(base.clone());
    let counting = Arc::new(FaultDevice::counting(over()));
    let fs = mount_device(counting.clone(), &setting.mount).expect("mounts");
    let before = [Access::Read, Access::Write].map(|access| counting.count(access));
    let blocks = fs.write_back_all().expect("works");
    let after = [Access::Read, Access::Write].map(|access| counting.count(access));
    for (access, (first, last)) in [Access::Read, Access::Write].into_iter().zip(before.into_iter().zip(after)) {
        assert!(last - first >= 3, "{access:?} {first}..{last}");
        for succeed in first..last {
            let device = over();
            let faulty = Arc::new(FaultDevice::new(device.clone(), access, succeed, false));
            let fs = mount_device(faulty.clone(), &setting.mount).expect("mounts");
            let done = fs.write_back_all().expect("the block that failed was tried again by itself");
            assert!(faulty.hit() && done == blocks, "{access:?} {succeed}: {done} of {blocks} blocks");
            assert_eq!(fs.space().memory.data_log_bytes, 0, "{access:?} {succeed}");
            let mut harness = Harness::over(device, fs, &setting.mount, model.clone());
            harness.apply(&Remount).expect("what was held back comes back");
            all_is_right(harness);
        }
    }
}

/// A sector that cannot be read keeps its block where it is; its logs stay over it.
#[test]
fn a_bad_sector_holds_up_its_block_alone() {
    let setting = setting(8 << 20);
    let harness = prepared(&setting, &[FILES, &[Remount]].concat());
    harness.fs.unmount().expect("unmounts");
    let bytes = tandemfs_crash::fill(1, 4096);
    let at = harness.device.zones().blocks.windows(4096).step_by(4096).position(|sector| sector == bytes).expect("the first sector") as u64;
    let device = setting.over(Arc::new(harness.device.zones()));
    let faulty = Arc::new(FaultDevice::at(device.clone(), Place::Blocks(at * 4096..at * 4096 + 1), false));
    let fs = mount_device(faulty, &setting.mount).expect("mounts");
    assert!(matches!(fs.write_back_all(), Err(Error::Device(_))), "the error is told");
    assert_eq!(fs.space().memory.data_log_bytes, 1024 + 2 * 4096, "the logs of one block are left");
    assert_eq!(fs.stopped(), None);
    fs.checkpoint().expect("home");
    let rebuilt = mount(&device.fork(), &setting.mount).expect("mounts");
    assert_eq!(fs.space(), rebuilt.space());
    assert_eq!(Tree::read(&rebuilt).expect("the other device reads it").difference(&harness.model.tree()), None);
}

/// Files of one block, with a writeback limit of half of the data area, and no background writeback.
fn files_of_one_block(policy: WriteBackPolicy) -> (FileSystem, Vec<InodeNumber>) {
    let mut setting = Setting { memory_bytes: 32 << 20, ..setting(64 << 20) };
    setting.mount = MountOptions { write_back: policy, write_back_percent: 50, memory_bytes: 64 << 20, ..setting.mount };
    // All logs are counted, so that a file's space says whether it has any (`has_logs`).
    let mut harness = Harness::new(setting.format_with(0), &setting.mount, Model::default()).expect("mounts");
    let files = (0..400)
        .map(|index| {
            let name: &'static str = format!("f{index}").leak();
            harness.perform(&Create(name)).expect("made");
            harness.perform(&Write(name, 0, BLOCK, 1)).expect("written");
            harness.fs.lookup(InodeNumber::ROOT, name.as_bytes()).expect("there").inode
        })
        .collect();
    (harness.fs, files)
}

fn is_low(fs: &FileSystem) -> bool {
    let zone = fs.space().memory;
    zone.free_bytes * 2 < zone.free_bytes + zone.data_log_bytes
}

/// Adds logs of 4 KiB to a block.
fn add_logs(fs: &FileSystem, file: InodeNumber, logs: std::ops::Range<u64>) {
    for log in logs {
        fs.write(file, log * 5000, &[3; 4000], WriteOptions::default()).expect("written");
    }
}

fn has_logs(fs: &FileSystem, file: InodeNumber) -> bool {
    fs.attributes(file).expect("there").space_512 > u64::from(BLOCK) / 512
}

#[test]
fn the_block_that_frees_most_goes_first() {
    let (fs, files) = files_of_one_block(WriteBackPolicy::MostSpace);
    let mut logs = Vec::new();
    for (index, file) in (0..).zip(&files).take_while(|_| !is_low(&fs)) {
        logs.push(1 + index * 7 % 12);
        add_logs(&fs, *file, 0..logs[index as usize]);
    }
    assert!(is_low(&fs), "{} files are too few", files.len());
    let written = fs.write_back().expect("works");
    let (kept, gone): (Vec<_>, Vec<_>) = logs.iter().zip(&files).partition(|(_, file)| has_logs(&fs, **file));
    assert!(!is_low(&fs) && gone.len() as u64 == written && kept.len() > gone.len(), "{written} of {} blocks", logs.len());
    assert!(gone.iter().map(|(logs, _)| *logs).min() >= kept.iter().map(|(logs, _)| *logs).max());
}

#[test]
fn the_block_with_the_oldest_log_goes_first() {
    let (fs, files) = files_of_one_block(WriteBackPolicy::Oldest);
    oldest_logs_go_first(&fs, &files);
}

/// [HE2]: what was used before the policy was changed is the oldest, in the order of another policy or not.
#[test]
fn a_policy_that_is_set_in_use_goes_by_what_is_used_from_then_on() {
    for before in [WriteBackPolicy::MostSpace, WriteBackPolicy::Coldest] {
        let (fs, files) = files_of_one_block(before);
        fs.change_settings(&SettingsChange { write_back: Some(WriteBackPolicy::Oldest), ..SettingsChange::default() }).expect("changed");
        oldest_logs_go_first(&fs, &files);
    }
}

fn oldest_logs_go_first(fs: &FileSystem, files: &[InodeNumber]) {
    let count = files.len() as u64;
    let order: Vec<InodeNumber> = (0..count).map(|at| files[(at * 147 % count) as usize]).collect(); // not the order of the inodes
    order.iter().for_each(|file| add_logs(fs, *file, 0..1));
    // Later logs do not count, and most of them are in the youngest blocks.
    for round in 1..12 {
        order.iter().rev().take_while(|_| !is_low(fs)).for_each(|file| add_logs(fs, *file, round..round + 1));
    }
    assert!(is_low(fs));
    let written = fs.write_back().expect("works") as usize;
    assert!((16..300).contains(&written), "{written} blocks");
    let early = order[..written].iter().filter(|file| !has_logs(fs, **file)).count();
    // Blocks that share an entry of the table with a younger one look younger.
    assert!(early * 100 >= written * 95, "{early} of the oldest {written} were written back");
}

#[test]
fn the_block_that_nobody_used_for_longest_goes_first() {
    let (fs, files) = files_of_one_block(WriteBackPolicy::Coldest);
    for round in 0..12 {
        files.iter().take_while(|_| !is_low(&fs)).for_each(|file| add_logs(&fs, *file, round..round + 1));
    }
    assert!(is_low(&fs));
    // Reads of the drive count as use, like writes. The cold rest is enough for writeback.
    let (warm, cold) = files.split_at(files.len() / 2);
    for file in warm {
        fs.drop_file_pages(*file).expect("dropped");
        fs.read(*file, 100, &mut [0; 50]).expect("read");
    }
    let written = fs.write_back().expect("works");
    let gone = |files: &[InodeNumber]| files.iter().filter(|file| !has_logs(&fs, **file)).count();
    assert_eq!(gone(warm) as u64 + gone(cold) as u64, written);
    assert!((16..200).contains(&written) && gone(warm) * 20 <= gone(cold), "{} warm, {} cold", gone(warm), gone(cold));
}

/// ENOSPC for what grows, in a bounded time; removing works; then write-back has room again.
#[test]
fn with_both_zones_full_deletes_work_and_write_back_ends() {
    let setting = setting(8 << 20);
    let harness = prepared(&setting, &[Create("blocks"), Create("logs"), Create("some")]);
    let fs = Arc::new(harness.fs);
    fs.start_background().expect("a thread");
    let inode = |name: &str| fs.lookup(InodeNumber::ROOT, name.as_bytes()).expect("there").inode;
    let (blocks, logs, some) = (inode("blocks"), inode("logs"), inode("some"));
    let full = |file: InodeNumber, length: usize, stride: u64| {
        let mut refused = 0;
        for at in 0.. {
            match fs.write(file, at * stride, &vec![at as u8; length], WriteOptions::default()) {
                Ok(_) => {}
                Err(Error::NoSpace { .. }) if refused < 50 => refused += 1,
                Err(Error::NoSpace { .. }) => return at,
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!("a zone without end")
    };
    fs.write(some, 0, &[1; 2 * BLOCK as usize], WriteOptions::default()).expect("room");
    fs.write(some, 100, &[2; 100], WriteOptions::default()).expect("room");
    let (sender, receiver) = std::sync::mpsc::channel();
    let own = fs.clone();
    std::thread::scope(|scope| {
        full(blocks, BLOCK as usize, BLOCK.into());
        let end = full(logs, 4096, BLOCK.into());
        full(logs, 60, 4096);
        assert!(end > 100, "{end}");
        // A few calls at once: none may wait for another for ever.
        for _ in 0..3 {
            let (sender, own) = (sender.clone(), own.clone());
            scope.spawn(move || sender.send(own.write_back_all().map(drop).map_err(|error| error.to_string())));
        }
        for round in 0..200_u8 {
            // Overwriting existing data still works (RULES R14).
            fs.write(some, u64::from(round) * 300, &[round; 500], WriteOptions::default()).expect("an overwrite");
        }
        for _ in 0..3 {
            receiver.recv_timeout(Duration::from_secs(60)).expect("write-back waits for ever").expect("works");
        }
    });
    let before = fs.space();
    assert!(before.block.available_bytes < BLOCK.into() && before.memory.data_log_bytes > 1 << 20, "{before:?}");
    fs.unlink(InodeNumber::ROOT, b"blocks").expect("removing works");
    fs.write(blocks, 0, &[1; 10], WriteOptions::default()).expect_err("it is gone");
    assert!(fs.space().block.available_bytes > 4 << 20);
    fs.write_back_all().expect("there is room again"); // the thread behind may have been first
    assert!(fs.space().memory.data_log_bytes < before.memory.data_log_bytes);
    for round in 0..200_u64 {
        let mut bytes = [0; 300];
        fs.read(some, round * 300, &mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| u64::from(*byte) == round), "{round}");
    }
    fs.unmount().expect("unmounts");
    check_device(&harness.device, false).unwrap_or_else(|findings| panic!("{findings}"));
}
