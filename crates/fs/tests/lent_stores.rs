//! Memory lent for stores: what a program stored is what calls read; what ends a lease and what does not; times; a program that does not stop
//! storing; bounds; real threads.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use support::{create, mounted, read, write};
use tandemfs_crash::{Awake, MemoryDevice, Storing, Window, check_device, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{
    AllocateMode, Borrower, Error, FileSystem, FormatOptions, Home, IDLE_MAX, LENT_BYTES, LayoutOptions, STORE_LEASES_MAX, STORES_END_MAX,
    SetAttributes, StoreAccess, StoreLease, WriteOptions, make_file_system, no_wait,
};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

fn device(block_zone_bytes: u64, block_bytes: u32, checksum_kind: ChecksumKind) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(48 * MIB, block_zone_bytes, PersistenceDomain::Adr));
    let options = FormatOptions { block_bytes, checksum_kind, ..FormatOptions::default() };
    make_file_system(&Drive::new(device.clone()), &options).expect("mkfs");
    device
}

/// A program with a lease.
struct Program {
    storing: Arc<Storing>,
    lease: Arc<StoreLease>,
    window: Window,
}

impl Program {
    fn lend(fs: &Arc<FileSystem>, borrower: &Arc<Borrower>, file: InodeNumber, offset: u64) -> Option<Self> {
        let (storing, access) = Storing::new();
        let lease = fs.lend_stores(borrower, &access, file, offset).expect("it can be asked for")?;
        let window = Window::of(fs.drive(), &lease).expect("mapped");
        Some(Self { storing, lease, window })
    }

    /// Overwrites bytes durably; false if the daemon has to.
    fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if !self.storing.enter() {
            return false;
        }
        self.window.store(offset, bytes).and_then(|()| self.window.persist(offset, bytes.len() as u64)).expect("stored");
        self.storing.leave()
    }
}

fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

fn is_checked(device: &MemoryDevice, what: &str) {
    let counts = check_device(device, false).unwrap_or_else(|found| panic!("{what}: {found}"));
    assert_eq!(counts.open_pages, 0, "{what}");
}

#[test]
fn what_is_stored_is_what_calls_read() {
    for block_bytes in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        for (block_zone, checksums) in [(0, ChecksumKind::Crc32c), (16 * MIB, ChecksumKind::Crc32c), (16 * MIB, ChecksumKind::None)] {
            let what = format!("blocks of {block_bytes}, {block_zone} B of block zone, {checksums:?}");
            let device = device(block_zone, block_bytes, checksums);
            let (fs, borrower) = (Arc::new(mounted(&device)), Arc::default());
            let file = create(&fs, b"file");
            let mut content = fill(1, 2 * MIB as usize + 5000);
            write(&fs, file, 0, &content);
            for (offset, length) in [(100, 700), (MIB as usize - 20, 40), (content.len() - 10, 10)] {
                let bytes = fill(offset as u64, length); // data logs
                write(&fs, file, offset as u64, &bytes);
                content[offset..offset + length].copy_from_slice(&bytes);
            }
            for round in 0..3_u64 {
                for at in [5, MIB + 70_000, 2 * MIB + 4000] {
                    let program = Program::lend(&fs, &borrower, file, at).unwrap_or_else(|| panic!("{what}: lent at {at}"));
                    let lent = program.window.bytes();
                    assert!(lent.contains(&at) && lent.end <= content.len() as u64, "{what}: {lent:?} for {at}");
                    assert!(lent.start / LENT_BYTES == (lent.end - 1) / LENT_BYTES || u64::from(block_bytes) > LENT_BYTES);
                    for (offset, length) in [(at, 1), (lent.start, 64), (lent.end - 900, 900)] {
                        let bytes = fill(round * 1000 + offset, length);
                        assert!(program.write(offset, &bytes), "{what}");
                        content[offset as usize..offset as usize + length].copy_from_slice(&bytes);
                    }
                    if round == 1 {
                        fs.end_stores(&program.lease).expect("ended");
                        fs.end_stores(&program.lease).expect("it has ended");
                    }
                    assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}, round {round}, {at}");
                    assert!(!program.write(at, &[1]), "{what}: the lease has ended");
                    assert_eq!(fs.stores_lent(), (0, 0));
                }
            }
            let program = Program::lend(&fs, &borrower, file, 0).expect("lent");
            assert!(program.write(7, b"at last"));
            content[7..14].copy_from_slice(b"at last");
            fs.unmount().expect("an unmount ends it");
            is_checked(&device, &what);
            let fs = mounted(&device);
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}");
        }
    }
}

