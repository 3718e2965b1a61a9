"""A spec as Kubernetes objects: the Pod, its NetworkPolicy, the claim of its workspace."""
from __future__ import annotations

import copy
import hashlib
import re
import socket
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._kubeexec import MAIN
from .client import _HOST, _words as words
from .errors import MsbError, UsageError

Json = Dict[str, Any]

SANDBOX = "msb/sandbox"  # the label that all our pods have; its value is the pod's name
NAME = "msb/name"  # annotation: the sandbox's name, which a pod could not have
CREATED = "msb/created"  # annotation: a random word, to know a pod of ours again
MEMORY = "msb.memory"  # annotation for the runtime: the size of the guest, which not every containerd tells it
REACH = "msb/reach"  # label: which of the namespace's policies holds
EGRESS = "msb/egress"  # label of pods with a policy of their own, which selects it: the random word
WORKSPACE = "/workspace"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}\Z")

# The container's command: it waits, collects what others leave behind, and ends at once when it is told to. Its last
# argument is for finding it again: not every runtime makes it the first process.
IDLE = ["sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done", "msb-idle"]
END = ["sh", "-c", """\
for p in /proc/[0-9]*; do
case $(tr '\\0' ' ' <"$p/cmdline") in 'sh -c '*' msb-idle ') kill -15 "${p#/proc/}";; esac
done 2>/dev/null"""]

# What "public" leaves out: addresses of this node, of the cluster and of networks around it.
_PRIVATE = {"0.0.0.0/0": ["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
                          "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4"],
            "::/0": ["::/128", "::1/128", "fc00::/7", "fe80::/10", "ff00::/8", "64:ff9b::/96", "::ffff:0:0/96"]}


def pod_name(name: str) -> str:
    """The pod of a sandbox: the same name where a pod may have it, else one made of it."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(f"invalid sandbox name {name!r}: expected letters, digits, '.', '_' and '-'")
    if _POD_NAME.match(name):
        return name
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50].strip("-")
    return f"{plain or 'sandbox'}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def check_labels(labels: Mapping[str, str]) -> Dict[str, str]:
    """Labels as Kubernetes takes them."""
    for key, value in labels.items():
        if not _LABEL_KEY.match(key) or key.startswith("msb/"):
            raise UsageError(f"invalid label {key!r} in a cluster")
        if not _LABEL_VALUE.match(str(value)):
            raise UsageError(f"invalid value {value!r} of label {key!r} in a cluster: "
                             "at most 63 letters, digits, '.', '_' and '-'")
    return {k: str(v) for k, v in labels.items()}


def secret_object(name: str) -> str:
    """The Kubernetes secret that holds ``API_KEY`` under that key: ``api-key``."""
    if not _SECRET.match(name):
        raise UsageError(f"invalid secret {name!r}: expected the name of a variable")
    return name.lower().replace("_", "-").strip("-")


def merge(base: Json, more: Mapping[str, Any]) -> Json:
    """Objects are merged, anything else is replaced."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)
    return base


# --- the network ---


def resolve(hosts: Sequence[str]) -> Dict[str, List[str]]:
    """The addresses of names, as they are now. For a thread: it may take a while."""
    found: Dict[str, List[str]] = {}
    for host in hosts:
        try:
            answers = socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as e:
            raise MsbError(f"cannot find the address of {host}, which egress names: {e}") from e
        found[host] = sorted({str(a[4][0]).split("%")[0] for a in answers})
    return found


def egress_hosts(egress: Any) -> Tuple[str, ...]:
    """Host names, checked."""
    hosts = words(egress, "egress")
    for host in hosts:
        if not _HOST.match(host) or host.rstrip(".").rsplit(".", 1)[-1].isdigit():
            raise UsageError(f"invalid egress {host!r}: expected a host name")
    return tuple(h.rstrip(".").lower() for h in hosts)


def _policy(name: str, labels: Mapping[str, str], selector: Mapping[str, str], egress: List[Json]) -> Json:
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {"podSelector": {"matchLabels": dict(selector)}, "policyTypes": ["Egress"], "egress": egress}}


def reach(spec: Any) -> str:
    """Which policy holds for a sandbox: ``none``, ``public``, or ``hosts``, which is one of its own."""
    network = getattr(spec, "network", None)
    if network is not None and spec.egress:
        raise UsageError("egress and network cannot be combined")
    if network not in (None, "none", "public"):
        raise UsageError(f"network {network!r} is not available in a cluster: expected 'none' or 'public'")
    return "hosts" if egress_hosts(spec.egress) else network or "none"


