//! Crash states of all sequences of one and two operations over a bounded set, in the manner of ACE, and of sampled longer ones: in each
//! domain, in both modes, and with zones and rings at their limits; on drives without firmware and with. Of the pairs each test takes a
//! quarter, another one in each domain and mode, and of the triples a third; with `TANDEMFS_EVERYTHING=1`, as in continuous integration,
//! all of them.

use tandemfs_crash::{
    Effort, Explorer, Harness, Operation, Random, Scene, Setting, explore_sequences, of_homes, pairs, seed_or, settings, singles, triples,
};
use tandemfs_device::PersistenceDomain;
use tandemfs_fs::inject::end_transaction_numbers_at;

const BLOCK: u32 = 64 << 10;

/// Explores every sequence, the cuts in its last operation.
fn explore(scene: &Scene, sequences: &[Vec<Operation>], effort: Effort) {
    let seed = seed_or(7);
    let setting = &scene.setting;
    let mode = if setting.write_back_cache { "relaxed" } else { "strict" };
    let drive = if setting.commits_on_drive() { "firmware" } else { "journal" };
    match explore_sequences(scene, sequences, effort, seed) {
        Ok(tried) => {
            println!(
                "{}, {drive}, {}, {mode}, blocks of {}, seed {seed}: {tried:?}",
                scene.name, setting.domain, setting.format.block_bytes
            )
        }
        Err(what) => panic!("{}, seed {seed}: {what}", scene.name),
    }
}

/// A drive without firmware, where the journal serves, or one with, whose transactions do.
type OnDrive = fn(Setting) -> Setting;

fn small(on: OnDrive, domain: PersistenceDomain) -> Scene {
    Scene::small(&on(Setting::small(domain, BLOCK)))
}

fn relaxed(on: OnDrive, domain: PersistenceDomain) -> Scene {
    Scene::small(&on(Setting::small(domain, BLOCK).relaxed()))
}

macro_rules! with {
    ($module:ident, $on:expr, $($name:ident),+ $(,)?) => {
        mod $module {
            $(#[test]
            fn $name() {
                super::$name($on);
            })+
        }
    };
}

with!(
    journal,
    std::convert::identity,
    homes_in_every_domain,
    single_operations_adr,
    single_operations_gpf,
    single_operations_process,
    single_operations_in_every_setting,
    single_operations_at_the_limits,
    attributes_and_shifts_in_every_setting,
    pairs_of_operations_adr,
    pairs_of_operations_gpf,
    pairs_of_operations_process,
    pairs_of_operations_relaxed_adr,
    pairs_of_operations_relaxed_gpf,
    sampled_triples,
    random_workloads,
);
with!(
    firmware,
    super::Setting::with_firmware,
    single_operations_adr,
    single_operations_gpf,
    single_operations_process,
    single_operations_in_every_setting,
    single_operations_at_the_limits,
    attributes_and_shifts_in_every_setting,
    pairs_of_operations_adr,
    pairs_of_operations_process,
    pairs_of_operations_relaxed_gpf,
    sampled_triples,
    random_workloads,
);
with!(
    journal_on_a_drive_with_firmware,
    super::Setting::with_idle_firmware,
    single_operations_adr,
    single_operations_process,
    attributes_and_shifts_in_every_setting,
    sampled_triples
);

fn single_operations_adr(on: OnDrive) {
    explore(&small(on, PersistenceDomain::Adr), &singles(), Effort { states: 1 << 8, ..Effort::EXHAUSTIVE });
}

fn single_operations_gpf(on: OnDrive) {
    explore(&small(on, PersistenceDomain::Gpf), &singles(), Effort { states: 1 << 5, ..Effort::EXHAUSTIVE });
}

fn single_operations_process(on: OnDrive) {
    explore(&small(on, PersistenceDomain::Process), &singles(), Effort { states: 1 << 4, ..Effort::EXHAUSTIVE });
}

fn single_operations_in_every_setting(on: OnDrive) {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for setting in settings(domain) {
            explore(&Scene::small(&on(setting)), &singles(), Effort { states: 4, ..Effort::QUICK });
        }
    }
}

/// What stores fresh lines before the transaction that links them: streams of attributes of every shape, replaced by their like, and
/// mappings that are built anew; files without names between their creation and their name.
fn attributes_and_shifts_in_every_setting(on: OnDrive) {
    let sequences = [
        vec![Operation::SetAttribute("a", "user.a", 100, 30)],
        vec![Operation::SetAttribute("b", "user.b", 4000, 31), Operation::SetAttribute("b", "user.b", 65_536, 32)],
        vec![Operation::SetAttribute("a", "user.x", 1000, 33), Operation::RemoveAttribute("a", "user.a")],
        vec![Operation::SetDefaultList("d", 5), Operation::MakeDirectory("d/d"), Operation::CreateNameless(0, "d/d")],
        vec![Operation::CreateNameless(0, "d"), Operation::WriteHeld(0, 0, 70_000, 34), Operation::LinkHeld(0, "d/n")],
        vec![Operation::Insert("b", 0, 2 << 20), Operation::Collapse("b", 1 << 20, 1 << 20)],
    ];
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for setting in settings(domain) {
            explore(&Scene::small(&on(setting)), &sequences, Effort { states: 8, ..Effort::QUICK });
        }
    }
}

