//! Files with the hint *aligned*, and files that grow: where their blocks lie by what `tandemfs dump` shows, every cut of a rewriting into
//! aligned extents, random work beside it, and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use support::bugs::{alone, find_nothing, is_caught};
use support::work::{self, BLOCK_SIZES, checked};
use tandemfs_check::Dump;
use tandemfs_crash::{Effort, Explorer, Harness, Model, Operation, Random, Scene, Setting, compare_space, fill, rounds_or, seed_or};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, UNIT_BYTES};
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Home, LayoutOptions, WriteOptions};

use Operation::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNIT_PAGES: u64 = UNIT_BYTES / 4096;

fn setting(block_bytes: u32) -> Setting {
    Setting { memory_bytes: 64 << 20, block_zone_bytes: 48 << 20, ..Setting::small(PersistenceDomain::Gpf, block_bytes) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn mounted(setting: &Setting) -> Result<Harness, String> {
    Harness::new(setting.format(), &setting.mount, Model::default())
}

fn apply(harness: &mut Harness, operations: &[Operation]) -> Result<(), String> {
    operations.iter().try_for_each(|operation| harness.apply(operation).map_err(|error| format!("{operation:?}: {error}")))
}

fn inode(harness: &Harness, path: &str) -> Result<InodeNumber, String> {
    harness.fs.lookup(InodeNumber::ROOT, path.as_bytes()).map(|found| found.inode).map_err(text)
}

/// Where a whole block lies: in the memory zone or not, and its first page or sector.
type At = (bool, u64);

/// Where the blocks of a file lie that have the space of a whole one, as `tandemfs dump` shows it.
fn places(harness: &Harness, path: &str) -> Result<BTreeMap<u64, At>, String> {
    let drive = Drive::new(Arc::new(harness.device.fork()));
    let mut out = Vec::new();
    Dump::open(&drive).map_err(text)?.inode(inode(harness, path)?.get(), &mut out).map_err(text)?;
    let each = u64::from(harness.fs.superblock().geometry.block_bytes()) / 4096;
    let mut found = BTreeMap::new();
    let after = |line: &str, what: &str| -> Option<u64> {
        let (_, rest) = line.split_once(what)?;
        match rest.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex.split(|c: char| !c.is_ascii_hexdigit()).next()?, 16).ok(),
            None => rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok(),
        }
    };
    for line in String::from_utf8(out).map_err(text)?.lines().filter(|line| line.starts_with("block ")) {
        let Some(block) = after(line, "block ") else { continue };
        if let (Some(blocks), Some(first)) = (after(line, ": run of "), after(line, "from line ")) {
            found.extend((0..blocks).map(|index| (block + index, (true, first / 64 + index * each))));
        } else if let Some(count) = after(line, ": ").filter(|count| *count == each) {
            let in_memory = after(line, " pages from line ").map(|first| (true, first / 64));
            let at = in_memory.or_else(|| after(line, " sectors from ").map(|first| (false, first)));
            found.extend(at.filter(|_| count == each).map(|at| (block, at)));
        }
    }
    Ok(found)
}

/// Which pieces of 2 MiB of a file are aligned extents, of the first `pieces`.
fn aligned(harness: &Harness, path: &str, pieces: u64) -> Result<Vec<bool>, String> {
    let places = places(harness, path)?;
    let block_bytes = u64::from(harness.fs.superblock().geometry.block_bytes());
    let (blocks, each) = (UNIT_BYTES / block_bytes, block_bytes / 4096);
    let is_aligned = |piece: u64| {
        let Some((zone, start)) = places.get(&(piece * blocks)).copied() else { return false };
        start % UNIT_PAGES == 0 && (0..blocks).all(|index| places.get(&(piece * blocks + index)) == Some(&(zone, start + index * each)))
    };
    Ok((0..pieces).map(is_aligned).collect())
}

fn must_be(harness: &Harness, path: &str, expected: &[bool], what: &str) -> Result<(), String> {
    let found = aligned(harness, path, expected.len() as u64)?;
    if found == expected { Ok(()) } else { Err(format!("{what}: aligned are {found:?}, not {expected:?}")) }
}

/// Settings of both zones.
fn zones(block_bytes: u32) -> [Setting; 3] {
    [setting(block_bytes), setting(block_bytes).with_memory_homes(), setting(block_bytes).without_blocks()]
}

