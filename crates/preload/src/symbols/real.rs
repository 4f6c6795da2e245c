//! Functions before which placeholders become real: what the kernel does with a descriptor of the mount it does with a real one, and what has all
//! descriptors (another process, another program) has real ones ([PRL13], [PRL14] of `lib.rs`).
//!
//! These functions are not replaced: a few instructions in front of them keep all registers, and jump to libc's with the caller's stack as it
//! was. So `vfork` returns twice from its caller's frame, variadic functions find their arguments, and `dlopen` knows who calls it.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::descriptions;
use crate::inside::Within;
use crate::mutant::{Mutant, on};
use crate::report::Way;
use crate::settings;
use crate::sys;

/// The arguments of a call that are passed in registers.
type Arguments = [usize; 6];

/// Descriptors among the arguments, a bit each, become real.
fn these<const WHICH: u8>(arguments: &Arguments) {
    if descriptions::are_there() {
        let named = arguments.iter().enumerate().filter(|(index, _)| WHICH >> index & 1 == 1);
        named.for_each(|(_, number)| descriptions::real(*number as c_int));
    }
}

/// Descriptors of which the kernel uses more than bytes at an offset: what else is open of their files is the mount's as well, also if they
/// were real from the start ([PRL14]).
fn used_by_kernel<const WHICH: u8>(arguments: &Arguments) {
    let named = arguments.iter().enumerate().filter(|(index, _)| WHICH >> index & 1 == 1);
    named.for_each(|(_, number)| super::used_by_kernel(*number as c_int));
}

/// lockf(3).
fn locks(arguments: &Arguments) {
    super::locked_by_kernel(arguments[0] as c_int);
}

/// Another process or program gets all.
fn all(_: &Arguments) {
    descriptions::all_real(Way::Fork);
}

/// A process with memory of its own gets all, mappings among it ([PRL20]).
fn forks(arguments: &Arguments) {
    all(arguments);
    crate::mappings::before_fork();
}

/// clone(2) of a process; threads share the descriptors.
fn all_unless_thread(arguments: &Arguments) {
    let (flags, shared) = (arguments[2] as c_int, libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_THREAD);
    if super::shares_descriptors(flags.into()) {
        descriptions::end();
    }
    match flags & shared == shared {
        true => {}
        false if flags & libc::CLONE_VM != 0 => all(arguments),
        false => forks(arguments),
    }
}

/// Code is loaded. Who names libc itself looks for its functions there, past this library.
fn loads(arguments: &Arguments) {
    let name = arguments[0] as *const c_char;
    // SAFETY: null, or the caller's text.
    if !name.is_null() && is_libc(unsafe { CStr::from_ptr(name) }.to_bytes()) && !on(Mutant::LibcLoaded) {
        descriptions::end();
    }
    crate::next::look_up_all();
    if settings::get().is_some_and(|settings| settings.placeholders) {
        descriptions::before_loading();
    }
}

/// A thread begins, perhaps one for which a constructor waits.
fn threads(_: &Arguments) {
    crate::next::look_up_all();
}

/// Whether a library is libc, by its name.
fn is_libc(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b"libc.so"))
}

/// Asynchronous I/O of the kernel's, whose requests nobody sees, and code with a libc of its own: no more placeholders.
fn no_more(_: &Arguments) {
    descriptions::end();
}

/// The path of the first argument may name a descriptor.
fn path(arguments: &Arguments) {
    // SAFETY: the caller's path.
    unsafe { super::open::before_path(arguments[0] as *const c_char) };
}

/// remove(3), perhaps of a directory: the kernel finds none that has no name any more, so it has it before.
fn removes(arguments: &Arguments) {
    path(arguments);
    let path = arguments[0] as *const c_char;
    if path.is_null() || !descriptions::has_directories() {
        return;
    }
    // SAFETY: the caller's text.
    let found = settings::get().and_then(|settings| settings.mount.inode_of_name(libc::AT_FDCWD, unsafe { CStr::from_ptr(path) }));
    if let Some(inode) = found
        && let Some(_within) = Within::enter()
    {
        descriptions::directory_becomes_real(inode);
    }
}

/// The path of the second argument, below the descriptor of the first: openat2(2).
fn path_at(arguments: &Arguments) {
    these::<0b1>(arguments);
    // SAFETY: the caller's path.
    unsafe { super::open::before_path(arguments[1] as *const c_char) };
}

