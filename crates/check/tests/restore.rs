//! `restore` copies out what can be read, lists what cannot, writes nothing to the image and nothing outside of its directory.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;

use support::restored::*;
use support::*;
use tandemfs_check::{RestoreError, RestoreOptions, RestoreReport};
use tandemfs_format::mapping::{Record, SlotClass};
use tandemfs_format::{EMPTY_LINE, LINE_BYTES, LineAddress, SECTOR_BYTES};

/// What is in a line of which nothing is left; a single wrong bit would be corrected.
const NOISE: [u8; LINE_BYTES] = [0x5b; LINE_BYTES];

fn plain() -> RestoreOptions {
    RestoreOptions::default()
}

/// The small image with a target of its long link that is one.
fn image() -> Image {
    let mut image = Image::attributed();
    let target = b"../a/target/of/thirty/bytes/xx";
    image.memory[(DATA + 1) as usize * LINE_BYTES..][..30].copy_from_slice(target);
    let crc = image.pair().data(target);
    image.edit_single_log(LONG_LINK, |log| log.crc = crc);
    image
}

/// The content of [`FILE`].
fn file() -> Vec<u8> {
    let mut bytes: Vec<u8> = (1..4).flat_map(|sector| data_of(sector, SECTOR_BYTES)).collect();
    bytes[100..164].copy_from_slice(&data_of(DATA, 64));
    bytes[5000..5200].copy_from_slice(&data_of(DATA + 4, 200));
    bytes.truncate(12_188);
    bytes
}

fn run(image: &Image) -> (RestoreReport, Tree) {
    let device = image.device();
    let before = device.bytes();
    let (report, tree) = restored(device.clone(), &plain());
    assert!(device.bytes() == before, "the image is only read");
    assert_eq!(report.stopped, None);
    (report, tree)
}

/// What the target refuses to a user who is not root, or in a container, is none of the image's.
fn assert_whole(report: &RestoreReport) {
    assert!(report.is_whole(), "{:?} {:?}", report.damaged, report.missing);
    for refused in &report.refused {
        assert!(["owner", "extended attribute", "device, FIFO or socket"].contains(&refused.what), "{refused:?}");
    }
}

#[test]
fn a_whole_image_is_restored_as_it_is() {
    let (report, tree) = run(&image());
    assert_whole(&report);
    let long = format!("/{}", "l".repeat(60));
    assert_eq!(paths(&tree), ["/directory", "/directory/link", "/directory/small", "/file", "/hard link", &long, "/tree"]);
    assert_eq!((report.files, report.directories, report.links, report.hard_links), (3, 2, 2, 1));
    assert!(tree["/file"].content == file());
    assert_eq!((tree["/file"].mode & 0o7777, tree["/file"].links), (0o644, 2));
    assert_eq!(tree["/hard link"].content, tree["/file"].content);
    assert_eq!(tree["/directory"].mode & 0o7777, 0o755);
    assert!(tree.values().all(|entry| entry.changed == (1_800_000_000, 5)), "{tree:?}");
    assert_eq!(tree[&long].content, b"file");
    assert_eq!(tree["/directory/link"].content, b"../a/target/of/thirty/bytes/xx");
    assert_eq!(tree["/directory/small"].content, data_of(DATA + 8, 100));
    let content = &tree["/tree"].content;
    let block = BLOCK as usize;
    assert_eq!(content.len(), 3 * block + 50);
    assert!((16..32).all(|sector| content[(sector - 16) * SECTOR_BYTES..][..SECTOR_BYTES] == data_of(sector as u64, SECTOR_BYTES)));
    assert!(content[block..2 * block].iter().all(|byte| *byte == 0));
    assert!(content[2 * block..][..SECTOR_BYTES] == data_of(5, SECTOR_BYTES));
    assert!(content[3 * block..] == data_of(DATA + 2, 50));
}

#[test]
fn holes_owners_and_attributes_are_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = restored_to(image().device(), folder.path(), &plain()).expect("restores");
    let tree_file = fs::metadata(folder.path().join("tree")).expect("exists");
    assert!(tree_file.blocks() * 512 < tree_file.len(), "a hole stays a hole");
    let refused = |what: &str| report.refused.iter().any(|refused| refused.what == what);
    assert_eq!(tree_file.uid() == 1000 && tree_file.gid() == 100, !refused("owner"));
    let mut value = [0; 6000];
    match rustix::fs::getxattr(folder.path().join("file"), "user.large", &mut value) {
        Ok(length) => assert_eq!(value[..length], data_of(9, 5000)),
        Err(_) => assert!(refused("extended attribute")),
    }
    match fs::symlink_metadata(folder.path().join("null")) {
        Ok(null) => assert_eq!((null.rdev(), null.mode() & 0o7777), (3, 0o666)),
        Err(_) => assert!(refused("device, FIFO or socket")),
    }
}

