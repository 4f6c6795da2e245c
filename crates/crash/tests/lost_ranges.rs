//! Parts of a file that a repair gave up (RULES R28): reading them fails until they are written anew, punched or cut off; everything beside
//! them works, and nothing turns them into holes.

mod damage;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use damage::lines::{Image, What};
use damage::{DIRECTORY, FILE, How, bytes_of, content, find, make, scene};
use tandemfs_check::{CheckOptions, LostRange, Report, check};
use tandemfs_crash::{MemoryDevice, Random, Recorded, each_state, fill, rounds_or, seed_or};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, MountOptions, ReadOptions, ScrubbedKind, SeekTo, SetAttributes, WriteOptions,
    make_file_system,
};

fn checked(device: &MemoryDevice, repair: bool) -> Report {
    let options = CheckOptions { threads: 1, repair, ..CheckOptions::default() };
    check(&Drive::new(Arc::new(device.clone())), &options, &mut |_| {}).expect("runs")
}

fn ranges(lost: &[LostRange], inode: InodeNumber) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for range in lost.iter().filter(|range| range.inode == inode.get()) {
        let range = range.offset..range.offset + range.bytes.expect("of a file with a size");
        match ranges.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => ranges.push(range),
        }
    }
    ranges
}

fn scrubbed(fs: &FileSystem) -> Vec<Range<u64>> {
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut found: Vec<_> = scrub
        .findings()
        .iter()
        .map(|finding| {
            assert_eq!(finding.kind, ScrubbedKind::Lost, "{finding}");
            finding.file_offset.expect("in a file")..finding.file_offset.expect("in a file") + finding.length
        })
        .collect();
    found.sort_by_key(|range| range.start);
    for range in found {
        match ranges.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => ranges.push(range),
        }
    }
    ranges
}

/// Damage of a line of each height: the blocks below are lost, listed by every check and scrub, and nothing else changes.
#[test]
fn what_a_repair_gives_up_is_lost_and_listed_for_ever() {
    let scene = scene(true);
    let file = scene.objects[0].1;
    for height in 1..=3 {
        let is_it = |(object, what, _): &&(usize, What, _)| *object == 0 && *what == What::Mapping(height);
        let (_, _, address) = *scene.lines().iter().find(is_it).expect("there");
        let mut zones = scene.zones.clone();
        How::Noise.apply(bytes_of(&mut zones, address), &mut Random::new(9));
        let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
        let first = checked(&device, true);
        assert!(first.is_consistent() && first.lost_before.is_empty(), "{:?}", first.findings);
        let lost = ranges(&first.lost, file);
        assert!(!lost.is_empty());
        let before = device.zones();
        for repair in [false, true] {
            let again = checked(&device, repair);
            assert!(again.is_consistent() && again.repaired.is_empty() && again.lost.is_empty(), "{again:?}");
            assert_eq!(ranges(&again.lost_before, file), lost);
            assert_eq!(again.lost_before[0].path.as_deref(), Some("/victims/tree"));
            assert_eq!(again.counts.lost_bytes, lost.iter().map(|range| range.end - range.start).sum::<u64>());
        }
        assert!(device.zones() == before, "a repair of a repaired image writes nothing");
        for memory_bytes in [4 << 20, 0] {
            let options = MountOptions { memory_bytes, ..damage::options() };
            let fs = FileSystem::mount(Drive::new(Arc::new(device.fork())), &options).expect("mounts");
            assert_eq!(scrubbed(&fs), lost);
            let mut read = vec![0; 5000];
            for range in &lost {
                let error = fs.read(file, range.start, &mut read).expect_err("lost");
                assert!(matches!(error, Error::LostData { inode, offset } if inode == file && offset == range.start), "{error}");
                assert_eq!(fs.seek(file, range.start, SeekTo::Data).expect("sought"), Some(range.start), "lost is no hole");
            }
            for ((offset, length), expected) in damage::TREE.iter().zip(&scene.objects[0].2.pieces) {
                let end = offset + *length as u64;
                let mut piece = vec![0; *length];
                match fs.read(file, *offset, &mut piece) {
                    Ok(read) => assert!(piece[..read] == expected[..read]),
                    Err(Error::LostData { .. }) => assert!(lost.iter().any(|range| range.start < end && *offset < range.end)),
                    Err(error) => panic!("{error}"),
                }
            }
            for (path, _, expected) in &scene.objects[1..] {
                let found = find(&fs, path).and_then(|inode| content(&fs, inode)).expect("whole");
                assert!(found == *expected || path == &scene.objects[0].0);
            }
            assert!(fs.layout(file, lost[0].start, 65_536, Default::default(), || {}).expect("given").extents().iter().all(|extent| {
                extent.file_offset + extent.bytes <= lost[0].start || extent.place == tandemfs_fs::LayoutPlace::ThroughFileSystem
            }));
            fs.unlink(find(&fs, &[b"victims"]).expect("there"), b"tree").expect("removed");
            assert_eq!(scrubbed(&fs), [] as [Range<u64>; 0]);
            fs.unmount().expect("unmounts");
        }
    }
}

