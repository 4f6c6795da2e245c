//! Whether files in memory can be mapped with huge pages: an image of a drive, and a file as the memory half of a pair.
//!
//! A tmpfs takes huge pages as its own mount option `huge=` says. The machine's `shmem_enabled` is about memory that is mounted nowhere; of its
//! words only `deny` and `force` apply to mounts (Linux, admin-guide/mm/transhuge). The device is mapped without madvise(2).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

/// The type of a tmpfs in statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// Why a file in memory is mapped with pages of 4 KiB alone, and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasePagesOnly {
    /// A sentence without its subject: what the place is.
    pub why: String,
    /// Commands.
    pub advice: &'static str,
}

/// Whether the place of a file gives base pages only. `read` reads a file of the machine. `None` where it can give huge pages, and for file
/// systems on disks: whether these do is up to the kernel and to what they hold.
pub fn base_pages_only(path: &Path, read: impl Fn(&str) -> Option<String>) -> Option<BasePagesOnly> {
    if !rustix::fs::statfs(path).is_ok_and(|of| of.f_type == TMPFS) {
        return None;
    }
    let device = fs::metadata(path).ok()?.dev();
    let mounts = read("/proc/self/mountinfo")?;
    let options = options_of(&mounts, &format!("{}:{}", major(device), minor(device)))?;
    let huge = options.split(',').find_map(|option| option.strip_prefix("huge="));
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    judged(huge, setting.as_deref().and_then(chosen))
}

/// By the option `huge=` of the mount, which is listed where it is not `never`, and the word chosen in `shmem_enabled`.
fn judged(huge: Option<&str>, setting: Option<&str>) -> Option<BasePagesOnly> {
    let found = |why: String, advice| Some(BasePagesOnly { why, advice });
    match (huge, setting) {
        (_, None) => found("is in a tmpfs, and the kernel has no huge pages for it".to_owned(), "use a kernel with transparent huge pages"),
        (_, Some("deny")) => found(
            "is in a tmpfs, and shmem_enabled is 'deny'".to_owned(),
            "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled, mount the tmpfs with huge=always, and make the file anew",
        ),
        (_, Some("force")) | (Some("always" | "within_size"), _) => None,
        (huge, _) => found(
            format!("is in a tmpfs mounted with huge={}", huge.unwrap_or("never")),
            "mount -o remount,huge=always DIR, and make the file anew: pages that it has stay as they are",
        ),
    }
}

/// The options of the file system with a device number, of the lines of `/proc/self/mountinfo`.
fn options_of<'t>(mounts: &'t str, number: &str) -> Option<&'t str> {
    let of_it = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    of_it.split_once(" - ")?.1.split(' ').nth(2)
}

/// The word in brackets.
fn chosen(setting: &str) -> Option<&str> {
    setting.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_of_the_mount_decides_unless_the_machine_denies_or_forces() {
        let has_none = |huge, setting| judged(huge, setting).is_some();
        for setting in ["always", "within_size", "advise", "never"] {
            assert!(!has_none(Some("always"), Some(setting)) && !has_none(Some("within_size"), Some(setting)), "{setting}");
            assert!(has_none(None, Some(setting)) && has_none(Some("advise"), Some(setting)), "{setting}");
        }
        assert!(has_none(Some("always"), Some("deny")) && !has_none(None, Some("force")));
        assert!(has_none(Some("always"), None), "a kernel without huge pages");
        let of = |huge| judged(huge, Some("never")).expect("none").why;
        assert!(of(None).ends_with("huge=never") && of(Some("advise")).ends_with("huge=advise"));
    }

    #[test]
    fn settings_of_the_kernel_are_read() {
        let mounts = "24 1 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=64k\n\
                      67 24 0:40 /a /mnt/a\\040b rw shared:1 master:2 - tmpfs t rw,size=65536k,huge=always,inode64\n";
        assert_eq!(options_of(mounts, "0:40"), Some("rw,size=65536k,huge=always,inode64"));
        assert_eq!((options_of(mounts, "0:23"), options_of(mounts, "0:4")), (Some("rw,size=64k"), None));
        assert_eq!((chosen("always [never] deny"), chosen("never")), (Some("never"), None));
    }
}
