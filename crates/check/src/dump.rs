//! Prints structures as text, from the bytes alone: the output of `tandemfs dump`.

use std::io::Write;

use tandemfs_device::{Drive, Structure};
use tandemfs_format::attributes::AttributeValue;
use tandemfs_format::dentry::{Dentry, PAGE_SLOTS};
use tandemfs_format::inode::{INLINE_LINK_MAX, Inode, Timestamp, file_type, state};
use tandemfs_format::lent_room::LentRoom;
use tandemfs_format::mapping::{BlockChecksum, LeafPointer, LogEntry, Record, line_entries};
use tandemfs_format::segment::Region;
use tandemfs_format::{DataAddress, LineAddress, PAGE_LINES};

use crate::attributes;
use crate::error::CheckError;
use crate::image::Image;
use crate::inodes;
use crate::journal;
use crate::lent::{self, Lent};
use crate::mend::Owner;
use crate::namespace::DentryPage;
use crate::paths::printable;
use crate::segments::Segments;
use crate::superblock;
use crate::tree::{Step, Walk, directory_pages};

/// Maximum depth of a printed tree.
const DEPTH_MAX: usize = 256;

/// An image to print. If it was not unmounted cleanly, structures are printed as they are after replay.
pub struct Dump<'d> {
    image: Image<'d>,
}

impl<'d> Dump<'d> {
    /// Reads superblock, journal and segment table.
    ///
    /// # Errors
    /// As [`crate::check`].
    pub fn open(drive: &'d Drive) -> Result<Self, CheckError> {
        drive.recover()?;
        let heads = superblock::read(drive)?;
        let mut image = Image::new(drive, heads.superblock);
        let mut ignored = Vec::new();
        if !image.superblock.clean {
            let pending = journal::pending(&image, &mut ignored)?;
            image.overlay = journal::replay(&image, &pending, &mut ignored)?;
        }
        let segments = Segments::read(&image, &mut ignored);
        image.segments = segments;
        lent::adopt(&mut image, &mut ignored)?;
        Ok(Self { image })
    }

    /// Prints the superblock and the places derived from it.
    ///
    /// # Errors
    /// The output failed.
    pub fn superblock(&self, out: &mut dyn Write) -> Result<(), CheckError> {
        let (superblock, geometry) = (&self.image.superblock, &self.image.geometry);
        writeln!(out, "pair         {}", superblock.pair)?;
        writeln!(out, "uuid         {}", superblock.uuid())?;
        writeln!(out, "stamp        {:016x}, pending {:016x}", superblock.stamps.current, superblock.stamps.pending)?;
        writeln!(out, "label        {}", printable(superblock.label.as_bytes()))?;
        writeln!(
            out,
            "features     incompat {:#x}, ro_compat {:#x}, compat {:#x}",
            superblock.incompat, superblock.ro_compat, superblock.compat
        )?;
        writeln!(
            out,
            "memory       {} B, {} units of 2 MiB, {} fixed",
            geometry.memory_bytes(),
            geometry.memory_units(),
            geometry.fixed_units()
        )?;
        if geometry.map_unit() > 0 {
            let map = geometry.map_units();
            writeln!(out, "maps         units {} to {}", map.start, map.end - 1)?;
        }
        match geometry.block_sectors() {
            0 => writeln!(out, "blocks       none, blocks of {} B", geometry.block_bytes())?,
            sectors => writeln!(out, "blocks       {sectors} sectors of 4 KiB, blocks of {} B", geometry.block_bytes())?,
        }
        writeln!(out, "checksums    {:?}", superblock.checksum_kind)?;
        writeln!(out, "created      {} s since 1970", superblock.created_seconds)?;
        writeln!(out, "clean        {}", superblock.clean)?;
        writeln!(out, "sequence     {}", superblock.sequence)?;
        writeln!(out, "generation   {}", superblock.generation)?;
        writeln!(out, "watermark    {}", superblock.watermark)?;
        for (ring, tail) in superblock.tails.iter().enumerate() {
            writeln!(out, "ring {ring:<7} {} B, tail {} wrap {}", geometry.ring_bytes(), tail.offset_bytes, tail.wrap)?;
        }
        let mut found = Vec::new();
        for Lent { slot, room, word } in lent::read(&self.image, &mut found)? {
            let LentRoom { inode, generation, epoch, size, bytes } = room;
            let reached = room.size_by(word).map_or_else(|| "too much".to_owned(), |size| size.to_string());
            writeln!(
                out,
                "lent {slot:<7} inode {inode} generation {generation}, epoch {epoch}, {bytes} B behind {size}, reached {reached}"
            )?;
        }
        for finding in found {
            writeln!(out, "{finding}")?;
        }
        Ok(())
    }

