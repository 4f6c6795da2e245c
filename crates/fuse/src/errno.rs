//! The errno of each error. Errno values exist only at protocol boundaries; this is the only place in this crate.

use tandemfs_device::DeviceError;
use tandemfs_fs::Error;
use tandemfs_wire::Errno;

/// The errno for the kernel. One `match` without `_`: a new error does not compile until it has an errno here.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::NotFound => Errno::ENOENT,
        Error::Exists => Errno::EEXIST,
        Error::NotDirectory => Errno::ENOTDIR,
        Error::IsDirectory => Errno::EISDIR,
        Error::NotEmpty => Errno::ENOTEMPTY,
        Error::NameTooLong => Errno::ENAMETOOLONG,
        Error::InvalidName | Error::InvalidArgument(_) | Error::IntoItself | Error::Label => Errno::EINVAL,
        Error::TooManyLinks => Errno::EMLINK,
        Error::NotPermitted => Errno::EPERM,
        Error::NoData => Errno::ENODATA,
        Error::AttributeNameLength => Errno::ERANGE,
        Error::AttributeTooLarge => Errno::E2BIG,
        Error::NotSupported(_) => Errno::EOPNOTSUPP,
        Error::NotForFiles => Errno::EACCES,
        Error::NoSpace { .. } | Error::AttributesFull => Errno::ENOSPC,
        Error::FileTooLarge => Errno::EFBIG,
        Error::ReadOnly => Errno::EROFS,
        // Not EROFS: programs take EROFS for an administrator's choice, but this is a failure.
        Error::Stopped { .. } => Errno::EIO,
        Error::Stale(_) => Errno::ESTALE,
        // "Structure needs cleaning", as other file systems report damage that fsck has to repair.
        Error::Damaged { .. } => Errno::new(libc::EUCLEAN),
        Error::DamagedData { .. } | Error::LostData { .. } => Errno::EIO,
        Error::Device(device) => device_errno(device),
        // Errors of mounting. They cannot occur on a mounted file system.
        Error::Superblock { .. }
        | Error::Geometry { .. }
        | Error::Truncated { .. }
        | Error::PairMismatch { .. }
        | Error::NotClean { .. }
        | Error::NeedsFeature { .. }
        | Error::StampMismatch { .. }
        | Error::IdentityDamaged { .. } => Errno::EIO,
        // Errors of resizing. They cannot occur on a mounted file system either.
        Error::Shrinks { .. } | Error::BeyondDevice { .. } | Error::NoRoomForMaps { .. } => Errno::EINVAL,
        Error::Occupied { .. } => Errno::EBUSY,
        // No request asks for a layout yet. ENOLCK is what programs get where a file has too many locks or leases.
        Error::TooManyLayouts { .. } => Errno::new(libc::ENOLCK),
        Error::LayoutsHeld { .. } | Error::Unmounting => Errno::EBUSY,
    }
}

fn device_errno(error: &DeviceError) -> Errno {
    match error {
        // If the host disk under a sparse image is full, the file system is full for its user.
        DeviceError::Block { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => Errno::ENOSPC,
        DeviceError::Block { .. } | DeviceError::Poisoned { .. } | DeviceError::OutOfRange { .. } => Errno::EIO,
        DeviceError::Open { .. } => Errno::ENODEV,
        DeviceError::Busy { .. } => Errno::EBUSY,
        DeviceError::Firmware { .. } => Errno::EIO,
    }
}

/// Whether an error is logged. Errors that programs cause and expect are not.
pub(crate) fn is_failure(error: &Error) -> bool {
    matches!(errno(error).code(), libc::EIO | libc::EUCLEAN | libc::ESTALE | libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_format::InodeNumber;

    #[test]
    fn programs_hear_what_they_test_for() {
        for (error, expected) in [
            (Error::NotFound, libc::ENOENT),
            (Error::Exists, libc::EEXIST),
            (Error::NotEmpty, libc::ENOTEMPTY),
            (Error::IntoItself, libc::EINVAL),
            (Error::NoSpace { zone: "block" }, libc::ENOSPC),
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
            assert_eq!(errno(&error).code(), expected, "{error}");
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
        assert_eq!(errno(&failed(libc::ENOSPC)).code(), libc::ENOSPC);
        assert_eq!(errno(&failed(libc::ETIMEDOUT)).code(), libc::EIO);
        assert!(is_failure(&failed(libc::ETIMEDOUT)));
        assert!(!is_failure(&Error::NotFound));
    }
}
