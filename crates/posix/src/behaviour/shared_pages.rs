//! Stores through a mapping and writes to different bytes of the same page: neither loses the other's bytes. Direct writes are left out:
//! ext4 loses some of them next to concurrent stores (open(2) advises against it).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::sizes::open;
use crate::filled::{Filled, LITTLE_BYTES};
use crate::scene::Scene;
use crate::sys::Mapping;

const PAGE: usize = 4096;
const PAGES: usize = 4;
const PASSES: u64 = 4;

/// The words of the pages that are stored, every second one; the ones between are written.
fn words() -> impl Iterator<Item = usize> {
    (0..PAGES * PAGE).step_by(16)
}

/// Stores words through a mapping on one thread while another writes the words behind them, with `write(offset, bytes)`. Each acknowledged
/// word is there at once and at the end, by every way to look.
fn stores_beside(scene: &Scene<'_>, name: &str, write: impl Fn(u64, &[u8; 8]) + Sync) {
    let file = open(scene, name);
    file.set_len((PAGES * PAGE) as u64).expect("grown");
    let mapping = Mapping::new(&file, PAGES * PAGE, true, true).expect("mapped");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| {
            let mut passes = 0;
            // On until the writer has ended, so that each write has stores beside it.
            while passes < PASSES || !ended.load(SeqCst) {
                passes += 1;
                for (number, at) in words().enumerate() {
                    let value = passes << 32 | at as u64;
                    mapping.word(at).store(value, SeqCst);
                    if number % 61 == 0 {
                        mapping.sync().expect("synced");
                    }
                    assert_eq!(mapping.word(at).load(SeqCst), value, "{name}: a store at {at}, at once");
                }
            }
            passes
        });
        let writing = scope.spawn(|| {
            let _end = EndsOnDrop(&ended);
            for pass in 1..=PASSES {
                for at in words().map(|at| at + 8) {
                    let value = (pass << 32 | at as u64).to_ne_bytes();
                    write(at as u64, &value);
                    let mut found = [0; 8];
                    file.read_exact_at(&mut found, at as u64).expect("read");
                    assert_eq!(found, value, "{name}: a write at {at}, read at once");
                }
            }
        });
        writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let passes = storing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let expected = || words().flat_map(|at| [(at, passes << 32 | at as u64), (at + 8, PASSES << 32 | (at + 8) as u64)]);
        for (at, value) in expected() {
            assert_eq!(mapping.word(at).load(SeqCst), value, "{name}: word {at} by the mapping");
        }
        mapping.sync().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
        let found = fs::read(scene.path(name)).expect("read");
        for (at, value) in expected() {
            assert_eq!(found[at..at + 8], value.to_ne_bytes(), "{name}: word {at} by a later reader");
        }
    });
}

/// Ends the storing thread also where an assertion fails.
struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

pub(crate) fn stores_beside_writes(scene: &Scene<'_>) {
    let file = open(scene, "written");
    stores_beside(scene, "written", |offset, bytes| file.write_all_at(bytes, offset).expect("written"));
}

/// The same by descriptors that were opened when space had got low.
pub(crate) fn stores_beside_writes_with_little_space(scene: &Scene<'_>) {
    let early = open(scene, "little");
    let filled = Filled::but(scene, LITTLE_BYTES / 2);
    let late = open(scene, "little");
    stores_beside(scene, "little", |offset, bytes| late.write_all_at(bytes, offset).expect("written"));
    drop((early, filled));
}

pub(crate) fn stores_beside_synchronous_writes(scene: &Scene<'_>) {
    let path = scene.path("synchronous");
    open(scene, "synchronous");
    let file = File::options().write(true).custom_flags(libc::O_DSYNC).open(path).expect("opened");
    stores_beside(scene, "synchronous", |offset, bytes| file.write_all_at(bytes, offset).expect("written"));
}

pub(crate) fn stores_beside_copies(scene: &Scene<'_>) {
    let (source, file) = (open(scene, "source"), open(scene, "copied"));
    stores_beside(scene, "copied", |offset, bytes| {
        source.write_all_at(bytes, 24).expect("written");
        let copied = rustix::fs::copy_file_range(&source, Some(&mut 24), &file, Some(&mut { offset }), 8);
        assert_eq!(copied, Ok(8));
    });
}
