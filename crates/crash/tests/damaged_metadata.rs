//! Damaged lines of metadata do not take the file system away, and no byte that a damaged line names is overwritten (RULES R26).
//!
//! Each run damages an image, mounts it for writing, reads everything else, works until both zones are full, and unmounts, more than once.
//! Then the damaged line is put back as it was: `tandemfs_check`, which reads all data, must find nothing, and the object that was hidden
//! must be whole. Space that was given out although the damaged line named it would show there.

mod damage;

use std::sync::Arc;

use damage::lines::{Image, What, superblock};
use damage::{FILE, How, bytes_of, content, find, findings, journalled, make, mount, options, places, run, scene, work};
use tandemfs_check::{CheckOptions, check};
use tandemfs_crash::{MemoryDevice, Random, chosen, rounds_or, seed_or};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::{EMPTY_LINE, InodeNumber, LineAddress};
use tandemfs_fs::{AllocateMode, DamageReport, Error, FileSystem, MountOptions, RenameMode, SetAttributes};

fn try_all(clean: bool) {
    let scene = scene(clean);
    let mut random = Random::new(seed_or(1));
    let mut kinds = std::collections::BTreeMap::new();
    for (object, what, address) in places(&scene, rounds_or(2)) {
        for how in How::ALL.into_iter().filter(|how| !how.is_blind(what)) {
            let name = format!("{what:?} of {:?} at {address}, {how:?}", String::from_utf8_lossy(scene.objects[object].0.last().unwrap()));
            let found = run(&scene, &[(object, what, address, how)], 1, &mut random).unwrap_or_else(|what| panic!("{name}: {what}"));
            let counts: &mut (u64, u64) = kinds.entry(what).or_default();
            *counts = (counts.0 + 1, counts.1 + u64::from(found.holds_back));
            if !clean && !matches!(what, What::Head | What::Continuation | What::Value) {
                assert_eq!(found.objects, 1, "{name}");
                // One wrong bit hides nothing: all free space stays free.
                let held = found.held_memory_bytes + found.held_block_bytes;
                assert_eq!(held == 0, how == How::Bit, "{name}: {found:?}");
            }
        }
    }
    println!("clean: {}, runs and how many held space back: {kinds:?}", scene.clean);
    for needed in [What::Hot, What::Cold, What::Mapping(1), What::Mapping(2), What::Mapping(3), What::Leaf, What::Head, What::Set] {
        assert!(kinds.contains_key(&needed), "{needed:?} was not tried");
    }
    for needed in [What::Continuation, What::Addresses, What::Value] {
        assert!(kinds.contains_key(&needed), "{needed:?} was not tried");
    }
}

#[test]
fn damage_after_a_crash_hides_its_object_and_nothing_else() {
    try_all(false);
}

#[test]
fn damage_after_a_clean_unmount_hides_its_object_and_nothing_else() {
    try_all(true);
}

/// A line of sector checksums has none of its own: its damage is damage of the data, and no space is lost.
#[test]
fn damage_of_a_vector_is_damage_of_the_data() {
    let scene = scene(false);
    let (object, what, address) = *scene.lines().iter().find(|(_, what, _)| *what == What::Vector).expect("there is one");
    let found = run(&scene, &[(object, what, address, How::Noise)], 2, &mut Random::new(1)).expect("goes well");
    assert_eq!(found, DamageReport::default());
}

/// Several damaged lines at once, and several mounts: nothing gets worse.
#[test]
fn several_damages_and_several_mounts_lose_nothing() {
    let scenes = [scene(false), scene(true)];
    let mut random = Random::new(seed_or(7));
    for round in 0..rounds_or(12) {
        let scene = &scenes[random.below(2) as usize];
        let lines = scene.lines();
        let mut places: Vec<(usize, What, LineAddress, How)> = Vec::new();
        for _ in 0..2 + random.below(4) {
            let (object, what, address) = *random.pick(&lines);
            let how = *random.pick(&How::ALL);
            if !how.is_blind(what) && places.iter().all(|(.., other, _)| *other != address) {
                places.push((object, what, address, how));
            }
        }
        run(scene, &places, 3, &mut random).unwrap_or_else(|what| panic!("round {round}: {places:?}: {what}"));
    }
}