def policy_name(pod: Mapping[str, Any]) -> Optional[str]:
    """The policy that is a pod's own, if it has one. No other pod ever has one of that name."""
    labels = pod["metadata"].get("labels") or {}
    return f"{pod['metadata']['name']}-egress-{labels[EGRESS]}" if EGRESS in labels else None


def network_policies(pod: Mapping[str, Any], addresses: Mapping[str, Sequence[str]]) -> List[Json]:
    """The policies that a pod needs. Those for nothing and for everything public are shared by all; one of its own
    adds to one that allows nothing, so that a pod without it has no network."""
    labels = pod["metadata"]["labels"]
    if labels[REACH] == "public":
        dns = {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
               "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
        outside = {"to": [{"ipBlock": {"cidr": net, "except": ours}} for net, ours in _PRIVATE.items()]}
        return [_policy("msb-public", {}, {REACH: "public"}, [outside, dns])]
    found = [_policy(f"msb-{labels[REACH]}", {}, {REACH: labels[REACH]}, [])]
    name = policy_name(pod)
    if name is not None:
        blocks = sorted({f"{a}/{128 if ':' in a else 32}" for each in addresses.values() for a in each})
        allowed = [{"to": [{"ipBlock": {"cidr": block}} for block in blocks]}]
        found.append(_policy(name, {SANDBOX: labels[SANDBOX]}, {EGRESS: labels[EGRESS]}, allowed))
    return found


def _names(kind: str, addresses: Mapping[str, Sequence[str]]) -> Json:
    """Name resolution. Names that may be reached are in /etc/hosts, so that no others resolve, and nothing leaves by
    way of a name server."""
    if kind == "public":
        return {}
    closed: Json = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    aliases: Dict[str, List[str]] = {}
    for host, found in addresses.items():
        for address in found:
            aliases.setdefault(address, []).append(host)
    if aliases:
        closed["hostAliases"] = [{"ip": ip, "hostnames": hosts} for ip, hosts in sorted(aliases.items())]
    return closed


# --- the pod ---


def _env(spec: Any) -> List[Json]:
    found: List[Json] = [{"name": str(k), "value": str(v).replace("$(", "$$(")}
                         for k, v in getattr(spec, "env", {}).items()]
    for name in words(spec.secrets, "secrets"):
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret_object(name), "key": name}}})
    return found


def claims(spec: Any) -> List[Tuple[str, str, bool]]:
    """Persistent volume claims: name, place, read-only. The first is the workspace, if there is one."""
    found: List[Tuple[str, str, bool]] = []
    if spec.workspace is not None:
        found.append((spec.workspace, WORKSPACE, False))
    for volume in words(getattr(spec, "volumes", ()), "volumes"):
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not parts[1].startswith("/") or parts[2:] not in ([], ["ro"], ["rw"]):
            raise UsageError(f"invalid volume {volume!r}: expected CLAIM:PATH or CLAIM:PATH:ro")
        found.append((parts[0], parts[1], parts[2:] == ["ro"]))
    for name, _, _ in found:
        if not _POD_NAME.match(name):
            raise UsageError(f"invalid volume {name!r}: in a cluster it is the name of a persistent volume claim")
    return found


def _ports(spec: Any) -> List[Json]:
    found: List[Json] = []
    for port in words(getattr(spec, "ports", ()), "ports"):
        match = re.match(r"(?:[^/]*:)?(\d{1,5})(?:/(tcp|udp))?\Z", port)
        if not match or not 0 < int(match[1]) < 65536:
            raise UsageError(f"invalid port {port!r}")
        found.append({"containerPort": int(match[1]), "protocol": (match[2] or "tcp").upper()})
    return found


def _refuse_what_is_not_there(spec: Any) -> None:
    for key, hint in (("idle_timeout", "use max_duration"), ("bound_secrets", "the pod's network is the cluster's"),
                      ("options", "use the client's pod= and container=")):
        if getattr(spec, key, None):
            raise UsageError(f"{key} is not available in a cluster", [hint])


