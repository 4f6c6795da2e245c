//! Layout and validation: what the files hold, what a client may write there, and what ends its connection.

mod support;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use support::{Echo, Rig, SIZES, client_of, echo};
use tandemfs_ring::{
    Arena, Attributes, Client, Doorbell, End, IDLE_PLACES, Lie, Names, Range, Request, RingError, SEEN_MAX, Seen, Sizes, Time,
};

/// Of the table in `layout.rs`.
const SLOTS: u64 = 256;
const ANSWER_TURN: u64 = SLOTS + 640;
const IDLE_WORDS: u64 = SLOTS + 4 * 1024;

fn filled() -> Request {
    let mut request = Request { flags: 3, node: 5, handle: 7, offset: 11, length: 13, ..Request::new(17) };
    request.arguments = [19, 23, 29, 31, 37, 41, 43];
    request.names = Names::new(b"from", b"to be").expect("short");
    request
}

#[test]
fn the_table_of_the_layout_is_the_layout() {
    let mut rig = Rig::new(Doorbell::Futex);
    let data_offset = (IDLE_WORDS + 8 * IDLE_PLACES as u64).next_multiple_of(4096);
    let total = data_offset + SIZES.data_bytes;
    let header = [b"TFSRING\0", &[5, 0, 0, 0, 4, 0, 0, 0], &data_offset.to_le_bytes()[..], &SIZES.data_bytes.to_le_bytes()].concat();
    assert_eq!(rig.bytes(0, 32), header);
    assert_eq!(rig.arena.file().expect("a file").metadata().expect("a file").len(), total);

    rig.client.set_idle(7, 0x0102);
    assert_eq!(rig.bytes(IDLE_WORDS + 56, 8), [2, 1, 0, 0, 0, 0, 0, 0], "an idle file");

    let mut slot = rig.client.slot().expect("a slot");
    let mut request = filled();
    let buffers = [rig.client.buffer(100).expect("room"), rig.client.buffer(4096).expect("room")];
    request.ranges = [buffers[0].range(), buffers[1].range()];
    let pending = slot.submit(&request, buffers.into()).expect("served");
    assert_eq!(rig.bytes(64, 4), [1, 0, 0, 0], "slots in use");
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let shape = 17 | 8 << 16 | 4 << 32 | 5 << 48;
    let range = |range: Range| u64::from(range.start) | u64::from(range.length) << 32;
    let head = words(&[1, shape, 3, 5, 7, 11, 13, range(request.ranges[0]), range(request.ranges[1]), 19, 23, 29, 31, 37, 41, 43]);
    assert_eq!(rig.bytes(SLOTS, 128), head);
    assert_eq!(rig.bytes(SLOTS + 128, 9), b"fromto be");
    rig.turn();
    assert_eq!(rig.handler.seen, [request.clone()]);
    let answer = [1, 0, 0, 0, 3, 0, 0, 0].into_iter().chain(echo(&request).value.to_le_bytes()).collect::<Vec<u8>>();
    assert_eq!(rig.bytes(ANSWER_TURN, 16), answer);
    let (answer, buffers) = pending.wait().expect("answered");
    assert_eq!(answer, echo(&request));
    let mut bytes = [0; 4096];
    buffers[1].read(0, &mut bytes);
    assert_eq!(bytes, [1; 4096], "the handler added one");
}

#[test]
fn attributes_arrive() {
    let mut rig = Rig::new(Doorbell::Eventfd);
    rig.handler.keeps = true;
    let mut slot = rig.client.slot().expect("a slot");
    let pending = slot.submit(&Request::new(1), Vec::new()).expect("served");
    rig.turn();
    let created = Time { seconds: -1, nanoseconds: 999_999_999 };
    let attributes = Attributes { node: 1, size_bytes: 1 << 40, links: 2, group: 9, device_number: 8, created, ..Attributes::default() };
    let seen = Seen::of((0..SEEN_MAX as u32).map(|word| (word * 8000, u64::from(word))));
    let answer = tandemfs_ring::Answer { attributes: Some(attributes), ..Default::default() };
    rig.handler.kept.pop().expect("kept").answer_for(&answer, Some(&seen));
    assert_eq!(pending.wait().expect("answered").0, answer);
    assert_eq!(slot.seen(), seen);
    assert_eq!(rig.bytes(SLOTS + 660, 4), [SEEN_MAX as u8, 0, 0, 0], "words");
    assert_eq!(rig.bytes(SLOTS + 680, 8), [0, 0, 0, 0, 64, 31, 0, 0], "which");
    assert_eq!(rig.bytes(SLOTS + 832, 4), 48_000_u32.to_le_bytes(), "the seventh");
}

