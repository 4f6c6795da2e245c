//! The model against one that is written for being understood, not for speed; its deliberate bugs.

mod reference;

use proptest::prelude::*;
use tandemfs_device::{Mechanism, StoreWay, Structure};

use super::buffer::{CombiningBuffer, MEDIA_LINE_BYTES};
use super::cpu_cache::CpuCache;
use super::memory::PersistentMemory;
use super::model::{MediaModel, MediaOptions};
use crate::mutant::{self, Mutant};
use crate::profiles::profile;
use reference::Reference;

/// Four sets of four ways in front of two DIMMs whose buffers have room for four media lines.
const SMALL: MediaModel = MediaModel {
    cache_bytes: 4 * 4 * 64,
    cache_ways: 4,
    reservable_ways: 3,
    dimm_count: 2,
    buffer_bytes: 1024,
    read_bytes_per_second: 1,
    write_bytes_per_second: 1,
    hit_ns: 0,
    flush_ns: 0,
};

/// Places of accesses: both DIMMs, and several times the cache.
const BYTES: u64 = 3 * 4096;

#[derive(Debug, Clone)]
enum Operation {
    Load(Option<Structure>, u64, u64),
    Store(Option<Structure>, StoreWay, u64, u64),
    Flush(u64, u64),
    Reserve(u32),
    WriteBackAll,
}

