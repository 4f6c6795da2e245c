//! Settings that change while the file system is in use: what follows goes by them at once, all of a change or none of it holds, and no byte is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tandemfs_crash::{MemoryDevice, Random, check_device};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    Discard, Error, FileSystem, FormatOptions, Kept, MountOptions, NewInode, Promote, ReadOptions, SettingsChange, Threshold,
    WriteBackPolicy, WriteOptions, make_file_system,
};

const BLOCK: usize = 16 << 10;
const KIB: u32 = 1 << 10;
/// How long something may take that comes about by itself.
const WITHIN: Duration = Duration::from_secs(60);
const NONE: SettingsChange = SettingsChange {
    threshold: None,
    memory_bytes: None,
    write_back: None,
    write_back_percent: None,
    promote: None,
    read_ahead_bytes: None,
    in_place_bytes: None,
    modified_lines: None,
    discard: None,
};

struct Place {
    device: Arc<MemoryDevice>,
    fs: Arc<FileSystem>,
}

impl Place {
    fn new(memory: u64, block: u64, options: &MountOptions) -> Self {
        Self::on(MemoryDevice::new(memory, block, PersistenceDomain::Gpf), options)
    }

    fn on(device: MemoryDevice, options: &MountOptions) -> Self {
        let device = Arc::new(device);
        let drive = Drive::new(device.clone());
        make_file_system(&drive, &FormatOptions { block_bytes: BLOCK as u32, ..FormatOptions::default() }).expect("mkfs");
        Self { fs: Arc::new(FileSystem::mount(drive, options).expect("mounts")), device }
    }

    fn create(&self, name: &str) -> InodeNumber {
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        self.fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("made").inode
    }

    fn write(&self, file: InodeNumber, offset: usize, bytes: &[u8]) {
        assert_eq!(self.fs.write(file, offset as u64, bytes, WriteOptions::default()).expect("written"), bytes.len());
    }

    /// As somebody without a cache.
    fn read(&self, file: InodeNumber, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.fs.read_with(file, offset as u64, &mut bytes, ReadOptions { kept: Kept::Here }).expect("read");
        bytes.truncate(read);
        bytes
    }

    fn change(&self, change: &SettingsChange) -> MountOptions {
        self.fs.change_settings(change).expect("changed")
    }

    fn log_bytes(&self) -> u64 {
        self.fs.space().memory.data_log_bytes
    }

    fn end(self) {
        self.fs.unmount().expect("unmounted");
        check_device(&self.device, false).expect("consistent");
    }
}

#[test]
fn the_next_write_is_split_at_the_new_threshold() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let (file, block) = (place.create("file"), vec![7; BLOCK]);
    place.write(file, 0, &block);
    assert_eq!(place.log_bytes(), 0, "a whole block goes by blocks");
    let options = place.change(&SettingsChange { threshold: Some(Threshold::Bytes(64 * KIB)), ..NONE });
    assert_eq!(
        (options.threshold, place.fs.options().threshold, place.fs.threshold().bytes),
        (Threshold::Bytes(64 * KIB), options.threshold, 64 * KIB)
    );
    place.write(file, 0, &block);
    assert_eq!(place.log_bytes(), BLOCK as u64, "and now by bytes");
    place.change(&SettingsChange { threshold: Some(Threshold::BlocksOnly), ..NONE });
    place.write(file, 10 * BLOCK + 5, &[8; 100]);
    assert_eq!((place.log_bytes(), place.fs.threshold().bytes), (BLOCK as u64, 0), "everything by blocks");
    place.change(&SettingsChange { threshold: Some(Threshold::Auto), ..NONE });
    let report = place.fs.threshold();
    let met = report.measured.iter().find(|latency| latency.block_path_ns <= latency.byte_path_ns);
    assert_eq!(Some(report.chosen_bytes), met.or(report.measured.last()).map(|latency| latency.size_bytes), "measured now: {report:?}");
    place.change(&SettingsChange { threshold: Some(Threshold::BlockSize), ..NONE });
    assert_eq!(place.fs.threshold().bytes, BLOCK as u32);
    place.write(file, 0, &block);
    assert_eq!(place.log_bytes(), 0);
    assert_eq!(place.read(file, 0, BLOCK), block);
    assert_eq!(place.read(file, 10 * BLOCK, 106), [&[0; 5][..], &[8; 100]].concat(), "a hole, and what was written");
    place.end();
}

