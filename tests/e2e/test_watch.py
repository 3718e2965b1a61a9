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


def test_what_hangs_fails_and_says_where(tmp_path):
    (tmp_path / "test_hangs.py").write_text(HANGS)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "kvm"), "PYTHONDONTWRITEBYTECODE": "1",
           "MSB_WATCH_LIMIT": "1"}
    p = subprocess.run(["/usr/bin/python3", "-m", "pytest", "-v", "-p", "watch", "-p", "no:cacheprovider",
                        "-rfE", f"--basetemp={tmp_path}/t", "test_hangs.py"], cwd=tmp_path, env=env,
                       stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert p.returncode == 1, p.stdout
    assert "2 passed" in p.stdout and "1 failed" in p.stdout and "1 error" in p.stdout
    assert "the test did not end in 1 s" in p.stdout and "teardown did not end in 1 s" in p.stdout
    assert "test_reads_for_ever was given up" in p.stdout
    assert 'stdout=subprocess.PIPE).stdout.read()' in p.stdout
