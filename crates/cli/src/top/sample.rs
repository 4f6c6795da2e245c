//! What happened between two answers to `tandemfs stats`. The fields are the JSON of `tandemfs top --once --json`: a stable interface, names
//! may be added but not changed or removed.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;
use tandemfs_device::LatencyCounts;

use crate::output;
use crate::times::counts;

/// An answer to `tandemfs stats`, and when it came.
#[derive(Debug, Clone)]
pub struct Sample {
    at: Instant,
    stats: Value,
}

impl Sample {
    /// An answer that has just come.
    pub fn new(stats: Value) -> Self {
        Self { at: Instant::now(), stats }
    }

    fn number(&self, pointer: &str) -> u64 {
        number(&self.stats, pointer)
    }

    /// Clients; `None` without a direct door.
    fn clients(&self) -> Option<&Vec<Value>> {
        self.stats.pointer("/direct/clients").and_then(Value::as_array)
    }
}

/// Zero where a daemon of another version does not know it.
fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// Which mount it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Where it is.
    pub mountpoint: String,
    /// What is mounted.
    pub device: String,
    /// `relaxed`, `strict`.
    pub mode: String,
}

/// What happened in an interval, and how things are at its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct View {
    /// The mount.
    #[serde(flatten)]
    pub named: Named,
    /// Between both answers.
    pub interval_seconds: f64,
    /// The process of which `operations` and `data` are; null: all of the mount.
    pub client: Option<i64>,
    /// By kind. Of the mount all kinds, as `stats` names them; of a client of the direct door its requests.
    pub operations: BTreeMap<String, Operation>,
    /// File data that programs read and wrote.
    pub data: Bytes,
    /// Loads and stores.
    pub byte_path: Bytes,
    /// Block commands.
    pub block_path: Bytes,
    /// The memory zone.
    pub memory_zone: Zone,
    /// The block zone; a size of 0 if there is none.
    pub block_zone: Zone,
    /// Data that moves from the memory zone to the block zone.
    pub write_back: WriteBack,
    /// Programs at the direct door, busiest first; null without a door.
    pub clients: Option<Vec<Client>>,
    /// Programs that have been at the door since the mount.
    pub connections: u64,
    /// Memory that programs store to by themselves; null without a door.
    pub store_leases: Option<StoreLeases>,
}

/// Memory that programs at the direct door store to by themselves (`-o direct_stores`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoreLeases {
    /// Programs that may, if they ask.
    pub clients: u64,
    /// Programs that hold leases now.
    pub holders: u64,
    /// Leases that there are now.
    pub held: u64,
    /// Leases that were taken away from programs that are there, since those did not stop storing.
    pub taken_away: u64,
    /// Memory that nobody gets, since a program can store to it although it was taken away.
    pub kept_back_bytes: u64,
}

/// One kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Operation {
    /// Since the mount or the last `stats --reset`, of a client since it connected.
    pub total: u64,
    /// In the interval.
    pub per_second: f64,
    /// Of those that were timed in the interval; null if there were none.
    pub latency: Option<Latency>,
}

/// Times inside the daemon, in nanoseconds, at most an eighth too large. One operation in sixteen is timed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many were timed.
    pub samples: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Bytes a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bytes {
    /// Read.
    pub read_bytes_per_second: f64,
    /// Written.
    pub written_bytes_per_second: f64,
}

/// Space of a zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// Its size.
    pub total_bytes: u64,
    /// Taken.
    pub used_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Free for files.
    pub available_bytes: u64,
    /// Data logs: data that write-back may move.
    pub data_log_bytes: u64,
}

/// Write-back.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WriteBack {
    /// Blocks composed anew.
    pub blocks_per_second: f64,
    /// Bytes written to the block zone.
    pub bytes_per_second: f64,
    /// Bytes of the memory zone that became free.
    pub freed_bytes_per_second: f64,
}

