//! Small valid images of many shapes, created by the file system itself.

use std::sync::OnceLock;

use tandemfs_crash::{Harness, LONG, MemoryDevice, Model, Operation, Setting};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::NewInode;

use Operation::*;

use super::anatomy::Anatomy;

/// An image and its structure.
pub(super) struct Shape {
    #[allow(dead_code, reason = "for whoever reads a failure in a debugger")]
    pub(super) name: &'static str,
    pub(super) anatomy: Anatomy,
}

/// Every type of file and of mapping.
const TREE: &[Operation] = &[
    MakeDirectory("d"),
    MakeDirectory("d/d"),
    MakeDirectory("e"),
    Create("a"),
    Write("a", 0, 300, 1),
    Link("a", "d/a"),
    Create("b"),
    Write("b", 0, 150_000, 2),
    Write("b", 500, 100, 3),
    Write("b", 70_000, 4096, 3),
    Create("c"),
    Write("c", 5000, 20, 4),
    Create("d/b"),
    Write("d/b", 60_000, 10_000, 5),
    Create("d/d/a"),
    Write("d/d/a", 0, 10, 5),
    // A page of records, and pages above it.
    Create("e/a"),
    Write("e/a", 20 << 20, 5000, 6),
    Create("e/b"),
    Write("e/b", 3 << 30, 70_000, 7),
    Write("e/b", 100, 100, 8),
    Symlink("f", 12),
    Symlink("g", 300),
    Symlink("e/f", 4095),
    Create(LONG),
    Scatter("b", 10, 14, 4096, 200, 9),
    CreateMany("e", 0, 40),
    Truncate("c", 5010),
    Create("d/g"),
    SetAttribute("a", "user.a", 44, 30),
    SetAttribute("a", "trusted.c", 0, 31),
    SetAttribute("b", "user.b", 5000, 32),
    SetAttribute("b", "user.a", 1000, 33),
    SetAttribute("f", "trusted.c", 10, 34),
    SetDefaultList("e", 35),
    MakeDirectory("e/e"),
];

/// The state in which an image is left.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Unmounted,
    /// Everything checkpointed, then the power is cut.
    CheckpointedAndCut,
    /// Records above the watermark.
    Cut,
}

/// Changes that stay in the journal, including orphans.
const LATE: &[Operation] = &[
    Hold(0, "b"),
    Unlink("b"),
    Rename("a", "d/z", tandemfs_fs::RenameMode::Replace),
    Write("d/b", 100, 5000, 20),
    Create("late"),
    Append("late", 900, 21),
    UnlinkMany("e", 3, 5),
    Truncate("e/b", 90_000),
];

fn shape(name: &'static str, block_bytes: u32, checksum_kind: ChecksumKind, operations: &[Operation], end: End) -> Shape {
    let mut setting = Setting::small(PersistenceDomain::Gpf, block_bytes);
    setting.format.checksum_kind = checksum_kind;
    name.clone_into(&mut setting.format.label);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).unwrap_or_else(|what| panic!("{name}: {what}"));
    let apply = |harness: &mut Harness, operation: &Operation| {
        if let Err(error) = harness.perform(operation) {
            panic!("{name}: {operation:?}: {error}");
        }
    };
    for operation in operations.iter().flat_map(Operation::parts) {
        apply(&mut harness, &operation);
    }
    if !operations.is_empty() {
        for (file, mode) in [("null", file_type::CHARACTER), ("pipe", file_type::FIFO)] {
            let new = NewInode { mode: mode | 0o666, uid: 0, gid: 0, rdev: 0x103, target: b"" };
            harness.fs.create(InodeNumber::ROOT, file.as_bytes(), &new).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    let done = match end {
        End::Unmounted => harness.fs.unmount(),
        End::CheckpointedAndCut | End::Cut => harness.fs.checkpoint(),
    };
    done.unwrap_or_else(|error| panic!("{name}: {error}"));
    if end == End::Cut {
        for operation in LATE.iter().flat_map(Operation::parts) {
            apply(&mut harness, &operation);
        }
    }
    let device: MemoryDevice = harness.device.fork();
    let anatomy = Anatomy::dissect(device).unwrap_or_else(|what| panic!("{name}: {what}"));
    Shape { name, anatomy }
}

/// All shapes, created once per process.
pub(super) fn all() -> &'static [Shape] {
    static SHAPES: OnceLock<Vec<Shape>> = OnceLock::new();
    const CRC: ChecksumKind = ChecksumKind::Crc32c;
    SHAPES.get_or_init(|| {
        vec![
            shape("empty", 64 << 10, CRC, &[], End::Unmounted),
            shape("tree", 64 << 10, CRC, TREE, End::Unmounted),
            shape("tree, cut", 64 << 10, CRC, TREE, End::CheckpointedAndCut),
            shape("tree, journal, orphan", 64 << 10, CRC, TREE, End::Cut),
            shape("small blocks", 4 << 10, CRC, TREE, End::Unmounted),
            shape("small blocks, cut", 4 << 10, CRC, TREE, End::CheckpointedAndCut),
            shape("small blocks, journal, orphan", 4 << 10, CRC, TREE, End::Cut),
            shape("no checksums", 64 << 10, ChecksumKind::None, TREE, End::Unmounted),
            shape("no checksums, journal, orphan", 64 << 10, ChecksumKind::None, TREE, End::Cut),
        ]
    })
}
