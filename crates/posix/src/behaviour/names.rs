//! Names and paths.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::scene::{Scene, refused};

pub(crate) fn any_bytes_but_nul_and_slash(scene: &Scene<'_>) {
    let mut names: BTreeSet<Vec<u8>> = (1..=255_u8).filter(|byte| !b"/.".contains(byte)).map(|byte| vec![byte]).collect();
    names.extend([b"...".to_vec(), b".. ".to_vec(), b" ".repeat(255), vec![0xff; 255], b"-rf".to_vec(), b"*\n\r\t\x1b[2J".to_vec()]);
    names.insert((0..255).map(|index| [1 + (index % 46) as u8, 128 + (index % 128) as u8][index % 2]).collect());
    let path = |name: &[u8]| scene.directory().join(OsString::from_vec(name.to_vec()));
    for (number, name) in names.iter().enumerate() {
        fs::write(path(name), number.to_string()).unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    let listed: BTreeSet<Vec<u8>> =
        fs::read_dir(scene.directory()).expect("listed").map(|entry| entry.expect("entry").file_name().into_vec()).collect();
    assert!(listed == names, "listed as they were made");
    for (number, name) in names.iter().enumerate() {
        assert_eq!(fs::read_to_string(path(name)).expect("there"), number.to_string(), "{name:?}");
        fs::remove_file(path(name)).expect("removed");
    }
    assert_eq!(fs::read_dir(scene.directory()).expect("listed").count(), 0);
}

pub(crate) fn one_to_255_bytes(scene: &Scene<'_>) {
    let long = "n".repeat(255);
    let (fits, too_long) = (scene.path(&long), scene.path(&format!("{long}n")));
    for length in [1, 2, 46, 47, 48, 105, 106, 107, 165, 166, 224, 225, 254] {
        let path = scene.file(&"m".repeat(length), "x");
        assert_eq!(fs::read(&path).expect("read"), b"x", "{length}");
    }
    let other = scene.file("other", "x");
    refused(fs::write(&too_long, "x"), Errno::NAMETOOLONG);
    refused(fs::create_dir(&too_long), Errno::NAMETOOLONG);
    refused(symlink("x", &too_long), Errno::NAMETOOLONG);
    refused(fs::hard_link(&other, &too_long), Errno::NAMETOOLONG);
    refused(fs::rename(&other, &too_long), Errno::NAMETOOLONG);
    refused(fs::rename(&too_long, &other), Errno::NAMETOOLONG);
    refused(rustix::fs::mkfifoat(CWD, &too_long, Mode::RUSR), Errno::NAMETOOLONG);
    refused(fs::metadata(&too_long), Errno::NAMETOOLONG);
    refused(fs::remove_file(&too_long), Errno::NAMETOOLONG);
    refused(fs::remove_dir(&too_long), Errno::NAMETOOLONG);
    refused(fs::metadata(too_long.join("below")), Errno::NAMETOOLONG);
    fs::create_dir(&fits).expect("made");
    fs::rename(&other, fits.join(&long)).expect("renamed");
    fs::hard_link(fits.join(&long), scene.path("link")).expect("linked");
    assert_eq!(fs::read(fits.join(&long)).expect("read"), b"x");
}

pub(crate) fn paths_up_to_path_max(scene: &Scene<'_>) {
    let directory = rustix::fs::open(scene.directory(), OFlags::DIRECTORY | OFlags::PATH, Mode::empty()).expect("opened");
    scene.file("f", "x");
    let open = |path: &str| rustix::fs::openat(&directory, path, OFlags::RDONLY, Mode::empty());
    // 4,095 bytes and the NUL are PATH_MAX.
    let longest = format!("{}f", "./".repeat(2047));
    assert_eq!(longest.len(), 4095);
    open(&longest).expect("4,095 bytes are a path");
    refused(open(&format!(".{longest}")), Errno::NAMETOOLONG);
    refused(open(&format!("/{longest}")), Errno::NAMETOOLONG);
    refused(rustix::fs::mkdirat(&directory, format!("./{longest}"), Mode::RWXU), Errno::NAMETOOLONG);
    refused(open(""), Errno::NOENT);

    // Deeper than a path can say, step by step.
    let mut at = rustix::fs::openat(&directory, ".", OFlags::DIRECTORY | OFlags::PATH, Mode::empty()).expect("opened");
    let mut above = Vec::new();
    let name = "d".repeat(255);
    for _ in 0..20 {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).expect("made");
        let next = rustix::fs::openat(&at, &name, OFlags::DIRECTORY | OFlags::PATH, Mode::empty()).expect("opened");
        above.push(std::mem::replace(&mut at, next));
    }
    let file = rustix::fs::openat(&at, "deep", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).expect("created");
    rustix::io::write(&file, b"deep").expect("written");
    let up = rustix::fs::statat(&at, "../..", AtFlags::empty()).expect("there");
    assert_eq!(up.st_ino, rustix::fs::fstat(&above[18]).expect("there").st_ino);
    rustix::fs::unlinkat(&at, "deep", AtFlags::empty()).expect("removed");
    for directory in above.iter().rev() {
        rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR).expect("removed");
    }
}

