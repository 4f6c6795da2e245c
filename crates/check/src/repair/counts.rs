//! The fourth step: link counts and space, once everything that they count was read ([CK3]).

use tandemfs_format::inode::LINK_MAX;

use crate::finding::Finding;

use super::plan::Plan;

pub(crate) fn plan(plan: &mut Plan<'_>) {
    let inspection = plan.inspection;
    for finding in inspection.findings() {
        match *finding {
            Finding::LinkCount { inode, expected, .. } => {
                let is_directory = inspection.inodes.get(inode).is_some_and(|facts| facts.is_directory());
                if expected <= LINK_MAX || is_directory {
                    plan.change_hot(inode, |hot| hot.nlink = expected.into());
                }
            }
            Finding::SpaceWrong { inode, expected, .. } => plan.change_hot(inode, |hot| hot.space_512 = expected.into()),
            _ => {}
        }
    }
}
