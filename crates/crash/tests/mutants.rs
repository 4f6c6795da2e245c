//! Deliberate bugs: the harness must catch every one. The table of `docs/TESTING.md` is what these tests assert.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use support::bugs::{alone, run};
use tandemfs_crash::{
    ALPHABET, Access, Effort, Explorer, FaultDevice, Harness, MemoryDevice, Model, Operation, Random, Scene, Setting, StuckDevice, Tree,
    check_device, comes_within, content, cut_everywhere, each_state, fill, heard_within, mount_device,
};
use tandemfs_device::{BlockPath, BlockRequest, Device, Drive, PersistenceDomain};
use tandemfs_format::inode::file_type;
use tandemfs_format::journal::{decode, encode};
use tandemfs_format::superblock::{ChecksumKind, Superblock, Tail};
use tandemfs_format::{InodeNumber, LineAddress, PairSeed, Sector};
use tandemfs_fs::inject::end_transaction_numbers_at;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, Growth, NewInode, Promote, RenameMode, WriteOptions, announcing, grow, read_superblock, shrink};

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
    /// Logs are merged, and rewritten with their block.
    Logs,
    /// A FLUSH fails.
    FailedFlush,
    /// `tandemfs_check` after an unmount.
    Check,
    /// Names, link counts and parents, beside the model.
    Names,
    /// Damage in a data log between two appends to it.
    DamagedLog,
    /// Every load fails once.
    FailedLoads,
    /// Every cut of a write of three transactions.
    LongWrite,
    /// A write to the drive gets stuck.
    StuckWrite,
    /// A read gets stuck, in a thread that says so before.
    StuckRead,
    /// Blocks of several files are written back together, and cut.
    Batch,
    /// One of them has a damaged log.
    DamagedBatch,
    /// Ranges with holes and of several pieces copied, beside the model.
    Copies,
    /// Damage of a sector, and of a line below a host copy that is whole.
    Scrub,
    /// Reads between changes, with copies and read-ahead, without checksums.
    ReadCopies,
    /// Damage behind the first part of a long request.
    DamagedPart,
    /// Every cut of every single operation on a drive with firmware, by flush and fence.
    FirmwareAdr,
    /// The same where retired stores survive.
    FirmwareGpf,
    /// A COMMIT of the drive fails, and host copies come and go after that.
    FailedCommit,
    /// More transactions of the drive than there are numbers.
    NumbersEnd,
    /// Every cut of extended attributes that are set, replaced and removed.
    Attributes,
    /// The same on a drive with firmware.
    FirmwareAttributes,
    /// Their space after a rebuild, and after the file is gone.
    AttributeSpace,
    /// Every cut of a growth whose map pieces move.
    Growth,
    /// Every cut of a growth in use, and of what goes on in the new space; the map pieces move into the old one.
    GrowthInUse,
    /// Every cut of a shrink, for which blocks and a unit of inodes move.
    Shrink,
    /// Every cut of ranges that are collapsed and inserted.
    Shifts,
    /// The same on a drive with firmware.
    FirmwareShifts,
    /// Every cut of changes whose freed sectors are discarded.
    Discards,
    /// Every cut of a mount, and of the mount after it.
    Mounts,
}

impl Catcher {
    const ALL: [Self; 36] = [
        Self::Model,
        Self::Logs,
        Self::FailedFlush,
        Self::Check,
        Self::MetadataReuse,
        Self::ManyRings,
        Self::RingWrap,
        Self::FullDevice,
        Self::SequencesGpf,
        Self::SequencesAdr,
        Self::Names,
        Self::DamagedLog,
        Self::FailedLoads,
        Self::LongWrite,
        Self::StuckWrite,
        Self::StuckRead,
        Self::Batch,
        Self::DamagedBatch,
        Self::Copies,
        Self::Scrub,
        Self::ReadCopies,
        Self::DamagedPart,
        Self::FirmwareAdr,
        Self::FirmwareGpf,
        Self::FailedCommit,
        Self::NumbersEnd,
        Self::Attributes,
        Self::FirmwareAttributes,
        Self::AttributeSpace,
        Self::Growth,
        Self::GrowthInUse,
        Self::Shrink,
        Self::Shifts,
        Self::Discards,
        Self::FirmwareShifts,
        Self::Mounts,
    ];

