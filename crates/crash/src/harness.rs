//! A file system and its model: every operation is applied to both, and both must return the same.

use std::sync::Arc;

use tandemfs_device::{BlockRequest, Device, Drive, PersistenceDomain, Structure};
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress, SECTOR_BYTES, Sector};
use tandemfs_fs::{
    ALIGNED_ATTRIBUTE, AllocateMode, Engine, Error, FileSystem, FormatOptions, HOME_ATTRIBUTE, Home, Kept, MountOptions, NewInode,
    ReadOptions, RenameMode, SeekTo, SetAttributes, SetExtendedAttribute, SetTime, WriteOptions, make_file_system, read_superblock,
};
use zerocopy::IntoBytes;

use crate::memory_device::{MemoryDevice, Recorded};
use crate::model::{DEFAULT_LIST, Model, Refusal, default_list, link_target};
use crate::operation::{Operation, SLOTS};
use crate::random::{Random, fill};
use crate::states::Tracker;
use crate::tree::{Kind, Tree, content};

/// Pages of a kernel's page cache.
const CACHE_PAGE_BYTES: u64 = 4096;

/// Sizes and options of a file system under test.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Memory zone in bytes.
    pub memory_bytes: u64,
    /// Block zone in bytes.
    pub block_zone_bytes: u64,
    /// Domain of the device.
    pub domain: PersistenceDomain,
    /// How to format.
    pub format: FormatOptions,
    /// How to mount.
    pub mount: MountOptions,
    /// Writes come as a kernel's write-back cache sends them (relaxed mode): whole pages, times left alone, times by themselves after them.
    pub write_back_cache: bool,
    /// The drive has firmware: overlapping windows, and transactions.
    pub has_firmware: bool,
    /// All files have the memory zone as their home.
    pub has_memory_homes: bool,
}

impl Setting {
    /// The smallest zones.
    pub fn small(domain: PersistenceDomain, block_bytes: u32) -> Self {
        Self {
            memory_bytes: 16 << 20,
            block_zone_bytes: 4 << 20,
            domain,
            format: FormatOptions { block_bytes, ..FormatOptions::default() },
            mount: MountOptions { memory_bytes: 4 << 20, ..MountOptions::default() },
            write_back_cache: false,
            has_firmware: false,
            has_memory_homes: false,
        }
    }

    /// The same with all files in the memory zone, which is large enough for them.
    pub fn with_memory_homes(self) -> Self {
        Self { memory_bytes: self.memory_bytes + (16 << 20), has_memory_homes: true, ..self }
    }

    /// The same without a block zone: all files lie in the memory zone.
    pub fn without_blocks(self) -> Self {
        Self { block_zone_bytes: 0, ..self.with_memory_homes() }
    }

    /// Space that files may try to fill.
    pub fn room_bytes(&self) -> u64 {
        if self.block_zone_bytes > 0 { self.block_zone_bytes } else { self.memory_bytes / 2 }
    }

    /// The same on a drive with firmware, whose transactions serve the file system.
    pub fn with_firmware(self) -> Self {
        Self { has_firmware: true, ..self }
    }

    /// A drive with firmware that has transactions, and a file system that keeps its journal all the same.
    pub fn with_idle_firmware(self) -> Self {
        let mount = MountOptions { engine: Engine::Journal, ..self.mount };
        Self { has_firmware: true, mount, ..self }
    }

    /// Whether transactions are the drive's.
    pub fn commits_on_drive(&self) -> bool {
        self.has_firmware && self.mount.engine != Engine::Journal
    }

    /// How the same image may be mounted next: engines may alternate.
    pub fn mount_again(&self, random: &mut Random) -> MountOptions {
        let engine = if self.has_firmware { *random.pick(&[Engine::Journal, Engine::Firmware]) } else { self.mount.engine };
        MountOptions { engine, ..self.mount.clone() }
    }

    /// A device over contents that others may share.
    pub fn over(&self, base: Arc<Recorded>) -> MemoryDevice {
        MemoryDevice::over(base, self.domain).given_firmware(self.has_firmware)
    }

    /// The same in relaxed mode.
    pub fn relaxed(self) -> Self {
        Self { write_back_cache: true, ..self }
    }

