//! `-o remount`: what the kernel can change of a mount in place, and what holds as long as the mount.

use tandemfs_device::{NodeSpec, PersistenceDomain};
use tandemfs_format::PAGE_LINES;
use tandemfs_fs::{FileSystem, HomeLimit, Threshold};
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts;

use crate::arguments::MountArguments;
use crate::failure::{Failure, no_answer};
use crate::mount::machine_bytes;
use crate::mount_options::{
    DISCARDS, ENGINES, NUMA, Options, PROMOTE, UPDATES, WRITE_BACK, group_number, home_limit, modified_lines, name_of,
};
use crate::size;

/// The options with a value that hold as long as the mount.
const LASTING: [&str; 23] = [
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
    "metrics",
    "reserved",
    "direct_spin",
    "direct_clients",
];

/// Changes what the kernel can change of a mount. An option that is not named stays. What the daemon does stays, so an option that asks for
/// something else is refused; one that asks for what the mount has is not.
pub fn run(arguments: &MountArguments) -> Result<u8, Failure> {
    let place = arguments.mountpoint.display();
    let mount = mounts::find(&arguments.mountpoint).map_err(|error| Failure::at(&place, error))?;
    let mount = mount.ok_or_else(|| Failure::Failed(format!("{place}: no TandemFS is mounted there, so there is nothing to remount")))?;
    let info = control::ask(&mount, Request::Info).map_err(|error| no_answer(&mount, &error))?;
    let lasting = |name: &str| info["options"][name].as_str().unwrap_or_default().to_owned();
    let named = || arguments.options.iter().map(String::as_str);
    if let Some((option, is)) = changes(named(), &lasting).first() {
        return Err(Failure::Failed(format!("{place}: a remount cannot change {is} to {option}; unmount, and mount with the new options")));
    }
    let has: Vec<&str> = mount.flags.iter().map(String::as_str).filter(|flag| is_changeable(flag)).collect();
    let options = Options::parse(has.into_iter().chain(named()), true).map_err(Failure::Usage)?;
    if info["read_only"].as_bool() == Some(true) && !options.settings.read_only {
        return Err(Failure::Failed(format!("{place}: the device was opened for reading only: unmount, and mount again without 'ro'")));
    }
    tandemfs_fuse::remount(&mount.mountpoint, &options.settings).map_err(Failure::because)?;
    Ok(0)
}

fn is_changeable(flag: &str) -> bool {
    matches!(flag, "ro" | "rw" | "nosuid" | "nodev" | "noexec" | "sync" | "dirsync")
}

/// Names and values of the options that hold as long as the mount, as `-o` takes them.
pub fn lasting(options: &Options, fs: &FileSystem) -> Vec<(&'static str, String)> {
    let (file_system, settings) = (&options.file_system, &options.settings);
    let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
    vec![
        ("mode", settings.mode.name().into()),
        ("threshold", threshold_word(file_system.threshold, fs.superblock().geometry.block_bytes())),
        ("write_back", name_of(&WRITE_BACK, file_system.write_back)),
        ("write_back_limit", format!("{}%", file_system.write_back_percent)),
        ("promote", name_of(&PROMOTE, file_system.promote)),
        ("update", name_of(&UPDATES, file_system.update)),
        ("read_ahead", size::word(file_system.read_ahead_bytes.into())),
        ("in_place", size::word(file_system.in_place_bytes.into())),
        ("modified_ratio", format!("{}/{PAGE_LINES}", file_system.modified_lines)),
        ("home_limit", home_limit_word(file_system.home_limit)),
        ("large_extents", size::word(file_system.large_extent_bytes)),
        ("numa", name_of(&NUMA, file_system.numa)),
        ("numa_nodes", options.nodes.as_ref().map_or_else(String::new, ToString::to_string)),
        ("engine", name_of(&ENGINES, file_system.engine)),
        ("discard", name_of(&DISCARDS, file_system.discard)),
        ("memory", size::word(file_system.memory_bytes)),
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

/// The options that this remount names and that would change what holds as long as the mount: each as named, and its present value.
/// `lasting` is [`lasting`] of the mount.
fn changes<'a>(lists: impl IntoIterator<Item = &'a str>, lasting: &dyn Fn(&str) -> String) -> Vec<(String, String)> {
    let mut changes = Vec::new();
    let words: Vec<&str> = lists.into_iter().flat_map(|list| list.split(',')).collect();
    let Ok(wanted) = Options::parse(words.iter().copied(), true) else { return changes };
    if wanted.names_mode && wanted.settings.mode.name() != lasting("mode") {
        changes.push((wanted.settings.mode.name().to_owned(), lasting("mode")));
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
                Some((name, value)) if LASTING.contains(&name) => (name, is_same(name, value, &lasting(name))),
                _ => continue,
            },
        };
        if !is {
            changes.push((word.to_owned(), format!("{name}={}", lasting(name))));
        }
    }
    changes
}

fn threshold_word(threshold: Threshold, block_bytes: u32) -> String {
    match threshold {
        Threshold::BlockSize => size::word(block_bytes.into()),
        Threshold::Bytes(bytes) => size::word(bytes.into()),
        Threshold::Auto => "auto".into(),
        Threshold::BlocksOnly => "0".into(),
    }
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
        let changes = |list: &str| super::changes([list], &lasting);
        let equal = "remount,ro,strict,threshold=65536,memory=0.25G,threads=2,domain=process,modified_ratio=1/8,reserved=5,xattr,allow_other,\
                     user_id=0,noatime,nodev";
        assert_eq!(changes(equal), []);
        for (word, is) in [
            ("relaxed", "strict"),
            ("threads=3", "threads=2"),
            ("threshold=auto", "threshold=64K"),
            ("memory=128M", "memory=256M"),
            ("noxattr", "xattr=on"),
            ("dirsync", "dirsync=off"),
            ("nouuid", "nouuid=off"),
            ("modified_ratio=1/4", "modified_ratio=8/64"),
        ] {
            assert_eq!(changes(&format!("remount,{word},ro")), [(word.to_owned(), is.to_owned())]);
        }
    }
}
