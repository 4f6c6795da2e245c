//! Verifies that promises were kept.
//!
//! All acknowledged work must exist exactly: names, types, contents, sizes, links, and nothing else. The one operation in flight may have
//! happened or not. If it writes data, it may have happened in part, as the mode allows (`docs/SEMANTICS.md`):
//!
//! [VF1] A change of names or of a size is atomic in every mode.
//! [VF2] relaxed: writeback sends whole pages in any order. So every page has a state that some of the operation's writes left, and the
//!       size is one that a write left, or a page border on the way to it.
//! [VF3] strict: writes happen in order, each up to some page border.
//! [VF4] strict,atomic: writes happen in order; a write of at most 1 MiB less a page has happened or not. A longer one is split at the page
//!       borders of the caller's memory, so anywhere in the file.
//! [VF5] Stores through a mapping: every byte is old or new.
//! [VF6] strict: the last acknowledged operations may be missing, one after the other, as far as they stored through mappings. A kernel
//!       that was told that fsync is free drops pages which it cannot send to a dead daemon, and msync reports nothing (seen on Linux
//!       6.18). This ends at the first other operation, because that operation fails.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::plan::{Model, Node, Operation, Piece, Sync};
use crate::promises::{self, Mode, Writer};

const PAGE: usize = 4096;
const ATOMIC_BYTES_MAX: usize = (1 << 20) - PAGE;

/// Statistics of a verification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Operations that were acknowledged.
    pub promises: u64,
    /// Names found.
    pub names: usize,
    /// Bytes of files compared.
    pub bytes: usize,
    /// The operation that was in flight.
    pub under_way: &'static str,
}

/// Compares a directory with what its log says.
pub fn verify(directory: &Path, log: &Path) -> Result<Verified, String> {
    let Some((writer, promises)) = promises::read(log)? else {
        // It was stopped before its first acknowledgement; its directory was made before it began.
        return directory.is_dir().then(Verified::default).ok_or_else(|| format!("{}: is not there", directory.display()));
    };
    let mut before = writer.model_after(promises);
    let under_way = writer.next(&mut before, promises);
    let found = Found::read(directory)?;
    found.check(&writer, &before, &under_way, promises).or_else(|what| {
        // [VF6]: the first that is missing may be there in part, those after it not at all.
        for number in (0..promises).rev().take_while(|_| writer.mode == Mode::Strict) {
            let mut before = writer.model_after(number);
            let mapped = writer.next(&mut before, number);
            if !matches!(mapped, Operation::Write { sync: Sync::Msync, .. }) {
                break;
            }
            if found.check(&writer, &before, &mapped, number).is_ok() {
                return Ok(());
            }
        }
        Err(what)
    })?;
    let bytes = found.names.values().map(|entry| if let Entry::File { bytes, .. } = entry { bytes.len() } else { 0 }).sum();
    Ok(Verified { promises, names: found.names.len(), bytes, under_way: under_way.word() })
}

#[derive(Debug)]
enum Entry {
    Directory,
    Symlink(String),
    File { inode: u64, links: u64, bytes: Arc<Vec<u8>> },
}

/// The contents found.
#[derive(Debug, Default)]
struct Found {
    names: BTreeMap<String, Entry>,
}

impl Found {
    fn read(directory: &Path) -> Result<Self, String> {
        let mut found = Self::default();
        found.read_below(directory, "", &mut BTreeMap::new())?;
        Ok(found)
    }

    fn read_below(&mut self, directory: &Path, prefix: &str, seen: &mut BTreeMap<u64, Arc<Vec<u8>>>) -> Result<(), String> {
        let at = |name: &str| {
            let path = directory.join(name);
            move |error: io::Error| format!("{}: {error}", path.display())
        };
        for entry in fs::read_dir(directory).map_err(at(""))? {
            let entry = entry.map_err(at(""))?;
            let name = entry.file_name().into_string().map_err(|name| format!("{name:?}: a name that nobody gave"))?;
            let metadata = entry.path().symlink_metadata().map_err(at(&name))?;
            let path = format!("{prefix}{name}");
            let kind = metadata.file_type();
            let found = if kind.is_dir() {
                self.read_below(&entry.path(), &format!("{path}/"), seen)?;
                Entry::Directory
            } else if kind.is_symlink() {
                Entry::Symlink(fs::read_link(entry.path()).map_err(at(&name))?.to_string_lossy().into_owned())
            } else if kind.is_file() {
                let bytes = match seen.get(&metadata.ino()) {
                    Some(bytes) => Arc::clone(bytes),
                    None => Arc::new(fs::read(entry.path()).map_err(at(&name))?),
                };
                seen.insert(metadata.ino(), Arc::clone(&bytes));
                if bytes.len() as u64 != metadata.len() {
                    return Err(format!("{path}: {} bytes were read, its size is {}", bytes.len(), metadata.len()));
                }
                Entry::File { inode: metadata.ino(), links: metadata.nlink(), bytes }
            } else {
                return Err(format!("{path}: a {kind:?} that nobody made"));
            };
            if self.names.insert(path.clone(), found).is_some() {
                return Err(format!("{path}: is listed twice"));
            }
        }
        Ok(())
    }