/// A file whose mapping or attributes are damaged can be removed, replaced and emptied; then nothing is damaged any more, and the next
/// mount finds its space free.
#[test]
fn a_damaged_file_can_be_removed_replaced_and_emptied() {
    for (clean, how) in [(true, How::Noise), (false, How::Noise), (false, How::Bit), (true, How::Zeros), (false, How::Zeros)] {
        let scene = scene(clean);
        for (object, what, address) in places(&scene, 1) {
            let is_inode = matches!(what, What::Hot | What::Cold);
            if object > 1 || is_inode || how.is_blind(what) {
                continue;
            }
            for action in 0..3 {
                let name = format!("clean {clean}, {what:?}, {how:?}, action {action}");
                let mut zones = scene.zones.clone();
                how.apply(bytes_of(&mut zones, address), &mut Random::new(5));
                let (device, fs) = mount(&zones);
                let fs = fs.expect("mounts");
                let victims = find(&fs, &[b"victims"]).expect("there");
                let file_name: &[u8] = if object == 0 { b"tree" } else { b"attributed" };
                let file = find(&fs, &[b"victims", file_name]).expect("its inode is whole");
                match action {
                    0 => fs.unlink(victims, file_name).expect("removed"),
                    1 => {
                        let keep = find(&fs, &[b"keep"]).expect("there");
                        fs.rename(keep, b"small", victims, file_name, RenameMode::Replace).expect("replaced");
                    }
                    _ => {
                        let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
                        fs.set_attributes(file, &empty).expect("emptied");
                    }
                }
                fs.unmount().expect("unmounts");
                let (device, fs) = {
                    let zones = device.zones();
                    drop(device);
                    mount(&zones)
                };
                let fs = fs.expect("mounts again");
                // Emptying a file does not touch its attributes.
                if action < 2 || object == 0 {
                    assert!(!fs.damage().holds_back && fs.damage().objects == 0, "{name}: {:?}", fs.damage());
                    fs.unmount().expect("unmounts");
                    assert!(superblock(&device.zones()).clean, "{name}");
                    assert_eq!(findings(&device.zones()), Vec::<String>::new(), "{name}");
                }
            }
        }
    }
}

/// Zeros in place of any line of a mapping, with records or with holes alone, are found by a read, by a scrub and by a check, also where
/// the maps were loaded and no account was compared (RULES R27).
#[test]
fn zeros_for_any_mapping_line_are_damage() {
    let scene = scene(true);
    let (file, expected) = (scene.objects[0].1, &scene.objects[0].2);
    let lines: Vec<_> = scene.lines().into_iter().filter(|(object, what, _)| *object == 0 && matches!(what, What::Mapping(_))).collect();
    let pages = lines.len() / 64;
    assert!(pages >= 6 && lines.len() == pages * 64, "every line of every page is sealed: {}", lines.len());
    let mut failed_reads = 0;
    for index in chosen("lines of the mapping", lines.len() as u64, rounds_or(60)) {
        let (_, what, address) = lines[index as usize];
        let mut zones = scene.zones.clone();
        How::Zeros.apply(bytes_of(&mut zones, address), &mut Random::new(1));
        let found = findings(&zones);
        assert!(found.len() == 1 && found[0].contains("MappingDamaged"), "{what:?} at {address}: {found:?}");
        let (_device, fs) = mount(&zones);
        let fs = fs.expect("mounts");
        match content(&fs, file) {
            Ok(content) => assert_eq!(content, *expected, "no byte of the line was asked for"),
            Err(Error::Damaged { inode, .. }) => {
                assert_eq!(inode, file);
                failed_reads += 1;
            }
            Err(error) => panic!("{what:?} at {address}: {error}"),
        }
        let mut scrub = fs.scrub();
        while fs.scrub_step(&mut scrub) {}
        let offsets: Vec<_> = scrub.findings().iter().map(|finding| (finding.inode, finding.device_offset)).collect();
        assert_eq!(offsets, [(Some(file), address.offset_bytes())], "{what:?}");
    }
    assert!(failed_reads > 0, "no read met the damage");
}

/// A leaf of zeros read as no logs at all where the maps were loaded: the file showed the older bytes below them.
#[test]
fn regression_a_leaf_of_zeros_showed_older_bytes() {
    let scene = scene(true);
    let (file, expected) = (scene.objects[1].1, &scene.objects[1].2);
    let (_, _, address) = *scene.lines().iter().find(|(object, what, _)| *object == 1 && *what == What::Leaf).expect("there");
    let mut zones = scene.zones.clone();
    How::Zeros.apply(bytes_of(&mut zones, address), &mut Random::new(1));
    let (_device, fs) = mount(&zones);
    let fs = fs.expect("mounts");
    assert!(matches!(fs.read(file, 0, &mut [0; 5000]), Err(Error::Damaged { inode, .. }) if inode == file));
    assert!(content(&fs, file).is_err() && expected.size == 5000);
    fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("emptied");
    assert_eq!(fs.read(file, 0, &mut [0; 5000]).expect("is empty"), 0);
}

