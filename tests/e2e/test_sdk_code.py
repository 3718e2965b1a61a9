"""run_code, set_timeout and pty: what users of notebooks' sandboxes expect."""
import asyncio
import json
import sys

import pytest

from conftest import wait_for
from sdkkit import BASE, client_of, go, sdk, sync_client_of

from msb import code as msb_code  # noqa: E402


@pytest.fixture(scope="module")
def python(python_home):
    python_home.create("py", "--no-net", "python:3.11-slim")
    return python_home


def test_state_results_and_errors(python):
    with sdk.Sandbox.connect("py", client=sync_client_of(python)) as sandbox:
        run = sandbox.run_code
        assert run("x = 20").text is None
        r = run("import sys\nprint('out', x)\nprint('err', file=sys.stderr)\nx + 22")
        assert (r.text, r.stdout, r.stderr, r.error, r.execution_count) == ("42", "out 20\n", "err\n", None, 2)
        r = run("print('before')\ndef f():\n    return 1 / 0\nf()")
        assert r.stdout == "before\n" and not r.results
        assert (r.error.name, r.error.value) == ("ZeroDivisionError", "division by zero")
        assert r.error.traceback.splitlines()[1:3] == ['  File "<code 3>", line 4, in <module>', "    f()"]
        assert "return 1 / 0" in r.error.traceback and "string" not in r.error.traceback
        assert run("if").error.name == "SyntaxError" and run("import sys; sys.exit(3)").error.name == "SystemExit"
        assert run("x").text == "20" and run("_").text == "20"
        r = run("class T:\n    def _repr_html_(self): return '<b>'\n    def _repr_png_(self): return b'png'\nT()")
        assert (r.results[0].html, r.results[0].png, r.results[0].svg) == ("<b>", "cG5n", None)
        assert run("{'a': [1, None]}").results[0].json == {"a": [1, None]} and run("{1, 2}").results[0].json is None
        assert run("import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "'awaited'"
        assert run("__name__, sys.modules['__main__'].x").text == "('__main__', 20)"
        assert run("import os; os.environ['K']", envs={"K": "v"}).text == "'v'"
        assert run("input()").error.name == "EOFError"
        # What programs write comes too, in order, and nothing of it is lost or mistaken for our own messages.
        r = run("import subprocess\nprint('{\"kind\": \"end\"}', flush=True)\nsubprocess.run(['sh', '-c', 'echo sub; echo e >&2'])")
        assert r.stdout == '{"kind": "end"}\nsub\n' and r.stderr == "e\n" and r.text.startswith("CompletedProcess")
        assert run("os.write(1, b'\\xff\\xe2\\x82'); os.write(1, b'\\xac'); os.close(2); None").stdout == "\ufffd\u20ac"
        seen = []
        r = run("for i in range(3): print(i, flush=True)\n7", on_stdout=seen.append, on_result=lambda r: seen.append(r.text))
        assert "".join(seen) == "0\n1\n2\n7"
        with sandbox.create_code_context(cwd="/tmp") as other:
            assert run("x", context=other).error.name == "NameError" and other.run("import os; os.getcwd()").text == "'/tmp'"
        with pytest.raises(sdk.UsageError, match="Python"):
            run("1", language="js")


def test_output_is_bounded(python):
    client = sync_client_of(python, max_output=100_000)
    with client.get("py").code_context() as context:
        r = context.run("print('x' * 3_000_000, end='')\n5")
        assert len(r.stdout) == 100_000 and r.truncated and r.text == "5"
        with pytest.raises(sdk.ProtocolError, match="too long"):
            context.run("'y' * 3_000_000")
        assert context.closed


def test_interrupt_and_loss(python):
    async def work():
        sandbox = sdk.AsyncSandbox(await client_of(python).get("py"))
        run = sandbox.run_code
        await run("kept = 1")
        with pytest.raises(sdk.CommandTimeout, match="interrupted"):
            await run("import time\nwhile True: time.sleep(0.01)", timeout=1)
        assert (await run("kept")).text == "1"
        # Two at once take turns.
        one, two = await asyncio.gather(run("kept += 1; kept"), run("kept += 1; kept"))
        assert sorted([one.text, two.text]) == ["2", "3"]
        with pytest.raises(sdk.SandboxEnded, match="exit code 9"):
            await run("import os; os._exit(9)")
        assert (await run("kept")).error.name == "NameError"
        # Canceled: what it was doing is unknown.
        task = asyncio.ensure_future(run("while True: pass", timeout=None))
        await asyncio.sleep(0)
        while sandbox._context is None or not sandbox._context._turn.locked():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await run("2")).text == "2"
        await sandbox._context.close()

    go(work())


