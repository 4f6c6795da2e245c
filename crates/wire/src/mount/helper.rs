//! fusermount3, which mounts and unmounts for ordinary users.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{MountError, MountOptions, Unmount, open_device};

pub(super) const PROGRAM: &str = "fusermount3";

/// Mounts, and receives the connection over the socket that is fusermount3's standard input.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    drop(open_device()?); // gives a better error than fusermount3
    let failed = |source: io::Error| MountError::Mount { path: path.to_owned(), source, reason: String::new() };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(option_list(options)).arg("--").arg(path).env("_FUSE_COMMFD", "0");
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(not_started)?;
    drop(command); // closes our copy of fusermount3's end, so that the socket closes when it ends
    let received = receive(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        // If its message cannot be read, the exit status still counts.
        let _unread = stderr.read_to_string(&mut said);
    }
    let status = child.wait().map_err(failed)?;
    match received {
        Ok(Some(device)) if status.success() => Ok(device),
        _ => Err(refused(&said, status)),
    }
}

pub(super) fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if how != Unmount::Normal {
        command.arg("-z");
    }
    let output = command.arg("--").arg(path).stdin(Stdio::null()).output().map_err(not_started)?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(MountError::InUse { path: path.to_owned() }),
        false => Err(refused(&said, output.status)),
    }
}

/// Escapes commas and backslashes: fusermount3 splits its options at commas.
fn option_list(options: &MountOptions) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={}", escaped(&options.source));
    if let Some(subtype) = &options.subtype {
        list.push_str(",subtype=");
        list.push_str(&escaped(subtype));
    }
    if let Some(bytes) = options.max_read {
        list.push_str(&format!(",max_read={bytes}"));
    }
    let flags = [
        (options.allow_other, ",allow_other"),
        (options.default_permissions, ",default_permissions"),
        (options.read_only, ",ro"),
        (!options.dev, ",nodev"),
        (!options.suid, ",nosuid"),
        (!options.exec, ",noexec"),
        (!options.atime, ",noatime"),
        (options.sync, ",sync"),
        (options.dirsync, ",dirsync"),
    ];
    list.extend(flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag));
    list
}

fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut messages = control.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn not_started(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Helper { message: format!("{PROGRAM}: {error}") },
    }
}

fn refused(said: &str, status: ExitStatus) -> MountError {
    let first = said.lines().map(str::trim).find(|line| !line.is_empty());
    MountError::Helper { message: first.map_or_else(|| format!("{PROGRAM} failed: {status}"), str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_commas_stay_one_option() {
        let options = MountOptions {
            source: "a=/x,b=\\y".into(),
            subtype: Some("my,fs".into()),
            allow_other: true,
            atime: false,
            max_read: Some(4096),
            ..MountOptions::default()
        };
        let expected = "fsname=a=/x\\,b=\\\\y,subtype=my\\,fs,max_read=4096,allow_other,nodev,nosuid,noatime";
        assert_eq!(option_list(&options), expected);
    }

    #[test]
    fn the_program_mounts_and_unmounts() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = MountOptions { source: "a,b\\c".into(), subtype: Some("of-helper".into()), ..MountOptions::default() };
        let device = match mount(directory.path(), &options) {
            Ok(device) => device,
            Err(error @ (MountError::NoHelper | MountError::NoDevice | MountError::DeviceDenied { .. })) => {
                return println!("skipped: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("procfs");
        let unmounted = unmount(directory.path(), Unmount::Lazy);
        let line = mounts.lines().find(|line| line.contains(directory.path().to_str().expect("plain")));
        assert!(line.is_some_and(|line| line.contains("fuse.of-helper a,b\\134c")), "{line:?}");
        unmounted.expect("unmounted");
        drop(device);
    }

    #[test]
    fn the_first_line_is_what_counts() {
        let status = Command::new("false").status().expect("run");
        assert_eq!(refused("\n fusermount3: no\nmore\n", status).to_string(), "fusermount3: no");
        assert_eq!(refused("", status).to_string(), format!("fusermount3 failed: {status}"));
    }
}
