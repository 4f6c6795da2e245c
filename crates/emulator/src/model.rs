//! Parameters of a drive with firmware: those of its profile, those that can be chosen at its creation, and those that the image's header
//! keeps.

use tandemfs_format::UNIT_BYTES;
use tandemfs_format::size::size;

use crate::flash::{FlashGeometry, FlashOptions, VictimPolicy};
use crate::media::MediaOptions;
use crate::medium::FLASH_PAGE_BYTES;
use crate::timing::FirmwareTiming;
use crate::write_log::WriteLogOptions;

/// The drive's staging area for the byte path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// A write log with transactions (ByteFS §4.3).
    WriteLog {
        /// Lines of the log, in bytes.
        log_bytes: u64,
        /// The TxLog, in bytes: 4 B a commit.
        transaction_log_bytes: u64,
        /// Cleaning begins when the log is so full.
        clean_at_percent: u32,
    },
    /// A cache of pages that the drive manages.
    Cache {
        /// Its size, in bytes: whole pages.
        cache_bytes: u64,
        /// The replacement policy.
        replacement: Replacement,
    },
    /// Nothing: memory zone and cache are memory that the host manages, and pages go between cache and flash by MOVE commands
    /// (Habicht et al., §3.1).
    HostCache {
        /// Size of the cache, in bytes: whole pages; 0 in a profile, where the capacity says it.
        cache_bytes: u64,
        /// MOVE commands that the drive takes at once.
        queue_depth: u32,
        /// Bandwidth of MOVE commands between cache and flash, in bytes a second for each direction.
        bytes_per_second: u64,
    },
}

/// Who manages a drive's cache of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheManagement {
    /// The host, by MOVE commands.
    Host,
    /// The drive, in this way.
    Drive(Replacement),
}

/// Replacement policy of a cache that the drive manages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// The drive caches every page that the byte path accesses and evicts by clock (second chance).
    Clock,
    /// The drive caches every page that the byte path accesses and evicts the least recently used one.
    Lru,
}

/// Which block garbage collection empties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GarbageCollection {
    /// The one with the fewest valid pages.
    Greedy,
    /// The one with the best ratio of freed space and age to cost (cost-benefit).
    CostBenefit,
}

/// A drive with firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirmwareModel {
    /// Its staging area for the byte path.
    pub staging: Staging,
    /// Channels of the flash.
    pub channel_count: u32,
    /// Dies on each channel.
    pub dies_per_channel: u32,
    /// Planes of each die.
    pub planes_per_die: u32,
    /// Blocks of each plane; 0 in a profile, where the capacity says it.
    pub blocks_per_plane: u32,
    /// Pages of 4 KiB in a block: what is erased at once.
    pub pages_per_block: u32,
    /// Flash beyond the capacity, in percent of it.
    pub over_provisioning_percent: u32,
    /// Which block garbage collection empties.
    pub garbage_collection: GarbageCollection,
    /// Pages that wait in the DRAM to be programmed.
    pub write_buffer_pages: u32,
    /// Erasures after which a block is taken out of use.
    pub endurance_erasures: u32,
    /// Timing of its parts; `None` adds no time to the host's.
    pub timing: Option<FirmwareTiming>,
}

/// Choices for a drive at its creation; `None` keeps the profile's value. A drive without firmware accepts `channel_count`,
/// `media`, `no_timing` and the limits of commands and link only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Size of the write log, in bytes.
    pub write_log_bytes: Option<u64>,
    /// Size of the TxLog, in bytes.
    pub transaction_log_bytes: Option<u64>,
    /// Size of the page cache, in bytes.
    pub cache_bytes: Option<u64>,
    /// Who manages the page cache.
    pub cache_management: Option<CacheManagement>,
    /// A read of a flash page, in nanoseconds.
    pub flash_read_ns: Option<u32>,
    /// Programming a flash page, in nanoseconds.
    pub flash_program_ns: Option<u32>,
    /// Channels of the flash; without firmware, block requests that are served at once.
    pub channel_count: Option<u32>,
    /// Flash beyond the capacity, in percent of it.
    pub over_provisioning_percent: Option<u32>,
    /// Pages that wait in the DRAM to be programmed: the write cache of the block path.
    pub write_buffer_pages: Option<u32>,
    /// Minimum time of a block command before its data moves, in nanoseconds: for a drive behind a slower path than its profile
    /// has. On a drive with firmware it applies to every command, COMMIT included.
    pub block_command_ns_min: Option<u32>,
    /// Maximum number of concurrent block commands: for a path that supports fewer than the drive.
    pub commands_at_once: Option<u32>,
    /// Maximum bandwidth of the link in either direction, in bytes a second; without firmware, of the block path.
    pub link_bytes_per_second_max: Option<u64>,
    /// Which block garbage collection empties.
    pub garbage_collection: Option<GarbageCollection>,
    /// Model CPU caches and persistent memory (`media/`); for profiles that have such a model, with timing. `None`: do not.
    pub media: Option<MediaOptions>,
    /// No timing model at all.
    pub no_timing: bool,
}