/// A file whose pieces come in another order and none of them together, so that no piece of 2 MiB is aligned.
fn fragmented(path: &'static str, bytes: u64) -> Vec<Operation> {
    let pieces = bytes.div_ceil(256 * KIB);
    let write = |piece: u64| Write(path, piece * 256 * KIB, (256 * KIB).min(bytes - piece * 256 * KIB) as u32, piece);
    let other = |piece: u64| Write("other", piece * 8 * KIB, 8 << 10, piece);
    let both = (0..pieces).rev().flat_map(|piece| [write(piece), other(piece)]);
    [Create(path), Create("other"), Truncate(path, bytes)].into_iter().chain(both).collect()
}

/// [AH2]: bytes of a file with the hint come into aligned extents, however they come.
#[test]
fn small_pieces_of_a_file_with_the_hint_are_aligned_at_once() {
    let _alone = alone();
    for (block_bytes, setting) in BLOCK_SIZES.into_iter().flat_map(|size| zones(size).map(|setting| (size, setting))) {
        let what = format!("{setting:?}");
        let mut harness = mounted(&setting).expect("mounts");
        apply(&mut harness, &[Create("f"), SetAligned("f", true), MakeDirectory("d"), SetAligned("d", true), Create("d/f")]).expect("made");
        // Appends, and pieces in any order, some of them smaller than a block.
        let appends = (0..60).map(|piece| Append("f", 70_000, piece));
        let step = u64::from(block_bytes).max(64 * KIB);
        let pieces = (0..4 * MIB / step).rev().map(|piece| Write("d/f", piece * step, 30_000, piece));
        apply(&mut harness, &appends.chain(pieces).collect::<Vec<_>>()).expect("written");
        if block_bytes > 64 << 10 {
            // Logs of a block hold no more: blocks are written again with what comes after it, so the complete pieces are moved.
            apply(&mut harness, &[MoveHomes]).expect("moved");
        }
        for end in [WriteBackAll, Crash] {
            apply(&mut harness, &[end, Checkpoint]).expect("done");
            must_be(&harness, "f", &[true, true], &what).expect("aligned");
            harness.compare().expect("agrees");
        }
        let file = harness.fs.lookup(inode(&harness, "d").expect("there"), b"f").expect("there").inode;
        assert_eq!(harness.fs.bytes_not_aligned(file).expect("known"), 0, "{what}");
        harness.remove_everything().and_then(|()| harness.compare_space()).expect("nothing leaks");
    }
}

/// [AE1]: what a file holds is rewritten when it gets the hint; holes of a piece become unwritten space, the end of the file stays.
#[test]
fn existing_data_is_rewritten() {
    let _alone = alone();
    for setting in BLOCK_SIZES.into_iter().flat_map(zones) {
        let what = format!("{setting:?}");
        let mut harness = mounted(&setting).expect("mounts");
        apply(&mut harness, &fragmented("f", 7 * MIB)).expect("written");
        apply(&mut harness, &[Punch("f", 3 * MIB, MIB), Scatter("f", 0, 3, 3000, 60, 6), Checkpoint]).expect("done");
        must_be(&harness, "f", &[false; 4], &what).expect("scattered");
        let before = harness.fs.attributes(inode(&harness, "f").expect("there")).expect("there");
        apply(&mut harness, &[SetAligned("f", true), MoveHomes, Checkpoint]).expect("rewritten");
        must_be(&harness, "f", &[true, true, true, false], &what).expect("aligned");
        let file = inode(&harness, "f").expect("there");
        let (now, work) = (harness.fs.attributes(file).expect("there"), harness.fs.statistics().work);
        assert_eq!((now.mtime, now.size, work.aligned_bytes, work.aligned_again), (before.mtime, before.size, 3 * UNIT_BYTES, 0), "{what}");
        for end in [Crash, Remount] {
            apply(&mut harness, &[end, MoveHomes]).expect("again");
            harness.compare().expect("agrees");
        }
        assert_eq!(harness.fs.statistics().work.aligned_bytes, 0, "{what}: nothing is rewritten twice");
        harness.compare_space().and_then(|()| harness.remove_everything()).and_then(|()| harness.compare_space()).expect("nothing leaks");
    }
}

