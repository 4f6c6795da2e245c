//! io_uring: a few rings. A thread takes any free ring, submits its batch and waits for all of it.
//!
//! [RI1] The kernel reads and writes the callers' buffers, private or shared, until a request completes. So no function returns or unwinds
//!       before every submitted request has completed ([`InFlight`] waits when it is dropped).
//! [RI2] `O_DIRECT` needs buffers with the drive's alignment. Other buffers go through a bounce buffer of this module.
//! [RI3] A partly completed request is continued and an interrupted one is repeated. A request fails only with the kernel's error or at the
//!       end of a file that became shorter.
//! [RI4] `completed` sees the buffer of a completed request, never of one in flight. A bounce buffer is copied back before.
//! [RI5] A thread polls the ring's memory for a completion for up to [`SPIN_MAX`] before it sleeps, because a wake-up takes longer than a
//!       short request.
//!
//! If the kernel provides no ring (sysctl kernel.io_uring_disabled, a container), requests are done one after the other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use parking_lot::{Mutex, MutexGuard};
use tandemfs_format::SECTOR_BYTES;

use crate::BlockRequest;
use crate::buffer::{read_exact_at, write_all_at};
use crate::sync::current_cpu;

/// Requests of one ring in flight.
const RING_ENTRIES: usize = 64;
/// Bounce buffers that are kept for the next batch.
const KEPT_BOUNCES_MAX: usize = 16;
/// Largest bounce buffer that is kept, in sectors (1 MiB).
const KEPT_BOUNCE_SECTORS_MAX: usize = 256;
/// Most bytes of one submission; a longer request is continued ([RI3]).
const SUBMISSION_BYTES_MAX: usize = 1 << 30;

/// How long completions are polled for ([RI5]).
const SPIN_MAX: Duration = Duration::from_micros(20);

#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
struct Aligned([u8; SECTOR_BYTES]);

type Bounce = Vec<Aligned>;

/// The rings of a block half.
pub(super) struct Rings {
    rings: Vec<Mutex<IoUring>>,
    kept_bounces: Mutex<Vec<Bounce>>,
    memory_alignment: usize,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.rings.len();
        formatter.debug_struct("Rings").field("count", &count).field("memory_alignment", &self.memory_alignment).finish_non_exhaustive()
    }
}

/// A request as the kernel sees it.
struct Transfer {
    pointer: *mut u8,
    length: usize,
    /// In the file, in bytes.
    offset: u64,
    is_write: bool,
    /// Bytes that are done.
    done: usize,
}

enum Step {
    Done,
    Again,
    Failed(io::Error),
}

impl Transfer {
    /// Applies the result of one submission ([RI3]).
    fn advance(&mut self, result: i32) -> Step {
        match result {
            code if code == -libc::EINTR || code == -libc::EAGAIN => Step::Again,
            code if code < 0 => Step::Failed(io::Error::from_raw_os_error(-code)),
            moved => {
                // O_DIRECT must continue at a sector border; repeating part of a sector does no harm.
                let done = self.done + moved as usize;
                let whole = done / SECTOR_BYTES * SECTOR_BYTES;
                if done >= self.length {
                    Step::Done
                } else if whole > self.done {
                    self.done = whole;
                    Step::Again
                } else {
                    Step::Failed(if self.is_write { io::ErrorKind::WriteZero } else { io::ErrorKind::UnexpectedEof }.into())
                }
            }
        }
    }

    fn entry(&self, descriptor: types::Fd) -> io_uring::squeue::Entry {
        let pointer = self.pointer.wrapping_add(self.done);
        let length = (self.length - self.done).min(SUBMISSION_BYTES_MAX) as u32;
        let offset = self.offset + self.done as u64;
        if self.is_write {
            opcode::Write::new(descriptor, pointer, length).offset(offset).build()
        } else {
            opcode::Read::new(descriptor, pointer, length).offset(offset).build()
        }
    }
}

