//! Scenes: the initial state, the steps that threads choose from, and the checks at the end.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use tandemfs_crash::{Operation, Random, Setting, Step};
use tandemfs_device::PersistenceDomain::{self, Adr, Gpf};
use tandemfs_fs::inject::end_transaction_numbers_at;
use tandemfs_fs::{MountOptions, RenameMode};
use tandemfs_schedules::{Effort, Explored, Scene, Workload, explore};

use Operation::*;
use Step::{Do, List, Look, Read, ReadHeld};

/// Draws the workload of one schedule.
type Draw = Box<dyn Fn(&mut Random) -> Workload + Send + std::marker::Sync>;

/// A scene and how a workload of it is drawn.
pub struct Play {
    name: &'static str,
    setting: Setting,
    preparation: &'static [Operation],
    bound: &'static [&'static str],
    effort: Effort,
    draw: Draw,
}

/// Plays a scene under so many schedules.
pub fn explored(play: fn() -> Play, schedules: u64) -> Result<Explored, String> {
    let play = play();
    let scene = Arc::new(Scene::new(&play.setting, play.preparation, play.bound)?);
    let (name, all) = (play.name, scene.clone());
    let result = explore(name, schedules, move |random| scene.run(&(play.draw)(random), play.effort, random));
    println!("{name}: {} crash states recovered", all.recovered());
    result
}

pub fn must(result: Result<Explored, String>) {
    match result {
        Ok(explored) => println!("{explored:?}"),
        Err(what) => panic!("{what}"),
    }
}

/// Two or three threads of one to three steps each.
fn from_alphabet(alphabet: &'static [Step]) -> Draw {
    Box::new(move |random| drawn_from(alphabet, random))
}

fn drawn_from(alphabet: &[Step], random: &mut Random) -> Workload {
    let threads = 2 + random.below(2);
    let steps = |random: &mut Random| (0..1 + random.below(3)).map(|_| *random.pick(alphabet)).collect();
    Workload { threads: (0..threads).map(|_| steps(random)).collect(), ..Workload::default() }
}

fn first(operations: &'static [Operation], then: Draw) -> Draw {
    Box::new(move |random| Workload { first: operations.to_vec(), ..then(random) })
}

/// Some threads of a scene try without waiting, the others wait: at least one of each kind where there are two.
fn some_try(mut play: Play) -> Play {
    let draw = play.draw;
    play.draw = Box::new(move |random| {
        let workload = draw(random);
        let all = (1 << workload.threads.len()) - 1;
        Workload { trying: 1 + random.below(all), ..workload }
    });
    play
}

const REPLACE: RenameMode = RenameMode::Replace;
const KEEP: RenameMode = RenameMode::NoReplace;
const EXCHANGE: RenameMode = RenameMode::Exchange;

// ---- names -------------------------------------------------------------------------------------------------------------------------

const NAMES_BEFORE: &[Operation] =
    &[MakeDirectory("d"), MakeDirectory("e"), Create("a"), Create("b"), Link("a", "d/a"), Create("d/b"), MakeDirectory("e/s")];
const NAMES_BOUND: &[&str] = &["d", "e", "a", "b", "d/b"];
const NAMES: &[Step] = &[
    Do(Create("c")),
    Do(Create("d/c")),
    Do(MakeDirectory("c")),
    Do(Symlink("c", 300)),
    Do(RemoveDirectory("c")),
    Do(RemoveDirectory("e/s")),
    Do(Unlink("a")),
    Do(Unlink("b")),
    Do(Unlink("c")),
    Do(Unlink("d/a")),
    Do(Unlink("d/b")),
    Do(Link("a", "c")),
    Do(Link("d/b", "c")),
    Do(Link("d/b", "d/c")),
    Do(Rename("a", "b", REPLACE)),
    Do(Rename("b", "a", REPLACE)),
    Do(Rename("a", "d/b", EXCHANGE)),
    Do(Rename("b", "c", EXCHANGE)),
    Do(Rename("d/b", "a", KEEP)),
    Do(Rename("a", "c", KEEP)),
    Do(Rename("d/b", "e/b", REPLACE)),
    Do(Rename("c", "a", REPLACE)),
    Do(Rename("e/s", "c", REPLACE)),
    Look("a"),
    Look("b"),
    Look("c"),
    Look("d/b"),
    List("d"),
    List(""),
];

