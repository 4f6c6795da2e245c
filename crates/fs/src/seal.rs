//! Seals the mapping lines of a file system that was made without *sealed holes*, for `upgrade.rs`.
//!
//! [HS1] Nothing is mounted for writing meanwhile. A line of holes gets its checksum by one store: only its first four bytes change, and 8 B
//!       are stored whole, so a power cut leaves it empty or sealed. Both are valid until the feature bit is set, which is after all lines
//!       are durable. If it is interrupted, the next upgrade seals the others.
//! [HS2] A damaged inode or mapping ends it with its error: what cannot be read cannot be sealed.

use std::ops::ControlFlow;

use tandemfs_device::{Drive, Fenced, Lines, Structure};
use tandemfs_format::hole_lines::HoleLines;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, LineAddress, PAGE_BYTES, PAGE_LINES};

use crate::cache::Owner;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::tree::{self, Found};
use crate::types::MountOptions;
use crate::volume::Volume;

/// Seals every mapping line without records, of a file system that was unmounted cleanly ([HS1]).
pub(crate) fn seal_mappings(drive: &Drive) -> Result<Fenced> {
    let fs = FileSystem::mount(drive.clone(), &MountOptions { read_only: true, ..MountOptions::default() })?;
    let volume = &fs.volume;
    for number in (InodeNumber::ROOT.get()..volume.memory.inode_limit()).map(InodeNumber::new) {
        let file = match fs.inodes.get(volume, number) {
            Err(Error::Stale(_)) => continue,
            other => other?, // [HS2]
        };
        let state = file.state.read()?;
        if !state.inode.has_mapping() {
            continue;
        }
        let owner = state.owner(number);
        let _ended = tree::walk_range(volume, owner, state.root(), 0..u64::MAX, &mut |found| {
            if let Found::Page { page, .. } = found {
                seal_page(volume, owner, page)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(drive.fence(Lines::none()))
}

fn seal_page(volume: &Volume, owner: Owner, page: LineAddress) -> Result<()> {
    let bytes = volume.page(Structure::Mapping, page)?.bytes();
    debug_assert_eq!(bytes.len(), PAGE_BYTES);
    for (line, address) in bytes.as_chunks::<LINE_BYTES>().0.iter().zip((0..PAGE_LINES).map(|index| page.nth(index))) {
        if *line == EMPTY_LINE {
            let sealed = HoleLines::Sealed.line_of_holes(&volume.place(owner, address));
            drop(volume.drive.persist(Structure::Mapping, address, &sealed)?);
        }
    }
    Ok(())
}
