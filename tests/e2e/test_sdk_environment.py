"""The terminal with the options of a Docker back end: state between commands, options, validation."""
import logging

import pytest

from guest import FOREVER
from sdkkit import BASE, sdk
from msb.environments import (DockerLikeEnvironment, clean_env, clean_names, clean_volumes, safe_name)


@pytest.fixture
def make(msb, monkeypatch):
    """Makes environments in a home of the test's own, and cleans them up."""
    made = []
    for key in ("MSB_HOME", "MSB_ASSETS", "MSB_ENGINE"):
        if key in msb.env:
            monkeypatch.setenv(key, msb.env[key])

    def new(image=BASE, **options):
        made.append(DockerLikeEnvironment(image, msb=msb.exe, home=str(msb.home), **options))
        return made[-1]

    yield new
    for env in made:
        env.cleanup()


def run(env, command, **kw):
    r = env.execute(command, **kw)
    assert r["returncode"] == 0, r
    return r["output"]


def test_it_is_one_terminal(make, msb):
    with make() as env:
        assert env.cwd == "/root"
        assert run(env, "pwd; echo $HOME") == "/root\n/root\n"
        run(env, "cd /usr; export KEPT='a b'; echo x > /tmp/f")
        assert run(env, "pwd; echo $KEPT; cat /tmp/f") == "/usr\na b\nx\n" and env.cwd == "/usr"
        assert run(env, "pwd", cwd="/tmp") == "/tmp\n"
        assert env.execute("cd /var; exit 42") == {"output": "", "returncode": 42}
        assert run(env, "pwd") == "/var\n", "also after an exit"
        assert run(env, "echo out; echo err >&2; echo out") == "out\nerr\nout\n", "in order"
        assert run(env, "cat", stdin_data="in\n") == "in\n"
        assert env.execute("cd /no/such", cwd="")["returncode"] != 0
        assert env.execute("true", cwd="/no/such")["returncode"] == 126
        r = env.execute(f"echo partial; sleep {FOREVER}", timeout=0.5)
        assert r["returncode"] == 124 and r["output"].startswith("partial\n") and "killed" in r["output"]
        assert run(env, "echo $KEPT") == "a b\n"
        assert run(env, "test -d /workspace && echo there") == "there\n"
        assert run(env, "grep -c ' /var/tmp tmpfs .*noexec' /proc/mounts") == "1\n"
        name = env.sandbox_name
    assert name not in msb.ok("ls", "-q") and env.sandbox_name is None
    env.cleanup()
    with pytest.raises(sdk.SandboxUnavailable):
        env.execute("true")


def test_environment_of_commands(make, monkeypatch):
    monkeypatch.setenv("FORWARD_ME", "one")
    monkeypatch.setenv("PROVIDER_KEY", "two")
    monkeypatch.setenv("DECLARED", "three")
    monkeypatch.setenv("NOT_MENTIONED", "shouldnotleak")
    env = make(env={"A": "b c", "N": 5, "T": True}, forward_env=["FORWARD_ME", "NOT_SET_AT_ALL"],
               passthrough_env=["DECLARED", "PROVIDER_KEY"], blocked_env=["PROVIDER_KEY"])
    assert run(env, "echo $A $N $T $FORWARD_ME $DECLARED [$PROVIDER_KEY]") == "b c 5 True one three []\n"
    assert "shouldnotleak" not in run(env, "env")
    env = make(forward_env=["PROVIDER_KEY"], passthrough_env=["PROVIDER_KEY"], blocked_env=["PROVIDER_KEY"])
    assert run(env, "echo $PROVIDER_KEY") == "two\n", "who asks for it by name gets it"


def test_resources(make, msb):
    import json
    env = make(cpu=0.5, memory=300, disk=600, network=False, task_id="resources", max_duration=600)
    config = json.loads(msb.ok("inspect", env.sandbox_name, "--format", "json"))["config"]
    assert config["resources"]["cpus"] == 0.5 and config["resources"]["memory_mib"] == 300
    assert config["resources"]["root_disk"]["size_bytes"] == 600 << 20
    assert config["lifecycle"]["max_duration_secs"] == 600
    assert config["network"]["enabled"] is False
    assert run(env, "ip route | wc -l") == "0\n"
    config = json.loads(msb.ok("inspect", make().sandbox_name, "--format", "json"))["config"]
    assert config["network"]["enabled"] is True


