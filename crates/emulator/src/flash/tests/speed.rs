//! Cost of the translation layer itself, printed: `cargo test --release -p tandemfs-emulator flash::tests::speed -- --ignored --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use super::hollow::Hollow;
use super::rig::Draw;
use crate::flash::{Flash, FlashGeometry, FlashOptions};
use crate::medium::Pages;

#[test]
#[ignore = "prints figures"]
fn print_speed() {
    let geometry = FlashGeometry::for_capacity(8 << 20, 8, 4, 2, 256, 7);
    let options = FlashOptions::default();
    let medium = Arc::new(Hollow::new(&geometry, &options));
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
    timed("write, buffered only", 1 << 20, &mut |number| flash.write(number % 900, &page, number).unwrap());
    timed("write, first time, in order", 1 << 20, &mut |number| flash.write(number, &page, number).unwrap());
    drop(flash);
    let mut flash = open("an eighth written");
    timed("write, rest, in order", 7 << 20, &mut |number| flash.write((1 << 20) + number, &page, number).unwrap());
    drop(flash);
    let mut flash = open("all written");
    let mut draw = Draw::new(1);
    for round in 0..2 {
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
