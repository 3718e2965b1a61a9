"""Images made at test time by the tools that people make images with, and a registry to hold them.

    image = imagekit.busybox()                  an OCI layout in a cache outside the work tree
    image.archive("docker", path, "x:1")        what `docker save` would have written
    with imagekit.Registry(tmp) as r:           Debian's docker-registry on a loopback port
        r.push(image, "x:1")

Images: busybox() in one layer; alpine() tagged alpine:3, busybox and no bash; debian() with Python,
several layers, whiteouts; python_slim(), the same with a `python`; layers(30); multiarch(), an index.
Each is built once for each recipe and kept in ~/.cache/msb/test-images; run as a program, this makes all
that take long. What a machine cannot do raises Unavailable with the reason, which pytest takes as a skip.
Not only tests use this: nothing here needs pytest.
"""
import base64
import concurrent.futures
import contextlib
import fcntl
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import ssl
import subprocess
import tarfile
import tempfile
import time
import unittest
import urllib.request

BUSYBOX = "/bin/busybox"
MTIME = 1700000000
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OCI = "application/vnd.oci.image."
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class Unavailable(unittest.SkipTest):
    """This machine cannot make or run that; the message says why."""


def need(*programs):
    for name in programs:
        if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            raise Unavailable(f"{name} is not installed")


def run(*cmd, **kw):
    """Runs a tool that must succeed; its output is in the error when it does not."""
    p = subprocess.run([str(c) for c in cmd], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)
    if p.returncode:
        text = p.stdout.decode(errors="replace")[-4000:]
        raise RuntimeError(f"{' '.join(map(str, cmd))}: exit {p.returncode}\n{text}")
    return p.stdout.decode(errors="replace")


def skopeo(*args, **kw):
    need("skopeo")
    kw.setdefault("timeout", 600)
    return run("skopeo", "--insecure-policy", *args, **kw)


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


# --- the cache ----------------------------------------------------------------------------------


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("MSB_CACHE_DIR") or pathlib.Path(base, "msb")) / "test-images"


@contextlib.contextmanager
def locked(path):
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def cached(name, recipe, build):
    """The directory that build(dir) fills, made once for each recipe, also when many ask at once."""
    key = hashlib.sha256(json.dumps([recipe, MACHINE], sort_keys=True).encode()).hexdigest()[:16]
    root = cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    done = root / f"{name}-{key}"
    if done.is_dir():
        return done
    with locked(root / f".{name}-{key}.lock"):
        if done.is_dir():
            return done
        work = pathlib.Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
        try:
            build(work)
            work.chmod(0o755)
            work.rename(done)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return done


# --- tars ---------------------------------------------------------------------------------------


class Tar:
    """A tar in memory or a file, with any owner, mode, device or nonsense, whoever runs the test."""

    def __init__(self, path=None, form=tarfile.PAX_FORMAT, mode="w"):
        self.file = None if path else io.BytesIO()
        self.tar = tarfile.open(path, mode, fileobj=self.file, format=form)

    def add(self, name, data=b"", mode=0o644, uid=0, gid=0, kind=tarfile.REGTYPE, link="",
            dev=(0, 0), pax=None, mtime=MTIME):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid, info.mtime = kind, mode, uid, gid, mtime
        info.linkname, info.devmajor, info.devminor = link, *dev
        info.pax_headers = dict(pax or {})
        data = data.encode() if isinstance(data, str) else data
        info.size = len(data) if kind == tarfile.REGTYPE else 0
        self.tar.addfile(info, io.BytesIO(data))
        return self

    def dir(self, name, mode=0o755, **kw):
        return self.add(name, kind=tarfile.DIRTYPE, mode=mode, **kw)

    def symlink(self, name, target, **kw):
        return self.add(name, kind=tarfile.SYMTYPE, link=target, mode=0o777, **kw)

    def hardlink(self, name, target, **kw):
        return self.add(name, kind=tarfile.LNKTYPE, link=target, **kw)

    def whiteout(self, name):
        head, tail = os.path.split(name)
        return self.add(os.path.join(head, ".wh." + tail), mode=0)

    def opaque(self, name):
        return self.add(os.path.join(name, ".wh..wh..opq"), mode=0)

    def bytes(self):
        self.tar.close()
        return self.file.getvalue()

    def close(self):
        self.tar.close()


