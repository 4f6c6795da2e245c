//! What `/proc/self/mountinfo` says of a mount, and whether the direct door may stand for it.

/// The file system type of TandemFS mounts.
const FILE_SYSTEM_TYPE: &[u8] = b"fuse.tandemfs";

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// Who mounted it.
    pub(crate) user: u32,
    /// Why not to pass this mount by, if there is a reason: what this way to the file system has and others have not.
    pub(crate) objection: Option<&'static str>,
}

/// The TandemFS mount of an id, by the text of `/proc/self/mountinfo`.
pub(crate) fn mounted(text: &[u8], id: u64) -> Option<Mounted> {
    text.split(|byte| *byte == b'\n').find_map(|line| parse(line, id))
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn has(options: &[u8], option: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|has| has == option)
}

/// `id parent major:minor root mountpoint options [tags] - type source superoptions`
fn parse(line: &[u8], id: u64) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    if number::<u64>(fields.next()?)? != id {
        return None;
    }
    let device = fields.nth(1)?;
    let colon = device.iter().position(|byte| *byte == b':')?;
    let (root, _mountpoint, options) = (fields.next()?, fields.next()?, fields.next()?);
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, of_file_system) = (after.next()?, after.next()?, after.next()?);
    if kind != FILE_SYSTEM_TYPE {
        return None;
    }
    let user = of_file_system.split(|byte| *byte == b',').find_map(|option| number(option.strip_prefix(b"user_id=")?));
    let is_read_only_here = has(options, b"ro") && !has(of_file_system, b"ro");
    let objection = match () {
        () if root != b"/" => Some("it shows a part of the file system only"),
        () if has(options, b"idmapped") => Some("it is an id-mapped mount"),
        () if is_read_only_here => Some("it is read-only here, and writable elsewhere"),
        () => None,
    };
    Some(Mounted { major: number(&device[..colon])?, minor: number(&device[colon + 1..])?, user: user?, objection })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 28 0:21 / /proc rw,nosuid shared:5 - proc proc rw
40 28 0:52 / /mnt rw,relatime shared:7 master:2 - fuse.tandemfs /image rw,user_id=0,group_id=0
41 28 0:52 /sub /sub rw - fuse.tandemfs /image rw,user_id=0,group_id=0
42 28 0:52 / /ro ro - fuse.tandemfs /image rw,user_id=1000,group_id=0
43 28 0:52 / /mapped rw,idmapped - fuse.tandemfs /image rw,user_id=0
44 28 0:53 / /all\\040ro ro - fuse.tandemfs /image ro,user_id=0
45 28 0:54 / /cut - fuse.tandemfs
";

    #[test]
    fn a_mount_is_found_by_its_id() {
        let found = |id| mounted(TEXT.as_bytes(), id);
        assert_eq!(found(40), Some(Mounted { major: 0, minor: 52, user: 0, objection: None }));
        assert_eq!(found(44), Some(Mounted { major: 0, minor: 53, user: 0, objection: None }), "read-only for all");
        assert_eq!((found(22), found(45), found(99)), (None, None, None), "another type, a line that is cut, no such mount");
    }

    #[test]
    fn a_way_with_rules_of_its_own_is_not_passed_by() {
        for id in [41, 42, 43] {
            assert!(mounted(TEXT.as_bytes(), id).is_some_and(|mount| mount.objection.is_some()), "{id}");
        }
    }
}
