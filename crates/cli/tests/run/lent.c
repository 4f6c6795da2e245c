/* A program that overwrites files, appends to them and reads them again, for `tests/run_lent.rs`: what it prints, and what is in its files, must not depend on the way
   that its calls go.
   lent WHAT DIRECTORY */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
            case 1: {
                CHECK((other = dup(file)) >= 0);
                overwrite(other, 100), same(file), overwrite(file, 100), same(other);
                CHECK(lseek(file, 77, SEEK_SET) == 77 && lseek(other, 0, SEEK_CUR) == 77 && write(other, "both", 4) == 4);
                memcpy(model + 77, "both", 4);
                CHECK(lseek(file, 0, SEEK_CUR) == 81);
                loff_t from = 4096, to = 9000;
                CHECK(copy_file_range(file, &from, other, &to, 1000, 0) == 1000);
                memcpy(model + 9000, model + 4096, 1000);
                same(other);
                CHECK(close(other) == 0);
                break;
            }
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

/* Mappings: stores, loads, and what is done with addresses and files meanwhile. */
static unsigned char *mapped(int file, int protection, size_t bytes, off_t offset) {
    unsigned char *start = mmap(NULL, bytes, protection, MAP_SHARED, file, offset);
    CHECK(start != MAP_FAILED);
    return start;
}

static void change(unsigned char *at, int file, int rounds) {
    for (int round = 0; round < rounds; round++) {
        size_t from = below(size), count = 1 + below(3000);
        if (count > size - from) count = size - from;
        fill(count);
        if (round % 3) memcpy(at + from, bytes, count);
        else CHECK(pwrite(file, bytes, count, from) == (ssize_t)count);
        memcpy(model + from, bytes, count);
        if (round % 5 == 0) CHECK(pread(file, found, count, from) == (ssize_t)count && !memcmp(found, bytes, count));
        if (round % 7 == 0) CHECK(msync(at + from / PAGE * PAGE, count + from % PAGE, MS_SYNC) == 0);
        CHECK(!memcmp(at + from, bytes, count));
    }
    CHECK(!memcmp(at, model, size));
}

static int again(const char *name, int flags) {
    int file = open(name, flags);
    CHECK(file >= 0);
    return file;
}

