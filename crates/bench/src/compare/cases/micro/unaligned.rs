//! Writes of 64 B to 1 MiB at any byte offset of a file, each with fsync (RomeFS Fig. 6).

use std::os::unix::fs::FileExt;

use super::{KIB, MIB, lay_out, wrong};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::compare::cases::clients::{scaled, share, timed};
use crate::failure::Result;
use crate::workloads::content;
use crate::workloads::random::Random;

const FILE_BYTES: u64 = 64 * MIB;
/// Size, its name, number of operations, and numbers of clients.
const SIZES: [(u64, &str, u64, &[u32]); 5] = [
    (64, "64", 4000, &[1, 4]),
    (512, "512", 4000, &[1]),
    (4 * KIB, "4k", 4000, &[1, 4]),
    (64 * KIB, "64k", 2000, &[1]),
    (MIB, "1m", 300, &[1, 4]),
];
const WRITTEN: u64 = 1 << 32;

/// The cases of this file.
pub fn cases() -> Cases {
    let of_size = |(bytes, size, operations, clients): (u64, &'static str, u64, &'static [u32])| {
        clients.iter().map(move |clients| Box::new(Unaligned { bytes, size, operations, clients: *clients }) as Box<dyn Case>)
    };
    SIZES.into_iter().flat_map(of_size).collect()
}

struct Unaligned {
    bytes: u64,
    size: &'static str,
    operations: u64,
    clients: u32,
}

impl Case for Unaligned {
    fn name(&self) -> String {
        format!("unaligned-fsync-{}-c{}", self.size, self.clients)
    }

    fn group(&self) -> Group {
        Group::Micro
    }

    fn description(&self) -> String {
        format!("{} writes of {} bytes at any byte of 64 MiB, each with fsync; clients: {}", self.operations, self.bytes, self.clients)
    }

    fn clients(&self) -> u32 {
        self.clients
    }

    fn share_least(&self) -> f64 {
        0.25
    }

    fn is_quick(&self) -> bool {
        self.bytes == 512
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        FILE_BYTES * 6
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let count = share(scaled(self.operations, stage.scale, u64::from(self.clients)), self.clients);
        let file_bytes = FILE_BYTES / u64::from(self.clients);
        let (directory, seed) = (stage.directory, stage.seed);
        let mut clients = (0..u64::from(self.clients))
            .map(|client| {
                let file = lay_out(&directory.join(format!("file-{client}")), client, file_bytes)?;
                Ok((client, file, 0))
            })
            .collect::<Result<Vec<_>>>()?;
        let samples = timed(stage, &mut clients, |(client, file, last), watch| {
            let (mut random, mut bytes) = (Random::new(seed, *client), vec![0; self.bytes as usize]);
            for operation in 0..count {
                let offset = random.below(file_bytes - self.bytes);
                content::fill(WRITTEN + operation, offset, &mut bytes);
                watch.time(|| {
                    file.write_all_at(&bytes, offset)?;
                    Ok(file.sync_data()?)
                })?;
                *last = offset;
            }
            Ok(())
        })?;
        for (_, file, last) in &clients {
            let mut found = vec![0; self.bytes as usize];
            file.read_exact_at(&mut found, *last)?;
            if !content::is(WRITTEN + count - 1, *last, &found) {
                return Err(wrong(&self.name(), *last));
            }
        }
        let units = (count * u64::from(self.clients)) as f64;
        Ok(Outcome { units, unit: "operations", latencies: Some(samples), own_time: None })
    }
}
