"""Secrets by name: in the environment of commands, and nowhere else."""
import json
import os
import socket
import subprocess

import pytest
from conftest import wait_for
from guest import sh
from terminal import Terminal

VALUE = "s3cr3t-value-that-nobody-writes-down"


def store(msb, name="TOKEN", value=VALUE):
    return msb.ok("secret", "set", "-q", name, input=value.encode() + b"\n")


def test_commands_have_it(msb):
    store(msb)
    msb.create("b", "--secret-env", "TOKEN")
    assert sh(msb, "b", "echo $TOKEN") == VALUE + "\n"
    out = msb.ok("run", "-q", "--secret-env", "TOKEN", "--", "sh", "-c", "echo $TOKEN")
    assert out == VALUE + "\n"
    msb.create("other")
    assert sh(msb, "other", "echo [$TOKEN]") == "[]\n"
    out = msb.ok("exec", "--secret-env", "TOKEN", "other", "--", "sh", "-c", "echo $TOKEN")
    assert out == VALUE + "\n"
    assert msb.ok("exec", "-e", "TOKEN=mine", "b", "--", "sh", "-c", "echo $TOKEN") == "mine\n"
    store(msb, value="changed")  # looked up for each command
    assert sh(msb, "b", "echo $TOKEN") == "changed\n"
    msb.ok("stop", "-q", "b")
    assert msb.ok("exec", "b", "--", "sh", "-c", "echo $TOKEN") == "changed\n"


def test_by_reference(msb):
    msb.ok("secret", "set", "TOKEN", "--from-env", "MY_TOKEN", stdin=subprocess.DEVNULL)
    msb.create("b", "--secret-env", "TOKEN")
    env = dict(msb.env, MY_TOKEN=VALUE)
    p = msb("exec", "b", "--", "sh", "-c", "echo $TOKEN", env=env)
    assert p.stdout.decode() == VALUE + "\n"
    p = msb("exec", "b", "--", "true")
    assert p.returncode == 1
    assert b"secret 'TOKEN': environment variable 'MY_TOKEN' is not set" in p.stderr
    assert VALUE not in (msb.home / "secrets" / "TOKEN").read_text()


def data_of(path):
    """What a file holds, hole by hole: disks are sparse."""
    with open(path, "rb") as f:
        end, at = os.fstat(f.fileno()).st_size, 0
        while at < end:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                return  # a hole up to the end
            hole = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            yield os.pread(f.fileno(), hole - at, at)
            at = hole


def files_with(root, needle):
    paths = (os.path.join(d, name) for d, _, names in os.walk(root) for name in names)
    return [os.path.relpath(p, root) for p in paths
            if os.path.isfile(p) and not os.path.islink(p)
            and any(needle in block for block in data_of(p))]  # fmt: skip


