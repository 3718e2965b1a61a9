"""What holds a guest, seen from the host: every process of a sandbox has given up everything.

The monitor and the guest's kernel tree are looked at through /proc while a sandbox runs; a guest
that took over any of them would find nothing to use.
"""
import os
import pathlib
import pty
import re
import stat

import pytest

ROOT = os.geteuid() == 0


@pytest.fixture(scope="module", params=["uml", "uml-ptrace"])
def jail(request, module_msb):
    """(msb, monitor pid, pids of the kernel tree) of a sandbox with a command running in it."""
    name = request.param
    module_msb.create(name, "--engine", request.param, "-m", "128M")
    busy = module_msb.popen("exec", "-q", name, "--", "sleep", "1000")
    module_msb.ok("exec", "-q", name, "--", "true")
    monitor = module_msb.monitor_pid(name)
    yield module_msb, name, monitor, [p for p in module_msb.tree(monitor) if p != monitor]
    module_msb.ok("rm", "-f", "-q", name)
    busy.wait(timeout=10)


def status(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def threads(pid):
    return [int(t) for t in os.listdir(f"/proc/{pid}/task")]


def ns(pid, kind):
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def everyone(jail):
    _, _, monitor, kernel = jail
    return [monitor, *kernel]


def test_tree_has_its_parts(jail):
    """Monitor, reaper, kernel, and at least one stub for guest user space."""
    assert len(everyone(jail)) >= 4


def test_no_privileges_anywhere(jail):
    """Every thread: no capability it could use or regain, no_new_privs, a seccomp filter."""
    for pid in everyone(jail):
        for tid in threads(pid):
            st = status(tid)
            who = (tid, st["Name"])
            for caps in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(st[caps], 16) == 0, (who, caps, st[caps])
            assert st["NoNewPrivs"] == "1", who
            assert st["Seccomp"] == "2", who


def test_the_host_takes_memory_from_it_first(jail):
    """What has no other limit ends there, and not with a program of the host's."""
    for pid in everyone(jail):
        assert int(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 500, status(pid)["Name"]
    assert int(pathlib.Path("/proc/self/oom_score_adj").read_text()) < 500


def test_runs_as_nobody(jail):
    """Started by root, it runs as an id that owns nothing else; else as the caller. No groups."""
    for pid in everyone(jail):
        st = status(pid)
        uids, gids = set(st["Uid"].split()), set(st["Gid"].split())
        assert len(uids) == 1 and len(gids) == 1
        if ROOT:
            assert int(uids.pop()) >= 0x70000000 and int(gids.pop()) >= 0x70000000
            assert st["Groups"].strip() == ""
        else:
            assert uids == {str(os.geteuid())}


def test_memory_of_the_caller_is_hidden(jail):
    """Monitor and reaper are copies of their caller, environment and all: nobody of the same user
    can trace them, which shows in who owns their files in /proc."""
    _, _, monitor, kernel = jail
    for pid in (monitor, kernel[0]):
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0


def test_two_sandboxes_run_as_different_users(module_msb):
    if not ROOT:
        pytest.skip("only root's sandboxes have users of their own")
    owners = set()
    for name in ("one", "two"):
        module_msb.create(name, "-m", "64M")
        owners.add(status(module_msb.monitor_pid(name))["Uid"].split()[0])
        module_msb.ok("rm", "-f", "-q", name)
    assert len(owners) == 2


def test_namespaces(jail):
    """The monitor shares none but the network's with the host (its sockets are its clients'), the
    kernel tree none at all, nor with the monitor."""
    _, _, monitor, kernel = jail
    for kind in ("user", "mnt", "pid", "ipc", "uts"):
        assert ns(monitor, kind) != ns("self", kind), kind
    for pid in kernel:
        for kind in ("user", "mnt", "pid", "ipc", "uts", "net"):
            assert ns(pid, kind) != ns("self", kind), kind
        for kind in ("mnt", "pid", "ipc", "uts", "net"):
            assert ns(pid, kind) != ns(monitor, kind), kind
    assert len({ns(pid, "net") for pid in kernel}) == 1


def test_kernel_cannot_signal_the_monitor(jail):
    """kill(0, ...) reaches a process group across pid namespaces: theirs are apart."""
    _, _, monitor, kernel = jail
    for pid in kernel[1:]:
        assert os.getpgid(pid) not in (os.getpgid(monitor), os.getpgid(kernel[0]))
        assert os.getsid(pid) != os.getsid(monitor)


def test_kernel_tree_has_no_network(jail):
    for pid in jail[3]:
        dev = pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in dev] in ([], ["lo"])


def test_kernel_root_is_empty(jail):
    """A tmpfs with its devices' sockets, a copy of cpuinfo and its own scratch: no host file."""
    for pid in jail[3]:
        found = {}
        for top, dirs, files in os.walk(f"/proc/{pid}/root", followlinks=False):
            for f in files:
                path = os.path.join(top, f)
                found[path[len(f"/proc/{pid}/root") :]] = os.lstat(path).st_mode
        for path, mode in found.items():
            known = re.fullmatch(r"/dev\d+|/proc/cpuinfo|/tmp/\w+/(pid|mconsole)", path)
            assert known, path
            assert stat.S_ISSOCK(mode) or stat.S_ISREG(mode), path
        mounts = pathlib.Path(f"/proc/{pid}/mounts").read_text().splitlines()
        assert len(mounts) == 1, mounts
        fields = mounts[0].split()
        assert fields[1:3] == ["/", "tmpfs"]
        assert {"nosuid", "nodev"} <= set(fields[3].split(","))


def test_kernel_tree_descriptors(jail):
    """Nothing in there leads to a host file that it could write."""
    kinds = re.compile(
        r"socket:\[\d+\]|pipe:\[\d+\]|anon_inode:.*|/dev/null|/memfd:.*|/tmp/.*|/tmp/.*\(deleted\)"
        r"|/proc/cpuinfo|/.*\(deleted\)"
    )
    _, _, _, kernel = jail
    for pid in kernel:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                info = pathlib.Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
            except FileNotFoundError:
                continue
            if kinds.fullmatch(target):
                if target.endswith("(deleted)") and not target.startswith("/memfd:"):
                    # Guest memory: on the jail's own tmpfs.
                    own = os.stat(f"/proc/{pid}/root").st_dev
                    assert os.stat(f"/proc/{pid}/fd/{fd}").st_dev == own, target
                continue
            flags = int(re.search(r"flags:\s*(\d+)", info)[1], 8)
            assert os.path.basename(target) == "linux-uml" and flags & os.O_ACCMODE == os.O_RDONLY, target


def test_reaper_has_no_descriptor_but_its_questions(jail):
    """What supervises the kernel can be asked, and has nothing else."""
    reaper = jail[3][0]
    found = [os.readlink(f"/proc/{reaper}/fd/{fd}") for fd in os.listdir(f"/proc/{reaper}/fd")]
    assert found == ["anon_inode:seccomp notify"]


def test_monitor_sees_its_run_directory_only(jail):
    msb, name, monitor, _ = jail
    root = f"/proc/{monitor}/root"
    assert sorted(os.listdir(root)) == ["jail", "run"]
    assert os.listdir(f"{root}/jail") == []
    assert "state.json" in os.listdir(f"{root}/run")
    assert os.path.samefile(f"{root}/run", msb.home / "sandboxes" / name / "run")
    mounts = [m.split() for m in pathlib.Path(f"/proc/{monitor}/mounts").read_text().splitlines()]
    assert sorted(m[1] for m in mounts) == ["/", "/run"]
    for m in mounts:
        assert {"nosuid", "nodev", "noexec"} <= set(m[3].split(",")), m
        assert m[1] != "/" or "ro" in m[3].split(",")


def test_monitor_descriptors(jail):
    """Disks, its log and lock, sockets: and of the host's files only one that it may write."""
    msb, name, monitor, _ = jail
    box = str(msb.home / "sandboxes" / name)
    writable = set()
    for fd in os.listdir(f"/proc/{monitor}/fd"):
        try:
            target = os.readlink(f"/proc/{monitor}/fd/{fd}")
            info = pathlib.Path(f"/proc/{monitor}/fdinfo/{fd}").read_text()
        except FileNotFoundError:
            continue
        flags = int(re.search(r"flags:\s*(\d+)", info)[1], 8)
        if re.match(r"(socket|pipe|anon_inode):|/dev/null$|/run(/|$)|/memfd:", target):
            continue
        if target.endswith("(deleted)"):
            continue  # guest memory
        if flags & os.O_ACCMODE == os.O_RDONLY:
            known = re.fullmatch(r"linux-uml|tools\.erofs|[0-9a-f]{64}\.\d+\.erofs", os.path.basename(target))
            assert known, target
        else:
            writable.add(target)
    assert writable == {f"{box}/upper.ext4", f"{box}/lock"}


def test_sandbox_directory_is_private(jail):
    msb, name, _, _ = jail
    box = msb.home / "sandboxes" / name
    assert stat.S_IMODE(box.stat().st_mode) == 0o700
    for f in ("spec.json", "upper.ext4", "lock"):
        st = (box / f).stat()
        assert stat.S_IMODE(st.st_mode) & 0o077 == 0 and st.st_uid == os.geteuid(), f
    assert stat.S_IMODE((box / "run").stat().st_mode) == 0o700


def limits(pid):
    """{name: hard limit} of a process."""
    lines = pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): float(line[47:68].replace("unlimited", "inf")) for line in lines}


