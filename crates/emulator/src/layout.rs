//! Layout of the persistent DRAM of a drive with firmware. Where the host manages the cache, memory zone and cache are in it too.

use tandemfs_format::UNIT_BYTES;

use crate::medium::FLASH_PAGE_BYTES;
use crate::model::{FirmwareModel, Staging};
use crate::page_cache;

/// Bytes that the spare area of a flash page takes.
pub(crate) const SPARE_BYTES: u64 = 16;

/// Offsets in the DRAM, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DramLayout {
    /// Counters of the drive's whole life: one page.
    pub(crate) lifetime: u64,
    /// Spare areas of all flash pages.
    pub(crate) spares: u64,
    /// The translation layer's part.
    pub(crate) flash: u64,
    /// The write log's part, or the page cache's; or memory zone and cache, which the host accesses, from a multiple of 2 MiB on.
    pub(crate) staging: u64,
    /// Size of all of it: whole units of 2 MiB.
    pub(crate) end: u64,
}

impl DramLayout {
    /// Of a drive with such a memory zone, whose flash offers so many pages. Sizes without meaning come to a meaningless end, and do not overflow.
    pub(crate) fn new(model: &FirmwareModel, memory_bytes: u64, logical_pages: u64) -> Self {
        let geometry = model.geometry(logical_pages);
        let page = FLASH_PAGE_BYTES as u64;
        let whole = |bytes: u64, unit: u64| bytes.div_ceil(unit).saturating_mul(unit);
        let lifetime = 0;
        let spares = page;
        let flash = whole(geometry.physical_pages().saturating_mul(SPARE_BYTES), page).saturating_add(spares);
        let staging = whole(geometry.dram_bytes(&model.flash_options(0)), page).saturating_add(flash);
        let staging = if model.staging.is_host_cache() { whole(staging, UNIT_BYTES) } else { staging };
        let staging_bytes = match model.staging {
            Staging::WriteLog { .. } => model.staging.write_log().map_or(0, |log| log.dram_bytes()),
            Staging::Cache { cache_bytes, .. } => page_cache::dram_bytes(cache_bytes),
            Staging::HostCache { cache_bytes, .. } => memory_bytes.saturating_add(cache_bytes),
        };
        Self { lifetime, spares, flash, staging, end: whole(staging.saturating_add(staging_bytes), UNIT_BYTES) }
    }
}