def test_the_value_is_nowhere_else(msb):
    store(msb)
    needle = VALUE.encode()
    msb.create("b", "--secret-env", "TOKEN")
    client = msb.popen("exec", "b", "--", "sh", "-c", "test -n \"$TOKEN\" && echo up && cat",
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert client.stdout.readline() == b"up\n"
    for pid in msb.processes():
        for what in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{what}", "rb") as f:
                assert needle not in f.read()
    for args in (["inspect", "b"], ["inspect", "b", "--format", "json"], ["secret", "list"],
                 ["secret", "list", "--format", "json"], ["logs", "b"],
                 ["logs", "--source", "all", "b"], ["ls", "--format", "json"]):  # fmt: skip
        p = msb(*args)
        assert needle not in p.stdout + p.stderr, args
    client.stdin.close()
    assert client.wait() == 0
    p = msb("--trace", "exec", "b", "--", "no-such-program")
    assert p.returncode == 127 and needle not in p.stdout + p.stderr
    msb.ok("stop", "-q", "b")
    assert files_with(msb.home, needle) == ["secrets/TOKEN"]
    config = json.loads(msb.ok("inspect", "b", "--format", "json"))["config"]
    assert config["secret_env"] == ["TOKEN"]


def shown(msb):
    """What the processes of this home show to everybody, and to their user."""
    text = {}
    for pid in msb.processes():
        for what in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{what}", "rb") as f:
                text[pid, what] = f.read()
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="looking into a monitor's /proc takes root")
def test_variables_are_not_shown_in_the_process_list(msb, tmp_path):
    """-e KEY=VALUE: neither by what stays (monitor, share server, connector) nor by a client."""
    needle = b"visible-to-everybody"
    (tmp_path / "d").mkdir()
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "s"))
    sock.listen()
    env = {**msb.env, "MSB_MY_TOKEN": needle.decode(), "MY_TOKEN": needle.decode()}
    msb.ok("create", "-q", "-n", "b", "-e", f"A={needle.decode()}", f"--env=B={needle.decode()}",
           "-v", f"{tmp_path / 'd'}:/d", "--vsock", f"{tmp_path / 's'}:2000", env=env)
    monitor = [t for (_, what), t in shown(msb).items() if what == "cmdline" and b"monitor\0b" in t]
    assert len(monitor) >= 1, shown(msb)
    clients = [msb.popen("exec", "-q", *e, "b", "--", "sh", "-c", "echo up $C; cat",
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for e in (["-e", f"C={needle.decode()}"], [f"-eC={needle.decode()}"],
                         [f"--env=C={needle.decode()}"])]  # fmt: skip
    clients.append(msb.popen("run", "-q", "-e", f"C={needle.decode()}", "--", "sh", "-c",
                             "echo up $C; cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    for c in clients:
        assert c.stdout.readline() == b"up " + needle + b"\n"
    found = {k: t for k, t in shown(msb).items() if needle in t}
    # The environment of a client is its user's own, and no test gave it the value.
    assert found == {}
    assert any(b"C=***" in t for t in shown(msb).values())  # its name is no secret
    for c in clients:
        c.stdin.close()
        assert c.wait() == 0
    assert needle.decode() in msb.sh("b", "echo $A $B").stdout.decode()
    sock.close()


def test_listed_and_forgotten(msb):
    assert json.loads(msb.ok("secret", "list", "--format", "json")) == []
    store(msb, "B")
    msb.ok("secret", "set", "A", "--from-env", "X")
    listed = json.loads(msb.ok("secret", "ls", "--format", "json"))
    assert [(s["name"], s["source"], s["variable"]) for s in listed] == [
        ("A", "env", "X"), ("B", "store", None)]  # fmt: skip
    assert "env X" in msb.ok("secret", "list")
    assert msb.ok("secret", "list", "-q") == "A\nB\n"
    msb.ok("secret", "rm", "A", "B")
    p = msb("secret", "rm", "A")
    assert p.returncode == 1 and b"there is no secret 'A'" in p.stderr
    assert list((msb.home / "secrets").iterdir()) == []


def test_asked_for_on_a_terminal(msb):
    t = Terminal([msb.exe, "secret", "set", "TOKEN"], msb.env)
    t.read_until(b"Value of TOKEN: ")
    t.type(VALUE.encode() + b"\n")
    assert VALUE.encode() not in t.read_until(b"Stored")
    assert t.p.wait(timeout=20) == 0
    out = msb.ok("run", "-q", "--secret-env", "TOKEN", "--", "sh", "-c", "echo $TOKEN")
    assert out == VALUE + "\n"


def test_private(msb):
    store(msb)
    file = msb.home / "secrets" / "TOKEN"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.chmod(0o644)
    p = msb("create", "--name", "b", "--secret-env", "TOKEN")
    assert p.returncode == 1 and b"secret 'TOKEN' can be read by others" in p.stderr
    assert msb.leftovers() == []


def test_gone_when_it_is_needed(msb):
    p = msb("secret", "rm", "NONE")
    assert p.returncode == 1 and p.stderr == b"error: there is no secret 'NONE'\n"
    store(msb)
    msb.create("b", "--secret-env", "TOKEN")
    assert "\nSecrets\n  TOKEN\n" in msb.ok("inspect", "b")
    msb.ok("stop", "-q", "b")
    msb.ok("secret", "rm", "-q", "TOKEN")
    p = msb("exec", "b", "--", "true")
    assert p.returncode == 1 and b"there is no secret 'TOKEN'" in p.stderr
    assert b"msb secret set TOKEN" in p.stderr
    assert msb.status("b") == "Stopped"  # it was not started in vain
    wait_for(lambda: not msb.processes())


@pytest.mark.parametrize("args,stdin,message", [
    (["secret", "set", "A-B"], b"x", "invalid secret name 'A-B'"),
    (["secret", "set", "1A"], b"x", "invalid secret name '1A'"),
    (["secret", "set", "A", "--from-env", "x y"], b"", "invalid environment variable name 'x y'"),
    (["secret", "set", "A"], b"", "no value on standard input"),
    (["secret", "set", "A"], b"\n", "no value on standard input"),
    (["secret", "set", "A"], b"a\0b", "contains a NUL byte"),
    (["secret", "set", "A"], b"\xff", "the value is not UTF-8 text"),
    (["secret", "set", "A"], b"x" * 40000, "the value on standard input is too long"),
    (["run", "--secret-env", "NONE", "--", "true"], b"", "there is no secret 'NONE'"),
    (["create", "--secret-env", "../x"], b"", "invalid secret name '../x'"),
])  # fmt: skip
def test_bad_secrets(msb, args, stdin, message):
    p = msb(*args, input=stdin)
    assert p.returncode == 1 and message.encode() in p.stderr
    assert ("NONE" in args) == (b"msb secret set NONE" in p.stderr)
    assert msb.leftovers() == []
    assert not (msb.home / "secrets").exists() or list((msb.home / "secrets").iterdir()) == []
