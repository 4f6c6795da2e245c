//! Bad places: a page of memory or a sector whose accesses always fail. The damage stays confined: accesses elsewhere work, accesses to it
//! return an error, no read returns wrong data, and `check` names the place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tandemfs_check::{CheckOptions, check};
use tandemfs_crash::{
    Entry, FaultDevice, Harness, Kind, Model, Operation, Place, Recorded, Setting, Tree, check_device, chosen, content, fill, mount,
    mount_device,
};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::geometry::{Geometry, SUPERBLOCK_OFFSETS};
use tandemfs_format::inode::file_type;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{InodeNumber, Line, LineAddress, PAGE_BYTES, PairSeed, SECTOR_BYTES, UNIT_BYTES};
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, WriteOptions};

use Operation::*;

const PAGE: u64 = PAGE_BYTES as u64;
const SECTOR: u64 = SECTOR_BYTES as u64;

/// Directories whose inodes lie in different pages, and files with every kind of mapping.
const PREPARATION: &[Operation] = &[
    MakeDirectory("one"),
    CreateMany("one", 0, 70),
    MakeDirectory("two"),
    CreateMany("two", 0, 70),
    Create("two/big"),
    Write("two/big", 0, 150_000, 1),
    Write("two/big", 70_000, 100, 2),
    Scatter("two/big", 0, 9, 3000, 60, 3),
    Create("two/tree"),
    Write("two/tree", 300_000, 66_000, 4),
    Write("two/tree", 1_400_000, 900, 5),
    Symlink("one/link", 200),
    Link("two/big", "one/big"),
];

/// What a place holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Superblock,
    SegmentTable,
    Ring,
    SavedMaps,
    Inodes,
    Dentries,
    Mappings,
    Leaves,
    DataLogs,
    Identity,
    Data,
    /// The space that is allocated next.
    FreeMemory,
    FreeSectors,
}

struct Scene {
    base: Arc<Recorded>,
    setting: Setting,
    tree: Tree,
    clean: bool,
    /// What mounting reads.
    mount_touches: Vec<Place>,
    /// What reading one path reads beside that.
    touches: BTreeMap<Vec<u8>, Vec<Place>>,
    places: Vec<(What, Place)>,
}

fn resolve(fs: &FileSystem, path: &[u8]) -> Result<InodeNumber, Error> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.into_iter().try_fold(InodeNumber::ROOT, |at, part| Ok(fs.lookup(at, part)?.inode))
}

/// Reads a path. True where it is as it should be.
fn read(fs: &FileSystem, tree: &Tree, path: &[u8]) -> Result<bool, Error> {
    let inode = resolve(fs, path)?;
    let Entry { kind, nlink, .. } = &tree.0[path];
    let same = match kind {
        Kind::File(expected) => content(fs, inode)? == **expected,
        Kind::Whiteout => fs.attributes(inode)?.rdev == 0,
        Kind::Symlink(expected) => fs.read_link(inode)? == **expected,
        Kind::Directory => {
            let mut names = BTreeSet::new();
            fs.read_directory(inode, 2, &mut |entry| names.insert(entry.name.to_vec()))?;
            let prefix = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
            let below = tree.0.keys().filter_map(|other| other.strip_prefix(&prefix[..])).filter(|rest| !rest.is_empty());
            names == below.filter(|rest| !rest.contains(&b'/')).map(<[u8]>::to_vec).collect()
        }
    };
    Ok(same && fs.attributes(inode)?.nlink == *nlink)
}

fn scene(setting: Setting, clean: bool) -> Scene {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in PREPARATION {
        harness.apply(operation).expect("prepared");
    }
    harness.apply(&Checkpoint).expect("checkpoint");
    for operation in [Append("one/1", 300, 1), Write("two/big", 10_000, 70_000, 2), Create("two/late"), Unlink("one/2")] {
        harness.apply(&operation).expect("prepared");
    }
    if clean {
        harness.fs.unmount().expect("unmounts");
    }
    let tree = harness.model.tree();
    let base = Arc::new(harness.device.zones());
    let cold = || {
        let device = Arc::new(FaultDevice::counting(setting.over(base.clone())));
        let fs = mount_device(device.clone(), &setting.mount).expect("mounts");
        (device, fs)
    };
    let (device, fs) = cold();
    let mount_touches = device.take_touched();
    drop(fs);
    let mut touches = BTreeMap::new();
    for path in tree.0.keys() {
        let (device, fs) = cold();
        device.take_touched();
        assert!(read(&fs, &tree, path).expect("reads"));
        touches.insert(path.clone(), device.take_touched());
    }
    let places = places(&base, clean);
    Scene { base, setting, tree, clean, mount_touches, touches, places }
}

