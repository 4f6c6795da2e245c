# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# rsync and tar: a tree with links, holes, times, permissions, extended attributes and access control lists, there and back.
cases+=(rsync rsync_killed tar tar_killed)
once+=(rsync_killed tar_killed)

# make_tree DIRECTORY
make_tree() {
  mkdir -p "$1"
  cp -a "$sources/crates" "$1/"
  ln "$1/crates/fs/Cargo.toml" "$1/hard"
  ln -s crates "$1/soft"
  mkfifo "$1/fifo"
  truncate -s 64M "$1/hole"
  echo end >>"$1/hole"
  chmod 4711 "$1/hole"
  touch -d '1985-10-26 01:21:00.123456789' "$1/hard"
  setfattr -n user.small -v small "$1/hard"
  setfattr -n user.large -v "$(head -c 3000 /dev/zero | tr '\0' l)" "$1/crates/fs/Cargo.toml"
  setfattr -n user.directory -v yes "$1/crates"
  setfacl -m u:nobody:rw,g:daemon:r "$1/hole"
  setfacl -d -m u:nobody:rx "$1/crates/fs"
  if [ "$EUID" = 0 ]; then
    setfattr -n trusted.root -v only "$1/hard"
    mknod "$1/null" c 1 3
    chown -h 12:34 "$1/soft"
  fi
}

# same_trees A B: names, types, modes, owners, links, attributes, lists; sizes, times, contents and holes of files (rsync leaves the times of
# other things).
same_trees() {
  local tree
  for tree in "$1" "$2"; do
    (
      cd "$tree"
      find . -mindepth 1 -printf '%p %y %m %U:%G %n %l' \( -type f -printf ' %s %T@\n' -o -printf '\n' \) | sort
      find . -type f -print0 | sort -z | xargs -0 sha256sum
      find . -print0 | sort -z | xargs -0 getfattr -h -d -m -
      find . ! -type l -print0 | sort -z | xargs -0 getfacl -n
    ) >"$place/$(basename "$tree").listed"
  done
  cmp "$place/$(basename "$1").listed" "$place/$(basename "$2").listed"
  [ "$(stat -c %b "$2/hole")" -lt 1024 ]
}

app_rsync() {
  make_tree "$mount/source"
  rsync -aHAXS "$mount/source/" "$mount/target/"
  same_trees "$mount/source" "$mount/target"
  rm -r "$mount/source/crates/fs"
  echo more >>"$mount/source/crates/cli/Cargo.toml"
  rsync -aHAXS --inplace --no-whole-file --checksum --delete "$mount/source/" "$mount/target/" 2>"$place/rsync" ||
    rsync -aHAX --inplace --no-whole-file --checksum --delete "$mount/source/" "$mount/target/"
  same_trees "$mount/source" "$mount/target"
  [ -z "$(rsync -aHAXSc --delete --itemize-changes --dry-run "$mount/source/" "$mount/target/")" ]
}

app_tar() {
  make_tree "$mount/in"
  mkdir "$mount/out"
  tar --xattrs --xattrs-include='*' --acls -cSf "$mount/t.tar" -C "$mount/in" .
  tar --xattrs --xattrs-include='*' --acls -xSpf "$mount/t.tar" -C "$mount/out"
  tar -dSf "$mount/t.tar" -C "$mount/out"
  same_trees "$mount/in" "$mount/out"
}
