//! The process of a drive: its block path as a file of a small FUSE file system, a loop device over that file.
//!
//! [SV1] A request is done on the drive at once, in the drive's reckoned time, which begins when the request came; the answer leaves when
//!       the drive would have been done, less the detour ([`release_ns`]). So the model of the drive is the emulator's own, queues and links
//!       included.
//! [SV2] One thread takes requests and sends answers, and sleeps for neither: it looks for the next request, and at the clock, until nothing has
//!       come for a while. As a drive's controller would be, it is there at once; threads that sleep are woken some 50 us late.
//!       A drive has more hands than that thread: a request that waited while it was busy with others came when that began, and of answers
//!       that are due together the first leave so much earlier that the last leaves in time.
//! [SV3] All that the kernel holds for the drive (loop device, FUSE mount, whoever is mounted on them) is taken down by this process: when it
//!       is told to, and when the other end of its standard input is gone, however that happened. Signals do not end it.
//! [SV4] A drive without a volatile cache gets no FLUSH commands: its loop device says *write through*, as such a drive does.

use std::ffi::OsStr;
use std::fs;
use std::hint::spin_loop;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, poll};
use tandemfs_device::{BlockPath, BlockRequest, Device, DeviceError, FlashCounts};
use tandemfs_emulator::OpenOptions;
use tandemfs_format::{SECTOR_BYTES, Sector};
use tandemfs_wire::{
    Attributes, Entry, Errno, Handler, InitFlags, MountOptions, OpenFlags, Opened, Operation, Options, Reply, Request, Statfs, Wanted,
};

use super::answers::{Queue, Waiting, What};
use super::cache::TransparentCache;
use super::detour::{Detour, release_ns};
use super::kernel_threads::KeptOff;
use super::loop_device::{self, run, wait_for};
use super::protocol::{Answer, Ask, Counted, Order};
use super::written::Written;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::served::Served;

const SECTOR: u64 = SECTOR_BYTES as u64;
const NAME: &str = "drive";
const FILE: u64 = 2;
const VALID: Duration = Duration::from_secs(3600);
const REQUEST_BYTES_MAX: u32 = 1 << 20;
const BACKGROUND_MAX: u16 = 128;
/// [SV2] How long after the last request the thread looks for another before it sleeps.
const AWAKE_NS: u64 = 500_000;
/// [SV2] Furthest back that a request is believed to have come, in nanoseconds: some 16 requests' handling.
const BUSY_NS_MAX: u64 = 200_000;

/// The block path of a drive, and what crossed it.
struct BlockFile {
    device: Arc<dyn Device>,
    start: Instant,
    size: u64,
    /// Whether what was discarded reads as zeros.
    discards: bool,
    detour: RwLock<Detour>,
    cache: Option<Mutex<TransparentCache>>,
    /// What a read that the cache answers is faster by: it costs what a write costs.
    hit_saves_ns: u64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discarded_bytes: AtomicU64,
    written: Written,
    flash_before: Mutex<FlashCounts>,
}

/// The file system of one file.
struct DriveFs {
    file: Arc<BlockFile>,
    /// Used by the session's one thread.
    queue: Mutex<Queue>,
    /// FUSE's device.
    device: OwnedFd,
}

impl BlockFile {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Does something on the drive that came then. Returns when it would be done ([SV1]).
    fn reckoned(
        &self,
        arrival_ns: u64,
        work: impl FnOnce(&dyn BlockPath) -> std::result::Result<(), DeviceError>,
    ) -> std::result::Result<u64, DeviceError> {
        let clock = self.device.virtual_time();
        if let Some(clock) = clock {
            clock.set_now_ns(arrival_ns);
        }
        work(self.device.block_path())?;
        Ok(clock.map_or(arrival_ns, |clock| clock.now_ns()))
    }

    fn transfer(&self, arrival_ns: u64, request: BlockRequest<'_>) -> std::result::Result<u64, DeviceError> {
        self.reckoned(arrival_ns, |path| path.transfer(&mut [request], &mut || {}))
    }

    fn touch(&self, offset: u64, length: u64) -> bool {
        let Some(cache) = &self.cache else { return false };
        cache.lock().touch(offset / SECTOR, length / SECTOR)
    }

    fn read(&self, arrival_ns: u64, others: usize, offset: u64, into: &mut [u8]) -> std::result::Result<u64, DeviceError> {
        let length = into.len() as u64;
        let mut done = self.transfer(arrival_ns, BlockRequest::Read { sector: Sector::new(offset / SECTOR), buffer: into })?;
        if self.touch(offset, length) {
            done = done.saturating_sub(self.hit_saves_ns).max(arrival_ns);
        }
        self.read_bytes.fetch_add(length, Relaxed);
        Ok(release_ns(arrival_ns, done, self.detour.read().of(true, length, others)))
    }

