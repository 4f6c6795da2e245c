//! Random sequences against a plain array. A failure names its seed.

use super::rig::{Draw, Rig, Step, small_geometry, small_options};
use crate::flash::{FlashGeometry, FlashOptions, VictimPolicy};

/// Runs a random sequence; what is wrong is said in the error or a panic.
pub(super) fn run(geometry: FlashGeometry, options: FlashOptions, seed: u64, step_count: u64) -> Result<Rig, String> {
    let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
    let mut draw = Draw::new(seed);
    for number in 0..step_count {
        let step = Step::draw(&mut draw, geometry.logical_pages);
        if let Err(error) = rig.step(step) {
            if rig.flash.as_ref().is_some_and(|flash| flash.read_only_reason().is_some()) {
                break;
            }
            return Err(format!("seed {seed}, step {number}, {step:?}: {error}"));
        }
        if number % 500 == 0 {
            rig.compare().map_err(|what| format!("seed {seed}, step {number}: {what}"))?;
        }
    }
    rig.compare().map_err(|what| format!("seed {seed}: {what}"))?;
    rig.reopen().map_err(|error| format!("seed {seed}: {error}"))?;
    rig.compare().map_err(|what| format!("seed {seed}, opened again: {what}"))?;
    Ok(rig)
}

#[test]
fn random_sequences_read_as_a_plain_array() {
    for victim in [VictimPolicy::Greedy, VictimPolicy::CostBenefit] {
        for seed in 0..20 {
            run(small_geometry(), FlashOptions { victim, seed, ..small_options() }, seed, 3000).unwrap();
        }
    }
}

#[test]
fn random_sequences_on_flash_that_fails_read_as_a_plain_array() {
    for seed in 0..20 {
        let geometry = FlashGeometry { blocks_per_plane: 30, ..small_geometry() };
        let options = FlashOptions {
            victim: if seed % 2 == 0 { VictimPolicy::Greedy } else { VictimPolicy::CostBenefit },
            factory_bad_blocks_ppm: 50_000,
            program_failures_ppm: 5_000,
            endurance_erasures: 40,
            seed,
            ..small_options()
        };
        run(geometry, options, seed, 4000).unwrap();
    }
}

/// Shapes at the edges: one plane, one page a block, the smallest buffer, many planes with few blocks, more than one piece of the table.
#[test]
fn random_sequences_on_other_shapes_read_as_a_plain_array() {
    let shapes = [
        (FlashGeometry::for_capacity(40, 1, 1, 1, 8, 0), 2),
        (FlashGeometry::for_capacity(30, 1, 1, 1, 1, 0), 2),
        (FlashGeometry::for_capacity(90, 4, 2, 2, 4, 7), 16),
        (FlashGeometry::for_capacity(1100, 3, 1, 2, 16, 28), 31),
    ];
    for (geometry, write_buffer_pages) in shapes {
        for victim in [VictimPolicy::Greedy, VictimPolicy::CostBenefit] {
            for seed in 0..4 {
                run(geometry, FlashOptions { victim, write_buffer_pages, ..small_options() }, seed, 4000).unwrap();
            }
        }
    }
}

/// No collection may be needed that cannot be done: every page is written, then overwritten in random order, on the least flash there can
/// be.
fn overwrites_for_ever(victim: VictimPolicy, settles: bool) -> Result<(), String> {
    let geometry = FlashGeometry::for_capacity(128, 1, 1, 1, 8, 0);
    let mut rig = Rig::new(geometry, FlashOptions { victim, ..small_options() }).map_err(|error| error.to_string())?;
    let mut draw = Draw::new(7);
    for number in 0..5000 {
        rig.write(if number < 128 { number } else { draw.below(128) }).map_err(|error| format!("write {number}: {error}"))?;
        if settles {
            rig.step(Step::Settle).map_err(|error| error.to_string())?;
        }
    }
    if rig.flash().counts().blocks_erased < 500 {
        return Err(format!("{:?}", rig.flash().counts()));
    }
    rig.compare()
}

#[test]
fn a_full_drive_is_overwritten_for_ever() {
    for victim in [VictimPolicy::Greedy, VictimPolicy::CostBenefit] {
        for settles in [false, true] {
            overwrites_for_ever(victim, settles).unwrap();
        }
    }
}

#[test]
fn a_page_rewritten_while_it_waits_costs_one_program() {
    let mut rig = Rig::new(small_geometry(), small_options()).unwrap();
    for _ in 0..1000 {
        rig.write(3).unwrap();
    }
    assert_eq!(rig.flash().counts().pages_programmed, 0);
    assert_eq!(rig.flash().counts().pages_written, 1000);
    rig.compare().unwrap();
    assert_eq!(rig.flash().counts().pages_read, 0, "reads hit the buffer");
    // It waits through a power failure.
    rig.reopen().unwrap();
    rig.compare().unwrap();
    assert_eq!(rig.flash().buffered_pages(), 1);
    for page in 10..16 {
        rig.write(page).unwrap();
    }
    assert_eq!(rig.flash().counts().pages_programmed, 2, "a stripe over two channels");
    rig.compare().unwrap();
}

