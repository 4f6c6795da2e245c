//! The tables: what each column is called, shows, and in which order it puts the rows.

use std::cmp::Ordering;

use super::sample::{Client, ClientLeases, Latency, Operation, View};
use crate::size;

/// A column of rows of a kind.
pub struct Column<R> {
    /// Its head.
    pub title: &'static str,
    /// Characters that it takes.
    pub width: u16,
    /// Its text begins at the left; numbers end at the right.
    pub is_text: bool,
    /// What it shows.
    pub cell: fn(&R) -> String,
    /// Which of two rows comes first; none if rows are not sorted by it.
    pub order: Option<fn(&R, &R) -> Ordering>,
}

/// A kind of operation by its name.
pub type Kind = (String, Operation);

/// Kinds of operations, busiest first.
pub const OPERATIONS: &[Column<Kind>] = &[
    Column { title: "OPERATION", width: 17, is_text: true, cell: |(name, _)| name.clone(), order: Some(|one, other| one.0.cmp(&other.0)) },
    Column {
        title: "PER SECOND",
        width: 11,
        is_text: false,
        cell: |(_, of)| per_second(of.per_second),
        order: Some(|one, other| other.1.per_second.total_cmp(&one.1.per_second).then(other.1.total.cmp(&one.1.total))),
    },
    Column {
        title: "TOTAL",
        width: 12,
        is_text: false,
        cell: |(_, of)| of.total.to_string(),
        order: Some(|one, other| other.1.total.cmp(&one.1.total)),
    },
    Column {
        title: "MEDIAN",
        width: 8,
        is_text: false,
        cell: |(_, of)| time(of, |times| times.p50_ns),
        order: Some(|one, other| longest(one, other, |times| times.p50_ns)),
    },
    Column { title: "90 %", width: 8, is_text: false, cell: |(_, of)| time(of, |times| times.p90_ns), order: None },
    Column {
        title: "99 %",
        width: 8,
        is_text: false,
        cell: |(_, of)| time(of, |times| times.p99_ns),
        order: Some(|one, other| longest(one, other, |times| times.p99_ns)),
    },
    Column { title: "99.9 %", width: 8, is_text: false, cell: |(_, of)| time(of, |times| times.p999_ns), order: None },
];

/// Clients of the direct door.
pub const CLIENTS: &[Column<Client>] = &[
    Column {
        title: "PROCESS",
        width: 7,
        is_text: false,
        cell: |client| client.process_id.to_string(),
        order: Some(|one, other| one.process_id.cmp(&other.process_id)),
    },
    Column {
        title: "NAME",
        width: 15,
        is_text: true,
        cell: |client| client.command.clone(),
        order: Some(|one, other| one.command.cmp(&other.command)),
    },
    Column {
        title: "REQUESTS/S",
        width: 10,
        is_text: false,
        cell: |client| per_second(client.requests_per_second),
        order: Some(|one, other| other.requests_per_second.total_cmp(&one.requests_per_second).then(other.requests.cmp(&one.requests))),
    },
    Column {
        title: "READ/S",
        width: 10,
        is_text: false,
        cell: |client| bytes(client.data.read_bytes_per_second),
        order: Some(|one, other| other.data.read_bytes_per_second.total_cmp(&one.data.read_bytes_per_second)),
    },
    Column {
        title: "WRITTEN/S",
        width: 10,
        is_text: false,
        cell: |client| bytes(client.data.written_bytes_per_second),
        order: Some(|one, other| other.data.written_bytes_per_second.total_cmp(&one.data.written_bytes_per_second)),
    },
    Column { title: "TO POOL", width: 7, is_text: false, cell: |client| share(client.requests_to_pool, client.requests), order: None },
    Column { title: "TO MOUNT", width: 8, is_text: false, cell: |client| share(client.requests_to_mount, client.requests), order: None },
    Column {
        title: "LEASES",
        width: 6,
        is_text: false,
        cell: |client| leases(client.store_leases.as_ref()),
        order: Some(|one, other| held(other).cmp(&held(one))),
    },
];

fn held(client: &Client) -> u64 {
    client.store_leases.as_ref().map_or(0, |leases| leases.held)
}

