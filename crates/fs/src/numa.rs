//! Home nodes of processes: what a process writes to the memory zone goes to one node (NUMA) and is near when it is read again (WineFS §3.6).
//! Host memory only, and nothing but an order in which pools are asked: no state of the device depends on it, so no crash does.
//!
//! [NH1] A process has a home node from its first create or write. If it may run on the CPUs of one node alone, it is that node; otherwise
//!       that with most free space. Nodes that have less than 2 MiB less count as equal: of these the one with fewest processes, so that
//!       processes that begin together do not share one. All threads of a process have its home.
//! [NH2] A child that is met first after its parent has a home has the same one, also if processes between them have none. Who was adopted
//!       before has none to inherit.
//! [NH3] Where the home has no room, space comes from other nodes, and the process gets a new home: another node, with most free space.
//! [NH4] What is known of a thread is believed for a second, then compared with the process's beginning, as numbers are used again. Each new
//!       thread has the two looked at that were looked at longest ago: ended ones are forgotten. There are at most [`THREADS_MAX`].
//! [NH5] Where nobody may wait, `/proc` is not read: who is not known yet has no home then. Without one, and for work that no process asked
//!       for, the node of the CPU serves first.
//! [NH6] With one node there is a comparison of two numbers, and nothing else of this.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use hashbrown::HashMap;
use tandemfs_device::MemoryNodes;
use tandemfs_format::{LineAddress, UNIT_BYTES, UNIT_LINES};

use crate::processes::{self, Process};
use crate::sync::{RwLock, current_cpu, patience};

/// Threads that are known at a time.
const THREADS_MAX: usize = 4096;
/// Generations between a process and the one whose home it inherits, at most.
const GENERATIONS_MAX: usize = 8;
/// How long a thread's number is taken for that thread's.
const BELIEVED_MS: u64 = 1000;

/// For whom the calling thread works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Nobody who asked.
    Nobody,
    /// A thread of a program, by its number; 0 if that is unknown.
    Thread(u32),
    /// The same, and the index of its home node.
    AtHome(u32, usize),
    /// Whatever lies on this node.
    Node(usize),
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::Nobody) };
}

/// Restores the caller, also after a panic.
struct Scope(Caller);

impl Drop for Scope {
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

/// The caller that this thread works for.
pub(crate) fn current() -> Caller {
    CALLER.get()
}

/// Runs an operation for a caller that another thread had.
pub(crate) fn on_behalf_of<T>(caller: Caller, operation: impl FnOnce() -> T) -> T {
    let _scope = Scope(CALLER.replace(caller));
    operation()
}

/// Processes on their home nodes, and what was written where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaReport {
    /// Whether homes decide where space comes from.
    pub places: bool,
    /// The nodes that the memory zone lies on; one of number 0 where nothing is known.
    pub nodes: Vec<NodeReport>,
    /// Bytes of data that processes stored on their home nodes, by calls. Zero with one node.
    pub local_written_bytes: u64,
    /// Bytes that they stored on other nodes.
    pub remote_written_bytes: u64,
}

/// A node of the memory zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Its number in this machine.
    pub number: u32,
    /// Its part of the zone, in bytes.
    pub total_bytes: u64,
    /// Bytes that files could have there.
    pub free_bytes: u64,
    /// Processes whose home it is.
    pub processes: u64,
}

#[derive(Debug, Clone)]
struct Known {
    begun: u64,
    home: Option<usize>,
    /// The node that it is bound to.
    bound: Option<usize>,
    threads: u32,
}

#[derive(Debug)]
struct Thread {
    process: u32,
    seen_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    threads: HashMap<u32, Thread>,
    processes: HashMap<u32, Known>,
    /// All threads, that looked at longest ago first.
    by_look: VecDeque<u32>,
}

pub(crate) struct Numa {
    nodes: MemoryNodes,
    /// Whether homes decide where space comes from; otherwise they are only counted.
    places: bool,
    since: Instant,
    table: RwLock<Table>,
    local: AtomicU64,
    remote: AtomicU64,
}

