#!/usr/bin/env python3
"""Builds every test program and runs each once, as many at a time as there are CPUs, and half as many more while CPUs are idle: tests of mounts
wait for daemons and processes much of their time. Those that took longest the last time begin first, so that none is left alone at the end.
Exit status 1 where anything failed.

    test.py [NAME...]            NAME: a package (fs) or a program (cli/posix); a package's unit tests are the program lib, its examples doc
    test.py --list [PACKAGE...]  builds what these packages need and prints each program of it: name, directory and file, by tabs

JOBS=2 how many at a time, and no more; LIMIT_S=900 bounds each run, which counts as hanging then. target/test has the output of each program, and
`times`: seconds by the clock and of CPUs (without daemons, which outlive their starters), longest first.
"""

import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
KEPT = os.path.join(ROOT, "target", "test")
# Each is built by itself: together they would have other features, so other programs than a user's. Those of one package only where it is asked for.
BUILDS = [
    (None, ["--workspace", "--exclude", "tandemfs-bench"]),
    ("bench", ["-p", "tandemfs-bench"]),  # its locks are others
    ("schedules", ["-p", "tandemfs-schedules", "--features", "explore"]),
]
# What takes long where nobody has measured yet, in seconds.
FIRST = {
    "crash/sequences": 150, "cli/posix": 100, "fuzz-targets/bounded": 60, "bench/papers": 50, "schedules/schedules": 45, "workspace/doc": 40,
}
# A mount namespace keeps every mount that there is when it is made, and so the daemons of tests beside it: programs that make one do not run
# beside programs that mount.
MAKE_NAMESPACES = {"bench/age", "cli/holders", "cli/mount_program", "cli/operations", "cli/ordinary_user", "direct/mounts"}
MOUNT = {"bench", "cli", "client", "direct", "fuse", "posix", "preload", "wire", "witness", "workspace"}
# One more program begins where this many CPUs were idle for so long. CPU seconds of the last time would not tell: they are without daemons.
IDLE_CPUS, IDLE_S = 0.5, 2.0


