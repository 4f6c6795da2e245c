//! Loads of the ByteFS evaluation (Table 5): the personalities of Filebench with their parameters, scaled to the machine.
//!
//! [WO1] A worker's stream of operations depends only on the seed and the worker's number: it owns the files whose number modulo the number
//!       of workers is its own, in directories that all workers share. So a load writes the same bytes on every target.
//! [WO2] A worker makes one call at a time ([`Worker::step`]). Workers run in virtual time on one thread, where they wait for the file
//!       system's locks (`device::sync::workers`), or each on its own thread.
//! [WO3] A worker can verify what it reads back: bytes follow from the file's key and their offset.
//! [WO4] Scaling reduces the number of files and of loops by the same factor; sizes of files, requests and directories and the number of
//!       workers stay those of the paper. The caller scales memory that is a share of the load (page cache, write log).
//!
//! `load.rs` has the numbers, `worker.rs` runs them, `target.rs` is the trait of a file system under test. Targets: `library.rs` (with
//! `page_cache.rs` in place of the kernel's page cache) and `directory.rs`. `behind.rs` does what a mount does in the background.

mod behind;
pub mod content;
mod directory;
mod library;
mod load;
mod page_cache;
pub mod random;
mod run;
mod target;
mod worker;

pub use behind::Behind;
pub use directory::{DirectoryTarget, Durability};
pub use library::{Directories, LibraryTarget};
#[cfg(test)]
pub use load::Step;
pub use load::{Load, Workload};
pub use run::{Actor, actors, run_on_threads, together};
pub use target::Target;
pub use worker::{Done, Worker, lay_out};
