//! Layouts: extents say where the bytes are, and stay true until they are given back; every change recalls them and waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tandemfs_crash::{Access, Awake, FaultDevice, MemoryDevice, Random, chosen, fill};
use tandemfs_device::{BlockRequest, Device, Drive, PersistenceDomain, Structure};
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, SECTOR_BYTES, Sector};
use tandemfs_fs::{
    AllocateMode, Error, FILE_LAYOUTS_MAX, FileSystem, FormatOptions, LAYOUT_EXTENTS_MAX, Layout, LayoutExtent, LayoutOptions, LayoutPlace,
    MountOptions, NewInode, RECALL_MAX, RenameMode, SetAttributes, WriteOptions, make_file_system,
};

const BLOCK: u64 = 64 << 10;
const PLAIN: WriteOptions = WriteOptions { keep_times: false, append: false, kill_set_id: false, compare: false, kept: false };
const AS_IT_IS: LayoutOptions = LayoutOptions { settle: false };
const SETTLED: LayoutOptions = LayoutOptions { settle: true };

fn mounted_on(device: impl Device + 'static, block_bytes: u64) -> Arc<FileSystem> {
    let drive = Drive::new(Arc::new(device));
    make_file_system(&drive, &FormatOptions { block_bytes: block_bytes as u32, ..FormatOptions::default() }).expect("mkfs");
    Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts"))
}

fn mounted(block_zone_bytes: u64, block_bytes: u64) -> Arc<FileSystem> {
    mounted_on(MemoryDevice::new(16 << 20, block_zone_bytes, PersistenceDomain::Gpf), block_bytes)
}

fn file(fs: &FileSystem, name: &str, bytes: &[u8]) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let inode = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("creates").inode;
    assert_eq!(fs.write(inode, 0, bytes, PLAIN).expect("writes"), bytes.len());
    inode
}

fn write(fs: &FileSystem, inode: InodeNumber, offset: u64, bytes: &[u8]) {
    assert_eq!(fs.write(inode, offset, bytes, PLAIN).expect("writes"), bytes.len());
}

fn resize(fs: &FileSystem, inode: InodeNumber, size: u64) {
    fs.set_attributes(inode, &SetAttributes { size: Some(size), ..SetAttributes::default() }).expect("truncates");
}

fn content(fs: &FileSystem, inode: InodeNumber) -> Vec<u8> {
    let mut bytes = vec![0; fs.attributes(inode).expect("there").size as usize];
    assert_eq!(fs.read(inode, 0, &mut bytes).expect("reads"), bytes.len());
    bytes
}

/// What the device has in these sectors.
fn sectors(fs: &FileSystem, sector: Sector, bytes: u64) -> Vec<u8> {
    let mut buffer = vec![0; bytes as usize];
    let mut requests = [BlockRequest::Read { sector, buffer: (&mut buffer).into() }];
    drop(fs.drive().transfer(Structure::Data, &mut requests, &mut || {}).expect("reads"));
    buffer
}

/// What the device has in all sectors of a layout.
fn all_sectors(fs: &FileSystem, layout: &Layout) -> Vec<Vec<u8>> {
    let of_extent = |extent: &LayoutExtent| match extent.place {
        LayoutPlace::Sectors { sector } => Some(sectors(fs, sector, extent.bytes)),
        _ => None,
    };
    layout.extents().iter().filter_map(of_extent).collect()
}

/// The layout of a whole file, piece by piece.
fn layouts(fs: &FileSystem, inode: InodeNumber, length: u64, options: LayoutOptions) -> Vec<Layout> {
    let mut layouts: Vec<Layout> = Vec::new();
    let mut next = Some(0);
    while let Some(at) = next {
        let layout = fs.layout(inode, at, length - at, options, || {}).expect("granted");
        assert_eq!(layout.extents().first().map(|extent| extent.file_offset), Some(at));
        next = layout.next_offset();
        layouts.push(layout);
    }
    layouts
}

