//! One operation of a trace, and one name that was there when it began. docs/TRACE.md has the bytes.

use std::borrow::Cow;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident: $number:ty { $($(#[$doc:meta])* $variant:ident = $value:literal $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($number)]
        pub enum $name { $($(#[$doc])* $variant = $value,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// By its number; none for one that a later version has.
            pub fn of(number: $number) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

numbers! {
    /// What was done. Numbers stay.
    Operation: u16 {
        /// A look-up of `name` in the directory `inode`; `value` is what it found.
        Lookup = 1 "lookup",
        /// Attributes of `inode`.
        Getattr = 2 "getattr",
        /// Attributes of `inode` are set: those of `set`.
        Setattr = 3 "setattr",
        /// The target of a symbolic link.
        Readlink = 4 "readlink",
        /// `name` in `inode` becomes a symbolic link to `other_name`; `value` is its inode.
        Symlink = 5 "symlink",
        /// `name` in `inode` becomes a file of `mode`; `value` is its inode.
        Mknod = 6 "mknod",
        /// `name` in `inode` becomes a directory of `mode`; `value` is its inode.
        Mkdir = 7 "mkdir",
        /// `name` in `inode` goes.
        Unlink = 8 "unlink",
        /// The directory `name` in `inode` goes.
        Rmdir = 9 "rmdir",
        /// `name` in `inode` becomes `other_name` in `other`; `flags` as of renameat2(2).
        Rename = 10 "rename",
        /// `other` (by the direct door: `other_name` in `other`) also becomes `name` in `inode`.
        Link = 11 "link",
        /// `inode` is opened with `flags`; by the direct door `name` in `inode`, and `value` is what was opened.
        Open = 12 "open",
        /// `length` bytes at `offset` are read; `value` were.
        Read = 13 "read",
        /// `length` bytes at `offset` are written; `value` were.
        Write = 14 "write",
        /// An open file is closed by its last user.
        Release = 15 "release",
        /// `inode` is made durable; `flags` 1: its data alone.
        Fsync = 16 "fsync",
        /// Extended attribute `other_name` of `inode` becomes `length` bytes; `flags` as of setxattr(2).
        Setxattr = 17 "setxattr",
        /// It is read into `length` bytes; `value` is its length.
        Getxattr = 18 "getxattr",
        /// Names of extended attributes are read.
        Listxattr = 19 "listxattr",
        /// Extended attribute `other_name` of `inode` goes.
        Removexattr = 20 "removexattr",
        /// The directory `inode` is listed from `offset` on.
        Readdir = 21 "readdir",
        /// `name` in `inode` is made with `mode`, if it is not there, and opened with `flags`; `value` is its inode.
        Create = 22 "create",
        /// A file without a name is made in `inode` and opened; `value` is its inode.
        Tmpfile = 23 "tmpfile",
        /// Space of `inode`: `offset`, `length`, and `mode` as of fallocate(2).
        Fallocate = 24 "fallocate",
        /// Data (`flags` 3) or a hole (4) is looked for; `value` is where it is.
        Lseek = 25 "lseek",
        /// `length` bytes at `offset` are copied to `other_offset` of `other`; `value` were.
        CopyRange = 26 "copy_range",
        /// Space of the file system.
        Statfs = 27 "statfs",
        /// May `inode` (or `name` in it) be used as `mode` says?
        Access = 28 "access",
        /// All of the file system is made durable.
        Syncfs = 29 "syncfs",
    }
}

numbers! {
    /// By which way an operation came.
    Door: u8 {
        /// By the kernel.
        Mount = 0 "mount",
        /// By shared memory.
        Direct = 1 "direct",
    }
}

/// Bits of [`Record::set`].
pub mod set {
    /// `mode`.
    pub const MODE: u32 = 1;
    /// The user in the lower half of `other`.
    pub const USER: u32 = 2;
    /// The group in its upper half.
    pub const GROUP: u32 = 4;
    /// `length`, of the file.
    pub const SIZE: u32 = 8;
    /// Time of access, to any time.
    pub const ACCESSED: u32 = 16;
    /// Time of modification, to any time.
    pub const MODIFIED: u32 = 32;
}

/// An operation. What has no meaning for it is 0 or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// What.
    pub operation: Operation,
    /// By which way.
    pub door: Door,
    /// When it began, since the trace did.
    pub started_ns: u64,
    /// How long it took in the daemon.
    pub took_ns: u64,
    /// Who: the thread, as its own process namespace's parent sees it (the daemon's); 0 for the kernel itself, as writeback. By the direct door the process.
    pub thread: u32,
    /// Its user.
    pub user: u32,
    /// Where.
    pub inode: u64,
    /// The other place of what has two.
    pub other: u64,
    /// Offset in `inode`.
    pub offset: u64,
    /// Offset in `other`.
    pub other_offset: u64,
    /// Bytes asked for.
    pub length: u64,
    /// Flags, as of the system call.
    pub flags: u32,
    /// Mode, as of the system call.
    pub mode: u32,
    /// Which attributes are set.
    pub set: u32,
    /// 0, or the error.
    pub errno: u32,
    /// What came out.
    pub value: u64,
    /// A name in `inode`, or a path below it.
    pub name: Cow<'a, [u8]>,
    /// A name in `other`, or a path below it.
    pub other_name: Cow<'a, [u8]>,
}

impl Record<'_> {
    /// An operation on an inode of which nothing else is known yet.
    pub fn new(operation: Operation, door: Door, inode: u64) -> Self {
        Self {
            operation,
            door,
            started_ns: 0,
            took_ns: 0,
            thread: 0,
            user: 0,
            inode,
            other: 0,
            offset: 0,
            other_offset: 0,
            length: 0,
            flags: 0,
            mode: 0,
            set: 0,
            errno: 0,
            value: 0,
            name: Cow::Borrowed(b""),
            other_name: Cow::Borrowed(b""),
        }
    }
}

/// An operation in a file; the names follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordBytes {
    pub(crate) started_ns: U64,
    pub(crate) took_ns: U64,
    pub(crate) inode: U64,
    pub(crate) other: U64,
    pub(crate) offset: U64,
    pub(crate) other_offset: U64,
    pub(crate) length: U64,
    pub(crate) value: U64,
    pub(crate) thread: U32,
    pub(crate) user: U32,
    pub(crate) flags: U32,
    pub(crate) mode: U32,
    pub(crate) set: U32,
    pub(crate) errno: U32,
    pub(crate) operation: U16,
    pub(crate) name_bytes: U16,
    pub(crate) other_name_bytes: U16,
    pub(crate) door: u8,
    pub(crate) zero: u8,
}

const _: () = assert!(size_of::<RecordBytes>() == 96);

/// Longest name of a record: a path.
pub const NAME_BYTES_MAX: usize = 4096;

/// A name, cut to what a record may have.
fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_BYTES_MAX)]
}

