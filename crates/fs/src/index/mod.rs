//! Where the bytes of a file are: the radix tree of block records ([`tree`]) and what one block consists of ([`block`], [`base`]).
//!
//! RomeFS §3.4 runs a B+tree of data logs beside a radix tree of blocks. Here the logs of a block hang on its record (a leaf of up to 16
//! entries that belongs to one block, as in the paper), so one descent finds both; what remains of Algorithm 1 is its decision: where the
//! logs cover a request, the sectors are not read ([`crate::data`]).

pub(crate) mod base;
pub(crate) mod block;
pub(crate) mod shifted;
pub(crate) mod stream;
pub(crate) mod tree;
