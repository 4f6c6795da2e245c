//! `tandemfs top --once`: everything as lines.

use super::columns::{self, CLIENTS, Column, OPERATIONS, bytes};
use super::sample::{Bytes, StoreLeases, View, Zone};
use crate::output::count;
use crate::size;

/// Columns by which the tables are sorted: what was done most comes first.
pub const BUSIEST: (usize, usize) = (1, 2);

/// All of it.
pub fn text(view: &View) -> String {
    let mut lines = vec![head(view)];
    lines.extend(zones(view));
    lines.push(String::new());
    lines.extend(flow(view));
    lines.extend([write_back(view), "".into()]);
    lines.extend(table(OPERATIONS, &columns::operations(view, BUSIEST.0)));
    lines.push(String::new());
    lines.extend(door(view));
    if view.clients.as_ref().is_some_and(|clients| !clients.is_empty()) {
        lines.extend(table(CLIENTS, &columns::clients(view, BUSIEST.1)));
    }
    lines.join("\n") + "\n"
}

/// Which mount, and of whom.
pub fn head(view: &View) -> String {
    let of = view.client.map_or_else(String::new, |process_id| format!(", process {process_id}"));
    let named = &view.named;
    format!("{} on {} ({}){of}, in {:.1} s", named.device, named.mountpoint, named.mode, view.interval_seconds)
}

/// A line for each zone that there is.
pub fn zones(view: &View) -> Vec<String> {
    let all = [("memory zone", &view.memory_zone), ("block zone", &view.block_zone)];
    all.into_iter().filter(|(_, zone)| zone.total_bytes > 0).map(|(name, zone)| format!("{name:11}  {}", of_zone(zone))).collect()
}

/// What of a zone is used and free.
pub fn of_zone(zone: &Zone) -> String {
    let logs = if zone.data_log_bytes > 0 { format!(", data logs {}", size::show(zone.data_log_bytes)) } else { String::new() };
    format!("{} of {} used, {} free{logs}", size::show(zone.used_bytes), size::show(zone.total_bytes), size::show(zone.free_bytes))
}

/// Bytes a second on all ways: read, written.
pub fn flow(view: &View) -> [String; 2] {
    let ways = [("files", &view.data), ("byte path", &view.byte_path), ("block path", &view.block_path)];
    let line = |what: &str, rate: fn(&Bytes) -> f64| {
        let of = ways.map(|(name, way)| format!("{name} {}", bytes(rate(way))));
        format!("bytes {what} a second: {}", of.join(", "))
    };
    [line("read", |way| way.read_bytes_per_second), line("written", |way| way.written_bytes_per_second)]
}

/// What write-back does.
pub fn write_back(view: &View) -> String {
    let of = &view.write_back;
    let (written, freed) = (bytes(of.bytes_per_second), bytes(of.freed_bytes_per_second));
    format!("write-back a second: {:.0} blocks, {written} written, {freed} of the memory zone freed", of.blocks_per_second)
}

/// Whether there is a door, and who has been there; and a line about who stores to memory by himself, if anybody may or could.
pub fn door(view: &View) -> Vec<String> {
    let Some(clients) = &view.clients else { return vec!["no direct door (-o direct)".into()] };
    let now = count(clients.len() as u64, "client", "clients");
    let first = format!("direct door: {now} now, {} since the mount", view.connections);
    std::iter::once(first).chain(view.store_leases.as_ref().and_then(leases)).collect()
}

fn leases(of: &StoreLeases) -> Option<String> {
    let kept_back = if of.kept_back_bytes > 0 { format!(", {} kept back", size::show(of.kept_back_bytes)) } else { String::new() };
    let said = || format!("leases for stores: {} of {}{kept_back}", of.held, count(of.holders, "client", "clients"));
    (of.clients > 0 || of.kept_back_bytes > 0).then(said)
}

fn table<R>(columns: &[Column<R>], rows: &[R]) -> Vec<String> {
    let line = |cell: &dyn Fn(&Column<R>) -> String| {
        let cells = columns.iter().map(|column| {
            let (text, width) = (cell(column), usize::from(column.width));
            if column.is_text { format!("{text:width$}") } else { format!("{text:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heads = std::iter::once(line(&|column| column.title.into()));
    heads.chain(rows.iter().map(|row| line(&|column| (column.cell)(row)))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::two_seconds;
    use super::*;

    #[test]
    fn everything_is_said() {
        let (named, before, after) = two_seconds();
        let said = text(&View::between(&named, &before, &after, None).expect("a view"));
        let expected = "\
disk.image on /mnt (strict), in 2.0 s
memory zone  750 B of 1000 B used, 250 B free, data logs 100 B

bytes read a second: files 0 B, byte path 0 B, block path 0 B
bytes written a second: files 2.0 MiB, byte path 2.0 MiB, block path 0 B
write-back a second: 50 blocks, 200 KiB written, 0 B of the memory zone freed

OPERATION           PER SECOND         TOTAL    MEDIAN      90 %      99 %    99.9 %
write                      500          1050    2.0 us    4.1 us    1.0 ms    1.0 ms
read                         0             7         -         -         -         -

direct door: 2 clients now, 3 since the mount
leases for stores: 3 of 1 client, 8 KiB kept back
PROCESS  NAME             REQUESTS/S      READ/S   WRITTEN/S  TO POOL  TO MOUNT  LEASES
     42  da\\nta                  200         0 B    19.5 KiB    0.2 %         -       3
     41  idle                      0         0 B         0 B        -         -       -
";
        assert_eq!(said, expected, "\n{said}");
    }
}
