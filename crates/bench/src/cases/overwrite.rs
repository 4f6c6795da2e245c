//! A durable 4 KiB overwrite in a data log. Limits: the same copy, flush and fence; and the same with the CRC-32C that verified reads
//! require. Then its parts, each measured separately.

use std::hint::black_box;
use std::sync::Arc;

use tandemfs_device::{Device, Drive, PersistenceDomain};
use tandemfs_format::journal::encode;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, LineAddress, PairSeed};
use tandemfs_fs::{FileSystem, WriteOptions};

use crate::arguments::Common;
use crate::failure::{Failure, Result};
use crate::machine::Pinned;
use crate::measure::{Batch, Jumps, interleaved, repeated};
use crate::probe::{Probe, Store};
use crate::report::{Row, RowTarget};
use crate::scene::{self, DeviceShape, MIB, Scene};

const DOMAINS: [PersistenceDomain; 2] = [PersistenceDomain::Gpf, PersistenceDomain::Adr];
const PAGE: usize = 4096;
const PAGES: u64 = 256;
const BATCH: usize = 64;
const OVER_NS: f64 = 1500.0;
const OVER_CHECKSUM_NS: f64 = 1000.0;

const SUBJECTS: usize = 7;
const ENGINE: usize = 0;
const LIMIT: usize = 1;
const CHECKSUM: usize = 2;
const ENCODE: usize = 3;
const RECORD: usize = 4;
const LOOK_UP: usize = 5;
const LIMIT_CHECKSUM: usize = 6;

/// In both persistence domains.
pub fn run(arguments: &Common) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for domain in DOMAINS {
        rows.extend(in_domain(arguments, domain)?);
    }
    Ok(rows)
}

fn in_domain(arguments: &Common, domain: PersistenceDomain) -> Result<Vec<Row>> {
    let scene = Scene::new(arguments)?;
    let device = |name| -> Result<Arc<dyn Device>> {
        let device = match domain.needs_flush() {
            true => scene.pair(name, 64 * MIB, 64 * MIB)?,
            false => scene.device(name, DeviceShape::plain(64 * MIB, 64 * MIB))?,
        };
        Ok(Arc::new(Probe::with_domain(device, domain)))
    };
    let trace = trace(device("traced")?)?;
    let fs = scene::make(device("engine")?, ChecksumKind::Crc32c)?;
    let file = new_file_of_logs(&fs)?;
    let bare = Drive::new(device("bare")?);
    let _pinned = Pinned::new();

    let data = vec![0x5a; PAGE];
    let (mut jumps, pair) = (Jumps::new(7), PairSeed::new(fs.superblock().pair));
    let (mut logs, mut checked_logs) = (trace.logs.iter().cycle(), trace.logs.iter().cycle());
    let mut next_log = move || logs.next().map_or(0, |store| store.offset);
    let mut next_checked_log = move || checked_logs.next().map_or(0, |store| store.offset);
    let addresses: Vec<LineAddress> = (0..trace.record_lines).map(|line| LineAddress::new(line as u64)).collect();
    let images = vec![[7; 64]; trace.record_lines];
    let mut encoded = Vec::new();
    let record = vec![0x33; trace.record_bytes as usize];
    let mut records = trace.records.iter().cycle();
    let mut byte = [0];
    let mut batches: [Batch<'_>; SUBJECTS] = [
        repeated(BATCH, |recorder| {
            let offset = jumps.below(PAGES) * PAGE as u64;
            Ok(recorder.time(ENGINE, || fs.write(file, offset, &data, WriteOptions::default())).map(drop)?)
        }),
        repeated(BATCH, |recorder| {
            let offset = next_checked_log();
            recorder.time(LIMIT_CHECKSUM, || {
                black_box(pair.data(black_box(&data)));
                scene::persist(&bare, offset, &data)
            })
        }),
        repeated(BATCH, |recorder| {
            let offset = next_log();
            recorder.time(LIMIT, || scene::persist(&bare, offset, &data))
        }),
        repeated(BATCH, |recorder| {
            recorder.time(CHECKSUM, || black_box(pair.data(black_box(&data))));
            Ok(())
        }),
        repeated(BATCH, |recorder| {
            recorder.time(ENCODE, || encode(&mut encoded, pair.journal(1, 2, 3), 2, 4, black_box(&addresses), black_box(&images)));
            Ok(())
        }),
        repeated(BATCH, |recorder| {
            let offset = records.next().map_or(0, |store| store.offset);
            recorder.time(RECORD, || scene::persist(&bare, offset, &record))
        }),
        // Reading one byte of a hole takes the locks, the view of the inode and the block look-up, but no data.
        repeated(BATCH, |recorder| Ok(recorder.time(LOOK_UP, || fs.read(file, PAGES * PAGE as u64 + 17, &mut byte)).map(drop)?)),
    ];
    let samples = interleaved(SUBJECTS, arguments.scaled(2000), &mut batches)?;
    drop(batches);
    fs.unmount()?;

    let what = |name: &str| format!("{name} ({domain})");
    let parts: f64 = [CHECKSUM, ENCODE, RECORD, LOOK_UP].iter().map(|part| samples[*part].median_ns()).sum();
    let rest = samples[ENGINE].median_ns() - samples[LIMIT].median_ns() - parts;
    let lines = format!("{} lines in {} B", trace.record_lines, trace.record_bytes);
    Ok(vec![
        Row::beside(what("4 KiB overwrite"), &samples[ENGINE], &samples[LIMIT], RowTarget::OverAtMost(OVER_NS)),
        Row::beside(
            what("4 KiB overwrite, limit with CRC-32C"),
            &samples[ENGINE],
            &samples[LIMIT_CHECKSUM],
            RowTarget::OverAtMost(OVER_CHECKSUM_NS),
        )
        .note("limit: copy, flush, fence and CRC-32C of the same 4 KiB"),
        Row::alone(what("of it: CRC-32C of the data"), &samples[CHECKSUM]),
        Row::alone(what("of it: record encoded, with its CRC"), &samples[ENCODE]).note(lines),
        Row::alone(what("of it: record persisted"), &samples[RECORD]),
        Row::alone(what("of it: index look-up"), &samples[LOOK_UP]).note("a read of one byte in a hole: handle, range lock, radix tree"),
        Row::value(what("of it: the rest"), rest)
            .note("what the other parts leave of the time over the limit: plan, slot, new leaf and inode lines sealed, locks, apply"),
    ])
}

