"""The bucket is listed while the guest boots."""

import subprocess
import threading
import time

import pytest

from conftest import wait_for
from fakes3 import BUCKET, FakeS3
from guest import PATIENCE, sh
from test_workspace_s3 import KEYS, with_workspace


class Slow(FakeS3):
    """Lists as far as it is let."""

    def __init__(self):
        super().__init__()
        self.go, self.waiting = threading.Event(), threading.Event()
        self.held = lambda query: False

        def wait(method, key, query):
            if method == "GET" and not key and self.held(query):
                self.waiting.set()
                self.go.wait(10 * PATIENCE)

        self.before = wait

    def hold_all(self):
        self.held = lambda query: True

    def hold_later_pages(self):
        self.held = lambda query: any(x in query for x in ("continuation-token", "start-after", "delimiter"))

    def close(self):
        self.go.set()
        super().close()


@pytest.fixture
def s3(msb):
    yield from with_workspace(msb, Slow())


def fill(s3, n=350):
    for i in range(n):
        s3.put(f"pre/d{i % 7}/f{i}", b"%d\n" % i)


def sync(msb):
    """What has just come is read once more, before it is known."""
    time.sleep(0.1)
    msb.ok("workspace", "sync", "w")
    time.sleep(0.1)
    msb.ok("workspace", "sync", "w")


def system_log(msb, name):
    return msb.home / "sandboxes" / name / "run" / "logs" / "system.log"


def has_booted(msb, name):
    log = system_log(msb, name)
    return log.exists() and "agent started" in log.read_text()


def test_the_time_that_a_sync_takes_is_not_the_sandboxs(msb, s3):
    """It is neither idle meanwhile, nor does it live for that time."""
    fill(s3, 20)
    s3.hold_all()
    p = msb.popen("create", "-q", "-n", "box", "--workspace", "w", "--idle-timeout", "1s", "--max-duration", "2s")
    wait_for(lambda: has_booted(msb, "box"), timeout=PATIENCE)
    time.sleep(3)
    assert p.poll() is None and "timeout" not in system_log(msb, "box").read_text()
    s3.go.set()
    assert p.wait(PATIENCE) == 0
    wait_for(lambda: "idle timeout" in system_log(msb, "box").read_text(), timeout=PATIENCE)
    msb.ok("rm", "-q", "-f", "box")


def test_a_mount_in_the_workspace(msb, s3):
    """Its place is made in the boot, which would wait for the sync: that comes first."""
    fill(s3, 20)
    s3.hold_all()
    p = msb.popen("create", "-q", "-n", "box", "--workspace", "w", "-v", "cache:/workspace/cache")
    wait_for(s3.waiting.is_set, timeout=PATIENCE)
    assert not (msb.home / "sandboxes" / "box").exists()
    s3.go.set()
    assert p.wait(PATIENCE) == 0
    assert sh(msb, "box", "cd /workspace; touch cache/x; find . -type f | wc -l") == "21\n"
    msb.ok("rm", "-q", "-f", "box")


@pytest.mark.parametrize("synced", [False, True])
def test_the_guest_boots_meanwhile(msb, s3, synced):
    """Those who wait for the sandbox wait for the listing, too; what others added is there."""
    fill(s3, 20)
    if synced:
        msb.ok("workspace", "sync", "w")
        s3.put("pre/d0/f0", b"changed\n")
        s3.put("pre/new", b"new\n")
    s3.hold_all()
    p = msb.popen("create", "-q", "-n", "box", "--workspace", "w", stderr=subprocess.PIPE)
    wait_for(lambda: has_booted(msb, "box"), timeout=PATIENCE)
    assert s3.waiting.is_set() and p.poll() is None
    s3.go.set()
    assert p.communicate(timeout=PATIENCE)[1] == b"" and p.returncode == 0
    want = "changed\n21\n" if synced else "0\n20\n"
    assert sh(msb, "box", "cd /workspace; cat d0/f0; find . -type f | wc -l") == want
    msb.ok("rm", "-q", "-f", "box")


