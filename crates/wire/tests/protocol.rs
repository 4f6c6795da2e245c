//! A session with the test as the kernel: requests over a socket that keeps message boundaries, and each reply's bytes.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proptest::prelude::*;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tandemfs_wire::abi::{self, opcode};
use tandemfs_wire::{
    Attributes, Entry, Errno, FileLock, Handler, InitFlags, Interruption, NotifyError, OpenFlags, Opened, Operation, Options, ParkedReply,
    Reply, Request, Session, Statfs, Time, Wanted,
};
use zerocopy::{FromBytes, IntoBytes};

const PATIENCE: Duration = Duration::from_secs(60);
const VALID: Duration = Duration::new(5, 7);

/// Answers each operation with recognisable values.
struct Answers {
    parked: Sender<ParkedReply>,
    interrupted: Mutex<Vec<u64>>,
}

fn attributes() -> Attributes {
    let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
    Attributes {
        ino: 42,
        size: 1000,
        blocks: 2,
        atime: time(-1, 1),
        mtime: time(2, 2),
        ctime: time(3, 3),
        birth: Some(time(4, 4)),
        mode: 0o100_644,
        nlink: 1,
        uid: 10,
        gid: 20,
        rdev: 0x103,
        block_bytes: 4096,
        flags: 0,
    }
}

fn entry() -> Entry {
    Entry { node: 42, generation: 6, entry_valid: VALID, attributes_valid: Duration::from_secs(9), attributes: attributes() }
}

impl Handler for Answers {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let opened = Opened { handle: 77, flags: OpenFlags::DIRECT_IO | OpenFlags::KEEP_CACHE };
        match request.operation {
            Operation::Lookup { name: b"absent" } => reply.entry(&Entry::absent(VALID)),
            Operation::Lookup { name: b"late" } => drop(self.parked.send(reply.park())),
            Operation::Lookup { .. } | Operation::Mkdir { .. } => reply.entry(&entry()),
            Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
            Operation::Getattr { .. } => reply.attributes(&attributes(), VALID),
            Operation::Statx { .. } => reply.statx(&attributes(), VALID),
            Operation::Open { .. } => reply.open(opened),
            Operation::Create { .. } => reply.create(&entry(), opened),
            Operation::Read { size, offset, .. } => reply.fill(size as usize, |buffer| {
                if offset == 666 {
                    return Err(Errno::ENXIO);
                }
                buffer.fill(b'r');
                Ok(buffer.len())
            }),
            Operation::Readlink => reply.bytes(b"target"),
            Operation::Write(write) => reply.written(write.data.len() as u32),
            Operation::Statfs => reply.statfs(&Statfs { blocks: 5, blocks_free: 4, blocks_available: 3, ..Statfs::default() }),
            Operation::Getxattr { size, .. } => reply.xattr(size, b"value"),
            Operation::Lseek { offset, .. } => reply.offset(offset.wrapping_add(1)),
            Operation::CopyFileRange(copy) => reply.copied(copy.length),
            Operation::Getlk { lock, .. } => reply.lock(&FileLock { pid: 99, ..lock }),
            Operation::Bmap { block, .. } => reply.block(block.wrapping_mul(2)),
            Operation::Poll { events, .. } => reply.poll(events),
            Operation::Ioctl(ioctl) if ioctl.flags & abi::request_flags::IOCTL_UNRESTRICTED != 0 => {
                reply.ioctl_retry(&[(0x1000, 8)], &[(0x2000, 16)]);
            }
            Operation::Ioctl(ioctl) => reply.ioctl(3, ioctl.data),
            Operation::Readdir { size, .. } => {
                let mut listing = reply.directory(size);
                let names: [&[u8]; 3] = [b"a", b"12345678", b"a name that is long"];
                for (next, name) in (1..).zip(names) {
                    if !listing.add(name, 40 + next, 8, next) {
                        break;
                    }
                }
                listing.send();
            }
            Operation::Readdirplus { size, .. } => {
                let mut listing = reply.directory(size);
                assert!(listing.is_empty());
                listing.add_plus(b"name", 1, &entry());
                listing.send();
            }
            Operation::Fsync { .. } => drop(reply),
            Operation::Syncfs => reply.ok(),
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn interrupted(&self, unique: u64) -> Interruption {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).push(unique);
        match unique {
            1 => Interruption::TryAgain,
            2 => Interruption::Unsupported,
            _ => Interruption::Noted,
        }
    }
}