/// A kernel holds an inode as long as it can link it. The number of an inode without holders is reused as soon as the inode has lost
/// its names. So the files are held open, or nothing is linked.
fn names_held_or_not() -> Draw {
    let held = first(&[Hold(0, "a"), Hold(1, "b"), Hold(2, "d/b")], from_alphabet(NAMES));
    Box::new(move |random| {
        if random.one_in(2) {
            return held(random);
        }
        let links = |step: &Step| matches!(step, Do(Link(..)));
        let unlinked: Vec<Step> = NAMES.iter().copied().filter(|step| !links(step)).collect();
        drawn_from(&unlinked, random)
    })
}

fn names_in(domain: PersistenceDomain, effort: Effort) -> Play {
    let setting = Setting::small(domain, 4 << 10);
    Play { name: "names", setting, preparation: NAMES_BEFORE, bound: NAMES_BOUND, effort, draw: names_held_or_not() }
}

pub fn names() -> Play {
    names_in(Gpf, Effort::SCHEDULES)
}

pub fn names_cut_adr() -> Play {
    names_in(Adr, Effort::CUTS)
}

pub fn names_cut_gpf() -> Play {
    names_in(Gpf, Effort::CUTS)
}

pub fn directories_that_cross() -> Play {
    const STEPS: &[Step] = &[
        Do(Rename("d", "e/d", REPLACE)),
        Do(Rename("e", "d/e", REPLACE)),
        Do(Rename("d/x", "e/x", REPLACE)),
        Do(Rename("e/y", "d/x", REPLACE)),
        Do(Rename("d/x", "e/y", EXCHANGE)),
        Do(Rename("d", "e", EXCHANGE)),
        Do(Rename("d/x", "e/y/x", REPLACE)),
        Do(Rename("e/y", "d/x/y", REPLACE)),
        Do(RemoveDirectory("d/x")),
        Do(RemoveDirectory("e/y")),
        Do(RemoveDirectory("d")),
        Do(MakeDirectory("d/x/z")),
        Do(MakeDirectory("e/y/z")),
        Do(MakeDirectory("d")),
        Look("d"),
        List(""),
        List("d"),
        List("e"),
    ];
    Play {
        name: "directories that cross",
        setting: Setting::small(Gpf, 4 << 10),
        preparation: &[MakeDirectory("d"), MakeDirectory("e"), MakeDirectory("d/x"), MakeDirectory("e/y")],
        bound: &["d", "e", "d/x", "e/y"],
        effort: Effort::SCHEDULES,
        draw: from_alphabet(STEPS),
    }
}

// ---- data --------------------------------------------------------------------------------------------------------------------------

/// One block of 8 KiB: logs, sectors, its end, and all that rewrites it.
const ONE_BLOCK: &[Step] = &[
    Do(Write("f", 0, 8192, 10)),
    Do(Write("f", 0, 8192, 11)),
    Do(Write("f", 100, 50, 12)),
    Do(Write("f", 100, 300, 13)),
    Do(Write("f", 4000, 200, 14)),
    Do(Write("f", 6000, 64, 15)),
    Do(Append("f", 40, 16)),
    Do(Append("f", 700, 17)),
    Do(Truncate("f", 120)),
    Do(Truncate("f", 4096)),
    Do(Truncate("f", 5000)),
    Do(Truncate("f", 8192)),
    Do(Truncate("f", 0)),
    Do(WriteBack),
    Do(Checkpoint),
    Read("f", 0, 16_384),
    Read("f", 90, 400),
    Read("f", 3900, 1000),
    Look("f"),
];

