//! §4.4: PageRank over a graph on the drive, as GridGraph streams it, by the option `promote`.
//!
//! The graph is R-MAT, so its degrees follow a power law, like LiveJournal's. Its edges are a grid of blocks in one file, one block after
//! another, so blocks begin and end at odd places; most are small, a few are large. An iteration reads all blocks column by column, each by
//! one request, with several threads; then the ranks are written and synced. There is no page cache, as in the paper.

use std::cell::{Cell, RefCell};

use serde::Serialize;
use tandemfs_device::sync::workers::ModelledHost;
use tandemfs_device::{Drive, Structure, VirtualTime};
use tandemfs_emulator::ModelOptions;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, MountOptions, Promote, WriteOptions};

use super::setting::{PROFILE, Setting};
use crate::failure::{Failure, Result};
use crate::output::Outcome;
use crate::scene::{self, MIB, Scene};
use crate::workloads::random::Random;
use crate::workloads::{Actor, together};

/// Blocks of a row of the grid: most of the edges in large blocks, or all in small ones.
const GRIDS: [u64; 2] = [16, 64];
const ITERATIONS: usize = 20;
/// Edges of a vertex, on average; LiveJournal has 14.
const DEGREE: u64 = 16;
const THREADS: [usize; 2] = [1, 4];
/// Shares of R-MAT's quarters, in percent: both ends in the lower half, only the target in the upper, only the source.
const QUARTERS: [u64; 3] = [57, 19, 19];
const DAMPING: f32 = 0.85;
const MODES: [(&str, Promote); 3] = [("off", Promote::Off), ("on", Promote::Hot), ("always", Promote::EveryRead)];

/// A graph whose edges are sorted by blocks: places in the file of each block, and what it says.
struct Graph {
    vertices: u64,
    grid: u64,
    /// Source and target, 8 B together.
    edges: Vec<[u32; 2]>,
    /// First edge of each block, by row; and the end.
    starts: Vec<usize>,
    degrees: Vec<u32>,
}

impl Graph {
    fn new(vertices: u64, grid: u64) -> Self {
        let (levels, mut random) = (vertices.ilog2(), Random::new(47, 0));
        let mut edges: Vec<[u32; 2]> = (0..vertices * DEGREE)
            .map(|_| {
                (0..levels).fold([0, 0], |[source, target], _| {
                    let draw = random.below(100);
                    let [both, target_only, source_only] = QUARTERS;
                    let upper = [
                        draw >= both + target_only,
                        (both..both + target_only).contains(&draw) || draw >= both + target_only + source_only,
                    ];
                    [source << 1 | u32::from(upper[0]), target << 1 | u32::from(upper[1])]
                })
            })
            .collect();
        let part = vertices / grid;
        let block = |[source, target]: [u32; 2]| (u64::from(source) / part * grid + u64::from(target) / part) as usize;
        edges.sort_by_key(|edge| block(*edge));
        let starts = (0..=(grid * grid) as usize).map(|number| edges.partition_point(|edge| block(*edge) < number)).collect();
        let mut degrees = vec![0; vertices as usize];
        edges.iter().for_each(|[source, _]| degrees[*source as usize] += 1);
        Self { vertices, grid, edges, starts, degrees }
    }

    fn bytes(&self) -> Vec<u8> {
        self.edges.iter().flatten().flat_map(|end| end.to_le_bytes()).collect()
    }
}

/// PageRank with one value of the option.
#[derive(Serialize)]
struct Ranked {
    memory_bytes: u64,
    grid: u64,
    graph_bytes: u64,
    threads: usize,
    promote: &'static str,
    /// How many times as fast as without promotion.
    gain: f64,
    iterations_ns: Vec<u64>,
    loaded_bytes: u64,
    block_read_bytes: u64,
    promotions: u64,
    #[serde(skip)]
    ranks: Vec<f32>,
}

impl Ranked {
    fn all_ns(&self) -> u64 {
        self.iterations_ns.iter().sum()
    }
}

