//! Greetings of clients that do what no library does.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use tandemfs_protocol::{GREETING_BYTES, Hello, Reception, Welcome};

/// What the daemon answers to a greeting, and the descriptors that come with it.
pub fn greeted(socket: BorrowedFd<'_>, hello: Hello) -> (Welcome, Vec<OwnedFd>) {
    let root = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("there");
    rustix::net::send(socket, &hello.showing(root.as_fd()).encode(), SendFlags::NOSIGNAL).expect("sent");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; GREETING_BYTES];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).expect("an answer");
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    match Reception::decode(&bytes).expect("a greeting") {
        Reception::Welcome(welcome) => (welcome, descriptors),
        Reception::Refusal(refusal) => panic!("{}", refusal.sentence),
    }
}
