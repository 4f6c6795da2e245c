//! Opens a device by its specification: `IMAGE`, `memory=PATH,block=PATH` for a real pair, with `,cache=SIZE` where the end of its memory
//! half is a cache that the host manages, or `memory=PATH` for a memory half alone (in
//! builds that know files in the memory zone).

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tandemfs_device::{Device, DeviceError, PairDevice, PairOptions, PersistenceDomain};
use tandemfs_format::size::parse;

use crate::controller::Controller;
use crate::firmware_drive::FirmwareDrive;
use crate::host_cache::HostCacheDrive;
use crate::image::ImageDevice;
use crate::image_file::{OpenImage, OpenOptions, refused};
use crate::image_medium::ImageMedium;
use crate::media::{Lifetime, MediaLayer};
use crate::model::Staging;
use crate::timing::{Clock, Time, Timeline};

/// How to open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Open read-only.
    pub read_only: bool,
    /// Share the device with other readers. Ignored without `read_only`.
    pub shared: bool,
    /// Lower the persistence domain to this; raising it is refused.
    pub domain: Option<PersistenceDomain>,
    /// Use an image's timing model. Means nothing for a real pair.
    pub timing: bool,
    /// Use virtual time for an image, so that nothing waits. Ignored without `timing`.
    pub virtual_time: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { read_only: false, shared: false, domain: None, timing: true, virtual_time: false }
    }
}

/// A parsed device specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// An emulated drive.
    Image(PathBuf),
    /// Two devices or files that serve as one drive.
    Pair {
        /// The half that is loaded from and stored to.
        memory: PathBuf,
        /// The half of block commands.
        block: PathBuf,
        /// Bytes at the end of the memory half that are a cache which the host manages; 0: none.
        cache_bytes: u64,
    },
    /// A device or file of loads and stores alone.
    Memory(PathBuf),
}

impl DeviceSpec {
    /// The path of an image.
    pub fn image(self) -> Option<PathBuf> {
        match self {
            Self::Image(path) => Some(path),
            Self::Pair { .. } | Self::Memory(_) => None,
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("no device is named; name an image, or a pair as memory=PATH,block=PATH".to_owned());
        }
        // A path with a slash before its first '=' is an image, so that any file can be named (./a=b).
        let is_pair = text.split_once('=').is_some_and(|(key, _)| !key.contains('/'));
        if !is_pair {
            return Ok(Self::Image(text.into()));
        }
        let (mut memory, mut block, mut cache_bytes) = (None, None, None);
        for part in text.split(',') {
            let (key, path) = part.split_once('=').unwrap_or((part, ""));
            if key == "cache" {
                let bytes = parse(path).map_err(|reason| format!("'{part}': {reason} (memory=PATH,block=PATH,cache=4G)"))?;
                if bytes == 0 || cache_bytes.replace(bytes).is_some() {
                    return Err(format!("'{part}' gives no cache, or a second one; write memory=PATH,block=PATH,cache=4G"));
                }
                continue;
            }
            let half = match key {
                "memory" => &mut memory,
                "block" => &mut block,
                _ => {
                    return Err(format!("'{part}' is no half of a pair; write memory=PATH,block=PATH (an image of such a name: ./{text})"));
                }
            };
            if path.is_empty() {
                return Err(format!("'{key}=' names no path; write memory=PATH,block=PATH"));
            }
            if half.replace(PathBuf::from(path)).is_some() {
                return Err(format!("'{key}=' is given twice; write memory=PATH,block=PATH"));
            }
        }
        match (memory, block) {
            (Some(memory), Some(block)) => Ok(Self::Pair { memory, block, cache_bytes: cache_bytes.unwrap_or(0) }),
            (Some(_), None) if cache_bytes.is_some() => {
                Err("a cache is moved to and from a block half; write memory=PATH,block=PATH,cache=4G".to_owned())
            }
            (Some(memory), None) => Ok(Self::Memory(memory)),
            (None, _) => Err("the memory half is missing; write memory=PATH,block=PATH".to_owned()),
        }
    }
}

/// Opens and locks the device of this specification.
///
/// Errors: [`DeviceError::Open`] with what was found and what to do, [`DeviceError::Busy`] where another process has it.
pub fn open_device(spec: &str, options: &DeviceOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let DeviceOptions { read_only, shared, domain, timing, virtual_time } = *options;
    match spec.parse().map_err(|reason| DeviceError::Open { path: spec.to_owned(), reason })? {
        DeviceSpec::Image(path) => open_image(&path, &OpenOptions { read_only, shared, domain, timing, virtual_time }),
        DeviceSpec::Memory(memory) => {
            Ok(Arc::new(PairDevice::open_memory(&memory, &PairOptions { read_only, shared, domain, cache_bytes: 0 })?))
        }
        DeviceSpec::Pair { memory, block, cache_bytes } => {
            Ok(Arc::new(PairDevice::open(&memory, &block, &PairOptions { read_only, shared, domain, cache_bytes })?))
        }
    }
}

/// Opens and locks an emulated drive, with firmware or without, as its image's header says.
///
/// Errors: as [`open_device`].
pub fn open_image(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let image = OpenImage::open(path, options)?;
    match image.info.firmware {
        None => open_plain(image, options),
        Some(model) if model.staging.is_host_cache() => Ok(Arc::new(open_host_cache(image, options)?)),
        Some(_) => Ok(Arc::new(open_firmware(image, options)?)),
    }
}