impl ModelOptions {
    /// Whether a drive without firmware can be made so.
    pub(crate) fn is_for_plain(&self, has_timing: bool) -> bool {
        let mut firmware = Self { no_timing: false, media: None, ..*self };
        if has_timing {
            firmware = Self {
                channel_count: None,
                block_command_ns_min: None,
                commands_at_once: None,
                link_bytes_per_second_max: None,
                ..firmware
            };
        }
        firmware == Self::default()
    }
}

/// Largest share of flash beyond the capacity, in percent.
const OVER_PROVISIONING_PERCENT_MAX: u32 = 400;
/// Largest cache or log: the largest number of lines that fits into 4 B.
const STAGING_BYTES_MAX: u64 = 64 << 30;
/// Of a cache that the host manages, where no other size is chosen: a part of the block zone, 4 GiB a TiB.
const BLOCK_BYTES_A_HOST_CACHE_BYTE: u64 = 256;
/// Largest queue of MOVE commands.
const QUEUE_DEPTH_MAX: u32 = 1024;

impl Staging {
    /// The write log's options, where there is one.
    pub(crate) fn write_log(&self) -> Option<WriteLogOptions> {
        match *self {
            Self::WriteLog { log_bytes, transaction_log_bytes, clean_at_percent } => {
                Some(WriteLogOptions { log_bytes, transaction_log_bytes, clean_at_percent })
            }
            Self::Cache { .. } | Self::HostCache { .. } => None,
        }
    }

    /// Size of a cache that the host manages; 0 where there is none.
    pub fn host_cache_bytes(&self) -> u64 {
        match *self {
            Self::HostCache { cache_bytes, .. } => cache_bytes,
            Self::WriteLog { .. } | Self::Cache { .. } => 0,
        }
    }

    /// Whether the host manages a cache of it.
    pub fn is_host_cache(&self) -> bool {
        matches!(self, Self::HostCache { .. })
    }
}

impl FirmwareModel {
    /// Dies, over all channels.
    pub fn die_count(&self) -> u32 {
        self.channel_count.saturating_mul(self.dies_per_channel)
    }

    /// Pages that the flash offers of a drive of these sizes: of both zones, unless memory of the host's address space is beside it.
    pub(crate) fn logical_pages(&self, memory_bytes: u64, block_bytes: u64) -> u64 {
        let memory_bytes = if self.staging.is_host_cache() { 0 } else { memory_bytes };
        (memory_bytes + block_bytes) / FLASH_PAGE_BYTES as u64
    }

    /// This drive with the given choices, for zones of so many bytes.
    ///
    /// Errors: a sentence that names the contradicting choice.
    pub(crate) fn chosen(mut self, options: &ModelOptions, memory_bytes: u64, block_bytes: u64) -> Result<Self, String> {
        match (self.staging, options.cache_management) {
            (Staging::Cache { .. }, Some(CacheManagement::Host)) => {
                return Err(
                    "the profile's drive manages its cache itself; name profile hybrid-cache for one whose cache the host manages".into()
                );
            }
            (Staging::HostCache { .. }, Some(CacheManagement::Drive(replacement))) => {
                self.staging = Staging::Cache { cache_bytes: default_host_cache_bytes(block_bytes), replacement };
            }
            _ => {}
        }
        let logical_pages = self.logical_pages(memory_bytes, block_bytes);
        // Sizes that were not chosen are limited to a quarter of a small drive.
        let staged = |bytes: u64| bytes.min(logical_pages / 4 * FLASH_PAGE_BYTES as u64);
        match &mut self.staging {
            Staging::WriteLog { log_bytes, transaction_log_bytes, .. } => {
                if options.cache_bytes.is_some() || options.cache_management.is_some() {
                    return Err(
                        "the profile has a write log and no page cache; leave the cache's options away or name another profile".into()
                    );
                }
                *log_bytes = options.write_log_bytes.unwrap_or_else(|| staged(*log_bytes));
                *transaction_log_bytes = options.transaction_log_bytes.unwrap_or(*transaction_log_bytes);
            }
            Staging::HostCache { .. } | Staging::Cache { .. }
                if options.write_log_bytes.is_some() || options.transaction_log_bytes.is_some() =>
            {
                return Err("the profile has a page cache and no write log; leave the log's options away or name another profile".into());
            }
            Staging::HostCache { cache_bytes, .. } => {
                *cache_bytes = options.cache_bytes.unwrap_or_else(|| default_host_cache_bytes(block_bytes));
            }
            Staging::Cache { cache_bytes, replacement } => {
                *cache_bytes = options.cache_bytes.unwrap_or_else(|| staged(*cache_bytes));
                if let Some(CacheManagement::Drive(chosen)) = options.cache_management {
                    *replacement = chosen;
                }
            }
        }
        self.channel_count = options.channel_count.unwrap_or(self.channel_count);
        self.over_provisioning_percent = options.over_provisioning_percent.unwrap_or(self.over_provisioning_percent);
        self.garbage_collection = options.garbage_collection.unwrap_or(self.garbage_collection);
        self.write_buffer_pages = options.write_buffer_pages.unwrap_or(self.write_buffer_pages);
        if let Some(timing) = &mut self.timing {
            timing.flash_read_ns = options.flash_read_ns.unwrap_or(timing.flash_read_ns);
            timing.flash_program_ns = options.flash_program_ns.unwrap_or(timing.flash_program_ns);
            timing.command_ns = timing.command_ns.max(options.block_command_ns_min.unwrap_or(0));
            timing.commands_at_once = options.commands_at_once.unwrap_or(timing.commands_at_once);
            let most = options.link_bytes_per_second_max.unwrap_or(u64::MAX);
            timing.read_bytes_per_second = timing.read_bytes_per_second.min(most);
            timing.write_bytes_per_second = timing.write_bytes_per_second.min(most);
        }
        if options.no_timing {
            self.timing = None;
        }
        self.over_provisioning_check()?;
        // A small drive has smaller blocks, so that every die has several and none is a large part of its capacity.
        let units = u64::from(self.die_count()) * u64::from(self.planes_per_die);
        while self.pages_per_block > 16 && u64::from(self.pages_per_block) * units * BLOCKS_PER_PLANE_LEAST > logical_pages {
            self.pages_per_block /= 2;
        }
        self.blocks_per_plane = FlashGeometry::for_capacity(
            logical_pages,
            self.channel_count,
            self.dies_per_channel,
            self.planes_per_die,
            self.pages_per_block,
            self.over_provisioning_percent,
        )
        .blocks_per_plane;
        self.check(logical_pages)?;
        Ok(self)
    }

