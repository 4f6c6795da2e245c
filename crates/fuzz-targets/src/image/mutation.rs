//! Changes to an image, chosen by the input: fields, records, pointers, lengths, lines swapped and copied, whole structures that are
//! well-formed but wrong. Mostly with valid checksums, since such changes reach the most code.

use tandemfs_format::attributes::AttributeLine;
use tandemfs_format::dentry::{Dentry, DentryContinuationLine, DentryHeadLine, NAME_MAX, type_of_mode};
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::inode::{InodeColdLine, InodeHotLine, file_type};
use tandemfs_format::mapping::{
    BlockChecksum, ChecksumLine, Extent, LINE_ENTRIES, LINE_RECORDS, LeafLine, LeafPointer, LogEntry, MappingLine, Record, SlotClass,
};
use tandemfs_format::run::Run;
use tandemfs_format::segment::SegmentLine;
use tandemfs_format::superblock::{COUNTER_MAX, SuperblockBytes};
use tandemfs_format::{DataAddress, EMPTY_LINE, Field, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_LINES, Sector, Table, UNIT_LINES};
use zerocopy::IntoBytes;

use super::anatomy::{Anatomy, Kind, Part, Pending};
use crate::Input;

/// The number of changes: mostly few, since the effect of a single change is easiest to detect.
const COUNTS: [usize; 8] = [1, 1, 1, 2, 2, 3, 4, 12];

/// A change of an image.
type Change = fn(&mut Anatomy, &mut Input<'_>, bool);

/// Changes that reach the most code are listed more than once.
const CHANGES: &[Change] = &[
    change_field,
    change_field,
    change_field,
    change_record,
    change_record,
    change_log,
    change_bytes,
    flip_bit,
    copy_line,
    swap_lines,
    empty_line,
    change_superblock,
    change_identity,
    append_record,
    change_pending,
    change_piece,
    change_data,
    copy_page,
    change_entry,
    copy_inode,
];

/// Inputs that reach each kind of change, and inputs that have found a bug.
pub(super) fn examples() -> impl Iterator<Item = Vec<u8>> {
    // In saved maps of the regions' units, lines beyond the high-water marks are taken.
    let maps = (1..5).map(|unit| vec![1, 0, 0, 15, unit, 0, 0, 0, 2, 4, 1]);
    let each = (0..CHANGES.len() as u8).flat_map(|change| {
        (0..4_u8).map(move |shape| {
            let noise = (0..24_u8).map(|at| at.wrapping_mul(29).wrapping_add(change * 7 + shape));
            [1 + shape * 2, 0, 3, change].into_iter().chain(noise).collect()
        })
    });
    each.chain(maps)
}

/// Applies some changes; fewer if the input ends.
pub(super) fn apply(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    for _ in 0..*input.pick(&COUNTS) {
        if input.is_empty() {
            return;
        }
        let change = *input.pick(CHANGES);
        change(anatomy, input, sealed);
    }
}

fn part(anatomy: &Anatomy, input: &mut Input<'_>) -> Part {
    anatomy.parts[(input.short() as usize) % anatomy.parts.len()]
}

/// A part of the given kinds, so that rare kinds are chosen as often as common ones.
fn part_of(anatomy: &Anatomy, input: &mut Input<'_>, kinds: &[Kind]) -> Option<Part> {
    let parts: Vec<Part> = anatomy.parts.iter().filter(|part| kinds.contains(&part.kind)).copied().collect();
    (!parts.is_empty()).then(|| parts[(input.short() as usize) % parts.len()])
}

const KINDS: [Kind; 8] =
    [Kind::InodeHot, Kind::InodeCold, Kind::Mapping, Kind::Dentry, Kind::Leaf, Kind::Vector, Kind::Segment, Kind::Attribute];

fn table(kind: Kind, line: &Line) -> Table {
    match kind {
        Kind::Segment => SegmentLine::TABLE,
        Kind::InodeHot => InodeHotLine::TABLE,
        Kind::InodeCold => InodeColdLine::TABLE,
        Kind::Dentry if line[4] == 2 => DentryContinuationLine::TABLE,
        Kind::Dentry => DentryHeadLine::TABLE,
        Kind::Mapping => MappingLine::TABLE,
        Kind::Leaf => LeafLine::TABLE,
        Kind::Vector => ChecksumLine::TABLE,
        Kind::Attribute => AttributeLine::TABLE,
    }
}

/// A line number of the memory zone: one in use, one next to it, or an invalid one.
fn line_number(anatomy: &Anatomy, input: &mut Input<'_>) -> u64 {
    let lines = anatomy.superblock.geometry.memory_bytes() / LINE_BYTES as u64;
    match input.below(8) {
        0 | 1 => part(anatomy, input).line,
        2 => part(anatomy, input).line & !(PAGE_LINES - 1),
        3 if !anatomy.logs.is_empty() => *input.pick(&anatomy.logs),
        4 => input.number(1) % (lines / UNIT_LINES) * UNIT_LINES,
        5 => {
            // Near the high-water mark of a segment.
            let segment = *input.pick(&anatomy.segments);
            (segment.start_unit * UNIT_LINES + segment.high_water_lines).wrapping_sub(input.below(3) as u64)
        }
        6 => lines.wrapping_sub(input.below(70) as u64),
        _ => input.border(5),
    }
}

fn sector_number(anatomy: &Anatomy, input: &mut Input<'_>) -> u64 {
    let sectors = anatomy.superblock.geometry.block_sectors();
    match input.below(4) {
        0 if !anatomy.sectors.is_empty() => *input.pick(&anatomy.sectors),
        1 => sectors.wrapping_sub(input.below(18) as u64),
        2 => input.number(2) % sectors,
        _ => input.border(5),
    }
}

fn inode_number(anatomy: &Anatomy, input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0..=2 => *input.pick(&anatomy.inodes),
        _ => input.border(6),
    }
}

