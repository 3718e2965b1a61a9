"""tests/run itself: what a stage finds around it, and that one that dies or hangs is counted.

Stages of these tests are modules in a directory of their own, beside those of tests/runner.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
TOTALS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")
# tests/run with other stages: name -> limit in minutes.
DRIVER = """
import sys
sys.path[:0] = [{tests!r}]
import runner
runner.__path__.insert(0, {stages!r})
from runner import main, supervisor
main.STAGES = {{n: {limits!r}.get(n, {limit}) for n in {names!r}}}
supervisor.RUN[-1] = sys.argv[0]
sys.exit(main.main())
"""


class Runner:
    def __init__(self, directory):
        self.dir = directory
        self.stages = directory / "stages"
        self.stages.mkdir()
        self.names = []
        self.limit = 1
        self.limits = {}  # of single stages

    def stage(self, name, body):
        (self.stages / f"{name}.py").write_text("import os, signal, subprocess, sys, time\n\n\ndef stage(args, t):\n"
                                                + textwrap.indent(textwrap.dedent(body), "    "))
        self.names.append(name)

    def command(self):
        driver = self.dir / "run"
        driver.write_text(DRIVER.format(tests=str(ROOT / "tests"), stages=str(self.stages), names=self.names,
                                        limit=self.limit, limits=self.limits))
        return [PYTHON, "-B", str(driver), "--build", str(self.dir)]

    def start(self, **kw):
        return subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)

    def run(self, **kw):
        """(exit code, output, [passed, failed, skipped])"""
        p = self.start(**kw)
        out = p.communicate(timeout=60)[0]
        return p.returncode, out, totals(out)


def totals(out):
    found = TOTALS.fullmatch(out.rstrip().splitlines()[-1])
    assert found, out
    return [int(n) for n in found.groups()]


def alive(pid):
    try:
        return pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


def test_results_add_up(runner):
    runner.stage("one", "t.check('this', True)\nt.skip('that', 'no reason')")
    runner.stage("two", "t.add(passed=5)")
    code, out, counts = runner.run()
    assert (code, counts) == (0, [6, 0, 1]), out
    assert out.index("==> one") < out.index("skip that: no reason") < out.index("==> two")


def test_a_failure_is_the_exit_code(runner):
    runner.stage("one", "t.check('this', False, 'because')")
    code, out, counts = runner.run()
    assert (code, counts) == (1, [0, 1, 0]) and "FAIL this\nbecause" in out


def test_a_tool_that_fails_must_have_counted_a_failure(runner):
    runner.stage("one", """
        t.account_for("a tool that counted none", 3, t.failed)
        failed = t.failed
        t.check("this", False)
        t.account_for("a tool that counted one", 1, failed)
        t.account_for("a tool that is well", 0, t.failed)""")
    code, out, counts = runner.run()
    assert (code, counts) == (1, [0, 2, 0]) and "FAIL a tool that counted none (its status is 3)" in out, out


UNSTEADY = """
import pathlib
import pytest


def test_once(tmp_path):
    seen = pathlib.Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        assert False


@pytest.mark.parametrize("ok", %s)
def test_steady(ok):
    assert ok


@pytest.mark.skip
def test_skipped():
    pass
