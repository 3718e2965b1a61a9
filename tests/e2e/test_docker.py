"""msb called as `docker`: what programs that drive Docker's command line send, and what they read.

The client's own module, unmodified where it is at hand, and the same command lines where it is not.
"""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import pytest

import imagekit
from conftest import ROOT, SLOW, wait_for
from guest import FOREVER, PATIENCE
from terminal import Terminal
from test_client_contract import Environment, popen_bash

SEED = ROOT.parent / "shared" / "seeds" / "docker.py"
IMAGE = "msb/base"

# To the letter what a hardened backend asks for.
HARDENED = ["--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE", "--cap-add", "CHOWN", "--cap-add", "FOWNER",
            "--security-opt", "no-new-privileges", "--pids-limit", "256", "--tmpfs", "/tmp:rw,nosuid,size=512m",
            "--tmpfs", "/var/tmp:rw,noexec,nosuid,size=256m", "--tmpfs", "/run:rw,noexec,nosuid,size=64m"]  # fmt: skip
PASSING = ["--tmpfs", "/workspace:rw,exec,size=10g", "--tmpfs", "/home:rw,exec,size=1g", "--tmpfs", "/root:rw,exec,size=1g"]


class Docker:
    """A directory with nothing but `docker` in it, and a home."""

    def __init__(self, m, directory):
        self.msb = m
        self.exe = str(pathlib.Path(directory) / "docker")
        os.symlink(m.exe, self.exe)

    def __call__(self, *args, code=0, **kw):
        kw.setdefault("stdin", None if "input" in kw else subprocess.DEVNULL)
        if kw["stdin"] is None:
            del kw["stdin"]
        p = subprocess.run([self.exe, *map(str, args)], env=self.msb.env, capture_output=True, text=True, timeout=60 * SLOW, **kw)
        assert p.returncode == code, (args, p)
        return p

    def ok(self, *args, **kw):
        return self(*args, **kw).stdout.strip()


@pytest.fixture(scope="module")
def docker(module_msb, tmp_path_factory):
    d = Docker(module_msb, tmp_path_factory.mktemp("bin"))
    yield d
    for cid in d.ok("ps", "-aq", "--no-trunc").split():
        d("rm", "-f", cid)


@pytest.fixture(scope="module")
def web(docker):
    """A container that waits; its ID."""
    return docker.ok("run", "-d", "--name", "web", "-w", "/srv", "-l", "team=a b", "--label", "empty", "-e", "A=1", "-e", "NOTSET",
                     "-p", "0:80", *HARDENED, IMAGE, "sleep", "2h")  # fmt: skip


# --- the client itself ---------------------------------------------------------------------------


def load_seed(monkeypatch, docker, directory):
    if not SEED.exists():
        pytest.skip(f"{SEED} is not there")
    base = types.ModuleType("tools.environments.base")
    base.BaseEnvironment, base._popen_bash = Environment, popen_bash
    base.get_sandbox_dir = lambda: pathlib.Path(directory)
    local = types.ModuleType("tools.environments.local")
    local._HERMES_PROVIDER_ENV_BLOCKLIST = frozenset()
    for name, module in (("tools", types.ModuleType("tools")), ("tools.environments", types.ModuleType("tools.environments")),
                         ("tools.environments.base", base), ("tools.environments.local", local)):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    for key, value in docker.msb.env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PATH", f"{os.path.dirname(docker.exe)}:{os.environ['PATH']}")
    spec = importlib.util.spec_from_file_location("seed_docker", SEED)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use(env):
    """A terminal like any other."""
    assert env.execute("echo out; exit 42") == {"output": "out\n", "returncode": 42}
    env.execute("cd /tmp; export KEPT='a b'; echo x > /workspace/f")
    assert env.execute("pwd; echo $KEPT; cat /workspace/f")["output"] == "/tmp\na b\nx\n"
    assert env.execute("cat", stdin_data="piped")["output"] == "piped"
    assert env.execute(f"echo partial; sleep {FOREVER}", timeout=1) == {"output": "partial\n", "returncode": 124}
    status = env.execute("grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status; cat /sys/fs/cgroup/msb/pids.max")["output"]
    assert status.split() == ["CapBnd:", "000000000000000b", "NoNewPrivs:", "1", "256"]


