//! The process of a drive: its block path as a file of a small FUSE file system, with a loop device over that file.
//!
//! [SV1] A request is executed on the emulated drive at once, in simulated time that starts at the request's arrival. The reply is sent
//!       when the drive would have completed it, less the detour ([`release_ns`]). So the drive's model, including queues and links, is the
//!       emulator's.
//! [SV2] One thread takes requests and sends replies without sleeping: it polls for the next request and the clock until no request has
//!       come for a while. Like a drive's controller it is always ready; a sleeping thread would wake some 50 us late. A real drive is more
//!       parallel than this thread. So a request that waited for the thread gets the start of the busy period as arrival time, and of
//!       replies due together the first are sent early enough that the last is on time.
//! [SV3] This process takes down all kernel objects of the drive (loop device, FUSE mount, mounts on them): when told to, and when the
//!       other end of its standard input is closed for any reason. Signals do not end it.
//! [SV4] A drive without a volatile cache gets no FLUSH commands: like such a drive, its loop device reports *write through*.

use std::fs;
use std::hint::spin_loop;
use std::io::{self, BufRead};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, poll};
use tandemfs_device::{BlockPath, BlockRequest, Device, DeviceError};
use tandemfs_emulator::OpenOptions;
use tandemfs_format::{SECTOR_BYTES, Sector};
use tandemfs_fuse::Unmount;
use tandemfs_wire::{
    Attributes, Entry, Errno, Handler, InitFlags, MountOptions, OpenFlags, Opened, Operation, Options, Reply, Request, Statfs, Wanted,
};

use super::answers::{Queue, Waiting, What};
use super::cache::TransparentCache;
use super::detour::{Detour, release_ns};
use super::kernel_threads::KeptOff;
use super::loop_device::{self, LET_GO_WITHIN};
use super::protocol::{Answer, Ask, Order};
use crate::compare::child::answer;
use crate::compare::record::Traffic;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::served::Served;

const SECTOR: u64 = SECTOR_BYTES as u64;
const NAME: &str = "drive";
const FILE: u64 = 2;
const VALID: Duration = Duration::from_secs(3600);
const REQUEST_BYTES_MAX: u32 = 1 << 20;
const BACKGROUND_MAX: u16 = 128;
/// [SV2] How long the thread polls after the last request before it sleeps.
const AWAKE_NS: u64 = 500_000;
/// [SV2] Limit for the back-dating of a request's arrival, in nanoseconds: the handling of about 16 requests.
const BUSY_NS_MAX: u64 = 200_000;

/// A drive's block path with counters.
struct BlockFile {
    device: Arc<dyn Device>,
    start: Instant,
    size: u64,
    /// Whether discarded sectors read as zeros.
    discards: bool,
    detour: RwLock<Detour>,
    cache: Option<Mutex<TransparentCache>>,
    traffic: Mutex<Traffic>,
}

/// A file system with one file.
struct DriveFs {
    file: Arc<BlockFile>,
    /// Used only by the session's thread.
    queue: Mutex<Queue>,
    /// The FUSE device.
    device: OwnedFd,
}

impl BlockFile {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Executes work on the drive at its arrival time. Returns the completion time ([SV1]).
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

    fn read(&self, arrival_ns: u64, others: usize, offset: u64, into: &mut [u8]) -> std::result::Result<u64, DeviceError> {
        let length = into.len() as u64;
        let mut done = self.transfer(arrival_ns, BlockRequest::Read { sector: Sector::new(offset / SECTOR), buffer: into.into() })?;
        if let Some(cache) = &self.cache {
            done = cache.lock().read(arrival_ns, done, offset / SECTOR, length / SECTOR);
        }
        self.traffic.lock().read_bytes += length;
        Ok(release_ns(arrival_ns, done, self.detour.read().of(true, length, others)))
    }

    fn write(&self, arrival_ns: u64, others: usize, offset: u64, from: &[u8]) -> std::result::Result<u64, DeviceError> {
        let length = from.len() as u64;
        let mut done = self.transfer(arrival_ns, BlockRequest::Write { sector: Sector::new(offset / SECTOR), buffer: from.into() })?;
        if let Some(cache) = &self.cache {
            done = cache.lock().write(arrival_ns, done, offset / SECTOR, length / SECTOR);
        }
        self.traffic.lock().written_bytes += length;
        Ok(release_ns(arrival_ns, done, self.detour.read().of(false, length, others)))
    }

    fn make_durable(&self, arrival_ns: u64) -> std::result::Result<u64, DeviceError> {
        self.traffic.lock().flushes += 1;
        let done = self.reckoned(arrival_ns, |path| path.flush())?;
        Ok(release_ns(arrival_ns, done, self.detour.read().of(false, 0, 0)))
    }

    fn discard(&self, offset: u64, length: u64) -> std::result::Result<(), DeviceError> {
        if let Some(cache) = &self.cache {
            cache.lock().forget(offset / SECTOR, length / SECTOR);
        }
        self.device.block_path().discard(Sector::new(offset / SECTOR), length / SECTOR)
    }

