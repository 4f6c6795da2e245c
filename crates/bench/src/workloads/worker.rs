//! A worker: one thread of a load, one call at a time ([WO1], [WO2]).
//!
//! [WO1]: super
//! [WO2]: super

use std::collections::HashMap;

use super::content;
use super::load::{Load, Step};
use super::random::Random;
use super::target::{Handle, Target};
use crate::failure::{Failure, Result};

/// An existing file of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    number: u64,
    key: u64,
    size: u64,
}

/// Totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Calls, by [`Step`].
    pub calls: [u64; Step::COUNT],
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Loops that were completed.
    pub loops: u64,
}

impl Done {
    /// Calls without closes, which ask nothing of a file system: Filebench's operations without its `closefile`.
    pub fn operations(&self) -> u64 {
        self.calls.iter().sum::<u64>() - self.calls[Step::Close as usize]
    }

    /// Adds another worker's totals.
    pub fn and(mut self, other: &Self) -> Self {
        self.calls.iter_mut().zip(other.calls).for_each(|(calls, more)| *calls += more);
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
        self.loops += other.loops;
        self
    }
}

/// One thread of a load.
#[derive(Debug)]
pub struct Worker {
    load: Load,
    number: u64,
    random: Random,
    steps: &'static [Step],
    next_step: usize,
    loops_left: Option<u64>,
    existing: Vec<Held>,
    missing: Vec<u64>,
    /// Index in `existing`, and its handle.
    open: Option<(usize, Handle)>,
    log: Option<Handle>,
    /// Open data files, by number (OLTP).
    records: HashMap<u64, Handle>,
    /// Keys of records that the worker wrote; kept if reads are verified.
    written: HashMap<(u64, u64), u64>,
    buffer: Vec<u8>,
    /// As long as a request may be: what is read is not cleared before.
    read_buffer: Vec<u8>,
    done: Done,
}

/// Key of an initial file.
fn first_key(load: &Load, number: u64) -> u64 {
    Random::new(load.seed, number | 1 << 62).next()
}

/// Size of an initial file.
fn first_size(load: &Load, number: u64) -> u64 {
    if load.is_gamma { Random::new(load.seed, number | 1 << 61).gamma(load.file_bytes) } else { load.file_bytes }
}

/// Whether the file exists initially. These are spread evenly over each worker's numbers.
fn is_laid_out(load: &Load, number: u64) -> bool {
    (number / load.workers) % 100 * 61 % 100 < load.laid_out_percent
}

/// Makes the directories and the initial files of the load.
pub fn lay_out(load: &Load, target: &dyn Target) -> Result<()> {
    let mut buffer = Vec::new();
    for directory in 0..load.directories() {
        target.make_directory(&load.directory(directory))?;
    }
    if let Some(log) = load.log() {
        let file = target.create(log)?;
        if load.is_of_records() {
            write_all(load, target, file, 0, load.file_bytes, &mut buffer)?;
        }
        target.close(file)?;
    }
    for number in (0..load.files).filter(|number| is_laid_out(load, *number)) {
        crate::machine::check()?;
        if load.is_of_directories() {
            target.make_directory(&load.path(number))?;
            continue;
        }
        let file = target.create(&load.path(number))?;
        write_all(load, target, file, first_key(load, number), first_size(load, number), &mut buffer)?;
        target.close(file)?;
    }
    target.synchronize_all()
}

/// Writes a whole file in requests of the load's size.
fn write_all(load: &Load, target: &dyn Target, file: Handle, key: u64, size: u64, buffer: &mut Vec<u8>) -> Result<()> {
    for offset in (0..size).step_by(load.request_bytes_max as usize) {
        buffer.resize((size - offset).min(load.request_bytes_max) as usize, 0);
        content::fill(key, offset, buffer);
        target.write(file, offset, buffer)?;
    }
    Ok(())
}

impl Worker {
    /// The workers of a load in their initial state.
    pub fn all(load: &Load) -> Vec<Self> {
        (0..load.workers).map(|number| Self::new(load, number)).collect()
    }

