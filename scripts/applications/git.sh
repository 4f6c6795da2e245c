# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# git: clone, commits, gc, fsck; worktrees of a bare repository.
cases+=(git git_killed git_worktrees)
once+=(git_killed)

app_git() {
  git clone -q --no-hardlinks "$sources" "$mount/clone"
  cd "$mount/clone"
  git config user.email test@localhost
  git config user.name test
  local number before
  before=$(git rev-list --count HEAD)
  for number in {1..20}; do
    echo "$number" >"file-$number"
    git add .
    git commit -qm "$number"
  done
  git gc -q --prune=now
  git fsck --full --strict >"$place/git" 2>&1
  [ -z "$(git status --porcelain)" ]
  [ "$(git rev-list --count HEAD)" = $((before + 20)) ]
  cd "$sources"
}

app_git_worktrees() {
  local number
  git clone -q --bare "$sources" "$mount/bare.git"
  for number in 1 2 3; do git -C "$mount/bare.git" worktree add -q -b "tree-$number" "$mount/tree-$number"; done
  diff -r --exclude=.git "$mount/tree-1" "$mount/tree-3"
  git -C "$mount/bare.git" worktree remove "$mount/tree-2"
  git -C "$mount/bare.git" fsck >"$place/git" 2>&1
}
