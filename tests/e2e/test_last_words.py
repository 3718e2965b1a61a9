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


def test_commands_that_meet_a_stop_are_run(msb):
    """A sandbox that is started for one command goes with it; one that comes just then, with its
    input, is run all the same, on the next start."""
    msb.create("box")
    msb.ok("stop", "box")
    failed = []

    def client(k):
        for i in range(12):
            word = f"{k}-{i}".encode()
            p = msb("exec", "-q", "box", "--", "cat", input=word)
            if p.returncode != 0 or p.stdout != word:
                failed.append((k, i, p))
            time.sleep(0.013 * k)

    clients = [threading.Thread(target=client, args=(k,)) for k in range(3)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    assert failed == []


def test_commands_that_meet_a_stop_on_request_are_run(msb):
    msb.create("box")
    over = threading.Event()

    def stopper():
        while not over.is_set():
            msb("stop", "-q", "box")
            time.sleep(0.02)

    t = threading.Thread(target=stopper)
    t.start()
    try:
        for i in range(25):
            # A command that runs may be killed by the stop; one that did not start must not fail.
            p = msb("exec", "-q", "box", "--", "echo", "ran")
            assert p.returncode == 0 or b"shutting down" not in p.stderr and b"failed to exec" not in p.stderr, p
    finally:
        over.set()
        t.join()
