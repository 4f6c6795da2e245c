//! The door to the hardware of a hybrid SSD.
//!
//! A drive implements [`Device`]: a byte path (load, store, flush, fence), a block path (many requests in flight, flush, discard) and a
//! description of what it can do. The emulator and the attached pair both do; the file system asks what a device *can* do and never what
//! it *is*. Users do not touch the traits: they hold a [`Drive`], which counts, enforces the persistence domain and carries the order of
//! stores in types:
//!
//! [DV1] A store returns `Lines<Dirty>`; flushing makes it `Lines<InFlight>`; only a fence makes it [`Fenced`]. What needs durable bytes
//!       asks for a `Fenced` by value, so a forgotten flush or fence does not compile (RULES R8, R23).
//! [DV2] Block writes return [`Written`]; only a FLUSH that began after they completed makes it [`Flushed`] (RULES R8). A drive without a
//!       volatile cache gives it at once.
//! [DV3] On a domain that keeps retired stores (`gpf`, `eadr`) and on `process`, flush does nothing; the types stay.
//! [DV4] A load or store that fails (a poisoned line, a full host disk under an image) is an error, never a signal (RULES R23).
//! [DV5] A transaction of the drive is committed with the proof that its stores were fenced ([`Drive::commit`]; RULES R16).
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

mod attached;
mod block_path;
mod byte_path;
mod compare;
mod copy;
mod counters;
mod domain;
mod drive;
mod error;
mod firmware;
mod flush_group;
mod layer;
mod mapping;
#[doc(hidden)]
pub mod sync;

pub use attached::{PairDevice, PairOptions};
pub use block_path::{BlockPath, BlockRequest};
pub use byte_path::BytePath;
pub use compare::modified_lines;
pub use counters::{Counters, CountersSnapshot, PathBytes, Structure};
pub use domain::PersistenceDomain;
pub use drive::{Committed, Dirty, Drive, Fenced, Flushed, InFlight, Lines, Written};
pub use error::DeviceError;
pub use firmware::{CacheCommands, DriveCounts, DriveRecovery, Firmware, FirmwareCounts, FlashCounts, TxId};
pub use layer::Layer;
pub use mapping::{Mapping, MappingOptions};

/// A hybrid SSD, or a pair of devices that serve as one.
pub trait Device: Send + Sync {
    /// Loads and stores.
    fn byte_path(&self) -> &dyn BytePath;
    /// Block commands.
    fn block_path(&self) -> &dyn BlockPath;
    /// What the device is able to do.
    fn description(&self) -> &DeviceDescription;
    /// Commands of a drive with firmware; a drive without has none.
    fn firmware(&self) -> Option<&dyn Firmware> {
        None
    }
    /// Commands of a drive whose cache of flash pages the host manages.
    fn cache_commands(&self) -> Option<&dyn CacheCommands> {
        None
    }
    /// What the drive counts of itself, where it does.
    fn counts(&self) -> Option<DriveCounts> {
        None
    }
    /// The clocks of a drive in virtual time.
    fn virtual_time(&self) -> Option<&dyn VirtualTime> {
        None
    }
}

/// Time of a drive that waits for nothing: each thread has a clock, which its accesses set forward to their completion.
pub trait VirtualTime: Send + Sync {
    /// The calling thread's clock, in nanoseconds. A thread that comes to the drive begins at the latest clock there is.
    fn now_ns(&self) -> u64;
    /// Sets the calling thread's clock, so that threads can begin together.
    fn set_now_ns(&self, now: u64);
    /// The latest clock of all threads: when everything that was asked so far is done.
    fn latest_ns(&self) -> u64;
}

/// What a device can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceDescription {
    /// Name for people: the image's path, or `memory=…,block=…`.
    pub name: String,
    /// Bytes that loads and stores reach.
    pub memory_bytes: u64,
    /// Bytes that block commands reach, a multiple of 4 KiB.
    pub block_bytes: u64,
    /// What becomes of stores when the power fails.
    pub domain: PersistenceDomain,
    /// Whether completed block writes may be lost until a FLUSH.
    pub volatile_write_cache: bool,
    /// Whether bytes can be discarded (TRIM) on the block path.
    pub discard: bool,
    /// Whether discarded sectors read as zeros, durably once they are flushed (what NVMe calls DLFEAT).
    pub discard_zeroes: bool,
    /// Whether both paths reach the same bytes: the byte window goes on with the sectors of the block zone, the block window with the pages
    /// of the memory zone ([`DeviceDescription::line_of_sector`], [`DeviceDescription::sector_of_page`]).
    pub overlapping: bool,
    /// Requests beyond this are split, so that one large request uses several channels of the drive: whole sectors, in bytes.
    pub request_bytes: u32,
}

/// [`DeviceDescription::request_bytes`] where the device says nothing better.
pub const REQUEST_BYTES: u32 = 128 << 10;

impl DeviceDescription {
    /// Puts a lower domain into force, where one is asked for.
    ///
    /// Errors: [`DeviceError::Open`] where the device keeps less than that.
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
