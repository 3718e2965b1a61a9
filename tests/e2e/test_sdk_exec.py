"""The SDK's commands: results, limits, streams, processes, concurrency, cancellation, stopped sandboxes."""
import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from conftest import wait_for
from guest import FOREVER
from sdkkit import BASE, SDK, alive, client_of, go, gone, sdk, sync_client_of


@pytest.fixture
def sb(box):
    m, name = box
    return sdk.SandboxHandle(client_of(m), name)


@pytest.fixture
def sync_sb(box):
    m, name = box
    return sync_client_of(m).get(name)


# --- results ------------------------------------------------------------------------------------


def test_arguments_arrive_as_they_are(sb):
    odd = ["a b", "$HOME", "'\"`;|&", "", "-n", "*", "ünïcode", "line\nbreak"]
    r = go(sb.exec("printf", ["%s|", *odd]))
    assert r == sdk.ExecResult("".join(a + "|" for a in odd))
    assert r.ok and r.output == r.stdout


def test_streams_and_codes(sb):
    r = go(sb.shell("echo out; echo err >&2; exit 42"))
    assert (r.stdout, r.stderr, r.exit_code, r.ok) == ("out\n", "err\n", 42, False)
    assert r.output == "out\nerr\n" and not r.truncated
    r = go(sb.shell("kill -9 $$"))
    assert r.exit_code == 137 and not r.out_of_memory


def test_out_of_memory(msb):
    msb.create("small", "-m", "64M")
    r = go(sdk.SandboxHandle(client_of(msb), "small").exec("tail", ["/dev/zero"]))
    assert r.exit_code == 137 and r.out_of_memory


def test_environment_directory_user(sb):
    r = go(sb.shell("echo $A; pwd; id -u", env={"A": "b=c d"}, cwd="/usr", user="65534"))
    assert r.stdout == "b=c d\n/usr\n65534\n"
    assert go(sb.exec("env", env={"LEAK": "no"})).stdout.count("LEAK") == 1
    os.environ["SDK_TEST_HOST_SECRET"] = "shouldnotleak"
    try:
        assert "SDK_TEST_HOST_SECRET" not in go(sb.exec("env")).stdout
    finally:
        del os.environ["SDK_TEST_HOST_SECRET"]


def test_what_is_not_there(sb):
    r = go(sb.exec("no-such-program"))
    assert r.exit_code == 127 and 'failed to exec "no-such-program"' in r.stderr
    assert go(sb.exec("/etc/passwd")).exit_code == 126
    with pytest.raises(sdk.CommandError, match="failed to exec") as e:
        go(sb.exec("true", cwd="/no/such/directory"))
    assert "/no/such/directory" in e.value.hint
    with pytest.raises(sdk.CommandError):
        go(sb.exec("true", user="nobody-of-that-name"))
    with pytest.raises(sdk.CommandNotFound):
        go(sb.spawn("no-such-program"))


@pytest.mark.parametrize("arguments", [
    {"cmd": ""}, {"cmd": "a\0b"}, {"cmd": "true", "env": {"A=B": "c"}}, {"cmd": "true", "env": {"": "c"}},
    {"cmd": "true", "cwd": "relative"}, {"cmd": "true", "user": ""}, {"cmd": "true", "timeout": 0},
    {"cmd": "true", "timeout": -1.5}, {"cmd": "true", "timeout": float("nan")},
    {"cmd": "true", "args": ["x" * 5000000]}, {"cmd": "echo", "args": "letters"}])
def test_bad_arguments(sb, arguments):
    with pytest.raises(sdk.UsageError) as e:
        go(sb.exec(**arguments))
    assert isinstance(e.value, ValueError)


# --- limits -------------------------------------------------------------------------------------


def test_timeout_kills_and_keeps_what_was_said(sb):
    async def run():
        r = await sb.shell(f"echo before; echo too >&2; sleep {FOREVER}1 & sleep {FOREVER}1", timeout=0.3)
        assert r == sdk.ExecResult("before\n", "too\n", 124, True, True)
        assert await gone(sb, FOREVER + "1")
        assert (await sb.exec("true", timeout=30.5)).ok
        assert (await sb.exec("true", timeout=float("inf"))).ok

    go(run())


