//! What a device contains before it is formatted: every signature that libblkid knows, as wipefs(8) of util-linux finds them, and halves of
//! a TandemFS at the wrong place.
//!
//! wipefs reads block devices and files. A zone can be neither: a devdax, a region of an image, a drive with firmware. For those it gets a
//! sparse file in host memory, as long as the zone, with a copy of both ends of the zone. Signatures, backup signatures too, are there.
//!
//! Without wipefs nothing but a blank device counts as free: [`BLANK_BYTES`] at both ends of each zone have to be zeros, and `--force`
//! makes them zeros.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tandemfs_device::{BlockRequest, DeviceError, Drive, Structure};
use tandemfs_emulator::{DeviceSpec, HEADER_COPY_OFFSET};
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{LINE_BYTES, LineAddress, SECTOR_BYTES, Sector};

use crate::failure::Failure;

/// Bytes at the start of a zone that are searched: the second header of LUKS2 begins before this.
const HEAD_BYTES: u64 = 4 << 20;
/// Bytes at the end of a zone that are searched: labels of ZFS, RAID members, the second partition table of GPT.
const TAIL_BYTES: u64 = 2 << 20;
/// Bytes at both ends of a zone that have to be blank if wipefs is not installed.
const BLANK_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: u64 = 64 << 10;
/// Rounds of wiping: a signature can hide another one, as a file system the RAID member below it.
const ROUNDS_MAX: usize = 32;
/// Size of a superblock copy of TandemFS.
const SUPERBLOCK_BYTES: u64 = 1024;

/// Something that a device contains.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Signature {
    offset: u64,
    length: u64,
    what: String,
}

/// A part of a device that can contain signatures of its own.
struct Area<'d> {
    /// How messages call it, as a beginning of "… contains a btrfs file system".
    name: String,
    bytes: u64,
    access: Access<'d>,
    /// The block device, if it is one: libblkid asks it for the size of its sectors.
    block_device: Option<PathBuf>,
}

enum Access<'d> {
    Memory(&'d Drive),
    Blocks(&'d Drive),
    /// An image's file between its header and its first zone.
    File(File),
}

/// The parts of an open device.
pub struct Areas<'d> {
    areas: Vec<Area<'d>>,
    wipefs: Option<PathBuf>,
}

impl<'d> Areas<'d> {
    /// The zones of a device, and the file of an image.
    pub fn of(device: &str, drive: &'d Drive) -> Result<Self, Failure> {
        let description = drive.description();
        let area = |name: String, bytes, access, path: Option<&Path>| {
            let block_device = path.filter(|path| path.metadata().is_ok_and(|found| found.file_type().is_block_device()));
            Area { name, bytes, access, block_device: block_device.map(Path::to_owned) }
        };
        let (memory_bytes, block_bytes) = (description.memory_bytes, description.block_bytes);
        let areas = match device.parse() {
            Ok(DeviceSpec::Pair { memory, block, .. }) => vec![
                area(format!("{}:", memory.display()), memory_bytes, Access::Memory(drive), Some(&memory)),
                area(format!("{}:", block.display()), block_bytes, Access::Blocks(drive), Some(&block)),
            ],
            Ok(DeviceSpec::Memory(memory)) => {
                vec![area(format!("{}:", memory.display()), memory_bytes, Access::Memory(drive), Some(&memory))]
            }
            _ => {
                let file = File::options().read(true).write(true).open(device).map_err(|error| Failure::at(device, error))?;
                let bytes = file.metadata().map_err(|error| Failure::at(device, error))?.len();
                let mut areas = vec![
                    area(format!("{device}:"), bytes, Access::File(file), None),
                    area(format!("{device}: its memory zone"), memory_bytes, Access::Memory(drive), None),
                ];
                if block_bytes > 0 {
                    areas.push(area(format!("{device}: its block zone"), block_bytes, Access::Blocks(drive), None));
                }
                areas
            }
        };
        Ok(Self { areas, wipefs: wipefs() })
    }

    /// Fails if there is something: what and where.
    pub fn refuse_occupied(&self) -> Result<(), Failure> {
        let mut found = Vec::new();
        for area in &self.areas {
            let signatures = area.signatures(self.wipefs.as_deref())?;
            if !signatures.is_empty() {
                found.push(format!("{} contains {}", area.name, Listed(&signatures)));
            }
        }
        match found.len() {
            0 => Ok(()),
            1 => Err(Failure::Failed(format!("{}; use --force to overwrite it", found[0]))),
            _ => Err(Failure::Failed(format!("{}; use --force to overwrite them", found.join("; ")))),
        }
    }

