"""Pods by the interface that kubelets use (CRI), of containerd with runc's shim and msb as its runtime."""
import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tarfile
import tempfile

import pytest

import imagekit
from conftest import MSB, SLOW, need, wait_for
from imagekit import sha256

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containerd as root")

CONFIG = """version = 2
root = "{0}/root"
state = "{0}/state"
[grpc]
address = "{0}/c.sock"
[ttrpc]
address = "{0}/t.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/shell:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{0}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
default_runtime_name = "msb"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.msb]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.msb.options]
BinaryName = "{0}/msb-runtime"
Root = "{0}/msb"
"""


def network(leases):
    ranges = {"ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": {"type": "host-local", "dataDir": leases, **ranges}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def varint(n):
    out = b""
    while n > 0x7f:
        out, n = out + bytes([n & 0x7f | 0x80]), n >> 7
    return out + bytes([n])


def message(fields):
    """Protocol Buffers, from {number: int, text, nested message, or a list of these}."""
    out = b""
    for number, value in fields.items():
        for v in value if isinstance(value, list) else [value]:
            if isinstance(v, int):
                out += varint(number << 3) + varint(v)
            else:
                body = message(v) if isinstance(v, dict) else v.encode()
                out += varint(number << 3 | 2) + varint(len(body)) + body
    return out


def fields(data):
    """{number: the first value}: numbers, and bytes of texts and messages."""
    out, at = {}, 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            byte, at = data[at], at + 1
            n |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return n
    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        out.setdefault(key >> 3, value)
    return out


def image():
    """A docker-archive with a shell."""
    layer = imagekit.shell_tar()
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sleep", "100000"], "Env": ["PATH=/bin"]},
                         "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": ["localhost/shell:1"], "Layers": ["layer.tar"]}]).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, body in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


class Node:
    """A daemon with everything of its own, the node's network included."""

    def __init__(self, directory):
        self.dir, self.name, self.pods = directory, f"msb-cri-{os.getpid()}", []
        (directory / "msb-runtime").symlink_to(MSB)
        (directory / "config.toml").write_text(CONFIG.format(directory))
        (directory / "cni").mkdir()
        (directory / "cni/net.conflist").write_text(json.dumps(network(f"{directory}/leases")))
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self.log = open(directory / "log", "wb")
        self.daemon = subprocess.Popen(["nsenter", f"--net=/run/netns/{self.name}", "containerd", "-c", directory / "config.toml"],
                                       stdout=self.log, stderr=self.log)

    def prepare(self):
        wait_for(lambda: self.ctr("version").returncode == 0, 30)
        # containerd 2 unpacks images itself, where 1 leaves that to ctr, and not for this snapshotter.
        local = ["--local"] if b"--local" in self.ctr("images", "import", "--help").stdout else []
        p = self.ctr("-n", "k8s.io", "images", "import", *local, "--snapshotter", "native", "-", input=image())
        assert p.returncode == 0, p.stderr
        wait_for(lambda: b"localhost/shell" in self.ctr("-n", "k8s.io", "images", "ls").stdout)

    def ctr(self, *args, **kw):
        return subprocess.run(["ctr", "-a", self.dir / "c.sock", *args], capture_output=True, timeout=60 * SLOW, **kw)

    def call(self, method, request):
        """A gRPC call: a length before each message, over HTTP/2."""
        body = message(request)
        p = subprocess.run(["curl", "-sS", "--http2-prior-knowledge", "--unix-socket", self.dir / "c.sock", "-H", "te: trailers",
                            "-H", "content-type: application/grpc", "--data-binary", "@-", "-D", self.dir / "headers",
                            f"http://localhost/runtime.v1.RuntimeService/{method}"],
                           input=struct.pack(">BI", 0, len(body)) + body, capture_output=True, timeout=90 * SLOW)
        assert p.returncode == 0 and "grpc-status: 0" in (self.dir / "headers").read_text(), (
            method, p.stderr, (self.dir / "headers").read_text())
        return fields(p.stdout[5:])

    def run(self, config):
        self.pods.append(self.call("RunPodSandbox", {1: config})[1].decode())
        return self.pods[-1]

    def start(self, pod, config, name, script, mounts=()):
        container = {1: {1: name}, 2: {1: "localhost/shell:1"}, 3: ["/bin/sh", "-c", script], 11: f"{name}.log",
                     15: {2: {3: {2: 1}}},  # processes of its own, as kubelets have it
                     7: [{1: to, 2: str(of), 3: int(ro)} for to, of, ro in mounts]}
        cid = self.call("CreateContainer", {1: pod, 2: container, 3: config})[1].decode()
        self.call("StartContainer", {1: cid})
        return cid

    def exec(self, cid, *argv):
        out = self.call("ExecSync", {1: cid, 2: list(argv), 3: 30})
        return out.get(3, 0), out.get(1, b"").decode()

    def status(self, cid):
        """running: 1, exited: 2; and the exit code."""
        status = fields(self.call("ContainerStatus", {1: cid})[1])
        return status.get(3, 0), status.get(7, 0)

    def stop(self):
        for pod in self.pods:
            try:
                self.call("StopPodSandbox", {1: pod})
                self.call("RemovePodSandbox", {1: pod})
            except AssertionError:  # the test has done so
                pass
        self.daemon.terminate()
        self.daemon.wait(30)
        self.log.close()
        subprocess.run(["ip", "netns", "del", self.name], check=True)


