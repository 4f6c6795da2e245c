//! Copies between host memory and a mapping that may fail under the copy (RULES R23).
//!
//! A load or store of mapped device memory can raise SIGBUS: an uncorrectable error, a file cut short, no space under a sparse file.
//! Checking for that before each copy would cost a system call and still race, so the copies are left to fail and are *fixed up*:
//!
//! [CY1] Every instruction of this process that touches a mapping lies between `tandemfs_device_copy` and `tandemfs_device_copy_end`.
//! [CY2] The routines there use neither stack nor callee-saved registers, so at each of their instructions a return is possible.
//! [CY3] The SIGBUS handler looks at the instruction that faulted. Inside the range it sets the result register to the fault's address and
//!       continues at `tandemfs_device_copy_fault`, a lone return. Anywhere else the signal is not ours and goes to the handler before us.
//! [CY4] The handler is installed once, before the first mapping, and stays. It touches only the interrupted registers and one static that
//!       was written before it was installed, so it is safe at any instant.
//!
//! The cost on the hot path is a direct call. 8 aligned bytes are always moved by one instruction, the atom of the `adr` domain.
//!
//! On processors other than x86-64 copies are volatile accesses without a fix-up: a failing access ends the process with SIGBUS, and there
//! is no way to write lines back, so an attached device offers at most the `process` domain there (see [`CAN_FLUSH`]).

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{CAN_FLUSH, copy, copy_streaming, fence, flush, install};

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use portable::{CAN_FLUSH, copy, copy_streaming, fence, flush, install};