def add_shell(t, applets=None):
    """/bin/busybox and its names, in a tar or a list of them."""
    if not os.path.exists(BUSYBOX):
        raise Unavailable("busybox-static is not installed")
    names = applets or run(BUSYBOX, "--list").split()
    t.dir("bin")
    t.add("bin/busybox", pathlib.Path(BUSYBOX).read_bytes(), mode=0o755)
    for name in sorted(set(names) - {"busybox", "bash"}):
        t.symlink(f"bin/{name}", "busybox")
    return t


def add_system(t):
    """What a small root has besides programs."""
    for name, mode in (("dev", 0o755), ("etc", 0o755), ("home", 0o755), ("proc", 0o555),
                       ("root", 0o700), ("run", 0o755), ("sys", 0o555), ("tmp", 0o1777),
                       ("usr", 0o755), ("usr/bin", 0o755), ("var", 0o755), ("var/tmp", 0o1777)):
        t.dir(name, mode)
    t.add("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nwww:x:33:33:www:/home/www:/bin/sh\n"
                        "nobody:x:65534:65534:nobody:/:/bin/false\n")
    t.add("etc/group", "root:x:0:\nwww:x:33:\nnogroup:x:65534:\n")
    t.dir("home/www", 0o755, uid=33, gid=33)
    return t


def shell_tar():
    return add_system(add_shell(Tar())).bytes()


# --- OCI layouts, written by hand ---------------------------------------------------------------