    /// Erases every signature, as `wipefs --all` does.
    pub fn wipe(&self) -> Result<(), Failure> {
        for area in &self.areas {
            let mut rounds = 0;
            loop {
                let signatures = area.signatures(self.wipefs.as_deref())?;
                if signatures.is_empty() {
                    break;
                }
                rounds += 1;
                if rounds > ROUNDS_MAX {
                    return Err(Failure::Failed(format!("{} contains {}, which cannot be erased", area.name, Listed(&signatures))));
                }
                for signature in &signatures {
                    area.zero(signature.offset, signature.length).map_err(Failure::because)?;
                }
            }
        }
        Ok(())
    }
}

/// Where Debian and others have it; the directory is not in the path of ordinary users.
fn wipefs() -> Option<PathBuf> {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&in_path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join("wipefs")).find(|program| program.is_file())
}

impl Area<'_> {
    fn signatures(&self, wipefs: Option<&Path>) -> Result<Vec<Signature>, Failure> {
        let mut found = self.misplaced_half();
        match wipefs {
            Some(program) => found.extend(self.of_wipefs(program)?),
            None => found.extend(self.not_blank()),
        }
        Ok(found)
    }

    /// Both ends, without overlap: offsets and lengths of pieces to read.
    fn ends(&self, head: u64, tail: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (bytes, first, end) = match self.access {
            // The rest of an image's file is its zones, which are searched by themselves.
            // Between the header and its copy.
            Access::File(_) => (self.bytes, SECTOR_BYTES as u64, HEADER_COPY_OFFSET.min(self.bytes)),
            _ => (self.bytes, 0, head.min(self.bytes)),
        };
        let tail = match self.access {
            Access::File(_) => bytes,
            _ => bytes.saturating_sub(tail).max(end) / CHUNK_BYTES * CHUNK_BYTES,
        };
        let pieces = |from: u64, to: u64| {
            (from / CHUNK_BYTES * CHUNK_BYTES..to).step_by(CHUNK_BYTES as usize).map(move |offset| {
                let start = offset.max(from);
                (start, (offset + CHUNK_BYTES).min(to) - start)
            })
        };
        pieces(first, end).chain(pieces(tail.max(end), bytes))
    }

    /// Reads both ends. What the device cannot read counts as blank, as for libblkid.
    fn read_ends(&self, head: u64, tail: u64, each: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        for (offset, length) in self.ends(head, tail) {
            let piece = &mut buffer[..length as usize];
            if self.read(offset, piece).is_ok() && piece.iter().any(|byte| *byte != 0) {
                each(offset, piece)?;
            }
        }
        Ok(())
    }

    fn of_wipefs(&self, program: &Path) -> Result<Vec<Signature>, Failure> {
        let failed = |error: &dyn fmt::Display| Failure::Failed(format!("{} cannot be searched for file systems: {error}", self.name));
        let mut command = Command::new(program);
        command.args(["--no-act", "--json", "--output", "OFFSET,LENGTH,TYPE,USAGE,LABEL"]).env("LC_ALL", "C");
        match &self.block_device {
            Some(path) => command.arg(path).stdin(Stdio::null()),
            None => command.arg("/proc/self/fd/0").stdin(self.copy_of_ends().map_err(|error| failed(&error))?),
        };
        let output = command.output().map_err(|error| failed(&format!("{}: {error}", program.display())))?;
        if !output.status.success() {
            return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
        }
        if output.stdout.iter().all(u8::is_ascii_whitespace) {
            return Ok(Vec::new());
        }
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| failed(&format!("wipefs: {error}")))?;
        let signatures = answer["signatures"].as_array().into_iter().flatten();
        signatures.map(|signature| parse(signature).ok_or_else(|| failed(&format!("wipefs said {signature}")))).collect()
    }

    /// A sparse file in host memory.
    fn copy_of_ends(&self) -> std::io::Result<File> {
        let file = File::from(rustix::fs::memfd_create("zone", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len(self.bytes)?;
        self.read_ends(HEAD_BYTES, TAIL_BYTES, &mut |offset, piece| file.write_all_at(piece, offset))?;
        Ok(file)
    }

    /// Without wipefs: the parts that are not zeros.
    fn not_blank(&self) -> Vec<Signature> {
        let mut found: Vec<Signature> = Vec::new();
        let what = "data (wipefs of util-linux, which would tell what it is, is not installed)";
        let _cannot_fail = self.read_ends(BLANK_BYTES, BLANK_BYTES, &mut |offset, piece| {
            found.push(Signature { offset, length: piece.len() as u64, what: what.into() });
            Ok(())
        });
        found
    }

    /// A memory half in place of the block half, or the other way round.
    fn misplaced_half(&self) -> Vec<Signature> {
        let at = |offset: u64, length: u64, what: String| Signature { offset, length, what };
        match &self.access {
            Access::Memory(_) => {
                let mut sector = vec![0; SECTOR_BYTES];
                let identity = self.read(0, &mut sector).ok().and_then(|()| BlockIdentity::decode(&sector));
                identity
                    .map(|identity| at(0, SECTOR_BYTES as u64, format!("the block half of TandemFS {}", identity.uuid())))
                    .into_iter()
                    .collect()
            }
            Access::Blocks(_) => {
                superblocks(self).map(|(offset, superblock)| at(offset, SUPERBLOCK_BYTES, in_words(&superblock))).collect()
            }
            Access::File(_) => Vec::new(),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        match &self.access {
            Access::Memory(drive) => drive.load(Structure::Superblock, LineAddress::new(offset / LINE_BYTES as u64), into),
            Access::Blocks(drive) => read_sectors(drive, offset, into),
            Access::File(file) => file.read_exact_at(into, offset).map_err(|source| self.file_error("read", offset, into.len(), source)),
        }
    }

    /// Overwrites bytes with zeros, durably.
    fn zero(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let unit = match self.access {
            Access::Memory(_) => LINE_BYTES as u64,
            Access::Blocks(_) => SECTOR_BYTES as u64,
            Access::File(_) => 1,
        };
        let start = offset / unit * unit;
        let end = (offset + length).next_multiple_of(unit).min(self.bytes);
        let mut bytes = vec![0; (end - start) as usize];
        self.read(start, &mut bytes)?;
        bytes[(offset - start) as usize..((offset + length).min(end) - start) as usize].fill(0);
        match &self.access {
            Access::Memory(drive) => drive.persist(Structure::Superblock, LineAddress::new(start / unit), &bytes).map(drop),
            Access::Blocks(drive) => {
                let mut requests = [BlockRequest::Write { sector: Sector::new(start / unit), buffer: (&bytes).into() }];
                let written = drive.transfer(Structure::Superblock, &mut requests, &mut || {})?;
                drive.flush_blocks(written).map(drop)
            }
            Access::File(file) => {
                let written = file.write_all_at(&bytes, start).and_then(|()| file.sync_data());
                written.map_err(|source| self.file_error("write", start, bytes.len(), source))
            }
        }
    }

    fn file_error(&self, operation: &'static str, offset: u64, length: usize, source: std::io::Error) -> DeviceError {
        let device = self.name.trim_end_matches(':').to_owned();
        DeviceError::Block { device, operation, offset, length: length as u64, source }
    }
}

fn read_sectors(drive: &Drive, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
    let sector = Sector::new(offset / SECTOR_BYTES as u64);
    drive.transfer(Structure::Superblock, &mut [BlockRequest::Read { sector, buffer: into.into() }], &mut || {}).map(drop)
}

/// Superblocks in an area, with their offsets.
fn superblocks(area: &Area<'_>) -> impl Iterator<Item = (u64, Superblock)> {
    SUPERBLOCK_OFFSETS.into_iter().filter(|offset| offset + SECTOR_BYTES as u64 <= area.bytes).filter_map(|offset| {
        let mut sector = vec![0; SECTOR_BYTES];
        area.read(offset, &mut sector).ok()?;
        Some((offset, Superblock::decode(&sector[..SUPERBLOCK_BYTES as usize]).ok()?))
    })
}

fn in_words(superblock: &Superblock) -> String {
    match &*superblock.label {
        "" => format!("the memory half of TandemFS {}", superblock.uuid()),
        label => format!("the memory half of TandemFS {} '{}'", superblock.uuid(), label.escape_default()),
    }
}

/// Whether the halves of a pair were named the wrong way round: then what to write. Only where the memory half has no superblock itself.
pub fn swapped(device: &str, drive: &Drive) -> Option<String> {
    let Ok(DeviceSpec::Pair { memory, block, .. }) = device.parse() else { return None };
    let description = drive.description();
    let area = |bytes, access| Area { name: String::new(), bytes, access, block_device: None };
    if superblocks(&area(description.memory_bytes, Access::Memory(drive))).next().is_some() {
        return None;
    }
    let (_, superblock) = superblocks(&area(description.block_bytes, Access::Blocks(drive))).next()?;
    let (memory, block) = (memory.display(), block.display());
    let half = in_words(&superblock);
    Some(format!("{device}: the halves are swapped: {block} is {half}; write memory={block},block={memory}"))
}

fn parse(signature: &Value) -> Option<Signature> {
    let number = |name: &str| match &signature[name] {
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        value => value.as_u64(),
    };
    let text = |name: &str| signature[name].as_str().filter(|text| !text.is_empty());
    let (kind, usage) = (text("type")?, text("usage").unwrap_or_default());
    let what = match (kind, usage) {
        ("swap", _) => "swap space".into(),
        ("LVM2_member", _) => "an LVM physical volume".into(),
        ("linux_raid_member", _) => "a member of a Linux RAID (md)".into(),
        ("crypto_LUKS", _) => "a LUKS volume".into(),
        (_, "filesystem") => format!("{} {kind} file system", article(kind)),
        (_, "raid") => format!("a member of a RAID or volume group ({kind})"),
        (_, "crypto") => format!("an encrypted volume ({kind})"),
        (_, "partition-table") => format!("a partition table ({kind})"),
        _ => format!("'{kind}'"),
    };
    let what = match text("label") {
        Some(label) => format!("{what} '{}'", label.escape_default()),
        None => what,
    };
    Some(Signature { offset: number("offset")?, length: number("length")?, what })
}

/// The names of file systems that begin with the sound of a vowel.
fn article(kind: &str) -> &'static str {
    if kind.starts_with(['a', 'e', 'i', 'o', 'x', 'n', 'A', 'E', 'I', 'O', 'N']) && !kind.starts_with("nilfs") { "an" } else { "a" }
}

/// A list for people: each thing once, at the place of its first signature.
struct Listed<'s>(&'s [Signature]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named: Vec<&str> = Vec::new();
        for signature in self.0 {
            if named.contains(&&*signature.what) {
                continue;
            }
            let separator = if named.is_empty() { "" } else { " and " };
            write!(to, "{separator}{} (at byte {})", signature.what, signature.offset)?;
            named.push(&signature.what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tandemfs_emulator::{CreateOptions, DeviceOptions};

    use super::*;

    fn signature(kind: &str, usage: &str, label: Value) -> Signature {
        parse(&json!({ "offset": "0x438", "length": 2, "type": kind, "usage": usage, "label": label })).expect("a signature")
    }

    #[test]
    fn signatures_have_the_names_that_administrators_know() {
        let ext4 = signature("ext4", "filesystem", json!("mail"));
        assert_eq!(ext4, Signature { offset: 1080, length: 2, what: "an ext4 file system 'mail'".into() });
        for (kind, usage, what) in [
            ("btrfs", "filesystem", "a btrfs file system"),
            ("xfs", "filesystem", "an xfs file system"),
            ("bcachefs", "filesystem", "a bcachefs file system"),
            ("iso9660", "filesystem", "an iso9660 file system"),
            ("gpt", "partition-table", "a partition table (gpt)"),
            ("swap", "other", "swap space"),
            ("LVM2_member", "raid", "an LVM physical volume"),
            ("new", "", "'new'"),
        ] {
            assert_eq!(signature(kind, usage, Value::Null).what, what);
        }
        assert_eq!(Listed(&[ext4.clone(), ext4]).to_string(), "an ext4 file system 'mail' (at byte 1080)");
        assert!(parse(&json!({ "offset": "many", "length": 2, "type": "x" })).is_none());
    }

    /// Without wipefs the ends have to be blank; `--force` makes them so, and nothing between them.
    #[test]
    fn without_wipefs_only_a_blank_device_is_free() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk.image");
        let options = CreateOptions { profile: "off".into(), memory_bytes: 16 << 20, block_bytes: 64 << 20 };
        tandemfs_emulator::create_with(&path, &options, &Default::default()).expect("created");
        let device = path.to_str().expect("UTF-8");
        let drive = Drive::new(tandemfs_emulator::open_device(device, &DeviceOptions::default()).expect("opens"));
        let mut areas = Areas::of(device, &drive).expect("areas");
        areas.wipefs = None;
        areas.refuse_occupied().expect("blank");
        let sectors = (64 << 20) / SECTOR_BYTES as u64;
        for sector in [100, sectors / 2, sectors - 1] {
            let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&[7; SECTOR_BYTES]).into() }];
            drop(drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("written"));
        }
        let Err(Failure::Failed(said)) = areas.refuse_occupied() else { panic!("refused") };
        assert!(said.contains("its block zone contains data") && said.contains("--force"), "{said}");
        areas.wipe().expect("wiped");
        areas.refuse_occupied().expect("blank again");
        let mut middle = [0; SECTOR_BYTES];
        read_sectors(&drive, sectors / 2 * SECTOR_BYTES as u64, &mut middle).expect("read");
        assert_eq!(middle, [7; SECTOR_BYTES]);
    }
}