def test_the_client_unmodified_and_passing(docker, monkeypatch, tmp_path):
    module = load_seed(monkeypatch, docker, tmp_path)
    docker.msb.ok("load", "-q", "-i", imagekit.busybox().archive("docker", tmp_path / "hello.tar", "hello-world:latest"))
    monkeypatch.setenv("FORWARD_ME", "forwarded")
    env = module.DockerEnvironment(IMAGE, cpu=0.5, memory=256, disk=64, network=False, task_id="passing", forward_env=["FORWARD_ME"],
                                   env={"FROM_CONFIG": "configured"})  # fmt: skip
    assert module._storage_opt_ok, "the size of its files can be limited, and the client has found that out"
    cid = env._container_id
    assert re.fullmatch("[0-9a-f]{64}", cid) and docker.ok("ps", "-aq", "--no-trunc", "--filter", f"id={cid}") == cid
    assert env.execute("echo $FORWARD_ME $FROM_CONFIG; pwd")["output"] == "forwarded configured\n/root\n"
    use(env)
    mounts = env.execute("cat /proc/mounts")["output"]
    for where, size in (("/workspace", 10 << 20), ("/home", 1 << 20), ("/root", 1 << 20), ("/tmp", 512 << 10)):
        assert re.search(rf"^tmpfs {where} tmpfs .*\bsize={size}k\b", mounts, re.M), where
    assert env.execute("ls /sys/class/net")["output"].split() == ["lo"]
    assert int(env.execute("df -k / | awk 'NR==2 {print $2}'")["output"]) <= 64 << 10
    env.cleanup()
    wait_for(lambda: docker.ok("ps", "-aq", "--no-trunc", "--filter", f"id={cid}") == "", timeout=PATIENCE)


def test_the_client_unmodified_and_persistent(docker, monkeypatch, tmp_path):
    module = load_seed(monkeypatch, docker, tmp_path)
    (tmp_path / "cred").write_text("token")
    env = module.DockerEnvironment(IMAGE, persistent_filesystem=True, task_id="kept", volumes=[f"{tmp_path}/cred:/cred:ro"])
    cid = env._container_id
    use(env)
    assert env.execute("cat /cred; echo y > /root/home; ! echo x > /cred")["output"].startswith("token")
    env.cleanup()
    wait_for(lambda: docker.ok("inspect", "-f", "{{.State.Running}}", cid) == "false", timeout=PATIENCE)
    # What it wrote is there for the next.
    assert (tmp_path / "docker" / "kept" / "home" / "home").read_text() == "y\n"
    env = module.DockerEnvironment(IMAGE, persistent_filesystem=True, task_id="kept")
    assert env.execute("cat /root/home /workspace/f")["output"] == "y\nx\n"
    for one in (cid, env._container_id):
        docker("rm", "-f", one)


# --- the same calls, without it ------------------------------------------------------------------


def test_calls_of_a_hardened_backend(docker):
    assert "Version:" in docker("version").stdout
    assert docker.ok("info", "--format", "{{.Driver}}") == "overlay2"
    probe = docker.ok("create", "--storage-opt", "size=1m", IMAGE)
    assert docker.ok("rm", probe) == probe
    cid = docker.ok("run", "-d", "--name", "hermes-0123abcd", "-w", "/root", *HARDENED, *PASSING, "--cpus", "0.5", "--memory", "256m",
                    "--storage-opt", "size=64m", "--network=none", "-e", "K=v w", IMAGE, "sleep", "2h")  # fmt: skip
    assert re.fullmatch("[0-9a-f]{64}", cid)
    p = docker("exec", "-e", "X=1", cid, "bash", "-l", "-c", "echo $K $X; pwd; cat; exit 5", code=5, input="lost")
    assert p.stdout == "v w 1\n/root\n" and p.stderr == ""
    assert docker("exec", "-i", cid, "bash", "-c", "cat", input="kept").stdout == "kept"
    assert docker.ok("exec", "-u", "1000:1000", "-w", "/tmp", cid, "sh", "-c", "id -u; pwd") == "1000\n/tmp"
    docker("exec", cid, "nosuch", code=127)
    docker("exec", cid, "/etc/passwd", code=126)
    assert docker.ok("stop", "-t", "5", cid) == cid
    assert "is not running" in docker("exec", cid, "true", code=1).stderr
    assert docker.ok("rm", "-f", cid) == cid
    assert "No such container" in docker("stop", cid, code=1).stderr
    docker("rm", "-f", cid)  # twice does no harm


