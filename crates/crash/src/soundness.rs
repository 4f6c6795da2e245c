//! Properties of every sound file system: `tandemfs_check` finds nothing, the counted space equals the space that files use, the file
//! system works, and it can be emptied and filled again.

use std::collections::HashSet;
use std::sync::Arc;

use tandemfs_check::{CheckOptions, Counts, Finding, Severity, check};
use tandemfs_device::Drive;
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, SECTOR_BYTES};
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, SetExtendedAttribute, Space, WriteOptions};

use crate::harness::{Harness, Setting, mount};
use crate::memory_device::{Event, MemoryDevice};
use crate::model::Model;
use crate::random::fill;
use crate::tree::{Tree, content};

/// `tandemfs_check` finds nothing, not even a warning. Right after a cut, one copy of the superblock may be torn or older: the next
/// mount writes it anew. Returns what was counted.
///
/// # Errors
/// Its first findings.
pub fn check_device(device: &MemoryDevice, after_cut: bool) -> Result<Counts, String> {
    let options = CheckOptions { threads: 1, ..CheckOptions::default() };
    let drive = Drive::new(Arc::new(device.fork()));
    let report = check(&drive, &options, &mut |_| {}).map_err(|error| error.to_string())?;
    let counts =
        |finding: &Finding| !after_cut || finding.severity() == Severity::Error && !matches!(finding, Finding::SuperblockDamaged { .. });
    let findings: Vec<String> =
        report.findings.iter().filter(|located| counts(&located.finding)).take(3).map(|located| format!("{located:?}")).collect();
    if findings.is_empty() { Ok(report.counts) } else { Err(findings.join("; ")) }
}

/// Space as the file system counts it, against what `tandemfs_check` found by walking the tree, and against the names that there are: not a
/// sector, a line or an inode more or less. Nothing is held open.
///
/// # Errors
/// What differs.
pub fn compare_space(space: &Space, counts: &Counts, tree: &Tree) -> Result<(), String> {
    let used = space.block.total_bytes - space.block.free_bytes;
    let inodes: HashSet<&[u8]> = tree.0.values().map(|entry| entry.same_as.as_slice()).collect();
    for (what, found, expected) in [
        ("bytes of sectors in use", used, counts.sectors * SECTOR_BYTES as u64),
        ("bytes of extents in the memory zone", space.memory.extent_bytes, counts.pages * SECTOR_BYTES as u64),
        ("bytes of data logs", space.memory.data_log_bytes, counts.log_slot_bytes),
        ("inodes in use", space.inodes_used, counts.inodes),
        ("inodes with names", counts.inodes, inodes.len() as u64),
    ] {
        if found != expected {
            return Err(format!("{what}: {found}, should be {expected}; {space:?}, {counts:?}"));
        }
    }
    Ok(())
}

/// A read-only mount shows the same tree and writes nothing, whatever there is to recover.
///
/// # Errors
/// What differs, or was written.
pub fn reads_only(device: &MemoryDevice, setting: &Setting, tree: &Tree) -> Result<(), String> {
    let device = device.fork();
    device.start_recording();
    let fs = mount(&device, &MountOptions { read_only: true, ..setting.mount.clone() }).map_err(|what| format!("read-only {what}"))?;
    if let Some(difference) = Tree::read(&fs)?.difference(tree) {
        return Err(format!("on a read-only mount: {difference}"));
    }
    fs.unmount().map_err(|error| format!("read-only unmount: {error}"))?;
    // A recovery of the drive may discard uncommitted lines; that is not a write of the file system.
    let changed =
        |event: &Event| !matches!(event, Event::Fence | Event::FlushLines { .. } | Event::FlushBlocks | Event::Recover | Event::Call(_));
    match device.stop_recording().into_iter().find(changed) {
        None => Ok(()),
        Some(event) => Err(format!("a read-only mount wrote: {event:.80?}")),
    }
}

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// The file system still works: creates, writes, reads and removes, as far as there is space.
///
/// # Errors
/// What does not work.
pub fn works(fs: &FileSystem, tree: &Tree) -> Result<(), String> {
    let what = |error: Error| format!("it does not work any more: {error}");
    let mut bytes = fill(77, 70_000);
    let name = b"made after recovery";
    let inode = match fs.create(InodeNumber::ROOT, name, &file()) {
        Ok(made) => made.inode,
        Err(Error::NoSpace { .. }) => return Ok(()),
        Err(error) => return Err(what(error)),
    };
    for (offset, length) in [(0, 100), (100, 300), (5000, 64_900), (4090, 4096)] {
        match fs.write(inode, offset as u64, &bytes[offset..offset + length], WriteOptions::default()) {
            Ok(done) if done == length => {}
            Ok(done) => return Err(format!("it does not work any more: {done} B of {length} written")),
            Err(Error::NoSpace { .. }) => bytes.clear(),
            Err(error) => return Err(what(error)),
        }
        if bytes.is_empty() {
            break;
        }
    }
    if !bytes.is_empty() {
        bytes.truncate(69_900);
        bytes[400..4090].fill(0);
        if content(fs, inode).map_err(what)? != bytes {
            return Err("what was written after recovery reads differently".into());
        }
    }
    fs.unlink(InodeNumber::ROOT, name).map_err(what)?;
    match Tree::read(fs)?.difference(tree) {
        None => Ok(()),
        Some(difference) => Err(format!("work after recovery changed something else: {difference}")),
    }
}

