"""Faults at every step: msb or its monitor dies, or a system call fails, at the n-th call that changes something.

strace counts the calls and injects the fault, in msb and in all that it starts, each counted by itself.
Whatever n: what was acknowledged holds, an error is told as one, the next command repairs, nothing stays.
"""
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import wait_for

# What changes something on the host's disk.
STATE = ("rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,ftruncate,"
         "fallocate,fsync,fdatasync,pwrite64,copy_file_range,fchmod,fchown")
FILES = "openat,socket,socketpair,pipe2,eventfd2,epoll_create1,memfd_create,accept4,timerfd_create,signalfd4"

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed: run scripts/bootstrap test")


class Injector:
    def __init__(self, msb, tmp_path):
        self.msb, self.log, self.errors = msb, tmp_path / "strace", tmp_path / "errors"
        self.killed = 0  # in how many runs somebody was

    def run(self, args, calls, fault=None, n=1, follow=True, more=()):
        """msb under strace, which goes on in the background as long as a process that msb has left."""
        self.log.unlink(missing_ok=True)
        inject = ["-e", f"inject={calls}:{fault}:when={n}"] if fault else []
        with open(self.errors, "wb") as err:  # not a pipe: strace would keep it open
            p = subprocess.run(["strace", *(["-f"] if follow else []), "-D", "-q", "-o", self.log, "-e", f"trace={calls}",
                                "-e", "signal=KILL", *inject, *more, *self.msb.command(args)], env=self.msb.env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, timeout=60, check=False)
        said = self.errors.read_bytes().splitlines(keepends=True)
        if any(x.startswith((b"strace: ptrace(", b"strace: attach")) for x in said):
            pytest.skip("processes may not be traced here")
        p.stderr = b"".join(x for x in said if not x.startswith(b"strace: "))
        self.killed += p.returncode in (-9, 137) or b"killed by SIGKILL" in self.log.read_bytes()
        return p

    @contextlib.contextmanager
    def attached(self, pid, calls, fault=None, n=1, more=()):
        """The same for a process that runs already."""
        inject = ["-e", f"inject={calls}:{fault}:when={n}"] if fault else []
        with open(self.errors, "wb") as err:
            p = subprocess.Popen(["strace", "-f", "-o", self.log, "-e", f"trace={calls}", "-e", "signal=KILL",
                                  *inject, *more, "-p", str(pid)],
                                 stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        try:
            wait_for(lambda: b"attached" in self.errors.read_bytes() or p.poll() is not None)
            if p.poll() is not None:
                pytest.skip("processes may not be traced here")
            yield
        finally:
            p.terminate()
            try:
                p.wait(timeout=10)
            except subprocess.TimeoutExpired:  # it can wait for ever for threads that end while it lets go of them
                p.kill()
                p.wait()
        self.killed += b"killed by SIGKILL" in self.log.read_bytes()

    def seen(self):
        """(call, n) for each call of the last run: n counts those of a kind and a process, as strace does."""
        counts, most = collections.Counter(), {}
        for line in self.log.read_text(errors="replace").splitlines():
            pid, text = line.split(maxsplit=1)
            call = text.partition("(")[0]
            if call.isidentifier():
                counts[pid, call] += 1
                most[call] = max(most.get(call, 0), counts[pid, call])
        return [(call, n + 1) for call, count in most.items() for n in range(count)]


@pytest.fixture
def injector(msb, tmp_path):
    return Injector(msb, tmp_path)


def strays(home):
    return [str(p) for p in pathlib.Path(home).rglob("*") if ".tmp-" in p.name or p.name.startswith(".part")]


def names(msb):
    return msb.ok("ls", "-q").split()


def remove_all(msb):
    """By the ordinary commands; and then there is nothing."""
    for name in names(msb):
        msb.ok("rm", "-f", "-q", name)
    # An ordinary user does not see a monitor that is still going away; what it held, the next command takes along.
    wait_for(lambda: not msb.processes() and names(msb) == msb.leftovers() == [], timeout=30)
    assert strays(msb.home) == []


def told(p):
    """Success, an error in words, or the death that was asked for; never a crash."""
    text = p.stderr.decode(errors="replace")
    assert p.returncode in (0, 1, 2, -9, 137), (p.returncode, text)
    assert p.returncode <= 0 or p.returncode == 137 or text.startswith(("error: ", "warning: ")), text
    return p.returncode == 0


def steps(injector, args, calls):
    """What to try: each call that some process makes when nothing is injected."""
    assert told(injector.run(args, calls))
    found = injector.seen()
    assert found, "strace saw nothing"
    return found


# --- deaths --------------------------------------------------------------------------------------


def test_killed_at_every_step_of_create(msb, injector):
    create = ["create", "-q", "-n", "k", "-m", "64M"]
    for call, n in steps(injector, create, STATE):
        remove_all(msb)
        done = told(injector.run(create, call, "signal=KILL", n))
        if done:  # it was acknowledged, so it is there
            assert names(msb) == ["k"]
            assert msb.status("k") in ("Running", "Crashed")
        # One that was not acknowledged goes away in a moment, and the guest's own calls pass by strace, too:
        # what was killed may be a process in the guest.
        wait_for(lambda: msb.sh("k", "echo up").stdout == b"up\n" if names(msb) else not done)
    remove_all(msb)
    assert injector.killed


@pytest.mark.parametrize("verb", [["rm", "-f", "-q", "k"], ["start", "-q", "k"],
                                  ["modify", "-q", "k", "--memory", "96M"]], ids=lambda v: v[0])
def test_killed_at_every_step_of(msb, injector, verb):
    def fresh():
        if names(msb) == []:
            msb.create("k", "-m", "64M")
            msb.sh("k", "echo kept >/root/kept; sync")
        if verb[0] in ("start", "modify"):
            msb.ok("stop", "-q", "k")
            msb.ok("modify", "-q", "k", "--memory", "64M")
        elif msb.status("k") != "Running":
            msb.ok("start", "-q", "k")

    fresh()
    for call, n in steps(injector, verb, STATE):
        fresh()
        done = told(injector.run(verb, call, "signal=KILL", n))
        if verb[0] == "rm" and done:
            assert names(msb) == []
        if names(msb):
            # The guest's own calls pass by strace, too: what was killed may be a process in the guest.
            wait_for(lambda: msb.sh("k", "cat /root/kept").stdout == b"kept\n")
            memory = json.loads(msb.ok("inspect", "k", "--format", "json"))["config"]["resources"]["memory_mib"]
            assert memory in (64, 96) and (memory == 96 or verb[0] != "modify" or not done)
    remove_all(msb)
    assert injector.killed


def test_monitor_killed_at_every_step_of_its_end(msb, injector):
    """It is stopped, or has crashed; what the guest had synced is there."""
    msb.create("k", "-m", "64M")
    msb.sh("k", "echo kept >/root/kept; sync")
    with injector.attached(msb.monitor_pid("k"), STATE):
        msb.ok("stop", "-q", "k")
    for call, n in injector.seen():
        if msb.status("k") != "Running":
            msb.ok("start", "-q", "k")
        with injector.attached(msb.monitor_pid("k"), call, "signal=KILL", n):
            told(msb("stop", "-q", "k"))
        assert msb.status("k") in ("Stopped", "Crashed")
        assert msb.sh("k", "cat /root/kept").stdout == b"kept\n"
    assert injector.killed
    remove_all(msb)


@pytest.mark.parametrize("verb, undo, listing", [
    (["volume", "create", "-q", "v"], ["volume", "rm", "-q", "v"], ["volume", "ls", "-q"]),
    (["volume", "create", "-q", "v", "--kind", "disk", "--size", "16M"], ["volume", "rm", "-q", "v"], ["volume", "ls", "-q"]),
    (["secret", "set", "v", "--from-env", "HOME"], ["secret", "rm", "v"], ["secret", "ls", "-q"]),
], ids=["volume", "disk", "secret"])
def test_killed_at_every_step_of_named_things(msb, injector, verb, undo, listing):
    """Created or not, wholly; and removed or not."""
    def there():
        return msb.ok(*listing).split()

    for call, n in steps(injector, verb, STATE):
        if there():
            msb.ok(*undo)
        done = told(injector.run(verb, call, "signal=KILL", n))
        assert not done or there() == ["v"]
        msb(*verb)  # repairs, or says that it is there
        assert there() == ["v"], (call, n)
    for call, n in steps(injector, undo, STATE):
        msb(*verb)
        done = told(injector.run(undo, call, "signal=KILL", n))
        assert not done or there() == []
    if there():
        msb.ok(*undo)
    assert there() == [] and strays(msb.home) == [] and injector.killed


# --- system calls that fail ----------------------------------------------------------------------


@pytest.mark.parametrize("calls, error, stride", [(STATE, "ENOSPC", 2), (STATE, "EIO", 4), (STATE, "ENOMEM", 9),
                                                  (FILES, "EMFILE", 8), (FILES, "ENOMEM", 16),
                                                  ("clone,clone3,vfork,fork", "EAGAIN", 1)],
                         ids=["full", "broken", "memory", "files", "memory for files", "processes"])
def test_create_when_calls_fail(msb, injector, calls, error, stride):
    """An error on the host leads to a sandbox that works, or to none and a message."""
    create = ["create", "-q", "-n", "k", "-m", "64M"]
    for call, n in steps(injector, create, calls)[::stride]:
        remove_all(msb)
        done = told(injector.run(create, call, f"error={error}", n))
        if done:
            assert names(msb) == ["k"], (call, n)
    remove_all(msb)
    msb.create("k")
    assert msb.sh("k", "echo up").stdout == b"up\n"


@pytest.mark.parametrize("error", ["EMFILE", "ENOMEM"])
def test_a_sandbox_that_cannot_be_read_now_is_not_replaced(msb, injector, error):
    msb.create("k", "-m", "64M")
    replace = ["create", "-q", "-n", "k", "-m", "64M", "--replace"]
    assert told(injector.run(replace, "openat", follow=False))
    opened = [line for line in injector.log.read_text().splitlines() if line.startswith("openat(")]
    n = 1 + next(i for i, text in enumerate(opened) if '"spec.json", O_RDONLY' in text)
    monitor = msb.monitor_pid("k")
    assert not told(injector.run(replace, "openat", f"error={error}", n, follow=False))
    assert monitor and msb.monitor_pid("k") == monitor
    assert msb.sh("k", "echo up").stdout == b"up\n"


HEAP = ("brk", "mmap", "mremap")


def heap_calls(injector, args):
    """What msb asks of the host's memory, in order."""
    assert told(injector.run(args, ",".join(HEAP), follow=False))
    return re.findall(rf"^({'|'.join(HEAP)})\(", injector.log.read_text(errors="replace"), re.MULTILINE)


def no_more_after(calls):
    """Options for strace, which counts each kind of call by itself: none succeeds after these."""
    # brk returns no error, but where the heap ends.
    how = {"brk": "retval=0", "mmap": "error=ENOMEM", "mremap": "error=ENOMEM"}
    return [x for kind in HEAP for x in ("-e", f"inject={kind}:{how[kind]}:when={calls.count(kind) + 1}+")]


@pytest.mark.parametrize("verb", [["create", "-q", "-n", "k", "-m", "64M"], ["exec", "-q", "k", "--", "echo", "up"],
                                  ["inspect", "k", "--format", "json"], ["volume", "create", "-q", "v"]],
                         ids=lambda v: v[0])
def test_out_of_memory(msb, injector, verb):
    """From the n-th call on, msb gets no more memory from the host."""
    if verb[0] in ("exec", "inspect"):
        msb.create("k", "-m", "64M")
    loaded, calls = len(heap_calls(injector, ["--version"])), heap_calls(injector, verb)
    failed = 0
    for n in range(loaded - 1, len(calls)):  # the program's loader has what it wants, and nothing else does
        if verb[0] == "create":
            remove_all(msb)
        elif verb[0] == "volume":
            msb("volume", "rm", "-q", "v")
        done = told(injector.run(verb, ",".join(HEAP), follow=False, more=no_more_after(calls[:n])))
        failed += not done
        if verb[0] == "create" and done:
            assert names(msb) == ["k"], n
        elif verb[0] == "volume":
            assert msb.ok("volume", "ls", "-q").split() == (["v"] if done else []), n
    if verb[0] in ("exec", "inspect"):
        assert msb.sh("k", "echo up").stdout == b"up\n", "a client's lack of memory is its own"
    assert failed
    remove_all(msb)


@pytest.mark.skipif(os.environ.get("MSB_ENGINE") == "kvm", reason="its memory is allocated at once")
def test_a_guest_kernel_without_memory(msb, injector):
    """The host refuses the guest's kernel memory: it hangs, and nothing waits for it."""
    said = []
    for n in (24, 30, 36):  # of each process: msb itself and the monitor need fewer
        p = injector.run(["create", "-q", "-n", "k", "-m", "64M", "--engine", "uml"], "mmap,brk",
                         more=["-e", f"inject=mmap,brk:error=ENOMEM:when={n}+"])
        said.append(p.stderr.decode())
        assert "in time" not in said[-1]
        remove_all(msb)
    assert any("this host has no memory left for the guest" in x for x in said), said


def test_monitor_without_memory(msb, injector):
    """A monitor that gets no more serves what it can, and ends in order."""
    msb.create("k", "-m", "64M")
    with injector.attached(msb.monitor_pid("k"), ",".join(HEAP), more=no_more_after([])):
        big = msb.popen("exec", "-q", "k", "--", "head", "-c", "4000000", "/dev/zero", stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = big.communicate(timeout=60)
        assert (big.returncode == 0 and out == bytes(4000000)) or err.startswith(b"error: "), (big.returncode, len(out), err)
        told(msb("stop", "-q", "k"))
    assert msb.status("k") in ("Stopped", "Crashed")
    assert msb.sh("k", "echo up").stdout == b"up\n"
    remove_all(msb)


# --- a cut of the power ---------------------------------------------------------------------------

ON_DISK = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,exit_group"


def finished(log):
    """(process, call) for each call, in the order in which they ended."""
    begun = {}
    for line in log.read_text(errors="replace").split("\n")[:-1]:  # the last may still be written
        pid, text = line.split(maxsplit=1)
        if text.endswith(" <unfinished ...>"):
            begun[pid] = text.removesuffix(" <unfinished ...>")
        elif text.startswith("<... "):
            yield pid, begun.pop(pid) + text.partition(" resumed>")[2]
        else:
            yield pid, text


def order_of(log, directory, file):
    """What becomes of a file that is replaced, by the names of the calls: write, sync, rename, sync-dir, exit."""
    steps, first = [], None
    for pid, text in finished(log):
        first = first or pid
        call, _, rest = text.partition("(")
        temporary, well = f"/{directory}/.{file}.tmp-" in rest.partition(",")[0], rest.endswith(" = 0")
        if call == "write" and temporary:
            steps.append("write")
        elif call == "fsync" and temporary and well:
            steps.append("sync")
        elif call.startswith("rename") and f'"{file}"' in rest and f"/{directory}>" in rest and well:
            steps.append("rename")
        elif call == "fsync" and f"/{directory}>)" in rest and well:
            steps.append("sync-dir")
        elif call == "exit_group" and pid == first:
            steps.append("exit")
    return steps


@pytest.mark.parametrize("verb, directory, file", [
    (["create", "-q", "-n", "k", "-m", "64M"], "sandboxes/k", "spec.json"),
    (["modify", "-q", "k", "--memory", "96M"], "sandboxes/k", "spec.json"),
    (["volume", "create", "-q", "v"], "volumes/v", "volume.json"),
    (["secret", "set", "s", "--from-env", "HOME"], "secrets", "s"),
], ids=lambda v: v[0] if isinstance(v, list) else None)
def test_what_is_acknowledged_is_on_disk(msb, injector, verb, directory, file):
    """Content before name, name before the acknowledgement: whenever the power is cut, the old is there or the new."""
    if verb[0] == "modify":
        msb.create("k", "-m", "64M")
        msb.ok("stop", "-q", "k")
    assert told(injector.run(verb, ON_DISK, more=["-y"]))
    steps = order_of(injector.log, directory, file)
    assert steps == ["write", "sync", "rename", "sync-dir", "exit"], (steps, injector.log.read_text()[-4000:])
    if verb[0] == "create" and os.geteuid() == 0:  # to others strace cannot name the files of a monitor
        # That it runs is on disk soon after, without anybody waiting for it.
        wait_for(lambda: re.search(r"fsync\(\d+</run/state.json>\) += 0\n(.*\n)*fsync\(\d+</run>\) += 0\n",
                                   "".join(text + "\n" for _, text in finished(injector.log))))


def test_a_disk_volume_that_is_acknowledged_is_on_disk(msb, injector):
    """The file system on a disk comes before the record of the volume."""
    assert told(injector.run(["volume", "create", "-q", "d", "--kind", "disk", "--size", "16M"], ON_DISK, more=["-y"]))
    calls = [text for _, text in finished(injector.log)]

    def last(pattern):
        return max(i for i, text in enumerate(calls) if re.match(pattern, text))

    steps = [last(p) for p in (r"pwrite64\(\d+<[^>]*/volumes/d/", r"fdatasync\(\d+<[^>]*/volumes/d/disk.raw>\) += 0",
                               r'rename.*"volume.json"\) += 0')]
    assert steps == sorted(steps), calls


def test_full_disk_and_read_only_home(msb, tmp_path):
    """A home on a file system with no room left, or that has become read-only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    home = tmp_path / "small"
    home.mkdir()
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"]
    script = f"""mount -t tmpfs -o size=64k,mode=700 none {home}
        export MSB_HOME={home}
        if {msb.exe} create -q -n k; then exit 9; fi
        {msb.exe} ls -q
        mount -o remount,ro {home}
        if {msb.exe} create -q -n k; then exit 9; fi
        {msb.exe} ls -q"""
    p = subprocess.run([*enter, script], env=msb.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=60, check=False)
    assert p.returncode == 0 and p.stdout == b"", (p.returncode, p.stdout, p.stderr)
    errors = [x for x in p.stderr.decode().splitlines() if x.startswith("error: ")]
    assert len(errors) == 2 and "No space left on device" in errors[0] and "Read-only file system" in errors[1], p.stderr
