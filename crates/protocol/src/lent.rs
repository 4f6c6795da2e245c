//! Where a window of a file has its bytes in the memory zone, in a data area: three integers of 8 bytes for each range.
//!
//! [MSG6] A client loads nothing by a list that it has not decoded: ranges lie inside of the window and of the zone, in order, and none
//!        overlaps the next in the file.

use crate::Malformed;

/// Bytes of a window. Windows begin at its multiples.
pub const LENT_WINDOW_BYTES: u64 = 1 << 20;
/// Most ranges of a window; what lies behind is not lent.
pub const LENT_RANGES_MAX: usize = 64;
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