    /// A formatted device.
    ///
    /// # Panics
    /// If it cannot be formatted: the setting is wrong.
    pub fn format(&self) -> MemoryDevice {
        let device = MemoryDevice::new(self.memory_bytes, self.block_zone_bytes, self.domain).given_firmware(self.has_firmware);
        if let Err(error) = make_file_system(&Drive::new(Arc::new(device.clone())), &self.format) {
            panic!("{self:?}: {error}");
        }
        if self.has_memory_homes
            && let Err(what) = self.settle_in_memory(&device)
        {
            panic!("{self:?}: {what}");
        }
        device
    }

    /// Makes the memory zone the home of the root directory, so of everything.
    fn settle_in_memory(&self, device: &MemoryDevice) -> Result<(), String> {
        let fs = mount(device, &self.mount)?;
        fs.set_home(InodeNumber::ROOT, Home::Memory).and_then(|()| fs.unmount()).map_err(|error| error.to_string())
    }

    /// A formatted device with these features that a build must know to write: with fewer than mkfs sets, as an earlier build made it.
    ///
    /// # Panics
    /// Where it cannot be formatted.
    pub fn format_with(&self, ro_compat: u64) -> MemoryDevice {
        let device = self.format();
        let drive = Drive::new(Arc::new(device.clone()));
        let superblock = Superblock { ro_compat, ..read_superblock(&drive).expect("it was formatted") };
        for offset in SUPERBLOCK_OFFSETS {
            let address = LineAddress::new(offset / LINE_BYTES as u64);
            drop(drive.persist(Structure::Superblock, address, superblock.encode().as_bytes()).expect("a memory device stores"));
        }
        let mut sector = vec![0; SECTOR_BYTES];
        sector[..size_of::<BlockIdentity>()].copy_from_slice(BlockIdentity::of(&superblock).as_bytes());
        let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&sector).into() }];
        drop(drive.transfer(Structure::Superblock, &mut requests, &mut || {}).expect("a memory device writes"));
        device
    }
}

/// A file system, its model, and the device below.
pub struct Harness {
    /// The device.
    pub device: MemoryDevice,
    /// The file system; always there between operations.
    pub fs: FileSystem,
    /// The model.
    pub model: Model,
    /// Number of operations that found a full zone.
    pub refused_for_space: u64,
    /// Number of those that were overwrites of at most two blocks, which must succeed by RULES R14.
    pub overwrites_refused: u64,
    mount: MountOptions,
    write_back_cache: bool,
    held: [Option<InodeNumber>; SLOTS],
    tracker: Option<(Tracker, Random)>,
}

/// Mounts a device.
///
/// # Errors
/// A sentence.
pub fn mount(device: &MemoryDevice, options: &MountOptions) -> Result<FileSystem, String> {
    mount_device(Arc::new(device.clone()), options).map_err(|error| format!("mount: {error}"))
}

/// Mounts any device.
///
/// # Errors
/// Those of [`FileSystem::mount`].
pub fn mount_device(device: Arc<dyn Device>, options: &MountOptions) -> Result<FileSystem, Error> {
    FileSystem::mount(Drive::new(device), options)
}

impl Harness {
    /// Mounts a device whose contents equal the model.
    ///
    /// # Errors
    /// A sentence.
    pub fn new(device: MemoryDevice, options: &MountOptions, model: Model) -> Result<Self, String> {
        let fs = mount(&device, options)?;
        Ok(Self::over(device, fs, options, model))
    }

    /// Takes a file system that is mounted already, perhaps through another device over `device`.
    pub fn over(device: MemoryDevice, fs: FileSystem, options: &MountOptions, model: Model) -> Self {
        let home = fs.home(InodeNumber::ROOT).unwrap_or_default();
        let model = model.with_blocks_of(fs.superblock().geometry.block_bytes()).with_home_of_root(home);
        Self {
            device,
            fs,
            model,
            refused_for_space: 0,
            overwrites_refused: 0,
            mount: options.clone(),
            write_back_cache: false,
            held: [None; SLOTS],
            tracker: None,
        }
    }

    /// Writes come as a kernel's write-back cache sends them, from now on.
    pub fn with_write_back_cache(mut self, on: bool) -> Self {
        self.write_back_cache = on;
        self
    }

    /// Puts a file system that is mounted on the same device in another way in the place of this one's.
    pub fn exchange(&mut self, fs: FileSystem) {
        self.fs = fs;
    }

    /// Tracks durable state from now on, so that [`Operation::Crash`] can lose undurable state. The seed decides which.
    pub fn follow(&mut self, seed: u64) {
        self.device.start_recording();
        self.tracker = Some((Tracker::new(&self.device), Random::new(seed)));
    }

