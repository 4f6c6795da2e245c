use std::io;

/// Why a device operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A load or store hit memory that cannot be read (an uncorrectable error) or has no backing (a full disk under an image).
    #[error("{device}: memory at byte {offset} failed (uncorrectable error, or no space under an image)")]
    Poisoned {
        /// The device's name.
        device: String,
        /// Offset in the memory zone in bytes, exact to the page.
        offset: u64,
    },
    /// A block command failed, or a store to a device that was opened for reading (EROFS).
    #[error("{device}: {operation} of {length} B at byte {offset} failed: {}", in_words(.source))]
    Block {
        /// The device's name.
        device: String,
        /// "read", "write", "flush", "discard", "store", "move to cache" or "move to flash"; "program" or "reserve" of the flash in an
        /// image.
        operation: &'static str,
        /// Offset in the block zone in bytes (in the memory zone for "store").
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// An access outside the device: a bug of the caller or a damaged pointer.
    #[error("{device}: access of {length} B at byte {offset} is outside its {size} B")]
    OutOfRange {
        /// The device's name.
        device: String,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Size of the zone in bytes.
        size: u64,
    },
    /// The firmware of a drive refused a command.
    #[error("{device}: {command} was refused: {reason}")]
    Firmware {
        /// The device's name.
        device: String,
        /// "COMMIT", "RECOVER", "store", "write" and so on.
        command: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Ranges of the memory zone cannot be mapped.
    #[error("{device}: its memory cannot be mapped: {reason}")]
    Map {
        /// The device's name.
        device: String,
        /// What is wrong.
        reason: String,
    },
    /// The device cannot be opened.
    #[error("{path}: {reason}")]
    Open {
        /// Path as given.
        path: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The device is used by another mount, mkfs or check.
    #[error("{path} is in use by another process (mounted, or being formatted or checked); unmount it first")]
    Busy {
        /// Path as given.
        path: String,
    },
}

/// An error of the kernel without its number.
fn in_words(source: &io::Error) -> String {
    let text = source.to_string();
    text.find(" (os error ").map_or(text.as_str(), |end| &text[..end]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_kernel_are_said_in_words() {
        let source = io::Error::from_raw_os_error(28);
        let error = DeviceError::Block { device: "d".into(), operation: "write", offset: 0, length: 4096, source };
        assert_eq!(error.to_string(), "d: write of 4096 B at byte 0 failed: No space left on device");
    }
}