    fn run(self) -> Result<(), String> {
        match self {
            Self::SequencesAdr => sequences(&Setting::small(PersistenceDomain::Adr, 64 << 10), 48),
            Self::SequencesGpf => sequences(&Setting::small(PersistenceDomain::Gpf, 64 << 10), 8),
            Self::FirmwareAdr => sequences(&Setting::small(PersistenceDomain::Adr, 64 << 10).with_firmware(), 16),
            Self::FirmwareGpf => sequences(&Setting::small(PersistenceDomain::Gpf, 64 << 10).with_firmware(), 8),
            Self::FailedCommit => failed_commit(),
            Self::NumbersEnd => numbers_end(),
            Self::RingWrap => ring_wrap(),
            Self::ManyRings => many_rings(),
            Self::MetadataReuse => metadata_reuse(),
            Self::FullDevice => full_device(),
            Self::Model => agree(
                &Setting::small(PersistenceDomain::Adr, 64 << 10),
                &[Create("f"), Append("f", 65_536, 1), Truncate("f", 387), Append("f", 59, 2), Write("f", 196_597, 100, 3)],
            ),
            Self::Logs => agree(
                &Setting::small(PersistenceDomain::Adr, 64 << 10),
                &[
                    Create("f"),
                    Write("f", 0, 131_072, 1),
                    Scatter("f", 100, 16, 4096, 64, 2), // sixteen entries, one in each sector
                    Write("f", 130, 100, 18),           // merged with the first
                    Write("f", 3000, 10, 19),           // one too many: the block is rewritten
                ],
            ),
            Self::FailedFlush => failed_flush(),
            Self::Check => orphan_and_check(),
            Self::Names => names(),
            Self::DamagedLog => damaged_log(),
            Self::FailedLoads => failed_loads(),
            Self::LongWrite => long_write(),
            Self::StuckWrite => stuck_write(),
            Self::StuckRead => stuck_read(),
            Self::Batch => batch(),
            Self::DamagedBatch => damaged_batch(),
            Self::Copies => copies(),
            Self::Scrub => scrub(),
            Self::ReadCopies => read_copies(),
            Self::DamagedPart => damaged_part(),
            Self::Attributes => attribute_cuts(&Setting::small(PersistenceDomain::Adr, 64 << 10)),
            Self::FirmwareAttributes => attribute_cuts(&Setting::small(PersistenceDomain::Adr, 64 << 10).with_firmware()),
            Self::AttributeSpace => attribute_space(),
            Self::Growth => growth(),
            Self::GrowthInUse => growth_in_use(),
            Self::Shrink => shrinking(),
            Self::Discards => discards(),
            Self::Mounts => mounts(),
            Self::Shifts => shifts(&Setting::small(PersistenceDomain::Adr, 4 << 10)),
            Self::FirmwareShifts => shifts(&Setting::small(PersistenceDomain::Adr, 4 << 10).with_firmware()),
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

fn sequences(setting: &Setting, states: u64) -> Result<(), String> {
    let effort = Effort { states, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10, empty_one_in: 0 };
    let mut explorer = Explorer::new(&Scene::small(setting), effort, 3)?;
    for operation in ALPHABET {
        explorer.explore(&[*operation], 0)?;
    }
    explorer.explore(&[Write("b", 0, 131_072, 1), Checkpoint], 0)
}

/// Uncommitted changes are invisible, although the drive shows them and no page stays in host memory.
fn failed_commit() -> Result<(), String> {
    let mut setting = Setting::small(PersistenceDomain::Adr, 64 << 10).with_firmware();
    setting.mount.memory_bytes = 4096; // the fewest pages
    let mut prepared = harness(&setting)?;
    for directory in 0..400 {
        prepared.apply(&MakeDirectory(format!("d{directory}").leak()))?;
        prepared.apply(&Create(format!("d{directory}/file").leak()))?;
    }
    prepared.apply(&Append("d7/file", 5000, 1))?;
    prepared.fs.unmount().map_err(|error| error.to_string())?;
    let expected = prepared.model.tree();
    for operation in [Create("d7/other"), Unlink("d7/file"), Append("d7/file", 300, 2), Truncate("d7/file", 100)] {
        let faulty = Arc::new(FaultDevice::new(prepared.device.fork(), Access::Commit, 0, false));
        prepared.exchange(mount_device(faulty, &setting.mount).map_err(|error| error.to_string())?);
        match prepared.perform(&operation) {
            Err(Error::Stopped { .. }) => {}
            other => return Err(format!("{operation:?} whose COMMIT failed gave {other:?}")),
        }
        for _ in 0..3 {
            if let Some(difference) = Tree::read(&prepared.fs)?.difference(&expected) {
                return Err(format!("{operation:?} whose COMMIT failed is visible: {difference}"));
            }
        }
    }
    Ok(())
}

fn numbers_end() -> Result<(), String> {
    const LAST: u32 = 20;
    end_transaction_numbers_at(LAST);
    let mut operations = vec![Create("a")];
    operations.extend((0..50).map(|round| Append("a", 10, round)));
    let agreed = agree(&Setting::small(PersistenceDomain::Adr, 64 << 10).with_firmware(), &operations);
    end_transaction_numbers_at(u32::MAX);
    agreed
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
    let effort = Effort { states: 4, recovery_one_in: 0, recovery_depth: 0, recovery_states: 0, work_one_in: 0, empty_one_in: 0 };
    let mut explorer = Explorer::new(&Scene { preparation, ..Scene::small(&setting) }, effort, 5)?;
    let overwrites: Vec<Operation> = (0..12).map(|round| Write("a", 0, BLOCK, 500 + round)).collect();
    explorer.explore(&overwrites, 0)
}

fn failed_flush() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let device = setting.format();
    let faulty = Arc::new(FaultDevice::new(device, Access::Flush, 1, false)); // the first one is the mount's, for the identity
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
    check_device(&harness.device, false).map(drop)
}

fn names() -> Result<(), String> {
    let mut harness = harness(&Setting::small(PersistenceDomain::Gpf, 64 << 10))?;
    let operations = [
        MakeDirectory("d"),
        MakeDirectory("d/d"),
        MakeDirectory("e"),
        Create("a"),
        Link("a", "d/a"),
        Rename("d/d", "e/d", RenameMode::Replace),
        Rename("a", "b", RenameMode::Replace),
        Rename("b", "e/b", RenameMode::NoReplace),
        Unlink("d/a"),
        Rename("e/d", "d", RenameMode::Exchange),
    ];
    for operation in operations {
        harness.apply(&operation)?;
        harness.compare()?;
    }
    Ok(())
}

/// An append extends the checksum of the existing bytes: damage stays detectable (RULES R10).
fn damaged_log() -> Result<(), String> {
    let mut harness = harness(&Setting::small(PersistenceDomain::Adr, 64 << 10))?;
    for operation in [Create("a"), Append("a", 100, 1)] {
        harness.apply(&operation)?;
    }
    let log = fill(1, 100);
    harness.device.damage(|zones| {
        let at = zones.memory.windows(100).position(|window| window == log).expect("the log");
        zones.memory[at + 50] ^= 1;
    });
    harness.apply(&Append("a", 100, 2))?;
    let inode = harness.fs.lookup(InodeNumber::ROOT, b"a").map_err(|error| error.to_string())?.inode;
    match content(&harness.fs, inode) {
        Err(Error::DamagedData { .. }) => Ok(()),
        other => Err(format!("a damaged log that was appended to reads as {:?}", other.map(|bytes| bytes.len()))),
    }
}

/// Cuts of small sets and of values in pages of their own, replaced by others of the same shape.
fn attribute_cuts(setting: &Setting) -> Result<(), String> {
    let effort = Effort { states: 48, recovery_one_in: 100, recovery_depth: 1, recovery_states: 4, work_one_in: 20, empty_one_in: 0 };
    let mut explorer = Explorer::new(&Scene::small(setting), effort, 3)?;
    let first = [SetAttribute("a", "user.x", 900, 7), SetAttribute("b", "user.y", 5000, 8)];
    for second in [
        SetAttribute("a", "user.x", 900, 9),
        SetAttribute("b", "user.y", 5000, 10),
        SetAttribute("b", "user.y", 65_536, 11),
        RemoveAttribute("a", "user.x"),
        RemoveAttribute("b", "user.y"),
    ] {
        explorer.explore(&[first[0], first[1], second], 0)?;
    }
    explorer.explore(&[SetDefaultList("d", 5), MakeDirectory("d/d"), Create("d/d/a"), SetDefaultList("d", 6)], 0)
}

/// Cuts of ranges taken out of a file of two pages of records, and of holes put into it.
fn shifts(setting: &Setting) -> Result<(), String> {
    let effort = Effort { states: 48, recovery_one_in: 100, recovery_depth: 1, recovery_states: 4, work_one_in: 4, empty_one_in: 0 };
    let mut explorer = Explorer::new(&Scene::small(setting), effort, 3)?;
    let first = [Write("b", 4096, 20_000, 7), Write("b", 900_000, 9000, 8)];
    for second in [Collapse("b", 4096, 8192), Insert("b", 8192, 40_960), Collapse("b", 12_288, 819_200)] {
        explorer.explore(&[first[0], first[1], second, Append("b", 3000, 9)], 2)?;
    }
    Ok(())
}

fn discards() -> Result<(), String> {
    let effort = Effort { states: 32, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 4, empty_one_in: 0 };
    let mut explorer = Explorer::new(&Scene::small(&Setting::small(PersistenceDomain::Adr, 64 << 10)), effort, 3)?;
    for change in [Write("b", 0, 65_536, 7), Truncate("b", 1000), Unlink("b")] {
        explorer.explore(&[change, Discard, Write("a", 0, 65_536, 8), Discard, Write("a", 0, 65_536, 9)], 0)?;
    }
    // Sectors that were freed and taken again before anything was discarded.
    let mut harness = harness(&Setting::small(PersistenceDomain::Gpf, 64 << 10))?;
    harness.apply(&Create("a"))?;
    for round in 0..200 {
        harness.apply(&Write("a", 0, 65_536, round))?;
        harness.apply(&Write("a", 65_536, 65_536, 1000 + round))?;
        if round % 80 == 79 {
            harness.apply(&Discard)?;
            harness.compare()?;
        }
    }
    harness.apply(&Remount)?;
    harness.compare()
}

/// Lines of attributes belong to one inode, also after the maps were built anew, and go with it.
fn attribute_space() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    let mut harness = harness(&setting)?;
    for operation in [
        Create("a"),
        SetAttribute("a", "user.x", 9000, 1),
        SetAttribute("a", "user.y", 50, 2),
        Crash,
        Create("b"),
        SetAttribute("b", "user.x", 9000, 3),
        SetAttribute("b", "user.y", 50, 4),
        Remount,
        Unlink("a"),
    ] {
        harness.apply(&operation)?;
        harness.compare()?;
    }
    harness.fs.unmount().map_err(|error| error.to_string())?;
    check_device(&harness.device, false).map(drop)
}

/// Old sizes or new ones, with all files, and maps that are there where it is said.
fn growth() -> Result<(), String> {
    // The memory zone whose map pieces have the least room behind the rings.
    let setting = Setting { memory_bytes: 44 << 20, ..Setting::small(PersistenceDomain::Gpf, 64 << 10) };
    let mut harness = harness(&setting)?;
    for operation in [Create("a"), Write("a", 3000, 150_000, 1), MakeDirectory("d"), Create("d/b"), Append("d/b", 100, 2)] {
        harness.apply(&operation)?;
    }
    harness.fs.unmount().map_err(|error| error.to_string())?;
    let expected = harness.model.tree();
    let mut zones = harness.device.zones();
    zones.memory.resize(64 << 20, 0xdb);
    let start = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
    let device = start.fork();
    device.start_recording();
    grow(&Drive::new(Arc::new(device.clone())), &Growth::default()).map_err(|error| error.to_string())?;
    let look = |device: &MemoryDevice, after_cut| {
        check_device(device, after_cut)?;
        let drive = Drive::new(Arc::new(device.clone()));
        let was_clean = read_superblock(&drive).map_err(|error| error.to_string())?.clean;
        let fs = mount_device(Arc::new(device.clone()), &setting.mount).map_err(|error| error.to_string())?;
        if was_clean && !fs.recovery().clean {
            return Err("clean, and the saved maps are not there".into());
        }
        Tree::read(&fs)?.difference(&expected).map_or(Ok(()), |difference| Err(difference.to_string()))
    };
    let mut result = Ok(());
    each_state(&start, &device.stop_recording(), 0, 1, &mut Random::new(1), &mut |_, state| {
        if result.is_ok() {
            result = look(&state.device, true);
        }
    });
    result.and_then(|()| look(&device, false))
}

fn growth_in_use() -> Result<(), String> {
    // Map pieces of 1200 MiB of blocks have no room behind the rings of this memory zone, and get units in it.
    let setting = Setting { memory_bytes: 44 << 20, ..Setting::small(PersistenceDomain::Gpf, 64 << 10) };
    let mut harness = harness(&setting)?;
    for operation in [Create("a"), Write("a", 3000, 150_000, 1), MakeDirectory("d"), Create("d/b"), Append("d/b", 100, 2)] {
        harness.apply(&operation)?;
    }
    harness.fs.unmount().map_err(|error| error.to_string())?;
    let mut zones = harness.device.zones();
    let old_blocks = zones.blocks.len() as u64;
    zones.blocks.resize(1200 << 20, 0xdb);
    let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf).showing(setting.memory_bytes, old_blocks);
    let mount = |device: &MemoryDevice| mount_device(Arc::new(device.clone()), &setting.mount).map_err(|error| error.to_string());
    let fs = mount(&device)?;
    let text = |error: Error| error.to_string();
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let large = fs.create(InodeNumber::ROOT, b"large", &new).map_err(text)?.inode;
    let mut size = 0;
    while fs.write(large, size, &fill(size, 64 << 10), WriteOptions::default()).is_ok() {
        size += 64 << 10;
    }
    fs.checkpoint().map_err(text)?;
    let start = device.fork();
    let mut trees = vec![Tree::read(&fs)?];
    device.start_recording();
    let grown = fs.grow_zones(&Growth::default()).map_err(text)?;
    if grown.after.map_unit() == 0 {
        return Err("the map pieces have room where they are: the test shows nothing".into());
    }
    device.mark(0);
    fs.write(large, size, &fill(1, 64 << 10), WriteOptions::default()).map_err(text)?;
    trees.push(Tree::read(&fs)?);
    let events = device.stop_recording();
    // Names and data logs in all units that are left: the unmount finds none of them where its map pieces go.
    for number in 0..3000_u64 {
        let Ok(made) = fs.create(InodeNumber::ROOT, format!("small {number}").as_bytes(), &new) else { break };
        if fs.write(made.inode, 0, &fill(number, 3000), WriteOptions::default()).is_err() {
            break;
        }
    }
    let whole = Tree::read(&fs)?;
    fs.unmount().map_err(text)?;
    let look = |device: &MemoryDevice, trees: &[Tree], after_cut| {
        check_device(device, after_cut)?;
        let tree = Tree::read(&mount(device)?)?;
        match trees.iter().any(|known| tree.difference(known).is_none()) {
            true => Ok(()),
            false => Err(format!("{:?}", tree.difference(&trees[0]).map(|difference| difference.to_string()))),
        }
    };
    let mut result = look(&device, &[whole], false);
    each_state(&start, &events, 0, 1, &mut Random::new(1), &mut |_, state| {
        if result.is_ok() {
            result = state.device.grow(None, None).map_err(|error| error.to_string()).and_then(|()| look(&state.device, &trees, true));
        }
    });
    result
}