/// The kernel's end.
struct Kernel {
    end: OwnedFd,
    last: u64,
}

fn ends() -> (Kernel, OwnedFd) {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE)).expect("set");
    (Kernel { end: ours, last: 100 }, theirs)
}

impl Kernel {
    fn send(&mut self, opcode: u32, body: &[u8]) -> u64 {
        self.last += 2;
        let header = abi::InHeader { len: (40 + body.len()) as u32, opcode, unique: self.last, nodeid: 1, pid: 7, ..Default::default() };
        self.send_raw(&[header.as_bytes(), body].concat());
        self.last
    }

    fn send_raw(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.end, bytes), Ok(bytes.len()));
    }

    fn receive(&self) -> (abi::OutHeader, Vec<u8>) {
        let mut buffer = vec![0; 2 << 20];
        let bytes = rustix::io::read(&self.end, &mut buffer).expect("a reply in time");
        let (header, body) = abi::OutHeader::read_from_prefix(&buffer[..bytes]).expect("a header");
        assert_eq!(header.len as usize, bytes, "the length in the header");
        (header, body.to_vec())
    }

    /// Error (0 or positive) and body of the reply to a request.
    fn ask(&mut self, opcode: u32, body: &[u8]) -> (i32, Vec<u8>) {
        let unique = self.send(opcode, body);
        let (header, body) = self.receive();
        assert_eq!(header.unique, unique);
        (-header.error, body)
    }

    fn ask_for<T: FromBytes>(&mut self, opcode: u32, body: &[u8]) -> T {
        let (error, bytes) = self.ask(opcode, body);
        assert_eq!(error, 0);
        T::read_from_bytes(&bytes).unwrap_or_else(|_| panic!("{} bytes for operation {opcode}", bytes.len()))
    }

    fn init(&mut self) {
        let given = abi::InitIn { major: 7, minor: 45, max_readahead: 4096, flags: u32::MAX, flags2: u32::MAX, ..Default::default() };
        self.send(opcode::INIT, given.as_bytes());
    }

    fn agreed(&self) -> abi::InitOut {
        abi::InitOut::read_from_bytes(&self.receive().1).expect("the reply to INIT")
    }
}

type Thread = JoinHandle<std::io::Result<()>>;

fn served(wanted: &Wanted) -> (Kernel, Thread, Receiver<ParkedReply>, tandemfs_wire::Notifier) {
    let (mut kernel, theirs) = ends();
    let (parked, receiver) = channel();
    kernel.init();
    let session = Session::start(theirs, Answers { parked, interrupted: Mutex::default() }, wanted, Options::default()).expect("started");
    kernel.agreed();
    let notifier = session.notifier();
    (kernel, session.spawn().expect("a thread"), receiver, notifier)
}

fn ends_well(mut kernel: Kernel, thread: Thread) {
    assert_eq!(kernel.ask(opcode::DESTROY, &[]), (0, vec![]));
    thread.join().expect("no panic").expect("an end without an error");
}

#[test]
fn a_session_begins_with_what_both_agree_on() {
    let (mut kernel, theirs) = ends();
    let wanted = Wanted { flags: InitFlags::POSIX_ACL | InitFlags::ALLOW_IDMAP, max_write: 64 << 10, ..Wanted::default() };
    kernel.init();
    let session = Session::start(theirs, Answers { parked: channel().0, interrupted: Mutex::default() }, &wanted, Options::default())
        .expect("started");
    let out = kernel.agreed();
    assert_eq!((out.major, out.minor, out.max_readahead, out.max_write, out.max_pages), (7, 45, 4096, 64 << 10, 16));
    assert_eq!((out.flags, out.flags2), (1 << 5 | 1 << 20 | 1 << 22 | 1 << 30, 1 << 8));
    assert_eq!((out.max_background, out.congestion_threshold, out.time_gran), (12, 9, 1));
    assert_eq!((session.threads().device, session.threads().ring, session.agreed().minor), (1, 0, 45));
}

