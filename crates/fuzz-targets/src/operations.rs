//! Typed operations, applied to the file system and to the model, with remounts and power cuts between them.

use tandemfs_crash::{Harness, LONG, Model, Operation, SLOTS, Setting, check_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{RenameMode, Threshold};

use crate::Input;

const OPERATIONS_MAX: usize = 48;
const PATHS: [&str; 16] = ["a", "b", "c", "d", "e", LONG, "d/a", "d/b", "d/d", "d/d/a", "e/a", "e/b", "e/e", "e/e/a", "f", "d/d/d"];
const DIRECTORIES: [&str; 3] = ["", "d", "e"];
const MODES: [RenameMode; 3] = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
const UNITS: [u64; 5] = [1, 64, 256, 4096, 16_384];
const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "trusted.c"];
/// The size that a page of records maps, in blocks of 4 KiB.
const PAGE_OF_RECORDS: u64 = 192 << 12;

/// Offsets at and near boundaries of lines, sectors, blocks and pages.
fn place(input: &mut Input<'_>) -> u64 {
    let border = if input.one_in(16) { PAGE_OF_RECORDS * input.below(6) as u64 } else { *input.pick(&UNITS) * u64::from(input.byte()) };
    match input.below(4) {
        0 => border.saturating_sub(input.below(70) as u64),
        1 => border + input.below(70) as u64,
        _ => border,
    }
}

fn length(input: &mut Input<'_>) -> u32 {
    let length = match input.below(5) {
        0 => input.below(64) as u64,
        1 => u64::from(input.byte()) * 4,
        2 => 4096 * input.below(5) as u64,
        3 => 65_536 * (1 + input.below(3)) as u64,
        _ => input.number(2),
    };
    1 + length as u32
}

fn operation(input: &mut Input<'_>) -> Operation {
    let path = |input: &mut Input<'_>| *input.pick(&PATHS);
    let kind = input.below(26);
    match kind {
        0 | 21 => Operation::Create(path(input)),
        1 => Operation::MakeDirectory(path(input)),
        2 => Operation::Symlink(path(input), 1 + input.short() % 4095),
        3 => Operation::Link(path(input), path(input)),
        4 => Operation::Unlink(path(input)),
        5 => Operation::RemoveDirectory(path(input)),
        6 => Operation::Rename(path(input), path(input), *input.pick(&MODES)),
        7 | 22 => Operation::Write(path(input), place(input), length(input), input.byte().into()),
        8 => Operation::Append(path(input), length(input), input.byte().into()),
        9 | 25 => Operation::Truncate(path(input), place(input)),
        10 => Operation::Sync,
        11 => Operation::Checkpoint,
        12 => Operation::WriteBack,
        13 => Operation::Remount,
        14 => Operation::Crash,
        15 => Operation::Hold(input.below(SLOTS), path(input)),
        16 => Operation::WriteHeld(input.below(SLOTS), place(input), length(input), input.byte().into()),
        17 => Operation::Forget(input.below(SLOTS)),
        18 => Operation::Scatter(path(input), place(input), 1 + u32::from(input.byte() % 40), 4096, length(input).min(4096), 1),
        19 => Operation::CreateMany(input.pick::<&str>(&DIRECTORIES), 0, 1 + u32::from(input.byte() % 70)),
        23 => Operation::SetAttribute(path(input), input.pick::<&str>(&ATTRIBUTES), u32::from(input.short()), input.byte().into()),
        24 if input.one_in(2) => Operation::RemoveAttribute(path(input), input.pick::<&str>(&ATTRIBUTES)),
        24 => Operation::SetDefaultList(path(input), input.byte().into()),
        _ => Operation::UnlinkMany(input.pick::<&str>(&DIRECTORIES), 0, 1 + u32::from(input.byte() % 70)),
    }
}

fn setting(input: &mut Input<'_>) -> Setting {
    let choice = input.byte();
    let domain = if choice & 1 == 0 { PersistenceDomain::Adr } else { PersistenceDomain::Gpf };
    let block_bytes = [4 << 10, 64 << 10][usize::from(choice >> 1 & 1)];
    let mut setting = Setting::small(domain, block_bytes);
    if choice & 4 != 0 {
        setting.format.checksum_kind = ChecksumKind::None;
    }
    setting.mount.memory_bytes = if choice & 8 == 0 { 4 << 20 } else { 256 << 10 };
    if choice & 16 != 0 {
        setting.mount.threshold = Threshold::Bytes(block_bytes * 4);
    }
    setting
}

/// The first byte chooses the setting, the second seeds the losses of power cuts; then operations follow.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setting = setting(&mut input);
    let seed = u64::from(input.byte());
    let mut done = Vec::new();
    if let Err(what) = follow(&setting, seed, &mut input, &mut done) {
        panic!("{what}\n{setting:?}, seed {seed}\n{}", format!("{done:?}").replace(&format!("{LONG:?}"), "LONG"));
    }
}

fn follow(setting: &Setting, seed: u64, input: &mut Input<'_>, done: &mut Vec<Operation>) -> Result<(), String> {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    harness.follow(seed);
    while !input.is_empty() && done.len() < OPERATIONS_MAX {
        let operation = operation(input);
        done.push(operation);
        harness.apply(&operation)?;
        if done.len().is_multiple_of(8) {
            harness.compare()?;
        }
    }
    harness.compare()?;
    if harness.overwrites_refused > 0 {
        return Err(format!("{} overwrites refused (R14), space {:?}", harness.overwrites_refused, harness.fs.space()));
    }
    harness.apply(&Operation::Remount)?;
    harness.compare()?;
    harness.apply(&Operation::Checkpoint)?;
    harness.fs.unmount().map_err(|error| format!("unmount: {error}"))?;
    check_device(&harness.device, false).map(drop)
}

/// Sequences that have found bugs, each with both block sizes and with several losses at a power cut.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let lives: [&[u8]; 5] = [
        // Append, truncate within a sector, append less than was cut off, write far behind the end.
        &[0, 0, 8, 0, 4, 255, 255, 1, 9, 0, 0, 1, 6, 1, 3, 8, 0, 0, 58, 2, 7, 0, 0, 4, 12, 0, 11, 0, 63, 3],
        // A file that is held loses its name, then the power fails.
        &[0, 0, 7, 0, 0, 0, 0, 2, 0, 20, 5, 15, 0, 0, 4, 0, 14],
        // Acknowledged changes survive: names, bytes, blocks.
        &[0, 0, 7, 0, 0, 0, 0, 2, 0, 20, 5, 0, 1, 14, 0, 2, 7, 2, 0, 0, 0, 2, 3, 0, 9, 14, 13],
        // A directory moves, a file is overwritten across blocks, many names are created and removed.
        &[1, 3, 1, 4, 0, 6, 6, 3, 12, 0, 7, 0, 0, 3, 20, 2, 4, 9, 9, 1, 13, 19, 0, 66, 20, 0, 30, 6, 4, 8, 2, 14],
        &[0, 0, 18, 0, 0, 0, 0, 2, 30, 4, 0, 9, 12, 11, 2, 5, 44, 1, 3, 5, 6, 9, 0, 0, 3, 2, 2, 13],
    ];
    let settings = [0_u8, 2, 5, 10, 16].into_iter().flat_map(|setting| (0..3_u8).map(move |seed| [setting, seed]));
    settings.flat_map(|setting| lives.map(|life| [&setting, life].concat())).collect()
}
