//! Operations through a TandemFS mount, compared with one of the same FUSE crate that keeps everything in memory. Both are mounted at once.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, CWD, Mode as Permissions, OFlags, StatxFlags, open, statx, unlink};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::FileSystem;
use tandemfs_fuse::{Mode, MountSettings, Unmount};

use crate::arguments::Common;
use crate::failure::{Failure, Result};
use crate::measure::{Batch, Jumps, Recorder, interleaved};
use crate::null_fs;
use crate::report::{Row, RowTarget};
use crate::scene::{self, DeviceShape, MIB, Scene};

const BATCH: usize = 32;
const PAGES: u64 = 64;
const RATIO: f64 = 1.25;
const OPERATIONS: [&str; 6] = ["getattr", "create", "unlink", "4 KiB write", "fsync", "4 KiB write + fsync"];
const GETATTR: usize = 0;
const CREATE: usize = 1;
const UNLINK: usize = 2;
const WRITE: usize = 3;
const FSYNC: usize = 4;
const WRITE_FSYNC: usize = 5;

/// Runs both modes.
pub fn run(arguments: &Common) -> Result<Vec<Row>> {
    let mut rows = in_mode(arguments, Mode::Strict)?;
    rows.extend(in_mode(arguments, Mode::Relaxed)?);
    Ok(rows)
}

fn in_mode(arguments: &Common, mode: Mode) -> Result<Vec<Row>> {
    let scene = Scene::new(arguments)?;
    let settings = MountSettings { mode, ..MountSettings::default() };
    let fs = scene::make(scene.device("engine", DeviceShape::plain(64 * MIB, 64 * MIB))?, ChecksumKind::Crc32c)?;
    let [engine, null] = ["engine-mount", "null-mount"].map(|name| scene.path(name));
    fs::create_dir(&engine)?;
    fs::create_dir(&null)?;
    let _null = null_fs::mount(&null, &settings)?;
    let mounted = EngineMount::new(fs.clone(), engine.clone(), settings)?;

    let mut subjects = [Subject::new(&engine)?, Subject::new(&null)?];
    let mut batches: Vec<Batch<'_>> = Vec::new();
    for (index, subject) in subjects.iter_mut().enumerate() {
        batches.push(Box::new(move |recorder| subject.batch(recorder, index * OPERATIONS.len())));
    }
    let samples = interleaved(2 * OPERATIONS.len(), arguments.scaled(300), &mut batches)?;
    drop(batches);
    drop(subjects); // What is open on a mount keeps it.
    // A call answered from the kernel's cache does not measure the file system. In relaxed mode writes reach it at fsync.
    let calls = (arguments.scaled(300) * BATCH) as u64;
    let operations = fs.statistics().operations;
    let reached =
        [("getattr", operations.getattr), ("create", operations.create), ("unlink", operations.unlink), ("write", operations.write)];
    if let Some((name, count)) = reached.into_iter().find(|(_, count)| *count < calls) {
        return Err(Failure::new(format!("only {count} of {calls} {name} calls reached the file system; this is a bug of the benchmark")));
    }
    drop(mounted);
    let row = |(operation, name): (usize, &&str)| {
        let target = if operation == UNLINK || operation == WRITE_FSYNC { RowTarget::Shown } else { RowTarget::RatioAtMost(RATIO) };
        let limit = &samples[OPERATIONS.len() + operation];
        Row::beside(format!("FUSE {name}, {}", mode.name()), &samples[operation], limit, target)
    };
    Ok(OPERATIONS.iter().enumerate().map(row).collect())
}

/// The calls of one mount.
struct Subject {
    directory: PathBuf,
    watched: CString,
    file: File,
    created: u64,
    jumps: Jumps,
}

impl Subject {
    fn new(directory: &Path) -> Result<Self> {
        let path = directory.join("file");
        let file = File::create_new(&path)?;
        let page = vec![1; 4096];
        for number in 0..PAGES {
            file.write_all_at(&page, number * 4096)?;
        }
        file.sync_all()?;
        let watched = CString::new(path.as_os_str().as_bytes())?;
        Ok(Self { directory: directory.to_owned(), watched, file, created: 0, jumps: Jumps::new(11) })
    }

    fn batch(&mut self, recorder: &mut Recorder, first: usize) -> Result<()> {
        for _ in 0..BATCH {
            // The kernel caches attributes; this flag forces a request to the file system.
            recorder.time(first + GETATTR, || statx(CWD, self.watched.as_c_str(), AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS))?;
        }
        let names: Vec<CString> = (self.created..)
            .take(BATCH)
            .map(|number| CString::new(self.directory.join(format!("new-{number:08}")).as_os_str().as_bytes()))
            .collect::<std::result::Result<_, _>>()?;
        self.created += BATCH as u64;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        for name in &names {
            drop(recorder.time(first + CREATE, || open(name.as_c_str(), flags, Permissions::from_raw_mode(0o644)))?);
        }
        for name in &names {
            recorder.time(first + UNLINK, || unlink(name.as_c_str()))?;
        }
        let page = [self.created as u8; 4096];
        for _ in 0..BATCH {
            let offset = self.jumps.below(PAGES) * 4096;
            recorder.time(first + WRITE, || self.file.write_all_at(&page, offset))?;
            recorder.time(first + FSYNC, || self.file.sync_all())?;
        }
        for _ in 0..BATCH {
            let offset = self.jumps.below(PAGES) * 4096;
            recorder.time(first + WRITE_FSYNC, || self.file.write_all_at(&page, offset).and_then(|()| self.file.sync_all()))?;
        }
        Ok(())
    }
}

/// A mounted TandemFS; unmounted when dropped.
struct EngineMount {
    mountpoint: PathBuf,
    fs: Arc<FileSystem>,
    serving: Option<JoinHandle<std::result::Result<(), tandemfs_fuse::MountError>>>,
}

impl EngineMount {
    fn new(fs: Arc<FileSystem>, mountpoint: PathBuf, settings: MountSettings) -> Result<Self> {
        let (ready, is_ready) = mpsc::channel();
        let serving = std::thread::spawn({
            let (fs, mountpoint) = (fs.clone(), mountpoint.clone());
            move || {
                tandemfs_fuse::serve(&fs, &mountpoint, &settings, move || {
                    let _nobody_waits_any_more = ready.send(());
                })
            }
        });
        match is_ready.recv() {
            Ok(()) => Ok(Self { mountpoint, fs, serving: Some(serving) }),
            Err(_) => match serving.join() {
                Ok(Err(error)) => Err(error.into()),
                _ => Err(Failure::new("the mount ended before it answered")),
            },
        }
    }
}

impl Drop for EngineMount {
    fn drop(&mut self) {
        if let Err(error) = tandemfs_fuse::unmount(&self.mountpoint, Unmount::Normal) {
            // Detach the mount from the tree. Its threads serve until the last file is closed; waiting for that could take for ever.
            eprintln!("tandemfs-bench: {error}");
            let _it_was_said = tandemfs_fuse::unmount(&self.mountpoint, Unmount::Lazy);
            return;
        }
        if let Some(serving) = self.serving.take() {
            let _ended = serving.join();
        }
        if let Err(error) = self.fs.unmount() {
            eprintln!("tandemfs-bench: {error}");
        }
    }
}
