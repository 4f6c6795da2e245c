//! POSIX access control lists, as Linux exchanges them: the value of `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! [AC1] A value that is not a list is refused without any change. Accepted is what the kernel's `posix_acl_valid` accepts.
//! [AC2] The mode and the access list agree: setting a list sets the mode, a list that only repeats the mode is not kept, and a change of
//!       the mode changes the list (`chmod` sets the mask if there is one).
//! [AC3] A new inode in a directory with a default list gets its list from there, reduced by the requested mode. The umask counts only if
//!       there is no default list. New directories inherit the default list.

use crate::error::{Error, Result};

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NOBODY: u32 = u32::MAX;

const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP_OWNER: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessList {
    entries: Vec<Entry>,
}

impl AccessList {
    /// Decodes a value ([AC1]); `None` for a list without entries, which removes a list.
    ///
    /// # Errors
    /// `InvalidArgument` and `NotSupported` (another version).
    pub fn decode(value: &[u8]) -> Result<Option<Self>> {
        let invalid = Error::InvalidArgument("not an access control list");
        let Some((version, rest)) = value.split_first_chunk::<HEAD_BYTES>() else { return Err(invalid) };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::NotSupported("access control lists have version 2"));
        }
        let (entries, behind) = rest.as_chunks::<ENTRY_BYTES>();
        if !behind.is_empty() {
            return Err(invalid);
        }
        let entries: Vec<Entry> = entries
            .iter()
            .map(|[t0, t1, p0, p1, id @ ..]| Entry {
                tag: u16::from_le_bytes([*t0, *t1]),
                permissions: u16::from_le_bytes([*p0, *p1]),
                id: u32::from_le_bytes(*id),
            })
            .collect();
        match entries.is_empty() {
            true => Ok(None),
            false if is_valid(&entries) => Ok(Some(Self { entries })),
            false => Err(invalid),
        }
    }

    /// Whether a value that is no valid list consists of entries with known tags: Linux tells the two apart.
    pub fn is_taken_apart(value: &[u8]) -> bool {
        let Some((version, rest)) = value.split_first_chunk::<HEAD_BYTES>() else { return false };
        let (entries, behind) = rest.as_chunks::<ENTRY_BYTES>();
        let is_known = |entry: &[u8; ENTRY_BYTES]| {
            let (tag, id) = (u16::from_le_bytes([entry[0], entry[1]]), [entry[4], entry[5], entry[6], entry[7]]);
            match tag {
                OWNER | GROUP_OWNER | MASK | OTHERS => true,
                USER | GROUP => u32::from_le_bytes(id) != NOBODY,
                _ => false,
            }
        };
        u32::from_le_bytes(*version) == VERSION && behind.is_empty() && entries.iter().all(is_known)
    }

    /// Encodes the list as a value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    fn of(&self, tag: u16) -> u16 {
        self.entries.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.permissions)
    }

    fn has_mask(&self) -> bool {
        self.entries.iter().any(|entry| entry.tag == MASK)
    }

    /// The nine mode bits that match the list. The group bits are those of the mask if there is one.
    pub(crate) fn mode_bits(&self) -> u16 {
        let group = if self.has_mask() { MASK } else { GROUP_OWNER };
        self.of(OWNER) << 6 | self.of(group) << 3 | self.of(OTHERS)
    }

    /// Whether the nine mode bits express the whole list.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.tag, OWNER | GROUP_OWNER | OTHERS))
    }

    /// Whether a user who does not own the file has all rights of `want` (read 4, write 2, execute 1): by its own entry, else by one of
    /// its groups, else as others; entries of users and groups are limited by the mask. `group` is the file's.
    pub fn permits(&self, uid: u32, group: u32, is_in_group: &dyn Fn(u32) -> bool, want: u16) -> bool {
        let mask = self.entries.iter().find(|entry| entry.tag == MASK).map_or(7, |entry| entry.permissions);
        let mut has_group = false;
        for entry in &self.entries {
            let allows = entry.permissions & want == want;
            let is_of_group = match entry.tag {
                USER if entry.id == uid => return allows && mask & want == want,
                GROUP_OWNER => is_in_group(group),
                GROUP => is_in_group(entry.id),
                OTHERS => return allows && !has_group,
                _ => false,
            };
            if is_of_group && allows {
                return mask & want == want;
            }
            has_group |= is_of_group;
        }
        false
    }

    /// The list after the nine mode bits were set ([AC2]).
    pub(crate) fn with_mode(&self, mode: u16) -> Self {
        let group = if self.has_mask() { MASK } else { GROUP_OWNER };
        let mut list = self.clone();
        for entry in &mut list.entries {
            match entry.tag {
                OWNER => entry.permissions = mode >> 6 & 7,
                OTHERS => entry.permissions = mode & 7,
                tag if tag == group => entry.permissions = mode >> 3 & 7,
                _ => {}
            }
        }
        list
    }

    /// The access list of an inode created with this mode under this default list, and the nine bits of its mode ([AC3]).
    pub(crate) fn inherited(&self, mode: u16) -> (Self, u16) {
        let list = self.with_mode(self.mode_bits() & mode);
        let bits = list.mode_bits();
        (list, bits)
    }
}

