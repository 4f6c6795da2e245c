//! Arbitrary bytes for `tandemfs-wire`: for its parser alone, and for a session over a socket that replaces /dev/fuse. The kernel's end
//! chooses the handler's answer by a header field that a session does not use.
//!
//! [FZW1] Any bytes give a request or an error that identifies it. Parsed data lies within the message; names are not empty and contain no
//!        NUL. A request in parts, as io_uring gives it, parses to the same request (`parsing.rs`).
//! [FZW2] INIT agrees only on what was offered, or is refused with an error answer.
//! [FZW3] A request gets one answer, or none if the kernel expects none; a parked request gets its answer later. Number, length and content
//!        of the answer are correct (`kernel.rs`, `judge.rs`).
//! [FZW4] A message whose length differs from its header's ends the session with an error; DESTROY ends it without one.

mod handler;
mod judge;
mod kernel;
mod lies;
mod messages;
mod parsing;

use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use tandemfs_wire::{InitFlags, Options, Session, Wanted};

use crate::Input;
use crate::door::channel;
use handler::Server;
use kernel::Opening;
pub(crate) use lies::LIES;
use messages::Message;

const REQUESTS_MAX: usize = 40;
/// Small enough for one message of the socket without a larger socket buffer.
const WRITE_BYTES_MAX: usize = 128 << 10;
const PAGES_MAX: usize = 32;

/// The wishes of some file system.
fn wanted(input: &mut Input<'_>) -> Wanted {
    let mut wanted = Wanted { max_write: WRITE_BYTES_MAX as u32, ..Wanted::default() };
    if input.one_in(2) {
        wanted.flags = InitFlags::from_words(input.border(4) as u32, input.border(4) as u32);
        wanted.max_write = (input.border(4) as u32).min(wanted.max_write);
        wanted.max_pages = input.one_in(2).then(|| (input.border(2) as u16).min(PAGES_MAX as u16));
        wanted.max_readahead = input.border(4) as u32;
        wanted.max_background = input.border(2) as u16;
        wanted.congestion_threshold = input.one_in(2).then(|| input.border(2) as u16);
        wanted.time_granularity_ns = input.border(4) as u32;
        wanted.request_timeout_s = input.border(2) as u16;
    }
    wanted
}

fn start(end: OwnedFd, wanted: Wanted) -> JoinHandle<io::Result<()>> {
    std::thread::spawn(move || Session::start(end, Server::default(), &wanted, Options::default())?.run())
}

fn ended(session: JoinHandle<io::Result<()>>) -> io::Result<()> {
    session.join().unwrap_or_else(|_| panic!("the session panicked"))
}

/// Parses the input as a message. Then it is read as wishes, an INIT variant and requests.
pub(crate) fn run(bytes: &[u8]) {
    parsing::any_bytes(bytes);
    let mut input = Input::new(bytes);
    let wanted = wanted(&mut input);
    let (ours, theirs) = channel();
    let session = start(theirs, wanted);
    let Some(mut kernel) = Opening::draw(&mut input).run(ours, &wanted) else {
        assert!(ended(session).is_err(), "the first request was refused, and the session goes on");
        return;
    };
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let message = Message::draw(&mut input);
        parsing::message(&message);
        if !kernel.takes(&message) {
            continue;
        }
        if !message.is_as_long_as_it_says() {
            kernel.send(&message);
            drop(kernel);
            assert!(ended(session).is_err(), "a message of another length than it says, and the session goes on");
            return;
        }
        kernel.ask(&message);
    }
    kernel.close();
    ended(session).unwrap_or_else(|error| panic!("the session ended with: {error}"));
}

/// Every opcode with each kind of answer, and variants of INIT.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let each = (0..messages::SHAPES_COUNT as u8).flat_map(|shape| {
        (0..4_u8).map(move |choice| {
            let noise = (0..60_u8).map(|at| at.wrapping_mul(37).wrapping_add(shape.wrapping_mul(11)));
            // Ordinary wishes and INIT; a drawn request with a chosen answer.
            [0, 0, 1, 3 + choice, 100, 0, 0, 0, shape].into_iter().chain(noise).collect::<Vec<u8>>()
        })
    });
    let openings = (0..12_u8).map(|how| [1, 7, how, how.wrapping_mul(40), 2, 2, 2, 2, 3, 3, 3, how].repeat(4));
    each.chain(openings).collect()
}

#[cfg(test)]
mod tests {
    use super::kernel::Kernel;
    use super::messages::KNOWN;
    use super::*;

    fn served() -> (Kernel, JoinHandle<io::Result<()>>) {
        let (ours, theirs) = channel();
        let wanted = Wanted { max_write: WRITE_BYTES_MAX as u32, ..Wanted::default() };
        let session = start(theirs, wanted);
        (Opening::draw(&mut Input::new(&[])).run(ours, &wanted).expect("an ordinary INIT"), session)
    }

    /// Otherwise the checks of answer bodies would see only errors.
    #[test]
    fn every_operation_is_answered_with_what_it_wants() {
        let (mut kernel, session) = served();
        for opcode in KNOWN {
            let answer = kernel.ask(&Message::plain(*opcode));
            assert_eq!(answer.map(|answer| answer.error), messages::wants_answer(*opcode).then_some(0), "operation {opcode}");
        }
        kernel.close();
        ended(session).expect("told to end");
    }

    #[test]
    fn parked_requests_are_answered_later() {
        let (mut kernel, session) = served();
        let parked = Message { choice: 2, ..Message::plain(15) };
        assert!(kernel.ask(&parked).is_none() && kernel.ask(&parked).is_none());
        assert_eq!(kernel.parked(), 2);
        kernel.close();
        ended(session).expect("told to end");
    }
}
