"""The command line's shape: what goes where, with which exit code, for people and for programs."""
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

VERBS = ["run", "create", "start", "stop", "restart", "exec", "logs", "list", "status", "inspect", "net", "port", "audit",
         "remove", "ping", "touch", "image", "pull", "commit", "tag", "push", "load", "save", "registry", "volume", "doctor", "completion",
         "help"]  # fmt: skip
LATER = ["ssh", "snapshot", "snap"]
COLOR = re.compile(rb"\x1b\[[0-9;]*m")


def stderr(p):
    return p.stderr.decode()


def refused(p, code):
    """One line of error, then hints; nothing on stdout."""
    assert p.returncode == code, p
    assert p.stdout == b""
    lines = stderr(p).splitlines()
    assert lines[0].startswith("error: ") and len(lines[0]) > len("error: ")
    for line in lines[1:]:
        assert line.startswith("  → "), line
    return lines


def on_terminal(msb, *args, env=None, stdin=None, timeout=20):
    """Runs msb with stdout and stderr on a terminal; returns (exit code, what it showed)."""
    master, slave = pty.openpty()
    env = dict(env or msb.env)
    env.setdefault("TERM", "xterm")
    p = subprocess.Popen([msb.exe, *args], stdin=stdin or subprocess.DEVNULL, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    out, end = b"", time.monotonic() + timeout
    while time.monotonic() < end:
        if select.select([master], [], [], 0.1)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            out += chunk
    os.close(master)
    return p.wait(timeout=5), out


# --- help ----------------------------------------------------------------------------------------


def test_version(msb):
    p = msb("--version")
    assert (p.returncode, p.stderr) == (0, b"")
    assert re.fullmatch(rb"msb \d+\.\d+\.\d+\n", p.stdout)
    assert msb("-V").stdout == p.stdout


def test_root_help(msb):
    """--help, -h, help and nothing at all: the same text, on stdout, exit 0."""
    texts = [msb(*args) for args in (["--help"], ["-h"], ["help"], [])]
    for p in texts:
        assert (p.returncode, p.stderr) == (0, b"")
        assert p.stdout == texts[0].stdout
    out = texts[0].stdout.decode()
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", out, re.M), verb
    assert "[alias: ls]" in out and "[alias: ps]" in out and "[alias: rm]" in out


@pytest.mark.parametrize("verb", VERBS)
def test_verb_help(msb, verb):
    """Each verb explains itself on one screen, beginning with examples of its use."""
    p = msb(verb, "--help")
    assert (p.returncode, p.stderr) == (0, b"")
    out = p.stdout.decode()
    summary, usage, examples = out.split("\n\n", 3)[:3]
    assert summary and usage.startswith(f"Usage: msb {verb}")
    assert re.search(rf"\bmsb ({verb}|ls|ps|rm|cp)\b", examples.removeprefix("Examples:\n")), examples
    assert msb(verb, "-h").stdout == p.stdout
    assert msb("help", verb).stdout == p.stdout
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= (35 if verb in ("run", "create") else 24)


@pytest.mark.parametrize("verb", ["run", "create", "logs", "stop", "image"])
def test_verb_help_all(msb, verb):
    """--help-all has what --help has, and every option that there is."""
    short, out = msb.ok(verb, "--help"), msb.ok(verb, "--help-all")
    options = re.compile(r"^ +(?:-., )?(--[a-z0-9-]+)", re.M)
    assert set(options.findall(short)) < set(options.findall(out))
    tree = re.findall(r"^[├└]── (?:-., )?(--[a-z0-9-]+)", msb.ok(verb, "--tree"), re.M)
    assert set(tree) <= set(options.findall(out))
    assert "\nGlobal options:\n" in out and "--trace" in out
    if verb == "run":
        assert "\nNetwork:\n" in out and "--dns-nameserver" in out and "--dns-nameserver" not in short


def test_help_wins_over_missing_arguments(msb):
    for verb in ("exec", "inspect", "stop", "completion"):
        assert msb(verb, "--help").returncode == 0
        assert msb(verb, "--tree").returncode == 0


def test_help_works_without_a_home(msb, tmp_path):
    env = {**msb.env, "MSB_HOME": "/proc/nowhere"}
    for args in (["--help"], ["--version"], ["--tree"], ["run", "--help"], ["completion", "bash"]):
        assert msb(*args, env=env).returncode == 0


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_tree(msb, verb):
    p = msb(*([verb] if verb else []), "--tree")
    assert (p.returncode, p.stderr) == (0, b"")
    lines = p.stdout.decode().splitlines()
    assert lines[0] == ("msb " + verb if verb else "msb")
    assert all(re.match(r"(│   |    )*(├──|└──) ", line) for line in lines[1:])
    if not verb:
        for v in VERBS:
            assert any(re.match(rf"[├└]── {v}( |$)", line) for line in lines), v


NESTED = {"image": ["list", "inspect", "remove", "prune", "pull", "commit", "tag", "push", "load", "save"],
          "registry": ["login", "logout", "list"]}  # fmt: skip


@pytest.mark.parametrize("group,verb", [(g, v) for g in NESTED for v in NESTED[g]])
def test_nested_verbs(msb, group, verb):
    p = msb(group, verb, "--help", check=0)
    text = p.stdout.decode()
    shared = verb in ("pull", "commit", "tag", "push", "load", "save")
    assert f"\nUsage: msb {'' if shared else group + ' '}{verb} [OPTIONS]" in text
    assert msb("help", group, verb).stdout == p.stdout
    assert re.search(rf"^  {verb} ", msb.ok(group, "--help"), re.M)
    assert msb.ok(group, verb, "--tree").splitlines()[0] == f"msb {verb if shared else group + ' ' + verb}"
    assert re.search(rf"^[├└]── {verb}( |$)", msb.ok(group, "--tree"), re.M)


@pytest.mark.parametrize("group", NESTED)
def test_groups(msb, group):
    lines = refused(msb(group), 2)
    assert lines[0] == f"error: 'msb {group}' requires a subcommand but one was not provided"
    assert f"subcommands: {', '.join(NESTED[group])}" in lines[1]
    lines = refused(msb(group, "lisst"), 2)
    assert lines[0] == "error: unrecognized subcommand 'lisst'"
    assert "  → a similar subcommand exists: 'list'" in lines
    assert f"  → 'msb {group} --help' lists them" in lines
    lines = refused(msb(group, "list", "--bogus"), 2)
    assert f"  → see 'msb {group} list --help'" in lines
    assert msb("--debug", group, "--info", "ls", "--format", "json").returncode == 0
    assert msb(group, "list", "--help").stdout == msb(group, "ls", "-h").stdout


def test_hidden_spellings(msb):
    assert msb("images", "--help").stdout == msb("image", "ls", "--help").stdout
    assert msb("rmi", "--help").stdout == msb("image", "rm", "--help").stdout
    assert msb("regs", "--help").stdout == msb("registry", "ls", "--help").stdout
    assert "images" not in re.findall(r"^  (\w+) ", msb.ok("--help"), re.M)


# --- parsing -------------------------------------------------------------------------------------


def test_unknown_verb(msb):
    lines = refused(msb("cretae"), 2)
    assert lines[0] == "error: unrecognized subcommand 'cretae'"
    assert "  → a similar subcommand exists: 'create'" in lines
    assert "similar" not in stderr(msb("xyzzy"))


def test_unknown_option(msb):
    lines = refused(msb("create", "--memroy", "1G"), 2)
    assert lines[0] == "error: unexpected argument '--memroy' found"
    assert "  → a similar argument exists: '--memory'" in lines
    refused(msb("create", "-Z"), 2)
    refused(msb("--frob"), 2)


def test_arguments(msb):
    refused(msb("exec"), 2)
    refused(msb("inspect", "a", "b"), 2)
    refused(msb("create", "--name"), 2)
    refused(msb("create", "--name", "a", "--name", "b"), 2)
    refused(msb("ls", "--format", "xml"), 2)
    refused(msb("ls", "--quiet=yes"), 2)
    refused(msb("stop", "x", "-t", "soon"), 2)
    refused(msb("create", "--cpus", "256"), 2)
    refused(msb("create", "--cpus", "0"), 1)


def test_spellings(msb):
    """Options before and after names, with = or a space, short ones joined, aliases of verbs."""
    msb.ok("create", "--name=s", "--memory=128M", "-q", "--label=a=b=c")
    assert json.loads(msb.ok("inspect", "s", "--format=json"))["config"]["labels"] == {"a": "b=c"}
    assert msb.ok("ls", "-q") == msb.ok("list", "--quiet") == "s\n"
    assert msb.ok("ps", "-aq") == msb.ok("status", "-a", "-q") == "s\n"
    p = msb("stop", "s", "--quiet", "-t0")
    assert (p.returncode, p.stderr) == (0, b"")
    p = msb("start", "--quiet", "s")
    assert (p.returncode, p.stderr) == (0, b"")
    p = msb("rm", "s", "-fq")
    assert (p.returncode, p.stderr) == (0, b"")
    refused(msb("remove", "--", "-s"), 1)


def test_everything_after_the_dashes_is_the_command(msb):
    msb.create("s")
    assert msb.ok("exec", "-q", "s", "--", "echo", "--help", "-q", "--", "--tree") == "--help -q -- --tree\n"


# --- not there yet -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", LATER)
def test_verbs_to_come_are_refused(msb, verb):
    lines = refused(msb(verb, "x"), 1)
    assert lines[0] == f"error: 'msb {verb}' is not available yet"


OPTIONS_LATER = [["--from-snapshot", "x"]]


@pytest.mark.parametrize("option", OPTIONS_LATER, ids=lambda o: o[0])
def test_options_to_come_are_refused_not_ignored(msb, option):
    lines = refused(msb("run", "-n", "x", *option), 1)
    assert "is not available yet" in lines[0]
    assert lines[0].startswith("error: --")
    assert msb.leftovers() == []


def test_help_lists_what_is_not_there_yet(msb):
    out = msb.ok("run", "--help-all")
    shown, coming = out.split("\nNot available yet:\n")
    for option in OPTIONS_LATER:
        if option[0].startswith("--"):
            assert re.search(rf"{option[0]}\b", coming), option
            assert not re.search(rf"^ +(-\w, )?{option[0]}( |$)", shown, re.M), option


# --- lists ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boxes(module_msb):
    """Two running, one stopped; made in the order zebra, ant, bee."""
    module_msb.create("zebra", "--label", "kind=big", "-m", "1G", "-e", "A=1", "-e", "B=x=y")
    module_msb.create("ant", "--label", "kind=small", "--cpus", "2", "-m", "128M")
    module_msb.create("bee", "--label", "kind=small", "-m", "64M", "--pids-limit", "4194304")
    module_msb.ok("stop", "-t", "0", "bee", "-q")
    return module_msb


def test_ls_table(boxes):
    """Newest first; local time."""
    lines = boxes.ok("ls").splitlines()
    assert lines[0].split() == ["NAME", "IMAGE", "STATUS", "CREATED"]
    assert [line.split()[0] for line in lines[1:]] == ["bee", "ant", "zebra"]
    assert lines[1].split()[1:3] == ["msb/base", "stopped"]
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", lines[1])
    columns = [lines[0].index(h) for h in ("IMAGE", "STATUS", "CREATED")]
    for line in lines[1:]:
        assert all(line[c - 1] == " " and line[c] != " " for c in columns), "columns line up"
    utc = boxes.ok("ls", env={**boxes.env, "TZ": "UTC"})
    assert boxes.ok("ls", env={**boxes.env, "TZ": "XYZ-5:30"}) != utc


def test_ls_filters(boxes):
    assert boxes.ok("ls", "-q", "--running").split() == ["ant", "zebra"]
    assert boxes.ok("ls", "-q", "--stopped").split() == ["bee"]
    assert boxes.ok("ls", "-q", "--label", "kind=small").split() == ["bee", "ant"]
    assert boxes.ok("ls", "-q", "--label", "kind", "--running").split() == ["ant", "zebra"]
    assert boxes.ok("ls", "-q", "--label", "none") == ""


def is_sorted(value):
    """Keys in order, at every depth."""
    if isinstance(value, dict):
        return list(value) == sorted(value) and all(map(is_sorted, value.values()))
    return all(map(is_sorted, value)) if isinstance(value, list) else True


RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


def test_ls_json(boxes):
    text = boxes.ok("ls", "--format", "json")
    data = json.loads(text)
    assert text == json.dumps(data, indent=2, ensure_ascii=False) + "\n", "pretty-printed"
    assert [set(d) for d in data] == [{"created_at", "image", "name", "status"}] * 3
    assert is_sorted(data) and all(RFC3339.fullmatch(d["created_at"]) for d in data)
    assert [(d["name"], d["status"]) for d in data] == [("bee", "Stopped"), ("ant", "Running"), ("zebra", "Running")]


def test_ps(boxes):
    lines = boxes.ok("ps").splitlines()
    assert lines[0].split() == ["NAME", "IMAGE", "COMMAND", "CPUS", "MEM", "STATUS", "PORTS"]
    assert [line.split()[0] for line in lines[1:]] == ["ant", "zebra"], "by name, running ones"
    assert "2 / 2" in lines[1] and "1 GiB / 1 GiB" in lines[2]
    assert [line.split()[0] for line in boxes.ok("ps", "-a").splitlines()[1:]] == ["ant", "bee", "zebra"]
    assert "stopped" in boxes.ok("ps", "bee")


def test_ps_json(boxes):
    keys = {"command", "cpus", "image", "max_cpus", "max_memory_mib", "memory_mib", "name", "ports", "status", "thp"}
    many = json.loads(boxes.ok("ps", "--format", "json"))
    assert [d["name"] for d in many] == ["ant", "zebra"] and all(set(d) == keys for d in many)
    one = json.loads(boxes.ok("ps", "zebra", "--format", "json"))
    assert set(one) == keys and one["memory_mib"] == 1024 and one["ports"] == [] and is_sorted(one)


def test_inspect_json(boxes):
    text = boxes.ok("inspect", "zebra", "--format", "json")
    info = json.loads(text)
    assert {"active_config", "config", "created_at", "name", "pending_changes", "status", "updated_at"} <= set(info)
    assert is_sorted(info) and info["pending_changes"] == []
    config = info["config"]
    assert {"deployment_profile", "env", "image", "init", "labels", "lifecycle", "manifest_digest", "mounts", "name",
            "network", "patches", "pull_policy", "resources", "rlimits", "runtime", "security_profile"} <= set(config)  # fmt: skip
    assert config["env"] == [{"key": "A", "value": "1"}, {"key": "B", "value": "x=y"}]
    assert config["labels"] == {"kind": "big"}
    assert {"ephemeral", "idle_timeout_secs", "max_duration_secs"} <= set(config["lifecycle"])
    assert info["active_config"] == config
    assert json.loads(boxes.ok("inspect", "bee", "--format", "json"))["active_config"] is None
    assert RFC3339.fullmatch(info["created_at"]) and RFC3339.fullmatch(info["updated_at"])


def test_inspect_text(boxes):
    out = boxes.ok("inspect", "zebra")
    for line in (r"Name: +zebra", r"Status: +running", r"Created: +\d{4}-", r"Image: +msb/base", r"  Memory: +1024 MiB"):
        assert re.search(f"^{line}", out, re.M), line
    assert "\nEnvironment\n  A=1\n  B=x=y\n" in out and "\nLabels\n  kind=big\n" in out
    assert re.search(r"^  Processes: +4194304$", boxes.ok("inspect", "bee"), re.M)


def test_empty_lists(msb):
    """Notices go to stderr; programs get empty data."""
    for args, note in ((["ls"], "No sandboxes found.\n"), (["ps"], "No running sandboxes.\n")):
        p = msb(*args)
        assert (p.returncode, p.stdout, stderr(p)) == (0, b"", note)
        p = msb(*args, "--format", "json")
        assert (p.returncode, p.stdout, p.stderr) == (0, b"[]\n", b"")
        p = msb(*args, "-q")
        assert (p.returncode, p.stdout, p.stderr) == (0, b"", b"")


def test_data_on_stdout_progress_on_stderr(msb):
    p = msb("create", "-n", "x", "-m", "64M")
    assert p.stdout == b"" and stderr(p) == "   ✓ Created      x\n"
    p = msb("stop", "-t", "0", "x")
    assert p.stdout == b"" and stderr(p) == "   ✓ Stopped      x\n"


def test_closed_stdout(msb):
    """A reader that went away, or a full disk: no trace, no success."""
    msb.create("x", "-m", "64M")
    with open("/dev/full", "wb") as full:
        p = msb("ls", stdout=full)
    assert p.returncode == 1 and "cannot write to standard output: No space left on device" in stderr(p)


# --- terminals -----------------------------------------------------------------------------------


def test_colors(boxes):
    """On a terminal, unless NO_COLOR is set; never in a pipe."""
    env = {k: v for k, v in boxes.env.items() if k != "NO_COLOR"}
    assert not COLOR.search(boxes("ls", env=env).stdout)
    code, out = on_terminal(boxes, "ls", env=env)
    assert code == 0 and COLOR.search(out)
    plain = COLOR.sub(b"", out).replace(b"\r\n", b"\n")
    assert plain == boxes("ls").stdout
    code, out = on_terminal(boxes, "ls", env={**env, "NO_COLOR": "1"})
    assert code == 0 and not COLOR.search(out)
    code, out = on_terminal(boxes, "stop", "ghost", env=env)
    assert code == 1 and COLOR.search(out) and b"sandbox not found: ghost" in out
    code, out = on_terminal(boxes, "ls", env={**env, "TERM": "dumb"})
    assert code == 0 and not COLOR.search(out)


def test_spinner_leaves_no_trace(msb):
    """Progress on a terminal is wiped; what stays is the line that says what was done."""
    code, out = on_terminal(msb, "create", "-n", "x", "-m", "64M")
    assert code == 0
    last = out.decode().replace("\r\n", "\n").split("\x1b[K")[-1].lstrip("\r")
    assert last.splitlines()[-1].strip() == "✓ Created      x"  # a warning of the first create may be before it
    assert not msb.tree(os.getpid())[1:], "no process is left"
    code, out = on_terminal(msb, "rm", "-f", "-q", "x")
    assert (code, out) == (0, b"")


# --- engines, doctor, completion -----------------------------------------------------------------


def test_engines(msb):
    refused(msb("create", "-n", "e", "--engine", "qemu"), 2)
    for engine in ("auto", "uml", "uml-ptrace"):
        msb.create("e", "--engine", engine, "-m", "64M", "--replace")
        assert msb.ok("exec", "-q", "e", "--", "echo", "up") == "up\n"
        info = json.loads(msb.ok("inspect", "e", "--format", "json"))
        assert info["engine"] in (("uml", "kvm") if engine == "auto" else (engine,))


@pytest.fixture
def no_kvm_kernel(msb, tmp_path):
    """An environment in which everything is installed but a kernel for the kvm engine, or for several CPUs."""
    real = msb.env.get("MSB_ASSETS") or os.path.join(os.path.dirname(msb.exe), "../../assets")
    for f in os.listdir(real):
        if f not in ("linux-kvm", "linux-uml-smp"):
            os.symlink(os.path.realpath(os.path.join(real, f)), tmp_path / f)
    return {**msb.env, "MSB_ASSETS": str(tmp_path)}


def test_several_cpus_without_their_kernel(msb, no_kvm_kernel):
    p = msb("create", "-n", "e", "-m", "64M", "--engine", "uml", "--cpus", "2", env=no_kvm_kernel, check=0)
    assert (b"the uml engine runs one CPU without its second kernel (make kernel-uml-smp); --cpus 2 has no further effect"
            in p.stderr)
    assert msb.ok("exec", "-q", "e", "--", "nproc") == "1\n"


def test_kvm_without_its_kernel(msb, no_kvm_kernel):
    """Asked for, it is an error that says how to get one; `auto` goes on without."""
    lines = refused(msb("create", "-n", "e", "--engine", "kvm", env=no_kvm_kernel), 1)
    assert lines[0] == "error: there is no kernel for the kvm engine"
    assert "make kernel-kvm" in lines[1]
    env = {k: v for k, v in no_kvm_kernel.items() if k != "MSB_ENGINE"}
    msb.ok("create", "-n", "e", "-q", "-m", "64M", env=env)
    assert json.loads(msb.ok("inspect", "e", "--format", "json"))["engine"] == "uml"
    p = msb("doctor", env=env)
    assert p.returncode == 0
    if len(os.sched_getaffinity(0)) > 1:
        assert re.search(r"! Kernel \(smp\) .*one CPU, whatever --cpus says\n  → .*make kernel-uml-smp", stderr(p))
    if re.search(r"✓ KVM ", stderr(p)):
        assert re.search(r"✓ Engine +uml \(there is no kernel", stderr(p))
        assert re.search(r"! Kernel \(kvm\) .*\n  → .*make kernel-kvm", stderr(p))
    else:
        assert re.search(r"✓ Engine +uml \(KVM cannot be used here\)", stderr(p))
        assert "make kernel-kvm" not in stderr(p), "nobody is asked to build it for nothing"


def test_engine_from_the_environment(msb):
    env = {**msb.env, "MSB_ENGINE": "uml-ptrace"}
    msb.ok("create", "-n", "e", "-q", "-m", "64M", env=env)
    assert json.loads(msb.ok("inspect", "e", "--format", "json"))["engine"] == "uml-ptrace"
    msb.ok("create", "-n", "f", "-q", "-m", "64M", "--engine", "uml", env=env)
    assert json.loads(msb.ok("inspect", "f", "--format", "json"))["engine"] == "uml", "the option wins"
    lines = refused(msb("create", "-n", "g", env={**msb.env, "MSB_ENGINE": "fast"}), 1)
    assert "invalid MSB_ENGINE 'fast'" in lines[0]


def test_doctor(msb, tmp_path):
    """Only stderr; 0 when sandboxes can run, 1 and a remedy when they cannot."""
    p = msb("doctor")
    assert (p.returncode, p.stdout) == (0, b"")
    for what in ("Host", "Engine", "Namespaces", "Shares", "seccomp", "MSB_HOME", "Disk", "mke2fs", "Limits", "Sandbox"):
        assert re.search(rf"✓ {what} ", stderr(p)), what
    assert re.search(r"[✓!] Kernel \((kvm|uml)\) .*, Linux \d+\.\d+\.\d+", stderr(p)), "that of the engine"
    assert re.search(r"[✓!] KVM ", stderr(p)), "the finding of the probe, whatever it is"
    p = msb("doctor", env={**msb.env, "MSB_ASSETS": str(tmp_path)})
    assert p.returncode == 1 and "✗" in stderr(p) and "  → " in stderr(p)
    assert p.stdout == b""


# A host whose security modules say what they are told to, and that refuses namespaces. Its root is a tmpfs with
# all that ours has, but for marks of a container.
MODULES = r"""set -e
mount --make-rprivate /
mount -t tmpfs root "$1"
for f in /*; do
    if [ -L "$f" ]; then cp -a "$f" "$1$f"; elif [ -d "$f" ]; then mkdir "$1$f"; mount --rbind "$f" "$1$f"; fi
done
mkdir "$1/.kernel"
cp /proc/sys/kernel/* "$1/.kernel" 2>/dev/null || :
echo 1 >"$1/.kernel/unprivileged_userns_clone"
echo "$RESTRICTS" >"$1/.kernel/apparmor_restrict_unprivileged_userns"
mount --bind "$1/.kernel" "$1/proc/sys/kernel"
mount -t tmpfs fs "$1/sys/fs"
mkdir "$1/sys/fs/selinux"
echo "$ENFORCES" >"$1/sys/fs/selinux/enforce"
echo "$LABEL" >"$1/.label"
mount --bind "$1/.label" "$1/proc/$$/attr/current"
exec chroot "$1" "$2" -c "$3" "$4"
"""
REFUSE = r"""import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 272), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]  # unshare: EPERM
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0
assert prctl(22, 2, ctypes.c_char_p(struct.pack("HxxxxxxQ", 4, ctypes.addressof(code))), 0, 0) == 0
os.execv(sys.argv[1], [sys.argv[1], "doctor", "--format", "json"])
"""


@pytest.mark.parametrize("inside, restricts, enforces, label, says, remedy", [
    ("", 1, 0, "msb-profile (enforce)", "AppArmor profile msb-profile (enforce)", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("", 0, 1, "user_u:user_r:user_t:s0", "SELinux enforcing", "ausearch -m avc"),
    ("podman", 0, 0, "system_u:system_r:container_t:s0:c1,c2", "a container (podman), SELinux", "--security-opt label=disable"),
    ("docker", 0, 0, "docker-default (enforce)", "a container (docker), AppArmor", "--security-opt apparmor=unconfined"),
], ids=["ubuntu", "selinux", "fedora", "docker"])  # fmt: skip
def test_doctor_knows_security_modules(module_msb, tmp_path, inside, restricts, enforces, label, says, remedy):
    if os.geteuid() != 0 or os.path.exists("/run/.containerenv") or not shutil.which("unshare"):
        pytest.skip("needs root, and a host that is no podman container")
    m = module_msb
    env = {**m.env, "RESTRICTS": str(restricts), "ENFORCES": str(enforces), "LABEL": label, "container": inside}
    p = subprocess.run(["unshare", "-m", "sh", "-c", MODULES, "sh", tmp_path, "/usr/bin/python3", REFUSE, m.exe],
                       env=env if inside else {k: v for k, v in env.items() if k != "container"}, capture_output=True)
    checks = {c["name"]: c for c in json.loads(p.stdout or "null")["checks"]} if p.stdout else {}
    assert p.returncode == 0 and says in checks["Inside"]["detail"], (p.stderr, checks)
    assert remedy in checks["Namespaces"]["remedy"], checks


def test_doctor_measures_limits_as_ulimit_does(module_msb):
    m = module_msb
    p = subprocess.run(["bash", "-c", 'ulimit -f 1000; exec "$0" doctor', m.exe], env=m.env, capture_output=True)
    assert "only 1024000 bytes in a file" in stderr(p) and f"ulimit -Hf {8 << 20} " in stderr(p)


def test_doctor_knows_old_kernels(msb, no_kvm_kernel, tmp_path):
    """By what the kernel itself says, wherever it was installed; nothing is asked of the network."""
    then = int(time.time()) - 91 * 86400 - 3600
    kernel, cache = tmp_path / "linux-uml", tmp_path / "cache/kernel"
    kernel.unlink()
    kernel.write_text(f"Linux version 7.2.9 (x@y) #1 @{then}\n")
    cache.mkdir(parents=True)
    env = {**no_kvm_kernel, "MSB_ENGINE": "uml", "MSB_CACHE_DIR": str(cache.parent)}
    p = msb("doctor", env=env)
    assert p.returncode == 1, "that one does not start"
    assert re.search(r"! Kernel \(uml\) .*/linux-uml, Linux 7\.2\.9 of [\d-]{10}: 91 days old, so a newer one is likely\n"
                     r"  → in msb's source tree: kernel/build --update uml", stderr(p)), stderr(p)
    (cache / "newest-version").write_text("7.2.13-1\n")
    checks = json.loads(msb("doctor", "--format", "json", env=env).stdout)["checks"]
    (line,) = [c for c in checks if c["name"] == "Kernel (uml)"]
    assert line["status"] == "warn" and line["detail"].endswith(": older than Linux 7.2.13, the newest known here"), line
    assert "kernel/build --update uml" in line["remedy"]


PULL = ["always", "if-missing", "never"]
FAKE_MSB = """msb() {
    case "$*" in
    "image ls -q") printf '%s\\n' python:3.11 python:3.12 localhost:5000/team/app:1 ;;
    "registry ls -q") printf '%s\\n' docker.io ghcr.io ;;
    "ls -q") echo box ;;
    "volume ls -q") echo vol-1 ;;
    "workspace ls -q") echo task-1 ;;
    "secret ls -q") echo S1 ;;
    esac
}
"""


def complete(script, line):
    """What bash offers after `msb line`, split into words as bash does it."""
    words = re.findall(r"[:=]|[^\s:=]+", line)
    if line.endswith(" "):
        words.append("")
    line = "msb " + line
    script += FAKE_MSB + f"COMP_WORDS=(msb {' '.join(words)}); COMP_CWORD={len(words)}\n" \
        f"COMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_WORDBREAKS=' :='\n" \
        '_msb\necho "${COMPREPLY[@]}"\n'  # fmt: skip
    p = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, cwd="/")
    assert not p.stderr
    return p.stdout.split()


# elvish has its line editor only on a terminal.
FAKE_EDITOR = """var edit: = (ns [&'completion:'=(ns [&arg-completer=[&]]) &complete-filename~={|word| put FILES }
    &complex-candidate~={|word &display=''| put $word }])
"""


@pytest.mark.skipif(not shutil.which("elvish"), reason="no elvish")
def test_elvish_completion(msb, tmp_path):
    """PowerShell gets the same table: what it does with it is a few lines more."""
    table = msb.ok("completion", "elvish")
    (tmp_path / "msb").write_text("#!/bin/bash\n" + FAKE_MSB + 'msb "$@"\n')
    (tmp_path / "msb").chmod(0o755)
    lines = {"cre": ["create"], "image in": ["inspect"], "image prune --y": ["--yes"], "image ls --form": ["--format"],
             "--debug image rem": ["remove"], "run --engine k": ["kvm"], "run --name image --engine k": ["kvm"],
             "run pyth": ["python:3.11", "python:3.12"], "registry logout gh": ["ghcr.io"], "cp b": ["box:/"],
             "completion e": ["elvish"], "run -- cre": [], "run --label ": ["FILES"]}  # fmt: skip
    calls = [" ".join(f"'{word}'" for word in ["msb", *line.split(" ")]) for line in lines]
    (tmp_path / "try.elv").write_text(
        FAKE_EDITOR + table + "".join(f"echo ($edit:completion:arg-completer[msb] {words})\n" for words in calls))
    p = subprocess.run(["elvish", tmp_path / "try.elv"], capture_output=True, text=True,
                       env={**msb.env, "PATH": f"{tmp_path}:/usr/bin:/bin"})  # fmt: skip
    assert not p.stderr
    for (line, expected), offered in zip(lines.items(), p.stdout.splitlines(), strict=True):
        assert [word for word in offered.split() if word.startswith(line.split(" ")[-1])] == expected, line
    text = msb.ok("completion", "powershell")
    assert text.isascii() and table.split("'\nvar ")[0].split("= '")[1] in text


def test_completion(msb):
    out = msb.ok("completion", "bash")
    subprocess.run(["bash", "-n"], input=out, text=True, check=True)
    for verb in VERBS:
        assert verb in out
    # It completes: verbs, options, and names of sandboxes are its business.
    script = out + '\nCOMP_WORDS=(msb cre); COMP_CWORD=1; COMP_LINE="msb cre"; COMP_POINT=7\n' \
        '$(complete -p msb | sed "s/.*-F \\([^ ]*\\) .*/\\1/")\necho "${COMPREPLY[@]}"\n'  # fmt: skip
    p = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True)
    assert p.stdout.split() == ["create"], p
    for line, expected in (("image in", ["inspect"]), ("registry lo", ["login", "logout"]),
                           ("image prune --y", ["--yes"]), ("--debug image rem", ["remove"]),
                           ("run --engine=k", ["kvm"]), ("run --engine k", ["kvm"]), ("run --pull=", PULL),
                           ("run python:3.1", ["3.11", "3.12"]), ("run pyth", ["python:3.11", "python:3.12"]),
                           ("image rm localhost:5000/te", ["5000/team/app:1"]),
                           ("image rm localhost:5000/team/app:", ["1"]), ("save msb", []),
                           ("registry logout gh", ["ghcr.io"]), ("create msb/", ["msb/base"]),
                           ("volume rm v", ["vol-1"]), ("vol inspect v", ["vol-1"]), ("volume create v", []),
                           ("ws rm t", ["task-1"]), ("ws create t", []), ("ws get task", ["task-1:"]), ("run --workspace task-", ["task-1"]),
                           ("secret rm S", ["S1"]),
                           ("run --secret-env S", ["S1"]), ("audit --name b", ["box"]), ("port b", ["box"]),
                           ("net explain b", ["box"])):
        assert complete(out, line) == expected, line
    for shell in ("zsh", "fish"):
        text = msb.ok("completion", shell)
        assert "create" in text
        if shutil.which(shell):
            subprocess.run([shell, "-n", "/dev/stdin"], input=text, text=True, check=True)
    refused(msb("completion", "tcsh"), 2)
    refused(msb("completion"), 2)


