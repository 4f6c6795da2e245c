//! Random damage of file systems that the engine filled. After a repair nothing is left to find, a second repair writes nothing, whatever was
//! not damaged is there with its bytes and names, and the engine mounts the image, works on it and leaves it clean.
//!
//! A line that is zeroed shows no error of its own (FORMAT, *Checksums*). So leaves are not zeroed here, and a name or an inode that the
//! space or link counts name counts as damaged.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use support::{Random, data_of};
use tandemfs_check::{CheckOptions, Finding, Report, check};
use tandemfs_crash::{MemoryDevice, Recorded};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::inode::file_type;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, PairSeed, UNIT_LINES};
use tandemfs_fs::{
    Error, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, SetExtendedAttribute, WriteOptions, make_file_system,
};

const ZONE: u64 = 32 << 20;

fn new(mode: u16, target: &[u8]) -> NewInode<'_> {
    NewInode { mode, uid: 1000, gid: 100, rdev: 0, target }
}

fn mount(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts")
}

/// Directories of many and of long names, hard links, links, sparse files, logs over blocks, attributes.
fn fill(fs: &FileSystem) {
    let (regular, directory) = (file_type::REGULAR | 0o644, file_type::DIRECTORY | 0o755);
    let mut at = InodeNumber::ROOT;
    for depth in 0..4_u64 {
        at = fs.create(at, format!("level {depth}").as_bytes(), &new(directory, b"")).expect("created").inode;
        for index in 0..[150, 12, 300, 5][depth as usize] {
            let name = if index % 3 == 0 { format!("{index}-{}", "n".repeat(150)) } else { format!("file {index}") };
            let file = fs.create(at, name.as_bytes(), &new(regular, b"")).expect("created").inode;
            let seed = depth * 1000 + index;
            if index % 7 == 0 {
                let length = [40_usize, 300, 5000, 70_000][(index / 7 % 4) as usize];
                fs.write(file, 0, &data_of(seed, length), WriteOptions::default()).expect("written");
                fs.write(file, length as u64 / 2, &data_of(seed + 1, 20), WriteOptions::default()).expect("written");
            }
            if index % 31 == 0 {
                fs.write(file, 40 << 20, &data_of(seed, 100), WriteOptions::default()).expect("written");
                fs.set_extended_attribute(file, b"user.note", &data_of(seed, 1 + seed as usize % 3000), SetExtendedAttribute::default())
                    .expect("set");
            }
            if index % 40 == 1 {
                fs.link(file, InodeNumber::ROOT, format!("hard {depth} {index}").as_bytes()).expect("linked");
                fs.create(at, format!("short {index}").as_bytes(), &new(file_type::SYMLINK | 0o777, b"target")).expect("linked");
                fs.create(at, format!("long {index}").as_bytes(), &new(file_type::SYMLINK | 0o777, &[b't'; 300])).expect("linked");
            }
        }
    }
    for index in 0..20 {
        let empty = fs.create(InodeNumber::ROOT, format!("empty {index}").as_bytes(), &new(directory, b"")).expect("created").inode;
        fs.create(empty, b"pipe", &new(file_type::FIFO | 0o600, b"")).expect("created");
    }
}

/// Everything about an inode that a repair keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    mode: u16,
    uid: u32,
    size: u64,
    content: Arc<Vec<u8>>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone, Default)]
struct Contents {
    inodes: BTreeMap<u64, Kept>,
    /// Names by directory.
    names: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    /// Files and links of which a repair gave up ranges; their content is left out.
    lost: BTreeSet<u64>,
}

