"""--cpu-placement: which CPUs of the host a sandbox runs on, and with whom."""
import ctypes
import json
import os
import pathlib

import pytest

from processes import tree

PR_SCHED_CORE, PR_SCHED_CORE_GET = 62, 0
SMT = pathlib.Path("/sys/devices/system/cpu/smt/active")


def cookie(pid):
    """What tells whether two processes may share a core; 0: it is anybody's."""
    value = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, pid, 0, ctypes.byref(value)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value.value


def placement(msb, name):
    return json.loads(msb.ok("inspect", name, "--format", "json"))["config"]["resources"]["cpu_placement"]


def test_core_where_there_is_nothing_to_share(msb):
    if not SMT.exists() or SMT.read_text().strip() != "0":
        pytest.skip("cores of this machine have several hardware threads")
    msb.create("a", "--cpu-placement", "core")
    assert placement(msb, "a") == "core"
    assert msb.sh("a", "true").returncode == 0


def test_core_is_its_own(msb):
    """The monitor and all below it may share a core with each other, and with nobody else."""
    if not SMT.exists() or SMT.read_text().strip() != "1":
        pytest.skip("cores of this machine have one hardware thread")
    p = msb("create", "-q", "-n", "a", "--cpu-placement", "core")
    if p.returncode:
        assert b"cannot keep other programs off a core's threads" in p.stderr and b"SCHED_CORE" in p.stderr
        pytest.skip("this host's kernel has no core scheduling: refused, as it should be")
    msb.create("b", "--cpu-placement", "core")
    a, b = ({cookie(pid) for pid in tree(msb.monitor_pid(name))} for name in ("a", "b"))
    assert len(a) == 1 and len(b) == 1 and a != b and 0 not in a | b
