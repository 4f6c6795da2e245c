//! Descriptors of the mount for open files of clients.
//!
//! [DSC1] Who opens is another process ([`Opener`]): a daemon that waits for its own mount, or holds a file of it, could never end.
//! [DSC2] A client gets what its open file may do and no more: the same access and flags, of a regular file or a directory. Whether it may open it was
//!        asked when it did; names and permissions may have changed since. The open file holds the inode until the descriptor is there, so
//!        its number is that of no other file.
//! [DSC3] The descriptor goes to the socket of the client whose open file it is, and nobody waits until that takes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_protocol::Handle;
use tandemfs_vfs::{OpenFile, Result};

use crate::mutant::{self, Mutant};

/// A descriptor that a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The file.
    pub inode: InodeNumber,
    /// Which of the files that have had this number.
    pub generation: u32,
    /// Flags of open(2): access, and those that an open file keeps.
    pub flags: i32,
    /// What the message with the descriptor says.
    pub handle: Handle,
}

/// Opens a file by the mount, in another process, and sends it by a client's socket without waiting for the client.
pub type Opener = Box<dyn Fn(&Wanted, BorrowedFd<'_>) -> std::result::Result<(), Errno> + Send + Sync>;

/// The way to a client for descriptors; nothing if the server has no opener.
pub(crate) type Sending = Option<(Arc<Opener>, OwnedFd)>;

/// Sends a descriptor for an open file of a client.
pub(crate) fn send(sending: &Sending, handle: Handle, file: &OpenFile) -> Result<()> {
    let Some((opener, socket)) = sending else { return Err(Errno::NOSYS.into()) };
    let flags = match mutant::on(Mutant::AccessNotKept) {
        false if mutant::on(Mutant::DescriptorsOfAll) => file.flags_to_reopen().unwrap_or(libc::O_RDONLY),
        false => file.flags_to_reopen()?, // [DSC2]
        true => libc::O_RDWR,
    };
    let generation = if mutant::on(Mutant::GenerationNotSaid) { 0 } else { file.attributes()?.generation };
    let wanted = Wanted { inode: file.inode(), generation, flags, handle };
    Ok(opener(&wanted, socket.as_fd())?)
}
