//! Memory lent for stores, by the lease words of the ring and real threads on mapped memory: the words are what the file system asks for, records are
//! read whole, and nothing that was acknowledged is lost. What such a store costs beside a call is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-fs --test stores_by_words -- --ignored --nocapture

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use support::{create, read, write};
use tandemfs_crash::Window;
use tandemfs_device::{Drive, Mapping, StoreZone, ZoneHold};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Borrower, Error, FileSystem, FormatOptions, MountOptions, StoreAccess, StoreLease, WriteOptions, make_file_system};
use tandemfs_ring::{LeaseToken, LeaseWord, LeaseWords, Leases};

const ZONE_BYTES: u64 = 64 << 20;
const RECORD: usize = 4096;

/// A word of the ring, and the description of the zone that the program has, as the file system asks for them.
struct Word(LeaseWord, Arc<ZoneHold>);

impl StoreAccess for Word {
    fn revoke(&self) {
        self.0.revoke();
    }

    fn is_storing(&self) -> bool {
        self.0.is_storing()
    }

    fn take_away(&self) {
        self.0.take_away();
    }

    fn has_stored(&self) -> bool {
        self.0.has_stored()
    }

    fn is_possible(&self) -> bool {
        self.1.is_held().expect("known")
    }
}

/// A program, and the daemon's part of it.
struct Program {
    fs: Arc<FileSystem>,
    words: Arc<LeaseWords>,
    leases: Leases,
    borrower: Arc<Borrower>,
    /// What the program stores by; here its stores go by a mapping of each lease.
    zone: Mapping,
    hold: Arc<ZoneHold>,
}

/// What a program knows of a lease.
struct Known {
    token: LeaseToken,
    window: Window,
    lease: Arc<StoreLease>,
}

impl Program {
    fn new(fs: &Arc<FileSystem>) -> Self {
        let words = LeaseWords::new().expect("made");
        let leases = Leases::map(words.file()).expect("mapped");
        let (zone, hold) = fs.drive().store_zone(0).expect("it lends").expect("opened");
        let sent = StoreZone::received(zone.descriptor().try_clone_to_owned().expect("cloned"), zone.start(), zone.length());
        let zone = sent.map().expect("mapped");
        Self { fs: fs.clone(), words, leases, borrower: Arc::default(), zone, hold: Arc::new(hold) }
    }

    fn lend(&self, file: InodeNumber, offset: u64) -> Option<Known> {
        let word = self.words.lend()?;
        let token = word.token();
        let access: Arc<dyn StoreAccess> = Arc::new(Word(word, self.hold.clone()));
        let lease = self.fs.lend_stores(&self.borrower, &access, file, offset).expect("it can be asked for")?;
        let window = Window::of(self.fs.drive(), &lease).expect("mapped");
        Some(Known { token, window, lease })
    }

    fn store(&self, known: &Known, offset: u64, bytes: &[u8]) -> bool {
        let Some(inside) = self.leases.enter(known.token) else { return false };
        known.window.store(offset, bytes).and_then(|()| known.window.persist(offset, bytes.len() as u64)).expect("stored");
        inside.leave()
    }
}