// ---- random work beside lost parts, compared with a model ---------------------------------------------------------------------------

const BLOCK: u64 = 4096;
/// Blocks of the file: more than one page of height 2 maps.
const BLOCKS: u64 = 192 * 192 + 5000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Byte {
    Known(u8),
    Lost,
    /// Behind a former end of the file in a lost block: zero, or lost.
    ZeroOrLost,
}

/// What a block holds; a block that is not here is a hole.
#[derive(Debug, Clone)]
struct Held {
    bytes: Vec<Byte>,
    /// What is not in a log is lost.
    is_lost: bool,
}

impl Held {
    fn of(is_lost: bool) -> Self {
        Self { bytes: vec![if is_lost { Byte::Lost } else { Byte::Known(0) }; BLOCK as usize], is_lost }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        for (to, from) in self.bytes[at as usize..].iter_mut().zip(bytes) {
            *to = Byte::Known(*from);
        }
        // Logs that cover a block replace it.
        self.is_lost &= self.bytes.iter().any(|byte| !matches!(byte, Byte::Known(_)));
    }
}

struct File {
    blocks: BTreeMap<u64, Held>,
    size: u64,
}

impl File {
    fn byte(&self, offset: u64) -> Byte {
        self.blocks.get(&(offset / BLOCK)).map_or(Byte::Known(0), |held| held.bytes[(offset % BLOCK) as usize])
    }

    fn is_lost(&self, block: u64) -> bool {
        self.blocks.get(&block).is_some_and(|held| held.is_lost)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let here = ((BLOCK - at % BLOCK) as usize).min(bytes.len() - done);
            self.blocks.entry(at / BLOCK).or_insert_with(|| Held::of(false)).put(at % BLOCK, &bytes[done..done + here]);
            done += here;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    fn punch(&mut self, offset: u64, end: u64) {
        let (size, mut at) = (self.size, offset);
        while at < end {
            let (block, next) = (at / BLOCK, end.min((at / BLOCK + 1) * BLOCK));
            if next - at == BLOCK || at % BLOCK == 0 && next >= size {
                self.blocks.remove(&block);
            } else if let Some(held) = self.blocks.get_mut(&block) {
                let inside = if held.is_lost { next.min(size.max(at)) } else { next };
                held.put(at % BLOCK, &vec![0; (inside - at) as usize]);
            }
            at = next;
        }
    }

    fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.blocks.retain(|block, _| block * BLOCK < size);
            if let Some(held) = self.blocks.get_mut(&(size / BLOCK)) {
                let left = if held.is_lost { Byte::ZeroOrLost } else { Byte::Known(0) };
                held.bytes[(size % BLOCK) as usize..].fill(left);
            }
        }
        self.size = size;
    }

    /// Moves the blocks from `at` on.
    fn shift(&mut self, at: u64, gone: u64, added: u64) {
        let behind = self.blocks.split_off(&at);
        self.blocks.extend(behind.into_iter().filter(|(block, _)| *block >= at + gone).map(|(block, held)| (block - gone + added, held)));
        self.size = self.size - gone * BLOCK + added * BLOCK;
    }

    /// Lost bytes before the end; `None` if some may be.
    fn lost(&self) -> Option<Vec<Range<u64>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (block, held) in &self.blocks {
            for (byte, offset) in held.bytes.iter().zip(block * BLOCK..self.size) {
                match (byte, ranges.last_mut()) {
                    (Byte::ZeroOrLost, _) => return None,
                    (Byte::Known(_), _) => {}
                    (Byte::Lost, Some(last)) if last.end == offset => last.end += 1,
                    (Byte::Lost, _) => ranges.push(offset..offset + 1),
                }
            }
        }
        Some(ranges)
    }
}