# --- verbosity -----------------------------------------------------------------------------------


LEVELS = ["error", "warn", "info", "debug", "trace"]


@pytest.fixture
def chatty(msb):
    """Something to say at every level: a sandbox that runs, and one whose spec is damaged."""
    msb.create("x", "-m", "64M")
    msb.create("broken", "-m", "64M")
    msb.ok("stop", "-q", "-t", "0", "broken")
    (msb.home / "sandboxes" / "broken" / "spec.json").write_text("{")
    yield msb
    msb.ok("rm", "-f", "-q", "broken")


def said(p):
    """The kinds of lines on stderr."""
    kinds = {"error: ": "error", "warn: ": "warn", "   ✓ ": "info", "debug: ": "debug", "trace: ": "trace"}
    found = set()
    for line in stderr(p).splitlines():
        found.add(next(kind for start, kind in kinds.items() if line.startswith(start)))
    return found


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_verbosity(chatty, level):
    """Each level says what the one before it says, and more; info is the default."""
    option = [f"--{level}"] if level else []
    p = chatty(*option, "restart", "-t", "0", "--label", "none", "x", "ghost")
    assert (p.returncode, p.stdout) == (1, b"")
    assert said(p) == set(LEVELS[: LEVELS.index(level or "info") + 1])
    p = chatty("exec", *option, "x", "--", "echo", "out")
    assert p.stdout == b"out\n" and said(p) <= set(LEVELS[: LEVELS.index(level or "info") + 1])


