"""The short form of make test-compat: the host's own programs do in a sandbox what they do on the host."""
import os
import subprocess

import pytest

from conftest import ROOT, need
from guest import PATIENCE

PROGRAMS = ROOT / "tests" / "compat" / "programs"


def results(text):
    return dict(line.split(": ", 1) for line in text.splitlines())


@pytest.mark.timeout(300)
def test_the_hosts_programs(msb, host_tools, tmp_path):
    """One boot, a dozen programs: about 10 s."""
    need("cc", "git", "node", "perl", "strace", "xz", "docker-registry", "ps", "top", "vmstat")
    native = subprocess.run(["sh", PROGRAMS / "tools.sh"], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=PATIENCE * 2)
    guest = msb.ok("run", "-q", "-m", "1G", "-v", "/usr:/usr:ro", "-v", f"{PROGRAMS}:/compat:ro", host_tools, "--",
                   "sh", "/compat/tools.sh", timeout=PATIENCE * 2)
    assert results(guest) == results(native.stdout)
    assert len(results(guest)) >= 13
