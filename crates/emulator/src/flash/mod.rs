//! Flash and its page-mapped translation layer: logical pages of 4 KiB that survive power failures, on cells that are erased by blocks,
//! wear, and fail.
//!
//! [FL1] A logical page is where its translation entry says ([`layout::Place`]): one 8 B store switches it ([MD1]). What the entry names is
//!       complete before it is named: the slot of the write buffer is filled, the flash page programmed.
//! [FL2] Nothing that an entry names is changed. A buffered page that is rewritten gets another slot; a block is erased only once no entry
//!       names a page in it.
//! [FL3] The stamp of a page comes with what the entry names: the slot, the spare area of the flash page, or the entry itself where the
//!       page was discarded. A page that is moved keeps its stamp.
//! [FL4] Before a page is programmed, its block's record says so; before a block is erased, its record says so. So what may have been cut
//!       is known when the drive is opened: a page whose programming was cut is skipped, an erasure is done again.
//! [FL5] Everything else (valid pages, free blocks, what is open, what waits in the buffer) is derived from tables and records.
//! [FL6] The drive becomes read-only before it runs out of blocks to move pages to ([`geometry::SPARE_BLOCKS_MIN`]): what was written stays
//!       readable, in the cells or in the buffer.
//!
//! *Architecture invariant:* no line, no transaction, no time is known here.

mod buffer;
mod collection;
mod geometry;
mod layout;
mod pool;
mod translation;
mod wear;

#[cfg(test)]
mod tests;

pub(crate) use geometry::{FlashGeometry, FlashOptions, VictimPolicy};
pub(crate) use translation::Flash;
pub(crate) use wear::Wear;
