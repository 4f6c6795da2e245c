//! What the emulator itself takes, so that the model and not the code sets the times. Figures, in time of the CPU:
//! `cargo test --release -p tandemfs-emulator --test overhead -- --ignored --nocapture`.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use tandemfs_device::{BlockRequest, Device, TxId};
use tandemfs_emulator::{CreateOptions, ModelOptions, OpenOptions, create_with, open_image};
use tandemfs_format::Sector;
use tempfile::TempDir;

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn device(profile: &str) -> (TempDir, Arc<dyn Device>) {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    let options = CreateOptions { profile: profile.to_owned(), memory_bytes: 1 << 30, block_bytes: 3 << 30 };
    create_with(&path, &options, &ModelOptions { no_timing: true, ..ModelOptions::default() }).expect("created");
    let device = open_image(&path, &OpenOptions::default()).expect("opened");
    (directory, device)
}

fn figure(what: &str, count: u64, mut access: impl FnMut(u64)) -> f64 {
    let begun = cpu_ns();
    (0..count).for_each(&mut access);
    let each = (cpu_ns() - begun) as f64 / count as f64;
    println!("{what:<44} {each:>8.0} ns");
    each
}

fn scattered(number: u64, limit: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % limit
}

fn write(device: &dyn Device, sector: u64, buffer: &[u8]) {
    let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: buffer.into() }];
    device.block_path().transfer(&mut requests, &mut || ()).expect("written");
}

#[test]
#[ignore = "takes figures; needs 3 GB in /dev/shm and a quiet machine"]
fn what_accesses_take_without_a_model() {
    for profile in ["off", "bytefs", "bytefs-dual"] {
        println!("{profile}:");
        let (_directory, device) = device(profile);
        let (line, page) = ([0x5a; 64], [0xa5; 4096]);
        let lines = (1_u64 << 30) / 64;
        figure("a store of 64 B, in turn", 1 << 20, |number| device.byte_path().store(number * 64, &line).expect("stored"));
        figure("a store of 64 B, scattered", 1 << 20, |number| {
            device.byte_path().store(scattered(number, lines) * 64, &line).expect("stored");
        });
        figure("a store of 64 B, the same lines", 1 << 20, |number| {
            device.byte_path().store(number % 4096 * 64, &line).expect("stored");
        });
        figure("a load of 64 B that was stored", 1 << 18, |number| {
            device.byte_path().load(number % 4096 * 64, &mut [0; 64]).expect("loaded");
        });
        if let Some(firmware) = device.firmware() {
            figure("two tagged lines and COMMIT", 1 << 18, |number| {
                let transaction = TxId::MIN.saturating_add(number as u32);
                firmware.store_tagged(transaction, number % 8192 * 4096, &[1; 128]).expect("stored");
                firmware.commit(transaction).expect("committed");
            });
            firmware.clean().expect("cleaned");
        }
        let sectors = 1_u64 << 17;
        figure("a block write of 4 KiB, the first time", sectors, |number| write(&*device, number, &page));
        figure("a block write of 4 KiB, again, in turn", sectors, |number| write(&*device, number, &page));
        figure("a block write of 4 KiB, again, scattered", sectors, |number| write(&*device, scattered(number, sectors), &page));
        // A drive goes through all of its flash before it uses a page again: from then on the host's file has every page.
        for number in 0..(5 << 30) / 4096_u64 {
            write(&*device, number % sectors, &page);
        }
        figure("a block write of 4 KiB, in turn, the flash touched", sectors, |number| write(&*device, number, &page));
        let mut into = [0; 4096];
        figure("a block read of 4 KiB", sectors, |number| {
            let mut requests = [BlockRequest::Read { sector: Sector::new(scattered(number, sectors)), buffer: (&mut into).into() }];
            device.block_path().transfer(&mut requests, &mut || ()).expect("read");
        });
    }
}