impl Contents {
    fn read(fs: &FileSystem) -> Self {
        let mut contents = Self::default();
        let mut waiting = vec![InodeNumber::ROOT];
        while let Some(directory) = waiting.pop() {
            let mut names = BTreeMap::new();
            fs.read_directory(directory, 2, &mut |entry| {
                names.insert(entry.name.to_vec(), entry.inode.get());
                true
            })
            .expect("lists");
            for number in names.values().copied().chain([directory.get()]) {
                if contents.inodes.contains_key(&number) {
                    continue;
                }
                let inode = InodeNumber::new(number);
                let found = fs.attributes(inode).expect("there");
                let content = match found.mode & file_type::MASK {
                    file_type::REGULAR => tandemfs_crash::content(fs, inode),
                    file_type::SYMLINK => fs.read_link(inode),
                    _ => Ok(Vec::new()),
                };
                let content = match content {
                    Err(Error::LostData { .. }) => {
                        contents.lost.insert(number);
                        Vec::new()
                    }
                    content => content.expect("reads"),
                };
                let attributes = tandemfs_crash::attributes(fs, inode).expect("reads").into_iter().collect();
                let is_directory = found.mode & file_type::MASK == file_type::DIRECTORY;
                let size = if is_directory { 0 } else { found.size };
                contents.inodes.insert(number, Kept { mode: found.mode, uid: found.uid, size, content: Arc::new(content), attributes });
                if is_directory && number != directory.get() {
                    waiting.push(inode);
                }
            }
            contents.names.insert(directory.get(), names);
        }
        contents
    }
}

struct Scene {
    zones: Arc<Recorded>,
    contents: Contents,
    /// Lines that are not empty, by region.
    lines: Vec<(Region, Vec<u64>)>,
}

fn scene(block_bytes: u32, cut: bool) -> Scene {
    let device = MemoryDevice::new(ZONE, ZONE, PersistenceDomain::Gpf);
    let options = FormatOptions { block_bytes, ..FormatOptions::default() };
    make_file_system(&Drive::new(Arc::new(device.clone())), &options).expect("mkfs");
    let fs = mount(&device);
    fill(&fs);
    let contents = Contents::read(&fs);
    let image = device.fork();
    fs.unmount().expect("unmounted");
    let zones = if cut { image.zones() } else { device.zones() };
    // The places of structures are those of the unmounted image; a cut leaves them in the journal or at home.
    let memory = device.zones().memory;
    let superblock = Superblock::decode(&memory).expect("verifies");
    let pair = PairSeed::new(superblock.pair);
    let line = |number: u64| -> [u8; LINE_BYTES] { memory[number as usize * LINE_BYTES..][..LINE_BYTES].try_into().expect("a line") };
    let mut lines = BTreeMap::new();
    for index in 0..SEGMENT_TABLE_LINES {
        let address = superblock.geometry.segment_line(index);
        let Ok(Some(segment)) = Segment::decode(&line(address.number()), pair, address, superblock.geometry.memory_units()) else {
            continue;
        };
        let start = segment.start_unit * UNIT_LINES;
        let used = (start..start + segment.high_water_lines).filter(|number| line(*number) != EMPTY_LINE);
        lines.entry(segment.region).or_insert_with(Vec::new).extend(used);
    }
    Scene { zones: Arc::new(zones), contents, lines: lines.into_iter().collect() }
}

static SCENES: LazyLock<Vec<Scene>> = LazyLock::new(|| vec![scene(64 << 10, false), scene(4 << 10, false), scene(64 << 10, true)]);

#[derive(Debug, Clone, Copy)]
struct Harm {
    region: prop::sample::Index,
    line: prop::sample::Index,
    kind: u8,
    seed: u64,
}

fn harms() -> impl Strategy<Value = Vec<Harm>> {
    let one = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..8_u8, 1..u64::MAX)
        .prop_map(|(region, line, kind, seed)| Harm { region, line, kind, seed });
    prop::collection::vec(one, 1..8)
}

fn apply(harm: Harm, scene: &Scene, memory: &mut [u8]) {
    let (region, lines) = harm.region.get(&scene.lines);
    let line = *harm.line.get(lines);
    let mut random = Random(harm.seed);
    let at = line as usize * LINE_BYTES;
    match harm.kind {
        0..=2 => memory[at + random.below(64) as usize] ^= 1 << random.below(8),
        3 | 4 => memory[at..at + LINE_BYTES].fill_with(|| random.below(256) as u8),
        5 if *region != Region::Leaves => memory[at..at + LINE_BYTES].fill(0),
        6 => {
            let page = at / 4096 * 4096;
            memory[page..page + 4096].fill_with(|| random.below(256) as u8);
        }
        _ => memory[at + 4..at + 8].fill(0xff),
    }
}

