//! Inodes that have lost their second line: a repair saves the name, and the content where it is proved; nothing reads as older bytes.

mod support;

use std::sync::Arc;

use support::data_of;
use tandemfs_check::{CheckOptions, Report, RestoreOptions, check};
use tandemfs_crash::{MemoryDevice, Recorded};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::geometry::{SEGMENT_TABLE_LINES, SUPERBLOCK_OFFSETS};
use tandemfs_format::inode::file_type;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{InodeNumber, LINE_BYTES, PairSeed, UNIT_LINES};
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

const ZONE: u64 = 16 << 20;
const BLOCK: usize = 64 << 10;

fn mount(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts")
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &str, mode: u16, target: &[u8]) -> InodeNumber {
    let new = NewInode { mode, uid: 1000, gid: 100, rdev: 7, target };
    fs.create(parent, name.as_bytes(), &new).expect("created").inode
}

fn file(fs: &FileSystem, name: &str, content: &[u8]) -> InodeNumber {
    let inode = make(fs, InodeNumber::ROOT, name, file_type::REGULAR | 0o4755, b"");
    fs.write(inode, 0, content, WriteOptions::default()).expect("written");
    inode
}

fn empty(fs: &FileSystem, inode: InodeNumber) {
    fs.set_attributes(inode, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("truncated");
}

/// An image that `fill` filled, unmounted or as a crash leaves it.
fn image(clean: bool, fill: impl FnOnce(&FileSystem)) -> MemoryDevice {
    let device = MemoryDevice::new(ZONE, ZONE, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = mount(&device);
    fill(&fs);
    fs.checkpoint().expect("home");
    let crashed = device.fork();
    fs.unmount().expect("unmounts");
    if clean { device } else { crashed }
}

/// Damages the second line of an inode.
fn halve(device: &MemoryDevice, inode: InodeNumber) {
    damage_line(device, inode, 1);
}

/// Damages a line of an inode.
fn damage_line(device: &MemoryDevice, inode: InodeNumber, index: u64) {
    device.damage(|zones| {
        let superblock = Superblock::decode(&zones.memory).expect("verifies");
        let (geometry, pair) = (superblock.geometry, PairSeed::new(superblock.pair));
        let segment = (0..SEGMENT_TABLE_LINES).find_map(|index| {
            let address = geometry.segment_line(index);
            let line = zones.memory[address.offset_bytes() as usize..][..LINE_BYTES].try_into().expect("a line");
            let segment = Segment::decode(&line, pair, address, geometry.memory_units()).expect("verifies")?;
            (segment.region == Region::Inodes).then_some(segment)
        });
        let line = segment.expect("there").start_unit * UNIT_LINES + inode.get() * 2 + index;
        zones.memory[line as usize * LINE_BYTES..][..LINE_BYTES].fill(0x3c);
    });
}

fn run(device: &MemoryDevice, options: CheckOptions) -> Report {
    check(&Drive::new(Arc::new(device.clone())), &CheckOptions { threads: 1, ..options }, &mut |_| {}).expect("can be checked")
}

fn repaired(device: &MemoryDevice) -> Report {
    let report = run(device, CheckOptions { repair: true, ..CheckOptions::default() });
    assert!(report.is_consistent(), "{:?}", report.findings);
    let before = device.zones();
    assert!(run(device, CheckOptions { repair: true, ..CheckOptions::default() }).repaired.is_empty() && device.zones() == before);
    report
}

fn read(fs: &FileSystem, inode: InodeNumber) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; fs.attributes(inode)?.size as usize];
    let count = fs.read(inode, 0, &mut bytes)?;
    assert_eq!(count, bytes.len());
    Ok(bytes)
}