/// Runs a zone that holds the graph and one that does not.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("graph", "PageRank over a graph on the drive, in virtual time (§4.4)");
    let vertices = if setting.common.quick || setting.scale < 1.0 { 1 << 15 } else { 1 << 18 };
    let graphs = GRIDS.map(|grid| Graph::new(vertices, grid));
    let graph_bytes = graphs[0].edges.len() as u64 * 8;
    let _host = ModelledHost::new();
    let zones = [3 * graph_bytes, graph_bytes / 2].map(|bytes| bytes.max(24 * MIB).next_multiple_of(2 * MIB));
    for (graph, memory_bytes) in graphs.iter().flat_map(|graph| zones.map(|zone| (graph, zone))) {
        let mut runs: Vec<Ranked> = Vec::new();
        for (threads, (name, promote)) in THREADS.into_iter().flat_map(|threads| MODES.map(|mode| (threads, mode))) {
            let mut ranked = rank(setting, graph, memory_bytes, threads, (name, promote))?;
            let off = runs.iter().find(|run| run.threads == threads).unwrap_or(&ranked);
            if ranked_differ(&off.ranks, &ranked.ranks) {
                return Err(Failure::new("the ranks depend on the option: bytes are wrong"));
            }
            ranked.gain = off.all_ns() as f64 / ranked.all_ns() as f64;
            runs.push(ranked);
        }
        let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
        let grid = graph.grid;
        outcome.listed(
            format!("{} MiB in {grid} x {grid} blocks, memory zone of {} MiB", graph_bytes / MIB, memory_bytes / MIB),
            &runs,
            &[
                ("threads", &|run| run.threads.to_string()),
                ("promote", &|run| run.promote.to_owned()),
                ("first, ms", &|run| ms(run.iterations_ns[0])),
                ("second", &|run| ms(run.iterations_ns[1])),
                ("each later", &|run| ms(run.iterations_ns.iter().skip(2).sum::<u64>() / (ITERATIONS as u64 - 2))),
                ("all", &|run| ms(run.all_ns())),
                ("off / this", &|run| format!("{:.2} x", run.gain)),
                ("loaded, MiB", &|run| (run.loaded_bytes / MIB).to_string()),
                ("by blocks", &|run| (run.block_read_bytes / MIB).to_string()),
                ("copies made", &|run| run.promotions.to_string()),
            ],
        )?;
    }
    outcome.note(format!(
        "{vertices} vertices, {DEGREE} edges a vertex, each block read by one request; {ITERATIONS} iterations; what the drive takes, without the processor's work on edges"
    ));
    outcome.note("the paper: block-based file systems with a cache of the memory zone take about as long as RomeFS on LiveJournal, and those on persistent memory half as long; RomeFS reads such data from its blocks");
    Ok(outcome)
}

/// Threads add in another order, so the last digits differ.
fn ranked_differ(one: &[f32], other: &[f32]) -> bool {
    one.iter().zip(other).any(|(one, other)| (one - other).abs() > 1e-3 * one.abs())
}