fn read_back(fs: &FileSystem, file: InodeNumber, model: &File, offset: u64, length: usize) -> Result<(), String> {
    let mut found = vec![0xee; length];
    let expected: Vec<Byte> = (offset..(offset + length as u64).min(model.size.max(offset))).map(|at| model.byte(at)).collect();
    match fs.read_with(file, offset, &mut found, ReadOptions::default()) {
        Ok(read) => {
            let fits = |(byte, found): (&Byte, &u8)| match byte {
                Byte::Known(known) => known == found,
                Byte::Lost => false,
                Byte::ZeroOrLost => *found == 0,
            };
            match read == expected.len() && expected.iter().zip(&found).all(fits) {
                true => Ok(()),
                false => Err(format!("{length} B at {offset} of {}: {read} B that differ", model.size)),
            }
        }
        Err(Error::LostData { offset: first, .. }) => {
            let index = expected.iter().position(|byte| *byte == Byte::Lost).map(|index| offset + index as u64);
            match index.is_some_and(|index| first <= index) || expected.contains(&Byte::ZeroOrLost) {
                true => Ok(()),
                false => Err(format!("{length} B at {offset}: lost at {first}, not at {index:?}")),
            }
        }
        Err(error) => Err(format!("{length} B at {offset}: {error}")),
    }
}

/// A file of many holes, some of whose mapping lines are then damaged and repaired.
fn repaired_file(random: &mut Random) -> (MemoryDevice, InodeNumber, File) {
    let device = MemoryDevice::new(24 << 20, 48 << 20, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions { block_bytes: BLOCK as u32, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &damage::options()).expect("mounts");
    let directory = make(&fs, InodeNumber::ROOT, b"d", DIRECTORY).expect("made");
    let file = make(&fs, directory, b"file", FILE).expect("made");
    let mut model = File { blocks: BTreeMap::new(), size: 0 };
    for piece in 0..60 {
        let block = if piece % 3 == 0 { random.below(600) } else { random.below(BLOCKS) };
        let bytes = fill(piece, (BLOCK * (1 + random.below(4)) - random.below(2) * random.below(BLOCK)) as usize);
        fs.write(file, block * BLOCK, &bytes, WriteOptions::default()).expect("written");
        model.write(block * BLOCK, &bytes);
    }
    fs.unmount().expect("unmounts");
    let zones = device.zones();
    let lines = Image::new(&zones).lines_of(file);
    let mut damaged: Recorded = zones.clone();
    for _ in 0..1 + random.below(4) {
        let height = 1 + random.below(3) as u32;
        let of_height: Vec<_> = lines.iter().filter(|(what, _)| *what == What::Mapping(height)).collect();
        if let Some((_, address)) = (!of_height.is_empty()).then(|| **random.pick(&of_height)) {
            How::Noise.apply(bytes_of(&mut damaged, address), random);
        }
    }
    let device = MemoryDevice::from_zones(damaged, PersistenceDomain::Gpf);
    let report = checked(&device, true);
    assert!(report.is_consistent(), "{:?}", report.findings);
    for range in ranges(&report.lost, file) {
        assert!(range.start.is_multiple_of(BLOCK) && (range.end.is_multiple_of(BLOCK) || range.end == model.size), "{range:?}");
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            model.blocks.insert(block, Held::of(true));
        }
    }
    (device, file, model)
}