fn shrinking() -> Result<(), String> {
    let mut setting = Setting { memory_bytes: 32 << 20, block_zone_bytes: 32 << 20, ..Setting::small(PersistenceDomain::Gpf, 64 << 10) };
    setting.mount.memory_bytes = 64 << 20;
    let device = setting.format();
    let mount = |device: &MemoryDevice| mount_device(Arc::new(device.clone()), &setting.mount).map_err(|error| error.to_string());
    let fs = mount(&device)?;
    let text = |error: Error| error.to_string();
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    // Units of inodes between units of long names, of which few are left; then blocks behind others that are removed.
    let make = |name: String| fs.create(InodeNumber::ROOT, name.as_bytes(), &new).map(|made| made.inode).map_err(text);
    let long = |number: u64| format!("{number:0>240}");
    let directory = NewInode { mode: file_type::DIRECTORY | 0o700, ..new };
    let names = fs.create(InodeNumber::ROOT, b"names", &directory).map_err(text)?.inode;
    for number in 0..40_000_u64 {
        let inode = fs.create(names, long(number).as_bytes(), &new).map_err(text)?.inode;
        if number % 13_000 == 0 {
            fs.link(inode, InodeNumber::ROOT, format!("kept {number}").as_bytes()).map_err(text)?;
        }
    }
    for number in 0..24_u64 {
        fs.write(make(format!("file {number}"))?, 0, &fill(number, 1_000_000), WriteOptions::default()).map_err(text)?;
    }
    for number in 0..40_000_u64 {
        fs.unlink(names, long(number).as_bytes()).map_err(text)?;
    }
    fs.remove_directory(InodeNumber::ROOT, b"names").map_err(text)?;
    for number in (0..24_u64).filter(|number| number % 4 > 0) {
        fs.unlink(InodeNumber::ROOT, format!("file {number}").as_bytes()).map_err(text)?;
    }
    fs.unmount().map_err(text)?;
    let expected = Tree::read(&mount(&device.fork())?)?;
    let start = device.fork();
    device.start_recording();
    let sizes = Growth { memory_bytes: Some(20 << 20), block_bytes: Some(10 << 20) };
    shrink(&Drive::new(Arc::new(device.clone())), &sizes).map_err(text)?;
    let look = |device: &MemoryDevice, after_cut| {
        check_device(device, after_cut)?;
        Tree::read(&mount(device)?)?.difference(&expected).map_or(Ok(()), |difference| Err(difference.to_string()))
    };
    let events = device.stop_recording();
    let mut result = look(&device, false);
    each_state(&start, &events, 0, 1, &mut Random::new(1), &mut |_, state| {
        if result.is_ok() {
            result = look(&state.device, true);
        }
    });
    result
}