/// Compares extents with what `read` returns. Counts holes, unwritten extents, sectors, and extents of the file system.
fn compare(fs: &FileSystem, inode: InodeNumber, extents: &[LayoutExtent], kinds: &mut [u64; 4]) {
    let content = content(fs, inode);
    let mut end = extents.first().expect("some").file_offset;
    for extent in extents {
        assert_eq!(extent.file_offset, end, "no gaps: {extents:?}");
        assert!(extent.bytes > 0 && extent.bytes.is_multiple_of(SECTOR_BYTES as u64), "{extent:?}");
        end += extent.bytes;
        let inside = |at: u64| at.min(content.len() as u64) as usize;
        let read = &content[inside(extent.file_offset)..inside(end)];
        match extent.place {
            LayoutPlace::Hole | LayoutPlace::Unwritten { .. } => assert!(read.iter().all(|byte| *byte == 0), "{extent:?}"),
            LayoutPlace::Sectors { sector } => assert!(sectors(fs, sector, extent.bytes)[..read.len()] == *read, "{extent:?}"),
            _ => {}
        }
        kinds[match extent.place {
            LayoutPlace::Hole => 0,
            LayoutPlace::Unwritten { .. } => 1,
            LayoutPlace::Sectors { .. } => 2,
            _ => 3,
        }] += 1;
    }
}

#[test]
fn extents_say_where_the_bytes_of_a_file_are() {
    let mut kinds = [0; 4];
    for seed in chosen("files", 12, 200) {
        let mut random = Random::new(seed);
        let block = *random.pick(&[4096, 16_384, BLOCK]);
        let device = MemoryDevice::new(16 << 20, 64 << 20, PersistenceDomain::Gpf).given_firmware(random.one_in(3));
        let fs = mounted_on(device, block);
        let inode = file(&fs, "file", b"");
        let length = block * 40;
        for step in 0..120 {
            let offset = random.below(length - block);
            let bytes = if random.one_in(3) { 1 + random.below(5000) } else { 1 + random.below(block * 4) };
            let (start, bytes) = if random.one_in(3) { (offset / block * block, bytes.next_multiple_of(block)) } else { (offset, bytes) };
            let allocate = AllocateMode::Allocate { keep_size: random.one_in(2) };
            match random.below(8) {
                0 => fs.allocate(inode, start, bytes, AllocateMode::Punch).expect("punched"),
                1 => fs.allocate(inode, start, bytes, allocate).expect("allocated"),
                2 => fs.allocate(inode, start, bytes, AllocateMode::Zero { keep_size: true }).expect("zeroed"),
                3 if random.one_in(4) => resize(&fs, inode, start),
                _ => write(&fs, inode, start, &fill(step, bytes as usize)),
            }
            if random.one_in(10) {
                let layout = fs.layout(inode, start, bytes, AS_IT_IS, || panic!("nothing changes")).expect("granted");
                let end = layout.extents().last().map(|extent| extent.file_offset + extent.bytes);
                assert_eq!((layout.extents()[0].file_offset, end), (start / block * block, Some((start + bytes).next_multiple_of(block))));
                compare(&fs, inode, layout.extents(), &mut kinds);
                assert!(layout.is_valid() && !layout.is_recalled());
            }
        }
        for options in [AS_IT_IS, SETTLED] {
            let layouts = layouts(&fs, inode, 1 << 40, options);
            let extents: Vec<LayoutExtent> = layouts.iter().flat_map(|layout| layout.extents().to_vec()).collect();
            compare(&fs, inode, &extents, &mut kinds);
            let of_logs = extents.iter().filter(|extent| extent.place == LayoutPlace::ThroughFileSystem).count();
            assert!(options == AS_IT_IS || of_logs == 0, "seed {seed}: {of_logs} extents have logs after they were settled");
        }
    }
    assert!(kinds.iter().all(|count| *count > 20), "{kinds:?}: of every kind");
}

/// The extents of single blocks, joined by hand.
#[test]
fn neighbouring_blocks_are_one_extent() {
    let fs = mounted(64 << 20, BLOCK);
    let inode = file(&fs, "file", &fill(1, 40 * BLOCK as usize));
    for block in [3, 9, 10, 30] {
        write(&fs, inode, block * BLOCK, &fill(block, BLOCK as usize));
    }
    fs.allocate(inode, 50 * BLOCK, 20 * BLOCK, AllocateMode::Allocate { keep_size: true }).expect("allocated");
    let mut expected: Vec<LayoutExtent> = Vec::new();
    for block in 0..80 {
        for extent in fs.layout(inode, block * BLOCK, 1, AS_IT_IS, || {}).expect("granted").extents() {
            let goes_on = |last: &&mut LayoutExtent| match (last.place, extent.place) {
                (LayoutPlace::Sectors { sector }, LayoutPlace::Sectors { sector: next })
                | (LayoutPlace::Unwritten { sector }, LayoutPlace::Unwritten { sector: next }) => {
                    sector.offset_bytes() + last.bytes == next.offset_bytes()
                }
                (one, next) => one == LayoutPlace::Hole && next == LayoutPlace::Hole,
            };
            match expected.last_mut().filter(goes_on) {
                Some(last) => last.bytes += extent.bytes,
                None => expected.push(*extent),
            }
        }
    }
    let layout = fs.layout(inode, 0, 80 * BLOCK, AS_IT_IS, || {}).expect("granted");
    assert_eq!(layout.extents(), expected);
    assert_eq!((layout.next_offset(), layout.file_size()), (None, 40 * BLOCK));
    assert!(expected.len() < 20, "{expected:?}");
}

