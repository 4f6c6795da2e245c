//! Flags of system calls as arguments of the file system, for every way to it.

use tandemfs_fs::{AllocateMode, RenameMode};

/// The mode of fallocate(2) with these flags; `None` if the file system does not support them.
pub fn allocate_mode(flags: u32) -> Option<AllocateMode> {
    let flags = flags.cast_signed();
    let keep_size = flags & libc::FALLOC_FL_KEEP_SIZE != 0;
    match flags & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(AllocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(AllocateMode::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Some(AllocateMode::Zero { keep_size }),
        _ => None,
    }
}

/// The mode of renameat2(2) with these flags, RENAME_WHITEOUT aside; `None` if they do not go together.
pub fn rename_mode(flags: u32) -> Option<RenameMode> {
    match flags {
        0 => Some(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rename_knows_two_flags_and_refuses_the_rest() {
        assert_eq!(rename_mode(0), Some(RenameMode::Replace));
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE), Some(RenameMode::NoReplace));
        assert_eq!(rename_mode(libc::RENAME_EXCHANGE), Some(RenameMode::Exchange));
        assert_eq!(rename_mode(1 << 20), None);
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), None);
    }

    #[test]
    fn allocation_knows_five_combinations_and_refuses_the_rest() {
        let allocate_mode = |flags: i32| super::allocate_mode(flags.cast_unsigned());
        let (keep, punch, zero) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        assert_eq!(allocate_mode(0), Some(AllocateMode::Allocate { keep_size: false }));
        assert_eq!(allocate_mode(keep), Some(AllocateMode::Allocate { keep_size: true }));
        assert_eq!(allocate_mode(punch | keep), Some(AllocateMode::Punch));
        assert_eq!(allocate_mode(zero), Some(AllocateMode::Zero { keep_size: false }));
        assert_eq!(allocate_mode(zero | keep), Some(AllocateMode::Zero { keep_size: true }));
        for refused in
            [punch, punch | zero | keep, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE]
        {
            assert_eq!(allocate_mode(refused), None, "{refused:#x}");
        }
    }
}
