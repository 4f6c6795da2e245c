//! `tandemfs-bench age`: ages a file system by creations and removals, and shows what is left of its aligned space.
//!
//! The method is that of Geriatrix (Kadekodi et al., ATC 2018); what it is for: WineFS §2.2, Fig. 1 and 3.
//!
//! [AX1] The steps follow from profile, seed, capacity and options alone ([`population`]); with one thread they are performed in this order.
//!       With more, the creation and the removal of a file are in order, and a batch of steps ends before the next one.
//! [AX2] A run can be ended at any time. Its notes say how many steps were performed at least; continuing, the steps until there are reckoned
//!       again without performing them, and the next batch is performed as if nothing of it had been.
//! [AX3] With a rate, a file is not made before the bytes of this run that came before it have had their time. What took longer is caught up.

mod pace;
mod population;
pub mod profile;
mod survey;
mod target;

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::AgeArguments;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::output::say;
use crate::table::{Column, Table};
use pace::Pace;
use population::{File, Population, Step};
use profile::Profile;
use survey::Sample;
use target::Target;

/// Steps that are performed between two notes.
const BATCH: usize = 512;

/// What a run was asked for, how far it is, and what it found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Notes {
    profile: Profile,
    seed: u64,
    utilizations_percent: Vec<f64>,
    churn: f64,
    is_written: bool,
    is_compacted: bool,
    /// Bytes created a second at most.
    rate: Option<u64>,
    capacity_bytes: u64,
    steps: u64,
    /// Bytes that compaction has moved, that of the background too.
    moved_bytes: u64,
    samples: Vec<Sample>,
}

/// Runs the command.
pub fn run(arguments: &AgeArguments) -> Result<()> {
    let notes_path = arguments.notes.clone().unwrap_or_else(|| beside(&arguments.target));
    let earlier = read_notes(&notes_path)?;
    let target = target::open(&arguments.target, arguments.memory)?;
    let mut notes = Notes {
        profile: Profile::named(&arguments.profile)?,
        seed: arguments.seed,
        utilizations_percent: arguments.utilization.clone(),
        churn: arguments.churn,
        is_written: arguments.write,
        is_compacted: arguments.compact,
        rate: arguments.rate,
        capacity_bytes: target.capacity_bytes()?,
        steps: 0,
        moved_bytes: 0,
        samples: Vec::new(),
    };
    if let Some(earlier) = earlier {
        let asked = Notes { steps: earlier.steps, moved_bytes: earlier.moved_bytes, samples: earlier.samples.clone(), ..notes };
        if asked != earlier {
            return Err(Failure::new(format!(
                "{} is of a run with other options or on another file system; give the same ones to continue it, or remove it",
                notes_path.display()
            )));
        }
        notes = earlier;
    }
    let pace = arguments.rate.map(Pace::new);
    let aged = Ageing { arguments, target: &*target, notes_path: &notes_path, moved_before: notes.moved_bytes, pace }.run(&mut notes);
    let reported = report(arguments, &notes);
    aged.and(reported)
}

/// Where the notes are kept if nothing else is asked for.
fn beside(target: &Path) -> PathBuf {
    if target.is_dir() {
        return target.join("age-notes.json");
    }
    let mut name = target.as_os_str().to_owned();
    name.push(".age-notes.json");
    name.into()
}

fn read_notes(path: &Path) -> Result<Option<Notes>> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| Failure::new(format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(format!("{}: {error}", path.display()))),
    }
}

/// One run.
struct Ageing<'a> {
    arguments: &'a AgeArguments,
    target: &'a dyn Target,
    notes_path: &'a Path,
    /// Bytes that compaction moved in earlier runs.
    moved_before: u64,
    /// How fast files come ([AX3]).
    pace: Option<Pace>,
}

