//! Pools of aligned extents and holes (`aligned_space.rs`), and the order in which they serve.
//!
//! [AP1] A pool is a part of the zone, so what is freed returns to the pool that it came from. Each CPU has one that it takes from first: its
//!       holes, then an aligned extent that it breaks, so threads of different CPUs do not lay their blocks among each other's. But where
//!       another pool has many holes ([`HOLES_SHARE`]), these serve before an aligned extent is broken. Only then holes of all other pools
//!       serve, the pool with most first, and then their aligned extents likewise.
//! [AP2] A pool lies on one node of memory. Where a node comes first (`numa.rs`), its pools are asked as if there were no others; then all
//!       are, if nothing is left on the node that would serve, also not by breaking an aligned extent.

use std::ops::Range;
use std::sync::atomic::AtomicUsize; // a size orders no threads

use tandemfs_device::{Apart, Growing};

use super::aligned_space::AlignedSpace;
use super::unit_pages::UNIT_PAGES;
use crate::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::sync::{Mutex, current_cpu};

/// Holes of another pool serve before an aligned extent of the own one is broken if they are more than this part (1/N) of its pages.
const HOLES_SHARE: u64 = 1024;

/// A part of the zone. The counts are those of the last change, to choose a pool by.
struct Pool {
    space: Mutex<AlignedSpace>,
    in_holes: AtomicU64,
    whole: AtomicU64,
}

impl Pool {
    fn of(space: AlignedSpace) -> Self {
        Self { space: Mutex::new(space), in_holes: AtomicU64::new(0), whole: AtomicU64::new(0) }
    }
}

pub(super) struct AlignedPools {
    /// Each apart from the others ([APT1] of the device's `apart.rs`).
    pools: Growing<Apart<Pool>>,
    /// Units of each pool; the last one of a node may have fewer.
    pool_units: usize,
    /// The first unit of each pool, and the end, where there are several nodes.
    starts: Vec<usize>,
    /// Units of all pools.
    units: AtomicUsize,
    /// Pages of a block.
    each: u32,
    /// The pools of each node, if there are several.
    of_nodes: Vec<Vec<usize>>,
}

impl AlignedPools {
    /// At most `pools` parts of `units` units, each a multiple of `step` units. Nothing is taken; a block has `each` pages.
    pub(super) fn new(units: usize, pools: usize, step: usize, each: u32) -> Self {
        let pool_units = units.div_ceil(pools.max(1)).next_multiple_of(step).max(step);
        let starts = (0..units.max(1)).step_by(pool_units).chain([units]).collect();
        Self { starts: Vec::new(), ..Self::between(starts, pool_units, each) }
    }

    /// At most about `pools` parts of the units of several nodes, at least one of each range.
    pub(super) fn on_nodes(ranges: &[(Range<usize>, usize)], nodes: usize, pools: usize, each: u32) -> Self {
        let units = ranges.last().map_or(0, |(range, _)| range.end);
        let pool_units = units.div_ceil(pools.max(nodes)).max(1);
        let mut of_nodes = vec![Vec::new(); nodes];
        let mut starts = Vec::new();
        for (range, node) in ranges {
            for first in range.clone().step_by(pool_units) {
                of_nodes[*node].push(starts.len());
                starts.push(first);
            }
        }
        starts.push(units);
        Self { of_nodes, ..Self::between(starts, pool_units, each) }
    }

    fn between(starts: Vec<usize>, pool_units: usize, each: u32) -> Self {
        let pool = |bounds: &[usize]| {
            let space = AlignedSpace::new(bounds[1] - bounds[0], each);
            Apart::new(Pool::of(space))
        };
        let units = AtomicUsize::new(starts.last().copied().unwrap_or_default());
        Self { pools: starts.windows(2).map(pool).collect(), pool_units, starts, units, each, of_nodes: Vec::new() }
    }

    /// So many units from now on, of which all that is new is taken: the last pool is filled, others follow it. Only with one node.
    pub(super) fn grow(&self, units: usize) {
        let here = |pool: usize| (units - pool * self.pool_units).min(self.pool_units);
        let last = self.pools.len() - 1;
        self.with(last, |space| space.grow(here(last)));
        self.pools.grow(units.div_ceil(self.pool_units), |_| Apart::new(Pool::of(AlignedSpace::new(0, self.each))));
        (last + 1..self.pools.len()).for_each(|pool| self.with(pool, |space| space.grow(here(pool))));
        self.units.store(units, Release);
    }

    pub(super) fn count(&self) -> usize {
        self.pools.len()
    }

    /// Units of each pool but the last, which may have fewer.
    pub(super) fn pool_units(&self) -> usize {
        self.pool_units
    }

    /// The pool of a page.
    pub(super) fn pool_of(&self, page: u64) -> usize {
        let unit = (page / UNIT_PAGES) as usize;
        if self.of_nodes.is_empty() { unit / self.pool_units } else { self.starts.partition_point(|start| *start <= unit) - 1 }
    }

