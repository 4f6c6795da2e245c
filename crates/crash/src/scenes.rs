//! Initial states of workloads: a small tree with free space, and file systems at their limits, so that writeback, checkpoints, the wrap of
//! a ring and full zones happen inside the operation that is cut.

use tandemfs_device::PersistenceDomain;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{FormatOptions, MountOptions, Threshold};

use crate::cpu::stay_on_one_cpu;
use crate::explore::PREPARATION;
use crate::harness::{Harness, Setting};
use crate::memory_device::MemoryDevice;
use crate::model::Model;
use crate::operation::Operation;

/// A prepared file system and what is done on it after the mount, before the operations that are cut.
#[derive(Debug, Clone)]
pub struct Scene {
    /// Name in messages.
    pub name: &'static str,
    /// Sizes and options.
    pub setting: Setting,
    /// Done before the unmount that the exploration starts from.
    pub preparation: Vec<Operation>,
    /// Done after the mount; not cut.
    pub prefix: Vec<Operation>,
}

/// Bytes of a data log that fills the memory zone, and from one to the next.
const LOG_BYTES: u32 = 4096;
/// Largest file that fills a zone, in bytes.
const FILLED_BYTES_MAX: u64 = 1 << 30;
/// Most steps of a filling; a zone that is not full by then is too large for a scene.
const STEPS_MAX: u64 = 100_000;

impl Scene {
    /// The small tree.
    pub fn small(setting: &Setting) -> Self {
        Self { name: "small tree", setting: setting.clone(), preparation: PREPARATION.to_vec(), prefix: Vec::new() }
    }

    /// All scenes of a setting.
    ///
    /// # Errors
    /// Where a preparation disagrees with the model.
    pub fn all(setting: &Setting) -> Result<Vec<Self>, String> {
        let ring = if setting.commits_on_drive() { None } else { Some(Self::ring_at_its_end(setting)?) };
        let others = vec![
            Self::small(setting),
            Self::full(setting, "memory zone full of logs", &[Filling::Logs])?,
            Self::full(setting, "block zone full", &[Filling::Blocks])?,
            Self::full(setting, "both zones full", &[Filling::Blocks, Filling::Logs])?,
            Self::few_pages(setting),
        ];
        Ok(others.into_iter().chain(ring).collect())
    }

    /// The next record needs a checkpoint, and goes to the front of its ring. The thread must stay on its CPU: a CPU has its ring.
    fn ring_at_its_end(setting: &Setting) -> Result<Self, String> {
        stay_on_one_cpu()?;
        let mut scene = Self { name: "ring at its end", ..Self::small(setting) };
        let (model, device) = scene.prepare()?;
        let mut harness = Harness::new(device, &setting.mount, model)?;
        let small = Operation::Truncate("a", 300); // no record is smaller
        let before = harness.fs.statistics().work.checkpoints;
        let mut count = 0;
        while harness.fs.statistics().work.checkpoints == before {
            harness.perform(&small).map_err(|error| format!("filling a ring: {error}"))?;
            count += 1;
            if count == STEPS_MAX {
                return Err("no ring becomes full".into());
            }
        }
        scene.prefix = vec![small; count as usize - 1];
        Ok(scene)
    }

    /// The next transaction of the drive finds all numbers used, so that its log is cleaned. The caller has let them end at `last`.
    pub fn numbers_at_their_end(setting: &Setting, last: u32) -> Self {
        let prefix = vec![Operation::Truncate("a", 300); last as usize];
        Self { name: "transaction numbers at their end", prefix, ..Self::small(setting) }
    }

    /// Zones that are full but for the transient room.
    fn full(setting: &Setting, name: &'static str, fillings: &[Filling]) -> Result<Self, String> {
        let mut scene = Self { name, ..Self::small(setting) };
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
        for operation in &scene.preparation {
            harness.apply(operation)?;
        }
        for filling in fillings {
            let path = match filling {
                Filling::Logs => "full-logs",
                Filling::Blocks => "full-blocks",
            };
            let mut steps = vec![Operation::Create(path)];
            // Adjacent logs, none of them a whole block; or whole blocks. Then small logs fill the rest of the zone.
            let steps_of: &[(u32, u64)] = match filling {
                Filling::Logs => &[(LOG_BYTES.min(setting.format.block_bytes / 2), LOG_BYTES.into()), (64, LOG_BYTES.into())],
                Filling::Blocks => &[(setting.format.block_bytes, setting.format.block_bytes.into())],
            };
            let mut offset = 0;
            for (length, stride) in steps_of {
                let refused = harness.refused_for_space;
                while harness.refused_for_space == refused && !enough(&harness, *filling) && offset < FILLED_BYTES_MAX {
                    let step = Operation::Write(path, offset, *length, offset);
                    for operation in steps.drain(..).chain([step]) {
                        harness.apply(&operation)?;
                        scene.preparation.push(operation);
                    }
                    offset += stride;
                }
            }
        }
        harness.compare()?;
        Ok(scene)
    }

