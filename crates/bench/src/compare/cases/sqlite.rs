//! SQLite's command-line shell with scripts of transactions.
//!
//! [SQ1] `synchronous = FULL` in each journal mode: a committed transaction survives a power failure.
//! [SQ2] Tables are created before. The measured time includes opening the database, the script, and closing, which checkpoints in WAL
//!       mode: a user waits for all of it.
//! [SQ3] Afterwards SQLite checks the database's integrity and counts rows.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use super::clients::scaled;
use super::programs;
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::workloads::random::Random;

/// The cases, by journal mode and script.
pub fn cases() -> Cases {
    [("WAL", false), ("DELETE", false), ("WAL", true), ("DELETE", true)]
        .map(|(journal, is_mixed)| Script { journal, is_mixed }.case())
        .into()
}

#[derive(Clone, Copy)]
struct Script {
    journal: &'static str,
    /// Whether transactions have many statements with an index, as in SQLite's own speed test; otherwise single rows.
    is_mixed: bool,
}

/// Single-row transactions at scale 1.
const SINGLES: u64 = 20_000;
/// Mixed transactions at scale 1.
const MIXED: u64 = 1000;
/// Statements of a mixed transaction: inserts, updates, look-ups by index, deletes.
const MIX: [u64; 4] = [40, 20, 30, 10];
/// Rows that exist before the mixed transactions.
const ROWS: u64 = 50_000;

impl Script {
    fn case(self) -> Case {
        let Self { journal, is_mixed } = self;
        let [inserts, updates, selects, deletes] = MIX;
        let lower = journal.to_ascii_lowercase();
        let (name, what) = match is_mixed {
            false => (format!("sqlite-{lower}-full"), format!("{SINGLES} transactions that insert a row of 100 bytes each")),
            true => (
                format!("sqlite-mixed-{lower}"),
                format!(
                    "{MIXED} transactions of {inserts} inserts, {updates} updates and {selects} look-ups by an index and {deletes} deletes in a \
                     table of {ROWS} rows"
                ),
            ),
        };
        let description = format!("sqlite3, journal_mode={journal}, synchronous=FULL: {what}");
        Case {
            is_durable: true,
            programs: &["sqlite3"],
            share_least: 0.25,
            is_quick: !is_mixed && journal == "WAL",
            bytes_needed: 256 << 20,
            ..Case::new(Group::Applications, name, description, move |stage| self.run(stage))
        }
    }

    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let (database, scratch) = (stage.directory.join("database"), stage.scratch);
        let rows = if self.is_mixed { scaled(ROWS, stage.scale, 500) } else { 0 };
        let transactions = if self.is_mixed { scaled(MIXED, stage.scale, 5) } else { scaled(SINGLES, stage.scale, 50) };
        let synchronous = if stage.is_durable { "FULL" } else { "OFF" };
        let make = format!(
            "PRAGMA journal_mode={}; PRAGMA synchronous={synchronous};
             CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, body BLOB); CREATE INDEX i ON t(name);
             BEGIN; WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {rows})
             INSERT INTO t SELECT x, hex(x * 7919 % 1000003), randomblob(100) FROM n WHERE {rows} > 0; COMMIT;",
            self.journal
        );
        sqlite(&database, scratch, &make)?;
        let script = scratch.join("script.sql");
        let expected = self.write(&script, synchronous, (transactions, rows), stage.seed)?;
        let mut command = command(&database, scratch)?;
        command.stdin(File::open(&script)?);
        stage.time(|| programs::run(&mut command, scratch))?;
        fs::remove_file(&script)?;
        // [SQ3].
        let said = sqlite(&database, scratch, "PRAGMA integrity_check; SELECT count(*) FROM t; PRAGMA journal_mode;")?;
        let wanted = format!("ok\n{expected}\n{}\n", self.journal.to_ascii_lowercase());
        if said != wanted {
            return Err(Failure::new(format!(
                "the database says `{}` instead of `{}`",
                said.replace('\n', " "),
                wanted.replace('\n', " ")
            )));
        }
        Ok(Outcome::counted(transactions, "transactions"))
    }

    /// Writes the script; returns the number of rows after it.
    fn write(&self, path: &Path, synchronous: &str, (transactions, rows): (u64, u64), seed: u64) -> Result<u64> {
        let mut script = BufWriter::new(File::create(path)?);
        let mut random = Random::new(seed, 0x5714);
        let (mut next, mut left) = (rows + 1, rows);
        // The journal mode is stored in the database, this setting is not.
        writeln!(script, "PRAGMA synchronous={synchronous};")?;
        let insert = |script: &mut BufWriter<File>, id: u64, random: &mut Random| {
            writeln!(script, "INSERT INTO t VALUES({id}, '{:X}', randomblob(100));", random.below(1_000_003))
        };
        for _ in 0..transactions {
            if !self.is_mixed {
                insert(&mut script, next, &mut random)?;
                (next, left) = (next + 1, left + 1);
                continue;
            }
            let [inserts, updates, selects, deletes] = MIX;
            writeln!(script, "BEGIN;")?;
            for _ in 0..inserts {
                insert(&mut script, next, &mut random)?;
                (next, left) = (next + 1, left + 1);
            }
            for _ in 0..updates {
                writeln!(script, "UPDATE t SET body = randomblob(100) WHERE id = {};", 1 + random.below(next - 1))?;
            }
            for _ in 0..selects {
                writeln!(script, "SELECT count(*), sum(length(body)) FROM t WHERE name = '{:X}';", random.below(1_000_003))?;
            }
            // The newest rows, which always exist.
            writeln!(script, "DELETE FROM t WHERE id >= {};\nCOMMIT;", next - deletes)?;
            (next, left) = (next - deletes, left - deletes);
        }
        script.flush()?;
        Ok(left)
    }
}

fn command(database: &Path, scratch: &Path) -> Result<std::process::Command> {
    let mut command = programs::command("sqlite3", scratch)?;
    // -bail: a failing statement fails the run.
    command.args(["-batch", "-bail"]).arg(database);
    Ok(command)
}

fn sqlite(database: &Path, scratch: &Path, statements: &str) -> Result<String> {
    programs::run(command(database, scratch)?.arg(statements).stdin(std::process::Stdio::null()), scratch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn every_script_runs_and_its_rows_are_counted() {
        run_all(&cases(), 1e-3, |case, outcome, _| {
            assert_eq!(outcome.units, if case.name.contains("mixed") { 5.0 } else { 50.0 }, "{}", case.name);
        });
    }
}
