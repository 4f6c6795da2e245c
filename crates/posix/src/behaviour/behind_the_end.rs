//! Bytes that a mapping stores behind the end of a file, in its last page, are not part of the file: when the file grows, they read as
//! zeros.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;

use super::sizes::{open, pattern};
use crate::scene::{Difference, Scene};
use crate::sys::{Aligned, Mapping};

const PAGE: usize = 4096;
/// The end of the file before it grows, inside its second page.
const END: usize = PAGE + 1000;

/// A file that ends inside a page, with bytes stored behind the end.
struct Stored {
    name: String,
    file: File,
    mapping: Mapping,
    before: Vec<u8>,
}

impl Stored {
    fn new(scene: &Scene<'_>, name: &str) -> Self {
        let file = open(scene, name);
        let before = pattern(1, END);
        file.write_all_at(&before, 0).expect("written");
        let mapping = Mapping::new(&file, 4 * PAGE, true, true).expect("mapped");
        // Right behind the end, in the middle, to the end of the page.
        for (at, length) in [(END, 10), (END + 500, 700), (2 * PAGE - 100, 100)] {
            mapping.set(at, &vec![b'!'; length]);
        }
        // And inside, so that the page is the file's to write back.
        mapping.set(END - 10, b"stored");
        let mut before = before;
        before[END - 10..END - 4].copy_from_slice(b"stored");
        Self { name: name.to_owned(), file, mapping, before }
    }

    /// What the file has to hold when `new` was put at an offset behind its old end, or nothing and the file ends there.
    fn grown(&self, at: usize, new: &[u8]) -> Vec<u8> {
        let mut expected = self.before.clone();
        expected.resize(at, 0);
        expected.extend_from_slice(new);
        expected
    }

    /// Compares the bytes with the expected ones: at once by read and through the mapping, after the cache was dropped, and after the file was
    /// opened again. If the file system `may` show bytes stored behind the end, those bytes are zeros or the stored ones.
    fn assert_holds(self, scene: &Scene<'_>, expected: &[u8], may: bool) {
        let Self { name, file, mapping, .. } = self;
        let held = |when: &str, found: &[u8]| {
            assert_eq!(found.len(), expected.len(), "{name}, {when}: size");
            let wrong = |at: &usize| found[*at] != expected[*at] && !(may && (END..2 * PAGE).contains(at) && found[*at] == b'!');
            if let Some(at) = (0..found.len()).find(wrong) {
                panic!("{name}, {when}: byte {at} is {:#x}, not {:#x}, where the file ended at {END}", found[at], expected[at]);
            }
        };
        let read = || {
            let mut found = vec![1; expected.len() + 1];
            let count = file.read_at(&mut found, 0).expect("read");
            found.truncate(count);
            found
        };
        held("read", &read());
        held("loaded", &mapping.get(0, expected.len()));
        file.sync_all().expect("synced");
        held("read after fsync", &read());
        drop(mapping);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
        held("read past the dropped cache", &read());
        let mapping = Mapping::new(&file, 4 * PAGE, true, false).expect("mapped");
        held("loaded past the dropped cache", &mapping.get(0, expected.len()));
        drop((mapping, file));
        held("opened anew", &fs::read(scene.path(&name)).expect("read"));
    }
}

/// Whether a FUSE server cannot know in time: nothing tells it of the stores, and the kernel sends the page with them in it after the size has
/// changed.
fn may_show(scene: &Scene<'_>) -> bool {
    scene.differs(Difference::StoredBehindTheEnd)
}

pub(crate) fn truncation(scene: &Scene<'_>) {
    for to in [END + 1, END + 600, 2 * PAGE, 2 * PAGE + 5, 4 * PAGE] {
        let stored = Stored::new(scene, &format!("truncated-{to}"));
        stored.file.set_len(to as u64).expect("grown");
        let expected = stored.grown(to, b"");
        stored.assert_holds(scene, &expected, may_show(scene));
    }
}

pub(crate) fn writes_behind_a_gap(scene: &Scene<'_>) {
    for (at, length) in [(END + 600, 3), (2 * PAGE - 300, 300), (2 * PAGE - 300, 1000), (2 * PAGE, 10), (3 * PAGE + 7, 100)] {
        let stored = Stored::new(scene, &format!("gap-{at}-{length}"));
        let bytes = pattern(7, length);
        stored.file.write_all_at(&bytes, at as u64).expect("written");
        let expected = stored.grown(at, &bytes);
        let in_the_page = at < 2 * PAGE && scene.differs(Difference::StoredBehindTheEndInThePage);
        stored.assert_holds(scene, &expected, may_show(scene) || in_the_page);
    }
}

