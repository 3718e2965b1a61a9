"""`msb exec`: how a command is found, what it inherits, what its end looks like outside."""
import concurrent.futures
import json
import os
import re
import subprocess

import pytest

from conftest import wait_for
from guest import FOREVER, PATIENCE, alive, finish, read, sh, wait_dead, wait_file

# --- exit codes ---------------------------------------------------------------------------------


def test_exit_code_passes_through(box):
    """Every exit code 0..255 of the command is msb's own."""
    m, name = box
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        codes = pool.map(lambda n: m.sh(name, f"exit {n}").returncode, range(256))
    assert list(codes) == list(range(256))


@pytest.mark.parametrize("sig", [1, 2, 6, 9, 11, 13, 15, 34])
def test_death_by_signal_is_128_plus_n(box, sig):
    m, name = box
    p = m.sh(name, f"kill -{sig} $$")
    assert (p.returncode, p.stdout, p.stderr) == (128 + sig, b"", b"")


@pytest.mark.parametrize("command", ["no-such-program", "/no/such/program", "./nothing", ""])
def test_not_found_is_127(box, command):
    m, name = box
    p = m("exec", "-q", name, "--", command)
    assert p.returncode == 127
    assert p.stdout == b""
    assert p.stderr.startswith(f'error: failed to exec "{command}"\n'.encode())


def test_a_file_as_directory_is_not_found(box):
    m, name = box
    assert m("exec", "-q", name, "--", "/etc/passwd/x").returncode in (126, 127)


@pytest.mark.parametrize(
    "make, path",
    [
        ("mkdir -p $F", "/tmp/ne/dir"),
        ("echo 'echo hi' >$F; chmod 644 $F", "/tmp/ne/no-x-bit"),
        ("printf '#!/no/such/interpreter\\n' >$F; chmod 755 $F", "/tmp/ne/missing-interpreter"),
        ("printf '\\177ELF\\0\\0\\0\\0' >$F; chmod 755 $F", "/tmp/ne/garbage"),
    ],
)
def test_not_executable_is_126(box, make, path):
    """A file that is there and cannot be run: directory, mode, interpreter, format."""
    m, name = box
    sh(m, name, f"mkdir -p /tmp/ne; F={path}; {make}")
    p = m("exec", "-q", name, "--", path)
    assert p.returncode == 126
    assert p.stderr.startswith(f'error: failed to exec "{path}"\n'.encode())
    assert path.encode() in p.stderr.splitlines()[1]


def test_text_without_interpreter_line_is_a_shell_script(box):
    m, name = box
    sh(m, name, "echo 'echo ran $0 $1' >/tmp/plain; chmod 755 /tmp/plain")
    assert m.ok("exec", "-q", name, "--", "/tmp/plain", "arg") == "ran /tmp/plain arg\n"


def test_unknown_sandbox(box):
    m, _ = box
    p = m("exec", "nobody", "--", "true")
    assert (p.returncode, p.stderr) == (1, b"error: sandbox not found: nobody\n")


# --- time limit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["500ms", "1.5s", "1"])
def test_timeout_kills_the_group_and_keeps_the_output(box, limit):
    """124, the partial output, one line on stderr, and no process left in the guest."""
    m, name = box
    script = f"echo partial; sleep {FOREVER} & echo $! $$ >/tmp/t-{limit}; wait"
    p = m("exec", "-q", "--timeout", limit, name, "--", "sh", "-c", script)
    text = {"1": "1s"}.get(limit, limit)
    assert p.stdout == b"partial\n"
    assert p.stderr == f"error: exec timed out after {text}\n".encode()
    assert p.returncode == 124
    wait_dead(m, name, *read(m, name, f"/tmp/t-{limit}").split())


def test_timeout_spares_a_command_that_is_done(box):
    m, name = box
    p = m("exec", "-q", "--timeout", "30s", name, "--", "sh", "-c", "exit 9")
    assert (p.returncode, p.stderr) == (9, b"")


def test_timeout_spares_what_a_finished_command_left_running(box):
    m, name = box
    m.ok("exec", "-q", "--timeout", "200ms", name, "--", "sh", "-c",
         f"sleep {FOREVER} & echo $! >/tmp/spared")
    pid = read(m, name, "/tmp/spared")
    sh(m, name, "sleep 0.5")
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