/// How many there are; `late` for who gets none any more, `-` for who never does.
fn leases(of: Option<&ClientLeases>) -> String {
    of.map_or_else(|| "-".into(), |leases| if leases.is_late { "late".into() } else { leases.held.to_string() })
}

/// Kinds of operations in the order of a column. Kinds that never came are left out.
pub fn operations(view: &View, by: usize) -> Vec<Kind> {
    let came = view.operations.iter().filter(|(_, of)| of.total > 0).map(|(name, of)| (name.clone(), of.clone()));
    sorted(came.collect(), OPERATIONS, by)
}

/// Clients in the order of a column.
pub fn clients(view: &View, by: usize) -> Vec<Client> {
    sorted(view.clients.clone().unwrap_or_default(), CLIENTS, by)
}

fn sorted<R>(mut rows: Vec<R>, columns: &[Column<R>], by: usize) -> Vec<R> {
    if let Some(order) = columns.get(by).and_then(|column| column.order) {
        rows.sort_by(order);
    }
    rows
}

/// The next column that rows can be sorted by.
pub fn next_order<R>(columns: &[Column<R>], by: usize) -> usize {
    let from = by + 1;
    (from..columns.len()).chain(0..from).find(|column| columns[*column].order.is_some()).unwrap_or(by)
}

fn longest(one: &Kind, other: &Kind, of: fn(&Latency) -> u64) -> Ordering {
    let ns = |kind: &Kind| kind.1.latency.as_ref().map(of);
    ns(other).cmp(&ns(one))
}

/// A rate: `0`, `0.5`, `12`, `1234567`.
fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Bytes a second.
pub fn bytes(rate: f64) -> String {
    size::show(rate.max(0.0) as u64)
}

/// `850 ns`, `1.8 us`, `23 ms`, `1.2 s`; `-` without times.
fn time(of: &Operation, ns: fn(&Latency) -> u64) -> String {
    let Some(times) = &of.latency else { return "-".into() };
    let ns = ns(times);
    let (amount, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if amount < 10.0 { format!("{amount:.1} {unit}") } else { format!("{amount:.0} {unit}") }
}

fn share(part: u64, of: u64) -> String {
    match (part, of) {
        (0, _) | (_, 0) => "-".into(),
        (part, of) => format!("{:.1} %", part as f64 * 100.0 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_fit() {
        for (ns, shown) in [(850, "850 ns"), (1_792, "1.8 us"), (23_068_672, "23 ms"), (1_200_000_000, "1.2 s"), (137_438_953_472, "137 s")]
        {
            let of = Operation { latency: Some(Latency { p50_ns: ns, ..Latency::default() }), ..Operation::default() };
            assert_eq!(time(&of, |times| times.p50_ns), shown);
        }
        assert_eq!([0.0, 0.5, 12.3, 1_234_567.8].map(per_second), ["0", "0.5", "12", "1234568"]);
        assert_eq!((share(0, 9), share(1, 8), share(9, 9)), ("-".into(), "12.5 %".into(), "100.0 %".into()));
        let of = |is_late| ClientLeases { held: 12, is_late, ..ClientLeases::default() };
        assert_eq!([leases(None), leases(Some(&of(false))), leases(Some(&of(true)))], ["-", "12", "late"]);
    }

    #[test]
    fn rows_go_by_the_chosen_column() {
        let kind = |name: &str, total, rate, p99_ns| {
            let latency = (p99_ns > 0).then(|| Latency { p99_ns, ..Latency::default() });
            (name.to_owned(), Operation { total, per_second: rate, latency })
        };
        let operations_of = [kind("a", 9, 1.0, 0), kind("b", 5, 3.0, 70), kind("c", 7, 2.0, 90), kind("never", 0, 0.0, 0)];
        let view = View { operations: operations_of.into(), ..View::default() };
        let names = |by: usize| operations(&view, by).into_iter().map(|(name, _)| name).collect::<String>();
        assert_eq!((names(0), names(1), names(2), names(5)), ("abc".into(), "bca".into(), "acb".into(), "cba".into()));
        assert_eq!((next_order(OPERATIONS, 1), next_order(OPERATIONS, 3), next_order(OPERATIONS, 5)), (2, 5, 0));
    }
}
