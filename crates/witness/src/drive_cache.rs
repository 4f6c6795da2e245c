//! Computes what a drive with a volatile cache may contain after a power failure, from a log of the kernel's dm-log-writes
//! (Documentation/admin-guide/device-mapper/log-writes.rst).
//!
//! [DC1] The target logs writes in the order in which they completed, and a write before the FLUSH that made it durable: the log is written
//!       when a FLUSH completes. Writes that no FLUSH covered are logged when the target is removed. So everything before the log's last
//!       FLUSH is on the flash, and so is every FUA write. (Data of a FLUSH request is written after the FLUSH.)
//! [DC2] Any part of the other writes may be on the flash, torn between sectors of 512 B. A lost write leaves the previous contents of the
//!       sector.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// The last entry of a log whose target was removed.
const END_MARK: &[u8] = b"dm-log-writes-end";
/// Drives tear here, whatever their sectors are ([DC2]).
const TORN_AT: usize = 512;

/// Arguments of `witness drive-cache`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The log device's bytes
    #[arg(long)]
    log: PathBuf,
    /// The drive's bytes before the log began
    #[arg(long)]
    before: PathBuf,
    /// Where to put the drive's bytes after the power failed
    #[arg(long)]
    after: PathBuf,
    /// Which part of its cache is lost: 0 all of it, 1 none, others a random part
    #[arg(long)]
    seed: u64,
}

/// One entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Offset on the drive, in bytes.
    offset: u64,
    /// Length on the drive, in bytes.
    length: u64,
    flags: u64,
    /// Offset of the data in the log, in bytes. Of a mark: of its text.
    data: u64,
    /// Length of a mark's text.
    text_length: u64,
}

/// Statistics of a log's writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Entries of the log.
    pub entries: usize,
    /// FLUSHes among them.
    pub flushes: usize,
    /// Bytes that were written before the last FLUSH, or with FUA.
    pub durable_bytes: u64,
    /// Bytes that were only in the cache.
    pub cached_bytes: u64,
    /// Bytes of those that were lost.
    pub lost_bytes: u64,
}

/// Makes the drive's bytes.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let said = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let log = File::open(&arguments.log).map_err(|error| said(&arguments.log, error))?;
    let entries = entries(&log).map_err(|error| format!("{}: {error}", arguments.log.display()))?;
    fs::copy(&arguments.before, &arguments.after).map_err(|error| said(&arguments.before, error))?;
    let drive = File::options().write(true).open(&arguments.after).map_err(|error| said(&arguments.after, error))?;
    let replayed = replay(&log, &entries, &drive, arguments.seed).map_err(|error| said(&arguments.after, error))?;
    let Replayed { entries, flushes, durable_bytes, cached_bytes, lost_bytes } = replayed;
    Ok(format!(
        "{entries} entries, {flushes} flushes: {durable_bytes} bytes durable, {cached_bytes} in the cache, {lost_bytes} of them lost"
    ))
}

fn words(log: &File, offset: u64) -> io::Result<[u64; 4]> {
    let mut bytes = [0; 32];
    log.read_exact_at(&mut bytes, offset)?;
    Ok(std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|byte| bytes[word * 8 + byte]))))
}

fn entries(log: &File) -> io::Result<Vec<Entry>> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let [magic, version, count, sector_bytes] = words(log, 0)?;
    let sector_bytes = sector_bytes & 0xffff_ffff;
    if magic != MAGIC || version != VERSION || !sector_bytes.is_power_of_two() || !(512..=65_536).contains(&sector_bytes) {
        return Err(wrong(format!("no log of dm-log-writes (magic {magic:#x}, version {version}, sectors of {sector_bytes} B)")));
    }
    let end = log.metadata()?.len();
    let mut entries = Vec::new();
    let mut at = sector_bytes;
    for index in 0..count {
        if at >= end {
            return Err(wrong(format!("entry {index} of {count} is beyond the log's end")));
        }
        let [sector, sectors, flags, text_length] = words(log, at)?;
        let (Some(offset), Some(length)) = (sector.checked_mul(sector_bytes), sectors.checked_mul(sector_bytes)) else {
            return Err(wrong(format!("entry {index}: sector {sector}, {sectors} sectors")));
        };
        let data = if flags & MARK != 0 { at + 32 } else { at + sector_bytes };
        let has_data = flags & (DISCARD | MARK) == 0;
        at = if has_data { data.saturating_add(length) } else { at + sector_bytes };
        if at > end || text_length > sector_bytes {
            return Err(wrong(format!("entry {index}: {length} bytes reach beyond the log's end")));
        }
        entries.push(Entry { offset, length, flags, data, text_length });
    }
    // Without it, writes that no FLUSH covered would be missing, and nothing could be lost ([DC1]).
    let last = entries.last().ok_or_else(|| wrong("it is empty".into()))?;
    let mut text = vec![0; last.text_length as usize];
    log.read_exact_at(&mut text, last.data)?;
    if last.flags & MARK == 0 || text != END_MARK {
        return Err(wrong("it does not end with the target's removal".into()));
    }
    Ok(entries)
}

