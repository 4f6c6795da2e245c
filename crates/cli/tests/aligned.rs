//! Aligned files through real mounts: the hint by command and copied as an attribute, what is rewritten, what is refused with a sentence, and
//! daemons that are killed meanwhile.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use support::{Mount, Place, fails, pattern, run, succeeds};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const ATTRIBUTE: &str = "user.tandemfs.aligned";

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Whether a file has the hint, and how much is to be rewritten.
fn shown(path: &Path) -> (bool, u64) {
    let value: serde_json::Value = serde_json::from_str(&succeeds(&["aligned", "get", "--json", text(path)])).expect("JSON");
    (value[0]["aligned"].as_bool().expect("yes or no"), value[0]["left_bytes"].as_u64().expect("a number"))
}

fn left(path: &Path) -> u64 {
    shown(path).1
}

/// Writes a file in pieces from its end to its start, beside another one, so that it lies in many places.
fn fragmented(mount: &Mount, name: &str, content: &[u8]) {
    let (file, beside) = (File::create(mount.path(name)).expect("made"), File::create(mount.path("beside")).expect("made"));
    file.set_len(content.len() as u64).expect("grown");
    for at in (0..content.len()).step_by(256 * KIB).rev() {
        file.write_all_at(&content[at..content.len().min(at + 256 * KIB)], at as u64).expect("written");
        file.sync_all().expect("synced");
        beside.write_all_at(&content[..64 * KIB], (content.len() - at) as u64).expect("written");
        beside.sync_all().expect("synced");
    }
}

/// How many pieces of 2 MiB of a file lie in aligned extents, by what `dump` shows of the image of an unmounted file system.
fn aligned_pieces(place: &Place, inode: u64) -> usize {
    let dump = succeeds(&["dump", &place.image(), "inode", &inode.to_string()]);
    let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse::<u64>().ok());
    let after = |line: &str, what: &str| line.split_once(what).and_then(|(_, rest)| number(rest));
    let mut sectors: BTreeMap<u64, u64> = BTreeMap::new();
    let block_sectors = 16; // of 64 KiB
    for line in dump.lines().filter(|line| line.starts_with("block ") && line.contains(" 16 sectors from ")) {
        sectors.insert(after(line, "block ").expect("a block"), after(line, " sectors from ").expect("a sector"));
    }
    let is_aligned = |piece: &u64| {
        let Some(start) = sectors.get(&(piece * 32)).copied() else { return false };
        start % 512 == 0 && (0..32).all(|block| sectors.get(&(piece * 32 + block)) == Some(&(start + block * block_sectors)))
    };
    (0..=sectors.keys().max().map_or(0, |last| last / 32)).filter(is_aligned).count()
}

#[test]
fn a_fragmented_file_is_rewritten() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let (file, content) = (mount.path("file"), pattern(1, 9 * MIB));
    fragmented(&mount, "file", &content);
    let inode = fs::metadata(&file).expect("there").ino();
    assert_eq!(shown(&file), (false, 0));
    succeeds(&["defrag", text(&file)]);
    assert_eq!(shown(&file), (true, 0));
    assert_eq!(succeeds(&["aligned", "get", text(&file)]), format!("{}: yes\n", text(&file)));
    let rewritten = mount.stats()["file_system"]["aligned_bytes"].as_u64();
    assert!(fs::read(&file).expect("read") == content);
    mount.unmount();
    place.check();
    assert_eq!((aligned_pieces(&place, inode), rewritten), (4, Some(8 * MIB as u64)));
    let mount = place.mount("relaxed");
    assert!(fs::read(mount.path("file")).expect("read") == content);
    succeeds(&["aligned", "set", "no", text(&mount.path("file"))]);
    assert_eq!(shown(&mount.path("file")), (false, 0));
    mount.unmount();
}

#[test]
fn a_directory_is_rewritten_and_small_files_are_left_out() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    fs::create_dir_all(mount.path("d/e")).expect("made");
    for (seed, name) in (1..).zip(["d/one", "d/e/two"]) {
        fragmented(&mount, name, &pattern(seed, 5 * MIB));
    }
    fs::write(mount.path("d/small"), pattern(3, MIB)).expect("written");
    symlink("one", mount.path("d/link")).expect("made");
    succeeds(&["defrag", text(&mount.path("d"))]);
    for (name, expected) in [("d/one", true), ("d/e/two", true), ("d/small", false), ("d", false)] {
        assert_eq!(shown(&mount.path(name)), (expected, 0), "{name}");
    }
    mount.unmount();
    place.check();
}