impl<'a> Record<'a> {
    /// Bytes that it takes.
    pub fn encoded_bytes(&self) -> usize {
        size_of::<RecordBytes>() + cut(&self.name).len() + cut(&self.other_name).len()
    }

    /// Appends it.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let (name, other_name) = (cut(&self.name), cut(&self.other_name));
        let fixed = RecordBytes {
            started_ns: self.started_ns.into(),
            took_ns: self.took_ns.into(),
            inode: self.inode.into(),
            other: self.other.into(),
            offset: self.offset.into(),
            other_offset: self.other_offset.into(),
            length: self.length.into(),
            value: self.value.into(),
            thread: self.thread.into(),
            user: self.user.into(),
            flags: self.flags.into(),
            mode: self.mode.into(),
            set: self.set.into(),
            errno: self.errno.into(),
            operation: (self.operation as u16).into(),
            name_bytes: (name.len() as u16).into(),
            other_name_bytes: (other_name.len() as u16).into(),
            door: self.door as u8,
            zero: 0,
        };
        into.extend_from_slice(fixed.as_bytes());
        into.extend_from_slice(name);
        into.extend_from_slice(other_name);
    }

    /// The first record of these bytes, and the rest. The record is none where its operation or its way is of a later version.
    ///
    /// # Errors
    /// What is wrong: the bytes end within a record, or are none.
    pub fn decode(bytes: &'a [u8]) -> Result<(Option<Self>, &'a [u8]), &'static str> {
        let (fixed, rest) = RecordBytes::read_from_prefix(bytes).map_err(|_| "an operation is cut off")?;
        let (name, rest) = text(rest, fixed.name_bytes)?;
        let (other_name, rest) = text(rest, fixed.other_name_bytes)?;
        let (Some(operation), Some(door)) = (Operation::of(fixed.operation.get()), Door::of(fixed.door)) else { return Ok((None, rest)) };
        let record = Self {
            operation,
            door,
            started_ns: fixed.started_ns.get(),
            took_ns: fixed.took_ns.get(),
            thread: fixed.thread.get(),
            user: fixed.user.get(),
            inode: fixed.inode.get(),
            other: fixed.other.get(),
            offset: fixed.offset.get(),
            other_offset: fixed.other_offset.get(),
            length: fixed.length.get(),
            flags: fixed.flags.get(),
            mode: fixed.mode.get(),
            set: fixed.set.get(),
            errno: fixed.errno.get(),
            value: fixed.value.get(),
            name: Cow::Borrowed(name),
            other_name: Cow::Borrowed(other_name),
        };
        Ok((Some(record), rest))
    }

    /// The same, with names of its own.
    pub fn into_owned(self) -> Record<'static> {
        let Self {
            operation,
            door,
            started_ns,
            took_ns,
            thread,
            user,
            inode,
            other,
            offset,
            other_offset,
            length,
            flags,
            mode,
            set,
            errno,
            value,
            name,
            other_name,
        } = self;
        let (name, other_name) = (Cow::Owned(name.into_owned()), Cow::Owned(other_name.into_owned()));
        Record {
            operation,
            door,
            started_ns,
            took_ns,
            thread,
            user,
            inode,
            other,
            offset,
            other_offset,
            length,
            flags,
            mode,
            set,
            errno,
            value,
            name,
            other_name,
        }
    }
}

