"""What /proc says about processes. Benchmarks use it, too: nothing here needs pytest."""
import fcntl
import os
import pathlib
import re
import struct
import time


def tree(pid):
    """A process and all its descendants, by one reading of /proc."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            ppid = int(stat.rsplit(")", 1)[1].split()[1])
            children.setdefault(ppid, []).append(int(entry))
    todo, found = [pid], []
    while todo:
        p = todo.pop()
        found.append(p)
        todo += children.get(p, [])
    return found


def named(name):
    """All processes with that name, no matter who started them."""
    found = []
    for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text() == f"{name}\n":
                found.append(int(comm.parent.name))
        except OSError:  # it has ended
            pass
    return found


def lock_holder(path):
    """The process that has locked a file, such as the monitor of a sandbox; None: nobody has."""
    # Not by /proc/locks: who reads it while others lock and unlock may miss a lock.
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with open(path, "rb") as f:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid


def rollup(pid):
    """The sums of a process's memory, {"Pss": KiB, ...}; empty if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return {}
    return {name: int(kib) for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def standing(pids):
    """Where each thread of these processes stands, as text: what it waits for, and whether it has run in the last moment."""
    def look(task):
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        return {"state": fields[0], "ticks": int(fields[11]) + int(fields[12]), "switches": sum(map(int, re.findall(
            r"ctxt_switches:\s+(\d+)", (task / "status").read_text())))}

    def read(path):
        try:
            return path.read_text().strip()
        except OSError as e:  # not root, or it has just ended
            return e.strerror
    tasks = [t for pid in pids for t in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*"))]
    before = {}
    for second in (False, True):
        lines = []
        for t in tasks:
            try:
                now = look(t)
            except (OSError, IndexError):
                lines.append(f"{t}: has ended")
                continue
            was = before.setdefault(t, now)
            frames = re.findall(r"\] (\S+)", read(t / "stack"))
            lines.append(f"{t.parts[2]}/{t.name} {read(t / 'comm')}: {now['state']}, {now['switches'] - was['switches']} switches and "
                         f"{now['ticks'] - was['ticks']} ticks in 0.3 s, in call {read(t / 'syscall')}, {' < '.join(frames)}")
        if not second:
            time.sleep(0.3)
    return "\n".join(lines)
