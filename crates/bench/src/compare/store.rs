//! The results file, `results.json`: a header and all runs. It is replaced as a whole and durably, so an interrupted comparison can be resumed.
//!
//! [O1] It is written when the comparison begins, when something is left out, when a drive is calibrated, and after each round of a case.
//! [O2] Runs with different settings or of another format version are never mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Key;
use super::record::{Header, Record, SameDrive, VERSION};
use super::same_drive;
use crate::failure::{Failure, Result};

/// The content of a results file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    /// Facts and settings common to all runs.
    pub header: Header,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Record>,
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no file of results, has another version, or has a run without work or time, which has no rate.
    pub fn read(path: &Path) -> Result<Self> {
        let named = |reason: String| Failure::new(format!("{}: {reason}", path.display()));
        let bytes = fs::read(path).map_err(|error| named(error.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| named(format!("no file of results: {error}")))?;
        match value["header"]["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => return Err(named(format!("results of version {version}; this program reads version {VERSION}"))),
            None => return Err(named("no file of results: it has no header".to_owned())),
        }
        let results: Self = serde_json::from_value(value).map_err(|error| named(format!("no file of results: {error}")))?;
        match results.runs.iter().find(|run| run.units <= 0.0 || run.seconds <= 0.0) {
            Some(run) => Err(named(format!("{}: did nothing, or took no time", run.title()))),
            None => Ok(results),
        }
    }
}

/// The results of a comparison that is running.
pub struct Store {
    path: PathBuf,
    results: Results,
}

impl Store {
    /// A new file with its header.
    ///
    /// # Errors
    /// It already exists, or cannot be written.
    pub fn create(path: &Path, header: Header) -> Result<Self> {
        if path.exists() {
            let path = path.display();
            return Err(Failure::new(format!(
                "{path}: holds results already; go on with --resume, or name another directory with --output"
            )));
        }
        let store = Self { path: path.to_owned(), results: Results { header, runs: Vec::new() } };
        store.save()?;
        Ok(store)
    }

    /// Opens the file of an earlier comparison with the same settings ([O2]), or a new one.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another comparison.
    pub fn resume(path: &Path, header: Header) -> Result<Self> {
        if !path.exists() {
            return Self::create(path, header);
        }
        let Results { header: before, runs } = Results::read(path)?;
        if let Some((name, was, is)) = difference(&before, &header) {
            return Err(Failure::new(format!(
                "{}: these results were measured with {name} {was}, not {is}; ask for the same, or name another directory with --output",
                path.display()
            )));
        }
        // Keeps earlier drives and left-out entries; entries that are missing again are not repeated.
        let mut merged = Header { same_drives: before.same_drives, decisive_us: before.decisive_us, ..header };
        for one in before.left_out {
            if !merged.left_out.contains(&one) {
                merged.left_out.push(one);
            }
        }
        Ok(Self { path: path.to_owned(), results: Results { header: merged, runs } })
    }

    /// The runs that are done.
    pub fn done(&self) -> BTreeSet<Key> {
        self.results.runs.iter().map(|run| (run.case.clone(), run.place, run.peer, run.round)).collect()
    }

    /// Adds a run, without writing it.
    pub fn add(&mut self, record: Record) {
        self.results.runs.push(record);
    }

    /// Records that something is left out from here on.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn leave_out(&mut self, what: String, sentence: String) -> Result<()> {
        let left_out = &mut self.results.header.left_out;
        if !left_out.contains(&(what.clone(), sentence.clone())) {
            left_out.push((what, sentence));
        }
        self.save()
    }

    /// The settings of the common drive with block commands of so many microseconds, if it was made before.
    pub fn same_drive(&self, us: u32) -> Option<&same_drive::Settings> {
        self.results.header.same_drives.get(&us).map(|drive| &drive.made_from)
    }

    /// Adds a common drive to the header.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn calibrated(&mut self, us: u32, drive: SameDrive) -> Result<()> {
        self.results.header.same_drives.insert(us, drive);
        self.save()
    }

    /// Records the latency of a block command that decides a verdict ([`Header::decisive_us`]).
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn decided_at(&mut self, us: u32) -> Result<()> {
        let decisive_us = &mut self.results.header.decisive_us;
        *decisive_us = Some(decisive_us.map_or(us, |before| before.min(us)));
        self.save()
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn save(&self) -> Result<()> {
        let new = self.path.with_extension("new");
        let replaced = File::create(&new).and_then(|mut file| {
            file.write_all(&serde_json::to_vec(&self.results)?)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        });
        replaced.map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))
    }
}

