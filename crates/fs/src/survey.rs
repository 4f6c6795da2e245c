//! What one inode takes, found also where its metadata is damaged: for the rebuild of the maps.
//!
//! [SY1] Space that verified lines name is *proved*. What a corrected line names is *supposed* ([SA1] of `index/salvage.rs`); everything
//!       below a corrected line of the inode itself is supposed.
//! [SY2] Where a line is lost, the survey says which kinds of space it may name. A lost inode may name all of them.
//! [SY3] Zeros where a line may be empty verify. They show in the accounts: what is found must be what the inode counts in `space_512`, and
//!       a directory has a page for each 4096 B of its size. If not, something is lost although every line verifies.

use tandemfs_device::Structure;
use tandemfs_format::attributes::{AttributeValue, StreamShape, addresses_of, decode_set, extend_stream, set_bytes};
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::Record;
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, EMPTY_LINE, InodeNumber, Line, LineAddress, PAGE_BYTES, PAGE_LINES};

use crate::cache::Owner;
use crate::error::Result;
use crate::index::salvage::{Piece, Salvage, Trust};
use crate::space::{self, Kinds, Space};
use crate::volume::Volume;

/// Space of a page in units of 512 B.
const PAGE_512: u64 = PAGE_BYTES as u64 / 512;

/// What a survey found.
pub(crate) struct Survey {
    /// The inode, if both of its lines verify.
    pub(crate) inode: Option<Inode>,
    /// The first damage.
    pub(crate) damage: Option<Corrupt>,
    /// Kinds of space that damaged lines may name and that were not found.
    pub(crate) lost: Kinds,
    /// Whether it has open pages ([OG2] of `data/open_pages.rs`).
    pub(crate) has_open_pages: bool,
    /// Whether it has blocks whose logs were being copied home ([KP5] of `data/kept_place.rs`).
    pub(crate) has_copies: bool,
}

/// Runs of lines: first lines, and how many.
type Pieces = Vec<(LineAddress, u64)>;

/// Takes note of space, and returns whether it can be the inode's own.
pub(crate) type Take<'t> = &'t mut dyn FnMut(Trust, Space) -> bool;

/// Surveys the inode in these two lines; `None` where the slot is free.
pub(crate) fn survey(
    volume: &Volume,
    number: InodeNumber,
    address: LineAddress,
    (hot, cold): (&Line, &Line),
    take: Take<'_>,
) -> Result<Option<Survey>> {
    let (inode, damage) = match Inode::decode(volume.pair, number, address, hot, cold) {
        Ok(None) => return Ok(None),
        Ok(Some(inode)) => (inode, None),
        Err(source) => match corrected(volume, number, address, [hot, cold]) {
            Some(inode) => (inode, Some(source)),
            None => {
                let lost = if Inode::was_free(hot, cold) { Kinds::NONE } else { Kinds::OF_INODE };
                return Ok(Some(Survey { inode: None, damage: Some(source), lost, has_open_pages: false, has_copies: false }));
            }
        },
    };
    let owner = Owner { inode: number, generation: inode.generation };
    let trust = if damage.is_some() { Trust::Supposed } else { Trust::Proved };
    let salvage = Salvage::new(volume, owner, inode.is_directory(), true);
    let mut surveyor =
        Surveyor { volume, inode: &inode, trust, salvage, take, found_512: 0, pages: 0, has_open_pages: false, has_copies: false };
    surveyor.attributes()?;
    surveyor.mapping()?;
    surveyor.compare(address);
    let Surveyor { salvage, has_open_pages, has_copies, .. } = surveyor;
    let (first, lost) = (salvage.first, salvage.lost);
    Ok(Some(Survey { inode: damage.is_none().then_some(inode), damage: damage.or(first), lost, has_open_pages, has_copies }))
}

/// The inode whose lines have one wrong bit each at most.
fn corrected(volume: &Volume, number: InodeNumber, address: LineAddress, lines: [&Line; 2]) -> Option<Inode> {
    let mut repaired = [EMPTY_LINE; 2];
    for ((index, line), repaired) in (0..).zip(lines).zip(&mut repaired) {
        let place = Inode::place(volume.pair, number, address.nth(index));
        // Of an inode in use neither line is empty.
        *repaired = if *line == EMPTY_LINE || place.verify(line).is_err() { place.corrected(line)? } else { *line };
    }
    Inode::decode(volume.pair, number, address, &repaired[0], &repaired[1]).ok()?
}

struct Surveyor<'s, 't> {
    volume: &'s Volume,
    inode: &'s Inode,
    trust: Trust,
    salvage: Salvage<'s>,
    take: Take<'t>,
    /// Space found, as `space_512` counts it.
    found_512: u64,
    /// Pages of directory entries found.
    pages: u64,
    has_open_pages: bool,
    has_copies: bool,
}

