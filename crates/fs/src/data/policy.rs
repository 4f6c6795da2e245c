//! Chooses how the bytes of a range are stored and through which interface they are read. No other file makes this choice.
//!
//! | mechanism | bytes | path | from |
//! |---|---|---|---|
//! | fresh sectors | whole blocks inside multiples of the threshold; a block whose leaf is full, with its logs | block | RomeFS §3.3, Algorithm 2 line 10 |
//! | data logs | the head and the tail of a write; short overwrites of aligned extents, also of whole blocks | byte | RomeFS §3.3, §3.5.1 |
//! | in place | short overwrites of written sectors, on a drive with transactions | byte | ByteFS §4.6 |
//! | filled | a block that has unwritten sectors | block | RULES R14 |
//!
//! [DP1] A policy sees only numbers: offsets, sizes, a block's base, mount options, drive capabilities. It does no I/O and allocates
//!       nothing. `plan.rs` carries out the choice, and asks again if a zone is full.
//! [DP2] Each write makes one [`WritePolicy`] and uses it to the end, because the threshold can change during a write ([TH3] of
//!       `threshold.rs`).
//! [DP3] If the block zone is full, an overwrite takes the mechanism that frees most space (RULES R14), and growth fails.
//!
//! Not chosen here: whether stores bypass the CPU's caches (depends on the CPU alone; the device layer chooses), and which blocks leave the
//! memory zone (`write_back.rs`).

use std::ops::Range;

use tandemfs_format::{LINE_BYTES, PAGE_LINES};

use crate::alloc::Need;
use crate::index::block::{Base, DataRun};
use crate::mutant::{Mutant, on};
use crate::settings::Settings;
use crate::space::Zone;
use crate::types::Promote;

/// Overwrites of at least this many bytes take fresh pages also in aligned extents: logging and copying them would cost more than rewriting
/// the 2 MiB in time ([KP1] of `kept_place.rs`).
const KEPT_BYTES: u64 = 64 << 10;

/// How the bytes of one block are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mechanism {
    /// Data logs. `None`: slots count as growth if the logs add bytes, as transient if they replace logs.
    Logs(Option<Need>),
    /// The block's own unwritten sectors, filled ([BL4] of `index/block.rs`).
    Fill(DataRun),
    /// Fresh sectors up to the end of the file in the block. They come from the transient room if the block frees as many.
    WholeBlock,
    /// Fresh sectors, as many as the block has. Logs beyond them stay, and new bytes there replace those of logs.
    SameSectors,
    /// Like `WholeBlock`, but from the transient room; the block frees its logs instead of sectors. The last resort: the room gets a whole
    /// block back only when one becomes free.
    WholeBlockFromRoom,
}

/// A part of a write that may overwrite sectors in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overwrite {
    /// Length in bytes.
    pub(super) bytes: usize,
    /// End offset in the block.
    pub(super) end: u32,
    /// Bytes of the block's written sectors.
    pub(super) written_bytes: u32,
    /// A data log covers some of its bytes.
    pub(super) is_hidden: bool,
    /// Unchanged lines of its block were left out of the write.
    pub(super) is_left_over: bool,
}

/// A block for which the block zone has no fresh sectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct FullZone {
    /// The write extends the file.
    pub(super) grows: bool,
    /// Every byte of the write already has space in the block.
    pub(super) replaces: bool,
    /// The block's current number of sectors is enough for the new bytes.
    pub(super) fits: bool,
    /// The block is split off (see `is_split_off`), and no line of it was left out.
    pub(super) is_whole: bool,
    /// The writer asks for sectors instead of new logs where possible.
    pub(super) by_blocks: bool,
    /// The block is no hole.
    pub(super) has_space: bool,
}

/// What one write may do ([DP2]).
#[derive(Debug, Clone, Copy)]
pub(super) struct WritePolicy {
    block_bytes: u64,
    /// Whole blocks inside multiples of this many bytes take the block path; `None`: all bytes do.
    threshold: Option<u32>,
    /// Maximum length in bytes of a part written in place; 0 disables this.
    in_place_bytes: u32,
    /// A page with fewer changed lines than this is written by lines; 0 disables the comparison of pages.
    modified_lines: u32,
    /// The drive accepts lines of sectors in its transactions.
    stores_in_place: bool,
}