/// Measuring takes space for an instant, and gives it back.
#[test]
fn measuring_again_in_use_takes_no_space() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let (file, bytes) = (place.create("file"), vec![9; 300_000]);
    place.write(file, 100, &bytes);
    let space = place.fs.space();
    for _ in 0..3 {
        place.change(&SettingsChange { threshold: Some(Threshold::Auto), ..NONE });
        assert_eq!(place.fs.space(), space);
    }
    assert!(place.read(file, 100, bytes.len()) == bytes);
    place.end();
}

#[test]
fn a_change_holds_whole_or_not_at_all() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let good = SettingsChange {
        memory_bytes: Some(16 << 20),
        write_back: Some(WriteBackPolicy::Coldest),
        write_back_percent: Some(20),
        promote: Some(Promote::Hot),
        read_ahead_bytes: Some(4096),
        in_place_bytes: Some(128),
        modified_lines: Some(4),
        discard: Some(Discard::Batched),
        threshold: Some(Threshold::Bytes(32 * KIB)),
    };
    let bad = [
        (SettingsChange { threshold: Some(Threshold::Bytes(20 * KIB)), ..good }, "multiple of the block size"),
        (SettingsChange { threshold: Some(Threshold::Bytes(0)), ..good }, "multiple of the block size"),
        (SettingsChange { write_back_percent: Some(0), ..good }, "1 to 90 percent"),
        (SettingsChange { write_back_percent: Some(91), ..good }, "1 to 90 percent"),
    ];
    for (change, named) in bad {
        let error = place.fs.change_settings(&change).expect_err("refused");
        assert!(matches!(error, Error::InvalidArgument(_)) && error.to_string().contains(named), "{error}");
        assert_eq!(place.fs.options(), MountOptions::DEFAULT);
    }
    let expected = MountOptions {
        threshold: Threshold::Bytes(32 * KIB),
        memory_bytes: 16 << 20,
        write_back: WriteBackPolicy::Coldest,
        write_back_percent: 20,
        promote: Promote::Hot,
        read_ahead_bytes: 4096,
        in_place_bytes: 128,
        modified_lines: 4,
        discard: Discard::Batched,
        ..MountOptions::DEFAULT
    };
    assert_eq!((place.change(&good), place.fs.options()), (expected.clone(), expected.clone()));
    assert_eq!(place.change(&NONE), expected, "what is not named stays");
    assert_eq!(place.fs.write_back_report().limit_percent, 20);
    place.end();
}

