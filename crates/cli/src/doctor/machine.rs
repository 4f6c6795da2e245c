//! The kernel and its settings.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;

/// The oldest Linux that tests run on.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// The first that offers FUSE over io_uring.
const FUSE_URING_SINCE: (u32, u32) = (6, 14);
/// The kernel's default of `vm.max_map_count`.
const MAPS_MIN: u64 = 65_530;

/// A machine, by the files below its root directory.
pub struct Machine {
    root: PathBuf,
    is_root_user: bool,
    /// Where programs are looked for.
    programs: OsString,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let programs = std::env::var_os("PATH").unwrap_or_default();
        Self { root: "/".into(), is_root_user: rustix::process::geteuid().is_root(), programs }
    }

    /// Files of the machine that the doctor read itself may lie elsewhere in tests.
    #[cfg(test)]
    pub fn at(root: &std::path::Path, is_root_user: bool) -> Self {
        Self { root: root.to_owned(), is_root_user, programs: "/usr/bin:/bin".into() }
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether a program would be found by its name, as TandemFS starts it.
    fn has_program(&self, name: &str) -> bool {
        std::env::split_paths(&self.programs).any(|directory| self.path(directory.join(name)).is_file())
    }

    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.read("/proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Whether new mounts get their requests over io_uring.
    pub fn offers_fuse_uring(&self) -> bool {
        self.read("/sys/module/fuse/parameters/enable_uring").as_deref() == Some("Y") && self.is_io_uring_on()
    }

    /// For this user. With 1 the kernel leaves it to those who are privileged or in the group of `kernel.io_uring_group`.
    fn is_io_uring_on(&self) -> bool {
        match self.read("/proc/sys/kernel/io_uring_disabled").as_deref() {
            None | Some("0") => true,
            Some("1") => self.is_root_user || self.is_in_io_uring_group(),
            Some(_) => false,
        }
    }

    fn is_in_io_uring_group(&self) -> bool {
        let group = self.read("/proc/sys/kernel/io_uring_group").and_then(|group| group.parse::<u32>().ok());
        let own = || rustix::process::getgroups().unwrap_or_default().into_iter().chain([rustix::process::getegid()]);
        group.is_some_and(|group| own().any(|own| own.as_raw() == group))
    }

    /// What is unusual here.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        self.about_kernel(&mut found);
        self.about_fuse(&mut found);
        let maps = self.read("/proc/sys/vm/max_map_count").and_then(|value| value.parse::<u64>().ok());
        if let Some(maps) = maps.filter(|maps| *maps < MAPS_MIN) {
            found.push(Finding::unusual(
                "few_maps",
                format!("a process may have {maps} mappings (vm.max_map_count): a file that is mapped in many extents needs one for each"),
                format!("sysctl vm.max_map_count={MAPS_MIN}, the kernel's default, or more"),
            ));
        }
        found
    }

    fn about_kernel(&self, found: &mut Vec<Finding>) {
        let kernel = self.kernel();
        if let Some((major, minor)) = kernel.filter(|kernel| *kernel < KERNEL_MIN) {
            found.push(Finding::unusual(
                "kernel_old",
                format!("Linux {major}.{minor} is older than {}.{}, the oldest that is tested", KERNEL_MIN.0, KERNEL_MIN.1),
                "boot a newer kernel",
            ));
        }
        if !self.is_io_uring_on() {
            let value = self.read("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            let of_whom = if value == "1" { " for this user" } else { "" };
            found.push(Finding::unusual(
                "io_uring_off",
                format!(
                    "kernel.io_uring_disabled is {value}: block requests of a pair are done one after another{of_whom}, and FUSE requests go \
                     by /dev/fuse"
                ),
                "sysctl kernel.io_uring_disabled=0",
            ));
        }
        match kernel {
            Some(kernel) if kernel < FUSE_URING_SINCE => found.push(Finding::note(
                "fuse_uring_absent",
                format!("Linux {}.{} has no FUSE over io_uring, which saves a system call a request", kernel.0, kernel.1),
                format!("boot Linux {}.{} or later", FUSE_URING_SINCE.0, FUSE_URING_SINCE.1),
            )),
            Some(_) if self.read("/sys/module/fuse/parameters/enable_uring").as_deref() == Some("N") => found.push(Finding::note(
                "fuse_uring_off",
                "FUSE over io_uring is off, so requests wake another CPU",
                "echo 1 > /sys/module/fuse/parameters/enable_uring, and mount again (docs/ADMINISTRATION.md, Requests over io_uring)",
            )),
            _ => {}
        }
    }

    fn about_fuse(&self, found: &mut Vec<Finding>) {
        if !self.path("/dev/fuse").exists() {
            found.push(Finding::unusual(
                "fuse_missing",
                "there is no /dev/fuse, so nothing can be mounted",
                "modprobe fuse, or give the container that device",
            ));
        }
        if self.is_root_user {
            return;
        }
        if !self.has_program("fusermount3") {
            found.push(Finding::unusual(
                "fusermount_missing",
                "there is no fusermount3 in the directories of PATH, by which users other than root mount",
                "install fuse3",
            ));
        }
        let allows = self.read("/etc/fuse.conf").is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
        if !allows {
            found.push(Finding::note(
                "user_allow_other_absent",
                "/etc/fuse.conf has no line 'user_allow_other', so users other than root cannot mount with allow_other or allow_root",
                "add the line, as root, if they shall",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::names;
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let well = [
            ("proc/sys/kernel/osrelease", "6.18.44-x\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/sys/vm/max_map_count", "65530\n"),
            ("sys/module/fuse/parameters/enable_uring", "Y\n"),
            ("dev/fuse", ""),
            ("bin/fusermount3", ""),
            ("etc/fuse.conf", "# comment\nuser_allow_other\n"),
        ];
        for (path, text) in well.iter().chain(files) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let root = directory.path().to_owned();
        (directory, root)
    }

    #[test]
    fn each_setting_is_found_alone() {
        let found = |files: &[(&str, &str)]| {
            let (_directory, root) = machine(files);
            names(&Machine::at(&root, false).findings())
        };
        assert_eq!(found(&[]), Vec::<&str>::new());
        for (path, text, name) in [
            ("proc/sys/kernel/osrelease", "6.1.0-35-amd64", "fuse_uring_absent"),
            ("proc/sys/kernel/io_uring_disabled", "2", "io_uring_off"),
            ("proc/sys/kernel/io_uring_disabled", "1", "io_uring_off"),
            ("proc/sys/vm/max_map_count", "1024", "few_maps"),
            ("sys/module/fuse/parameters/enable_uring", "N", "fuse_uring_off"),
            ("etc/fuse.conf", "#user_allow_other\n", "user_allow_other_absent"),
        ] {
            assert_eq!(found(&[(path, text)]), [name]);
        }
        assert_eq!(found(&[("proc/sys/kernel/osrelease", "5.10.0")]), ["kernel_old", "fuse_uring_absent"]);
    }

    #[test]
    fn what_is_missing_is_found_and_root_needs_less() {
        let (_directory, root) = machine(&[]);
        for path in ["dev/fuse", "bin/fusermount3", "etc/fuse.conf"] {
            fs::remove_file(root.join(path)).expect("removed");
        }
        assert_eq!(names(&Machine::at(&root, false).findings()), ["fuse_missing", "fusermount_missing", "user_allow_other_absent"]);
        assert_eq!(names(&Machine::at(&root, true).findings()), ["fuse_missing"]);
        assert!(Machine::at(&root, true).offers_fuse_uring());
    }

    #[test]
    fn io_uring_for_the_privileged_is_on_for_root_and_its_group() {
        let (_directory, root) = machine(&[("proc/sys/kernel/io_uring_disabled", "1\n")]);
        assert!(Machine::at(&root, true).offers_fuse_uring() && Machine::at(&root, true).findings().is_empty());
        assert!(!Machine::at(&root, false).offers_fuse_uring());
        let group = rustix::process::getegid().as_raw();
        fs::write(root.join("proc/sys/kernel/io_uring_group"), format!("{group}\n")).expect("written");
        assert!(Machine::at(&root, false).offers_fuse_uring());
        fs::write(root.join("proc/sys/kernel/io_uring_disabled"), "2\n").expect("written");
        assert!(!Machine::at(&root, true).offers_fuse_uring(), "for nobody");
    }
}