/// A file with the hint and another home goes to an aligned extent of that zone.
#[test]
fn a_file_with_the_hint_moves_home_in_aligned_extents() {
    let _alone = alone();
    let mut harness = mounted(&setting(64 << 10)).expect("mounts");
    apply(&mut harness, &fragmented("f", 5 * MIB)).expect("written");
    for (home, in_memory) in [(Home::Memory, true), (Home::Block, false)] {
        apply(&mut harness, &[SetHome("f", home), SetAligned("f", true), MoveHomes, Checkpoint]).expect("moved");
        must_be(&harness, "f", &[true, true, false], "moved").expect("aligned");
        assert!(places(&harness, "f").expect("read").values().all(|(zone, _)| *zone == in_memory));
        harness.compare().expect("agrees");
    }
}

/// [AS1], [AS2]
fn grown() -> Result<(), String> {
    for (setting, moves) in zones(16 << 10).into_iter().zip([false, true, true]) {
        let mut harness = mounted(&setting)?;
        apply(&mut harness, &[Create("large"), Create("small"), Create("log")])?;
        for piece in 0..50 {
            apply(&mut harness, &[Append("large", 100_000, piece), Append("log", 100_000, piece)])?;
            apply(&mut harness, &[Append("small", 40_000, piece)])?;
        }
        apply(&mut harness, &[MoveHomes, Checkpoint])?;
        must_be(&harness, "small", &[false], "a small file")?;
        let expected = if moves { [true, true, false] } else { aligned(&harness, "large", 3)?.try_into().expect("three") };
        must_be(&harness, "large", &expected, "a file that grew past 2 MiB")?;
        must_be(&harness, "log", &if moves { expected } else { aligned(&harness, "log", 3)?.try_into().expect("three") }, "another")?;
        harness.compare()?;
        apply(&mut harness, &[Crash])?;
        harness.compare()?;
        harness.compare_space()?;
    }
    Ok(())
}

/// [AS3]: long overwrites of a file in the memory zone, with the hint and without.
fn taken_apart() -> Result<(), String> {
    for setting in zones(64 << 10).into_iter().skip(1) {
        let mut harness = mounted(&setting)?;
        for path in ["hinted", "other"] {
            apply(&mut harness, &[Create(path), SetHome(path, Home::Memory), Write(path, 0, 6 << 20, 1)])?;
        }
        apply(&mut harness, &[SetAligned("hinted", true), MoveHomes])?;
        for path in ["hinted", "other"] {
            must_be(&harness, path, &[true; 3], "written at once")?;
            apply(&mut harness, &[Write(path, 2 * MIB - 100 * KIB, 200 << 10, 2), Write(path, 3 * MIB, 128 << 10, 3)])?;
            must_be(&harness, path, &[false, false, true], "overwritten")?;
        }
        apply(&mut harness, &[MoveHomes, Checkpoint])?;
        must_be(&harness, "hinted", &[true; 3], "rewritten")?;
        must_be(&harness, "other", &[false, false, true], "without the hint")?;
        harness.compare()?;
        apply(&mut harness, &[Crash])?;
        harness.compare()?;
        harness.compare_space()?;
    }
    Ok(())
}

/// [AS2]: in the block zone a piece in many rows moves too.
#[test]
fn a_grown_piece_in_many_rows_moves_in_the_block_zone() {
    let _alone = alone();
    let mut harness = mounted(&setting(16 << 10)).expect("mounts");
    apply(&mut harness, &[Create("f"), Create("g")]).expect("made");
    for piece in 0..30 {
        apply(&mut harness, &[Append("f", 80 << 10, piece), Append("g", 80 << 10, piece)]).expect("written");
    }
    apply(&mut harness, &[Checkpoint]).expect("done");
    let rows = |harness: &Harness| {
        let places: Vec<_> = places(harness, "f").expect("read").into_values().take(128).collect();
        places.windows(2).filter(|two| two[1].1 != two[0].1 + 4).count()
    };
    let before = rows(&harness);
    apply(&mut harness, &[MoveHomes, Checkpoint]).expect("done");
    assert!(before < 2 || aligned(&harness, "f", 1).expect("read") == [true], "{before} rows before, {} after", rows(&harness));
    harness.compare().expect("agrees");
}

