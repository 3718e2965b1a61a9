"""Pods of the runtime in a real cluster, as kubectl sees them."""
import base64
import json
import os
import subprocess
import urllib.request

import pytest

from k8skit import ROOT, RUNTIME_CLASS, SECONDS, apply, container, delete, get, kubectl, phase, pod, shell, wait_for, wait_phase

AT_ONCE = int(os.environ.get("MSB_TEST_PODS", "20"))

SERVER = """
trap 'echo told to end; exit 0' TERM
echo started; mkdir -p /tmp/www; echo hello > /tmp/www/index.html
httpd -p 8080 -h /tmp/www
while :; do sleep 0.2; done
"""


@pytest.fixture(scope="module")
def web():
    """One pod with all that the tests below look at."""
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a.conf": "one"}},
          {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"},
           "data": {"token": base64.b64encode(b"s3cret").decode()}},
          pod("web", {
              **shell(SERVER), "ports": [{"containerPort": 8080}],
              "env": [{"name": "PLAIN", "value": "a b"},
                      {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}},
                      {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
              "volumeMounts": [{"name": "settings", "mountPath": "/settings"}, {"name": "key", "mountPath": "/key"},
                               {"name": "empty", "mountPath": "/empty"},
                               {"name": "empty", "mountPath": "/part", "subPath": "a/b"},
                               {"name": "settings", "mountPath": "/etc/one.conf", "subPath": "a.conf"}],
              "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo after $PLAIN > /empty/hook"]}}},
              "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 120},
              "livenessProbe": {"exec": {"command": ["test", "-e", "/tmp/www"]}, "periodSeconds": 2, "timeoutSeconds": 30},
              "readinessProbe": {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30}},
              container("side", **shell("echo beside; trap 'exit 0' TERM; while :; do sleep 0.2; done"),
                        volumeMounts=[{"name": "empty", "mountPath": "/empty"}]),
              initContainers=[container("prepare", **shell("test ! -e /empty/hook && echo prepared | tee /empty/init"),
                                        volumeMounts=[{"name": "empty", "mountPath": "/empty"}])],
              volumes=[{"name": "settings", "configMap": {"name": "settings"}},
                       {"name": "key", "secret": {"secretName": "key"}}, {"name": "empty", "emptyDir": {}}]))
    kubectl("wait", "--for=condition=Ready", "pod/web", f"--timeout={int(SECONDS)}s")
    yield "web"
    delete("web")


def run(name, *argv, **kw):
    return kubectl("exec", name, "-c", "main", "--", *argv, **kw)


def beside(name, *argv):
    return kubectl("exec", name, "-c", "side", "--", *argv)


def test_its_kernel(web):
    inside = run(web, "uname", "-r").strip()
    assert (inside != os.uname().release) == (RUNTIME_CLASS == "msb")


def test_logs(web):
    said = [kubectl("logs", web, "-c", name).splitlines()[0] for name in ("main", "side", "prepare")]
    assert said == ["started", "beside", "prepared"]


def test_exec(web):
    assert run(web, "sh", "-c", "echo $PLAIN; echo $TOKEN") == "a b\ns3cret\n"
    run(web, "sh", "-c", "exit 4", code=4)
    assert kubectl("exec", "-i", web, "-c", "main", "--", "wc", "-c", input="x" * 100000).strip() == "100000"
    assert run(web, "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x").count("x") == 3000000
    p = subprocess.run(["kubectl", "exec", web, "-c", "main", "--", "/nonexistent"], capture_output=True, text=True, timeout=60)
    assert p.returncode != 0 and "nonexistent" in p.stderr
    command = f"kubectl exec -it {web} -c main -- sh -c 'tty; test -t 0 && echo terminal'"
    seen = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=120)
    assert "terminal" in seen.stdout


def test_secrets_and_configmaps(web):
    assert run(web, "cat", "/settings/a.conf", "/key/token") == "ones3cret"
    run(web, "sh", "-c", "echo x > /settings/a.conf", code=1)
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a.conf": "two"}})
    wait_for(lambda: run(web, "cat", "/settings/a.conf") == "two", "a changed ConfigMap")


def test_empty_dir(web):
    run(web, "sh", "-c", "echo kept > /empty/f")
    assert run(web, "cat", "/empty/f") == "kept\n"


