//! Messages of the kernel's end: requests with the layouts of `door/requests.rs`, arbitrary bodies, extensions, and wrong lengths.

use std::mem::size_of;

use tandemfs_wire::abi::{self, InHeader, opcode::*};
use zerocopy::IntoBytes;

use crate::Input;
use crate::door::requests::{Request, SHAPES};

pub(super) const SHAPES_COUNT: usize = SHAPES.len();

/// All operations except INIT and DESTROY, which begin and end a session.
pub(super) const KNOWN: &[u32] = &[
    LOOKUP,
    FORGET,
    GETATTR,
    SETATTR,
    READLINK,
    SYMLINK,
    MKNOD,
    MKDIR,
    UNLINK,
    RMDIR,
    RENAME,
    LINK,
    OPEN,
    READ,
    WRITE,
    STATFS,
    RELEASE,
    FSYNC,
    SETXATTR,
    GETXATTR,
    LISTXATTR,
    REMOVEXATTR,
    FLUSH,
    OPENDIR,
    READDIR,
    RELEASEDIR,
    FSYNCDIR,
    GETLK,
    SETLK,
    SETLKW,
    ACCESS,
    CREATE,
    INTERRUPT,
    BMAP,
    IOCTL,
    POLL,
    NOTIFY_REPLY,
    BATCH_FORGET,
    FALLOCATE,
    READDIRPLUS,
    RENAME2,
    LSEEK,
    COPY_FILE_RANGE,
    SETUPMAPPING,
    REMOVEMAPPING,
    SYNCFS,
    TMPFILE,
    STATX,
    COPY_FILE_RANGE_64,
];

/// A request before it is sent.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) opcode: u32,
    pub(super) node: u64,
    pub(super) body: Vec<u8>,
    /// The error of the length in the header.
    pub(super) claimed: i64,
    /// The size of the extensions at the end of the body, as the header states it, in units of 8 bytes.
    pub(super) extensions: u16,
    /// The answer that the handler is to give (`handler.rs`), sent as the group id.
    pub(super) choice: u32,
}

/// Whether the kernel expects an answer. INTERRUPT gets one only for a resend or to stop interrupts.
pub(super) fn wants_answer(opcode: u32) -> bool {
    !matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT | NOTIFY_REPLY)
}

/// The size of the body before names and data; over io_uring this part is separate.
pub(super) fn fixed_bytes(opcode: u32, has_long_setxattr: bool) -> usize {
    match opcode {
        FORGET => size_of::<abi::ForgetIn>(),
        GETATTR => size_of::<abi::GetattrIn>(),
        SETATTR => size_of::<abi::SetattrIn>(),
        MKNOD => size_of::<abi::MknodIn>(),
        MKDIR => size_of::<abi::MkdirIn>(),
        RENAME => size_of::<abi::RenameIn>(),
        LINK => size_of::<abi::LinkIn>(),
        OPEN | OPENDIR => size_of::<abi::OpenIn>(),
        READ | READDIR | READDIRPLUS => size_of::<abi::ReadIn>(),
        WRITE => size_of::<abi::WriteIn>(),
        RELEASE | RELEASEDIR => size_of::<abi::ReleaseIn>(),
        FSYNC | FSYNCDIR => size_of::<abi::FsyncIn>(),
        SETXATTR if has_long_setxattr => size_of::<abi::SetxattrIn>(),
        SETXATTR => size_of::<abi::SetxattrCompatIn>(),
        GETXATTR | LISTXATTR => size_of::<abi::GetxattrIn>(),
        FLUSH => size_of::<abi::FlushIn>(),
        GETLK | SETLK | SETLKW => size_of::<abi::LkIn>(),
        ACCESS => size_of::<abi::AccessIn>(),
        CREATE | TMPFILE => size_of::<abi::CreateIn>(),
        INTERRUPT => size_of::<abi::InterruptIn>(),
        BMAP => size_of::<abi::BmapIn>(),
        IOCTL => size_of::<abi::IoctlIn>(),
        POLL => size_of::<abi::PollIn>(),
        NOTIFY_REPLY => size_of::<abi::NotifyRetrieveIn>(),
        BATCH_FORGET => size_of::<abi::BatchForgetIn>(),
        FALLOCATE => size_of::<abi::FallocateIn>(),
        RENAME2 => size_of::<abi::Rename2In>(),
        LSEEK => size_of::<abi::LseekIn>(),
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => size_of::<abi::CopyFileRangeIn>(),
        SETUPMAPPING => size_of::<abi::SetupmappingIn>(),
        REMOVEMAPPING => size_of::<abi::RemovemappingIn>(),
        STATX => size_of::<abi::StatxIn>(),
        _ => 0,
    }
}

