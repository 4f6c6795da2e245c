//! A load on one variant of the file system, in virtual time ([RF1], [RF2]).
//!
//! [RF1]: super
//! [RF2]: super

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};
use tandemfs_device::sync::workers::ModelledHost;
use tandemfs_device::{CountersSnapshot, Device};

use super::requests::{Alignment, REQUEST_BYTES_MAX, Requests, Size};
use super::setting::{Volume, pattern};
use crate::failure::Result;
use crate::measure::Samples;
use crate::scene::virtual_time;
use crate::workloads::{Actor, Behind, together};

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

/// Requests of some threads at random places.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// What they do.
    pub operation: Operation,
    /// Sizes.
    pub size: Size,
    /// Where requests begin and end.
    pub alignment: Alignment,
    /// Number of threads.
    pub threads: u64,
    /// Bytes of all requests together.
    pub bytes: u64,
    /// Chooses the requests.
    pub seed: u64,
}

impl Load {
    /// One actor for each thread; `request` makes one request, from its offset and a buffer of its length.
    fn actors<'a>(self, file_bytes: u64, request: &'a dyn Fn(u64, &mut [u8]) -> Result<()>) -> Vec<Actor<'a>> {
        let actor = |thread| -> Actor<'a> {
            let mut requests = Requests::new(self.seed * 100 + thread, self.size, self.alignment, file_bytes);
            let (mut buffer, mut left) = (pattern(REQUEST_BYTES_MAX), self.bytes / self.threads);
            Box::new(move || {
                let (offset, length) = requests.draw();
                request(offset, &mut buffer[..length as usize])?;
                left = left.saturating_sub(length);
                Ok(left > 0)
            })
        };
        (0..self.threads).map(actor).collect()
    }

    /// Runs the requests without a file system. Returns their bytes a second.
    pub fn rate_on(self, device: &dyn Device, file_bytes: u64, request: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> Result<f64> {
        let bytes = Cell::new(0);
        let counted = |offset, buffer: &mut [u8]| {
            bytes.set(bytes.get() + buffer.len() as u64);
            request(offset, buffer)
        };
        let ns = together(virtual_time(device)?, self.actors(file_bytes, &counted), || Ok(()), || {})?;
        Ok(bytes.get() as f64 * 1e9 / ns as f64)
    }
}

/// State of a load at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Bytes of requests so far.
    pub bytes: u64,
    /// Seconds since the start.
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
    /// Until the last request was answered, the background work was done and all data logs were written back, in nanoseconds.
    pub elapsed_ns: u64,
    /// Bytes of all requests.
    pub bytes: u64,
    /// Points during the load.
    pub course: Vec<Point>,
    /// Traffic to the device.
    pub counters: CountersSnapshot,
    /// The engine's counters.
    pub work: tandemfs_fs::WorkCounts,
}

/// Runs a load on a volume of a drive in virtual time.
pub fn run(name: &'static str, volume: &Volume, device: &dyn Device, load: Load) -> Result<Standing> {
    let _host = ModelledHost::new();
    let time = virtual_time(device)?;
    volume.fs.reset_statistics();
    let mut behind = Behind::new(&volume.fs, time, load.threads as usize);
    behind.calls_a_look = 1; // a request may be as large as the space that triggers write-back
    let start = time.now_ns();
    let (samples, course, bytes) = (RefCell::new(Samples::new()), RefCell::new(Vec::new()), Cell::new(0));
    let note = || {
        let seconds = (time.now_ns() - start) as f64 / 1e9;
        course.borrow_mut().push(Point { bytes: bytes.get(), seconds, memory_bytes: volume.memory_in_use() });
    };
    let request = |offset, buffer: &mut [u8]| {
        if bytes.get() >= course.borrow().len() as u64 * load.bytes / POINTS {
            note();
        }
        let begin = time.now_ns();
        match load.operation {
            Operation::Write => volume.write(offset, buffer)?,
            Operation::Read => volume.read(offset, buffer)?,
        }
        samples.borrow_mut().add_ns(time.now_ns() - begin);
        bytes.set(bytes.get() + buffer.len() as u64);
        behind.tend()
    };
    let requests_ns = behind.beside(load.actors(volume.file_bytes, &request))?;
    note();
    let mut elapsed_ns = requests_ns.max(behind.idle_at_ns().saturating_sub(start));
    if load.operation == Operation::Write {
        // Who writes to logs owes the blocks of what he leaves in them.
        let before = time.now_ns();
        volume.fs.write_back_all()?;
        volume.fs.checkpoint()?;
        elapsed_ns += time.now_ns() - before;
    }
    let (counters, work) = (volume.fs.drive().counters().snapshot(), volume.fs.statistics().work);
    Ok(Standing { name, samples: samples.into_inner(), elapsed_ns, bytes: bytes.get(), course: course.into_inner(), counters, work })
}

impl Standing {
    /// Time per request including the background work that follows, in nanoseconds.
    pub fn all_told_ns(&self) -> f64 {
        self.elapsed_ns as f64 / self.samples.count().max(1) as f64
    }

    /// Bytes a second, all told.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.elapsed_ns.max(1) as f64
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
    pub fn json(&self, part: &str, size: Size, ratio: f64) -> Value {
        let bytes = |field: fn(&tandemfs_device::PathBytes) -> u64| self.counters.by_structure.iter().map(field).sum::<u64>();
        json!({
            "part": part, "size": size.name(), "variant": self.name, "ratio": ratio,
            "operations": self.samples.count(),
            "mean_ns": self.samples.mean_ns(), "median_ns": self.samples.median_ns(), "p99_ns": self.samples.p99_ns(),
            "all_told_ns": self.all_told_ns(),
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
        Standing { name: "x", samples: Samples::new(), elapsed_ns: 0, bytes: 0, course, counters, work }
    }

    #[test]
    fn a_load_that_slows_down_has_not_settled() {
        let point = |bytes: u64, seconds: f64| Point { bytes: bytes * 1_000_000, seconds, memory_bytes: 0 };
        let result = result(vec![point(0, 0.0), point(25, 1.0), point(50, 2.0), point(75, 3.0), point(100, 5.0)]);
        assert!((result.settled() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn no_course_has_no_speed() {
        assert_eq!(result(Vec::new()).settled(), 0.0);
    }
}
