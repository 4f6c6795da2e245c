//! Display names, and their colours on the page.

use super::document::Colour;
use crate::compare::backing::Place;
use crate::compare::case::Group;
use crate::compare::peer::Peer;

/// Colours of structures follow those of file systems.
const FIRST_STRUCTURE: u8 = 10;
/// Structures with their own colour; all others are *other*.
pub const STRUCTURES_MAX: usize = 8;

/// Name of a file system.
pub fn peer(peer: Peer) -> &'static str {
    match peer {
        Peer::TandemfsRelaxed => "TandemFS relaxed",
        Peer::TandemfsStrict => "TandemFS strict",
        Peer::TandemfsLibrary => "TandemFS library",
        Peer::Ext4 => "ext4",
        Peer::Ext4Journal => "ext4 data=journal",
        Peer::Xfs => "XFS",
        Peer::Btrfs => "Btrfs",
        Peer::Null => "null FUSE",
    }
}

/// Colour of a file system.
pub fn colour(peer: Peer) -> Colour {
    Colour(Peer::ALL.iter().position(|each| *each == peer).unwrap_or_default() as u8)
}

/// Colour of a structure, by its index in the report.
pub fn structure_colour(index: usize) -> Colour {
    Colour(FIRST_STRUCTURE + index.min(STRUCTURES_MAX) as u8)
}

/// Name of a drive.
pub fn place(place: Place) -> &'static str {
    match place {
        Place::Free => "free drive",
        Place::Same => "same drive",
    }
}

/// Name of a chapter.
pub fn group(group: Group) -> &'static str {
    match group {
        Group::Micro => "Single operations",
        Group::Buffered => "Buffered work on many small files",
        Group::Filebench => "Filebench's personalities",
        Group::Applications => "Applications",
        Group::Scale => "How cost grows",
    }
}

/// All chapters, in order.
pub const GROUPS: [Group; 5] = [Group::Micro, Group::Filebench, Group::Applications, Group::Buffered, Group::Scale];