/// A value for a field of this size.
fn value(anatomy: &Anatomy, input: &mut Input<'_>, bytes: usize) -> u64 {
    match input.below(6) {
        0 => line_number(anatomy, input),
        1 => sector_number(anatomy, input),
        2 => inode_number(anatomy, input),
        _ => input.border(bytes),
    }
}

fn set_field(anatomy: &Anatomy, input: &mut Input<'_>, field: &Field, target: &mut [u8]) {
    let Some(bytes) = target.get_mut(field.offset_bytes..field.offset_bytes + field.size_bytes) else { return };
    if bytes.len() <= 8 {
        let old = bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let new = match input.below(5) {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1),
            2 => old ^ 1_u64 << input.below(8 * bytes.len()),
            _ => value(anatomy, input, bytes.len()),
        };
        let length = bytes.len();
        bytes.copy_from_slice(&new.to_le_bytes()[..length]);
    } else {
        let at = input.below(bytes.len());
        let new = input.take(1 + (at % 5));
        for (byte, new) in bytes[at..].iter_mut().zip(new) {
            *byte = *new;
        }
    }
}

fn store(anatomy: &mut Anatomy, part: Part, line: Line, sealed: bool) {
    if sealed { anatomy.put_sealed(part, line) } else { anatomy.put(part.line, line) }
}

fn change_field(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let kind = *input.pick(&KINDS);
    let Some(part) = part_of(anatomy, input, &[kind]) else { return };
    let mut line = anatomy.line(part.line);
    let fields = table(part.kind, &line).fields;
    // The first field is the checksum, except in vectors.
    let first = usize::from(part.kind != Kind::Vector).min(fields.len() - 1);
    let field = fields[first + input.below(fields.len() - first)];
    set_field(anatomy, input, &field, &mut line);
    store(anatomy, part, line, sealed);
}

fn log(anatomy: &Anatomy, input: &mut Input<'_>) -> LogEntry {
    let class = *input.pick(&SlotClass::ALL);
    let offset = (*input.pick(&[0, 64, 4096, 4095, 65_535, 65_536, 1 << 16, (1 << 20) - 1])) as u32;
    let length = match input.below(4) {
        0 => 1,
        1 => class.bytes() as u32,
        _ => 1 + input.number(2) as u32 % class.bytes() as u32,
    };
    LogEntry { address: LineAddress::new(line_number(anatomy, input) & 0xff_ffff_ffff), crc: 0, offset, length, class }
}

