//! Images from outside: what can be created, opened, refused, and what survives.

use std::fs::{self, File, OpenOptions as FileOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceError, Drive, PersistenceDomain, Structure};
use tandemfs_emulator::{CreateOptions, DeviceOptions, HEADER_COPY_OFFSET, ImageDevice, OpenOptions, create, info, open_device};
use tandemfs_format::Sector;
use tempfile::TempDir;

const MEMORY_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 64 << 20;

fn options(profile: &str) -> CreateOptions {
    CreateOptions { profile: profile.to_owned(), memory_bytes: MEMORY_BYTES, block_bytes: BLOCK_BYTES }
}

fn image(profile: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk.img");
    create(&path, &options(profile)).expect("created");
    (directory, path)
}

fn reading() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

fn open_reason(path: &Path) -> String {
    match ImageDevice::open(path, &OpenOptions::default()) {
        Err(DeviceError::Open { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_image_reserves_memory_and_leaves_blocks_sparse() {
    let (_directory, path) = image("off");
    let metadata = fs::metadata(&path).expect("there");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.len(), (2 << 20) + MEMORY_BYTES + BLOCK_BYTES);
    let taken = metadata.blocks() * 512;
    assert!((MEMORY_BYTES..MEMORY_BYTES + (1 << 20)).contains(&taken), "{taken} B taken");
    assert_eq!(info(&path).expect("an image").profile, "off");
}

#[test]
fn both_paths_keep_what_they_are_given_across_opens() {
    let (_directory, path) = image("romefs-a");
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    assert_eq!(device.description().domain, PersistenceDomain::Gpf);
    device.store(MEMORY_BYTES - 8, b"the last").expect("stored");
    let (first, last) = (vec![1; 8192], vec![2; 4096]);
    let last_sector = Sector::new(BLOCK_BYTES / 4096 - 1);
    let mut ran = 0;
    let mut requests = [
        BlockRequest::Write { sector: Sector::new(0), buffer: (&first).into() },
        BlockRequest::Write { sector: last_sector, buffer: (&last).into() },
    ];
    device.transfer(&mut requests, &mut || ran += 1).expect("written");
    assert_eq!(ran, 1);
    drop(device);

    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened again");
    let mut found = [0; 8];
    device.load(MEMORY_BYTES - 8, &mut found).expect("loaded");
    assert_eq!(&found, b"the last");
    let (mut one, mut two) = (vec![0; 4096], vec![0; 4096]);
    let mut requests = [
        BlockRequest::Read { sector: Sector::new(1), buffer: (&mut one).into() },
        BlockRequest::Read { sector: last_sector, buffer: (&mut two).into() },
    ];
    device.transfer(&mut requests, &mut || ()).expect("read");
    assert!(one.iter().all(|&byte| byte == 1) && two.iter().all(|&byte| byte == 2));
    device.discard(Sector::new(0), 2).expect("discarded");
    let mut requests = [BlockRequest::Read { sector: Sector::new(1), buffer: (&mut one).into() }];
    device.transfer(&mut requests, &mut || ()).expect("read");
    assert!(one.iter().all(|&byte| byte == 0));
}

#[test]
fn accesses_outside_are_errors() {
    let (_directory, path) = image("off");
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    assert!(matches!(device.load(MEMORY_BYTES, &mut [0]), Err(DeviceError::OutOfRange { .. })));
    let buffer = vec![0; 8192];
    for sector in [BLOCK_BYTES / 4096 - 1, u64::MAX] {
        let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }];
        assert!(matches!(device.transfer(&mut requests, &mut || ()), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.discard(Sector::new(sector), 2), Err(DeviceError::OutOfRange { .. })));
    }
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&buffer[..100]).into() }];
    assert!(matches!(device.transfer(&mut requests, &mut || ()), Err(DeviceError::Block { operation: "write", .. })));
}

#[test]
fn meanwhile_runs_and_the_rest_is_written_when_one_request_fails() {
    let (_directory, path) = image("off");
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    let buffer = vec![7; 4096];
    let mut ran = 0;
    let mut requests = [
        BlockRequest::Write { sector: Sector::new(u64::MAX), buffer: (&buffer).into() },
        BlockRequest::Write { sector: Sector::new(3), buffer: (&buffer).into() },
    ];
    assert!(device.transfer(&mut requests, &mut || ran += 1).is_err());
    assert_eq!(ran, 1);
    let mut found = vec![0; 4096];
    device.transfer(&mut [BlockRequest::Read { sector: Sector::new(3), buffer: (&mut found).into() }], &mut || ()).expect("read");
    assert_eq!(found, buffer);
}