static void maps(void) {
    enum { BOTH = PROT_READ | PROT_WRITE };
    int status, file = open("maps", O_RDWR | O_CREAT, 0644);
    size = (2 << 20) + 5000;
    fill(size), memcpy(model, bytes, size);
    CHECK(file >= 0 && write(file, bytes, size) == (ssize_t)size && close(file) == 0);
    /* Stores by a mapping and calls. The descriptor may be closed meanwhile. */
    file = again("maps", O_RDWR);
    unsigned char *all = mapped(file, BOTH, size, 0), *part = mapped(file, PROT_READ, 5 * PAGE, 2 * PAGE);
    change(all, file, 300);
    CHECK(!memcmp(part, model + 2 * PAGE, 5 * PAGE));
    pause_if_asked();
    CHECK(msync(all, size, MS_ASYNC) == 0 && fsync(file) == 0 && fdatasync(file) == 0);
    SAY(msync(all, size, MS_SYNC | MS_ASYNC));
    SAY(msync(all + 1, 100, MS_SYNC));
    /* Behind the end, within the last page. */
    CHECK(all[size] == 0 && all[(size | (PAGE - 1))] == 0);
    CHECK(close(file) == 0);
    memcpy(all + 777, "closed", 6), memcpy(model + 777, "closed", 6);
    file = again("maps", O_RDONLY), same(file), close(file);
    /* Pages that are given back, and others that are put in their place. */
    CHECK(munmap(all + 20 * PAGE, 30 * PAGE) == 0 && !memcmp(all, model, 20 * PAGE) && !memcmp(all + 50 * PAGE, model + 50 * PAGE, 100 * PAGE));
    CHECK(mmap(all + 20 * PAGE, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == all + 20 * PAGE);
    CHECK(mmap(all + 60 * PAGE, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == all + 60 * PAGE && all[60 * PAGE] == 0);
    memset(all + 60 * PAGE, 9, PAGE);
    CHECK(all[61 * PAGE] == model[61 * PAGE] && munmap(all, size) == 0 && munmap(part, 5 * PAGE) == 0);
    file = again("maps", O_RDONLY), same(file), close(file);
    /* A child. */
    file = again("maps", O_RDWR), all = mapped(file, BOTH, size, 0);
    change(all, file, 50);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(!memcmp(all, model, size));
        memcpy(all + 5000, "child", 5);
        CHECK(msync(all, size, MS_SYNC) == 0 && munmap(all, size) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && !memcmp(all + 5000, "child", 5));
    memcpy(model + 5000, "child", 5);
    part = mapped(file, PROT_READ, 5 * PAGE, PAGE);
    unsigned char *twice = mapped(file, BOTH, size, 0);
    memcpy(twice + 6000, "twice", 5), memcpy(model + 6000, "twice", 5);
    CHECK(!memcmp(part, model + PAGE, 5 * PAGE) && !memcmp(all, model, size));
    CHECK(munmap(twice, size) == 0 && munmap(part, 5 * PAGE) == 0 && munmap(all, size) == 0);
    same(file), close(file);
    /* The same of a mapping for loads, in a file of its own, since that one has been the kernel's. */
    file = open("loads", O_RDWR | O_CREAT, 0644);
    CHECK(file >= 0 && write(file, model, size) == (ssize_t)size && close(file) == 0);
    file = again("loads", O_RDWR), part = mapped(file, PROT_READ, 10 * PAGE, PAGE);
    memcpy(model + 2 * PAGE, "written", 7);
    CHECK(pwrite(file, "written", 7, 2 * PAGE) == 7 && !memcmp(part, model + PAGE, 10 * PAGE));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(memcmp(part, model + PAGE, 10 * PAGE) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!memcmp(part, model + PAGE, 10 * PAGE) && munmap(part, 10 * PAGE) == 0 && close(file) == 0);
    file = open("others", O_RDWR | O_CREAT, 0644);
    CHECK(file >= 0 && write(file, model, size) == (ssize_t)size && close(file) == 0);
    file = again("others", O_RDWR), part = mapped(file, PROT_READ, 10 * PAGE, 0);
    CHECK(mprotect(part, 10 * PAGE, BOTH) == 0 && !memcmp(part, model, 10 * PAGE));
    memcpy(part + 9, "protected", 9), memcpy(model + 9, "protected", 9);
    CHECK(msync(part, 10 * PAGE, MS_SYNC) == 0 && munmap(part, 10 * PAGE) == 0);
    same(file), close(file);
    /* Sizes. */
    file = open("sizes", O_RDWR | O_CREAT, 0644);
    CHECK(file >= 0 && write(file, model, size) == (ssize_t)size && close(file) == 0);
    file = again("sizes", O_RDWR), all = mapped(file, BOTH, size, 0);
    size_t large = size + 300000;
    CHECK(ftruncate(file, large) == 0);
    unsigned char *moved = mremap(all, size, large, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && !memcmp(moved, model, size) && moved[size] == 0 && moved[large - 1] == 0);
    memset(model + size, 0, large - size), size = large;
    change(moved, file, 50);
    CHECK(mremap(moved, size, 100 * PAGE, 0) == moved && !memcmp(moved, model, 100 * PAGE));
    CHECK(madvise(moved, 100 * PAGE, MADV_DONTNEED) == 0 && !memcmp(moved, model, 100 * PAGE));
    CHECK(madvise(moved + 3 * PAGE, 4 * PAGE, MADV_REMOVE) == 0);
    memset(model + 3 * PAGE, 0, 4 * PAGE);
    CHECK(!memcmp(moved, model, 100 * PAGE));
    same(file);
    /* A file without a name, that is not open any more. */
    CHECK(unlink("sizes") == 0 && close(file) == 0);
    memset(moved, 5, 100 * PAGE);
    CHECK(moved[99 * PAGE] == 5 && munmap(moved, 100 * PAGE) == 0);
    /* What is the kernel's. */
    file = again("maps", O_RDONLY);
    SAY(mmap(NULL, PAGE, BOTH, MAP_SHARED, file, 0) == MAP_FAILED);
    SAY(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 100) == MAP_FAILED);
    SAY(mmap(NULL, 0, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED);
    unsigned char *private = mmap(NULL, PAGE, BOTH, MAP_PRIVATE, file, 0);
    CHECK(private != MAP_FAILED && pread(file, found, 100, 0) == 100 && !memcmp(private, found, 100) && munmap(private, PAGE) == 0 && close(file) == 0);
    file = again("maps", O_RDWR), all = mapped(file, BOTH, 8 << 20, 0);
    all[4096] = 1;
    CHECK(munmap(all, 8 << 20) == 0 && close(file) == 0);
}

/* A file that only a child has mapped any more, which the kernel therefore does not map. */
static void maps_beside_child(void) {
    int file = open("inherited", O_RDWR | O_CREAT, 0644), ends[2], status;
    CHECK(file >= 0 && ftruncate(file, 8 * PAGE) == 0 && pipe(ends) == 0);
    unsigned char *all = mapped(file, PROT_READ | PROT_WRITE, 8 * PAGE, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        close(ends[1]);
        CHECK(read(ends[0], &byte, 1) == 0 && all[PAGE] == 7 && all[2 * PAGE] == 8);
        unsigned char *again = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        CHECK(again != MAP_FAILED && again[PAGE] == 7);
        again[3 * PAGE] = 9;
        _exit(msync(again, 4 * PAGE, MS_SYNC));
    }
    CHECK(close(ends[0]) == 0 && munmap(all, 8 * PAGE) == 0 && close(file) == 0);
    file = open("inherited", O_RDWR | O_APPEND);
    int other = dup2(file, 90); /* a descriptor of the kernel's */
    CHECK(file >= 0 && other == 90);
    all = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    unsigned char *part = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, other, PAGE);
    CHECK(all != MAP_FAILED && part != MAP_FAILED);
    all[PAGE] = 7, all[2 * PAGE] = 8;
    CHECK(part[0] == 7 && close(other) == 0 && close(file) == 0 && close(ends[1]) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0 && all[3 * PAGE] == 9);
    CHECK(munmap(all, 8 * PAGE) == 0 && munmap(part, PAGE) == 0);
    int reader = open("inherited", O_RDONLY);
    CHECK(reader >= 0 && mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED && errno == EACCES && close(reader) == 0);
    pause_if_asked();
}

/* A lock of a file that is mapped to be read stays when a child is made, which has that mapping, too. */
static void maps_locked(void) {
    int file = open("locked", O_RDWR | O_CREAT, 0644), status;
    memset(bytes, 5, 4 * PAGE);
    CHECK(file >= 0 && write(file, bytes, 4 * PAGE) == 4 * PAGE);
    unsigned char *all = mapped(file, PROT_READ, 4 * PAGE, 0);
    struct flock lock = {.l_type = F_WRLCK};
    CHECK(fcntl(file, F_SETLK, &lock) == 0 && all[PAGE] == 5);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int other = open("locked", O_RDWR);
        _exit(fcntl(other, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK || all[2 * PAGE] != 5);
    }
    CHECK(waitpid(child, &status, 0) == child);
    SAY(status);
    SAY(pwrite(file, "x", 1, PAGE));
    SAY(all[PAGE]);
    pause_if_asked();
    CHECK(munmap(all, 4 * PAGE) == 0 && close(file) == 0);
}

/* Calls on mapped addresses that the kernel refuses. */
static void maps_refused(void) {
    int file = open("refused", O_RDWR | O_CREAT, 0644);
    memset(bytes, 6, 4 * PAGE);
    CHECK(file >= 0 && write(file, bytes, 4 * PAGE) == 4 * PAGE);
    unsigned char *all = mapped(file, PROT_READ | PROT_WRITE, 4 * PAGE, 0);
    unsigned char *other = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(mmap(all, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, -1, 0) == MAP_FAILED);
    SAY(mremap(other, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, all + 1) == MAP_FAILED);
    SAY(munmap(all, 1L << 62));
    SAY(all[0] + all[3 * PAGE]);
    all[5] = 7;
    pause_if_asked();
    SAY(munmap(all, 4 * PAGE));
    CHECK(munmap(other, PAGE) == 0 && close(file) == 0);
}

/* Threads that map and unmap, beside forks. */
static void *map_and_unmap(void *which) {
    char name[20];
    snprintf(name, sizeof name, "of%ld", (long)which);
    for (int round = 0; round < 60; round++) {
        int file = open(name, O_RDWR | O_CREAT, 0644);
        CHECK(file >= 0 && (round || ftruncate(file, 20 * PAGE) == 0));
        unsigned char *all = mapped(file, PROT_READ | PROT_WRITE, 20 * PAGE, 0), *part = mapped(file, PROT_READ, 4 * PAGE, 0);
        memset(all, round, 10 * PAGE);
        CHECK(part[0] == (unsigned char)round && part[4 * PAGE - 1] == (unsigned char)round && msync(all, 10 * PAGE, MS_SYNC) == 0);
        CHECK(munmap(all + 3 * PAGE, 5 * PAGE) == 0 && all[9 * PAGE] == (unsigned char)round);
        CHECK(mprotect(all, PAGE, PROT_READ) == 0 && munmap(all, 3 * PAGE) == 0 && munmap(all + 8 * PAGE, 12 * PAGE) == 0 && munmap(part, 4 * PAGE) == 0);
        unsigned char byte;
        CHECK(pread(file, &byte, 1, 9 * PAGE) == 1 && byte == (unsigned char)round && close(file) == 0);
    }
    return NULL;
}

static void maps_threads(void) {
    pthread_t threads[4];
    int file = open("common", O_RDWR | O_CREAT, 0644), status;
    CHECK(file >= 0 && ftruncate(file, 30 * PAGE) == 0);
    unsigned char *common = mapped(file, PROT_READ | PROT_WRITE, 30 * PAGE, 0);
    for (long which = 0; which < 4; which++) CHECK(pthread_create(&threads[which], NULL, map_and_unmap, (void *)which) == 0);
    for (int number = 0; number < 25; number++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) { common[number * PAGE] = 1 + number; _exit(msync(common, 30 * PAGE, MS_SYNC)); }
        CHECK(waitpid(child, &status, 0) == child && status == 0 && common[number * PAGE] == 1 + number);
    }
    for (int which = 0; which < 4; which++) CHECK(pthread_join(threads[which], NULL) == 0);
    pause_if_asked();
    CHECK(munmap(common, 30 * PAGE) == 0 && close(file) == 0);
}

