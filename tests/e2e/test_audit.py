"""The audit log: who did what to which sandbox, without secrets, even if a writer is killed."""
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from conftest import wait_for

SDK = str(pathlib.Path(__file__).resolve().parents[2] / "sdk" / "python")


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
    """Every record is complete; those of writers that were not killed are all there."""
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


# --- the chain ---

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from msb._audit import Audit
log = Audit(sys.argv[2], None)
n = int(sys.argv[3])
for i in range(n) if n else iter(int, 1):
    log.exit("py", log.exec("py", ["x" * (i % 3000), "\\udcff"], None, None, False, ["KEY"]), i)
"""


def test_python_and_c_write_one_chain(msb):
    """Records of msb and of the SDK, from many processes, some of them killed at any point."""
    def writer(n):
        return subprocess.Popen([sys.executable, "-c", WRITER, SDK, str(msb.home), str(n)])

    msb.ok("audit")  # makes the home
    lasting = [writer(60) for _ in range(3)]
    killed = [writer(0) for _ in range(4)]
    copies = []
    for i in range(12):
        copies.append(msb.popen("rm", "-q", f"none{i}", "-f", stderr=subprocess.DEVNULL))
        copies.append(msb.popen("pull", "-q", f"127.0.0.1:1/none{i}", stderr=subprocess.DEVNULL))
        if i % 3 == 0:
            time.sleep(0.05)
            killed[i // 3].kill()
    assert [p.wait(timeout=60) for p in lasting] == [0, 0, 0]
    for p in copies + killed:
        p.wait(timeout=60)
    state = json.loads(msb.ok("audit", "verify", "--format", "json"))
    assert state["ok"] and state["first"] == 1 and state["problems"] == [], state
    got = records(msb)
    numbers = [r["seq"] for r in got]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    mine = [r for r in got if r["event"] in ("exec", "exit") and r["pid"] == lasting[0].pid]
    assert len(mine) == 120 and mine[0]["secrets"] == ["KEY"] and "ms" in mine[1]
    assert len([r for r in got if r["event"] == "pull" and "error" in r]) == 12


def test_python_repairs_and_rotates(msb):
    """What a killed writer left fills the file: the SDK ends it, and goes on in the next, as msb does."""
    path = msb.home / "audit.log"
    for name in ("a", "b"):
        msb("pull", "-q", f"127.0.0.1:1/{name}", check=1)
    with path.open("ab") as f:
        f.write(b"n" * (10 * 1024 * 1024 - 500 - f.tell()))
    subprocess.run([sys.executable, "-c", WRITER, SDK, str(msb.home), "1"], check=True)
    state = json.loads(msb.ok("audit", "verify", "--format", "json"))
    assert (state["ok"], state["repaired"], state["last"]) == (True, 1, 5), state
    first, second = path.read_text().splitlines()  # what was there before, and the repair, are in the other
    assert json.loads(first)["begins"] is True and "begins" not in second
    path.write_text(second + "\n")
    assert "record 4 is missing before this one" in msb("audit", "verify", check=1).stderr.decode()


def test_the_sdk_follows_the_policy(msb, tmp_path):
    """Level, arguments and sinks are those of the policy for records of the SDK, too, also when it changes."""
    msb.ok("audit")  # makes the home
    out = tmp_path / "sunk"
    code = ("import os, sys, time\nsys.path.insert(0, sys.argv[1])\nfrom msb._cli import Cli\n"
            "log = Cli(sys.argv[2], sys.argv[3], {**os.environ, 'MSB_AUDIT': 'off'}).audit\n"
            "for line in sys.stdin:\n"
            "    log.exit('py', log.exec('py', ['echo', 'a b'], None, None, False), 0)\n"
            "    print(log.reads, flush=True)\n")  # fmt: skip
    p = subprocess.Popen([sys.executable, "-c", code, SDK, msb.exe, str(msb.home)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)  # fmt: skip

    def go():
        p.stdin.write("\n")
        p.stdin.flush()
        return p.stdout.readline()

    assert go() == "False\n" and not (msb.home / "audit.log").exists()  # MSB_AUDIT=off, which is no error
    (msb.home / "policy.yaml").write_text(
        f"audit: {{level: all, argv: hash, command: [/bin/sh, -c, 'exec cat > {out}']}}\n")
    assert go() == "True\n"
    (msb.home / "policy.yaml").write_text("audit: {level: denied, bad: key}\n")
    assert go() == "True\n"  # what cannot be read might say so
    os.unlink(msb.home / "policy.yaml")
    assert go() == "False\n"
    p.stdin.close()
    assert p.wait(timeout=60) == 0
    wait_for(lambda: out.exists() and out.read_text().count("\n") == 2)
    lines = (msb.home / "audit.log").read_text().splitlines()
    assert out.read_text().splitlines() == lines[:2] and len(lines) == 4
    got = [json.loads(line) for line in lines]
    assert got[0]["argv_hash"] == "sha256:" + hashlib.sha256(b"echo\0a b\0").hexdigest() and "argv" not in got[0]
    assert got[2]["argv"] == ["echo", "a b"]
    assert json.loads(msb.ok("audit", "verify", "--format", "json"))["ok"]


def test_verify(msb):
    """What was done to the log is said, with its place; the next record does not hide it."""
    for name in ("a", "b", "c", "d"):
        msb("pull", "-q", f"127.0.0.1:1/{name}", check=1)
    path = msb.home / "audit.log"
    anchor = msb.ok("audit", "verify", "--anchor").strip()
    assert anchor.startswith("4:") and "records 1 to 4" in msb("audit", "verify", check=0).stderr.decode()
    msb("pull", "-q", "127.0.0.1:1/e", check=1)
    msb.ok("audit", "verify", "--expect", anchor, "-q")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"127.0.0.1:1/b", b"127.0.0.1:1/x"))
    error = msb("audit", "verify", check=1).stderr.decode()
    assert "audit.log:2: record 2 was changed" in error
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert "records 4 to 5 are missing at the end" in msb("audit", "verify", check=1).stderr.decode()
    state = json.loads(msb("audit", "verify", "--format", "json", check=1).stdout)
    assert not state["ok"] and state["problems"][0]["seq"] == 4
    os.unlink(msb.home / "audit.head")  # whoever can write both can hide it, but not from someone who kept an anchor
    msb("pull", "-q", "127.0.0.1:1/f", check=1)
    msb.ok("audit", "verify", "-q")
    assert "is not the one that is expected" in msb("audit", "verify", "--expect", anchor, check=1).stderr.decode()
    assert "NUMBER:HASH" in msb("audit", "verify", "--expect", "4", check=2).stderr.decode()


def test_filters_and_sums(msb):
    """By label, user, verb and time; and what sandboxes used, from the records of their ends."""
    msb.create("a", "-m", "64M", "--label", "team=red", "--label", "env")
    msb.create("b", "-m", "64M", "--label", "team=blue")
    msb.sh("a", "head -c 1048576 /dev/urandom > /x; sync")
    middle = records(msb)[-1]["t"]
    msb.ok("modify", "a", "-q", "--label", "team=green")
    msb.ok("stop", "-q", "a")
    msb.ok("rm", "-q", "a")
    msb.ok("rm", "-q", "-f", "b")
    assert events(msb, "--label", "team=blue") == [("create", "b"), ("remove", "b")]
    assert ("exec", "a") in events(msb, "--label", "team", "--label", "env")
    assert events(msb, "--label", "team=none") == []
    assert events(msb, "--verb", "create", "--verb", "stop") == [("create", "a"), ("create", "b"), ("stop", "a")]
    assert events(msb, "--user", str(os.getuid()), "--verb", "exec") == [("exec", "a")]
    assert events(msb, "--user", "54321") == []
    assert ("remove", "a") not in events(msb, "--until", middle)
    assert msb("audit", "--user", "no such user").returncode == 2
    changed = [r["changed"] for r in records(msb, "--verb", "modify")]
    assert changed == [["labels"]]
    made = records(msb, "--verb", "create")[0]
    assert made["program"] == "msb" and made["parent"] and made["ms"] >= 0
    sums = {r["label"]: r for r in json.loads(msb.ok("audit", "--stats", "--json"))}
    assert set(sums) == {"team=red", "team=green", "team=blue", "env="}
    red, green = sums["team=red"], sums["team=green"]
    assert red["sandboxes"] == 1 and red["runs"] == 0 and green["runs"] == 1, "stopped and removed is one run"
    assert sums["env="]["sandboxes"] == 1 and sums["env="]["runs"] == 1
    assert green["write_bytes"] >= 1 << 20 and green["seconds"] > 0 and sums["team=blue"]["runs"] == 1
    assert msb.ok("audit", "--stats").split()[:3] == ["LABEL", "SANDBOXES", "RUNS"]


SPIN = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; read -r _ user _ </proc/stat; echo $user"


def test_cpu_time_of_processes_that_have_ended(msb):
    """Whoever ends the sandbox: the time of its commands is counted, also when they are gone."""
    msb.create("a", "-m", "64M")
    msb.create("b", "-m", "64M")
    spent = {}
    for name in ("a", "b"):
        spent[name] = int(msb.sh(name, f"/.msb/bin/bash -c '{SPIN}'").stdout) * 10
        assert spent[name] > 0
    msb.ok("stop", "-q", "a")
    msb.sh("b", "poweroff")
    wait_for(lambda: msb.status("b") == "Stopped", timeout=20)
    msb.ok("rm", "-q", "a", "b")
    for name, least in spent.items():  # a stop asks a busy guest for a moment only; its last word is on record later
        used = [r["usage"]["cpu_ms"] for r in records(msb, "--name", name) if "usage" in r]
        assert max(used) >= least, (name, used, least)


def test_a_run_that_ended_by_itself_is_counted(msb):
    msb.create("a", "-m", "64M", "--label", "k=v")
    msb.sh("a", f"head -c 1048576 /dev/urandom > /x; sync; /.msb/bin/bash -c '{SPIN}'; poweroff")
    wait_for(lambda: json.loads(msb.ok("inspect", "a", "--format", "json"))["status"] == "Stopped", timeout=20)
    msb.ok("rm", "-q", "a")
    used = records(msb, "--verb", "remove")[0]["usage"]
    assert used["write_bytes"] >= 1 << 20 and used["cpu_ms"] > 0 and used["from"] == "sandbox", used


def test_what_a_policy_says_about_the_log(msb):
    """Level, arguments and a program that gets all records; refusals with field and origin; MSB_AUDIT cannot ask for less."""
    shipped, policy = msb.home / "shipped", msb.home / "policy.yaml"
    policy.write_text("caps: {memory: 128M}\n"
                      f"audit: {{level: all, argv: hash, command: [/bin/sh, -c, 'cat >> {shipped}']}}\n")
    off = {**msb.env, "MSB_AUDIT": "off"}
    msb("create", "-q", "-n", "a", "-m", "1G", check=3, env=off)
    refused = records(msb, "--verb", "refused")[0]
    assert {k: refused[k] for k in ("verb", "field", "asked", "allowed", "origin", "sandbox")} == {
        "verb": "create", "field": "caps.memory", "asked": "1.0 GiB", "allowed": "128 MiB", "origin": f"{policy}:1",
        "sandbox": "a"}
    msb.ok("run", "-q", "-m", "64M", "--", "echo", "pr1vate", env=off)
    ran = records(msb, "--verb", "exec")[0]
    assert "argv" not in ran and ran["argv_hash"] == "sha256:" + hashlib.sha256(b"echo\0pr1vate\0").hexdigest()
    log = (msb.home / "audit.log").read_text()
    assert "pr1vate" not in log
    wait_for(lambda: sorted(shipped.read_text().splitlines()) == sorted(log.splitlines()), timeout=20)
    policy.write_text("audit: {level: everything}\n")
    assert "everything" in msb("create", "-q", "-n", "b", "-m", "64M", check=3).stderr.decode()
    policy.write_text("rules: [{audit: {level: all}}]\n")  # it is for all sandboxes
    assert "unknown key 'audit'" in msb("create", "-q", "-n", "b", "-m", "64M", check=3).stderr.decode()
    policy.unlink()
