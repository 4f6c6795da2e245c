//! 1 MiB reads and writes one after the other by blocks: with timing on beside the device's own bandwidth, with timing off beside a file
//! system without checksums.

use std::sync::Arc;

use tandemfs_device::{BlockRequest, Device, Drive, Structure};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, SECTOR_BYTES, Sector};
use tandemfs_fs::{FileSystem, WriteOptions};

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::machine::Pinned;
use crate::measure::{Batch, Recorder, Samples, interleaved};
use crate::report::{Reach, Row};
use crate::scene::{self, DeviceShape, MIB, Scene};

const SHARE: f64 = 0.9;
const BATCH: u64 = 8;
const FILE_MIB: u64 = 64;

/// All rows.
pub fn run(arguments: &Arguments) -> Result<Vec<Row>> {
    let mut rows = timed(arguments)?;
    rows.extend(untimed(arguments)?);
    Ok(rows)
}

/// One that reads and writes 1 MiB at a time, round a file or round the device.
struct Subject {
    target: Target,
    next: u64,
}

enum Target {
    File(Arc<FileSystem>, InodeNumber),
    Raw(Drive),
}

impl Subject {
    fn file(device: Arc<dyn Device>, checksum_kind: ChecksumKind) -> Result<Self> {
        let fs = scene::make(device, checksum_kind)?;
        let file = fs.create(InodeNumber::ROOT, b"large", &scene::new_file())?.inode;
        let data = vec![1; MIB as usize];
        for piece in 0..FILE_MIB {
            fs.write(file, piece * MIB, &data, WriteOptions::default())?;
        }
        Ok(Self { target: Target::File(fs, file), next: 0 })
    }

    fn raw(device: Arc<dyn Device>) -> Self {
        Self { target: Target::Raw(Drive::new(device)), next: 0 }
    }

    fn write(&mut self, from: &[u8]) -> Result<()> {
        let at = self.next % FILE_MIB * MIB;
        self.next += 1;
        match &self.target {
            Target::File(fs, file) => {
                let written = fs.write(*file, at, from, WriteOptions::default())?;
                (written == from.len()).then_some(()).ok_or_else(|| Failure::new("a short write"))
            }
            Target::Raw(drive) => {
                let mut requests = [BlockRequest::Write { sector: sector(at), buffer: from }];
                drop(drive.transfer(Structure::Data, &mut requests, &mut || {})?);
                Ok(())
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        let at = self.next % FILE_MIB * MIB;
        self.next += 1;
        match &self.target {
            Target::File(fs, file) => {
                let read = fs.read(*file, at, into)?;
                (read == into.len()).then_some(()).ok_or_else(|| Failure::new("a short read"))
            }
            Target::Raw(drive) => {
                let mut requests = [BlockRequest::Read { sector: sector(at), buffer: into }];
                drop(drive.transfer(Structure::Data, &mut requests, &mut || {})?);
                Ok(())
            }
        }
    }
}

fn sector(offset: u64) -> Sector {
    Sector::new(offset / SECTOR_BYTES as u64)
}

/// Times of writes in 0..n, of reads in n..2n.
fn measure(subjects: &mut [Subject], rounds: usize) -> Result<Vec<Samples>> {
    let _pinned = Pinned::new();
    let count = subjects.len();
    let mut batches: Vec<Batch<'_>> = Vec::new();
    for (index, subject) in subjects.iter_mut().enumerate() {
        let mut buffer: Vec<u8> = (0..MIB).map(|byte| (byte / 7) as u8).collect();
        batches.push(Box::new(move |recorder: &mut Recorder| {
            for _ in 0..BATCH {
                recorder.time(index, || subject.write(&buffer))?;
            }
            for _ in 0..BATCH {
                recorder.time(count + index, || subject.read(&mut buffer))?;
            }
            Ok(())
        }));
    }
    interleaved(2 * count, rounds, &mut batches)
}

fn device(scene: &Scene, name: &str, shape: DeviceShape) -> Result<Arc<dyn Device>> {
    let device = scene.device(name, shape)?;
    scene::touch_blocks(&*device)?;
    Ok(device)
}

fn timed(arguments: &Arguments) -> Result<Vec<Row>> {
    let scene = Scene::new(arguments)?;
    let shape = DeviceShape { profile: "romefs-a", timing: true, memory_bytes: 64 * MIB, block_bytes: 256 * MIB };
    let mut subjects =
        [Subject::file(device(&scene, "engine", shape)?, ChecksumKind::Crc32c)?, Subject::raw(device(&scene, "bare", shape)?)];
    let samples = measure(&mut subjects, arguments.scaled(100))?;
    let row = |name: &str, index: usize| Row {
        bytes: Some(MIB),
        ..Row::beside(name, &samples[index], &samples[index + 1], Reach::SpeedAtLeast(SHARE))
    };
    Ok(vec![row("1 MiB write, romefs-a with timing", 0), row("1 MiB read, romefs-a with timing", 2)])
}

fn untimed(arguments: &Arguments) -> Result<Vec<Row>> {
    let scene = Scene::new(arguments)?;
    let shape = DeviceShape::plain(64 * MIB, 256 * MIB);
    let mut subjects = [
        Subject::file(device(&scene, "checked", shape)?, ChecksumKind::Crc32c)?,
        Subject::file(device(&scene, "unchecked", shape)?, ChecksumKind::None)?,
        Subject::raw(device(&scene, "bare", shape)?),
    ];
    let samples = measure(&mut subjects, arguments.scaled(200))?;
    let mut rows = Vec::new();
    for (name, first) in [("write", 0), ("read", 3)] {
        let beside = |what: &str, index: usize, limit: usize, reach: Reach| Row {
            bytes: Some(MIB),
            ..Row::beside(format!("1 MiB {name}, timing off{what}"), &samples[first + index], &samples[first + limit], reach)
        };
        rows.push(beside("", 0, 1, Reach::SpeedAtLeast(SHARE)).note("the limit is the same with --checksum=none"));
        rows.push(beside(", --checksum=none", 1, 2, Reach::Shown).note("the limit is the device alone"));
    }
    Ok(rows)
}
