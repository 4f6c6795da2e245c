//! Makes runs: a fresh drive, a fresh file system, the case once, then everything is removed ([CM1]).
//!
//! [CM1]: super

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::available::kernel_type;
use super::awake::{self, Awake};
use super::backing::{Backing, FreeDrive, Kind, Place};
use super::case::{Case, Stage};
use super::clock::{Noise, RunClock};
use super::command::{run, tandemfs};
use super::memory_file::MemoryFile;
use super::mounted::Mounted;
use super::peer::Peer;
use super::record::{Record, SameDrive};
use super::same_drive;
use super::same_drive::way::Carried;
use super::settings::{Settings, WARM_UP_SHARE};
use super::under_run;
use crate::failure::{Failure, Result};
use crate::machine::{self, Pinned};
use crate::scene;
use crate::workloads::random::Random;

/// Size of a file system relative to the bytes that a case writes.
const ROOM: f64 = 1.5;
const LOOP_FILE: &str = "loop-file";
const IMAGE: &str = "image";

/// Backing files, mount directories and settings of a comparison.
pub struct Laboratory {
    directory: TempDir,
    settings: Settings,
    noise: Noise,
    loop_file: Option<MemoryFile>,
    /// The image, with its place and the size of its memory zone.
    image: Option<((Place, u64), MemoryFile)>,
    /// What this machine takes for requests of the peers, once it was measured.
    carried: Option<Vec<Carried>>,
    /// Settings of the common drive by the microseconds of its block commands, once they are known.
    same: BTreeMap<u32, same_drive::Settings>,
}

