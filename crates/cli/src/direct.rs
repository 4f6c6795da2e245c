//! The direct door of a mount (`-o direct`).

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tandemfs_direct::{ClientStatistics, Entrants, Limits, MountIdentity, Server, StoreCounts};
use tandemfs_fs::FileSystem;
use tandemfs_fuse::mounts::Mounted;
use tandemfs_fuse::{Beside, MountSettings};
use tandemfs_protocol::Number;
use tandemfs_vfs::{Reserve, Settings, Vfs};

/// Opens the door. Without it the mount serves everybody. It says the part `direct` of `tandemfs stats`, whose names are a stable interface, as
/// those of `fuse/src/report.rs`.
pub fn open(fs: &Arc<FileSystem>, settings: &MountSettings, limits: &Limits, beside: Beside<'_>) -> Option<Server> {
    let Beside { mounted, caches, stands, report, recorder } = beside;
    let rules = Settings { extended_attributes: settings.attributes, reserve: Reserve::new(settings.reserved_percent), protected: None };
    let vfs = Vfs::new(Arc::clone(fs), rules).beside(caches);
    let mount = identity(settings, mounted)?;
    let opener = crate::opener::opener(&mount);
    let server = Server::start_with(vfs, mount, stands, entrants(settings, mounted.user), limits.clone(), (opener, recorder))
        .inspect_err(|error| tracing::warn!("no direct door, so programs go by the mount: {error}"))
        .ok()?;
    let (observer, fs) = (server.observer(), Arc::downgrade(fs));
    let _first = report.set(Box::new(move || {
        let (connections, clients) = observer.clients();
        let (leases, kept_back_bytes) = fs.upgrade().map_or((0, 0), |fs| fs.stores_lent());
        let borrowers = || clients.iter().filter_map(|client| client.stores);
        let holders = borrowers().filter(|of| of.held > 0).count();
        json!({
            "connections": connections,
            "clients": clients.iter().map(client).collect::<Vec<_>>(),
            "store_leases": { "clients": borrowers().count(), "holders": holders, "held": leases, "kept_back_bytes": kept_back_bytes },
        })
    }));
    Some(server)
}

fn client(client: &ClientStatistics) -> Value {
    let counts = &client.counts;
    let operations: Map<String, Value> = counts.operations.iter().map(|of| (name(of.number), of.count.into())).collect();
    json!({
        "connection": client.connection,
        "process_id": client.process_id,
        "command": client.command,
        "user": client.user,
        "connected_seconds": client.connected.as_secs(),
        "open_files": client.open_files,
        "loads_by_itself": client.has_zone,
        "stores_by_itself": client.stores.is_some(),
        "store_leases": client.stores.map(store_leases),
        "mappings": client.mappings,
        "mappings_for_stores": client.stored_mappings,
        "bytes_mapped_for_stores": client.stored_bytes,
        "read_bytes": counts.read_bytes,
        "written_bytes": counts.written_bytes,
        "requests": counts.operations.iter().map(|of| of.count).sum::<u64>(),
        "requests_to_pool": counts.to_pool,
        "requests_to_mount": counts.to_mount,
        "operations": operations,
        "latency": tandemfs_fuse::latencies(counts.operations.iter().map(|of| (name(of.number), of.latency.clone()))),
    })
}

fn store_leases(counts: StoreCounts) -> Value {
    json!({
        "held": counts.held,
        "lent": counts.lent,
        "ended": counts.ended,
        "taken_away": counts.taken_away,
        "tails_held": counts.tails_held,
        "tails_lent": counts.tails_lent,
        "is_late": counts.is_late,
    })
}

/// The name of an operation, as `read_directory`.
fn name(number: Number) -> String {
    let mut name = String::new();
    for character in format!("{number:?}").chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

fn identity(settings: &MountSettings, mounted: &Mounted) -> Option<MountIdentity> {
    let (major, minor) = mounted.device_number.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    Some(MountIdentity { major, minor, mountpoint: mounted.mountpoint.clone(), user: mounted.user, is_read_only: settings.read_only })
}

fn entrants(settings: &MountSettings, user: u32) -> Entrants {
    match settings.allow_other {
        true => Entrants::Everybody,
        false => Entrants::Only { user, group: rustix::process::getegid().as_raw(), and_root: settings.allow_root },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_names_that_scripts_know() {
        let names: Vec<String> = Number::ALL.iter().map(|number| name(*number)).collect();
        let known = "nothing open close read write stat access unlink remove_directory make_directory make_node make_link link read_link rename \
                     read_directory truncate allocate sync copy_range seek change_mode change_owner set_times get_attribute set_attribute \
                     list_attributes remove_attribute file_system_space sync_file_system set_flags \
                     descriptor lend map unmap lend_stores return_stores map_for_stores stat_ahead lend_tail appended";
        assert_eq!(names, known.split(' ').collect::<Vec<_>>());
    }
}
