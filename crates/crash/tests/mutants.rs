//! Deliberate bugs: the harness must catch every one (STYLE 19). The table of `docs/TESTING.md` is what these tests assert.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tandemfs_crash::{
    ALPHABET, Access, Effort, Explorer, FaultDevice, Harness, MemoryDevice, Model, Operation, PREPARATION, Setting, check_device,
    mount_device,
};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::journal::{decode, encode};
use tandemfs_format::superblock::{Superblock, Tail};
use tandemfs_format::{LineAddress, PairSeed};
use tandemfs_fs::Error;
use tandemfs_fs::mutant::{self, Mutant};

use Operation::*;

/// Ways to catch a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Catcher {
    /// Every cut of every single operation, by flush and fence.
    SequencesAdr,
    /// The same where retired stores survive.
    SequencesGpf,
    /// A long workload that wraps the rings, then a cut.
    RingWrap,
    /// Records of one workload lie in several rings.
    ManyRings,
    /// Metadata pages change hands before a checkpoint.
    MetadataReuse,
    /// A full device, whose blocks are overwritten, with cuts.
    FullDevice,
    /// Bytes behind the end come back.
    Model,
    /// A FLUSH fails.
    FailedFlush,
    /// `tandemfs_check` after an unmount.
    Check,
}

impl Catcher {
    const ALL: [Self; 9] = [
        Self::Model,
        Self::FailedFlush,
        Self::Check,
        Self::MetadataReuse,
        Self::ManyRings,
        Self::RingWrap,
        Self::FullDevice,
        Self::SequencesGpf,
        Self::SequencesAdr,
    ];

    fn run(self) -> Result<(), String> {
        match self {
            Self::SequencesAdr => sequences(PersistenceDomain::Adr, 48),
            Self::SequencesGpf => sequences(PersistenceDomain::Gpf, 8),
            Self::RingWrap => ring_wrap(),
            Self::ManyRings => many_rings(),
            Self::MetadataReuse => metadata_reuse(),
            Self::FullDevice => full_device(),
            Self::Model => agree(
                &Setting::small(PersistenceDomain::Adr, 64 << 10),
                &[Create("f"), Append("f", 65_536, 1), Truncate("f", 387), Append("f", 59, 2), Write("f", 196_597, 100, 3)],
            ),
            Self::FailedFlush => failed_flush(),
            Self::Check => orphan_and_check(),
        }
    }
}

fn harness(setting: &Setting) -> Result<Harness, String> {
    Harness::new(setting.format(), &setting.mount, Model::default())
}

fn agree(setting: &Setting, operations: &[Operation]) -> Result<(), String> {
    let mut harness = harness(setting)?;
    for operation in operations {
        harness.apply(operation)?;
    }
    harness.compare()
}

fn sequences(domain: PersistenceDomain, states: u64) -> Result<(), String> {
    let effort = Effort { states, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10 };
    let mut explorer = Explorer::new(&Setting::small(domain, 64 << 10), PREPARATION, effort, 3)?;
    for operation in ALPHABET {
        explorer.explore(&[*operation], 0)?;
    }
    explorer.explore(&[Write("b", 0, 131_072, 1), Checkpoint], 0)
}

fn ring_wrap() -> Result<(), String> {
    let mut operations = Vec::new();
    for round in 0..40 {
        operations.extend([CreateMany("", 0, 100), UnlinkMany("", 0, 100)]);
        if round % 10 == 9 {
            operations.extend([Create("a"), Append("a", 100, round), Crash]);
        }
    }
    operations.push(Unlink("none"));
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    agree(&setting, &operations)
}

