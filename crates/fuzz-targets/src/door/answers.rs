//! The kernel's side: sends requests, and accepts only answers that a kernel would accept.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::REQUEST_BYTES_MAX;
use super::requests::{Request, opcode::*};
use crate::Input;

const OUT_HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 128;
const ATTR_BYTES: usize = 88;
const STATX_BYTES: usize = 288;
/// Timeout for an answer. No request here takes a second.
const ANSWER_SECONDS_MAX: i64 = 40;
/// The kernel's limit: errors are above this.
const ERROR_MIN: i32 = -512;

/// The kernel's end of a channel.
pub(crate) struct Kernel {
    channel: OwnedFd,
    unique: u64,
    buffer: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl Kernel {
    pub(crate) fn new(channel: OwnedFd) -> Self {
        Self { channel, unique: 0, buffer: vec![0; OUT_HEADER_BYTES + 2 * REQUEST_BYTES_MAX as usize] }
    }

    /// Sends INIT in some variant. False if the daemon refused it.
    pub(crate) fn open(&mut self, how: u8, input: &mut Input<'_>) -> bool {
        let mut init = |kernel: &mut Self, major: u32, minor: u32| {
            let mut body = Vec::new();
            for value in [major, minor, 1 << 17, !(1 << 30), 0] {
                body.extend(value.to_le_bytes());
            }
            body.extend([0; 44]);
            if how == 7 {
                body.truncate(16);
            } else if how == 6 {
                for at in [8, 12, 16] {
                    body[at..at + 4].copy_from_slice(&(input.border(4) as u32).to_le_bytes());
                }
            }
            kernel.send(&Request::new(INIT, 0, body));
            kernel.receive().unwrap_or_else(|| panic!("no answer to INIT {major}.{minor}")).to_vec()
        };
        let answer = match how {
            1 => {
                // A newer kernel: it gets the daemon's version and asks again.
                let first = init(self, 9, 3);
                assert_eq!(word(&first, 4), 0, "a newer INIT is answered with the version");
                init(self, 7, 38)
            }
            2 => init(self, 7, 5),
            3 => init(self, 3, 40),
            4 => init(self, 7, 30),
            5 => init(self, 7, 31),
            _ => init(self, 7, 45),
        };
        self.check_header(&answer);
        let error = word(&answer, 4) as i32;
        if matches!(how, 2..=4) {
            assert!(error < 0, "an old kernel is refused");
            return false;
        }
        assert_eq!(error, 0, "INIT");
        assert!(answer.len() >= OUT_HEADER_BYTES + 8, "INIT is answered with {} B", answer.len());
        if answer.len() >= OUT_HEADER_BYTES + 24 {
            let max_write = word(&answer, OUT_HEADER_BYTES + 20);
            assert!((4096..=REQUEST_BYTES_MAX).contains(&max_write), "WRITEs of up to {max_write} B");
        }
        true
    }

    pub(crate) fn send(&mut self, request: &Request) {
        self.unique += 2;
        let sent = send(&self.channel, &request.encode(self.unique), SendFlags::NOSIGNAL);
        sent.unwrap_or_else(|error| panic!("the daemon is gone ({error}) before {request:x?}"));
    }

    /// The next answer; `None` if the daemon closed the channel. Skips notifications, which may arrive at any time.
    fn receive(&mut self) -> Option<&[u8]> {
        loop {
            assert!(self.waits(ANSWER_SECONDS_MAX), "no answer within {ANSWER_SECONDS_MAX} s");
            let (length, _) = recv(&self.channel, &mut self.buffer[..], RecvFlags::empty()).ok()?;
            if length == 0 {
                return None;
            }
            if !is_notification(&self.buffer[..length]) {
                return Some(&self.buffer[..length]);
            }
        }
    }

    /// Whether an answer is waiting although no request is open.
    fn anything_waits(&mut self) -> bool {
        while self.waits(0) {
            match recv(&self.channel, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((length, _)) if is_notification(&self.buffer[..length]) => {}
                _ => return true,
            }
        }
        false
    }

    fn waits(&self, seconds_max: i64) -> bool {
        let mut waiting = [PollFd::new(&self.channel, PollFlags::IN)];
        let timeout = Timespec { tv_sec: seconds_max, tv_nsec: 0 };
        poll(&mut waiting, Some(&timeout)).unwrap_or_else(|error| panic!("poll: {error}")) > 0
    }

    fn check_header(&self, answer: &[u8]) {
        assert!(answer.len() >= OUT_HEADER_BYTES, "an answer of {} B", answer.len());
        assert_eq!(word(answer, 0) as usize, answer.len(), "an answer has the length that it says");
        assert_eq!(long(answer, 8), self.unique, "an answer has the number of its request");
        let error = word(answer, 4) as i32;
        assert!(error <= 0 && error > ERROR_MIN, "error {error} is out of range");
        assert!(error == 0 || answer.len() == OUT_HEADER_BYTES, "an error with {} B", answer.len());
    }

    /// Sends a request and receives its answer ([FZD1]). Returns the answer's error, or 0.
    pub(crate) fn ask(&mut self, request: &Request) -> i32 {
        self.send(request);
        if !request.wants_answer() {
            return 0; // An unexpected answer would be found with the next request.
        }
        let Some(answer) = self.receive().map(<[u8]>::to_vec) else { panic!("the daemon ended instead of answering {request:x?}") };
        self.check_header(&answer);
        let error = word(&answer, 4).cast_signed();
        if error == 0 {
            check_body(request, &answer[OUT_HEADER_BYTES..]);
        }
        error
    }

    /// Sends an ordinary request: it must be answered as usual, and no other answer may arrive ([FZD2]).
    pub(crate) fn ask_plainly(&mut self) {
        self.send(&Request::new(GETATTR, 1, vec![0; 16]));
        let answer = self.receive().unwrap_or_else(|| panic!("the daemon ended")).to_vec();
        self.check_header(&answer);
        assert_eq!((word(&answer, 4), answer.len()), (0, OUT_HEADER_BYTES + 16 + ATTR_BYTES), "GETATTR of the root");
        assert!(!self.anything_waits(), "an answer to nothing");
    }

    /// Tells the daemon to end.
    pub(crate) fn close(&mut self) {
        self.send(&Request::new(DESTROY, 0, Vec::new()));
        let answer = self.receive().unwrap_or_else(|| panic!("the daemon ended")).to_vec();
        self.check_header(&answer);
        assert_eq!(answer.len(), OUT_HEADER_BYTES, "DESTROY");
    }
}

/// Whether a message is a notification: number 0, and one of the codes that the daemon uses (invalidate inode, store).
fn is_notification(message: &[u8]) -> bool {
    const CODES: [u32; 2] = [2, 4];
    message.len() >= OUT_HEADER_BYTES && long(message, 8) == 0 && {
        assert_eq!(word(message, 0) as usize, message.len(), "a notification has the length that it says");
        CODES.contains(&word(message, 4))
    }
}

fn check_body(request: &Request, body: &[u8]) {
    let length = body.len();
    let exactly = |expected: usize| assert_eq!(length, expected, "the answer to {request:x?}");
    match request.opcode {
        LOOKUP | SYMLINK | MKNOD | MKDIR | LINK => {
            exactly(ENTRY_BYTES);
            check_entry(body, request.opcode == LOOKUP);
        }
        CREATE | TMPFILE => {
            exactly(ENTRY_BYTES + 16);
            check_entry(body, false);
        }
        GETATTR | SETATTR => {
            exactly(16 + ATTR_BYTES);
            check_attributes(&body[16..]);
        }
        STATX => {
            exactly(STATX_BYTES);
            // Mode and size are at other offsets than in the other answers.
            let (mode, size) = (word(body, 32 + 28) & 0xffff, long(body, 32 + 40));
            assert!(size <= i64::MAX as u64 && mode & 0o170_000 != 0, "a size of {size}, a mode of {mode:o}");
            for time in [64, 80, 96, 112] {
                assert!(word(body, 32 + time + 8) < 1_000_000_000, "a time with {} ns", word(body, 32 + time + 8));
            }
        }
        OPEN | OPENDIR => exactly(16),
        WRITE => {
            exactly(8);
            assert!(word(body, 0) <= request.word(16), "more was written than there was");
        }
        COPY_FILE_RANGE => {
            exactly(8);
            let length = u64::from(request.word(44)) << 32 | u64::from(request.word(40));
            assert!(u64::from(word(body, 0)) <= length, "more was copied than was asked for");
        }
        COPY_FILE_RANGE_64 => {
            exactly(8);
            let length = u64::from(request.word(44)) << 32 | u64::from(request.word(40));
            assert!(long(body, 0) <= length, "more was copied than was asked for");
        }
        STATFS => exactly(80),
        LSEEK => {
            exactly(8);
            assert!(
                long(body, 0) >= u64::from(request.word(12)) << 32 | u64::from(request.word(8)),
                "data or a hole before the place that was asked for"
            );
        }
        READLINK => assert!((1..4096).contains(&length), "a link of {length} B"),
        READ => assert!(length <= request.word(16).min(REQUEST_BYTES_MAX) as usize, "{length} B were read"),
        // Size 0 asks for the length.
        GETXATTR | LISTXATTR if request.word(0) == 0 => exactly(8),
        GETXATTR | LISTXATTR => assert!(length <= request.word(0) as usize, "{length} B of an attribute, or of names"),
        READDIR | READDIRPLUS => check_listing(request, body),
        INIT => panic!("a second INIT is answered"),
        _ => exactly(0),
    }
}

fn check_entry(entry: &[u8], may_be_absent: bool) {
    let node = long(entry, 0);
    if node == 0 {
        assert!(may_be_absent, "an entry without a node");
        return;
    }
    check_attributes(&entry[40..]);
    assert!(word(entry, 32) < 1_000_000_000 && word(entry, 36) < 1_000_000_000, "how long an entry is valid");
}

fn check_attributes(attributes: &[u8]) {
    let (size, mode) = (long(attributes, 8), word(attributes, 60));
    assert!(size <= i64::MAX as u64, "a size of {size}");
    assert!(
        matches!(mode & 0o170_000, 0o10_000 | 0o20_000 | 0o40_000 | 0o60_000 | 0o100_000 | 0o120_000 | 0o140_000),
        "a mode of {mode:o}"
    );
    for at in [48, 52, 56] {
        assert!(word(attributes, at) < 1_000_000_000, "a time with {} ns", word(attributes, at));
    }
}

fn check_listing(request: &Request, body: &[u8]) {
    assert!(body.len() <= request.word(16) as usize, "{} B of entries", body.len());
    let before = if request.opcode == READDIRPLUS { ENTRY_BYTES } else { 0 };
    let mut at = 0;
    let mut last = None;
    while at < body.len() {
        let head = at + before;
        let (cookie, length) = (long(body, head + 8), word(body, head + 16) as usize);
        assert!((1..=255).contains(&length), "a name of {length} B");
        assert!(head + 24 + length <= body.len(), "an entry beyond the end");
        assert!(!body[head + 24..head + 24 + length].contains(&b'/'), "a name with a slash");
        assert!(last.is_none_or(|last| last < cookie), "cookies do not rise");
        last = Some(cookie);
        at = head + (24 + length).next_multiple_of(8);
    }
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[
    ("another number", || told(GETATTR, |answer| answer[8] ^= 1)),
    ("a length that is not the message's", || told(GETATTR, |answer| answer[0] += 8)),
    ("an error above zero", || told(GETATTR, |answer| answer.splice(.., error(5, answer[8])).for_each(drop))),
    ("an error that no kernel takes", || told(GETATTR, |answer| answer.splice(.., error(-512, answer[8])).for_each(drop))),
    ("an error with a body", || told(GETATTR, |answer| answer[4..8].copy_from_slice(&(-5_i32).to_le_bytes()))),
    ("attributes that are too short", || {
        told(GETATTR, |answer| {
            answer.truncate(96);
            answer[0] = 96;
        });
    }),
    ("a mode without a type", || told(GETATTR, |answer| answer[16 + 16 + 61] = 0)),
    ("the end instead of an answer", || told(GETATTR, |answer| answer.clear())),
    ("an answer to nothing", || {
        let (ours, theirs) = super::channel();
        send(&theirs, &truth(2), SendFlags::NOSIGNAL).map(drop).unwrap_or_default();
        send(&theirs, &truth(2), SendFlags::NOSIGNAL).map(drop).unwrap_or_default();
        Kernel::new(ours).ask_plainly();
    }),
    ("more bytes than were asked for", || {
        let body = [[0; 16].as_slice(), &10_u32.to_le_bytes(), &[0; 20]].concat();
        check_body(&Request::new(READ, 1, body), &[0; 11]);
    }),
    ("more bytes of an attribute than were asked for", || {
        check_body(&Request::new(GETXATTR, 1, [10_u32.to_le_bytes(), [0; 4]].concat()), &[0; 11]);
    }),
    ("a name beyond the end of a listing", || {
        let body = [[0; 16].as_slice(), &4096_u32.to_le_bytes(), &[0; 20]].concat();
        let mut entry = [0; 32];
        entry[16] = 200;
        check_body(&Request::new(READDIR, 1, body), &entry);
    }),
];

fn error(error: i32, unique: u8) -> Vec<u8> {
    let mut answer = vec![0; OUT_HEADER_BYTES];
    (answer[0], answer[8]) = (OUT_HEADER_BYTES as u8, unique);
    answer[4..8].copy_from_slice(&error.to_le_bytes());
    answer
}

/// A correct daemon's answer to GETATTR of the root.
fn truth(unique: u8) -> Vec<u8> {
    let mut answer = vec![0; OUT_HEADER_BYTES + 16 + ATTR_BYTES];
    (answer[0], answer[8]) = (answer.len() as u8, unique);
    answer[16 + 16 + 61] = 0o40;
    answer
}

/// Simulates a daemon that modifies the correct answer.
fn told(opcode: u32, change: fn(&mut Vec<u8>)) {
    let (ours, theirs) = super::channel();
    let mut kernel = Kernel::new(ours);
    let mut answer = truth(2);
    change(&mut answer);
    send(&theirs, &answer, SendFlags::NOSIGNAL).map(drop).unwrap_or_default();
    kernel.ask(&Request::new(opcode, 1, vec![0; 16]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truth_is_taken() {
        told(GETATTR, |_| {});
    }
}