/// A page that loses its last record beside a lost line is kept: freeing it would make the loss a hole.
#[test]
fn a_page_with_a_lost_line_is_not_freed_as_empty() {
    let scene = scene(true);
    let is_it = |(object, what, _): &&(usize, What, LineAddress)| *object == 0 && *what == What::Mapping(1);
    // The page of what is at 3 GiB; only its first line has a record.
    let (_, _, address) = *scene.lines().iter().rfind(is_it).expect("there");
    for lost in [true, false] {
        let mut zones = scene.zones.clone();
        if lost {
            How::Zeros.apply(bytes_of(&mut zones, address), &mut Random::new(1));
        }
        let (device, fs) = mount(&zones);
        let fs = fs.expect("mounts");
        let pages = |zones| Image::new(zones).lines_of(scene.objects[0].1).iter().filter(|(what, _)| *what == What::Mapping(1)).count();
        let before = pages(&scene.zones);
        fs.allocate(scene.objects[0].1, 3 << 30, 2 << 20, AllocateMode::Punch).expect("the lost line is not in the range");
        fs.unmount().expect("unmounts");
        let found = findings(&device.zones());
        assert_eq!(found.iter().filter(|finding| finding.contains("MappingDamaged")).count(), usize::from(lost), "{found:?}");
        // `lines_of` leaves zeros out.
        assert_eq!(before - pages(&device.zones()), if lost { 1 } else { 64 });
    }
}

/// Of a damaged inode nothing but its names is known: they can be removed and replaced, and nothing else.
#[test]
fn a_name_of_a_damaged_inode_can_be_removed_and_replaced() {
    for clean in [true, false] {
        let scene = scene(clean);
        for (what, action) in [(What::Hot, 0), (What::Cold, 1), (What::Hot, 2), (What::Cold, 3)] {
            let (_, _, address) = *scene.lines().iter().find(|(object, found, _)| *object == 1 && *found == what).expect("there");
            let mut zones = scene.zones.clone();
            How::Noise.apply(bytes_of(&mut zones, address), &mut Random::new(9));
            let (device, fs) = mount(&zones);
            let fs = fs.expect("mounts");
            let (victims, keep) = (find(&fs, &[b"victims"]).expect("there"), find(&fs, &[b"keep"]).expect("there"));
            let small = find(&fs, &[b"keep", b"small"]).expect("there");
            assert!(matches!(fs.lookup(victims, b"attributed"), Err(Error::Damaged { .. })));
            let (number, kind) = fs.damaged_name(victims, b"attributed").expect("looks").expect("is damaged");
            assert_eq!((number, kind), (scene.objects[1].1, tandemfs_format::inode::file_type::REGULAR));
            assert_eq!(fs.damaged_name(keep, b"small").expect("looks"), None);
            assert_eq!(fs.damaged_name(keep, b"absent").expect("looks"), None);
            let rename = |mode| fs.rename(keep, b"small", victims, b"attributed", mode);
            match action {
                0 => fs.unlink(victims, b"attributed").expect("removed"),
                1 | 2 => {
                    assert!(matches!(rename(RenameMode::NoReplace), Err(Error::Exists)));
                    assert!(matches!(rename(RenameMode::Exchange), Err(Error::Damaged { .. })));
                    rename(RenameMode::Replace).expect("replaced");
                    assert!(matches!(fs.lookup(keep, b"small"), Err(Error::NotFound)));
                    assert_eq!(fs.lookup(victims, b"attributed").expect("there").inode, small);
                }
                _ => {
                    let from = fs.rename(victims, b"attributed", keep, b"moved", RenameMode::Replace);
                    assert!(matches!(from, Err(Error::Damaged { .. })), "what is moved has to know its parent");
                    fs.unlink(victims, b"attributed").expect("removed");
                }
            }
            fs.forget(number, 1);
            let mut names = Vec::new();
            let listed = fs.read_directory(victims, 2, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            });
            listed.expect("lists");
            assert_eq!(names.iter().filter(|name| *name == b"attributed").count(), usize::from(action == 1 || action == 2));
            fs.unmount().expect("unmounts");
            let repaired = MemoryDevice::from_zones(device.zones(), PersistenceDomain::Gpf);
            let options = CheckOptions { repair: true, threads: 1, ..CheckOptions::default() };
            let report = check(&Drive::new(Arc::new(repaired)), &options, &mut |_| {}).expect("runs");
            assert!(report.is_consistent() && report.placed.is_empty(), "{:?}", report.findings);
        }
    }
}