    fn check(&self, writer: &Writer, before: &Model, under_way: &Operation, number: u64) -> Result<(), String> {
        match under_way {
            Operation::Create { name, pieces, sync } => {
                let mut made = before.clone();
                made.make(name);
                match self.names.get(name) {
                    None => self.equals(before, None),
                    Some(_) => self.equals(&made, Some(name)).and_then(|()| self.in_part(writer, &made, name, pieces, *sync)),
                }
            }
            Operation::Write { name, pieces, sync, .. } => {
                self.equals(before, Some(name))?;
                self.in_part(writer, before, name, pieces, *sync)
            }
            _ => {
                // [VF1]
                let mut after = before.clone();
                after.apply(under_way, number);
                self.equals(before, None).or_else(|was| {
                    self.equals(&after, None)
                        .map_err(|is| format!("neither before nor after the {} that was under way: {was}; {is}", under_way.word()))
                })
            }
        }
    }

    /// Whether everything equals a model, except for the contents of the file behind one name.
    fn equals(&self, model: &Model, under_way: Option<&str>) -> Result<(), String> {
        let open = under_way.and_then(|name| model.file(name)).map(|(file, _)| file);
        if let Some(stray) = self.names.keys().find(|name| !model.names.contains_key(*name)) {
            return Err(format!("{stray}: exists, though nothing made it or its removal was acknowledged"));
        }
        let mut inodes = BTreeMap::new();
        for (name, node) in &model.names {
            let found = self.names.get(name).ok_or_else(|| format!("{name}: is not there, though it was acknowledged"))?;
            match (node, found) {
                (Node::Directory, Entry::Directory) => {}
                (Node::Symlink(target), Entry::Symlink(there)) if target == there => {}
                (Node::Symlink(_), Entry::Symlink(there)) => return Err(format!("{name}: stands for '{there}', another was acknowledged")),
                (Node::File(file), Entry::File { inode, links, bytes }) => {
                    if inodes.insert(*file, *inode).is_some_and(|other| other != *inode) {
                        return Err(format!("{name}: is another file than its hard links"));
                    }
                    if *links != model.links(*file) as u64 {
                        return Err(format!("{name}: has {links} links, {} were acknowledged", model.links(*file)));
                    }
                    if open != Some(*file) {
                        same(name, bytes, &model.files[file])?;
                    }
                }
                _ => return Err(format!("{name}: is of another type than was acknowledged")),
            }
        }
        Ok(())
    }

    /// Whether a file is a possible result of a part of these writes.
    fn in_part(&self, writer: &Writer, before: &Model, name: &str, pieces: &[Piece], sync: Sync) -> Result<(), String> {
        let Some(Entry::File { bytes, .. }) = self.names.get(name) else { return Err(format!("{name}: is not there")) };
        let mut model = before.clone();
        let mut states = Vec::with_capacity(pieces.len() + 1);
        let state = |model: &Model| model.file(name).map(|(_, bytes)| Arc::clone(bytes)).unwrap_or_default();
        states.push(state(&model));
        for piece in pieces {
            model.put(name, piece);
            states.push(state(&model));
        }
        let allowed = match (writer.mode, sync) {
            (_, Sync::Msync) => bytes_of_states(bytes, &states),   // [VF5]
            (Mode::Relaxed, _) => pages_of_states(bytes, &states), // [VF2]
            (mode, _) => (0..pieces.len()).any(|index| cut_in_order(bytes, &states[index], &states[index + 1], &pieces[index], mode)), // [VF3], [VF4]
        };
        if allowed {
            return Ok(());
        }
        let difference = same(name, bytes, &states[0]).err().unwrap_or_default();
        Err(format!(
            "{name}: holds what no part of the write under way leaves in mode {}; beside what was before: {difference}",
            writer.mode.name()
        ))
    }
}

fn same(name: &str, found: &[u8], promised: &[u8]) -> Result<(), String> {
    if found.len() != promised.len() {
        return Err(format!("{name}: has {} bytes, {} were acknowledged", found.len(), promised.len()));
    }
    match found.iter().zip(promised).position(|(found, promised)| found != promised) {
        None => Ok(()),
        Some(at) => Err(format!("{name}: byte {at} of {} is {:02x}, {:02x} was acknowledged", found.len(), found[at], promised[at])),
    }
}