/// A file whose pages are data logs of 4 KiB, followed by a hole.
fn new_file_of_logs(fs: &FileSystem) -> Result<InodeNumber> {
    let file = fs.create(InodeNumber::ROOT, b"overwritten", &scene::new_file())?.inode;
    for page in (0..PAGES).chain([PAGES + 64]) {
        fs.write(file, page * PAGE as u64, &[1; PAGE], WriteOptions::default())?;
    }
    Ok(file)
}

/// The stores of one overwrite.
struct Trace {
    logs: Vec<Store>,
    records: Vec<Store>,
    record_bytes: u64,
    record_lines: usize,
}

fn trace(device: Arc<dyn Device>) -> Result<Trace> {
    let probe = Arc::new(Probe::noting(device));
    let fs = scene::make(probe.clone(), ChecksumKind::Crc32c)?;
    let file = new_file_of_logs(&fs)?;
    fs.checkpoint()?;
    let geometry = fs.superblock().geometry;
    probe.take(&geometry);
    let mut jumps = Jumps::new(7);
    for _ in 0..4096 {
        fs.write(file, jumps.below(PAGES) * PAGE as u64, &[2; PAGE], WriteOptions::default())?;
    }
    let (records, others) = probe.take(&geometry);
    let logs: Vec<Store> = others.into_iter().filter(|store| store.length == PAGE as u64).collect();
    let mut lengths: Vec<u64> = records.iter().map(|store| store.length).collect();
    lengths.sort_unstable();
    let record_bytes = *lengths.get(lengths.len() / 2).ok_or_else(|| Failure::new("an overwrite stored no journal record"))?;
    if logs.is_empty() {
        return Err(Failure::new("an overwrite stored no data log"));
    }
    fs.unmount()?;
    let record_lines = (1..).take_while(|lines| tandemfs_format::journal::record_bytes(*lines) as u64 <= record_bytes).last().unwrap_or(1);
    Ok(Trace { logs, records, record_bytes, record_lines })
}
