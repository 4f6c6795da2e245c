//! `tandemfs probe`: what TandemFS a device holds, for udev (`contrib/udev`) and for mounts that name one half only.
//!
//! A file system of a pair is found by its block half: that is what mount(8) names for `UUID=` and `LABEL=`. Its memory half is then searched
//! among the memory devices of this machine. Devices are read without a lock, also while they are mounted.

use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;
use tandemfs_device::{Mapping, MappingOptions};
use tandemfs_emulator::DeviceSpec;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{SECTOR_BYTES, UNIT_BYTES};
use uuid::Uuid;

use crate::arguments::ProbeArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;

const SUPERBLOCK_BYTES: usize = 1024;
/// Names of memory devices in /dev, without their numbers.
const MEMORY_DEVICES: [&str; 2] = ["dax", "pmem"];

/// Which part of a TandemFS a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The half of block commands.
    Block,
    /// The half of loads and stores.
    Memory,
    /// A memory half that has no other half.
    Alone,
    /// Both, in the image of an emulated drive.
    Image,
}

/// A TandemFS on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    part: Part,
    uuid: Uuid,
    pair: Uuid,
    /// Empty without one; `None` where it is not known: the block half does not have it.
    label: Option<String>,
}

impl Found {
    fn of(part: Part, superblock: &Superblock) -> Self {
        Self { part, uuid: superblock.uuid(), pair: superblock.pair, label: Some(superblock.label.clone()) }
    }

    fn part_name(&self) -> &'static str {
        match self.part {
            Part::Block => "block half",
            Part::Memory => "memory half",
            Part::Alone => "memory half, alone",
            Part::Image => "image",
        }
    }

    /// The lines of `blkid -o udev`. The memory half is not what to mount: it has a type of its own, as an external journal has.
    fn udev(&self) -> String {
        let (kind, usage) = if self.part == Part::Memory { ("tandemfs_memory", "other") } else { ("tandemfs", "filesystem") };
        let mut text = format!("ID_FS_UUID={0}\nID_FS_UUID_ENC={0}\n", self.uuid);
        if let Some(label) = self.label.as_ref().filter(|label| !label.is_empty()) {
            let _cannot_fail = write!(text, "ID_FS_LABEL={}\nID_FS_LABEL_ENC={}\n", safe(label), encoded(label));
        }
        let _cannot_fail = write!(text, "ID_FS_TYPE={kind}\nID_FS_USAGE={usage}\n");
        text
    }
}

/// Shows what is there. Exit status 1 if it is no TandemFS; udev is told nothing then.
pub fn run(arguments: &ProbeArguments) -> Result<u8, Failure> {
    let name = &arguments.device;
    let found = match look(Path::new(name)).map_err(|error| Failure::at(name, error)) {
        Ok(Some(found)) => Some(with_label(found, &memory_devices())),
        Ok(None) => of_image(name)?,
        Err(_) if arguments.udev => None,
        Err(failure) => return Err(failure),
    };
    let Some(found) = found else {
        return if arguments.udev { Ok(1) } else { Err(Failure::Failed(format!("{name}: no TandemFS, and no half of one"))) };
    };
    if arguments.udev {
        output::print(&found.udev())?;
        return Ok(0);
    }
    let value = json!({ "device": name, "part": found.part_name(), "uuid": found.uuid, "pair": found.pair, "label": found.label });
    if arguments.json {
        output::print_json(&value)?
    } else {
        output::print_rows(&output::rows(&value))?
    }
    Ok(0)
}

/// The device that a mount names: if that is only the block half of a pair, the pair; a memory half that is alone as such.
///
/// # Errors
/// The memory half is not there.
pub fn completed(device: String) -> Result<String, Failure> {
    let Ok(DeviceSpec::Image(path)) = device.parse() else { return Ok(device) };
    if !fs::metadata(&path).is_ok_and(|found| found.file_type().is_block_device()) {
        return Ok(device);
    }
    pair_of(&path, &memory_devices()).map(|pair| pair.unwrap_or(device))
}

/// The pair of a block half; `None` if it is none.
fn pair_of(block: &Path, memory_devices: &[PathBuf]) -> Result<Option<String>, Failure> {
    let found = match look(block).ok().flatten() {
        Some(found) if found.part == Part::Alone => return Ok(Some(format!("memory={}", block.display()))),
        Some(found) if found.part == Part::Block => found,
        _ => return Ok(None),
    };
    match memory_half(found.pair, memory_devices) {
        Some((memory, _)) => Ok(Some(format!("memory={},block={}", memory.display(), block.display()))),
        None => Err(Failure::Failed(format!(
            "{0}: is the block half of TandemFS {1}, whose memory half is none of the devices /dev/dax* and /dev/pmem*; write memory=PATH,\
             block={0}",
            block.display(),
            found.uuid
        ))),
    }
}

