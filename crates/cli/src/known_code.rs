//! The table in which processes under `tandemfs run` keep what they found in programs and libraries, so that each is looked through once for a
//! user (`crates/preload/src/code/known.rs`).

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, ftruncate, open};

/// Room for 8192 objects.
const BYTES: u64 = 64 << 10;

/// Where a user may have it, in order of preference.
fn places(user: u32) -> Vec<PathBuf> {
    match user {
        0 => vec!["/run/tandemfs-code".into(), "/tmp/tandemfs-code-0".into()],
        user => vec![format!("/run/user/{user}/tandemfs-code").into(), format!("/tmp/tandemfs-code-{user}").into()],
    }
}

/// The table, which is made if there is none; none if it cannot be: then each process looks for itself.
pub fn table() -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    places(user).into_iter().find(|place| is_ready(place, user))
}

fn is_ready(place: &Path, user: u32) -> bool {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let own = Mode::RUSR | Mode::WUSR;
    let Ok(file) = open(place, flags, own) else { return false };
    let file = file.as_fd();
    let Ok(found) = fstat(file) else { return false };
    let is_own = FileType::from_raw_mode(found.st_mode).is_file() && found.st_uid == user && fchmod(file, own).is_ok();
    is_own && (found.st_size as u64 >= BYTES || ftruncate(file, BYTES).is_ok())
}

#[cfg(test)]
mod tests {
    use super::{BYTES, is_ready};

    #[test]
    fn a_table_is_a_file_of_its_user() {
        let directory = tempfile::tempdir().expect("made");
        let (place, user) = (directory.path().join("table"), rustix::process::geteuid().as_raw());
        assert!(is_ready(&place, user));
        std::fs::write(&place, vec![1; 2 * BYTES as usize]).expect("written");
        assert!(is_ready(&place, user) && std::fs::metadata(&place).expect("there").len() == 2 * BYTES, "what is there stays");
        assert!(!is_ready(&place, user + 1));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&place, &link).expect("made");
        assert!(!is_ready(&link, user) && !is_ready(&directory.path().join("none/table"), user));
    }
}
