"""Sandboxes in a Kubernetes cluster: pods that run with msb as their runtime, behind the same interface.

::

    client = msb.KubernetesClient(namespace="agents")
    async with await client.create(msb.SandboxSpec(name="demo", image="alpine:3")) as sb:
        print((await sb.exec("uname", ["-a"])).stdout)
"""
from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

from . import _kubeconfig, _pod
from ._cli import uncancelled
from ._exec import timeout_ms
from ._kubeapi import CONNECT_SECONDS, RETRY_SECONDS, Api, ApiError, keep_alive, may_repeat
from ._kubeexec import MAIN, PROTOCOLS, KubeChannel, Plan, signal_command
from ._kubefiles import KubeFiles
from ._waiting import bounded
from ._websocket import new_key
from .client import DEFAULT_MAX_OUTPUT, SandboxClient, SandboxHandle
from .errors import (ImageError, MsbError, PolicyRefused, SandboxEnded, SandboxExists, SandboxNotFound,
                     SandboxNotRunning, SandboxUnavailable, SecretError, UsageError)
from .files import Files
from .process import Process
from .types import SandboxInfo, SandboxSpec
from .workspace import Workspace

__all__ = ["KubernetesClient", "KubernetesHandle"]

LOG_MAX = 16 * 1024 * 1024
LIST_PAGE = 500
SIGNAL_SECONDS = 60.0
ASK_SECONDS = 15.0
REPORT_SECONDS = 2.0
_MERGE = "application/merge-patch+json"
_RECREATED = "msb/manifest"  # annotation: what start() recreates a stopped pod from


def typed(error: ApiError, name: str = "") -> MsbError:
    """The server's error as one of ours."""
    text = error.message or error.reason
    if error.status == 401:
        return SandboxUnavailable(f"the Kubernetes API server does not know us: {text}",
                                  ["check the user in the kubeconfig"])
    if error.status == 403:
        return PolicyRefused(f"the cluster does not allow it: {text}")
    if error.status == 404 and error.kind == "pods":
        return SandboxNotFound(f"sandbox not found: {name}")
    if error.status == 409 and error.reason == "AlreadyExists":
        return SandboxExists(f"sandbox already exists: {name}")
    if error.status in (400, 422):
        return UsageError(f"the cluster does not accept it: {text}")
    return MsbError(f"the Kubernetes API server failed: {text}")


@contextlib.contextmanager
def typed_errors(name: str = "") -> Iterator[None]:
    """Turns the server's errors into ours."""
    try:
        yield
    except ApiError as e:
        raise typed(e, name) from e


class KubernetesHandle(SandboxHandle):
    """A sandbox in a cluster; returned by :class:`KubernetesClient`.

    It differs from a local one where pods do: a stopped one has to be started before it runs commands, and then has
    nothing but its workspace and volumes; commands run as the sandbox's user; ``logs`` has the output of the pod, not
    that of commands.
    """

    def __init__(self, client: "KubernetesClient", name: str, secrets: Sequence[str] = (),
                 owned: bool = False) -> None:
        self.name = name
        self._client: "KubernetesClient" = client
        self._secrets = tuple(secrets)
        self._owned = owned

    @property
    def files(self) -> Files:
        """Its files: read, write, list, stat, upload, download; not ``watch`` and ``as_user``."""
        return KubeFiles(self._client, self.name)

    # --- commands ---

    async def _open(self, argv: Sequence[str], *, timeout: Optional[float], env: Optional[Mapping[str, str]],
                    cwd: Optional[str], user: Optional[str], stdin: Optional[bytes], keep_stdin: bool, tty: bool,
                    size: Tuple[int, int], max_output: Optional[int], streaming: bool) -> Process:
        if user is not None:
            raise UsageError("user is not available in a cluster: commands run as the pod's user",
                             ["set user in the SandboxSpec"])
        timeout_ms(timeout)  # for its checks
        half_close = keep_stdin and not tty and await self._client._half_close()
        plan = Plan(argv, env=env or {}, cwd=cwd, tty=tty, half_close=half_close,
                    stdin=len(stdin) if stdin is not None else keep_stdin or None)
        limit = self._client.max_output if max_output is None else max_output
        channel = await self._client._exec(self.name, plan, limit, streaming, timeout)
        try:
            if tty:
                channel.resize(*size)
            small = stdin is not None and len(stdin) <= 65536  # exec() sends what is longer
            channel.begin(stdin if small else None)
            pid = await channel.started
            return Process(channel, channel, pid, tty, keep_stdin)
        except BaseException:
            channel.abort()
            raise

    # --- the sandbox itself ---

    async def start(self) -> None:
        """Recreates a stopped pod; only the files of its workspace and volumes are still there."""
        await self._client._start(self.name)

    async def stop(self, *, timeout: Optional[float] = None) -> None:
        """Ends its processes; the pod stays, with its logs, until it is removed. It may be stopped already."""
        await self._client._stop(self.name, timeout)

    async def kill(self) -> None:
        """The same: nothing in a pod outlives its container's command."""
        await self._client._stop(self.name, None)

    async def set_timeout(self, seconds: float) -> None:
        """It stops so many seconds from now. A pod's deadline can only come nearer."""
        await self._client._set_timeout(self.name, seconds)

    async def ports(self) -> Dict[int, Tuple[str, int]]:
        """The ports of its spec: port to the pod's address and port."""
        return await self._client._ports(self.name)

    async def logs(self, *, tail: Optional[int] = None) -> str:
        """The output of the pod, all of it or the last ``tail`` lines."""
        return await self._client._logs(self.name, tail)


