//! Sequential reads and writes of 1 MiB by one client of the door, beside the bandwidth of its drive, and beside the same call of `vfs` in the
//! thread that asks. Server and client are in this process; the drive is an image in memory with the times of its profile.
//!
//!     cargo test --release --locked -p tandemfs-direct --test sequential -- --ignored --nocapture measure
//!
//! A second server copies, as the first one does with small transfers. All take turns in short rounds. Prints the medians and the fastest of the rounds, which a busy machine disturbs least.

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tandemfs_client::{OpenOptions, Options};
use tandemfs_device::{BlockRequest, Drive, Structure};
use tandemfs_direct::{Entrants, Limits, Server};
use tandemfs_emulator::{CreateOptions, ImageDevice};
use tandemfs_format::{SECTOR_BYTES, Sector};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{At, Capabilities, Credentials, Process, Settings, Vfs};

const ROUNDS: usize = 21;
/// Requests of a round.
const BATCH: u64 = 16;
const MIB: usize = 1 << 20;
const FILE_MIB: u64 = 64;
const PROFILE: &str = "romefs-a";

fn drive(name: &str) -> Drive {
    let path = PathBuf::from(format!("/dev/shm/tandemfs-door-{name}-{}", std::process::id()));
    let options = CreateOptions { profile: PROFILE.into(), memory_bytes: 64 << 20, block_bytes: 256 << 20 };
    tandemfs_emulator::create(&path, &options).expect("an image");
    let opened = ImageDevice::open(&path, &tandemfs_emulator::OpenOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let device = opened.expect("opens");
    device.populate().expect("populated");
    let drive = Drive::new(Arc::new(device));
    for at in 0..256 {
        write(&drive, at, &[1; MIB]); // gives the image its pages
    }
    drive
}

fn sector(at: u64) -> Sector {
    Sector::new(at * (MIB / SECTOR_BYTES) as u64)
}

fn write(drive: &Drive, at: u64, from: &[u8]) {
    let mut requests = [BlockRequest::Write { sector: sector(at), buffer: from.into() }];
    drop(drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("written"));
}

fn read(drive: &Drive, at: u64, into: &mut [u8]) {
    let mut requests = [BlockRequest::Read { sector: sector(at), buffer: into.into() }];
    drop(drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("read"));
}

/// A name, and a call at a MiB of the file or drive.
type Call<'c> = (&'static str, Box<dyn FnMut(u64) + 'c>);

/// MB/s of a round.
fn round(number: usize, call: &mut dyn FnMut(u64)) -> f64 {
    let begun = Instant::now();
    (0..BATCH).for_each(|index| call((number as u64 * BATCH + index) % FILE_MIB));
    (BATCH as usize * MIB) as f64 / begun.elapsed().as_nanos() as f64 * 1e3
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    let bare = drive("bare");
    let formatted = drive("formatted");
    make_file_system(&formatted, &FormatOptions { force: true, ..FormatOptions::default() }).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(formatted, &MountOptions::default()).expect("mounts"));
    fs.start_background().expect("starts");
    let vfs = Vfs::new(fs, Settings::default());
    let served = [Limits::default(), Limits { lent_bytes_min: u32::MAX, ..Limits::default() }].map(|limits| {
        let stands = Box::new(|| true);
        let server = Server::start(vfs.clone(), support::mount_identity(), stands, Entrants::Everybody, limits).expect("starts");
        let mount = support::connect(&server, "/proc", &Options::default()).expect("let in");
        std::fs::remove_file(server.socket()).expect("makes room for the other one");
        (mount, server)
    });
    let process = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
    let library = vfs.open(&process, At::Root, b"library", libc::O_RDWR | libc::O_CREAT, 0o644).expect("opened");
    let open = |mount, name: &str| OpenOptions::new().read(true).write(true).create(true).open(mount, name).expect("opened");
    let (door, copying) = (open(&served[0].0, "door"), open(&served[1].0, "copying"));
    let (mut data, mut into) = (vec![0; MIB], vec![0; MIB]);
    data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7) as u8);
    let (mut lent, mut filled) = (served[0].0.buffer(MIB as u32).expect("memory"), served[0].0.buffer(MIB as u32).expect("memory"));
    filled.write(0, &data);
    let mut calls: [Call<'_>; 10] = {
        let (bare, vfs, process, library, data) = (&bare, &vfs, &process, &library, &data[..]);
        let (door, copying) = (&door, &copying);
        let place = |at: u64| at * MIB as u64;
        let [mut one, mut two, mut three] = [vec![0; MIB], vec![0; MIB], vec![0; MIB]];
        let (into, lent, filled) = (&mut into, &mut lent, &filled);
        [
            ("write, drive", Box::new(move |at| write(bare, at, data))),
            (
                "write, library",
                Box::new(move |at| assert_eq!(vfs.write_at(process, library, place(at) as i64, data, 0).expect("written"), MIB)),
            ),
            ("write, door", Box::new(move |at| door.write_all_at(data, place(at)).expect("written"))),
            ("write, door, buffer", Box::new(move |at| assert_eq!(door.write_buffer_at(filled, 0..MIB, place(at)).expect("written"), MIB))),
            ("write, door with copies", Box::new(move |at| copying.write_all_at(data, place(at)).expect("written"))),
            ("read, drive", Box::new(move |at| read(bare, at, &mut one))),
            ("read, library", Box::new(move |at| assert_eq!(vfs.read_at(library, place(at) as i64, &mut two).expect("read"), MIB))),
            ("read, door", Box::new(move |at| door.read_exact_at(into, place(at)).expect("read"))),
            ("read, door, buffer", Box::new(move |at| assert_eq!(door.read_buffer_at(lent, 0..MIB, place(at)).expect("read"), MIB))),
            ("read, door with copies", Box::new(move |at| copying.read_exact_at(&mut three, place(at)).expect("read"))),
        ]
    };
    let mut rates = vec![Vec::new(); calls.len()];
    for (_, call) in &mut calls[..5] {
        (0..FILE_MIB).for_each(&mut *call); // the files are whole
    }
    for number in 0..ROUNDS {
        for ((_, call), rates) in calls.iter_mut().zip(&mut rates) {
            rates.push(round(number, call));
        }
    }
    let mut other = vec![0; MIB];
    let copies =
        (0..ROUNDS).map(|number| round(number, &mut |_| std::hint::black_box(&mut other).copy_from_slice(std::hint::black_box(&data))));
    println!("a copy, as the client makes one: fastest {:.0} MB/s", copies.fold(0.0, f64::max));
    let mut of_drive = (0.0, 0.0);
    for (index, ((name, _), rates)) in calls.iter().zip(&mut rates).enumerate() {
        rates.sort_by(f64::total_cmp);
        let (median, fastest) = (rates[ROUNDS / 2], rates[ROUNDS - 1]);
        if index % 5 == 0 {
            of_drive = (median, fastest);
        }
        let shares = (median / of_drive.0 * 100.0, fastest / of_drive.1 * 100.0);
        println!("{name}: {median:.0} MB/s, fastest {fastest:.0}; of the drive {:.0} %, fastest {:.0} %", shares.0, shares.1);
    }
    drop(calls);
    assert_eq!(into, data, "what was written is read");
    lent.read(0, &mut into);
    assert_eq!(into, data, "into the buffer too");
    drop((lent, filled));
    drop((door, copying));
    drop(served);
}