fn mounts() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let mut harness = harness(&setting)?;
    for operation in [Create("a"), Write("a", 3000, 70_000, 1)] {
        harness.apply(&operation)?;
    }
    let tree = harness.model.tree();
    let mut mount = |drive: &Drive| FileSystem::mount(drive.clone(), &setting.mount).map(drop).map_err(|error| error.to_string());
    cut_everywhere(&harness.device.fork(), &mut mount, &tree, 1, &mut Random::new(2), &mut |_| Ok(())).map(drop)
}

/// What cannot be loaded is an error, not zeros (RULES R23).
fn failed_loads() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let mut harness = harness(&setting)?;
    for operation in [Create("a"), Write("a", 300_000, 70_000, 1), MakeDirectory("d"), Create("d/b"), Append("d/b", 100, 2), Remount] {
        harness.apply(&operation)?;
    }
    harness.fs.unmount().map_err(|error| error.to_string())?;
    let expected = harness.model.tree();
    for succeed in 0.. {
        let faulty = Arc::new(FaultDevice::new(harness.device.fork(), Access::Load, succeed, false));
        let Ok(fs) = mount_device(faulty.clone(), &setting.mount) else { continue };
        if let Ok(found) = Tree::read(&fs)
            && let Some(difference) = found.difference(&expected)
        {
            return Err(format!("load {succeed} failed: {difference}"));
        }
        if !faulty.hit() {
            break;
        }
    }
    Ok(())
}

