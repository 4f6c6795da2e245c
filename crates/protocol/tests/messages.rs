//! Every message survives its bytes; what no program sends is refused.

use std::os::fd::AsFd;

use std::collections::BTreeSet;

use tandemfs_protocol::{
    Ahead, AheadWriter, Crossed, EntryWriter, Foretold, GREETING_BYTES, Handle, Hello, HelloError, Listed, Listing, Malformed, Number,
    Operation, Outcome, Place, Reception, Refusal, Space, StorePlace, Subject, TEXT_BYTES_MAX, Text, TimeToSet, Unless, VERSION, Welcome,
    Whence, Why, ZonePlace, socket,
};
use tandemfs_ring::{Answer, Attributes, Range, Request, SEEN_MAX, Seen};

const RANGE: Range = Range { start: 64, length: 300 };
const OTHER: Range = Range { start: 4096, length: 1000 };

fn handle(number: u64) -> Handle {
    Handle::of(number).expect("not zero")
}

/// At least one operation of each number, with every field that it has.
fn operations() -> Vec<Operation<'static>> {
    let (root, open) = (Place::Root, Place::Open(handle(7)));
    let (here, there) = (Text::Here(b"a/b"), Text::There(RANGE));
    let by_path = Subject::Path { at: open, path: here, flags: 0x100 };
    let by_long_path = Subject::Path { at: root, path: there, flags: -1 };
    let by_handle = Subject::Open(handle(u64::MAX));
    let at = |seconds, nanoseconds| TimeToSet::At { seconds, nanoseconds };
    vec![
        Operation::Nothing,
        Operation::Open { at: open, path: there, flags: 0o2_102, mode: 0o7777, umask: 0o777, into: OTHER },
        Operation::Open { at: root, path: Text::Here(b""), flags: i32::MIN, mode: u32::MAX, umask: 0, into: Range::default() },
        Operation::Close { handle: handle(1) },
        Operation::Read { handle: handle(9), offset: -1, into: RANGE, unless: Unless { cached: true, grows: false } },
        Operation::Write { handle: handle(9), offset: i64::MAX, from: OTHER, flags: 0x30, unless: Unless { cached: false, grows: true } },
        Operation::Stat { subject: by_path },
        Operation::Stat { subject: by_long_path },
        Operation::Stat { subject: by_handle },
        Operation::StatAhead { subject: by_long_path, cookie: u64::MAX, into: OTHER },
        Operation::Access { subject: by_path, mode: 7, effective: true },
        Operation::Unlink { at: root, path: here },
        Operation::RemoveDirectory { at: open, path: there },
        Operation::MakeDirectory { at: open, path: here, mode: 0o1777, umask: 0o22 },
        Operation::MakeNode { at: root, path: here, mode: 0o20_644, umask: 0o77, device: u32::MAX },
        Operation::MakeLink { at: open, path: here, target: Text::Here(b"to") },
        Operation::MakeLink { at: open, path: there, target: Text::There(OTHER) },
        Operation::Link { from: (root, here), to: (open, there.second()), flags: 0x400 },
        Operation::ReadLink { at: open, path: there, into: OTHER },
        Operation::Rename { from: (open, there), to: (root, Text::There(OTHER)), flags: 2 },
        Operation::ReadDirectory { handle: handle(3), cookie: u64::MAX, into: RANGE },
        Operation::Truncate { subject: by_handle, length: -5 },
        Operation::Allocate { handle: handle(3), flags: 3, offset: 5, length: 6 },
        Operation::Sync { handle: handle(3), data_only: true },
        Operation::CopyRange { from: (handle(3), 4), to: (handle(5), -6), length: u64::MAX, flags: 1 },
        Operation::Seek { handle: handle(3), offset: 8, whence: Whence::Data },
        Operation::Seek { handle: handle(3), offset: 8, whence: Whence::Hole },
        Operation::ChangeMode { subject: by_path, mode: u32::MAX },
        Operation::ChangeOwner { subject: by_path, user: Some(u32::MAX), group: None },
        Operation::ChangeOwner { subject: by_handle, user: None, group: Some(0) },
        Operation::SetTimes { subject: by_long_path, accessed: TimeToSet::Now, modified: TimeToSet::Omit },
        Operation::SetTimes { subject: by_handle, accessed: at(-1, u32::MAX), modified: at(i64::MAX, 0) },
        Operation::GetAttribute { subject: by_long_path, name: b"user.x", into: OTHER },
        Operation::SetAttribute { subject: by_handle, name: &[b'n'; 255], value: OTHER, flags: -1 },
        Operation::ListAttributes { subject: by_path, into: OTHER },
        Operation::RemoveAttribute { subject: by_path, name: b"user.y" },
        Operation::FileSystemSpace { into: RANGE },
        Operation::SyncFileSystem,
        Operation::SetFlags { handle: handle(3), flags: 0o2000 },
        Operation::Descriptor { handle: handle(4) },
        Operation::Lend { handle: handle(4), offset: -9, into: RANGE },
        Operation::Map { handle: handle(4), offset: -9, length: u64::MAX, into: RANGE },
        Operation::Unmap { mapping: handle(5).0 },
        Operation::LendStores { handle: handle(4), offset: -9, into: RANGE },
        Operation::ReturnStores { lease: handle(5).0 },
        Operation::LendTail { handle: handle(4), into: RANGE },
        Operation::Appended { lease: handle(5).0 },
        Operation::MapForStores { handle: handle(4), offset: -9, length: u64::MAX, into: RANGE },
    ]
}