impl Laboratory {
    /// A new directory inside the one of the settings.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn new(settings: &Settings) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("tandemfs-compare-").tempdir_in(&settings.directory).map_err(|error| {
            Failure::new(format!("{}: {error}; name a directory to write to with --directory", settings.directory.display()))
        })?;
        // Some programs run as another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        Ok(Self {
            directory,
            settings: settings.clone(),
            noise: Noise::new(),
            loop_file: None,
            image: None,
            carried: None,
            same: BTreeMap::new(),
        })
    }

    /// Microseconds of a block command of the profile itself.
    ///
    /// # Errors
    /// A profile without timing.
    pub fn own_us(&self) -> Result<u32> {
        same_drive::Settings::new(&self.settings.profile, self.settings.memory_bytes).own_us()
    }

    /// Whether this machine carries block commands of so many microseconds; false before the first calibration.
    ///
    /// # Errors
    /// A profile without timing.
    pub fn carries(&self, us: u32) -> Result<bool> {
        let plain = same_drive::Settings::new(&self.settings.profile, self.settings.memory_bytes);
        self.carried.as_deref().map_or(Ok(false), |carried| Ok(plain.with_latency(us, carried)?.is_some()))
    }

    /// Finds the settings that make the common drive with block commands of so many microseconds equal for all peers. A resumed comparison
    /// uses its earlier settings (`before`). Runs at its [`Place::Same`] are possible only after this.
    ///
    /// # Errors
    /// This machine does not carry the latency, or the drives cannot be made equal; the message has the difference.
    pub fn calibrate(&mut self, us: u32, before: Option<&same_drive::Settings>) -> Result<SameDrive> {
        let directory = self.directory.path();
        let wanted: same_drive::Settings = match before {
            // Results on a different drive could not be compared with those already stored.
            Some(made) => made.clone(),
            None => {
                let Settings { profile, memory_bytes, .. } = &self.settings;
                let plain = same_drive::Settings { wake_up: awake::wake_up(), ..same_drive::Settings::new(profile, *memory_bytes) };
                if self.carried.is_none() {
                    let _awake = plain.is_kept_awake().then(Awake::new);
                    self.carried = Some(same_drive::calibrate::carried(directory, &plain)?);
                }
                let carried = self.carried.as_deref().unwrap_or_default();
                let takes = |depth: u32| {
                    let batch = carried.iter().find(|batch| batch.depth == depth && !batch.is_read);
                    batch.map_or(0.0, |batch| batch.took_ns / 1e3)
                };
                plain.with_latency(us, carried)?.ok_or_else(|| {
                    Failure::new(format!(
                        "this machine carries no block commands of {us} us: the way of the peers over FUSE and loop device takes {:.0} us for one \
                         write of 4 KiB and {:.0} us for sixteen at once",
                        takes(1),
                        takes(16)
                    ))
                })?
            }
        };
        let _awake = wanted.is_kept_awake().then(Awake::new);
        let calibrated = same_drive::calibrate::calibrate(directory, &wanted)?;
        let times = [calibrated.settings.times(true)?, calibrated.settings.times(false)?];
        let carried_ns = self.carried.iter().flatten().find(|batch| batch.depth == 1 && !batch.is_read).map(|batch| batch.took_ns);
        self.same.insert(us, calibrated.settings.clone());
        let same_drive::calibrate::Calibrated { settings, calibrations, notes } = calibrated;
        Ok(SameDrive { calibrations, times, carried_ns, notes, made_from: settings })
    }

    /// Measures a case once. `round` also determines the random choices; `None` is a warm-up, whose record must be discarded.
    ///
    /// # Errors
    /// Something could not be made, mounted or taken down, or the case failed.
    pub fn run(&mut self, case: &Case, place: Place, peer: Peer, round: Option<u32>) -> Result<Record> {
        machine::check()?;
        let share = self.settings.share(case);
        let scale = if round.is_some() { share } else { share * WARM_UP_SHARE };
        let bytes = drive_bytes(case.bytes_needed(share.min(1.0)), share, self.settings.drive_bytes);
        let scratch = fresh(&self.directory.path().join("scratch"))?;
        let mountpoint = self.directory.path().join("mount");
        if !mountpoint.exists() {
            // Never removed recursively: a file system that failed to unmount may still be there.
            fs::create_dir(&mountpoint)?;
        }
        let server = self.same_of(place).filter(|_| kernel_type(peer).is_some());
        let is_kept_awake = case.clients == 1 && server.is_some_and(same_drive::Settings::is_kept_awake);
        let awake = is_kept_awake.then(Awake::new); // [AW3], [AW4]
        let memory_bytes = case.memory_bytes.unwrap_or(self.settings.memory_bytes);
        self.prepare(place, peer, bytes, memory_bytes)?;
        let backing = self.backing(place, peer, bytes, memory_bytes)?;
        // After the drive's start, which is not pinned, and before the mount: a daemon inherits its starter's affinity.
        // On one CPU neither side of the direct door could look for the other: both would sleep at once.
        let _pinned = (self.settings.pins(case.clients) && !peer.is_direct()).then(Pinned::new);
        let mut mounted = match backing {
            Some(backing) => Mounted::kernel(peer, backing, &mountpoint)?,
            None => self.start(peer, place, &mountpoint, &scratch)?,
        };
        let directory = mountpoint.join("work");
        let library = mounted.file_system();
        if library.is_none() {
            fs::create_dir(&directory)?;
        }
        let mut clock = RunClock::new(&mut mounted, &self.noise, directory.clone()).beside(awake.as_ref());
        let seed = Random::new(self.settings.seed, u64::from(round.map_or(0, |round| round + 1))).next();
        let is_durable = peer != Peer::Ext4Volatile;
        let mut stage =
            Stage { directory: &directory, scratch: &scratch, library: library.as_deref(), seed, scale, is_durable, clock: &mut clock };
        let result = if peer.is_direct() { under_run::run(case, &mut stage) } else { (case.run)(&mut stage) };
        let taken = result.and_then(|outcome| Ok((outcome, clock.taken()?)));
        let connections = mounted.connections();
        drop(library);
        // Lost writes would be an unfair advantage over file systems that keep them, so a failed unmount is an error.
        let finished = mounted.finish();
        let (outcome, taken) = taken?;
        finished?;
        let record = Record {
            case: case.name.clone(),
            group: case.group,
            place,
            peer,
            round: round.unwrap_or_default(),
            clients: case.clients,
            units: outcome.units,
            unit: outcome.unit,
            seconds: outcome.own_time.map_or(taken.seconds, |time| time.as_secs_f64()),
            cpu_seconds: taken.cpu_seconds,
            memory_bytes: Some(taken.memory_bytes),
            latency_ns: outcome.latencies,
            traffic: taken.traffic,
            connections: connections?,
            noise: taken.noise,
        };
        if record.units > 0.0 && record.seconds > 0.0 {
            Ok(record)
        } else {
            Err(Failure::new(format!("{} did nothing, or took no time", record.case)))
        }
    }

    /// Makes the drive for a run, if there is none that fits.
    fn prepare(&mut self, place: Place, peer: Peer, bytes: u64, memory_bytes: u64) -> Result<()> {
        let directory = self.directory.path();
        if peer.is_ours() {
            let (wanted, made_for) = (bytes + memory_bytes, (place, memory_bytes));
            // Flash that was written before behaves differently: its garbage would be collected in the next run.
            let has_firmware = tandemfs_emulator::profile(&self.settings.profile).is_some_and(|profile| profile.firmware.is_some());
            let fits = |image: &MemoryFile| image.bytes() >= wanted && image.bytes() < wanted + wanted / 4;
            if has_firmware || !self.image.as_ref().is_some_and(|(made, image)| *made == made_for && fits(image)) {
                self.image = None;
                scene::require_room(directory, wanted, "leave out large cases")?;
                let image = self.new_image(&directory.join(IMAGE), made_for, bytes)?;
                self.image = Some((made_for, image));
            }
        } else if kernel_type(peer).is_some()
            && place.kind() != Kind::Same
            && self.loop_file.as_ref().is_none_or(|file| file.bytes() != bytes)
        {
            self.loop_file = None;
            scene::require_room(directory, bytes, "leave out large cases")?;
            self.loop_file = Some(MemoryFile::new(directory.join(LOOP_FILE), bytes)?);
        }
        Ok(())
    }

    /// A drive for TandemFS: as a user makes it, or with the settings of the common drive.
    fn new_image(&self, path: &Path, (place, memory_bytes): (Place, u64), block_bytes: u64) -> Result<MemoryFile> {
        if let Place::Same(_) = place {
            self.same(place, memory_bytes)?.create_own_image(path, block_bytes)?;
        } else {
            let mebibytes = |bytes: u64| format!("{}M", bytes >> 20);
            let mut create = tandemfs();
            create.args(["device", "create"]).arg(path).args(["--profile", &self.settings.profile]);
            run(create.args(["--memory", &mebibytes(memory_bytes), "--block", &mebibytes(block_bytes)]))?;
        }
        MemoryFile::adopt(path.to_owned())
    }

    /// Settings of the common drive of a place, as calibrated.
    fn same_of(&self, place: Place) -> Option<&same_drive::Settings> {
        match place {
            Place::Same(us) => self.same.get(&us),
            Place::Free | Place::Untimed => None,
        }
    }

    /// The same with a memory zone of this size.
    fn same(&self, place: Place, memory_bytes: u64) -> Result<same_drive::Settings> {
        let same = self.same_of(place).ok_or_else(|| Failure::new("the same drive was not calibrated; this is a bug of the benchmark"))?;
        Ok(same_drive::Settings { memory_bytes, ..same.clone() })
    }

    /// The drive for a kernel file system, on the files of [`Self::prepare`].
    fn backing(&self, place: Place, peer: Peer, bytes: u64, memory_bytes: u64) -> Result<Option<Box<dyn Backing + '_>>> {
        if kernel_type(peer).is_none() {
            return Ok(None);
        }
        Ok(Some(match place {
            Place::Free | Place::Untimed => Box::new(FreeDrive::start(self.loop_file.as_ref().ok_or_else(lost)?)?),
            Place::Same(_) => Box::new(same_drive::start(self.directory.path(), bytes, &self.same(place, memory_bytes)?)?),
        }))
    }

    /// Makes and mounts a file system that is not the kernel's.
    fn start(&self, peer: Peer, place: Place, mountpoint: &Path, scratch: &Path) -> Result<Mounted<'static>> {
        let image = || self.image.as_ref().map(|(_, image)| image.path()).ok_or_else(lost);
        let timing = place != Place::Untimed;
        let mode = match peer {
            Peer::TandemfsRelaxed => "relaxed",
            Peer::TandemfsStrict => "strict",
            Peer::TandemfsDirect | Peer::TandemfsBeside => "strict,direct",
            Peer::TandemfsDirectAsleep => "strict,direct,direct_spin=0",
            Peer::TandemfsLibrary => return Mounted::library(image()?, timing),
            _ => return Mounted::null(mountpoint),
        };
        let options = format!("{mode},timing={}", if timing { "on" } else { "off" });
        Mounted::tandemfs(image()?, mountpoint, options, peer.is_direct().then_some(scratch))
    }
}

fn lost() -> Failure {
    Failure::new("a drive was not made; this is a bug of the benchmark")
}

/// Drive size for `share` of a case that needs at most `needed` bytes in full: a power of two, so that few different sizes occur.
fn drive_bytes(needed: u64, share: f64, least: u64) -> u64 {
    ((needed as f64 * share.max(1.0) * ROOM) as u64).max(least).next_power_of_two()
}

/// An empty directory.
fn fresh(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    fs::create_dir(path)?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn drives_come_in_few_sizes() {
        assert_eq!([0, 64 << 20, 700 << 20, GIB, 10 * GIB].map(|needed| drive_bytes(needed, 0.1, GIB) / GIB), [1, 1, 2, 2, 16]);
        assert_eq!(drive_bytes(64 << 20, 1.0, 1 << 20), 128 << 20);
        assert_eq!(drive_bytes(GIB, 4.0, GIB), 8 * GIB, "more than all of the work needs more than all of the room");
    }
}
