//! Executes the operations of a plan.

use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::plan::{DIRECTORIES, Model, Operation, Piece, Sync, content};
use crate::power;
use crate::promises::{Mode, Promises, Writer};

/// Operations of a writer that closes no file.
const UNSYNCED_MAX: u64 = 2000;

/// Options of a writer.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What it writes, and what for.
    pub writer: Writer,
    /// Log returned calls as acknowledged although nothing is synced; files stay open, since close makes FUSE write. A test of the
    /// test: verification must find the loss.
    pub unsynced: bool,
    /// Stop after so many operations.
    pub operations: u64,
    /// Say "acknowledged N" every so many operations; 0 for never.
    pub announce: u64,
    /// Cut the machine's power right after the acknowledgement of this operation.
    pub power_cut_after: Option<u64>,
}

/// Writes until the operations are done or one fails.
pub fn write(directory: &Path, log: &Path, options: &Options) -> Result<(), String> {
    if options.unsynced {
        allow_many_open_files();
    }
    for index in 0..DIRECTORIES {
        match fs::create_dir(directory.join(format!("d{index}"))) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(format!("mkdir d{index}: {error}")),
            _ => {}
        }
    }
    let noted = |error: io::Error| format!("{}: {error}", log.display());
    let mut promises = Promises::begin(log, &options.writer).map_err(noted)?;
    let mut model = Model::new();
    for number in 0..options.operations {
        if options.unsynced && number == UNSYNCED_MAX {
            wait_for_the_end();
        }
        let operation = options.writer.next(&mut model, number);
        perform(directory, &operation, options).map_err(|error| format!("operation {number}, {}: {error}", operation.word()))?;
        model.apply(&operation, number);
        promises.note(number).map_err(noted)?;
        if options.power_cut_after == Some(number) {
            return Err(power::cut());
        }
        if options.announce > 0 && (number + 1) % options.announce == 0 {
            println!("acknowledged {}", number + 1);
            io::stdout().flush().map_err(noted)?;
        }
    }
    Ok(())
}

fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

fn allow_many_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, a long run ends with EMFILE.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

fn perform(directory: &Path, operation: &Operation, options: &Options) -> io::Result<()> {
    let at = |name: &str| directory.join(name);
    match operation {
        Operation::Create { name, pieces, sync } => {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(at(name))?;
            put(file, pieces, *sync, false, options)
        }
        Operation::Write { name, pieces, sync, append } => {
            let synchronous = *sync == Sync::Dsync && options.writer.mode == Mode::Relaxed && !options.unsynced;
            let flags = if synchronous { OFlags::DSYNC } else { OFlags::empty() };
            let mut how = OpenOptions::new();
            how.read(true).append(*append).write(!append).custom_flags(flags.bits() as i32);
            put(how.open(at(name))?, pieces, *sync, *append, options)
        }
        Operation::Truncate { name, size } => OpenOptions::new().write(true).open(at(name))?.set_len(*size as u64),
        Operation::Rename { from, to } => fs::rename(at(from), at(to)),
        Operation::Unlink { name } => fs::remove_file(at(name)),
        Operation::Link { from, to } => fs::hard_link(at(from), at(to)),
        Operation::Symlink { target, name } => symlink(target, at(name)),
        Operation::MkDir { name } => fs::create_dir(at(name)),
        Operation::RmDir { name } => fs::remove_dir(at(name)),
    }
}

fn put(mut file: File, pieces: &[Piece], sync: Sync, append: bool, options: &Options) -> io::Result<()> {
    for piece in pieces {
        let bytes = content(piece);
        match sync {
            Sync::Msync => store_mapped(&file, piece.offset, &bytes, !options.unsynced)?,
            _ if append => file.write_all(&bytes)?,
            _ => file.write_all_at(&bytes, piece.offset as u64)?,
        }
    }
    if options.unsynced {
        let _left_open = file.into_raw_fd();
        return Ok(());
    }
    match (options.writer.mode, sync) {
        (Mode::Relaxed, Sync::Fsync) => file.sync_all(),
        (Mode::Relaxed, Sync::Fdatasync) => file.sync_data(),
        _ => Ok(()),
    }
}

/// Stores bytes through a shared mapping. A mapping whose daemon has died ends the process with SIGBUS: then there is no promise either.
fn store_mapped(file: &File, offset: usize, bytes: &[u8], sync: bool) -> io::Result<()> {
    let skipped = offset % rustix::param::page_size();
    let length = skipped + bytes.len();
    // SAFETY: the kernel chooses a range that nothing uses.
    let start = unsafe {
        mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, (offset - skipped) as u64)?
    };
    // SAFETY: the target lies in the mapping just made, which no reference points into; the source is host memory.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast::<u8>().add(skipped), bytes.len()) };
    // SAFETY: the range was mapped above.
    let synced = if sync { unsafe { msync(start, length, MsyncFlags::SYNC) } } else { Ok(()) };
    unmap(start, length)?;
    Ok(synced?)
}

fn unmap(start: *mut c_void, length: usize) -> io::Result<()> {
    // SAFETY: called once with the range of `store_mapped`, to which no pointer is kept.
    Ok(unsafe { munmap(start, length) }?)
}
