//! `fuzz-corpus DIRECTORY`: writes the corpus of each target to `DIRECTORY/TARGET/`, one file per input.

use std::fs;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: fuzz-corpus DIRECTORY");
        std::process::exit(2);
    };
    for target in tandemfs_fuzz_targets::TARGETS {
        let directory = root.join(target.name);
        fs::create_dir_all(&directory)?;
        for (index, input) in (target.corpus)().iter().enumerate() {
            fs::write(directory.join(format!("made-{index}")), input)?;
        }
    }
    Ok(())
}
