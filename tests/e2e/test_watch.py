"""The plugin that keeps tests from hanging in the testbed (tests/kvm/watch.py)."""
import os
import subprocess

from conftest import ROOT

HANGS = """
import subprocess, time, pytest

@pytest.fixture
def slow_to_go():
    yield
    time.sleep(3600)

def test_reads_for_ever():
    subprocess.Popen(["sleep", "20"], stdout=subprocess.PIPE).stdout.read()

def test_cannot_be_cleaned_up(slow_to_go):
    pass

def test_is_well():
    pass
"""


def watched(directory, tests, **env):
    """pytest with the plugin, on a file of tests."""
    (directory / "test_it.py").write_text(tests)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "kvm"), "PYTHONDONTWRITEBYTECODE": "1", **env}
    return subprocess.run(["/usr/bin/python3", "-m", "pytest", "-v", "-p", "watch", "-p", "no:cacheprovider",
                           "-rfE", f"--basetemp={directory}/t", "test_it.py"], cwd=directory, env=env,
                          stdout=subprocess.PIPE, text=True, timeout=120, check=False)


def test_what_hangs_fails_and_says_where(tmp_path):
    p = watched(tmp_path, HANGS, MSB_WATCH_LIMIT="1")
    assert p.returncode == 1, p.stdout
    assert "2 passed" in p.stdout and "1 failed" in p.stdout and "1 error" in p.stdout
    assert "the test did not end in 1 s" in p.stdout and "teardown did not end in 1 s" in p.stdout
    assert "test_reads_for_ever was given up" in p.stdout
    assert 'stdout=subprocess.PIPE).stdout.read()' in p.stdout


STOPS = """
import os, pytest

@pytest.fixture
def broken():
    raise OSError

def test_is_well():
    pass

def test_fails():
    assert False

def test_has_no_fixture(broken):
    pass

@pytest.mark.skip
def test_is_skipped():
    pass

def test_is_cut_off():
    if not os.environ.get("AGAIN"):
        os._exit(9)
"""


def test_tests_that_are_cut_off_go_on_where_they_were(tmp_path):
    """None that has a result is run again, and least of all one that has failed."""
    results = tmp_path / "results"
    first = ["passed test_it.py::test_is_well", "failed test_it.py::test_fails",
             "failed test_it.py::test_has_no_fixture", "skipped test_it.py::test_is_skipped"]
    assert watched(tmp_path, STOPS, MSB_WATCH_RESULTS=str(results)).returncode == 9
    assert results.read_text().splitlines() == first
    p = watched(tmp_path, STOPS, MSB_WATCH_RESULTS=str(results), AGAIN="1")
    assert p.returncode == 0 and "1 passed, 4 deselected" in p.stdout, p.stdout
    assert results.read_text().splitlines() == [*first, "passed test_it.py::test_is_cut_off"]
    p = watched(tmp_path, STOPS, MSB_WATCH_RESULTS=str(results))
    assert p.returncode == 0 and "5 deselected" in p.stdout, "nothing is left to do"