/// A program at the direct door.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Client {
    /// Which connection since the mount, from 1.
    pub connection: u64,
    /// Its process.
    pub process_id: i64,
    /// What the process was called when it connected.
    pub command: String,
    /// Effective user.
    pub user: u64,
    /// For how long.
    pub connected_seconds: u64,
    /// Files that it has open by the door.
    pub open_files: u64,
    /// Requests since it connected.
    pub requests: u64,
    /// In the interval.
    pub requests_per_second: f64,
    /// Of the requests: those that could wait or take long, which a thread of the daemon's pool served or finished.
    pub requests_to_pool: u64,
    /// Of the requests: those that only the kernel can serve, so that the program made the call through the mount.
    pub requests_to_mount: u64,
    /// File data since it connected.
    pub read_bytes: u64,
    /// File data since it connected.
    pub written_bytes: u64,
    /// File data in the interval.
    #[serde(flatten)]
    pub data: Bytes,
    /// Its leases; null if it stores nothing by itself.
    pub store_leases: Option<ClientLeases>,
}

/// Leases of a program at the direct door.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClientLeases {
    /// That it has.
    pub held: u64,
    /// That it got since it connected.
    pub lent: u64,
    /// In the interval.
    pub lent_per_second: f64,
    /// Of those that it got: those that have ended, or are about to.
    pub ended: u64,
    /// Of those that have ended: those whose bytes were taken away, since it did not stop storing.
    pub taken_away: u64,
    /// It did not stop in time once, and gets none any more.
    pub is_late: bool,
}

impl View {
    /// What happened between two answers, of the mount or of one client.
    ///
    /// # Errors
    /// A sentence: no client has this process id, or there is no door.
    pub fn between(named: &Named, before: &Sample, after: &Sample, client: Option<i64>) -> Result<Self, String> {
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let rate = |pointer: &str| rate(before.number(pointer), after.number(pointer), seconds);
        let bytes = |read: &str, written: &str| Bytes { read_bytes_per_second: rate(read), written_bytes_per_second: rate(written) };
        let clients = after.clients().map(|clients| clients_between(before, clients, seconds));
        let (operations, data) = match client {
            None => (
                operations(
                    before.stats.get("file_system"),
                    before.stats.get("latency"),
                    &after.stats["file_system"],
                    &after.stats["latency"],
                    seconds,
                ),
                bytes("/file_system/user_read_bytes", "/file_system/user_written_bytes"),
            ),
            Some(process_id) => of_client(before, after, process_id, clients.as_deref(), seconds)?,
        };
        Ok(Self {
            named: named.clone(),
            interval_seconds: (seconds * 1e3).round() / 1e3,
            client,
            operations,
            data,
            byte_path: bytes("/byte_path/read_bytes", "/byte_path/written_bytes"),
            block_path: bytes("/block_path/read_bytes", "/block_path/written_bytes"),
            memory_zone: zone(&after.stats["memory_zone"]),
            block_zone: zone(&after.stats["block_zone"]),
            write_back: WriteBack {
                blocks_per_second: rate("/file_system/block_write_backs"),
                bytes_per_second: rate("/file_system/write_back_bytes"),
                freed_bytes_per_second: rate("/file_system/write_back_freed_bytes"),
            },
            store_leases: clients.as_deref().map(|clients| store_leases(after, clients)),
            clients,
            connections: after.number("/direct/connections"),
        })
    }
}

/// A second's part of what was added. A counter that has become less was reset: all of it is new.
fn rate(before: u64, after: u64, seconds: f64) -> f64 {
    let added = after.checked_sub(before).unwrap_or(after);
    if seconds > 0.0 { (added as f64 / seconds * 10.0).round() / 10.0 } else { 0.0 }
}

fn zone(zone: &Value) -> Zone {
    let bytes = |name: &str| zone[name].as_u64().unwrap_or_default();
    let (total_bytes, free_bytes) = (bytes("total_bytes"), bytes("free_bytes"));
    Zone {
        total_bytes,
        used_bytes: total_bytes.saturating_sub(free_bytes),
        free_bytes,
        available_bytes: bytes("available_bytes"),
        data_log_bytes: bytes("data_log_bytes"),
    }
}

