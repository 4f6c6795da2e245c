/* Keeps notes in a directory of a mounted TandemFS, by shared memory: notes MOUNTPOINT.
 *
 *     cc -o notes notes.c -ltandemfs
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tandemfs.h>

/* Ends the program if a call has failed. */
static int64_t done(const char *what, int64_t result) {
    if (result < 0) {
        fprintf(stderr, "notes: %s: %s\n", what, strerror((int)-result));
        exit(1);
    }
    return result;
}

int main(int count, char **arguments) {
    struct tandemfs_mount *mount;
    struct tandemfs_file *list;
    struct tandemfs_directory *directory;
    struct tandemfs_entry entry;
    struct tandemfs_attributes attributes;
    char sentence[256];
    if (count != 2) {
        fprintf(stderr, "usage: notes MOUNTPOINT\n");
        return 2;
    }
    if (tandemfs_connect(arguments[1], NULL, &mount, sentence, sizeof sentence) < 0) {
        fprintf(stderr, "notes: %s\n", sentence);
        return 1;
    }
    int made = tandemfs_mkdir(mount, "notes", 0755);
    if (made != -EEXIST) {
        done("notes", made);
    }

    /* Appended lines are durable when the call returns, if the mount is a strict one; otherwise after tandemfs_fdatasync. */
    uint64_t end;
    done("notes/list", tandemfs_open(mount, "notes/list", O_RDWR | O_APPEND | O_CREAT, 0666, &list));
    done("append", tandemfs_append(list, "milk\n", 5, NULL));
    done("append", tandemfs_append(list, "bread\n", 6, &end));
    done("sync", tandemfs_fdatasync(list));

    char *text = malloc(end);
    if (text == NULL) {
        return 1;
    }
    for (uint64_t at = 0; at < end;) {
        int64_t bytes = done("read", tandemfs_pread(list, text + at, end - at, at));
        if (bytes == 0) {
            end = at; /* somebody has cut it */
        }
        at += (uint64_t)bytes;
    }
    fwrite(text, 1, end, stdout);
    free(text);
    done("close", tandemfs_close(list));

    done("notes", tandemfs_opendir(mount, "notes", &directory));
    while (done("listing", tandemfs_readdir(directory, &entry)) > 0) {
        printf("%s is inode %" PRIu64 "\n", entry.name, entry.inode);
    }
    done("notes", tandemfs_closedir(directory));

    int found = tandemfs_stat(mount, "notes/nothing", &attributes);
    if (found == -ENOENT) {
        printf("as a system call says it: %s\n", strerror(-found));
    } else {
        done("notes/nothing", found);
        printf("%" PRIu64 " bytes\n", attributes.size_bytes);
    }
    done("disconnect", tandemfs_disconnect(mount));
    return 0;
}
