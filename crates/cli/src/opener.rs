//! The process that opens files by the mount for clients of the direct door, and sends them.
//!
//! A daemon must not wait for its own mount, nor hold a file of it: killed in such a moment it could not end, since its end closes what it has
//! open, and that waits for the daemon ([DSC1] of `crates/direct`). So the daemon starts itself once more, under the name [`NAME`], when the
//! first client wants a descriptor. That process has no descriptor but its socket to the daemon, on standard input, and ends with it.
//!
//! A request is node, generation, flags and handle, with a copy of the client's socket; the descriptor goes straight to that socket, in a
//! message that is the handle, and the answer is an errno, 0 for none. Files are opened by number (`open_by_handle_at`), which needs no name and
//! CAP_DAC_READ_SEARCH.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};
use tandemfs_direct::{MountIdentity, Opener, Wanted};
use tandemfs_format::InodeNumber;
use tandemfs_fuse::mounts;

use crate::inherited;

/// The name by which this program is that process.
pub const NAME: &str = "tandemfs-opener";

const REQUEST_BYTES: usize = 24;
const ANSWER_BYTES: usize = 4;
/// How long opening may take: a lookup and an open of the mount.
const PATIENCE: Duration = Duration::from_secs(5);
/// CAP_DAC_READ_SEARCH.
const READ_SEARCH: u32 = 2;

/// What a client gets from this daemon; none if this process may not open files by number.
pub fn opener(mount: &MountIdentity) -> Option<Opener> {
    if !may_open_by_number(&std::fs::read_to_string("/proc/self/status").ok()?, &std::fs::read_to_string("/proc/self/uid_map").ok()?) {
        return None;
    }
    let desk = Desk { mountpoint: mount.mountpoint.clone(), device: (mount.major, mount.minor), helper: Mutex::default() };
    Some(Box::new(move |wanted, client| desk.send(wanted, client)))
}

/// Whether a process has the capability, and has it on the whole machine.
fn may_open_by_number(status: &str, user_map: &str) -> bool {
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let whole = user_map.split_whitespace().eq(["0", "0", "4294967295"]);
    effective.is_some_and(|capabilities| capabilities >> READ_SEARCH & 1 == 1) && whole
}

/// The daemon's side.
struct Desk {
    mountpoint: PathBuf,
    device: (u32, u32),
    helper: Mutex<Option<Helper>>,
}

/// The other process.
struct Helper {
    socket: OwnedFd,
    process: Child,
}

impl Desk {
    fn send(&self, wanted: &Wanted, client: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match helper.take() {
            Some(running) => running,
            None => self.start().map_err(|error| {
                tracing::error!("no process that opens files for clients of the direct door: {error}");
                Errno::from_io_error(&error).unwrap_or(Errno::IO)
            })?,
        };
        let answer = running.ask(wanted, client);
        match answer {
            Ok(answer) => {
                *helper = Some(running);
                answer
            }
            // The next one gets a new process.
            Err(error) => {
                tracing::error!("the process that opens files for clients of the direct door has not answered: {error}");
                Err(Errno::IO)
            }
        }
    }

    fn start(&self) -> io::Result<Helper> {
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE))?;
        set_socket_timeout(&ours, Timeout::Send, Some(PATIENCE))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(&self.mountpoint).args([self.device.0.to_string(), self.device.1.to_string()]);
        command.current_dir("/").env_clear().stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        inherited::keep_descriptors(&mut command);
        Ok(Helper { socket: ours, process: command.spawn()? })
    }
}

impl Helper {
    fn ask(&self, wanted: &Wanted, client: BorrowedFd<'_>) -> io::Result<Result<(), Errno>> {
        send_with(self.socket.as_fd(), &encode(wanted), client, SendFlags::NOSIGNAL)?;
        let mut answer = [0; ANSWER_BYTES];
        let (length, _none) = receive(self.socket.as_fd(), &mut answer)?;
        match (length, i32::from_le_bytes(answer)) {
            (ANSWER_BYTES, 0) => Ok(Ok(())),
            (ANSWER_BYTES, errno @ 1..4096) => Ok(Err(Errno::from_raw_os_error(errno))),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It holds nothing but its socket, unless it is stuck in a call that nobody answers any more.
        let _ended_already = self.process.kill();
        for _ in 0..100 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn encode(wanted: &Wanted) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..8].copy_from_slice(&wanted.inode.get().to_le_bytes());
    bytes[8..12].copy_from_slice(&wanted.generation.to_le_bytes());
    bytes[12..16].copy_from_slice(&wanted.flags.to_le_bytes());
    bytes[16..].copy_from_slice(&wanted.handle.get().to_le_bytes());
    bytes
}

/// Runs as the other process, until the daemon's end.
pub fn run(words: &[std::ffi::OsString]) -> u8 {
    let number = |index: usize| words.get(index)?.to_str()?.parse().ok();
    let (Some(mountpoint), Some(major), Some(minor)) = (words.get(1).map(Path::new), number(2), number(3)) else { return 2 };
    let stdin = io::stdin();
    loop {
        let mut request = [0; REQUEST_BYTES];
        let client = match receive(stdin.as_fd(), &mut request) {
            Ok((REQUEST_BYTES, Some(client))) => client,
            Ok((0, _)) => return 0,
            Ok(_) | Err(_) => return 1,
        };
        let errno = match opened_and_sent(mountpoint, (major, minor), &request, &client) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error(),
        };
        drop(client); // before the daemon may end the connection
        if rustix::net::send(&stdin, &errno.to_le_bytes(), SendFlags::NOSIGNAL).is_err() {
            return 1;
        }
    }
}

