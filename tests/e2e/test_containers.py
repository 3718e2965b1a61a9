"""What container engines inside a sandbox need of it."""
import io
import os
import pathlib
import shutil
import tarfile

import pytest

import imagekit
from conftest import ROOT, make_tools_image, need
from guest import PATIENCE, sh

PROGRAMS = ROOT / "tests" / "compat" / "programs"


@pytest.fixture
def store_image(tmp_path):
    """A root with directories for containers: one empty, one that the image has put something into."""
    root = tmp_path / "root"
    t = imagekit.add_system(imagekit.add_shell(imagekit.Tar()))
    t.dir("var/lib")
    t.dir("var/lib/containers", 0o711)
    t.dir("var/lib/docker")
    t.add("var/lib/docker/here", "of the image\n")
    with tarfile.open(fileobj=io.BytesIO(t.bytes())) as tar:
        tar.extractall(root)
    return root


def test_devices_for_ordinary_users(msb):
    """Rootless engines mount with /dev/fuse and make networks with /dev/net/tun."""
    msb.create("a")
    assert sh(msb, "a", "stat -c %a /dev/fuse /dev/net/tun") == "666\n666\n"
    msb.ok("exec", "-q", "--user", "65534", "a", "--", "sh", "-c", "exec 3<>/dev/fuse 4<>/dev/net/tun")


def test_overlay_in_the_store(msb, store_image):
    """An overlay cannot lie on another: the store is on the file system below, and is kept there."""
    msb.ok("create", "-q", "-n", "a", str(store_image))
    script = ("cd /var/lib/containers && mkdir l u w m && echo low >l/f && "
              "mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m && echo up >m/g && rm m/f && ls m u && umount m")
    assert sh(msb, "a", script) == "m:\ng\n\nu:\nf\ng\n"
    assert sh(msb, "a", "stat -c %a /var/lib/containers; cat /var/lib/docker/here") == "711\nof the image\n"
    msb.ok("stop", "-q", "a")
    msb.ok("start", "-q", "a")
    assert sh(msb, "a", "ls /var/lib/containers/u; cat /var/lib/docker/here") == "f\ng\nof the image\n"


@pytest.mark.parametrize("name, engine", (("containers", "etc/containers/policy.json"), ("docker", "etc/default/docker")))
def test_a_store_for_an_engine_that_would_create_it(msb, store_image, name, engine):
    """Debian's packages leave that to the first start, when it is too late."""
    shutil.rmtree(store_image / "var" / "lib")
    (store_image / "var" / "lib").mkdir()
    (store_image / engine).parent.mkdir(parents=True)
    (store_image / engine).touch()
    msb.ok("create", "-q", "-n", "a", str(store_image))
    stores = "cd /var/lib && ls && stat -f -c %T *"
    assert sh(msb, "a", stores) == f"{name}\next2/ext3\n"
    sh(msb, "a", f"touch /var/lib/{name}/here")
    msb.ok("stop", "-q", "a")
    msb.ok("start", "-q", "a")
    assert sh(msb, "a", f"{stores}; ls {name}") == f"{name}\next2/ext3\nhere\n"


def test_a_store_that_the_image_declares_as_a_volume(msb, tmp_path):
    layout = imagekit.Layout(tmp_path / "layout")
    t = imagekit.Tar()
    t.dir("var/lib")
    layout.tag(layout.image([imagekit.shell_tar(), t.bytes()], {"Volumes": {"/var/lib/docker": {}}}), "x")
    msb.ok("load", "-q", "-i", layout.path, "-t", "declares:1")
    assert msb.ok("run", "-q", "declares:1", "--", "stat", "-f", "-c", "%T", "/var/lib/docker") == "ext2/ext3\n"


# --- podman ---------------------------------------------------------------------------------------

USER = 1000
# A web server in a container with the default network, reached at the port that is published for it.
SERVE = """set -e
cd ~
podman() {{ command podman --cgroup-manager=cgroupfs "$@"; }}
podman run -d --name www --pids-limit {limit} -p {port}:80 --rootfs ~/ctr busybox httpd -f -h /www >/dev/null
until wget -q -O - http://127.0.0.1:{port}/; do sleep 0.1; done
podman exec www busybox ip -4 -o addr | grep -c ' inet 10[.]'
"""


def add_container(home):
    """What a container is made of: one program, and a page for it to serve."""
    for d in ("bin", "www", "proc", "sys", "dev", "etc", "tmp", "run"):
        (home / "ctr" / d).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", home / "ctr" / "bin")
    (home / "ctr" / "www" / "index.html").write_text("served\n")


@pytest.fixture(scope="module")
def engine(module_msb, tmp_path_factory):
    """A sandbox with the host's podman, for root and for a user who has IDs to give to containers."""
    imagekit.need("podman", "runc", "slirp4netns", "newuidmap", "wget")
    if os.geteuid() != 0:
        pytest.skip("files of another user in an image take root")
    image = make_tools_image(tmp_path_factory.mktemp("podman") / "image")
    (image / "etc" / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nuser:x:{USER}:{USER}::/home/user:/bin/sh\n")
    (image / "etc" / "group").write_text(f"root:x:0:\nuser:x:{USER}:\n")
    (image / "etc" / "containers").mkdir()
    (image / "etc" / "containers" / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    for name in ("subuid", "subgid"):
        (image / "etc" / name).write_text("user:100000:65536\n")
    for name in ("run", "var/tmp", "var/lib/containers", "home/user"):
        (image / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (image / name).chmod(0o1777)
    for home in (image / "root", image / "home" / "user"):
        add_container(home)
    for path in [image / "home" / "user", *pathlib.Path(image, "home", "user").rglob("*")]:
        os.chown(path, USER, USER)
    module_msb.ok("create", "-q", "-n", "engine", "-v", "/usr:/usr:ro", str(image))
    return module_msb


def test_podman_as_root(engine):
    """A bridge, NAT, cgroups, and a BPF program for the container's devices."""
    script = SERVE.format(limit=33, port=8080) + "podman exec www busybox cat /sys/fs/cgroup/pids.max\n"
    assert sh(engine, "engine", script) == "served\n1\n33\n"


def test_podman_as_an_ordinary_user(engine):
    """In a user namespace, and without limits: no cgroup was delegated."""
    script = "export HOME=/home/user XDG_RUNTIME_DIR=/tmp/run; mkdir -m 700 /tmp/run\n" + SERVE.format(limit=0, port=8081)
    assert engine.ok("exec", "-q", "--user", "user", "engine", "--", "sh", "-c", script) == "served\n1\n"


# --- Docker ---------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_docker(msb, host_tools):
    """The daemon with containerd and runc, and what it chooses by itself: a bridge, NAT and overlay2."""
    imagekit.need("dockerd", "containerd", "runc", "iptables", "busybox")
    need("docker")  # not another one on PATH
    (host_tools / "etc" / "group").write_text("root:x:0:\n")
    for name in ("run", "var/tmp", "var/lib", "etc/default"):
        (host_tools / name).mkdir(parents=True)
    (host_tools / "etc" / "default" / "docker").touch()
    out = msb.ok("run", "-q", "-v", "/usr:/usr:ro", "-v", f"{PROGRAMS}:/compat:ro", host_tools, "--",
                 "sh", "/compat/docker.sh", timeout=PATIENCE * 4)
    found = dict(line.split(": ", 1) for line in out.splitlines())
    assert len(found) >= 27 and set(found.values()) == {"ok"}, found
