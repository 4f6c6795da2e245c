//! Mount time and host memory with many files, after a clean unmount and after a crash.
//!
//! Each mount runs in its own process: its memory starts small, and a process that exits without unmounting is a crash.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{FileSystem, MountOptions};

use super::many_files;
use crate::arguments::Common;
use crate::compare::child::{self, Child};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::measure::Samples;
use crate::report::{Row, RowTarget};
use crate::scene::{self, DeviceShape, MIB, Scene};

const CLEAN_NS: f64 = 0.1e9;
const CRASH_NS: f64 = 1e9;
/// Files created before each crash, so that the journal has records to replay.
const LATE_FILES: usize = 2000;
/// What a process may take.
const WITHIN: Duration = Duration::from_secs(600);
/// Memory of a process outside the bound of the option: code, heap, allocation maps, records of a replay.
const FIXED_BYTES: u64 = 64 * MIB;

/// All rows.
pub fn run(arguments: &Common) -> Result<Vec<Row>> {
    let files = arguments.scaled(1_000_000);
    let scene = Scene::new(arguments)?;
    let shape = DeviceShape::plain(many_files::zone_bytes(files), 64 * MIB);
    {
        let fs = scene::make(scene.device("engine", shape)?, ChecksumKind::Crc32c)?;
        let directories = many_files::make_directories(&fs, 1000)?;
        many_files::fill(&fs, &directories, files, |_, _| {})?;
        fs.unmount()?;
    }
    let default = Order { image: scene.path("engine"), memory_bytes: MountOptions::default().memory_bytes, ..Order::default() };
    let (mut clean, mut crashed, mut unmount) = (Samples::new(), Samples::new(), Samples::new());
    let mut records = 0;
    for round in 0..arguments.scaled(10).max(3) {
        machine::check()?;
        let answer = in_process(&default)?.expect_clean(true)?;
        clean.add(answer.mount);
        unmount.add(answer.unmount);
        in_process(&Order { late_files: Some((round, LATE_FILES)), crash: true, ..default.clone() })?;
        let answer = in_process(&default)?.expect_clean(false)?;
        crashed.add(answer.mount);
        records = answer.records;
    }
    let title = if files == 1_000_000 { "1 M".to_owned() } else { files.to_string() };
    let mut rows = vec![
        Row { target: RowTarget::Below(CLEAN_NS), ..Row::alone(format!("mount after a clean unmount, {title} files"), &clean) },
        Row { target: RowTarget::Below(CRASH_NS), ..Row::alone(format!("mount after a crash, {title} files"), &crashed) }
            .note(format!("{records} records replayed")),
        Row::alone("unmount right after a mount", &unmount),
    ];
    for memory_bytes in [default.memory_bytes, default.memory_bytes / 4] {
        let answer = in_process(&Order { walk: true, memory_bytes, ..default.clone() })?;
        let name = |what: &str| format!("host memory, memory={} MiB, {what}", memory_bytes / MIB);
        let target = RowTarget::BytesAtMost((memory_bytes + FIXED_BYTES) as f64);
        rows.push(Row { target, ..Row::value(name("after the mount"), answer.mounted_bytes as f64) });
        let note = format!("all names listed and looked at, {:.1} s; the target is the option and 64 MiB", answer.walk.as_secs_f64());
        rows.push(Row { target, ..Row::value(name("all files looked at"), answer.walked_bytes as f64) }.note(note));
    }
    Ok(rows)
}

/// Steps of the process: mount, optionally walk and create, then unmount or crash.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Order {
    image: PathBuf,
    memory_bytes: u64,
    walk: bool,
    /// A number for their directory, and how many.
    late_files: Option<(usize, usize)>,
    crash: bool,
}

/// What the process found.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    mount: Duration,
    mounted_bytes: u64,
    walk: Duration,
    walked_bytes: u64,
    clean: bool,
    records: u64,
    unmount: Duration,
}

impl Answer {
    fn expect_clean(self, clean: bool) -> Result<Self> {
        if self.clean == clean { Ok(self) } else { Err(Failure::new(format!("the mount found clean={}, not {clean}", self.clean))) }
    }
}

fn in_process(order: &Order) -> Result<Answer> {
    Child::start(&mut child::Order::Mount(order.clone()).command()?, None)?.hear(WITHIN)
}

/// Entry point of the process started by [`in_process`].
pub fn serve(order: &Order) -> Result<()> {
    let device = scene::open(scene::path_text(&order.image)?, false)?;
    let options = MountOptions { memory_bytes: order.memory_bytes, ..MountOptions::default() };
    let start = Instant::now();
    let fs = scene::mount(Drive::new(device), &options)?;
    let mut answer = Answer { mount: start.elapsed(), mounted_bytes: machine::own_memory_bytes(), ..Answer::default() };
    if order.walk {
        let start = Instant::now();
        walk(&fs)?;
        answer.walk = start.elapsed();
    }
    answer.walked_bytes = machine::own_memory_bytes();
    if let Some((number, files)) = order.late_files {
        let directory = fs.create(InodeNumber::ROOT, format!("late-{number}").as_bytes(), &scene::new_directory())?.inode;
        for file in 0..files {
            fs.create(directory, format!("file-{file}").as_bytes(), &scene::new_file())?;
        }
    }
    (answer.clean, answer.records) = (fs.recovery().clean, fs.recovery().records_replayed);
    if !order.crash {
        let start = Instant::now();
        fs.unmount()?;
        answer.unmount = start.elapsed();
    }
    child::answer(&answer)?;
    // A crash: nothing is dropped, nothing is checkpointed.
    std::process::exit(0);
}

/// Lists every directory below the root and reads the attributes of every entry.
fn walk(fs: &FileSystem) -> Result<()> {
    for directory in entries(fs, InodeNumber::ROOT)? {
        if fs.attributes(directory)?.nlink < 2 {
            continue;
        }
        for file in entries(fs, directory)? {
            fs.attributes(file)?;
        }
    }
    Ok(())
}

fn entries(fs: &FileSystem, directory: InodeNumber) -> Result<Vec<InodeNumber>> {
    let mut entries = Vec::new();
    fs.read_directory(directory, 2, &mut |entry| {
        entries.push(entry.inode);
        true
    })?;
    Ok(entries)
}
