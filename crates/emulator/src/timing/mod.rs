//! How long accesses to the emulated drive take, and how they wait.
//!
//! [TI1] The accessing thread pays the time: it does the access on the host, then waits until the drive would have finished. The host's own
//!       time counts as part of the wait. So an emulated drive is never faster than the host, and otherwise as slow as its parameters say.
//! [TI2] Byte path without firmware: an access takes the time of its size on the profile's latency curve, and its share of the port that
//!       all threads use. Stores are *posted*: a processor continues when a store is in its buffers, so one line costs less than a round
//!       trip, while the link limits a long run of lines as it does for loads. Flush and fence add nothing: in the emulated domain a
//!       retired store is durable. A profile may draw load latencies from a distribution around the curve (`distribution.rs`).
//! [TI3] Block path without firmware: completion = arrival + queueing + service. A request occupies one of the drive's channels for its
//!       latency (requests of one batch, and of several threads, overlap there), then the link of its direction for its bytes, first come
//!       first served.
//! [TI4] Loads, stores and fences stall: the CPU does nothing else meanwhile, like a real one. A wait for block commands sleeps until 60 us
//!       before its end, then yields the CPU to other threads, and spins for the last 4 us, since a yield takes about as long.
//! [TI5] In virtual time nothing waits: each thread has a clock that its accesses advance to their completion. Threads with different
//!       clocks use the drive's parts in the order in which they really arrive, so a thread that is behind may be served in time that the
//!       part had left idle ([TI6]). Host time between accesses does not count.
//!       Workers of virtual time are suspended where their clock is not the earliest any more, so they arrive in its order
//!       (`device::sync::workers`).
//! [TI6] A part of a drive with firmware (a link, a die, its processor) serves one piece of work at a time; `resource.rs` records its idle intervals.
//! [TI7] The timing model of a drive with firmware gets the list of flash operations of each access. The access waits for those that its
//!       result needs. Background operations (buffered programs, cleaning, garbage collection) make the die busy and delay later accesses
//!       (`firmware.rs`).
//! [TI8] Byte path with a model of persistent memory (`media.rs`): lines in the CPU's cache take a hit's time, and a load waits for what it fetches. All
//!       that the media read and write occupies them, one piece after the other, whoever caused it: a store pays for the evictions of others only
//!       when the media are behind by more than a DIMM's buffer. A flush takes its time when it is called, and the fence nothing.

mod claims;
mod curve;
mod distribution;
mod firmware;
mod media;
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
pub(crate) use media::{MediaTimeline, MediaWork};
pub use plain::{BlockTiming, Timing};
pub(crate) use plain::{Clock, Direction};
pub(crate) use time::Time;
