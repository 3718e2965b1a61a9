"""deploy/kubernetes: what its files name is there, and the script that makes msb a node's runtime does so, and undoes
it. The node is a directory; `make test-k8s` shows the files to a real API server."""
import os
import subprocess

import pytest

from conftest import ROOT

DEPLOY = ROOT / "deploy" / "kubernetes"
SCRIPT = DEPLOY / "node-install"

V2 = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
"""


def documents(path):
    yaml = pytest.importorskip("yaml")
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


# --- the files ----------------------------------------------------------------------------------


def test_the_files_fit_together():
    (kustomization,) = documents(DEPLOY / "kustomization.yaml")
    there = {p.name for p in DEPLOY.glob("*.yaml")}
    assert set(kustomization["resources"]) == there - {"kustomization.yaml"}
    maps = {m["name"]: m["files"] for m in kustomization["configMapGenerator"]}
    assert all((DEPLOY / f).exists() for files in maps.values() for f in files)
    found = {d["kind"]: d for p in there - {"kustomization.yaml"} for d in documents(DEPLOY / p)}
    assert kustomization["namespace"] == found["Namespace"]["metadata"]["name"]
    pod = found["DaemonSet"]["spec"]["template"]
    assert found["DaemonSet"]["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    assert {m["name"] for m in container["volumeMounts"]} == set(volumes)
    mounted = {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}
    assert maps[mounted["/etc/msb-node"]["configMap"]["name"]] == [SCRIPT.name]
    for command in (container["command"], container["readinessProbe"]["exec"]["command"]):
        assert command[1] == f"/etc/msb-node/{SCRIPT.name}" and f"{command[2]}()" in SCRIPT.read_text()
    assert container["env"][0]["value"] in mounted
    assert container["image"] in {i["name"] for i in kustomization["images"]}
    assert pod["spec"]["nodeSelector"] == found["RuntimeClass"]["scheduling"]["nodeSelector"]
    assert found["RuntimeClass"]["handler"] == "msb" and "runtimes.msb" in SCRIPT.read_text()


def test_the_examples_name_what_is_there():
    (runtime_class,) = documents(DEPLOY / "runtimeclass.yaml")
    name = runtime_class["metadata"]["name"]
    docs = {(d["kind"], d["metadata"]["name"]): d for p in sorted((DEPLOY / "examples").glob("*.yaml")) for d in documents(p)}
    assert len(docs) == 5
    assert docs["Pod", "hello"]["spec"]["runtimeClassName"] == name
    template = docs["SandboxTemplate", "python-msb"]["spec"]["podTemplate"]
    assert template["spec"]["runtimeClassName"] == name
    assert docs["SandboxWarmPool", "python-msb"]["spec"]["sandboxTemplateRef"] == {"name": "python-msb"}
    assert docs["SandboxClaim", "task-42"]["spec"]["warmPoolRef"] == {"name": "python-msb"}
    selector = docs["NetworkPolicy", "agent-sandboxes"]["spec"]["podSelector"]["matchLabels"]
    assert selector.items() <= template["metadata"]["labels"].items()


# --- the script ---------------------------------------------------------------------------------


class Node:
    """A node's root directory, what restarts its services, and its processes."""

    def __init__(self, place):
        self.root, self.source, self.proc = place / "node", place / "msb-0.1.0", place / "proc"
        self.config = self.root / "etc" / "containerd" / "config.toml"
        self.crio = self.root / "etc" / "crio" / "crio.conf.d" / "10-msb.conf"
        self.restarts = place / "restarts"
        for path in ("bin/msb", "lib/msb/linux-uml"):
            (self.source / path).parent.mkdir(parents=True)
            (self.source / path).write_text(path)
            (self.source / path).chmod(0o755)
        self.proc.mkdir()
        self.refuses = place / "refuses"
        enter = place / "enter"
        enter.write_text(f'#!/bin/sh\n[ ! -e {self.refuses} ] || exit 1\necho "$@" >> {self.restarts}\n')
        enter.chmod(0o755)
        self.env = {"PATH": os.environ["PATH"], "NODE_ROOT": str(self.root), "MSB_SOURCE": str(self.source),
                    "NODE_ENTER": str(enter), "NODE_PROC": str(self.proc)}
        (self.root / "usr" / "bin").mkdir(parents=True)

    def has(self, *what):
        for name in what:
            if name == "containerd":
                (self.root / "usr" / "bin" / "containerd").touch()
            else:
                (self.root / "etc" / "crio").mkdir(parents=True)
        return self

    def __call__(self, verb, fails=False):
        p = subprocess.run(["sh", SCRIPT, verb], env=self.env, capture_output=True, text=True, timeout=60)
        assert (p.returncode != 0) == fails, p.stdout + p.stderr
        return p.stderr if fails else p.stdout

    def restarted(self):
        text = self.restarts.read_text() if self.restarts.exists() else ""
        self.restarts.unlink(missing_ok=True)
        return text.splitlines()

    def tree(self):
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if not p.is_dir() or p.is_symlink())

    def trees(self):
        return sorted((self.root / "opt").glob("msb-node-*"))

    def runtime(self, plugin):
        tomllib = pytest.importorskip("tomllib")
        return tomllib.loads(self.config.read_text())["plugins"][plugin]["containerd"]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.mark.parametrize("before, plugin", [
    (None, "io.containerd.grpc.v1.cri"), (V2, "io.containerd.grpc.v1.cri"),
    ("version = 3\nroot = '/x'\n", "io.containerd.cri.v1.runtime")], ids=["no configuration", "version 2", "version 3"])