#[test]
fn a_long_list_of_extents_goes_on_where_it_ended() {
    let fs = mounted(64 << 20, 4096);
    let inode = file(&fs, "file", b"");
    for block in 0..600 {
        write(&fs, inode, block * 8192, &fill(block, 4096));
    }
    let layouts = layouts(&fs, inode, u64::MAX, AS_IT_IS);
    assert!(layouts.len() > 4 && layouts.iter().all(|layout| layout.extents().len() <= LAYOUT_EXTENTS_MAX));
    let extents: Vec<LayoutExtent> = layouts.iter().flat_map(|layout| layout.extents().to_vec()).collect();
    compare(&fs, inode, &extents, &mut [0; 4]);
    let count = |place: fn(LayoutPlace) -> bool| extents.iter().filter(|extent| place(extent.place)).count();
    assert_eq!(count(|place| matches!(place, LayoutPlace::Sectors { .. })), 600);
    assert_eq!(extents.last().map(|extent| (extent.place, extent.file_offset)), Some((LayoutPlace::Hole, 599 * 8192 + 4096)));
}

/// Whether the holder still has time to answer: a machine may be too busy for the test.
fn in_time(since: Instant) -> bool {
    since.elapsed() < RECALL_MAX / 2
}

/// A layout of blocks without logs whose recalls are counted and sent.
fn settled(fs: &FileSystem, inode: InodeNumber, offset: u64, length: u64) -> (Layout, Arc<AtomicUsize>, Receiver<(Instant, Awake)>) {
    fs.layout(inode, offset, length, SETTLED, || {}).expect("granted");
    observed(fs, inode, offset, length)
}

/// A layout whose recalls are counted and sent.
fn observed(fs: &FileSystem, inode: InodeNumber, offset: u64, length: u64) -> (Layout, Arc<AtomicUsize>, Receiver<(Instant, Awake)>) {
    let (sender, receiver) = channel();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let recall = move || {
        count.fetch_add(1, SeqCst);
        let _nobody_may_listen = sender.send((Instant::now(), Awake::now()));
    };
    (fs.layout(inode, offset, length, AS_IT_IS, recall).expect("granted"), calls, receiver)
}

/// Runs a change of a leased range: it must recall once, wait, and leave the leased sectors as they are until the lease is returned.
fn recalls(fs: &Arc<FileSystem>, what: &str, inode: InodeNumber, (offset, length): (u64, u64), change: impl FnOnce(&FileSystem) + Send) {
    let (layout, calls, recalled) = settled(fs, inode, offset, length);
    let (before, found) = (content(fs, inode), all_sectors(fs, &layout));
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| change(fs));
        let (since, awake) = recalled.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} recalls nothing"));
        std::thread::sleep(Duration::from_millis(5));
        let (is_done, now, on_device) = (changer.is_finished(), content(fs, inode), all_sectors(fs, &layout));
        if in_time(since) {
            assert!(!is_done, "{what} waits");
            assert!(now == before && on_device == found, "{what} changes nothing yet");
            assert!(layout.is_recalled() && layout.is_valid(), "{what}");
        }
        drop(layout);
        changer.join().unwrap_or_else(|_| panic!("{what} fails"));
        assert!(awake.elapsed() < RECALL_MAX, "{what} goes on at once");
    });
    assert_eq!(calls.load(SeqCst), 1, "{what} recalls once");
}

type Change = fn(&FileSystem, InodeNumber);