fn rewriting_cuts(setting: &Setting) -> Result<(), String> {
    let preparation: Vec<_> = fragmented("f", 2 * MIB + 9000)
        .into_iter()
        .chain([Scatter("f", 0, 3, 3000, 60, 6), Punch("f", MIB, 256 << 10), Allocate("f", MIB, 128 << 10, true), Checkpoint])
        .collect();
    let scene = Scene { preparation, ..Scene::small(setting) };
    let effort = Effort { states: 20, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 15, empty_one_in: 0 };
    Explorer::new(&scene, effort, 5)?.explore(&[SetAligned("f", true), MoveHomes], 0)
}

/// Every cut of a hint that is set for the first time and of the rewriting.
fn cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let small = Setting { memory_bytes: 32 << 20, block_zone_bytes: 16 << 20, ..Setting::small(domain, block_bytes) };
    rewriting_cuts(&small)?;
    rewriting_cuts(&small.with_memory_homes())
}

/// Every cut of the first write to a file with the hint.
fn first_write_cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let small = Setting { memory_bytes: 32 << 20, block_zone_bytes: 16 << 20, ..Setting::small(domain, block_bytes) };
    for setting in [small.clone(), small.with_memory_homes()] {
        let scene = Scene { preparation: vec![Create("f"), SetAligned("f", true), Checkpoint], ..Scene::small(&setting) };
        let effort = Effort { states: 12, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10, empty_one_in: 0 };
        Explorer::new(&scene, effort, 5)?.explore(&[Write("f", 100_000, 5000, 1), Write("f", 0, 64 << 10, 2)], 0)?;
    }
    Ok(())
}

fn adr_cuts() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 64 << 10)
}

/// A rewriting that ends after a step goes on after the next mount.
fn interrupted() -> Result<(), String> {
    for end in [Remount, Crash] {
        let mut harness = mounted(&setting(64 << 10))?;
        apply(&mut harness, &fragmented("f", 8 * MIB))?;
        apply(&mut harness, &[SetAligned("f", true)])?;
        harness.fs.move_homes().map_err(text)?;
        let left = harness.fs.bytes_not_aligned(inode(&harness, "f")?).map_err(text)?;
        if left != 3 * UNIT_BYTES {
            return Err(format!("{left} B are left after a step"));
        }
        apply(&mut harness, &[end, MoveHomes, Checkpoint])?;
        must_be(&harness, "f", &[true; 4], "the rest")?;
        harness.compare()?;
    }
    Ok(())
}

fn queued() -> Result<(), String> {
    let mut harness = mounted(&setting(64 << 10))?;
    apply(&mut harness, &fragmented("f", 4 * MIB))?;
    apply(&mut harness, &[SetAligned("f", true), MoveHomes, Checkpoint])?;
    must_be(&harness, "f", &[true, true], "the hint")?;
    harness.compare()
}

/// Files that are made in a directory have its hint, from their first transaction on; directories and what is made below them do not.
fn inherited() -> Result<(), String> {
    let mut harness = mounted(&setting(64 << 10))?;
    apply(&mut harness, &[MakeDirectory("d"), SetAligned("d", true), Create("d/f"), MakeDirectory("d/d"), Create("d/d/f")])?;
    apply(&mut harness, &[Symlink("d/s", 20), Remount])?;
    harness.compare()
}

/// A piece that changes while it is copied: a writer of the file beside the mover.
fn written_beside(setting: &Setting, rounds: u64) -> Result<(), String> {
    let mut again = 0;
    for round in 0..rounds {
        let mut harness = mounted(setting)?;
        apply(&mut harness, &fragmented("f", 2 * MIB))?;
        apply(&mut harness, &[SetAligned("f", true)])?;
        let file = inode(&harness, "f")?;
        let mut content = vec![0; 2 << 20];
        harness.fs.read(file, 0, &mut content).map_err(text)?;
        let (fs, ends) = (&harness.fs, AtomicBool::new(false));
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random::new(round);
                let mut content = content;
                while !ends.load(SeqCst) {
                    let (at, length) = (random.below(500) as usize * 4096, *random.pick(&[4096, 16 << 10, 900]));
                    let bytes = fill(random.next(), length);
                    fs.write(file, at as u64, &bytes, WriteOptions::default()).map_err(text)?;
                    content[at..at + length].copy_from_slice(&bytes);
                }
                Ok::<_, String>(content)
            });
            let moved = (|| -> Result<(), String> {
                fs.retry_moves();
                while fs.move_homes().map_err(text)? {}
                Ok(())
            })();
            ends.store(true, SeqCst);
            let written = writer.join().map_err(|_| "the writer panicked".to_owned())?;
            moved.and(written)
        })?;
        again += fs.statistics().work.aligned_again;
        let mut found = vec![0; 2 << 20];
        fs.read(file, 0, &mut found).map_err(|error| format!("round {round}: {error}"))?;
        if found != written {
            return Err(format!("round {round}: other bytes than were written"));
        }
        if fs.error_counters().data_damaged > 0 {
            return Err(format!("round {round}: damage was counted"));
        }
        harness.fs.checkpoint().map_err(text)?;
        let counts = checked(&harness.device, &format!("round {round}"))?;
        compare_space(&harness.fs.space(), &counts, &harness.model.tree())?;
    }
    println!("{again} copies were made again in {rounds} rounds");
    if again > 0 { Ok(()) } else { Err("no piece changed while it was copied".into()) }
}

