//! What is left of the foreground's throughput while files are rewritten into aligned extents: a measurement, not a test of limits.
//!
//!     cargo test --profile soak -p tandemfs-fs --test rewriting_speed -- --ignored --nocapture
//!
//! A memory half alone in /dev/shm. Turns with the background thread rewriting and turns without are interleaved, so a change of the machine's
//! speed meets both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_device::Drive;
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, UNIT_BYTES};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

const MIB: usize = 1 << 20;
const MEMORY: u64 = 3 << 30;
/// The file that is rewritten, again and again.
const REWRITTEN: usize = 640 * MIB;
/// The file of the foreground.
const FILE: usize = 256 * MIB;
const TURN: Duration = Duration::from_secs(4);
const ROUNDS: usize = 7;

fn create(fs: &FileSystem, name: &[u8]) -> InodeNumber {
    fs.create(InodeNumber::ROOT, name, &NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" })
        .expect("made")
        .inode
}

/// What the foreground does, and its name.
type Subject<'s> = (&'s str, Box<dyn FnMut(u64) + 's>);

/// Takes every 2 MiB of a file apart: two blocks of each go elsewhere.
fn fragment(fs: &FileSystem, file: InodeNumber, zeros: &[u8]) {
    for at in (0..REWRITTEN).step_by(UNIT_BYTES as usize) {
        for block in [3, 17] {
            fs.write(file, (at + block * 65_536) as u64, &zeros[..65_536], WriteOptions::default()).expect("written");
        }
    }
}

/// Operations in a second of one turn.
fn turn(mut operation: impl FnMut(u64)) -> f64 {
    let (start, mut count) = (Instant::now(), 0_u64);
    while start.elapsed() < TURN {
        for _ in 0..16 {
            operation(count);
            count += 1;
        }
    }
    count as f64 / start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement"]
fn the_foreground_beside_rewriting() {
    let path = format!("/dev/shm/tandemfs-rewriting-speed-{}", std::process::id());
    std::fs::File::create_new(&path).and_then(|file| file.set_len(MEMORY)).expect("room in /dev/shm");
    let device = open_device(&format!("memory={path}"), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device.expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts"));
    fs.start_background().expect("a thread");
    let (rewritten, file) = (create(&fs, b"rewritten"), create(&fs, b"file"));
    let zeros = vec![7; 8 * MIB];
    for (file, length) in [(rewritten, REWRITTEN), (file, FILE)] {
        for at in (0..length).step_by(zeros.len()) {
            fs.write(file, at as u64, &zeros, WriteOptions::default()).expect("written");
        }
    }
    let place = |count: u64, each: u64| count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20 & (FILE as u64 / each - 1);
    let mut page = vec![0; 4096];
    let mut large = vec![0; MIB];
    let mut subjects: [Subject<'_>; 4] = [
        ("random reads of 4 KiB", Box::new(|count| _ = fs.read(file, place(count, 4096) * 4096, &mut page).expect("read"))),
        ("random reads of 1 MiB", Box::new(|count| _ = fs.read(file, place(count, 1 << 20) << 20, &mut large).expect("read"))),
        (
            "durable writes of 64 KiB",
            Box::new(|count| {
                _ = fs.write(file, place(count, 65_536) * 65_536, &zeros[..65_536], WriteOptions::default()).expect("written");
            }),
        ),
        (
            "durable writes of 1 KiB",
            Box::new(|count| _ = fs.write(file, place(count, 65_536) * 65_536, &zeros[..1024], WriteOptions::default()).expect("written")),
        ),
    ];
    for (name, subject) in &mut subjects {
        let (mut shares, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let alone = turn(&mut *subject);
            fragment(&fs, rewritten, &zeros);
            let before = fs.statistics().work.aligned_bytes;
            fs.set_aligned(rewritten, true).expect("queued");
            let start = Instant::now();
            let beside = turn(&mut *subject);
            rates.push((fs.statistics().work.aligned_bytes - before) as f64 / start.elapsed().as_secs_f64() / MIB as f64);
            shares.push(beside / alone);
            while fs.bytes_not_aligned(rewritten).expect("known") > 0 {
                fs.move_homes().expect("rewritten");
            }
        }
        shares.sort_unstable_by(f64::total_cmp);
        rates.sort_unstable_by(f64::total_cmp);
        println!(
            "{name}: {:.1} % of the throughput without ({:.1} to {:.1} %), {:.0} MiB/s rewritten",
            shares[ROUNDS / 2] * 100.0,
            shares[0] * 100.0,
            shares[ROUNDS - 1] * 100.0,
            rates[ROUNDS / 2]
        );
    }
    fs.unmount().expect("unmounts");
}
