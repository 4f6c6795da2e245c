//! The results file: each line is durable when written, so a comparison can be interrupted at any time and resumed.
//!
//! [O1] The header is the first line. If something is left out later, a new header with the reason is appended; the last header counts.
//! [O2] A run is durable before the next begins. A partial last line belongs to an interrupted run and is cut off.
//! [O3] Runs with different settings or of another format version are never mixed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use super::plan::Key;
use super::record::{Header, Line, Record, SameDrive};
use super::report::results::{self, Results};
use super::same_drive;
use crate::failure::{Failure, Result};

/// The open results file.
pub struct Store {
    file: File,
    header: Header,
    records: Vec<Record>,
}

impl Store {
    /// A new file with its header.
    ///
    /// # Errors
    /// It already exists, or cannot be written.
    pub fn create(path: &Path, header: Header) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::new(format!(
                "{}: holds results already; go on with --resume, or name another directory with --output",
                path.display()
            )),
            _ => Failure::new(format!("{}: {error}", path.display())),
        })?;
        let mut store = Self { file, header: header.clone(), records: Vec::new() };
        store.append(&Line::Header(header))?;
        Ok(store)
    }

    /// Opens the file of an earlier comparison with the same settings ([O3]), or a new one.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another comparison.
    pub fn resume(path: &Path, header: Header) -> Result<Self> {
        let named = |failure: Failure| Failure::new(format!("{}: {failure}", path.display()));
        let mut file = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::create(path, header),
            other => other.map_err(|error| named(error.into()))?,
        };
        let text = std::fs::read_to_string(path).map_err(|error| named(error.into()))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole == 0 {
            drop(file);
            std::fs::remove_file(path).map_err(|error| named(error.into()))?;
            return Self::create(path, header);
        }
        let Results { header: before, records, .. } = results::parse(&text[..whole]).map_err(named)?;
        if let Some((name, was, is)) = difference(&before, &header) {
            return Err(named(Failure::new(format!(
                "these results were measured with {name} {was}, not {is}; ask for the same, or name another directory with --output"
            ))));
        }
        if whole < text.len() {
            file.set_len(whole as u64).map_err(|error| named(error.into()))?;
        }
        file.seek(SeekFrom::End(0)).map_err(|error| named(error.into()))?;
        // Keeps earlier drives and left-out entries; entries that are missing again are not repeated.
        let mut merged = Header { same_drives: before.same_drives.clone(), decisive_us: before.decisive_us, ..header };
        for one in &before.left_out {
            if !merged.left_out.contains(one) {
                merged.left_out.push(one.clone());
            }
        }
        let mut store = Self { file, header: merged.clone(), records };
        if merged.left_out != before.left_out {
            store.append(&Line::Header(merged))?;
        }
        Ok(store)
    }

    /// The runs that are done.
    pub fn done(&self) -> BTreeSet<Key> {
        self.records.iter().map(|record| (record.case.clone(), record.place, record.peer, record.round)).collect()
    }

    /// All runs, in the order in which they were made.
    #[cfg(test)]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Adds a run.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn add(&mut self, record: Record) -> Result<()> {
        self.append(&Line::Run(Box::new(record.clone())))?;
        self.records.push(record);
        Ok(())
    }

    /// Records that something is left out from here on ([O1]).
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn leave_out(&mut self, what: String, sentence: String) -> Result<()> {
        if self.header.left_out.contains(&(what.clone(), sentence.clone())) {
            return Ok(());
        }
        self.header.left_out.push((what, sentence));
        self.append(&Line::Header(self.header.clone()))
    }

    /// The settings of the common drive with block commands of so many microseconds, if it was made before.
    pub fn same_drive(&self, us: u32) -> Option<&same_drive::Settings> {
        self.header.same_drives.get(&us).map(|drive| &drive.made_from)
    }

    /// Writes a common drive to the header ([O1]).
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn calibrated(&mut self, us: u32, drive: SameDrive) -> Result<()> {
        self.header.same_drives.insert(us, drive);
        self.append(&Line::Header(self.header.clone()))
    }

    /// Records the latency of a block command that decides a verdict ([`Header::decisive_us`]).
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn decided_at(&mut self, us: u32) -> Result<()> {
        let least = self.header.decisive_us.map_or(us, |before| before.min(us));
        if self.header.decisive_us.replace(least) == Some(least) {
            return Ok(());
        }
        self.append(&Line::Header(self.header.clone()))
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data())?;
        Ok(())
    }
}

