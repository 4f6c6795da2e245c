//! Nodes of memory (NUMA): which ranges of the memory zone are near to which CPUs.
//!
//! A device reports what the kernel says in /sys. Where that is one node but the zone lies on several (a linear volume over persistent memory
//! of two sockets), or to try several nodes on a machine with one, a [`NodeSpec`] says so.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use tandemfs_format::UNIT_BYTES;

/// Most nodes of a zone.
pub const NODES_MAX: usize = 64;
/// Largest number of a node and of a CPU.
const NUMBER_MAX: u32 = 65_535;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNode {
    /// Its number in this machine.
    pub number: u32,
    /// The numbers of its CPUs, ascending; none if it is memory alone.
    pub cpus: Vec<u32>,
}

/// The nodes of a memory zone. The default is one node of unknown number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    nodes: Vec<MemoryNode>,
    /// Where each range ends, in bytes, and the index of its node. The last one has everything behind it too.
    ranges: Vec<(u64, usize)>,
}

impl MemoryNodes {
    /// A zone that lies on one node.
    pub fn one(number: u32, cpus: Vec<u32>) -> Self {
        Self { nodes: vec![MemoryNode { number, cpus }], ranges: vec![(u64::MAX, 0)] }
    }

    /// Number of nodes, at least one.
    pub fn count(&self) -> usize {
        self.nodes.len().max(1)
    }

    /// The nodes; none where nothing is known.
    pub fn nodes(&self) -> &[MemoryNode] {
        &self.nodes
    }

    /// The ranges of a zone of this size, in bytes, each with the index of its node.
    pub fn ranges(&self, zone_bytes: u64) -> Vec<(Range<u64>, usize)> {
        let mut start = 0;
        let mut ranges = Vec::new();
        for (index, (end, node)) in self.ranges.iter().enumerate() {
            let end = if index + 1 == self.ranges.len() { zone_bytes } else { (*end).min(zone_bytes) };
            if start < end {
                ranges.push((start..end, *node));
                start = end;
            }
        }
        if ranges.is_empty() { vec![(0..zone_bytes, 0)] } else { ranges }
    }

    /// The index of the node of a byte of the zone.
    pub fn node_of(&self, offset_bytes: u64) -> usize {
        let range = self.ranges.partition_point(|(end, _)| *end <= offset_bytes);
        self.ranges.get(range).or(self.ranges.last()).map_or(0, |(_, node)| *node)
    }

    /// The index of the node of a CPU; `None` if no node has it.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.cpus.binary_search(&cpu).is_ok())
    }
}

/// What a person says about the nodes of a zone: `4` (equal parts), or ranges in order, `SIZE:NODE[:CPUS]/SIZE:NODE[:CPUS]…`. SIZE is a
/// multiple of 2 MiB with K, M, G or T, or `*` for the rest; CPUS is a list like `0-3+8`, or empty for memory alone. Without CPUS they are
/// those that the kernel names for the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeSpec {
    /// So many equal parts; the CPUs are dealt out in order.
    Equal(usize),
    /// Ranges one behind the other.
    Ranges(Vec<SpecRange>),
}

/// A range of [`NodeSpec::Ranges`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecRange {
    /// `None`: the rest of the zone.
    bytes: Option<u64>,
    node: u32,
    /// `None`: as the kernel says.
    cpus: Option<Vec<u32>>,
}

impl FromStr for NodeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(':') {
            let count = text.parse().ok().filter(|count| (1..=NODES_MAX).contains(count));
            let wrong = || format!("'{text}' is neither a number of nodes from 1 to {NODES_MAX} nor ranges as 64G:0/64G:1");
            return count.map(Self::Equal).ok_or_else(wrong);
        }
        let ranges = text.split('/').map(range).collect::<Result<Vec<_>, _>>()?;
        if let Some(early) = ranges.iter().rev().skip(1).find(|range| range.bytes.is_none()) {
            return Err(format!("the range of node {} takes the rest (*), so it is the last one; write it behind the others", early.node));
        }
        let mut numbers: Vec<u32> = ranges.iter().map(|range| range.node).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() > NODES_MAX {
            return Err(format!("{} nodes are named; at most {NODES_MAX} are possible", numbers.len()));
        }
        Ok(Self::Ranges(ranges))
    }
}

impl fmt::Display for NodeSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = match self {
            Self::Equal(count) => return write!(formatter, "{count}"),
            Self::Ranges(ranges) => ranges,
        };
        for (index, range) in ranges.iter().enumerate() {
            let bytes = range.bytes.map_or_else(|| "*".to_owned(), |bytes| format!("{}M", bytes >> 20));
            write!(formatter, "{}{bytes}:{}", if index > 0 { "/" } else { "" }, range.node)?;
            if let Some(cpus) = &range.cpus {
                let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
                write!(formatter, ":{}", cpus.join("+"))?;
            }
        }
        Ok(())
    }
}

