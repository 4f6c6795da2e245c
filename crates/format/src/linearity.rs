//! Computes the checksum of a sector after some of its lines changed, from the old checksum and those lines alone (RULES R18).
//!
//! [LI1] A CRC is affine in its message: for messages of one length and any seed, `crc(new) = crc(old) XOR raw(old XOR new)`, where `raw`
//!       starts at zero and inverts nothing. Leading zeros do not change a raw CRC; trailing zeros multiply it by a power of x.
//! [LI2] So the difference of one line contributes the raw CRC of its 64 B, *shifted* by the bytes behind it in the sector: one of 64
//!       distances. The distance has two digits to the base 8. A table for each digit, indexed by four bits of the CRC at a time, gives
//!       sixteen look-ups in 8 KiB.
//! [LI3] Damage stays detectable: the difference is between the bytes that were read and the bytes that are stored. If the old bytes were
//!       damaged, in the changed lines or elsewhere, the new checksum does not match the sector either.

use crate::checksum::crc32c_extend;
use crate::{LINE_BYTES, Line, SECTOR_BYTES};

/// Lines of a sector.
pub const SECTOR_LINES: usize = SECTOR_BYTES / LINE_BYTES;

/// The polynomial of CRC-32C, its bits reversed as the CRC's are.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Digits of a distance count to this.
const BASE: usize = 8;
const NIBBLES: usize = 8;

/// Multiplication by a power of x: for each four bits of the CRC what they become.
type Shift = [[u32; 16]; NIBBLES];

/// `[0]`: shifts by 0 to 7 lines; `[1]`: by 0 to 56 lines, in steps of 8.
static SHIFTS: [[Shift; BASE]; 2] = shifts();

/// `crc` of a message, when 8 more bits of zeros follow it.
const fn zero_byte(mut crc: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        crc = (crc >> 1) ^ if crc & 1 != 0 { POLYNOMIAL } else { 0 };
        bit += 1;
    }
    crc
}

const fn apply(shift: &Shift, crc: u32) -> u32 {
    let mut result = 0;
    let mut nibble = 0;
    while nibble < NIBBLES {
        result ^= shift[nibble][(crc >> (4 * nibble)) as usize & 15];
        nibble += 1;
    }
    result
}

const fn shifts() -> [[Shift; BASE]; 2] {
    let mut line = [[0; 16]; NIBBLES];
    let mut nibble = 0;
    while nibble < NIBBLES {
        let mut value = 0;
        while value < 16 {
            let mut crc = (value as u32) << (4 * nibble);
            let mut byte = 0;
            while byte < LINE_BYTES {
                crc = zero_byte(crc);
                byte += 1;
            }
            line[nibble][value] = crc;
            value += 1;
        }
        nibble += 1;
    }
    let mut shifts = [[[[0; 16]; NIBBLES]; BASE]; 2];
    let mut level = 0;
    let mut step = line;
    while level < 2 {
        let mut digit = 0;
        while digit < BASE {
            let mut nibble = 0;
            while nibble < NIBBLES {
                let mut value = 0;
                while value < 16 {
                    let crc = (value as u32) << (4 * nibble);
                    shifts[level][digit][nibble][value] =
                        if digit == 0 { crc } else { apply(&step, apply(&shifts[level][digit - 1], crc)) };
                    value += 1;
                }
                nibble += 1;
            }
            digit += 1;
        }
        // The next digit's step is one more than this one's last.
        let last = shifts[level][BASE - 1];
        let mut nibble = 0;
        while nibble < NIBBLES {
            let mut value = 0;
            while value < 16 {
                step[nibble][value] = apply(&last, step[nibble][value]);
                value += 1;
            }
            nibble += 1;
        }
        level += 1;
    }
    shifts
}

