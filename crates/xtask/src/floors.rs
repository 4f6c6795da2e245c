//! Floors: a crate depends on crates of lower floors alone, and so does a room of `fs`, which is a file or folder of its `src`. Nothing on one
//! floor knows another thing on it, so there is no circle either.
//!
//! The floors stand in ARCHITECTURE.md, behind a line that begins with one of [`CRATES`] and [`ROOMS`]: a number, ground first, and names. What
//! tests alone depend on is left out: a test may use whatever is above what it tests.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::rust_text::code;
use crate::tree::{File, Tree};

const DECLARED_IN: &str = "ARCHITECTURE.md";
const CRATES: &str = "Floors of the crates";
const ROOMS: &str = "Floors of the rooms of `fs`";
const ROOMS_FOLDER: &str = "crates/fs/src/";
/// Above all rooms: it declares them and hands their names on.
const FACE: &str = "lib";

/// Floors by name, and the lines that declare them.
type Floors = BTreeMap<String, (usize, usize)>;

/// An arrow: where it stands, from whom, to whom.
struct Arrow<'t> {
    path: &'t str,
    line: usize,
    from: &'t str,
    to: String,
}

/// Checks crates, then rooms.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.documents.iter().find(|file| file.path == DECLARED_IN) else { return Vec::new() };
    let mut findings = Vec::new();
    let crates = tree.manifests.iter().filter_map(|file| crate_of(&file.path).map(|name| (name, file)));
    let arrows = crates.clone().flat_map(|(name, file)| dependencies(name, file)).collect();
    check_house(document, CRATES, crates.collect(), arrows, &mut findings);
    let rooms = tree.sources.iter().filter_map(|file| room_of(&file.path).map(|name| (name, file)));
    let arrows = rooms.clone().flat_map(|(name, file)| imports(name, file)).collect();
    check_house(document, ROOMS, rooms.collect(), arrows, &mut findings);
    findings
}

fn check_house(document: &File, title: &str, parts: Vec<(&str, &File)>, arrows: Vec<Arrow<'_>>, findings: &mut Vec<Finding>) {
    if parts.is_empty() {
        return;
    }
    let floors = declared(document, title, findings);
    let mut unplaced: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, file) in &parts {
        if !floors.contains_key(*name) {
            unplaced.entry(name).or_insert(&file.path);
        }
    }
    for (name, path) in unplaced {
        let sentence = format!("`{name}` has no floor; give it one in {DECLARED_IN}, \"{title}\"");
        findings.push(Finding { path: path.to_owned(), line: 1, sentence });
    }
    for (name, (_, line)) in &floors {
        if parts.iter().all(|(part, _)| part != name) {
            let sentence = format!("`{name}` has a floor and is not there");
            findings.push(Finding { path: document.path.clone(), line: *line, sentence });
        }
    }
    for Arrow { path, line, from, to } in arrows {
        let sentence = match (floors.get(from), floors.get(&to)) {
            (Some((own, _)), Some((other, _))) if other >= own => {
                format!("`{from}` (floor {own}) takes from `{to}` (floor {other}); arrows point down: pass in what it needs, or move it")
            }
            (Some(_), None) => format!("`{to}` is not on any floor; name the room that has it"),
            _ => continue,
        };
        findings.push(Finding { path: path.to_owned(), line, sentence });
    }
}

/// The indented lines behind a title: `    2  near, health`.
fn declared(document: &File, title: &str, findings: &mut Vec<Finding>) -> Floors {
    let mut floors = Floors::new();
    let mut lines = (1..).zip(document.text.lines()).skip_while(|(_, line)| !line.starts_with(title));
    let mut wrong = |line: usize, sentence: String| findings.push(Finding { path: document.path.clone(), line, sentence });
    let Some((first, _)) = lines.next() else {
        wrong(1, format!("no line begins with \"{title}\"; the floors have to stand there"));
        return floors;
    };
    let listed = lines.skip_while(|(_, line)| !line.starts_with("    ")).take_while(|(_, line)| line.starts_with("    "));
    for (floor, (line, text)) in (1..).zip(listed) {
        let Some((_, names)) = text.trim().split_once(' ').filter(|(number, _)| number.parse() == Ok(floor)) else {
            wrong(line, format!("floor {floor} should stand here: its number, then names"));
            break;
        };
        for name in names.split(',').map(str::trim) {
            if floors.insert(name.to_owned(), (floor, line)).is_some() {
                wrong(line, format!("`{name}` has two floors, {floor} and a lower one"));
            }
        }
    }
    if floors.is_empty() {
        wrong(first, "no floors follow".to_owned());
    }
    floors
}

fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/'))
}

