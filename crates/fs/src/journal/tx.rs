//! A transaction: a bounded list of new line images, plus the space it takes and frees.
//!
//! [TX1] Bounded: at most `TX_LINES_MAX` lines; `format` checks this against the ring at compile time (RULES R11).
//! [TX2] Committed by move, by the mount's commit engine (`ring_commit.rs`, `firmware_commit.rs`): first the record is persistent, then
//!       host copies change (RULES R4), then freed data space is reused (R7); freed metadata space only after the watermark has passed
//!       (R6).
//! [TX3] If dropped without commit, all space taken goes back and there is no other effect. If the device failed it, the space taken is
//!       suspect and goes into quarantine first.
//! [TX4] Data that the record points to is durable before the record: `commit` requires the proofs (RULES R8).
//! [TX5] A line of file data is stored in place by the transaction that updates the sector's checksum, atomically, and only on a drive with
//!       transactions ([`Journal::stores_in_place`](super::Journal::stores_in_place)). If dropped without commit, the sector is unchanged.
//!       The commit drops copies of the sector.
//! [TX6] If nobody knows whether the record is durable, as the device failed the commit, what was taken stays taken until the next mount: the record may
//!       name it, and writes that are planned already would be stored there.

use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Fenced, Flushed, Latencies, Structure};
use tandemfs_format::journal::TX_LINES_MAX;
use tandemfs_format::{Line, LineAddress, PAGE_LINES, Sector};

use super::Host;
use crate::cache::{Owner, Page};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::quota::{Change, Charges, Ids};
use crate::space::Space;
use crate::statistics::count;
use crate::sync::patience;
use crate::wait::may_commit;

pub(crate) struct Tx<'v, V: Host> {
    pub(super) host: &'v V,
    pub(super) addresses: SmallVec<[LineAddress; 8]>,
    pub(super) structures: SmallVec<[Structure; 8]>,
    pub(super) images: SmallVec<[Line; 8]>,
    /// The pages of the lines, pinned until the transaction ends ([CA5] of `cache/`).
    pub(super) pages: SmallVec<[Arc<Page>; 8]>,
    /// Lines of file data, stored in place.
    pub(super) data: Vec<(LineAddress, Line)>,
    /// Their sectors.
    in_place: Vec<Sector>,
    taken: SmallVec<[Space; 8]>,
    freed: SmallVec<[Space; 8]>,
    /// What it takes and frees, and for whom ([QT1] of `quota/`).
    pub(super) charges: Charges,
    /// The device failed an access to space that this transaction took.
    suspect: bool,
}

impl<'v, V: Host> Tx<'v, V> {
    pub(crate) fn new(host: &'v V) -> Self {
        Self {
            host,
            addresses: SmallVec::new(),
            structures: SmallVec::new(),
            images: SmallVec::new(),
            pages: SmallVec::new(),
            data: Vec::new(),
            in_place: Vec::new(),
            taken: SmallVec::new(),
            freed: SmallVec::new(),
            charges: Charges::default(),
            suspect: false,
        }
    }

