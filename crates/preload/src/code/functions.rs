//! Where functions begin and end: the table for unwinding (`.eh_frame_hdr`, `.eh_frame`; Linux Standard Base, *DWARF extensions*).

use std::ops::Range;

use super::object::Object;

/// Version 1, a pointer relative to itself, a count, and a table relative to the header, all of four bytes: what linkers write.
const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const ENTRY_BYTES: usize = 8;
/// A length that is followed by a longer one.
const LONG: u32 = u32::MAX;

/// The functions of an object, in order of their addresses.
pub(super) struct Functions<'o> {
    object: &'o Object<'o>,
    header: usize,
    table: &'o [u8],
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

impl<'o> Functions<'o> {
    /// None where there is no such table, or one of another form.
    pub(super) fn of(object: &'o Object<'o>) -> Option<Self> {
        let header = object.part(libc::PT_GNU_EH_FRAME)?;
        let head = object.bytes(header, 12)?;
        let count = word(&head[8..]) as usize;
        let table = object.bytes(header + 12, count.checked_mul(ENTRY_BYTES)?)?;
        (head[..4] == FORM).then_some(Self { object, header, table })
    }

    /// The function in which an address is; none between functions, and where the table cannot be understood.
    pub(super) fn around(&self, address: usize) -> Option<Range<usize>> {
        let (entries, _) = self.table.as_chunks::<ENTRY_BYTES>();
        let place = |bytes: &[u8]| self.header.wrapping_add_signed(word(bytes).cast_signed() as isize);
        let after = entries.partition_point(|entry| place(&entry[..4]) <= address);
        let entry = entries.get(after.checked_sub(1)?)?;
        let (start, description) = (place(&entry[..4]), place(&entry[4..]));
        let end = start.checked_add(self.length(description)?)?;
        (start..end).contains(&address).then_some(start..end)
    }

    fn word(&self, at: usize) -> Option<u32> {
        self.object.bytes(at, 4).map(word)
    }

    /// The length of a function by its description.
    fn length(&self, description: usize) -> Option<usize> {
        if matches!(self.word(description)?, 0 | LONG) {
            return None;
        }
        let back = self.word(description + 4)? as usize;
        let width = self.width(description.checked_add(4)?.checked_sub(back)?)?;
        let length = self.object.bytes(description + 8 + width, width)?;
        let length = length.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(length).ok()
    }

    /// How many bytes an address has in descriptions that share what is said here.
    fn width(&self, shared: usize) -> Option<usize> {
        let length = self.word(shared)?;
        if matches!(length, 0 | LONG) || self.word(shared + 4)? != 0 {
            return None;
        }
        let mut rest = Bytes(self.object.bytes(shared + 8, (length as usize).checked_sub(4)?)?);
        let version = rest.next()?;
        let letters = rest.text()?;
        let _alignments = (rest.number()?, rest.number()?);
        let _return_register = if version == 1 { u64::from(rest.next()?) } else { rest.number()? };
        let mut letters = letters.iter();
        match letters.next() {
            None => return width_of(0),
            Some(b'z') => rest.number()?,
            Some(_) => return None,
        };
        for letter in letters {
            match letter {
                b'R' => return width_of(rest.next()?),
                b'L' => {
                    rest.next()?;
                }
                b'P' => {
                    let width = width_of(rest.next()?)?;
                    (0..width).try_for_each(|_| rest.next().map(drop))?;
                }
                b'S' | b'B' => {}
                _ => return None,
            }
        }
        width_of(0)
    }
}

/// Bytes of a pointer of some encoding; none for those that vary.
fn width_of(encoding: u8) -> Option<usize> {
    match encoding & 0x07 {
        0 | 4 => Some(8),
        2 => Some(2),
        3 => Some(4),
        _ => None,
    }
}

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    /// A number of seven bits a byte, whose value nobody needs if it is signed or long.
    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_int;

    #[inline(never)]
    extern "C" fn known(number: usize) -> usize {
        std::hint::black_box(number.wrapping_mul(3)) + 1
    }

    #[test]
    fn functions_are_found_where_they_are() {
        extern "C" fn each(found: &libc::dl_phdr_info, _: usize, seen: &mut bool) -> c_int {
            let (object, address) = (Object::of(found), known as *const () as usize);
            if object.has(address) {
                let functions = Functions::of(&object).expect("a table");
                let range = functions.around(address).expect("a function");
                assert_eq!(range.start, address);
                assert!((4..4096).contains(&range.len()), "{range:x?}");
                assert_eq!(functions.around(range.end - 1), Some(range));
                assert!(functions.around(0).is_none() && functions.around(usize::MAX).is_none());
                *seen = true;
            }
            0
        }
        let mut seen = known(1) == 0;
        super::super::iterate(each, &raw mut seen);
        assert!(seen);
    }

    #[test]
    fn numbers_and_texts_end() {
        let mut bytes = Bytes(&[0xe5, 0x8e, 0x26, b'z', b'R', 0, 0x80]);
        assert_eq!((bytes.number(), bytes.text()), (Some(624_485), Some(&b"zR"[..])));
        assert_eq!((bytes.number(), bytes.next(), bytes.text()), (None, None, None));
        assert_eq!((width_of(0x1b), width_of(0), width_of(0x0c), width_of(1)), (Some(4), Some(8), Some(8), None));
    }
}
