//! The order of the passes, and what they share.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use tandemfs_device::Drive;
use tandemfs_format::inode::{Inode, LINK_MAX};

use crate::claims::Claims;
use crate::contested::Contested;
use crate::copy_in_memory::CopyInMemory;
use crate::data::DataQueue;
use crate::error::CheckError;
use crate::finding::{Finding, Target};
use crate::image::Image;
use crate::inodes::Inodes;
use crate::journal::{self, RecordPlace};
use crate::lent;
use crate::mend::{Lost, Mend};
use crate::mutant::{Mutant, on};
use crate::paths::path_of;
use crate::proved::Proved;
use crate::repair::Repairer;
use crate::report::{Counts, Located, LostRange, Placed, Report};
use crate::rescue::lost_units;
use crate::segments::Segments;
use crate::superblock::{self, Reading};
use crate::undo::Undo;
use crate::usage::UsageCounts;

/// How to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// Repair. Without it nothing is written.
    pub repair: bool,
    /// Repair only what loses nothing.
    pub preen: bool,
    /// Repair also data that do not match their checksums: they become zeros and are listed. Without it they stay as they are, and reading
    /// them fails.
    pub zero_data: bool,
    /// Rebuild first what no repair can: superblocks whose copies are both damaged, the segment table, and inodes whose first line is lost.
    pub rescue: bool,
    /// Repair a copy in host memory, so that the report says what a repair would do.
    pub dry_run: bool,
    /// File that gets the old bytes of everything before it is changed; it must not exist.
    pub undo: Option<PathBuf>,
    /// Most subdirectories that a repair gives a directory; tests use fewer than the format allows.
    pub subdirectories_max: u32,
    /// Both zones are of one drive, so the block half is of the pair even if nothing in it says so.
    pub one_drive: bool,
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
        Self {
            repair: false,
            preen: false,
            zero_data: false,
            rescue: false,
            dry_run: false,
            undo: None,
            subdirectories_max: LINK_MAX - 2,
            one_drive: false,
            data: true,
            threads,
            findings_max: 10_000,
        }
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
    /// Copying out what can be read.
    Restore,
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
            Self::Restore => "restore",
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
    /// What the checksums say, once somebody has to know.
    pub(crate) proved: Option<Proved>,
    /// The same of what claims of blocks name; `None` until a claim fails ([PO5]).
    pub(crate) contested: Option<Contested>,
    /// A claim failed of which that may decide.
    pub(crate) is_contested: bool,
    /// Units of the data area in use, and whether for data logs or for pages of files.
    pub(crate) data_units: BTreeMap<u64, Target>,
    pub(crate) inodes: Inodes,
    pub(crate) data: DataQueue,
    pub(crate) counts: Counts,
    /// What each user, group and project uses.
    pub(crate) usage: UsageCounts,
    findings: Vec<Finding>,
    left_out: u64,
    mends: Vec<Mend>,
    /// What earlier repairs gave up, as many ranges as findings are kept.
    lost: Vec<Lost>,
    /// Everything that uses space was read ([CK3]).
    pub(crate) tree_whole: bool,
    /// All names were read ([CK3]).
    pub(crate) names_whole: bool,
}

impl<'c> Checker<'c> {
    fn over(image: &'c Image<'c>, options: &'c CheckOptions, progress: &'c mut dyn FnMut(Progress), table_whole: bool) -> Self {
        Self {
            image,
            options,
            progress,
            lines: Claims::default(),
            sectors: Claims::default(),
            proved: None,
            contested: None,
            is_contested: false,
            data_units: BTreeMap::new(),
            inodes: Inodes::default(),
            data: DataQueue::default(),
            counts: Counts::default(),
            usage: UsageCounts::default(),
            findings: Vec::new(),
            left_out: 0,
            mends: Vec::new(),
            lost: Vec::new(),
            tree_whole: table_whole,
            names_whole: table_whole,
        }
    }

    fn walk(&mut self) {
        self.check_inodes();
        self.check_mappings();
        if !self.begins_again() {
            self.check_names();
        }
    }

