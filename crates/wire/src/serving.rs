//! How each thread of a session serves a request, over the device or io_uring.
//!
//! [SG1] A request that cannot be parsed is answered `EIO`. An unknown operation is answered `ENOSYS`, after which the kernel stops sending
//!       it.
//! [SG2] The session itself serves INIT, DESTROY, INTERRUPT and NOTIFY_REPLY; the handler gets all other requests.
//! [SG3] After a panic of the handler or an error of a thread, each thread answers `EIO` to its current or next request and ends: the
//!       handler's state is no longer trusted. Threads of io_uring, and the device thread beside them, end at once.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use zerocopy::IntoBytes;

use crate::abi::OutHeader;
use crate::device::Channel;
use crate::interrupts::EarlyInterrupts;
use crate::notify::Retrievals;
use crate::reply::Context;
use crate::reply::sink::Sink;
use crate::request::Message;
use crate::{Agreed, Errno, Handler, Interruption, Operation, Reply, Request, RequestError};

/// Whether a thread continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Request,
    End,
}

/// State shared by the threads of a session.
#[derive(Debug)]
pub(crate) struct Serving<'a, H> {
    pub(crate) handler: &'a H,
    pub(crate) agreed: &'a Agreed,
    pub(crate) retrievals: &'a Retrievals,
    /// Carries the replies to INTERRUPT.
    pub(crate) channel: &'a Channel,
    pub(crate) failed: &'a AtomicBool,
    /// Present if requests come over io_uring.
    pub(crate) early: Option<&'a EarlyInterrupts>,
    /// The only user beside root who may use the mount; `None` = the kernel decides.
    pub(crate) owner: Option<u32>,
}