fn single_operations_at_the_limits(on: OnDrive) {
    for (domain, block_bytes) in [(PersistenceDomain::Adr, BLOCK), (PersistenceDomain::Gpf, BLOCK), (PersistenceDomain::Adr, 4 << 10)] {
        for scene in Scene::all(&on(Setting::small(domain, block_bytes))).unwrap_or_else(|what| panic!("{what}")) {
            explore(&scene, &singles(), Effort { states: 4, recovery_one_in: 300, ..Effort::QUICK });
        }
    }
}

/// Whether nothing is left out to be short.
fn everything() -> bool {
    std::env::var_os("TANDEMFS_EVERYTHING").is_some()
}

/// A quarter of the pairs, 0 to 3. Every operation is first and second in each; together they are all pairs.
fn a_quarter_of_pairs(quarter: usize) -> Vec<Vec<Operation>> {
    let (all, operations) = (pairs(), singles().len());
    assert_eq!(all.len(), operations * operations);
    if everything() {
        return all;
    }
    let is_of_it = |index: usize| (index / operations + index % operations) % 4 == quarter;
    all.into_iter().enumerate().filter(|(index, _)| is_of_it(*index)).map(|(_, pair)| pair).collect()
}

fn pairs_of_operations_adr(on: OnDrive) {
    explore(&small(on, PersistenceDomain::Adr), &a_quarter_of_pairs(0), Effort::QUICK);
}

fn pairs_of_operations_gpf(on: OnDrive) {
    explore(&small(on, PersistenceDomain::Gpf), &a_quarter_of_pairs(1), Effort { states: 3, ..Effort::QUICK });
}

fn pairs_of_operations_process(on: OnDrive) {
    explore(&small(on, PersistenceDomain::Process), &a_quarter_of_pairs(2), Effort { states: 2, ..Effort::QUICK });
}

fn pairs_of_operations_relaxed_adr(on: OnDrive) {
    explore(&relaxed(on, PersistenceDomain::Adr), &a_quarter_of_pairs(3), Effort { states: 4, ..Effort::QUICK });
}

fn pairs_of_operations_relaxed_gpf(on: OnDrive) {
    explore(&relaxed(on, PersistenceDomain::Gpf), &a_quarter_of_pairs(3), Effort { states: 2, ..Effort::QUICK });
}

fn sampled_triples(on: OnDrive) {
    let mut random = Random::new(seed_or(13));
    let count = if everything() { 150 } else { 50 };
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        explore(&small(on, domain), &triples(count, &mut random), Effort { states: 4, ..Effort::QUICK });
    }
}

/// Longer workloads on the smallest zones: full zones, growing regions, checkpoints and write-back in the middle of the last operations.
fn random_workloads(on: OnDrive) {
    let seed = seed_or(11);
    for (domain, block_bytes) in [
        (PersistenceDomain::Adr, 64 << 10),
        (PersistenceDomain::Gpf, 4 << 10),
        (PersistenceDomain::Adr, 4 << 10),
        (PersistenceDomain::Process, 64 << 10),
    ] {
        let effort = Effort { states: 8, recovery_one_in: 200, ..Effort::QUICK };
        let mut explorer = Explorer::new(&Scene::small(&on(Setting::small(domain, block_bytes))), effort, seed).expect("prepares");
        for _ in 0..20 {
            if let Err(what) = explorer.explore_random(40, 8) {
                panic!("TANDEMFS_SEED={seed}: {what}");
            }
        }
        println!("{domain}, blocks of {block_bytes}, seed {seed}: {:?}", explorer.tried);
    }
}

/// Homes that are set on a file system that has none, and on one whose files all have one.
fn homes_in_every_domain(on: OnDrive) {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [BLOCK, 4096] {
            let setting = Setting { memory_bytes: 32 << 20, ..Setting::small(domain, block_bytes) };
            explore(&Scene::small(&on(setting)), &of_homes(), Effort { states: 24, ..Effort::QUICK });
        }
    }
}

with!(
    memory_homes,
    super::Setting::with_memory_homes,
    homes_in_every_domain,
    single_operations_adr,
    single_operations_gpf,
    single_operations_process,
    single_operations_in_every_setting,
    sampled_triples,
);
with!(
    memory_homes_on_a_drive_with_firmware,
    super::in_the_memory_of_a_drive_with_firmware,
    single_operations_adr,
    single_operations_process,
);

fn in_the_memory_of_a_drive_with_firmware(setting: Setting) -> Setting {
    setting.with_firmware().with_memory_homes()
}

/// The drive cleans its log in the middle of the operation that is cut, and its numbers begin again.
#[test]
fn single_operations_where_transaction_numbers_end() {
    const LAST: u32 = 60;
    end_transaction_numbers_at(LAST); // of the whole process: other tests clean a little more often
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Process] {
        let scene = Scene::numbers_at_their_end(&Setting::small(domain, BLOCK).with_firmware(), LAST);
        let (model, device) = scene.prepare().expect("prepares");
        let mut harness = Harness::new(device, &scene.setting.mount, model).expect("mounts");
        for operation in &scene.prefix {
            harness.apply(operation).expect("agrees");
        }
        let before = harness.fs.drive_counts().firmware;
        assert_eq!(before.log_cleanings, 0);
        harness.apply(&Operation::Create("c")).expect("agrees");
        assert_eq!(harness.fs.drive_counts().firmware.log_cleanings, 1, "after {} commits", before.commits);
        explore(&scene, &singles(), Effort { states: 8, ..Effort::QUICK });
    }
}