impl WritePolicy {
    /// The policy for a write that starts now. `threshold` comes from [`crate::tuning::threshold::Splitting`].
    pub(super) fn new(settings: &Settings, threshold: Option<u32>, block_bytes: u32, stores_in_place: bool) -> Self {
        let (in_place_bytes, modified_lines) = (settings.in_place_bytes(), settings.modified_lines());
        Self { block_bytes: block_bytes.into(), threshold, in_place_bytes, modified_lines, stores_in_place }
    }

    /// A policy for bytes that have to be data logs: no block is split off, nothing goes in place.
    pub(super) fn by_logs(settings: &Settings, block_bytes: u32) -> Self {
        Self::new(settings, Some(1 << 31), block_bytes, false)
    }

    /// Whether the block at `block_start` lies whole within the threshold-aligned part of the write. Such a block takes the block path
    /// without a read (RomeFS §3.3).
    pub(super) fn is_split_off(&self, write: &Range<u64>, block_start: u64) -> bool {
        self.threshold.map(u64::from).is_none_or(|threshold| {
            write.start.next_multiple_of(threshold) <= block_start && block_start + self.block_bytes <= write.end / threshold * threshold
        })
    }

    /// Whether a write of this many bytes leaves blocks of aligned extents where they are, by data logs ([KP1] of `kept_place.rs`).
    pub(super) fn keeps_places(&self, bytes: u64) -> bool {
        self.threshold.is_some() && bytes < KEPT_BYTES
    }

    /// Whether pages from a page cache are compared with their old copies. If all bytes go by blocks, a comparison gains nothing.
    pub(super) fn compares_pages(&self) -> bool {
        self.modified_lines > 0 && self.threshold.is_some()
    }

    /// Whether a page with this many changed lines is written by lines (ByteFS §4.6: R < 1/8).
    pub(super) fn takes_lines(&self, changed_lines: u32) -> bool {
        changed_lines < self.modified_lines
    }

    /// Whether a block is written whole although unchanged lines could be left out, because too many bytes of it have changed.
    pub(super) fn keeps_whole(&self, write: &Range<u64>, block_start: u64, changed_bytes: u64) -> bool {
        self.is_split_off(write, block_start) && changed_bytes * PAGE_LINES >= self.block_bytes * u64::from(self.modified_lines)
    }

    /// Whether both the drive and the mount's commit engine can store lines of sectors in place ([TX5] of `journal/tx.rs`).
    pub(super) fn stores_in_place(&self) -> bool {
        self.stores_in_place
    }

    /// Whether a part goes in place: short, over written sectors, and not under a log ([IP1] of `in_place.rs`; ByteFS §4.6: up to 512 B).
    pub(super) fn goes_in_place(&self, part: &Overwrite) -> bool {
        let of_lines = if part.is_left_over { self.modified_lines.saturating_mul(LINE_BYTES as u32) } else { 0 };
        part.bytes <= self.in_place_bytes.max(of_lines) as usize
            && part.end <= part.written_bytes
            && (!part.is_hidden || on(Mutant::InPlaceOverLog))
    }

    /// Whether parts not written in place try data logs first. `is_whole`: the block is split off, and no line of it was left out.
    /// `by_blocks`: the writer asks for sectors instead of new logs where possible.
    pub(super) fn tries_logs(&self, is_whole: bool, by_blocks: bool) -> bool {
        !is_whole && !by_blocks
    }
}

/// The mechanism for a block that takes the block path. `fits`: the block's current sectors are enough.
pub(super) fn sectors(base: &Base, fits: bool) -> Mechanism {
    match base {
        Base::Unwritten(run) if fits => Mechanism::Fill(*run),
        Base::Written(run) if fits && on(Mutant::WrittenFilledInPlace) => Mechanism::Fill(*run),
        Base::Hole | Base::Lost(_) | Base::Unwritten(_) | Base::Written(_) => Mechanism::WholeBlock,
    }
}

