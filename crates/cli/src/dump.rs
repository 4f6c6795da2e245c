//! `tandemfs dump`: structures of a device as they are on the medium.

use std::ffi::OsStr;
use std::io;

use serde_json::json;
use tandemfs_check::{CheckError, Dump};

use crate::arguments::DumpArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;

/// What can be dumped.
const WHAT: &str = "superblock, segments, journal, inode NUMBER or tree [PATH]";

/// A structure.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    Superblock,
    Segments,
    Journal,
    Inode(u64),
    Tree(&'a str),
}

/// Shows a structure.
pub fn run(arguments: &DumpArguments) -> Result<u8, Failure> {
    let words: Option<Vec<&str>> = arguments.what.iter().map(|word| OsStr::to_str(word)).collect();
    let target = words.as_deref().and_then(target);
    let named = arguments.what.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let target = target.ok_or_else(|| Failure::Usage(format!("unknown structure '{named}'; use {WHAT}")))?;
    let drive = device::open(&arguments.device, Opening { read_only: true, ..Opening::default() })?;
    let dump = Dump::open(&drive).map_err(failure)?;
    if arguments.json {
        let mut text = Vec::new();
        show(&dump, &target, &mut text).map_err(failure)?;
        let text = String::from_utf8_lossy(&text);
        output::print_json(&json!({ "device": arguments.device, "structure": named, "lines": text.lines().collect::<Vec<_>>() }))?;
        return Ok(0);
    }
    let mut output = io::BufWriter::new(io::stdout().lock());
    show(&dump, &target, &mut output).and_then(|()| Ok(io::Write::flush(&mut output)?)).map_err(failure)?;
    Ok(0)
}

fn show(dump: &Dump<'_>, target: &Target<'_>, output: &mut dyn io::Write) -> Result<(), CheckError> {
    match *target {
        Target::Superblock => dump.superblock(output),
        Target::Segments => dump.segments(output),
        Target::Journal => dump.journal(output),
        Target::Inode(number) => dump.inode(number, output),
        Target::Tree(path) => dump.tree(path, output),
    }
}

fn failure(error: CheckError) -> Failure {
    match error {
        CheckError::Output(error) => error.into(),
        other => Failure::because(other),
    }
}

fn target<'a>(words: &[&'a str]) -> Option<Target<'a>> {
    match words {
        ["superblock"] => Some(Target::Superblock),
        ["segments"] => Some(Target::Segments),
        ["journal"] => Some(Target::Journal),
        ["inode", number] => number.parse().ok().map(Target::Inode),
        ["tree"] => Some(Target::Tree("/")),
        ["tree", path] => Some(Target::Tree(path)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_structures() {
        assert_eq!(target(&["superblock"]), Some(Target::Superblock));
        assert_eq!(target(&["inode", "5"]), Some(Target::Inode(5)));
        assert_eq!(target(&["tree"]), Some(Target::Tree("/")));
        assert_eq!(target(&["tree", "/a/b"]), Some(Target::Tree("/a/b")));
        for words in [&["inode"][..], &["inode", "x"], &["superblock", "2"], &["nothing"], &[]] {
            assert_eq!(target(words), None, "{words:?}");
        }
    }
}
