"""A sandbox lives: create, exec, stop, remove."""
import re

from conftest import SLOW


def test_create_exec_remove(msb):
    msb.create("a")
    assert msb.ok("exec", "-q", "a", "--", "echo", "hello") == "hello\n"
    assert msb.sh("a", "exit 42").returncode == 42
    msb.ok("stop", "a", "-q")
    assert msb.status("a") == "Stopped"
    msb.ok("remove", "a", "-q")
    assert msb.ok("ls", "-q") == ""


def test_run_is_ephemeral(msb):
    p = msb("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    # On a busy machine the testbed's KVM is so slow that msb says so.
    said = re.sub(rb"^warn: this host's /dev/kvm emulates .*\n", b"", p.stderr) if SLOW > 1 else p.stderr
    assert (p.returncode, p.stdout, said) == (3, b"out\n", b"err\n")
    assert msb.ok("ls", "-q") == ""


def test_guest_knows_its_machine(msb):
    """What installers look at: the architecture, a kernel version, CPU flags."""
    msb.create("a")
    assert msb.ok("exec", "-q", "a", "--", "uname", "-sm") == "Linux x86_64\n"
    assert msb.ok("exec", "-q", "a", "--", "uname", "-r")[0].isdigit()
    assert " sse2 " in msb.sh("a", "grep ^flags /proc/cpuinfo").stdout.decode()