fn long_write() -> Result<(), String> {
    let mut setting = Setting::small(PersistenceDomain::Gpf, 256 << 10);
    setting.block_zone_bytes = 16 << 20;
    let effort = Effort { states: 2, recovery_one_in: 0, recovery_depth: 0, recovery_states: 0, work_one_in: 0, empty_one_in: 0 };
    Explorer::new(&Scene::small(&setting), effort, 3)?.explore(&[Write("b", 0, 2_500_000, 1)], 0)
}

/// Calls that do not need data in flight to the drive are not blocked (RULES R9).
fn stuck_write() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let mut prepared = harness(&setting)?;
    for operation in [Create("a"), Write("a", 0, 131_072, 1), Remount] {
        prepared.apply(&operation)?;
    }
    prepared.fs.unmount().map_err(|error| error.to_string())?;
    let stuck = StuckDevice::new(prepared.device.fork());
    let fs = mount_device(stuck.clone(), &setting.mount).map_err(|error| error.to_string())?;
    let inode = fs.lookup(InodeNumber::ROOT, b"a").map_err(|error| error.to_string())?.inode;
    stuck.set_trap(Access::Write, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.write(inode, 0, &fill(2, 65_536), WriteOptions::default()).map(drop));
        let is_stuck = stuck.is_stuck_within(Duration::from_secs(20));
        let (sender, receiver) = channel();
        let fs = &fs;
        scope.spawn(move || sender.send(fs.attributes(inode).is_ok()));
        let answered = heard_within(Duration::from_secs(2), &receiver);
        stuck.release();
        match (is_stuck, answered) {
            (true, Some(true)) => Ok(()),
            other => Err(format!("looking at a file whose data is on its way: {other:?}")),
        }
    })
}

/// [NW6]: a read of sectors and, behind its range, an overwrite, each of which says that it waits.
fn stuck_read() -> Result<(), String> {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    fn tell() {
        TOLD.fetch_add(1, SeqCst);
    }
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let mut prepared = harness(&setting)?;
    for operation in [Create("a"), Write("a", 0, 131_072, 1)] {
        prepared.apply(&operation)?;
    }
    prepared.fs.unmount().map_err(|error| error.to_string())?;
    let stuck = StuckDevice::new(prepared.device.fork());
    let fs = mount_device(stuck.clone(), &setting.mount).map_err(|error| error.to_string())?;
    let inode = fs.lookup(InodeNumber::ROOT, b"a").map_err(|error| error.to_string())?.inode;
    stuck.set_trap(Access::Read, 0);
    TOLD.store(0, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| announcing(tell, || fs.read(inode, 0, &mut [0; 100]).map(drop)));
        let is_stuck = stuck.is_stuck_within(Duration::from_secs(20));
        let at_the_drive = TOLD.load(SeqCst);
        scope.spawn(|| announcing(tell, || fs.write(inode, 0, b"new", WriteOptions::default()).map(drop)));
        comes_within(Duration::from_secs(if at_the_drive == 1 { 20 } else { 0 }), || TOLD.load(SeqCst) >= 2);
        let told = TOLD.load(SeqCst);
        stuck.release();
        match (is_stuck, at_the_drive, told) {
            (true, 1, 2) => Ok(()),
            other => Err(format!("who waits for a drive and who waits for a range said so: {other:?}")),
        }
    })
}

