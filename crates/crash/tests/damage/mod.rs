//! Damaged lines: an image, work on it, and the proof that nothing was lost.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod lines;

use std::sync::Arc;

use lines::{Image, What, superblock};
use tandemfs_check::{CheckOptions, check};
use tandemfs_crash::{MemoryDevice, Random, Recorded, attributes, chosen, fill, stay_on_one_cpu};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::inode::file_type;
use tandemfs_format::journal::decode;
use tandemfs_format::superblock::Tail;
use tandemfs_format::{InodeNumber, LINE_BYTES, Line, LineAddress};
use tandemfs_fs::{
    AllocateMode, DamageReport, Error, FileSystem, FormatOptions, MountOptions, NewInode, SetExtendedAttribute, WriteOptions,
    make_file_system,
};

pub const MEMORY_BYTES: u64 = 16 << 20;
pub const BLOCK_BYTES: u64 = 24 << 20;

/// Offsets and lengths of what `tree` contains: mapping pages of three heights, extents, leaves.
pub const TREE: &[(u64, usize)] = &[(0, 150_000), (13 << 20, 70_000), (3 << 30, 66_000)];
pub const LONG: &[u8] = &[b'l'; 200];

pub fn options() -> MountOptions {
    MountOptions { memory_bytes: 4 << 20, ..MountOptions::default() }
}

pub fn mount(zones: &Recorded) -> (MemoryDevice, Result<FileSystem, Error>) {
    let device = MemoryDevice::from_zones(zones.clone(), PersistenceDomain::Gpf);
    let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &options());
    (device, fs)
}

pub fn findings(zones: &Recorded) -> Vec<String> {
    let device = MemoryDevice::from_zones(zones.clone(), PersistenceDomain::Gpf);
    let report = check(&Drive::new(Arc::new(device)), &CheckOptions { threads: 1, ..CheckOptions::default() }, &mut |_| {}).expect("runs");
    report.findings.iter().map(|located| format!("{located:?}")).collect()
}

pub fn make(fs: &FileSystem, directory: InodeNumber, name: &[u8], mode: u16) -> Result<InodeNumber, Error> {
    let new = NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(directory, name, &new).map(|made| made.inode)
}

pub const FILE: u16 = file_type::REGULAR | 0o644;
pub const DIRECTORY: u16 = file_type::DIRECTORY | 0o755;

pub fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    fs.write(file, offset, bytes, WriteOptions::default()).map(drop)
}

pub fn set(fs: &FileSystem, file: InodeNumber, name: &str, length: usize) -> Result<(), Error> {
    fs.set_extended_attribute(file, name.as_bytes(), &fill(length as u64, length), SetExtendedAttribute::default())
}

pub fn find(fs: &FileSystem, path: &[&[u8]]) -> Result<InodeNumber, Error> {
    path.iter().try_fold(InodeNumber::ROOT, |at, name| Ok(fs.lookup(at, name)?.inode))
}

/// What an object contains, as far as the tests compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub size: u64,
    pub pieces: Vec<Vec<u8>>,
    pub attributes: tandemfs_crash::Attributes,
    pub names: Vec<Vec<u8>>,
}

