//! `tandemfs uuid`: shows the UUID of a device or a mount, or changes that of a device.

use std::path::Path;

use serde_json::json;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts;
use uuid::Uuid;

use crate::arguments::UuidArguments;
use crate::device::{self, Opening};
use crate::failure::{Failure, no_answer};
use crate::output;

/// Shows the UUID, or sets it.
pub fn run(arguments: &UuidArguments) -> Result<u8, Failure> {
    let place = &arguments.place;
    let mount = mounts::find(Path::new(place)).ok().flatten();
    let uuid = match (mount, arguments.uuid) {
        (Some(_), Some(_)) => return Err(Failure::Failed(format!("{place}: is mounted; unmount it, and name the device"))),
        (Some(mount), None) => {
            let answer = control::ask(&mount, Request::Info).map_err(|error| no_answer(&mount, &error))?;
            answer["uuid"].as_str().unwrap_or_default().to_owned()
        }
        (None, _) if Path::new(place).is_dir() => {
            return Err(Failure::Failed(format!("{place}: no TandemFS is mounted there, and a directory is no device")));
        }
        (None, None) => {
            let drive = device::open(place, Opening { read_only: true, ..Opening::default() })?;
            tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?.uuid().to_string()
        }
        (None, Some(uuid)) => {
            let drive = device::open(place, Opening::default())?;
            tandemfs_fs::set_uuid(&drive, uuid).map_err(Failure::because)?;
            uuid.to_string()
        }
    };
    output::print_result(arguments.json, &json!({ "place": place, "uuid": uuid, "set": arguments.uuid.is_some() }), &format!("{uuid}\n"))?;
    Ok(0)
}

/// `random`, or a UUID in any of its spellings.
pub fn parse(text: &str) -> Result<Uuid, String> {
    let uuid = match text {
        "random" => return Ok(Uuid::new_v4()),
        _ => Uuid::parse_str(text)
            .map_err(|_| format!("'{text}' is no UUID; write 'random', or 32 hexadecimal digits as 01234567-89ab-…"))?,
    };
    if uuid.is_nil() { Err("the UUID of zeros names nothing; write 'random', or another one".into()) } else { Ok(uuid) }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_uuid_is_random_or_written_out() {
        let written = "0b5c7d1e-1111-4222-8333-444455556666";
        assert_eq!(parse(written).map(|uuid| uuid.to_string()).as_deref(), Ok(written));
        assert_eq!(parse(&written.to_uppercase().replace('-', "")), parse(written));
        assert_ne!(parse("random"), parse("random"));
        for wrong in ["", "0b5c", "randomly", "00000000-0000-0000-0000-000000000000"] {
            assert!(parse(wrong).is_err_and(|said| said.contains("'random'")), "{wrong}");
        }
    }
}
