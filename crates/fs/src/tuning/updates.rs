//! From how many bytes on cold stores go past the CPU's caches ([UP4] of `updates/`): measured at the mount, on slots that are free, where the way is chosen
//! at all.

use tandemfs_device::{Lines, StoreWay, Structure};
use tandemfs_format::mapping::{LOG_BYTES_MAX, SlotClass};

use super::threshold::{ROUNDS, median_ns};
use crate::alloc::Need;
use crate::error::Result;
use crate::space;
use crate::updates::PAST_CACHES_BYTES;
use crate::volume::Volume;

/// The smallest size that is measured: a line of the media.
const LEAST_BYTES: usize = 256;
/// Slots that hold the largest size.
const SLOTS: usize = PAST_CACHES_BYTES as usize / LOG_BYTES_MAX;

/// Measures, and tells [`Updates`](crate::updates::Updates). Without free slots the default stays.
pub(crate) fn calibrate(volume: &Volume) {
    if !volume.updates.is_adaptive() {
        return;
    }
    let mut slots = Vec::new();
    while slots.len() < SLOTS * ROUNDS
        && let Ok(slot) = volume.memory.take_slot(SlotClass::Page, Need::Growth)
    {
        slots.push(slot);
    }
    let stores = |way: StoreWay, bytes: &[u8]| {
        // Others in each round: stores past the caches come first and leave no line of them there, as of fresh slots.
        let mut rounds = slots.chunks(SLOTS);
        median_ns(volume, || {
            let mut in_flight = Lines::none();
            for (slot, piece) in rounds.next().into_iter().flatten().zip(bytes.chunks(LOG_BYTES_MAX)) {
                let lines = volume.drive.store_by(Structure::DataLog, way, *slot, 0, piece)?;
                let flushes = way == StoreWay::Cached;
                in_flight = in_flight.and(if flushes { volume.drive.write_back_lines(lines) } else { volume.drive.flush_lines(lines) });
            }
            drop(volume.drive.fence(in_flight));
            Ok(())
        })
    };
    let measured = || -> Result<u32> {
        let (bytes, mut least) = (vec![0x5a; PAST_CACHES_BYTES as usize], PAST_CACHES_BYTES);
        let mut size = PAST_CACHES_BYTES as usize;
        while size >= LEAST_BYTES && stores(StoreWay::NonTemporal, &bytes[..size])? <= stores(StoreWay::Cached, &bytes[..size])? {
            (least, size) = (size as u32, size / 2);
        }
        Ok(least)
    };
    if slots.len() == SLOTS * ROUNDS {
        match measured() {
            Ok(bytes) => volume.updates.set_past_caches_bytes(bytes),
            Err(error) => tracing::warn!(%error, "how stores go past the caches was not measured"),
        }
    }
    slots.into_iter().for_each(|slot| volume.give_back(space::slot(slot, SlotClass::Page.lines())));
}