/// The first setting or fact of the machine that differs: name and both values. Load is ignored.
fn difference(before: &Header, now: &Header) -> Option<(String, String, String)> {
    let facts = |header: &Header| -> Vec<(String, String)> {
        let machine = header.machine.iter().filter(|(name, _)| name != "load");
        header.settings.iter().chain(machine).cloned().collect()
    };
    let (before, now) = (facts(before), facts(now));
    let value_of = |facts: &[(String, String)], name: &str| {
        facts.iter().find(|(found, _)| found == name).map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
    };
    let names = before.iter().chain(&now).map(|(name, _)| name);
    let differs = names.into_iter().find(|name| value_of(&before, name) != value_of(&now, name))?;
    Some((differs.clone(), value_of(&before, differs), value_of(&now, differs)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::peer::Peer;
    use super::super::record::{Calibration, VERSION};
    use super::super::statistics::tests::record;
    use super::*;

    fn header(scale: &str) -> Header {
        Header {
            version: VERSION,
            machine: vec![("cpu".into(), "one".into()), ("load".into(), scale.into())],
            programs: vec![],
            settings: vec![("scale".into(), scale.into())],
            left_out: vec![],
            same_drives: BTreeMap::new(),
            decisive_us: None,
        }
    }

    fn refused(result: Result<Store>) -> String {
        result.map(|_| ()).expect_err("refused").to_string()
    }

    #[test]
    fn what_was_measured_is_there_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.jsonl");
        let mut store = Store::create(&path, header("1")).expect("created");
        store.add(record("x", Peer::Ext4, 0, 10.0)).expect("added");
        store.leave_out("xfs".into(), "no".into()).expect("said");
        store.leave_out("xfs".into(), "no".into()).expect("said once");
        store.add(record("x", Peer::Ext4, 1, 11.0)).expect("added");
        drop(store);
        assert!(refused(Store::create(&path, header("1"))).contains("--resume"));

        // A line of an interrupted run.
        let mut file = File::options().append(true).open(&path).expect("opened");
        file.write_all(br#"{"line":"run","case":"#).expect("written");
        let mut store = Store::resume(&path, header("1")).expect("resumed");
        assert_eq!(store.records(), [record("x", Peer::Ext4, 0, 10.0), record("x", Peer::Ext4, 1, 11.0)]);
        assert_eq!((store.done().len(), store.header.left_out.len()), (2, 1));
        store.add(record("x", Peer::Ext4, 2, 12.0)).expect("added");
        drop(store);
        assert_eq!(Store::resume(&path, header("1")).expect("resumed").done().len(), 3);
        assert_eq!(std::fs::read_to_string(&path).expect("read").lines().count(), 5);
    }

    #[test]
    fn the_same_drive_is_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.jsonl");
        let mut store = Store::create(&path, header("1")).expect("created");
        assert_eq!(store.same_drive(25), None);
        let drive = |memory_bytes| {
            let calibrations = vec![Calibration { request: "4 KiB read".into(), loop_ns: 1.0, drive_ns: 1.0 }];
            let made_from = same_drive::Settings::new("romefs-a", memory_bytes);
            SameDrive { calibrations, facts: vec![("profile".to_owned(), "x".to_owned())], made_from }
        };
        [(25, 1), (25, 2), (50, 3)].into_iter().try_for_each(|(us, bytes)| store.calibrated(us, drive(bytes))).expect("said");
        [50, 25, 100].into_iter().try_for_each(|us| store.decided_at(us)).expect("said");
        drop(store);
        let store = Store::resume(&path, header("1")).expect("resumed");
        let made = |us| store.same_drive(us).map(|settings| settings.memory_bytes);
        assert_eq!([made(25), made(50), made(5)], [Some(2), Some(3), None]);
        assert_eq!((store.header.same_drives.len(), store.header.decisive_us), (2, Some(25)), "each once, and the lowest");
    }

    #[test]
    fn results_of_others_are_refused_in_a_sentence() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.jsonl");
        drop(Store::create(&path, header("1")).expect("created"));
        let sentence = refused(Store::resume(&path, header("0.5")));
        assert!(sentence.contains("scale 1, not 0.5") && sentence.lines().count() == 1, "{sentence}");
        let other = Header { machine: vec![("cpu".into(), "two".into())], ..header("1") };
        assert!(refused(Store::resume(&path, other)).contains("cpu one, not two"));

        std::fs::write(&path, "nonsense\n").expect("written");
        assert!(refused(Store::resume(&path, header("1"))).contains("line 1"));
        let later = serde_json::to_string(&Line::Header(Header { version: VERSION + 1, ..header("1") })).expect("JSON");
        std::fs::write(&path, later + "\n").expect("written");
        assert!(refused(Store::resume(&path, header("1"))).contains("version 4"));
        std::fs::write(&path, r#"{"line":"hea"#).expect("written");
        assert!(Store::resume(&path, header("1")).is_ok(), "nothing was measured, so a new one");
        assert!(refused(Store::create(&directory.path().join("no/where"), header("1"))).contains("No such file"));
    }
}