    /// Prints the segment table.
    ///
    /// # Errors
    /// The output failed.
    pub fn segments(&self, out: &mut dyn Write) -> Result<(), CheckError> {
        for (index, segment) in self.image.segments.all() {
            writeln!(
                out,
                "segment {index}: {:?}, units {}..{}, region unit {}, {} lines below the mark",
                segment.region,
                segment.start_unit,
                segment.start_unit + segment.unit_count,
                segment.region_unit,
                segment.high_water_lines
            )?;
        }
        Ok(())
    }

    /// Prints the records of all rings from their tails on, with the lines that they change.
    ///
    /// # Errors
    /// The output or the device failed.
    pub fn journal(&self, out: &mut dyn Write) -> Result<(), CheckError> {
        for ring in 0..self.image.geometry.ring_count() {
            let mut written = Ok(());
            journal::scan_ring(&self.image, ring, &mut |at, record| {
                if written.is_err() {
                    return;
                }
                let state = if record.txid > self.image.superblock.watermark { "waits" } else { "home" };
                let lines: Vec<String> = record.changes.iter().map(|(line, _)| line.to_string()).collect();
                let (txid, offset, wrap) = (record.txid, at.offset_bytes, at.wrap);
                written = writeln!(out, "ring {ring} offset {offset} wrap {wrap}: record {txid} ({state}), lines {}", lines.join(" "));
            })?;
            written?;
        }
        Ok(())
    }

    /// Prints an inode, its mapping and, of a directory, its entries.
    ///
    /// # Errors
    /// `NotFound` if it is not in use or damaged; errors of the output or the device.
    pub fn inode(&self, number: u64, out: &mut dyn Write) -> Result<(), CheckError> {
        let Some((address, inode)) = inodes::read(&self.image, number) else {
            return Err(CheckError::NotFound { what: format!("inode {number}") });
        };
        writeln!(out, "inode        {number} at line {address}")?;
        writeln!(out, "type         {}", type_name(inode.file_type()))?;
        writeln!(out, "permissions  {:04o}, owner {}, group {}, project {}", inode.mode & 0o7777, inode.uid, inode.gid, inode.project)?;
        let stale = if inode.state & state::TAIL_STALE != 0 { ", bytes after its end are stale" } else { "" };
        writeln!(out, "size         {} B in {} x 512 B{stale}", inode.size, inode.space_512)?;
        writeln!(out, "names        {}, generation {}, parent {}", inode.nlink, inode.generation, inode.parent)?;
        for (name, time) in [("birth", inode.birth), ("accessed", inode.atime), ("modified", inode.mtime), ("changed", inode.ctime)] {
            writeln!(out, "{name:<12} {}", seconds(time))?;
        }
        writeln!(out, "changes      {}, flags {:#x}", inode.change_count, inode.flags)?;
        self.attributes(number, &inode, out)?;
        if inode.has_mapping() {
            self.mapping(number, &inode, out)?;
        } else if inode.file_type() == file_type::SYMLINK {
            let target = inode.root.get(..(inode.size as usize).min(INLINE_LINK_MAX)).unwrap_or(&[]);
            writeln!(out, "target       {}", printable(target))?;
        } else {
            writeln!(out, "device       {:#x}", inode.rdev())?;
        }
        Ok(())
    }

    fn attributes(&self, number: u64, inode: &Inode, out: &mut dyn Write) -> Result<(), CheckError> {
        let (pointer, owner) = (inode.attributes, Owner { inode: number, generation: inode.generation });
        if pointer.is_none() {
            return Ok(());
        }
        let set = match attributes::set(&self.image, owner, pointer, &mut |_, _, _| true) {
            Ok(set) => set,
            Err(_) => return Ok(writeln!(out, "attributes   at line {}, damaged", pointer.address)?),
        };
        writeln!(out, "attributes   {} at line {}, class {}", set.len(), pointer.address, pointer.class)?;
        for attribute in &set {
            let name = printable(&attribute.full_name());
            match &attribute.value {
                AttributeValue::Near(bytes) => writeln!(out, "  {name}: {} B '{}'", bytes.len(), printable(bytes))?,
                AttributeValue::Apart { address, length, crc } => {
                    let verified = attributes::value(&self.image, owner, &attribute.value, &mut |_, _, _| true).is_ok();
                    let damaged = if verified { "" } else { ", damaged" };
                    writeln!(out, "  {name}: {length} B at line {address}, checksum {crc:#010x}{damaged}")?;
                }
            }
        }
        Ok(())
    }