pub fn content(fs: &FileSystem, inode: InodeNumber) -> Result<Content, Error> {
    let found = fs.attributes(inode)?;
    let mut pieces = Vec::new();
    let mut names = Vec::new();
    match found.mode & file_type::MASK {
        file_type::REGULAR => {
            for (offset, length) in TREE {
                let mut piece = vec![0; *length];
                let read = fs.read(inode, *offset, &mut piece)?;
                piece.truncate(read);
                pieces.push(piece);
            }
        }
        file_type::SYMLINK => pieces.push(fs.read_link(inode)?),
        _ => fs.read_directory(inode, 2, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?,
    }
    Ok(Content { size: found.size, pieces, attributes: attributes(fs, inode)?, names })
}

/// An image, and what is in it.
pub struct Scene {
    pub clean: bool,
    pub zones: Recorded,
    pub objects: Vec<(Vec<&'static [u8]>, InodeNumber, Content)>,
}

/// Objects that are damaged, and objects beside them.
pub const OBJECTS: &[&[&[u8]]] = &[
    &[b"victims", b"tree"],
    &[b"victims", b"attributed"],
    &[b"victims", b"link"],
    &[b"victims", b"one log"],
    &[b"names"],
    &[b"victims"],
    &[b"keep"],
    &[b"keep", b"tree"],
    &[b"keep", b"attributed"],
    &[b"keep", b"small"],
];

pub fn scene(clean: bool) -> Scene {
    let device = MemoryDevice::new(MEMORY_BYTES, BLOCK_BYTES, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &options()).expect("mounts");
    build(&fs).expect("there is room");
    let objects = OBJECTS.iter().map(|path| {
        let inode = find(&fs, path).expect("there");
        (path.to_vec(), inode, content(&fs, inode).expect("read"))
    });
    let objects = objects.collect();
    if clean { fs.unmount() } else { fs.checkpoint() }.expect("home");
    Scene { clean, zones: device.zones(), objects }
}

pub fn build(fs: &FileSystem) -> Result<(), Error> {
    let [victims, keep, names, work] =
        [&b"victims"[..], b"keep", b"names", b"work"].map(|name| make(fs, InodeNumber::ROOT, name, DIRECTORY).expect("made"));
    let passing = make(fs, work, b"passing", FILE)?; // makes holes between the others' space
    for directory in [victims, keep] {
        let tree = make(fs, directory, b"tree", FILE)?;
        for (seed, (offset, length)) in (1..).zip(TREE) {
            write(fs, passing, *offset, &fill(50 + seed, *length))?;
            write(fs, tree, *offset, &fill(seed + directory.get(), *length))?;
            // Logs over the sectors, more than a line of a leaf has entries.
            for log in 0..6 {
                write(fs, tree, offset + 9000 * log, &fill(seed + log, 50 + 100 * log as usize))?;
            }
        }
        write(fs, tree, 100 << 20, &fill(9, 3000))?;
        let attributed = make(fs, directory, b"attributed", FILE)?;
        write(fs, attributed, 0, &fill(3, 5000))?;
        for (name, length) in [("user.a", 900), ("user.b", 9000), ("user.c", 2000), ("user.d", 40)] {
            set(fs, attributed, name, length)?;
        }
        write(fs, make(fs, directory, b"one log", FILE)?, 0, &fill(4, 700))?;
    }
    let target = NewInode { mode: file_type::SYMLINK | 0o777, uid: 0, gid: 0, rdev: 0, target: &[b't'; 300] };
    fs.create(victims, b"link", &target)?;
    for number in 0..70 {
        make(fs, names, format!("name {number}").as_bytes(), FILE)?;
    }
    make(fs, names, LONG, FILE)?;
    write(fs, make(fs, keep, b"small", FILE)?, 0, &fill(5, 100))?;
    for (name, length) in [(&b"old"[..], 200_000), (b"gone", 2_000_000)] {
        let file = make(fs, work, name, FILE)?;
        write(fs, file, 0, &fill(6, length))?;
        write(fs, file, 1000, &fill(7, 300))?;
    }
    fs.unlink(work, b"passing")
}

impl Scene {
    /// All lines of the victims, with the index of their object.
    pub fn lines(&self) -> Vec<(usize, What, LineAddress)> {
        let image = Image::new(&self.zones);
        let of = |(index, (_, inode, _)): (usize, &(Vec<&[u8]>, InodeNumber, Content))| {
            image.lines_of(*inode).into_iter().map(|(what, address)| (index, what, address)).collect::<Vec<_>>()
        };
        self.objects.iter().enumerate().take(5).flat_map(of).collect()
    }
}

/// How a line is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Bit,
    Word,
    Zeros,
    Noise,
}

impl How {
    pub const ALL: [Self; 4] = [Self::Bit, Self::Word, Self::Zeros, Self::Noise];

    pub fn apply(self, line: &mut [u8], random: &mut Random) {
        match self {
            Self::Bit => line[random.below(64) as usize] ^= 1 << random.below(8),
            Self::Word => {
                let at = random.below(8) as usize * 8;
                line[at..at + 8].iter_mut().for_each(|byte| *byte ^= random.next() as u8 | 1);
            }
            Self::Zeros => line.fill(0),
            Self::Noise => line.iter_mut().for_each(|byte| *byte = random.next() as u8),
        }
    }

    /// Whether the damage cannot be noticed: zeros where they verify and no account misses what they hid.
    pub fn is_blind(self, what: What) -> bool {
        match what {
            What::Vector => true, // shows as damage of the data
            What::Head | What::Continuation | What::Value => self == Self::Zeros,
            // A data log over sectors counts nothing.
            What::Leaf => self == Self::Zeros,
            _ => false,
        }
    }
}

pub fn bytes_of(zones: &mut Recorded, address: LineAddress) -> &mut [u8] {
    &mut zones.memory[address.offset_bytes() as usize..][..LINE_BYTES]
}

/// Everything that a user may do, until there is no space. Only a lack of space may stop it.
pub fn work(fs: &FileSystem, round: u64) -> Result<(), String> {
    let say = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let space = |what: &'static str, result: Result<(), Error>| match result {
        Ok(()) => Ok(true),
        Err(Error::NoSpace { .. }) => Ok(false),
        Err(error) => Err(format!("{what}: {error}")),
    };
    let directory = find(fs, &[b"work"]).map_err(say("look-up of work"))?;
    let old = find(fs, &[b"work", b"old"]).map_err(say("look-up"))?;
    space("overwriting", write(fs, old, 0, &fill(60 + round, 150_000)))?;
    space("overwriting a little", write(fs, old, 70_000, &fill(61 + round, 90)))?;
    if round == 0 {
        fs.unlink(directory, b"gone").map_err(say("removing"))?;
    }
    let mut made = Vec::new();
    for number in 0..150 {
        let name = [format!("{round} {number} ").as_bytes(), LONG].concat();
        let inode = match make(fs, directory, &name[..200], FILE) {
            Err(Error::NoSpace { .. }) => break,
            other => other.map_err(say("creating"))?,
        };
        made.push((name, inode));
        // Slots, leaves, mapping pages, sectors, attributes.
        let at = number * (13 << 20);
        let (small, seed) = (50 + 37 * number as usize % 4000, number + 100);
        let goes_on = [
            space("a log", write(fs, inode, at, &fill(seed, small)))?,
            space("a second log", write(fs, inode, at + 20_000, &fill(seed, 30)))?,
            space("an attribute", set(fs, inode, "user.work", 30 + 60 * number as usize))?,
            space("blocks", write(fs, inode, at + (1 << 20), &fill(seed, 200_000)))?,
        ];
        if goes_on == [false; 4] {
            break;
        }
    }
    let large = match made.first() {
        Some((_, inode)) => *inode,
        None => old,
    };
    while space("more blocks", write(fs, large, fs.attributes(large).map_err(say("attributes"))?.size, &fill(8, 262_144)))? {}
    space("allocating", fs.allocate(large, 0, 60 << 20, AllocateMode::Allocate { keep_size: true }))?;
    // What was made is as it was written, and half of it goes again.
    for (index, (name, inode)) in made.iter().enumerate() {
        let mut bytes = vec![0; 50];
        let read = fs.read(*inode, index as u64 * (13 << 20), &mut bytes).map_err(say("reading back"))?;
        if read > 0 && bytes[..read] != fill(index as u64 + 100, 50)[..read] && bytes.iter().any(|byte| *byte != 0) {
            return Err("what was written reads differently".into());
        }
        if index % 2 == 1 {
            fs.unlink(directory, &name[..200]).map_err(say("removing what was made"))?;
        }
    }
    Ok(())
}

