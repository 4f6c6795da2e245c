//! `tandemfs trace`: records the operations of a mount into a file (docs/TRACE.md).
//!
//! The daemon hands over what it recorded; this process writes the file, so a slow disk costs operations of the trace and no time of the mount. The
//! names that are there are found by a walk while the trace runs already, so that nothing is missed between the two. The walk is this process's
//! main thread, whose operations the daemon leaves out.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tandemfs_fuse::control::{self, Tracing};
use tandemfs_fuse::mounts::{self, Mounted};
use tandemfs_trace::{End, Known, Record, Writer};

use crate::arguments::TraceArguments;
use crate::failure::{self, Failure, no_answer};
use crate::output;
use crate::umount;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Names that are written at once.
const NAMES_AT_ONCE: usize = 4096;

type Output = Writer<BufWriter<File>>;

/// Records until a signal, the end of the time or of the command.
pub fn run(arguments: &TraceArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    let file = create(&mount, &arguments.file)?;
    let at_file = |error: io::Error| Failure::at(arguments.file.display(), error);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| Failure::at("signals", error))?;
    }
    let mut tracing = control::trace(&mount).map_err(|error| no_answer(&mount, &error))?;
    let stopper = tracing.stopper().map_err(|error| no_answer(&mount, &error))?;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let writer = Arc::new(Mutex::new(Writer::new(BufWriter::new(file), since_epoch).map_err(at_file)?));
    let ended = Arc::new(AtomicBool::new(false));
    let records = {
        let (writer, ended) = (Arc::clone(&writer), Arc::clone(&ended));
        let take = move || {
            let result = take(&mut tracing, &writer);
            ended.store(true, SeqCst);
            result
        };
        std::thread::Builder::new().name("records".into()).spawn(take).map_err(|error| Failure::at("a thread", error))?
    };
    let names = walk(&mount, &writer, &stop).map_err(at_file)?;
    let start = Instant::now();
    let status = wait(arguments, &stop, &ended);
    // One that has ended by itself has closed the other end.
    let _ended = stopper();
    let taken = records.join().unwrap_or_else(|_| Err(io::Error::other("the thread that took the records panicked")));
    let end = taken.map_err(|error| Failure::at(format!("{}: the trace is incomplete", mount.mountpoint.display()), error))?;
    let writer = Arc::into_inner(writer).ok_or_else(|| Failure::Failed("the trace is still being written".into()))?;
    writer.into_inner().unwrap_or_else(PoisonError::into_inner).end(end).map_err(at_file)?;
    if end.dropped > 0 {
        failure::warn(&format!("{} operations found no room and are not in the trace; name a file on a faster disk", end.dropped));
    }
    let seconds = start.elapsed().as_secs_f64();
    let value = json!({
        "mountpoint": mount.mountpoint.to_string_lossy(), "file": arguments.file.to_string_lossy(), "names": names,
        "recorded": end.recorded, "dropped": end.dropped, "seconds": seconds,
    });
    let recorded = output::count(end.recorded, "operation", "operations");
    let sentence = format!("{}: {recorded} in {seconds:.1} s, {names} names\n", arguments.file.display());
    output::print_result(arguments.json, &value, &sentence)?;
    status
}

/// The file, which is not there yet and not on the mount.
fn create(mount: &Mounted, path: &Path) -> Result<File, Failure> {
    let place = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if mounts::containing(place).ok().flatten().is_some_and(|(other, _)| other.device_number == mount.device_number) {
        let place = path.display();
        return Err(Failure::Failed(format!("{place}: a trace on the mount that it is of would record itself; name a file elsewhere")));
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::Failed(format!("{}: exists already; remove it, or name another file", path.display())),
        _ => Failure::at(path.display(), error),
    })
}

/// Takes records until the daemon has no more.
fn take(tracing: &mut Tracing, writer: &Mutex<Output>) -> io::Result<End> {
    let mut recorded = 0;
    loop {
        match tracing.next_records()? {
            Ok(records) => {
                recorded += count(&records).map_err(io::Error::other)?;
                writer.lock().unwrap_or_else(PoisonError::into_inner).operations(&records)?;
            }
            Err(dropped) => return Ok(End { recorded, dropped }),
        }
    }
}

fn count(mut records: &[u8]) -> Result<u64, &'static str> {
    let mut count = 0;
    while !records.is_empty() {
        (_, records) = Record::decode(records)?;
        count += 1;
    }
    Ok(count)
}

/// Waits for the end. The status is that of the command, where there is one.
fn wait(arguments: &TraceArguments, stop: &AtomicBool, ended: &AtomicBool) -> Result<u8, Failure> {
    let until = arguments.seconds.map(|time| Instant::now() + time);
    let mut child = arguments.command.split_first().map(|(program, words)| spawn(program, words)).transpose()?;
    loop {
        if let Some(child) = &mut child
            && let Some(status) = child.try_wait().map_err(|error| Failure::at("the command", error))?
        {
            return Ok(status.code().map_or(1, |code| code as u8));
        }
        // A command gets the signals of the terminal too, and is waited for.
        let is_over = stop.load(SeqCst) && child.is_none() || until.is_some_and(|until| Instant::now() >= until);
        if is_over || ended.load(SeqCst) {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn spawn(program: &OsStr, words: &[std::ffi::OsString]) -> Result<Child, Failure> {
    Command::new(program).args(words).spawn().map_err(|error| Failure::at(program.to_string_lossy(), error))
}

/// Writes the names of the mount. What goes meanwhile, or is not for this user, is left out.
fn walk(mount: &Mounted, writer: &Mutex<Output>, stop: &AtomicBool) -> io::Result<u64> {
    let Ok(root) = fs::symlink_metadata(&mount.mountpoint) else { return Ok(0) };
    let mut names = vec![known(&root, 0, OsStr::new(""), Vec::new())];
    let mut directories: Vec<(PathBuf, u64)> = vec![(mount.mountpoint.clone(), root.ino())];
    let mut count = 1;
    while let Some((directory, inode)) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.dev() != root.dev() {
                continue; // another file system
            }
            let target = match metadata.is_symlink() {
                true => fs::read_link(&path).map(|target| target.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
                false => Vec::new(),
            };
            names.push(known(&metadata, inode, &entry.file_name(), target));
            count += 1;
            if metadata.is_dir() {
                directories.push((path, metadata.ino()));
            }
        }
        if names.len() >= NAMES_AT_ONCE {
            writer.lock().unwrap_or_else(PoisonError::into_inner).tree(&names)?;
            names.clear();
        }
        if stop.load(SeqCst) {
            break;
        }
    }
    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
    writer.tree(&names)?;
    writer.flush()?;
    Ok(count)
}

fn known(metadata: &fs::Metadata, parent: u64, name: &OsStr, target: Vec<u8>) -> Known {
    let size = if metadata.is_file() { metadata.len() } else { 0 };
    Known { inode: metadata.ino(), parent, size, mode: metadata.mode(), name: name.as_bytes().to_vec(), target }
}