/// Files with blocks, with and without logs over them, and one that is a log alone.
const BATCH: &[Operation] = &[
    Create("a"),
    Write("a", 0, 131_072, 1),
    Write("a", 100, 300, 2),
    Write("a", 70_000, 5000, 3),
    Create("b"),
    Write("b", 0, 65_536, 4),
    Write("b", 4000, 200, 5),
    Create("c"),
    Write("c", 10, 90, 6),
];

/// Every cut of a write-back of blocks of three files.
fn batch() -> Result<(), String> {
    let effort = Effort { states: 24, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10, empty_one_in: 0 };
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let scene = Scene { preparation: BATCH.to_vec(), ..Scene::small(&setting) };
    Explorer::new(&scene, effort, 3)?.explore(&[WriteBackAll, Write("b", 65_000, 65_536, 7), WriteBackAll], 0)
}

/// The block with the damaged log stays unchanged, whatever is allocated afterwards; the other blocks are written back.
fn damaged_batch() -> Result<(), String> {
    let mut harness = harness(&Setting::small(PersistenceDomain::Gpf, 64 << 10))?;
    for operation in BATCH {
        harness.apply(operation)?;
    }
    let log = fill(5, 200);
    harness.device.damage(|zones| {
        let at = zones.memory.windows(200).position(|window| window == log).expect("the log");
        zones.memory[at + 50] ^= 1;
    });
    let logs = harness.fs.space().memory.data_log_bytes;
    harness.apply(&WriteBackAll)?;
    let left = harness.fs.space().memory.data_log_bytes;
    if left != 256 {
        return Err(format!("{left} of {logs} B of logs are left, the damaged one has 256"));
    }
    for operation in [Create("d"), Write("d", 0, 500_000, 8), Write("a", 0, 131_072, 9)] {
        harness.apply(&operation)?;
    }
    let inode = harness.fs.lookup(InodeNumber::ROOT, b"b").map_err(|error| error.to_string())?.inode;
    harness.fs.drop_file_pages(inode).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; 50_000];
    harness.fs.read(inode, 8192, &mut bytes).map_err(|error| format!("beside the damaged log: {error}"))?;
    if bytes != fill(4, 65_536)[8192..58_192] {
        return Err("the block beside the damaged log has other bytes".into());
    }
    match harness.fs.read(inode, 4000, &mut bytes[..200]) {
        Err(Error::DamagedData { .. }) => {}
        other => return Err(format!("the damaged log reads as {other:?}")),
    }
    harness.fs.checkpoint().map_err(|error| error.to_string())?;
    let rebuilt = tandemfs_crash::mount(&harness.device.fork(), &harness_mount())?;
    if rebuilt.space() != harness.fs.space() {
        return Err(format!("space {:?}, rebuilt {:?}", harness.fs.space(), rebuilt.space()));
    }
    Ok(())
}

fn harness_mount() -> tandemfs_fs::MountOptions {
    Setting::small(PersistenceDomain::Gpf, 64 << 10).mount
}

fn copies() -> Result<(), String> {
    let mut setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    setting.block_zone_bytes = 16 << 20;
    let operations = [
        Create("a"),
        Write("a", 0, 100_000, 1),
        Write("a", 1_000_000, 300_000, 2),
        Create("b"),
        Write("b", 0, 1_500_000, 3),
        CopyRange("a", 0, "b", 0, 2_000_000),
        Create("c"),
        CopyRange("b", 0, "c", 100, 2_000_000),
    ];
    agree(&setting, &operations)
}

/// A scrub finds damage at the right place.
fn scrub() -> Result<(), String> {
    let mut harness = harness(&Setting::small(PersistenceDomain::Adr, 64 << 10))?;
    for operation in [Create("a"), Write("a", 0, 65_536, 1), Create("b"), Append("b", 100, 2), Checkpoint] {
        harness.apply(&operation)?;
    }
    let found = |harness: &Harness| {
        let mut scrub = harness.fs.scrub();
        while harness.fs.scrub_step(&mut scrub) {}
        scrub.findings().iter().map(|finding| finding.device_offset).collect::<Vec<u64>>()
    };
    let (sector, inode) = (fill(1, 4096), harness.fs.lookup(InodeNumber::ROOT, b"b").map_err(|error| error.to_string())?.inode);
    let before = harness.device.zones();
    harness.apply(&Append("b", 100, 3))?;
    harness.apply(&Checkpoint)?;
    let after = harness.device.zones();
    let at = after.blocks.windows(4096).position(|window| window == sector).ok_or("no sector")?;
    // A line of the inode that the last checkpoint wrote home.
    let differs = |line: &usize| {
        let (old, new) = (&before.memory[line * 64..][..64], &after.memory[line * 64..][..64]);
        old != new && old.iter().any(|byte| *byte != 0)
    };
    let line = (32_768..after.memory.len() / 64).find(differs).ok_or("no line")?;
    for (zone, offset) in [("block", at), ("memory", line * 64)] {
        harness.device.damage(|zones| if zone == "block" { zones.blocks[offset + 9] ^= 1 } else { zones.memory[offset + 9] ^= 1 });
        if found(&harness) != [offset as u64] {
            return Err(format!("damage at {offset} of the {zone} zone, inode {inode}: found at {:?}", found(&harness)));
        }
        harness.device.damage(|zones| if zone == "block" { zones.blocks[offset + 9] ^= 1 } else { zones.memory[offset + 9] ^= 1 });
    }
    match found(&harness) {
        nothing if nothing.is_empty() => Ok(()),
        found => Err(format!("nothing is damaged, found at {found:?}")),
    }
}

