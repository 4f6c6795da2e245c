//! Durable appends of 4 KiB, and files that are made, appended to and removed, by one thread and by as many as there are CPUs (WineFS Fig. 6b, 6c
//! and 10): files whose home is the memory zone beside files without a home, whose whole blocks go to fresh sectors. A measurement, not a test of
//! limits.
//!
//!     cargo test --profile soak -p tandemfs-fs --test append_speed -- --ignored --nocapture
//!
//! Both halves of the device are in /dev/shm, so a block command costs a system call and a copy, and no drive's time. All subjects take
//! their turn in each round, on one file system; *memory* copies as many bytes to the same memory half, flushed and fenced.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tandemfs_device::Drive;
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, Home, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

const MEMORY: u64 = 3 << 30;
const BLOCKS: u64 = 4 << 30;
const TURN: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
/// Appends to a file before it is emptied.
const APPENDS: u64 = 4096;
/// Appends to a file that is removed.
const SMALL: u64 = 16;
const PAGE: [u8; 4096] = [5; 4096];

fn half(name: &str, bytes: u64) -> String {
    let path = format!("/dev/shm/tandemfs-append-speed-{}-{name}", std::process::id());
    std::fs::File::create_new(&path).and_then(|file| file.set_len(bytes)).expect("room in /dev/shm");
    path
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> InodeNumber {
    fs.create(parent, name.as_bytes(), &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }).expect("made").inode
}

/// One operation of a thread with this number, the `count`-th: its file is in this directory.
type Operation<'s> = &'s (dyn Fn(usize, u64) + Sync);

/// Operations a second of some threads.
fn turn(threads: usize, operation: Operation<'_>) -> f64 {
    let (start, ends) = (Barrier::new(threads + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let counting: Vec<_> = (0..threads)
            .map(|thread| {
                let (start, ends) = (&start, &ends);
                scope.spawn(move || {
                    start.wait();
                    let (began, mut count) = (Instant::now(), 0_u64);
                    while !ends.load(Relaxed) {
                        operation(thread, count);
                        count += 1;
                    }
                    count as f64 / began.elapsed().as_secs_f64()
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(TURN);
        ends.store(true, Relaxed);
        counting.into_iter().map(|thread| thread.join().expect("ends")).sum()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn appends_and_files_that_come_and_go() {
    let (memory, block) = (half("memory", MEMORY), half("block", BLOCKS));
    let device = open_device(&format!("memory={memory},block={block}"), &DeviceOptions::default());
    std::fs::remove_file(&memory).expect("removed; the device keeps it");
    std::fs::remove_file(&block).expect("removed; the device keeps it");
    let device = device.expect("opens");
    let bare = Drive::new(device.clone());
    make_file_system(&bare, &FormatOptions { block_bytes: 4096, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts");
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let directories = |home, name: &str| -> Vec<(InodeNumber, InodeNumber)> {
        let of_thread = |thread| {
            let directory = create(&fs, InodeNumber::ROOT, &format!("{name}-{thread}"), file_type::DIRECTORY);
            fs.set_home(directory, home).expect("has a home");
            (directory, create(&fs, directory, "appended", file_type::REGULAR))
        };
        (0..threads).map(of_thread).collect()
    };
    let of_memory = directories(Home::Memory, "memory");
    let of_blocks = directories(Home::Block, "block");
    let append = |files: &[(InodeNumber, InodeNumber)], thread: usize, count: u64| {
        let file = files[thread].1;
        if count.is_multiple_of(APPENDS) {
            fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("emptied");
        }
        fs.append(file, &PAGE, WriteOptions::default()).expect("appended");
    };
    let come_and_go = |files: &[(InodeNumber, InodeNumber)], thread: usize, count: u64| {
        let name = format!("file-{count}");
        let file = create(&fs, files[thread].0, &name, file_type::REGULAR);
        (0..SMALL).for_each(|_| _ = fs.append(file, &PAGE, WriteOptions::default()).expect("appended"));
        fs.unlink(files[thread].0, name.as_bytes()).expect("removed");
    };
    // Another half of the same kind: the file system has all of its own.
    let raw = half("raw", 1 << 30);
    let raw_device = open_device(&format!("memory={raw}"), &DeviceOptions::default());
    std::fs::remove_file(&raw).expect("removed; the device keeps it");
    let raw_device = raw_device.expect("opens");
    let copy = |thread: usize, count: u64| {
        let path = raw_device.byte_path();
        let offset = (thread as u64 % 4 * 65_536 + count % 65_536) * 4096;
        path.store(offset, &PAGE).expect("stored");
        path.flush(offset, 4096);
        path.fence();
    };
    println!("{threads} CPUs, domain {}, blocks of 4 KiB; medians of {ROUNDS} rounds, operations a second", bare.domain());
    let subjects: [(&str, Operation<'_>, Operation<'_>); 2] = [
        ("appends of 4 KiB", &|thread, count| append(&of_memory, thread, count), &|thread, count| append(&of_blocks, thread, count)),
        ("files made, 16 appends, removed", &|thread, count| come_and_go(&of_memory, thread, count), &|thread, count| {
            come_and_go(&of_blocks, thread, count)
        }),
    ];
    for (name, memory, block) in subjects {
        let mut alone = [0.0; 3];
        for threads in [1, threads] {
            let (mut rates, mut shares) = ([Vec::new(), Vec::new(), Vec::new()], Vec::new());
            for _ in 0..ROUNDS {
                let round = [turn(threads, memory), turn(threads, block), turn(threads, &copy)];
                shares.push(round[0] / round[1]);
                rates.iter_mut().zip(round).for_each(|(rates, rate)| rates.push(rate));
                fs.checkpoint().expect("home");
            }
            let [memory, block, copies] = rates.map(median);
            println!(
                "{name}, {threads} threads: home memory {memory:.0}, home block {block:.0}, copies of 4 KiB {copies:.0}; memory beside block {:.1} %",
                median(shares) * 100.0
            );
            if threads == 1 {
                alone = [memory, block, copies];
            } else {
                println!("  {threads} threads beside one: {:.2}, {:.2}, {:.2}", memory / alone[0], block / alone[1], copies / alone[2]);
            }
        }
    }
    fs.unmount().expect("unmounts");
}
