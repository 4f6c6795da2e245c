//! The 512 pages of 4 KiB of a unit of 2 MiB, as words of which a bit says that a page is taken. Pages belong to blocks: as many pages in a
//! row as a power of two says, at multiples of it. A block is free if all its pages are; else its free pages are its *rest*.

/// Pages of a unit.
pub(super) const UNIT_PAGES: u64 = 512;
/// Words of a unit.
pub(super) const UNIT_WORDS: usize = (UNIT_PAGES / 64) as usize;

pub(super) type UnitPages = [u64; UNIT_WORDS];

/// What is free in a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FreeRuns {
    /// Pages of the longest run of free blocks.
    pub(super) row: u16,
    /// Pages of the longest run inside of the rest of a block.
    pub(super) rest: u16,
}

/// The bit of each block's first page, for blocks up to a word.
fn firsts(each: u32) -> u64 {
    if each == 64 { 1 } else { u64::MAX / ((1 << each) - 1) }
}

/// The pages of free blocks.
fn free_blocks(pages: &UnitPages, each: u32) -> UnitPages {
    if each == 1 {
        return pages.map(|word| !word);
    }
    if each > 64 {
        let mut free = [0; UNIT_WORDS];
        let words = each as usize / 64;
        for (block, taken) in free.chunks_exact_mut(words).zip(pages.chunks_exact(words)) {
            block.fill(if taken.iter().all(|word| *word == 0) { u64::MAX } else { 0 });
        }
        return free;
    }
    pages.map(|word| {
        let (mut starts, mut length) = (!word, 1);
        while length < each {
            starts &= starts >> length;
            length *= 2;
        }
        // Runs of ones of the length of a block, which do not overlap.
        (starts & firsts(each)).wrapping_mul(if each == 64 { u64::MAX } else { (1 << each) - 1 })
    })
}

/// The free pages of blocks of which others are taken.
fn rests(pages: &UnitPages, free: &UnitPages) -> UnitPages {
    std::array::from_fn(|word| !pages[word] & !free[word])
}

/// The length of the longest run of ones.
fn longest(ones: &[u64]) -> u16 {
    let (mut best, mut run) = (0, 0);
    for word in ones {
        if *word == u64::MAX {
            run += 64;
            continue;
        }
        best = best.max(run + word.trailing_ones());
        let (mut inner, mut length) = (*word, 0);
        while inner != 0 {
            inner &= inner << 1;
            length += 1;
        }
        best = best.max(length);
        run = word.leading_ones();
    }
    best.max(run) as u16
}

/// The first run of at least `count` ones.
fn first_run(ones: &[u64], count: u32) -> Option<u32> {
    let (mut start, mut run) = (0, 0);
    for (index, word) in ones.iter().enumerate() {
        let mut at = 0;
        while at < 64 {
            let rest = word >> at;
            let here = rest.trailing_ones().min(64 - at);
            if here > 0 {
                if run == 0 {
                    start = index as u32 * 64 + at;
                }
                run += here;
                if run >= count {
                    return Some(start);
                }
                at += here;
            }
            if at < 64 {
                run = 0;
                at += (word >> at).trailing_zeros().min(64 - at);
            }
        }
    }
    None
}

/// Bits that begin a run of `count` ones inside of a block, for blocks up to a word.
fn starts_in_blocks(ones: u64, each: u32, count: u32) -> u64 {
    let lasts = firsts(each) << (each - 1);
    (1..count).fold(ones, |starts, _| starts & (starts >> 1) & !lasts)
}

/// What is free in a unit with blocks of `each` pages.
pub(super) fn free_runs(pages: &UnitPages, each: u32) -> FreeRuns {
    let free = free_blocks(pages, each);
    let row = longest(&free);
    if each == 1 {
        return FreeRuns { row, rest: 0 };
    }
    let rests = rests(pages, &free);
    let rest = if each > 64 {
        rests.chunks_exact(each as usize / 64).map(longest).max().unwrap_or(0)
    } else {
        let lasts = firsts(each) << (each - 1);
        let (mut starts, mut length) = (rests, 0);
        while starts.iter().any(|word| *word != 0) {
            starts = starts.map(|word| word & (word >> 1) & !lasts);
            length += 1;
        }
        length
    };
    FreeRuns { row, rest }
}

