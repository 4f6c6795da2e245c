//! Negotiation by INIT, the first request: the file system states what it wants, the kernel what it offers.
//!
//! [NE1] Nothing is agreed that the kernel does not offer; of two sizes the smaller one is agreed.
//! [NE2] This crate adds the flags that it needs itself (`BIG_WRITES`, `MAX_PAGES`, `INIT_EXT`). The session adds `OVER_IO_URING` once its
//!       rings exist. `PASSTHROUGH` is not supported and never agreed.
//! [NE3] A kernel of another major version is treated as the protocol defines: a newer kernel gets our version and asks again.
//! [NE4] `ALLOW_IDMAP` is not agreed where the session itself must know who calls ([`crate::Options::only_root_and`]).

use std::fmt;
use std::ops::{BitOr, BitOrAssign, Sub};

use crate::abi::{self, InitOut};
use crate::request::{Dialect, Init};

/// Smallest WRITE limit that can be agreed.
const MAX_WRITE_MIN: u32 = 4096;
/// Most pages of a request if the kernel does not support `MAX_PAGES`.
const PAGES_DEFAULT: usize = 32;

/// Flags of INIT (both words): features of the kernel or the file system.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct InitFlags(u64);

macro_rules! flags {
    ($($(#[$about:meta])* $name:ident = $bit:literal),* $(,)?) => {
        impl InitFlags {
            $($(#[$about])* pub const $name: Self = Self(1 << $bit);)*
        }
        const NAMES: &[(u32, &str)] = &[$(($bit, stringify!($name))),*];
    };
}

flags! {
    /// Concurrent reads of the same file.
    ASYNC_READ = 0,
    /// The file system handles POSIX locks.
    POSIX_LOCKS = 1,
    /// OPEN carries O_TRUNC.
    ATOMIC_O_TRUNC = 3,
    /// Lookups of `.` and `..` by number: file handles, and so NFS.
    EXPORT_SUPPORT = 4,
    /// Writes of more than a page. Added by this crate.
    BIG_WRITES = 5,
    /// The file system applies the umask.
    DONT_MASK = 6,
    /// The kernel can splice from the device.
    SPLICE_WRITE = 7,
    /// The kernel can move pages.
    SPLICE_MOVE = 8,
    /// The kernel can splice to the device.
    SPLICE_READ = 9,
    /// The file system handles BSD locks.
    FLOCK_LOCKS = 10,
    /// Ioctls on directories.
    HAS_IOCTL_DIR = 11,
    /// The kernel drops pages when attributes show that a file has changed.
    AUTO_INVAL_DATA = 12,
    /// READDIRPLUS.
    DO_READDIRPLUS = 13,
    /// READDIRPLUS only where it is useful.
    READDIRPLUS_AUTO = 14,
    /// A direct I/O call may be sent as several concurrent requests.
    ASYNC_DIO = 15,
    /// The kernel keeps dirty pages until writeback.
    WRITEBACK_CACHE = 16,
    /// After ENOSYS to OPEN the kernel sends no more OPENs.
    NO_OPEN_SUPPORT = 17,
    /// Concurrent lookups and readdir in a directory.
    PARALLEL_DIROPS = 18,
    /// The file system clears set-id bits, by the old rules.
    HANDLE_KILLPRIV = 19,
    /// Access control lists, checked by the kernel.
    POSIX_ACL = 20,
    /// ECONNABORTED after an abort.
    ABORT_ERROR = 21,
    /// The reply to INIT has the number of pages. Added by this crate.
    MAX_PAGES = 22,
    /// The kernel caches targets of symbolic links.
    CACHE_SYMLINKS = 23,
    /// After ENOSYS to OPENDIR the kernel sends no more OPENDIRs.
    NO_OPENDIR_SUPPORT = 24,
    /// The kernel drops pages only on notification.
    EXPLICIT_INVAL_DATA = 25,
    /// The reply to INIT has the alignment of mappings.
    MAP_ALIGNMENT = 26,
    /// Submounts.
    SUBMOUNTS = 27,
    /// The file system clears set-id bits where the kernel marks a request (7.33).
    HANDLE_KILLPRIV_V2 = 28,
    /// SETXATTR has a field of extra flags (7.33).
    SETXATTR_EXT = 29,
    /// There is a second word of flags (7.36). Added by this crate.
    INIT_EXT = 30,
    /// Requests that create an inode carry a security context (7.36).
    SECURITY_CTX = 32,
    /// DAX for individual inodes (7.36).
    HAS_INODE_DAX = 33,
    /// Requests that create an inode carry a group (7.38).
    CREATE_SUPP_GROUP = 34,
    /// Entries can be expired (7.38).
    HAS_EXPIRE_ONLY = 35,
    /// Shared mappings of files that are open for direct I/O (7.39).
    DIRECT_IO_ALLOW_MMAP = 36,
    /// Passthrough to backing files (7.40). Not supported by this crate.
    PASSTHROUGH = 37,
    /// No file handles at all (7.40).
    NO_EXPORT_SUPPORT = 38,
    /// The kernel can resend requests (7.40).
    HAS_RESEND = 39,
    /// Id-mapped mounts (7.41). The mount needs `default_permissions` or `POSIX_ACL`, or the kernel ends the connection. Requests then have
    /// no ids of their caller, on any mount ([`crate::Request::caller`]). Not agreed with [`crate::Options::only_root_and`].
    ALLOW_IDMAP = 40,
    /// Requests over io_uring (7.42). Wanted by [`crate::Options::ring`].
    OVER_IO_URING = 41,
    /// The kernel aborts the connection if a request takes too long (7.43).
    REQUEST_TIMEOUT = 42,
}

impl InitFlags {
    /// No flags.
    pub const NONE: Self = Self(0);

    /// The flags from the two words of the protocol.
    pub const fn from_words(low: u32, high: u32) -> Self {
        Self(low as u64 | (high as u64) << 32)
    }

    /// The two words of the protocol.
    pub const fn words(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }

    /// Whether all of these are set.
    pub const fn contains(self, all: Self) -> bool {
        self.0 & all.0 == all.0
    }

    /// Whether none is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The flags that both have.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for InitFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for InitFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl Sub for InitFlags {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl FromIterator<Self> for InitFlags {
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        all.into_iter().fold(Self::NONE, |all, flag| all | flag)
    }
}

impl fmt::Debug for InitFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = formatter.debug_list();
        for bit in (0..u64::BITS).filter(|bit| self.0 >> bit & 1 == 1) {
            match NAMES.iter().find(|(known, _)| *known == bit) {
                Some((_, name)) => list.entry(&format_args!("{name}")),
                None => list.entry(&format_args!("1 << {bit}")),
            };
        }
        list.finish()
    }
}

/// The wishes of a file system. [`Wanted::default`] has sizes that suit most, and no flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Wanted flags; those that the kernel lacks go to [`Agreed::missing`].
    pub flags: InitFlags,
    /// Largest WRITE in bytes, at least 4,096.
    pub max_write: u32,
    /// Largest READ, WRITE or READDIR in pages; `None` = what `max_write` needs. The kernel's own limit is `fs.fuse.max_pages_limit`.
    pub max_pages: Option<u16>,
    /// Most bytes of read-ahead.
    pub max_readahead: u32,
    /// Most concurrent background requests (read-ahead, writeback and others).
    pub max_background: u16,
    /// The number of background requests that counts as congestion; `None` = three quarters.
    pub congestion_threshold: Option<u16>,
    /// Granularity of timestamps in nanoseconds: a power of ten up to 1,000,000,000.
    pub time_granularity_ns: u32,
    /// How many file systems may be stacked on this one.
    pub max_stack_depth: u32,
    /// With `REQUEST_TIMEOUT`: seconds after which the kernel aborts the connection because of an unanswered request.
    pub request_timeout_s: u16,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            flags: InitFlags::NONE,
            max_write: 1 << 20,
            max_pages: None,
            max_readahead: 128 << 10,
            max_background: 12,
            congestion_threshold: None,
            time_granularity_ns: 1,
            max_stack_depth: 0,
            request_timeout_s: 0,
        }
    }
}

