//! Hard links and removal.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::scene::{Difference, Scene, refused};

pub(crate) fn one_file_of_many_names(scene: &Scene<'_>) {
    let first = scene.file("first", "bytes");
    let (second, third) = (scene.path("second"), scene.subdirectory("elsewhere").join("third"));
    fs::hard_link(&first, &second).expect("linked");
    fs::hard_link(&second, &third).expect("linked");
    let seen = |path| fs::metadata(path).map(|metadata| (metadata.ino(), metadata.nlink())).expect("there");
    assert_eq!((seen(&first), seen(&second)), (seen(&third), (seen(&first).0, 3)));
    fs::write(&third, "others").expect("written");
    assert_eq!(fs::read(&first).expect("read"), b"others");
    refused(fs::hard_link(&first, &second), Errno::EXIST);
    refused(fs::hard_link(scene.path("absent"), scene.path("new")), Errno::NOENT);
    fs::remove_file(&first).expect("removed");
    assert_eq!((seen(&third).1, fs::read(&second).expect("read")), (2, b"others".to_vec()));
    // A link is linked itself, unless it is to be followed.
    symlink("second", scene.path("link")).expect("linked");
    rustix::fs::linkat(CWD, scene.path("link"), CWD, scene.path("link-of-link"), AtFlags::empty()).expect("linked");
    assert!(fs::symlink_metadata(scene.path("link-of-link")).expect("there").is_symlink());
    rustix::fs::linkat(CWD, scene.path("link"), CWD, scene.path("followed"), AtFlags::SYMLINK_FOLLOW).expect("linked");
    assert_eq!(seen(&scene.path("followed")), (seen(&second).0, 3));
}

pub(crate) fn sixty_five_thousand_and_no_more(scene: &Scene<'_>) {
    let file = scene.file("file", "x");
    // Several directories, so that none is too large to be quick.
    let directories: Vec<_> = (0..8).map(|number| scene.subdirectory(&number.to_string())).collect();
    let name = |number: usize| directories[number % directories.len()].join(format!("{number}"));
    // 65,000 requests take half a minute on a busy machine: a test run makes some; the end is tried on the library.
    let most = if crate::whole_size() { 65_000 } else { 1500 };
    for number in 1..most {
        fs::hard_link(&file, name(number)).unwrap_or_else(|error| panic!("link {number}: {error}"));
    }
    assert_eq!(fs::metadata(&file).expect("there").nlink(), most as u64);
    if crate::whole_size() {
        refused(fs::hard_link(&file, name(most)), Errno::MLINK);
        refused(fs::metadata(name(most)), Errno::NOENT);
        assert_eq!(fs::metadata(&file).expect("there").nlink(), most as u64);
    }
    fs::remove_file(name(1)).expect("removed");
    fs::hard_link(&file, name(most)).expect("there is room for one again");
    fs::rename(name(2), name(1)).expect("a rename needs no link");
    for directory in directories {
        fs::remove_dir_all(directory).expect("removed");
    }
    assert_eq!(fs::metadata(&file).expect("there").nlink(), 1);
}

pub(crate) fn removal_by_the_right_call(scene: &Scene<'_>) {
    let (file, directory) = (scene.file("file", "x"), scene.subdirectory("directory"));
    refused(fs::remove_dir(&file), Errno::NOTDIR);
    refused(fs::remove_file(&directory), Errno::ISDIR);
    scene.file("directory/below", "x");
    refused(fs::remove_dir(&directory), Errno::NOTEMPTY);
    refused(fs::remove_file(scene.path("absent")), Errno::NOENT);
    refused(fs::remove_dir(scene.path("absent")), Errno::NOENT);
    symlink("directory", scene.path("link")).expect("linked");
    refused(fs::remove_dir(scene.path("link")), Errno::NOTDIR);
    fs::remove_file(scene.path("link")).expect("removed");
    fs::remove_file(directory.join("below")).expect("removed");
    fs::remove_dir(&directory).expect("removed");
    refused(fs::metadata(&directory), Errno::NOENT);
}

pub(crate) fn directories_count_their_subdirectories(scene: &Scene<'_>) {
    let directory = scene.subdirectory("directory");
    let links = || fs::metadata(&directory).expect("there").nlink();
    assert_eq!(links(), 2);
    for number in 0..5 {
        scene.subdirectory(&format!("directory/{number}"));
        scene.file(&format!("directory/file-{number}"), "");
    }
    assert_eq!(links(), 7);
    fs::rename(directory.join("0"), scene.path("moved")).expect("renamed");
    fs::remove_dir(directory.join("1")).expect("removed");
    assert_eq!(links(), 5);
    // ext4 stops counting at 65,000 (`dir_nlink`); here every one counts. Whole runs only: 65,000 directories.
    if crate::whole_size() {
        for number in 10..65_100 {
            fs::create_dir(directory.join(number.to_string())).expect("made");
        }
        let expected = if scene.differs(Difference::ManySubdirectories) { 65_095 } else { 1 };
        assert_eq!(links(), expected);
    }
}
