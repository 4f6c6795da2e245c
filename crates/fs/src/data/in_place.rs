//! Small overwrites of sectors in place (ByteFS §4.6: direct I/O up to 512 B, and modified lines of written-back pages). The touched lines
//! are stored tagged, in the drive transaction that also updates the sector's checksum (RULES R16, R18).
//!
//! [IP1] Only overwrites of *written* sectors of the block go in place, only on a drive with transactions, and only if no data log covers
//!       their bytes (it would hide them). Other mechanisms handle unwritten sectors and holes, because the rest of these must be filled
//!       too. Sectors are never shared.
//! [IP2] Nothing is stored before the commit. The lines, the checksum and the inode are one transaction, together with the logs and blocks
//!       of the same write, whose data is durable before the first line is stored (RULES R8): so a write is atomic, and a failure before
//!       the commit changes nothing. This is the data journaling of §4.6: small data inside the drive's transaction, large data through
//!       fresh blocks (instead of a journal area) with the commit entry at the end.
//! [IP3] The exclusive range lock, held from before the read of the old lines until COMMIT returns, excludes readers: a tagged store is
//!       visible at once (device [FW2]). The lines are fenced before COMMIT, so later block reads merge them (device [FW1]). The sector is
//!       written by blocks only after it was freed.
//! [IP4] The new checksum is the old one XOR the change of the touched lines (`format::linearity`). Only these lines are read, so the
//!       sector is not verified. This hides no damage: the difference is between the bytes *read* and the bytes *stored*, so a sector that
//!       failed its checksum before, in any line, still fails it, and the next read reports that. So a full overwrite of a damaged line
//!       does not repair the sector; rewriting the sector does.
//! [IP5] Bytes beyond the end of the file in a line with new bytes keep their value (RULES R13). If a truncation left stale bytes in the
//!       last sector, the write that grows the file over them zeroes them; those zeros are parts like any other.
//! [IP6] Old lines come from a file page in host memory if available, except where a log covers the line or beyond the end of the file: there the
//!       page differs from the sector. If a line cannot be loaded, the write uses another mechanism.
//! [IP7] A transaction is bounded (RULES R11): lines beyond [`LINES_MAX`] use the other mechanisms.

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::linearity::{SECTOR_LINES, checksum_change};
use tandemfs_format::{DataAddress, EMPTY_LINE, LINE_BYTES, Line, PAGE_BYTES, Sector};

use super::FileView;
use super::log_plan::Part;
use super::mutants;
use crate::cache::file_pages::Taken;
use crate::error::Result;
use crate::index::block::{Base, Block, DataRun};
use crate::mutant::{Mutant, on};
use crate::statistics::add;
use crate::volume::{Owner, Tx, Volume};

/// Maximum lines of data in one transaction: a quarter of its lines ([IP7]).
pub(super) const LINES_MAX: u32 = 128;
const LINE: u32 = LINE_BYTES as u32;

/// A block with written sectors whose lines may be overwritten in place.
pub(super) struct Place<'p> {
    pub(super) volume: &'p Volume,
    pub(super) view: &'p FileView,
    pub(super) block: &'p Block,
    /// Where the block starts in the file.
    pub(super) block_start: u64,
    /// The block's first sector.
    pub(super) first: Sector,
    /// Available copies of old pages.
    pub(super) pages: Option<&'p Taken>,
}

/// Lines of a block's sectors that the transaction overwrites. Small while empty, because every block of every write has one.
#[derive(Default)]
pub(super) struct InPlace {
    /// Index of the sector in the block, of the line in the sector, and the line's new content.
    lines: Vec<(u32, u32, Line)>,
    /// Index of a sector in the block, and the value XORed into its checksum.
    checksums: Vec<(u32, u32)>,
}

/// A line touched by parts.
struct Touched {
    /// Index in the block.
    line: u32,
    /// Its old content; `None` until loaded.
    old: Option<Line>,
}