/// The drive of an image without firmware, below a model of persistent memory where it has one and time passes.
fn open_plain(image: OpenImage, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let modelled = image.info.media.zip(image.info.timing).filter(|_| options.timing);
    let Some((model, timing)) = modelled else { return Ok(Arc::new(ImageDevice::of(image, options)?)) };
    let unread = |error: io::Error| refused(Path::new(&image.name), format!("its counters cannot be read: {error}"));
    let lifetime = image.file.try_clone().and_then(|file| Lifetime::open(file, options.read_only)).map_err(unread)?;
    Ok(Arc::new(MediaLayer::new(ImageDevice::of(image, options)?, timing, &model, lifetime)))
}

/// The drive of an image whose memory belongs to the host.
pub(crate) fn open_host_cache(image: OpenImage, options: &OpenOptions) -> Result<HostCacheDrive<ImageMedium>, DeviceError> {
    let (info, name) = (image.info.clone(), image.name.clone());
    let (Some(model), Some(layout)) = (info.firmware, info.dram()) else {
        return Err(refused(Path::new(&name), "is a drive without firmware"));
    };
    let description = image.describe(options)?;
    let inner = match model.staging {
        Staging::HostCache { bytes_per_second, .. } => bytes_per_second,
        Staging::WriteLog { .. } | Staging::Cache { .. } => u64::MAX,
    };
    let times = info.timing.zip(model.timing).filter(|_| options.timing).map(|(memory, flash)| {
        let timeline = Timeline::new(flash, model.die_count(), model.write_buffer_pages).with_inner_bandwidth(inner);
        (Clock::new(memory, None, Time::new(options.virtual_time)), timeline)
    });
    let medium = Arc::new(ImageMedium::new(image, &layout, options.read_only)?);
    HostCacheDrive::open(&medium, &model, description, times, options.read_only).map_err(|error| not_opened(&name, error))
}

/// The drive of an image with firmware.
pub(crate) fn open_firmware(image: OpenImage, options: &OpenOptions) -> Result<FirmwareDrive<ImageMedium>, DeviceError> {
    let (info, name) = (image.info.clone(), image.name.clone());
    let (Some(model), Some(layout)) = (info.firmware, info.dram()) else {
        return Err(refused(Path::new(&name), "is a drive without firmware"));
    };
    let description = image.describe(options)?;
    let times = model.timing.filter(|_| options.timing);
    let timeline = times.map(|times| Timeline::new(times, model.die_count(), model.write_buffer_pages).with_curves(info.timing));
    let time = times.map(|_| Time::new(options.virtual_time));
    let medium = Arc::new(ImageMedium::new(image, &layout, options.read_only)?);
    let opened = Controller::open(&medium, &name, &model, info.memory_pages(), info.logical_pages(), timeline);
    let controller = opened.map_err(|error| not_opened(&name, error))?;
    Ok(FirmwareDrive::new(controller, description, time, options.read_only))
}

/// Adds the image's name to an error of the firmware's parts.
pub(crate) fn not_opened(name: &str, error: DeviceError) -> DeviceError {
    match error {
        DeviceError::Firmware { reason, .. } | DeviceError::Open { reason, .. } => refused(Path::new(name), reason),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_images_or_pairs() {
        assert_eq!("disk.img".parse(), Ok(DeviceSpec::Image("disk.img".into())));
        assert_eq!("./a=b".parse(), Ok(DeviceSpec::Image("./a=b".into())));
        let pair = DeviceSpec::Pair { memory: "/dev/dax0.0".into(), block: "/dev/nvme0n1".into(), cache_bytes: 0 };
        assert_eq!("memory=/dev/dax0.0,block=/dev/nvme0n1".parse(), Ok(pair.clone()));
        assert_eq!("block=/dev/nvme0n1,memory=/dev/dax0.0".parse(), Ok(pair));
        let cached = DeviceSpec::Pair { memory: "/dev/dax0.0".into(), block: "/dev/nvme0n1".into(), cache_bytes: 4 << 30 };
        assert_eq!("memory=/dev/dax0.0,block=/dev/nvme0n1,cache=4G".parse(), Ok(cached));
        assert_eq!("memory=/dev/dax0.0".parse(), Ok(DeviceSpec::Memory("/dev/dax0.0".into())));
    }

    #[test]
    fn names_that_mean_nothing_are_refused_with_the_reason() {
        for (text, said) in [
            ("", "no device is named"),
            ("block=/a", "the memory half is missing"),
            ("memory=/a,block=", "'block=' names no path"),
            ("memory=/a,block", "'block=' names no path"),
            ("memory=/a,memory=/b", "'memory=' is given twice"),
            ("memory=/a,blocks=/b", "'blocks=/b' is no half"),
            ("memory=/a,block=/b,", "'' is no half"),
            ("memory=/a,block=/b,cache=x", "'cache=x': 'x' is not a size"),
            ("memory=/a,block=/b,cache=0", "gives no cache"),
            ("memory=/a,block=/b,cache=1G,cache=2G", "a second one"),
            ("memory=/a,cache=1G", "a cache is moved to and from a block half"),
        ] {
            let reason = text.parse::<DeviceSpec>().expect_err(text);
            assert!(reason.contains(said), "{text}: {reason}");
        }
    }
}
