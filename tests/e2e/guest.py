"""What the tests ask about the inside of a sandbox, and the values they wait for."""
import pathlib
import re
import signal
import subprocess

from conftest import wait_for

# Long enough that nothing in a test ever waits for its end; a bug shows up as a hang instead.
FOREVER = "86400"
# Upper bound of anything that must simply not hang, on a slow and busy machine.
PATIENCE = 60


def sh(m, name, script, **kw):
    """Runs a script in the guest that must succeed; returns what it printed."""
    p = m("exec", "-q", name, "--", "sh", "-c", script, check=0, **kw)
    return p.stdout.decode(errors="replace")


def read(m, name, path):
    """Content of a file in the guest, stripped; "" while it is not there."""
    return sh(m, name, f"cat {path} 2>/dev/null || true").strip()


def wait_file(m, name, path):
    """Waits until a file in the guest has content, and returns it."""
    return wait_for(lambda: read(m, name, path), timeout=PATIENCE)


def alive(m, name, pid):
    """Is this process there, and not a zombie?"""
    state = sh(m, name, f"sed 's/.*) //' /proc/{pid}/stat 2>/dev/null || true").split()
    return bool(state) and state[0] != "Z"


def wait_dead(m, name, *pids):
    for pid in pids:
        wait_for(lambda: not alive(m, name, pid), timeout=PATIENCE)


def rss_anon_kib(pid):
    """Private memory of a host process, 0 when it has gone."""
    try:
        status = pathlib.Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found.group(1)) if found else 0


def finish(p, timeout=PATIENCE):
    """Waits for a client that is expected to end by itself; (code, stdout, stderr)."""
    try:
        out, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.send_signal(signal.SIGKILL)
        p.communicate()
        raise AssertionError(f"{p.args} did not end")
    return p.returncode, out, err