fn one_block_in(domain: PersistenceDomain, effort: Effort) -> Play {
    Play {
        name: "one block",
        setting: Setting::small(domain, 8 << 10),
        preparation: &[Create("f"), Write("f", 0, 7000, 1), Write("f", 500, 100, 2), Write("f", 90, 30, 3)],
        bound: &["f"],
        effort,
        draw: from_alphabet(ONE_BLOCK),
    }
}

pub fn one_block() -> Play {
    one_block_in(Gpf, Effort::SCHEDULES)
}

pub fn one_block_cut_adr() -> Play {
    one_block_in(Adr, Effort::CUTS)
}

pub fn one_block_cut_gpf() -> Play {
    one_block_in(Gpf, Effort::CUTS)
}

/// Different blocks, whose records share a line, and an end that moves.
pub fn neighbouring_blocks() -> Play {
    const STEPS: &[Step] = &[
        Do(Write("f", 0, 4096, 20)),
        Do(Write("f", 4096, 4096, 21)),
        Do(Write("f", 8192, 4096, 22)),
        Do(Write("f", 12_288, 4096, 23)),
        Do(Write("f", 4000, 200, 24)),
        Do(Write("f", 8100, 4300, 25)),
        Do(Write("f", 20_000, 100, 26)),
        Do(Write("f", 70_000, 5000, 27)),
        Do(Append("f", 5000, 28)),
        Do(Append("f", 100, 29)),
        Do(Truncate("f", 6000)),
        Do(Truncate("f", 14_000)),
        Do(Truncate("f", 30_000)),
        Do(WriteBack),
        Read("f", 0, 80_000),
        Read("f", 4000, 4400),
        Look("f"),
    ];
    Play {
        name: "neighbouring blocks",
        setting: Setting::small(Gpf, 4 << 10),
        preparation: &[Create("f"), Write("f", 0, 13_000, 1), Write("f", 4200, 100, 2)],
        bound: &["f"],
        effort: Effort { finish_one_in: 3, ..Effort::SCHEDULES },
        draw: from_alphabet(STEPS),
    }
}

/// Blocks of two files are written back together while others write, read, cut and remove them.
fn batches_in(domain: PersistenceDomain, effort: Effort) -> Play {
    const STEPS: &[Step] = &[
        Do(WriteBackAll),
        Do(WriteBackAll),
        Do(Write("f", 50, 100, 40)),
        Do(Write("f", 4200, 64, 41)),
        Do(Write("f", 8000, 400, 42)),
        Do(Write("g", 100, 3000, 43)),
        Do(Write("g", 4096, 4096, 44)),
        Do(Append("g", 100, 45)),
        Do(Truncate("f", 5000)),
        Do(Truncate("g", 300)),
        Read("f", 0, 12_288),
        Read("g", 0, 9000),
    ];
    Play {
        name: "batches",
        setting: Setting::small(domain, 4 << 10),
        preparation: &[
            Create("f"),
            Write("f", 0, 12_288, 1),
            Write("f", 100, 100, 2),
            Write("f", 4100, 100, 3),
            Write("f", 8200, 100, 4),
            Create("g"),
            Write("g", 10, 200, 5),
            Write("g", 5000, 300, 6),
        ],
        bound: &["f", "g"],
        effort,
        draw: Box::new(|random| {
            let steps = |random: &mut Random| (0..1 + random.below(3)).map(|_| *random.pick(STEPS)).collect();
            let mut threads: Vec<Vec<Step>> = (0..1 + random.below(2)).map(|_| steps(random)).collect();
            threads.push(vec![Do(WriteBackAll)]);
            Workload { threads, ..Workload::default() }
        }),
    }
}

pub fn batches() -> Play {
    batches_in(Gpf, Effort { finish_one_in: 3, ..Effort::SCHEDULES })
}

pub fn batches_cut() -> Play {
    batches_in(Adr, Effort::CUTS)
}

