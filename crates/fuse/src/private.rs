//! Mounts that only root and the user who mounted them may enter (`allow_root`). The kernel knows no such mounts: it lets everybody in, and the daemon
//! answers `EACCES` to requests of others (`wire/src/serving.rs`), but for those on files that are open. So the kernel has to ask for whatever others must not
//! have.
//!
//! [PRI1] OPEN and OPENDIR are answered, and never by ENOSYS: after that the kernel opens by itself, also for others, whose reads are then served as those of
//!        an open file, or by its caches. Entries of directories are not cached.
//! [PRI2] Attributes of directories have no validity. A way to a name goes through its directory, for which the kernel checks the right to search anew each
//!        time, also for the last name of a path and for `..`; and that check needs attributes. So whoever walks anywhere in the mount asks for those of the
//!        directory where he begins, with his own ids, and is refused there, at the root of the mount or of a bind mount of one of its directories, before any
//!        name is looked up.
//! [PRI3] So names and attributes of other inodes may be cached as elsewhere: nobody gets to them without a directory of the mount but by a descriptor that he
//!        was given, and by a file that was bind-mounted by itself, whose attributes are then seen. And a refused look-up would take the name out of the kernel's
//!        cache, and with it what is mounted there; a refused GETATTR takes nothing.

use std::time::Duration;

use tandemfs_format::inode::file_type;

use crate::mutant::{self, Mutant};

/// Whether only root and the user who mounted may enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Private(pub(crate) bool);

impl Private {
    /// Whether opening needs an answer ([PRI1]).
    pub(crate) fn checks_opens(self) -> bool {
        self.0 && !mutant::on(Mutant::OpensUnchecked)
    }

    /// How long attributes of an inode of this mode may be cached that could be for so long elsewhere ([PRI2]).
    pub(crate) fn valid(self, mode: u16, elsewhere: Duration) -> Duration {
        let is_directory = mode & file_type::MASK == file_type::DIRECTORY;
        if self.0 && is_directory && !mutant::on(Mutant::WaysUnchecked) { Duration::ZERO } else { elsewhere }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    const HOUR: Duration = Duration::from_secs(3600);

    fn opens_are_answered() {
        assert!(Private(true).checks_opens() && !Private(false).checks_opens());
    }

    fn directories_are_asked_for_each_time() {
        let of = |is_private| [file_type::DIRECTORY | 0o755, file_type::REGULAR | 0o644].map(|mode| Private(is_private).valid(mode, HOUR));
        assert_eq!((of(true), of(false)), ([Duration::ZERO, HOUR], [HOUR; 2]));
    }

    #[test]
    fn entrants_and_their_bugs() {
        is_caught(Mutant::OpensUnchecked, opens_are_answered);
        is_caught(Mutant::WaysUnchecked, directories_are_asked_for_each_time);
    }
}