/// Changes of a file of four and a half blocks with a hole in its block 2, leased whole.
const CHANGES: [(&str, Change); 19] = [
    ("an overwrite of a block", |fs, inode| write(fs, inode, BLOCK, &fill(7, BLOCK as usize))),
    ("a small overwrite", |fs, inode| write(fs, inode, 100, &[1; 100])),
    ("a write into a hole", |fs, inode| write(fs, inode, 2 * BLOCK, &[1; 100])),
    ("an append", |fs, inode| {
        let append = WriteOptions { append: true, ..PLAIN };
        assert_eq!(fs.write(inode, 0, &[1; 100], append).expect("written"), 100);
    }),
    ("a write behind the end", |fs, inode| write(fs, inode, 4 * BLOCK + 50_000, &[1; 100])),
    ("a truncation", |fs, inode| resize(fs, inode, BLOCK)),
    ("a truncation to nothing", |fs, inode| resize(fs, inode, 0)),
    ("growth", |fs, inode| resize(fs, inode, 100 * BLOCK)),
    ("growth by a hole", |fs, inode| fs.grow_over(inode, 100 * BLOCK).expect("grown")),
    ("punching", |fs, inode| fs.allocate(inode, BLOCK, BLOCK, AllocateMode::Punch).expect("punched")),
    ("zeroing", |fs, inode| fs.allocate(inode, BLOCK, 100, AllocateMode::Zero { keep_size: true }).expect("zeroed")),
    ("allocation", |fs, inode| fs.allocate(inode, 0, 3 * BLOCK, AllocateMode::Allocate { keep_size: true }).expect("allocated")),
    ("collapsing", |fs, inode| fs.allocate(inode, BLOCK, BLOCK, AllocateMode::Collapse).expect("collapsed")),
    ("inserting", |fs, inode| fs.allocate(inode, BLOCK, BLOCK, AllocateMode::Insert).expect("inserted")),
    ("a copy to it", |fs, inode| {
        let from = fs.lookup(InodeNumber::ROOT, b"other").expect("there").inode;
        assert_eq!(fs.copy_range((from, 0), (inode, BLOCK + 10), 5000, PLAIN).expect("copied"), 5000);
    }),
    ("removal", |fs, _| fs.unlink(InodeNumber::ROOT, b"file").expect("removed")),
    ("a rename over it", |fs, _| {
        fs.rename(InodeNumber::ROOT, b"other", InodeNumber::ROOT, b"file", RenameMode::Replace).expect("renamed");
    }),
    ("the last close after a removal", |fs, inode| {
        let generation = fs.attributes(inode).expect("there").generation;
        fs.remember(inode, generation, 1).expect("held");
        fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
        fs.forget(inode, 1);
    }),
    // Not in time is not at all, for an unmount.
    (
        "an unmount",
        |fs, _| while fs.unmount().inspect_err(|error| assert!(matches!(error, Error::LayoutsHeld { .. }), "{error}")).is_err() {},
    ),
];

#[test]
fn each_kind_of_change_recalls_once_and_waits() {
    for has_firmware in [false, true] {
        for (what, change) in CHANGES {
            let fs = mounted_on(MemoryDevice::new(16 << 20, 32 << 20, PersistenceDomain::Gpf).given_firmware(has_firmware), BLOCK);
            let inode = file(&fs, "file", &fill(1, 2 * BLOCK as usize));
            file(&fs, "other", &fill(5, 9000));
            write(&fs, inode, 3 * BLOCK, &fill(2, BLOCK as usize + 40_960));
            recalls(&fs, what, inode, (0, 5 * BLOCK), |fs| change(fs, inode));
        }
    }
}

#[test]
fn work_beside_a_layout_recalls_nothing() {
    let fs = mounted(64 << 20, BLOCK);
    let inode = file(&fs, "file", &fill(1, 10 * BLOCK as usize));
    write(&fs, inode, 5 * BLOCK + 100, &[9; 100]);
    let (layout, calls, _recalled) = observed(&fs, inode, 3 * BLOCK, 4 * BLOCK);
    let places: Vec<_> = layout.extents().iter().map(|extent| (extent.file_offset / BLOCK, extent.place)).collect();
    assert!(places.contains(&(5, LayoutPlace::ThroughFileSystem)), "{places:?}");
    let found = all_sectors(&fs, &layout);
    let start = Awake::now();
    for block in [0, 2, 7, 9] {
        write(&fs, inode, block * BLOCK, &fill(block, BLOCK as usize));
    }
    write(&fs, inode, 5 * BLOCK + 300, &[8; 100]);
    fs.allocate(inode, 8 * BLOCK, BLOCK, AllocateMode::Punch).expect("punched");
    resize(&fs, inode, 8 * BLOCK);
    fs.set_attributes(inode, &SetAttributes { permissions: Some(0o600), ..SetAttributes::default() }).expect("set");
    fs.rename(InodeNumber::ROOT, b"file", InodeNumber::ROOT, b"name", RenameMode::NoReplace).expect("renamed");
    assert!(fs.write_back_all().expect("works") > 0, "write-back takes what has logs");
    fs.checkpoint().expect("home");
    assert_eq!(fs.space().memory.data_log_bytes, 0, "a lease keeps no logs in the memory zone");
    assert!(start.elapsed() < RECALL_MAX);
    assert!(layout.is_valid() && !layout.is_recalled() && calls.load(SeqCst) == 0);
    assert!(all_sectors(&fs, &layout) == found);
    compare(&fs, inode, layout.extents(), &mut [0; 4]);
}

