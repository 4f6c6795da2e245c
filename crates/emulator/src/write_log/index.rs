//! The place of each line's newest version in the log: the three-layer index of ByteFS §4.3, in host memory, rebuilt when the drive is
//! opened.
//!
//! [IX1] Layer 1: the logical pages are divided into partitions of 16 MiB. A table gives the list of pages of each partition.
//! [IX2] Layer 2: the pages of a partition in order, as the two lower levels of a skip list without pointers. A node of the bottom level is
//!       two cache lines with up to [`NODE_PAGES`] neighbouring pages, sorted. The lane above is two arrays: the lowest page that each node
//!       may have (its separator), and the node. The first separator is 0. A node holds the pages from its separator up to the next, and at
//!       least one. A look-up scans 2 B for each node of the lane, which stays in the CPU's caches, and has one cache miss, at the node.
//!       With towers of pointers look-ups took four times as long.
//! [IX3] Layer 3: the lines of a page that are in the log, ordered by their position in the page. A slot of the log is in at most one list,
//!       so its link is stored at the slot's index in one array, and a reference to a chunk is slot and position in the page in 32 bits.
//!
//! Older versions of a line are in `versions.rs`.

use tandemfs_format::PAGE_LINES;

/// Pages of a partition: 16 MiB.
const PARTITION_PAGES: u64 = 4096;
/// Pages of a node: as many as two cache lines take.
const NODE_PAGES: usize = 21;
const NO_KEY: u16 = u16::MAX;
const NO_CHUNK: u32 = u32::MAX;
/// Slots that a reference can name.
pub(super) const SLOTS_MAX: u64 = (1 << 26) - 1;

/// A place in the log and in a page: slot << 6 | line in page.
type Chunk = u32;
/// A node of the bottom level ([IX2]).
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
struct Node {
    /// Pages in the partition, sorted, [`NO_KEY`] behind them.
    keys: [u16; NODE_PAGES],
    /// The first chunk of each page.
    firsts: [Chunk; NODE_PAGES],
}

const EMPTY_NODE: Node = Node { firsts: [NO_CHUNK; NODE_PAGES], keys: [NO_KEY; NODE_PAGES] };
const _: () = assert!(size_of::<Node>() == 128);

/// The lane over the nodes of a partition ([IX2]).
#[derive(Debug, Clone, Default)]
struct Lane {
    separators: Vec<u16>,
    nodes: Vec<u32>,
}

/// The index ([IX1]–[IX3]).
#[derive(Debug)]
pub(super) struct Index {
    partitions: Vec<Lane>,
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    /// The chunk after a slot's in its page.
    next: Vec<Chunk>,
    pages: u64,
    /// Memory of the lanes.
    lane_bytes: u64,
}

/// Advises the host to use huge pages, so that a random look-up does not miss the TLB as well. May have no effect.
fn use_large_pages<T>(first: *const T, count: usize) {
    let start = (first as usize).next_multiple_of(4096);
    let end = (first as usize + count * size_of::<T>()) / 4096 * 4096;
    if end > start + (4 << 20) {
        // SAFETY: the range lies within memory of ours, and the advice changes nothing of what it holds.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, rustix::mm::Advice::LinuxHugepage) };
    }
}

/// Where a page is: a node, and the place in it.
type Place = (usize, usize);

const fn line_in_page(chunk: Chunk) -> u32 {
    chunk % PAGE_LINES as u32
}

const fn slot_of(chunk: Chunk) -> u32 {
    chunk / PAGE_LINES as u32
}

const fn split_line(line: u64) -> (u64, u32) {
    (line / PAGE_LINES, (line % PAGE_LINES) as u32)
}

const fn split_page(page: u64) -> (usize, u16) {
    ((page / PARTITION_PAGES) as usize, (page % PARTITION_PAGES) as u16)
}

impl Node {
    /// Number of smaller pages: the position at which the page is or belongs. Branch-free, since the result is unpredictable.
    fn rank(&self, key: u16) -> usize {
        self.keys.iter().map(|one| usize::from(*one < key)).sum()
    }

    /// The same; prefetches the node's second cache line.
    fn rank_in_both_lines(&self, key: u16) -> usize {
        std::hint::black_box(self.firsts[NODE_PAGES - 1]);
        self.rank(key)
    }

    fn has(&self, place: usize, key: u16) -> bool {
        place < NODE_PAGES && self.keys[place] == key
    }
}

