//! The kernel's end of a session: INIT, then requests one by one. Each is followed by a further request, whose answer shows that the
//! earlier ones were handled ([FZW2], [FZW3]).
//!
//! [FZW2]: super
//! [FZW3]: super

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tandemfs_wire::abi::{self, InitIn, InitOut, OutHeader, opcode};
use tandemfs_wire::{InitFlags, Wanted};
use zerocopy::{FromBytes, IntoBytes};

use super::judge::{self, Limits};
use super::messages::Message;
use super::{PAGES_MAX, WRITE_BYTES_MAX};
use crate::Input;

const HEADER_BYTES: usize = size_of::<OutHeader>();
/// Timeout for an answer. No request here takes a second.
const ANSWER_SECONDS_MAX: i64 = 40;
/// Pages of a request if the reply to INIT does not tell.
const PAGES_DEFAULT: usize = 32;

/// An answer as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) unique: u64,
    pub(super) error: i32,
    pub(super) body: Vec<u8>,
}

pub(super) struct Kernel {
    channel: OwnedFd,
    unique: u64,
    buffer: Vec<u8>,
    limits: Limits,
    /// Unanswered requests, by number.
    parked: HashMap<u64, Message>,
}

impl Kernel {
    pub(super) fn new(channel: OwnedFd, limits: Limits) -> Self {
        Self { channel, unique: 0, buffer: vec![0; HEADER_BYTES + 2 * WRITE_BYTES_MAX], limits, parked: HashMap::new() }
    }

    /// Whether a kernel would send a request of that length.
    pub(super) fn takes(&self, message: &Message) -> bool {
        message.body.len() <= self.limits.request_bytes
    }

    #[cfg(test)]
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn send(&mut self, message: &Message) -> u64 {
        self.unique += 2;
        let sent = send(&self.channel, &message.encode(self.unique), SendFlags::NOSIGNAL);
        sent.unwrap_or_else(|error| panic!("the session is gone ({error}) before {message:x?}"));
        self.unique
    }

    /// The next answer; `None` if the session closed the channel.
    fn receive(&mut self) -> Option<Answer> {
        let mut waiting = [PollFd::new(&self.channel, PollFlags::IN)];
        let timeout = Timespec { tv_sec: ANSWER_SECONDS_MAX, tv_nsec: 0 };
        let ready = poll(&mut waiting, Some(&timeout)).unwrap_or_else(|error| panic!("poll: {error}"));
        assert!(ready > 0, "no answer within {ANSWER_SECONDS_MAX} s");
        let (length, _) = recv(&self.channel, &mut self.buffer[..], RecvFlags::empty()).ok()?;
        (length > 0).then(|| judge::framed(&self.buffer[..length]))
    }

    /// Sends a request and returns its answer, if it is answered now. All other answers must belong to parked requests.
    pub(super) fn ask(&mut self, message: &Message) -> Option<Answer> {
        let unique = self.send(message);
        let barrier = Message::plain(opcode::STATFS);
        let last = self.send(&barrier);
        let mut own = None;
        loop {
            let answer = self.receive().unwrap_or_else(|| panic!("the session ended instead of answering {message:x?}"));
            if answer.unique == last {
                judge::answer(&barrier, &answer, &self.limits);
                break;
            }
            if answer.unique == unique {
                assert!(own.is_none(), "a second answer to {message:x?}");
                judge::answer(message, &answer, &self.limits);
                own = Some(answer);
            } else {
                let parked = self.parked.remove(&answer.unique).unwrap_or_else(|| panic!("an answer to nothing: {answer:x?}"));
                judge::late(&parked, &answer);
            }
        }
        match own {
            None if judge::may_be_parked(message) => drop(self.parked.insert(unique, message.clone())),
            None => assert!(judge::may_be_silent(message), "no answer to {message:x?}"),
            Some(_) => {}
        }
        own
    }

    /// Makes the handler answer all parked requests, then ends the session.
    pub(super) fn close(mut self) {
        self.ask(&Message::plain(opcode::SYNCFS));
        assert!(self.parked.is_empty(), "no answers to {:x?}", self.parked);
        let unique = self.send(&Message::plain(opcode::DESTROY));
        let answer = self.receive();
        assert_eq!(answer, Some(Answer { unique, error: 0, body: Vec::new() }), "DESTROY");
        assert_eq!(self.receive(), None, "an answer after the end");
    }
}

/// A variant of INIT.
#[derive(Debug)]
pub(super) struct Opening {
    how: u8,
    offered: InitIn,
}