impl Numa {
    pub(crate) fn new(nodes: MemoryNodes, places: bool) -> Self {
        Self { nodes, places, since: Instant::now(), table: RwLock::default(), local: AtomicU64::new(0), remote: AtomicU64::new(0) }
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.count()
    }

    /// Whether there are several nodes ([NH6]).
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.nodes.count() > 1
    }

    pub(crate) fn nodes(&self) -> &MemoryNodes {
        &self.nodes
    }

    /// The index of the node of a unit.
    pub(crate) fn of_unit(&self, unit: u64) -> usize {
        self.nodes.node_of(unit * UNIT_BYTES)
    }

    fn of_line(&self, address: LineAddress) -> usize {
        self.of_unit(address.number() / UNIT_LINES)
    }

    // ---- who calls -----------------------------------------------------------------------------------------------------------------

    /// Runs an operation for a thread of a program.
    #[inline]
    pub(crate) fn for_caller<T>(&self, thread: u32, operation: impl FnOnce() -> T) -> T {
        if !self.is_on() {
            return operation();
        }
        on_behalf_of(Caller::Thread(thread), operation)
    }

    /// Takes space on the node of what it replaces, for work that moves data.
    pub(crate) fn near<T>(&self, address: Option<LineAddress>, take: impl FnOnce() -> T) -> T {
        match address {
            Some(address) if self.is_on() => on_behalf_of(Caller::Node(self.of_line(address)), take),
            _ => take(),
        }
    }

    /// The node whose space serves first; `None` if no node comes before another. `free` has the free pages of all nodes.
    #[inline]
    pub(crate) fn first(&self, gives_home: bool, free: impl FnOnce() -> Vec<u64>) -> Option<usize> {
        if !self.is_on() || !self.places { None } else { self.first_of_several(gives_home, free) }
    }

    fn first_of_several(&self, gives_home: bool, free: impl FnOnce() -> Vec<u64>) -> Option<usize> {
        let node = match CALLER.get() {
            Caller::AtHome(_, node) | Caller::Node(node) => Some(node),
            Caller::Thread(_) if gives_home => self.settle(free),
            Caller::Thread(thread) => self.known_home(thread),
            Caller::Nobody => None,
        };
        node.filter(|node| *node < self.count()).or_else(|| self.of_cpu())
    }

    fn of_cpu(&self) -> Option<usize> {
        self.nodes.node_of_cpu(current_cpu() as u32)
    }

    /// Gives the calling process a home if it has none ([NH1]).
    #[inline]
    pub(crate) fn note_writer(&self, free: impl FnOnce() -> Vec<u64>) {
        if self.is_on() {
            self.settle(free);
        }
    }

    fn settle(&self, free: impl FnOnce() -> Vec<u64>) -> Option<usize> {
        let thread = match CALLER.get() {
            Caller::Thread(thread) => thread,
            Caller::AtHome(_, node) => return Some(node),
            Caller::Nobody | Caller::Node(_) => return None,
        };
        let home = self.home(thread, free, &processes::look, &processes::parent)?;
        CALLER.set(Caller::AtHome(thread, home));
        Some(home)
    }

    /// The home of the caller was found without room: it gets another one ([NH3]).
    #[cold]
    pub(crate) fn is_full(&self, node: usize, mut free: Vec<u64>) {
        let Caller::AtHome(thread, _) = CALLER.get() else { return };
        free[node] = 0;
        let mut table = self.table.write();
        let home = freest(&free, &table.homes(free.len()));
        let Table { threads, processes, .. } = &mut *table;
        if let Some(known) = threads.get(&thread).and_then(|thread| processes.get_mut(&thread.process)) {
            if known.home == Some(node) && home != node && free[home] > 0 {
                known.home = Some(home);
            }
            CALLER.set(Caller::AtHome(thread, known.home.unwrap_or(node)));
        }
    }

    // ---- processes -----------------------------------------------------------------------------------------------------------------

    /// Learns of a thread before it calls where nobody may wait ([NH5]).
    pub(crate) fn introduce(&self, thread: u32) {
        if self.is_on() {
            self.know(thread, &processes::look, &processes::parent);
        }
    }

    fn now_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    fn known_home(&self, thread: u32) -> Option<usize> {
        let table = self.table.read();
        table.processes.get(&table.threads.get(&thread)?.process)?.home
    }

    /// The home of a thread's process; it gets one if it has none. `None` if the process is unknown.
    fn home(
        &self,
        thread: u32,
        free: impl FnOnce() -> Vec<u64>,
        look: &dyn Fn(u32) -> Option<Process>,
        parent: &dyn Fn(u32) -> Option<u32>,
    ) -> Option<usize> {
        let now = self.now_ms();
        let is_believed = {
            let table = self.table.read();
            let known = table.threads.get(&thread);
            let is_believed = known.is_some_and(|known| now < known.seen_ms.load(Relaxed) + BELIEVED_MS) || patience::tries(); // [NH5]
            if is_believed && let Some(home) = known.and_then(|known| table.processes.get(&known.process)?.home) {
                return Some(home);
            }
            is_believed
        };
        if !is_believed {
            self.know(thread, look, parent);
            if let Some(home) = self.known_home(thread) {
                return Some(home);
            }
        }
        let free = free();
        let mut table = self.table.write();
        let homes = table.homes(free.len());
        let Table { threads, processes, .. } = &mut *table;
        let known = processes.get_mut(&threads.get(&thread)?.process)?;
        let bound = known.bound.filter(|bound| free[*bound] > 0);
        Some(*known.home.get_or_insert_with(|| bound.unwrap_or_else(|| freest(&free, &homes)))) // [NH1]
    }

    /// Looks at a thread ([NH4]).
    fn know(&self, thread: u32, look: &dyn Fn(u32) -> Option<Process>, parent: &dyn Fn(u32) -> Option<u32>) {
        let found = look(thread);
        let is_new = {
            let mut table = self.table.write();
            let is_same = match (&found, table.process_of(thread)) {
                (Some(found), Some((number, known))) => found.number == number && found.begun == known.begun,
                _ => false,
            };
            if is_same {
                if let Some(known) = table.threads.get(&thread) {
                    known.seen_ms.store(self.now_ms(), Relaxed);
                }
                return;
            }
            table.forget(thread);
            found.as_ref().is_some_and(|found| table.processes.get(&found.number).is_none_or(|known| known.begun != found.begun))
        };
        let Some(found) = found else { return };
        let inherited = if is_new { self.inherited(found.parent, parent) } else { None };
        let bound = found.cpus.iter().map(|cpu| self.nodes.node_of_cpu(*cpu)).reduce(|one, other| if one == other { one } else { None });
        let oldest = self.table.write().add(thread, &found, (inherited, bound.flatten()), self.now_ms());
        for thread in oldest {
            let found = look(thread);
            let mut table = self.table.write();
            match (found, table.process_of(thread)) {
                (Some(found), Some((number, known))) if found.number == number && found.begun == known.begun => {
                    table.by_look.push_back(thread);
                }
                (_, Some(_)) => table.forget(thread),
                (_, None) => {}
            }
        }
    }

    /// The home of the nearest ancestor that has one ([NH2]).
    fn inherited(&self, mut ancestor: u32, parent: &dyn Fn(u32) -> Option<u32>) -> Option<usize> {
        for _ in 0..GENERATIONS_MAX {
            if ancestor <= 1 {
                return None;
            }
            if let Some(home) = self.table.read().processes.get(&ancestor).and_then(|known| known.home) {
                return Some(home);
            }
            ancestor = parent(ancestor)?;
        }
        None
    }

    // ---- what was written where ----------------------------------------------------------------------------------------------------

    /// Counts bytes of data that were stored.
    #[inline]
    pub(crate) fn stored(&self, address: LineAddress, bytes: u64) {
        if self.is_on() {
            self.count_stored(address, bytes);
        }
    }

    fn count_stored(&self, address: LineAddress, bytes: u64) {
        let home = match CALLER.get() {
            Caller::AtHome(_, node) => Some(node),
            Caller::Thread(thread) => self.known_home(thread).or_else(|| self.of_cpu()),
            Caller::Nobody | Caller::Node(_) => None,
        };
        if let Some(home) = home {
            let counter = if self.of_line(address) == home { &self.local } else { &self.remote };
            counter.fetch_add(bytes, Relaxed);
        }
    }

    pub(crate) fn reset(&self) {
        self.local.store(0, Relaxed);
        self.remote.store(0, Relaxed);
    }

    /// `free` has the free bytes of each node, `zone_bytes` is the size of the zone.
    pub(crate) fn report(&self, free: &[u64], zone_bytes: u64) -> NumaReport {
        let homes = self.table.read().homes(self.count());
        let node = |index: usize| NodeReport {
            number: self.nodes.nodes().get(index).map_or(0, |node| node.number),
            total_bytes: self
                .nodes
                .ranges(zone_bytes)
                .iter()
                .filter(|(_, node)| *node == index)
                .map(|(range, _)| range.end - range.start)
                .sum(),
            free_bytes: free[index],
            processes: homes[index],
        };
        NumaReport {
            places: self.places,
            nodes: (0..self.count()).map(node).collect(),
            local_written_bytes: self.local.load(Relaxed),
            remote_written_bytes: self.remote.load(Relaxed),
        }
    }
}

