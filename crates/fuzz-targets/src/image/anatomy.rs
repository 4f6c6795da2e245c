//! The structure of an image, line by line, and how each line is sealed, read with the format crate alone. With it a changed line can get a
//! valid checksum, in place and in the journal records that contain it. After a change of an inode's generation, every line of the inode is
//! sealed again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{BlockPath, BlockRequest, BytePath};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceHeader};
use tandemfs_format::attributes::{AttributePointer, AttributeValue, StreamShape, addresses_of, decode_set, extend_stream};
use tandemfs_format::checksum::{crc32c, crc32c_extend};
use tandemfs_format::geometry::{PIECE_LINES, SEGMENT_TABLE_LINES, SUPERBLOCK_OFFSETS};
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::inode::{Inode, InodeHotLine};
use tandemfs_format::journal::{decode as decode_record, encode as encode_record, record_bytes};
use tandemfs_format::mapping::{BlockChecksum, LeafPointer, LogEntry, Record, RecordBytes, line_entries, line_records};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{Superblock, SuperblockBytes};
use tandemfs_format::{
    EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_LINES, PairSeed, Place, SECTOR_BYTES, Sector, UNIT_LINES,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::shapes::Shape;

/// The type of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Segment,
    InodeHot,
    InodeCold,
    Dentry,
    Mapping,
    Leaf,
    /// Has no checksum of its own.
    Vector,
    /// Of extended attributes.
    Attribute,
}

/// A metadata line and its owner (0: the segment table).
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) line: u64,
    pub(super) kind: Kind,
    pub(super) owner: u64,
}

/// A record above the watermark.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) ring: u32,
    pub(super) wrap: u32,
    pub(super) offset_bytes: u32,
    pub(super) txid: u64,
    pub(super) changes: Vec<(LineAddress, Line)>,
}

/// An image to be changed.
#[derive(Clone)]
pub(super) struct Anatomy {
    pub(super) device: MemoryDevice,
    pub(super) superblock: Superblock,
    pub(super) parts: std::sync::Arc<Vec<Part>>,
    pub(super) pending: Vec<Pending>,
    pub(super) segments: Vec<Segment>,
    /// Valid addresses and numbers: lines of data logs, sectors with data, inodes.
    pub(super) logs: Vec<u64>,
    pub(super) sectors: Vec<u64>,
    pub(super) inodes: Vec<u64>,
    generations: HashMap<u64, u32>,
}

/// The lines as the next mount sees them.
struct View<'a> {
    device: &'a MemoryDevice,
    overlay: BTreeMap<u64, Line>,
}

impl View<'_> {
    fn line(&self, line: u64) -> Line {
        self.overlay.get(&line).copied().unwrap_or_else(|| load_line(self.device, line))
    }
}

fn load_line(device: &MemoryDevice, line: u64) -> Line {
    let mut bytes = EMPTY_LINE;
    // Beyond the end the bytes stay zero.
    drop(BytePath::load(device, line.saturating_mul(LINE_BYTES as u64), &mut bytes));
    bytes
}

impl Anatomy {
    /// A copy to change.
    pub(super) fn of(shape: &Shape) -> Self {
        let mut anatomy = shape.anatomy.clone();
        anatomy.device = anatomy.device.fork();
        anatomy
    }