class Mine(Exception):
    pass


def test_callback_that_fails_interrupts_the_code(python, monkeypatch):
    """Whatever the failure, what comes next gets its own results."""
    def fail(_):
        raise Mine

    with sdk.Sandbox.connect("py", client=sync_client_of(python)) as sandbox:
        run = sandbox.run_code
        run("kept = 1")
        with monkeypatch.context() as patient:  # the machine may be busy
            patient.setattr(msb_code, "INTERRUPT_SECONDS", 60.0)
            for code, which in (("import time\nwhile True: print('a'); time.sleep(0.01)", "on_stdout"),
                                ("'a'", "on_result"), ("1 / 0", "on_error")):
                with pytest.raises(Mine):
                    run(code, timeout=None, **{which: fail})
                assert (run("kept").text, run("print('c')").stdout) == ("1", "c\n")
            with pytest.raises(SystemExit):
                run("print('a')\nwhile True: pass", timeout=None, on_stdout=lambda _: sys.exit(3))
            assert run("kept").text == "1"
        with pytest.raises(Mine):  # this cannot be interrupted
            run("import signal; signal.signal(2, signal.SIG_IGN)\nprint('a')\nwhile True: pass", on_stdout=fail)
        assert run("kept").error.name == "NameError"


def test_callback_that_fails_after_the_time_limit(python, monkeypatch):
    """Its failure is what is raised, not the time limit."""
    async def fail(_):
        await asyncio.sleep(4)
        raise Mine

    monkeypatch.setattr(msb_code, "INTERRUPT_SECONDS", 60.0)

    async def work():
        async with await (await client_of(python).get("py")).code_context() as context:
            with pytest.raises(Mine):
                await context.run("print('a', flush=True)\nwhile True: pass", timeout=3, on_stdout=fail)
            assert (await context.run("5")).text == "5"

    go(work())


def test_callback_that_fails_and_nobody_to_interrupt():
    """That the interpreter cannot be reached is not what is raised, and nothing is left behind."""
    class Lost:
        def __init__(self):
            self._channel, self.ended = self, asyncio.get_running_loop().create_future()

        async def __aiter__(self):
            yield sdk.OutputChunk("stdout", b'{"kind": "output", "stream": "stdout", "data": "YQ=="}\n')
            await asyncio.shield(self.ended)

        async def write_stdin(self, _):
            pass

        async def kill(self, _):
            raise sdk.SandboxUnavailable("no")

        async def close(self):
            self.ended.set_result(None)

    def fail(_):
        raise Mine

    async def work():
        before = asyncio.all_tasks()
        process = Lost()
        with pytest.raises(Mine):
            await msb_code.CodeContext(process, 100).run("x", on_stdout=fail)
        assert process.ended.done()
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() <= before

    go(work())


def test_what_ends_no_interpreter(python):
    """Exceptions that cannot be shown, variables that cannot be set."""
    with sdk.Sandbox.connect("py", client=sync_client_of(python)) as sandbox:
        run = sandbox.run_code
        run("kept = 1")
        e = run("class E(SyntaxError):\n    def __str__(self): raise ValueError\nraise E").error
        assert (e.name, e.value) == ("E", "<unprintable>")
        for env in ({"": "x"}, {"A=B": "x"}, {"A": "b\0"}, {"A\0": "b"}):
            with pytest.raises(sdk.UsageError):
                run("1", envs=env)
        assert run("1", envs={"A": "\ud800"}).error.name == "UnicodeEncodeError"
        assert run("import os; os.environ['A']", envs={"A": 5}).text == "'5'"
        assert run("kept").text == "1"


