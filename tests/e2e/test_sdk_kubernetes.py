"""The SDK's client for clusters, without one: kubeconfig files, manifests, the channel protocol. The server is
fakekube's, whose pods are namespaces on this machine; `make test-k8s` does the same with a real cluster."""
import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys

import pytest

import fakekube
import imagekit
from guest import FOREVER
from sdkkit import SDK, SEEDS, alive, conformance, go, gone, sdk
from test_sdk_client import check_surface, load_surface

from msb import _command, _kubeconfig, _kubeexec, _pod, _websocket  # noqa: E402
from msb.errors import ProtocolError  # noqa: E402

POD = "alpine:3"
Spec = sdk.SandboxSpec


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kube")
    imagekit.make_ca(directory)
    return directory


@pytest.fixture
def place(certificates, tmp_path):
    for name in ("ca.pem", "tls.pem", "tls.key"):
        shutil.copy(certificates / name, tmp_path / name)
    return tmp_path


def needs_namespaces():
    if not fakekube.works():
        pytest.skip("pid namespaces cannot be made here")


V4 = {"version": (1, 20), "protocols": ("v4.channel.k8s.io",)}


@contextlib.asynccontextmanager
async def cluster(place, **how):
    options = {k: how.pop(k) for k in ("version", "protocols") if k in how}
    async with fakekube.FakeKube(place, **options) as kube:
        yield kube, sdk.KubernetesClient(kubeconfig=kube.kubeconfig(), runtime_class="msb", **how)


@contextlib.asynccontextmanager
async def sandbox(place, **how):
    async with cluster(place, **how) as (kube, client):
        yield kube, await client.create(Spec(name="box", image=POD, env={"A": "b $(c)"}))


# --- kubeconfig ---------------------------------------------------------------------------------