impl Opening {
    pub(super) fn draw(input: &mut Input<'_>) -> Self {
        let how = input.byte() % 16;
        let (minor, flags, flags2) = (45, !0, !0);
        let mut offered = InitIn { major: abi::MAJOR, minor, max_readahead: 128 << 10, flags, flags2, ..InitIn::default() };
        if how >= 8 {
            offered.minor = abi::MINOR_MIN + u32::from(input.byte() % 40);
            offered.max_readahead = input.border(4) as u32;
            (offered.flags, offered.flags2) = (input.border(4) as u32, input.border(4) as u32);
        }
        match how {
            2 => offered.minor = 5,
            3 => offered.major = 3,
            _ => {}
        }
        Self { how, offered }
    }

    /// Sends INIT. `None` if the session must not begin.
    pub(super) fn run(mut self, channel: OwnedFd, wanted: &Wanted) -> Option<Kernel> {
        let mut kernel = Kernel::new(channel, Limits { request_bytes: 0, reply_bytes: 0 });
        match self.how {
            1 => {
                let newer = kernel.init(&InitIn { major: 9, ..self.offered }, false);
                let told = InitOut::read_from_bytes(&newer.body).unwrap_or_else(|_| panic!("a newer INIT is answered with {newer:x?}"));
                assert_eq!((newer.error, told.major), (0, abi::MAJOR), "a newer INIT is answered with the version");
            }
            2 | 3 => {
                assert!(kernel.init(&self.offered, false).error < 0, "an old kernel is refused");
                return None;
            }
            4 => {
                let unique = kernel.send(&Message::plain(opcode::GETATTR));
                let answer = kernel.receive().unwrap_or_else(|| panic!("no answer to what is not INIT"));
                assert!(answer.unique == unique && answer.error < 0 && answer.body.is_empty(), "{answer:x?}");
                return None;
            }
            5 => self.offered.flags2 = 0,
            _ => {}
        }
        let answer = kernel.init(&self.offered, self.how == 5);
        kernel.limits = agreed(&answer, &self.offered, wanted);
        Some(kernel)
    }
}

impl Kernel {
    fn init(&mut self, offered: &InitIn, is_short: bool) -> Answer {
        let mut message = Message::plain(opcode::INIT);
        message.body = offered.as_bytes()[..if is_short { size_of::<abi::InitCompatIn>() } else { size_of::<InitIn>() }].to_vec();
        let unique = self.send(&message);
        let answer = self.receive().unwrap_or_else(|| panic!("no answer to INIT {}.{}", offered.major, offered.minor));
        assert_eq!(answer.unique, unique, "INIT");
        answer
    }
}

/// Checks the negotiation; returns the agreed limits ([FZW2]).
pub(super) fn agreed(answer: &Answer, offered: &InitIn, wanted: &Wanted) -> Limits {
    assert_eq!(answer.error, 0, "INIT");
    let told = InitOut::read_from_bytes(&answer.body).unwrap_or_else(|_| panic!("INIT is answered with {} B", answer.body.len()));
    let (flags, offer) = (InitFlags::from_words(told.flags, told.flags2), InitFlags::from_words(offered.flags, offered.flags2));
    let spoken = InitFlags::BIG_WRITES | InitFlags::MAX_PAGES | InitFlags::INIT_EXT;
    assert!(offer.contains(flags), "{flags:?} where {offer:?} is offered");
    assert!((wanted.flags | spoken).contains(flags), "{flags:?} where {:?} is wanted", wanted.flags);
    assert!(!flags.contains(InitFlags::PASSTHROUGH), "there is no passthrough");
    assert!(told.max_write >= 4096 && told.max_write as usize <= WRITE_BYTES_MAX, "WRITEs of {} B", told.max_write);
    assert!(told.max_readahead <= offered.max_readahead, "more is read ahead than was offered");
    assert!((1..=told.max_background).contains(&told.congestion_threshold), "{told:?}");
    assert!((1..=1_000_000_000).contains(&told.time_gran) && 10_u32.pow(told.time_gran.ilog10()) == told.time_gran, "{told:?}");
    let pages = if flags.contains(InitFlags::MAX_PAGES) { usize::from(told.max_pages) } else { PAGES_DEFAULT };
    assert!((1..=PAGES_MAX).contains(&pages), "requests of {pages} pages");
    // The kernel never reads less than this at a time.
    let reply_bytes = (pages * rustix::param::page_size()).max(told.max_write as usize).max(abi::MIN_READ_BUFFER);
    Limits { request_bytes: (told.max_write as usize).max(64 << 10), reply_bytes }
}
