//! The errno of each error of the file system: the one table, for the mount and for callers of this crate.

use rustix::io::Errno;
use tandemfs_device::DeviceError;
use tandemfs_fs::Error;

/// The errno for a program. One `match` without `_`: a new error does not compile until it has an errno here.
pub fn errno(error: &Error) -> Errno {
    match error {
        Error::NotFound => Errno::NOENT,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::InvalidName | Error::InvalidArgument(_) | Error::IntoItself | Error::Label => Errno::INVAL,
        Error::TooManyLinks => Errno::MLINK,
        Error::NotPermitted | Error::NotOwner => Errno::PERM,
        Error::NoData => Errno::NODATA,
        Error::AttributeNameLength => Errno::RANGE,
        Error::AttributeTooLarge => Errno::TOOBIG,
        Error::NotSupported(_) => Errno::OPNOTSUPP,
        Error::NotForFiles => Errno::ACCESS,
        Error::NoSpace { .. } | Error::AttributesFull => Errno::NOSPC,
        Error::QuotaExceeded { .. } => Errno::DQUOT,
        Error::OtherProject => Errno::XDEV,
        Error::FileTooLarge => Errno::FBIG,
        Error::ReadOnly => Errno::ROFS,
        // Not EROFS: programs take EROFS for an administrator's choice, but this is a failure.
        Error::Stopped { .. } => Errno::IO,
        Error::Stale(_) => Errno::STALE,
        // "Structure needs cleaning", as other file systems report damage that fsck has to repair.
        Error::Damaged { .. } => Errno::UCLEAN,
        Error::DamagedData { .. } | Error::LostData { .. } => Errno::IO,
        Error::Device(device) => device_errno(device),
        // Errors of mounting. They cannot occur on a mounted file system.
        Error::Superblock { .. }
        | Error::Geometry { .. }
        | Error::Truncated { .. }
        | Error::PairMismatch { .. }
        | Error::NotClean { .. }
        | Error::NeedsFeature { .. }
        | Error::StampMismatch { .. }
        | Error::JournalDamaged { .. }
        | Error::IdentityDamaged { .. } => Errno::IO,
        // Errors of resizing. They cannot occur on a mounted file system either.
        Error::Shrinks { .. }
        | Error::BeyondDevice { .. }
        | Error::NoRoomForMaps { .. }
        | Error::GrowsUnmounted { .. }
        | Error::DoesNotFit { .. } => Errno::INVAL,
        Error::Occupied { .. } | Error::ProgramsLeft { .. } => Errno::BUSY,
        // No request asks for a layout yet. ENOLCK is what programs get where a file has too many locks or leases.
        Error::TooManyLayouts { .. } => Errno::NOLCK,
        // Callers that name an inode look again where they get `Changed`.
        // It never leaves the caller of `no_wait`, who repeats the operation.
        Error::WouldWait => Errno::AGAIN,
        Error::LayoutsHeld { .. } | Error::StoresHeld { .. } | Error::Unmounting | Error::Changed => Errno::BUSY,
        // No way to a mounted file system makes mappings yet.
        Error::Mapped | Error::MappingsHeld { .. } => Errno::BUSY,
    }
}

fn device_errno(error: &DeviceError) -> Errno {
    match error {
        // If the host disk under a sparse image is full, the file system is full for its user.
        DeviceError::Block { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => Errno::NOSPC,
        DeviceError::Block { .. } | DeviceError::Poisoned { .. } | DeviceError::OutOfRange { .. } => Errno::IO,
        DeviceError::Open { .. } => Errno::NODEV,
        DeviceError::Busy { .. } => Errno::BUSY,
        DeviceError::Firmware { .. } => Errno::IO,
        DeviceError::Map { .. } => Errno::NODEV, // what mmap says of a file that cannot be mapped
    }
}

/// Whether an error is logged. Errors that programs cause and expect are not.
pub fn is_failure(error: &Error) -> bool {
    matches!(errno(error), Errno::IO | Errno::UCLEAN | Errno::STALE | Errno::NODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_format::InodeNumber;
    use tandemfs_format::quota::QuotaKind;

    #[test]
    fn programs_hear_what_they_test_for() {
        for (error, expected) in [
            (Error::NotFound, libc::ENOENT),
            (Error::Exists, libc::EEXIST),
            (Error::NotEmpty, libc::ENOTEMPTY),
            (Error::IntoItself, libc::EINVAL),
            (Error::NoSpace { zone: "block" }, libc::ENOSPC),
            (Error::QuotaExceeded { kind: QuotaKind::User, id: 7, resource: "inodes" }, libc::EDQUOT),
            (Error::OtherProject, libc::EXDEV),
            (Error::TooManyLinks, libc::EMLINK),
            (Error::NoData, libc::ENODATA),
            (Error::AttributeNameLength, libc::ERANGE),
            (Error::AttributeTooLarge, libc::E2BIG),
            (Error::AttributesFull, libc::ENOSPC),
            (Error::NotSupported("no such name"), libc::EOPNOTSUPP),
            (Error::NotForFiles, libc::EACCES),
            (Error::Stopped { first_cause: "flush".into() }, libc::EIO),
            (Error::DamagedData { inode: InodeNumber::new(5), offset: 0 }, libc::EIO),
            (Error::LostData { inode: InodeNumber::new(5), offset: 0 }, libc::EIO),
        ] {
            assert_eq!(errno(&error).raw_os_error(), expected, "{error}");
        }
    }

    #[test]
    fn full_host_disk_is_no_space_and_other_failures_are_input_output_errors() {
        let failed = |code| {
            Error::Device(DeviceError::Block {
                device: "image".into(),
                operation: "write",
                offset: 0,
                length: 4096,
                source: std::io::Error::from_raw_os_error(code),
            })
        };
        assert_eq!(errno(&failed(libc::ENOSPC)).raw_os_error(), libc::ENOSPC);
        assert_eq!(errno(&failed(libc::ETIMEDOUT)).raw_os_error(), libc::EIO);
        assert!(is_failure(&failed(libc::ETIMEDOUT)));
        assert!(!is_failure(&Error::NotFound));
    }
}