/// The result of the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The minor version in use.
    pub minor: u32,
    /// All flags that the kernel offered.
    pub offered: InitFlags,
    /// The agreed flags.
    pub flags: InitFlags,
    /// Flags that were wanted but not offered.
    pub missing: InitFlags,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest request in pages.
    pub max_pages: u16,
    /// Most bytes of read-ahead.
    pub max_readahead: u32,
    /// Most concurrent background requests.
    pub max_background: u16,
    /// The number of background requests that counts as congestion.
    pub congestion_threshold: u16,
    /// Granularity of timestamps in nanoseconds.
    pub time_granularity_ns: u32,
    /// How many file systems may be stacked on this one.
    pub max_stack_depth: u32,
    /// Seconds after which the kernel aborts because of an unanswered request; 0 = never.
    pub request_timeout_s: u16,
}

/// Why the negotiation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disagreement {
    /// The kernel has a newer major version and asks again once it knows ours ([NE3]).
    AskAgain,
    /// The kernel is older than Linux 5.2.
    TooOld { major: u32, minor: u32 },
}

impl Agreed {
    pub(crate) fn on(offer: &Init, wanted: &Wanted) -> Result<Self, Disagreement> {
        if offer.major > abi::MAJOR {
            return Err(Disagreement::AskAgain);
        }
        if offer.major < abi::MAJOR || offer.minor < abi::MINOR_MIN {
            return Err(Disagreement::TooOld { major: offer.major, minor: offer.minor });
        }
        let spoken = InitFlags::BIG_WRITES | InitFlags::MAX_PAGES | InitFlags::INIT_EXT; // [NE2]
        let mine = InitFlags::OVER_IO_URING | InitFlags::PASSTHROUGH | spoken;
        let mut offered = offer.flags;
        if offer.minor < 38 {
            offered = offered - InitFlags::SECURITY_CTX; // before 7.38 the header has no length of extensions
        }
        let max_write = wanted.max_write.max(MAX_WRITE_MIN);
        let flags = ((wanted.flags - mine) | spoken).and(offered);
        let max_background = wanted.max_background.max(1);
        Ok(Self {
            minor: offer.minor.min(abi::MINOR),
            offered: offer.flags,
            flags,
            missing: wanted.flags - mine - offered,
            max_write,
            max_pages: wanted.max_pages.unwrap_or_else(|| pages(max_write)).max(1),
            max_readahead: wanted.max_readahead.min(offer.max_readahead),
            max_background,
            congestion_threshold: wanted.congestion_threshold.unwrap_or(max_background.div_ceil(4) * 3).clamp(1, max_background),
            time_granularity_ns: granularity(wanted.time_granularity_ns),
            max_stack_depth: wanted.max_stack_depth,
            request_timeout_s: if flags.contains(InitFlags::REQUEST_TIMEOUT) { wanted.request_timeout_s } else { 0 },
        })
    }