type Call = fn(&Arc<FileSystem>, InodeNumber);

#[test]
fn who_wants_the_blocks_ends_the_lease() {
    let calls: [(&str, Call); 12] = [
        ("a read", |fs, file| assert_eq!(read(fs, file, 8192, 10).len(), 10)),
        ("a write", |fs, file| write(fs, file, 8192, b"some")),
        ("a whole block", |fs, file| write(fs, file, 8192, &[4; 4096])),
        ("a truncation", |fs, file| assert_eq!(fs.set_attributes(file, &size(8192)).expect("cut").size, 8192)),
        ("a punch", |fs, file| fs.allocate(file, 8192, 4096, AllocateMode::Punch).expect("punched")),
        ("zeros", |fs, file| fs.allocate(file, 8192, 4096, AllocateMode::Zero { keep_size: true }).expect("zeroed")),
        ("a collapse", |fs, file| fs.allocate(file, 8192, 65_536, AllocateMode::Collapse).expect("collapsed")),
        ("a mapping", |fs, file| drop(fs.map(file, 8192, 4096, false).expect("mapped"))),
        ("loads", |fs, file| assert!(!fs.lend(file, 0).expect("lent").is_empty())),
        ("a layout", |fs, file| {
            drop(fs.layout(file, 0, 65_536, LayoutOptions::default(), || {}).expect("a layout"));
        }),
        ("a copy", |fs, file| {
            let other = create(fs, b"other");
            assert_eq!(fs.copy_range((file, 0), (other, 0), 10_000, WriteOptions::default()).expect("copied"), 10_000);
        }),
        ("a lease", |fs, file| assert!(Program::lend(fs, &Arc::default(), file, 8192).is_some())),
    ];
    for (what, call) in calls {
        let device = device(0, 4096, ChecksumKind::Crc32c);
        let (fs, borrower) = (Arc::new(mounted(&device)), Arc::default());
        let file = create(&fs, b"file");
        write(&fs, file, 0, &fill(1, 3 * MIB as usize));
        let program = Program::lend(&fs, &borrower, file, 8192).expect("lent");
        let beside = Program::lend(&fs, &borrower, file, 2 * MIB).expect("lent");
        assert!(program.write(8192, b"stored") && beside.write(2 * MIB, b"beside"));
        call(&fs, file);
        assert!(!program.write(8192, b"late"), "{what} ends it");
        if !matches!(what, "a truncation" | "a collapse") {
            assert!(beside.write(2 * MIB, b"BESIDE"), "{what}: another window stays");
            assert_eq!(read(&fs, file, 2 * MIB, 6), b"BESIDE");
        }
        fs.unmount().expect("unmounts");
        is_checked(&device, what);
    }
}

#[test]
fn what_needs_no_blocks_leaves_the_lease() {
    let device = device(16 * MIB, 16 << 10, ChecksumKind::Crc32c);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::default());
    let file = create(&fs, b"file");
    write(&fs, file, 0, &fill(1, 2 * MIB as usize));
    let program = Program::lend(&fs, &borrower, file, 0).expect("lent");
    assert!(program.write(0, b"first"));
    let mut bytes = [0; 5];
    let generation = fs.attributes(file).expect("known").generation;
    fs.remember(file, generation, 1).expect("held");
    assert!(matches!(no_wait(|| fs.read(file, 0, &mut bytes)), Err(Error::WouldWait)));
    assert!(matches!(no_wait(|| fs.write(file, 0, b"x", WriteOptions::default())), Err(Error::WouldWait)));
    write(&fs, file, 3 * MIB / 2, b"in another window");
    fs.attributes(file).expect("known");
    fs.append(file, b"at the end", WriteOptions::default()).expect("appended");
    fs.write_back_all().expect("written back");
    fs.set_home(file, Home::Block).expect("has another home");
    while fs.move_homes().expect("moves") {}
    while fs.close_open_pages().expect("closes") {}
    fs.checkpoint().expect("home");
    fs.unlink(InodeNumber::ROOT, b"file").expect("unlinked");
    fs.forget(file, 1);
    assert!(
        program.write(0, b"still") && fs.attributes(file).is_ok(),
        "nobody wanted the blocks, and an unlinked file lives as long as its lease"
    );
    fs.end_stores(&program.lease).expect("ended");
    assert!(fs.attributes(file).is_err(), "it ends with it");
    fs.unmount().expect("unmounts");
    is_checked(&device, "left");
}