impl Place<'_> {
    /// Finds old lines that need no load: lines whose old content is not needed, and lines of file pages ([IP6]).
    fn find_old(&self, parts: &[Part<'_>], touched: &mut [Touched]) {
        for touched in touched {
            let (start, end) = (touched.line * LINE, (touched.line + 1) * LINE);
            if !self.volume.checksums && parts.iter().any(|part| part.offset <= start && end <= part.end()) {
                touched.old = Some(EMPTY_LINE);
                continue;
            }
            let shows_the_sector = !self.block.logs().any(|log| log.offset < end && start < log.end());
            let at = self.block_start + u64::from(start);
            if (shows_the_sector || on(Mutant::OldLineUnderLog)) && at + u64::from(LINE) <= self.view.size {
                let page = self.pages.and_then(|pages| pages.page(at / PAGE_BYTES as u64));
                let lines = page.map(|page| page.as_chunks::<LINE_BYTES>().0);
                touched.old = lines.map(|lines| lines[at as usize % PAGE_BYTES / LINE_BYTES]);
            }
        }
    }

    /// Loads the other lines. Consecutive lines of a sector share one load.
    fn load_old(&self, touched: &mut [Touched]) -> Result<()> {
        let follows = |one: &Touched, next: &Touched| {
            one.old.is_none() && next.old.is_none() && one.line + 1 == next.line && !next.line.is_multiple_of(SECTOR_LINES as u32)
        };
        for run in touched.chunk_by_mut(follows) {
            if run[0].old.is_some() {
                continue;
            }
            let (sector, line) = (run[0].line / SECTOR_LINES as u32, run[0].line % SECTOR_LINES as u32);
            let Some(start) = self.volume.drive.description().line_of_sector(self.first.nth(sector.into())) else {
                unreachable!("only where the windows overlap is anything stored in place")
            };
            let mut lines: SmallVec<[Line; 9]> = SmallVec::from_elem(EMPTY_LINE, run.len());
            self.volume.drive.load(Structure::Data, start.nth(line.into()), lines.as_flattened_mut())?;
            for (touched, line) in run.iter_mut().zip(lines) {
                touched.old = Some(line);
            }
        }
        Ok(())
    }
}

impl InPlace {
    /// Plans the lines touched by parts, at most `lines_max` ([IP7]). `None` if there are none or too many, or if an old line cannot be
    /// loaded; then the parts use another mechanism.
    pub(super) fn plan(place: &Place<'_>, parts: &[Part<'_>], lines_max: u32) -> Option<Self> {
        let mut touched: SmallVec<[Touched; 9]> = SmallVec::new();
        for line in parts.iter().flat_map(|part| part.offset / LINE..part.end().div_ceil(LINE)) {
            if touched.last().is_none_or(|last| last.line != line) {
                touched.push(Touched { line, old: None });
            }
        }
        if touched.is_empty() || touched.len() as u32 > lines_max {
            return None;
        }
        place.find_old(parts, &mut touched);
        if let Err(error) = place.load_old(&mut touched) {
            tracing::debug!(%error, "lines that cannot be loaded are not written in place"); // [IP6]
            return None;
        }
        Some(Self::changed(place.volume, parts, &touched))
    }

    /// The new content of the touched lines, and the checksum changes of their sectors.
    fn changed(volume: &Volume, parts: &[Part<'_>], touched: &[Touched]) -> Self {
        let mut planned = Self::default();
        for touched in touched {
            let (start, old) = (touched.line * LINE, touched.old.unwrap_or(EMPTY_LINE));
            let mut new = old;
            for part in parts {
                let (from, to) = (part.offset.max(start), part.end().min(start + LINE));
                if from < to {
                    let bytes = part.data.slice((from - part.offset) as usize..(to - part.offset) as usize);
                    bytes.copy_to(&mut new[(from - start) as usize..(to - start) as usize]); // [SM3]
                }
            }
            let (sector, line) = (touched.line / SECTOR_LINES as u32, touched.line % SECTOR_LINES as u32);
            planned.lines.push((sector, line, new));
            if !volume.checksums {
                continue;
            }
            let change = checksum_change(line as usize, &old, &new); // [IP4]
            match planned.checksums.last_mut().filter(|(of, _)| *of == sector) {
                Some((_, changes)) => *changes ^= change,
                None => planned.checksums.push((sector, change)),
            }
        }
        planned
    }

    /// Number of lines written in place.
    pub(super) fn lines(&self) -> u32 {
        self.lines.len() as u32
    }

    /// Whether no line is written in place.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Puts the lines and the updated checksums into the write's transaction ([IP2]). Returns the block's new base. The caller holds the
    /// inode lock.
    pub(super) fn put(&self, tx: &mut Tx<'_>, volume: &Volume, owner: Owner, block: &Block) -> Result<Base> {
        let Base::Written(DataRun { at: DataAddress::Sector(first), .. }) = block.base else { return Ok(block.base) };
        for (sector, line, image) in &self.lines {
            let sector = first.nth((*sector).into());
            mutants::put_data(tx, sector, *line, image)?;
        }
        add(&volume.live.work.in_place_lines, self.lines.len() as u64);
        if on(Mutant::ChecksumNotRenewed) {
            return Ok(block.base);
        }
        block.renew_checksums(tx, volume, owner, &self.checksums)
    }
}