#[test]
fn work_is_recorded_by_die() {
    use crate::medium::FlashWorkKind;
    let geometry = FlashGeometry::for_capacity(1000, 4, 1, 1, 16, 28);
    let mut rig = Rig::new(geometry, FlashOptions { write_buffer_pages: 8, ..small_options() }).unwrap();
    rig.write(0).unwrap();
    assert!(rig.flash().work().is_empty(), "it was not asked for");
    rig.flash().record_work(true);
    for page in 1..9 {
        rig.write(page).unwrap();
    }
    let work: Vec<_> = rig.flash().work().drain(..).collect();
    let mut dies: Vec<u32> = work.iter().map(|work| work.die).collect();
    dies.sort_unstable();
    assert_eq!(dies, [0, 1, 2, 3], "a stripe is a page on each channel");
    assert!(work.iter().all(|work| work.kind == FlashWorkKind::Program && !work.is_waited_for));
    rig.step(Step::Read(0)).unwrap();
    let work = rig.flash().work();
    assert_eq!(work.len(), 1);
    assert!(work[0].kind == FlashWorkKind::Read && work[0].is_waited_for);
}

/// R24: what one call does is bounded, and while the drive is settled beside its writes none of them waits for collection.
#[test]
fn collection_works_in_small_steps() {
    let geometry = FlashGeometry::for_capacity(2000, 4, 1, 1, 32, 28);
    let mut rig = Rig::new(geometry, FlashOptions { write_buffer_pages: 16, ..small_options() }).unwrap();
    rig.flash().record_work(true);
    let mut draw = Draw::new(8);
    let mut most = 0;
    for _ in 0..30_000 {
        for step in [Step::Write(draw.below(2000)), Step::Settle] {
            rig.step(step).unwrap();
            let work: Vec<_> = rig.flash().work().drain(..).collect();
            most = most.max(work.len());
            assert!(work.iter().all(|work| !work.is_waited_for), "{step:?} waits for {work:?}");
        }
    }
    assert!(rig.flash().counts().pages_moved > 20_000);
    assert!(most <= 2 * 8 + 1, "{most} operations in one call: a stripe, moves, an erasure");
    rig.compare().unwrap();
}

#[test]
fn bad_calls_are_errors() {
    use crate::flash::Flash;
    use crate::medium::Pages;
    use std::sync::Arc;
    let mut rig = Rig::new(small_geometry(), small_options()).unwrap();
    let mut page = [0; 4096];
    assert!(rig.flash().read(120, &mut page).is_err());
    assert!(rig.flash().write(u64::MAX, &page, 1).is_err());
    assert!(rig.flash().write(0, &page, u64::MAX).unwrap_err().to_string().contains("stamp"));
    assert!(rig.flash().discard(120, 1).is_err());
    assert!(rig.flash().stamp(120).is_err());
    let other = FlashGeometry { pages_per_block: 16, ..small_geometry() };
    let error = Flash::open(Arc::clone(&rig.medium), super::rig::DRAM_OFFSET, other, small_options()).unwrap_err();
    assert!(error.to_string().contains("pages a block 8, not 16"), "{error}");
    let error = Flash::open(Arc::clone(&rig.medium), super::rig::DRAM_OFFSET + 4096, small_geometry(), small_options()).unwrap_err();
    assert!(error.to_string().contains("never formatted"), "{error}");
}

/// Damaged tables are refused or give errors; they never panic. (What is still readable need not be right: they carry no checksum.)
#[test]
fn damaged_tables_are_errors() {
    let geometry = small_geometry();
    let mut refused = 0;
    for seed in 0..300 {
        let mut rig = run(geometry, small_options(), seed, 300).unwrap();
        let mut draw = Draw::new(seed);
        let tables_bytes = geometry.dram_bytes(&small_options()) - 6 * 4096;
        for _ in 0..3 {
            let offset = super::rig::DRAM_OFFSET + draw.below(tables_bytes / 4096) * 4096 + draw.below(24) * 8;
            let word = match draw.below(3) {
                0 => draw.below(u64::MAX),
                1 => 1 << 62 | draw.below(geometry.physical_pages()),
                _ => draw.below(1 << 51),
            };
            crate::medium::Medium::store(&*rig.medium, offset, &word.to_le_bytes()).unwrap();
        }
        if rig.reopen().is_err() {
            refused += 1;
            continue;
        }
        let mut page = [0; 4096];
        for logical in 0..geometry.logical_pages {
            use crate::medium::Pages;
            let _ = rig.flash().read(logical, &mut page);
        }
    }
    assert!(refused > 100, "{refused}");
}
