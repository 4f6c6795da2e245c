/* A program of libc, for `tests/run.rs`: what it prints, and how it ends, must not depend on the way that its calls go.
   client WHAT DIRECTORY */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <execinfo.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;

/* Names of libc that no header has. */
pid_t __vfork(void);
int isfdtype(int descriptor, int type);

#define CHECK(condition) do { if (!(condition)) { printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); fflush(stdout); _exit(1); } } while (0)
/* Prints a call, what it returned, and errno, which a call that succeeds leaves alone. */
#define SAY(call) do { errno = 0; long result = (long)(call); printf("%s = %ld, %d\n", #call, result, errno); } while (0)

static char directory[PATH_MAX];

static const char *in(const char *name) {
    static char paths[4][PATH_MAX + 512];
    static int next;
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s/%s", directory, name);
    return paths[next];
}

static void touch(const char *name) {
    int file = open(name, O_CREAT | O_WRONLY, 0644);
    CHECK(file >= 0 && write(file, "x", 1) == 1 && close(file) == 0);
}

static void calls(void) {
    struct stat found;
    char buffer[300], name[300], path[5000];
    memset(name, 'n', 256), name[256] = 0;
    memset(path, '/', 4999), path[4999] = 0;
    touch("file"), touch("other");
    SAY(mkdir("directory", 0777));
    SAY(mkdir(in("directory/below"), 01777));
    SAY(mkdir("directory", 0777));
    SAY(mkdir("file/x", 0777));
    SAY(mkdir("none/x", 0777));
    SAY(mkdir("", 0777));
    SAY(mkdir(".", 0777));
    SAY(mkdir("slash/", 0777));
    SAY(mkdir(name, 0777));
    SAY(stat(name, &found));
    SAY(stat(path, &found));
    SAY(stat("none", &found));
    SAY(stat("file/", &found));
    SAY(stat("file/.", &found));
    SAY(stat("", &found));
    SAY(stat(in("directory/../file"), &found));
    SAY(found.st_size);
    SAY(stat("directory//./below/", &found));
    SAY(found.st_mode);
    SAY(symlink("file", "link"));
    SAY(symlink("loop", "loop"));
    SAY(symlink("/etc/passwd", "absolute"));
    SAY(symlink("none", "dangling"));
    SAY(symlink("", "nothing"));
    SAY(symlink("x", "file"));
    SAY(stat("link", &found));
    SAY(S_ISREG(found.st_mode));
    SAY(lstat("link", &found));
    SAY(S_ISLNK(found.st_mode));
    SAY(lstat("link/", &found));
    SAY(stat("loop", &found));
    SAY(stat("absolute", &found));
    SAY(found.st_uid);
    SAY(stat("dangling", &found));
    SAY(fstatat(AT_FDCWD, "", &found, 0));
    SAY(fstatat(AT_FDCWD, "", &found, AT_EMPTY_PATH));
    SAY(fstatat(AT_FDCWD, "link", &found, AT_SYMLINK_NOFOLLOW));
    SAY(fstatat(AT_FDCWD, "link", &found, 0x40000000));
    SAY(fstatat(-1, "file", &found, 0));
    SAY(fstatat(-1, in("file"), &found, 0));
    int file = open("file", O_RDONLY), below = open("directory/below", O_PATH | O_DIRECTORY), plain = open("directory", O_RDONLY);
    CHECK(file >= 0 && below >= 0 && plain >= 0);
    SAY(fstatat(file, "x", &found, 0));
    SAY(fstatat(below, "../../file", &found, 0));
    SAY(fstatat(plain, "below", &found, 0));
    SAY(mkdirat(below, "deep", 0700));
    SAY(unlinkat(below, "deep", 0));
    SAY(unlinkat(below, "deep", AT_REMOVEDIR));
    SAY(unlinkat(below, "deep", 0x4000));
    SAY(readlink("link", buffer, sizeof buffer));
    SAY(readlink("link", buffer, 2));
    SAY(readlink("link", buffer, 0));
    SAY(readlink("file", buffer, sizeof buffer));
    SAY(readlinkat(plain, "../link", buffer, sizeof buffer));
    SAY(access("file", F_OK));
    SAY(access("file", R_OK | W_OK));
    SAY(access("file", X_OK));
    SAY(access("none", F_OK));
    SAY(access("file", 64));
    SAY(faccessat(plain, "below", R_OK, AT_EACCESS));
    SAY(faccessat(plain, "below", R_OK, 0x40000000));
    SAY(euidaccess("file", R_OK));
    SAY(link("file", "second"));
    SAY(link("file", "second"));
    SAY(link("link", "of_link"));
    SAY(lstat("of_link", &found));
    SAY(S_ISLNK(found.st_mode));
    SAY(linkat(AT_FDCWD, "link", below, "followed", AT_SYMLINK_FOLLOW));
    SAY(linkat(AT_FDCWD, "link", below, "x", 0x40000000));
    SAY(link("directory", "x"));
    SAY(link("none", "x"));
    SAY(stat("second", &found));
    SAY(found.st_nlink);
    SAY(rename("second", "third"));
    SAY(rename("file", "third"));
    SAY(rename("third", "other"));
    SAY(rename("none", "x"));
    SAY(rename("other", "directory"));
    SAY(rename("directory", "other"));
    SAY(rename("directory", "directory/below/x"));
    SAY(rename("other", "x/"));
    SAY(rename("other", "/dev/null/x"));
    SAY(rename("other", "/dev/shm/x"));
    SAY(renameat2(AT_FDCWD, "other", AT_FDCWD, "file", RENAME_NOREPLACE));
    SAY(renameat2(AT_FDCWD, "other", AT_FDCWD, "directory", RENAME_EXCHANGE));
    SAY(renameat2(AT_FDCWD, "other", AT_FDCWD, "directory", RENAME_EXCHANGE));
    SAY(renameat2(AT_FDCWD, "other", AT_FDCWD, "x", 1 << 20));
    SAY(renameat(AT_FDCWD, "other", below, "moved"));
    SAY(rename("directory", "moved_directory"));
    SAY(stat("moved_directory/below/moved", &found));
    SAY(fstatat(below, "moved", &found, 0));
    SAY(fstatat(below, "../below/moved", &found, 0));
    SAY(rename("moved_directory", "directory"));
    SAY(chmod("file", 0));
    SAY(stat("file", &found));
    SAY(found.st_mode);
    SAY(chmod("file", 06755));
    SAY(chmod("dangling", 0644));
    SAY(fchmodat(plain, "below", 0711, 0));
    SAY(fchmodat(AT_FDCWD, "link", 0711, AT_SYMLINK_NOFOLLOW));
    SAY(chown("file", -1, -1));
    SAY(chown("link", 7, 8));
    SAY(lchown("link", 9, -1));
    SAY(stat("link", &found));
    SAY(found.st_uid * 100 + found.st_gid);
    SAY(found.st_mode);
    SAY(lstat("link", &found));
    SAY(found.st_uid * 100 + found.st_gid);
    SAY(fchownat(below, "moved", 1, 2, 0x40000000));
    SAY(truncate("file", 100));
    SAY(truncate("file", -1));
    SAY(truncate("directory", 0));
    SAY(stat("file", &found));
    SAY(found.st_size);
    struct timespec times[2] = {{1000000000, 123456789}, {0, UTIME_OMIT}}, bad[2] = {{0, 1000000000}, {0, 0}}, far[2] = {{1L << 40, 0}, {-5, 0}};
    SAY(utimensat(AT_FDCWD, "link", times, 0));
    SAY(stat("file", &found));
    SAY(found.st_atim.tv_sec * 1000 + found.st_atim.tv_nsec % 1000);
    SAY(utimensat(AT_FDCWD, "link", times, AT_SYMLINK_NOFOLLOW));
    SAY(utimensat(AT_FDCWD, "file", bad, 0));
    SAY(utimensat(AT_FDCWD, "file", far, 0));
    SAY(stat("file", &found));
    SAY(found.st_atim.tv_sec);
    SAY(found.st_mtim.tv_sec);
    SAY(utimensat(AT_FDCWD, "none", NULL, 0));
    SAY(utimensat(AT_FDCWD, "file", NULL, 0));
    struct timeval values[2] = {{5, 6}, {7, 8}}, wrong[2] = {{5, 1000000}, {7, 8}};
    SAY(utimes("file", values));
    SAY(utimes("file", wrong));
    SAY(lutimes("link", values));
    SAY(stat("file", &found));
    SAY(found.st_mtim.tv_sec * 1000000 + found.st_mtim.tv_nsec);
    struct utimbuf old = {11, 12};
    SAY(utime("file", &old));
    SAY(stat("file", &found));
    SAY(found.st_mtim.tv_sec);
    SAY(setxattr("file", "user.a", "value", 5, 0));
    SAY(setxattr("file", "user.a", "value", 5, XATTR_CREATE));
    SAY(setxattr("file", "user.b", "value", 5, XATTR_REPLACE));
    SAY(setxattr("file", "user.b", NULL, 0, 0));
    SAY(setxattr("file", "nothing", "value", 5, 0));
    SAY(setxattr("file", "user.c", "value", 5, 64));
    SAY(lsetxattr("link", "user.a", "value", 5, 0));
    SAY(setxattr("file", "trusted.t", "v", 1, 0));
    SAY(getxattr("file", "user.a", buffer, sizeof buffer));
    SAY(memcmp(buffer, "value", 5));
    SAY(getxattr("file", "user.a", buffer, 3));
    SAY(getxattr("file", "user.a", NULL, 0));
    SAY(getxattr("file", "user.b", buffer, sizeof buffer));
    SAY(getxattr("file", "user.none", buffer, sizeof buffer));
    SAY(getxattr("file", "security.selinux", buffer, sizeof buffer));
    SAY(getxattr("file", "system.posix_acl_access", buffer, sizeof buffer));
    SAY(lgetxattr("link", "user.a", buffer, sizeof buffer));
    SAY(listxattr("file", buffer, sizeof buffer));
    SAY(listxattr("file", buffer, 3));
    SAY(listxattr("file", NULL, 0));
    SAY(llistxattr("link", buffer, sizeof buffer));
    SAY(removexattr("file", "user.a"));
    SAY(removexattr("file", "user.a"));
    SAY(lremovexattr("link", "user.a"));
    SAY(unlink("directory"));
    SAY(unlink("none"));
    SAY(unlink("file/"));
    SAY(unlink("loop"));
    SAY(rmdir("file"));
    SAY(rmdir("directory"));
    SAY(rmdir("directory/below/."));
    SAY(rmdir("directory/below/.."));
    SAY(rmdir("slash/"));
    SAY(umask(077));
    SAY(mkdir("narrow", 0777));
    SAY(stat("narrow", &found));
    SAY(found.st_mode);
    SAY(umask(022));
    /* A working directory that is removed. */
    SAY(mkdir("gone", 0777));
    SAY(chdir("gone"));
    SAY(stat("../file", &found));
    SAY(rmdir("../gone"));
    SAY(stat(".", &found));
    SAY(found.st_nlink);
    SAY(stat("x", &found));
    SAY(mkdir("x", 0777));
    SAY(chdir(directory));
    SAY(stat("file", &found));
    SAY(fchdir(plain));
    SAY(stat("below", &found));
    SAY(chdir("/"));
    SAY(stat(in("file"), &found));
    SAY(stat(directory[0] == '/' ? directory + 1 : directory, &found));
}