/// A well-formed record with arbitrary addresses.
fn record(anatomy: &Anatomy, input: &mut Input<'_>) -> Record {
    let line = |anatomy: &Anatomy, input: &mut Input<'_>| LineAddress::new(line_number(anatomy, input) & 0xff_ffff_ffff);
    match input.below(7) {
        0 => Record::HOLE,
        1 => Record::SingleLog(log(anatomy, input)),
        2 => Record::Memory(line(anatomy, input).page()),
        3 => Record::Pointer { page: line(anatomy, input).page(), height: 1 + input.below(8) as u32 },
        4 => Record::Lost { height: input.below(9) as u32, leaf: None },
        5 => {
            let vector = (!input.one_in(3)).then(|| line(anatomy, input)).filter(|vector| vector.number() != 0);
            let first = LineAddress::new(line(anatomy, input).page().number().max(PAGE_LINES));
            Record::Run(Run {
                first,
                blocks: 2 + input.below(511) as u32,
                vector,
                open: vector.is_some_and(|vector| vector.number() % 4 == 1),
            })
        }
        _ => {
            let whole = anatomy.superblock.geometry.block_sectors_each() as u32;
            let count = *input.pick(&[1, 2, whole, whole.saturating_add(1).min(256), 256]);
            let checksum = match (input.below(3), count) {
                (0, _) => BlockChecksum::None,
                (_, 1) => BlockChecksum::Inline(input.number(4) as u32),
                _ => {
                    let vector = line(anatomy, input);
                    if vector.number() % 4 == 1 { BlockChecksum::Open(Some(vector)) } else { BlockChecksum::Vector(vector) }
                }
            };
            let at = match input.one_in(3) {
                true => DataAddress::Page(line(anatomy, input).page()),
                false => DataAddress::Sector(Sector::new((sector_number(anatomy, input) & 0xff_ffff_ffff).max(1))),
            };
            let unwritten = input.one_in(4);
            let overlaid = !unwritten && matches!(checksum, BlockChecksum::Inline(_) | BlockChecksum::Vector(_)) && input.one_in(8);
            let extent = input.one_in(2).then_some(Extent { at, count, checksum, unwritten, overlaid });
            let leaf = input.one_in(2).then(|| LeafPointer { address: line(anatomy, input), class: input.below(3) as u32 });
            Record::Block { extent, leaf: leaf.filter(|leaf| leaf.address.number() != 0) }
        }
    }
}

/// Replaces one record of a mapping page, or the root in an inode, by a generated record or by a copy of another one (space with two
/// owners).
fn change_record(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let kinds: &[Kind] = if input.one_in(2) { &[Kind::Mapping] } else { &[Kind::InodeCold] };
    let Some(part) = part_of(anatomy, input, kinds) else { return };
    let at = |part: Part, index: usize| if part.kind == Kind::InodeCold { 40 } else { 4 + 20 * index };
    let bytes = if input.one_in(3) {
        let Some(source) = part_of(anatomy, input, &[Kind::Mapping, Kind::InodeCold]) else { return };
        let line = anatomy.line(source.line);
        let from = at(source, input.below(LINE_RECORDS));
        let mut bytes = [0; 20];
        bytes.copy_from_slice(&line[from..from + 20]);
        bytes
    } else {
        record(anatomy, input).encode().to_bytes()
    };
    let mut line = anatomy.line(part.line);
    let to = at(part, input.below(LINE_RECORDS));
    line[to..to + 20].copy_from_slice(&bytes);
    store(anatomy, part, line, sealed);
}

fn change_log(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let Some(part) = part_of(anatomy, input, &[Kind::Leaf]) else { return };
    let mut line = anatomy.line(part.line);
    let at = 4 + 15 * input.below(LINE_ENTRIES);
    line[at..at + 15].copy_from_slice(log(anatomy, input).encode().as_bytes());
    store(anatomy, part, line, sealed);
}

fn change_bytes(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let part = part(anatomy, input);
    let mut line = anatomy.line(part.line);
    let at = 4 + input.below(60);
    let length = 1 + input.below(8);
    for (byte, new) in line[at..].iter_mut().zip(input.take(length)) {
        *byte = *new;
    }
    store(anatomy, part, line, sealed);
}

/// Flips one bit without a new checksum, like a memory error.
fn flip_bit(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    let part = part(anatomy, input);
    let mut line = anatomy.line(part.line);
    line[input.below(64)] ^= 1 << input.below(8);
    anatomy.put(part.line, line);
}

fn copy_line(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let (to, from) = (part(anatomy, input), part(anatomy, input));
    let line = anatomy.line(from.line);
    store(anatomy, to, line, sealed);
}

fn swap_lines(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let one = part(anatomy, input);
    let Some(other) = part_of(anatomy, input, &[one.kind]) else { return };
    let (first, second) = (anatomy.line(one.line), anatomy.line(other.line));
    store(anatomy, one, second, sealed);
    store(anatomy, other, first, sealed);
}