/// File pages, inodes, directory indexes and metadata, dirty pages among them.
#[test]
fn lower_memory_is_given_back_and_higher_is_used() {
    let place = Place::new(256 << 20, 512 << 20, &MountOptions { memory_bytes: 256 << 20, ..MountOptions::DEFAULT });
    let (large, bytes) = (place.create("large"), (0..48 << 20_u32).map(|index| (index >> 9) as u8).collect::<Vec<_>>());
    place.write(large, 0, &bytes);
    let fill = || {
        for at in (0..bytes.len()).step_by(64 << 10) {
            assert!(place.read(large, at, 64 << 10) == bytes[at..at + (64 << 10)], "at {at}");
        }
    };
    let files: Vec<InodeNumber> = (0..20_000).map(|index| place.create(&format!("a file with a number {index}"))).collect();
    for file in &files[..2000] {
        place.write(*file, 3, b"small");
    }
    fill();
    let (all, of_files) = (place.fs.memory_bytes(), place.fs.file_pages_bytes());
    assert!(of_files > 40 << 20 && all > of_files + (2 << 20), "{all} and {of_files}: the test shows nothing");
    let options = place.change(&SettingsChange { memory_bytes: Some(16 << 20), ..NONE });
    assert_eq!((options.memory_bytes, options.read_ahead_bytes), (16 << 20, 512 << 10), "read-ahead has 1/32 of it");
    let (all, of_files) = (place.fs.memory_bytes(), place.fs.file_pages_bytes());
    assert!(all <= 16 << 20 && of_files <= 8 << 20, "{all} and {of_files} are left");
    fill();
    for file in &files[..2000] {
        assert_eq!(place.read(*file, 0, 100), b"\0\0\0small");
    }
    let (all, of_files) = (place.fs.memory_bytes(), place.fs.file_pages_bytes());
    assert!(all <= 16 << 20 && of_files <= 8 << 20, "{all} and {of_files} in use");
    place.change(&SettingsChange { memory_bytes: Some(256 << 20), ..NONE });
    assert_eq!(place.fs.options().read_ahead_bytes, 1 << 20, "what was asked for");
    fill();
    assert!(place.fs.file_pages_bytes() > 40 << 20, "{} after it was raised", place.fs.file_pages_bytes());
    let hits = place.fs.statistics().work.page_hits;
    fill();
    assert!(place.fs.statistics().work.page_hits > hits + 700, "they are in memory");
    place.end();
}

#[test]
fn promotion_makes_copies_while_it_is_on() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let (file, bytes) = (place.create("file"), vec![5; 4 * BLOCK]);
    place.write(file, 0, &bytes);
    let read = |times: usize| {
        for _ in 0..times {
            place.fs.drop_file_pages(file).expect("dropped");
            assert!(place.read(file, 0, bytes.len()) == bytes);
        }
        let work = place.fs.statistics().work;
        (work.promotions, work.promoted_reads, place.fs.space().memory.promoted_bytes)
    };
    assert_eq!(read(3), (0, 0, 0), "off");
    place.change(&SettingsChange { promote: Some(Promote::Hot), ..NONE });
    let (copies, hits, space) = read(4);
    assert!(copies == 16 && hits > 0 && space == bytes.len() as u64, "{copies} copies, {hits} reads of them, {space} B");
    place.change(&SettingsChange { promote: Some(Promote::Off), ..NONE });
    assert_eq!(read(3), (copies, hits, 0), "no more copies, and their space is free");
    place.change(&SettingsChange { promote: Some(Promote::EveryRead), ..NONE });
    let (again, _, space) = read(1);
    assert_eq!((again, space), (copies + 16, bytes.len() as u64));
    place.end();
}

#[test]
fn read_ahead_ends_and_begins() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let (file, bytes) = (place.create("file"), vec![5; 2 << 20]);
    place.write(file, 0, &bytes);
    let hits = |change: Option<u32>| {
        place.change(&SettingsChange { read_ahead_bytes: change, ..NONE });
        place.fs.drop_file_pages(file).expect("dropped");
        let before = place.fs.statistics().work.read_ahead_hits;
        for at in (0..bytes.len()).step_by(4096) {
            place.read(file, at, 4096);
        }
        place.fs.statistics().work.read_ahead_hits - before
    };
    let with = hits(None);
    assert!(with > 400, "{with}");
    assert_eq!(hits(Some(0)), 0);
    assert!(hits(Some(256 * KIB)) > 400);
    place.end();
}

