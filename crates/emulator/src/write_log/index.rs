//! Where the newest version of each line is in the log: the three-layer index of ByteFS §4.3, in host memory, rebuilt when the drive is opened.
//!
//! [I1] Layer 1: the logical pages are cut into partitions of 16 MiB; a table gives each partition's skip list.
//! [I2] Layer 2: a skip list by page. Its nodes are fat: up to [`NODE_PAGES`] neighbouring pages, sorted, in two cache lines, so that a
//!      look-up misses the CPU's caches once or twice instead of once a step. A node holds the pages from its separator up to the next
//!      node's; separators are kept in the links, so no node is visited that is too far. The first node of a partition has the separator 0
//!      and stays while the partition has pages; every other node has at least one.
//! [I3] Layer 3: the lines of a page that are in the log, ordered by their place in the page. A slot of the log is in one list at most, so
//!      its link is at the slot's place in one array, and a reference to a chunk is slot and place in the page in 32 bits.
//!
//! Older versions of a line are not here: see `versions.rs`.

use tandemfs_format::PAGE_LINES;

/// Pages of a partition: 16 MiB.
const PARTITION_PAGES: u64 = 4096;
/// Pages of a node.
const NODE_PAGES: usize = 16;
/// Levels of a skip list; each has a quarter of the nodes of the one below.
const LEVELS: usize = 4;
const NO_KEY: u16 = u16::MAX;
const NO_CHUNK: u32 = u32::MAX;
/// Slots that a reference can name.
pub(super) const SLOTS_MAX: u64 = (1 << 26) - 1;

/// A place in the log and in a page: slot << 6 | line in page.
type Chunk = u32;
/// Separator << 32 | node; 0 for none.
type Link = u64;

/// A node of a skip list ([I2]).
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Node {
    links: [Link; LEVELS],
    /// Pages in the partition, sorted, [`NO_KEY`] behind them.
    keys: [u16; NODE_PAGES],
    /// The first chunk of each.
    firsts: [Chunk; NODE_PAGES],
}

const EMPTY_NODE: Node = Node { links: [0; LEVELS], keys: [NO_KEY; NODE_PAGES], firsts: [NO_CHUNK; NODE_PAGES] };
const _: () = assert!(size_of::<Node>() == 128);

/// The index ([I1]–[I3]).
#[derive(Debug)]
pub(super) struct Index {
    /// The first node of each partition; 0 for none.
    partitions: Vec<u32>,
    /// All nodes; the first is nobody's.
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    /// The chunk after a slot's in its page.
    next: Vec<Chunk>,
    pages: u64,
    random: u32,
}

/// Where a page is: a node, and the place in it.
type Place = (usize, usize);

const fn separator(link: Link) -> u16 {
    (link >> 32) as u16
}

const fn node_of(link: Link) -> usize {
    link as u32 as usize
}

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
    /// How many of its pages are below: where the page is or belongs. Without branches, since the answer cannot be foretold.
    fn rank(&self, key: u16) -> usize {
        self.keys.iter().map(|one| usize::from(*one < key)).sum()
    }

    fn has(&self, place: usize, key: u16) -> bool {
        place < NODE_PAGES && self.keys[place] == key
    }

    fn len(&self) -> usize {
        self.rank(NO_KEY)
    }
}

impl Index {
    /// An index for so many slots and logical pages.
    pub(super) fn new(slots: u64, logical_pages: u64) -> Self {
        Self {
            partitions: vec![0; logical_pages.div_ceil(PARTITION_PAGES) as usize],
            nodes: vec![EMPTY_NODE],
            free_nodes: Vec::new(),
            next: vec![0; slots as usize],
            pages: 0,
            random: 0x9e37_79b9,
        }
    }

