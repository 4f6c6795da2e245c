//! Images of drives with firmware and damaged tables: the input changes words that a drive in use has stored in its DRAM and flash.
//!
//! [FZV1] An image opens, or is refused with a one-sentence error.
//! [FZV2] An opened image answers every access and every command with data or a one-sentence error; accesses beyond a window are refused.
//! [FZV3] After closing, the image is opened again or refused, as in [FZV1].

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use tandemfs_device::{BlockRequest, Device, DeviceError, TxId};
use tandemfs_emulator::{CreateOptions, ModelOptions, OpenOptions, create_with, open_image};
use tandemfs_format::{SECTOR_BYTES, Sector};

use crate::Input;

const MEMORY_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 4 << 20;
const PAGE: usize = 4096;
/// Where the DRAM starts, behind the header: the first word that may be damaged.
const DRAM_AT: u64 = 2 << 20;

/// An image of a drive that was killed during work.
struct Template {
    file_bytes: u64,
    /// Pages of the file that are not all zeros.
    pages: Vec<(u64, Vec<u8>)>,
    /// Offsets of the non-zero words behind the header.
    words: Vec<u64>,
}

fn transaction(number: u32) -> TxId {
    TxId::new(number).unwrap_or(TxId::MIN)
}

fn made(profile: &str) -> Template {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("a temporary directory: {error}"));
    let path = directory.path().join("image");
    let has_log = profile == "bytefs";
    let options = CreateOptions { profile: profile.to_owned(), memory_bytes: MEMORY_BYTES, block_bytes: BLOCK_BYTES };
    let chosen = ModelOptions {
        write_log_bytes: has_log.then_some(64 << 10),
        transaction_log_bytes: has_log.then_some(256),
        cache_bytes: (!has_log).then_some(64 << 10),
        channel_count: Some(1),
        no_timing: true,
        ..ModelOptions::default()
    };
    create_with(&path, &options, &chosen).unwrap_or_else(|error| panic!("{error}"));
    let device = open_image(&path, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    // Produces a log that was cleaned several times and has lines of open transactions, and more pages than the write buffer holds.
    for number in 0..3000_u32 {
        let offset = u64::from(number) * 64 * 97 % MEMORY_BYTES;
        match (device.firmware(), number % 3) {
            (Some(firmware), 0) => drop(firmware.store_tagged(transaction(1 + number / 30), offset, &[number as u8; 64])),
            (Some(firmware), 1) if number % 30 == 28 => drop(firmware.commit(transaction(1 + number / 30))),
            _ => drop(device.byte_path().store(offset, &[number as u8; 64])),
        }
        if number < 1300 {
            write(&*device, u64::from(number) * 7 % 1000, number as u8);
        }
    }
    let file = File::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let file_bytes = file.metadata().map_or(0, |found| found.len());
    let (mut pages, mut words) = (vec![], vec![]);
    for at in (0..file_bytes).step_by(PAGE) {
        let mut page = vec![0; PAGE.min((file_bytes - at) as usize)];
        file.read_exact_at(&mut page, at).unwrap_or_else(|error| panic!("{error}"));
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        if at >= DRAM_AT {
            // Of a page of equal words only the first counts: such pages hold data, not tables.
            let equal = page.chunks_exact(8).all(|word| *word == page[..8]);
            let kept = |index: usize, word: &[u8]| word.iter().any(|byte| *byte != 0) && (!equal || index == 0);
            words.extend(
                page.chunks_exact(8).enumerate().filter(|(index, word)| kept(*index, word)).map(|(index, _)| at + index as u64 * 8),
            );
        }
        pages.push((at, page));
    }
    Template { file_bytes, pages, words }
}

fn write(device: &dyn Device, sector: u64, byte: u8) {
    let buffer = [byte; SECTOR_BYTES];
    drop(device.block_path().transfer(&mut [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }], &mut || ()));
}

