//! Many files in one directory and in 1,000: the time of a creation at the end beside that at the start.

use std::time::Duration;
use std::time::Instant;

use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::FileSystem;

use crate::arguments::Arguments;
use crate::failure::Result;
use crate::machine::{self, Pinned};
use crate::measure::Samples;
use crate::report::{Reach, Row};
use crate::scene::{self, DeviceShape, MIB, Scene};

const DIRECTORIES: usize = 1000;
const RATIO: f64 = 1.3;

/// Memory zone that holds `files` files.
pub fn memory_bytes(files: usize) -> u64 {
    (64 + files as u64 / 1000) * MIB
}

/// Makes the directories of a tree of many files.
pub fn make_directories(fs: &FileSystem, count: usize) -> Result<Vec<InodeNumber>> {
    if count == 1 {
        return Ok(vec![InodeNumber::ROOT]);
    }
    let make = |number| -> Result<InodeNumber> {
        Ok(fs.create(InodeNumber::ROOT, format!("directory-{number:04}").as_bytes(), &scene::new_directory())?.inode)
    };
    (0..count).map(make).collect()
}

/// Creates files round the directories and hands over the time of each.
pub fn fill(fs: &FileSystem, directories: &[InodeNumber], files: usize, mut took: impl FnMut(usize, Duration)) -> Result<()> {
    let new = scene::new_file();
    for file in 0..files {
        if file % 1024 == 0 {
            machine::check()?;
        }
        let name = format!("file-{file:07}");
        let start = Instant::now();
        fs.create(directories[file % directories.len()], name.as_bytes(), &new)?;
        took(file, start.elapsed());
    }
    Ok(())
}

/// Both trees.
pub fn run(arguments: &Arguments) -> Result<Vec<Row>> {
    let files = arguments.scaled(1_000_000);
    let mut rows = Vec::new();
    for (directories, name) in [(1, "one directory"), (DIRECTORIES, "1,000 directories")] {
        let scene = Scene::new(arguments)?;
        let fs = scene::make(scene.device("engine", DeviceShape::plain(memory_bytes(files), 64 * MIB))?, ChecksumKind::Crc32c)?;
        let _pinned = Pinned::new();
        let parents = make_directories(&fs, directories)?;
        let (mut start, mut end) = (Samples::new(), Samples::new());
        let window = files / 20;
        fill(&fs, &parents, files, |file, time| {
            if file < window {
                start.add(time);
            } else if file >= files - window {
                end.add(time);
            }
        })?;
        fs.unmount()?;
        let title = format!("{} files in {name}", if files == 1_000_000 { "1 M".to_owned() } else { files.to_string() });
        let means = Row {
            median: end.mean_ns(),
            p99: None,
            limit: Some((start.mean_ns(), None)),
            ..Row::beside(format!("{title}, mean"), &end, &start, Reach::RatioAtMost(RATIO))
        };
        rows.push(Row::beside(format!("{title}, last 5 %"), &end, &start, Reach::RatioAtMost(RATIO)).note("the limit is the first 5 %"));
        rows.push(means.note("mean time of the last and first 5 %, checkpoints included"));
    }
    Ok(rows)
}
