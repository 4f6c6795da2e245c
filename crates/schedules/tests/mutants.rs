//! Deliberate bugs of the threading rules: exploring schedules must catch every one, and must find nothing without a bug. The table of
//! `docs/TESTING.md` lists what these tests assert.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::{Mutex, PoisonError};

use support::{Play, explored};
use tandemfs_fs::mutant::{self, Mutant};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// More than any mutant needs, by a factor of several.
const SCHEDULES_MAX: u64 = 3000;

fn is_caught(bug: Mutant, scene: fn() -> Play) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    mutant::select(bug);
    let result = explored(scene, SCHEDULES_MAX);
    mutant::select(Mutant::None);
    match result {
        Err(what) => println!("{bug:?}: {}", what.lines().next().unwrap_or_default()),
        Ok(explored) => panic!("{bug:?} escaped: {explored:?}"),
    }
}

macro_rules! mutants {
    ($($name:ident: $bug:ident by $scene:ident;)*) => {$(
        #[test]
        fn $name() {
            is_caught(Mutant::$bug, support::$scene);
        }
    )*};
}

mutants! {
    r1_checkpoint_passes_commits: CheckpointPassesCommits by rings_cut;
    r2_ring_released_early: RingReleasedEarly by commits_cut;
    r2_txid_before_ring: TxidBeforeRing by commits_cut;
    r4_names_not_revalidated: NamesNotRevalidated by names;
    r5_inode_before_lock: InodeBeforeLock by neighbouring_blocks;
    r5_evicted_in_use: EvictedInUse by caches_that_evict;
    r9_write_range_released_early: WriteRangeReleasedEarly by one_block;
    r9_read_range_released_early: ReadRangeReleasedEarly by one_block;
    r9_batch_range_not_locked: BatchRangeNotLocked by batches;
    r12_late_orphan_forgotten: LateOrphanForgotten by last_holder;
    nw3_inode_before_refusal: InodeBeforeRefusal by commits_tried;
    nw3_refused_keeps_space: RefusedKeepsSpace by commits_tried;
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for scene in [
        support::rings_cut,
        support::names,
        support::neighbouring_blocks,
        support::caches_that_evict,
        support::one_block,
        support::batches,
        support::orphans,
        support::last_holder,
        support::commits_cut,
        support::commits_tried,
    ] {
        if let Err(what) = explored(scene, 100) {
            panic!("{what}");
        }
    }
}