def test_what_ran_before_it(web):
    """The init container, before it, and the hook, in it; what both left is there."""
    assert run(web, "cat", "/empty/init", "/empty/hook") == "prepared\nafter a b\n"
    assert get("pod", web)["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_parts_of_volumes(web):
    """A directory of one, and a file of another."""
    run(web, "sh", "-c", "echo part > /part/f")
    assert run(web, "cat", "/empty/a/b/f", "/etc/one.conf") == "part\none" and run(web, "ls", "/part") == "f\n"


def test_containers_side_by_side(web):
    """They share the network and a volume; neither sees the other's processes or files."""
    assert beside(web, "wget", "-qO-", "http://localhost:8080/index.html") == "hello\n"
    beside(web, "sh", "-c", "echo from beside > /empty/side")
    assert run(web, "cat", "/empty/side") == "from beside\n"
    assert "httpd" in run(web, "ps") and "httpd" not in beside(web, "ps")
    beside(web, "test", "!", "-e", "/tmp/www")
    assert run(web, "hostname") == beside(web, "hostname") == "web\n"


def test_shared_processes():
    """With shareProcessNamespace one container sees and ends what runs in another."""
    apply(pod("family", shell("trap 'echo told by the other; exit 7' USR1; echo on; while :; do sleep 0.2; done"),
              container("other", **shell("sleep 86400")), shareProcessNamespace=True))
    wait_for(lambda: phase("family") == "Running" and "on" in kubectl("logs", "family", "-c", "main"), "its output")
    find = "for p in /proc/[0-9]*; do if grep -q '[t]old by' $p/cmdline; then kill -USR1 ${p#/proc/}; exit; fi; done; exit 9"
    kubectl("exec", "family", "-c", "other", "--", "sh", "-c", find)

    def ended():
        found = {s["name"]: s["state"] for s in get("pod", "family")["status"]["containerStatuses"]}
        return found if "terminated" in found["main"] else None

    found = wait_for(ended, "the end of one")
    assert found["main"]["terminated"]["exitCode"] == 7 and "running" in found["other"]
    assert "told by the other" in kubectl("logs", "family", "-c", "main")
    delete("family")


def test_its_address(web):
    address = get("pod", web)["status"]["podIP"]
    assert run(web, "sh", "-c", "echo $POD_IP").strip() == address
    assert urllib.request.urlopen(f"http://{address}:8080/index.html", timeout=60).read() == b"hello\n"


def test_port_forward(web):
    process = subprocess.Popen(["kubectl", "port-forward", f"pod/{web}", ":8080"], stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().split(":")[1].split()[0]
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=60).read() == b"hello\n"
    finally:
        process.terminate()
        process.wait()


def test_copies(web, tmp_path):
    (tmp_path / "f").write_text("over there")
    kubectl("cp", "-c", "main", tmp_path / "f", f"{web}:/tmp/f")
    assert run(web, "cat", "/tmp/f") == "over there"


def test_probes(web):
    """They go on without a restart; when what one looks for is gone, there is one."""
    assert get("pod", web)["status"]["containerStatuses"][0]["restartCount"] == 0
    apply(pod("ill", {**shell("touch /tmp/well; sleep 3; rm /tmp/well; sleep 1000"), "livenessProbe": {
        "exec": {"command": ["cat", "/tmp/well"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30}},
        restartPolicy="Always"))
    wait_for(lambda: get("pod", "ill")["status"].get("containerStatuses", [{}])[0].get("restartCount"), "a restart")
    delete("ill")


def test_how_it_ended():
    apply(pod("five", shell("echo last words; exit 5")))
    ended = wait_phase("five", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 5 and kubectl("logs", "five") == "last words\n"
    apply(pod("none", {"command": ["/nonexistent"]}))
    status = wait_phase("none", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert status["exitCode"] in (127, 128) and "nonexistent" in json.dumps(status)
    delete("five", "none")


def test_restart_policy():
    """OnFailure: as long as it fails, with what the first one left in a volume."""
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    apply(pod("again", {**shell("test -e /v/seen && exit 0; touch /v/seen; exit 1"),
                        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}, restartPolicy="OnFailure", **volume))
    found = wait_phase("again", "Succeeded")
    assert found["status"]["containerStatuses"][0]["restartCount"] == 1
    delete("again")


def test_job():
    template = pod("unused", shell("echo done"))["spec"]
    apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"},
           "spec": {"completions": 2, "parallelism": 2, "template": {"spec": template}}})
    kubectl("wait", "--for=condition=complete", "job/work", f"--timeout={int(SECONDS)}s")
    kubectl("delete", "job", "work")


def test_deletion():
    """It is told to end, has its time, and nothing of it is left."""
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo the hook > /tmp/hook"]}}}}
    apply(pod("polite", {**shell("trap 'sleep 0.5; cat /tmp/hook; echo bye; exit 0' TERM; echo on; while :; do sleep 0.1; done"),
                         **hook}),
          pod("stubborn", shell("trap '' TERM; echo on; while :; do sleep 0.1; done")))
    for name in ("polite", "stubborn"):
        wait_for(lambda n=name: phase(n) == "Running" and "on" in kubectl("logs", n), "its output")
    follow = subprocess.Popen(["kubectl", "logs", "-f", "polite"], stdout=subprocess.PIPE, text=True)
    kubectl("delete", "pod", "stubborn", "--grace-period=1", "--wait=false")
    kubectl("delete", "pod", "polite", "--grace-period=30")
    assert "the hook\nbye\n" in follow.communicate(timeout=SECONDS)[0]
    for name in ("polite", "stubborn"):
        wait_for(lambda n=name: not kubectl("get", "pod", n, "--ignore-not-found"), "its end")


def test_many_at_once():
    """All of them run, each says its own name, and all end."""
    names = [f"many-{i}" for i in range(AT_ONCE)]
    apply(*(pod(n, {**shell(f"echo i am {n}; sleep 1"), "resources": {"requests": {"cpu": "1m"}, "limits": {"memory": "64Mi"}}})
            for n in names))
    for name in names:
        wait_phase(name, "Succeeded")
    assert [kubectl("logs", n) for n in names] == [f"i am {n}\n" for n in names]
    delete(*names)


def test_what_deploy_says():
    """The API server takes all of it."""
    deploy = ROOT / "deploy" / "kubernetes"
    rendered = kubectl("kustomize", deploy)
    kubectl("create", "namespace", "msb-system")
    shown = kubectl("apply", "--dry-run=server", "-k", deploy)
    assert shown.count("(server dry run)") == rendered.count("\n---\n") + 1
    for name in ("pod.yaml", "networkpolicy.yaml"):
        assert "server dry run" in kubectl("apply", "--dry-run=server", "-f", deploy / "examples" / name)