fn run(device: &MemoryDevice, options: CheckOptions) -> Report {
    let options = CheckOptions { threads: 1, ..options };
    check(&Drive::new(Arc::new(device.clone())), &options, &mut |_| {}).expect("can be checked")
}

fn repair() -> CheckOptions {
    CheckOptions { repair: true, zero_data: true, ..CheckOptions::default() }
}

/// Compares what was not damaged.
fn compare(before: &Contents, after: &Contents, report: &Report, harmed: usize) {
    let mut touched = BTreeSet::new();
    let mut names_left: BTreeMap<u64, usize> = BTreeMap::new();
    for located in &report.repaired {
        match &located.finding {
            Finding::EntryDamaged { directory, .. } | Finding::EntryPartStray { directory, .. } => {
                *names_left.entry(*directory).or_default() += 1;
            }
            Finding::LinkCount { .. } | Finding::Unreachable { .. } | Finding::EntryDangling { .. } | Finding::ParentWrong { .. } => {}
            other => touched.extend(other.inode()),
        }
    }
    assert!(after.lost.is_subset(&touched), "lost without a finding: {:?}", after.lost);
    for (number, kept) in &before.inodes {
        if !touched.contains(number) {
            assert_eq!(after.inodes.get(number), Some(kept), "inode {number}");
        }
    }
    for (directory, names) in &before.names {
        let Some(now) = after.names.get(directory) else {
            assert!(touched.contains(directory), "directory {directory} is gone");
            continue;
        };
        let missing = names.iter().filter(|(name, inode)| after.inodes.contains_key(inode) && now.get(*name) != Some(inode)).count();
        if !touched.contains(directory) {
            // A line of zeros takes a name without a finding of its own.
            let allowed = names_left.get(directory).copied().unwrap_or(0) + harmed;
            assert!(missing <= allowed, "directory {directory} lost {missing} names, {allowed} are damaged");
        }
    }
}

fn work(device: &MemoryDevice) -> Contents {
    let fs = mount(device);
    let contents = Contents::read(&fs);
    let file = fs.create(InodeNumber::ROOT, b"work", &new(file_type::REGULAR | 0o644, b"")).expect("created").inode;
    fs.write(file, 0, &data_of(3, 300_000), WriteOptions::default()).expect("written");
    for (directory, names) in contents.names.iter().take(6) {
        let directory = InodeNumber::new(*directory);
        for index in 0..70 {
            fs.create(directory, format!("work {index}").as_bytes(), &new(file_type::REGULAR | 0o644, b"")).expect("created");
        }
        for (name, inode) in names.iter().take(3) {
            if !contents.names.contains_key(inode) {
                let size = SetAttributes { size: Some(10), ..SetAttributes::default() };
                if contents.inodes[inode].mode & file_type::MASK == file_type::REGULAR {
                    fs.set_attributes(InodeNumber::new(*inode), &size).expect("truncated");
                }
                fs.unlink(directory, name).expect("removed");
            }
        }
    }
    fs.unmount().expect("unmounted");
    contents
}

