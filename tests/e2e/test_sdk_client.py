"""The SDK's surface and life cycle: what a client of sandboxes programs against.

The surface is stated here in our own words; where the client's own definition is at hand, the same suite
runs through it: our classes have to satisfy its abstract ones, and its specs and results have to fit ours.
"""
import ast
import asyncio
import dataclasses
import importlib.util
import inspect
import json
import os
import pathlib
import subprocess
import sys
import uuid

import pytest

from conftest import MSB
from guest import FOREVER
from sdkkit import BASE, SDK, SEEDS, client_of, conformance, go, sdk, sync_client_of

SURFACE = SEEDS / "sandbox_client.py"


def load_surface():
    if not SURFACE.exists():
        pytest.skip(f"{SURFACE} is not there")
    spec = importlib.util.spec_from_file_location("sandbox_client", SURFACE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sandbox_client"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


# --- the surface --------------------------------------------------------------------------------

NOTHING = dataclasses.MISSING
RESULT = [("stdout", NOTHING), ("stderr", ""), ("exit_code", 0), ("truncated", False)]
SPEC = [("name", NOTHING), ("image", "python:3.11-slim"), ("memory_mib", 512), ("cpus", 1),
        ("workspace", None), ("secrets", ()), ("egress", ()), ("labels", {})]
HANDLE = {"exec": ["cmd", "args", "*timeout"], "shell": ["script", "*timeout"], "stop": [], "kill": [],
          "logs": ["*tail"]}
CLIENT = {"create": ["spec"], "get": ["name"], "list": [], "remove": ["name"],
          "run_python": ["code", "*image"], "run_shell": ["script", "*image"]}


def fields_of(cls):
    return [(f.name, f.default_factory() if f.default_factory is not NOTHING else f.default)
            for f in dataclasses.fields(cls)]


def parameters(function):
    kinds = inspect.Parameter
    found = inspect.signature(function).parameters.values()
    return [("*" if p.kind == kinds.KEYWORD_ONLY else "") + p.name for p in found
            if p.name != "self" and p.kind != kinds.VAR_KEYWORD]


def check_surface(result, spec, handle, client, unavailable):
    """Every field, default and method. More may be there, behind what must be."""
    assert fields_of(result)[:len(RESULT)] == RESULT
    assert fields_of(spec)[:len(SPEC)] == SPEC
    for cls in (result, spec):
        assert cls.__dataclass_params__.frozen
        assert all(default is not NOTHING for _, default in fields_of(cls)[1:])
    for cls, methods in ((handle, HANDLE), (client, CLIENT)):
        for name, wanted in methods.items():
            method = getattr(cls, name)
            assert inspect.iscoroutinefunction(method), name
            have = parameters(method)
            assert [p for p in have if not p.startswith("*")] == [p for p in wanted if p[0] != "*"], name
            assert set(wanted) <= set(have), name
            assert not [p for p in inspect.signature(method).parameters.values()
                        if p.kind == p.KEYWORD_ONLY and p.default is p.empty], name
    assert inspect.signature(handle.exec).parameters["timeout"].default is None
    for name in ("run_python", "run_shell"):
        found = inspect.signature(getattr(client, name)).parameters
        assert found["image"].default == "python:3.11-slim"
        assert any(p.kind == p.VAR_KEYWORD for p in found.values())
    assert issubclass(unavailable, RuntimeError)


def test_our_surface():
    check_surface(sdk.ExecResult, sdk.SandboxSpec, sdk.SandboxHandle, sdk.SandboxClient,
                  sdk.SandboxUnavailable)
    r = sdk.ExecResult("a", "b", 3, True)
    assert (r.output, r.ok, sdk.ExecResult("").ok) == ("ab", False, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        r.stdout = ""
    with pytest.raises(dataclasses.FrozenInstanceError):
        sdk.SandboxSpec("x").name = ""
    assert sdk.SandboxSpec("x").labels is not sdk.SandboxSpec("y").labels


def test_their_surface_is_what_we_took_it_for():
    s = load_surface()
    check_surface(s.ExecResult, s.SandboxSpec, s.SandboxHandle, s.SandboxClient, s.SandboxUnavailable)
    assert fields_of(s.ExecResult) == RESULT and fields_of(s.SandboxSpec) == SPEC
    theirs = {n for n, m in vars(s.SandboxHandle).items() if callable(m) and n[0] != "_"}
    assert theirs == set(HANDLE)
    theirs = {n for n, m in vars(s.SandboxClient).items() if callable(m) and n[0] != "_"}
    assert theirs == set(CLIENT)


def abstract_classes_satisfied(s, m):
    """A client that *is* one of theirs: instantiating it fails while an abstract method is left."""
    class Handle(sdk.SandboxHandle, s.SandboxHandle):
        pass

    class Client(sdk.SandboxClient, s.SandboxClient):
        handle_class = Handle

    client = Client(msb=m.exe, home=str(m.home), env=m.env)
    assert isinstance(client, s.SandboxClient)
    return client, Handle


def test_conformance(python_home):
    go(conformance(client_of(python_home), sdk.SandboxSpec, sdk.ExecResult))


def test_conformance_through_their_classes(python_home):
    s = load_surface()
    client, handle = abstract_classes_satisfied(s, python_home)
    assert issubclass(handle, s.SandboxHandle)
    go(conformance(client, s.SandboxSpec, s.ExecResult))


# --- one shot -----------------------------------------------------------------------------------


class Recorder(sdk.SandboxClient):
    """Remembers names, and can be told to fail at the end."""

    names = ()
    broken = False

    async def create(self, spec):
        self.names += (spec.name,)
        sb = await super().create(spec)
        if self.broken:
            async def stop():
                raise OSError("stop is broken")
            sb.stop = stop
        return sb

    async def remove(self, name, **kw):
        await super().remove(name, **kw)
        if self.broken:
            raise OSError("remove is broken")


def test_one_shot_leaves_nothing(msb):
    client = Recorder(msb=msb.exe, home=str(msb.home), env=msb.env)

    async def run():
        for _ in range(2):
            assert (await client.run_shell("echo x", image=BASE)).stdout == "x\n"
        r = await client.run_python("print(1)", image=BASE)
        assert r.exit_code == 127, "no python in there, and that is a result"
        with pytest.raises(TypeError):
            await client.run_shell("true", image=BASE, colour="red")
        with pytest.raises(sdk.MsbError):
            await client.run_shell("true", image="/no/such/image")
        with pytest.raises(sdk.UsageError):
            await client.run_shell("a\0b", image=BASE)
        client.broken = True
        assert (await client.run_shell("echo y", image=BASE)).stdout == "y\n"
        task = asyncio.ensure_future(client.run_shell(f"sleep {FOREVER}", image=BASE))
        while not await client.list():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # impatient
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.list() == []

    go(run())
    assert client.names[0][:3] == "sh-" and len(client.names[0]) == 11
    assert client.names[2][:3] == "py-"
    assert len(set(client.names)) == len(client.names)
    assert msb.leftovers() == []


def test_create_cancelled_at_any_moment(msb):
    async def run():
        client = client_of(msb)
        for ms in (0, 5, 20, 50, 80, 120, 200):
            task = asyncio.ensure_future(client.create(sdk.SandboxSpec(name=f"c{ms}", image=BASE)))
            await asyncio.sleep(ms / 1000)
            task.cancel()
            try:
                await (await task).remove()
            except asyncio.CancelledError:
                pass
            assert await client.list() == []
        # The name of another is not ours to remove.
        sb = await client.create(sdk.SandboxSpec(name="mine", image=BASE))
        for ms in (0, 5, 20):
            task = asyncio.ensure_future(client.create(sdk.SandboxSpec(name="mine", image=BASE)))
            await asyncio.sleep(ms / 1000)
            task.cancel()
            with pytest.raises((asyncio.CancelledError, sdk.SandboxExists)):
                await task
        assert await client.list() == ["mine"]
        await sb.remove()

    go(run())


@pytest.mark.parametrize("created_ns, removed", [(1, False), (1 << 62, True)])
def test_create_cancelled_when_the_name_exists(tmp_path, created_ns, removed):
    """A create is ended before it could say that the name is taken, or after it was done: the sandbox that
    is there then is only removed if it is newer than the attempt."""
    program = tmp_path / "msb"
    doc = json.dumps({"name": "x", "status": "Running", "config": {"created_ns": created_ns}})
    program.write_text(f"""#!/bin/sh
        case $1 in
        create) exec sleep 1000;;
        inspect) echo '{doc}';;
        remove) echo "$@" > {tmp_path}/removed;;
        esac""")
    program.chmod(0o755)

    async def run():
        client = sdk.SandboxClient(msb=str(program), home=str(tmp_path))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.create(sdk.SandboxSpec(name="x", image=BASE)), 0.5)

    go(run())
    assert (tmp_path / "removed").exists() == removed


def test_context_managers(msb):
    async def run():
        async with client_of(msb) as client:
            with pytest.raises(KeyError):
                async with await client.create(sdk.SandboxSpec(name="a", image=BASE)) as sb:
                    await sb.exec("true")
                    raise KeyError
            assert await client.list() == []
            sb = await client.create(sdk.SandboxSpec(name="b", image=BASE))
            async with await client.get("b") as again:
                assert (await again.exec("true")).ok
            assert await client.list() == ["b"], "who only looked does not remove"
            await sb.remove()

    go(run())
    with sync_client_of(msb) as client:
        with client.create(sdk.SandboxSpec(name="c", image=BASE)) as sb:
            assert client.list() == ["c"] and sb.exec("true").ok
        assert client.list() == []
        assert client.run_shell("echo 1", image=BASE).stdout == "1\n"


# --- specs --------------------------------------------------------------------------------------


def test_everything_reaches_the_command_line():
    from msb.client import create_args
    args = create_args(sdk.SandboxSpec(
        name="n", image="i:1", memory_mib=300, cpus=2, secrets=("A", "B"), egress=("Example.com", "b.org."),
        labels={"k": "v=w"}, env={"E": "f g"}, workdir="/w", user="u", volumes=("/a:/b:ro",),
        ports=("8080:80",), idle_timeout=1.5, max_duration=60, replace=True,
        bound_secrets={"C": ["c.org", "*.d.org/v1/"]}, options=("--root-disk", "1G")))
    assert args == ["create", "-q", "--name=n", "--memory=300M", "--cpus=2", "--replace",
                    "--net-rule=allow@domain=example.com", "--net-rule=allow@domain=b.org",
                    "--secret-env=A", "--secret-env=B", "--secret=C@c.org,*.d.org/v1/", "--label=k=v=w", "--env=E=f g", "--workdir=/w",
                    "--user=u", "--volume=/a:/b:ro", "--port=8080:80", "--idle-timeout=1500ms",
                    "--max-duration=60000ms", "--root-disk", "1G", "i:1"]
    assert "--no-net" in create_args(sdk.SandboxSpec("x"))
    found = create_args(sdk.SandboxSpec("x", network="public"))
    assert "--net=public" in found and "--no-net" not in found
    found = create_args(sdk.SandboxSpec("x", ports=("0:80",)))
    assert "--net=none" in found and "--no-net" not in found
    assert "--workspace=/data" in create_args(sdk.SandboxSpec("x", workspace="/data"))
    assert "--cpus=0.5" in create_args(sdk.SandboxSpec("x", cpus=0.5))


@pytest.mark.parametrize("wrong", [
    {"egress": "example.com"}, {"egress": ("a.com,allow@any",)}, {"egress": ("any:tcp",)}, {"egress": ("",)},
    {"egress": ("*.example.com",)}, {"egress": ("1.2.3.4",)}, {"egress": ("a b",)}, {"egress": ("a",),
     "network": "public"}, {"secrets": "KEY"}, {"bound_secrets": {"KEY": "a.org"}}, {"image": "--detach"}, {"image": ""}, {"egress": (5,)}, {"egress": ("a\nb",)}])
def test_specs_that_are_refused(wrong):
    from msb.client import create_args
    with pytest.raises(sdk.UsageError):
        create_args(sdk.SandboxSpec("x", **wrong))


def test_options_do_what_they_say(msb):
    async def run():
        client = client_of(msb)
        spec = sdk.SandboxSpec(name="o", image=BASE, env={"A": "b c"}, workdir="/usr", user="65534",
                               labels={"x": "1"}, volumes=(f"{msb.home.parent}:/host:ro",))
        async with await client.create(spec) as sb:
            assert (await sb.shell("echo $A; pwd; id -u")).stdout == "b c\n/usr\n65534\n"
            assert "home" in (await sb.exec("ls", ["/host"], user="0")).stdout
            assert await client.list(labels={"x": "1"}) == ["o"]
            assert await client.list(labels={"x": "2"}) == []
            again = await client.create(dataclasses.replace(spec, replace=True, labels={}))
            assert again.name == "o" and (await again.info()).labels == {}

    go(run())


# --- errors -------------------------------------------------------------------------------------


def test_errors_are_what_the_program_says(msb):
    async def run():
        client = client_of(msb)
        with pytest.raises(sdk.SandboxNotFound, match="^sandbox not found: nobody$") as e:
            await client.remove("nobody")
        assert e.value.exit_code == 1 and isinstance(e.value, LookupError)
        with pytest.raises(sdk.UsageError, match="invalid config: sandbox name"):
            await client.create(sdk.SandboxSpec(name="-bad-", image=BASE, options=()))
        with pytest.raises(sdk.UsageError) as e:
            await client.create(sdk.SandboxSpec(name="x", image=BASE, options=("--no-such-option",)))
        assert e.value.exit_code == 2
        with pytest.raises(sdk.SandboxNotFound):
            await client.get("../../etc")
        with pytest.raises(sdk.SecretError, match="NO_SUCH") as e:
            await client.create(sdk.SandboxSpec(name="x", image=BASE, secrets=("NO_SUCH",)))
        assert "msb secret set NO_SUCH" in e.value.hint

    go(run())


def test_no_runtime(monkeypatch, tmp_path):
    monkeypatch.setenv("MSB_PATH", str(tmp_path / "nothing"))
    for client in (sdk.SandboxClient(home=str(tmp_path)),
                   sdk.SandboxClient(home=str(tmp_path), msb=str(tmp_path / "nothing"))):
        with pytest.raises(sdk.SandboxUnavailable):
            go(client.list())


def test_where_the_program_is(monkeypatch, tmp_path):
    program = tmp_path / "msb"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MSB_PATH", raising=False)
    assert sdk.find_msb() != str(program), "it cannot be executed"
    program.chmod(0o755)
    assert sdk.find_msb() == str(program)
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("MSB_PATH", str(other))
    assert sdk.find_msb() == str(other)


# --- secrets ------------------------------------------------------------------------------------


def haystack(m):
    """All that is on disk of sandboxes, and what processes show of themselves; without the store."""
    for top in ("sandboxes", "locks"):
        for path in (m.home / top).rglob("*"):
            if path.is_file() and path.name != "upper.ext4":
                yield path, path.read_bytes()
    for pid in m.processes():
        for name in ("cmdline", "environ"):
            try:
                yield f"{pid}/{name}", pathlib.Path("/proc", str(pid), name).read_bytes()
            except OSError:
                pass


def test_secrets_reach_commands_and_nothing_else(msb, monkeypatch):
    stored, referred = f"stored-{uuid.uuid4().hex}", f"referred-{uuid.uuid4().hex}"
    msb.ok("secret", "set", "API_KEY", input=stored.encode())
    msb.ok("secret", "set", "TOKEN", "--from-env", "SDK_TEST_TOKEN")

    async def run():
        # Whoever creates it has the value in its environment; what runs from then on has not.
        client = sdk.SandboxClient(msb=msb.exe, home=str(msb.home), env={**msb.env, "SDK_TEST_TOKEN": referred})
        spec = sdk.SandboxSpec(name="s", image=BASE, secrets=("API_KEY", "TOKEN"),
                               volumes=(f"{msb.home.parent}:/host:ro",))
        async with await client.create(spec) as sb:
            with pytest.raises(sdk.SecretError, match="SDK_TEST_TOKEN"):
                await sb.exec("env")
            monkeypatch.setenv("SDK_TEST_TOKEN", referred)
            for handle in (sb, await client.get("s")):
                r = await handle.shell('test "$API_KEY $TOKEN" = "$(cat)"', stdin=f"{stored} {referred}")
                assert r.ok, r
            assert (await sb.shell("echo $API_KEY", env={"API_KEY": "mine"})).stdout == "mine\n"
            async with await sb.spawn("sleep", [FOREVER]):
                shown = [json.dumps((await sb.info()).details).encode(), (await sb.logs()).encode()]
                for what, data in [*haystack(msb), *enumerate(shown)]:
                    assert stored.encode() not in data and referred.encode() not in data, what
            (msb.home / "secrets" / "API_KEY").chmod(0o644)
            with pytest.raises(sdk.SecretError, match="can be read by others") as e:
                await sb.exec("true")
            assert stored not in str(e.value)

    go(run())


# --- the audit log ------------------------------------------------------------------------------


def test_commands_are_in_the_audit_log(msb):
    """As those of msb exec are, and readable by msb audit."""
    async def run(**more):
        client = sdk.SandboxClient(msb=msb.exe, home=str(msb.home), env={**msb.env, **more})
        async with await client.create(sdk.SandboxSpec(name="a", image=BASE)) as sb:
            await sb.exec("sh", ["-c", "exit 3", "ü\udcff"], env={"KEY": "v4lue"}, cwd="/tmp", user="0")
            await sb.exec("no-such-program")
            await sb.exec("true", ["x" * 5000])
            await sb.files.write("/tmp/f", "pr1vate")
            await sb.files.read("/tmp/f")
            await sb.files.rename("/tmp/f", "/tmp/g")
            with pytest.raises(FileNotFoundError):
                await sb.files.download("/tmp/none", "/nonexistent/place")
            await asyncio.gather(*(sb.exec("true") for _ in range(20)))

    go(run())
    text = (msb.home / "audit.log").read_text()
    records = [json.loads(x) for x in text.splitlines()]
    ours = [r for r in records if r["event"] == "exec"]
    codes = {r["exec"]: r["code"] for r in records if r["event"] == "exit"}
    assert ours[0]["argv"] == ["sh", "-c", "exit 3", "ü\\xff"] and ours[0]["sandbox"] == "a"
    assert (ours[0]["user"], ours[0]["workdir"], ours[0]["pid"]) == ("0", "/tmp", os.getpid())
    assert [codes[r["exec"]] for r in ours] == [3, 127] + [0] * 21 and len(codes) == 23
    assert ours[2]["cut"] is True and len(ours[2]["argv"][1]) == 4096 - 4 - 3
    assert "v4lue" not in text and os.stat(msb.home / "audit.log").st_mode & 0o777 == 0o600
    files = [(r["event"], r["path"], r.get("to")) for r in records if "path" in r]
    assert files == [("write-file", "/tmp/f", None), ("rename-file", "/tmp/f", "/tmp/g"), ("download", "/tmp/none", None)]
    assert "error" in [r for r in records if r["event"] == "download"][0] and "pr1vate" not in text
    shown = msb.ok("audit", "--json")
    assert shown.count('"exec"') >= 46
    # Full: it is rotated, and nothing is lost.
    with open(msb.home / "audit.log", "a") as f:
        f.write("x" * 10 * 1024 * 1024)
    go(run())
    assert (msb.home / "audit.log.1").stat().st_size > 10 * 1024 * 1024
    assert (msb.home / "audit.log").read_text().count('"event":"exit"') == 23
    msb.ok("audit", "verify", "-q")
    size = (msb.home / "audit.log").stat().st_size
    go(run(MSB_AUDIT="off"))
    assert (msb.home / "audit.log").stat().st_size == size
    go(run(MSB_AUDIT="all"))
    assert '"event":"read-file"' in (msb.home / "audit.log").read_text()


# --- the package --------------------------------------------------------------------------------


def test_pip_installs_it_from_the_tree(tmp_path):
    """Offline, with pip and nothing else; what is installed is typed and has no dependency."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("python3-pip is not installed")
    copy = tmp_path / "src"
    subprocess.run(["cp", "-r", SDK, copy], check=True)
    p = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index",
                        "--disable-pip-version-check", "--target", tmp_path / "site", copy],
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    code = "import msb, sys; print(msb.__version__, msb.__file__)"
    p = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"],
                       capture_output=True, text=True, check=True)
    assert str(tmp_path / "site") in p.stdout
    assert (tmp_path / "site" / "msb" / "py.typed").exists()
    metadata = next((tmp_path / "site").glob("msb-*.dist-info/METADATA")).read_text()
    assert "Requires-Python: >=3.9" in metadata and "Requires-Dist" not in metadata
    program = subprocess.run([MSB, "--version"], capture_output=True, text=True, check=True).stdout
    assert program.split()[1] == sdk.__version__ and f"Version: {sdk.__version__}\n" in metadata


def test_oldest_python():
    """What it is written in; the types of the standard library are checked against 3.9 by mypy (lint)."""
    for path in [*SDK.rglob("*.py"), *(SDK.parents[1] / "examples").glob("*.py")]:
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


def test_everything_public_is_documented():
    def undocumented(thing, name):
        found = [] if inspect.getdoc(thing) else [name]
        if inspect.isclass(thing) and thing.__module__.startswith("msb"):
            for key, member in vars(thing).items():
                member = getattr(member, "__func__", getattr(member, "fget", member)) or member
                if key[0] != "_" and (inspect.isfunction(member) or inspect.isclass(member)):
                    found += undocumented(member, f"{name}.{key}")
        return found

    missing = [x for n in sdk.__all__ if not isinstance(getattr(sdk, n), (int, str))
               for x in undocumented(getattr(sdk, n), n)]
    missing += [x for n in sdk.sync.__all__ for x in undocumented(getattr(sdk.sync, n), f"sync.{n}")]
    assert missing == []


def test_the_twin_has_every_method():
    for name in ("SandboxClient", "SandboxHandle", "Process", "Files"):
        ours = {n for n in dir(getattr(sdk, name)) if n[0] != "_"} - {"watching"}
        twin = {n for n in dir(getattr(sdk.sync, name)) if n[0] != "_"}
        assert ours - twin <= {"max_output", "handle_class"}, name
        for method in sorted(ours & twin):
            a, b = getattr(getattr(sdk, name), method), getattr(getattr(sdk.sync, name), method)
            if inspect.isfunction(a) and method != "watch":
                assert parameters(a) == parameters(b), f"{name}.{method}"


@pytest.mark.parametrize("topic", ["msb", "msb.sync", "msb.SandboxHandle", "msb.Files", "msb.errors"])
def test_pydoc_renders(topic):
    p = subprocess.run([sys.executable, "-m", "pydoc", topic], env={**os.environ, "PYTHONPATH": str(SDK)},
                       capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and "no Python documentation found" not in p.stdout and len(p.stdout) > 500


# --- workspaces ---------------------------------------------------------------------------------


def test_workspace(msb, tmp_path):
    """A directory of the host, or one that msb keeps under a name; what is written there stays."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "in").write_text("from the host")

    async def run():
        client = client_of(msb)
        spec = sdk.SandboxSpec(name="w", image=BASE, workspace=str(work))
        async with await client.create(spec) as sb:
            assert (await sb.exec("cat", ["/workspace/in"])).stdout == "from the host"
            await sb.shell("echo back > /workspace/out")
        assert (work / "out").read_text() == "back\n"
        r = await client.run_shell("echo kept > /workspace/f", image=BASE, workspace="notes")
        assert r.ok
        r = await client.run_shell("cat /workspace/f", image=BASE, workspace="notes")
        assert r.stdout == "kept\n"
        spec = dataclasses.replace(spec, options=("--workspace-mode", "snapshot"))
        async with await client.create(spec) as sb:
            await sb.shell("echo later > /workspace/out")
            assert (work / "out").read_text() == "back\n", "not yet"
        assert (work / "out").read_text() == "later\n"

    go(run())
