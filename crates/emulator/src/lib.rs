//! Emulates a hybrid SSD in one sparse image file with a profile, and opens any device by its specification.
//!
//! [EM1] An image is a header page (with a copy, `header_copy.rs`), the memory region (mapped shared, its space reserved at creation) and the block region (sparse, read and
//!       written by offset). Both may grow later (`grow.rs`). So a full host disk is an error of the creation or of one block write, never a
//!       signal. In the image of a drive with firmware, its DRAM takes the place of the memory region and its flash that of the block region
//!       (`layout.rs`);
//!       where the host manages its cache, memory zone and cache are a part of that DRAM which can be mapped (`host_cache/`).
//! [EM2] Stores go to the host's page cache at once. So they survive `kill -9` of the process at any instant, as they would survive a power
//!       failure of a drive with Global Persistent Flush: that is the failure that an image emulates. A power failure of the *host* leaves
//!       whatever the host had written back. So an image for plain use (profile `off`) promises only the `process` domain, and an image that
//!       emulates a drive promises that drive's domain against the emulated failure only.
//! [EM3] An image is locked while it is open.
//! [EM4] There are no threads: the accessing thread pays the time of its access (RULES R24).
//!
//! *Architecture invariant:* no inode, no journal, no superblock is known here; the bytes of both regions are opaque.

mod batch;
mod block_region;
mod controller;
mod firmware_drive;
mod flash;
mod grow;
mod header;
mod header_copy;
mod host_cache;
mod image;
mod image_file;
mod image_medium;
#[cfg(feature = "power-cuts")]
mod in_memory;
mod layout;
mod lifetime;
mod lists;
mod media;
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

pub use grow::{grow, shrink};
pub use header::{ImageInfo, Places};
pub use header_copy::{HEADER_COPY_OFFSET, HeaderState, header_state, restore_header};
pub use image::ImageDevice;
pub use image_file::{CreateOptions, NO_BLOCKS, OpenOptions, create, create_with, info};
#[cfg(feature = "power-cuts")]
pub use in_memory::DriveInMemory;
pub use media::{MediaModel, MediaOptions};
pub use model::{CacheManagement, FirmwareModel, GarbageCollection, ModelOptions, Replacement, Staging, default_host_cache_bytes};
pub use open::{DeviceOptions, DeviceSpec, open_device, open_image};
pub use profiles::{Profile, profile, profiles};
pub use statistics::{DriveStatistics, LogFigures, LogStatistics, WearStatistics, measure_log, media_statistics, statistics};
pub use timing::{Access, BlockTiming, Claim, Curve, Distribution, FirmwareTiming, LatencyPoint, Quantile, Timing};