class Layout:
    """Writes an OCI layout blob by blob: for indexes, and for images that no sane tool makes."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        (self.path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (self.path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        self.entries = []
        self.write_index()

    def write_index(self):
        doc = {"schemaVersion": 2, "manifests": self.entries}
        (self.path / "index.json").write_text(json.dumps(doc))

    def blob(self, data, media_type, **more):
        """Stores bytes; returns their descriptor."""
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        digest = sha256(data)
        (self.path / "blobs" / "sha256" / digest[7:]).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data), **more}

    def image(self, tars, config=None, arch=MACHINE, compress=None, system="linux", diff_ids=None,
              **more):
        """An image of plain layers (compress: None, or a function bytes -> (bytes, "gzip"|...))."""
        layers = []
        for tar in tars:
            data, kind = compress(tar) if compress else (tar, None)
            layers.append(self.blob(data, OCI + "layer.v1.tar" + (f"+{kind}" if kind else "")))
        doc = {"architecture": arch, "os": system, "config": config or {},
               "rootfs": {"type": "layers",
                          "diff_ids": diff_ids if diff_ids is not None else [sha256(t) for t in tars]}}
        manifest = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json",
                    "config": self.blob(doc, OCI + "config.v1+json"), "layers": layers}
        return self.blob(manifest, OCI + "manifest.v1+json", **more)

    def index(self, manifests, **more):
        doc = {"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": manifests}
        return self.blob(doc, OCI + "index.v1+json", **more)

    def tag(self, descriptor, name):
        notes = {"org.opencontainers.image.ref.name": name}
        self.entries.append({**descriptor, "annotations": notes})
        self.write_index()
        return Image(self.path, name)

    def archive(self, path):
        """The layout as a tar."""
        with tarfile.open(path, "w") as t:
            for name in ("oci-layout", "index.json", "blobs"):
                t.add(self.path / name, name)
        return pathlib.Path(path)


# --- images -------------------------------------------------------------------------------------


class Image:
    """One image in an OCI layout."""

    def __init__(self, layout, tag):
        self.layout, self.tag = pathlib.Path(layout), tag

    @property
    def url(self):
        return f"oci:{self.layout}:{self.tag}"

    def descriptor(self):
        for d in json.loads((self.layout / "index.json").read_text())["manifests"]:
            if d.get("annotations", {}).get("org.opencontainers.image.ref.name") == self.tag:
                return d
        raise KeyError(self.tag)

    def blob(self, digest):
        return (self.layout / "blobs" / "sha256" / digest.split(":")[1]).read_bytes()

    def manifest(self):
        return json.loads(self.blob(self.descriptor()["digest"]))

    def config(self):
        return json.loads(self.blob(self.manifest()["config"]["digest"]))

    def archive(self, kind, path, *names):
        """Writes a docker-archive or oci-archive; further names are more tags of the same image."""
        path = pathlib.Path(path)
        path.unlink(missing_ok=True)
        name = names[0] if names else f"{self.tag}:latest"
        extra = [a for n in names[1:] for a in ("--additional-tag", n)] if kind == "docker" else []
        skopeo("copy", *extra, self.url, f"{kind}-archive:{path}:{name}")
        return path

    def recompressed(self, kind):
        """The same image with layers compressed by gzip or zstd."""
        key = [kind, self.descriptor()["digest"]]

        def build(d):
            skopeo("copy", "--dest-compress-format", kind, self.url, f"oci:{d}/layout:{self.tag}")

        return Image(cached(f"{self.tag}-{kind}", key, build) / "layout", self.tag)

    def unpack(self, dest):
        """The root file system as umoci unpacks it."""
        need("umoci")
        rootless = [] if os.geteuid() == 0 else ["--rootless"]
        run("umoci", "unpack", *rootless, "--image", f"{self.layout}:{self.tag}", dest, timeout=600)
        return pathlib.Path(dest) / "rootfs"


def umoci_image(layout, tag, tars, *config):
    """An image out of layer tars (paths), with umoci."""
    need("umoci")
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:{tag}")
    for tar in tars:
        run("umoci", "raw", "add-layer", "--image", f"{layout}:{tag}", tar, timeout=600)
    run("umoci", "config", "--image", f"{layout}:{tag}", "--config.env", DEFAULT_PATH, *config)
    run("umoci", "gc", "--layout", layout)


def built(tag, recipe, tars, *config):
    """A cached image of tars in memory; tars() is called only when they are needed."""
    def build(d):
        paths = []
        for i, data in enumerate(tars()):
            paths.append(d / f"{i}.tar")
            paths[-1].write_bytes(data)
        umoci_image(d / "layout", tag, paths, *config)
        for p in paths:
            p.unlink()

    return Image(cached(tag, [recipe, config], build) / "layout", tag)


def busybox():
    """One layer, and a configuration with everything in it."""
    return built("busybox", [1], lambda: [shell_tar()],
                 "--config.cmd", "sh", "--config.workingdir", "/home/www", "--config.user", "www",
                 "--config.env", "GREETING=hello world", "--config.label", "org.example.kind=test",
                 "--config.stopsignal", "SIGUSR1", "--config.exposedports", "8080/tcp",
                 "--config.volume", "/home/www/data")


def alpine():
    """What alpine:3 is for its users: busybox and nothing else, above all no bash."""
    def tars():
        t = add_system(add_shell(Tar()))
        t.add("etc/alpine-release", "3.0.0\n")
        t.add("etc/os-release", 'NAME="Alpine Linux"\nID=alpine\nVERSION_ID=3.0.0\n')
        t.add("etc/profile", "export CHARSET=UTF-8\nexport PAGER=less\numask 022\n")
        t.dir("lib").dir("sbin").dir("usr/sbin").dir("usr/local").dir("usr/local/bin")
        return [t.bytes()]

    return built("alpine", [1], tars, "--config.cmd", "/bin/sh")


def layers(n=30):
    """Each layer adds a file, replaces one, deletes its grandparent's, and one hides a directory."""
    def tars():
        yield shell_tar()
        for i in range(1, n):
            t = Tar()
            t.dir("layers").add(f"layers/{i:02}", f"layer {i}\n" * i)
            t.add("current", f"{i}\n", mtime=MTIME + i)
            if i > 2:
                t.whiteout(f"layers/{i - 2:02}")
            if i == n // 2:
                t.dir("home").opaque("home").add("home/fresh", b"x" * 5000)
            if i == n // 2 + 1:
                t.hardlink(f"layers/{i:02}-again", f"layers/{i:02}")
            yield t.bytes()

    return built(f"layers{n}", [1, n], tars, "--config.cmd", "cat,/current")


def multiarch():
    """An index: linux/amd64, linux/arm64/v8, and an attestation for nobody. /etc/arch tells."""
    def build(d):
        out = Layout(d / "layout")
        entries = []
        for arch, variant in (("amd64", None), ("arm64", "v8")):
            t = Tar(form=tarfile.USTAR_FORMAT).dir("etc").add("etc/arch", arch)
            place = {"os": "linux", "architecture": arch}
            if variant:
                place["variant"] = variant
            entries.append(out.image([shell_tar(), t.bytes()], {"Cmd": ["cat", "/etc/arch"],
                                     "Env": [DEFAULT_PATH]}, arch=arch, platform=place))
        entries.append(out.image(
            [Tar().add("statement", "{}").bytes()], arch="unknown", system="unknown",
            platform={"os": "unknown", "architecture": "unknown"},
            annotations={"vnd.docker.reference.type": "attestation-manifest",
                         "vnd.docker.reference.digest": entries[0]["digest"]}))
        out.tag(out.index(entries), "multiarch")

    return Image(cached("multiarch", [1], build) / "layout", "multiarch")