#[test]
fn a_kernel_of_a_newer_major_version_asks_again() {
    let (mut kernel, theirs) = ends();
    let newer = abi::InitIn { major: 8, minor: 3, ..Default::default() };
    kernel.send(opcode::INIT, newer.as_bytes());
    kernel.init();
    let handler = Answers { parked: channel().0, interrupted: Mutex::default() };
    let session = Session::start(theirs, handler, &Wanted::default(), Options::default()).expect("started");
    let first = kernel.agreed();
    assert_eq!((first.major, first.minor, first.max_write), (7, 45, 0));
    assert_eq!(kernel.agreed().max_write, 1 << 20);
    drop(session);
}

#[test]
fn what_is_no_beginning_is_refused() {
    let older = abi::InitCompatIn { major: 7, minor: 30, ..Default::default() };
    for (code, body, error) in [(opcode::INIT, older.as_bytes(), libc::EPROTO), (opcode::STATFS, &[][..], libc::EIO)] {
        let (mut kernel, theirs) = ends();
        kernel.send(code, body);
        let handler = Answers { parked: channel().0, interrupted: Mutex::default() };
        assert!(Session::start(theirs, handler, &Wanted::default(), Options::default()).is_err());
        assert_eq!(kernel.receive().0.error, -error);
    }
}

#[test]
fn entries_and_attributes_leave_as_the_kernel_takes_them() {
    let (mut kernel, thread, ..) = served(&Wanted::default());
    let attr = abi::Attr {
        ino: 42,
        size: 1000,
        blocks: 2,
        atime: u64::MAX,
        mtime: 2,
        ctime: 3,
        atimensec: 1,
        mtimensec: 2,
        ctimensec: 3,
        mode: 0o100_644,
        nlink: 1,
        uid: 10,
        gid: 20,
        rdev: 0x103,
        blksize: 4096,
        flags: 0,
    };
    let expected =
        abi::EntryOut { nodeid: 42, generation: 6, entry_valid: 5, attr_valid: 9, entry_valid_nsec: 7, attr_valid_nsec: 0, attr };
    assert_eq!(kernel.ask_for::<abi::EntryOut>(opcode::LOOKUP, b"name\0"), expected);
    let absent: abi::EntryOut = kernel.ask_for(opcode::LOOKUP, b"absent\0");
    assert_eq!((absent.nodeid, absent.entry_valid, absent.entry_valid_nsec), (0, 5, 7));
    let out: abi::AttrOut = kernel.ask_for(opcode::GETATTR, abi::GetattrIn::default().as_bytes());
    assert_eq!(out, abi::AttrOut { attr_valid: 5, attr_valid_nsec: 7, dummy: 0, attr });
    let out: abi::StatxOut = kernel.ask_for(opcode::STATX, abi::StatxIn::default().as_bytes());
    assert_eq!((out.attr_valid, out.stat.mask, out.stat.ino, out.stat.mode, out.stat.rdev_major), (5, 0xfff, 42, 0o100_644, 1));
    assert_eq!((out.stat.btime.tv_sec, out.stat.atime.tv_sec, out.stat.mtime.tv_nsec), (4, -1, 2));
    let (error, bytes) = kernel.ask(opcode::CREATE, &[abi::CreateIn::default().as_bytes(), b"new\0"].concat());
    assert_eq!((error, bytes.len()), (0, 144));
    assert_eq!(bytes[..128], *expected.as_bytes());
    assert_eq!(bytes[128..], *abi::OpenOut { fh: 77, open_flags: 3, backing_id: 0 }.as_bytes());
    assert_eq!(kernel.ask_for::<abi::OpenOut>(opcode::OPEN, abi::OpenIn::default().as_bytes()).fh, 77);
    ends_well(kernel, thread);
}