    /// The walk has to begin again, with what is contested ([PO5]).
    pub(crate) fn begins_again(&self) -> bool {
        self.is_contested && self.contested.is_none()
    }

    /// Notes the units whose lines of the table were lost ([LU1]).
    fn check_units(&mut self) {
        for (unit, region) in lost_units(self.image, self.findings.iter()) {
            self.find(Finding::UnitLost { unit, region: region.number() });
        }
    }

    /// Notes a finding.
    pub(crate) fn find(&mut self, finding: Finding) {
        if self.findings.len() < self.options.findings_max {
            self.findings.push(finding);
        } else {
            self.left_out += 1;
        }
    }

    /// Notes a range that an earlier repair gave up. Ranges that follow each other become one.
    pub(crate) fn note_lost(&mut self, lost: Lost) {
        self.counts.lost_bytes = self.counts.lost_bytes.saturating_add(lost.bytes);
        let follows = |last: &&mut Lost| last.inode == lost.inode && last.offset.saturating_add(last.bytes) == lost.offset;
        if let Some(last) = self.lost.last_mut().filter(follows) {
            last.bytes = last.bytes.saturating_add(lost.bytes);
        } else if self.lost.len() < self.options.findings_max {
            self.lost.push(lost);
        }
    }

    /// Notes a change that a repair would make here.
    pub(crate) fn mend(&mut self, mend: Mend) {
        if self.options.repair {
            self.mends.push(mend);
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
    /// Whether the block half is proved to belong to the pair, by its data, by the remains of its identity, or because it is one drive.
    pub(crate) block_half_proved: bool,
    pub(crate) pending: Vec<RecordPlace>,
    pub(crate) located: Vec<Located>,
    pub(crate) mends: Vec<Mend>,
    /// What earlier repairs gave up.
    lost: Vec<Lost>,
    /// Lines and sectors in use, as far as they could be found.
    pub(crate) lines: Claims,
    pub(crate) sectors: Claims,
    /// Units of the data area in use, and what for.
    pub(crate) data_units: BTreeMap<u64, Target>,
    pub(crate) inodes: Inodes,
    /// Data was verified too.
    pub(crate) with_data: bool,
    left_out: u64,
    counts: Counts,
    usage: UsageCounts,
    copy_is_behind: bool,
    identity_is_behind: bool,
    /// What a superblock lost that was put together from two copies.
    pub(crate) superblock_without: Option<String>,
}

impl Inspection<'_> {
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.located.iter().map(|located| &located.finding)
    }

    /// What earlier repairs gave up, with paths.
    fn lost_ranges(&self) -> Vec<LostRange> {
        let range = |lost: &Lost| LostRange {
            inode: lost.inode,
            path: path_of(&self.image, &self.inodes, lost.inode),
            offset: lost.offset,
            bytes: Some(lost.bytes),
        };
        self.lost.iter().map(range).collect()
    }

    /// A hash of everything that decides what a repair would do next.
    fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.image.superblock.clean, self.pending.len(), self.with_data, self.stale_copies.len()).hash(&mut hasher);
        self.findings().for_each(|finding| finding.hash(&mut hasher));
        hasher.finish()
    }
}

/// What is wrong with the tree of an image, facts about its inodes, and what they use; without its data.
pub(crate) struct Surveyed {
    pub(crate) findings: Vec<Finding>,
    pub(crate) inodes: Inodes,
    pub(crate) lines: Claims,
    pub(crate) sectors: Claims,
}

/// What is damaged in the tree of an image.
pub(crate) fn damage_of(image: &Image<'_>) -> Surveyed {
    let options = CheckOptions { data: false, findings_max: usize::MAX, ..CheckOptions::default() };
    let mut progress = |_| {};
    let mut checker = Checker::over(image, &options, &mut progress, true);
    checker.contested = Some(Contested::default()); // who has contested data makes no difference here
    checker.walk();
    let Checker { findings, inodes, lines, sectors, .. } = checker;
    Surveyed { findings, inodes, lines, sectors }
}

