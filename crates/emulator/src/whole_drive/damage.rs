//! Drives whose DRAM or spare areas are damaged: opening refuses them with one sentence, or every access returns bytes or an error ([WD6]).
//! Nothing panics, nothing hangs.
//!
//! [WD6]: super

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::operation::{Draw, Operation};
use super::rig::{Rig, SHAPES, Shape};
use super::runs::number_of;

/// Operations on a drive that opened.
const OPERATIONS: u64 = 30;

/// A drive in the middle of its life.
fn used(shape: Shape, seed: u64) -> Rig {
    let mut rig = Rig::new(shape);
    let mut draw = Draw(seed);
    for _ in 0..120 {
        let operation = Operation::draw(&mut draw, &rig);
        rig.step(&operation).unwrap_or_else(|what| panic!("seed {seed}, {}: {what}", operation.told()));
    }
    rig
}

/// Damages a copy, opens it and works on it. What it answers may be anything; that it answers is what is asked for. Whether it opened.
fn survives(rig: &Rig, draw: &mut Draw) -> bool {
    let medium = rig.medium.copy();
    let tables = rig.tables();
    for _ in 0..1 + draw.below(3) {
        let (start, end) = tables[draw.below(tables.len() as u64) as usize];
        let at = start + draw.below(end - start);
        match draw.below(4) {
            0 => medium.damage(at, |byte| byte ^ 1 << (at % 8)),
            1 => medium.damage(at, |_| 0xff),
            2 => {
                // A word that is out of every range, or just so.
                let value = [u64::MAX, 1 << 63, u64::from(u32::MAX), draw.below(64), draw.next()][draw.below(5) as usize];
                for (at, byte) in (at & !7..).zip(value.to_le_bytes()) {
                    medium.damage(at, |_| byte);
                }
            }
            _ => {
                for at in at..(at + 64).min(end) {
                    let byte = draw.next() as u8;
                    medium.damage(at, |_| byte);
                }
            }
        }
    }
    if draw.below(4) == 0 {
        medium.damage_spare(draw.next());
    }
    match rig.over(medium) {
        Err(reason) => {
            assert!(!reason.contains('\n') && !reason.is_empty(), "{reason:?} is no sentence");
            false
        }
        Ok(mut damaged) => {
            for _ in 0..OPERATIONS {
                let operation = Operation::draw(draw, &damaged);
                damaged.dare(&operation);
            }
            true
        }
    }
}

#[test]
fn damaged_tables_are_refused_or_read_as_something() {
    let (mut opened, mut refused) = (0, 0);
    for shape in SHAPES {
        for seed in 1..=2 {
            let rig = used(shape, seed);
            for number in 0..number_of("TANDEMFS_ROUNDS", 150) {
                let mut draw = Draw(seed << 32 | number);
                let result = catch_unwind(AssertUnwindSafe(|| survives(&rig, &mut draw)));
                match result {
                    Ok(true) => opened += 1,
                    Ok(false) => refused += 1,
                    Err(_) => panic!("{}, seed {seed}, damage {number}", shape.name),
                }
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 200 && refused > 200, "{opened} opened, {refused} refused");
}
