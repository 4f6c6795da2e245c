/* A library for `tests/run.rs`: its constructor waits for a thread that calls what nobody has called before. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int result = -1;

static void *calls(void *argument) {
    result = mkdir("made", 0700) + chmod("made", 0500) + rename("made", "renamed") + symlink("renamed", "link") + unlink("link") + rmdir("renamed");
    return argument;
}

__attribute__((constructor)) static void waits(void) {
    pthread_t thread;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_create(&thread, NULL, calls, NULL) != 0 || pthread_timedjoin_np(thread, NULL, &until) != 0) _exit(7);
}

int waited(void) { return result; }
