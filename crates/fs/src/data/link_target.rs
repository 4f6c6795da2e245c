//! Symlink targets that are too long for the inode: one data log holds the whole target.

use tandemfs_device::{Fenced, Structure};
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{LogEntry, Record, SlotClass};
use tandemfs_format::space::slot_space_512;

use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::space;
use crate::volume::Tx;

/// Stores a target for an inode that a transaction creates, and maps it. The commit needs the returned proof.
///
/// # Errors
/// `NoSpace`; errors of the device.
pub(crate) fn store_link_target(tx: &mut Tx<'_>, inode: &mut Inode, target: &[u8]) -> Result<Fenced> {
    let volume = tx.volume();
    let class = SlotClass::for_bytes(target.len());
    let address = volume.memory.take_slot(class, Need::Growth)?;
    tx.took(space::slot(address, class.lines()));
    let stored = tx.suspect_if_failed(volume.drive.persist(Structure::DataLog, address, target).map_err(Error::from))?;
    let entry = LogEntry { address, crc: volume.data_checksum(target), offset: 0, length: target.len() as u32, class };
    inode.root = Record::SingleLog(entry).encode().to_bytes();
    inode.space_512 = slot_space_512(class);
    Ok(stored)
}