/// Promoted copies and readahead data are never older than writes, and their space is freed.
fn read_copies() -> Result<(), String> {
    let mut setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    setting.format.checksum_kind = ChecksumKind::None;
    setting.mount.promote = Promote::EveryRead;
    let mut harness = harness(&setting)?;
    let space = harness.fs.space();
    let mut operations = vec![Create("a"), Write("a", 0, 196_608, 1), Create("logs")];
    operations.extend((0..6).flat_map(|round| {
        [
            Zero("a", 65_536, 65_536, true),
            Write("a", 65_536, 65_536, 2 + round),
            Write("a", 0, 65_536, 10 + round),
            Write("a", 70_000, 64, round),
        ]
    }));
    // More logs than there is room beside the copies.
    operations.extend([
        Scatter("logs", 0, 2_200, 4096, 4096, 77),
        Unlink("logs"),
        Checkpoint,
        Unlink("a"),
        Create("b"),
        Write("b", 0, 131_072, 5),
    ]);
    for operation in &operations {
        let stream = read_ahead_of(&harness);
        harness.apply(operation)?;
        if let Some(inode) = stream.filter(|_| !matches!(operation, Unlink("a"))) {
            let mut further = [0; 4000];
            let _read = harness.fs.read(inode, 69_200, &mut further).map_err(|error| error.to_string())?;
            let whole = content(&harness.fs, inode).map_err(|error| format!("{operation:?}: {error}"))?;
            if whole[69_200..73_200] != further {
                return Err(format!("{operation:?}: a sequential reader goes on in what was"));
            }
        }
        if !matches!(operation, Scatter(..)) {
            harness.compare()?;
            read_from_the_drive(&harness)?;
        }
    }
    for operation in [Remount, Unlink("b"), Checkpoint, Remount] {
        harness.apply(&operation)?;
        harness.compare()?;
        read_from_the_drive(&harness)?;
    }
    let left = harness.fs.space();
    if left.memory.free_bytes != space.memory.free_bytes && left.memory.data_log_bytes > 0 {
        return Err(format!("space was lost: {left:?}"));
    }
    harness.compare_space()
}

/// Reads whole files of `read_copies`, from promoted copies or from the sectors of which it makes some.
fn read_from_the_drive(harness: &Harness) -> Result<(), String> {
    for name in [b"a", b"b"] {
        let Ok(found) = harness.fs.lookup(InodeNumber::ROOT, name) else { continue };
        let expected = content(&harness.fs, found.inode).map_err(|error| error.to_string())?;
        harness.fs.drop_file_pages(found.inode).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; expected.len()];
        harness.fs.read(found.inode, 0, &mut bytes).map_err(|error| error.to_string())?;
        if bytes != expected {
            return Err("the drive has other bytes than its copies".into());
        }
    }
    Ok(())
}

/// Two reads of `a` that follow each other, so that what is behind them is read ahead.
fn read_ahead_of(harness: &Harness) -> Option<InodeNumber> {
    let inode = harness.fs.lookup(InodeNumber::ROOT, b"a").ok()?.inode;
    let mut bytes = [0; 100];
    for offset in [69_000, 69_100] {
        harness.fs.read(inode, offset, &mut bytes).ok().filter(|read| *read == 100)?;
    }
    Some(inode)
}

fn damaged_part() -> Result<(), String> {
    let setting = Setting { block_zone_bytes: 16 << 20, ..Setting::small(PersistenceDomain::Adr, 1 << 20) };
    let mut harness = harness(&setting)?;
    for operation in [Create("a"), Write("a", 0, 1 << 20, 1)] {
        harness.apply(&operation)?;
    }
    let inode = harness.fs.lookup(InodeNumber::ROOT, b"a").map_err(|error| error.to_string())?.inode;
    let whole = content(&harness.fs, inode).map_err(|error| error.to_string())?;
    let last = &whole[whole.len() - 4096..];
    let mut sector = vec![0; 4096];
    for number in (0..setting.block_zone_bytes / 4096).map(Sector::new) {
        let read = harness.device.transfer(&mut [BlockRequest::Read { sector: number, buffer: (&mut sector).into() }], &mut || {});
        if read.is_ok() && sector == last {
            let damage = BlockRequest::Write { sector: number, buffer: (&[0xdb; 4096]).into() };
            harness.device.transfer(&mut [damage], &mut || {}).map_err(|error| error.to_string())?;
        }
    }
    harness.fs.drop_file_pages(inode).map_err(|error| error.to_string())?;
    match harness.fs.read(inode, 0, &mut vec![0; 1 << 20]) {
        Err(Error::DamagedData { offset: 1_044_480, .. }) => Ok(()),
        other => Err(format!("the last of 256 sectors is damaged: {other:?}")),
    }
}