class Program:
    def __init__(self, name, directory, command):
        self.name, self.directory, self.command = name, directory, command
        self.output = os.path.join(KEPT, name.replace("/", "-"))
        self.status, self.seconds, self.cpu_seconds, self.hung = 0, 0.0, 0.0, False

    def may_run_beside(self, other):
        both = (self, other), (other, self)
        return not any(one.name in MAKE_NAMESPACES and two.name.split("/")[0] in MOUNT for one, two in both)

    def run(self, limit_s):
        began = time.monotonic()
        # As cargo runs it. A session of its own, which goes as a whole.
        environment = {**os.environ, "CARGO_MANIFEST_DIR": self.directory}
        with open(self.output, "wb") as output:
            process = subprocess.Popen(
                self.command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            end = os.pidfd_open(process.pid)
            RUNNING.add(process.pid)
            if not select.select([end], [], [], limit_s)[0]:
                self.hung = True
                output.write(f"test: it did not end in {limit_s} s\n{describe(process.pid)}".encode())
            os.close(end)
            kill(process.pid)
            _, self.status, usage = os.wait4(process.pid, 0)
            RUNNING.discard(process.pid)
        self.seconds, self.cpu_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime

    def said(self):
        with open(self.output, errors="replace") as output:
            return output.read()


RUNNING = set()


def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def describe(group):
    """What the processes of a group are doing."""
    lines = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as stat:
                if int(stat.read().rpartition(")")[2].split()[2]) != group:  # behind the name: state, parent, group
                    continue
            with open(f"/proc/{process}/cmdline") as words:
                lines.append(f"-- process {process}: {words.read().replace(chr(0), ' ')}")
            for thread in os.listdir(f"/proc/{process}/task"):
                where = []
                for name in ("comm", "wchan", "syscall"):
                    with open(f"/proc/{process}/task/{thread}/{name}") as text:
                        where.append(text.read().strip())
                lines.append(f"   {thread} {' '.join(where)}")
        except OSError:
            continue  # it has ended
    with open("/proc/self/mounts") as mounts:
        lines.extend(["-- mounts", *(line.rstrip() for line in mounts if "fuse.tandemfs" in line)])
    return "\n".join(lines) + "\n"


def built(options):
    """Builds test programs; yields name, directory and file of each."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json-render-diagnostics", *options]
    cargo = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    for line in cargo.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            directory, target = os.path.dirname(message["manifest_path"]), message["target"]
            program = target["name"] if "test" in target["kind"] else "lib"
            yield f"{os.path.basename(directory)}/{program}", directory, message["executable"]


def found(packages):
    """Name, directory and file of the programs that these packages need built; without any, of all. A name that comes again is that of other
    features: the explored schedules, whose package is empty without."""
    needed = [options for package, options in BUILDS if not package or not packages or package in packages]
    return {name: (name, directory, file) for options in needed for name, directory, file in built(options)}


def programs(packages):
    all_of_them = {name: Program(name, directory, [file]) for name, directory, file in found(packages).values()}
    doc = ["cargo", "test", "--locked", "--doc", "--workspace", "--exclude", "tandemfs-bench"]
    all_of_them["workspace/doc"] = Program("workspace/doc", ROOT, doc)
    return all_of_them


def measured():
    """Seconds of the last time by the clock and of CPUs, by name."""
    try:
        with open(os.path.join(KEPT, "times")) as times:
            return {name: (float(seconds), float(cpu)) for seconds, cpu, name in map(str.split, times)}
    except OSError:
        return {}


def idle_seconds():
    """Seconds that the CPUs of this process have been idle since the machine began."""
    ours = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    with open("/proc/stat") as stat:
        ticks = sum(int(words[4]) + int(words[5]) for words in map(str.split, stat) if words[0] in ours)  # idle, and waiting for a disk
    return ticks / os.sysconf("SC_CLK_TCK")


def number(name, default):
    text = os.environ.get(name) or str(default)
    if not text.isdigit() or int(text) == 0:
        sys.exit(f"test: {name}={text} is no number above 0")
    return int(text)


def main(names):
    cpus = len(os.sched_getaffinity(0))
    jobs, limit_s = number("JOBS", cpus), number("LIMIT_S", 900)
    beside = 0 if os.environ.get("JOBS") else (cpus + 1) // 2
    os.makedirs(KEPT, exist_ok=True)
    last, all_of_them = measured(), programs([name.split("/")[0] for name in names])
    wanted = [one for one in all_of_them.values() if not names or one.name in names or one.name.split("/")[0] in names]
    if not wanted:
        sys.exit(f"test: no program is called {' or '.join(names)}")
    wanted.sort(key=lambda one: -last.get(one.name, (FIRST.get(one.name, 0), 0))[0])
    running, ended, changed = [], queue.SimpleQueue(), threading.Condition()

    def take():
        """The next that may run now; none at the end."""
        with changed:
            while wanted_still:
                for one in wanted_still:
                    if all(one.may_run_beside(other) for other in running):
                        wanted_still.remove(one)
                        running.append(one)
                        return one
                changed.wait()
            return None

    def wait_for_idle_cpus():
        while wanted_still:
            before, began = idle_seconds(), time.monotonic()
            time.sleep(IDLE_S)
            if idle_seconds() - before >= IDLE_CPUS * (time.monotonic() - began):
                return

    def work(wait):
        while wait() or (one := take()):
            try:
                one.run(limit_s)
            except OSError as error:
                one.status = 1
                with open(one.output, "a") as output:
                    output.write(f"test: {error}\n")
            with changed:
                running.remove(one)
                changed.notify_all()
            ended.put(one)

    wanted_still = list(wanted)
    began = time.monotonic()
    for wait in [lambda: None] * jobs + [wait_for_idle_cpus] * beside:
        threading.Thread(target=work, args=[wait], daemon=True).start()
    failed, passed = [], 0
    for _ in wanted:
        one = ended.get()
        said = one.said()
        count = sum(map(int, re.findall(r"(?:ok\. |: )(\d+) passed", said))) or len(re.findall(r"^test .* \.\.\. ok", said, re.M))
        passed += count
        if one.status != 0 or one.hung:
            failed.append(one)
            what = f"no end in {limit_s} s" if one.hung else f"status {os.waitstatus_to_exitcode(one.status)}"
            print(f"{said}FAILED {one.name} ({what}), output in {os.path.relpath(one.output, ROOT)}", flush=True)
        elif count:
            print(f"ok {one.name}: {count} tests in {one.seconds:.1f} s", flush=True)
    last.update((one.name, (one.seconds, one.cpu_seconds)) for one in wanted)
    with open(os.path.join(KEPT, "times"), "w") as times:
        for name, (seconds, cpu) in sorted(last.items(), key=lambda item: -item[1][0]):
            if names or name in all_of_them:
                times.write(f"{seconds:.1f} {cpu:.1f} {name}\n")
    print(f"test: {passed} tests of {len(wanted)} programs passed in {time.monotonic() - began:.0f} s, {jobs} to {jobs + beside} at a time; {len(failed)} programs failed")
    for one in failed:
        print(f"test: FAILED {one.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        for line in found(sys.argv[2:]).values():
            print(*line, sep="\t")
        sys.exit(0)

    def end(*_):
        for group in list(RUNNING):
            kill(group)
        os._exit(130)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    sys.exit(main(sys.argv[1:]))
