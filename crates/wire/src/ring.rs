//! Requests over io_uring (`FUSE_OVER_IO_URING`, Linux 6.14, module parameter `fuse.enable_uring`).
//!
//! The kernel has a queue for each possible CPU and puts a request into the queue of its caller's CPU. An entry of a queue is memory of
//! this process for one request and its reply. One system call hands over a reply and waits for the next request. So while a caller and a
//! thread on the same CPU take turns, no wake-up goes to another CPU.
//!
//! [UR1] After the reply to INIT the kernel holds back requests until every queue has an entry. So rings and entries are created before it;
//!       if that fails, requests come over the device alone.
//! [UR2] Each thread has its own ring and entries and registers all of them at once: the kernel gives a waiting request to an entry that
//!       has answered, never to one that is registered later.
//! [UR3] A parked request keeps its entry. The answer comes through the mailbox, and the entry's thread hands it over.
//! [UR4] With more entries than threads, a request may wait for a busy thread while another thread sleeps. So a handler that blocks gets
//!       one entry per thread.
//! [UR5] If the kernel refuses an entry before all queues are ready, it sends all requests over the device, which always has a thread.
//! [UR6] A parked request may wait for other requests. So a quarter of the entries of a queue, and at least one, is never parked by
//!       [`crate::Reply::try_park`]. A request that finds no free entry goes to the next entry that answers ([UR2]).
//! [UR7] A thread first registers its entries, then binds itself to its CPU. A bound thread may wait for seconds while others run on its
//!       CPU (Linux 6.18), and a queue without an entry holds back the requests of all CPUs ([UR1]).
//!
//! FORGET, INTERRUPT and all requests before the queues are ready come over the device. If a caller gets a signal before its request
//! reaches the daemon, the kernel sends no INTERRUPT (Linux 6.18): only SIGKILL or the answer ends such a call. See
//! `Documentation/filesystems/fuse/fuse-io-uring.rst` of the kernel.

use std::io;
use std::mem::size_of;
use std::os::fd::AsFd;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader};
use crate::cpus::{self, Cpus};
use crate::device::Channel;
use crate::mailbox::Mailbox;
use crate::reply::sink::{Outcome, Parked, Sink, Slot};
use crate::request::Message;
use crate::scheduling::Watch;
use crate::serving::{Next, Serving};
use crate::sys::{CommandRing, Completion, EntryParts};
use crate::{Agreed, Handler, RingOptions};

/// A payload up to this size is copied out of the entry, so that the reply can be written there directly. A longer one (data of a WRITE, or
/// a value) is used in place, and its short reply is staged and copied.
const COPIED_BYTES_MAX: usize = 1024;
const REFUSED: &str = "the kernel refuses an entry of io_uring; if it has none for some queue, requests come over the device";

/// A thread that serves a ring.
pub(crate) struct Worker {
    ring: CommandRing,
    mailbox: Arc<Mailbox>,
    /// For each entry, the parked requests of its queue.
    parked: Vec<Arc<Parked>>,
    /// The CPU whose callers the thread serves; `None`: all CPUs without a thread of their own.
    pub(crate) cpu: Option<usize>,
    /// Binds the thread to its CPU. Tests replace it by a function that waits.
    pub(crate) bind: fn(usize),
}

/// A thread's buffers for one request at a time.
#[derive(Debug, Default)]
struct Scratch {
    request: Vec<u8>,
    staged: Vec<u8>,
}

