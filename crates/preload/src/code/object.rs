//! A program or library as the loader has it in memory. Only what nobody writes is looked at.

use libc::Elf64_Phdr;

const EXECUTABLE: u32 = libc::PF_X;
const READABLE: u32 = libc::PF_R;
const WRITABLE: u32 = libc::PF_W;
/// `NT_GNU_BUILD_ID`, and the bytes of those that are made of all contents.
const BUILD_ID: u32 = 3;
const BUILD_ID_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// A loaded object, while the loader keeps it.
pub(super) struct Object<'o> {
    base: usize,
    headers: &'o [Elf64_Phdr],
}

impl<'o> Object<'o> {
    pub(super) fn of(found: &'o libc::dl_phdr_info) -> Self {
        let headers = match found.dlpi_phdr.is_null() {
            true => &[],
            // SAFETY: the loader's table of that length, which stays while it shows it.
            false => unsafe { std::slice::from_raw_parts(found.dlpi_phdr, usize::from(found.dlpi_phnum)) },
        };
        Self { base: found.dlpi_addr as usize, headers }
    }

    fn loaded(&self) -> impl Iterator<Item = (usize, &'o Elf64_Phdr)> {
        self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| (self.start(header), header))
    }

    fn start(&self, header: &Elf64_Phdr) -> usize {
        self.base.wrapping_add(header.p_vaddr as usize)
    }

    /// Whether an address is in it.
    pub(super) fn has(&self, address: usize) -> bool {
        self.loaded().any(|(start, header)| address.wrapping_sub(start) < header.p_memsz as usize)
    }

    /// Where a part begins that is described by a header of its own.
    pub(super) fn part(&self, kind: u32) -> Option<usize> {
        self.headers.iter().find(|header| header.p_type == kind).map(|header| self.start(header))
    }

    /// Bytes that can be read and that nobody writes; none if they are not all in one such part.
    pub(super) fn bytes(&self, from: usize, length: usize) -> Option<&'o [u8]> {
        let (start, header) = self.loaded().find(|(start, header)| from.wrapping_sub(*start) < header.p_memsz as usize)?;
        let rest = header.p_memsz as usize - (from - start);
        let is_constant = header.p_flags & (READABLE | WRITABLE) == READABLE;
        // SAFETY: the loader has mapped it so, and keeps it while it shows the object.
        (is_constant && length <= rest).then(|| unsafe { std::slice::from_raw_parts(from as *const u8, length) })
    }

    /// What the linker made of its contents.
    pub(super) fn build_id(&self) -> Option<&'o [u8]> {
        let notes = self.headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
        notes.filter_map(|header| self.bytes(self.start(header), header.p_memsz as usize)).find_map(build_id)
    }

    /// Kind, flags, place and size of each part.
    pub(super) fn layout(&self) -> impl Iterator<Item = (u32, u32, u64, u64, u64)> {
        self.headers.iter().map(|header| (header.p_type, header.p_flags, header.p_vaddr, header.p_filesz, header.p_memsz))
    }

    /// Code, with its addresses; none for code that cannot be read, or can be written.
    pub(super) fn code(&self) -> impl Iterator<Item = Option<(usize, &'o [u8])>> {
        let executable = self.loaded().filter(|(_, header)| header.p_flags & EXECUTABLE != 0 && header.p_memsz > 0);
        executable.map(|(start, header)| Some((start, self.bytes(start, header.p_memsz as usize)?)))
    }
}

/// The build ID among notes: length of the name, of the contents, kind, then both, each filled up to four bytes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, contents) = (number(0) as usize, number(4) as usize);
        let begin = name.checked_next_multiple_of(4)?;
        let end = begin.checked_add(contents)?;
        let found = rest.get(begin..end)?;
        if number(8) == BUILD_ID && rest.starts_with(b"GNU\0") && name == 4 && BUILD_ID_BYTES.contains(&contents) {
            return Some(found);
        }
        notes = rest.get(end.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::build_id;

    #[test]
    fn build_ids_are_found_behind_other_notes() {
        let mut notes = Vec::new();
        let mut add = |kind: u32, name: &[u8], contents: &[u8]| {
            [name.len() as u32, contents.len() as u32, kind].iter().for_each(|number| notes.extend(number.to_le_bytes()));
            for part in [name, contents] {
                notes.extend_from_slice(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        };
        add(3, b"Go\0", &[1; 20]);
        add(1, b"GNU\0", &[2; 17]);
        add(3, b"GNU\0", &[3; 8]);
        add(3, b"GNU\0", &[4; 20]);
        assert_eq!(build_id(&notes), Some(&[4; 20][..]));
        assert_eq!((build_id(&notes[..notes.len() - 1]), build_id(&[])), (None, None));
        assert_eq!(build_id(&[0xff; 40]), None);
    }
}