def test_names_and_ids(docker, web):
    for word in (web, web[:12], web[:4], "web", "/web"):
        assert docker.ok("exec", word, "hostname") == "web"
    for word in ("", "we", web[:11] + "g", web + "0", "ffff" if web[0] != "f" else "0000"):
        docker("exec", word, "true", code=1)
    assert docker.msb.ok("exec", "-q", "web", "--", "pwd") == "/srv\n", "a sandbox like any other"
    assert "already in use" in docker("run", "--name", "web", IMAGE, "true", code=125).stderr
    # IDs are of this sandbox, not of this name.
    old = docker.ok("create", "--name", "again", IMAGE)
    docker("rm", "again")
    new = docker.ok("create", "--name", "again", IMAGE)
    assert old != new and docker.ok("rm", new) == new


def test_ps(docker, web):
    lines = docker("ps").stdout.splitlines()
    assert lines[0].split("  ")[0] == "CONTAINER ID"
    row = next(x for x in lines if x.endswith("web"))
    at = {title: lines[0].index(title) for title in ("IMAGE", "COMMAND", "STATUS", "PORTS", "NAMES")}
    assert row.startswith(web[:12] + " ") and row[at["IMAGE"]:].startswith(IMAGE) and row[at["COMMAND"]:].startswith('"sleep 2h"')
    assert row[at["STATUS"]:].startswith("Up ") and "->80/tcp" in row[at["PORTS"]:] and row[at["NAMES"]:] == "web"
    assert docker.ok("ps", "-q", "--filter", "name=web") == web[:12]
    template = "{{.ID}}|{{.Names}}|{{.Image}}|{{.State}}|{{.Label \"team\"}}|{{.Networks}}"
    assert docker.ok("ps", "-f", "label=team=a b", "--format", template) == f"{web[:12]}|web|{IMAGE}|running|a b|bridge"
    assert docker.ok("ps", "--format", r"table {{.Names}}\t{{.State}}", "-f", "name=^/web$") == "NAMES     STATE\nweb       running"
    one = json.loads(docker.ok("ps", "--no-trunc", "-f", f"id={web[:6]}", "--format", "json"))
    assert one["ID"] == web and one["Labels"] == "empty=,team=a b" and one["Command"] == '"sleep 2h"'
    for wrong in ("name=^eb$", "name=we$", "label=team=b", "status=exited", "id=zz", "ancestor=msb/bas"):
        assert docker.ok("ps", "-aq", "-f", "label=team", "-f", wrong) == "", wrong
    for right in ("name=eb", "name=^/web$", "name=we", "label=empty", "status=running", f"id={web}", "ancestor=msb/base"):
        assert docker.ok("ps", "-q", "-f", "label=team", "-f", right) == web[:12], right
    assert "invalid filter" in docker("ps", "-f", "colour=red", code=1).stderr
    assert "no field .Nothing" in docker("ps", "--format", "{{.Nothing}}", code=1).stderr


