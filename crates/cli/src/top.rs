//! `tandemfs top`: what a mount does at present.
//!
//! `sample.rs` has the difference of two answers to `tandemfs stats`, which is all that is shown, by `--once --json` as it is. `columns.rs` has
//! the tables, `text.rs` prints them, `screen.rs` draws them and obeys keys, `terminal.rs` has the terminal and the threads.

mod columns;
mod sample;
mod screen;
mod terminal;
mod text;

use std::io::{self, IsTerminal};
use std::thread::sleep;

use serde_json::Value;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::Mounted;

use crate::arguments::TopArguments;
use crate::failure::{Failure, no_answer};
use crate::output;
use crate::umount;
use sample::{Named, Sample, View};

/// Shows it once, or until somebody ends it.
pub fn run(arguments: &TopArguments) -> Result<u8, Failure> {
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !arguments.once && !has_terminal {
        return Err(Failure::Status(
            2,
            "top needs a terminal; --once prints what it would show, --once --json the same for scripts".into(),
        ));
    }
    let mount = umount::find(&arguments.mountpoint)?;
    let ask = |request| control::ask(&mount, request).map_err(|error| no_answer(&mount, &error));
    let named = named(&mount, &ask(Request::Info)?);
    let first = Sample::new(ask(Request::Stats { reset: false })?);
    View::between(&named, &first, &first, arguments.client).map_err(|why| at(&mount, &why))?;
    if !arguments.once {
        return terminal::run(&mount, named, first, arguments.interval, arguments.client);
    }
    sleep(arguments.interval);
    let second = Sample::new(ask(Request::Stats { reset: false })?);
    let view = View::between(&named, &first, &second, arguments.client).map_err(|why| at(&mount, &why))?;
    match arguments.json {
        true => output::print_json(&serde_json::to_value(&view).map_err(Failure::because)?)?,
        false => output::print(&text::text(&view))?,
    }
    Ok(0)
}

fn at(mount: &Mounted, why: &str) -> Failure {
    Failure::at(mount.mountpoint.display(), why)
}

fn named(mount: &Mounted, info: &Value) -> Named {
    let word = |name: &str| output::printable(info[name].as_str().unwrap_or_default());
    Named { mountpoint: output::printable(&mount.mountpoint.to_string_lossy()), device: word("device"), mode: word("mode") }
}