/// Moves the records of the one ring that a thread fills to several rings, the first records to the last ring.
fn spread_over_rings(device: &MemoryDevice) {
    device.damage(|zones| {
        let copies = [&zones.memory[..1024], &zones.memory[65_536..66_560]];
        let superblock = Superblock::choose(copies).expect("a superblock");
        let (geometry, pair, generation) = (superblock.geometry, PairSeed::new(superblock.pair), superblock.generation);
        let ring_bytes = geometry.ring_bytes() as usize;
        let mut records = Vec::new();
        for ring in 0..geometry.ring_count() {
            assert_eq!(superblock.tails[ring as usize], Tail::default(), "no checkpoint since the mount");
            let start = geometry.ring(ring).offset_bytes() as usize;
            let bytes = &mut zones.memory[start..start + ring_bytes];
            let mut at = 0;
            while let Some(record) = decode(&bytes[at..], pair, ring, 0, generation) {
                at += record.bytes;
                records.push(record);
            }
            bytes.fill(0);
        }
        records.sort_by_key(|record| record.txid);
        let mut ends = vec![0; geometry.ring_count() as usize];
        for (index, record) in records.iter().enumerate() {
            let ring = geometry.ring_count() - 1 - index as u32 % geometry.ring_count();
            let (addresses, images): (Vec<LineAddress>, Vec<_>) = record.changes.iter().copied().unzip();
            let mut buffer = Vec::new();
            encode(&mut buffer, pair.journal(ring, 0, generation), 0, record.txid, &addresses, &images);
            let at = geometry.ring(ring).offset_bytes() as usize + ends[ring as usize];
            zones.memory[at..at + buffer.len()].copy_from_slice(&buffer);
            ends[ring as usize] += buffer.len();
        }
    });
}

fn many_rings() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    let mut first = harness(&setting)?;
    for operation in [Create("a"), Append("a", 50, 1), Append("a", 60, 2), Create("b"), Unlink("b"), Append("a", 300, 3), Truncate("a", 20)]
    {
        first.apply(&operation)?;
    }
    spread_over_rings(&first.device);
    let model = first.model.clone();
    Harness::new(first.device.fork(), &setting.mount, model)?.compare()
}

/// The old owner's lines are still in the journal when the page has a new owner.
fn metadata_reuse() -> Result<(), String> {
    let mut setting = Setting::small(PersistenceDomain::Gpf, 4 << 10);
    setting.block_zone_bytes = 8 << 20;
    let mut operations = vec![Create("x")];
    operations.extend((0..20).map(|index| Write("x", index * 40_960, 4096, index)));
    operations.extend([Unlink("x"), Create("y"), Write("y", 8192, 4096, 77), Write("y", 400_000, 4096, 78), Crash]);
    agree(&setting, &operations)
}

/// Growth stops before the transient room; overwriting and removing go on (RULES R14), and reuse waits for the commit (R7).
fn full_device() -> Result<(), String> {
    const BLOCK: u32 = 64 << 10;
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK);
    let mut full = harness(&setting)?;
    for operation in [Create("a"), Create("b"), Write("b", 0, BLOCK, 1)] {
        full.apply(&operation)?;
    }
    let mut blocks = 0;
    while full.refused_for_space == 0 {
        full.apply(&Write("a", blocks * u64::from(BLOCK), BLOCK, blocks))?;
        blocks += 1;
    }
    for round in 0..20 {
        for block in [0, blocks / 2, blocks - 2] {
            full.apply(&Write("a", block * u64::from(BLOCK), BLOCK, 100 + round))?;
        }
        full.apply(&Write("b", 0, BLOCK, 200 + round))?;
        full.compare()?;
    }
    if full.overwrites_refused > 0 {
        return Err(format!("{} overwrites refused on a full device (R14)", full.overwrites_refused));
    }
    full.apply(&Crash)?;
    full.compare()?;
    full.apply(&Unlink("a"))?;
    full.compare_space()?;
    // Cuts of overwrites on a device that was full once.
    let mut preparation = vec![Create("a")];
    preparation.extend((0..blocks - 1).map(|block| Write("a", block * u64::from(BLOCK), BLOCK, block)));
    let effort = Effort { states: 4, recovery_one_in: 0, recovery_depth: 0, recovery_states: 0, work_one_in: 0 };
    let mut explorer = Explorer::new(&setting, &preparation, effort, 5)?;
    let overwrites: Vec<Operation> = (0..12).map(|round| Write("a", 0, BLOCK, 500 + round)).collect();
    explorer.explore(&overwrites, 0)
}

