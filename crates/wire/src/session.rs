//! A session: answers INIT, then serves requests in several threads until the connection ends.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as SystemError;
use zerocopy::IntoBytes;

use crate::abi::{self, InitOut, OutHeader};
use crate::crew::Crew;
use crate::device::{self, Channel};
use crate::interrupts::EarlyInterrupts;
use crate::mailbox::Mailbox;
use crate::negotiation::Disagreement;
use crate::notify::{Notifier, Retrievals};
use crate::request::{Dialect, Init};
use crate::ring::Worker;
use crate::scheduling::Watch;
use crate::serving::Serving;
use crate::{Agreed, Errno, InitFlags, Operation, Reply, Request, Wanted};

/// Answers requests. Several threads call it concurrently.
///
/// If it panics, the session ends: requests are answered `EIO`, then the connection is closed.
pub trait Handler: Sync {
    /// Answers a request, or parks its reply. Operations that it does not support get [`Errno::ENOSYS`]; for most of them the kernel then
    /// sends no more requests.
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>);

    /// The caller of this request got a signal. The request still needs an answer, `EINTR` if there is none better. It may already be
    /// answered, or may arrive later.
    fn interrupted(&self, unique: u64) -> Interruption {
        let _ = unique;
        Interruption::Noted
    }

    /// Called by a thread of a polled session ([`Options::polled`]) when no request is waiting.
    fn idle(&self) {
        thread::yield_now();
    }
}

impl<H: Handler + ?Sized> Handler for &H {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        (**self).handle(request, reply);
    }

    fn interrupted(&self, unique: u64) -> Interruption {
        (**self).interrupted(unique)
    }

    fn idle(&self) {
        (**self).idle();
    }
}

impl<H: Handler + Send + ?Sized> Handler for Arc<H> {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        (**self).handle(request, reply);
    }

    fn interrupted(&self, unique: u64) -> Interruption {
        (**self).interrupted(unique)
    }

    fn idle(&self) {
        (**self).idle();
    }
}

/// The result of [`Handler::interrupted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// The request will be answered sooner, or does not matter.
    Noted,
    /// The request has not arrived yet: the kernel must resend the interrupt.
    TryAgain,
    /// The kernel need not send interrupts any more.
    Unsupported,
}

/// Settings of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Threads that serve requests over the device, at least one. With io_uring there is only one, as few requests use the device then.
    pub device_threads: usize,
    /// Give each of these threads its own descriptor (`FUSE_DEV_IOC_CLONE`), to avoid lock contention on one.
    pub clone_device: bool,
    /// Further threads that serve the device in place of those that wait ([`crate::will_wait`]). One that has served keeps memory for its
    /// largest request and reply. None over io_uring, nor for a polled session.
    pub waiting_max: usize,
    /// Threads do not sleep in the device: without a request they call [`Handler::idle`]. All requests then come over the device.
    pub polled: bool,
    /// Serve requests over io_uring if the kernel offers it; otherwise over the device.
    pub ring: Option<RingOptions>,
    /// On a mount open to every user, only this user and root may use it. Others get `EACCES`, except for requests on files that are
    /// already open.
    pub only_root_and: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self { device_threads: 1, clone_device: false, waiting_max: 0, polled: false, ring: None, only_root_and: None }
    }
}

/// Settings of io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOptions {
    /// Threads for each CPU that this process may run on; the same number serves all other CPUs together.
    pub threads_per_cpu: usize,
    /// Requests per CPU that can be served or parked at a time, at least one per thread. Each costs the memory of the largest request once
    /// it was used. With more requests than threads, a request may wait for a busy thread while another one sleeps. So a handler that
    /// blocks should use as many as threads; one that parks should use more.
    pub requests_per_cpu_max: usize,
    /// Let the threads be `SCHED_IDLE` while the machine has idle CPU time, so that the scheduler leaves their callers on their CPUs. This
    /// needs root or `RLIMIT_NICE`; without them nothing changes. See `scheduling.rs`.
    pub keep_callers: bool,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { threads_per_cpu: 2, requests_per_cpu_max: 2, keep_callers: true }
    }
}