/// What a manifest asks for of this repository, but for tests.
fn dependencies<'t>(from: &'t str, file: &'t File) -> Vec<Arrow<'t>> {
    let mut arrows = Vec::new();
    let mut is_counted = false;
    for (line, text) in (1..).zip(file.text.lines()) {
        let name = match text.strip_prefix('[') {
            Some(header) => {
                let parts: Vec<&str> = header.trim_end().trim_end_matches(']').split('.').collect();
                let at = parts.iter().position(|part| matches!(*part, "dependencies" | "build-dependencies"));
                is_counted = at.is_some_and(|at| at + 1 == parts.len());
                at.and_then(|at| parts.get(at + 1).copied())
            }
            None => text.split(['.', '=', ' ']).next().filter(|_| is_counted),
        };
        let own = match name {
            Some("tandemfs") => Some("cli"),
            Some(name) => name.strip_prefix("tandemfs-"),
            None => None,
        };
        arrows.extend(own.map(|to| Arrow { path: &file.path, line, from, to: to.to_owned() }));
    }
    arrows
}

/// The room of a source; none for the face.
fn room_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(ROOMS_FOLDER)?;
    let room = inside.split_once('/').map_or_else(|| inside.strip_suffix(".rs"), |(folder, _)| Some(folder))?;
    (room != FACE).then_some(room)
}

/// What a source names of other rooms: `crate::x`, `crate::{x, y::z}`, and `super::x` where that is the root.
fn imports<'t>(from: &'t str, file: &'t File) -> Vec<Arrow<'t>> {
    let text = without_tests(&code(&file.text));
    let inside = &file.path[ROOMS_FOLDER.len()..];
    let depth = inside.split('/').count() - usize::from(inside.ends_with("/mod.rs"));
    let to_root = "super::".repeat(depth);
    let mut arrows = Vec::new();
    for (root, is_start) in [("crate::", None), (to_root.as_str(), Some("super::"))] {
        for (at, _) in text.match_indices(root) {
            let before = &text[..at];
            let is_within = before.ends_with(|character: char| character.is_alphanumeric() || character == '_');
            if is_within || is_start.is_some_and(|step| before.ends_with(step)) {
                continue;
            }
            let line = before.matches('\n').count() + 1;
            let names = first_names(&text[at + root.len()..]).into_iter().filter(|to| to != from && to != "super");
            arrows.extend(names.map(|to| Arrow { path: &file.path, line, from, to }));
        }
    }
    arrows
}

