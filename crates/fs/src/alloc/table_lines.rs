//! Lines of the segment table that no segment uses.

use std::collections::BTreeSet;

use tandemfs_format::geometry::SEGMENT_TABLE_LINES;

/// Which lines are unused.
#[derive(Debug, Default)]
pub(super) struct TableLines {
    /// No line from here on is used.
    next: u64,
    /// Unused lines before it.
    unused: BTreeSet<u64>,
}

impl TableLines {
    /// Marks a line as used: while the table is read.
    pub(super) fn set_used(&mut self, line: u64) {
        self.unused.extend(self.next..line);
        self.unused.remove(&line);
        self.next = self.next.max(line + 1);
    }

    /// The first unused line, which is used from now on; `None` if the table is full.
    pub(super) fn take(&mut self) -> Option<u64> {
        if let Some(line) = self.unused.pop_first() {
            return Some(line);
        }
        let line = self.next;
        self.next += u64::from(line < SEGMENT_TABLE_LINES);
        (line < SEGMENT_TABLE_LINES).then_some(line)
    }

    /// Returns a line that is empty on the device.
    pub(super) fn give(&mut self, line: u64) {
        self.unused.insert(line);
    }

    /// Number of lines in use.
    pub(super) fn used(&self) -> u64 {
        self.next - self.unused.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_given_out_once_and_the_first_ones_first() {
        let mut lines = TableLines::default();
        for line in [3, 1, 6] {
            lines.set_used(line);
        }
        assert_eq!(lines.used(), 3);
        assert_eq!([(); 6].map(|()| lines.take()), [0, 2, 4, 5, 7, 8].map(Some));
        lines.give(5);
        lines.give(1);
        assert_eq!((lines.used(), lines.take(), lines.take(), lines.take()), (7, Some(1), Some(5), Some(9)));
        while lines.take().is_some() {}
        assert_eq!(lines.used(), SEGMENT_TABLE_LINES);
        lines.give(70);
        assert_eq!((lines.take(), lines.take()), (Some(70), None));
    }
}
