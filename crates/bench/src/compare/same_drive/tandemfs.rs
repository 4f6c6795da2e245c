//! What crosses to TandemFS's drive, as its daemon counts it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tandemfs_fuse::{control, mounts};

use crate::compare::record::Traffic;
use crate::failure::{Failure, Result};

const PAGE: u64 = 4096;

/// What crossed on the mount since it was mounted, or since [`begin_tandemfs_traffic`]. Structures are named with their path.
///
/// # Errors
/// No TandemFS is mounted there, or its daemon does not answer.
pub fn tandemfs_traffic(mountpoint: &Path) -> Result<Traffic> {
    traffic(&stats(mountpoint, false)?)
}

/// Counts from nothing on the mount from now on.
///
/// # Errors
/// As [`tandemfs_traffic`].
pub fn begin_tandemfs_traffic(mountpoint: &Path) -> Result<()> {
    stats(mountpoint, true).map(drop)
}

fn stats(mountpoint: &Path, reset: bool) -> Result<Value> {
    let named = |what: String| Failure::new(format!("{}: {what}", mountpoint.display()));
    let mounted = mounts::find(mountpoint).map_err(|error| named(error.to_string()))?;
    let mounted = mounted.ok_or_else(|| named("no TandemFS is mounted there".into()))?;
    control::ask(&mounted, control::Request::Stats { reset }).map_err(|error| named(format!("its daemon does not answer: {error}")))
}

fn traffic(stats: &Value) -> Result<Traffic> {
    let number = |value: &Value, name: &str| {
        value[name].as_u64().ok_or_else(|| Failure::new(format!("the daemon's counters have no '{name}'; it is of another version")))
    };
    let mut by_structure = BTreeMap::new();
    let structures = stats["by_structure"].as_object().ok_or_else(|| Failure::new("the daemon's counters have no 'by_structure'"))?;
    for (name, bytes) in structures {
        for (path, field) in [("byte path", "byte_written_bytes"), ("block path", "block_written_bytes")] {
            let written = number(bytes, field)?;
            if written > 0 {
                by_structure.insert(format!("{path}: {}", name.replace('_', " ")), written);
            }
        }
    }
    let both = |field| Ok::<u64, Failure>(number(&stats["byte_path"], field)? + number(&stats["block_path"], field)?);
    let written_bytes = both("written_bytes")?;
    let sum = by_structure.values().sum::<u64>();
    if sum != written_bytes {
        return Err(Failure::new(format!("the structures of TandemFS come to {sum} B, and {written_bytes} B were written")));
    }
    let flash = &stats["flash"];
    let counts = |group: &Value| group.as_object().is_some_and(|group| group.values().any(|value| value.as_u64() != Some(0)));
    // A drive that counts nothing of itself says zeros.
    let has_flash = counts(flash) || counts(&stats["firmware"]);
    let pages = |name| has_flash.then(|| number(flash, name).map(|pages| pages * PAGE)).transpose();
    Ok(Traffic {
        read_bytes: both("read_bytes")?,
        written_bytes,
        flushes: number(&stats["block_path"], "flushes")?,
        flash_programmed_bytes: pages("pages_programmed")?,
        flash_read_bytes: pages("pages_read")?,
        written_by_structure: by_structure,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said() -> Value {
        json!({
            "byte_path": { "read_bytes": 10, "written_bytes": 300 },
            "block_path": { "read_bytes": 4096, "written_bytes": 8192, "flushes": 3 },
            "firmware": { "commits": 0 },
            "flash": { "pages_programmed": 0, "pages_read": 0 },
            "by_structure": {
                "journal": { "byte_written_bytes": 100, "block_written_bytes": 0 },
                "data_log": { "byte_written_bytes": 200, "block_written_bytes": 0 },
                "data": { "byte_written_bytes": 0, "block_written_bytes": 8192 },
            },
        })
    }

    #[test]
    fn the_daemons_counters_are_traffic() {
        let found = traffic(&said()).expect("traffic");
        assert_eq!((found.read_bytes, found.written_bytes, found.flushes), (4106, 8492, 3));
        assert_eq!((found.flash_programmed_bytes, found.flash_read_bytes), (None, None));
        let expected = [("block path: data", 8192), ("byte path: data log", 200), ("byte path: journal", 100)];
        assert_eq!(found.written_by_structure, expected.map(|(name, bytes)| (name.to_owned(), bytes)).into());
        let mut flash = said();
        flash["firmware"]["commits"] = 5.into();
        flash["flash"]["pages_programmed"] = 2.into();
        let found = traffic(&flash).expect("traffic");
        assert_eq!((found.flash_programmed_bytes, found.flash_read_bytes), (Some(8192), Some(0)));
    }

    #[test]
    fn counters_that_do_not_add_up_are_refused() {
        let mut wrong = said();
        wrong["by_structure"]["journal"]["byte_written_bytes"] = 99.into();
        assert!(traffic(&wrong).expect_err("refused").to_string().contains("8491"));
        assert!(traffic(&json!({})).is_err());
        assert!(tandemfs_traffic(Path::new("/")).expect_err("refused").to_string().contains("no TandemFS"));
    }
}