def test_inspect(docker, web):
    (c,) = json.loads(docker("inspect", "web").stdout)
    assert c["Id"] == web and c["Name"] == "/web" and c["State"]["Running"] is True and c["State"]["Status"] == "running"
    assert c["Config"]["Cmd"] == ["sleep", "2h"] and "A=1" in c["Config"]["Env"] and c["Config"]["WorkingDir"] == "/srv"
    host = c["HostConfig"]
    assert host["CapDrop"] == ["ALL"] and sorted(host["CapAdd"]) == ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
    assert host["PidsLimit"] == 256 and host["SecurityOpt"] == ["no-new-privileges"]
    port = c["NetworkSettings"]["Ports"]["80/tcp"][0]["HostPort"]
    for template, text in (
        ("{{.State.Status}}", "running"), ("{{json .Config.Cmd}}", '["sleep","2h"]'), ("{{.Config.Cmd}}", "[sleep 2h]"),
        ('{{index .Config.Labels "team"}}', "a b"), ('{{index .Config.Labels "none"}}', ""), ("{{len .Args}}", "1"),
        ("{{if .State.Running}}up{{else}}down{{end}}", "up"), ("{{if .State.Paused}}x{{else}}y{{end}}", "y"),
        ("{{range .Mounts}}{{.Destination}};{{end}}", "/run;/tmp;/var/tmp;"), ('{{join .Config.Cmd "+"}}', "sleep+2h"),
        ("{{range $p, $c := .NetworkSettings.Ports}}{{$p}}={{(index $c 0).HostPort}}{{end}}", f"80/tcp={port}"),
        ('{{(index (index .NetworkSettings.Ports "80/tcp") 0).HostPort}}', port), ("{{.Name | upper}}", "/WEB"),
        ("{{ .State.Pid }} {{- \" x\" -}} \n y", f"{c['State']['Pid']} xy"), ("{{.HostConfig.NetworkMode}}{{.Id}}", "bridge" + web),
    ):  # fmt: skip
        assert docker("inspect", "--format", template, web).stdout == text + "\n", template
    for bad in ("{{.Nope}}", "{{", "{{end}}", "{{if .Id}}", "{{range .Mounts}}", "{{nope .}}", "{{template \"x\"}}", "{{$x}}",
                "{{index}}", "{{" + "(" * 100, "{{if .Id}}" * 100, "{{.State.}}x{{"):  # fmt: skip
        assert "template: " in docker("inspect", "-f", bad, "web", code=1).stderr, bad
    p = docker("inspect", "nosuch", "web", code=1)
    assert "No such object: nosuch" in p.stderr and len(json.loads(p.stdout)) == 1


def test_inspect_by_type(docker, web, tmp_path):
    docker.msb.ok("load", "-q", "-i", imagekit.busybox().archive("docker", tmp_path / "a.tar", "typed:1"))
    assert docker.ok("inspect", "-f", "{{.Os}}", "typed:1") == "linux"
    for words in (["container", "inspect"], ["inspect", "--type", "container"], ["container", "inspect", "--type=container"]):
        assert "No such container: typed:1\n" in docker(*words, "typed:1", code=1).stderr, words
        assert docker.ok(*words, "-f", "{{.Id}}", "web") == web
    for words in (["image", "inspect"], ["inspect", "--type", "image"]):
        assert "No such image: web\n" in docker(*words, "web", code=1).stderr
        assert docker.ok(*words, "-f", "{{.Os}}", "typed:1") == "linux"


def test_exit_codes(docker, tmp_path):
    assert docker("run", "--rm", IMAGE, "sh", "-c", "exit 3", code=3).stdout == ""
    docker("run", "--rm", IMAGE, "nosuch", code=127)
    docker("run", "--rm", IMAGE, "/etc/passwd", code=126)
    docker("run", "--rm", "--memory", "1m", IMAGE, "true", code=125)
    docker("run", "--rm", "--pull", "never", "nosuch/image:1", "true", code=125)
    assert docker("run", "--rm", "-i", IMAGE, "cat", input="in").stdout == "in"
    assert docker("run", "--rm", IMAGE, "cat", input="lost").stdout == ""
    assert "not a TTY" in docker("run", "--rm", "-it", IMAGE, "true", code=1).stderr
    assert docker("run", "--rm", "-t", IMAGE, "tty").stdout.startswith("/dev/pts/")
    assert docker("run", "--rm", "--entrypoint", "echo", IMAGE, "-n", "--", "-x").stdout == "-- -x"