    fn write(&self, arrival_ns: u64, others: usize, offset: u64, from: &[u8]) -> std::result::Result<u64, DeviceError> {
        let length = from.len() as u64;
        let done = self.transfer(arrival_ns, BlockRequest::Write { sector: Sector::new(offset / SECTOR), buffer: from })?;
        self.touch(offset, length);
        self.written_bytes.fetch_add(length, Relaxed);
        self.written.add(offset / SECTOR, length / SECTOR);
        Ok(release_ns(arrival_ns, done, self.detour.read().of(false, length, others)))
    }

    fn make_durable(&self, arrival_ns: u64) -> std::result::Result<u64, DeviceError> {
        self.flushes.fetch_add(1, Relaxed);
        let done = self.reckoned(arrival_ns, |path| path.flush())?;
        Ok(release_ns(arrival_ns, done, self.detour.read().of(false, 0, 0)))
    }

    fn discard(&self, offset: u64, length: u64) -> std::result::Result<(), DeviceError> {
        if let Some(cache) = &self.cache {
            cache.lock().forget(offset / SECTOR, length / SECTOR);
        }
        self.device.block_path().discard(Sector::new(offset / SECTOR), length / SECTOR)?;
        self.discarded_bytes.fetch_add(length, Relaxed);
        Ok(())
    }

    /// Whether a range can be a request: whole sectors within the drive.
    fn is_request(&self, offset: u64, length: u64) -> bool {
        offset.is_multiple_of(SECTOR) && length.is_multiple_of(SECTOR) && offset.checked_add(length).is_some_and(|end| end <= self.size)
    }

    fn flash(&self) -> Option<FlashCounts> {
        self.device.counts().map(|counts| counts.flash)
    }

    fn begin(&self) {
        for counter in [&self.read_bytes, &self.written_bytes, &self.flushes, &self.discarded_bytes] {
            counter.store(0, Relaxed);
        }
        self.written.clear();
        *self.flash_before.lock() = self.flash().unwrap_or_default();
    }

    fn counted(&self) -> Counted {
        let flash = self.flash().map(|flash| flash.since(&self.flash_before.lock()));
        Counted {
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discarded_bytes: self.discarded_bytes.load(Relaxed),
            flash_bytes: flash.map(|flash| (flash.pages_programmed * SECTOR, flash.pages_read * SECTOR)),
            written: self.written.runs(),
        }
    }
}

impl DriveFs {
    /// Keeps an answer until it is time, and sends those whose time has come.
    fn answer(&self, release_ns: std::result::Result<u64, DeviceError>, reply: Reply<'_>, what: What) {
        let release_ns = match release_ns {
            Ok(release_ns) => release_ns,
            Err(error) => return reply.error(failed(&error)),
        };
        let mut queue = self.queue.lock();
        queue.add(Waiting { release_ns, reply: reply.park(), what });
        queue.send_due(|| self.file.now_ns());
    }

    /// When the request that is being handled came ([SV2]), and how many others have no answer yet.
    fn arrival(&self) -> (u64, usize) {
        let mut queue = self.queue.lock();
        let now = self.file.now_ns();
        if queue.busy_since_ns == 0 {
            queue.busy_since_ns = now;
        }
        queue.busy_since_ns = queue.busy_since_ns.max(now.saturating_sub(BUSY_NS_MAX));
        (queue.busy_since_ns, queue.count())
    }

    fn buffer(&self, length: usize) -> Vec<u8> {
        let mut buffer = self.queue.lock().buffers.pop().unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer
    }

    fn attributes(&self, number: u64) -> Attributes {
        let (mode, size) = if number == FILE { (0o100_600, self.file.size) } else { (0o040_700, 0) };
        Attributes { ino: number, size, blocks: size / 512, mode, nlink: 1, block_bytes: SECTOR as u32, ..Attributes::default() }
    }

    fn entry(&self) -> Entry {
        let attributes = self.attributes(FILE);
        Entry { node: FILE, generation: 0, entry_valid: VALID, attributes_valid: VALID, attributes }
    }

