//! Power cuts while sectors are copied into spare space of the memory zone and while these copies are read. No metadata names a copy, so a
//! cut loses nothing and leaks no space.

use tandemfs_crash::{Effort, Operation, Scene, Setting, explore_sequences, seed_or, singles};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::Promote;

use Operation::*;

fn explore(domain: PersistenceDomain, checksum_kind: ChecksumKind, sequences: &[Vec<Operation>], states: u64) {
    let mut setting = Setting::small(domain, 64 << 10);
    setting.mount.promote = Promote::EveryRead;
    setting.format.checksum_kind = checksum_kind;
    let seed = seed_or(11);
    match explore_sequences(&Scene::small(&setting), sequences, Effort { states, ..Effort::QUICK }, seed) {
        Ok(tried) => println!("{domain}, {checksum_kind:?}, seed {seed}: {tried:?}"),
        Err(what) => panic!("seed {seed}: {what}"),
    }
}

#[test]
fn single_operations_with_copies() {
    explore(PersistenceDomain::Adr, ChecksumKind::Crc32c, &singles(), 4);
    explore(PersistenceDomain::Gpf, ChecksumKind::None, &singles(), 2);
}

/// Sectors change hands, and are filled in place, under copies.
#[test]
fn sectors_change_hands_under_copies() {
    let sequences = [
        vec![Write("b", 0, 131_072, 1), Write("b", 0, 65_536, 2), Write("b", 65_536, 65_536, 3), Write("b", 0, 65_536, 4)],
        vec![Write("b", 0, 131_072, 1), Zero("b", 0, 65_536, true), Write("b", 0, 65_536, 2), Checkpoint, Write("b", 10, 100, 3)],
        vec![Write("b", 0, 131_072, 1), Punch("b", 0, 65_536), Write("a", 0, 65_536, 2), Truncate("b", 5000), Write("b", 0, 65_536, 3)],
        vec![Write("b", 0, 131_072, 1), Scatter("b", 0, 17, 3000, 60, 6), WriteBack, Unlink("b"), Write("a", 0, 131_072, 2)],
    ];
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Process] {
        explore(domain, ChecksumKind::None, &sequences, 4);
        explore(domain, ChecksumKind::Crc32c, &sequences, 4);
    }
}
