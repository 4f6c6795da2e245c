//! The header of an image and its copy: damage of either loses nothing.

use std::fs::{File, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tandemfs_device::DeviceError;
use tandemfs_emulator::{
    CreateOptions, DeviceOptions, HEADER_COPY_OFFSET, HeaderState, create, grow, header_state, info, open_device, restore_header,
};
use tandemfs_format::checksum::crc32c;
use tempfile::TempDir;

const PAGE: usize = 4096;

fn image(profile: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk.img");
    create(&path, &CreateOptions { profile: profile.into(), memory_bytes: 16 << 20, block_bytes: 512 << 20 }).expect("created");
    (directory, path)
}

fn open(path: &Path, read_only: bool) -> Result<(), DeviceError> {
    let options = DeviceOptions { read_only, timing: false, ..DeviceOptions::default() };
    open_device(path.to_str().expect("UTF-8"), &options).map(drop)
}

fn page(path: &Path, offset: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    File::open(path).and_then(|file| file.read_exact_at(&mut page, offset)).expect("read");
    page
}

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    FileOptions::new().write(true).open(path).and_then(|file| file.write_all_at(bytes, offset)).expect("written");
}

#[test]
fn each_damaged_region_of_the_header_is_read_from_the_copy_and_repaired() {
    for profile in ["off", "bytefs"] {
        let (_directory, path) = image(profile);
        let (whole, expected) = (page(&path, 0), info(&path).expect("an image"));
        assert!(whole == page(&path, HEADER_COPY_OFFSET), "made with its copy");
        let regions = (0..512).step_by(16).map(|start| (start, 16)).chain((512..PAGE).step_by(512).map(|start| (start, 512)));
        for (start, length) in regions.chain([(8, 4088), (0, 60)]) {
            let damaged =
                whole.iter().enumerate().map(|(at, byte)| if (start..start + length).contains(&at) { byte ^ 0x35 } else { *byte });
            let damaged: Vec<u8> = damaged.collect();
            write(&path, 0, &damaged);
            assert_eq!(header_state(&path).expect("an image"), HeaderState::Damaged, "{start}");
            assert_eq!(info(&path).expect("an image"), expected);
            open(&path, true).expect("opens");
            open(&path, false).expect("opens");
            assert!(page(&path, 0)[..] == damaged, "opening never writes it");
            assert!(restore_header(&path).expect("an image"), "{start}");
            assert!(page(&path, 0) == whole);
            assert_eq!(header_state(&path).expect("an image"), HeaderState::Whole);
            assert!(!restore_header(&path).expect("an image"), "once");
        }
        // Lost completely, as a hole.
        write(&path, 0, &[0; PAGE]);
        open(&path, false).expect("opens");
        assert!(restore_header(&path).expect("an image"));
        for start in (0..PAGE).step_by(256) {
            write(&path, HEADER_COPY_OFFSET + start as u64, &[0xee; 256]);
            open(&path, true).expect("opens");
            assert!(page(&path, HEADER_COPY_OFFSET) != whole, "a reader writes nothing");
            open(&path, false).expect("opens");
            assert!(page(&path, HEADER_COPY_OFFSET) == whole, "{start}");
        }
    }
}

#[test]
fn images_without_a_copy_get_one_when_they_are_opened_for_writing() {
    let (_directory, path) = image("off");
    let whole = page(&path, 0);
    write(&path, HEADER_COPY_OFFSET, &[0; PAGE]);
    open(&path, true).expect("opens");
    assert_eq!(page(&path, HEADER_COPY_OFFSET), [0; PAGE]);
    // Damaged before that: nothing to read it from.
    write(&path, 20, &[0xff]);
    assert!(open(&path, false).expect_err("refused").to_string().contains("header is damaged"));
    assert!(!restore_header(&path).expect("a file"));
    write(&path, 0, &whole);
    open(&path, false).expect("opens");
    assert!(page(&path, HEADER_COPY_OFFSET) == whole);
}

#[test]
fn other_contents_and_newer_headers_are_left_alone() {
    let (_directory, path) = image("off");
    let whole = page(&path, 0);
    let foreign = [0x5a; PAGE];
    write(&path, 0, &foreign);
    for read_only in [true, false] {
        let said = open(&path, read_only).expect_err("refused").to_string();
        assert!(said.contains("holds something else") && said.contains("check --repair") && !said.contains('\n'), "{said}");
    }
    assert!(page(&path, 0) == foreign);
    assert!(restore_header(&path).expect("asked for"));
    assert!(page(&path, 0) == whole);
    // A header of a later version, whatever the copy says.
    let mut newer = whole;
    newer[8..12].copy_from_slice(&9_u32.to_le_bytes());
    newer[12..16].fill(0);
    let crc = crc32c(&newer);
    newer[12..16].copy_from_slice(&crc.to_le_bytes());
    write(&path, 0, &newer);
    assert!(open(&path, false).expect_err("refused").to_string().contains("version 9"));
    assert!(!restore_header(&path).expect("a file"));
    assert!(page(&path, 0) == newer);
}

#[test]
fn a_growth_renews_the_copy() {
    let (_directory, path) = image("off");
    grow(&path, Some(32 << 20), Some(600 << 20)).expect("grows");
    let expected = info(&path).expect("an image");
    assert!(page(&path, 0) == page(&path, HEADER_COPY_OFFSET));
    write(&path, 16, &[0xff; 8]);
    assert_eq!(info(&path).expect("an image"), expected);
    open(&path, false).expect("opens");
}

#[test]
fn the_header_of_an_image_in_use_is_not_written() {
    let (_directory, path) = image("off");
    let options = DeviceOptions { timing: false, ..DeviceOptions::default() };
    let _in_use = open_device(path.to_str().expect("UTF-8"), &options).expect("opens");
    write(&path, 0, &[0; 8]);
    assert!(matches!(restore_header(&path), Err(DeviceError::Busy { .. })));
}
