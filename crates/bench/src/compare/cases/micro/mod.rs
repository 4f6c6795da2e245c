//! Single operations: durable ones, reads, and namespace operations.
//!
//! [MI1] The number of operations is the same for all file systems and any number of clients, who share them.
//! [MI2] Each client has its own file or directory; random choices follow from the round's seed and the client.
//! [MI3] Written data is read back after the measured part where that can detect errors.

mod durable;
mod namespace;
mod reads;
mod sequential;
mod unaligned;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::compare::case::Cases;
use crate::failure::{Failure, Result};
use crate::workloads::content;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Size of the writes that create initial files.
const LAYOUT_BYTES: usize = MIB as usize;

/// The cases of these files.
pub fn cases() -> Cases {
    [durable::cases(), unaligned::cases(), reads::cases(), sequential::cases(), namespace::cases()].into_iter().flatten().collect()
}

/// Creates a durable file with the content of a key.
fn lay_out(path: &Path, key: u64, bytes: u64) -> Result<File> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    let mut buffer = vec![0; LAYOUT_BYTES.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let piece = buffer.len().min((bytes - offset) as usize);
        content::fill(key, offset, &mut buffer[..piece]);
        file.write_all_at(&buffer[..piece], offset)?;
        offset += piece as u64;
    }
    file.sync_all()?;
    Ok(file)
}

/// The error for wrong content read back ([MI3]).
fn wrong(case: &str, offset: u64) -> Failure {
    Failure::new(format!("{case}: what was read at offset {offset} is not what was written there"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_once;
    use crate::compare::peer::Peer;

    #[test]
    fn every_case_measures_once_and_counts_what_it_did() {
        for case in cases() {
            let (outcome, clock) = run_once(&*case, 0.002).unwrap_or_else(|failure| panic!("{}: {failure}", case.name()));
            assert_eq!((clock.begun, clock.ended), (1, 1), "{}", case.name());
            assert_eq!(clock.cold > 0, case.name().contains("-cold"), "{}", case.name());
            assert!(outcome.units >= 1.0, "{}", case.name());
            if let Some(latencies) = outcome.latencies {
                let counted = if outcome.unit == "bytes" { outcome.units / MIB as f64 } else { outcome.units };
                assert_eq!(latencies.count() as f64, counted, "{}", case.name());
            }
        }
    }

    #[test]
    fn the_library_takes_part_in_what_is_made_durable() {
        let library: Vec<String> = cases().iter().filter(|case| case.applies_to(Peer::TandemfsLibrary)).map(|case| case.name()).collect();
        assert!(library.iter().any(|name| name.starts_with("durable-overwrite-4k")), "{library:?}");
        assert!(library.iter().any(|name| name.starts_with("append-fsync")), "{library:?}");
        assert!(library.iter().any(|name| name.starts_with("create-write-fsync")), "{library:?}");
    }
}
