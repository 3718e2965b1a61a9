"""The SDK in a real cluster: the conformance tests that local sandboxes pass, and what only a cluster has."""
import asyncio
import os
import re

import pytest

from k8skit import NODE, ROOT, RUNTIME_CLASS, apply, delete, get, kubectl, pod, wait_phase

from sdkkit import conformance, file_conformance, go, sdk  # noqa: E402  (k8skit says where it is)

Spec = sdk.SandboxSpec
REQUESTS = {"imagePullPolicy": "Never", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}


def client(**more):
    return sdk.KubernetesClient(runtime_class=RUNTIME_CLASS, container=REQUESTS, **more)


def test_conformance():
    go(conformance(client(), Spec, sdk.ExecResult, small="alpine:3", local=False))


@pytest.fixture
def box():
    made = client()
    go(made.create(Spec("box", image="alpine:3", memory_mib=128, env={"A": "b"})))
    yield sdk.KubernetesHandle(made, "box")
    go(made.remove("box", force=True))


async def gone(sb, mark):
    for _ in range(300):
        r = await sb.shell("for f in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < $f 2>/dev/null; done")
        if mark not in r.stdout.splitlines():
            return True
        await asyncio.sleep(0.1)
    return False


def test_commands(box):
    async def run():
        odd = ["a b", "$HOME", "'\"`;|&", "", "ünïcode", "line\nbreak", "x" * 50000]
        assert (await box.exec("printf", ["%s|", *odd])).stdout == "".join(a + "|" for a in odd)
        r = await box.shell("echo $A $B; pwd; echo err >&2; exit 42", env={"B": "c"}, cwd="/usr")
        assert (r.stdout, r.stderr, r.exit_code) == ("b c\n/usr\n", "err\n", 42)
        for size in (0, 5, 65537, 500000):
            assert (await box.exec("wc", ["-c"], stdin=b"x" * size)).stdout.strip() == str(size)
        assert (await box.exec("no-such-program")).exit_code == 127
        process = await box.spawn("cat", stdin=True)
        await process.write_stdin("hello\n")
        await process.close_stdin()
        assert (await process.wait()).stdout == "hello\n"
        shell = await box.spawn("sh", tty=True, size=(31, 97))
        await shell.write_stdin("stty size; exit 5\n")
        r = await shell.wait()
        assert "31 97" in r.stdout and r.exit_code == 5
        results = await asyncio.gather(*(box.exec("echo", [str(i)]) for i in range(10)))
        assert [int(r.stdout) for r in results] == list(range(10))

    go(run())


def test_ends(box):
    async def run():
        r = await box.shell("echo before; sleep 98761 & sleep 98761", timeout=2)
        assert r == sdk.ExecResult("before\n", "", 124, True, True) and await gone(box, "98761")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(box.exec("sleep", ["98762"]), 2)
        assert await gone(box, "98762")
        process = await box.spawn("sh", ["-c", "sleep 98763"])
        process._channel.abort()
        assert await gone(box, "98763"), "its lifeline was cut"
        process = await box.spawn("sleep", ["98764"])
        await process.terminate()
        assert (await process.wait()).exit_code == 143
        r = await box.shell("sleep 98765 & echo begun")
        assert r.stdout == "begun\n" and r.ok

    go(run())


def test_files_of_an_ordinary_user():
    async def run():
        async with await client().create(Spec("user", image="alpine:3", memory_mib=128, user="1000:1000")) as sb:
            await file_conformance(sb, "/tmp/mine")
            for work in (sb.files.write("/etc/mine", "x"), sb.files.write("/etc/mine", "x", atomic=True),
                         sb.files.mkdir("/srv/mine"), sb.files.remove("/etc/passwd"), sb.files.chmod("/etc/passwd", 0o666)):
                with pytest.raises(PermissionError):
                    await work
            info = await sb.files.write("/tmp/x", "")
            assert (info.uid, info.gid) == (1000, 1000)

    go(run())


def test_secrets_network_workspace():
    kubectl("create", "secret", "generic", "api-key", "--from-literal=API_KEY=v4lue")
    apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
           "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "here",
                    "hostPath": {"path": os.path.join(os.path.dirname(os.environ["K8S_LOGS"]), "disk"), "type": "DirectoryOrCreate"}}})

    async def run():
        made = client(storage_class="here")
        spec = Spec("rich", image="alpine:3", memory_mib=128, secrets=("API_KEY",), egress=("localhost",), workspace="task")
        for text in ("one", "two"):
            async with await made.create(spec) as sb:
                r = await sb.shell(f"echo $API_KEY; echo {text} >> /workspace/f; cat /workspace/f; getent hosts localhost")
                assert r.stdout.startswith("v4lue\none\n") and ("two" in r.stdout) == (text == "two")
                label = {"msb/egress": get("pod", "rich")["metadata"]["labels"]["msb/egress"]}
                name = f"rich-egress-{label['msb/egress']}"
                assert get("networkpolicy", name)["spec"]["podSelector"] == {"matchLabels": label}
            kubectl("get", "networkpolicy", name, code=1)
        with pytest.raises(sdk.SecretError):
            await made.create(Spec("poor", image="alpine:3", secrets=("NO_SUCH_KEY",)))
        with pytest.raises(sdk.ImageError):
            await made.create(Spec("poor", image="no-such-image:1"))
        assert await made.list() == []

    go(run())


def test_from_inside_of_the_cluster():
    """A pod with a service account that may do what docs/kubernetes.md says, and no more."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    role = re.search(r"```yaml\n(.*?)```", text, re.S)[1]
    kubectl("create", "namespace", "agents")
    kubectl("apply", "-n", "agents", "-f", "-", input=role)
    kubectl("create", "serviceaccount", "agent", "-n", "agents")
    kubectl("create", "rolebinding", "agent", "--role=msb-sandboxes", "--serviceaccount=agents:agent", "-n", "agents")
    code = ("import asyncio, msb\n"
            f"c = msb.KubernetesClient(runtime_class={RUNTIME_CLASS!r}, container={REQUESTS!r})\n"
            "r = asyncio.run(c.run_shell('echo from $((6 * 7))', image='alpine:3', memory_mib=128))\n"
            "print(r.stdout, r.exit_code)")
    doc = pod("agent", {
        "image": "docker.io/library/python:3.11-slim", "command": ["python", "-c", code],
        "env": [{"name": "PYTHONPATH", "value": "/sdk"}, {"name": "KUBERNETES_SERVICE_HOST", "value": NODE},
                {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"}],
        "volumeMounts": [{"name": "sdk", "mountPath": "/sdk", "readOnly": True}]},
        runtime_class="runc", serviceAccountName="agent",
        volumes=[{"name": "sdk", "hostPath": {"path": str(ROOT / "sdk" / "python")}}])
    doc["metadata"]["namespace"] = "agents"
    apply(doc)
    kubectl("config", "set-context", "--current", "--namespace=agents")
    try:
        wait_phase("agent", "Succeeded")
        assert kubectl("logs", "agent") == "from 42\n 0\n"
        delete("agent")
    finally:
        kubectl("config", "set-context", "--current", "--namespace=default")
