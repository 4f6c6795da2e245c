//! A mapped part of an image: the DRAM of a drive with firmware, or its flash.
//!
//! [PT1] Both are mapped shared, so they use no host memory of their own, however large the image is. (The kernel counts a private mapping
//!       against the host's memory with its whole size and refuses it if the memory is smaller.)
//! [PT2] A drive opened read-only maps the image for loads only. Pages that its firmware changes (it may complete what a power failure
//!       interrupted) are copied to host memory at their first store and loaded from there afterwards.

use std::ops::Range;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::RwLock;
use tandemfs_device::{DeviceError, Mapping};

use crate::medium::{FLASH_PAGE_BYTES, PageBytes};

const PAGE: u64 = FLASH_PAGE_BYTES as u64;

/// DRAM or flash, in whole pages.
#[derive(Debug)]
pub(crate) enum Part {
    /// Stores reach the image.
    Image(Mapping),
    /// Stores stay in host memory ([PT2]).
    Overlay(Overlay),
}

impl Part {
    /// The part of this mapping, which is one for loads where the image must not be changed.
    pub(crate) fn new(mapping: Mapping, read_only: bool) -> Self {
        if read_only { Self::Overlay(Overlay { mapping, changed: RwLock::default() }) } else { Self::Image(mapping) }
    }

    /// The mapping: of an overlay without what was changed over it.
    pub(crate) fn mapping(&self) -> &Mapping {
        match self {
            Self::Image(mapping) => mapping,
            Self::Overlay(overlay) => &overlay.mapping,
        }
    }

    #[inline]
    pub(crate) fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            Self::Image(mapping) => mapping.load(offset, into),
            Self::Overlay(overlay) => overlay.load(offset, into),
        }
    }

    #[inline]
    pub(crate) fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        match self {
            Self::Image(mapping) => mapping.store(offset, from),
            Self::Overlay(overlay) => overlay.store(offset, from),
        }
    }
}

/// A mapping for loads, and the pages that were changed over it.
#[derive(Debug)]
pub(crate) struct Overlay {
    mapping: Mapping,
    changed: RwLock<HashMap<u64, Box<PageBytes>>>,
}

impl Overlay {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let changed = self.changed.read();
        if changed.is_empty() {
            return self.mapping.load(offset, into);
        }
        for (page, within, range) in self.pages_of(offset, into.len())? {
            let into = &mut into[range];
            match changed.get(&page) {
                Some(bytes) => into.copy_from_slice(&bytes[within..within + into.len()]),
                None => self.mapping.load(page * PAGE + within as u64, into)?,
            }
        }
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let pages = self.pages_of(offset, from.len())?;
        let mut changed = self.changed.write();
        for (page, within, range) in pages {
            let from = &from[range];
            let bytes = match changed.entry(page) {
                Entry::Occupied(changed) => changed.into_mut(),
                Entry::Vacant(unchanged) => {
                    let mut bytes = Box::new([0; FLASH_PAGE_BYTES]);
                    if from.len() < FLASH_PAGE_BYTES {
                        self.mapping.load(page * PAGE, &mut bytes[..])?;
                    }
                    unchanged.insert(bytes)
                }
            };
            bytes[within..within + from.len()].copy_from_slice(from);
        }
        Ok(())
    }

    /// The pages that a range touches: number, first byte within, and which bytes of the range lie there.
    fn pages_of(&self, offset: u64, length: usize) -> Result<impl Iterator<Item = (u64, usize, Range<usize>)> + use<>, DeviceError> {
        let size = self.mapping.length();
        let outside = || DeviceError::OutOfRange { device: self.mapping.name().to_owned(), offset, length: length as u64, size };
        offset.checked_add(length as u64).filter(|&end| end <= size).ok_or_else(outside)?;
        Ok(pieces(offset, length))
    }
}

/// The pages that a range of bytes touches: number, first byte within, and which bytes of the range lie there.
pub(crate) fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> + use<> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == length {
            return None;
        }
        let at = offset + start as u64;
        let within = (at % PAGE) as usize;
        let end = length.min(start + FLASH_PAGE_BYTES - within);
        let range = start..end;
        start = end;
        Some((at / PAGE, within, range))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use tandemfs_device::MappingOptions;

    use super::*;

    const LENGTH: u64 = 8 * PAGE;

    /// A part that is only read, of a file whose byte at n is n modulo 251.
    fn overlay() -> (File, Vec<u8>, Part) {
        let file = tempfile::tempfile().expect("a temporary file");
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        file.write_all_at(&bytes, 0).expect("written");
        let options = MappingOptions { length: LENGTH, read_only: true, ..MappingOptions::default() };
        let part = Part::new(Mapping::new("test", &file, options).expect("mapped"), true);
        (file, bytes, part)
    }

    #[test]
    fn ranges_fall_into_pages() {
        let found: Vec<_> = pieces(4090, 4106).collect();
        assert_eq!(found, [(0, 4090, 0..6), (1, 0, 6..4102), (2, 0, 4102..4106)]);
        assert_eq!(pieces(17, 0).count(), 0);
    }

    #[test]
    fn an_overlay_shows_what_was_stored_and_the_image_keeps_what_it_had() {
        let (file, image, part) = overlay();
        let mut expected = image.clone();
        // Within a page, over a border, whole pages, the last bytes, over what was changed before, nothing.
        for (index, (offset, length)) in
            [(10, 3), (4090, 20), (8192, 8192), (LENGTH - 5, 5), (4000, 9000), (LENGTH, 0)].into_iter().enumerate()
        {
            let bytes = vec![252 + (index % 4) as u8; length];
            part.store(offset, &bytes).expect("stored");
            expected[offset as usize..offset as usize + length].copy_from_slice(&bytes);
            for (from, to) in [(0, LENGTH), (9, 14), (4089, 4111), (4095, 4097), (8191, 16_385), (LENGTH - 6, LENGTH), (LENGTH, LENGTH)] {
                let mut found = vec![0; (to - from) as usize];
                part.load(from, &mut found).expect("loaded");
                assert!(found == expected[from as usize..to as usize], "{from}..{to} after {index}");
            }
        }
        let mut found = vec![0; LENGTH as usize];
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found == image);
    }

    #[test]
    fn accesses_outside_of_an_overlay_are_refused() {
        let (_file, _image, part) = overlay();
        for is_changed in [false, true] {
            for (offset, length) in [(LENGTH, 1), (LENGTH - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 8)] {
                assert!(matches!(part.load(offset, &mut vec![0; length]), Err(DeviceError::OutOfRange { .. })), "{is_changed}");
                assert!(matches!(part.store(offset, &vec![0; length]), Err(DeviceError::OutOfRange { .. })));
            }
            part.store(0, &[1]).expect("stored");
        }
    }
}
