//! The file of a trace: a header, then frames, each with a checksum. docs/TRACE.md has the bytes.

use std::io::{self, Read, Write};

use tandemfs_format::checksum::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::record::{Known, Record};

/// The first bytes.
pub const MAGIC: [u8; 8] = *b"TDMTRACE";
/// Version of the format. A later one that only adds kinds of frames, operations or doors keeps it.
pub const VERSION: u32 = 1;
/// Most bytes of a frame.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// The first bytes of a file.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U32,
    pub(crate) crc: U32,
    pub(crate) started_seconds: U64,
}

/// Before each frame.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameBytes {
    pub(crate) kind: U32,
    pub(crate) bytes: U32,
    pub(crate) crc: U32,
}

/// The last frame's content.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EndBytes {
    pub(crate) recorded: U64,
    pub(crate) dropped: U64,
}

const _: () = assert!(size_of::<HeaderBytes>() == 24 && size_of::<FrameBytes>() == 12 && size_of::<EndBytes>() == 16);

/// Kinds of frames.
mod kind {
    pub(super) const TREE: u32 = 1;
    pub(super) const OPERATIONS: u32 = 2;
    pub(super) const END: u32 = 3;
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("it is no trace of TandemFS; 'tandemfs trace' writes them")]
    Magic,
    /// Of a later format.
    #[error("it has version {found} of the format, and this build reads {VERSION}; use a later build")]
    Version {
        /// The version.
        found: u32,
    },
    /// A part is damaged.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Where, in the file.
        at: u64,
        /// How.
        what: &'static str,
    },
}

/// Writes a trace.
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Begins one. Times of records count from `started_seconds` after 1970.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(mut to: W, started_seconds: u64) -> io::Result<Self> {
        let mut header = HeaderBytes { magic: MAGIC, version: VERSION.into(), crc: 0.into(), started_seconds: started_seconds.into() };
        header.crc = crc32c(header.as_bytes()).into();
        to.write_all(header.as_bytes())?;
        Ok(Self { to })
    }

    fn frame(&mut self, kind: u32, content: &[u8]) -> io::Result<()> {
        let head = FrameBytes { kind: kind.into(), bytes: (content.len() as u32).into(), crc: crc32c(content).into() };
        self.to.write_all(head.as_bytes())?;
        self.to.write_all(content)
    }

    /// Names that were there at the beginning.
    ///
    /// # Errors
    /// Those of writing.
    pub fn tree(&mut self, names: &[Known]) -> io::Result<()> {
        let mut content = Vec::new();
        for known in names {
            known.encode(&mut content);
            if content.len() > FRAME_BYTES_MAX / 2 {
                self.frame(kind::TREE, &std::mem::take(&mut content))?;
            }
        }
        if content.is_empty() { Ok(()) } else { self.frame(kind::TREE, &content) }
    }

    /// Records, as [`Record::encode`] makes them; at most [`FRAME_BYTES_MAX`].
    ///
    /// # Errors
    /// Those of writing.
    pub fn operations(&mut self, records: &[u8]) -> io::Result<()> {
        if records.is_empty() { Ok(()) } else { self.frame(kind::OPERATIONS, records) }
    }

    /// Hands on what is in buffers.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Ends it.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end(mut self, end: End) -> io::Result<W> {
        self.frame(kind::END, EndBytes { recorded: end.recorded.into(), dropped: end.dropped.into() }.as_bytes())?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// How a trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// Operations that it has.
    pub recorded: u64,
    /// Operations for which there was no room.
    pub dropped: u64,
}

/// A part of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Names that were there at the beginning.
    Tree(Vec<Known>),
    /// Operations, of one CPU after another; in order of their end for each.
    Operations(Vec<Record<'static>>),
    /// Nothing follows.
    End(End),
}

/// Reads a trace.
pub struct Reader<R> {
    from: R,
    at: u64,
    /// When it began, seconds since 1970.
    pub started_seconds: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// All of [`TraceError`].
    pub fn new(mut from: R) -> Result<Self, TraceError> {
        let mut bytes = [0; size_of::<HeaderBytes>()];
        let read = fill(&mut from, &mut bytes)?;
        let header = HeaderBytes::read_from_bytes(&bytes).map_err(|_| TraceError::Magic)?;
        if read < bytes.len() || header.magic != MAGIC {
            return Err(TraceError::Magic);
        }
        if header.version.get() != VERSION {
            return Err(TraceError::Version { found: header.version.get() });
        }
        if crc32c(HeaderBytes { crc: 0.into(), ..header }.as_bytes()) != header.crc.get() {
            return Err(TraceError::Damaged { at: 0, what: "the header does not match its checksum" });
        }
        Ok(Self { from, at: bytes.len() as u64, started_seconds: header.started_seconds.get() })
    }

