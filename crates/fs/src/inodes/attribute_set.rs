//! The extended attributes of one inode in memory: what its lines hold, and the lines that a change takes and frees.
//!
//! `namespace/extended_attributes.rs` decides who may set what, and when a change is made.

use tandemfs_device::Fenced;
use tandemfs_format::attributes::{
    Attribute, AttributePointer, AttributeValue, LIST_BYTES_MAX, NEAR_VALUE_MAX, Namespace, SET_BYTES_MAX, StreamShape, decode_set,
    encode_set, set_bytes,
};
use tandemfs_format::inode::Inode;
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, LineAddress};

use super::State;
use crate::alloc::Need;
use crate::cache::damaged;
use crate::cache::{LineStore, Owner};
use crate::error::{Error, Result};
use crate::index::stream::{self, Planned};
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::Tx;

/// Values that one move stores, in bytes: one inode may have seven thousand of 64 KiB.
const MOVED_BYTES_MAX: usize = 256 << 10;

/// The attributes of one inode in memory.
#[derive(Debug, Default)]
pub(crate) struct AttributeSet {
    pub(crate) list: Vec<Attribute>,
}

/// A value that is stored apart from the set that names it.
pub(crate) struct ApartValue {
    /// Its namespace, and the name in it.
    pub(crate) name: (Namespace, Vec<u8>),
    pub(crate) address: LineAddress,
    pub(crate) length: u32,
    pub(crate) crc: u32,
}

impl ApartValue {
    fn of(attribute: &Attribute) -> Option<Self> {
        let AttributeValue::Apart { address, length, crc } = attribute.value else { return None };
        Some(Self { name: (attribute.namespace, attribute.name.clone()), address, length, crc })
    }
}

/// A change of one attribute; `None` as value removes it.
pub(crate) type Change<'c> = (Namespace, &'c [u8], Option<&'c [u8]>);

/// A planned change of attributes, whose lines are stored once their owner is known.
pub(crate) struct Changed {
    set: AttributeSet,
    pointer: AttributePointer,
    planned: Planned,
    /// Space in separate pages before and after, in units of 512 B.
    space_512: (u64, u64),
}

impl AttributeSet {
    /// Loads the set of an inode from its lines.
    pub(crate) fn load(store: &LineStore, owner: Owner, pointer: AttributePointer) -> Result<Self> {
        if pointer.is_none() {
            return Ok(Self::default());
        }
        let stream = stream::read(store, owner, pointer.address, first_piece(owner, pointer)?)?;
        let list = decode_set(store.pair, pointer, &stream).map_err(|source| Error::Damaged { inode: owner.inode, source })?;
        Ok(Self { list })
    }

