//! Repairs, in rounds of check and repair. A round does the first of these steps that has something to do, so that every step works on a
//! tree from which the earlier ones removed what hides others ([CK3]):
//!
//! 0. *correct*: lines with a single wrong bit (`crate::rescue`, [OB1]). *rescue*, only if asked for: the segment table (`table.rs`), without
//!    which nothing else can be judged; inodes whose first line is lost;
//! 1. *cut* (`cut.rs`, `directories.rs`, `root.rs`): inodes, lines and records that do not verify or claim what is not theirs;
//! 2. *names* (`names.rs`): entries that lead nowhere, wrong parents;
//! 3. *lost and found* (`lost_found.rs`): inodes without a name get one;
//! 4. *counts* (`counts.rs`): links and space;
//! 5. *data* (`zero.rs`), only if asked for: bytes that do not match their checksums become zeros. Otherwise they stay for whoever can make
//!    something of them, and reading them fails.
//!
//! The order of writes makes sure that an interruption never makes the image worse ([CK4]):
//!
//! [RP1] A superblock copy is rewritten only from the valid newer one, before anything else changes either.
//! [RP2] The clean flag is cleared next, so that the next mount recovers and rebuilds the maps.
//! [RP3] The journal is replayed home as a mount would do it: lines, fence, superblock with the next generation and watermark. ([RP8] says when
//!       the generation stays.)
//! [RP4] Every further change of a structure in use is a journal record: persisted, written home, passed by the watermark, one after the
//!       other. Changes that belong together (the slots of one name, all of an inode) are in one record.
//! [RP5] A round is repeated only if the findings or the state of the superblock changed since every earlier round, so a repair ends; as
//!       long as they change it goes on.
//! [RP6] New structures are written only to lines and sectors that nobody claims nor will ([HV3] of `halves.rs`), and are durable before the record that links them.
//! [RP7] The old bytes of everything that changes are durable in the file for undoing before the change.
//! [RP8] While the maps of the last unmount are there ([OM1] of `maps.rs`) the generation stays until the repair ends: what they prove ([CL3],
//!       [DM1]) is proved to the next repair, too, if this one is cut. That takes a journal with nothing in it but the record with which a
//!       repair was cut. Then the first ring goes on at its front with the next wrap count, which no record of this generation has: an
//!       unmount left no record behind its tail. So none verifies there but those of the repair. The other rings stay as they are.

mod counts;
mod cut;
mod directories;
mod free;
mod halves;
mod lost_found;
mod names;
mod plan;
mod root;
mod table;
mod writer;
mod zero;

use tandemfs_device::Drive;

use crate::checker::{CheckOptions, Inspection, Progress, Stage};
use crate::error::CheckError;
use crate::finding::Finding;
use crate::paths::path_of;
use crate::report::LostRange;
use crate::rescue::{self, is_of_table};
use crate::undo::Undo;

use plan::Plan;
use writer::Writer;

/// A repair across its rounds.
pub(crate) struct Repairer<'d> {
    drive: &'d Drive,
    options: &'d CheckOptions,
    pub(crate) undo: Option<Undo>,
    /// The journal was replayed, or there was nothing to replay.
    is_recovered: bool,
    /// The generation is to be raised at the end ([RP8]).
    owes_generation: bool,
    pub(crate) lost: Vec<LostRange>,
    /// Inodes that got a name.
    pub(crate) placed: Vec<u64>,
    /// What was rebuilt or corrected, as sentences.
    pub(crate) rescued: Vec<String>,
    table_is_done: bool,
    /// The generation at first: that of maps which are right, if they are there. Another one ends that.
    maps_generation: Option<u64>,
    /// A round found that names are lost ([HV2] of `halves.rs`): inodes without one may be found later.
    names_are_lost: bool,
}

impl<'d> Repairer<'d> {
    pub(crate) fn new(drive: &'d Drive, options: &'d CheckOptions) -> Self {
        Self {
            drive,
            options,
            undo: None,
            is_recovered: false,
            owes_generation: false,
            lost: Vec::new(),
            placed: Vec::new(),
            rescued: Vec::new(),
            table_is_done: !options.rescue,
            maps_generation: None,
            names_are_lost: false,
        }
    }