pub fn read_others(fs: &FileSystem, scene: &Scene, damaged: &[usize]) -> Result<(), String> {
    for (index, (path, _, expected)) in scene.objects.iter().enumerate() {
        let is_within = damaged.iter().any(|other| path.starts_with(&scene.objects[*other].0));
        let name = || path.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("/");
        match find(fs, path).and_then(|inode| content(fs, inode)) {
            Ok(found) if found == *expected => {}
            Ok(_) if damaged.contains(&index) => {} // zeros may be read as a hole
            Err(Error::Damaged { .. } | Error::DamagedData { .. }) if is_within => {}
            Ok(_) => return Err(format!("{} has changed", name())),
            Err(error) => return Err(format!("{}: {error}", name())),
        }
    }
    Ok(())
}

/// Mounts a damaged image, works, and unmounts. Returns the image and what was held back.
pub fn live(scene: &Scene, zones: &Recorded, damaged: &[usize], round: u64) -> Result<(Recorded, DamageReport), String> {
    let (device, fs) = mount(zones);
    let fs = fs.map_err(|error| format!("mount {round}: {error}"))?;
    let found = fs.damage();
    read_others(&fs, scene, damaged).map_err(|what| format!("mount {round}: {what}"))?;
    work(&fs, round).map_err(|what| format!("mount {round}: {what}"))?;
    read_others(&fs, scene, damaged).map_err(|what| format!("mount {round}, after the work: {what}"))?;
    let holds_back = fs.damage().holds_back;
    fs.unmount().map_err(|error| format!("unmount {round}: {error}"))?;
    let zones = device.zones();
    if superblock(&zones).clean == holds_back {
        return Err(format!("holds back: {holds_back}, and clean is {}", superblock(&zones).clean));
    }
    Ok((zones, found))
}

