"""Fixtures of the end-to-end tests: the real binary, a separate home for every test.

Every test gets a fresh MSB_HOME and must leave nothing behind: at its end all sandboxes are
removed with the product's own verbs, and then no process that was started under that home may be
alive, and no file but the caches may exist.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

import imagekit
import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
MSB = pathlib.Path(os.environ.get("MSB_BIN", ROOT / "build" / "src" / "cli" / "msb")).absolute()

# How many times slower than usual this machine is (tests/kvm runs on an interpreted one): all
# that is waited for may take that much longer.
SLOW = float(os.environ.get("MSB_TEST_SLOW", "1"))
# Sizes as in real life, where the default ones are for a quick look.
LARGE = bool(os.environ.get("MSB_TEST_LARGE"))
# Virtual CPUs of every sandbox that does not ask for a number itself.
CPUS = os.environ.get("MSB_TEST_CPUS")
# Seconds that a test may take, its fixtures included, unless a mark says otherwise.
LIMIT = 120


class Client(subprocess.Popen):
    """A client that is left running, with time for its end as this machine needs it."""

    def wait(self, timeout=None):
        return super().wait(timeout and timeout * SLOW)

    def communicate(self, input=None, timeout=None):
        return super().communicate(input, timeout and timeout * SLOW)


class Msb:
    """Drives the command line the way a client does: subprocess, pipes, exit codes."""

    def __init__(self, home, extra_env=None):
        self.home = pathlib.Path(home)
        self.exe = str(MSB)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("MSB_")}
        for key in ("MSB_ASSETS", "MSB_ENGINE", "MSB_JAIL"):
            if key in os.environ:
                self.env[key] = os.environ[key]
        self.env["MSB_HOME"] = str(home)
        self.env["NO_COLOR"] = "1"
        self.env.update(extra_env or {})

    def __call__(self, *args, timeout=60, check=None, **kw):
        """Runs `msb args...`; bytes in and out. check: the exit code that is expected."""
        kw.setdefault("stdin", None if "input" in kw else subprocess.DEVNULL)
        if kw["stdin"] is None:
            del kw["stdin"]
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        kw.setdefault("env", self.env)
        p = self._run(self.command(args), timeout * SLOW, kw.pop("input", None), **kw)
        if check is not None:
            assert p.returncode == check, (args, p.returncode, p.stdout, p.stderr)
        return p

    def _run(self, command, timeout, data, **kw):
        """As subprocess.run(), but what does not end in time is looked at before it is killed."""
        if data is not None:
            kw["stdin"] = subprocess.PIPE
        with subprocess.Popen(command, **kw) as p:
            try:
                out, err = p.communicate(data, timeout)
            except BaseException as e:
                if isinstance(e, subprocess.TimeoutExpired):
                    all_of_them = dict.fromkeys(t for pid in [p.pid, *self.processes()] for t in processes.tree(pid))
                    print(f"{command} did not end in {timeout:g} s:\n{processes.standing(all_of_them)}", file=sys.stderr)
                p.kill()
                raise
        return subprocess.CompletedProcess(command, p.returncode, out, err)

    def command(self, args):
        args = [str(a) for a in args]
        if CPUS and args[0] in ("create", "run") and not {"--cpus", "-c"} & set(args):
            args[1:1] = ["--cpus", CPUS]
        return [self.exe, *args]

    def ok(self, *args, **kw):
        """As a call that must succeed; returns its stdout as text."""
        p = self(*args, check=0, **kw)
        return p.stdout.decode(errors="replace") if p.stdout is not None else ""

    def popen(self, *args, **kw):
        kw.setdefault("env", self.env)
        return Client(self.command(args), **kw)

    def create(self, name="box", *args, **kw):
        self.ok("create", "-n", name, "-q", *args, **kw)
        return name

    def sh(self, name, script, **kw):
        """Runs a shell script in a sandbox; returns the CompletedProcess."""
        return self("exec", "-q", name, "--", "sh", "-c", script, **kw)

    # --- looking behind the curtain ---

    def processes(self):
        """Pids of all processes that were started under this home."""
        # Twice: one that forks and exits while /proc is read hides its child from that reading.
        return self._processes() or self._processes()

    def _processes(self):
        mark = b"MSB_HOME=" + str(self.home).encode()
        pids = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                env = pathlib.Path("/proc", entry, "environ").read_bytes()
                exe = os.readlink(f"/proc/{entry}/exe")
            except OSError:
                continue
            if mark in env.split(b"\0") and os.path.basename(exe).startswith("msb"):
                pids.append(int(entry))
        return pids

    def monitor_pid(self, name):
        """The live monitor of a sandbox, as the lock on its file says."""
        return processes.lock_holder(self.home / "sandboxes" / name / "lock")

    def tree(self, pid):
        """A process and all its descendants."""
        return processes.tree(pid)

    def status(self, name):
        import json

        return json.loads(self.ok("inspect", name, "--format", "json"))["status"]

    def leftovers(self):
        """Files and directories that only a sandbox could have left."""
        found = []
        for sub in ("sandboxes", "locks"):
            d = self.home / sub
            if d.is_dir():
                found += [str(p) for p in d.iterdir() if p.name not in (".placement", ".no-cgroup")]
        return found


def wait_for(condition, timeout=10.0, interval=0.01):
    """Polls until condition() is true; returns its value. Fails loudly when it never is."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "condition did not become true"
        time.sleep(interval)


