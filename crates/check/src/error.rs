use tandemfs_device::DeviceError;
use tandemfs_format::identity::times_differ;
use tandemfs_format::size::size;
use tandemfs_format::superblock::SuperblockError;
use uuid::Uuid;

/// Why a device could not be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No superblock that this build reads.
    #[error("{device}: {source}")]
    Superblock {
        /// The device's name.
        device: String,
        /// What was found.
        source: SuperblockError,
    },
    /// A zone is smaller than the superblock says.
    #[error(
        "{device}: the {zone} zone has {}, its superblock says {}; it was truncated, or belongs to another pair",
        size(.found),
        size(.expected)
    )]
    Truncated {
        /// The device's name.
        device: String,
        /// "memory" or "block".
        zone: &'static str,
        /// Size found in bytes.
        found: u64,
        /// Size expected in bytes.
        expected: u64,
    },
    /// The two halves are of different pairs.
    #[error("{device}: the block half is of pair {found}, the memory half of pair {expected}; name two halves of one pair")]
    PairMismatch {
        /// The device's name.
        device: String,
        /// The pair that the block half names.
        found: Uuid,
        /// The pair of the memory half.
        expected: Uuid,
    },
    /// The two halves are of one pair, and from different times.
    #[error("{device}: {}", times_differ(.found, .expected))]
    StampMismatch {
        /// The device's name.
        device: String,
        /// The stamp of the block half.
        found: u64,
        /// The stamp of the memory half.
        expected: u64,
    },
    /// Repair would write a format that this build knows only to read.
    #[error("{device}: uses features {unknown:#x} that this build cannot write; repair it with a newer build, or check without --repair")]
    ReadOnlyFeatures {
        /// The device's name.
        device: String,
        /// The unknown bits.
        unknown: u64,
    },
    /// Nothing has that name or number (`dump`).
    #[error("{what} does not exist or is damaged; run tandemfs check")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The output failed (`dump`).
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
    /// The file for undoing cannot be used.
    #[error("{path}: {reason}")]
    Undo {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
