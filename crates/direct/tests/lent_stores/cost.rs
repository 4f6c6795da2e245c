//! What a durable overwrite costs, and a durable append.

use std::fs::File as HostFile;
use std::hint::black_box;
use std::time::Instant;

use tandemfs_client::{OpenOptions, Options};
use tandemfs_device::{Mapping, MappingOptions};

use crate::memory::alone;
use crate::raw::Raw;
use crate::{BEFORE, opened, scene, storing};

/// Medians of a durable overwrite in nanoseconds: copies that are flushed and fenced, stores under a lease, requests.
#[test]
#[ignore = "a measurement"]
fn cost() {
    const BYTES: usize = 1 << 20;
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", BYTES);
    let memory = tempfile_of(BYTES);
    let bytes = vec![7; 64 << 10];
    for name in ["copies", "copies and flushes", "leases", "requests"] {
        let mount = scene.connect(&Options { stores: name == "leases", ..Options::default() });
        let file = opened(&mount, "f");
        (0..BEFORE).for_each(|_| file.write_all_at(&bytes[..8], 0).expect("written"));
        assert_eq!(scene.lent().0, usize::from(name == "leases"));
        for (length, writes) in [(8, 40_000), (100, 40_000), (4096, 40_000), (64 << 10, 4000)] {
            let mut all: Vec<f64> = (0..7)
                .map(|_| {
                    let begun = Instant::now();
                    for write in 0..writes {
                        let at = (write * 7919 * 64 % (BYTES - length)) as u64;
                        let from = black_box(&bytes[..length]);
                        match name {
                            "copies" => memory.store(at, from).expect("stored"),
                            "copies and flushes" => {
                                memory.store_streaming(at, from).expect("stored");
                                memory.flush(at, length as u64);
                                memory.fence();
                            }
                            _ => assert_eq!(file.write_at(from, at), Ok(length)),
                        }
                    }
                    begun.elapsed().as_nanos() as f64 / writes as f64
                })
                .collect();
            all.sort_by(f64::total_cmp);
            println!("{name}: {length} B {:.0} ns ({:.0} to {:.0})", all[3], all[0], all[6]);
        }
    }
    let mount = scene.connect(&storing());
    let (file, other) = (opened(&mount, "f"), scene.open("f"));
    let mut all: Vec<f64> = (0..200)
        .map(|_| {
            (0..100).for_each(|_| file.write_all_at(&bytes[..8], 0).expect("written"));
            let begun = Instant::now();
            scene.read(&other, 0, 1);
            begun.elapsed().as_nanos() as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    println!("a read that ends a lease of {} KiB: {:.0} us; {:?}", BYTES >> 10, all[100] / 1000.0, scene.counts());
}

/// Medians of a durable append in nanoseconds, over many blocks, with the requests and the leases that it takes: in lent room, and by requests. Alone, and each with an
/// `fdatasync`. Then what a tail costs: until it is lent, and until it has ended.
#[test]
#[ignore = "a measurement"]
fn cost_of_appends() {
    let _alone = alone();
    let scene = scene();
    let bytes = vec![7; 4096];
    for name in ["tails", "requests"] {
        let mount = scene.connect(&Options { stores: name == "tails", ..Options::default() });
        for (length, appends) in [(8, 60_000), (100, 60_000), (1000, 20_000), (4096, 5000)] {
            for syncs in [false, true] {
                let mut all: Vec<f64> = (0..7)
                    .map(|_| {
                        let file = OpenOptions::new().append(true).create(true).truncate(true).open(&mount, "log").expect("opened");
                        let begun = Instant::now();
                        for _ in 0..appends {
                            assert_eq!(file.append(black_box(&bytes[..length])).expect("appended").0, length);
                            if syncs {
                                file.sync_data().expect("durable");
                            }
                        }
                        begun.elapsed().as_nanos() as f64 / f64::from(appends)
                    })
                    .collect();
                all.sort_by(f64::total_cmp);
                let what = if syncs { "append, fdatasync" } else { "append" };
                println!("{name}: {what} of {length} B {:.0} ns ({:.0} to {:.0})", all[3], all[0], all[6]);
            }
        }
    }
    scene.write(&scene.open("f"), 0, &[1; 30_000]);
    let mut raw = Raw::connect(scene.server.socket());
    let (mut lent, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let begun = Instant::now();
        let (token, _) = raw.tail().expect("a tail");
        lent.push(begun.elapsed().as_nanos() as f64);
        let begun = Instant::now();
        raw.give_back(token);
        ended.push(begun.elapsed().as_nanos() as f64);
    }
    for (what, all) in [("lent", &mut lent), ("given back", &mut ended)] {
        all.sort_by(f64::total_cmp);
        println!("a tail is {what} in {:.1} us ({:.1} to {:.1})", all[100] / 1000.0, all[5] / 1000.0, all[195] / 1000.0);
    }
}

/// Memory of a file without a name, mapped.
fn tempfile_of(bytes: usize) -> Mapping {
    let path = std::env::temp_dir().join(format!("tandemfs-door-stores-copies-{}", std::process::id()));
    let file = HostFile::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("removed");
    file.set_len(bytes as u64).expect("sized");
    let map = Mapping::new("copies", &file, MappingOptions { length: bytes as u64, ..MappingOptions::default() }).expect("mapped");
    map.store(0, &vec![1; bytes]).expect("stored");
    map
}