# --- podman -------------------------------------------------------------------------------------


class Podman:
    """podman with separate storage, removed with its context."""

    def __init__(self):
        need("podman")
        if os.geteuid() != 0:
            raise Unavailable("podman without root needs more than its storage")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="msb-podman-"))  # it wants a short path
        (self.dir / "policy.json").write_text('{"default":[{"type":"insecureAcceptAnything"}]}')

    def __call__(self, *args):
        return run("podman", "--root", self.dir / "root", "--runroot", self.dir / "run",
                   "--storage-driver", "vfs", *args, timeout=300)

    def load(self, path):
        return self("load", "-q", "--signature-policy", self.dir / "policy.json", "-i", path)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        shutil.rmtree(self.dir, ignore_errors=True)


# --- Debian -------------------------------------------------------------------------------------

PYTHON_PATHS = ("./usr/bin/python3*", "./usr/lib/python3*", "./usr/share/python3",
                "./usr/lib/*-linux-gnu/libpython3*")


def debian_release():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=", 1)[1].strip('"')
    raise Unavailable("this machine's /etc/os-release names no Debian release")


def debian_mirror(release):
    """Where this machine's own apt gets Debian from."""
    need("apt-get", "debootstrap")
    lines = run("apt-get", "indextargets", "--no-release-info", "--format",
                "$(REPO_URI) $(RELEASE)", "Identifier: Packages", "Component: main").splitlines()
    for uri, suite in (line.split() for line in lines if len(line.split()) == 2):
        if suite == release and uri.startswith(("http://", "https://", "file:", "copy:")):
            return uri
    raise Unavailable(f"apt is not configured to fetch {release}")


def bootstrap_debian(root, packages="python3"):
    if os.geteuid() != 0:
        raise Unavailable("debootstrap takes root")
    release = debian_release()
    mirror = debian_mirror(release)
    env = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    for scheme in ("http", "https"):
        m = re.search(r'"(.+)"', run("apt-config", "dump", f"Acquire::{scheme}::Proxy"))
        if m and m[1] != "DIRECT":
            env.setdefault(f"{scheme}_proxy", m[1])
    try:
        # What it mounts goes with its mount namespace, however it ends.
        run("unshare", "--mount", "--propagation", "private", "debootstrap", "--variant=minbase",
            f"--include={packages}", release, root, mirror, env=env, timeout=1200)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        raise Unavailable(f"debootstrap failed: {str(e)[-500:]}") from None