// ---- orphans -----------------------------------------------------------------------------------------------------------------------

/// Open files are unlinked while they are written, read and closed. Each thread uses its own hold, because an inode's number may be
/// reused for threads that do not hold it.
fn orphans_in(domain: PersistenceDomain, effort: Effort) -> Play {
    const NAMES: &[Step] = &[
        Do(Unlink("a")),
        Do(Unlink("a")),
        Do(Unlink("b")),
        Do(Rename("b", "a", REPLACE)),
        Do(Rename("a", "b", REPLACE)),
        Do(Rename("a", "b", EXCHANGE)),
        Do(Create("a")),
        Do(Unlink("d/a")),
        Do(Checkpoint),
        Do(WriteBack),
        Look("a"),
        Look("b"),
        List(""),
    ];
    fn held(random: &mut Random, slot: usize) -> Step {
        match random.below(7) {
            0 => Do(Forget(slot)),
            1 => Do(Hold(slot, if slot == 0 { "a" } else { "b" })),
            2 => Do(WriteHeld(slot, 100, 100, 31)),
            3 => Do(WriteHeld(slot, 0, 4096, 32)),
            4 => Do(WriteHeld(slot, 3000, 3000, 33)),
            _ => ReadHeld(slot, 0, 9000),
        }
    }
    Play {
        name: "orphans",
        setting: Setting::small(domain, 4 << 10),
        preparation: &[MakeDirectory("d"), Create("a"), Write("a", 0, 5000, 1), Create("b"), Write("b", 10, 200, 2), Link("a", "d/a")],
        bound: &["d"],
        effort,
        draw: Box::new(|random| {
            let mut first = vec![Unlink("d/a"), Hold(0, "a"), Hold(1, "a"), Hold(2, "b")];
            first.drain(..random.below(2) as usize);
            first.truncate(2 + random.below(3) as usize);
            let threads = 2 + random.below(2) as usize;
            let step = |random: &mut Random, slot| if random.one_in(2) { *random.pick(NAMES) } else { held(random, slot) };
            let steps = |random: &mut Random, slot| (0..1 + random.below(3)).map(|_| step(random, slot)).collect();
            Workload { first, threads: (0..threads).map(|slot| steps(random, slot)).collect(), trying: 0 }
        }),
    }
}

pub fn orphans() -> Play {
    orphans_in(Gpf, Effort::SCHEDULES)
}

/// The last name and the last hold go at once.
pub fn last_holder() -> Play {
    const STEPS: [&[Step]; 3] = [&[Do(Unlink("a"))], &[Do(Forget(0))], &[Do(WriteHeld(1, 0, 4096, 34)), Do(Forget(1))]];
    Play {
        name: "last holder",
        draw: Box::new(|random| {
            let first = if random.one_in(2) { vec![Hold(0, "a"), Hold(1, "a")] } else { vec![Hold(0, "a")] };
            Workload { threads: STEPS[..1 + first.len()].iter().map(|steps| steps.to_vec()).collect(), first, trying: 0 }
        }),
        preparation: &[MakeDirectory("d"), Create("a"), Write("a", 0, 5000, 1)],
        ..orphans_in(Gpf, Effort::SCHEDULES)
    }
}

pub fn orphans_cut() -> Play {
    orphans_in(Adr, Effort::CUTS)
}

// ---- space, journal, caches --------------------------------------------------------------------------------------------------------

