//! Small writes on a drive with firmware, and pages written back from a page cache on both kinds of drives: the bytes transferred, and the
//! bytes read back.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tandemfs_crash::{MemoryDevice, Random, Setting, check_device, fill, mount};
use tandemfs_device::{CountersSnapshot, PersistenceDomain, Structure};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AllocateMode, Error, FileSystem, Kept, NewInode, ReadOptions, SetAttributes, WriteOptions};

const BLOCK: u64 = 64 << 10;
const PAGE: usize = 4096;
const PLAIN: WriteOptions = WriteOptions { keep_times: false, append: false, kill_set_id: false, compare: false, kept: false };
/// As a kernel gives pages back.
const RETURNED: WriteOptions = WriteOptions { keep_times: true, compare: true, ..PLAIN };
const KEPT: ReadOptions = ReadOptions { kept: Kept::ToCompare };

fn setting(has_firmware: bool) -> Setting {
    let mut setting = Setting { has_firmware, block_zone_bytes: 32 << 20, ..Setting::small(PersistenceDomain::Gpf, BLOCK as u32) };
    setting.mount.memory_bytes = 16 << 20;
    setting
}

/// A file of four blocks, in sectors; `content` is what it holds.
struct File {
    device: MemoryDevice,
    fs: FileSystem,
    inode: InodeNumber,
    content: Vec<u8>,
}

impl File {
    fn new(setting: &Setting) -> Self {
        let device = setting.format();
        let fs = mount(&device, &setting.mount).expect("mounts");
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let inode = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
        let mut file = Self { device, fs, inode, content: Vec::new() };
        file.write(0, &fill(1, 4 * BLOCK as usize), PLAIN);
        file
    }

    fn write(&mut self, offset: usize, bytes: &[u8], options: WriteOptions) {
        let end = (offset + bytes.len()).max(self.content.len());
        self.content.resize(end, 0);
        self.content[offset..offset + bytes.len()].copy_from_slice(bytes);
        assert_eq!(self.fs.write(self.inode, offset as u64, bytes, options).expect("written"), bytes.len());
    }

    /// A page as the kernel reads it.
    fn read_page(&self, page: usize) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        let read = self.fs.read_with(self.inode, (page * PAGE) as u64, &mut bytes, KEPT).expect("read");
        bytes.truncate(read);
        bytes
    }

    /// What crossed to the drive while something was done.
    fn moved<T>(&mut self, what: impl FnOnce(&mut Self) -> T) -> CountersSnapshot {
        self.fs.reset_statistics();
        what(self);
        self.fs.drive().counters().snapshot()
    }

    /// All bytes are right, now and after a remount, and metadata is.
    fn check(self, setting: &Setting) {
        let compare = |fs: &FileSystem, when: &str| {
            let mut bytes = vec![0; self.content.len() + 100];
            let read = fs.read(self.inode, 0, &mut bytes).expect("read");
            assert_eq!(read, self.content.len(), "{when}");
            if let Some(at) = bytes.iter().zip(&self.content).position(|(found, expected)| found != expected) {
                panic!("{when}: byte {at} is wrong");
            }
        };
        compare(&self.fs, "before a remount");
        self.fs.unmount().expect("unmounts");
        check_device(&self.device, false).expect("nothing to complain of");
        compare(&mount(&self.device, &setting.mount).expect("mounts"), "after a remount");
    }
}

fn written(moved: &CountersSnapshot) -> u64 {
    moved.by_structure.iter().map(|path| path.byte_written_bytes + path.block_written_bytes).sum()
}

fn of(moved: &CountersSnapshot, structure: Structure) -> tandemfs_device::PathBytes {
    moved.by_structure[structure as usize]
}