/// A write right at the end, and then growth by another call: what lies behind the write was never the file's.
pub(crate) fn writes_at_the_end(scene: &Scene<'_>) {
    for length in [3, 100, 600, 2 * PAGE - END, 5000] {
        let stored = Stored::new(scene, &format!("adjacent-{length}"));
        let bytes = pattern(7, length);
        stored.file.write_all_at(&bytes, END as u64).expect("written");
        let expected = stored.grown(END, &bytes);
        stored.assert_holds(scene, &expected, false);
    }
}

/// A file grows while others store into its last page and have it written back: each call ends, and what is stored behind it stays.
pub(crate) fn growth_beside_stores(scene: &Scene<'_>) {
    const GROWTHS: usize = 300;
    const SHORT: usize = 100;
    let file = open(scene, "beside-stores");
    file.set_len(SHORT as u64).expect("set");
    let mapping = || Mapping::new(&file, PAGE, true, true).expect("mapped");
    let has_ended = AtomicBool::new(false);
    let until_the_end = |work: &dyn Fn()| {
        while !has_ended.load(Ordering::SeqCst) {
            work();
        }
    };
    std::thread::scope(|scope| {
        let others = mapping();
        scope.spawn(move || until_the_end(&|| others.set(50, b"+")));
        scope.spawn(|| until_the_end(&|| rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("written back")));
        let (own, begun) = (mapping(), Instant::now());
        let growths = (0..GROWTHS).take_while(|_| begun.elapsed() < Duration::from_secs(5));
        let wrong = growths.map(|round| round as u8).find(|round| {
            file.set_len(SHORT as u64).expect("shrunk");
            file.set_len(PAGE as u64 - 10).expect("grown");
            own.set(2000, &[*round]);
            std::thread::yield_now();
            own.get(2000, 1) != [*round]
        });
        has_ended.store(true, Ordering::SeqCst);
        assert_eq!(wrong, None, "a byte that was stored behind the end of a call");
    });
}

pub(crate) fn allocation(scene: &Scene<'_>) {
    let cases: [(&str, FallocateFlags, usize, usize); 5] = [
        ("all", FallocateFlags::empty(), 0, 3 * PAGE),
        ("behind", FallocateFlags::empty(), 2 * PAGE + 10, 100),
        ("in-the-page", FallocateFlags::empty(), END + 20, 700),
        ("zeroed-behind", FallocateFlags::ZERO_RANGE, 2 * PAGE, PAGE),
        ("zeroed-in-the-page", FallocateFlags::ZERO_RANGE, END + 900, 500),
    ];
    for (name, mode, offset, length) in cases {
        let stored = Stored::new(scene, name);
        rustix::fs::fallocate(&stored.file, mode, offset as u64, length as u64).expect("allocated");
        let expected = stored.grown(offset + length, b"");
        stored.assert_holds(scene, &expected, false);
    }
}

pub(crate) fn copies(scene: &Scene<'_>) {
    let source = open(scene, "source");
    let bytes = pattern(9, 3000);
    source.write_all_at(&bytes, 0).expect("written");
    for (at, length) in [(END + 600, 3), (2 * PAGE - 300, 1000), (2 * PAGE, 3000), (3 * PAGE + 7, 100)] {
        let stored = Stored::new(scene, &format!("copied-{at}-{length}"));
        let copied = rustix::fs::copy_file_range(&source, Some(&mut 0), &stored.file, Some(&mut (at as u64)), length);
        assert_eq!(copied, Ok(length));
        let expected = stored.grown(at, &bytes[..length]);
        stored.assert_holds(scene, &expected, false);
    }
}

pub(crate) fn direct_writes(scene: &Scene<'_>) {
    for at in [2 * PAGE, 3 * PAGE] {
        let name = format!("direct-{at}");
        let stored = Stored::new(scene, &name);
        let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(scene.path(&name)).expect("opened");
        let mut block = Aligned::of(&pattern(3, PAGE));
        direct.write_all_at(block.slice(), at as u64).expect("written");
        let expected = stored.grown(at, block.slice());
        stored.assert_holds(scene, &expected, !scene.differs(Difference::ZerosBeforeDirectWrites));
    }
}