#[test]
fn a_dropped_ticket_is_an_error() {
    let mut rig = Rig::new(Doorbell::Futex);
    rig.handler.keeps = true;
    let mut slot = rig.client.slot().expect("a slot");
    let pending = slot.submit(&Request::new(1), Vec::new()).expect("served");
    rig.turn();
    rig.turn();
    assert_eq!(rig.handler.seen.len(), 1, "a slot is served once");
    rig.handler.kept.clear();
    assert_eq!(pending.wait().expect("answered").0.error, tandemfs_ring::DROPPED);
}

#[test]
fn neither_file_changes_its_size_and_the_words_are_read_only() {
    let rig = Rig::new(Doorbell::Futex);
    let files: [BorrowedFd<'_>; 2] = [rig.arena.descriptors().arena, rig.arena.descriptors().words];
    for file in files {
        assert_eq!(ftruncate(file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(file, 1 << 20), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM));
    }
    let words = std::fs::File::from(rig.word_file());
    assert!(words.write_all_at(&[2], 64).is_err(), "a client cannot say that the daemon polls");
}

/// A client changes these bytes of a valid, submitted request.
fn lie(at: u64, bytes: &[u8]) -> (Echo, Result<tandemfs_ring::Answer, tandemfs_ring::Ended>) {
    let mut rig = Rig::new(Doorbell::Futex);
    let mut slot = rig.client.slot().expect("a slot");
    let pending = slot.submit(&filled(), Vec::new()).expect("served");
    rig.change(SLOTS + at, bytes);
    rig.turn();
    let answer = pending.wait().map(|(answer, _)| answer);
    (rig.handler, answer)
}

#[test]
fn what_does_not_fit_ends_the_connection() {
    let beyond = |start: u32, length: u32| [start.to_le_bytes(), length.to_le_bytes()].concat();
    let data_bytes = SIZES.data_bytes;
    for (at, bytes, expected) in [
        (10, vec![9], Lie::Head { slot: 0, what: "more arguments than there are" }),
        (12, vec![0, 1], Lie::Head { slot: 0, what: "a name that is too long" }),
        (14, vec![0, 1], Lie::Head { slot: 0, what: "a name that is too long" }),
        (20, vec![1], Lie::Head { slot: 0, what: "a field that must be zero" }),
        (56, beyond(0, 65537), Lie::Range { slot: 0, start: 0, end: 65537, data_bytes }),
        (56, beyond(65537, 0), Lie::Range { slot: 0, start: 65537, end: 65537, data_bytes }),
        (64, beyond(u32::MAX, u32::MAX), Lie::Range { slot: 0, start: u32::MAX.into(), end: 2 * u64::from(u32::MAX), data_bytes }),
    ] {
        let (handler, answer) = lie(at, &bytes);
        assert_eq!(answer, Err(tandemfs_ring::Ended), "{expected}");
        assert!(matches!(handler.ended[..], [(_, End::Lied(lie))] if lie == expected), "{:?}", handler.ended);
        assert_eq!(handler.seen, []);
    }
}

#[test]
fn any_operation_and_any_number_is_passed_on() {
    let (handler, answer) = lie(8, &[0xff, 0xff]);
    assert!(answer.is_ok() && handler.seen[0].operation == 0xffff);
    let (handler, answer) = lie(56, &[0, 0, 1, 0, 0, 0, 0, 0]);
    assert!(answer.is_ok() && handler.seen[0].ranges[0] == Range { start: 65536, length: 0 }, "an empty range at the end");
}

#[test]
fn a_client_cannot_name_slots_that_are_not_there() {
    let mut rig = Rig::new(Doorbell::Futex);
    rig.change(64, &u32::MAX.to_le_bytes());
    for slot in 0..64 {
        rig.change(SLOTS + 1024 * slot, &[1]); // slots behind the fourth are data
    }
    rig.turn();
    assert_eq!(rig.handler.seen.len(), 4);
}

#[test]
fn rings_for_nothing_end_the_connection() {
    let mut poller = tandemfs_ring::Poller::new(std::time::Duration::ZERO).expect("a poller");
    let arena = Arena::new(SIZES, Doorbell::Eventfd).expect("an arena");
    let bell = arena.descriptors().bell.expect("an eventfd").try_clone_to_owned().expect("a descriptor");
    poller.control().add(arena, Vec::new());
    let mut handler = Echo::default();
    for _ in 0..100_000 {
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).expect("it rings");
        poller.round(&mut handler).expect("a round");
        if !handler.ended.is_empty() {
            assert!(matches!(handler.ended[..], [(_, End::Lied(Lie::EmptyRings(129)))]), "{:?}", handler.ended);
            return;
        }
    }
    panic!("it may ring for ever");
}

