# Run in an empty directory, as root, on TandemFS and on ext4: both must print the same. Without the commands of the packages acl, attr,
# libcap2-bin, util-linux and python3 it proves nothing.
say() { echo "== $*"; }
try() { "$@" 2>&1 | sed "s|$PWD/||g; s|^[a-z]*: ||"; [ "${PIPESTATUS[0]}" = 0 ] || echo "failed"; }
get() { try getfattr --absolute-names -d -m - -e hex "$@" | sort; }
acl() { try getfacl -p -n "$@"; }
mode() { stat -c '%A %a %u %g %n' "$@"; }
as() { setpriv --reuid="$1" --regid="$1" --clear-groups "${@:2}"; }
umask 022

say user attributes
touch f; mkdir d; ln -s f l; mkfifo p
try setfattr -n user.one -v 1 f
try setfattr -n user.empty f
try setfattr -n user.two -v 'with spaces' f
get f
try setfattr -x user.two f
try setfattr -x user.two f
try getfattr -n user.two f
try setfattr -n user.dir -v d d
get d
try setfattr -h -n user.link -v x l
try setfattr -n user.fifo -v x p
try setfattr -h -n trusted.link -v x l
try getfattr -h -n trusted.link l
try setfattr -n "user.$(printf 'n%.0s' $(seq 250))" -v long f
get f | tail -n 3
try setfattr -n "user.$(printf 'n%.0s' $(seq 251))" -v longer f
try setfattr -n user. -v x f
try setfattr -n nobody.x -v x f
try setfattr -n system.x -v x f
try getfattr -n system.x f

say who sees what
try setfattr -n trusted.t -v secret f
try setfattr -n security.s -v label f
chmod 666 f; chmod 755 .
get f
as 1000 getfattr --absolute-names -d -m - f 2>&1 | sort
try as 1000 setfattr -n trusted.u -v x f
try as 1000 setfattr -n security.u -v x f
try as 1000 setfattr -n user.u -v x f
try as 1000 getfattr -n trusted.t f
chmod 600 f
try as 1000 getfattr -n user.one f
try as 1000 setfattr -n user.one -v 2 f

say access lists
touch a; chmod 640 a
try setfacl -m u:1000:rw,g:50:r a
mode a; acl a
try chmod 600 a
mode a; acl a
try chmod 666 a
acl a
try setfacl -m m::r a
mode a; acl a
try setfacl -x u:1000 a
acl a
try setfacl -b a
mode a; acl a
try getfattr -n system.posix_acl_access a
try setfacl -d -m u:1000:r a
try setfacl -m u:1000:rwx l
acl f
try setfattr -n system.posix_acl_access -v 0x02000000 a
try setfattr -n system.posix_acl_access -v 0x0200000001000600ffffffff a
try setfattr -n system.posix_acl_access -v 0x01000000 a
try setfattr -n system.posix_acl_access -v 0x020000000100 a
try setfattr -n system.posix_acl_access -v hello a
mode a; acl a

say what lists allow
echo text > b; chmod 600 b
try as 1000 cat b
try setfacl -m u:1000:r b
try as 1000 cat b
as 1000 sh -c 'echo more >> b' 2>/dev/null || echo refused
try setfacl -m u:1000:rw b
as 1000 sh -c 'echo more >> b' && cat b
try as 2000 cat b
try setfacl -m g:2000:r b
try as 2000 cat b
try chmod g-r b
try as 2000 cat b
try as 1000 cat b
try as 1000 setfacl -m u:2000:rw b
try as 1000 chmod 777 b

say inheritance
mkdir i
try setfacl -d -m u:1000:rwx,g:50:rx i
try setfacl -m u:1000:rwx i
mode i; acl i
umask 077
touch i/file; mkdir i/dir; mkfifo i/fifo; ln -s x i/link
mode i/*; acl i/file i/dir i/fifo
mkdir i/dir/deeper; touch i/dir/deeper/file
mode i/dir/deeper i/dir/deeper/file; acl i/dir/deeper i/dir/deeper/file
umask 022
as 1000 touch i/by-user
mode i/by-user; acl i/by-user
try setfacl -k i
acl i
touch i/plain; mode i/plain; acl i/plain
try setfacl -d -m u::rwx,g::rx,o::- i
acl i
touch i/minimal; mkdir i/minimal-dir; mode i/minimal i/minimal-dir; acl i/minimal i/minimal-dir
cp -a i/file copied; mode copied; acl copied
mkdir s; chgrp 50 s; chmod 2775 s; setfacl -d -m u:1000:rw s
touch s/f; mkdir s/d
mode s/f s/d; acl s/f s/d
umask 077
mkdir t; setfacl -d -m u:1000:rwx,g:50:rx t
python3 - <<'PY'
import os
for directory, mode in (("t", 0o666), ("t", 0o640), ("s", 0o660), (".", 0o666)):
    nameless = os.open(directory, os.O_TMPFILE | os.O_RDWR, mode)
    os.link(f"/proc/self/fd/{nameless}", f"{directory}/nameless-{mode:o}", src_dir_fd=0, follow_symlinks=True)
PY
umask 022
mode */nameless-* nameless-*; acl */nameless-* nameless-*