    /// Whether a range is a valid request: whole sectors within the drive.
    fn is_request(&self, offset: u64, length: u64) -> bool {
        offset.is_multiple_of(SECTOR) && length.is_multiple_of(SECTOR) && offset.checked_add(length).is_some_and(|end| end <= self.size)
    }

    fn counted(&self) -> Traffic {
        let flash = self.device.counts().map(|counts| counts.flash);
        Traffic {
            flash_programmed_bytes: flash.map(|flash| flash.pages_programmed * SECTOR),
            flash_read_bytes: flash.map(|flash| flash.pages_read * SECTOR),
            ..*self.traffic.lock()
        }
    }
}

impl DriveFs {
    /// Queues a reply until its release time, and sends replies that are due.
    fn answer(&self, release_ns: std::result::Result<u64, DeviceError>, reply: Reply<'_>, what: What) {
        let release_ns = match release_ns {
            Ok(release_ns) => release_ns,
            Err(error) => return reply.error(failed(&error)),
        };
        let mut queue = self.queue.lock();
        queue.add(Waiting { release_ns, reply: reply.park(), what });
        queue.send_due(|| self.file.now_ns());
    }

    /// Arrival time of the current request ([SV2]), and the number of other outstanding requests.
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
        // ENOSYS would disable the call permanently. If the drive cannot promise zeros, the kernel writes them.
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
                // Without the second flag the kernel serialises writes.
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
        // After an interrupt or the end of the connection, the next read reports it.
        let _looked_at_again = poll(&mut [PollFd::new(&self.device, PollFlags::IN)], None);
    }
}

/// Whether a discarded sector reads as zeros: tested on the first sector, which is restored afterwards.
fn discards_to_zeros(device: &dyn Device) -> Result<bool> {
    let path = device.block_path();
    let (first, mut before, mut found) = (Sector::new(0), vec![0; SECTOR_BYTES], vec![0; SECTOR_BYTES]);
    path.transfer(&mut [BlockRequest::Read { sector: first, buffer: (&mut before).into() }], &mut || {})?;
    path.transfer(&mut [BlockRequest::Write { sector: first, buffer: (&[0xa5; SECTOR_BYTES]).into() }], &mut || {})?;
    path.discard(first, 1)?;
    path.transfer(&mut [BlockRequest::Read { sector: first, buffer: (&mut found).into() }], &mut || {})?;
    if before.iter().any(|byte| *byte != 0) || found.iter().any(|byte| *byte != 0) {
        path.transfer(&mut [BlockRequest::Write { sector: first, buffer: (&before).into() }], &mut || {})?;
    }
    Ok(found.iter().all(|byte| *byte == 0))
}

/// Entry point of the process: serves until told to end, or until the caller is gone.
pub fn serve(order: &Order) -> Result<()> {
    // The drive is not part of the measurement: single clients run on the last CPU, the drive always on the first.
    machine::keep_on(0);
    let kept_off = KeptOff::first_cpu();
    // [SV3] Signals only set a flag, which is never checked.
    machine::listen_for_signals()?;
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default())?;
    let mut up = match Up::new(order) {
        Ok(up) => up,
        Err(failure) => return answer(&Answer::Failed(failure.to_string())),
    };
    let ready = Answer::Ready { loop_device: up.loop_device.clone(), kernel_threads: kept_off.before() };
    let ended = answer(&ready).and_then(|()| converse(&up.file));
    let taken_down = up.take_down();
    drop(answer(&taken_down.as_ref().map_or_else(|failure| Answer::Failed(failure.to_string()), |()| Answer::Done)));
    if !matches!(ended, Ok(true)) {
        drop(fs::remove_dir_all(&order.directory));
    }
    ended.and(taken_down)
}

/// Answers the caller until it says that it removes the files (true), or is gone.
fn converse(file: &BlockFile) -> Result<bool> {
    for line in io::stdin().lock().lines() {
        let said = match serde_json::from_str(&line?)? {
            Ask::Traffic => Answer::Traffic(file.counted()),
            Ask::Detour(detour) => {
                *file.detour.write() = detour;
                Answer::Done
            }
            Ask::End => return Ok(true),
        };
        answer(&said)?;
    }
    Ok(false)
}

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

/// The drive's kernel objects.
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
        let timing = tandemfs_emulator::info(&order.image)?.timing;
        let size = device.description().block_bytes;
        let file = Arc::new(BlockFile {
            discards: discards_to_zeros(&*device)?,
            start: Instant::now(),
            size,
            detour: RwLock::new(order.detour),
            cache: timing.and_then(|timing| TransparentCache::new(order.cache_bytes, SECTOR, timing.load, timing.store)).map(Mutex::new),
            traffic: Mutex::default(),
            device,
        });
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
        // A loop device in use keeps the file open: then the mount is detached from the tree, and its connection ends with the process.
        if !machine::comes_about(LET_GO_WITHIN, || tandemfs_fuse::unmount(&self.mountpoint, Unmount::Normal).is_ok()) {
            return Ok(tandemfs_fuse::unmount(&self.mountpoint, Unmount::Lazy)?);
        }
        session.join()
    }
}
