"""What Docker users type: it works, or one sentence says what to do instead."""
import json

import pytest


def stderr(p):
    return p.stderr.decode()


def out(p):
    return p.stdout.decode()


# --- commands without "--" ----------------------------------------------------------------------


def test_a_command_follows_its_sandbox(box):
    m, name = box
    assert out(m("exec", name, "echo", "-n", "--", "x", check=0)) == "-- x"
    assert out(m("exec", "-i", name, "cat", input=b"in", check=0)) == "in"
    assert out(m("exec", "-e", "A=b", name, "-w", "/tmp", "sh", "-c", "echo $A $PWD",
                 check=0)) == "b /tmp\n"
    assert b"tty" in m("exec", "-it", name, "sh", "-c", "test -t 1 && echo tty", check=0).stdout
    assert m("exec", name, "sh", "-c", "exit 7").returncode == 7
    assert out(m("container", "exec", name, "echo", "x", check=0)) == "x\n"
    assert out(m("shell", name, input=b"echo $0\n", check=0)) == "/bin/sh\n"


def test_run_with_rm(msb):
    """--rm alone is a switch, even for a sandbox with a name; with a path it removes that."""
    assert out(msb("run", "--rm", "--name", "gone", "msb/base", "echo", "hi", check=0)) == "hi\n"
    assert msb.ok("ls", "-q") == ""
    p = msb("run", "--rm", "/etc/hostname", "--", "test", "-e", "/etc/hostname")
    assert p.returncode == 1
    assert msb.ok("run", "-d", "--rm", "-n", "web", "msb/base", "sleep", "100") == "web\n"
    assert msb.ok("ls", "-q") == "web\n"
    msb.ok("kill", "web")
    assert msb.ok("ls", "-aq") == ""
    p = msb("create", "--rm", "-n", "x")
    assert p.returncode == 2 and "--rm needs a PATH" in stderr(p)


# --- options ------------------------------------------------------------------------------------


def test_env_file(box, tmp_path):
    m, name = box
    f = tmp_path / "env"
    f.write_text("# comment\n\nA=1\n  B=two words # and more\r\nPATH_OF_HOST\nHOME_OF_NOBODY\nC=\n")
    env = dict(m.env, PATH_OF_HOST="here")
    script = 'echo "$A|$B|$PATH_OF_HOST|${HOME_OF_NOBODY-unset}|${C-unset}"'
    got = m("exec", "--env-file", f, "-e", "A=9", name, "sh", "-c", script, env=env, check=0)
    assert out(got) == "9|two words # and more|here|unset|\n"
    for text, why in (("A B=1\n", "line 1"), ("A=1\n=x\n", "line 2"), ("A=\0\n", "not text")):
        f.write_text(text)
        p = m("exec", "--env-file", f, name, "true")
        assert p.returncode == 1 and why in stderr(p)
    f.write_text("A=" + "x" * (1 << 20) + "\n")
    assert "too large" in stderr(m("exec", "--env-file", f, name, "true"))
    assert "nowhere" in stderr(m("exec", "--env-file", tmp_path / "nowhere", name, "true"))