    /// Host memory that the set takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_value = |value: &AttributeValue| if let AttributeValue::Near(bytes) = value { bytes.len() } else { 0 };
        self.list.iter().map(|attribute| size_of::<Attribute>() + attribute.name.len() + of_value(&attribute.value)).sum()
    }

    fn position(&self, namespace: Namespace, name: &[u8]) -> Option<usize> {
        self.list.iter().position(|attribute| attribute.namespace == namespace && attribute.name == name)
    }

    pub(crate) fn find(&self, namespace: Namespace, name: &[u8]) -> Option<&Attribute> {
        self.list.get(self.position(namespace, name)?)
    }

    /// Values that are stored apart, sorted by name: name, first line, length in bytes, checksum.
    pub(crate) fn apart(store: &LineStore, owner: Owner, state: &State) -> Result<Vec<ApartValue>> {
        let mut apart: Vec<ApartValue> = match &state.attributes {
            Some(set) => set.list.iter().filter_map(ApartValue::of).collect(),
            None => Self::load(store, owner, state.inode.attributes)?.list.iter().filter_map(ApartValue::of).collect(),
        };
        apart.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(apart)
    }

    fn pieces(&self, store: &LineStore, owner: Owner, pointer: AttributePointer, each: &mut dyn FnMut(LineAddress, u64)) -> Result<()> {
        for (first, lines) in stream::pieces(store, owner, pointer.address, first_piece(owner, pointer)?)? {
            each(first, lines);
        }
        for attribute in &self.list {
            pieces_of_value(store, owner, &attribute.value, each)?;
        }
        Ok(())
    }

    /// Frees all lines of an inode's attributes in a transaction ([EA2] of `namespace/extended_attributes.rs`).
    pub(crate) fn free(tx: &mut Tx<'_>, owner: Owner, state: &State) -> Result<()> {
        let (volume, pointer) = (tx.volume(), state.inode.attributes);
        if pointer.is_none() {
            return Ok(());
        }
        let mut gone = Vec::new();
        let mut note = |first, lines| gone.push((first, lines));
        match &state.attributes {
            Some(set) => set.pieces(volume, owner, pointer, &mut note)?,
            None => Self::load(volume, owner, pointer)?.pieces(volume, owner, pointer, &mut note)?,
        }
        free_lines(tx, gone);
        Ok(())
    }

    /// Space of whole pages of an inode's attributes, as its inode counts it.
    pub(crate) fn space_512(store: &LineStore, owner: Owner, state: &State) -> Result<u64> {
        let of = |set: &Self| {
            let apart: u64 = set.list.iter().map(|attribute| apart_512(&attribute.value)).sum();
            apart + StreamShape::of(set_bytes(&set.list)).space_512()
        };
        match &state.attributes {
            _ if state.inode.attributes.is_none() => Ok(0),
            Some(set) => Ok(of(set)),
            None => Self::load(store, owner, state.inode.attributes).map(|set| of(&set)),
        }
    }

    /// Whether `wants` says yes of an address of the set's lines, or of its values apart.
    pub(crate) fn is_any_wanted(store: &LineStore, owner: Owner, state: &State, wants: &dyn Fn(LineAddress) -> bool) -> Result<bool> {
        let pointer = state.inode.attributes;
        if pointer.is_none() {
            return Ok(false);
        }
        let mut is_any = false;
        let mut note = |first, _| is_any |= wants(first);
        match &state.attributes {
            Some(set) => set.pieces(store, owner, pointer, &mut note)?,
            None => Self::load(store, owner, pointer)?.pieces(store, owner, pointer, &mut note)?,
        }
        Ok(is_any)
    }

    /// Plans to store the set in other lines, and up to [`MOVED_BYTES_MAX`] of those values apart of which `wants` says so.`. `None` if there
    /// is nothing to do. The set is written anew with them: it has their addresses. Also returns whether no wanted value is left.
    pub(crate) fn plan_move(
        &self,
        tx: &mut Tx<'_>,
        owner: Owner,
        pointer: AttributePointer,
        wants: &dyn Fn(LineAddress) -> bool,
    ) -> Result<Option<(Changed, bool)>> {
        let volume = tx.volume();
        let (mut planned, mut gone, mut list, mut bytes) = (Planned::default(), Vec::new(), self.list.clone(), 0);
        let mut is_all = true;
        for attribute in &mut list {
            let AttributeValue::Apart { length, crc, .. } = attribute.value else { continue };
            let mut pieces = Vec::new();
            pieces_of_value(volume, owner, &attribute.value, &mut |first, lines| pieces.push((first, lines)))?;
            if !pieces.iter().any(|(first, _)| wants(*first)) {
                continue;
            }
            if bytes >= MOVED_BYTES_MAX {
                is_all = false;
                break;
            }
            bytes += length as usize;
            let value = value_bytes(volume, owner, &attribute.value)?;
            attribute.value = AttributeValue::Apart { address: planned.add(tx, &value, Need::Move)?, length, crc };
            gone.append(&mut pieces);
        }
        let own = stream::pieces(volume, owner, pointer.address, first_piece(owner, pointer)?)?;
        if gone.is_empty() && !own.iter().any(|(first, _)| wants(*first)) {
            return Ok(None);
        }
        gone.extend(own);
        gone.iter().try_for_each(|(first, lines)| volume.check_object(owner, Region::Attributes, *first, *lines))?;
        let stream = encode_set(volume.pair, &list);
        let pointer = AttributePointer::new(planned.add(tx, &stream, Need::Move)?, stream.len());
        free_lines(tx, gone);
        Ok(Some((Changed { set: Self { list }, pointer, planned, space_512: (0, 0) }, is_all)))
    }

    /// Takes the lines that a change of the set needs, and frees those that it no longer uses. `pointer` is the current place of the set.
    pub(crate) fn plan(&self, tx: &mut Tx<'_>, owner: Owner, pointer: AttributePointer, changes: &[Change<'_>]) -> Result<Changed> {
        let volume = tx.volume();
        let mut list = self.list.clone();
        let mut planned = Planned::default();
        let (mut gone, mut before_512, mut after_512) = (Vec::new(), 0, 0);
        for (namespace, name, value) in changes {
            let old = list.iter().position(|attribute| attribute.namespace == *namespace && attribute.name == *name);
            let old = old.map(|position| list.remove(position));
            if let Some(old) = &old {
                pieces_of_value(volume, owner, &old.value, &mut |first, lines| gone.push((first, lines)))?;
                before_512 += apart_512(&old.value);
            }
            let Some(value) = value else { continue };
            let value = if value.len() <= NEAR_VALUE_MAX {
                AttributeValue::Near(value.to_vec())
            } else {
                let gives_back = old.is_some_and(|old| old.value.length() >= value.len());
                let address = planned.add(tx, value, if gives_back { Need::Transient } else { Need::Growth })?;
                AttributeValue::Apart { address, length: value.len() as u32, crc: volume.pair.data(value) }
            };
            after_512 += apart_512(&value);
            list.push(Attribute { namespace: *namespace, name: name.to_vec(), value });
        }
        let names: usize = list.iter().map(|attribute| attribute.full_name_bytes() + 1).sum();
        let (bytes, bytes_before) = (set_bytes(&list), set_bytes(&self.list));
        let grows = bytes > bytes_before || pointer.is_none();
        if grows && (bytes > SET_BYTES_MAX || names > LIST_BYTES_MAX) {
            return Err(Error::AttributesFull);
        }
        if !pointer.is_none() {
            for (first, lines) in stream::pieces(volume, owner, pointer.address, first_piece(owner, pointer)?)? {
                gone.push((first, lines));
            }
            before_512 += StreamShape::of(bytes_before).space_512();
        }
        let mut new_pointer = AttributePointer::NONE;
        if !list.is_empty() {
            let stream = encode_set(volume.pair, &list);
            let in_place = on(Mutant::AttributesInPlace) && pointer == AttributePointer::new(pointer.address, stream.len());
            let address = match in_place {
                true => planned.add_in_place(pointer.address, &stream, &mut gone),
                false => planned.add(tx, &stream, if grows { Need::Growth } else { Need::Transient })?, // [EA4] there
            };
            new_pointer = AttributePointer::new(address, stream.len());
            after_512 += StreamShape::of(stream.len()).space_512();
        }
        free_lines(tx, gone);
        Ok(Changed { set: Self { list }, pointer: new_pointer, planned, space_512: (before_512, after_512) })
    }
}