def unpacked(release, *packages):
    """A directory with packages of a Debian that may be newer, and all that they depend on; nothing is installed."""
    def build(root):
        need("apt-get", "dpkg-deb")
        mirror, keys = debian_mirror(debian_release()), "/usr/share/keyrings/debian-archive-keyring.gpg"
        with tempfile.TemporaryDirectory() as work:
            w = pathlib.Path(work)
            for d in ("lists/partial", "archives/partial", "parts"):
                (w / d).mkdir(parents=True)
            (w / "status").touch()
            (w / "sources").write_text(f"deb [signed-by={keys}] {mirror} {release} main\n")
            apt = ["apt-get", "-q", "-y", "-o", f"Dir::State={w}", "-o", f"Dir::State::status={w}/status", "-o", f"Dir::Cache={w}",
                   "-o", f"Dir::Etc::sourcelist={w}/sources", "-o", f"Dir::Etc::sourceparts={w}/parts", "-o", "Debug::NoLocking=1",
                   "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=0",
                   "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]
            try:
                run(*apt, "update", timeout=300)
                run(*apt, "install", "--no-install-recommends", "--download-only", *packages, timeout=600)
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                raise Unavailable(f"apt-get cannot fetch {packages[0]} of {release}: {str(e)[-500:]}") from None
            for deb in w.glob("archives/*.deb"):
                run("dpkg-deb", "-x", deb, root)

    return cached(packages[0], [1, release, packages, debian_release()], build)


def moto():
    """A command and its environment: an S3 server that Debian 12 does not have, in the Python that it was packaged for."""
    usr = unpacked("trixie", "python3-moto", "python3-flask-cors") / "usr"
    env = {**os.environ, "PYTHONHOME": str(usr), "PYTHONPATH": str(usr / "lib/python3/dist-packages")}
    return [usr / "lib64/ld-linux-x86-64.so.2", "--library-path", usr / "lib/x86_64-linux-gnu", usr / "bin/python3",
            usr / "bin/moto_server"], env


def debian():
    """debootstrap's minimal Debian; Python over it; then an application and deletions: 3 layers."""
    def build(d):
        need("umoci", "debootstrap", "tar")
        root = d / "root"
        bootstrap_debian(root)
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        tar = ["tar", "-C", root, "--sort=name", "--numeric-owner", "--xattrs", "--xattrs-include=*",
               "--format=pax", "--pax-option=delete=atime,delete=ctime"]
        leave = [f"--exclude={p}" for p in (*PYTHON_PATHS, "./dev/*", "./proc/*", "./sys/*")]
        run(*tar, *leave, "-cf", d / "0.tar", ".")
        have = [f"./{p.relative_to(root)}" for g in PYTHON_PATHS for p in sorted(root.glob(g[2:]))]
        run(*tar, "-cf", d / "1.tar", *have)
        t = Tar(d / "2.tar")
        t.whiteout("usr/share/doc").whiteout("var/log/bootstrap.log").whiteout("etc/motd")
        t.dir("var").dir("var/lib").dir("var/lib/apt").dir("var/lib/apt/lists")
        t.opaque("var/lib/apt/lists")
        t.dir("srv").dir("srv/app", uid=1000, gid=1000)
        t.add("srv/app/hello.py", "import sys\nprint('hello from', sys.version_info[0])\n", uid=1000)
        t.close()
        umoci_image(d / "layout", "debian", [d / f"{i}.tar" for i in range(3)],
                    "--config.cmd", "python3", "--config.workingdir", "/srv/app")
        shutil.rmtree(root)
        for i in range(3):
            (d / f"{i}.tar").unlink()

    return Image(cached("debian", [1, debian_release()], build) / "layout", "debian")


def python_slim():
    """debian() with a `python`, which is what the SDK's default image promises."""
    def build(d):
        base = debian()
        need("umoci")
        skopeo("copy", base.url, f"oci:{d / 'layout'}:python")
        tar = Tar(d / "python.tar").dir("usr").dir("usr/local").dir("usr/local/bin")
        tar.symlink("usr/local/bin/python", "/usr/bin/python3")
        tar.close()
        run("umoci", "raw", "add-layer", "--image", f"{d / 'layout'}:python", d / "python.tar")
        (d / "python.tar").unlink()

    return Image(cached("python", [1, debian_release()], build) / "layout", "python")


def net_guest():
    """Debian with the programs that people use a network with: a docker-archive of one layer."""
    packages = "python3,python3-pip,curl,git,ca-certificates,iproute2,netbase,nodejs"

    def build(d):
        need("umoci", "debootstrap", "tar", "skopeo")
        root = d / "root"
        bootstrap_debian(root, packages)
        for p in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man",
                  "usr/share/locale", "usr/share/nodejs/npm"):
            shutil.rmtree(root / p, ignore_errors=True)
        run("tar", "-C", root, "--sort=name", "--numeric-owner", "--exclude=./dev/*", "--exclude=./proc/*",
            "--exclude=./sys/*", "-cf", d / "0.tar", ".")
        umoci_image(d / "layout", "net-guest", [d / "0.tar"], "--config.cmd", "bash")
        skopeo("copy", f"oci:{d / 'layout'}:net-guest", f"docker-archive:{d / 'image.tar'}:net-guest:1")
        for p in (root, d / "layout"):
            shutil.rmtree(p)
        (d / "0.tar").unlink()

    return cached("net-guest", [1, packages, debian_release()], build) / "image.tar"


# --- the registry -------------------------------------------------------------------------------

REGISTRY_CONFIG = """version: 0.1
log: {{level: info, formatter: text}}
storage:
  filesystem: {{rootdirectory: {data}}}
  delete: {{enabled: true}}
http:
  addr: 127.0.0.1:0
{more}"""


def make_ca(d, names="subjectAltName=DNS:localhost,IP:127.0.0.1"):
    """A certificate authority and a certificate, for localhost or others: (ca, certificate, key)."""
    need("openssl")
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
        "/CN=msb test CA", "-addext", "keyUsage=critical,keyCertSign", "-keyout", d / "ca.key", "-out", d / "ca.pem")
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
        "-addext", names, "-keyout", d / "tls.key", "-out", d / "tls.csr")
    (d / "tls.ext").write_text(names + "\n")
    run("openssl", "x509", "-req", "-days", "2", "-in", d / "tls.csr", "-CA", d / "ca.pem", "-CAkey",
        d / "ca.key", "-CAcreateserial", "-extfile", d / "tls.ext", "-out", d / "tls.pem")
    return d / "ca.pem", d / "tls.pem", d / "tls.key"