/// Mechanisms tried in turn for a block that found no fresh sectors ([DP3]). Empty: the write fails.
pub(super) fn when_full(full: &FullZone) -> &'static [Mechanism] {
    use Mechanism::{Logs, SameSectors, WholeBlockFromRoom};
    const GROWTH: Option<Need> = Some(Need::Growth);
    const TRANSIENT: Option<Need> = Some(Need::Transient);
    match full {
        FullZone { grows: true, .. } => &[],
        // Logs over sectors are growth and were tried already, except for a writer that asked for sectors.
        FullZone { replaces: true, fits: true, by_blocks: false, .. } => &[SameSectors],
        FullZone { replaces: true, fits: true, by_blocks: true, .. } => &[SameSectors, Logs(None)],
        FullZone { replaces: true, fits: false, .. } => &[Logs(TRANSIENT), SameSectors, WholeBlockFromRoom],
        // New bytes inside the file beside other bytes of the block: the byte path may have space although the block path has none.
        FullZone { replaces: false, is_whole: true, by_blocks: false, has_space: true, .. } => &[Logs(GROWTH)],
        FullZone { replaces: false, .. } => &[],
    }
}

/// How slots of new logs are reserved: as the mechanism says, else by their effect. A plan that merges logs frees their slots and is
/// transient (RULES R14); a plan that adds bytes is growth, also over sectors.
pub(super) fn need_of_logs(chosen: Option<Need>, merges: u64, grows: bool) -> Need {
    chosen.unwrap_or(if merges > 0 && !grows { Need::Transient } else { Need::Growth })
}

/// How fresh sectors or pages are reserved. Only a block that frees as many in the same zone may use the transient room, so overwrites do
/// not shrink that room (RULES R14).
pub(super) fn need_of_extent(base: &Base, zone: Zone, count: u32) -> Need {
    if gives_back(base, zone, count) { Need::Transient } else { Need::Growth }
}

/// The zone for a block for which its home has no room. A home is a wish, not a limit; but new data of a file whose home is the block zone
/// does not take the memory zone from others, unless the block lies there already (RULES R14).
pub(super) fn other_zone(base: &Base, home: Zone) -> Option<Zone> {
    match home {
        Zone::Memory => Some(Zone::Block),
        Zone::Block => base.is_in_memory().then_some(Zone::Memory),
    }
}

/// Whether a block whose data logs take this many lines is written back to its home in the memory zone: it must not take more than it frees.
pub(super) fn writes_back_to_memory(base: &Base, log_lines: u64, count: u32) -> bool {
    gives_back(base, Zone::Memory, count) || log_lines >= u64::from(count) * PAGE_LINES
}

/// Whether a base that is replaced frees this many sectors or pages in a zone.
pub(super) fn gives_back(base: &Base, zone: Zone, count: u32) -> bool {
    base.sectors() >= count && base.is_in_memory() == (zone == Zone::Memory)
}

/// One of a drive's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interface {
    /// Loads.
    Bytes,
    /// Block requests.
    Blocks,
}

/// Maximum bytes of data logs read by loads where the block path reaches them too ([IF2] of `interface.rs`; ByteFS §4.6).
const LOAD_BYTES_MAX: usize = 512;

/// The interface for reading this many bytes of data logs. There is a choice only where the drive's two windows overlap.
pub(super) fn reads_logs_by(bytes: usize, windows_overlap: bool) -> Interface {
    if windows_overlap && bytes > LOAD_BYTES_MAX { Interface::Blocks } else { Interface::Bytes }
}

/// Which sectors, after a read by blocks, are copied to the memory zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promotion {
    /// None.
    None,
    /// Sectors that were also read recently.
    ReadAgain,
    /// All.
    All,
}

/// Bytes of a read that may go by copies. A longer read takes as long by loads as by blocks (RomeFS Table 3: 60 us for 256 KiB, 228 us for
/// 1 MiB), and leaves the zone to reads that gain.
const PROMOTED_READ_BYTES_MAX: usize = 256 << 10;