/// Threads allocate and free slots, sectors and inodes; at the end all counts equal a rebuild, and nothing has two owners.
pub fn pools() -> Play {
    const STEPS: &[Step] = &[
        Do(Create("x")),
        Do(Create("y")),
        Do(Create("z")),
        Do(MakeDirectory("x")),
        Do(Unlink("a")),
        Do(Unlink("b")),
        Do(Unlink("c")),
        Do(Unlink("x")),
        Do(Symlink("y", 900)),
        Do(Symlink("z", 100)),
        Do(Write("a", 0, 16_384, 40)),
        Do(Write("b", 0, 12_288, 41)),
        Do(Write("c", 4096, 9000, 42)),
        Do(Write("a", 700, 64, 43)),
        Do(Write("b", 700, 250, 44)),
        Do(Write("c", 100, 1000, 45)),
        Do(Truncate("a", 3000)),
        Do(Truncate("b", 0)),
        Do(Truncate("c", 9000)),
        Do(WriteBack),
        Do(Checkpoint),
    ];
    Play {
        name: "pools",
        setting: Setting::small(Gpf, 4 << 10),
        preparation: &[
            Create("a"),
            Create("b"),
            Create("c"),
            Write("a", 0, 9000, 1),
            Write("b", 50, 100, 2),
            Write("c", 0, 3000, 3),
            Write("c", 5000, 60, 4),
        ],
        bound: &["a", "b", "c"],
        effort: Effort::SCHEDULES,
        draw: first(&[Hold(0, "a"), Hold(1, "b"), Hold(2, "c")], from_alphabet(STEPS)),
    }
}

/// The rings are nearly full when the threads begin, so commits wait for a checkpoint and records wrap.
pub fn rings_that_wrap() -> Play {
    const STEPS: &[Step] = &[
        Do(Write("f", 0, 1 << 20, 50)),
        Do(Write("f", 0, 600_000, 51)),
        Do(Write("g", 0, 4096, 52)),
        Do(Write("g", 100, 64, 53)),
        Do(Create("x")),
        Do(Unlink("x")),
        Do(Checkpoint),
        Read("g", 0, 5000),
    ];
    let draw = from_alphabet(STEPS);
    Play {
        name: "rings that wrap",
        setting: Setting { block_zone_bytes: 8 << 20, ..Setting::small(Gpf, 4 << 10) },
        preparation: &[Create("f"), Create("g"), Write("g", 0, 5000, 1)],
        bound: &["f", "g"],
        effort: Effort { states: 8, check_one_in: 0, finish_one_in: 3 },
        draw: Box::new(move |random| {
            let full = 8 + random.below(16);
            let first = (0..full).map(|seed| Write("f", 0, 1 << 20, seed)).collect();
            Workload { first, ..draw(random) }
        }),
    }
}

/// Records of several threads in few rings, with checkpoints between them.
pub fn rings_cut() -> Play {
    const STEPS: &[Step] = &[
        Do(Create("x")),
        Do(Create("d/x")),
        Do(Unlink("d/x")),
        Do(Write("g", 100, 64, 60)),
        Do(Write("g", 0, 4096, 61)),
        Do(Append("h", 30, 62)),
        Do(Append("h", 200, 63)),
        Do(Truncate("h", 10)),
        Do(Checkpoint),
        Do(Checkpoint),
    ];
    Play {
        name: "rings",
        setting: Setting::small(Adr, 4 << 10),
        preparation: &[MakeDirectory("d"), Create("g"), Write("g", 0, 5000, 1), Create("h")],
        bound: &["d", "g", "h"],
        effort: Effort { states: 12, check_one_in: 6, finish_one_in: 4 },
        draw: from_alphabet(STEPS),
    }
}

/// Nothing but short transactions, so that their records lie side by side in the rings.
pub fn commits_cut() -> Play {
    const STEPS: &[Step] = &[Do(Create("d/x")), Do(Unlink("d/b")), Do(Append("g", 30, 80)), Do(Append("h", 30, 81)), Do(Create("e/y"))];
    Play {
        name: "commits",
        setting: Setting::small(Adr, 4 << 10),
        preparation: &[MakeDirectory("d"), MakeDirectory("e"), Create("g"), Create("h"), Create("d/b")],
        bound: &["d", "e", "g", "h"],
        effort: Effort { states: 30, check_one_in: 0, finish_one_in: 8 },
        draw: Box::new(|random| {
            let steps = |random: &mut Random| (0..1 + random.below(2)).map(|_| *random.pick(STEPS)).collect();
            Workload { threads: (0..3).map(|_| steps(random)).collect(), ..Workload::default() }
        }),
    }
}