/* Stores that are durable when msync has returned, said one by one. */
static void maps_acknowledge(void) {
    enum { PAGES = 300 };
    int file = open("acknowledged", O_RDWR | O_CREAT, 0644);
    uint64_t last = 0;
    memset(bytes, 0, PAGES * PAGE);
    if (lseek(file, 0, SEEK_END) == 0) CHECK(write(file, bytes, PAGES * PAGE) == PAGES * PAGE && fsync(file) == 0);
    CHECK(close(file) == 0 && (file = open("acknowledged", O_RDWR)) >= 0);
    uint64_t *all = (uint64_t *)mapped(file, PROT_READ | PROT_WRITE, PAGES * PAGE, 0);
    for (int page = 0; page < PAGES; page++) if (all[page * PAGE / 8] > last) last = all[page * PAGE / 8];
    for (;;) {
        uint64_t *page = all + ++last % PAGES * PAGE / 8;
        for (unsigned index = 0; index < PAGE / 8; index++) page[index] = last;
        CHECK(msync(page, PAGE, MS_SYNC) == 0);
        dprintf(1, "%llu\n", (unsigned long long)last);
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

/* Appends by each way that there is, reads and looks at the size, until the end of the file has long been lent. */
static void append(int file, int is_append, int rounds) {
    for (int round = 0; round < rounds; round++) {
        size_t count = 1 + below(round % 50 ? 200 : 6000);
        struct stat attributes;
        fill(count);
        switch (below(8)) {
            case 0: {
                struct iovec parts[2] = {{bytes, count / 2}, {bytes + count / 2, count - count / 2}};
                CHECK(is_append || lseek(file, 0, SEEK_END) == (off_t)size);
                CHECK(writev(file, parts, 2) == (ssize_t)count);
                break;
            }
            case 1: {
                struct iovec part = {bytes, count};
                CHECK(pwritev2(file, &part, 1, 0, RWF_APPEND) == (ssize_t)count);
                break;
            }
            case 2: /* with O_APPEND it goes to the end, wherever that is */
                CHECK(pwrite(file, bytes, count, is_append ? below(size + 1) : size) == (ssize_t)count);
                break;
            default:
                CHECK(is_append || lseek(file, size, SEEK_SET) == (off_t)size);
                CHECK(write(file, bytes, count) == (ssize_t)count);
                CHECK(lseek(file, 0, SEEK_CUR) == (off_t)(size + count));
        }
        memcpy(model + size, bytes, count), size += count;
        if (round % 3 == 0) CHECK(fdatasync(file) == 0);
        if (round % 40 == 0) CHECK(fstat(file, &attributes) == 0 && attributes.st_size == (off_t)size && fsync(file) == 0);
        if (round % 40 == 20) CHECK(stat("log", &attributes) == 0 && attributes.st_size == (off_t)size);
        if (round % 10 == 0) {
            size_t from = size - below(size < 5000 ? size : 5000);
            ssize_t there = size - from;
            CHECK(pread(file, found, 6000, from) == there && !memcmp(found, model + from, there));
            CHECK(pread(file, found, 100, size) == 0 && pread(file, found, 100, size + 70000) == 0);
        }
        if (!is_append && round % 25 == 0) {
            size_t at = size - 1 - below(size < 3000 ? size : 3000), most = size - at < 60 ? size - at : 60;
            fill(most);
            CHECK(pwrite(file, bytes, most, at) == (ssize_t)most);
            memcpy(model + at, bytes, most);
        }
    }
}

/* What is done with an open file, or to it by others, between appends. */
static void appends(void) {
    int file, other, status;
    CHECK(unlink("log") == 0 || errno == ENOENT);
    for (int event = 0; event < 14; event++) {
        int is_append = event % 2 == 0;
        file = open("log", O_RDWR | O_CREAT | (is_append ? O_APPEND : 0) | (event % 3 ? 0 : O_DSYNC), 0644);
        CHECK(file >= 0);
        append(file, is_append, 500);
        switch (event) {
            case 0: { /* a child appends by the same descriptor */
                pid_t child = fork();
                CHECK(child >= 0);
                if (child == 0) { same(file); append(file, is_append, 50); same(file); _exit(0); }
                CHECK(waitpid(child, &status, 0) == child && status == 0);
                CHECK((size = lseek(file, 0, SEEK_END)) > 0 && pread(file, model, size, 0) == (ssize_t)size);
                break;
            }
            case 1:
                CHECK((other = dup(file)) >= 0);
                append(other, is_append, 60), same(file), append(file, is_append, 60), same(other);
                CHECK(close(other) == 0);
                break;
            case 2: /* two that append */
                CHECK((other = open("log", O_RDWR | O_APPEND)) >= 0);
                for (int turn = 0; turn < 20; turn++) append(turn % 2 ? other : file, 1, 15);
                same(other), same(file);
                CHECK(close(other) == 0);
                break;
            case 3:
                size -= 70000;
                CHECK(ftruncate(file, size) == 0);
                SAY(pread(file, found, 100, size));
                append(file, is_append, 60);
                memset(model + size, 0, 90000), size += 90000;
                CHECK(truncate("log", size) == 0);
                break;
            case 4: /* another program reads, and one appends */
                CHECK(fflush(stdout) == 0 && system("cksum < log; printf appended >> log") == 0);
                memcpy(model + size, "appended", 8), size += 8;
                break;
            case 5:
                CHECK(fcntl(file, F_SETFL, O_APPEND) == 0);
                append(file, 1, 60);
                CHECK(fcntl(file, F_SETFL, 0) == 0);
                break;
            case 6: {
                size_t length = size;
                unsigned char *mapped = mmap(NULL, length, PROT_READ, MAP_SHARED, file, 0);
                CHECK(mapped != MAP_FAILED && !memcmp(mapped, model, length));
                append(file, is_append, 60);
                CHECK(munmap(mapped, length) == 0);
                break;
            }
            case 7:
                CHECK(rename("log", "renamed") == 0 && rename("renamed", "log") == 0);
                break;
            case 8: { /* a stream */
                FILE *stream = fopen("log", "a");
                CHECK(stream);
                for (int line = 0; line < 300; line++) {
                    size_t count = sprintf((char *)bytes, "line %d\n", line);
                    CHECK(fputs((char *)bytes, stream) >= 0 && fflush(stream) == 0);
                    memcpy(model + size, bytes, count), size += count;
                }
                CHECK(fclose(stream) == 0);
                break;
            }
            case 9: /* one that is removed while it is appended to */
                same(file);
                CHECK(link("log", "second") == 0 && unlink("second") == 0);
                CHECK(fallocate(file, FALLOC_FL_KEEP_SIZE, size, 500000) == 0);
                append(file, is_append, 60);
                CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, size - 5000, 1000) == 0);
                memset(model + size - 5000, 0, 1000);
                break;
            case 10: { /* a child that another program becomes */
                CHECK(fflush(stdout) == 0);
                pid_t child = fork();
                if (child == 0) { dup2(file, 1); execlp("echo", "echo", "by echo", NULL); _exit(1); }
                CHECK(waitpid(child, &status, 0) == child && status == 0);
                memcpy(model + size, "by echo\n", 8), size += 8;
                break;
            }
        }
        append(file, is_append, 60);
        same(file);
        if (event == 13) pause_if_asked();
        CHECK(close(file) == 0);
    }
}

