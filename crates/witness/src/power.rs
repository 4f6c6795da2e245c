//! The power switch of the test machine (`tests/vm`): the byte 0x10 to I/O port 0xf4.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Turns the machine off. Returns only on a machine without the power switch, with the reason.
pub fn cut() -> String {
    // Elsewhere the port may be some device's own.
    if std::env::var_os("TANDEMFS_VM").is_none() {
        return "the power is cut in the virtual machine only (tests/vm)".into();
    }
    match OpenOptions::new().write(true).open("/dev/port").and_then(|port| port.write_at(&[0x10], 0xf4)) {
        Ok(_) => "the power is still on: port 0xf4 has no switch".into(),
        Err(error) => format!("/dev/port: {error}"),
    }
}
