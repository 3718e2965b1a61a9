"""What the tests in a cluster share; tests/k8s/cluster.py has started it around them."""
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

RUNTIME_CLASS = os.environ.get("K8S_RUNTIME_CLASS", "runc")
NODE = "10.200.0.1"
IMAGE = "docker.io/library/alpine:3"
SECONDS = 180 * float(os.environ.get("MSB_TEST_SLOW", "1"))


def kubectl(*args, input=None, code=0, timeout=SECONDS):
    """Its output; it has to end with this code."""
    p = subprocess.run(["kubectl", *map(str, args)], input=input, capture_output=True, text=True, timeout=timeout,
                       stdin=subprocess.DEVNULL if input is None else None)
    assert code is None or p.returncode == code, f"kubectl {args}: {p.returncode}\n{p.stdout}\n{p.stderr}"
    return p.stdout


def get(kind, name):
    return json.loads(kubectl("get", kind, name, "-o", "json"))


def apply(*docs):
    kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(docs)}))


def container(name, **more):
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "128Mi"}}, **more}


def pod(name, first, *others, runtime_class=RUNTIME_CLASS, **spec):
    """A manifest whose first container is `main`."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"runtimeClassName": runtime_class, "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
                     "containers": [container("main", **first), *others], **spec}}


def shell(script):
    return {"command": ["sh", "-c", script]}


def wait_for(condition, what, seconds=SECONDS):
    until = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, f"{what} took more than {seconds} s"
        time.sleep(0.3)


def phase(name):
    return get("pod", name)["status"].get("phase")


def wait_phase(name, *wanted):
    def there():
        found = get("pod", name)
        assert found["status"].get("phase") in (*wanted, "Pending", "Running"), json.dumps(found["status"], indent=1)
        return found if found["status"].get("phase") in wanted else None
    return wait_for(there, f"{wanted} of {name}")


def delete(*names):
    """Without waiting: a kubelet takes up to a minute to forget a pod that is gone."""
    kubectl("delete", "pod", *names, "--wait=false", "--ignore-not-found")
