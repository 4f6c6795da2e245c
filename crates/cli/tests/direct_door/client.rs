//! A client of the direct door as raw as it gets: messages of `protocol` over `ring`.

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect,
    recvmsg, send, socket_with,
};
use tandemfs_protocol::{
    GREETING_BYTES, Handle, Hello, Listing, Operation, Outcome, Place, Reception, Refusal, Space, Subject, Text, Unless, socket,
};
use tandemfs_ring::{Answer, Attributes, Client, Ended, Range, Slot};

/// Bytes of the data area.
pub const DATA_BYTES: u64 = 4 << 20;

/// A connection with one slot.
pub struct Door {
    client: Client,
    slot: Slot,
}

/// Why a call was not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    Errno(i32),
    Crossed(tandemfs_protocol::Why),
    Ended,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl From<Ended> for Failure {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

/// The socket of a mount: the newest, since a daemon whose mount is gone may still have its own, and its device number goes to others.
pub fn socket_of(mountpoint: &Path) -> PathBuf {
    let device = fs::metadata(mountpoint).expect("mounted").dev();
    let prefix = socket::prefix(rustix::fs::major(device), rustix::fs::minor(device));
    let user = 0; // who runs these tests
    let entries = socket::directories(user).into_iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
    let ours = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
    let newest = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    entries.map(|entry| entry.path()).filter(ours).max_by_key(newest).expect("a socket of the door")
}

fn received(socket: BorrowedFd<'_>) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; GREETING_BYTES];
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).expect("an answer");
    bytes.truncate(message.bytes);
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    (bytes, rights.flatten().collect())
}

/// Says something to the door; returns the answer.
pub fn say(path: &Path, hello: &[u8]) -> (OwnedFd, Vec<u8>, Vec<OwnedFd>) {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    connect(&socket, &SocketAddrUnix::new(path).expect("an address")).expect("connected");
    send(&socket, hello, SendFlags::empty()).expect("sent");
    let (answer, descriptors) = received(socket.as_fd());
    (socket, answer, descriptors)
}

