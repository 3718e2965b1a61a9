"""The audit log: who did what to which sandbox, with no secret in it, whoever is killed meanwhile."""
import json
import os
import signal
import subprocess

from conftest import wait_for


def records(m, *args):
    return [json.loads(line) for line in m.ok("audit", "--json", *args).splitlines()]


def events(m, *args):
    return [(r["event"], r.get("sandbox")) for r in records(m, *args) if r["event"] != "net"]


def deny(m, name, address="10.1.2.3"):
    m("exec", "-q", name, "--", "/.msb/bin/bash", "-c", f"echo x >/dev/tcp/{address}/7")


def test_a_life(msb, tmp_path):
    os.mkdir(tmp_path / "data")
    msb.create("a", "-m", "64M", "-v", f"{tmp_path}/data:/data:ro")
    p = msb("exec", "-q", "-u", "root", "-w", "/tmp", "-e", "TOKEN=s3cr3t-value", "a", "--", "sh", "-c", "exit 7")
    assert p.returncode == 7
    msb.ok("stop", "-q", "a")
    msb.ok("stop", "-q", "a")  # nothing happens, nothing is recorded
    msb.ok("start", "-q", "a")
    msb.ok("net", "set", "a", "-q", "--net-rule", "allow@example.com")
    port = msb.ok("port", "add", "a", "0:80").split(":")[1].strip()
    msb.ok("port", "rm", "a", port, "-q")
    msb.ok("stop", "-q", "-f", "a")
    msb.ok("rm", "-q", "a")
    assert [e for e, name in events(msb) if name == "a"] == [
        "create", "exec", "exit", "stop", "start", "net-set", "port-add", "port-rm", "kill", "remove"]
    by_event = {r["event"]: r for r in records(msb)}
    mounts = by_event["create"]["mounts"]
    assert mounts == [{"type": "bind", "source": f"{tmp_path}/data", "guest": "/data", "read_only": True}]
    assert by_event["create"]["digest"].startswith("sha256:")
    assert by_event["create"]["net"] == {"profile": "public", "rules": []}
    run, end = by_event["exec"], by_event["exit"]
    assert run["argv"] == ["sh", "-c", "exit 7"] and run["user"] == "root" and run["workdir"] == "/tmp"
    assert end["code"] == 7 and end["exec"] == run["exec"] and end["pid"] == run["pid"]
    assert by_event["net-set"]["rules"] == ["allow@example.com"]
    assert by_event["port-add"]["port"] == f"127.0.0.1:{port}->80/tcp"
    assert all(r["uid"] == os.getuid() and r["t"].endswith("Z") for r in records(msb))
    times = [r["t"] for r in records(msb)]
    assert times == sorted(times)
    path = msb.home / "audit.log"
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"s3cr3t-value" not in path.read_bytes() and b"TOKEN" not in path.read_bytes()


def test_failures_are_recorded(msb):
    msb.create("a", "-m", "64M")
    assert msb("rm", "a").returncode == 1  # it runs
    assert msb("create", "-n", "a", "-q").returncode == 1
    failed = [(r["event"], r["error"]) for r in records(msb) if "error" in r]
    assert len(failed) == 2
    assert failed[0][0] == "remove" and "still running" in failed[0][1]
    assert failed[1][0] == "create" and "already exists" in failed[1][1]
    msb.ok("create", "-n", "a", "-q", "--replace", "-m", "64M")
    assert events(msb)[-2:] == [("remove", "a"), ("create", "a")]


def test_run_and_its_end(msb):
    msb("run", "-q", "-m", "64M", "--", "sh", "-c", "exit 3", check=3)
    name = records(msb)[0]["sandbox"]
    assert [e for e, n in events(msb) if n == name] == ["create", "exec", "exit", "remove"]
    exits = [r["code"] for r in records(msb) if r["event"] == "exit"]
    assert exits == [3]
    msb.ok("run", "-q", "-m", "64M", "-v", "v:/v", "--", "true")  # stopped, for what it has to write
    name = records(msb)[-1]["sandbox"]
    assert [e for e, n in events(msb) if n == name] == ["create", "exec", "exit", "stop", "remove"]


def test_secrets_are_not_in_it(msb):
    msb.ok("secret", "set", "API_KEY", input=b"k3y-value\n")
    msb.create("a", "-m", "64M", "--secret-env", "API_KEY")
    assert b"k3y-value" in msb.sh("a", "echo $API_KEY").stdout
    assert b"k3y-value" not in (msb.home / "audit.log").read_bytes()


