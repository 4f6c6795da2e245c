//! Cost of the translation layer itself, printed: `cargo test --release -p tandemfs-emulator flash::tests::speed -- --ignored --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tandemfs_device::DeviceError;

use super::rig::Draw;
use crate::flash::{Flash, FlashGeometry, FlashOptions};
use crate::medium::{Medium, PageBytes, Pages, PhysicalPage, Spare};

/// A medium that keeps tables and spare areas, but no bytes of flash pages: what is left is the cost of the translation layer.
#[derive(Debug)]
struct Hollow {
    dram: Mutex<Vec<u8>>,
    spares: Mutex<Vec<Spare>>,
}

impl Medium for Hollow {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(&self.dram.lock()[offset as usize..offset as usize + into.len()]);
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.dram.lock()[offset as usize..offset as usize + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read_page(&self, _: PhysicalPage, _: &mut PageBytes) -> Result<(), DeviceError> {
        Ok(())
    }

    fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError> {
        Ok(self.spares.lock()[page.0 as usize])
    }

    fn program_page(&self, page: PhysicalPage, _: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
        self.spares.lock()[page.0 as usize] = spare;
        Ok(())
    }

    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        self.spares.lock()[first.0 as usize..(first.0 + count) as usize].fill(Spare::default());
        Ok(())
    }
}

#[test]
#[ignore = "prints figures"]
fn print_speed() {
    let geometry = FlashGeometry::for_capacity(8 << 20, 8, 4, 2, 256, 7);
    let options = FlashOptions::default();
    let medium = Arc::new(Hollow {
        dram: Mutex::new(vec![0; geometry.dram_bytes(&options) as usize]),
        spares: Mutex::new(vec![Spare::default(); geometry.physical_pages() as usize]),
    });
    Flash::format(Arc::clone(&medium), 0, geometry, options).unwrap();
    let open = |what: &str| {
        let start = Instant::now();
        let flash = Flash::open(Arc::clone(&medium), 0, geometry, options).unwrap();
        println!("open 32 GiB, {what}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        flash
    };
    let mut flash = open("nothing written");
    let page = [7; 4096];
    let timed = |what: &str, count: u64, call: &mut dyn FnMut(u64)| {
        let start = Instant::now();
        (0..count).for_each(call);
        println!("{what}: {:.0} ns", start.elapsed().as_nanos() as f64 / count as f64);
    };
    timed("write, first time, in order", 1 << 20, &mut |number| flash.write(number, &page, number).unwrap());
    drop(flash);
    let mut flash = open("an eighth written");
    timed("write, rest, in order", 7 << 20, &mut |number| flash.write((1 << 20) + number, &page, number).unwrap());
    drop(flash);
    let mut flash = open("all written");
    let mut draw = Draw::new(1);
    for round in 0..4 {
        let before = flash.counts();
        timed(&format!("overwrite at random, round {round}"), 2 << 20, &mut |number| {
            flash.write(draw.below(8 << 20), &page, number).unwrap();
            flash.settle().unwrap();
        });
        let counts = flash.counts().since(&before);
        println!("  write amplification {:.2}", counts.pages_programmed as f64 / counts.pages_written as f64);
    }
    let mut into = [0; 4096];
    timed("translation at random (stamp)", 1 << 20, &mut |_| {
        black_box(flash.stamp(draw.below(8 << 20)).unwrap());
    });
    for (what, pages) in [("32 GiB", 8 << 20), ("1 GiB", 1 << 18), ("64 MiB", 1 << 14)] {
        timed(&format!("translation at random in {what} (is_mapped)"), 1 << 20, &mut |_| {
            black_box(flash.is_mapped(draw.below(pages)).unwrap());
        });
    }
    timed("read at random without its copy", 1 << 20, &mut |_| flash.read(draw.below(8 << 20), &mut into).unwrap());
    timed("settle with nothing to do", 1 << 20, &mut |_| flash.settle().unwrap());
}
