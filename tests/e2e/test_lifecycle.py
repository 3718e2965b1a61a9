"""A sandbox's life, from the outside: what each verb promises, and what races must not break."""
import ctypes
import hashlib
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import Msb, tear_down, wait_for

NAME_RULE = (
    "invalid config: sandbox name must start with an alphanumeric and contain only "
    "alphanumeric, dots, hyphens, and underscores: "
)


def inspect(msb, name):
    return json.loads(msb.ok("inspect", name, "--format", "json"))


def stderr(p):
    return p.stderr.decode()


def wait_status(msb, name, status, timeout=30):
    wait_for(lambda: msb.status(name) == status, timeout=timeout, interval=0.05)


def system_log(msb, name):
    """All of the sandbox's system log that is on disk, whoever may read it."""
    logs = msb.home / "sandboxes" / name / "run" / "logs"
    return "".join(p.read_text(errors="replace") for p in sorted(logs.glob("system.log*")))


# --- create --------------------------------------------------------------------------------------


def test_first_exec_succeeds_as_soon_as_create_returns(msb):
    for i in range(5):
        msb.create(f"now{i}", "-m", "128M")
        assert msb.ok("exec", "-q", f"now{i}", "--", "echo", "up") == "up\n"


def test_create_prints_a_made_up_name_and_nothing_else(msb):
    name = msb.ok("create").strip()
    assert re.fullmatch(r"msb-[0-9a-f]{8}", name)
    assert msb.status(name) == "Running"
    assert msb.ok("create", "-n", "given") == ""


def test_monitor_keeps_nothing_of_its_caller(msb, tmp_path):
    """No descriptor, no session, no controlling terminal, no working directory of the caller."""
    reader, writer = os.pipe()
    sock_a, sock_b = socket.socketpair()
    with open(tmp_path / "open-file", "w") as f:
        mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in (writer, sock_b.fileno(), f.fileno())}
        p = msb(
            "create", "-n", "clean", "-q",
            pass_fds=(writer, sock_b.fileno(), f.fileno()), stdout=writer, stderr=writer,
            cwd=tmp_path,
        )  # fmt: skip
        assert p.returncode == 0
    os.close(writer)
    sock_b.close()
    monitor = msb.monitor_pid("clean")
    for pid in msb.tree(monitor):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except FileNotFoundError:
                continue
            assert target not in mine, f"process {pid} holds {target}"
        assert os.getsid(pid) != os.getsid(0)
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        assert fields[4] == "0", "it has a controlling terminal"
        assert not os.readlink(f"/proc/{pid}/cwd").startswith(str(tmp_path / "open"))
    # The other ends are closed everywhere: both readers see end of file.
    os.set_blocking(reader, False)
    assert os.read(reader, 100) == b""
    sock_a.setblocking(False)
    assert sock_a.recv(1) == b""
    os.close(reader)
    sock_a.close()