impl Message {
    /// An ordinary request, which is answered normally.
    pub(super) fn plain(opcode: u32) -> Self {
        let mut body = vec![0; fixed_bytes(opcode, false)];
        match opcode {
            LOOKUP | MKNOD | MKDIR | UNLINK | RMDIR | LINK | SETXATTR | GETXATTR | REMOVEXATTR | CREATE | TMPFILE => body.extend(b"a\0"),
            SYMLINK | RENAME | RENAME2 => body.extend(b"a\0b\0"),
            READ | READDIR | READDIRPLUS => body[16..20].copy_from_slice(&4096_u32.to_le_bytes()),
            _ => {}
        }
        Self { opcode, node: 1, body, claimed: 0, extensions: 0, choice: 0x0105_0703 }
    }

    /// Draws a request from the input: one of a known layout, or an arbitrary body. DESTROY is sent only at the end.
    pub(super) fn draw(input: &mut Input<'_>) -> Self {
        let kind = input.byte();
        let choice = input.number(4) as u32;
        let mut message = if kind % 8 == 7 {
            let opcode = 1 + input.below(60) as u32;
            let length = input.below(100);
            let body = input.take(length).to_vec();
            Self { opcode, node: input.border(8), body, claimed: 0, extensions: 0, choice }
        } else {
            let Request { opcode, node, claimed, body, .. } = Request::draw(input);
            Self { opcode, node, body, claimed, extensions: 0, choice }
        };
        if kind % 8 == 6 {
            message.extend(input);
        }
        if message.opcode == DESTROY {
            message.opcode = STATFS;
        }
        message
    }

    /// Appends extensions to the body, mostly with the correct length.
    fn extend(&mut self, input: &mut Input<'_>) {
        let before = self.body.len();
        for _ in 0..input.below(4) {
            let kind = *input.pick(&[1, 32, 0, 2, 31, 33, u32::MAX]);
            let block = match input.below(4) {
                0 => b"\x01\0\0\0\0\0\0\0security.a\0v".to_vec(),
                1 => [2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0].to_vec(),
                _ => input.take(24).to_vec(),
            };
            let size = if input.one_in(8) { input.border(4) as u32 } else { 8 + block.len() as u32 };
            self.body.extend([size.to_le_bytes(), kind.to_le_bytes()].concat());
            self.body.extend(&block);
            self.body.resize(before + (self.body.len() - before).next_multiple_of(8), 0);
        }
        let units = (self.body.len() - before) / 8;
        self.extensions = if input.one_in(8) { input.border(2) as u16 } else { units as u16 };
    }

    /// The encoded message.
    pub(super) fn encode(&self, unique: u64) -> Vec<u8> {
        let truth = size_of::<InHeader>() + self.body.len();
        let len = (truth as i64 + self.claimed).clamp(0, u32::MAX.into()) as u32;
        let (opcode, nodeid, gid, total_extlen) = (self.opcode, self.node, self.choice, self.extensions);
        let header = InHeader { len, opcode, unique, nodeid, uid: 0, gid, pid: 1, total_extlen, padding: 0 };
        [header.as_bytes(), &self.body].concat()
    }

    pub(super) fn is_as_long_as_it_says(&self) -> bool {
        self.claimed == 0
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        let bytes = self.body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    pub(super) fn long(&self, at: usize) -> u64 {
        let bytes = self.body.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }
}