#[test]
fn a_small_overwrite_moves_its_lines_a_checksum_line_and_the_inode() {
    let setting = setting(true);
    let mut file = File::new(&setting);
    for (offset, length, lines) in [(BLOCK as usize, 64, 1), (BLOCK as usize + 100, 10, 1), (70_001, 512, 9), (4096 - 32, 64, 2)] {
        let moved = file.moved(|file| file.write(offset, &fill(7, length), PLAIN));
        let data = of(&moved, Structure::Data);
        assert_eq!((data.byte_written_bytes, data.byte_read_bytes), (lines * 64, lines * 64), "{length} B at {offset}");
        assert_eq!((data.block_read_bytes, data.block_written_bytes), (0, 0));
        assert_eq!(of(&moved, Structure::DataLog), tandemfs_device::PathBytes::default());
        assert_eq!(written(&moved), lines * 64 + 128, "one line of checksums and one of the inode: {length} B at {offset}");
        assert_eq!(file.fs.statistics().work.in_place_lines, lines);
    }
    // One byte more than goes in place; and the option that turns it off.
    let moved = file.moved(|file| file.write(9000, &fill(8, 513), PLAIN));
    assert_eq!((of(&moved, Structure::Data).byte_written_bytes, of(&moved, Structure::DataLog).byte_written_bytes), (0, 513));
    let moved = file.moved(|file| file.write(9100, &[1; 10], PLAIN));
    assert_eq!(of(&moved, Structure::Data).byte_written_bytes, 0, "a log lies over those bytes");
    let mut off = setting.clone();
    off.mount.in_place_bytes = 0;
    file.fs.unmount().expect("unmounts");
    file.fs = mount(&file.device, &off.mount).expect("mounts");
    let moved = file.moved(|file| file.write(0, &[2; 10], PLAIN));
    assert_eq!(of(&moved, Structure::Data).byte_written_bytes, 0);
    file.check(&setting);
}

#[test]
fn files_of_one_sector_and_growth_inside_it_go_in_place() {
    let setting = setting(true);
    for stale in [false, true] {
        let mut file = File::new(&setting);
        file.fs.set_attributes(file.inode, &SetAttributes { size: Some(100), ..SetAttributes::default() }).expect("cut");
        file.content.truncate(100);
        if !stale {
            // What the truncation left behind the end is zeros.
            file.write(100, &[0; PAGE - 100], PLAIN);
            file.fs.set_attributes(file.inode, &SetAttributes { size: Some(100), ..SetAttributes::default() }).expect("cut");
            file.content.truncate(100);
        }
        for (offset, length) in [(0, 10), (300, 20), (320, 50), (64, 64)] {
            let before = file.fs.statistics().work.in_place_lines;
            file.write(offset, &fill(offset as u64, length), PLAIN);
            assert!(file.fs.statistics().work.in_place_lines > before, "{length} B at {offset}");
        }
        // Behind the last sector there is nothing to go in place in.
        let before = file.fs.statistics().work.in_place_lines;
        file.write(PAGE - 10, &[3; 20], PLAIN);
        assert_eq!(file.fs.statistics().work.in_place_lines, before);
        file.check(&setting);
    }
}