#[test]
fn a_client_refuses_what_is_no_arena() {
    let arena = Arena::new(SIZES, Doorbell::Futex).expect("an arena");
    let words = arena.descriptors().words;
    let made = |bytes: u64, seals: SealFlags| {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&file, bytes).expect("a size");
        fcntl_add_seals(&file, seals).expect("sealed");
        file
    };
    let map = |file: BorrowedFd<'_>| Client::map(file, words, None, None).expect_err("no arena");
    assert!(matches!(map(made(8192, SealFlags::empty()).as_fd()), RingError::NoArena("a file that is not sealed")));
    assert!(matches!(map(made(8192, SealFlags::SHRINK).as_fd()), RingError::NoArena("no magic")));
    assert!(matches!(map(made(64, SealFlags::SHRINK).as_fd()), RingError::NoArena("a file that is too short")));
    arena.file().expect("a file").write_all_at(&[6], 8).expect("written");
    let newer = map(arena.descriptors().arena);
    let sentence = "the daemon speaks version 6 of the ring, this program version 5; install the same release for both";
    assert_eq!(newer.to_string(), sentence);
}

#[test]
fn sizes_are_checked() {
    for (slots, data_bytes) in [(0, 4096), (65, 4096), (1, 100), (1, 1 << 32)] {
        assert!(matches!(Arena::new(Sizes { slots, data_bytes }, Doorbell::Futex), Err(RingError::Sizes { .. })), "{slots} {data_bytes}");
    }
    let smallest = Arena::new(Sizes { slots: 64, data_bytes: 0 }, Doorbell::Futex).expect("an arena without data");
    let client = client_of(&smallest, None);
    let slots: Vec<_> = std::iter::from_fn(|| client.slot()).collect();
    assert_eq!((slots.len(), client.buffer(1).is_none()), (64, true));
}

#[test]
fn a_slot_and_its_buffers_come_back_only_after_the_answer() {
    let mut rig = Rig::new(Doorbell::Futex);
    rig.handler.keeps = true;
    let mut slots: Vec<_> = std::iter::from_fn(|| rig.client.slot()).collect();
    let mut left = slots.pop().expect("four");
    let buffer = rig.client.buffer(64 << 10).expect("all of it");
    let request = Request { ranges: [buffer.range(), Range::default()], ..Request::new(1) };
    drop(left.submit(&request, vec![buffer]).expect("served"));
    drop(left);
    rig.turn();
    assert!(rig.client.slot().is_none() && rig.client.buffer(1).is_none(), "the daemon may still write there");
    rig.handler.kept.clear();
    assert!(rig.client.slot().is_some() && rig.client.buffer(64 << 10).is_some());
}

#[test]
fn the_process_at_the_other_end_of_a_socket_is_known() {
    use std::os::fd::AsRawFd;
    let (one, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let process = match tandemfs_ring::process_of(one.as_fd()) {
        Ok(process) => process,
        // Before Linux 6.5.
        Err(error) => return assert_eq!(Errno::from_io_error(&error), Some(Errno::NOPROTOOPT)),
    };
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).expect("procfs");
    assert!(text.lines().any(|line| line == format!("Pid:\t{}", std::process::id())), "{text}");
    let file = std::fs::File::open("/proc/self/status").expect("procfs");
    assert!(tandemfs_ring::process_of(file.as_fd()).is_err(), "no socket");
}
