//! What the kernel says of the process of a thread: what its home node goes by (`numa.rs`).

use std::fs;

use tandemfs_device::numbers;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number, which all of its threads share.
    pub(crate) number: u32,
    pub(crate) parent: u32,
    /// When it began, in ticks since the machine did: a number that is used again has another beginning.
    pub(crate) begun: u64,
    /// The CPUs that the thread may run on, ascending.
    pub(crate) cpus: Vec<u32>,
}

/// The process of a thread; `None` if it has ended, or is not shown to this process.
pub(crate) fn look(thread: u32) -> Option<Process> {
    if thread == 0 {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let (number, cpus) = of_status(&status)?;
    let (parent, begun) = of_stat(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)?;
    Some(Process { number, parent, begun, cpus })
}

/// The parent of a process.
pub(crate) fn parent(process: u32) -> Option<u32> {
    of_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?).map(|(parent, _)| parent)
}

fn of_status(status: &str) -> Option<(u32, Vec<u32>)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    Some((field("Tgid")?.parse().ok()?, numbers(field("Cpus_allowed_list")?, ',')?))
}

/// The fourth field and the 22nd. The second one is a name in parentheses, with any bytes in it.
fn of_stat(stat: &str) -> Option<(u32, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    Some((fields.nth(1)?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_proc_are_read() {
        let stat = "77 (a) R (b) S 5 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2\n";
        assert_eq!(of_stat(stat), Some((5, 12345)));
        assert_eq!(["", "77 (a", "77 (a) S", "77 (a) S x 1", "77 (a) S 5 1 2 3"].map(of_stat), [None; 5]);
        let status = "Name:\tx\nTgid:\t7\nPid:\t8\nPPid:\t5\nCpus_allowed_list:\t0-1,4\n";
        assert_eq!(of_status(status), Some((7, vec![0, 1, 4])));
        assert_eq!(of_status("Tgid:\t7\n"), None);
    }

    #[test]
    fn threads_of_a_process_have_its_number_and_an_ended_one_is_none() {
        let own = std::process::id();
        let of_other_thread = std::thread::spawn(|| look(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())).join();
        let (here, there) = (look(own).expect("this process"), of_other_thread.expect("joined").expect("a thread"));
        assert_eq!((here.number, there.number, here.begun), (own, own, there.begun));
        assert!(parent(own) == Some(here.parent) && !here.cpus.is_empty());
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        child.wait().expect("ended");
        assert_eq!((look(child.id()), look(0), parent(child.id())), (None, None, None));
    }
}