pub(crate) fn symbolic_links_up_to_forty(scene: &Scene<'_>) {
    scene.file("link-0", "end");
    for number in 1..=41 {
        symlink(format!("link-{}", number - 1), scene.path(&format!("link-{number}"))).expect("linked");
    }
    assert_eq!(fs::read(scene.path("link-40")).expect("forty are followed"), b"end");
    refused(fs::read(scene.path("link-41")), Errno::LOOP);
    symlink("self", scene.path("self")).expect("linked");
    symlink("there", scene.path("here")).expect("linked");
    symlink("here", scene.path("there")).expect("linked");
    for name in ["self", "here", "there", "self/below"] {
        refused(fs::read(scene.path(name)), Errno::LOOP);
        refused(fs::metadata(scene.path(name)), Errno::LOOP);
        refused(fs::read_dir(scene.path(name)), Errno::LOOP);
    }
    assert!(fs::symlink_metadata(scene.path("self")).expect("itself is there").is_symlink());
    fs::remove_file(scene.path("self")).expect("removed");
}

pub(crate) fn symbolic_links_hold_1_to_4095_bytes(scene: &Scene<'_>) {
    for length in [1, 19, 20, 21, 59, 60, 61, 255, 256, 1024, 4094, 4095] {
        let (path, target) = (scene.path(&format!("link-{length}")), "t/".repeat(2048)[..length].to_owned());
        symlink(&target, &path).expect("linked");
        assert_eq!(fs::read_link(&path).expect("read").as_os_str().as_bytes(), target.as_bytes());
        assert_eq!(fs::symlink_metadata(&path).expect("there").len(), length as u64);
        assert_eq!(fs::symlink_metadata(&path).expect("there").mode() & 0o7777, 0o777);
    }
    refused(symlink("", scene.path("empty")), Errno::NOENT);
    refused(symlink("t/".repeat(2048), scene.path("too-long")), Errno::NAMETOOLONG);
    refused(fs::read_link(scene.file("file", "")), Errno::INVAL);
    let mut few = [0; 3];
    assert_eq!(rustix::fs::readlinkat_raw(CWD, scene.path("link-19"), &mut few[..]), Ok(3), "cut off");
}