def test_mounts(make, tmp_path):
    work, data, token = tmp_path / "work", tmp_path / "data", tmp_path / "token"
    work.mkdir()
    data.mkdir()
    token.write_text("t0ken")
    (data / "f").write_text("data")
    env = make(host_cwd=str(work), auto_mount_cwd=True, volumes=[f"{data}:/data:ro", "  "],
               read_only_mounts=[{"host_path": str(token), "container_path": "/root/.token"},
                                 {"host_path": str(tmp_path / "none"), "container_path": "/x"}])
    assert run(env, "cat /data/f /root/.token; echo made > /workspace/out") == "datat0ken"
    assert (work / "out").read_text() == "made\n"
    assert env.execute("echo x > /root/.token")["returncode"] != 0
    assert env.execute("echo x > /data/g")["returncode"] != 0
    assert token.read_text() == "t0ken"
    env = make(host_cwd=str(work), auto_mount_cwd=True, volumes=[f"{data}:/workspace"])
    assert run(env, "ls /workspace") == "f\n", "a volume at /workspace wins"
    env = make(host_cwd=str(work))
    assert run(env, "ls /workspace") == "", "not without being asked"
    env = make(host_cwd=str(tmp_path / "missing"), auto_mount_cwd=True)
    assert run(env, "ls /workspace") == ""


def test_persistent_files(make, monkeypatch, tmp_path):
    monkeypatch.setenv("TERMINAL_SANDBOX_DIR", str(tmp_path / "kept"))
    env = make(persistent_filesystem=True, task_id="t")
    run(env, "echo home > ~/h; echo work > /workspace/w")
    env.cleanup()
    env = make(persistent_filesystem=True, task_id="t")
    assert run(env, "cat /root/h /workspace/w") == "home\nwork\n"
    env = make(persistent_filesystem=True, task_id="../t")
    assert run(env, "ls /root /workspace") == "/root:\n\n/workspace:\n"
    assert sorted(p.name for p in (tmp_path / "kept" / "msb").iterdir()) == ["t", safe_name("../t")]
    env = make(task_id="t")
    assert env.execute("cat /root/h")["returncode"] != 0


def test_names_and_values_are_checked(caplog):
    caplog.set_level(logging.WARNING)
    assert clean_names(None, "o") == []
    assert clean_names(["A", " A ", "b_1", "", "1X", "A-B", 5, None], "o") == ["A", "b_1"]
    assert len(caplog.records) == 4
    caplog.clear()
    assert clean_env(None, "o") == {} and clean_env({}, "o") == {} and not caplog.records
    assert clean_env(["A"], "o") == {}
    assert clean_env({"A": "x", " B ": 1, "C": 1.5, "D": False, "1E": "x", 5: "x", "F": ["x"], "G": None},
                     "o") == {"A": "x", "B": "1", "C": "1.5", "D": "False"}
    assert len(caplog.records) == 5
    caplog.clear()
    assert clean_volumes(None, "o") == [] and not caplog.records
    assert clean_volumes("a:b", "o") == []
    assert clean_volumes([" /a:/b ", "/c", 5, ""], "o") == ["/a:/b"]
    assert len(caplog.records) == 3
    names = [safe_name(n) for n in ("ok", "a/b", "a-b", "../..", "", "x" * 200, "ü")]
    assert len(set(names)) == len(names) and names[0] == "ok"
    assert all(len(n) <= 80 and "/" not in n and not n.startswith((".", "-")) for n in names)


def test_no_program(tmp_path, monkeypatch, caplog):
    broken = tmp_path / "msb"
    broken.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    broken.chmod(0o755)
    for exe in (str(tmp_path / "none"), str(broken)):
        with pytest.raises(RuntimeError):
            DockerLikeEnvironment(BASE, msb=exe, home=str(tmp_path))
    monkeypatch.setenv("MSB_PATH", str(tmp_path / "none"))
    with pytest.raises(sdk.SandboxUnavailable):
        DockerLikeEnvironment(BASE, home=str(tmp_path))
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 3


def test_home_is_a_tilde(make):
    assert run(make(cwd="~"), "pwd") == "/root\n"
    with pytest.raises(sdk.MsbError):
        make(image="/no/such/image")
