//! Redis with `appendfsync always`: each acknowledged command is durable.
//!
//! [RD1] Redis writes its log once, with one fsync, for all commands of one event loop iteration: clients and pipelines share it.
//! [RD2] The server listens only on a UNIX socket in the scratch directory, never rewrites its log and takes no snapshots.
//! [RD3] After the measured part the server is restarted on the same log: the number of keys must be the same.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::clients::scaled;
use super::programs::{self, Server, number_after};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};

/// Connections of redis-benchmark (its default).
const CLIENTS: u32 = 50;

/// The cases, by the number of pipelined commands; with the number of SET commands at scale 1.
pub fn cases() -> Cases {
    [(1, 50_000), (10, 200_000), (100, 500_000)].map(|(pipeline, commands)| case(pipeline, commands)).into()
}

fn case(pipeline: u64, commands: u64) -> Case {
    let description = format!(
        "redis-server with appendfsync always: {commands} SETs of 100 bytes to random keys by {CLIENTS} clients of redis-benchmark, pipeline \
         {pipeline}"
    );
    let run = move |stage: &mut Stage<'_>| run(stage, pipeline, scaled(commands, stage.scale, 1000));
    Case {
        clients: CLIENTS,
        is_durable: true,
        programs: &["redis-server", "redis-benchmark", "redis-cli"],
        share_least: 0.25,
        is_quick: pipeline == 1,
        bytes_needed: commands * 200 + (64 << 20),
        ..Case::new(Group::Applications, format!("redis-always-p{pipeline}"), description, run)
    }
}

fn run(stage: &mut Stage<'_>, pipeline: u64, commands: u64) -> Result<Outcome> {
    let (directory, scratch) = (stage.directory, stage.scratch);
    let socket = programs::socket(scratch, "redis.sock")?;
    let appendfsync = if stage.is_durable { "always" } else { "no" };
    let server = start(directory, scratch, &socket, appendfsync)?;
    let mut load = programs::command("redis-benchmark", scratch)?;
    load.arg("-s").arg(&socket).args(["-t", "set", "-d", "100", "--csv", "-r", "100000"]);
    load.args(["-n", &commands.to_string(), "-c", &CLIENTS.to_string(), "-P", &pipeline.to_string()]);
    let said = stage.time(|| programs::run(&mut load, scratch))?;
    let rate = number_after(&said, "\"SET\",\"")?;
    if rate <= 0.0 {
        return Err(Failure::new("redis-benchmark named no rate of SET"));
    }
    let keys = ask(&socket, scratch, "DBSIZE")?;
    server.end();
    // [RD3].
    let server = start(directory, scratch, &socket, appendfsync)?;
    let again = ask(&socket, scratch, "DBSIZE")?;
    server.end();
    if keys == "0" || keys != again {
        return Err(Failure::new(format!("redis-server has {again} keys after a restart and had {keys}")));
    }
    Ok(Outcome::of_own_time(commands as f64, "operations", commands as f64 / rate))
}

/// [RD2].
fn start(directory: &Path, scratch: &Path, socket: &Path, appendfsync: &str) -> Result<Server> {
    let mut command: Command = programs::command("redis-server", scratch)?;
    command.args(["--port", "0", "--daemonize", "no", "--save", "", "--appendonly", "yes", "--appendfsync", appendfsync]);
    command.args(["--auto-aof-rewrite-percentage", "0", "--dir"]).arg(directory).arg("--unixsocket").arg(socket);
    let mut server = Server::start(&mut command, scratch, Signal::TERM)?;
    server.wait_until(|| socket.exists() && ask(socket, scratch, "PING").is_ok_and(|answer| answer == "PONG"))?;
    Ok(server)
}

fn ask(socket: &Path, scratch: &Path, what: &str) -> Result<String> {
    let said = programs::run(programs::command("redis-cli", scratch)?.arg("-s").arg(socket).arg(what), scratch)?;
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn a_server_is_measured_and_keeps_its_keys() {
        run_all(&cases()[1..2], 1e-3, |_, outcome, _| assert!(outcome.units == 1000.0 && outcome.own_time.is_some()));
    }
}