def static_program(name, directory):
    """tests/e2e/NAME.c, linked so that it runs in any guest."""
    exe = pathlib.Path(directory) / name
    source = ROOT / "tests" / "e2e" / f"{name}.c"
    cc = ["cc", "-static", "-O1", "-w", "-o", exe, source]
    if not shutil.which("cc") or subprocess.run(cc, check=False).returncode:
        pytest.skip("no compiler that links statically")
    return exe


def make_tools_image(image):
    """A directory in which the host's own programs run, through a share of /usr."""
    if not os.path.islink("/bin") or not os.path.islink("/lib64"):
        pytest.skip("the host's programs are not all below /usr")
    (image / "etc").mkdir(parents=True)
    for name in ("usr", "tmp", "root"):
        (image / name).mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    (image / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    shutil.copy("/etc/ld.so.cache", image / "etc")
    if os.path.isdir("/etc/alternatives"):  # through which cc, awk and iptables are links
        shutil.copytree("/etc/alternatives", image / "etc" / "alternatives", symlinks=True)
    authorities = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
    if authorities.exists():  # pip does not start without them
        (image / "etc/ssl/certs").mkdir(parents=True)
        shutil.copy(authorities, image / "etc/ssl/certs")
    return image


@pytest.fixture
def host_tools(tmp_path):
    return make_tools_image(tmp_path / "image")


def need(*tools):
    for tool in tools:
        if not shutil.which(tool, path="/usr/bin"):
            pytest.skip(f"{tool} is not installed on the host")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Disk templates and converted images are the same for all tests: keep them."""
    d = tmp_path_factory.mktemp("cache")
    d.chmod(0o700)
    return d


def make_home(directory, cache=None):
    home = pathlib.Path(directory) / "home"
    home.mkdir(mode=0o700)
    if cache is not None:
        (home / "cache").symlink_to(cache)
        shutil.rmtree(cache / "objects", ignore_errors=True)  # what comes from a bucket is each test's own
    return home


def tear_down(m):
    """Removes all sandboxes, then insists that nothing is left."""
    names = m("ls", "-q", timeout=120).stdout.decode().split()
    if names:
        m("rm", "-f", "-q", *names, timeout=120)
    wait_for(lambda: not m.processes(), timeout=20)

    def cleared():
        """`ls` clears what a creator left that was killed, once the processes are gone that only root can see."""
        m("ls", "-q", timeout=120)
        return not m.leftovers()

    with contextlib.suppress(AssertionError):
        wait_for(cleared, timeout=5)
    assert m.leftovers() == []


@pytest.fixture
def msb(tmp_path, shared_cache):
    m = Msb(make_home(tmp_path, shared_cache))
    yield m
    tear_down(m)


@pytest.fixture(scope="module")
def module_msb(tmp_path_factory, shared_cache):
    """One home for a whole module of tests that only look."""
    m = Msb(make_home(tmp_path_factory.mktemp("mod"), shared_cache))
    yield m
    tear_down(m)


@pytest.fixture(scope="module")
def box(module_msb):
    """A running sandbox shared by the tests of a module; (msb, name)."""
    module_msb.create("box")
    return module_msb, "box"


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """A registry that speaks plain HTTP and wants no password."""
    with imagekit.Registry(tmp_path_factory.mktemp("registry")) as r:
        yield r


@pytest.fixture(scope="session")
def internet(tmp_path_factory):
    """Namespaces with a small internet in them (netkit.py), shared by all tests that need one."""
    import netkit

    with netkit.Internet(tmp_path_factory.mktemp("net")) as net:
        yield net


@pytest.fixture(scope="module")
def net_msb(internet, tmp_path_factory, shared_cache):
    """msb in that internet, one home for a module, with the image `net-guest:1` in it."""
    m = internet.msb(make_home(tmp_path_factory.mktemp("mod"), shared_cache))
    m.ok("load", "-q", "-i", imagekit.net_guest(), timeout=300)
    yield m
    tear_down(m)


@pytest.fixture(scope="module")
def servers(internet, tmp_path_factory):
    """TLS servers in that internet (interceptkit.py)."""
    from interceptkit import Servers

    with Servers(internet, tmp_path_factory.mktemp("tls")) as s:
        yield s


@pytest.fixture
def s3():
    """A strict S3 server (fakes3.py)."""
    from fakes3 import FakeS3

    server = FakeS3()
    yield server
    server.close()


@pytest.fixture(scope="module")
def rt(tmp_path_factory):
    """An OCI runtime, as an engine drives it (ocikit.py)."""
    from ocikit import Runtime, become_subreaper, bury

    runtime = Runtime(tmp_path_factory.mktemp("oci"))
    become_subreaper()
    yield runtime
    runtime.tear_down()
    become_subreaper(False)
    bury()


@pytest.fixture
def puller(tmp_path):
    """A home with an empty cache, and no credentials."""
    env = {"DOCKER_CONFIG": str(tmp_path / "docker"), "MSB_REGISTRIES_CONFIG": ""}
    m = Msb(make_home(tmp_path), env)
    for name in list(m.env):
        if name.lower().endswith("_proxy"):
            del m.env[name]
    yield m
    tear_down(m)


@pytest.fixture(scope="module")
def python_home(tmp_path_factory, shared_cache):
    """A home that has python:3.11-slim."""
    from sdkkit import load_python

    tmp = tmp_path_factory.mktemp("sdk")
    m = Msb(make_home(tmp, shared_cache))
    load_python(m, tmp)
    yield m
    tear_down(m)


@pytest.fixture
def outside(internet, tmp_path, shared_cache):
    """A client whose sandboxes have the small internet around them."""
    from sdkkit import load_python, sdk

    m = internet.msb(make_home(tmp_path, shared_cache))
    load_python(m, tmp_path)
    program = tmp_path / "msb-there"
    program.write_text("#!/bin/sh\nexec " + " ".join(m.command(["\"$@\""])) + "\n")
    program.chmod(0o755)
    yield sdk.SandboxClient(msb=str(program), home=str(m.home), env=m.env)
    tear_down(m)


def pytest_configure(config):
    if not MSB.exists():
        raise pytest.UsageError(f"{MSB} does not exist: run `make` first")
    config.addinivalue_line("markers", "timeout(seconds): how long the test may take (pytest-timeout)")
    # What a shell's background job, nohup or cron ignores, clients would ignore, too.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    """Every test has a time limit, in seconds of this machine."""
    for item in items:
        own = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout((own.args[0] if own else LIMIT) * SLOW, method="signal"), append=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """A monitor hides its memory, and with it most of its /proc, from everyone but root: tests that
    look in there as an ordinary user are skipped, not failed."""
    outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    hidden = isinstance(error, PermissionError) and str(error.filename).startswith("/proc/")
    if hidden and os.geteuid() != 0:
        pytest.skip("looking into a monitor's /proc takes root")
