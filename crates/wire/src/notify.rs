//! Notifications from the file system to the kernel, mostly about its caches.
//!
//! [NO1] A notifier does not keep the connection open; once it is closed, calls return [`NotifyError::Gone`].
//! [NO2] The kernel takes a size of a file only with bytes for its page cache (STORE), and raises the size before it takes them. But a page may
//!       belong to a WRITE on its way here, which would bring those bytes instead of the program's: the kernel unlocks whole pages before it
//!       sends them. So a size comes with a byte that the kernel cannot read: it keeps the size and leaves the page as it is.
//! [NO3] The kernel reads the bytes of a STORE when it has locked their page. Zeros that are taken back while a STORE waits for the page do not reach it.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno as SystemError;
use zerocopy::IntoBytes;

use crate::abi::{self, OutHeader, notify_code};
use crate::device::Channel;
use crate::{Agreed, Errno, Zeros};

/// Longest name that the kernel accepts.
const NAME_BYTES_MAX: usize = 1024;

/// Why a notification failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The connection has ended.
    #[error("the mount is gone")]
    Gone,
    /// The kernel does not have this node or name in memory.
    #[error("the kernel knows no such node or name")]
    NotFound,
    /// This kernel does not support the notification.
    #[error("this kernel has no such notification")]
    Unsupported,
    /// The directory is not empty, or is a mountpoint.
    #[error("the directory is in use")]
    InUse,
    /// An invalid name or range.
    #[error("a name is too long, or a range is none")]
    Invalid,
    /// No answer within the timeout.
    #[error("the kernel did not answer in time")]
    TimedOut,
    /// Another error of the kernel.
    #[error("the kernel refuses: {0}")]
    Refused(Errno),
}

