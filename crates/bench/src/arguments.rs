use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::compare::backing::Kind;
use crate::compare::peer::Peer;
use crate::compare::session::LATENCIES;
use crate::compare::settings::Settings;
use crate::workloads::Workload;

/// Measures TandemFS, each operation beside its bare limit in the same run.
#[derive(Debug, Parser)]
#[command(name = "tandemfs-bench", version, args_conflicts_with_subcommands = true, max_term_width = 80)]
pub struct Arguments {
    /// Rows of the speed table.
    #[command(flatten)]
    pub evaluation: Evaluation<Case>,
    /// A part of a case that runs in a process of its own
    #[arg(long, hide = true)]
    pub child: Option<String>,
    /// Other measurements.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What every measurement can be told.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// One JSON object a line instead of tables
    #[arg(long)]
    pub json: bool,
    /// Fewer repetitions, and less of everything
    #[arg(long)]
    pub quick: bool,
    /// Where the images of the devices are made; needs 2 GiB, or what the measurement says; best in memory
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub directory: PathBuf,
}

impl Common {
    /// `full`, or a tenth of it for a quick run.
    pub fn scaled(&self, full: usize) -> usize {
        if self.quick { (full / 10).max(1) } else { full }
    }
}

/// Measurements beside the speed table.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The evaluation of the RomeFS paper, on an emulated CXL-SSD
    Romefs(RomefsArguments),
    /// The evaluation of the ByteFS paper, on an emulated SSD with firmware, in reckoned time
    Bytefs(BytefsArguments),
    /// A drive whose cache the host manages (Habicht et al., Fig. 3), beside one that manages it itself
    Hybrid(HybridArguments),
    /// The same work on TandemFS and on ext4, XFS and Btrfs, side by side
    Compare(CompareArguments),
    /// The report of a comparison, made again from its results
    Report(ReportArguments),
    /// Age a file system by creations and removals, and show what is left of its aligned space
    Age(AgeArguments),
    /// Run a trace of 'tandemfs trace' again, in a directory of any file system
    Replay(ReplayArguments),
    /// Write the manual pages, one for each command
    Man {
        /// The directory that they are written to; made if it is not there
        #[arg(long, value_name = "DIRECTORY")]
        output: PathBuf,
    },
}

/// `tandemfs-bench replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArguments {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// An empty directory: what the trace needs is made in it first
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
    /// Times as fast as it was recorded [default: without pauses]
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    pub speed: Option<f64>,
    /// Make all names that were there, not only those that operations need
    #[arg(long)]
    pub all: bool,
    /// Have each write durable when it returns (O_DSYNC), as it was on a mount in strict mode
    #[arg(long)]
    pub synchronous: bool,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// How many times as fast.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (0.001..=1000.0).contains(speed));
    speed.ok_or_else(|| format!("'{text}' is no speed; write a number from 0.001 to 1000, or leave it out for no pauses"))
}

/// `tandemfs-bench report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArguments {
    /// A file of results, or the directory that 'tandemfs-bench compare' wrote it to
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// Where report.md is written [default: beside the results]
    #[arg(long, value_name = "DIRECTORY")]
    pub output: Option<PathBuf>,
}

/// `tandemfs-bench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArguments {
    /// What to measure, by name or by the beginning of names; everything when nothing is named
    #[arg(value_name = "CASE")]
    pub cases: Vec<String>,
    /// What holds for all runs.
    #[command(flatten)]
    pub settings: Settings,
    /// One JSON object a line for each run instead of a report
    #[arg(long)]
    pub json: bool,
    /// Some cases, a tenth of the work, in less than five minutes
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// All cases on both drives, a twentieth of the work or as much as takes some tenths of a second, in less than ninety minutes [default: all cases on one drive, a quarter of the work]
    #[arg(long)]
    pub full: bool,
    /// No more is measured than ends in so many minutes, but for what decides a target [default: 4.5 with --quick, 75 with --full]
    #[arg(long, value_name = "NUMBER")]
    pub minutes: Option<u64>,
    /// On what: drives that take no time, or the same drive for everybody [default: free, with --full both]
    #[arg(long, value_name = "PLACE", value_enum, value_delimiter = ',')]
    pub place: Vec<Kind>,
    /// Microseconds of a block command of the same drive, for the curves of verdicts; the profile's own is tried as well
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = LATENCIES, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub latency: Vec<u32>,
    /// Who; everybody when nobody is named
    #[arg(long, value_name = "PEER", value_enum, value_delimiter = ',')]
    pub peer: Vec<Peer>,
    /// Rounds that are kept, after one to warm up [default: 5]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Share of the work, instead of that of --quick or --full
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub scale: Option<f64>,
    /// Where results and report are written
    #[arg(long, value_name = "DIRECTORY", default_value = "tandemfs-compare")]
    pub output: PathBuf,
    /// Make the runs that earlier results lack
    #[arg(long)]
    pub resume: bool,
    /// List the cases
    #[arg(long)]
    pub list: bool,
}

