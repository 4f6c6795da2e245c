//! The device layer: access to a hybrid SSD.
//!
//! A drive implements [`Device`]: a byte path (load, store, flush, fence), a block path (many requests in flight, flush, discard) and a
//! description of its capabilities. The emulator and the attached pair implement it. The file system asks what a device *can* do and never
//! what it *is*. Users do not call the traits directly. They hold a [`Drive`], which counts accesses, enforces the persistence domain and
//! expresses the order of stores in types:
//!
//! [DV1] A store returns `Lines<Dirty>`; flushing makes it `Lines<InFlight>`; only a fence makes it [`Fenced`]. A function that needs durable
//!       bytes takes a `Fenced` by value, so a forgotten flush or fence does not compile (RULES R8, R23).
//! [DV2] Block writes return [`Written`]; only a FLUSH that began after they completed makes it [`Flushed`] (RULES R8). On a drive without a
//!       volatile cache the FLUSH does nothing.
//! [DV3] In a domain that keeps retired stores (`gpf`, `eadr`) and in `process`, flush does nothing; the types stay the same.
//! [DV4] A load or store that fails (a poisoned line, a full host disk under an image) returns an error; it never raises a signal (RULES R23).
//! [DV5] Committing a transaction of the drive needs the proof that its stores were fenced ([`Drive::commit`]; RULES R16).
//!
//! ```compile_fail,E0308
//! # use tandemfs_device::{Drive, Fenced, Structure};
//! # use tandemfs_format::LineAddress;
//! fn needs_durable(_: Fenced) {}
//! fn forgets_the_fence(drive: &Drive) {
//!     let lines = drive.store(Structure::DataLog, LineAddress::new(64), b"data").unwrap();
//!     needs_durable(lines); // Lines<Dirty> is no Fenced
//! }
//! ```
//! ```
//! # use tandemfs_device::{Drive, Fenced, Structure};
//! # use tandemfs_format::LineAddress;
//! fn needs_durable(_: Fenced) {}
//! fn forgets_nothing(drive: &Drive) {
//!     let lines = drive.store(Structure::DataLog, LineAddress::new(64), b"data").unwrap();
//!     needs_durable(drive.fence(drive.flush_lines(lines)));
//! }
//! ```
//!
//! *Architecture invariant:* no inode, no directory, no transaction is known here.

mod apart;
mod attached;
mod block_path;
mod buffer;
mod busy;
mod byte_path;
mod cache_moves;
mod compare;
#[cfg(test)]
mod copies;
mod copy;
mod counters;
mod device_cache;
mod domain;
mod drive;
mod error;
mod firmware;
mod flush_group;
mod growing;
mod host_heap;
mod latency;
mod layer;
mod lent_zone;
mod mapping;
mod media;
mod nodes;
mod ranges;
mod store_zone;
#[doc(hidden)]
pub mod sync;

pub use apart::{Apart, SplitCounter};
pub use attached::{PairDevice, PairOptions};
pub use block_path::{BlockPath, BlockRequest};
pub use buffer::{SharedBytes, Sink, Source};
pub use busy::open_patiently;
pub use byte_path::BytePath;
pub use cache_moves::{CacheMove, CacheMoves, MoveDirection, MoveState, MoveTicket};
pub use compare::modified_lines;
pub use counters::{Counters, CountersSnapshot, FailureCounts, PathBytes, Structure};
pub use device_cache::{DeviceCache, MoveProof, Moved, Moving};
pub use domain::PersistenceDomain;
pub use drive::{Committed, Dirty, Drive, Fenced, Flushed, InFlight, Lines, Written};
pub use error::DeviceError;
pub use firmware::{DriveCounts, DriveRecovery, Firmware, FirmwareCounts, FlashCounts, FlashWear, TxId};
pub use growing::{Growing, Replaced};
pub use host_heap::give_back_free_heap;
pub use latency::{BYTE_PATH_SAMPLED_1_IN, KindTimes, LATENCY_SAMPLED_1_IN, Latencies, LatencyCounts};
pub use layer::Layer;
pub use lent_zone::LentZone;
pub use mapping::{Mapping, MappingOptions};
pub use media::{Mechanism, Media, MediaBytes, MediaCounts, StoreWay};
pub use nodes::{MemoryNode, MemoryNodes, NODES_MAX, NodeSpec, numbers};
pub use ranges::{MappedMemory, MemoryRange};
pub use store_zone::{StoreZone, ZoneHold, is_zone_held};

