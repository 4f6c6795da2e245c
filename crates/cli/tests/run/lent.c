/* A program that overwrites files and reads them again, for `tests/run_lent.rs`: what it prints, and what is in its files, must not depend on the way
   that its calls go.
   lent WHAT DIRECTORY */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) do { if (!(condition)) { printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); fflush(stdout); _exit(1); } } while (0)
#define SAY(call) do { errno = 0; long result = (long)(call); printf("%s = %ld, %d\n", #call, result, errno); } while (0)

enum { PAGE = 4096, BYTES_MAX = 3 << 20 };

static unsigned char model[BYTES_MAX], found[BYTES_MAX], bytes[BYTES_MAX];
static size_t size;

static uint64_t number(void) {
    static uint64_t state = 88172645463325252;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static size_t below(size_t limit) { return number() % limit; }

/* Lets the caller look at the mount while the files are open. */
static void pause_if_asked(void) {
    if (!getenv("PAUSES")) return;
    fputs("ready\n", stderr), fflush(stderr);
    getchar();
}

static void fill(size_t count) { for (size_t at = 0; at < count; at++) bytes[at] = number() >> 32; }

static void same(int file) {
    CHECK(pread(file, found, BYTES_MAX, 0) == (ssize_t)size && !memcmp(found, model, size));
}

/* Overwrites and reads of a file, until its windows have long been leased. */
static void overwrite(int file, int rounds) {
    for (int round = 0; round < rounds; round++) {
        size_t at = below(size), most = round % 20 ? 5000 : 60000, count = 1 + below(most);
        if (count > size - at) count = size - at;
        switch (below(8)) {
            case 0:
                CHECK(pread(file, found, count, at) == (ssize_t)count && !memcmp(found, model + at, count));
                break;
            case 1: {
                struct iovec parts[2] = {{bytes, count / 2}, {bytes + count / 2, count - count / 2}};
                fill(count);
                CHECK(pwritev(file, parts, 2, at) == (ssize_t)count);
                memcpy(model + at, bytes, count);
                break;
            }
            case 2:
                fill(count);
                CHECK(lseek(file, at, SEEK_SET) == (off_t)at && write(file, bytes, count) == (ssize_t)count);
                CHECK(lseek(file, 0, SEEK_CUR) == (off_t)(at + count));
                memcpy(model + at, bytes, count);
                break;
            default:
                fill(count);
                CHECK(pwrite(file, bytes, count, at) == (ssize_t)count);
                memcpy(model + at, bytes, count);
        }
        if (round % 3 == 0) CHECK(fdatasync(file) == 0);
    }
}

/* What is done with an open file, or to it by others, between overwrites. */
static void overwrites(void) {
    size = (2 << 20) + 5000;
    fill(size), memcpy(model, bytes, size);
    int file = open("file", O_RDWR | O_CREAT, 0644);
    CHECK(file >= 0 && write(file, bytes, size) == (ssize_t)size && close(file) == 0);
    for (int event = 0; event < 14; event++) {
        int flags = event % 2 ? O_RDWR | O_DSYNC : O_RDWR, other, status;
        struct stat attributes;
        file = open("file", flags);
        overwrite(file, 400);
        switch (event) {
            case 0: { /* a child has the descriptor */
                pid_t child = fork();
                CHECK(child >= 0);
                if (child == 0) { same(file); overwrite(file, 50); same(file); _exit(0); }
                CHECK(waitpid(child, &status, 0) == child && status == 0);
                CHECK(pread(file, model, size, 0) == (ssize_t)size);
                break;
            }
            case 1:
                CHECK((other = dup(file)) >= 0);
                overwrite(other, 100), same(file), overwrite(file, 100), same(other), close(other);
                break;
            case 2:
                CHECK((other = open("file", O_WRONLY | O_APPEND)) >= 0);
                fill(3000);
                CHECK(write(other, bytes, 3000) == 3000 && close(other) == 0);
                memcpy(model + size, bytes, 3000), size += 3000;
                break;
            case 3:
                size -= 700000;
                CHECK(ftruncate(file, size) == 0);
                SAY(pread(file, found, 100, size));
                size += 300000;
                CHECK(ftruncate(file, size) == 0);
                memset(model + size - 300000, 0, 300000);
                break;
            case 4: /* another program */
                CHECK(fflush(stdout) == 0 && system("cksum < file") == 0);
                break;
            case 5:
                CHECK(fcntl(file, F_SETFL, O_APPEND) == 0);
                fill(500);
                CHECK(write(file, bytes, 500) == 500);
                memcpy(model + size, bytes, 500), size += 500;
                CHECK(fcntl(file, F_SETFL, 0) == 0);
                break;
            case 6: {
                unsigned char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
                CHECK(mapped != MAP_FAILED && !memcmp(mapped, model, size));
                mapped[100] = model[100] = 77;
                CHECK(msync(mapped, size, MS_SYNC) == 0);
                overwrite(file, 50);
                CHECK(!memcmp(mapped, model, size) && munmap(mapped, size) == 0);
                break;
            }
            case 7:
                CHECK(rename("file", "renamed") == 0 && (other = open("renamed", O_RDONLY)) >= 0);
                same(other), close(other);
                CHECK(rename("renamed", "file") == 0);
                break;
            case 8:
                CHECK(fsync(file) == 0 && fstat(file, &attributes) == 0);
                printf("%lld bytes, changed within a minute: %d\n", (long long)attributes.st_size, time(NULL) - attributes.st_mtime < 60);
                break;
            case 9:
                CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 50000) == 0);
                memset(model + 8192, 0, 50000);
                break;
            case 10: {
                other = open("file", O_RDONLY);
                same(other), overwrite(file, 200), same(other), close(other);
                break;
            }
            case 11:
                CHECK((other = open("file", O_RDWR | O_TRUNC)) >= 0);
                SAY(pread(file, found, 10, 0));
                size = 1500000, fill(size), memcpy(model, bytes, size);
                CHECK(pwrite(other, bytes, size, 0) == (ssize_t)size && close(other) == 0);
                break;
            case 12: { /* a child that is there while the parent goes on */
                int ends[2];
                CHECK(pipe(ends) == 0);
                pid_t child = fork();
                CHECK(child >= 0);
                if (child == 0) { char byte; close(ends[1]); CHECK(read(ends[0], &byte, 1) == 0); _exit(0); }
                int again = open("file", O_RDWR);
                overwrite(again, 300), same(again), close(again);
                close(ends[0]), close(ends[1]);
                CHECK(waitpid(child, &status, 0) == child && status == 0);
                break;
            }
        }
        overwrite(file, 100), same(file);
        if (event == 13) pause_if_asked();
        CHECK(close(file) == 0 && (file = open("file", O_RDONLY)) >= 0);
        same(file), close(file);
        printf("event %d: %zu bytes\n", event, size);
    }
}