#[test]
fn what_cannot_be_lent_is_not() {
    let device = device(16 * MIB, 4096, ChecksumKind::Crc32c);
    let fs = Arc::new(mounted(&device));
    let lend = |file, offset| {
        let (_storing, access) = Storing::new();
        fs.lend_stores(&Arc::default(), &access, file, offset).map(|lease| lease.map(|lease| lease.extents().to_vec()))
    };
    assert!(matches!(lend(InodeNumber::ROOT, 0), Err(Error::InvalidArgument(_) | Error::IsDirectory)));
    let file = create(&fs, b"file");
    assert!(lend(file, 0).expect("asked").is_none(), "an empty file");
    write(&fs, file, 0, &fill(1, 100_000));
    fs.set_attributes(file, &size(300_000)).expect("a hole");
    for offset in [102_400, 299_999, 300_000, 5 * MIB] {
        assert!(lend(file, offset).expect("asked").is_none(), "at {offset}");
    }
    let mapping = fs.map(file, 0, 4096, false).expect("mapped");
    assert!(lend(file, 50_000).expect("asked").is_none(), "a mapped window");
    drop(mapping);
    let at = lend(file, 50_000).expect("asked").expect("lent")[0].device_offset;
    assert_eq!(read(&fs, file, 0, 1).len(), 1);
    device.damage(|zones| zones.memory[at as usize + 5 * 4096 + 9] ^= 1);
    assert!(lend(file, 50_000).expect("asked").is_none(), "damage never gets a new checksum");
    assert!(matches!(fs.read(file, 0, &mut [0; 65_536]), Err(Error::DamagedData { .. })));
    let other = create(&fs, b"other");
    fs.set_home(other, Home::Block).expect("has a home");
    write(&fs, other, 0, &fill(1, 100_000));
    assert!(lend(other, 0).expect("asked").is_none(), "a file of the block zone");
}

#[test]
fn times_change_where_somebody_looks() {
    let device = device(0, 4096, ChecksumKind::None);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::default());
    let file = create(&fs, b"file");
    write(&fs, file, 0, &fill(1, 100_000));
    let program = Program::lend(&fs, &borrower, file, 0).expect("lent");
    let times = || fs.attributes(file).map(|attributes| (attributes.mtime, attributes.ctime)).expect("known");
    let before = times();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(times(), before, "nothing was stored");
    assert!(program.write(0, b"first"));
    let first = times();
    assert!(first > before && first.0 > before.0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(times(), first);
    assert!(program.write(0, b"again"));
    let named = fs.lookup(InodeNumber::ROOT, b"file").expect("known");
    assert!(named.mtime > first.0, "by name");
    std::thread::sleep(Duration::from_millis(20));
    assert!(program.write(0, b"at last"));
    fs.end_stores(&program.lease).expect("ended");
    assert!(times().0 > named.mtime, "when it ends");
    fs.unmount().expect("unmounts");
}