def test_containerd(node, before, plugin):
    node.has("containerd")
    if before:
        node.config.parent.mkdir(parents=True)
        node.config.write_text(before)
    was = node.tree()
    node("check", fails=True)
    node("install")
    node("check")
    found = node.runtime(plugin)
    assert found["runtimes"]["msb"]["options"]["BinaryName"] == "/opt/msb/bin/msb-runtime"
    assert before is not V2 or found["default_runtime_name"] == "runc"
    assert (node.root / "opt/msb/bin/msb-runtime").read_text() == "bin/msb"
    assert (node.root / "opt/msb/lib/msb/linux-uml").exists()
    assert node.restarted() == ["systemctl restart containerd"]
    node("install")
    assert node.restarted() == [], "nothing has changed"
    (node.source / "bin" / "msb").write_text("another build")
    node("install")
    assert (node.root / "opt/msb/bin/msb-runtime").read_text() == "another build" and node.restarted() == []
    assert len(node.trees()) == 1, "the old one is gone"
    node("remove")
    assert node.restarted() == ["systemctl restart containerd"] and node.tree() == was
    assert not before or node.config.read_text() == before
    node("remove")
    assert node.restarted() == []


def test_crio(node):
    node.has("crio", "containerd")
    node("install")
    written = node.crio.read_text()
    assert 'runtime_path = "/opt/msb/bin/msb-runtime"' in written and "[crio.runtime]\ndrop_infra_ctr = false\n" in written
    assert node.restarted() == ["systemctl restart containerd", "systemctl restart crio"]
    node("install")
    assert node.restarted() == []
    node("remove")
    assert node.restarted() == ["systemctl restart containerd", "systemctl restart crio"]
    assert node.tree() == ["usr/bin/containerd"]


def test_a_restart_that_failed_is_made_up_for(node):
    node.has("containerd", "crio")
    for verb in ("install", "remove"):
        node.refuses.touch()
        assert "cannot restart containerd" in node(verb, fails=True)
        assert "not restarted" in node("check", fails=True)
        node.refuses.unlink()
        node(verb)
        assert node.restarted() == ["systemctl restart containerd", "systemctl restart crio"]
        if verb == "install":
            node("check")
        node(verb)
        assert node.restarted() == []
    assert node.tree() == ["usr/bin/containerd"]