/// One run: lines are damaged, all kinds of work are done, the lines are put back, and everything must be there.
pub fn run(scene: &Scene, places: &[(usize, What, LineAddress, How)], mounts: u64, random: &mut Random) -> Result<DamageReport, String> {
    let mut zones = scene.zones.clone();
    let mut lines: Vec<(LineAddress, Line, Line)> = Vec::new();
    for (_, _, address, how) in places {
        let line = bytes_of(&mut zones, *address);
        let before: Line = (&*line).try_into().expect("a line");
        how.apply(line, random);
        lines.push((*address, before, (&*line).try_into().expect("a line")));
    }
    let damaged: Vec<usize> = places.iter().map(|(object, ..)| *object).collect();
    let mut first = None;
    for round in 0..mounts {
        let (after, found) = live(scene, &zones, &damaged, round)?;
        let first = first.get_or_insert(found);
        // A mount that searches knows at once what the mount before it met.
        if round > 1 && found.objects > first.objects.max(damaged.len() as u64) {
            return Err(format!("damage grows from mount to mount: {first:?}, then {found:?}"));
        }
        zones = after;
    }
    for (address, before, after) in &lines {
        let line = bytes_of(&mut zones, *address);
        if line != after {
            return Err(format!("the damaged line at {address} was overwritten"));
        }
        line.copy_from_slice(before);
    }
    let findings = findings(&zones);
    if !findings.is_empty() {
        return Err(format!("once the line is put back: {}", findings[..findings.len().min(3)].join("; ")));
    }
    let (_, fs) = mount(&zones);
    let fs = fs.map_err(|error| format!("once the line is put back: {error}"))?;
    read_others(&fs, scene, &[]).map_err(|what| format!("once the line is put back: {what}"))?;
    Ok(first.unwrap_or_default())
}

/// Places of each kind of line, a few of each.
pub fn places(scene: &Scene, each: u64) -> Vec<(usize, What, LineAddress)> {
    let lines = scene.lines();
    let mut kinds: Vec<(usize, What)> = lines.iter().map(|(object, what, _)| (*object, *what)).collect();
    kinds.sort();
    kinds.dedup();
    let mut places = Vec::new();
    for kind in kinds {
        let of_kind: Vec<_> = lines.iter().filter(|(object, what, _)| (*object, *what) == kind).collect();
        places.extend(chosen(&format!("{kind:?}"), of_kind.len() as u64, each).into_iter().map(|index| *of_kind[index as usize]));
    }
    places
}

/// Directories made by one thread on one processor, so that all records are in one ring; and where its records start.
pub fn journalled() -> (Recorded, u32, Vec<u64>) {
    stay_on_one_cpu().expect("stays on its processor");
    let device = MemoryDevice::new(MEMORY_BYTES, BLOCK_BYTES, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &options()).expect("mounts");
    for number in 0..5 {
        make(&fs, InodeNumber::ROOT, format!("d{number}").as_bytes(), DIRECTORY).expect("made");
    }
    let zones = device.zones();
    let (image, superblock) = (Image::new(&zones), superblock(&zones));
    let starts_of = |ring: u32| {
        let start = image.geometry.ring(ring).offset_bytes();
        let bytes = &zones.memory[start as usize..][..image.geometry.ring_bytes() as usize];
        let Tail { mut offset_bytes, wrap } = superblock.tails[ring as usize];
        let mut starts = Vec::new();
        while let Some(record) = decode(&bytes[offset_bytes as usize..], image.pair, ring, wrap, superblock.generation) {
            starts.push(start + u64::from(offset_bytes));
            offset_bytes += record.bytes as u32;
        }
        starts
    };
    let (ring, starts) =
        (0..image.geometry.ring_count()).map(|ring| (ring, starts_of(ring))).max_by_key(|(_, starts)| starts.len()).unwrap();
    assert!(starts.len() >= 5, "{starts:?}");
    (zones, ring, starts)
}