    fn new(load: &Load, number: u64) -> Self {
        // Files with records are shared.
        let mine = (number..load.files).step_by(load.workers as usize).filter(|_| !load.is_of_records());
        let (laid_out, missing): (Vec<u64>, Vec<u64>) = mine.partition(|file| is_laid_out(load, *file));
        let held = |number| Held { number, key: first_key(load, number), size: first_size(load, number) };
        Self {
            number,
            random: Random::new(load.seed, number),
            steps: load.steps(),
            next_step: 0,
            loops_left: load.loops.map(|loops| loops / load.workers + u64::from(number < loops % load.workers)),
            existing: laid_out.into_iter().map(held).collect(),
            missing,
            open: None,
            log: None,
            records: HashMap::new(),
            written: HashMap::new(),
            buffer: Vec::new(),
            read_buffer: vec![0; load.request_bytes_max as usize],
            done: Done::default(),
            load: load.clone(),
        }
    }

    /// Totals so far.
    pub fn done(&self) -> &Done {
        &self.done
    }

    /// Makes the next call. Returns false if there is none.
    pub fn step(&mut self, target: &dyn Target) -> Result<bool> {
        let mut step = self.steps[self.next_step];
        if self.next_step == 0 && self.is_at_end() {
            return Ok(false);
        }
        if step == Step::WriteLog && !self.writes_log_now() {
            self.end_step();
            if self.next_step == 0 && self.is_at_end() {
                return Ok(false);
            }
            step = self.steps[self.next_step];
        }
        self.run(step, target)?;
        self.done.calls[step as usize] += 1;
        self.end_step();
        Ok(true)
    }

    fn end_step(&mut self) {
        self.next_step = (self.next_step + 1) % self.steps.len();
        if self.next_step == 0 {
            self.done.loops += 1;
            self.loops_left = self.loops_left.map(|left| left - 1);
        }
    }

    fn is_at_end(&self) -> bool {
        match self.loops_left {
            Some(left) => left == 0,
            None if matches!(self.steps[0], Step::Create | Step::MakeDirectory) => self.missing.is_empty(),
            None => self.existing.is_empty(),
        }
    }

    /// The first worker takes the role of the log writer.
    fn writes_log_now(&self) -> bool {
        let loops = (self.load.reads_a_log_write / self.load.workers).max(1);
        self.number == 0 && (self.done.loops + 1).is_multiple_of(loops)
    }

    fn run(&mut self, step: Step, target: &dyn Target) -> Result<()> {
        match step {
            Step::Create => {
                let number = self.take_missing()?;
                let file = target.create(&self.load.path(number))?;
                self.existing.push(Held { number, key: self.random.next(), size: 0 });
                self.open = Some((self.existing.len() - 1, file));
                Ok(())
            }
            Step::MakeDirectory => {
                let number = self.take_missing()?;
                self.existing.push(Held { number, key: 0, size: 0 });
                target.make_directory(&self.load.path(number))
            }
            Step::RemoveDirectory | Step::Delete => {
                let index = self.draw_existing()?;
                let number = self.existing.swap_remove(index).number;
                self.missing.push(number);
                let path = self.load.path(number);
                if step == Step::Delete { target.remove(&path) } else { target.remove_directory(&path) }
            }
            Step::Stat => {
                let index = self.draw_existing()?;
                let held = self.existing[index];
                let size = target.size(&self.load.path(held.number))?;
                self.check(size == held.size, held.number)
            }
            Step::Open => {
                let index = self.draw_existing()?;
                let file = target.open(&self.load.path(self.existing[index].number))?;
                self.open = Some((index, file));
                Ok(())
            }
            Step::Close => {
                let (_, file) = self.open.take().ok_or_else(|| Failure::new("nothing is open"))?;
                target.close(file)
            }
            Step::WriteWhole => {
                let (index, file) = self.open()?;
                let size = if self.load.is_gamma { self.random.gamma(self.load.file_bytes) } else { self.load.file_bytes };
                write_all(&self.load, target, file, self.existing[index].key, size, &mut self.buffer)?;
                self.existing[index].size = size;
                self.done.written_bytes += size;
                Ok(())
            }
            Step::Append => {
                let (index, file) = self.open()?;
                let length = 1 + self.random.below(self.load.append_bytes_max);
                let Held { key, size, .. } = self.existing[index];
                self.buffer.resize(length as usize, 0);
                content::fill(key, size, &mut self.buffer);
                target.append(file, &self.buffer)?;
                self.existing[index].size += length;
                self.done.written_bytes += length;
                Ok(())
            }
            Step::Synchronize => target.synchronize(self.open()?.1),
            Step::ReadWhole => self.read_whole(target),
            Step::AppendLog => {
                let length = 1 + self.random.below(self.load.append_bytes_max);
                self.buffer.resize(length as usize, 0);
                content::fill(self.random.next(), 0, &mut self.buffer);
                target.append(self.log(target)?, &self.buffer)?;
                self.done.written_bytes += length;
                Ok(())
            }
            Step::ReadRecord => self.read_record(target),
            Step::WriteRecord => self.write_record(target),
            Step::WriteLog => {
                let length = self.load.log_write_bytes.min(self.load.file_bytes);
                let offset = self.random.below(self.load.file_bytes / length) * length;
                self.buffer.resize(length as usize, 0);
                content::fill(self.random.next(), offset, &mut self.buffer);
                let log = self.log(target)?;
                target.write(log, offset, &self.buffer)?;
                self.done.written_bytes += length;
                target.synchronize(log)
            }
        }
    }

