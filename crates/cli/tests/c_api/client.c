/* What C programs do with libtandemfs, beside system calls on the same mount: client PART MOUNTPOINT [...]. Says what is wrong, by line. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tandemfs.h>

static const char *root;

static void is_equal(int line, const char *what, int64_t found, int64_t expected) {
    if (found != expected) {
        printf("line %d: %s is %lld, not %lld\n", line, what, (long long)found, (long long)expected);
        fflush(stdout);
        _exit(1);
    }
}
#define IS(call, expected) is_equal(__LINE__, #call, (int64_t)(call), (int64_t)(expected))
#define HOLDS(condition) is_equal(__LINE__, #condition, (condition) != 0, 1)

/* A path on the mount. */
static const char *on_mount(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static struct tandemfs_mount *connected_with(const struct tandemfs_options *options) {
    struct tandemfs_mount *mount = NULL;
    char sentence[200];
    int made = tandemfs_connect(root, options, &mount, sentence, sizeof sentence);
    if (made != 0) {
        printf("connect: %d %s\n", made, sentence);
        exit(1);
    }
    return mount;
}

static struct tandemfs_mount *connected(void) { return connected_with(NULL); }

static struct tandemfs_file *opened(struct tandemfs_mount *mount, const char *path, int flags) {
    struct tandemfs_file *file = NULL;
    IS(tandemfs_open(mount, path, flags, 0640, &file), 0);
    return file;
}

/* Bytes by a seed. */
static void fill(unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t at = 0; at < length; at++) {
        seed = seed * 1103515245u + 12345u;
        bytes[at] = (unsigned char)(seed >> 16);
    }
}

static void is_as_by_mount(const char *path, const struct tandemfs_attributes *found) {
    struct stat seen;
    IS(lstat(on_mount(path), &seen), 0);
    IS(found->inode, seen.st_ino);
    IS(found->size_bytes, seen.st_size);
    IS(found->space_512, seen.st_blocks);
    IS(found->mode, seen.st_mode);
    IS(found->links, seen.st_nlink);
    IS(found->user, seen.st_uid);
    IS(found->group, seen.st_gid);
    IS(found->device, seen.st_rdev);
    IS(found->block_bytes, seen.st_blksize);
    IS(found->modified.seconds, seen.st_mtim.tv_sec);
    IS(found->modified.nanoseconds, seen.st_mtim.tv_nsec);
    IS(found->changed.seconds, seen.st_ctim.tv_sec);
    IS(found->changed.nanoseconds, seen.st_ctim.tv_nsec);
    IS(found->accessed.seconds, seen.st_atim.tv_sec);
    HOLDS(found->created.seconds > 0 && found->created.seconds <= found->changed.seconds);
}

