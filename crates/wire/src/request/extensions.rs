//! Extensions of requests that create inodes: a security context (`SECURITY_CTX`) and a group (`CREATE_SUPP_GROUP`).

use std::mem::size_of;

use zerocopy::FromBytes;

use super::cursor::{Cursor, Malformed};
use crate::abi;

/// Extensions of a request; most have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extensions<'a> {
    /// The extended attribute that a security module sets on the new inode.
    pub security_context: Option<SecurityContext<'a>>,
    /// Relevant supplementary groups of the caller: the kernel sends the directory's group if the caller is in it.
    pub groups: Groups<'a>,
}

/// An extended attribute to be created together with its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// The attribute's name, such as `security.selinux`.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// Group ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups<'a>(&'a [u8]);

impl<'a> Groups<'a> {
    /// The group ids.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0.chunks_exact(size_of::<u32>()).filter_map(|group| u32::read_from_bytes(group).ok())
    }
}

impl<'a> Extensions<'a> {
    /// Parses blocks of 8-byte multiples; each header has the block's length.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut all = Cursor::new(bytes, &[]);
        let mut extensions = Self::default();
        while !all.is_empty() {
            let header: abi::ExtHeader = all.structure()?;
            let body = (header.size as usize).checked_sub(size_of::<abi::ExtHeader>()).ok_or(Malformed)?;
            let block = Cursor::new(all.take(body)?, &[]);
            let padding = body.next_multiple_of(8) - body;
            if !all.is_empty() {
                all.take(padding)?;
            }
            match header.kind {
                0 => {}
                // No layout for several contexts is defined, and no kernel sends them.
                1 => extensions.security_context = Some(security_context(block)?),
                abi::EXT_GROUPS => extensions.groups = groups(block)?,
                2..=abi::MAX_NR_SECCTX => return Err(Malformed),
                // An extension of a newer kernel; its length is known, so it can be skipped.
                _ => {}
            }
        }
        Ok(extensions)
    }
}

fn security_context(mut block: Cursor<'_>) -> Result<SecurityContext<'_>, Malformed> {
    let header: abi::Secctx = block.structure()?;
    let name = block.name()?;
    Ok(SecurityContext { name, value: block.take(header.size as usize)? })
}

fn groups(mut block: Cursor<'_>) -> Result<Groups<'_>, Malformed> {
    let count: u32 = block.structure()?;
    let bytes = (count as usize).checked_mul(size_of::<u32>()).ok_or(Malformed)?;
    block.take(bytes).map(Groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(8 + body.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn both_extensions_and_one_that_is_not_known_are_read_in_any_order() {
        let context = block(1, b"\x05\0\0\0\0\0\0\0security.test\0label");
        let groups = block(abi::EXT_GROUPS, &[2, 0, 0, 0, 7, 0, 0, 0, 0xe8, 3, 0, 0]);
        let foreign = block(77, b"whatever");
        let expected = SecurityContext { name: b"security.test", value: b"label" };
        for bytes in [[&context[..], &groups, &foreign].concat(), [&foreign[..], &groups, &context].concat()] {
            let extensions = Extensions::parse(&bytes).expect("well formed");
            assert_eq!(extensions.security_context, Some(expected));
            assert_eq!(extensions.groups.iter().collect::<Vec<_>>(), [7, 1000]);
        }
        assert_eq!(Extensions::parse(&[]), Ok(Extensions::default()));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let long_value = block(1, b"\xff\0\0\0\0\0\0\0security.test\0label");
        let many_groups = block(abi::EXT_GROUPS, &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
        let mut long = block(77, b"whatever");
        long[0] = 200;
        let mut short = block(77, b"whatever");
        short[0] = 7;
        let several = block(2, b"\x05\0\0\0\0\0\0\0security.test\0label");
        for bytes in [long_value, many_groups, long, short, several, vec![0; 7]] {
            assert_eq!(Extensions::parse(&bytes), Err(Malformed), "{bytes:?}");
        }
    }
}
