//! A small seeded generator: the seed alone repeats a failure.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "the usual name of what a generator does")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// True once in `one_in`.
    pub fn one_in(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// One of several.
    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Spreads the bits of a number.
pub(crate) fn mix(value: u64) -> u64 {
    let mut bits = value;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The seed that `TANDEMFS_SEED` names, or `default`.
pub fn seed_or(default: u64) -> u64 {
    number_in("TANDEMFS_SEED").unwrap_or(default)
}

/// The rounds that `TANDEMFS_ROUNDS` names, or `default`.
pub fn rounds_or(default: u64) -> u64 {
    number_in("TANDEMFS_ROUNDS").unwrap_or(default)
}

/// # Panics
/// If the variable is set to something else, so that a requested test is not left out silently.
fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable}={text} is no number"),
    }
}

/// Bytes that depend on seed and place, so that a misplaced piece is detected.
pub fn fill(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut random = Random::new(seed ^ 0x5eed);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Which of `count` numbered faults a run tries: all of them while they are at most `most` or `TANDEMFS_FAULTS` is `all`, else a sample.
/// Its seed is `TANDEMFS_SEED` and is printed.
pub fn chosen(what: &str, count: u64, most: u64) -> Vec<u64> {
    if count <= most || std::env::var_os("TANDEMFS_FAULTS").is_some_and(|value| value == "all") {
        return (0..count).collect();
    }
    let seed = seed_or(1);
    let mut random = Random::new(seed ^ count);
    let chosen: Vec<u64> = (0..most).map(|index| (index * count + random.below(count)) / most).collect();
    println!("{what}: {most} of {count} (TANDEMFS_SEED={seed}; TANDEMFS_FAULTS=all for all)");
    chosen
}