def test_what_a_network_denied(msb):
    """Live from the sandbox's own log; copied when the sandbox goes, also one that goes by itself."""
    msb.create("a", "-m", "64M", "--net", "host")
    deny(msb, "a")
    r = wait_for(lambda: [r for r in records(msb) if r["event"] == "net"], timeout=20)[0]
    assert (r["sandbox"], r["verdict"], r["address"], r["port"]) == ("a", "deny", "10.1.2.3", 7)
    assert r["from"] == "sandbox" and r["why"] == "denied: no rule allows it"
    assert b'"event":"net"' not in (msb.home / "audit.log").read_bytes()
    msb.ok("rm", "-f", "-q", "a")
    again = [r for r in records(msb) if r["event"] == "net"]
    assert [(r["address"], r["t"]) for r in again] == [("10.1.2.3", r["t"])]
    assert b'"event":"net"' in (msb.home / "audit.log").read_bytes()
    times = [r["t"] for r in records(msb)]
    assert times == sorted(times), "copied last, shown in its place"
    msb("run", "-q", "-m", "64M", "--", "/.msb/bin/bash", "-c", "echo x >/dev/tcp/10.1.2.4/7")
    assert wait_for(lambda: [r for r in records(msb) if r.get("address") == "10.1.2.4"], timeout=20)
    text = msb.ok("audit")
    assert "net " in text and "flow -> 10.1.2.3:7/tcp  denied: no rule allows it" in text


def test_views(msb):
    for name in ("a", "b"):
        msb.create(name, "-m", "64M")
    middle = records(msb)[-1]["t"]
    msb.sh("a", "true")
    assert {r["sandbox"] for r in records(msb, "--name", "b")} == {"b"}
    assert events(msb, "--since", middle) == [("create", "b"), ("exec", "a"), ("exit", "a")]
    assert events(msb, "--tail", "1") == [("exit", "a")]
    lines = msb.ok("audit", "--tail", "2").splitlines()
    assert lines[0].split() == ["TIME", "EVENT", "SANDBOX", "DETAILS"]
    assert lines[1].split()[2:4] == ["exec", "a"] and 'argv=["sh","-c","true"]' in lines[1]
    p = msb.popen("audit", "-f", "--json", "--tail", "1", stdout=subprocess.PIPE)
    try:
        assert json.loads(p.stdout.readline())["event"] == "exit"  # from here on it follows
        msb.sh("b", "true")
        assert [json.loads(p.stdout.readline())["event"] for _ in range(2)] == ["exec", "exit"]
        deny(msb, "b")
        got = [json.loads(p.stdout.readline()) for _ in range(3)]
        assert sorted(r["event"] for r in got) == ["exec", "exit", "net"]
        msb.ok("rm", "-f", "-q", "b")  # what is copied now was shown before
        assert json.loads(p.stdout.readline())["event"] == "remove"
        msb.sh("a", "true")
        assert json.loads(p.stdout.readline())["event"] == "exec"
    finally:
        p.kill()
        p.communicate()


def test_off_and_broken(msb):
    off = {**msb.env, "MSB_AUDIT": "off"}
    msb.ok("create", "-n", "a", "-q", "-m", "64M", env=off)
    msb.ok("exec", "-q", "a", "--", "true", env=off)
    assert not (msb.home / "audit.log").exists()
    assert msb.ok("audit", "--json") == ""
    os.mkdir(msb.home / "audit.log")  # cannot be written: a warning, not a failure
    p = msb("exec", "a", "--", "true", check=0)
    assert p.stderr.decode().count("cannot write to the audit log") == 1
    os.rmdir(msb.home / "audit.log")
    os.symlink("/etc/passwd", msb.home / "audit.log")
    msb("exec", "-q", "a", "--", "true", check=0)
    os.unlink(msb.home / "audit.log")


def test_many_writers_some_of_them_killed(msb):
    """Every record is whole; those of who was not killed are all there."""
    msb.create("a", "-m", "128M")
    running = []
    for i in range(24):
        p = msb.popen("exec", "-q", "a", "--", "echo", "x" * 1000, str(i), stdin=subprocess.DEVNULL,
                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        running.append(p)
    for p in running[::3]:
        p.send_signal(signal.SIGKILL)
    codes = [p.wait(timeout=60) for p in running]
    lines = (msb.home / "audit.log").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    ended = {r["pid"] for r in parsed if r["event"] == "exit"}
    for p, code in zip(running, codes):
        assert code != 0 or p.pid in ended