    /// Reads a valid image.
    pub(super) fn dissect(device: MemoryDevice) -> Result<Self, String> {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let mut bytes = vec![0; 1024];
            drop(BytePath::load(&device, offset, &mut bytes));
            bytes
        });
        let superblock = Superblock::choose([&copies[0], &copies[1]]).map_err(|error| error.to_string())?;
        let pending = if superblock.clean { Vec::new() } else { pending(&device, &superblock) };
        let mut ordered: Vec<&Pending> = pending.iter().collect();
        ordered.sort_by_key(|record| record.txid);
        let overlay = ordered.iter().flat_map(|record| &record.changes).map(|(line, image)| (line.number(), *image)).collect();
        let mut anatomy = Self {
            device: device.clone(),
            superblock,
            parts: std::sync::Arc::default(),
            pending: Vec::new(),
            segments: Vec::new(),
            logs: Vec::new(),
            sectors: Vec::new(),
            inodes: Vec::new(),
            generations: HashMap::new(),
        };
        let parts = anatomy.survey(&View { device: &device, overlay })?;
        anatomy.parts = std::sync::Arc::new(parts);
        anatomy.pending = pending;
        Ok(anatomy)
    }

    fn survey(&mut self, view: &View<'_>) -> Result<Vec<Part>, String> {
        let geometry = self.superblock.geometry;
        let mut parts = Vec::new();
        for index in 0..SEGMENT_TABLE_LINES {
            let address = geometry.segment_line(index);
            let line = view.line(address.number());
            if let Some(segment) =
                Segment::decode(&line, self.pair(), address, geometry.memory_units()).map_err(|error| error.to_string())?
            {
                parts.push(Part { line: address.number(), kind: Kind::Segment, owner: 0 });
                self.segments.push(segment);
            }
        }
        let of_inodes: Vec<Segment> = self.segments.iter().filter(|segment| segment.region == Region::Inodes).copied().collect();
        for segment in of_inodes {
            for at in (0..segment.high_water_lines).step_by(2) {
                let number = (segment.region_unit * UNIT_LINES + at) / 2;
                let line = segment.start_unit * UNIT_LINES + at;
                let decoded =
                    Inode::decode(self.pair(), InodeNumber::new(number), LineAddress::new(line), &view.line(line), &view.line(line + 1));
                let Some(inode) = decoded.map_err(|error| error.to_string())? else { continue };
                parts.push(Part { line, kind: Kind::InodeHot, owner: number });
                parts.push(Part { line: line + 1, kind: Kind::InodeCold, owner: number });
                self.inodes.push(number);
                self.generations.insert(number, inode.generation);
                self.survey_attributes(view, number, inode.attributes, &mut parts);
                if inode.has_mapping() {
                    self.survey_mapping(view, number, inode.root_record(), LineAddress::new(line + 1), &mut parts)?;
                }
            }
        }
        Ok(parts)
    }

    /// The lines in use of an attribute set and of its separate values.
    fn survey_attributes(&self, view: &View<'_>, owner: u64, pointer: AttributePointer, parts: &mut Vec<Part>) {
        let Some(piece) = pointer.first_piece() else { return };
        let stream = survey_stream(view, owner, pointer.address, piece, parts);
        for attribute in decode_set(self.pair(), pointer, &stream).unwrap_or_default() {
            if let AttributeValue::Apart { address, length, .. } = attribute.value {
                let shape = StreamShape::of(length as usize);
                survey_stream(view, owner, address, (shape.lines, shape.pages > 0), parts);
            }
        }
    }

    fn survey_mapping(
        &mut self,
        view: &View<'_>,
        owner: u64,
        root: RecordBytes,
        at: LineAddress,
        parts: &mut Vec<Part>,
    ) -> Result<(), String> {
        let mut waiting = vec![(root, at)];
        while let Some((record, at)) = waiting.pop() {
            match record.decode(at).map_err(|error| error.to_string())? {
                Record::Pointer { page, .. } => {
                    for line in page.number()..page.number() + PAGE_LINES {
                        let bytes = view.line(line);
                        if bytes != EMPTY_LINE {
                            parts.push(Part { line, kind: Kind::Mapping, owner });
                            waiting.extend(line_records(&bytes).map(|record| (record, LineAddress::new(line))));
                        }
                    }
                }
                Record::Memory(page) => {
                    let used = (page.number()..page.number() + PAGE_LINES).filter(|line| view.line(*line) != EMPTY_LINE);
                    parts.extend(used.map(|line| Part { line, kind: Kind::Dentry, owner }));
                }
                Record::SingleLog(log) => self.note_log(&log),
                Record::Run(run) => {
                    let lines = run.shape(&self.superblock.geometry).lines(run.blocks.into());
                    let vector = run.vector.map_or(0, |vector| vector.number());
                    parts.extend((vector..vector + lines).map(|line| Part { line, kind: Kind::Vector, owner }));
                }
                Record::Lost { leaf, .. } => {
                    if let Some(leaf) = leaf {
                        self.survey_leaf(view, owner, leaf, parts)?;
                    }
                }
                Record::Block { extent, leaf } => {
                    if let Some(extent) = extent {
                        self.sectors.extend(extent.at.sector().map(|sector| sector.number()));
                        if let BlockChecksum::Vector(vector) = extent.checksum {
                            let lines = 0..self.superblock.geometry.vector_lines();
                            parts.extend(lines.map(|line| Part { line: vector.nth(line).number(), kind: Kind::Vector, owner }));
                        }
                    }
                    if let Some(leaf) = leaf {
                        self.survey_leaf(view, owner, leaf, parts)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn survey_leaf(&mut self, view: &View<'_>, owner: u64, leaf: LeafPointer, parts: &mut Vec<Part>) -> Result<(), String> {
        for index in 0..leaf.lines() {
            let address = leaf.address.nth(index);
            parts.push(Part { line: address.number(), kind: Kind::Leaf, owner });
            let entries = line_entries(&view.line(address.number()), address).map_err(|error| error.to_string())?;
            entries.iter().flatten().for_each(|log| self.note_log(log));
        }
        Ok(())
    }

    fn note_log(&mut self, log: &LogEntry) {
        self.logs.push(log.address.number());
    }

    pub(super) fn pair(&self) -> PairSeed {
        PairSeed::new(self.superblock.pair)
    }

    // ---- lines --------------------------------------------------------------------------------------------------------------------

    /// A line as the next mount sees it.
    pub(super) fn line(&self, line: u64) -> Line {
        let changes = self.pending.iter().flat_map(|record| record.changes.iter().map(move |change| (record.txid, change)));
        let newest = changes.filter(|(_, (address, _))| address.number() == line).max_by_key(|(txid, _)| *txid);
        newest.map_or_else(|| load_line(&self.device, line), |(_, (_, image))| *image)
    }

    /// The address, owner and generation that seal a line.
    pub(super) fn place(&self, part: Part, line: u64) -> Option<Place> {
        let generation = match part.kind {
            Kind::Vector => return None,
            Kind::Segment | Kind::InodeHot | Kind::InodeCold => 0,
            Kind::Dentry | Kind::Mapping | Kind::Leaf | Kind::Attribute => self.generations.get(&part.owner).copied().unwrap_or(0),
        };
        Some(Place { pair: self.pair(), address: LineAddress::new(line), inode: InodeNumber::new(part.owner), generation })
    }

    /// `bytes` with a valid checksum for a line of this kind and owner at `line`.
    pub(super) fn seal(&self, part: Part, line: u64, bytes: Line) -> Line {
        match self.place(part, line) {
            Some(place) if bytes != EMPTY_LINE => place.seal(bytes),
            _ => bytes,
        }
    }

    /// Writes a line in place and into every journal record that contains it.
    pub(super) fn put(&mut self, line: u64, bytes: Line) {
        drop(BytePath::store(&self.device, line.saturating_mul(LINE_BYTES as u64), &bytes));
        for index in 0..self.pending.len() {
            let mut carries = false;
            for (address, image) in &mut self.pending[index].changes {
                if address.number() == line {
                    *image = bytes;
                    carries = true;
                }
            }
            if carries {
                self.write_record(&self.pending[index]);
            }
        }
    }

    /// Writes a changed line of a part with a valid checksum. If an inode's generation changed, seals its other lines again.
    pub(super) fn put_sealed(&mut self, part: Part, bytes: Line) {
        self.put(part.line, self.seal(part, part.line, bytes));
        if part.kind != Kind::InodeHot {
            return;
        }
        let Ok(hot) = InodeHotLine::read_from_bytes(&bytes) else { return };
        if self.generations.insert(part.owner, hot.generation.get()) == Some(hot.generation.get()) {
            return;
        }
        let parts = std::sync::Arc::clone(&self.parts);
        let owned =
            |other: &&Part| other.owner == part.owner && matches!(other.kind, Kind::Dentry | Kind::Mapping | Kind::Leaf | Kind::Attribute);
        for owned in parts.iter().filter(owned) {
            let bytes = self.line(owned.line);
            self.put(owned.line, self.seal(*owned, owned.line, bytes));
        }
    }

    // ---- journal ------------------------------------------------------------------------------------------------------------------

    /// Writes a record in its place, with a valid checksum.
    pub(super) fn write_record(&self, record: &Pending) {
        let geometry = self.superblock.geometry;
        let seed = self.pair().journal(record.ring, record.wrap, self.superblock.generation);
        let (addresses, images): (Vec<LineAddress>, Vec<Line>) = record.changes.iter().copied().unzip();
        let mut bytes = Vec::new();
        encode_record(&mut bytes, seed, record.wrap, record.txid, &addresses, &images);
        if u64::from(record.offset_bytes) + bytes.len() as u64 <= geometry.ring_bytes() {
            drop(BytePath::store(&self.device, geometry.ring(record.ring).offset_bytes() + u64::from(record.offset_bytes), &bytes));
        }
    }

    /// The position of the next record of a ring: offset and wrap.
    pub(super) fn end_of_ring(&self, ring: u32) -> (u32, u32) {
        let tail = self.superblock.tails[ring as usize];
        let last = self.pending.iter().filter(|record| record.ring == ring).max_by_key(|record| (record.wrap, record.offset_bytes));
        last.map_or((tail.offset_bytes, tail.wrap), |record| (record.offset_bytes + record_bytes(record.changes.len()) as u32, record.wrap))
    }

    // ---- superblock, identity, maps -----------------------------------------------------------------------------------------------

    /// Changes some copies of the superblock; `sealed` recomputes their checksum.
    pub(super) fn change_superblock(&self, copies: &[usize], sealed: bool, change: impl Fn(&mut [u8])) {
        for copy in copies {
            let mut bytes = SuperblockBytes::new_zeroed();
            drop(BytePath::load(&self.device, SUPERBLOCK_OFFSETS[*copy], bytes.as_mut_bytes()));
            change(bytes.as_mut_bytes());
            if sealed {
                bytes.crc = crc32c(&bytes.as_bytes()[4..]).into();
            }
            drop(BytePath::store(&self.device, SUPERBLOCK_OFFSETS[*copy], bytes.as_bytes()));
        }
    }

    /// Changes the identity in the block half.
    pub(super) fn change_identity(&self, sealed: bool, change: impl Fn(&mut [u8])) {
        self.change_sector(0, |sector| {
            let Ok((identity, _)) = BlockIdentity::mut_from_prefix(sector) else { return };
            change(identity.as_mut_bytes());
            if sealed {
                identity.crc = crc32c(&identity.as_bytes()[4..]).into();
            }
        });
    }

    /// Changes a saved map piece: its header and its bits.
    pub(super) fn change_piece(&self, index: u64, sealed: bool, change: impl Fn(&mut [u8], &mut [u8])) {
        let geometry = self.superblock.geometry;
        let at = geometry.piece(index % geometry.piece_count()).offset_bytes();
        let mut bytes = [0; PIECE_LINES as usize * LINE_BYTES];
        drop(BytePath::load(&self.device, at, &mut bytes));
        let (head, bits) = bytes.split_at_mut(LINE_BYTES);
        change(head, bits);
        assert_eq!(bits.len(), PIECE_BYTES);
        if sealed && let Ok(header) = PieceHeader::mut_from_bytes(head) {
            header.crc = crc32c_extend(self.pair().data(&header.as_bytes()[4..]), bits).into();
        }
        drop(BytePath::store(&self.device, at, &bytes));
    }

    /// Changes a sector of the block half.
    pub(super) fn change_sector(&self, sector: u64, change: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; SECTOR_BYTES];
        let mut requests = [BlockRequest::Read { sector: Sector::new(sector), buffer: (&mut bytes).into() }];
        if self.device.transfer(&mut requests, &mut || {}).is_ok() {
            change(&mut bytes);
            drop(self.device.transfer(&mut [BlockRequest::Write { sector: Sector::new(sector), buffer: (&bytes).into() }], &mut || {}));
        }
    }
}

/// The bytes of a stream; its lines in use are added to the parts.
fn survey_stream(view: &View<'_>, owner: u64, first: LineAddress, (lines, names_pages): (u64, bool), parts: &mut Vec<Part>) -> Vec<u8> {
    let mut stream = Vec::new();
    for line in first.number()..first.number() + lines {
        let bytes = view.line(line);
        if bytes != EMPTY_LINE {
            parts.push(Part { line, kind: Kind::Attribute, owner });
        }
        if names_pages {
            for page in addresses_of(&bytes) {
                stream.extend(survey_stream(view, owner, page, (PAGE_LINES, false), parts));
            }
        } else {
            extend_stream(&mut stream, &bytes);
        }
    }
    stream
}

/// Records from the tails on, as a mount finds them.
fn pending(device: &MemoryDevice, superblock: &Superblock) -> Vec<Pending> {
    let geometry = superblock.geometry;
    let pair = PairSeed::new(superblock.pair);
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for ring in 0..geometry.ring_count() {
        let mut bytes = vec![0; geometry.ring_bytes() as usize];
        drop(BytePath::load(device, geometry.ring(ring).offset_bytes(), &mut bytes));
        let tail = superblock.tails[ring as usize];
        let (mut offset, mut wrap) = (tail.offset_bytes as usize, tail.wrap);
        loop {
            match decode_record(&bytes[offset.min(bytes.len())..], pair, ring, wrap, superblock.generation) {
                Some(record) => {
                    if record.txid > superblock.watermark && seen.insert(record.txid) {
                        let (offset_bytes, txid) = (offset as u32, record.txid);
                        found.push(Pending { ring, wrap, offset_bytes, txid, changes: record.changes });
                    }
                    offset += record.bytes;
                }
                None if wrap == tail.wrap && offset != 0 => (offset, wrap) = (0, wrap.wrapping_add(1)),
                None => break,
            }
        }
    }
    found
}