static void names(void) {
    struct tandemfs_mount *mount = connected();
    struct tandemfs_attributes found;
    struct stat seen;
    char text[64];
    IS(tandemfs_version(), TANDEMFS_VERSION);
    HOLDS(strchr(tandemfs_release(), '.') != NULL);
    IS(tandemfs_umask(mount, 027), 0);
    IS(tandemfs_umask(mount, 01000), -EINVAL);
    IS(tandemfs_mkdir(mount, "d", 0777), 0);
    IS(tandemfs_mkdir(mount, "d", 0777), -EEXIST);
    IS(stat(on_mount("d"), &seen), 0);
    IS(seen.st_mode, S_IFDIR | 0750);
    struct tandemfs_file *file = opened(mount, "d/f", O_WRONLY | O_CREAT | O_EXCL);
    IS(tandemfs_pwrite(file, "abc", 3, 0), 3);
    IS(tandemfs_close(file), 0);
    IS(tandemfs_stat(mount, "d/f", &found), 0);
    is_as_by_mount("d/f", &found);
    IS(tandemfs_access(mount, "d/f", R_OK), 0);
    IS(tandemfs_access(mount, "d/none", F_OK), -ENOENT);
    IS(tandemfs_chmod(mount, "d/f", 0604), 0);
    IS(tandemfs_truncate(mount, "d/f", 2), 0);
    IS(tandemfs_stat(mount, "d/f", &found), 0);
    IS(found.mode, S_IFREG | 0604);
    is_as_by_mount("d/f", &found);
    IS(tandemfs_link(mount, "d/f", "also"), 0);
    IS(tandemfs_symlink(mount, "d/f", "l"), 0);
    IS(tandemfs_lstat(mount, "l", &found), 0);
    is_as_by_mount("l", &found);
    IS(tandemfs_stat(mount, "l", &found), 0);
    is_as_by_mount("d/f", &found);
    IS(found.links, 2);
    memset(text, '#', sizeof text);
    IS(tandemfs_readlink(mount, "l", text, sizeof text), 3);
    HOLDS(memcmp(text, "d/f#", 4) == 0);
    memset(text, '#', sizeof text);
    IS(tandemfs_readlink(mount, "l", text, 2), 2);
    HOLDS(memcmp(text, "d/#", 3) == 0);
    IS(tandemfs_readlink(mount, "l", text, 0), -EINVAL);
    IS(tandemfs_readlink(mount, "d/f", text, 2), -EINVAL);
    IS(tandemfs_rename(mount, "also", "d/f2", 0), 0);
    IS(tandemfs_rename(mount, "d/f2", "l", RENAME_NOREPLACE), -EEXIST);
    IS(tandemfs_rename(mount, "none", "n", 0), -ENOENT);
    IS(access(on_mount("d/f2"), F_OK), 0);
    IS(tandemfs_rmdir(mount, "d"), -ENOTEMPTY);
    IS(tandemfs_unlink(mount, "d"), -EISDIR);
    IS(tandemfs_unlink(mount, "d/f"), 0);
    IS(tandemfs_unlink(mount, "d/f2"), 0);
    IS(tandemfs_unlink(mount, "l"), 0);
    IS(tandemfs_rmdir(mount, "d"), 0);
    IS(access(on_mount("d"), F_OK), -1);

    struct tandemfs_space space;
    struct statvfs by_mount;
    /* What the kernel held of the removed files may go between the two looks. */
    for (int looks = 0; looks == 0 || (space.files != by_mount.f_files && looks < 200); looks++) {
        IS(tandemfs_statvfs(mount, &space), 0);
        IS(statvfs(root, &by_mount), 0);
    }
    IS(space.units * space.unit_bytes, by_mount.f_blocks * by_mount.f_frsize);
    IS(space.files, by_mount.f_files);
    IS(space.name_bytes_max, by_mount.f_namemax);
    IS(tandemfs_syncfs(mount), 0);
    IS(tandemfs_ping(mount), 0);
    IS(tandemfs_disconnect(mount), 0);
}

enum { LONG = (3 << 20) + 77 };