#[test]
fn data_and_numbers_leave_as_the_kernel_takes_them() {
    let (mut kernel, thread, ..) = served(&Wanted { max_write: 64 << 10, ..Wanted::default() });
    let read = |size, offset| abi::ReadIn { size, offset, ..Default::default() };
    assert_eq!(kernel.ask(opcode::READ, read(5, 0).as_bytes()), (0, b"rrrrr".to_vec()));
    assert_eq!(kernel.ask(opcode::READ, read(0, 0).as_bytes()), (0, vec![]));
    assert_eq!(kernel.ask(opcode::READ, read(5, 666).as_bytes()), (libc::ENXIO, vec![]));
    // Replies never exceed the agreed size, whatever is requested.
    assert_eq!(kernel.ask(opcode::READ, read(u32::MAX, 0).as_bytes()).1.len(), 64 << 10);
    assert_eq!(kernel.ask(opcode::READLINK, &[]), (0, b"target".to_vec()));
    let write = abi::WriteIn { size: 3, ..Default::default() };
    assert_eq!(kernel.ask_for::<abi::WriteOut>(opcode::WRITE, &[write.as_bytes(), b"abc"].concat()).size, 3);
    let statfs: abi::Kstatfs = kernel.ask_for(opcode::STATFS, &[]);
    assert_eq!((statfs.blocks, statfs.bfree, statfs.bavail), (5, 4, 3));
    let getxattr = |size| [abi::GetxattrIn { size, padding: 0 }.as_bytes(), b"user.x\0"].concat();
    assert_eq!(kernel.ask_for::<abi::GetxattrOut>(opcode::GETXATTR, &getxattr(0)).size, 5);
    assert_eq!(kernel.ask(opcode::GETXATTR, &getxattr(4)), (libc::ERANGE, vec![]));
    assert_eq!(kernel.ask(opcode::GETXATTR, &getxattr(5)), (0, b"value".to_vec()));
    let lseek = abi::LseekIn { offset: 8, ..Default::default() };
    assert_eq!(kernel.ask_for::<abi::LseekOut>(opcode::LSEEK, lseek.as_bytes()).offset, 9);
    let copy = abi::CopyFileRangeIn { len: 5 << 32, ..Default::default() };
    assert_eq!(kernel.ask_for::<abi::WriteOut>(opcode::COPY_FILE_RANGE, copy.as_bytes()).size, u32::MAX);
    assert_eq!(kernel.ask_for::<abi::CopyFileRangeOut>(opcode::COPY_FILE_RANGE_64, copy.as_bytes()).bytes_copied, 5 << 32);
    let lock = abi::FileLock { start: 1, end: 2, kind: 1, pid: 5 };
    let out: abi::LkOut = kernel.ask_for(opcode::GETLK, abi::LkIn { lk: lock, ..Default::default() }.as_bytes());
    assert_eq!(out.lk, abi::FileLock { pid: 99, ..lock });
    assert_eq!(kernel.ask_for::<abi::BmapOut>(opcode::BMAP, abi::BmapIn { block: 4, ..Default::default() }.as_bytes()).block, 8);
    assert_eq!(kernel.ask_for::<abi::PollOut>(opcode::POLL, abi::PollIn { events: 5, ..Default::default() }.as_bytes()).revents, 5);
    assert_eq!(kernel.ask(opcode::SYNCFS, abi::SyncfsIn::default().as_bytes()), (0, vec![]));
    ends_well(kernel, thread);
}

#[test]
fn commands_answer_with_data_or_ask_for_memory() {
    let (mut kernel, thread, ..) = served(&Wanted::default());
    let ioctl = |flags| abi::IoctlIn { flags, in_size: 2, ..Default::default() };
    let (_, bytes) = kernel.ask(opcode::IOCTL, &[ioctl(0).as_bytes(), b"in"].concat());
    assert_eq!(bytes, [abi::IoctlOut { result: 3, ..Default::default() }.as_bytes(), b"in"].concat());
    let (_, bytes) = kernel.ask(opcode::IOCTL, &[ioctl(2).as_bytes(), b"in"].concat());
    let head = abi::IoctlOut { result: 0, flags: 4, in_iovs: 1, out_iovs: 1 };
    let vectors = [abi::IoctlIovec { base: 0x1000, len: 8 }, abi::IoctlIovec { base: 0x2000, len: 16 }];
    assert_eq!(bytes, [head.as_bytes(), vectors.as_bytes()].concat());
    ends_well(kernel, thread);
}

