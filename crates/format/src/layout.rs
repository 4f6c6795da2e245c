//! Declares a persistent structure once: the type, compile-time assertions of its layout, and its row in [`TABLES`].

/// One field of a persistent structure, as `docs/FORMAT.md` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Name in the code and in FORMAT.md.
    pub name: &'static str,
    /// Offset from the start of the structure, in bytes.
    pub offset_bytes: usize,
    /// Size in bytes.
    pub size_bytes: usize,
}

/// One persistent structure.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// The type's name.
    pub name: &'static str,
    /// Size in bytes.
    pub size_bytes: usize,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// Declares a persistent structure: `persistent! { pub struct Name [SIZE] { field: Type = OFFSET, … } }`.
/// `IntoBytes` refuses hidden padding, the assertions refuse a moved field.
macro_rules! persistent {
    ($(#[$meta:meta])* pub struct $name:ident [$size:literal] {
        $( $(#[$field_meta:meta])* $field:ident : $type:ty = $offset:literal ),* $(,)?
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        pub struct $name { $( $(#[$field_meta])* pub $field: $type ),* }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(core::mem::offset_of!($name, $field) == $offset); )*
        };
        impl $name {
            /// The structure's rows for FORMAT.md.
            pub const TABLE: crate::layout::Table = crate::layout::Table {
                name: stringify!($name),
                size_bytes: $size,
                fields: &[ $( crate::layout::Field {
                    name: stringify!($field), offset_bytes: $offset, size_bytes: size_of::<$type>(),
                } ),* ],
            };
        }
    };
}

/// Every persistent structure of the format, in the order of `docs/FORMAT.md`.
pub const TABLES: &[Table] = &[
    crate::superblock::SuperblockBytes::TABLE,
    crate::error_counters::ErrorCounterBytes::TABLE,
    crate::superblock::RingTail::TABLE,
    crate::identity::BlockIdentity::TABLE,
    crate::segment::SegmentLine::TABLE,
    crate::lent_room::LentRoomLine::TABLE,
    crate::lent_room::LentWordLine::TABLE,
    crate::allocation_map::PieceHeader::TABLE,
    crate::journal::RecordHeader::TABLE,
    crate::journal::ChangeBytes::TABLE,
    crate::inode::InodeHotLine::TABLE,
    crate::inode::InodeColdLine::TABLE,
    crate::dentry::DentryHeadLine::TABLE,
    crate::dentry::DentryContinuationLine::TABLE,
    crate::mapping::RecordBytes::TABLE,
    crate::mapping::BlockBody::TABLE,
    crate::mapping::SingleLogBody::TABLE,
    crate::mapping::PointerBody::TABLE,
    crate::mapping::MappingLine::TABLE,
    crate::mapping::LogEntryBytes::TABLE,
    crate::mapping::LeafLine::TABLE,
    crate::mapping::ChecksumLine::TABLE,
    crate::attributes::AttributeLine::TABLE,
    crate::attributes::AttributeAddressLine::TABLE,
    crate::attributes::AttributeSetHead::TABLE,
    crate::attributes::AttributeHead::TABLE,
    crate::attributes::AttributeValuePointer::TABLE,
    crate::quota::QuotaChunkHead::TABLE,
    crate::quota::QuotaRecordBytes::TABLE,
];

#[cfg(test)]
mod tests {
    use super::TABLES;

    #[test]
    fn fields_follow_each_other_without_gaps() {
        for table in TABLES {
            let mut end = 0;
            for field in table.fields {
                assert_eq!(field.offset_bytes, end, "{}.{}", table.name, field.name);
                end += field.size_bytes;
            }
            assert_eq!(end, table.size_bytes, "{}", table.name);
        }
    }

    /// Every row `| offset | size | name | meaning |` under a heading `### Name (N bytes)` of FORMAT.md is what the code has.
    #[test]
    fn format_document_tells_the_truth() {
        let document = include_str!("../../../docs/FORMAT.md");
        for table in TABLES {
            let heading = format!("### {} ({} bytes)", table.name, table.size_bytes);
            let section = document.split_once(&heading).unwrap_or_else(|| panic!("FORMAT.md lacks the heading '{heading}'")).1;
            let section = section.split("\n#").next().expect("split yields a first part");
            let rows: Vec<Vec<&str>> = section
                .lines()
                .filter(|line| line.starts_with('|'))
                .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
                .filter(|row: &Vec<&str>| row.first().is_some_and(|cell| cell.parse::<usize>().is_ok()))
                .collect();
            let expected: Vec<[String; 3]> = table
                .fields
                .iter()
                .map(|field| [field.offset_bytes.to_string(), field.size_bytes.to_string(), format!("`{}`", field.name)])
                .collect();
            let found: Vec<[String; 3]> = rows.iter().map(|row| [row[0].to_owned(), row[1].to_owned(), row[2].to_owned()]).collect();
            assert_eq!(found, expected, "FORMAT.md, {}", table.name);
            assert!(rows.iter().all(|row| row.len() == 4 && !row[3].is_empty()), "FORMAT.md, {}: a row has no meaning", table.name);
        }
    }
}