    fn read(&self, offset: u64, size: u32, reply: Reply<'_>) {
        let (arrival, others) = self.arrival();
        if size > REQUEST_BYTES_MAX || !self.file.is_request(offset, size.into()) {
            return reply.error(Errno::EINVAL);
        }
        let length = size as usize;
        let mut buffer = self.buffer(length);
        let release_ns = self.file.read(arrival, others, offset, &mut buffer[..length]);
        self.answer(release_ns, reply, What::Read(buffer, length));
    }

    fn write(&self, offset: u64, data: &[u8], reply: Reply<'_>) {
        let (arrival, others) = self.arrival();
        if !self.file.is_request(offset, data.len() as u64) {
            return reply.error(Errno::EINVAL);
        }
        let release_ns = self.file.write(arrival, others, offset, data);
        self.answer(release_ns, reply, What::Written(data.len() as u32));
    }

    fn punch(&self, offset: u64, length: u64, mode: u32, reply: Reply<'_>) {
        use rustix::fs::FallocateFlags;
        let is_punch = FallocateFlags::from_bits_retain(mode).contains(FallocateFlags::PUNCH_HOLE);
        // ENOSYS would be for ever, and zeros that the drive cannot promise are written by the kernel.
        if !is_punch || !self.file.discards || !self.file.is_request(offset, length) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match self.file.discard(offset, length) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(failed(&error)),
        }
    }
}

fn failed(error: &DeviceError) -> Errno {
    eprintln!("the drive: {error}");
    Errno::EIO
}

impl Handler for DriveFs {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.operation {
            Operation::Lookup { name } if name == NAME.as_bytes() => reply.entry(&self.entry()),
            Operation::Lookup { .. } => reply.error(Errno::ENOENT),
            Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
            Operation::Getattr { .. } => reply.attributes(&self.attributes(request.node), VALID),
            Operation::Open { .. } => {
                // Without the second flag the kernel does one write after another.
                reply.open(Opened { handle: 0, flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES });
            }
            Operation::Read { offset, size, .. } => self.read(offset, size, reply),
            Operation::Write(write) => self.write(write.offset, write.data, reply),
            Operation::Fsync { .. } => self.answer(self.file.make_durable(self.arrival().0), reply, What::Flushed),
            Operation::Fallocate { offset, length, mode, .. } => self.punch(offset, length, mode, reply),
            Operation::Statfs => reply.statfs(&Statfs { block_bytes: 512, name_bytes_max: 255, ..Statfs::default() }),
            Operation::Opendir { .. } => reply.open(Opened::default()),
            Operation::Flush { .. } | Operation::Release { .. } | Operation::Releasedir { .. } => reply.ok(),
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn idle(&self) {
        let mut queue = self.queue.lock();
        queue.busy_since_ns = 0;
        queue.send_due(|| self.file.now_ns());
        let is_awake = queue.count() > 0 || self.file.now_ns() < queue.last_ns + AWAKE_NS;
        if is_awake {
            return spin_loop();
        }
        drop(queue);
        // Interrupted, or an end: the next read knows.
        let _looked_at_again = poll(&mut [PollFd::new(&self.device, PollFlags::IN)], None);
    }
}

/// Whether a sector that is discarded reads as zeros: asked of the first, which is written again afterwards.
fn discards_to_zeros(device: &dyn Device) -> Result<bool> {
    let path = device.block_path();
    let (first, mut before, mut found) = (Sector::new(0), vec![0; SECTOR_BYTES], vec![0; SECTOR_BYTES]);
    path.transfer(&mut [BlockRequest::Read { sector: first, buffer: &mut before }], &mut || {})?;
    path.transfer(&mut [BlockRequest::Write { sector: first, buffer: &[0xa5; SECTOR_BYTES] }], &mut || {})?;
    path.discard(first, 1)?;
    path.transfer(&mut [BlockRequest::Read { sector: first, buffer: &mut found }], &mut || {})?;
    if before.iter().any(|byte| *byte != 0) || found.iter().any(|byte| *byte != 0) {
        path.transfer(&mut [BlockRequest::Write { sector: first, buffer: &before }], &mut || {})?;
    }
    Ok(found.iter().all(|byte| *byte == 0))
}

/// The process: serves until told to end, or until nobody is there who could tell.
pub fn serve(order: &Order) -> Result<()> {
    // The drive is no part of what is measured: single clients are on the last CPU, so it is on the first, and always there.
    machine::keep_on(0);
    let _kept_off = KeptOff::first_cpu();
    // [SV3] They set a flag that nobody looks at.
    machine::listen_for_signals()?;
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default())?;
    let mut end = Talk { told: false };
    let mut up = match Up::new(order) {
        Ok(up) => up,
        Err(failure) => {
            end.say(&Answer::Failed(failure.to_string()))?;
            return Ok(());
        }
    };
    let result = end.say(&Answer::Ready(up.loop_device.clone())).and_then(|()| end.answer(&up.file));
    let taken_down = up.take_down();
    match &taken_down {
        Ok(()) => drop(end.say(&Answer::Done)),
        Err(failure) => drop(end.say(&Answer::Failed(failure.to_string()))),
    }
    if !end.told {
        drop(fs::remove_dir_all(&order.directory));
    }
    result.and(taken_down)
}

