//! Empty units leave their regions and become data area ([GU1]-[GU7] of `alloc/departure.rs`).

use tandemfs_device::{Fenced, Flushed, Structure};
use tandemfs_format::segment::Region;
use tandemfs_format::{EMPTY_LINE, UNIT_LINES};

use super::{Tx, Volume};
use crate::alloc::departure::{Departure, Pace, TableChange};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::statistics::count;

impl Volume {
    /// Lets empty units leave their regions. Returns how many did. The caller holds no lock of a region.
    pub(crate) fn give_back_units(&self, pace: Pace) -> Result<u64> {
        if self.held_back.is_any() || self.health.check_writable().is_err() {
            return Ok(0); // [GU6]
        }
        let candidates = Region::ALL.map(|region| (region, self.memory.may_give(region, pace)));
        let waits = |(_, (may_give, waits)): &(Region, (bool, bool))| *may_give && *waits;
        if candidates.iter().any(waits) && !on(Mutant::UnitLeavesBeforeWatermark) {
            self.checkpoint()?; // [GU1]
        }
        let mut given = 0;
        for (region, _) in candidates.into_iter().filter(|(_, (may_give, _))| *may_give) {
            while let Some(departure) = self.memory.plan_departure(&self.health, || self.journal.watermark(), region, pace) {
                if !self.depart(departure)? {
                    break;
                }
                given += 1;
            }
        }
        Ok(given)
    }

    /// Notes which units are empty, for [`Pace::Rested`].
    pub(crate) fn look_for_empty_units(&self) {
        for region in Region::ALL {
            self.memory.look_for_empty_units(region);
        }
    }

    /// Commits the segment table without a unit ([GU2], [GU3]). False if a checkpoint has to come first ([GU1]).
    fn depart(&self, departure: Departure<'_>) -> Result<bool> {
        let (first, lines) = (departure.first_line(), UNIT_LINES);
        if self.pages.is_any_dirty(first, lines) && !on(Mutant::UnitLeavesBeforeWatermark) {
            return Ok(false);
        }
        match departure.changes.split_first() {
            Some((change, others)) if on(Mutant::UnitRenumberedApart) && !others.is_empty() => {
                self.commit_table(others, Fenced::nothing_stored())?;
                self.commit_table(std::slice::from_ref(change), Fenced::nothing_stored())?;
            }
            _ => self.commit_table(&departure.changes, Fenced::nothing_stored())?,
        }
        self.pages.forget(first, lines);
        departure.done();
        count(&self.live.work.units_given_back);
        Ok(true)
    }

