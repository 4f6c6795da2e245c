//! Names of damaged inodes through a real mount: `stat` and reading give EUCLEAN, and `rm`, `rm -r`, `rmdir` and rename(2) over them work.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use support::{MODES, Place, succeeds, tandemfs};

const EUCLEAN: Option<i32> = Some(117);

/// Flips a bit of an inode on the unmounted drive.
fn damage(place: &Place, zone: u64, inode: u64) {
    let text = succeeds(&["dump", &place.image(), "inode", &inode.to_string()]);
    let line = text.lines().next().and_then(|line| line.split("0x").nth(1)).expect("says where the inode is");
    let at = zone + u64::from_str_radix(line.trim(), 16).expect("a number") * 64 + 40;
    let file = OpenOptions::new().read(true).write(true).open(place.image()).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[byte[0] ^ 1], at).expect("writes");
}

/// Offset of the memory zone in the image: where the first superblock is.
fn memory_zone(place: &Place) -> u64 {
    let image = fs::read(place.image()).expect("reads");
    let magic = image.windows(8).enumerate().find(|(at, bytes)| *bytes == b"TandemFS" && at % 4096 == 4).expect("a superblock");
    magic.0 as u64 - 4
}

/// Files and directories to damage, beside some that stay whole.
fn build(root: &Path) -> Vec<u64> {
    for directory in ["tree/damaged", "empty", "whole"] {
        fs::create_dir_all(root.join(directory)).expect("made");
    }
    let damaged = ["a", "b", "tree/c", "tree/damaged/inside", "whole/neighbour"];
    for name in damaged.iter().chain(&["tree/whole", "source", "whole/file"]) {
        fs::write(root.join(name), name).expect("written");
    }
    ["a", "b", "tree/c", "tree/damaged", "empty"].iter().map(|name| fs::metadata(root.join(name)).expect("exists").ino()).collect()
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn run(program: &str, words: &[&str], path: &Path) {
    let output = support::run(Command::new(program).args(words).arg(path));
    assert!(output.status.success(), "{program} {words:?} {}: {output:?}", path.display());
}

#[test]
fn damaged_files_can_be_removed_and_replaced_and_nothing_else() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let inodes = build(mount.root());
        mount.unmount();
        let zone = memory_zone(&place);
        inodes.iter().for_each(|inode| damage(&place, zone, *inode));

        let mount = place.mount(mode);
        for name in ["a", "b", "tree/c"] {
            let path = mount.path(name);
            for _ in 0..2 {
                assert_eq!(errno(fs::symlink_metadata(&path)), EUCLEAN, "{mode}: stat {name}");
                assert_eq!(errno(fs::read(&path)), EUCLEAN, "{mode}: read {name}");
                assert_eq!(errno(OpenOptions::new().write(true).open(&path)), EUCLEAN, "{mode}: open {name}");
                assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&path)), Some(17), "{mode}: create {name}");
                assert_eq!(errno(fs::rename(&path, mount.path("moved"))), EUCLEAN, "{mode}: move {name}");
                assert_eq!(errno(fs::hard_link(&path, mount.path("linked"))), EUCLEAN, "{mode}: link {name}");
            }
        }
        let directory = fs::symlink_metadata(mount.path("tree/damaged")).expect("says that it is a directory");
        assert!(directory.is_dir() && directory.mode() & 0o7777 == 0, "{mode}");
        assert_eq!(errno(fs::read_dir(mount.path("tree/damaged")).and_then(|mut list| list.next().transpose())), EUCLEAN, "{mode}");
        assert_eq!(errno(File::create(mount.path("tree/damaged/new"))), EUCLEAN, "{mode}");
        assert_eq!(errno(fs::metadata(mount.path("tree/damaged/inside"))), EUCLEAN, "{mode}");
        assert_eq!(fs::read_dir(mount.root()).expect("lists").filter_map(Result::ok).count(), 6, "{mode}: damaged names are listed");

        run("rm", &["-f"], &mount.path("a"));
        fs::rename(mount.path("source"), mount.path("b")).expect("replaced");
        assert_eq!(fs::read_to_string(mount.path("b")).expect("reads"), "source");
        fs::remove_dir(mount.path("empty")).expect("removed");
        run("rm", &["-rf"], &mount.path("tree"));
        for name in ["a", "tree", "empty", "source"] {
            assert_eq!(errno(fs::symlink_metadata(mount.path(name))), Some(2), "{mode}: {name} is gone");
        }
        assert_eq!(fs::read_to_string(mount.path("whole/file")).expect("reads"), "whole/file");
        fs::write(mount.path("a"), "anew").expect("the name is free");
        mount.unmount();
        let output = tandemfs(&["check", "--repair", &place.image()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        place.check();
        let mount = place.mount(mode);
        assert_eq!(fs::read_to_string(mount.path("a")).expect("reads"), "anew");
        assert_eq!(fs::read_to_string(mount.path("b")).expect("reads"), "source");
        mount.unmount();
    }
}