impl Rings {
    /// `memory_alignment`: required alignment of buffers in bytes, at most 4096; 1 if I/O goes through the page cache.
    pub(super) fn new(memory_alignment: usize) -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from) + 2;
        let entries = RING_ENTRIES as u32;
        // The flag tells a polling thread ([RI5]) that it must enter the kernel to get its completions.
        let ring = |_| IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries).or_else(|_| IoUring::new(entries)).ok();
        let rings = (0..count).map_while(ring).map(Mutex::new).collect();
        Self { rings, kept_bounces: Mutex::default(), memory_alignment }
    }

    /// As [`Rings::new`] on a kernel without io_uring.
    #[cfg(test)]
    pub(super) fn without_rings(memory_alignment: usize) -> Self {
        Self { rings: Vec::new(), kept_bounces: Mutex::default(), memory_alignment }
    }

    /// Does all requests; `meanwhile` runs while the first of them are in flight, `completed` as each is done. An error names a request
    /// that failed.
    pub(super) fn run(
        &self,
        file: &File,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), (usize, io::Error)> {
        let mut bounces: Vec<(usize, Bounce)> = Vec::new();
        let mut transfers: Vec<Transfer> = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter_mut().enumerate() {
            let (pointer, length, sector, is_write) = match request {
                BlockRequest::Read { sector, buffer } => (buffer.address(), buffer.len(), *sector, false),
                BlockRequest::Write { sector, buffer } => (buffer.address().cast_mut(), buffer.len(), *sector, true),
            };
            let mut transfer = Transfer { pointer, length, offset: sector.offset_bytes(), is_write, done: 0 };
            if !(pointer as usize).is_multiple_of(self.memory_alignment) {
                let mut bounce = self.bounce(length / SECTOR_BYTES);
                if let BlockRequest::Write { buffer, .. } = request {
                    bounce.iter_mut().zip(buffer.chunks(SECTOR_BYTES)).for_each(|(to, from)| from.copy_to(&mut to.0));
                }
                transfer.pointer = bounce.as_mut_ptr().cast();
                // Moves the vector, not what it holds.
                bounces.push((index, bounce));
            }
            transfers.push(transfer);
        }
        // [RI4]
        let mut finished = |index: usize| {
            if let BlockRequest::Read { buffer, .. } = &mut requests[index]
                && let Ok(found) = bounces.binary_search_by_key(&index, |(index, _)| *index)
            {
                let sectors = (0..buffer.len()).step_by(SECTOR_BYTES).zip(&bounces[found].1);
                sectors.for_each(|(at, sector)| buffer.copy_from(at, &sector.0));
            }
            completed(index, &requests[index]);
        };
        let result = match self.free_ring() {
            Some(mut ring) => run_ring(&mut ring, file, &mut transfers, meanwhile, &mut finished),
            None => run_plain(file, &transfers, meanwhile, &mut finished),
        };
        for (_, bounce) in bounces {
            self.keep(bounce);
        }
        result
    }

    fn free_ring(&self) -> Option<MutexGuard<'_, IoUring>> {
        // Each CPU tries its own ring first, so that lock and queues stay in that CPU's caches.
        let own = current_cpu() % self.rings.len().max(1);
        let from_own = self.rings.iter().cycle().skip(own).take(self.rings.len());
        from_own.clone().find_map(|ring| ring.try_lock()).or_else(|| self.rings.get(own).map(|ring| ring.lock()))
    }

    fn bounce(&self, sectors: usize) -> Bounce {
        let mut bounce = self.kept_bounces.lock().pop().unwrap_or_default();
        if bounce.len() < sectors {
            bounce.resize(sectors, Aligned([0; SECTOR_BYTES]));
        }
        bounce
    }

    fn keep(&self, bounce: Bounce) {
        let mut kept = self.kept_bounces.lock();
        if kept.len() < KEPT_BOUNCES_MAX && bounce.len() <= KEPT_BOUNCE_SECTORS_MAX {
            kept.push(bounce);
        }
    }
}

/// Requests that the kernel works on ([RI1]).
struct InFlight<'r> {
    ring: &'r mut IoUring,
    pending: usize,
}

impl InFlight<'_> {
    fn submit(&self, want: usize) {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) => return,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy) => {}
                // The kernel may still use the buffers, and there is no way to learn when it stops: continuing could corrupt memory.
                Err(error) => {
                    eprintln!("tandemfs: io_uring_enter failed: {error}");
                    std::process::abort();
                }
            }
        }
    }

    /// Waits for a completion, polling first ([RI5]).
    fn wait(&mut self) {
        if !self.ring.submission().is_empty() {
            self.submit(0);
        }
        let start = Instant::now();
        while self.ring.completion().is_empty() {
            if self.ring.submission().taskrun() || start.elapsed() >= SPIN_MAX {
                return self.submit(1);
            }
            std::hint::spin_loop();
        }
    }

    /// The next completion: a request's index and its result.
    fn next(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        self.pending -= 1;
        Some((completion.user_data() as usize, completion.result()))
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        while self.pending > 0 {
            self.submit(1);
            while self.next().is_some() {}
        }
    }
}

