//! TandemFS, the file system: namespace, journal, allocation, both data paths, recovery.
//!
//! The path of a write: [`FileSystem::write`] (`data/write_path.rs`) chooses the path of each byte and moves the data; `journal/tx.rs`
//! makes the metadata change durable. Everything else serves these two.
//!
//! *Architecture invariants:* no FUSE type and no errno here (doors map [`Error`]); no device address is computed here, all come from
//! `format`'s geometry, verified pointers and the allocators; metadata changes only through a transaction.

#![forbid(unsafe_code)]

mod alloc;
mod background;
mod cache;
mod changing;
mod compaction;
mod data;
mod error;
mod error_counts;
mod file_system;
mod fullness;
mod growing;
mod health;
mod held_back;
mod index;
#[cfg(not(feature = "mutants"))]
mod inject;
#[cfg(feature = "mutants")]
pub mod inject;
mod inode_scan;
mod inodes;
mod journal;
mod large_file;
mod lease;
mod leaving;
mod lent_pages;
mod mkfs;
mod mount;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod namespace;
mod near;
mod numa;
mod on_behalf;
mod processes;
mod proportion;
mod quarantine;
mod quota;
mod quota_count;
mod recovery;
mod resize;
mod scrub;
mod seal;
mod settings;
mod shortage;
mod shrinking;
mod space;
mod stamp;
mod statistics;
mod store_lease;
mod survey;
mod sync;
mod trim;
mod tuning;
mod types;
mod updates;
mod upgrade;
mod versions;
mod volume;
mod wait;
mod waits;

use std::sync::Arc;

pub use data::{FileMapping, LAYOUT_EXTENTS_MAX, LENT_BYTES, Layout, MappedElsewhere, MappedExtent};
pub use error::{Error, Result};
pub use file_system::FileSystem;
pub use held_back::DamageReport;
pub use lease::{FILE_LAYOUTS_MAX, LAYOUTS_MAX, RECALL_MAX};
pub use mkfs::{check_format, make_file_system};
pub use mount::read_superblock;
pub use namespace::{ALIGNED_ATTRIBUTE, ALIGNED_LEFT_ATTRIBUTE, AccessList, HOME_ATTRIBUTE, HOME_LEFT_ATTRIBUTE};
pub use numa::{NodeReport, NumaReport};
pub use on_behalf::OnBehalf;
pub use proportion::{OddZone, odd_zones};
pub use quota::{QuotaEntry, QuotaSet, QuotaUse};
pub use recovery::RecoveryReport;
pub use resize::{could_grow, grow, set_label};
pub use scrub::{Scrub, ScrubCounts, ScrubFinding, ScrubbedKind};
pub use settings::SettingsChange;
pub use shrinking::shrink;
pub use statistics::{OperationCounts, Statistics, WorkCounts};
pub use store_lease::{Borrower, IDLE_MAX, Room, STORE_LEASES_MAX, STORES_END_MAX, StoreAccess, StoreLease};
pub use trim::Trim;
pub use tuning::compaction::CompactionRun;
pub use tuning::threshold::{PathLatency, ThresholdReport};
pub use types::{
    AllocateMode, Attributes, DirectoryEntry, Discard, Engine, FormatOptions, Grown, Growth, Home, HomeLimit, HomeMoves, Kept,
    LayoutExtent, LayoutOptions, LayoutPlace, LentExtent, MountOptions, NewInode, Promote, ReadOptions, RenameMode, SeekTo,
    SetAttributeMode, SetAttributes, SetExtendedAttribute, SetTime, ShortZone, Space, Threshold, Update, UpdateMode, WriteBackPolicy,
    WriteBackReport, WriteOptions, ZoneSpace,
};
pub use upgrade::{FEATURES, Feature, FeatureBit, missing_features, set_uuid, upgrade};
pub use versions::{Noted, Versions};
pub use wait::{announce_wait, announcing, leaves_to_others, may_wait, no_wait};

/// A file system that is shared between threads.
pub type Shared = Arc<FileSystem>;