def test_limits(jail):
    """No core dumps of guest memory; memory, processes and descriptors in proportion to --memory."""
    reaper, kernel, *stubs = jail[3]
    for pid in (kernel, *stubs):
        most = limits(pid)
        assert most["Max core file size"] == most["Max locked memory"] == 0
        assert most["Max processes"] <= 128 + 128 * 2
        assert most["Max open files"] <= 128 + 128 * 2 + 128
        assert most["Max data size"] <= 8 << 20 and most["Max stack size"] <= 1 << 20
        assert most["Max pending signals"] <= 1024
    for pid in stubs:
        most = limits(pid)
        assert most["Max data size"] <= 4096 and most["Max stack size"] <= 28672
        assert most["Max open files"] <= 64
    assert stubs


# --- from the inside -----------------------------------------------------------------------------


def test_guest_sees_no_host_file(jail, tmp_path):
    """hostfs is not there, no mount leads out, and a secret of the host is nowhere."""
    msb, name, _, _ = jail
    out = msb.sh(name, "cat /proc/filesystems; mkdir -p /mnt/h; mount -t hostfs none /mnt/h && echo IN").stdout
    assert b"hostfs" not in out and b"IN" not in out
    secret = tmp_path / "secret"
    secret.write_text("HOST SECRET")
    assert msb.sh(name, f"cat {secret} 2>/dev/null").stdout == b""
    # A guest's kernel is its own: another boot, another version of everything.
    host = pathlib.Path("/proc/sys/kernel/random/boot_id").read_bytes()
    assert msb.sh(name, "cat /proc/sys/kernel/random/boot_id").stdout != host
    names = msb.sh(name, "cat /proc/*/cmdline | tr '\\0' ' '").stdout
    assert b"pytest" not in names


