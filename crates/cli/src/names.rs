//! Names and numbers of users and groups, in the lines of passwd(5) and group(5): `name:password:number:...`.

use std::process::{Command, Stdio};

/// Lines of the database `passwd` or `group`, from wherever the machine has it: those of a name, or all of them.
pub fn lines_of(database: &str, name: Option<&str>) -> String {
    let mut command = Command::new("getent");
    command.args([database, "--"]).args(name);
    match command.stdin(Stdio::null()).stderr(Stdio::null()).output() {
        Ok(found) if found.status.success() => String::from_utf8_lossy(&found.stdout).into_owned(),
        _ => std::fs::read_to_string(format!("/etc/{database}")).unwrap_or_default(),
    }
}

/// The number of a name.
pub fn number_of(lines: &str, name: &str) -> Option<u32> {
    each(lines).find(|(found, _)| *found == name).map(|(_, number)| number)
}

/// The name of a number.
pub fn name_of(lines: &str, number: u64) -> Option<&str> {
    each(lines).find(|(_, found)| u64::from(*found) == number).map(|(name, _)| name)
}

fn each(lines: &str) -> impl Iterator<Item = (&str, u32)> {
    lines.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    })
}
