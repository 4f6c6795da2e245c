//! PostgreSQL with pgbench.
//!
//! [PG1] `fsync`, `synchronous_commit` and `full_page_writes` are on: an acknowledged commit survives a power failure.
//! [PG2] The server listens only on a UNIX socket in the scratch directory.
//! [PG3] PostgreSQL refuses to run as root, so a benchmark run by root runs it as `nobody`, who is given the directories of the case.
//! [PG4] The number of transactions is fixed. pgbench's own time is used, without the time for connections.
//! [PG5] The database is read once first, so that the server's cold start and the drive's read speed are not measured.
//! [PG6] Afterwards the sum of balances must equal the sum of the added amounts, and the history must contain the number of transactions.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::clients::scaled;
use super::programs::{self, Server, number_after};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};

/// Number of pgbench clients.
const CLIENTS: u64 = 4;
/// pgbench's scale factor: 100,000 accounts each.
const BRANCHES: u64 = 5;
/// Shared buffers: less than the database at scale 1, so that some reads go to the file system.
const SHARED_BUFFERS: &str = "16MB";
/// The database user that owns the database.
const USER: &str = "bench";
/// Debian's ids of `nobody` and `nogroup`.
const NOBODY: u32 = 65534;

/// Read-only transactions, and pgbench's mix similar to TPC-B; with the transactions of all clients together at scale 1.
pub fn cases() -> Cases {
    [("pgbench-select", true, 40_000), ("pgbench-read-write", false, 8000)]
        .map(|(name, is_select, transactions)| {
            let description = format!(
                "PostgreSQL, {}: {transactions} transactions by {CLIENTS} clients, {} accounts, {SHARED_BUFFERS} of shared buffers; fsync, \
                 synchronous_commit and full_page_writes on",
                if is_select { "pgbench -S" } else { "pgbench (like TPC-B)" },
                BRANCHES * 100_000,
            );
            Case {
                clients: CLIENTS as u32,
                is_durable: !is_select,
                programs: &["initdb", "postgres", "pgbench", "psql"],
                share_least: 0.25,
                bytes_needed: 1 << 30,
                ..Case::new(Group::Applications, name.to_owned(), description, move |stage| run(stage, is_select, transactions))
            }
        })
        .into()
}

fn run(stage: &mut Stage<'_>, is_select: bool, transactions: u64) -> Result<Outcome> {
    let scratch = stage.scratch;
    let data = stage.directory.join("data");
    let socket = programs::socket(scratch, ".s.PGSQL.5432")?;
    if rustix::process::geteuid().is_root() {
        [stage.directory, scratch].iter().try_for_each(|directory| chown(directory, Some(NOBODY), Some(NOBODY)))?;
    }
    // Without sync during creation: `make_cold` makes everything durable.
    let mut make = unprivileged("initdb", scratch)?;
    make.arg("-D").arg(&data).args(["-A", "trust", "-N", "--locale=C", "-E", "UTF8", "-U", USER]);
    programs::run(&mut make, scratch)?;
    let server = start(&data, scratch, &socket, &["fsync=off"])?;
    let mut fill = client("pgbench", scratch)?;
    programs::run(fill.args(["-i", "-q", "-s", &BRANCHES.to_string(), "postgres"]), scratch)?;
    server.end();
    stage.make_cold()?;
    programs::run(
        programs::command("sh", scratch)?.args(["-c", "find base -type f -exec cat {} + >/dev/null"]).current_dir(&data),
        scratch,
    )?; // [PG5]

    let settings = if stage.is_durable {
        ["fsync=on", "synchronous_commit=on", "full_page_writes=on"]
    } else {
        ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
    };
    let server = start(&data, scratch, &socket, &settings)?;
    let transactions = scaled(transactions / CLIENTS, stage.scale, 20) * CLIENTS;
    let mut load = client("pgbench", scratch)?;
    load.args(["-n", "-c", &CLIENTS.to_string(), "-j", "2", "-t", &(transactions / CLIENTS).to_string()]);
    load.arg(format!("--random-seed={}", stage.seed & 0xffff_ffff));
    if is_select {
        load.arg("-S");
    }
    let said = stage.time(|| programs::run(load.arg("postgres"), scratch))?;
    let (done, rate) = (number_after(&said, "number of transactions actually processed:")?, number_after(&said, "tps =")?);
    if done != transactions as f64 || rate <= 0.0 {
        return Err(Failure::new(format!("pgbench did {done} transactions instead of {transactions}")));
    }
    check(if is_select { 0 } else { transactions }, scratch)?;
    server.end();
    Ok(Outcome::of_own_time(done, "transactions", done / rate))
}

/// [PG6]: `transactions` of the history.
fn check(transactions: u64, scratch: &Path) -> Result<()> {
    let query = "SELECT (SELECT count(*) FROM pgbench_history), (SELECT coalesce(sum(delta), 0) FROM pgbench_history) =
                     (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches) =
                     (SELECT sum(abalance) FROM pgbench_accounts)";
    let said = programs::run(client("psql", scratch)?.args(["-X", "-A", "-t", "-c", query, "postgres"]), scratch)?;
    let expected = format!("{transactions}|t|t");
    match said.trim() == expected {
        true => Ok(()),
        false => Err(Failure::new(format!("the database says {} of its history and sums instead of {expected}", said.trim()))),
    }
}

/// A command of the PostgreSQL installation ([PG3]).
fn unprivileged(name: &str, scratch: &Path) -> Result<Command> {
    let mut command = programs::command(name, scratch)?;
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ok(command)
}

fn client(name: &str, scratch: &Path) -> Result<Command> {
    let mut command = programs::command(name, scratch)?;
    command.arg("-h").arg(scratch).args(["-U", USER]).env_remove("PGOPTIONS").env_remove("PGSERVICE").env_remove("PGPORT");
    Ok(command)
}

/// Starts the server ([PG2]). SIGINT stops it with a fast shutdown, which does not wait for clients.
fn start(data: &Path, scratch: &Path, socket: &Path, settings: &[&str]) -> Result<Server> {
    let mut command = unprivileged("postgres", scratch)?;
    command.arg("-D").arg(data).arg("-k").arg(scratch).args(["-p", "5432", "-c", "listen_addresses=", "-c", "max_wal_size=256MB"]);
    command.arg("-c").arg(format!("shared_buffers={SHARED_BUFFERS}"));
    for setting in settings {
        command.args(["-c", setting]);
    }
    let mut server = Server::start(&mut command, scratch, Signal::INT)?;
    server.wait_until(|| {
        let mut ask = client("psql", scratch);
        socket.exists() && ask.as_mut().is_ok_and(|ask| programs::run(ask.args(["-X", "-c", "SELECT 1", "postgres"]), scratch).is_ok())
    })?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn a_server_is_measured_and_its_sums_are_checked() {
        run_all(&cases(), 1e-3, |case, outcome, _| assert!(outcome.units == 80.0 && outcome.own_time.is_some(), "{}", case.name));
    }
}