    pub(crate) fn volume(&self) -> &'v V {
        self.host
    }

    /// A line of a mapping page as this transaction changes it, verified for its owner ([CA9] of `cache/`).
    pub(crate) fn mapping_line(&self, owner: Owner, address: LineAddress) -> Result<Line> {
        match self.position(address) {
            Some(position) => Ok(self.images[position]),
            None => self.host.line_store().mapping_line(owner, address),
        }
    }

    /// The line as this transaction changes it, not verified.
    pub(crate) fn raw_line(&self, structure: Structure, address: LineAddress) -> Result<Line> {
        match self.position(address) {
            Some(position) => Ok(self.images[position]),
            None => self.host.line_store().raw_line(structure, address),
        }
    }

    /// Puts a new image of a line. The caller holds the lock that protects the line (RULES R5).
    pub(crate) fn put(&mut self, structure: Structure, address: LineAddress, image: Line) -> Result<()> {
        if let Some(position) = self.position(address) {
            self.images[position] = image;
            return Ok(());
        }
        self.assert_room();
        let page = self.host.line_store().page(structure, address);
        let page = self.suspect_if_failed(page)?;
        self.addresses.push(address);
        self.structures.push(structure);
        self.images.push(image);
        self.pages.push(page);
        Ok(())
    }

    /// [TX1]
    fn assert_room(&self) {
        assert!(self.addresses.len() + self.data.len() < TX_LINES_MAX, "a transaction of more than {TX_LINES_MAX} lines (R11)");
    }

    /// Puts a new image of a line of a written sector ([TX5]). The caller holds the range lock, and puts the sector's new checksum too.
    pub(crate) fn put_data(&mut self, sector: Sector, line_in_sector: u32, image: Line) {
        assert!(u64::from(line_in_sector) < PAGE_LINES, "a line outside its sector");
        let drive = &self.host.line_store().drive;
        let start = drive.description().line_of_sector(sector).filter(|_| self.host.journal().stores_in_place(drive));
        let Some(start) = start else { unreachable!("data is stored in place where `stores_in_place` says so") };
        let address = start.nth(line_in_sector.into());
        match self.data.iter_mut().find(|(other, _)| *other == address) {
            Some((_, known)) => *known = image,
            None => {
                self.assert_room();
                self.data.push((address, image));
            }
        }
        if !self.in_place.contains(&sector) {
            self.in_place.push(sector);
        }
    }

    fn position(&self, address: LineAddress) -> Option<usize> {
        self.addresses.iter().rposition(|other| *other == address)
    }

    /// Records that the device failed an access to space that this transaction took ([TX3]).
    pub(crate) fn suspect_if_failed<T>(&mut self, result: Result<T>) -> Result<T> {
        self.suspect |= matches!(result, Err(Error::Device(_)));
        result
    }

    /// Marks the space taken as suspect: the device failed an operation that this transaction shared with others ([TX3]).
    pub(crate) fn suspect(&mut self) {
        self.suspect = true;
    }

    /// Records space that the transaction took: it is freed if the transaction is dropped.
    pub(crate) fn took(&mut self, space: Space) {
        self.charges.took(space);
        self.taken.push(space);
    }

    /// What the transaction took and freed since the last call is that of an inode of these ids.
    #[inline]
    pub(crate) fn charge_to(&mut self, ids: Ids) {
        self.charges.attribute(ids);
    }

    /// An inode that uses so much gets other ids ([QT6] of `quota/`).
    pub(crate) fn moves_usage(&mut self, from: Ids, to: Ids, usage: Change) {
        self.charges.moves(from, to, usage);
    }

    /// Frees this space when the transaction commits.
    pub(crate) fn free(&mut self, space: Space) {
        self.charges.freed(space);
        // Space that the transaction itself took is free at once: it never had an owner.
        if let Some(position) = self.taken.iter().position(|taken| *taken == space) {
            self.taken.swap_remove(position);
            self.host.free(space);
        } else {
            self.freed.push(space);
        }
    }

    /// Makes the transaction durable. `_stored` and `_written` prove that the data it points to is durable ([TX4]).
    pub(crate) fn commit(mut self, _stored: Fenced, _written: Flushed) -> Result<u64> {
        let host = self.host;
        debug_assert!(self.charges.is_attributed(), "space of nobody: {:?}", self.charges);
        let frees_at_once = host.journal().is_on_drive();
        may_commit()?;
        let live = &host.line_store().live;
        let since = Latencies::start(live.work.transactions.here());
        let committed = match &host.journal().firmware {
            Some(engine) => self.commit_on_drive(engine),
            None => self.commit_to_ring(),
        };
        let txid = committed.inspect_err(|error| {
            if matches!(error, Error::Stopped { .. }) && !on(Mutant::UnknownGivesBack) {
                self.taken.clear(); // [TX6]
            }
        })?;
        patience::commit(); // [NW4] of `wait.rs`
        for sector in self.in_place.drain(..) {
            host.forget_copies(sector);
        }
        live.waits.journal.end(since);
        count(&live.work.transactions);
        self.taken.clear();
        for space in self.freed.drain(..) {
            match space {
                Space::Region { .. } if frees_at_once || on(Mutant::FreedMetadataAtOnce) => host.free(space), // [FC6]
                Space::Region { region, address, lines } => host.free_lines_after(region, address, lines, txid), // R6
                other => host.free(other),                                                                    // R7
            }
        }
        Ok(txid)
    }
}

impl<V: Host> Drop for Tx<'_, V> {
    fn drop(&mut self) {
        if on(Mutant::RefusedKeepsSpace) && patience::tries() {
            self.taken.clear();
        }
        for space in self.taken.drain(..) {
            // [TX3]
            if self.suspect { self.host.hold_back(space) } else { self.host.free(space) }
        }
    }
}
