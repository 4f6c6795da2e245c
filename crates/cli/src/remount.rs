//! `-o remount`: what the kernel can change of a mount in place, settings that its daemon can change, and what holds as long as the mount.

use tandemfs_device::{NodeSpec, PersistenceDomain};
use tandemfs_fs::{FileSystem, HomeLimit};
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::{MountError, mounts};

use crate::arguments::MountArguments;
use crate::failure::{self, Failure, no_answer};
use crate::mount::machine_bytes;
use crate::mount_options::{ENGINES, NUMA, Options, UPDATES, group_number, home_limit, modified_lines, name_of, setting_of};
use crate::set;
use crate::size;

/// The options with a value that the daemon has: they hold as long as the mount, unless they are settings.
const OF_DAEMON: [&str; 24] = [
    "threshold",
    "write_back",
    "write_back_limit",
    "promote",
    "update",
    "read_ahead",
    "in_place",
    "modified_ratio",
    "home_limit",
    "large_extents",
    "numa",
    "numa_nodes",
    "engine",
    "discard",
    "memory",
    "domain",
    "timing",
    "threads",
    "log",
    "log_level",
    "metrics",
    "reserved",
    "direct_spin",
    "direct_clients",
];

/// Changes what the kernel can change of a mount, and its settings (`settings.rs`), all or nothing. An option that is not named stays. What else the daemon
/// does stays, so an option that asks for something else is refused; one that asks for what the mount has is not.
pub fn run(arguments: &MountArguments) -> Result<u8, Failure> {
    let place = arguments.mountpoint.display();
    let mount = mounts::find(&arguments.mountpoint).map_err(|error| Failure::at(&place, error))?;
    let mount = mount.ok_or_else(|| Failure::Failed(format!("{place}: no TandemFS is mounted there, so there is nothing to remount")))?;
    let info = control::ask(&mount, Request::Info).map_err(|error| no_answer(&mount, &error))?;
    let has = |name: &str| info["options"][name].as_str().unwrap_or_default().to_owned();
    let named = || arguments.options.iter().map(String::as_str);
    let (settings, lasting): (Vec<Change>, Vec<Change>) = changes(named(), &has).into_iter().partition(|change| change.setting.is_some());
    if let Some(Change { word, is, .. }) = lasting.first() {
        return Err(Failure::Failed(format!("{place}: a remount cannot change {is} to {word}; unmount, and mount with the new options")));
    }
    let flags: Vec<&str> = mount.flags.iter().map(String::as_str).filter(|flag| is_changeable(flag)).collect();
    let options = Options::parse(flags.iter().copied().chain(named()), true).map_err(Failure::Usage)?;
    if info["read_only"].as_bool() == Some(true) && !options.settings.read_only {
        return Err(Failure::Failed(format!("{place}: the device was opened for reading only: unmount, and mount again without 'ro'")));
    }
    let before: Vec<String> = settings.iter().map(|change| change.is.clone()).collect();
    if !settings.is_empty() {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::because(MountError::RemountDenied { path: mount.mountpoint }));
        }
        for warning in set::ask(&mount, settings.into_iter().map(|change| change.word).collect())?.warnings {
            failure::warn(&warning);
        }
    }
    tandemfs_fuse::remount(&mount.mountpoint, &options.settings).map_err(|error| {
        if !before.is_empty() && set::ask(&mount, before).is_err() {
            failure::warn("the settings stay as this remount named them");
        }
        Failure::because(error)
    })?;
    Ok(0)
}

/// An option that this remount names and that would change what the daemon has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    /// As named.
    word: String,
    /// The present value, as `-o` has it.
    is: String,
    /// The setting that it is, if it can change while the mount is in use.
    setting: Option<&'static str>,
}

fn is_changeable(flag: &str) -> bool {
    matches!(flag, "ro" | "rw" | "nosuid" | "nodev" | "noexec" | "sync" | "dirsync")
}

/// Names and values of the options that hold as long as the mount, as `-o` takes them. Those that can change meanwhile: `settings.rs`.
pub fn lasting(options: &Options, fs: &FileSystem) -> Vec<(&'static str, String)> {
    let (file_system, settings) = (&options.file_system, &options.settings);
    let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
    vec![
        ("mode", settings.mode.name().into()),
        ("update", name_of(&UPDATES, file_system.update)),
        ("home_limit", home_limit_word(file_system.home_limit)),
        ("large_extents", size::word(file_system.large_extent_bytes)),
        ("numa", name_of(&NUMA, file_system.numa)),
        ("numa_nodes", options.nodes.as_ref().map_or_else(String::new, ToString::to_string)),
        ("engine", name_of(&ENGINES, file_system.engine)),
        ("domain", fs.drive().domain().name().into()),
        ("timing", on_off(options.timing)),
        ("threads", settings.thread_count().to_string()),
        ("log", options.log.as_ref().map_or_else(String::new, |log| log.display().to_string())),
        ("metrics", options.metrics.as_ref().map_or_else(String::new, ToString::to_string)),
        ("xattr", on_off(settings.attributes)),
        ("dirsync", on_off(settings.dirsync)),
        ("reserved", format!("{}%", settings.reserved_percent)),
        ("nouuid", on_off(options.nouuid)),
        ("allow_other", on_off(settings.allow_other)),
        ("allow_root", on_off(settings.allow_root)),
        ("direct", options.direct.lends_to.map_or_else(|| on_off(settings.direct), |group| group.to_string())),
        ("direct_stores", options.direct.stores_by.map_or_else(String::new, |group| group.to_string())),
        ("direct_spin", options.direct.spin.as_micros().to_string()),
        ("direct_clients", options.direct.clients.to_string()),
    ]
}