/// Numbers of threads of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// Threads that serve the device, without those that serve in place of others that wait.
    pub device: usize,
    /// Threads that serve io_uring; 0 if all requests come over the device.
    pub ring: usize,
}

/// A connection to the kernel whose INIT has been answered.
pub struct Session<H> {
    handler: H,
    channel: Arc<Channel>,
    agreed: Agreed,
    workers: Vec<Worker>,
    options: Options,
    retrievals: Arc<Retrievals>,
}

impl<H: Handler> Session<H> {
    /// Waits for INIT and answers it. `device` comes from [`crate::mount()`], or is any descriptor that keeps message boundaries in reads
    /// and writes.
    ///
    /// Requests are served from [`Session::run`] on.
    pub fn start(device: OwnedFd, handler: H, wanted: &Wanted, options: Options) -> io::Result<Self> {
        let hides_callers = if options.only_root_and.is_some() { InitFlags::ALLOW_IDMAP } else { InitFlags::NONE }; // [NE4]
        let wanted = &Wanted { flags: wanted.flags - hides_callers, ..*wanted };
        let channel = Arc::new(Channel::new(device));
        let mut buffer = vec![0; device::request_bytes_max(0)];
        let (unique, mut agreed) = loop {
            let (unique, offer) = first_request(&channel, &mut buffer)?;
            match Agreed::on(&offer, wanted) {
                Ok(agreed) => break (unique, agreed),
                Err(Disagreement::AskAgain) => {
                    reply_init(&channel, unique, &InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() })?;
                }
                Err(Disagreement::TooOld { major, minor }) => {
                    refuse(&channel, unique, Errno::EPROTO);
                    let what = format!("the kernel speaks FUSE {major}.{minor}, older than {}.{}", abi::MAJOR, abi::MINOR_MIN);
                    return Err(io::Error::new(io::ErrorKind::Unsupported, what));
                }
            }
        };
        let workers = rings(&channel, &options, &mut agreed);
        tracing::debug!(?agreed, "FUSE session");
        reply_init(&channel, unique, &agreed.reply())?;
        if options.polled {
            channel.set_polled()?;
        }
        Ok(Self { handler, channel, agreed, workers, options, retrievals: Arc::default() })
    }

    /// The result of the negotiation.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// A notifier for messages to the kernel.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.channel, &self.retrievals, &self.agreed)
    }

    /// The numbers of threads that [`Session::run`] starts.
    pub fn threads(&self) -> Threads {
        let device = if self.workers.is_empty() { self.options.device_threads.max(1) } else { 1 };
        Threads { device, ring: self.workers.len() }
    }

    /// Serves until the connection ends, by an unmount or an abort. The calling thread is one of the serving threads.
    pub fn run(self) -> io::Result<()> {
        let threads = self.threads();
        let Self { handler, channel, agreed, workers, options, retrievals } = self;
        let failed = AtomicBool::new(false);
        let early = EarlyInterrupts::default();
        let early = (!workers.is_empty()).then_some(&early);
        let serving = Serving {
            handler: &handler,
            agreed: &agreed,
            retrievals: &retrievals,
            channel: &channel,
            failed: &failed,
            early,
            owner: options.only_root_and,
        };
        let crew = Arc::new(Crew::new(threads.device));
        let spare = if workers.is_empty() && !options.polled { options.waiting_max } else { 0 };
        let mut channels = Vec::new();
        for _ in 1..threads.device + spare {
            channels.push(if options.clone_device { Arc::new(channel.duplicate()?) } else { Arc::clone(&channel) });
        }
        if options.polled {
            channels.iter().try_for_each(|channel| channel.set_polled())?;
        }
        let own = Mailbox::new()?;
        let own = (!workers.is_empty()).then_some(own);
        let cpus = workers.iter().filter_map(|worker| worker.cpu).max().filter(|_| options.ring.is_some_and(|ring| ring.keep_callers));
        let watch = cpus.map(|last| Watch::new(last + 1));
        let watch = watch.as_ref();
        let ends =
            Ends { mailboxes: workers.iter().map(Worker::mailbox).collect(), own: own.as_ref(), crew: &crew, watch, failed: &failed };
        let serving = &serving;
        let (ends, crew) = (&ends, &crew);
        thread::scope(|scope| {
            let mut others = Vec::new();
            for worker in workers {
                let name = worker.cpu.map_or_else(|| "fuse-ring".to_owned(), |cpu| format!("fuse-cpu-{cpu}"));
                let spawned = thread::Builder::new().name(name).spawn_scoped(scope, move || ends.on_error(worker.run(serving, watch)));
                // A queue without a thread would hold back all requests.
                others.push(spawned.inspect_err(|_| ends.fail())?);
            }
            for (index, channel) in channels.into_iter().enumerate() {
                let name = format!("fuse-{}", index + 1);
                match thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, move || ends.on_error(device::serve(&channel, serving, crew, None)))
                {
                    Ok(other) => others.push(other),
                    Err(error) => tracing::warn!(%error, "fewer threads serve requests than were asked for"),
                }
            }
            if let Some(watch) = watch
                && let Err(error) = thread::Builder::new().name("fuse-watch".into()).spawn_scoped(scope, || watch.run())
            {
                tracing::debug!(%error, "the scheduler places callers as it likes");
            }
            let mut result = ends.on_error(device::serve(&channel, serving, crew, own.as_ref()));
            ends.all();
            for other in others {
                let other = other.join().unwrap_or_else(|_| Err(io::Error::other("a thread that served requests panicked")));
                result = result.and(other);
            }
            result
        })
    }

    /// Runs the session in a new thread.
    pub fn spawn(self) -> io::Result<JoinHandle<io::Result<()>>>
    where
        H: Send + 'static,
    {
        thread::Builder::new().name("fuse-session".into()).spawn(move || self.run())
    }
}

