//! The log of acknowledged operations. It is outside the mount, and a line is written before the writer continues.
//!
//! Its first line describes the writer; each further line is the number of an acknowledged operation.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::plan::{Model, Operation, Profile};

/// Mode of the mount (`-o`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Data is durable after fsync and its like.
    Relaxed,
    /// Data is durable when write returns.
    Strict,
    /// The same, and a write of up to 1 MiB less a page is atomic.
    StrictAtomic,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Relaxed, Self::Strict, Self::StrictAtomic];

    /// As in the options of a mount.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Strict => "strict",
            Self::StrictAtomic => "strict,atomic",
        }
    }

    /// Whether files can be written through shared mappings: files that bypass the page cache could not before Linux 6.6.
    fn can_map(self) -> bool {
        self != Self::StrictAtomic
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("'{text}' is no mode: relaxed, strict or strict,atomic"))
    }
}

/// A writer, as its log's first line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Chooses its operations.
    pub seed: u64,
    /// What kind of program it is.
    pub profile: Profile,
    /// The mode of the mount that it wrote to.
    pub mode: Mode,
}

impl Writer {
    /// Its next operation.
    pub fn next(&self, model: &mut Model, number: u64) -> Operation {
        model.next(self.seed, self.profile, self.mode.can_map(), number)
    }

    /// Its directory after the first operations.
    pub fn model_after(&self, operations: u64) -> Model {
        let mut model = Model::new();
        for number in 0..operations {
            let operation = self.next(&mut model, number);
            model.apply(&operation, number);
        }
        model
    }
}

/// A log that is written.
#[derive(Debug)]
pub struct Promises(File);

impl Promises {
    /// Begins a log.
    pub fn begin(path: &Path, writer: &Writer) -> io::Result<Self> {
        let mut log = File::create(path)?;
        log.write_all(format!("witness {} {} {}\n", writer.seed, writer.profile.name(), writer.mode.name()).as_bytes())?;
        Ok(Self(log))
    }

    /// Logs that an operation was acknowledged.
    pub fn note(&mut self, number: u64) -> io::Result<()> {
        self.0.write_all(format!("{number}\n").as_bytes())
    }
}

/// The writer and the number of operations that were acknowledged to it; nothing for a log without a whole first line.
pub fn read(path: &Path) -> Result<Option<(Writer, u64)>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // A line without an end was cut while it was written.
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let Some(first) = lines.next() else { return Ok(None) };
    let wrong = || format!("{}: '{first}' is no first line of a log", path.display());
    let mut words = first.split(' ');
    let (Some("witness"), Some(seed), Some(profile), Some(mode), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Err(wrong());
    };
    let profile = Profile::ALL.into_iter().find(|candidate| candidate.name() == profile).ok_or_else(wrong)?;
    let writer = Writer { seed: seed.parse().map_err(|_| wrong())?, profile, mode: mode.parse().map_err(|_| wrong())? };
    let mut acknowledged = 0;
    for line in lines {
        if line.parse() != Ok(acknowledged) {
            return Err(format!("{}: line '{line}' where {acknowledged} is next", path.display()));
        }
        acknowledged += 1;
    }
    Ok(Some((writer, acknowledged)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_comes_back_without_the_line_that_was_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let writer = Writer { seed: 5, profile: Profile::Small, mode: Mode::StrictAtomic };
        let mut log = Promises::begin(&path, &writer).expect("begun");
        for number in 0..12 {
            log.note(number).expect("noted");
        }
        assert_eq!(read(&path), Ok(Some((writer, 12))));
        let text = fs::read_to_string(&path).expect("read");
        fs::write(&path, &text[..text.len() - 1]).expect("cut");
        assert_eq!(read(&path), Ok(Some((writer, 11))));
        fs::write(&path, "witness 5 sm").expect("cut");
        assert_eq!(read(&path), Ok(None));
        fs::write(&path, format!("{text}13\n")).expect("written");
        assert!(read(&path).is_err_and(|error| error.contains("'13' where 12 is next")));
    }
}