#[test]
fn a_directory_holds_what_fits() {
    let (mut kernel, thread, ..) = served(&Wanted::default());
    let mut listed = |size| kernel.ask(opcode::READDIR, abi::ReadIn { size, ..Default::default() }.as_bytes()).1;
    let one = [abi::Dirent { ino: 41, off: 1, namelen: 1, kind: 8 }.as_bytes(), b"a\0\0\0\0\0\0\0"].concat();
    let two = [&one, abi::Dirent { ino: 42, off: 2, namelen: 8, kind: 8 }.as_bytes(), b"12345678"].concat();
    let third = abi::Dirent { ino: 43, off: 3, namelen: 19, kind: 8 };
    let three = [&two, third.as_bytes(), b"a name that is long\0\0\0\0\0"].concat();
    assert_eq!((listed(0), listed(31)), (vec![], vec![]));
    assert_eq!((listed(32), listed(63)), (one.clone(), one));
    assert_eq!((listed(64), listed(111)), (two.clone(), two));
    assert_eq!((listed(112), listed(4096)), (three.clone(), three));
    let (_, plus) = kernel.ask(opcode::READDIRPLUS, abi::ReadIn { size: 4096, ..Default::default() }.as_bytes());
    let (head, name) = abi::Direntplus::read_from_prefix(&plus).expect("an entry");
    assert_eq!((head.entry_out.nodeid, head.dirent.ino, head.dirent.kind, head.dirent.namelen), (42, 42, 8, 4));
    assert_eq!(name, b"name\0\0\0\0");
    ends_well(kernel, thread);
}

#[test]
fn who_is_not_answered_gets_an_error_and_who_wants_nothing_gets_nothing() {
    let (mut kernel, thread, ..) = served(&Wanted::default());
    kernel.send(opcode::FORGET, abi::ForgetIn { nlookup: 1 }.as_bytes());
    kernel.send(opcode::BATCH_FORGET, &[&[1, 0, 0, 0, 0, 0, 0, 0][..], &[0; 16]].concat());
    kernel.send(opcode::BATCH_FORGET, &[255; 8]); // malformed, but still gets no reply
    kernel.send(opcode::NOTIFY_REPLY, &[0; 40]); // no retrieval waits for it
    kernel.send(opcode::INTERRUPT, abi::InterruptIn { unique: 5 }.as_bytes());
    // The next reply belongs to the next request: `ask` compares its number.
    assert_eq!(kernel.ask(opcode::FSYNC, abi::FsyncIn::default().as_bytes()), (libc::EIO, vec![]));
    assert_eq!(kernel.ask(opcode::INTERRUPT, abi::InterruptIn { unique: 1 }.as_bytes()).0, libc::EAGAIN);
    assert_eq!(kernel.ask(opcode::INTERRUPT, abi::InterruptIn { unique: 2 }.as_bytes()).0, libc::ENOSYS);
    assert_eq!(kernel.ask(opcode::LOOKUP, b"no end").0, libc::EIO);
    assert_eq!(kernel.ask(54, &[]).0, libc::ENOSYS);
    assert_eq!(kernel.ask(opcode::INIT, abi::InitIn::default().as_bytes()).0, libc::EIO);
    ends_well(kernel, thread);
}