/// A share of the work.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0001..=10.0).contains(share));
    share.ok_or_else(|| format!("'{text}' is no share of the work; write a number from 0.0001 to 10"))
}

/// What the speed table and the evaluations of both papers can be told; `E` are the cases or experiments.
#[derive(Debug, Clone, Args)]
pub struct Evaluation<E: ValueEnum + Send + Sync + 'static> {
    /// What to measure; everything when nothing is named
    #[arg(value_name = "NAME")]
    pub experiments: Vec<E>,
    /// How.
    #[command(flatten)]
    pub common: Common,
    /// Also write tables and JSON lines to this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub output: Option<PathBuf>,
}

/// `tandemfs-bench bytefs`.
#[derive(Debug, Clone, Args)]
pub struct BytefsArguments {
    /// What.
    #[command(flatten)]
    pub evaluation: Evaluation<BytefsExperiment>,
    /// Share of the paper's load, from 0.0001 to 1: its number of files and of loops, with the write log and the host's page cache
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub scale: f64,
    /// Run only these loads of those that an experiment has
    #[arg(long = "load", value_name = "LOAD", value_delimiter = ',')]
    pub loads: Vec<Workload>,
    /// Write log of the drive, instead of a share of the paper's 256M
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub log: Option<u64>,
    /// Memory of the host for file data, instead of a share of the paper's 128G; with `--strict` there is none
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub page_cache: Option<u64>,
    /// Size of the file system's data blocks: whole ones go by blocks, the rest by bytes
    #[arg(long, value_name = "SIZE", value_parser = block_size, default_value = "4K")]
    pub block_size: u32,
    /// Strict semantics: each write is durable when it returns, and no page cache is in front
    #[arg(long, conflicts_with = "page_cache")]
    pub strict: bool,
    /// Run the loads on a directory (a mount, another file system) by a thread a worker, in real time; only for `loads`
    #[arg(long, value_name = "DIRECTORY")]
    pub on: Option<PathBuf>,
    /// Chooses everything that is drawn
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// `tandemfs-bench romefs`.
#[derive(Debug, Clone, Args)]
pub struct RomefsArguments {
    /// What.
    #[command(flatten)]
    pub evaluation: Evaluation<RomefsExperiment>,
    /// Memory zone that loads are scaled to [default: 256M, with --quick 32M]
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// Share of the load that is run, for tests of the program itself: the figures mean nothing
    #[arg(long, hide = true, default_value_t = 1.0)]
    pub scale: f64,
}

/// `tandemfs-bench hybrid`.
#[derive(Debug, Clone, Args)]
pub struct HybridArguments {
    /// What.
    #[command(flatten)]
    pub evaluation: Evaluation<HybridExperiment>,
}

/// A size in whole MiB.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match (text.strip_suffix('M'), text.strip_suffix('G')) {
        (Some(number), _) => (number, 20),
        (_, Some(number)) => (number, 30),
        _ => ("", 0),
    };
    let size = number.parse().ok().and_then(|number: u64| number.checked_mul(1 << shift)).filter(|size| (1..=1 << 40).contains(size));
    size.ok_or_else(|| format!("'{text}' is no size here; write a number with M or G, such as 256M"))
}

/// What is aged, and how.
#[derive(Debug, Args)]
pub struct AgeArguments {
    /// A directory of a mounted file system, or an image of TandemFS, which is then used as a library
    pub target: PathBuf,
    /// Sizes, ages and depths of files: agrawal, wang-hpc, or a JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "agrawal")]
    pub profile: String,
    /// Shares of the file system that files take, one after the other
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent, default_value = "75%")]
    pub utilization: Vec<f64>,
    /// Bytes to create once it is filled, in sizes of the file system, divided evenly among the utilizations
    #[arg(long, value_name = "TIMES", value_parser = times, default_value = "20")]
    pub churn: f64,
    /// Write the bytes of files instead of reserving space for them
    #[arg(long)]
    pub write: bool,
    /// Age the memory zone of an image: files have their home there
    #[arg(long)]
    pub memory: bool,
    /// Compact an image between steps as far as its background would if files came more slowly
    #[arg(long)]
    pub compact: bool,
    /// Create so many bytes a second at most, with M or G, so that an image's own background is seen at that rate
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub rate: Option<u64>,
    /// Gives other files with the same distributions
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads; more than one lay files out differently in each run
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
    /// Size of the file that shows how much can be mapped with huge pages, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub large: u64,
    /// How far the run is, so that it can be continued; beside an image or inside a directory by default
    #[arg(long, value_name = "FILE")]
    pub notes: Option<PathBuf>,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok().filter(|percent| (1.0..=99.0).contains(percent));
    number.ok_or_else(|| format!("'{text}' is not 1% to 99%"))
}

fn times(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|times| (0.0..=100_000.0).contains(times));
    number.ok_or_else(|| format!("'{text}' is not 0 to 100000"))
}

/// A size of data blocks.
fn block_size(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('K').and_then(|number| number.parse::<u32>().ok());
    let size = number.filter(|number| number.is_power_of_two() && (4..=1024).contains(number));
    size.map(|number| number << 10).ok_or_else(|| format!("'{text}' is no size of blocks; write a power of two from 4K to 1024K"))
}

