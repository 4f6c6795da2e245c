//! One file by descriptors of every kind, one operation at a time, compared with an array of bytes: through the cache, appending, direct,
//! synchronous, through a mapping, by libaio and io_uring, opened before and after space became short. After each operation some of the
//! descriptors must read the array's bytes. A failure prints its seed and the last operations; `TANDEMFS_DESCRIPTORS_SEED` sets the first
//! seed, `TANDEMFS_DESCRIPTORS_OPERATIONS` the number of operations for each.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::exerciser::Random;
use super::sizes::pattern;
use crate::asynchronous::{Interface, Queue};
use crate::filled::{Filled, LITTLE_BYTES};
use crate::scene::{Difference, Scene};
use crate::sys::{ALIGNMENT, Mapping};

const LENGTH_MAX: u64 = 2 << 20;
const PAGES: usize = (LENGTH_MAX / ALIGNMENT) as usize;
const SEEDS: u64 = 3;
const OPERATIONS: u64 = 800;
/// The other file of copies: less than the most that is copied, with a hole in it.
const OTHER_BYTES: u64 = 300 << 10;

/// The flags of the open files.
const FLAGS: [i32; 5] = [0, libc::O_APPEND, libc::O_DIRECT, libc::O_DIRECT | libc::O_APPEND, libc::O_SYNC];
const CACHED: usize = 0;
const APPENDING: usize = 1;
const DIRECT: usize = 2;
const DIRECT_APPENDING: usize = 3;
const SYNCHRONOUS: usize = 4;

/// By what bytes are read.
#[derive(Debug, Clone, Copy)]
enum Reader {
    File(usize),
    Mapped,
    Aio,
    Ring,
    OpenedNow,
}

const READERS: [Reader; 9] = [
    Reader::File(CACHED),
    Reader::File(APPENDING),
    Reader::File(DIRECT),
    Reader::File(DIRECT_APPENDING),
    Reader::File(SYNCHRONOUS),
    Reader::Mapped,
    Reader::Aio,
    Reader::Ring,
    Reader::OpenedNow,
];

struct Run {
    path: PathBuf,
    files: [File; FLAGS.len()],
    other: File,
    aio: Queue,
    ring: Option<Queue>,
    mapping: Mapping,
    random: Random,
    model: Vec<u8>,
    others: Vec<u8>,
    /// Pages with bytes of their own. Where space may end only those are stored to: a store that finds no room is SIGBUS.
    held: [bool; PAGES],
    /// Whether space may end.
    scarce: bool,
    /// Whether what answers ENOSPC has changed nothing.
    whole_or_nothing: bool,
    /// Whether a mapping shows what was refused until it is made anew, and what was stored in the same pages goes with it.
    no_append_is_ignored: bool,
    refused_are_loaded: bool,
    done: Vec<String>,
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path).expect("opened")
}