static void bytes(void) {
    struct tandemfs_mount *mount = connected();
    struct tandemfs_attributes found;
    uint64_t end = 0;
    unsigned char *data = malloc(LONG), *back = calloc(1, LONG);
    fill(data, LONG, 1);
    struct tandemfs_file *file = opened(mount, "f", O_RDWR | O_CREAT);
    IS(tandemfs_pwrite(file, data, LONG, 0), LONG);
    IS(tandemfs_fdatasync(file), 0);
    int descriptor = open(on_mount("f"), O_RDWR);
    HOLDS(descriptor >= 0);
    IS(pread(descriptor, back, LONG, 0), LONG);
    HOLDS(memcmp(data, back, LONG) == 0);
    IS(pwrite(descriptor, "by the mount", 12, 1 << 20), 12);
    memcpy(data + (1 << 20), "by the mount", 12);
    memset(back, 0, LONG);
    IS(tandemfs_pread(file, back, LONG, 0), LONG);
    HOLDS(memcmp(data, back, LONG) == 0);
    IS(tandemfs_pread(file, back, 100, LONG - 40), 40);
    IS(tandemfs_pread(file, back, 100, LONG), 0);
    IS(tandemfs_pread(file, back, 100, UINT64_MAX), -EINVAL);
    IS(tandemfs_pread(file, NULL, 0, 0), 0);
    IS(tandemfs_pwrite(file, NULL, 0, 0), 0);
    IS(tandemfs_append(file, "end", 3, &end), 3);
    IS(end, LONG + 3);
    IS(tandemfs_append(file, "end", 3, NULL), 3);
    IS(tandemfs_ftruncate(file, 100), 0);
    IS(tandemfs_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
    IS(tandemfs_fsync(file), 0);
    IS(tandemfs_fstat(file, &found), 0);
    IS(found.size_bytes, 100);
    is_as_by_mount("f", &found);
    close(descriptor);
    struct tandemfs_file *other = opened(mount, "f", O_RDONLY);
    IS(tandemfs_pwrite(other, "x", 1, 0), -EBADF);
    IS(tandemfs_disconnect(mount), 0);
    /* The connection lives as long as its files. */
    IS(tandemfs_pread(other, back, 10, 0), 10);
    HOLDS(memcmp(data, back, 10) == 0);
    IS(tandemfs_close(other), 0);
    IS(tandemfs_unlink(mount = connected(), "f"), 0);
    descriptor = tandemfs_descriptor(file);
    HOLDS(descriptor >= 0);
    IS(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
    IS(pread(descriptor, back, 100, 0), 100);
    HOLDS(memcmp(data, back, 100) == 0);
    IS(close(descriptor), 0);
    IS(tandemfs_close(file), 0);
    struct tandemfs_file *directory = opened(mount, ".", O_RDONLY | O_DIRECTORY);
    descriptor = tandemfs_descriptor(directory);
    HOLDS(descriptor >= 0);
    IS(faccessat(descriptor, "g", F_OK, 0), -1);
    IS(tandemfs_mkdir(mount, "g", 0700), 0);
    IS(faccessat(descriptor, "g", F_OK, 0), 0);
    IS(close(descriptor), 0);
    IS(tandemfs_pread(directory, back, 10, 0), -EISDIR);
    IS(tandemfs_close(directory), 0);
    IS(tandemfs_disconnect(mount), 0);
    free(data);
    free(back);
}

enum { FILES = 500 };

static void listing(void) {
    struct tandemfs_mount *mount = connected();
    struct tandemfs_directory *directory = NULL;
    struct tandemfs_entry entry;
    unsigned char seen[FILES] = {0};
    char name[300];
    int count = 0, dots = 0;
    uint64_t middle = 0;
    IS(tandemfs_mkdir(mount, "many", 0755), 0);
    for (int number = 0; number < FILES; number++) {
        snprintf(name, sizeof name, "many/%03d", number);
        IS(tandemfs_close(opened(mount, name, O_WRONLY | O_CREAT)), 0);
    }
    IS(tandemfs_opendir(mount, "none", &directory), -ENOENT);
    IS(tandemfs_opendir(mount, "many/000", &directory), -ENOTDIR);
    IS(tandemfs_opendir(mount, "many", &directory), 0);
    while (tandemfs_readdir(directory, &entry) == 1) {
        if (entry.name[0] == '.') {
            IS(entry.kind, DT_DIR);
            dots++;
            continue;
        }
        IS(entry.kind, DT_REG);
        IS(strlen(entry.name), 3);
        struct stat found;
        snprintf(name, sizeof name, "many/%s", entry.name);
        IS(stat(on_mount(name), &found), 0);
        IS(entry.inode, found.st_ino);
        seen[atoi(entry.name)]++;
        if (++count == FILES / 2) {
            middle = entry.cookie;
        }
    }
    IS(count, FILES);
    IS(dots, 2);
    for (int number = 0; number < FILES; number++) {
        IS(seen[number], 1);
    }
    IS(tandemfs_readdir(directory, &entry), 0);
    IS(tandemfs_seekdir(directory, middle), 0);
    for (count = 0; tandemfs_readdir(directory, &entry) == 1; count++) {
    }
    IS(count, FILES / 2);
    IS(tandemfs_seekdir(directory, 0), 0);
    for (count = 0; tandemfs_readdir(directory, &entry) == 1; count++) {
    }
    IS(count, FILES + 2);
    IS(tandemfs_closedir(directory), 0);
    /* The longest name there is. */
    memset(name, 'n', 255);
    name[255] = 0;
    IS(tandemfs_mkdir(mount, "one", 0755), 0);
    char path[400];
    snprintf(path, sizeof path, "one/%s", name);
    IS(tandemfs_close(opened(mount, path, O_WRONLY | O_CREAT)), 0);
    IS(tandemfs_opendir(mount, "one", &directory), 0);
    while (tandemfs_readdir(directory, &entry) == 1 && entry.name[0] == '.') {
    }
    IS(strcmp(entry.name, name), 0);
    IS(tandemfs_closedir(directory), 0);
    IS(tandemfs_disconnect(mount), 0);
}

/* [CAP1]: each pointer that is needed, one after the other. */
static void nulls(void) {
    struct tandemfs_mount *mount = connected();
    struct tandemfs_file *file = opened(mount, "f", O_RDWR | O_CREAT), *made;
    struct tandemfs_directory *directory;
    struct tandemfs_mapping *mapping;
    struct tandemfs_attributes found;
    struct tandemfs_space space;
    struct tandemfs_entry entry;
    char text[200];
    void *address;
    uint32_t abilities;
    IS(tandemfs_opendir(mount, ".", &directory), 0);
    IS(tandemfs_connect(NULL, NULL, &mount, text, sizeof text), -EFAULT);
    HOLDS(strstr(text, "null") != NULL);
    IS(tandemfs_connect(root, NULL, NULL, text, sizeof text), -EFAULT);
    IS(tandemfs_connect(root, NULL, NULL, NULL, 100), -EFAULT);
    IS(tandemfs_disconnect(NULL), -EFAULT);
    IS(tandemfs_ping(NULL), -EFAULT);
    IS(tandemfs_abilities(NULL, &abilities), -EFAULT);
    IS(tandemfs_abilities(mount, NULL), -EFAULT);
    IS(tandemfs_umask(NULL, 0), -EFAULT);
    IS(tandemfs_statvfs(NULL, &space), -EFAULT);
    IS(tandemfs_statvfs(mount, NULL), -EFAULT);
    IS(tandemfs_syncfs(NULL), -EFAULT);
    IS(tandemfs_open(NULL, "f", 0, 0, &made), -EFAULT);
    IS(tandemfs_open(mount, NULL, 0, 0, &made), -EFAULT);
    IS(tandemfs_open(mount, "made", O_CREAT | O_WRONLY, 0600, NULL), -EFAULT);
    IS(access(on_mount("made"), F_OK), -1);
    IS(tandemfs_stat(NULL, "f", &found), -EFAULT);
    IS(tandemfs_stat(mount, NULL, &found), -EFAULT);
    IS(tandemfs_stat(mount, "f", NULL), -EFAULT);
    IS(tandemfs_lstat(NULL, "f", &found), -EFAULT);
    IS(tandemfs_lstat(mount, NULL, &found), -EFAULT);
    IS(tandemfs_lstat(mount, "f", NULL), -EFAULT);
    IS(tandemfs_access(NULL, "f", 0), -EFAULT);
    IS(tandemfs_access(mount, NULL, 0), -EFAULT);
    IS(tandemfs_truncate(NULL, "f", 0), -EFAULT);
    IS(tandemfs_truncate(mount, NULL, 0), -EFAULT);
    IS(tandemfs_chmod(NULL, "f", 0), -EFAULT);
    IS(tandemfs_chmod(mount, NULL, 0), -EFAULT);
    IS(tandemfs_unlink(NULL, "f"), -EFAULT);
    IS(tandemfs_unlink(mount, NULL), -EFAULT);
    IS(tandemfs_rename(NULL, "f", "g", 0), -EFAULT);
    IS(tandemfs_rename(mount, NULL, "g", 0), -EFAULT);
    IS(tandemfs_rename(mount, "f", NULL, 0), -EFAULT);
    IS(tandemfs_mkdir(NULL, "d", 0), -EFAULT);
    IS(tandemfs_mkdir(mount, NULL, 0), -EFAULT);
    IS(tandemfs_rmdir(NULL, "d"), -EFAULT);
    IS(tandemfs_rmdir(mount, NULL), -EFAULT);
    IS(tandemfs_link(NULL, "f", "g"), -EFAULT);
    IS(tandemfs_link(mount, NULL, "g"), -EFAULT);
    IS(tandemfs_link(mount, "f", NULL), -EFAULT);
    IS(tandemfs_symlink(NULL, "f", "g"), -EFAULT);
    IS(tandemfs_symlink(mount, NULL, "g"), -EFAULT);
    IS(tandemfs_symlink(mount, "f", NULL), -EFAULT);
    IS(tandemfs_readlink(NULL, "f", text, 10), -EFAULT);
    IS(tandemfs_readlink(mount, NULL, text, 10), -EFAULT);
    IS(tandemfs_readlink(mount, "f", NULL, 10), -EFAULT);
    IS(tandemfs_close(NULL), -EFAULT);
    IS(tandemfs_pread(NULL, text, 1, 0), -EFAULT);
    IS(tandemfs_pread(file, NULL, 1, 0), -EFAULT);
    IS(tandemfs_pwrite(NULL, text, 1, 0), -EFAULT);
    IS(tandemfs_pwrite(file, NULL, 1, 0), -EFAULT);
    IS(tandemfs_append(NULL, text, 1, NULL), -EFAULT);
    IS(tandemfs_append(file, NULL, 1, NULL), -EFAULT);
    IS(tandemfs_fstat(NULL, &found), -EFAULT);
    IS(tandemfs_fstat(file, NULL), -EFAULT);
    IS(tandemfs_ftruncate(NULL, 0), -EFAULT);
    IS(tandemfs_fallocate(NULL, 0, 0, 1), -EFAULT);
    IS(tandemfs_fsync(NULL), -EFAULT);
    IS(tandemfs_fdatasync(NULL), -EFAULT);
    IS(tandemfs_descriptor(NULL), -EFAULT);
    IS(tandemfs_opendir(NULL, ".", &directory), -EFAULT);
    IS(tandemfs_opendir(mount, NULL, &directory), -EFAULT);
    IS(tandemfs_opendir(mount, ".", NULL), -EFAULT);
    IS(tandemfs_readdir(NULL, &entry), -EFAULT);
    IS(tandemfs_readdir(directory, NULL), -EFAULT);
    IS(tandemfs_seekdir(NULL, 0), -EFAULT);
    IS(tandemfs_closedir(NULL), -EFAULT);
    IS(tandemfs_map(NULL, 0, 1, 0, &mapping), -EFAULT);
    IS(tandemfs_map(file, 0, 1, 0, NULL), -EFAULT);
    IS(tandemfs_mapping_address(NULL, &address), -EFAULT);
    IS(tandemfs_mapping_load(NULL, 0, text, 1), -EFAULT);
    IS(tandemfs_mapping_store(NULL, 0, text, 1), -EFAULT);
    IS(tandemfs_mapping_store_word(NULL, 0, 1), -EFAULT);
    IS(tandemfs_mapping_sync(NULL, 0, 1), -EFAULT);
    IS(tandemfs_unmap(NULL), -EFAULT);
    IS(tandemfs_fstat(file, &found), 0);
    IS(found.size_bytes, 0);
    IS(tandemfs_closedir(directory), 0);
    IS(tandemfs_close(file), 0);
    IS(tandemfs_disconnect(mount), 0);
}

/* [CAP4], [CAP5]: what fails says so in one way, and stores nothing. */
static void failures(void) {
    struct tandemfs_mount *mount = connected(), *kept_mount = mount;
    struct tandemfs_file *file = (void *)&file, *kept = file;
    struct tandemfs_directory *directory = (void *)&directory;
    struct tandemfs_mapping *mapping = (void *)&mapping;
    struct tandemfs_attributes found, before;
    uint64_t end = 77;
    char sentence[100];
    errno = 0;
    memset(&found, '#', sizeof found);
    memset(&before, '#', sizeof before);
    IS(tandemfs_stat(mount, "none", &found), -ENOENT);
    HOLDS(memcmp(&found, &before, sizeof found) == 0);
    IS(tandemfs_open(mount, "none", O_RDONLY, 0, &file), -ENOENT);
    IS(tandemfs_open(mount, "", O_RDONLY, 0, &file), -ENOENT);
    HOLDS(file == kept);
    IS(tandemfs_opendir(mount, "none", &directory), -ENOENT);
    HOLDS((void *)directory == (void *)&directory);
    IS(errno, 0);

    IS(symlink("/etc", on_mount("absolute")), 0);
    IS(mkfifo(on_mount("pipe"), 0600), 0);
    IS(tandemfs_open(mount, "/etc", O_RDONLY, 0, &file), -EREMOTE);
    IS(tandemfs_open(mount, "absolute/passwd", O_RDONLY, 0, &file), -EREMOTE);
    IS(tandemfs_open(mount, "..", O_RDONLY, 0, &file), -EREMOTE);
    IS(tandemfs_open(mount, "pipe", O_RDONLY, 0, &file), -EREMOTE);
    HOLDS(file == kept);

    file = opened(mount, "f", O_RDONLY | O_CREAT);
    IS(tandemfs_append(file, "x", 1, &end), -EBADF);
    IS(end, 77);
    /* This connection maps nothing. */
    IS(tandemfs_map(file, 0, 4096, 0, &mapping), -EREMOTE);
    IS(tandemfs_map(file, 0, 4096, 2, &mapping), -EINVAL);
    IS(tandemfs_map(file, 1, UINT64_MAX, 0, &mapping), -EINVAL);
    HOLDS((void *)mapping == (void *)&mapping);
    IS(tandemfs_close(file), 0);

    IS(tandemfs_disconnect(mount), 0);
    mount = kept_mount;
    struct tandemfs_options options = {.size = sizeof options - 1};
    IS(tandemfs_connect(root, &options, &mount, NULL, 0), -EINVAL);
    options = (struct tandemfs_options){.size = sizeof options, .flags = 1 << 30};
    IS(tandemfs_connect(root, &options, &mount, NULL, 0), -EINVAL);
    options = (struct tandemfs_options){.size = sizeof options, .flags = TANDEMFS_UMASK, .umask = 01000};
    IS(tandemfs_connect(root, &options, &mount, sentence, sizeof sentence), -EINVAL);
    HOLDS(mount == kept_mount && sentence[0] != 0);
    options = (struct tandemfs_options){.size = sizeof options, .flags = TANDEMFS_UMASK | TANDEMFS_KEEPS_NOTHING, .umask = 077, .slots = 2};
    mount = connected_with(&options);
    struct stat seen;
    IS(tandemfs_mkdir(mount, "private", 0777), 0);
    IS(stat(on_mount("private"), &seen), 0);
    IS(seen.st_mode, S_IFDIR | 0700);
    IS(tandemfs_disconnect(mount), 0);
}

/* A connection that is refused: with an errno, and a sentence however short its room is. */
static void refused(int errno_expected) {
    struct tandemfs_mount *mount = NULL;
    char whole[300], part[300];
    IS(tandemfs_connect(root, NULL, &mount, whole, sizeof whole), -errno_expected);
    HOLDS(mount == NULL);
    size_t length = strlen(whole);
    for (size_t room = 0; room <= length + 2; room++) {
        memset(part, '#', sizeof part);
        IS(tandemfs_connect(root, NULL, &mount, part, room), -errno_expected);
        size_t stored = room == 0 ? 0 : room - 1 < length ? room - 1 : length;
        HOLDS(memcmp(part, whole, stored) == 0);
        if (room > 0) {
            IS(part[stored], 0);
        }
        IS(part[room > stored + 1 ? room : stored + (room > 0)], '#');
    }
    puts(whole);
}

enum { ROUNDS = 400, THREADS = 2 };
static struct tandemfs_mount *shared_mount;
static struct tandemfs_file *shared_list, *shared_file;
static struct tandemfs_directory *shared_directory;

static void *works(void *argument) {
    int number = (int)(intptr_t)argument;
    char record[17], name[32];
    unsigned char data[3000], back[3000];
    struct tandemfs_attributes found;
    struct tandemfs_entry entry;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t end = 0;
        snprintf(record, sizeof record, "%03d %010d\n", number, round);
        IS(tandemfs_append(shared_list, record, 15, &end), 15);
        IS(end % 15, 0);
        fill(data, sizeof data, (unsigned)(number * ROUNDS + round));
        uint64_t offset = (uint64_t)number * 3000;
        IS(tandemfs_pwrite(shared_file, data, sizeof data, offset), sizeof data);
        IS(tandemfs_pread(shared_file, back, sizeof back, offset), sizeof back);
        HOLDS(memcmp(data, back, sizeof data) == 0);
        snprintf(name, sizeof name, "t%d-%d", number, round % 7);
        struct tandemfs_file *own = NULL;
        IS(tandemfs_open(shared_mount, name, O_RDWR | O_CREAT | O_EXCL, 0600, &own), 0);
        IS(tandemfs_pwrite(own, name, strlen(name), 0), strlen(name));
        IS(tandemfs_fstat(own, &found), 0);
        IS(found.size_bytes, strlen(name));
        IS(tandemfs_close(own), 0);
        IS(tandemfs_stat(shared_mount, name, &found), 0);
        IS(tandemfs_unlink(shared_mount, name), 0);
        IS(tandemfs_stat(shared_mount, name, &found), -ENOENT);
        HOLDS(tandemfs_readdir(shared_directory, &entry) >= 0);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    char record[16];
    int next[THREADS] = {0};
    shared_mount = connected();
    shared_list = opened(shared_mount, "list", O_RDWR | O_CREAT);
    shared_file = opened(shared_mount, "shared", O_RDWR | O_CREAT);
    IS(tandemfs_opendir(shared_mount, ".", &shared_directory), 0);
    for (int number = 0; number < THREADS; number++) {
        IS(pthread_create(&all[number], NULL, works, (void *)(intptr_t)number), 0);
    }
    for (int number = 0; number < THREADS; number++) {
        IS(pthread_join(all[number], NULL), 0);
    }
    for (uint64_t at = 0; at < (uint64_t)ROUNDS * THREADS; at++) {
        int number, round;
        IS(tandemfs_pread(shared_list, record, 15, at * 15), 15);
        record[15] = 0;
        IS(sscanf(record, "%d %d\n", &number, &round), 2);
        HOLDS(number >= 0 && number < THREADS);
        IS(round, next[number]++);
    }
    IS(tandemfs_closedir(shared_directory), 0);
    IS(tandemfs_close(shared_list), 0);
    IS(tandemfs_close(shared_file), 0);
    IS(tandemfs_disconnect(shared_mount), 0);
}

/* Every call with handles that are of no use says so; those that end a handle do. */
static void is_ended(struct tandemfs_mount *mount, struct tandemfs_file *file, struct tandemfs_directory *directory) {
    struct tandemfs_attributes found;
    struct tandemfs_space space;
    struct tandemfs_entry entry;
    struct tandemfs_file *made;
    char text[100];
    IS(tandemfs_ping(mount), -ENOTCONN);
    IS(tandemfs_statvfs(mount, &space), -ENOTCONN);
    IS(tandemfs_syncfs(mount), -ENOTCONN);
    IS(tandemfs_open(mount, "g", O_CREAT | O_RDWR, 0600, &made), -ENOTCONN);
    IS(tandemfs_mkdir(mount, "d", 0700), -ENOTCONN);
    IS(tandemfs_unlink(mount, "f"), -ENOTCONN);
    IS(tandemfs_rename(mount, "f", "g", 0), -ENOTCONN);
    IS(tandemfs_stat(mount, "never asked", &found), -ENOTCONN);
    IS(tandemfs_pwrite(file, "x", 1, 0), -ENOTCONN);
    IS(tandemfs_append(file, "x", 1, NULL), -ENOTCONN);
    IS(tandemfs_pread(file, text, 100, 5), -ENOTCONN);
    IS(tandemfs_ftruncate(file, 0), -ENOTCONN);
    IS(tandemfs_fsync(file), -ENOTCONN);
    IS(tandemfs_descriptor(file), -ENOTCONN);
    IS(tandemfs_readdir(directory, &entry), -ENOTCONN);
    IS(tandemfs_close(file), -ENOTCONN);
}

/* The daemon ends under it: the test kills that when it has read a line, and then says so. */
static void daemon_ends(void) {
    struct tandemfs_mount *mount = connected();
    struct tandemfs_file *file = opened(mount, "f", O_RDWR | O_CREAT), *other = opened(mount, "f", O_RDONLY);
    struct tandemfs_directory *directory = NULL;
    IS(tandemfs_opendir(mount, ".", &directory), 0);
    IS(tandemfs_pwrite(file, "0123456789", 10, 0), 10);
    puts("ready");
    fflush(stdout);
    getchar();
    is_ended(mount, file, directory);
    IS(tandemfs_close(other), -ENOTCONN);
    IS(tandemfs_closedir(directory), 0);
    IS(tandemfs_disconnect(mount), 0);
    /* Only a new connection says whether there is a daemon again. */
    IS(tandemfs_connect(root, NULL, &mount, NULL, 0) < 0, 1);
}

static int exit_status(pid_t child) {
    int status;
    IS(waitpid(child, &status, 0), child);
    return status;
}

/* [CAP3] */
static void forks(void) {
    struct tandemfs_mount *mount = connected();
    struct tandemfs_file *file = opened(mount, "f", O_RDWR | O_CREAT);
    struct tandemfs_directory *directory = NULL;
    char text[16] = {0};
    IS(tandemfs_opendir(mount, ".", &directory), 0);
    IS(tandemfs_pwrite(file, "0123456789", 10, 0), 10);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        is_ended(mount, file, directory);
        IS(tandemfs_closedir(directory), -ENOTCONN);
        IS(tandemfs_disconnect(mount), -ENOTCONN);
        mount = connected();
        file = opened(mount, "f", O_RDWR);
        IS(tandemfs_pread(file, text, 10, 0), 10);
        IS(memcmp(text, "0123456789", 10), 0);
        IS(tandemfs_pwrite(file, "child", 5, 0), 5);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            IS(tandemfs_pwrite(file, "x", 1, 0), -ENOTCONN);
            _exit(0);
        }
        IS(exit_status(grandchild), 0);
        IS(tandemfs_close(file), 0);
        IS(tandemfs_disconnect(mount), 0);
        fflush(stdout);
        _exit(0);
    }
    IS(exit_status(child), 0);
    /* The child has ended nothing of its parent's. */
    struct tandemfs_entry entry;
    IS(tandemfs_pread(file, text, 10, 0), 10);
    IS(memcmp(text, "child56789", 10), 0);
    IS(tandemfs_readdir(directory, &entry), 1);
    IS(tandemfs_closedir(directory), 0);
    IS(tandemfs_close(file), 0);
    IS(tandemfs_disconnect(mount), 0);
}

