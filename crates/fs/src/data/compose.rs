//! Reading one block as it is: sectors below, data logs above, zeros where there is neither. Used by read-modify-write and write-back.
//!
//! [CO1] Every byte is verified before it is used: sectors and logs against their checksums (DESIGN §2).

use tandemfs_device::{BlockRequest, Structure};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{InodeNumber, SECTOR_BYTES};

use crate::index::block::Block;
use crate::volume::{Owner, Volume};
use crate::{Error, Result};

/// Loads a whole log and verifies it. `at` is the offset of its block in the file, for the error.
pub(crate) fn load_log(volume: &Volume, inode: InodeNumber, at: u64, log: &LogEntry, into: &mut [u8]) -> Result<()> {
    volume.drive.load(Structure::DataLog, log.address, into)?;
    if volume.checksums && volume.pair.data(into) != log.crc {
        return Err(damaged_data(inode, at + u64::from(log.offset)));
    }
    Ok(())
}

/// Verifies sectors that were read. `first` is the index of the first one in its block.
pub(crate) fn verify_sectors(volume: &Volume, owner: Owner, at: u64, block: &Block, first: u64, bytes: &[u8]) -> Result<()> {
    let mut sectors = bytes.chunks_exact(SECTOR_BYTES);
    block.sector_checksums(volume, owner, first, (bytes.len() / SECTOR_BYTES) as u64, |index, expected| match sectors.next() {
        Some(sector) if volume.pair.data(sector) != expected => Err(damaged_data(owner.inode, at + index * SECTOR_BYTES as u64)),
        _ => Ok(()),
    })
}

fn damaged_data(inode: InodeNumber, offset: u64) -> Error {
    tracing::error!(inode = inode.get(), offset, "data does not fit its checksum");
    Error::DamagedData { inode, offset }
}

/// Fills `into` (whole sectors from the block's start) with the block as it stands.
pub(crate) fn compose(volume: &Volume, owner: Owner, at: u64, block: &Block, into: &mut [u8]) -> Result<()> {
    let written = block.extent.filter(|extent| !extent.unwritten);
    let below = written.map_or(0, |extent| (extent.count as usize * SECTOR_BYTES).min(into.len()));
    if let Some(extent) = written {
        let sectors = &mut into[..below];
        let mut requests = [BlockRequest::Read { sector: extent.sector, buffer: sectors }];
        drop(volume.drive.transfer(Structure::Data, &mut requests, &mut || {})?);
        verify_sectors(volume, owner, at, block, 0, &into[..below])?;
    }
    into[below..].fill(0);
    let mut buffer = [0; 4096];
    for log in block.logs() {
        let bytes = &mut buffer[..log.length as usize];
        load_log(volume, owner.inode, at, log, bytes)?;
        let start = (log.offset as usize).min(into.len());
        let end = (log.end() as usize).min(into.len());
        into[start..end].copy_from_slice(&bytes[..end - start]);
    }
    Ok(())
}
