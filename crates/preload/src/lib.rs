//! The library that `tandemfs run` loads into unchanged programs (`LD_PRELOAD`). It stands in front of functions of libc that take a path, and
//! of those that read and write at an offset; a call on the mount goes by the direct door where that surely says what the mount would say,
//! and otherwise on to libc. Every descriptor that a program has is the kernel's own, so offsets, locks, mappings and what children inherit
//! need nothing here.
//!
//! Nothing that is remembered about a program's descriptors, its working directory or its root is believed, since it could be overtaken by a
//! call that this library does not see (libc's own, `syscall`, another language's). The kernel is asked instead, by calls that do not reach
//! the daemon. What is remembered of numbers only lets calls go by the mount sooner (`hints.rs`).
//!
//! [PRL1] *The kernel says where each path begins.* A call goes by the door only if statx(2) of its start (mountpoint, directory descriptor or
//!       working directory) names the very mount of the connection at that moment (`start.rs`). A directory's handle is used only for the inode
//!       that the descriptor has; the handle holds that inode, so that no other one gets its number (`directories.rs`).
//! [PRL2] *A connection is of one process with one set of ids.* Each call holds process, user and group against those of the connection (`door.rs`).
//!       Functions that change credentials end the connection first, when nobody is inside; threads with credentials of their own, namespaces
//!       and another root end the use of the door in this process (`symbols/credentials.rs`).
//! [PRL3] *Nobody leaves from inside.* All signals are blocked while a call is inside (`inside.rs`), so that no handler runs, jumps out or is
//!       cancelled there. A handler itself may call anything here: the allocator of this library is its own (`allocator.rs`), not the one that the
//!       handler may have interrupted, and no lock is held by the code that it interrupted. So nothing is allocated or freed outside.
//! [PRL4] *A fork happens when nobody is inside*, so that no lock is taken in the child (`door.rs`). The child closes its copies of the descriptors
//!       and connects anew, if ever. A process that came about otherwise (vfork, clone) is another process by [PRL2] and goes by the mount.
//! [PRL5] *A call that may have happened is not made again.* If the daemon ends in the middle of a change, the program gets ENOTCONN; a call that
//!       only looks is repeated by the mount.
//! [PRL6] *The descriptors of the connection are not the program's.* They have high numbers; functions that close step around them
//!       (`symbols/descriptors.rs`), and none is closed by us that is not ours any more (`door.rs`).
//! [PRL7] *A number is not remembered.* Bytes go by the door only if the kernel says, in this very call, that the descriptor is a regular file of
//!       the mount with the inode that an open file of the door has; it is asked when that file is open already, which holds the inode, so
//!       there is no other one of that number. Whoever has closed, duplicated or used the number anew before, in whatever way, reaches no
//!       other file (`files.rs`).
//! [PRL8] *A file of the door can do no more than the descriptor, nor than the process.* It is opened by the path that the kernel has for the
//!       descriptor, with the rights of the connection, and it serves a descriptor only for what fcntl(2) says that this may. A file that
//!       cannot be opened so (its name is gone, its mode has changed, it is elsewhere) is the mount's.
//! [PRL9] *The kernel keeps what is its own:* the offset, O_APPEND, and the size, by which mappings, sendfile(2) and copy_file_range(2) go. So only
//!       calls that say where are served, none with O_APPEND, and no write beyond the size that the kernel knows, which the daemon holds
//!       against its own as well.
//! [PRL10] *Pages of the kernel stay where they are of use* (`turn.rs`): a file that is read more than written, mapped, or written past this
//!       library is the mount's. What is opened to be read alone is the door's if it has at most 1 MiB, for 32 reads, and as long as the kernel has no
//!       pages of it. What the door serves is right in any case; the daemon has such pages dropped first.
//! [PRL11] *A file of the door is closed with a descriptor of it*, so that nobody holds a file that the program has given back. It is opened
//!       anew for other descriptors. What is closed past this library is held until 64 others were written or the process ends.
//!
//! Unless `tandemfs run --real` was asked for, regular files and directories are opened by the door alone (`descriptions.rs`):
//!
//! [PRL12] *A placeholder reaches no file.* It is a descriptor of the kernel's that can do nothing, so a call that is missed fails. Its file is that
//!       of the number only while the kernel says that a placeholder is there: whoever closed it past this library has closed it.
//! [PRL13] *Who gets a descriptor gets a real one.* Before a fork, another program, a message, a duplicate, and every call that is not served here,
//!       a placeholder becomes a descriptor of the mount under the same number, with access, flags, offset and close-on-exec of before; the
//!       daemon has the file opened, also one without a name, by what the open file of the door may do, whatever its mode is now. Threads that
//!       work on it finish first. The description ends with that, so the offset has one owner. A descriptor may be duplicated by `dup` and F_DUPFD:
//!       the numbers share one description, and become real together, by one descriptor. Where others have a part of the descriptors in common (`close_range` with
//!       CLOSE_RANGE_UNSHARE beside threads, `clone` with CLONE_FILES of what is no thread) a number is not one file, and there are no placeholders any more.
//! [PRL14] *What the kernel has more of than bytes goes one way.* When a file is mapped, locked (`fcntl`) or sent, all descriptors of it in this process
//!       become real, and it is opened by the mount from then on, also by a call that is under way: the kernel then knows its size, and closing ends its locks.
//! [PRL15] *Programs are written by the mount*, which knows whether they are being executed (ETXTBSY).
//! [PRL16] *Who calls the kernel past libc has real descriptors.* There are placeholders only while no loaded object but libc and the loader has an
//!       instruction that enters the kernel (`code.rs`). It is asked before each is made; before objects are loaded all become real, and for good before libc itself is loaded by its name: who finds
//!       its functions there calls them past this library. An open that is under way when placeholders end makes none.
//! [PRL17] *Watchers are told.* What concerns a file or directory that somebody watches by inotify or fanotify is handed back by the daemon, and goes
//!       by the mount; a placeholder becomes real, also for its close. Programs that watch files of the mount themselves use the mount from then on.
//!
//! [PRL18] *A directory is listed from one place to the other.* A stream of the door (`symbols/streams.rs`) has the number of a placeholder, and when
//!       that becomes real it goes on by the kernel behind the entry that it returned last. No function of libc is given a stream of the door.
//!
//! [PRL19] *What the daemon lends is used inside alone.* Where the mount trusts the process, reads of files in the memory zone are loads, and with
//!       `tandemfs run --stores` overwrites are stores under leases; the client library decides, call by call. Since nothing comes in between there
//!       ([PRL3]), a thread is never inside of a lease already when it begins a call. One signal is taken: SIGBUS, whose handler is the device layer's. It
//!       mends a fault of the lent memory, and makes no call; the daemon is asked then. A program with a handler of its own for SIGBUS may jump out of
//!       it, so there it is blocked, and such a fault ends the program (`lent.rs`). The leases of a file end with its description when that is closed or
//!       becomes real, and before, as any lease, with a call by the mount for their bytes.
//!
//! [PRL20] *What is mapped by the door is mapped as the kernel would, or is the kernel's* (`mappings.rs`). With `tandemfs run --stores` a shared mapping of a
//!       placeholder is one of the file's own pages, where it ends within the file's last page; so is one of a descriptor that the kernel refuses to
//!       map, since somebody has the file mapped for stores, by the rules of [PRL7] and [PRL8]. Calls on such addresses are the file's, not
//!       the drive's: none of the kernel's reaches its memory zone but accesses, and protection. One for loads becomes the mount's, at its place, before a fork, where it is
//!       to be stored to or moved, before the process locks the file, and before the connection ends; one for stores stays, in children as well. It keeps its description open, as
//!       the kernel does.
//!
//! [PRL21] *What is known is told outside* (`outside.rs`). The attributes of a name that the client knows are given after the kernel has said where the path
//!       begins, without entering: who reads them holds nothing, so he may be interrupted, or leave, at any moment. They are shown only while all code
//!       calls the kernel by libc ([PRL16]), so that every change of ids is seen, also one by a process that has this memory: what is shown is
//!       withdrawn first. A forked child finds nothing. So is that a path leads nowhere, to who opens it.
//!
//! [PRL22] *An append is one call.* What appends more bytes than one request of the door may have, and a write for which the connection has no memory, is the
//!       mount's.
//!
//! [PRL23] *Nobody waits for the loader* (`next.rs`). The functions behind this library's are looked up before the process gets a second thread or loads code, since a look waits
//!       for who loads, and a constructor that is run meanwhile may wait for the thread that looks.
//!
//! A panic ends the program with its sentence, as it does at every `extern "C"` function.
//!
//! *Architecture invariant:* only the functions of `symbols` are exported; what an operation does is not known here.

#![cfg_attr(test, allow(dead_code, reason = "tests of parts do not export the functions that use the rest"))]

mod allocator;
mod call;
mod code;
mod descriptions;
mod directories;
mod door;
mod files;
mod hints;
mod inside;
mod lent;
mod mappings;
mod mutant;
mod next;
mod outside;
mod report;
mod settings;
mod start;
mod symbols;
mod sys;
mod turn;

/// Memory of its own ([PRL3]).
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();

/// Runs when the library is loaded, before `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

#[cfg_attr(test, allow(dead_code))]
extern "C" fn at_start() {
    if settings::read() {
        door::watch_forks();
    }
}
