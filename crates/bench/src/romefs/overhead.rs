//! Cost of durable writes that the speed table has not: of 1 MiB over both paths, and memory-zone bytes of small scattered writes.

use tandemfs_device::{BlockRequest, Drive, Structure};
use tandemfs_format::{PairSeed, Sector};
use tandemfs_fs::MountOptions;

use super::requests::aligned_bytes;
use super::setting::{Setting, Volume, pattern};
use crate::failure::Result;
use crate::machine;
use crate::measure::{Batch, Jumps, Recorder, interleaved};
use crate::output::Outcome;
use crate::report::{Row, RowTarget};
use crate::scene::{DeviceShape, MIB, Scene};
use crate::segments::{metadata_bytes, segments};

const BLOCK: u64 = 64 << 10;
const SHARE: f64 = 0.95;
const SCATTERED_BYTES_MAX: f64 = 256.0;
const FILE_BYTES: u64 = 64 * MIB;

/// Measures all rows.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("overhead", "durable writes beside their limits");
    let mut rows = vec![large(setting)?];
    rows.extend(scattered(setting)?);
    outcome.rows("Times in library mode; the last rows are bytes of the memory zone", &rows);
    Ok(outcome)
}

/// A durable unaligned 1 MiB write, compared with its whole blocks over the block path alone, the slower of the two paths.
fn large(setting: &Setting) -> Result<Row> {
    let memory_bytes = 128 * MIB;
    let device_bytes = memory_bytes + Setting::block_bytes(FILE_BYTES);
    setting.require(2 * device_bytes)?;
    let scene = Scene::new(&setting.common)?;
    let sized = Setting { memory_bytes, ..setting.clone() };
    let device = sized.timed_device(&scene, "engine", FILE_BYTES)?;
    let volume = Volume::laid_out(&device, FILE_BYTES, &MountOptions::default())?;
    let raw = Drive::new(sized.timed_device(&scene, "raw", FILE_BYTES)?);
    let data = pattern(MIB);
    // Never at a multiple of a block: both ends are unaligned.
    let offset = |jumps: &mut Jumps| jumps.below((FILE_BYTES - 2 * MIB) / BLOCK) * BLOCK + 1 + jumps.below(BLOCK - 1);
    let (mut ours, mut theirs) = (Jumps::new(31), Jumps::new(31));
    volume.fs.reset_statistics();
    let engine = |recorder: &mut Recorder| {
        for _ in 0..8 {
            let at = offset(&mut ours);
            recorder.time(0, || volume.write(at, &data))?;
        }
        volume.settle();
        Ok(())
    };
    let limit = |recorder: &mut Recorder| {
        for _ in 0..8 {
            let at = offset(&mut theirs);
            let first = at.next_multiple_of(BLOCK);
            let blocks = aligned_bytes(at, MIB, BLOCK) / BLOCK;
            let mut requests: Vec<BlockRequest<'_>> = (0..blocks)
                .map(|block| BlockRequest::Write {
                    sector: Sector::new((first + block * BLOCK) / 4096),
                    buffer: (&data[(block * BLOCK) as usize..][..BLOCK as usize]).into(),
                })
                .collect();
            recorder.time(1, || raw.transfer(Structure::Data, &mut requests, &mut || {}).map(drop))?;
        }
        Ok(())
    };
    let mut batches: [Batch<'_>; 2] = [Box::new(engine), Box::new(limit)];
    let samples = interleaved(2, setting.count(200, 40), &mut batches)?;
    drop(batches);
    let work = volume.fs.statistics().work;
    volume.fs.unmount()?;
    let note = format!(
        "limit: the 15 whole blocks of the same requests by the block path alone; {} blocks were composed or written back meanwhile",
        work.block_write_backs
    );
    Ok(Row::beside("1 MiB unaligned write, romefs-a with timing", &samples[0], &samples[1], RowTarget::SpeedAtLeast(SHARE)).note(note))
}

/// Writes of 64 B, one per block: memory-zone bytes per write, including records, leaves and all other structures.
fn scattered(setting: &Setting) -> Result<[Row; 2]> {
    let count = setting.count(1 << 18, 1 << 15) as u64;
    let one = |name: &str, block_bytes: u32, laid_out: bool| -> Result<Row> {
        let file_bytes = (count * u64::from(block_bytes)).next_multiple_of(MIB);
        let memory_bytes = (64 * MIB + count * 512).next_multiple_of(2 * MIB);
        let block_zone = Setting::block_bytes(if laid_out { file_bytes } else { 0 });
        setting.require(memory_bytes + block_zone)?;
        let scene = Scene::new(&setting.common)?;
        let device = scene.device("device", DeviceShape::plain(memory_bytes, block_zone))?;
        let volume = match laid_out {
            true => Volume::laid_out_in(&device, block_bytes, file_bytes, &MountOptions::default())?,
            false => Volume::empty(device.clone(), block_bytes, &MountOptions::default())?,
        };
        let mut jumps = Jumps::new(37);
        let data = [7; 64];
        let taken = || -> Result<(u64, u64)> {
            volume.fs.checkpoint()?;
            let superblock = volume.fs.superblock();
            let segments = segments(&*device, &superblock.geometry, PairSeed::new(superblock.pair))?;
            Ok((volume.fs.space().memory.data_log_bytes, metadata_bytes(&segments)))
        };
        let before = taken()?;
        for number in 0..count {
            if number % 4096 == 0 {
                machine::check()?;
            }
            // An odd stride visits each block once, far from the previous one.
            let block = number.wrapping_mul(0x9e37_79b1) % count.next_power_of_two();
            if block < count {
                volume.write(block * u64::from(block_bytes) + jumps.below(u64::from(block_bytes) - 64), &data)?;
            }
        }
        let after = taken()?;
        volume.fs.unmount()?;
        let [logs, metadata] = [after.0 - before.0, after.1 - before.1].map(|bytes| bytes as f64 / count as f64);
        let note =
            format!("{count} writes, one a block; {logs:.0} B in data logs, {metadata:.0} B in metadata, counted in steps of 256 KiB");
        Ok(Row { target: RowTarget::BytesAtMost(SCATTERED_BYTES_MAX), ..Row::value(name, logs + metadata) }.note(note))
    };
    Ok([one("scattered 64 B write, over a hole", 64 << 10, false)?, one("scattered 64 B write, over blocks", 4 << 10, true)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::romefs::requests::{Alignment, Requests, Size};

    #[test]
    fn an_unaligned_mebibyte_has_fifteen_whole_blocks() {
        let mut requests = Requests::new(1, Size::About(1 << 20), Alignment::Byte, FILE_BYTES);
        for _ in 0..100 {
            let (offset, _) = requests.draw();
            let expected = if offset.is_multiple_of(BLOCK) { 16 } else { 15 };
            assert_eq!(aligned_bytes(offset, MIB, BLOCK) / BLOCK, expected, "{offset}");
        }
    }
}