#[test]
fn long_data_logs_are_read_by_blocks_and_short_ones_by_bytes() {
    for (has_firmware, length, by_blocks) in [(true, 512, false), (true, 513, true), (true, 4096, true), (false, 4096, false)] {
        let setting = setting(has_firmware);
        let mut file = File::new(&setting);
        file.fs.set_attributes(file.inode, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("cut");
        file.content.clear();
        file.write(0, &fill(3, length), PLAIN);
        let moved = file.moved(|file| {
            let mut bytes = vec![0; length];
            assert_eq!(file.fs.read(file.inode, 0, &mut bytes).expect("read"), length);
            assert_eq!(bytes, file.content);
        });
        let logs = of(&moved, Structure::DataLog);
        let expected = if by_blocks { (0, PAGE as u64) } else { (length as u64, 0) };
        assert_eq!((logs.byte_read_bytes, logs.block_read_bytes), expected, "{length} B, firmware: {has_firmware}");
        file.check(&setting);
    }
}

#[test]
fn damage_below_and_beside_a_line_in_place_is_still_found() {
    let setting = setting(true);
    for damaged in [5 * 64, 40 * 64] {
        let mut file = File::new(&setting);
        let at = file.device.zones().blocks.windows(PAGE).position(|window| window == &file.content[..PAGE]).expect("its first sector");
        file.device.damage(|zones| zones.blocks[at + damaged] ^= 1);
        // The line with the damage is overwritten whole, or another one.
        file.write(5 * 64, &[9; 64], PLAIN);
        assert_eq!(file.fs.statistics().work.in_place_lines, 1);
        let mut bytes = vec![0; 10];
        assert!(matches!(file.fs.read(file.inode, 0, &mut bytes), Err(Error::DamagedData { .. })), "damage at {damaged}");
    }
}

#[test]
fn one_byte_of_a_page_that_comes_back_moves_a_few_lines() {
    for has_firmware in [true, false] {
        let setting = setting(has_firmware);
        let mut file = File::new(&setting);
        let mut page = file.read_page(5);
        page[1000] ^= 1;
        let moved = file.moved(|file| file.write(5 * PAGE, &page, RETURNED));
        println!("firmware {has_firmware}: {} B", written(&moved));
        assert_eq!(of(&moved, Structure::Data).byte_written_bytes + of(&moved, Structure::DataLog).byte_written_bytes, 64);
        if has_firmware {
            assert_eq!(written(&moved), 192);
            assert_eq!(of(&moved, Structure::Data).byte_read_bytes, 0, "the old line comes from the page in host memory");
        }
        let work = file.fs.statistics().work;
        assert_eq!((work.pages_compared, work.pages_by_lines), (1, 1));
        // Nothing changed: nothing moves.
        let moved = file.moved(|file| file.write(5 * PAGE, &page, RETURNED));
        assert_eq!(written(&moved), 0);
        // Seven lines are less than an eighth, eight are not.
        for (lines, by_lines) in [(7, 1), (8, 0)] {
            for line in 0..lines {
                page[line * 9 * 64] ^= 2;
            }
            let moved = file.moved(|file| file.write(5 * PAGE, &page, RETURNED));
            // Without transactions seven scattered lines would be seven logs.
            let expected = if has_firmware { by_lines } else { 0 };
            assert_eq!(file.fs.statistics().work.pages_by_lines, expected, "{lines} lines");
            assert_eq!(written(&moved) < 1024, expected == 1);
        }
        file.check(&setting);
    }
}

#[test]
fn whole_requests_with_few_changes_go_by_lines_also_where_they_would_go_by_blocks() {
    for has_firmware in [true, false] {
        let setting = setting(has_firmware);
        let mut file = File::new(&setting);
        let mut block: Vec<u8> = (16..32).flat_map(|page| file.read_page(page)).collect();
        block[3 * PAGE + 7] ^= 1;
        block[9 * PAGE + 70] ^= 1;
        let moved = file.moved(|file| file.write(BLOCK as usize, &block, RETURNED));
        assert_eq!((file.fs.statistics().work.pages_by_lines, of(&moved, Structure::Data).block_written_bytes), (16, 0));
        assert!(written(&moved) <= 1024, "{} B", written(&moved));
        // Two pages of new bytes are an eighth of the block.
        block[..2 * PAGE].copy_from_slice(&fill(9, 2 * PAGE));
        let moved = file.moved(|file| file.write(BLOCK as usize, &block, RETURNED));
        assert_eq!((file.fs.statistics().work.pages_by_lines, of(&moved, Structure::Data).block_written_bytes), (0, BLOCK));
        file.check(&setting);
    }
}

#[test]
fn what_changes_a_file_otherwise_leaves_no_duplicate_page() {
    type Way = fn(&mut File);
    let ways: [(&str, Way); 7] = [
        ("a punch", |file| {
            file.fs.allocate(file.inode, PAGE as u64, 100, AllocateMode::Punch).expect("punched");
        }),
        ("zeros", |file| {
            file.fs.allocate(file.inode, 0, 3 * BLOCK, AllocateMode::Zero { keep_size: true }).expect("zeroed");
        }),
        ("a truncation", |file| {
            for size in [PAGE as u64 + 10, 4 * BLOCK] {
                file.fs.set_attributes(file.inode, &SetAttributes { size: Some(size), ..SetAttributes::default() }).expect("cut");
            }
        }),
        ("a write", |file| {
            file.fs.write(file.inode, PAGE as u64 + 7, &[1; 500], PLAIN).expect("written");
        }),
        ("a long write", |file| {
            file.fs.write(file.inode, 0, &vec![1; 3 * BLOCK as usize], PLAIN).expect("written");
        }),
        ("a page that came back", |file| {
            file.fs.write(file.inode, PAGE as u64, &[1; PAGE], RETURNED).expect("written");
        }),
        ("a copy", |file| {
            file.fs.copy_range((file.inode, BLOCK), (file.inode, 100), BLOCK / 2, PLAIN).expect("copied");
        }),
    ];
    for has_firmware in [true, false] {
        let setting = setting(has_firmware);
        for (name, way) in ways {
            let mut file = File::new(&setting);
            let page = file.read_page(1);
            way(&mut file);
            file.content.clear();
            file.content.resize(4 * BLOCK as usize, 0);
            let mut all = vec![0; 4 * BLOCK as usize];
            assert_eq!(file.fs.read(file.inode, 0, &mut all).expect("read"), all.len());
            file.content = all;
            assert_ne!(file.content[PAGE..2 * PAGE], page, "{name}");
            // A program puts the old bytes there again.
            file.write(PAGE, &page, RETURNED);
            let mut bytes = vec![0; PAGE];
            file.fs.read(file.inode, PAGE as u64, &mut bytes).expect("read");
            assert_eq!(bytes, page, "{name} left an old page, firmware: {has_firmware}");
            file.check(&setting);
        }
    }
}

#[test]
fn file_pages_stay_in_their_share_of_the_memory_option() {
    let mut setting = setting(true);
    setting.mount.memory_bytes = 1 << 20;
    let file = File::new(&setting);
    for round in 0..3 {
        for page in 0..4 * BLOCK as usize / PAGE {
            assert_eq!(file.read_page(page), file.content[page * PAGE..(page + 1) * PAGE], "round {round}");
        }
        assert!(file.fs.memory_bytes() <= 1 << 20, "{} B", file.fs.memory_bytes());
    }
    file.check(&setting);
}

/// Threads that change pages of the same blocks by every way, each its own pages; blocks are written back meanwhile.
#[test]
fn threads_in_the_same_blocks_find_their_bytes() {
    const THREADS: usize = 3;
    const PAGES: usize = 32;
    for has_firmware in [true, false] {
        let setting = setting(has_firmware);
        let mut file = File::new(&setting);
        let (fs, inode, content) = (&file.fs, file.inode, &file.content);
        let done = std::sync::atomic::AtomicBool::new(false);
        let change = |thread: usize| {
            let mut random = Random::new(thread as u64 + 1);
            // Pages of all threads take turns in each block.
            let mut pages: Vec<(usize, Vec<u8>)> =
                (thread..PAGES).step_by(THREADS).map(|page| (page, content[page * PAGE..(page + 1) * PAGE].to_vec())).collect();
            for round in 0..400 {
                let index = random.below(pages.len() as u64) as usize;
                let (page, bytes) = &mut pages[index];
                let start = (*page * PAGE) as u64;
                let (at, length) = (random.below(4000) as usize, 1 + random.below(90) as usize);
                match random.below(8) {
                    0 => {
                        bytes[at..at + length].fill(0);
                        fs.allocate(inode, start + at as u64, length as u64, AllocateMode::Punch).expect("punched");
                    }
                    1 | 2 => {
                        // Long ones become logs, which the thread behind writes back.
                        let (at, length) = if round % 4 == 0 { (at / 2, length * 20) } else { (at, length) };
                        bytes[at..at + length].copy_from_slice(&fill(round, length));
                        fs.write(inode, start + at as u64, &bytes[at..at + length], PLAIN).expect("written");
                    }
                    _ => {
                        let mut found = vec![0; PAGE];
                        fs.read_with(inode, start, &mut found, KEPT).expect("read");
                        assert!(found == *bytes, "page {page}, round {round}, firmware: {has_firmware}");
                        bytes[at..at + length].copy_from_slice(&fill(round, length));
                        fs.write(inode, start, bytes, RETURNED).expect("written");
                    }
                }
            }
            pages
        };
        let changed = std::thread::scope(|scope| {
            let behind = scope.spawn(|| {
                while !done.load(Relaxed) {
                    fs.write_back_all().expect("written back");
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            let change = &change;
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || change(thread))).collect();
            let changed: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            done.store(true, Relaxed);
            behind.join().expect("the thread behind");
            changed.into_iter().flat_map(|pages| pages.expect("a thread")).collect::<Vec<_>>()
        });
        let work = fs.statistics().work;
        assert!(work.pages_by_lines > 100 && work.block_write_backs > 0, "{work:?}");
        assert!(!has_firmware || work.in_place_lines > 100, "{work:?}");
        for (page, bytes) in changed {
            file.content[page * PAGE..(page + 1) * PAGE].copy_from_slice(&bytes);
        }
        file.check(&setting);
    }
}
