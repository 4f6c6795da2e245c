//! What is fed with wrong bytes, and what must hold then: one function a target, a corpus made by code, and a lie that each target must
//! notice. `fuzz/` runs them under libFuzzer, `tests/bounded.rs` for a bounded time in `make test`.
//!
//! A target panics where the product does something that it must never do, whatever the bytes: a panic of its own, an answer that is no
//! answer, a disagreement of `check` and mount. Time and memory are bounded from outside (`-timeout`, `-malloc_limit_mb`; watchdog and
//! counting allocator of the test).
//!
//! *Architecture invariant:* nothing of it is in the product; targets use the product's public doors only.

#![forbid(unsafe_code)]

mod door;
mod drive;
mod format;
mod header;
mod image;
mod input;
mod links;
mod operations;
mod text;
mod wire;

pub use input::Input;

/// Something to feed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name; that of the file in `fuzz/`.
    pub name: &'static str,
    /// What it feeds, in a few words.
    pub feeds: &'static str,
    /// Feeds it once. Panics where something is wrong.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Longest input that is worth trying, in bytes.
    pub input_bytes_max: usize,
    /// Wrong answers given to what judges, by name: each must panic, or the target could not fail. A target that judges the file system
    /// as a whole has none; deliberate bugs of that stand in for them (`tests/canaries.rs`).
    pub lies: &'static [(&'static str, fn())],
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "image",
        feeds: "whole images to check, repair, dump and mount",
        run: image::run,
        corpus: image::corpus,
        input_bytes_max: 256,
        lies: &[],
    },
    Target {
        name: "operations",
        feeds: "typed operations to the file system and the model",
        run: operations::run,
        corpus: operations::corpus,
        input_bytes_max: 512,
        lies: &[],
    },
    Target {
        name: "links",
        feeds: "texts of links in the place of what write-back and scrub were about to look at",
        run: links::run,
        corpus: links::corpus,
        input_bytes_max: 256,
        lies: &[],
    },
    Target {
        name: "door",
        feeds: "what the kernel could send to the FUSE door",
        run: door::run,
        corpus: door::corpus,
        input_bytes_max: 1024,
        lies: door::LIES,
    },
    Target {
        name: "wire",
        feeds: "any bytes to the parser and the session of the FUSE protocol",
        run: wire::run,
        corpus: wire::corpus,
        input_bytes_max: 1024,
        lies: wire::LIES,
    },
    Target {
        name: "header",
        feeds: "headers of emulator images",
        run: header::run,
        corpus: header::corpus,
        input_bytes_max: 128,
        lies: header::LIES,
    },
    Target {
        name: "drive",
        feeds: "damaged tables of emulated drives with firmware",
        run: drive::run,
        corpus: drive::corpus,
        input_bytes_max: 256,
        lies: drive::LIES,
    },
    Target {
        name: "format",
        feeds: "bytes to every decoder of the format",
        run: format::run,
        corpus: format::corpus,
        input_bytes_max: 2048,
        lies: format::LIES,
    },
    Target {
        name: "text",
        feeds: "names of devices, requests at the control socket",
        run: text::run,
        corpus: text::corpus,
        input_bytes_max: 512,
        lies: text::LIES,
    },
];

/// Feeds the target of this name.
///
/// # Panics
/// Where there is no such target, and where the target finds something.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("there is no target '{name}'")).run)(bytes);
}
