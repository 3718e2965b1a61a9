"""Debian with nothing installed: a root directory made by debootstrap, entered as a machine of its own.

A machine is a stack of layers (overlayfs) over a minimal Debian, kept in the user's cache under a key of
all that goes into them; what a test does to one is thrown away. Its /root, /home, /tmp and /var/tmp are
directories of the test's own, so that a tree built on one machine can be carried to another. It is entered
by pivot_root, since a chroot may have no user namespaces. Packages come from where this machine's own apt
takes them.
"""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

from runner.report import ROOT, cache, run

USER, UID = "tester", 1000
BASE_PACKAGES = "make,sudo"
RECIPE = 1


class Unavailable(Exception):
    """This machine cannot make such machines; the message says why, and the remedy."""


def this_release():
    text = pathlib.Path("/etc/os-release").read_text()
    found = re.search(r'^VERSION_CODENAME="?(\w+)', text, re.M)
    if not found:
        raise Unavailable("/etc/os-release names no release: this needs a Debian")
    return found[1]


def archives(release):
    """(URI, suite) of Debian's archives for a release, as this machine's apt has them for its own."""
    lines = run(["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE)",
                 "Identifier: Packages", "Component: main"]).stdout.splitlines()
    own = this_release()
    found = [x.split() for x in dict.fromkeys(lines) if len(x.split()) == 2]
    found = [(uri, suite.replace(own, release, 1)) for uri, suite in found if suite.split("-")[0] == own]
    found.sort(key=lambda x: len(x[1]))
    if not found or found[0][1] != release:
        raise Unavailable(f"apt has no package lists of {own}: run apt-get update")
    return found


def proxies():
    """apt's settings of proxies, as lines of its own configuration."""
    out = run(["apt-config", "dump"]).stdout
    return [x for x in out.splitlines() if re.match(r"Acquire::\w+::Proxy", x)]


def proxy_environment():
    env = dict(os.environ)
    for line in proxies():
        found = re.match(r'Acquire::(https?)::Proxy "(.+)";', line)
        if found and found[2] != "DIRECT":
            env.setdefault(f"{found[1]}_proxy", found[2])
    return env


def check_host():
    if os.geteuid() != 0:
        raise Unavailable("making a root directory takes root: run make test-fresh as root")
    for tool in ("debootstrap", "unshare", "pivot_root"):
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is not installed: run scripts/bootstrap test")


# --- layers ---------------------------------------------------------------------------------------


def must(cmd, **kw):
    p = run(cmd, **kw)
    if p.returncode:
        raise Unavailable(f"{pathlib.Path(str(cmd[0])).name} failed: {p.stdout.strip()[-1500:]}")