impl Worker {
    /// Creates the threads for each CPU that this process may run on, and as many for all other CPUs together ([UR1]).
    pub(crate) fn all(channel: &Channel, options: &RingOptions, agreed: &Agreed) -> io::Result<Vec<Self>> {
        let Cpus { possible, allowed } = cpus::cpus()?;
        let threads = options.threads_per_cpu.max(1);
        let queue = |cpu: usize| u16::try_from(cpu).map_err(io::Error::other);
        let entries_of_queue = options.requests_per_cpu_max.max(threads);
        let parked: Vec<Arc<Parked>> = (0..possible).map(|_| Arc::new(Parked::of_entries(entries_of_queue))).collect();
        let new = |cpu, queues: &[usize]| -> io::Result<Self> {
            let numbers = queues.iter().copied().map(queue).collect::<io::Result<Vec<_>>>()?;
            let ring = CommandRing::new(channel.as_fd(), &numbers, agreed.reply_bytes_max())?;
            let parked = queues.iter().filter_map(|&queue| parked.get(queue).cloned()).collect();
            Ok(Self { ring, mailbox: Arc::new(Mailbox::new()?), parked, cpu, bind: cpus::pin })
        };
        let mut workers = Vec::new();
        for thread in 0..threads {
            let entries = entries_of(thread, threads, options.requests_per_cpu_max);
            for &cpu in allowed.iter().filter(|&&cpu| cpu < possible) {
                workers.push(new(Some(cpu), &vec![cpu; entries])?);
            }
            let others = (0..possible).filter(|cpu| !allowed.contains(cpu));
            let others: Vec<usize> = others.flat_map(|cpu| std::iter::repeat_n(cpu, entries)).collect();
            if !others.is_empty() {
                workers.push(new(None, &others)?);
            }
        }
        Ok(workers)
    }