fn rank(setting: &Setting, graph: &Graph, memory_bytes: u64, threads: usize, (name, promote): (&'static str, Promote)) -> Result<Ranked> {
    let bytes = graph.bytes();
    let block_bytes = Setting::block_bytes(bytes.len() as u64);
    setting.require(memory_bytes + block_bytes)?;
    let scene = Scene::new(&setting.common)?;
    let device = scene.virtual_device(PROFILE, &ModelOptions::default(), memory_bytes, block_bytes)?;
    let mount = |promote| FileSystem::mount(Drive::new(device.clone()), &MountOptions { promote, ..MountOptions::default() });
    let fs = mount(Promote::Off)?;
    let file = |name: &[u8]| -> Result<InodeNumber> { Ok(fs.create(InodeNumber::ROOT, name, &scene::new_file())?.inode) };
    let (edges, ranks) = (file(b"edges")?, file(b"ranks")?);
    write(&fs, edges, &bytes)?;
    fs.unmount()?;
    drop(fs);
    let fs = mount(promote)?;
    fs.reset_statistics();
    let time = scene::virtual_time(&*device)?;
    let result = iterate(graph, &fs, time, threads, [edges, ranks])?;
    let counts = fs.drive().counters().snapshot().by_structure;
    let data = counts[Structure::Data as usize];
    let promotions = fs.statistics().work.promotions;
    fs.unmount()?;
    let (iterations_ns, ranks) = result;
    Ok(Ranked {
        memory_bytes,
        grid: graph.grid,
        graph_bytes: bytes.len() as u64,
        threads,
        promote: name,
        gain: 1.0,
        iterations_ns,
        loaded_bytes: data.byte_read_bytes,
        block_read_bytes: data.block_read_bytes,
        promotions,
        ranks,
    })
}

fn iterate(
    graph: &Graph,
    fs: &FileSystem,
    time: &dyn VirtualTime,
    threads: usize,
    [edges, file]: [InodeNumber; 2],
) -> Result<(Vec<u64>, Vec<f32>)> {
    let mut ranks = vec![1.0 / graph.vertices as f32; graph.vertices as usize];
    let mut iterations_ns = Vec::new();
    for _ in 0..ITERATIONS {
        let shares: Vec<f32> = ranks.iter().zip(&graph.degrees).map(|(rank, degree)| rank / (*degree).max(1) as f32).collect();
        let (sums, next) = (RefCell::new(vec![0.0_f32; ranks.len()]), Cell::new(0));
        let thread = |_| -> Actor<'_> {
            let (shares, sums, next, mut buffer) = (&shares, &sums, &next, Vec::new());
            Box::new(move || {
                let number = next.replace(next.get() + 1);
                if number >= graph.grid * graph.grid {
                    return Ok(false);
                }
                let block = (number % graph.grid * graph.grid + number / graph.grid) as usize; // columns of what is stored by rows
                let (start, end) = (graph.starts[block] as u64 * 8, graph.starts[block + 1] as u64 * 8);
                buffer.resize((end - start) as usize, 0);
                if fs.read(edges, start, &mut buffer)? != buffer.len() {
                    return Err(Failure::new("a short read"));
                }
                let mut sums = sums.borrow_mut();
                for edge in buffer.as_chunks::<8>().0 {
                    let [source, target] =
                        [0, 4].map(|at| u32::from_le_bytes([edge[at], edge[at + 1], edge[at + 2], edge[at + 3]]) as usize);
                    sums[target] += shares[source];
                }
                Ok(true)
            })
        };
        let read_ns = together(time, (0..threads).map(thread).collect(), || Ok(()), || {})?;
        let base = (1.0 - DAMPING) / graph.vertices as f32;
        ranks = sums.into_inner().into_iter().map(|sum| base + DAMPING * sum).collect();
        let start = time.now_ns();
        write(fs, file, &ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect::<Vec<_>>())?;
        iterations_ns.push(read_ns + time.now_ns() - start);
    }
    Ok((iterations_ns, ranks))
}

fn write(fs: &FileSystem, file: InodeNumber, bytes: &[u8]) -> Result<()> {
    for (piece, offset) in bytes.chunks(MIB as usize).zip((0..).step_by(MIB as usize)) {
        scene::write(fs, file, offset, piece, WriteOptions::default())?;
    }
    Ok(fs.sync()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_its_blocks_in_order_and_a_power_law() {
        let graph = Graph::new(1 << 12, 16);
        assert_eq!((graph.edges.len(), graph.starts[0], graph.starts[256]), (1 << 16, 0, 1 << 16));
        for (block, bounds) in graph.starts.windows(2).enumerate() {
            for [source, target] in &graph.edges[bounds[0]..bounds[1]] {
                assert_eq!((source / 256 * 16 + target / 256) as usize, block);
            }
        }
        let mut degrees = graph.degrees.clone();
        degrees.sort_unstable_by(|one, other| other.cmp(one));
        let of_hundredth: u32 = degrees[..degrees.len() / 100].iter().sum();
        assert!(of_hundredth > (1 << 16) / 8, "a hundredth of the vertices has {of_hundredth} edges");
    }
}
