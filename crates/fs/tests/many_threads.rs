//! Many threads on one file system: no change is lost, and space comes back.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, RenameMode, SetAttributes, WriteOptions, make_file_system};

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn mounted(memory: u64, blocks: u64) -> (MemoryDevice, Arc<FileSystem>) {
    let device = MemoryDevice::new(memory, blocks, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions { memory_bytes: 8 << 20, ..MountOptions::default() }).expect("mounts"));
    fs.start_background().expect("a thread");
    (device, fs)
}

/// A small random generator: a failure repeats with its seed, which comes from the thread's number.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn threads_in_directories_of_their_own_and_in_a_shared_one() {
    let (device, fs) = mounted(64 << 20, 64 << 20);
    let shared =
        fs.create(InodeNumber::ROOT, b"shared", &NewInode { mode: file_type::DIRECTORY | 0o755, ..file() }).expect("creates").inode;
    let totals: Vec<Vec<(Vec<u8>, Vec<u8>)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let fs = &fs;
                scope.spawn(move || {
                    let mut seed = thread + 1;
                    let mut files: Vec<(Vec<u8>, Vec<u8>, InodeNumber)> = Vec::new();
                    for round in 0..1500_u64 {
                        match next(&mut seed) % 10 {
                            0..=3 => {
                                let name = format!("{thread}-{round}-{}", "n".repeat((next(&mut seed) % 100) as usize)).into_bytes();
                                let number = fs.create(shared, &name, &file()).expect("creates").inode;
                                files.push((name, Vec::new(), number));
                            }
                            4..=6 if !files.is_empty() => {
                                let at = (next(&mut seed) % files.len() as u64) as usize;
                                let offset = next(&mut seed) % 90_000;
                                let data = vec![round as u8 | 1; (next(&mut seed) % 9000 + 1) as usize];
                                let (_, bytes, number) = &mut files[at];
                                match fs.write(*number, offset, &data, WriteOptions::default()) {
                                    Ok(_) => {
                                        let end = offset as usize + data.len();
                                        if bytes.len() < end {
                                            bytes.resize(end, 0);
                                        }
                                        bytes[offset as usize..end].copy_from_slice(&data);
                                    }
                                    Err(Error::NoSpace { .. }) => {}
                                    Err(error) => panic!("{error}"),
                                }
                            }
                            7 if !files.is_empty() => {
                                let at = (next(&mut seed) % files.len() as u64) as usize;
                                let size = next(&mut seed) % 100_000;
                                let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
                                fs.set_attributes(files[at].2, &set).expect("truncates");
                                files[at].1.resize(size as usize, 0);
                            }
                            8 if !files.is_empty() => {
                                let at = (next(&mut seed) % files.len() as u64) as usize;
                                let name = format!("{thread}-moved-{round}").into_bytes();
                                fs.rename(shared, &files[at].0, shared, &name, RenameMode::Replace).expect("renames");
                                files[at].0 = name;
                            }
                            _ if files.len() > 20 => {
                                let at = (next(&mut seed) % files.len() as u64) as usize;
                                let (name, ..) = files.swap_remove(at);
                                fs.unlink(shared, &name).expect("unlinks");
                            }
                            _ => {}
                        }
                    }
                    files.into_iter().map(|(name, bytes, _)| (name, bytes)).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread fails")).collect()
    });
    let look = |fs: &FileSystem| {
        let mut count = 0;
        fs.read_directory(shared, 2, &mut |_| {
            count += 1;
            true
        })
        .expect("lists");
        assert_eq!(count, totals.iter().map(Vec::len).sum::<usize>());
        for (name, bytes) in totals.iter().flatten() {
            let attributes = fs.lookup(shared, name).expect("there");
            assert_eq!(attributes.size, bytes.len() as u64);
            let mut read = vec![0; bytes.len()];
            fs.read(attributes.inode, 0, &mut read).expect("reads");
            assert!(read == *bytes, "{}", String::from_utf8_lossy(name));
        }
    };
    look(&fs);
    let crashed = Drive::new(Arc::new(MemoryDevice::from_zones(device.zones(), PersistenceDomain::Gpf)));
    fs.unmount().expect("unmounts");
    let recovered = FileSystem::mount(crashed, &MountOptions::default()).expect("mounts");
    look(&recovered);
    let clean = FileSystem::mount(fs.drive().clone(), &MountOptions::default()).expect("mounts");
    look(&clean);
    assert_eq!(clean.space(), recovered.space());
}

#[test]
fn a_full_file_system_can_be_overwritten_truncated_and_emptied() {
    for (memory, blocks) in [(16 << 20, 8 << 20), (16 << 20, 64 << 20)] {
        let (_, fs) = mounted(memory, blocks);
        let before = fs.space();
        let mut files = Vec::new();
        let mut seed = 77;
        'full: for index in 0..100_000 {
            let number = match fs.create(InodeNumber::ROOT, format!("f{index}").as_bytes(), &file()) {
                Ok(attributes) => attributes.inode,
                Err(Error::NoSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            };
            files.push(number);
            let data = vec![index as u8; (next(&mut seed) % 150_000) as usize + 1];
            match fs.write(number, 0, &data, WriteOptions::default()) {
                Ok(length) if length == data.len() => {}
                Ok(_) | Err(Error::NoSpace { .. }) => break 'full,
                Err(error) => panic!("{error}"),
            }
        }
        // Fill what is left, 4 KiB at a time.
        while fs.write(files[0], fs.attributes(files[0]).expect("there").size, &[1; 4096], WriteOptions::default()).is_ok() {}
        assert!(files.len() > 50, "{}", files.len());
        for (round, number) in files.iter().enumerate() {
            let size = fs.attributes(*number).expect("there").size;
            for _ in 0..4 {
                let length = (next(&mut seed) % 9000 + 1).min(size);
                let offset = next(&mut seed) % (size - length + 1).max(1);
                if length > 0 {
                    let written = fs.write(*number, offset, &vec![round as u8; length as usize], WriteOptions::default());
                    assert_eq!(
                        written.map_err(|error| error.to_string()),
                        Ok(length as usize),
                        "an overwrite on a full device, file {round}"
                    );
                }
            }
        }
        for (index, number) in files.iter().enumerate() {
            fs.set_attributes(*number, &SetAttributes { size: Some(index as u64 % 5000), ..SetAttributes::default() }).expect("truncates");
        }
        for index in 0..files.len() {
            fs.unlink(InodeNumber::ROOT, format!("f{index}").as_bytes()).expect("unlinks");
        }
        fs.checkpoint().expect("checkpoints");
        let after = fs.space();
        assert_eq!((after.block, after.inodes_used, after.memory.data_log_bytes), (before.block, before.inodes_used, 0));
    }
}