/// A higher limit of write-back is reached by the background thread, without another write.
#[test]
fn a_higher_limit_of_write_back_is_worked_for() {
    let place = Place::new(32 << 20, 256 << 20, &MountOptions { write_back_percent: 1, ..MountOptions::DEFAULT });
    let file = place.create("file");
    for index in 0..2000 {
        place.write(file, index * BLOCK + 10, &[1; 4000]);
    }
    place.fs.start_background().expect("started");
    let free = place.fs.write_back_report().free_percent;
    assert!(free < 80, "{free} percent: the test shows nothing");
    place.change(&SettingsChange { write_back_percent: Some(80), ..NONE });
    let start = Instant::now();
    while place.fs.write_back_report().free_percent < 80 {
        assert!(start.elapsed() < WITHIN, "{:?}", place.fs.write_back_report());
        std::thread::sleep(Duration::from_millis(2));
    }
    place.end();
}

#[test]
fn what_was_freed_before_is_discarded_when_that_is_asked_for() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let file = place.create("file");
    place.write(file, 0, &vec![1; 8 << 20]);
    place.fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
    place.fs.start_background().expect("started");
    place.change(&SettingsChange { discard: Some(Discard::Batched), ..NONE });
    let start = Instant::now();
    while place.fs.statistics().work.discarded_bytes < 8 << 20 {
        assert!(start.elapsed() < WITHIN, "{}", place.fs.statistics().work.discarded_bytes);
        std::thread::sleep(Duration::from_millis(2));
    }
    place.change(&SettingsChange { discard: Some(Discard::None), ..NONE });
    assert_eq!(place.fs.options().discard, Discard::None);
    place.end();
}

#[test]
fn pages_that_come_back_are_compared_while_that_is_asked_for() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions { modified_lines: 0, ..MountOptions::DEFAULT });
    let file = place.create("file");
    place.write(file, 0, &vec![1; 4 * BLOCK]);
    let returned = WriteOptions { keep_times: true, compare: true, ..WriteOptions::default() };
    // As a kernel reads a page, changes a byte of it and writes it back.
    let log_bytes = |page: usize| {
        let (mut bytes, before) = (vec![0; 4096], place.log_bytes());
        place.fs.read_with(file, 4096 * page as u64, &mut bytes, ReadOptions { kept: Kept::ToCompare }).expect("read");
        bytes[100] = 2;
        place.fs.write(file, 4096 * page as u64, &bytes, returned).expect("written");
        place.log_bytes() - before
    };
    assert_eq!(log_bytes(0), 4096, "whole");
    place.change(&SettingsChange { modified_lines: Some(8), ..NONE });
    let of_lines = log_bytes(1);
    assert!(of_lines < 1024, "{of_lines}");
    place.change(&SettingsChange { modified_lines: Some(0), ..NONE });
    assert_eq!(log_bytes(2), 4096);
    place.end();
}

#[test]
fn small_overwrites_go_in_place_while_that_is_asked_for() {
    let device = MemoryDevice::with_firmware(32 << 20, 64 << 20, PersistenceDomain::Gpf);
    let place = Place::on(device, &MountOptions { in_place_bytes: 0, modified_lines: 0, ..MountOptions::DEFAULT });
    let file = place.create("file");
    place.write(file, 0, &vec![1; 4 * BLOCK]);
    let lines = |change: Option<u32>, at: usize| {
        place.change(&SettingsChange { in_place_bytes: change, ..NONE });
        let before = place.fs.statistics().work.in_place_lines;
        place.write(file, at, &[2; 128]);
        place.fs.statistics().work.in_place_lines - before
    };
    assert_eq!((lines(None, 0), lines(Some(512), BLOCK), lines(Some(64), 2 * BLOCK)), (0, 2, 0));
    place.end();
}

