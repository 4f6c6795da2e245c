//! Instructions that enter the kernel. What cannot be decided is one.

use super::object::Object;

/// Whether an object has any.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_own_calls(object: &Object<'_>) -> bool {
    let functions = super::functions::Functions::of(object);
    object.code().any(|code| {
        let Some((start, code)) = code else { return true };
        memchr::memmem::find_iter(code, &SYSCALL).any(|at| {
            let begin = functions.as_ref().and_then(|functions| functions.around(start + at)?.start.checked_sub(start));
            match begin {
                Some(begin) => is_call(&code[begin..], at - begin),
                None => may_be_call(object, start, code, at),
            }
        })
    })
}

#[cfg(target_arch = "x86_64")]
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How far it is looked what could follow a call.
#[cfg(target_arch = "x86_64")]
const STEPS_MAX: usize = 256;

/// Whether the instruction that has the byte of some position is `syscall`. Instructions have no alignment: only from the start of the function
/// on it is known where they begin.
#[cfg(target_arch = "x86_64")]
fn is_call(function: &[u8], position: usize) -> bool {
    let mut decoder = iced_x86::Decoder::new(64, function, iced_x86::DecoderOptions::NONE);
    let mut instruction = iced_x86::Instruction::default();
    while decoder.position() <= position {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return true;
        }
    }
    instruction.mnemonic() == iced_x86::Mnemonic::Syscall
}

/// Whether bytes outside of all known functions can be a call: assembly language without a description, or tables between functions. What
/// follows a call that returns is code. So if on every way from there something comes that no program has, these bytes are none.
#[cfg(target_arch = "x86_64")]
fn may_be_call(object: &Object<'_>, start: usize, code: &[u8], position: usize) -> bool {
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

    let mut instruction = Instruction::default();
    let (mut ways, mut seen) = (vec![position + SYSCALL.len()], Vec::new());
    while let Some(way) = ways.pop() {
        if seen.contains(&way) || seen.len() >= STEPS_MAX {
            return true; // a loop, or long enough
        }
        seen.push(way);
        let Some(bytes) = code.get(way..) else { continue };
        let mut decoder = Decoder::with_ip(64, bytes, (start + way) as u64, DecoderOptions::NONE);
        decoder.decode_out(&mut instruction);
        let is_elsewhere = instruction.is_ip_rel_memory_operand() && !object.has(instruction.ip_rel_memory_address() as usize);
        let is_of_ports = matches!(
            instruction.mnemonic(),
            Mnemonic::In
                | Mnemonic::Out
                | Mnemonic::Insb
                | Mnemonic::Insd
                | Mnemonic::Insw
                | Mnemonic::Outsb
                | Mnemonic::Outsd
                | Mnemonic::Outsw
        );
        if instruction.is_invalid() || is_elsewhere || is_of_ports {
            continue;
        }
        let next = way + instruction.len();
        let target = (instruction.near_branch_target() as usize).wrapping_sub(start);
        match (instruction.op0_kind() == OpKind::NearBranch64, instruction.mnemonic()) {
            (true, _) if target >= code.len() => {}
            (true, Mnemonic::Jmp) => ways.push(target),
            (true, _) => ways.extend([target, next]),
            (false, Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Int | Mnemonic::Int3) => return true,
            (false, Mnemonic::Hlt | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq) => {
                return true;
            }
            (false, _) => ways.push(next),
        }
    }
    false
}

/// Whether an object has any.
#[cfg(target_arch = "aarch64")]
pub(super) fn has_own_calls(object: &Object<'_>) -> bool {
    /// `svc`, and the bits that are not its number, which Linux does not look at.
    const SVC: u32 = 0xd400_0001;
    const SVC_MASK: u32 = 0xffe0_001f;
    object.code().any(|code| {
        let Some((start, code)) = code else { return true };
        let (words, _) = code[start.wrapping_neg() % 4..].as_chunks();
        words.iter().any(|word| u32::from_le_bytes(*word) & SVC_MASK == SVC)
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{is_call, may_be_call};
    use crate::code::object::Object;

    /// What stands between functions, in an object of this code alone.
    fn may_be(code: &[u8]) -> bool {
        // SAFETY: all-zero is a value of these plain structures.
        let (mut header, mut found) = unsafe { std::mem::zeroed::<(libc::Elf64_Phdr, libc::dl_phdr_info)>() };
        let start = code.as_ptr() as usize;
        (header.p_type, header.p_flags) = (libc::PT_LOAD, libc::PF_R | libc::PF_X);
        (header.p_vaddr, header.p_memsz) = (start as u64, code.len() as u64);
        (found.dlpi_phdr, found.dlpi_phnum) = (&raw const header, 1);
        may_be_call(&Object::of(&found), start, code, code.windows(2).position(|bytes| bytes == [0x0f, 0x05]).expect("there"))
    }

    #[test]
    fn between_functions_what_may_follow_decides() {
        // syscall; ret, and with a test of the result before it
        assert!(may_be(&[0x0f, 0x05, 0xc3]));
        assert!(may_be(&[0x0f, 0x05, 0x48, 0x85, 0xc0, 0x78, 0x01, 0xc3, 0x0f, 0x0b]));
        // ... whose jump leads to bytes that are nothing, while the other way returns
        assert!(may_be(&[0x0f, 0x05, 0x78, 0x01, 0xc3, 0x06]));
        // in al, 0x7d; ret; what is nothing; a jump out of all code; memory that is elsewhere; the end
        assert!(!may_be(&[0x0f, 0x05, 0xe4, 0x7d, 0xc3]));
        assert!(!may_be(&[0x0f, 0x05, 0x90, 0x06, 0xc3]));
        assert!(!may_be(&[0x0f, 0x05, 0xe9, 0, 0, 0, 0x10, 0xc3]));
        assert!(!may_be(&[0x0f, 0x05, 0x4c, 0x21, 0x05, 0, 0, 0, 0x10, 0xc3]));
        assert!(!may_be(&[0x0f, 0x05, 0x90]));
        // A loop that does not end.
        assert!(may_be(&[0x0f, 0x05, 0xeb, 0xfc]) && may_be(&[0x0f, 0x05, 0xeb, 0xfe]));
    }

    #[test]
    fn bytes_inside_of_other_instructions_are_no_calls() {
        // mov eax, 0x050f; ret
        assert!(!is_call(&[0xb8, 0x0f, 0x05, 0, 0, 0xc3], 1));
        // lea rax, [rip + 0x50f0000]; syscall
        let code = [0x48, 0x8d, 0x05, 0, 0, 0x0f, 0x05, 0x0f, 0x05];
        assert!(!is_call(&code, 5) && is_call(&code, 7));
        // rex.w syscall: the bytes are not its first.
        assert!(is_call(&[0x90, 0x48, 0x0f, 0x05], 2));
    }

    #[test]
    fn what_cannot_be_decoded_is_a_call() {
        // An instruction that there is none, and one that is cut off.
        assert!(is_call(&[0x06, 0xb8, 0x0f, 0x05, 0, 0], 2));
        assert!(is_call(&[0xb8, 0x0f, 0x05], 1));
    }
}