def write_config(path, cluster=None, user=None, **more):
    doc = {"current-context": "x", "clusters": [{"name": "c", "cluster": {"server": "https://h:1", **(cluster or {})}}],
           "users": [{"name": "u", "user": user or {}}],
           "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], **more}
    path.write_text(json.dumps(doc))
    return str(path)


def test_kubeconfig_that_is_yaml(tmp_path):
    pytest.importorskip("yaml")
    (tmp_path / "ca").write_text("CA")
    (tmp_path / "token").write_text("from a file\n")
    path = tmp_path / "config"
    path.write_text("""
apiVersion: v1
kind: Config
current-context: one
contexts:
- name: one
  context: {cluster: c, user: u, namespace: agents}
- {name: two, context: {cluster: d, user: v}}
clusters:
- {name: c, cluster: {server: "https://api.example.com", certificate-authority: ca, tls-server-name: inner}}
- {name: d, cluster: {server: "https://[::1]:6443/base/"}}
users:
- {name: u, user: {tokenFile: token}}
- {name: v, user: {username: me, password: "p:w"}}
""")
    found = _kubeconfig.load(str(path))
    assert (found.host, found.port, found.tls, found.namespace) == ("api.example.com", 443, True, "agents")
    assert found.ca_data == b"CA" and found.server_name == "inner" and not found.insecure
    assert found.authorization() == "Bearer from a file"
    (tmp_path / "token").write_text("rotated")
    assert found.authorization() == "Bearer rotated"
    found = _kubeconfig.load(str(path), "two")
    assert (found.host, found.port, found.path, found.namespace) == ("::1", 6443, "/base", "default")
    assert found.authorization() == "Basic " + base64.b64encode(b"me:p:w").decode()


def test_kubeconfig_from_the_environment(tmp_path, monkeypatch):
    """Of several files the first that has an entry wins."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    a = write_config(tmp_path / "a", user={"token": "A"})
    b = write_config(tmp_path / "b", user={"token": "B"}, **{"current-context": "other"})
    monkeypatch.setenv("KUBECONFIG", f"{a}:{tmp_path}/none:{b}")
    assert _kubeconfig.load().authorization() == "Bearer A"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    with pytest.raises(sdk.SandboxUnavailable, match="no Kubernetes cluster"):
        sdk.KubernetesClient()


def test_service_account(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert _kubeconfig.from_service_account(str(tmp_path)) is None
    for name, text in (("token", "T\n"), ("ca.crt", "CA"), ("namespace", "mine")):
        (tmp_path / name).write_text(text)
    found = _kubeconfig.from_service_account(str(tmp_path))
    assert (found.host, found.port, found.namespace, found.ca_data) == ("10.0.0.1", 6443, "mine", b"CA")
    assert found.authorization() == "Bearer T"


def test_credential_plugin(tmp_path):
    plugin = tmp_path / "plugin"
    plugin.write_text("""#!/bin/sh
echo call >> "$(dirname "$0")/calls"
case $KUBERNETES_EXEC_INFO in *ExecCredential*) ;; *) exit 3;; esac
echo '{"status": {"token": "'$1-$WHO-$(wc -l < "$(dirname "$0")/calls")'", "expirationTimestamp": "'$2'"}}'
""")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin",
                     "args": ["tok", "2999-01-01T00:00:00Z"], "env": [{"name": "WHO", "value": "me"}]}}
    found = _kubeconfig.load(write_config(tmp_path / "config", user=user))
    assert found.authorization() == found.authorization() == "Bearer tok-me-1"
    found.forget()
    assert found.authorization() == "Bearer tok-me-2"
    user["exec"]["args"][1] = "2001-01-01T00:00:00Z"
    found = _kubeconfig.load(write_config(tmp_path / "config", user=user))
    assert found.authorization() != found.authorization(), "what has expired is asked for again"
    for command in ("./none", "false"):
        user["exec"]["command"] = command
        with pytest.raises(sdk.SandboxUnavailable, match="credential plugin"):
            _kubeconfig.load(write_config(tmp_path / "config", user=user)).authorization()


@pytest.mark.parametrize("cluster, user, more, words", [
    ({"server": "ftp://x"}, {}, {}, "invalid API server"), ({"server": "https://x:99999"}, {}, {}, "invalid API server"),
    ({"proxy-url": "http://p"}, {}, {}, "proxy-url"), ({"certificate-authority-data": "%%"}, {}, {}, "certificate-authority-data"),
    ({"certificate-authority": "none"}, {}, {}, "cannot read"), ({}, {"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
    ({}, {"exec": {"apiVersion": "v9", "command": "x"}}, {}, "unknown version"), ({}, {"exec": {}}, {}, "without a command"),
    ({}, {}, {"current-context": ""}, "no current context"), ({}, {}, {"current-context": "y"}, "no context 'y'"),
    ({}, {}, {"contexts": "x"}, "no context"), ({"certificate-authority-data": "Q0E="}, {}, {}, "certificate")])
def test_kubeconfig_that_is_wrong(tmp_path, cluster, user, more, words):
    with pytest.raises(sdk.MsbError, match=words):
        found = _kubeconfig.load(write_config(tmp_path / "config", cluster, user, **more))
        found.authorization()
        found.context()


@pytest.mark.parametrize("text", ["[]", "{", "a: [", "\0"])
def test_kubeconfig_that_is_none(tmp_path, text):
    pytest.importorskip("yaml")
    (tmp_path / "config").write_text(text)
    with pytest.raises(sdk.UsageError, match="not a kubeconfig"):
        _kubeconfig.load(str(tmp_path / "config"))


# --- manifests ----------------------------------------------------------------------------------


def pod_of(addresses=None, pod=None, container=None, runtime_class="msb", **spec):
    return _pod.manifest(Spec(**{"name": "n", "image": "i:1", **spec}), runtime_class=runtime_class, created="c",
                         addresses=addresses or {}, pod=pod or {}, container=container or {})


def test_everything_reaches_the_pod():
    doc = pod_of(memory_mib=300, cpus=1.5, secrets=("API_KEY",), egress=("Example.com",), labels={"team": "search"},
                 env={"E": "f $(g)"}, workdir="/w", user="1000:2000", volumes=("data:/d:ro",), ports=("0:8080",),
                 workspace="task", max_duration=60, addresses={"example.com": ["192.0.2.1", "2001:db8::1"]},
                 pod={"metadata": {"annotations": {"x": "y"}}, "spec": {"nodeSelector": {"a": "b"}}},
                 container={"resources": {"requests": {"cpu": "10m"}}, "imagePullPolicy": "Never"})
    spec, (main,) = doc["spec"], doc["spec"]["containers"]
    assert doc["metadata"]["labels"] == {"team": "search", "msb/sandbox": "n", "msb/reach": "hosts", "msb/egress": "c"}
    assert doc["metadata"]["annotations"] == {"msb/name": "n", "msb/created": "c", "msb.memory": "300M", "x": "y"}
    assert spec["runtimeClassName"] == "msb" and spec["restartPolicy"] == "Never" and spec["activeDeadlineSeconds"] == 60
    assert spec["automountServiceAccountToken"] is False and spec["nodeSelector"] == {"a": "b"}
    assert main["resources"] == {"limits": {"memory": "300Mi", "cpu": "1500m"}, "requests": {"cpu": "10m"}}
    assert main["env"] == [{"name": "E", "value": "f $$(g)"},
                           {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "api-key", "key": "API_KEY"}}}]
    assert main["securityContext"] == {"runAsUser": 1000, "runAsGroup": 2000} and main["workingDir"] == "/w"
    assert main["ports"] == [{"containerPort": 8080, "protocol": "TCP"}] and main["imagePullPolicy"] == "Never"
    assert [v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"]] == ["task", "data"]
    assert [(m["mountPath"], m["readOnly"]) for m in main["volumeMounts"]] == [("/workspace", False), ("/d", True)]
    assert spec["hostAliases"] == [{"ip": "192.0.2.1", "hostnames": ["example.com"]},
                                   {"ip": "2001:db8::1", "hostnames": ["example.com"]}]
    assert spec["dnsPolicy"] == "None", "no other name resolves"
    assert "runtimeClassName" not in pod_of(runtime_class=None)["spec"]


def test_network_policies():
    (none,) = _pod.network_policies(pod_of(), {})
    assert none["spec"] == {"podSelector": {"matchLabels": {"msb/reach": "none"}}, "policyTypes": ["Egress"], "egress": []}
    base, one = _pod.network_policies(pod_of(egress=("a", "b")), {"a": ["192.0.2.1"], "b": ["192.0.2.1", "2001:db8::1"]})
    assert base["spec"] == {"podSelector": {"matchLabels": {"msb/reach": "hosts"}}, "policyTypes": ["Egress"], "egress": []}
    assert one["spec"]["egress"] == [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}, {"ipBlock": {"cidr": "2001:db8::1/128"}}]}]
    assert one["spec"]["podSelector"] == {"matchLabels": {"msb/egress": "c"}} and one["metadata"]["name"] == "n-egress-c"
    (public,) = _pod.network_policies(pod_of(network="public"), {})
    blocks = [b["ipBlock"] for b in public["spec"]["egress"][0]["to"]]
    assert "10.0.0.0/8" in blocks[0]["except"] and "169.254.0.0/16" in blocks[0]["except"]
    assert "dnsPolicy" not in pod_of(network="public")["spec"]


@pytest.mark.parametrize("name, pod", [("conf", "conf"), ("a.b", None), ("A_b", None), ("x" * 100, None), ("-", 0),
                                       ("", 0), ("a/b", 0), ("x" * 129, 0), ("a" * 63, "a" * 63)])
def test_names(name, pod):
    if pod == 0:
        with pytest.raises(sdk.UsageError):
            _pod.pod_name(name)
        return
    found = _pod.pod_name(name)
    assert found == (pod or found) and len(found) <= 63 and _pod._POD_NAME.match(found)
    assert pod or found != _pod.pod_name(name.lower() + "1")


@pytest.mark.parametrize("wrong", [
    {"egress": "example.com"}, {"egress": ("1.2.3.4",)}, {"egress": ("*.a.org",)}, {"egress": ("a.org",), "network": "public"},
    {"network": "host"}, {"secrets": "KEY"}, {"secrets": ("a b",)}, {"bound_secrets": {"K": ["a.org"]}},
    {"idle_timeout": 5}, {"options": ("--x",)}, {"image": ""}, {"image": "-x"}, {"user": "root"}, {"workspace": "/data"},
    {"volumes": ("/srv:/srv",)}, {"volumes": ("data",)}, {"volumes": ("data:rel",)}, {"labels": {"a b": "c"}},
    {"labels": {"a": "b c"}}, {"labels": {"msb/sandbox": "x"}}, {"ports": ("x",)}, {"ports": ("0:99999",)},
    {"max_duration": -1}, {"name": "a/b"}])
def test_specs_that_are_refused(wrong):
    with pytest.raises(sdk.UsageError):
        pod_of(**wrong)


# --- WebSockets ---------------------------------------------------------------------------------


def server_frame(opcode, data, final=True):
    size = bytes([len(data)]) if len(data) < 126 else bytes([126]) + len(data).to_bytes(2, "big")
    return bytes([(0x80 if final else 0) | opcode]) + size + data


def test_frames_however_they_are_cut():
    stream = (server_frame(2, b"one") + server_frame(2, b"t", False) + server_frame(9, b"ping") +
              server_frame(0, b"w", False) + server_frame(0, b"o") + server_frame(2, b"x" * 300))
    for step in (1, 3, len(stream)):
        frames, found = _websocket.Frames(), []
        for at in range(0, len(stream), step):
            found += frames.feed(stream[at:at + step])
        assert found == [(2, b"one"), (9, b"ping"), (2, b"two"), (2, b"x" * 300)]


@pytest.mark.parametrize("data", [
    b"\x82\x81abcdx", b"\xc2\x01x", b"\x83\x01x", b"\x80\x01x", b"\x82\x7f" + b"\xff" * 8, b"\x89\x7e\x01\x00",
    b"\x09\x01x", b"\x02\x01a\x82\x01b", b"\x82\x7f" + (1 << 24).to_bytes(8, "big")],
    ids=["masked", "reserved bit", "opcode", "continues nothing", "huge", "long ping", "cut ping", "not continued", "large"])
def test_frames_that_are_wrong(data):
    with pytest.raises(ProtocolError):
        _websocket.Frames().feed(data)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200001])
def test_our_frames(size):
    data = os.urandom(size)
    raw = _websocket.frame(2, data)
    head = 2 + (0 if size < 126 else 2 if size < 65536 else 8)
    key = raw[head:head + 4]
    assert raw[1] & 0x80 and len(raw) == head + 4 + size
    assert bytes(b ^ key[i % 4] for i, b in enumerate(raw[head + 4:])) == data


@pytest.mark.parametrize("text, status", [
    ('{"status":"Success"}', 0),
    ('{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}', 3),
    ('{"status":"Failure","reason":"InternalError","message":"no such container"}', "no such container"),
    ("[]", None), ("{", None), ('{"reason":"NonZeroExitCode"}', None), ('{"reason":"NonZeroExitCode","details":{"causes":[]}}', None)])
def test_status_channel(text, status):
    if status is None:
        with pytest.raises(ProtocolError):
            _kubeexec.status_of(text.encode())
    else:
        assert _kubeexec.status_of(text.encode()) == status


# --- the surface --------------------------------------------------------------------------------


def test_the_same_surface():
    check_surface(sdk.ExecResult, sdk.SandboxSpec, sdk.KubernetesHandle, sdk.KubernetesClient, sdk.SandboxUnavailable)
    assert issubclass(sdk.KubernetesClient, sdk.SandboxClient)


def test_nothing_is_loaded_for_those_who_do_not_use_it():
    code = "import sys, msb; print([m for m in sys.modules if 'kube' in m or m == 'yaml'])"
    p = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SDK)}, capture_output=True,
                       text=True, check=True)
    assert p.stdout == "[]\n"


def test_conformance(place):
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            await conformance(client, Spec, sdk.ExecResult, small=POD, local=False)
            assert list(kube.store["networkpolicies"]) == ["msb-none"] and kube.store["pods"] == {}

    go(run())


@pytest.mark.skipif(not SEEDS.exists(), reason="their classes are not there")
def test_conformance_through_their_classes(place):
    needs_namespaces()
    s = load_surface()

    class Handle(sdk.KubernetesHandle, s.SandboxHandle):
        pass

    class Client(sdk.KubernetesClient, s.SandboxClient):
        handle_class = Handle

    async def run():
        async with fakekube.FakeKube(place, **V4) as kube:
            await conformance(Client(kubeconfig=kube.kubeconfig()), s.SandboxSpec, s.ExecResult, small=POD, local=False)

    go(run())


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, V4], ids=["v5", "v4"])
def test_commands(place, how):
    """Arguments, streams, variables, input of any size, failures."""
    needs_namespaces()

    async def run():
        async with sandbox(place, **how) as (kube, sb):
            odd = ["a b", "$HOME", "'\"`;|&", "", "-n", "*", "ünïcode", "line\nbreak", "x" * 100000]
            r = await sb.exec("printf", ["%s|", *odd])
            assert r == sdk.ExecResult("".join(a + "|" for a in odd))
            r = await sb.exec("sh", ["-c", 'printf %s "$1" | od -An -tx1', "sh", os.fsdecode(b"a\xff")])
            assert r.stdout.split() == ["61", "ff"]
            r = await sb.shell('echo "$A"; echo "$B"; pwd; echo err >&2; exit 42', env={"B": "c=d\n'e'"}, cwd="/usr")
            assert (r.stdout, r.stderr, r.exit_code) == ("b $(c)\nc=d\n'e'\n/usr\n", "err\n", 42)
            assert not [x for x in kube.requests if "c%3Dd" in x], "variables are in no URL"
            assert (await sb.shell("kill -9 $$")).exit_code == 137
            r = await sb.exec("no-such-program")
            assert r.exit_code == 127 and 'failed to exec "no-such-program"' in r.stderr
            assert (await sb.exec("/etc/passwd")).exit_code == 126 and (await sb.exec("/usr")).exit_code == 126
            with pytest.raises(sdk.CommandError, match="failed to exec") as e:
                await sb.exec("true", cwd="/no/such/directory")
            assert "directory" in e.value.hint
            with pytest.raises(sdk.CommandNotFound):
                await sb.spawn("no-such-program")
            for size in (0, 5, 65536, 65537, 1000000):
                assert (await sb.exec("wc", ["-c"], stdin=b"x" * size)).stdout.strip() == str(size)
            assert (await sb.exec("true", stdin=b"x" * 1000000)).ok, "input that nobody reads"
            assert (await sb.exec("cat")).stdout == "", "no input is an empty one"
            r = await sb.shell("yes | head -c 300000; echo end >&2", max_output=1000)
            assert r.truncated and len(r.stdout) == 1000 and r.stderr == "end\n"
            assert (await sb.shell("printf '\\036a\\036'; printf '\\036'")).stdout == "\x1ea\x1e\x1e"
            seen = []
            await sb.shell("echo 1; sleep 0.05; echo 2", on_stdout=seen.append)
            assert "".join(seen) == "1\n2\n"
            results = await asyncio.gather(*(sb.exec("echo", [str(i)]) for i in range(30)))
            assert [int(r.stdout) for r in results] == list(range(30))
            for wrong in ({"cmd": ""}, {"cmd": "a\0b"}, {"cmd": "true", "env": {"A=B": "c"}}, {"cmd": "true", "cwd": "rel"},
                          {"cmd": "true", "timeout": 0}, {"cmd": "true", "user": "root"}, {"cmd": "echo", "args": "letters"}):
                with pytest.raises(sdk.UsageError):
                    await sb.exec(**wrong)

    go(run())


@pytest.mark.parametrize("how", [{}, V4], ids=["v5", "v4"])
def test_ends(place, how):
    """Time limits, cancellation, signals, closing: what was begun is gone in the pod, too. A background process is
    left alone, and nobody waits for it."""
    needs_namespaces()

    async def run():
        async with sandbox(place, **how) as (_, sb):
            r = await sb.shell(f"echo before; sleep {FOREVER}1 & sleep {FOREVER}1", timeout=2)
            assert r == sdk.ExecResult("before\n", "", 124, True, True) and await gone(sb, FOREVER + "1")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sb.exec("sleep", [FOREVER + "2"], stdin=b"x"), 1)
            assert await gone(sb, FOREVER + "2")
            async with await sb.spawn("sleep", [FOREVER + "3"]) as process:
                assert process.pid > 1 and await alive(sb, FOREVER + "3")
            assert await gone(sb, FOREVER + "3")
            process = await sb.spawn("sh", ["-c", "trap 'echo got; exit 3' TERM; echo on; while :; do sleep 0.05; done"],
                                     stream=True)
            async for chunk in process:
                if chunk.data == b"on\n":
                    await process.terminate()
            assert (await process.wait()).exit_code == 3
            process = await sb.spawn("sleep", [FOREVER + "4"])
            await process.kill()
            assert (await process.wait()).exit_code == 137
            process = await sb.spawn("sleep", [FOREVER + "5"])
            await process.detach()
            r = await sb.shell(f"sleep {FOREVER}6 & echo begun")
            assert r.stdout == "begun\n" and r.ok, "its output stays open, and that keeps nobody"
            assert await alive(sb, FOREVER + "5") and await alive(sb, FOREVER + "6")
            with pytest.raises(sdk.CommandTimeout):
                await (await sb.spawn("sleep", [FOREVER + "7"])).wait(timeout=0.1)

    go(run())


def test_a_client_that_dies_takes_its_command_along(place):
    """The connection is cut: the end of its input tells the shell in the pod."""
    needs_namespaces()

    async def run():
        async with sandbox(place) as (_, sb):
            process = await sb.spawn("sh", ["-c", f"sleep {FOREVER}8"])
            process._channel.abort()
            assert await gone(sb, FOREVER + "8")
            with pytest.raises(sdk.MsbError, match="connection was closed"):
                await process.wait()

    go(run())


@pytest.mark.parametrize("shell", [["sh"], ["busybox", "sh"]], ids=["sh", "busybox"])
def test_nobody_escapes_who_was_started_meanwhile(shell):
    """The session of a command is killed: also what it starts while that is being done."""
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not installed")
    late = f"""kill() {{ [ "$late" ] || {{ sleep {FOREVER} >/dev/null & late=$!; }}; command kill "$@"; }}"""
    script = f"{late}\n{_kubeexec._SESSION}g=$$; sleep {FOREVER} >/dev/null & k; wait; echo $late"
    p = subprocess.Popen([*shell, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        out, _ = p.communicate(timeout=60)  # it waits for both
        assert int(out) > 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)
        p.wait()


class SlowTransport:
    """Of a channel whose reader has enough for now: the rest comes when it reads again."""

    def __init__(self, channel, *rest):
        self.channel, self.rest, self.reading = channel, rest, True

    def is_reading(self):
        return self.reading

    def is_closing(self):
        return False

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True
        rest, self.rest = self.rest, ()
        for delay, message in enumerate(rest, 1):
            asyncio.get_running_loop().call_later(delay / 100, self.channel.on_message, message)

    def abort(self):
        pass


def slow_channel(monkeypatch, *rest, timeout=None, send_signal=None):
    """Its command has begun, and more than its reader takes is there. `=` in the rest is our line with its code."""
    monkeypatch.setattr(_kubeexec, "DRAIN_SECONDS", 0.05)
    plan = _kubeexec.Plan(["x"], env={}, cwd=None, tty=False, stdin=None, half_close=False)
    channel = _kubeexec.KubeChannel(b"", "", plan, 0, True, timeout, send_signal, None)
    channel._transport = SlowTransport(channel, *(b"\1" + channel._mark + m + b"\n" if m[:1] == b"=" else m for m in rest))
    channel.on_message(b"\1" + channel._mark + b"+1 2\n")
    channel.on_message(b"\2" + b"x" * _command.STREAM_WINDOW)
    return channel


async def slow_end(channel):
    await asyncio.sleep(0.3)
    assert not channel.ended.done()
    assert len((await channel.next_chunk())[1]) == _command.STREAM_WINDOW
    assert await channel.next_chunk() == (1, b"the end") and await channel.next_chunk() is None
    how = channel.ended.result()
    return how.exit_code, how.timed_out


@pytest.mark.parametrize("timeout", [None, 0.1])
def test_a_slow_reader_gets_all_of_it(monkeypatch, timeout):
    """The command has ended, and what it wrote is still on its way because nobody took what came before."""
    async def run():
        channel = slow_channel(monkeypatch, b"\2the end", timeout=timeout)
        channel.on_message(b"\1" + channel._mark + b"=3\n")
        assert await slow_end(channel) == (3, False)

    go(run())


@pytest.mark.parametrize("last, how", [(b"=3", (3, False)), (
    b'\3{"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "137"}]}}',
    (124, True)), (b"=137", (124, True)), (b"", (124, True))], ids=["ended", "killed", "shell-last", "silent"])
def test_the_time_is_over_while_nobody_reads(monkeypatch, last, how):
    """The command may have ended in time, and says so behind its output; if not, it is killed all the same."""
    killed = []

    async def send_signal(*what):
        killed.append(what)

    async def run():
        assert await slow_end(slow_channel(monkeypatch, b"\2the end", last, timeout=0.1, send_signal=send_signal)) == how
        assert killed == [(1, None)]

    go(run())


def test_who_cannot_be_killed_is_left(monkeypatch):
    async def send_signal(*_):
        raise sdk.SandboxUnavailable("no")

    async def run():
        channel = slow_channel(monkeypatch, timeout=0.1, send_signal=send_signal)
        assert (await asyncio.wait_for(channel.ended, 10)).timed_out

    go(run())


def test_connections_that_end(place):
    """Whether it was the sandbox that ended or only the connection, and what the server said last."""
    needs_namespaces()

    async def run():
        async with sandbox(place) as (kube, sb):
            for frame, words in ((b"\x03\xf3kubelet restarts", "server closed it: 1011: kubelet restarts"),
                                 (b"\x03\xe8", "server closed it: 1000"), (None, "it ended without a word")):
                kube.hang_ups = [frame]
                with pytest.raises(sdk.SandboxUnavailable, match=f"to sandbox 'box' was lost: .*{words}") as e:
                    await sb.exec("true")
                assert e.value.hint == "status: Running"
            process = await sb.spawn("sleep", [FOREVER + "9"])
            kube.cut()
            with pytest.raises(sdk.SandboxUnavailable, match="'box' was lost"):
                await process.wait()
            await process.close()
            assert await gone(sb, FOREVER + "9"), "a command that nobody waits for is ended all the same"
            for how, status in ((kube.die, "Stopped"), (kube.remove, "Removed")):
                process = await sb.spawn("sleep", [FOREVER])
                kube.cut()
                how("box")
                with pytest.raises(sdk.SandboxEnded, match="ended while the command ran") as e:
                    await process.wait()
                assert e.value.hint == f"status: {status}"
                if status == "Stopped":
                    await sb.start()

    go(run())


@pytest.mark.parametrize("how", [{}, V4], ids=["v5", "v4"])
def test_processes(place, how):
    needs_namespaces()

    async def run():
        async with sandbox(place, **how) as (_, sb):
            process = await sb.spawn("cat", stdin=True)
            await process.write_stdin("hello\n" + "\0\r\n" * 20000)
            await process.close_stdin()
            assert (await process.wait()).stdout == "hello\n" + "\0\r\n" * 20000
            shell = await sb.spawn("sh", tty=True, size=(31, 97))
            await shell.write_stdin("stty size; exit 5\n")
            r = await shell.wait()
            assert "31 97" in r.stdout and r.exit_code == 5
            context = await sb.code_context()
            assert (await context.run("x = 6\nx * 7")).text == "42"
            assert (await context.run("x")).text == "6"
            await context.close()

    go(run())


# --- the life of pods ---------------------------------------------------------------------------


def test_pods_that_cannot_run(place):
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            with pytest.raises(sdk.ImageError, match="ErrImagePull"):
                await client.create(Spec("a", image="no/such:1"))
            with pytest.raises(sdk.SecretError, match="api-key"):
                await client.create(Spec("a", image=POD, secrets=("API_KEY",)))
            kube.hold.add(POD)
            client._create_timeout = 0.5
            with pytest.raises(sdk.MsbError, match="did not run within"):
                await client.create(Spec("a", image=POD))
            assert kube.store["pods"] == {}, "nothing is left"
            kube.hold.clear()
            client._create_timeout = 60
            kube.secrets["api-key"] = {"API_KEY": "v4lue"}
            async with await client.create(Spec("a", image=POD, secrets=("API_KEY",))) as sb:
                assert (await sb.shell("echo $API_KEY")).stdout == "v4lue\n"
            assert kube.store["pods"] == {}

    go(run())


def test_create_cancelled_at_any_moment(place):
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            for ms in (0, 5, 20, 50, 100):
                task = asyncio.ensure_future(client.create(Spec(f"c{ms}", image=POD)))
                await asyncio.sleep(ms / 1000)
                task.cancel()
                try:
                    await (await task).remove()
                except asyncio.CancelledError:
                    pass
                assert await client.list() == []
            await client.create(Spec("mine", image=POD))
            with pytest.raises(sdk.SandboxExists):
                await client.create(Spec("mine", image=POD))
            assert await client.list() == ["mine"], "the name of another is not ours to remove"
            old = kube.store["pods"]["mine"]["metadata"]["uid"]
            await client.create(Spec("mine", image=POD, replace=True))
            assert kube.store["pods"]["mine"]["metadata"]["uid"] != old

    go(run())


def own_policies(kube):
    return [p for n, p in kube.store["networkpolicies"].items() if not n.startswith("msb-")]


def selects(policy, pod):
    return policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_failed_create_opens_no_network(place):
    """Not that of the sandbox that has the name already; and it leaves no policy behind."""
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            for egress in ((), ("localhost",)):
                sb = await client.create(Spec("demo", image=POD, egress=egress))
                before = json.dumps(own_policies(kube))
                with pytest.raises(sdk.SandboxExists):
                    await client.create(Spec("demo", image=POD, egress=("localhost",)))
                assert json.dumps(own_policies(kube)) == before
                assert [selects(p, kube.store["pods"]["demo"]) for p in own_policies(kube)] == [True] * len(egress)
                await sb.remove()
            with pytest.raises(sdk.ImageError):
                await client.create(Spec("demo", image="no/such:1", egress=("localhost",)))
            assert own_policies(kube) == []
            # One without a policy of its own has no network.
            pod = pod_of(egress=("localhost",))
            assert [p["spec"]["egress"] for p in kube.store["networkpolicies"].values() if selects(p, pod)] == [[]]

    go(run())


def test_a_policy_that_is_the_next_ones_is_not_removed(place):
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            spec = Spec("a", image=POD, egress=("localhost",))
            await client.create(spec)
            kube.linger = None
            old = asyncio.ensure_future(client.remove("a", force=True))
            while not kube.store["pods"]["a"]["metadata"].get("deletionTimestamp"):
                await asyncio.sleep(0.005)
            new = asyncio.ensure_future(client.create(spec))
            while sum(r.startswith("POST") and r.endswith("/pods") for r in kube.requests) < 2:
                await asyncio.sleep(0.005)
            kube.remove("a")
            await asyncio.gather(old, new)
            assert [selects(p, kube.store["pods"]["a"]) for p in own_policies(kube)] == [True]

    go(run())


def test_a_server_in_trouble(place):
    """It restarts, is overloaded, loses an answer: the client tries again where that is safe."""
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            kube.trouble = [503, 429]
            kube.cut_answers = 1
            with pytest.raises(sdk.SandboxUnavailable):
                await client.create(Spec("a", image=POD))  # its policy may have been made, or not: it says so
            sb = await client.create(Spec("a", image=POD))
            kube.trouble = [500, 503]
            assert (await sb.exec("echo", ["x"])).stdout == "x\n"
            kube.trouble = [503, 502]
            assert await client.list() == ["a"]
            # An ongoing deletion does not prevent the creation of a new one with that name.
            kube.linger = None
            old = asyncio.ensure_future(client.remove("a", force=True))
            while not kube.store["pods"]["a"]["metadata"].get("deletionTimestamp"):
                await asyncio.sleep(0.005)
            new = asyncio.ensure_future(client.create(Spec("a", image=POD)))
            while sum(r.startswith("POST") and r.endswith("/pods") for r in kube.requests) < 2:
                await asyncio.sleep(0.005)
            kube.remove("a")
            await asyncio.gather(old, new)
            assert await client.list() == ["a"] and (await sb.exec("true")).ok

    go(run())


def test_who_is_refused(place):
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            kube.tokens = set()
            with pytest.raises(sdk.SandboxUnavailable, match="does not know us"):
                await client.list()
            other = sdk.KubernetesClient(kubeconfig=kube.kubeconfig(), namespace="forbidden")
            kube.tokens = {fakekube.TOKEN}
            with pytest.raises(sdk.PolicyRefused):
                await other.list()
            with pytest.raises(sdk.SandboxNotFound):
                await client.get("a/b")
            kube.store["pods"]["stranger"] = {"metadata": {"name": "stranger", "uid": "u", "labels": {}}, "status": {}}
            with pytest.raises(sdk.SandboxNotFound, match="not a sandbox"):
                await client.remove("stranger", force=True)
            assert "stranger" in kube.store["pods"]
            flags = client._api.cluster.context().verify_flags
            assert not flags & ssl.VERIFY_X509_STRICT, "certificates of clusters lack what that asks for"
            # Another server's certificate.
            path = place / "other.json"
            doc = json.loads((place / "kubeconfig.json").read_text())
            doc["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere.example"
            path.write_text(json.dumps(doc))
            stranger = sdk.KubernetesClient(kubeconfig=str(path))
            before = len(kube.headers)
            with pytest.raises(sdk.SandboxUnavailable, match="not who it should be"):
                await stranger.list()
            assert len(kube.headers) == before, "our token was not sent"
            doc["clusters"][0]["cluster"].pop("tls-server-name")
            doc["clusters"][0]["cluster"].pop("certificate-authority-data")
            path.write_text(json.dumps(doc))
            with pytest.raises(sdk.SandboxUnavailable, match="not who it should be"):
                await sdk.KubernetesClient(kubeconfig=str(path)).list()

    go(run())


def test_a_credential_that_was_revoked(place):
    """Its plugin is asked for another one: for a command, as for any request."""
    needs_namespaces()
    plugin, token = place / "plugin", place / "token"
    plugin.write_text(f"""#!/bin/sh
