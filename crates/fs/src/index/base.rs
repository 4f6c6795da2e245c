//! The base of a file block: what lies below its data logs.
//!
//! [BA1] The base gives the content of a block where no log covers it. Code that treats its cases differently matches [`Base`] in one
//!       place. Which zone its data lies in matters only to what moves bytes or takes space.
//! [BA2] Only [`Base::of_record`] makes a base from a record. It refuses records that are not of a block, and data outside its zone; pages
//!       of the memory zone also where the file system does not have the feature *memory home*.

use tandemfs_format::geometry::Geometry;
use tandemfs_format::mapping::{BlockChecksum, Extent, LeafPointer, Record};
use tandemfs_format::run::Run;
use tandemfs_format::{DataAddress, LineAddress, SECTOR_BYTES};

use crate::cache::{LineStore, Owner, damaged};
use crate::error::Result;

/// The part of a block below its logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// Nothing; reads as zeros.
    Hole,
    /// Allocated space without data ([BL4]); reads as zeros.
    Unwritten(DataRun),
    /// Data.
    Written(DataRun),
    /// Lost: a repair gave it up. As many bytes as a block has.
    Lost(u32),
}

/// Consecutive sectors of the block zone, or pages of the memory zone, that hold a block from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataRun {
    pub(crate) at: DataAddress,
    /// 1 to the number of sectors of a block.
    pub(crate) count: u32,
    /// Their checksums; for unwritten ones the vector reserved for them.
    pub(crate) checksum: BlockChecksum,
    /// They are of the pages with the block's logs over them ([KP2] of `data/kept_place.rs`).
    pub(crate) overlaid: bool,
}

impl Base {
    /// The base in a file's record. Refuses records that are not of a block, and data outside its zone.
    pub(crate) fn of_record(store: &LineStore, owner: Owner, record: &Record) -> Result<Self> {
        let extent = match record {
            Record::Block { extent: Some(extent), .. } => extent,
            Record::Block { extent: None, .. } | Record::SingleLog(_) => return Ok(Self::Hole),
            Record::Lost { height: 0, .. } => return Ok(Self::Lost(store.geometry.block_bytes())),
            Record::Lost { .. } => return Err(damaged(owner, LineAddress::new(0), "state")),
            Record::Memory(address) | Record::Pointer { page: address, .. } | Record::Run(Run { first: address, .. }) => {
                return Err(damaged(owner, *address, "state"));
            }
        };
        if !store.geometry.holds_data(extent.at, extent.count.into()) || u64::from(extent.count) > store.geometry.block_sectors_each() {
            return Err(damaged(owner, LineAddress::new(0), "sector"));
        }
        if extent.at.page().is_some() && !store.has_memory_homes() {
            return Err(damaged(owner, LineAddress::new(0), "zone"));
        }
        let run = DataRun { at: extent.at, count: extent.count, checksum: extent.checksum, overlaid: extent.overlaid };
        Ok(if extent.unwritten { Self::Unwritten(run) } else { Self::Written(run) })
    }

    /// The record of a block with this base and `leaf`.
    pub(super) fn record(self, leaf: Option<LeafPointer>) -> Record {
        let (run, unwritten) = match self {
            Self::Hole => return Record::Block { extent: None, leaf },
            Self::Lost(_) => return Record::Lost { height: 0, leaf },
            Self::Unwritten(run) => (run, true),
            Self::Written(run) => (run, false),
        };
        let extent = Extent { at: run.at, count: run.count, checksum: run.checksum, unwritten, overlaid: run.overlaid };
        Record::Block { extent: Some(extent), leaf }
    }

    /// Its sectors or pages, written or not.
    pub(crate) fn run(&self) -> Option<DataRun> {
        match *self {
            Self::Hole | Self::Lost(_) => None,
            Self::Unwritten(run) | Self::Written(run) => Some(run),
        }
    }

    /// Where it begins, if it has the sectors or pages of a whole block.
    pub(crate) fn whole_run(&self, geometry: &Geometry) -> Option<DataAddress> {
        self.run().filter(|run| u64::from(run.count) == geometry.block_sectors_each()).map(|run| run.at)
    }

    /// Number of its sectors or pages.
    pub(crate) fn sectors(&self) -> u32 {
        self.run().map_or(0, |run| run.count)
    }

    /// Whether it is open: written pages that have no checksums meanwhile ([OG1] of `data/open_pages.rs`).
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Written(DataRun { checksum: BlockChecksum::Open(_), .. }))
    }

    /// Whether its checksums are of its pages with the logs over them.
    pub(crate) fn is_overlaid(&self) -> bool {
        matches!(self, Self::Written(DataRun { overlaid: true, .. }))
    }

    /// Whether its data lies in the memory zone.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.run().is_some_and(|run| run.at.page().is_some())
    }

    /// Bytes from the block's start that have space, written or not.
    pub(crate) fn bytes(&self) -> u32 {
        self.sectors() * SECTOR_BYTES as u32
    }

    /// Bytes from the block's start that hold data, or held it and are lost; bytes after them read as zeros.
    pub(crate) fn data_bytes(&self) -> u32 {
        match self {
            Self::Hole | Self::Unwritten(_) => 0,
            Self::Lost(bytes) => *bytes,
            Self::Written(_) => self.bytes(),
        }
    }

    /// The same space without its data: reads as zeros. Inline checksums are dropped, a vector stays ([BL4]).
    pub(crate) fn emptied(self) -> Self {
        let Some(run) = self.run() else { return Self::Hole };
        let checksum = run.checksum.vector().map_or(BlockChecksum::None, BlockChecksum::Vector);
        Self::Unwritten(DataRun { checksum, overlaid: false, ..run })
    }
}