class KubernetesClient(SandboxClient):
    """Creates and finds sandboxes in one namespace of a cluster, as pods.

    The cluster is the one of ``kubeconfig`` and ``context``, by default what kubectl would use, or that of the pod
    this runs in. ``runtime_class`` is the pods' RuntimeClass; None is the cluster's default runtime.
    ``create_timeout`` limits how long a pod may take to run, in seconds. A workspace is a persistent volume claim of
    that name; one that is not there is made, of ``workspace_size`` and ``storage_class``. ``pod`` and ``container`` are
    merged into each manifest: ``pod={"spec": {"nodeSelector": ...}}``, ``container={"resources": ...}``.
    """

    handle_class: Type[SandboxHandle] = KubernetesHandle

    def __init__(self, *, kubeconfig: Optional[str] = None, context: Optional[str] = None,
                 namespace: Optional[str] = None, runtime_class: Optional[str] = "msb",
                 create_timeout: float = 300.0, workspace_size: str = "1Gi", storage_class: Optional[str] = None,
                 pod: Optional[Mapping[str, Any]] = None, container: Optional[Mapping[str, Any]] = None,
                 max_output: int = DEFAULT_MAX_OUTPUT) -> None:
        self._api = Api(_kubeconfig.load(kubeconfig, context))
        self.namespace = namespace or self._api.cluster.namespace
        self.max_output = max_output
        self._runtime_class, self._create_timeout = runtime_class, create_timeout
        self._workspace_size, self._storage_class = workspace_size, storage_class
        self._pod, self._container = dict(pod or {}), dict(container or {})
        self._version: Optional[Tuple[int, int]] = None

    # --- paths ---

    def _pods(self, name: Optional[str] = None, more: str = "") -> str:
        base = f"/api/v1/namespaces/{self.namespace}/pods"
        return base if name is None else f"{base}/{_pod.pod_name(name)}{more}"

    def _policies(self, name: str = "") -> str:
        return f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies" + (f"/{name}" if name else "")

    # --- making one ---

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Creates a pod and waits until it runs. Any object with the fields of :class:`SandboxSpec` will do."""
        if isinstance(spec, str):
            raise UsageError(f"create() takes a SandboxSpec: write SandboxSpec(name=..., image={spec!r})")
        created = uuid.uuid4().hex
        loop = asyncio.get_running_loop()
        hosts = _pod.egress_hosts(spec.egress)
        _pod.manifest(spec, runtime_class=self._runtime_class, created=created, addresses={}, pod=self._pod,
                      container=self._container)  # for its checks
        addresses = await loop.run_in_executor(None, _pod.resolve, hosts) if hosts else {}
        doc = _pod.manifest(spec, runtime_class=self._runtime_class, created=created, addresses=addresses,
                            pod=self._pod, container=self._container)
        doc["metadata"]["annotations"][_RECREATED] = json.dumps(doc)
        try:
            with typed_errors(spec.name):
                if getattr(spec, "replace", False):
                    with contextlib.suppress(SandboxNotFound):
                        await self.remove(spec.name, force=True)
                await self._make_policies(_pod.network_policies(doc, addresses))
                await self._make_claim(spec)
                await self._post_pod(spec.name, doc)
                await self._until_running(spec.name, self._create_timeout)
        except BaseException:
            await uncancelled(self._undo(spec.name, doc))
            raise
        return self.handle_class(self, spec.name, owned=True)

    async def _undo(self, name: str, doc: Mapping[str, Any]) -> None:
        """What we made is removed; a sandbox that already had the name is not."""
        with contextlib.suppress(MsbError):
            pod = await self._find(name)
            if pod is not None and _created(pod) == _created(doc):
                await self._delete(name, pod)
        await self._delete_policy(doc)

    async def _make_policies(self, docs: Sequence[Mapping[str, Any]]) -> None:
        for doc in docs:
            try:
                await self._api.json("POST", self._policies(), body=doc)
            except ApiError as e:
                if e.reason != "AlreadyExists":  # as those that are shared do
                    raise

    async def _delete_policy(self, pod: Mapping[str, Any]) -> None:
        name = _pod.policy_name(pod)
        if name is not None:
            with contextlib.suppress(MsbError):
                await self._api.json("DELETE", self._policies(name))

    async def _make_claim(self, spec: Any) -> None:
        if spec.workspace is None:
            return
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        try:
            await self._api.json("GET", f"{path}/{spec.workspace}")
        except ApiError as e:
            if e.status != 404:
                raise
            doc = _pod.claim(spec.workspace, self._workspace_size, self._storage_class)
            try:
                await self._api.json("POST", path, body=doc)
            except ApiError as late:
                if late.reason != "AlreadyExists":
                    raise

    async def _post_pod(self, name: str, doc: Mapping[str, Any]) -> None:
        """Also where an earlier one of this name is about to be gone, and where an answer was lost on the way."""
        until = asyncio.get_running_loop().time() + self._create_timeout
        while True:
            try:
                pod = await self._api.json("POST", self._pods(), body=doc)
            except ApiError as e:
                if e.reason != "AlreadyExists":
                    raise
                found = await self._find(name)
                if found is None or _created(found) != _created(doc):
                    going = found is None or bool(found["metadata"].get("deletionTimestamp"))
                    if not going or asyncio.get_running_loop().time() > until:
                        raise
                    if found is not None:
                        await self._until_gone(name, str(found["metadata"]["uid"]))
                    continue
                pod = found
            await self._own_policy(pod)
            return

    async def _own_policy(self, pod: Mapping[str, Any]) -> None:
        """A policy of its own goes with the pod, whoever deletes that."""
        name, meta = _pod.policy_name(pod), pod["metadata"]
        if name is None:
            return
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        await self._api.json("PATCH", self._policies(name), content_type=_MERGE,
                             body={"metadata": {"ownerReferences": [owner]}})

    # --- waiting ---

    async def _states(self, name: str) -> AsyncIterator[Optional[Dict[str, Any]]]:
        """The pod as it is, then as it changes; None when it is gone. Watches that end are begun again."""
        while True:
            try:
                pod = await self._get(name)
            except SandboxNotFound:
                yield None
                await asyncio.sleep(0.1)
                continue
            yield pod
            meta = pod["metadata"]
            query = [("fieldSelector", f"metadata.name={meta['name']}"),
                     ("resourceVersion", str(meta.get("resourceVersion") or ""))]
            try:
                async for kind, found in self._api.watch(self._pods(), query):
                    yield None if kind == "DELETED" else found
                    if kind == "DELETED":
                        break
            except ApiError as e:
                if e.status != 410 and not may_repeat(e, "GET"):  # 410: what we know is too old
                    raise
            await asyncio.sleep(0.1)

    async def _until_running(self, name: str, seconds: float) -> None:
        last: Dict[str, Any] = {}

        async def wait() -> None:
            nonlocal last
            states = self._states(name)
            try:
                async for pod in states:
                    if pod is None:
                        raise SandboxEnded(f"sandbox '{name}' was removed before it ran")
                    last = pod
                    if _pod.status_of(pod) == "Running":
                        return
                    _raise_trouble(name, pod)
            finally:
                await states.aclose()  # type: ignore[attr-defined]

        try:
            await bounded(wait(), seconds)
        except asyncio.TimeoutError:
            raise MsbError(f"sandbox '{name}' did not run within {seconds:g} s: {_pod.why_waiting(last)}") from None

    async def _until(self, name: str, seconds: float, done: Any, what: str) -> None:
        async def wait() -> None:
            states = self._states(name)
            try:
                async for pod in states:
                    if done(pod):
                        return
            finally:
                await states.aclose()  # type: ignore[attr-defined]

        try:
            await bounded(wait(), seconds)
        except asyncio.TimeoutError:
            raise MsbError(f"sandbox '{name}' {what} within {seconds:g} s") from None

    async def _until_gone(self, name: str, uid: str) -> None:
        await self._until(name, 60.0, lambda pod: pod is None or pod["metadata"]["uid"] != uid, "was not removed")

    # --- finding, listing, removing ---

    async def _find(self, name: str) -> Optional[Dict[str, Any]]:
        """The pod that has the name, whoever made it."""
        try:
            return await self._api.json("GET", self._pods(name))
        except ApiError as e:
            if e.status != 404:
                raise
            return None

    async def _get(self, name: str) -> Dict[str, Any]:
        with typed_errors(name):
            try:
                path = self._pods(name)
            except UsageError:
                raise SandboxNotFound(f"sandbox not found: {name}") from None
            pod = await self._api.json("GET", path)
        if _pod.SANDBOX not in (pod.get("metadata", {}).get("labels") or {}):
            raise SandboxNotFound(f"sandbox not found: {name}", ["there is a pod of that name, which is not a sandbox"])
        return pod

    async def get(self, name: str) -> SandboxHandle:
        """An existing sandbox, running or not; :class:`SandboxNotFound` if there is none."""
        await self._get(name)
        return self.handle_class(self, name)

    async def list(self, *, labels: Optional[Mapping[str, str]] = None) -> List[str]:
        """Names of all sandboxes of the namespace, newest first; with ``labels``, of those that have all of these."""
        selector = ",".join([_pod.SANDBOX, *(f"{k}={v}" for k, v in _pod.check_labels(labels or {}).items())])
        found: List[Tuple[str, str]] = []
        query = [("labelSelector", selector), ("limit", str(LIST_PAGE))]
        more: List[Tuple[str, str]] = []
        while True:
            with typed_errors():
                doc = await self._api.json("GET", self._pods(), query + more)
            for pod in doc.get("items") or ():
                meta = pod["metadata"]
                if meta.get("deletionTimestamp"):
                    continue
                name = (meta.get("annotations") or {}).get(_pod.NAME) or meta["name"]
                found.append((str(meta.get("creationTimestamp") or ""), str(name)))
            token = (doc.get("metadata") or {}).get("continue")
            if not token:
                return [name for _, name in sorted(found, key=lambda f: f[0], reverse=True)]
            more = [("continue", str(token))]

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Removes a stopped sandbox; with ``force`` also a running one. Its workspace stays."""
        pod = await self._get(name)
        if not force and _pod.status_of(pod) != "Stopped":
            raise SandboxNotRunning(f"sandbox still running: {name}", ["stop it first, or remove it with force=True"])
        await self._delete(name, pod)

    async def _delete(self, name: str, pod: Mapping[str, Any]) -> None:
        """This pod, none that has its name since, and its own policy; waits until it is gone."""
        uid = str(pod["metadata"]["uid"])
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1, "preconditions": {"uid": uid}}
        try:
            await self._api.json("DELETE", self._pods(name), body=body)
        except ApiError as e:
            if e.status not in (404, 409):  # it is gone, or another has the name by now
                raise typed(e, name) from e
        await self._until_gone(name, uid)
        await self._delete_policy(pod)

    def workspace(self, name: str) -> Workspace:
        """Not available in a cluster: a workspace is a persistent volume claim there."""
        raise UsageError("workspace() is not available in a cluster", ["use SandboxSpec(workspace=...)"])

    async def _inspect(self, name: str) -> SandboxInfo:
        pod = await self._get(name)
        meta, container = pod["metadata"], _main(pod)
        annotations = meta.get("annotations") or {}
        labels = {k: v for k, v in (meta.get("labels") or {}).items() if not k.startswith("msb/")}
        limits = (container.get("resources") or {}).get("limits") or {}
        config = {"image": container.get("image"), "labels": labels,
                  "resources": {"memory_mib": _mebibytes(str(limits.get("memory") or "0")), "cpus": limits.get("cpu")}}
        status, name = _pod.status_of(pod), str(annotations.get(_pod.NAME) or name)
        return SandboxInfo(name=name, status=status, image=str(container.get("image") or ""), labels=labels,
                           details={"name": name, "status": status, "config": config, "pod": pod})

    # --- what handles do ---

    async def _half_close(self) -> bool:
        """Whether the server can pass on the end of a command's input."""
        if self._version is None:
            with typed_errors():
                doc = await self._api.json("GET", "/version")
            numbers = ["".join(c for c in str(doc.get(k) or "0") if c.isdigit()) for k in ("major", "minor")]
            self._version = int(numbers[0] or 0), int(numbers[1] or 0)
        return self._version >= (1, 30)

    async def _exec(self, name: str, plan: Plan, limit: int, streaming: bool, timeout: Optional[float]) -> KubeChannel:
        """Connects, again if the server or the node's kubelet is not there for a moment: nothing has run then."""
        loop = asyncio.get_running_loop()
        until, pause, fresh = loop.time() + RETRY_SECONDS, 0.1, True
        while True:
            error: MsbError
            try:
                return await self._connect(name, plan, limit, streaming, timeout)
            except ApiError as e:
                if e.status == 401 and self._api.cluster.plugin is not None and fresh:
                    self._api.cluster.forget()
                    fresh = False
                    continue
                error = await self._why_no_exec(name, e)
                if not may_repeat(e, "GET") or isinstance(error, (SandboxNotFound, SandboxNotRunning)):
                    raise error from e
            except (OSError, asyncio.TimeoutError) as e:
                error = self._api.unreachable(e)
                if "is not who" in error.message:
                    raise error from e
            if loop.time() + pause > until:
                raise error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _connect(self, name: str, plan: Plan, limit: int, streaming: bool,
                       timeout: Optional[float]) -> KubeChannel:
        target = self._api.target(self._pods(name, "/exec"), plan.query())
        key = new_key()
        head = await self._api.headers("GET", target, {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": ", ".join(PROTOCOLS), "Sec-WebSocket-Key": key})

        async def send_signal(group: int, number: Optional[int]) -> None:
            await self._signal(name, group, number)

        async def why_lost(words: str) -> MsbError:
            return await self._why_lost(name, words)

        loop = asyncio.get_running_loop()
        transport, channel = await bounded(loop.create_connection(
            lambda: KubeChannel(head, key, plan, limit, streaming, timeout, send_signal, why_lost),
            **self._api.connection()), CONNECT_SECONDS, lambda made: made[0].abort())
        try:
            keep_alive(transport.get_extra_info("socket"))
            await bounded(asyncio.shield(channel.opened), 30.0)
            return channel
        except BaseException:
            channel.abort()
            raise

    async def _why_no_exec(self, name: str, error: ApiError) -> MsbError:
        """The server's reasons for refusing are words; the pod's state says more."""
        if error.status in (401, 403):
            return typed(error, name)
        try:
            status = _pod.status_of(await self._get(name))
        except SandboxNotFound as e:
            return e
        if status != "Running":
            return SandboxNotRunning(f"sandbox '{name}' is not running (status: {status})", ["start it first"])
        return typed(error, name)

    async def _why_lost(self, name: str, words: str) -> MsbError:
        """The error for a command whose connection ended before it did. A node tells of an end a moment later."""
        status = "unknown"
        for pause in (REPORT_SECONDS, 0):
            try:
                status = _pod.status_of(await bounded(self._get(name), ASK_SECONDS))
            except SandboxNotFound:
                status = "Removed"
            except (MsbError, asyncio.TimeoutError):
                break
            if status != "Running":
                break
            await asyncio.sleep(pause)
        if status in ("Removed", "Stopped", "Stopping"):
            return SandboxEnded("sandbox ended while the command ran", [f"status: {status}"])
        return SandboxUnavailable(f"the connection to sandbox '{name}' was lost: {words}", [f"status: {status}"])

    async def _signal(self, name: str, group: int, number: Optional[int]) -> None:
        """Runs a command of our own that sends a signal."""
        try:
            await bounded(self._run_quietly(name, signal_command(group, number)), SIGNAL_SECONDS)
        except asyncio.TimeoutError:
            raise MsbError(f"sandbox '{name}' did not pass on a signal within {SIGNAL_SECONDS:g} s") from None

    async def _run_quietly(self, name: str, argv: Sequence[str]) -> int:
        plan = Plan(argv, env={}, cwd=None, tty=False, stdin=None, half_close=False)
        channel = await self._exec(name, plan, 4096, False, None)
        try:
            channel.begin(None)
            await channel.started
            return (await asyncio.shield(channel.ended)).exit_code
        finally:
            channel.abort()

    async def _stop(self, name: str, timeout: Optional[float]) -> None:
        """The container's command is told to end, and with it goes the rest. If that cannot be said, a deadline that
        has passed ends the pod as well, but the kubelet takes its time."""
        pod = await self._get(name)
        if _pod.status_of(pod) == "Stopped":
            return
        seconds = 10.0 if timeout is None else timeout
        timeout_ms(timeout)

        def stopped(pod: Optional[Mapping[str, Any]]) -> bool:
            return pod is None or _pod.status_of(pod) == "Stopped"

        try:
            with contextlib.suppress(SandboxEnded, SandboxUnavailable, asyncio.TimeoutError):
                await bounded(self._run_quietly(name, _pod.END), seconds)
            await self._until(name, max(seconds, 5.0), stopped, "did not stop")
        except SandboxNotFound:
            raise
        except MsbError:
            with typed_errors(name):
                await self._api.json("PATCH", self._pods(name), body={"spec": {"activeDeadlineSeconds": 1}},
                                     content_type=_MERGE)
            await self._until(name, 60.0, stopped, "did not stop")

    async def _start(self, name: str) -> None:
        pod = await self._get(name)
        if _pod.status_of(pod) in ("Running", "Starting"):
            await self._until_running(name, self._create_timeout)
            return
        text = (pod["metadata"].get("annotations") or {}).get(_RECREATED)
        if not text:
            raise MsbError(f"sandbox '{name}' cannot be started: it does not say what it was made from")
        doc = json.loads(text)
        doc["metadata"]["annotations"][_RECREATED] = text
        await self._delete_pod_only(name, str(pod["metadata"]["uid"]))
        with typed_errors(name):
            await self._post_pod(name, doc)
        await self._until_running(name, self._create_timeout)

    async def _delete_pod_only(self, name: str, uid: str) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1, "propagationPolicy": "Orphan",
                "preconditions": {"uid": uid}}
        try:
            await self._api.json("DELETE", self._pods(name), body=body)
        except ApiError as e:
            if e.status != 404:
                raise typed(e, name) from e
        await self._until_gone(name, uid)

    async def _set_timeout(self, name: str, seconds: float) -> None:
        timeout_ms(seconds)
        pod = await self._get(name)
        if _pod.status_of(pod) != "Running":
            raise SandboxNotRunning(f"sandbox '{name}' is not running (status: {_pod.status_of(pod)})")
        begun = _kubeconfig.moment(pod["status"].get("startTime"))
        deadline = max(1, round(time.time() - begun + seconds))
        with typed_errors(name):
            await self._api.json("PATCH", self._pods(name), body={"spec": {"activeDeadlineSeconds": deadline}},
                                 content_type=_MERGE)

    async def _ports(self, name: str) -> Dict[int, Tuple[str, int]]:
        pod = await self._get(name)
        address = str(pod.get("status", {}).get("podIP") or "")
        if not address:
            raise SandboxNotRunning(f"sandbox '{name}' has no address yet")
        return {int(p["containerPort"]): (address, int(p["containerPort"])) for p in _main(pod).get("ports") or ()
                if p.get("protocol", "TCP") == "TCP"}

    async def _logs(self, name: str, tail: Optional[int]) -> str:
        await self._get(name)
        query = [("container", MAIN), ("limitBytes", str(LOG_MAX))]
        if tail is not None:
            query.append(("tailLines", str(int(tail))))
        with typed_errors(name):
            return (await self._api.raw("GET", self._pods(name, "/log"), query)).decode("utf-8", "replace")

    async def _tear_down(self, sandbox: SandboxHandle) -> None:
        """Removes it, ignoring errors: nothing in a pod needs a stop before."""
        with contextlib.suppress(Exception):
            await self.remove(sandbox.name, force=True)


def _created(pod: Mapping[str, Any]) -> Any:
    """The word that tells a pod from others that have had its name."""
    return (pod["metadata"].get("annotations") or {}).get(_pod.CREATED)


def _main(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    found: List[Mapping[str, Any]] = pod.get("spec", {}).get("containers") or []
    return next((c for c in found if c.get("name") == MAIN), {})


def _mebibytes(text: str) -> int:
    """A quantity such as 512Mi; an API server shortens them."""
    units = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}
    with contextlib.suppress(ValueError):
        return int(float(text[:-2]) * units[text[-2:]]) if text[-2:] in units else int(text) >> 20
    return 0


def _raise_trouble(name: str, pod: Mapping[str, Any]) -> None:
    found = _pod.trouble(pod)
    if found is None:
        return
    kind: Type[MsbError] = {"image": ImageError, "secret": SecretError}.get(found[0], MsbError)
    raise kind(f"sandbox '{name}' cannot run: {found[1]}")