fn text(bytes: &[u8], length: U16) -> Result<(&[u8], &[u8]), &'static str> {
    match usize::from(length.get()) {
        length if length > NAME_BYTES_MAX => Err("a name is longer than any path"),
        length => bytes.split_at_checked(length).ok_or("a name is cut off"),
    }
}

/// A name that was there when the trace began. A file with several names has several of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// What has the name.
    pub inode: u64,
    /// The directory that the name is in; 0 for the root, which has none.
    pub parent: u64,
    /// Length of a regular file.
    pub size: u64,
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// The name.
    pub name: Vec<u8>,
    /// Of a symbolic link.
    pub target: Vec<u8>,
}

/// A name in a file; the name and the target follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KnownBytes {
    pub(crate) inode: U64,
    pub(crate) parent: U64,
    pub(crate) size: U64,
    pub(crate) mode: U32,
    pub(crate) name_bytes: U16,
    pub(crate) target_bytes: U16,
}

const _: () = assert!(size_of::<KnownBytes>() == 32);

impl Known {
    /// Appends it.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let (name, target) = (cut(&self.name), cut(&self.target));
        let fixed = KnownBytes {
            inode: self.inode.into(),
            parent: self.parent.into(),
            size: self.size.into(),
            mode: self.mode.into(),
            name_bytes: (name.len() as u16).into(),
            target_bytes: (target.len() as u16).into(),
        };
        into.extend_from_slice(fixed.as_bytes());
        into.extend_from_slice(name);
        into.extend_from_slice(target);
    }

    /// The first one of these bytes, and the rest.
    ///
    /// # Errors
    /// What is wrong: the bytes end within one, or are none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), &'static str> {
        let (fixed, rest) = KnownBytes::read_from_prefix(bytes).map_err(|_| "a name of the tree is cut off")?;
        let (name, rest) = text(rest, fixed.name_bytes)?;
        let (target, rest) = text(rest, fixed.target_bytes)?;
        let known = Self {
            inode: fixed.inode.get(),
            parent: fixed.parent.get(),
            size: fixed.size.get(),
            mode: fixed.mode.get(),
            name: name.to_vec(),
            target: target.to_vec(),
        };
        Ok((known, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with a value of its own in every field.
    pub(crate) fn full() -> Record<'static> {
        Record {
            started_ns: 1,
            took_ns: 2,
            thread: 3,
            user: 4,
            other: 6,
            offset: 7,
            other_offset: 8,
            length: 9,
            flags: 10,
            mode: 11,
            set: 12,
            errno: 13,
            value: 14,
            name: Cow::Borrowed(b"name"),
            other_name: Cow::Borrowed(b"another"),
            ..Record::new(Operation::Rename, Door::Direct, 5)
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        let mut bytes = Vec::new();
        full().encode(&mut bytes);
        assert_eq!(bytes.len(), full().encoded_bytes());
        Record::new(Operation::Statfs, Door::Mount, 1).encode(&mut bytes);
        let (first, rest) = Record::decode(&bytes).expect("whole");
        assert_eq!(first.map(Record::into_owned), Some(full()));
        let (second, rest) = Record::decode(rest).expect("whole");
        assert_eq!((second, rest.len()), (Some(Record::new(Operation::Statfs, Door::Mount, 1)), 0));
        for cut in [0, 1, 95, 96, full().encoded_bytes() - 1] {
            assert!(Record::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn operations_of_later_versions_are_passed_over() {
        let mut bytes = Vec::new();
        full().encode(&mut bytes);
        let at = std::mem::offset_of!(RecordBytes, operation);
        bytes[at..at + 2].copy_from_slice(&999_u16.to_le_bytes());
        Record::new(Operation::Read, Door::Mount, 1).encode(&mut bytes);
        let (none, rest) = Record::decode(&bytes).expect("whole");
        assert_eq!(none, None);
        assert_eq!(Record::decode(rest).expect("whole").0.map(|record| record.operation), Some(Operation::Read));
        for operation in Operation::ALL {
            assert_eq!(Operation::of(*operation as u16), Some(*operation));
        }
    }

    #[test]
    fn names_that_are_too_long_are_cut_or_refused() {
        let long = Record { name: Cow::Owned(vec![b'x'; 5000]), ..full() };
        let mut bytes = Vec::new();
        long.encode(&mut bytes);
        assert_eq!(Record::decode(&bytes).expect("whole").0.expect("known").name.len(), NAME_BYTES_MAX);
        let at = std::mem::offset_of!(RecordBytes, name_bytes);
        bytes[at..at + 2].copy_from_slice(&4097_u16.to_le_bytes());
        assert!(Record::decode(&bytes).is_err());
    }

    #[test]
    fn known_names_come_back_as_they_were() {
        let known = Known { inode: 1, parent: 2, size: 3, mode: 0o120_777, name: b"link".to_vec(), target: b"to/this".to_vec() };
        let mut bytes = Vec::new();
        known.encode(&mut bytes);
        assert_eq!(Known::decode(&bytes), Ok((known, [].as_slice())));
        assert!(Known::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    /// The tables of docs/TRACE.md have each field at its offset.
    #[test]
    fn the_document_has_every_field_and_operation() {
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/TRACE.md")).expect("docs/TRACE.md");
        macro_rules! rows {
            ($structure:ident: $($field:ident $bytes:literal),*) => {
                $(
                    let row = format!("| {} | {} | `{}` |", std::mem::offset_of!($structure, $field), $bytes, stringify!($field));
                    assert!(document.contains(&row), "docs/TRACE.md lacks {row}");
                )*
            };
        }
        rows!(RecordBytes: started_ns 8, took_ns 8, inode 8, other 8, offset 8, other_offset 8, length 8, value 8, thread 4, user 4, flags 4, mode 4,
            set 4, errno 4, operation 2, name_bytes 2, other_name_bytes 2, door 1, zero 1);
        rows!(KnownBytes: inode 8, parent 8, size 8, mode 4, name_bytes 2, target_bytes 2);
        for operation in Operation::ALL {
            let row = format!("| {} | `{}` |", *operation as u16, operation.name());
            assert!(document.contains(&row), "docs/TRACE.md lacks {row}");
        }
    }
}
