//! Any request, answer, listing and greeting to the decoders of the direct door's messages. What is decoded must survive its own bytes, and
//! what is listed, or told ahead, must lie in its bytes.

use tandemfs_protocol::{
    Ahead, AheadWriter, EntryWriter, Foretold, GREETING_BYTES, Hello, LENT_WINDOW_BYTES, LentRange, LentTail, Listed, Listing, Malformed,
    Number, Operation, Outcome, Reception, STORE_MESSAGE_BYTES, Space, StoreMessage, StorePlace, TAIL_LENGTH_BITS, ZonePlace,
};
use tandemfs_ring::{Answer, Attributes, NAME_BYTES_MAX, Names, PAGE_BYTES, Range, Request, SEEN_MAX, Seen};

use crate::Input;

/// Longest listing of a run.
const LISTING_BYTES_MAX: usize = 1024;
/// Bytes of an entry without its name.
const ENTRY_BYTES_MIN: usize = 24;

fn range(input: &mut Input<'_>) -> Range {
    Range { start: input.border(4) as u32, length: if input.one_in(2) { input.border(4) as u32 } else { 0 } }
}

fn request(input: &mut Input<'_>) -> Request {
    let operation = if input.one_in(16) { input.short() } else { *input.pick(Number::ALL) as u16 };
    let lengths = [0, 1].map(|_| input.below(NAME_BYTES_MAX + 1));
    let [first, second] = lengths.map(|length| input.take(length));
    let names = Names::new(first, second).unwrap_or_else(|error| panic!("{error}"));
    let mut request = Request { flags: input.border(4) as u32, names, ..Request::new(operation) };
    for field in [&mut request.node, &mut request.handle, &mut request.offset, &mut request.length] {
        *field = input.border(8);
    }
    request.ranges = [range(input), range(input)];
    for argument in &mut request.arguments {
        *argument = if input.one_in(3) { input.border(8) } else { input.below(5) as u64 };
    }
    request
}

fn check_request(request: &Request) {
    match Operation::decode(request) {
        Ok(operation) => survives(operation),
        Err(Malformed::Operation(number)) => assert!(Number::of(number).is_none(), "operation {number} exists"),
        Err(Malformed::Field(what)) => assert!(!what.is_empty()),
    }
}

fn survives(operation: Operation<'_>) {
    let again = operation.encode().unwrap_or_else(|error| panic!("{operation:?}: {error}"));
    assert!(Operation::decode(&again) == Ok(operation), "{operation:?} became {:?}", Operation::decode(&again));
}

fn check_answer(answer: Answer) {
    if let Ok(outcome) = Outcome::decode(answer) {
        let again = outcome.encode();
        assert!(Outcome::decode(again) == Ok(outcome) && again.error == answer.error, "{answer:?} became {again:?}");
    }
}

fn check_bytes(answer: &Answer, buffer: Range, told: Result<u32, Malformed>) {
    assert!(told.is_ok() == (answer.value <= buffer.length.into()), "{answer:?} in {buffer:?}: {told:?}");
}

