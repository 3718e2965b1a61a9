"""Frames of a hostile guest against the stack, with whatever sanitizers it was built with."""
import pytest

import attacks
from test_policy import HERE, run
from test_stack import can_run

WEB = "93.184.216.34"
FRAMES = (HERE / "frames.py").read_text()

pytestmark = pytest.mark.skipif(not can_run(), reason="needs root and /dev/net/tun")


@pytest.mark.parametrize("name", attacks.ALL)
def test_attack(name):
    out, world = run(f"allow@{WEB}", FRAMES + attacks.ALL[name] + 'show(get(WEB, "well"))\n')
    assert out[-1] == "well"
    assert world["connections"] == [WEB] and world["asked"] == []