    fn resolve(&self, path: &str) -> Result<InodeNumber, Error> {
        let mut at = InodeNumber::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = self.fs.lookup(at, part.as_bytes())?.inode;
        }
        Ok(at)
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(InodeNumber, &'p [u8]), Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.resolve(parent)?, name.as_bytes()))
    }

    fn create(&self, path: &str, mode: u16, target: &[u8]) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        self.fs.create(parent, name, &NewInode { mode, uid: 1, gid: 2, rdev: 0, target }).map(drop)
    }

    /// A write as it arrives in the mode. Returns the number of bytes written.
    fn write(&self, inode: InodeNumber, offset: u64, data: &[u8]) -> Result<u64, Error> {
        if !self.write_back_cache || data.is_empty() {
            let options = WriteOptions { kept: true, ..WriteOptions::default() };
            return self.fs.write(inode, offset, data, options).map(|done| done as u64);
        }
        let found = self.fs.attributes(inode)?;
        if found.mode & file_type::MASK != file_type::REGULAR {
            return self.fs.write(inode, offset, data, WriteOptions::default()).map(|done| done as u64); // refused as it is
        }
        let end = offset + data.len() as u64;
        let start = offset / CACHE_PAGE_BYTES * CACHE_PAGE_BYTES;
        let mut pages = vec![0; (end.next_multiple_of(CACHE_PAGE_BYTES).min(found.size.max(end)) - start) as usize];
        self.fs.read_with(inode, start, &mut pages, ReadOptions { kept: Kept::ToCompare })?;
        pages[(offset - start) as usize..(end - start) as usize].copy_from_slice(data);
        let options = WriteOptions { keep_times: true, compare: true, ..WriteOptions::default() };
        let done = self.fs.write(inode, start, &pages, options)? as u64;
        let now = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
        self.fs.set_attributes(inode, &now)?;
        Ok(done.saturating_sub(offset - start).min(data.len() as u64))
    }

    /// Does an operation on the file system alone. A write may be short: the bytes written are returned.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn perform(&mut self, operation: &Operation) -> Result<u64, Error> {
        let done = match *operation {
            Operation::Create(path) => self.create(path, file_type::REGULAR | 0o644, b""),
            Operation::MakeDirectory(path) => self.create(path, file_type::DIRECTORY | 0o755, b""),
            Operation::Symlink(path, length) => self.create(path, file_type::SYMLINK | 0o777, &link_target(length)),
            Operation::Link(from, to) => {
                let inode = self.resolve(from)?;
                let (parent, name) = self.parent(to)?;
                self.fs.link(inode, parent, name).map(drop)
            }
            Operation::Unlink(path) => {
                let (parent, name) = self.parent(path)?;
                self.fs.unlink(parent, name)
            }
            Operation::RemoveDirectory(path) => {
                let (parent, name) = self.parent(path)?;
                self.fs.remove_directory(parent, name)
            }
            Operation::Rename(from, to, mode) => {
                let (from, to) = (self.parent(from)?, self.parent(to)?);
                self.fs.rename(from.0, from.1, to.0, to.1, mode)
            }
            Operation::Write(path, offset, length, seed) => {
                let inode = self.resolve(path)?;
                return self.write(inode, offset, &fill(seed, length as usize));
            }
            Operation::Append(path, length, seed) if self.write_back_cache => {
                let inode = self.resolve(path)?;
                let size = self.fs.attributes(inode)?.size; // the cache knows the size, so nothing is appended below it
                return self.write(inode, size, &fill(seed, length as usize));
            }
            Operation::Append(path, length, seed) => {
                let inode = self.resolve(path)?;
                let options = WriteOptions { append: true, kept: true, ..WriteOptions::default() };
                return self.fs.write(inode, 0, &fill(seed, length as usize), options).map(|done| done as u64);
            }
            Operation::Truncate(path, size) => {
                let inode = self.resolve(path)?;
                self.fs.set_attributes(inode, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop)
            }
            Operation::Allocate(path, offset, length, keep_size) => {
                self.fs.allocate(self.resolve(path)?, offset, length, AllocateMode::Allocate { keep_size })
            }
            Operation::Punch(path, offset, length) => self.fs.allocate(self.resolve(path)?, offset, length, AllocateMode::Punch),
            Operation::Zero(path, offset, length, keep_size) => {
                self.fs.allocate(self.resolve(path)?, offset, length, AllocateMode::Zero { keep_size })
            }
            Operation::Collapse(path, offset, length) => self.fs.allocate(self.resolve(path)?, offset, length, AllocateMode::Collapse),
            Operation::Insert(path, offset, length) => self.fs.allocate(self.resolve(path)?, offset, length, AllocateMode::Insert),
            Operation::CopyRange(from, from_offset, to, to_offset, length) => {
                let (from, to) = (self.resolve(from)?, self.resolve(to)?);
                return self.fs.copy_range((from, from_offset), (to, to_offset), length, WriteOptions::default());
            }
            Operation::SetAttribute(path, name, length, seed) => {
                let value = fill(seed, length as usize);
                self.fs.set_extended_attribute(self.resolve(path)?, name.as_bytes(), &value, SetExtendedAttribute::default())
            }
            Operation::RemoveAttribute(path, name) => self.fs.remove_extended_attribute(self.resolve(path)?, name.as_bytes()),
            Operation::SetDefaultList(path, user) => {
                let how = SetExtendedAttribute::default();
                self.fs.set_extended_attribute(self.resolve(path)?, DEFAULT_LIST, &default_list(user), how)
            }
            Operation::SetHome(path, home) => {
                let inode = self.resolve(path)?;
                set_home(&self.fs, inode, home)
            }
            Operation::SetAligned(path, is_aligned) => set_aligned(&self.fs, self.resolve(path)?, is_aligned),
            Operation::MoveHomes => move_homes(&self.fs),
            Operation::Sync => self.fs.sync(),
            Operation::Checkpoint => self.fs.checkpoint(),
            Operation::WriteBack => self.fs.write_back().map(drop),
            Operation::WriteBackAll => self.fs.write_back_all().map(drop),
            Operation::Discard => {
                self.fs.discard_freed();
                Ok(())
            }
            Operation::Hold(slot, path) => {
                let inode = self.resolve(path)?;
                let found = self.fs.attributes(inode)?;
                if found.mode & file_type::MASK != file_type::REGULAR {
                    return Err(Error::InvalidArgument("only files are held here"));
                }
                if self.held[slot].is_some() {
                    return Err(Error::Exists);
                }
                self.fs.remember(inode, found.generation, 1)?;
                self.held[slot] = Some(inode);
                Ok(())
            }
            Operation::CreateNameless(slot, path) => {
                let parent = self.resolve(path)?;
                if self.held[slot].is_some() {
                    return Err(Error::Exists);
                }
                let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 1, gid: 2, rdev: 0, target: b"" };
                self.held[slot] = Some(self.fs.create_nameless(parent, &new, 0)?.inode);
                Ok(())
            }
            Operation::LinkHeld(slot, path) => {
                let inode = self.held[slot].ok_or(Error::NotFound)?;
                let (parent, name) = self.parent(path)?;
                self.fs.link(inode, parent, name).map(drop)
            }
            Operation::LeaveWhiteout(from, to) => {
                let (from, to) = (self.parent(from)?, self.parent(to)?);
                self.fs.rename_leaving_whiteout(from, to, RenameMode::Replace, (1, 2))
            }
            Operation::WriteHeld(slot, offset, length, seed) => {
                let inode = self.held[slot].ok_or(Error::NotFound)?;
                return self.write(inode, offset, &fill(seed, length as usize));
            }
            Operation::Forget(slot) => {
                if let Some(inode) = self.held[slot].take() {
                    self.fs.forget(inode, 1);
                }
                Ok(())
            }
            Operation::Remount | Operation::Crash | Operation::Scatter(..) | Operation::CreateMany(..) | Operation::UnlinkMany(..) => {
                unreachable!("done by apply")
            }
        };
        done.map(|()| u64::MAX)
    }

    /// Does an operation on both. An error of this function is a disagreement, in a sentence.
    ///
    /// # Errors
    /// The difference between the two.
    pub fn apply(&mut self, operation: &Operation) -> Result<(), String> {
        let fail = |what: String| Err(format!("{operation:?}: {what}"));
        match operation {
            Operation::Remount => {
                if let Err(error) = self.fs.unmount() {
                    return fail(format!("unmount: {error}"));
                }
                self.mount_again(operation, true)?;
            }
            Operation::Crash => {
                if self.tracker.is_some() {
                    self.follow_events();
                    if let Some((tracker, random)) = &mut self.tracker {
                        self.device = tracker.cut(random).device;
                        self.device.start_recording();
                        *tracker = Tracker::new(&self.device);
                    }
                } else {
                    self.device = self.device.fork();
                }
                self.mount_again(operation, false)?;
            }
            Operation::Scatter(..) | Operation::CreateMany(..) | Operation::UnlinkMany(..) => {
                for part in operation.parts() {
                    self.apply(&part)?;
                }
            }
            operation => {
                let is_overwrite = self.model.is_overwrite(operation) && self.blocks_touched(operation) <= 2;
                let wanted = self.model.copied(operation);
                let found = self.perform(operation);
                self.follow_events();
                match found {
                    Ok(done) => {
                        if let Err(refusal) = self.model.apply_piece(operation, done) {
                            return fail(format!("succeeded, but should fail with {refusal:?}"));
                        }
                        self.refused_for_space += u64::from(is_short(operation, done) || wanted.is_ok_and(|wanted| done < wanted));
                    }
                    Err(error) => match Refusal::of(&error) {
                        Some(Refusal::NoSpace) => {
                            self.refused_for_space += 1;
                            self.overwrites_refused += u64::from(is_overwrite);
                            if never_grows(operation) {
                                return fail(format!("gives back what it takes, but failed: {error} (R14); space {:?}", self.fs.space()));
                            }
                            if let Err(refusal) = self.model.clone().apply(operation) {
                                return fail(format!("no space, but should fail with {refusal:?}"));
                            }
                        }
                        refusal => match (refusal, self.model.clone().apply(operation)) {
                            (Some(refusal), Err(expected)) if refusal == expected => {}
                            (_, expected) => return fail(format!("failed: {error}; expected {expected:?}")),
                        },
                    },
                }
            }
        }
        Ok(())
    }

    /// Blocks of the file in which a write changes something. The transient room serves a few of them at a time.
    fn blocks_touched(&self, operation: &Operation) -> u64 {
        let block = u64::from(self.fs.superblock().geometry.block_bytes());
        match *operation {
            Operation::Write(_, offset, length, _) | Operation::WriteHeld(_, offset, length, _) => {
                (offset + u64::from(length)).div_ceil(block) - offset / block
            }
            _ => 0,
        }
    }

    fn follow_events(&mut self) {
        if let Some((tracker, _)) = &mut self.tracker {
            for event in self.device.take_events() {
                tracker.apply(&event);
            }
        }
    }

    fn mount_again(&mut self, operation: &Operation, clean: bool) -> Result<(), String> {
        self.held = [None; SLOTS];
        let _nothing = self.model.apply(operation);
        let before = (self.fs.space(), clean);
        self.fs = mount(&self.device, &self.mount)?;
        self.follow_events();
        if clean {
            if !self.fs.recovery().clean {
                return Err("the maps of a clean unmount were not taken".into());
            }
            // Unmounting may remove orphans and free pending space, but never allocates.
            let (now, before) = (self.fs.space(), before.0);
            if now.block.free_bytes < before.block.free_bytes || now.memory.data_log_bytes > before.memory.data_log_bytes {
                return Err(format!("space was lost over a clean unmount: {before:?}, then {now:?}"));
            }
        }
        Ok(())
    }

    /// Compares everything that can be seen.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self) -> Result<(), String> {
        let found = Tree::read(&self.fs)?;
        if let Some(difference) = found.difference(&self.model.tree()) {
            return Err(difference);
        }
        for (path, entry) in &found.0 {
            if let Kind::File(bytes) = &entry.kind {
                let path = String::from_utf8_lossy(path);
                let inode = self.resolve(&path).map_err(|error| format!("'{path}': {error}"))?;
                compare_holes(&self.fs, inode, bytes).map_err(|what| format!("'{path}': {what}"))?;
            }
        }
        for slot in 0..SLOTS {
            match (self.held[slot], self.model.held(slot)) {
                (Some(inode), Some((expected, nlink))) => {
                    let found = content(&self.fs, inode).map_err(|error| format!("held file {slot}: {error}"))?;
                    if found != *expected {
                        return Err(format!("held file {slot} differs ({} B, expected {} B)", found.len(), expected.len()));
                    }
                    match self.fs.attributes(inode) {
                        Ok(found) if found.nlink == nlink => {}
                        other => return Err(format!("held file {slot} has {nlink} names, found {other:?}")),
                    }
                }
                (None, None) => {}
                (found, expected) => return Err(format!("held file {slot}: {found:?}, expected {expected:?}")),
            }
        }
        Ok(())
    }

    /// Compares space with what a rebuild after a crash finds, and with what a clean mount takes over.
    ///
    /// # Errors
    /// What differs.
    pub fn compare_space(&mut self) -> Result<(), String> {
        for slot in 0..SLOTS {
            self.apply(&Operation::Forget(slot))?;
        }
        self.apply(&Operation::Checkpoint)?;
        self.fs.drop_promoted(); // space is compared to the byte, and a rebuild knows no copies
        let crashed = mount(&self.device.fork(), &self.mount)?;
        let (live, rebuilt) = (self.fs.space(), crashed.space());
        if live != rebuilt {
            return Err(format!("space before a crash {live:?}, rebuilt after it {rebuilt:?}"));
        }
        self.apply(&Operation::Remount)?;
        let taken_over = self.fs.space();
        if live != taken_over {
            return Err(format!("space before an unmount {live:?}, after it {taken_over:?}"));
        }
        Ok(())
    }

    /// Removes everything.
    ///
    /// # Errors
    /// Where a removal fails or the root is not empty after it.
    pub fn remove_everything(&mut self) -> Result<(), String> {
        for slot in 0..SLOTS {
            self.apply(&Operation::Forget(slot))?;
        }
        let tree = Tree::read(&self.fs)?;
        for (path, entry) in tree.0.iter().rev().filter(|(path, _)| !path.is_empty()) {
            let text = String::from_utf8_lossy(path).into_owned();
            let removed = self.parent(&text).and_then(|(parent, name)| match entry.kind {
                Kind::Directory => self.fs.remove_directory(parent, name),
                _ => self.fs.unlink(parent, name),
            });
            removed.map_err(|error| format!("removing '{text}': {error}"))?;
        }
        let home = self.fs.home(InodeNumber::ROOT).map_err(|error| format!("home of the root: {error}"))?;
        self.model = Model::default().with_home_of_root(home);
        self.follow_events();
        self.compare()
    }
}