#[test]
fn who_does_not_stop_loses_the_bytes_and_harms_nobody() {
    for block_bytes in [4096, 64 << 10] {
        let device = device(0, block_bytes, ChecksumKind::Crc32c);
        let (fs, borrower) = (Arc::new(mounted(&device)), Arc::<Borrower>::default());
        let file = create(&fs, b"file");
        let mut content = fill(1, MIB as usize - 3000);
        write(&fs, file, 0, &content);
        let program = Program::lend(&fs, &borrower, file, 0).expect("lent");
        let second = create(&fs, b"second");
        write(&fs, second, 0, &[9; 70_000]);
        let other = Program::lend(&fs, &borrower, second, 0).expect("lent");
        assert!(program.storing.enter() && other.storing.enter());
        program.window.store(100, b"half").expect("stored");
        content[100..104].copy_from_slice(b"half");
        let start = Instant::now();
        assert!(read(&fs, file, 0, content.len() + 1) == content, "what was stored before is copied");
        assert!(start.elapsed() >= STORES_END_MAX && borrower.is_late());
        let start = Awake::now();
        assert_eq!(read(&fs, second, 0, 3), [9; 3]);
        assert!(start.elapsed() < STORES_END_MAX, "nobody waits for it a second time");
        assert!(Program::lend(&fs, &borrower, file, 0).is_none(), "it gets none any more");
        assert!(Program::lend(&fs, &Arc::default(), file, 0).is_some(), "others do");
        let kept_back = fs.stores_lent().1;
        assert!(kept_back >= MIB - 4096 + 69_632, "{kept_back} B are kept back");
        // Others take all room that there is; the program comes back.
        let filler = create(&fs, b"filler");
        let (mut at, piece) = (0, fill(3, 64 << 10));
        while fs.write(filler, at, &piece, WriteOptions::default()).is_ok() {
            at += piece.len() as u64;
        }
        let late = vec![0xee; (program.window.bytes().end - program.window.bytes().start) as usize];
        program.window.store(0, &late).expect("stored");
        other.window.store(0, &[0xee; 60_000]).expect("stored");
        assert!(read(&fs, file, 0, content.len() + 1) == content && read(&fs, second, 0, 70_000) == [9; 70_000]);
        for place in (0..at).step_by(piece.len()) {
            assert!(read(&fs, filler, place, piece.len()) == piece, "another file, at {place}");
        }
        assert!(!program.storing.leave() && !other.storing.leave(), "its bytes do not count");
        assert!(matches!(fs.unmount(), Err(Error::StoresHeld { bytes }) if bytes == kept_back));
        program.storing.unmap();
        assert!(matches!(fs.unmount(), Err(Error::StoresHeld { bytes }) if bytes < kept_back));
        other.storing.unmap();
        fs.space();
        assert_eq!(fs.stores_lent().1, 0, "they are free when nobody can store to them");
        fs.unmount().expect("unmounts");
        is_checked(&device, "taken away");
    }
}

/// A program that has ended is not waited for, however it left its words.
#[test]
fn who_is_gone_is_not_waited_for() {
    let device = device(0, 16 << 10, ChecksumKind::Crc32c);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::<Borrower>::default());
    let file = create(&fs, b"file");
    write(&fs, file, 0, &[1; 50_000]);
    let program = Program::lend(&fs, &borrower, file, 0).expect("lent");
    assert!(program.storing.enter());
    program.window.store(10, &[2; 10]).expect("stored");
    program.storing.unmap();
    let start = Awake::now();
    assert_eq!(read(&fs, file, 9, 12), [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert!(start.elapsed() < STORES_END_MAX && !borrower.is_late());
    assert_eq!(fs.stores_lent(), (0, 0));
    fs.unmount().expect("unmounts");
    is_checked(&device, "gone");
}

/// The end of a lease is held up, as by a stop of the daemon, which the program goes on after: that is not the program's fault.
#[test]
fn regression_a_stop_of_the_daemon_makes_no_program_late() {
    /// A thread is inside, and leaves at the second look.
    #[derive(Default)]
    struct Stopped(AtomicU64);

    impl StoreAccess for Stopped {
        fn revoke(&self) {}

        fn is_storing(&self) -> bool {
            self.0.load(SeqCst) < 2
        }

        fn wait(&self, _: Duration) {
            if self.0.fetch_add(1, SeqCst) == 0 {
                std::thread::sleep(STORES_END_MAX + Duration::from_millis(50));
            }
        }

        fn take_away(&self) {
            panic!("what was stored is taken away");
        }

        fn has_stored(&self) -> bool {
            true
        }

        fn is_possible(&self) -> bool {
            true
        }
    }

    let device = device(0, 4096, ChecksumKind::Crc32c);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::<Borrower>::default());
    let file = create(&fs, b"file");
    write(&fs, file, 0, &[1; 50_000]);
    let access: Arc<dyn StoreAccess> = Arc::new(Stopped::default());
    let lease = fs.lend_stores(&borrower, &access, file, 0).expect("asked").expect("lent");
    let window = Window::of(fs.drive(), &lease).expect("mapped");
    window.store(10, &[2; 10]).expect("stored");
    assert_eq!(read(&fs, file, 9, 12), [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert!(!borrower.is_late());
    assert_eq!(fs.stores_lent(), (0, 0));
    fs.unmount().expect("unmounts");
    is_checked(&device, "stopped");
}

/// False if the test was kept from using its lease, so that both have ended.
fn the_unused_lease_ends() -> bool {
    let device = device(0, 4096, ChecksumKind::Crc32c);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::default());
    let [used, unused] = [b"used".as_slice(), b"unused"].map(|name| {
        let file = create(&fs, name);
        write(&fs, file, 0, &[1; 10_000]);
        Program::lend(&fs, &borrower, file, 0).expect("lent")
    });
    fs.start_background().expect("started");
    let (start, awake) = (Instant::now(), Awake::now());
    let mut used_at = start;
    loop {
        let now = Instant::now();
        if !used.write(100, b"now and then") {
            assert!(used_at.elapsed() >= IDLE_MAX, "it is used");
            return false;
        }
        used_at = now;
        if fs.stores_lent().0 < 2 {
            break;
        }
        assert!(awake.elapsed() < 10 * IDLE_MAX, "both are there still");
        std::thread::sleep(IDLE_MAX / 10);
    }
    assert!(start.elapsed() > IDLE_MAX / 2 && !unused.write(100, b"late"));
    fs.unmount().expect("unmounts");
    is_checked(&device, "not used");
    true
}

#[test]
fn a_lease_that_is_not_used_ends() {
    assert!((0..20).any(|_| the_unused_lease_ends()));
}

#[test]
fn leases_of_a_program_are_bounded() {
    let device = device(0, 4096, ChecksumKind::Crc32c);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::default());
    let files: Vec<InodeNumber> = (0..=STORE_LEASES_MAX)
        .map(|number| {
            let file = create(&fs, format!("f{number}").as_bytes());
            write(&fs, file, 0, &[number as u8; PAGE as usize]);
            file
        })
        .collect();
    let held: Vec<Program> = files[1..].iter().map(|file| Program::lend(&fs, &borrower, *file, 0).expect("lent")).collect();
    assert!(Program::lend(&fs, &borrower, files[0], 0).is_none());
    assert!(Program::lend(&fs, &Arc::default(), files[0], 0).is_some(), "another program");
    fs.end_stores(&held[0].lease).expect("ended");
    assert!(Program::lend(&fs, &borrower, files[0], 0).is_some());
    fs.unmount().expect("unmounts");
    is_checked(&device, "bounded");
}

