//! `mkfs` names what a device contains, in either half, and erases it only with `--force`. Halves that are named the wrong way round are
//! called so.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use support::{Place, fails, run, succeeds};

const MEMORY_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 256 << 20;

/// The two files of a pair.
struct Pair {
    place: Place,
}

impl Pair {
    fn new() -> Self {
        let place = Place::empty();
        for (half, bytes) in [("memory", MEMORY_BYTES), ("block", BLOCK_BYTES)] {
            File::create(place.path(half)).and_then(|file| file.set_len(bytes)).expect("made");
        }
        Self { place }
    }

    fn half(&self, name: &str) -> String {
        self.place.path(name)
    }

    fn device(&self) -> String {
        format!("memory={},block={}", self.half("memory"), self.half("block"))
    }

    fn swapped(&self) -> String {
        format!("memory={},block={}", self.half("block"), self.half("memory"))
    }
}

fn plant(path: &str, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).expect("opened").write_all_at(bytes, offset).expect("written");
}

/// The types that libblkid finds.
fn types(path: &str) -> Vec<String> {
    let output = run(Command::new("wipefs").args(["--no-act", "--json", path]).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let all = found["signatures"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|found| found["type"].as_str().map(str::to_owned)).collect()
}

/// What `blkid -p` says of a whole device; empty if it recognizes nothing.
fn blkid(path: &str) -> String {
    let output = run(Command::new("blkid").args(["-p", "-o", "export", path]).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// CRC-32 as GPT has it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())))
}

/// The second header of a GPT, in the last sector, and its table of no partitions.
fn second_gpt(path: &str, bytes: u64) {
    let last = bytes / 512 - 1;
    let entries = vec![0; 128 * 128];
    let mut header = Vec::new();
    header.extend(b"EFI PART");
    for word in [0x0001_0000_u32, 92, 0, 0] {
        header.extend(word.to_le_bytes());
    }
    for sector in [last, 1, 34, last - 33] {
        header.extend(sector.to_le_bytes());
    }
    header.extend([0x5A; 16]);
    header.extend((last - 32).to_le_bytes());
    for word in [128, 128, crc32(&entries)] {
        header.extend(word.to_le_bytes());
    }
    let crc = crc32(&header);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    plant(path, last * 512, &header);
}

#[test]
fn signatures_in_either_half_are_named_and_erased_only_by_force() {
    for half in ["memory", "block"] {
        for (kind, offset, bytes) in [
            ("a btrfs file system", 0x10040, &b"_BHRfS_M"[..]),
            ("swap space", 4086, b"SWAPSPACE2"),
            ("an iso9660 file system", 0x8001, b"CD001"),
            ("a LUKS volume", 0, b"LUKS\xba\xbe\0\x01"),
        ] {
            let pair = Pair::new();
            let path = pair.half(half);
            plant(&path, offset, bytes);
            if kind.contains("iso") {
                plant(&path, 0x8000, &[1]);
            }
            if kind.contains("swap") {
                plant(&path, 1024, &1_u32.to_le_bytes());
                plant(&path, 1028, &1000_u32.to_le_bytes());
            }
            assert!(!types(&path).is_empty(), "{kind} is planted so that libblkid finds it");
            let before = fs::read(&path).expect("read");
            let said = fails(1, kind, &["mkfs", &pair.device()]);
            assert!(said.contains(&format!("{path}: contains {kind}")) && said.contains("use --force"), "{said}");
            assert!(fs::read(&path).expect("read") == before, "{half}, {kind}: left as it was");
            succeeds(&["mkfs", "--force", &pair.device()]);
            assert_eq!((types(&path), blkid(&path)), (vec![], String::new()), "{half}, {kind}");
            succeeds(&["check", &pair.device()]);
        }
    }
}

#[test]
fn file_systems_of_their_own_makers_are_named_with_their_labels() {
    for (half, other) in [("memory", "block"), ("block", "memory")] {
        let pair = Pair::new();
        let make = |program: &str, words: &[&str]| {
            let output = run(Command::new(program).args(words).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin"));
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        make("mkfs.ext4", &["-q", "-F", "-L", "mail", &pair.half(half)]);
        make("mkswap", &[&pair.half(other)]);
        let said = fails(1, "an ext4 file system 'mail'", &["mkfs", &pair.device()]);
        assert!(said.contains("swap space") && said.contains(&pair.half(other)), "both are named: {said}");
        succeeds(&["mkfs", "--force", &pair.device()]);
        assert_eq!((types(&pair.half(half)), types(&pair.half(other))), (vec![], vec![]));
        succeeds(&["check", &pair.device()]);
    }
}

#[test]
fn the_second_partition_table_at_the_end_is_found_and_erased() {
    for (half, bytes) in [("memory", MEMORY_BYTES), ("block", BLOCK_BYTES)] {
        let pair = Pair::new();
        second_gpt(&pair.half(half), bytes);
        assert_eq!(types(&pair.half(half)), ["gpt"]);
        fails(1, "a partition table (gpt)", &["mkfs", &pair.device()]);
        succeeds(&["mkfs", "--force", &pair.device()]);
        assert!(types(&pair.half(half)).is_empty());
    }
}

#[test]
fn zones_and_the_file_of_an_image_are_searched() {
    for profile in ["off", "bytefs"] {
        let place = Place::empty();
        succeeds(&["device", "create", &place.image(), "--profile", profile, "--memory", "64M", "--block", "256M"]);
        plant(&place.image(), 0x10040, b"_BHRfS_M");
        let said = fails(1, "a btrfs file system", &["mkfs", &place.image()]);
        assert!(said.contains(&format!("{}: contains a btrfs", place.image())), "{said}");
        succeeds(&["mkfs", "--force", &place.image()]);
        assert!(types(&place.image()).is_empty());
        place.check();
    }
    for (zone, start) in [("memory", 2 << 20), ("block", (2 << 20) + MEMORY_BYTES)] {
        let place = Place::empty();
        succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "64M", "--block", "256M"]);
        plant(&place.image(), start + 0x10040, b"_BHRfS_M");
        fails(1, &format!("its {zone} zone contains a btrfs file system"), &["mkfs", &place.image()]);
        succeeds(&["mkfs", "--force", &place.image()]);
        let mut magic = [1; 8];
        File::open(place.image()).and_then(|file| file.read_exact_at(&mut magic, start + 0x10040)).expect("read");
        assert_ne!(&magic, b"_BHRfS_M");
        place.check();
    }
}

#[test]
fn a_format_that_is_refused_erases_nothing() {
    let pair = Pair::new();
    plant(&pair.half("block"), 0x10040, b"_BHRfS_M");
    for words in [&["--block-size", "3K"][..], &["--label", &"l".repeat(65)]] {
        fails(1, "", &[&["mkfs", "--force", &pair.device()], words].concat());
        assert_eq!(types(&pair.half("block")), ["btrfs"]);
    }
}

#[test]
fn swapped_halves_are_called_so() {
    let pair = Pair::new();
    succeeds(&["mkfs", &pair.device()]);
    let right = format!("write {}", pair.device());
    for (status, words) in [
        (1, &["mount", &pair.swapped(), &pair.place.mountpoint()][..]),
        (8, &["check", &pair.swapped()]),
        (8, &["check", "--repair", &pair.swapped()]),
        (1, &["info", &pair.swapped()]),
        (1, &["dump", &pair.swapped(), "superblock"]),
        (1, &["label", &pair.swapped(), "mail"]),
        (1, &["resize", &pair.swapped()]),
    ] {
        let said = fails(status, "the halves are swapped", words);
        assert!(said.contains(&right), "{said}");
    }
    let said = fails(1, "the memory half of TandemFS", &["mkfs", &pair.swapped()]);
    assert!(said.contains("the block half of TandemFS") && said.contains("--force"), "{said}");
    succeeds(&["check", &pair.device()]);
    // By force they change their places; what the old ones leave behind misleads nobody.
    succeeds(&["mkfs", "--force", &pair.swapped()]);
    succeeds(&["check", &pair.swapped()]);
    fails(8, "the halves are swapped", &["check", &pair.device()]);
}

#[test]
fn a_devdax_as_the_block_half_is_called_the_memory_half() {
    let place = Place::formatted();
    let said = fails(1, "the halves are swapped", &["info", &format!("memory={},block=/dev/null", place.image())]);
    assert!(said.contains("/dev/null") && said.contains("character device"), "{said}");
}