/// The root directory, as a client shows it.
pub fn root_of(mountpoint: &Path) -> OwnedFd {
    rustix::fs::open(mountpoint, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("reachable")
}

impl Door {
    pub fn connect(mountpoint: &Path) -> std::result::Result<Self, Refusal> {
        Self::at(&socket_of(mountpoint), mountpoint)
    }

    pub fn at(path: &Path, mountpoint: &Path) -> std::result::Result<Self, Refusal> {
        let root = root_of(mountpoint);
        let (socket, answer, descriptors) = say(path, &Hello::new(4, DATA_BYTES).showing(root.as_fd()).encode());
        match Reception::decode(&answer).expect("a reception") {
            Reception::Refusal(refusal) => Err(refusal),
            Reception::Welcome(welcome) => {
                assert_eq!((welcome.slots, welcome.data_bytes), (4, DATA_BYTES));
                let mut descriptors = descriptors;
                let _versions = if welcome.version_words > 0 { descriptors.pop() } else { None };
                let mut descriptors = descriptors.into_iter();
                let (arena, words) = (descriptors.next().expect("an arena"), descriptors.next().expect("words"));
                let client = Client::map(arena.as_fd(), words.as_fd(), descriptors.next(), Some(socket)).expect("maps");
                let slot = client.slot().expect("a slot");
                Ok(Self { client, slot })
            }
        }
    }

    pub fn call(&mut self, operation: &Operation<'_>) -> Result<Answer> {
        let answer = self.slot.call(&operation.encode().expect("its names fit"))?;
        outcome(answer)
    }

    /// Any request, also one that is none.
    pub fn call_raw(&mut self, request: &tandemfs_ring::Request) -> Result<Answer> {
        let answer = self.slot.call(request)?;
        outcome(answer)
    }

    /// With a buffer, which is filled before and returned behind the call.
    pub fn call_with(&mut self, bytes: &[u8], room: u32, operation: impl Fn(Range) -> Operation<'static>) -> Result<(Answer, Vec<u8>)> {
        let mut buffer = self.client.buffer(room.max(bytes.len() as u32)).expect("room");
        buffer.write(0, bytes);
        let range = buffer.range();
        let request = operation(Range { length: room.max(bytes.len() as u32), ..range }).encode().expect("no long names");
        let (answer, mut buffers) = self.slot.submit(&request, vec![buffer])?.wait()?;
        let answer = outcome(answer)?;
        let length = Outcome::bytes(&answer, range).unwrap_or(0);
        let mut bytes = vec![0; length as usize];
        buffers.pop().expect("given back").read(0, &mut bytes);
        Ok((answer, bytes))
    }

    pub fn open(&mut self, path: &str, flags: i32, mode: u32) -> Result<Handle> {
        let open = Operation::Open { at: Place::Root, path: Text::Here(path.as_bytes()), flags, mode, umask: 0o22, into: Range::default() };
        Ok(Handle::of(self.call(&open)?.value).expect("a handle"))
    }

    pub fn close(&mut self, handle: Handle) -> Result<()> {
        self.call(&Operation::Close { handle }).map(|_| ())
    }

    pub fn write(&mut self, handle: Handle, offset: i64, bytes: &[u8]) -> Result<Answer> {
        self.call_with(bytes, 0, |from| Operation::Write { handle, offset, from, flags: 0, unless: Unless::default() })
            .map(|(answer, _)| answer)
    }

    pub fn read(&mut self, handle: Handle, offset: i64, length: u32) -> Result<Vec<u8>> {
        self.call_with(&[], length, |into| Operation::Read { handle, offset, into, unless: Unless::default() }).map(|(_, bytes)| bytes)
    }

    /// A descriptor of the mount for an open file.
    pub fn descriptor(&mut self, handle: Handle) -> Result<OwnedFd> {
        self.call(&Operation::Descriptor { handle })?;
        let (said, mut descriptors) = received(self.client.lifeline().expect("a socket"));
        assert_eq!(said, handle.get().to_le_bytes());
        Ok(descriptors.pop().expect("one descriptor"))
    }

    /// A whole file.
    pub fn contents(&mut self, path: &str) -> Result<Vec<u8>> {
        let handle = self.open(path, libc::O_RDONLY, 0)?;
        let bytes = self.read(handle, 0, 1 << 20);
        self.close(handle)?;
        bytes
    }

    /// Makes a file of these bytes.
    pub fn make(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        let handle = self.open(path, libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC, 0o644)?;
        self.write(handle, 0, bytes)?;
        self.close(handle)
    }

    pub fn stat(&mut self, path: &str) -> Result<Attributes> {
        let answer = self.call(&Operation::Stat { subject: named(path) })?;
        Ok(answer.attributes.expect("attributes"))
    }

    pub fn unlink(&mut self, path: &str) -> Result<()> {
        self.call(&Operation::Unlink { at: Place::Root, path: Text::Here(path.as_bytes()) }).map(|_| ())
    }

    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let rename =
            Operation::Rename { from: (Place::Root, Text::Here(from.as_bytes())), to: (Place::Root, Text::Here(to.as_bytes())), flags: 0 };
        self.call(&rename).map(|_| ())
    }

    pub fn names(&mut self, path: &str) -> Result<Vec<String>> {
        let handle = self.open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let (_, bytes) = self.call_with(&[], 512, |into| Operation::ReadDirectory { handle, cookie, into })?;
            if bytes.is_empty() {
                break;
            }
            for entry in Listing::new(&bytes) {
                let entry = entry.expect("whole");
                cookie = entry.cookie;
                names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
            }
        }
        self.close(handle)?;
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }

    pub fn space(&mut self) -> Result<Space> {
        let (_, bytes) = self.call_with(&[], 64, |into| Operation::FileSystemSpace { into })?;
        Ok(Space::decode(&bytes).expect("space"))
    }
}

pub fn named(path: &str) -> Subject<'_> {
    Subject::Path { at: Place::Root, path: Text::Here(path.as_bytes()), flags: 0 }
}

fn outcome(answer: Answer) -> Result<Answer> {
    match Outcome::decode(answer).expect("an answer of this version") {
        Outcome::Done(answer) => Ok(answer),
        Outcome::Errno(errno) => Err(Failure::Errno(errno)),
        Outcome::Crossed(crossed) => Err(Failure::Crossed(crossed.why)),
    }
}