def test_guest_root_cannot_change_the_image(jail):
    """The image's disk is read-only by the host's open mode, whatever the guest tries."""
    msb, name, _, _ = jail
    p = msb.sh(name, "dd if=/dev/zero of=/dev/vdb bs=4096 count=1 2>&1; blockdev --setrw /dev/vdb; "
                     "dd if=/dev/zero of=/dev/vdb bs=4096 count=1 conv=fsync 2>&1 && echo WROTE")  # fmt: skip
    assert b"WROTE" not in p.stdout
    assert msb.sh(name, "ls /bin/busybox").returncode == 0


def test_memory_cap_holds(module_msb):
    """A guest that wants more than its memory gets its own OOM killer, not the host's memory."""
    module_msb.create("mem", "-m", "64M")
    total = int(module_msb.sh("mem", "awk '/MemTotal/{print $2}' /proc/meminfo").stdout)
    assert total <= 64 * 1024
    p = module_msb.sh("mem", "tail /dev/zero; echo $?", timeout=60)
    assert p.stdout.strip() in (b"137", b"1"), p.stdout
    monitor = module_msb.monitor_pid("mem")
    # Guest memory is one file on the jail's tmpfs: its size is the cap.
    for pid in module_msb.tree(monitor)[1:2]:
        fs = os.statvfs(f"/proc/{pid}/root")
        assert fs.f_blocks * fs.f_frsize <= (64 + 16) << 20
        assert fs.f_files <= 128
    assert module_msb.sh("mem", "echo alive").stdout == b"alive\n"
    module_msb.ok("rm", "-f", "-q", "mem")


