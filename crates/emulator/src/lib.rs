//! A hybrid SSD without hardware: one sparse image file with a profile, and the way to open any device by its name.
//!
//! [EM1] An image is a header page, the memory region (mapped shared, its space reserved at creation) and the block region (sparse, read
//!       and written by offset). Both may grow later (`grow.rs`). A full host disk is therefore an error of creation or of one block write,
//!       never a signal. The image of a drive with firmware has its DRAM in the place of the one and its flash in the place of the other
//!       (`layout.rs`).
//! [EM2] Stores go to the page cache of the host at once, so they survive `kill -9` of the process at any instant, as they would survive a
//!       power failure of a drive with Global Persistent Flush: that is the failure an image emulates. What the host's *own* power failure
//!       leaves of an image is up to the host's write-back: anything. So an image made for plain use (profile `off`) promises the `process`
//!       domain, and one that stands for a drive promises that drive's domain against the emulated failure only.
//! [EM3] An image is locked while it is open.
//! [EM4] There are no threads: time is charged to the access that spends it (RULES R24).
//!
//! *Architecture invariant:* no inode, no journal, no superblock is known here; the bytes of both regions are opaque.

mod batch;
mod block_region;
mod controller;
mod firmware_drive;
mod flash;
mod grow;
mod header;
mod image;
mod image_file;
mod image_medium;
#[cfg(feature = "power-cuts")]
mod in_memory;
mod layout;
mod lifetime;
mod lists;
mod medium;
mod model;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod open;
mod page_cache;
mod part;
mod profiles;
mod statistics;
mod timing;
#[cfg(test)]
mod whole_drive;
mod write_log;

pub use grow::grow;
pub use header::{ImageInfo, Places};
pub use image::ImageDevice;
pub use image_file::{CreateOptions, OpenOptions, create, create_with, info};
#[cfg(feature = "power-cuts")]
pub use in_memory::DriveInMemory;
pub use model::{CacheManagement, FirmwareModel, GarbageCollection, ModelOptions, Staging};
pub use open::{DeviceOptions, DeviceSpec, open_device, open_image};
pub use profiles::{Profile, profile, profiles};
pub use statistics::{DriveStatistics, LogFigures, LogStatistics, WearStatistics, measure_log, statistics};
pub use timing::{Access, BlockTiming, Claim, Curve, Distribution, FirmwareTiming, LatencyPoint, Quantile, Timing};
