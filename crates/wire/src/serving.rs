//! What every thread of a session does with a request, whatever it came by.
//!
//! [SG1] A request that cannot be parsed is answered `EIO`, one of an unknown operation `ENOSYS`, by which the kernel stops asking.
//! [SG2] INIT, DESTROY, INTERRUPT and NOTIFY_REPLY are the session's own; the handler sees all others.
//! [SG3] After a panic of the handler, or an error of a thread, each thread ends with the request that it serves or takes next, and that is
//!       answered `EIO`: what the handler holds is not to be trusted any more. Threads of io_uring, and the one beside them, end at once.

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

/// Whether a thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Request,
    End,
}

/// What the threads of a session share.
#[derive(Debug)]
pub(crate) struct Serving<'a, H> {
    pub(crate) handler: &'a H,
    pub(crate) agreed: &'a Agreed,
    pub(crate) retrievals: &'a Retrievals,
    /// Where replies to INTERRUPT go.
    pub(crate) channel: &'a Channel,
    pub(crate) failed: &'a AtomicBool,
    /// Kept where requests come over io_uring.
    pub(crate) early: Option<&'a EarlyInterrupts>,
    /// Who may use the mount beside root; `None` = everybody whom the kernel lets.
    pub(crate) owner: Option<u32>,
}

impl<H: Handler> Serving<'_, H> {
    pub(crate) fn idle(&self) {
        self.handler.idle();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Serves one request. An error is a panic of the handler ([SG3]).
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
        request.uid == owner || request.uid == 0 || request.operation.is_by_open_file()
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

    /// The kernel wants a reply to INTERRUPT only where that asks for something.
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
        // Nothing of the handler is used again after a panic ([SG3]).
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

    /// Parks what it is asked, and answers what is interrupted.
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
        // Nothing was asked of the kernel, which could not do it.
        assert_eq!(rustix::io::read(&kernel, &mut [0; 16]), Err(rustix::io::Errno::AGAIN));
    }
}