/// Copies carry the hint. Programs set attributes after the data, so what they wrote is rewritten then.
#[test]
fn copies_are_aligned() {
    let (from, to) = (Place::formatted(), Place::formatted());
    let (source, target) = (from.mount("strict"), to.mount("strict"));
    for mount in [&source, &target] {
        fs::create_dir(mount.path("d")).expect("made");
        succeeds(&["aligned", "set", "yes", text(&mount.path("d"))]);
    }
    succeeds(&["aligned", "set", "no", text(&target.path("d"))]);
    // Small pieces, in a directory with the hint: aligned at once.
    let content = pattern(2, 5 * MIB + 1000);
    let file = File::create(source.path("d/inherits")).expect("made");
    for (piece, bytes) in content.chunks(70_000).enumerate() {
        file.write_all_at(bytes, (piece * 70_000) as u64).expect("written");
        file.sync_all().expect("synced");
    }
    drop(file);
    assert_eq!(shown(&source.path("d/inherits")), (true, 0));
    fs::write(source.path("d/without"), pattern(3, 3 * MIB)).expect("written");
    succeeds(&["aligned", "set", "no", text(&source.path("d/without"))]);
    let mut inodes = Vec::new();
    support::copy_with_attributes(&source, &target, |by| {
        let copy = |name: &str| target.path(by).join("d").join(name);
        assert!(shown(&copy("")).0 && shown(&copy("inherits")).0, "{by}");
        support::eventually("the copy is aligned", || left(&copy("inherits")) == 0);
        assert!(fs::read(copy("inherits")).expect("read") == content, "{by}");
        inodes.push((by.to_owned(), fs::metadata(copy("inherits")).expect("there").ino()));
    });
    source.unmount();
    target.unmount();
    from.check();
    to.check();
    for (by, inode) in inodes {
        assert!(aligned_pieces(&to, inode) >= 2, "{by}");
    }
}

#[test]
fn what_cannot_be_set_is_said_in_a_sentence() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let file = mount.path("file");
    fs::write(&file, b"a few bytes").expect("written");
    // An attribute that is copied to a file system without homes.
    assert_eq!(setxattr(&file, ATTRIBUTE, b"yes", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(&file, ATTRIBUTE, b"Yes", XattrFlags::empty()), Err(Errno::INVAL));
    assert_eq!(getxattr(&file, ATTRIBUTE, &mut [0; 10]), Err(Errno::NODATA));
    assert_eq!(mount.stats()["homes"]["enabled"], false);
    fails(2, "possible values", &["aligned", "set", "perhaps", text(&file)]);
    fails(2, "PATH", &["aligned", "set", "yes"]);
    fails(2, "PATH", &["defrag"]);
    fails(1, "no mounted TandemFS", &["aligned", "get", "/proc/self/status"]);
    fails(1, "no mounted TandemFS", &["defrag", "/proc/self/status"]);
    fails(1, "/absent", &["aligned", "set", "yes", "/absent"]);
    assert!(run(Command::new("mkfifo").arg(mount.path("fifo"))).status.success());
    fails(1, "only regular files and directories", &["aligned", "set", "yes", text(&mount.path("fifo"))]);
    succeeds(&["aligned", "set", "yes", text(&file), "--wait"]);
    assert_eq!(setxattr(&file, "user.tandemfs.aligned.left", b"0", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    mount.unmount();
    let mount = place.mount("ro");
    fails(1, "read-only", &["aligned", "set", "no", text(&file)]);
    fails(1, "read-only", &["defrag", text(&file)]);
    assert_eq!(shown(&file), (true, 0));
    mount.unmount();
    let mount = place.mount("noxattr");
    fails(1, "noxattr", &["defrag", text(&file)]);
    mount.unmount();
    place.check();
}

#[test]
#[ignore = "minutes: TANDEMFS_ROUNDS=200 cargo test -p tandemfs --test aligned -- --ignored"]
fn daemons_are_killed_amid_ageing_rewriting_and_moving() {
    killed_again_and_again(&Place::formatted(), true);
}

/// The same on a memory half alone, where nothing can move to another zone.
#[test]
#[ignore = "minutes: TANDEMFS_ROUNDS=200 cargo test -p tandemfs --test aligned -- --ignored"]
fn daemons_are_killed_amid_ageing_and_rewriting_without_blocks() {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "optane", "--memory", "256M"]);
    succeeds(&["mkfs", &place.image(), "--block-size", "64K"]);
    killed_again_and_again(&place, false);
}

