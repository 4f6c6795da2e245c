//! Real memory errors under a real mount: SIGBUS in the daemon, from a truncated memory file, and from a page that the kernel treats as
//! poisoned (MADV_HWPOISON), if the kernel supports it.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;

use support::{Mount, Place, pattern, succeeds};

const MEMORY_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 256 << 20;
/// Data logs are given out from the end of the memory half, metadata from its start: what is beyond here is data logs alone.
const LOGS_FROM: u64 = MEMORY_BYTES / 2;
const BLOCK: usize = 64 << 10;
const EIO: Option<i32> = Some(5);

/// A pair of files.
struct Pair {
    place: Place,
}

impl Pair {
    fn formatted() -> Self {
        let pair = Self { place: Place::empty() };
        for (half, bytes) in [("memory", MEMORY_BYTES), ("block", BLOCK_BYTES)] {
            File::create(pair.place.path(half)).and_then(|file| file.set_len(bytes)).expect("made");
        }
        succeeds(&["mkfs", &pair.device()]);
        pair
    }

    fn device(&self) -> String {
        format!("memory={},block={}", self.place.path("memory"), self.place.path("block"))
    }

    /// Every read and write goes to the daemon.
    fn mount(&self) -> Mount {
        self.place.mount_device(&self.device(), "strict,atomic")
    }

    fn memory(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.place.path("memory")).expect("opened")
    }

    /// Cuts the memory half: accesses beyond raise SIGBUS. Dropping what is returned heals it, with what was there.
    fn cut(&self, length: u64) -> Cut {
        let memory = self.memory();
        let mut kept = vec![0; (MEMORY_BYTES - length) as usize];
        memory.read_exact_at(&mut kept, length).expect("read");
        memory.set_len(length).expect("cut");
        Cut { memory, length, kept }
    }
}

struct Cut {
    memory: File,
    length: u64,
    kept: Vec<u8>,
}

impl Cut {
    fn heal(self) {
        self.memory.set_len(MEMORY_BYTES).expect("sized");
        self.memory.write_all_at(&self.kept, self.length).expect("written");
    }
}

fn code<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn write_at(mount: &Mount, name: &str, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(mount.path(name))?.write_all_at(bytes, offset)
}

#[test]
fn poisoned_data_logs_answer_eio_and_the_rest_goes_on() {
    let pair = Pair::formatted();
    let mount = pair.mount();
    let (small, large) = (pattern(1, 3000), pattern(2, 4 * BLOCK));
    fs::write(mount.path("logs"), &small).expect("written");
    fs::write(mount.path("blocks"), &large).expect("written");
    // Another daemon has no pages of the files in host memory.
    mount.unmount();
    let mount = pair.mount();

    let cut = pair.cut(LOGS_FROM);
    assert_eq!(code(fs::read(mount.path("logs"))), EIO, "a load of a log");
    assert_eq!(code(write_at(&mount, "logs", 100, b"merged")), EIO, "a load for a merge");
    assert_eq!(code(write_at(&mount, "new", 0, &small)), EIO, "a store of a log");
    assert!(fs::read(mount.path("blocks")).expect("read") == large);
    let other = pattern(3, 2 * BLOCK);
    write_at(&mount, "blocks", BLOCK as u64, &other).expect("whole blocks need no log");
    fs::create_dir(mount.path("directory")).expect("made");
    fs::rename(mount.path("new"), mount.path("directory/new")).expect("renamed");
    assert_eq!(fs::metadata(mount.path("logs")).expect("looked at").len(), 3000);
    assert!(mount.stats()["file_system"]["transactions"].as_u64() > Some(0));

    cut.heal();
    assert!(fs::read(mount.path("logs")).expect("read") == small, "nothing of the failed calls is left");
    write_at(&mount, "directory/new", 0, &small).expect("written");
    mount.unmount();
    succeeds(&["check", &pair.device()]);
    let mount = pair.mount();
    let mut expected = large;
    expected[BLOCK..3 * BLOCK].copy_from_slice(&other);
    assert!(fs::read(mount.path("blocks")).expect("read") == expected);
    assert!(fs::read(mount.path("logs")).expect("read") == small && fs::read(mount.path("directory/new")).expect("read") == small);
    mount.unmount();
}

