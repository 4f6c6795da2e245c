use std::io;
use std::time::Duration;

use tandemfs_format::Sector;

use crate::{
    BlockPath, BlockRequest, BytePath, CacheMove, CacheMoves, Device, DeviceDescription, DeviceError, DriveCounts, DriveRecovery, Firmware,
    FlashWear, LentZone, MappedMemory, Media, MemoryRange, MoveState, MoveTicket, StoreWay, StoreZone, Structure, TxId, VirtualTime,
    ZoneHold,
};

/// A wrapper around a device that observes or changes some calls: a monitor, a fault injector, a power cut. An implementation names
/// the inner device and overrides only the calls that it changes; all other calls and the description are forwarded.
pub trait Layer: Send + Sync {
    /// The inner device.
    fn below(&self) -> &dyn Device;

    /// [`BytePath::load`].
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.below().byte_path().load(offset, into)
    }

    /// [`BytePath::store`].
    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.below().byte_path().store(offset, from)
    }

    /// [`BytePath::load_of`]. A layer that overrides [`Layer::load`] alone sees these loads too, and the device below does not learn their
    /// structure.
    fn load_of(&self, _structure: Structure, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        Layer::load(self, offset, into)
    }

    /// [`BytePath::store_by`]. A layer that overrides [`Layer::store`] alone sees these stores too, and the device below does not learn their
    /// structure and their way.
    fn store_by(&self, _structure: Structure, _way: StoreWay, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        Layer::store(self, offset, from)
    }

    /// [`BytePath::flush`].
    fn flush_lines(&self, offset: u64, length: u64) {
        self.below().byte_path().flush(offset, length);
    }

    /// [`BytePath::fence`].
    fn fence(&self) {
        self.below().byte_path().fence();
    }

    /// [`BytePath::flushed`].
    fn flushed(&self) -> Result<(), DeviceError> {
        self.below().byte_path().flushed()
    }

    /// [`Device::media`].
    fn media(&self) -> Option<&dyn Media> {
        self.below().media()
    }

    /// [`BlockPath::transfer_each`].
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        self.below().block_path().transfer_each(requests, meanwhile, completed)
    }

    /// [`BlockPath::flush`].
    fn flush_blocks(&self) -> Result<(), DeviceError> {
        self.below().block_path().flush()
    }

    /// [`BlockPath::discard`].
    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.below().block_path().discard(sector, count)
    }

    /// [`Firmware::store_tagged`].
    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        firmware(self.below())?.store_tagged(transaction, offset, from)
    }

    /// [`Firmware::commit`].
    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        firmware(self.below())?.commit(transaction)
    }

    /// [`Firmware::recover`].
    fn recover(&self) -> Result<DriveRecovery, DeviceError> {
        firmware(self.below())?.recover()
    }

    /// [`Firmware::clean`].
    fn clean(&self) -> Result<(), DeviceError> {
        firmware(self.below())?.clean()
    }

    /// [`CacheMoves::submit`].
    fn submit_move(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        moves(self.below())?.submit(command)
    }

    /// [`CacheMoves::poll`].
    fn poll_move(&self, ticket: MoveTicket) -> MoveState {
        match moves(self.below()) {
            Ok(moves) => moves.poll(ticket),
            Err(error) => MoveState::Done(Err(error)),
        }
    }

    /// [`CacheMoves::wait`].
    fn wait_for_move(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        match moves(self.below()) {
            Ok(moves) => moves.wait(ticket, timeout),
            Err(error) => MoveState::Done(Err(error)),
        }
    }
}

/// The inner device's MOVE commands. Callers got this layer from [`Device::cache_moves`], so the inner device has them.
fn moves(device: &dyn Device) -> Result<&dyn CacheMoves, DeviceError> {
    device.cache_moves().ok_or_else(|| DeviceError::Firmware {
        device: device.description().name.clone(),
        command: "MOVE",
        reason: "the drive has no cache that the host manages".to_owned(),
    })
}

/// The inner device's firmware. Callers got this layer from [`Device::firmware`], so the inner device has firmware.
fn firmware(device: &dyn Device) -> Result<&dyn Firmware, DeviceError> {
    device.firmware().ok_or_else(|| DeviceError::Firmware {
        device: device.description().name.clone(),
        command: "any command",
        reason: "the drive has no firmware".to_owned(),
    })
}

impl<L: Layer> Device for L {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        self.below().description()
    }

    fn firmware(&self) -> Option<&dyn Firmware> {
        self.below().firmware().map(|_| self as &dyn Firmware)
    }

    fn cache_moves(&self) -> Option<&dyn CacheMoves> {
        self.below().cache_moves().map(|_| self as &dyn CacheMoves)
    }

    fn counts(&self) -> Option<DriveCounts> {
        self.below().counts()
    }

    fn media(&self) -> Option<&dyn Media> {
        Layer::media(self)
    }

    fn wear(&self) -> Option<FlashWear> {
        self.below().wear()
    }

    fn mapping_unit(&self) -> Option<u64> {
        self.below().mapping_unit()
    }

    fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        self.below().map(ranges, writable)
    }

    fn lent_zone(&self) -> Option<io::Result<LentZone>> {
        self.below().lent_zone()
    }

    fn store_zone(&self, program: u32) -> Option<io::Result<(StoreZone, ZoneHold)>> {
        self.below().store_zone(program)
    }

    fn is_zone_held(&self) -> bool {
        self.below().is_zone_held()
    }

    fn grow(&self, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(), DeviceError> {
        self.below().grow(memory_bytes, block_bytes)
    }

    fn virtual_time(&self) -> Option<&dyn VirtualTime> {
        self.below().virtual_time()
    }
}

impl<L: Layer> BytePath for L {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        Layer::load(self, offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        Layer::store(self, offset, from)
    }

    fn load_of(&self, structure: Structure, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        Layer::load_of(self, structure, offset, into)
    }

    fn store_by(&self, structure: Structure, way: StoreWay, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        Layer::store_by(self, structure, way, offset, from)
    }

    fn flush(&self, offset: u64, length: u64) {
        self.flush_lines(offset, length);
    }

    fn fence(&self) {
        Layer::fence(self);
    }

    fn flushed(&self) -> Result<(), DeviceError> {
        Layer::flushed(self)
    }
}

impl<L: Layer> BlockPath for L {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        Layer::transfer_each(self, requests, meanwhile, completed)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.flush_blocks()
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        Layer::discard(self, sector, count)
    }
}

impl<L: Layer> Firmware for L {
    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        Layer::store_tagged(self, transaction, offset, from)
    }

    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        Layer::commit(self, transaction)
    }

    fn recover(&self) -> Result<DriveRecovery, DeviceError> {
        Layer::recover(self)
    }

    fn clean(&self) -> Result<(), DeviceError> {
        Layer::clean(self)
    }
}

impl<L: Layer> CacheMoves for L {
    fn queue_depth(&self) -> u32 {
        self.below().cache_moves().map_or(0, CacheMoves::queue_depth)
    }

    fn submit(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        self.submit_move(command)
    }

    fn poll(&self, ticket: MoveTicket) -> MoveState {
        self.poll_move(ticket)
    }

    fn wait(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        self.wait_for_move(ticket, timeout)
    }
}
