//! Valid and invalid requests to the FUSE daemon. They come over a socket that keeps message boundaries and replaces /dev/fuse, since the
//! daemon receives and answers both by read and writev.
//!
//! [FZD1] A request that expects an answer gets exactly one, with its number, a correct length and an error in range; other requests get
//!        none.
//! [FZD2] After any requests, an ordinary request is answered as usual, and the daemon ends when it is told to.
//! [FZD3] Afterwards `check` finds the device consistent.
//! [FZD4] A message whose length differs from its header's ends the mount with an error: no kernel sends one.

mod answers;
pub(crate) mod requests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tandemfs_crash::{MemoryDevice, check_device};
use tandemfs_device::Drive;
use tandemfs_fs::{FileSystem, MountOptions};
use tandemfs_fuse::{Answering, Mode, MountSettings};

use crate::{Input, image};
pub(crate) use answers::LIES;

use answers::Kernel;
use requests::Request;

const REQUESTS_MAX: usize = 40;
/// Small enough for one message of the socket without a larger socket buffer.
const REQUEST_BYTES_MAX: u32 = 128 << 10;

/// A daemon, its end of the channel, and its device.
struct Daemon {
    device: MemoryDevice,
    fs: Arc<FileSystem>,
    thread: JoinHandle<std::io::Result<()>>,
}

/// Both ends of a channel.
pub(crate) fn channel() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .unwrap_or_else(|error| panic!("a socket pair: {error}"))
}

impl Daemon {
    fn start(device: MemoryDevice, end: OwnedFd, mode: Mode, read_only: bool) -> Self {
        let options = MountOptions { read_only, memory_bytes: 4 << 20, ..MountOptions::default() };
        let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &options).unwrap_or_else(|error| panic!("mount: {error}"));
        let fs = Arc::new(fs);
        let settings = MountSettings { mode, read_only, allow_other: true, threads: Some(1), ..MountSettings::default() };
        let served = Arc::clone(&fs);
        let thread = std::thread::spawn(move || Answering::start(&served, end, &settings, REQUEST_BYTES_MAX)?.run());
        Self { device, fs, thread }
    }

    /// Waits for the daemon's end and unmounts. Returns the daemon's result.
    fn end(self) -> std::io::Result<()> {
        let result = self.thread.join().unwrap_or_else(|_| panic!("the daemon panicked"));
        let fs = Arc::try_unwrap(self.fs).unwrap_or_else(|_| panic!("the daemon has ended and still holds the file system"));
        fs.unmount().unwrap_or_else(|error| panic!("unmount: {error}"));
        check_device(&self.device, false).unwrap_or_else(|what| panic!("check: {what}"));
        result
    }
}

/// The first byte chooses the device, the second the mount mode, the third the INIT variant; then requests follow.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let device = image::device(usize::from(input.byte()));
    let how = input.byte();
    let mode = [Mode::Relaxed, Mode::Strict, Mode::StrictAtomic][usize::from(how % 3)];
    let (ours, theirs) = channel();
    let mut kernel = Kernel::new(ours);
    let daemon = Daemon::start(device, theirs, mode, how >> 2 & 3 == 3);
    if !kernel.open(input.byte(), &mut input) {
        // INIT was refused, with an error answer.
        assert!(daemon.end().is_err(), "INIT was refused, and the daemon goes on");
        return;
    }
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let request = Request::draw(&mut input);
        if !request.is_as_long_as_it_says() {
            kernel.send(&request);
            drop(kernel);
            assert!(daemon.end().is_err(), "a request of another length than it says, and the daemon goes on");
            return;
        }
        kernel.ask(&request);
    }
    kernel.ask_plainly();
    kernel.close();
    daemon.end().unwrap_or_else(|error| panic!("the daemon ended with: {error}"));
}

/// Every opcode alone and with its neighbours, in each mode.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let each = (0..requests::SHAPES.len() as u8).flat_map(|shape| {
        (0..3_u8).map(move |how| {
            let noise = (0..40_u8).map(|at| at.wrapping_mul(37).wrapping_add(shape.wrapping_mul(11)));
            [how, how, 0, 0, shape].into_iter().chain(noise).collect::<Vec<u8>>()
        })
    });
    let versions = (1..8_u8).map(|version| vec![0, 0, version, 200, 100, 3, 0, 0]);
    each.chain(versions).collect()
}

#[cfg(test)]
mod tests {
    use super::requests::opcode::{CREATE, IOCTL, LOOKUP, READ, SETATTR, SETXATTR, WRITE};
    use tandemfs_format::inode::file_type;
    use tandemfs_fs::NewInode;

    use super::*;

