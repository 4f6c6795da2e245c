//! Every structure of FORMAT damaged at every mount state, by a bit, a line of zeros, a line of noise, a page and a unit: the image is mounted,
//! worked on, repaired, mounted again and checked. Nothing that was not damaged is lost, and nothing ever reads as other bytes.
//!
//! The header of an image, which only emulated drives have, is in `crates/emulator/tests/image_headers.rs`.

mod damage;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use damage::lines::{Image, What, superblock};
use damage::{BLOCK_BYTES, Content, FILE, MEMORY_BYTES, OBJECTS, Scene, build, content, find, make, options, set, write};
use tandemfs_check::{CheckError, CheckOptions, Finding, Report, check};
use tandemfs_crash::{MemoryDevice, Random, Recorded, chosen, fill, rounds_or, seed_or, stay_on_one_cpu};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::journal::decode;
use tandemfs_format::mapping::{Record, RecordBytes, line_entries, line_records};
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress, PAGE_BYTES, SECTOR_BYTES, UNIT_BYTES};
use tandemfs_fs::{Error, FileSystem, FormatOptions, make_file_system};

/// How the image was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Unmounted.
    Clean,
    /// Cut, with records that wait in the rings.
    Cut,
    /// Cut, mounted again, worked on, and cut again.
    MountedBefore,
}

/// How much is damaged, around one line or sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Bit,
    Zeros,
    Line,
    Page,
    Unit,
}

const EXTENTS: [Extent; 5] = [Extent::Bit, Extent::Zeros, Extent::Line, Extent::Page, Extent::Unit];

/// A place of either zone, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Memory(u64),
    Block(u64),
}

/// Damage of one place: the bytes that changed.
struct Harm {
    in_memory: bool,
    range: Range<u64>,
}

impl Harm {
    fn apply(place: Place, extent: Extent, zones: &mut Recorded, random: &mut Random) -> Self {
        let (in_memory, at) = match place {
            Place::Memory(at) => (true, at),
            Place::Block(at) => (false, at),
        };
        let piece = match extent {
            Extent::Page => PAGE_BYTES as u64,
            Extent::Unit => UNIT_BYTES,
            _ => LINE_BYTES as u64,
        };
        let zone = if in_memory { &mut zones.memory } else { &mut zones.blocks };
        let start = at / piece * piece;
        let range = start..(start + piece).min(zone.len() as u64);
        let bytes = &mut zone[range.start as usize..range.end as usize];
        match extent {
            Extent::Bit => bytes[random.below(64) as usize] ^= 1 << random.below(8),
            Extent::Zeros => bytes.fill(0),
            _ => bytes.iter_mut().for_each(|byte| *byte = random.next() as u8),
        }
        Self { in_memory, range }
    }

    fn hits(&self, in_memory: bool, start: u64, bytes: usize) -> bool {
        self.in_memory == in_memory && start < self.range.end && self.range.start < start + bytes as u64
    }

    fn hits_line(&self, line: LineAddress) -> bool {
        self.hits(true, line.offset_bytes(), LINE_BYTES)
    }
}

/// An image in a state, and where its structures are.
struct Subject {
    state: State,
    scene: Scene,
    structures: Vec<(String, Place)>,
}

fn mount(device: &MemoryDevice) -> Result<FileSystem, Error> {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &options())
}

/// Some of everything that changes metadata, in the directory `work`.
fn work(fs: &FileSystem, round: u64) -> Result<(), Error> {
    let directory = find(fs, &[b"work"])?;
    for number in 0..12 {
        let inode = make(fs, directory, format!("{round} {number}").as_bytes(), FILE)?;
        write(fs, inode, number << 23, &fill(round + number, 50 + 700 * number as usize))?;
        write(fs, inode, 0, &fill(number, 90_000))?;
        set(fs, inode, "user.work", 30 + 60 * number as usize)?;
    }
    write(fs, find(fs, &[b"work", b"old"])?, 70_000, &fill(round, 90))?;
    for number in 0..6 {
        fs.unlink(directory, format!("{round} {number}").as_bytes())?;
    }
    Ok(())
}

