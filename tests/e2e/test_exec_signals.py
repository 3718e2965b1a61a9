"""`msb exec`: what a signal to the client, or its death, does to the command in the guest."""
import signal
import subprocess

import pytest

from conftest import wait_for
from guest import FOREVER, PATIENCE, alive, finish, read, sh, wait_dead, wait_file


def start(m, name, script, **kw):
    """A client whose command has printed its first line, "up"."""
    kw.setdefault("stdin", subprocess.DEVNULL)
    p = m.popen("exec", "-q", name, "--", "sh", "-c", script, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, **kw)
    assert p.stdout.readline() == b"up\n"
    return p


def family(tag):
    """A shell with two children, one of them in a pipeline; its pids in a file."""
    return (f"sleep {FOREVER} & echo $! $$ >/tmp/{tag}; sh -c 'echo $$ >>/tmp/{tag}; echo up; "
            f"sleep {FOREVER}; :' | cat")


def test_sigkill_of_the_client_kills_the_group(box):
    """The client cannot say anything any more: the guest's whole process group is killed."""
    m, name = box
    p = start(m, name, family("kill"))
    p.kill()
    assert finish(p)[0] == -signal.SIGKILL
    wait_dead(m, name, *read(m, name, "/tmp/kill").split())


def test_sigkill_of_the_client_beats_traps(box):
    m, name = box
    p = start(m, name, "trap '' HUP INT TERM; echo $$ >/tmp/stubborn; echo up; "
              "while :; do sleep 0.05; done")
    p.kill()
    finish(p)
    wait_dead(m, name, read(m, name, "/tmp/stubborn"))


def test_sigkill_spares_what_others_run(box):
    """Only the group of that client's command dies."""
    m, name = box
    other = start(m, name, "echo $$ >/tmp/other; echo up; read x; exit 21", stdin=subprocess.PIPE)
    sh(m, name, f"sleep {FOREVER} >/dev/null & echo $! >/tmp/background")
    p = start(m, name, family("kill2"))
    p.kill()
    finish(p)
    wait_dead(m, name, *read(m, name, "/tmp/kill2").split())
    background = read(m, name, "/tmp/background")
    assert alive(m, name, read(m, name, "/tmp/other"))
    assert alive(m, name, background)
    other.stdin.write(b"\n")
    assert finish(other)[0] == 21
    sh(m, name, f"kill {background}")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
                                 signal.SIGUSR1])
def test_signals_are_forwarded(box, sig):
    """The group gets the same signal; the command's death by it is 128+n, as if it ran here."""
    m, name = box
    # It is tail that says "up": busybox' shell ignores SIGQUIT, and would until it has become tail.
    p = start(m, name, "echo $$ >/tmp/fwd; echo up >/tmp/up; exec tail -f /tmp/up")
    p.send_signal(sig)
    assert finish(p) == (128 + sig, b"", b"")
    wait_dead(m, name, read(m, name, "/tmp/fwd"))


@pytest.mark.parametrize("sig", ["INT", "TERM", "HUP", "USR1"])
def test_a_trap_chooses_the_exit_code(box, sig):
    """A command may handle what is forwarded, print something and end as it likes."""
    m, name = box
    p = start(m, name, f"trap 'echo caught; exit 77' {sig}; echo up; sleep {FOREVER} & wait")
    p.send_signal(getattr(signal, "SIG" + sig))
    assert finish(p) == (77, b"caught\n", b"")


def test_forwarded_signals_reach_the_children(box):
    """To the process group, as a terminal would send it."""
    m, name = box
    p = start(m, name, family("group"))
    p.terminate()
    assert finish(p)[0] == 128 + signal.SIGTERM
    wait_dead(m, name, *read(m, name, "/tmp/group").split()[1:])


def test_a_command_may_ignore_a_signal_and_go_on(box):
    m, name = box
    p = start(m, name, "trap 'echo no' TERM; echo up; read x; read x; echo $x; exit 3",
              stdin=subprocess.PIPE)
    p.terminate()
    assert p.stdout.readline() == b"no\n"
    p.stdin.write(b"more\nmore\n")
    p.stdin.flush()
    code, out, _ = finish(p)
    assert (code, out) == (3, b"more\n")


def test_a_second_signal_is_forwarded_too(box):
    m, name = box
    p = start(m, name, "trap 'echo one' INT; trap 'exit 2' TERM; echo up; "
              "while :; do sleep 0.05; done")
    p.send_signal(signal.SIGINT)
    assert p.stdout.readline() == b"one\n"
    p.terminate()
    assert finish(p)[0] == 2


def test_signals_ignored_from_the_start_stay_ignored(box):
    """Under nohup a hang-up of the client does not reach the command."""
    m, name = box
    p = subprocess.Popen(["nohup", m.exe, "exec", "-q", name, "--", "sh", "-c",
                          "echo up; read x; exit 4"], env=m.env, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGHUP)
    p.stdin.write(b"\n")
    assert finish(p)[0] == 4


def test_a_signal_while_nobody_reads(box):
    """A client whose output is stuck still forwards."""
    m, name = box
    p = start(m, name, "echo up; echo $$ >/tmp/stuck; exec yes")
    pid = wait_file(m, name, "/tmp/stuck")
    p.send_signal(signal.SIGINT)
    wait_dead(m, name, pid)
    assert finish(p)[0] == 128 + signal.SIGINT


def test_a_stopped_client_is_not_a_dead_one(box):
    """SIGSTOP and SIGCONT of the client: back-pressure meanwhile, then it continues."""
    m, name = box
    p = start(m, name, "echo up; read x; echo $x", stdin=subprocess.PIPE)
    p.send_signal(signal.SIGSTOP)
    p.stdin.write(b"hello\n")
    p.stdin.flush()
    assert m.ok("exec", "-q", name, "--", "echo", "other") == "other\n"
    p.send_signal(signal.SIGCONT)
    assert finish(p)[:2] == (0, b"hello\n")


def test_the_end_of_the_sandbox_ends_the_client(msb):
    """Killed under a running command: exit 1 and a reason, not a hang."""
    msb.create("b")
    p = start(msb, "b", f"echo up; exec sleep {FOREVER}")
    msb.ok("stop", "-f", "-q", "b")
    code, out, err = finish(p)
    assert (code, out) == (1, b"")
    assert err == b"error: sandbox ended while the command ran\n"


def test_a_graceful_stop_ends_the_command(msb):
    """The command gets SIGTERM before the guest powers off, and its last words still come."""
    msb.create("b")
    p = start(msb, "b", f"trap 'echo bye; exit 5' TERM; echo up; sleep {FOREVER} & wait")
    msb.ok("stop", "-q", "b")
    assert finish(p) == (5, b"bye\n", b"")


def test_a_poweroff_from_inside_ends_the_client(msb):
    msb.create("b")
    p = msb("exec", "-q", "b", "--", "sh", "-c", f"poweroff -f; sleep {FOREVER}", timeout=PATIENCE)
    assert p.returncode == 1
    assert p.stderr == b"error: sandbox ended while the command ran\n"
    wait_for(lambda: msb.status("b") in ("Stopped", "Crashed"), timeout=PATIENCE)