static void same(const char *path, int flags) {
    struct stat ours, kernel;
    memset(&ours, 1, sizeof ours), memset(&kernel, 1, sizeof kernel);
    CHECK(fstatat(AT_FDCWD, path, &ours, flags) == 0 && syscall(SYS_newfstatat, AT_FDCWD, path, &kernel, flags) == 0);
    CHECK(memcmp(&ours, &kernel, sizeof ours) == 0);
    CHECK((flags ? lstat(path, &ours) : stat(path, &ours)) == 0 && memcmp(&ours, &kernel, sizeof ours) == 0);
    unsigned masks[] = {STATX_BASIC_STATS, STATX_BASIC_STATS | STATX_BTIME, STATX_SIZE, STATX_BTIME, STATX_MODE | STATX_MNT_ID, 0, 0x4000, STATX_DIOALIGN};
    for (unsigned number = 0; number < sizeof masks / sizeof *masks; number++) {
        struct statx one, other;
        memset(&one, 1, sizeof one), memset(&other, 2, sizeof other);
        CHECK(statx(AT_FDCWD, path, flags, masks[number], &one) == 0);
        CHECK(syscall(SYS_statx, AT_FDCWD, path, flags, masks[number], &other) == 0);
        if (memcmp(&one, &other, sizeof one)) {
            for (unsigned at = 0; at < sizeof one; at++)
                if (((char *)&one)[at] != ((char *)&other)[at]) printf("%s, mask %x, byte %u: %x, not %x\n", path, masks[number], at, ((unsigned char *)&one)[at], ((unsigned char *)&other)[at]);
            fflush(stdout);
            _exit(1);
        }
    }
}

static void structures(void) {
    touch("file");
    CHECK(truncate("file", 123456789) == 0);
    CHECK(mkdir("directory", 02751) == 0 && symlink("file", "link") == 0 && mkfifo("pipe", 0600) == 0);
    CHECK(mknod("device", S_IFCHR | 0600, makedev(300, 70000)) == 0 && link("file", "second") == 0 && chown("file", 70000, 80000) == 0);
    struct timespec times[2] = {{1, 999999999}, {1L << 31, 1}};
    CHECK(utimensat(AT_FDCWD, "file", times, 0) == 0);
    const char *names[] = {"file", "directory", "link", "pipe", "device", "second", ".", "..", directory};
    for (unsigned number = 0; number < sizeof names / sizeof *names; number++) same(names[number], 0), same(names[number], AT_SYMLINK_NOFOLLOW);
}

static sigjmp_buf back;
static volatile sig_atomic_t taken;

/* The next signal comes so long behind the handler, also on a machine where that is slow. */
static void next_signal(void) {
    struct itimerval timer = {{0, 0}, {0, 700}};
    if (setitimer(ITIMER_REAL, &timer, NULL)) _exit(6);
}

static void handler(int number) {
    (void)number;
    struct stat found;
    int before = errno;
    char buffer[100];
    if (stat("file", &found) || mkdir("by_handler", 0700) || rmdir("by_handler") || readlink("link", buffer, sizeof buffer) != 4) _exit(3);
    errno = before;
    next_signal();
    if (++taken % 3 == 0) siglongjmp(back, 1);
}

static void signals(void) {
    touch("file");
    CHECK(symlink("file", "link") == 0 && setxattr("file", "user.a", "v", 1, 0) == 0);
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    volatile int rounds = 0, jumps = 0;
    if (sigsetjmp(back, 1)) jumps++;
    next_signal();
    struct stat found;
    while (taken < 300) {
        rounds++;
        if (stat("file", &found) && errno != EINTR) _exit(4);
        char buffer[100];
        rename("a", "b"), rename("b", "a");
        if (readlink("link", buffer, sizeof buffer) != 4 || listxattr("file", buffer, sizeof buffer) != 7) _exit(5);
    }
    struct itimerval none = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0 && jumps > 0);
    for (int number = 0; number < 100; number++) CHECK(stat("file", &found) == 0);
}

static volatile int stop;

static void *worker(void *argument) {
    char name[40];
    struct stat found;
    snprintf(name, sizeof name, "of_thread_%ld", (long)argument);
    while (!stop) {
        CHECK(mkdir(name, 0700) == 0 && stat(name, &found) == 0 && rmdir(name) == 0 && stat(name, &found) == -1 && errno == ENOENT);
    }
    return NULL;
}

static void child_of(int number) {
    char name[40];
    struct stat found;
    snprintf(name, sizeof name, "of_child_%d", number);
    for (int round = 0; round < 10; round++) CHECK(mkdir(name, 0700) == 0 && stat(name, &found) == 0 && rmdir(name) == 0);
}

static void forks(void) {
    pthread_t threads[20];
    touch("file");
    for (long number = 0; number < 20; number++) CHECK(pthread_create(&threads[number], NULL, worker, (void *)number) == 0);
    for (int number = 0; number < 20; number++) {
        pid_t child = number % 3 == 2 ? (pid_t)syscall(SYS_fork) : fork();
        if (child == 0) {
            child_of(number);
            if (number % 2) {
                pid_t grandchild = fork();
                if (grandchild == 0) child_of(100 + number), _exit(0);
                int status;
                CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
            }
            _exit(0);
        }
        struct stat found;
        CHECK(child > 0 && stat("file", &found) == 0);
        pid_t other = vfork();
        if (other == 0) {
            if (mkdir("by_vfork", 0700) || rmdir("by_vfork") || chdir("/")) _exit(1);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        pid_t spawned;
        char *words[] = {"stat", "file", NULL};
        posix_spawn_file_actions_t actions;
        CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0) == 0);
        CHECK(posix_spawnp(&spawned, "stat", &actions, NULL, words, environ) == 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(waitpid(other, &status, 0) == other && status == 0);
        CHECK(waitpid(spawned, &status, 0) == spawned && status == 0);
    }
    CHECK(system("mkdir by_system && test -d by_system && rmdir by_system") == 0);
    stop = 1;
    for (int number = 0; number < 20; number++) pthread_join(threads[number], NULL);
}

static void closes(void) {
    struct stat found;
    touch("file");
    for (int round = 0; round < 6; round++) {
        CHECK(stat("file", &found) == 0);
        int limit = (int)sysconf(_SC_OPEN_MAX);
        switch (round) {
        case 0: closefrom(3); break;
        case 1: CHECK(close_range(3, ~0U, 0) == 0); break;
        case 2: for (int number = 3; number < limit && number < 70000; number++) close(number); break;
        case 3: CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0); break;
        case 4: for (int number = 3; number < limit && number < 70000; number++) syscall(SYS_close, number); break;
        case 5: for (int number = 900; number < 1024; number++) CHECK(dup2(0, number) == number); break;
        }
        int file = open("file", O_RDONLY);
        CHECK(file == 3 && fstat(file, &found) == 0 && found.st_size == 1 && close(file) == 0);
        CHECK(mkdir("directory", 0700) == 0 && rmdir("directory") == 0);
    }
    /* Descriptors that took the place of the connection's are the program's. */
    for (int number = 900; number < 1024; number++) CHECK(fcntl(number, F_GETFD) >= 0);
}

static void *other_ids(void *argument) {
    struct stat found;
    CHECK(syscall(SYS_setresuid, -1, 65534, -1) == 0);
    CHECK(stat("private/file", &found) == -1 && errno == EACCES);
    return argument;
}