    fn over_provisioning_check(&self) -> Result<(), String> {
        let percent = self.over_provisioning_percent;
        if (1..=OVER_PROVISIONING_PERCENT_MAX).contains(&percent) {
            return Ok(());
        }
        Err(format!("{percent} % of over-provisioning is outside 1 % to {OVER_PROVISIONING_PERCENT_MAX} %; name another share"))
    }

    /// One sentence that says why no drive of this capacity can have these parameters, if so.
    pub(crate) fn check(&self, logical_pages: u64) -> Result<(), String> {
        self.over_provisioning_check()?;
        self.geometry(logical_pages).check()?;
        self.flash_options(0).check()?;
        let capacity_bytes = logical_pages.saturating_mul(FLASH_PAGE_BYTES as u64);
        let fits = |what: &str, bytes: u64| match bytes {
            0 => Err(format!("a {what} of 0 B stages nothing; name another size")),
            bytes if bytes > capacity_bytes => {
                Err(format!("a {what} of {} is larger than the drive, which has {}; name a smaller one", size(bytes), size(capacity_bytes)))
            }
            bytes if bytes > STAGING_BYTES_MAX => {
                Err(format!("a {what} of {} is more than {}; name a smaller one", size(bytes), size(STAGING_BYTES_MAX)))
            }
            bytes if !bytes.is_multiple_of(FLASH_PAGE_BYTES as u64) => {
                Err(format!("a {what} of {} is not a multiple of {}; name another size", size(bytes), size(FLASH_PAGE_BYTES as u64)))
            }
            _ => Ok(()),
        };
        match self.staging {
            Staging::WriteLog { log_bytes, .. } => {
                fits("write log", log_bytes)?;
                self.staging.write_log().map_or(Ok(()), |log| log.check(logical_pages))
            }
            Staging::Cache { cache_bytes, .. } => fits("page cache", cache_bytes),
            Staging::HostCache { cache_bytes, queue_depth, bytes_per_second } => {
                fits("cache", cache_bytes)?;
                if !(1..=QUEUE_DEPTH_MAX).contains(&queue_depth) || bytes_per_second == 0 {
                    return Err(format!("{queue_depth} MOVE commands at once with {bytes_per_second} B/s are those of no drive"));
                }
                Ok(())
            }
        }
    }

    /// The flash of such a drive.
    pub(crate) fn geometry(&self, logical_pages: u64) -> FlashGeometry {
        FlashGeometry {
            channel_count: self.channel_count,
            dies_per_channel: self.dies_per_channel,
            planes_per_die: self.planes_per_die,
            blocks_per_plane: self.blocks_per_plane,
            pages_per_block: self.pages_per_block,
            logical_pages,
        }
    }

    /// How its translation layer behaves, with so many pages of memory zone.
    pub(crate) fn flash_options(&self, memory_pages: u64) -> FlashOptions {
        FlashOptions {
            victim: match self.garbage_collection {
                GarbageCollection::Greedy => VictimPolicy::Greedy,
                GarbageCollection::CostBenefit => VictimPolicy::CostBenefit,
            },
            endurance_erasures: self.endurance_erasures,
            write_buffer_pages: self.write_buffer_pages,
            window_pages: memory_pages,
            ..FlashOptions::default()
        }
    }
}

/// Size of a cache that the host manages where none is chosen, in bytes: whole units, which huge pages can map.
pub fn default_host_cache_bytes(block_bytes: u64) -> u64 {
    (block_bytes / BLOCK_BYTES_A_HOST_CACHE_BYTE).next_multiple_of(UNIT_BYTES)
}

/// Blocks that each plane should have at least.
const BLOCKS_PER_PLANE_LEAST: u64 = 32;