/// Operations of the mount or of a client: both have them under the same names.
fn operations(
    before: Option<&Value>,
    latency_before: Option<&Value>,
    after: &Value,
    latency_after: &Value,
    seconds: f64,
) -> BTreeMap<String, Operation> {
    let none = Value::Null;
    let (before, latency_before) = (before.unwrap_or(&none), latency_before.unwrap_or(&none));
    let kinds = after["operations"].as_object().into_iter().flatten();
    let operation = |name: &str, total: &Value| {
        let total = total.as_u64().unwrap_or_default();
        let times = counts(&latency_after["operations"][name]).since(&counts(&latency_before["operations"][name]));
        Operation {
            total,
            per_second: rate(before["operations"][name].as_u64().unwrap_or_default(), total, seconds),
            latency: latency(&times),
        }
    };
    kinds.map(|(name, total)| (name.clone(), operation(name, total))).collect()
}

/// What is shown of times; none if nothing was timed.
fn latency(times: &LatencyCounts) -> Option<Latency> {
    Some(Latency {
        samples: times.samples(),
        p50_ns: times.percentile(0.5)?,
        p90_ns: times.percentile(0.9)?,
        p99_ns: times.percentile(0.99)?,
        p999_ns: times.percentile(0.999)?,
        max_ns: times.percentile(1.0)?,
    })
}

/// A client of the answer before; null for one that came since.
fn earlier<'s>(before: &'s Sample, client: &Value) -> &'s Value {
    let same = |other: &&Value| other["connection"] == client["connection"];
    before.clients().and_then(|clients| clients.iter().find(same)).unwrap_or(&Value::Null)
}

fn clients_between(before: &Sample, clients: &[Value], seconds: f64) -> Vec<Client> {
    let mut all: Vec<Client> = clients.iter().map(|client| client_between(earlier(before, client), client, seconds)).collect();
    all.sort_by(|one, other| other.requests_per_second.total_cmp(&one.requests_per_second).then(one.connection.cmp(&other.connection)));
    all
}

fn client_between(before: &Value, after: &Value, seconds: f64) -> Client {
    let now = |name: &str| after[name].as_u64().unwrap_or_default();
    let per_second = |name: &str| rate(before[name].as_u64().unwrap_or_default(), now(name), seconds);
    Client {
        connection: now("connection"),
        process_id: after["process_id"].as_i64().unwrap_or_default(),
        command: output::printable(after["command"].as_str().unwrap_or_default()),
        user: now("user"),
        connected_seconds: now("connected_seconds"),
        open_files: now("open_files"),
        requests: now("requests"),
        requests_per_second: per_second("requests"),
        requests_to_pool: now("requests_to_pool"),
        requests_to_mount: now("requests_to_mount"),
        read_bytes: now("read_bytes"),
        written_bytes: now("written_bytes"),
        data: Bytes { read_bytes_per_second: per_second("read_bytes"), written_bytes_per_second: per_second("written_bytes") },
        store_leases: client_leases(&before["store_leases"], &after["store_leases"], seconds),
    }
}

fn client_leases(before: &Value, after: &Value, seconds: f64) -> Option<ClientLeases> {
    let now = |name: &str| after[name].as_u64().unwrap_or_default();
    after.is_object().then(|| ClientLeases {
        held: now("held"),
        lent: now("lent"),
        lent_per_second: rate(before["lent"].as_u64().unwrap_or_default(), now("lent"), seconds),
        ended: now("ended"),
        taken_away: now("taken_away"),
        is_late: after["is_late"].as_bool().unwrap_or_default(),
    })
}

fn store_leases(after: &Sample, clients: &[Client]) -> StoreLeases {
    let all = || clients.iter().filter_map(|client| client.store_leases.as_ref());
    StoreLeases {
        clients: all().count() as u64,
        holders: all().filter(|leases| leases.held > 0).count() as u64,
        held: after.number("/direct/store_leases/held"),
        taken_away: all().map(|leases| leases.taken_away).sum(),
        kept_back_bytes: after.number("/direct/store_leases/kept_back_bytes"),
    }
}