fn run_ring(
    ring: &mut IoUring,
    file: &File,
    transfers: &mut [Transfer],
    meanwhile: &mut dyn FnMut(),
    finished: &mut dyn FnMut(usize),
) -> Result<(), (usize, io::Error)> {
    let descriptor = types::Fd(file.as_raw_fd());
    let mut in_flight = InFlight { ring, pending: 0 };
    let mut waiting: Vec<usize> = (0..transfers.len()).rev().collect();
    let mut meanwhile = Some(meanwhile);
    let mut result = Ok(());
    loop {
        while in_flight.pending < RING_ENTRIES
            && let Some(index) = waiting.pop()
        {
            let entry = transfers[index].entry(descriptor).user_data(index as u64);
            // SAFETY: the buffer is borrowed by the caller's request or owned by its bounce. Both outlive this function, which neither
            // returns nor unwinds before the request has completed ([RI1]). A read's borrow is exclusive.
            let pushed = unsafe { in_flight.ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "no more are pending than the ring has entries");
            in_flight.pending += 1;
        }
        if let Some(meanwhile) = meanwhile.take() {
            in_flight.submit(0);
            meanwhile();
        }
        if in_flight.pending == 0 {
            return result;
        }
        in_flight.wait();
        while let Some((index, code)) = in_flight.next() {
            match transfers[index].advance(code) {
                Step::Done => finished(index),
                Step::Again => waiting.push(index),
                Step::Failed(error) => result = result.and(Err((index, error))),
            }
        }
    }
}