/// What the mapping of an inode takes.
pub(crate) struct Taken {
    /// Space in units of 512 B, as the inode counts it.
    pub(crate) space_512: u64,
    pub(crate) lines: Claims,
    pub(crate) sectors: Claims,
}

/// What the mapping of an inode takes, if it and all of its data verify, and none of it is among the lines and sectors of others.
pub(crate) fn verify_alone(image: &Image<'_>, others: (&Claims, &Claims), number: u64, inode: &Inode) -> Option<Taken> {
    let options = CheckOptions { findings_max: 1, ..CheckOptions::default() };
    let mut progress = |_| {};
    let mut checker = Checker::over(image, &options, &mut progress, true);
    checker.proved = Some(Proved::default()); // what does not verify is enough to know
    checker.contested = Some(Contested::default());
    let space_512 = checker.check_mapping(number, inode)?;
    checker.verify_data();
    let Checker { findings, lines, sectors, .. } = checker;
    (findings.is_empty() && lines.is_disjoint(others.0) && sectors.is_disjoint(others.1)).then_some(Taken { space_512, lines, sectors })
}

fn inspect<'d>(drive: &'d Drive, options: &CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<Inspection<'d>, CheckError> {
    progress(Progress { stage: Stage::Structure, done: 0, total: 1 });
    let heads = superblock::read_as(drive, if options.rescue { Reading::Rescue } else { Reading::Strict })?;
    let mut findings = heads.findings;
    let mut image = Image::new(drive, heads.superblock);
    let pending = if on(Mutant::JournalIgnored) { Vec::new() } else { journal::pending(&image, &mut findings)? };
    if image.superblock.clean {
        findings.extend(pending.iter().map(|place| Finding::RecordAfterCleanUnmount { ring: place.ring, txid: place.txid }));
    } else {
        image.overlay = journal::replay(&image, &pending, &mut findings)?;
    }
    let before = findings.len();
    let segments = Segments::read(&image, &mut findings);
    image.segments = segments;
    let table_whole = findings.len() == before;
    lent::adopt(&mut image, &mut findings)?;
    progress(Progress { stage: Stage::Structure, done: 1, total: 1 });

    let mut contested = None;
    let mut checker = loop {
        let mut checker = Checker::over(&image, options, &mut *progress, table_whole);
        checker.contested = contested;
        checker.counts.journal_records = pending.len() as u64;
        for finding in &findings {
            checker.find(finding.clone());
        }
        checker.walk();
        if !checker.begins_again() {
            break checker;
        }
        contested = Some(Contested::search(&image));
    };
    checker.check_units();
    checker.check_maps();
    checker.claim_what_has_no_owner();

    let Checker { inodes, lines, sectors, data_units, data, counts, usage, findings, mends, lost, left_out, .. } = checker;
    let located = findings
        .into_iter()
        .map(|finding| {
            let path = finding.inode().and_then(|inode| path_of(&image, &inodes, inode));
            Located::new(finding, path)
        })
        .collect();
    let block_half_proved = heads.identity_resembles || data.sectors_good > 0 || options.one_drive;
    Ok(Inspection {
        image,
        superblock_bytes: heads.bytes,
        stale_copies: heads.stale_copies,
        block_half_proved,
        pending,
        located,
        mends,
        lost,
        lines,
        sectors,
        data_units,
        inodes,
        with_data: options.data,
        left_out,
        counts,
        usage,
        copy_is_behind: heads.copy_is_behind,
        identity_is_behind: heads.identity_is_behind,
        superblock_without: heads.rebuilt_without,
    })
}

