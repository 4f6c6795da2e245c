//! Headers of emulator images: fields from the input, with a valid or invalid checksum, in a file that has the claimed size or another.
//!
//! [HD1] An image opens, or is refused with a sentence that names the file.
//! [HD2] An opened image has the sizes of its header; both regions answer up to their last byte and refuse the next.
//! [HD3] No allocation depends on a size that the header claims, and no byte outside the regions changes.
//! [HD4] A header of a drive with firmware is refused here, as its DRAM was never formatted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tandemfs_device::{BlockRequest, Device, DeviceError};
use tandemfs_emulator::{CreateOptions, OpenOptions, create, info, open_image};
use tandemfs_format::checksum::crc32c;
use tandemfs_format::{SECTOR_BYTES, Sector};

use crate::Input;

const HEADER_BYTES: usize = 4096;
const CRC_AT: usize = 12;
/// Start of the memory region, and its smallest size; a smaller file cannot be an image.
const MEMORY_AT: u64 = 2 << 20;
const SIZES: [u64; 12] =
    [0, 1, 4096, 2 << 20, 4 << 20, 8 << 20, 16 << 20, (16 << 20) + 4096, 1 << 30, 1 << 40, 1 << 46, (1 << 46) + (2 << 20)];
/// Offset and size of every field after the checksum; the firmware fields in pieces.
const FIELDS: [(usize, usize); 16] = [
    (0, 8),
    (8, 4),
    (16, 8),
    (24, 8),
    (32, 32),
    (64, 4),
    (68, 4),
    (72, 96),
    (168, 24),
    (192, 12),
    (204, 60),
    (264, 16),
    (280, 16),
    (296, 36),
    (332, 52),
    (384, 16),
];
/// Start of the timing model. An image is opened with timing only if all of this is zero.
const TIMING_FROM: usize = 72;

/// A valid header, as `create` writes it.
fn valid(profile: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("a temporary directory: {error}"));
    let path = directory.path().join("image");
    let options = CreateOptions { profile: profile.to_owned(), memory_bytes: 16 << 20, block_bytes: 16 << 20 };
    create(&path, &options).unwrap_or_else(|error| panic!("{error}"));
    let mut page = vec![0; HEADER_BYTES];
    File::open(&path).and_then(|file| file.read_exact_at(&mut page, 0)).unwrap_or_else(|error| panic!("{error}"));
    page
}

