//! Lent room: sizes that programs had reached when the image was left, which its next mount gives to the files ([CK1]).

use std::collections::BTreeSet;

use tandemfs_device::{DeviceError, Structure};
use tandemfs_format::inode::{Inode, file_type, state};
use tandemfs_format::lent_room::{LENT_TABLE_BYTES, LentRoom, lent_line, lent_slots};

use crate::finding::Finding;
use crate::image::Image;
use crate::inodes;
use crate::mutant::{Mutant, on};

/// A slot in use, and its word.
pub(crate) struct Lent {
    pub(crate) slot: u64,
    pub(crate) room: LentRoom,
    pub(crate) word: u64,
}

/// The slots in use.
pub(crate) fn read(image: &Image<'_>, found: &mut Vec<Finding>) -> Result<Vec<Lent>, DeviceError> {
    let mut all = Vec::new();
    if !image.superblock.has_lent_rooms() {
        return Ok(all);
    }
    let mut table = Box::new([0; LENT_TABLE_BYTES]);
    image.drive.load(Structure::Superblock, lent_line(0), &mut *table)?;
    for (slot, line, word) in lent_slots(&table) {
        match LentRoom::decode(&line, image.pair, lent_line(slot)) {
            Ok(None) => {}
            Ok(Some(room)) => all.push(Lent { slot, room, word }),
            Err(damage) => found.push(Finding::LentRoomDamaged { slot, damage: damage.into() }),
        }
    }
    Ok(all)
}

/// Gives files the sizes that programs had reached, in the overlay.
pub(crate) fn adopt(image: &mut Image<'_>, found: &mut Vec<Finding>) -> Result<(), DeviceError> {
    let mut seen = BTreeSet::new();
    for Lent { slot, room, word } in read(image, found)? {
        let inode = room.inode.get();
        if image.superblock.clean {
            found.push(Finding::LentRoomLeft { slot, inode });
            continue;
        }
        if !seen.insert(inode) {
            found.push(Finding::LentRoomTwice { slot, inode });
            continue;
        }
        let is_its = |file: &Inode| file.generation == room.generation && file.file_type() == file_type::REGULAR;
        let Some((address, mut file)) = inodes::read(image, inode).filter(|(_, file)| is_its(file)) else {
            found.push(Finding::LentRoomOfNobody { slot, inode });
            continue;
        };
        if !(room.size..=room.size + room.bytes).contains(&file.size) {
            found.push(Finding::LentRoomElsewhere { slot, inode, size: file.size, expected: room.size });
            continue;
        }
        match room.size_by(word) {
            None => found.push(Finding::LentRoomExceeded { slot, inode, most: room.bytes }),
            Some(size) if size > file.size && !on(Mutant::AppendedIgnored) => {
                file.size = size;
                if size.is_multiple_of(image.geometry.block_bytes().into()) {
                    file.state &= !state::TAIL_STALE;
                }
                let line = file.encode_hot(&Inode::place(image.pair, room.inode, address));
                image.overlay.insert(address.number(), line);
            }
            Some(_) => {}
        }
    }
    Ok(())
}
