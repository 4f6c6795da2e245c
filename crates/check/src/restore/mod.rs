//! Copies out of an image what can be read of it: the output of `tandemfs restore`. The image is only read.
//!
//! The tree is walked from the root. Three things are done for what the walk cannot reach:
//!
//! - a directory whose mapping or inode is damaged gets the pages of names that its number and generation seal (`directories.rs`);
//! - an inode in use that has no name left goes to `lost+found/#NUMBER`;
//! - a damaged segment table is replaced in memory by one that is rebuilt from what the tree points to (`crate::rescue`).
//!
//! What is left out or copied in part is in the report; nothing is left out silently.

mod content;
mod directories;
mod files;
mod target;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;
use tandemfs_device::Drive;
use tandemfs_format::inode::Inode;

use crate::checker::{Progress, Stage};
use crate::claims::Claims;
use crate::error::CheckError;
use crate::generations::Generations;
use crate::image::Image;
use crate::inodes::{self, sweep};
use crate::rescue;

use directories::{OpenDirectory, Wounded};
use target::{LOST_FOUND, NodeNumber, TOP, Target};

/// Most entries of a list in the report.
const LISTED_MAX: usize = 100_000;

/// How to restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Only this inode, and everything below it; it gets the name `#NUMBER`.
    pub inode: Option<u64>,
    /// Copy also bytes that do not match their checksums. Without it they become holes.
    pub ignore_errors: bool,
    /// Read and verify everything, write nothing.
    pub dry_run: bool,
    /// The directory may contain something: files that have the size and time of the image's count as complete, others are replaced.
    pub force: bool,
}

/// Bytes of a file that are damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedRange {
    /// The inode.
    pub inode: u64,
    /// The path of the copy, from the target directory.
    pub path: String,
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// The bytes were copied although they do not verify; otherwise there is a hole.
    pub copied: bool,
}

/// Something that was not restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The inode.
    pub inode: u64,
    /// Where it would have been.
    pub path: String,
    /// What is missing, and why.
    pub reason: String,
}

/// What the target directory refused, such as other owners to a user who is not root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// A property, or what could not be made.
    pub what: &'static str,
    /// Why.
    pub error: String,
    /// How often.
    pub count: u64,
    /// The first one.
    pub first_path: String,
}

/// What was restored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// The device's name.
    pub device: String,
    /// The target.
    pub directory: PathBuf,
    /// Nothing was written.
    pub dry_run: bool,
    /// Regular files that were copied.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Devices, FIFOs and sockets.
    pub special: u64,
    /// Files that an earlier run had completed.
    pub complete_before: u64,
    /// Inodes without a name that were put under `lost+found`.
    pub nameless: u64,
    /// Bytes of file data that were copied.
    pub bytes: u64,
    /// Bytes of file data that are damaged.
    pub damaged_bytes: u64,
    /// Where they are.
    pub damaged: Vec<DamagedRange>,
    /// What is missing.
    pub missing: Vec<Missing>,
    /// Entries that `damaged` and `missing` have no room for.
    pub left_out: u64,
    /// What the target refused.
    pub refused: Vec<Refused>,
    /// Facts about the image that made it necessary to search or to guess nothing.
    pub notes: Vec<String>,
    /// Why the run ended early.
    pub stopped: Option<String>,
}

impl RestoreReport {
    /// Whether everything of the image was read.
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty() && self.left_out == 0 && self.stopped.is_none()
    }
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The image cannot be read at all.
    #[error(transparent)]
    Image(#[from] CheckError),
    /// The target is in use.
    #[error("{0}: is not empty; name an empty directory, or go on with an interrupted restore by --force")]
    NotEmpty(PathBuf),
    /// The target cannot be opened or made.
    #[error("{path}: {error}")]
    Target {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: Errno,
    },
}

/// Ends a run.
enum Stop {
    /// The target takes no more.
    Target(Errno),
}