def _container(spec: Any) -> Json:
    if not spec.image or spec.image.startswith("-"):
        raise UsageError(f"invalid image {spec.image!r}")
    container: Json = {"name": MAIN, "image": spec.image, "command": IDLE, "env": _env(spec),
                       "resources": {"limits": {"memory": f"{int(spec.memory_mib)}Mi",
                                                "cpu": f"{round(spec.cpus * 1000)}m"}}}
    if getattr(spec, "workdir", None) is not None:
        container["workingDir"] = spec.workdir
    user = getattr(spec, "user", None)
    if user is not None:
        match = re.match(r"(\d{1,9})(?::(\d{1,9}))?\Z", str(user))
        if not match:
            raise UsageError(f"invalid user {user!r}: in a cluster it is a number")
        container["securityContext"] = {"runAsUser": int(match[1])}
        if match[2]:
            container["securityContext"]["runAsGroup"] = int(match[2])
    ports = _ports(spec)
    if ports:
        container["ports"] = ports
    return container


def manifest(spec: Any, *, runtime_class: Optional[str], created: str, addresses: Mapping[str, Sequence[str]],
             pod: Mapping[str, Any], container: Mapping[str, Any]) -> Json:
    """The Pod of a spec. What the client was given for all pods (``pod``, ``container``) has the last word."""
    _refuse_what_is_not_there(spec)
    name, kind = pod_name(spec.name), reach(spec)
    inner = merge(_container(spec), container)
    volumes: List[Json] = []
    mounts: List[Json] = []
    for number, (claim, place, read_only) in enumerate(claims(spec)):
        volumes.append({"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"v{number}", "mountPath": place, "readOnly": read_only})
    inner["volumeMounts"] = mounts + list(inner.get("volumeMounts") or ())
    body: Json = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False,
                  "enableServiceLinks": False, "containers": [inner], "volumes": volumes, **_names(kind, addresses)}
    if runtime_class is not None:
        body["runtimeClassName"] = runtime_class
    if getattr(spec, "max_duration", None) is not None:
        if not 0 < spec.max_duration < 1e9:
            raise UsageError(f"invalid time limit {spec.max_duration!r}: a positive number of seconds")
        body["activeDeadlineSeconds"] = max(1, round(spec.max_duration))
    labels = {**check_labels(spec.labels), SANDBOX: name, REACH: kind, **({EGRESS: created} if kind == "hosts" else {})}
    more = {k: v for k, v in pod.items() if k != "spec"}
    doc: Json = {"apiVersion": "v1", "kind": "Pod",
                 "metadata": {"name": name, "labels": labels, "annotations": {
                     NAME: spec.name, CREATED: created, MEMORY: f"{int(spec.memory_mib)}M"}}}
    merge(doc, more)
    theirs = pod.get("spec") or {}
    body["volumes"] = volumes + list(theirs.get("volumes") or ())
    doc["spec"] = merge(body, {k: v for k, v in theirs.items() if k != "volumes"})
    return doc


def claim(name: str, size: str, storage_class: Optional[str]) -> Json:
    """The claim of a workspace."""
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": {"msb/workspace": name}}, "spec": spec}


# --- what a pod says about itself ---

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
          "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}


def _main_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status.get("name") == MAIN:
            state = status.get("state")
            return state if isinstance(state, dict) else {}
    return {}


def status_of(pod: Mapping[str, Any]) -> str:
    """``Starting``, ``Running``, ``Stopping`` or ``Stopped``."""
    phase = pod.get("status", {}).get("phase")
    if phase in ("Succeeded", "Failed") or "terminated" in _main_state(pod):
        return "Stopped"
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return "Stopping"
    return "Running" if "running" in _main_state(pod) else "Starting"


def trouble(pod: Mapping[str, Any]) -> Optional[Tuple[str, str]]:
    """Why a pod will not run, as (``image``, ``secret`` or ``other``, the reason); None if it still may."""
    state = _main_state(pod)
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in _IMAGE:
        return "image", f"{reason}: {message}"
    if reason in _BROKEN:
        return "secret" if "secret" in message else "other", f"{reason}: {message}"
    ended = state.get("terminated")
    if ended is not None:
        text = str(ended.get("message") or ended.get("reason") or "")
        return "other", f"it ended with {ended.get('exitCode')}: {text}"
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        return "other", f"{status.get('reason') or 'Failed'}: {status.get('message') or ''}"
    return None


def why_waiting(pod: Mapping[str, Any]) -> str:
    """What a pod that does not run yet waits for."""
    waiting = _main_state(pod).get("waiting") or {}
    if waiting.get("reason"):
        return f"{waiting['reason']} {waiting.get('message') or ''}".strip()
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") != "True":
            return f"{condition.get('reason') or ''}: {condition.get('message') or ''}"
    return "it has not begun"
