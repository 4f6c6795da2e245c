//! One connection of a process to a mount. The daemon ends the connection of a process that connects again, so what two libraries of one
//! program open must be the same.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::ConnectError;
use crate::connection::Connection;
use crate::mountinfo::Mounted;

/// A connection that this process made, or the process that it was forked from.
struct Known {
    process: u32,
    device: (u32, u32),
    connection: Weak<Connection>,
}

static CONNECTIONS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// The connection of this process to a mount, or a new one if there is none that lives.
pub(crate) fn connection(
    mount: &Mounted,
    connect: impl FnOnce() -> Result<Connection, ConnectError>,
) -> Result<Arc<Connection>, ConnectError> {
    let (process, device) = (std::process::id(), (mount.major, mount.minor));
    let mut known = CONNECTIONS.lock();
    known.retain(|one| one.process == process && one.connection.strong_count() > 0);
    let same = known.iter().filter(|one| one.device == device).filter_map(|one| one.connection.upgrade());
    if let Some(found) = same.into_iter().find(|connection| connection.is_alive()) {
        return Ok(found);
    }
    let connection = Arc::new(connect()?);
    known.push(Known { process, device, connection: Arc::downgrade(&connection) });
    Ok(connection)
}