#[test]
fn a_journal_that_waits_is_replayed_in_memory() {
    let mut image = image();
    let old = image.clone();
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 7, b"new", FILE);
    let name = image.line(DIRECTORY_PAGE + 7);
    image = old;
    image.put_journal(0, 0, 101, &[(DIRECTORY_PAGE + 7, name)]);
    let (report, tree) = run(&image);
    assert_whole(&report);
    assert!(tree["/directory/new"].content == file());
}

#[test]
fn damaged_data_are_holes_unless_errors_are_ignored() {
    let mut image = image();
    image.blocks[2 * SECTOR_BYTES + 17] ^= 4; // the second sector of the file
    image.memory[DATA as usize * LINE_BYTES] ^= 1; // its log at 100
    let (report, tree) = run(&image);
    let ranges: Vec<_> = report.damaged.iter().map(|range| (range.path.as_str(), range.offset, range.bytes, range.copied)).collect();
    // The log at 5000 is newer than the sector and verifies.
    assert_eq!(ranges, [("/file", 100, 64, false), ("/file", 4096, 904, false), ("/file", 5200, 2992, false)]);
    let mut expected = file();
    for (_, offset, bytes, _) in ranges {
        expected[offset as usize..(offset + bytes) as usize].fill(0);
    }
    assert!(tree["/file"].content == expected);
    let (report, tree) = restored(image.device(), &RestoreOptions { ignore_errors: true, ..plain() });
    assert!(report.damaged.iter().all(|range| range.copied) && report.damaged_bytes == 64 + 904 + 2992);
    let mut expected = file();
    expected[100] ^= 1;
    expected[4096 + 17] ^= 4;
    assert!(tree["/file"].content == expected);
}

#[test]
fn sectors_below_a_lost_leaf_are_older_and_do_not_count() {
    let mut image = image();
    image.put(FILE_LEAF, NOISE);
    let (report, tree) = run(&image);
    assert_eq!((report.damaged.len(), report.damaged[0].offset, report.damaged[0].bytes), (1, 0, 12_188));
    assert!(tree["/file"].content.iter().all(|byte| *byte == 0) && tree["/file"].size == 12_188);
}

#[test]
fn a_sector_that_cannot_be_read_costs_only_itself() {
    let image = image();
    let device = image.device();
    device.faults.lock().expect("lock").bad_sector = Some(20);
    let (report, tree) = restored(device, &plain());
    let ranges: Vec<_> = report.damaged.iter().map(|range| (range.path.as_str(), range.offset, range.bytes)).collect();
    assert_eq!(ranges, [("/tree", 4 * 4096, 4096)]);
    assert!(tree["/tree"].content[..4 * 4096].iter().any(|byte| *byte != 0));
}

#[test]
fn a_damaged_mapping_line_costs_only_its_blocks() {
    let mut image = image();
    image.put(TREE_PAGE + 1, NOISE); // blocks 3 to 5
    let (report, tree) = run(&image);
    assert_eq!((report.damaged[0].offset, report.damaged[0].bytes), (3 * BLOCK, 50));
    assert_eq!(tree["/tree"].size, 3 * BLOCK + 50);
}

/// Names are found by their checksums, whatever of the directory is lost: its mapping, its inode, both lines of the root.
#[test]
fn names_of_damaged_directories_are_found() {
    let (_, whole) = run(&image());
    let mut no_mapping = image();
    no_mapping.edit_inode(DIRECTORY, |inode| inode.root = [0; 20]);
    let (report, tree) = run(&no_mapping);
    assert_whole(&report);
    assert_eq!(tree, whole);
    for (inode, line) in [(DIRECTORY, 0), (DIRECTORY, 1), (ROOT, 0), (ROOT, 1)] {
        let mut damaged = image();
        damaged.put(Image::inode_line(inode) + line, NOISE);
        let (report, tree) = run(&damaged);
        // An inode of which the second line is left gets a new first one, if a name says its type.
        let is_rebuilt = (inode, line) == (DIRECTORY, 0);
        assert_eq!((report.missing.len(), report.notes.len()), if is_rebuilt { (0, 1) } else { (1, 0) }, "{report:?}");
        assert!(report.missing.iter().all(|missing| missing.inode == inode) && report.damaged.is_empty());
        assert_eq!(paths(&tree), paths(&whole), "inode {inode}, line {line}");
        assert!(tree["/file"] == whole["/file"] && tree["/directory/small"] == whole["/directory/small"]);
    }
}