def test_an_image_without_python(msb):
    msb.create("plain", BASE)
    with pytest.raises(sdk.CommandNotFound, match="python3"):
        sdk.Sandbox.connect("plain", client=sync_client_of(msb)).run_code("1")
    # Something that is called python3, and lies.
    for script, error in (("echo no", sdk.ProtocolError), ("echo '[]'; cat", sdk.ProtocolError), ("echo bad >&2", sdk.MsbError)):
        msb.sh("plain", f"printf '#!/bin/sh\\n%s\\n' \"{script}\" > /bin/python3; chmod 755 /bin/python3", check=0)
        with pytest.raises(error):
            sdk.Sandbox.connect("plain", client=sync_client_of(msb)).run_code("1")


def test_the_end_of_a_block_removes_the_sandbox(tmp_path):
    """Also if its interpreter cannot be closed, or that is canceled."""
    ended = []

    class Handle(sdk.SandboxHandle):
        async def __aexit__(self, *exc):
            ended.append("removed")

    class Context:
        def __init__(self, work):
            self.close = work

    async def leave(work):
        async with sdk.AsyncSandbox(Handle(sdk.SandboxClient(home=str(tmp_path), msb="/bin/false"), "x")) as sandbox:
            sandbox._context = Context(work)

    async def run():
        closing, go_on = asyncio.Event(), asyncio.Event()

        async def fail():
            raise sdk.MsbError("mine")

        async def slowly():
            closing.set()
            await go_on.wait()
            ended.append("closed")

        with pytest.raises(sdk.MsbError, match="mine"):
            await leave(fail)
        task = asyncio.ensure_future(leave(slowly))
        await closing.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    go(run())
    assert ended == ["removed", "closed", "removed"]


def test_terminals(python):
    async def work():
        sandbox = sdk.AsyncSandbox(await client_of(python).get("py"))
        seen = []
        shell = await sandbox.pty.create(sdk.PtySize(30, 100), seen.append, cwd="/tmp", envs={"PS1": "$ "})

        async def until(text):
            while text not in "".join(seen):
                await asyncio.sleep(0.01)

        await sandbox.pty.send_stdin(shell.pid, "echo $((20 + 22)) $TERM; stty size; pwd\n")
        await until("42 xterm-256color\r\n30 100\r\n/tmp")
        await sandbox.pty.resize(shell.pid, sdk.PtySize(rows=11, cols=22))
        await sandbox.pty.send_stdin(shell.pid, b"stty size\n")
        await until("11 22")
        assert await sandbox.pty.kill(shell.pid) and not await sandbox.pty.kill(shell.pid)
        assert (await shell.wait()).exit_code == 128 + 9
        with pytest.raises(sdk.UsageError, match="no terminal"):
            await sandbox.pty.send_stdin(shell.pid, "x")

    go(work())


def test_set_timeout(msb):
    """It ends when it was last told to, and says why."""
    client = sync_client_of(msb)
    sandbox = sdk.Sandbox.create(BASE, name="brief", timeout=3600, client=client)
    for bad in (0, -1, float("nan"), 1e10):
        with pytest.raises(sdk.UsageError):
            sandbox.set_timeout(bad)
    sandbox.set_timeout(1800)
    assert sandbox.is_running()
    sandbox.set_timeout(0.1)
    wait_for(lambda: sandbox.get_info().status == "Stopped")
    with pytest.raises(sdk.SandboxNotRunning):
        sandbox.set_timeout(10)
    log = msb.ok("logs", "--source", "system", "--json", "brief")
    assert any("maximum duration" in json.loads(line)["d"] for line in log.splitlines())
    sandbox.kill()
