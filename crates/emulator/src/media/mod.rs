//! What a choice of stores costs persistent memory: a model of the CPU's caches, of the buffers in the DIMMs, and of the media (FusionFS §1).
//! Off unless the image was created with it, and unless it is opened with its timing model.
//!
//! [PMM1] The model counts and takes time, nothing else. Each access goes to the image first, whole and unchanged, and only then to the model.
//!       What the image contains, and what of it survives a failure, does not depend on the model: a line that the model holds in its cache is in
//!       the image already.
//! [PMM2] The cache is written back: a store makes a line dirty there, after the line was fetched. A line leaves for the media when it is evicted
//!       (the least recently used of its set), flushed (it stays in the cache, clean) or written back with all others. A line that is dirty
//!       reaches the media once for each time that it became dirty.
//! [PMM3] Reserved ways take pinned lines alone, and ordinary lines never take their places: only pinned lines evict pinned ones, as with the
//!       CPU's cache allocation (FusionFS §1, *pinned-cache update*).
//! [PMM4] Media are read and written in lines of 256 B. Lines of 64 B that reach a DIMM meet in its buffer; the least recently written media line
//!       leaves it, and costs 256 B, and 256 B of reading where some part was not written. So 64 B at random cost four times their size.
//! [PMM5] Nothing is counted twice or left out: the bytes of all structures and mechanisms together are those that the media read and wrote.
//! [PMM6] There is one lock. Nobody waits for the model's time while holding it.
//!
//! The cache is one level that all threads share, with sets by address; a CPU's first levels, its hashed sets and its fetching ahead are left out.
//! So evictions come in an order that is a little better for neighbours than that of a real CPU.

mod buffer;
mod cpu_cache;
mod layer;
mod lifetime;
mod memory;
mod model;
#[cfg(test)]
mod tests;

pub(crate) use layer::MediaLayer;
pub(crate) use lifetime::Lifetime;
pub use model::{MediaModel, MediaOptions};