fn page(input: &mut Input<'_>) -> Vec<u8> {
    static PAGES: std::sync::OnceLock<[Vec<u8>; 5]> = std::sync::OnceLock::new();
    let pages = PAGES.get_or_init(|| ["off", "romefs-a", "cmm-h", "bytefs", "bytefs-dual"].map(valid));
    let mut page = input.pick(pages).clone();
    let sealed = !input.one_in(8);
    for _ in 0..input.below(5) {
        let (at, bytes) = *input.pick(&FIELDS);
        match bytes {
            8 if at > 0 => {
                let size = if input.one_in(3) { input.border(8) } else { *input.pick(&SIZES) };
                page[at..at + 8].copy_from_slice(&size.to_le_bytes());
            }
            4 => page[at..at + 4].copy_from_slice(&(input.border(4) as u32).to_le_bytes()),
            _ => {
                let from = at + input.below(bytes);
                for (byte, new) in page[from..at + bytes].iter_mut().zip(input.take(8)) {
                    *byte = *new;
                }
            }
        }
    }
    if sealed {
        page[CRC_AT..CRC_AT + 4].fill(0);
        let crc = crc32c(&page);
        page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
    page
}

fn claimed(page: &[u8]) -> u64 {
    let size = |at: usize| page[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    MEMORY_AT.saturating_add(size(16)).saturating_add(size(24))
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let page = page(&mut input);
    let claimed = claimed(&page);
    let length = match input.below(8) {
        0 => input.number(2),
        1 => claimed.saturating_sub(1),
        2 => claimed.saturating_add(4096),
        3 => input.border(8) >> 1,
        // Space that a drive with firmware needs besides its capacity.
        4 => claimed.saturating_add(1 << 30),
        _ => claimed,
    };
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("a temporary directory: {error}"));
    let path = directory.path().join("image");
    let file = File::create_new(&path).unwrap_or_else(|error| panic!("{error}"));
    file.write_all_at(&page, 0).unwrap_or_else(|error| panic!("{error}"));
    // The host may not support files of that size.
    if file.set_len(length).is_err() {
        return;
    }
    let told = info(&path);
    let opened = open_image(&path, &OpenOptions { timing: false, ..OpenOptions::default() });
    match (&told, &opened) {
        (Ok(_), Ok(_)) => {}
        // The host may refuse such a large mapping.
        (_, Err(DeviceError::Open { reason, path: named })) => {
            assert!(Path::new(named) == path && reason.len() > 10, "refused with '{reason}' ({named})");
        }
        (told, opened) => panic!("info says {told:?}, open {:?}", opened.as_ref().err()),
    }
    let (Ok(info), Ok(device)) = (told, opened) else { return };
    assert!(length >= MEMORY_AT + info.memory_bytes + info.block_bytes, "a file of {length} B is an image of {info:?}");
    assert!(info.firmware.is_none(), "[HD4] {info:?}");
    let description = device.description();
    use_it(&*device, description.byte_window_bytes(), description.block_window_bytes());
    drop(device);
    let mut now = vec![0; HEADER_BYTES];
    File::open(&path).and_then(|file| file.read_exact_at(&mut now, 0)).unwrap_or_else(|error| panic!("{error}"));
    assert!(now == page, "the header changed in use");
    if page[TIMING_FROM..].iter().all(|byte| *byte == 0) {
        let timed = open_image(&path, &OpenOptions::default());
        assert!(timed.is_ok(), "an image without a timing model opens with it as well: {:?}", timed.err());
    }
}

/// Uses both regions up to and beyond their ends ([HD2]).
fn use_it(device: &dyn Device, memory_bytes: u64, block_bytes: u64) {
    let (memory, blocks) = (device.byte_path(), device.block_path());
    let mut line = [0; 64];
    for offset in [0, 64, memory_bytes - 64] {
        memory.load(offset, &mut line).unwrap_or_else(|error| panic!("a load at {offset}: {error}"));
    }
    memory.store(memory_bytes - 64, &[7; 64]).unwrap_or_else(|error| panic!("a store at the end: {error}"));
    for offset in [memory_bytes - 63, memory_bytes, u64::MAX - 63, u64::MAX] {
        assert!(matches!(memory.load(offset, &mut line), Err(DeviceError::OutOfRange { .. })), "a load at {offset} of {memory_bytes}");
        assert!(matches!(memory.store(offset, &line), Err(DeviceError::OutOfRange { .. })), "a store at {offset} of {memory_bytes}");
    }
    let mut sector = vec![3; SECTOR_BYTES];
    let sectors = block_bytes / SECTOR_BYTES as u64;
    let read = |number: u64, buffer: &mut [u8]| {
        blocks.transfer(&mut [BlockRequest::Read { sector: Sector::new(number), buffer: buffer.into() }], &mut || {})
    };
    // A drive may have no blocks at all.
    if let Some(last) = sectors.checked_sub(1) {
        for number in [0, last] {
            read(number, &mut sector).unwrap_or_else(|error| panic!("a read of sector {number}: {error}"));
        }
        let written = blocks.transfer(&mut [BlockRequest::Write { sector: Sector::new(last), buffer: (&sector).into() }], &mut || {});
        written.unwrap_or_else(|error| panic!("a write of the last sector: {error}"));
    }
    for number in [sectors, u64::MAX / SECTOR_BYTES as u64, u64::MAX] {
        assert!(matches!(read(number, &mut sector), Err(DeviceError::OutOfRange { .. })), "a read of sector {number} of {block_bytes} B");
        assert!(blocks.discard(Sector::new(number), 1).is_err(), "a discard of sector {number} of {block_bytes} B");
    }
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let fields =
        (0..FIELDS.len() as u8).flat_map(|field| (0..4_u8).map(move |how| vec![how & 1, 0, 1, field, 0, how * 3, how * 2, 9, 9, 9, 4]));
    fields.chain((0..8).map(|length| vec![0, 0, 0, length, 77, 1])).collect()
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[
    ("a memory region that goes on", || lie(64, 0)),
    ("a memory region that ends early", || lie(-64, 0)),
    ("a block region that goes on", || lie(0, 4096)),
    ("a block region that ends early", || lie(0, -4096)),
];

/// A device whose regions are larger than described, by these sizes.
fn lie(memory: i64, block: i64) {
    let size = |more: i64| 1_u64.wrapping_shl(20).wrapping_add_signed(more);
    let device = tandemfs_crash::MemoryDevice::new(size(memory), size(block), tandemfs_device::PersistenceDomain::Gpf);
    use_it(&device, 1 << 20, 1 << 20);
}
