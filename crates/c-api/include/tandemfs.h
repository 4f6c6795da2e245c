/*
 * Files of a mounted TandemFS by shared memory, without a system call for each request: link with -ltandemfs.
 *
 * The mount needs the option `direct`. What a call says, and what is durable when it returns, is what the same call by the mount would say. Programs
 * may use both ways at once. Paths are relative to the root of the mount and do not begin with a slash.
 *
 * Errors. A function that can fail returns a negative errno if it fails, such as -ENOENT, and 0 or what its comment says if it succeeds. The variable
 * errno is not set. Answers are stored through pointers only if a call succeeds. Besides what the system call of the same name says:
 *   EREMOTE          only the kernel can do this call, by the path of the mount: an absolute link, ".." above the root, something mounted
 *                    inside, a device or a pipe. Nothing has changed.
 *   ENOTCONN         the daemon has ended, or has closed this connection, as it does when the credentials of the process change; or the handle is
 *                    that of a parent. Free the handles and connect anew.
 *   ENOMEM           the shared memory of this connection is in use by other calls, and stayed so
 *   EPROTO           the daemon returned what no daemon returns
 *   EFAULT           a pointer is null
 *   ENOTRECOVERABLE  a bug of this library, which it has reported on standard error
 *
 * Memory. Pointers that are not null must point to what they stand for during the call, and nobody else may change it meanwhile. Where there are no
 * bytes to transfer a pointer to them may be null. A handle is freed by the function that ends it, and by nothing else, once.
 *
 * Threads. All functions may be called by several threads at once, with the same handles; but while a function ends a handle, and after that, no
 * other call may use it. Not for signal handlers. A thread inside must not be cancelled asynchronously.
 *
 * Forks. A forked child cannot use handles of its parent: functions return -ENOTCONN, those that end a handle free it nevertheless. It may connect
 * anew if its parent had one thread; otherwise only behind exec, as with most functions. Processes made by clone(2) or vfork(2), past fork(3), must not call any function.
 *
 * Connections. A process has one connection to a mount: the daemon ends the older one where it connects by another library, too. So not for programs
 * under `tandemfs run`, which connects by itself.
 *
 * Not here: extended attributes, owners, times, locks, special files. They go by the path of the mount, or by tandemfs_descriptor.
 */

#ifndef TANDEMFS_H
#define TANDEMFS_H

/* Generated from crates/c-api; `cargo test -p tandemfs-c --test header` says how to renew it. */

#include <stddef.h>
#include <stdint.h>

/**
 * The interface of this header: `major << 16 | minor`. A library with the same major and a minor that is not smaller has all that is here.
 */
#define TANDEMFS_VERSION 1

/**
 * Of `tandemfs_options`: load bytes of files from the drive's memory, where the mount lends it (`-o direct=GROUP`). It installs a handler
 * for SIGBUS, which passes on what is not its own. `tandemfs_abilities` says whether it is so.
 */
#define TANDEMFS_LOADS 1

/**
 * Of `tandemfs_options`: store to the drive's memory under leases what is overwritten or appended to again and again, where the mount lends it for that (`-o
 * direct_stores=GROUP`). A stray store of this process to that memory can destroy the file system.
 */
#define TANDEMFS_STORES 2

/**
 * Of `tandemfs_options`: map files (`tandemfs_map`), where the mount lends its memory.
 */
#define TANDEMFS_MAPS 4

/**
 * Of `tandemfs_options`: hand calls back with `EREMOTE` on files and directories that somebody watches by inotify or fanotify, which see
 * calls by the mount alone.
 */
#define TANDEMFS_LEAVES_WATCHED 8

/**
 * Of `tandemfs_options`: ask the daemon each time, and keep no answers.
 */
#define TANDEMFS_KEEPS_NOTHING 16

/**
 * Of `tandemfs_options`: `umask` holds, and not the mask of the process.
 */
#define TANDEMFS_UMASK 32

/**
 * Of `tandemfs_abilities` alone: files can be mapped for stores, too.
 */
#define TANDEMFS_MAPS_FOR_STORES 64

/**
 * Of `tandemfs_abilities` alone: there is `tandemfs_descriptor`.
 */
#define TANDEMFS_DESCRIPTORS 128

/**
 * Of `tandemfs_map`: for stores, too.
 */
#define TANDEMFS_MAP_WRITABLE 1

/**
 * Room for a name of a directory, with the NUL at its end.
 */
#define TANDEMFS_NAME_BYTES 256

/**
 * A listing of a directory.
 */
struct tandemfs_directory;

/**
 * An open file.
 */
