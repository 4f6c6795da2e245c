#!/usr/bin/env python3
"""brick.py DIRECTORY: what a brick of Gluster has of its volume, a line each, in order: name, identity (trusted.gfid), type, permissions, owner, size, target
or SHA-256 of the bytes. A file without an identity is no part of the volume: a brick that dies in the middle of a creation leaves one, on any file system,
since Gluster makes the file and gives it its identity by two calls. Those are named on standard error."""
import errno
import hashlib
import os
import stat
import sys

top = sys.argv[1]
for directory, names, files in os.walk(top):
    names.sort()
    if directory == top and ".glusterfs" in names:
        names.remove(".glusterfs")
    for path in [directory] + [f"{directory}/{name}" for name in sorted(files + [name for name in names if os.path.islink(f"{directory}/{name}")])]:
        found, name = os.lstat(path), os.path.relpath(path, top)
        try:
            identity = os.getxattr(path, "trusted.gfid", follow_symlinks=False).hex()
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            print(name, file=sys.stderr)
            continue
        words = [name, identity, oct(found.st_mode), found.st_uid, found.st_gid]
        if stat.S_ISREG(found.st_mode):
            with open(path, "rb") as file:
                words += [found.st_size, hashlib.file_digest(file, "sha256").hexdigest()]
        elif stat.S_ISLNK(found.st_mode):
            words.append(os.readlink(path))
        print(*words)