impl Surveyor<'_, '_> {
    fn attributes(&mut self) -> Result<()> {
        let pointer = self.inode.attributes;
        if pointer.is_none() {
            return Ok(());
        }
        let Some(piece) = pointer.first_piece() else {
            let found = pointer.class.into();
            self.salvage.note(Corrupt::Field { address: pointer.address, field: "attributes_class", found }, Kinds::ATTRIBUTES);
            return Ok(());
        };
        let Some((pieces, trust)) = self.pieces(pointer.address, piece, self.trust)? else { return Ok(()) };
        let (mut stream, mut trust) = (Vec::new(), trust);
        for (first, lines) in pieces.iter().skip(usize::from(piece.1)) {
            for index in 0..*lines {
                let found = self.salvage.line(Structure::Mapping, first.nth(index), Kinds::ATTRIBUTES)?;
                let Some((line, of_line)) = found else { return Ok(()) };
                trust = trust.below(of_line);
                extend_stream(&mut stream, &line);
            }
        }
        let decoded = decode_set(self.volume.pair, pointer, &stream).map_err(crate::error::Error::from);
        let Some(list) = self.salvage.noted(decoded, Kinds::ATTRIBUTES)? else { return Ok(()) };
        self.found_512 += StreamShape::of(set_bytes(&list)).space_512();
        for attribute in list {
            let AttributeValue::Apart { address, length, .. } = attribute.value else { continue };
            let shape = StreamShape::of(length as usize);
            self.found_512 += shape.space_512();
            let found = self.pieces(address, (shape.lines, shape.pages > 0), trust)?;
            let pages = found.map_or(shape.pages, |(pieces, _)| pieces.len() as u64 - 1);
            if pages != shape.pages {
                self.salvage.note(Corrupt::Field { address, field: "pages", found: pages }, Kinds::ATTRIBUTES);
            }
        }
        Ok(())
    }

    /// Takes the pieces of a stream: its first lines, and the pages that they name. `None` if some of them are lost.
    fn pieces(&mut self, first: LineAddress, (lines, holds_addresses): (u64, bool), trust: Trust) -> Result<Option<(Pieces, Trust)>> {
        let mut trust = trust;
        let mut pieces = vec![(first, lines)];
        if !self.take_attributes(first, lines, trust) {
            return Ok(None);
        }
        for index in 0..if holds_addresses { lines } else { 0 } {
            let found = self.salvage.line(Structure::Mapping, first.nth(index), Kinds::ATTRIBUTES)?;
            let Some((line, of_line)) = found else { return Ok(None) };
            trust = trust.below(of_line);
            for page in addresses_of(&line) {
                if page.index_in_page() != 0 || !self.take_attributes(page, PAGE_LINES, trust) {
                    return Ok(None);
                }
                pieces.push((page, PAGE_LINES));
            }
        }
        Ok(Some((pieces, trust)))
    }

    fn take_attributes(&mut self, first: LineAddress, lines: u64, trust: Trust) -> bool {
        let is_inside = self.volume.geometry.holds_lines(first, lines);
        if !is_inside {
            self.salvage.note(Corrupt::Field { address: first, field: "address", found: first.number() }, Kinds::ATTRIBUTES);
        }
        is_inside && (self.take)(trust, space::region(Region::Attributes, first, lines))
    }

    fn mapping(&mut self) -> Result<()> {
        if !self.inode.has_mapping() {
            return Ok(());
        }
        let (volume, is_directory) = (self.volume, self.inode.is_directory());
        let Self { salvage, take, found_512, pages, has_open_pages, has_copies, .. } = self;
        salvage.walk(self.inode.root_record(), self.trust, &mut |salvage, trust, piece| {
            Ok(match piece {
                Piece::Page(page) | Piece::Again(page) => take(trust, space::region(Region::Mappings, page, PAGE_LINES)),
                Piece::RunLine(line) => take(trust, space::region(Region::Leaves, line, 1)),
                Piece::Block(_, Record::Memory(page)) if is_directory => {
                    let is_inside = volume.geometry.holds_lines(page, PAGE_LINES);
                    if is_inside {
                        take(trust, space::region(Region::Dentries, page, PAGE_LINES));
                        (*found_512, *pages) = (*found_512 + PAGE_512, *pages + 1);
                    } else {
                        salvage.note(Corrupt::Field { address: page, field: "address", found: page.number() }, Kinds::DENTRIES);
                    }
                    is_inside
                }
                Piece::Block(_, record) => {
                    if let Some((block, of_block)) = salvage.block(volume, record)? {
                        let trust = trust.below(of_block);
                        *found_512 += block.space_512(volume.log_counting);
                        *has_open_pages |= block.base.is_open();
                        *has_copies |= block.base.is_overlaid();
                        let (_, extent) = block.each_space(volume, |region, address, lines| {
                            take(trust, region.map_or(space::slot(address, lines), |region| space::region(region, address, lines)))
                        });
                        if let Some(extent) = extent {
                            take(trust, space::data(extent.at, extent.count.into()));
                        }
                    }
                    true
                }
            })
        })
    }

    /// Compares what was found with what the inode counts ([SY3]).
    fn compare(&mut self, address: LineAddress) {
        if self.salvage.lost != Kinds::NONE {
            return;
        }
        let hides = if self.inode.is_directory() { Kinds::OF_DIRECTORY } else { Kinds::OF_FILE };
        let counted = self.inode.space_512;
        if counted != self.found_512 {
            self.salvage.note(Corrupt::Field { address, field: "space_512", found: counted }, hides);
        } else if self.inode.is_directory() && self.pages != self.inode.size / PAGE_BYTES as u64 {
            self.salvage.note(Corrupt::Field { address, field: "size", found: self.inode.size }, hides);
        }
    }
}