impl<H: Handler> Serving<'_, H> {
    pub(crate) fn idle(&self) {
        self.handler.idle();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Serves one request. An error means that the handler panicked ([SG3]).
    pub(crate) fn serve(&self, message: Message<'_>, sink: Sink<'_>) -> io::Result<Next> {
        let Message { header, .. } = message;
        let context = Context { unique: header.unique, opcode: header.opcode, bytes_max: self.agreed.reply_bytes_max() };
        let reply = Reply::new(context, sink);
        if self.has_failed() {
            reply.error(Errno::EIO);
            return Ok(Next::End);
        }
        match message.request(self.agreed.dialect()) {
            Ok(request) => self.dispatch(&request, reply),
            Err(error) => {
                tracing::warn!(%error, "a request is refused");
                let unknown = matches!(error, RequestError::Unknown { .. });
                reply.error(if unknown { Errno::ENOSYS } else { Errno::EIO }); // [SG1]
                Ok(Next::Request)
            }
        }
    }

    fn dispatch(&self, request: &Request<'_>, reply: Reply<'_>) -> io::Result<Next> {
        match request.operation {
            Operation::Init(_) => reply.error(Errno::EIO),
            Operation::Destroy => {
                reply.ok();
                return Ok(Next::End);
            }
            Operation::NotifyReply { offset, data } => {
                self.retrievals.arrived(request.unique, offset, data);
                reply.ok();
            }
            Operation::Interrupt { unique } => {
                let interruption = self.guarded(|| self.interrupt(unique))?;
                self.answer_interrupt(request.unique, interruption);
                reply.none();
            }
            _ if !self.may(request) => reply.error(Errno::EACCES),
            _ => self.guarded(|| {
                self.handler.handle(request, reply);
                if self.early.is_some_and(|early| early.take(request.unique)) {
                    self.handler.interrupted(request.unique);
                }
            })?,
        }
        Ok(Next::Request)
    }

    fn may(&self, request: &Request<'_>) -> bool {
        let Some(owner) = self.owner else { return true };
        request.caller().is_some_and(|(uid, _)| uid == owner || uid == 0) || request.operation.is_by_open_file()
    }

    fn interrupt(&self, unique: u64) -> Interruption {
        let interruption = self.handler.interrupted(unique);
        let Some(early) = self.early.filter(|_| interruption == Interruption::TryAgain) else { return interruption };
        // [IT1] of `interrupts.rs`
        early.keep(unique);
        if self.handler.interrupted(unique) != Interruption::TryAgain {
            early.take(unique);
        }
        Interruption::Noted
    }

    /// INTERRUPT gets a reply only to make the kernel resend it or stop sending it.
    fn answer_interrupt(&self, unique: u64, interruption: Interruption) {
        let error = match interruption {
            Interruption::Noted => return,
            Interruption::TryAgain => Errno::EAGAIN,
            Interruption::Unsupported => Errno::ENOSYS,
        };
        let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -error.code(), unique };
        self.channel.send(&[IoSlice::new(header.as_bytes())]);
    }

    fn guarded<R>(&self, work: impl FnOnce() -> R) -> io::Result<R> {
        // After a panic the handler is not used again ([SG3]).
        catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
            self.failed.store(true, Ordering::Release);
            io::Error::other("the handler of requests panicked")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::abi::{InHeader, InterruptIn, opcode};
    use crate::request::Dialect;
    use crate::{InitFlags, ParkedReply, Wanted};

    /// Parks every request, and answers the interrupted ones.
    #[derive(Default)]
    struct Parking(Mutex<Vec<ParkedReply>>);

    impl Handler for Parking {
        fn handle(&self, _request: &Request<'_>, reply: Reply<'_>) {
            self.0.lock().expect("no panic").push(reply.park());
        }

        fn interrupted(&self, unique: u64) -> Interruption {
            let mut parked = self.0.lock().expect("no panic");
            let Some(place) = parked.iter().position(|reply| reply.unique() == unique) else { return Interruption::TryAgain };
            parked.remove(place).finish(|reply| reply.error(Errno::EINTR));
            Interruption::Noted
        }
    }

    fn agreed() -> Agreed {
        let offer = crate::Init { major: 7, minor: 45, max_readahead: 0, flags: InitFlags::NONE };
        Agreed::on(&offer, &Wanted::default()).expect("agreed")
    }

    fn socket() -> (OwnedFd, Channel) {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).expect("a socket");
        (ours, Channel::new(theirs))
    }

    #[test]
    fn an_interrupt_that_overtook_its_request_is_not_lost() {
        let (handler, agreed, retrievals, failed) = (Parking::default(), agreed(), Retrievals::default(), AtomicBool::new(false));
        let (kernel, channel) = socket();
        let early = EarlyInterrupts::default();
        let (handler, early) = (&handler, Some(&early));
        let (agreed, retrievals, channel, failed) = (&agreed, &retrievals, &channel, &failed);
        let serving = Serving { handler, agreed, retrievals, channel, failed, early, owner: None };

        let ask = |opcode, unique, body: &[u8]| {
            let header = InHeader { len: (40 + body.len()) as u32, opcode, unique, ..InHeader::default() };
            let message = [header.as_bytes(), body].concat();
            let message = Message::from_bytes(&message).expect("a message");
            assert!(message.request(Dialect::default()).is_ok());
            serving.serve(message, Sink::Nobody { body: Vec::new() }).expect("served");
        };
        ask(opcode::INTERRUPT, 9, InterruptIn { unique: 8 }.as_bytes());
        ask(opcode::STATFS, 6, &[]);
        assert_eq!(handler.0.lock().expect("no panic").len(), 1, "another request is not interrupted");
        ask(opcode::STATFS, 8, &[]);
        assert_eq!(handler.0.lock().expect("no panic").iter().map(ParkedReply::unique).collect::<Vec<_>>(), [6]);
        // No resend was asked for: over io_uring the kernel could not do it.
        assert_eq!(rustix::io::read(&kernel, &mut [0; 16]), Err(rustix::io::Errno::AGAIN));
    }
}
