//! Sequences over the bounded set of operations, in the manner of ACE.

use tandemfs_fs::Home;

use crate::explore::{ALPHABET, Effort, Explorer, Tried};
use crate::operation::Operation;
use crate::random::Random;
use crate::scenes::Scene;

/// All single operations.
pub fn singles() -> Vec<Vec<Operation>> {
    ALPHABET.iter().map(|operation| vec![*operation]).collect()
}

/// Homes that are set, and moves to them.
pub fn of_homes() -> Vec<Vec<Operation>> {
    use Operation::{MoveHomes, SetAligned, SetHome};
    vec![
        vec![SetHome("b", Home::Memory)],
        vec![SetHome("b", Home::Block)],
        vec![SetHome("d", Home::Block), Operation::Create("d/c")],
        vec![SetHome("d", Home::Memory), Operation::CreateNameless(1, "d")],
        vec![SetHome("d", Home::Auto), Operation::MakeDirectory("d/d")],
        vec![SetHome("b", Home::Memory), MoveHomes],
        vec![SetHome("b", Home::Block), MoveHomes],
        vec![SetHome("a", Home::Block), MoveHomes, SetHome("a", Home::Memory), MoveHomes],
        vec![SetAligned("b", true)],
        vec![SetAligned("d", true), Operation::Create("d/c")],
        vec![SetAligned("b", true), Operation::Write("b", 0, 9000, 7)],
        vec![SetHome("d/b", Home::Block), Operation::Write("d/b", 100, 90_000, 7), MoveHomes],
    ]
}

/// All pairs that begin with one operation.
pub fn pairs_of(first: Operation) -> Vec<Vec<Operation>> {
    ALPHABET.iter().map(|second| vec![first, *second]).collect()
}

/// All pairs.
pub fn pairs() -> Vec<Vec<Operation>> {
    ALPHABET.iter().flat_map(|first| pairs_of(*first)).collect()
}

/// Random triples.
pub fn triples(count: usize, random: &mut Random) -> Vec<Vec<Operation>> {
    (0..count).map(|_| (0..3).map(|_| *random.pick(ALPHABET)).collect()).collect()
}

/// Explores every sequence: the cuts in its last operation, since those before it are the last of other sequences.
///
/// # Errors
/// As [`Explorer::explore`].
pub fn explore_sequences(scene: &Scene, sequences: &[Vec<Operation>], effort: Effort, seed: u64) -> Result<Tried, String> {
    let mut explorer = Explorer::new(scene, effort, seed)?;
    for sequence in sequences {
        explorer.explore(sequence, sequence.len() - 1)?;
    }
    Ok(explorer.tried)
}