    /// The reply to INIT.
    pub(crate) fn reply(&self) -> InitOut {
        let (flags, flags2) = self.flags.words();
        InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            max_readahead: self.max_readahead,
            flags,
            max_background: self.max_background,
            congestion_threshold: self.congestion_threshold,
            max_write: self.max_write,
            time_gran: self.time_granularity_ns,
            max_pages: self.max_pages,
            flags2,
            max_stack_depth: self.max_stack_depth,
            request_timeout: self.request_timeout_s,
            ..InitOut::default()
        }
    }

    /// How requests must be parsed from now on.
    pub fn dialect(&self) -> Dialect {
        let has = |flag| self.flags.contains(flag);
        Dialect { setxattr_ext: has(InitFlags::SETXATTR_EXT), allow_idmap: has(InitFlags::ALLOW_IDMAP) }
    }

    /// Largest reply without its header: no request asks for more.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        let pages = if self.flags.contains(InitFlags::MAX_PAGES) { usize::from(self.max_pages) } else { PAGES_DEFAULT };
        (pages * rustix::param::page_size()).max(self.max_write as usize).max(abi::MIN_READ_BUFFER)
    }
}

fn pages(bytes: u32) -> u16 {
    let pages = (bytes as usize).div_ceil(rustix::param::page_size());
    u16::try_from(pages).unwrap_or(u16::MAX)
}

