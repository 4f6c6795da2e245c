//! Bytes that trusted programs load from the drive's memory, beside real mounts (`-o direct=GROUP`; SEMANTICS, *Lent memory*).

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Place, eventually, pattern, run, succeeds};
use tandemfs_client::{Errno, Error, File, Mount, OpenOptions, Options, TimeToSet, Tree};

const FILE_BYTES: usize = 2 << 20;

fn loading() -> Options {
    Options { loads: true, ..Options::default() }
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// Requests of the only client, and look-ups among them.
fn requests(mount: &support::Mount) -> (u64, u64) {
    let stats = mount.stats();
    let client = &stats["direct"]["clients"][0];
    (client["requests"].as_u64().expect("a client"), client["operations"]["lend"].as_u64().unwrap_or(0))
}

fn connected(root: &Path) -> (Mount, File) {
    let client = Mount::connect_with(root, &loading()).expect("let in");
    let file = OpenOptions::new().read(true).write(true).open(&client, "file").expect("opened");
    (client, file)
}

#[test]
fn what_the_mount_writes_is_loaded_by_clients() {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "direct=54321");
    let path = mount.path("file");
    fs::write(&path, pattern(1, FILE_BYTES)).expect("written");
    let (client, file) = connected(mount.root());
    assert!(client.loads_by_itself() && mount.stats()["direct"]["clients"][0]["loads_by_itself"] == true);
    (0..3).for_each(|_| assert!(read(&file) == pattern(1, FILE_BYTES)));
    let before = requests(&mount);
    assert_eq!(before.1, 2, "a window each");
    assert!(read(&file) == pattern(1, FILE_BYTES));
    assert_eq!(requests(&mount), before, "nobody was asked");
    // By either way, while the kernel has pages of the file and while it has none.
    let by_mount = fs::File::options().read(true).write(true).open(&path).expect("opened");
    let mut model = pattern(1, FILE_BYTES);
    for round in 0..40_u8 {
        let (at, bytes) = (usize::from(round) * 50_021, [round; 9000]);
        model[at..at + bytes.len()].copy_from_slice(&bytes);
        match round % 4 {
            0 | 2 => by_mount.write_all_at(&bytes, at as u64).expect("written"),
            _ => file.write_all_at(&bytes, at as u64).expect("written"),
        }
        assert!(read(&file) == model, "round {round}");
        if round % 3 == 0 {
            let mut all = Vec::new();
            fs::File::open(&path).and_then(|mut file| file.read_to_end(&mut all)).expect("read");
            assert!(all == model, "by the mount, round {round}");
        }
    }
    // A daemon that is killed; the next one is another's.
    mount.kill();
    let refused = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        file.read_at(&mut [0; 5000], 0).err()
    });
    assert_eq!(refused, Some(Error::Errno(Errno::NOTCONN)));
    drop((client, file, by_mount));
    let mount = place.mount_device(&device, "direct=54321");
    let (client, file) = connected(mount.root());
    (0..4).for_each(|_| assert!(read(&file) == model));
    drop((client, file));
    mount.unmount();
    let mount = place.mount_device(&device, "direct");
    assert!(!connected(mount.root()).0.loads_by_itself(), "a mount that trusts nobody");
    mount.unmount();
    succeeds(&["check", &device]);
}

#[test]
fn a_drive_whose_loads_are_timed_lends_nothing() {
    let place = Place::empty();
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "optane", "--memory", "96M"]);
    succeeds(&["mkfs", &image]);
    for (options, lends) in [("direct=54321", true), ("direct=54321,timing=on", false)] {
        let mount = place.mount_device(&image, options);
        fs::write(mount.path("file"), pattern(1, FILE_BYTES)).expect("written");
        let (client, file) = connected(mount.root());
        assert_eq!(client.loads_by_itself(), lends, "{options}");
        (0..4).for_each(|_| assert!(read(&file) == pattern(1, FILE_BYTES)));
        drop((client, file));
        mount.unmount();
    }
}

