//! Finds the lines in which a page differs from an older copy of it (ByteFS §4.6: the modified ratio).
//!
//! The AVX2 routine is used if the processor has AVX2. All other processors use the portable one, and tests compare the two. Both have the
//! same source lines; only the attribute for AVX2 makes the compiler use registers of 32 B.

use tandemfs_format::{LINE_BYTES, PAGE_BYTES};

/// Bit mask of the 64 lines of a page in which `new` differs from `old`.
pub fn modified_lines(old: &[u8; PAGE_BYTES], new: &[u8; PAGE_BYTES]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature.
        return unsafe { modified_lines_avx2(old, new) };
    }
    modified_lines_portable(old, new)
}

/// The same, with the registers of 32 B that AVX2 has.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn modified_lines_avx2(old: &[u8; PAGE_BYTES], new: &[u8; PAGE_BYTES]) -> u64 {
    modified_lines_portable(old, new)
}

/// The XOR of a line's words is zero where nothing changed: no branch depends on the bytes.
#[inline(always)]
fn modified_lines_portable(old: &[u8; PAGE_BYTES], new: &[u8; PAGE_BYTES]) -> u64 {
    let (old, new) = (old.as_chunks::<LINE_BYTES>().0, new.as_chunks::<LINE_BYTES>().0);
    let mut mask = 0;
    for (index, (old, new)) in old.iter().zip(new).enumerate() {
        let mut difference = [0_u64; 4];
        for (word, (old, new)) in old.as_chunks::<8>().0.iter().zip(new.as_chunks::<8>().0).enumerate() {
            difference[word % 4] |= u64::from_ne_bytes(*old) ^ u64::from_ne_bytes(*new);
        }
        mask |= u64::from(difference.iter().fold(0, |all, word| all | word) != 0) << index;
    }
    mask
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    type Routine = fn(&[u8; PAGE_BYTES], &[u8; PAGE_BYTES]) -> u64;

    fn page(seed: usize) -> Box<[u8; PAGE_BYTES]> {
        let mut page = Box::new([0; PAGE_BYTES]);
        page.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 7 + seed * 13 + index / 64) as u8);
        page
    }

    fn by_memcmp(old: &[u8; PAGE_BYTES], new: &[u8; PAGE_BYTES]) -> u64 {
        let lines = old.as_chunks::<LINE_BYTES>().0.iter().zip(new.as_chunks::<LINE_BYTES>().0);
        (0..).zip(lines).fold(0, |mask, (index, (old, new))| mask | u64::from(old != new) << index)
    }

    #[test]
    fn every_byte_is_looked_at() {
        let old = page(1);
        for routine in [modified_lines as Routine, modified_lines_portable] {
            assert_eq!(routine(&old, &old), 0);
            let mut new = page(1);
            for at in 0..PAGE_BYTES {
                for bit in [1, 0x80] {
                    new[at] ^= bit;
                    assert_eq!(routine(&old, &new), 1 << (at / LINE_BYTES), "byte {at}");
                    new[at] ^= bit;
                }
            }
            assert_eq!(routine(&old, &old.map(|byte| !byte)), u64::MAX);
        }
    }

    #[test]
    fn any_lines_together() {
        let old = page(2);
        let mut state = 1_u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut new = page(2);
            for number in 0..1 + (state >> 60) as usize {
                new[(state >> (number * 3)) as usize % PAGE_BYTES] ^= (state >> 40) as u8;
            }
            let expected = by_memcmp(&old, &new);
            assert_eq!(modified_lines(&old, &new), expected);
            assert_eq!(modified_lines_portable(&old, &new), expected);
        }
    }

    /// `cargo test --release -p tandemfs-device -- --ignored --nocapture compare`: GB of pages a second, beside the paper's 14 (§4.6).
    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        // 8192 pairs of pages: the copies of a mount with default options. They exceed the processor's caches.
        for (name, pages) in [("in the first cache", 2), ("64 MiB of pages", 8192)] {
            let (old, new): (Vec<_>, Vec<_>) = (0..pages).map(|index| (page(index), page(index))).unzip();
            for (routine, kind) in [(modified_lines as Routine, "best"), (modified_lines_portable, "portable"), (by_memcmp, "memcmp")] {
                let rounds = 400_000 / pages;
                let start = Instant::now();
                let mut mask = 0;
                for _ in 0..rounds {
                    mask |= old.iter().zip(&new).fold(0, |mask, (old, new)| mask | routine(black_box(old), black_box(new)));
                }
                let seconds = start.elapsed().as_secs_f64() / (rounds * pages) as f64;
                println!("{name}, {kind}: {:.1} ns a page, {:.1} GB/s ({mask})", seconds * 1e9, PAGE_BYTES as f64 / seconds / 1e9);
            }
        }
    }
}
