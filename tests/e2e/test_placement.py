"""--cpu-placement: which CPUs of the host a sandbox runs on, and with whom."""
import ctypes
import ipaddress
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


def test_what_was_asked_for_is_shown(msb):
    """Also what only the kvm engine can do, or nobody: profiles, huge pages, tenants. Pools are used."""
    p = msb("create", "-n", "a", "--memory", "128M", "--cpu-placement", "compact", "--placement-profile", "fast",
            "--thp", "always", "--deployment-profile", "multi-tenant", "--net-ipv4-pool", "10.9.7.5/16",
            "--net-ipv6-pool", "fd00:1::/48", check=0)  # fmt: skip
    now = json.loads(msb.ok("inspect", "a", "--format", "json"))
    assert (b"no huge pages" in p.stderr) == now["engine"].startswith("uml")
    resources = now["config"]["resources"]
    assert [resources[k] for k in ("cpu_placement", "placement_profile", "thp")] == ["compact", "fast", "always"]
    assert now["config"]["deployment_profile"] == "multi_tenant"
    assert now["config"]["network"]["interface"] == {"ipv4_pool": "10.9.0.0/16", "ipv6_pool": "fd00:1::/48"}
    text = msb.ok("inspect", "a")
    for line in ("Placement:    compact", "Profile:      fast", "THP:          always", "multi-tenant", "10.9.0.0/16"):
        assert line in text
    if now["engine"] == "kvm":
        assert "[always]" in msb.sh("a", "cat /sys/kernel/mm/transparent_hugepage/enabled", check=0).stdout.decode()
    if now["engine"] == "uml":
        first = min(os.sched_getaffinity(0))
        assert {first} in [os.sched_getaffinity(pid) for pid in tree(msb.monitor_pid("a"))]
    own, gateway = msb.sh("a", "ip -4 -o addr show eth0; cat /etc/resolv.conf", check=0).stdout.decode().splitlines()
    own, gateway = ipaddress.ip_interface(own.split()[3]), ipaddress.ip_address(gateway.split()[1])
    assert own.network.prefixlen == 30 and own.network.subnet_of(ipaddress.ip_network("10.9.0.0/16"))
    assert gateway in own.network and gateway + 1 == own.ip
    msb.sh("a", f"ping -c 1 -W 20 {gateway}", check=0)


@pytest.mark.parametrize("args, code", [
    (["--net-ipv4-pool", "10.9.0.0/31"], 2), (["--net-ipv4-pool", "fd00::/48"], 2), (["--net-ipv4-pool", "10.9.0.0"], 2),
    (["--net-ipv4-pool", "127.0.0.0/8"], 2), (["--net-ipv6-pool", "fd00::/65"], 2), (["--net-ipv6-pool", "ff00::/16"], 2),
    (["--placement-profile", "a/b"], 1), (["--cpu-placement", "anywhere"], 2), (["--max-cpus", "256"], 2),
])  # fmt: skip
def test_what_is_none(module_msb, args, code):
    p = module_msb("create", "-n", "x", *args)
    assert p.returncode == code and args[1] in p.stderr.decode(), p.stderr