/// The first part of each path of a use: `x` of `x::y`, `x` and `z` of `{x::{a, b}, z}`.
fn first_names(text: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect::<String>();
    let Some(group) = text.strip_prefix('{') else { return vec![name(text)] };
    let (mut names, mut nested, mut start) = (Vec::new(), 0, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => nested += 1,
            '}' if nested > 0 => nested -= 1,
            ',' | '}' if nested == 0 => {
                names.push(name(group[start..at].trim_start()));
                start = at + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty() && name != "self");
    names
}

/// Code without its modules of tests, line for line.
fn without_tests(code: &str) -> String {
    const TESTS: &str = "#[cfg(test)]";
    let mut left = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(TESTS) {
        let (before, item) = rest.split_at(at);
        let after = item[TESTS.len()..].trim_start();
        let end = if after.starts_with("mod ") {
            item.find('{').map_or(item.len(), |open| open + block_bytes(&item[open..]))
        } else {
            TESTS.len()
        };
        left.push_str(before);
        left.extend(item[..end].matches('\n'));
        rest = &item[end..];
    }
    left + rest
}

/// A block with its braces.
fn block_bytes(text: &str) -> usize {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# A\n\nFloors of the crates, ground first:\n\n    1  format\n    2  device, fs\n    3  cli\n\n\
                            Floors of the rooms of `fs`:\n\n    1  error\n    2  cache, alloc\n    3  data\n\nMore.\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let rooms = ["error.rs", "cache/mod.rs", "alloc/mod.rs", "data/mod.rs", "lib.rs"].map(|name| format!("{ROOMS_FOLDER}{name}"));
        let manifests = ["format", "device", "fs", "cli"].map(|name| format!("crates/{name}/Cargo.toml"));
        let mut all: Vec<(&str, &str)> = vec![(DECLARED_IN, DOCUMENT)];
        let standing = rooms.iter().chain(&manifests).map(|path| (path.as_str(), ""));
        all.extend(standing.filter(|(path, _)| files.iter().all(|(other, _)| other != path)));
        all.retain(|(path, _)| files.iter().all(|(other, _)| other != path));
        all.extend(files);
        check(&Tree::of(&all)).iter().map(ToString::to_string).collect()
    }

    fn of_room(path: &str, text: &str) -> Vec<String> {
        found(&[(&format!("{ROOMS_FOLDER}{path}"), text)])
    }

    #[test]
    fn arrows_that_point_down_are_not_found() {
        assert_eq!(found(&[]), [""; 0]);
        assert_eq!(
            of_room("data/mod.rs", "use crate::cache::{Page, x::Y};\nuse crate::{error::Error, alloc};\nuse super::error;\n"),
            [""; 0]
        );
        assert_eq!(of_room("data/path.rs", "use super::other::data;\nuse crate::data::x;\nfn f() -> crate::error::Result {}\n"), [""; 0]);
        assert_eq!(of_room("lib.rs", "use crate::data::X;\n"), [""; 0], "the face is above all rooms");
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let up = "`cache` (floor 2) takes from `data` (floor 3); arrows point down: pass in what it needs, or move it";
        for (path, text) in [
            ("mod.rs", "\nuse crate::data::x;\n"),
            ("mod.rs", "\nuse crate::{error::{A, B}, data};\n"),
            ("mod.rs", "\nfn f(x: &crate::data::X) {}\n"),
            ("mod.rs", "\nuse super::data::x;\n"),
            ("lines.rs", "\nuse super::super::data::x;\n"),
            ("lines.rs", "#[cfg(test)]\nuse crate::data::x;\n"),
        ] {
            assert_eq!(of_room(&format!("cache/{path}"), text), [format!("{ROOMS_FOLDER}cache/{path}:2: {up}")], "{text}");
        }
    }

    #[test]
    fn rooms_of_one_floor_do_not_know_each_other() {
        let both = found(&[("crates/fs/src/cache/mod.rs", "use crate::alloc;"), ("crates/fs/src/alloc/mod.rs", "use crate::cache;")]);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both.iter().all(|finding| finding.contains("(floor 2) takes from")), "{both:?}");
    }

    #[test]
    fn the_face_is_no_way_around() {
        let expected = "crates/fs/src/cache/mod.rs:1: `FileSystem` is not on any floor; name the room that has it";
        assert_eq!(of_room("cache/mod.rs", "use crate::FileSystem;\n"), [expected]);
    }

    #[test]
    fn tests_comments_and_strings_may_name_anything() {
        let text =
            "//! [`crate::data`]\nfn f() { g(\"crate::data\") }\n#[cfg(test)]\nmod tests {\n    use crate::data;\n    fn f() { {} }\n}\n";
        assert_eq!(of_room("cache/mod.rs", text), [""; 0]);
        let behind = of_room("cache/mod.rs", &format!("{text}use crate::data;\n"));
        assert!(behind.len() == 1 && behind[0].starts_with("crates/fs/src/cache/mod.rs:8:"), "{behind:?}");
    }

    #[test]
    fn rooms_without_a_floor_and_floors_without_a_room_are_found() {
        assert_eq!(
            of_room("journal/tx.rs", "use crate::data;\n"),
            ["crates/fs/src/journal/tx.rs:1: `journal` has no floor; give it one in ARCHITECTURE.md, \"Floors of the rooms of `fs`\""]
        );
        let shorter = DOCUMENT.replace("    2  device, fs", "    2  device, fs, gone").replace("    3  cli", "    4  cli");
        assert_eq!(
            found(&[(DECLARED_IN, &shorter)]),
            [
                "ARCHITECTURE.md:7: floor 3 should stand here: its number, then names",
                "crates/cli/Cargo.toml:1: `cli` has no floor; give it one in ARCHITECTURE.md, \"Floors of the crates\"",
                "ARCHITECTURE.md:6: `gone` has a floor and is not there",
            ]
        );
    }

    #[test]
    fn crates_depend_on_lower_floors_alone() {
        let down =
            "[dependencies]\ntandemfs-device.workspace = true\nserde = \"1\"\n[dev-dependencies]\ntandemfs = { path = \"../cli\" }\n";
        assert_eq!(found(&[("crates/cli/Cargo.toml", down)]), [""; 0]);
        let up = |line: usize, other: &str, floor: u32| {
            let advice = "arrows point down: pass in what it needs, or move it";
            format!("crates/fs/Cargo.toml:{line}: `fs` (floor 2) takes from `{other}` (floor {floor}); {advice}")
        };
        for (text, finding) in [
            ("[dependencies]\ntandemfs-device = { path = \"../device\" }\n", up(2, "device", 2)),
            ("[package]\nname = \"tandemfs-fs\"\n[dependencies.tandemfs]\npath = \"../cli\"\n", up(3, "cli", 3)),
            ("[target.'cfg(unix)'.dependencies]\ntandemfs.workspace = true\n", up(2, "cli", 3)),
        ] {
            assert_eq!(found(&[("crates/fs/Cargo.toml", text)]), [finding]);
        }
    }
}