@pytest.mark.parametrize("args, says", [
    (["run", "--gpus", "all", IMAGE], "GPU"),
    (["run", "--restart", "always", IMAGE], "no daemon"),
    (["run", "--nosuch", IMAGE], "unknown flag: --nosuch"),
    (["run", "--name"], "needs an argument"),
    (["run", "--pid", "host", IMAGE], "shares no namespace"),
    (["run"], "requires at least 1 argument"),
    (["exec", "x"], "requires at least 2 arguments"),
    (["build", "."], "'build' is not supported"),
    (["commit", "web"], "requires at least 2 arguments"),
    (["login", "-u", "me", "-p", "word"], "--password-stdin"),
    (["container", "prune"], "'container prune' is not supported"),
    (["-H", "tcp://x", "ps"], "is not supported"),
    (["kill", "-s", "HUP", "web"], "docker exec"),
    (["run", "--storage-opt", "dm.x=1", IMAGE], "size=SIZE"),
    (["run", "-m", "b", IMAGE], "a size such as 512m"),
    (["run", "-m", "512mbb", IMAGE], "a size such as 512m"),
])  # fmt: skip
def test_refusals_are_one_line(docker, args, says):
    p = docker(*args, code=125)
    assert says in p.stderr and p.stderr.count("\n") == 1 and p.stdout == ""


def test_a_container_ends_with_its_command(docker):
    cid = docker.ok("run", "-d", "--cidfile", docker.msb.home / "cid", IMAGE, "sh", "-c", "echo out; echo err >&2; exit 9")
    assert (docker.msb.home / "cid").read_text() == cid
    assert docker.ok("wait", cid) == "9"
    wait_for(lambda: docker.ok("inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", cid) == "exited 9")
    assert cid[:12] not in docker.ok("ps", "-q") and cid[:12] in docker.ok("ps", "-aq", "-f", "exited=9")
    assert "Exited (9) " in docker.ok("ps", "-a", "-f", f"id={cid}", "--format", "{{.Status}}")
    p = docker("logs", cid)
    assert p.stdout == "out\n" and p.stderr == "err\n"
    # A bare number is a time stamp, and an age has a unit.
    now = time.time()
    for shown, *args in ((True, "--since", f"{now - 3600:.9f}", "--until", int(now) + 2), (False, "--since", int(now) + 3600),
                         (False, "--until", "1700000000.5"), (True, "--since", "1h"), (False, "--until", "1h")):  # fmt: skip
        assert docker("logs", *args, cid).stdout == "out\n" * shown, args
    for bad in ("1.2.3", "99999999999"):
        assert "a time such as" in docker("logs", "--since", bad, cid, code=125).stderr
    # Again, with the same command.
    assert docker.ok("start", cid) == cid and docker.ok("wait", cid) == "9"
    assert docker.ok("rm", cid) == cid
    assert "No such container" in docker("wait", cid, code=1).stderr


def test_cidfile(docker, tmp_path):
    file = tmp_path / "cid"
    seen = docker.ok("run", "--rm", "--cidfile", file, "-v", f"{tmp_path}:/m:ro", IMAGE, "cat", "/m/cid")
    assert seen == file.read_text() and re.fullmatch("[0-9a-f]{64}", seen), "it is there before the command runs"
    for verb, code in (("run", 125), ("create", 1)):
        p = docker(verb, "--name", "late", "--cidfile", file, IMAGE, "true", code=code)
        assert "container ID file found" in p.stderr and file.read_text() == seen
    assert "No such" in docker("inspect", "late", code=1).stderr, "nothing ran"
    missing = tmp_path / "none" / "cid"
    assert str(missing) in docker("run", "--cidfile", missing, IMAGE, "true", code=125).stderr
    file.unlink()
    docker("run", "--cidfile", file, "--pull", "never", "nosuch/image:1", "true", code=125)
    assert not file.exists(), "no container, no file"
    cid = docker.ok("create", "--cidfile", file, IMAGE)
    assert cid == file.read_text() == docker.ok("rm", cid)