fn empty_line(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    let kind = *input.pick(&KINDS);
    if let Some(part) = part_of(anatomy, input, &[kind]) {
        anatomy.put(part.line, EMPTY_LINE);
    }
}

/// Avoids counters that overflow while the file system works: at a million increments a second that takes 292,000 years.
fn reachable(counter: u64) -> u64 {
    if (COUNTER_MAX - (1 << 20)..=COUNTER_MAX).contains(&counter) { COUNTER_MAX - (1 << 20) } else { counter }
}

fn change_superblock(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let copies: &[usize] = input.pick::<&[usize]>(&[&[0, 1], &[0, 1], &[0], &[1]]);
    let fields = SuperblockBytes::TABLE.fields;
    let field = fields[1 + input.below(fields.len() - 1)];
    // The same choices for both copies.
    let (shared, choice) = (&*anatomy, input.clone());
    shared.change_superblock(copies, sealed, |bytes| {
        let mut choice = choice.clone();
        if field.name == "tails" {
            let at = field.offset_bytes + 4 * choice.below(2 * shared.superblock.geometry.ring_count() as usize);
            let value = choice.border(4) as u32 & !63;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        } else {
            set_field(shared, &mut choice, &field, bytes);
            for at in [160, 168, 176] {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[at..at + 8]);
                bytes[at..at + 8].copy_from_slice(&reachable(u64::from_le_bytes(word)).to_le_bytes());
            }
        }
    });
    let _used = input.take(6);
}

fn change_identity(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let fields = BlockIdentity::TABLE.fields;
    let field = fields[1 + input.below(fields.len() - 1)];
    let choice = input.clone();
    let shared = &*anatomy;
    shared.change_identity(sealed, |bytes| set_field(shared, &mut choice.clone(), &field, bytes));
    let _used = input.take(4);
}

/// Appends a record with a valid checksum: some lines, changed and sealed, or at a wrong address.
fn append_record(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    let ring = input.below(anatomy.superblock.geometry.ring_count() as usize) as u32;
    let (offset_bytes, wrap) = anatomy.end_of_ring(ring);
    let newest = anatomy.pending.iter().map(|record| record.txid).max().unwrap_or(anatomy.superblock.watermark);
    let txid = match input.below(6) {
        0 => newest,
        1 => reachable(input.border(8)),
        _ => newest.wrapping_add(1),
    };
    let changes = (0..input.below(4))
        .map(|_| {
            let part = part(anatomy, input);
            let mut line = anatomy.line(part.line);
            let fields = table(part.kind, &line).fields;
            let field = fields[input.below(fields.len())];
            set_field(anatomy, input, &field, &mut line);
            let at = if input.one_in(4) { line_number(anatomy, input) } else { part.line };
            (LineAddress::new(at), anatomy.seal(part, at, line))
        })
        .collect();
    let record = Pending { ring, wrap, offset_bytes, txid, changes };
    anatomy.write_record(&record);
    anatomy.pending.push(record);
    if input.one_in(2) {
        anatomy.change_superblock(&[0, 1], true, |bytes| bytes[141] = 0);
    }
}

/// Changes an existing record: another number, another address, fewer lines.
fn change_pending(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    if anatomy.pending.is_empty() {
        return;
    }
    let index = input.below(anatomy.pending.len());
    let mut record = anatomy.pending[index].clone();
    match input.below(3) {
        0 => record.txid = if input.one_in(2) { reachable(input.border(8)) } else { record.txid.wrapping_sub(input.below(4) as u64) },
        1 if !record.changes.is_empty() => {
            let at = input.below(record.changes.len());
            record.changes[at].0 = LineAddress::new(line_number(anatomy, input));
        }
        _ => record.changes.truncate(input.below(4)),
    }
    anatomy.write_record(&record);
    anatomy.pending[index] = record;
}

fn change_piece(anatomy: &mut Anatomy, input: &mut Input<'_>, sealed: bool) {
    let index = input.number(2);
    let choice = input.clone();
    anatomy.change_piece(index, sealed, |head, bits| {
        let mut choice = choice.clone();
        if choice.one_in(4) {
            let at = 4 + choice.below(20);
            head[at] = choice.byte();
        } else {
            let at = choice.number(2) as usize % bits.len();
            let length = *choice.pick(&[1, 1, 8, 64, 4096]);
            let byte = *choice.pick(&[0, 0xff, 0x55, 1]);
            let end = (at + length).min(bits.len());
            bits[at..end].fill(byte);
        }
    });
    let _used = input.take(5);
}

