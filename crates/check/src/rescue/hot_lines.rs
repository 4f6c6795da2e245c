//! Inodes of which only the cold line is left: it has owner, attributes and the root of the mapping, so the content is still there.
//!
//! [HL1] The generation comes from a line that the root leads to ([GN1] of `generations.rs`), confirmed by a second one ([GN2]) or, where there
//!       is no other, by what it says. If the root leads to no line with a checksum, the generation protects nothing, and 0 is as good.
//! [HL2] The type comes from the name. Without a name that says it nothing is rebuilt.
//! [HL3] Size, permissions, times and link count are lost. The size becomes the end of the last log or sector, so up to 4095 bytes of a
//!       file's last sector follow its former end; permissions become the owner's alone. Everything that is so replaced is said.

use tandemfs_device::Structure;
use tandemfs_format::attributes::AttributePointer;
use tandemfs_format::inode::{FILE_BYTES_MAX, INLINE_LINK_MAX, Inode, InodeColdLine, Timestamp, file_type, state};
use tandemfs_format::mapping::{LeafPointer, Record, line_entries, line_records};
use tandemfs_format::segment::Region;
use tandemfs_format::{
    DataAddress, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_BYTES, PAGE_LINES, SECTOR_BYTES, UNIT_LINES,
};
use zerocopy::FromBytes;

use crate::generations::Generations;
use crate::image::{Image, line_of};
use crate::inodes::Inodes;
use crate::mutant::{Mutant, on};
use crate::namespace::DentryPage;
use crate::tree::{Step, Walk};

/// An inode whose hot line is made anew.
pub(crate) struct Rebuilt {
    pub(crate) address: LineAddress,
    pub(crate) hot: Line,
    /// What was rebuilt, for people.
    pub(crate) sentence: String,
}

/// The hot line of an inode whose cold line verifies and whose hot line does not; `None` if there is not enough to go by.
pub(crate) fn rebuild(image: &Image<'_>, inodes: &Inodes, generations: &Generations, number: u64) -> Option<Rebuilt> {
    let address = image.segments.inode_address(number)?;
    let place = |line| Inode::place(image.pair, InodeNumber::new(number), line);
    let cold = image.line(Structure::Inode, address.nth(1)).ok()?;
    let hot_verifies = image.line(Structure::Inode, address).is_ok_and(|hot| hot != EMPTY_LINE && place(address).verify(&hot).is_ok());
    if hot_verifies || cold == EMPTY_LINE || place(address.nth(1)).verify(&cold).is_err() {
        return None;
    }
    let cold = InodeColdLine::read_from_bytes(&cold).ok()?;
    let kind = kind_of(image, inodes, number)?;
    let birth = Timestamp::decode(cold.birth.get());
    let mut inode = Inode {
        mode: kind | if kind == file_type::DIRECTORY { 0o700 } else { 0o600 },
        state: state::IN_USE,
        nlink: inodes.get(number)?.links.max(1),
        generation: 0,
        size: 0,
        space_512: 0,
        atime: birth,
        mtime: birth,
        ctime: birth,
        change_count: 1,
        uid: cold.uid.get(),
        gid: cold.gid.get(),
        project: cold.project.get(),
        flags: cold.flags.get(),
        birth,
        parent: InodeNumber::new(cold.parent.get()),
        attributes: AttributePointer { address: LineAddress::new(cold.attributes.get()), class: cold.attributes_class },
        root: cold.root,
    };
    inode.generation = generation_of(image, generations, number, &inode)?;
    inode.size = size_of(image, number, &inode)?;
    let sentence = format!(
        "inode {number}: its first line was made anew; its content is there, its size is now {} B and may be up to a sector too long, \
         its permissions and times are lost",
        inode.size
    );
    Some(Rebuilt { address, hot: inode.encode_hot(&place(address)), sentence })
}

/// The type that the inode's name says ([HL2]).
pub(crate) fn kind_of(image: &Image<'_>, inodes: &Inodes, number: u64) -> Option<u16> {
    let facts = inodes.get(number)?;
    let directory = inodes.get(facts.named_in)?;
    let line = LineAddress::new(facts.name_line);
    let page = DentryPage::load(image, facts.named_in, directory.generation, line.page())?;
    let kind = u16::from(page.entry(line.index_in_page()).ok()??.file_type) << 12;
    file_type::ALL.contains(&kind).then_some(kind)
}