/* As `acknowledges`, records at the end of a log. */
static void appends_acknowledge(void) {
    int file = open("log", O_RDWR | O_CREAT | O_APPEND, 0644);
    uint64_t record[5], last;
    CHECK(file >= 0 && (size = lseek(file, 0, SEEK_END)) % sizeof record == 0);
    last = size / sizeof record;
    for (;;) {
        last++;
        for (unsigned index = 0; index < 5; index++) record[index] = last;
        if (write(file, record, sizeof record) != sizeof record || fdatasync(file) != 0) {
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
    /* of the same lease, and of pages that nobody has read */
    SAY(pread(file, found, 5000, (1 << 20) - 30000));
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

/* An overwrite of a page by a lease and an append of 100 B by another, each between two calls of getppid. */
static void flushes(void) {
    int file = open("flushes", O_RDWR | O_CREAT, 0644), log = open("flushed log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    size = 100 << 10;
    CHECK(write(file, bytes, size) == (ssize_t)size);
    for (int round = 0; round < 200; round++) CHECK(pwrite(file, bytes, PAGE, 0) == PAGE && write(log, bytes, 100) == 100);
    pause_if_asked();
    getppid();
    CHECK(pwrite(file, bytes, PAGE, 0) == PAGE);
    getppid();
    CHECK(write(log, bytes, 100) == 100);
    getppid();
}

/* How long a durable append of 100 B takes. */
static void cost_of_appends(void) {
    enum { ROUNDS = 20000, REPEATS = 9 };
    double took[2][REPEATS];
    int file = open("cost", O_RDWR | O_CREAT | O_APPEND | O_TRUNC, 0644);
    memset(bytes, 7, 100);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int kind = 0; kind < 2; kind++) {
            double begun = seconds();
            for (int round = 0; round < ROUNDS; round++) {
                CHECK(write(file, bytes, 100) == 100);
                if (kind == 1) CHECK(fdatasync(file) == 0);
            }
            took[kind][repeat] = (seconds() - begun) / ROUNDS * 1e9;
        }
    }
    const char *names[] = {"write", "write, fdatasync"};
    for (int kind = 0; kind < 2; kind++) {
        qsort(took[kind], REPEATS, sizeof(double), order);
        printf("%s of 100 B at the end: %.0f ns (%.0f to %.0f)\n", names[kind], took[kind][REPEATS / 2], took[kind][0], took[kind][REPEATS - 1]);
    }
}

/* Page faults and time of a mapped gigabyte: a store to each page, and then a pass over all of it. */
static long faulted(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt + used.ru_majflt;
}

static void page_faults(void) {
    size_t length = 1 << 30;
    int file = open("large", O_RDWR | O_CREAT, 0644);
    CHECK(file >= 0 && fallocate(file, 0, 0, length) == 0 && close(file) == 0 && (file = open("large", O_RDWR)) >= 0);
    double begun = seconds();
    unsigned char *all = mapped(file, PROT_READ | PROT_WRITE, length, 0);
    printf("map: %.0f us\n", (seconds() - begun) * 1e6);
    long before = faulted();
    begun = seconds();
    for (size_t at = 0; at < length; at += PAGE) all[at] = 1;
    printf("a store to each page: %ld faults, %.3f s\n", faulted() - before, seconds() - begun);
    before = faulted(), begun = seconds();
    memset(all, 2, length);
    printf("stores to all of it: %ld faults, %.2f GB/s\n", faulted() - before, length / (seconds() - begun) / 1e9);
    begun = seconds();
    CHECK(msync(all, length, MS_SYNC) == 0);
    printf("msync: %.0f us\n", (seconds() - begun) * 1e6);
    CHECK(munmap(all, length) == 0 && close(file) == 0 && unlink("large") == 0);
}

int main(int count, char **words) {
    CHECK(count == 3 && chdir(words[2]) == 0);
    const struct { const char *name; void (*run)(void); } all[] = {
        {"appends", appends}, {"flushes", flushes}, {"appends_acknowledge", appends_acknowledge}, {"cost_of_appends", cost_of_appends},
        {"overwrites", overwrites}, {"jumps", jumps}, {"acknowledges", acknowledges}, {"faults", faults}, {"cost", cost},
        {"maps", maps}, {"maps_beside_child", maps_beside_child}, {"maps_threads", maps_threads}, {"maps_locked", maps_locked}, {"maps_refused", maps_refused}, {"page_faults", page_faults}, {"maps_acknowledge", maps_acknowledge},
    };
    for (unsigned index = 0; index < sizeof all / sizeof *all; index++)
        if (!strcmp(all[index].name, words[1])) { all[index].run(); printf("done\n"); return 0; }
    return 2;
}