/// One random change of the file and of the model.
fn change(fs: &FileSystem, file: InodeNumber, model: &mut File, random: &mut Random) -> Result<String, String> {
    let lost: Vec<u64> = model.blocks.iter().filter(|(_, held)| held.is_lost).map(|(block, _)| *block).collect();
    // Most changes are at or near what is lost.
    let near = match lost.is_empty() || random.one_in(5) {
        true => random.below(BLOCKS),
        false => (*random.pick(&lost) + random.below(3)).saturating_sub(1),
    };
    let check = |what: String, result: Result<(), Error>, may_be_lost: bool| match result {
        Ok(()) => Ok((what, true)),
        Err(Error::LostData { .. }) if may_be_lost => Ok((what, false)),
        Err(error) => Err(format!("{what}: {error}")),
    };
    let (what, done) = match random.below(12) {
        0..=2 => {
            let bytes = fill(random.next() % 100, (BLOCK * (1 + random.below(3))) as usize);
            let result = fs.write(file, near * BLOCK, &bytes, WriteOptions::default()).map(drop);
            let done = check(format!("{} blocks at {near}", bytes.len() as u64 / BLOCK), result, false)?;
            model.write(near * BLOCK, &bytes);
            done
        }
        3..=5 => {
            let (at, length) = (random.below(BLOCK - 1), 1 + random.below(700));
            let length = length.min(BLOCK - at);
            let bytes = fill(random.next() % 100, length as usize);
            let result = fs.write(file, near * BLOCK + at, &bytes, WriteOptions::default()).map(drop);
            let done = check(format!("{length} B at {at} of block {near}"), result, model.is_lost(near))?;
            if done.1 {
                model.write(near * BLOCK + at, &bytes);
            }
            done
        }
        6 | 7 => {
            let count = if random.one_in(30) { 40_000 } else { *random.pick(&[1, 3, 20, 200]) };
            let result = fs.allocate(file, near * BLOCK, count * BLOCK, AllocateMode::Punch);
            model.punch(near * BLOCK, (near + count) * BLOCK);
            check(format!("punch of {count} blocks at {near}"), result, false)?
        }
        8 => {
            let (at, length) = (random.below(BLOCK - 1), 1 + random.below(3000));
            let end = (near * BLOCK + at + length).min((near + 1) * BLOCK);
            let result = fs.allocate(file, near * BLOCK + at, end - near * BLOCK - at, AllocateMode::Punch);
            let done = check(format!("punch at {at} of block {near}"), result, model.is_lost(near))?;
            if done.1 {
                model.punch(near * BLOCK + at, end);
            }
            done
        }
        9 => {
            let size = match random.below(12) {
                0 => near * BLOCK + random.below(BLOCK),
                1 => near * BLOCK,
                2..=4 => model.size.saturating_sub(random.below(3_000_000)),
                _ => model.size + random.below(100_000),
            };
            let result = fs.set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop);
            model.truncate(size);
            check(format!("truncation to {size}"), result, false)?
        }
        10 if near * BLOCK < model.size => {
            let added = *random.pick(&[1, 2, 192]);
            let result = fs.allocate(file, near * BLOCK, added * BLOCK, AllocateMode::Insert);
            model.shift(near, 0, added);
            check(format!("insert of {added} blocks at {near}"), result, false)?
        }
        _ => {
            let gone = *random.pick(&[1, 2, 192]);
            if (near + gone) * BLOCK >= model.size {
                return Ok("nothing".into());
            }
            let result = fs.allocate(file, near * BLOCK, gone * BLOCK, AllocateMode::Collapse);
            model.shift(near, gone, 0);
            check(format!("collapse of {gone} blocks at {near}"), result, false)?
        }
    };
    for _ in 0..3 {
        let offset = (near * BLOCK).saturating_sub(random.below(10_000));
        read_back(fs, file, model, offset, 1 + random.below(30_000) as usize).map_err(|error| format!("after {what}: {error}"))?;
    }
    Ok(format!("{what}{}", if done { "" } else { " (refused)" }))
}

