//! A report as Markdown: the content of the page without plots.

use super::document::{Block, Document, Grid};
use crate::table::Table;

/// The whole report.
pub fn text(document: &Document) -> String {
    let mut text = format!("# {}\n\n", plain(&document.title));
    text += &blocks(&document.blocks, 2);
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Some blocks; chapters have headings of this level.
pub fn blocks(blocks: &[Block], level: usize) -> String {
    blocks.iter().map(|block| one(block, level)).collect()
}

fn one(block: &Block, level: usize) -> String {
    let heading = |level: usize, title: &str| format!("{} {}\n\n", "#".repeat(level), plain(title));
    match block {
        Block::Chapter { title, .. } => heading(level, title),
        Block::Section(title) => heading(level + 1, title),
        Block::Paragraph(text) => format!("{}\n\n", plain(text)),
        Block::Warning(text) => format!("**{}**\n\n", plain(text)),
        Block::List(items) => items.iter().map(|item| format!("- {}\n", plain(item))).collect::<String>() + "\n",
        Block::Grid(grid) => table(grid),
        Block::Plots { .. } => String::new(),
        Block::Fold { summary, tag, blocks: behind, .. } => {
            let tag = tag.as_ref().map(|(_, tag)| format!(": {tag}")).unwrap_or_default();
            heading(level + 2, &format!("{summary}{tag}")) + &blocks(behind, level + 2)
        }
    }
}

fn table(grid: &Grid) -> String {
    let mut table = Table::new(grid.head.iter().map(|name| cell(name)));
    for (_, cells) in &grid.rows {
        table.row(cells.iter().map(|each| cell(&each.text)));
    }
    let caption = if grid.caption.is_empty() { String::new() } else { format!("{}\n\n", plain(&grid.caption)) };
    format!("{caption}{}\n", table.markdown())
}

/// A text on one line with HTML and Markdown markup escaped.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => plain += "&lt;",
            '>' => plain += "&gt;",
            '&' => plain += "&amp;",
            '*' | '`' | '[' | ']' | '\\' => {
                plain.push('\\');
                plain.push(letter);
            }
            letter if letter.is_control() => plain.push(' '),
            _ => plain.push(letter),
        }
    }
    plain
}

/// [`plain`] with column separators escaped.
fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::super::document::Cell;
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let mut grid = Grid::new("all | of it", &[0], ["case", "a|b"]);
        grid.row(None, [Cell::from("<script>\nx"), Cell::from("*1* | `2`")]);
        let blocks = vec![Block::Paragraph("a <b> [c](d)".into()), Block::Grid(grid)];
        let text = text(&Document { title: "t & u".into(), blocks });
        let cells = |line: &str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect::<Vec<_>>();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..6], ["# t &amp; u", "", "a &lt;b&gt; \\[c\\](d)", "", "all | of it", ""]);
        assert_eq!(cells(lines[6]), ["case", "a\\|b"]);
        assert_eq!(cells(lines[8]), ["&lt;script&gt; x", "\\*1\\* \\| \\`2\\`"], "one line a row, whatever is in it");
        assert_eq!(lines.len(), 9);
    }
}
