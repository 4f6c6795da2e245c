//! In which order operations of a trace run again.
//!
//! [RPO1] Those of one thread run one after another, in the order in which they began.
//! [RPO2] An operation begins when all have ended that had ended before it began in the trace and are about one of its files. So what one thread
//!       made is there when another one uses it, whatever the speed.
//! [RPO3] Threads that did not live at the same time share a lane. Operations wait for earlier ones alone, so no lane waits for itself.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use tandemfs_trace::{Known, Operation, Record};

/// Where an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub lane: usize,
    /// In its lane.
    pub index: usize,
}

/// An operation that is to run.
#[derive(Debug)]
pub struct Step {
    pub record: Record<'static>,
    /// What has to have ended before.
    pub after: Vec<Position>,
    /// Something later is about the file that this one takes the name of.
    pub is_needed_later: bool,
}

/// What runs beside each other.
pub type Lanes = Vec<Vec<Step>>;

/// Orders operations. `known` are the names that were there before.
pub fn lanes(mut records: Vec<Record<'static>>, known: &[Known]) -> Lanes {
    records.sort_by_key(|record| record.started_ns);
    let touched = touched(&records, known);
    let mut last_uses: HashMap<u64, usize> = HashMap::new();
    for (number, files) in touched.iter().enumerate() {
        last_uses.extend(files.iter().map(|file| (*file, number)));
    }
    let lane_of = lane_of_threads(&records);
    let count = lane_of.values().map(|lane| lane + 1).max().unwrap_or(0);
    let mut lanes: Lanes = (0..count).map(|_| Vec::new()).collect();
    let mut users = Users::default();
    for (number, (record, files)) in records.into_iter().zip(touched).enumerate() {
        let lane = lane_of[&record.thread];
        let position = Position { lane, index: lanes[lane].len() };
        let mut after: Vec<Position> = files.iter().flat_map(|file| users.ended_before(*file, record.started_ns, lane)).collect();
        after.sort_unstable();
        after.dedup();
        let end_ns = record.started_ns.saturating_add(record.took_ns);
        files.iter().for_each(|file| users.uses(*file, position, end_ns));
        let is_needed_later = files.iter().any(|file| last_uses.get(file).is_some_and(|last| *last > number));
        lanes[lane].push(Step { record, after, is_needed_later });
    }
    lanes
}

/// The last two operations of each lane that were about a file, and their ends. The last one may not have ended yet.
#[derive(Default)]
struct Users(HashMap<u64, BTreeMap<usize, [Option<(Position, u64)>; 2]>>);

impl Users {
    fn uses(&mut self, file: u64, position: Position, end_ns: u64) {
        let last = self.0.entry(file).or_default().entry(position.lane).or_default();
        *last = [Some((position, end_ns)), last[0]];
    }

    fn ended_before(&self, file: u64, time_ns: u64, own_lane: usize) -> Vec<Position> {
        let lanes = self.0.get(&file).into_iter().flatten().filter(|(lane, _)| **lane != own_lane);
        let ended =
            |last: &[Option<(Position, u64)>; 2]| last.iter().flatten().find(|(_, end)| *end <= time_ns).map(|(position, _)| *position);
        lanes.filter_map(|(_, last)| ended(last)).collect()
    }
}

/// A lane for each thread ([RPO3]). The kernel's own operations have a thread of their own.
fn lane_of_threads(records: &[Record<'_>]) -> HashMap<u32, usize> {
    let mut lives: HashMap<u32, (u64, u64)> = HashMap::new();
    for record in records {
        let end = record.started_ns.saturating_add(record.took_ns);
        let life = lives.entry(record.thread).or_insert((record.started_ns, end));
        life.1 = life.1.max(end);
    }
    let mut lives: Vec<(u64, u64, u32)> = lives.into_iter().map(|(thread, (from, to))| (from, to, thread)).collect();
    lives.sort_unstable();
    let mut ends: Vec<u64> = Vec::new();
    let mut lanes = HashMap::new();
    for (from, to, thread) in lives {
        let lane = ends.iter().position(|end| *end < from).unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(end) => *end = to,
            None => ends.push(to),
        }
        lanes.insert(thread, lane);
    }
    lanes
}