/// The label of a block half is in its memory half.
fn with_label(found: Found, memory_devices: &[PathBuf]) -> Found {
    match found.part {
        Part::Block => Found { label: memory_half(found.pair, memory_devices).and_then(|(_, memory)| memory.label), ..found },
        Part::Memory | Part::Alone | Part::Image => found,
    }
}

fn memory_half(pair: Uuid, memory_devices: &[PathBuf]) -> Option<(PathBuf, Found)> {
    memory_devices.iter().find_map(|path| {
        let found = look(path).ok().flatten().filter(|found| found.part == Part::Memory && found.pair == pair)?;
        Some((path.clone(), found))
    })
}

fn memory_devices() -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        MEMORY_DEVICES
            .iter()
            .any(|kind| name.strip_prefix(kind).is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit())))
    };
    let mut devices: Vec<PathBuf> = fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_one).collect();
    devices.sort();
    devices
}

fn of_image(name: &str) -> Result<Option<Found>, Failure> {
    if tandemfs_emulator::info(Path::new(name)).is_err() {
        return Ok(None);
    }
    let drive = device::open(name, Opening { read_only: true, ..Opening::default() })?;
    let superblock = tandemfs_fs::read_superblock(&drive);
    Ok(superblock.ok().map(|superblock| Found::of(Part::Image, &superblock)))
}

/// Looks for a half. The identity counts first: what a block half has behind it are bytes of its users.
fn look(path: &Path) -> io::Result<Option<Found>> {
    let mut source = Source::open(path)?;
    let mut sector = [0; SECTOR_BYTES];
    source.read(0, &mut sector);
    if let Some(identity) = BlockIdentity::decode(&sector) {
        return Ok(Some(Found { part: Part::Block, uuid: identity.uuid(), pair: identity.pair(), label: None }));
    }
    let copies = SUPERBLOCK_OFFSETS.map(|offset| {
        let mut copy = [0; SUPERBLOCK_BYTES];
        source.read(offset, &mut copy);
        copy
    });
    let part = |superblock: &Superblock| if superblock.geometry.has_block_zone() { Part::Memory } else { Part::Alone };
    Ok(Superblock::choose([&copies[0], &copies[1]]).ok().map(|superblock| Found::of(part(&superblock), &superblock)))
}

/// A device to read: a devdax can only be mapped.
enum Source {
    File(File),
    Mapped(Mapping),
}

impl Source {
    fn open(path: &Path) -> io::Result<Self> {
        // A named pipe would block an ordinary open.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.file_type().is_char_device() {
            return Ok(Self::File(file));
        }
        let options = MappingOptions { length: UNIT_BYTES, read_only: true, ..MappingOptions::default() };
        Mapping::new(&path.display().to_string(), &file, options).map(Self::Mapped)
    }

    /// What cannot be read stays zero: then nothing is found in it.
    fn read(&mut self, offset: u64, into: &mut [u8]) {
        let is_read = match self {
            Self::File(file) => file.read_exact_at(into, offset).is_ok(),
            Self::Mapped(mapping) => mapping.load(offset, into).is_ok(),
        };
        if !is_read {
            into.fill(0);
        }
    }
}

/// As libblkid's `blkid_encode_string`: what a link in /dev may not have is `\x` and two hexadecimal digits a byte.
fn encoded(text: &str) -> String {
    let mut result = String::new();
    for character in text.chars() {
        if !character.is_ascii() || character.is_ascii_alphanumeric() || "#+-.:=@_".contains(character) {
            result.push(character);
        } else {
            let _cannot_fail = write!(result, "\\x{:02x}", character as u32);
        }
    }
    result
}

