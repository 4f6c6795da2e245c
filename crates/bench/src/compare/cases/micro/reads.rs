//! Random 4 KiB reads, from the drive and from cache, and attributes from cache.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::{KIB, MIB, lay_out, wrong};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::compare::cases::clients::{scaled, share, timed};
use crate::failure::{Failure, Result};
use crate::workloads::content;
use crate::workloads::random::Random;

const PAGE: u64 = 4 * KIB;
const FILE_BYTES: u64 = 128 * MIB;
const COLD_READS: u64 = 8000;
const WARM_READS: u64 = 400_000;
const LOOKS: u64 = 400_000;
const LOOKED_AT: u64 = 1000;

/// The cases of this file.
pub fn cases() -> Cases {
    let mut cases = Cases::new();
    for is_cold in [true, false] {
        cases.extend([1, 2, 4, 16].map(|clients| Box::new(Reads { is_cold, clients }) as Box<dyn Case>));
    }
    cases.extend([1, 4].map(|clients| Box::new(Attributes { clients }) as Box<dyn Case>));
    cases
}

struct Reads {
    is_cold: bool,
    clients: u32,
}

impl Case for Reads {
    fn name(&self) -> String {
        format!("read-4k-random-{}-c{}", if self.is_cold { "cold" } else { "warm" }, self.clients)
    }

    fn group(&self) -> Group {
        Group::Micro
    }

    fn description(&self) -> String {
        let (count, from) = if self.is_cold { (COLD_READS, "from the drive") } else { (WARM_READS, "from memory") };
        format!("{count} reads of random 4 KiB pages of 128 MiB, {from}; clients: {}", self.clients)
    }

    fn clients(&self) -> u32 {
        self.clients
    }

    fn share_least(&self) -> f64 {
        if self.is_cold { 0.25 } else { 0.5 }
    }

    fn is_quick(&self) -> bool {
        self.clients == 1
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        FILE_BYTES * 2
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let reads = if self.is_cold { COLD_READS } else { WARM_READS };
        let count = share(scaled(reads, stage.scale, u64::from(self.clients)), self.clients);
        let path = stage.directory.join("file");
        let bytes = scaled(FILE_BYTES, stage.scale.max(0.25), MIB) / MIB * MIB;
        drop(lay_out(&path, 0, bytes)?);
        if self.is_cold {
            stage.make_cold()?;
        }
        let mut clients = (0..u64::from(self.clients)).map(|client| Ok((client, File::open(&path)?))).collect::<Result<Vec<_>>>()?;
        if !self.is_cold {
            let mut buffer = vec![0; MIB as usize];
            for offset in (0..bytes).step_by(buffer.len()) {
                clients[0].1.read_exact_at(&mut buffer, offset)?;
            }
        }
        let seed = stage.seed;
        let samples = timed(stage, &mut clients, |(client, file), watch| {
            let (mut random, mut page) = (Random::new(seed, *client), vec![0; PAGE as usize]);
            for _ in 0..count {
                let offset = random.below(bytes / PAGE) * PAGE;
                watch.time(|| Ok(file.read_exact_at(&mut page, offset)?))?;
                // Only a few bytes, so that the check is cheap compared with the read.
                if !content::is(0, offset, &page[..16]) {
                    return Err(wrong("a random read", offset));
                }
            }
            Ok(())
        })?;
        let units = (count * u64::from(self.clients)) as f64;
        Ok(Outcome { units, unit: "operations", latencies: Some(samples), own_time: None })
    }
}

struct Attributes {
    clients: u32,
}

impl Case for Attributes {
    fn name(&self) -> String {
        format!("getattr-warm-c{}", self.clients)
    }

    fn group(&self) -> Group {
        Group::Micro
    }

    fn description(&self) -> String {
        format!("{LOOKS} calls of stat on {LOOKED_AT} files that were looked at before; clients: {}", self.clients)
    }

    fn clients(&self) -> u32 {
        self.clients
    }

    fn share_least(&self) -> f64 {
        0.5
    }

    fn is_quick(&self) -> bool {
        self.clients == 1
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        64 * MIB
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let count = share(scaled(LOOKS, stage.scale, u64::from(self.clients)), self.clients);
        let paths: Vec<_> = (0..LOOKED_AT).map(|number| stage.directory.join(format!("file-{number:04}"))).collect();
        for path in &paths {
            File::create_new(path)?;
        }
        for path in &paths {
            fs::metadata(path)?;
        }
        let seed = stage.seed;
        let mut clients: Vec<u64> = (0..u64::from(self.clients)).collect();
        let samples = timed(stage, &mut clients, |client, watch| {
            let mut random = Random::new(seed, *client);
            for _ in 0..count {
                let path = &paths[random.below(LOOKED_AT) as usize];
                let attributes = watch.time(|| Ok(fs::metadata(path)?))?;
                if !attributes.is_file() {
                    return Err(Failure::new("stat took a file for something else"));
                }
            }
            Ok(())
        })?;
        let units = (count * u64::from(self.clients)) as f64;
        Ok(Outcome { units, unit: "operations", latencies: Some(samples), own_time: None })
    }
}