/// The files that each operation is about, also those that it only names.
fn touched(records: &[Record<'_>], known: &[Known]) -> Vec<Vec<u64>> {
    let mut names: HashMap<(u64, Rc<[u8]>), u64> =
        known.iter().map(|known| ((known.parent, known.name.as_slice().into()), known.inode)).collect();
    let touched = records.iter().map(|record| {
        let key = |inode: u64, name: &[u8]| (inode, Rc::from(name));
        let (first, second) = (key(record.inode, &record.name), key(record.other, &record.other_name));
        let mut files = vec![record.inode];
        files.extend(names.get(&first));
        if has_other(record.operation) {
            files.push(record.other);
            files.extend(names.get(&second));
        }
        if record.errno == 0 {
            files.extend(found(record));
            match record.operation {
                Operation::Unlink | Operation::Rmdir => drop(names.remove(&first)),
                Operation::Rename => {
                    if let Some(inode) = names.remove(&first) {
                        names.insert(second, inode);
                    }
                }
                _ => drop(found(record).map(|inode| names.insert(first, inode))),
            }
        }
        files.sort_unstable();
        files.dedup();
        files
    });
    touched.collect()
}

fn has_other(operation: Operation) -> bool {
    matches!(operation, Operation::Rename | Operation::Link | Operation::CopyRange)
}

/// The inode that an operation found or made under its name.
pub fn found(record: &Record<'_>) -> Option<u64> {
    let has = match record.operation {
        Operation::Lookup | Operation::Symlink | Operation::Mknod | Operation::Mkdir | Operation::Create | Operation::Tmpfile => true,
        Operation::Open | Operation::Link => !record.name.is_empty(),
        _ => false,
    };
    (has && record.errno == 0 && record.value != 0).then_some(record.value)
}

/// Whether it makes what it found.
pub fn makes(record: &Record<'_>) -> bool {
    let is_made =
        matches!(record.operation, Operation::Symlink | Operation::Mknod | Operation::Mkdir | Operation::Create | Operation::Tmpfile);
    is_made && record.errno == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_trace::Door;

    fn record(thread: u32, started_ns: u64, operation: Operation, inode: u64, name: &'static str, value: u64) -> Record<'static> {
        Record { thread, started_ns, took_ns: 5, name: name.as_bytes().into(), value, ..Record::new(operation, Door::Mount, inode) }
    }

    fn after(lanes: &Lanes, lane: usize, index: usize) -> Vec<(usize, usize)> {
        lanes[lane][index].after.iter().map(|position| (position.lane, position.index)).collect()
    }

    #[test]
    fn what_is_used_is_made_before_and_what_goes_is_used_before() {
        let lanes = lanes(
            vec![
                record(7, 16, Operation::Unlink, 1, "a", 0),
                record(5, 0, Operation::Create, 1, "a", 9),
                record(6, 10, Operation::Write, 9, "", 3),
                record(6, 12, Operation::Write, 8, "", 3),
                record(5, 38, Operation::Read, 9, "", 3),
            ],
            &[],
        );
        assert_eq!(lanes.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(after(&lanes, 1, 0), [(0, 0)], "[RPO2]: it was made");
        assert_eq!(after(&lanes, 1, 1), [], "another file");
        // The unlink is about the directory and the file.
        assert_eq!(after(&lanes, 2, 0), [(0, 0), (1, 0)]);
        assert_eq!(after(&lanes, 0, 1), [(1, 0), (2, 0)]);
        assert!(lanes[2][0].is_needed_later && !lanes[0][1].is_needed_later, "it is read when it has no name");
    }

    #[test]
    fn threads_that_never_met_share_a_lane() {
        let one = |thread: u32, at: u64| record(thread, at, Operation::Statfs, u64::from(thread), "", 0);
        let lanes = lanes(vec![one(1, 0), one(2, 3), one(3, 10), one(1, 4), one(4, 100)], &[]);
        let threads: Vec<Vec<u32>> = lanes.iter().map(|lane| lane.iter().map(|step| step.record.thread).collect()).collect();
        assert_eq!(threads, [vec![1, 1, 3, 4], vec![2]], "[RPO3]");
    }

    #[test]
    fn names_are_followed_through_renames() {
        let known = [Known { inode: 3, parent: 1, size: 0, mode: 0o100_644, name: b"old".to_vec(), target: Vec::new() }];
        let rename = Record { other: 2, other_name: b"new".as_slice().into(), ..record(1, 10, Operation::Rename, 1, "old", 0) };
        let lanes = lanes(vec![record(2, 0, Operation::Read, 3, "", 0), rename, record(2, 20, Operation::Unlink, 2, "new", 0)], &known);
        assert_eq!(after(&lanes, 1, 0), [(0, 0)]);
        assert_eq!(after(&lanes, 0, 1), [(1, 0)]);
    }
}