/// So may each of several paths: fts_open(3).
fn paths(arguments: &Arguments) {
    let mut at = arguments[0] as *const *const c_char;
    while descriptions::are_there() && !at.is_null() {
        // SAFETY: the caller's list of paths, which ends with null.
        let path = unsafe { *at };
        if path.is_null() {
            return;
        }
        // SAFETY: a path of the caller's; the next one is there, since this was not the last.
        at = unsafe {
            super::open::before_path(path);
            at.add(1)
        };
    }
}

/// A message may carry descriptors.
fn message(arguments: &Arguments) {
    these::<0b1>(arguments);
    let message = arguments[1] as *const libc::msghdr;
    // SAFETY: null, or the caller's message.
    if descriptions::are_there() && !message.is_null() && unsafe { (*message).msg_controllen } > 0 {
        all(arguments);
    }
}

/// As [`message`]; any of several.
fn messages(arguments: &Arguments) {
    all(arguments);
}

/// poll(2).
fn polled(arguments: &Arguments) {
    let (sets, count) = (arguments[0] as *const libc::pollfd, arguments[1]);
    if descriptions::are_there() && !sets.is_null() {
        // SAFETY: the caller's array of that length.
        (0..count).for_each(|index| descriptions::real(unsafe { (*sets.add(index)).fd }));
    }
}

/// select(2).
fn selected(arguments: &Arguments) {
    if !descriptions::are_there() {
        return;
    }
    let numbers = 0..(arguments[0] as c_int).clamp(0, libc::FD_SETSIZE as c_int);
    for number in numbers.filter(|number| descriptions::is_taken(*number)) {
        let is_in = |set: usize| {
            let set = set as *const libc::fd_set;
            // SAFETY: null, or a set of the caller's, which has a bit for each of these numbers.
            !set.is_null() && unsafe { libc::FD_ISSET(number, set) }
        };
        if arguments[1..4].iter().any(|set| is_in(*set)) {
            descriptions::real(number);
        }
    }
}

/// Requests of POSIX's asynchronous I/O begin with their descriptor.
fn request<const WHICH: usize>(arguments: &Arguments) {
    let request = arguments[WHICH] as *const c_int;
    if descriptions::are_there() && !request.is_null() {
        // SAFETY: the caller's request.
        descriptions::real(unsafe { *request });
    }
}

/// inotify_add_watch(2).
fn watches(arguments: &Arguments) {
    // SAFETY: the caller's path.
    unsafe { super::watching((super::HERE, arguments[1] as *const c_char)) };
}

/// fanotify_mark(2).
fn marks(arguments: &Arguments) {
    these::<0b1000>(arguments);
    // SAFETY: the caller's path.
    unsafe { super::watching((arguments[3] as c_int, arguments[4] as *const c_char)) };
}

/// A limit for the size of files ends the use of the door ([CRD4] of the daemon).
fn limit<const WHICH: usize>(arguments: &Arguments) {
    if arguments[WHICH] as u32 == libc::RLIMIT_FSIZE && arguments[WHICH + 1] != 0 {
        crate::door::end();
    }
}

/// As [`limit`], by the oldest function that sets it.
fn old_limit(arguments: &Arguments) {
    const UL_SETFSIZE: c_int = 2;
    if arguments[0] as c_int == UL_SETFSIZE {
        crate::door::end();
    }
}

/// A signal gets a handler; sigaction(2) may only ask for the one that there is.
fn handles(arguments: &Arguments) {
    if arguments[1] != 0 {
        crate::lent::handles(arguments[0] as c_int);
    }
}

/// prctl(2), by which a process limits the system calls that it may make.
fn controlled(arguments: &Arguments) {
    if arguments[0] as c_int == libc::PR_SET_SECCOMP {
        super::sandboxed();
    }
}

/// pthread_cancel(3): a thread ends in functions of libc alone, so from the first one on all calls go there.
fn cancels(_: &Arguments) {
    descriptions::end();
    crate::door::end();
}

/// move_mount(2) and its like, by which something is mounted, or mounted otherwise.
fn mounts<const WHICH: u8>(arguments: &Arguments) {
    these::<WHICH>(arguments);
    crate::door::end();
}

extern "C" fn unavailable() -> isize {
    sys::set_errno(libc::ENOSYS);
    -1
}

/// Where to jump on to.
fn behind(next: &crate::next::Next) -> *const c_void {
    let found = next.get();
    if found.is_null() { unavailable as *const c_void } else { found }
}