enum { MAPPED = 1 << 20 };

/* A mount that lends its memory, for loads and stores. */
static void maps(void) {
    struct tandemfs_options options = {.size = sizeof options, .flags = TANDEMFS_LOADS | TANDEMFS_STORES | TANDEMFS_MAPS};
    struct tandemfs_mount *mount = connected_with(&options);
    uint32_t abilities = 0;
    IS(tandemfs_abilities(mount, &abilities), 0);
    IS(abilities, TANDEMFS_LOADS | TANDEMFS_STORES | TANDEMFS_MAPS | TANDEMFS_MAPS_FOR_STORES | TANDEMFS_DESCRIPTORS);
    unsigned char *data = malloc(MAPPED), *back = calloc(1, MAPPED);
    fill(data, MAPPED, 5);
    struct tandemfs_file *file = opened(mount, "f", O_RDWR | O_CREAT);
    IS(tandemfs_pwrite(file, data, MAPPED, 0), MAPPED);
    /* Overwrites again and again are stores under a lease. */
    for (unsigned round = 0; round < 2000; round++) {
        fill(data + 8192, 4096, round);
        IS(tandemfs_pwrite(file, data + 8192, 4096, 8192), 4096);
    }
    IS(tandemfs_fdatasync(file), 0);

    struct tandemfs_mapping *loads = NULL, *stores = NULL;
    void *address = NULL;
    IS(tandemfs_map(file, 0, MAPPED, 0, &loads), 0);
    IS(tandemfs_mapping_address(loads, &address), 0);
    HOLDS(memcmp(address, data, MAPPED) == 0);
    IS(tandemfs_mapping_load(loads, 4096, back, 4096), 0);
    HOLDS(memcmp(back, data + 4096, 4096) == 0);
    IS(tandemfs_mapping_load(loads, MAPPED - 1, back, 2), -EINVAL);
    IS(tandemfs_mapping_load(loads, UINT64_MAX, back, 2), -EINVAL);
    IS(tandemfs_mapping_load(loads, 0, back, SIZE_MAX), -EINVAL);
    IS(tandemfs_mapping_load(loads, 0, NULL, 1), -EFAULT);
    IS(tandemfs_mapping_address(loads, NULL), -EFAULT);
    IS(tandemfs_mapping_store(loads, 0, back, 1), -EACCES);
    IS(tandemfs_mapping_store_word(loads, 0, 1), -EACCES);
    IS(tandemfs_map(file, 1, 10, 0, &stores), -EINVAL);
    IS(tandemfs_map(file, 0, 2 * MAPPED, 0, &stores), -EINVAL);

    IS(tandemfs_map(file, 0, MAPPED, TANDEMFS_MAP_WRITABLE, &stores), 0);
    IS(tandemfs_close(file), 0);
    IS(tandemfs_mapping_address(stores, &address), 0);
    fill(data, MAPPED / 2, 9);
    memcpy(address, data, MAPPED / 2);
    IS(tandemfs_mapping_sync(stores, 0, MAPPED / 2), 0);
    fill(data + MAPPED / 2, 4096, 10);
    IS(tandemfs_mapping_store(stores, MAPPED / 2, data + MAPPED / 2, 4096), 0);
    IS(tandemfs_mapping_store(stores, 0, NULL, 4096), -EFAULT);
    IS(tandemfs_mapping_store(stores, MAPPED, data, 1), -EINVAL);
    uint64_t word = 0x0123456789abcdef;
    memcpy(data + MAPPED - 8, &word, 8);
    IS(tandemfs_mapping_store_word(stores, MAPPED - 8, word), 0);
    IS(tandemfs_mapping_store_word(stores, MAPPED - 4, word), -EINVAL);
    IS(tandemfs_mapping_sync(stores, 0, MAPPED), 0);
    IS(tandemfs_mapping_sync(stores, 0, MAPPED + 1), -EINVAL);
    IS(tandemfs_mapping_address(loads, &address), 0);
    HOLDS(memcmp(address, data, MAPPED) == 0);

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *none = &none;
        IS(tandemfs_mapping_load(stores, 0, back, 1), -ENOTCONN);
        IS(tandemfs_mapping_sync(stores, 0, 1), -ENOTCONN);
        IS(tandemfs_mapping_address(loads, &none), -ENOTCONN);
        HOLDS(none == &none);
        IS(tandemfs_unmap(loads), -ENOTCONN);
        IS(tandemfs_unmap(stores), -ENOTCONN);
        _exit(0);
    }
    IS(exit_status(child), 0);
    IS(tandemfs_unmap(loads), 0);
    IS(tandemfs_unmap(stores), 0);
    int descriptor = open(on_mount("f"), O_RDONLY);
    IS(read(descriptor, back, MAPPED), MAPPED);
    HOLDS(memcmp(back, data, MAPPED) == 0);
    close(descriptor);
    IS(tandemfs_disconnect(mount), 0);
    free(data);
    free(back);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"names", names},       {"bytes", bytes}, {"listing", listing},         {"nulls", nulls}, {"failures", failures},
                 {"threads", threads},   {"forks", forks}, {"daemon_ends", daemon_ends}, {"maps", maps}};
    if (count < 3) {
        return 2;
    }
    root = arguments[2];
    if (strcmp(arguments[1], "refused") == 0 && count == 4) {
        refused(atoi(arguments[3]));
        return 0;
    }
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        if (strcmp(arguments[1], parts[part].name) == 0) {
            parts[part].run();
            return 0;
        }
    }
    return 2;
}
