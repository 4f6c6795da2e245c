//! `tandemfs quota`: limits of users, groups and projects, and what they use, through the daemon of a mount.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::{QuotaCommand, QuotaGraceArguments, QuotaProjectArguments, QuotaSetArguments, QuotaSubject};
use crate::failure::Failure;
use crate::names;
use crate::output;
use crate::size;
use crate::umount;

/// Runs a command on quota.
pub fn run(command: &QuotaCommand) -> Result<u8, Failure> {
    match command {
        QuotaCommand::Set(arguments) => set(arguments),
        QuotaCommand::Get(arguments) => {
            let mount = umount::find(&arguments.mountpoint)?;
            let (kind, id) = subject(&arguments.subject)?;
            let answer = ask(&mount, Request::QuotaGet { kind: kind.into(), id })?;
            show(&answer, arguments.json)
        }
        QuotaCommand::Report(arguments) => {
            let mount = umount::find(&arguments.mountpoint)?;
            show(&ask(&mount, Request::QuotaReport)?, arguments.json)
        }
        QuotaCommand::Grace(arguments) => grace(arguments),
        QuotaCommand::Project(arguments) => project(arguments),
    }
}

fn ask(mount: &Mounted, request: Request) -> Result<Value, Failure> {
    control::quota(mount, request).map_err(|error| Failure::at(mount.mountpoint.display(), error))
}

fn set(arguments: &QuotaSetArguments) -> Result<u8, Failure> {
    let limits = [
        [arguments.memory_soft, arguments.memory_hard],
        [arguments.block_soft, arguments.block_hard],
        [arguments.inodes_soft, arguments.inodes_hard],
    ];
    if limits.as_flattened().iter().all(Option::is_none) {
        return Err(Failure::Usage("name a limit, such as --block-hard 10G; 0 removes one".into()));
    }
    let mount = umount::find(&arguments.mountpoint)?;
    let (kind, id) = subject(&arguments.subject)?;
    let answer = ask(&mount, Request::QuotaSet { kind: kind.into(), id, limits })?;
    if arguments.json {
        output::print_json(&answer)?;
    }
    Ok(0)
}

fn grace(arguments: &QuotaGraceArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    ask(&mount, Request::QuotaGrace { kind: arguments.kind.clone(), seconds: arguments.time })?;
    Ok(0)
}

fn project(arguments: &QuotaProjectArguments) -> Result<u8, Failure> {
    let given = arguments.path.display();
    let found = mounts::containing(&arguments.path).map_err(|error| Failure::at(given.to_string(), error))?;
    let Some((mount, path)) = found else {
        return Err(Failure::at(given, "is in no mounted TandemFS; 'findmnt -t fuse.tandemfs' lists the mounts"));
    };
    // Open while the daemon works, so that the number stays that of this inode.
    let file = File::open(&path).map_err(|error| Failure::at(given.to_string(), error))?;
    let inode = file.metadata().map_err(|error| Failure::at(given.to_string(), error))?.ino();
    let answer = ask(&mount, Request::QuotaProject { inode, project: arguments.project })?;
    if arguments.json {
        output::print_json(&answer)?;
    } else {
        let inodes = answer["inodes"].as_u64().unwrap_or(0);
        output::print(&format!("{given}: {} in project {}\n", output::count(inodes, "inode", "inodes"), arguments.project))?;
    }
    Ok(0)
}

/// The kind and the id of whom an argument names.
fn subject(subject: &QuotaSubject) -> Result<(&'static str, u32), Failure> {
    match (&subject.user, &subject.group, subject.project) {
        (Some(user), ..) => Ok(("user", id_of("passwd", user)?)),
        (_, Some(group), _) => Ok(("group", id_of("group", group)?)),
        (.., Some(project)) => Ok(("project", project)),
        _ => Err(Failure::Usage("name a --user, a --group or a --project".into())),
    }
}

/// The id of a name, or the number that is given instead.
fn id_of(database: &str, name: &str) -> Result<u32, Failure> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let what = if database == "passwd" { "user" } else { "group" };
    names::number_of(&names::lines_of(database, Some(name)), name)
        .ok_or_else(|| Failure::Failed(format!("there is no {what} '{name}'; give its number")))
}