fn is_no_space(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

fn align(range: (u64, u64)) -> (u64, u64) {
    let start = range.0 / ALIGNMENT * ALIGNMENT;
    (start, (range.0 + range.1).next_multiple_of(ALIGNMENT).min(LENGTH_MAX) - start)
}

impl Run {
    fn new(scene: &Scene<'_>, name: &str, seed: u64, scarce: bool) -> Self {
        let path = scene.path(name);
        let (files, other) = (FLAGS.map(|flags| open(&path, flags)), open(&scene.path(&format!("{name}-other")), 0));
        let mapping = Mapping::new(&files[CACHED], LENGTH_MAX as usize, true, true).expect("mapped");
        let mut others = pattern(seed, OTHER_BYTES as usize);
        others[100_000..200_000].fill(0);
        other.write_all_at(&others[..100_000], 0).expect("written");
        other.write_all_at(&others[200_000..], 200_000).expect("written");
        other.sync_all().expect("there is room for it");
        Self {
            path,
            files,
            other,
            aio: Queue::new(Interface::Aio, 1).expect("libaio is always there"),
            ring: Queue::new(Interface::IoUring, 1),
            mapping,
            random: Random::of(seed),
            model: Vec::new(),
            others,
            held: [false; PAGES],
            scarce,
            whole_or_nothing: scene.differs(Difference::NoSpaceChangesNothing),
            no_append_is_ignored: scene.differs(Difference::NoAppendIgnored),
            refused_are_loaded: scene.differs(Difference::RefusedBytesAreLoaded),
            done: Vec::new(),
        }
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    /// A range that may begin behind the end, borders of pages more often than others.
    fn range(&mut self) -> (u64, u64) {
        let reach = if self.random.below(12) == 0 { LENGTH_MAX } else { (self.size() + (48 << 10)).min(LENGTH_MAX) };
        let offset = self.random.below(reach);
        let longest = [100, 5000, 40_000, 40_000, 300_000][self.random.below(5) as usize];
        let length = 1 + self.random.below(longest);
        let (offset, length) = match self.random.below(4) {
            0 => (offset / ALIGNMENT * ALIGNMENT, length),
            1 => (offset / ALIGNMENT * ALIGNMENT, length.next_multiple_of(ALIGNMENT)),
            _ => (offset, length),
        };
        (offset, length.min(LENGTH_MAX - offset))
    }

    /// The part of a range that the file has.
    fn within(&self, range: (u64, u64)) -> (u64, u64) {
        let start = range.0.min(self.size());
        (start, range.1.min(self.size() - start))
    }

    fn fresh(&mut self, length: u64) -> Vec<u8> {
        let seed = self.random.below(1 << 30);
        pattern(seed, length as usize)
    }

    fn note(&mut self, what: &str, range: (u64, u64)) {
        self.done.push(format!("{what} {} + {}, size {}", range.0, range.1, self.model.len()));
    }

    // What the file has to hold.

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[offset as usize..end].copy_from_slice(bytes);
    }

    fn hold(&mut self, (offset, length): (u64, u64), held: bool) {
        if length > 0 {
            self.held[(offset / ALIGNMENT) as usize..=((offset + length - 1) / ALIGNMENT) as usize].fill(held);
        }
    }

    /// Takes what a write answered into the model: all, less where space may end, or no space.
    fn wrote(&mut self, offset: u64, bytes: &[u8], result: io::Result<usize>) {
        match result {
            Ok(count) => {
                assert!(count == bytes.len() || (self.scarce && (1..bytes.len()).contains(&count)), "{count} of {} B", bytes.len());
                self.put(offset, &bytes[..count]);
                self.hold((offset, count as u64), true);
                if count < bytes.len() {
                    self.map_anew();
                }
            }
            Err(error) if self.scarce && is_no_space(&error) => self.without_space(offset, bytes),
            Err(error) => panic!("{error}"),
        }
    }

    /// After ENOSPC: everything is as before, or, on a file system that promises less, some of the range is done.
    fn without_space(&mut self, offset: u64, bytes: &[u8]) {
        self.done.push("  no space".to_owned());
        self.map_anew();
        if self.whole_or_nothing {
            return;
        }
        let size = self.files[CACHED].metadata().expect("open").len();
        let end = offset + bytes.len() as u64;
        assert!(size == self.size() || (self.size()..=end).contains(&size), "{size} B after no space, {} before", self.size());
        self.model.resize(size as usize, 0);
        let range = self.within((offset, bytes.len() as u64));
        let found = self.read(Reader::File(CACHED), range);
        for (at, byte) in found.into_iter().enumerate() {
            let place = &mut self.model[range.0 as usize + at];
            assert!(byte == *place || byte == bytes[at], "byte {} after no space", range.0 + at as u64);
            *place = byte;
        }
    }

    // Operations.

    /// Where a mapping shows what was refused.
    fn map_anew(&mut self) {
        if self.refused_are_loaded {
            self.mapping = Mapping::new(&self.files[CACHED], LENGTH_MAX as usize, true, true).expect("mapped");
        }
    }

    /// Where a refused write takes stores with it they are sent before.
    fn keep_stores(&self) {
        if self.scarce && self.refused_are_loaded {
            self.mapping.sync().expect("synced");
        }
    }

    fn write_by(&mut self, file: usize) {
        self.keep_stores();
        let range = self.range();
        let (offset, length) = if FLAGS[file] & libc::O_DIRECT != 0 { align(range) } else { range };
        self.note(["write", "", "write past the cache", "", "write synchronously"][file], (offset, length));
        let bytes = self.fresh(length);
        let result = if FLAGS[file] & libc::O_DIRECT != 0 {
            self.files[file].write_at(crate::sys::Aligned::of(&bytes).slice(), offset)
        } else {
            self.files[file].write_at(&bytes, offset)
        };
        self.wrote(offset, &bytes, result);
    }

    fn write_by_queue(&mut self, aio: bool) {
        self.keep_stores();
        let range = self.range();
        let (offset, length) = if aio { align(range) } else { range };
        self.note(if aio { "write by libaio" } else { "write by io_uring" }, (offset, length));
        let bytes = self.fresh(length);
        let result = match (aio, &mut self.ring) {
            (true, _) => self.aio.write_now(&self.files[DIRECT], offset, &bytes),
            (false, Some(ring)) => ring.write_now(&self.files[CACHED], offset, &bytes),
            (false, None) => self.files[CACHED].write_at(&bytes, offset),
        };
        self.wrote(offset, &bytes, result);
    }

    /// At the end by the descriptor or by the write's flag, whatever the offset.
    fn append(&mut self, by_flag: bool) {
        self.keep_stores();
        let length = self.range().1.min(LENGTH_MAX - self.size());
        let end = self.size();
        self.note(if by_flag { "append by flag" } else { "append" }, (end, length));
        let bytes = self.fresh(length);
        if length == 0 {
            return;
        }
        let result = if by_flag {
            rustix::io::pwritev2(&self.files[CACHED], &[IoSlice::new(&bytes)], 0, ReadWriteFlags::APPEND).map_err(io::Error::from)
        } else {
            self.files[APPENDING].write_at(&bytes, 0)
        };
        self.wrote(end, &bytes, result);
    }

    fn append_past_the_cache(&mut self) {
        // Whole blocks at the end of whole blocks.
        let end = self.size().next_multiple_of(ALIGNMENT);
        self.truncate_to(end);
        let length = align((0, self.range().1)).1.min(LENGTH_MAX - end);
        self.note("append past the cache", (end, length));
        let bytes = self.fresh(length);
        if length > 0 {
            let result = self.files[DIRECT_APPENDING].write_at(crate::sys::Aligned::of(&bytes).slice(), 0);
            self.wrote(end, &bytes, result);
        }
    }

    fn write_by_an_appender(&mut self) {
        if self.no_append_is_ignored {
            return self.append(false);
        }
        self.keep_stores();
        let (offset, length) = self.range();
        let flags = ReadWriteFlags::from_bits_retain(libc::RWF_NOAPPEND as u32);
        self.note("write without appending", (offset, length));
        let bytes = self.fresh(length);
        match rustix::io::pwritev2(&self.files[APPENDING], &[IoSlice::new(&bytes)], offset, flags) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            result => self.wrote(offset, &bytes, result.map_err(io::Error::from)),
        }
    }

    fn store(&mut self) {
        let range = self.range();
        let (offset, mut length) = self.within(range);
        if self.scarce {
            let pages = (offset / ALIGNMENT) as usize..PAGES;
            let held = pages.take_while(|page| self.held[*page]).count() as u64;
            length = length.min((offset / ALIGNMENT + held) * ALIGNMENT - offset.min((offset / ALIGNMENT + held) * ALIGNMENT));
        }
        self.note("store", (offset, length));
        let bytes = self.fresh(length);
        self.assert_size();
        self.assert_there((offset, length));
        if length == 0 {
            return;
        }
        let result = self.mapping.set_by_kernel(offset as usize, &bytes);
        let stored = match result {
            Ok(count) => count,
            // On ext4 near its end a page may need room that has bytes of its own.
            Err(error) if self.scarce && !self.whole_or_nothing && error.raw_os_error() == Some(libc::EFAULT) => 0,
            Err(error) => panic!("storing at {offset}: {error}"),
        };
        assert!(stored == bytes.len() || (self.scarce && !self.whole_or_nothing), "{stored} of {length} B stored");
        self.put(offset, &bytes[..stored]);
    }

    fn truncate_to(&mut self, size: u64) {
        self.note("truncate to", (size, 0));
        self.files[CACHED].set_len(size).expect("truncated");
        self.model.resize(size as usize, 0);
        let kept = size.div_ceil(ALIGNMENT) as usize;
        self.held[kept..].fill(false);
    }

    fn truncate(&mut self) {
        let size = if self.random.below(3) == 0 { self.random.below(self.size() + 1) } else { self.range().0 };
        self.truncate_to(size);
    }

    fn allocate(&mut self, mode: FallocateFlags) {
        let (offset, length) = self.range();
        if mode.contains(FallocateFlags::ZERO_RANGE) && self.scarce && !self.whole_or_nothing {
            return; // ext4 drops what is cached of the range before it finds no space
        }
        self.note(&format!("{mode:?}"), (offset, length));
        let (zero, punch) = (mode.contains(FallocateFlags::ZERO_RANGE), mode.contains(FallocateFlags::PUNCH_HOLE));
        match rustix::fs::fallocate(&self.files[CACHED], mode, offset, length) {
            Ok(()) => {
                if !mode.contains(FallocateFlags::KEEP_SIZE) {
                    self.model.resize(self.model.len().max((offset + length) as usize), 0);
                }
                let (start, count) = self.within((offset, length));
                if zero || punch {
                    self.model[start as usize..(start + count) as usize].fill(0);
                }
                if punch {
                    self.hold((offset, length), false);
                }
            }
            Err(Errno::NOSPC) if self.scarce && !punch => {
                let (start, count) = self.within((offset, length));
                let mut bytes = self.model[start as usize..(start + count) as usize].to_vec();
                if zero {
                    bytes.fill(0);
                }
                bytes.resize(length as usize, 0);
                self.without_space(offset, &bytes);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Inside the file, or from the other one.
    fn copy(&mut self, inside: bool) {
        let (from, length) = if inside {
            let range = self.range();
            self.within(range)
        } else {
            let from = self.random.below(OTHER_BYTES);
            (from, (1 + self.random.below(OTHER_BYTES / 2)).min(OTHER_BYTES - from))
        };
        let to = self.range().0;
        let length = length.min(LENGTH_MAX - to);
        self.note(&format!("copy {} {from} to", if inside { "inside from" } else { "from the other's" }), (to, length));
        if length == 0 || (inside && from < to + length && to < from + length) {
            return;
        }
        let source = if inside { &self.files[CACHED] } else { &self.other };
        let bytes = if inside { &self.model } else { &self.others }[from as usize..(from + length) as usize].to_vec();
        let result = rustix::fs::copy_file_range(source, Some(&mut { from }), &self.files[CACHED], Some(&mut { to }), length as usize);
        if let Ok(count) = result {
            // A caller has to go on after fewer.
            assert!((1..=bytes.len()).contains(&count), "{count} of {length} B");
            self.put(to, &bytes[..count]);
        } else {
            self.wrote(to, &bytes, result.map_err(io::Error::from));
        }
        // Holes may stay holes.
        self.hold((to, length), false);
    }

    fn operation(&mut self) {
        let any = self.random.below(FLAGS.len() as u64) as usize;
        let keep = FallocateFlags::KEEP_SIZE;
        match self.random.below(28) {
            0..=2 => self.write_by(CACHED),
            3 => self.write_by(SYNCHRONOUS),
            4 | 5 => self.write_by(DIRECT),
            6 => self.write_by_queue(true),
            7 | 8 => self.write_by_queue(false),
            9 | 10 => self.append(false),
            11 => self.append(true),
            12 | 13 => self.append_past_the_cache(),
            14 => self.write_by_an_appender(),
            15..=17 => self.store(),
            18 => self.truncate(),
            19 => self.allocate([keep, FallocateFlags::empty()][any % 2]),
            20 => self.allocate(FallocateFlags::PUNCH_HOLE | keep),
            21 => self.allocate(FallocateFlags::ZERO_RANGE | [keep, FallocateFlags::empty()][any % 2]),
            22 => self.copy(true),
            23 => self.copy(false),
            24 => {
                self.note("fsync", (any as u64, 0));
                self.files[any].sync_all().expect("synced");
            }
            25 => {
                self.note("msync", (0, 0));
                self.mapping.sync().expect("synced");
            }
            26 => {
                self.note("reopen", (any as u64, 0));
                self.files[any] = open(&self.path, FLAGS[any]);
                if any == CACHED {
                    self.mapping = Mapping::new(&self.files[any], LENGTH_MAX as usize, true, true).expect("mapped");
                }
            }
            _ => {
                self.note("forget", (0, 0));
                rustix::fs::fadvise(&self.files[any], 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
            }
        }
    }

    // Assertions on the current state.

    fn assert_size(&mut self) {
        let any = self.random.below(FLAGS.len() as u64) as usize;
        assert_eq!(self.files[any].metadata().expect("open").len(), self.size(), "size");
    }

    /// A load that fails ends the program; the kernel's own says so first.
    fn assert_there(&self, (offset, length): (u64, u64)) {
        let mut at = offset;
        while at < offset + length {
            self.mapping.probe(at as usize, 1).unwrap_or_else(|error| panic!("loading {at}: {error}"));
            at = (at / ALIGNMENT + 1) * ALIGNMENT;
        }
    }

    /// Reads a part of the file.
    fn read(&mut self, reader: Reader, range: (u64, u64)) -> Vec<u8> {
        let (start, count) = align(range);
        let cut = |whole: Vec<u8>| {
            let from = (range.0 - start) as usize;
            assert_eq!(whole.len() as u64, count.min(self.model.len() as u64 - start), "{reader:?}: a read ends where the file does");
            whole[from..from + range.1 as usize].to_vec()
        };
        let plain = |file: &File| {
            let mut found = vec![0; range.1 as usize];
            let count = file.read_at(&mut found, range.0).unwrap_or_else(|error| panic!("{reader:?}: {error}"));
            found.truncate(count);
            found
        };
        match (reader, &mut self.ring) {
            (Reader::File(file), _) if FLAGS[file] & libc::O_DIRECT != 0 => {
                let mut buffer = crate::sys::Aligned::new(count as usize);
                let found = self.files[file].read_at(buffer.slice(), start).unwrap_or_else(|error| panic!("{reader:?}: {error}"));
                cut(buffer.slice()[..found].to_vec())
            }
            (Reader::File(file), _) => plain(&self.files[file]),
            (Reader::OpenedNow, _) => plain(&File::open(&self.path).expect("opened")),
            (Reader::Mapped, _) => {
                self.assert_there(range);
                self.mapping.get(range.0 as usize, range.1 as usize)
            }
            (Reader::Aio, _) => cut(self.aio.read_now(&self.files[DIRECT], start, count as usize).expect("read")),
            (Reader::Ring, Some(ring)) => ring.read_now(&self.files[CACHED], range.0, range.1 as usize).expect("read"),
            (Reader::Ring, None) => plain(&self.files[CACHED]),
        }
    }

    fn compare(&mut self, reader: Reader, range: (u64, u64)) {
        if range.1 == 0 {
            return;
        }
        let found = self.read(reader, range);
        let expected = &self.model[range.0 as usize..(range.0 + range.1) as usize];
        assert_eq!(found.len(), expected.len(), "{reader:?}: length at {}", range.0);
        if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
            panic!("{reader:?}: byte {} is {:#x}, not {:#x}", range.0 + at as u64, found[at], expected[at]);
        }
    }

    fn step(&mut self, number: u64) {
        self.operation();
        self.assert_size();
        for _ in 0..2 {
            let reader = READERS[self.random.below(READERS.len() as u64) as usize];
            let range = self.range();
            let range = self.within(range);
            self.compare(reader, range);
        }
        if number % 64 == 63 {
            let all = (0, self.size());
            READERS.into_iter().for_each(|reader| self.compare(reader, all));
        }
    }
}

fn number_of(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Seeds one after the other; `room` says whether space may end, and fills it when the file is open or before.
fn run(scene: &Scene<'_>, before: Option<u64>, after: Option<u64>) {
    let first = number_of("TANDEMFS_DESCRIPTORS_SEED").unwrap_or(1).max(1);
    let operations = number_of("TANDEMFS_DESCRIPTORS_OPERATIONS").unwrap_or(OPERATIONS);
    for seed in first..first + SEEDS {
        let filled_before = before.map(|left| Filled::but(scene, left));
        let mut run = Run::new(scene, &format!("file-{seed}"), seed, before.is_some());
        let filled_after = after.map(|left| Filled::but(scene, left));
        let result = catch_unwind(AssertUnwindSafe(|| (0..operations).for_each(|number| run.step(number))));
        if let Err(panic) = result {
            let done = &run.done;
            eprintln!("seed {seed}, after {} lines; the last of them:\n{}", done.len(), done[done.len().saturating_sub(12)..].join("\n"));
            resume_unwind(panic);
        }
        let (path, model) = (run.path.clone(), std::mem::take(&mut run.model));
        drop(run);
        assert!(std::fs::read(&path).expect("read") == model, "seed {seed}: when all are closed");
        drop((filled_before, filled_after));
        std::fs::remove_file(&path).expect("removed");
    }
}

pub(crate) fn agree(scene: &Scene<'_>) {
    run(scene, None, None);
}

/// Space gets low, and does not end, when the file is open: what is opened from then on may be another way into the same file.
pub(crate) fn agree_with_little_space(scene: &Scene<'_>) {
    run(scene, None, Some(LITTLE_BYTES));
}

/// Space ends now and then.
pub(crate) fn agree_at_the_end_of_space(scene: &Scene<'_>) {
    run(scene, Some(LENGTH_MAX / 2), None);
}
