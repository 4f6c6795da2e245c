//! Fuzz targets: functions that feed arbitrary bytes to the product and check invariants. Each target has a generated corpus, and wrong
//! answers ("lies") that it must detect. `fuzz/` runs the targets under libFuzzer, `tests/bounded.rs` for a bounded time in `make test`.
//!
//! A target panics if the product violates an invariant that holds for all inputs: it panics, gives an invalid answer, or `check` and mount
//! disagree. Time and memory are limited from outside (`-timeout`, `-malloc_limit_mb`; in the test a watchdog and a counting allocator).
//!
//! *Architecture invariant:* the product contains none of this code; targets use only the product's public interfaces.

#![forbid(unsafe_code)]

mod door;
mod drive;
mod format;
mod header;
mod image;
mod input;
mod links;
mod operations;
mod protocol;
mod ring;
mod text;
mod wire;

pub use input::Input;

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its file in `fuzz/`.
    pub name: &'static str,
    /// A short description of what it feeds to which interface.
    pub feeds: &'static str,
    /// Runs one input. Panics if an invariant is violated.
    pub run: fn(&[u8]),
    /// The initial corpus.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Longest useful input, in bytes.
    pub input_bytes_max: usize,
    /// Wrong answers for the target's checks, by name. Each must panic; otherwise the target could not fail. Targets that check the file
    /// system as a whole have none; deliberate bugs in the file system replace them (`tests/canaries.rs`).
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
        name: "ring",
        feeds: "words that a client of the ring changes at any time",
        run: ring::run,
        corpus: ring::corpus,
        input_bytes_max: 2048,
        lies: ring::LIES,
    },
    Target {
        name: "protocol",
        feeds: "any request, answer, listing and greeting to the messages of the direct door",
        run: protocol::run,
        corpus: protocol::corpus,
        input_bytes_max: 1024,
        lies: protocol::LIES,
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

/// Runs the target of this name on an input.
///
/// # Panics
/// If there is no such target, or if the target detects a violation.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("there is no target '{name}'")).run)(bytes);
}