fn is_caught(bug: Mutant, catchers: &[Catcher]) {
    let _alone = alone();
    for catcher in catchers {
        match run(bug, || catcher.run()) {
            Err(what) => println!("{bug:?}: {catcher:?}: {}", what.lines().next().unwrap_or_default()),
            Ok(()) => panic!("{bug:?} escaped {catcher:?}"),
        }
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    for catcher in Catcher::ALL {
        if let Err(what) = run(Mutant::None, || catcher.run()) {
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
    dq1_discarded_while_taken: DiscardedWhileTaken by Discards;
    dq2_discarded_before_commit: DiscardedBeforeCommit by Discards;
    r8_logs_not_fenced: LogsNotFenced by SequencesAdr;
    r8_blocks_not_flushed: BlocksNotFlushed by SequencesAdr, SequencesGpf;
    r8_written_filled_in_place: WrittenFilledInPlace by SequencesAdr, SequencesGpf;
    r9_inode_held_over_io: InodeHeldOverIo by StuckWrite;
    nw6_wait_not_announced: WaitNotAnnounced by StuckRead;
    r10_checksum_from_read_back: ChecksumFromReadBack by DamagedLog;
    r11_size_before_pieces: SizeBeforePieces by LongWrite;
    r12_orphans_forgotten: OrphansForgotten by Check;
    r13_stale_tail_forgotten: StaleTailForgotten by Model;
    r14_transient_room_given: TransientRoomGiven by FullDevice;
    r15_failed_flush_ignored: FailedFlushIgnored by FailedFlush;
    r16_host_copy_before_commit: HostCopyBeforeCommit by FailedCommit;
    r16_commit_without_fence: CommitWithoutFence by FirmwareAdr;
    r16_commit_forgotten: CommitForgotten by FirmwareAdr, FirmwareGpf;
    r16_stored_untagged: StoredUntagged by FirmwareAdr, FirmwareGpf;
    r16_failed_pages_unpinned: FailedPagesUnpinned by FailedCommit;
    r16_fresh_page_not_flushed: FreshPageNotFlushed by FirmwareAdr, FirmwareGpf;
    r17_numbers_reused: NumbersReused by NumbersEnd;
    firmware_recover_skipped: RecoverSkipped by FirmwareAdr, FirmwareGpf;
    r23_failed_load_is_zeros: FailedLoadIsZeros by FailedLoads;
    is2_identity_before_pending: IdentityBeforePending by Mounts;
    is2_interrupted_stamp_kept: InterruptedStampKept by Mounts;
    is3_identity_not_flushed: IdentityNotFlushed by Mounts;
    r25_clean_kept: CleanKept by SequencesAdr, SequencesGpf;
    r27_fresh_page_unsealed: FreshPageUnsealed by SequencesAdr, FirmwareAdr;
    second_superblock_skipped: SecondSuperblockSkipped by Check;
    rename_in_two_transactions: RenameInTwoTransactions by SequencesAdr, SequencesGpf;
    link_count_kept: LinkCountKept by Names;
    parent_kept: ParentKept by Names;
    name_not_indexed: NameNotIndexed by Names;
    r19_sub_writes_apart: SubWritesApart by SequencesAdr, SequencesGpf;
    merged_bytes_forgotten: MergedBytesForgotten by Logs;
    touched_taken_for_covered: TouchedTakenForCovered by Logs;
    batch_not_flushed: BatchNotFlushed by Batch;
    batch_logs_forgotten: BatchLogsForgotten by Batch;
    batch_failed_block_freed: BatchFailedBlockFreed by DamagedBatch;
    batch_checksums_kept: BatchChecksumsKept by Batch;
    copied_hole_misplaced: CopiedHoleMisplaced by Copies;
    copy_tail_forgotten: CopyTailForgotten by Copies;
    scrub_passes_over: ScrubPassesOver by Scrub;
    scrub_from_cache: ScrubFromCache by Scrub;
    fp2_page_outlives_write: PageOutlivesWrite by ReadCopies;
    later_parts_not_verified: LaterPartsNotVerified by DamagedPart;
    promoted_kept: PromotedKept by ReadCopies;
    promoted_slots_saved: PromotedSlotsSaved by ReadCopies;
    promoted_slot_twice: PromotedSlotTwice by ReadCopies;
    collapse_in_two_transactions: CollapseInTwoTransactions by Shifts, FirmwareShifts;
    shifted_pages_not_fenced: ShiftedPagesNotFenced by Shifts, FirmwareShifts;
    collapsed_blocks_kept: CollapsedBlocksKept by Shifts, FirmwareShifts;
    attributes_not_fenced: AttributesNotFenced by Attributes, FirmwareAttributes;
    attributes_in_place: AttributesInPlace by Attributes, FirmwareAttributes;
    attributes_kept: AttributesKept by AttributeSpace;
    attributes_not_marked: AttributesNotMarked by AttributeSpace;
    map_grows_in_place: MapGrowsInPlace by Growth;
    grown_before_maps: GrownBeforeMaps by Growth;
    sr3_inodes_not_copied: InodesNotCopied by Shrink;
    sr4_shrunk_unmoved: ShrunkUnmoved by Shrink;
    on3_map_units_not_taken: MapUnitsNotTaken by GrowthInUse;
    on4_grown_unwritten: GrownUnwritten by GrowthInUse;
}