/* Signals whose handler jumps, while a file is overwritten. */
static sigjmp_buf back;
static volatile sig_atomic_t jumped;

static void jump(int signal) { (void)signal; jumped++; siglongjmp(back, 1); }

static void jumps(void) {
    enum { PAGES = 200 };
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    static volatile int round, is_under_way;
    static volatile uint64_t word;
    static volatile unsigned page;
    static int file;
    size = PAGES * PAGE, memset(model, 0, size);
    CHECK((file = open("jumps", O_RDWR | O_CREAT, 0644)) >= 0 && write(file, model, size) == (ssize_t)size);
    CHECK(signal(SIGALRM, jump) != SIG_ERR);
    if (sigsetjmp(back, 1)) {
        setitimer(ITIMER_REAL, &never, NULL);
        if (is_under_way) { /* it was made, or was not */
            uint64_t now;
            CHECK(pread(file, &now, 8, page * PAGE) == 8 && (now == word || !memcmp(&now, model + page * PAGE, 8)));
            memcpy(model + page * PAGE, &now, 8), is_under_way = 0;
        }
    }
    setitimer(ITIMER_REAL, &often, NULL);
    while (round < 30000) {
        word = ++round, page = word % PAGES, is_under_way = 1;
        uint64_t written = word;
        CHECK(pwrite(file, &written, 8, page * PAGE) == 8);
        memcpy(model + page * PAGE, &written, 8), is_under_way = 0;
        CHECK(fdatasync(file) == 0);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    same(file);
    pause_if_asked();
    CHECK(close(file) == 0 && jumped > 20);
}

/* Says each number that is durable, until it is killed or a call fails. */
static void acknowledges(void) {
    enum { PAGES = 300 };
    int file = open("acknowledged", O_RDWR | O_CREAT, 0644);
    uint64_t last = 0, word;
    memset(bytes, 0, PAGES * PAGE);
    if (lseek(file, 0, SEEK_END) == 0) CHECK(write(file, bytes, PAGES * PAGE) == PAGES * PAGE && fsync(file) == 0);
    for (int page = 0; page < PAGES; page++) {
        CHECK(pread(file, &word, 8, page * PAGE) == 8);
        if (word > last) last = word;
    }
    for (;;) {
        uint64_t words[PAGE / 8];
        for (unsigned index = 0; index < PAGE / 8; index++) words[index] = last + 1;
        if (pwrite(file, words, PAGE, ++last % PAGES * PAGE) != PAGE || fdatasync(file) != 0) {
            dprintf(2, "errno %d\n", errno);
            return;
        }
        dprintf(1, "%llu\n", (unsigned long long)last);
    }
}

/* Reads a file of which the memory is gone. */
static void faults(void) {
    int file = open("faults", O_RDWR);
    for (int round = 0; round < 8; round++) CHECK(pread(file, found, 5000, (1 << 20) - 10000) == 5000);
    pause_if_asked();
    SAY(pread(file, found, 5000, (1 << 20) - 10000));
}

/* How long a durable overwrite of 4 KiB takes, and a read. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int order(const void *first, const void *second) {
    double difference = *(const double *)first - *(const double *)second;
    return (difference > 0) - (difference < 0);
}

static void cost(void) {
    enum { ROUNDS = 20000, REPEATS = 9 };
    double took[3][REPEATS];
    int file = open("cost", O_RDWR | O_CREAT, 0644);
    size = 1 << 20;
    CHECK(write(file, bytes, size) == (ssize_t)size && fsync(file) == 0);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int kind = 0; kind < 3; kind++) {
            double begun = seconds();
            for (int round = 0; round < ROUNDS; round++) {
                size_t at = round * 7 % 256 * PAGE;
                if (kind < 2) CHECK(pwrite(file, bytes, PAGE, at) == PAGE);
                if (kind == 1) CHECK(fdatasync(file) == 0);
                if (kind == 2) CHECK(pread(file, found, PAGE, at) == PAGE);
            }
            took[kind][repeat] = (seconds() - begun) / ROUNDS * 1e9;
        }
    }
    const char *names[] = {"pwrite", "pwrite, fdatasync", "pread"};
    for (int kind = 0; kind < 3; kind++) {
        qsort(took[kind], REPEATS, sizeof(double), order);
        printf("%s of 4 KiB: %.0f ns (%.0f to %.0f)\n", names[kind], took[kind][REPEATS / 2], took[kind][0], took[kind][REPEATS - 1]);
    }
}

int main(int count, char **words) {
    CHECK(count == 3 && chdir(words[2]) == 0);
    const struct { const char *name; void (*run)(void); } all[] = {
        {"overwrites", overwrites}, {"jumps", jumps}, {"acknowledges", acknowledges}, {"faults", faults}, {"cost", cost},
    };
    for (unsigned index = 0; index < sizeof all / sizeof *all; index++)
        if (!strcmp(all[index].name, words[1])) { all[index].run(); printf("done\n"); return 0; }
    return 2;
}