def test_output_is_capped(sb):
    r = go(sb.shell("yes | head -c 300000; echo end >&2", max_output=1000))
    assert r.truncated and len(r.stdout) == 1000 and r.stderr == "end\n" and r.exit_code == 0
    r = go(sb.shell("printf aaa", max_output=3))
    assert r == sdk.ExecResult("aaa")
    r = go(sb.shell("printf 'aa\\303\\274'", max_output=3))
    assert r.stdout == "aa" and r.truncated, "half a character is none"
    r = go(sb.shell("printf '\\377x'"))
    assert r.stdout == "\ufffdx"


def test_the_clients_own_limit(box):
    m, name = box
    sb = sdk.SandboxHandle(client_of(m, max_output=10), name)
    assert go(sb.shell("echo 12345678901234")).stdout == "1234567890"


# --- input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, 65536, 65537, 3000000])
def test_input(sb, size):
    r = go(sb.exec("wc", ["-c"], stdin=b"x" * size))
    assert r.stdout.strip() == str(size)


def test_input_that_nobody_reads(sb):
    assert go(sb.exec("true", stdin=b"x" * 3000000)).ok
    assert go(sb.exec("cat")).stdout == "", "without input there is none"


# --- streams ------------------------------------------------------------------------------------


def test_callbacks(sb):
    async def run():
        out, err, later = [], [], []

        async def slowly(text):
            await asyncio.sleep(0)
            later.append(text)

        script = "printf 'a\\303'; sleep 0.2; printf '\\274b'; echo c >&2"
        r = await sb.shell(script, on_stdout=out.append, on_stderr=err.append)
        assert "".join(out) == r.stdout == "aüb" and len(out) > 1, "no character is cut in two"
        assert "".join(err) == r.stderr == "c\n"
        r = await sb.shell("yes | head -c 3000000", on_stdout=slowly, max_output=10)
        assert sum(map(len, later)) == 3000000 and len(r.stdout) == 10 and r.truncated

    go(run())


def test_callback_that_fails_ends_the_command(sb):
    async def run():
        def broken(text):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await sb.shell(f"echo x; sleep {FOREVER}2", on_stdout=broken)
        assert await gone(sb, FOREVER + "2")

    go(run())


def test_iterating(sb):
    async def run():
        async with await sb.stream("sh", ["-c", "echo 1; echo 2 >&2; read x; echo $x"], stdin=True) as p:
            seen = []
            async for chunk in p:
                seen.append((chunk.stream, chunk.text))
                if len(seen) == 2:
                    await p.write_stdin("three\n")
        assert sorted(seen) == [("stderr", "2\n"), ("stdout", "1\n"), ("stdout", "three\n")]
        assert p.returncode == 0
        # Unread output makes the command wait, instead of making memory grow.
        async with await sb.stream("sh", ["-c", "yes | head -c 30000000; echo done >/tmp/flood"]) as p:
            await asyncio.sleep(0.5)
            assert p._channel.queued < 4 * 1024 * 1024
            assert not (await sb.shell("cat /tmp/flood")).ok
            size = 0
            async for chunk in p:
                size += len(chunk.data)
            assert size == 30000000

    go(run())


def test_waiting_for_what_nobody_reads(sb):
    """Output beyond any buffer, and an iteration that was never begun, or left early."""
    async def run():
        script = "head -c 5000000 /dev/zero | tr '\\0' x; exit 3"
        async with await sb.stream("sh", ["-c", script], max_output=100) as p:
            assert await p.wait() == sdk.ExecResult("x" * 100, exit_code=3, truncated=True)
        async with await sb.stream("sh", ["-c", script]) as p:
            async for chunk in p:
                break
            r = await p.wait()
            assert r.exit_code == 3 and len(chunk.data) + len(r.stdout) == 5000000
        async with await sb.stream("sh", ["-c", script]) as p:
            async def read():
                return sum([len(chunk.data) async for chunk in p])

            size, r = await asyncio.gather(read(), p.wait())
            assert (size, r.stdout, r.exit_code) == (5000000, "", 3), "who iterates gets all of it"

    go(run())


# --- processes ----------------------------------------------------------------------------------


