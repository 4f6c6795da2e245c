//! Requests over `/dev/fuse`: each read returns a request; each write is a reply or a notification.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno as SystemError;

use crate::crew::{Crew, Member};
use crate::mailbox::Mailbox;
use crate::reply::sink::{Buffer, Sink};
use crate::request::Message;
use crate::serving::{Next, Serving};
use crate::{Handler, Zeros, sys};

/// Largest value of an extended attribute: a request may be that long even if WRITEs are shorter.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Buffer space for a request besides its data: headers, names, extensions.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A descriptor of the connection to the kernel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self(device)
    }

    /// Opens another descriptor of the same connection.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        sys::clone_device(self.as_fd()).map(Self)
    }

    /// Makes reads fail with EAGAIN instead of waiting.
    pub(crate) fn set_polled(&self) -> io::Result<()> {
        let flags = fcntl_getfl(&self.0)?;
        Ok(fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?)
    }

    /// Whether the kernel has not ended the connection.
    pub(crate) fn is_connected(&self) -> bool {
        let mut channel = [PollFd::new(&self.0, PollFlags::empty())];
        let polled = rustix::io::retry_on_intr(|| poll(&mut channel, Some(&Timespec::default())));
        polled.is_ok() && !channel[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
    }

    /// Reads one request. `None`: the connection has ended.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, SystemError> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(0) | Err(SystemError::NODEV | SystemError::CONNABORTED | SystemError::NOTCONN) => return Ok(None),
                Ok(bytes) => return Ok(buffer.get(..bytes)),
                // The request was interrupted while it was read, or this thread got a signal.
                Err(SystemError::NOENT | SystemError::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a reply. It is no error if the kernel refuses it because the caller or the connection is gone.
    pub(crate) fn send(&self, message: &[IoSlice<'_>]) {
        if let Err(error) = self.try_send(message) {
            match error {
                SystemError::NOENT | SystemError::NODEV | SystemError::CONNABORTED | SystemError::NOTCONN | SystemError::PIPE => {
                    tracing::debug!(%error, "nobody waits for a reply any more");
                }
                _ => tracing::error!(%error, "the kernel refuses a reply"),
            }
        }
    }

    pub(crate) fn try_send(&self, message: &[IoSlice<'_>]) -> Result<(), SystemError> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, message)).map(drop)
    }

    /// As [`Channel::try_send`], a message whose last bytes cannot be read.
    pub(crate) fn try_send_without_data(&self, head: &[u8], bytes: usize) -> Result<(), SystemError> {
        system_error(|| sys::write_without_data(self.0.as_fd(), head, bytes))
    }

    /// As [`Channel::try_send`], a message whose last bytes are zeros.
    pub(crate) fn try_send_zeros(&self, head: &[u8], zeros: &Zeros, bytes: usize) -> Result<(), SystemError> {
        system_error(|| zeros.write(self.0.as_fd(), head, bytes))
    }
}

fn system_error(write: impl Fn() -> io::Result<()>) -> Result<(), SystemError> {
    rustix::io::retry_on_intr(|| write().map_err(|error| SystemError::from_io_error(&error).unwrap_or(SystemError::IO)))
}

fn await_either(channel: &Channel, end: &Mailbox) -> io::Result<()> {
    let mut both = [PollFd::new(channel, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut both, None))?;
    Ok(())
}

/// The buffer size for requests.
pub(crate) fn request_bytes_max(max_write: usize) -> usize {
    max_write.max(XATTR_BYTES_MAX) + HEAD_BYTES_MAX
}

/// Serves the requests of a channel until the connection ends, or until `end` says so; `end` is used beside io_uring.
pub(crate) fn serve<H: Handler>(
    channel: &Arc<Channel>,
    serving: &Serving<'_, H>,
    crew: &Arc<Crew>,
    end: Option<&Mailbox>,
) -> io::Result<()> {
    let Some(member) = Member::enter(crew) else { return Ok(()) };
    let mut request = vec![0; request_bytes_max(serving.agreed.max_write as usize)];
    let mut buffer = Buffer::default();
    loop {
        if let Some(end) = end {
            await_either(channel, end)?;
            if end.is_to_end() {
                return Ok(());
            }
        }
        let message = match channel.receive(&mut request) {
            Ok(Some(bytes)) => Message::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            Ok(None) => return Ok(()),
            Err(SystemError::AGAIN) => {
                serving.idle();
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let sink = match message.wants_reply() {
            true => Sink::Device { channel, buffer: &mut buffer },
            false => Sink::Nobody { body: Vec::new() },
        };
        if serving.serve(message, sink)? == Next::End || !member.goes_on() {
            return Ok(());
        }
    }
}