/// Fallback without a ring: one request after the other.
fn run_plain(
    file: &File,
    transfers: &[Transfer],
    meanwhile: &mut dyn FnMut(),
    finished: &mut dyn FnMut(usize),
) -> Result<(), (usize, io::Error)> {
    let mut result = Ok(());
    meanwhile();
    for (index, transfer) in transfers.iter().enumerate() {
        let done = if transfer.is_write {
            // SAFETY: pointer and length are those of the caller's buffer or its bounce, which outlive this call.
            unsafe { write_all_at(file, transfer.pointer, transfer.length, transfer.offset) }
        } else {
            // SAFETY: as above, and a read has an exclusive borrow.
            unsafe { read_exact_at(file, transfer.pointer, transfer.length, transfer.offset) }
        };
        match done {
            Ok(()) => finished(index),
            Err(error) => result = result.and(Err((index, error))),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tandemfs_format::Sector;

    use super::*;

    fn transfer(length: usize, is_write: bool) -> Transfer {
        Transfer { pointer: std::ptr::null_mut(), length, offset: 0, is_write, done: 0 }
    }

    #[test]
    fn a_request_done_in_part_is_continued_at_a_sector() {
        let mut half = transfer(8192, true);
        assert!(matches!(half.advance(5000), Step::Again));
        assert_eq!(half.done, 4096);
        assert!(matches!(half.advance(-libc::EINTR), Step::Again));
        assert!(matches!(half.advance(0), Step::Failed(error) if error.kind() == io::ErrorKind::WriteZero));
        assert!(matches!(half.advance(-libc::EIO), Step::Failed(error) if error.raw_os_error() == Some(libc::EIO)));
        assert!(matches!(half.advance(4096), Step::Done));
        assert!(matches!(transfer(4096, false).advance(100), Step::Failed(error) if error.kind() == io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn requests_are_done_with_rings_and_without_from_any_address() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(1 << 20).expect("sized");
        for rings in [Rings::new(4096), Rings::without_rings(4096), Rings::new(1)] {
            let data: Vec<u8> = (0..100 * SECTOR_BYTES + 1).map(|index| (index / 77) as u8).collect();
            let mut writes: Vec<_> = (0..100)
                .map(|index| BlockRequest::Write {
                    sector: Sector::new(index as u64),
                    buffer: (&data[1 + index * SECTOR_BYTES..][..SECTOR_BYTES]).into(),
                })
                .collect();
            let mut ran = 0;
            rings.run(&file, &mut writes, &mut || ran += 1, &mut |_, _| {}).expect("written");
            let mut found = vec![0; data.len()];
            rings
                .run(
                    &file,
                    &mut [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut found[1..]).into() }],
                    &mut || ran += 1,
                    &mut |_, _| {},
                )
                .expect("read");
            assert!(found[1..] == data[1..] && ran == 2);
            rings.run(&file, &mut [], &mut || ran += 1, &mut |_, _| {}).expect("nothing to do");
            assert_eq!(ran, 3);
        }
    }

    #[test]
    fn the_error_names_its_request_and_the_others_are_done() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(8192).expect("sized");
        for rings in [Rings::new(1), Rings::without_rings(1)] {
            let (mut beyond, mut first) = (vec![1; 4096], vec![1; 4096]);
            let mut requests = [
                BlockRequest::Read { sector: Sector::new(2), buffer: (&mut beyond).into() },
                BlockRequest::Read { sector: Sector::new(0), buffer: (&mut first).into() },
            ];
            let (index, error) = rings.run(&file, &mut requests, &mut || (), &mut |_, _| {}).expect_err("past the end");
            assert_eq!((index, error.kind()), (0, io::ErrorKind::UnexpectedEof));
            assert!(first.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_panic_meanwhile_waits_for_what_is_in_flight() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(1 << 20).expect("sized");
        let rings = Rings::new(1);
        let mut buffer = vec![1; 1 << 20];
        let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut buffer).into() }];
        let panicked = catch_unwind(AssertUnwindSafe(|| rings.run(&file, &mut requests, &mut || panic!("in between"), &mut |_, _| {})));
        assert!(panicked.is_err());
        assert!(buffer.iter().all(|&byte| byte == 0), "the read was waited for");
        rings
            .run(&file, &mut [BlockRequest::Write { sector: Sector::new(0), buffer: (&[2; 4096]).into() }], &mut || (), &mut |_, _| {})
            .expect("the ring still works");
    }

    #[test]
    fn each_request_is_shown_once_with_its_bytes() {
        let file = tempfile::tempfile().expect("a temporary file");
        let content: Vec<u8> = (0..200 * SECTOR_BYTES).map(|index| (index / SECTOR_BYTES) as u8).collect();
        file.write_all_at(&content, 0).expect("written");
        for rings in [Rings::new(1), Rings::new(4096), Rings::without_rings(4096)] {
            let mut found = vec![0xff; 200 * SECTOR_BYTES + 1];
            let mut requests: Vec<_> = (0..)
                .zip(found[1..].chunks_mut(SECTOR_BYTES))
                .map(|(number, buffer)| BlockRequest::Read { sector: Sector::new(number), buffer: buffer.into() })
                .collect();
            requests.push(BlockRequest::Read { sector: Sector::new(500), buffer: (&mut []).into() });
            let mut beyond = [0; SECTOR_BYTES];
            requests.push(BlockRequest::Read { sector: Sector::new(500), buffer: (&mut beyond).into() });
            let mut seen = [0; 202];
            let result = rings.run(&file, &mut requests, &mut || (), &mut |index, request| {
                seen[index] += 1;
                assert!(request.bytes().to_vec().iter().all(|byte| *byte == index as u8), "request {index}");
            });
            assert!(result.is_err(), "one was behind the end");
            assert!(seen[..200].iter().all(|times| *times == 1) && seen[201] == 0, "{seen:?}");
        }
    }

    #[test]
    fn a_panic_of_who_is_told_waits_for_the_others() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(8 << 20).expect("sized");
        let rings = Rings::new(1);
        let mut buffer = vec![1; 8 << 20];
        let mut requests: Vec<_> = (0..8)
            .zip(buffer.chunks_mut(1 << 20))
            .map(|(number, buffer)| BlockRequest::Read { sector: Sector::new(number * 256), buffer: buffer.into() })
            .collect();
        let told = &mut |_: usize, _: &BlockRequest<'_>| panic!("at the first");
        assert!(catch_unwind(AssertUnwindSafe(|| rings.run(&file, &mut requests, &mut || (), told))).is_err());
        drop(requests);
        assert!(buffer.iter().all(|&byte| byte == 0), "all were waited for");
    }
}
