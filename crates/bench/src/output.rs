//! Output of results: standard output, and a directory with tables and JSON lines.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::arguments::Evaluation;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::report::{self, Row};
use crate::table::{Column, Table};

/// Prints text. If standard output is closed, the run ends silently.
pub fn say(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::output_closed(),
        _ => error.into(),
    })
}

/// Runs the experiments of an evaluation and publishes each result at once, after the facts of the machine and a description.
pub fn run_all<E: ValueEnum + Send + Sync>(
    evaluation: &Evaluation<E>,
    description: &str,
    run: impl Fn(&E) -> Result<Outcome>,
) -> Result<()> {
    let Evaluation { experiments, common, output } = evaluation;
    let facts = machine::facts();
    let machine: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let machine = machine.join("; ");
    if common.json {
        let facts: Value = facts.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        say(&format!("{}\n", json!({ "machine": facts })))?;
    } else {
        say(&format!("{machine}\n\n{description}\n\n"))?;
    }
    let machine = format!("{machine}; {description}");
    let experiments = if experiments.is_empty() { E::value_variants() } else { experiments };
    experiments.iter().try_for_each(|experiment| run(experiment)?.publish(&machine, common.json, output.as_deref()))
}

/// Results of an experiment.
pub struct Outcome {
    /// Name of the experiment and of its files.
    pub name: &'static str,
    title: String,
    tables: Vec<(String, Table)>,
    notes: Vec<String>,
    records: Vec<Value>,
}

impl Outcome {
    /// An empty outcome.
    pub fn new(name: &'static str, title: impl Into<String>) -> Self {
        Self { name, title: title.into(), tables: Vec::new(), notes: Vec::new(), records: Vec::new() }
    }

    /// Adds a table with a caption above it.
    pub fn table(&mut self, caption: impl Into<String>, table: Table) {
        self.tables.push((caption.into(), table));
    }

    /// Adds judged rows: a table, their explanations and their records.
    pub fn rows(&mut self, caption: impl Into<String>, rows: &[Row]) {
        self.table(caption, report::table(self.name, rows));
        for row in rows {
            if !row.note.is_empty() {
                self.note(format!("{}: {}", row.name, row.note));
            }
            self.record(row.json(self.name));
        }
    }

    /// Adds a table of items, and each of them as a record.
    pub fn listed<T: Serialize>(&mut self, caption: impl Into<String>, items: &[T], columns: &[Column<'_, T>]) -> Result<()> {
        self.table(caption, Table::of(items, columns));
        for item in items {
            self.record(serde_json::to_value(item)?);
        }
        Ok(())
    }

    /// Adds a sentence below the tables.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a JSON object; the experiment's name is added to it.
    pub fn record(&mut self, mut record: Value) {
        record["experiment"] = self.name.into();
        self.records.push(record);
    }

    /// Prints the outcome, and writes it to a directory if one is given.
    fn publish(&self, machine: &str, as_json: bool, directory: Option<&Path>) -> Result<()> {
        let lines: String = self.records.iter().map(|record| format!("{record}\n")).collect();
        let text = self.markdown();
        say(if as_json { &lines } else { &text })?;
        let Some(directory) = directory else { return Ok(()) };
        let write = |name: &str, content: &str| {
            let path = directory.join(name);
            fs::write(&path, content).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
        };
        fs::create_dir_all(directory).map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
        write(&format!("{}.jsonl", self.name), &format!("{}\n{lines}", json!({ "machine": machine })))?;
        write(&format!("{}.md", self.name), &format!("{text}{machine}\n"))
    }

    fn markdown(&self) -> String {
        let mut text = format!("## {}: {}\n\n", self.name, self.title);
        for (caption, table) in &self.tables {
            text += &format!("{caption}\n\n{}\n", table.markdown());
        }
        for note in &self.notes {
            text += &format!("- {note}\n");
        }
        text + "\n"
    }
}