@pytest.fixture(scope="module")
def node():
    need("containerd", "ctr", "containerd-shim-runc-v2", "curl", "ip", "nsenter")
    if not os.path.exists("/usr/lib/cni/bridge"):
        pytest.skip("there is no CNI plugin")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="msb-cri-"))  # it wants a short path
    daemon = Node(directory)
    try:
        daemon.prepare()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(directory, ignore_errors=True)


def test_pod(node, tmp_path):
    """A pod with an address, two containers, probes, a volume, a configuration that changes, logs, and its end."""
    logs, volume, conf = (tmp_path / n for n in ("logs", "volume", "conf"))
    for d in (logs, volume, conf, conf / "one", conf / "two"):
        d.mkdir()
    (conf / "one/key").write_text("old\n")
    (conf / "two/key").write_text("new\n")
    (conf / "..data").symlink_to("one")
    (conf / "key").symlink_to("..data/key")
    config = {1: {1: "p", 2: "uid", 3: "default"}, 2: "the-pod", 3: str(logs), 8: {1: "/msb-cri", 2: {1: {2: 1}}}}
    pod = node.run(config)
    address = fields(fields(node.call("PodSandboxStatus", {1: pod})[1])[5])[1].decode()
    mounts = [("/v", volume, False), ("/conf", conf, True)]
    web = node.start(pod, config, "web", "mkdir /www; echo page >/www/index.html; httpd -h /www -p 80; "
                     "trap 'exit 5' TERM; while :; do sleep 0.1; done", mounts)
    wait_for(lambda: node.exec(web, "/bin/wget", "-qO-", "http://127.0.0.1/")[1] == "page\n")
    # The node reaches it at the pod's address, as its probes do.
    wget = ["nsenter", f"--net=/run/netns/{node.name}", imagekit.BUSYBOX, "wget", "-qO-", f"http://{address}/"]
    wait_for(lambda: subprocess.run(wget, capture_output=True, timeout=30).stdout == b"page\n")
    ask = node.start(pod, config, "ask", "wget -qO- http://127.0.0.1/; hostname; cat /conf/key; touch /conf/x; touch /v/seen; exit 3", mounts)
    wait_for(lambda: node.status(ask) == (2, 3))
    text = (logs / "ask.log").read_text()
    assert "stdout F page" in text and "stdout F the-pod" in text and "stdout F old" in text and "Read-only" in text
    assert node.exec(web, "/bin/sh", "-c", "ls /v; exit 4") == (4, "seen\n")
    os.symlink("two", conf / "..tmp")  # as a kubelet changes it
    os.rename(conf / "..tmp", conf / "..data")
    wait_for(lambda: node.exec(web, "/bin/cat", "/conf/key") == (0, "new\n"))
    assert node.status(web) == (1, 0)
    node.call("StopContainer", {1: web, 2: 20})
    assert node.status(web) == (2, 5)
    node.call("StopPodSandbox", {1: pod})
    node.call("RemovePodSandbox", {1: pod})
    assert list((node.dir / "msb/k8s.io/containers").iterdir()) == []
