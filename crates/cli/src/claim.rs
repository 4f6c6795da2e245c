//! Two file systems with one UUID on one machine: the second is refused, unless `-o nouuid` says that this is intended.
//!
//! A copy of an image or of a pair has the UUID of its original. Programs and administrators that find file systems by UUID would take one
//! for the other. Each daemon binds a socket in the abstract name space, whose name has the UUID and the device. The kernel lists these names
//! (`/proc/net/unix`) for every user, and removes them when the daemon ends, however it ends.
//!
//! [NU1] The socket is bound before the names are read. Of two daemons that start at once at least one finds the other.
//! [NU2] Mounts of the same device are not refused here: the device's lock decides about them.
//!
//! Daemons in another network name space (containers) are not seen.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

use tandemfs_emulator::DeviceSpec;
use tandemfs_format::checksum::crc32c;
use uuid::Uuid;

use crate::failure::Failure;

/// The abstract names, as the kernel lists them.
const LIST: &str = "/proc/net/unix";
const PREFIX: &str = "tandemfs/";

/// A UUID is in use as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _socket: UnixDatagram,
}

/// Says that a device with this UUID is mounted by this process. `alone`: refuse it if another device has the UUID.
///
/// # Errors
/// A sentence with the other mount's process. If the kernel does not let sockets be bound or listed, there is only a warning.
pub fn claim(uuid: Uuid, device: &str, alone: bool) -> Result<Option<Claim>, Failure> {
    let id = device_id(device);
    let name = format!("{PREFIX}{}/{id:08x}/{}.{:.8}", uuid.simple(), std::process::id(), Uuid::new_v4().simple());
    let bound = SocketAddr::from_abstract_name(&name).and_then(|address| UnixDatagram::bind_addr(&address)); // [NU1]
    let socket = match bound {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!("other mounts cannot tell that this UUID is in use: {error}");
            return Ok(None);
        }
    };
    let names = fs::read_to_string(LIST).unwrap_or_else(|error| {
        tracing::warn!("{LIST}: {error}; whether the UUID is in use is not known");
        String::new()
    });
    match other(&names, uuid, id).filter(|_| alone) {
        None => Ok(Some(Claim { _socket: socket })),
        Some(process) => Err(Failure::Failed(format!(
            "{device}: a file system with the same UUID {uuid} is mounted already (process {process}): one is a copy of the other; mount with \
             -o nouuid, or give one of them another UUID by tandemfs uuid DEVICE random"
        ))),
    }
}

/// Whether a daemon has this device.
pub fn has_daemon(device: &str) -> bool {
    let id = format!("/{:08x}/", device_id(device));
    let names = fs::read_to_string(LIST).unwrap_or_default();
    names.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@')?.strip_prefix(PREFIX)).any(|name| name.contains(&id))
}

/// The process that has mounted another device with this UUID.
fn other(names: &str, uuid: Uuid, id: u32) -> Option<String> {
    let prefix = format!("@{PREFIX}{}/", uuid.simple());
    names.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix(&prefix)).find_map(|rest| {
        let (device, process) = rest.split_once('/')?;
        // [NU2]
        (u32::from_str_radix(device, 16).ok()? != id).then(|| process.split('.').next().unwrap_or(process).to_owned())
    })
}

/// Equal for the same device, whatever it is called.
pub fn device_id(device: &str) -> u32 {
    let paths: Vec<PathBuf> = match device.parse() {
        Ok(DeviceSpec::Image(path) | DeviceSpec::Memory(path)) => vec![path],
        Ok(DeviceSpec::Pair { memory, block, .. }) => vec![memory, block],
        Err(_) => Vec::new(),
    };
    let of_path = |path: &PathBuf| match fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() || found.file_type().is_char_device() => format!("device {}", found.rdev()),
        Ok(found) => format!("file {} {}", found.dev(), found.ino()),
        Err(_) => path.display().to_string(),
    };
    crc32c(paths.iter().map(of_path).collect::<Vec<_>>().join(",").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_device_with_the_uuid_is_found_among_all_names() {
        let uuid = Uuid::from_u128(0xabc);
        let name = |uuid: Uuid, device: u32| {
            format!("ffff: 00000002 00000000 00000000 0002 01 123 @{PREFIX}{}/{device:08x}/77.0a0b0c0d\n", uuid.simple())
        };
        let noise =
            "Num RefCount Protocol Flags Type St Inode Path\nffff: 00000002 00000000 00000000 0002 01 123\nffff: 2 0 0 2 1 9 /run/x y\n";
        let list = |names: &[String]| format!("{noise}{}", names.concat());
        assert_eq!(other(&list(&[]), uuid, 5), None);
        assert_eq!(other(&list(&[name(uuid, 5), name(Uuid::from_u128(1), 6)]), uuid, 5), None);
        assert_eq!(other(&list(&[name(uuid, 5), name(uuid, 6)]), uuid, 5), Some("77".into()));
        assert_eq!(other(&format!("{noise}@{PREFIX}{}/zz\n", uuid.simple()), uuid, 5), None);
    }

    #[test]
    fn a_claim_refuses_another_device_and_ends_with_its_owner() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
        for name in ["one", "two"] {
            fs::write(path(name), "x").expect("written");
        }
        fs::hard_link(path("one"), path("one again")).expect("linked");
        let uuid = Uuid::new_v4();
        assert!(!has_daemon(&path("one")));
        let first = claim(uuid, &path("one"), true).expect("free").expect("bound");
        assert!(has_daemon(&path("one again")) && !has_daemon(&path("two")));
        let refused = claim(uuid, &path("two"), true).expect_err("in use");
        assert!(matches!(refused, Failure::Failed(said) if said.contains("-o nouuid") && said.contains(&std::process::id().to_string())));
        drop(claim(uuid, &path("one again"), true).expect("the same device"));
        drop(claim(uuid, &path("two"), false).expect("asked for"));
        drop(claim(Uuid::new_v4(), &path("two"), true).expect("another UUID"));
        drop(first);
        claim(uuid, &path("two"), true).expect("free again");
    }
}