#[test]
fn a_layout_ends_when_it_is_dropped() {
    let fs = mounted(32 << 20, BLOCK);
    let inode = file(&fs, "file", &fill(1, BLOCK as usize));
    let (layout, calls, recalled) = observed(&fs, inode, 0, BLOCK);
    drop(layout);
    assert!(recalled.recv_timeout(Duration::from_secs(60)).is_err(), "its callback is gone");
    let start = Awake::now();
    write(&fs, inode, 0, &fill(2, BLOCK as usize));
    fs.unmount().expect("unmounted");
    assert!(start.elapsed() < RECALL_MAX && calls.load(SeqCst) == 0);
    assert!(matches!(fs.layout(inode, 0, 1, AS_IT_IS, || {}), Err(Error::Unmounting)));
}

/// Fills the file system with other bytes.
fn fill_up(fs: &FileSystem) -> u64 {
    let other = file(fs, "full", b"");
    let mut written = 0;
    for size in [1 << 20, BLOCK, 4096] {
        let bytes = vec![0xEE; size as usize];
        while fs.write(other, written, &bytes, PLAIN).is_ok_and(|count| count > 0) {
            written += size;
        }
    }
    written
}

#[test]
fn who_never_answers_is_waited_for_once_and_sees_no_bytes_of_another_file() {
    type Loss = fn(&FileSystem, InodeNumber);
    let losses: [(&str, Loss); 3] = [
        ("truncated", |fs, inode| resize(fs, inode, 0)),
        ("removed", |fs, _| fs.unlink(InodeNumber::ROOT, b"file").expect("removed")),
        ("overwritten", |fs, inode| write(fs, inode, 0, &fill(2, 10 * BLOCK as usize))),
    ];
    for (what, lose) in losses {
        let fs = mounted(32 << 20, BLOCK);
        let before = fs.space().block.free_bytes;
        let inode = file(&fs, "file", &fill(1, 10 * BLOCK as usize + 5000));
        let (layout, calls, _recalled) = observed(&fs, inode, 0, u64::MAX);
        let (held, leased) = (all_sectors(&fs, &layout), layout.extents().to_vec());
        let start = Instant::now();
        lose(&fs, inode);
        assert!(start.elapsed() >= RECALL_MAX, "{what}: the bound is waited");
        assert!(layout.is_recalled() && !layout.is_valid() && calls.load(SeqCst) == 1, "{what}");
        let start = Awake::now();
        let next = if what == "removed" { file(&fs, "file", b"") } else { inode };
        write(&fs, next, 0, &fill(3, 3 * BLOCK as usize));
        assert!(start.elapsed() < RECALL_MAX && calls.load(SeqCst) == 1, "{what}: and not again");

        assert!(fill_up(&fs) > 20 << 20);
        for (extent, held) in leased.iter().filter(|extent| matches!(extent.place, LayoutPlace::Sectors { .. })).zip(&held) {
            let LayoutPlace::Sectors { sector } = extent.place else { unreachable!() };
            let found = sectors(&fs, sector, extent.bytes);
            assert!(found.chunks(SECTOR_BYTES).zip(held.chunks(SECTOR_BYTES)).all(|(found, held)| found == held), "{what}: {extent:?}");
        }
        let grow = |blocks: u64| fs.write(next, 100 * BLOCK, &vec![1; (blocks * BLOCK) as usize], PLAIN);
        assert!(matches!(grow(9), Err(Error::NoSpace { .. })), "{what}");
        drop(layout);
        let start = Awake::now();
        assert!(grow(9).is_ok(), "{what}: they are free when the lease is returned");
        assert!(start.elapsed() < RECALL_MAX);
        for name in ["file", "full"] {
            fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
        }
        assert_eq!(fs.space().block.free_bytes, before, "{what}: all space comes back");
        fs.unmount().expect("unmounted");
    }
}

