//! Mount time and host memory with many files, after a clean unmount and after a crash.
//!
//! Each mount runs in its own process: its memory starts small, and a process that exits without unmounting is a crash.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{FileSystem, MountOptions};

use super::many_files;
use crate::arguments::Common;
use crate::compare::command::child as child_process;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::measure::Samples;
use crate::report::{Row, RowTarget};
use crate::scene::{self, DeviceShape, MIB, Scene};

const CLEAN_NS: f64 = 0.1e9;
const CRASH_NS: f64 = 1e9;
/// Files created before each crash, so that the journal has records to replay.
const LATE_FILES: usize = 2000;
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
    let image = scene.path("engine");
    let default_memory = MountOptions::default().memory_bytes;
    let (mut clean, mut crashed, mut unmount) = (Samples::new(), Samples::new(), Samples::new());
    let mut records = 0;
    for round in 0..arguments.scaled(10).max(3) {
        machine::check()?;
        let answer = in_process(&image, &Order { late_files: 0, walk: false, crash: false, round, memory_bytes: default_memory })?;
        expect_clean(&answer, true)?;
        clean.add(seconds(&answer, "mount_seconds"));
        unmount.add(seconds(&answer, "unmount_seconds"));
        in_process(&image, &Order { late_files: LATE_FILES, walk: false, crash: true, round, memory_bytes: default_memory })?;
        let answer = in_process(&image, &Order { late_files: 0, walk: false, crash: false, round, memory_bytes: default_memory })?;
        expect_clean(&answer, false)?;
        crashed.add(seconds(&answer, "mount_seconds"));
        records = answer["records"].as_u64().unwrap_or_default();
    }
    let title = if files == 1_000_000 { "1 M".to_owned() } else { files.to_string() };
    let mut rows = vec![
        Row { target: RowTarget::Below(CLEAN_NS), ..Row::alone(format!("mount after a clean unmount, {title} files"), &clean) },
        Row { target: RowTarget::Below(CRASH_NS), ..Row::alone(format!("mount after a crash, {title} files"), &crashed) }
            .note(format!("{records} records replayed")),
        Row::alone("unmount right after a mount", &unmount),
    ];
    for memory_bytes in [default_memory, default_memory / 4] {
        let order = Order { late_files: 0, walk: true, crash: false, round: 0, memory_bytes };
        let answer = in_process(&image, &order)?;
        let bytes = |name: &str| answer[name].as_u64().unwrap_or_default() as f64;
        let name = |what: &str| format!("host memory, memory={} MiB, {what}", memory_bytes / MIB);
        let target = RowTarget::BytesAtMost((memory_bytes + FIXED_BYTES) as f64);
        rows.push(Row { target, ..Row::value(name("after the mount"), bytes("mounted_bytes")) });
        let note = format!(
            "all names listed and looked at, {:.1} s; the target is the option and 64 MiB",
            seconds(&answer, "walk_seconds").as_secs_f64()
        );
        rows.push(Row { target, ..Row::value(name("all files looked at"), bytes("walked_bytes")) }.note(note));
    }
    Ok(rows)
}

fn seconds(answer: &Value, name: &str) -> Duration {
    Duration::from_secs_f64(answer[name].as_f64().unwrap_or_default())
}

fn expect_clean(answer: &Value, clean: bool) -> Result<()> {
    if answer["clean"] == clean { Ok(()) } else { Err(Failure::new(format!("the mount found clean={}, not {clean}", answer["clean"]))) }
}

/// Steps of the process: mount, optionally create and walk, then unmount or crash.
struct Order {
    late_files: usize,
    walk: bool,
    crash: bool,
    round: usize,
    memory_bytes: u64,
}

fn in_process(image: &Path, order: &Order) -> Result<Value> {
    let text = json!({
        "image": image,
        "late_files": order.late_files,
        "walk": order.walk,
        "crash": order.crash,
        "round": order.round,
        "memory_bytes": order.memory_bytes,
    });
    let output = child_process(&text.to_string()).output()?;
    if !output.status.success() {
        return Err(Failure::new(format!("a measured process failed: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Entry point of the process started by [`in_process`].
pub fn child(order: &str) -> Result<()> {
    let order: Value = serde_json::from_str(order)?;
    let number = |name: &str| order[name].as_u64().unwrap_or_default();
    let image = order["image"].as_str().ok_or_else(|| Failure::new("no image named"))?;
    let device = scene::open(image, false)?;
    let options = MountOptions { memory_bytes: number("memory_bytes"), ..MountOptions::default() };
    let start = Instant::now();
    let fs = scene::mount(Drive::new(device), &options)?;
    let mount_seconds = start.elapsed().as_secs_f64();
    let mounted_bytes = machine::own_memory_bytes();
    let mut walk_seconds = None;
    if order["walk"] == true {
        let start = Instant::now();
        walk(&fs)?;
        walk_seconds = Some(start.elapsed().as_secs_f64());
    }
    let walked_bytes = machine::own_memory_bytes();
    let late = number("late_files");
    if late > 0 {
        let name = format!("late-{}", number("round"));
        let directory = fs.create(InodeNumber::ROOT, name.as_bytes(), &scene::new_directory())?.inode;
        for file in 0..late {
            fs.create(directory, format!("file-{file}").as_bytes(), &scene::new_file())?;
        }
    }
    let mut answer = json!({
        "mount_seconds": mount_seconds,
        "mounted_bytes": mounted_bytes,
        "walk_seconds": walk_seconds,
        "walked_bytes": walked_bytes,
        "clean": fs.recovery().clean,
        "records": fs.recovery().records_replayed,
    });
    if order["crash"] != true {
        let start = Instant::now();
        fs.unmount()?;
        answer["unmount_seconds"] = start.elapsed().as_secs_f64().into();
    }
    println!("{answer}");
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