/// Every page and sector that holds something, by what it holds.
fn places(zones: &Recorded, clean: bool) -> Vec<(What, Place)> {
    let superblock = Superblock::choose([&zones.memory[..1024], &zones.memory[65_536..66_560]]).expect("a superblock");
    let (geometry, pair) = (superblock.geometry, PairSeed::new(superblock.pair));
    let mut regions = BTreeMap::new();
    for index in 0..64 {
        let address = geometry.segment_line(index);
        let at = address.offset_bytes() as usize;
        let line: Line = zones.memory[at..at + 64].try_into().expect("a line");
        if let Some(segment) = Segment::decode(&line, pair, address, geometry.memory_units()).expect("valid") {
            regions.extend((segment.start_unit..segment.start_unit + segment.unit_count).map(|unit| (unit, segment.region)));
        }
    }
    let is_used = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let mut places = Vec::new();
    let mut free_from = None;
    for (index, bytes) in (0..)
        .zip(zones.memory.chunks(PAGE_BYTES))
        .skip_while(|(index, _)| index * PAGE < geometry.unit(geometry.fixed_units()).offset_bytes())
    {
        match (is_used(bytes), free_from) {
            (true, _) => free_from = Some(index + 1),
            (false, Some(from)) if index < from + 2 => places.push((What::FreeMemory, Place::Memory(index * PAGE..(index + 1) * PAGE))),
            _ => {}
        }
    }
    let last = zones.blocks.chunks(SECTOR_BYTES).rposition(is_used).expect("data") as u64;
    places.extend((last + 1..last + 49).map(|sector| (What::FreeSectors, Place::Blocks(sector * SECTOR..(sector + 1) * SECTOR))));
    for (index, _) in (0..).zip(zones.memory.chunks(PAGE_BYTES)).filter(|(_, bytes)| is_used(bytes)) {
        let start = index * PAGE;
        let what = what_of(&geometry, &regions, start);
        if !(clean && what == What::Ring) {
            places.push((what, Place::Memory(start..start + PAGE)));
        }
    }
    for (index, _) in (0..).zip(zones.blocks.chunks(SECTOR_BYTES)).filter(|(_, bytes)| is_used(bytes)) {
        let what = if index == 0 { What::Identity } else { What::Data };
        places.push((what, Place::Blocks(index * SECTOR..(index + 1) * SECTOR)));
    }
    places
}

fn what_of(geometry: &Geometry, regions: &BTreeMap<u64, Region>, start: u64) -> What {
    if start < geometry.fixed_units() * UNIT_BYTES {
        return match start {
            start if SUPERBLOCK_OFFSETS.contains(&start) => What::Superblock,
            start if start >= geometry.piece(0).offset_bytes() => What::SavedMaps,
            start if start >= geometry.ring(0).offset_bytes() => What::Ring,
            _ => What::SegmentTable,
        };
    }
    match regions.get(&LineAddress::new(start / 64).unit()) {
        Some(Region::Inodes) => What::Inodes,
        Some(Region::Dentries) => What::Dentries,
        Some(Region::Mappings) => What::Mappings,
        Some(Region::Leaves | Region::Attributes) => What::Leaves,
        None => What::DataLogs,
    }
}

/// What one bad place did.
#[derive(Debug, Default, Clone, Copy)]
struct Effects {
    places: u32,
    mounted: u32,
    mounted_read_only: u32,
    paths_failed: u32,
    worked_on: u32,
}

fn is_device_error(error: &Error) -> bool {
    matches!(error, Error::Device(_) | Error::Stopped { .. })
}

/// Makes, writes by both paths, reads and removes. Each step may fail twice before it finds its way around the place.
fn work(fs: &FileSystem) -> Result<(), Error> {
    let patient = |step: &mut dyn FnMut() -> Result<(), Error>| (0..2).find_map(|_| step().ok()).map_or_else(step, Ok);
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let mut inode = InodeNumber::ROOT;
    patient(&mut || fs.create(InodeNumber::ROOT, b"new", &new).map(|made| inode = made.inode))?;
    let bytes = fill(9, 140_000);
    for (from, to) in [(0, 100), (100, 4000), (4000, 140_000)] {
        patient(&mut || {
            let done = fs.write(inode, from as u64, &bytes[from..to], WriteOptions::default())?;
            assert_eq!(done, to - from);
            Ok(())
        })?;
    }
    assert!(content(fs, inode)? == bytes, "what was written beside the bad place reads differently");
    fs.unlink(InodeNumber::ROOT, b"new")
}