/// Tells threads to end.
struct Ends<'a> {
    mailboxes: Vec<Arc<Mailbox>>,
    /// For the thread that serves the device beside io_uring.
    own: Option<&'a Mailbox>,
    crew: &'a Crew,
    watch: Option<&'a Watch>,
    failed: &'a AtomicBool,
}

impl Ends<'_> {
    fn all(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.end());
        self.own.into_iter().for_each(Mailbox::end);
        self.crew.end();
        self.watch.into_iter().for_each(Watch::end);
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.all();
    }

    /// Requests of a queue without a thread would wait forever, so the whole session ends ([SG3] of `serving.rs`).
    fn on_error(&self, result: io::Result<()>) -> io::Result<()> {
        result.inspect_err(|error| {
            tracing::error!(%error, "a thread that serves requests has ended");
            self.fail();
        })
    }
}

fn first_request(channel: &Channel, buffer: &mut [u8]) -> io::Result<(u64, Init)> {
    let bytes = loop {
        match channel.receive(buffer) {
            // Returns the length only: the loop still borrows the buffer.
            Ok(Some(bytes)) => break bytes.len(),
            Ok(None) => return Err(io::Error::new(io::ErrorKind::NotConnected, "the mount is gone before its first request")),
            Err(SystemError::AGAIN) => drop(rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(channel, PollFlags::IN)], None))?),
            Err(error) => return Err(error.into()),
        }
    };
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let request = Request::parse(buffer.get(..bytes).unwrap_or_default(), Dialect::default());
    match request.map_err(|error| invalid(error.to_string()))? {
        Request { unique, operation: Operation::Init(offer), .. } => Ok((unique, offer)),
        request => {
            refuse(channel, request.unique, Errno::EIO);
            Err(invalid(format!("the first request is not INIT but {:?}", request.operation)))
        }
    }
}

