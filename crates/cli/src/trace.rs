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
    may_be_written(&mount, &arguments.file)?;
    let at_file = |error: io::Error| Failure::at(arguments.file.display(), error);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| Failure::at("signals", error))?;
    }
    let mut tracing = control::trace(&mount).map_err(|error| no_answer(&mount, &error))?;
    // Only now: a trace that is refused leaves no file.
    let file = create(&arguments.file)?;
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
    let walked = walk(&mount.mountpoint, &writer, &stop).map_err(at_file)?;
    if let Some((path, error)) = &walked.first_unread {
        let places = output::count(walked.unread, "place", "places");
        failure::warn(&format!(
            "{places} could not be read, and the names there are not in the trace: {}: {error}; record as a user who may read them",
            path.display()
        ));
    }
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
        "mountpoint": mount.mountpoint.to_string_lossy(), "file": arguments.file.to_string_lossy(), "names": walked.names,
        "recorded": end.recorded, "dropped": end.dropped, "seconds": seconds,
    });
    let recorded = output::count(end.recorded, "operation", "operations");
    let sentence = format!("{}: {recorded} in {seconds:.1} s, {} names\n", arguments.file.display(), walked.names);
    output::print_result(arguments.json, &value, &sentence)?;
    status
}

/// The file is not there yet, and not on the mount.
fn may_be_written(mount: &Mounted, path: &Path) -> Result<(), Failure> {
    let place = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if mounts::containing(place).ok().flatten().is_some_and(|(other, _)| other.device_number == mount.device_number) {
        let place = path.display();
        return Err(Failure::Failed(format!("{place}: a trace on the mount that it is of would record itself; name a file elsewhere")));
    }
    // So that who names a wrong one begins no trace; `create` finds out for sure.
    match fs::symlink_metadata(path) {
        Ok(_) => Err(exists(path)),
        Err(_) => Ok(()),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::Failed(format!("{}: exists already; remove it, or name another file", path.display()))
}

fn create(path: &Path) -> Result<File, Failure> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
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
    if stop.load(SeqCst) && !arguments.command.is_empty() {
        return Err(Failure::Failed("ended while the names of the mount were read: the command was not started".into()));
    }
    let mut child = arguments.command.split_first().map(|(program, words)| spawn(program, words)).transpose()?;
    loop {
        if let Some(child) = &mut child
            && let Some(status) = child.try_wait().map_err(|error| Failure::at("the command", error))?
        {
            return Ok(status.code().map_or(1, |code| code as u8));
        }
        // A command gets the signals of the terminal too, and is waited for.
        let is_over = stop.load(SeqCst) && child.is_none() || until.is_some_and(|until| Instant::now() >= until);
        // One that runs on when nothing is recorded any more is waited for as well: it is this process's child.
        if is_over || ended.load(SeqCst) && child.is_none() {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn spawn(program: &OsStr, words: &[std::ffi::OsString]) -> Result<Child, Failure> {
    Command::new(program).args(words).spawn().map_err(|error| Failure::at(program.to_string_lossy(), error))
}

/// What a walk has found.
#[derive(Debug, Default)]
struct Walked {
    names: u64,
    /// Files and directories that are there and could not be read, and one of them.
    unread: u64,
    first_unread: Option<(PathBuf, io::Error)>,
}

impl Walked {
    /// Passes over what is gone meanwhile, and notes what is not for this user.
    fn read<T>(&mut self, path: &Path, result: io::Result<T>) -> Option<T> {
        result.map_err(|error| self.note(path, error)).ok()
    }

    fn note(&mut self, path: &Path, error: io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.unread += 1;
            self.first_unread.get_or_insert_with(|| (path.to_owned(), error));
        }
    }
}

/// Writes the names below a directory, the mount's root.
fn walk(root: &Path, writer: &Mutex<Output>, stop: &AtomicBool) -> io::Result<Walked> {
    let mut walked = Walked::default();
    let Some(found) = walked.read(root, fs::symlink_metadata(root)) else { return Ok(walked) };
    let device = found.dev();
    let mut names = vec![known(&found, 0, OsStr::new(""), Vec::new())];
    let mut directories: Vec<(PathBuf, u64)> = vec![(root.to_owned(), found.ino())];
    walked.names = 1;
    while let Some((directory, inode)) = directories.pop() {
        for entry in walked.read(&directory, fs::read_dir(&directory)).into_iter().flatten() {
            let Some(entry) = walked.read(&directory, entry) else { break };
            let path = entry.path();
            let Some(metadata) = walked.read(&path, fs::symlink_metadata(&path)) else { continue };
            if metadata.dev() != device {
                continue; // another file system
            }
            let target = match metadata.is_symlink() {
                true => fs::read_link(&path).map(|target| target.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
                false => Vec::new(),
            };
            names.push(known(&metadata, inode, &entry.file_name(), target));
            walked.names += 1;
            if metadata.is_dir() {
                directories.push((path, metadata.ino()));
            }
            // A directory may have millions.
            if names.len() >= NAMES_AT_ONCE {
                writer.lock().unwrap_or_else(PoisonError::into_inner).tree(&names)?;
                names.clear();
            }
            if stop.load(SeqCst) {
                directories.clear();
                break;
            }
        }
    }
    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
    writer.tree(&names)?;
    writer.flush()?;
    Ok(walked)
}

fn known(metadata: &fs::Metadata, parent: u64, name: &OsStr, target: Vec<u8>) -> Known {
    let size = if metadata.is_file() { metadata.len() } else { 0 };
    Known { inode: metadata.ino(), parent, size, mode: metadata.mode(), name: name.as_bytes().to_vec(), target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_trace::{Frame, Reader};

    /// Walks, and returns how many names each frame of the file has.
    fn walked(root: &Path, stop: bool) -> (Walked, Vec<usize>) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let writer = Mutex::new(Writer::new(BufWriter::new(file.reopen().expect("opens")), 0).expect("written"));
        let walked = walk(root, &writer, &AtomicBool::new(stop)).expect("written");
        drop(writer);
        let mut reader = Reader::new(file.reopen().expect("opens")).expect("a trace");
        let mut counts = Vec::new();
        while let Some(frame) = reader.next_frame().expect("whole") {
            match frame {
                Frame::Tree(names) => counts.push(names.len()),
                other => panic!("{other:?}"),
            }
        }
        (walked, counts)
    }

    #[test]
    fn a_large_directory_is_written_in_parts_and_a_signal_ends_it() {
        let directory = tempfile::tempdir().expect("a directory");
        for number in 0..=NAMES_AT_ONCE {
            File::create(directory.path().join(number.to_string())).expect("made");
        }
        let (all, counts) = walked(directory.path(), false);
        assert_eq!((all.names, all.unread), (NAMES_AT_ONCE as u64 + 2, 0));
        assert_eq!(counts, [NAMES_AT_ONCE, 2]);
        let (some, counts) = walked(directory.path(), true);
        assert_eq!((some.names, counts), (2, vec![2]));
    }

    #[test]
    fn a_signal_during_the_walk_starts_no_command() {
        let directory = tempfile::tempdir().expect("a directory");
        let marker = directory.path().join("marker");
        let arguments = TraceArguments {
            mountpoint: directory.path().into(),
            file: directory.path().join("trace"),
            seconds: None,
            json: false,
            command: vec!["touch".into(), marker.clone().into()],
        };
        let run = |stop| wait(&arguments, &AtomicBool::new(stop), &AtomicBool::new(false));
        assert!(matches!(run(true), Err(Failure::Failed(message)) if message.contains("not started")));
        assert!(!marker.exists());
        assert!(matches!(run(false), Ok(0)) && marker.exists());
    }

    #[test]
    fn what_is_gone_is_passed_over_and_what_cannot_be_read_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let (gone, counts) = walked(&directory.path().join("gone"), false);
        assert_eq!((gone.names, gone.unread, counts), (0, 0, vec![]));
        let file = directory.path().join("file");
        File::create(&file).expect("made");
        // Root may read everything, so this is another error than that of a user without rights.
        let (unread, _) = walked(&file.join("below"), false);
        assert_eq!((unread.names, unread.unread), (0, 1));
        assert_eq!(unread.first_unread.map(|(path, _)| path), Some(file.join("below")));
    }
}
