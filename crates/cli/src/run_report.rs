//! The counters of `tandemfs run --report`: a file in memory that the processes of a command map. It names its rows and columns itself
//! (`crates/preload/src/report.rs`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::MemfdFlags;

const MAGIC: &[u8; 8] = b"TFSRUNS\0";
const HEAD_BYTES: usize = 16;
const CALL_BYTES: usize = 24;
const WAY_BYTES: usize = 64;
/// More than any library has.
const NAMES_MAX: usize = 1024;

/// The file.
pub struct Report {
    file: File,
}

/// A row that is not zero.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    call: String,
    way: String,
    count: u64,
}

impl Report {
    /// A new one, of no length: the first process makes it grow.
    pub fn new() -> io::Result<Self> {
        let file: OwnedFd = rustix::fs::memfd_create("tandemfs-run", MemfdFlags::CLOEXEC)?;
        Ok(Self { file: file.into() })
    }

    /// How processes of the same user open it while this one runs.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Prints the rows on standard error, which the program's output does not go to.
    pub fn print(&self) {
        let rows = self.rows();
        if rows.is_empty() {
            eprintln!("tandemfs: no call on the mount that the door could have served");
        }
        let width = rows.iter().map(|row| row.call.len()).max().unwrap_or(0);
        for Row { call, way, count } in rows {
            eprintln!("tandemfs: {call:width$} {count:>10}  {way}");
        }
    }

    fn rows(&self) -> Vec<Row> {
        let length = self.file.metadata().map_or(0, |found| found.len());
        let mut bytes = vec![0; length.min(1 << 24) as usize];
        if self.file.read_exact_at(&mut bytes, 0).is_err() {
            return Vec::new();
        }
        rows(&bytes).unwrap_or_default()
    }
}

fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The rows of a file; none if it is cut or of another kind.
fn rows(bytes: &[u8]) -> Option<Vec<Row>> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(|word| u32::from_le_bytes(word) as usize);
    let (calls, ways) = (word(8)?, word(12)?);
    if !bytes.starts_with(MAGIC) || calls > NAMES_MAX || ways > NAMES_MAX {
        return None;
    }
    let ways_at = HEAD_BYTES + calls * CALL_BYTES;
    let counters_at = (ways_at + ways * WAY_BYTES).next_multiple_of(8);
    let counters = bytes.get(counters_at..counters_at + 8 * calls * ways)?;
    let names = |at: usize, count: usize, length: usize| bytes[at..at + count * length].chunks(length).map(name).collect::<Vec<_>>();
    let (calls, ways) = (names(HEAD_BYTES, calls, CALL_BYTES), names(ways_at, ways, WAY_BYTES));
    let counts = counters.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let pairs = calls.iter().flat_map(|call| ways.iter().map(move |way| (call, way)));
    let rows = pairs.zip(counts).filter(|(_, count)| *count > 0);
    Some(rows.map(|((call, way), count)| Row { call: call.clone(), way: way.clone(), count }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_the_file() {
        let mut file = MAGIC.to_vec();
        file.extend([2_u32, 1].map(u32::to_le_bytes).concat());
        for (text, bytes) in [("stat", CALL_BYTES), ("unlink", CALL_BYTES), ("door", WAY_BYTES)] {
            file.extend(text.bytes().chain(std::iter::repeat(0)).take(bytes));
        }
        file.extend([0_u64, 7].map(u64::to_le_bytes).concat());
        assert_eq!(rows(&file), Some(vec![Row { call: "unlink".into(), way: "door".into(), count: 7 }]));
        assert_eq!((rows(&file[..file.len() - 1]), rows(b""), rows(&[9; 200])), (None, None, None));
    }
}
