//! Memory of a program that the daemon reads and writes as well: transfers from and to it are copied by nobody, if they are large.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use rustix::io::Errno;
use tandemfs_ring as ring;

use crate::Result;
use crate::connection::Connection;

/// Shared memory for data, of a connection. Reads and writes from 128 KiB on ([`File::read_buffer_at`](crate::File::read_buffer_at)) go between it and the drive; smaller ones the daemon
/// copies.
///
/// It takes its bytes from those of the connection ([`Options::data_bytes`](crate::Options::data_bytes)) until it is dropped.
///
/// A program that changes bytes while they are written may damage the blocks that it writes, as `docs/SEMANTICS.md` says (*Large reads and writes*): reads of them
/// then fail with EIO.
#[derive(Debug)]
pub struct Buffer {
    connection: Arc<Connection>,
    /// None only while it is dropped.
    memory: Option<ring::Buffer>,
}

impl Buffer {
    pub(crate) fn new(connection: &Arc<Connection>, bytes: u32) -> Result<Self> {
        if bytes == 0 || bytes > connection.transfer_bytes {
            return Err(Errno::INVAL.into());
        }
        let memory = connection.memory(bytes)?;
        Ok(Self { connection: Arc::clone(connection), memory: Some(memory) })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether it has no bytes, which is never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes. The daemon reads and writes them during calls that name this buffer.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.memory.as_ref().map_or(&[], ring::Buffer::atomics)
    }

    /// Copies bytes in, from offset `at` of the buffer on.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(memory) = &mut self.memory {
            memory.write(at, bytes);
        }
    }

    /// Copies bytes out, from offset `at` of the buffer on.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        if let Some(memory) = &self.memory {
            memory.read(at, into);
        }
    }

    /// A part of it, as the daemon of this connection is told.
    pub(crate) fn part(&self, connection: &Arc<Connection>, within: &Range<usize>) -> Result<ring::Range> {
        let whole = self.memory.as_ref().map(ring::Buffer::range).unwrap_or_default();
        if !Arc::ptr_eq(connection, &self.connection) || within.start > within.end || within.end > whole.length as usize {
            return Err(Errno::INVAL.into());
        }
        if within.is_empty() {
            return Ok(ring::Range::default());
        }
        Ok(ring::Range { start: whole.start + within.start as u32, length: within.len() as u32 })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        drop(self.memory.take());
        self.connection.memory_returned();
    }
}
