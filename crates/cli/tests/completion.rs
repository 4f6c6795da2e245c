//! Completion of command lines in the shells that we have scripts for: each shell runs its script.

mod support;

use std::fs;
use std::process::Command;

use support::{Place, run, start, succeeds};

/// The completion script of a shell, as a file. None where the shell is not installed (`scripts/setup.sh test` installs all).
fn script_of(place: &Place, shell: &str) -> Option<String> {
    if start(Command::new(shell).args(["-c", "exit 0"])).and_then(|mut shell| shell.wait()).is_err() {
        eprintln!("skipped: there is no {shell}; scripts/setup.sh test installs it");
        return None;
    }
    let script = place.path(shell);
    fs::write(&script, succeeds(&["completions", shell])).expect("written");
    Some(script)
}

fn lines_of(place: &Place, command: &mut Command) -> Vec<String> {
    let output = run(command.env("HOME", place.path("")));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// What bash offers for a line with the cursor at its end.
fn offered_by_bash(place: &Place, script: &str, line: &str) -> Vec<String> {
    let run_it = r#"
source "$1"
COMP_LINE="$2"; COMP_POINT=${#2}
shift 2
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_tandemfs_mount_options tandemfs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
    lines_of(place, Command::new("bash").args(["-c", run_it, "bash", script, line]).args(line.split(' ')))
}

#[test]
fn bash_offers_options_of_a_mount_between_commas() {
    let place = Place::empty();
    let Some(script) = script_of(&place, "bash") else { return };
    let offered = |line: &str| offered_by_bash(&place, &script, line);
    assert_eq!(offered("tandemfs mount a b -o stri"), ["strict"]);
    assert_eq!(offered("tandemfs mount a b -o strict,ato"), ["strict,atomic"]);
    // bash replaces what is behind the last equals sign.
    assert_eq!(offered("tandemfs mount a b -o strict,write_back=old"), ["oldest"]);
    assert_eq!(offered("tandemfs mount -o engine="), ["auto", "journal", "firmware"]);
    assert_eq!(offered("tandemfs mount -o thre"), ["threshold=", "threads="]);
    assert!(offered("tandemfs mount a b -o ").len() > 40);
    assert_eq!(offered("tandemfs mount a b --options ro,nod"), ["ro,nodev", "ro,nodiscard"]);
    // Everything else is as clap has it.
    assert!(offered("tandemfs mou").contains(&"mount".to_owned()));
    assert!(offered("tandemfs check --res").contains(&"--rescue".to_owned()));
}

#[test]
fn fish_offers_options_of_a_mount_between_commas() {
    let place = Place::empty();
    let Some(script) = script_of(&place, "fish") else { return };
    let offered = |line: &str| -> Vec<String> {
        let run_it = r#"source $argv[1]; complete -C $argv[2]"#;
        let lines = lines_of(&place, Command::new("fish").args(["--no-config", "-c", run_it, &script, line]));
        lines.iter().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(offered("tandemfs mount a b -o stri"), ["strict"]);
    assert_eq!(offered("tandemfs mount a b -o strict,ato"), ["strict,atomic"]);
    assert_eq!(offered("tandemfs mount a b -o strict,write_back=old"), ["strict,write_back=oldest"]);
    assert_eq!(offered("tandemfs mount -o engine="), ["engine=auto", "engine=firmware", "engine=journal"]);
    assert_eq!(offered("tandemfs mount -o thre"), ["threads=", "threshold="]);
    assert_eq!(offered("tandemfs mount a b --options ro,nod"), ["ro,nodev", "ro,nodiscard"]);
    assert_eq!(offered("tandemfs mount a b --options=ro,nod"), ["--options=ro,nodev", "--options=ro,nodiscard"]);
    assert_eq!(offered("tandemfs mou"), ["mount"]);
    assert_eq!(offered("tandemfs check --res"), ["--rescue"]);
}

/// Runs an interactive zsh in a terminal of its own, presses the tabulator key behind a line, and prints how many words zsh has offered and
/// what the line is then.
const ZSH: &str = r#"
zmodload zsh/zpty
cat > $3.rc <<-END
	PROMPT=
	autoload -U compinit; compinit -u -D
	source $1
	compdef _tandemfs tandemfs
	comppostfuncs=(note)
	note() { offered=\$compstate[nmatches] }
	press() { zle complete-word; print -r -- "\$offered \$BUFFER" > $3; exit }
	zle -N press
	bindkey '^I' press
	print is-ready
END
zpty shell zsh -f -i
zpty -w shell "source $3.rc"
while zpty -r shell line; do [[ $line == *is-ready* ]] && break; done
zpty -n -w shell "$2"$'\t'
while zpty -r shell line; do :; done
cat $3
"#;

#[test]
fn zsh_offers_options_of_a_mount_between_commas() {
    let place = Place::empty();
    let Some(script) = script_of(&place, "zsh") else { return };
    let completed = |line: &str| -> (u64, String) {
        let lines = lines_of(&place, Command::new("zsh").args(["-f", "-c", ZSH, "zsh", &script, line, &place.path("out")]));
        let (offered, line) = lines.first().and_then(|line| line.split_once(' ')).expect("a count and a line");
        (offered.parse().expect("a number"), line.to_owned())
    };
    for (line, offered, is) in [
        ("tandemfs mount a b -o stri", 1, "tandemfs mount a b -o strict"),
        ("tandemfs mount a b -o strict,ato", 1, "tandemfs mount a b -o strict,atomic"),
        ("tandemfs mount a b -o strict,write_back=old", 1, "tandemfs mount a b -o strict,write_back=oldest"),
        ("tandemfs mount -o engine=", 3, "tandemfs mount -o engine="),
        ("tandemfs mount -o thre", 2, "tandemfs mount -o thre"),
        ("tandemfs mount a b --options ro,nodi", 1, "tandemfs mount a b --options ro,nodiscard"),
        ("tandemfs mount a b --options=ro,nodi", 1, "tandemfs mount a b --options=ro,nodiscard"),
        ("tandemfs mou", 1, "tandemfs mount "),
        ("tandemfs check --res", 1, "tandemfs check --rescue "),
    ] {
        assert_eq!(completed(line), (offered, is.to_owned()), "{line}");
    }
}
