//! Files of a mount by the numbers that the daemon knows, past all names. A file without a name can be opened so.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::sys;

/// The type of a handle with a node and a generation (`FILEID_INO64_GEN`).
const NODE_AND_GENERATION: i32 = 0x81;

/// Opens a file of a FUSE mount, which has the ability EXPORT_SUPPORT. `mount` is any directory of it that is open, not by O_PATH. Permissions of the file
/// are asked with the rights of this process, which needs CAP_DAC_READ_SEARCH. The daemon answers requests meanwhile, so it must not wait for
/// this itself.
///
/// # Errors
/// `ESTALE` if there is no such file; what the kernel and the daemon refuse.
pub fn open_node(mount: BorrowedFd<'_>, node: u64, generation: u32, flags: i32) -> io::Result<OwnedFd> {
    sys::open_by_handle(mount, NODE_AND_GENERATION, [(node >> 32) as u32, node as u32, generation], flags)
}
