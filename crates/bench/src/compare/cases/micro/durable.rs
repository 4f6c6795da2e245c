//! Operations that are each made durable: an overwrite, an append, a new file, a rename.
//!
//! Through a mount an operation ends with fsync; in the library it is durable on return.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, WriteOptions};

use super::{KIB, LAYOUT_BYTES, MIB, lay_out, wrong};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::compare::cases::clients::{scaled, share, timed};
use crate::compare::peer::Peer;
use crate::failure::{Failure, Result};
use crate::measure::Samples;
use crate::scene;
use crate::workloads::content;
use crate::workloads::random::Random;

const CLIENTS: [u32; 4] = [1, 2, 4, 16];
const OPERATIONS: u64 = 4000;
/// Factor for operations in the library: they take a microsecond or two, and some clients would finish before all have started.
const LIBRARY_TIMES: u64 = 10;
const PAGE: u64 = 4 * KIB;
const FILE_BYTES: u64 = 64 * MIB;
/// Content keys of written data start here; lower keys are those of the initial content.
const WRITTEN: u64 = 1 << 32;

/// The cases of this file.
pub fn cases() -> Cases {
    let kinds = [Kind::Overwrite, Kind::Append, Kind::Create, Kind::Rename];
    kinds.into_iter().flat_map(|kind| CLIENTS.map(|clients| Box::new(Durable { kind, clients }) as Box<dyn Case>)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Overwrite,
    Append,
    Create,
    Rename,
}

struct Durable {
    kind: Kind,
    clients: u32,
}

impl Case for Durable {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Overwrite => "durable-overwrite-4k",
            Kind::Append => "append-fsync-4k",
            Kind::Create => "create-write-fsync-4k",
            Kind::Rename => "rename-fsync",
        };
        format!("{kind}-c{}", self.clients)
    }

    fn group(&self) -> Group {
        Group::Micro
    }

    fn description(&self) -> String {
        let what = match self.kind {
            Kind::Overwrite => "overwrites of random 4 KiB pages of 64 MiB, each with fsync",
            Kind::Append => "appends of 4 KiB, each with fsync",
            Kind::Create => "new files of 4 KiB, each with fsync and close",
            Kind::Rename => "renames, each with fsync of the directory",
        };
        let clients = if self.clients == 1 { "one client".to_owned() } else { format!("{} clients", self.clients) };
        format!("{OPERATIONS} {what}, {LIBRARY_TIMES} times as many as a library; {clients}")
    }

    fn clients(&self) -> u32 {
        self.clients
    }

    fn applies_to(&self, peer: Peer) -> bool {
        peer != Peer::TandemfsLibrary || self.kind != Kind::Rename
    }

    fn share_least(&self) -> f64 {
        1.0
    }

    fn is_quick(&self) -> bool {
        self.clients == 1 && self.kind != Kind::Rename
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        FILE_BYTES * 4
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let count = share(scaled(OPERATIONS, stage.scale, u64::from(self.clients)), self.clients);
        let count = if stage.library.is_some() { count * LIBRARY_TIMES } else { count };
        let samples = match (self.kind, stage.library) {
            (Kind::Overwrite, None) => self.overwrite(stage, count)?,
            (Kind::Append, None) => self.append(stage, count)?,
            (Kind::Create, None) => self.create(stage, count)?,
            (Kind::Rename, None) => self.rename(stage, count)?,
            (Kind::Overwrite, Some(fs)) => self.overwrite_as_library(stage, fs, count)?,
            (Kind::Append, Some(fs)) => self.append_as_library(stage, fs, count)?,
            (Kind::Create, Some(fs)) => self.create_as_library(stage, fs, count)?,
            (Kind::Rename, Some(_)) => return Err(Failure::new("renames have no form for the library")),
        };
        let units = (count * u64::from(self.clients)) as f64;
        Ok(Outcome { units, unit: "operations", latencies: Some(samples), own_time: None })
    }
}

impl Durable {
    fn file_bytes(&self) -> u64 {
        FILE_BYTES / u64::from(self.clients)
    }

    fn clients_of<C>(&self, make: impl FnMut(u64) -> Result<C>) -> Result<Vec<C>> {
        (0..u64::from(self.clients)).map(make).collect()
    }

