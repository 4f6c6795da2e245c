//! Schedules of two and three threads over the parts where they meet.

use tandemfs_crash::{Operation, Random, Setting, Step};
use tandemfs_device::PersistenceDomain;
use tandemfs_fs::RenameMode;
use tandemfs_schedules::{Effort, Scene, Workload, explore, rounds_or};

use Operation::*;
use Step::{Do, List, Look};

fn must(result: Result<tandemfs_schedules::Explored, String>) {
    match result {
        Ok(explored) => println!("{explored:?}"),
        Err(what) => panic!("{what}"),
    }
}

const NAMES: &[Operation] =
    &[MakeDirectory("d"), MakeDirectory("e"), Create("a"), Create("b"), Link("a", "d/a"), Create("d/b"), MakeDirectory("e/s")];

/// Two or three threads of one to three steps.
fn draw(random: &mut Random, alphabet: &[Step]) -> Vec<Vec<Step>> {
    (0..2 + random.below(2)).map(|_| (0..1 + random.below(3)).map(|_| *random.pick(alphabet)).collect()).collect()
}

#[test]
fn names() {
    let setting = Setting::small(PersistenceDomain::Gpf, 4 << 10);
    let scene = Scene::new(&setting, NAMES, &["d", "e", "a", "b", "d/b"]).expect("prepares");
    const ALPHABET: &[Step] = &[
        Do(Create("c")),
        Do(Create("d/c")),
        Do(Unlink("a")),
        Do(Unlink("b")),
        Do(Unlink("d/b")),
        Do(Link("a", "c")),
        Do(Link("d/b", "c")),
        Do(Rename("a", "b", RenameMode::Replace)),
        Do(Rename("b", "a", RenameMode::Replace)),
        Do(Rename("a", "d/b", RenameMode::Exchange)),
        Do(Rename("d/b", "a", RenameMode::NoReplace)),
        Do(Rename("a", "c", RenameMode::NoReplace)),
        Do(Rename("d/b", "e/b", RenameMode::Replace)),
        Do(Unlink("c")),
        Look("a"),
        Look("b"),
        Look("c"),
        Look("d/b"),
        List("d"),
        List(""),
        Do(MakeDirectory("c")),
        Do(RemoveDirectory("c")),
    ];
    must(explore("names", rounds_or(300), move |random| {
        let workload = Workload { first: Vec::new(), threads: draw(random, ALPHABET) };
        scene.run(&workload, Effort::SCHEDULES, random)
    }));
}