fn range(text: &str) -> Result<SpecRange, String> {
    let mut fields = text.splitn(3, ':');
    let (size, node, cpus) = (fields.next().unwrap_or_default(), fields.next(), fields.next());
    let bytes = match size {
        "*" => None,
        _ => Some(bytes(size).ok_or_else(|| format!("'{size}' is not a size; write a multiple of 2M with K, M, G or T, or *"))?),
    };
    if bytes.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(UNIT_BYTES)) {
        return Err(format!("'{size}' is no multiple of 2 MiB; ranges of nodes are"));
    }
    let node = node.unwrap_or_default();
    let number = node.parse().ok().filter(|number| *number <= NUMBER_MAX);
    let number = number.ok_or_else(|| format!("'{text}': '{node}' is no number of a node; write SIZE:NODE or SIZE:NODE:CPUS"))?;
    let cpus = cpus.map(|list| numbers(list, '+').ok_or_else(|| format!("'{list}' is no list of CPUs; write one as 0-3+8"))).transpose()?;
    Ok(SpecRange { bytes, node: number, cpus })
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A list of numbers and ranges of them, as the kernel writes it with commas; sorted.
pub fn numbers(list: &str, separator: char) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in list.trim().split(separator).filter(|_| !list.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        found.extend(first..=last);
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

impl NodeSpec {
    /// The nodes of a zone of this size, on a machine with so many CPUs.
    ///
    /// # Errors
    /// One sentence where the ranges are not those of the zone, or two of them contradict each other.
    pub fn over(&self, zone_bytes: u64, machine_cpus: usize) -> Result<MemoryNodes, String> {
        self.over_with(zone_bytes, machine_cpus, &cpus_of_node)
    }

    fn over_with(&self, zone_bytes: u64, machine_cpus: usize, known: &dyn Fn(u32) -> Option<Vec<u32>>) -> Result<MemoryNodes, String> {
        let mut found = MemoryNodes::default();
        match self {
            Self::Equal(count) => {
                let (count, units) = (*count as u64, zone_bytes / UNIT_BYTES);
                if units < count {
                    return Err(format!("a memory zone of {units} units of 2 MiB has no {count} nodes"));
                }
                for node in 0..count {
                    let share = |of: u64| (of * node / count)..(of * (node + 1) / count);
                    let cpus = share(machine_cpus as u64).map(|cpu| cpu as u32).collect();
                    found.nodes.push(MemoryNode { number: node as u32, cpus });
                    found.ranges.push((share(units).end * UNIT_BYTES, node as usize));
                }
            }
            Self::Ranges(ranges) => {
                let mut end = 0_u64;
                for range in ranges {
                    end = match range.bytes {
                        Some(bytes) => end.saturating_add(bytes),
                        None => end.max(zone_bytes),
                    };
                    let index = found.add(range, known)?;
                    found.ranges.push((end, index));
                }
                let before_last = found.ranges.iter().rev().nth(1).map_or(0, |(end, _)| *end);
                if end < zone_bytes || before_last >= zone_bytes {
                    let (named, zone) = (end >> 20, zone_bytes >> 20);
                    return Err(format!(
                        "the ranges have {named} MiB, but the memory zone has {zone} MiB; let the last one take the rest (*)"
                    ));
                }
            }
        }
        let mut cpus: Vec<u32> = found.nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        match cpus.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("CPU {} is in two nodes", pair[0])),
            None => Ok(found),
        }
    }
}

impl MemoryNodes {
    /// The index of a range's node.
    fn add(&mut self, range: &SpecRange, known: &dyn Fn(u32) -> Option<Vec<u32>>) -> Result<usize, String> {
        if let Some(index) = self.nodes.iter().position(|node| node.number == range.node) {
            return match &range.cpus {
                Some(cpus) if *cpus != self.nodes[index].cpus => Err(format!("node {} is given two lists of CPUs", range.node)),
                _ => Ok(index),
            };
        }
        let unknown = || format!("this machine has no node {}; name its CPUs, as in 64M:{}:0-3", range.node, range.node);
        let cpus = range.cpus.clone().or_else(|| known(range.node)).ok_or_else(unknown)?;
        self.nodes.push(MemoryNode { number: range.node, cpus });
        Ok(self.nodes.len() - 1)
    }
}

