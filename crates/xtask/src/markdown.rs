//! What checks need of Markdown: the text without its code, links and pictures, and the anchors of headings.

use std::collections::{BTreeMap, BTreeSet};

/// A link, or a picture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'t> {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) is_picture: bool,
    /// What is between the brackets; of a picture what is read out where it cannot be shown.
    pub(crate) text: &'t str,
    /// Path and anchor, without a title behind them. Empty where the target is written elsewhere (`[text][name]`).
    pub(crate) target: &'t str,
}

/// A document of as many lines in which code is made unreadable: fenced blocks are empty lines, spans of code are `_`.
pub(crate) fn without_code(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut fences = Fences::default();
    for line in text.lines() {
        if !fences.holds(line) {
            spans_hidden(line, &mut kept);
        }
        kept.push('\n');
    }
    kept
}

/// Links and pictures of a text without code, in its order: `[text](target)`, `![text](target)`, `[name]: target`, `<a href="target">` and
/// `<img src="target" alt="text">`; and pictures of which the target is written elsewhere.
pub(crate) fn links(prose: &str) -> Vec<Link<'_>> {
    let mut found: Vec<(usize, Link<'_>)> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for (at, character) in prose.char_indices() {
        match character {
            '[' => open.push(at),
            ']' => {
                let Some(start) = open.pop() else { continue };
                let is_picture = prose[..start].ends_with('!');
                let after = &prose[at + 1..];
                let target = after.strip_prefix('(').and_then(|after| after.split_once(')')).map(|(inside, _)| target(inside));
                let defined = after.strip_prefix(": ").filter(|_| !is_picture && is_at_start_of_line(prose, start));
                let target = target.or_else(|| defined.map(target_of_definition));
                if let Some(target) = target.or(is_picture.then_some("")) {
                    found.push((start, Link { line: line_of(prose, start), is_picture, text: &prose[start + 1..at], target }));
                }
            }
            '<' => {
                let Some((tag, _)) = prose[at + 1..].split_once('>') else { continue };
                let is_picture = tag.starts_with("img ");
                let target = attribute(tag, if is_picture { "src" } else { "href" });
                if is_picture || tag.starts_with("a ") && target.is_some() {
                    let text = attribute(tag, "alt").unwrap_or("");
                    found.push((at, Link { line: line_of(prose, at), is_picture, text, target: target.unwrap_or("") }));
                }
            }
            _ => {}
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, link)| link).collect()
}

/// The anchors of a document's headings, as GitHub and mdBook make them: lower case, `-` for spaces, no punctuation, and `-1` behind the
/// second of the same name.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    let mut fences = Fences::default();
    for line in text.lines() {
        if fences.holds(line) {
            continue;
        }
        let Some(heading) = heading(line) else { continue };
        let anchor = anchor(heading);
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Where fenced blocks of code begin and end.
#[derive(Default)]
struct Fences {
    /// The character and the length of the fence that is open.
    open: Option<(char, usize)>,
}

impl Fences {
    /// Whether the next line belongs to a block, its fences included.
    fn holds(&mut self, line: &str) -> bool {
        let line = line.trim_start();
        let character = line.chars().next().filter(|character| matches!(character, '`' | '~'));
        let length = line.chars().take_while(|next| Some(*next) == character).count();
        let rest = line.get(length..).unwrap_or("");
        match (self.open, character) {
            (Some((open, least)), Some(character)) if character == open && length >= least && rest.trim().is_empty() => {
                self.open = None;
                true
            }
            (Some(_), _) => true,
            (None, Some(character)) if length >= 3 && !(character == '`' && rest.contains('`')) => {
                self.open = Some((character, length));
                true
            }
            (None, _) => false,
        }
    }
}

fn spans_hidden(line: &str, kept: &mut String) {
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].bytes().take_while(|byte| *byte == b'`').count();
        let (before, inside) = (&rest[..start + ticks], &rest[start + ticks..]);
        let Some(end) = end_of_span(inside, ticks) else { break };
        kept.push_str(before);
        kept.extend(inside[..end].chars().map(|_| '_'));
        kept.push_str(&inside[end..end + ticks]);
        rest = &inside[end + ticks..];
    }
    kept.push_str(rest);
}