/// The node with most free pages, and with fewest processes of those that have nearly as many ([NH1]).
fn freest(free: &[u64], homes: &[u64]) -> usize {
    const NEARLY: u64 = UNIT_BYTES / tandemfs_format::PAGE_BYTES as u64;
    let most = free.iter().copied().max().unwrap_or(0);
    let nearly = (0..free.len()).filter(|node| free[*node] > 0 && free[*node] + NEARLY > most);
    nearly.min_by_key(|node| (homes[*node], most - free[*node])).unwrap_or(0)
}

impl Table {
    fn process_of(&self, thread: u32) -> Option<(u32, &Known)> {
        let process = self.threads.get(&thread)?.process;
        Some((process, self.processes.get(&process)?))
    }

    /// Processes at home on each of the nodes.
    fn homes(&self, nodes: usize) -> Vec<u64> {
        let mut homes = vec![0; nodes];
        self.processes.values().filter_map(|known| known.home).for_each(|home| homes[home] += 1);
        homes
    }

    /// Adds a thread; returns the two that were looked at longest ago, which whoever looks at them puts back.
    fn add(&mut self, thread: u32, found: &Process, (home, bound): (Option<usize>, Option<usize>), now_ms: u64) -> Vec<u32> {
        self.forget(thread); // somebody else was faster
        while self.threads.len() >= THREADS_MAX {
            let Some(oldest) = self.by_look.pop_front() else { break };
            self.forget(oldest);
        }
        let known = self.processes.entry(found.number).or_insert(Known { begun: found.begun, home, bound, threads: 0 });
        if known.begun != found.begun {
            *known = Known { begun: found.begun, home, bound, threads: known.threads };
        }
        known.threads += 1;
        self.threads.insert(thread, Thread { process: found.number, seen_ms: AtomicU64::new(now_ms) });
        let oldest = (0..2).filter_map(|_| self.by_look.pop_front()).collect();
        self.by_look.push_back(thread);
        oldest
    }

