//! Maps file offsets to space: the radix tree of block records ([`tree`]) and the content of one block ([`block`], [`base`]).
//!
//! RomeFS §3.4 uses a B+tree of data logs beside a radix tree of blocks. Here a block's record points to its logs (a leaf of up to 16
//! entries that belongs to one block, as in the paper), so one descent finds both. From Algorithm 1 only the decision remains: if the logs
//! cover a request, the sectors are not read ([`crate::data`]).

pub(crate) mod base;
pub(crate) mod block;
pub(crate) mod runs;
pub(crate) mod salvage;
pub(crate) mod shifted;
pub(crate) mod stream;
pub(crate) mod tree;