    fn open(&self) -> Result<(usize, Handle)> {
        self.open.ok_or_else(|| Failure::new("nothing is open"))
    }

    fn draw_existing(&mut self) -> Result<usize> {
        match self.existing.len() as u64 {
            0 => Err(Failure::new("a worker has no file left; run a larger share of the load")),
            count => Ok(self.random.below(count) as usize),
        }
    }

    fn take_missing(&mut self) -> Result<u64> {
        match self.missing.len() as u64 {
            0 => Err(Failure::new("a worker has no file left to make; run a larger share of the load")),
            count => Ok(self.missing.swap_remove(self.random.below(count) as usize)),
        }
    }

    fn log(&mut self, target: &dyn Target) -> Result<Handle> {
        if self.log.is_none() {
            self.log = Some(target.open(self.load.log().ok_or_else(|| Failure::new("the load has no log"))?)?);
        }
        self.log.ok_or_else(|| Failure::new("no log"))
    }

    fn check(&self, holds: bool, number: u64) -> Result<()> {
        if holds || !self.load.verify {
            return Ok(());
        }
        Err(Failure::new(format!("{} is not what was written to it", self.load.path(number))))
    }

    fn read_whole(&mut self, target: &dyn Target) -> Result<()> {
        let (index, file) = self.open()?;
        let Held { number, key, size } = self.existing[index];
        let mut offset = 0;
        // Reads to the end of the file: the last read is short.
        loop {
            let length = target.read(file, offset, &mut self.read_buffer)?;
            self.check(!self.load.verify || content::is(key, offset, &self.read_buffer[..length]), number)?;
            offset += length as u64;
            if length < self.read_buffer.len() {
                break;
            }
        }
        self.done.read_bytes += offset;
        self.check(offset == size, number)
    }

    /// Chooses a file and a record of it. Returns record and file.
    fn draw_record(&mut self, is_mine: bool) -> (u64, u64) {
        let records = self.load.file_bytes / self.load.record_bytes;
        let file = self.random.below(self.load.files);
        let workers = self.load.workers;
        let record = match self.random.below(records) {
            any if !is_mine || records < workers => any,
            // The nearest record of this worker: writes are spread as evenly as reads, and only one worker knows the content of a record.
            any => (any / workers * workers + self.number) % (records / workers * workers),
        };
        (file, record)
    }

    fn data_file(&mut self, number: u64, target: &dyn Target) -> Result<Handle> {
        if let Some(file) = self.records.get(&number) {
            return Ok(*file);
        }
        let file = target.open(&self.load.path(number))?;
        self.records.insert(number, file);
        Ok(file)
    }

