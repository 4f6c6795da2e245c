//! Random operations on the file system and on the model, compared after every one.

use tandemfs_crash::{compare_with_model, rounds_or, seed_or};

#[test]
fn random_operations_agree_with_the_model() {
    let first = seed_or(1);
    let rounds = rounds_or(24);
    let (mut operations, mut refused) = (0, 0);
    for seed in first..first + rounds {
        match compare_with_model(seed) {
            Ok(compared) => (operations, refused) = (operations + compared.operations, refused + compared.refused),
            Err(what) => panic!("{what}"),
        }
    }
    println!("{operations} operations, {refused} refused for space, seeds {first}..{}", first + rounds);
}