/// Operations and data of one client. The newest connection of a process counts: the door ends the one before.
fn of_client(
    before: &Sample,
    after: &Sample,
    process_id: i64,
    clients: Option<&[Client]>,
    seconds: f64,
) -> Result<(BTreeMap<String, Operation>, Bytes), String> {
    let clients = clients.ok_or("this mount has no direct door, and so no clients; mount it with -o direct")?;
    let of_process = clients.iter().filter(|client| client.process_id == process_id);
    let client = of_process.max_by_key(|client| client.connection).ok_or_else(|| no_client(process_id))?;
    let same = |value: &&Value| value["connection"] == client.connection;
    let now = after.clients().and_then(|clients| clients.iter().find(same)).ok_or_else(|| no_client(process_id))?;
    let then = earlier(before, now);
    Ok((operations(Some(then), then.get("latency"), now, &now["latency"], seconds), client.data.clone()))
}

fn no_client(process_id: i64) -> String {
    format!("process {process_id} is no client of the direct door")
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn sample(at: Instant, stats: Value) -> Sample {
        Sample { at, stats }
    }

    fn stats(writes: u64, client_requests: u64, buckets: &Value) -> Value {
        json!({
            "byte_path": { "read_bytes": 0, "written_bytes": 4096 * writes },
            "block_path": { "read_bytes": 0, "written_bytes": 0 },
            "file_system": {
                "operations": { "write": writes, "read": 7 },
                "user_read_bytes": 70, "user_written_bytes": 4096 * writes,
                "block_write_backs": writes / 10, "write_back_bytes": 4096 * (writes / 10), "write_back_freed_bytes": 640,
            },
            "latency": { "sampled_1_in": 16, "operations": { "write": { "buckets": buckets } } },
            "memory_zone": { "total_bytes": 1000, "free_bytes": 250, "available_bytes": 200, "data_log_bytes": 100, "promoted_bytes": 0 },
            "block_zone": { "total_bytes": 0, "free_bytes": 0, "available_bytes": 0, "data_log_bytes": 0, "promoted_bytes": 0 },
            "direct": { "connections": 3, "clients": [
                { "connection": 2, "process_id": 41, "command": "idle", "user": 0, "requests": 5, "operations": { "open": 5 } },
                { "connection": 3, "process_id": 42, "command": "da\nta", "user": 1000, "requests": client_requests, "written_bytes": 100 * client_requests,
                  "requests_to_pool": 1, "operations": { "write": client_requests },
                  "store_leases": { "held": 3, "lent": client_requests / 10, "ended": 38, "taken_away": 1, "is_late": false },
                  "latency": { "operations": { "write": { "buckets": buckets } } } },
            ], "store_leases": { "held": 3, "kept_back_bytes": 8192 } },
        })
    }

    /// Two seconds with 1000 writes and one busy client of two.
    pub fn two_seconds() -> (Named, Sample, Sample) {
        let (then, named) = (Instant::now(), Named { mountpoint: "/mnt".into(), device: "disk.image".into(), mode: "strict".into() });
        let before = sample(then, stats(50, 10, &json!([[2048, 3]])));
        let after = sample(then + Duration::from_secs(2), stats(1050, 410, &json!([[2048, 63], [4096, 30], [1_048_576, 10]])));
        (named, before, after)
    }

    #[test]
    fn rates_are_of_the_interval_and_totals_of_the_mount() {
        let (named, before, after) = two_seconds();
        let view = View::between(&named, &before, &after, None).expect("a view");
        let write = &view.operations["write"];
        assert_eq!((write.total, write.per_second), (1050, 500.0));
        let expected = Latency { samples: 100, p50_ns: 2048, p90_ns: 4096, p99_ns: 1_048_576, p999_ns: 1_048_576, max_ns: 1_048_576 };
        assert_eq!(write.latency, Some(expected));
        assert_eq!((view.operations["read"].per_second, &view.operations["read"].latency), (0.0, &None));
        assert_eq!(view.data.written_bytes_per_second, 2_048_000.0);
        assert_eq!((view.memory_zone.used_bytes, view.write_back.blocks_per_second), (750, 50.0));
        let clients = view.clients.expect("a door");
        assert_eq!(clients.iter().map(|client| client.process_id).collect::<Vec<_>>(), [42, 41], "busiest first");
        assert_eq!((clients[0].requests_per_second, clients[0].data.written_bytes_per_second), (200.0, 20_000.0));
        assert_eq!(clients[0].command, "da\\nta", "no process writes to the terminal");
        let of_client = ClientLeases { held: 3, lent: 41, lent_per_second: 20.0, ended: 38, taken_away: 1, is_late: false };
        assert_eq!((&clients[0].store_leases, &clients[1].store_leases), (&Some(of_client), &None));
        let of_all = StoreLeases { clients: 1, holders: 1, held: 3, taken_away: 1, kept_back_bytes: 8192 };
        assert_eq!(view.store_leases, Some(of_all));
    }

    #[test]
    fn of_one_client() {
        let (named, before, after) = two_seconds();
        let view = View::between(&named, &before, &after, Some(42)).expect("a view");
        assert_eq!(view.operations.keys().collect::<Vec<_>>(), ["write"]);
        assert_eq!((view.operations["write"].per_second, view.data.written_bytes_per_second), (200.0, 20_000.0));
        assert!(View::between(&named, &before, &after, Some(43)).expect_err("none").contains("process 43 is no client"));
        let (_, mut without, _) = two_seconds();
        without.stats["direct"] = Value::Null;
        assert!(View::between(&named, &before, &without, Some(42)).expect_err("none").contains("no direct door"));
        let view = View::between(&named, &before, &without, None).expect("a view");
        assert_eq!((view.clients, view.store_leases), (None, None));
    }

    #[test]
    fn a_reset_begins_anew() {
        let (named, before, after) = two_seconds();
        let (before, after) = (Sample { at: before.at, ..after }, Sample { at: after.at, ..before });
        let view = View::between(&named, &before, &after, None).expect("a view");
        assert_eq!((view.operations["write"].total, view.operations["write"].per_second), (50, 25.0));
    }

    #[test]
    fn the_json_has_the_documented_names() {
        let (named, before, after) = two_seconds();
        let view = serde_json::to_value(View::between(&named, &before, &after, None).expect("a view")).expect("JSON");
        for pointer in [
            "/mountpoint",
            "/device",
            "/mode",
            "/interval_seconds",
            "/client",
            "/operations/write/total",
            "/operations/write/per_second",
            "/operations/write/latency/samples",
            "/operations/write/latency/p50_ns",
            "/operations/write/latency/p999_ns",
            "/operations/write/latency/max_ns",
            "/data/read_bytes_per_second",
            "/data/written_bytes_per_second",
            "/byte_path/written_bytes_per_second",
            "/block_path/read_bytes_per_second",
            "/memory_zone/used_bytes",
            "/block_zone/total_bytes",
            "/write_back/blocks_per_second",
            "/write_back/bytes_per_second",
            "/write_back/freed_bytes_per_second",
            "/connections",
            "/clients/0/connection",
            "/clients/0/process_id",
            "/clients/0/command",
            "/clients/0/user",
            "/clients/0/connected_seconds",
            "/clients/0/open_files",
            "/clients/0/requests",
            "/clients/0/requests_per_second",
            "/clients/0/requests_to_pool",
            "/clients/0/requests_to_mount",
            "/clients/0/read_bytes",
            "/clients/0/written_bytes",
            "/clients/0/read_bytes_per_second",
            "/clients/0/written_bytes_per_second",
        ] {
            assert!(view.pointer(pointer).is_some(), "{pointer}: {view:#}");
        }
    }
}
