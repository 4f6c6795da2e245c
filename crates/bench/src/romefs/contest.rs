//! Variants of the file system that run the same load in turns ([RF1], [RF2]).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::CountersSnapshot;

use super::requests::{REQUEST_BYTES_MAX, Requests, Size};
use super::setting::{Volume, pattern};
use crate::failure::Result;
use crate::machine;
use crate::measure::Samples;

/// Number of points recorded during a load.
const POINTS: u64 = 48;

/// The operation on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Durable writes.
    Write,
    /// Reads.
    Read,
}

/// A variant with its load.
pub struct Contestant {
    /// The volume that it uses.
    pub volume: Volume,
    /// Its name.
    pub name: &'static str,
    requests: Requests,
    buffer: Vec<u8>,
    samples: Samples,
    operations: u64,
    bytes: u64,
    busy: Duration,
    course: Vec<Point>,
}

/// State of a load at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Bytes of requests so far.
    pub bytes: u64,
    /// Seconds of the requests, including background work.
    pub seconds: f64,
    /// Memory zone in use, in bytes.
    pub memory_bytes: u64,
}

/// Result of a variant.
pub struct Standing {
    /// Its name.
    pub name: &'static str,
    /// Time of each request.
    pub samples: Samples,
    /// Time per request including the background work that follows, in nanoseconds.
    pub all_told_ns: f64,
    /// Points during the load.
    pub course: Vec<Point>,
    /// Traffic to the device.
    pub counters: CountersSnapshot,
    /// The engine's counters.
    pub work: tandemfs_fs::WorkCounts,
    operations: u64,
}

impl Contestant {
    /// A contestant that has not started.
    pub fn new(name: &'static str, volume: Volume, requests: Requests) -> Self {
        let buffer = pattern(REQUEST_BYTES_MAX);
        let (samples, course) = (Samples::new(), Vec::new());
        Self { volume, name, requests, buffer, samples, operations: 0, bytes: 0, busy: Duration::ZERO, course }
    }

    fn slice(&mut self, operation: Operation, bytes: u64, point_bytes: u64) -> Result<()> {
        let (target, start) = (self.bytes + bytes, Instant::now());
        let mut next_point = self.bytes;
        while self.bytes < target {
            if self.bytes >= next_point {
                machine::check()?;
                self.note(start.elapsed());
                next_point += point_bytes;
            }
            let (offset, length) = self.requests.draw();
            let buffer = &mut self.buffer[..length as usize];
            let begin = Instant::now();
            match operation {
                Operation::Write => self.volume.write(offset, buffer)?,
                Operation::Read => self.volume.read(offset, buffer)?,
            }
            self.samples.add(begin.elapsed());
            self.operations += 1;
            self.bytes += length;
        }
        self.note(start.elapsed());
        self.busy += start.elapsed() + self.volume.settle();
        Ok(())
    }

    fn note(&mut self, running: Duration) {
        let seconds = (self.busy + running).as_secs_f64();
        self.course.push(Point { bytes: self.bytes, seconds, memory_bytes: self.volume.memory_in_use() });
    }

    fn end(self) -> Standing {
        let Self { volume, name, samples, operations, busy, course, .. } = self;
        let (counters, work) = (volume.fs.drive().counters().snapshot(), volume.fs.statistics().work);
        Standing { name, samples, all_told_ns: busy.as_nanos() as f64 / operations.max(1) as f64, course, counters, work, operations }
    }
}

/// Runs a load of `bytes` on each contestant in `slices` turns, alternately forward and backward.
pub fn run(mut contestants: Vec<Contestant>, operation: Operation, bytes: u64, slices: u64) -> Result<Vec<Standing>> {
    for contestant in &contestants {
        contestant.volume.settle();
        contestant.volume.fs.reset_statistics();
    }
    for slice in 0..slices {
        for index in 0..contestants.len() {
            let index = if slice % 2 == 0 { index } else { contestants.len() - 1 - index };
            contestants[index].slice(operation, bytes.div_ceil(slices), bytes.div_ceil(POINTS))?;
        }
    }
    Ok(contestants.into_iter().map(Contestant::end).collect())
}

impl Standing {
    /// Throughput between recorded points: (bytes so far, MB/s).
    pub fn throughput(&self) -> Vec<(f64, f64)> {
        let between = |pair: &[Point]| {
            let seconds = pair[1].seconds - pair[0].seconds;
            (seconds > 0.0 && pair[1].bytes > pair[0].bytes)
                .then(|| (pair[1].bytes as f64, (pair[1].bytes - pair[0].bytes) as f64 / seconds / 1e6))
        };
        self.course.windows(2).filter_map(between).collect()
    }

    /// Throughput of the last quarter of the load divided by that of the second.
    pub fn settled(&self) -> f64 {
        let end = self.course.last().map_or(0, |point| point.bytes);
        let at = |bytes: u64| self.course.iter().rev().find(|point| point.bytes <= bytes);
        let rate = |from: u64, to: u64| {
            let (from, to) = (at(from)?, at(to)?);
            (to.seconds > from.seconds).then(|| (to.bytes - from.bytes) as f64 / (to.seconds - from.seconds))
        };
        match (rate(end / 4, end / 2), rate(end / 4 * 3, end)) {
            (Some(second), Some(last)) if second > 0.0 => last / second,
            _ => 0.0,
        }
    }

    /// The result as JSON; `ratio` is relative to our variant.
    pub fn json(&self, part: &str, size: Size, ratio: Option<f64>) -> Value {
        let bytes = |field: fn(&tandemfs_device::PathBytes) -> u64| self.counters.by_structure.iter().map(field).sum::<u64>();
        json!({
            "part": part, "size": size.name(), "variant": self.name, "ratio": ratio,
            "operations": self.operations,
            "mean_ns": self.samples.mean_ns(), "median_ns": self.samples.median_ns(), "p99_ns": self.samples.p99_ns(),
            "all_told_ns": self.all_told_ns,
            "settled": self.settled(),
            "byte_written_bytes": bytes(|bytes| bytes.byte_written_bytes), "byte_read_bytes": bytes(|bytes| bytes.byte_read_bytes),
            "block_written_bytes": bytes(|bytes| bytes.block_written_bytes), "block_read_bytes": bytes(|bytes| bytes.block_read_bytes),
            "merges": self.work.merges, "block_write_backs": self.work.block_write_backs,
            "early_terminations": self.work.early_terminations,
            "course": self.course.iter().map(|point| json!([point.bytes, point.seconds, point.memory_bytes])).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(course: Vec<Point>) -> Standing {
        let (counters, work) = (CountersSnapshot::default(), tandemfs_fs::WorkCounts::default());
        Standing { name: "x", samples: Samples::new(), all_told_ns: 0.0, course, counters, work, operations: 0 }
    }

    #[test]
    fn a_load_that_slows_down_has_not_settled() {
        let point = |bytes: u64, seconds: f64| Point { bytes: bytes * 1_000_000, seconds, memory_bytes: 0 };
        let result = result(vec![point(0, 0.0), point(25, 1.0), point(50, 2.0), point(75, 3.0), point(100, 5.0)]);
        assert!((result.settled() - 0.5).abs() < 1e-9);
        assert_eq!(result.throughput(), [(25e6, 25.0), (50e6, 25.0), (75e6, 25.0), (100e6, 12.5)]);
    }

    #[test]
    fn no_course_has_no_speed() {
        assert_eq!((result(Vec::new()).settled(), result(Vec::new()).throughput().len()), (0.0, 0));
    }
}
