//! Moves the bytes of extents: sectors by block requests, pages of the memory zone by loads and stores.
//!
//! [XI1] Pages are stored like data logs: flushed and fenced before the record that names them (RULES R8), by the fence that serves the
//!       logs of the same write. The device layer stores large pieces past the CPU's caches.
//! [XI2] Pages are never stored in place: an extent that a record names as written does not change until it is freed. So readers, who hold
//!       the range, always see the bytes of its checksums. Open pages are the exception ([OG1] of `open_pages.rs`, [KP2] of
//!       `kept_place.rs`): they have none.

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, InFlight, Lines, Source, Structure};
use tandemfs_format::{DataAddress, LineAddress};

use super::interface::load_slots;
use crate::error::Result;
use crate::index::block::NewExtent;
use crate::statistics::add;
use crate::types::Update;
use crate::volume::Volume;
use crate::wait::may_wait;

/// Reads parts of extents, each from its start; `meanwhile` runs while block requests are in flight. The bytes are not verified.
pub(super) fn read_extents<'b>(
    volume: &Volume,
    parts: impl IntoIterator<Item = (DataAddress, &'b mut [u8])>,
    meanwhile: &mut dyn FnMut(),
) -> Result<()> {
    let mut requests: SmallVec<[BlockRequest<'b>; 2]> = SmallVec::new();
    let mut pages: SmallVec<[(LineAddress, &'b mut [u8]); 2]> = SmallVec::new();
    for (at, buffer) in parts {
        match at {
            DataAddress::Sector(sector) => requests.push(BlockRequest::Read { sector, buffer: buffer.into() }),
            DataAddress::Page(page) => pages.push((page, buffer)),
        }
    }
    let mut loaded = Ok(());
    let mut load_all = || {
        loaded = pages.iter_mut().try_for_each(|(page, buffer)| load_slots(volume, Structure::Data, *page, buffer));
        meanwhile();
    };
    if requests.is_empty() {
        load_all();
    } else {
        may_wait()?;
        drop(volume.drive.transfer(Structure::Data, &mut requests, &mut load_all)?);
    }
    loaded
}

/// Stores a new extent of pages, starts flushing its cache lines, and computes its checksums ([XI1]).
pub(super) fn store_pages(
    volume: &Volume,
    update: Update,
    page: LineAddress,
    new: &mut NewExtent,
    bytes: &[u8],
) -> Result<Lines<InFlight>> {
    new.checksums = checksums_of(volume, bytes.into());
    add(&volume.live.work.home_written_bytes, bytes.len() as u64);
    volume.store_data(update, Structure::Data, (page, 0), bytes)
}

/// The checksums of an extent with these bytes; none if the file system has no checksums.
pub(super) fn checksums_of(volume: &Volume, bytes: Source<'_>) -> SmallVec<[u32; 16]> {
    let mut checksums = SmallVec::new();
    if volume.checksums {
        bytes.each_sector(|sector| checksums.push(volume.pair.data(sector)));
    }
    checksums
}
