//! Measures speed and memory of the index, for comparison with the 89 ns and 21 MB of ByteFS §4.3.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};
use tandemfs_device::DeviceError;
use tandemfs_format::{Line, PAGE_LINES};

use super::{WriteLog, WriteLogOptions};
use crate::medium::{Medium, PageBytes, Pages, PhysicalPage, Spare};

/// What [`measure`] found, in time of the CPU: others on the machine do not count, beyond what they take of caches and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct LogFigures {
    /// Lines in the log.
    pub(crate) lines: u64,
    /// Pages that they belong to.
    pub(crate) pages: u64,
    /// An untagged store of 64 B, its place in the index included: the mean while the log filled up, and over the last sixteenth of it.
    pub(crate) append_ns: f64,
    pub(crate) last_append_ns: f64,
    /// A look-up in the index of the full log, of a line that it has, and of one that it has not.
    pub(crate) hit_ns: f64,
    pub(crate) miss_ns: f64,
    /// A load of a line that it has: look-up and copy.
    pub(crate) load_ns: f64,
    /// Host memory of the index.
    pub(crate) index_bytes: u64,
    /// Opening the full log: scan and index.
    pub(crate) open_seconds: f64,
    /// RECOVER of it: merging every page, without the time of a flash.
    pub(crate) recover_seconds: f64,
}

/// DRAM of the host; no flash.
#[derive(Debug)]
struct HostDram(Box<[AtomicU64]>);

/// Pages that take everything and keep nothing.
struct NoPages;

impl Medium for HostDram {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        if into.len().is_multiple_of(8) {
            for (word, into) in self.0[offset as usize / 8..].iter().zip(into.as_chunks_mut::<8>().0) {
                *into = word.load(Relaxed).to_le_bytes();
            }
        } else {
            let bytes = self.0[offset as usize / 8].load(Relaxed).to_le_bytes();
            into.copy_from_slice(&bytes[offset as usize % 8..][..into.len()]);
        }
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        for (word, from) in self.0[offset as usize / 8..].iter().zip(from.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*from), Relaxed);
        }
        Ok(())
    }

    fn read_page(&self, _: PhysicalPage, into: &mut PageBytes) -> Result<(), DeviceError> {
        into.fill(0);
        Ok(())
    }

    fn spare(&self, _: PhysicalPage) -> Result<Spare, DeviceError> {
        Ok(Spare::default())
    }

    fn program_page(&self, _: PhysicalPage, _: &PageBytes, _: Spare) -> Result<(), DeviceError> {
        Ok(())
    }

    fn erase(&self, _: PhysicalPage, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Pages for NoPages {
    fn read(&mut self, _: u64, into: &mut PageBytes) -> Result<(), DeviceError> {
        into.fill(0);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &PageBytes, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn stamp(&self, _: u64) -> Result<u64, DeviceError> {
        Ok(0)
    }

    fn discard(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_mapped(&self, _: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }
}

/// Fills a log in host memory with lines at random places of a drive, in runs of so many neighbours, a divisor of 64, and looks up half as
/// many. The log is filled to the brim as far as it may be: to 95 %.
pub(crate) fn measure(log_bytes: u64, logical_pages: u64, run_lines: u64) -> Result<LogFigures, DeviceError> {
    let options = WriteLogOptions { log_bytes, clean_at_percent: 95, ..WriteLogOptions::default() };
    let medium = Arc::new(HostDram((0..options.dram_bytes() / 8).map(|_| AtomicU64::new(0)).collect()));
    let mut log = WriteLog::format(Arc::clone(&medium), 0, options, logical_pages)?;
    let runs = logical_pages * PAGE_LINES / run_lines;
    let line = |number: u64| mix(number / run_lines) % runs * run_lines + number % run_lines;
    let (lines, pages) = (log.region.lines * 95 / 100 - 1, &mut NoPages);
    let mut bytes: Line = [0x5a; _];
    let begun = cpu_ns();
    let last = lines / 16;
    let mut last_begun = begun;
    for number in 0..lines {
        if number == lines - last {
            last_begun = cpu_ns();
        }
        bytes[0] = number as u8;
        log.append(pages, 0, line(number), &bytes)?;
    }
    let mut figures = LogFigures {
        lines,
        pages: log.index.pages(),
        append_ns: nanoseconds(begun, lines),
        last_append_ns: nanoseconds(last_begun, last),
        index_bytes: log.fill().index_bytes,
        ..LogFigures::default()
    };
    let looked_up = lines / 2;
    // In another order than that of the appends: their lines lie beside each other in the log.
    let known = |number: u64| line(mix(number ^ 0x5555_5555) % lines);
    let begun = cpu_ns();
    for number in 0..looked_up {
        black_box(log.index.top(known(number)));
    }
    figures.hit_ns = nanoseconds(begun, looked_up);
    let begun = cpu_ns();
    for number in 0..looked_up {
        black_box(log.index.top(line(lines + number)));
    }
    figures.miss_ns = nanoseconds(begun, looked_up);
    let begun = cpu_ns();
    for number in 0..looked_up {
        black_box(log.load(known(number), &mut bytes)?);
    }
    figures.load_ns = nanoseconds(begun, looked_up);
    drop(log);
    let begun = cpu_ns();
    let mut log = WriteLog::open(medium, 0, options, logical_pages, pages)?;
    figures.open_seconds = nanoseconds(begun, 1) / 1e9;
    let begun = cpu_ns();
    black_box(log.recover(pages, false)?);
    figures.recover_seconds = nanoseconds(begun, 1) / 1e9;
    Ok(figures)
}

fn nanoseconds(begun: u64, count: u64) -> f64 {
    (cpu_ns() - begun) as f64 / count.max(1) as f64
}

/// Time of the CPU that this thread had: others on the machine do not count.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// SplitMix64: numbers that look drawn.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_log_can_be_measured() {
        let figures = measure(1 << 20, 8192, 1).unwrap();
        assert!(
            figures.lines > 15_000 && figures.append_ns > 0.0 && figures.hit_ns > 0.0 && figures.index_bytes > 16_384 * 4,
            "{figures:?}"
        );
    }

    /// For figures: `cargo test --release -p tandemfs-emulator a_full_log -- --ignored --nocapture`.
    #[test]
    #[ignore = "takes figures; needs 400 MB and a quiet machine"]
    fn a_full_log_of_32_gb() {
        for run_lines in [1, 8] {
            println!("runs of {run_lines}: {:#?}", measure(256 << 20, (32 << 30) / 4096, run_lines).unwrap());
        }
    }
}
