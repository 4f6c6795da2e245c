//! Durable appends of 4 KiB, and files that are made, appended to and removed, by one thread and by as many as there are CPUs (WineFS Fig. 6b, 6c
//! and 10): files whose home is the memory zone beside files without a home, whose whole blocks go to fresh sectors. A measurement, not a test of
//! limits.
//!
//!     cargo test --profile soak -p tandemfs-fs --test append_speed -- --ignored --nocapture
//!
//! Both halves of the device are in /dev/shm, so a block command costs a system call and a copy, and no drive's time. All subjects take
//! their turn in each round, on one file system; *memory* copies as many bytes to the same memory half, flushed and fenced.

use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tandemfs_device::{Device, Drive};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, Home, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

const MEMORY: u64 = 3 << 30;
const BLOCKS: u64 = 4 << 30;
const TURN: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
/// Turns that are short enough to have a CPU all the time on a machine that does other work too.
const SHORT_TURN: Duration = Duration::from_millis(2);
const SHORT_ROUNDS: usize = 500;
/// CPUs that need so many nanoseconds to hand a line over are far from each other: they share no cache. A virtual machine's may be near at one
/// time and far at another.
const FAR: u64 = 100;
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

/// A new file system with blocks of 4 KiB, on halves of these sizes.
fn file_system(memory_bytes: u64, block_bytes: u64) -> FileSystem {
    let (memory, block) = (half("memory", memory_bytes), half("block", block_bytes));
    let device = open_device(&format!("memory={memory},block={block}"), &DeviceOptions::default());
    std::fs::remove_file(&memory).expect("removed; the device keeps it");
    std::fs::remove_file(&block).expect("removed; the device keeps it");
    let device = device.expect("opens");
    make_file_system(&Drive::new(device.clone()), &FormatOptions { block_bytes: 4096, ..FormatOptions::default() }).expect("mkfs");
    FileSystem::mount(Drive::new(device), &MountOptions::default()).expect("mounts")
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> InodeNumber {
    fs.create(parent, name.as_bytes(), &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }).expect("made").inode
}

/// Another half of the same kind: file systems have all of their own.
fn raw() -> Arc<dyn Device> {
    let raw = half("raw", 1 << 30);
    let device = open_device(&format!("memory={raw}"), &DeviceOptions::default());
    std::fs::remove_file(&raw).expect("removed; the device keeps it");
    device.expect("opens")
}

fn copy_page(device: &dyn Device, thread: usize, count: u64) {
    let path = device.byte_path();
    let offset = (thread as u64 % 4 * 65_536 + count % 65_536) * 4096;
    path.store(offset, &PAGE).expect("stored");
    path.flush(offset, 4096);
    path.fence();
}

fn empty(fs: &FileSystem, file: InodeNumber) {
    fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("emptied");
}

