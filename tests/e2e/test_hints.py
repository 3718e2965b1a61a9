"""Small things that make the difference between a message and an answer."""
import os
import subprocess

from conftest import MSB, ROOT
from terminal import Terminal


def stderr(p):
    return p.stderr.decode()


def test_near_names(box):
    m, name = box
    p = m("exec", "bxo", "true")
    assert stderr(p) == f"error: sandbox not found: bxo\n  → a similar name exists: '{name}'\n"
    assert stderr(m("exec", "something-else", "true")) == "error: sandbox not found: something-else\n"


def test_a_name_is_checked_before_the_image_is_looked_for(box):
    m, name = box
    p = m("create", "-n", name, "registry.invalid/no/such:image")
    assert p.returncode == 1 and stderr(p).startswith("error: sandbox already exists: ")


def test_ignored_flags_are_mentioned_only_if_there_are_any(box):
    m, name = box
    assert stderr(m("run", "-n", name, "--", "true", check=0)) == ""
    assert stderr(m("run", "-n", name, "msb/base", "true", check=0)) == ""
    assert "creation flags ignored" in stderr(m("run", "-n", name, "-m", "1G", "--", "true", check=0))
    assert "creation flags ignored" in stderr(m("run", "-n", name, "alpine", "true", check=0))


def test_a_missing_disk_is_no_directory(module_msb):
    p = module_msb("run", "--mount-disk", "/nowhere.img:/d", "--", "true")
    assert p.returncode == 1 and "mkdir" not in stderr(p) and "no such file" in stderr(p).lower()
    assert "mkdir -p /nowhere" in stderr(module_msb("run", "-v", "/nowhere:/d", "--", "true"))


def test_the_kind_of_terminal_is_passed_on_where_the_guest_knows_it(box):
    m, name = box

    def term(kind):
        env = dict(m.env, TERM=kind)
        with Terminal(m.command(["exec", name, "sh", "-c", "echo [$TERM]"]), env) as t:
            assert t.wait() == 0
            return t.output.decode().strip()

    for known in ("xterm-256color", "tmux-256color", "vt100"):
        assert term(known) == f"[{known}]"
    assert term("strange-256color") == "[xterm-256color]"  # not that one, but as many colors
    for other in ("strange", "../../etc/passwd", "x" * 500, ".", ""):
        assert term(other) == "[xterm]"
    m.sh(name, "rm -r /usr/share/terminfo", check=0)
    for unknown in ("xterm-256color", "strange-256color"):
        assert term(unknown) == "[xterm]"


def test_install_says_what_is_missing(tmp_path):
    """On PATH or not; and without the right to write there, how to get it."""
    build = MSB.parents[2]
    install = [ROOT / "scripts" / "install", build]
    if not (build / "assets" / "linux-uml").exists():
        return
    env = {**os.environ, "PATH": f"{tmp_path}/a/bin:/usr/bin:/bin"}
    for where, noted in (("a", False), ("b", True)):
        p = subprocess.run([*install, tmp_path / where], env=env, capture_output=True, check=True)
        assert (b"is not on your PATH" in p.stdout) == noted