    fn mapping(&self, number: u64, inode: &Inode, out: &mut dyn Write) -> Result<(), CheckError> {
        let mut walk = Walk::new(number, inode);
        let mut left = self.image.geometry.memory_units() * tandemfs_format::UNIT_LINES / PAGE_LINES;
        while let Some(step) = walk.next(&self.image) {
            match step {
                Step::Pointer { span, page, height, .. } => {
                    let block = span.first;
                    let inside = left > 0 && self.image.segments.holds(Region::Mappings, page, PAGE_LINES);
                    left = left.saturating_sub(1);
                    writeln!(out, "block {block}: page at line {page}, height {height}{}", if inside { "" } else { ", misplaced" })?;
                    if inside {
                        walk.enter(&self.image, page, height, block)?;
                    }
                }
                Step::Run(found) => {
                    let checksums = found.run.vector.map_or("no checksums".to_owned(), |line| format!("checksums from line {line}"));
                    let wrong = if found.is_possible { "" } else { ", misplaced" };
                    let open = if found.run.open { ", open" } else { "" };
                    let (first, blocks) = (found.run.first, found.run.blocks);
                    writeln!(out, "block {}: run of {blocks} blocks, pages from line {first}, {checksums}{open}{wrong}", found.first)?;
                    walk.leave_run();
                }
                Step::Block { block, record, .. } => self.block(number, inode, block, record, out)?,
                Step::Lost { span, .. } => writeln!(out, "block {}: lost, {} blocks", span.first, span.count)?,
                Step::Misfit { site, span } => writeln!(out, "block {}: record of another kind in line {}", span.first, site.line())?,
                Step::DamagedLine { line, damage, .. } => writeln!(out, "line {line} is damaged: {damage}")?,
                Step::DamagedRecord { site, damage, .. } => writeln!(out, "line {} is damaged: {damage}", site.line())?,
            }
        }
        Ok(())
    }

    fn block(&self, number: u64, inode: &Inode, block: u64, record: Record, out: &mut dyn Write) -> Result<(), CheckError> {
        match record {
            Record::Memory(page) => {
                writeln!(out, "page {block}: line {page}")?;
                if self.image.segments.holds(Region::Dentries, page, PAGE_LINES) {
                    for (slot, entry) in self.entries(number, inode.generation, block, page) {
                        writeln!(out, "  slot {slot}: inode {} type {} '{}'", entry.inode, entry.file_type, printable(&entry.name))?;
                    }
                }
            }
            Record::Lost { leaf, .. } => {
                writeln!(out, "block {block}: lost")?;
                if let Some(leaf) = leaf {
                    self.leaf(number, inode.generation, block, leaf, out)?;
                }
            }
            Record::SingleLog(log) => writeln!(out, "block {block}: {}", log_text(&log))?,
            Record::Block { extent, leaf } => {
                if let Some(extent) = extent {
                    let checksum = match extent.checksum {
                        BlockChecksum::None => "no checksum".to_owned(),
                        BlockChecksum::Inline(checksum) => format!("checksum {checksum:#010x}"),
                        BlockChecksum::Vector(line) => format!("checksums at line {line}"),
                        BlockChecksum::Open(None) => "open".to_owned(),
                        BlockChecksum::Open(Some(line)) => format!("open, line {line} for its checksums"),
                    };
                    let unwritten = if extent.unwritten { ", unwritten" } else { "" };
                    let overlaid = if extent.overlaid { " with the data logs over them" } else { "" };
                    let (what, first) = match extent.at {
                        DataAddress::Sector(sector) => ("sectors", sector.to_string()),
                        DataAddress::Page(page) => ("pages", format!("line {page}")),
                    };
                    writeln!(out, "block {block}: {} {what} from {first}, {checksum}{overlaid}{unwritten}", extent.count)?;
                }
                if let Some(leaf) = leaf {
                    self.leaf(number, inode.generation, block, leaf, out)?;
                }
            }
            Record::Run(run) => writeln!(out, "block {block}: run of {} blocks", run.blocks)?,
            Record::Pointer { page, height } => writeln!(out, "block {block}: pointer of height {height} to line {page}")?,
        }
        Ok(())
    }

    fn leaf(&self, number: u64, generation: u32, block: u64, leaf: LeafPointer, out: &mut dyn Write) -> Result<(), CheckError> {
        writeln!(out, "block {block}: leaf of {} lines at line {}", leaf.lines(), leaf.address)?;
        if !self.image.segments.holds(Region::Leaves, leaf.address, leaf.lines()) {
            return Ok(writeln!(out, "  misplaced")?);
        }
        for line in 0..leaf.lines() {
            let address = leaf.address.nth(line);
            let bytes = self.image.line(Structure::Mapping, address)?;
            let verified = self.image.place(number, generation, address).verify(&bytes).and_then(|()| line_entries(&bytes, address));
            match verified {
                Ok(entries) => {
                    for log in entries.iter().flatten() {
                        writeln!(out, "  {}", log_text(log))?;
                    }
                }
                Err(corrupt) => writeln!(out, "  {corrupt}")?,
            }
        }
        Ok(())
    }