impl DataRun {
    /// The first line of its checksum vector, if it has one.
    pub(super) fn vector(&self) -> Option<LineAddress> {
        self.checksum.vector()
    }

    /// The same pages, open.
    pub(crate) fn opened(self) -> Self {
        Self { checksum: BlockChecksum::Open(self.checksum.vector()), overlaid: false, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;
    use tandemfs_format::{Corrupt, InodeNumber, Sector};

    use super::*;
    use crate::error::Error;
    use crate::{AllocateMode, FileSystem, FormatOptions, MountOptions, NewInode, SeekTo, SetAttributes, WriteOptions, make_file_system};

    const RUN: DataRun = DataRun {
        at: DataAddress::Sector(Sector::new(16)),
        count: 4,
        checksum: BlockChecksum::Vector(LineAddress::new(640)),
        overlaid: false,
    };

    #[test]
    fn each_base_says_what_it_takes_and_what_it_holds() {
        let inline = DataRun { count: 1, checksum: BlockChecksum::Inline(7), ..RUN };
        let unchecked = DataRun { checksum: BlockChecksum::None, ..inline };
        #[rustfmt::skip]
        let cases = [
            // base, sectors, bytes with space, bytes of data, emptied
            (Base::Hole, 0, 0, 0, Base::Hole),
            (Base::Lost(65_536), 0, 0, 65_536, Base::Hole),
            (Base::Unwritten(RUN), 4, 16_384, 0, Base::Unwritten(RUN)),
            (Base::Written(RUN), 4, 16_384, 16_384, Base::Unwritten(RUN)),
            (Base::Written(inline), 1, 4096, 4096, Base::Unwritten(unchecked)),
        ];
        for (base, sectors, bytes, data_bytes, emptied) in cases {
            assert_eq!(
                (base.sectors(), base.bytes(), base.data_bytes(), base.emptied()),
                (sectors, bytes, data_bytes, emptied),
                "{base:?}"
            );
        }
    }

    #[test]
    fn a_record_names_the_base_and_the_leaf() {
        let leaf = Some(LeafPointer { address: LineAddress::new(64), class: 1 });
        let extent = |unwritten| Some(Extent { at: RUN.at, count: RUN.count, checksum: RUN.checksum, unwritten, overlaid: false });
        assert_eq!(Base::Hole.record(leaf), Record::Block { extent: None, leaf });
        assert_eq!(Base::Lost(65_536).record(leaf), Record::Lost { height: 0, leaf });
        assert_eq!(Base::Unwritten(RUN).record(None), Record::Block { extent: extent(true), leaf: None });
        assert_eq!(Base::Written(RUN).record(leaf), Record::Block { extent: extent(false), leaf });
    }

    /// Records of state *memory* are of directories only ([BA2]).
    #[test]
    fn a_record_of_memory_is_damage_of_a_file() {
        let drive = Drive::new(Arc::new(MemoryDevice::new(16 << 20, 16 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
        fs.write(file, 0, &[1; 5000], WriteOptions::default()).expect("written");
        let in_core = fs.inodes.get(&fs.volume, file).expect("there");
        let address = LineAddress::new(64 * 100);
        in_core.state.write_waiting().inode.root = Record::Memory(address).encode().to_bytes();
        let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
        let punch = AllocateMode::Punch;
        let give = AllocateMode::Allocate { keep_size: true };
        let results = [
            ("read", fs.read(file, 0, &mut [0; 100]).map(drop)),
            ("write", fs.write(file, 0, &[2; 100], WriteOptions::default()).map(drop)),
            ("write of a block", fs.write(file, 0, &[2; 65_536], WriteOptions::default()).map(drop)),
            ("seek", fs.seek(file, 0, SeekTo::Data).map(drop)),
            ("space", fs.needs_space(file, 0, 100).map(drop)),
            ("punch", fs.allocate(file, 0, 65_536, punch)),
            ("punch a part", fs.allocate(file, 0, 100, punch)),
            ("allocate", fs.allocate(file, 0, 65_536, give)),
            ("truncate", fs.set_attributes(file, &size(100)).map(drop)),
        ];
        for (what, result) in results {
            let Err(Error::Damaged { inode, source: Corrupt::Field { address: at, field, .. } }) = result else {
                panic!("{what}: {result:?}")
            };
            assert_eq!((inode, at, field), (file, address, "state"), "{what}");
        }
        fs.set_attributes(file, &size(0)).expect("a damaged file can be emptied");
    }
}