    fn overwrite(&self, stage: &mut Stage<'_>, count: u64) -> Result<Samples> {
        let (directory, seed) = (stage.directory, stage.seed);
        let mut clients = self.clients_of(|client| {
            let file = lay_out(&directory.join(format!("file-{client}")), client, self.file_bytes())?;
            Ok((file, Overwriter::new(seed, client, self.file_bytes())))
        })?;
        let samples = timed(stage, &mut clients, |(file, overwriter), watch| {
            for operation in 0..count {
                let (offset, page) = overwriter.next(operation);
                watch.time(|| {
                    file.write_all_at(page, offset)?;
                    Ok(file.sync_data()?)
                })?;
            }
            Ok(())
        })?;
        for (file, overwriter) in &clients {
            overwriter.verify(&self.name(), |offset, into| Ok(file.read_exact_at(into, offset)?))?;
        }
        Ok(samples)
    }

    fn overwrite_as_library(&self, stage: &mut Stage<'_>, fs: &FileSystem, count: u64) -> Result<Samples> {
        let seed = stage.seed;
        let mut clients = self.clients_of(|client| {
            let inode = fs.create(InodeNumber::ROOT, format!("file-{client}").as_bytes(), &scene::new_file())?.inode;
            let mut buffer = vec![0; LAYOUT_BYTES];
            for offset in (0..self.file_bytes()).step_by(LAYOUT_BYTES) {
                content::fill(client, offset, &mut buffer);
                write(fs, inode, offset, &buffer, WriteOptions::default())?;
            }
            Ok((inode, Overwriter::new(seed, client, self.file_bytes())))
        })?;
        let samples = timed(stage, &mut clients, |(inode, overwriter), watch| {
            for operation in 0..count {
                let (offset, page) = overwriter.next(operation);
                watch.time(|| write(fs, *inode, offset, page, WriteOptions::default()))?;
            }
            Ok(())
        })?;
        for (inode, overwriter) in &clients {
            overwriter.verify(&self.name(), |offset, into| Ok(fs.read(*inode, offset, into).map(drop)?))?;
        }
        Ok(samples)
    }

    fn append(&self, stage: &mut Stage<'_>, count: u64) -> Result<Samples> {
        let directory = stage.directory;
        let mut clients = self.clients_of(|client| {
            let path = directory.join(format!("log-{client}"));
            Ok((client, File::options().read(true).append(true).create_new(true).open(path)?))
        })?;
        let samples = timed(stage, &mut clients, |(client, file), watch| {
            let mut page = vec![0; PAGE as usize];
            for operation in 0..count {
                content::fill(WRITTEN + *client, operation * PAGE, &mut page);
                watch.time(|| {
                    std::io::Write::write_all(file, &page)?;
                    Ok(file.sync_data()?)
                })?;
            }
            Ok(())
        })?;
        for (client, file) in &clients {
            let mut page = vec![0; PAGE as usize];
            let last = (count - 1) * PAGE;
            file.read_exact_at(&mut page, last)?;
            if file.metadata()?.len() != count * PAGE || !content::is(WRITTEN + client, last, &page) {
                return Err(wrong(&self.name(), last));
            }
        }
        Ok(samples)
    }

    fn append_as_library(&self, stage: &mut Stage<'_>, fs: &FileSystem, count: u64) -> Result<Samples> {
        let mut clients = self.clients_of(|client| {
            Ok((client, fs.create(InodeNumber::ROOT, format!("log-{client}").as_bytes(), &scene::new_file())?.inode))
        })?;
        let samples = timed(stage, &mut clients, |(client, inode), watch| {
            let mut page = vec![0; PAGE as usize];
            for operation in 0..count {
                content::fill(WRITTEN + *client, operation * PAGE, &mut page);
                watch.time(|| write(fs, *inode, 0, &page, WriteOptions { append: true, ..WriteOptions::default() }))?;
            }
            Ok(())
        })?;
        for (client, inode) in &clients {
            let mut page = vec![0; PAGE as usize];
            let last = (count - 1) * PAGE;
            fs.read(*inode, last, &mut page)?;
            if fs.attributes(*inode)?.size != count * PAGE || !content::is(WRITTEN + client, last, &page) {
                return Err(wrong(&self.name(), last));
            }
        }
        Ok(samples)
    }

