/* Code that calls the kernel past libc, for `tests/run.rs`: a library, or a part of `client.c`. Whoever loads the library waits. */
#include <unistd.h>

long own_call(long number, long a, long b, long c) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

#ifdef LIBRARY
__attribute__((constructor)) static void slow(void) {
    usleep(300000);
}
#endif