/// A row, or a group of rows, of the speed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Durable 4 KiB overwrite in a data log, with its breakdown
    Overwrite,
    /// Durable create, rename and unlink
    Namespace,
    /// 1 MiB sequential reads and writes by blocks
    Sequential,
    /// Many files created in one directory and in 1,000
    ManyFiles,
    /// Mounts after a clean unmount and after a crash, and the host memory taken
    Mount,
}

/// An experiment of RomeFS §4.2, or one that the paper leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RomefsExperiment {
    /// Table 4: which share of the bytes takes which path, 5 thresholds x 6 sizes
    Table4,
    /// Fig. 6: durable unaligned random writes beside blocks only and beside an LRU cache; in virtual time
    Writes,
    /// Fig. 7: where time and bytes of a write go
    Breakdown,
    /// Fig. 8: random reads beside the same two; in virtual time
    Reads,
    /// Fig. 9 and 10: 1 to 16 threads on one file; in virtual time
    Threads,
    /// What a large unaligned write costs over its limit, and the memory zone that scattered small writes take
    Overhead,
    /// §4.4: PageRank over a graph on the drive, by `promote`; in virtual time
    Graph,
    /// §3.3: unaligned writes by `threshold`, over the latency of a block command; in virtual time
    Threshold,
}

/// An experiment of ByteFS §5, or one that issues of this project ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BytefsExperiment {
    /// Fig. 6: operations a second of each load
    Loads,
    /// Fig. 8 and 9: bytes between host and drive, by path and structure
    Traffic,
    /// Fig. 10 and 11: flash pages read and programmed
    Flash,
    /// Fig. 12: only two paths; with the write log; the whole
    Breakdown,
    /// Fig. 13: flash of 40/60, 25/200, 3/80 us, the last by CXL too
    Latency,
    /// Fig. 14: a write log of 64 MiB to 1 GiB, scaled
    LogSize,
    /// §5.5: the time to recover, by how full the write log was
    Recovery,
    /// What one creation of a file writes to the drive
    Create,
    /// Overwrites of a drive 50, 75, 90 % full, with and without discards
    Discard,
}

/// An experiment of Habicht et al. §3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HybridExperiment {
    /// Fig. 3: random writes by stores and by blocks, by size and by threads; in virtual time
    Writes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn cases_and_experiments_have_their_own_lines() {
        let cases = parse("bench overwrite namespace --quick --json").expect("a line");
        assert_eq!((cases.evaluation.experiments, cases.command.is_none()), (vec![Case::Overwrite, Case::Namespace], true));
        let romefs = parse("bench romefs table4 writes --quick --memory 64M --output out").expect("a line");
        let Some(Command::Romefs(romefs)) = romefs.command else { panic!("no experiment") };
        assert_eq!(romefs.evaluation.experiments, [RomefsExperiment::Table4, RomefsExperiment::Writes]);
        assert_eq!((romefs.evaluation.output, romefs.memory), (Some("out".into()), Some(64 << 20)));
        let bytefs = parse("bench bytefs traffic log-size --scale 0.1 --load varmail,oltp --log 64M --strict").expect("a line");
        let Some(Command::Bytefs(bytefs)) = bytefs.command else { panic!("no experiment") };
        assert_eq!(bytefs.evaluation.experiments, [BytefsExperiment::Traffic, BytefsExperiment::LogSize]);
        assert_eq!((bytefs.loads, bytefs.scale, bytefs.log), (vec![Workload::Varmail, Workload::Oltp], 0.1, Some(64 << 20)));
        assert_eq!(bytefs.block_size, 4096);
        assert!(parse("bench bytefs --strict --page-cache 1G").is_err() && parse("bench bytefs --block-size 5K").is_err());
        let compare =
            parse("bench compare untar durable- --quick --place free,same --peer ext4,null --rounds 7 --pin none").expect("a line");
        let Some(Command::Compare(compare)) = compare.command else { panic!("no comparison") };
        assert_eq!((compare.place, compare.peer), (vec![Kind::Free, Kind::Same], vec![Peer::Ext4, Peer::Null]));
        assert_eq!((compare.cases.len(), compare.rounds, compare.settings.seed), (2, Some(7), 1));
        let report = parse("bench report results.json --output out").expect("a line");
        let Some(Command::Report(report)) = report.command else { panic!("no report") };
        assert_eq!((report.results, report.output), ("results.json".into(), Some("out".into())));
        assert!(parse("bench report").is_err());
        assert!(parse("bench compare --quick --full").is_err() && parse("bench compare --rounds 0").is_err());
        assert!(parse("bench compare --peer zfs").is_err() && parse("bench compare --scale 0").is_err());
        assert!(parse("bench overwrite romefs").is_err() && parse("bench romefs --memory 64").is_err());
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        assert!(Workload::ALL.iter().all(|each| name(each.to_possible_value()).as_deref() == Some(each.name())));
    }
}