/// The CPUs of a node, as the kernel says.
pub(crate) fn cpus_of_node(number: u32) -> Option<Vec<u32>> {
    numbers(&std::fs::read_to_string(format!("/sys/devices/system/node/node{number}/cpulist")).ok()?, ',')
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn over(text: &str, zone_bytes: u64) -> Result<MemoryNodes, String> {
        let known = |node| (node < 2).then(|| vec![node * 2, node * 2 + 1]);
        text.parse::<NodeSpec>()?.over_with(zone_bytes, 8, &known)
    }

    #[test]
    fn nothing_said_is_one_node() {
        let nodes = MemoryNodes::default();
        assert_eq!((nodes.count(), nodes.node_of(5 << 40), nodes.node_of_cpu(0)), (1, 0, None));
        assert_eq!(nodes.ranges(64 * MIB), [(0..64 * MIB, 0)]);
        let one = MemoryNodes::one(3, vec![4, 5]);
        assert_eq!((one.count(), one.node_of(5 << 40), one.node_of_cpu(5), one.ranges(8)), (1, 0, Some(0), vec![(0..8, 0)]));
    }

    #[test]
    fn a_number_cuts_the_zone_into_equal_parts() {
        let nodes = over("4", 64 * MIB).expect("four");
        assert_eq!(nodes.count(), 4);
        let at = |mib: u64| nodes.node_of(mib * MIB);
        assert_eq!([at(0), at(15), at(16), at(47), at(48), at(63), at(1000)], [0, 0, 1, 2, 3, 3, 3]);
        assert_eq!([0, 1, 2, 7, 8].map(|cpu| nodes.node_of_cpu(cpu)), [Some(0), Some(0), Some(1), Some(3), None]);
        let ranges: Vec<_> = (0..4).map(|node| (node * 16 * MIB..(node + 1) * 16 * MIB, node as usize)).collect();
        assert_eq!(nodes.ranges(64 * MIB), ranges);
        assert_eq!(over("3", 10 * MIB).expect("three").ranges(10 * MIB).last(), Some(&(6 * MIB..10 * MIB, 2)), "whole units");
        assert_eq!(over("1", 64 * MIB).expect("one").count(), 1);
    }

    #[test]
    fn ranges_name_nodes_and_cpus() {
        let nodes = over("16M:0/8M:7:4-5+7/8M:0/*:1", 64 * MIB).expect("ranges");
        assert_eq!(
            nodes.nodes().iter().map(|node| (node.number, node.cpus.clone())).collect::<Vec<_>>(),
            [(0, vec![0, 1]), (7, vec![4, 5, 7]), (1, vec![2, 3])]
        );
        let at = |mib: u64| nodes.node_of(mib * MIB);
        assert_eq!([at(0), at(16), at(23), at(24), at(31), at(32), at(63)], [0, 1, 1, 0, 0, 2, 2]);
        assert_eq!((nodes.node_of_cpu(7), nodes.node_of_cpu(6)), (Some(1), None));
        assert_eq!(over("2M:5:/*:0", 4 * MIB).expect("memory alone").nodes()[0].cpus, []);
        for text in ["4", "16M:0/8M:7:4+5+7/*:1:"] {
            assert_eq!(text.parse::<NodeSpec>().expect("nodes").to_string(), text);
        }
        assert_eq!(over("2M:0/1G:1", 64 * MIB).expect("more than the zone").ranges(64 * MIB).len(), 2);
    }

    #[test]
    fn what_means_nothing_is_refused_with_the_reason() {
        for (text, said) in [
            ("", "neither a number"),
            ("0", "neither a number"),
            ("65", "neither a number"),
            ("two", "neither a number"),
            ("-1", "neither a number"),
            ("33", "no 33 nodes"),
            (":", "'' is not a size"),
            ("64M:", "'' is no number of a node"),
            ("many:0", "'many' is not a size"),
            ("1.5G:0", "'1.5G' is not a size"),
            ("99999999999T:0", "is not a size"),
            ("1M:0/*:1", "no multiple of 2 MiB"),
            ("0:0/*:1", "no multiple of 2 MiB"),
            ("32M:a/32M:1", "'a' is no number of a node"),
            ("32M:65536/32M:1", "'65536' is no number of a node"),
            ("32M:0:3-1/32M:1", "'3-1' is no list of CPUs"),
            ("32M:0:a/32M:1", "'a' is no list of CPUs"),
            ("32M:0:1:2/32M:1", "'1:2' is no list of CPUs"),
            ("32M:0:0,1/32M:1", "'0,1' is no list of CPUs"),
            ("*:0/32M:1", "behind the others"),
            ("32M:0/", "'' is not a size"),
            ("32M:0/16M:1", "48 MiB, but the memory zone has 64 MiB"),
            ("64M:0/2M:1", "66 MiB, but the memory zone has 64 MiB"),
            ("64M:0/*:1", "the memory zone has 64 MiB"),
            ("32M:9/32M:1", "no node 9"),
            ("32M:0:0-1/32M:1:1-2", "CPU 1 is in two nodes"),
            ("16M:0:0/16M:1:1/32M:0:3", "node 0 is given two lists"),
        ] {
            let reason = over(text, 64 * MIB).expect_err(text);
            assert!(reason.contains(said), "{text}: {reason}");
        }
        let many: Vec<String> = (0..65).map(|node| format!("2M:{node}:")).collect();
        assert!(many.join("/").parse::<NodeSpec>().is_err_and(|reason| reason.contains("65 nodes")));
    }

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!(numbers("0-1,4,3\n", ','), Some(vec![0, 1, 3, 4]));
        assert_eq!(numbers("\n", ','), Some(vec![]));
        assert_eq!([",", "1,", "a", "1-", "0-99999", "-1"].map(|list| numbers(list, ',')), [const { None }; 6]);
    }
}