impl Subject {
    fn new(state: State) -> Self {
        stay_on_one_cpu().expect("stays on its processor");
        let mut device = MemoryDevice::new(MEMORY_BYTES, BLOCK_BYTES, PersistenceDomain::Gpf);
        make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
        let mut fs = mount(&device).expect("mounts");
        build(&fs).expect("there is room");
        let objects = OBJECTS.iter().map(|path| {
            let inode = find(&fs, path).expect("there");
            (path.to_vec(), inode, content(&fs, inode).expect("read"))
        });
        let objects = objects.collect();
        fs.checkpoint().expect("home");
        if state == State::MountedBefore {
            work(&fs, 1).expect("there is room");
            device = device.fork();
            fs = mount(&device).expect("mounts");
            work(&fs, 2).expect("there is room");
            fs.checkpoint().expect("home");
        }
        let zones = match state {
            State::Clean => {
                fs.unmount().expect("unmounts");
                device.zones()
            }
            State::Cut => {
                work(&fs, 1).expect("there is room");
                device.zones()
            }
            State::MountedBefore => device.zones(),
        };
        let scene = Scene { clean: state == State::Clean, zones, objects };
        let structures = structures(&scene);
        Self { state, scene, structures }
    }
}

/// A place of every structure that the image has.
fn structures(scene: &Scene) -> Vec<(String, Place)> {
    let zones = &scene.zones;
    let (image, superblock) = (Image::new(zones), superblock(zones));
    let geometry = image.geometry;
    let line = |line: LineAddress| Place::Memory(line.offset_bytes());
    let mut places = vec![
        ("superblock A".to_owned(), Place::Memory(SUPERBLOCK_OFFSETS[0])),
        ("tails of superblock B".to_owned(), Place::Memory(SUPERBLOCK_OFFSETS[1] + 512)),
        ("identity".to_owned(), Place::Block(0)),
        ("empty line of the segment table".to_owned(), line(geometry.segment_line(40))),
    ];
    places.extend((0..5).map(|index| (format!("line {index} of the segment table"), line(geometry.segment_line(index)))));
    for index in [0, 1, 4, geometry.piece_count() - 1] {
        places.push((format!("header of map piece {index}"), line(geometry.piece(index))));
        places.push((format!("bits of map piece {index}"), line(geometry.piece(index).nth(3))));
    }
    places.extend(records(zones).into_iter().map(|(name, at)| (name, Place::Memory(at))));
    let root = image.lines_of(InodeNumber::ROOT);
    for what in [What::Hot, What::Cold, What::Head] {
        let (_, address) = root.iter().find(|(found, _)| *found == what).expect("the root has it");
        places.push((format!("{what:?} of the root"), line(*address)));
    }
    let hot = root[0].1;
    places.push(("slot 0 of the inodes".to_owned(), line(LineAddress::new(hot.number() - 2))));
    places.push(("free slot of the inodes".to_owned(), line(LineAddress::new(hot.number() + 2000))));
    let mut seen = BTreeSet::new();
    for (object, what, address) in scene.lines() {
        if seen.insert((object, what)) {
            let name = scene.objects[object].0.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("/");
            places.push((format!("{what:?} of {name}"), line(address)));
        }
    }
    let tree = data_of(&image, scene.objects[0].1);
    places.push(("data log".to_owned(), Place::Memory(tree.0[0])));
    places.push(("sector".to_owned(), Place::Block(tree.1[0])));
    let area = superblock.geometry.memory_units() - 1;
    places.push(("free unit of the data area".to_owned(), Place::Memory(area * UNIT_BYTES + 640)));
    places
}