def test_sandboxes_that_still_run_keep_their_files(node):
    node.has("containerd", "crio")
    node("install")
    (tree,) = node.trees()
    (node.proc / "123").mkdir()
    (node.proc / "123" / "exe").symlink_to(f"/opt/{tree.name}/bin/msb")
    (node.source / "bin" / "msb").write_text("another build")
    assert "still run" in node("install")
    assert tree.exists() and len(node.trees()) == 2
    node.restarted()
    was = node.tree()
    assert "still run" in node("remove") and node.tree() == was, "what stops them, and what finds that, stays too"
    assert (node.root / "opt/msb/bin/msb-runtime").exists() and node.crio.exists() and node.restarted() == []
    node("check")
    (node.proc / "123" / "exe").unlink()
    node("remove")
    assert node.tree() == ["usr/bin/containerd"] and len(node.restarted()) == 2


def test_a_private_configuration_stays_private(node):
    node.has("containerd")
    node.config.parent.mkdir(parents=True)
    node.config.write_text(V2)
    node.config.chmod(0o600)
    os.chown(node.config, -1, 1 if os.geteuid() == 0 else -1)
    was = node.config.stat()
    for verb in ("install", "remove"):
        node(verb)
        now = node.config.stat()
        assert (now.st_mode, now.st_uid, now.st_gid) == (was.st_mode, was.st_uid, was.st_gid)


@pytest.mark.parametrize("link", ["/etc/containerd/config.toml", "/etc/containerd", "/etc/crio/crio.conf.d"])
@pytest.mark.parametrize("there", [True, False], ids=["", "dangling"])
def test_links_are_not_followed_out_of_the_node(node, tmp_path, link, there):
    node.has("crio" if "crio" in link else "containerd")
    path, outside = node.root / link[1:], tmp_path / "outside"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside)
    if there and path.suffix:
        outside.write_text(V2)
    elif there:
        outside.mkdir()
    assert f"{link} is a symbolic link" in node("install", fails=True)
    assert path.is_symlink() and outside.exists() == there and node.restarted() == []
    assert not there or (outside.read_text() == V2 if path.suffix else list(outside.iterdir()) == [])


def test_it_says_what_it_installed(node):
    node.has("containerd")
    (node.root / "opt" / "msb-node-99999999999").mkdir(parents=True)  # an old one, found after the new one
    said = node("install")
    assert f"installed {os.readlink(node.root / 'opt' / 'msb')}\n" in said


def test_what_others_have_in_opt_stays(node):
    node.has("containerd")
    others = [node.root / "opt" / name / "file" for name in ("msb-data", "msb-0.1.0", "msb-4211", "msb-node-data", "msb-node-")]
    for file in others:
        file.parent.mkdir(parents=True)
        file.touch()
    was = node.tree()
    node("install")
    node("remove")
    assert node.tree() == was


def test_what_is_refused(node):
    assert "neither containerd nor CRI-O" in node("install", fails=True)
    node.has("containerd")
    node.config.parent.mkdir(parents=True)
    for text, words in (("[plugins]\n", "containerd config migrate"),
                        (V2 + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.msb]\n', "not ours")):
        node.config.write_text(text)
        assert words in node("install", fails=True)
        assert node.config.read_text() == text and node.restarted() == []
    (node.source / "bin" / "msb").unlink()
    assert "no msb in this image" in node("install", fails=True)
    assert "usage" in node("unknown", fails=True)


def test_the_end_of_the_pod_removes_it(node):
    node.has("containerd")
    process = subprocess.Popen(["sh", SCRIPT, "run"], env=node.env, stdout=subprocess.PIPE, text=True)
    try:
        assert "restarting" in process.stdout.readline() and "installed" in process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert node.tree() == ["usr/bin/containerd"]