say set-id bits and capabilities
cp /bin/true c; chmod 755 c
try setcap cap_net_raw+ep c
try getcap c
echo >> c
try getcap c
try setcap cap_net_raw+ep c
try chown 1000 c
try getcap c
try setcap cap_net_raw+ep c
truncate -s 100 c
try getcap c
cp /bin/true from
for how in 'dd if=/dev/zero of=c bs=4096 count=1 conv=notrunc oflag=direct status=none' 'fallocate -l 20000 c' \
  'python3 -c "import os; os.copy_file_range(os.open(\"from\", 0), os.open(\"c\", 1), 5000)"' 'chgrp 50 c' 'touch c' 'chmod 755 c'; do
  try setcap cap_net_raw+ep c
  sh -c "$how"; echo "$how"; try getcap c
done
rm from
for how in 'echo more >> S' 'truncate -s 10 S' 'fallocate -l 20000 S' 'dd if=/dev/zero of=S bs=10 count=1 conv=notrunc status=none' 'true > S'; do
  echo text > S; chown 0:0 S; chmod 6777 S
  as 1000 sh -c "$how"; echo "$how"; mode S
  chmod 6777 S
  sh -c "$how"; mode S
done
chmod 6777 S; chown 1000 S; mode S
chmod 2666 S; chown 1000 S; mode S
chmod 2777 S; chgrp 1000 S; chown 1000 S; chmod 2777 S
try as 1000 setfacl -m u:5:rwx S; mode S
chgrp 50 S; chmod 2777 S
try as 1000 setfacl -m u:6:rwx S; mode S

say renames and links keep them
ln f f2; mv f f3; get f2; rm f3; get f2
mv d e; get e

python3 - <<'PY'
import os, errno
def attempt(what, call):
    try: print(what, call())
    except OSError as error: print(what, errno.errorcode[error.errno])
open("x", "w").close()
attempt("set 64 KiB", lambda: os.setxattr("x", "user.large", b"v" * 3000))
attempt("create again", lambda: os.setxattr("x", "user.large", b"", os.XATTR_CREATE))
attempt("replace absent", lambda: os.setxattr("x", "user.absent", b"", os.XATTR_REPLACE))
attempt("both, absent", lambda: os.setxattr("x", "user.absent", b"", os.XATTR_REPLACE | os.XATTR_CREATE))
attempt("both, there", lambda: os.setxattr("x", "user.large", b"", os.XATTR_REPLACE | os.XATTR_CREATE))
attempt("replace", lambda: os.setxattr("x", "user.large", b"w" * 3001, os.XATTR_REPLACE))
attempt("64 KiB + 1", lambda: os.setxattr("x", "user.larger", b"v" * 65537))
attempt("name of 256 B", lambda: os.setxattr("x", "user." + "n" * 251, b""))
attempt("empty name", lambda: os.setxattr("x", "", b""))
attempt("list", lambda: sorted(os.listxattr("x")))
before = os.stat("x").st_ctime_ns
import time; time.sleep(0.05)
os.setxattr("x", "user.time", b"1")
print("ctime moves", os.stat("x").st_ctime_ns > before, "mtime stays", os.stat("x").st_mtime_ns < before + 1)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(size, name=b"user.large"):
    buffer = ctypes.create_string_buffer(max(size, 1))
    found = libc.getxattr(b"x", name, buffer if size else None, ctypes.c_size_t(size))
    return found if found >= 0 else errno.errorcode[ctypes.get_errno()]
print("sizes", [raw(size) for size in (0, 1, 3000, 3001, 70000)], raw(0, b"user.absent"))
def names(size):
    buffer = ctypes.create_string_buffer(max(size, 1))
    found = libc.listxattr(b"x", buffer if size else None, ctypes.c_size_t(size))
    return found if found >= 0 else errno.errorcode[ctypes.get_errno()]
print("list sizes", [names(size) for size in (0, 1, 20, 21, 100)])
descriptor = os.open("x", os.O_RDONLY)
os.unlink("x")
attempt("of an unlinked file", lambda: len(os.getxattr(descriptor, "user.large")))
attempt("set on it", lambda: os.setxattr(descriptor, "user.late", b"1"))
attempt("by O_PATH", lambda: os.setxattr(os.open(".", os.O_PATH), "user.x", b""))
PY