class Registry:
    """docker-registry on a loopback port that the kernel picks; dies with its context.

    host         "localhost:PORT": what references begin with
    ca           PEM file of the authority that signed its certificate (tls=True)
    user, password                              (auth=True)
    """

    def __init__(self, directory, tls=False, auth=False):
        need("docker-registry")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="registry-", dir=directory))
        self.data = self.dir / "data"
        self.log = self.dir / "log"
        self.ca = self.user = self.password = self.process = None
        more = ""
        if tls:
            self.ca, cert, key = make_ca(self.dir)
            more += f"  tls: {{certificate: {cert}, key: {key}}}\n"
        if auth:
            need("htpasswd")
            self.user, self.password = "tester", "s3cret: pass"
            (self.dir / "htpasswd").write_text(
                run("htpasswd", "-Bbn", "-C", "4", self.user, self.password))
            more += f"auth:\n  htpasswd: {{realm: msb test, path: {self.dir / 'htpasswd'}}}\n"
        (self.dir / "config.yml").write_text(REGISTRY_CONFIG.format(data=self.data, more=more))
        self.port = 0
        self.start()

    def start(self):
        """Starts it; again on the port that it had, after stop()."""
        config = (self.dir / "config.yml").read_text()
        if self.port:
            config = re.sub(r"addr: 127.0.0.1:\d+", f"addr: 127.0.0.1:{self.port}", config)
            (self.dir / "config.yml").write_text(config)
        env = {k: v for k, v in os.environ.items() if not k.startswith("REGISTRY_")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", self.dir / "config.yml"], env=env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        self.host = f"localhost:{self.port}"

    def wait_ready(self):
        for _ in range(600):
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.log.read_text())
            if found:
                self.port = int(found[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"docker-registry did not start: {self.log.read_text()[-2000:]}")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def skopeo_options(self, side):
        """What skopeo needs to reach it as `side` ("src" or "dest") of a copy."""
        out = [f"--{side}-tls-verify={'true' if self.ca else 'false'}"]
        if self.ca:
            certs = self.dir / "certs"
            certs.mkdir(exist_ok=True)
            shutil.copy(self.ca, certs / "ca.crt")
            out.append(f"--{side}-cert-dir={certs}")
        if self.user:
            out.append(f"--{side}-creds={self.user}:{self.password}")
        return out

    def push(self, image, name, *options):
        """Copies an image (all of an index); returns the reference to pull it by."""
        skopeo("copy", "--all", *self.skopeo_options("dest"), *options, image.url,
               f"docker://{self.host}/{name}")
        return f"{self.host}/{name}"

    def manifest(self, name):
        """A manifest or index as the registry serves it: (digest, document)."""
        repository, tag = name.rsplit(":", 1)
        scheme = "https" if self.ca else "http"
        kinds = [OCI + "index.v1+json", OCI + "manifest.v1+json",
                 "application/vnd.docker.distribution.manifest.v2+json",
                 "application/vnd.docker.distribution.manifest.list.v2+json"]
        request = urllib.request.Request(f"{scheme}://{self.host}/v2/{repository}/manifests/{tag}",
                                         headers={"Accept": ", ".join(kinds)})
        context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        if self.user:
            word = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {word}")
        with opener.open(request, timeout=30) as answer:
            body = answer.read()
        return sha256(body), json.loads(body)

    def blob_path(self, digest):
        """The file that holds a blob: tests break it."""
        hexes = digest.split(":")[1]
        return self.data / "docker/registry/v2/blobs/sha256" / hexes[:2] / hexes / "data"


# --- all of them, before anybody waits for one ---------------------------------------------------


def prepare():
    """Makes the images that take a minute, side by side; says what this machine cannot make."""
    def debians():
        python_slim()
        for kind in ("gzip", "zstd"):
            debian().recompressed(kind)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for made in [pool.submit(make) for make in (debians, net_guest, moto)]:
            try:
                made.result()
            except Unavailable as e:
                print(f"    images: {e}", flush=True)


if __name__ == "__main__":
    prepare()