/// Names of a directory that can be read are listed, found and removed beside a damaged one; then the directory goes.
#[test]
fn a_directory_with_a_damaged_name_can_be_emptied_and_removed() {
    for how in [How::Bit, How::Noise] {
        let scene = scene(false);
        let lines = scene.lines();
        for what in [What::Head, What::Continuation] {
            let (_, _, address) = *lines.iter().rfind(|(object, found, _)| *object == 4 && *found == what).expect("there");
            let mut zones = scene.zones.clone();
            how.apply(bytes_of(&mut zones, address), &mut Random::new(3));
            let (_device, fs) = mount(&zones);
            let fs = fs.expect("mounts");
            let directory = find(&fs, &[b"names"]).expect("there");
            let mut names = Vec::new();
            let listed = fs.read_directory(directory, 2, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            });
            assert!(matches!(listed, Err(Error::Damaged { .. })), "a listing ends with the damage: {listed:?}");
            assert_eq!(names.len(), 70, "{how:?} of a {what:?}: all others are listed");
            let absent = fs.lookup(directory, b"absent");
            let made = make(&fs, directory, b"new", FILE);
            if how == How::Noise && what == What::Head {
                assert!(matches!((absent, made), (Err(Error::Damaged { .. }), Err(Error::Damaged { .. }))), "any name may be the lost one");
            } else {
                assert!(matches!(absent, Err(Error::NotFound)), "the damaged name is another: {absent:?}");
                made.expect("made beside the damaged name");
                fs.unlink(directory, b"new").expect("removed");
            }
            let is_not_empty = |fs: &FileSystem| matches!(fs.remove_directory(InodeNumber::ROOT, b"names"), Err(Error::NotEmpty));
            assert!(is_not_empty(&fs));
            for name in &names {
                fs.unlink(directory, name).unwrap_or_else(|error| panic!("{error}"));
            }
            assert!(!fs.damage().holds_back, "names hide no space");
            let removed = fs.remove_directory(InodeNumber::ROOT, b"names");
            if how == How::Bit {
                assert!(matches!(removed, Err(Error::Damaged { .. })), "a repair corrects the name: {removed:?}");
            } else {
                removed.expect("nothing in it can be read");
                assert!(matches!(find(&fs, &[b"names"]), Err(Error::NotFound)));
            }
        }
    }
}

/// A directory whose names a repair can give back is not taken for an empty one.
fn correctable_directory() {
    for clean in [true, false] {
        let scene = scene(clean);
        let lines = Image::new(&scene.zones).lines_of(scene.objects[4].1);
        let (_, address) = *lines.iter().find(|(what, _)| *what == What::Mapping(1)).expect("names take more than a page");
        for how in [How::Bit, How::Noise] {
            let mut zones = scene.zones.clone();
            how.apply(bytes_of(&mut zones, address), &mut Random::new(3));
            let (device, fs) = mount(&zones);
            let fs = fs.expect("mounts");
            make(&fs, InodeNumber::ROOT, b"empty", damage::DIRECTORY).expect("made");
            let replaced = fs.rename(InodeNumber::ROOT, b"empty", InodeNumber::ROOT, b"names", RenameMode::Replace);
            if how == How::Noise {
                replaced.expect("no name in it can be read");
                continue;
            }
            assert!(matches!(replaced, Err(Error::Damaged { .. })), "clean {clean}: {replaced:?}");
            let removed = fs.remove_directory(InodeNumber::ROOT, b"names");
            assert!(matches!(removed, Err(Error::Damaged { .. })), "clean {clean}: {removed:?}");
            fs.unmount().expect("unmounts");
            let options = CheckOptions { repair: true, threads: 1, ..CheckOptions::default() };
            let report = check(&Drive::new(Arc::new(device.clone())), &options, &mut |_| {}).expect("runs");
            assert!(report.is_consistent(), "{:?}", report.findings);
            let (_device, fs) = mount(&device.zones());
            let fs = fs.expect("mounts");
            let names = find(&fs, &[b"names"]).expect("there");
            assert_eq!(content(&fs, names).expect("read").names, scene.objects[4].2.names);
        }
    }
}