/// A file that the mount writes, cuts and reads is mapped meanwhile; the mount ends with the mapping in place, cleanly.
#[test]
fn what_the_mount_writes_is_seen_in_mappings() {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "direct=54321");
    let path = mount.path("file");
    let mut model = pattern(1, FILE_BYTES);
    fs::write(&path, &model).expect("written");
    let client = Mount::connect_with(mount.root(), &Options { maps: true, ..Options::default() }).expect("let in");
    let mapping = client.open("file").and_then(|file| file.map(0..FILE_BYTES as u64)).expect("mapped");
    let mapped = || {
        let mut bytes = vec![0; FILE_BYTES];
        mapping.load(0, &mut bytes).expect("loaded");
        bytes
    };
    assert!(mapped() == model);
    let by_mount = fs::File::options().read(true).write(true).open(&path).expect("opened");
    for round in 0..40_u8 {
        let (at, bytes) = (usize::from(round) * 50_021, [round; 9000]);
        model[at..at + bytes.len()].copy_from_slice(&bytes);
        by_mount.write_all_at(&bytes, at as u64).expect("written");
        assert!(mapped() == model && fs::read(&path).expect("read") == model, "round {round}");
    }
    by_mount.set_len(100_000).expect("cut");
    model[100_000..].fill(0);
    assert!(mapped() == model, "what was cut off is zeros");
    drop(by_mount);
    mount.unmount();
    succeeds(&["check", &device]);
    assert!(client.has_ended());
}

fn leases(mount: &support::Mount) -> u64 {
    mount.stats()["direct"]["store_leases"]["held"].as_u64().expect("a number")
}

/// A client stores under leases, the mount reads and writes by its page cache, maps and cuts: each sees what the other has done (`direct_stores=`).
#[test]
fn what_clients_store_is_what_the_mount_reads() {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "direct,direct_stores=54321");
    let path = mount.path("file");
    fs::write(&path, pattern(1, FILE_BYTES)).expect("written");
    let client = Mount::connect_with(mount.root(), &Options { stores: true, ..Options::default() }).expect("let in");
    assert!(client.stores_by_itself() && !client.loads_by_itself());
    let file = OpenOptions::new().read(true).write(true).open(&client, "file").expect("opened");
    let by_mount = fs::File::options().read(true).write(true).open(&path).expect("opened");
    let (mut model, mut leased) = (pattern(1, FILE_BYTES), 0);
    for round in 0..60_u32 {
        let at = round as usize * 30_011;
        for write in 0..100 {
            let (at, bytes) = (at / (1 << 20) * (1 << 20) + write * 4096, [(round + write as u32) as u8; 4096]);
            file.write_all_at(&bytes, at as u64).expect("written");
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        leased += leases(&mount);
        let (found_at, length) = (at / (1 << 20) * (1 << 20) + 100, 300_000.min(FILE_BYTES - at / (1 << 20) * (1 << 20) - 100));
        let mut found = vec![0; length];
        match round % 3 {
            0 => {
                by_mount.read_exact_at(&mut found, found_at as u64).expect("read");
                assert!(found == model[found_at..found_at + length], "round {round}: a read by the mount");
            }
            1 => {
                by_mount.write_all_at(&[round as u8; 9000], found_at as u64).expect("written");
                model[found_at..found_at + 9000].fill(round as u8);
            }
            _ => {
                let said = run(std::process::Command::new("python3")
                    .args(["-c", "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); n=int(sys.argv[2]); print(m[n]); m[n+1]=77; m.flush()"])
                    .args([&path.display().to_string(), &found_at.to_string()]));
                assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), model[found_at].to_string(), "round {round}: a mapping");
                model[found_at + 1] = 77;
            }
        }
        assert!(read(&file) == model, "round {round}: the client");
    }
    assert!(leased > 0, "no lease was used");
    let stats = &mount.stats()["direct"];
    let of_client = &stats["clients"][0]["store_leases"];
    assert!(of_client["lent"].as_u64() > Some(0) && of_client["taken_away"] == 0, "{of_client}");
    assert_eq!((&stats["store_leases"]["clients"], &stats["store_leases"]["kept_back_bytes"]), (&1.into(), &0.into()));
    drop((client, file, by_mount));
    mount.unmount();
    let mount = place.mount_device(&device, "direct,direct_stores=54321");
    assert!(fs::read(mount.path("file")).expect("read") == model);
    // The daemon is killed with a lease in place: what was stored is there, and nobody mounts while the client has the memory.
    let client = Mount::connect_with(mount.root(), &Options { stores: true, ..Options::default() }).expect("let in");
    let file = OpenOptions::new().read(true).write(true).open(&client, "file").expect("opened");
    // One that nobody has used for two seconds would have ended, and the next one comes after many writes.
    let stores = || {
        for write in (0..100_u8).cycle().take(1100) {
            file.write_all_at(&[write; 4096], u64::from(write) * 4096).expect("written");
        }
    };
    eventually("top shows who has a lease", || {
        stores();
        let view = succeeds(&["top", &place.mountpoint(), "--once", "--json", "--interval", "0.1"]);
        let view: serde_json::Value = serde_json::from_str(&view).expect("JSON");
        let (of_all, of_client) = (&view["store_leases"], &view["clients"][0]["store_leases"]);
        of_all["clients"] == 1 && of_all["holders"] == 1 && of_all["held"] == 1 && of_client["held"] == 1
    });
    eventually("a lease is there when it is counted", || {
        stores();
        leases(&mount) == 1 && mount.stats()["direct"]["store_leases"]["holders"] == 1
    });
    (0..100_u8).for_each(|write| model[usize::from(write) * 4096..][..4096].fill(write));
    mount.kill();
    let refused = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        file.write_at(&[99; 4096], 99 * 4096).err()
    });
    assert_eq!(refused, Some(Error::Errno(Errno::NOTCONN)));
    drop((client, file));
    let mount = place.mount_device(&device, "direct");
    assert!(fs::read(mount.path("file")).expect("read") == model);
    mount.unmount();
    succeeds(&["check", &device]);
}