fn damage_and_repair(scene: &Scene, harms: &[Harm], cut: Option<prop::sample::Index>) {
    let mut zones = Recorded { memory: scene.zones.memory.clone(), blocks: scene.zones.blocks.clone() };
    harms.iter().for_each(|harm| apply(*harm, scene, &mut zones.memory));
    let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
    let whole = device.fork();
    whole.start_recording();
    let mut report = run(&whole, repair());
    assert!(report.is_consistent(), "{:?}", report.findings);
    let events = whole.stop_recording();
    let repaired = match cut {
        None => whole,
        Some(cut) if !events.is_empty() => {
            // The repair ends after some of its writes, and is done again.
            let zones = device.zones();
            let (mut memory, mut blocks) = (zones.memory, zones.blocks);
            for event in &events[..cut.index(events.len())] {
                match event {
                    tandemfs_crash::Event::Store { offset, bytes } => memory[*offset as usize..][..bytes.len()].copy_from_slice(bytes),
                    tandemfs_crash::Event::Write { sector, bytes } => {
                        blocks[sector.offset_bytes() as usize..][..bytes.len()].copy_from_slice(bytes);
                    }
                    _ => {}
                }
            }
            let device = MemoryDevice::from_zones(Recorded { memory, blocks }, PersistenceDomain::Gpf);
            let second = run(&device, repair());
            assert!(second.is_consistent(), "after a cut: {:?}", second.findings);
            report.repaired.extend(second.repaired);
            device
        }
        Some(_) => return,
    };
    let again = repaired.fork();
    again.start_recording();
    assert!(run(&again, repair()).repaired.is_empty());
    let written: Vec<_> = again
        .stop_recording()
        .into_iter()
        .filter(|event| matches!(event, tandemfs_crash::Event::Store { .. } | tandemfs_crash::Event::Write { .. }))
        .collect();
    assert!(written.is_empty(), "a second repair writes {} times", written.len());
    let after = work(&repaired);
    compare(&scene.contents, &after, &report, harms.len());
    let left = run(&repaired, CheckOptions::default());
    assert!(left.is_consistent() && left.clean, "after work: {:?}", left.findings);
}

fn cases() -> u32 {
    std::env::var("TANDEMFS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_damage_is_repaired(scene in 0..3_usize, harms in harms()) {
        damage_and_repair(&SCENES[scene], &harms, None);
    }

    #[test]
    fn a_repair_that_was_cut_goes_on(scene in 0..3_usize, harms in harms(), cut in any::<prop::sample::Index>()) {
        damage_and_repair(&SCENES[scene], &harms, Some(cut));
    }
}

#[test]
fn nothing_is_repaired_where_nothing_is_damaged() {
    for scene in SCENES.iter() {
        damage_and_repair(scene, &[], None);
    }
}

/// Without a single line of the segment table: restored as it is, rescued, checked, mounted, compared and worked on.
#[test]
fn file_systems_without_a_segment_table_are_restored_and_rescued() {
    for (index, scene) in SCENES.iter().enumerate() {
        let mut zones = Recorded { memory: scene.zones.memory.clone(), blocks: scene.zones.blocks.clone() };
        let mut random = Random(index as u64 + 1);
        zones.memory[128 << 10..512 << 10].fill_with(|| random.below(256) as u8);
        let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
        assert!(FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).is_err());
        compare_restored(&device, &scene.contents);
        let report = run(&device, CheckOptions { rescue: true, ..repair() });
        assert!(report.is_consistent() && report.lost.is_empty() && report.placed.is_empty(), "{:?}", report.findings);
        assert!(!report.rescued.is_empty());
        let after = work(&device);
        assert_eq!(after.names, scene.contents.names);
        assert!(after.inodes == scene.contents.inodes);
        assert!(run(&device, CheckOptions::default()).is_consistent());
    }
}

fn compare_restored(device: &MemoryDevice, contents: &Contents) {
    let (report, tree) = support::restored::restored(Arc::new(device.clone()), &tandemfs_check::RestoreOptions::default());
    assert!(report.is_whole(), "{:?} {:?} {:?}", report.missing, report.damaged, report.stopped);
    let mut waiting = vec![(1, String::new())];
    let mut count = 0;
    while let Some((directory, path)) = waiting.pop() {
        for (name, inode) in &contents.names[&directory] {
            let own = format!("{path}/{}", String::from_utf8_lossy(name));
            let kept = &contents.inodes[inode];
            match kept.mode & file_type::MASK {
                file_type::DIRECTORY => waiting.push((*inode, own)),
                file_type::REGULAR | file_type::SYMLINK => {
                    let restored = &tree[&own];
                    assert!(restored.content == *kept.content, "{own}");
                    count += 1;
                }
                _ => {}
            }
        }
    }
    assert!(count > 400 && report.files + report.links + report.hard_links == count, "{count} of {report:?}");
}