def test_sandbox_outlives_its_callers_session(msb):
    shell = subprocess.Popen(
        ["sh", "-c", f"{msb.exe} create -n stays -q && echo done && exec sleep 1000"],
        env=msb.env, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert shell.stdout.readline() == b"done\n"
    os.killpg(shell.pid, signal.SIGHUP)
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    assert msb.ok("exec", "-q", "stays", "--", "echo", "alive") == "alive\n"


def all_gone(msb, name):
    """After one more command nothing of `name` may exist."""
    # An ordinary user does not see a monitor that is still going away.
    wait_for(lambda: not msb.processes() and msb("ls").returncode == 0 and msb.leftovers() == [], timeout=20)


def kill_create(msb, name, when):
    """Starts a create, kills it after when(process) returned; says whether it had succeeded."""
    p = msb.popen("create", "-n", name, "-q", "-m", "128M", stderr=subprocess.DEVNULL)
    when(p)
    p.kill()
    return p.wait() == 0


def test_killed_create_leaves_nothing(msb):
    """Whenever its creator is killed, a sandbox is either complete or gone, and the name free."""
    rng = random.Random(7)
    complete = 0
    for i in range(40):
        delay = rng.uniform(0, 0.08)
        kill_create(msb, "victim", lambda p: time.sleep(delay))
        if i % 2 == 0:  # at once again, while the first one may still be on its way out
            p = msb("create", "-n", "victim", "-q", "-m", "128M")
            if p.returncode:
                assert "already exists" in stderr(p)
                complete += 1
            assert msb.status("victim") == "Running"
            assert msb.ok("exec", "-q", "victim", "--", "echo", "ok") == "ok\n"
            msb.ok("rm", "-f", "-q", "victim")
        else:
            wait_for(lambda: msb("ls", "-q").stdout.decode() != "" or not msb.processes())
            if msb.ok("ls", "-q"):
                complete += 1
                assert msb.status("victim") == "Running"
                assert msb.ok("exec", "-q", "victim", "--", "echo", "ok") == "ok\n"
                msb.ok("rm", "-f", "-q", "victim")
        all_gone(msb, "victim")
    assert complete < 40, "no create was killed: the delays are too long"


@pytest.mark.parametrize(
    "path",
    ["locks/v", "sandboxes/v", "sandboxes/v/lock", "sandboxes/v/upper.ext4",
     "sandboxes/v/run/agent.sock", "sandboxes/v/run/state.json", "sandboxes/v/run/logs/system.log",
     "sandboxes/v/spec.json"],
)  # fmt: skip
def test_create_killed_as_a_file_appears_leaves_nothing(msb, path):
    def appeared(p):
        while not (msb.home / path).exists() and p.poll() is None:
            pass

    for _ in range(3):
        done = kill_create(msb, "v", appeared)
        wait_for(lambda: done or msb("ls", "-q").stdout or not msb.processes())
        if msb.ok("ls", "-q"):
            assert msb.status("v") == "Running"
            assert msb.ok("exec", "-q", "v", "--", "echo", "ok") == "ok\n"
            msb.ok("rm", "-f", "-q", "v")
        all_gone(msb, "v")


def test_lock_of_a_killed_create_is_cleaned_up(msb):
    """A creator that died between taking the name's lock and making its directory."""
    msb.ok("ls")
    (msb.home / "locks" / "early").touch(mode=0o600)
    msb.ok("ls")
    assert msb.leftovers() == []


def test_failed_create_leaves_nothing(msb, tmp_path):
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"this is no tar archive" * 100)
    for args in (["./does-not-exist"], [str(bad)], ["-m", "1M"]):
        p = msb("create", "-n", "broken", *args)
        assert p.returncode == 1, (args, p)
        assert stderr(p).startswith("error: ")
        assert msb.processes() == [] and msb.leftovers() == []


def test_boot_that_fails_leaves_nothing_and_says_why(msb, tmp_path):
    """The kernel starts but finds no agent to run."""
    assets = tmp_path / "assets"
    assets.mkdir()
    real = os.environ.get("MSB_ASSETS") or os.path.join(os.path.dirname(msb.exe), "../../assets")
    for f in os.listdir(real):
        (assets / f).symlink_to(os.path.join(os.path.abspath(real), f))
    (assets / "tools.erofs").unlink()
    (assets / "tools.erofs").write_bytes(bytes(1 << 20))
    msb.env["MSB_ASSETS"] = str(assets)
    p = msb("create", "-n", "broken", timeout=90)
    assert p.returncode == 1
    assert stderr(p).startswith("error: ") and "  → " in stderr(p)
    assert msb.leftovers() == []
    wait_for(lambda: not msb.processes())