/// [BS12] of `crates/fuse`: where an fsync of the mount is a request, the times of what was stored under a lease are durable behind it.
#[test]
fn regression_an_fsync_of_the_mount_makes_times_of_leased_stores_durable() {
    let place = Place::empty();
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "optane", "--memory", "96M"]);
    succeeds(&["mkfs", &image]);
    let mount = place.mount_device(&image, "direct=54321,direct_stores=54321");
    let path = mount.path("file");
    fs::write(&path, pattern(1, FILE_BYTES)).expect("written");
    let client = Mount::connect_with(mount.root(), &Options { stores: true, ..Options::default() }).expect("let in");
    let file = OpenOptions::new().read(true).write(true).open(&client, "file").expect("opened");
    let by_mount = fs::File::options().read(true).write(true).open(&path).expect("opened");
    let long_ago = TimeToSet::At { seconds: 5, nanoseconds: 0 };
    // A lease may end between its last store and the times that are set; then the next store is a request.
    eventually("a store under a lease behind the times that were set", || {
        (0..100).for_each(|_| file.write_all_at(&[1; 4096], 0).expect("written"));
        file.set_times(TimeToSet::Omit, long_ago).expect("set");
        let before = requests(&mount);
        file.write_all_at(&[2; 4096], 0).expect("written");
        requests(&mount) == before
    });
    by_mount.sync_all().expect("durable");
    mount.kill();
    drop((client, file, by_mount));
    let mount = place.mount_device(&image, "direct");
    let path = mount.path("file");
    assert!(fs::read(&path).expect("read")[..4096] == [2; 4096]);
    let modified = fs::metadata(&path).and_then(|found| found.modified()).expect("there");
    assert!(modified.elapsed().is_ok_and(|age| age < support::WITHIN), "modified {modified:?}");
    mount.unmount();
    succeeds(&["check", &image]);
}