/// The mark of a segment may be anywhere, for a repair raises it by pages. The engine raised it by whole steps, so the last step went into
/// the unit behind.
#[test]
fn regression_a_mark_that_is_no_multiple_of_a_step() {
    let device = MemoryDevice::new(ZONE, ZONE, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let superblock = Superblock::decode(&device.zones().memory).expect("verifies");
    let (geometry, pair) = (superblock.geometry, PairSeed::new(superblock.pair));
    device.damage(|zones| {
        let address = geometry.segment_line(0);
        let at = address.offset_bytes() as usize;
        let line = zones.memory[at..at + LINE_BYTES].try_into().expect("a line");
        let mut segment = Segment::decode(&line, pair, address, geometry.memory_units()).expect("verifies").expect("in use");
        assert_eq!(segment.region, Region::Inodes);
        let fresh = (segment.start_unit * UNIT_LINES + segment.high_water_lines) as usize * LINE_BYTES;
        zones.memory[fresh..fresh + 64 * LINE_BYTES].fill(0);
        segment.high_water_lines += 64;
        zones.memory[at..at + LINE_BYTES].copy_from_slice(&segment.encode(pair, address));
    });
    let fs = mount(&device);
    for index in 0..UNIT_LINES / 2 + 100 {
        fs.create(InodeNumber::ROOT, format!("{index}").as_bytes(), &new(file_type::FIFO | 0o600, b"")).expect("created");
    }
    fs.unmount().expect("unmounted");
    let report = run(&device, CheckOptions::default());
    assert!(report.is_consistent(), "{:?}", report.findings.first());
    assert_eq!(report.counts.special, UNIT_LINES / 2 + 100);
}

/// A rescue leaves the mark of a unit at its last inode, also where another unit follows. A mount took the sum of the marks for the end of
/// all numbers: files behind it were not searched, so their inodes and their content were free.
#[test]
fn regression_a_rescue_with_free_numbers_before_a_unit_hid_the_files_behind() {
    const FILES: u64 = UNIT_LINES / 2 + 3000;
    let device = MemoryDevice::new(2 * ZONE, ZONE, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = mount(&device);
    let create = |fs: &FileSystem, index: u64| {
        let mode = file_type::REGULAR | 0o644;
        let file = fs.create(InodeNumber::ROOT, format!("{index}").as_bytes(), &new(mode, b"")).expect("created").inode;
        fs.write(file, 0, &index.to_le_bytes(), WriteOptions::default()).expect("written");
        file.get()
    };
    let numbers: Vec<u64> = (0..FILES).map(|index| create(&fs, index)).collect();
    let is_removed = |number: u64| (8000..UNIT_LINES / 2).contains(&number);
    for (index, _) in numbers.iter().enumerate().filter(|(_, number)| is_removed(**number)) {
        fs.unlink(InodeNumber::ROOT, format!("{index}").as_bytes()).expect("removed");
    }
    fs.unmount().expect("unmounted");
    device.damage(|zones| zones.memory[128 << 10..512 << 10].fill(0x5a));
    let report = run(&device, CheckOptions { rescue: true, ..repair() });
    assert!(report.is_consistent() && report.lost.is_empty(), "{:?}", report.findings);

    let fs = mount(&device);
    for index in FILES..FILES + 6000 {
        create(&fs, index);
    }
    fs.unmount().expect("unmounted");
    let fs = mount(&device);
    for (index, number) in numbers.iter().enumerate().filter(|(_, number)| !is_removed(**number)) {
        let mut bytes = [0; 9];
        assert_eq!(fs.read(InodeNumber::new(*number), 0, &mut bytes).expect("reads"), 8, "inode {number}");
        assert_eq!(bytes[..8], (index as u64).to_le_bytes(), "inode {number}");
    }
    fs.unmount().expect("unmounted");
    let report = run(&device, CheckOptions::default());
    assert!(report.is_consistent(), "{:?}", report.findings);
}

/// A line of the table that reads as zeros is valid. Where it named some units of a region of several, a repair took their lines for data and
/// gave up the files and names in them.
#[test]
fn regression_a_zeroed_line_of_the_table_of_a_region_of_several_gave_up_what_it_named() {
    const DIRECTORIES: u64 = UNIT_LINES / 2 + 200;
    let device = MemoryDevice::new(6 * ZONE, ZONE, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = mount(&device);
    for index in 0..DIRECTORIES {
        let kind = if index % 16 == 0 { file_type::DIRECTORY | 0o755 } else { file_type::REGULAR | 0o644 };
        let inode = fs.create(InodeNumber::ROOT, format!("{index}").as_bytes(), &new(kind, b"")).expect("created").inode;
        match index % 16 {
            0 => drop(fs.create(inode, b"inside", &new(file_type::REGULAR | 0o644, b"")).expect("created")),
            1 => {
                for block in 0..2 {
                    fs.write(inode, block << 20, &data_of(index, 500), WriteOptions::default()).expect("written");
                }
                fs.set_extended_attribute(inode, b"user.note", &data_of(index, 3000), SetExtendedAttribute::default()).expect("set");
            }
            _ => {}
        }
    }
    let contents = Contents::read(&fs);
    fs.unmount().expect("unmounted");
    // The journal of this one does not name the table, so a replay does not bring its lines back.
    let cut = device.fork();
    let fs = mount(&cut);
    let cut = cut.fork();
    drop(fs);
    let memory = device.zones().memory;
    let superblock = Superblock::decode(&memory).expect("verifies");
    let table: Vec<(u64, Segment)> = (0..SEGMENT_TABLE_LINES)
        .filter_map(|index| {
            let address = superblock.geometry.segment_line(index);
            let at = address.number() as usize * LINE_BYTES;
            let line = memory[at..at + LINE_BYTES].try_into().expect("a line");
            let segment =
                Segment::decode(&line, PairSeed::new(superblock.pair), address, superblock.geometry.memory_units()).expect("verifies");
            segment.map(|segment| (index, segment))
        })
        .collect();
    let mut regions = BTreeSet::new();
    for (index, segment) in table.iter().filter(|(_, segment)| segment.region_unit > 0) {
        let is_last = !table.iter().any(|(_, other)| other.region == segment.region && other.region_unit > segment.region_unit);
        if !is_last {
            continue;
        }
        regions.insert(segment.region);
        for image in [&device, &cut] {
            let image = image.fork();
            image.damage(|zones| {
                let at = superblock.geometry.segment_line(*index).number() as usize * LINE_BYTES;
                zones.memory[at..at + LINE_BYTES].copy_from_slice(&EMPTY_LINE);
            });
            compare_names_restored(&image, &contents);
            let before = image.zones().memory;
            let report = run(&image, repair());
            let named = |finding: &Finding| matches!(finding, Finding::UnitLost { unit, .. } if *unit == segment.start_unit);
            assert!(report.findings.iter().any(|located| named(&located.finding)), "{segment:?}: {:?}", report.findings.first());
            assert!(image.zones().memory == before, "{segment:?}: a repair writes nothing");
            let report = run(&image, CheckOptions { rescue: true, ..repair() });
            assert!(
                report.is_consistent() && report.lost.is_empty() && report.placed.is_empty(),
                "{segment:?}: {:?}",
                report.findings.first()
            );
            let fs = mount(&image);
            let after = Contents::read(&fs);
            assert!(after.names == contents.names && after.inodes == contents.inodes, "{segment:?}");
            fs.unmount().expect("unmounted");
            assert!(run(&image, CheckOptions::default()).is_consistent());
        }
    }
    assert_eq!(regions.len(), 4, "all but the leaves need several units here: {table:?}");
}

fn compare_names_restored(device: &MemoryDevice, contents: &Contents) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = tandemfs_check::RestoreOptions { dry_run: true, ..Default::default() };
    let report = support::restored::restored_to(Arc::new(device.clone()), &folder.path().join("copy"), &options).expect("restores");
    assert!(report.is_whole(), "{:?} {:?} {:?}", report.missing.first(), report.damaged.first(), report.stopped);
    let directories = contents.names.len() as u64;
    let names: u64 = contents.names.values().map(|names| names.len() as u64).sum();
    assert_eq!((report.directories, report.files), (directories, names + 1 - directories));
}