    fn read_record(&mut self, target: &dyn Target) -> Result<()> {
        let (number, record) = self.draw_record(self.load.verify);
        let file = self.data_file(number, target)?;
        self.buffer.resize(self.load.record_bytes as usize, 0);
        let offset = record * self.load.record_bytes;
        let length = target.read(file, offset, &mut self.buffer)?;
        self.done.read_bytes += length as u64;
        let key = self.written.get(&(number, record)).copied().unwrap_or_else(|| first_key(&self.load, number));
        self.check(!self.load.verify || (length == self.buffer.len() && content::is(key, offset, &self.buffer)), number)
    }

    fn write_record(&mut self, target: &dyn Target) -> Result<()> {
        let (number, record) = self.draw_record(true);
        let file = self.data_file(number, target)?;
        let (key, offset) = (self.random.next(), record * self.load.record_bytes);
        self.buffer.resize(self.load.record_bytes as usize, 0);
        content::fill(key, offset, &mut self.buffer);
        target.write(file, offset, &self.buffer)?;
        if self.load.verify {
            self.written.insert((number, record), key);
        }
        self.done.written_bytes += self.load.record_bytes;
        target.synchronize(file)
    }

    /// Opens the data files of a load of records. They stay open until the end: in a load as long as Filebench's, opening them takes no
    /// significant time.
    pub fn begin(&mut self, target: &dyn Target) -> Result<()> {
        let files = if self.load.is_of_records() { self.load.files } else { 0 };
        (0..files).try_for_each(|number| self.data_file(number, target).map(drop))
    }

    /// Closes all open files.
    pub fn end(&mut self, target: &dyn Target) -> Result<()> {
        let open = self.open.take().map(|(_, file)| file);
        open.into_iter().chain(self.log.take()).chain(self.records.drain().map(|(_, file)| file)).try_for_each(|file| target.close(file))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_device::Drive;
    use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};

    use super::super::{DirectoryTarget, Durability, LibraryTarget, Workload, run_on_threads};
    use super::*;
    use crate::scene::{DeviceShape, MIB, Scene};

    const SCALE: f64 = 1e-4;

    fn tiny(workload: Workload) -> Load {
        let load = Load { verify: true, ..Load::new(workload, SCALE, 5) };
        match workload {
            // The same number of records per worker, in fewer files.
            Workload::Oltp => Load { file_bytes: 1 << 20, ..load },
            Workload::Fileserver => Load { file_bytes: 40 << 10, request_bytes_max: 16 << 10, ..load },
            _ => load,
        }
    }