impl Lane {
    /// The place in the lane of the node that has a page or would get it; there must be one.
    fn seek(&self, key: u16) -> usize {
        // Without branches: a partition has 410 nodes at most if they are half full, and most have far fewer.
        let below: u16 = self.separators.iter().map(|separator| u16::from(*separator <= key)).sum();
        usize::from(below) - 1
    }

    fn bytes(&self) -> u64 {
        (self.separators.capacity() * size_of::<u16>() + self.nodes.capacity() * size_of::<u32>()) as u64
    }
}

impl Index {
    /// An index for so many slots and logical pages.
    pub(super) fn new(slots: u64, logical_pages: u64) -> Self {
        let index = Self {
            partitions: vec![Lane::default(); logical_pages.div_ceil(PARTITION_PAGES) as usize],
            // Sized for pages of one line at random places: unused capacity costs nothing, and growing would copy everything.
            nodes: Vec::with_capacity(slots as usize / 16),
            free_nodes: Vec::new(),
            next: vec![0; slots as usize],
            pages: 0,
            lane_bytes: 0,
        };
        use_large_pages(index.nodes.as_ptr(), index.nodes.capacity());
        use_large_pages(index.next.as_ptr(), index.next.len());
        index
    }

    /// Pages that have lines in it.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Host memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let nodes = self.nodes.len() * size_of::<Node>() + self.free_nodes.capacity() * size_of::<u32>();
        let fixed = self.partitions.len() * size_of::<Lane>() + self.next.len() * size_of::<Chunk>();
        (nodes + fixed) as u64 + self.lane_bytes
    }

    /// Prefetches the nodes of these lines in parallel; the result is meaningless. Sequential look-ups would each wait for the
    /// memory.
    pub(super) fn warm(&self, lines: impl Iterator<Item = u64>) -> u32 {
        let first_of = |line: u64| {
            let (partition, key) = split_page(line / PAGE_LINES);
            let lane = self.partitions.get(partition).filter(|lane| !lane.nodes.is_empty());
            lane.map_or(0, |lane| self.nodes[lane.nodes[lane.seek(key)] as usize].firsts[0])
        };
        lines.map(first_of).fold(0, u32::wrapping_add)
    }

    /// The slot of a line's newest version.
    pub(super) fn top(&self, line: u64) -> Option<u32> {
        let (page, line_in_page) = split_line(line);
        let (node, place) = self.find(page)?;
        self.chunks_from(self.nodes[node].firsts[place])
            .find(|(at, _)| *at >= line_in_page)
            .filter(|(at, _)| *at == line_in_page)
            .map(|(_, slot)| slot)
    }

    /// Makes a slot the newest version of a line; answers the slot that was.
    pub(super) fn insert(&mut self, line: u64, slot: u32) -> Option<u32> {
        let (page, line_in_page) = split_line(line);
        let (node, place) = self.find_or_add(page);
        let chunk = slot * PAGE_LINES as u32 + line_in_page;
        let (before, at) = self.seek(self.nodes[node].firsts[place], line_in_page);
        let replaced = (at != NO_CHUNK && at % PAGE_LINES as u32 == line_in_page).then(|| slot_of(at));
        self.next[slot as usize] = match replaced {
            Some(old) => self.next[old as usize],
            None => at,
        };
        self.set_link((node, place), before, chunk);
        replaced
    }

    /// Removes a line, and its page where that was the last.
    pub(super) fn remove_line(&mut self, line: u64) {
        let (page, line_in_page) = split_line(line);
        let Some((node, place)) = self.find(page) else { return };
        let (before, at) = self.seek(self.nodes[node].firsts[place], line_in_page);
        if at == NO_CHUNK || at % PAGE_LINES as u32 != line_in_page {
            return;
        }
        let after = self.next[slot_of(at) as usize];
        self.set_link((node, place), before, after);
        if self.nodes[node].firsts[place] == NO_CHUNK {
            self.remove_page(page);
        }
    }

    /// The lines of a page: place in the page and slot, in order.
    pub(super) fn chunks(&self, page: u64) -> impl Iterator<Item = (u32, u32)> + '_ {
        let first = self.find(page).map_or(NO_CHUNK, |(node, place)| self.nodes[node].firsts[place]);
        self.chunks_from(first)
    }

    /// The first page at or after this one that has lines.
    pub(super) fn next_page(&self, from: u64) -> Option<u64> {
        if self.pages == 0 {
            return None;
        }
        let (first, mut key) = split_page(from);
        for partition in first..self.partitions.len() {
            let lane = &self.partitions[partition];
            if !lane.nodes.is_empty() {
                let at = lane.seek(key);
                let node = &self.nodes[lane.nodes[at] as usize];
                let found = match node.keys.get(node.rank(key)) {
                    Some(key) if *key != NO_KEY => Some(*key),
                    _ => lane.nodes.get(at + 1).map(|next| self.nodes[*next as usize].keys[0]),
                };
                if let Some(key) = found {
                    return Some(partition as u64 * PARTITION_PAGES + u64::from(key));
                }
            }
            key = 0;
        }
        None
    }

    /// Removes a page with all its lines.
    pub(super) fn remove_page(&mut self, page: u64) {
        let (partition, key) = split_page(page);
        let Some((node, place)) = self.find(page) else { return };
        let found = &mut self.nodes[node];
        found.keys.copy_within(place + 1.., place);
        found.firsts.copy_within(place + 1.., place);
        (found.keys[NODE_PAGES - 1], found.firsts[NODE_PAGES - 1]) = (NO_KEY, NO_CHUNK);
        self.pages -= 1;
        if found.keys[0] != NO_KEY {
            return;
        }
        self.free_nodes.push(node as u32);
        let lane = &mut self.partitions[partition];
        let at = lane.seek(key);
        lane.nodes.remove(at);
        // The next node takes over what was this one's, so the first separator stays 0.
        lane.separators.remove(if at + 1 < lane.separators.len() { at + 1 } else { at });
        if lane.nodes.is_empty() {
            self.lane_bytes -= lane.bytes();
            *lane = Lane::default();
        }
    }

    fn chunks_from(&self, first: Chunk) -> impl Iterator<Item = (u32, u32)> + '_ {
        std::iter::successors((first != NO_CHUNK).then_some(first), |chunk| {
            Some(self.next[slot_of(*chunk) as usize]).filter(|next| *next != NO_CHUNK)
        })
        .map(|chunk| (line_in_page(chunk), slot_of(chunk)))
    }

    /// The chunk before a line in its list, and the line's own or the one after it.
    fn seek(&self, first: Chunk, line_in_page: u32) -> (Chunk, Chunk) {
        let (mut before, mut at) = (NO_CHUNK, first);
        while at != NO_CHUNK && at % PAGE_LINES as u32 <= line_in_page {
            if at % PAGE_LINES as u32 == line_in_page {
                break;
            }
            (before, at) = (at, self.next[slot_of(at) as usize]);
        }
        (before, at)
    }

    fn set_link(&mut self, (node, place): Place, before: Chunk, chunk: Chunk) {
        match before {
            NO_CHUNK => self.nodes[node].firsts[place] = chunk,
            before => self.next[slot_of(before) as usize] = chunk,
        }
    }

    fn find(&self, page: u64) -> Option<Place> {
        let (partition, key) = split_page(page);
        let lane = self.partitions.get(partition).filter(|lane| !lane.nodes.is_empty())?;
        let node = lane.nodes[lane.seek(key)] as usize;
        let place = self.nodes[node].rank_in_both_lines(key);
        self.nodes[node].has(place, key).then_some((node, place))
    }

    fn find_or_add(&mut self, page: u64) -> Place {
        let (partition, key) = split_page(page);
        if self.partitions[partition].nodes.is_empty() {
            let node = self.new_node();
            self.add_to_lane(partition, 0, 0, node);
        }
        let lane = &self.partitions[partition];
        let at = lane.seek(key);
        let mut node = lane.nodes[at] as usize;
        let mut place = self.nodes[node].rank_in_both_lines(key);
        if self.nodes[node].has(place, key) {
            return (node, place);
        }
        if self.nodes[node].keys[NODE_PAGES - 1] != NO_KEY {
            node = self.split(partition, at, key);
            place = self.nodes[node].rank(key);
        }
        let found = &mut self.nodes[node];
        found.keys.copy_within(place..NODE_PAGES - 1, place + 1);
        found.firsts.copy_within(place..NODE_PAGES - 1, place + 1);
        (found.keys[place], found.firsts[place]) = (key, NO_CHUNK);
        self.pages += 1;
        (node, place)
    }

    /// Splits the full node at a place of the lane; answers the half in which the page belongs.
    fn split(&mut self, partition: usize, at: usize, key: u16) -> usize {
        let new = self.new_node();
        let node = self.partitions[partition].nodes[at] as usize;
        let full = &mut self.nodes[node];
        // Pages that come in rising order fill their nodes.
        let from = if key > full.keys[NODE_PAGES - 1] { NODE_PAGES } else { NODE_PAGES / 2 };
        let (keys, firsts) = (full.keys, full.firsts);
        full.keys[from..].fill(NO_KEY);
        full.firsts[from..].fill(NO_CHUNK);
        self.nodes[new].keys[..NODE_PAGES - from].copy_from_slice(&keys[from..]);
        self.nodes[new].firsts[..NODE_PAGES - from].copy_from_slice(&firsts[from..]);
        let separator = keys.get(from).copied().unwrap_or(key);
        self.add_to_lane(partition, at + 1, separator, new);
        if key >= separator { new } else { node }
    }

    fn add_to_lane(&mut self, partition: usize, at: usize, separator: u16, node: usize) {
        let lane = &mut self.partitions[partition];
        let before = lane.bytes();
        lane.separators.insert(at, separator);
        lane.nodes.insert(at, node as u32);
        self.lane_bytes += lane.bytes() - before;
    }

    fn new_node(&mut self) -> usize {
        match self.free_nodes.pop() {
            Some(free) => {
                self.nodes[free as usize] = EMPTY_NODE;
                free as usize
            }
            None => {
                self.nodes.push(EMPTY_NODE);
                self.nodes.len() - 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl Index {
        /// All it holds, by walking it; asserts [IX2] and [IX3].
        fn contents(&self) -> BTreeMap<u64, u32> {
            let mut contents = BTreeMap::new();
            for (partition, lane) in self.partitions.iter().enumerate().filter(|(_, lane)| !lane.nodes.is_empty()) {
                assert_eq!(lane.separators[0], 0);
                for (at, node) in lane.nodes.iter().enumerate() {
                    let (low, high) = (lane.separators[at], lane.separators.get(at + 1).copied().unwrap_or(NO_KEY));
                    let Node { keys, firsts } = &self.nodes[*node as usize];
                    assert!(keys[0] != NO_KEY, "a node without pages");
                    for (key, first) in keys.iter().zip(firsts).filter(|(key, _)| **key != NO_KEY) {
                        assert!((low..high).contains(key), "a page outside its node");
                        let page = partition as u64 * PARTITION_PAGES + u64::from(*key);
                        let mut before = None;
                        for (at, slot) in self.chunks_from(*first) {
                            assert!(before < Some(at), "lines of a page out of order");
                            before = Some(at);
                            contents.insert(page * PAGE_LINES + u64::from(at), slot);
                        }
                        assert!(before.is_some(), "a page without lines");
                    }
                }
            }
            assert_eq!(self.lane_bytes, self.partitions.iter().map(Lane::bytes).sum::<u64>());
            contents
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn the_index_is_a_sorted_map(
            steps in proptest::collection::vec((0..10u8, 0..3u64, 0..220u64, 0..4u64), 1..800),
            scattered: bool,
        ) {
            let slots = steps.len() as u64;
            let mut index = Index::new(slots, 3 * PARTITION_PAGES);
            let mut expected = BTreeMap::new();
            for (slot, (kind, partition, page, line)) in (0u32..).zip(steps) {
                let page = partition * PARTITION_PAGES + if scattered { page * 18 } else { page };
                let line = page * PAGE_LINES + line * 21;
                match kind {
                    0..7 => prop_assert_eq!(index.insert(line, slot), expected.insert(line, slot)),
                    7 => {
                        index.remove_line(line);
                        expected.remove(&line);
                    }
                    8 => {
                        index.remove_page(page);
                        expected.retain(|line, _| line / PAGE_LINES != page);
                    }
                    _ => {
                        let next = expected.range(page * PAGE_LINES..).next().map(|(line, _)| line / PAGE_LINES);
                        prop_assert_eq!(index.next_page(page), next);
                    }
                }
                prop_assert_eq!(index.top(line), expected.get(&line).copied());
                let chunks: Vec<_> = index.chunks(page).collect();
                let same: Vec<_> =
                    expected.range(page * PAGE_LINES..(page + 1) * PAGE_LINES).map(|(line, slot)| ((line % PAGE_LINES) as u32, *slot)).collect();
                prop_assert_eq!(chunks, same);
            }
            let pages: std::collections::BTreeSet<_> = expected.keys().map(|line| line / PAGE_LINES).collect();
            prop_assert_eq!(index.pages(), pages.len() as u64);
            prop_assert_eq!(index.contents(), expected);
            for page in pages {
                index.remove_page(page);
            }
            prop_assert!(index.lane_bytes == 0 && index.free_nodes.len() == index.nodes.len());
        }
    }
}