#[test]
fn an_image_is_locked_while_it_is_open() {
    let (_directory, path) = image("off");
    let busy = |options: &OpenOptions| matches!(ImageDevice::open(&path, options), Err(DeviceError::Busy { .. }));
    let shared = OpenOptions { shared: true, ..reading() };
    let writer = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    assert!(busy(&OpenOptions::default()) && busy(&reading()) && busy(&shared));
    info(&path).expect("needs no lock");
    drop(writer);
    let reader = ImageDevice::open(&path, &shared).expect("opened");
    ImageDevice::open(&path, &shared).expect("opened beside it");
    assert!(busy(&OpenOptions::default()) && busy(&reading()));
    drop(reader);
    ImageDevice::open(&path, &OpenOptions::default()).expect("free again");
}

/// A program that another thread starts has copies of all descriptors until it is executed.
#[test]
fn regression_an_image_that_was_just_closed_was_in_use() {
    let (_directory, path) = image("off");
    let opens_while_held = || {
        let holder = File::open(&path).expect("opened");
        holder.lock().expect("locked");
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(holder);
        });
        let opened = ImageDevice::open(&path, &OpenOptions::default()).map(drop);
        freed.join().expect("freed");
        opened
    };
    // A busy machine may free it too late, but not each time.
    let tries: Vec<_> = (0..20).map(|_| opens_while_held()).take_while(Result::is_err).collect();
    assert!(tries.len() < 20, "{tries:?}");
}

#[test]
fn opening_for_reading_writes_nothing() {
    let (_directory, path) = image("off");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("set");
    let device = ImageDevice::open(&path, &reading()).expect("opened");
    device.load(0, &mut [0; 64]).expect("loaded");
    assert!(matches!(device.store(0, &[1]), Err(DeviceError::Block { operation: "store", .. })));
    let buffer = vec![0; 4096];
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&buffer).into() }];
    assert!(matches!(device.transfer(&mut requests, &mut || ()), Err(DeviceError::Block { operation: "write", .. })));
    assert!(device.discard(Sector::new(0), 1).is_err());
}

#[test]
fn a_domain_may_be_lowered_and_not_raised() {
    let (_directory, path) = image("off");
    let name = path.to_str().expect("text");
    let lower = DeviceOptions { domain: Some(PersistenceDomain::None), ..DeviceOptions::default() };
    assert_eq!(open_device(name, &lower).expect("opened").description().domain, PersistenceDomain::None);
    let higher = DeviceOptions { domain: Some(PersistenceDomain::Gpf), ..DeviceOptions::default() };
    let error = open_device(name, &higher).err().expect("refused").to_string();
    assert!(error.contains("it has 'process'"), "{error}");
}

#[test]
fn creation_is_refused_in_one_sentence_and_leaves_nothing() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk.img");
    let refuse = |options: CreateOptions, said: &str| {
        let error = create(&path, &options).expect_err("refused").to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
        assert!(!path.exists());
    };
    refuse(options("bogus"), "there is no profile 'bogus'; name one of off, romefs-a");
    refuse(CreateOptions { memory_bytes: 4096, ..options("off") }, "a memory region of 4 KiB is too small");
    refuse(CreateOptions { memory_bytes: 1 << 45, ..options("off") }, "B are free; make space or name a smaller size");
    let missing = create(&directory.path().join("no/disk.img"), &options("off")).expect_err("no such directory").to_string();
    assert!(missing.contains("cannot be created"), "{missing}");
    create(&path, &options("off")).expect("created");
    let error = create(&path, &options("off")).expect_err("exists").to_string();
    assert!(error.contains("exists already"), "{error}");
    info(&path).expect("the first one is untouched");
}

#[test]
fn what_is_no_whole_image_is_refused_with_what_was_found() {
    let (directory, path) = image("off");
    let page = fs::read(&path).expect("read")[..4096].to_vec();
    let write = |offset: u64, bytes: &[u8]| {
        FileOptions::new().write(true).open(&path).and_then(|file| file.write_all_at(bytes, offset)).expect("written");
    };

    write(HEADER_COPY_OFFSET, &[0; 4096]); // as in images of older builds
    write(8, &6_u32.to_le_bytes());
    assert!(open_reason(&path).contains("is an image of version 6, this program reads up to version 5"));
    write(0, &page);
    write(20, &[0xff]);
    assert!(open_reason(&path).contains("header is damaged"));
    write(0, b"not this");
    assert!(open_reason(&path).contains("is not an emulated drive"));
    write(0, &page);
    let file = FileOptions::new().write(true).open(&path).expect("opened");
    file.set_len((2 << 20) + MEMORY_BYTES + BLOCK_BYTES - 1).expect("cut");
    assert!(open_reason(&path).contains("was cut short: it has 85983231 B, its header says 82 MiB"));
    file.set_len(100).expect("cut");
    assert!(open_reason(&path).contains("was cut short: it has 100 B"), "the rest of this header is zeros");
    file.set_len(30).expect("cut");
    assert!(open_reason(&path).contains("header is damaged"));
    file.set_len(0).expect("cut");
    assert!(open_reason(&path).contains("is an empty file"));

    assert!(open_reason(directory.path()).contains("is a directory"));
    assert!(open_reason(Path::new("/dev/null")).contains("is not a regular file"));
    assert!(open_reason(&directory.path().join("absent")).contains("does not exist"));
}