def test_two_creates_of_one_name(msb):
    """One wins; the others are told that it exists, once it does."""
    for _ in range(3):
        ps = [msb.popen("create", "-n", "twin", "-q", stderr=subprocess.PIPE) for _ in range(4)]
        errors = [(p.communicate(timeout=60)[1].decode(), p.returncode) for p in ps]
        assert sorted(code for _, code in errors) == [0, 1, 1, 1]
        for text, code in errors:
            if code:
                assert text == (
                    "error: sandbox already exists: sandbox 'twin' already exists\n"
                    "  → remove it (msb rm twin), use it (msb exec twin), or recreate it with --replace\n"
                )
        assert msb.sh("twin", "echo fine").stdout == b"fine\n"
        msb.ok("rm", "-f", "twin", "-q")


def test_replace(msb):
    msb.create("r", "-e", "WHO=first")
    old = msb.monitor_pid("r")
    msb.sh("r", "echo data > /root/old")
    p = msb("create", "-n", "r")
    assert p.returncode == 1 and "already exists" in stderr(p)
    msb.create("r", "--replace", "-e", "WHO=second")
    assert not os.path.exists(f"/proc/{old}") or msb.monitor_pid("r") != old
    assert msb.sh("r", "echo $WHO; cat /root/old").stdout == b"second\n"
    assert msb.ok("ls", "-q") == "r\n"


def test_replace_with_timeout_zero_kills(msb):
    """0 does not wait for a guest that wants time to stop; the option implies --replace."""
    msb.create("r")
    stubborn = msb.popen("exec", "-q", "r", "--", "sh", "-c", "trap '' TERM; sleep 100",
                         stderr=subprocess.DEVNULL)  # fmt: skip
    msb.create("r", "--replace-with-timeout", "0")
    assert stubborn.wait(timeout=10) != 0
    assert msb.sh("r", "echo new").stdout == b"new\n"


def test_replace_of_nothing_is_create(msb):
    msb.create("fresh", "--replace")
    assert msb.status("fresh") == "Running"


# --- what a caller may leave msb in --------------------------------------------------------------


def close_stdio():
    for fd in (0, 1, 2):
        os.close(fd)


INHERITED = {
    "SIGCHLD ignored": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "all signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "umask 0": lambda: os.umask(0),
    "umask 0777": lambda: os.umask(0o777),
    "closed stdio": close_stdio,
}


@pytest.mark.parametrize("what", INHERITED)
def test_inherited_state_does_not_matter(tmp_path, what):
    """Signals, umask and descriptors of the caller change nothing, from the first use of a home."""
    m = Msb(tmp_path / "home")
    for args in (["create", "-n", "x", "-m", "64M"], ["stop", "x"], ["start", "x"]):
        m(*args, preexec_fn=INHERITED[what], check=0)
    assert m.status("x") == "Running"
    assert m.sh("x", "echo fine").stdout == b"fine\n"
    for top, dirs, files in os.walk(m.home):
        for f in dirs + files:
            st = os.lstat(os.path.join(top, f))
            # Images are shared, and nobody may change them.
            want = 0o400 if top.endswith("cache/images") else 0o600
            assert st.st_mode & 0o677 == want, os.path.join(top, f)
    tear_down(m)