#[test]
fn regression_a_directory_that_can_be_corrected_was_removed_as_empty() {
    correctable_directory();
}

/// A cut in front of the damage keeps what is before it, also where the maps were loaded.
#[test]
fn a_truncation_in_front_of_the_damage_keeps_what_is_before_it() {
    let scene = scene(true);
    let lines = scene.lines();
    for how in [How::Bit, How::Noise] {
        // The first line of the last page of height 1 maps what is behind 3 GiB.
        let (_, _, last) = *lines.iter().rfind(|(object, what, _)| *object == 0 && *what == What::Mapping(1)).expect("there");
        let address = last.page();
        let mut zones = scene.zones.clone();
        how.apply(bytes_of(&mut zones, address), &mut Random::new(5));
        let (device, fs) = mount(&zones);
        let fs = fs.expect("mounts");
        let file = find(&fs, &[b"victims", b"tree"]).expect("there");
        let cut = |size| fs.set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() });
        assert!(matches!(cut((3 << 30) + 10), Err(Error::Damaged { .. })), "the damaged line may name what stays");
        cut(140_000).expect("cut");
        let mut bytes = vec![0; 200_000];
        assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), 140_000);
        assert!(bytes[..140_000] == scene.objects[0].2.pieces[0][..140_000]);
        fs.unmount().expect("unmounts");
        assert!(!superblock(&device.zones()).clean, "the maps still have what was lost");
        assert_eq!(findings(&device.zones()), Vec::<String>::new());
    }
}

/// Lines that verify, and name the same space twice: the second inode is shut off, and nothing is freed that the first one has.
#[test]
fn an_inode_that_shares_space_is_shut_off() {
    let scene = scene(false);
    let image = Image::new(&scene.zones);
    let (from, to) = (scene.objects[7].1, scene.objects[0].1);
    let lines = |inode| image.lines_of(inode)[..2].iter().map(|(_, address)| *address).collect::<Vec<_>>();
    let (first, second) = (lines(from.min(to)), lines(from.max(to)));
    let mut cold = image.line(second[1]);
    cold[40..60].copy_from_slice(&image.line(first[1])[40..60]);
    let place = tandemfs_format::inode::Inode::place(image.pair, from.max(to), second[1]);
    let mut zones = scene.zones.clone();
    bytes_of(&mut zones, second[1]).copy_from_slice(&place.seal(cold));
    let (device, fs) = mount(&zones);
    let fs = fs.expect("mounts");
    let [victim, kept] = [&[&b"victims"[..], b"tree"], &[&b"keep"[..], b"tree"]].map(|path| find(&fs, path));
    let results = [victim, kept];
    assert_eq!(results.iter().filter(|result| matches!(result, Err(Error::Damaged { .. }))).count(), 1, "{results:?}");
    assert!(fs.damage().held_block_bytes > 0);
    work(&fs, 0).expect("everything else works");
    fs.unmount().expect("unmounts");
    assert!(!superblock(&device.zones()).clean);
    assert_ne!(bytes_of(&mut device.zones(), first[0]), EMPTY_LINE);
}

/// A ring ended at a damaged record as at a torn one: everything that was acknowledged after it was lost without a message.
#[test]
fn regression_a_damaged_record_in_the_middle_of_a_ring_ended_it() {
    let (zones, ring, starts) = journalled();
    let last = starts.len() - 1;
    for (index, start) in starts.iter().enumerate() {
        let mut zones = zones.clone();
        zones.memory[*start as usize + 50] ^= 1;
        let (device, fs) = mount(&zones);
        if index == last {
            let fs = fs.expect("the last record may be a torn one");
            assert!(find(&fs, &[b"d3"]).is_ok() && find(&fs, &[b"d4"]).is_err());
            continue;
        }
        let message = match fs {
            Err(error @ Error::JournalDamaged { .. }) => error.to_string(),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("record {index} is damaged, and later ones are not"),
        };
        assert!(message.contains(&format!("journal ring {ring}")) && message.contains("check --repair"), "{message}");
        assert!(device.zones() == zones, "nothing was written");
        let read_only = MountOptions { read_only: true, ..options() };
        let fs = FileSystem::mount(Drive::new(Arc::new(device)), &read_only).expect("the state before the damage");
        assert!(find(&fs, &[b"d4"]).is_err());
    }
}
