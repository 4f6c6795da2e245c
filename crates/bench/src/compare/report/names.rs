//! What readers call things, and the colours that these have on the page.

use super::document::Colour;
use crate::compare::backing::Place;
use crate::compare::case::Group;
use crate::compare::peer::Peer;

/// Colours of the structures of file systems come after those of the file systems.
const FIRST_STRUCTURE: u8 = 10;
/// Structures with a colour of their own; what comes after them is *other*.
pub const STRUCTURES_MAX: usize = 8;

/// A file system.
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

/// A file system's colour.
pub fn colour(peer: Peer) -> Colour {
    Colour(Peer::ALL.iter().position(|each| *each == peer).unwrap_or_default() as u8)
}

/// The colour of a structure, by its place among those of a report.
pub fn structure_colour(index: usize) -> Colour {
    Colour(FIRST_STRUCTURE + index.min(STRUCTURES_MAX) as u8)
}

/// What was measured on.
pub fn place(place: Place) -> &'static str {
    match place {
        Place::Free => "free drive",
        Place::Same => "same drive",
    }
}

/// A chapter.
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
