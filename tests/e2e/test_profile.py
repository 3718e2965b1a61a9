"""What programs in a guest may do, as the guest's own kernel sees it: --security and its relatives."""
import json

import pytest

import filesproto as fp
from conftest import wait_for
from guest import sh
from sdkkit import client_of, go

DOCKER = 0b1011  # CHOWN, DAC_OVERRIDE, FOWNER
STATUS = ["grep", "-E", "^(Cap|NoNewPrivs|Groups)", "/proc/self/status"]


def parse(text):
    fields = dict(line.split(":", 1) for line in text.splitlines())
    caps = {k: int(v, 16) for k, v in fields.items() if k.startswith("Cap")}
    return caps, fields["NoNewPrivs"].strip() == "1"


def limited(text, caps, nnp):
    """All five sets are within `caps`; as root exactly that where it can be."""
    sets, new = parse(text)
    assert sets == {"CapInh": 0, "CapPrm": caps, "CapEff": caps, "CapBnd": caps, "CapAmb": 0} and new == nnp, text
    return True


def refused(msb, name, path):
    p = msb.sh(name, f"echo x >{path}")
    assert p.returncode != 0 and b"Read-only file system" in p.stderr, (path, p)


def inspect(msb, name):
    return json.loads(msb.ok("inspect", name, "--format", "json"))["config"]


@pytest.fixture(scope="module")
def hard(module_msb):
    """The docker profile, kept."""
    module_msb.create("hard", "--security", "docker", "--cpus", "1")
    return module_msb