pub(crate) fn what_is_no_directory(scene: &Scene<'_>) {
    let below = scene.file("file", "x").join("below");
    let other = scene.file("other", "x");
    refused(fs::read(&below), Errno::NOTDIR);
    refused(fs::write(&below, "x"), Errno::NOTDIR);
    refused(fs::metadata(&below), Errno::NOTDIR);
    refused(fs::create_dir(&below), Errno::NOTDIR);
    refused(fs::remove_dir(&below), Errno::NOTDIR);
    refused(fs::remove_file(&below), Errno::NOTDIR);
    refused(symlink("x", &below), Errno::NOTDIR);
    refused(fs::hard_link(&other, &below), Errno::NOTDIR);
    refused(fs::hard_link(&below, scene.path("new")), Errno::NOTDIR);
    refused(fs::rename(&other, &below), Errno::NOTDIR);
    refused(fs::rename(&below, &other), Errno::NOTDIR);
    refused(fs::read_dir(&other), Errno::NOTDIR);
    refused(rustix::fs::mkfifoat(CWD, &below, Mode::RUSR), Errno::NOTDIR);
    refused(rustix::fs::open(&other, OFlags::DIRECTORY, Mode::empty()), Errno::NOTDIR);
    refused(fs::metadata(scene.path("absent/below")), Errno::NOENT);
    refused(fs::create_dir(scene.path("absent/below")), Errno::NOENT);
}

pub(crate) fn trailing_slashes(scene: &Scene<'_>) {
    scene.file("file", "x");
    let path = |name: &str| format!("{}/{name}", scene.directory().display());
    fs::create_dir(path("directory///")).expect("made");
    symlink("directory", path("to-directory")).expect("linked");
    symlink("file", path("to-file")).expect("linked");
    assert!(fs::symlink_metadata(path("to-directory/")).expect("followed").is_dir());
    assert!(fs::symlink_metadata(path("to-directory")).expect("itself").is_symlink());
    for name in ["file/", "to-file/", "file/."] {
        refused(fs::metadata(path(name)), Errno::NOTDIR);
        refused(fs::read(path(name)), Errno::NOTDIR);
        refused(fs::remove_file(path(name)), Errno::NOTDIR);
    }
    refused(fs::write(path("new/"), "x"), Errno::ISDIR);
    refused(fs::rename(path("file"), path("new/")), Errno::NOTDIR);
    refused(fs::rename(path("file/"), path("new")), Errno::NOTDIR);
    refused(fs::hard_link(path("file"), path("new/")), Errno::NOENT);
    refused(symlink("x", path("new/")), Errno::NOENT);
    refused(fs::remove_dir(path("to-directory/")), Errno::NOTDIR);
    refused(fs::remove_file(path("directory/")), Errno::ISDIR);
    fs::rename(path("directory/"), path("moved/")).expect("renamed");
    fs::remove_dir(path("moved/")).expect("removed");
    refused(fs::metadata(path("to-directory/")), Errno::NOENT);
}

pub(crate) fn dot_and_dot_dot(scene: &Scene<'_>) {
    let path = |name: &str| format!("{}/{name}", scene.directory().display());
    scene.subdirectory("directory");
    scene.subdirectory("directory/inner");
    let number = |name: &str| fs::metadata(path(name)).expect("there").ino();
    assert_eq!(number("directory/inner/.."), number("directory"));
    assert_eq!(number("directory/inner/./../../directory/."), number("directory"));
    refused(fs::remove_dir(path("directory/.")), Errno::INVAL);
    refused(fs::remove_dir(path("directory/..")), Errno::NOTEMPTY);
    refused(fs::remove_file(path("directory/.")), Errno::ISDIR);
    refused(fs::create_dir(path("directory/.")), Errno::EXIST);
    refused(fs::create_dir(path("directory/..")), Errno::EXIST);
    refused(fs::rename(path("directory/."), path("new")), Errno::BUSY);
    refused(fs::rename(path("directory"), path("directory/inner/..")), Errno::BUSY);
    refused(fs::hard_link(path("directory"), path("new")), Errno::PERM);
    let inner = path("directory/inner/new");
    refused(rustix::fs::renameat_with(CWD, path("directory"), CWD, inner, RenameFlags::empty()), Errno::INVAL);
    // Listed, and with the right numbers.
    let listed: Vec<(Vec<u8>, u64)> = crate::behaviour::large::list(&scene.path("directory"), 4096);
    let of = |name: &[u8]| listed.iter().find(|entry| entry.0 == name).expect("listed").1;
    assert_eq!((of(b"."), of(b".."), of(b"inner")), (number("directory"), number("."), number("directory/inner")));
}