/// Whole blocks that a file takes until the device is full. The file stays.
///
/// # Errors
/// Any error but a full zone, and a write that was cut short.
pub fn fill_with_blocks(fs: &FileSystem, name: &[u8]) -> Result<u64, String> {
    let block_bytes = u64::from(fs.superblock().geometry.block_bytes());
    let what = |error: Error| format!("filling the device: {error}");
    let inode = fs.create(InodeNumber::ROOT, name, &file()).map_err(what)?.inode;
    for block in 0.. {
        match fs.write(inode, block * block_bytes, &fill(block, block_bytes as usize), WriteOptions::default()) {
            Ok(done) if done as u64 == block_bytes => {}
            Ok(done) => return Err(format!("filling the device: {done} B of {block_bytes}")),
            Err(Error::NoSpace { .. }) => return Ok(block),
            Err(error) => return Err(what(error)),
        }
    }
    unreachable!("every zone ends")
}

/// The space of an empty file system of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Fresh {
    space: Space,
    blocks: u64,
}

impl Fresh {
    /// Formats one and looks.
    ///
    /// # Errors
    /// Where it cannot be mounted or filled.
    pub fn new(setting: &Setting) -> Result<Self, String> {
        let fs = mount(&setting.format(), &setting.mount)?;
        // A region keeps its units; that of attributes gets its first unit with the first attribute.
        let what = |error: Error| format!("an attribute on an empty file system: {error}");
        let made = fs.create(InodeNumber::ROOT, b"attributed", &file()).map_err(what)?.inode;
        fs.set_extended_attribute(made, b"user.a", b"value", SetExtendedAttribute::default()).map_err(what)?;
        fs.unlink(InodeNumber::ROOT, b"attributed").map_err(what)?;
        let space = fs.space();
        let blocks = fill_with_blocks(&fs, b"fill")?;
        Ok(Self { space, blocks })
    }

    /// Everything can be removed, and then there is as much room as after the format: the same space free, and the same number of blocks
    /// can be written again and read back. The device is not changed.
    ///
    /// # Errors
    /// The missing space.
    pub fn comes_back(&self, device: &MemoryDevice, setting: &Setting) -> Result<(), String> {
        let device = device.fork();
        let mut harness = Harness::new(device.fork(), &setting.mount, Model::default())?;
        harness.remove_everything()?;
        harness.fs.checkpoint().map_err(|error| format!("checkpoint: {error}"))?;
        let of = |space: &Space| (space.block, space.inodes_used, space.memory.data_log_bytes);
        let empty = harness.fs.space();
        if of(&empty) != of(&self.space) {
            return Err(format!("space was lost: {:?} when fresh, {empty:?} when empty again", self.space));
        }
        let blocks = fill_with_blocks(&harness.fs, b"fill")?;
        if blocks < self.blocks {
            return Err(format!("{} blocks could be written when fresh, {blocks} when empty again", self.blocks));
        }
        let read = content(&harness.fs, harness.fs.lookup(InodeNumber::ROOT, b"fill").map_err(|error| error.to_string())?.inode);
        let read = read.map_err(|error| format!("reading what filled the device: {error}"))?;
        let block_bytes = read.len() / blocks.max(1) as usize;
        match (0..).zip(read.chunks(block_bytes.max(1))).find(|(block, bytes)| fill(*block, block_bytes) != *bytes) {
            None => Ok(()),
            Some((block, _)) => Err(format!("block {block} of what filled the device reads differently")),
        }
    }
}
