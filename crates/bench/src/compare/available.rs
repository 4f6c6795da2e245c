//! Which peers can be measured on this machine, and versions of the programs used.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::backing::require_loop_devices;
use super::command::{command, find, run, tandemfs};
use super::peer::Peer;
use crate::failure::{Failure, Result};

/// Names of missing peers, cases or programs, each with a reason.
pub type LeftOut = Vec<(String, String)>;

/// The peers of `wanted` that can be measured here, and the others with a reason each.
///
/// # Errors
/// Kernel file systems are wanted but this user may not mount, or no peer is left.
pub fn available(wanted: &[Peer]) -> Result<(Vec<Peer>, LeftOut)> {
    if wanted.iter().any(|peer| kernel_type(*peer).is_some()) {
        require_loop_devices()?;
    }
    if wanted.iter().any(|peer| kernel_type(*peer).is_none() && *peer != Peer::TandemfsLibrary) && !Path::new("/dev/fuse").exists() {
        return Err(Failure::new("there is no /dev/fuse: load the kernel module (modprobe fuse), or give the container the device"));
    }
    let (mut present, mut left_out) = (Vec::new(), Vec::new());
    for peer in wanted {
        match missing(*peer) {
            None => present.push(*peer),
            Some(sentence) => left_out.push((peer.name(), sentence)),
        }
    }
    if present.is_empty() {
        let reasons: Vec<String> = left_out.iter().map(|(name, sentence)| format!("{name}: {sentence}")).collect();
        return Err(Failure::new(format!("nothing can be measured here; {}", reasons.join("; "))));
    }
    Ok((present, left_out))
}

/// The file system type of a peer in the kernel.
pub fn kernel_type(peer: Peer) -> Option<&'static str> {
    match peer {
        Peer::Ext4 | Peer::Ext4Journal | Peer::Ext4Volatile => Some("ext4"),
        Peer::Xfs => Some("xfs"),
        Peer::Btrfs => Some("btrfs"),
        Peer::TandemfsRelaxed | Peer::TandemfsStrict | Peer::TandemfsDirect | Peer::TandemfsDirectAsleep | Peer::TandemfsBeside => None,
        Peer::TandemfsLibrary | Peer::Null => None,
    }
}

/// Why a peer cannot be measured here, if so.
fn missing(peer: Peer) -> Option<String> {
    let kernel_type = kernel_type(peer)?;
    let mkfs = format!("mkfs.{kernel_type}");
    if find(&mkfs).is_none() {
        return Some(format!("{mkfs} is not installed"));
    }
    let is_known = || {
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.split_ascii_whitespace().next_back() == Some(kernel_type))
    };
    if !is_known() {
        // The error output is discarded: a missing module is a valid answer.
        let _asked = command("modprobe").and_then(|mut modprobe| run(modprobe.arg(kernel_type)));
    }
    (!is_known()).then(|| format!("this kernel has no {kernel_type}"))
}

/// Programs used for the peers and by the cases, with their versions.
pub fn versions(peers: &[Peer], of_cases: &BTreeSet<&str>) -> Vec<(String, String)> {
    let own = run(tandemfs().arg("--version")).unwrap_or_else(|failure| failure.to_string());
    let mut versions = vec![("tandemfs".to_owned(), own.trim().trim_start_matches("tandemfs ").to_owned())];
    let mut types: Vec<&str> = peers.iter().filter_map(|peer| kernel_type(*peer)).collect();
    types.dedup();
    for kernel_type in types {
        let program = format!("mkfs.{kernel_type}");
        let word = if kernel_type == "btrfs" { "--version" } else { "-V" };
        versions.extend(version(&program, word).map(|version| (program, version)));
    }
    let of_cases = of_cases.iter().filter_map(|program| Some(((*program).to_owned(), version(program, "--version")?)));
    versions.extend(of_cases);
    versions
}

/// The first line of a program's version output, from stdout or stderr.
pub fn version(program: &str, word: &str) -> Option<String> {
    let output = command(program).ok()?.arg(word).stdin(Stdio::null()).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_kernel_is_always_there() {
        for peer in [Peer::TandemfsLibrary, Peer::TandemfsRelaxed, Peer::Null] {
            assert_eq!(missing(peer), None);
        }
        let (present, left_out) = available(&[Peer::TandemfsLibrary]).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!((present, left_out.len()), (vec![Peer::TandemfsLibrary], 0));
    }
}