    /// The first page of a pool.
    pub(super) fn start_of(&self, pool: usize) -> u64 {
        let unit = if self.of_nodes.is_empty() { (pool * self.pool_units).min(self.units.load(Acquire)) } else { self.starts[pool] };
        unit as u64 * UNIT_PAGES
    }

    /// Free pages of the holes of a node, whose aligned extents others may have taken.
    pub(super) fn in_holes_of(&self, node: usize) -> u64 {
        self.of_nodes[node].iter().map(|pool| self.with(*pool, AlignedSpace::in_holes)).sum()
    }

    /// Uses a pool, whose pages are counted from [`AlignedPools::start_of`] on.
    pub(super) fn with<T>(&self, pool: usize, work: impl FnOnce(&mut AlignedSpace) -> T) -> T {
        let Pool { space, in_holes, whole } = &*self.pools[pool];
        let mut space = space.lock();
        let done = work(&mut space);
        if self.pools.len() > 1
            && let Some(counts) = space.known_counts()
        {
            whole.store(counts.whole, Relaxed);
            in_holes.store(counts.in_holes, Relaxed);
        }
        done
    }

    /// Uses the parts of a run of pages: the space of a pool, and the pages there.
    pub(super) fn each_part(&self, start: u64, count: u64, mut work: impl FnMut(&mut AlignedSpace, u64, u64)) {
        let (mut at, end) = (start, start + count);
        while at < end {
            let pool = self.pool_of(at);
            let here = (self.start_of(pool + 1) - at).min(end - at);
            self.with(pool, |space| work(space, at - self.start_of(pool), here));
            at += here;
        }
    }

    /// Other pools, those of which there is most first. `among` are the pools that count; all if none are named.
    fn others(&self, among: &[usize], own: usize, amount: impl Fn(&Pool) -> u64) -> Vec<usize> {
        let others = (0..self.pools.len()).filter(|pool| *pool != own && (among.is_empty() || among.contains(pool)));
        let mut others: Vec<(u64, usize)> = others.map(|pool| (amount(&self.pools[pool]), pool)).collect();
        others.sort_unstable_by_key(|(amount, pool)| (u64::MAX - amount, *pool));
        others.into_iter().map(|(_, pool)| pool).collect()
    }

    /// Finds pages in a row, at most a unit ([AP1]). `from_unit` takes them from an aligned extent of a pool; without it holes alone serve.
    /// `from_hole` takes them from a pool's holes. Both return the page's place in the pool.
    pub(super) fn find(
        &self,
        count: u64,
        from_hole: impl Fn(usize) -> Option<u64>,
        from_unit: Option<impl Fn(usize) -> Option<u64>>,
    ) -> Option<u64> {
        self.find_among(&[], count, &from_hole, from_unit.as_ref())
    }

    /// As [`AlignedPools::find`], on one node.
    pub(super) fn find_on(
        &self,
        node: usize,
        count: u64,
        from_hole: impl Fn(usize) -> Option<u64>,
        from_unit: Option<impl Fn(usize) -> Option<u64>>,
    ) -> Option<u64> {
        let among = self.of_nodes.get(node).filter(|among| !among.is_empty())?;
        self.find_among(among, count, &from_hole, from_unit.as_ref())
    }

    fn find_among(
        &self,
        among: &[usize],
        count: u64,
        from_hole: &impl Fn(usize) -> Option<u64>,
        from_unit: Option<&impl Fn(usize) -> Option<u64>>,
    ) -> Option<u64> {
        let own = if among.is_empty() { current_cpu() % self.pools.len() } else { among[current_cpu() % among.len()] };
        let in_holes = |pool: &Pool| pool.in_holes.load(Relaxed);
        let whole = |pool: &Pool| pool.whole.load(Relaxed);
        let in_zone = |pool: usize, found: Option<u64>| found.map(|page| self.start_of(pool) + page);
        let hole = |pool: usize| in_zone(pool, from_hole(pool));
        let unit = |pool: usize| in_zone(pool, from_unit.and_then(|from_unit| from_unit(pool)));
        if count == UNIT_PAGES {
            return unit(own).or_else(|| self.others(among, own, whole).into_iter().find_map(unit));
        }
        let many = self.pool_units as u64 * UNIT_PAGES / HOLES_SHARE;
        let found = hole(own).or_else(|| {
            let richest = self.others(among, own, in_holes).into_iter().next()?;
            if in_holes(&self.pools[richest]) > many { hole(richest) } else { None }
        });
        if from_unit.is_none() {
            return found.or_else(|| self.others(among, own, in_holes).into_iter().find_map(hole));
        }
        found
            .or_else(|| unit(own))
            .or_else(|| self.others(among, own, in_holes).into_iter().find_map(hole))
            .or_else(|| self.others(among, own, whole).into_iter().find_map(unit))
    }
}
