"""The SDK's files: contents, directories, attributes, events, and copies to and from a hostile guest."""
import asyncio
import socket

import pytest

from sdkkit import BASE, client_of, file_conformance, go, sdk, sync_client_of


@pytest.fixture
def sb(box):
    m, name = box
    return sdk.SandboxHandle(client_of(m), name)


def test_every_operation(sb):
    """What a cluster has, too."""
    go(file_conformance(sb, "/tmp/files"))


def test_rights(sb):
    async def run():
        with pytest.raises(PermissionError):
            await sb.files.as_user("65534").write("/etc/mine", "y")

    go(run())


def test_many_at_once(sb):
    async def run():
        await asyncio.gather(*(sb.files.write(f"/tmp/many/{i}", str(i)) for i in range(50)))
        found = await asyncio.gather(*(sb.files.read_text(f"/tmp/many/{i}") for i in range(50)))
        assert found == [str(i) for i in range(50)]

    go(run())


def test_watching(sb):
    async def run():
        await sb.files.mkdir("/tmp/w/sub")
        async with await sb.files.watching("/tmp/w", recursive=True) as watch:
            await sb.files.write("/tmp/w/sub/new", "x")
            await sb.files.rename("/tmp/w/sub/new", "/tmp/w/other")
            await sb.files.remove("/tmp/w/other")
            seen = []
            async for event in watch:
                seen.append(event)
                if event.kind == "removed":
                    break
        kinds = [(e.kind, e.path) for e in seen]
        assert kinds[0] == ("created", "sub/new") and kinds[-1] == ("removed", "other")
        moved = {e.kind: e for e in seen if e.kind.startswith("moved")}
        assert moved["moved_from"].cookie == moved["moved_to"].cookie != 0
        assert moved["moved_to"].path == "other"
        with pytest.raises(sdk.FileNotFound):
            await sb.files.watching("/no/such")

        async def first():
            async for event in sb.files.watch("/tmp/w"):
                return event.path

        task = asyncio.ensure_future(first())
        while not task.done():
            await sb.files.write("/tmp/w/again", "x")
            await asyncio.sleep(0.01)
        assert await task == "again"

    go(run())


def test_special_files_are_left_out(sb, tmp_path):
    async def run():
        await sb.shell("mkdir /tmp/odd; mkfifo /tmp/odd/fifo; echo x > /tmp/odd/f; chmod 4755 /tmp/odd/f")
        await sb.files.download("/tmp/odd", tmp_path / "odd")

    go(run())
    assert [p.name for p in (tmp_path / "odd").iterdir()] == ["f"]
    assert (tmp_path / "odd" / "f").stat().st_mode & 0o7777 == 0o755


def test_stopped_sandbox(msb, tmp_path):
    async def run():
        client = client_of(msb)
        async with await client.create(sdk.SandboxSpec(name="f", image=BASE)) as sb:
            await sb.files.write("/kept", "1")
            await sb.stop()
            assert await sb.files.read_text("/kept") == "1"
            assert (await sb.info()).status == "Stopped"
            await sb.files.download("/kept", tmp_path / "kept")

    go(run())
    assert (tmp_path / "kept").read_text() == "1"


def test_what_fails_keeps_no_sandbox_running(tmp_path, monkeypatch):
    """One that was stopped is started for an operation, and may stop again however that ends."""
    from msb import files
    from msb._exec import GoingDown
    from msb.errors import UsageError
    begun, released = [], []

    class Holder:
        async def release(self):
            released.append(self)

    async def attach(cli, name, holder=None):
        ours, theirs = socket.socketpair()
        theirs.close()
        begun.append(holder or Holder())
        return ours, begun[-1]

    class Channel(files.FileChannel):
        async def ok(self, path):
            refused.set()
            raise GoingDown("not now")

    def broken():
        raise ValueError("mine")

    async def run():
        nonlocal refused
        refused = asyncio.Event()
        f = sdk.SandboxHandle(sdk.SandboxClient(home=str(tmp_path), msb="/bin/false"), "x").files
        for use in (f.stat, f.watching):
            begun.clear(), released.clear()
            monkeypatch.setattr(files, "FileChannel", broken)
            with pytest.raises(ValueError, match="mine"):
                await use("/x")
            assert released == begun != []
            monkeypatch.setattr(files, "FileChannel", Channel)  # it waits to try again, and is canceled
            refused.clear(), begun.clear(), released.clear()
            task = asyncio.ensure_future(use("/x"))
            await refused.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert released == begun != []
            begun.clear()
            with pytest.raises(UsageError):
                await getattr(f.as_user("a\0b"), use.__name__)("/x")
            assert begun == [], "it was not even started"

    refused = None
    monkeypatch.setattr(files, "attach", attach)
    monkeypatch.setattr(files, "RETRY_PAUSE", 3600)
    go(run())