macro_rules! before {
    ($($name:ident: $what:expr;)*) => {$(
        #[allow(non_snake_case, reason = "libc's names")]
        mod $name {
            use super::*;

            pub(super) extern "C" fn enter(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> *const c_void {
                let before: fn(&Arguments) = $what;
                before(&[a, b, c, d, e, f]);
                behind(crate::next::next!(stringify!($name)))
            }
        }

        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[allow(non_snake_case, reason = "libc's names")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "call {enter}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                enter = sym $name::enter,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "sub sp, sp, #224",
                "stp x0, x1, [sp]", "stp x2, x3, [sp, #16]", "stp x4, x5, [sp, #32]", "stp x6, x7, [sp, #48]", "stp x8, x30, [sp, #64]",
                "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]", "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
                "bl {enter}",
                "mov x16, x0",
                "ldp x0, x1, [sp]", "ldp x2, x3, [sp, #16]", "ldp x4, x5, [sp, #32]", "ldp x6, x7, [sp, #48]", "ldp x8, x30, [sp, #64]",
                "ldp q0, q1, [sp, #80]", "ldp q2, q3, [sp, #112]", "ldp q4, q5, [sp, #144]", "ldp q6, q7, [sp, #176]",
                "add sp, sp, #224",
                "br x16",
                enter = sym $name::enter,
            );
        }
    )*};
}

