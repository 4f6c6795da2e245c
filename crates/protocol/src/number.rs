//! Numbers of operations.

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Which operation a request is. A number is never used again for another operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Number {
            $($(#[$doc])* $name = $number,)*
        }

        impl Number {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The operation of a number.
            pub fn of(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    /// Nothing; for measurements, and to see whether the daemon is there.
    Nothing = 1,
    /// openat(2).
    Open = 2,
    /// close(2).
    Close = 3,
    /// pread(2).
    Read = 4,
    /// pwritev2(2).
    Write = 5,
    /// fstatat(2), fstat(2), statx(2).
    Stat = 6,
    /// faccessat2(2).
    Access = 7,
    /// unlinkat(2).
    Unlink = 8,
    /// unlinkat(2) with AT_REMOVEDIR.
    RemoveDirectory = 9,
    /// mkdirat(2).
    MakeDirectory = 10,
    /// mknodat(2).
    MakeNode = 11,
    /// symlinkat(2).
    MakeLink = 12,
    /// linkat(2).
    Link = 13,
    /// readlinkat(2).
    ReadLink = 14,
    /// renameat2(2).
    Rename = 15,
    /// getdents64(2).
    ReadDirectory = 16,
    /// truncate(2), ftruncate(2).
    Truncate = 17,
    /// fallocate(2).
    Allocate = 18,
    /// fsync(2), fdatasync(2).
    Sync = 19,
    /// copy_file_range(2).
    CopyRange = 20,
    /// lseek(2) with SEEK_DATA, SEEK_HOLE.
    Seek = 21,
    /// fchmodat(2), fchmod(2).
    ChangeMode = 22,
    /// fchownat(2), fchown(2).
    ChangeOwner = 23,
    /// utimensat(2).
    SetTimes = 24,
    /// getxattr(2).
    GetAttribute = 25,
    /// setxattr(2).
    SetAttribute = 26,
    /// listxattr(2).
    ListAttributes = 27,
    /// removexattr(2).
    RemoveAttribute = 28,
    /// statfs(2).
    FileSystemSpace = 29,
    /// syncfs(2).
    SyncFileSystem = 30,
    /// fcntl(2) with F_SETFL.
    SetFlags = 31,
    /// An open file as a descriptor of the mount, which comes by the socket.
    Descriptor = 32,
    /// Where bytes of an open file lie in the memory zone, for loads.
    Lend = 33,
    /// mmap(2) of an open file, for loads.
    Map = 34,
    /// munmap(2).
    Unmap = 35,
    /// Blocks of an open file in the memory zone, for stores under a lease.
    LendStores = 36,
    /// Such a lease is given back.
    ReturnStores = 37,
    /// mmap(2) of an open file, for loads and stores, by a description of the memory zone that comes by the socket.
    MapForStores = 40,
    /// As Stat, with answers about further names of the directory.
    StatAhead = 41,
    /// The end of an open file in the memory zone, for appends under a lease.
    LendTail = 42,
    /// How far appends count under a lease that was taken away.
    Appended = 43,
}

impl Number {
    /// All operations as a set of bits, for the greeting.
    pub fn all_bits() -> u64 {
        Self::ALL.iter().fold(0, |bits, number| bits | number.bit())
    }

    /// Its bit in that set.
    pub fn bit(self) -> u64 {
        1 << self as u16
    }
}
