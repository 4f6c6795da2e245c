//! Wrong answers; each must be detected (see [`crate::Target::lies`]).

use rustix::net::{SendFlags, send};
use tandemfs_wire::abi::{Attr, AttrOut, InitIn, InitOut, OutHeader, opcode::*};
use tandemfs_wire::{Dialect, Request, RequestError, Wanted};
use zerocopy::IntoBytes;

use super::handler::{MODE, byte_at};
use super::judge::{Limits, answer, success};
use super::kernel::{Answer, Kernel, agreed};
use super::messages::Message;
use super::parsing;

const LIMITS: Limits = Limits { request_bytes: 4096, reply_bytes: 8192 };

pub(crate) const LIES: &[(&str, fn())] = &[
    ("another number", || told(&[message(6, 0, &[]), statfs(4)])),
    ("a length that is not the message's", || told(&[[&message(2, 0, &[])[..], &[0]].concat(), statfs(4)])),
    ("an error above zero", || told(&[message(2, 5, &[]), statfs(4)])),
    ("an error that no kernel takes", || told(&[message(2, -512, &[]), statfs(4)])),
    ("an error with a body", || told(&[message(2, -5, &[0; 8]), statfs(4)])),
    ("two answers", || told(&[getattr(2), getattr(2), statfs(4)])),
    ("no answer", || told(&[statfs(4)])),
    ("the end instead of an answer", || told(&[])),
    ("another error than the handler's", || {
        answer(&Message { choice: 1 | 28 << 3, ..Message::plain(GETATTR) }, &refusal(-2), &LIMITS);
    }),
    ("an answer in the place of a reply that was dropped", || {
        answer(&Message { choice: 0, ..Message::plain(UNLINK) }, &refusal(0), &LIMITS);
    }),
    ("an answer to FORGET", || answer(&Message::plain(FORGET), &refusal(0), &LIMITS)),
    ("attributes that are too short", || judged(GETATTR, &[0; 96])),
    ("attributes of another node", || judged(GETATTR, attributes(7).as_bytes())),
    ("more bytes than were asked for", || judged(READ, &pattern(4097))),
    ("another byte than was given", || judged(READ, &[&pattern(4095)[..], &[0]].concat())),
    ("a listing that leaves out what fits", || judged(READDIR, &[])),
    ("a body where there is none", || judged(UNLINK, &[0; 8])),
    ("more than was written", || judged(WRITE, &[1, 0, 0, 0, 0, 0, 0, 0])),
    ("an ability that was not offered", || {
        let offered = InitIn { flags: !(1 << 5), ..init_in() };
        agreed(&init(|_| {}), &offered, &Wanted::default());
    }),
    ("an ability that was not wanted", || {
        agreed(&init(|told| told.flags |= 1), &init_in(), &Wanted::default());
    }),
    ("a threshold above what there may be", || {
        agreed(&init(|told| told.congestion_threshold = told.max_background + 1), &init_in(), &Wanted::default());
    }),
    ("a request that is parsed from other bytes", || {
        let (sent, other) = (Message::plain(LOOKUP).encode(2), Message::plain(LOOKUP).encode(2));
        parsing::judge(&sent, &Request::parse(&other, Dialect::default()));
    }),
    ("a known operation that is not known", || {
        parsing::judge(&Message::plain(LOOKUP).encode(2), &Err(RequestError::Unknown { unique: 2, opcode: LOOKUP }));
    }),
    ("a length that is right and refused", || {
        let sent = Message::plain(LOOKUP).encode(2);
        parsing::judge(&sent, &Err(RequestError::Length { got: sent.len(), said: 0 }));
    }),
];

fn message(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let header = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
    [header.as_bytes(), body].concat()
}

fn attributes(node: u64) -> AttrOut {
    AttrOut { attr: Attr { ino: node, mode: MODE, blksize: 4096, ..Attr::default() }, ..AttrOut::default() }
}

fn getattr(unique: u64) -> Vec<u8> {
    message(unique, 0, attributes(1).as_bytes())
}

/// The answer to the request that the kernel's end sends after each request.
fn statfs(unique: u64) -> Vec<u8> {
    let mut body = [0; 80];
    body[0] = 1;
    message(unique, 0, &body)
}

fn refusal(error: i32) -> Answer {
    Answer { unique: 2, error, body: Vec::new() }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| byte_at(0, index)).collect()
}

fn judged(opcode: u32, body: &[u8]) {
    success(&Message::plain(opcode), 0x0001_0507, body, &LIMITS);
}

fn init_in() -> InitIn {
    InitIn { major: 7, minor: 45, max_readahead: 1 << 20, flags: !0, flags2: !0, ..InitIn::default() }
}

fn init(change: fn(&mut InitOut)) -> Answer {
    let mut told =
        InitOut { major: 7, minor: 45, flags: 1 << 5 | 1 << 22, max_write: 4096, max_pages: 1, time_gran: 1, ..InitOut::default() };
    (told.max_background, told.congestion_threshold) = (12, 9);
    change(&mut told);
    Answer { unique: 2, error: 0, body: told.as_bytes().to_vec() }
}

/// Simulates a session that answers GETATTR with these messages.
fn told(messages: &[Vec<u8>]) {
    let (ours, theirs) = crate::door::channel();
    for message in messages {
        send(&theirs, message, SendFlags::NOSIGNAL).map(drop).unwrap_or_default();
    }
    let mut kernel = Kernel::new(ours, LIMITS);
    if messages.is_empty() {
        drop(theirs);
    }
    kernel.ask(&Message::plain(GETATTR));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truth_is_taken() {
        told(&[getattr(2), statfs(4)]);
        judged(READ, &pattern(4096));
        judged(UNLINK, &[]);
        judged(WRITE, &[0; 8]);
        agreed(&init(|_| {}), &init_in(), &Wanted::default());
        let sent = Message::plain(LOOKUP).encode(2);
        parsing::judge(&sent, &Request::parse(&sent, Dialect::default()));
    }
}
