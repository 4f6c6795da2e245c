"""Steps through a stopped program between its calls of getppid(2), and counts the instructions that write lines of memory back:
flushes.py PROCESS. It is attached to when it prints "attached", and is to go on then. A line of JSON for each part between two calls."""

import ctypes, json, os, struct, sys

ATTACH, DETACH, STEP, REGISTERS = 16, 17, 9, 12
GETPPID, WORDS, RAX, RIP = 110, 27, 10, 16
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
process = int(sys.argv[1])


def ptrace(request, data=None):
    if libc.ptrace(request, process, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def kind(code):
    """The name of an instruction that is counted."""
    at = 0
    prefixed = code[at] == 0x66
    at += prefixed
    at += 0x40 <= code[at] <= 0x4F
    if code[at] != 0x0F:
        return None
    if code[at + 1] == 0xC3:
        return "movnti"
    if code[at + 1] != 0xAE:
        return None
    modrm = code[at + 2]
    if modrm >> 6 == 3:
        return "sfence" if modrm == 0xF8 and not prefixed else None
    return {(True, 6): "flush", (True, 7): "flush", (False, 7): "flush"}.get((prefixed, modrm >> 3 & 7))


ptrace(ATTACH)
os.waitpid(process, 0)
print("attached", flush=True)
memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
registers = ctypes.create_string_buffer(8 * WORDS)
counts = None
while True:
    ptrace(REGISTERS, ctypes.cast(registers, ctypes.c_void_p))
    words = struct.unpack(f"{WORDS}Q", registers.raw)
    code = os.pread(memory, 16, words[RIP]) + bytes(16)
    if code[:2] == b"\x0f\x05" and words[RAX] == GETPPID:
        if counts is not None:
            print(json.dumps(counts), flush=True)
        counts = {"flush": 0, "sfence": 0, "movnti": 0}
    elif counts is not None and (found := kind(code)):
        counts[found] += 1
    ptrace(STEP)
    _, status = os.waitpid(process, 0)
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        break
