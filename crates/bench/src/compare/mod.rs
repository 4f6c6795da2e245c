//! `tandemfs bench compare`: the same work on TandemFS and on the file systems of the kernel, side by side.
//!
//! [CM1] A run is one case, on one file system, once: a fresh file system on a fresh backing, laid out, then timed. Its result is one line of
//!       JSON ([`record::Record`]), written before the next begins; whatever is shown is computed from these lines alone, so a run that was
//!       interrupted is resumed, and a report is made again, without measuring anew.
//! [CM2] Rounds are interleaved: all file systems have had a case before one has it again, in an order that turns each round.
//! [CM3] Everybody gets the same: bytes, calls, number of clients, pinning, warm-up, dropped caches. A case knows a directory, not who serves it.
//! [CM4] What is compared is a ratio of medians, with a bootstrap interval; a ratio whose machine was too noisy says so and decides nothing.
//! [CM5] What TandemFS loses is reported first.
//!
//! `peer.rs` says who, `backing.rs` on what, `case.rs` what a case is, `record.rs` what a run leaves. `session.rs` is the command; it asks
//! `available.rs` who can take part, `plan.rs` in which order, `laboratory.rs` to make each run (`mounted.rs` the file systems, `clock.rs` the
//! times, `awake.rs` the CPUs), and `store.rs` to keep it. `statistics.rs` and `reach.rs` say what the runs mean, `report/` shows it.
//! `memory_fs/` is the FUSE file system that keeps nothing safe, `same_drive/` the drive of everybody.

pub mod available;
pub mod awake;
pub mod backing;
pub mod case;
pub mod cases;
pub mod clock;
pub mod command;
pub mod laboratory;
pub mod memory_file;
pub mod memory_fs;
pub mod mounted;
pub mod peer;
pub mod plan;
pub mod progress;
mod ration;
pub mod reach;
pub mod record;
pub mod report;
pub mod same_drive;
pub mod session;
pub mod settings;
pub mod statistics;
pub mod store;
