use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures TandemFS, each operation beside its bare limit in the same run.
#[derive(Debug, Parser)]
#[command(name = "tandemfs-bench", version)]
pub struct Arguments {
    /// What to measure; everything when nothing is named
    #[arg(value_name = "CASE")]
    pub cases: Vec<Case>,
    /// One JSON object a line instead of tables
    #[arg(long)]
    pub json: bool,
    /// Fewer repetitions, and 100,000 files instead of 1,000,000
    #[arg(long)]
    pub quick: bool,
    /// Where the images of the devices are made; needs 2 GiB, best in memory
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub directory: PathBuf,
    /// A part of a case that runs in a process of its own
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

impl Arguments {
    /// `full`, or a tenth of it for a quick run.
    pub fn scaled(&self, full: usize) -> usize {
        if self.quick { (full / 10).max(1) } else { full }
    }
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
    /// Operations through the mount beside a FUSE file system that does nothing
    Fuse,
    /// Many files created in one directory and in 1,000
    ManyFiles,
    /// Mounts after a clean unmount and after a crash, and the host memory taken
    Mount,
}

impl Case {
    /// All, in the order of the table.
    pub const ALL: [Self; 6] = [Self::Overwrite, Self::Namespace, Self::Sequential, Self::Fuse, Self::ManyFiles, Self::Mount];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "overwrite",
            Self::Namespace => "namespace",
            Self::Sequential => "sequential",
            Self::Fuse => "fuse",
            Self::ManyFiles => "many-files",
            Self::Mount => "mount",
        }
    }
}
