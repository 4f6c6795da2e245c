//! Loads of the ByteFS evaluation (Table 5): the personalities of Filebench with their parameters, scaled to the machine.
//!
//! [WO1] A worker's stream of operations follows from the seed and the worker's number alone: each owns the files whose number it leaves over
//!       when divided by the number of workers, in directories that all share. So a load is the same bytes whatever runs it.
//! [WO2] A worker goes one call at a time ([`Worker::step`]), so that many can be interleaved by one thread on a reckoned clock, or run on
//!       threads of their own.
//! [WO3] What a worker reads back it can check: bytes follow from the file's key and their offset.
//! [WO4] Scaling takes the number of files and of loops down by the same factor; sizes of files, requests and directories and the number of
//!       workers stay those of the paper. Memory that stands for a share of the load (page cache, write log) is scaled with it by who makes it.
//!
//! `load.rs` has the numbers, `worker.rs` runs them, `target.rs` is what they run on: `library.rs` (with `page_cache.rs` where a kernel would
//! have its own) or `directory.rs`.

pub mod content;
mod directory;
mod library;
mod load;
mod page_cache;
pub mod random;
mod run;
mod target;
mod worker;

pub use directory::DirectoryTarget;
pub use library::LibraryTarget;
#[cfg(test)]
pub use load::Step;
pub use load::{Load, Workload};
pub use run::{Clock, interleave, run_interleaved, run_on_threads};
pub use target::Target;
pub use worker::{Done, Worker, lay_out};