/// Checks an image, and repairs it if asked to. The device must not be mounted.
///
/// # Errors
/// Only if nothing could be checked: no readable superblock, a truncated device, halves of two pairs, a device that fails while
/// check repairs or reads the journal, or a file for undoing that cannot be written. Damage is a finding, not an error.
pub fn check(drive: &Drive, options: &CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<Report, CheckError> {
    drive.recover()?; // what no COMMIT made durable must not be taken for damage, nor for a state of the image
    let copy;
    let drive = if options.repair && options.dry_run {
        copy = Drive::new(Arc::new(CopyInMemory::new(drive)));
        &copy
    } else {
        drive
    };
    let first = inspect(drive, &inspection_options(options), progress)?;
    let clean = first.image.superblock.clean;
    let unknown = first.image.superblock.unknown_to_write();
    if options.repair && unknown != 0 {
        let device = drive.description().name.clone();
        return Err(CheckError::ReadOnlyFeatures { device, unknown });
    }
    let lost_before = first.lost_ranges();
    let mut outcome = Outcome {
        repaired: Vec::new(),
        rescued: Vec::new(),
        lost: Vec::new(),
        lost_before,
        placed: Vec::new(),
        undo_bytes: 0,
        inspection: first,
    };
    if options.repair {
        outcome.repair(drive, options, progress)?;
    }
    Ok(outcome.report(drive, options, clean))
}

/// Repair has to see every finding; the report keeps only some.
fn inspection_options(options: &CheckOptions) -> CheckOptions {
    let findings_max = if options.repair { usize::MAX } else { options.findings_max };
    CheckOptions { findings_max, ..options.clone() }
}

/// What a run came to.
struct Outcome<'d> {
    repaired: Vec<Located>,
    rescued: Vec<String>,
    lost: Vec<LostRange>,
    lost_before: Vec<LostRange>,
    placed: Vec<u64>,
    undo_bytes: u64,
    inspection: Inspection<'d>,
}

impl<'d> Outcome<'d> {
    /// Repairs and checks again until nothing changes. Each round removes what hid further findings.
    fn repair(&mut self, drive: &'d Drive, options: &CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<(), CheckError> {
        let full = inspection_options(options);
        let metadata_only = CheckOptions { data: false, ..full.clone() };
        let mut repairer = Repairer::new(drive, options);
        let mut states_seen = HashSet::new();
        loop {
            // The same findings in the same state would get the same repair ([RP5]).
            let has_changed = states_seen.insert(self.inspection.state());
            if has_changed && repairer.step(&self.inspection, progress)? {
                self.repaired.append(&mut self.inspection.located);
                self.inspection = inspect(drive, &metadata_only, progress)?;
            } else if full.data && !self.inspection.with_data {
                self.inspection = inspect(drive, &full, progress)?;
            } else {
                break;
            }
        }
        let mut seen = HashSet::new();
        let left: HashSet<&Finding> = self.inspection.findings().collect();
        self.repaired.retain(|located| !left.contains(&located.finding) && seen.insert(located.finding.clone()));
        repairer.finish(&self.inspection)?;
        self.placed = repairer.placed;
        self.rescued = repairer.rescued;
        self.undo_bytes = repairer.undo.as_ref().map_or(0, Undo::bytes);
        self.lost = std::mem::take(&mut repairer.lost);
        Ok(())
    }

    fn report(mut self, drive: &Drive, options: &CheckOptions, clean: bool) -> Report {
        let superblock = &self.inspection.image.superblock;
        let path = |inode: u64| path_of(&self.inspection.image, &self.inspection.inodes, inode);
        for lost in &mut self.lost {
            lost.path = path(lost.inode).or(lost.path.take());
        }
        let placed = self.placed.iter().filter_map(|inode| Some(Placed { inode: *inode, path: path(*inode)? })).collect();
        let mut findings = std::mem::take(&mut self.inspection.located);
        let surplus = findings.len().saturating_sub(options.findings_max);
        findings.truncate(options.findings_max);
        Report {
            device: drive.description().name.clone(),
            pair: superblock.pair,
            uuid: superblock.uuid(),
            label: superblock.label.clone(),
            clean,
            superblock_copy_behind: self.inspection.copy_is_behind,
            identity_behind: self.inspection.identity_is_behind,
            counts: self.inspection.counts,
            usage: if superblock.has_quota() { self.inspection.usage.list() } else { Vec::new() },
            repaired: self.repaired,
            rescued: self.rescued,
            dry_run: options.dry_run,
            lost: self.lost,
            lost_before: self.lost_before,
            placed,
            undo_bytes: self.undo_bytes,
            findings,
            findings_left_out: self.inspection.left_out + surplus as u64,
        }
    }
}