/// The second path of a call lies elsewhere than the first.
trait Second {
    fn second(self) -> Self;
}

impl Second for Text<'_> {
    fn second(self) -> Self {
        Self::There(OTHER)
    }
}

#[test]
fn every_operation_survives_its_request() {
    let all = operations();
    let numbers: BTreeSet<Number> = all.iter().map(Operation::number).collect();
    assert!(Number::ALL.iter().all(|number| numbers.contains(number)), "an operation is missing here");
    for operation in all {
        let request = operation.encode().expect("its names fit");
        assert_eq!(Number::of(request.operation), Some(operation.number()));
        assert_eq!(Operation::decode(&request), Ok(operation), "{request:?}");
    }
    assert_eq!(Number::all_bits().count_ones() as usize, Number::ALL.len());
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let long = [b'x'; 256];
    let open = Operation::Unlink { at: Place::Root, path: Text::Here(&long) };
    assert_eq!(open.encode().map_err(|error| error.bytes), Err(256));
    let with = |length| Operation::Unlink { at: Place::Root, path: Text::There(Range { start: 0, length }) }.encode().expect("no name");
    assert!(Operation::decode(&with(TEXT_BYTES_MAX)).is_ok());
    assert!(Operation::decode(&with(TEXT_BYTES_MAX + 1)).is_err());
    let mut both = Operation::Unlink { at: Place::Root, path: Text::Here(b"x") }.encode().expect("it fits");
    both.ranges[0] = RANGE;
    assert_eq!(Operation::decode(&both), Err(Malformed::Field("a text in two places")));
}

#[test]
fn what_no_program_sends_is_refused() {
    assert_eq!(Operation::decode(&Request::new(0)), Err(Malformed::Operation(0)));
    assert_eq!(Operation::decode(&Request::new(38)), Err(Malformed::Operation(38)));
    let changed = |operation: Operation<'_>, change: fn(&mut Request)| {
        let mut request = operation.encode().expect("it fits");
        change(&mut request);
        Operation::decode(&request).map(|operation| operation.number())
    };
    let open = Operation::Open { at: Place::Root, path: Text::Here(b"x"), flags: 0, mode: 0, umask: 0, into: Range::default() };
    let owner = Operation::ChangeOwner { subject: Subject::Open(handle(1)), user: Some(1), group: Some(2) };
    let times = Operation::SetTimes { subject: Subject::Open(handle(1)), accessed: TimeToSet::Now, modified: TimeToSet::Now };
    let copy = Operation::CopyRange { from: (handle(1), 0), to: (handle(2), 0), length: 1, flags: 0 };
    let read = Operation::Read { handle: handle(1), offset: 0, into: RANGE, unless: Unless::default() };
    for (operation, change) in [
        (Operation::Close { handle: handle(1) }, (|request| request.handle = 0) as fn(&mut Request)),
        (open, |request| request.arguments[1] = 1 << 32),
        (open, |request| request.arguments[2] = 0o1000),
        (owner, |request| request.arguments[0] = 2),
        (owner, |request| request.arguments[3] = 4),
        (owner, |request| request.handle = 0),
        (times, |request| request.arguments[4] = 1 << 34),
        (copy, |request| request.node = 0),
        (read, |request| request.arguments[1] = 4),
        (Operation::Sync { handle: handle(1), data_only: false }, |request| request.flags = 2),
        (Operation::Lend { handle: handle(1), offset: 0, into: RANGE }, |request| request.handle = 0),
        (Operation::Map { handle: handle(1), offset: 0, length: 1, into: RANGE }, |request| request.handle = 0),
        (Operation::Unmap { mapping: handle(1).0 }, |request| request.handle = 0),
        (Operation::LendStores { handle: handle(1), offset: 0, into: RANGE }, |request| request.handle = 0),
        (Operation::ReturnStores { lease: handle(1).0 }, |request| request.handle = 0),
        (Operation::LendTail { handle: handle(1), into: RANGE }, |request| request.handle = 0),
        (Operation::Appended { lease: handle(1).0 }, |request| request.handle = 0),
        (Operation::MapForStores { handle: handle(1), offset: 0, length: 1, into: RANGE }, |request| request.handle = 0),
        (Operation::Seek { handle: handle(1), offset: 0, whence: Whence::Data }, |request| request.flags = 2),
    ] {
        assert_eq!(changed(operation, |_| {}), Ok(operation.number()));
        assert!(matches!(changed(operation, change), Err(Malformed::Field(_))), "{operation:?}");
    }
}