/// The pages to invalidate together with a node's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Nothing.
    None,
    /// All pages.
    All,
    /// The pages of a range, which must not be empty.
    Range {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

/// Sends notifications. Clones can be used by other threads; after the session's end all of them fail.
///
/// A call may wait for locks that the kernel holds during a request. So a handler must answer a request before it sends a notification
/// about the same node or name. [`Notifier::increment_epoch`] and [`Notifier::poll_wakeup`] never wait.
#[derive(Debug, Clone)]
pub struct Notifier {
    channel: Weak<Channel>,
    retrievals: Weak<Retrievals>,
    minor: u32,
}

impl Notifier {
    pub(crate) fn new(channel: &Arc<Channel>, retrievals: &Arc<Retrievals>, agreed: &Agreed) -> Self {
        Self { channel: Arc::downgrade(channel), retrievals: Arc::downgrade(retrievals), minor: agreed.minor }
    }

    /// Whether the connection still stands: it ends before the device number of the mount is given to another.
    pub fn is_connected(&self) -> bool {
        self.channel.upgrade().is_some_and(|channel| channel.is_connected())
    }

    /// Invalidates the attributes of a node and the given pages.
    pub fn invalidate_inode(&self, node: u64, contents: Contents) -> Result<(), NotifyError> {
        let signed = |value: u64| i64::try_from(value).map_err(|_| NotifyError::Invalid);
        let (off, len) = match contents {
            Contents::None => (-1, 0),
            Contents::All => (0, 0),
            Contents::Range { length: 0, .. } => return Err(NotifyError::Invalid),
            Contents::Range { offset, length } => (signed(offset)?, signed(length)?),
        };
        self.send(notify_code::INVAL_INODE, &[abi::NotifyInvalInodeOut { ino: node, off, len }.as_bytes()])
    }

    /// Invalidates a name in a directory.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> Result<(), NotifyError> {
        self.entry(parent, name, 0)
    }

    /// Makes the kernel look up a name again at its next use (7.38).
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), NotifyError> {
        self.at_least(38)?;
        self.entry(parent, name, abi::inval_entry::EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Result<(), NotifyError> {
        let head = abi::NotifyInvalEntryOut { parent, namelen: name_length(name)?, flags };
        self.send(notify_code::INVAL_ENTRY, &[head.as_bytes(), name, &[0]])
    }

    /// Reports that a name and its node were removed: like [`Notifier::invalidate_entry`], and watchers (inotify) are informed.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), NotifyError> {
        let head = abi::NotifyDeleteOut { parent, child, namelen: name_length(name)?, padding: 0 };
        self.send(notify_code::DELETE, &[head.as_bytes(), name, &[0]])
    }

    /// Writes data into the kernel's page cache of a file; extends the file if it was shorter.
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> Result<(), NotifyError> {
        let size = u32::try_from(data.len()).map_err(|_| NotifyError::Invalid)?;
        let head = abi::NotifyStoreOut { nodeid: node, offset, size, padding: 0 };
        self.send(notify_code::STORE, &[head.as_bytes(), data])
    }

    /// Zeroes bytes of the kernel's page cache of a file, at most [`Zeros::BYTES`]; extends the file if it was shorter. Waits for their page, and does nothing
    /// to it where the zeros were taken back meanwhile ([NO3]).
    pub fn store_zeros(&self, node: u64, offset: u64, bytes: usize, zeros: &Zeros) -> Result<(), NotifyError> {
        let bytes = bytes.min(Zeros::BYTES);
        self.store_unread(node, offset, bytes, |channel, head| channel.try_send_zeros(head, zeros, bytes))
    }

    /// Tells the kernel that a file has at least so many bytes ([NO2]). Waits for the page of the last one like [`Notifier::store`].
    pub fn raise_size(&self, node: u64, size: u64) -> Result<(), NotifyError> {
        let last = size.checked_sub(1).ok_or(NotifyError::Invalid)?;
        self.store_unread(node, last, 1, |channel, head| channel.try_send_without_data(head, 1))
    }

    /// A STORE whose bytes the kernel may be unable to read.
    fn store_unread(
        &self,
        node: u64,
        offset: u64,
        bytes: usize,
        send: impl Fn(&Channel, &[u8]) -> Result<(), SystemError>,
    ) -> Result<(), NotifyError> {
        let channel = self.channel.upgrade().ok_or(NotifyError::Gone)?;
        let head = abi::NotifyStoreOut { nodeid: node, offset, size: bytes as u32, padding: 0 };
        let len = (size_of::<OutHeader>() + size_of::<abi::NotifyStoreOut>() + bytes) as u32;
        let header = OutHeader { len, error: notify_code::STORE, unique: 0 };
        match send(&channel, &[header.as_bytes(), head.as_bytes()].concat()) {
            Ok(()) | Err(SystemError::FAULT) => Ok(()),
            Err(error) => Err(refused(error)),
        }
    }

    /// Asks for cached pages of a file. The answer arrives as a request, so some thread must be free to serve it.
    pub fn retrieve(&self, node: u64, offset: u64, size: u32) -> Result<Retrieval, NotifyError> {
        let retrievals = self.retrievals.upgrade().ok_or(NotifyError::Gone)?;
        let (unique, receiver) = retrievals.expect();
        let retrieval = Retrieval { unique, receiver, retrievals: Weak::clone(&self.retrievals) };
        let head = abi::NotifyRetrieveOut { notify_unique: unique, nodeid: node, offset, size, padding: 0 };
        self.send(notify_code::RETRIEVE, &[head.as_bytes()])?;
        Ok(retrieval)
    }

    /// Wakes the pollers of a POLL request.
    pub fn poll_wakeup(&self, kernel_handle: u64) -> Result<(), NotifyError> {
        self.send(notify_code::POLL, &[abi::NotifyPollWakeupOut { kh: kernel_handle }.as_bytes()])
    }

    /// Makes the kernel resend all unanswered requests (7.40): for a server that took over another one's connection.
    pub fn resend(&self) -> Result<(), NotifyError> {
        self.at_least(40)?;
        self.send(notify_code::RESEND, &[])
    }

    /// Makes the kernel look up all cached names again at their next use (7.44).
    pub fn increment_epoch(&self) -> Result<(), NotifyError> {
        self.at_least(44)?;
        self.send(notify_code::INC_EPOCH, &[])
    }

    /// Allows the kernel to drop unused nodes from memory (7.45, in Linux 6.18 or later).
    pub fn prune(&self, nodes: &[u64]) -> Result<(), NotifyError> {
        self.at_least(45)?;
        let count = u32::try_from(nodes.len()).map_err(|_| NotifyError::Invalid)?;
        let head = abi::NotifyPruneOut { count, padding: 0, spare: 0 };
        self.send(notify_code::PRUNE, &[head.as_bytes(), nodes.as_bytes()]).map_err(|error| match error {
            // Kernels with this protocol version may still lack this notification.
            NotifyError::Invalid => NotifyError::Unsupported,
            other => other,
        })
    }

    fn at_least(&self, minor: u32) -> Result<(), NotifyError> {
        if self.minor < minor { Err(NotifyError::Unsupported) } else { Ok(()) }
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), NotifyError> {
        let channel = self.channel.upgrade().ok_or(NotifyError::Gone)?;
        let bytes = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: u32::try_from(bytes).map_err(|_| NotifyError::Invalid)?, error: code, unique: 0 };
        let mut message = vec![IoSlice::new(header.as_bytes())];
        message.extend(parts.iter().map(|part| IoSlice::new(part)));
        channel.try_send(&message).map_err(refused)
    }
}