/// A hybrid SSD, or a pair of devices that serve as one.
pub trait Device: Send + Sync {
    /// Loads and stores.
    fn byte_path(&self) -> &dyn BytePath;
    /// Block commands.
    fn block_path(&self) -> &dyn BlockPath;
    /// The device's capabilities.
    fn description(&self) -> &DeviceDescription;
    /// Commands of a drive with firmware; `None` on other drives.
    fn firmware(&self) -> Option<&dyn Firmware> {
        None
    }
    /// MOVE commands of a drive whose cache the host manages; `None` where [`DeviceDescription::cache_bytes`] is 0.
    fn cache_moves(&self) -> Option<&dyn CacheMoves> {
        None
    }
    /// The drive's own counters, if it keeps any.
    fn counts(&self) -> Option<DriveCounts> {
        None
    }
    /// A model of CPU caches and persistent memory, if the device has one.
    fn media(&self) -> Option<&dyn Media> {
        None
    }
    /// How worn its flash is, if it says so. It may look at every block of the flash.
    fn wear(&self) -> Option<FlashWear> {
        None
    }
    /// The granule of mapped ranges of the memory zone, in bytes: a page, or 2 MiB or more on a devdax. `None`: no range can be mapped,
    /// because loads and stores mean more to this device than memory.
    fn mapping_unit(&self) -> Option<u64> {
        None
    }
    /// Maps ranges of the memory zone one behind the other. What is stored there passes by this device: it is neither counted nor timed.
    ///
    /// # Errors
    /// [`DeviceError::Map`] where no range, or not these, can be mapped; [`DeviceError::OutOfRange`].
    fn map(&self, _ranges: &[MemoryRange], _writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        let reason = "its loads and stores mean more than those of memory".to_owned();
        Err(DeviceError::Map { device: self.description().name.clone(), reason })
    }
    /// The memory zone for programs of other processes, for loads ([LZ1]–[LZ4] of `lent_zone.rs`). `None`: this device lends none, because
    /// its accesses mean more than those of memory or are timed, which those of others would not be.
    ///
    /// # Errors
    /// What the kernel refuses.
    fn lent_zone(&self) -> Option<std::io::Result<LentZone>> {
        None
    }
    /// The memory zone for a program of another process, for stores, by the program's number ([SZ1]–[SZ4] of `store_zone.rs`). `None` as
    /// [`lent_zone`](Self::lent_zone).
    ///
    /// # Errors
    /// Those of [`StoreZone::of`].
    fn store_zone(&self, _program: u32) -> Option<std::io::Result<(StoreZone, ZoneHold)>> {
        None
    }
    /// Whether anybody has the memory zone for stores ([SZ2]). False where locks cannot be asked for: then nobody got one.
    fn is_zone_held(&self) -> bool {
        false
    }
    /// Takes into use what the device has become larger by. A device that has its sizes from nobody else becomes at least so large as asked, in
    /// bytes of the memory zone and of the range of block commands. [`description`](Self::description) says from then on what came of it, which
    /// may be less; accesses go on. Nothing shrinks, and nothing that was there moves.
    ///
    /// # Errors
    /// [`DeviceError::Open`] with one sentence where the device cannot do so in use; what the host refuses. Nothing was changed then.
    fn grow(&self, _memory_bytes: Option<u64>, _block_bytes: Option<u64>) -> Result<(), DeviceError> {
        Ok(())
    }
    /// The clocks of a drive in virtual time.
    fn virtual_time(&self) -> Option<&dyn VirtualTime> {
        None
    }
}

/// Virtual time of a drive: each thread has a clock, and each access advances it to the access's completion without waiting.
pub trait VirtualTime: Send + Sync {
    /// The calling thread's clock, in nanoseconds. A thread's clock starts at the latest clock of all threads.
    fn now_ns(&self) -> u64;
    /// Sets the calling thread's clock, so that threads can begin together.
    fn set_now_ns(&self, now: u64);
    /// The latest clock of all threads: when all accesses so far have completed.
    fn latest_ns(&self) -> u64;
}

/// Capabilities of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceDescription {
    /// Name for people: the image's path, or `memory=…,block=…`.
    pub name: String,
    /// Size of the memory zone, in bytes: the start of the range of loads and stores.
    pub memory_bytes: u64,
    /// Size of the range of block commands, in bytes; a multiple of 4 KiB.
    pub block_bytes: u64,
    /// Size of the cache that the host manages, in bytes, whole pages; 0: there is none. It is behind the memory zone in the range of loads
    /// and stores ([`DeviceDescription::cache`]), and no part of that zone. Overlapping windows leave no place for one.
    pub cache_bytes: u64,
    /// The persistence domain.
    pub domain: PersistenceDomain,
    /// Whether completed block writes may be lost until a FLUSH.
    pub volatile_write_cache: bool,
    /// Whether bytes can be discarded (TRIM) on the block path.
    pub discard: bool,
    /// Whether discarded sectors read as zeros, durably once they are flushed (what NVMe calls DLFEAT).
    pub discard_zeroes: bool,
    /// Whether both paths reach the same bytes: the byte window continues with the sectors of the block zone, the block window with the pages
    /// of the memory zone ([`DeviceDescription::line_of_sector`], [`DeviceDescription::sector_of_page`]).
    pub overlapping: bool,
    /// Larger requests are split, so that one request uses several channels of the drive. Whole sectors, in bytes.
    pub request_bytes: u32,
    /// The nodes of memory (NUMA) that the memory zone lies on.
    pub nodes: MemoryNodes,
}

/// Default of [`DeviceDescription::request_bytes`].
pub const REQUEST_BYTES: u32 = 128 << 10;

impl DeviceDescription {
    /// Where the cache that the host manages is in the range of loads and stores.
    pub fn cache(&self) -> MemoryRange {
        MemoryRange { offset: self.memory_bytes, length: self.cache_bytes }
    }

    /// Applies a weaker domain if one is given.
    ///
    /// Errors: [`DeviceError::Open`] if the device's own domain is weaker than that.
    pub fn lower_domain(&mut self, domain: Option<PersistenceDomain>) -> Result<(), DeviceError> {
        let Some(domain) = domain else { return Ok(()) };
        if domain > self.domain {
            let reason = format!("domain={domain} promises more than the device keeps; it has '{}', name that or a lower one", self.domain);
            return Err(DeviceError::Open { path: self.name.clone(), reason });
        }
        self.domain = domain;
        Ok(())
    }
}