/// Where records of the rings begin that wait for replay.
fn records(zones: &Recorded) -> Vec<(String, u64)> {
    let (image, superblock) = (Image::new(zones), superblock(zones));
    let mut found = Vec::new();
    for ring in 0..image.geometry.ring_count() {
        let start = image.geometry.ring(ring).offset_bytes();
        let bytes = &zones.memory[start as usize..][..image.geometry.ring_bytes() as usize];
        let tail = superblock.tails[ring as usize];
        let (mut at, mut starts) = (tail.offset_bytes, Vec::new());
        while let Some(record) = decode(&bytes[at as usize..], image.pair, ring, tail.wrap, superblock.generation) {
            starts.push(start + u64::from(at));
            at += record.bytes as u32;
        }
        if let [first, .., last] = starts[..] {
            found.push((format!("first record of ring {ring}"), first));
            found.push((format!("middle record of ring {ring}"), starts[starts.len() / 2]));
            found.push((format!("last record of ring {ring}"), last));
        }
        found.push((format!("free part of ring {ring}"), start + image.geometry.ring_bytes() - 64));
        if found.len() > 3 {
            break;
        }
    }
    found
}

/// Where the data of an inode are: slots of logs, and sectors.
fn data_of(image: &Image<'_>, number: InodeNumber) -> (Vec<u64>, Vec<u64>) {
    let (mut logs, mut sectors) = (Vec::new(), Vec::new());
    let mut note = |record: RecordBytes| match record.decode(LineAddress::new(0)) {
        Ok(Record::SingleLog(log)) => logs.push(log.address.offset_bytes()),
        Ok(Record::Block { extent: Some(extent), .. }) => {
            let run = extent.at.sector().map(|sector| (0..u64::from(extent.count)).map(move |index| sector.nth(index).offset_bytes()));
            sectors.extend(run.into_iter().flatten());
        }
        _ => {}
    };
    let lines = image.lines_of(number);
    for (what, address) in &lines {
        let line = image.line(*address);
        match what {
            What::Cold => note(RecordBytes::from_bytes(line[40..60].try_into().expect("a record"))),
            What::Mapping(1) => line_records(&line).into_iter().for_each(&mut note),
            _ => {}
        }
    }
    for (_, address) in lines.iter().filter(|(what, _)| *what == What::Leaf) {
        let entries = line_entries(&image.line(*address), *address).expect("verifies");
        logs.extend(entries.iter().flatten().map(|log| log.address.offset_bytes()));
    }
    (logs, sectors)
}

/// Objects that the damage touches: those whose own bytes it changed, those whose way from the root it did, and directories that may lose
/// names of the former.
struct Touched {
    own: Vec<bool>,
    way: Vec<bool>,
    names: Vec<bool>,
}

impl Touched {
    fn of(scene: &Scene, harm: &Harm) -> Self {
        let image = Image::new(&scene.zones);
        let is_hit = |number: InodeNumber| {
            let (logs, sectors) = data_of(&image, number);
            image.lines_of(number).iter().any(|(_, line)| harm.hits_line(*line))
                || logs.iter().any(|log| harm.hits(true, *log, PAGE_BYTES))
                || sectors.iter().any(|sector| harm.hits(false, *sector, SECTOR_BYTES))
        };
        let own: Vec<bool> = scene.objects.iter().map(|(_, inode, _)| is_hit(*inode)).collect();
        let root = is_hit(InodeNumber::ROOT);
        let way = scene.objects.iter().map(|(path, ..)| {
            root || scene.objects.iter().zip(&own).any(|((other, ..), own)| *own && path.len() > other.len() && path.starts_with(other))
        });
        let way = way.collect();
        let names = scene.objects.iter().map(|(path, ..)| {
            scene.objects.iter().zip(&own).any(|((other, ..), own)| *own && other.len() > path.len() && other.starts_with(path))
        });
        let names = names.collect();
        Self { own, way, names }
    }

    /// All of them: without a line of the segment table, which only a rescue finds again, what is in its units is out of reach.
    fn all(scene: &Scene) -> Self {
        let all = vec![true; scene.objects.len()];
        Self { own: all.clone(), way: all.clone(), names: all }
    }
}