def test_background_process(sb):
    async def run():
        p = await sb.spawn("cat", stdin=True)
        assert p.pid > 1 and p.returncode is None
        with pytest.raises(sdk.CommandTimeout):
            await p.wait(timeout=0.05)
        await p.write_stdin("hello ")
        await p.write_stdin(b"there")
        await p.close_stdin()
        assert await p.wait() == sdk.ExecResult("hello there")
        p = await sb.spawn("sleep", [FOREVER])
        await p.terminate()
        assert (await p.wait()).exit_code == 128 + signal.SIGTERM == p.returncode
        p = await sb.spawn("sleep", [FOREVER])
        await p.kill()
        assert (await p.wait()).exit_code == 137
        async with await sb.spawn("sleep", [FOREVER + "3"]) as p:
            with pytest.raises(sdk.UsageError):
                await p.write_stdin("it would be lost")
            assert await alive(sb, FOREVER + "3") == 1
        assert await gone(sb, FOREVER + "3")
        p = await sb.spawn("sh", ["-c", "echo kept; exec sleep 1"], timeout=0.2)
        assert await p.wait() == sdk.ExecResult("kept\n", "", 124, True, True)

    go(run())


def test_detached_process_lives_on(sb):
    """And the audit log does not say that it has ended."""
    def records(event):
        text = open(os.path.join(sb._cli.home, "audit.log")).read()
        return [r for r in map(json.loads, text.splitlines()) if r["event"] == event]

    async def run():
        p = await sb.spawn("sleep", [FOREVER + "4"])
        await p.detach()
        (begun,) = (r["exec"] for r in records("exec") if r["argv"] == ["sleep", FOREVER + "4"])
        assert begun not in [r["exec"] for r in records("exit")]
        assert await alive(sb, FOREVER + "4") == 1
        await sb.shell(f"pkill -f {FOREVER}4")

    go(run())


def test_terminal(sb):
    async def run():
        script = "test -t 0 && test -t 1 && stty size; read x; stty size; echo got $x"
        async with await sb.spawn("sh", ["-c", script], tty=True, size=(30, 100), stream=True) as p:
            text = ""
            async for chunk in p:
                assert chunk.stream == "stdout"
                text += chunk.text
                if "30 100" in text and "got" not in text and "40" not in text:
                    await p.resize(40, 120)
                    await p.write_stdin("it\n")
        assert "40 120" in text and "got it" in text
        assert (await sb.exec("tty", tty=True)).stdout.startswith("/dev/pts/")
        async with await sb.spawn("true") as p:
            with pytest.raises(sdk.UsageError):
                await p.resize(1, 1)

    go(run())


# --- many, and none -----------------------------------------------------------------------------


def test_200_at_once(sb):
    async def run():
        for _ in range(2):
            found = await asyncio.gather(*(sb.exec("echo", [str(i)]) for i in range(200)))
            assert [r.stdout for r in found] == [f"{i}\n" for i in range(200)]

    go(run())


def test_cancelled_task_kills_its_command(sb):
    async def run():
        for make in (lambda: sb.exec("sleep", [FOREVER + "5"]),
                     lambda: sb.shell(f"echo; sleep {FOREVER}5", on_stdout=lambda text: None)):
            task = asyncio.ensure_future(make())
            while not await alive(sb, FOREVER + "5"):
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await gone(sb, FOREVER + "5")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sb.exec("sleep", [FOREVER + "6"]), 0.3)
        assert await gone(sb, FOREVER + "6")
        # Cancelled before it began, at any moment of the way there.
        for steps in range(12):
            task = asyncio.ensure_future(sb.exec("sleep", [FOREVER + "7"]))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await gone(sb, FOREVER + "7")

    go(run())


def test_a_cancellation_that_comes_with_the_result():
    """It is not forgotten, as asyncio.wait_for does up to Python 3.11; and the result does not leak."""
    from msb._waiting import bounded
    lost = []

    async def run():
        ready = asyncio.get_running_loop().create_future()

        async def work():
            return await ready

        task = asyncio.ensure_future(bounded(work(), 60, lost.append))
        await asyncio.sleep(0.01)
        ready.set_result("made")
        await asyncio.sleep(0)  # the work is done, but its result was not fetched
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await bounded(asyncio.sleep(60), 0.01)
        assert await bounded(asyncio.sleep(0, "x"), 60) == "x"

    go(run())
    assert lost == ["made"]