/// Each thread overwrites records of its own by its lease or, where that has ended, by a call; others read, write beside them and cut the file.
#[test]
fn threads_store_read_and_write_side_by_side() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 300;
    let device = device(0, 16 << 10, ChecksumKind::Crc32c);
    let (fs, borrower) = (Arc::new(mounted(&device)), Arc::<Borrower>::default());
    let file = create(&fs, b"file");
    write(&fs, file, 0, &vec![0; MIB as usize]);
    let done: [AtomicU64; THREADS as usize] = Default::default();
    let record = |thread: u64| 40_000 * thread + 123;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, borrower, done) = (&fs, &borrower, &done);
            scope.spawn(move || {
                let mut program = None;
                for round in 1..=ROUNDS {
                    let bytes = [round.to_le_bytes(); 100].concat();
                    if !program.as_ref().is_some_and(|program: &Program| program.write(record(thread), &bytes)) {
                        write(fs, file, record(thread), &bytes);
                        program = Program::lend(fs, borrower, file, record(thread));
                    }
                    done[thread as usize].store(round, SeqCst);
                }
            });
        }
        for reader in 0..2_u64 {
            let (fs, done) = (&fs, &done);
            scope.spawn(move || {
                for round in 0..ROUNDS / 2 {
                    let thread = (round + reader) % THREADS;
                    let least = done[thread as usize].load(SeqCst);
                    let found = read(fs, file, record(thread), 800);
                    let words: Vec<u64> = found.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 B"))).collect();
                    assert!(words.iter().all(|word| *word == words[0]), "a torn record: {words:?}");
                    assert!(words[0] >= least, "{} behind {least}", words[0]);
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        let fs = &fs;
        scope.spawn(move || {
            for round in 0..ROUNDS / 4 {
                match round % 4 {
                    0 => write(fs, file, 500_000, &[round as u8; 20_000]),
                    1 => assert!(fs.set_attributes(file, &size(MIB - 1000 * round)).is_ok(), "cut"),
                    2 => fs.write_back_all().map(drop).expect("written back"),
                    _ => while fs.close_open_pages().expect("closes") {},
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
    });
    for thread in 0..THREADS {
        assert!(read(&fs, file, record(thread), 800) == [ROUNDS.to_le_bytes(); 100].concat());
    }
    assert!(!borrower.is_late());
    fs.unmount().expect("unmounts");
    is_checked(&device, "side by side");
}