static void ids(void) {
    struct stat found;
    CHECK(chmod(".", 0755) == 0 && mkdir("private", 0700) == 0 && mkdir("group", 0750) == 0 && chown("group", 0, 4242) == 0);
    touch("private/file"), touch("group/file");
    CHECK(stat("private/file", &found) == 0 && stat("private/file", &found) == 0);
    /* A process that has this memory, and other ids. */
    int status;
    pid_t child = vfork();
    if (child == 0) {
        if (stat("private/file", &found) != 0 || syscall(SYS_setresuid, 65534, 65534, 65534) != 0) _exit(1);
        _exit(stat("private/file", &found) == -1 && errno == EACCES ? 0 : 2);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int round = 0; round < 3; round++) {
        CHECK(stat("private/file", &found) == 0 && stat("group/file", &found) == 0);
        CHECK(setegid(65534) == 0 && seteuid(65534) == 0);
        CHECK(stat("private/file", &found) == -1 && errno == EACCES && access("private/file", F_OK) == 0);
        CHECK(stat("group/file", &found) == -1 && errno == EACCES && mkdir("x", 0700) == -1 && errno == EACCES);
        CHECK(seteuid(0) == 0);
        gid_t groups[] = {4242};
        CHECK(setgroups(1, groups) == 0 && seteuid(65534) == 0);
        CHECK(stat("group/file", &found) == 0 && stat("private/file", &found) == -1 && errno == EACCES);
        CHECK(seteuid(0) == 0 && setgroups(0, NULL) == 0 && setegid(0) == 0);
    }
    child = fork();
    if (child == 0) {
        CHECK(stat("private/file", &found) == 0 && setresuid(65534, 65534, 65534) == 0);
        CHECK(stat("private/file", &found) == -1 && errno == EACCES);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_ids, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(stat("private/file", &found) == 0);
}

/* A handler that leaves what it interrupted for good, over and over, while names are looked up and made. */
static sigjmp_buf away;

static void leave_for_good(int number) {
    (void)number;
    siglongjmp(away, 1);
}

static void left(void) {
    struct stat found;
    CHECK(mkdir("left", 0755) == 0 && chdir("left") == 0);
    touch("known");
    CHECK(stat("known", &found) == 0 && signal(SIGALRM, leave_for_good) != SIG_ERR);
    const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    volatile int times = 0;
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (times < 2000) {
        if (sigsetjmp(away, 1) != 0) {
            times++;
            continue;
        }
        for (int round = 0;; round++) {
            CHECK(stat("known", &found) == 0 && S_ISREG(found.st_mode));
            CHECK(stat("absent", &found) == -1 && errno == ENOENT);
        }
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    /* What is known changes still, and is seen. */
    for (int round = 0; round < 100; round++) {
        CHECK(chmod("known", 0600 + round % 8) == 0 && stat("known", &found) == 0 && (found.st_mode & 07777) == 0600u + round % 8);
        touch("absent");
        CHECK(stat("absent", &found) == 0 && unlink("absent") == 0 && stat("absent", &found) == -1 && errno == ENOENT);
    }
    CHECK(chdir("..") == 0);
}

static void roots(void) {
    struct stat found;
    touch("file");
    CHECK(mkdir("root", 0755) == 0);
    touch("root/inner");
    CHECK(stat(in("file"), &found) == 0 && chdir("root") == 0 && chroot(".") == 0);
    CHECK(stat("/inner", &found) == 0 && stat(in("file"), &found) == -1 && errno == ENOENT);
    CHECK(stat("../inner", &found) == 0 && stat("../file", &found) == -1 && errno == ENOENT && mkdir("/made", 0700) == 0);
}

/* Makes a file whose bytes are written by offset from its first write on, and returns its descriptor. */
static int made(const char *name, size_t bytes) {
    static char block[1 << 16];
    for (size_t at = 0; at < sizeof block; at++) block[at] = (char)('a' + at % 23);
    int file = open(name, O_CREAT | O_TRUNC | O_RDWR, 0644);
    CHECK(file >= 0 && write(file, block, bytes) == (ssize_t)bytes && pwrite(file, "0123456789", 10, 0) == 10);
    return file;
}

/* A sum over what the kernel says a file has. */
static long sum_of(const char *name) {
    char block[1 << 16];
    long sum = 0, count;
    int file = open(name, O_RDONLY);
    CHECK(file >= 0);
    while ((count = syscall(SYS_read, file, block, sizeof block)) > 0)
        for (long at = 0; at < count; at++) sum = sum * 31 % 1000003 + (unsigned char)block[at];
    CHECK(count == 0 && close(file) == 0);
    return sum;
}

static void data(void) {
    char buffer[200], more[200];
    struct stat found;
    int file = made("file", 50000);
    int reader = open("file", O_RDONLY), writer = open("file", O_WRONLY), appender = open("file", O_WRONLY | O_APPEND), place = open("file", O_PATH);
    int below = open(".", O_RDONLY);
    SAY(pwrite(file, "abc", 3, 10));
    SAY(pread(file, buffer, 10, 8));
    SAY(memcmp(buffer, "89abcn", 6));
    SAY(pwrite64(writer, "def", 3, 12));
    SAY(pread64(reader, buffer, 10, 8));
    SAY(memcmp(buffer, "89abdef", 7));
    SAY(pwrite(reader, "x", 1, 0));
    SAY(pread(writer, buffer, 1, 0));
    SAY(pwrite(place, "x", 1, 0));
    SAY(pread(place, buffer, 1, 0));
    SAY(pwrite(-1, "x", 1, 0));
    SAY(pwrite(below, "x", 1, 0));
    SAY(pread(below, buffer, 1, 0));
    SAY(pwrite(file, "x", 1, -1));
    SAY(pread(file, buffer, 1, -1));
    SAY(pwrite(file, "x", 0, 1));
    SAY(pread(file, buffer, 0, 1));
    SAY(pwrite(file, NULL, 1, 1));
    SAY(pread(file, NULL, 1, 1));
    SAY(pread(file, buffer, 100, 49990));
    SAY(pread(file, buffer, 100, 50000));
    SAY(pread(file, buffer, 100, LONG_MAX - 10));
    SAY(pwrite(file, "x", 1, LONG_MAX));
    SAY(lseek(file, 0, SEEK_CUR));
    struct iovec parts[3] = {{"one", 3}, {NULL, 0}, {"three", 5}}, into[3] = {{buffer, 2}, {more, 4}, {buffer + 2, 100}};
    SAY(pwritev(file, parts, 3, 100));
    SAY(preadv(file, into, 3, 100));
    SAY(memcmp(buffer, "onee", 4) | memcmp(more, "ethr", 4));
    SAY(pwritev2(file, parts, 3, 200, 0));
    SAY(pwritev2(file, parts, 1, 300, RWF_DSYNC));
    SAY(preadv2(file, into, 3, 200, 0));
    SAY(preadv2(file, into, 1, -1, 0));
    SAY(pwritev2(file, parts, 1, -1, 0));
    SAY(lseek(file, 0, SEEK_CUR));
    SAY(pwritev(file, parts, -1, 0));
    SAY(pwritev(file, NULL, 1, 0));
    SAY(sum_of("file"));
    /* O_APPEND, of the description and set by another descriptor of it. */
    SAY(pwrite(appender, "end", 3, 0));
    int twin = dup(file);
    SAY(fcntl(twin, F_SETFL, O_APPEND));
    SAY(pwrite(file, "app", 3, 0));
    SAY(fcntl(twin, F_SETFL, 0));
    SAY(pwrite(file, "!", 1, 0));
    SAY(fstat(file, &found));
    SAY(found.st_size);
    SAY(sum_of("file"));
    /* Growth, and who goes by the size that the kernel has. */
    SAY(pwrite(file, "grown", 5, 60000));
    int copy = open("copy", O_CREAT | O_RDWR, 0644);
    off_t from = 0;
    SAY(sendfile(copy, file, &from, 100000));
    SAY(sum_of("copy"));
    int fresh = open("fresh", O_CREAT | O_RDWR, 0644); /* of which the kernel has never had pages */
    for (int round = 0; round < 10; round++) CHECK(pwrite(fresh, "fresh", 5, 1000 * round) == 5);
    from = 0;
    SAY(sendfile(copy, fresh, &from, 100000));
    SAY(close(fresh));
    SAY(pwrite(file, "further", 7, 70000));
    char *map = mmap(NULL, 70007, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(map != MAP_FAILED);
    SAY(memcmp(map + 70000, "further", 7));
    SAY(pwrite(file, "by offset", 9, 4090));
    SAY(memcmp(map + 4090, "by offset", 9));
    memcpy(map + 4095, "by a store", 10);
    SAY(pread(file, buffer, 15, 4090));
    SAY(memcmp(buffer, "by ofby a store", 15));
    for (int round = 0; round < 200; round++) {
        CHECK(pwrite(file, &round, sizeof round, 8000) == sizeof round && memcmp(map + 8000, &round, sizeof round) == 0);
        memcpy(map + 9000, &round, sizeof round);
        CHECK(pread(file, buffer, sizeof round, 9000) == sizeof round && memcmp(buffer, &round, sizeof round) == 0);
    }
    SAY(munmap(map, 70007));
    /* libc's stdio, and read and write beside. */
    FILE *stream = fdopen(dup(file), "r+");
    CHECK(stream && fseek(stream, 20, SEEK_SET) == 0 && fputs("by stdio", stream) >= 0 && fflush(stream) == 0);
    SAY(pread(file, buffer, 8, 20));
    SAY(memcmp(buffer, "by stdio", 8));
    SAY(pwrite(fileno(stream), "BY", 2, 20));
    CHECK(fseek(stream, 20, SEEK_SET) == 0 && fread(buffer, 1, 8, stream) == 8);
    SAY(memcmp(buffer, "BY stdio", 8));
    SAY(fclose(stream));
    SAY(lseek(file, 5, SEEK_SET));
    for (int round = 0; round < 100; round++) {
        CHECK(write(file, &round, sizeof round) == sizeof round && pwrite(file, "pw", 2, 5 + 4 * round) == 2);
        CHECK(lseek(file, -4, SEEK_CUR) >= 0 && read(file, buffer, 4) == 4 && memcmp(buffer, "pw", 2) == 0);
    }
    SAY(lseek(file, 0, SEEK_CUR));
    SAY(sum_of("file"));
    /* Shorter, and longer again. */
    SAY(ftruncate(file, 100));
    SAY(pread(file, buffer, 50, 90));
    SAY(pwrite(file, "z", 1, 99));
    SAY(pwrite(file, "z", 1, 100));
    SAY(truncate("file", 5));
    SAY(pwrite(file, "zzzz", 4, 3));
    SAY(ftruncate(file, 300));
    SAY(pwrite(file, "zzzz", 4, 280));
    SAY(sum_of("file"));
    SAY(close(twin));
    SAY(pwrite(file, "after", 5, 1));
    SAY(close(file));
    SAY(pwrite(writer, "other", 5, 6));
    SAY(pwrite(file, "x", 1, 0));
    SAY(sum_of("file"));
}

/* Numbers that become other files, in ways that a library in front of libc sees and in others. */
static void numbers(void) {
    const char *names[] = {"first", "second"};
    int files[2];
    for (int which = 0; which < 2; which++) files[which] = made(names[which], 1000);
    int number = dup(files[0]), ends[2];
    CHECK(pipe(ends) == 0);
    char text[20];
    for (int round = 0; round < 24; round++) {
        for (int times = 0; times < 3; times++) CHECK(pwrite(number, "\0\0\0", 3, 3 * round) == 3);
        int other = files[(round + 1) % 2];
        switch (round / 2 % 6) {
        case 0: CHECK(dup2(other, number) == number); break;
        case 1: CHECK(close(number) == 0 && dup(other) == number); break;
        case 2: CHECK(syscall(SYS_dup2, other, number) == number); break;
        case 3: CHECK(syscall(SYS_close, number) == 0 && fcntl(other, F_DUPFD, number) == number); break;
        case 4: CHECK(syscall(SYS_close_range, number, number, 0) == 0 && open(names[(round + 1) % 2], O_RDWR) == number); break;
        case 5: { FILE *stream = fdopen(number, "r+"); CHECK(stream && fclose(stream) == 0 && dup3(other, number, O_CLOEXEC) == number); break; }
        }
        snprintf(text, sizeof text, "%03d", round);
        CHECK(pwrite(number, text, 3, 3 * round) == 3 && pread(number, text + 5, 3, 3 * round) == 3 && memcmp(text, text + 5, 3) == 0);
        CHECK(dup2(ends[1], number) == number && pwrite(number, "###", 3, 0) == -1 && errno == ESPIPE);
        CHECK(dup2(other, number) == number);
    }
    SAY(sum_of("first"));
    SAY(sum_of("second"));
    /* A name that is gone, and one that looks like it. */
    int gone = made("third", 1000);
    CHECK(unlink("third") == 0);
    int decoy = made("third (deleted)", 1000), again = made("third", 1000);
    for (int round = 0; round < 20; round++) CHECK(pwrite(gone, "gone", 4, 10 * round) == 4);
    CHECK(pread(gone, text, 4, 190) == 4);
    SAY(memcmp(text, "gone", 4));
    CHECK(close(gone) == 0);
    gone = made("fourth", 1000);
    CHECK(close(dup(gone)) == 0 && close(open("fourth (deleted)", O_CREAT, 0600)) == 0 && rename("third (deleted)", "fourth (deleted)") == 0);
    CHECK(syscall(SYS_unlink, "fourth") == 0);
    for (int round = 0; round < 20; round++) CHECK(pwrite(gone, "gone", 4, 10 * round) == 4);
    SAY(sum_of("fourth (deleted)"));
    SAY(sum_of("third"));
    CHECK(close(decoy) == 0 && close(again) == 0);
    /* A file that is renamed, and has two names. */
    int moved = made("fifth", 1000);
    CHECK(rename("fifth", "sixth") == 0 && link("sixth", "seventh") == 0 && unlink("sixth") == 0);
    for (int round = 0; round < 20; round++) CHECK(pwrite(moved, "moved", 5, 10 * round) == 5);
    SAY(sum_of("seventh"));
}

static int shared_file;
static __thread volatile long own_number = 30;

/* A thread handles none before it has a place of its own. */
static void handles_alarms(int how) {
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(pthread_sigmask(how, &alarms, NULL) == 0);
}

static void *transfers(void *argument) {
    char block[512], read_back[512];
    long number = own_number = (long)argument;
    handles_alarms(SIG_UNBLOCK);
    for (int round = 0; round < 200; round++) {
        memset(block, (int)(number * 7 + round), sizeof block);
        CHECK(pwrite(shared_file, block, sizeof block, number * 512) == sizeof block);
        CHECK(pread(shared_file, read_back, sizeof block, number * 512) == sizeof block && memcmp(block, read_back, sizeof block) == 0);
    }
    return NULL;
}

/* Of whichever thread it interrupts: each has a place of its own. */
static void transfers_of_handler(int number) {
    (void)number;
    int before = errno;
    off_t place = 40000 + own_number * 64;
    char block[64], read_back[64];
    memset(block, ++taken, sizeof block);
    if (pwrite(shared_file, block, 64, place) != 64 || pread(shared_file, read_back, 64, place) != 64 || memcmp(block, read_back, 64)) _exit(3);
    errno = before;
}

/* Threads, children and handlers write one file. */
static void together(void) {
    pthread_t threads[8];
    shared_file = made("file", 50000);
    struct sigaction action = {.sa_handler = transfers_of_handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 900}, {0, 900}}, never = {{0, 0}, {0, 0}};
    handles_alarms(SIG_BLOCK);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (long number = 0; number < 8; number++) CHECK(pthread_create(&threads[number], NULL, transfers, (void *)number) == 0);
    handles_alarms(SIG_UNBLOCK);
    for (int round = 0; round < 10; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) transfers((void *)(long)(10 + round)), _exit(0);
        CHECK(child > 0);
        transfers((void *)30);
        while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR);
        CHECK(status == 0);
    }
    for (int number = 0; number < 8; number++) pthread_join(threads[number], NULL);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && pwrite(shared_file, "end", 3, 40000) == 3);
    /* What a program inherits is the kernel's. */
    CHECK(lseek(shared_file, 40000, SEEK_SET) == 40000 && dup2(shared_file, 0) == 0);
    CHECK(system("head -c 3") == 0);
    CHECK(ftruncate(shared_file, 40000) == 0);
    SAY(sum_of("file"));
}