/// The largest power of ten that is not above the wish.
fn granularity(wanted_ns: u32) -> u32 {
    10_u32.pow(wanted_ns.clamp(1, 1_000_000_000).ilog10())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: InitFlags) -> Init {
        Init { major: 7, minor, max_readahead: 128 << 10, flags }
    }

    #[test]
    fn nothing_is_agreed_on_that_is_not_offered() {
        let offered = InitFlags::BIG_WRITES | InitFlags::MAX_PAGES | InitFlags::INIT_EXT | InitFlags::POSIX_ACL | InitFlags::ALLOW_IDMAP;
        let flags = InitFlags::POSIX_ACL | InitFlags::WRITEBACK_CACHE | InitFlags::ALLOW_IDMAP | InitFlags::HAS_RESEND;
        let wanted = Wanted { flags, max_readahead: 1 << 20, ..Wanted::default() };
        let agreed = Agreed::on(&offer(45, offered), &wanted).expect("agreed");
        assert_eq!(agreed.flags, offered);
        assert_eq!(agreed.missing, InitFlags::WRITEBACK_CACHE | InitFlags::HAS_RESEND);
        assert_eq!((agreed.max_readahead, agreed.max_pages, agreed.minor), (128 << 10, 256, 45));
        let reply = agreed.reply();
        assert_eq!((reply.flags, reply.flags2), (1 << 5 | 1 << 20 | 1 << 22 | 1 << 30, 1 << 8));
        assert_eq!(agreed.reply_bytes_max(), 1 << 20);
    }

    #[test]
    fn without_pages_the_kernels_old_limit_holds() {
        let agreed = Agreed::on(&offer(31, InitFlags::NONE), &Wanted { max_write: 4096, ..Wanted::default() }).expect("agreed");
        assert_eq!((agreed.reply_bytes_max(), agreed.flags, agreed.minor), (128 << 10, InitFlags::NONE, 31));
    }

    #[test]
    fn values_that_the_kernel_would_refuse_are_mended() {
        let wanted = Wanted {
            max_write: 1,
            max_pages: Some(0),
            max_background: 0,
            congestion_threshold: Some(99),
            time_granularity_ns: 999,
            flags: InitFlags::PASSTHROUGH | InitFlags::OVER_IO_URING,
            ..Wanted::default()
        };
        let agreed = Agreed::on(&offer(45, InitFlags::from_words(u32::MAX, u32::MAX)), &wanted).expect("agreed");
        assert_eq!((agreed.max_write, agreed.max_pages, agreed.max_background, agreed.congestion_threshold), (4096, 1, 1, 1));
        assert_eq!(agreed.time_granularity_ns, 100);
        assert!(agreed.flags.and(InitFlags::PASSTHROUGH | InitFlags::OVER_IO_URING).is_empty(), "{:?}", agreed.flags);
    }

    #[test]
    fn versions_that_are_not_spoken_are_told_apart() {
        let newer = Init { major: 8, minor: 0, max_readahead: 0, flags: InitFlags::NONE };
        assert_eq!(Agreed::on(&newer, &Wanted::default()), Err(Disagreement::AskAgain));
        let older = offer(30, InitFlags::NONE);
        assert_eq!(Agreed::on(&older, &Wanted::default()), Err(Disagreement::TooOld { major: 7, minor: 30 }));
        let later = Agreed::on(&offer(99, InitFlags::NONE), &Wanted::default()).expect("agreed");
        assert_eq!(later.minor, abi::MINOR);
    }
}
