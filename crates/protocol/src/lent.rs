//! Where a window of a file has its bytes in the memory zone, in a data area: three integers of 8 bytes for each range.
//!
//! [MSG6] A client loads nothing by a list that it has not decoded: ranges lie inside of the window and of the zone, in order, and none
//!        overlaps the next in the file.
//! [MSG7] It maps nothing by a list that it has not decoded: ranges of a mapping are whole pages in the zone, follow each other in the file
//!        without a gap, begin with the mapping, and end behind its last byte.

use tandemfs_ring::PAGE_BYTES;

use crate::Malformed;

/// Bytes of a window. Windows begin at its multiples.
pub const LENT_WINDOW_BYTES: u64 = 1 << 20;
/// Most ranges of a window; what lies behind is not lent.
pub const LENT_RANGES_MAX: usize = 64;
/// Most ranges of a mapping.
pub const MAPPED_RANGES_MAX: usize = 16_384;
/// Bytes of a range in a data area.
pub const LENT_RANGE_BYTES: usize = 24;

/// Bytes of a file that lie in one piece in the memory zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LentRange {
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Offset in the memory zone, in bytes.
    pub zone_offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl LentRange {
    /// As bytes, so many as fit.
    pub fn encode(ranges: impl IntoIterator<Item = Self>, room: usize) -> Vec<u8> {
        let most = LENT_RANGES_MAX.min(room / LENT_RANGE_BYTES);
        let words = ranges.into_iter().take(most).flat_map(|range| [range.file_offset, range.zone_offset, range.bytes]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// The ranges of a mapping as bytes; none if they do not fit.
    pub fn encode_mapped(ranges: &[Self], room: usize) -> Option<Vec<u8>> {
        let fits = ranges.len() <= MAPPED_RANGES_MAX.min(room / LENT_RANGE_BYTES);
        let words = ranges.iter().flat_map(|range| [range.file_offset, range.zone_offset, range.bytes]);
        fits.then(|| words.flat_map(u64::to_le_bytes).collect())
    }

    /// The ranges of a mapping of `length` bytes from an offset of the file, in a zone of so many bytes ([MSG7]).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode_mapped(bytes: &[u8], (offset, length): (u64, u64), zone_bytes: u64) -> Result<Vec<Self>, Malformed> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (ranges, odd) = words.as_chunks::<3>();
        if !rest.is_empty() || !odd.is_empty() || ranges.len() > MAPPED_RANGES_MAX {
            return Err(Malformed::Field("ranges of a mapping of another length"));
        }
        let mut at = offset;
        let mut decoded = Vec::with_capacity(ranges.len());
        for words in ranges {
            let [file_offset, zone_offset, bytes] = words.map(u64::from_le_bytes);
            let is_inside = zone_offset.checked_add(bytes).is_some_and(|end| end <= zone_bytes);
            let is_whole = (zone_offset | bytes).is_multiple_of(PAGE_BYTES) && bytes > 0;
            if file_offset != at || !is_inside || !is_whole {
                return Err(Malformed::Field("a range of a mapping outside"));
            }
            at = at.checked_add(bytes).ok_or(Malformed::Field("a mapping beyond all files"))?;
            decoded.push(Self { file_offset, zone_offset, bytes });
        }
        match at - offset >= length {
            true => Ok(decoded),
            false => Err(Malformed::Field("ranges that are no whole mapping")),
        }
    }

    /// The ranges of the window that begins at `window`, in a zone of so many bytes ([MSG6]).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8], window: u64, zone_bytes: u64) -> Result<Vec<Self>, Malformed> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (ranges, odd) = words.as_chunks::<3>();
        if !rest.is_empty() || !odd.is_empty() || ranges.len() > LENT_RANGES_MAX {
            return Err(Malformed::Field("lent ranges of another length"));
        }
        let end_of_window = window.checked_add(LENT_WINDOW_BYTES).ok_or(Malformed::Field("a lent window beyond all files"))?;
        let mut behind = window;
        let decoded = ranges.iter().map(|words| {
            let [file_offset, zone_offset, bytes] = words.map(u64::from_le_bytes);
            let is_inside = |offset: u64, end: u64| offset.checked_add(bytes).is_some_and(|last| last <= end);
            if bytes == 0 || file_offset < behind || !is_inside(file_offset, end_of_window) || !is_inside(zone_offset, zone_bytes) {
                return Err(Malformed::Field("a lent range outside"));
            }
            behind = file_offset + bytes;
            Ok(Self { file_offset, zone_offset, bytes })
        });
        decoded.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 3 * LENT_WINDOW_BYTES;
    const ZONE: u64 = 64 << 20;

    fn range(file_offset: u64, zone_offset: u64, bytes: u64) -> LentRange {
        LentRange { file_offset: WINDOW + file_offset, zone_offset, bytes }
    }

    #[test]
    fn ranges_survive_their_bytes_as_far_as_there_is_room() {
        let ranges = [range(0, ZONE - 4096, 4096), range(4096, 0, 1), range(LENT_WINDOW_BYTES - 5, 77, 5)];
        let bytes = LentRange::encode(ranges, 1000);
        assert_eq!(LentRange::decode(&bytes, WINDOW, ZONE), Ok(ranges.to_vec()));
        assert_eq!(LentRange::decode(&LentRange::encode(ranges, 71), WINDOW, ZONE), Ok(ranges[..2].to_vec()));
        assert_eq!(LentRange::decode(&[], WINDOW, ZONE), Ok(Vec::new()));
        let many = (0..1000).map(|at| range(at * 8, at * 8, 8));
        assert_eq!(LentRange::encode(many, usize::MAX).len(), LENT_RANGES_MAX * LENT_RANGE_BYTES);
    }

    /// [MSG7]
    #[test]
    fn a_mapping_is_whole_or_malformed() {
        const PAGE: u64 = PAGE_BYTES;
        let range = |file_page: u64, zone_page: u64, pages: u64| LentRange {
            file_offset: file_page * PAGE,
            zone_offset: zone_page * PAGE,
            bytes: pages * PAGE,
        };
        let decode = |ranges: &[LentRange], length| {
            let bytes = LentRange::encode_mapped(ranges, 1000).expect("room");
            LentRange::decode_mapped(&bytes, (2 * PAGE, length), ZONE)
        };
        let whole = [range(2, 9, 3), range(5, ZONE / PAGE - 1, 1)];
        assert_eq!(decode(&whole, 4 * PAGE), Ok(whole.to_vec()));
        assert_eq!(decode(&whole, 3 * PAGE + 1), Ok(whole.to_vec()), "it ends in the last page");
        assert_eq!(LentRange::encode_mapped(&whole, 47), None);
        assert!(LentRange::encode_mapped(&vec![range(0, 0, 1); MAPPED_RANGES_MAX + 1], usize::MAX).is_none());
        for (ranges, length, what) in [
            (&whole[..], 4 * PAGE + 1, "too short"),
            (&whole[1..], PAGE, "begins elsewhere"),
            (&[], 1, "nothing"),
            (&[range(2, 9, 3), range(6, 0, 1)], 4 * PAGE, "a gap"),
            (&[range(2, ZONE / PAGE, 1)], PAGE, "behind the zone"),
            (&[range(2, 0, 0)], 0, "an empty range"),
            (&[LentRange { zone_offset: 1, ..range(2, 0, 1) }], PAGE, "no page"),
            (&[LentRange { zone_offset: u64::MAX - PAGE + 1, ..range(2, 0, 1) }], PAGE, "beyond all zones"),
            (&[LentRange { bytes: PAGE + 8, ..range(2, 0, 1) }], PAGE, "no whole pages"),
        ] {
            assert!(decode(ranges, length).is_err(), "{what}");
        }
        assert!(LentRange::decode_mapped(&[0; 23], (0, 0), ZONE).is_err());
    }

    #[test]
    fn ranges_outside_are_malformed() {
        let is_refused = |ranges: &[LentRange]| LentRange::decode(&LentRange::encode(ranges.to_vec(), 1000), WINDOW, ZONE).is_err();
        assert!(!is_refused(&[range(0, 0, LENT_WINDOW_BYTES)]));
        for wrong in [
            range(0, 0, LENT_WINDOW_BYTES + 1),
            range(LENT_WINDOW_BYTES - 4, 0, 5),
            range(0, ZONE - 4, 5),
            range(0, u64::MAX - 1, 5),
            range(0, 0, 0),
            range(0, 0, u64::MAX),
            LentRange { file_offset: WINDOW - 1, zone_offset: 0, bytes: 1 },
        ] {
            assert!(is_refused(&[wrong]), "{wrong:?}");
        }
        assert!(is_refused(&[range(0, 0, 10), range(9, 100, 10)]), "one over the other");
        assert!(is_refused(&[range(20, 0, 10), range(0, 100, 10)]), "not in order");
        for length in [1, 8, 23, 25, (LENT_RANGES_MAX + 1) * LENT_RANGE_BYTES] {
            assert!(LentRange::decode(&vec![0; length], WINDOW, ZONE).is_err(), "{length} bytes");
        }
        assert!(LentRange::decode(&[], u64::MAX, ZONE).is_err());
    }
}