#[test]
fn files_keep_their_names_and_what_is_proved_of_their_content() {
    for clean in [true, false] {
        let (large, tall, small, nothing) = (data_of(1, 5 * BLOCK + 77), data_of(2, 400_000), data_of(3, 900), Vec::new());
        let mut inodes = Vec::new();
        let device = image(clean, |fs| {
            for (name, content) in [("large", &large), ("small", &small), ("nothing", &nothing), ("whole", &tall)] {
                inodes.push(file(fs, name, content));
            }
            let sparse = file(fs, "sparse", &tall);
            fs.write(sparse, 40 << 20, &small, WriteOptions::default()).expect("written");
            fs.write(sparse, 70_000, &small, WriteOptions::default()).expect("written");
            inodes.push(sparse);
        });
        let [in_large, in_small, in_nothing, in_whole, in_sparse] = inodes[..] else { panic!("five files") };
        for inode in [in_large, in_small, in_nothing, in_sparse] {
            halve(&device, inode);
        }
        let (restore_report, tree) = support::restored::restored(Arc::new(device.clone()), &RestoreOptions::default());
        assert!(tree["/large"].content == large && tree["/whole"].content == tall && tree["/nothing"].content.is_empty());
        assert_eq!(restore_report.damaged.len(), 1, "{:?}", restore_report.damaged);
        let report = repaired(&device);
        assert_eq!(
            report.rescued.iter().filter(|sentence| sentence.contains("second line was made anew")).count(),
            4,
            "{:?}",
            report.rescued
        );
        let lost: Vec<_> = report.lost.iter().map(|lost| (lost.inode, lost.offset, lost.bytes)).collect();
        assert_eq!(lost, [(in_small.get(), 0, Some(900))], "clean: {clean}");
        let fs = mount(&device);
        assert!(read(&fs, in_large).expect("saved") == large && read(&fs, in_whole).expect("was whole") == tall);
        assert_eq!(read(&fs, in_nothing).expect("saved"), nothing);
        assert!(matches!(read(&fs, in_small), Err(Error::LostData { .. })));
        let mut at_end = vec![0; 1000];
        assert_eq!(fs.read(in_sparse, 40 << 20, &mut at_end).expect("saved"), 900);
        assert!(at_end[..900] == small[..]);
        let mut start = vec![0; 70_900];
        assert_eq!(fs.read(in_sparse, 0, &mut start).expect("saved"), 70_900);
        assert!(start[..70_000] == tall[..70_000] && start[70_000..] == small[..]);
        for (name, inode) in [("large", in_large), ("small", in_small), ("nothing", in_nothing)] {
            let found = fs.lookup(InodeNumber::ROOT, name.as_bytes()).expect("its name is there");
            assert_eq!((found.inode, found.mode, found.uid, found.gid), (inode, file_type::REGULAR | 0o755, 0, 0));
        }
        // A lost file can be written anew, and everything can be removed.
        fs.write(in_small, 0, &large, WriteOptions::default()).expect("written");
        assert!(read(&fs, in_small).expect("anew") == large);
        for name in ["large", "small", "nothing", "sparse"] {
            fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
        }
        fs.unmount().expect("unmounts");
        let last = run(&device, CheckOptions::default());
        assert!(last.is_consistent() && last.clean && last.lost_before.is_empty(), "{:?}", last.findings);
    }
}

#[test]
fn directories_keep_their_names_and_others_go_where_nothing_is_left() {
    for clean in [true, false] {
        let mut inodes = Vec::new();
        let device = image(clean, |fs| {
            let directory = make(fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY | 0o2750, b"");
            for index in 0..300 {
                make(fs, directory, &format!("file {index}"), file_type::REGULAR | 0o644, b"");
            }
            inodes.extend([directory, make(fs, directory, "below", file_type::DIRECTORY | 0o755, b"")]);
            inodes.push(make(fs, InodeNumber::ROOT, "pipe", file_type::FIFO | 0o640, b""));
            inodes.push(make(fs, InodeNumber::ROOT, "device", file_type::CHARACTER | 0o640, b""));
            inodes.push(make(fs, InodeNumber::ROOT, "short", file_type::SYMLINK | 0o777, b"target"));
            inodes.push(make(fs, InodeNumber::ROOT, "long", file_type::SYMLINK | 0o777, &[b't'; 300]));
        });
        inodes.iter().for_each(|inode| halve(&device, *inode));
        let report = repaired(&device);
        assert!(report.placed.is_empty(), "{:?}", report.placed);
        assert_eq!(
            report.lost.iter().map(|lost| lost.inode).collect::<Vec<_>>(),
            inodes[3..].iter().map(|inode| inode.get()).collect::<Vec<_>>()
        );
        let fs = mount(&device);
        let mut names = 0;
        fs.read_directory(inodes[0], 2, &mut |_| {
            names += 1;
            true
        })
        .expect("lists");
        let found = fs.attributes(inodes[0]).expect("there");
        assert_eq!((names, found.mode, found.nlink), (301, file_type::DIRECTORY | 0o750, 3));
        assert_eq!(fs.lookup(inodes[0], b"below").expect("there").inode, inodes[1]);
        assert_eq!(fs.lookup(InodeNumber::ROOT, b"pipe").expect("there").mode, file_type::FIFO | 0o640);
        for name in ["device", "short", "long"] {
            assert!(matches!(fs.lookup(InodeNumber::ROOT, name.as_bytes()), Err(Error::NotFound)), "{name}");
        }
        fs.unmount().expect("unmounts");
        let last = run(&device, CheckOptions::default());
        assert!(last.is_consistent() && last.clean, "{:?}", last.findings);
    }
}