def test_mounts_and_networks(msb, tmp_path):
    """--mount, :z, --network none and --ulimit, all in one sandbox."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "f").write_text("data")
    msb.ok("run", "-d", "-n", "box", "--network", "none", "--ulimit", "nofile=99",
           "--mount", f"type=bind,source={tmp_path}/src,target=/a,readonly,consistency=cached",
           "-v", f"{tmp_path}/src:/b:z", "--mount", "type=volume,src=vol,dst=/c",
           "--mount", "type=tmpfs,destination=/d,tmpfs-size=1M", "msb/base", "sleep", "1000")
    script = "cat /a/f; ! touch /a/x 2>/dev/null; touch /b/y /c/y; ls /sys/class/net; ulimit -n; " \
             "df -m /d | tail -1 | awk '{print $2}'"
    assert msb.sh("box", script, check=0).stdout.split() == [b"datalo", b"99", b"1"]
    assert (tmp_path / "src" / "y").exists()
    assert msb("volume", "prune", "-f", check=0) and msb.ok("volume", "ls", "-q") == "vol\n"
    assert "non-interactive" in stderr(msb("system", "prune", check=1))
    msb.ok("stop", "-t", "0", "--all")
    assert json.loads(msb.ok("ls", "--json"))[0]["status"] == "Stopped"
    assert json.loads(msb.ok("ps", "-a", "--json"))[0]["name"] == "box"
    got = json.loads(msb.ok("system", "prune", "--volumes", "--yes", "--json"))
    assert got["sandboxes"] == 1 and got["volumes"] == 1
    assert msb.ok("ls", "-q") == "" and msb.ok("volume", "ls", "-q") == ""
    for args, why in ((("type=nfs,source=/,target=/a",), "unsupported type 'nfs'"),
                      (("source=/,target=/a,colour=red",), "unsupported 'colour'"),
                      (("type=bind,target=/a",), "source= is missing"),
                      (("type=tmpfs",), "target= is missing"),
                      (("type=bind,type=bind",), "given twice")):
        p = msb("run", "--mount", *args, "--", "true")
        assert p.returncode == 1 and why in stderr(p)


def test_short_options_of_logs(box):
    m, name = box
    m.ok("exec", name, "seq", "3")
    assert m.ok("logs", "-n", "1", name) == "3\n"
    assert m.ok("logs", "-n1", "-t", name).endswith("Z 3\n") or "T" in m.ok("logs", "-tn1", name)


# --- one sentence -------------------------------------------------------------------------------


@pytest.mark.parametrize("args, says", [
    (["build", "."], "msb load"),
    (["compose", "up"], "does not support compose files"),
    (["run", "--gpus", "all", "x"], "GPU"),
    (["run", "--privileged", "x"], "omit this option"),
    (["run", "--network", "host", "x"], "--net public,host"),
    (["create", "--restart=always", "x"], "no daemon"),
    (["kill", "--signal", "HUP", "x"], "msb exec NAME kill"),
])
def test_a_sentence_says_what_to_do_instead(module_msb, args, says):
    p = module_msb(*args)
    assert p.returncode == 2 and says in stderr(p)
    assert "similar" not in stderr(p) and len(stderr(p).splitlines()) == 2


@pytest.mark.parametrize("word", ["sotp", "rmv", "remov", "restrat", "snapshto", "prnue"])
def test_suggestions_are_harmless(module_msb, word):
    """Nothing that destroys, nothing that is not there."""
    p = module_msb(word)
    assert p.returncode == 2 and "similar" not in stderr(p)


def test_plural_groups_list(module_msb):
    for word, group in (("volumes", "volume"), ("vols", "volume"), ("registries", "registry"), ("regs", "registry")):
        assert module_msb.ok(word) == module_msb.ok(group, "ls") == module_msb.ok(word, "ls")
        assert module_msb.ok(word, "-q") == module_msb.ok(group, "ls", "-q")


def test_options_that_inspect_reports(module_msb):
    """What happens anyway may be asked for; what does not exist is refused."""
    ok = ["--thp", "madvise", "--security", "default", "--deployment-profile", "single-tenant", "--cpu-placement", "auto"]
    module_msb.ok("run", *ok, "msb/base", "true")
    for bad in (["--thp", "sometimes"], ["--security", "none"], ["--deployment-profile", "tenants"]):
        p = module_msb("run", *bad, "msb/base", "true")
        assert p.returncode == 2 and "possible values: " in stderr(p)


def test_other_spellings(module_msb):
    for args in (["login", "--help"], ["logout", "--help"], ["images"], ["rmi", "--help"],
                 ["image", "prune", "-f"], ["volume", "prune", "-y"], ["stop", "--all"]):
        module_msb(*args, check=0)