/// The generation with which the lines that the root leads to verify ([HL1]).
fn generation_of(image: &Image<'_>, generations: &Generations, number: u64, inode: &Inode) -> Option<u32> {
    let has_records = matches!(inode.file_type(), file_type::DIRECTORY | file_type::REGULAR);
    let root = has_records.then(|| inode.root_record().decode(LineAddress::new(0)).ok()).flatten();
    let (region, first, count) = match root {
        Some(Record::Pointer { page, .. }) => (Region::Mappings, page, PAGE_LINES),
        Some(Record::Memory(page)) => (Region::Dentries, page, PAGE_LINES),
        Some(Record::Block { leaf: Some(leaf), .. }) => (Region::Leaves, leaf.address, leaf.lines()),
        None if has_records => return None,
        _ if inode.attributes.is_none() => return Some(0),
        _ => (Region::Attributes, inode.attributes.address, inode.attributes.first_piece()?.0),
    };
    if !image.segments.holds(region, first, count) {
        return None;
    }
    let mut bytes = vec![0; count as usize * LINE_BYTES];
    image.load(Structure::Mapping, first, &mut bytes).ok()?;
    let used: Vec<(LineAddress, Line)> =
        (0..count).map(|index| (first.nth(index), line_of(&bytes, index as usize))).filter(|(_, line)| *line != EMPTY_LINE).collect();
    used.iter().find_map(|(address, line)| {
        let generation = generations.place(number, *address, line).generation;
        let verified = used.iter().filter(|(address, line)| image.place(number, generation, *address).verify(line).is_ok()).count();
        let is_confirmed = verified >= 2 || used.len() == 1 && has_meaning(image, region, *address, line) || on(Mutant::OneLineProves);
        is_confirmed.then_some(generation)
    })
}

/// Whether everything in a line is what it can be there: noise names sectors and lines far behind the ends of the zones.
fn has_meaning(image: &Image<'_>, region: Region, address: LineAddress, line: &Line) -> bool {
    match region {
        Region::Mappings => line_records(line).iter().all(|record| match record.decode(address) {
            Ok(Record::Block { extent, leaf }) => {
                extent.is_none_or(|extent| image.geometry.holds_data(extent.at, extent.count.into()))
                    && leaf.is_none_or(|leaf| image.segments.holds(Region::Leaves, leaf.address, leaf.lines()))
            }
            Ok(Record::SingleLog(log)) => image.geometry.holds_lines(log.address, log.class.lines()),
            Ok(Record::Run(run)) => image.superblock.has_memory_homes() && image.geometry.holds_data(DataAddress::Page(run.first), 1),
            Ok(Record::Memory(page)) => image.segments.holds(Region::Dentries, page, PAGE_LINES),
            Ok(Record::Pointer { page, .. }) => image.segments.holds(Region::Mappings, page, PAGE_LINES),
            _ => false,
        }),
        Region::Leaves => line_entries(line, address)
            .is_ok_and(|entries| entries.iter().flatten().all(|log| image.geometry.holds_lines(log.address, log.class.lines()))),
        // A set of attributes has a checksum of its own.
        Region::Attributes => true,
        _ => false,
    }
}

/// The end of what the mapping names ([HL3]); `None` of a symbolic link that has none.
fn size_of(image: &Image<'_>, number: u64, inode: &Inode) -> Option<u64> {
    let block_bytes = u64::from(image.geometry.block_bytes());
    if inode.file_type() == file_type::SYMLINK {
        // A short target is in the inode. A long one is the content of block 0, in a log that ends where it does.
        let inline = inode.root.iter().position(|byte| *byte == 0).unwrap_or(INLINE_LINK_MAX);
        return match inode.root_record().decode(LineAddress::new(0)) {
            Ok(Record::SingleLog(log)) if log.offset == 0 => Some(log.length.into()),
            _ => (inline > 0 && inode.root.iter().skip(inline).all(|byte| *byte == 0)).then_some(inline as u64),
        };
    }
    if !matches!(inode.file_type(), file_type::DIRECTORY | file_type::REGULAR) {
        return Some(0);
    }
    let mut walk = Walk::new(number, inode);
    let mut left = image.geometry.memory_units() * UNIT_LINES / PAGE_LINES;
    let mut end = 0;
    while let Some(step) = walk.next(image) {
        match step {
            Step::Pointer { span, page, height, .. } if left > 0 && image.segments.holds(Region::Mappings, page, PAGE_LINES) => {
                left -= 1;
                // What cannot be read is damage that the next check reports.
                let _ = walk.enter(image, page, height, span.first);
            }
            Step::Block { block, record, .. } => {
                let inside = match record {
                    Record::Memory(_) => {
                        end = end.max((block + 1).saturating_mul(PAGE_BYTES as u64));
                        continue;
                    }
                    Record::SingleLog(log) => u64::from(log.end()),
                    Record::Block { extent, leaf } => {
                        let sectors = extent.filter(|extent| !extent.unwritten).map_or(0, |extent| u64::from(extent.count));
                        let logs = leaf.map_or(0, |leaf| end_of_logs(image, (number, inode.generation), leaf));
                        logs.max(sectors * SECTOR_BYTES as u64)
                    }
                    _ => 0,
                };
                end = end.max(block.saturating_mul(block_bytes).saturating_add(inside.min(block_bytes)));
            }
            _ => {}
        }
    }
    Some(end.min(FILE_BYTES_MAX))
}

fn end_of_logs(image: &Image<'_>, (number, generation): (u64, u32), leaf: LeafPointer) -> u64 {
    let mut end = 0;
    for index in 0..leaf.lines() {
        let address = leaf.address.nth(index);
        let Ok(line) = image.line(Structure::Mapping, address) else { continue };
        if image.place(number, generation, address).verify(&line).is_ok() {
            let entries = line_entries(&line, address).unwrap_or_default();
            end = entries.iter().flatten().fold(end, |end, log| end.max(log.end()));
        }
    }
    end.into()
}