/// A run.
struct Restorer<'r> {
    image: &'r Image<'r>,
    options: &'r RestoreOptions,
    target: Target,
    report: RestoreReport,
    refused: BTreeMap<(&'static str, i32), (u64, String)>,
    progress: &'r mut dyn FnMut(Progress),
    total: u64,
    /// Inodes that got a name, or for which it was said that they cannot.
    seen: Claims,
    /// Inodes in use whose lines do not verify.
    damaged: BTreeSet<u64>,
    /// The first name of files that have several.
    linked: HashMap<u64, (NodeNumber, Vec<u8>)>,
    /// Directories to read.
    open: Vec<OpenDirectory>,
    /// Directories that get their properties at the end, when nothing changes their times any more.
    made: Vec<(u64, NodeNumber)>,
    wounded: Vec<Wounded>,
    /// Pages of names that were read.
    pages: Claims,
    generations: Generations,
    lost_found: Option<NodeNumber>,
}

/// Copies what can be read of an image into a directory. The device is only read, and need not have been unmounted.
///
/// # Errors
/// If nothing could be restored: no superblock was found, or the directory cannot be used. Damage is in the report.
pub fn restore(
    drive: &Drive,
    directory: &Path,
    options: &RestoreOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<RestoreReport, RestoreError> {
    let mut notes = Vec::new();
    let image = rescue::open(drive, &mut notes)?;
    let target = Target::open(directory, options.force, options.dry_run).map_err(|error| match error {
        Errno::NOTEMPTY => RestoreError::NotEmpty(directory.to_owned()),
        error => RestoreError::Target { path: directory.to_owned(), error },
    })?;
    let report = RestoreReport {
        device: drive.description().name.clone(),
        directory: directory.to_owned(),
        dry_run: options.dry_run,
        notes,
        ..RestoreReport::default()
    };
    let mut restorer = Restorer {
        image: &image,
        options,
        target,
        report,
        refused: BTreeMap::new(),
        progress,
        total: 0,
        seen: Claims::default(),
        damaged: BTreeSet::new(),
        linked: HashMap::new(),
        open: Vec::new(),
        made: Vec::new(),
        wounded: Vec::new(),
        pages: Claims::default(),
        generations: Generations::new(image.pair),
        lost_found: None,
    };
    let run = restorer.run();
    Ok(restorer.finish(run))
}

impl Restorer<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let (damaged, total) = (&mut self.damaged, &mut self.total);
        sweep(self.image, &mut |_, _, found| {
            if let Some(found) = found {
                *total += 1;
                if found.decoded.is_err() {
                    damaged.insert(found.number);
                }
            }
        });
        match self.options.inode {
            Some(number) => {
                let name = format!("#{number}").into_bytes();
                self.place_entry(TOP, &name, number, 0)?;
                self.walk()
            }
            None => {
                self.begin_at_root();
                self.walk()?;
                self.place_nameless()
            }
        }
    }

    fn begin_at_root(&mut self) {
        const ROOT: u64 = 1;
        self.seen.claim(ROOT, 1);
        match inodes::read(self.image, ROOT).filter(|(_, inode)| inode.is_directory()) {
            Some(_) => self.open.push(OpenDirectory { number: ROOT, node: TOP }),
            None => {
                self.missing(ROOT, "/".into(), "the root's inode is damaged: its names are searched by their checksums".into());
                self.wounded.push(Wounded::without_inode(ROOT, Some(TOP)));
            }
        }
    }

    /// Reads directories until none is left, then searches the pages of those that lost some.
    fn walk(&mut self) -> Result<(), Stop> {
        loop {
            while let Some(directory) = self.open.pop() {
                self.read_directory(directory)?;
            }
            if !self.heal()? && self.open.is_empty() {
                return Ok(());
            }
        }
    }

    /// Every inode in use that no name led to: directories first, from the top of each tree that hangs in the air.
    fn place_nameless(&mut self) -> Result<(), Stop> {
        let mut nameless = Vec::new();
        sweep(self.image, &mut |_, _, found| {
            if let Some(found) = found
                && self.seen.is_free(found.number, 1)
                && let Ok(inode) = &found.decoded
                && inode.nlink > 0
            {
                nameless.push((found.number, inode.is_directory()));
            }
        });
        let mut below = Claims::default();
        for (number, _) in nameless.iter().filter(|(_, is_directory)| *is_directory) {
            self.claim_children(*number, &mut below);
        }
        let tops = nameless.iter().filter(|(number, is_directory)| *is_directory && below.is_free(*number, 1));
        // Then what is in a circle of directories, then files.
        let circles = nameless.iter().filter(|(_, is_directory)| *is_directory);
        let files = nameless.iter().filter(|(_, is_directory)| !*is_directory);
        let order: Vec<u64> = tops.chain(circles).chain(files).map(|(number, _)| *number).collect();
        for number in order {
            self.place_lost(number)?;
            self.walk()?;
        }
        self.search_lost_directories()?;
        self.walk()?;
        let unseen: Vec<u64> = self.damaged.iter().copied().filter(|number| self.seen.is_free(*number, 1)).collect();
        for number in unseen {
            self.missing(number, format!("/lost+found/#{number}"), "its inode is damaged and nothing names it".into());
        }
        Ok(())
    }

    fn place_lost(&mut self, number: u64) -> Result<(), Stop> {
        if !self.seen.is_free(number, 1) {
            return Ok(());
        }
        let Some(node) = self.lost_found()? else { return Ok(()) };
        self.report.nameless += 1;
        self.place_entry(node, format!("#{number}").as_bytes(), number, 0)
    }

    /// The directory `lost+found`, made when something needs it.
    fn lost_found(&mut self) -> Result<Option<NodeNumber>, Stop> {
        if self.lost_found.is_none() {
            self.lost_found = self.tried(TOP, LOST_FOUND, "directory", |target| target.make_directory(TOP, LOST_FOUND))?;
        }
        Ok(self.lost_found)
    }

    /// The result of a call on the target; what it refuses is noted, and what nothing can follow ends the run.
    fn tried<T>(
        &mut self,
        node: NodeNumber,
        name: &[u8],
        what: &'static str,
        call: impl FnOnce(&mut Target) -> Result<T, Errno>,
    ) -> Result<Option<T>, Stop> {
        match call(&mut self.target) {
            Ok(done) => Ok(Some(done)),
            Err(error) if ends(error) => Err(Stop::Target(error)),
            Err(error) => {
                self.refuse(what, error, node, name);
                Ok(None)
            }
        }
    }

    fn refuse(&mut self, what: &'static str, error: Errno, node: NodeNumber, name: &[u8]) {
        let path = self.target.path_of(node, name);
        self.refused.entry((what, error.raw_os_error())).or_insert((0, path)).0 += 1;
    }

    fn missing(&mut self, inode: u64, path: String, reason: String) {
        if self.report.missing.len() < LISTED_MAX {
            self.report.missing.push(Missing { inode, path, reason });
        } else {
            self.report.left_out += 1;
        }
    }

    fn count(&mut self) {
        let report = &self.report;
        let done = report.files + report.directories + report.links + report.special + report.complete_before;
        (self.progress)(Progress { stage: Stage::Restore, done, total: self.total.max(done) });
    }

    fn finish(mut self, run: Result<(), Stop>) -> RestoreReport {
        let mut run = run;
        // Also after an early end: whatever is there has its properties.
        for (number, node) in std::mem::take(&mut self.made).into_iter().rev() {
            let Some((_, inode)) = inodes::read(self.image, number) else { continue };
            let set = self.finish_directory(number, node, &inode);
            run = run.and(set);
        }
        if run.is_ok()
            && let Err(error) = self.target.sync()
        {
            run = Err(Stop::Target(error));
        }
        let directory = self.target.path().display().to_string();
        self.report.stopped = run.err().map(|Stop::Target(error)| match error {
            Errno::NOSPC | Errno::DQUOT => {
                format!("{directory}: no space left; make room, then run the same command with --force: it goes on where this one ended")
            }
            error => format!("{directory}: {error}"),
        });
        let refused = self.refused.into_iter().map(|((what, error), (count, first_path))| Refused {
            what,
            error: Errno::from_raw_os_error(error).to_string(),
            count,
            first_path,
        });
        self.report.refused = refused.collect();
        self.report
    }

    fn finish_directory(&mut self, number: u64, node: NodeNumber, inode: &Inode) -> Result<(), Stop> {
        let (parent, name) = self.target.place_of(node);
        let name = if node == TOP { b".".to_vec() } else { name.to_vec() };
        self.set_properties(parent, &name, number, inode)
    }
}

/// Errors that every further call would meet too.
fn ends(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO | Errno::NODEV | Errno::MFILE | Errno::NFILE)
}