#[test]
fn a_directory_without_inode_and_name_is_found_by_its_pages() {
    let mut image = image();
    image.put(ROOT_PAGE + 1, EMPTY_LINE);
    image.put(Image::inode_line(DIRECTORY), [3; 64]);
    let (report, tree) = run(&image);
    assert!(paths(&tree).contains(&"/lost+found/#3/small"), "{:?}", paths(&tree));
    assert!(report.missing.iter().any(|missing| missing.inode == DIRECTORY));
}

#[test]
fn what_has_no_name_goes_to_lost_and_found() {
    let mut image = image();
    image.put(ROOT_PAGE + 1, EMPTY_LINE); // the directory with all below it
    image.put(ROOT_PAGE + 4, NOISE); // the name of the tree
    let (report, tree) = run(&image);
    assert_eq!(report.nameless, 2);
    assert!(tree["/lost+found/#3/small"].content == data_of(DATA + 8, 100));
    assert_eq!(tree["/lost+found/#5"].size, 3 * BLOCK + 50);
    assert!(report.missing.iter().any(|missing| missing.reason.contains("names are damaged")), "{:?}", report.missing);
}

#[test]
fn a_file_without_inode_is_listed() {
    let mut image = image();
    image.put(Image::inode_line(SMALL) + 1, NOISE);
    let (report, tree) = run(&image);
    assert!(!tree.contains_key("/directory/small") && tree.contains_key("/directory/link"));
    assert_eq!((report.missing[0].inode, report.missing[0].path.as_str()), (SMALL, "/directory/small"));
}

#[test]
fn directories_in_a_circle_are_restored_once() {
    let mut image = image();
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 9, b"up", ROOT);
    image.put_name(DIRECTORY, DIRECTORY_PAGE, 10, b"self", DIRECTORY);
    let (report, tree) = run(&image);
    assert_eq!(report.missing.len(), 2);
    assert!(tree.contains_key("/directory/small") && !tree.contains_key("/directory/up"));
}

#[test]
fn one_inode_is_restored_alone() {
    let (report, tree) = restored(image().device(), &RestoreOptions { inode: Some(DIRECTORY), ..plain() });
    assert!(report.is_whole());
    assert_eq!(paths(&tree), ["/#3", "/#3/link", "/#3/small"]);
    let (_, tree) = restored(image().device(), &RestoreOptions { inode: Some(FILE), ..plain() });
    assert!(paths(&tree) == ["/#2"] && tree["/#2"].content == file());
    let (report, tree) = restored(image().device(), &RestoreOptions { inode: Some(NOBODY), ..plain() });
    assert!(tree.is_empty() && report.missing.len() == 1);
}

#[test]
fn a_dry_run_reads_and_writes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut image = image();
    image.put(FILE_LEAF, NOISE);
    let options = RestoreOptions { dry_run: true, ..plain() };
    let report = restored_to(image.device(), &folder.path().join("absent"), &options).expect("reads");
    assert_eq!((report.files, report.damaged.len()), (3, 1));
    assert!(!folder.path().join("absent").exists());
}

#[test]
fn a_directory_in_use_is_refused_and_an_interrupted_run_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("mine"), "stays").expect("writes");
    let refused = restored_to(image().device(), folder.path(), &plain());
    assert!(matches!(refused, Err(RestoreError::NotEmpty(_))));
    let force = RestoreOptions { force: true, ..plain() };
    assert_whole(&restored_to(image().device(), folder.path(), &force).expect("restores"));
    let whole = tree(folder.path());
    // As an interruption leaves it: a file that is missing, one that is incomplete, and a link that leads to the user's file.
    fs::remove_file(folder.path().join("directory/small")).expect("removes");
    fs::write(folder.path().join("tree"), "part").expect("writes");
    fs::remove_file(folder.path().join("hard link")).expect("removes");
    std::os::unix::fs::symlink(folder.path().join("mine"), folder.path().join("hard link")).expect("links");
    let report = restored_to(image().device(), folder.path(), &force).expect("restores");
    assert_whole(&report);
    assert_eq!((report.files, report.hard_links), (2, 1), "{report:?}");
    let left_out = |mut tree: Tree| {
        tree.remove("/mine");
        tree
    };
    assert_eq!(left_out(tree(folder.path())), left_out(whole));
    assert_eq!(fs::read_to_string(folder.path().join("mine")).expect("reads"), "stays");
}