/// Pages that a repair makes anew are not those of another inode that it saves: it took the lowest page that nobody claimed, which was that.
fn pages_of_halves_beside_new_ones() {
    let large = data_of(1, 5 * BLOCK + 77);
    for is_first in [true, false] {
        for clean in [true, false] {
            let mut inodes = Vec::new();
            let device = image(clean, |fs| {
                let directory = make(fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY | 0o755, b"");
                if is_first {
                    inodes.push(file(fs, "large", &large));
                }
                let other = make(fs, InodeNumber::ROOT, "other", file_type::DIRECTORY | 0o755, b"");
                for index in 0..300 {
                    make(fs, if is_first { other } else { directory }, &format!("file {index}"), file_type::REGULAR | 0o644, b"");
                }
                if !is_first {
                    inodes.push(file(fs, "large", &large));
                }
                inodes.push(if is_first { other } else { directory });
            });
            inodes.iter().for_each(|inode| halve(&device, *inode));
            let report = repaired(&device);
            assert!(report.lost.is_empty() && report.placed.is_empty(), "first {is_first}, clean {clean}: {report:?}");
            let fs = mount(&device);
            assert!(read(&fs, inodes[0]).expect("saved") == large, "first {is_first}, clean {clean}");
            let mut names = 0;
            fs.read_directory(inodes[1], 2, &mut |_| {
                names += 1;
                true
            })
            .expect("lists");
            assert_eq!(names, 300);
        }
    }
}

#[test]
fn regression_new_pages_were_those_of_inodes_that_were_saved() {
    pages_of_halves_beside_new_ones();
}

#[test]
fn new_pages_over_those_of_saved_inodes_are_caught() {
    use tandemfs_check::mutant::Mutant;
    support::assert_caught(&[(pages_of_halves_beside_new_ones, Mutant::HalvesOverwritten)]);
}

/// A mount removes the name of a damaged inode; a repair does not bring it back, unless it cannot know that.
#[test]
fn an_inode_whose_name_was_removed_goes() {
    let mut inode = InodeNumber::ROOT;
    let device = image(true, |fs| inode = file(fs, "large", &data_of(1, 300_000)));
    halve(&device, inode);
    let fs = mount(&device);
    fs.unlink(InodeNumber::ROOT, b"large").expect("removed");
    fs.unmount().expect("unmounts");
    let report = repaired(&device);
    assert!(report.placed.is_empty() && report.rescued.is_empty(), "{report:?}");
    let fs = mount(&device);
    assert!(matches!(fs.attributes(inode), Err(Error::Stale(_))));
}

/// A file whose directory is lost has lost its name by that, and nobody removed it: it goes where its undamaged neighbour goes.
fn files_of_a_lost_directory() {
    let large = data_of(1, 5 * BLOCK + 77);
    for clean in [true, false] {
        let mut inodes = Vec::new();
        let device = image(clean, |fs| {
            let directory = make(fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY | 0o755, b"");
            for name in ["large", "neighbour"] {
                let inode = make(fs, directory, name, file_type::REGULAR | 0o644, b"");
                fs.write(inode, 0, &large, WriteOptions::default()).expect("written");
                inodes.push(inode);
            }
            inodes.push(directory);
        });
        halve(&device, inodes[0]);
        [0, 1].into_iter().for_each(|index| damage_line(&device, inodes[2], index));
        let report = repaired(&device);
        let mut placed: Vec<_> = report.placed.iter().map(|placed| placed.inode).collect();
        placed.sort_unstable();
        assert!(placed.ends_with(&[inodes[0].get(), inodes[1].get()]), "clean {clean}: {placed:?}, {:?}", report.lost);
        let fs = mount(&device);
        let place = fs.lookup(InodeNumber::ROOT, b"lost+found").expect("made").inode;
        for inode in &inodes[..2] {
            let found = fs.lookup(place, format!("#{inode}").as_bytes()).expect("there").inode;
            assert!(found == *inode && read(&fs, found).expect("whole") == large, "clean {clean}");
        }
    }
}