/// The name of an id, or its number.
fn name_of(kind: &str, id: u64, databases: &[String; 2]) -> String {
    let lines = match kind {
        "user" => &databases[0],
        "group" => &databases[1],
        _ => return id.to_string(),
    };
    names::name_of(lines, id).map_or_else(|| id.to_string(), output::printable)
}

fn show(answer: &Value, as_json: bool) -> Result<u8, Failure> {
    if as_json {
        output::print_json(answer)?;
        return Ok(0);
    }
    output::print(&table(answer, &[names::lines_of("passwd", None), names::lines_of("group", None)]))?;
    Ok(0)
}

/// A table of usage and limits, a line for each id and what is counted.
fn table(answer: &Value, databases: &[String; 2]) -> String {
    let mut rows = vec![["kind", "id", "of", "used", "soft", "hard", "grace left"].map(String::from)];
    for entry in answer["entries"].as_array().into_iter().flatten() {
        let kind = entry["kind"].as_str().unwrap_or_default();
        let name = name_of(kind, entry["id"].as_u64().unwrap_or_default(), databases);
        for of in ["memory", "block", "inodes"] {
            let it = &entry[of];
            let amount = |field: &str| match it[field].as_u64().unwrap_or_default() {
                0 if field != "used" => "-".into(),
                number if of == "inodes" => number.to_string(),
                bytes => size::show(bytes),
            };
            let left = it["grace_seconds_left"].as_u64().map_or_else(|| "-".into(), show_time);
            rows.push([kind.into(), name.clone(), of.into(), amount("used"), amount("soft"), amount("hard"), left]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column < 3 { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A time for people, in its largest unit.
fn show_time(seconds: u64) -> String {
    match seconds {
        0 => "none".into(),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A time on the command line: `7d`, `12h`, `30m`, `90s`, `90`. In seconds.
pub fn parse_time(text: &str) -> Result<u32, String> {
    let (number, seconds) = match text.strip_suffix(['d', 'h', 'm', 's']) {
        Some(number) if text.ends_with('d') => (number, 86_400),
        Some(number) if text.ends_with('h') => (number, 3600),
        Some(number) if text.ends_with('m') => (number, 60),
        Some(number) => (number, 1),
        None => (text, 1),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let time = number.parse::<u32>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(seconds));
    time.ok_or_else(|| format!("'{text}' is no time; write it as 7d, 12h, 30m or 90s, up to 49710d"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in
            [("7d", 604_800), ("12h", 43_200), ("30m", 1800), ("90s", 90), ("90", 90), ("0", 0), ("49710d", 4_294_944_000)]
        {
            assert_eq!(parse_time(text), Ok(seconds), "{text}");
        }
        for text in ["", "d", "1w", "-1", "+1", "1.5h", "49711d", "4294967296"] {
            assert!(parse_time(text).is_err_and(|error| error.contains(&format!("'{text}'"))), "{text}");
        }
        assert_eq!([0, 90, 3600, 90_000, 604_800].map(show_time), ["none", "90 s", "60 min", "25 h", "7 d"]);
    }

    #[test]
    fn a_table_has_a_line_for_each_zone_and_for_inodes() {
        let of = |used: u64, hard: u64| json!({ "used": used, "soft": 0, "hard": hard, "grace_seconds_left": null });
        let over = json!({ "used": 5, "soft": 4, "hard": 0, "grace_seconds_left": 3600 });
        let answer = json!({ "entries": [{ "kind": "user", "id": 7, "memory": of(4096, 1 << 20), "block": of(0, 0), "inodes": over }] });
        let names = ["root:x:0:0::/root:/bin/sh\nalice:x:7:7::/home/alice:/bin/sh".to_owned(), String::new()];
        assert_eq!(
            table(&answer, &names),
            "kind  id     of       used  soft   hard  grace left\n\
             user  alice  memory  4 KiB     -  1 MiB           -\n\
             user  alice  block     0 B     -      -           -\n\
             user  alice  inodes      5     4      -      60 min\n"
        );
        assert_eq!((name_of("user", 8, &names), name_of("project", 7, &names)), ("8".into(), "7".into()));
    }
}