def test_docker_profile_for_commands(hard):
    limited(hard.ok("exec", "-q", "hard", "--", *STATUS), DOCKER, True)
    limited(hard.ok("exec", "-q", "-t", "hard", "--", *STATUS).replace("\r", ""), DOCKER, True)
    # A shell in a shell has no more, and another user has nothing.
    limited(hard.ok("exec", "-q", "hard", "--", "sh", "-c", "sh -c 'exec " + " ".join(STATUS).replace(
        "^(Cap|NoNewPrivs|Groups)", '"^(Cap|NoNewPrivs|Groups)"') + "'"), DOCKER, True)  # fmt: skip
    sets, new = parse(hard.ok("exec", "-q", "-u", "1000", "hard", "--", *STATUS))
    assert sets == {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": DOCKER, "CapAmb": 0} and new


def test_docker_profile_for_files(hard, tmp_path):
    """The process that serves files in the guest has no more rights than a command."""
    hard.ok("cp", "hard:/proc/self/status", str(tmp_path / "status"))
    text = "\n".join(x for x in (tmp_path / "status").read_text().splitlines() if x.startswith(("Cap", "NoNewPrivs")))
    limited(text, DOCKER, True)
    # It keeps what the profile keeps: root reads and writes what others own.
    sh(hard, "hard", "mkdir -m 700 /srv/other; echo x >/srv/other/f; chown -R 1000:1000 /srv/other")
    hard.ok("cp", "hard:/srv/other/f", str(tmp_path / "f"))
    hard.ok("cp", str(tmp_path / "f"), "hard:/srv/other/g")


def test_docker_profile_for_the_sdk(hard):
    async def look():
        box = await client_of(hard).get("hard")
        text = (await box.files.read("/proc/self/status")).decode()
        ran = await box.exec(STATUS[0], STATUS[1:])
        return "\n".join(x for x in text.splitlines() if x.startswith(("Cap", "NoNewPrivs"))), ran.stdout

    for text in go(look()):
        limited(text, DOCKER, True)


def test_docker_profile_mounts(hard):
    mounts = {}
    for line in sh(hard, "hard", "cat /proc/mounts").splitlines():
        _, where, kind, options, *_ = line.split()
        mounts[where] = (kind, set(options.split(",")))
    for where, size, noexec in (("/tmp", 512, False), ("/var/tmp", 256, True), ("/run", 64, True)):
        kind, options = mounts[where]
        assert kind == "tmpfs" and f"size={size << 10}k" in options and "nosuid" in options
        assert ("noexec" in options) == noexec
    assert "/root" not in mounts and "/home" not in mounts  # it is kept, and so are they
    assert "ro" in mounts["/proc/sys"][1] and "ro" in mounts["/sys"][1] and "ro" in mounts["/sys/fs/cgroup"][1]
    sh(hard, "hard", "cp /bin/sh /tmp/x && /tmp/x -c true; cp /bin/sh /run/x; ! /run/x -c true; echo >/etc/new")


def test_what_is_dropped_cannot_be_regained(hard):
    for script in ("mount -t tmpfs t /mnt", "mount -o remount,rw /proc/sys", "umount /run", "mknod /tmp/d b 254 0",
                   "chroot / true", "echo 0 >/proc/sys/kernel/randomize_va_space",
                   "echo /tmp/x >/proc/sys/kernel/core_pattern", "echo b >/proc/sysrq-trigger", "readlink /proc/1/fd/3", "ls /proc/1/root/",
                   "echo $$ >/sys/fs/cgroup/cgroup.procs", "echo max >/sys/fs/cgroup/msb/pids.max",
                   "reboot -f", "unshare -U true", "test -e /dev/vda", "ip link set lo down"):  # fmt: skip
        assert hard.sh("hard", script).returncode != 0, script


def test_processes_are_limited(hard):
    """A fork bomb ends at the limit; the sandbox can still be used, and is as before afterwards."""
    p = hard.sh("hard", "i=0; while [ $i -lt 400 ]; do sleep 600 & i=$((i+1)); done")
    assert p.returncode != 0 and b"Resource temporarily unavailable" in p.stderr, p
    # At the limit a command from outside starts, and cannot fork; files can be copied.
    count = ["exec", "-q", "hard", "--", "cat", "/sys/fs/cgroup/msb/pids.current"]
    assert 255 <= int(hard.ok(*count)) <= 257
    p = hard.sh("hard", "echo here; ls / | wc -l")
    assert b"here" in p.stdout and b"Resource temporarily unavailable" in p.stderr, p
    hard.ok("cp", "hard:/etc/hosts", "-")
    hard.sh("hard", "kill -9 -1")
    wait_for(lambda: int(hard.ok(*count)) < 10)
    sh(hard, "hard", "true | true")


def test_it_is_kept_and_shown(hard):
    config = inspect(hard, "hard")
    assert config["security_profile"] == "docker"
    assert config["security"] == {
        "profile": "docker", "capabilities": ["CHOWN", "DAC_OVERRIDE", "FOWNER"], "no_new_privileges": True,
        "read_only": False, "pids_limit": 256, "groups": [], "sysctls": []}  # fmt: skip
    text = hard.ok("inspect", "hard")
    assert "CHOWN,DAC_OVERRIDE,FOWNER" in text and "no-new-privileges" in text and "256" in text
    hard.ok("restart", "-q", "hard")
    limited(hard.ok("exec", "-q", "hard", "--", *STATUS), DOCKER, True)


def test_a_passing_sandbox_has_its_homes_in_memory(module_msb, tmp_path):
    out = module_msb.ok("run", "--security", "docker", "-v", f"{tmp_path}:/home", "msb/base", "--", "cat", "/proc/mounts")
    kinds = {line.split()[1]: line.split()[2] for line in out.splitlines()}
    assert kinds["/workspace"] == kinds["/root"] == "tmpfs" and kinds["/home"] == "virtiofs"
    assert "size=10485760k" in out and "size=1048576k" in out


def test_restricted(module_msb, tmp_path):
    m = module_msb
    m.create("res", "--security", "restricted", "-v", f"{tmp_path}:/share", "--tmpfs", "/t:mode=0750,uid=7,gid=8,size=1m")
    caps_left = (1 << 41) - 1 & ~(1 << 21 | 1 << 19)  # SYS_ADMIN, SYS_PTRACE
    limited(m.ok("exec", "-q", "res", "--", *STATUS), caps_left, True)
    mounts = sh(m, "res", "grep -E ' /(share|t) ' /proc/mounts")
    assert mounts.count("nosuid,nodev") == 2, mounts
    assert sh(m, "res", "stat -c '%a %u %g' /t") == "750 7 8\n"
    # Stricter later, then as before.
    for change, caps in (("docker", DOCKER), ("restricted", caps_left)):
        m.ok("modify", "-q", "res", "--security", change, "--restart")
        limited(m.ok("exec", "-q", "res", "--", *STATUS), caps, True)
    assert '"field": "security"' in m.ok("modify", "res", "--pids-limit", "9", "--dry-run", "--format", "json")


@pytest.mark.parametrize("options", [["--security", "restricted"], ["--user", "1000:1000"]], ids=lambda o: o[0])
def test_the_agent_takes_commands_from_the_host_alone(module_msb, tmp_path, options):
    """A program that connects to it in the guest would run commands as root, with all capabilities."""
    m = module_msb
    m.create("lo", *options, "-v", f"{fp.caller(tmp_path)}:/c:ro")
    p = m("exec", "-q", "-u", "1000:1000", "lo", "--", "sh", "-c", "id -u; /c/vsock_client 1024 1 1 </c/frames; echo tried")
    assert p.stdout.startswith(b"1000\n") and p.stdout.endswith(b"tried\n") and b"uid=" not in p.stdout
    assert p.stderr == b""
    m.ok("rm", "-f", "lo")


def test_single_options(module_msb):
    """One capability less, more groups, settings, sizes, and what Docker users add."""
    m = module_msb
    m.create("one", "--cap-drop", "cap_net_raw", "--cap-drop", "CHOWN", "--cap-add", "chown", "--security-opt",
             "no-new-privileges:true", "--security-opt", "seccomp=unconfined", "--pids-limit=-1", "--init", "--sysctl",
             "net.core.somaxconn=777", "--sysctl", "kernel.shmmax=4096", "--shm-size", "3m", "--group-add", "4242",
             "--group-add", "daemon", "--ulimit", "core=-1", "--network", "bridge", "msb/base")  # fmt: skip
    limited(m.ok("exec", "-q", "one", "--", *STATUS), (1 << 41) - 1 - (1 << 13), True)
    out = sh(m, "one", "cat /proc/sys/net/core/somaxconn /proc/sys/kernel/shmmax; id -G; ulimit -c; df -k /dev/shm")
    assert out.split()[:2] == ["777", "4096"] and {"4242", "1"} <= set(out.splitlines()[2].split())
    assert out.splitlines()[3] == "unlimited" and "3072" in out.splitlines()[-1]
    assert "4242" in m.ok("exec", "-q", "-u", "1000:1000", "one", "--", "id", "-G")
    assert inspect(m, "one")["security"]["sysctls"] == ["net.core.somaxconn=777", "kernel.shmmax=4096"]


def test_no_capabilities_at_all(module_msb):
    m = module_msb
    m.create("none", "--cap-drop", "ALL")
    limited(m.ok("exec", "-q", "none", "--", *STATUS), 0, False)
    assert inspect(m, "none")["security"]["capabilities"] == []
    assert json.loads((m.home / "sandboxes" / "none" / "spec.json").read_text())["security"]["capabilities"] == []
    m.ok("restart", "-q", "none")
    limited(m.ok("exec", "-q", "none", "--", *STATUS), 0, False)
    # Files, too: root without rights over the files of others.
    sh(m, "none", "mkdir /tmp/d; chmod 0 /tmp/d")
    assert m("cp", "none:/tmp/d", "-").returncode != 0


def test_read_only_root(module_msb, tmp_path):
    m = module_msb
    m.create("ro", "--read-only", "--tmpfs", "/tmp:rw,noexec,nosuid,size=1m", "-v", f"{tmp_path}:/w", "--mkdir", "/made",
             "--write-path", "/var/lib/x")  # fmt: skip
    sh(m, "ro", "echo 1 >/tmp/a; echo 2 >/w/b; echo 3 >/dev/shm/c; echo 4 >/var/lib/x/d; test -d /made")
    assert (tmp_path / "b").read_text() == "2\n"
    for path in ("/x", "/etc/x", "/root/x", "/proc/sys/kernel/hostname", "/.msb/x"):
        refused(m, "ro", path)
    assert m.sh("ro", "mount -o remount,rw /").returncode != 0
    assert b"Read-only" in m("cp", str(tmp_path / "b"), "ro:/etc/b").stderr
    m.ok("restart", "-q", "ro")
    refused(m, "ro", "/etc/x")


@pytest.mark.parametrize("args, says", [
    (["--cap-add", "FLY"], "unknown capability 'FLY'"),
    (["--security-opt", "seccomp=profile.json"], "--cap-drop"),
    (["--sysctl", "kernel.core_pattern=|/x"], "cannot be set with --sysctl"),
    (["--sysctl", "net..x=1"], "KEY=VALUE"),
    (["--sysctl", "net.ipv4=../../x"], "KEY=VALUE|cannot set"),
    (["--pids-limit", "many"], "number of processes"),
    (["--group-add", "a b"], "name or a number"),
    (["--tmpfs", "/x:mode=999"], "octal"),
    (["--init=sbin/init"], "absolute path or 'auto'"),
    (["--init", "/sbin/init", "--cap-drop", "ALL"], "without restrictions"),
])  # fmt: skip
def test_refusals(module_msb, args, says):
    p = module_msb("create", "-n", "bad", *args)
    assert p.returncode != 0 and any(s in p.stderr.decode() for s in says.split("|")), p


def test_a_setting_the_kernel_lacks(module_msb):
    """Nothing is ignored: the sandbox does not start."""
    p = module_msb("create", "-n", "bad", "--sysctl", "net.core.nonsense=1")
    assert p.returncode != 0 and b"net.core.nonsense" in p.stderr
    p = module_msb("create", "-n", "bad", "--group-add", "nosuchgroup")
    assert p.returncode == 0 and b"nosuchgroup" in module_msb("exec", "bad", "--", "true").stderr