#[test]
fn regression_an_inode_was_freed_because_its_directory_was_lost() {
    files_of_a_lost_directory();
}

/// An inode that is no directory takes no names with it: what has no name beside it was removed.
#[test]
fn a_lost_file_loses_no_names() {
    let mut inodes = Vec::new();
    let device = image(true, |fs| {
        inodes.push(file(fs, "large", &data_of(1, 300_000)));
        inodes.push(file(fs, "other", &data_of(2, 300_000)));
    });
    halve(&device, inodes[0]);
    let fs = mount(&device);
    fs.unlink(InodeNumber::ROOT, b"large").expect("removed");
    fs.unmount().expect("unmounts");
    [0, 1].into_iter().for_each(|index| damage_line(&device, inodes[1], index));
    let report = repaired(&device);
    assert!(report.placed.is_empty() && report.rescued.is_empty(), "{report:?}");
}

#[test]
fn a_repair_that_takes_lost_names_for_removed_ones_is_caught() {
    use tandemfs_check::mutant::Mutant;
    support::assert_caught(&[(files_of_a_lost_directory, Mutant::LostNamesRemoved)]);
}

/// A file that was emptied and written again leaves pages of its old mapping that verify, and sectors that match them.
fn emptied_files() {
    for (clean, length) in [(true, 4000), (true, 3 * BLOCK), (false, 4000), (false, 3 * BLOCK)] {
        let (old, new) = (data_of(5, 3 * BLOCK), data_of(6, length));
        let mut inode = InodeNumber::ROOT;
        let device = image(clean, |fs| {
            inode = file(fs, "file", &old);
            if length < BLOCK {
                // One sector is left, which counts as much as the log that is written later.
                fs.set_attributes(inode, &SetAttributes { size: Some(4096), ..SetAttributes::default() }).expect("truncated");
            }
            empty(fs, inode);
            fs.checkpoint().expect("home");
            fs.write(inode, 0, &new, WriteOptions::default()).expect("written");
        });
        halve(&device, inode);
        let report = repaired(&device);
        let fs = mount(&device);
        match read(&fs, inode) {
            Ok(content) => assert!(content == new && report.lost.is_empty(), "older bytes; clean: {clean}, {length} B"),
            Err(Error::LostData { .. }) => assert!(length < BLOCK || !clean, "clean: {clean}, {length} B"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn older_mappings_of_a_file_are_not_taken_for_its_content() {
    emptied_files();
}

#[test]
fn a_repair_that_takes_any_tree_that_verifies_is_caught() {
    use tandemfs_check::mutant::Mutant;
    support::assert_caught(&[(emptied_files, Mutant::StaleTreesTaken)]);
}

/// A file of two blocks of one small log each: it counts less than a block, but its root is a page.
fn sparse_file(fs: &FileSystem, name: &str) -> InodeNumber {
    let inode = file(fs, name, &data_of(3, 100));
    fs.write(inode, BLOCK as u64, &data_of(4, 100), WriteOptions::default()).expect("written");
    inode
}

fn content_of_sparse() -> Vec<u8> {
    let mut content = data_of(3, 100);
    content.resize(BLOCK, 0);
    content.extend(data_of(4, 100));
    content
}

/// The image after so many of the events of a repair.
fn after_events(device: &MemoryDevice, events: &[tandemfs_crash::Event]) -> MemoryDevice {
    let Recorded { mut memory, blocks } = device.zones();
    for event in events {
        if let tandemfs_crash::Event::Store { offset, bytes } = event {
            memory[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    MemoryDevice::from_zones(Recorded { memory, blocks }, PersistenceDomain::Gpf)
}

fn events_of_repair(device: &MemoryDevice) -> Vec<tandemfs_crash::Event> {
    let whole = device.fork();
    whole.start_recording();
    run(&whole, CheckOptions { repair: true, ..CheckOptions::default() });
    whole.stop_recording()
}

/// What only the maps prove is proved after a cut, too, and after a cut of the repair that follows.
fn cut_repairs_with_maps() {
    let mut inodes = Vec::new();
    let device = image(true, |fs| {
        inodes.extend(["one", "two"].map(|name| sparse_file(fs, name)));
        let directory = make(fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY | 0o755, b"");
        for index in 0..200 {
            make(fs, directory, &format!("file {index}"), file_type::REGULAR | 0o644, b"");
        }
        inodes.push(directory);
    });
    inodes.iter().for_each(|inode| halve(&device, *inode));
    let assert_saved = |device: &MemoryDevice, what: &str| {
        let report = run(device, CheckOptions { repair: true, ..CheckOptions::default() });
        assert!(report.is_consistent() && report.lost.is_empty(), "{what}: {:?} {:?}", report.findings, report.lost);
        let fs = mount(device);
        for inode in &inodes[..2] {
            assert!(read(&fs, *inode).expect("saved") == content_of_sparse(), "{what}");
        }
        let mut names = 0;
        fs.read_directory(inodes[2], 2, &mut |_| {
            names += 1;
            true
        })
        .expect("lists");
        assert_eq!(names, 200, "{what}");
    };
    let events = events_of_repair(&device);
    let mut before = device.zones();
    for cut in 0..=events.len() {
        let device = after_events(&device, &events[..cut]);
        let zones = device.zones();
        if cut > 0 && zones == before {
            continue; // a flush or a fence
        }
        before = zones;
        assert_saved(&device.fork(), &format!("cut {cut}"));
        let (_, tree) = support::restored::restored(Arc::new(device.fork()), &RestoreOptions::default());
        assert!(tree["/one"].content == content_of_sparse(), "cut {cut}");
        if cut % 5 == 0 {
            let mounted = device.fork(); // a mount may come first: it ends what the maps prove
            mount(&mounted).unmount().expect("unmounts");
            let report = run(&mounted, CheckOptions { repair: true, ..CheckOptions::default() });
            assert!(report.is_consistent() && report.placed.is_empty(), "cut {cut}: {:?}", report.findings);
        }
        if cut % 7 == 0 {
            let again = events_of_repair(&device);
            for second in (0..again.len()).step_by(11) {
                assert_saved(&after_events(&device, &again[..second]), &format!("cut {cut}, then {second}"));
            }
        }
    }
}

#[test]
fn regression_a_cut_repair_lost_what_the_maps_prove() {
    cut_repairs_with_maps();
}

#[test]
fn a_repair_that_ends_the_maps_first_is_caught() {
    use tandemfs_check::mutant::Mutant;
    support::assert_caught(&[(cut_repairs_with_maps, Mutant::MapsEndFirst)]);
}

/// An unmount that was cut between its maps and the clean flag: they prove what they prove of a clean image.
#[test]
fn maps_of_an_unmount_that_was_cut_prove_the_same() {
    let mut inodes = Vec::new();
    let device = image(true, |fs| {
        inodes.push(sparse_file(fs, "sparse"));
        // Its older mapping has the same space.
        inodes.push(sparse_file(fs, "emptied"));
        empty(fs, inodes[1]);
        fs.checkpoint().expect("home");
        for offset in [0, 2 * BLOCK as u64] {
            fs.write(inodes[1], offset, &data_of(9, 100), WriteOptions::default()).expect("written");
        }
    });
    device.damage(|zones| {
        let superblock = Superblock::decode(&zones.memory).expect("verifies");
        let bytes = Superblock { clean: false, ..superblock }.encode();
        for at in SUPERBLOCK_OFFSETS.map(|at| at as usize) {
            let bytes = zerocopy::IntoBytes::as_bytes(&bytes);
            zones.memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
    });
    inodes.iter().for_each(|inode| halve(&device, *inode));
    let report = repaired(&device);
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let fs = mount(&device);
    assert!(read(&fs, inodes[0]).expect("saved") == content_of_sparse());
    let content = read(&fs, inodes[1]).expect("saved");
    assert!(content[..100] == data_of(9, 100) && content[2 * BLOCK..] == data_of(9, 100), "not the older mapping");
}

/// A repair that is killed loses no more than one that is not.
#[test]
fn a_repair_that_was_cut_keeps_names_and_never_shows_other_bytes() {
    let large = data_of(1, 5 * BLOCK + 77);
    let mut inode = InodeNumber::ROOT;
    let device = image(true, |fs| inode = file(fs, "large", &large));
    halve(&device, inode);
    let whole = device.fork();
    whole.start_recording();
    repaired(&whole);
    let events = whole.stop_recording();
    for cut in (0..events.len()).step_by(9) {
        let device = after_events(&device, &events[..cut]);
        repaired(&device);
        let fs = mount(&device);
        assert_eq!(fs.lookup(InodeNumber::ROOT, b"large").expect("there").inode, inode);
        assert!(read(&fs, inode).expect("more than a block is proved also without maps") == large, "cut {cut}");
    }
}
