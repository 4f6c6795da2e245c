/* A library for `tests/run.rs` that users preload: it stands in front of a function of libc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/types.h>

int mkdir(const char *path, mode_t mode) {
    int (*next)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    dprintf(1, "mkdir of a user\n");
    return next(path, mode);
}