/// Whether each tag is in its place, and users and groups have a mask.
fn is_valid(entries: &[Entry]) -> bool {
    let mut rest = entries.iter().peekable();
    let mut take = |tag: u16, most: usize| {
        let mut count = 0;
        while count < most && rest.next_if(|entry| entry.tag == tag).is_some() {
            count += 1;
        }
        count
    };
    let owner = take(OWNER, 1);
    let users = take(USER, usize::MAX);
    let group = take(GROUP_OWNER, 1);
    let groups = take(GROUP, usize::MAX);
    let mask = take(MASK, 1);
    let others = take(OTHERS, 1);
    let named_have_ids = entries.iter().all(|entry| !matches!(entry.tag, USER | GROUP) || entry.id != NOBODY);
    let permissions_are_known = entries.iter().all(|entry| entry.permissions & !7 == 0);
    (owner, group, others) == (1, 1, 1)
        && rest.next().is_none()
        && (mask == 1 || users + groups == 0)
        && named_have_ids
        && permissions_are_known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn list(entries: &[(u16, u16, u32)]) -> AccessList {
        AccessList::decode(&value(entries)).expect("valid").expect("not empty")
    }

    const MINIMAL: [(u16, u16, u32); 3] = [(OWNER, 6, NOBODY), (GROUP_OWNER, 4, NOBODY), (OTHERS, 4, NOBODY)];
    const FULL: [(u16, u16, u32); 6] =
        [(OWNER, 7, NOBODY), (USER, 6, 1000), (GROUP_OWNER, 5, NOBODY), (GROUP, 7, 50), (MASK, 6, NOBODY), (OTHERS, 1, NOBODY)];

    #[test]
    fn lists_round_trip_and_say_what_a_mode_says() {
        assert_eq!(list(&FULL).encode(), value(&FULL));
        assert_eq!((list(&FULL).mode_bits(), list(&FULL).is_minimal()), (0o761, false));
        assert_eq!((list(&MINIMAL).mode_bits(), list(&MINIMAL).is_minimal()), (0o644, true));
        assert_eq!(AccessList::decode(&value(&[])).expect("valid"), None);
    }

    #[test]
    fn a_user_has_the_rights_of_one_entry_within_the_mask() {
        let permits = |uid: u32, groups: &[u32], want: u16| list(&FULL).permits(uid, 20, &|group| groups.contains(&group), want);
        assert!(permits(1000, &[50, 20], 6) && !permits(1000, &[50, 20], 1), "the user's own entry alone counts");
        assert!(permits(7, &[20], 4) && !permits(7, &[20], 1), "execute is not in the mask");
        assert!(permits(7, &[20, 50], 6), "a further group may have what the first has not");
        assert!(!permits(7, &[20], 2) && !permits(7, &[50], 1), "who is in a group is not one of the others");
        assert!(permits(7, &[], 1) && !permits(7, &[], 4), "the mask does not limit others");
        assert!(list(&MINIMAL).permits(7, 20, &|group| group == 20, 4) && !list(&MINIMAL).permits(7, 20, &|_| false, 2));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for entries in [
            &FULL[1..],
            &FULL[..5],
            &[FULL[0], FULL[1], FULL[2], FULL[5]],
            &[FULL[0], FULL[2], FULL[1], FULL[4], FULL[5]],
            &[FULL[0], FULL[0], FULL[2], FULL[5]],
            &[FULL[0], FULL[2], FULL[4], FULL[4], FULL[5]],
            &[FULL[0], (USER, 6, NOBODY), FULL[2], FULL[4], FULL[5]],
            &[(OWNER, 8, NOBODY), FULL[2], FULL[5]],
            &[FULL[0], FULL[2], FULL[5], FULL[5]],
            &[FULL[0], FULL[2], FULL[5], (64, 0, NOBODY)],
        ] {
            assert!(matches!(AccessList::decode(&value(entries)), Err(Error::InvalidArgument(_))), "{entries:?}");
        }
        assert!(AccessList::decode(&value(&FULL)[..11]).is_err(), "half an entry");
        assert!(AccessList::decode(b"\x02\0").is_err());
        assert!(AccessList::decode(b"").is_err());
        assert!(matches!(AccessList::decode(b"\x01\0\0\0"), Err(Error::NotSupported(_))));
    }

    #[test]
    fn a_mode_sets_the_mask_where_there_is_one() {
        let changed = list(&FULL).with_mode(0o640);
        assert_eq!(changed.mode_bits(), 0o640);
        assert_eq!((changed.of(MASK), changed.of(GROUP_OWNER), changed.of(USER)), (4, 5, 6));
        assert_eq!(list(&MINIMAL).with_mode(0o751).of(GROUP_OWNER), 5);
    }

    #[test]
    fn a_child_gets_what_both_the_list_and_its_mode_allow() {
        let (access, bits) = list(&FULL).inherited(0o644);
        assert_eq!(bits, 0o640);
        assert_eq!((access.of(OWNER), access.of(MASK), access.of(OTHERS), access.of(GROUP_OWNER)), (6, 4, 0, 5));
        let (access, bits) = list(&MINIMAL).inherited(0o666);
        assert_eq!((access.is_minimal(), bits), (true, 0o644));
    }
}
