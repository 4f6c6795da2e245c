//! Markdown in which every text that comes from results is escaped ([REP4]).
//!
//! [REP4]: super

use crate::table::Table;

/// A text in Markdown.
#[derive(Debug, Default)]
pub struct Page(pub String);

impl Page {
    /// A heading; 1 is the title.
    pub fn heading(&mut self, level: usize, title: &str) {
        self.0 += &format!("{} {}\n\n", "#".repeat(level), plain(title));
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        self.0 += &format!("{}\n\n", plain(text));
    }

    /// A list; nothing without items.
    pub fn list(&mut self, items: impl IntoIterator<Item = String>) {
        let items: String = items.into_iter().map(|item| format!("- {}\n", plain(&item))).collect();
        if !items.is_empty() {
            self.0 += &format!("{items}\n");
        }
    }

    /// A table with a caption, each row as wide as the head; nothing without rows.
    pub fn table(&mut self, caption: &str, head: &[&str], rows: Vec<Vec<String>>) {
        if rows.is_empty() {
            return;
        }
        let cell = |text: &str| plain(text).replace('|', "\\|");
        let mut table = Table::new(head.iter().map(|name| cell(name)));
        rows.iter().for_each(|row| table.row(row.iter().map(|text| cell(text))));
        if !caption.is_empty() {
            self.text(caption);
        }
        self.0 += &format!("{}\n", table.markdown());
    }
}

/// A text on one line with HTML and Markdown markup escaped.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => plain += "&lt;",
            '>' => plain += "&gt;",
            '&' => plain += "&amp;",
            '*' | '`' | '[' | ']' | '\\' => plain.extend(['\\', letter]),
            letter if letter.is_control() => plain.push(' '),
            _ => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let mut page = Page::default();
        page.heading(1, "t & u");
        page.text("a <b> [c](d)");
        page.table("all | of it", &["case", "a|b"], vec![vec!["<script>\nx".into(), "*1* | `2`".into()]]);
        page.table("no rows", &["case"], Vec::new());
        let cells = |line: &str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect::<Vec<_>>();
        let lines: Vec<&str> = page.0.trim_end().lines().collect();
        assert_eq!(lines[..6], ["# t &amp; u", "", "a &lt;b&gt; \\[c\\](d)", "", "all | of it", ""]);
        assert_eq!(cells(lines[6]), ["case", "a\\|b"]);
        assert_eq!(cells(lines[8]), ["&lt;script&gt; x", "\\*1\\* \\| \\`2\\`"], "one line a row, whatever is in it");
        assert_eq!(lines.len(), 9);
    }
}