/* A system call that nobody sees, by code that was not loaded but is made here. */
static long past_libc(long number, long a, long b, long c) {
    static long (*call)(long, long, long, long);
    if (!call) {
#ifdef __x86_64__
        static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3};
#else
        static const unsigned code[] = {0xaa0003e8, 0xaa0103e0, 0xaa0203e1, 0xaa0303e2, 0xd4000001, 0xd65f03c0};
#endif
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(page != MAP_FAILED && memcpy(page, code, sizeof code) && mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0);
        __builtin___clear_cache(page, page + sizeof code);
        memcpy(&call, &page, sizeof call);
    }
    return call(number, a, b, c);
}

static void *appends_of_thread(void *argument) {
    for (int round = 0; round < 300; round++) CHECK(write((int)(long)argument, "0123456789abcdef", 16) == 16);
    return argument;
}

/* Opens, and what a description has: offset, flags, size. */
static void files(void) {
    char buffer[300];
    struct stat found;
    struct statx extended;
    SAY(open("none", O_RDWR));
    SAY(open("", O_RDWR));
    SAY(open(".", O_RDWR));
    SAY(open("none/x", O_RDWR | O_CREAT, 0600));
    int file = open("file", O_RDWR | O_CREAT | O_EXCL, 0640);
    SAY(file);
    SAY(open("file", O_RDWR | O_CREAT | O_EXCL, 0640));
    SAY(open("file", O_RDWR | O_DIRECTORY));
    SAY(open("file/", O_RDONLY));
    SAY(write(file, "0123456789", 10));
    SAY(lseek(file, 0, SEEK_CUR));
    SAY(read(file, buffer, 5));
    SAY(lseek(file, -4, SEEK_END));
    SAY(read(file, buffer, 100));
    SAY(memcmp(buffer, "6789", 4));
    SAY(lseek(file, -1, SEEK_SET));
    SAY(lseek(file, -100, SEEK_CUR));
    SAY(lseek(file, LONG_MAX, SEEK_SET));
    SAY(lseek(file, 1, SEEK_CUR));
    SAY(lseek(file, 0, 77));
    SAY(lseek(file, 0, SEEK_DATA));
    SAY(lseek(file, 0, SEEK_HOLE));
    SAY(lseek(file, 100, SEEK_DATA));
    SAY(lseek(file, -1, SEEK_HOLE));
    SAY(lseek(file, 2, SEEK_SET));
    SAY(pwrite(file, "abc", 3, 20));
    SAY(pread(file, buffer, 100, 8));
    SAY(memcmp(buffer, "89\0\0\0\0\0\0\0\0\0\0abc", 15));
    SAY(lseek(file, 0, SEEK_CUR));
    struct iovec parts[3] = {{"one", 3}, {NULL, 0}, {"three", 5}}, into[2] = {{buffer, 4}, {buffer + 100, 100}};
    SAY(writev(file, parts, 3));
    SAY(lseek(file, 2, SEEK_SET));
    SAY(readv(file, into, 2));
    SAY(memcmp(buffer, "onet", 4) | memcmp(buffer + 100, "hree", 4));
    SAY(writev(file, parts, -1));
    SAY(read(file, NULL, 1));
    SAY(read(file, buffer, 0));
    SAY(fstat(file, &found));
    SAY(found.st_size);
    SAY(found.st_mode);
    SAY(fstatat(file, "", &found, AT_EMPTY_PATH));
    SAY(found.st_size);
    SAY(statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &extended));
    SAY(extended.stx_size);
    SAY(fstatat(file, "x", &found, 0));
    SAY(fstatat(file, "", &found, 0));
    SAY(ftruncate(file, 4));
    SAY(ftruncate(file, -1));
    SAY(read(file, buffer, 100));
    SAY(fallocate(file, 0, 0, 5000));
    SAY(fallocate(file, 0, 0, 0));
    SAY(fallocate(file, 0x1000, 0, 1));
    SAY(posix_fadvise(file, 0, 0, POSIX_FADV_WILLNEED));
    SAY(posix_fadvise(file, 0, 0, 99));
    SAY(posix_fadvise(file, 0, -1, 0));
    SAY(fsync(file));
    SAY(fdatasync(file));
    SAY(isatty(file));
    SAY(fchmod(file, 0604));
    SAY(fchown(file, 7, 8));
    struct timespec times[2] = {{1000000000, 5}, {0, UTIME_OMIT}};
    SAY(futimens(file, times));
    SAY(stat("file", &found));
    SAY(found.st_mode);
    SAY(found.st_uid * 100 + found.st_gid);
    SAY(found.st_atime);
    SAY(found.st_size);
    int reader = open("file", O_RDONLY), writer = open("file", O_WRONLY | O_TRUNC), appender = open("file", O_WRONLY | O_APPEND);
    SAY(fstat(file, &found));
    SAY(found.st_size);
    SAY(write(reader, "x", 1));
    SAY(read(writer, buffer, 1));
    SAY(ftruncate(reader, 1));
    SAY(write(writer, "written", 7));
    SAY(write(appender, "end", 3));
    SAY(lseek(appender, 0, SEEK_CUR));
    SAY(lseek(appender, 0, SEEK_SET));
    SAY(write(appender, "END", 3));
    SAY(lseek(appender, 0, SEEK_CUR));
    SAY(pwrite(appender, "!", 1, 0));
    SAY(read(reader, buffer, 100));
    SAY(memcmp(buffer, "writtenendEND!", 14));
    SAY(close(writer));
    SAY(close(writer));
    SAY(read(writer, buffer, 1));
    SAY(write(writer, "x", 1));
    SAY(fstat(writer, &found));
    SAY(open("made", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0200) == writer);
    SAY(write(writer, "made", 4));
    SAY(fcntl(writer, F_GETFD));
    SAY(fcntl(writer, F_SETFD, 0));
    SAY(fcntl(writer, F_GETFD));
    SAY(fcntl(writer, F_GETFL) & (O_ACCMODE | O_APPEND));
    SAY(write(writer, "more", 4));
    SAY(stat("made", &found));
    SAY(found.st_size);
    SAY(openat(reader, "x", O_RDONLY));
    /* Duplicates share the offset. */
    SAY(lseek(reader, 3, SEEK_SET));
    int twin = dup(reader);
    SAY(read(twin, buffer, 2));
    SAY(lseek(reader, 0, SEEK_CUR));
    int other = open("made", O_RDWR | O_CREAT, 0600);
    SAY(dup2(other, reader) == reader);
    SAY(read(reader, buffer, 100));
    SAY(lseek(other, 0, SEEK_CUR));
    SAY(dup2(99, other));
    SAY(dup2(other, other) == other);
    SAY(fcntl(other, F_DUPFD, 50));
    SAY(close(50));
    SAY(write(other, "x", 1));
    SAY(close(reader) | close(twin) | close(other));
    /* Locks, which end with any descriptor of the file. */
    SAY(close(file) | close(appender));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int first = open("file", O_RDWR), second = open("file", O_RDONLY);
    SAY(fcntl(first, F_SETLK, &lock));
    SAY(close(second));
    int third = open("file", O_RDONLY);
    SAY(fcntl(first, F_SETLK, &lock));
    SAY(close(third));
    pid_t child = fork();
    if (child == 0) {
        lock.l_type = F_WRLCK;
        _exit(fcntl(first, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK ? 3 : 4);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    SAY(flock(first, LOCK_EX));
    /* Who waits, maps, sends, or has a name for it. */
    int plain = open("plain", O_RDWR | O_CREAT, 0600), copy = open("copy", O_RDWR | O_CREAT, 0600);
    SAY(write(plain, "plain text", 10));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(plain, &set);
    SAY(select(plain + 1, &set, NULL, NULL, NULL));
    struct pollfd polled = {plain, POLLIN | POLLOUT, 0};
    SAY(poll(&polled, 1, 0));
    SAY(polled.revents);
    off_t from = 0;
    SAY(sendfile(copy, plain, &from, 100));
    SAY(write(copy, "!", 1));
    SAY(sum_of("copy"));
    int mapped = open("mapped", O_RDWR | O_CREAT, 0600), beside = open("mapped", O_RDWR);
    SAY(write(mapped, "to be mapped", 12));
    char *map = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    CHECK(map != MAP_FAILED);
    SAY(write(beside, "TO", 2));
    SAY(memcmp(map, "TO be", 5));
    SAY(lseek(mapped, 0, SEEK_CUR));
    SAY(munmap(map, 100));
    snprintf(buffer, sizeof buffer, "/proc/self/fd/%d", plain);
    int again = open(buffer, O_RDONLY);
    SAY(read(again, buffer, 5));
    SAY(lseek(plain, 0, SEEK_CUR));
    SAY(memcmp(buffer, "plain", 5));
    FILE *stream = fdopen(open("stream", O_RDWR | O_CREAT, 0600), "w");
    CHECK(stream && fputs("by stdio", stream) >= 0 && fclose(stream) == 0);
    SAY(stat("stream", &found));
    SAY(found.st_size);
    int printed = open("printed", O_WRONLY | O_CREAT, 0600);
    SAY(write(printed, "a", 1));
    SAY(dprintf(printed, "%s %d %.1f", "text", 7, 1.5));
    SAY(stat("printed", &found));
    SAY(found.st_size);
    /* Numbers of the standard streams. */
    int kept = dup(1);
    fflush(stdout), close(1);
    int standard = open("standard", O_WRONLY | O_CREAT, 0600);
    printf("to standard output\n"), fflush(stdout);
    CHECK(dup2(kept, 1) == 1 && close(kept) == 0);
    SAY(standard);
    SAY(stat("standard", &found));
    SAY(found.st_size);
    /* Closed by a call that nobody sees, and another file under its number. */
    int secret = open("secret", O_RDWR | O_CREAT, 0600);
    CHECK(write(secret, "secret", 6) == 6 && lseek(secret, 0, SEEK_SET) == 0);
    CHECK(past_libc(SYS_close, secret, 0, 0) == 0);
    SAY(read(secret, buffer, 6));
    secret = open("secret", O_RDWR);
    CHECK(past_libc(SYS_close, secret, 0, 0) == 0 && past_libc(SYS_openat, AT_FDCWD, (long)"/proc/sys/kernel/ostype", O_RDONLY) == secret);
    SAY(read(secret, buffer, 5));
    SAY(memcmp(buffer, "Linux", 5));
    SAY(close(secret));
    /* Threads write one description while it becomes another's. */
    int together = open("together", O_RDWR | O_CREAT, 0600);
    pthread_t threads[4];
    for (int number = 0; number < 4; number++) CHECK(pthread_create(&threads[number], NULL, appends_of_thread, (void *)(long)together) == 0);
    usleep(2000);
    int copied = dup(together);
    for (int number = 0; number < 4; number++) pthread_join(threads[number], NULL);
    SAY(lseek(copied, 0, SEEK_CUR));
    SAY(sum_of("together"));
    for (int number = 0; number < 300; number++) {
        int many = open("many", O_RDWR | O_CREAT | O_APPEND, 0600);
        CHECK(many >= 0 && write(many, "x", 1) == 1 && close(many) == 0);
    }
    SAY(stat("many", &found));
    SAY(found.st_size);
}

struct appender { int number; size_t bytes; };

static void *appends_long(void *argument) {
    const struct appender *of = argument;
    char *record = malloc(of->bytes);
    int file = open("log", O_WRONLY | O_APPEND | O_CREAT, 0600);
    CHECK(record && file >= 0 && memset(record, 'a' + of->number, of->bytes));
    for (int round = 0; round < 6; round++) CHECK(write(file, record, of->bytes) == (ssize_t)of->bytes);
    CHECK(close(file) == 0);
    free(record);
    return argument;
}

/* Records that several threads append, as long as one request of the door may have, and longer: none is torn. */
static void appended(void) {
    const size_t lengths[] = {600 << 10, 1280 << 10};
    for (int length = 0; length < 2; length++) {
        pthread_t threads[4];
        struct appender appenders[4];
        for (int number = 0; number < 4; number++) {
            appenders[number] = (struct appender){number, lengths[length]};
            CHECK(pthread_create(&threads[number], NULL, appends_long, &appenders[number]) == 0);
        }
        for (int number = 0; number < 4; number++) pthread_join(threads[number], NULL);
        char *record = malloc(lengths[length]);
        int file = open("log", O_RDONLY), records = 0, torn = 0;
        CHECK(record && file >= 0);
        for (ssize_t done; (done = read(file, record, lengths[length])) > 0; records++) {
            while ((size_t)done < lengths[length]) {
                ssize_t more = read(file, record + done, lengths[length] - done);
                CHECK(more > 0);
                done += more;
            }
            torn += memcmp(record, record + 1, lengths[length] - 1) != 0;
        }
        SAY(records);
        SAY(torn);
        SAY(close(file) + unlink("log"));
        free(record);
    }
}

/* Calls that are not for files, that take two descriptors, or that libc has by another name. */
static void others(void) {
    char buffer[100];
    /* Ranges that end behind the last offset. */
    int far = open("far", O_RDWR | O_CREAT, 0600);
    SAY(pwrite(far, "x", 1, LONG_MAX));
    SAY(pwrite(far, "xy", 2, LONG_MAX - 1));
    SAY(lseek(far, LONG_MAX, SEEK_SET) == LONG_MAX || errno == EINVAL);
    SAY(close(far));
    /* Locks, which end with any descriptor of the file, also by this function. */
    int locked = open("locked", O_RDWR | O_CREAT, 0600), released = open("locked", O_RDONLY);
    SAY(lockf(locked, F_LOCK, 0));
    SAY(close(released));
    pid_t child = fork();
    if (child == 0) _exit(lockf(locked, F_TEST, 0) ? 4 : 3);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    /* Calls that are not for files, and that take two. */
    int asks = open("asks", O_RDWR | O_CREAT, 0600), given = open("given", O_RDWR | O_CREAT, 0600);
    SAY(write(given, "given", 5));
    SAY(recv(asks, buffer, 1, 0));
    SAY(isfdtype(open("asked", O_RDWR | O_CREAT, 0600), S_IFSOCK));
    SAY(tcgetpgrp(open("asked", O_RDONLY)));
    SAY(shutdown(open("asked", O_RDONLY), SHUT_RD));
    asks = open("asked", O_RDWR);
    SAY(ioctl(asks, FICLONE, given));
    asks = open("asked", O_RDWR), given = open("given", O_RDONLY);
    struct file_clone_range range = {.src_fd = given};
    SAY(ioctl(asks, FICLONERANGE, &range));
    SAY(lseek(given, 2, SEEK_SET));
    void *line[] = {(void *)files};
    asks = open("asked", O_WRONLY);
    backtrace_symbols_fd(line, 1, asks);
    SAY(lseek(asks, 0, SEEK_CUR) > 0);
    asks = open("asked", O_RDWR | O_TRUNC), given = open("given", O_RDWR);
    SAY(syscall(SYS_copy_file_range, given, NULL, asks, NULL, 5, 0));
    SAY(write(given, " more", 5));
    SAY(sum_of("asked") + sum_of("given"));
    SAY(pread(given, buffer, 100, 0));
    child = __vfork();
    if (child == 0) {
        if (dup2(given, 1) != 1) _exit(1);
        execlp("echo", "echo", "by another name", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    SAY(status);
    SAY(lseek(given, 0, SEEK_CUR));
}

/* What children and programs that are started get of what is open. */
static void inherits(void) {
    char buffer[100], words[200];
    int status, file = open("file", O_RDWR | O_CREAT, 0600), gone = open("gone", O_RDWR | O_CREAT, 0600), closed = open("closed", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(write(file, "parent ", 7) == 7 && write(gone, "without a name", 14) == 14 && unlink("gone") == 0 && fchmod(file, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(write(file, "child ", 6) == 6 && pread(gone, buffer, 14, 0) == 14 && memcmp(buffer, "without a name", 14) == 0);
        CHECK(write(closed, "too", 3) == 3);
        int own = open("own", O_RDWR | O_CREAT, 0600);
        CHECK(own >= 0 && write(own, "own", 3) == 3 && close(own) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    SAY(status);
    SAY(lseek(file, 0, SEEK_CUR));
    SAY(lseek(closed, 0, SEEK_CUR));
    SAY(write(file, "parent again", 12));
    int next = open("next", O_RDWR | O_CREAT, 0600);
    SAY(write(next, "begin ", 6));
    snprintf(words, sizeof words, "echo by system >&%d; test -e /proc/self/fd/%d && echo open", next, closed);
    SAY(system(words));
    SAY(lseek(next, 0, SEEK_CUR));
    int output = open("output", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    posix_spawn_file_actions_t actions;
    char *echo[] = {"echo", "by spawn", NULL};
    CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, output, 1) == 0);
    CHECK(posix_spawnp(&child, "echo", &actions, NULL, echo, environ) == 0 && waitpid(child, &status, 0) == child);
    SAY(lseek(output, 0, SEEK_CUR));
    int spoken = open("spoken", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    child = vfork();
    if (child == 0) {
        if (dup2(spoken, 1) != 1) _exit(1);
        execlp("echo", "echo", "by", "vfork", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    SAY(lseek(spoken, 0, SEEK_CUR));
    int asked = open("asked", O_RDWR | O_CREAT, 0600);
    CHECK(write(asked, "for popen", 9) == 9 && lseek(asked, 0, SEEK_SET) == 0);
    snprintf(words, sizeof words, "cat <&%d", asked);
    FILE *stream = popen(words, "r");
    CHECK(stream);
    SAY(fread(buffer, 1, 100, stream));
    SAY(pclose(stream));
    /* Sent to another process. */
    int ends[2], sent = open("sent", O_RDWR | O_CREAT, 0600);
    CHECK(write(sent, "sent", 4) == 4 && socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    char control[CMSG_SPACE(sizeof sent)] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof sent);
    memcpy(CMSG_DATA(head), &sent, sizeof sent);
    SAY(sendmsg(ends[0], &message, 0));
    part.iov_base = buffer, message.msg_controllen = sizeof control;
    SAY(recvmsg(ends[1], &message, 0));
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    SAY(write(received, " by the other", 13));
    SAY(lseek(sent, 0, SEEK_CUR));
    /* Other ids, with what was open before. */
    int private = open("private", O_RDWR | O_CREAT, 0600);
    SAY(write(private, "of root", 7));
    CHECK(seteuid(65534) == 0);
    SAY(write(private, " still", 6));
    SAY(open("private", O_RDWR));
    SAY(open("other", O_RDWR | O_CREAT, 0600));
    CHECK(seteuid(0) == 0);
    SAY(close(private));
    SAY(sum_of("private"));
    int late = open("late", O_RDWR | O_CREAT, 0600);
    SAY(write(late, "late ", 5));
    fflush(stdout);
    snprintf(words, sizeof words, "echo by exec >&%d; stat -c '%%n %%s %%a' file next output spoken sent late own closed; cat <&%d; echo done", late, file);
    execl("/bin/bash", "bash", "-c", words, (char *)NULL);
    CHECK(0);
}

/* What a process that may ask for nothing else does with files, also with those that it had before. */
static void sandbox(void) {
    const int allowed[] = {SYS_read, SYS_write, SYS_openat, SYS_close, SYS_lseek, SYS_newfstatat, SYS_fstat, SYS_unlink, SYS_exit_group, SYS_pread64, SYS_pwrite64};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    for (int number = 0; number < COUNT; number++)
        filter[number + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[number], COUNT - number, 0);
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, filter};
    char buffer[100];
    struct stat found;
    int before = open("before", O_RDWR | O_CREAT, 0600);
    SAY(write(before, "before ", 7));
    for (int round = 0; round < 20; round++) CHECK(pwrite(before, "B", 1, 0) == 1);
    fflush(stdout);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK((getenv("BY_PRCTL") ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) == 0);
    SAY(write(before, "and after", 9));
    SAY(pwrite(before, "A", 1, 0));
    SAY(lseek(before, 0, SEEK_SET));
    SAY(read(before, buffer, 100));
    int after = open("after", O_RDWR | O_CREAT, 0600);
    SAY(write(after, "after", 5));
    SAY(stat("after", &found));
    SAY(found.st_size);
    SAY(fstat(before, &found));
    SAY(unlink("after"));
    SAY(close(after) + close(before));
    printf("done\n"), fflush(stdout);
    _exit(0);
}

/* One call, at a moment that the test chooses, whose place is another's when it has failed. */
static void once(void) {
    CHECK(mkdir(in("before"), 0700) == 0 && chdir("/") == 0);
    printf("ready\n"), fflush(stdout);
    CHECK(getchar() == '\n');
    SAY(mkdir(in("made"), 0700));
}

/* Writes a file, closes it, and waits while others remove it. */
static void gives_back(void) {
    int file = made("file", 50000);
    for (int round = 0; round < 20; round++) CHECK(pwrite(file, "x", 1, round) == 1);
    CHECK(close(file) == 0);
    printf("closed\n"), fflush(stdout);
    CHECK(getchar() == '\n');
}

static void until_it_fails(void) {
    struct stat found;
    touch("file"), printf("ready\n"), fflush(stdout);
    for (int round = 0;; round++) {
        char name[40];
        snprintf(name, sizeof name, "directory_%d", round);
        if (mkdir(name, 0700)) { printf("mkdir %d\n", errno); break; }
        if (rmdir(name)) { printf("rmdir %d\n", errno); break; }
    }
    SAY(stat("file", &found));
    SAY(mkdir("directory", 0700));
    SAY(stat(in("file"), &found));
}

static volatile int loaded;

static void *loader(void *argument) {
    void *library = dlopen(argument, RTLD_NOW), *found = library ? dlsym(library, "own_call") : NULL;
    if (!found) { printf("%s\n", dlerror()); fflush(stdout); _exit(1); }
    loaded = 1;
    return found;
}

/* Code of this program, or of a library that is loaded when files are open, that calls the kernel past libc. */
__attribute__((weak)) long own_call(long number, long a, long b, long c);

static void own_calls(void) {
    long (*call)(long, long, long, long) = own_call;
    char *library = getenv("OWN_CALLS"), buffer[100];
    int before = open("before", O_RDWR | O_CREAT, 0600);
    SAY(write(before, "before ", 7));
    if (!call) {
        pthread_t thread;
        void *found;
        CHECK(library && pthread_create(&thread, NULL, loader, library) == 0);
        while (!loaded && !getenv("QUIET")) {
            int file = open("meanwhile", O_RDWR | O_CREAT, 0600);
            CHECK(file >= 0 && write(file, "meanwhile", 9) == 9 && lseek(file, 0, SEEK_CUR) == 9 && close(file) == 0);
            usleep(1000);
        }
        CHECK(pthread_join(thread, &found) == 0);
        memcpy(&call, &found, sizeof call);
    }
    SAY(call(SYS_write, before, (long)"and after", 9));
    SAY(lseek(before, 0, SEEK_CUR));
    int after = open("after", O_RDWR | O_CREAT, 0600);
    SAY(write(after, "after ", 6));
    SAY(call(SYS_lseek, after, 2, SEEK_SET));
    SAY(read(after, buffer, 100));
    SAY(call(SYS_ftruncate, after, 5, 0));
    SAY(call(SYS_close, before, 0, 0) + close(after));
    SAY(sum_of("before"));
    SAY(sum_of("after"));
}

/* A program that is executed is not written. */
static void programs(void) {
    char buffer[4096], *words[] = {"./program", "60", NULL};
    int status;
    ssize_t bytes;
    pid_t child;
    int from = open("/bin/sleep", O_RDONLY), to = open("program", O_WRONLY | O_CREAT | O_EXCL, 0755);
    CHECK(from >= 0 && to >= 0);
    while ((bytes = read(from, buffer, sizeof buffer)) > 0) CHECK(write(to, buffer, bytes) == bytes);
    CHECK(bytes == 0 && close(from) == 0 && close(to) == 0);
    CHECK(posix_spawn(&child, "program", NULL, NULL, words, environ) == 0);
    SAY(open("program", O_WRONLY));
    SAY(open("program", O_RDWR | O_CREAT, 0755));
    SAY(open("program", O_RDWR | O_TRUNC));
    SAY(close(open("program", O_RDONLY)));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    int file = open("program", O_WRONLY | O_APPEND);
    SAY(write(file, "more", 4));
    SAY(sum_of("program"));
}

/* Names of a stream from where it is, sorted; how many. */
static int by_text(const void *one, const void *two) { return strcmp(*(char *const *)one, *(char *const *)two); }

static void list(DIR *stream, const char *what) {
    char *names[256];
    int count = 0;
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(stream)) && count < 256) {
        struct stat found;
        CHECK(entry->d_reclen >= offsetof(struct dirent, d_name) + strlen(entry->d_name) + 1 && telldir(stream) == entry->d_off);
        CHECK(fstatat(dirfd(stream), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0 || !strcmp(entry->d_name, "..") || found.st_ino == entry->d_ino);
        CHECK((names[count++] = strdup(entry->d_name)));
    }
    printf("%s: %d entries, errno %d:", what, count, errno);
    qsort(names, count, sizeof *names, by_text);
    for (int number = 0; number < count; number++) {
        if (number < 4) printf(" %s", names[number]);
        free(names[number]);
    }
    printf("\n");
}

/* A directory is opened anew, since a call that the door does not serve makes a descriptor the kernel's for good. */
static int again(int before, const char *path) {
    int opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(opened >= 0 && close(before) == 0);
    return opened;
}

/* Descriptors and streams of directories, by every call that takes one. */
static void directories(void) {
    char name[300], text[PATH_MAX];
    struct stat found, other;
    struct dirent copy, *listed;
    CHECK(mkdir(in("tree"), 0755) == 0 && mkdir(in("tree/sub"), 0755) == 0 && mkdir(in("empty"), 0755) == 0);
    for (int number = 0; number < 200; number++) {
        snprintf(name, sizeof name, "tree/file-%03d", number);
        touch(name);
    }
    memset(name, 'n', 255);
    name[255] = 0;
    int tree = open(in("tree"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(tree >= 0);
    int made = openat(tree, name, O_CREAT | O_RDWR | O_EXCL, 0600);
    CHECK(made >= 0 && write(made, "12345", 5) == 5 && close(made) == 0);
    /* What a descriptor of a directory answers. */
    SAY(read(tree, text, 9));
    SAY(pread(tree, text, 9, 0));
    SAY(write(tree, text, 9));
    SAY(ftruncate(tree, 0));
    SAY(fallocate(tree, 0, 0, 9));
    SAY(fsync(tree));
    SAY(fdatasync(tree));
    SAY(posix_fadvise(tree, 0, 0, POSIX_FADV_NORMAL));
    SAY(isatty(tree));
    SAY(fcntl(tree, F_GETFD));
    SAY(fchmod(tree, 0700));
    SAY(fstat(tree, &found));
    SAY(found.st_mode);
    SAY(fsetxattr(tree, "user.a", "value", 5, 0));
    SAY(fgetxattr(tree, "user.a", text, 9));
    SAY(fgetxattr(tree, "user.a", text, 2));
    SAY(fgetxattr(tree, "security.selinux", text, 9));
    SAY(flistxattr(tree, text, sizeof text));
    SAY(fremovexattr(tree, "user.a"));
    SAY(fremovexattr(tree, "user.a"));
    /* Names below it. */
    SAY(mkdirat(tree, "a", 0755));
    SAY(mkdirat(tree, "a", 0755));
    SAY(mknodat(tree, "node", S_IFREG | 0600, 0));
    SAY(mkfifoat(tree, "pipe", 0600));
    tree = again(tree, in("tree"));
    SAY(symlinkat("file-001", tree, "link"));
    SAY(readlinkat(tree, "link", text, sizeof text));
    SAY(linkat(tree, "file-002", tree, "a/two", 0));
    SAY(linkat(tree, "link", tree, "a/three", AT_SYMLINK_FOLLOW));
    SAY(faccessat(tree, "a/two", R_OK, 0));
    SAY(faccessat(tree, "a/two", X_OK, 0));
    SAY(fchmodat(tree, "a/two", 0640, 0));
    SAY(fchownat(tree, "a/two", -1, -1, 0));
    SAY(utimensat(tree, "a/two", NULL, 0));
    SAY(fstatat(tree, "a/two", &other, 0));
    SAY(other.st_mode);
    SAY(fstatat(tree, "", &other, AT_EMPTY_PATH));
    SAY(other.st_ino == found.st_ino && other.st_dev == found.st_dev);
    SAY(fstatat(tree, "..", &other, 0));
    SAY(fstatat(tree, "a/../../tree/a", &other, 0));
    SAY(fstatat(tree, "../../../../../../../../../../../../../proc", &other, 0));
    SAY(fstatat(tree, "/proc", &other, 0));
    SAY(fstatat(tree, "file-001/", &other, 0));
    SAY(renameat(tree, "a/two", tree, "four"));
    SAY(renameat2(tree, "four", tree, "file-003", RENAME_NOREPLACE));
    SAY(renameat2(tree, "four", tree, "file-003", RENAME_EXCHANGE));
    /* Both names of a call that the kernel makes begin at descriptors. */
    SAY(mkdirat(tree, "one", 0755) + mkdirat(tree, "two", 0755) + mkdirat(tree, "one/x", 0755));
    int one = open(in("tree/one"), O_RDONLY | O_DIRECTORY), two = open(in("tree/two"), O_RDONLY | O_DIRECTORY);
    SAY(renameat2(one, "x", two, "y", RENAME_NOREPLACE | RENAME_EXCHANGE));
    two = again(two, in("tree/two"));
    SAY(renameat2(one, "x", two, "y", RENAME_EXCHANGE));
    SAY(mkdirat(two, "y", 0755));
    two = again(two, in("tree/two"));
    SAY(renameat2(one, "x", two, "y", RENAME_EXCHANGE));
    int nameless = open(in("tree"), O_TMPFILE | O_RDWR, 0600);
    two = again(two, in("tree/two"));
    SAY(linkat(nameless, "", two, "named", AT_EMPTY_PATH));
    two = again(two, in("tree/two"));
    snprintf(text, sizeof text, "/proc/self/fd/%d", two);
    SAY(chdir(text));
    SAY(stat("named", &other));
    SAY(chdir(directory));
    two = again(two, in("tree/two"));
    snprintf(text, sizeof text, "/proc/self/fd/%d/named", two);
    SAY(remove(text));
    SAY(unlinkat(one, "x", AT_REMOVEDIR) + unlinkat(two, "y", AT_REMOVEDIR));
    SAY(unlinkat(tree, "one", AT_REMOVEDIR) + unlinkat(tree, "two", AT_REMOVEDIR));
    SAY(close(one) + close(two) + close(nameless));
    SAY(renameat(tree, "a", tree, "b"));
    SAY(unlinkat(tree, "b", 0));
    SAY(unlinkat(tree, "b", AT_REMOVEDIR));
    SAY(unlinkat(tree, "b/three", 0));
    SAY(unlinkat(tree, "b", AT_REMOVEDIR));
    SAY(unlinkat(tree, "file-000", 0x8000));
    SAY(unlinkat(tree, "pipe", 0));
    tree = again(tree, in("tree"));
    /* Numbers that share a description. */
    int twice = dup(tree), thrice = fcntl(tree, F_DUPFD_CLOEXEC, 100), further = fcntl(twice, F_DUPFD, 5000);
    SAY(twice > tree && thrice >= 100);
    SAY(further >= 5000 || (further < 0 && errno == EINVAL));
    SAY(fcntl(twice, F_GETFD));
    SAY(fcntl(thrice, F_GETFD));
    SAY(fstatat(twice, "node", &other, 0));
    SAY(fstatat(thrice, "node", &other, 0));
    SAY(lseek(twice, 0, SEEK_CUR));
    SAY(close(twice));
    SAY(fstatat(tree, "node", &other, 0));
    SAY(fstatat(twice, "node", &other, 0));
    SAY(fchdir(thrice));
    SAY(stat("node", &other));
    SAY(chdir(directory));
    SAY(fstatat(tree, "node", &other, 0));
    SAY(close(thrice));
    tree = again(tree, in("tree"));
    /* Streams. */
    DIR *stream = fdopendir(tree);
    CHECK(stream && dirfd(stream) == tree);
    list(stream, "all");
    list(stream, "behind the end");
    rewinddir(stream);
    list(stream, "again");
    rewinddir(stream);
    for (int number = 0; number < 7; number++) CHECK(readdir(stream));
    long place = telldir(stream);
    CHECK((listed = readdir(stream)));
    snprintf(text, sizeof text, "%s", listed->d_name);
    list(stream, "all but eight");
    seekdir(stream, place);
    CHECK(readdir64(stream));
    seekdir(stream, place);
    CHECK((listed = readdir(stream)) && !strcmp(listed->d_name, text));
    list(stream, "all but eight");
    rewinddir(stream);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    SAY(readdir_r(stream, &copy, &listed));
    CHECK(listed == &copy);
#pragma GCC diagnostic pop
    list(stream, "all but one");
    /* It becomes the kernel's in the middle. */
    rewinddir(stream);
    for (int number = 0; number < 50; number++) CHECK(readdir(stream));
    SAY(fchdir(dirfd(stream)));
    SAY(chdir(directory));
    list(stream, "all but fifty");
    rewinddir(stream);
    list(stream, "by the kernel");
    SAY(closedir(stream));
    SAY(fcntl(tree, F_GETFD));
    /* A child goes on in it, and so does its parent. */
    CHECK((stream = opendir(in("tree"))));
    for (int number = 0; number < 50; number++) CHECK(readdir(stream));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        list(stream, "of a child");
        fflush(stdout);
        _exit(closedir(stream));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    seekdir(stream, place);
    list(stream, "of its parent");
    SAY(closedir(stream));
    /* Those that are none, and many. */
    SAY(opendir(in("absent")) == NULL);
    SAY(opendir(in("tree/node")) == NULL);
    SAY(opendir("") == NULL);
    SAY(fdopendir(-1) == NULL);
    int file = open(in("tree/node"), O_RDWR);
    SAY(fdopendir(file) == NULL);
    SAY(openat(file, "x", O_RDONLY));
    SAY(fstatat(file, "x", &other, 0));
    SAY(close(file));
    SAY(open(in("tree"), O_RDWR));
    SAY(open(in("tree"), O_RDONLY | O_CREAT, 0600));
    SAY(open(in("tree/node"), O_RDONLY | O_DIRECTORY));
    SAY(open(in("tree/link"), O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    DIR *many[300];
    for (int number = 0; number < 300; number++) CHECK((many[number] = opendir(in("empty"))));
    list(many[0], "the first of many");
    list(many[299], "the last of many");
    for (int number = 0; number < 300; number++) CHECK(closedir(many[number]) == 0);
    /* One whose directory is removed. */
    CHECK((stream = opendir(in("empty"))) && rmdir(in("empty")) == 0);
    list(stream, "removed");
    SAY(fstatat(dirfd(stream), ".", &other, 0));
    SAY(other.st_nlink);
    SAY(openat(dirfd(stream), "x", O_CREAT | O_RDWR, 0600));
    SAY(fstatat(dirfd(stream), "..", &other, 0));
    SAY(closedir(stream));
    /* What opens others by its path. */
    struct dirent **names;
    int count = scandir(in("tree"), &names, NULL, alphasort);
    SAY(count);
    while (count-- > 0) free(names[count]);
    free(names);
    int above = open(directory, O_RDONLY | O_DIRECTORY), deep = openat(above, "tree", O_RDONLY | O_DIRECTORY);
    SAY(scandirat(above, "tree", &names, NULL, alphasort));
    SAY(close(above));
    file = openat(deep, "file-010", O_RDWR);
    SAY(flock(file, LOCK_EX));
    SAY(close(file));
    SAY(fcntl(deep, F_GETFL) & (O_ACCMODE | O_DIRECTORY | O_APPEND | O_NONBLOCK));
    SAY(flock(deep, LOCK_SH));
    SAY(copy_file_range(deep, NULL, deep, NULL, 9, 0));
    SAY(fstatat(deep, "node", &other, 0));
    SAY(close(deep));
}

/* Bytes between files that are open in any way, and small files that are read alone. */
static void copies(void) {
    char bytes[40000], back[40000];
    for (unsigned number = 0; number < sizeof bytes; number++) bytes[number] = (char)(number * 31 + number / 251);
    int source = open(in("source"), O_RDWR | O_CREAT | O_EXCL, 0600), target = open(in("target"), O_RDWR | O_CREAT | O_EXCL, 0600);
    SAY(copy_file_range(source, NULL, target, NULL, 100, 0));
    CHECK(write(source, bytes, sizeof bytes) == sizeof bytes);
    loff_t from = 100, to = 5000;
    SAY(copy_file_range(source, &from, target, &to, 1000, 0));
    SAY(from);
    SAY(to);
    SAY(lseek(source, 0, SEEK_CUR));
    SAY(lseek(target, 0, SEEK_CUR));
    CHECK(pread(target, back, sizeof back, 5000) == 1000 && !memcmp(back, bytes + 100, 1000));
    SAY(lseek(source, 0, SEEK_SET));
    long all = 0, done;
    while ((done = copy_file_range(source, NULL, target, NULL, SSIZE_MAX & ~4095L, 0)) > 0) all += done;
    SAY(all);
    SAY(lseek(source, 0, SEEK_CUR));
    SAY(lseek(target, 0, SEEK_CUR));
    CHECK(pread(target, back, sizeof back, 0) == sizeof back && !memcmp(back, bytes, sizeof back));
    from = 0, to = 10;
    SAY(copy_file_range(source, &from, source, &to, 100, 0));
    to = 50000;
    SAY(copy_file_range(source, &from, source, &to, 100, 0));
    from = -1;
    SAY(copy_file_range(source, &from, target, &to, 100, 0));
    from = 0, to = LONG_MAX - 50;
    SAY(copy_file_range(source, &from, target, &to, 100, 0));
    to = 0;
    SAY(copy_file_range(source, &from, target, &to, 0, 0));
    SAY(copy_file_range(source, &from, target, &to, 10, 1));
    SAY(ioctl(target, FICLONE, source));
    SAY(ioctl(target, FICLONE, target));
    int reads = open(in("source"), O_RDONLY), writes = open(in("target"), O_WRONLY), appends = open(in("target"), O_WRONLY | O_APPEND);
    SAY(copy_file_range(writes, NULL, target, NULL, 10, 0));
    SAY(copy_file_range(source, NULL, reads, NULL, 10, 0));
    SAY(copy_file_range(reads, NULL, appends, NULL, 10, 0));
    SAY(ioctl(reads, FICLONE, source));
    SAY(ioctl(appends, FICLONE, source));
    SAY(copy_file_range(reads, NULL, writes, NULL, 10, 0));
    SAY(ioctl(writes, FICLONE, reads));
    /* More reads than go by the door. */
    long sum = 0;
    for (int number = 0; number < 200; number++) {
        CHECK(pread(reads, back, 100, number * 100) == 100 && !memcmp(back, bytes + number * 100, 100));
        CHECK(read(reads, back, 50) == 50 && !memcmp(back, bytes + 10 + number * 50, 50));
        sum += back[0];
    }
    SAY(sum);
    SAY(lseek(reads, 0, SEEK_CUR));
    SAY(write(reads, "x", 1));
    SAY(read(writes, back, 1));
    CHECK(pwrite(source, "changed", 7, 300) == 7 && pread(reads, back, 7, 300) == 7);
    SAY(memcmp(back, "changed", 7));
    SAY(fsetxattr(reads, "user.of.reads", "1", 1, 0));
    SAY(fgetxattr(writes, "user.of.reads", back, 9));
    SAY(fgetxattr(reads, "user.of.reads", back, 9));
    SAY(fgetxattr(reads, "security.capability", back, 9));
    SAY(getxattr(in("source"), "security.capability", back, 9));
    SAY(getxattr(in("source"), "security.selinux", back, 9));
    SAY(getxattr(in("source"), "security.", back, 9));
    SAY(setxattr(in("source"), "security.of.a.test", "2", 1, 0));
    SAY(getxattr(in("source"), "security.of.a.test", back, 9));
    SAY(close(source) + close(target) + close(reads) + close(writes) + close(appends));
}

static void *writes_for_ever(void *argument) {
    for (;;) CHECK(pwrite(shared_file, argument, 1, 0) == 1);
}

/* Threads end in functions of libc alone. */
static void cancelled(void) {
    shared_file = made("file", 10);
    pthread_t threads[3];
    void *results[3];
    for (int number = 0; number < 3; number++) CHECK(pthread_create(&threads[number], NULL, writes_for_ever, "x") == 0);
    for (int round = 0; round < 1000; round++) CHECK(pwrite(shared_file, "y", 1, 5) == 1);
    for (int number = 0; number < 3; number++) CHECK(pthread_cancel(threads[number]) == 0);
    for (int number = 0; number < 3; number++) CHECK(pthread_join(threads[number], &results[number]) == 0 && results[number] == PTHREAD_CANCELED);
    SAY(pwrite(shared_file, "z", 1, 9));
    SAY(close(shared_file));
    SAY(sum_of("file"));
}

/* One thread opens a file while another one locks it. What is open of it, real by now, ends no lock. */
static pthread_barrier_t both;
static const char *met;
static volatile int met_file;

static void *opens_what_is_locked(void *argument) {
    (void)argument;
    for (int round = 0; round < 40; round++) {
        pthread_barrier_wait(&both);
        met_file = open(met, O_RDWR);
        CHECK(met_file >= 0);
        pthread_barrier_wait(&both);
    }
    return NULL;
}

static void locks_met(void) {
    pthread_t thread;
    int status;
    CHECK(pthread_barrier_init(&both, NULL, 2) == 0 && pthread_create(&thread, NULL, opens_what_is_locked, NULL) == 0);
    for (int round = 0; round < 40; round++) {
        char name[40];
        snprintf(name, sizeof name, "locked_%d", round);
        touch(name);
        int file = open(name, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK};
        met = name;
        pthread_barrier_wait(&both);
        if (round % 2) usleep(100);
        CHECK(fcntl(file, F_SETLK, &lock) == 0);
        pthread_barrier_wait(&both);
        CHECK(fcntl(met_file, F_GETFL) >= 0);
        pid_t child = fork();
        if (child == 0) {
            int other = open(name, O_RDWR);
            _exit(fcntl(other, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK);
        }
        CHECK(waitpid(child, &status, 0) == child);
        if (status) { printf("round %d: no lock\n", round); fflush(stdout); _exit(1); }
        CHECK(close(met_file) == 0 && close(file) == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Threads open files while placeholders end. A child looks whether there are still some. */
static volatile int is_over;
static int opened;

static void *opens_until_over(void *name) {
    for (;;) {
        int file = open(name, O_RDWR | O_CREAT, 0600);
        CHECK(file >= 0);
        if (is_over) return (void *)(long)file;
        __atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
        CHECK(close(file) == 0);
    }
}

static void ends_met(void) {
    int asked[2], told[2], links = 0;
    CHECK(pipe(asked) == 0 && pipe(told) == 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        int number;
        close(asked[1]);
        while (read(asked[0], &number, sizeof number) == sizeof number) {
            char name[64], target[PATH_MAX] = "";
            snprintf(name, sizeof name, "/proc/%d/fd/%d", parent, number);
            char is_link = readlink(name, target, sizeof target - 1) > 0 && !strncmp(target, "/proc/", 6);
            if (write(told[1], &is_link, 1) != 1) _exit(1);
        }
        _exit(0);
    }
    const char *names[] = {"a", "b", "c", "d"};
    pthread_t threads[4];
    for (int number = 0; number < 4; number++) CHECK(pthread_create(&threads[number], NULL, opens_until_over, (void *)names[number]) == 0);
    while (__atomic_load_n(&opened, __ATOMIC_SEQ_CST) < 100) usleep(100);
    unsigned long context = 0;
    CHECK(syscall(SYS_io_setup, 1, &context) == 0);
    is_over = 1;
    for (int number = 0; number < 4; number++) {
        void *result;
        char is_link;
        CHECK(pthread_join(threads[number], &result) == 0);
        int file = (int)(long)result;
        CHECK(write(asked[1], &file, sizeof file) == sizeof file && read(told[0], &is_link, 1) == 1);
        links += is_link;
        CHECK(close(file) == 0);
    }
    SAY(links);
    CHECK(close(asked[1]) == 0 && waitpid(child, NULL, 0) == child && syscall(SYS_io_destroy, context) == 0);
}

/* A thread with descriptors of its own: one number is a file there and another one here. */
static int of_thread, of_main;

static void *unshares(void *argument) {
    char buffer[10];
    SAY(close_range(900, 950, CLOSE_RANGE_UNSHARE));
    of_thread = open("of thread", O_RDWR);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    SAY(pread(of_thread, buffer, 10, 0));
    SAY(buffer[0]);
    SAY(close(of_thread));
    pthread_barrier_wait(&both);
    return argument;
}

static void unshared(void) {
    pthread_t thread;
    char buffer[10];
    int file = open("of thread", O_WRONLY | O_CREAT, 0600);
    CHECK(write(file, "thread", 6) == 6 && close(file) == 0);
    file = open("of main", O_WRONLY | O_CREAT, 0600);
    CHECK(write(file, "main", 4) == 4 && close(file) == 0);
    CHECK(pthread_barrier_init(&both, NULL, 2) == 0 && pthread_create(&thread, NULL, unshares, NULL) == 0);
    pthread_barrier_wait(&both);
    of_main = open("of main", O_RDWR);
    SAY(of_main == of_thread);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    SAY(pread(of_main, buffer, 10, 0));
    SAY(buffer[0]);
    SAY(close(of_main));
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A process that shares memory and descriptors and is no thread. */
static int of_child(void *argument) {
    char buffer[10] = "";
    (void)argument;
    while (!is_over) usleep(1000);
    if (pread(of_main, buffer, 10, 0) != 4 || buffer[0] != 'm') return 1;
    return 0;
}

static void cloned(void) {
    int status;
    char *stack = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = open("of main", O_WRONLY | O_CREAT, 0600);
    CHECK(write(file, "main", 4) == 4 && close(file) == 0);
    pid_t child = clone(of_child, stack + (1 << 16), CLONE_VM | CLONE_FILES | SIGCHLD, NULL);
    CHECK(child > 0 && (of_main = open("of main", O_RDWR)) >= 0);
    is_over = 1;
    CHECK(waitpid(child, &status, 0) == child);
    SAY(status);
    SAY(close(of_main));
}

/* Functions of libc that are found by libc's own name. */
static void by_handle(void) {
    char buffer[10];
    int before = open("before", O_RDWR | O_CREAT, 0600);
    SAY(write(before, "before", 6));
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(libc);
    ssize_t (*writes)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(libc, "write");
    int (*closes)(int) = (int (*)(int))dlsym(libc, "close");
    CHECK(writes && closes);
    SAY(writes(before, "more", 4));
    int after = open("after", O_RDWR | O_CREAT, 0600);
    SAY(writes(after, "after", 5));
    SAY(pread(after, buffer, 10, 0));
    SAY(closes(before) + closes(after));
    SAY(sum_of("before"));
}

/* A library whose constructor waits for a thread. */
static void constructs(void) {
    void *library = dlopen(getenv("WAITS"), RTLD_NOW);
    if (!library) printf("%s\n", dlerror());
    CHECK(library);
    int (*waited)(void) = (int (*)(void))dlsym(library, "waited");
    SAY(waited());
}

/* Directories that are open when this process removes or replaces them. */
static void replaced(void) {
    struct stat found;
    const char *names[] = {"removed", "replaced"};
    for (int which = 0; which < 2; which++) {
        CHECK(mkdir(in(names[which]), 0700) == 0 && mkdir(in("another"), 0700) == 0);
        int tree = open(in(names[which]), O_RDONLY | O_DIRECTORY);
        CHECK(tree >= 0);
        if (which == 0) SAY(remove(in("removed")));
        else SAY(rename(in("another"), in("replaced")));
        SAY(fstat(tree, &found));
        SAY(found.st_nlink);
        SAY(fstatat(tree, ".", &found, 0));
        SAY(openat(tree, "x", O_CREAT | O_RDWR, 0600));
        SAY(fchdir(tree));
        SAY(chdir(directory));
        SAY(close(tree));
        if (which == 0) CHECK(rmdir(in("another")) == 0);
    }
}

/* A child of vfork that asks for a limit in vain changes nothing here. */
static void vfork_sandbox(void) {
    int status;
    touch("before");
    pid_t child = vfork();
    if (child == 0) _exit(prctl(PR_SET_SECCOMP, 99, 0) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    SAY(status);
    for (int round = 0; round < 30; round++) touch("after");
}

/* A program that is started with a limit: calls that it does not make itself would end it. */
static void executes_limited(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_statx, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    int file = open("file", O_WRONLY | O_CREAT, 0600);
    CHECK(write(file, "done\n", 5) == 5 && close(file) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    execl("/bin/cat", "cat", "file", "file", (char *)NULL);
    CHECK(0);
}

int main(int count, char **words) {
    CHECK(count == 3 && realpath(words[2], directory) && chdir(directory) == 0);
    const struct { const char *name; void (*run)(void); } all[] = {
        {"calls", calls}, {"structures", structures}, {"signals", signals}, {"left", left}, {"forks", forks}, {"closes", closes},
        {"ids", ids}, {"roots", roots}, {"data", data}, {"numbers", numbers},
        {"together", together}, {"cancelled", cancelled}, {"directories", directories}, {"copies", copies}, {"locks_met", locks_met}, {"ends_met", ends_met}, {"unshared", unshared}, {"cloned", cloned}, {"by_handle", by_handle},
        {"constructs", constructs}, {"replaced", replaced}, {"vfork_sandbox", vfork_sandbox}, {"executes_limited", executes_limited}, {"files", files}, {"appended", appended}, {"others", others}, {"inherits", inherits}, {"own_calls", own_calls}, {"programs", programs}, {"sandbox", sandbox}, {"once", once}, {"gives_back", gives_back}, {"until_it_fails", until_it_fails},
    };
    for (unsigned number = 0; number < sizeof all / sizeof *all; number++)
        if (!strcmp(all[number].name, words[1])) { all[number].run(); printf("done\n"); return 0; }
    return 2;
}
