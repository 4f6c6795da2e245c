//! The last step: data that do not fit their checksums become zeros, with the checksum of zeros, and are listed. Damage of a checksum (a
//! line of a vector has none of its own) looks the same, so it is repaired so too. Only with metadata whole: a block that loses to another
//! claim must not zero the other's bytes.
//!
//! [ZE1] Sectors are written only if the block half is proved to belong to the pair: else it is another device's data.

use tandemfs_device::Structure;
use tandemfs_format::mapping::{
    BlockChecksum, Extent, LogEntry, Record, VECTOR_LINE_SECTORS, leaf_line, line_entries, set_vector_checksum,
};
use tandemfs_format::{DataAddress, EMPTY_LINE, LineAddress, SECTOR_BYTES};

use crate::mend::{Mend, Origin, Owner};

use super::plan::{Group, Plan};

pub(crate) fn plan(plan: &mut Plan<'_>) {
    let inspection = plan.inspection;
    for mend in &inspection.mends {
        if matches!(mend, Mend::ZeroSectors { first: DataAddress::Sector(_), .. }) && !plan.may_write_sectors() {
            continue; // [ZE1]
        }
        let (group, run, lost) = match mend {
            Mend::ZeroSectors { owner, origin, first, index, count, lost } => {
                let Some(group) = of_sectors(plan, *owner, *origin, *index, *count) else { continue };
                (group, Some((*first, *count)), *lost)
            }
            Mend::ZeroLog { owner, origin, lost } => {
                let Some(group) = of_log(plan, *owner, *origin) else { continue };
                (group, None, *lost)
            }
            _ => continue,
        };
        if !plan.frees_link(Some(lost)) {
            plan.zeros.extend(run);
            plan.lost.push(lost);
            plan.add(group);
        }
    }
}

/// The lines with the checksums of sectors that become zeros.
fn of_sectors(plan: &Plan<'_>, owner: Owner, origin: Origin, index: u64, count: u64) -> Option<Group> {
    let Origin::Extent { site, extent, leaf } = origin else { return None };
    let zero = plan.image.pair.data(&[0; SECTOR_BYTES]);
    match extent.checksum {
        BlockChecksum::Inline(_) => {
            let extent = Extent { checksum: BlockChecksum::Inline(zero), ..extent };
            plan.with_record(owner, site, Record::Block { extent: Some(extent), leaf }.encode())
        }
        BlockChecksum::Vector(vector) => {
            let mut group = Group::new();
            for sector in index..index + count {
                let address = vector.nth(sector / VECTOR_LINE_SECTORS);
                let mut line = match group.get(&address.number()) {
                    Some(line) => *line,
                    None => plan.line(Structure::Mapping, address)?,
                };
                set_vector_checksum(&mut line, sector, zero);
                group.insert(address.number(), line);
            }
            Some(group)
        }
        BlockChecksum::None | BlockChecksum::Open(_) => None,
    }
}

/// The lines of a log that becomes zeros, and the line with its checksum.
fn of_log(plan: &Plan<'_>, owner: Owner, origin: Origin) -> Option<Group> {
    let zeros = |log: LogEntry| LogEntry { crc: plan.image.pair.data(&vec![0; log.length as usize]), ..log };
    let (mut group, log) = match origin {
        Origin::Single { site, log } => (plan.with_record(owner, site, Record::SingleLog(zeros(log)).encode())?, log),
        Origin::Entry { line, log } => (leaf_with(plan, owner, line, log, Some(zeros(log)))?, log),
        Origin::Extent { .. } => return None,
    };
    group.extend((0..log.class.lines()).map(|line| (log.address.number() + line, EMPTY_LINE)));
    Some(group)
}

/// A line of a leaf with another entry in place of one.
pub(super) fn leaf_with(plan: &Plan<'_>, owner: Owner, line: LineAddress, old: LogEntry, new: Option<LogEntry>) -> Option<Group> {
    let mut entries = line_entries(&plan.line(Structure::Mapping, line)?, line).ok()?;
    for entry in entries.iter_mut().filter(|entry| **entry == Some(old)) {
        *entry = new;
    }
    let place = plan.image.place(owner.inode, owner.generation, line);
    Some(Group::from([(line.number(), leaf_line(&entries, &place))]))
}