def make_base(release, root):
    """A minimal Debian, a user who may use sudo, and apt's sources."""
    found = archives(release)
    must(["unshare", "--mount", "--propagation", "private", "debootstrap", "--variant=minbase",
          f"--include={BASE_PACKAGES}", release, root, found[0][0]], env=proxy_environment())
    shutil.rmtree(root / "var/cache/apt/archives")
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    shutil.rmtree(root / "var/lib/apt/lists")
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    (root / "etc/apt/sources.list").write_text("".join(f"deb {uri} {suite} main\n" for uri, suite in found))
    (root / "etc/apt/apt.conf.d/00proxy").write_text("\n".join(proxies()) + "\n")
    # As fast as a machine that nobody minds losing may be, and no daemons.
    (root / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    for name in ("resolv.conf", "hosts"):
        (root / "etc" / name).unlink(missing_ok=True)
        shutil.copy(pathlib.Path("/etc", name).resolve(), root / "etc" / name)
    must(["chroot", root, "/usr/sbin/useradd", "-m", "-u", UID, "-s", "/bin/bash", USER])
    (root / "etc/sudoers.d" / USER).write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")


def layer(release, name, what, make):
    """A directory of the cache that make(dir) fills, once for all that goes into it."""
    key = hashlib.sha256("\0".join([str(RECIPE), release, *what]).encode()).hexdigest()[:16]
    root = cache("fresh")
    done = root / f"{release}-{name}-{key}"
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.is_dir():
            for old in root.glob(f"{release}-{name}-*"):
                shutil.rmtree(old)
            part = pathlib.Path(tempfile.mkdtemp(prefix=".part-", dir=root))
            try:
                part.chmod(0o755)
                make(part)
                part.rename(done)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    return done


@contextlib.contextmanager
def installing(release):
    """One machine at a time may install packages: what they download is shared, and apt does not wait."""
    with open(cache("fresh") / f"debs-{release}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def with_packages(release, purpose, below):
    """The layer that scripts/bootstrap leaves."""
    def make(directory):
        with tempfile.TemporaryDirectory(prefix="msb-fresh-") as work, installing(release):
            m = Machine(release, below, pathlib.Path(work), upper=directory)
            p = m.run("cp -r /tree/scripts /root && /root/scripts/bootstrap " + purpose)
            if p.returncode:
                raise Unavailable(f"scripts/bootstrap {purpose} failed: {p.stdout[-1500:]}")

    text = (ROOT / "scripts" / "bootstrap").read_text()
    packages = re.search(rf'^    \[{purpose}\]="(.*?)"', text, re.S | re.M)[1]
    return layer(release, purpose, [packages, *(b.name for b in below)], make)


def layers(release, *purposes):
    """The layers of a machine, the topmost first, on which scripts/bootstrap has run for these purposes."""
    check_host()
    found = [layer(release, "base", [BASE_PACKAGES, *map(str, archives(release)), *proxies()],
                   lambda d: make_base(release, d))]
    for purpose in purposes:
        found.insert(0, with_packages(release, purpose, tuple(found)))
    return found


# --- entering -------------------------------------------------------------------------------------

ENTER = """set -eu
cd {work}
mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={overlay} root || exit 99
mount -t proc proc root/proc
mount --rbind /sys root/sys
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/dev/shm
mkdir -p root/tree root/kernel root/old
mount --bind {tree} root/tree
mount --bind {kernel} root/kernel
mount --bind {debs} root/var/cache/apt/archives
for d in root home tmp var/tmp; do mount --bind places/$d root/$d; done
cd root
pivot_root . old
umount -l /old
cd /
exec {command}
"""


class Machine:
    """Layers, and places for what is written; `tree` is there as /tree."""

    def __init__(self, release, stack, work, log=None, upper=None):
        self.release, self.stack, self.work = release, stack, work
        self.log = log or work / "log"
        self.upper = upper or work / "upper"
        for name in ("root", "upper", "overlay", "places/home", "places/root", "places/var", "tree"):
            (work / name).mkdir(parents=True, exist_ok=True)
        for name in ("places/tmp", "places/var/tmp"):
            (work / name).mkdir(exist_ok=True)
            (work / name).chmod(0o1777)
        # Beside the layer, on the same disk; empty when the machine is off.
        self.overlay = self.upper.with_name(self.upper.name + ".work")
        home = work / "places" / "home" / USER
        home.mkdir(exist_ok=True)
        os.chown(home, UID, UID)
        if not any((work / "tree").iterdir()):
            copy_tree(work / "tree")

    def script(self, command, user, env):
        home = f"/home/{USER}" if user else "/root"
        become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--init-groups"] if user else []
        words = [*become, "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                 f"HOME={home}", *(f"{k}={v}" for k, v in env.items()), "sh", "-c",
                 "mkdir -p ~/.cache/msb && ln -sfn /kernel ~/.cache/msb/kernel; cd; umask 077\n"
                 # As started by cron, nohup, or a shell's background.
                 "trap '' INT HUP QUIT\n" + command]
        debs = cache("fresh") / f"debs-{self.release}"
        (debs / "partial").mkdir(parents=True, exist_ok=True)
        q = shlex.quote
        return ENTER.format(
            work=q(str(self.work)), lower=":".join(map(str, self.stack)), upper=self.upper, overlay=self.overlay,
            tree=q(str(self.work / "tree")), kernel=q(str(kernels(self.release))), debs=q(str(debs)),
            command=" ".join(q(str(w)) for w in words))

    def run(self, command, user=False, timeout=7200, **env):
        """A shell command to its end, with nothing of ours around it; whatever it leaves ends with it."""
        self.overlay.mkdir(exist_ok=True)
        cmd = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private",
               "sh", "-c", self.script(command, user, env)]
        with open(self.log, "ab+") as log:
            start = log.seek(0, os.SEEK_END)
            p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                 start_new_session=True)
            try:
                p.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
                log.write(f"\nout of time after {timeout} s".encode())
            finally:
                shutil.rmtree(self.overlay, ignore_errors=True)
            log.seek(start)
            out = log.read().decode(errors="replace")
        if p.returncode == 99:
            raise Unavailable(f"overlayfs does not work here: {out.strip()[-500:]}")
        return subprocess.CompletedProcess(command, p.returncode, out)


def kernels(release):
    """A cache of kernels for machines of a release, whose compiler may not be ours. It begins with what the
    user's own has, as links; a machine that needs another kernel makes it once."""
    own = cache("fresh") / f"kernel-{release}"
    own.mkdir(exist_ok=True)
    have = [d for d in cache("kernel").iterdir() if d.name in ("source", "source-version") or list(d.glob("linux-*"))]
    for path in have:
        if not (own / path.name).exists():
            must(["cp", "-rl", path, own])
    must(["find", own, "-type", "d", "-exec", "chmod", "a+rwx", "{}", "+"])
    return own


def copy_tree(to):
    """The sources as they are now, root's, and nobody else may write there."""
    names = run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard"])
    files = [n for n in names.stdout.splitlines() if (ROOT / n).is_file()]
    tar = subprocess.Popen(["tar", "-C", ROOT, "-c", "--owner=0", "--group=0", "--no-recursion", "-T", "-"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False)
    unpack = subprocess.Popen(["tar", "-C", to, "-x"], stdin=tar.stdout)
    tar.stdin.write("\n".join(files).encode())
    tar.stdin.close()
    if unpack.wait() or tar.wait():
        raise RuntimeError("the tree could not be copied")