def test_verbosity_of_quiet(chatty):
    """--quiet leaves errors, and what was asked for in so many words."""
    args = ["restart", "-q", "-t", "0", "--label", "none", "x", "ghost"]
    assert said(chatty(*args)) == {"error"}
    assert said(chatty("--warn", *args)) == {"error"}
    assert said(chatty("--debug", *args)) == {"error", "debug"}
    assert said(chatty("ls", "-q")) == set() and said(chatty("ls", "--error")) == set()
    assert said(chatty("ls")) == {"warn"}


def test_verbosity_that_is_repeated(chatty):
    assert "trace" in said(chatty("--trace", "ping", "--error", "x")), "the most verbose one counts"


def test_what_debug_and_trace_say(msb):
    p = msb("create", "-n", "x", "-m", "64M", "--debug", "-q")
    assert p.returncode == 0 and p.stdout == b""
    text = stderr(p)
    assert re.search(r"^debug: engine (uml|kvm|uml-ptrace): .+$", text, re.M)
    assert re.search(r"^debug: image msb/base has digest sha256:[0-9a-f]{64}$", text, re.M)
    assert re.search(r"^debug: booting the guest took [0-9.]+ ms$", text, re.M)
    assert "trace: " not in text
    text = stderr(msb("create", "-n", "x", "-m", "64M", "--trace", "-q", "--replace"))
    assert "debug: " in text and re.search(r"^trace: opened .*/linux-\w+$", text, re.M)
    text = stderr(msb("ping", "--trace", "x"))
    assert "trace: asking the monitor: PING\n" in text and "trace: the monitor answered PONG, " in text
    text = stderr(msb("exec", "--trace", "-e", "KEY=s3cret", "x", "--", "sh", "-c", ": s3cret"))
    assert "trace: session: received STARTED, " in text and "trace: session: received EXIT, " in text
    assert "s3cret" not in text, "no arguments, no environment"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_home_does_not_lead_through_a_link_of_somebody_else(msb, tmp_path):
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    for name, target, home in (("link", own, "link"), ("dir", tmp_path, "dir/own"), ("new", own, "new/made"),
                               ("far", tmp_path / "mine", "far")):
        link = tmp_path / name
        link.symlink_to(target)
        if name == "far":  # a link of ours, which leads to one that is not
            (tmp_path / "mine").symlink_to(own)
            link = tmp_path / "mine"
        os.lchown(link, 12345, 12345)
        p = msb("ls", env={**msb.env, "MSB_HOME": str(tmp_path / home)})
        assert p.returncode == 1 and b"symbolic link of another user" in p.stderr, (name, p.stderr)
        assert list(own.iterdir()) == []
        os.lchown(link, os.geteuid(), os.getegid())
        msb.ok("ls", env={**msb.env, "MSB_HOME": str(tmp_path / home)})
        shutil.rmtree(own)
        own.mkdir(mode=0o700)