/// The daemon killed again and again amid ageing, rewriting, moving and acknowledged writes: these are there, check is clean after each kill,
/// and at the end all that was removed has come back. `TANDEMFS_ROUNDS` kills, of which the one of `TANDEMFS_SEED` is the first.
fn killed_again_and_again(place: &Place, has_blocks: bool) {
    const PIECE: usize = 64 * KIB;
    let given = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, rounds) = (given("TANDEMFS_SEED").unwrap_or(0), given("TANDEMFS_ROUNDS").unwrap_or(200));
    let mut expected = [pattern(1, 9 * MIB + 5000), pattern(2, 6 * MIB)];
    let names = ["a", "b"];
    let mount = place.mount("strict");
    for (name, content) in names.iter().zip(&expected) {
        fragmented(&mount, name, content);
    }
    fs::remove_file(mount.path("beside")).expect("removed");
    let mut mount = Some(mount);
    // Files that come and go, each named by the round that made it, with its length.
    let mut aged: Vec<(u64, usize)> = Vec::new();
    let (mut interrupted, mut writes, mut rewritten) = (0, 0_u64, 0);
    for round in first..first + rounds {
        let alive = mount.take().unwrap_or_else(|| place.mount("strict"));
        let files = names.map(|name| alive.path(name));
        let opened = files.each_ref().map(|file| File::options().write(true).open(file).expect("opens"));
        // Holes of odd sizes in what was aligned, so that there is something to rewrite.
        for (which, file) in opened.iter().enumerate() {
            for piece in 0..3 {
                let at = (round as usize * 7 + piece * 31) * PIECE % (expected[which].len() / PIECE * PIECE);
                let bytes = pattern(round + piece as u64, PIECE);
                file.write_all_at(&bytes, at as u64).expect("acknowledged");
                expected[which][at..at + PIECE].copy_from_slice(&bytes);
            }
        }
        for file in &files {
            succeeds(&["aligned", "set", "yes", text(file)]);
        }
        if has_blocks && round % 3 == 2 {
            succeeds(&["home", "set", ["memory", "block"][(round / 3 % 2) as usize], text(&files[(round % 2) as usize])]);
        }
        let until = Instant::now() + Duration::from_millis(round * 37 % 1400);
        while Instant::now() < until {
            let (which, random) = ((writes % 2) as usize, writes.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let at = (random >> 40) as usize % (expected[which].len() - PIECE);
            let (at, length) = if random % 4 == 0 { (at / PIECE * PIECE, PIECE) } else { (at, 1 + random as usize % 3000) };
            let bytes = pattern(writes, length);
            opened[which].write_all_at(&bytes, at as u64).expect("acknowledged");
            expected[which][at..at + length].copy_from_slice(&bytes);
            writes += 1;
            // Ageing: files of all sizes, made and removed, synced before they count.
            if writes % 16 == 0 {
                let (name, length) = (writes * 1000 + round, [3000, 70_000, 700_000, 3 * MIB][(random >> 20) as usize % 4]);
                let file = File::create(alive.path(&format!("aged{name}"))).expect("made");
                file.write_all_at(&pattern(name, length), 0).expect("written");
                file.sync_all().expect("synced");
                aged.push((name, length));
                if aged.len() > 24 {
                    let (gone, _) = aged.remove((random >> 50) as usize % aged.len());
                    fs::remove_file(alive.path(&format!("aged{gone}"))).expect("removed");
                }
            }
        }
        drop(opened);
        interrupted += u64::from(files.iter().any(|file| left(file) > 0));
        rewritten += alive.stats()["file_system"]["aligned_bytes"].as_u64().expect("a number") / (2 * MIB as u64);
        alive.kill();
        place.check();
        let alive = place.mount("strict");
        for (name, content) in names.iter().zip(&expected) {
            assert!(fs::read(alive.path(name)).expect("read") == *content, "round {round}, {name}");
        }
        for (name, length) in &aged {
            let found = fs::read(alive.path(&format!("aged{name}"))).expect("read");
            assert!(found == pattern(*name, *length), "round {round}, aged{name}");
        }
        mount = Some(alive);
    }
    let mount = mount.expect("mounted");
    for entry in fs::read_dir(mount.root()).expect("listed") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    let homes = |name: &str| mount.stats()["homes"][name].as_u64().expect("a number");
    support::eventually("what they took comes back", || homes("bytes") == 0);
    mount.unmount();
    place.check(); // the maps that the unmount saved are those of the tree: no page leaked
    println!("{rounds} kills, {interrupted} amid a rewriting, {rewritten} pieces rewritten, {writes} writes, {} files aged", aged.len());
}
