"""Where a Kubernetes API server is and how to log in: a kubeconfig file, or a pod's service account."""
from __future__ import annotations

import base64
import binascii
import datetime
import importlib
import json
import os
import shutil
import ssl
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .errors import SandboxUnavailable, UsageError

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_FILE_MAX = 4 * 1024 * 1024
_PLUGIN_SECONDS = 60
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass
class Cluster:
    """An API server, and who we are there."""

    host: str
    port: int
    tls: bool
    path: str = ""
    namespace: str = "default"
    server_name: Optional[str] = None
    ca_data: Optional[bytes] = None
    insecure: bool = False
    token: Optional[str] = None
    token_file: Optional[str] = None
    password: Optional[Tuple[str, str]] = None
    certificate: Optional[Tuple[bytes, bytes]] = None
    plugin: Optional[Mapping[str, Any]] = None
    _from_plugin: Dict[str, Any] = field(default_factory=dict)
    _context: Optional[ssl.SSLContext] = None

    def authorization(self) -> Optional[str]:
        """The header's value. Token files are read again each time, because they are rotated; a plugin is asked
        again when what it gave has expired. This may take a moment: not for the event loop's thread."""
        if self.plugin is not None:
            self._ask_plugin()
        if self.token_file:
            return "Bearer " + _read(self.token_file).decode("ascii", "strict").strip()
        if self.token:
            return f"Bearer {self.token}"
        if self.password:
            return "Basic " + base64.b64encode(":".join(self.password).encode()).decode()
        return None

    def forget(self) -> None:
        """The server did not accept what a plugin gave: it is asked again."""
        self._from_plugin = {}

    def context(self) -> Optional[ssl.SSLContext]:
        """How the server is verified, and our certificate; None without TLS."""
        if not self.tls:
            return None
        if self._context is None:
            try:
                found = ssl.create_default_context(
                    cadata=self.ca_data.decode("ascii") if self.ca_data is not None else None)
                found.minimum_version = ssl.TLSVersion.TLSv1_2
                # Python 3.13 insists on extensions that certificates of many clusters lack; the chain and the name
                # are verified all the same.
                found.verify_flags &= ~ssl.VERIFY_X509_STRICT
                if self.insecure:
                    found.check_hostname = False
                    found.verify_mode = ssl.CERT_NONE
                if self.certificate is not None:
                    _load_certificate(found, *self.certificate)
            except (ssl.SSLError, ValueError, OSError) as e:
                raise SandboxUnavailable(f"invalid certificate in the Kubernetes configuration: {e}") from e
            self._context = found
        return self._context

    def _ask_plugin(self) -> None:
        if self._from_plugin and self._from_plugin["until"] > time.time() + 10:
            return
        assert self.plugin is not None
        status = _run_plugin(self.plugin)
        until = moment(status.get("expirationTimestamp"))
        self.token = status.get("token") or None
        given = status.get("clientCertificateData"), status.get("clientKeyData")
        if given[0] and given[1]:
            self.certificate = str(given[0]).encode(), str(given[1]).encode()
            self._context = None
        if not self.token and not (given[0] and given[1]):
            raise SandboxUnavailable(f"{self.plugin['command']} gave neither a token nor a certificate")
        self._from_plugin = {"until": until}


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes files only; this one is in memory and has no name."""
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{fd}", password=lambda: "")  # never ask at a terminal
    finally:
        os.close(fd)


def moment(text: Any) -> float:
    """An RFC 3339 time in seconds since 1970; infinite if there is none."""
    if not text:
        return float("inf")
    try:
        return datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _run_plugin(plugin: Mapping[str, Any]) -> Mapping[str, Any]:
    """A credential plugin, as kubectl runs them (client.authentication.k8s.io)."""
    version = str(plugin.get("apiVersion", ""))
    if version not in _PLUGIN_VERSIONS:
        raise UsageError(f"unknown version of a credential plugin: {version!r}")
    env = dict(os.environ)
    env.update({str(e["name"]): str(e["value"]) for e in plugin.get("env") or ()})
    env["KUBERNETES_EXEC_INFO"] = json.dumps({"apiVersion": version, "kind": "ExecCredential",
                                              "spec": {"interactive": False}})
    argv = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    try:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=_PLUGIN_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as e:
        hint = str(plugin.get("installHint") or "").strip().splitlines()
        raise SandboxUnavailable(f"cannot run the credential plugin {argv[0]}: {e}", hint[:1]) from e
    if done.returncode != 0:
        text = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SandboxUnavailable(f"the credential plugin {argv[0]} exited with {done.returncode}", text[-1:])
    try:
        status = json.loads(done.stdout)["status"]
        if not isinstance(status, dict):
            raise ValueError("no status")
        return status
    except (ValueError, KeyError, TypeError) as e:
        raise SandboxUnavailable(f"the credential plugin {argv[0]} printed no ExecCredential") from e


# --- files ---


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as f:
            data = f.read(_FILE_MAX + 1)
    except OSError as e:
        raise SandboxUnavailable(f"cannot read {path}: {e.strerror}") from e
    if len(data) > _FILE_MAX:
        raise UsageError(f"{path} is too large")
    return data


def _parse(path: str) -> Dict[str, Any]:
    """A kubeconfig file. They are YAML, for which Python has no parser: PyYAML does it if it is installed, else
    kubectl; JSON needs neither."""
    text = _read(path).decode("utf-8", "replace")
    doc: Any = None
    try:
        doc = json.loads(text)
    except ValueError:
        doc = _parse_yaml(path, text)
    if not isinstance(doc, dict):
        raise UsageError(f"{path} is not a kubeconfig file")
    return doc


def _parse_yaml(path: str, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        return _ask_kubectl(path)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise UsageError(f"{path} is not a kubeconfig file: {' '.join(str(e).split())}") from e


def _ask_kubectl(path: str) -> Any:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise SandboxUnavailable(f"cannot read {path}: it is YAML",
                                 ["install PyYAML (python3-yaml), or write the file as JSON"])
    try:
        done = subprocess.run([kubectl, "config", "view", "--raw", "-o", "json", "--kubeconfig", path],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=_PLUGIN_SECONDS, check=True)
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise UsageError(f"{path} is not a kubeconfig file: {e}") from e


def _files(given: Optional[str]) -> List[str]:
    if given:
        return [given]
    paths = [p for p in os.environ.get("KUBECONFIG", "").split(os.pathsep) if p]
    return [p for p in paths or [os.path.expanduser("~/.kube/config")] if os.path.exists(p)]


def _entry(docs: List[Tuple[str, Dict[str, Any]]], group: str, kind: str, name: str) -> Tuple[str, Dict[str, Any]]:
    """The first of this name, with the directory that its relative paths are meant from."""
    for path, doc in docs:
        for entry in doc.get(group) or ():
            if isinstance(entry, dict) and entry.get("name") == name:
                found = entry.get(kind)
                return os.path.dirname(os.path.abspath(path)), found if isinstance(found, dict) else {}
    raise UsageError(f"the kubeconfig has no {kind} {name!r}")


def _data(entry: Mapping[str, Any], key: str, directory: str) -> Optional[bytes]:
    """``KEY-data`` in base64, or the file ``KEY`` names."""
    inline = entry.get(f"{key}-data")
    if inline:
        try:
            return base64.b64decode(str(inline), validate=True)
        except (binascii.Error, ValueError) as e:
            raise UsageError(f"invalid {key}-data in the kubeconfig: {e}") from e
    return _read(os.path.join(directory, str(entry[key]))) if entry.get(key) else None


def _of_url(url: str) -> Cluster:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("https", "http") or not parts.hostname or port == -1:
        raise UsageError(f"invalid API server {url!r} in the kubeconfig")
    tls = parts.scheme == "https"
    return Cluster(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def _log_in(found: Cluster, user: Mapping[str, Any], directory: str) -> None:
    found.token = user.get("token") or None
    if user.get("tokenFile"):
        found.token_file = os.path.join(directory, str(user["tokenFile"]))
    if user.get("username"):
        found.password = str(user["username"]), str(user.get("password") or "")
    certificate = _data(user, "client-certificate", directory)
    key = _data(user, "client-key", directory)
    if certificate is not None and key is not None:
        found.certificate = certificate, key
    plugin = user.get("exec")
    if isinstance(plugin, dict):
        command = str(plugin.get("command") or "")
        if not command:
            raise UsageError("the kubeconfig names a credential plugin without a command")
        if "/" in command:  # relative to the file, as kubectl has it
            plugin = {**plugin, "command": os.path.join(directory, command)}
        found.plugin = plugin
    if user.get("auth-provider"):
        raise UsageError("auth-provider in the kubeconfig is not supported: use a credential plugin (exec)")


def from_kubeconfig(given: Optional[str] = None, context: Optional[str] = None) -> Optional[Cluster]:
    """The cluster of a context (default: the current one); None if there is no file."""
    docs = [(path, _parse(path)) for path in _files(given)]
    if not docs:
        return None
    name = context or next((str(d["current-context"]) for _, d in docs if d.get("current-context")), "")
    if not name:
        raise UsageError("the kubeconfig has no current context", ["kubectl config use-context NAME"])
    _, chosen = _entry(docs, "contexts", "context", name)
    directory, cluster = _entry(docs, "clusters", "cluster", str(chosen.get("cluster") or ""))
    if cluster.get("proxy-url"):
        raise UsageError("proxy-url in the kubeconfig is not supported")
    found = _of_url(str(cluster.get("server") or ""))
    found.namespace = str(chosen.get("namespace") or "default")
    found.server_name = cluster.get("tls-server-name") or None
    found.ca_data = _data(cluster, "certificate-authority", directory)
    found.insecure = cluster.get("insecure-skip-tls-verify") is True
    if chosen.get("user"):
        directory, user = _entry(docs, "users", "user", str(chosen["user"]))
        _log_in(found, user, directory)
    return found


def from_service_account(directory: str = SERVICE_ACCOUNT) -> Optional[Cluster]:
    """The cluster that this program runs in; None if it does not."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = os.path.join(directory, "token")
    if not host or not port.isdigit() or not os.path.exists(token):
        return None
    found = Cluster(host, int(port), True, token_file=token)
    found.ca_data = _read(os.path.join(directory, "ca.crt"))
    namespace = os.path.join(directory, "namespace")
    if os.path.exists(namespace):
        found.namespace = _read(namespace).decode("utf-8", "replace").strip() or "default"
    return found


def load(kubeconfig: Optional[str] = None, context: Optional[str] = None) -> Cluster:
    """As kubectl and clients in pods do: a file that is named, ``$KUBECONFIG``, ``~/.kube/config``, and the
    service account."""
    if kubeconfig is None and context is None and "KUBECONFIG" not in os.environ:
        inside = from_service_account()
        if inside is not None:
            return inside
    found = from_kubeconfig(kubeconfig, context)
    if found is None:
        raise SandboxUnavailable("no Kubernetes cluster is configured",
                                 ["set KUBECONFIG, or run in a pod with a service account"])
    return found