fn written_beside_in_memory() -> Result<(), String> {
    written_beside(&setting(4096).with_memory_homes(), 40)
}

fn written_beside_in_blocks() -> Result<(), String> {
    written_beside(&setting(16 << 10), 40)
}

/// [AE4]: a damaged block keeps its piece where it is; a lease too, until it is returned.
#[test]
fn what_cannot_be_rewritten_stays_and_the_rest_is() {
    let _alone = alone();
    let mut harness = mounted(&setting(64 << 10)).expect("mounts");
    apply(&mut harness, &fragmented("f", 6 * MIB)).expect("written");
    let piece = &fill(9, 256 << 10)[4096..8192]; // in the second 2 MiB
    harness.device.damage(|zones| {
        zones.blocks.chunks_exact_mut(4096).find(|sector| sector == &piece).expect("there")[77] ^= 1;
    });
    let file = inode(&harness, "f").expect("there");
    let layout = harness.fs.layout(file, 5 * MIB, 4096, LayoutOptions::default(), || {}).expect("given");
    apply(&mut harness, &[SetAligned("f", true), MoveHomes, Checkpoint]).expect("done");
    must_be(&harness, "f", &[true, false, false], "damage and a lease").expect("the first");
    assert_eq!(harness.fs.bytes_not_aligned(file).expect("known"), 2 * UNIT_BYTES);
    drop(layout);
    apply(&mut harness, &[MoveHomes, Checkpoint]).expect("done");
    must_be(&harness, "f", &[true, false, true], "damage").expect("both others");
    apply(&mut harness, &[Write("f", 2 * MIB + (256 << 10), 256 << 10, 3), SetAligned("f", true), MoveHomes, Checkpoint]).expect("done");
    must_be(&harness, "f", &[true; 3], "written anew").expect("all");
    harness.compare().and_then(|()| harness.compare_space()).expect("agrees");
}

/// [AE2]: without a free aligned extent a file waits, and is rewritten when there is one.
#[test]
fn a_file_waits_for_an_aligned_extent() {
    let _alone = alone();
    let small = Setting { block_zone_bytes: 12 << 20, ..setting(64 << 10) };
    let mut harness = mounted(&small).expect("mounts");
    apply(&mut harness, &fragmented("f", 2 * MIB)).expect("written");
    apply(&mut harness, &[Create("g")]).expect("made");
    let mut end = 0;
    while harness.refused_for_space == 0 {
        apply(&mut harness, &[Write("g", end, 128 << 10, end)]).expect("applied");
        end += 128 * KIB;
    }
    apply(&mut harness, &[SetAligned("f", true), MoveHomes, Checkpoint]).expect("done");
    must_be(&harness, "f", &[false], "a full zone").expect("stays");
    assert_eq!(harness.fs.home_moves().waiting_files, 1);
    // A write to a file with the hint finds none either, and goes where it can.
    apply(&mut harness, &[Unlink("g"), Create("h"), Write("h", 0, 8 << 20, 1), Create("i"), SetAligned("i", true), Append("i", 9000, 1)])
        .expect("applied");
    harness.compare().expect("agrees");
    apply(&mut harness, &[Unlink("h"), MoveHomes, Checkpoint]).expect("done");
    must_be(&harness, "f", &[true], "room").expect("rewritten");
    harness.compare().and_then(|()| harness.compare_space()).expect("agrees");
}