/// Holes and data take turns up to the end of the file, and holes read as zeros.
fn compare_holes(fs: &FileSystem, inode: InodeNumber, bytes: &[u8]) -> Result<(), String> {
    let size = bytes.len() as u64;
    let seek = |offset, to| fs.seek(inode, offset, to).map_err(|error| format!("seeking {to:?} from {offset}: {error}"));
    let mut at = 0;
    while at < size {
        let data = seek(at, SeekTo::Data)?.unwrap_or(size);
        if data < at || data > size || bytes[at as usize..data as usize].iter().any(|byte| *byte != 0) {
            return Err(format!("bytes {at}..{data} should be a hole"));
        }
        if data == size {
            break;
        }
        at = match seek(data, SeekTo::Hole)? {
            Some(hole) if hole > data && hole <= size => hole,
            other => return Err(format!("data from {data} ends at {other:?}")),
        };
    }
    match (seek(size, SeekTo::Data)?, seek(size, SeekTo::Hole)?) {
        (None, None) => Ok(()),
        other => Err(format!("behind the end there is {other:?}")),
    }
}

fn is_short(operation: &Operation, done: u64) -> bool {
    match *operation {
        Operation::Write(_, _, length, _) | Operation::Append(_, length, _) | Operation::WriteHeld(_, _, length, _) => done < length.into(),
        _ => false,
    }
}

