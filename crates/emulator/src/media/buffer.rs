//! The buffers of a DIMM: one in which lines of 64 B meet before the media write them as lines of 256 B ([PMM4]), and one of media lines that
//! were read. Pure.
//!
//! [PMM4]: super

use tandemfs_device::{Mechanism, Structure};
use tandemfs_format::LINE_BYTES;

use crate::mutant::{Mutant, on};

/// Bytes of a media line (*XPLine*): the unit in which the media are read and written (FusionFS §1; Yang et al., FAST 2020).
pub(crate) const MEDIA_LINE_BYTES: u64 = 256;
/// Lines of a media line.
pub(crate) const PARTS: usize = MEDIA_LINE_BYTES as usize / LINE_BYTES;

/// Whose a written line is, and what brought it.
pub(crate) type Origin = (Option<Structure>, Mechanism);

/// A media line that is written, with the parts that were brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MediaWrite {
    /// Its number.
    pub(crate) media_line: u64,
    parts: [Option<Origin>; PARTS],
}

impl MediaWrite {
    /// The origins of the parts that were brought.
    pub(crate) fn origins(&self) -> impl Iterator<Item = Origin> {
        self.parts.into_iter().flatten()
    }

    /// Whether the media must be read first, for the parts that nobody brought.
    pub(crate) fn is_partial(&self) -> bool {
        self.parts.iter().any(Option::is_none)
    }

    /// What each of the parts that were brought pays of the whole line, in bytes, all of them together `MEDIA_LINE_BYTES` ([PMM5]).
    ///
    /// [PMM5]: super
    pub(crate) fn shares(&self) -> impl Iterator<Item = (Origin, u64)> {
        let count = self.origins().count().max(1) as u64;
        let (each, beyond) = (MEDIA_LINE_BYTES / count, MEDIA_LINE_BYTES % count);
        self.origins().zip(0..).map(move |(origin, index)| (origin, each + u64::from(index < beyond)))
    }
}

/// Media lines that wait to be written; the one that was written to last is the first.
#[derive(Debug)]
pub(crate) struct CombiningBuffer {
    capacity: usize,
    lines: Vec<MediaWrite>,
}

impl CombiningBuffer {
    /// An empty buffer of so many media lines.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, lines: Vec::with_capacity(capacity) }
    }

    /// Takes a line that reached the DIMM. Returns the media line that gave its place and is written now.
    pub(crate) fn write(&mut self, line: u64, origin: Origin) -> Option<MediaWrite> {
        let (media_line, part) = (line / PARTS as u64, line as usize % PARTS);
        let found = self.lines.iter().position(|held| held.media_line == media_line);
        if let Some(at) = found.filter(|_| !on(Mutant::LinesNotCombined)) {
            self.lines[at].parts[part] = Some(origin);
            self.lines[..=at].rotate_right(1);
            return None;
        }
        let mut new = MediaWrite { media_line, parts: [None; PARTS] };
        new.parts[part] = Some(origin);
        let leaves = if self.lines.len() == self.capacity { self.lines.pop() } else { None };
        self.lines.insert(0, new);
        leaves
    }

    /// Whether a line is here and need not be read from the media.
    pub(crate) fn holds(&self, line: u64) -> bool {
        let (media_line, part) = (line / PARTS as u64, line as usize % PARTS);
        self.lines.iter().any(|held| held.media_line == media_line && held.parts[part].is_some())
    }

    /// Takes out what waits, the oldest first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = MediaWrite> {
        std::mem::take(&mut self.lines).into_iter().rev()
    }
}

/// Media lines that were read; the one that was used last is the first.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    capacity: usize,
    lines: Vec<u64>,
}

impl ReadBuffer {
    /// An empty buffer of so many media lines.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, lines: Vec::with_capacity(capacity) }
    }

    /// A read of a line. Returns whether the media are read.
    pub(crate) fn read(&mut self, line: u64) -> bool {
        let media_line = line / PARTS as u64;
        let found = self.lines.iter().position(|held| *held == media_line);
        match found {
            Some(at) => self.lines[..=at].rotate_right(1),
            None => {
                self.lines.truncate(self.capacity - 1);
                self.lines.insert(0, media_line);
            }
        }
        found.is_none()
    }
}
