//! What people read in a Rust source, its comments and string literals, and the code between them.

/// Each line of a source with everything but comments and string literals replaced by spaces.
pub(crate) fn comments_and_strings(source: &str) -> Vec<String> {
    let mut lexer = Lexer { rest: source, text: String::with_capacity(source.len()), before: ' ' };
    while lexer.step() {}
    lexer.text.lines().map(str::to_owned).collect()
}

/// A source with its comments and string literals replaced by spaces.
pub(crate) fn code(source: &str) -> String {
    let mut lexer = Lexer { rest: source, text: String::with_capacity(source.len()), before: ' ' };
    while lexer.step() {}
    // Where the other text has a character of its own, it is no code.
    let pairs = source.chars().zip(lexer.text.chars());
    pairs.map(|(character, kept)| if kept == character && character != '\n' { ' ' } else { character }).collect()
}

struct Lexer<'s> {
    rest: &'s str,
    text: String,
    /// The character before `rest`, if it is code.
    before: char,
}

impl Lexer<'_> {
    /// Consumes one comment, one literal or one character of code. False at the end.
    fn step(&mut self) -> bool {
        let Some(next) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            self.keep(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.keep(block_comment_bytes(self.rest));
        } else if next == '"' {
            self.keep(string_bytes(self.rest));
        } else if let Some(bytes) = self.raw_string_bytes() {
            self.keep(bytes);
        } else {
            self.skip(if next == '\'' { character_bytes(self.rest) } else { next.len_utf8() });
        }
        true
    }

    fn keep(&mut self, bytes: usize) {
        let (kept, rest) = self.rest.split_at(bytes);
        self.text.push_str(kept);
        self.rest = rest;
        self.before = ' ';
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes);
        self.text.extend(skipped.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        self.before = skipped.chars().next_back().unwrap_or(' ');
        self.rest = rest;
    }

    /// `r"…"`, `r#"…"#` and so on; the `b` or `c` before it is code.
    fn raw_string_bytes(&self) -> Option<usize> {
        let within_name = self.before.is_alphanumeric() && !matches!(self.before, 'b' | 'c') || self.before == '_';
        let after = self.rest.strip_prefix('r').filter(|_| !within_name)?;
        let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
        let content = after[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = content.find(&end).map_or(content.len(), |at| at + end.len());
        Some(1 + hashes + 1 + length)
    }
}

fn block_comment_bytes(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let (change, bytes) = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (1, 2),
            [b'*', b'/', ..] => (-1, 2),
            _ => (0, 1),
        };
        depth += change;
        at += bytes;
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_bytes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Consumes a character literal, or only the apostrophe of a lifetime.
fn character_bytes(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((escaped, _))) => text[escaped + 1..].find('\'').map_or(1, |at| escaped + 1 + at + 1),
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> String {
        comments_and_strings(source).iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn code_is_left_out_and_lines_stay() {
        assert_eq!(texts("let a = [N1]; // one\nlet b = 2;\n"), "// one|");
        assert_eq!(texts("a /* x /* y */ z\n */ [N1]"), "/* x /* y */ z|*/");
    }

    #[test]
    fn code_is_what_is_left() {
        let source = "a::b(\"c\", 'd'); // e\n/* f\n */ g\n";
        assert_eq!(code(source).split_whitespace().collect::<Vec<_>>(), ["a::b(", ",", "'d');", "g"]);
        assert_eq!(code(source).matches('\n').count(), 3);
    }

    #[test]
    fn strings_of_every_kind_are_kept() {
        assert_eq!(texts(r#"f("a \" // b", c)"#), r#""a \" // b""#);
        assert_eq!(texts("f(r#\"a \" b\"#, [N1])"), "r#\"a \" b\"#");
        assert_eq!(texts("f(br\"a\\\", [N1]) // c"), "r\"a\\\" // c");
    }

    #[test]
    fn characters_and_lifetimes_open_no_string() {
        assert_eq!(texts("let q = '\"'; // a"), "// a");
        assert_eq!(texts("let q = '\\''; // a"), "// a");
        assert_eq!(texts("fn f<'a>(x: &'a str) {} // it's"), "// it's");
        assert_eq!(texts("let colon = '\u{e4}'; for_r(\"x\")"), "\"x\"");
    }
}
