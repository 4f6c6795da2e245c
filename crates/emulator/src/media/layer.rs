//! The model over an emulated drive without firmware ([PMM1]–[PMM6]): each access is done by the drive, then counted and timed by the model, in
//! place of the drive's own times of loads and stores.
//!
//! *Invariant:* this layer never changes, delays or leaves out what it hands to the drive, and never answers a load by itself ([PMM1]). So crash states,
//! recovery and domains are those of the drive below. What programs do in mapped ranges passes by it, as it passes by the times of any drive.
//!
//! [PMM1]: super
//! [PMM6]: super

use parking_lot::Mutex;
use tandemfs_device::{BytePath, Device, DeviceError, Layer, Media, MediaCounts, StoreWay, Structure};

use super::lifetime::Lifetime;
use super::memory::PersistentMemory;
use super::model::MediaModel;
use crate::image::ImageDevice;
use crate::timing::{MediaTimeline, MediaWork, Time, Timing};

/// Accesses after which the counters are stored in the image.
const ACCESSES_BETWEEN: u64 = 1 << 16;

/// An emulated drive whose loads and stores cost what a CPU's cache and persistent memory make of them.
#[derive(Debug)]
pub(crate) struct MediaLayer {
    inner: ImageDevice,
    state: Mutex<State>,
    cache_bytes: u64,
    lifetime: Lifetime,
}

#[derive(Debug)]
struct State {
    memory: PersistentMemory,
    timeline: MediaTimeline,
    accesses: u64,
}

/// When an access is complete, given its arrival and what it made the media do.
type Finish = fn(&mut MediaTimeline, u64, &MediaWork) -> u64;

impl MediaLayer {
    /// Over a drive that times its blocks alone. `timing` has the latencies of its lines.
    pub(crate) fn new(inner: ImageDevice, timing: Timing, model: &MediaModel, lifetime: Lifetime) -> Self {
        let state = State { memory: PersistentMemory::new(model), timeline: MediaTimeline::new(timing, *model), accesses: 0 };
        Self { inner, state: Mutex::new(state), cache_bytes: model.cache_bytes, lifetime }
    }

    /// Does an access, then has the model count it, and stalls until it would be complete ([PMM1], [PMM6]).
    fn modelled<T>(
        &self,
        access: impl FnOnce(&dyn BytePath) -> Result<T, DeviceError>,
        count: impl FnOnce(&mut PersistentMemory) -> MediaWork,
        finish: Finish,
    ) -> Result<T, DeviceError> {
        let arrival = self.inner.time().map_or(0, Time::now_ns);
        let result = access(&self.inner)?;
        let done = {
            let mut state = self.state.lock();
            let work = count(&mut state.memory);
            state.accesses += 1;
            if state.accesses.is_multiple_of(ACCESSES_BETWEEN) {
                self.lifetime.store(state.memory.counts());
            }
            finish(&mut state.timeline, arrival, &work)
        };
        if let Some(time) = self.inner.time() {
            time.stall_until(done);
        }
        Ok(result)
    }

    fn load_any(&self, structure: Option<Structure>, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let length = into.len() as u64;
        self.modelled(|bytes| bytes.load(offset, into), |memory| memory.load(structure, offset, length), MediaTimeline::load)
    }

    fn store_any(&self, structure: Option<Structure>, way: StoreWay, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let length = from.len() as u64;
        self.modelled(|bytes| bytes.store(offset, from), |memory| memory.store(structure, way, offset, length), MediaTimeline::post)
    }
}

impl Layer for MediaLayer {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.load_any(None, offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.store_any(None, StoreWay::Cached, offset, from)
    }

    fn load_of(&self, structure: Structure, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.load_any(Some(structure), offset, into)
    }

    fn store_by(&self, structure: Structure, way: StoreWay, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.store_any(Some(structure), way, offset, from)
    }

    /// A flush takes its time here, so the fence that follows it takes none.
    fn flush_lines(&self, offset: u64, length: u64) {
        let flushed = self.modelled(
            |bytes| {
                bytes.flush(offset, length);
                Ok(())
            },
            |memory| memory.flush(offset, length),
            MediaTimeline::post,
        );
        debug_assert!(flushed.is_ok(), "a flush does not fail");
    }

    fn media(&self) -> Option<&dyn Media> {
        Some(self)
    }
}

impl Media for MediaLayer {
    fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    fn counts(&self) -> MediaCounts {
        self.state.lock().memory.counts().clone()
    }

    fn reserve_ways(&self, ways: u32) -> Result<(), u32> {
        self.state.lock().memory.reserve_ways(ways)
    }

    fn write_back_all(&self) {
        self.state.lock().memory.write_back_all();
    }
}

impl Drop for MediaLayer {
    /// The counters of the drive's life include what the caches still had to write.
    fn drop(&mut self) {
        let memory = &mut self.state.get_mut().memory;
        memory.write_back_all();
        self.lifetime.store(memory.counts());
    }
}