impl Changed {
    /// Lines that it stores.
    pub(crate) fn lines(&self) -> u64 {
        self.planned.lines()
    }

    /// Stores the lines for their owner, and updates pointer and space in its inode.
    pub(crate) fn store(self, tx: &mut Tx<'_>, owner: Owner, inode: &mut Inode) -> Result<(AttributeSet, Fenced)> {
        let fenced = self.planned.store(tx, owner)?;
        inode.attributes = self.pointer;
        inode.space_512 = (inode.space_512 + self.space_512.1).saturating_sub(self.space_512.0);
        Ok((self.set, fenced))
    }
}

fn first_piece(owner: Owner, pointer: AttributePointer) -> Result<(u64, bool)> {
    pointer.first_piece().ok_or_else(|| damaged(owner, pointer.address, "attributes_class"))
}

fn piece_of_value(length: u32) -> (u64, bool) {
    let shape = StreamShape::of(length as usize);
    (shape.lines, shape.pages > 0)
}

fn pieces_of_value(store: &LineStore, owner: Owner, value: &AttributeValue, each: &mut dyn FnMut(LineAddress, u64)) -> Result<()> {
    if let AttributeValue::Apart { address, length, .. } = value {
        let pieces = stream::pieces(store, owner, *address, piece_of_value(*length))?;
        // Zeros verify where a line may be empty, also in the place of addresses.
        if pieces.len() as u64 - 1 != StreamShape::of(*length as usize).pages {
            return Err(damaged(owner, *address, "pages"));
        }
        for (first, lines) in pieces {
            each(first, lines);
        }
    }
    Ok(())
}

fn apart_512(value: &AttributeValue) -> u64 {
    if let AttributeValue::Apart { length, .. } = value { StreamShape::of(*length as usize).space_512() } else { 0 }
}

fn free_lines(tx: &mut Tx<'_>, gone: Vec<(LineAddress, u64)>) {
    for (first, lines) in gone {
        tx.free(space::region(Region::Attributes, first, lines));
    }
}

/// The bytes of a value, verified.
pub(crate) fn value_bytes(store: &LineStore, owner: Owner, value: &AttributeValue) -> Result<Vec<u8>> {
    match value {
        AttributeValue::Near(bytes) => Ok(bytes.clone()),
        AttributeValue::Apart { address, length, crc } => {
            let mut bytes = stream::read(store, owner, *address, piece_of_value(*length))?;
            bytes.truncate(*length as usize);
            let found = store.pair.data(&bytes);
            if bytes.len() != *length as usize || found != *crc {
                let source = Corrupt::Checksum { address: *address, found, expected: *crc };
                return Err(Error::Damaged { inode: owner.inode, source });
            }
            Ok(bytes)
        }
    }
}