def test_a_cancellation_that_comes_with_the_end_of_a_command():
    from msb._command import CommandChannel, Ended
    from msb.process import Process

    async def run():
        channel = CommandChannel(0, False)
        task = asyncio.ensure_future(Process(channel, None, 1, False, False).wait(60))
        await asyncio.sleep(0)  # it waits
        channel.ended.set_result(Ended(0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    go(run())


# --- a sandbox that does not run ----------------------------------------------------------------


def test_stopped_sandbox_is_started_for_its_commands(msb):
    async def run():
        client = client_of(msb)
        sb = await client.create(sdk.SandboxSpec(name="box", image=BASE))
        await sb.shell("echo kept > /kept")
        await sb.stop()
        assert (await sb.info()).status == "Stopped"
        r = await asyncio.gather(sb.shell("cat /kept; sleep 1"), sb.exec("cat", ["/kept"]))
        assert [x.stdout for x in r] == ["kept\n", "kept\n"]
        while (await sb.info()).status == "Draining":
            await asyncio.sleep(0.02)
        assert (await sb.info()).status == "Stopped", "and stopped again, as with msb exec"
        assert "kept" in await sb.logs()
        await sb.kill()
        assert (await sb.exec("true")).ok
        await sb.start()
        assert (await sb.info()).running
        await sb.kill()

    go(run())


def test_sandbox_that_goes_away(msb):
    async def run():
        client = client_of(msb)
        sb = await client.create(sdk.SandboxSpec(name="box", image=BASE))
        task = asyncio.ensure_future(sb.exec("sleep", [FOREVER]))
        await asyncio.sleep(0.3)
        await sb.kill()
        with pytest.raises(sdk.SandboxEnded):
            await task
        await client.remove("box")
        with pytest.raises(sdk.SandboxNotFound):
            await sb.exec("true")
        for name in ("../box", "", "a/b", "x" * 300):
            with pytest.raises(sdk.SandboxNotFound):
                await sdk.SandboxHandle(client, name).exec("true")

    go(run())


def test_long_home(tmp_path, shared_cache):
    """The path of the socket is longer than a socket's address may be."""
    from conftest import Msb, make_home, tear_down
    deep = tmp_path / ("d" * 90) / ("e" * 60)
    deep.mkdir(parents=True)
    m = Msb(make_home(deep, shared_cache))

    async def run():
        async with await client_of(m).create(sdk.SandboxSpec(name="n" * 100, image=BASE)) as sb:
            assert (await sb.exec("echo", ["hi"])).stdout == "hi\n"

    go(run())
    tear_down(m)


# --- hostile ------------------------------------------------------------------------------------


class Liar:
    """Answers in the place of a monitor."""

    def __init__(self, home, reply):
        import socket
        run = home / "sandboxes" / "liar" / "run"
        run.mkdir(parents=True)
        self.sock = socket.socket(socket.AF_UNIX)
        cwd = os.getcwd()
        os.chdir(run)
        self.sock.bind("agent.sock")
        os.chdir(cwd)
        self.sock.listen(8)
        self.reply = reply
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                c, _ = self.sock.accept()
            except OSError:
                return
            c.recv(65536)
            c.sendall(self.reply)
            c.close()


class Silent(Liar):
    """Accepts connections, and says nothing."""

    def __init__(self, home):
        self.open = []
        super().__init__(home, b"")

    def serve(self):
        while True:
            try:
                self.open.append(self.sock.accept())
            except OSError:
                return


def test_a_monitor_that_does_not_answer(tmp_path, monkeypatch):
    from msb import _channel, _exec
    silent = Silent(tmp_path)
    sb = sdk.SandboxHandle(sdk.SandboxClient(home=str(tmp_path), msb="/bin/false"), "liar")
    monkeypatch.setattr(_channel, "_CONNECT_SECONDS", 0.05)
    with pytest.raises(sdk.CommandTimeout, match="'liar' does not answer"):
        go(sb.set_timeout(60))
    monkeypatch.setattr(_exec, "START_SECONDS", 0.05, raising=False)
    with pytest.raises(sdk.CommandTimeout, match='did not begin "sleep"'):
        go(asyncio.wait_for(sb.exec("sleep", ["1"], timeout=0.05), 30))
    silent.sock.close()


def frame(kind, payload=b""):
    return len(payload).to_bytes(4, "little") + kind.to_bytes(2, "little") + b"\0\0" + payload


def number(tag, value):
    return tag.to_bytes(2, "little") + b"\4\0\0\0" + value.to_bytes(4, "little")


STARTED = frame(17, number(7, 5))


@pytest.mark.parametrize("reply, error", [
    (b"", sdk.SandboxEnded), (b"\xff" * 100, sdk.ProtocolError), (frame(21, b"x"), sdk.ProtocolError),
    (frame(25, number(10, 0)), sdk.ProtocolError), (STARTED, sdk.SandboxEnded),
    (STARTED + STARTED, sdk.ProtocolError), (STARTED + frame(25), sdk.ProtocolError),
    (STARTED + frame(25, number(10, 256)), sdk.ProtocolError),
    (STARTED + frame(25, number(9, 65)), sdk.ProtocolError),
    (STARTED + frame(25, b"\x0a\0\xff\xff\xff\x7f"), sdk.ProtocolError),
    (STARTED + frame(25, b"\x0a"), sdk.ProtocolError),
    (STARTED + frame(20, number(8, 1)), sdk.ProtocolError),
    (frame(4, number(3, 77) + b"\2\0\4\0\0\0\x1b[2J"), sdk.CommandError)])
def test_hostile_answers(tmp_path, reply, error):
    liar = Liar(tmp_path, reply)
    client = sdk.SandboxClient(home=str(tmp_path), msb="/bin/false")
    with pytest.raises(error) as e:
        go(sdk.SandboxHandle(client, "liar").exec("true"))
    assert "\x1b" not in str(e.value)
    liar.sock.close()


def test_any_bytes_at_all():
    """Whatever comes, cut anywhere: frames, or a ProtocolError; and never more held than one frame."""
    import random
    from msb import _proto as proto
    rnd = random.Random(20261115)
    good = (STARTED + frame(21, b"x" * 300) + frame(25, number(10, 0)) + frame(4, number(3, 1) + number(2, 7))
            + frame(68, b"\x8c\0\3\0\0\0abc"))
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rnd.randrange(6)):
            at = rnd.randrange(len(data))
            data[at:at + rnd.randrange(3)] = rnd.randbytes(rnd.randrange(4))
            data = data or bytearray(b"x")
        reader, at = proto.FrameReader(), 0
        try:
            while at < len(data):
                step = rnd.randrange(1, 200)
                for kind, payload in reader.feed(bytes(data[at:at + step])):
                    assert len(payload) <= proto.DATA_MAX
                    found = proto.fields(payload)
                    for tag in (2, 3, 7, 10, 140):
                        proto.number(found, tag)
                        assert all(c.isprintable() for c in proto.text(found, tag))
                at += step
                assert len(reader._held) <= 8 + proto.DATA_MAX
        except sdk.ProtocolError:
            pass


def test_unknown_messages_are_ignored(tmp_path):
    reply = frame(999, b"?") + STARTED + frame(1000) + frame(21, b"hi") + frame(25, number(10, 3) + number(500, 1))
    liar = Liar(tmp_path, reply)
    client = sdk.SandboxClient(home=str(tmp_path), msb="/bin/false")
    assert go(sdk.SandboxHandle(client, "liar").exec("true")) == sdk.ExecResult("hi", exit_code=3)
    liar.sock.close()


def test_socket_that_is_a_link_is_not_followed(tmp_path):
    liar = Liar(tmp_path, STARTED + frame(25, number(10, 0)))
    run = tmp_path / "sandboxes" / "liar" / "run"
    (run / "agent.sock").rename(tmp_path / "elsewhere.sock")
    (run / "agent.sock").symlink_to(tmp_path / "elsewhere.sock")
    client = sdk.SandboxClient(home=str(tmp_path), msb="/bin/false")
    with pytest.raises(sdk.MsbError):
        go(sdk.SandboxHandle(client, "liar").exec("true"))
    liar.sock.close()


# --- the twin -----------------------------------------------------------------------------------


def test_the_same_without_await(sync_sb):
    sb = sync_sb
    assert sb.exec("echo", ["a b"]) == sdk.ExecResult("a b\n")
    assert sb.shell("exit 3").exit_code == 3
    assert sb.shell("sleep 9", timeout=0.2).timed_out
    got = []
    assert sb.shell("echo x", on_stdout=got.append).ok and got == ["x\n"]
    with sb.spawn("cat", stdin=True) as p:
        p.write_stdin("hello")
        p.close_stdin()
        assert p.wait().stdout == "hello" and p.returncode == 0
    with sb.stream("sh", ["-c", "echo 1; echo 2"]) as p:
        assert "".join(c.text for c in p) == "1\n2\n"
    with sb.spawn("sleep", [FOREVER]) as p:
        with pytest.raises(sdk.CommandTimeout):
            p.wait(timeout=0.05)
        p.kill()
        assert p.wait().exit_code == 137
    assert sb.info().running and "a b" in sb.logs()

    async def inside_a_loop():
        return sb.exec("echo", ["in"])

    assert go(inside_a_loop()).stdout == "in\n"
    with pytest.raises(RuntimeError, match="must not call"):
        sb.shell("echo x", on_stdout=lambda text: sb.exec("true"))


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_callback_that_ends_the_program(box, end):
    """What it raises is raised where it was called from, and nothing hangs. In a program of its own: it may."""
    m, name = box
    code = f"""
import sys
sys.path.insert(0, {str(SDK)!r})
import msb
def fail(_):
    raise {end.__name__}
sb = msb.sync.SandboxClient().get({name!r})
p = sb.spawn("echo", ["x"], on_stdout=fail)
for call in (lambda: sb.shell("echo x", on_stdout=fail), p.wait):
    try:
        call()
    except {end.__name__}:
        print("caught")
print(sb.exec("echo", ["on"]).stdout)
"""
    p = subprocess.run([sys.executable, "-c", code], env={**m.env, "MSB_PATH": m.exe}, capture_output=True, text=True,
                       timeout=60)
    assert p.stdout == "caught\ncaught\non\n\n", p.stderr


def test_an_iteration_begins_where_output_arrives(sync_sb, monkeypatch):
    """In another thread, output that comes at the same time would be lost or out of order."""
    from msb._command import CommandChannel
    threads, begin = [], CommandChannel.start_streaming
    monkeypatch.setattr(CommandChannel, "start_streaming", lambda self: (threads.append(threading.current_thread().name), begin(self)))
    with sync_sb.spawn("sh", ["-c", "echo 1; read x; echo 2"], stdin=True) as p:
        chunks = iter(p)
        p.close_stdin()
        assert "".join(c.text for c in chunks) == "1\n2\n"
    assert threads == ["msb"]


def test_threads_share_a_client(sync_sb):
    found = [None] * 16

    def work(i):
        found[i] = sync_sb.exec("echo", [str(i)]).stdout

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [f"{i}\n" for i in range(16)]


INTERRUPTED = """
    import sys
    sys.path.insert(0, {sdk!r})
    {how}
"""
SYNC = """import msb
    msb.sync.SandboxClient().run_shell("echo up; sleep 86400", image="msb/base")"""
ASYNC = """import asyncio, msb
    asyncio.run(msb.SandboxClient().run_shell("echo up; sleep 86400", image="msb/base"))"""


@pytest.mark.parametrize("how", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing(msb, how, times):
    code = textwrap.dedent(INTERRUPTED.format(sdk=str(SDK), how=how))
    p = subprocess.Popen([sys.executable, "-c", code], env={**msb.env, "MSB_PATH": msb.exe},
                         stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: any("up" in msb.ok("logs", n) for n in msb.ok("ls", "-q").split()), timeout=30)
    os.killpg(p.pid, signal.SIGINT)  # as a terminal does, to all that are in the foreground
    time.sleep(0.02)
    if times == 2 and p.poll() is None:
        os.killpg(p.pid, signal.SIGINT)  # an impatient user
    _, err = p.communicate(timeout=60)
    assert p.returncode != 0 and b"KeyboardInterrupt" in err
    if times == 2:  # then it may take a moment longer
        wait_for(lambda: msb.leftovers() == [], timeout=30)
    assert msb.leftovers() == []
