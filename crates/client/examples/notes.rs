//! Keeps notes in a directory of a mounted TandemFS, by shared memory: `notes MOUNTPOINT`.

use std::error::Error;

use tandemfs_client::{Errno, Mount, OpenOptions, Tree};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args_os().nth(1);
    let Some(mountpoint) = argument.or_else(|| std::env::var_os("TANDEMFS_DIRECT_MOUNT")) else {
        println!("usage: notes MOUNTPOINT");
        return Ok(());
    };
    keep_notes(&Mount::connect(mountpoint)?)
}

/// What a program does with the mount.
pub fn keep_notes(mount: &Mount) -> Result<(), Box<dyn Error>> {
    match mount.make_directory("notes", 0o755) {
        Err(error) if error.errno() != Some(Errno::EXIST) => return Err(error.into()),
        _made_or_there => {}
    }

    // Appended lines are durable when the call returns, if the mount is a strict one; otherwise after `sync_data`.
    let list = OpenOptions::new().read(true).append(true).create(true).open(mount, "notes/list")?;
    list.append(b"milk\n")?;
    let (_, end) = list.append(b"bread\n")?;
    list.sync_data()?;

    let mut text = vec![0; usize::try_from(end)?];
    list.read_exact_at(&mut text, 0)?;
    print!("{}", String::from_utf8_lossy(&text));

    for entry in mount.read_directory("notes")? {
        let entry = entry?;
        println!("{} is inode {}", entry.name().display(), entry.inode());
    }

    match mount.open("notes/nothing") {
        Err(error) if error.errno() == Some(Errno::NOENT) => println!("as a system call says it: {error}"),
        Err(error) => return Err(error.into()),
        Ok(file) => println!("{} bytes", file.attributes()?.size_bytes),
    }
    Ok(())
}
