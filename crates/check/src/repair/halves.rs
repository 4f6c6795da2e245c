//! Inodes that have lost their second line, made anew as far as `crate::rescue` proves what was in it ([CL1] to [CL4]).
//!
//! [HV1] Both lines are in one record. What it links, of a directory or of lost records, is written aside before ([RP6]).

use std::collections::BTreeMap;

use tandemfs_format::PAGE_BYTES;

use crate::mend::{Lost, Mend, Owner};
use crate::rescue::cold_lines::{self, Content, Half, Surroundings};

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