/// One operation on a file of up to 5 MiB.
fn drawn(random: &mut Random) -> Operation {
    let file = *random.pick(&["a", "b"]);
    let (offset, most) = (random.below(4 * MIB), *random.pick(&[9000, 600_000, 2_000_000]));
    let length = 1 + random.below(most);
    match random.below(14) {
        0 => Write(file, offset / MIB * MIB, MIB as u32, random.next()),
        1..=3 => Write(file, offset, length as u32, random.next()),
        4 => Truncate(file, offset),
        5 => Punch(file, offset, length),
        6 => Allocate(file, offset, length, random.one_in(2)),
        7 => *random.pick(&[Crash, Remount, WriteBackAll]),
        8 => SetHome(file, *random.pick(&[Home::Memory, Home::Block, Home::Auto])),
        9 | 10 => SetAligned(file, !random.one_in(3)),
        11 => Append(file, length.min(100_000) as u32, random.next()),
        _ => MoveHomes,
    }
}

fn random_work(setting: &Setting, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut harness = mounted(setting)?;
    for file in ["a", "b"] {
        apply(&mut harness, &[Create(file), Write(file, 0, 3 * MIB as u32, 1), SetAligned(file, true)])?;
    }
    let next = |_, _: &mut Harness| {
        Ok(match drawn(&mut random) {
            SetHome(file, Home::Block) if setting.block_zone_bytes == 0 => SetHome(file, Home::Memory),
            operation => operation,
        })
    };
    work::random_work(&mut harness, 50, next, |_| ())
}

#[test]
fn random_work_beside_the_rewriting() {
    let _alone = alone();
    let seed = seed_or(23);
    for setting in BLOCK_SIZES.into_iter().flat_map(zones) {
        for round in 0..rounds_or(1) {
            random_work(&setting, seed + round).unwrap_or_else(|what| panic!("{setting:?}, TANDEMFS_SEED={seed}: {what}"));
        }
    }
    let mut unchecked = setting(8 << 10);
    unchecked.format.checksum_kind = ChecksumKind::None;
    random_work(&unchecked, seed).unwrap_or_else(|what| panic!("no checksums, TANDEMFS_SEED={seed}: {what}"));
    random_work(&setting(64 << 10).with_firmware(), seed).unwrap_or_else(|what| panic!("firmware, TANDEMFS_SEED={seed}: {what}"));
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    for (domain, block_bytes) in
        [(PersistenceDomain::Adr, 64 << 10), (PersistenceDomain::Gpf, 16 << 10), (PersistenceDomain::Process, 64 << 10)]
    {
        cuts(domain, block_bytes).unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}: {what}"));
        first_write_cuts(domain, block_bytes).unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}: {what}"));
    }
    find_nothing(&[interrupted, queued, inherited, grown, taken_apart, written_beside_in_memory, written_beside_in_blocks]);
}

#[test]
fn ae3_watch_ignored() {
    is_caught(Mutant::WatchIgnored, &[written_beside_in_memory, written_beside_in_blocks]);
}

#[test]
fn ah3_hint_queues_nothing() {
    is_caught(Mutant::HintQueuesNothing, &[queued]);
}

#[test]
fn as1_growth_forgotten() {
    is_caught(Mutant::GrowthForgotten, &[grown]);
}

#[test]
fn as3_taken_apart_forgotten() {
    is_caught(Mutant::TakenApartForgotten, &[taken_apart]);
}

#[test]
fn hm1_home_bit_forgotten() {
    is_caught(Mutant::HomeBitForgotten, &[adr_cuts]);
}

#[test]
fn mv1_interrupted_move_forgotten() {
    is_caught(Mutant::InterruptedMoveForgotten, &[interrupted]);
}

#[test]
fn hx1_home_not_inherited() {
    is_caught(Mutant::HomeNotInherited, &[inherited]);
}

#[test]
fn hn1_hint_inherited_by_directories() {
    is_caught(Mutant::HintInheritedByDirectories, &[inherited]);
}

#[test]
fn r8_batch_not_flushed() {
    is_caught(Mutant::BatchNotFlushed, &[adr_cuts]);
}

#[test]
fn r8_home_pages_not_fenced() {
    is_caught(Mutant::HomePagesNotFenced, &[adr_cuts]);
}