/// A copy accessed memory that is poisoned or not backed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The address that failed, exact to the page.
    pub(crate) address: usize,
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::{global_asm, x86_64 as cpu};
    use std::ffi::{c_int, c_void};
    use std::io;
    use std::mem::MaybeUninit;
    use std::ptr::{from_ref, null_mut};
    use std::sync::OnceLock;

    use super::Fault;

    /// Whether lines can be written back from the CPU's caches on this architecture.
    pub(crate) const CAN_FLUSH: bool = true;

    // Arguments of the copies: rdi target, rsi source, rdx bytes; of the flushes: rdi first line, rsi end. Result in rax: zero, or the
    // address of a fault. Below 1 KiB sixteen bytes at a time beat the start-up cost of a string instruction.
    global_asm!(
        ".pushsection .text.tandemfs_device_copy,\"ax\",@progbits",
        ".p2align 6",
        ".hidden tandemfs_device_copy",
        ".globl tandemfs_device_copy",
        "tandemfs_device_copy:",
        "cmp rdx, 64",
        "jb 3f",
        "cmp rdx, 1024",
        "jae 8f",
        "2:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 2b",
        "3:", // Fewer than 64 bytes are left.
        "cmp rdx, 8",
        "jb 4f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "jmp 3b",
        "4:",
        "test rdx, 4",
        "jz 5f",
        "mov eax, [rsi]",
        "mov [rdi], eax",
        "add rsi, 4",
        "add rdi, 4",
        "5:",
        "test rdx, 2",
        "jz 6f",
        "mov ax, [rsi]",
        "mov [rdi], ax",
        "add rsi, 2",
        "add rdi, 2",
        "6:",
        "test rdx, 1",
        "jz 7f",
        "mov al, [rsi]",
        "mov [rdi], al",
        "7:",
        "xor eax, eax",
        "ret",
        "8:", // The string instruction moves quadwords, so that aligned 8 bytes stay whole.
        "mov rcx, rdx",
        "shr rcx, 3",
        "and edx, 7",
        "rep movsq",
        "jmp 4b",
        // Stores past the caches, 32 bytes a turn; rdi is a multiple of 8 and rdx of 32.
        ".p2align 6",
        ".hidden tandemfs_device_copy_streaming",
        ".globl tandemfs_device_copy_streaming",
        "tandemfs_device_copy_streaming:",
        "test rdx, rdx",
        "jz 7b",
        "mov rax, [rsi]",
        "mov rcx, [rsi + 8]",
        "mov r8, [rsi + 16]",
        "mov r9, [rsi + 24]",
        "movnti [rdi], rax",
        "movnti [rdi + 8], rcx",
        "movnti [rdi + 16], r8",
        "movnti [rdi + 24], r9",
        "add rsi, 32",
        "add rdi, 32",
        "sub rdx, 32",
        "jmp tandemfs_device_copy_streaming",
        ".hidden tandemfs_device_clwb",
        ".globl tandemfs_device_clwb",
        "tandemfs_device_clwb:",
        "cmp rdi, rsi",
        "jae 7b",
        "clwb [rdi]",
        "add rdi, 64",
        "jmp tandemfs_device_clwb",
        ".hidden tandemfs_device_clflushopt",
        ".globl tandemfs_device_clflushopt",
        "tandemfs_device_clflushopt:",
        "cmp rdi, rsi",
        "jae 7b",
        "clflushopt [rdi]",
        "add rdi, 64",
        "jmp tandemfs_device_clflushopt",
        ".hidden tandemfs_device_clflush",
        ".globl tandemfs_device_clflush",
        "tandemfs_device_clflush:",
        "cmp rdi, rsi",
        "jae 7b",
        "clflush [rdi]",
        "add rdi, 64",
        "jmp tandemfs_device_clflush",
        ".hidden tandemfs_device_copy_end",
        ".globl tandemfs_device_copy_end",
        "tandemfs_device_copy_end:",
        ".hidden tandemfs_device_copy_fault",
        ".globl tandemfs_device_copy_fault",
        "tandemfs_device_copy_fault:",
        "ret",
        ".popsection",
    );

    unsafe extern "sysv64" {
        fn tandemfs_device_copy(target: *mut u8, source: *const u8, bytes: usize) -> usize;
        fn tandemfs_device_copy_streaming(target: *mut u8, source: *const u8, bytes: usize) -> usize;
        fn tandemfs_device_clwb(first: *const u8, end: *const u8) -> usize;
        fn tandemfs_device_clflushopt(first: *const u8, end: *const u8) -> usize;
        fn tandemfs_device_clflush(first: *const u8, end: *const u8) -> usize;
        fn tandemfs_device_copy_end();
        fn tandemfs_device_copy_fault();
    }

    type FlushRoutine = unsafe extern "sysv64" fn(*const u8, *const u8) -> usize;

    fn result(fault: usize) -> Result<(), Fault> {
        if fault == 0 { Ok(()) } else { Err(Fault { address: fault }) }
    }

    /// Copies `bytes` from `source` to `target`, either of which may be a mapping.
    ///
    /// # Safety
    /// `target` is valid for writes and `source` for reads of `bytes`, except that mapped pages may fail with SIGBUS. The ranges do not
    /// overlap. [`install`] has succeeded.
    #[inline]
    pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise is the routine's; a SIGBUS inside is fixed up [CY3].
        result(unsafe { tandemfs_device_copy(target, source, bytes) })
    }

    /// Copies `bytes` and bypasses the CPU's caches where alignment allows. Ordered only by [`fence`].
    ///
    /// # Safety
    /// As [`copy`].
    pub(crate) unsafe fn copy_streaming(target: *mut u8, source: *const u8, bytes: usize) -> Result<(), Fault> {
        let head = target.align_offset(super::LINE_BYTES).min(bytes);
        let middle = (bytes - head) / 32 * 32;
        // SAFETY: the three parts follow each other and are together the caller's range; the middle starts at a line and is a multiple of
        // 32 bytes long, as its routine asks.
        unsafe {
            copy(target, source, head)?;
            result(tandemfs_device_copy_streaming(target.add(head), source.add(head), middle))?;
            copy(target.add(head + middle), source.add(head + middle), bytes - head - middle)
        }
    }

    /// Starts writing the lines of a range back from the CPU's caches, by the best instruction that this processor has.
    ///
    /// # Safety
    /// `first` is the start of a mapped line, `bytes` lie in the same mapping; pages may fail with SIGBUS. [`install`] has succeeded.
    pub(crate) unsafe fn flush(first: *const u8, bytes: usize) -> Result<(), Fault> {
        static ROUTINE: OnceLock<FlushRoutine> = OnceLock::new();
        let routine = *ROUTINE.get_or_init(flush_routine);
        // SAFETY: the caller's promise is the routine's.
        result(unsafe { routine(first, first.wrapping_add(bytes)) })
    }

    fn flush_routine() -> FlushRoutine {
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        let features = if cpu::__cpuid(0).eax >= 7 { cpu::__cpuid_count(7, 0).ebx } else { 0 };
        if features & CLWB != 0 {
            tandemfs_device_clwb
        } else if features & CLFLUSHOPT != 0 {
            tandemfs_device_clflushopt
        } else {
            tandemfs_device_clflush
        }
    }

    /// Waits until flushed and streamed lines have left the caches.
    pub(crate) fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { cpu::_mm_sfence() };
    }

    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    /// Installs the SIGBUS handler, once for the process.
    pub(crate) fn install() -> io::Result<()> {
        static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
        let code = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        let install = || {
            let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: asks for the present action; the structure outlives the call.
            if unsafe { libc::sigaction(libc::SIGBUS, null_mut(), previous.as_mut_ptr()) } != 0 {
                return Err(code());
            }
            // SAFETY: the call has filled the structure.
            let previous = unsafe { previous.assume_init() };
            PREVIOUS.get_or_init(|| previous);
            let mut action = previous;
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // SAFETY: the mask belongs to `action`; the handler has the signature that SA_SIGINFO asks for and keeps [CY4].
            let installed =
                unsafe { libc::sigemptyset(&raw mut action.sa_mask) | libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) };
            if installed == 0 { Ok(()) } else { Err(code()) }
        };
        INSTALLED.get_or_init(install).map_err(io::Error::from_raw_os_error)
    }

    extern "C" fn on_bus_error(signal: c_int, information: *mut libc::siginfo_t, context: *mut c_void) {
        let first = tandemfs_device_copy as *const () as usize;
        let end = tandemfs_device_copy_end as *const () as usize;
        // SAFETY: the kernel hands both structures to an SA_SIGINFO handler; nobody else holds them while it runs.
        let (information, registers) = unsafe { (&*information, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
        let instruction = registers[libc::REG_RIP as usize] as usize;
        // A sent signal (code 0 and below), or one that only reports an error elsewhere, does not concern this instruction.
        let is_fault = information.si_code > 0 && information.si_code != libc::BUS_MCEERR_AO;
        if is_fault && (first..end).contains(&instruction) {
            // SAFETY: SIGBUS from the kernel carries an address.
            let address = unsafe { information.si_addr() } as usize;
            registers[libc::REG_RAX as usize] = address.max(1) as i64;
            registers[libc::REG_RIP as usize] = tandemfs_device_copy_fault as *const () as i64;
            return;
        }
        chain(signal, information, context);
    }

    /// Passes a signal that is not ours to the handler that was installed before.
    fn chain(signal: c_int, information: &libc::siginfo_t, context: *mut c_void) {
        let previous = PREVIOUS.get().map_or((libc::SIG_DFL, 0), |action| (action.sa_sigaction, action.sa_flags));
        match previous {
            (libc::SIG_DFL | libc::SIG_IGN, _) => {
                // SAFETY: both calls are async-signal-safe. The signal is blocked here, so it ends the process on return, as it would
                // have without us (the kernel does not ignore a fault either).
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    libc::raise(signal);
                }
            }
            (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
                type Handler = extern "C" fn(c_int, *const libc::siginfo_t, *mut c_void);
                // SAFETY: the action was registered with SA_SIGINFO, so its address is of a function with this signature.
                let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
                handler(signal, from_ref(information), context);
            }
            (handler, _) => {
                // SAFETY: the action was registered without SA_SIGINFO, so its address is of a function with this signature.
                let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
                handler(signal);
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod portable {
    use std::io;
    use std::sync::atomic::{Ordering, fence as atomic_fence};

    use super::Fault;

    /// Whether lines can be written back from the CPU's caches on this architecture.
    pub(crate) const CAN_FLUSH: bool = false;

    /// Nothing to install: failing accesses are not caught on this architecture.
    pub(crate) fn install() -> io::Result<()> {
        Ok(())
    }

    /// Copies `bytes` from `source` to `target`.
    ///
    /// # Safety
    /// `target` is valid for writes and `source` for reads of `bytes`; the ranges do not overlap.
    pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) -> Result<(), Fault> {
        let word = size_of::<u64>();
        let aligned = (target as usize | source as usize) % word == 0;
        let words = if aligned { bytes / word } else { 0 };
        for index in 0..words {
            // SAFETY: inside the caller's ranges, and aligned.
            unsafe { target.cast::<u64>().add(index).write_volatile(source.cast::<u64>().add(index).read_volatile()) };
        }
        for index in words * word..bytes {
            // SAFETY: inside the caller's ranges.
            unsafe { target.add(index).write_volatile(source.add(index).read_volatile()) };
        }
        Ok(())
    }

    /// As [`copy`].
    ///
    /// # Safety
    /// As [`copy`].
    pub(crate) unsafe fn copy_streaming(target: *mut u8, source: *const u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the same promise.
        unsafe { copy(target, source, bytes) }
    }

    /// Does nothing: no domain that needs it is offered here.
    ///
    /// # Safety
    /// None needed; the signature is that of the other architecture.
    pub(crate) unsafe fn flush(_first: *const u8, _bytes: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Orders stores.
    pub(crate) fn fence() {
        atomic_fence(Ordering::SeqCst);
    }
}

#[cfg(target_arch = "x86_64")]
use tandemfs_format::LINE_BYTES;

#[cfg(test)]
mod tests {
    use super::{copy, copy_streaming};

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        let source: Vec<u8> = (0..8192_u32).map(|index| (index % 251) as u8 + 1).collect();
        for routine in [copy, copy_streaming] as [unsafe fn(*mut u8, *const u8, usize) -> Result<(), super::Fault>; 2] {
            for length in (0..200).chain([1023, 1024, 1025, 1031, 4096, 5003]) {
                for (target_skip, source_skip) in [(0, 0), (1, 0), (0, 3), (7, 5), (13, 40)] {
                    let mut target = vec![0_u8; length + 64];
                    // SAFETY: both ranges lie in their vectors.
                    unsafe { routine(target.as_mut_ptr().add(target_skip), source.as_ptr().add(source_skip), length) }
                        .expect("plain memory");
                    assert_eq!(target[target_skip..target_skip + length], source[source_skip..source_skip + length]);
                    assert!(target[..target_skip].iter().chain(&target[target_skip + length..]).all(|&byte| byte == 0), "{length} B");
                }
            }
        }
    }
}