#[test]
fn answers_mean_what_the_daemon_said() {
    let done = Answer { value: 8, further: 9, attributes: Some(Attributes { node: 7, ..Attributes::default() }), ..Answer::default() };
    let crossed = |why, argument| Outcome::Crossed(Crossed { why, argument });
    for outcome in [Outcome::Done(done), Outcome::value(5), Outcome::Errno(1), Outcome::Errno(4095)] {
        assert_eq!(Outcome::decode(outcome.encode()), Ok(outcome));
    }
    let paths = [Why::Absolute, Why::AboveRoot, Why::MountPoint, Why::RemovedDirectory, Why::SpecialFile];
    for why in paths.into_iter().chain([Why::NotServed, Why::Cached, Why::Grows, Why::Watched]) {
        assert_eq!(Outcome::decode(crossed(why, 1).encode()), Ok(crossed(why, 1)));
    }
    for number in [0, -1, 4096, i32::MAX] {
        assert_eq!(Outcome::decode(Outcome::Errno(number).encode()), Ok(Outcome::Errno(5)), "{number}");
    }
    for error in [4096, 0xffff, 1 << 16, 1 << 16 | 10, 1 << 16 | 2 << 8 | 1, 1 << 17 | 1, u32::MAX] {
        assert!(Outcome::decode(Answer { error, ..Answer::default() }).is_err(), "{error:#x}");
    }
    assert_eq!(Outcome::bytes(&Answer { value: 300, ..Answer::default() }, RANGE), Ok(300));
    for value in [301, 1 << 32, 1 << 32 | 5, u64::MAX] {
        assert!(Outcome::bytes(&Answer { value, ..Answer::default() }, RANGE).is_err(), "{value}");
    }
}

#[test]
fn listings_come_back_and_hold_what_fits() {
    let names: [&[u8]; 4] = [b".", b"a file", &[b'x'; 255], b"12345678"];
    let entry = |index: usize| Listed { inode: index as u64 + 1, cookie: u64::MAX - index as u64, kind: index as u8, name: names[index] };
    let mut writer = EntryWriter::new(32 + 32 + 280 + 31);
    assert_eq!([0, 1, 2, 3].map(|index| writer.push(&entry(index))), [true, true, true, false], "the last lacks a byte");
    let listed: Vec<Listed<'_>> = Listing::new(writer.bytes()).map(|entry| entry.expect("whole")).collect();
    assert_eq!(listed, [0, 1, 2].map(entry));
    for length in 1..writer.bytes().len() {
        let cut = Listing::new(&writer.bytes()[..length]).last().expect("one");
        assert_eq!(cut.is_ok(), matches!(length, 32 | 64), "{length} bytes");
    }
    let mut bytes = writer.bytes().to_vec();
    for (at, byte) in [(24, b'/'), (24, 0), (18, 0), (19, 1)] {
        let before = std::mem::replace(&mut bytes[at], byte);
        assert!(Listing::new(&bytes).next().expect("one").is_err(), "{byte} at {at}");
        bytes[at] = before;
    }
}

