#!/usr/bin/env python3
"""Records that a file system said to be durable, noted outside of it, and looked for afterwards.

acknowledged.py write DIRECTORY LOG SECONDS [WRITERS]
    Each writer, a process, makes by turns: appends to a file of its own, new files, new names of files by rename, and removals; each followed by fsync of
    the file (and of the directory, where a name changed). After that, and not before, it notes in LOG what was acknowledged. A call that fails is tried
    again with the same bytes: it was not acknowledged, and may be there or not.
acknowledged.py verify DIRECTORY LOG
    Status 0 if everything that LOG has is in DIRECTORY, byte by byte, and what was removed is gone.
"""
import hashlib
import os
import sys
import time


SIZES = (60, 600, 4000, 9000)
PLACES = 65_521


def pattern():
    state, made = 1, bytearray()
    for _ in range(PLACES + max(SIZES)):
        state = (state * 1_664_525 + 1_013_904_223) & 0xFFFF_FFFF
        made.append(state >> 24)
    return bytes(made)


PATTERN = pattern()


def payload(writer, number):
    """The bytes of a record are known from its numbers, so that LOG need not have them. contrib/nfs/client.c makes the same."""
    size, head, place = SIZES[(writer + number) % 4], f"{writer} {number} ".encode(), (writer * 7919 + number * 104_729) % PLACES
    return head + PATTERN[place : place + size - len(head)]


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put(path, flags, offset, data):
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def step(directory, writer, number, offset):
    """One record; what is noted of it."""
    data, base = payload(writer, number), f"{directory}/{writer}"
    if number % 4:
        put(f"{base}.log", os.O_CREAT, offset, data)
        return f"append {writer} {number} {offset} {len(data)}"
    put(f"{base}/{number}.new", os.O_CREAT, 0, data)
    try:
        os.rename(f"{base}/{number}.new", f"{base}/{number}")
    except FileNotFoundError:
        if not os.path.exists(f"{base}/{number}"):  # it was renamed by the try that failed
            raise
    if number % 12 == 0 and number >= 24:
        try:
            os.unlink(f"{base}/{number - 12}")
        except FileNotFoundError:
            pass
        sync_directory(base)
        return f"file {writer} {number} {number - 12} {len(data)}"
    sync_directory(base)
    return f"file {writer} {number} 0 {len(data)}"


def write(directory, log, seconds, writer):
    until, number, offset, failed = time.monotonic() + seconds, 0, 0, 0
    os.makedirs(f"{directory}/{writer}", exist_ok=True)
    with open(log, "a", encoding="ascii") as notes:
        while time.monotonic() < until:
            number += 1
            while True:
                try:
                    note = step(directory, writer, number, offset)
                    break
                except OSError as error:
                    failed += 1
                    if time.monotonic() > until + 60:
                        sys.exit(f"writer {writer}: record {number}: {error}")
                    time.sleep(0.1)
            if note.startswith("append"):
                offset += int(note.split()[4])
            notes.write(note + "\n")
            notes.flush()
    with open(f"{log}.failed", "a", encoding="ascii") as notes:
        notes.write(f"{failed}\n")


def verify(directory, log):
    wrong, count, removed = [], 0, set()
    lines = [line.split() for line in open(log, encoding="ascii")]
    for kind, writer, number, third, _ in lines:
        if kind == "file" and third != "0":
            removed.add((writer, third))
    for kind, writer, number, third, length in lines:
        data, count = payload(int(writer), int(number)), count + 1
        assert len(data) == int(length), "the log is of another version"
        path, offset = (f"{directory}/{writer}.log", int(third)) if kind == "append" else (f"{directory}/{writer}/{number}", 0)
        if kind == "file" and (writer, number) in removed:
            if os.path.exists(path):
                wrong.append(f"{path}: removed, and there")
            continue
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                found = file.read(len(data) if kind == "append" else -1)
        except OSError as error:
            wrong.append(f"{path}: {error}")
            continue
        if found != data:
            wrong.append(f"{path} at {offset}: {len(data)} bytes of record {number} are not those ({hashlib.sha256(found).hexdigest()[:12]}, {len(found)} bytes)")
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    print(f"{count} records, {len(wrong)} wrong")
    return bool(wrong) or count == 0


def main():
    command, directory, log = sys.argv[1:4]
    if command == "verify":
        sys.exit(verify(directory, log))
    seconds, writers, children = float(sys.argv[4]), int((sys.argv[5:] or ["4"])[0]), []
    for writer in range(1, writers + 1):
        child = os.fork()
        if child == 0:
            write(directory, log, seconds, writer)
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children) and 1)


main()