    /// The entries of a page that verify, with their slots.
    fn entries(&self, directory: u64, generation: u32, block: u64, address: LineAddress) -> Vec<(u64, Dentry)> {
        let Some(page) = DentryPage::load(&self.image, directory, generation, address) else { return Vec::new() };
        (0..PAGE_SLOTS)
            .filter_map(|line| page.entry(line as usize).ok().flatten().map(|entry| (block.saturating_mul(PAGE_SLOTS) + line, entry)))
            .collect()
    }

    /// Prints the tree below a path, depth first, in the order of slots.
    ///
    /// # Errors
    /// `NotFound` if the path does not exist; errors of the output.
    pub fn tree(&self, path: &str, out: &mut dyn Write) -> Result<(), CheckError> {
        let not_found = || CheckError::NotFound { what: format!("'{}'", printable(path.as_bytes())) };
        let mut at = 1;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.look_up(at, name.as_bytes()).ok_or_else(not_found)?;
        }
        let (_, inode) = inodes::read(&self.image, at).ok_or_else(not_found)?;
        writeln!(out, "{}", describe(path, at, Some(&inode)))?;
        let mut stack = vec![OpenTree::new(&self.image, at, inode)];
        while let Some(top) = stack.last_mut() {
            let Some((_, entry)) = top.next(self) else {
                stack.pop();
                continue;
            };
            let number = entry.inode.get();
            let found = inodes::read(&self.image, number).map(|(_, inode)| inode);
            writeln!(out, "{}{}", "  ".repeat(stack.len()), describe(&printable(&entry.name), number, found.as_ref()))?;
            let on_the_way = stack.iter().any(|open| open.number == number);
            if let Some(inode) = found.filter(|inode| inode.is_directory() && !on_the_way && stack.len() < DEPTH_MAX) {
                stack.push(OpenTree::new(&self.image, number, inode));
            }
        }
        Ok(())
    }

    fn look_up(&self, directory: u64, name: &[u8]) -> Option<u64> {
        let (_, inode) = inodes::read(&self.image, directory)?;
        if !inode.is_directory() {
            return None;
        }
        let mut open = OpenTree::new(&self.image, directory, inode);
        std::iter::from_fn(|| open.next(self)).find(|(_, entry)| entry.name == name).map(|(_, entry)| entry.inode.get())
    }
}

/// A directory on the way through a tree.
struct OpenTree {
    number: u64,
    generation: u32,
    pages: std::vec::IntoIter<(u64, LineAddress)>,
    entries: std::vec::IntoIter<(u64, Dentry)>,
}

impl OpenTree {
    fn new(image: &Image<'_>, number: u64, inode: Inode) -> Self {
        let mut pages = Vec::new();
        if inode.is_directory() {
            let most = image.geometry.memory_units() * tandemfs_format::UNIT_LINES / PAGE_LINES;
            directory_pages(image, number, &inode, &mut |block, page| {
                pages.push((block, page));
                (pages.len() as u64) < most
            });
        }
        Self { number, generation: inode.generation, pages: pages.into_iter(), entries: Vec::new().into_iter() }
    }

    fn next(&mut self, dump: &Dump<'_>) -> Option<(u64, Dentry)> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            let (block, page) = self.pages.next()?;
            self.entries = dump.entries(self.number, self.generation, block, page).into_iter();
        }
    }
}

fn describe(name: &str, number: u64, inode: Option<&Inode>) -> String {
    match inode {
        Some(inode) => format!("{name} [inode {number}, {}, {} B]", type_name(inode.file_type()), inode.size),
        None => format!("{name} [inode {number}, not in use or damaged]"),
    }
}

fn log_text(log: &LogEntry) -> String {
    let slot = log.class.bytes();
    format!("log of {} B at {}, slot of {slot} B at line {}, checksum {:#010x}", log.length, log.offset, log.address, log.crc)
}

fn seconds(time: Timestamp) -> String {
    format!("{}.{:09} s since 1970", time.seconds, time.nanoseconds)
}

fn type_name(kind: u16) -> &'static str {
    match kind {
        file_type::DIRECTORY => "directory",
        file_type::REGULAR => "file",
        file_type::SYMLINK => "symbolic link",
        file_type::FIFO => "FIFO",
        file_type::SOCKET => "socket",
        file_type::CHARACTER => "character device",
        file_type::BLOCK => "block device",
        _ => "unknown",
    }
}