/// Which sectors are promoted after a read of this many bytes, and whether copies serve it.
pub(super) fn promotion(mode: Promote, read_bytes: usize) -> Promotion {
    match mode {
        Promote::Off => Promotion::None,
        Promote::Hot if read_bytes > PROMOTED_READ_BYTES_MAX => Promotion::None,
        Promote::Hot => Promotion::ReadAgain,
        Promote::EveryRead => Promotion::All,
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_format::mapping::BlockChecksum;
    use tandemfs_format::{DataAddress, LineAddress, Sector};

    use super::*;
    use crate::types::MountOptions;

    const KIB: u64 = 1 << 10;
    const RUN: DataRun = DataRun { at: DataAddress::Sector(Sector::new(16)), count: 4, checksum: BlockChecksum::None, overlaid: false };

    fn policy(threshold: Option<u32>) -> WritePolicy {
        WritePolicy::new(&Settings::new(&MountOptions::DEFAULT), threshold, 64 << 10, true)
    }

    #[test]
    fn whole_blocks_inside_multiples_of_the_threshold_are_split_off() {
        #[rustfmt::skip]
        let cases = [
            // threshold, write, block, split off
            (Some(64), 0..64, 0, true),
            (Some(64), 0..63, 0, false),
            (Some(64), 1..128, 0, false),
            (Some(64), 1..128, 1, true),
            (Some(64), 0..192, 2, true),
            (Some(64), 0..191, 2, false),
            (Some(128), 0..64, 0, false),
            (Some(128), 0..128, 1, true),
            (Some(128), 64..256, 1, false),
            (Some(128), 64..256, 2, true),
            (Some(128), 0..192, 2, false),
            (None, 3..4, 0, true),
        ];
        for (threshold, write, block, expected) in cases {
            let policy = policy(threshold.map(|threshold: u32| threshold << 10));
            let bytes = write.start * KIB..write.end * KIB;
            assert_eq!(policy.is_split_off(&bytes, block * 64 * KIB), expected, "{threshold:?} {write:?} {block}");
        }
    }

    #[test]
    fn logs_are_tried_first_for_what_is_not_split_off() {
        let policy = policy(Some(64 << 10));
        for (is_whole, by_blocks, expected) in [(false, false, true), (true, false, false), (false, true, false), (true, true, false)] {
            assert_eq!(policy.tries_logs(is_whole, by_blocks), expected, "{is_whole} {by_blocks}");
        }
    }

    #[test]
    fn short_overwrites_of_written_sectors_go_in_place() {
        let written = 4 * 4096;
        #[rustfmt::skip]
        let cases = [
            // bytes, end, written, hidden, left over, in place
            (512, 1000, written, false, false, true),
            (513, 1000, written, false, false, false),
            (512, 1000, written, true, false, false),
            (512, written, written, false, false, true),
            (512, written + 1, written, false, false, false),
            (513, 1000, written, false, true, false),
            (512, 1000, written, false, true, true),
            (64, 64, 0, false, false, false),
        ];
        for (bytes, end, written_bytes, is_hidden, is_left_over, expected) in cases {
            let part = Overwrite { bytes, end, written_bytes, is_hidden, is_left_over };
            assert_eq!(policy(None).goes_in_place(&part), expected, "{part:?}");
        }
        let settings = Settings::new(&MountOptions { in_place_bytes: 0, modified_lines: 2, ..MountOptions::DEFAULT });
        let off = WritePolicy::new(&settings, None, 4096, true);
        let part = |bytes, is_left_over| Overwrite { bytes, end: 256, written_bytes: 4096, is_hidden: false, is_left_over };
        assert!(!off.goes_in_place(&part(1, false)) && off.goes_in_place(&part(128, true)) && !off.goes_in_place(&part(129, true)));
    }

    #[test]
    fn pages_are_compared_where_lines_can_be_left_out() {
        assert!(policy(Some(65_536)).compares_pages() && !policy(None).compares_pages());
        assert!(policy(None).takes_lines(7) && !policy(None).takes_lines(8));
        // A block of 64 KiB that is split off stays whole from 8 KiB of changed lines on.
        let keeps = |write: Range<u64>, changed| policy(Some(65_536)).keeps_whole(&write, 0, changed);
        assert!(keeps(0..65_536, 8192) && !keeps(0..65_536, 8191) && !keeps(0..65_535, 65_535));
    }

    #[test]
    fn own_unwritten_sectors_are_filled_where_they_are_enough() {
        let cases = [
            (Base::Hole, true, Mechanism::WholeBlock),
            (Base::Unwritten(RUN), true, Mechanism::Fill(RUN)),
            (Base::Unwritten(RUN), false, Mechanism::WholeBlock),
            (Base::Written(RUN), true, Mechanism::WholeBlock),
            (Base::Written(RUN), false, Mechanism::WholeBlock),
        ];
        for (base, fits, expected) in cases {
            assert_eq!(sectors(&base, fits), expected, "{base:?} {fits}");
        }
    }

    #[test]
    fn a_full_block_zone_refuses_growth_and_lets_overwrites_through() {
        use Mechanism::{Logs, SameSectors, WholeBlockFromRoom};
        let case = |grows, replaces, fits, is_whole, by_blocks, has_space| {
            when_full(&FullZone { grows, replaces, fits, is_whole, by_blocks, has_space })
        };
        for bits in 0..32 {
            let bit = |number: u32| bits >> number & 1 == 1;
            assert_eq!(case(true, bit(0), bit(1), bit(2), bit(3), bit(4)), [], "growth: {bits:b}");
        }
        for is_whole in [false, true] {
            assert_eq!(case(false, true, true, is_whole, false, true), [SameSectors]);
            assert_eq!(case(false, true, true, is_whole, true, true), [SameSectors, Logs(None)]);
            for by_blocks in [false, true] {
                let expected = [Logs(Some(Need::Transient)), SameSectors, WholeBlockFromRoom];
                assert_eq!(case(false, true, false, is_whole, by_blocks, true), expected);
            }
        }
        assert_eq!(case(false, false, false, true, false, true), [Logs(Some(Need::Growth))]);
        assert_eq!(case(false, false, true, true, false, true), [Logs(Some(Need::Growth))]);
        for (is_whole, by_blocks, has_space) in [(false, false, true), (true, true, true), (true, false, false)] {
            assert_eq!(case(false, false, false, is_whole, by_blocks, has_space), [], "{is_whole} {by_blocks} {has_space}");
        }
    }

    #[test]
    fn what_gives_space_back_may_use_the_transient_room() {
        #[rustfmt::skip]
        let of_logs = [
            // chosen, merges, grows, need
            (None, 0, false, Need::Growth),
            (None, 1, false, Need::Transient),
            (None, 1, true, Need::Growth),
            (Some(Need::Transient), 0, false, Need::Transient),
            (Some(Need::Growth), 1, false, Need::Growth),
        ];
        for (chosen, merges, grows, expected) in of_logs {
            assert_eq!(need_of_logs(chosen, merges, grows), expected, "{chosen:?} {merges} {grows}");
        }
        let pages = DataRun { at: DataAddress::Page(LineAddress::new(1 << 20)), ..RUN };
        for (base, zone, count, expected) in [
            (Base::Hole, Zone::Block, 1, Need::Growth),
            (Base::Written(RUN), Zone::Block, 4, Need::Transient),
            (Base::Written(RUN), Zone::Block, 5, Need::Growth),
            (Base::Unwritten(RUN), Zone::Block, 4, Need::Transient),
            (Base::Written(RUN), Zone::Memory, 4, Need::Growth),
            (Base::Written(pages), Zone::Memory, 4, Need::Transient),
            (Base::Written(pages), Zone::Block, 4, Need::Growth),
        ] {
            assert_eq!(need_of_extent(&base, zone, count), expected, "{base:?} {zone:?} {count}");
        }
    }

    #[test]
    fn a_full_home_leaves_the_other_zone() {
        let pages = Base::Written(DataRun { at: DataAddress::Page(LineAddress::new(1 << 20)), ..RUN });
        assert_eq!(other_zone(&Base::Hole, Zone::Memory), Some(Zone::Block));
        assert_eq!(other_zone(&Base::Written(RUN), Zone::Block), None);
        assert_eq!(other_zone(&pages, Zone::Block), Some(Zone::Memory));
        for (base, log_lines, count, expected) in [
            (pages, 1, 4, true),
            (pages, 1, 5, false),
            (Base::Hole, 63, 1, false),
            (Base::Hole, 64, 1, true),
            (Base::Written(RUN), 128, 4, false),
        ] {
            assert_eq!(writes_back_to_memory(&base, log_lines, count), expected, "{base:?} {log_lines} {count}");
        }
    }

    #[test]
    fn reads_choose_an_interface_where_there_are_two() {
        for (bytes, overlap, expected) in
            [(64, true, Interface::Bytes), (512, true, Interface::Bytes), (513, true, Interface::Blocks), (4096, false, Interface::Bytes)]
        {
            assert_eq!(reads_logs_by(bytes, overlap), expected, "{bytes} {overlap}");
        }
        for (mode, bytes, expected) in [
            (Promote::Off, 1, Promotion::None),
            (Promote::Hot, 256 << 10, Promotion::ReadAgain),
            (Promote::Hot, (256 << 10) + 1, Promotion::None),
            (Promote::EveryRead, 1 << 20, Promotion::All),
        ] {
            assert_eq!(promotion(mode, bytes), expected, "{mode:?} {bytes}");
        }
    }
}
