//! Durable create, rename and unlink, each compared with persisting one journal record of the same size.

use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::RenameMode;

use crate::arguments::Common;
use crate::failure::Result;
use crate::machine::Pinned;
use crate::measure::{Batch, Recorder, interleaved};
use crate::probe::Probe;
use crate::report::{Row, RowTarget};
use crate::scene::{self, DeviceShape, MIB, Scene};

const BATCH: usize = 64;
const OPERATIONS: [&str; 3] = ["create", "rename", "unlink"];
const OVER_NS: f64 = 3000.0;

/// The three rows.
pub fn run(arguments: &Common) -> Result<Vec<Row>> {
    let scene = Scene::new(arguments)?;
    let shape = DeviceShape::plain(64 * MIB, 64 * MIB);
    let record_bytes = record_bytes(&scene, shape)?;
    let fs = scene::make(scene.device("engine", shape)?, ChecksumKind::Crc32c)?;
    let directory = fs.create(InodeNumber::ROOT, b"directory", &scene::new_directory())?.inode;
    for file in 0..1000 {
        fs.create(directory, format!("other-{file:06}").as_bytes(), &scene::new_file())?;
    }
    let bare = Drive::new(scene.device("bare", shape)?);
    let geometry = fs.superblock().geometry;
    let _pinned = Pinned::new();

    let mut number = 0_u64;
    let engine = |recorder: &mut Recorder| {
        let names: Vec<[String; 2]> =
            (number..).take(BATCH).map(|file| [format!("file-{file:06}"), format!("renamed-{file:06}")]).collect();
        number += BATCH as u64;
        for [name, _] in &names {
            recorder.time(0, || fs.create(directory, name.as_bytes(), &scene::new_file()))?;
        }
        for [from, to] in &names {
            recorder.time(1, || fs.rename(directory, from.as_bytes(), directory, to.as_bytes(), RenameMode::Replace))?;
        }
        for [_, name] in &names {
            recorder.time(2, || fs.unlink(directory, name.as_bytes()))?;
        }
        Ok(())
    };
    let records = record_bytes.map(|bytes| vec![0x33; bytes as usize]);
    let mut at = 0;
    let limit = |recorder: &mut Recorder| {
        for (operation, record) in records.iter().enumerate() {
            for _ in 0..BATCH {
                let offset = geometry.ring(0).offset_bytes() + at;
                recorder.time(3 + operation, || scene::persist(&bare, offset, record))?;
                at = (at + record.len() as u64) % (geometry.ring_bytes() - 4096);
            }
        }
        Ok(())
    };
    let mut batches: [Batch<'_>; 2] = [Box::new(engine), Box::new(limit)];
    let samples = interleaved(6, arguments.scaled(1000), &mut batches)?;
    drop(batches);
    fs.unmount()?;
    let row = |(operation, name): (usize, &&str)| {
        Row::beside(format!("{name}, durable"), &samples[operation], &samples[3 + operation], RowTarget::OverAtMost(OVER_NS))
            .note(format!("a record of {} B", record_bytes[operation]))
    };
    Ok(OPERATIONS.iter().enumerate().map(row).collect())
}

/// Sizes of the records of the three operations.
fn record_bytes(scene: &Scene, shape: DeviceShape) -> Result<[u64; 3]> {
    let probe = std::sync::Arc::new(Probe::noting(scene.device("traced", shape)?));
    let fs = scene::make(probe.clone(), ChecksumKind::Crc32c)?;
    let geometry = fs.superblock().geometry;
    let directory = fs.create(InodeNumber::ROOT, b"directory", &scene::new_directory())?.inode;
    fs.create(directory, b"other", &scene::new_file())?;
    let noted = || probe.take(&geometry).0.iter().map(|store| store.length).sum();
    let _before: u64 = noted();
    fs.create(directory, b"file-000000", &scene::new_file())?;
    let create = noted();
    fs.rename(directory, b"file-000000", directory, b"renamed-000000", RenameMode::Replace)?;
    let rename = noted();
    fs.unlink(directory, b"renamed-000000")?;
    let unlink = noted();
    fs.unmount()?;
    Ok([create, rename, unlink])
}
