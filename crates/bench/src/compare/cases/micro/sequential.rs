//! Reads and writes a file sequentially, 1 MiB at a time.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{MIB, lay_out, wrong};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::compare::cases::clients::{scaled, timed};
use crate::failure::Result;
use crate::workloads::content;

const FILE_BYTES: u64 = 256 * MIB;
/// Number of reads of a cached file: one takes only some hundredths of a second.
const WARM_TIMES: u64 = 16;

/// The cases of this file.
pub fn cases() -> Cases {
    let mut cases = Cases::new();
    for kind in [Kind::ReadCold, Kind::ReadWarm, Kind::Write] {
        cases.extend([1, 4].map(|clients| Box::new(Sequential { kind, clients }) as Box<dyn Case>));
    }
    cases
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ReadCold,
    ReadWarm,
    Write,
}

struct Sequential {
    kind: Kind,
    clients: u32,
}

impl Case for Sequential {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::ReadCold => "read-1m-sequential-cold",
            Kind::ReadWarm => "read-1m-sequential-warm",
            Kind::Write => "write-1m-sequential",
        };
        format!("{kind}-c{}", self.clients)
    }

    fn group(&self) -> Group {
        Group::Micro
    }

    fn description(&self) -> String {
        let what = match self.kind {
            Kind::ReadCold => "read from the drive",
            Kind::ReadWarm => "read from memory sixteen times",
            Kind::Write => "written, and one fsync at the end",
        };
        format!("256 MiB {what}, 1 MiB at a time; clients, each with a file of its own: {}", self.clients)
    }

    fn clients(&self) -> u32 {
        self.clients
    }

    fn share_least(&self) -> f64 {
        1.0
    }

    fn is_quick(&self) -> bool {
        self.clients == 1 && self.kind != Kind::ReadCold
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        FILE_BYTES * 2
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let pieces = scaled(FILE_BYTES / MIB, stage.scale, u64::from(self.clients)) / u64::from(self.clients);
        let (directory, numbers) = (stage.directory, 0..u64::from(self.clients));
        let path = |client: u64| directory.join(format!("file-{client}"));
        let is_written = self.kind == Kind::Write;
        if !is_written {
            numbers.clone().try_for_each(|client| lay_out(&path(client), client, pieces * MIB).map(drop))?;
        }
        if self.kind == Kind::ReadCold {
            stage.make_cold()?;
        }
        let mut open = |client| Ok((client, if is_written { File::create_new(path(client))? } else { File::open(path(client))? }));
        let mut clients = numbers.map(&mut open).collect::<Result<Vec<_>>>()?;
        let mut buffer = vec![0; MIB as usize];
        if self.kind == Kind::ReadWarm {
            for (_, file) in &clients {
                (0..pieces).try_for_each(|piece| file.read_exact_at(&mut buffer, piece * MIB))?;
            }
        }
        let times = if self.kind == Kind::ReadWarm { WARM_TIMES } else { 1 };
        let samples = timed(stage, &mut clients, |(client, file), watch| {
            let mut buffer = vec![0; MIB as usize];
            if is_written {
                content::fill(*client, 0, &mut buffer);
            }
            for piece in (0..times).flat_map(|_| 0..pieces) {
                let offset = piece * MIB;
                if is_written {
                    let is_last = piece + 1 == pieces;
                    watch.time(|| {
                        file.write_all_at(&buffer, offset)?;
                        if is_last { Ok(file.sync_all()?) } else { Ok(()) }
                    })?;
                } else {
                    watch.time(|| Ok(file.read_exact_at(&mut buffer, offset)?))?;
                    if !content::is(*client, offset, &buffer[..16]) {
                        return Err(wrong("a sequential read", offset));
                    }
                }
            }
            Ok(())
        })?;
        let units = (times * pieces * u64::from(self.clients) * MIB) as f64;
        Ok(Outcome { units, unit: "bytes", latencies: Some(samples), own_time: None })
    }
}