#[test]
fn a_holder_reads_and_returns_its_layout_in_the_callback() {
    let fs = mounted(32 << 20, BLOCK);
    let bytes = fill(1, 3 * BLOCK as usize);
    let inode = file(&fs, "file", &bytes);
    let place: Arc<Mutex<Option<Layout>>> = Arc::default();
    let (slot, own, expected) = (place.clone(), Arc::downgrade(&fs), bytes.clone());
    let recall = move || {
        let fs = own.upgrade().expect("mounted");
        assert!(content(&fs, inode) == expected, "reads wait for no change");
        drop(slot.lock().expect("whole").take());
    };
    let layout = fs.layout(inode, 0, u64::MAX, AS_IT_IS, recall).expect("granted");
    *place.lock().expect("whole") = Some(layout);
    let start = Awake::now();
    write(&fs, inode, BLOCK, &[7; BLOCK as usize]);
    assert!(start.elapsed() < RECALL_MAX / 2, "the layout was returned");
    assert!(place.lock().expect("whole").is_none());
    assert_eq!(content(&fs, inode)[BLOCK as usize], 7);
}

#[test]
fn an_unmount_fails_beside_a_holder_that_does_not_answer() {
    let fs = mounted(32 << 20, BLOCK);
    let inode = file(&fs, "file", &fill(1, 5 * BLOCK as usize));
    let (kept, calls, _recalled) = observed(&fs, inode, 0, BLOCK);
    let (revoked, ..) = observed(&fs, inode, 2 * BLOCK, BLOCK);
    write(&fs, inode, 2 * BLOCK, &fill(2, BLOCK as usize));
    let (start, awake) = (Instant::now(), Awake::now());
    assert!(matches!(fs.unmount(), Err(Error::LayoutsHeld { count: 2 })));
    assert!(start.elapsed() >= RECALL_MAX && awake.elapsed() < 3 * RECALL_MAX && calls.load(SeqCst) == 1);
    assert!(kept.is_valid() && kept.is_recalled() && !revoked.is_valid());
    // It goes on, with new layouts too.
    write(&fs, inode, 4 * BLOCK, &fill(3, BLOCK as usize));
    drop(fs.layout(inode, 4 * BLOCK, BLOCK, AS_IT_IS, || {}).expect("granted"));
    drop((kept, revoked));
    let space = fs.space();
    fs.unmount().expect("unmounted");
    fs.unmount().expect("nothing to do");
    let again = FileSystem::mount(fs.drive().clone(), &MountOptions::default()).expect("mounts");
    assert!(again.recovery().clean);
    assert_eq!(again.space().block, space.block, "no sector was saved as taken");
}

#[test]
fn a_mount_that_writes_nothing_has_layouts_and_one_that_stopped_has_not() {
    let fs = mounted(32 << 20, BLOCK);
    let inode = file(&fs, "file", &fill(1, 3 * BLOCK as usize));
    write(&fs, inode, 100, &[1; 100]);
    fs.unmount().expect("unmounted");
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let reader = FileSystem::mount(fs.drive().clone(), &options).expect("mounts");
    let layout = reader.layout(inode, 0, u64::MAX, SETTLED, || {}).expect("granted");
    assert_eq!(layout.extents()[0].place, LayoutPlace::ThroughFileSystem, "it settles nothing");
    compare(&reader, inode, layout.extents(), &mut [0; 4]);
    drop(layout);
    reader.unmount().expect("unmounted");

    let device = FaultDevice::new(MemoryDevice::new(16 << 20, 32 << 20, PersistenceDomain::Gpf), Access::Flush, 40, true);
    let fs = mounted_on(device, BLOCK);
    let inode = file(&fs, "file", b"");
    let layout = fs.layout(inode, 0, BLOCK, AS_IT_IS, || {}).expect("granted");
    drop(layout);
    while fs.stopped().is_none() {
        let _one_fails = fs.write(inode, 0, &fill(1, BLOCK as usize), PLAIN);
    }
    assert!(matches!(fs.layout(inode, 0, BLOCK, AS_IT_IS, || {}), Err(Error::Stopped { .. })));
}

