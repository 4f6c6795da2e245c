#!/usr/bin/env bash
# deb.sh [VERSION [DIRECTORY]]: the Debian packages of what `make deb` has built in target/release, examined by lintian. VERSION is that of the
# packages (that of the workspace, and revision 1), DIRECTORY where they go (target/deb; cargo-deb removes other versions from target/debian).
# DEBFULLNAME and DEBEMAIL say who maintains them.
#
# What is in them stands in the Cargo.toml of the crates cli, bench and c-api, as cargo-deb reads it. Added here is what it does not know: files
# that the programs write themselves, `${binary:Version}` in relations, `${shlibs:Depends}` of a library, and the control files `shlibs` and
# `md5sums`.
set -euo pipefail
umask 022

cd "$(dirname "$0")/.."
fail() { echo "deb: $*" >&2; exit 1; }

cargo_deb=target/tools/bin/cargo-deb
for program in "$cargo_deb" target/release/tandemfs target/release/tandemfs-bench; do
  [ -x "$program" ] || fail "there is no $program: make deb makes it"
done
upstream=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
version=${1:-$upstream-1}
upstream=${version%-*}
directory=${2:-target/deb}
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
maintainer="${DEBFULLNAME:-The TandemFS authors} <${DEBEMAIL:-tandemfs@localhost}>"
# The same source gives the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

# ---- files that are made ----------------------------------------------------------------------------------------------------------

stage=target/deb-stage # as Cargo.toml names it
rm -rf "$stage"
mkdir -p "$stage"/{units,udev,completions,bench-man} "$directory"
target/release/tandemfs man --output "$stage/man"
target/release/tandemfs-bench man --output "$stage/bench-man"
for shell in bash zsh fish; do target/release/tandemfs completions "$shell" >"$stage/completions/$shell"; done
for file in contrib/systemd/*; do sed 's|/usr/local/bin/|/usr/bin/|g' "$file" >"$stage/units/${file##*/}"; done
sed 's|/usr/local/bin/|/usr/bin/|g; s|^# Install as [^;]*; then:|# For drives that are there already:|' contrib/udev/61-tandemfs.rules >"$stage/udev/61-tandemfs.rules"
! grep -rn '/usr/local' "$stage/units" "$stage/udev" || fail 'these lines name a place that packages do not use'
sed "s|@MULTIARCH@|$multiarch|; s|@UPSTREAM@|$upstream|" contrib/debian/tandemfs.pc >"$stage/tandemfs.pc"
gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
cat >"$stage/changelog.Debian" <<END
tandemfs ($version) unstable; urgency=medium

  * Packages of this release; what has changed is in changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S %z')
END
third_party() { scripts/deb-third-party.py "${@:2}" | gzip -9n >"$stage/$1.third-party.gz"; } # third_party PACKAGE CRATE...
third_party tandemfs tandemfs tandemfs-preload
third_party tandemfs-bench tandemfs-bench
third_party libtandemfs0 tandemfs-c

# ---- the packages -----------------------------------------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/source/debian" # dpkg-shlibdeps looks for it
touch "$work/source/debian/control"
packages=()

package() { # package NAME OPTION...: made by cargo-deb, then completed
  local name=$1 made tree=$work/$1 library shlibs
  "$cargo_deb" deb --quiet --fast --locked --no-build --deb-version "$version" --maintainer "$maintainer" --output "$work/" "${@:2}" >/dev/null
  made=$(echo "$work/$name"_*.deb)
  dpkg-deb --raw-extract "$made" "$tree"
  sed -i "s|\${binary:Version}|$version|g" "$tree/DEBIAN/control"
  if grep -qF '${shlibs:Depends}' "$tree/DEBIAN/control"; then
    library=$(realpath "$tree"/usr/lib/*/*.so.*)
    shlibs=$(cd "$work/source" && dpkg-shlibdeps -O "$library" | sed -n 's/^shlibs:Depends=//p')
    [ -n "$shlibs" ] || fail "dpkg-shlibdeps knows no dependencies of $library"
    sed -i "s|\${shlibs:Depends}|$shlibs|" "$tree/DEBIAN/control"
  fi
  if [ -e "contrib/debian/$name.shlibs" ]; then
    sed "s|@UPSTREAM@|$upstream|" "contrib/debian/$name.shlibs" >"$tree/DEBIAN/shlibs"
  fi
  [ "$name" != libtandemfs-dev ] || sed -i 's/^Description: .*/& (development files)/' "$tree/DEBIAN/control"
  (cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  dpkg-deb --root-owner-group -Zxz --build "$tree" "$directory/${made##*/}" >/dev/null
  packages+=("$directory/${made##*/}")
}

rm -f "$directory"/{tandemfs,tandemfs-bench,libtandemfs0,libtandemfs-dev}_*.deb
package tandemfs -p tandemfs
package tandemfs-bench -p tandemfs-bench
package libtandemfs0 -p tandemfs-c --variant library --multiarch=same
package libtandemfs-dev -p tandemfs-c --multiarch=same

soname=$(readelf -d "$work"/libtandemfs0/usr/lib/*/libtandemfs.so.0 | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = libtandemfs.so.0 ] || fail "the library calls itself '$soname', its package contains libtandemfs.so.0"

lintian --allow-root --fail-on error,warning "${packages[@]}"
printf '%s\n' "${packages[@]}"