/// The first setting, fact of the machine, or program that differs: name and both values. Load is ignored.
fn difference(before: &Header, now: &Header) -> Option<(String, String, String)> {
    let facts = |header: &Header| -> BTreeMap<String, String> {
        header.settings.iter().chain(&header.machine).chain(&header.programs).filter(|(name, _)| name != "load").cloned().collect()
    };
    let (before, now) = (facts(before), facts(now));
    let value_of = |facts: &BTreeMap<String, String>, name: &str| facts.get(name).cloned().unwrap_or_else(|| "not set".to_owned());
    let differs = before.keys().chain(now.keys()).find(|name| before.get(*name) != now.get(*name))?;
    Some((differs.clone(), value_of(&before, differs), value_of(&now, differs)))
}

#[cfg(test)]
pub mod tests {
    use super::super::peer::Peer;
    use super::super::record::Calibration;
    use super::super::statistics::tests::record;
    use super::*;

    /// A header of a comparison with one setting.
    pub fn header(scale: &str) -> Header {
        Header {
            version: VERSION,
            machine: vec![("cpu".into(), "one".into()), ("load".into(), scale.into())],
            programs: vec![("fio".into(), "3.33".into())],
            settings: vec![("scale".into(), scale.into())],
            left_out: vec![],
            same_drives: BTreeMap::new(),
            decisive_us: None,
        }
    }

    /// Writes a results file.
    pub fn write(path: &Path, header: Header, runs: &[Record]) {
        Store { path: path.to_owned(), results: Results { header, runs: runs.to_vec() } }.save().expect("saved");
    }

    fn refused<T>(result: Result<T>) -> String {
        let sentence = result.map(drop).expect_err("refused").to_string();
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        sentence
    }

    #[test]
    fn what_was_measured_is_there_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.json");
        let mut store = Store::create(&path, header("1")).expect("created");
        store.add(record("x", Peer::Ext4, 0, 10.0));
        store.leave_out("xfs".into(), "no".into()).expect("said");
        store.leave_out("xfs".into(), "no".into()).expect("said once");
        assert!(refused(Store::create(&path, header("1"))).contains("--resume"));

        let drive = |memory_bytes| {
            let calibrations = vec![Calibration { request: "4 KiB read".into(), loop_ns: 1.0, drive_ns: 1.0 }];
            let made_from = same_drive::Settings::new("romefs-a", memory_bytes);
            SameDrive {
                calibrations,
                times: [made_from.times(true).expect("times"), made_from.times(false).expect("times")],
                carried_ns: None,
                notes: Vec::new(),
                made_from,
            }
        };
        [(25, 1), (25, 2), (50, 3)].into_iter().try_for_each(|(us, bytes)| store.calibrated(us, drive(bytes))).expect("said");
        [50, 25, 100].into_iter().try_for_each(|us| store.decided_at(us)).expect("said");
        store.add(record("x", Peer::Ext4, 1, 11.0));
        drop(store);

        let store = Store::resume(&path, header("1")).expect("resumed");
        assert_eq!(store.results.runs, [record("x", Peer::Ext4, 0, 10.0)], "the other run was not saved");
        assert_eq!((store.done().len(), store.results.header.left_out.len()), (1, 1));
        let made = |us| store.same_drive(us).map(|settings| settings.memory_bytes);
        assert_eq!([made(25), made(50), made(5)], [Some(2), Some(3), None]);
        assert_eq!(store.results.header.decisive_us, Some(25), "the lowest");
    }

    #[test]
    fn results_of_others_are_refused_in_a_sentence() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.json");
        drop(Store::create(&path, header("1")).expect("created"));
        assert!(refused(Store::resume(&path, header("0.5"))).contains("scale 1, not 0.5"));
        let other = Header { machine: vec![("cpu".into(), "two".into())], ..header("1") };
        assert!(refused(Store::resume(&path, other)).contains("cpu one, not two"));

        let mut timeless = record("timeless", Peer::Ext4, 0, 1.0);
        timeless.seconds = 0.0;
        for (run, words) in [(timeless, "timeless, free drive, ext4, round 1"), (record("idle", Peer::Xfs, 0, 0.0), "idle")] {
            write(&path, header("1"), &[run]);
            assert!(refused(Results::read(&path)).contains(words));
        }
        write(&path, Header { version: VERSION + 1, ..header("1") }, &[]);
        assert!(refused(Store::resume(&path, header("1"))).contains("version 5"));
        for text in ["", "nonsense\n", "{}", r#"{"header":"#] {
            fs::write(&path, text).expect("written");
            assert!(refused(Store::resume(&path, header("1"))).contains("no file of results"), "{text}");
        }
        assert!(refused(Store::create(&directory.path().join("no/where"), header("1"))).contains("No such file"));
        assert!(refused(Results::read(Path::new("/nonexistent/results.json"))).contains("/nonexistent/results.json"));
    }
}