"""


@pytest.mark.parametrize("steady, again, expected", [
    ([True], True, [2, 0, 1]),  # the one that failed once is spared
    ([True], False, [1, 1, 1]),
    ([True, False], True, [2, 1, 1]),  # one fails twice
    ([False] * 3, True, [0, 4, 1]),  # so many are no accident
])
def test_a_failure_that_does_not_come_again(runner, steady, again, expected):
    (runner.dir / "test_it.py").write_text(UNSTEADY % steady)
    runner.stage("one", f"""
        from runner import junit
        junit.ROOT = {str(runner.dir)!r}
        junit.run(args.build / "one.xml", t, "test_it.py", again={again})""")
    code, out, counts = runner.run()
    assert (code, counts) == (int(expected[1] > 0), expected), out
    assert ("UNSTEADY test_it.py::test_once" in out) == (again and len(steady) < 3), out


@pytest.mark.parametrize("body, why", [
    ("raise RuntimeError('oops')", "ended with status 1"),
    ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    ("os._exit(0)", "ended before it was done"),
    ("sys.exit(3)", "ended with status 3"),
])
def test_a_stage_that_dies_is_a_failure(runner, body, why):
    runner.stage("one", "t.check('before', True)\n" + body)
    runner.stage("two", "t.check('after', True)")
    code, out, counts = runner.run()
    assert (code, counts) == (1, [2, 1, 0]) and f"FAIL stage one {why}" in out, out


def test_a_stage_that_hangs_is_a_failure(runner):
    """It ends with all that it has started, also in sessions of their own."""
    marker = runner.dir / "pids"
    runner.limit = 5 / 60
    runner.stage("one", f"""
        for session in (False, True):
            p = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000 & wait"], start_new_session=session)
            with open({str(marker)!r}, "a") as f:
                print(p.pid, file=f)
        time.sleep(1000)""")
    runner.stage("two", "t.check('after', True)")
    code, out, counts = runner.run()
    assert (code, counts) == (1, [1, 1, 0]) and "FAIL stage one was out of time after 5 s" in out, out
    pids = marker.read_text().split()
    assert len(pids) == 2 and not [p for p in pids if alive(p)]


def test_the_end_of_a_stage_is_not_that_of_another(runner):
    """Not even of what one beside it has left to itself, and of no orphan of its own is one alive."""
    def orphan(marker):
        return f"""
            subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! >{runner.dir}/{marker}"])"""

    def gone(marker):
        return f"""
            def alive(name):
                path = "{runner.dir}/" + name
                pid = open(path).read().strip() if os.path.exists(path) else ""
                return not pid or os.path.exists("/proc/" + pid)
            deadline = time.monotonic() + 40
            while alive("{marker}") and time.monotonic() < deadline:
                time.sleep(0.01)"""

    runner.limits = {"fuzz": 5 / 60}
    runner.stage("fuzz", orphan("hanging") + """
            time.sleep(1000)""")
    runner.stage("kvm", orphan("beside") + gone("hanging") + """
            t.check("the other has ended", not alive("hanging"))
            t.check("this one's orphan has not", alive("beside"))""")
    code, out, counts = runner.run()
    assert (code, counts) == (1, [2, 1, 0]) and "FAIL stage fuzz was out of time after 5 s" in out, out
    assert not alive((runner.dir / "beside").read_text().strip()), "at the end of the run everything ends"


def test_those_beside_the_others_follow_each_other(runner):
    def till(name, then):
        return f"""
        deadline = time.monotonic() + 40
        while not os.path.exists("{runner.dir}/{name}") and time.monotonic() < deadline:
            time.sleep(0.01)
        open("{runner.dir}/{then}", "w").close()
        t.check("{then}", time.monotonic() < deadline)"""

    runner.stage("e2e", till("fresh-done", "e2e-done"))
    runner.stage("kvm", till(".", "kvm-done"))
    runner.stage("fresh", till("kvm-done", "fresh-done"))
    code, out, counts = runner.run()
    assert (code, counts) == (0, [3, 0, 0]), out
    assert out.index("==> e2e") < out.index("==> kvm") < out.index("==> fresh"), "each is told in one piece"