fn mounted() -> (tempfile::TempDir, Arc<FileSystem>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memory");
    std::fs::File::create(&path).and_then(|file| file.set_len(ZONE_BYTES)).expect("a file");
    let drive = Drive::new(open_device(&format!("memory={}", path.display()), &DeviceOptions::default()).expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    (folder, Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts")))
}

#[test]
fn records_are_whole_and_none_is_lost() {
    const THREADS: usize = 2;
    const ROUNDS: u64 = 2000;
    let (_folder, fs) = mounted();
    let program = Program::new(&fs);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &vec![0; 16 * RECORD]);
    let done: [AtomicU64; THREADS] = Default::default();
    let place = |thread: usize| (thread * 5 * RECORD + 77) as u64;
    let bytes = |round: u64| [round.to_le_bytes(); RECORD / 8].concat();
    let stored: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (program, done, bytes) = (&program, &done, &bytes);
                scope.spawn(move || {
                    let (mut known, mut stored) = (None, 0);
                    for round in 1..=ROUNDS {
                        if known.as_ref().is_some_and(|known| program.store(known, place(thread), &bytes(round))) {
                            stored += 1;
                        } else {
                            write(&program.fs, file, place(thread), &bytes(round));
                            known = program.lend(file, place(thread));
                        }
                        done[thread].store(round, SeqCst);
                    }
                    stored
                })
            })
            .collect();
        let (fs, done) = (&fs, &done);
        scope.spawn(move || {
            for look in 0..200 {
                let thread = look % THREADS;
                let least = done[thread].load(SeqCst);
                let found = read(fs, file, place(thread), RECORD);
                let rounds: Vec<u64> = found.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                assert!(rounds.iter().all(|round| *round == rounds[0] && *round >= least), "{rounds:?} behind {least}");
                std::thread::yield_now();
            }
        });
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    assert!(stored > 0, "no lease was used");
    for thread in 0..THREADS {
        assert!(read(&fs, file, place(thread), RECORD) == bytes(ROUNDS), "the last record of thread {thread}");
    }
    assert!(!program.borrower.is_late());
    fs.unmount().expect("unmounts");
}

/// A thread stays inside until its lease is taken away. Its pages come back with the last mapping of the program's description.
#[test]
fn pages_come_back_when_no_mapping_is_left() {
    let (_folder, fs) = mounted();
    let program = Program::new(&fs);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &vec![1; 16 * RECORD]);
    let known = program.lend(file, 0).expect("lent");
    let inside = program.leases.enter(known.token).expect("lent");
    assert!(read(&fs, file, 0, 16 * RECORD) == vec![1; 16 * RECORD]);
    let at = known.lease.extents()[0].device_offset;
    program.zone.store(at, &[2; RECORD]).expect("stored");
    assert!(!inside.leave() && program.borrower.is_late());
    assert!(read(&fs, file, 0, RECORD) == vec![1; RECORD], "a late store is no part of the file");
    assert!(matches!(fs.unmount(), Err(Error::StoresHeld { bytes }) if bytes == 16 * RECORD as u64));
    let Program { zone, .. } = program;
    drop(zone);
    fs.space();
    assert_eq!(fs.stores_lent(), (0, 0));
    fs.unmount().expect("unmounts");
}

#[test]
#[ignore = "a measurement"]
fn cost() {
    const RECORDS: usize = 128;
    let (_folder, fs) = mounted();
    let program = Program::new(&fs);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &vec![0; RECORDS * RECORD]);
    let bytes = vec![7; RECORD];
    let ns = |rounds: usize, each: &mut dyn FnMut(u64)| {
        let mut all: Vec<f64> = (0..7)
            .map(|_| {
                let begun = Instant::now();
                (0..rounds).for_each(|round| each(black_box((round * 7 % RECORDS * RECORD) as u64)));
                begun.elapsed().as_nanos() as f64 / rounds as f64
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[3]
    };
    let call = ns(20_000, &mut |at| assert_eq!(fs.write(file, at, &bytes, WriteOptions::default()).expect("written"), RECORD));
    let known = program.lend(file, 0).expect("lent");
    assert_eq!(known.window.bytes(), 0..(RECORDS * RECORD) as u64);
    let bare = ns(50_000, &mut |at| {
        known.window.store(at, &bytes).and_then(|()| known.window.persist(at, RECORD as u64)).expect("stored");
    });
    let stored = ns(50_000, &mut |at| assert!(program.store(&known, at, &bytes)));
    fs.end_stores(&known.lease).expect("ended");
    let lease = ns(300, &mut |at| {
        let known = program.lend(file, at).expect("lent");
        assert!(program.store(&known, at, &bytes));
        fs.end_stores(&known.lease).expect("ended");
    });
    println!(
        "4 KiB, medians: copy, flush and fence {bare:.0} ns, under a lease {stored:.0} ns, call {call:.0} ns; a lease of {} KiB {lease:.0} ns",
        (RECORDS * RECORD) >> 10
    );
    fs.unmount().expect("unmounts");
}