/// Names that lead out of the directory, and a symbolic link with the name of a directory.
fn hostile() -> Image {
    let mut image = image();
    image.put_name(ROOT, ROOT_PAGE, 12, b"../outside/evil", FILE);
    image.put_name(ROOT, ROOT_PAGE, 13, b"..", SMALL);
    image.put_name(ROOT, ROOT_PAGE, 14, b"directory/deep", SMALL);
    let mut target = [0; 20];
    target[..10].copy_from_slice(b"../outside");
    image.edit_inode(LINK, |inode| (inode.root, inode.size) = (target, 10));
    image.put_name(ROOT, ROOT_PAGE, 15, b"way", LINK);
    image.add_empty(9, tandemfs_format::inode::file_type::DIRECTORY | 0o755, 2);
    let page = DENTRIES + 128;
    image.edit_inode(9, |inode| {
        (inode.size, inode.space_512, inode.root) = (4096, 8, Record::Memory(LineAddress::new(page)).encode().to_bytes());
    });
    image.put_name(ROOT, ROOT_PAGE, 16, b"way", 9);
    image.put_name(9, page, 0, b"evil", SMALL);
    image
}

fn stays_inside() {
    let folder = tempfile::tempdir().expect("a folder");
    let (top, outside) = (folder.path().join("top/copy"), folder.path().join("top/outside"));
    fs::create_dir_all(&outside).expect("a directory");
    let report = restored_to(hostile().device(), &top, &plain()).expect("restores");
    assert!(fs::read_dir(&outside).expect("reads").next().is_none(), "nothing outside");
    assert_eq!(fs::read_dir(folder.path().join("top")).expect("reads").count(), 2, "nothing beside");
    assert!(!report.is_whole());
    let tree = tree(&top);
    assert_eq!(tree["/way"].content, b"../outside");
    assert!(tree.contains_key("/lost+found/#9/evil"), "{:?}", paths(&tree));
}

#[test]
fn nothing_is_written_outside_whatever_the_names_are() {
    stays_inside();
}

#[test]
fn a_full_target_is_said_and_what_is_there_counts() {
    // A file larger than any file system takes: the log in its last block cannot be written.
    let mut image = image();
    let log = image.log(DATA + 16, 0, 50, SlotClass::Line);
    image.put_record(TREE, TREE_PAGE, 191, Record::SingleLog(log));
    image.edit_inode(TREE, |inode| inode.size = 1 << 62);
    let (report, tree) = run(&image);
    assert!(report.refused.iter().any(|refused| refused.first_path == "/tree"), "{:?}", report.refused);
    assert!(tree["/file"].content == file(), "the others are there");
}

fn verified_bytes_only() {
    let mut image = image();
    image.blocks[2 * SECTOR_BYTES + 17] ^= 4;
    assert!(!restored(image.device(), &plain()).0.is_whole());
}

/// A page of another directory's that has one name.
fn one_line_is_no_proof() {
    let mut image = image();
    image.put(ROOT_PAGE + 1, EMPTY_LINE);
    image.put(Image::inode_line(DIRECTORY), [3; 64]);
    image.put(DIRECTORY_PAGE, [9; 64]);
    image.put(DIRECTORY_PAGE + 1, EMPTY_LINE);
    let (_, tree) = restored(image.device(), &plain());
    assert!(!paths(&tree).iter().any(|path| path.starts_with("/lost+found/#3")), "{:?}", paths(&tree));
}

#[test]
fn deliberate_bugs_of_restore_are_caught() {
    use tandemfs_check::mutant::Mutant;
    support::assert_caught(&[
        (stays_inside, Mutant::NamesTrusted),
        (verified_bytes_only, Mutant::RestoresUnverified),
        (one_line_is_no_proof, Mutant::OneLineProves),
    ]);
}