fn opened_and_sent(mountpoint: &Path, device: (u32, u32), request: &[u8; REQUEST_BYTES], client: &OwnedFd) -> Result<(), Errno> {
    let word = |at: usize| u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
    let (node, generation, flags) = (u64::from(word(0)) | u64::from(word(4)) << 32, word(8), word(12));
    let mount = root_of(mountpoint, device)?;
    // Whoever opens a terminal or a pipe by this would be in for a surprise, but there is none: only regular files and directories are asked for.
    let asked = OFlags::from_bits_retain(flags);
    // Nor is anybody's lease on the file (fcntl(2), F_SETLEASE) waited for: it would hold up all who ask for files here.
    let flags = asked | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let kind = if flags.contains(OFlags::DIRECTORY) { FileType::Directory } else { FileType::RegularFile };
    let opened = tandemfs_wire::open_node(mount.as_fd(), node, generation, flags.bits().cast_signed())
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    drop(mount);
    if !asked.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(&opened, rustix::fs::fcntl_getfl(&opened)?.difference(OFlags::NONBLOCK))?;
    }
    let found = known(opened.as_fd())?;
    let is_it = found.stx_ino == node && FileType::from_raw_mode(found.stx_mode.into()) == kind;
    if !is_it || (found.stx_dev_major, found.stx_dev_minor) != device {
        return Err(Errno::STALE);
    }
    send_with(client.as_fd(), &request[16..], opened.as_fd(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map_err(|error| match error {
        Errno::AGAIN => Errno::NOMEM, // it does not take what it asks for
        other => other,
    })
}

/// What the kernel knows of a file, without asking the daemon.
fn known(file: BorrowedFd<'_>) -> Result<rustix::fs::Statx, Errno> {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::TYPE)
}

/// The root directory of the mount of a device number: where it was, or where it has been moved to.
fn root_of(mountpoint: &Path, device: (u32, u32)) -> Result<OwnedFd, Errno> {
    let at = |path: &Path| {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let found = known(opened.as_fd())?;
        let is_it = (found.stx_dev_major, found.stx_dev_minor) == device && found.stx_ino == InodeNumber::ROOT.get();
        // Not by O_PATH, which open_by_handle_at(2) does not take.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if is_it { rustix::fs::openat(&opened, ".", flags, Mode::empty()) } else { Err(Errno::STALE) }
    };
    at(mountpoint).or_else(|error| {
        let number = format!("{}:{}", device.0, device.1);
        let all = mounts::mounted().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        all.iter().filter(|mount| mount.device_number == number).find_map(|mount| at(&mount.mountpoint).ok()).ok_or(error)
    })
}

fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: BorrowedFd<'_>, flags: SendFlags) -> Result<(), Errno> {
    let shown = [descriptor];
    retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&shown)) {
            return Err(Errno::NOBUFS);
        }
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
    })
}

fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut *into)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((received.bytes, rights.flatten().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_the_machine_opens_files_by_number() {
        let whole = "         0          0 4294967295\n";
        assert!(may_open_by_number("Name:\tx\nCapEff:\t000001ffffffffff\n", whole));
        assert!(!may_open_by_number("CapEff:\t0000000000000003\n", whole), "without CAP_DAC_READ_SEARCH");
        assert!(!may_open_by_number("CapEff:\t000001ffffffffff\n", "0 100000 65536\n"), "in a user namespace");
        assert!(!may_open_by_number("", whole));
    }

    #[test]
    fn a_process_without_a_mount_ends() {
        assert_eq!(run(&[NAME.into()]), 2);
    }
}