fn refused(error: SystemError) -> NotifyError {
    match error {
        SystemError::NODEV | SystemError::NOTCONN | SystemError::CONNABORTED | SystemError::PIPE => NotifyError::Gone,
        SystemError::NOENT => NotifyError::NotFound,
        SystemError::NOSYS => NotifyError::Unsupported,
        SystemError::NOTEMPTY | SystemError::BUSY => NotifyError::InUse,
        SystemError::INVAL | SystemError::NAMETOOLONG => NotifyError::Invalid,
        error => NotifyError::Refused(error.into()),
    }
}

fn name_length(name: &[u8]) -> Result<u32, NotifyError> {
    match name.len() {
        1..=NAME_BYTES_MAX if !name.contains(&0) => Ok(name.len() as u32),
        _ => Err(NotifyError::Invalid),
    }
}

/// Data from the kernel's page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retrieved {
    /// Offset in the file.
    pub offset: u64,
    /// The data from there on; shorter than requested if the kernel has less.
    pub data: Vec<u8>,
}

/// A pending request for cached pages.
#[derive(Debug)]
pub struct Retrieval {
    unique: u64,
    receiver: Receiver<Retrieved>,
    retrievals: Weak<Retrievals>,
}

impl Retrieval {
    /// Waits for the data; may be called again after [`NotifyError::TimedOut`].
    pub fn wait(&self, timeout: Duration) -> Result<Retrieved, NotifyError> {
        self.receiver.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => NotifyError::TimedOut,
            RecvTimeoutError::Disconnected => NotifyError::Gone,
        })
    }
}

impl Drop for Retrieval {
    fn drop(&mut self) {
        if let Some(retrievals) = self.retrievals.upgrade() {
            retrievals.lock().waiting.remove(&self.unique);
        }
    }
}

/// Pending retrievals, by the number of the request that will bring the data.
#[derive(Debug, Default)]
pub(crate) struct Retrievals(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    waiting: HashMap<u64, SyncSender<Retrieved>>,
}

impl Retrievals {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self) -> (u64, Receiver<Retrieved>) {
        let (sender, receiver) = sync_channel(1);
        let mut waiting = self.lock();
        waiting.last += 2; // the lowest bit marks interrupts
        let unique = waiting.last;
        waiting.waiting.insert(unique, sender);
        (unique, receiver)
    }

    pub(crate) fn arrived(&self, unique: u64, offset: u64, data: &[u8]) {
        if let Some(sender) = self.lock().waiting.remove(&unique) {
            // The waiter may have given up.
            let _gone = sender.try_send(Retrieved { offset, data: data.to_vec() });
        }
    }
}
