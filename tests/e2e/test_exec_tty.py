"""`msb exec` and `msb run` in a terminal: a real pty in the guest, raw mode here and its end."""
import os
import signal

import pytest

from conftest import wait_for
from guest import FOREVER, PATIENCE, alive, read, sh, wait_dead, wait_file
from terminal import Terminal


def terminal(m, *args, **kw):
    return Terminal([m.exe, *map(str, args)], m.env, **kw)


def in_guest(box, script, *options, **kw):
    m, name = box
    return terminal(m, "exec", "-q", *options, name, "--", "sh", "-c", script, **kw)


# --- the pty ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("-t",)])
def test_a_terminal_gets_a_terminal(box, options):
    """stdin is a terminal: so it is in the guest, with or without -t, on all three streams."""
    with in_guest(box, "tty; test -t 0 && test -t 1 && test -t 2 && echo all", *options) as t:
        assert t.wait() == 0
        lines = t.output.split(b"\r\n")
        assert lines[0].startswith(b"/dev/pts/")
        assert lines[1] == b"all"


def test_it_is_the_controlling_terminal(box):
    with in_guest(box, "echo via >/dev/tty; cat /proc/self/stat") as t:
        t.read_until(b"via\r\n")
        t.wait()
        fields = t.output.rsplit(b")", 1)[1].split()
        assert int(fields[4]) != 0  # tty_nr


def test_window_size(box):
    """The size of the window at the start."""
    with in_guest(box, "stty size", rows=41, cols=133) as t:
        t.wait()
        assert t.output == b"41 133\r\n"


def test_window_size_changes(box):
    """A change arrives as SIGWINCH, with the new size."""
    script = "trap 'stty size' WINCH; echo up; while :; do sleep 0.05; done"
    with in_guest(box, script, rows=24, cols=80) as t:
        t.read_until(b"up\r\n")
        t.resize(50, 100)
        t.read_until(b"50 100\r\n")
        t.resize(10, 20)
        t.read_until(b"10 20\r\n")


def test_term_is_set(box):
    with in_guest(box, "echo [$TERM]") as t:
        t.wait()
        assert t.output not in (b"[]\r\n", b"[dumb]\r\n")


def test_t_without_a_terminal(box):
    """-t with a pipe: still a pty in the guest, one stream."""
    m, name = box
    p = m("exec", "-q", "-t", name, "--", "sh", "-c", "tty; echo err >&2; exit 3")
    assert p.returncode == 3
    assert p.stdout.startswith(b"/dev/pts/") and p.stdout.endswith(b"\r\nerr\r\n")
    assert p.stderr == b""


def test_t_with_piped_stdin(box):
    """Piped input goes to the pty, and its end is the pty's end of file."""
    m, name = box
    p = m("exec", "-q", "-t", name, "--", "sh", "-c", "stty -echo; while read x; do echo got $x; done",
          input=b"one\ntwo\n")
    assert p.returncode == 0
    assert p.stdout.replace(b"one\r\ntwo\r\n", b"") == b"got one\r\ngot two\r\n"


def test_no_tty_on_a_terminal(box):
    """--no-tty: pipes in the guest, and stdin is at its end at once."""
    with in_guest(box, "test -t 0 || test -t 1 || test -t 2 || echo none; cat; echo end",
                  "--no-tty") as t:
        assert t.wait() == 0
        assert t.output == b"none\r\nend\r\n"
        assert t.is_restored()


def test_output_of_a_terminal_session_may_be_piped(box):
    """`msb exec box -- ls | less`: stdin is a terminal, stdout is not."""
    r, w = os.pipe()
    with in_guest(box, "echo through", stdout=w) as t:
        os.close(w)
        assert t.wait() == 0
        assert os.read(r, 100) == b"through\r\n"
    os.close(r)


# --- typing -------------------------------------------------------------------------------------


def test_typing_is_echoed_by_the_guest(box):
    """Echo and line editing are the guest's: what is typed appears once."""
    with in_guest(box, "echo up; read x; echo got $x") as t:
        t.read_until(b"up\r\n")
        t.type(b"hellp\x7fo\r")
        before = t.read_until(b"got hello\r\n")
        assert before.count(b"hell") == 1
        assert t.wait() == 0


def test_every_byte_reaches_a_raw_guest(box):
    """With the guest's terminal raw, all bytes pass in both directions (but for ctrl-])."""
    data = bytes(b for b in range(256) if b != 0x1D)
    with in_guest(box, f"stty raw -echo; echo up; head -c {len(data)}; stty sane; echo; echo done") as t:
        t.read_until(b"up\n")
        t.type(data)
        assert data in t.read_until(b"done")
        assert t.wait() == 0


def test_ctrl_c_is_the_guests(box):
    """ctrl-c interrupts the command in the guest, not the client."""
    with in_guest(box, f"echo up; exec sleep {FOREVER}") as t:
        t.read_until(b"up\r\n")
        t.type(b"\x03")
        assert t.wait() == 130