    /// Repairs findings of an inspection. Returns false if there is nothing (more) to repair.
    pub(crate) fn step(&mut self, inspection: &Inspection<'_>, progress: &mut dyn FnMut(Progress)) -> Result<bool, CheckError> {
        if inspection.located.is_empty() {
            return Ok(false); // a copy of the superblock that is only behind is the next mount's to write
        }
        self.maps_generation.get_or_insert(inspection.image.superblock.generation);
        let rebuilt = match self.corrections(inspection) {
            None if self.options.rescue => self.rescue_plan(inspection),
            corrections => corrections,
        };
        let (plan, sentences) = match rebuilt {
            Some((plan, sentences)) => (Some(plan), sentences),
            None => (self.ordinary_plan(inspection), Vec::new()),
        };
        let wants_heads = !inspection.stale_copies.is_empty() || Writer::wants_identity(inspection);
        // Records behind a damaged one may contradict those that were lost, so applying them may lose something.
        let replays_more = !self.options.preen && inspection.findings().any(is_of_journal);
        let wants_recovery = plan.as_ref().is_some_and(|plan| !plan.is_empty()) || replays_more;
        let wants_clear = wants_recovery || inspection.findings().any(drops_maps);
        if !wants_heads && (plan.is_none() || !wants_clear) {
            return Ok(false);
        }
        self.open_undo(inspection)?;
        self.say(inspection.superblock_without.iter().cloned().collect());
        let mut writer = Writer::new(self.drive, inspection, self.undo.as_mut());
        writer.write_heads(inspection)?; // [RP1]
        let Some(plan) = plan.filter(|_| wants_clear) else { return Ok(true) };
        if writer.clear_clean()? && !inspection.pending.is_empty() {
            return Ok(true); // [RP2]; what the records say counts from now on: look again before anything is changed
        }
        if !wants_recovery {
            return Ok(true);
        }
        if !self.is_recovered {
            self.owes_generation = writer.recover(inspection)?; // [RP3]
            self.is_recovered = true;
            if !inspection.pending.is_empty() {
                return Ok(true); // from here on the lines of the device are those of the image
            }
        }
        let paths = plan.lost.iter().map(|lost| path_of(&inspection.image, &inspection.inodes, lost.inode));
        let ranges = plan.lost.iter().zip(paths).map(|(lost, path)| LostRange {
            inode: lost.inode,
            path,
            offset: lost.offset,
            bytes: (lost.bytes > 0).then_some(lost.bytes),
        });
        self.lost.extend(ranges);
        self.placed.extend(&plan.placed);
        let sentences = [sentences, plan.sentences.clone()].concat();
        writer.apply(plan, &mut |done, total| progress(Progress { stage: Stage::Repair, done, total }))?; // [RP4], [RP6]
        self.say(sentences);
        Ok(true)
    }

    /// Ends the repair; nothing of it was cut.
    pub(crate) fn finish(&mut self, inspection: &Inspection<'_>) -> Result<(), CheckError> {
        if std::mem::take(&mut self.owes_generation) {
            Writer::new(self.drive, inspection, self.undo.as_mut()).raise_generation()?; // [RP8]
        }
        match &mut self.undo {
            Some(undo) => undo.finish(),
            None => Ok(()),
        }
    }

    fn say(&mut self, sentences: Vec<String>) {
        for sentence in sentences {
            if !self.rescued.contains(&sentence) {
                self.rescued.push(sentence);
            }
        }
    }

