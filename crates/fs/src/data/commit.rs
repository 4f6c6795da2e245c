//! Step 6 of a write ([`super::write_path`]): one transaction for all of its blocks and the inode.

use tandemfs_device::{Fenced, Flushed, Structure};
use tandemfs_format::PAGE_LINES;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{PAGE_RECORDS, Record, RecordBytes, vector_lines};
use tandemfs_format::run::{Run, RunShape};

use super::target::{Action, Target};
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::index::block::{BaseChange, Block, space_512_of};
use crate::index::{runs, tree};
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::sync::RwLockWriteGuard;
use crate::types::WriteOptions;
use crate::volume::{Owner, Tx, Volume, now};

/// Proofs that the stored logs and written blocks are durable (RULES R8).
pub(super) type Durable = (Fenced, Flushed);

/// Commits the new state of blocks, and the inode as modified by `change`. The caller holds the blocks' range lock.
pub(super) fn commit(
    mut tx: Tx<'_>,
    file: &InCoreInode,
    targets: &mut [Target<'_>],
    (fenced, flushed): Durable,
    change: impl FnOnce(&mut Inode),
) -> Result<()> {
    let (mut state, mut new) = lock_inode(file)?;
    let owner = state.owner(file.number);
    let mut root = new.root_record();
    for piece in in_pieces(tx.volume(), targets) {
        if piece.len() > 1 && put_run(&mut tx, owner, &mut root, &mut new, piece)? {
            continue;
        }
        for target in piece {
            put(&mut tx, owner, &mut root, &mut new, target)?;
        }
    }
    new.root = root.to_bytes();
    change(&mut new);
    file.commit(tx, &mut state, new, fenced, flushed)?;
    Ok(())
}

/// Locks the inode; returns the lock and a copy of the inode to change.
fn lock_inode(file: &InCoreInode) -> Result<(RwLockWriteGuard<'_, State>, Inode)> {
    let older = match on(Mutant::InodeBeforeLock) {
        true => Some(file.state.read()?.inode.clone()),
        false => None,
    };
    let state = file.state.write()?;
    if state.removed {
        return Err(Error::Stale(file.number));
    }
    let new = older.unwrap_or_else(|| state.inode.clone());
    Ok((state, new))
}

/// Cuts blocks into pieces: blocks that can be one run, and single ones.
fn in_pieces<'t, 'd>(volume: &Volume, mut targets: &'t mut [Target<'d>]) -> impl Iterator<Item = &'t mut [Target<'d>]> {
    let shape = RunShape::new(&volume.geometry, volume.checksums);
    std::iter::from_fn(move || {
        let length = run_length(shape, targets).min(targets.len());
        targets.split_off_mut(..length).filter(|piece| !piece.is_empty())
    })
}