    /// A directory in memory if there is one: with a disk, every fsync of a mail would wait.
    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
    }

    fn file_system(directory: &std::path::Path) -> (Scene, Arc<FileSystem>) {
        let common = crate::arguments::Common { json: false, quick: true, directory: directory.to_owned() };
        let scene = Scene::new(&common).expect("a directory");
        let device = scene.device("device", DeviceShape::plain(32 * MIB, 96 * MIB)).expect("a device");
        let drive = Drive::new(device);
        make_file_system(&drive, &FormatOptions { force: true, block_bytes: 4096, ..FormatOptions::default() }).expect("formatted");
        (scene, Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounted")))
    }

    fn run(load: &Load, target: &dyn Target) -> (Done, Vec<Worker>) {
        lay_out(load, target).expect("laid out");
        target.drop_caches().expect("dropped");
        let mut workers = Worker::all(load);
        let (done, _) = run_on_threads(&mut workers, target).unwrap_or_else(|failure| panic!("{:?}: {failure}", load.workload));
        (done, workers)
    }

    /// The worker itself verifies every read; this test varies the target and the cache size.
    #[test]
    fn loads_read_what_they_wrote_on_every_target() {
        let directory = directory();
        for workload in Workload::ALL {
            let load = tiny(workload);
            let mut results = Vec::new();
            for cache_bytes in [None, Some(300 << 10), Some(64 * MIB)] {
                let (_scene, fs) = file_system(directory.path());
                let target = LibraryTarget::new(fs.clone(), cache_bytes);
                results.push(run(&load, &target).0);
                target.synchronize_all().expect("synchronised");
                fs.unmount().expect("unmounted");
            }
            let root = tempfile::tempdir_in(directory.path()).expect("a directory");
            results.push(run(&load, &DirectoryTarget::new(root.path(), Durability::Data)).0);
            assert!(results.iter().all(|result| *result == results[0]), "{workload:?}: {results:?}");
            assert!(results[0].operations() > 0, "{workload:?}");
        }
    }

    #[test]
    fn what_is_damaged_is_seen() {
        let directory = directory();
        let load = tiny(Workload::Webserver);
        let target = DirectoryTarget::new(directory.path(), Durability::Data);
        lay_out(&load, &target).expect("laid out");
        for number in 0..load.files {
            let path = directory.path().join(load.path(number));
            let mut bytes = std::fs::read(&path).expect("read");
            bytes[0] ^= 1;
            std::fs::write(&path, bytes).expect("written");
        }
        let failure = run_on_threads(&mut Worker::all(&load), &target).expect_err("damage");
        assert!(failure.to_string().contains("is not what was written to it"), "{failure}");
    }

    #[test]
    fn the_mix_is_that_of_the_personality() {
        let directory = directory();
        for (workload, calls) in [
            (
                Workload::Varmail,
                &[(Step::Delete, 1), (Step::Create, 1), (Step::Append, 2), (Step::Synchronize, 2), (Step::ReadWhole, 2)][..],
            ),
            (Workload::Fileserver, &[(Step::Create, 1), (Step::WriteWhole, 1), (Step::Append, 1), (Step::ReadWhole, 1), (Step::Stat, 1)]),
            (Workload::Webproxy, &[(Step::Delete, 1), (Step::Create, 1), (Step::Append, 1), (Step::ReadWhole, 5)]),
            (Workload::Webserver, &[(Step::ReadWhole, 10), (Step::AppendLog, 1)]),
            (Workload::Oltp, &[(Step::ReadRecord, 1), (Step::WriteRecord, 1)]),
        ] {
            let root = tempfile::tempdir_in(directory.path()).expect("a directory");
            let load = tiny(workload);
            let (done, workers) = run(&load, &DirectoryTarget::new(root.path(), Durability::Data));
            let loops = load.loops.expect("loops");
            assert_eq!((done.loops, workers.len() as u64), (loops, load.workers), "{workload:?}");
            for (step, times) in calls {
                assert_eq!(done.calls[*step as usize], times * loops, "{workload:?} {step:?}");
            }
        }
        // One log write per 3,200 reads: sixteen loops of 200 workers.
        let load = Load { loops: Some(200 * 40), ..tiny(Workload::Oltp) };
        let root = tempfile::tempdir_in(directory.path()).expect("a directory");
        let (done, _) = run(&load, &DirectoryTarget::new(root.path(), Durability::Data));
        assert_eq!((done.calls[Step::ReadRecord as usize], done.calls[Step::WriteLog as usize]), (8000, 2));
        assert_eq!(done.written_bytes, 8000 * 2048 + 2 * (256 << 10));
    }

    #[test]
    fn small_loads_deal_with_each_of_the_set_once() {
        let directory = directory();
        for (workload, step) in [
            (Workload::Create, Step::Create),
            (Workload::Delete, Step::Delete),
            (Workload::Mkdir, Step::MakeDirectory),
            (Workload::Rmdir, Step::RemoveDirectory),
        ] {
            let root = tempfile::tempdir_in(directory.path()).expect("a directory");
            let load = tiny(workload);
            let (done, _) = run(&load, &DirectoryTarget::new(root.path(), Durability::Data));
            assert_eq!(done.calls[step as usize], load.files, "{workload:?}");
            let left = std::fs::read_dir(root.path().join(load.directory(0))).expect("listed").count() as u64;
            let expected = if matches!(workload, Workload::Create | Workload::Mkdir) { load.files.min(load.width) } else { 0 };
            assert_eq!(left, expected, "{workload:?}");
        }
    }
}