#[test]
fn a_poisoned_journal_stops_the_file_system_and_loses_nothing() {
    let pair = Pair::formatted();
    let mount = pair.mount();
    let (small, large) = (pattern(1, 3000), pattern(2, 4 * BLOCK));
    fs::write(mount.path("logs"), &small).expect("written");
    fs::write(mount.path("blocks"), &large).expect("written");

    let cut = pair.cut(0);
    assert_eq!(code(fs::create_dir(mount.path("directory"))), EIO, "the store of a record");
    // R15: from here on nothing is written, reads of what is at hand go on.
    assert_eq!(code(write_at(&mount, "blocks", 0, &large)), EIO);
    assert_eq!(code(fs::remove_file(mount.path("blocks"))), EIO);
    assert!(fs::read(mount.path("blocks")).expect("read") == large);
    assert!(fs::read(mount.path("logs")).expect("read") == small, "it is in host memory");
    let info = succeeds(&["info", &pair.place.mountpoint()]);
    assert!(info.contains("writing the journal failed"), "{info}");
    mount.unmount_fails("stopped writing");

    cut.heal();
    let mount = pair.mount();
    assert!(fs::read(mount.path("blocks")).expect("read") == large && fs::read(mount.path("logs")).expect("read") == small);
    assert!(!mount.path("directory").exists(), "what was refused did not happen");
    fs::create_dir(mount.path("directory")).expect("made");
    mount.unmount();
    succeeds(&["check", &pair.device()]);
}

/// Found by the test: the command said that all was well when the daemon could not write what it held.
#[test]
fn regression_an_unmount_that_failed_was_reported_as_done() {
    let pair = Pair::formatted();
    let mount = pair.mount();
    fs::write(mount.path("file"), pattern(1, 3000)).expect("written");
    // Nobody writes any more, so nothing has failed until the unmount wants to write everything home.
    let cut = pair.cut(2 << 20);
    mount.unmount_fails("unmounted, but");
    cut.heal();
    let mount = pair.mount();
    assert!(fs::read(mount.path("file")).expect("read") == pattern(1, 3000));
    mount.unmount();
    succeeds(&["check", &pair.device()]);
}

#[test]
fn poisoned_metadata_that_is_not_at_hand_answers_eio() {
    let pair = Pair::formatted();
    let mount = pair.mount();
    for directory in 0..40 {
        fs::create_dir(mount.path(&format!("d{directory}"))).expect("made");
        for file in 0..20 {
            fs::write(mount.path(&format!("d{directory}/f{file}")), [directory as u8; 20]).expect("written");
        }
    }
    mount.unmount();
    let mount = pair.mount();
    assert!(mount.path("d1/f1").exists());
    // Everything after the journal and the saved maps is cut off: inodes and directories that were not looked at cannot be loaded.
    let cut = pair.cut(4 << 20);
    let found: Vec<_> = (0..40).map(|directory| code(fs::read_dir(mount.path(&format!("d{directory}"))).map(Iterator::count))).collect();
    assert!(found.iter().all(|found| found.is_none() || *found == EIO) && found.contains(&EIO), "{found:?}");
    cut.heal();
    for directory in 0..40 {
        for file in 0..20 {
            assert_eq!(fs::read(mount.path(&format!("d{directory}/f{file}"))).expect("read"), [directory as u8; 20]);
        }
    }
    mount.unmount();
    succeeds(&["check", &pair.device()]);
}

/// A page that the kernel treats as broken: the very thing that an uncorrectable error leaves behind. It cannot be undone, so the page of
/// the file is replaced at the end by cutting it out.
#[test]
fn a_page_that_the_kernel_calls_broken_answers_eio() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
    let pair = Pair::formatted();
    let mount = pair.mount();
    let small = pattern(1, 3000);
    fs::write(mount.path("logs"), &small).expect("written");
    fs::write(mount.path("blocks"), pattern(2, BLOCK)).expect("written");
    // Where the log is.
    let mut memory = Vec::new();
    pair.memory().read_to_end(&mut memory).expect("read");
    let at = memory.windows(64).position(|window| window == &small[..64]).expect("the log is in the memory half") as u64;
    let page = at / 4096 * 4096;
    let file = pair.memory();
    // SAFETY: a new mapping of one page, which nothing else uses; it is unmapped below and only named to the kernel.
    let poisoned = unsafe {
        let start = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, page).expect("mapped");
        std::ptr::read_volatile(start.cast::<u8>());
        let poisoned = madvise(start, 4096, Advice::LinuxHwPoison);
        munmap(start, 4096).expect("unmapped");
        poisoned
    };
    if let Err(error) = poisoned {
        println!("skipped: this kernel or this user has no MADV_HWPOISON ({error}); the tests that cut the file short have run");
        mount.unmount();
        return;
    }
    assert_eq!(code(fs::read(mount.path("logs"))), EIO);
    assert_eq!(code(write_at(&mount, "logs", 10, b"merged")), EIO);
    assert!(fs::read(mount.path("blocks")).expect("read") == pattern(2, BLOCK));
    write_at(&mount, "others", 0, &pattern(3, 3000)).or_else(|_| write_at(&mount, "others", 0, &pattern(3, 3000))).expect("another page");
    fs::remove_file(mount.path("logs")).expect("its data need not be read to remove it");
    mount.unmount();
    let mount = pair.mount();
    assert!(fs::read(mount.path("others")).expect("read") == pattern(3, 3000) && !mount.path("logs").exists());
    mount.unmount();
}
