"""A stage in a separate process: it may die or hang, and still be counted."""
import json
import os
import pathlib
import signal
import subprocess
import time

from runner import environment
from runner.report import PYTHON, ROOT

RUN = [PYTHON, "-B", str(ROOT / "tests" / "run")]
KILL_S = 10  # for all that a stage has started to end, once it is killed


def processes():
    """(pid, parent, state) of everybody."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            yield int(entry.name), int(parent), state


def descendants(pid):
    """All that a process has started and that are alive, and what those have."""
    everybody = list(processes())
    found = [pid]
    for p in found:
        found += [child for child, parent, _ in everybody if parent == p]
    dead = {p for p, _, state in everybody if state == "Z"}
    return [p for p in found[1:] if p not in dead]


def reap():
    """Buries orphans, as init does; stages are left to those who wait for them."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if not dead:
            return
        if dead.si_pid in Stage.running:
            Stage.running.pop(dead.si_pid).poll()
        else:
            os.waitpid(dead.si_pid, 0)


def kill_below(pid):
    """Ends whatever a process has started, also what starts others meanwhile."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        found = descendants(pid)
        if not found:
            return
        for p in found:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


def keep(pid):
    """What a stage leaves behind is adopted by its keeper, this process, and so is known to be that stage's.
    Waits for the stage and ends as it did; SIGTERM ends both, and all that the stage has started."""
    def on_term(*_):
        kill_below(os.getpid())
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_term)
    found = 0
    while found != pid:
        found, status = os.wait()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


class Stage:
    """A stage's keeper, seen from the run."""
    running = {}  # pid -> process

    def __init__(self, name, build, place, limit, output=None):
        self.name, self.limit, self.output = name, limit, output
        self.results = place.directory / f"{name}.json"
        self.started = time.monotonic()
        cmd = [*RUN, "--build", build, "--inside", self.results, name]
        out = open(output, "wb") if output else None
        self.process = subprocess.Popen(
            [str(c) for c in cmd], cwd=ROOT, env=place.environment(), stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT if out else None, start_new_session=True,
            preexec_fn=environment.become_child)
        Stage.running[self.process.pid] = self.process
        if out:
            out.close()

    def kill(self):
        """The stage, and all that it has started, but nothing of those that run beside it."""
        self.process.terminate()
        try:
            self.process.wait(2 * KILL_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        Stage.running.pop(self.process.pid, None)

    def ended(self):
        return self.process.poll() is not None

    def verdict(self, meanwhile):
        """How it ended; empty if well."""
        while not self.ended():
            if meanwhile:
                meanwhile()
            if time.monotonic() > self.started + self.limit:
                return f"was out of time after {self.limit:.0f} s"
            time.sleep(0.05)
            reap()
        Stage.running.pop(self.process.pid, None)
        code = self.process.returncode
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}" if code else ""

    def finish(self, totals, meanwhile=None):
        """Waits for its end, and adds what it counted; an end that is not its own is a failure."""
        verdict = self.verdict(meanwhile)
        if verdict:
            self.kill()
        if self.output:
            print(self.output.read_text(errors="replace").rstrip(), flush=True)
        done = False
        if self.results.exists():
            result = json.loads(self.results.read_text())
            totals.add(*result["counts"])
            done = result["done"]
        if verdict or not done:
            totals.check(f"stage {self.name} {verdict or 'ended before it was done'}", False)