/// As libblkid's `blkid_safe_string`: blanks at the ends go, others become one `_`, and so does what a shell could take for its own.
fn safe(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_safe = |character: char| !character.is_ascii() || character.is_ascii_alphanumeric() || "#+-.:=@_/$%?,".contains(character);
    words.join("_").chars().map(|character| if is_safe(character) { character } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_device::{Drive, PairDevice, PairOptions};
    use tandemfs_fs::{FormatOptions, make_file_system};

    struct Pair(tempfile::TempDir);

    impl Pair {
        fn new(label: &str) -> Self {
            let pair = Self(tempfile::TempDir::new().expect("a directory"));
            for (half, bytes) in [("memory", 16 << 20), ("block", 16 << 20)] {
                File::create(pair.path(half)).and_then(|file| file.set_len(bytes)).expect("made");
            }
            let device = PairDevice::open(&pair.path("memory"), &pair.path("block"), &PairOptions::default()).expect("opens");
            let options = FormatOptions { label: label.into(), ..FormatOptions::default() };
            make_file_system(&Drive::new(std::sync::Arc::new(device)), &options).expect("mkfs");
            pair
        }

        fn path(&self, half: &str) -> PathBuf {
            self.0.path().join(half)
        }
    }

    #[test]
    fn labels_are_written_as_blkid_writes_them() {
        for (label, is_safe, is_encoded) in [
            ("mail", "mail", "mail"),
            ("my mail/2", "my_mail/2", "my\\x20mail\\x2f2"),
            (" a  b ", "a_b", "\\x20a\\x20\\x20b\\x20"),
            ("a\nID_FS_TYPE=ext4", "a_ID_FS_TYPE=ext4", "a\\x0aID_FS_TYPE=ext4"),
            ("`rm`;$x\"", "_rm__$x_", "\\x60rm\\x60\\x3b\\x24x\\x22"),
            ("größe", "größe", "größe"),
        ] {
            assert_eq!((safe(label).as_str(), encoded(label).as_str()), (is_safe, is_encoded), "{label}");
        }
    }

    #[test]
    fn both_halves_are_told_apart_and_found_by_each_other() {
        let (pair, other) = (Pair::new("my mail"), Pair::new(""));
        let memory = look(&pair.path("memory")).expect("read").expect("a half");
        let block = look(&pair.path("block")).expect("read").expect("a half");
        assert_eq!((memory.part, block.part, &memory.label, &block.label), (Part::Memory, Part::Block, &Some("my mail".into()), &None));
        assert_eq!((memory.uuid, memory.pair), (block.uuid, block.pair));
        let devices = [other.path("memory"), other.path("block"), PathBuf::from("/absent"), pair.path("memory")];
        let labelled = with_label(block, &devices);
        let uuid = memory.uuid;
        assert_eq!(
            labelled.udev(),
            format!(
                "ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_LABEL=my_mail\nID_FS_LABEL_ENC=my\\x20mail\nID_FS_TYPE=tandemfs\n\
                 ID_FS_USAGE=filesystem\n"
            )
        );
        assert!(memory.udev().contains("ID_FS_TYPE=tandemfs_memory\nID_FS_USAGE=other\n"));
        let expected = format!("memory={},block={}", pair.path("memory").display(), pair.path("block").display());
        assert_eq!(pair_of(&pair.path("block"), &devices).expect("found"), Some(expected));
        assert_eq!(pair_of(&pair.path("memory"), &devices).expect("no block half"), None);
        let missing = pair_of(&pair.path("block"), &devices[..3]).expect_err("no memory half");
        assert!(matches!(missing, Failure::Failed(said) if said.contains("memory=PATH") && said.contains(&uuid.to_string())));
        assert!(!look(&other.path("block")).expect("read").expect("a half").udev().contains("LABEL"));
    }

    #[test]
    fn the_second_superblock_is_enough_and_users_bytes_are_none() {
        let pair = Pair::new("x");
        let write = |half: &str, offset: u64, bytes: &[u8]| {
            OpenOptions::new().write(true).open(pair.path(half)).and_then(|file| file.write_all_at(bytes, offset)).expect("written");
        };
        write("memory", 0, &[0; 1024]);
        assert_eq!(look(&pair.path("memory")).expect("read").map(|found| found.part), Some(Part::Memory));
        // A file whose bytes look like a superblock, in the sectors of the block half.
        let mut superblock = [0; 1024];
        File::open(pair.path("memory")).and_then(|file| file.read_exact_at(&mut superblock, SUPERBLOCK_OFFSETS[1])).expect("read");
        write("block", SUPERBLOCK_OFFSETS[1], &superblock);
        assert_eq!(look(&pair.path("block")).expect("read").map(|found| found.part), Some(Part::Block));
        fs::write(pair.path("short"), "x").expect("written");
        assert_eq!(look(&pair.path("short")).expect("read"), None);
    }
}