    /// Host memory for the fewest pages, so that metadata is evicted and loaded all the time; directories larger than that.
    fn few_pages(setting: &Setting) -> Self {
        let mut scene = Self { name: "few pages of host memory", ..Self::small(setting) };
        scene.setting.mount = MountOptions { memory_bytes: 64 << 10, ..setting.mount.clone() };
        scene.preparation.extend([Operation::CreateMany("d", 0, 150), Operation::UnlinkMany("d", 0, 75)]);
        scene
    }

    /// Formats, prepares and unmounts. What the file system then holds, and its device.
    ///
    /// # Errors
    /// Where the preparation disagrees with the model.
    pub fn prepare(&self) -> Result<(Model, MemoryDevice), String> {
        let mut harness = Harness::new(self.setting.format(), &self.setting.mount, Model::default())?
            .with_write_back_cache(self.setting.write_back_cache);
        for operation in &self.preparation {
            harness.apply(operation)?;
        }
        harness.compare()?;
        harness.fs.unmount().map_err(|error| format!("unmount: {error}"))?;
        Ok((harness.model, harness.device))
    }
}

/// What a zone is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filling {
    Logs,
    Blocks,
}

/// Whether growth has nothing left of a zone.
fn enough(harness: &Harness, filling: Filling) -> bool {
    let space = harness.fs.space();
    match filling {
        Filling::Logs => space.memory.available_bytes == 0,
        Filling::Blocks => space.block.available_bytes < harness.fs.superblock().geometry.block_bytes().into(),
    }
}

/// Settings that the project has: each domain of a profile or an attached pair, block sizes, with and without checksums of data.
pub fn settings(domain: PersistenceDomain) -> Vec<Setting> {
    let of = |block_bytes| Setting::small(domain, block_bytes);
    let unchecked = FormatOptions { checksum_kind: ChecksumKind::None, ..of(64 << 10).format };
    vec![
        of(64 << 10),
        of(4 << 10),
        Setting { block_zone_bytes: 16 << 20, ..of(1 << 20) },
        of(64 << 10).relaxed(),
        of(4 << 10).relaxed(),
        Setting { format: unchecked, ..of(64 << 10) },
        Setting { mount: MountOptions { threshold: Threshold::Bytes(256 << 10), ..of(64 << 10).mount }, ..of(64 << 10) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(scene: &Scene) -> Harness {
        let (model, device) = scene.prepare().expect("prepares");
        let mut harness = Harness::new(device, &scene.setting.mount, model).expect("mounts");
        for operation in &scene.prefix {
            harness.apply(operation).expect("agrees");
        }
        harness
    }

    #[test]
    fn scenes_are_at_their_limits() {
        let plain = [4 << 10, 64 << 10].map(|block_bytes| Setting::small(PersistenceDomain::Adr, block_bytes));
        for setting in plain.iter().cloned().chain(plain.iter().cloned().map(Setting::with_firmware)) {
            let block_bytes = setting.format.block_bytes;
            for scene in Scene::all(&setting).expect("scenes") {
                let mut harness = mounted(&scene);
                let space = harness.fs.space();
                match scene.name {
                    "ring at its end" => {
                        let before = harness.fs.statistics().work.checkpoints;
                        harness.apply(&Operation::Create("c")).expect("agrees");
                        assert_eq!(harness.fs.statistics().work.checkpoints, before + 1);
                    }
                    "memory zone full of logs" => assert_eq!(space.memory.available_bytes, 0),
                    "block zone full" => assert!(space.block.available_bytes < block_bytes.into()),
                    "both zones full" => {
                        assert!(space.memory.available_bytes == 0 && space.block.available_bytes < block_bytes.into());
                    }
                    "few pages of host memory" => {
                        let loads = harness.fs.statistics().work.metadata_page_loads;
                        harness.compare().expect("agrees");
                        harness.compare().expect("agrees");
                        assert!(harness.fs.statistics().work.metadata_page_loads > loads, "pages come and go");
                    }
                    _ => {}
                }
            }
        }
    }
}