struct tandemfs_file;

/**
 * A mapped range of a file.
 */
struct tandemfs_mapping;

/**
 * A mount that this process is connected to.
 */
struct tandemfs_mount;

/**
 * What a connection asks for. Set `size` to the size of this structure, and all that you do not want to choose to 0.
 */
struct tandemfs_options {
  /**
   * `sizeof(struct tandemfs_options)`.
   */
  size_t size;
  /**
   * `TANDEMFS_LOADS` and others, or 0.
   */
  uint32_t flags;
  /**
   * Threads that may have a request in flight at once, 1 to 64; further ones wait for each other. The daemon may give fewer. 0 for 32.
   */
  uint32_t slots;
  /**
   * Bytes of shared memory for data, in whole pages. The daemon may give less. 0 for 8 MiB.
   */
  uint64_t data_bytes;
  /**
   * Milliseconds that a call waits for shared memory that other calls have, before it fails with `ENOMEM`. 0 for 1000.
   */
  uint32_t memory_wait_ms;
  /**
   * With `TANDEMFS_UMASK`: permissions that new files do not get.
   */
  uint32_t umask;
};

/**
 * What statvfs(3) says of a mount.
 */
struct tandemfs_space {
  /**
   * Bytes of a unit.
   */
  uint64_t unit_bytes;
  /**
   * Units in all.
   */
  uint64_t units;
  /**
   * Free units.
   */
  uint64_t free;
  /**
   * Units that are free for users.
   */
  uint64_t available;
  /**
   * Inodes in all.
   */
  uint64_t files;
  /**
   * Free inodes.
   */
  uint64_t files_free;
  /**
   * Longest name in bytes.
   */
  uint64_t name_bytes_max;
};

/**
 * A time since 1970.
 */
struct tandemfs_time {
  /**
   * Seconds.
   */
  int64_t seconds;
  /**
   * And nanoseconds, below one second.
   */
  uint32_t nanoseconds;
};

/**
 * What stat(2) says of a file.
 */
struct tandemfs_attributes {
  /**
   * The number of the inode.
   */
  uint64_t inode;
  /**
   * Length in bytes.
   */
  uint64_t size_bytes;
  /**
   * Space in units of 512 B.
   */
  uint64_t space_512;
  /**
   * The device of a special file.
   */
  uint64_t device;
  /**
   * Type and permissions: `S_ISDIR` and its like take it.
   */
  uint32_t mode;
  /**
   * Names.
   */
  uint32_t links;
  /**
   * Owner.
   */
  uint32_t user;
  /**
   * Group.
   */
  uint32_t group;
  /**
   * The best size of a transfer.
   */
  uint32_t block_bytes;
  /**
   * When it was read last, as the mount keeps that.
   */
  struct tandemfs_time accessed;
  /**
   * When its bytes were changed last.
   */
  struct tandemfs_time modified;
  /**
   * When it was changed last.
   */
  struct tandemfs_time changed;
  /**
   * When it was made.
   */
  struct tandemfs_time created;
};

/**
 * An entry of a directory.
 */