fn replay(log: &File, entries: &[Entry], drive: &File, seed: u64) -> io::Result<Replayed> {
    let mut random = Rng::with_seed(seed);
    // The lost share of the cache is random too.
    let lost_of_8 = match seed {
        0 => 8,
        1 => 0,
        _ => random.u32(1..8),
    };
    let last_flush = entries.iter().rposition(|entry| entry.flags & FLUSH != 0);
    let mut replayed = Replayed { entries: entries.len(), ..Replayed::default() };
    for (index, entry) in entries.iter().enumerate() {
        replayed.flushes += usize::from(entry.flags & FLUSH != 0);
        // A discarded sector may hold anything until it is written again; its old contents are one possibility.
        if entry.flags & (MARK | DISCARD) != 0 || entry.length == 0 {
            continue;
        }
        let durable = last_flush.is_some_and(|last| index < last) || entry.flags & FUA != 0;
        let mut bytes = vec![0; entry.length as usize];
        log.read_exact_at(&mut bytes, entry.data)?;
        if durable {
            replayed.durable_bytes += entry.length;
            drive.write_all_at(&bytes, entry.offset)?;
            continue;
        }
        replayed.cached_bytes += entry.length;
        for (piece, offset) in bytes.chunks(TORN_AT).zip((entry.offset..).step_by(TORN_AT)) {
            if random.u32(..8) < lost_of_8 {
                replayed.lost_bytes += piece.len() as u64;
            } else {
                drive.write_all_at(piece, offset)?;
            }
        }
    }
    Ok(replayed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: usize = 512;

    fn log_of(entries: &[(u64, u64, u64, u8)], ended: bool) -> Vec<u8> {
        let mut log = vec![0; SECTOR];
        let mut count = 0;
        let mut add = |sector: u64, sectors: u64, flags: u64, text: &[u8], fill: u8| {
            let mut head: Vec<u8> = [sector, sectors, flags, text.len() as u64].into_iter().flat_map(u64::to_le_bytes).collect();
            head.extend(text);
            head.resize(SECTOR, 0);
            log.extend(head);
            if flags & (DISCARD | MARK) == 0 {
                log.extend(vec![fill; sectors as usize * SECTOR]);
            }
            count += 1;
        };
        for (sector, sectors, flags, fill) in entries {
            add(*sector, *sectors, *flags, b"", *fill);
        }
        if ended {
            add(0, 0, MARK, END_MARK, 0);
        }
        let head: Vec<u8> = [MAGIC, VERSION, count, SECTOR as u64].into_iter().flat_map(u64::to_le_bytes).collect();
        log[..32].copy_from_slice(&head);
        log
    }

    fn file_of(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(bytes, 0).expect("written");
        file
    }

    #[test]
    fn flushed_and_fua_writes_stay_and_cached_ones_are_lost_in_parts() {
        let log =
            file_of(&log_of(&[(0, 8, 0, 1), (8, 8, 0, 2), (4, 4, DISCARD, 0), (0, 0, FLUSH, 0), (16, 8, FUA, 3), (0, 16, 0, 4)], true));
        let entries = entries(&log).expect("a log");
        assert_eq!(entries.len(), 7);
        let drive_after = |seed| {
            let drive = file_of(&[9; 32 * SECTOR]);
            let replayed = replay(&log, &entries, &drive, seed).expect("replayed");
            assert_eq!((replayed.entries, replayed.flushes, replayed.durable_bytes, replayed.cached_bytes), (7, 1, 24 * 512, 16 * 512));
            let mut bytes = vec![0; 32 * SECTOR];
            drive.read_exact_at(&mut bytes, 0).expect("read");
            let sectors: Vec<u8> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
            (sectors, replayed.lost_bytes)
        };
        let all_lost = [[1; 8], [2; 8], [3; 8], [9; 8]].concat();
        let none_lost = [[4; 8], [4; 8], [3; 8], [9; 8]].concat();
        assert_eq!(drive_after(0), (all_lost.clone(), 16 * 512));
        assert_eq!(drive_after(1), (none_lost.clone(), 0));
        let mut partly = 0;
        for seed in 2..40 {
            let (sectors, lost_bytes) = drive_after(seed);
            assert_eq!(lost_bytes, 512 * sectors[..16].iter().filter(|sector| **sector != 4).count() as u64);
            assert!(sectors.iter().zip(&all_lost).zip(&none_lost).all(|((sector, lost), kept)| sector == lost || sector == kept));
            partly += usize::from(lost_bytes > 0 && lost_bytes < 16 * 512);
        }
        assert!(partly > 30, "torn inside requests: {partly}");
    }

    #[test]
    fn what_is_no_whole_log_is_refused() {
        let whole = log_of(&[(0, 8, FLUSH, 1)], true);
        let error = |bytes: &[u8]| entries(&file_of(bytes)).expect_err("refused").to_string();
        assert!(error(&log_of(&[(0, 8, FLUSH, 1)], false)).contains("removal"));
        assert!(error(&log_of(&[], false)).contains("empty"));
        assert!(error(&whole[..SECTOR * 3]).contains("beyond the log's end"));
        let mut foreign = whole.clone();
        foreign[0] ^= 1;
        assert!(error(&foreign).contains("no log"));
        let mut endless = whole;
        endless[SECTOR + 8..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(error(&endless).contains("entry 0"));
    }
}
