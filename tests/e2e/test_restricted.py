"""msb inside containers, with the restrictions that container engines have by default.

One container per set of restrictions, in which restricted_tour.py does once what users do. The containers
see this host's /usr and the build, read-only, so that no image has to be made for them.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import imagekit
from conftest import MSB, ROOT, wait_for

ASSETS = pathlib.Path(os.environ.get("MSB_ASSETS", MSB.parents[2] / "assets"))

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def place():
    """A root for containers, and what they need of the host where everybody can read it."""
    if os.geteuid() != 0:
        pytest.skip("starting containers takes root")
    if not os.path.islink("/bin") or not os.path.islink("/lib64"):
        pytest.skip("the host's programs are not all below /usr")
    d = pathlib.Path(tempfile.mkdtemp(prefix="msb-restricted-"))
    d.chmod(0o755)
    root = d / "root"
    for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "msb", "var/tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    for name in ("ld.so.cache", "localtime"):
        if os.path.exists(f"/etc/{name}"):
            shutil.copy(f"/etc/{name}", root / "etc")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    msb = d / "msb"
    for name in ("bin", "assets", "tests", "sdk"):
        (msb / name).mkdir(parents=True)
    shutil.copy(MSB, msb / "bin" / "msb")
    for name in ("linux-uml", "tools.erofs", "base.erofs"):
        shutil.copy(ASSETS / name, msb / "assets")
    shutil.copytree(ROOT / "tests" / "e2e", msb / "tests" / "e2e", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "sdk" / "python", msb / "sdk" / "python", ignore=shutil.ignore_patterns("__pycache__"))
    image = imagekit.busybox()
    shutil.copytree(image.layout, msb / "layout")
    (msb / "tag").write_text(image.tag)
    subprocess.run(["chmod", "-R", "a+rX", str(msb)], check=True)
    yield d
    shutil.rmtree(d)


class Podman:
    """Runs a program in a new container; all of it is gone afterwards."""

    def __init__(self, place, directory):
        imagekit.need("podman", "runc")
        self.place = place
        self.dir = directory

    def __call__(self, options, *command):
        engine = ["podman", "--root", self.dir / "root", "--runroot", self.dir / "run", "--runtime", "runc",
                  "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        # Containers that are started as root get their limits from engines.conf, which may exceed ours.
        run = ["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
               "--volume", "/usr:/usr:ro", "--volume", f"{self.place / 'msb'}:/msb:ro",
               "--env", "MSB_ASSETS=/msb/assets", "--env", "PYTHONDONTWRITEBYTECODE=1"]
        return subprocess.run([*engine, *run, *options, "--rootfs", self.place / "root", *command],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def podman(place):
    d = pathlib.Path(tempfile.mkdtemp(prefix="msb-podman-"))  # it wants a short path
    yield Podman(place, d)
    subprocess.run(["podman", "--root", d / "root", "--runroot", d / "run", "system", "reset", "-f"],
                   capture_output=True)
    shutil.rmtree(d, ignore_errors=True)


class Docker:
    """Docker, by a daemon of our own that touches neither the host's network nor its images."""

    def __init__(self, place, directory):
        imagekit.need("dockerd", "docker", "containerd")
        self.place, self.dir = place, directory
        self.host = f"unix://{directory}/sock"
        with open(directory / "log", "wb") as log:
            self.daemon = subprocess.Popen(
                ["dockerd", "--data-root", directory / "data", "--exec-root", directory / "exec", "--host", self.host,
                 "--pidfile", directory / "pid", "--bridge", "none", "--iptables=false", "--ip6tables=false",
                 "--storage-driver", "vfs"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        wait_for(lambda: self.docker("version").returncode == 0 or self.daemon.poll() is not None, timeout=30)
        if self.daemon.poll() is not None:
            pytest.skip(f"dockerd does not start here: {(self.dir / 'log').read_text()[-300:]}")
        tar = subprocess.run(["tar", "-C", self.place / "root", "-c", "."], stdout=subprocess.PIPE, check=True)
        assert self.docker("import", "-", "msb-test", input=tar.stdout).returncode == 0
        return self

    def __exit__(self, *exc):
        self.daemon.terminate()
        self.daemon.wait(timeout=60)

    def docker(self, *args, **kw):
        return subprocess.run(["docker", "--host", self.host, *args], capture_output=True, timeout=120, **kw)

    def __call__(self, options, *command):
        return self.docker("run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024",
                           "--volume", "/usr:/usr:ro", "--volume", f"{self.place / 'msb'}:/msb:ro",
                           "--env", "MSB_ASSETS=/msb/assets", "--env", "PYTHONDONTWRITEBYTECODE=1", *options, "msb-test",
                           *command, stdin=subprocess.DEVNULL, text=True)


@pytest.fixture(scope="module")
def docker(place):
    d = pathlib.Path(tempfile.mkdtemp(prefix="msb-docker-"))
    try:
        with Docker(place, d) as engine:
            yield engine
    finally:
        subprocess.run(["umount", "--quiet", "--lazy", d / "data"], check=False)  # dockerd's own, if it left it
        shutil.rmtree(d, ignore_errors=True)


def tour(run, *options):
    tag = (run.place / "msb" / "tag").read_text()
    p = run(options, "/usr/bin/python3", "/msb/tests/e2e/restricted_tour.py", "/msb/bin/msb", f"/msb/layout:{tag}")
    assert p.returncode == 0, (p.stdout, p.stderr)
    return json.loads(p.stdout)


def check(found, jail):
    expected = {
        "exec": "Linux\n0\n1",
        "share": "of the host",
        "shared": "of the guest",
        "volume": "",
        "network": "from outside",
        "ports": "from inside",
        "stop": "",
        "again": "kept",
        "rm": "",
        "run": "pulled",
        "sdk": "by the SDK",
        "left": "",
    }
    assert {k: found[k] for k in expected} == expected, found
    assert sorted(found["processes"].split()) == list("12345")
    assert found["jail"] == jail
    checks = {c["name"]: c for c in found["doctor"]["checks"]}
    assert found["doctor"]["usable"] and f"{jail} jail" in checks["Sandbox"]["detail"], checks
    assert checks["Namespaces"]["status"] == {"full": "ok", "reduced": "warn"}[jail]
    code, said = found["full"]
    if jail == "full":
        assert code == 0, said
    else:
        assert code == 1 and said.count("\n") == 2 and "namespaces" in said, "refused, with a remedy"


@pytest.mark.parametrize("options", [
    (),
    ("--security-opt", "seccomp=unconfined"),
], ids=["podman", "unconfined"])
def test_full_jail(podman, options):
    """Where namespaces can be made the jail is the same as outside."""
    found = tour(podman, *options)
    check(found, "full")
    assert {c["name"]: c["status"] for c in found["doctor"]["checks"]}["Shares"] == "ok"


# What Docker's default profile and Kubernetes' RuntimeDefault refuse to those without CAP_SYS_ADMIN.
REFUSING = ("--security-opt", f"seccomp={ROOT / 'tests' / 'e2e' / 'restricted_seccomp.json'}")


@pytest.mark.parametrize("options", [
    REFUSING,
    (*REFUSING, "--cap-drop=ALL"),
    (*REFUSING, "--cap-drop=ALL", "--security-opt", "no-new-privileges", "--read-only", "--user", "12345",
     "--tmpfs", "/tmp:rw,noexec,nosuid,mode=1777", "--env", "USUAL_HOME=1"),
    ("--security-opt", "seccomp=unconfined", "--cap-drop=ALL"),
], ids=["docker", "no-capabilities", "strict", "no-root-map"])
def test_reduced_jail(podman, options):
    """Where they cannot be made, sandboxes run in what is left, and say so."""
    found = tour(podman, *options)
    check(found, "reduced")
    assert found["said"].count("reduced jail") == 1
    checks = {c["name"]: c for c in found["doctor"]["checks"]}
    assert "seccomp=unconfined" in checks["Namespaces"]["remedy"]
    assert checks["Inside"]["detail"].startswith("a container (podman)")
    assert found["homes"] == (["msb-12345"] if "12345" in options else []), "of a user without a home"


def test_reduced_jail_without_landlock(podman, tmp_path):
    """Then files are kept from a sandbox by its filter alone, and doctor says what that means."""
    profile = json.loads((ROOT / "tests" / "e2e" / "restricted_seccomp.json").read_text())
    profile["syscalls"][0]["names"] += ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    found = tour(podman, "--security-opt", f"seccomp={tmp_path / 'profile.json'}", "--cap-drop=ALL")
    check(found, "reduced")
    assert {c["name"]: c["status"] for c in found["doctor"]["checks"]}["Landlock"] == "warn"


@pytest.mark.parametrize("options", [
    (),
    ("--cap-drop=ALL", "--security-opt", "no-new-privileges", "--read-only", "--user", "12345", "--tmpfs",
     "/tmp:rw,noexec,nosuid,mode=1777"),
], ids=["default", "strict"])
def test_docker(docker, options):
    found = tour(docker, *options)
    check(found, "reduced")
    checks = {c["name"]: c for c in found["doctor"]["checks"]}
    assert checks["Inside"]["detail"].startswith("a container (")


@pytest.mark.parametrize("user", [0, 12345])
def test_a_user_namespace_with_one_user(place, tmp_path, user):
    """`unshare -r`: root there has no other user to become."""
    imagekit.need("setpriv", "unshare")
    home = pathlib.Path(tempfile.mkdtemp(prefix="msb-one-", dir=place))
    os.chown(home, user, user)
    (home / "share").mkdir()
    (home / "share" / "in").write_text("of the host\n")
    tag = (place / "msb" / "tag").read_text()
    p = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "unshare", "-r",
                        "/usr/bin/python3", place / "msb" / "tests" / "e2e" / "restricted_tour.py",
                        place / "msb" / "bin" / "msb", f"{place / 'msb' / 'layout'}:{tag}"],
                       env={**os.environ, "MSB_HOME": str(home / "msb"), "MSB_ASSETS": str(place / "msb" / "assets"),
                            "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, (p.stdout, p.stderr)
    check(json.loads(p.stdout), "full")


def test_a_chroot(place):
    """No user namespaces there either; and a container's remedy would not help."""
    imagekit.need("unshare")
    root, tag = place / "root", (place / "msb" / "tag").read_text()
    script = f"""
        mount --bind /usr {root}/usr; mount --bind {place}/msb {root}/msb; mount --rbind /dev {root}/dev
        mount -t proc proc {root}/proc
        exec chroot {root} /usr/bin/python3 /msb/tests/e2e/restricted_tour.py /msb/bin/msb /msb/layout:{tag}"""
    p = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
                       env={"MSB_ASSETS": "/msb/assets", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, (p.stdout, p.stderr)
    found = json.loads(p.stdout)
    check(found, "reduced")
    checks = {c["name"]: c for c in found["doctor"]["checks"]}
    assert checks["Inside"]["detail"].startswith("a chroot")
    assert "outside of the chroot" in checks["Namespaces"]["remedy"]


def test_doctor_fixes_settings(place):
    """Those of a user namespace of our own, so that the host keeps its."""
    imagekit.need("unshare")
    home = tempfile.mkdtemp(prefix="msb-fix-", dir=place)
    script = f"""
        mount -t tmpfs none /etc/sysctl.d
        echo 0 >/proc/sys/user/max_user_namespaces
        {place}/msb/bin/msb doctor --format json >before.json
        {place}/msb/bin/msb doctor --fix --yes --format json >after.json
        cat /etc/sysctl.d/60-msb.conf /proc/sys/user/max_user_namespaces"""
    p = subprocess.run(["unshare", "-r", "--mount", "sh", "-ec", script], cwd=home,
                       env={**os.environ, "MSB_HOME": f"{home}/msb", "MSB_ASSETS": str(place / "msb" / "assets")},
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (p.returncode, p.stdout) == (0, "user.max_user_namespaces = 15000\n15000\n"), p.stderr
    before, after = (json.loads(pathlib.Path(home, f).read_text()) for f in ("before.json", "after.json"))
    (line,) = [c for c in before["checks"] if c["name"] == "Namespaces"]
    assert line["status"] == "warn" and "sysctl -w user.max_user_namespaces=15000" in line["remedy"]
    for doctor, jail in ((before, "reduced"), (after, "full")):
        assert doctor["usable"] and f"{jail} jail" in doctor["checks"][-1]["detail"]
