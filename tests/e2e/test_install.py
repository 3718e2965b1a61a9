"""Commands on PATH that run in sandboxes, and what msb says about its own installation."""
import json
import os
import pathlib
import subprocess


def stderr(p):
    return p.stderr.decode()


def run_installed(m, name, *args, **kw):
    path = f"{m.home}/bin:{pathlib.Path(m.exe).parent}:/usr/bin:/bin"
    env = dict(m.env, PATH=path)
    return subprocess.run([name, *args], env=env, capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
                          executable=str(m.home / "bin" / name), **kw)  # fmt: skip


def test_a_command_in_a_sandbox(msb, tmp_path):
    """Its words, its options and its arguments arrive as they were given; nothing is kept with --tmp."""
    odd = "it's $HOME; `x` \"q\" \\n"
    p = msb("install", "--tmp", "-n", "say", "-e", f"ODD={odd}", "msb/base", "--", "sh", "-c",
            'printf "%s|" "$ODD" "$@"', "sh", check=0)
    assert f'export PATH="{msb.home}/bin:$PATH"' in stderr(p)
    got = run_installed(msb, "say", "a b", "*", "")
    assert (got.returncode, got.stdout.decode()) == (0, f"{odd}|a b|*||")
    assert msb.ok("ls", "-q") == ""
    msb.ok("install", "-n", "keeper", "-q", "msb/base", "--", "sh", "-c", "echo x >>/root/f; wc -l </root/f")
    assert [run_installed(msb, "keeper").stdout.strip() for _ in range(2)] == [b"1", b"2"]
    assert run_installed(msb, "keeper").stderr == b""
    lines = [line.split() for line in msb.ok("install", "-l").splitlines()]
    assert lines[0] == ["NAME", "IMAGE", "MODE", "COMMAND"]
    assert sorted(line[:3] for line in lines[1:]) == [["keeper", "msb/base", "persistent"], ["say", "msb/base", "tmp"]]
    p = msb("install", "-n", "say", "msb/base")
    assert p.returncode == 1 and "--force" in stderr(p)
    msb.ok("install", "-f", "--tmp", "-n", "say", "msb/base")  # the image has no command: its arguments are one
    assert run_installed(msb, "say", "echo", "hi").stdout == b"hi\n"
    mine = msb.home / "bin" / "mine"
    mine.write_text("#!/bin/sh\n")
    p = msb("uninstall", "say", "keeper", "mine", "nope")
    assert p.returncode == 1 and "alias 'mine' not found" in stderr(p) and "alias 'nope' not found" in stderr(p)
    assert os.listdir(msb.home / "bin") == ["mine"]
    assert msb.ok("install", "-l") == ""


def test_bad_installs(module_msb):
    for args, code in ((["-n", "../x", "msb/base"], 1), (["--bogus"], 2), (["-m", "x", "msb/base"], 1),
                       (["/no/such/dir"], 1)):
        assert module_msb("install", *args).returncode == code, args
    assert not (module_msb.home / "bin").exists() or os.listdir(module_msb.home / "bin") == []


def test_it_says_how_it_is_updated(module_msb):
    for args in (["update"], ["upgrade", "-f"], ["self", "update"], ["downgrade", "0.1.0"], ["self", "uninstall", "-y"]):
        p = module_msb(*args)
        assert p.returncode == 1 and "msb does not " in stderr(p) and "make" in stderr(p) or "remove" in stderr(p)
    assert module_msb("self", "check", "--help").returncode == 0


def test_context(module_msb):
    m = module_msb
    assert json.loads(m.ok("context", "--format", "json")) == {"kind": "local", "source": "default"}
    env = dict(m.env, MSB_BACKEND="local")
    assert json.loads(m.ok("ctx", "--json", env=env))["source"] == "MSB_BACKEND"
    for verb in (["ls"], ["run", "--", "true"]):  # what was meant for elsewhere does not run here instead
        p = m(*verb, env=dict(m.env, MSB_BACKEND="cloud"))
        assert p.returncode == 1 and b"no backend 'cloud'" in p.stderr
    p = m("context", env=dict(m.env, MSB_BACKEND="cloud"))
    assert p.returncode == 1 and "on this machine" in stderr(p)


def test_nothing_to_log_out_of(module_msb):
    p = module_msb("registry", "logout", "registry.example")
    assert p.returncode == 0 and stderr(p).startswith("warn: ")
    got = json.loads(module_msb.ok("image", "prune", "-y", "--format", "json"))
    assert set(got) == {"bytes_reclaimed", "fsmeta_removed", "image_refs_removed", "layers_removed",
                        "manifests_removed", "vmdk_removed"}  # fmt: skip
    assert all(isinstance(n, int) for n in got.values())