fn change_data(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    if input.one_in(2) && !anatomy.logs.is_empty() {
        let log = *input.pick(&anatomy.logs);
        let mut line = anatomy.line(log);
        line[input.below(64)] ^= 1 << input.below(8);
        anatomy.put(log, line);
    } else if !anatomy.sectors.is_empty() {
        let sector = *input.pick(&anatomy.sectors);
        let at = input.number(2) as usize % 4096;
        anatomy.change_sector(sector, |bytes| bytes[at] ^= 1);
    }
}

/// Copies a metadata page to another place, sealed for its owner or another, so that a pointer to it is valid.
fn copy_page(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    let Some(source) = part_of(anatomy, input, &[Kind::Mapping, Kind::Dentry]) else { return };
    let first = source.line & !(PAGE_LINES - 1);
    let to = line_number(anatomy, input) & !(PAGE_LINES - 1);
    let owner = if input.one_in(2) { inode_number(anatomy, input) } else { source.owner };
    for index in 0..PAGE_LINES {
        let line = anatomy.line(first + index);
        let sealed = anatomy.seal(Part { owner, ..source }, to.wrapping_add(index), line);
        anatomy.put(to.wrapping_add(index), sealed);
    }
    if input.one_in(2)
        && let Some(part) = part_of(anatomy, input, &[Kind::InodeCold])
    {
        let record = match source.kind {
            Kind::Dentry => Record::Memory(LineAddress::new(to)),
            _ => Record::Pointer { page: LineAddress::new(to), height: 1 + input.below(3) as u32 },
        };
        let mut line = anatomy.line(part.line);
        line[40..60].copy_from_slice(&record.encode().to_bytes());
        anatomy.put_sealed(part, line);
    }
}

/// A well-formed but wrong entry: duplicate name, forbidden name, another inode, or one that overwrites its neighbours.
fn change_entry(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    let Some(part) = part_of(anatomy, input, &[Kind::Dentry]) else { return };
    let length = *input.pick(&[1, 47, 48, 106, 107, NAME_MAX]);
    let long: Vec<u8> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
    let bytes: Vec<u8> = match input.below(8) {
        0 => b"..".to_vec(),
        1 => b".".to_vec(),
        2 => b"a/b".to_vec(),
        3 => b"nul\0".to_vec(),
        4 => b"a".to_vec(),
        5 => b"d".to_vec(),
        6 => input.take(1 + length % 30).to_vec(),
        _ => long,
    };
    let name = if bytes.is_empty() { b"x".to_vec() } else { bytes };
    let inode = InodeNumber::new(inode_number(anatomy, input));
    let types = file_type::ALL.map(type_of_mode);
    let mut hash = anatomy.pair().name_hash(&name);
    if input.one_in(6) {
        hash ^= 1;
    }
    let entry = Dentry { inode, file_type: *input.pick(&types), hash, name };
    let Some(place) = anatomy.place(part, part.line) else { return };
    let lines = entry.encode(|index| tandemfs_format::Place { address: LineAddress::new(part.line + index as u64), ..place });
    for (index, line) in (0..).zip(lines) {
        anatomy.put(part.line + index, line);
    }
}

/// Copies an inode to another number: then everything that it owns has two owners, or belongs to no valid inode.
fn copy_inode(anatomy: &mut Anatomy, input: &mut Input<'_>, _sealed: bool) {
    let Some(source) = part_of(anatomy, input, &[Kind::InodeHot]) else { return };
    let Some(segment) = anatomy.segments.iter().find(|segment| segment.region == tandemfs_format::segment::Region::Inodes).copied() else {
        return;
    };
    let target = if input.one_in(2) { inode_number(anatomy, input) } else { 1 + input.number(1) };
    for (kind, index) in [(Kind::InodeHot, 0), (Kind::InodeCold, 1)] {
        let line = anatomy.line(source.line + index);
        let at = segment.start_unit * UNIT_LINES + target.wrapping_mul(2) % segment.high_water_lines.max(2) + index;
        let owner = (at - segment.start_unit * UNIT_LINES) / 2;
        let part = Part { line: at, kind, owner };
        let sealed = anatomy.seal(part, at, line);
        anatomy.put(at, sealed);
    }
}