#[test]
fn what_has_no_layout_is_refused() {
    let fs = mounted(32 << 20, BLOCK);
    let inode = file(&fs, "file", b"bytes");
    let layout = |inode, offset, length| fs.layout(inode, offset, length, AS_IT_IS, || {});
    let link = NewInode { mode: file_type::SYMLINK | 0o777, uid: 0, gid: 0, rdev: 0, target: b"file" };
    let link = fs.create(InodeNumber::ROOT, b"link", &link).expect("made").inode;
    assert!(matches!(layout(InodeNumber::ROOT, 0, 1), Err(Error::IsDirectory)));
    for (inode, offset, length) in [(link, 0, 1), (inode, 0, 0), (inode, u64::MAX, 1), (inode, 5, 0)] {
        assert!(matches!(layout(inode, offset, length), Err(Error::InvalidArgument(_))));
    }
    assert!(matches!(layout(InodeNumber::new(77), 0, 1), Err(Error::Stale(_))));
    let held: Vec<Layout> = (0..FILE_LAYOUTS_MAX).map(|_| layout(inode, 0, 1).expect("granted")).collect();
    let refused = layout(inode, 0, 1);
    assert!(matches!(refused, Err(Error::TooManyLayouts { most: FILE_LAYOUTS_MAX, .. })), "{refused:?}");
    drop(layout(link, 0, 1));
    drop(held);
    layout(inode, 0, 1).expect("granted");
}

/// Two holders that come and go, a writer, and one that truncates: while a layout is held, its sectors have what `read` returns.
#[test]
fn layouts_stay_true_beside_writers() {
    const BLOCKS: u64 = 6;
    let fs = mounted(32 << 20, BLOCK);
    let inode = file(&fs, "file", &fill(1, (BLOCKS * BLOCK) as usize));
    let seen = AtomicUsize::new(0);
    const ENOUGH: usize = 20;
    let (begun, is_over) = (Awake::now(), AtomicBool::new(false));
    let goes_on = || {
        is_over.fetch_or(!begun.goes_on(Duration::from_secs(2), seen.load(SeqCst) > ENOUGH), SeqCst);
        !is_over.load(SeqCst)
    };
    std::thread::scope(|scope| {
        let goes_on = &goes_on;
        for seed in 0..2 {
            let (fs, seen) = (&fs, &seen);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while goes_on() {
                    let (sender, recalled) = channel();
                    let (first, count) = (random.below(BLOCKS), 1 + random.below(3));
                    let options = LayoutOptions { settle: random.one_in(2) };
                    let layout = fs.layout(inode, first * BLOCK, count * BLOCK, options, move || _ = sender.send(()));
                    let layout = layout.expect("granted");
                    compare_leased(fs, inode, &layout, seen);
                    let _waits_a_little = recalled.recv_timeout(Duration::from_millis(random.below(3)));
                    compare_leased(fs, inode, &layout, seen);
                }
            });
        }
        let fs = &fs;
        scope.spawn(move || {
            for number in 2.. {
                let (block, bytes) = (number % BLOCKS, if number % 3 == 0 { 500 } else { BLOCK as usize });
                write(fs, inode, block * BLOCK, &fill(number, bytes));
                if number % 17 == 0 {
                    resize(fs, inode, number % (BLOCKS * BLOCK));
                }
                if !goes_on() {
                    return;
                }
            }
        });
    });
    assert!(seen.load(SeqCst) > ENOUGH, "{seen:?} extents compared");
    fs.unmount().expect("unmounted");
}

/// Compares the sectors of a held layout with `read`, if it was valid until both were read.
fn compare_leased(fs: &FileSystem, inode: InodeNumber, layout: &Layout, seen: &AtomicUsize) {
    for extent in layout.extents() {
        let mut read = vec![0; extent.bytes as usize];
        let on_device = match extent.place {
            LayoutPlace::Sectors { sector } => sectors(fs, sector, extent.bytes),
            LayoutPlace::Hole | LayoutPlace::Unwritten { .. } => vec![0; extent.bytes as usize],
            _ => continue,
        };
        let count = fs.read(inode, extent.file_offset, &mut read).expect("read");
        if layout.is_valid() {
            assert!(on_device[..count] == read[..count], "{extent:?}");
            seen.fetch_add(usize::from(count > 0), SeqCst);
        }
    }
}