def test_ctrl_c_with_a_trap(box):
    with in_guest(box, f"trap 'echo caught; exit 9' INT; echo up; sleep {FOREVER} & wait") as t:
        t.read_until(b"up\r\n")
        t.type(b"\x03")
        t.read_until(b"caught")
        assert t.wait() == 9


def test_ctrl_d_is_the_end_of_input(box):
    with in_guest(box, "echo up; cat; echo end") as t:
        t.read_until(b"up\r\n")
        t.type(b"x\r\x04")
        t.read_until(b"end\r\n")
        assert t.wait() == 0


def test_a_shell_without_a_command(box):
    """exec without a command on a terminal is a shell with job control."""
    m, name = box
    with terminal(m, "exec", name) as t:
        t.type(b"echo $((6*7)); exit 4\r")
        t.read_until(b"42\r\n")
        assert t.wait() == 4
        assert t.is_restored()
        assert b"job control" not in t.output


# --- raw mode and back --------------------------------------------------------------------------


def test_raw_meanwhile_and_restored_at_the_end(box):
    with in_guest(box, "echo up; read x; exit 6") as t:
        t.read_until(b"up\r\n")
        assert t.is_raw()
        t.type(b"\r")
        assert t.wait() == 6
        assert t.is_restored()


def test_restored_when_the_command_is_not_found(box):
    m, name = box
    with terminal(m, "exec", name, "--", "no-such-program") as t:
        assert t.wait() == 127
        assert t.is_restored()
        assert b'error: failed to exec "no-such-program"\r\n' in t.output


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_restored_after_a_signal(box, sig):
    with in_guest(box, f"echo up; exec sleep {FOREVER}") as t:
        t.read_until(b"up\r\n")
        t.p.send_signal(sig)
        assert t.wait() == 128 + sig
        assert t.is_restored()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restored_when_the_sandbox_ends(msb, how):
    msb.create("b")
    with in_guest((msb, "b"), f"echo up; exec sleep {FOREVER}") as t:
        t.read_until(b"up\r\n")
        if how == "stop":
            msb.ok("stop", "-f", "-q", "b")
        else:
            os.kill(msb.monitor_pid("b"), signal.SIGKILL)
        assert t.wait() == 1
        assert t.is_restored()
        assert b"error: sandbox ended while the command ran\r\n" in t.output


def test_restored_after_a_timeout(box):
    """--timeout works interactively too."""
    with in_guest(box, f"echo up; exec sleep {FOREVER}", "--timeout", "500ms") as t:
        assert t.wait() == 124
        assert t.is_restored()
        assert t.output.endswith(b"error: exec timed out after 500ms\r\n")


def test_restored_after_a_crash_of_the_client(box):
    """Even a fault in the client leaves the terminal usable."""
    with in_guest(box, f"echo up; exec sleep {FOREVER}") as t:
        t.read_until(b"up\r\n")
        t.p.send_signal(signal.SIGSEGV)
        assert t.wait() == -signal.SIGSEGV
        assert t.is_restored()


def test_a_closed_terminal_hangs_up_the_command(box):
    """Closing the window is a SIGHUP for the command's group."""
    m, name = box
    script = f"trap 'echo hup >/tmp/hangup; exit' HUP; echo $$ >/tmp/tty.pid; echo up; " \
             f"sleep {FOREVER} & wait"
    t = in_guest(box, script)
    t.read_until(b"up\r\n")
    t.hang_up()
    assert wait_file(m, name, "/tmp/hangup") == "hup"
    wait_dead(m, name, read(m, name, "/tmp/tty.pid"))
    t.p.wait(timeout=PATIENCE)


def test_a_closed_terminal_kills_a_shell_and_its_job(box):
    m, name = box
    with terminal(m, "exec", name) as t:
        t.type(f"echo $$ >/tmp/shell.pid; sh -c 'echo $$ >/tmp/job.pid; exec sleep {FOREVER}'\r".encode())
        job = wait_file(m, name, "/tmp/job.pid")
        t.hang_up()
        wait_dead(m, name, read(m, name, "/tmp/shell.pid"), job)
        t.p.wait(timeout=PATIENCE)


def test_sigkill_of_a_terminal_client_kills_the_shells_jobs(box):
    """An interactive shell's jobs have their own groups, and are killed, too."""
    m, name = box
    with terminal(m, "exec", name) as t:
        t.type(f"sh -c 'echo $$ >/tmp/job2.pid; exec sleep {FOREVER}'\r".encode())
        job = wait_file(m, name, "/tmp/job2.pid")
        t.p.kill()
        wait_dead(m, name, job)


def test_returns_although_a_child_holds_the_terminal(box):
    """As with pipes: the session ends with the shell, and a child that ignores the hang-up survives."""
    m, name = box
    with in_guest(box, f"trap '' HUP; sleep {FOREVER} & echo $! >/tmp/keeper; exit 5") as t:
        assert t.wait() == 5
        assert t.is_restored()
    pid = read(m, name, "/tmp/keeper")
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