    /// The mailbox by which the thread is told to end.
    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    /// Serves requests until the connection ends or the mailbox says so.
    pub(crate) fn run<H: Handler>(mut self, serving: &Serving<'_, H>, watch: Option<&Watch>) -> io::Result<()> {
        self.ring.enable()?;
        let (mut live, mut scratch, mut completions) = (self.ring.entries(), Scratch::default(), Vec::new());
        for index in 0..live {
            self.ring.submit(index, None)?; // [UR2]
        }
        self.ring.hand_over()?; // [UR7]
        if let Some(cpu) = self.cpu {
            (self.bind)(cpu);
        }
        let watched = watch.zip(self.cpu);
        if let Some((watch, cpu)) = watched {
            watch.enter(cpu);
        }
        while live > 0 {
            self.ring.listen(self.mailbox.as_fd())?;
            self.ring.wait(&mut completions)?;
            for &completion in &completions {
                match completion {
                    Completion::Letters => self.hand_over()?,
                    Completion::Entry { index, result: 0 } => {
                        if self.serve(index, serving, &mut scratch)? == Next::End {
                            return Ok(());
                        }
                        if let Some((watch, cpu)) = watched {
                            watch.served(cpu);
                        }
                    }
                    Completion::Entry { index, result } if is_refused_for_now(result) => self.ring.submit_again(index)?,
                    Completion::Entry { index, result } => {
                        live -= 1;
                        match ended(result) {
                            Err(error) if self.ring.was_registering(index) => tracing::warn!(%error, "{REFUSED}"), // [UR5]
                            other => other?,
                        }
                    }
                }
            }
            // The connection is gone, so parked requests are not waited for. After a failure the connection may live on without this
            // thread.
            if self.mailbox.is_to_end() && (!self.ring.is_lent() || serving.has_failed()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Serves the request that the kernel has put into an entry.
    fn serve<H: Handler>(&mut self, index: usize, serving: &Serving<'_, H>, scratch: &mut Scratch) -> io::Result<Next> {
        let Some(EntryParts { headers, payload }) = self.ring.parts(index) else {
            return Err(breach("a completion of an entry that was not submitted"));
        };
        let (header, _) = InHeader::read_from_prefix(&headers.in_out).map_err(|_| breach("no header"))?;
        let (commit, payload_bytes) = (headers.ring_ent_in_out.commit_id, headers.ring_ent_in_out.payload_sz as usize);
        let fixed = (header.len as usize).checked_sub(size_of::<InHeader>() + payload_bytes).and_then(|bytes| headers.op_in.get(..bytes));
        let fixed = fixed.ok_or_else(|| breach("lengths of a request that do not fit each other"))?;
        if payload_bytes > payload.len() {
            return Err(breach("a request that is longer than its entry"));
        }

        let (request, payload) = if payload_bytes > COPIED_BYTES_MAX {
            (&payload[..payload_bytes], None)
        } else {
            scratch.request.clear();
            scratch.request.extend_from_slice(&payload[..payload_bytes]);
            (scratch.request.as_slice(), Some(payload))
        };
        let mut outcome = Outcome::Waiting;
        let parked = self.parked.get(index).ok_or_else(|| breach("a request in an entry of no queue"))?;
        let slot = Slot { payload, staged: &mut scratch.staged, outcome: &mut outcome, mailbox: &self.mailbox, parked, entry: index };
        let is_in_place = slot.payload.is_none();
        let served = serving.serve(Message::from_parts(header, fixed, request), Sink::Ring(slot));
        if let Outcome::Answered { error, bytes } = outcome {
            let staged = scratch.staged.get(..bytes).filter(|_| is_in_place);
            self.answer(index, header.unique, error, bytes, staged)?;
            self.ring.submit(index, Some(commit))?;
        }
        if !matches!(served, Ok(Next::Request)) {
            self.flush()?;
        }
        served
    }

    /// Hands the finished replies of parked requests to the kernel ([UR3]).
    fn hand_over(&mut self) -> io::Result<()> {
        for letter in self.mailbox.take() {
            let Some(EntryParts { headers, .. }) = self.ring.parts(letter.entry) else {
                return Err(breach("an answer to an entry that was not parked"));
            };
            let commit = headers.ring_ent_in_out.commit_id;
            // The entry still has the header of the request.
            let (header, _) = InHeader::read_from_prefix(&headers.in_out).map_err(|_| breach("no header"))?;
            self.answer(letter.entry, header.unique, letter.error, letter.body.len(), Some(&letter.body))?;
            self.ring.submit(letter.entry, Some(commit))?;
            if let Some(parked) = self.parked.get(letter.entry) {
                parked.remove();
            }
        }
        Ok(())
    }

    /// Puts a reply where the kernel reads it. `body` is given if it is not there yet.
    fn answer(&mut self, index: usize, unique: u64, error: i32, bytes: usize, body: Option<&[u8]>) -> io::Result<()> {
        let Some(EntryParts { headers, payload }) = self.ring.parts(index) else {
            return Err(breach("an answer to an entry that is not ours"));
        };
        let (mut error, mut bytes) = (error, bytes);
        if bytes > payload.len() {
            (error, bytes) = (-libc::EIO, 0);
        } else if let Some(body) = body {
            payload[..bytes].copy_from_slice(body);
        }
        let out = OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error, unique };
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        headers.ring_ent_in_out.payload_sz = bytes as u32;
        Ok(())
    }

    /// Lets the kernel take the last reply before the thread ends.
    fn flush(&mut self) -> io::Result<()> {
        self.mailbox.end();
        self.ring.listen(self.mailbox.as_fd())?;
        self.ring.wait(&mut Vec::new())
    }
}

/// Entries that a thread registers for a queue: its share of the requests of a CPU, and at least one.
fn entries_of(thread: usize, threads: usize, requests: usize) -> usize {
    let share = requests / threads + usize::from(thread < requests % threads);
    share.max(1)
}

fn breach(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("over io_uring came {what}"))
}

/// INIT is not finished yet, or a signal arrived.
fn is_refused_for_now(result: i32) -> bool {
    matches!(-result, libc::EAGAIN | libc::EINTR)
}

/// The results of entries at the connection's end are no errors.
fn ended(result: i32) -> io::Result<()> {
    match -result {
        libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED | libc::ENOENT => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_cpu_are_shared_among_its_threads() {
        let shares = |threads, requests| (0..threads).map(|thread| entries_of(thread, threads, requests)).collect::<Vec<_>>();
        assert_eq!((shares(2, 0), shares(2, 2), shares(2, 5), shares(1, 8)), (vec![1, 1], vec![1, 1], vec![3, 2], vec![8]));
    }
}
