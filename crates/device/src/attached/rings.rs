//! io_uring: a few rings, any thread takes a free one, submits its batch and waits for all of it.
//!
//! [RI1] The kernel reads and writes the callers' buffers until a request completes, so nothing returns, and nothing unwinds, before every
//!       submitted request has completed ([`InFlight`] waits when it is dropped).
//! [RI2] `O_DIRECT` wants buffers aligned to the sector: others go through a bounce buffer of this module.
//!
//! Where the kernel gives no ring (sysctl kernel.io_uring_disabled, a container), requests are done one by one.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use tandemfs_format::SECTOR_BYTES;

use crate::BlockRequest;

/// Requests of one ring in flight.
const RING_ENTRIES: u32 = 64;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
struct Aligned([u8; SECTOR_BYTES]);

/// The rings of a block half.
pub(crate) struct Rings {
    rings: Vec<Mutex<IoUring>>,
    direct: bool,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Rings").field("count", &self.rings.len()).field("direct", &self.direct).finish()
    }
}

/// Where the bytes of a request are for the kernel.
struct Transfer {
    pointer: *mut u8,
    length: u32,
    offset: u64,
    write: bool,
}

impl Rings {
    /// `direct`: the file was opened with `O_DIRECT`.
    pub(crate) fn new(direct: bool) -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from) + 2;
        let rings = (0..count).map_while(|_| IoUring::new(RING_ENTRIES).ok()).map(Mutex::new).collect();
        Self { rings, direct }
    }

    /// Does all requests; `meanwhile` runs while the first of them are in flight. An error names the request that failed.
    pub(crate) fn run(
        &self,
        file: &File,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), (usize, io::Error)> {
        let mut bounces: Vec<(usize, Vec<Aligned>)> = Vec::new();
        let transfers: Vec<Transfer> = requests
            .iter_mut()
            .enumerate()
            .map(|(index, request)| {
                let (pointer, length, offset, write) = match request {
                    BlockRequest::Read { sector, buffer } => (buffer.as_mut_ptr(), buffer.len(), sector.offset_bytes(), false),
                    BlockRequest::Write { sector, buffer } => (buffer.as_ptr().cast_mut(), buffer.len(), sector.offset_bytes(), true),
                };
                let pointer = if self.direct && !(pointer as usize).is_multiple_of(SECTOR_BYTES) {
                    let mut bounce = vec![Aligned([0; SECTOR_BYTES]); length / SECTOR_BYTES];
                    if let BlockRequest::Write { buffer, .. } = request {
                        for (to, from) in bounce.iter_mut().zip(buffer.chunks_exact(SECTOR_BYTES)) {
                            to.0.copy_from_slice(from);
                        }
                    }
                    let pointer = bounce.as_mut_ptr().cast();
                    bounces.push((index, bounce)); // moves the Vec, not what it holds
                    pointer
                } else {
                    pointer
                };
                Transfer { pointer, length: length as u32, offset, write }
            })
            .collect();
        let result = match self.free_ring() {
            Some(mut ring) => run_ring(&mut ring, file, &transfers, meanwhile),
            None => run_plain(file, &transfers, meanwhile),
        };
        for (index, bounce) in &bounces {
            if let BlockRequest::Read { buffer, .. } = &mut requests[*index] {
                for (to, from) in buffer.chunks_exact_mut(SECTOR_BYTES).zip(bounce) {
                    to.copy_from_slice(&from.0);
                }
            }
        }
        result
    }

    fn free_ring(&self) -> Option<parking_lot::MutexGuard<'_, IoUring>> {
        self.rings.iter().find_map(|ring| ring.try_lock()).or_else(|| self.rings.first().map(|ring| ring.lock()))
    }
}

/// Requests that the kernel works on ([RI1]).
struct InFlight<'r> {
    ring: &'r mut IoUring,
    pending: usize,
    first_error: Option<(usize, io::Error)>,
}

impl InFlight<'_> {
    fn submit(&mut self, want: usize) {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) => return,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy) => {}
                // Buffers may be in the kernel's hands and there is no way to learn when they are not: going on could corrupt memory.
                Err(error) => {
                    eprintln!("tandemfs: io_uring_enter failed: {error}");
                    std::process::abort();
                }
            }
        }
    }

    fn reap(&mut self, transfers: &[Transfer]) {
        while let Some(completion) = self.ring.completion().next() {
            self.pending -= 1;
            let index = completion.user_data() as usize;
            let error = match completion.result() {
                code if code < 0 => io::Error::from_raw_os_error(-code),
                length if length as u32 == transfers[index].length => continue,
                length => io::Error::other(format!("{length} of {} B were transferred", transfers[index].length)),
            };
            self.first_error.get_or_insert((index, error));
        }
    }

    fn wait_all(&mut self, transfers: &[Transfer]) {
        while self.pending > 0 {
            self.submit(1);
            self.reap(transfers);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        while self.pending > 0 {
            self.submit(1);
            self.pending -= self.ring.completion().count();
        }
    }
}

fn run_ring(ring: &mut IoUring, file: &File, transfers: &[Transfer], meanwhile: &mut dyn FnMut()) -> Result<(), (usize, io::Error)> {
    let descriptor = types::Fd(file.as_raw_fd());
    let mut in_flight = InFlight { ring, pending: 0, first_error: None };
    let mut first = true;
    for (base, batch) in (0..).step_by(RING_ENTRIES as usize).zip(transfers.chunks(RING_ENTRIES as usize)) {
        for (index, transfer) in (base..).zip(batch) {
            let entry = if transfer.write {
                opcode::Write::new(descriptor, transfer.pointer, transfer.length).offset(transfer.offset).build()
            } else {
                opcode::Read::new(descriptor, transfer.pointer, transfer.length).offset(transfer.offset).build()
            };
            // SAFETY: the buffer is borrowed by the caller's request or owned by its bounce, both longer than this function, which does
            // not return or unwind before the request has completed ([RI1]). Reads have exclusive borrows.
            let pushed = unsafe { in_flight.ring.submission().push(&entry.user_data(index as u64)) };
            assert!(pushed.is_ok(), "a batch is no longer than the ring");
            in_flight.pending += 1;
        }
        in_flight.submit(0);
        if first {
            meanwhile();
            first = false;
        }
        in_flight.wait_all(transfers);
    }
    if first {
        meanwhile();
    }
    in_flight.first_error.take().map_or(Ok(()), Err)
}

/// Without a ring: one request after the other.
fn run_plain(file: &File, transfers: &[Transfer], meanwhile: &mut dyn FnMut()) -> Result<(), (usize, io::Error)> {
    let mut result = Ok(());
    for (index, transfer) in transfers.iter().enumerate() {
        let done = if transfer.write {
            // SAFETY: pointer and length are those of the caller's buffer or its bounce, which outlive this call.
            file.write_all_at(unsafe { std::slice::from_raw_parts(transfer.pointer, transfer.length as usize) }, transfer.offset)
        } else {
            // SAFETY: as above, and a read has an exclusive borrow.
            file.read_exact_at(unsafe { std::slice::from_raw_parts_mut(transfer.pointer, transfer.length as usize) }, transfer.offset)
        };
        result = result.and(done.map_err(|error| (index, error)));
    }
    meanwhile();
    result
}