pub(crate) fn run(bytes: &[u8]) {
    static TEMPLATES: OnceLock<[Template; 2]> = OnceLock::new();
    let mut input = Input::new(bytes);
    let template = input.pick(TEMPLATES.get_or_init(|| ["bytefs", "bytefs-dual"].map(made)));
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("a temporary directory: {error}"));
    let path = directory.path().join("image");
    let file = File::create_new(&path).unwrap_or_else(|error| panic!("{error}"));
    file.set_len(template.file_bytes).unwrap_or_else(|error| panic!("{error}"));
    for (at, page) in &template.pages {
        file.write_all_at(page, *at).unwrap_or_else(|error| panic!("{error}"));
    }
    for _ in 0..1 + input.below(6) {
        // Mostly a word of the tables, which come first in the DRAM; sometimes the word next to it.
        let words = if input.one_in(3) { template.words.len() } else { template.words.len().min(4096) };
        let at = template.words[input.number(3) as usize % words] + if input.one_in(4) { 8 } else { 0 };
        let word = if input.one_in(2) { input.number(8) } else { input.border(8) };
        let length = 8.min(template.file_bytes.saturating_sub(at)) as usize;
        file.write_all_at(&word.to_le_bytes()[..length], at).unwrap_or_else(|error| panic!("{error}"));
    }
    for _ in 0..2 {
        match open_image(&path, &OpenOptions::default()) {
            Ok(device) => use_it(&*device, &mut input),
            Err(error) => return judge(&error),
        }
    }
}

/// Checks that an error is one sentence ([FZV1]).
fn judge(error: &DeviceError) {
    let said = error.to_string();
    assert!(said.len() > 10 && !said.contains('\n') && !said.contains("panicked"), "refused with '{said}'");
    if let DeviceError::Open { path, reason } = error {
        assert!(Path::new(path).is_absolute() && reason.len() > 10, "refused with '{reason}' ({path})");
    }
}

fn answers<T>(result: Result<T, DeviceError>) {
    if let Err(error) = result {
        judge(&error);
    }
}

/// Uses every interface at arbitrary addresses ([FZV2]).
fn use_it(device: &dyn Device, input: &mut Input<'_>) {
    let (window, sectors) = (device.description().byte_window_bytes(), device.description().block_window_bytes() / SECTOR_BYTES as u64);
    let (memory, blocks) = (device.byte_path(), device.block_path());
    let mut line = [0; 64];
    assert!(matches!(memory.load(window - 63, &mut line), Err(DeviceError::OutOfRange { .. })), "a load beyond the window");
    assert!(blocks.discard(Sector::new(sectors), 1).is_err(), "a discard beyond the window");
    for number in 0..24_u32 {
        let offset = input.number(3) * 64 % window;
        let sector = Sector::new(input.number(2) % sectors);
        let chosen = transaction(1 + u32::from(input.byte() % 120));
        answers(memory.load(offset, &mut line));
        match (input.below(9), device.firmware()) {
            (0 | 1, None) | (2, _) => answers(memory.store(offset, &[number as u8; 64])),
            (0, Some(firmware)) => answers(firmware.store_tagged(chosen, offset, &[number as u8; 64])),
            (1, Some(firmware)) => answers(firmware.commit(chosen)),
            (3, Some(firmware)) => answers(firmware.clean()),
            (4, Some(firmware)) => answers(firmware.recover()),
            (5, _) => answers(blocks.discard(sector, 1)),
            (6 | 7, _) => write(device, sector.number(), number as u8),
            _ => {
                let mut buffer = [0; SECTOR_BYTES];
                answers(blocks.transfer(&mut [BlockRequest::Read { sector, buffer: (&mut buffer).into() }], &mut || ()));
            }
        }
    }
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    (0..64_u8)
        .map(|number| vec![number & 1, number % 6, 0, number, number.wrapping_mul(37), 0, 0, 1, number, 9, 77, number, 3, 5])
        .collect()
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[
    ("a refusal without a reason", || judge(&DeviceError::Open { path: "/image".into(), reason: String::new() })),
    ("a refusal that names nothing", || judge(&DeviceError::Open { path: "write log".into(), reason: "its header is damaged".into() })),
    ("an error of two lines", || {
        judge(&DeviceError::Firmware { device: "image".into(), command: "store", reason: "no\nno place is left".into() });
    }),
    ("a window that goes on", || use_it(&Longer(tandemfs_crash::MemoryDevice::new(2 << 20, 1 << 20, DOMAIN)), &mut Input::new(&[]))),
];

const DOMAIN: tandemfs_device::PersistenceDomain = tandemfs_device::PersistenceDomain::Gpf;

/// A device that is larger than its description.
struct Longer(tandemfs_crash::MemoryDevice);

impl Device for Longer {
    fn byte_path(&self) -> &dyn tandemfs_device::BytePath {
        self.0.byte_path()
    }

    fn block_path(&self) -> &dyn tandemfs_device::BlockPath {
        self.0.block_path()
    }

    fn description(&self) -> &tandemfs_device::DeviceDescription {
        static SHORTER: OnceLock<tandemfs_device::DeviceDescription> = OnceLock::new();
        SHORTER.get_or_init(|| tandemfs_crash::MemoryDevice::new(1 << 20, 1 << 20, DOMAIN).description().clone())
    }
}