def test_the_same_without_await(box, tmp_path):
    m, name = box
    f = sync_client_of(m).get(name).files
    f.write("/tmp/sync/a", "1")
    assert f.read("/tmp/sync/a") == b"1" and f.read_text("/tmp/sync/a") == "1"
    assert [x.name for x in f.list("/tmp/sync")] == ["a"] and f.stat("/tmp/sync/a").size == 1
    f.mkdir("/tmp/sync/d")
    f.chmod("/tmp/sync/a", 0o600)
    f.symlink("a", "/tmp/sync/l")
    f.rename("/tmp/sync/a", "/tmp/sync/b")
    assert f.exists("/tmp/sync/b")
    with f.watch("/tmp/sync") as watch:
        f.as_user("0").write("/tmp/sync/new", "x")
        assert next(iter(watch)).path == "new"
    f.download("/tmp/sync/b", tmp_path / "b")
    f.upload(tmp_path / "b", "/tmp/sync/c")
    assert f.read_text("/tmp/sync/c") == "1"
    f.remove("/tmp/sync", recursive=True)


def test_what_to_write_instead(msb):
    """A string where a sandbox or a spec belongs says how to make one of it."""
    with pytest.raises(sdk.UsageError, match=r"Sandbox\.create\('alpine'\)"):
        sdk.Sandbox("alpine")
    with pytest.raises(sdk.UsageError, match="SandboxSpec"):
        sync_client_of(msb).create("alpine")
    with pytest.raises(sdk.UsageError, match="template"):
        sdk.Sandbox.create("a", template="b", client=sync_client_of(msb))


def test_ports_of_this_host(msb):
    with sdk.Sandbox.create(template=BASE, client=sync_client_of(msb), ports=["0:80"]) as s:
        assert s.get_host(80) == "127.0.0.1:%d" % s.handle.ports()[80][1]
        with pytest.raises(sdk.UsageError, match='"0:81"'):
            s.get_host(81)
        s.kill()


def test_in_the_style_of_others(msb):
    with sdk.Sandbox.create(BASE, client=sync_client_of(msb), envs={"A": "b"}, metadata={"k": "v"}) as s:
        assert s.is_running() and s.handle.info().labels == {"k": "v"}
        assert s.commands.run("echo $A; [[ x == x ]] && echo bash").stdout == "b\nbash\n"
        assert s.commands.run("sleep 9", timeout=0.2).exit_code == 124
        assert s.commands.run(["echo", "$A", "x y"]).stdout == "$A x y\n"
        assert s.get_info().running and s.sandbox_id in sdk.Sandbox.list(client=sync_client_of(msb), metadata={"k": "v"})
        for bad in ([], ["a", 1]):
            with pytest.raises(sdk.UsageError, match="list of strings"):
                s.commands.run(bad)
        got = []
        s.commands.run("echo x", on_stdout=got.append)
        assert got == ["x\n"]
        p = s.commands.run("cat", background=True)
        p.write_stdin("in")
        p.close_stdin()
        assert p.wait().stdout == "in"
        s.files.write("/tmp/a/b", "text")
        s.files.make_dir("/tmp/a/c")
        assert s.files.read("/tmp/a/b") == "text" and s.files.read("/tmp/a/b", format="bytes") == b"text"
        assert [e.name for e in s.files.list("/tmp/a")] == ["b", "c"] and s.files.exists("/tmp/a/b")
        again = sdk.Sandbox.connect(s.sandbox_id, client=sync_client_of(msb))
        assert again.commands.run("cat /tmp/a/b").stdout == "text"
        again.kill()
    assert msb.leftovers() == []

    async def run():
        async with await sdk.AsyncSandbox.create(BASE, client=client_of(msb), timeout=600) as s:
            assert (await s.commands.run("echo hi")).stdout == "hi\n" and await s.is_running()
            await s.files.write("/x", "y")
            await s.files.make_dir("/tmp/d")
            assert await s.files.read("/x") == "y" and len(await s.files.list("/tmp")) == 1
            again = await sdk.AsyncSandbox.connect(s.sandbox_id, client=client_of(msb))
            await again.kill()

    go(run())