#[test]
fn a_mount_for_reading_alone_takes_changes_too() {
    let place = Place::new(32 << 20, 64 << 20, &MountOptions::DEFAULT);
    let (file, bytes) = (place.create("file"), vec![5; 2 << 20]);
    place.write(file, 0, &bytes);
    let Place { device, fs } = place;
    fs.unmount().expect("unmounted");
    let fs = Arc::new(
        FileSystem::mount(Drive::new(device.clone()), &MountOptions { read_only: true, ..MountOptions::DEFAULT }).expect("mounts"),
    );
    let place = Place { device, fs };
    place.read(file, 0, 64 << 10);
    let change = SettingsChange {
        threshold: Some(Threshold::Auto),
        memory_bytes: Some(8 << 20),
        write_back: Some(WriteBackPolicy::Oldest),
        write_back_percent: Some(90),
        promote: Some(Promote::Hot),
        ..NONE
    };
    place.change(&change);
    assert!(place.read(file, 0, bytes.len()) == bytes && place.read(file, 0, bytes.len()) == bytes);
    assert!(place.fs.threshold().reason.contains("read-only"), "{}", place.fs.threshold().reason);
    place.end();
}

/// Threads write, read and remove, each its own files, while settings change at random.
#[test]
fn no_byte_is_lost_while_settings_change() {
    let place = Place::new(64 << 20, 128 << 20, &MountOptions { memory_bytes: 16 << 20, ..MountOptions::DEFAULT });
    place.fs.start_background().expect("started");
    let ended = AtomicBool::new(false);
    let changes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                scope.spawn({
                    let place = &place;
                    move || work(place, worker)
                })
            })
            .collect();
        let changer = scope.spawn(|| {
            let (mut random, mut changes) = (Random::new(7), 0);
            while !ended.load(SeqCst) {
                place.change(&any(&mut random));
                changes += 1;
            }
            changes
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ended.store(true, SeqCst);
        results.into_iter().for_each(|result| result.expect("every byte was as written"));
        changer.join().expect("changed")
    });
    assert!(changes > 10, "{changes}");
    place.end();
}

fn any(random: &mut Random) -> SettingsChange {
    let thresholds = [Threshold::BlockSize, Threshold::Auto, Threshold::BlocksOnly, Threshold::Bytes(32 * KIB), Threshold::Bytes(1 << 20)];
    SettingsChange {
        threshold: Some(*random.pick(&thresholds)),
        memory_bytes: Some(*random.pick(&[1 << 20, 8 << 20, 64 << 20])),
        write_back: Some(*random.pick(&[WriteBackPolicy::MostSpace, WriteBackPolicy::Oldest, WriteBackPolicy::Coldest])),
        write_back_percent: Some(*random.pick(&[1, 10, 60])),
        promote: Some(*random.pick(&[Promote::Off, Promote::Hot, Promote::EveryRead])),
        read_ahead_bytes: Some(*random.pick(&[0, 64 * KIB, 1 << 20])),
        in_place_bytes: Some(*random.pick(&[0, 512])),
        modified_lines: Some(*random.pick(&[0, 8])),
        discard: Some(*random.pick(&[Discard::None, Discard::Batched])),
    }
}

/// Writes at random places of some files, which are compared with what they should be.
fn work(place: &Place, worker: u64) {
    let mut random = Random::new(100 + worker);
    for round in 0..6 {
        let name = format!("file of {worker}");
        let (file, mut content) = (place.create(&name), vec![0; 1 << 20]);
        place.write(file, 0, &content);
        for step in 0..120_u64 {
            let length = *random.pick(&[1, 60, 700, 4096, BLOCK, 70_000]);
            let at = random.below((content.len() - length) as u64) as usize;
            let at = if step % 3 == 0 { at / BLOCK * BLOCK } else { at };
            let bytes: Vec<u8> = (0..length as u64).map(|index| (index * 7 + step + round) as u8).collect();
            content[at..at + length].copy_from_slice(&bytes);
            place.write(file, at, &bytes);
            let from = random.below((content.len() - 9000) as u64) as usize;
            assert!(place.read(file, from, 9000) == content[from..from + 9000], "worker {worker}, round {round}, step {step}");
        }
        assert!(place.read(file, 0, content.len()) == content, "worker {worker}, round {round}");
        place.fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
    }
}