/// The options that this remount names and that would change what the daemon has. Of a setting that is named several times the last word counts. `lasting` says
/// what the mount has.
fn changes<'a>(lists: impl IntoIterator<Item = &'a str>, lasting: &dyn Fn(&str) -> String) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let words: Vec<&str> = lists.into_iter().flat_map(|list| list.split(',')).collect();
    let Ok(wanted) = Options::parse(words.iter().copied(), true) else { return changes };
    if wanted.names_mode && wanted.settings.mode.name() != lasting("mode") {
        changes.push(Change { word: wanted.settings.mode.name().to_owned(), is: lasting("mode"), setting: None });
    }
    for word in words {
        let (name, is) = match word {
            "xattr" | "user_xattr" | "acl" => ("xattr", lasting("xattr") == "on"),
            // The kernel ignores this one in a remount.
            "dirsync" => ("dirsync", lasting("dirsync") == "on"),
            "noxattr" => ("xattr", lasting("xattr") == "off"),
            "direct" => ("direct", lasting("direct") == "on"),
            "nouuid" => ("nouuid", lasting("nouuid") == "on"),
            "discard" => ("discard", lasting("discard") == "batched"),
            "nodiscard" => ("discard", lasting("discard") == "none"),
            // The kernel has one flag for both.
            "allow_other" => ("allow_other", lasting("allow_other") == "on" || lasting("allow_root") == "on"),
            "allow_root" => ("allow_root", lasting("allow_root") == "on"),
            _ => match word.split_once('=') {
                Some((name @ ("direct" | "direct_stores"), group)) => {
                    (name, group_number(name, group).is_ok_and(|group| lasting(name) == group.to_string()))
                }
                Some((name, value)) if OF_DAEMON.contains(&name) => (name, is_same(name, value, &lasting(name))),
                _ => continue,
            },
        };
        let setting = setting_of(word);
        changes.retain(|change| setting.is_none() || change.setting != setting);
        if !is {
            changes.push(Change { word: word.to_owned(), is: format!("{name}={}", lasting(name)), setting });
        }
    }
    changes
}

fn home_limit_word(limit: HomeLimit) -> String {
    match limit {
        HomeLimit::Bytes(bytes) => size::word(bytes),
        HomeLimit::Percent(percent) => format!("{percent}%"),
    }
}

/// Whether two spellings of a value mean the same.
fn is_same(name: &str, one: &str, other: &str) -> bool {
    let share = |value: &str| value.strip_suffix('%').unwrap_or(value).parse::<u32>().ok();
    match name {
        // A mount has no more than the machine has, whatever fstab says.
        "memory" => size::parse(one).is_ok_and(|one| size::parse(other) == Ok(one.min(machine_bytes()))),
        "threshold" | "read_ahead" | "in_place" | "large_extents" if one != "auto" => {
            size::parse(one).is_ok_and(|one| size::parse(other) == Ok(one))
        }
        "write_back_limit" | "reserved" => share(one).is_some() && share(one) == share(other),
        "home_limit" => home_limit(one).is_ok_and(|one| home_limit(other) == Ok(one)),
        "modified_ratio" => modified_lines(one) == modified_lines(other),
        "numa_nodes" => one.parse::<NodeSpec>().is_ok_and(|one| other.parse() == Ok(one)),
        "domain" => one.parse::<PersistenceDomain>().is_ok_and(|one| other.parse() == Ok(one)),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_remount_names_what_it_would_change() {
        let lasting = |name: &str| {
            match name {
                "mode" => "strict",
                "threshold" => "64K",
                "memory" => "256M",
                "threads" => "2",
                "domain" => "process",
                "modified_ratio" => "8/64",
                "reserved" => "5%",
                "xattr" | "allow_root" => "on",
                _ => "off",
            }
            .to_owned()
        };
        let changes = |list: &str| -> Vec<(String, String, bool)> {
            super::changes([list], &lasting).into_iter().map(|change| (change.word, change.is, change.setting.is_some())).collect()
        };
        let equal = "remount,ro,strict,threshold=65536,memory=0.25G,threads=2,domain=process,modified_ratio=1/8,reserved=5,xattr,allow_other,\
                     user_id=0,noatime,nodev";
        assert_eq!(changes(equal), []);
        for (word, is) in [
            ("relaxed", "strict"),
            ("threads=3", "threads=2"),
            ("noxattr", "xattr=on"),
            ("dirsync", "dirsync=off"),
            ("nouuid", "nouuid=off"),
        ] {
            assert_eq!(changes(&format!("remount,{word},ro")), [(word.to_owned(), is.to_owned(), false)]);
        }
        for (word, is) in [
            ("threshold=auto", "threshold=64K"),
            ("memory=128M", "memory=256M"),
            ("modified_ratio=1/4", "modified_ratio=8/64"),
            ("discard", "discard=off"),
            ("log_level=warn", "log_level=off"),
        ] {
            assert_eq!(changes(&format!("remount,{word},ro")), [(word.to_owned(), is.to_owned(), true)]);
        }
        assert_eq!(changes("remount,memory=128M,threshold=128K,memory=256M"), [("threshold=128K".into(), "threshold=64K".into(), true)]);
    }
}