fn try_place(scene: &Scene, what: What, place: &Place, heals: bool, effects: &mut Effects) {
    let name = format!("{what:?} {place:x?}, clean: {}, heals: {heals}", scene.clean);
    effects.places += 1;
    let device = scene.setting.over(scene.base.clone());
    let faulty = Arc::new(FaultDevice::at(device.clone(), place.clone(), heals));
    let in_place = |touched: &[Place]| touched.iter().any(|touched| touched.overlaps(place));
    let fs = match mount_device(faulty.clone(), &scene.setting.mount) {
        Ok(fs) => Some(fs),
        Err(error) => {
            assert!(is_device_error(&error), "{name}: mount: {error}");
            // A read-only mount works unless the rest cannot be read without the bad place.
            let options = MountOptions { read_only: true, ..scene.setting.mount.clone() };
            match mount_device(faulty.clone(), &options) {
                Ok(fs) => Some(fs),
                Err(error) => {
                    assert!(is_device_error(&error), "{name}: mount: {error}");
                    // Without these nothing can be found, or what was acknowledged last would be missing.
                    let needed = matches!(what, What::SegmentTable | What::Ring | What::Identity);
                    assert!(needed, "{name}: no mount at all: {error}");
                    None
                }
            }
        }
    };
    if let Some(fs) = &fs {
        effects.mounted += 1;
        effects.mounted_read_only += u32::from(fs.is_read_only());
        for path in scene.tree.0.keys() {
            match read(fs, &scene.tree, path) {
                Ok(same) => assert!(same, "{name}: {} is wrong", String::from_utf8_lossy(path)),
                Err(error) => {
                    // Where records of the journal changed the page, its other lines count as damaged ([RE5] of `recovery.rs`).
                    let is_lost = matches!(error, Error::Damaged { .. }) && fs.is_read_only() && !scene.clean;
                    assert!(is_lost || matches!(error, Error::Device(_)), "{name}: {}: {error}", String::from_utf8_lossy(path));
                    assert!(
                        in_place(&scene.touches[path]) || in_place(&scene.mount_touches),
                        "{name}: {} is not there",
                        String::from_utf8_lossy(path)
                    );
                    effects.paths_failed += 1;
                }
            }
        }
        if !fs.is_read_only() {
            match work(fs) {
                Ok(()) => effects.worked_on += 1,
                Err(error) => {
                    // The root itself cannot be changed, or the journal cannot be written.
                    let root = in_place(&scene.touches[&b""[..]]) || in_place(&scene.touches[&b"one"[..]]);
                    let journal = matches!(what, What::Ring | What::Superblock | What::SegmentTable);
                    assert!(is_device_error(&error) && (root || journal), "{name}: work beside it: {error}");
                }
            }
            if let Err(error) = fs.unmount() {
                assert!(is_device_error(&error), "{name}: unmount: {error}");
            }
        }
    }
    drop(fs);
    // `check` reads everything that is in use, so it meets the place, and says so.
    let meets = Arc::new(FaultDevice::at(device.clone(), place.clone(), false));
    let report = check(&Drive::new(meets.clone()), &CheckOptions { threads: 1, ..CheckOptions::default() }, &mut |_| {});
    assert!(!meets.hit() || report.map_or(true, |report| !report.findings.is_empty()), "{name}: check says nothing");
    let is_in_use = scene.touches.values().any(|touched| in_place(touched));
    assert!(!is_in_use || meets.hit() || faulty.is_healed(), "{name}: check did not look");
    // Without the fault everything is there.
    check_device(&device, true).unwrap_or_else(|findings| panic!("{name}: {findings}"));
    let fs = mount(&device, &scene.setting.mount).unwrap_or_else(|error| panic!("{name}: {error}"));
    let _made_by_the_work_and_not_removed = fs.unlink(InodeNumber::ROOT, b"new");
    let found = Tree::read(&fs).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(found.difference(&scene.tree), None, "{name}");
    fs.unmount().unwrap_or_else(|error| panic!("{name}: {error}"));
    check_device(&device, false).unwrap_or_else(|findings| panic!("{name}: {findings}"));
}

#[test]
fn damage_of_any_place_stays_confined() {
    stays_confined(&Setting::small(PersistenceDomain::Adr, 64 << 10), 20);
}

/// There a page of metadata is read by blocks, and goes bad on both paths.
#[test]
fn damage_of_any_place_of_a_drive_with_firmware_stays_confined() {
    stays_confined(&Setting::small(PersistenceDomain::Adr, 64 << 10).with_firmware(), 10);
}

fn stays_confined(setting: &Setting, most: u64) {
    for clean in [true, false] {
        let scene = scene(setting.clone(), clean);
        let mut kinds: BTreeMap<What, Vec<&Place>> = BTreeMap::new();
        for (what, place) in &scene.places {
            kinds.entry(*what).or_default().push(place);
        }
        assert!(kinds.len() >= 10, "{:?}", kinds.keys());
        for (what, places) in kinds {
            let mut effects = Effects::default();
            for index in chosen(&format!("{what:?}"), places.len() as u64, most) {
                let place = places[index as usize];
                try_place(&scene, what, place, false, &mut effects);
                if matches!(place, Place::Blocks(_)) {
                    try_place(&scene, what, place, true, &mut effects);
                }
            }
            println!("after a {}: {what:?}: {effects:?}", if clean { "clean unmount" } else { "power cut" });
        }
    }
}
