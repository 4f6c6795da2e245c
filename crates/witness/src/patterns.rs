//! A known pattern in one large file, and the cost of fsync.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::plan::{Piece, content};

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
/// Pages of the file whose fsyncs are timed.
const PAGES: u64 = 256;

fn pieces(bytes: u64) -> impl Iterator<Item = Piece> {
    (0..bytes.div_ceil(MIB)).map(move |index| Piece {
        offset: (index * MIB) as usize,
        length: MIB.min(bytes - index * MIB) as usize,
        seed: index + 7,
    })
}

fn said(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Writes the pattern by requests of 1 MiB, then fsync.
pub fn fill(path: &Path, bytes: u64) -> Result<(), String> {
    let file = File::create(path).map_err(said(path))?;
    for piece in pieces(bytes) {
        file.write_all_at(&content(&piece), piece.offset as u64).map_err(said(path))?;
    }
    file.sync_all().map_err(said(path))
}

/// Reads it back.
pub fn compare(path: &Path, bytes: u64) -> Result<(), String> {
    let file = File::open(path).map_err(said(path))?;
    let mut found = vec![0; MIB as usize];
    for piece in pieces(bytes) {
        file.read_exact_at(&mut found[..piece.length], piece.offset as u64).map_err(said(path))?;
        if found[..piece.length] != content(&piece) {
            return Err(format!("{}: the MiB at {} is not what was written", path.display(), piece.offset));
        }
    }
    Ok(())
}

/// 4 KiB overwrites, each with fsync: the medians of write and of fsync, and the 99th percentile of both together.
pub fn time_fsync(path: &Path, count: usize) -> Result<[Duration; 3], String> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(said(path))?;
    let page = |index: u64| content(&Piece { offset: 0, length: PAGE, seed: index });
    for index in 0..PAGES {
        file.write_all_at(&page(0), index * PAGE as u64).map_err(said(path))?;
    }
    file.sync_all().map_err(said(path))?;
    let (mut writes, mut fsyncs, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..count.max(1) as u64 {
        let bytes = page(index);
        let start = Instant::now();
        file.write_all_at(&bytes, index * 37 % PAGES * PAGE as u64).map_err(said(path))?;
        let written = start.elapsed();
        file.sync_all().map_err(said(path))?;
        let done = start.elapsed();
        writes.push(written);
        fsyncs.push(done - written);
        both.push(done);
    }
    let at = |times: &mut Vec<Duration>, percent: usize| {
        times.sort_unstable();
        times[times.len() * percent / 100]
    };
    Ok([at(&mut writes, 50), at(&mut fsyncs, 50), at(&mut both, 99)])
}