impl Ageing<'_> {
    fn run(&self, notes: &mut Notes) -> Result<()> {
        let mut population = Population::new(notes.profile.clone(), notes.seed);
        if notes.samples.is_empty() {
            population.directories().iter().try_for_each(|path| self.target.make_directory(path))?;
            self.sample(&population, notes)?;
        }
        let mut done = 0;
        let each = notes.churn / notes.utilizations_percent.len() as f64 * notes.capacity_bytes as f64;
        for (index, percent) in notes.utilizations_percent.clone().into_iter().enumerate() {
            population.set_most_bytes((notes.capacity_bytes as f64 * percent / 100.0) as u64);
            let bar = self.bar(percent, each as u64);
            let mut filled_at = None;
            loop {
                let since = filled_at.map_or(0, |at: u64| population.created_bytes() - at);
                bar.set_position(since);
                if filled_at.is_some() && since as f64 >= each && population.is_filled() {
                    break;
                }
                if filled_at.is_none() && population.is_filled() {
                    filled_at = Some(population.created_bytes());
                    continue;
                }
                done = self.batch(&mut population, done, notes)?;
            }
            bar.finish_and_clear();
            // The first sample is of the new file system.
            if notes.samples.len() == index + 1 {
                self.sample(&population, notes)?;
            }
        }
        Ok(())
    }

    fn bar(&self, percent: f64, bytes: u64) -> ProgressBar {
        if self.arguments.json {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}");
        let bar = ProgressBar::new(bytes).with_message(format!("{percent} % full"));
        style.map_or(bar.clone(), |style| bar.with_style(style))
    }

    /// Reckons the next steps, and performs them unless an earlier run has ([AX2]). Returns the number of steps until here.
    fn batch(&self, population: &mut Population, done: u64, notes: &mut Notes) -> Result<u64> {
        let steps: Vec<Step> = (0..BATCH).map(|_| population.step()).collect();
        let done = done + BATCH as u64;
        if done <= notes.steps {
            return Ok(done);
        }
        machine::check()?;
        self.perform(population, &steps, notes.is_written)?;
        if notes.is_compacted {
            self.target.compact()?;
        }
        notes.moved_bytes = self.moved_before + self.target.moved_bytes();
        notes.steps = done;
        // Notes of every batch would be most of the work.
        if done.is_multiple_of(BATCH as u64 * 16) {
            self.write_notes(notes)?;
        }
        Ok(done)
    }

    /// Performs steps, those of a file in order ([AX1]).
    fn perform(&self, population: &Population, steps: &[Step], is_written: bool) -> Result<()> {
        let threads = self.arguments.threads.max(1);
        let failed = Mutex::new(None);
        let work = |thread: u64| {
            for step in steps {
                let (Step::Create(file) | Step::Remove(file)) = step;
                if file.number % threads == thread
                    && let Err(failure) = self.perform_one(population, step, file, is_written)
                {
                    failed.lock().get_or_insert(failure);
                    return;
                }
            }
        };
        match threads {
            1 => work(0),
            _ => std::thread::scope(|scope| (0..threads).for_each(|thread| drop(scope.spawn(move || work(thread))))),
        }
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn perform_one(&self, population: &Population, step: &Step, file: &File, is_written: bool) -> Result<()> {
        let path = population.path(file);
        if let (Some(pace), Step::Create(_)) = (&self.pace, step) {
            pace.wait(file.bytes);
        }
        let done = match step {
            Step::Create(_) => self.target.create(&path, file.bytes, is_written),
            Step::Remove(_) => self.target.remove(&path),
        };
        done.map_err(|failure| {
            let (files, bytes) = population.live();
            Failure::new(format!(
                "{path}: {failure}; about {files} files of {} MiB are there. Where the space is used up, ask for a lower --utilization",
                bytes >> 20
            ))
        })
    }

    fn sample(&self, population: &Population, notes: &mut Notes) -> Result<()> {
        let sample = survey::sample(self.target, population, notes.capacity_bytes, self.arguments.large)?;
        let sample = Sample { moved_bytes: notes.moved_bytes, ..sample };
        notes.samples.push(sample);
        self.write_notes(notes)
    }

    /// Replaces the notes; whenever the run ends, the old or the new ones are there.
    fn write_notes(&self, notes: &Notes) -> Result<()> {
        let directory = self.notes_path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".age-notes").tempfile_in(directory)?;
        file.write_all(&serde_json::to_vec(notes)?)?;
        file.persist(self.notes_path)?;
        Ok(())
    }
}

/// Prints the samples.
fn report(arguments: &AgeArguments, notes: &Notes) -> Result<()> {
    if arguments.json {
        return say(&format!("{}\n", json!({ "capacity_bytes": notes.capacity_bytes, "steps": notes.steps, "samples": notes.samples })));
    }
    let known = |value: Option<f64>, decimals: usize| value.map_or_else(|| "not known".to_owned(), |value| format!("{value:.decimals$}"));
    let columns: [Column<'_, Sample>; 10] = [
        ("full %", &|sample| format!("{:.0}", sample.utilization_percent)),
        ("churn", &|sample| format!("{:.1}", sample.churn)),
        ("moved MiB", &|sample| (sample.moved_bytes >> 20).to_string()),
        ("files", &|sample| sample.files.to_string()),
        ("ages off by", &|sample| format!("{:.3}", sample.age_error)),
        ("free MiB", &|sample| (sample.free_bytes >> 20).to_string()),
        ("of it aligned", &|sample| known(sample.aligned_free_share, 3)),
        ("pieces a file", &|sample| known(sample.pieces_a_file, 2)),
        ("large MiB", &|sample| (sample.large_bytes >> 20).to_string()),
        ("of it huge", &|sample| known(sample.large_huge_share, 3)),
    ];
    say(&Table::of(&notes.samples, &columns).markdown())
}