@pytest.mark.parametrize("synced", [False, True])
def test_a_long_listing_goes_on(msb, s3, synced):
    """It is never seen partially: only the first access waits for the end."""
    fill(s3)
    if synced:
        sync(msb)
        s3.put("pre/d3/f3", b"changed\n")
    s3.hold_later_pages()
    msb.create("box", "--workspace", "w")
    wait_for(s3.waiting.is_set, timeout=PATIENCE)
    assert sh(msb, "box", "stat -c %F /workspace; echo here >/tmp/f; cat /tmp/f") == "directory\nhere\n"
    script = "cd /workspace; echo mine >new; cat d3/f3; find . -type f | wc -l"
    p = msb.popen("exec", "-q", "box", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert sh(msb, "box", "cat /tmp/f") == "here\n" and p.poll() is None
    assert s3.keys("pre/new") == []
    s3.go.set()
    assert p.communicate(timeout=PATIENCE)[0] == (b"changed\n" if synced else b"3\n") + b"351\n"
    msb.ok("stop", "-q", "box")
    assert s3.objects["pre/new"].data == b"mine\n" and len(s3.keys("pre/")) == 351
    msb.ok("rm", "-q", "box")


def test_a_long_listing_after_a_change_here(msb, s3):
    """It may end in a conflict, of which the caller is to learn."""
    fill(s3)
    sync(msb)
    s3.put("pre/d3/f3", b"theirs\n")
    (msb.home / "workspaces" / "w" / "data" / "d3" / "f3").write_text("ours\n")
    s3.hold_later_pages()
    p = msb.popen("create", "-n", "box", "--workspace", "w", stderr=subprocess.PIPE)
    wait_for(lambda: has_booted(msb, "box") and s3.waiting.is_set(), timeout=PATIENCE)
    with pytest.raises(subprocess.TimeoutExpired):
        p.wait(1)
    s3.go.set()
    assert b"conflict: 'd3/f3'" in p.communicate(timeout=PATIENCE)[1] and p.returncode == 0
    assert sh(msb, "box", "cd /workspace/d3; cat f3 f3.conflict-*") == "theirs\nours\n"
    msb.ok("rm", "-q", "-f", "box")


def test_a_long_listing_that_fails_after_a_sync(msb, s3):
    """There is what was here before."""
    fill(s3)
    sync(msb)
    s3.faults.append(lambda method, key, nth: 403 if method == "GET" and not key and s3.waiting.is_set() else None)
    s3.hold_later_pages()
    msb.create("box", "--workspace", "w")
    s3.go.set()
    assert sh(msb, "box", "find /workspace -type f | wc -l") == "350\n"
    assert "the workspace is as of the last sync" in msb.ok("logs", "--source", "system", "box")
    s3.faults.clear()
    msb.ok("rm", "-q", "-f", "box")


def test_a_long_listing_that_fails(msb, s3):
    fill(s3)
    s3.faults.append(lambda method, key, nth: 403 if method == "GET" and not key and nth > 1 else None)
    s3.hold_later_pages()
    msb.create("box", "--workspace", "w")
    s3.go.set()
    p = msb.sh("box", "ls /workspace", check=1)
    assert b"Input/output error" in p.stderr and p.stdout == b""
    assert "cannot sync workspace 'w'" in msb.ok("logs", "--source", "system", "box")
    assert b"cannot sync workspace 'w'" in msb("stop", "box", check=0).stderr
    s3.faults.clear()
    msb.ok("start", "-q", "box")
    assert sh(msb, "box", "find /workspace -type f | wc -l") == "350\n"
    msb.ok("rm", "-q", "-f", "box")


@pytest.mark.parametrize("verb", ["create", "run"])
def test_a_listing_that_fails_at_once(msb, s3, verb):
    """What the server says is all that is left of it."""
    fill(s3, 3)
    s3.faults.append(lambda method, key, nth: 403 if method == "GET" and not key else None)
    p = msb(verb, "-q", "--workspace", "w", *(["--", "true"] if verb == "run" else ["-n", "box"]))
    error, hint = p.stderr.decode().splitlines()
    assert p.returncode == 1 and error.startswith("error: cannot sync workspace 'w'") and "credentials" in hint, p
    assert msb.ok("ls", "-a", "-q") == ""
    wait_for(lambda: not msb.processes(), timeout=PATIENCE)
    wait_for(lambda: not list((msb.home / "sandboxes").iterdir()), timeout=PATIENCE)


def test_a_sandbox_that_goes_meanwhile(msb, s3):
    """Nobody lists for a sandbox that is gone, and the workspace can be used at once."""
    fill(s3)
    s3.hold_later_pages()
    msb.create("box", "--workspace", "w")
    wait_for(s3.waiting.is_set, timeout=PATIENCE)
    box = msb.popen("rm", "-q", "-f", "box")
    s3.held = lambda query: False
    assert box.wait(PATIENCE) == 0
    wait_for(lambda: not msb.processes(), timeout=PATIENCE)
    assert len(msb.ok("workspace", "ls", "-R", "w:").splitlines()) >= 350


def test_a_client_that_goes_meanwhile(msb, s3):
    fill(s3, 20)
    s3.hold_all()
    p = msb.popen("create", "-q", "-n", "box", "--workspace", "w")
    wait_for(s3.waiting.is_set, timeout=PATIENCE)
    p.terminate()
    p.wait(PATIENCE)
    wait_for(lambda: not msb.processes(), timeout=PATIENCE)


def test_a_sandbox_is_not_replaced_for_nothing(msb, s3):
    fill(s3, 3)
    msb.create("box")
    s3.faults.append(lambda method, key, nth: 403 if method == "GET" and not key else None)
    p = msb("create", "-q", "-n", "box", "--replace", "--workspace", "w")
    assert p.returncode == 1 and b"cannot sync workspace 'w'" in p.stderr, p
    assert msb.status("box") == "Running"
    msb.ok("rm", "-q", "-f", "box")


def test_keys_are_found_as_the_caller_finds_them(msb, s3, tmp_path):
    """By his environment, and from where he is."""
    fill(s3, 3)
    lines = [f"aws_{k.removeprefix('AWS_').lower()} = {v}" for k, v in KEYS.items() if "KEY" in k]
    (tmp_path / "keys").write_text("\n".join(["[default]", *lines]))
    env = {k: v for k, v in msb.env.items() if k not in KEYS or k == "AWS_REGION"} | {"AWS_SHARED_CREDENTIALS_FILE": "keys"}
    msb.ok("create", "-q", "-n", "box", "--workspace", "w", env=env, cwd=tmp_path)
    msb.ok("rm", "-q", "-f", "box")
    command = 'printf %s:%s "$MY_ID" "$MY_SECRET"'
    msb.ok("secret", "set", "K", "--command", command)
    msb.ok("workspace", "create", "x", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url, "--credentials", "K",
           env=(env := env | {"MY_ID": KEYS["AWS_ACCESS_KEY_ID"], "MY_SECRET": KEYS["AWS_SECRET_ACCESS_KEY"]}))
    msb.ok("create", "-q", "-n", "box", "--workspace", "x", env=env)
    msb.ok("rm", "-q", "-f", "box")
