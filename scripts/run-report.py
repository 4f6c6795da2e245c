"""The closing table of `make run`: run-report.py STATS_DIRECTORY FSYNC_FILE RECOVERY_FILE."""

import json
import pathlib
import sys


def total(documents):
    """Adds up the counters of several mounts: numbers are added, objects joined."""
    result = {}
    for document in documents:
        for name, value in document.items():
            if isinstance(value, dict):
                result[name] = total([result.get(name, {}), value])
            elif isinstance(value, (int, float)):
                result[name] = result.get(name, 0) + value
    return result


def size(count):
    return f"{count / 2**20:,.1f} MiB"


def row(name, *values):
    print(f"  {name:<32}" + "".join(f"{value:>18}" for value in values))


def main(stats_directory, fsync_file, recovery_file):
    paths = sorted(pathlib.Path(stats_directory).iterdir())
    stats = total([json.loads(path.read_text()) for path in paths])

    user = stats["file_system"]
    row("bytes", "written", "read")
    row("by programs", size(user["user_written_bytes"]), size(user["user_read_bytes"]))
    for name in ("byte_path", "block_path"):
        path = stats[name]
        row(name.replace("_", " "), size(path["written_bytes"]), size(path["read_bytes"]))
    print()

    row("by structure", "stored by bytes", "written by blocks", "loaded by bytes", "read by blocks")
    for name, counts in stats["by_structure"].items():
        kinds = ("byte_written_bytes", "block_written_bytes", "byte_read_bytes", "block_read_bytes")
        row(name.replace("_", " "), *(size(counts[kind]) for kind in kinds))
    print()

    row("4 KiB overwrite and fsync", "write, median", "fsync, median", "both, p99")
    for line in pathlib.Path(fsync_file).read_text().splitlines():
        mode, *times = line.split()
        row(mode, *(f"{time} us" for time in times))
    print()

    row("recovery after kill -9", "time", "records replayed")
    for line in pathlib.Path(recovery_file).read_text().splitlines():
        mode, milliseconds, records = line.split()
        row(mode, f"{float(milliseconds):.1f} ms", records)


main(*sys.argv[1:])
