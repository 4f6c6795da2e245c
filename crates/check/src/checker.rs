//! The order of the passes, and what they share.

use tandemfs_device::Drive;

use crate::claims::Claims;
use crate::data::DataQueue;
use crate::error::CheckError;
use crate::finding::Finding;
use crate::image::Image;
use crate::inodes::Inodes;
use crate::journal::{self, RecordPlace};
use crate::mutant::{Mutant, on};
use crate::paths::path_of;
use crate::repair;
use crate::report::{Counts, Located, Report};
use crate::segments::Segments;
use crate::superblock;

/// How to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// Make repairs that need no guess. Without it nothing is written.
    pub repair: bool,
    /// Read all file data and verify it. Without it only metadata is.
    pub data: bool,
    /// Threads that verify data.
    pub threads: usize,
    /// Most findings that are kept; the others are counted.
    pub findings_max: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        Self { repair: false, data: true, threads, findings_max: 10_000 }
    }
}

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Superblocks, journal, segment table.
    Structure,
    /// Inodes.
    Inodes,
    /// Mappings, directories and data.
    Mappings,
    /// Link counts and paths.
    Names,
    /// Saved maps.
    Maps,
    /// Repairs.
    Repair,
}

impl Stage {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Structure => "structure",
            Self::Inodes => "inodes",
            Self::Mappings => "files",
            Self::Names => "names",
            Self::Maps => "maps",
            Self::Repair => "repair",
        }
    }
}

/// Progress of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Done so far, in units of the stage's own.
    pub done: u64,
    /// All of it, in the same units.
    pub total: u64,
}

/// The state of one inspection.
pub(crate) struct Checker<'c> {
    pub(crate) image: &'c Image<'c>,
    pub(crate) options: &'c CheckOptions,
    progress: &'c mut dyn FnMut(Progress),
    pub(crate) lines: Claims,
    pub(crate) sectors: Claims,
    pub(crate) inodes: Inodes,
    pub(crate) data: DataQueue,
    pub(crate) counts: Counts,
    findings: Vec<Finding>,
    left_out: u64,
    /// Everything that uses space was read ([CK3]).
    pub(crate) tree_whole: bool,
    /// All names were read ([CK3]).
    pub(crate) names_whole: bool,
}

impl Checker<'_> {
    /// Notes a finding.
    pub(crate) fn find(&mut self, finding: Finding) {
        if self.findings.len() < self.options.findings_max {
            self.findings.push(finding);
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn progress(&mut self, stage: Stage, done: u64, total: u64) {
        (self.progress)(Progress { stage, done, total });
    }
}

/// An image as one inspection found it.
pub(crate) struct Inspection<'d> {
    pub(crate) image: Image<'d>,
    /// The bytes of the valid newer superblock, and the copies to rewrite from it.
    pub(crate) superblock_bytes: [u8; 1024],
    pub(crate) stale_copies: Vec<usize>,
    /// Whether the block half is proved to belong to the pair, by its data or by the remains of its identity.
    pub(crate) block_half_proved: bool,
    pub(crate) pending: Vec<RecordPlace>,
    pub(crate) located: Vec<Located>,
    left_out: u64,
    counts: Counts,
    copy_is_behind: bool,
}

impl Inspection<'_> {
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.located.iter().map(|located| &located.finding)
    }
}

fn inspect<'d>(drive: &'d Drive, options: &CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<Inspection<'d>, CheckError> {
    progress(Progress { stage: Stage::Structure, done: 0, total: 1 });
    let heads = superblock::read(drive)?;
    let mut findings = heads.findings;
    let mut image = Image::new(drive, heads.superblock);
    let pending = if on(Mutant::JournalIgnored) { Vec::new() } else { journal::pending(&image)? };
    if image.superblock.clean {
        findings.extend(pending.iter().map(|place| Finding::RecordAfterCleanUnmount { ring: place.ring, txid: place.txid }));
    } else {
        image.overlay = journal::replay(&image, &pending, &mut findings)?;
    }
    let before = findings.len();
    let segments = Segments::read(&image, &mut findings);
    image.segments = segments;
    let table_whole = findings.len() == before;
    progress(Progress { stage: Stage::Structure, done: 1, total: 1 });

    let mut checker = Checker {
        image: &image,
        options,
        progress,
        lines: Claims::default(),
        sectors: Claims::default(),
        inodes: Inodes::default(),
        data: DataQueue::default(),
        counts: Counts { journal_records: pending.len() as u64, ..Counts::default() },
        findings: Vec::new(),
        left_out: 0,
        tree_whole: table_whole,
        names_whole: table_whole,
    };
    for finding in findings {
        checker.find(finding);
    }
    checker.check_inodes();
    checker.check_mappings();
    checker.check_names();
    checker.check_maps();

    let Checker { inodes, data, counts, findings, left_out, .. } = checker;
    let located = findings
        .into_iter()
        .map(|finding| {
            let path = finding.inode().and_then(|inode| path_of(&image, &inodes, inode));
            Located::new(finding, path)
        })
        .collect();
    let block_half_proved = heads.identity_resembles || data.sectors_good > 0;
    Ok(Inspection {
        image,
        superblock_bytes: heads.bytes,
        stale_copies: heads.stale_copies,
        block_half_proved,
        pending,
        located,
        left_out,
        counts,
        copy_is_behind: heads.copy_is_behind,
    })
}

/// Checks an image, and repairs it if asked to. The device must not be mounted.
///
/// # Errors
/// Only if nothing could be checked: no readable superblock, a truncated device, halves of two pairs, or a device that fails while
/// check repairs or reads the journal. Damage is a finding, not an error.
pub fn check(drive: &Drive, options: &CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<Report, CheckError> {
    drive.recover()?; // what no COMMIT made durable must not be taken for damage, nor for a state of the image
    let mut inspection = inspect(drive, options, progress)?;
    let clean = inspection.image.superblock.clean;
    let mut repaired: Vec<Located> = Vec::new();
    let unknown = inspection.image.superblock.unknown_to_write();
    if options.repair && unknown != 0 {
        let device = drive.description().name.clone();
        return Err(CheckError::ReadOnlyFeatures { device, unknown });
    }
    if options.repair {
        // A repair may reveal further findings (the link count after a damaged name was removed); each round needs at least one repair.
        let metadata_only = CheckOptions { data: false, ..options.clone() };
        let mut round = 0;
        while round < repair::ROUNDS_MAX && repair::apply(&inspection, progress)? {
            repaired.append(&mut inspection.located);
            inspection = inspect(drive, &metadata_only, progress)?;
            round += 1;
        }
        if round > 0 && options.data {
            inspection = inspect(drive, options, progress)?;
        }
        repaired.retain(|located| !inspection.findings().any(|left| *left == located.finding));
        let mut seen = Vec::new();
        repaired.retain(|located| {
            let new = !seen.contains(&located.finding);
            seen.push(located.finding.clone());
            new
        });
    }
    let superblock = &inspection.image.superblock;
    Ok(Report {
        device: drive.description().name.clone(),
        pair: superblock.pair,
        label: superblock.label.clone(),
        clean,
        superblock_copy_behind: inspection.copy_is_behind,
        counts: inspection.counts,
        repaired,
        findings: inspection.located,
        findings_left_out: inspection.left_out,
    })
}