fn structure() -> impl Strategy<Value = Option<Structure>> {
    prop::sample::select(vec![None, Some(Structure::Journal), Some(Structure::Data), Some(Structure::Superblock)])
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    // A few hot lines, any bytes, and whole media lines.
    prop_oneof![
        (0..8_u64).prop_map(|line| (line * 64, 64)),
        (0..BYTES, 0..600_u64),
        (0..BYTES / MEDIA_LINE_BYTES).prop_map(|line| (line * MEDIA_LINE_BYTES, MEDIA_LINE_BYTES)),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let way = prop::sample::select(vec![StoreWay::Cached, StoreWay::Cached, StoreWay::NonTemporal, StoreWay::Pinned]);
    prop_oneof![
        4 => (structure(), range()).prop_map(|(structure, (offset, length))| Operation::Load(structure, offset, length)),
        8 => (structure(), way, range()).prop_map(|(structure, way, (offset, length))| Operation::Store(structure, way, offset, length)),
        4 => range().prop_map(|(offset, length)| Operation::Flush(offset, length)),
        1 => (0..=4_u32).prop_map(Operation::Reserve),
        1 => Just(Operation::WriteBackAll),
    ]
}

/// Runs operations on both models. Returns the first difference.
fn difference(operations: &[Operation]) -> Option<String> {
    let (mut model, mut reference) = (PersistentMemory::new(&SMALL), Reference::new(&SMALL));
    for (number, operation) in operations.iter().enumerate() {
        let (found, expected) = match *operation {
            Operation::Load(structure, offset, length) => {
                (model.load(structure, offset, length), reference.load(structure, offset, length))
            }
            Operation::Store(structure, way, offset, length) => {
                (model.store(structure, way, offset, length), reference.store(structure, way, offset, length))
            }
            Operation::Flush(offset, length) => (model.flush(offset, length), reference.flush(offset, length)),
            Operation::Reserve(ways) => {
                let (found, expected) = (model.reserve_ways(ways), reference.reserve_ways(ways));
                if found != expected {
                    return Some(format!("{number}: {operation:?} is {found:?} in place of {expected:?}"));
                }
                Default::default()
            }
            Operation::WriteBackAll => {
                model.write_back_all();
                reference.write_back_all();
                Default::default()
            }
        };
        if found != expected {
            return Some(format!("{number}: {operation:?} does {found:?} in place of {expected:?}"));
        }
        if model.counts() != &reference.counts {
            return Some(format!("{number}: after {operation:?} {:?} in place of {:?}", model.counts(), reference.counts));
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_model_equals_the_reference(operations in prop::collection::vec(operation(), 1..200)) {
        prop_assert_eq!(difference(&operations), None);
    }

    /// [PMM5]: what was stored and not yet overwritten in the cache comes to the media whole, and nothing else does.
    #[test]
    fn each_line_that_became_dirty_is_written_once(lines in prop::collection::vec(0..BYTES / 64, 1..300)) {
        let mut cache = CpuCache::new(SMALL.sets(), SMALL.cache_ways);
        let (mut dirty, mut written) = (std::collections::BTreeSet::new(), 0);
        for (number, line) in lines.iter().enumerate() {
            let evicted = cache.store(*line, None, false).evicted;
            prop_assert!(evicted.is_none_or(|leaving| dirty.remove(&leaving.line)), "a clean line is written");
            dirty.insert(*line);
            written += usize::from(evicted.is_some());
            if number % 7 == 0 {
                prop_assert!(cache.flush(*line).is_some() && cache.flush(*line).is_none(), "a flushed line is clean");
                dirty.remove(line);
            }
        }
        let mut left = 0;
        cache.write_back_all(|leaving| left += usize::from(dirty.remove(&leaving.line)));
        prop_assert!(dirty.is_empty() && written + left <= lines.len());
    }
}

/// The operations of a fixed seed, so that a bug is found by the same ones each time.
fn fixed(seed: u64) -> Vec<Operation> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    prop::collection::vec(operation(), 200).new_tree(&mut runner).expect("operations").current()
}

#[test]
fn deliberate_bugs_are_caught() {
    let found = |bug: Mutant| {
        mutant::select(bug);
        let found = (1..=20).find_map(|seed| difference(&fixed(seed)));
        mutant::select(Mutant::None);
        found
    };
    assert_eq!(found(Mutant::None), None);
    for bug in [Mutant::NewestLineEvicted, Mutant::ReservedWaysShared, Mutant::FlushedLineStaysDirty, Mutant::LinesNotCombined] {
        println!("{bug:?}: {}", found(bug).unwrap_or_else(|| panic!("{bug:?} was not caught")));
    }
}

#[test]
fn the_least_recently_used_line_of_a_set_leaves() {
    let mut cache = CpuCache::new(2, 2);
    let owner = Some(Structure::Inode);
    assert!(!cache.store(0, owner, false).is_hit && !cache.store(2, None, false).is_hit && cache.load(0).is_hit);
    let leaving = cache.load(4).evicted.expect("line 2");
    assert_eq!((leaving.line, leaving.owner, leaving.is_pinned), (2, None, false));
    let leaving = cache.store(6, None, false).evicted.expect("line 0");
    assert_eq!((leaving.line, leaving.owner), (0, owner));
    assert_eq!(cache.load(8).evicted, None, "line 4 was loaded alone");
    assert_eq!(cache.store(1, None, false).evicted, None, "another set");
}

#[test]
fn pinned_lines_stay_until_others_are_pinned() {
    let mut cache = CpuCache::new(1, 4);
    cache.reserve(2, |_| panic!("nothing was there"));
    assert!(cache.store(1, None, true).evicted.is_none() && cache.store(2, None, false).evicted.is_none());
    assert!(cache.store(2, None, true).is_hit, "moved to the reserved ways");
    (10..30).for_each(|line| assert!(cache.store(line, None, false).evicted.is_none_or(|leaving| leaving.line >= 10), "[PMM3]"));
    assert!(cache.load(1).is_hit && cache.load(2).is_hit);
    let leaving = cache.store(3, None, true).evicted.expect("line 1");
    assert!(leaving.line == 1 && leaving.is_pinned);
    cache.reserve(0, |_| panic!("nothing leaves for fewer ways"));
    assert!(cache.load(2).is_hit && cache.load(3).is_hit);
    assert_eq!((10..20).find_map(|line| cache.store(line, None, false).evicted).map(|leaving| leaving.is_pinned), Some(false));
}

#[test]
fn a_media_line_is_divided_among_what_it_was_made_of() {
    let mut buffer = CombiningBuffer::new(1);
    let origin = |structure| (Some(structure), Mechanism::Flushed);
    for (line, structure) in [(0, Structure::Inode), (1, Structure::Dentry), (3, Structure::Inode)] {
        assert_eq!(buffer.write(line, origin(structure)), None);
    }
    assert!(buffer.holds(3) && !buffer.holds(2) && !buffer.holds(4));
    let write = buffer.write(4, origin(Structure::Data)).expect("there was room for one");
    assert!(write.is_partial() && write.media_line == 0);
    let shares: Vec<_> = write.shares().map(|((structure, _), bytes)| (structure, bytes)).collect();
    assert_eq!(shares, [(Some(Structure::Inode), 86), (Some(Structure::Dentry), 85), (Some(Structure::Inode), 85)]);
    assert_eq!(buffer.drain().map(|write| write.media_line).collect::<Vec<_>>(), [1]);
}

#[test]
fn choices_that_make_no_memory_are_refused() {
    let model = profile("optane").and_then(|profile| profile.media).expect("a model");
    for (cache_bytes, dimm_count, said) in [
        (Some(1 << 20), None, "not a multiple of 768 B"),
        (Some(64), None, "outside 768 B to 4 GiB"),
        (Some(8 << 30), None, "outside 768 B to 4 GiB"),
        (None, Some(0), "0 DIMMs"),
    ] {
        let refused = model.chosen(&MediaOptions { cache_bytes, dimm_count, persistent_caches: false }).expect_err("refused");
        assert!(refused.contains(said), "{refused}");
    }
}