    /// Forgets a thread, and its process if it was the last one of it.
    fn forget(&mut self, thread: u32) {
        let Some(gone) = self.threads.remove(&thread) else { return };
        self.by_look.retain(|other| *other != thread);
        if let Some(known) = self.processes.get_mut(&gone.process) {
            known.threads -= 1;
            if known.threads == 0 {
                self.processes.remove(&gone.process);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap as Map;
    use tandemfs_device::NodeSpec;

    const ZONE: u64 = 64 << 20;

    /// Processes by their threads.
    #[derive(Default)]
    struct Machine(RefCell<Map<u32, Process>>);

    impl Machine {
        fn run(&self, thread: u32, number: u32, parent: u32, begun: u64) {
            self.0.borrow_mut().insert(thread, Process { number, parent, begun, cpus: vec![0, 1] });
        }

        fn home(&self, numa: &Numa, thread: u32, free: &[u64]) -> Option<usize> {
            let look = |thread: u32| self.0.borrow().get(&thread).cloned();
            let parent = |process: u32| self.0.borrow().get(&process).map(|process| process.parent);
            numa.home(thread, || free.to_vec(), &look, &parent)
        }
    }

    fn numa(spec: &str) -> Numa {
        Numa::new(spec.parse::<NodeSpec>().and_then(|spec| spec.over(ZONE, 4)).expect("nodes"), true)
    }

    /// A second later.
    fn doubted(mut numa: Numa) -> Numa {
        numa.since -= std::time::Duration::from_millis(BELIEVED_MS);
        numa
    }

    #[test]
    fn the_home_is_the_freest_node_and_threads_and_children_share_it() {
        let (numa, machine) = (numa("4"), Machine::default());
        machine.run(10, 10, 1, 5);
        machine.run(11, 10, 1, 5);
        assert_eq!(machine.home(&numa, 10, &[4000, 9000, 8000, 100]), Some(1));
        assert_eq!(machine.home(&numa, 11, &[9000, 100, 0, 0]), Some(1), "a thread of the same process");
        machine.run(20, 20, 10, 6);
        assert_eq!(machine.home(&numa, 20, &[9000, 100, 0, 0]), Some(1), "a child");
        machine.run(30, 30, 25, 7);
        machine.run(25, 25, 20, 6);
        assert_eq!(machine.home(&numa, 30, &[9000, 100, 0, 0]), Some(1), "a grandchild of a process that wrote nothing");
        machine.run(40, 40, 1, 8);
        assert_eq!(machine.home(&numa, 40, &[9000, 100, 0, 0]), Some(0));
        assert_eq!(machine.home(&numa, 50, &[9000; 4]), None, "nobody knows it");
        assert_eq!(numa.report(&[0; 4], ZONE).nodes.iter().map(|node| node.processes).collect::<Vec<_>>(), [1, 3, 0, 0]);
        let table = numa.table.read();
        assert_eq!(table.by_look.len(), table.threads.len(), "each thread will be looked at");
    }

    #[test]
    fn nodes_that_are_nearly_as_free_take_processes_in_turn() {
        let (numa, machine) = (numa("4"), Machine::default());
        let homes = (10..18).map(|process| {
            machine.run(process, process, 1, 5);
            machine.home(&numa, process, &[5000, 5511, 5200, 4999]).expect("a home")
        });
        assert_eq!(homes.collect::<Vec<_>>(), [1, 2, 0, 1, 2, 0, 1, 2], "those with less than 2 MiB less");
    }

    #[test]
    fn a_process_that_is_bound_to_a_node_has_its_home_there_while_it_has_room() {
        let (numa, machine) = (numa("32M:0:0-1/32M:1:2-3"), Machine::default());
        machine.run(10, 10, 1, 5);
        machine.run(11, 11, 1, 5);
        machine.run(12, 12, 1, 5);
        machine.0.borrow_mut().get_mut(&12).expect("there").cpus = vec![1, 2];
        assert_eq!(machine.home(&numa, 10, &[100, 9000]), Some(0));
        assert_eq!(machine.home(&numa, 11, &[0, 9000]), Some(1));
        assert_eq!(machine.home(&numa, 12, &[100, 9000]), Some(1), "bound to no one node");
    }

    #[test]
    fn a_full_home_is_left_for_all_threads_of_the_process() {
        let (numa, machine) = (numa("2"), Machine::default());
        machine.run(10, 10, 1, 5);
        machine.run(11, 10, 1, 5);
        assert_eq!(machine.home(&numa, 10, &[9000, 1000]), Some(0));
        let _scope = Scope(CALLER.replace(Caller::AtHome(10, 0)));
        numa.is_full(0, vec![50, 0]);
        assert_eq!(machine.home(&numa, 11, &[50, 0]), Some(0), "nowhere is more");
        numa.is_full(0, vec![50, 1000]);
        assert_eq!((machine.home(&numa, 11, &[50, 1000]), CALLER.get()), (Some(1), Caller::AtHome(10, 1)));
        numa.is_full(0, vec![50, 1000]);
        assert_eq!(machine.home(&numa, 11, &[50, 1000]), Some(1), "it has left that one already");
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let (numa, machine) = (numa("2"), Machine::default());
        machine.run(10, 10, 1, 5);
        assert_eq!(machine.home(&numa, 10, &[9000, 1000]), Some(0));
        machine.run(10, 10, 1, 6);
        assert_eq!(machine.home(&numa, 10, &[0, 9000]), Some(0), "believed for a second");
        let numa = doubted(numa);
        assert_eq!(machine.home(&numa, 10, &[0, 9000]), Some(1));
        machine.0.borrow_mut().clear();
        let numa = doubted(numa);
        assert_eq!(machine.home(&numa, 10, &[0, 9000]), None);
        assert!(numa.table.read().processes.is_empty() && numa.table.read().by_look.is_empty());
    }

    #[test]
    fn ended_processes_are_forgotten_and_memory_is_bounded() {
        let (numa, machine) = (numa("2"), Machine::default());
        for process in 10..1010 {
            machine.run(process, process, 1, 5);
            assert!(machine.home(&numa, process, &[9000, 9000]).is_some());
        }
        (10..1010).for_each(|process| drop(machine.0.borrow_mut().remove(&process)));
        for process in 2000..2600 {
            machine.run(process, process, 1, 5);
            assert!(machine.home(&numa, process, &[9000, 9000]).is_some());
        }
        assert_eq!((numa.table.read().threads.len(), numa.table.read().processes.len()), (600, 600));
        for process in 3000..3000 + 2 * THREADS_MAX as u32 {
            machine.run(process, process, 1, 5);
            assert!(machine.home(&numa, process, &[9000, 9000]).is_some());
        }
        let table = numa.table.read();
        assert_eq!((table.threads.len(), table.processes.len(), table.by_look.len()), (THREADS_MAX, THREADS_MAX, THREADS_MAX));
    }

    /// [NH5]
    #[test]
    fn where_nobody_may_wait_only_who_was_introduced_has_a_home() {
        let (numa, machine) = (numa("2"), Machine::default());
        machine.run(10, 10, 1, 5);
        machine.run(11, 11, 1, 5);
        let look = |thread: u32| machine.0.borrow().get(&thread).cloned();
        numa.know(11, &look, &|_| None);
        assert!(patience::begin());
        let homes = (machine.home(&numa, 10, &[9000, 1000]), machine.home(&numa, 11, &[9000, 1000]));
        let _scope = patience::end();
        assert_eq!(homes, (None, Some(0)));
    }

    /// [NH6]
    #[test]
    fn one_node_knows_nobody() {
        let numa = Numa::new(MemoryNodes::default(), true);
        let none = || -> Vec<u64> { unreachable!("not asked") };
        let first = numa.for_caller(std::process::id(), || {
            numa.note_writer(none);
            numa.stored(LineAddress::new(0), 7);
            numa.introduce(std::process::id());
            numa.first(true, none)
        });
        let report = numa.report(&[5], ZONE);
        assert_eq!((first, report.local_written_bytes, report.nodes.len(), report.nodes[0].total_bytes), (None, 0, 1, ZONE));
        assert!(numa.table.read().threads.is_empty());
    }

    #[test]
    fn callers_nest_and_end() {
        let numa = numa("2");
        numa.for_caller(7, || {
            assert_eq!(CALLER.get(), Caller::Thread(7));
            numa.near(Some(LineAddress::new(ZONE / 64 - 1)), || assert_eq!(CALLER.get(), Caller::Node(1)));
            numa.near(None, || assert_eq!(CALLER.get(), Caller::Thread(7)));
            numa.for_caller(8, || assert_eq!(CALLER.get(), Caller::Thread(8)));
            assert_eq!(CALLER.get(), Caller::Thread(7));
        });
        assert_eq!(CALLER.get(), Caller::Nobody);
    }
}
