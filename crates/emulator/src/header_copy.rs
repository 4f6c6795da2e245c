//! The header of an image and its copy, in the last page before the memory region's usual place, where nothing else is.
//!
//! [HC1] The first page counts if its checksum fits. A growth writes and syncs it first, then the copy.
//! [HC2] The copy counts if the first page is damaged and still resembles it. A page with other contents may belong to another program, which
//!       has made something of the file since: then only a repair takes the copy.
//! [HC3] Opening an image never writes its first page. It writes the copy where that is missing or different: images of older builds get theirs
//!       this way. Nothing fails if it cannot be written.

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tandemfs_device::DeviceError;
use tandemfs_format::size::size;

use crate::header::{HEADER_BYTES, ImageInfo, MEMORY_OFFSET};
use crate::image_file::{lock, refused};

/// Offset of the copy in the file, in bytes.
pub const HEADER_COPY_OFFSET: u64 = MEMORY_OFFSET - HEADER_BYTES as u64;
/// Bytes that may differ in a damaged page without its magic number.
const RESEMBLING_BYTES: usize = 64;

type Page = [u8; HEADER_BYTES];

/// The state of an image's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderState {
    /// The first page is valid.
    Whole,
    /// The first page is damaged, the copy is valid.
    Damaged,
}

/// Both pages of a file; what lies behind its end is zeros.
struct Pages {
    first: Page,
    copy: Page,
}

impl Pages {
    fn read(file: &File) -> io::Result<Self> {
        let mut pages = Self { first: [0; HEADER_BYTES], copy: [0; HEADER_BYTES] };
        for (page, offset) in [(&mut pages.first, 0), (&mut pages.copy, HEADER_COPY_OFFSET)] {
            let mut done = 0;
            while done < HEADER_BYTES {
                match file.read_at(&mut page[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(length) => done += length,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(pages)
    }

    /// The header, and whether it comes from the copy ([HC1], [HC2]).
    fn header(&self) -> Result<(ImageInfo, HeaderState), String> {
        let reason = match ImageInfo::decode(&self.first) {
            Ok(image) => return Ok((image, HeaderState::Whole)),
            Err(reason) => reason,
        };
        match ImageInfo::decode(&self.copy) {
            Ok(image) if !ImageInfo::is_sealed(&self.first) => match self.first_resembles() {
                true => Ok((image, HeaderState::Damaged)),
                false => {
                    Err("its first page holds something else; if it is an emulated drive whose header was overwritten, tandemfs check \
                              --repair writes the header again from its copy"
                        .into())
                }
            },
            _ => Err(reason),
        }
    }

    fn first_resembles(&self) -> bool {
        let has_magic = self.first[..8] == self.copy[..8];
        let differing = self.first.iter().zip(&self.copy).filter(|(one, other)| one != other).count();
        has_magic || differing <= RESEMBLING_BYTES || self.first.iter().all(|byte| *byte == 0)
    }
}

/// Reads the header of an image that is a regular file, of the first page or of the copy.
///
/// # Errors
/// [`DeviceError::Open`] where the file is no whole image.
pub(crate) fn read_header(path: &Path, file: &File) -> Result<(ImageInfo, HeaderState), DeviceError> {
    let metadata = file.metadata().map_err(|error| refused(path, format!("cannot be examined: {error}")))?;
    if metadata.is_dir() {
        return Err(refused(path, "is a directory, not an image; name a file"));
    }
    if !metadata.is_file() {
        return Err(refused(path, "is not a regular file, so it is no image; name a real pair as memory=PATH,block=PATH"));
    }
    if metadata.len() == 0 {
        return Err(refused(path, "is an empty file, not an image; remove it and use 'tandemfs device create'"));
    }
    let pages = Pages::read(file).map_err(|error| refused(path, format!("cannot be read: {error}")))?;
    let (image, state) = pages.header().map_err(|reason| refused(path, reason))?;
    if metadata.len() < image.file_bytes() {
        let reason =
            format!("was cut short: it has {}, its header says {}; restore it from a copy", size(metadata.len()), size(image.file_bytes()));
        return Err(refused(path, reason));
    }
    Ok((image, state))
}

/// Writes the header of a new image, or of one that has grown, and then its copy ([HC1]).
pub(crate) fn write_header(file: &File, image: &ImageInfo) -> io::Result<()> {
    let page = image.encode();
    file.write_all_at(&page, 0)?;
    file.sync_all()?;
    file.write_all_at(&page, HEADER_COPY_OFFSET)?;
    file.sync_all()
}

/// Writes the copy if it is not that of the first page ([HC3]).
pub(crate) fn renew_copy(file: &File) {
    let _only_the_copy_is_missing = Pages::read(file).and_then(|pages| match pages.first == pages.copy {
        true => Ok(()),
        false => file.write_all_at(&pages.first, HEADER_COPY_OFFSET).and_then(|()| file.sync_data()),
    });
}

/// Tells whether the first page of an image is valid. Needs no lock.
///
/// # Errors
/// [`DeviceError::Open`] where the file is no whole image.
pub fn header_state(path: &Path) -> Result<HeaderState, DeviceError> {
    let file = File::open(path).map_err(|error| refused(path, format!("cannot be opened: {error}")))?;
    read_header(path, &file).map(|(_, state)| state)
}

/// Writes the first page of an image again from its copy, whatever is there, if it is not valid ([HC2]). Returns whether it was written.
///
/// # Errors
/// [`DeviceError::Busy`] where the image is in use; [`DeviceError::Open`] where the file cannot be written, or is newer than this program.
pub fn restore_header(path: &Path) -> Result<bool, DeviceError> {
    let failed = |error: io::Error| refused(path, format!("the header cannot be written again: {error}"));
    let file = FileOptions::new().read(true).write(true).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Ok(false);
    }
    lock(path, &file, false)?;
    let pages = Pages::read(&file).map_err(failed)?;
    if ImageInfo::is_sealed(&pages.first) || ImageInfo::decode(&pages.copy).is_err() {
        return Ok(false);
    }
    file.write_all_at(&pages.copy, 0).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(true)
}