before! {
    // One descriptor.
    fdopen: these::<0b1>;
    flock: these::<0b1>;
    ttyname: these::<0b1>;
    ttyname_r: these::<0b1>;
    __ttyname_r_chk: these::<0b1>;
    tcsetattr: these::<0b1>;
    tcgetpgrp: these::<0b1>;
    tcsetpgrp: these::<0b1>;
    tcgetsid: these::<0b1>;
    tcflush: these::<0b1>;
    tcflow: these::<0b1>;
    tcdrain: these::<0b1>;
    tcsendbreak: these::<0b1>;
    login_tty: these::<0b1>;
    posix_fallocate: these::<0b1>;
    posix_fallocate64: these::<0b1>;
    readahead: these::<0b1>;
    sync_file_range: these::<0b1>;
    syncfs: these::<0b1>;
    fstatfs: these::<0b1>;
    fstatfs64: these::<0b1>;
    fstatvfs: these::<0b1>;
    fstatvfs64: these::<0b1>;
    fpathconf: these::<0b1>;
    futimes: these::<0b1>;
    fchdir: these::<0b1>;
    getdents64: these::<0b1>;
    getdirentries: these::<0b1>;
    getdirentries64: these::<0b1>;
    mknodat: these::<0b1>;
    mkfifoat: these::<0b1>;
    __xmknodat: these::<0b10>;
    scandirat: these::<0b1>;
    scandirat64: these::<0b1>;
    name_to_handle_at: these::<0b1>;
    dprintf: these::<0b1>;
    vdprintf: these::<0b1>;
    __dprintf_chk: these::<0b1>;
    __vdprintf_chk: these::<0b1>;
    getsockopt: these::<0b1>;
    setsockopt: these::<0b1>;
    getsockname: these::<0b1>;
    getpeername: these::<0b1>;
    isfdtype: these::<0b1>;
    bind: these::<0b1>;
    connect: these::<0b1>;
    __connect: these::<0b1>;
    listen: these::<0b1>;
    accept: these::<0b1>;
    accept4: these::<0b1>;
    shutdown: these::<0b1>;
    send: these::<0b1>;
    __send: these::<0b1>;
    sendto: these::<0b1>;
    recv: these::<0b1>;
    __recv_chk: these::<0b1>;
    recvfrom: these::<0b1>;
    __recvfrom_chk: these::<0b1>;
    recvmsg: these::<0b1>;
    recvmmsg: these::<0b1>;
    vmsplice: these::<0b1>;
    open_by_handle_at: these::<0b1>;
    open_tree: these::<0b1>;
    pidfd_getfd: these::<0b10>;
    tee: these::<0b11>;
    __dup2: these::<0b11>;
    epoll_ctl: these::<0b100>;
    backtrace_symbols_fd: these::<0b100>;
    __backtrace_symbols_fd: these::<0b100>;
    fspick: these::<0b1>;
    move_mount: mounts::<0b101>;
    mount_setattr: mounts::<0b1>;
    fsconfig: mounts::<0b10001>;
    // Who watches.
    inotify_add_watch: watches;
    fanotify_mark: marks;
    aio_read: request::<0>;
    aio_read64: request::<0>;
    aio_write: request::<0>;
    aio_write64: request::<0>;
    aio_fsync: request::<1>;
    aio_fsync64: request::<1>;
    // The kernel uses more of a file than bytes at an offset.
    lockf: locks;
    lockf64: locks;
    sendfile: used_by_kernel::<0b11>;
    sendfile64: used_by_kernel::<0b11>;
    splice: used_by_kernel::<0b101>;
    // Several.
    poll: polled;
    __poll: polled;
    ppoll: polled;
    __poll_chk: polled;
    __ppoll_chk: polled;
    select: selected;
    __select: selected;
    pselect: selected;
    sendmsg: message;
    sendmmsg: messages;
    lio_listio: all;
    lio_listio64: all;
    // Another process, another program.
    vfork: all;
    __vfork: all;
    _Fork: forks;
    clone: all_unless_thread;
    __clone: all_unless_thread;
    posix_spawn: all;
    posix_spawnp: all;
    pidfd_spawn: all;
    pidfd_spawnp: all;
    system: all;
    popen: all;
    wordexp: all;
    execve: all;
    execv: all;
    execvp: all;
    execvpe: all;
    execl: all;
    execlp: all;
    execle: all;
    fexecve: all;
    execveat: all;
    // The kernel's queues, of liburing, libaio and others.
    io_uring_queue_init: no_more;
    io_uring_queue_init_params: no_more;
    io_uring_queue_init_mem: no_more;
    io_uring_setup: no_more;
    io_queue_init: no_more;
    io_setup: no_more;
    // Paths, by which a descriptor may be meant.
    fopen: path;
    fopen64: path;
    freopen: path;
    freopen64: path;
    realpath: path;
    __realpath_chk: path;
    canonicalize_file_name: path;
    truncate: path;
    truncate64: path;
    statfs: path;
    statfs64: path;
    statvfs: path;
    statvfs64: path;
    chdir: path;
    remove: removes;
    mknod: path;
    mkfifo: path;
    pathconf: path;
    scandir: path;
    scandir64: path;
    ftw: path;
    ftw64: path;
    nftw: path;
    nftw64: path;
    glob: path;
    glob64: path;
    mkstemp: path;
    mkstemp64: path;
    mkstemps: path;
    mkstemps64: path;
    mkostemp: path;
    mkostemp64: path;
    mkostemps: path;
    mkostemps64: path;
    mkdtemp: path;
    fts_open: paths;
    fts64_open: paths;
    openat2: path_at;
    pthread_cancel: cancels;
    // Faults of lent memory.
    sigaction: handles;
    __sigaction: handles;
    signal: handles;
    bsd_signal: handles;
    ssignal: handles;
    sysv_signal: handles;
    __sysv_signal: handles;
    sigset: handles;
    // Another thread.
    pthread_create: threads;
    thrd_create: threads;
    // More code.
    dlopen: loads;
    dlmopen: no_more;
    // Limits.
    ulimit: old_limit;
    prctl: controlled;
    setrlimit: limit::<0>;
    setrlimit64: limit::<0>;
    prlimit: limit::<1>;
    prlimit64: limit::<1>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_keeps_arguments_and_result() {
        // SAFETY: libc's functions, with their own types, reached through the ones of this module.
        unsafe {
            type Print = unsafe extern "C" fn(c_int, *const c_char, ...) -> c_int;
            let print = std::mem::transmute::<unsafe extern "C" fn(), Print>(super::dprintf);
            let mut ends = [0; 2];
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let written =
                print(ends[1], c"%d %s %.2f %d %d %d %.1f".as_ptr(), 7_i32, c"text".as_ptr(), 2.5_f64, 1_i32, 2_i32, 3_i32, 0.5_f64);
            let mut bytes = [0_u8; 64];
            let read = libc::read(ends[0], bytes.as_mut_ptr().cast(), bytes.len());
            assert_eq!((written as isize, &bytes[..read as usize]), (read, &b"7 text 2.50 1 2 3 0.5"[..]));
            let vfork = std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn() -> libc::pid_t>(super::vfork);
            let child = vfork();
            if child == 0 {
                libc::_exit(9);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(libc::WEXITSTATUS(status), 9);
            ends.iter().for_each(|end| {
                libc::close(*end);
            });
        }
    }

    #[test]
    fn a_function_that_nobody_has_is_not_implemented() {
        assert_eq!(behind(crate::next::next!("tandemfs_has_no_such_function")), unavailable as *const c_void);
        assert_eq!((unavailable(), sys::errno()), (-1, libc::ENOSYS));
    }
}