struct tandemfs_entry {
  /**
   * Its inode.
   */
  uint64_t inode;
  /**
   * Where a listing goes on behind it, for `tandemfs_seekdir`.
   */
  uint64_t cookie;
  /**
   * The type of the file: `DT_DIR` and its like.
   */
  uint8_t kind;
  /**
   * Its name.
   */
  char name[TANDEMFS_NAME_BYTES];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The interface of the library that runs, as `TANDEMFS_VERSION` is that of the header.
 */
uint32_t tandemfs_version(void);

/**
 * The release of the library, as "0.1.0". It stays.
 */
const char *tandemfs_release(void);

/**
 * Connects to the mount whose mountpoint is `directory`, and stores a handle in `*mount`. `options` may be null. A process has one connection
 * to a mount: if it has one already, that is meant, as it is, and `options` say nothing.
 *
 * Where it fails and `sentence` is not null, a sentence that says why is stored there, in at most `sentence_bytes` bytes with the NUL. The mount
 * itself can still be used. `ENODEV`: no TandemFS is mounted there. `EINVAL`: not the root of a mount, or options that cannot be.
 * `ECONNREFUSED`: the mount has no direct door (`-o direct`). `EREMOTE`: this way to the mount has rules that the door does not know. `EPERM`,
 * and others that the daemon says: it refuses this process. `EPROTONOSUPPORT`: the daemon is of another release. `EPROTO`, `ETIMEDOUT`: it
 * answers wrongly, or not at all.
 */
int tandemfs_connect(const char *directory,
                     const struct tandemfs_options *options,
                     struct tandemfs_mount **mount,
                     char *sentence,
                     size_t sentence_bytes);

/**
 * Frees a handle. The connection ends with the last handle of it and of its files; those stay usable.
 */
int tandemfs_disconnect(struct tandemfs_mount *mount);

/**
 * Asks the daemon for nothing. `ENOTCONN`: it is gone, or has ended this connection.
 */
int tandemfs_ping(const struct tandemfs_mount *mount);

/**
 * Stores in `*abilities` what this connection can do: `TANDEMFS_LOADS`, `TANDEMFS_STORES`, `TANDEMFS_MAPS`, `TANDEMFS_MAPS_FOR_STORES`,
 * `TANDEMFS_DESCRIPTORS`.
 */
int tandemfs_abilities(const struct tandemfs_mount *mount,
                       uint32_t *abilities);

/**
 * Permissions that files made from now on do not get, up to 0777. The connection does not follow umask(2).
 */
int tandemfs_umask(const struct tandemfs_mount *mount, uint32_t umask);

/**
 * As statvfs(3).
 */
int tandemfs_statvfs(const struct tandemfs_mount *mount, struct tandemfs_space *space);

/**
 * As syncfs(2).
 */
int tandemfs_syncfs(const struct tandemfs_mount *mount);

/**
 * Opens a file as open(2), with its flags and, where a file is made, permissions, and stores a handle in `*file`. Also of a directory. There is no
 * offset. With `O_APPEND` every write goes to the end.
 */
int tandemfs_open(const struct tandemfs_mount *mount,
                  const char *path,
                  int flags,
                  uint32_t mode,
                  struct tandemfs_file **file);

/**
 * As stat(2).
 */
int tandemfs_stat(const struct tandemfs_mount *mount, const char *path, struct tandemfs_attributes *attributes);

/**
 * As lstat(2): of a link itself.
 */
int tandemfs_lstat(const struct tandemfs_mount *mount, const char *path, struct tandemfs_attributes *attributes);

/**
 * As access(2), with `R_OK` and its like, by the real ids of the process.
 */
int tandemfs_access(const struct tandemfs_mount *mount, const char *path, uint32_t mode);

/**
 * As truncate(2).
 */
int tandemfs_truncate(const struct tandemfs_mount *mount, const char *path, uint64_t length);

/**
 * As chmod(2).
 */
int tandemfs_chmod(const struct tandemfs_mount *mount, const char *path, uint32_t mode);

/**
 * As unlink(2).
 */
int tandemfs_unlink(const struct tandemfs_mount *mount, const char *path);

/**
 * As renameat2(2) with its flags, 0 for rename(2).
 */
int tandemfs_rename(const struct tandemfs_mount *mount, const char *from, const char *to, uint32_t flags);

/**
 * As mkdir(2).
 */
int tandemfs_mkdir(const struct tandemfs_mount *mount, const char *path, uint32_t mode);

/**
 * As rmdir(2).
 */
int tandemfs_rmdir(const struct tandemfs_mount *mount, const char *path);

/**
 * As link(2): `path` becomes another name of the file `from`. A link is not followed.
 */
int tandemfs_link(const struct tandemfs_mount *mount, const char *from, const char *path);

/**
 * As symlink(2).
 */
int tandemfs_symlink(const struct tandemfs_mount *mount, const char *target, const char *path);

/**
 * As readlink(2): stores at most `into_bytes` bytes, without a NUL, and returns how many.
 */
int64_t tandemfs_readlink(const struct tandemfs_mount *mount, const char *path, char *into, size_t into_bytes);

/**
 * As close(2), and frees the handle, whatever it returns. Mappings of the file stay.
 */
int tandemfs_close(struct tandemfs_file *file);

/**
 * As pread(2): returns how many bytes were read, 0 at the end of the file.
 */
int64_t tandemfs_pread(const struct tandemfs_file *file, void *into, size_t length, uint64_t offset);

/**
 * As pwrite(2): returns how many bytes were written. They are durable then where the mount promises that of a write.
 */
int64_t tandemfs_pwrite(const struct tandemfs_file *file, const void *from, size_t length, uint64_t offset);

/**
 * Writes at the end of the file, as pwritev2(2) with `RWF_APPEND`: returns how many bytes, and stores the offset behind them in `*end`, which may be
 * null. Up to 1 MiB no write of others comes between.
 */
int64_t tandemfs_append(const struct tandemfs_file *file,
                        const void *from,
                        size_t length,
                        uint64_t *end);

/**
 * As fstat(2).
 */
int tandemfs_fstat(const struct tandemfs_file *file, struct tandemfs_attributes *attributes);

/**
 * As ftruncate(2).
 */
int tandemfs_ftruncate(const struct tandemfs_file *file, uint64_t length);

/**
 * As fallocate(2), with its flags.
 */
int tandemfs_fallocate(const struct tandemfs_file *file, uint32_t flags, uint64_t offset, uint64_t length);

/**
 * As fsync(2).
 */
int tandemfs_fsync(const struct tandemfs_file *file);

/**
 * As fdatasync(2).
 */
int tandemfs_fdatasync(const struct tandemfs_file *file);

/**
 * Returns a descriptor of the mount for this file, with the same access and flags and an offset of its own, for calls that are not here: locks,
 * extended attributes, mmap(2). Also of a directory. It is closed on exec, and yours to close.
 */
int tandemfs_descriptor(const struct tandemfs_file *file);

/**
 * Opens a directory to list it, as opendir(3), and stores a handle in `*directory`.
 */
int tandemfs_opendir(const struct tandemfs_mount *mount, const char *path, struct tandemfs_directory **directory);

/**
 * Stores the next entry in `*entry`, among them "." and "..", and returns 1; returns 0 at the end, where nothing is stored.
 */
int tandemfs_readdir(const struct tandemfs_directory *directory,
                     struct tandemfs_entry *entry);

/**
 * Goes on behind the entry with this cookie; 0 is the start.
 */
int tandemfs_seekdir(const struct tandemfs_directory *directory, uint64_t cookie);

/**
 * Closes a listing and frees its handle.
 */
int tandemfs_closedir(struct tandemfs_directory *directory);

/**
 * Maps a range of a file that lies in the drive's memory, for loads or, with `TANDEMFS_MAP_WRITABLE`, for stores as well, and stores a handle in
 * `*mapping`. It begins at a multiple of 4096 B (2 MiB on a device that maps in such steps) and ends with the file at the latest. The file may be closed.
 * Others change its bytes at any time, as those of any shared mapping.
 *
 * `EREMOTE`: map it by the mount (`tandemfs_descriptor`), since the connection maps nothing or the kernel has pages of the file. `EBADF`, `EACCES`: it
 * is not open for reading, for writing. `EINVAL`: an empty range, one that begins elsewhere or ends behind the file; other flags. `EOPNOTSUPP`: the home of
 * the file is not the drive's memory. `ENOSPC`: there is no room for its bytes there. `ENOMEM`: it lies in too many pieces, or there
 * are too many mappings.
 */
int tandemfs_map(const struct tandemfs_file *file,
                 uint64_t offset,
                 uint64_t length,
                 uint32_t flags,
                 struct tandemfs_mapping **mapping);

/**
 * Stores the address of the first byte in `*address`. It is valid until the mapping is unmapped, for as many bytes as were mapped. Only to a
 * writable one can be stored. A load of memory that cannot be read is a SIGBUS. Forked children have writable mappings, too, and no others.
 */
int tandemfs_mapping_address(const struct tandemfs_mapping *mapping,
                             void **address);

/**
 * Copies bytes out of a mapping, from an offset in it. `EINVAL`: behind its end. `EIO`: memory that cannot be read, instead of a SIGBUS.
 */
int tandemfs_mapping_load(const struct tandemfs_mapping *mapping,
                          uint64_t offset,
                          void *into,
                          size_t length);

/**
 * Copies bytes into a mapping, at an offset in it; others see them at once. `EACCES`: it is for loads alone. `EINVAL`: behind its end. `EIO`: memory that
 * cannot be written.
 */
int tandemfs_mapping_store(const struct tandemfs_mapping *mapping,
                           uint64_t offset,
                           const void *from,
                           size_t length);

/**
 * Stores 8 bytes at a multiple of 8 in a mapping, at once: a crash leaves the old ones or these. Errors as `tandemfs_mapping_store`, and `EINVAL` at
 * another offset.
 */
int tandemfs_mapping_store_word(const struct tandemfs_mapping *mapping,
                                uint64_t offset,
                                uint64_t word);

/**
 * Makes durable what this process has stored to a range of a mapping, as msync(2) with `MS_SYNC`, without a system call.
 */
int tandemfs_mapping_sync(const struct tandemfs_mapping *mapping,
                          uint64_t offset,
                          uint64_t length);

/**
 * Unmaps a mapping and frees its handle. A forked child frees the handle alone, and has a writable mapping until it ends or executes another
 * program.
 */
int tandemfs_unmap(struct tandemfs_mapping *mapping);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TANDEMFS_H */