/// Free blocks.
pub(super) fn free_block_count(pages: &UnitPages, each: u32) -> u64 {
    free_blocks(pages, each).iter().map(|word| u64::from(word.count_ones())).sum::<u64>() / u64::from(each)
}

/// Blocks of which every page is taken.
pub(super) fn full_block_count(pages: &UnitPages, each: u32) -> u64 {
    free_block_count(&pages.map(|word| !word), each)
}

/// The first free blocks in a row for `count` pages.
pub(super) fn first_row(pages: &UnitPages, each: u32, count: u32) -> Option<u32> {
    first_run(&free_blocks(pages, each), count.next_multiple_of(each))
}

/// The first run of `count` pages inside of a block's rest.
pub(super) fn first_rest(pages: &UnitPages, each: u32, count: u32) -> Option<u32> {
    let rests = rests(pages, &free_blocks(pages, each));
    if each > 64 {
        let mut blocks = (0..).step_by(each as usize).zip(rests.chunks_exact(each as usize / 64));
        return blocks.find_map(|(start, block)| Some(start + first_run(block, count)?));
    }
    let mut words = (0..).step_by(64).zip(rests).map(|(start, word)| (start, starts_in_blocks(word, each, count)));
    words.find(|(_, starts)| *starts != 0).map(|(start, starts)| start + starts.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs of `true`: where they start, and how long they are.
    fn runs(free: &[bool]) -> Vec<(usize, usize)> {
        let mut found: Vec<(usize, usize)> = Vec::new();
        for (at, _) in free.iter().enumerate().filter(|(_, is_free)| **is_free) {
            match found.last_mut().filter(|(start, count)| start + *count == at) {
                Some((_, count)) => *count += 1,
                None => found.push((at, 1)),
            }
        }
        found
    }

    fn is_taken(pages: &UnitPages, page: usize) -> bool {
        pages[page / 64] >> (page % 64) & 1 == 1
    }

    fn sets() -> impl Strategy<Value = UnitPages> {
        let taken = prop::collection::vec((0_usize..512, 1_usize..200), 0..40);
        taken.prop_map(|runs| {
            let mut pages = [0; UNIT_WORDS];
            runs.into_iter()
                .flat_map(|(start, count)| start..(start + count / 3 + 1).min(512))
                .for_each(|page| pages[page / 64] |= 1 << (page % 64));
            pages
        })
    }

    proptest! {
        #[test]
        fn runs_are_those_of_a_list_of_pages(pages in sets(), shift in 0_u32..10, count in 1_u32..512) {
            let each = 1_u32 << shift;
            let blocks: Vec<usize> = (0..512).step_by(each as usize).collect();
            let is_free = |block: usize| (block..block + each as usize).all(|page| !is_taken(&pages, page));
            let free: Vec<bool> = (0..512).map(|page| is_free(page / each as usize * each as usize)).collect();
            let rows = runs(&free);
            let rests: Vec<(usize, usize)> = blocks.iter().filter(|block| !is_free(**block)).flat_map(|block| {
                let of_block: Vec<bool> = (*block..*block + each as usize).map(|page| !is_taken(&pages, page)).collect();
                runs(&of_block).into_iter().map(|(start, count)| (block + start, count)).collect::<Vec<_>>()
            }).collect();
            let most = |runs: &[(usize, usize)]| runs.iter().map(|(_, count)| *count as u16).max().unwrap_or(0);
            prop_assert_eq!(free_runs(&pages, each), FreeRuns { row: most(&rows), rest: most(&rests) });
            let first = |runs: &[(usize, usize)], count: u32| runs.iter().find(|run| run.1 >= count as usize).map(|run| run.0 as u32);
            prop_assert_eq!(first_row(&pages, each, count), first(&rows, count.next_multiple_of(each)));
            let short = count % each;
            if short > 0 {
                prop_assert_eq!(first_rest(&pages, each, short), first(&rests, short));
            }
        }
    }
}