fn bytes_of_states(found: &[u8], states: &[Arc<Vec<u8>>]) -> bool {
    states.iter().all(|state| state.len() == found.len()) && (0..found.len()).all(|at| states.iter().any(|state| state[at] == found[at]))
}

/// The page of a state, as it would be in a file of this size.
fn page_is(found: &[u8], state: &[u8], start: usize) -> bool {
    let end = (start + PAGE).min(found.len());
    let held = state.get(start.min(state.len())..end.min(state.len())).unwrap_or_default();
    found[start..end].starts_with(held) && found[start + held.len()..end].iter().all(|byte| *byte == 0)
}

fn pages_of_states(found: &[u8], states: &[Arc<Vec<u8>>]) -> bool {
    let (least, most) = (states.first().map_or(0, |state| state.len()), states.last().map_or(0, |state| state.len()));
    let size_allowed = (least..=most).contains(&found.len())
        && (found.len().is_multiple_of(PAGE) || states.iter().any(|state| state.len() == found.len()));
    size_allowed && (0..found.len()).step_by(PAGE).all(|start| states.iter().any(|state| page_is(found, state, start)))
}

/// Whether a file is `before` with the start of one write over it, up to a place where requests may be split.
fn cut_in_order(found: &[u8], before: &[u8], after: &[u8], piece: &Piece, mode: Mode) -> bool {
    let end = piece.offset + piece.length;
    let whole = mode == Mode::StrictAtomic && piece.length <= ATOMIC_BYTES_MAX;
    if mode == Mode::StrictAtomic && !whole {
        return cut_anywhere(found, before, after, end);
    }
    let borders = (piece.offset / PAGE + 1..=end / PAGE).map(|page| page * PAGE).filter(|at| !whole && *at < end);
    [piece.offset, end].into_iter().chain(borders).any(|cut| {
        let size = if cut > piece.offset { before.len().max(cut) } else { before.len() };
        found.len() == size
            && found[..piece.offset.min(size)] == before[..piece.offset.min(size)]
            && found[piece.offset.min(size)..cut.min(size)] == after[piece.offset.min(size)..cut.min(size)]
            && found[cut.min(size)..] == before[cut.min(before.len())..]
    })
}

