//! Inodes that have lost their second line, made anew as far as `crate::rescue` proves what was in it ([CL1] to [CL4]).
//!
//! [HV1] Both lines are in one record. What it links, of a directory or of lost records, is written aside before ([RP6]).
//! [HV2] An inode without a name is saved only if names were lost, too. Otherwise a mount has removed its name, which it may although the inode
//!       is damaged. While directories are still made anew, it waits: its name may be in one of them. Names are lost by damage of their
//!       entries, of a directory's mapping, and with inodes that are given up and may be directories, in this round or an earlier one.
//! [HV3] What inodes have that are saved, or wait, is spared before anything new is made: until then nobody claims it. Neither do the pages of
//!       directories that are made anew.

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::inode::{Inode, InodeHotLine, file_type};
use tandemfs_format::{EMPTY_LINE, InodeNumber, PAGE_BYTES, PAGE_LINES};
use zerocopy::FromBytes;

use crate::checker::Inspection;
use crate::claims::Claims;
use crate::finding::Finding;
use crate::mend::{Lost, Mend, Owner};
use crate::mutant::{Mutant, on};
use crate::rescue::cold_lines::{self, Content, Half, Surroundings};
use crate::rescue::hot_lines::kind_of;

use super::cut::lost_root;
use super::directories::{Salvage, build_tree};
use super::plan::Plan;
use super::root::lines_of;

/// All inodes that a repair would give up, and of which more than the name can be saved.
pub(crate) fn search(plan: &Plan<'_>) -> BTreeMap<u64, Half> {
    let inspection = plan.inspection;
    let given_up = inspection.mends.iter().filter_map(|mend| if let Mend::FreeInode { inode, .. } = mend { Some(*inode) } else { None });
    let around = Surroundings {
        inodes: &inspection.inodes,
        lines: &inspection.lines,
        sectors: &inspection.sectors,
        maps_generation: plan.maps_generation,
    };
    cold_lines::rebuild(plan.image, &around, given_up)
}

/// The directories among them, whose pages have to be searched.
pub(crate) fn directories(halves: &BTreeMap<u64, Half>) -> Vec<Owner> {
    let owner = |(number, half): (&u64, &Half)| Owner { inode: *number, generation: half.inode.generation };
    halves.iter().filter(|(_, half)| half.content == Content::Pages).map(owner).collect()
}

/// [HV3]
pub(crate) fn spare(plan: &mut Plan<'_>, halves: &BTreeMap<u64, Half>, judge: &Judge, salvage: &Salvage) {
    for (number, half) in halves {
        if judge.judge(plan, *number) != Verdict::GiveUp {
            plan.free.spare(&half.lines, &half.sectors);
        }
    }
    let mut pages = Claims::default();
    for page in salvage.pages() {
        pages.claim(page.number(), PAGE_LINES);
    }
    plan.free.spare(&pages, &Claims::default());
}

/// What is to be done about an inode whose half is known ([HV2]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Save,
    Wait,
    GiveUp,
}

/// Decides about inodes.
pub(crate) struct Judge {
    names_are_lost: bool,
    directories_are_made: bool,
}

impl Judge {
    pub(crate) fn new(plan: &Plan<'_>, halves: &BTreeMap<u64, Half>) -> Self {
        let inspection = plan.inspection;
        let is_kept = |number: &u64| halves.contains_key(number);
        let loses_names = |finding: &Finding| loses_names(inspection, finding, &is_kept);
        let makes_directory = |mend: &Mend| matches!(mend, Mend::Directory { .. } | Mend::Root);
        Self {
            names_are_lost: plan.names_are_lost || inspection.findings().any(loses_names),
            directories_are_made: inspection.mends.iter().any(makes_directory)
                || halves.iter().any(|(number, half)| half.content == Content::Pages && is_named(plan, *number)),
        }
    }

    /// Whether there may be inodes that lost their names by damage.
    pub(crate) fn names_are_lost(&self) -> bool {
        self.names_are_lost
    }

    pub(crate) fn judge(&self, plan: &Plan<'_>, number: u64) -> Verdict {
        match is_named(plan, number) || self.names_are_lost {
            true => Verdict::Save,
            false if self.directories_are_made => Verdict::Wait,
            false => Verdict::GiveUp,
        }
    }
}

/// Whether a finding means that names are lost ([HV2]). `is_kept`: inodes that are made anew.
fn loses_names(inspection: &Inspection<'_>, finding: &Finding, is_kept: &dyn Fn(&u64) -> bool) -> bool {
    let is_directory = |number: u64| inspection.inodes.get(number).is_some_and(|facts| facts.is_directory());
    match finding {
        Finding::EntryDamaged { .. } | Finding::EntryPartStray { .. } => true,
        _ if on(Mutant::LostNamesRemoved) => false,
        Finding::RootMissing {} | Finding::DirectoryPageMissing { .. } => true,
        Finding::MappingDamaged { inode, .. }
        | Finding::LinesShared { inode, .. }
        | Finding::PointerMisplaced { inode, .. }
        | Finding::RecordKind { inode, .. } => is_directory(*inode),
        Finding::InodeDamaged { inode, .. } => !is_kept(inode) && may_be_directory(inspection, *inode),
        _ => false,
    }
}

/// Whether an inode that does not verify may have been a directory: its first line says what it was, else its name does.
fn may_be_directory(inspection: &Inspection<'_>, number: u64) -> bool {
    let image = &inspection.image;
    let hot = image.segments.inode_address(number).and_then(|address| {
        let line = image.line(Structure::Inode, address).ok()?;
        let is_right = line != EMPTY_LINE && Inode::place(image.pair, InodeNumber::new(number), address).verify(&line).is_ok();
        InodeHotLine::read_from_bytes(&line).ok().filter(|_| is_right)
    });
    match hot {
        Some(hot) => hot.mode.get() & file_type::MASK == file_type::DIRECTORY && hot.nlink.get() > 0,
        None => kind_of(image, &inspection.inodes, number).is_none_or(|kind| kind == file_type::DIRECTORY),
    }
}

fn is_named(plan: &Plan<'_>, number: u64) -> bool {
    plan.inspection.inodes.get(number).is_some_and(|facts| facts.links > 0)
}

/// Makes the inode anew; false if there is no space for its directory's mapping.
pub(crate) fn save(plan: &mut Plan<'_>, number: u64, mut half: Half, salvage: &Salvage) -> bool {
    let owner = Owner { inode: number, generation: half.inode.generation };
    match half.content {
        Content::Whole => {}
        Content::Pages => {
            let pages: Vec<_> = salvage.pages_of(owner).collect();
            let Some(root) = build_tree(plan, owner, &pages) else { return false };
            half.inode.root = root.to_bytes();
            half.inode.size = (pages.len() * PAGE_BYTES) as u64;
        }
        Content::Lost => {
            let lost = Lost { inode: number, offset: 0, bytes: half.inode.size };
            half.inode.root = lost_root(plan, owner, Some(lost)).encode().to_bytes();
            plan.lost.push(lost);
        }
    }
    plan.sentences.push(half.sentence(number));
    let group = lines_of(plan.image, number, half.address, &half.inode);
    plan.add(group); // [HV1]
    true
}