#[test]
fn everything_works_beside_what_is_lost() {
    let (seed, rounds) = (seed_or(1), rounds_or(12));
    let (mut lost_at_the_end, mut refused, mut subtrees) = (0, 0, 0);
    for seed in seed..seed + rounds {
        let mut random = Random::new(seed);
        let (device, file, mut model) = repaired_file(&mut random);
        subtrees += u64::from(model.blocks.values().filter(|held| held.is_lost).count() > 192);
        let mut steps: Vec<String> = Vec::new();
        let mut fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &damage::options()).expect("mounts");
        for step in 0..60 {
            let fail = |what: String, steps: &[String]| panic!("TANDEMFS_SEED={seed}: {what}; after {steps:#?}");
            match change(&fs, file, &mut model, &mut random) {
                Ok(done) => {
                    refused += u64::from(done.ends_with("(refused)"));
                    steps.push(done);
                }
                Err(what) => fail(what, &steps),
            }
            if step % 12 == 11 {
                match random.below(3) {
                    0 => fs.unmount().expect("unmounts"),
                    1 => fs.write_back().map(drop).expect("written back"),
                    _ => {} // the daemon dies
                }
                drop(fs);
                let report = checked(&device.fork(), false);
                if let Some(expected) = model.lost()
                    && ranges(&report.lost_before, file) != expected
                {
                    fail(format!("check lists {:?}, not {expected:?}", ranges(&report.lost_before, file)), &steps);
                }
                let errors: Vec<_> =
                    report.findings.iter().filter(|located| located.finding.severity() == tandemfs_check::Severity::Error).collect();
                if !errors.is_empty() {
                    fail(format!("{errors:?}"), &steps);
                }
                fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &damage::options()).expect("mounts");
                if let Some(expected) = model.lost() {
                    assert_eq!(scrubbed(&fs), expected, "TANDEMFS_SEED={seed}");
                }
                assert_eq!(fs.damage().objects, 0, "what is lost is no damage of the metadata");
            }
        }
        lost_at_the_end += u64::from(model.blocks.values().any(|held| held.is_lost));
        let directory = fs.lookup(InodeNumber::ROOT, b"d").expect("there").inode;
        fs.unlink(directory, b"file").expect("removed");
        fs.unmount().expect("unmounts");
        let report = checked(&device, false);
        assert!(report.is_consistent() && report.lost_before.is_empty(), "TANDEMFS_SEED={seed}: {:?}", report.findings);
    }
    println!("{rounds} files, {subtrees} lost subtrees, {refused} changes refused, {lost_at_the_end} still had lost parts");
    assert!(lost_at_the_end > rounds / 8 && subtrees > rounds / 8, "{lost_at_the_end} files with lost parts, {subtrees} lost subtrees");
}

/// A change within a lost subtree takes fresh pages for the parts that are left: whenever the power fails, what is lost is what was lost
/// before the change, or after it.
#[test]
fn a_power_cut_makes_no_hole_of_what_is_lost() {
    let (mut scenes, mut states) = (0, 0);
    for seed in seed_or(1).. {
        let mut random = Random::new(seed);
        let (device, file, mut model) = repaired_file(&mut random);
        let lost: Vec<u64> = model.blocks.iter().filter(|(_, held)| held.is_lost).map(|(block, _)| *block).collect();
        if lost.len() <= 192 {
            continue;
        }
        scenes += 1;
        let near = *random.pick(&lost);
        let device = MemoryDevice::from_zones(device.zones(), PersistenceDomain::Adr).given_firmware(scenes % 2 == 0);
        let start = device.fork();
        device.start_recording();
        let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &damage::options()).expect("mounts");
        let before = ranges(&checked(&start.fork(), false).lost_before, file);
        match scenes % 3 {
            0 => {
                fs.write(file, near * BLOCK, &fill(1, BLOCK as usize), WriteOptions::default()).expect("written");
                model.write(near * BLOCK, &fill(1, BLOCK as usize));
            }
            1 => {
                fs.allocate(file, near * BLOCK, 3 * BLOCK, AllocateMode::Punch).expect("punched");
                model.punch(near * BLOCK, (near + 3) * BLOCK);
            }
            _ => {
                let size = SetAttributes { size: Some(near * BLOCK), ..SetAttributes::default() };
                fs.set_attributes(file, &size).expect("truncated");
                model.truncate(near * BLOCK);
            }
        }
        let events = device.stop_recording();
        let after = model.lost().expect("cut between blocks");
        assert_ne!(before, after);
        each_state(&start, &events, 0, 4, &mut random, &mut |cut, state| {
            states += 1;
            let report = checked(&state.device.fork(), false);
            let found = ranges(&report.lost_before, file);
            assert!(found == before || found == after, "TANDEMFS_SEED={seed}, {cut:?}: {found:?}, before {before:?}, after {after:?}");
            if states % 8 == 0 {
                let fs = FileSystem::mount(Drive::new(Arc::new(state.device.clone())), &damage::options()).expect("mounts");
                assert_eq!(scrubbed(&fs), found, "TANDEMFS_SEED={seed}, {cut:?}");
                fs.unmount().expect("unmounts");
                let report = checked(&state.device, false);
                assert!(report.is_consistent(), "TANDEMFS_SEED={seed}, {cut:?}: {:?}", report.findings);
            }
        });
        if scenes == rounds_or(6) {
            break;
        }
    }
    assert!(states > 50, "{states} states");
}