def test_guest_fork_bomb_stays_inside(module_msb):
    """Processes of the guest cost the guest; the host's stay countable and all go."""
    module_msb.create("bomb", "-m", "64M")
    p = module_msb.popen("exec", "-q", "bomb", "--timeout", "5s", "--", "sh", "-c", "f() { f | f & }; f; sleep 4")
    p.wait(timeout=60)
    tree = module_msb.tree(module_msb.monitor_pid("bomb"))
    net = ns(tree[1], "net")
    assert len(tree) < 128 + 64 * 2 + 16
    module_msb.ok("rm", "-f", "-q", "bomb", timeout=60)
    assert not [pid for pid in tree if os.path.exists(f"/proc/{pid}/ns/net") and ns(pid, "net") == net]


def helpers(msb):
    """Processes that serve shares and host sockets, of whatever sandbox: they are not the monitor's children."""
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = pathlib.Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if ROOT and os.readlink(entry.path + "/exe") != os.path.realpath(msb.exe):
                    continue  # another build's
            except OSError:
                continue
            if words[1:2] == [b"helper"]:
                found.add(int(entry.name))
    return found


def test_helpers_yield_memory_as_well(module_msb, tmp_path):
    """What serves shares and host sockets does what a guest asks for: the host takes its memory first, too."""
    before = helpers(module_msb)
    module_msb.create("shares", "-m", "64M", "-v", f"{tmp_path}:/data")
    mine = helpers(module_msb) - before  # with others that started meanwhile: they are held to it as well
    assert mine
    for pid in mine:
        try:
            score = int(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text())
        except OSError:
            continue
        assert score >= 500, status(pid)["Name"]
    module_msb.ok("rm", "-f", "-q", "shares")


def test_a_host_without_cgroups_is_mentioned_once(msb):
    """To somebody at a terminal, once per home and boot; a script does not see it at all."""
    note = "cannot make a cgroup"
    limited = b"\xe2\x9c\x93 cgroup" in msb("doctor").stdout
    first = msb("create", "-n", "a", "-m", "64M", check=0).stderr.decode()
    assert note not in first and not (msb.home / "locks" / ".no-cgroup").exists()
    said = []
    for name in ("b", "c"):
        here, there = pty.openpty()
        p = msb.popen("create", "-n", name, "-m", "64M", stderr=there)
        os.close(there)
        text = b""
        while True:
            try:
                more = os.read(here, 4096)
            except OSError:
                break
            if not more:
                break
            text += more
        os.close(here)
        assert p.wait(timeout=60) == 0
        said.append(note in text.decode())
    assert said == [not limited, False]