fn append_page(fs: &FileSystem, file: InodeNumber, count: u64) {
    if count.is_multiple_of(APPENDS) {
        empty(fs, file);
    }
    fs.append(file, &PAGE, WriteOptions::default()).expect("appended");
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
    let fs = file_system(MEMORY, BLOCKS);
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
    let append = |files: &[(InodeNumber, InodeNumber)], thread: usize, count: u64| append_page(&fs, files[thread].1, count);
    let come_and_go = |files: &[(InodeNumber, InodeNumber)], thread: usize, count: u64| {
        let name = format!("file-{count}");
        let file = create(&fs, files[thread].0, &name, file_type::REGULAR);
        (0..SMALL).for_each(|_| _ = fs.append(file, &PAGE, WriteOptions::default()).expect("appended"));
        fs.unlink(files[thread].0, name.as_bytes()).expect("removed");
    };
    let raw_device = raw();
    let copy = |thread: usize, count: u64| copy_page(&*raw_device, thread, count);
    println!(
        "{threads} CPUs, domain {}, blocks of 4 KiB; medians of {ROUNDS} rounds, operations a second",
        raw_device.description().domain
    );
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

/// Nanoseconds that this thread has waited for a CPU.
fn waited() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel says how threads are scheduled");
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// Nanoseconds in which one thread hands a line of memory to the next, at best: each calls this with its own number.
fn hand_off(line: &AtomicUsize, thread: usize, threads: usize) -> u64 {
    let round = |round: usize| {
        let turn = round * threads + thread;
        for tries in 1_u32.. {
            if line.load(Acquire) >= turn {
                break;
            }
            if tries.is_multiple_of(1000) { std::thread::yield_now() } else { std::hint::spin_loop() } // the other may wait for this CPU
        }
        line.store(turn + 1, Release);
    };
    let batch = |batch: usize| {
        let began = Instant::now();
        (0..64).for_each(|index| round(batch * 64 + index));
        began.elapsed().as_nanos() as u64 / 64 / threads as u64
    };
    (0..8).map(batch).min().unwrap_or(0)
}

/// What some threads did that had a CPU all the time.
struct ShortTurn {
    operations_a_second: f64,
    hand_off: u64,
}

/// Operations of some threads that began together; `None` if one began late or had to wait for its CPU.
fn short_turn(threads: usize, operation: Operation<'_>) -> Option<ShortTurn> {
    let line = AtomicUsize::new(0);
    let turns: Vec<(Instant, Option<f64>, u64)> = std::thread::scope(|scope| {
        let counting: Vec<_> = (0..threads)
            .map(|thread| {
                let line = &line;
                scope.spawn(move || {
                    let hand_off = hand_off(line, thread, threads); // who does this with others begins with them
                    let (before, began, mut count) = (waited(), Instant::now(), 1_u64);
                    while began.elapsed() < SHORT_TURN {
                        operation(thread, count);
                        count += 1;
                    }
                    let rate = (count - 1) as f64 / began.elapsed().as_secs_f64();
                    (began, (waited() - before < SHORT_TURN.as_nanos() as u64 / 20).then_some(rate), hand_off)
                })
            })
            .collect();
        counting.into_iter().map(|thread| thread.join().expect("ends")).collect()
    });
    let begins = turns.iter().map(|(began, ..)| *began);
    let late = begins.clone().max()? - begins.min()?;
    let hand_off = turns.iter().map(|(.., hand_off)| *hand_off).min()?;
    let operations_a_second = turns.into_iter().map(|(_, rate, _)| rate).sum::<Option<f64>>()?;
    (late < SHORT_TURN / 4).then_some(ShortTurn { operations_a_second, hand_off })
}

/// What two threads cost each other: with files whose inodes are neighbours, with files whose inodes are in pages of their own, and with a
/// file system for each thread, which share nothing but the machine. Only turns count in which every thread had a CPU, so other work on the
/// machine takes turns away instead of changing what they say.
#[test]
#[ignore = "a measurement"]
fn what_threads_that_append_share() {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let systems: Vec<FileSystem> = (0..threads + 2).map(|_| file_system(256 << 20, 64 << 20)).collect();
    let file = |fs: &FileSystem, name: &str| {
        let file = create(fs, InodeNumber::ROOT, name, file_type::REGULAR);
        fs.set_home(file, Home::Memory).expect("has a home");
        file
    };
    let near: Vec<_> = (0..threads).map(|thread| file(&systems[0], &format!("near-{thread}"))).collect();
    let apart: Vec<_> = (0..threads)
        .map(|thread| {
            // Two pages of inodes lie between.
            (0..64).for_each(|other| _ = create(&systems[1], InodeNumber::ROOT, &format!("other-{thread}-{other}"), file_type::REGULAR));
            file(&systems[1], &format!("apart-{thread}"))
        })
        .collect();
    let own: Vec<_> = systems[2..].iter().map(|fs| file(fs, "own")).collect();
    let raw_device = raw();
    let subjects: [(&str, Operation<'_>); 4] = [
        ("inodes in one page", &|thread, count| append_page(&systems[0], near[thread], count)),
        ("inodes in pages of their own", &|thread, count| append_page(&systems[1], apart[thread], count)),
        ("a file system each", &|thread, count| append_page(&systems[2 + thread], own[thread], count)),
        ("copies", &|thread, count| copy_page(&*raw_device, thread, count)),
    ];
    let mut turns: Vec<[Vec<ShortTurn>; 2]> = subjects.iter().map(|_| Default::default()).collect();
    subjects.iter().for_each(|(_, operation)| _ = turn(threads, *operation)); // every page of the devices has been touched
    for _ in 0..SHORT_ROUNDS {
        // A turn begins with files that are empty.
        let files = near.iter().map(|file| (&systems[0], file)).chain(apart.iter().map(|file| (&systems[1], file)));
        files.chain(systems[2..].iter().zip(&own)).for_each(|(fs, file)| empty(fs, *file));
        for ((_, operation), turns) in subjects.iter().zip(&mut turns) {
            let round = [short_turn(1, *operation), short_turn(threads, *operation)];
            turns.iter_mut().zip(round).for_each(|(turns, turn)| turns.extend(turn));
        }
        systems.iter().for_each(|fs| fs.checkpoint().expect("home"));
    }
    let rate = |turns: &mut dyn Iterator<Item = &ShortTurn>| {
        let rates: Vec<f64> = turns.map(|turn| turn.operations_a_second).collect();
        (!rates.is_empty()).then(|| (rates.len(), median(rates)))
    };
    for ((name, _), [one, all]) in subjects.iter().zip(turns) {
        let Some((count, alone)) = rate(&mut one.iter()) else {
            println!("{name}: not known, the machine is too busy");
            continue;
        };
        println!("{name}: 1 thread {alone:.0} ({count} turns)");
        for (cpus, is_far) in [("near", false), ("far", true)] {
            let these = || all.iter().filter(|turn| (turn.hand_off >= FAR) == is_far);
            match rate(&mut these()) {
                Some((count, rate)) => println!(
                    "  {threads} threads on CPUs that are {cpus} ({:.0} ns to hand a line over): {rate:.0} ({count} turns), {:.2} of one",
                    median(these().map(|turn| turn.hand_off as f64).collect()),
                    rate / alone
                ),
                None => println!("  {threads} threads on CPUs that are {cpus}: no turn"),
            }
        }
    }
    systems.iter().for_each(|fs| fs.unmount().expect("unmounts"));
}
