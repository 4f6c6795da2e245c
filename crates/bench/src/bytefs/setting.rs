//! Common settings of the experiments: the scale, and sizes that follow from it ([Y1]).
//!
//! [Y1]: super

use crate::arguments::{BytefsArguments, Common};
use crate::failure::{Failure, Result};
use crate::scene::{self, MIB};
use crate::workloads::{Load, Workload};

/// Write log of the paper's drive.
pub const PAPER_LOG_BYTES: u64 = 256 * MIB;
/// Memory of the paper's host.
const PAPER_HOST_BYTES: u64 = 128 << 30;
/// A smaller log cannot hold the transaction of a large write.
const LOG_BYTES_MIN: u64 = 2 * MIB;
/// Valid scales.
const SCALES: std::ops::RangeInclusive<f64> = 1e-4..=1.0;
/// Below this scale figures are noise.
const SCALE_OF_FIGURES: f64 = 0.002;

/// Sizes of a run.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Options common to all benchmarks.
    pub common: Common,
    /// Share of the paper's load.
    pub scale: f64,
    /// Page cache of the host, in bytes; `None` in strict semantics.
    pub page_cache_bytes: Option<u64>,
    /// Size of data blocks.
    pub block_bytes: u32,
    log_bytes: Option<u64>,
    loads: Vec<Workload>,
    seed: u64,
}

impl Setting {
    /// Settings from the arguments.
    pub fn new(arguments: &BytefsArguments) -> Result<Self> {
        if !SCALES.contains(&arguments.scale) {
            return Err(Failure::new("--scale: a share of the paper's load from 0.0001 to 1 is needed"));
        }
        let scale = if arguments.evaluation.common.quick { arguments.scale / 5.0 } else { arguments.scale }.max(*SCALES.start());
        let page_cache_bytes = arguments.page_cache.unwrap_or((PAPER_HOST_BYTES as f64 * scale) as u64);
        Ok(Self {
            common: arguments.evaluation.common.clone(),
            scale,
            page_cache_bytes: (!arguments.strict).then_some(page_cache_bytes),
            block_bytes: arguments.block_size,
            log_bytes: arguments.log,
            loads: arguments.loads.clone(),
            seed: arguments.seed,
        })
    }

    /// The selected loads among `of`.
    pub fn loads(&self, of: &[Workload]) -> Result<Vec<Workload>> {
        let wanted: Vec<Workload> = of.iter().copied().filter(|load| self.loads.is_empty() || self.loads.contains(load)).collect();
        if wanted.is_empty() {
            let names: Vec<&str> = of.iter().map(|load| load.name()).collect();
            return Err(Failure::new(format!("--load: this experiment has {}", names.join(", "))));
        }
        Ok(wanted)
    }

    /// A load at the scale of the run. Tiny runs verify what is read; other runs do not, to save host time.
    pub fn load(&self, workload: Workload) -> Load {
        Load { verify: self.is_tiny(), ..Load::new(workload, self.scale, self.seed) }
    }

    /// Whether the run is so small that it only tests the program.
    pub fn is_tiny(&self) -> bool {
        self.scale < SCALE_OF_FIGURES
    }

    /// A number of operations scaled with the run; `at_default` at the default scale.
    pub fn count(&self, at_default: u64) -> u64 {
        self.share(at_default).clamp(16.min(at_default), at_default)
    }

    /// An amount scaled with the run; `at_default` at the default scale.
    pub fn share(&self, at_default: u64) -> u64 {
        (at_default as f64 * self.scale / 0.01) as u64
    }

    /// A size of the paper's write log, scaled.
    pub fn log_bytes(&self, of_the_paper: u64) -> u64 {
        let share = ((of_the_paper as f64 * self.scale) as u64).next_multiple_of(64 << 10);
        share.max(LOG_BYTES_MIN * of_the_paper / PAPER_LOG_BYTES)
    }

    /// The write log of a run.
    pub fn own_log_bytes(&self) -> u64 {
        self.log_bytes.unwrap_or_else(|| self.log_bytes(PAPER_LOG_BYTES))
    }

    /// Memory zone and block zone for a load, in bytes: room for data and its replacements, metadata and small writes.
    pub fn zones(load: &Load) -> (u64, u64) {
        let data = load.bytes_max();
        let memory = 64 * MIB + load.files * 1024 + data / 8;
        let block = 64 * MIB + data + data / 4;
        (memory.next_multiple_of(2 * MIB), block.next_multiple_of(2 * MIB))
    }

    /// Fails if the directory of the images has no room for this many bytes.
    pub fn require(&self, bytes: u64) -> Result<()> {
        scene::require_room(&self.common.directory, bytes, "a smaller share of the load with --scale or --quick")
    }

    /// One line for the head of the output.
    pub fn describe(&self) -> String {
        let semantics = match self.page_cache_bytes {
            Some(bytes) => format!("relaxed, with a page cache of {} MiB", bytes / MIB),
            None => "strict".to_owned(),
        };
        let tiny = if self.is_tiny() { "; scaled down to test the program: the figures mean nothing" } else { "" };
        format!(
            "share of the paper's load: {}; write log: {:.1} MiB; data blocks: {} KiB; semantics: {semantics}; seed: {}{tiny}",
            self.scale,
            self.own_log_bytes() as f64 / MIB as f64,
            self.block_bytes >> 10,
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command as Subcommand};

    fn setting(line: &str) -> Result<Setting> {
        let Some(Subcommand::Bytefs(arguments)) = Arguments::try_parse_from(line.split(' '))?.command else { panic!("no experiment") };
        Setting::new(&arguments)
    }

    #[test]
    fn memory_that_stands_for_a_share_is_scaled_with_the_load() {
        let full = setting("bench bytefs --scale 1").expect("a setting");
        assert_eq!((full.own_log_bytes(), full.page_cache_bytes), (256 * MIB, Some(128 << 30)));
        let tenth = setting("bench bytefs --scale 0.1").expect("a setting");
        assert_eq!((tenth.own_log_bytes(), tenth.load(Workload::Varmail).files), (26_869_760, 100_000));
        assert_eq!([64, 1024].map(|size| tenth.log_bytes(size * MIB)), [6_750_208, 107_413_504]);
        assert_eq!(setting("bench bytefs --scale 0.0001").expect("a setting").own_log_bytes(), LOG_BYTES_MIN);
        let chosen = setting("bench bytefs --log 8M --strict").expect("a setting");
        assert_eq!((chosen.own_log_bytes(), chosen.page_cache_bytes), (8 * MIB, None));
    }

    #[test]
    fn every_load_fits_its_drive() {
        let setting = setting("bench bytefs").expect("a setting");
        for workload in Workload::ALL {
            let load = setting.load(workload);
            let (memory, block) = Setting::zones(&load);
            assert!(memory > load.files * 1024 && block > load.files * load.file_bytes, "{workload:?}");
            assert!(setting.own_log_bytes() < memory, "{workload:?}");
        }
        assert!(setting.loads(&[Workload::Mkdir]).is_ok() && !setting.is_tiny());
    }
}
