//! How long the emulated drive takes, and waiting for it.
//!
//! [TI1] An access charges its own time: it does its work on the host, then waits until the drive would have finished. The host's share
//!       counts as part of the wait, so an emulated drive is never faster than the host and as little slower as its figures say.
//! [TI2] Byte path without firmware: an access takes what its size costs on the profile's latency curve, and a share of the port that all
//!       threads use. Stores are *posted*: a processor goes on when a store sits in its buffers, so one line costs less than a round trip,
//!       while a long run of lines is bound by the link like a load. Flush and fence add nothing: on the emulated domain a store that
//!       retired is safe. A profile may have loads drawn from a distribution around the curve (`distribution.rs`).
//! [TI3] Block path without firmware: completion = arrival + queueing + service. A request holds one of the drive's channels for its
//!       latency (requests of one batch, and of several threads, overlap there), then the link of its direction for its bytes, first come
//!       first served.
//! [TI4] Loads, stores and fences stall: the CPU does nothing else meanwhile, as a real one. Waits for block commands sleep for all but 60
//!       us, then let other threads have the CPU, and spin for the last 4 us, since anything else would cost more.
//! [TI5] In virtual time nothing waits: each thread has a clock that its accesses set forward to their completion. Threads whose clocks are
//!       apart meet at the drive's parts in the order in which they really come, so a thread that is behind may be served in time that the
//!       part had left idle ([TI6]). What the host does between accesses takes no time.
//! [TI6] A part of a drive with firmware (a link, a die) does one thing after another; `resource.rs` knows when it was idle.
//! [TI7] A drive with firmware is told what its flash was asked to do. What the access needs is waited for; what goes on behind (buffered
//!       programs, cleaning, garbage collection) makes the die busy, and delays who comes after (`firmware.rs`).

mod claims;
mod curve;
mod distribution;
mod firmware;
mod plain;
mod resource;
mod time;

pub use claims::{Access, Claim};
pub(crate) use curve::POINT_COUNT;
pub use curve::{Curve, LatencyPoint};
pub(crate) use distribution::QUANTILE_COUNT;
pub use distribution::{Distribution, Quantile};
pub use firmware::FirmwareTiming;
pub(crate) use firmware::Timeline;
pub use plain::{BlockTiming, Timing};
pub(crate) use plain::{Clock, Direction};
pub(crate) use time::Time;
