//! Sequences over the bounded set of operations, in the manner of ACE.

use crate::explore::{ALPHABET, Effort, Explorer, Tried};
use crate::operation::Operation;
use crate::random::Random;
use crate::scenes::Scene;

/// All single operations.
pub fn singles() -> Vec<Vec<Operation>> {
    ALPHABET.iter().map(|operation| vec![*operation]).collect()
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