/// How many blocks at the start can be one run: whole ones in fresh pages in a row of one unit, without logs, in one page of records. Else
/// one.
fn run_length(shape: RunShape, targets: &[Target<'_>]) -> usize {
    let Some((block, at)) = targets.first().and_then(|target| Some((target.block, target.fresh_pages(shape.block_pages)?))) else {
        return 1;
    };
    let index = block % PAGE_RECORDS;
    if !index.is_multiple_of(shape.group_blocks) {
        return 1;
    }
    let goes_on = |(ahead, target): &(u64, &Target<'_>)| {
        let there = at.nth(ahead * shape.block_pages * PAGE_LINES);
        target.block == block + ahead && target.fresh_pages(shape.block_pages) == Some(there) && there.unit() == at.unit()
    };
    let most = shape.blocks_max().min(PAGE_RECORDS - index);
    let length = (0..most).zip(targets).take_while(goes_on).count() as u64;
    (length - length % shape.group_blocks).max(1) as usize
}

/// Puts blocks that can be one run into the transaction as one. False, with no change, if there is no room for its checksum lines.
fn put_run(tx: &mut Tx<'_>, owner: Owner, root: &mut RecordBytes, new: &mut Inode, targets: &[Target<'_>]) -> Result<bool> {
    let volume = tx.volume();
    let (shape, blocks) = (RunShape::new(&volume.geometry, volume.checksums), targets.len() as u64);
    let Some(first) = targets.first().and_then(|target| target.fresh_pages(shape.block_pages)) else { return Ok(false) };
    let vector = match volume.checksums {
        false => None,
        true => match runs::take_lines(tx, shape, blocks, Need::Growth) {
            Ok(vector) => Some(vector),
            Err(Error::NoSpace { .. }) => return Ok(false),
            Err(error) => return Err(error),
        },
    };
    if let Some(vector) = vector {
        for (index, group) in (0..).zip(targets.chunks(shape.group_blocks as usize)) {
            let checksums: Vec<u32> = group.iter().flat_map(Target::checksums).copied().collect();
            for (line, image) in (index * shape.group_lines..).zip(vector_lines(&checksums, shape.group_lines)) {
                tx.put(Structure::Mapping, vector.nth(line), image)?;
            }
        }
    }
    for target in targets {
        target.old.free_all(tx, volume);
        let (before, after) =
            (target.old.space_512(volume.log_counting), space_512_of(volume.log_counting, shape.block_pages as u32, &Block::HOLE.logs));
        count_space(new, before, after);
    }
    let need = if targets.iter().any(|target| target.old.has_space()) { Need::Transient } else { Need::Growth };
    let run = Run { first, blocks: blocks as u32, vector, open: false };
    tree::set(tx, volume, owner, root, targets[0].block, Record::Run(run), need)?;
    Ok(true)
}

/// Puts one block's new state into the transaction, and updates the inode's space count.
fn put(tx: &mut Tx<'_>, owner: Owner, root: &mut RecordBytes, new: &mut Inode, target: &mut Target<'_>) -> Result<()> {
    let volume = tx.volume();
    let (base, logs, sectors) = match &mut target.action {
        Action::Undecided => unreachable!("every block was planned"),
        Action::Extent { new, fill, slots, .. } => {
            let change = if *fill { BaseChange::Fill } else { BaseChange::New };
            (change(new.clone()), &*slots, new.count)
        }
        Action::Logs { slots, base, .. } => {
            if !target.in_place.is_empty() {
                *base = target.in_place.put(tx, volume, owner, &target.old)?;
            }
            (BaseChange::To(*base), &*slots, base.sectors())
        }
    };
    let (before, after) = target.old.space_512_change(volume.log_counting, sectors, logs);
    target.old.replace(tx, volume, owner, root, target.block, base, logs, need_of(&target.old))?;
    count_space(new, before, after);
    Ok(())
}

/// New data on a hole is growth. A replacement frees as much metadata as it takes (RULES R14).
fn need_of(old: &Block) -> Need {
    if old.has_space() { Need::Transient } else { Need::Growth }
}

/// Updates the inode's space count, in units of 512 B. It can shrink when sectors are added, because logs over sectors do not count.
pub(super) fn count_space(inode: &mut Inode, before: u64, after: u64) {
    inode.space_512 = (inode.space_512 + after).saturating_sub(before);
}

/// Updates times and set-id bits after a change of data.
pub(super) fn touch(inode: &mut Inode, options: WriteOptions) {
    if !options.keep_times {
        changed(inode);
    }
    if options.kill_set_id {
        kill_set_id(inode);
    }
}

/// Updates the times of an inode whose space or data changes.
pub(super) fn changed(inode: &mut Inode) {
    let time = now();
    (inode.mtime, inode.ctime) = (time, time);
}

/// The set-group-id bit of a mode.
pub(crate) const SET_GROUP_ID: u16 = 0o2000;
/// That and the set-user-id bit.
pub(crate) const SET_ID: u16 = 0o6000;

/// Clears set-user-id, and set-group-id of a group-executable file. On a directory these bits give no rights and stay.
pub(crate) fn kill_set_id(inode: &mut Inode) {
    if inode.is_directory() {
        return;
    }
    inode.mode &= !0o4000;
    if inode.mode & 0o010 != 0 {
        inode.mode &= !SET_GROUP_ID;
    }
}