# --- a guest that lies --------------------------------------------------------------------------


def fields(*pairs):
    out = b""
    for tag, value in pairs:
        data = value if isinstance(value, bytes) else value.to_bytes(8 if tag in (137, 139) else 4, "little")
        out += tag.to_bytes(2, "little") + len(data).to_bytes(4, "little") + data
    return out


def frame(kind, payload=b""):
    return len(payload).to_bytes(4, "little") + kind.to_bytes(2, "little") + b"\0\0" + payload


DIR, REG, LNK = 0o040755, 0o100644, 0o120777
OK, LEAVE = frame(71), frame(69)


def entry(name, mode, *more):
    return frame(68, fields((140, name), (134, mode), (139, 4), *more))


TOP = entry(b"top", DIR)


@pytest.mark.parametrize("reply", [
    TOP + entry(b"../evil", REG) + frame(66, b"evil") + LEAVE + OK,
    TOP + entry(b"..", DIR) + entry(b"evil", REG) + frame(66, b"evil") + OK,
    TOP + entry(b"/tmp/evil", REG) + frame(66, b"evil") + OK,
    TOP + entry(b"", REG) + frame(66, b"evil") + OK,
    TOP + entry(b"e\0vil", REG) + frame(66, b"evil") + OK,
    TOP + entry(b"x" * 256, REG) + frame(66, b"evil") + OK,
    # a link, then a directory or a file of that name behind it
    TOP + entry(b"out", LNK, (141, b"..")) + entry(b"out", DIR) + entry(b"evil", REG) + frame(66, b"evil") + OK,
    TOP + entry(b"out", LNK, (141, b"../evil")) + entry(b"out", REG) + frame(66, b"evil") + OK,
    TOP + LEAVE + LEAVE + OK, TOP + LEAVE + entry(b"evil", REG) + frame(66, b"evil") + OK,
    TOP + frame(66, b"data of nothing") + OK, frame(66, b"x") + OK,
    b"".join([TOP, *[entry(b"d", DIR)] * 300, OK])])
def test_nothing_is_written_elsewhere(tmp_path, reply):
    from test_sdk_exec import Liar
    liar = Liar(tmp_path / "home", reply)
    target = tmp_path / "target"
    client = sdk.SandboxClient(home=str(tmp_path / "home"), msb="/bin/false")
    with pytest.raises((sdk.MsbError, OSError)):
        go(sdk.SandboxHandle(client, "liar").files.download("/x", target / "inner"))
    liar.sock.close()
    outside = [p for p in tmp_path.rglob("*evil*") if (target / "inner") not in p.parents]
    assert outside == [] and not (tmp_path / "evil").exists()


@pytest.mark.parametrize("reply", [b"", b"\xff" * 20, frame(72), frame(68, b"\x80"), frame(68, fields((140, b"a/b")))])
def test_lies_about_lists(tmp_path, reply):
    from test_sdk_exec import Liar
    liar = Liar(tmp_path, reply)
    client = sdk.SandboxClient(home=str(tmp_path), msb="/bin/false")
    with pytest.raises(sdk.MsbError):
        go(sdk.SandboxHandle(client, "liar").files.list("/x"))
    liar.sock.close()
