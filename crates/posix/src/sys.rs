//! System calls that no safe crate offers, one function for each.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::CWD;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What O_DIRECT needs on any file system: of addresses, offsets and lengths.
pub(crate) const ALIGNMENT: u64 = 4096;

/// A buffer at an address that O_DIRECT takes.
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT as usize];
        let start = bytes.as_ptr().align_offset(ALIGNMENT as usize);
        Self { bytes, start, length }
    }

    /// With these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer.slice().copy_from_slice(bytes);
        buffer
    }

    pub(crate) fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// A mapping of a file, read and written by bytes and words, each at once.
pub(crate) struct Mapping {
    address: *mut u8,
    length: usize,
}

// SAFETY: memory of the process, whichever thread has it.
unsafe impl Send for Mapping {}
// SAFETY: its bytes are loaded and stored as atomics only; the mapping goes with `&mut self`.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &File, length: usize, shared: bool, writable: bool) -> rustix::io::Result<Self> {
        Self::at(file, 0, length, shared, writable)
    }

    pub(crate) fn at(file: &File, offset: u64, length: usize, shared: bool, writable: bool) -> rustix::io::Result<Self> {
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses the address, so nothing that is in use is mapped over.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, rights, flags, file, offset)? };
        Ok(Self { address: address.cast(), length })
    }

    pub(crate) fn get(&self, from: usize, length: usize) -> Vec<u8> {
        assert!(from + length <= self.length);
        (from..from + length).map(|index| self.byte(index).load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn set(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        for (index, byte) in bytes.iter().enumerate() {
            self.byte(at + index).store(*byte, Ordering::Relaxed);
        }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.length);
        // SAFETY: inside the mapping, which lives as long as `self`; others, and the kernel, change it meanwhile, so it is an atomic.
        unsafe { AtomicU8::from_ptr(self.address.add(at)) }
    }

    /// Eight bytes that are loaded and stored at once.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.length);
        // SAFETY: as above; a mapping begins at a page.
        unsafe { AtomicU64::from_ptr(self.address.add(at).cast()) }
    }

    pub(crate) fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: exactly the mapping; MS_SYNC changes no memory.
        unsafe { rustix::mm::msync(self.address.cast(), self.length, MsyncFlags::SYNC) }
    }

    /// Lets the kernel store bytes, as read(2) does into its buffer: how many there was room for, `EFAULT` where a program would get SIGBUS
    /// at once.
    pub(crate) fn set_by_kernel(&self, at: usize, bytes: &[u8]) -> io::Result<usize> {
        assert!(at + bytes.len() <= self.length);
        let (reader, mut writer) = io::pipe()?;
        let mut stored = 0;
        // A pipe holds more than a page.
        for part in bytes.chunks(ALIGNMENT as usize) {
            io::Write::write_all(&mut writer, part)?;
            // SAFETY: the kernel stores inside the mapping, which the caller made writable, and reports pages that it cannot by EFAULT.
            let result = unsafe { libc::read(reader.as_raw_fd(), self.address.add(at + stored).cast(), part.len()) };
            match usize::try_from(result) {
                Ok(count) => stored += count,
                Err(_) if stored == 0 => return Err(io::Error::last_os_error()),
                Err(_) => break,
            }
            if !stored.is_multiple_of(ALIGNMENT as usize) && stored < bytes.len() {
                break;
            }
        }
        Ok(stored)
    }

    /// Lets the kernel read `length` bytes of the mapping at `from`, as write(2) does with its buffer: `EFAULT` where a program would get
    /// SIGBUS.
    pub(crate) fn probe(&self, from: usize, length: usize) -> io::Result<usize> {
        assert!(from + length <= self.length);
        let (_reader, writer) = io::pipe()?;
        // SAFETY: the kernel reads inside the mapping and reports pages that are not there by EFAULT.
        let result = unsafe { libc::write(writer.as_raw_fd(), self.address.add(from).cast(), length) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; no reference into it exists.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.length) };
    }
}

/// Owner type of a range lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockOwner {
    Process,
    OpenFile,
}

/// Acquires, waits for or releases a lock (`F_RDLCK`, `F_WRLCK`, `F_UNLCK`) on a range.
pub(crate) fn lock(file: &File, owner: LockOwner, kind: libc::c_int, start: i64, length: i64, wait: bool) -> io::Result<()> {
    let command = match (owner, wait) {
        (LockOwner::Process, false) => libc::F_SETLK,
        (LockOwner::Process, true) => libc::F_SETLKW,
        (LockOwner::OpenFile, false) => libc::F_OFD_SETLK,
        (LockOwner::OpenFile, true) => libc::F_OFD_SETLKW,
    };
    let lock = flock_of(kind, start, length);
    // SAFETY: the descriptor is open, the argument a `flock` that lives across the call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) }).map(drop)
}

/// The first conflicting lock: its kind, start and length. `F_UNLCK` if there is none.
pub(crate) fn conflict(file: &File, owner: LockOwner, kind: libc::c_int, start: i64, length: i64) -> io::Result<(libc::c_int, i64, i64)> {
    let command = if owner == LockOwner::Process { libc::F_GETLK } else { libc::F_OFD_GETLK };
    let mut lock = flock_of(kind, start, length);
    // SAFETY: as above; the kernel writes into the `flock`.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok((lock.l_type.into(), lock.l_start, lock.l_len))
}

