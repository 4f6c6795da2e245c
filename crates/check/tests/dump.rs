//! Dump shows structures from the bytes alone.

mod support;

use support::*;
use tandemfs_check::{CheckError, Dump};
use tandemfs_device::Drive;

fn shown(image: &Image, show: impl FnOnce(&Dump<'_>, &mut Vec<u8>) -> Result<(), CheckError>) -> String {
    let drive = Drive::new(image.device());
    let mut out = Vec::new();
    show(&Dump::open(&drive).expect("can be read"), &mut out).expect("is there");
    String::from_utf8(out).expect("text")
}

#[test]
fn tree_lists_names_depth_first() {
    let long = "l".repeat(60);
    let expected = format!(
        "/ [inode 1, directory, 4096 B]\n  file [inode 2, file, 12188 B]\n  directory [inode 3, directory, 4096 B]\n    \
         small [inode 6, file, 100 B]\n    link [inode 7, symbolic link, 30 B]\n  {long} [inode 4, symbolic link, 4 B]\n  \
         tree [inode 5, file, 196658 B]\n  hard link [inode 2, file, 12188 B]\n  null [inode 8, character device, 0 B]\n"
    );
    assert_eq!(shown(&Image::small(), |dump, out| dump.tree("/", out)), expected);
    assert_eq!(shown(&Image::small(), |dump, out| dump.tree("directory/small", out)), "directory/small [inode 6, file, 100 B]\n");
    let drive = Drive::new(Image::small().device());
    let missing = Dump::open(&drive).expect("can be read").tree("/directory/none", &mut Vec::new());
    assert!(matches!(missing, Err(CheckError::NotFound { .. })));
}

#[test]
fn a_directory_inside_itself_ends() {
    let mut image = Image::crashed();
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 5, b"up", ROOT);
    let text = shown(&image, |dump, out| dump.tree("/", out));
    assert_eq!(text.matches("up [inode 1").count(), 1);
}

#[test]
fn inodes_show_their_mapping() {
    let text = shown(&Image::small(), |dump, out| dump.inode(TREE, out));
    for part in
        ["block 0: page at line 0x18000, height 1", "block 0: 16 sectors from 16", "block 2: 1 sectors from 5", "block 3: log of 50 B at 0"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let text = shown(&Image::small(), |dump, out| dump.inode(FILE, out));
    assert!(text.contains("leaf of 1 lines") && text.contains("log of 200 B at 5000"), "{text}");
    let text = shown(&Image::attributed(), |dump, out| dump.inode(FILE, out));
    assert!(text.contains("attributes   2 at line 0x30000, class 0"), "{text}");
    assert!(text.contains("  security.label: 7 B 'a label'") && text.contains("  user.large: 5000 B at line 0x30040"), "{text}");
    assert!(shown(&Image::small(), |dump, out| dump.inode(LINK, out)).contains("target       file"));
    assert!(shown(&Image::small(), |dump, out| dump.inode(DIRECTORY, out)).contains("slot 1: inode 7 type 10 'link'"));
}

#[test]
fn fixed_parts_are_shown() {
    let mut image = Image::crashed();
    let line = image.line(TREE_PAGE);
    image.put_journal(2, 0, 101, &[(TREE_PAGE, line)]);
    assert!(shown(&image, |dump, out| dump.superblock(out)).contains("watermark    100"));
    assert_eq!(shown(&image, |dump, out| dump.segments(out)).lines().count(), 4);
    assert_eq!(shown(&image, |dump, out| dump.journal(out)), "ring 2 offset 128 wrap 2: record 101 (waits), lines 0x18000\n");
}