    /// Changes lines of the segment table in one transaction, after what `before` proves.
    pub(crate) fn commit_table(&self, changes: &[TableChange], before: Fenced) -> Result<()> {
        let mut tx = Tx::new(self);
        for (line, segment) in changes {
            let address = self.geometry.segment_line(*line);
            let image = segment.map_or(EMPTY_LINE, |segment| segment.encode(self.pair, address));
            tx.put(Structure::AllocationMap, address, image)?;
        }
        tx.commit(before, Flushed::nothing_written()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;
    use tandemfs_format::{InodeNumber, LineAddress, PAGE_LINES};

    use super::*;
    use crate::alloc::Need;
    use crate::{Error, FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

    const NEW_FILE: NewInode<'_> = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    const PAGES: u64 = UNIT_LINES / PAGE_LINES;

    fn formatted(memory_bytes: u64, firmware: bool) -> (MemoryDevice, FileSystem) {
        let device = match firmware {
            true => MemoryDevice::with_firmware(memory_bytes, 64 << 20, PersistenceDomain::Adr),
            false => MemoryDevice::new(memory_bytes, 64 << 20, PersistenceDomain::Adr),
        };
        make_file_system(&drive(&device), &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive(&device), &MountOptions::default()).expect("mounts");
        (device, fs)
    }

    fn drive(device: &MemoryDevice) -> Drive {
        Drive::new(Arc::new(device.clone()))
    }

    fn unmounted_clean(device: &MemoryDevice, fs: &FileSystem) {
        fs.unmount().expect("unmounts");
        tandemfs_crash::check_device(device, false).unwrap_or_else(|findings| panic!("{findings}"));
    }

    /// Takes whole pages of a region, which no inode names.
    fn take_pages(fs: &FileSystem, region: Region, count: u64) -> Vec<LineAddress> {
        (0..count).map(|_| fs.volume.take_page(region, Structure::Mapping, Need::Transient).expect("room")).collect()
    }

    fn free(fs: &FileSystem, region: Region, pages: impl IntoIterator<Item = LineAddress>) {
        pages.into_iter().for_each(|page| assert!(fs.volume.memory.free_now(region, page, PAGE_LINES)));
    }

    fn units(fs: &FileSystem, region: Region) -> Vec<u64> {
        fs.volume.memory.units_of(region)
    }

    fn each_engine(test: impl Fn(bool)) {
        [false, true].into_iter().for_each(test);
    }

    #[test]
    fn empty_units_leave_and_one_is_kept() {
        each_engine(|firmware| {
            let (device, fs) = formatted(64 << 20, firmware);
            let before = fs.volume.memory.space();
            let mut pages = take_pages(&fs, Region::Mappings, 5 * PAGES);
            assert_eq!(units(&fs, Region::Mappings).len(), 5);
            assert_eq!(fs.volume.give_back_units(Pace::Short).expect("nothing to do"), 0);
            let used = pages.swap_remove(0);
            free(&fs, Region::Mappings, pages);
            assert_eq!(fs.volume.give_back_units(Pace::Ends).expect("committed"), 3);
            assert_eq!(units(&fs, Region::Mappings).len(), 2, "one is kept beside the first");
            assert_eq!(fs.volume.give_back_units(Pace::Short).expect("committed"), 1);
            assert_eq!((units(&fs, Region::Mappings).len(), fs.volume.memory.space()), (1, before));
            assert_eq!(fs.statistics().work.units_given_back, 4);
            free(&fs, Region::Mappings, [used]);
            unmounted_clean(&device, &fs);
        });
    }

    #[test]
    fn a_unit_in_the_middle_leaves_and_the_last_takes_its_position() {
        each_engine(|firmware| {
            let (device, fs) = formatted(64 << 20, firmware);
            let pages = take_pages(&fs, Region::Mappings, 3 * PAGES);
            // Two blocks with a log: a page of the mapping, in the last unit.
            let file = fs.create(InodeNumber::ROOT, b"file", &NEW_FILE).expect("made").inode;
            let blocks = [0, 1 << 16];
            for at in blocks {
                fs.write(file, at, &[7; 100], WriteOptions::default()).expect("written");
            }
            let holds_data = |fs: &FileSystem| {
                for at in blocks {
                    let mut bytes = [0; 100];
                    fs.read(file, at, &mut bytes).expect("read");
                    assert_eq!(bytes, [7; 100]);
                }
            };
            let had = units(&fs, Region::Mappings);
            assert_eq!(had.len(), 4);
            let in_second: Vec<LineAddress> = pages.iter().filter(|page| page.unit() == had[1]).copied().collect();
            assert_eq!(in_second.len() as u64, PAGES);
            free(&fs, Region::Mappings, in_second);
            assert_eq!(fs.volume.give_back_units(Pace::Short).expect("committed"), 1);
            assert_eq!(units(&fs, Region::Mappings), [had[0], had[3], had[2]]);
            holds_data(&fs);
            // New units are added behind.
            take_pages(&fs, Region::Mappings, PAGES);
            assert_eq!(units(&fs, Region::Mappings)[..3], [had[0], had[3], had[2]]);
            drop(fs);
            // Pages that nothing names are free after a crash: the units that have no others leave.
            let fs = FileSystem::mount(drive(&device), &MountOptions::default()).expect("mounts");
            assert!(units(&fs, Region::Mappings).contains(&had[3]) && units(&fs, Region::Mappings).len() == 2);
            holds_data(&fs);
            unmounted_clean(&device, &fs);
        });
    }

    #[test]
    fn a_unit_is_noticed_at_two_looks_before_it_leaves() {
        let (_device, fs) = formatted(64 << 20, false);
        let mut pages = take_pages(&fs, Region::Leaves, 3 * PAGES);
        pages.remove(0);
        free(&fs, Region::Leaves, pages);
        let rested = |fs: &FileSystem| {
            fs.volume.look_for_empty_units();
            fs.volume.give_back_units(Pace::Rested).expect("committed")
        };
        assert_eq!(rested(&fs), 0, "it may have become empty just now");
        assert_eq!(rested(&fs), 1);
        assert_eq!(rested(&fs), 0, "one is kept");
    }

    /// The last units of the inodes leave, those before a used one stay; a number of one that left names nothing.
    #[test]
    fn of_the_inodes_only_the_last_units_leave() {
        each_engine(|firmware| {
            let (device, fs) = formatted(64 << 20, firmware);
            let create = |name: String| fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW_FILE).expect("made").inode;
            let files: Vec<InodeNumber> = (0..50_000).map(|index| create(format!("{index}"))).collect();
            assert_eq!(units(&fs, Region::Inodes).len(), 4);
            let per_unit = UNIT_LINES / 2;
            for (index, file) in files.iter().enumerate().filter(|(_, file)| file.get() != 2 * per_unit + 5) {
                assert!(file.get() > 0);
                fs.unlink(InodeNumber::ROOT, index.to_string().as_bytes()).expect("removed");
            }
            assert!(fs.volume.give_back_units(Pace::Short).expect("committed") > 0);
            assert_eq!(units(&fs, Region::Inodes).len(), 3, "a file of the third is left");
            let last = files[files.len() - 1];
            assert!(matches!(fs.attributes(last), Err(Error::Stale(_))), "its unit has left");
            assert!(fs.attributes(InodeNumber::new(2 * per_unit + 5)).is_ok());
            let numbers: Vec<InodeNumber> = (0..50_000).map(|index| create(format!("{index} again"))).collect();
            assert!(numbers.contains(&last), "the number is used again");
            unmounted_clean(&device, &fs);
        });
    }

    /// What was data area is loaded anew when it is metadata again, also where a page of it was looked at meanwhile.
    #[test]
    fn no_host_copy_of_a_unit_survives_its_time_as_data() {
        each_engine(|firmware| {
            let (_device, fs) = formatted(64 << 20, firmware);
            let pages = take_pages(&fs, Region::Leaves, 3 * PAGES);
            free(&fs, Region::Leaves, pages.iter().copied());
            assert!(fs.volume.give_back_units(Pace::Short).expect("committed") > 0);
            let left: Vec<LineAddress> = pages.into_iter().filter(|page| !units(&fs, Region::Leaves).contains(&page.unit())).collect();
            drop(fs.volume.drive.persist(Structure::Data, left[0], &[7; 64]).expect("stored"));
            assert_eq!(fs.volume.raw_line(Structure::Inode, left[0]).expect("loaded"), [7; 64], "as a reader without a lock may");
            let mut taken = std::collections::BTreeSet::new();
            while !taken.contains(&left[0]) {
                let page = fs.volume.take_lines(Region::Leaves, 4, Need::Transient).expect("room").page();
                assert_eq!(fs.volume.raw_line(Structure::Mapping, page).expect("loaded"), EMPTY_LINE);
                taken.insert(page);
            }
        });
    }

    #[test]
    fn a_region_takes_the_empty_units_of_another_one() {
        let (_device, fs) = formatted(16 << 20, false);
        let mut pages = Vec::new();
        while let Ok(page) = fs.volume.take_page(Region::Dentries, Structure::Mapping, Need::Growth) {
            pages.push(page);
        }
        assert!(units(&fs, Region::Dentries).len() > 2);
        free(&fs, Region::Dentries, pages);
        let count = take_pages(&fs, Region::Mappings, 2 * PAGES).len();
        assert_eq!(count as u64, 2 * PAGES);
    }

    #[test]
    fn nothing_leaves_while_space_is_held_back() {
        let (_device, fs) = formatted(64 << 20, false);
        let pages = take_pages(&fs, Region::Mappings, 3 * PAGES);
        free(&fs, Region::Mappings, pages);
        fs.volume.held_back.begin();
        assert_eq!(fs.volume.give_back_units(Pace::Short).expect("nothing to do"), 0);
        assert_eq!(units(&fs, Region::Mappings).len(), 3);
    }
}
