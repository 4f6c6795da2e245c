//! Byte streams in their own lines: sets of extended attributes, and attribute values stored apart from the set.
//!
//! [ST1] A stream is never changed in place: it is stored into fresh unlinked lines, fenced, and then linked by a transaction ([TX4] of
//!       `journal/tx.rs`). No journal record ever names one of its lines.
//! [ST2] Its lines are reused after the watermark has passed the transaction that freed them, like all lines of a region (RULES R6).
//! [ST3] Every page with fresh lines has a host copy from before the first store until after the fence, and each store updates the copy: so
//!       nobody loads such a page meanwhile or reads old content of a reused line.

use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Fenced, InFlight, Lines, Structure};
use tandemfs_format::attributes::{
    SET_BYTES_MAX, STREAM_PAGE_BYTES, StreamShape, address_lines, addresses_of, extend_stream, stream_lines,
};
use tandemfs_format::segment::Region;
use tandemfs_format::{LineAddress, PAGE_LINES};

use crate::alloc::Need;
use crate::cache::damaged;
use crate::cache::{LineStore, Owner, Page};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::Tx;

/// Maximum number of pages of a stream.
const PAGES_MAX: usize = SET_BYTES_MAX.div_ceil(STREAM_PAGE_BYTES);

/// Consecutive lines of a stream, and their content.
struct Piece {
    first: LineAddress,
    lines: u64,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    Pages(Vec<LineAddress>),
}

/// Streams with allocated lines that are not stored yet.
#[derive(Default)]
pub(crate) struct Planned {
    pieces: SmallVec<[Piece; 2]>,
}

impl Planned {
    /// Allocates lines for a stream. Returns its first line.
    pub(crate) fn add(&mut self, tx: &mut Tx<'_>, bytes: &[u8], need: Need) -> Result<LineAddress> {
        let shape = StreamShape::of(bytes.len());
        let first = take(tx, shape.lines, need)?;
        if shape.pages == 0 {
            self.pieces.push(Piece { first, lines: shape.lines, content: Content::Bytes(bytes.to_vec()) });
            return Ok(first);
        }
        let mut pages = Vec::with_capacity(shape.pages as usize);
        for chunk in bytes.chunks(STREAM_PAGE_BYTES) {
            let page = take(tx, PAGE_LINES, need)?;
            self.pieces.push(Piece { first: page, lines: PAGE_LINES, content: Content::Bytes(chunk.to_vec()) });
            pages.push(page);
        }
        self.pieces.push(Piece { first, lines: shape.lines, content: Content::Pages(pages) });
        Ok(first)
    }

    /// Lines of all streams.
    pub(crate) fn lines(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.lines).sum()
    }

    /// The bug: a stream overwrites another stream of the same shape.
    pub(crate) fn add_in_place(&mut self, first: LineAddress, bytes: &[u8], gone: &mut Vec<(LineAddress, u64)>) -> LineAddress {
        gone.retain(|(gone, _)| *gone != first);
        self.pieces.push(Piece { first, lines: StreamShape::of(bytes.len()).lines, content: Content::Bytes(bytes.to_vec()) });
        first
    }

    /// Stores all streams for their owner ([ST1]).
    pub(crate) fn store(self, tx: &mut Tx<'_>, owner: Owner) -> Result<Fenced> {
        if self.pieces.is_empty() {
            return Ok(Fenced::nothing_stored());
        }
        let volume = tx.volume();
        let mut in_flight = Lines::<InFlight>::none();
        let place = |address| volume.place(owner, address);
        let mut pages = SmallVec::<[Arc<Page>; 2]>::new(); // [ST3]
        for piece in &self.pieces {
            let page = match piece.lines {
                PAGE_LINES => volume.pages.insert_zeroed(&volume.live.work, Structure::Mapping, piece.first),
                _ => volume.page(Structure::Mapping, piece.first),
            };
            pages.push(tx.suspect_if_failed(page)?);
        }
        for (piece, page) in self.pieces.iter().zip(&pages) {
            let bytes = match &piece.content {
                Content::Bytes(bytes) => stream_lines(place, piece.first, piece.lines, bytes),
                Content::Pages(pages) => address_lines(place, piece.first, piece.lines, pages),
            };
            let stored = tx.suspect_if_failed(volume.drive.store(Structure::Mapping, piece.first, &bytes).map_err(Error::from))?;
            if !on(Mutant::AttributesNotFenced) {
                in_flight = in_flight.and(volume.drive.flush_lines(stored));
            }
            page.follow(piece.first, &bytes);
        }
        Ok(volume.drive.fence(in_flight))
    }
}

fn take(tx: &mut Tx<'_>, lines: u64, need: Need) -> Result<LineAddress> {
    let volume = tx.volume();
    let first = volume.take_lines(Region::Attributes, lines, need)?;
    tx.took(space::region(Region::Attributes, first, lines));
    Ok(first)
}

/// All runs of lines of a stream, given the number of lines of its first piece and whether that piece holds addresses of pages.
pub(crate) fn pieces(
    store: &LineStore,
    owner: Owner,
    first: LineAddress,
    (lines, holds_addresses): (u64, bool),
) -> Result<SmallVec<[(LineAddress, u64); 1]>> {
    check(store, owner, first, lines)?;
    let mut pieces = SmallVec::new();
    pieces.push((first, lines));
    if !holds_addresses {
        return Ok(pieces);
    }
    store.lines(owner, Structure::Mapping, first, lines, |_, line| {
        for page in addresses_of(line) {
            if page.index_in_page() != 0 || pieces.len() > PAGES_MAX {
                return Err(damaged(owner, first, "pages"));
            }
            check(store, owner, page, PAGE_LINES)?;
            pieces.push((page, PAGE_LINES));
        }
        Ok(())
    })?;
    Ok(pieces)
}

fn check(store: &LineStore, owner: Owner, first: LineAddress, lines: u64) -> Result<()> {
    if store.geometry.holds_lines(first, lines) { Ok(()) } else { Err(damaged(owner, first, "address")) }
}

/// The bytes of a stream, plus the unused bytes after its end in its lines.
pub(crate) fn read(store: &LineStore, owner: Owner, first: LineAddress, piece: (u64, bool)) -> Result<Vec<u8>> {
    let pieces = pieces(store, owner, first, piece)?;
    let mut stream = Vec::new();
    for (first, lines) in &pieces[usize::from(piece.1)..] {
        store.lines(owner, Structure::Mapping, *first, *lines, |_, line| {
            extend_stream(&mut stream, line);
            Ok(())
        })?;
    }
    Ok(stream)
}