def test_create_start_attach_restart_kill(docker):
    cid = docker.ok("create", "--name", "later", "-e", "X=1", IMAGE, "sh", "-c", "echo $X -n; exit 4")
    assert docker.ok("inspect", "-f", "{{.State.Running}}", "later") == "false"
    assert docker("start", "-a", "later", code=4).stdout == "1 -n\n"
    docker("rm", cid)
    docker.ok("run", "-d", "--name", "later", IMAGE, "sleep", "2h")
    assert docker.ok("restart", "-t", "1", "later") == "later"
    assert "cannot remove" in docker("rm", "later", code=1).stderr
    assert docker.ok("kill", "later") == "later"
    assert "not running" in docker("kill", "later", code=1).stderr
    assert docker.ok("start", "later") == docker.ok("start", "later") == "later"
    assert docker.ok("kill", "-s", "TERM", "later") == "later"
    assert docker.ok("rm", "-v", "later") == "later"


def test_start_attaches_to_what_runs(docker):
    """It does not run the command a second time."""
    docker("run", "-d", "--name", "runs", IMAGE, "sh", "-c", "echo x >>/starts; until [ -e /go ]; do echo tick; sleep 0.1; done; exit 7")
    docker("exec", "-d", "runs", "sleep", "1h")
    with subprocess.Popen([docker.exe, "start", "-a", "runs"], env=docker.msb.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as p:
        assert p.stdout.readline() == b"tick\n"
        assert docker.ok("exec", "runs", "sh", "-c", "cat /starts; touch /go") == "x"
        p.communicate(timeout=PATIENCE)
        assert p.returncode == 7
    # What exec left running is not the container's command.
    assert "cannot attach" in docker("start", "-a", "runs", code=1).stderr
    docker("rm", "-f", "runs")
    argv = [docker.exe, "run", "--rm", "-i", "--name", "runs", IMAGE, "sh", "-c", "echo up; cat"]
    with subprocess.Popen(argv, env=docker.msb.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        assert p.stdout.readline() == b"up\n"
        docker("exec", "-d", "runs", "sleep", "1h")
        q = docker("start", "-a", "runs", code=1)
        assert "cannot attach" in q.stderr and q.stderr.count("\n") == 1 and q.stdout == ""
        p.communicate(timeout=PATIENCE)
        assert p.returncode == 0


def test_files(docker, web, tmp_path):
    (tmp_path / "f").write_text("data")
    docker("cp", tmp_path / "f", f"{web[:10]}:/srv/")
    docker("cp", "web:srv/f", tmp_path / "g")
    assert (tmp_path / "g").read_text() == "data"
    assert docker("cp", f"{web}:/srv/f", "-").stdout != ""
    # A directory of the host that is missing is made; a volume without a name is part of the disk.
    out = docker.ok("run", "--rm", "-v", f"{tmp_path}/new/deep:/in", "-v", "/anon/dir", "--mount", f"type=bind,source={tmp_path},target=/m,readonly",
                    "--shm-size", "1048576b", "--tmpfs", "/t:size=65536b", "--storage-opt", "size=67108864B", IMAGE, "sh", "-c",
                    "echo x > /in/y; ls -d /anon/dir; ! touch /m/z; df -k /dev/shm /t | awk '{print $2}'")  # fmt: skip
    assert (tmp_path / "new" / "deep" / "y").read_text() == "x\n"
    assert out.split("\n")[0] == "/anon/dir" and out.split()[-2:] == ["1024", "64"]


def test_images(docker, registry, tmp_path):
    ref = registry.push(imagekit.busybox(), "team/app:1")
    assert docker.ok("pull", "-q", ref) == ref
    assert docker.ok("images", "-q", ref.rsplit(":", 1)[0]) == docker.ok("image", "ls", "-q", ref)
    assert docker.ok("images", "--format", "{{.Repository}}:{{.Tag}}", ref) == ref
    (i,) = json.loads(docker("image", "inspect", ref).stdout)
    assert i["RepoTags"] == [ref] and i["Id"].startswith("sha256:" + docker.ok("images", "-q", ref)) and i["Os"] == "linux"
    assert docker.ok("inspect", "-f", "{{.Id}}", ref) == i["Id"]
    assert docker.ok("pull", "-q", "--platform", "linux/amd64", IMAGE).endswith(IMAGE + ":latest")
    docker("rmi", ref)
    assert "No such image" in docker("image", "inspect", ref, code=1).stderr


def test_images_by_id(docker, web, tmp_path):
    iid = docker.ok("commit", "-c", "LABEL of=id", "web", "by/id:1")
    short = docker.ok("images", "-q", "by/id")
    assert short == iid[7:19]
    for word in (iid, iid[7:], short, f"sha256:{short}"):
        assert docker.ok("inspect", "-f", "{{.Id}}", word) == docker.ok("image", "inspect", "-f", "{{.Id}}", word) == iid
        assert docker.ok("run", "--rm", word, "echo", "x") == "x"
    docker("create", "--name", "by-id", iid, "echo", "y")
    assert docker.ok("inspect", "-f", "{{.Image}}", "by-id") == iid and docker.ok("start", "-a", "by-id") == "y"
    docker("rm", "by-id")
    docker("save", "-o", tmp_path / "saved", short)
    docker("tag", short, "by/id:2")
    assert docker.ok("inspect", "-f", "{{.Id}}", "by/id:2") == iid
    for unknown in (short[:11], short[:11] + "g", iid + "0", "0" * 12):
        assert "No such object" in docker("inspect", unknown, code=1).stderr
    assert "image not found" in docker("push", short, code=1).stderr, "an image is pushed by one of its names"
    # With several names, it takes force to remove it by ID.
    assert "must be forced" in docker("rmi", short, code=1).stderr
    docker("rmi", "by/id:2")
    other = docker.ok("commit", "-c", "LABEL of=other", "web", "by/other")
    docker("tag", other, short)  # a name goes before an ID
    assert docker.ok("inspect", "-f", "{{.Id}}", short) == other
    docker("rmi", short)
    docker("tag", other, "by/other:2")
    docker("rmi", "-f", *docker.ok("images", "-q", "by/other").split(), short)
    for gone in (iid, other):
        assert "No such image" in docker("image", "inspect", gone, code=1).stderr


def test_two_images_with_one_short_id(docker, tmp_path):
    empty = bytes(1024)
    doc = '{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["%s"]},"config":{"Env":["N=%d"]}}'
    docs = [doc % (imagekit.sha256(empty), n) for n in (3330547, 6833663)]  # a collision of 48 bits
    ids = [imagekit.sha256(d.encode()) for d in docs]
    short = ids[0][7:19]
    assert short == ids[1][7:19]
    entries = [{"Config": f"{n}.json", "RepoTags": [f"twin:{n}"], "Layers": ["layer.tar"]} for n in range(2)]
    tar = imagekit.Tar(tmp_path / "twins").add("layer.tar", empty).add("manifest.json", json.dumps(entries))
    tar.add("0.json", docs[0]).add("1.json", docs[1]).close()
    docker("load", "-i", tmp_path / "twins")
    for n in range(2):
        assert docker.ok("inspect", "-f", "{{.RepoTags}}", ids[n][7:]) == f"[twin:{n}]"
    for args in (["inspect", short], ["run", short, "true"], ["tag", short, "one:1"], ["rmi", "-f", short]):
        p = docker(*args, code=125 if args[0] == "run" else 1)
        assert "Multiple IDs found" in p.stderr and p.stderr.count("\n") == 1, args
    docker("rmi", *ids)


def test_flags_with_values(docker, web):
    for word in ("false", "False", "FALSE", "f", "F", "0"):
        assert web in docker.ok("ps", f"--quiet={word}", "--no-trunc") != web, word
    for word in ("true", "True", "T", "1"):
        assert docker.ok("ps", f"--quiet={word}", "--no-trunc", "-f", "name=web") == web, word


def test_load(docker, tmp_path):
    file = imagekit.busybox().archive("docker", tmp_path / "a.tar", "loaded:1")
    p = docker("load", "-q", "-i", file)
    assert (p.stdout, p.stderr) == ("Loaded image: loaded:1\n", "")
    docker("rmi", "loaded:1")
    with open(file) as archive:
        assert docker("image", "load", stdin=archive).stdout == "Loaded image: loaded:1\n"
    docker("rmi", "loaded:1")


def test_images_pulled_by_digest(docker, registry):
    tagged = registry.push(imagekit.busybox(), "team/fixed:1")
    name = tagged.rsplit(":", 1)[0]
    docker("pull", "-q", tagged)
    digest = docker.ok("images", "--format", "{{.Digest}}", tagged)
    docker("rmi", tagged)
    ref = f"{name}@{digest}"
    docker("pull", "-q", ref)
    for wanted in ([], [name], [ref], ["-f", f"reference={name}"]):
        rows = docker.ok("images", "--format", "{{.Repository}} {{.Tag}} {{.Digest}}", *wanted).splitlines()
        assert f"{name} <none> {digest}" in rows, wanted
    assert docker.ok("images", "-q", name[:-1]) == ""
    docker("rmi", ref)


def test_commit_tag_push_login(docker, web, tmp_path):
    docker("exec", "web", "sh", "-c", "echo kept >/root/made")
    assert "No such container" in docker("commit", "nosuch", "made:1", code=1).stderr
    cid = docker.ok("commit", "-m", "why", "-a", "me", "-p", "-c", 'CMD ["cat", "/root/made"]', web[:12], "made:1")
    assert cid == docker.ok("image", "inspect", "-f", "{{.Id}}", "made:1")
    with imagekit.Registry(tmp_path, auth=True) as there:
        name = f"{there.host}/team/made:2"
        assert docker("tag", "made:1", name).stdout == docker("image", "tag", "made:1", "other:1").stdout == ""
        assert "credentials" in docker("push", name, code=1).stderr
        docker("login", "-u", there.user, "--password-stdin", there.host, input="wrong", code=1)
        assert docker.ok("login", "-u", there.user, "--password-stdin", there.host, input=there.password) == "Login Succeeded"
        assert docker.ok("push", "-q", name) == name
        docker("rmi", "made:1", "other:1", name)
        assert docker.ok("run", "--rm", name) == "kept"
        assert docker.ok("logout", there.host) == "Removing login credentials"
        docker("rmi", name)
        with Terminal([docker.exe, "login", there.host], docker.msb.env) as t:
            t.read_until(b"User name at ")
            t.type(there.user.encode() + b"\n")
            t.read_until(b"Password for ")
            t.type(there.password.encode() + b"\n")
            t.read_until(b"Login Succeeded")


def test_an_images_text_cannot_control_a_terminal(docker, web):
    text = "x\x9b2J\u202ey\tz\x7f\u200f"
    docker("commit", "-c", f'LABEL a="{text}"', "web", "hostile:1")
    argv = ["image", "inspect", "-f", '{{index .Config.Labels "a"}}\\n', "hostile:1"]
    assert docker(*argv).stdout == text + "\n\n", "a program gets it as it is"
    with Terminal([docker.exe, *argv], docker.msb.env) as t:
        assert t.wait() == 0 and t.output == b"x?2J?y\tz??\r\n\r\n"
    docker("rmi", "hostile:1")


def test_msb_docker_is_the_same(docker, web):
    assert docker.msb.ok("docker", "ps", "-q", "-f", "name=web").strip() == web[:12]
    assert "Usage: msb docker" in docker.msb.ok("docker", "--help")