fn flock_of(kind: libc::c_int, start: i64, length: i64) -> libc::flock {
    libc::flock { l_type: kind as libc::c_short, l_whence: libc::SEEK_SET as libc::c_short, l_start: start, l_len: length, l_pid: 0 }
}

/// Acquires or releases a lease.
pub(crate) fn set_lease(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open, the argument a number.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) }).map(drop)
}

/// The lease that a descriptor has.
pub(crate) fn lease(file: &File) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open, there is no argument.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) })
}

/// Ignores the signal of a broken lease, which would end the process.
pub(crate) fn ignore_lease_signals() {
    // SAFETY: no handler is installed; SIGIO is ignored from here on.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// The result of `name_to_handle_at` for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileHandle {
    kind: i32,
    bytes: Vec<u8>,
}

/// `struct file_handle` with the largest handle behind it.
#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    bytes: [u8; 128],
}

impl FileHandle {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut raw = RawHandle { handle_bytes: 128, handle_type: 0, bytes: [0; 128] };
        let mut mount = 0;
        // SAFETY: `raw` is a file_handle with room for 128 bytes, as its first field says; all pointers live across the call.
        checked(unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut raw).cast(), &raw mut mount, 0) })?;
        Ok(Self { kind: raw.handle_type, bytes: raw.bytes[..raw.handle_bytes as usize].to_vec() })
    }

    pub(crate) fn open(&self, mount: impl AsFd, flags: libc::c_int) -> io::Result<File> {
        let mut raw = RawHandle { handle_bytes: self.bytes.len() as u32, handle_type: self.kind, bytes: [0; 128] };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: as above; the handle says how many of its bytes are meant.
        let opened =
            checked(unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), (&raw mut raw).cast(), flags | libc::O_CLOEXEC) })?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(opened) }))
    }
}

/// Seeks a directory to a cookie (`d_off`), as seekdir(3) does.
pub(crate) fn seek_directory(directory: &OwnedFd, cookie: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    let at = unsafe { libc::lseek(directory.as_raw_fd(), cookie, libc::SEEK_SET) };
    if at < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct mount_attr`
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A mount of a directory that is id-mapped by a user namespace and attached nowhere.
pub(crate) fn id_mapped_mount(directory: &Path, namespace: &File) -> io::Result<OwnedFd> {
    /// `MOUNT_ATTR_IDMAP`
    const ID_MAPPED: u64 = 0x10_0000;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, directory, flags)?;
    let user_namespace = namespace.as_raw_fd().cast_unsigned().into();
    let attributes = MountAttributes { set: ID_MAPPED, clear: 0, propagation: 0, user_namespace };
    let (empty, size) = (c"".as_ptr(), size_of::<MountAttributes>());
    // SAFETY: both descriptors are open; the path ends with a NUL; the structure, of the length that is said, lives across the call.
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, mount.as_raw_fd(), empty, libc::AT_EMPTY_PATH, &raw const attributes, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(mount) }
}

/// Makes a call with a negative offset, which Rust's types do not allow.
pub(crate) fn write_at_raw(file: &File, bytes: &[u8], offset: i64) -> io::Result<usize> {
    // SAFETY: the buffer lives across the call.
    let result = unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// ftruncate(2) with any length.
pub(crate) fn truncate_raw(file: &File, length: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    checked(unsafe { libc::ftruncate(file.as_raw_fd(), length) }).map(drop)
}

/// fallocate(2) with any arguments.
pub(crate) fn allocate_raw(file: &File, mode: libc::c_int, offset: i64, length: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) }).map(drop)
}

/// The length of an extended attribute, asked for without room for it.
pub(crate) fn attribute_size(path: &Path, name: &CStr) -> io::Result<usize> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both names end with a NUL; no buffer is given.
    let size = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// The length of all names of extended attributes, asked for without room for them.
pub(crate) fn attribute_names_size(path: &Path) -> io::Result<usize> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL; no buffer is given.
    let size = unsafe { libc::listxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// Asks an epoll instance of its own to watch a descriptor.
pub(crate) fn epoll_add(file: &File) -> io::Result<()> {
    // SAFETY: no pointer is given.
    let epoll = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: a new descriptor that nobody else owns.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: both descriptors are open; the event lives across the call.
    checked(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, file.as_raw_fd(), &raw mut event) }).map(drop)
}

/// The events for which a descriptor is ready now.
pub(crate) fn poll_now(file: &File, events: libc::c_short) -> io::Result<libc::c_short> {
    let mut asked = libc::pollfd { fd: file.as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry, which lives across the call; it waits for nothing.
    checked(unsafe { libc::poll(&raw mut asked, 1, 0) })?;
    Ok(asked.revents)
}

/// truncate(2) of a path.
pub fn truncate_path(path: &CStr, length: i64) -> io::Result<()> {
    // SAFETY: the path ends with a NUL and lives across the call.
    checked(unsafe { libc::truncate(path.as_ptr(), length) }).map(drop)
}
