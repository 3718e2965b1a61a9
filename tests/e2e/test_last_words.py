"""Nothing of a command's output is lost, and no command is turned away, because a sandbox ends."""
import subprocess
import threading
import time

import pytest


@pytest.mark.parametrize("size", [250_000, 300_000, 500_000, 900_000])
@pytest.mark.parametrize("kind", ["ephemeral", "started for it"])
def test_slow_reader_gets_everything(msb, size, kind):
    """A sandbox that goes with its last command waits until that command's output is taken."""
    if kind == "ephemeral":
        p = msb.popen("run", "-q", "--", "head", "-c", size, "/dev/zero", stdout=subprocess.PIPE)
    else:
        msb.create("box")
        msb.ok("stop", "box")
        p = msb.popen("exec", "-q", "box", "--", "head", "-c", size, "/dev/zero", stdout=subprocess.PIPE)
    time.sleep(0.7)
    assert len(p.stdout.read()) == size
    assert p.wait(timeout=30) == 0