/// The image mounted: everything untouched is there, and what is touched is right or an error.
fn look(fs: &FileSystem, subject: &Subject, touched: &Touched) -> Result<(), String> {
    for (index, (path, inode, expected)) in subject.scene.objects.iter().enumerate() {
        let name = || path.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("/");
        let by_name = find(fs, path);
        if !touched.own[index] && !touched.way[index] && by_name.as_ref().ok() != Some(inode) {
            return Err(format!("{}: {:?}", name(), by_name.err()));
        }
        match content(fs, *inode) {
            Ok(found) if found == *expected => {}
            // Names are gone, or new ones were given; zeros in place of a name or of attributes leave no trace.
            Ok(found) if (touched.own[index] || touched.names[index]) && is_less(&found, expected) => {}
            Ok(_) => return Err(format!("{} reads differently", name())),
            Err(_) if touched.own[index] => {}
            Err(error) => return Err(format!("{}: {error}", name())),
        }
    }
    Ok(())
}

/// The same bytes, but names or attributes may be missing, or an owner.
fn is_less(found: &Content, expected: &Content) -> bool {
    let is_directory = !expected.names.is_empty();
    (is_directory || found.size == expected.size && found.pieces == expected.pieces)
        && found.attributes.iter().all(|(name, value)| expected.attributes.get(name) == Some(value))
}

fn run_check(device: &MemoryDevice, options: CheckOptions) -> Result<Report, CheckError> {
    check(&Drive::new(Arc::new(device.clone())), &CheckOptions { threads: 1, one_drive: true, ..options }, &mut |_| {})
}

fn is_of_data(finding: &Finding) -> bool {
    matches!(finding, Finding::DataDamaged { .. } | Finding::LogDamaged { .. })
}

fn repair(device: &MemoryDevice) -> Result<Report, String> {
    let repair = || CheckOptions { repair: true, rescue: true, ..CheckOptions::default() };
    let report = run_check(device, repair()).map_err(|error| format!("repair: {error}"))?;
    if let Some(left) = report.findings.iter().find(|located| !is_of_data(&located.finding)) {
        return Err(format!("repair left {left:?} and {} more", report.findings.len() - 1));
    }
    let before = device.zones();
    let again = run_check(device, repair()).map_err(|error| format!("second repair: {error}"))?;
    if !again.repaired.is_empty() || device.zones() != before {
        return Err(format!("a second repair repaired {:?}", again.repaired));
    }
    Ok(report)
}

/// Whether a mount may be refused, or refuse to write: the segment table, records that wait, and the identity of a pair.
fn may_stop(subject: &Subject, harm: &Harm) -> bool {
    let geometry = Image::new(&subject.scene.zones).geometry;
    let fixed = |first: LineAddress, bytes: u64| harm.hits(true, first.offset_bytes(), bytes as usize);
    let rings = u64::from(geometry.ring_count()) * geometry.ring_bytes();
    harm.hits(false, 0, 64) || fixed(geometry.segment_line(0), 6144 * 64) || subject.state == State::Cut && fixed(geometry.ring(0), rings)
}

