//! Completion of `tandemfs mount -o`: a list of words between commas, which `clap_complete` cannot complete. Each script gets a function
//! for it, with the words that `mount_options.rs` accepts.

use clap_complete::Shell;

use crate::mount_options::{DISCARDS, ENGINES, LOG_LEVELS, NUMA, PROMOTE, TIMING, UPDATES, WRITE_BACK};

/// Options without a value that completion offers.
const FLAGS: [&str; 26] = [
    "relaxed",
    "strict",
    "atomic",
    "noxattr",
    "xattr",
    "nouuid",
    "ro",
    "rw",
    "allow_other",
    "allow_root",
    "direct",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "remount",
    "discard",
    "nodiscard",
    "nofail",
    "noauto",
    "_netdev",
];
/// Options with a value that is not one of a few.
const VALUES: [&str; 17] = [
    "threshold",
    "write_back_limit",
    "read_ahead",
    "in_place",
    "modified_ratio",
    "memory",
    "threads",
    "log",
    "reserved",
    "home_limit",
    "large_extents",
    "numa_nodes",
    "direct",
    "direct_stores",
    "direct_spin",
    "direct_clients",
    "metrics",
];

/// All options as completion offers them: flags, options with each of their values, and the names of the others up to the equals sign.
fn words() -> Vec<String> {
    fn of<T>(option: &'static str, names: &[(&'static str, T)]) -> Vec<String> {
        names.iter().map(|(name, _)| format!("{option}={name}")).collect()
    }
    let domains = ["none", "process", "adr", "eadr", "gpf"].map(|name| format!("domain={name}"));
    [
        FLAGS.map(str::to_owned).to_vec(),
        of("write_back", &WRITE_BACK),
        of("promote", &PROMOTE),
        of("update", &UPDATES),
        of("engine", &ENGINES),
        of("discard", &DISCARDS),
        of("log_level", &LOG_LEVELS),
        of("numa", &NUMA),
        of("timing", &TIMING),
        domains.to_vec(),
        VALUES.iter().map(|name| format!("{name}=")).collect(),
    ]
    .concat()
}

/// The completion script of a shell, with a function for `-o` where the shell is one of those that we know.
pub fn with_mount_options(shell: Shell, script: &str) -> String {
    let words = words().join(" ");
    match shell {
        Shell::Bash => format!("{script}{}", BASH.replace("@WORDS@", &words)),
        Shell::Zsh => zsh(script, &words),
        Shell::Fish => format!("{script}{}", FISH.replace("@WORDS@", &words)),
        _ => script.to_owned(),
    }
}

/// The word before the cursor is taken from the line, since bash splits it at `=`.
const BASH: &str = r#"
_tandemfs_mount_options() {
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##* }"
    local before="${line% *}"
    before="${before%"${before##*[! ]}"}"
    case "${line}" in
        *" mount "*) ;;
        *) _tandemfs "$@"; return ;;
    esac
    case "${before##* }:${word}" in
        -o:*|--options:*) ;;
        *:--options=*) word="${word#--options=}" ;;
        *) _tandemfs "$@"; return ;;
    esac
    local list="${word%"${word##*,}"}"
    local broken="${word%"${word##*[=:]}"}"
    local option
    COMPREPLY=()
    for option in @WORDS@; do
        if [[ "${list}${option}" == "${word}"* ]]; then
            option="${list}${option}"
            COMPREPLY+=("${option#"${broken}"}")
        fi
    done
    compopt -o nospace 2>/dev/null
    return 0
}
complete -F _tandemfs_mount_options -o bashdefault -o default tandemfs
"#;

const FISH: &str = r#"
function __tandemfs_mount_options
    set -l before (string match -r '^.*,' -- (commandline -ct))
    for option in @WORDS@
        echo "$before$option"
    end
end
complete -c tandemfs -n "__fish_tandemfs_using_subcommand mount" -s o -l options -x -a "(__tandemfs_mount_options)"
"#;

/// What clap says of the value, and what completes it instead.
const ZSH_VALUE: &str = ":OPTIONS:_default'";

fn zsh(script: &str, words: &str) -> String {
    let function = format!(
        "_tandemfs_mount_options() {{\n    compset -P '*,'\n    compset -S ',*'\n    compadd -S '' -- {words}\n}}\n\n\
         if [ \"$funcstack[1]\" = \"_tandemfs\" ]"
    );
    script.replace(ZSH_VALUE, ":OPTIONS:_tandemfs_mount_options'").replace("if [ \"$funcstack[1]\" = \"_tandemfs\" ]", &function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_options::{HELP, Options};

    /// What completion offers is accepted, and what help lists is offered.
    #[test]
    fn completion_offers_every_option() {
        let words = words();
        let offers = |option: &str| words.iter().any(|word| word == option || word.starts_with(&format!("{option}=")));
        for word in &words {
            let value = match word.as_str() {
                "threshold=" | "read_ahead=" => "64K",
                "large_extents=" => "1G",
                "write_back_limit=" | "reserved=" | "home_limit=" => "20%",
                "in_place=" => "512",
                "modified_ratio=" => "1/4",
                "memory=" => "64M",
                "threads=" | "numa_nodes=" | "direct=" | "direct_stores=" | "direct_clients=" | "direct_spin=" => "3",
                "log=" => "/tmp/log",
                "metrics=" => "unix:/run/m",
                _ => "",
            };
            let list = match word.as_str() {
                "atomic" => "strict,atomic".to_owned(),
                "direct_stores=" => format!("direct,{word}{value}"),
                _ => format!("{word}{value}"),
            };
            assert_eq!(word.ends_with('='), !value.is_empty(), "{word}");
            Options::parse([list.as_str()], true).unwrap_or_else(|error| panic!("{word}: {error}"));
        }
        let text = HELP;
        let entries = text.lines().skip(1).filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let mut count = 0;
        for entry in entries {
            // Names stand before two spaces, or at the end of the line, and commas between them.
            let names = entry.trim().split("  ").next().unwrap_or_default();
            let names = if names.contains('=') { names.split(['=', ' ']).next().unwrap_or_default() } else { names };
            for name in names.split(',').map(str::trim).filter(|name| !name.is_empty() && !name.contains(' ')) {
                assert!(offers(name), "{name}");
                count += 1;
            }
        }
        assert!(count > 30, "{count}");
    }
}