/// The conversation.
struct Talk {
    told: bool,
}

impl Talk {
    fn say(&mut self, answer: &Answer) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(format!("{}\n", serde_json::to_string(answer)?).as_bytes())?;
        Ok(out.flush()?)
    }

    fn answer(&mut self, file: &BlockFile) -> Result<()> {
        for line in io::stdin().lock().lines() {
            let answer = match serde_json::from_str(&line?)? {
                Ask::Begin => {
                    file.begin();
                    Answer::Done
                }
                Ask::Traffic => Answer::Traffic(Box::new(file.counted())),
                Ask::Detour(detour) => {
                    *file.detour.write() = detour;
                    Answer::Done
                }
                Ask::End => {
                    self.told = true;
                    return Ok(());
                }
            };
            self.say(&answer)?;
        }
        Ok(())
    }
}

/// Mounts the file system of one file and serves it by one thread, which never sleeps in the device ([SV2]).
fn mount(order: &Order, file: &Arc<BlockFile>) -> Result<Served> {
    let options = MountOptions { source: "tandemfs-bench-drive".into(), atime: false, ..MountOptions::default() };
    let (device, guard) = tandemfs_wire::mount(&order.mountpoint, &options)?;
    let drive = DriveFs { file: Arc::clone(file), queue: Mutex::default(), device: device.try_clone()? };
    let wanted = Wanted {
        flags: InitFlags::ASYNC_READ | InitFlags::ASYNC_DIO,
        max_write: REQUEST_BYTES_MAX,
        max_background: BACKGROUND_MAX,
        ..Wanted::default()
    };
    Served::start((device, guard), drive, &wanted, Options { polled: true, ..Options::default() })
}

/// Everything that is up.
struct Up {
    file: Arc<BlockFile>,
    session: Option<Served>,
    mountpoint: PathBuf,
    loop_device: PathBuf,
}

impl Up {
    fn new(order: &Order) -> Result<Self> {
        let options = OpenOptions { timing: true, virtual_time: true, ..OpenOptions::default() };
        let device = tandemfs_emulator::open_image(&order.image, &options)?;
        let block = tandemfs_emulator::info(&order.image)?.timing.map(|timing| timing.block);
        let size = device.description().block_bytes;
        let file = Arc::new(BlockFile {
            discards: discards_to_zeros(&*device)?,
            start: Instant::now(),
            size,
            detour: RwLock::new(order.detour),
            cache: TransparentCache::new(order.cache_bytes, SECTOR).map(Mutex::new),
            hit_saves_ns: block.map_or(0, |block| block.read_latency_ns.saturating_sub(block.write_latency_ns).into()),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            discarded_bytes: AtomicU64::new(0),
            written: Written::new(size / SECTOR),
            flash_before: Mutex::default(),
            device,
        });
        file.begin();
        let session = mount(order, &file)
            .map_err(|error| Failure::new(format!("{}: the drive cannot be mounted: {error}", order.mountpoint.display())))?;
        let mut up = Self { file, session: Some(session), mountpoint: order.mountpoint.clone(), loop_device: PathBuf::new() };
        match loop_device::attach(&up.mountpoint.join(NAME), up.file.device.description().volatile_write_cache) {
            Ok(loop_device) => up.loop_device = loop_device,
            Err(failure) => {
                up.take_down()?;
                return Err(failure);
            }
        }
        Ok(up)
    }

    /// [SV3]
    fn take_down(&mut self) -> Result<()> {
        if self.loop_device != Path::new("") {
            loop_device::detach(&self.loop_device, &self.mountpoint)?;
        }
        let Some(session) = self.session.take() else { return Ok(()) };
        // A loop device that is in use keeps the file open: then the mount leaves the tree, and its connection ends with the process.
        if !wait_for(|| run("umount", &[self.mountpoint.as_ref()]).is_ok()) {
            run("umount", &[OsStr::new("--lazy"), self.mountpoint.as_ref()])?;
            return Ok(());
        }
        session.join()
    }
}