/// Caches of next to nothing: pages, inodes and directory indexes are evicted while others use them.
pub fn caches_that_evict() -> Play {
    const STEPS: &[Step] = &[
        Do(Create("x")),
        Do(Create("d/x")),
        Do(Unlink("d/b")),
        Do(Unlink("x")),
        Do(Rename("d/b", "e/b", REPLACE)),
        Do(Write("a", 100, 64, 70)),
        Do(Write("a", 0, 4096, 71)),
        Do(Write("b", 3000, 2000, 72)),
        Do(Append("b", 100, 73)),
        Do(Append("c", 5000, 74)),
        Do(Truncate("c", 100)),
        Do(Checkpoint),
        Do(WriteBack),
        Read("a", 0, 9000),
        Read("b", 0, 9000),
        Read("c", 0, 9000),
        Look("a"),
        Look("d/b"),
        List("d"),
        List("e"),
    ];
    let small = Setting::small(Gpf, 4 << 10);
    Play {
        name: "caches that evict",
        setting: Setting { mount: MountOptions { memory_bytes: 1 << 10, ..small.mount.clone() }, ..small },
        preparation: &[
            MakeDirectory("d"),
            MakeDirectory("e"),
            Create("a"),
            Create("b"),
            Create("c"),
            Create("d/a"),
            Create("d/b"),
            Write("a", 0, 5000, 1),
            Write("b", 0, 9000, 2),
            Write("b", 50, 100, 3),
            Write("c", 20_000, 100, 4),
        ],
        bound: &["d", "e", "a", "b", "c"],
        effort: Effort { finish_one_in: 3, ..Effort::SCHEDULES },
        draw: from_alphabet(STEPS),
    }
}

// ---- a drive with firmware, whose transactions take the place of the journal ---------------------------------------------------------

fn on_firmware(play: Play) -> Play {
    Play { setting: play.setting.with_firmware(), ..play }
}

pub fn names_on_firmware_cut() -> Play {
    on_firmware(names_in(Adr, Effort::CUTS))
}

pub fn one_block_on_firmware_cut() -> Play {
    on_firmware(one_block_in(Adr, Effort::CUTS))
}

/// Pages come and go by blocks while lines of other pages, or of the same, are stored and not committed.
pub fn caches_on_firmware() -> Play {
    on_firmware(caches_that_evict())
}

pub fn orphans_on_firmware_cut() -> Play {
    on_firmware(orphans_cut())
}

/// Transaction numbers run out repeatedly; no thread may commit while the drive cleans its log.
pub fn pools_on_firmware() -> Play {
    end_transaction_numbers_at(9); // of the whole process; elsewhere it happens a little more often
    on_firmware(pools())
}

// ---- threads that do not wait ----------------------------------------------------------------------------------------------------------

pub fn names_tried() -> Play {
    some_try(names())
}

pub fn names_tried_cut() -> Play {
    some_try(names_cut_adr())
}

pub fn one_block_tried() -> Play {
    some_try(one_block())
}

pub fn one_block_tried_cut() -> Play {
    some_try(one_block_cut_adr())
}

pub fn orphans_tried() -> Play {
    some_try(orphans())
}

pub fn pools_tried() -> Play {
    some_try(pools())
}

pub fn rings_tried() -> Play {
    some_try(rings_that_wrap())
}

pub fn commits_tried_cut() -> Play {
    some_try(commits_cut())
}

pub fn caches_tried() -> Play {
    some_try(caches_that_evict())
}

pub fn names_tried_on_firmware_cut() -> Play {
    some_try(names_on_firmware_cut())
}

/// As [`commits_tried_cut`], with a look at the space after each schedule instead of crashes.
pub fn commits_tried() -> Play {
    Play { effort: Effort::SCHEDULES, ..some_try(commits_cut()) }
}
