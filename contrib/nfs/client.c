// client.c: what nfs.sh does by NFS, in user space (libnfs), since not every kernel has a client.
//
//   client write URL LOG SECONDS WRITERS   each writer, a process: appends, each with COMMIT, and new files that are renamed; what was acknowledged is
//                                          noted in LOG, in the form of scripts/acknowledged.py, whose `verify` looks for it
//   client rate URL WHAT SECONDS CLIENTS   operations a second: overwrite, append or create of 4 KiB, each durable
//   client hold URL FIFO                   opens a file and a directory, waits until FIFO is opened for writing, and uses the same handles again
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nfsc/libnfs.h>

enum { PAGE = 4096 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static _Noreturn void fail(const char *what, struct nfs_context *nfs) {
    fprintf(stderr, "client: %s: %s\n", what, nfs ? nfs_get_error(nfs) : strerror(errno));
    exit(1);
}

static struct nfs_context *mounted(const char *url_text) {
    struct nfs_context *nfs = nfs_init_context();
    if (!nfs) fail("no context", NULL);
    struct nfs_url *url = nfs_parse_url_dir(nfs, url_text);
    if (!url) fail(url_text, nfs);
    nfs_set_autoreconnect(nfs, -1); // for ever, as a hard mount
    if (nfs_mount(nfs, url->server, url->path)) fail("mount", nfs);
    nfs_destroy_url(url);
    return nfs;
}

// The same bytes as scripts/acknowledged.py makes.
enum { SIZE_MAX_BYTES = 9000, PLACES = 65521 };
static char pattern[PLACES + SIZE_MAX_BYTES];

static void make_pattern(void) {
    uint32_t state = 1;
    for (size_t at = 0; at < sizeof pattern; at++) {
        state = state * 1664525u + 1013904223u;
        pattern[at] = (char)(state >> 24);
    }
}

static size_t payload(char *bytes, int writer, int number) {
    static const size_t SIZES[] = {60, 600, 4000, SIZE_MAX_BYTES};
    size_t size = SIZES[(writer + number) % 4], head = (size_t)sprintf(bytes, "%d %d ", writer, number);
    memcpy(bytes + head, pattern + ((uint64_t)writer * 7919 + (uint64_t)number * 104729) % PLACES, size - head);
    return size;
}

// Until it succeeds: what fails is not acknowledged.
#define TRIED(call) while ((call) < 0) { failed++; usleep(100000); if (now() > until + 120) fail(#call, nfs); }

static int write_records(const char *url, const char *log, double seconds, int writer) {
    struct nfs_context *nfs = mounted(url);
    double until = now() + seconds;
    long failed = 0;
    uint64_t offset = 0;
    char bytes[SIZE_MAX_BYTES], path[64], other[64], note[128];
    struct nfsfh *file = NULL, *fresh = NULL;
    int notes = open(log, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (notes < 0) fail(log, NULL);
    sprintf(path, "/%d", writer);
    if (nfs_mkdir(nfs, path)) fail("mkdir", nfs);
    sprintf(path, "/%d.log", writer);
    if (nfs_open2(nfs, path, O_CREAT | O_RDWR, 0644, &file)) fail("create", nfs); // one handle, held over the server's restart
    for (int number = 1; now() < until; number++) {
        size_t size = payload(bytes, writer, number);
        if (number % 4) {
            TRIED(nfs_pwrite(nfs, file, offset, size, bytes) == (int)size ? nfs_fsync(nfs, file) : -1)
            sprintf(note, "append %d %d %llu %zu\n", writer, number, (unsigned long long)offset, size);
            offset += size;
        } else {
            sprintf(path, "/%d/%d.new", writer, number);
            sprintf(other, "/%d/%d", writer, number);
            TRIED(nfs_open2(nfs, path, O_CREAT | O_RDWR, 0644, &fresh))
            TRIED(nfs_pwrite(nfs, fresh, 0, size, bytes) == (int)size ? nfs_fsync(nfs, fresh) : -1)
            nfs_close(nfs, fresh);
            // A rename whose answer was lost is found done when it is tried again.
            struct nfs_stat_64 is_there;
            TRIED(nfs_rename(nfs, path, other) == 0 || nfs_stat64(nfs, other, &is_there) == 0 ? 0 : -1)
            sprintf(note, "file %d %d 0 %zu\n", writer, number, size);
        }
        if (write(notes, note, strlen(note)) < 0) fail(log, NULL);
    }
    fprintf(stderr, "writer %d: %ld calls failed\n", writer, failed);
    return 0;
}

// Operations in the time, of one client.
static long rate(const char *url, const char *what, double seconds, int client) {
    struct nfs_context *nfs = mounted(url);
    char path[64];
    static char bytes[PAGE];
    struct nfsfh *file = NULL;
    long done = 0;
    memset(bytes, client, PAGE);
    sprintf(path, "/rate.%d", client);
    nfs_unlink(nfs, path);
    if (nfs_open2(nfs, path, O_CREAT | O_RDWR, 0644, &file)) fail("create", nfs);
    if (!strcmp(what, "overwrite"))
        for (int page = 0; page < 1024; page++)
            if (nfs_pwrite(nfs, file, (uint64_t)page * PAGE, PAGE, bytes) != PAGE) fail("write", nfs);
    if (nfs_fsync(nfs, file)) fail("commit", nfs);
    srandom(1);
    for (double until = now() + seconds; now() < until; done++) {
        struct nfsfh *target = file;
        uint64_t offset = !strcmp(what, "overwrite") ? (uint64_t)(random() % 1024) * PAGE : (uint64_t)done * PAGE;
        if (!strcmp(what, "create")) {
            sprintf(path, "/rate.%d.%ld", client, done);
            offset = 0;
            if (nfs_open2(nfs, path, O_CREAT | O_RDWR, 0644, &target)) fail("create", nfs);
        }
        if (nfs_pwrite(nfs, target, offset, PAGE, bytes) != PAGE || nfs_fsync(nfs, target)) fail("write", nfs);
        if (target != file) nfs_close(nfs, target);
    }
    for (long number = 0; !strcmp(what, "create") && number < done; number++) {
        sprintf(path, "/rate.%d.%ld", client, number);
        nfs_unlink(nfs, path);
    }
    return done;
}

static int hold(const char *url, const char *fifo) {
    struct nfs_context *nfs = mounted(url);
    struct nfsfh *file = NULL;
    struct nfs_stat_64 before, after;
    char bytes[32] = {0};
    if (nfs_mkdir(nfs, "/held") || nfs_creat(nfs, "/held/one", 0644, &file)) fail("create", nfs);
    if (nfs_pwrite(nfs, file, 0, 6, "before") != 6 || nfs_fsync(nfs, file) || nfs_fstat64(nfs, file, &before)) fail("write", nfs);
    // Another name: only the handle leads to the same file.
    if (nfs_rename(nfs, "/held/one", "/held/two")) fail("rename", nfs);
    int wait = open(fifo, O_RDONLY);
    if (wait < 0) fail(fifo, NULL);
    if (nfs_pread(nfs, file, 0, 6, bytes) != 6 || memcmp(bytes, "before", 6)) fail("read by the old handle", nfs);
    if (nfs_pwrite(nfs, file, 6, 6, " after") != 6 || nfs_fsync(nfs, file) || nfs_fstat64(nfs, file, &after)) fail("write by the old handle", nfs);
    if (before.nfs_ino != after.nfs_ino || after.nfs_size != 12) fail("another file", NULL);
    puts("the handle of before the restart reads, writes and commits; same inode");
    return 0;
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "hold")) return hold(words[2], words[3]);
    if (count != 6) return fprintf(stderr, "client: write URL LOG SECONDS WRITERS | rate URL WHAT SECONDS CLIENTS | hold URL FIFO\n"), 2;
    int clients = atoi(words[5]), ends[2], worst = 0;
    int is_rate = !strcmp(words[1], "rate");
    make_pattern();
    if (pipe(ends)) fail("pipe", NULL);
    for (int client = 1; client <= clients; client++)
        if (fork() == 0) {
            if (!is_rate) _exit(write_records(words[2], words[3], atof(words[4]), client));
            long done = rate(words[2], words[3], atof(words[4]), client);
            _exit(write(ends[1], &done, sizeof done) != sizeof done);
        }
    for (int client = 0, status; client < clients; client++)
        if (wait(&status) < 0 || status) worst = 1;
    long sum = 0, done;
    for (int client = 0; is_rate && !worst && client < clients; client++)
        if (read(ends[0], &done, sizeof done) == sizeof done) sum += done;
    if (is_rate) printf("%.1f\n", (double)sum / atof(words[4]));
    return worst;
}