#[test]
fn answers_ahead_come_back_and_hold_what_fits() {
    let names: [&[u8]; 3] = [b"a", &[b'x'; 255], b"12345678"];
    let seen = [vec![], vec![(1, 2)], (0..SEEN_MAX as u32).map(|word| (word, u64::MAX)).collect()].map(Seen::of);
    let answer = |index: usize| {
        let attributes = Attributes { node: index as u64 + 1, mode: 0o100_644, size_bytes: u64::MAX, ..Attributes::default() };
        Foretold { name: names[index], attributes, seen: seen[index] }
    };
    let lengths = [16 + 104 + 8, 16 + 104 + 264, 16 + 104 + 4 * SEEN_MAX + 8];
    let mut writer = AheadWriter::new(lengths.iter().sum::<usize>() + lengths[0] - 1);
    assert_eq!([0, 1, 2, 0].map(|index| writer.push(&answer(index))), [true, true, true, false], "the last lacks a byte");
    let found: Vec<Foretold<'_>> = Ahead::new(writer.bytes()).map(|answer| answer.expect("whole")).collect();
    assert_eq!(found, [0, 1, 2].map(answer));
    for length in 1..writer.bytes().len() {
        let cut = Ahead::new(&writer.bytes()[..length]).last().expect("one");
        assert_eq!(cut.is_ok(), length == lengths[0] || length == lengths[0] + lengths[1], "{length} bytes");
    }
    let mut bytes = writer.bytes().to_vec();
    for (at, byte) in [(120, b'/'), (120, 0), (0, 0), (1, 1), (3, 0xff)] {
        let before = std::mem::replace(&mut bytes[at], byte);
        assert!(Ahead::new(&bytes).next().expect("one").is_err(), "{byte} at {at}");
        bytes[at] = before;
    }
}

#[test]
fn space_survives_its_bytes() {
    let space = Space { unit_bytes: 1, units: 2, free: 3, available: 4, files: 5, files_free: 6, name_bytes_max: u64::MAX };
    assert_eq!(Space::decode(&space.encode()), Ok(space));
    assert!(Space::decode(&space.encode()[1..]).is_err());
}

#[test]
fn greetings_survive_their_bytes_and_versions_differ_with_a_sentence() {
    let hello = Hello::new(8, 1 << 20);
    let root = std::fs::File::open("/").expect("there");
    for hello in [hello, hello.showing(root.as_fd()), hello.wanting_zone(true), hello.leaving_watched(true), hello.wanting_stores(true)] {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
    for at in [24, 28, 32] {
        let mut wants_what = hello.encode();
        wants_what[at] = 2;
        assert_eq!(Hello::decode(&wants_what), Err(HelloError::Unknown));
    }
    let other = Hello { version: VERSION + 1, ..hello };
    let error = Hello::decode(&other.encode()[..12]).expect_err("another version, of which only the head is known");
    assert_eq!(error, HelloError::Version { found: VERSION + 1 });
    assert!(error.to_string().contains("install the same release"), "{error}");
    for bytes in [&hello.encode()[..63], &hello.encode()[..11], &[0; 64], b""] {
        assert_eq!(Hello::decode(bytes), Err(HelloError::Unknown));
    }
    let without = Welcome {
        slots: 8,
        data_bytes: 1 << 20,
        operations: Number::all_bits(),
        transfer_bytes_max: 1 << 20,
        version_words: 7,
        zone: None,
        stores: None,
    };
    let welcome = Reception::Welcome(without);
    let zone = ZonePlace { start: 4096, bytes: u64::MAX };
    let with_zone = Reception::Welcome(Welcome { zone: Some(zone), ..without });
    let with_stores =
        [true, false].map(|needs_flush| Reception::Welcome(Welcome { stores: Some(StorePlace { zone, needs_flush }), ..without }));
    for reception in with_stores {
        assert_eq!(Reception::decode(&reception.encode()), Ok(reception));
    }
    let sentence = "ä".repeat(200);
    let refusal = |version, sentence: &str| Reception::Refusal(Refusal { version, errno: 13, sentence: sentence.into() });
    for reception in [welcome.clone(), with_zone, refusal(VERSION, "go away"), refusal(VERSION + 7, "")] {
        assert_eq!(Reception::decode(&reception.encode()), Ok(reception));
    }
    assert_eq!(Reception::decode(&refusal(1, &sentence).encode()), Ok(refusal(1, &sentence[..208])), "cut between characters");
    let mut later = welcome.encode();
    later[8] ^= 1;
    assert_eq!(Reception::decode(&later), Err(HelloError::Version { found: VERSION ^ 1 }));
    assert_eq!(Reception::decode(&later[..GREETING_BYTES - 1]), Err(HelloError::Unknown));
    assert_eq!(Reception::decode(&[0; GREETING_BYTES]), Err(HelloError::Unknown));
}

#[test]
fn a_mount_has_its_own_socket() {
    assert_eq!(socket::name(0, 57, 4711), "0-57.4711.socket");
    assert!(
        socket::name(0, 57, 4711).starts_with(&socket::prefix(0, 57)) && !socket::name(0, 571, 4711).starts_with(&socket::prefix(0, 57))
    );
    assert!(socket::directories(0).iter().chain(&socket::directories(1000)).all(|path| path.is_absolute()));
}