/// A client appends in lent room; the mount asks for the size, reads, appends, cuts, maps, moves and removes, with the kernel's pages: each sees what the
/// other has done. Then the daemon is killed while the end of the file is lent.
#[test]
fn what_clients_append_is_what_the_mount_reads() {
    let place = Place::empty();
    let memory = place.path("memory");
    fs::File::create(&memory).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = format!("memory={memory}");
    succeeds(&["mkfs", &device]);
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    let path = mount.path("log");
    let client = Mount::connect_with(mount.root(), &Options { stores: true, ..Options::default() }).expect("let in");
    let file = OpenOptions::new().read(true).append(true).create(true).open(&client, "log").expect("opened");
    // Not open all the time: while it is, the mount reads it, so that nothing is lent.
    let by_mount = || fs::File::options().read(true).append(true).open(&path).expect("opened");
    let mut model = Vec::new();
    let append = |model: &mut Vec<u8>, byte: u8, length: usize| {
        model.extend(vec![byte; length]);
        assert_eq!(file.append(&vec![byte; length]), Ok((length, model.len() as u64)));
    };
    let tails = |name: &str| mount.stats()["direct"]["clients"][0]["store_leases"][name].as_u64().expect("a number");
    let mut held = 0;
    for round in 0..80_u32 {
        (0..60).for_each(|write| append(&mut model, (round + write) as u8, 1 + (write as usize * 7 + round as usize) % 150));
        held += tails("tails_held");
        let size = model.len() as u64;
        match round % 8 {
            0 => {
                assert_eq!(fs::metadata(&path).expect("there").len(), size, "round {round}: the size by its name");
                assert_eq!(by_mount().metadata().expect("open").len(), size, "round {round}: the size of a descriptor");
            }
            1 => {
                let mut found = vec![0; 5000];
                let from = size - size.min(3000);
                let (mut done, by_mount) = (0, by_mount());
                while let moved @ 1.. = by_mount.read_at(&mut found[done..], from + done as u64).expect("read") {
                    done += moved;
                }
                assert!(found[..done] == model[from as usize..], "round {round}: a read by the mount");
            }
            2 => {
                std::io::Write::write_all(&mut &by_mount(), &[round as u8; 700]).expect("appended");
                model.extend([round as u8; 700]);
            }
            3 => {
                by_mount().set_len(size - 500).expect("cut");
                model.truncate(size as usize - 500);
            }
            4 => {
                by_mount().set_len(size + 5000).expect("grown");
                model.resize(size as usize + 5000, 0);
            }
            5 => {
                let program =
                    "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); print(len(m), m[-1]); m[-2]=77; m.flush()";
                let said = run(std::process::Command::new("python3").args(["-c", program, &path.display().to_string()]));
                let last = *model.last().expect("bytes");
                assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), format!("{size} {last}"), "round {round}: a mapping");
                model[size as usize - 2] = 77;
            }
            6 => {
                let other = mount.path("other");
                fs::rename(&path, &other).and_then(|()| fs::rename(&other, &path)).expect("moved");
            }
            _ => assert!(fs::read(&path).expect("read") == model, "round {round}: all of it by the mount"),
        }
        if round % 5 == 0 {
            let mut found = vec![0; model.len() + 1];
            assert_eq!(file.read_at(&mut found, 0), Ok(model.len()), "round {round}: the client");
            assert!(found[..model.len()] == model, "round {round}: the client");
        }
    }
    println!("{} tails, one in {held} of 80 rounds", tails("tails_lent"));
    assert!(held > 10 && tails("taken_away") == 0);
    assert!(fs::read(&path).expect("read") == model);
    drop((client, file));
    mount.unmount();
    succeeds(&["check", &device]);
    let mount = place.mount_device(&device, "direct=54321,direct_stores=54321");
    assert!(fs::read(mount.path("log")).expect("read") == model);
    // A copy of what was appended, and a daemon that is killed.
    let client = Mount::connect_with(mount.root(), &Options { stores: true, ..Options::default() }).expect("let in");
    let file = OpenOptions::new().append(true).open(&client, "log").expect("opened");
    eventually("the end is lent when it is counted", || {
        for _ in 0..1100 {
            file.append(&[3; 30]).expect("appended");
            model.extend([3; 30]);
        }
        mount.stats()["direct"]["clients"][0]["store_leases"]["tails_held"] == 1
    });
    mount.kill();
    let mut after = 0;
    let refused = (0..2_000_000).find_map(|_| match file.append(&[4; 10]) {
        Ok(_) => {
            after += 1;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(refused, Some(Error::Errno(Errno::NOTCONN)));
    model.extend(vec![4; 10 * after]);
    drop((client, file));
    let mount = place.mount_device(&device, "direct");
    let found = fs::read(mount.path("log")).expect("read");
    assert!(found.starts_with(&model) && found.len() <= model.len() + 10, "{} B, {} and one on its way", found.len(), model.len());
    mount.unmount();
    succeeds(&["check", &device]);
}
