"""Many flows and many bytes: all arrive, nothing is left over, and no flow waits for another.

A gigabyte each way and 10,000 connections; an eighth of it where the machine is said to be slow."""
import pathlib
import zlib

import pytest

from conftest import SLOW, wait_for
from netkit import COMMANDS, WEB6
from servers import CHUNK

BYTES = (1 << 30) if SLOW <= 1 else (1 << 27)
SHORT = 10000 if SLOW <= 1 else 1250


class Monitor:
    """What a sandbox's monitor holds on the host."""

    def __init__(self, m, name):
        self.pid = m.monitor_pid(name)

    def fds(self):
        return len(list(pathlib.Path(f"/proc/{self.pid}/fd").iterdir()))

    def rss(self):
        fields = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(fields.split("RssAnon:")[1].split()[0]) << 10


@pytest.fixture(scope="module")
def load(net_msb):
    net_msb.create("load", "net-guest:1", "-m", "1G", "--max-connections", "1200")
    net_msb.guest("load", "download", COMMANDS, 1 << 20)  # all that is allocated once is there
    return net_msb


@pytest.fixture
def settled(load):
    """The test must leave the monitor with the descriptors and the memory that it had."""
    monitor = Monitor(load, "load")
    fds, rss = monitor.fds(), monitor.rss()
    yield monitor
    wait_for(lambda: monitor.fds() <= fds + 2, timeout=60)
    wait_for(lambda: monitor.rss() <= rss + (8 << 20), timeout=60)


def test_many_bytes_to_the_guest(load, settled):
    got = load.guest("load", "download", COMMANDS, BYTES, timeout=600)
    assert got["n"] == BYTES and got["crc"] == expected_crc(BYTES)


def test_many_bytes_from_the_guest(load, settled):
    assert load.guest("load", "upload", COMMANDS, BYTES, timeout=600)["n"] == BYTES  # it compares sums


def test_many_bytes_over_ipv6(load, settled):
    assert load.guest("load", "upload", COMMANDS, BYTES // 4, host=WEB6, timeout=600)["n"] == BYTES // 4
    got = load.guest("load", "download", COMMANDS, BYTES // 4, host=WEB6, timeout=600)
    assert got["crc"] == expected_crc(BYTES // 4)


def expected_crc(size):
    """Of what the command server sends."""
    n = crc = 0
    while n < size:
        piece = CHUNK[n % 241:][:size - n]
        crc = zlib.crc32(piece, crc)
        n += len(piece)
    return crc


def test_a_thousand_connections_at_once(load, settled):
    assert load.guest("load", "concurrent", COMMANDS, 1000, timeout=600) == {"count": 1000}


def test_short_connections(load, settled):
    assert load.guest("load", "short", COMMANDS, SHORT, timeout=600) == {"count": SHORT}


def test_no_flow_waits_for_another(load, settled):
    """Eight bulk transfers each way, and beside them a conversation that gets its turns."""
    assert load.guest("load", "beside_bulk", COMMANDS, 200, timeout=600)["rounds"] == 200


def established(pid, port):
    """Connections to a port, from the network of a process."""
    lines = pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return sum(1 for f in map(str.split, lines) if f[2].endswith(f":{port:04X}") and f[3] == "01")


def test_a_busy_sandbox_ends_at_once(load):
    load.create("busy", "net-guest:1", "-p", "18300:8080")
    before = established(load.net.host_pid, COMMANDS)
    clients = [load.start_guest("busy", "upload", COMMANDS, 1 << 34) for _ in range(4)]
    wait_for(lambda: established(load.net.host_pid, COMMANDS) >= before + len(clients))
    load.ok("rm", "-f", "-q", "busy")
    for p in clients:
        p.wait(20)
    assert load.monitor_pid("load")
