//! `tandemfs-bench compare`: the same work on TandemFS and on kernel file systems.
//!
//! [CM1] A run is one case on one file system, once: a fresh file system on a fresh backing, setup, then the measured part. The
//!       results ([`record::Record`]) are saved after each round of a case, and every report is computed from the saved results alone. So an
//!       interrupted comparison can be resumed, and a report can be made again without measuring.
//! [CM2] Rounds are interleaved: every file system runs a case before any runs it again, in an order that changes each round.
//! [CM3] All peers get the same: bytes, calls, clients, pinning, warm-up, dropped caches. A case sees a directory, not its file system.
//! [CM4] A result is a ratio of medians with a bootstrap interval. Ratios from a noisy machine are marked and decide nothing.
//! [CM5] Cases that TandemFS loses are reported first.
//!
//! `peer.rs` lists the file systems, `backing.rs` their drives, `case.rs` defines a case, `record.rs` the result of a run. `session.rs` is
//! the command. It asks `available.rs` which peers can run, `plan.rs` for the order, `laboratory.rs` to make each run (`mounted.rs`: file
//! systems, `clock.rs`: times, `awake.rs`: CPUs, `under_run.rs`: the direct door; what runs in a process of
//! its own: `child.rs`), and `store.rs` to save it. `statistics.rs`, `subject.rs` and `targets.rs` evaluate the runs,
//! `report.rs` shows them by its template. `same_drive/` is the drive that all peers share.

pub mod available;
pub mod awake;
pub mod backing;
pub mod case;
pub mod cases;
pub mod child;
pub mod clock;
pub mod command;
pub mod laboratory;
pub mod memory_file;
pub mod mounted;
pub mod peer;
pub mod plan;
pub mod record;
pub mod report;
pub mod same_drive;
pub mod session;
pub mod settings;
pub mod statistics;
pub mod store;
pub mod subject;
pub mod targets;
pub mod under_run;