/// XOR difference of a sector's checksum, for any seed, when line `line` changes from `old` to `new`. The differences of several
/// lines are XORed together ([LI1]).
///
/// # Panics
/// If a sector has no such line.
pub fn checksum_change(line: usize, old: &Line, new: &Line) -> u32 {
    let mut difference = [0; LINE_BYTES];
    for (byte, (old, new)) in difference.iter_mut().zip(old.iter().zip(new)) {
        *byte = old ^ new;
    }
    let raw = !crc32c_extend(!0, &difference);
    let behind = SECTOR_LINES - 1 - line;
    apply(&SHIFTS[1][behind / BASE], apply(&SHIFTS[0][behind % BASE], raw))
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;
    use crate::PairSeed;

    fn bytes(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    fn line(sector: &[u8], number: usize) -> &Line {
        sector[number * LINE_BYTES..][..LINE_BYTES].try_into().expect("a line")
    }

    #[test]
    fn every_line_at_every_distance_and_seed() {
        for (round, pair) in [0, 7, u128::MAX].into_iter().enumerate() {
            let seed = PairSeed::new(uuid::Uuid::from_u128(pair));
            for number in 0..SECTOR_LINES {
                let old = bytes((round * 64 + number) as u64 + 1, SECTOR_BYTES);
                let mut new = old.clone();
                new[number * LINE_BYTES..][..LINE_BYTES].copy_from_slice(&bytes(number as u64 + 999, LINE_BYTES));
                let renewed = seed.data(&old) ^ checksum_change(number, line(&old, number), line(&new, number));
                assert_eq!(renewed, seed.data(&new), "line {number}");
            }
        }
    }

    #[test]
    fn any_lines_together_and_single_bits() {
        let seed = PairSeed::new(uuid::Uuid::from_u128(3));
        let mut sector = bytes(1, SECTOR_BYTES);
        let mut crc = seed.data(&sector);
        for round in 0..2000_u64 {
            let picks = bytes(round + 1, 9);
            let mut new = sector.clone();
            for pick in &picks[..1 + (picks[8] % 8) as usize] {
                let at = (*pick as usize * 16 + round as usize) % SECTOR_BYTES;
                new[at] ^= if round % 2 == 0 { 1 << (pick % 8) } else { *pick };
            }
            for number in 0..SECTOR_LINES {
                if line(&sector, number) != line(&new, number) {
                    crc ^= checksum_change(number, line(&sector, number), line(&new, number));
                }
            }
            assert_eq!(crc, seed.data(&new), "round {round}");
            sector = new;
        }
    }

    #[test]
    fn damage_stays_damage() {
        let seed = PairSeed::new(uuid::Uuid::from_u128(3));
        let whole = bytes(1, SECTOR_BYTES);
        // In the line that changes, and in another.
        for at in [5 * LINE_BYTES + 3, 60 * LINE_BYTES] {
            let mut read = whole.clone();
            read[at] ^= 4;
            let mut stored = read.clone();
            stored[5 * LINE_BYTES] ^= 1;
            let renewed = seed.data(&whole) ^ checksum_change(5, line(&read, 5), line(&stored, 5));
            assert_ne!(renewed, seed.data(&stored), "damage at {at}");
        }
        // New bytes over all of the damage: the checksum still does not match.
        let mut read = whole.clone();
        read[5 * LINE_BYTES] ^= 4;
        let renewed = seed.data(&whole) ^ checksum_change(5, line(&read, 5), line(&whole, 5));
        assert_ne!(renewed, seed.data(&whole));
    }

    /// `cargo test --release -p tandemfs-format -- --ignored --nocapture linearity`
    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        const ROUNDS: usize = 200_000;
        let (old, new) = (bytes(1, SECTOR_BYTES), bytes(2, SECTOR_BYTES));
        let seed = PairSeed::new(uuid::Uuid::from_u128(3));
        for _ in 0..3 {
            let start = Instant::now();
            let mut crc = 0;
            for round in 0..ROUNDS {
                let number = (round * 37) % SECTOR_LINES;
                crc ^= checksum_change(number, black_box(line(&old, number)), black_box(line(&new, number)));
            }
            let line_ns = start.elapsed().as_nanos() as f64 / ROUNDS as f64;
            let start = Instant::now();
            for _ in 0..ROUNDS {
                crc ^= seed.data(black_box(&old));
            }
            let sector_ns = start.elapsed().as_nanos() as f64 / ROUNDS as f64;
            println!("a line by linearity {line_ns:.1} ns, a sector anew {sector_ns:.1} ns ({crc:#x})");
        }
    }
}