/// Creates the rings. They must exist before the kernel learns of io_uring; without them requests come over the device.
fn rings(channel: &Channel, options: &Options, agreed: &mut Agreed) -> Vec<Worker> {
    let Some(ring) = options.ring.filter(|_| !options.polled && agreed.offered.contains(InitFlags::OVER_IO_URING)) else {
        return Vec::new();
    };
    match Worker::all(channel, &ring, agreed) {
        Ok(workers) => {
            agreed.flags |= InitFlags::OVER_IO_URING;
            workers
        }
        Err(error) => {
            tracing::info!(%error, "requests come over the device, as there is no io_uring");
            Vec::new()
        }
    }
}

fn reply_init(channel: &Channel, unique: u64, reply: &InitOut) -> io::Result<()> {
    let header = OutHeader { len: (size_of::<OutHeader>() + size_of::<InitOut>()) as u32, error: 0, unique };
    Ok(channel.try_send(&[IoSlice::new(header.as_bytes()), IoSlice::new(reply.as_bytes())])?)
}

fn refuse(channel: &Channel, unique: u64, error: Errno) {
    let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -error.code(), unique };
    channel.send(&[IoSlice::new(header.as_bytes())]);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Attributes, MountOptions, cpus, mount};

    /// An empty root directory.
    struct Root;

    impl Handler for Root {
        fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
            let attributes = Attributes { ino: 1, mode: 0o040_755, nlink: 2, ..Attributes::default() };
            match request.operation {
                Operation::Getattr { .. } => reply.attributes(&attributes, Duration::ZERO),
                Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
                _ => reply.error(Errno::ENOSYS),
            }
        }
    }

    static IS_FREE: Mutex<bool> = Mutex::new(false);
    static FREED: Condvar = Condvar::new();

    /// Replaces [`cpus::pin`]: acts like a busy CPU on which the thread must wait.
    fn wait_for_the_cpu(_: usize) {
        let is_free = IS_FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let _free = FREED.wait_while(is_free, |is_free| !*is_free).unwrap_or_else(PoisonError::into_inner);
    }

    /// Threads that were bound to a busy CPU before they registered their entries blocked all callers, on every CPU.
    #[test]
    fn regression_a_busy_cpu_holds_back_no_requests_of_others() {
        // Tests of other programs switch it for all of the machine, and hold a lock of it meanwhile.
        let parameter = "/sys/module/fuse/parameters/enable_uring";
        let locked = fs::File::open(parameter).ok().filter(|parameter| parameter.try_lock_shared().is_ok());
        let enabled = locked.is_some() && fs::read_to_string(parameter).is_ok_and(|value| value.trim() == "Y");
        let cpus = cpus::cpus().expect("this machine's").allowed;
        let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else { unreachable!("a process may run somewhere") };
        if !rustix::process::geteuid().is_root() || !enabled || first == last {
            return println!("skipped: not root, or no FUSE over io_uring, or one CPU");
        }
        let directory = tempfile::tempdir().expect("a directory");
        let (device, mounted) = mount(directory.path(), &MountOptions::default()).expect("mounted");
        let options = Options { ring: Some(RingOptions::default()), ..Options::default() };
        let mut session = Session::start(device, Root, &Wanted::default(), options).expect("started");
        assert!(session.threads().ring > 0, "it is on, and nobody has switched it off");
        drop(locked);
        session.workers.iter_mut().filter(|worker| worker.cpu == Some(last)).for_each(|worker| worker.bind = wait_for_the_cpu);
        let serving = session.spawn().expect("a thread");

        // In another process, since this one serves; its requests go to the first CPU's queue.
        let place = directory.path().to_owned();
        let client = thread::spawn(move || {
            cpus::pin(first);
            Command::new("stat").arg(place).stdout(Stdio::null()).spawn().expect("run")
        });
        let mut client = client.join().expect("no panic");
        let asked = Instant::now();
        let mut answered = None;
        while answered.is_none() && asked.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
            answered = client.try_wait().expect("a child");
        }
        *IS_FREE.lock().unwrap_or_else(PoisonError::into_inner) = true;
        FREED.notify_all();
        assert!(client.wait().expect("ended").success());
        drop(mounted);
        serving.join().expect("no panic").expect("served");
        assert!(answered.is_some(), "the first CPU's caller had to wait for the last CPU");
    }
}