def test_orphans_are_buried(runner):
    """As init would: tests wait for the end of processes that are nobody's."""
    runner.stage("one", """
        p = subprocess.run(["sh", "-c", "sleep 0.1 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while os.path.exists("/proc/" + p.stdout.strip()) and time.monotonic() < deadline:
            time.sleep(0.01)
        t.check("gone", time.monotonic() < deadline)""")
    assert runner.run()[2] == [1, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_ended_says_so(runner, number):
    marker = runner.dir / "pid"
    runner.stage("one", f"""
        t.check('before', True)
        open({str(marker)!r}, "w").write(str(os.getpid()))
        time.sleep(1000)""")
    p = runner.start()
    while not marker.exists() or not marker.read_text():
        assert p.poll() is None
        time.sleep(0.01)
    p.send_signal(number)
    out = p.communicate(timeout=30)[0]
    assert p.returncode == 1 and f"FAIL the run was ended by {number.name}" in out
    assert totals(out)[1] == 1
    assert not alive(marker.read_text())


SHOW = """
    import json
    def word(field):
        status = open("/proc/self/status").read()
        return int(next(x.split()[1] for x in status.splitlines() if x.startswith(field)), 16)
    p = subprocess.run(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE, text=True)
    print("SEEN", json.dumps({"env": dict(os.environ), "umask": os.umask(0), "ignored": word("SigIgn"),
          "blocked": word("SigBlk"), "child": int(p.stdout.split()[1], 16), "tty": os.isatty(0),
          "sid": os.getsid(0) == os.getpid(), "tmp": oct(os.stat(os.environ["TMPDIR"]).st_mode)}))"""


def hostile():
    """What tests shall not inherit."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD,
                   signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGUSR2])
    os.umask(0o077)


@pytest.fixture
def seen(runner, tmp_path):
    """What a stage sees that somebody with odd habits has started."""
    runner.stage("one", SHOW)
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o500)
    env = {**{k: v for k, v in os.environ.items() if k not in ("TERM", "MSB_CACHE_DIR")},
           "HOME": str(mine), "TMPDIR": str(mine), "LC_ALL": "de_DE", "LANG": "de_DE", "MSB_HOME": "/nowhere",
           "GIT_DIR": "/nowhere", "MSB_TEST_SLOW": "1", "http_proxy": "http://proxy.example:1"}
    code, out, _ = runner.run(env=env, preexec_fn=hostile)
    assert code == 0, out
    return mine, json.loads(next(x for x in out.splitlines() if x.startswith("SEEN"))[5:])


def test_signals_are_not_inherited(seen):
    _, got = seen
    python = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)  # Python's own, not its children's
    libc = 1 << 31 | 1 << 32  # 32 and 33, which the C library keeps to itself
    assert got["ignored"] & ~(python | libc) == 0 and got["child"] & ~libc == 0 and got["blocked"] == 0


def test_nor_umask_and_terminal(seen):
    _, got = seen
    assert got["umask"] == 0o022 and not got["tty"] and got["sid"]


def test_nor_the_environment(seen):
    mine, got = seen
    env = got["env"]
    assert env["LC_ALL"] == "C.UTF-8" and env["TERM"] and "LANG" not in env
    assert "MSB_HOME" not in env and "GIT_DIR" not in env
    assert env["http_proxy"] and env["MSB_TEST_SLOW"], "what is for the network and for tests stays"
    for name in ("HOME", "TMPDIR"):
        assert env[name] != str(mine) and not os.path.exists(env[name]), "and it is gone afterwards"
    assert got["tmp"] == "0o41777"
    assert env["MSB_CACHE_DIR"] == f"{mine}/.cache/msb", "kernels and images are still found"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_what_was_left_mounted_is_no_reason_to_fail(runner):
    runner.stage("one", """
        place = os.path.join(os.environ["TMPDIR"], "left")
        os.mkdir(place)
        subprocess.run(["mount", "-t", "tmpfs", "left", place], check=True)
        print("LEFT", place)
        t.check("mounted", True)""")
    code, out, counts = runner.run()
    left = next(x for x in out.splitlines() if x.startswith("LEFT")).split()[1]
    assert code == 0 and counts == [1, 0, 0] and not os.path.exists(left), out


def test_a_read_only_tree_is_enough(runner):
    """Nothing is written beside the sources."""
    before = {p for p in (ROOT / "tests").rglob("*.pyc")}
    runner.stage("one", "import runner.lint\nt.check('imported', True)")
    assert runner.run()[2] == [1, 0, 0]
    assert {p for p in (ROOT / "tests").rglob("*.pyc")} == before


def test_the_cache_needs_no_runner(tmp_path):
    """Benchmarks and `make test-compat` use it without tests/run."""
    ask = "from runner.report import cache; print(cache('bench'))"
    p = subprocess.run([PYTHON, "-B", "-c", ask], env={"PYTHONPATH": str(ROOT / "tests"), "HOME": str(tmp_path)},
                       stdout=subprocess.PIPE, text=True, check=True)
    assert p.stdout == f"{tmp_path}/.cache/msb/bench\n"


def test_the_list_of_sources_needs_no_git(tmp_path):
    """A tree from a tar file has the same files."""
    copy = tmp_path / "copy"
    modules = [f"tests/runner/{m}.py" for m in ("__init__", "environment", "report")]
    files = [*modules, "src/a/b.c", "src/c.h", "build/x.c", "scripts/s"]
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text((ROOT / name).read_text() if name.startswith("tests") else "")
    ask = "from runner.report import sources; print(sources('src/*.c', '*.h'), 'scripts/s' in sources())"
    p = subprocess.run([PYTHON, "-B", "-c", ask], env={"PYTHONPATH": str(copy / "tests")}, stdout=subprocess.PIPE,
                       text=True, check=True)
    assert p.stdout == "['src/a/b.c', 'src/c.h'] True\n"
