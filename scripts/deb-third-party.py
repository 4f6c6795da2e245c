#!/usr/bin/env python3
"""deb-third-party.py CRATE...: the crates of others that these contain, with their licences, as Debian packages have to say it."""

import json
import pathlib
import subprocess
import sys

TARGET = "x86_64-unknown-linux-gnu"


def cargo(*words):
    return subprocess.run(["cargo", *words, "--locked"], check=True, stdout=subprocess.PIPE, text=True).stdout


def texts(manifest):
    """The licence texts beside a manifest."""
    for path in sorted(manifest.parent.iterdir()):
        name = path.name.upper()
        if path.is_file() and name.startswith(("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")):
            yield path.name, path.read_text(errors="replace").rstrip()


def main():
    known = json.loads(cargo("metadata", "--format-version=1", f"--filter-platform={TARGET}"))["packages"]
    packages = {(package["name"], package["version"]): package for package in known}
    chosen = [word for crate in sys.argv[1:] for word in ("-p", crate)]
    lines = cargo("tree", *chosen, "--edges=normal", "--prefix=none", f"--target={TARGET}", "--format={p}").splitlines()
    contained = {(name, version.removeprefix("v")) for name, version, *_ in (line.split() for line in lines if line)}
    seen = {}
    for key in sorted(contained):
        package = packages[key]
        if package["source"] is None:
            continue  # of this repository
        print("=" * 80)
        print(f"{package['name']} {package['version']}: {package['license'] or 'see below'}")
        for author in package["authors"]:
            print(f"  {author}")
        found = False
        for name, text in texts(pathlib.Path(package["manifest_path"])):
            found = True
            if text in seen:
                print(f"\n{name}: as {seen[text]}")
            else:
                seen[text] = f"{name} of {package['name']}"
                print(f"\n{name}:\n\n{text}")
        if not found and not package["license"]:
            sys.exit(f"deb-third-party: {package['name']} {package['version']} says no licence")
        print()


main()
