"""What sandboxes use: tables, JSON, a stream, Prometheus' text, and the whole screen."""
import json
import subprocess

from conftest import wait_for
from terminal import Terminal

KEYS = {"name", "state", "cpus", "timestamp", "cpu_percent", "vcpu_time_ns", "memory_bytes", "memory_available_bytes",
        "memory_host_resident_bytes", "memory_limit_bytes", "disk_read_bytes", "disk_write_bytes", "net_rx_bytes",
        "net_tx_bytes", "upper_used_bytes", "upper_free_bytes", "upper_host_allocated_bytes", "uptime_secs",
        "execs"}  # fmt: skip


def sample(m, name):
    return json.loads(m.ok("metrics", name, "--format", "json"))


def test_counters_count(box):
    m, name = box
    before = sample(m, name)
    assert set(before) == KEYS and before["state"] == "running"
    assert 0 < before["memory_bytes"] <= before["memory_limit_bytes"] == 512 << 20
    m.sh(name, "dd if=/dev/zero of=/root/f bs=1M count=8 conv=fsync 2>/dev/null; i=0; "
               "while [ $i -lt 200000 ]; do i=$((i+1)); done", check=0)
    after = sample(m, name)
    assert after["disk_write_bytes"] >= before["disk_write_bytes"] + (8 << 20)
    assert after["execs"] == before["execs"] + 1
    assert after["vcpu_time_ns"] > before["vcpu_time_ns"]


def test_busy_ones_are_busy(box):
    m, name = box
    m.ok("exec", "-d", name, "sh", "-c", "while [ ! -e /tmp/stop ]; do :; done")
    wait_for(lambda: sample(m, name)["cpu_percent"] > 5)
    lines = m.ok("metrics", "--sort", "cpu").splitlines()
    assert lines[0].split()[:4] == ["NAME", "STATE", "CPU", "MEM"] and lines[1].startswith(name)
    m.sh(name, ": >/tmp/stop", check=0)


def test_lists_and_streams(box):
    m, name = box
    m.create("off")
    m.ok("stop", "-f", "off")
    assert [s["name"] for s in json.loads(m.ok("metrics", "--json"))] == [name]
    everything = json.loads(m.ok("metrics", "-a", "--json"))
    assert [(s["name"], s["state"]) for s in everything] == [(name, "running"), ("off", "exited")]
    p = m.popen("metrics", "-f", "--interval", "50ms", stdout=subprocess.PIPE)
    first, second = json.loads(p.stdout.readline()), json.loads(p.stdout.readline())
    p.kill()
    p.communicate()
    assert set(first) == KEYS and first["timestamp"] < second["timestamp"]
    text = m.ok("metrics", "--format", "prometheus")
    assert f'msb_up{{sandbox="{name}"}} 1\n' in text and "# TYPE msb_cpu_seconds_total counter" in text
    assert name in m.ok("stats") and name in m.ok("stats", "--no-stream")
    m.ok("rm", "off")


def test_bad_use(box):
    m, name = box
    for args, code in ((["-w"], 1), (["--interval", "1ms"], 2), (["nobody"], 1), (["-w", "-f"], 2), (["--sort", "x"], 2)):
        p = m("metrics", *args)
        assert p.returncode == code and p.stderr.startswith(b"error: ")


def test_top_is_left_with_q(box):
    m, name = box
    with Terminal(m.command(["top"]), m.env) as t:
        t.read_until(name.encode())
        t.read_until(b"q quits")
        t.type(b"q")
        assert t.wait() == 0 and t.is_restored()
        assert t.output.rstrip().endswith(b"\x1b[?1049l")
