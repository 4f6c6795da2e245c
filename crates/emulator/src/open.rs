//! Opening a device by the name that people give it: `IMAGE`, or `memory=PATH,block=PATH` for a real pair.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tandemfs_device::{Device, DeviceError, PersistenceDomain};

use crate::image::{ImageDevice, OpenOptions};

/// How to open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Nothing will be written.
    pub read_only: bool,
    /// Share the device with others that only read. Means nothing without `read_only`.
    pub shared: bool,
    /// Lower the persistence domain to this; raising it is refused.
    pub domain: Option<PersistenceDomain>,
    /// Use an image's timing model. Means nothing for a real pair.
    pub timing: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { read_only: false, shared: false, domain: None, timing: true }
    }
}