fn live(subject: &Subject, place: Place, extent: Extent, seed: u64) -> Result<(), String> {
    let mut zones = subject.scene.zones.clone();
    let harm = Harm::apply(place, extent, &mut zones, &mut Random::new(seed));
    let touched = Touched::of(&subject.scene, &harm);
    let work_is_hit = {
        let device = MemoryDevice::from_zones(subject.scene.zones.clone(), PersistenceDomain::Gpf);
        let fs = mount(&device).map_err(|error| error.to_string())?;
        let numbers = [&[&b"work"[..]][..], &[b"work", b"old"]].map(|path| find(&fs, path).ok());
        let image = Image::new(&subject.scene.zones);
        let is_hit = |number: InodeNumber| image.lines_of(number).iter().any(|(_, line)| harm.hits_line(*line));
        numbers.into_iter().flatten().any(is_hit) || touched.way.iter().all(|way| *way)
    };
    let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
    match mount(&device) {
        Ok(fs) => {
            let held = fs.damage().held_memory_bytes + fs.damage().held_block_bytes;
            if extent == Extent::Bit && held > 0 {
                return Err(format!("one wrong bit holds back {held} B"));
            }
            let table_is_hit = harm.hits(true, Image::new(&subject.scene.zones).geometry.segment_line(0).offset_bytes(), 6144 * 64);
            let touched = if table_is_hit { &Touched::all(&subject.scene) } else { &touched };
            look(&fs, subject, touched).map_err(|what| format!("mounted: {what}"))?;
            match work(&fs, 7) {
                Ok(()) => look(&fs, subject, touched).map_err(|what| format!("after work: {what}"))?,
                // Held back space, or a directory that lost names, may leave nothing to work with.
                Err(Error::NoSpace { .. }) => {}
                Err(_) if work_is_hit || may_stop(subject, &harm) || extent == Extent::Unit => {}
                Err(error) => return Err(format!("work: {error}")),
            }
            fs.unmount().map_err(|error| format!("unmount: {error}"))?;
        }
        Err(_) if may_stop(subject, &harm) => {}
        Err(error) => return Err(format!("mount: {error}")),
    }
    let report = repair(&device)?;
    let fs = mount(&device).map_err(|error| format!("mount after the repair: {error}"))?;
    look(&fs, subject, &touched).map_err(|what| format!("after the repair: {what}"))?;
    if extent == Extent::Bit && matches!(place, Place::Memory(_)) && report.findings.is_empty() && !report.lost.is_empty() {
        return Err(format!("one wrong bit lost {:?}", report.lost));
    }
    let directory = make(&fs, InodeNumber::ROOT, b"after", FILE).map_err(|error| format!("work after the repair: {error}"))?;
    write(&fs, directory, 0, &fill(3, 100_000)).map_err(|error| format!("work after the repair: {error}"))?;
    fs.unmount().map_err(|error| format!("unmount after the repair: {error}"))?;
    let last = run_check(&device, CheckOptions::default()).map_err(|error| format!("check: {error}"))?;
    match last.findings.iter().find(|located| !is_of_data(&located.finding)) {
        Some(left) => Err(format!("check after all: {left:?}")),
        None if !last.clean => Err("not clean after all".into()),
        None => Ok(()),
    }
}

/// Damage that the format cannot stand: superblocks, table and rings are in one unit. Or that it cannot show: zeros for one of several lines
/// of a leaf (FORMAT, *Checksums*).
fn is_hopeless(name: &str, place: Place, extent: Extent) -> bool {
    let is_fixed_part = extent == Extent::Unit && matches!(place, Place::Memory(at) if at < UNIT_BYTES);
    is_fixed_part || extent == Extent::Zeros && name.starts_with("Leaf of victims/tree")
}

fn all_of(state: State) {
    let subject = Subject::new(state);
    let cases: Vec<(usize, Extent)> = (0..subject.structures.len())
        .flat_map(|index| EXTENTS.into_iter().map(move |extent| (index, extent)))
        .filter(|(index, extent)| !is_hopeless(&subject.structures[*index].0, subject.structures[*index].1, *extent))
        .collect();
    let mut failures = Vec::new();
    for index in chosen(&format!("{state:?}"), cases.len() as u64, rounds_or(60)) {
        let (structure, extent) = cases[index as usize];
        let (name, place) = &subject.structures[structure];
        if let Err(what) = live(&subject, *place, extent, seed_or(1) + index) {
            failures.push(format!("{state:?}, {name}, {extent:?}: {what}"));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn every_structure_of_a_clean_image() {
    all_of(State::Clean);
}

#[test]
fn every_structure_of_an_image_with_records_to_replay() {
    all_of(State::Cut);
}

#[test]
fn every_structure_of_an_image_that_was_mounted_before() {
    all_of(State::MountedBefore);
}