/// Entries in the order of the listing, all whole and none made up.
fn check_listing(bytes: &[u8], listed: &[Listed<'_>]) {
    assert!(listed.len() <= bytes.len() / ENTRY_BYTES_MIN, "{} entries in {} bytes", listed.len(), bytes.len());
    let mut again = EntryWriter::new(bytes.len());
    for entry in listed {
        assert!(again.push(entry), "{entry:?} is not in {} bytes", bytes.len());
    }
    let repeated: Vec<Listed<'_>> = Listing::new(again.bytes()).map_while(Result::ok).collect();
    assert!(repeated == listed, "{listed:?} became {repeated:?}");
}

/// Answers that are whole and survive their own bytes.
fn check_ahead(bytes: &[u8], answers: &[Foretold<'_>]) {
    let mut again = AheadWriter::new(bytes.len());
    for answer in answers {
        assert!(again.push(answer), "{answer:?} is not in {} bytes", bytes.len());
    }
    let repeated: Vec<Foretold<'_>> = Ahead::new(again.bytes()).map_while(Result::ok).collect();
    assert!(repeated == answers, "{answers:?} became {repeated:?}");
}

fn check_greetings(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert!(Hello::decode(&hello.encode()) == Ok(hello), "{hello:?}");
    }
    if let Ok(reception) = Reception::decode(bytes) {
        let again = Reception::decode(&reception.encode());
        let is_cut = |other: &Reception| matches!((other, &reception), (Reception::Refusal(cut), Reception::Refusal(whole)) if whole.sentence.starts_with(&cut.sentence));
        assert!(again.as_ref().is_ok_and(|again| *again == reception || is_cut(again)), "{reception:?} became {again:?}");
    }
    let _another_length = Space::decode(bytes);
}

/// Ranges that a client takes lie in the window and in the zone, in order.
fn check_lent(bytes: &[u8], window: u64, zone_bytes: u64) {
    let Ok(ranges) = LentRange::decode(bytes, window, zone_bytes) else { return };
    let mut behind = window;
    for range in &ranges {
        assert!(range.file_offset >= behind && range.bytes > 0, "{range:?} begins before {behind}");
        behind = range.file_offset + range.bytes;
        assert!(range.zone_offset <= zone_bytes && range.bytes <= zone_bytes - range.zone_offset, "{range:?} outside of {zone_bytes}");
    }
    assert!(behind - window <= LENT_WINDOW_BYTES, "{ranges:?} is more than a window");
    assert!(LentRange::encode(ranges, bytes.len()) == bytes, "other bytes");
}

/// Ranges that a client maps are whole pages of the zone, without gaps in the file, from its offset to its end at least.
fn check_mapped(bytes: &[u8], (offset, length): (u64, u64), zone_bytes: u64) {
    let Ok(ranges) = LentRange::decode_mapped(bytes, (offset, length), zone_bytes) else { return };
    let mut at = offset;
    for range in &ranges {
        assert!(range.file_offset == at && range.bytes > 0, "{range:?} does not begin at {at}");
        assert!((range.zone_offset | range.bytes).is_multiple_of(PAGE_BYTES), "{range:?} is not whole pages");
        assert!(range.zone_offset <= zone_bytes && range.bytes <= zone_bytes - range.zone_offset, "{range:?} outside of {zone_bytes}");
        at += range.bytes;
    }
    assert!(at - offset >= length, "{ranges:?} do not reach {length} B");
    assert!(LentRange::encode_mapped(&ranges, bytes.len()).is_some_and(|again| again == bytes), "other bytes");
}

/// Ranges of a mapping, most of them plausible.
fn mapped(input: &mut Input<'_>, offset: u64) -> Vec<u8> {
    let mut at = offset;
    let ranges = (0..input.below(5)).map(|_| {
        let bytes = if input.one_in(8) { input.border(8) } else { PAGE_BYTES * (1 + input.below(64) as u64) };
        let file_offset = if input.one_in(8) { input.border(8) } else { at };
        let zone_offset = if input.one_in(8) { input.border(8) } else { PAGE_BYTES * input.below(1 << 12) as u64 };
        at = at.wrapping_add(bytes);
        LentRange { file_offset, zone_offset, bytes }
    });
    let mut bytes = LentRange::encode_mapped(&ranges.collect::<Vec<_>>(), LISTING_BYTES_MAX).unwrap_or_default();
    if input.one_in(8) {
        let length = input.below(bytes.len() + 1);
        bytes.truncate(length);
    }
    bytes
}

/// A tail that a client takes: bytes and room in the zone, the word elsewhere, lengths up to the room in the word.
fn check_tail(bytes: &[u8], zone_bytes: u64) {
    let Ok(tail) = LentTail::decode(bytes, zone_bytes) else { return };
    let (begin, length) = (tail.last.zone_offset, tail.last.bytes + tail.room_bytes);
    assert!(tail.last.bytes > 0 && begin <= zone_bytes && length <= zone_bytes - begin, "{tail:?} outside of {zone_bytes}");
    assert!(tail.word_offset.is_multiple_of(8) && tail.word_offset <= zone_bytes - 8, "{tail:?}");
    assert!(tail.word_offset + 8 <= begin || tail.word_offset >= begin + length, "{tail:?}: the word among the bytes");
    assert!((tail.word + tail.room_bytes) >> TAIL_LENGTH_BITS == tail.word >> TAIL_LENGTH_BITS, "{tail:?}: another epoch");
    assert!(tail.size() + tail.room_bytes <= i64::MAX as u64 && tail.encode() == *bytes, "{tail:?}");
}

/// A tail, most of them plausible.
fn tail(input: &mut Input<'_>) -> Vec<u8> {
    let mut at = |likely: u64| if input.one_in(6) { input.border(8) } else { likely };
    let last = LentRange { file_offset: at(3 << 16), zone_offset: at(5 << 16), bytes: at(1000) };
    let (room_bytes, word_offset, word) = (at(64_536), at(4096 + 64), at(7 << TAIL_LENGTH_BITS));
    let mut bytes = LentTail { last, room_bytes, word_offset, word }.encode().to_vec();
    if input.one_in(8) {
        let length = input.below(bytes.len() + 1);
        bytes.truncate(length);
    }
    bytes
}

fn check_store_message(bytes: &[u8]) {
    if let Ok(message) = StoreMessage::decode(bytes) {
        assert!(message.encode() == *bytes, "{message:?} has other bytes");
    }
}

/// Ranges, most of them plausible.
fn lent(input: &mut Input<'_>, window: u64) -> Vec<u8> {
    let mut at = window;
    let ranges = (0..input.below(5)).map(|_| {
        let bytes = if input.one_in(4) { input.border(8) } else { 1 + input.below(1 << 18) as u64 };
        let file_offset = if input.one_in(8) { input.border(8) } else { at };
        at = at.wrapping_add(bytes);
        LentRange { file_offset, zone_offset: input.border(4), bytes }
    });
    let mut bytes = LentRange::encode(ranges.collect::<Vec<_>>(), LISTING_BYTES_MAX);
    if input.one_in(8) {
        let length = input.below(bytes.len() + 1);
        bytes.truncate(length);
    }
    bytes
}

fn zone(input: &mut Input<'_>) -> Option<ZonePlace> {
    input.one_in(2).then(|| ZonePlace { start: input.border(8), bytes: input.border(8) }).filter(|zone| zone.bytes > 0)
}

/// A greeting that is nearly one.
fn greeting(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = match input.below(4) {
        0 => Hello::new(input.border(4) as u32, input.border(8))
            .wanting_zone(input.one_in(2))
            .leaving_watched(input.one_in(2))
            .wanting_stores(input.one_in(2))
            .encode()
            .to_vec(),
        1 => input.take(GREETING_BYTES).to_vec(),
        2 => Reception::Refusal(tandemfs_protocol::Refusal::new(13, "a sentence")).encode().to_vec(),
        _ => Reception::Welcome(tandemfs_protocol::Welcome {
            slots: 1,
            data_bytes: 4096,
            operations: 1,
            transfer_bytes_max: 1,
            version_words: 0,
            zone: zone(input),
            stores: zone(input).map(|zone| StorePlace { zone, needs_flush: input.one_in(2) }),
        })
        .encode()
        .to_vec(),
    };
    for _ in 0..input.below(4) {
        let (at, byte) = (input.below(bytes.len()), input.byte());
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
    }
    bytes.truncate(if input.one_in(4) { input.below(GREETING_BYTES) } else { GREETING_BYTES });
    bytes
}

/// Entries with a few bytes changed.
fn listing(input: &mut Input<'_>) -> Vec<u8> {
    if input.one_in(4) {
        return input.take(LISTING_BYTES_MAX).to_vec();
    }
    let mut writer = EntryWriter::new(LISTING_BYTES_MAX);
    for index in 0..input.below(8) {
        let length = input.below(40) + 1;
        let name = input.take(length);
        let _full = writer.push(&Listed { inode: index as u64, cookie: input.border(8), kind: input.byte(), name });
    }
    let mut bytes = writer.bytes().to_vec();
    for _ in 0..input.below(4) {
        let (at, byte) = (input.below(bytes.len()), input.byte());
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
    }
    bytes
}

/// Answers with a few bytes changed.
fn ahead(input: &mut Input<'_>) -> Vec<u8> {
    if input.one_in(4) {
        return input.take(LISTING_BYTES_MAX).to_vec();
    }
    let mut writer = AheadWriter::new(LISTING_BYTES_MAX);
    for _ in 0..input.below(6) {
        let (length, count) = (input.below(40) + 1, input.below(SEEN_MAX + 2));
        let seen = Seen::of((0..count).map(|_| (input.border(4) as u32, input.border(8))).collect::<Vec<_>>());
        let attributes = Attributes::of_words(std::array::from_fn(|_| input.border(8)));
        let _full = writer.push(&Foretold { name: input.take(length), attributes, seen });
    }
    let mut bytes = writer.bytes().to_vec();
    for _ in 0..input.below(4) {
        let (at, byte) = (input.below(bytes.len()), input.byte());
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
    }
    bytes
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(9) {
        0 => check_greetings(&greeting(&mut input)),
        1 => {
            let bytes = listing(&mut input);
            let listed: Vec<Listed<'_>> = Listing::new(&bytes).map_while(Result::ok).collect();
            check_listing(&bytes, &listed);
        }
        3 => {
            let window = if input.one_in(8) { input.border(8) } else { input.below(9) as u64 * LENT_WINDOW_BYTES };
            let bytes = lent(&mut input, window);
            check_lent(&bytes, window, input.border(4));
        }
        4 => {
            let offset = if input.one_in(8) { input.border(8) } else { PAGE_BYTES * input.below(9) as u64 };
            let bytes = mapped(&mut input, offset);
            check_mapped(&bytes, (offset, input.border(4)), input.border(4));
        }
        5 => {
            let length = input.below(2 * STORE_MESSAGE_BYTES);
            let mut bytes = input.take(length).to_vec();
            if bytes.len() == STORE_MESSAGE_BYTES && input.one_in(2) {
                bytes[9..].fill(0); // flags that exist
            }
            check_store_message(&bytes);
        }
        6 => {
            let bytes = ahead(&mut input);
            let answers: Vec<Foretold<'_>> = Ahead::new(&bytes).map_while(Result::ok).collect();
            check_ahead(&bytes, &answers);
        }
        7 => {
            let bytes = tail(&mut input);
            check_tail(&bytes, if input.one_in(3) { input.border(8) } else { 64 << 20 });
        }
        2 => {
            let answer = Answer { error: input.border(4) as u32, value: input.border(8), ..Answer::default() };
            check_answer(answer);
            let buffer = range(&mut input);
            check_bytes(&answer, buffer, Outcome::bytes(&answer, buffer));
        }
        _ => {
            while !input.is_empty() {
                check_request(&request(&mut input));
            }
        }
    }
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let requests = (0..Number::ALL.len() as u8).flat_map(|number| {
        (0..4_u8).map(move |how| {
            let mut bytes = vec![8, 0, number, 3, 0, 0, 2, 0, 0, b'a', b'/', b'b', b'x', b'y'];
            bytes.extend((0..60_u8).map(|index| index.wrapping_mul(how)));
            bytes
        })
    });
    let others = (0..8_u8).flat_map(|kind| {
        (0..16_u8).map(move |how| [kind].into_iter().chain((0..80_u8).map(|index| index.wrapping_mul(how).wrapping_add(how))).collect())
    });
    requests.chain(others).collect()
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[
    ("an entry that is not in the listing", || check_listing(&[0; 30], &[Listed { inode: 1, cookie: 2, kind: 3, name: b"made up" }])),
    ("an answer that is not among those ahead", || {
        check_ahead(&[0; 30], &[Foretold { name: b"made up", attributes: Attributes::default(), seen: Seen::default() }]);
    }),
    ("more bytes than the buffer has", || {
        check_bytes(&Answer { value: 9, ..Answer::default() }, Range { start: 0, length: 8 }, Ok(9));
    }),
    ("an operation that does not survive", || {
        survives(Operation::GetAttribute {
            subject: tandemfs_protocol::Subject::Open(tandemfs_protocol::Handle(std::num::NonZeroU64::MIN)),
            name: &[b'n'; 256],
            into: Range::default(),
        });
    }),
];