    /// Pages that have lines in it.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Host memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let nodes = self.nodes.capacity() * size_of::<Node>() + self.free_nodes.capacity() * size_of::<u32>();
        (nodes + self.partitions.len() * size_of::<u32>() + self.next.len() * size_of::<Chunk>()) as u64
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
        let (first_partition, mut key) = split_page(from);
        for partition in first_partition..self.partitions.len() {
            let base = self.partitions[partition] as usize;
            if base != 0 {
                let (node, _) = self.descend(base, key);
                let found = match self.nodes[node].keys.get(self.nodes[node].rank(key)) {
                    Some(key) if *key != NO_KEY => Some(*key),
                    // Every node but the first has pages ([I2]).
                    _ => Some(self.nodes[node].links[0]).filter(|link| *link != 0).map(|link| self.nodes[node_of(link)].keys[0]),
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
        let base = self.partitions[partition] as usize;
        if base == 0 {
            return;
        }
        let (id, own_separator) = self.descend(base, key);
        let node = &mut self.nodes[id];
        let place = node.rank(key);
        if !node.has(place, key) {
            return;
        }
        node.keys.copy_within(place + 1.., place);
        node.firsts.copy_within(place + 1.., place);
        (node.keys[NODE_PAGES - 1], node.firsts[NODE_PAGES - 1]) = (NO_KEY, NO_CHUNK);
        self.pages -= 1;
        if node.keys[0] != NO_KEY {
            return;
        }
        if id != base {
            for (level, before) in self.path(base, own_separator).into_iter().enumerate() {
                if node_of(self.nodes[before].links[level]) == id {
                    self.nodes[before].links[level] = self.nodes[id].links[level];
                }
            }
            self.free_nodes.push(id as u32);
        }
        if self.nodes[base].keys[0] == NO_KEY && self.nodes[base].links[0] == 0 {
            self.free_nodes.push(base as u32);
            self.partitions[partition] = 0;
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

    /// The node whose pages this one is among, and its separator.
    fn descend(&self, base: usize, key: u16) -> (usize, u16) {
        let mut at = (base, 0);
        for level in (0..LEVELS).rev() {
            loop {
                let link = self.nodes[at.0].links[level];
                if link == 0 || separator(link) > key {
                    break;
                }
                at = (node_of(link), separator(link));
            }
        }
        at
    }

    /// The last node of each level whose separator is below.
    fn path(&self, base: usize, below: u16) -> [usize; LEVELS] {
        let mut path = [base; LEVELS];
        let mut at = base;
        for level in (0..LEVELS).rev() {
            loop {
                let link = self.nodes[at].links[level];
                if link == 0 || separator(link) >= below {
                    break;
                }
                at = node_of(link);
            }
            path[level] = at;
        }
        path
    }

    fn find(&self, page: u64) -> Option<Place> {
        let (partition, key) = split_page(page);
        let base = *self.partitions.get(partition)? as usize;
        if base == 0 {
            return None;
        }
        let (node, _) = self.descend(base, key);
        let place = self.nodes[node].rank(key);
        self.nodes[node].has(place, key).then_some((node, place))
    }

    fn find_or_add(&mut self, page: u64) -> Place {
        let (partition, key) = split_page(page);
        let mut base = self.partitions[partition] as usize;
        if base == 0 {
            base = self.new_node();
            self.partitions[partition] = base as u32;
        }
        let (mut node, _) = self.descend(base, key);
        let mut place = self.nodes[node].rank(key);
        if self.nodes[node].has(place, key) {
            return (node, place);
        }
        if self.nodes[node].keys[NODE_PAGES - 1] != NO_KEY {
            node = self.split(base, node, key);
            place = self.nodes[node].rank(key);
        }
        let found = &mut self.nodes[node];
        found.keys.copy_within(place..NODE_PAGES - 1, place + 1);
        found.firsts.copy_within(place..NODE_PAGES - 1, place + 1);
        (found.keys[place], found.firsts[place]) = (key, NO_CHUNK);
        self.pages += 1;
        (node, place)
    }

    /// Splits a full node; answers the half in which the page belongs.
    fn split(&mut self, base: usize, node: usize, key: u16) -> usize {
        let new = self.new_node();
        let full = &mut self.nodes[node];
        // Pages that come in rising order fill their nodes.
        let from = if key > full.keys[NODE_PAGES - 1] { NODE_PAGES } else { NODE_PAGES / 2 };
        let (keys, firsts) = (full.keys, full.firsts);
        full.keys[from..].fill(NO_KEY);
        full.firsts[from..].fill(NO_CHUNK);
        self.nodes[new].keys[..NODE_PAGES - from].copy_from_slice(&keys[from..]);
        self.nodes[new].firsts[..NODE_PAGES - from].copy_from_slice(&firsts[from..]);
        let own_separator = keys.get(from).copied().unwrap_or(key);
        let top = self.random_level();
        for (level, before) in self.path(base, own_separator).into_iter().enumerate().take(top + 1) {
            self.nodes[new].links[level] = self.nodes[before].links[level];
            self.nodes[before].links[level] = u64::from(own_separator) << 32 | new as u64;
        }
        if key >= own_separator { new } else { node }
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

    /// The highest level of a new node: each with a quarter of the chance of the one below.
    fn random_level(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        (self.random.trailing_zeros() as usize / 2).min(LEVELS - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl Index {
        /// All it holds, by walking it; asserts [I2] and [I3].
        fn contents(&self) -> BTreeMap<u64, u32> {
            let mut contents = BTreeMap::new();
            for (partition, base) in self.partitions.iter().enumerate().filter(|(_, base)| **base != 0) {
                let (mut node, mut low) = (*base as usize, 0);
                loop {
                    let Node { links, keys, firsts } = &self.nodes[node];
                    let high = if links[0] == 0 { NO_KEY } else { separator(links[0]) };
                    let count = self.nodes[node].len();
                    assert!(count > 0 || (low == 0 && links[0] != 0), "a node without pages");
                    for (key, first) in keys.iter().zip(firsts).take(count) {
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
                    if links[0] == 0 {
                        break;
                    }
                    (node, low) = (node_of(links[0]), high);
                }
            }
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
            prop_assert!(index.partitions.iter().all(|base| *base == 0) && index.free_nodes.len() == index.nodes.len() - 1);
        }
    }
}
