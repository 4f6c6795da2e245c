//! Deliberate bugs of quota, each of which a scenario finds. A mutant is global to the process, so the scenarios run one after the other.

mod support;

use support::bugs::{caught, sound};
use support::quota::{FILE, NOBODY, TREE, bound, changes, compare, counted, limit, set_limits};
use tandemfs_crash::{Random, Setting, check_device, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::quota::QuotaKind;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, NewInode, RenameMode, WriteOptions};

fn settings() -> [Setting; 2] {
    let small = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    [small.clone(), small.with_firmware()]
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &[u8], mode: u16) -> Result<InodeNumber, String> {
    let new = NewInode { mode, uid: 1, gid: 1, rdev: 0, target: b"" };
    fs.create(parent, name, &new).map(|made| made.inode).map_err(|error| error.to_string())
}

/// Usage in memory against what is counted anew, and a limit that is never passed.
fn counts(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let none = limit(0, 0);
    set_limits(&fs, QuotaKind::User, 1, [none, limit(0, 512 << 10), limit(0, 9)]);
    changes(&fs, &mut Random::new(3), 150, &mut |_| {});
    compare(&device, &fs)?;
    let used = counted(&fs).into_iter().find(|usage| (usage.kind, usage.id) == ("user", 1));
    if used.is_some_and(|used| used.block_bytes > 512 << 10 || used.inodes > 12) {
        return Err("a limit was passed".into());
    }
    let file = make(&fs, InodeNumber::ROOT, b"full", FILE)?;
    let over = bound(&fs, NOBODY, || fs.write(file, 0, &fill(1, 600 << 10), WriteOptions::default()));
    if !matches!(over, Err(Error::QuotaExceeded { .. })) {
        return Err(format!("a write over the limit: {over:?}"));
    }
    compare(&device, &fs)?;
    fs.unmount().map_err(|error| error.to_string())?;
    check_device(&device, false).map(drop)
}

/// A commit that finds its ring full gives up what it has counted, and begins anew.
fn full_rings(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    set_limits(&fs, QuotaKind::User, 1, [limit(0, 0), limit(0, 0), limit(0, 1000)]);
    for _ in 0..6000 {
        make(&fs, InodeNumber::ROOT, b"file", FILE)?;
        fs.unlink(InodeNumber::ROOT, b"file").map_err(|error| error.to_string())?;
    }
    compare(&device, &fs)
}

/// A file of another project stays outside.
fn projects(setting: &Setting) -> Result<(), String> {
    let fs = mount(&setting.format(), &setting.mount)?;
    let tree = make(&fs, InodeNumber::ROOT, b"tree", TREE)?;
    fs.set_project_of_tree(tree, 5, &mut || true).map_err(|error| error.to_string())?;
    make(&fs, InodeNumber::ROOT, b"outside", FILE)?;
    match fs.rename(InodeNumber::ROOT, b"outside", tree, b"in", RenameMode::Replace) {
        Err(Error::OtherProject) => Ok(()),
        other => Err(format!("moved into the tree: {other:?}")),
    }
}

/// What is moved out of a tree while it gets a project does not get it, and neither does what is made under the number of a removed file.
fn projects_of_changing_trees(setting: &Setting) -> Result<(), String> {
    let fs = mount(&setting.format(), &setting.mount)?;
    let tree = make(&fs, InodeNumber::ROOT, b"tree", TREE)?;
    let moved = make(&fs, tree, b"moved", FILE)?;
    let inside = make(&fs, tree, b"inside", TREE)?;
    let removed = make(&fs, tree, b"removed", FILE)?;
    let mut others = Vec::new();
    let mut change = || {
        if others.is_empty() {
            fs.rename(tree, b"moved", InodeNumber::ROOT, b"moved", RenameMode::Replace).expect("moved");
            fs.unlink(tree, b"removed").expect("removed");
            while others.last() != Some(&removed) && others.len() < 10_000 {
                others.push(make(&fs, InodeNumber::ROOT, format!("other{}", others.len()).as_bytes(), FILE).expect("made"));
            }
        }
        true
    };
    let names = fs.set_project_of_tree(tree, 5, &mut change).map_err(|error| error.to_string())?;
    if others.last() != Some(&removed) {
        return Err("the number of a removed file is not given again: the test shows nothing".into());
    }
    let project = |inode| fs.project(inode).map_err(|error| error.to_string());
    let found = (names, project(inside)?, project(moved)?, project(removed)?);
    if found == (2, (5, true), (0, false), (0, false)) { Ok(()) } else { Err(format!("names and projects: {found:?}")) }
}

#[test]
fn without_a_bug_nothing_is_found() {
    sound(&settings(), counts);
    sound(&settings(), projects);
    sound(&settings(), projects_of_changing_trees);
    sound(&settings()[..1], full_rings);
}

#[test]
fn every_bug_is_found() {
    for setting in &settings() {
        for bug in [Mutant::LimitsIgnored, Mutant::FreedStaysCounted, Mutant::ChownUncounted, Mutant::QuotaBitForgotten] {
            caught(bug, setting, counts);
        }
        caught(Mutant::ProjectsMixed, setting, projects);
        caught(Mutant::ProjectOfStaleName, setting, projects_of_changing_trees);
    }
    caught(Mutant::RefusedStaysCounted, &settings()[0], full_rings);
}