    /// The next part; none behind the last one. A trace whose recorder was killed has no [`Frame::End`] and may end within a part, which is
    /// left out.
    ///
    /// # Errors
    /// `Io`, `Damaged`.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, TraceError> {
        loop {
            let at = self.at;
            let damaged = |what| TraceError::Damaged { at, what };
            let mut head = [0; size_of::<FrameBytes>()];
            if fill(&mut self.from, &mut head)? < head.len() {
                return Ok(None);
            }
            let head = FrameBytes::read_from_bytes(&head).map_err(|_| damaged("no frame"))?;
            let bytes = head.bytes.get() as usize;
            if bytes > FRAME_BYTES_MAX {
                return Err(damaged("a part is longer than any"));
            }
            let mut content = vec![0; bytes];
            if fill(&mut self.from, &mut content)? < bytes {
                return Ok(None);
            }
            self.at += (size_of::<FrameBytes>() + bytes) as u64;
            if crc32c(&content) != head.crc.get() {
                return Err(damaged("a part does not match its checksum"));
            }
            return Ok(Some(match head.kind.get() {
                kind::TREE => Frame::Tree(names(&content).map_err(damaged)?),
                kind::OPERATIONS => Frame::Operations(records(&content).map_err(damaged)?),
                kind::END => {
                    let end = EndBytes::read_from_bytes(&content).map_err(|_| damaged("the end is cut off"))?;
                    Frame::End(End { recorded: end.recorded.get(), dropped: end.dropped.get() })
                }
                _ => continue, // of a later build
            }));
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn names(mut bytes: &[u8]) -> Result<Vec<Known>, &'static str> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (known, rest) = Known::decode(bytes)?;
        all.push(known);
        bytes = rest;
    }
    Ok(all)
}

fn records(mut bytes: &[u8]) -> Result<Vec<Record<'static>>, &'static str> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (record, rest) = Record::decode(bytes)?;
        all.extend(record.map(Record::into_owned));
        bytes = rest;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Door, Operation};

    fn known(inode: u64) -> Known {
        Known { inode, parent: 1, size: 5, mode: 0o100_644, name: b"a".to_vec(), target: Vec::new() }
    }

    fn trace() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), 7).expect("written");
        writer.tree(&[known(2), known(3)]).expect("written");
        let mut records = Vec::new();
        (0..3).for_each(|inode| Record::new(Operation::Read, Door::Mount, inode).encode(&mut records));
        writer.operations(&records).expect("written");
        writer.operations(&[]).expect("nothing");
        writer.end(End { recorded: 3, dropped: 1 }).expect("written")
    }

    fn read(bytes: &[u8]) -> Result<Vec<Frame>, TraceError> {
        let mut reader = Reader::new(bytes)?;
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let frames = read(&trace()).expect("whole");
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0], Frame::Tree(vec![known(2), known(3)]));
        assert!(matches!(&frames[1], Frame::Operations(records) if records.iter().map(|record| record.inode).eq(0..3)));
        assert_eq!(frames[2], Frame::End(End { recorded: 3, dropped: 1 }));
    }

    #[test]
    fn what_a_killed_recorder_leaves_is_read_up_to_there() {
        let whole = trace();
        for cut in size_of::<HeaderBytes>()..whole.len() {
            let frames = read(&whole[..cut]).expect("no damage");
            assert!(frames.len() < 3 && !frames.iter().any(|frame| matches!(frame, Frame::End(_))), "{cut}");
        }
    }

    #[test]
    fn each_changed_bit_is_seen() {
        let whole = trace();
        let frames = read(&whole).expect("whole");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            // A frame's kind alone has no checksum: its content then has another form, or is passed over.
            assert!(read(&changed).map_or(true, |found| found != frames), "byte {at}");
        }
    }

    #[test]
    fn other_files_are_refused_by_a_sentence() {
        assert!(matches!(read(b""), Err(TraceError::Magic)));
        assert!(matches!(read(&[0; 100]), Err(TraceError::Magic)));
        let mut later = trace();
        later[8] = 9;
        let error = read(&later).expect_err("later").to_string();
        assert!(error.contains("version 9") && error.contains("later build"), "{error}");
    }

    #[test]
    fn frames_of_later_builds_are_passed_over() {
        let mut bytes = trace();
        let head = FrameBytes { kind: 77.into(), bytes: 3.into(), crc: crc32c(b"new").into() };
        bytes.splice(24..24, head.as_bytes().iter().chain(b"new").copied());
        assert_eq!(read(&bytes).expect("whole"), read(&trace()).expect("whole"));
    }

    #[test]
    fn the_document_has_every_field() {
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/TRACE.md")).expect("docs/TRACE.md");
        macro_rules! rows {
            ($structure:ident: $($field:ident $bytes:literal),*) => {
                $(
                    let row = format!("| {} | {} | `{}` |", std::mem::offset_of!($structure, $field), $bytes, stringify!($field));
                    assert!(document.contains(&row), "docs/TRACE.md lacks {row}");
                )*
            };
        }
        rows!(HeaderBytes: magic 8, version 4, crc 4, started_seconds 8);
        rows!(FrameBytes: kind 4, bytes 4, crc 4);
        rows!(EndBytes: recorded 8, dropped 8);
    }
}