#[test]
fn others_than_root_and_the_owner_are_refused() {
    let (mut kernel, theirs) = ends();
    kernel.init();
    let handler = Answers { parked: channel().0, interrupted: Mutex::default() };
    let options = Options { only_root_and: Some(1000), ..Options::default() };
    // Requests would have no ids of their callers, and nobody could be told apart.
    let wanted = Wanted { flags: InitFlags::POSIX_ACL | InitFlags::ALLOW_IDMAP, ..Wanted::default() };
    let session = Session::start(theirs, handler, &wanted, options).expect("started");
    assert_eq!((session.agreed().missing, kernel.agreed().flags2), (InitFlags::NONE, 0));
    let thread = session.spawn().expect("a thread");
    let as_user = |uid, opcode, body: &[u8]| {
        let header = abi::InHeader { len: (40 + body.len()) as u32, opcode, unique: 4, uid, ..Default::default() };
        kernel.send_raw(&[header.as_bytes(), body].concat());
        -kernel.receive().0.error
    };
    for (uid, lookup) in [(0, 0), (1000, 0), (1001, libc::EACCES)] {
        assert_eq!(as_user(uid, opcode::LOOKUP, b"name\0"), lookup);
        assert_eq!(as_user(uid, opcode::READ, abi::ReadIn::default().as_bytes()), 0);
        // Also what a `write` to an open file asks for first.
        assert_eq!(as_user(uid, opcode::GETATTR, abi::GetattrIn { getattr_flags: 1, ..Default::default() }.as_bytes()), 0);
        assert_eq!(as_user(uid, opcode::GETATTR, abi::GetattrIn::default().as_bytes()), lookup);
    }
    ends_well(kernel, thread);
}

#[test]
fn a_parked_reply_is_finished_by_another_thread_once() {
    let (mut kernel, thread, parked, _) = served(&Wanted::default());
    let late: Vec<u64> = (0..3).map(|_| kernel.send(opcode::LOOKUP, b"late\0")).collect();
    assert_eq!(kernel.ask(opcode::READLINK, &[]).1, b"target", "served meanwhile");
    let replies: Vec<_> = (0..3).map(|_| parked.recv_timeout(PATIENCE).expect("parked")).collect();
    assert_eq!(replies.iter().map(ParkedReply::unique).collect::<Vec<_>>(), late);
    let [first, second, third] = <[_; 3]>::try_from(replies).expect("three");
    third.finish(|reply| reply.fill(4, |buffer| Ok(buffer.len())));
    assert_eq!(kernel.receive().0, abi::OutHeader { len: 20, error: 0, unique: late[2] });
    drop(first);
    assert_eq!(kernel.receive().0, abi::OutHeader { len: 16, error: -libc::EIO, unique: late[0] });
    // Parked again, and finished after the end of the session: the answer is discarded.
    let second = second.finish(|reply| reply.park());
    ends_well(kernel, thread);
    second.finish(|reply| reply.entry(&entry()));
}

#[test]
fn notifications_leave_as_the_kernel_takes_them() {
    use tandemfs_wire::{Contents, Zeros};
    let (kernel, thread, _parked, notifier) = served(&Wanted::default());
    let told = |expected: i32| {
        let (header, body) = kernel.receive();
        assert_eq!((header.unique, header.error), (0, expected));
        body
    };
    for (contents, off, len) in [(Contents::None, -1, 0), (Contents::All, 0, 0), (Contents::Range { offset: 4096, length: 10 }, 4096, 10)] {
        notifier.invalidate_inode(5, contents).expect("sent");
        assert_eq!(told(2), abi::NotifyInvalInodeOut { ino: 5, off, len }.as_bytes());
    }
    notifier.invalidate_entry(1, b"name").expect("sent");
    assert_eq!(told(3), [abi::NotifyInvalEntryOut { parent: 1, namelen: 4, flags: 0 }.as_bytes(), b"name\0"].concat());
    notifier.expire_entry(1, b"name").expect("sent");
    assert_eq!(told(3)[12], 1);
    notifier.delete(1, 6, b"n").expect("sent");
    assert_eq!(told(6), [abi::NotifyDeleteOut { parent: 1, child: 6, namelen: 1, padding: 0 }.as_bytes(), b"n\0"].concat());
    notifier.store(5, 8, b"data").expect("sent");
    assert_eq!(told(4), [abi::NotifyStoreOut { nodeid: 5, offset: 8, size: 4, padding: 0 }.as_bytes(), b"data"].concat());
    let zeros = Zeros::new().expect("memory");
    notifier.store_zeros(5, 8, 3, &zeros).expect("sent");
    assert_eq!(told(4), [abi::NotifyStoreOut { nodeid: 5, offset: 8, size: 3, padding: 0 }.as_bytes(), &[0; 3]].concat());
    notifier.poll_wakeup(3).expect("sent");
    assert_eq!(told(1), 3_u64.to_ne_bytes());
    notifier.resend().expect("sent");
    notifier.increment_epoch().expect("sent");
    assert_eq!((told(7), told(8)), (vec![], vec![]));
    notifier.prune(&[5, 6]).expect("sent");
    assert_eq!(told(9), [abi::NotifyPruneOut { count: 2, padding: 0, spare: 0 }.as_bytes(), [5_u64, 6].as_bytes()].concat());
    for wrong in [&b""[..], b"nul\0", &[b'x'; 1025]] {
        assert_eq!(notifier.invalidate_entry(1, wrong), Err(NotifyError::Invalid));
    }
    assert_eq!(notifier.invalidate_inode(5, Contents::Range { offset: 0, length: 0 }), Err(NotifyError::Invalid));
    ends_well(kernel, thread);
    assert_eq!(notifier.invalidate_inode(5, Contents::All), Err(NotifyError::Gone));
}