echo '{{"status": {{"token": "'$(cat {token})'", "expirationTimestamp": "2999-01-01T00:00:00Z"}}}}'
""")
    plugin.chmod(0o755)

    async def run():
        async with fakekube.FakeKube(place) as kube:
            user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
            client = sdk.KubernetesClient(kubeconfig=kube.kubeconfig(**user))
            token.write_text(fakekube.TOKEN)
            sb = await client.create(Spec("a", image=POD))
            kube.tokens = {"new"}
            with pytest.raises(sdk.SandboxUnavailable, match="does not know us"):
                await sb.exec("true")
            token.write_text("new")
            assert (await sb.exec("true")).ok
            await sb.remove()

    go(run())


def test_listing_labels_network_workspace(place):
    needs_namespaces()

    async def run():
        async with cluster(place, storage_class="fast") as (kube, client):
            for i in range(5):  # the server's pages have two entries
                await client.create(Spec(f"Box.{i}", image=POD, labels={"n": str(i % 2)}))
            assert sorted(await client.list()) == [f"Box.{i}" for i in range(5)]
            assert sorted(await client.list(labels={"n": "1"})) == ["Box.1", "Box.3"]
            info = await (await client.get("Box.1")).info()
            assert info.name == "Box.1" and info.labels == {"n": "1"} and info.image == POD
            sb = await client.create(Spec("net", image=POD, egress=("localhost",), workspace="task", ports=("80",)))
            (policy,) = own_policies(kube)
            assert {"ipBlock": {"cidr": "127.0.0.1/32"}} in policy["spec"]["egress"][0]["to"]
            assert policy["metadata"]["ownerReferences"][0]["uid"] == kube.store["pods"]["net"]["metadata"]["uid"]
            assert kube.store["persistentvolumeclaims"]["task"]["spec"]["storageClassName"] == "fast"
            assert await sb.ports() == {80: ("10.1.2.3", 80)} and await sb.logs(tail=2) == "line 2\nline 3\n"
            await sb.set_timeout(1000)
            assert kube.store["pods"]["net"]["spec"]["activeDeadlineSeconds"] >= 1000
            await sb.stop(timeout=100)
            assert kube.store["pods"]["net"]["spec"]["activeDeadlineSeconds"] >= 1000, "no deadline was needed for that"
            with pytest.raises(sdk.SandboxNotRunning):
                await sb.exec("true")
            await sb.start()
            assert (await sb.exec("true")).ok and own_policies(kube) == [policy]
            assert selects(policy, kube.store["pods"]["net"])
            await sb.remove()
            assert own_policies(kube) == [] and "task" in kube.store["persistentvolumeclaims"]
            with pytest.raises(sdk.SandboxNotFound):
                await sb.exec("true")
            spec = dataclasses.replace(Spec("w", image=POD), egress=("no-such-name.invalid",))
            with pytest.raises(sdk.MsbError, match="no-such-name.invalid"):
                await client.create(spec)

    go(run())


def test_without_await(place):
    needs_namespaces()
    box = {}

    async def serve(ready, over):
        async with fakekube.FakeKube(place) as kube:
            box["config"] = kube.kubeconfig()
            ready.set()
            await asyncio.get_running_loop().run_in_executor(None, over.wait)

    import threading
    ready, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(ready, over)))
    thread.start()
    try:
        ready.wait(60)
        client = sdk.sync.KubernetesClient(kubeconfig=box["config"])
        with client.create(Spec("s", image=POD)) as sb:
            assert client.list() == ["s"] and sb.exec("echo", ["x"]).stdout == "x\n"
        assert client.list() == []
    finally:
        over.set()
        thread.join()


def test_in_the_style_of_others(place):
    needs_namespaces()

    async def run():
        async with cluster(place) as (kube, client):
            async with await sdk.AsyncSandbox.create(POD, client=client, envs={"A": "b"}) as s:
                assert (await s.commands.run("echo $A")).stdout == "b\n"
                assert (await s.run_code("6 * 7")).text == "42"
                with pytest.raises(sdk.FileNotFound):
                    await s.files.read("/no/such/file")
                again = sdk.Sandbox(await sdk.AsyncSandbox.connect(s.sandbox_id, client=client))
                assert again.sandbox_id == s.sandbox_id
            assert kube.store["pods"] == {}

    go(run())