# --- detaching ----------------------------------------------------------------------------------


def test_ctrl_bracket_detaches(box):
    """ctrl-] detaches: exit 0, terminal restored, the command keeps running and may print."""
    m, name = box
    script = "echo $$ >/tmp/det.pid; echo up; i=0; while :; do i=$((i+1)); echo $i; " \
             "echo $i >/tmp/det; sleep 0.02; done"
    with in_guest(box, script) as t:
        t.read_until(b"up\r\n")
        t.type(b"\x1d")
        assert t.wait() == 0
        assert t.is_restored()
    pid = read(m, name, "/tmp/det.pid")
    seen = int(read(m, name, "/tmp/det"))
    wait_for(lambda: int(read(m, name, "/tmp/det") or 0) > seen + 10, timeout=PATIENCE)
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


def test_detached_from_a_flood(box):
    """Leaving works while output pours in, and the command is not held up by our absence."""
    m, name = box
    with in_guest(box, "echo $$ >/tmp/fl.pid; while :; do echo x; done") as t:
        pid = wait_file(m, name, "/tmp/fl.pid")
        t.type(b"\x1d")
        assert t.wait() == 0
        assert t.is_restored()
    assert alive(m, name, pid)
    sh(m, name, f"kill -9 {pid}")


def test_run_detach_keys(msb):
    """run --detach-keys: the chosen keys leave, ctrl-] is a key like any other."""
    script = "stty raw -echo; echo $$ >/tmp/pid; echo up; head -c 3 | od -An -tx1 >/tmp/keys; " \
             f"exec sleep {FOREVER}"
    with terminal(msb, "run", "-q", "-n", "b", "--detach-keys", "ctrl-p,ctrl-q", "--", "sh", "-c",
                  script) as t:
        t.read_until(b"up\n")
        t.type(b"\x1d")
        t.type(b"\x10x")  # the first of the two keys, and something else
        assert wait_file(msb, "b", "/tmp/keys").split() == ["1d", "10", "78"]
        t.type(b"\x10\x11")
        assert t.wait() == 0
        assert t.is_restored()
    assert msb.status("b") == "Running"
    assert alive(msb, "b", read(msb, "b", "/tmp/pid"))


def test_detached_ephemeral_run_lives_until_its_command_ends(msb):
    """An unnamed run that was detached from continues, and vanishes when its command ends."""
    with terminal(msb, "run", "-q", "--", "sh", "-c", "echo up; until [ -e /tmp/end ]; do "
                  "sleep 0.05; done") as t:
        t.read_until(b"up\r\n")
        t.type(b"\x1d")
        assert t.wait() == 0
    name = msb.ok("ls", "-q").strip()
    assert msb.status(name) == "Running"
    sh(msb, name, ": >/tmp/end")
    wait_for(lambda: msb.ok("ls", "-q") == "", timeout=PATIENCE)


@pytest.mark.parametrize("bad", ["", "ctrl-", "ctrl-1", "ab", "a,,b", "a,b,c,d,e,f,g,h,i"])
def test_bad_detach_keys(msb, bad):
    p = msb("run", "--detach-keys", bad, "--", "true")
    assert p.returncode in (1, 2)
    assert p.stderr.startswith(b"error: ")


# --- suspending ---------------------------------------------------------------------------------


def test_a_suspended_client_gives_the_terminal_back(box):
    """SIGTSTP from outside: the user's shell has a sane terminal; after fg it is raw again."""
    m, name = box
    with Terminal(["bash", "--norc", "--noediting", "-i"], dict(m.env, PS1="$ ", MSB=m.exe)) as t:
        t.type(f"$MSB exec -q {name} -- sh -c 'echo up; read x; exit 7'\r".encode())
        t.read_until(b"up\r\n")
        assert t.is_raw()
        client = m.tree(t.p.pid)[1]
        os.kill(client, signal.SIGTSTP)
        t.read_until(b"Stopped")
        wait_for(t.is_restored, timeout=PATIENCE)
        t.type(b"echo sane $((1 + 1))\r")
        t.read_until(b"sane 2\r\n")
        t.type(b"fg\r")
        wait_for(t.is_raw, timeout=PATIENCE)
        t.type(b"\r")
        wait_for(t.is_restored, timeout=PATIENCE)
        t.type(b"echo code $?; exit\r")
        t.read_until(b"code 7\r\n")
        t.wait()


def test_a_background_client_does_not_steal_input(box):
    """`msb exec ... &` from a terminal: the shell in front gets what is typed."""
    m, name = box
    with Terminal(["bash", "--norc", "--noediting", "-i"], dict(m.env, PS1="$ ", MSB=m.exe)) as t:
        t.type(f"$MSB exec --no-tty -q {name} -- sh -c 'echo up; sleep 0.3; echo done' &\r".encode())
        t.read_until(b"up\r\n")
        t.type(b"echo mine $((1 + 1))\r")
        t.read_until(b"mine 2\r\n")
        t.read_until(b"done\r\n")
        t.type(b"exit\r")
        t.wait()