    /// Lines with a single wrong bit: their checksums prove the right bytes ([OB1]), so nothing is lost.
    fn corrections<'i>(&self, inspection: &'i Inspection<'i>) -> Option<(Plan<'i>, Vec<String>)> {
        let must_wait = self.options.preen && inspection.findings().any(is_of_journal) || inspection.findings().any(contradicts_journal);
        if must_wait && !self.options.rescue {
            return None;
        }
        let corrected = rescue::corrected_lines(&inspection.image, &inspection.inodes, inspection.findings());
        if corrected.is_empty() {
            return None;
        }
        let mut plan = Plan::new(inspection);
        let sentence = format!("lines with a single wrong bit were corrected: {}", corrected.len());
        corrected.into_iter().for_each(|line| plan.add([line].into()));
        Some((plan, vec![sentence]))
    }

    /// What only a rescue does, if there is something left.
    fn rescue_plan<'i>(&mut self, inspection: &'i Inspection<'i>) -> Option<(Plan<'i>, Vec<String>)> {
        let (image, inodes) = (&inspection.image, &inspection.inodes);
        if !self.table_is_done {
            let (plan, sentences) = table::plan(inspection);
            if !plan.is_empty() {
                return Some((plan, sentences));
            }
            self.table_is_done = true;
            self.say(sentences); // what could not be found is said even if nothing changes
        }
        let rebuilt = rescue::hot_lines(image, inodes, inspection.findings());
        let mut plan = Plan::new(inspection);
        let sentences = rebuilt.iter().map(|rebuilt| rebuilt.sentence.clone()).collect();
        rebuilt.iter().for_each(|rebuilt| plan.add([(rebuilt.address.number(), rebuilt.hot)].into()));
        (!plan.is_empty()).then_some((plan, sentences))
    }

    fn ordinary_plan<'i>(&mut self, inspection: &'i Inspection<'i>) -> Option<Plan<'i>> {
        if is_blind(inspection) {
            return None;
        }
        let mut plan = Plan::new(inspection);
        plan.maps_generation = self.maps_generation.unwrap_or(plan.maps_generation);
        plan.names_are_lost = self.names_are_lost;
        fill_plan(&mut plan, self.options);
        self.names_are_lost = plan.names_are_lost;
        Some(plan)
    }

    /// The file is made when something is about to be changed, and not before.
    fn open_undo(&mut self, inspection: &Inspection<'_>) -> Result<(), CheckError> {
        if let (None, Some(path), false) = (&self.undo, &self.options.undo, self.options.dry_run) {
            self.undo = Some(Undo::create(path, &inspection.image.superblock)?);
        }
        Ok(())
    }
}

/// Whether the tree is not completely known for reasons that no repair removes: what seems missing may only be hidden.
fn is_blind(inspection: &Inspection<'_>) -> bool {
    inspection.findings().any(|finding| contradicts_journal(finding) || is_of_table(finding))
}

/// Findings after which nobody knows what the journal would change.
fn contradicts_journal(finding: &Finding) -> bool {
    matches!(finding, Finding::RecordOutOfPlace { .. } | Finding::RecordTwice { .. })
}

/// Findings that the replay of all valid records removes.
fn is_of_journal(finding: &Finding) -> bool {
    matches!(finding, Finding::RecordDamaged { .. })
}

/// Findings that a cleared clean flag removes: the next mount replays, removes orphans and rebuilds the maps.
fn drops_maps(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::RecordAfterCleanUnmount { .. }
            | Finding::OrphanLeft { .. }
            | Finding::MapDamaged { .. }
            | Finding::MapKind { .. }
            | Finding::MapWrong { .. }
    )
}

/// The first step that has something to do.
fn fill_plan(plan: &mut Plan<'_>, options: &CheckOptions) {
    let loses_nothing = options.preen;
    if loses_nothing && plan.inspection.findings().any(is_of_journal) {
        return;
    }
    if !loses_nothing {
        cut::plan(plan);
    }
    if plan.is_empty() {
        names::plan(plan, loses_nothing);
    }
    if plan.is_empty() {
        lost_found::plan(plan, options.subdirectories_max);
    }
    if plan.is_empty() {
        counts::plan(plan);
    }
    if plan.is_empty() && options.zero_data && !loses_nothing {
        zero::plan(plan);
    }
}