def test_timeout_beats_a_command_that_ignores_signals(box):
    m, name = box
    script = "trap '' TERM INT HUP; echo on; while :; do sleep 0.05; done"
    p = m("exec", "--timeout", "300ms", name, "--", "sh", "-c", script, timeout=PATIENCE)
    assert (p.returncode, p.stdout) == (124, b"on\n")


def test_timeout_counts_while_nobody_reads(box):
    """A reader that has stopped does not keep the command alive beyond its time limit."""
    m, name = box
    p = m.popen("exec", "-q", "--timeout", "500ms", name, "--", "sh", "-c",
                "echo $$ >/tmp/unread; exec yes", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_dead(m, name, wait_file(m, name, "/tmp/unread"))
    code, out, err = finish(p)
    assert (code, err) == (124, b"error: exec timed out after 500ms\n")
    assert out.startswith(b"y\n")


@pytest.mark.parametrize("bad", ["", "abc", "-1s", "5x", "1h1h1h1h?"])
def test_bad_timeout_is_refused(box, bad):
    m, name = box
    p = m("exec", "--timeout", bad, name, "--", "true")
    assert p.returncode in (1, 2)
    assert p.stderr.startswith(b"error: ")


# --- arguments ----------------------------------------------------------------------------------


def echo_args(m, name, *args, **kw):
    """The arguments as the guest's shell got them."""
    out = m("exec", "-q", name, "--", "sh", "-c", r'for a; do printf "%s\0" "$a"; done', "sh",
            *map(os.fsdecode, args), check=0, **kw).stdout
    return out.split(b"\0")[:-1]


def test_arguments_keep_every_byte(box):
    """Any byte but NUL: not UTF-8, newlines, quotes, blanks, control characters, empty."""
    m, name = box
    args = [bytes(range(1, 256)), b"a\nb\n", b"'\"`$(x)\\", b" \t ", b"", b"-q", b"--",
            "grüß 🦊".encode(), b"\xff\xfe\xc3"]
    assert echo_args(m, name, *args) == args


def test_longest_argument(box):
    """One argument of 128 KiB - 1, the most that Linux takes."""
    m, name = box
    arg = (b"0123456789abcdef" * 8192)[:131071]
    assert echo_args(m, name, arg) == [arg]


def test_two_megabytes_of_arguments(box):
    m, name = box
    args = [bytes([97 + i]) * 131071 for i in range(15)]
    env = {k: v for k, v in m.env.items() if k.startswith(("MSB_", "PATH", "HOME"))}
    assert echo_args(m, name, *args, env=env) == args


def test_many_arguments(box):
    m, name = box
    args = [b"%d" % i for i in range(20000)]
    out = m("exec", "-q", name, "--", "sh", "-c", 'echo $# $1 ${20000}', "sh",
            *map(os.fsdecode, args), check=0).stdout
    assert out == b"20000 0 19999\n"


def test_more_arguments_than_the_guest_takes(box):
    """What the guest's kernel refuses is an error like any other."""
    m, name = box
    line = ("ulimit -s unlimited; a=$(head -c 130000 /dev/zero | tr '\\0' a); "
            f'exec "$MSB" exec {name} -- true $(for i in $(seq 30); do echo $a; done)')
    p = subprocess.run(["bash", "-c", line], env=dict(m.env, MSB=m.exe), stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert p.returncode == 126
    assert b"Argument list too long" in p.stderr


def test_options_after_the_dashes_are_the_commands(box):
    m, name = box
    assert m.ok("exec", "-q", name, "--", "echo", "--timeout", "-q", "--help") == \
        "--timeout -q --help\n"


# --- environment --------------------------------------------------------------------------------


def environment(m, name, *options, **kw):
    out = m("exec", "-q", *options, name, "--", "env", "-0", check=0, **kw).stdout
    return dict(v.split(b"=", 1) for v in out.split(b"\0") if v)


def test_nothing_of_the_hosts_environment_leaks(msb):
    """Neither create's nor exec's variables reach a command or the guest's first process."""
    canary = dict(msb.env, CANARY_NAME="canary-value", LD_PRELOAD="", LANG="xx_YY", USER="spy")
    msb.create("b", env=canary)
    assert set(environment(msb, "b", env=canary)) == {b"PATH", b"HOME", b"HOSTNAME"}
    everything = sh(msb, "b", "cat /proc/[0-9]*/environ /proc/cmdline 2>/dev/null || true",
                    env=canary)
    assert "TERM=linux" in everything
    assert "canary" not in everything.lower()
    assert "MSB_HOME" not in everything


def test_path_and_home(box):
    """The image's PATH, our tools behind everything else; HOME from passwd."""
    m, name = box
    env = environment(m, name)
    assert env[b"PATH"].split(b":")[-1] == b"/.msb/bin"
    assert b"/usr/bin" in env[b"PATH"].split(b":")
    assert env[b"HOME"] == b"/root"
    assert environment(m, name, "-u", "user")[b"HOME"] == b"/home/user"
    assert environment(m, name, "-e", "HOME=/elsewhere")[b"HOME"] == b"/elsewhere"


def test_env_option(box):
    """-e K=V; the last one wins, the value may be anything."""
    m, name = box
    value = os.fsdecode(bytes(range(1, 256)))
    env = environment(m, name, "-e", "A=1", "--env", "B=", "-e", "A=2", "-e", "C=x=y",
                      "-e", f"D={value}")
    assert (env[b"A"], env[b"B"], env[b"C"]) == (b"2", b"", b"x=y")
    assert env[b"D"] == bytes(range(1, 256))


def test_env_option_imports(box):
    m, name = box
    env = environment(m, name, "-e", "MINE", env=dict(m.env, MINE="from host\n"))
    assert env[b"MINE"] == b"from host\n"


def test_env_option_unset(box):
    m, name = box
    p = m("exec", "-e", "NOT_SET_ANYWHERE", name, "--", "true")
    assert p.returncode == 1
    assert p.stderr == b"error: environment variable 'NOT_SET_ANYWHERE' not set\n"


@pytest.mark.parametrize("bad", ["=x", ""])
def test_env_option_without_a_name(box, bad):
    m, name = box
    assert m("exec", "-e", bad, name, "--", "true").returncode in (1, 2)


def test_sandbox_env_is_the_default_of_exec(msb):
    msb.create("b", "-e", "A=create", "-e", "B=create")
    env = environment(msb, "b", "-e", "A=exec")
    assert (env[b"A"], env[b"B"]) == (b"exec", b"create")


# --- directory, user, limits --------------------------------------------------------------------


def test_working_directory(box):
    m, name = box
    assert m.ok("exec", name, "--", "pwd") == "/\n"
    assert m.ok("exec", "-w", "/usr/bin", name, "--", "pwd") == "/usr/bin\n"


def test_missing_working_directory(box):
    m, name = box
    p = m("exec", "-w", "/no/such/dir", name, "--", "true")
    assert p.returncode == 1
    assert b"/no/such/dir" in p.stderr and p.stderr.startswith(b"error: ")


def test_relative_working_directory_is_refused(box):
    m, name = box
    assert m("exec", "-w", "tmp", name, "--", "true").returncode in (1, 2)


@pytest.mark.parametrize(
    "user, ids",
    [("root", "0 0"), ("user", "1000 1000"), ("1000", "1000 1000"), ("4321", "4321 0"),
     ("12:34", "12 34"), ("user:bin", "1000 2"), ("nobody", "65534 65534")],
)
def test_user(box, user, ids):
    m, name = box
    assert m.ok("exec", "-q", "-u", user, name, "--", "sh", "-c", "echo $(id -u) $(id -g)") == \
        ids + "\n"


@pytest.mark.parametrize("user", ["no-such-user", "root:no-such-group", "1:2:3", ":"])
def test_unknown_user(box, user):
    m, name = box
    p = m("exec", "-u", user, name, "--", "true")
    assert p.returncode == 1
    assert p.stderr.startswith(b"error: ")


def test_another_user_has_no_power(box):
    m, name = box
    p = m("exec", "-u", "user", name, "--", "sh", "-c", "echo x >/etc/passwd; cat /etc/shadow; id -G")
    assert p.stdout in (b"1000\n",)
    caps = m.ok("exec", "-u", "user", name, "--", "grep", "CapEff", "/proc/self/status")
    assert int(caps.split()[1], 16) == 0


def test_another_user_may_reopen_the_streams(box):
    """/dev/stdout and the like work for any user that the command runs as."""
    m, name = box
    script = "echo o >/dev/stdout; echo e >/dev/stderr; cat /dev/stdin"
    p = m("exec", "-u", "user", name, "--", "sh", "-c", script, input=b"in\n")
    assert (p.returncode, p.stdout, p.stderr) == (0, b"o\nin\n", b"e\n")
    p = m("exec", "-t", "-u", "user", name, "--", "sh", "-c",
          "echo o >/dev/stdout; echo t >/dev/tty; echo $(stat -c %U $(tty))")
    assert (p.returncode, p.stdout) == (0, b"o\r\nt\r\nuser\r\n")


def test_rlimits(box):
    m, name = box
    out = m.ok("exec", "--rlimit", "nofile=50:60", "--rlimit", "nproc=70", "--rlimit", "core=0",
               name, "--", "sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -p 2>/dev/null || ulimit -u")
    assert out.split() == ["50", "60", "70"]


@pytest.mark.parametrize("bad", ["nofile", "nofile=", "nofile=9:8", "nonsense=1", "nofile=x"])
def test_bad_rlimit_is_refused(box, bad):
    m, name = box
    p = m("exec", "--rlimit", bad, name, "--", "true")
    assert p.returncode in (1, 2)
    assert p.stderr.startswith(b"error: ")


# --- what a command finds itself in -------------------------------------------------------------


def test_descriptors(box):
    """0, 1, 2 and nothing else (3 is the directory ls reads)."""
    m, name = box
    assert m.ok("exec", name, "--", "ls", "/proc/self/fd").split() == ["0", "1", "2", "3"]
    p = m("exec", name, "--", "ls", "/proc/self/fd", input=b"piped", check=0)
    assert p.stdout.split() == [b"0", b"1", b"2", b"3"]


def test_session_and_group_leader(box):
    m, name = box
    stat = m.ok("exec", name, "--", "cat", "/proc/self/stat")
    pid, rest = int(stat.split()[0]), stat.rsplit(")", 1)[1].split()
    pgrp, session, tty = map(int, rest[2:5])
    assert (pgrp, session, tty) == (pid, pid, 0)


def test_signals_and_umask(box):
    """No signal blocked or ignored, SIGPIPE kills, umask 022."""
    m, name = box
    status = m.ok("exec", name, "--", "cat", "/proc/self/status")
    for field in ("SigBlk", "SigIgn"):
        assert int(re.search(rf"{field}:\s+(\w+)", status).group(1), 16) == 0
    assert m.ok("exec", name, "--", "sh", "-c", "umask").strip() == "0022"
    out = m.ok("exec", name, "--", "bash", "-c", "yes | true; echo ${PIPESTATUS[0]}")
    assert out == "141\n"


def test_signals_ignored_by_the_client_are_not_ignored_in_the_guest(box):
    m, name = box
    p = subprocess.run(["sh", "-c", f"trap '' PIPE INT TERM; exec {m.exe} exec {name} -- "
                        "grep SigIgn /proc/self/status"],
                       env=m.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    assert int(p.stdout.split()[1], 16) == 0


def test_zombies_are_reaped(box):
    """Orphans are adopted by the guest's init and do not stay as zombies."""
    m, name = box
    sh(m, name, "for i in $(seq 30); do (sleep 0.01 &) ; done")
    count = "n=0; for s in /proc/[0-9]*/stat; do read -r l <$s || continue; " \
            "case $l in *') Z '*) n=$((n+1));; esac; done 2>/dev/null; echo $n"
    wait_for(lambda: sh(m, name, count) == "0\n", timeout=PATIENCE)


# --- without a command --------------------------------------------------------------------------


def test_no_command_and_no_terminal(box):
    m, name = box
    p = m("exec", name)
    assert (p.returncode, p.stdout) == (0, b"")
    assert p.stderr == b"warn: no command provided and stdin is not a terminal\n"


def test_no_command_runs_the_images_default(msb):
    """The entrypoint stands in; an explicit command does not get it in front."""
    msb.create("b", "--entrypoint", "/bin/pwd", "-w", "/usr")
    assert msb.ok("exec", "-q", "b") == "/usr\n"
    assert msb.ok("exec", "-q", "b", "--", "echo", "plain") == "plain\n"


# --- quiet --------------------------------------------------------------------------------------


def test_quiet_prints_not_one_byte(msb):
    """Under --quiet the streams carry the command's bytes alone, also when it starts the sandbox."""
    msb.create("b", "--cpus", "2")
    p = msb("exec", "--quiet", "b", "--", "sh", "-c", "exit 5")
    assert (p.returncode, p.stdout, p.stderr) == (5, b"", b"")
    msb.ok("stop", "b", "-q")
    p = msb("exec", "--quiet", "b", "--", "sh", "-c", "printf o; printf e >&2; kill -9 $$")
    assert (p.returncode, p.stdout, p.stderr) == (137, b"o", b"e")


# --- a stopped sandbox --------------------------------------------------------------------------


def test_exec_starts_and_stops_a_stopped_sandbox(msb):
    msb.create("b")
    sh(msb, "b", "echo kept >/root/file")
    msb.ok("stop", "b", "-q")
    assert msb.ok("exec", "-q", "b", "--", "cat", "/root/file") == "kept\n"
    assert msb.status("b") == "Stopped"


@pytest.mark.parametrize("command, code", [(["sh", "-c", "exit 3"], 3), (["no-such-program"], 127)])
def test_exec_stops_it_again_on_failure(msb, command, code):
    msb.create("b")
    msb.ok("stop", "b", "-q")
    assert msb("exec", "-q", "b", "--", *command).returncode == code
    assert msb.status("b") == "Stopped"


def test_killed_exec_stops_it_again(msb):
    """The sandbox that an exec started does not outlive that exec, however it ends."""
    msb.create("b")
    msb.ok("stop", "b", "-q")
    p = msb.popen("exec", "-q", "b", "--", "sh", "-c", f"echo up; exec sleep {FOREVER}",
                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"up\n"
    p.kill()
    finish(p)
    wait_for(lambda: msb.status("b") == "Stopped", timeout=PATIENCE)


def test_bad_options_do_not_start_it(msb):
    msb.create("b")
    msb.ok("stop", "b", "-q")
    before = (msb.home / "sandboxes" / "b").stat().st_mtime_ns
    for bad in (["-e", "NOT_SET_ANYWHERE"], ["--rlimit", "x=1"], ["--timeout", "x"]):
        assert msb("exec", *bad, "b", "--", "true").returncode in (1, 2)
    assert msb.status("b") == "Stopped"
    assert (msb.home / "sandboxes" / "b").stat().st_mtime_ns == before


def test_concurrent_execs_on_a_stopped_sandbox(msb):
    """The second client uses the sandbox that the first one started; the last one stops it."""
    msb.create("b")
    for _ in range(3):
        msb.ok("stop", "b", "-q")
        clients = [msb.popen("exec", "-q", "b", "--", "sh", "-c", f"sleep 0.{n}; echo {n}; exit {n}",
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) for n in range(4)]
        for n, p in enumerate(clients):
            assert finish(p) == (n, b"%d\n" % n, b"")
        wait_for(lambda: msb.status("b") == "Stopped", timeout=PATIENCE)


def test_exec_right_after_exec_on_a_stopped_sandbox(msb):
    """An exec that meets the stop of the one before waits and starts it again."""
    msb.create("b")
    msb.ok("stop", "b", "-q")
    first = msb.popen("exec", "-q", "b", "--", "true", stdin=subprocess.DEVNULL)
    for i in range(5):
        p = msb("exec", "-q", "b", "--", "echo", str(i))
        assert (p.returncode, p.stdout, p.stderr) == (0, b"%d\n" % i, b"")
    finish(first)
    wait_for(lambda: msb.status("b") == "Stopped", timeout=PATIENCE)


# --- many at once -------------------------------------------------------------------------------


def test_fifty_parallel_execs(box):
    """All run at the same time, and none gets another's bytes or code."""
    m, name = box
    n = 50
    # None continues before all have started: the commands really run in parallel.
    script = ("mkdir -p /tmp/meet; : >/tmp/meet/$1; "
              f"until [ $(ls /tmp/meet | wc -l) -ge {n} ]; do sleep 0.1; done; cat; exit $1")
    clients = [m.popen("exec", "-q", name, "--", "sh", "-c", script, "sh", i,
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
               for i in range(n)]
    for i, p in enumerate(clients):
        p.stdin.write(b"client %d" % i)
        p.stdin.close()
        p.stdin = None
    try:  # one that did not start keeps the others waiting: tell which, and why
        wait_for(lambda: all(p.poll() is not None for p in clients), timeout=120)
    except AssertionError:
        ended = {i: finish(p) for i, p in enumerate(clients) if p.poll() is not None}
        for p in clients:
            p.kill()
        raise AssertionError(f"ended: {ended}; there: {sh(m, name, 'ls /tmp/meet')}")
    for i, p in enumerate(clients):
        assert finish(p) == (i, b"client %d" % i, b"")


def test_init_cannot_be_signalled_from_inside(box):
    """The guest's first process shrugs off what root in the guest sends it, but for the three
    signals with which halt, poweroff and reboot ask for the end."""
    m, name = box
    sh(m, name, "for s in $(seq 64); do case $s in 10|12|15) ;; *) kill -$s 1 2>/dev/null;; esac; "
       "done; true")
    assert m.ok("exec", name, "--", "echo", "alive") == "alive\n"


def test_hundreds_of_execs_leave_nothing_behind(box):
    """Neither processes in the guest nor memory or descriptors in the monitor pile up."""
    m, name = box
    monitor = m.monitor_pid(name)

    def burst(n):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda i: m.sh(name, "exit 1").returncode == 1, range(n)))

    burst(50)
    processes = sh(m, name, "ls /proc | grep -c '^[0-9]'")
    descriptors = len(os.listdir(f"/proc/{monitor}/fd"))
    burst(300)
    wait_for(lambda: sh(m, name, "ls /proc | grep -c '^[0-9]'") == processes, timeout=PATIENCE)
    wait_for(lambda: len(os.listdir(f"/proc/{monitor}/fd")) <= descriptors, timeout=PATIENCE)


EATER = "tail /dev/zero"  # keeps all that it reads


def test_out_of_memory_is_said(msb):
    said = b"killed: out of memory (limit 64M, see --memory)"
    msb.create("b", "-m", "64M")
    p = msb("exec", "-q", "b", "--", *EATER.split())
    assert p.returncode == 137 and p.stderr == b"error: " + said + b"\n"
    p = msb.sh("b", EATER)  # a shell that passes the status on
    assert p.returncode == 137 and p.stderr.endswith(b"error: " + said + b"\n")
    p = msb.sh("b", EATER + "; exit 3")  # one that does not
    assert p.returncode == 3 and b"a process in the sandbox was " + said in p.stderr
    p = msb.sh("b", EATER + "; true")  # it did without
    assert p.returncode == 0 and said not in p.stderr
    # Whoever is killed otherwise, or fails later, or just says so.
    forged = "echo '<3>Out of memory: Killed process 1 (x) y' >/dev/kmsg; exit 3"
    for script, code in (("kill -9 $$", 137), ("exit 3", 3), (forged, 3)):
        p = msb.sh("b", script)
        assert p.returncode == code and b"out of memory" not in p.stderr, script
    wait_for(lambda: json.loads(msb.ok("inspect", "b", "--format", "json"))["oom_kills"] >= 1)
    assert "OOM kills:" in msb.ok("inspect", "b")
    assert b"processes " + said in msb("logs", "--source", "system", "b").stdout
    msb.ok("stop", "-q", "b")
    assert json.loads(msb.ok("inspect", "b", "--format", "json"))["oom_kills"] == 4
    msb.ok("start", "-q", "b")  # each run has its own count
    assert json.loads(msb.ok("inspect", "b", "--format", "json"))["oom_kills"] == 0