/// Where exactly so many backticks stand.
fn end_of_span(inside: &str, ticks: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = inside[at..].find('`') {
        let run = inside[at + next..].bytes().take_while(|byte| *byte == b'`').count();
        if run == ticks {
            return Some(at + next);
        }
        at += next + run;
    }
    None
}

/// `path`, `<path>` or `path "title"`.
fn target(inside: &str) -> &str {
    let inside = inside.trim();
    match inside.strip_prefix('<').and_then(|inside| inside.split_once('>')) {
        Some((target, _)) => target,
        None => inside.split_whitespace().next().unwrap_or(""),
    }
}

fn target_of_definition(after: &str) -> &str {
    target(after.lines().next().unwrap_or(""))
}

fn is_at_start_of_line(prose: &str, at: usize) -> bool {
    prose[..at].rsplit('\n').next().is_some_and(|before| before.trim().is_empty())
}

fn line_of(prose: &str, at: usize) -> usize {
    prose[..at].matches('\n').count() + 1
}

fn attribute<'t>(tag: &'t str, name: &str) -> Option<&'t str> {
    let (_, after) = tag.split_once(&format!(" {name}=\""))?;
    after.split_once('"').map(|(value, _)| value)
}

fn heading(line: &str) -> Option<&str> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let line = &line[indent..];
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    let is_heading = indent <= 3 && (1..=6).contains(&level) && (text.is_empty() || text.starts_with([' ', '\t']));
    let text = text.trim();
    let without_end = text.trim_end_matches('#');
    is_heading.then_some(if without_end.ends_with(' ') { without_end.trim_end() } else { text })
}

fn anchor(heading: &str) -> String {
    let mut anchor = String::new();
    for character in shown(heading).trim().chars() {
        if character.is_alphanumeric() || matches!(character, '-' | '_') {
            anchor.extend(character.to_lowercase());
        } else if character.is_whitespace() {
            anchor.push('-');
        }
    }
    anchor
}

/// A heading without the targets of its links.
fn shown(heading: &str) -> String {
    let mut shown = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        shown.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_hidden_and_lines_stay() {
        let text = "a `[b](c)` d\n```sh\n[e](f)\n````\n~~~\n```\n~~~\n[g](h) `` ` `` `i\n";
        assert_eq!(without_code(text), "a `______` d\n\n\n\n\n\n\n[g](h) ``___`` `i\n");
    }

    #[test]
    fn links_and_pictures_are_found() {
        let text = "[a\nb](c.md#d) ![e](f.svg \"title\") [![g](h.svg)](<i j>) [k] [l]: m\n[n]: o.md\n![][p] <img src=\"q\" alt=\"r\"> <a href=\"s\">t</a>\n";
        let link = |line, is_picture, text, target| Link { line, is_picture, text, target };
        let expected = [
            link(1, false, "a\nb", "c.md#d"),
            link(2, true, "e", "f.svg"),
            link(2, false, "![g](h.svg)", "i j"),
            link(2, true, "g", "h.svg"),
            link(3, false, "n", "o.md"),
            link(4, true, "", ""),
            link(4, true, "r", "q"),
            link(4, false, "", "s"),
        ];
        assert_eq!(links(text), expected);
    }

    #[test]
    fn anchors_are_those_of_github_and_mdbook() {
        let text = "# One\n\n## \"Two words\" (`ENOTCONN`)\n### One\n#no heading\n```\n# code\n```\n    # code\n## A [link](x.md) ##\n####### seven\n";
        let expected = ["a-link", "one", "one-1", "two-words-enotconn"];
        assert_eq!(anchors(text), expected.map(str::to_owned).into());
    }
}
