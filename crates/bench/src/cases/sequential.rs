//! Sequential 1 MiB reads and writes over the block path: with timing compared with the device's bandwidth, without timing compared with a
//! file system without checksums.

use std::sync::Arc;

use tandemfs_device::{BlockRequest, Device, Drive, Structure};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, SECTOR_BYTES, Sector};
use tandemfs_fs::{FileSystem, WriteOptions};

use crate::arguments::Common;
use crate::failure::{Failure, Result};
use crate::machine::Pinned;
use crate::measure::{Batch, Recorder, Samples, interleaved};
use crate::report::{Row, RowTarget};
use crate::scene::{self, DeviceShape, MIB, Scene};

const SHARE: f64 = 0.9;
const BATCH: u64 = 8;
const FILE_MIB: u64 = 64;
const PLACEMENTS: usize = 8;

/// All rows.
pub fn run(arguments: &Common) -> Result<Vec<Row>> {
    let mut rows = timed(arguments)?;
    rows.extend(untimed(arguments)?);
    Ok(rows)
}

/// Reads and writes 1 MiB at a time, cyclically through a file or a device.
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
            Target::File(fs, file) => scene::write(fs, *file, at, from, WriteOptions::default()),
            Target::Raw(drive) => {
                let mut requests = [BlockRequest::Write { sector: sector(at), buffer: from.into() }];
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
                let mut requests = [BlockRequest::Read { sector: sector(at), buffer: into.into() }];
                drop(drive.transfer(Structure::Data, &mut requests, &mut || {})?);
                Ok(())
            }
        }
    }
}

fn sector(offset: u64) -> Sector {
    Sector::new(offset / SECTOR_BYTES as u64)
}

/// Times of writes at indices 0..n, of reads at n..2n.
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

/// Kind of a subject.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Checked,
    Unchecked,
    Raw,
}

/// Measures subjects on several sets of fresh devices, created in a different order each time. The placement of an image in memory changes
/// the copy speed by more than a checksum does, for as long as the image lives; a single set would measure the placement.
fn on_many_placements(arguments: &Common, shape: DeviceShape, kinds: &[Kind], rounds: usize) -> Result<Vec<Vec<Samples>>> {
    let mut placements = Vec::new();
    for placement in 0..if arguments.quick { 3 } else { PLACEMENTS } {
        let scene = Scene::new(arguments)?;
        let mut subjects: Vec<Option<Subject>> = kinds.iter().map(|_| None).collect();
        for index in (0..kinds.len()).map(|index| (index + placement) % kinds.len()) {
            let device = scene.device(&format!("device-{index}"), shape)?;
            scene::touch_blocks(&*device)?;
            subjects[index] = Some(match kinds[index] {
                Kind::Checked => Subject::file(device, ChecksumKind::Crc32c)?,
                Kind::Unchecked => Subject::file(device, ChecksumKind::None)?,
                Kind::Raw => Subject::raw(device),
            });
        }
        let mut subjects: Vec<Subject> = subjects.into_iter().flatten().collect();
        placements.push(measure(&mut subjects, rounds)?);
    }
    Ok(placements)
}

/// A row over all placements, with their spread. If placements lie on both sides of the target, the row is undecided.
fn row(name: String, placements: &[Vec<Samples>], subject: usize, limit: usize, target: RowTarget, note: &str) -> Row {
    let (mut all, mut all_limit) = (Samples::new(), Samples::new());
    for samples in placements {
        all.merge(&samples[subject]);
        all_limit.merge(&samples[limit]);
    }
    let mut shares: Vec<f64> = placements.iter().map(|samples| samples[limit].median_ns() / samples[subject].median_ns()).collect();
    shares.sort_by(f64::total_cmp);
    let (least, most) = (shares[0], shares[shares.len() - 1]);
    let undecided = matches!(target, RowTarget::SpeedAtLeast(share) if least < share && share <= most);
    let spread = format!("{note}{:.0}–{:.0} % over {} placements", least * 100.0, most * 100.0, shares.len());
    Row { bytes: Some(MIB), undecided, ..Row::beside(name, &all, &all_limit, target) }.note(spread)
}

fn timed(arguments: &Common) -> Result<Vec<Row>> {
    let shape = DeviceShape { profile: "romefs-a", timing: true, memory_bytes: 64 * MIB, block_bytes: 256 * MIB };
    let placements = on_many_placements(arguments, shape, &[Kind::Checked, Kind::Raw], arguments.scaled(50))?;
    let row = |name: &str, subject: usize| {
        row(format!("1 MiB {name}, romefs-a with timing"), &placements, subject, subject + 1, RowTarget::SpeedAtLeast(SHARE), "")
    };
    Ok(vec![row("write", 0), row("read", 2)])
}

fn untimed(arguments: &Common) -> Result<Vec<Row>> {
    let shape = DeviceShape::plain(64 * MIB, 256 * MIB);
    let placements = on_many_placements(arguments, shape, &[Kind::Checked, Kind::Unchecked, Kind::Raw], arguments.scaled(50))?;
    let mut rows = Vec::new();
    for (name, first) in [("write", 0), ("read", 3)] {
        let beside = |what: &str, subject: usize, target: RowTarget, note: &str| {
            row(format!("1 MiB {name}, timing off{what}"), &placements, first + subject, first + subject + 1, target, note)
        };
        rows.push(beside("", 0, RowTarget::SpeedAtLeast(SHARE), "the limit is the same with --checksum=none; "));
        rows.push(beside(", --checksum=none", 1, RowTarget::Shown, "the limit is the device alone; "));
    }
    Ok(rows)
}