fn cut_anywhere(found: &[u8], before: &[u8], after: &[u8], end: usize) -> bool {
    let written = found.iter().zip(after).take_while(|(found, after)| found == after).count();
    if found.len() > before.len() {
        return found.len() <= end && written == found.len();
    }
    let kept = found.iter().rev().zip(before.iter().rev()).take_while(|(found, before)| found == before).count();
    found.len() == before.len() && written + kept >= found.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Profile, content};
    use crate::write::{self, Options};

    fn states(before: usize, piece: &Piece) -> (Vec<u8>, Vec<u8>) {
        let before: Vec<u8> = (0..before).map(|at| (at % 251) as u8).collect();
        let mut after = before.clone();
        after.resize(before.len().max(piece.offset + piece.length), 0);
        after[piece.offset..][..piece.length].copy_from_slice(&content(piece));
        (before, after)
    }

    #[test]
    fn a_cut_write_is_allowed_at_the_borders_of_its_mode_only() {
        let piece = Piece { offset: 1000, length: 9000, seed: 3 };
        for size in [1000, 3000, 20_000] {
            let (before, after) = states(size, &piece);
            let cut = |at: usize| {
                let mut found = before.clone();
                found.resize(before.len().max(at), 0);
                found[piece.offset..at].copy_from_slice(&after[piece.offset..at]);
                found
            };
            for (at, in_strict, in_atomic) in
                [(1000, true, true), (4096, true, false), (8192, true, false), (10_000, true, true), (5000, false, false)]
            {
                // A cut at the start changes nothing.
                let found = if at == 1000 { before.clone() } else { cut(at) };
                assert_eq!(cut_in_order(&found, &before, &after, &piece, Mode::Strict), in_strict, "{size} {at}");
                assert_eq!(cut_in_order(&found, &before, &after, &piece, Mode::StrictAtomic), in_atomic, "{size} {at}");
            }
            // The second page without the first: write-back may, strict may not.
            let mut found = before.clone();
            found.resize(before.len().max(8192), 0);
            found[4096..8192].copy_from_slice(&after[4096..8192]);
            assert!(!cut_in_order(&found, &before, &after, &piece, Mode::Strict));
            let states = [Arc::new(before.clone()), Arc::new(after.clone())];
            assert!(pages_of_states(&found, &states), "{size}");
            // Half a page, and a wrong size.
            found[5000] ^= 1;
            assert!(!pages_of_states(&found, &states), "{size}");
            assert!(!pages_of_states(&cut(5000), &states), "{size}");
        }
    }

    #[test]
    fn a_write_longer_than_the_atomic_one_is_cut_anywhere_but_in_order() {
        let piece = Piece { offset: 100, length: ATOMIC_BYTES_MAX + 1, seed: 9 };
        for size in [100, 5000, 3 << 20] {
            let (before, after) = states(size, &piece);
            let allowed = |found: &[u8]| cut_in_order(found, &before, &after, &piece, Mode::StrictAtomic);
            for cut in [100, 101, 4096, 70_001, piece.offset + piece.length] {
                let mut found = before.clone();
                found.resize(before.len().max(cut), 0);
                found[100..cut].copy_from_slice(&after[100..cut]);
                assert!(allowed(&found), "{size} {cut}");
                let late = cut.max(70_000) + 10;
                found.resize(found.len().max(late + 1), 0);
                let foreign = |byte: &u8| before.get(late) != Some(byte) && after.get(late) != Some(byte);
                found[late] = (1..=u8::MAX).find(foreign).expect("a third byte");
                assert!(!allowed(&found), "{size} {cut}: a byte after the cut");
            }
        }
    }

    /// A kernel's msync says nothing of pages that a dead daemon did not get; what was acknowledged before it has no such excuse.
    #[test]
    fn the_last_mapped_write_before_a_death_may_be_missing_in_strict_mode_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let (directory, log) = (folder.path().join("written"), folder.path().join("log"));
        let strict = Writer { seed: 11, profile: Profile::Mixed, mode: Mode::Strict };
        let mut model = Model::new();
        let mapped = (0..).find(|number| {
            let operation = strict.next(&mut model, *number);
            model.apply(&operation, *number);
            matches!(operation, Operation::Write { sync: Sync::Msync, .. })
        });
        let mapped = mapped.expect("mapped writes are among them");
        for (mode, missing, is_kept) in [(Mode::Strict, 1, true), (Mode::Relaxed, 1, false), (Mode::Strict, 2, false)] {
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir(&directory).expect("made");
            let writer = Writer { mode, ..strict };
            let options = Options { writer, unsynced: false, operations: mapped + 1 - missing, announce: 0, power_cut_after: None };
            write::write(&directory, &log, &options).expect("written");
            let mut text = fs::read_to_string(&log).expect("read");
            (options.operations..=mapped).for_each(|number| text.push_str(&format!("{number}\n")));
            fs::write(&log, text).expect("written");
            assert_eq!(verify(&directory, &log).is_ok(), is_kept, "{mode:?}, {missing} missing");
        }
    }

    /// Works on any directory: shows that the verifier detects each kind of loss.
    #[test]
    fn every_kind_of_loss_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let (directory, log) = (folder.path().join("written"), folder.path().join("log"));
        let writer = Writer { seed: 11, profile: Profile::Mixed, mode: Mode::Relaxed };
        let fresh = || {
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir(&directory).expect("made");
            let options = Options { writer, unsynced: false, operations: 150, announce: 0, power_cut_after: None };
            write::write(&directory, &log, &options).expect("written");
            assert_eq!(verify(&directory, &log).expect("kept").promises, 150);
        };
        let reports = |word: &str| {
            let error = verify(&directory, &log).expect_err(word);
            assert!(error.contains(word), "'{error}' should say '{word}'");
        };
        fresh();
        let model = writer.model_after(150);
        let (name, Node::File(file)) = model
            .names
            .iter()
            .find(|(name, node)| matches!(node, Node::File(file) if model.files[file].len() > 5000 && model.links(*file) == 1 && name.starts_with("d0")))
            .expect("a file")
        else {
            unreachable!("a file was asked for")
        };
        let path = directory.join(name);
        let bytes = &model.files[file];

        let mut flipped = bytes.to_vec();
        flipped[4999] ^= 4;
        fs::write(&path, flipped).expect("changed");
        reports("byte 4999");
        fs::write(&path, &bytes[..4999]).expect("changed");
        reports("has 4999 bytes");
        fs::remove_file(&path).expect("removed");
        reports("is not there");
        fresh();
        fs::write(directory.join("d1/stray"), "x").expect("made");
        reports("stray: exists");
        fresh();
        fs::hard_link(&path, folder.path().join("second")).expect("linked");
        reports("has 2 links");
        fresh();
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        reports("another type");
        fresh();
        // A promise that the log has and the directory does not.
        let mut text = fs::read_to_string(&log).expect("read");
        text.push_str("150\n151\n152\n153\n154\n155\n");
        fs::write(&log, text).expect("written");
        assert!(verify(&directory, &log).is_err());
    }
}
