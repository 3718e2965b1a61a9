"""A Kubernetes of one node, for as long as one command runs.

    tests/k8s/cluster.py [--runtime msb-runtime] [--keep-logs DIR] -- COMMAND...

Everything is in mount, network and pid namespaces of its own and in a temporary directory: etcd, the API server, the
controller manager, the scheduler, a kubelet and containerd. The command finds `KUBECONFIG`, kubectl on its path, and
RuntimeClasses `runc` and, with `--runtime`, `msb`. When it ends, the namespaces' first process does, and with that all
the rest. Needs root.
"""
import argparse
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import imagekit  # noqa: E402

NODE, PODS, SERVICES = "10.200.0.1", "10.244.0.0/24", "10.96.0.0/24"
SERVICE = "10.96.0.1"  # the API server's own
CGROUP = "msb-k8s"
TOKEN = "admin-of-the-test-cluster"
PAUSE = "localhost/pause:3.2"
READY_SECONDS = 300 * float(os.environ.get("MSB_TEST_SLOW", "1"))

# A kubelet wants these, and would write them: it gets copies.
SYSCTLS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
           "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}


def say(text):
    print(f"k8s: {text}", flush=True)


def run(*cmd, **kw):
    return subprocess.run([str(c) for c in cmd], check=True, **kw)


def wait_for(condition, what):
    until = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} took more than {READY_SECONDS} s")
        time.sleep(0.2)


# --- images -------------------------------------------------------------------------------------


def pause_image(directory, program):
    """Upstream's pause, statically linked, and nothing else."""
    layer = imagekit.Tar()
    layer.add("pause", pathlib.Path(program).read_bytes(), 0o755)
    config = {"Entrypoint": ["/pause"], "User": "65535:65535"}
    layout = imagekit.Layout(directory / "pause")
    layout.tag(layout.image([layer.bytes()], config), PAUSE)
    layout.entries[0]["annotations"]["io.containerd.image.name"] = PAUSE
    layout.write_index()
    return layout.archive(directory / "pause.tar")


def images(directory, programs):
    """Archives for `ctr images import`."""
    yield pause_image(directory, programs / "pause")
    yield imagekit.alpine().archive("docker", directory / "alpine.tar", "docker.io/library/alpine:3")
    yield imagekit.python_slim().archive("docker", directory / "python.tar", "docker.io/library/python:3.11-slim")


# --- configuration ------------------------------------------------------------------------------


def handler(name, binary):
    key = f'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}'
    return f"""
[{key}]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["msb.*", "msb.*/*"]
  container_annotations = ["msb.*", "msb.*/*"]
  [{key}.options]
    BinaryName = "{binary}"
"""


def overlay_works(directory):
    """Not on top of another overlay, as in most containers."""
    for name in ("lower", "upper", "work", "merged"):
        (directory / name).mkdir()
    options = ",".join(f"{k}dir={directory / k}" for k in ("lower", "upper", "work"))
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, directory / "merged"], capture_output=True)
    if done.returncode == 0:
        run("umount", directory / "merged")
    return done.returncode == 0


def write_containerd(place, runtimes):
    (place / "overlay").mkdir()
    snapshotter = "overlayfs" if overlay_works(place / "overlay") else "native"
    (place / "containerd.toml").write_text(f"""
version = 2
root = "{place}/containerd"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{place}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  snapshotter = "{snapshotter}"
""" + "".join(handler(name, binary) for name, binary in runtimes.items()))
    (place / "cni").mkdir()
    (place / "cni" / "10-bridge.conflist").write_text(f"""
{{"cniVersion": "0.4.0", "name": "testbed", "plugins": [
  {{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
    "ipam": {{"type": "host-local", "dataDir": "{place}/ipam", "ranges": [[{{"subnet": "{PODS}"}}]],
              "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
""")