fn failed_flush() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let device = setting.format();
    let faulty = Arc::new(FaultDevice::new(device, Access::Flush, 0, false));
    let mut harness = harness(&setting)?;
    harness.exchange(mount_device(faulty, &setting.mount).map_err(|error| error.to_string())?);
    harness.perform(&Create("a")).map_err(|error| error.to_string())?;
    match harness.perform(&Write("a", 0, 65_536, 1)) {
        Err(Error::Stopped { .. }) => Ok(()),
        other => Err(format!("a write whose FLUSH failed gave {other:?}")),
    }
}

/// Cut with an unlinked file held; then everything that `check` looks at.
fn orphan_and_check() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    let mut harness = harness(&setting)?;
    for operation in [Create("a"), Append("a", 5000, 1), Hold(0, "a"), Unlink("a"), Crash, Create("b"), Append("b", 70_000, 2), Remount] {
        harness.apply(&operation)?;
    }
    harness.fs.unmount().map_err(|error| error.to_string())?;
    check_device(&harness.device, false)
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a catcher with a bug; nothing is caught where all is well.
fn caught(catcher: Catcher, bug: Mutant) -> Option<String> {
    mutant::select(bug);
    let result = catch_unwind(AssertUnwindSafe(|| catcher.run()));
    mutant::select(Mutant::None);
    match result {
        Ok(Ok(())) => None,
        Ok(Err(what)) => Some(what),
        Err(panic) => Some(format!("panic: {}", panic.downcast_ref::<String>().map_or("?", String::as_str))),
    }
}

fn is_caught(bug: Mutant, catchers: &[Catcher]) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for catcher in catchers {
        match caught(*catcher, bug) {
            Some(what) => println!("{bug:?}: {catcher:?}: {}", what.lines().next().unwrap_or_default()),
            None => panic!("{bug:?} escaped {catcher:?}"),
        }
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for catcher in Catcher::ALL {
        if let Some(what) = caught(catcher, Mutant::None) {
            panic!("{catcher:?}: {what}");
        }
    }
}

macro_rules! mutants {
    ($($name:ident: $bug:ident by $($catcher:ident),+;)*) => {$(
        #[test]
        fn $name() {
            is_caught(Mutant::$bug, &[$(Catcher::$catcher),+]);
        }
    )*};
}

mutants! {
    r1_watermark_before_home: WatermarkBeforeHome by SequencesAdr, SequencesGpf;
    r1_tail_released_early: TailReleasedEarly by RingWrap;
    r1_replay_in_ring_order: ReplayInRingOrder by ManyRings;
    r3_record_not_flushed: RecordNotFlushed by SequencesAdr;
    r3_record_checksum_ignored: RecordChecksumIgnored by SequencesAdr, SequencesGpf;
    r4_home_before_record: HomeBeforeRecord by SequencesAdr, SequencesGpf;
    r6_freed_metadata_at_once: FreedMetadataAtOnce by MetadataReuse;
    r7_data_freed_before_commit: DataFreedBeforeCommit by FullDevice;
    r8_logs_not_fenced: LogsNotFenced by SequencesAdr;
    r8_blocks_not_flushed: BlocksNotFlushed by SequencesAdr, SequencesGpf;
    r8_written_filled_in_place: WrittenFilledInPlace by SequencesAdr, SequencesGpf;
    r12_orphans_forgotten: OrphansForgotten by Check;
    r13_stale_tail_forgotten: StaleTailForgotten by Model;
    r14_transient_room_given: TransientRoomGiven by FullDevice;
    r15_failed_flush_ignored: FailedFlushIgnored by FailedFlush;
    r25_clean_kept: CleanKept by SequencesAdr, SequencesGpf;
    second_superblock_skipped: SecondSuperblockSkipped by Check;
}