#[test]
fn pages_that_were_asked_for_arrive_or_never_will() {
    let (kernel, thread, _parked, notifier) = served(&Wanted::default());
    let (wanted, abandoned) = (notifier.retrieve(5, 4096, 100).expect("sent"), notifier.retrieve(5, 0, 100).expect("sent"));
    let asked: Vec<_> = (0..2).map(|_| abi::NotifyRetrieveOut::read_from_bytes(&kernel.receive().1).expect("asked")).collect();
    assert_eq!((asked[0].nodeid, asked[0].offset, asked[0].size), (5, 4096, 100));
    // The lowest bit of a number marks interrupts; over io_uring the kernel would not find a reply by such a number.
    assert!(asked.iter().all(|asked| asked.notify_unique & 1 == 0));
    assert_eq!(wanted.wait(Duration::ZERO), Err(NotifyError::TimedOut));
    let head = abi::NotifyRetrieveIn { offset: 4096, size: 5, ..Default::default() };
    let len = 40 + 40 + 5;
    let header = abi::InHeader { len, opcode: opcode::NOTIFY_REPLY, unique: asked[0].notify_unique, nodeid: 5, ..Default::default() };
    kernel.send_raw(&[header.as_bytes(), head.as_bytes(), b"pages"].concat());
    let retrieved = wanted.wait(PATIENCE).expect("arrived");
    assert_eq!((retrieved.offset, retrieved.data.as_slice()), (4096, &b"pages"[..]));
    ends_well(kernel, thread);
    assert_eq!(abandoned.wait(PATIENCE), Err(NotifyError::Gone));
}

#[test]
fn a_message_that_is_none_ends_the_session() {
    for wrong in [&b"short"[..], &[0; 40], &[255; 60]] {
        let (kernel, thread, ..) = served(&Wanted::default());
        kernel.send_raw(wrong);
        let error = thread.join().expect("no panic").expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    }
}

#[test]
fn a_kernel_that_goes_ends_the_session() {
    let (kernel, thread, ..) = served(&Wanted::default());
    drop(kernel);
    thread.join().expect("no panic").expect("no error");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Arbitrary bytes after a valid header: one reply, with an error in range, to each request that expects one; then the session
    /// continues.
    #[test]
    fn every_request_gets_one_reply(
        requests in proptest::collection::vec((0_u32..60, proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..120)), 1..20)
    ) {
        let (mut kernel, thread, parked, _) = served(&Wanted { max_write: 4096, ..Wanted::default() });
        let dropping = thread::spawn(move || parked.into_iter().for_each(drop));
        for (code, body) in requests {
            match code {
                opcode::DESTROY => {}
                opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY | opcode::INTERRUPT => drop(kernel.send(code, &body)),
                _ => {
                    let (error, _) = kernel.ask(code, &body);
                    prop_assert!((0..512).contains(&error));
                }
            }
        }
        // Interrupts may have been answered.
        kernel.send(opcode::READLINK, &[]);
        while kernel.receive().1 != b"target" {}
        ends_well(kernel, thread);
        dropping.join().expect("no panic");
    }
}
