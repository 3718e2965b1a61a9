"""A terminal backend of an agent, driving msb with exactly the calls such clients make.

The client knows nothing but the command line: `create ... --replace --quiet`, one
`exec --quiet NAME -- bash -l -c <init>` that takes a snapshot of the environment, one
`exec --quiet NAME -- bash -c <wrapper>` per command with stdout and stderr the same pipe, SIGKILL
when a command takes too long, and at the end `stop NAME --quiet` followed three seconds later by
`remove NAME --quiet`, whether that is done or not.
"""
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import uuid

import pytest

import imagekit
from conftest import ROOT, Msb, make_home, tear_down, wait_for
from guest import FOREVER, PATIENCE, alive, finish, read, wait_dead, wait_file

IMAGE = "msb/base"
SEED = ROOT.parent / "shared" / "seeds" / "microsandbox.py"


def popen_bash(cmd, stdin_data=None):
    """One pipe for both output streams; stdin is /dev/null, or a pipe fed by a thread."""
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         encoding="utf-8", errors="replace",
                         stdin=subprocess.DEVNULL if stdin_data is None else subprocess.PIPE)
    if stdin_data is not None:
        def feed():
            try:
                p.stdin.write(stdin_data)
                p.stdin.close()
            except (BrokenPipeError, OSError):
                pass

        threading.Thread(target=feed, daemon=True).start()
    return p


class Environment:
    """What is common to all backends: the snapshot of the environment and the cwd marker."""

    def __init__(self, cwd="/root", timeout=60):
        self.cwd, self.timeout = cwd, timeout
        session = uuid.uuid4().hex[:12]
        self.snapshot = f"/tmp/hermes-snap-{session}.sh"
        self.cwd_file = f"/tmp/hermes-cwd-{session}.txt"
        self.marker = f"__HERMES_CWD_{session}__"

    def init_session(self):
        script = "\n".join([
            f"export -p > {self.snapshot}",
            f"declare -f | grep -vE '^_[^_]' >> {self.snapshot}",
            f"alias -p >> {self.snapshot}",
            f"echo 'shopt -s expand_aliases' >> {self.snapshot}",
            f"echo 'set +e' >> {self.snapshot}",
            f"echo 'set +u' >> {self.snapshot}",
            f"pwd -P > {self.cwd_file} 2>/dev/null || true",
            f"printf '\\n{self.marker}%s{self.marker}\\n' \"$(pwd -P)\"",
        ])
        p = self._run_bash(script, login=True, timeout=30)
        self.init_result = self._wait(p, 30)

    def execute(self, command, timeout=None, stdin_data=None):
        wrapper = "\n".join([
            f"source {self.snapshot} 2>/dev/null || true",
            f"builtin cd {shlex.quote(self.cwd)} || exit 126",
            f"eval {shlex.quote(command)}",
            "__hermes_ec=$?",
            f"export -p > {self.snapshot} 2>/dev/null || true",
            f"pwd -P > {self.cwd_file} 2>/dev/null || true",
            f"printf '\\n{self.marker}%s{self.marker}\\n' \"$(pwd -P)\"",
            "exit $__hermes_ec",
        ])
        limit = timeout or self.timeout
        return self._wait(self._run_bash(wrapper, timeout=limit, stdin_data=stdin_data), limit)

    def _wait(self, p, limit):
        """Reads to the end in a thread; a client that takes too long is killed, 124."""
        chunks = []

        def drain():
            for line in p.stdout:
                chunks.append(line)

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        try:
            code = p.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            code = 124
        reader.join(timeout=PATIENCE)
        assert not reader.is_alive(), "somebody still holds the client's pipe"
        p.stdout.close()
        output = "".join(chunks)
        last = output.rfind(self.marker)
        first = output.rfind(self.marker, 0, last) if last > 0 else -1
        if first >= 0:
            self.cwd = output[first + len(self.marker):last]
            output = output[:output.rfind("\n", 0, first)] + output[last + len(self.marker) + 1:]
        return {"output": output, "returncode": code}


