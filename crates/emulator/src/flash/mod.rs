//! Flash and its page-mapped translation layer: logical pages of 4 KiB that survive power failures, on cells that are erased by blocks,
//! wear out, and fail.
//!
//! [FL1] The translation entry of a logical page says where the page is ([`layout::Place`]); one 8 B store switches it ([MD1]). A place is
//!       complete before an entry names it: the slot of the write buffer is filled, or the flash page is programmed.
//! [FL2] A place that an entry names is never changed. A rewritten page in the buffer gets another slot. A block is erased only after no
//!       entry names a page in it.
//! [FL3] The stamp of a page is stored with its place: in the slot, in the spare area of the flash page, or for a discarded page in the
//!       entry itself. A moved page keeps its stamp.
//! [FL4] Before a page is programmed, and before a block is erased, the block's record says so. So the next opening of the drive knows what
//!       may have been interrupted: it skips a page whose programming was interrupted and repeats an erasure.
//! [FL5] Everything else (valid pages, free blocks, open blocks, the queue of the buffer) is derived from tables and records.
//! [FL6] The drive becomes read-only before it runs out of blocks to move pages to ([`geometry::SPARE_BLOCKS_MIN`]). All data stays
//!       readable, in the cells or in the buffer.
//!
//! *Architecture invariant:* no line, no transaction, no time is known here.

mod buffer;
mod collection;
mod geometry;
mod host_space;
mod layout;
mod pool;
mod translation;
mod wear;

#[cfg(test)]
mod tests;

pub(crate) use geometry::{FlashGeometry, FlashOptions, VictimPolicy};
pub(crate) use translation::Flash;
pub(crate) use wear::Wear;
