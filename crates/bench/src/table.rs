//! Tables that are readable as text and valid Markdown.

/// A column: its head, and what it shows of an item.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// A table: text in the first column, numbers in the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// A row for each item, by columns: the head, and what is shown of an item.
    pub fn of<T>(items: &[T], columns: &[Column<'_, T>]) -> Self {
        let mut table = Self::new(columns.iter().map(|(head, _)| *head));
        items.iter().for_each(|item| table.row(columns.iter().map(|(_, show)| show(item))));
        table
    }

    /// Adds a row of as many cells as the head has.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.head.len(), "{cells:?}");
        self.rows.push(cells);
    }

    /// The table as Markdown with aligned columns.
    pub fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = String::new();
        for (index, row) in lines().enumerate() {
            let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            text += &format!("| {} |\n", padded.collect::<Vec<String>>().join(" | "));
            if index == 0 {
                let rule = widths.iter().enumerate().map(|(column, width)| match column {
                    0 => "-".repeat(width + 2),
                    _ => format!("{}:", "-".repeat(width + 1)),
                });
                text += &format!("|{}|\n", rule.collect::<Vec<String>>().join("|"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["size", "ours"]);
        table.row(["4 KiB", "≤ 97.25"]);
        assert_eq!(table.markdown(), "| size  |    ours |\n|-------|--------:|\n| 4 KiB | ≤ 97.25 |\n");
    }
}