@pytest.mark.parametrize("files", [4, 8, 12, 16, 20, 24])
def test_few_descriptors(msb, files):
    """Said so, and nothing is left."""
    p = msb("create", "-n", "x", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    assert p.returncode == 1 and "Too many open files" in stderr(p)
    wait_for(lambda: not msb.processes())
    assert msb.leftovers() == []


def refuse_personality():
    """As some containers do: from now on, the call fails with EPERM."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 135), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
    prctl = ctypes.CDLL(None).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert prctl(22, 2, ctypes.c_char_p(struct.pack("HxxxxxxQ", 4, ctypes.addressof(code))), 0, 0) == 0  # PR_SET_SECCOMP


@pytest.mark.parametrize("engine", ["uml", "uml-ptrace"])
def test_a_heap_at_a_random_place(msb, engine):
    """Which the host insists on: the guest's memory begins somewhere else each time."""
    for _ in range(3):
        p = msb("run", "-q", "--engine", engine, "-m", "128M", "--", "echo", "up", preexec_fn=refuse_personality)
        assert (p.returncode, p.stdout) == (0, b"up\n"), p.stderr


def test_file_size_limit(msb):
    p = msb("create", "-n", "x", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert p.returncode == 1 and "File too large" in stderr(p)
    assert msb.leftovers() == []


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, message",
    [
        ("", "invalid config: sandbox name is required"),
        ("x" * 129, "invalid config: sandbox name must be at most 128 characters: got 129"),
        ("a/b", NAME_RULE + "a/b"),
        (".hidden", NAME_RULE + ".hidden"),
        ("..", NAME_RULE + ".."),
        ("-dash", None),
        ("_under", NAME_RULE + "_under"),
        ("sp ace", NAME_RULE + "sp ace"),
        ("ümlaut", NAME_RULE + "ümlaut"),
    ],
)
def test_bad_names(msb, name, message):
    p = msb("create", f"--name={name}")
    assert p.returncode == 1
    if message:
        assert stderr(p).splitlines()[0] == "error: " + message
    assert msb.leftovers() == []


def test_names_are_checked_by_every_verb(msb):
    """A name is never a path, whichever verb takes it."""
    (msb.home / "outside").mkdir()
    for verb in ("start", "stop", "restart", "rm", "ping", "touch", "inspect", "exec", "status"):
        p = msb(verb, "../outside", *(["--", "true"] if verb == "exec" else []))
        assert p.returncode == 1, verb
        assert NAME_RULE + "../outside" in stderr(p), verb
    assert (msb.home / "outside").is_dir()


@pytest.mark.parametrize("name", ["x" * 128, "A.b-c_9", "0", "a..b", "n" * 63, "n" * 64])
def test_good_names_and_their_hostnames(msb, name):
    msb.create(name)
    host = msb.ok("exec", "-q", name, "--", "hostname").strip()
    expected = re.sub(r"[._]", "-", name)  # what a host name may consist of
    if len(name) <= 63:
        assert host == expected
    else:  # cut, and kept apart from others that begin alike
        assert len(host) == 63
        assert re.fullmatch(re.escape(expected[:54]) + "-[0-9a-f]{8}", host)
    msb.ok("stop", name, "-q", "-t", "0")
    msb.ok("rm", name, "-q")


# --- verbs on many -------------------------------------------------------------------------------


def test_verbs_take_many_names(msb):
    """All are worked on, whatever happens to one of them; the exit code tells."""
    msb.create("a")
    msb.create("b")
    p = msb("ping", "a", "nope", "b")
    assert p.returncode == 1
    assert "error: sandbox not found: nope\n" in stderr(p)
    assert re.search(r"✓ Reachable +a \(\d+(\.\d+)?ms\)", stderr(p))
    assert re.search(r"✓ Reachable +b \(", stderr(p))
    assert p.stdout == b""
    p = msb("touch", "a", "b")
    assert p.returncode == 0 and stderr(p).count("✓ Touched") == 2
    p = msb("stop", "a", "nope", "b", "a")
    assert p.returncode == 1 and stderr(p).count("✓ Stopped") == 2
    assert [msb.status(n) for n in "ab"] == ["Stopped", "Stopped"]
    p = msb("start", "a", "b")
    assert p.returncode == 0 and stderr(p).count("✓ Started") == 2
    p = msb("restart", "b", "a")
    assert p.returncode == 0 and stderr(p).count("✓ Restarted") == 2
    p = msb("rm", "-f", "a", "b", "nope")
    assert p.returncode == 1 and stderr(p).count("✓ Removed") == 2
    assert msb.leftovers() == []


def test_label_selectors(msb):
    """Labels are ANDed, joined with the names, and a match of nothing is no error."""
    msb.create("a", "--label", "team=x", "--label", "tier=db")
    msb.create("b", "--label", "team=x")
    msb.create("c")
    p = msb("ping", "--label", "team=x", "--label", "tier=db")
    assert stderr(p).count("Reachable") == 1 and " a (" in stderr(p)
    p = msb("ping", "c", "a", "--label", "team=x")
    assert p.returncode == 0 and stderr(p).count("Reachable") == 3
    p = msb("stop", "--label", "team=nobody")
    assert (p.returncode, stderr(p)) == (0, "warn: no sandboxes matched the given labels\n")
    msb.ok("stop", "--label", "team", "-q", "-t", "0")
    assert [msb.status(n) for n in "abc"] == ["Stopped", "Stopped", "Running"]
    for verb in ("start", "stop", "restart", "rm", "ping", "touch"):
        assert msb(verb).returncode == 2, verb
    msb.ok("rm", "-q", "--label", "team=x")
    assert msb.ok("ls", "-q") == "c\n"


def test_missing_names(msb):
    for verb in ("start", "stop", "restart", "ping", "touch", "rm", "inspect"):
        p = msb(verb, "ghost")
        assert (p.returncode, stderr(p)) == (1, "error: sandbox not found: ghost\n"), verb
    p = msb("exec", "ghost", "--", "true")
    assert (p.returncode, stderr(p)) == (1, "error: sandbox not found: ghost\n")
    assert msb.leftovers() == [], "asking for a name must not make anything"


def test_quiet_silences_success_but_not_errors(msb):
    msb.create("a")
    assert msb("stop", "a", "-q").stderr == b""
    assert msb("start", "a", "-q").stderr == b""
    assert msb("stop", "-q", "ghost").stderr == b"error: sandbox not found: ghost\n"
    p = msb("rm", "-q", "-f", "ghost")
    assert (p.returncode, p.stderr) == (1, b"")  # "make sure that it is gone"
    p = msb("rm", "-f", "ghost")
    assert (p.returncode, p.stderr) == (1, b"error: sandbox not found: ghost\n")


def test_status_decides(msb):
    """Each verb on a sandbox that is not in the state that it needs."""
    msb.create("a")
    p = msb("start", "a")
    assert (p.returncode, stderr(p)) == (
        1, "error: sandbox still running: cannot start sandbox 'a': already running\n",
    )  # fmt: skip
    p = msb("rm", "a")
    assert p.returncode == 1
    assert stderr(p).splitlines()[0] == (
        'error: sandbox still running: cannot remove sandbox "a": status is Running'
    )
    assert msb.status("a") == "Running"
    msb.ok("stop", "a", "-q")
    p = msb("stop", "a")
    assert p.returncode == 0 and "✓ Stopped" in stderr(p)
    for verb in ("ping", "touch"):
        p = msb(verb, "a")
        assert (p.returncode, stderr(p)) == (
            1, f"error: sandbox 'a' is not running (status: Stopped); cannot {verb}\n",
        )  # fmt: skip
    msb.ok("restart", "a", "-q")
    assert msb.status("a") == "Running"
    msb.ok("rm", "-f", "a", "-q")
    assert msb.leftovers() == [] and msb.processes() == []


# --- stopping ------------------------------------------------------------------------------------

TRAP = "trap 'sleep {delay}; echo bye > /root/last-words; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


def trapping(msb, name, delay=0):
    """A command that, asked to end, writes a file first; returns once it has set its trap."""
    p = msb.popen("exec", "-q", name, "--", "sh", "-c", TRAP.format(delay=delay),
                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert p.stdout.readline() == b"ready\n"
    return p


def last_words(msb, name):
    return msb.sh(name, "cat /root/last-words").stdout


def test_stop_is_graceful(msb):
    msb.create("g")
    p = trapping(msb, "g", delay=0.3)
    msb.ok("stop", "g", "-q")
    p.wait(timeout=10)
    assert inspect(msb, "g")["reason"] == "stopped on request"
    assert last_words(msb, "g") == b"bye\n"


@pytest.mark.parametrize("how", [["-f"], ["-t", "0"]])
def test_forced_stop_is_not(msb, how):
    msb.create("g")
    p = trapping(msb, "g")
    msb.ok("stop", "g", "-q", *how)
    assert p.wait(timeout=10) != 0
    assert inspect(msb, "g")["status"] == "Stopped"
    assert inspect(msb, "g")["reason"] == "killed on request"
    assert last_words(msb, "g") == b""


def test_stop_timeout_ends_a_stubborn_guest(msb):
    """A command that ignores SIGTERM costs the grace period and no more."""
    msb.create("g")
    p = msb.popen("exec", "-q", "g", "--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done",
                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert p.stdout.readline() == b"ready\n"
    t0 = time.monotonic()
    msb.ok("stop", "g", "-q", "-t", "500ms")
    assert time.monotonic() - t0 < 20
    p.wait(timeout=10)
    assert msb.status("g") == "Stopped"


def test_remove_waits_for_a_stop_under_way(msb):
    msb.create("w")
    p = trapping(msb, "w", delay=1)
    stop = msb.popen("stop", "w", "-q")
    wait_status(msb, "w", "Draining")
    msb.ok("rm", "w", "-q")
    assert stop.wait(timeout=10) == 0
    p.wait(timeout=10)
    assert msb.leftovers() == []


def test_remove_and_start_wait_for_a_drain_that_nobody_asked_for(msb):
    """An idle timeout drains without any client holding the name."""
    for verb in ("start", "rm"):
        msb.create("w", "--idle-timeout", "500ms")
        # In the background of the guest: no session, so the sandbox is idle.
        msb.sh("w", f"({TRAP.format(delay=1)}) >/dev/null 2>&1 &")
        wait_status(msb, "w", "Draining")
        msb.ok(verb, "w", "-q")
        if verb == "start":
            assert msb.status("w") in ("Running", "Draining")
            msb.ok("rm", "-f", "w", "-q")
    assert msb.leftovers() == []


# --- data ----------------------------------------------------------------------------------------


def test_disk_survives_stop_and_start(msb):
    msb.create("d")
    msb.sh("d", "mkdir -p /srv/x && seq 1 10000 > /srv/x/numbers && rm /etc/hostname")
    for _ in range(2):
        msb.ok("restart", "d", "-q")
        out = msb.sh("d", "wc -l < /srv/x/numbers; md5sum < /srv/x/numbers").stdout
        expected = "".join(f"{i}\n" for i in range(1, 10001)).encode()
        assert out.decode().split()[:2] == ["10000", hashlib.md5(expected).hexdigest()]


def test_synced_data_survives_a_kill(msb):
    msb.create("d")
    msb.sh("d", "echo kept > /root/kept; sync")
    msb.ok("stop", "-f", "d", "-q")
    msb.ok("start", "d", "-q")
    assert msb.sh("d", "cat /root/kept").stdout == b"kept\n"


def test_tmpfs_root_disk_does_not_survive(msb):
    msb.create("d", "--root-disk", "tmpfs")
    msb.sh("d", "echo x > /root/x")
    msb.ok("restart", "d", "-q")
    assert msb.sh("d", "ls /root").stdout == b""


# --- timers --------------------------------------------------------------------------------------


def still_running_after(msb, name, seconds, meanwhile):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        meanwhile()
        assert msb.status(name) == "Running"
        time.sleep(0.1)


def test_idle_timeout_stops_and_says_so(msb):
    msb.create("i", "--idle-timeout", "1s")
    wait_status(msb, "i", "Stopped")
    assert inspect(msb, "i")["reason"] == "idle timeout"


def test_idle_timeout_counts_commands(msb):
    """A command keeps it alive however long and silent it is; its end starts the clock."""
    msb.create("i", "--idle-timeout", "1s")
    out = msb.ok("exec", "-q", "i", "--", "sh", "-c", "sleep 2.5; echo woke")
    assert out == "woke\n"
    wait_status(msb, "i", "Stopped")


def test_idle_timeout_counts_attached_sessions(msb):
    msb.create("i", "--idle-timeout", "1s")
    p = msb.popen("exec", "-q", "i", "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    still_running_after(msb, "i", 2.5, lambda: None)
    out, _ = p.communicate(b"still here\n", timeout=10)
    assert out == b"still here\n" and p.returncode == 0
    wait_status(msb, "i", "Stopped")


def test_idle_timeout_counts_detached_commands(msb):
    name = "i"
    msb.ok("run", "-d", "-q", "-n", name, "--idle-timeout", "1s", "--", "sleep", "2.5")
    still_running_after(msb, name, 1.8, lambda: None)
    wait_status(msb, name, "Stopped")


def test_touch_refreshes_the_idle_timer_and_ping_does_not(msb):
    msb.create("i", "--idle-timeout", "1s")
    still_running_after(msb, "i", 2.5, lambda: msb.ok("touch", "i", "-q"))
    still_running_after(msb, "i", 1.5, lambda: msb.ok("ping", "--touch", "i", "-q"))

    def pinged_to_death():
        return msb("ping", "i", "-q").returncode != 0

    wait_for(pinged_to_death, timeout=20, interval=0.1)
    wait_status(msb, "i", "Stopped")


def test_max_duration_is_graceful(msb):
    """The guest's commands get to write their last words, onto a disk that keeps them."""
    msb.create("m", "--max-duration", "2s")
    p = trapping(msb, "m", delay=0.2)
    p.wait(timeout=30)
    wait_status(msb, "m", "Stopped")
    assert inspect(msb, "m")["reason"] == "maximum duration"
    assert last_words(msb, "m") == b"bye\n"


# --- ends that the guest chooses -----------------------------------------------------------------


def test_guest_powers_off(msb):
    msb.create("p")
    p = msb.sh("p", "echo kept > /root/kept; sync; poweroff -f; sleep 100")
    assert p.returncode == 1 and "ended while the command ran" in stderr(p)
    wait_status(msb, "p", "Stopped")
    assert inspect(msb, "p")["reason"] == "the guest powered itself off"
    assert "stopped: the guest powered itself off" in system_log(msb, "p")
    assert msb.sh("p", "cat /root/kept").stdout == b"kept\n"


@pytest.mark.parametrize("command", ["poweroff", "reboot", "halt"])
def test_guest_asks_its_init(msb, command):
    """Without -f these ask PID 1, which ends everything in order."""
    msb.create("p")
    p = trapping(msb, "p", delay=0.2)
    msb.sh("p", f"{command}; sleep 100")
    p.wait(timeout=20)
    wait_status(msb, "p", "Stopped")
    assert inspect(msb, "p")["reason"] == "the guest powered itself off"
    assert last_words(msb, "p") == b"bye\n"


def test_guest_reboots(msb):
    """There is nothing to reboot into: the sandbox is over, in order."""
    msb.create("p")
    msb.sh("p", "reboot -f; sleep 100")
    wait_status(msb, "p", "Stopped")
    assert inspect(msb, "p")["reason"] == "the guest powered itself off"


def test_guest_kernel_panics(msb):
    """Crashed, with a reason; the kernel's own words are in the system log; start repairs."""
    msb.create("p", "-m", "64M")
    p = msb.sh("p", "echo 2 > /proc/sys/vm/panic_on_oom; tail /dev/zero", timeout=60)
    assert p.returncode == 1
    wait_status(msb, "p", "Crashed")
    info = inspect(msb, "p")
    assert "panic" in info["reason"], info["reason"]
    log = system_log(msb, "p")
    assert "crashed: " in log and "Kernel panic - not syncing: Out of memory" in log
    msb.ok("start", "p", "-q")
    assert msb.sh("p", "echo back").stdout == b"back\n"


def test_a_panic_that_takes_its_time_is_the_reason(msb):
    """The agent is lost with the kernel's devices; whoever tells of the kernel's end is slow."""
    msb.create("p", "-m", "64M", "--engine", "uml")
    p = msb.popen("exec", "-q", "p", "--", "sh", "-c", "echo 2 > /proc/sys/vm/panic_on_oom; echo on; read x;"
                  " while :; do x=$x$x; done", stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert p.stdout.readline() == b"on\n"
    os.kill(msb.tree(msb.monitor_pid("p"))[1], signal.SIGSTOP)
    p.communicate(b"0123456789\n", timeout=60)
    wait_status(msb, "p", "Crashed", timeout=60)
    assert "the guest kernel panicked: Out of memory" in inspect(msb, "p")["reason"]


def test_agent_dies(msb):
    """Guest root can still break PID 1 by writing over its memory: crashed, with the reason."""
    msb.create("g", "-m", "64M")
    msb.sh("g", "page=$((0x$(sed -n 's/-.*stack.*//p' /proc/1/maps) / 4096));"
           " dd if=/dev/urandom of=/proc/1/mem bs=4096 seek=$page count=40 conv=notrunc; sleep 60")
    wait_status(msb, "g", "Crashed")
    assert "Attempted to kill init" in msb.ok("inspect", "g")
    assert "Attempted to kill init" in msb.ok("logs", "--source", "system", "g")
    msb.ok("start", "-q", "g")
    assert msb.sh("g", "echo again").stdout == b"again\n"


def test_agent_cannot_be_killed_from_inside(msb):
    msb.create("p")
    for sig in (9, 19, 11, 6, 2, 1):
        msb.sh("p", f"kill -{sig} 1")
    assert msb.sh("p", "echo alive").stdout == b"alive\n"
    msb.ok("ping", "p", "-q")


# --- races ---------------------------------------------------------------------------------------


def test_racing_verbs(msb):
    """Many clients on few names: every answer is a documented one, and nothing is lost or left."""
    allowed = re.compile(
        "sandbox already exists: |sandbox not found: |sandbox still running: |is not running "
        "|ended while the command ran|ended as soon as it had started|the sandbox is shutting down"
    )
    wrong, end = [], time.monotonic() + 8

    def client(seed):
        rng = random.Random(seed)
        while time.monotonic() < end and not wrong:
            n = rng.choice(["r1", "r2"])
            args = rng.choice(
                [["create", "-n", n, "-m", "64M"], ["create", "-n", n, "-m", "64M"],
                 ["create", "-n", n, "-m", "64M", "--replace"], ["stop", n], ["stop", "-f", n],
                 ["start", n], ["rm", n], ["rm", "-f", n], ["restart", "-t", "0", n],
                 ["exec", n, "--", "true"], ["ls"], ["inspect", n], ["ping", n]]
            )  # fmt: skip
            try:
                p = msb(*args, timeout=60)
            except subprocess.TimeoutExpired:
                wrong.append((args, "hangs"))
                return
            killed = (128 + 9, 128 + 15) if args[0] == "exec" else ()  # by a stop
            bad_code = p.returncode not in (0, 1, *killed)
            bad_text = p.returncode == 1 and not allowed.search(stderr(p))
            if bad_code or bad_text or "warn:" in stderr(p):
                wrong.append((args, p.returncode, stderr(p)))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert wrong == []
    for n in msb.ok("ls", "-q").split():
        assert msb.sh(n, "echo usable").stdout == b"usable\n"
        msb.ok("rm", "-f", n, "-q")
    assert msb.leftovers() == []
    wait_for(lambda: not msb.processes())
