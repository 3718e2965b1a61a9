"""What tests find around them, which is not what whoever starts them has: signals, umask, locale, home,
temporary files, terminal."""
import ctypes
import os
import pathlib
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

# Settings for the machine's network and for tests; all else in the environment is somebody's own.
KEPT = re.compile(r"(MSB_(TEST|CACHE|ENGINE|ASSETS|TESTBED)|FUZZ_|CCACHE_|SSL_CERT_|NODE_EXTRA_CA_CERTS|"
                  r"(https?|all|no)_proxy$)", re.IGNORECASE)
SYSTEM_PATH = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
PR_SET_CHILD_SUBREAPER = 36


def slow():
    """How many times slower than usual this machine is."""
    return float(os.environ.get("MSB_TEST_SLOW", "1"))


def user_cache():
    """Where kernels, images and results are kept from run to run."""
    home = os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.abspath(os.environ.get("MSB_CACHE_DIR") or os.path.join(base, "msb"))


def scratch_parent():
    """Where temporary files go: a disk, since tests write more than belongs in memory."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/tmp"], stdout=subprocess.PIPE, text=True, check=False)
    return "/var/tmp" if kind.stdout.strip() == "tmpfs" else "/tmp"


def mounts_below(directory):
    """Mount points left there, innermost first."""
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as f:
        places = [line.split()[1] for line in f]
    return [p for p in reversed(places) if p.startswith(f"{directory}/")]


def become_child():
    """In a process that is to run tests: every signal does what it does by default."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # those that the C library keeps
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)


def adopt_orphans():
    """Whoever outlives its parent below this process becomes its child: to be reaped, and found again."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Place:
    """A directory for a run, with its home and its temporary files; gone at the end."""

    def __init__(self):
        # Short: paths of sockets have a hundred characters.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="msb-", dir=scratch_parent()))
        self.directory.chmod(0o755)  # some tests are somebody else
        self.home = self.directory / "home"
        self.home.mkdir(mode=0o700)
        self.tmp = self.directory / "t"
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)

    def environment(self):
        env = {k: v for k, v in os.environ.items() if KEPT.match(k)}
        path = os.environ.get("PATH", "").split(":")
        user = pwd.getpwuid(os.geteuid())
        ccache = pathlib.Path(user.pw_dir, ".cache", "ccache")
        env.setdefault("CCACHE_DIR", str(ccache))
        env.update(
            PATH=":".join(dict.fromkeys([p for p in path if p] + SYSTEM_PATH)),
            MSB_CACHE_DIR=user_cache(), HOME=str(self.home), TMPDIR=str(self.tmp), USER=user.pw_name,
            LOGNAME=user.pw_name, SHELL="/bin/sh", TERM="xterm", LC_ALL="C.UTF-8", TZ="UTC",
            PYTHONDONTWRITEBYTECODE="1")
        return env

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        def make_writable(function, path, _error):
            os.chmod(os.path.dirname(path), stat.S_IRWXU)
            function(path)

        for place in mounts_below(self.directory):
            subprocess.run(["umount", "--lazy", place], check=False)
        if os.geteuid():
            shutil.rmtree(self.directory, onerror=make_writable)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():  # not worth the totals
            print(f"{self.directory} could not be removed", file=sys.stderr, flush=True)