    fn create(&self, stage: &mut Stage<'_>, count: u64) -> Result<Samples> {
        let mut clients = self.directories(stage.directory)?;
        let samples = timed(stage, &mut clients, |(client, directory), watch| {
            let mut page = vec![0; PAGE as usize];
            for operation in 0..count {
                content::fill(WRITTEN + *client, operation * PAGE, &mut page);
                let path = directory.join(format!("message-{operation:06}"));
                watch.time(|| {
                    let file = File::create_new(&path)?;
                    file.write_all_at(&page, 0)?;
                    Ok(file.sync_all()?)
                })?;
            }
            Ok(())
        })?;
        for (client, directory) in &clients {
            let last = count - 1;
            let found = fs::read(directory.join(format!("message-{last:06}")))?;
            if found.len() as u64 != PAGE || !content::is(WRITTEN + client, last * PAGE, &found) {
                return Err(wrong(&self.name(), 0));
            }
        }
        Ok(samples)
    }

    fn create_as_library(&self, stage: &mut Stage<'_>, fs: &FileSystem, count: u64) -> Result<Samples> {
        let mut clients = self.clients_of(|client| {
            let name = format!("directory-{client}");
            Ok((client, fs.create(InodeNumber::ROOT, name.as_bytes(), &scene::new_directory())?.inode))
        })?;
        timed(stage, &mut clients, |(client, directory), watch| {
            let mut page = vec![0; PAGE as usize];
            for operation in 0..count {
                content::fill(WRITTEN + *client, operation * PAGE, &mut page);
                let name = format!("message-{operation:06}");
                watch.time(|| {
                    let inode = fs.create(*directory, name.as_bytes(), &scene::new_file())?.inode;
                    write(fs, inode, 0, &page, WriteOptions::default())
                })?;
            }
            Ok(())
        })
    }

    fn rename(&self, stage: &mut Stage<'_>, count: u64) -> Result<Samples> {
        let mut clients = self.directories(stage.directory)?;
        for (_, directory) in &clients {
            File::create_new(directory.join("name-000000"))?.sync_all()?;
        }
        let samples = timed(stage, &mut clients, |(_, directory), watch| {
            let opened = File::open(&*directory)?;
            for operation in 0..count {
                let [from, to] = [operation, operation + 1].map(|number| directory.join(format!("name-{number:06}")));
                watch.time(|| {
                    fs::rename(&from, &to)?;
                    Ok(opened.sync_all()?)
                })?;
            }
            Ok(())
        })?;
        for (_, directory) in &clients {
            fs::metadata(directory.join(format!("name-{count:06}")))?;
        }
        Ok(samples)
    }

    fn directories(&self, below: &Path) -> Result<Vec<(u64, PathBuf)>> {
        self.clients_of(|client| {
            let path = below.join(format!("directory-{client}"));
            fs::create_dir(&path)?;
            File::open(&path)?.sync_all()?;
            Ok((client, path))
        })
    }
}

fn write(fs: &FileSystem, inode: InodeNumber, offset: u64, bytes: &[u8], options: WriteOptions) -> Result<()> {
    match fs.write(inode, offset, bytes, options)? == bytes.len() {
        true => Ok(()),
        false => Err(Failure::new("a short write: a zone is full")),
    }
}

/// Chooses pages of a file and remembers the last write to each.
struct Overwriter {
    random: Random,
    key: u64,
    pages: u64,
    page: Vec<u8>,
    last: HashMap<u64, u64>,
}

impl Overwriter {
    fn new(seed: u64, client: u64, bytes: u64) -> Self {
        let key = WRITTEN + (client << 24);
        Self { random: Random::new(seed, client), key, pages: bytes / PAGE, page: vec![0; PAGE as usize], last: HashMap::new() }
    }

    fn next(&mut self, operation: u64) -> (u64, &[u8]) {
        let offset = self.random.below(self.pages) * PAGE;
        self.last.insert(offset, operation);
        content::fill(self.key + operation, offset, &mut self.page);
        (offset, &self.page)
    }

    fn verify(&self, case: &str, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let mut found = vec![0; PAGE as usize];
        for (offset, operation) in &self.last {
            read(*offset, &mut found)?;
            if !content::is(self.key + operation, *offset, &found) {
                return Err(wrong(case, *offset));
            }
        }
        Ok(())
    }
}