class Backend(Environment):
    """The calls of a microsandbox backend, spelled out."""

    def __init__(self, m, task="task", extra=(), env=()):
        super().__init__()
        self.m = m
        self.name = f"hermes-{task}-{uuid.uuid4().hex[:8]}"
        self.env_args = [a for kv in sorted(env) for a in ("--env", kv)]
        p = subprocess.run([m.exe, "--version"], capture_output=True, text=True, timeout=10)
        assert p.returncode == 0
        p = subprocess.run([m.exe, "create", "--name", self.name, "--replace", "--quiet",
                            "--cpus", "1", "--memory", "5120M", *extra, IMAGE],
                           capture_output=True, text=True, timeout=PATIENCE)
        assert (p.returncode, p.stdout, p.stderr) == (0, "", "")
        self.init_session()

    def _run_bash(self, script, login=False, timeout=120, stdin_data=None):
        env = self.env_args if login else []
        shell = ["bash", "-l", "-c"] if login else ["bash", "-c"]
        return popen_bash([self.m.exe, "exec", "--quiet", *env, self.name, "--", *shell, script],
                          stdin_data)

    def cleanup(self):
        """Fire and forget, as the client does; returns the processes for the test to look at."""
        stop = subprocess.Popen([self.m.exe, "stop", self.name, "--quiet"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        remove = subprocess.Popen(["sh", "-c", f"sleep 3 && {self.m.exe} remove {self.name} --quiet "
                                   ">/dev/null 2>&1"])
        return stop, remove


@pytest.fixture
def client(msb, monkeypatch):
    """The client inherits its environment, so that of the test has to be msb's."""
    for key, value in msb.env.items():
        monkeypatch.setenv(key, value)
    return msb


@pytest.fixture(scope="module")
def backend(module_msb):
    """One backend for the tests that only run commands."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in module_msb.env.items():
            patch.setenv(key, value)
        yield Backend(module_msb, env=["FORWARDED=from config"])


# --- commands -----------------------------------------------------------------------------------


def test_init_reports_the_working_directory(backend):
    """Login shell, no word but the marker; its directory is adopted."""
    assert backend.init_result["returncode"] == 0
    assert backend.init_result["output"].strip() == ""
    assert backend.cwd.startswith("/")


def test_echo(backend):
    r = backend.execute("echo 'Hello from microsandbox!'")
    assert r == {"output": "Hello from microsandbox!\n", "returncode": 0}


def test_exit_42(backend):
    """exit leaves inside the eval: no marker, the code must still come."""
    assert backend.execute("exit 42") == {"output": "", "returncode": 42}


def test_failing_command(backend):
    assert backend.execute("false")["returncode"] == 1
    assert backend.execute("no-such-program")["returncode"] == 127


def test_kernel(backend):
    assert "Linux" in backend.execute("uname -a")["output"]


def test_both_streams_in_one_pipe(backend):
    r = backend.execute("echo out; echo err >&2")
    assert sorted(r["output"].split()) == ["err", "out"]


def test_environment_is_carried_over(backend):
    """By the snapshot alone: --env comes with the first call only."""
    assert backend.execute("echo $FORWARDED")["output"] == "from config\n"
    backend.execute("export CARRIED='a b'")
    assert backend.execute('echo "$CARRIED"')["output"] == "a b\n"


def test_directory_is_carried_over(backend):
    """The marker is found wherever it is, and names the directory for the next command."""
    backend.execute("mkdir -p /tmp/some/where; cd /tmp/some/where")
    assert backend.cwd == "/tmp/some/where"
    assert backend.execute("pwd")["output"] == "/tmp/some/where\n"
    assert backend.execute("rm -r /tmp/some/where; cd /")["returncode"] == 0
    assert backend.cwd == "/"


def test_files_persist_between_commands(backend):
    backend.execute("echo sandboxed > /tmp/f.txt")
    assert backend.execute("cat /tmp/f.txt")["output"] == "sandboxed\n"


def test_stdin_writes_a_file(backend):
    """How a file tool writes: megabytes through a pipe, then the end."""
    data = "0123456789abcdef\n" * 200_000
    assert backend.execute("cat > /tmp/big", stdin_data=data)["returncode"] == 0
    assert backend.execute("wc -c < /tmp/big; md5sum < /tmp/big | cut -c1-32")["output"].split()[0] == \
        str(len(data))


def test_stdin_nobody_reads(backend):
    assert backend.execute("true", stdin_data="x" * 5_000_000)["returncode"] == 0


def test_a_long_script(backend):
    """One argument, close to the limit of 128 KiB, with everything that needs quoting."""
    text = "quote ' double \" dollar $x back `true` \\ newline\n grüße 🦊 " * 1700
    assert 100_000 < len(text.encode()) < 125_000
    r = popen_bash([backend.m.exe, "exec", "--quiet", backend.name, "--", "bash", "-c",
                    "cat <<'EOF'\n" + text + "\nEOF\n"])
    assert r.communicate(timeout=PATIENCE)[0] == text + "\n"


def test_timeout_kills_in_the_guest(backend):
    """SIGKILL of the client alone: partial output is there, the guest's processes are not."""
    m, name = backend.m, backend.name
    r = backend.execute(f"echo partial; (sleep {FOREVER}; :) & echo $! > /tmp/k; "
                        f"bash -c 'echo $$ >> /tmp/k; sleep {FOREVER}; :'", timeout=1)
    assert r == {"output": "partial\n", "returncode": 124}
    pids = read(m, name, "/tmp/k").split()
    assert len(pids) == 2
    wait_dead(m, name, *pids)
    assert backend.execute("echo still here")["output"] == "still here\n"


def test_background_job_survives_its_command(backend):
    """nohup and &: the command returns at once, the job lives, its end can be seen with kill -0."""
    m, name = backend.m, backend.name
    r = backend.execute(f"nohup bash -c 'echo started; sleep {FOREVER}' > /tmp/bg.log 2>&1 & "
                        "echo $! > /tmp/bg.pid")
    assert r["returncode"] == 0
    pid = read(m, name, "/tmp/bg.pid")
    assert wait_file(m, name, "/tmp/bg.log") == "started"
    assert backend.execute(f"kill -0 {pid}")["returncode"] == 0
    backend.execute(f"pkill -P {pid} 2>/dev/null; kill {pid}")
    wait_for(lambda: backend.execute(f"kill -0 {pid}")["returncode"] != 0, timeout=PATIENCE)


def test_background_job_that_holds_the_pipe(backend):
    """The command is over when its shell is, although a child still has the client's stdout."""
    r = backend.execute(f"sleep {FOREVER} & echo $! > /tmp/hold.pid; echo back", timeout=PATIENCE)
    assert r == {"output": "back\n", "returncode": 0}
    assert alive(backend.m, backend.name, read(backend.m, backend.name, "/tmp/hold.pid"))


def test_parallel_polls(backend):
    """A script runs for a while; several pollers look at its progress all the time."""
    script = popen_bash([backend.m.exe, "exec", "--quiet", backend.name, "--", "bash", "-c",
                         "for i in $(seq 20); do echo $i > /tmp/progress; sleep 0.05; done; echo end"])

    def poll(_):
        seen = []
        while script.poll() is None:
            p = popen_bash([backend.m.exe, "exec", "--quiet", backend.name, "--", "bash", "-c",
                            "cat /tmp/progress 2>/dev/null"])
            out = p.communicate(timeout=PATIENCE)[0]
            if out.strip():
                seen.append(int(out))
        return seen

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for seen in pool.map(poll, range(4)):
            assert len(seen) >= 2 and seen == sorted(seen)
    assert script.communicate()[0] == "end\n"


def test_host_environment_does_not_leak(client, monkeypatch):
    monkeypatch.setenv("HERMES_TEST_SECRET_ABC123", "shouldnotleak")
    b = Backend(client)
    r = b.execute("env | grep HERMES_TEST_SECRET_ABC123 || echo ABSENT")
    assert r["output"] == "ABSENT\n"


def test_tasks_are_isolated(client):
    """Two backends, made at the same time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        a, b = pool.map(lambda t: Backend(client, task=t), ["msb_test_iso_a", "msb_test_iso_b"])
    a.execute("echo secret > /tmp/isolated.txt")
    r = b.execute("cat /tmp/isolated.txt 2>&1 || echo NOT_FOUND")
    assert "secret" not in r["output"] and "NOT_FOUND" in r["output"]


# --- creation -----------------------------------------------------------------------------------


def test_all_options_of_the_client(client):
    b = Backend(client, task="x" * 40 + "_y",
                extra=["--no-network", "--max-duration", "1h", "--idle-timeout", "5m"])
    assert b.execute("echo up")["output"] == "up\n"


def test_create_lets_go_of_everything_it_inherited(client):
    """stdout, stderr and any other descriptor: a reader sees the end when create returns."""
    r, w = os.pipe()
    extra_r, extra_w = os.pipe()
    p = subprocess.Popen([client.exe, "create", "--name", "b", "--replace", "--quiet", IMAGE],
                         stdout=w, stderr=w, pass_fds=[extra_w], env=client.env)
    os.close(w)
    os.close(extra_w)
    assert p.wait(timeout=PATIENCE) == 0
    for fd in (r, extra_r):
        assert select.select([fd], [], [], PATIENCE)[0], "an inherited descriptor is still open"
        assert os.read(fd, 1) == b""
        os.close(fd)
    assert client.ok("exec", "-q", "b", "--", "echo", "up") == "up\n"


def test_the_sandbox_survives_its_creator(client):
    """It has a session of its own: the end of the client's group or terminal is nothing to it."""
    p = subprocess.Popen(["sh", "-c", f"{client.exe} create --name b --quiet {IMAGE}; echo done; "
                          f"sleep {FOREVER}"], stdout=subprocess.PIPE, start_new_session=True,
                         env=client.env)
    assert p.stdout.readline() == b"done\n"
    os.killpg(p.pid, signal.SIGHUP)
    p.wait()
    p.stdout.close()
    assert client.ok("exec", "-q", "b", "--", "echo", "up") == "up\n"
    assert os.getsid(client.monitor_pid("b")) not in (p.pid, os.getsid(0))


@pytest.mark.parametrize("delay", [0.005, 0.02, 0.05])
def test_a_killed_create_leaves_no_half_made_sandbox(client, delay):
    """Either it is there and works, or there is nothing."""
    p = subprocess.Popen([client.exe, "create", "--name", "b", "--quiet", IMAGE], env=client.env)
    time.sleep(delay)
    p.kill()
    p.wait()

    def settled():
        names = client.ok("ls", "-q").split()
        if not names:
            return not client.processes()
        return client("exec", "-q", "b", "--", "true").returncode == 0

    wait_for(settled, timeout=PATIENCE)
    client.ok("create", "--name", "b", "--replace", "--quiet", IMAGE)
    assert client.ok("exec", "-q", "b", "--", "echo", "up") == "up\n"


def test_replace_an_idle_sandbox(client):
    for _ in range(3):
        p = client("create", "--name", "b", "--replace", "--quiet", IMAGE)
        assert (p.returncode, p.stdout, p.stderr) == (0, b"", b"")


# --- the end ------------------------------------------------------------------------------------


def test_cleanup(client):
    """stop, and remove three seconds later: nothing is left."""
    b = Backend(client)
    b.execute(f"nohup sleep {FOREVER} >/dev/null 2>&1 &")
    stop, remove = b.cleanup()
    assert stop.wait(timeout=3) == 0
    assert remove.wait(timeout=PATIENCE) == 0
    assert client.leftovers() == []


def test_cleanup_while_a_stop_takes_its_time(client):
    """A command that does not want to end uses up the grace period; remove waits for that."""
    b = Backend(client)
    p = popen_bash([client.exe, "exec", "--quiet", b.name, "--", "bash", "-c",
                    "trap '' TERM HUP; echo up; while :; do sleep 0.1; done"])
    assert p.stdout.readline() == "up\n"
    stop, remove = b.cleanup()
    assert stop.wait(timeout=PATIENCE) == 0
    assert remove.wait(timeout=PATIENCE) == 0
    assert client.leftovers() == []
    finish(p)


def test_stop_and_remove_of_nothing(client):
    """Clients ignore the exit code, but it is the documented one."""
    p = client("stop", "nobody", "--quiet")
    assert (p.returncode, p.stderr) == (1, b"error: sandbox not found: nobody\n")
    p = client("remove", "nobody", "--quiet")
    assert (p.returncode, p.stdout) == (1, b"")


# --- the client itself --------------------------------------------------------------------------


def load_seed(monkeypatch):
    """The client's own module, as it is, with stand-ins for what it imports."""
    if not SEED.exists():
        pytest.skip(f"{SEED} is not there")
    modules = {name: types.ModuleType(name) for name in
               ("tools", "tools.environments", "tools.environments.base",
                "tools.environments.local")}
    modules["tools.environments.base"].BaseEnvironment = Environment
    modules["tools.environments.base"]._popen_bash = popen_bash
    modules["tools.environments.local"]._HERMES_PROVIDER_ENV_BLOCKLIST = frozenset({"BLOCKED_KEY"})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("seed_microsandbox", SEED)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # It insists on /dev/kvm, which not every engine of ours needs.
    access = os.access
    monkeypatch.setattr(module.os, "access", lambda path, mode, **kw:
                        True if path == "/dev/kvm" else access(path, mode, **kw))
    return module


def test_the_client_unmodified(client, monkeypatch):
    """Its module against our binary: commands, environment, time-out, cleanup."""
    module = load_seed(monkeypatch)
    monkeypatch.setenv("MSB_PATH", client.exe)
    monkeypatch.setenv("SECRET_OF_THE_HOST", "shouldnotleak")
    monkeypatch.setenv("FORWARD_ME", "forwarded")
    env = module.MicrosandboxEnvironment(
        IMAGE, cpu=1, memory=5120, task_id="msb_test_seed", forward_env=["FORWARD_ME"],
        env={"FROM_CONFIG": "configured"}, network=False, max_duration="1h", idle_timeout="5m")
    name = env._sandbox_name
    assert client.ok("ls", "-q") == name + "\n"
    assert env.execute("echo 'Hello from microsandbox!'") == \
        {"output": "Hello from microsandbox!\n", "returncode": 0}
    assert env.execute("exit 42")["returncode"] == 42
    assert "Linux" in env.execute("uname -a")["output"]
    env.execute("echo sandboxed > /tmp/f; export KEPT=yes; cd /usr")
    assert env.execute("cat /tmp/f; echo $KEPT; pwd")["output"] == "sandboxed\nyes\n/usr\n"
    assert env.execute("echo $FORWARD_ME $FROM_CONFIG")["output"] == "forwarded configured\n"
    assert env.execute("env | grep SECRET_OF || echo ABSENT")["output"] == "ABSENT\n"
    assert env.execute("cat", stdin_data="piped")["output"] == "piped"
    r = env.execute(f"echo partial; echo $$ > /tmp/pid; sleep {FOREVER}", timeout=1)
    assert r == {"output": "partial\n", "returncode": 124}
    wait_dead(client, name, read(client, name, "/tmp/pid"))
    env.cleanup()
    wait_for(lambda: client.leftovers() == [], timeout=PATIENCE)


def test_the_client_keeps_a_persistent_sandbox(client, monkeypatch):
    module = load_seed(monkeypatch)
    monkeypatch.setenv("MSB_PATH", client.exe)
    env = module.MicrosandboxEnvironment(IMAGE, task_id="keep", persistent_filesystem=True)
    name = env._sandbox_name
    env.cleanup()
    assert client.status(name) == "Running"


def test_the_client_reports_our_error(client, monkeypatch):
    """A create that fails tells why, and leaves nothing."""
    module = load_seed(monkeypatch)
    monkeypatch.setenv("MSB_PATH", client.exe)
    with pytest.raises(RuntimeError, match=r"msb create failed \(exit 1\): error: .+"):
        module.MicrosandboxEnvironment("/no/such/image", task_id="bad")
    assert client.leftovers() == []


# --- the client's own integration test ----------------------------------------------------------

# It wants alpine:3, which has no bash, and drives everything with `bash -l -c`.

SEED_TEST = SEED.parent / "test_microsandbox_terminal.py"

# What stands in for the rest of the client: one environment for each task, kept, with the
# arguments that its terminal tool passes on.
TERMINAL_TOOL = '''
import json, os, sys
sys.path[:0] = [{e2e!r}]
import pytest
import test_client_contract as contract

module = contract.load_seed(pytest.MonkeyPatch())
environments = {{}}

def terminal_tool(command, task_id, **kw):
    if task_id not in environments:
        environments[task_id] = module.MicrosandboxEnvironment(
            os.environ["TERMINAL_MICROSANDBOX_IMAGE"], cpu=1, memory=5120, task_id=task_id,
            persistent_filesystem=True)
    r = environments[task_id].execute(command, **kw)
    return json.dumps({{"output": r["output"], "exit_code": r["returncode"]}})

def cleanup_vm(task_id):
    if task_id in environments:
        environments.pop(task_id).cleanup()
'''

# Before the test is read: it asks for /dev/kvm itself.
KVM_IS_THERE = '''
import os
access = os.access
os.access = lambda path, mode, **kw: path == "/dev/kvm" or access(path, mode, **kw)
'''


@pytest.fixture(params=["loaded", "pulled"])
def alpine(request, tmp_path):
    """A home that gets alpine:3 from an archive, or from what it takes for Docker Hub's mirror."""
    m = Msb(make_home(tmp_path))
    image = imagekit.alpine()
    if request.param == "loaded":
        m.ok("load", "-q", "-i", image.archive("docker", tmp_path / "alpine.tar", "alpine:3"))
    else:
        registry = request.getfixturevalue("registry")
        registry.push(image, "library/alpine:3")
        (m.home / "registries.json").write_text(json.dumps(
            {"registries": {"docker.io": {"mirrors": [f"http://{registry.host}"]}}}))
    yield m
    tear_down(m)


def test_alpine_has_no_bash_and_gets_one(alpine, monkeypatch):
    """The same ground as the client's test, without the client."""
    for key, value in alpine.env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("HERMES_TEST_SECRET_ABC123", "shouldnotleak")
    monkeypatch.setattr(sys.modules[__name__], "IMAGE", "alpine:3")
    a, b = Backend(alpine, task="msb_test_iso_a"), Backend(alpine, task="msb_test_iso_b")
    assert a.init_result == {"output": "", "returncode": 0}
    assert a.execute("echo 'Hello from microsandbox!'") == \
        {"output": "Hello from microsandbox!\n", "returncode": 0}
    assert a.execute("exit 42")["returncode"] == 42
    assert "Linux" in a.execute("uname -a")["output"]
    assert a.execute("cat /etc/alpine-release")["output"] == "3.0.0\n"
    a.execute("echo secret > /tmp/isolated.txt; export KEPT=yes; cd /usr")
    assert a.execute("cat /tmp/isolated.txt; echo $KEPT; pwd")["output"] == "secret\nyes\n/usr\n"
    r = b.execute("cat /tmp/isolated.txt 2>&1 || echo NOT_FOUND")
    assert "secret" not in r["output"] and "NOT_FOUND" in r["output"]
    r = b.execute("env | grep HERMES_TEST_SECRET_ABC123 || echo ABSENT")
    assert r["output"] == "ABSENT\n"
    # The image's own programs come first, and it has no bash of its own.
    where = b.execute("type -P sh; type -P bash; ls /bin/bash /usr/bin/bash 2>&1 | grep -c 'No such'")
    assert where["output"] == "/bin/sh\n/.msb/bin/bash\n2\n"


def test_the_clients_own_test(alpine, tmp_path):
    """test_microsandbox_terminal.py, to the letter, against alpine:3."""
    if not SEED_TEST.exists():
        pytest.skip(f"{SEED_TEST} is not there")
    top = tmp_path / "client"
    (top / "tests" / "integration").mkdir(parents=True)
    (top / "tools").mkdir()
    (top / "kvm_is_there.py").write_text(KVM_IS_THERE)
    (top / "tools" / "terminal_tool.py").write_text(
        TERMINAL_TOOL.format(e2e=str(pathlib.Path(__file__).parent)))
    test = top / "tests" / "integration" / SEED_TEST.name
    shutil.copy(SEED_TEST, test)
    env = {**alpine.env, "MSB_PATH": alpine.exe, "MSB_BIN": alpine.exe, "PYTHONPATH": str(top)}
    p = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
                        "-p", "kvm_is_there", "--rootdir", top, test], env=env, cwd=top, capture_output=True, text=True,
                       timeout=300)
    assert p.returncode == 0, p.stdout[-5000:] + p.stderr
    assert "6 passed" in p.stdout and "skipped" not in p.stdout, p.stdout[-1000:]