def write_kubelet(place):
    (place / "resolv.conf").touch()
    (place / "kubelet.yaml").write_text(f"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupRoot: /{CGROUP}
failSwapOn: false
oomScoreAdj: 0
resolvConf: {place}/resolv.conf
clusterDomain: cluster.local
evictionHard: {{memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
readOnlyPort: 0
syncFrequency: 5s
""")


def write_access(place):
    """Certificates, the admin's token and a kubeconfig."""
    pki = place / "pki"
    pki.mkdir()
    names = f"subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:{NODE},IP:{SERVICE}"
    imagekit.make_ca(pki, names)
    run("openssl", "genrsa", "-out", pki / "sa.key", "2048", stderr=subprocess.DEVNULL)
    (place / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    ca = base64.b64encode((pki / "ca.pem").read_bytes()).decode()
    (place / "kubeconfig").write_text(f"""
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:6443", certificate-authority-data: {ca}}}}}]
users: [{{name: u, user: {{token: {TOKEN}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
""")


# --- inside -------------------------------------------------------------------------------------


def private_view(place):
    """Directories of the system that the services write to are ours here."""
    run("mount", "--make-rprivate", "/")
    if os.path.ismount("/sys/fs/cgroup/unified"):  # beside v1: runtimes do not agree on what that means
        run("umount", "/sys/fs/cgroup/unified")
    for path in ("/var/lib", "/var/log"):
        ours = place / path.strip("/").replace("/", "-")
        ours.mkdir()
        run("mount", "--bind", ours, path)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run")
    for name in ("kubelet", "cni"):
        pathlib.Path("/var/lib", name).mkdir()
    for path, value in SYSCTLS.items():
        copy = place / path.replace("/", "-")
        copy.write_text(f"{value}\n")
        run("mount", "--bind", copy, f"/proc/sys/{path}")
    run("mount", "--make-rshared", "/")


def network():
    for command in ("link set lo up", "link add k8snode type bridge", f"addr add {NODE}/24 dev k8snode",
                    "link set k8snode up", f"route add default via {NODE} dev k8snode"):
        run("ip", *command.split())
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


class Services:
    """The processes; each has a log."""

    def __init__(self, place):
        self.place = place
        self.running = {}
        (place / "log").mkdir()

    def start(self, *cmd):
        name = os.path.basename(str(cmd[0]))
        with (self.place / "log" / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen([str(c) for c in cmd], stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=subprocess.STDOUT)

    def check(self):
        for name, process in self.running.items():
            if process.poll() is not None:
                log = (self.place / "log" / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} exited with {process.returncode}:\n{log[-3000:]}")
        return True


def answers(*cmd):
    return subprocess.run([str(c) for c in cmd], capture_output=True).returncode == 0


def start(place, services):
    pki = place / "pki"
    kubeconfig = place / "kubeconfig"
    services.start("containerd", "-c", place / "containerd.toml")
    services.start("etcd", "--data-dir", place / "etcd", "--listen-client-urls", "http://127.0.0.1:2379",
                   "--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380",
                   "--log-level", "warn", "--unsafe-no-fsync")
    services.start(
        "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443", "--bind-address=0.0.0.0",
        f"--advertise-address={NODE}", f"--tls-cert-file={pki}/tls.pem", f"--tls-private-key-file={pki}/tls.key",
        f"--token-auth-file={place}/tokens.csv", "--authorization-mode=RBAC", "--anonymous-auth=true",
        f"--service-cluster-ip-range={SERVICES}", "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.key", f"--service-account-signing-key-file={pki}/sa.key",
        "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true", f"--cert-dir={pki}")
    wait_for(lambda: services.check() and answers("kubectl", "get", "--raw", "/readyz"), "the API server")
    services.start("kube-controller-manager", f"--kubeconfig={kubeconfig}", "--leader-elect=false",
                   f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.pem",
                   f"--cert-dir={pki}", "--controllers=*,-tokencleaner,-bootstrapsigner,-csrsigning,-csrapproving",
                   "--use-service-account-credentials=false")
    services.start("kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false", f"--cert-dir={pki}")
    services.start("kubelet", f"--config={place}/kubelet.yaml", f"--kubeconfig={kubeconfig}",
                   "--container-runtime=remote", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
                   "--hostname-override=node1", f"--node-ip={NODE}", f"--cert-dir={pki}",
                   f"--volume-plugin-dir={place}/plugins", "-v=2")


def load_images(place):
    wait_for(lambda: answers("ctr", "version"), "containerd")
    for archive in images(place, pathlib.Path(os.environ["K8S_BIN"])):
        run("ctr", "-n", "k8s.io", "images", "import", archive, stdout=subprocess.DEVNULL)
        pathlib.Path(archive).unlink()


def inside(args):
    """The first process of the namespaces. Whatever ends it ends everything."""
    place = pathlib.Path(args.inside)
    runtimes = {"runc": shutil.which("runc"), **({"msb": args.runtime} if args.runtime else {})}
    private_view(place)
    network()
    write_access(place)
    write_containerd(place, runtimes)
    write_kubelet(place)
    os.environ["KUBECONFIG"] = str(place / "kubeconfig")
    services = Services(place)
    say("starting")
    start(place, services)
    load_images(place)
    classes = [{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": n}, "handler": n} for n in runtimes]
    run("kubectl", "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": classes}).encode(),
        stdout=subprocess.DEVNULL)
    wait_for(lambda: services.check() and answers("kubectl", "get", "serviceaccount", "default"), "the service account")
    wait_for(lambda: services.check() and b"True" in subprocess.run(
        ["kubectl", "get", "node", "node1", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"],
        capture_output=True).stdout, "the node")
    say("ready")
    os.environ["K8S_RUNTIME_CLASS"] = "msb" if args.runtime else "runc"
    os.environ["K8S_LOGS"] = str(place / "log")
    code = subprocess.run(args.command).returncode
    subprocess.run(["kubectl", "delete", "pods", "--all", "--all-namespaces", "--grace-period=1", "--timeout=60s"],
                   capture_output=True)
    if code and args.keep_logs:
        shutil.copytree(place / "log", args.keep_logs, dirs_exist_ok=True)
    return code


# --- outside ------------------------------------------------------------------------------------


def cgroups():
    """Where our group is in each hierarchy."""
    base = pathlib.Path("/sys/fs/cgroup")
    roots = [base] if (base / "cgroup.controllers").exists() else [d for d in base.iterdir() if d.is_dir() and not d.is_symlink()]
    return [root / CGROUP for root in roots if (root / "cgroup.procs").exists()]


def make_cgroups():
    for group in cgroups():
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # v1: a group without has no processes
            if (group / name).exists():
                (group / name).write_text((group.parent / name).read_text())


def remove_cgroups():
    for group in cgroups():
        for directory, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                pass


def outside(args):
    programs = subprocess.run([HERE / "build"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    place = pathlib.Path(tempfile.mkdtemp(prefix="msb-k8s-"))
    env = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin", K8S_BIN=programs)
    again = [sys.executable, "-B", __file__, "--inside", place]
    for option in ("runtime", "keep_logs"):
        if getattr(args, option):
            again += [f"--{option.replace('_', '-')}", os.path.abspath(getattr(args, option))]
    make_cgroups()
    child = subprocess.Popen(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                              "--propagation", "private", *map(str, again), "--", *args.command], env=env)
    try:
        return child.wait()
    finally:
        child.kill()
        child.wait()
        remove_cgroups()
        subprocess.run(["rm", "-rf", "--one-file-system", place], check=False)


def main():
    parser = argparse.ArgumentParser(description="A Kubernetes for as long as a command runs.")
    parser.add_argument("--runtime", help="the OCI runtime of RuntimeClass msb")
    parser.add_argument("--keep-logs", metavar="DIR", help="where the services' logs go if the command fails")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return inside(args) if args.inside else outside(args)


if __name__ == "__main__":
    sys.exit(main())