#[test]
fn an_image_cut_short_while_in_use_gives_errors_and_no_signal() {
    let (_directory, path) = image("off");
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    device.store(0, &[5; 64]).expect("stored");
    File::options().write(true).open(&path).expect("opened").set_len((2 << 20) + 4096).expect("cut");
    assert!(matches!(device.store(1 << 20, &[1]), Err(DeviceError::Poisoned { offset: 1_048_576, .. })));
    let mut buffer = vec![0; 4096];
    let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut buffer).into() }];
    assert!(matches!(device.transfer(&mut requests, &mut || ()), Err(DeviceError::Block { operation: "read", .. })));
    let mut found = [0; 64];
    device.load(0, &mut found).expect("the first page is still there");
    assert_eq!(found, [5; 64]);
}

/// [EM2]: what was stored or written before the process was killed is there afterwards.
#[test]
fn stores_survive_the_kill_of_the_process() {
    if let Some(path) = std::env::var_os("TANDEMFS_TEST_KILL") {
        let device = ImageDevice::open(Path::new(&path), &OpenOptions::default()).expect("opened");
        device.store(4096, &[3; 5000]).expect("stored");
        let buffer = vec![4; 4096];
        device.transfer(&mut [BlockRequest::Write { sector: Sector::new(9), buffer: (&buffer).into() }], &mut || ()).expect("written");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("killed");
    }
    let (_directory, path) = image("romefs-a");
    let child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "stores_survive_the_kill_of_the_process"])
        .env("TANDEMFS_TEST_KILL", &path)
        .output()
        .expect("runs");
    assert!(!child.status.success());
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("the lock went with the process");
    let (mut stored, mut written) = (vec![0; 5000], vec![0; 4096]);
    device.load(4096, &mut stored).expect("loaded");
    device.transfer(&mut [BlockRequest::Read { sector: Sector::new(9), buffer: (&mut written).into() }], &mut || ()).expect("read");
    assert!(stored.iter().all(|&byte| byte == 3) && written.iter().all(|&byte| byte == 4));
}

/// One request of 1 MiB arrives as parts that are done one after the other, and the first are worked on while the last are still in flight.
#[test]
fn a_large_request_is_split_and_its_parts_are_shown_as_they_come() {
    let (_directory, path) = image("romefs-a");
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    let part = device.description().request_bytes as usize;
    let drive = Drive::new(Arc::new(device));
    let data: Vec<u8> = (0..(1 << 20) + 4096).map(|at| (at / 4096) as u8).collect();
    let mut written = 0;
    let mut requests = [
        BlockRequest::Write { sector: Sector::new(7), buffer: (&data).into() },
        BlockRequest::Write { sector: Sector::new(0), buffer: (&data[..4096]).into() },
    ];
    let written_at =
        drive.transfer_each(Structure::Data, &mut requests, &mut || {}, &mut |_, _, bytes| written += bytes.len()).expect("written");
    drop(written_at);
    assert_eq!(written, data.len() + 4096);
    let mut found = vec![0; data.len()];
    let mut seen = Vec::new();
    let mut requests = [BlockRequest::Read { sector: Sector::new(7), buffer: (&mut found).into() }];
    let start = Instant::now();
    let mut times = Vec::new();
    drop(
        drive
            .transfer_each(Structure::Data, &mut requests, &mut || {}, &mut |index, at, bytes| {
                assert!(index == 0 && bytes == data[at..at + bytes.len()], "part at {at}");
                seen.push((at, bytes.len()));
                times.push(start.elapsed());
            })
            .expect("read"),
    );
    assert!(found == data);
    seen.sort_unstable();
    let expected: Vec<_> = (0..data.len()).step_by(part).map(|at| (at, part.min(data.len() - at))).collect();
    assert_eq!(seen, expected);
    assert_eq!(drive.counters().snapshot().block_reads, 1, "counted as the file system asked");
    assert!(times.is_sorted());
}

#[test]
fn a_request_that_fails_is_not_shown() {
    let (_directory, path) = image("off");
    let device = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
    let buffer = vec![7; 4096];
    let mut requests = [
        BlockRequest::Write { sector: Sector::new(u64::MAX), buffer: (&buffer).into() },
        BlockRequest::Write { sector: Sector::new(3), buffer: (&buffer).into() },
    ];
    let mut shown = Vec::new();
    assert!(device.transfer_each(&mut requests, &mut || {}, &mut |index, _| shown.push(index)).is_err());
    assert_eq!(shown, [1]);
}