/// Sets a home by its attribute.
pub(crate) fn set_home(fs: &FileSystem, inode: InodeNumber, home: Home) -> Result<(), Error> {
    fs.enable_homes()?;
    fs.set_extended_attribute(inode, HOME_ATTRIBUTE, home.name().as_bytes(), SetExtendedAttribute::default())
}

/// Sets the hint *aligned* by its attribute.
pub(crate) fn set_aligned(fs: &FileSystem, inode: InodeNumber, is_aligned: bool) -> Result<(), Error> {
    fs.enable_homes()?;
    let value: &[u8] = if is_aligned { b"yes" } else { b"no" };
    fs.set_extended_attribute(inode, ALIGNED_ATTRIBUTE, value, SetExtendedAttribute::default())
}

/// Moves everything that can move to its home.
pub(crate) fn move_homes(fs: &FileSystem) -> Result<(), Error> {
    fs.retry_moves();
    while fs.move_homes()? {}
    Ok(())
}

/// Operations that must work on a full device (RULES R14).
fn never_grows(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Unlink(_)
            | Operation::RemoveDirectory(_)
            | Operation::Punch(..)
            | Operation::RemoveAttribute(..)
            | Operation::MoveHomes
            | Operation::Sync
            | Operation::Checkpoint
            | Operation::WriteBack
            | Operation::WriteBackAll
            | Operation::Discard
            | Operation::Forget(_)
            | Operation::Hold(..)
    )
}