    fn served() -> (Kernel, Daemon) {
        let (ours, theirs) = channel();
        let mut kernel = Kernel::new(ours);
        let daemon = Daemon::start(image::device(1), theirs, Mode::Strict, false);
        assert!(kernel.open(0, &mut Input::new(&[])));
        (kernel, daemon)
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Failed writeback behind the largest file size extended the file to it.
    #[test]
    fn regression_a_late_page_behind_the_largest_file_changes_no_size() {
        let (mut kernel, daemon) = served();
        let (offset, from_cache) = (i64::MAX as u64 - 2, 1);
        let head = words(&[0, 0, offset as u32, (offset >> 32) as u32, 8, from_cache, 0, 0, 0, 0]);
        kernel.ask(&Request::new(WRITE, 5, head.into_iter().chain([7; 8]).collect()));
        kernel.ask_plainly();
        kernel.close();
        daemon.end().expect("served, and the size of the file means something");
    }

    /// The same for a symbolic link and a FIFO, which have no size that could grow: `check` found them damaged.
    #[test]
    fn regression_a_late_page_of_what_is_no_file_changes_no_size() {
        let (mut kernel, daemon) = served();
        let page = |node| Request::new(WRITE, node, words(&[0, 0, 1 << 20, 0, 8, 1, 0, 0, 0, 0]).into_iter().chain([7; 8]).collect());
        let made = |fs: &FileSystem, name: &[u8], mode, target| {
            fs.create(tandemfs_format::InodeNumber::ROOT, name, &NewInode { mode, uid: 0, gid: 0, rdev: 0, target })
                .expect("made")
                .inode
                .get()
        };
        let link = made(&daemon.fs, b"a link", file_type::SYMLINK | 0o777, &b"text"[..]);
        let fifo = made(&daemon.fs, b"a fifo", file_type::FIFO | 0o600, &b""[..]);
        for node in [link, fifo] {
            kernel.ask(&page(node));
        }
        kernel.ask_plainly();
        kernel.close();
        daemon.end().expect("served, and check is silent");
    }

    /// The daemon allocated and zeroed as many bytes as the request asked for: 4 GiB.
    #[test]
    fn regression_a_read_that_asks_for_more_than_was_agreed_gets_less() {
        let (mut kernel, daemon) = served();
        let sparse = words(&[8, 0, 0, 0, 1 << 30, 0].map(|word: u32| word)).into_iter().chain([0; 64]).collect();
        kernel.ask(&Request::new(SETATTR, 5, sparse));
        kernel.ask(&Request::new(READ, 5, words(&[0, 0, 0, 0, u32::MAX, 0, 0, 0, 0, 0]))); // [FZD1] compares it with the agreed size
        kernel.ask_plainly();
        kernel.close();
        daemon.end().expect("told to end");
    }

    /// The library that was used before panicked, which ended the mount.
    #[test]
    fn regression_what_no_kernel_sends_is_refused_and_the_mount_goes_on() {
        let mut too_many_nanoseconds = vec![0; 88];
        (too_many_nanoseconds[0], too_many_nanoseconds[39]) = (16, 0x7f);
        too_many_nanoseconds[56..60].fill(0xff);
        let (mut kernel, daemon) = served();
        for (name, request) in [
            ("WRITE with less data than it says", Request::new(WRITE, 5, words(&[0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 7]))),
            ("SETXATTR with less data than it says", Request::new(SETXATTR, 5, [words(&[9, 0, 0, 0]), b"user.a\0value".to_vec()].concat())),
            ("IOCTL with less data than it says", Request::new(IOCTL, 5, words(&[0, 0, 0, 0, 0, 0, 9, 0]))),
            ("a time that is none", Request::new(SETATTR, 5, too_many_nanoseconds)),
            ("LOOKUP without a name", Request::new(LOOKUP, 1, Vec::new())),
        ] {
            assert_eq!(kernel.ask(&request), -libc::EIO, "{name}");
        }
        kernel.ask_plainly();
        kernel.close();
        daemon.end().expect("told to end");
    }

    #[test]
    fn a_message_of_another_length_ends_the_mount_and_loses_nothing() {
        for claimed in [-20, -1, 1] {
            let (mut kernel, daemon) = served();
            kernel.ask(&Request::new(CREATE, 1, [words(&[2, 0o100_644, 0, 0]), b"answered\0".to_vec()].concat()));
            kernel.send(&Request { claimed, ..Request::new(LOOKUP, 1, b"answered\0".to_vec()) });
            let device = daemon.device.fork();
            drop(kernel);
            assert!(daemon.end().is_err(), "the mount ends with an error");
            let fs = FileSystem::mount(Drive::new(Arc::new(device)), &MountOptions::default()).expect("mounts");
            fs.lookup(tandemfs_format::InodeNumber::ROOT, b"answered").expect("is there");
        }
    }
}
