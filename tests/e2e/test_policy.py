"""What sandboxes may be (msb policy): every field, from the command line, the SDK and MCP; the operator's
file; and what happens to sandboxes that are there already."""
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
from conftest import MSB, ROOT, Msb, make_home, tear_down, wait_for
from sdkkit import BASE, SDK, client_of, go, sdk
from test_mcp import Server

OK, FAIL = 34, 4  # answers of a monitor
DOC = (ROOT / "docs" / "policy.md").read_text()

# Field, policy, and the options of create that it refuses.
REFUSED = [
    ("caps.cpus", "caps: {cpus: 1}", ["--cpus", "2"]),
    ("caps.cpus", "caps: {cpus: 1}", ["--max-cpus", "2"]),
    ("caps.memory", "caps: {memory: 512M}", ["--memory", "1G"]),
    ("caps.memory", "caps: {memory: 512M}", ["--max-memory", "1G"]),
    ("caps.disk", "caps: {disk: 1G}", ["--root-disk", "2G"]),
    ("caps.disk", "caps: {disk: 5G}", ["--mount-named", "v:/v:kind=disk,size=6G"]),
    ("caps.processes", "caps: {processes: 100}", ["--pids-limit", "200"]),
    ("caps.lifetime", "caps: {lifetime: 1h}", ["--max-duration", "2h"]),
    ("caps.idle", "caps: {idle: 10m}", ["--idle-timeout", "11m"]),
    ("caps.output", "caps: {output: 1M}", ["--max-output", "2M"]),
    ("caps.ports", "caps: {ports: 1}", ["-p", "0:80", "-p", "0:81", "--net", "none"]),
    ("caps.sandboxes", "caps: {sandboxes: 0}", []),
    ("images.allow", "images: {allow: [\"python:*\"]}", [BASE]),
    ("images.registries", "images: {registries: [ghcr.io]}", ["docker.io/library/alpine:3"]),
    ("images.digest", "images: {digest: true}", ["alpine:3"]),
    ("egress.allow", "egress: {allow: [pypi.org]}", ["--net", "public"]),
    ("egress.allow", "egress: {allow: [public]}", ["--net-rule", "allow@10.0.0.1"]),
    ("egress.allow", "egress: {allow: [pypi.org]}", ["--net-rule", "allow@pypi.org", "--dns-nameserver", "9.9.9.9"]),
    ("egress.allow", "egress: {allow: [public]}", ["--net", "public", "--proxy", "socks5://127.0.0.1:9"]),
    ("secrets.allow", "secrets: {allow: [\"CI_*\"]}", ["--secret-env", "TOKEN"]),
    ("secrets.allow", "secrets: {allow: [\"CI_*\"]}", ["--secret", "TOKEN@example.com"]),
    ("forbid", "forbid: [secret]", ["--secret", "TOKEN@example.com"]),
    ("paths.volumes", "paths: {volumes: [/srv]}", ["-v", "/usr:/mnt"]),
    ("paths.volumes", "paths: {volumes: [/usr:ro]}", ["-v", "/usr:/mnt"]),
    ("paths.workspaces", "paths: {workspaces: [/srv]}", ["--workspace", "/usr"]),
    ("paths.copies", "paths: {copies: [/srv]}", ["--copy", "/etc/passwd:/tmp/"]),
    ("paths.copies", "paths: {copies: [/srv]}", ["--script-path", "x:/etc/passwd"]),
    ("paths.sockets", "paths: {sockets: [/srv]}", ["--vsock", "/run/x.sock:5000"]),
    ("write_paths", "write_paths: [/tmp]", ["--write-path", "/etc"]),
    ("labels.required", "labels: {required: [team]}", ["--label", "tier=1"]),
    ("labels.allowed", "labels: {allowed: [team=a]}", ["--label", "team=b"]),
    ("forbid", "forbid: [vsock]", ["--vsock", "/run/x.sock:5000"]),
    ("forbid", "forbid: [proxy]", ["--proxy", "socks5://127.0.0.1:9"]),
    ("forbid", "forbid: [init]", ["--init", "auto"]),
    ("forbid", "forbid: [net-ipv4-pool]", ["--net-ipv4-pool", "10.9.0.0/16"]),
    ("forbid", "forbid: [cpu-placement]", ["--deployment-profile", "multi-tenant"]),
    ("security", "security: restricted", ["--security", "default"]),
    ("security", "security: docker", ["--security", "docker", "--cap-add", "NET_ADMIN"]),
    ("security", "security: docker", ["--security", "docker", "--pids-limit", "300"]),
    ("security", "security: restricted", ["--security", "restricted", "--security-opt", "no-new-privileges:false"]),
    ("engines", "engines: [kvm]", ["--engine", "uml"]),
    ("homes", "homes: [/var/lib/msb/*]", []),
    ("rules", "rules: [{match: {labels: [team]}}]", []),
    ("rules", "rules: []", []),
]


def write_policy(m, text):
    (m.home / "policy.yaml").write_text(text)


def image_in(options):
    """Options without the image, and the image."""
    named = bool(options) and not options[-1].startswith("-") and (len(options) == 1 or options[-2][0] != "-")
    return (options[:-1], options[-1]) if named else (options, BASE)


def by_sdk(m, options, image):
    """The same options, as fields where the SDK has one."""
    fields, rest = {}, []
    for key, value in zip(options[::2], options[1::2]):
        if key == "--memory":
            fields["memory_mib"] = 1024
        elif key == "--cpus":
            fields["cpus"] = float(value)
        elif key == "--net":
            fields["network"] = value
        else:
            rest += [key, value]
            if key in ("--net-rule", "--secret"):
                fields["network"] = "none" if key == "--net-rule" else "public"
    go(client_of(m).create(sdk.SandboxSpec(name="x", image=image, options=tuple(rest), **fields)))


def by_mcp(m, options, image, lifetime="1s"):
    own = [] if image == BASE else ["--registry", image.split("/")[0] if "/" in image else "docker.io"]
    server = Server(m, *own, "--max-lifetime", lifetime, *(["--", *options] if options else []))
    try:
        return server.call("create", **({} if image == BASE else {"image": image}))
    finally:
        server.p.stdin.close()
        server.p.wait()


@pytest.mark.parametrize("field,policy,options", REFUSED, ids=[f"{i}-{r[0]}" for i, r in enumerate(REFUSED)])
def test_refused_whoever_asks(module_msb, field, policy, options):
    m = module_msb
    write_policy(m, policy + "\n")
    options, image = image_in(options)
    p = m("create", "-n", "x", *options, image)
    said = p.stderr.decode()
    where = re.escape(str(m.home / "policy.yaml")) + r":\d+"
    line = rf"refused by policy: {re.escape(field)}: asked for .+, allowed is .+ \({where}"
    assert p.returncode == 3 and re.search(line, said), said
    assert m("run", *options, image, "--", "true").returncode == 3
    p = m("policy", "explain", "--format", "json", "-n", "x", *options, image)
    found = [f["field"] for f in json.loads(p.stdout)["findings"] if f["outcome"] == "refused"]
    assert p.returncode == 3 and found == [field]
    with pytest.raises(sdk.PolicyRefused, match=line):
        by_sdk(m, options, image)
    asked = ([], image, "2h") if field == "caps.lifetime" else (options, image)  # the server has its own limit
    assert re.search(line, by_mcp(m, *asked))
    assert m.ok("ls", "-q") == ""
    write_policy(m, "")


# Every option that can be forbidden, and what asks for it.
FORBIDDEN = {
    "volume": ["-v", "/usr:/mnt"], "mount-named": ["--mount-named", "v:/v"], "mount-disk": ["--mount-disk", "{file}:/d:ro"],
    "workspace": ["--workspace", "/usr"], "vsock": ["--vsock", "/run/x.sock:5000"], "copy": ["--copy", "/etc/passwd:/tmp/"],
    "port": ["-p", "0:80"], "proxy": ["--proxy", "socks5://127.0.0.1:9"], "dns-nameserver": ["--dns-nameserver", "9.9.9.9"],
    "no-dns-rebind-protection": ["--no-dns-rebind-protection"], "trust-host-cas": ["--trust-host-cas"],
    "secret-env": ["--secret-env", "TOKEN"], "secret": ["--secret", "TOKEN@example.com"],
    "tls-intercept": ["--tls-intercept", "example.com"], "no-block-quic": ["--no-block-quic"],
    "tls-intercept-ca-cert": ["--tls-intercept-ca-cert", "{file}", "--tls-intercept-ca-key", "{file}"],
    "tls-no-verify-upstream-for": ["--tls-no-verify-upstream-for", "example.com"], "script": ["--script", "x=y"], "rlimit": ["--ulimit", "nofile=99"],
    "init": ["--init", "auto"], "net-ipv4-pool": ["--net-ipv4-pool", "10.9.0.0/16"],
    "net-ipv6-pool": ["--net-ipv6-pool", "fd12::/48"], "jail": ["--jail", "reduced"], "cpu-placement": ["--cpu-placement", "core"],
    "disk-sync": ["--disk-sync", "always"],
}  # fmt: skip


def test_every_option_that_can_be_forbidden(module_msb, tmp_path):
    m = module_msb
    (tmp_path / "disk").write_bytes(bytes(1 << 20))
    write_policy(m, "forbid: [nothing]\n")
    known = m("policy", "check").stderr.decode().split(" is not one of ")[1].splitlines()[0].split(", ")
    assert sorted(known) == sorted(FORBIDDEN)
    for name, options in FORBIDDEN.items():
        options = [o.format(file=tmp_path / "disk") for o in options]
        write_policy(m, f"forbid: [{name}]\n")
        found = json.loads(m("policy", "explain", "--format", "json", *options, check=3).stdout)["findings"]
        assert [(f["field"], f["asked"]) for f in found] == [("forbid", "--" + name)]
        if name != "jail":  # where there is no other, that is the default
            m.ok("policy", "explain")
    write_policy(m, "")


def test_files_that_cannot_be_used(module_msb):
    m = module_msb
    write_policy(m, "caps:\n  memroy: 1G\n")
    p = m("create")
    assert p.returncode == 3
    said = p.stderr.decode()
    assert f"policy: {m.home}/policy.yaml:2:11: unknown key 'memroy'" in said
    assert "did you mean 'memory'?" in said and "msb policy check" in said
    for verb in (["policy", "show"], ["run", "--", "true"], ["policy", "explain"]):
        assert m(*verb).returncode == 3
    record = [json.loads(x) for x in m.ok("audit", "--json", "--verb", "refused").splitlines()][-1]
    assert record["field"] == "policy" and "memroy" in record["origin"], record
    assert m("policy", "check").returncode == 1
    j = json.loads(m("policy", "check", "--format", "json").stdout)
    assert not j["ok"] and "memroy" in j["error"] and "did you mean 'memory'?" in j["hints"]
    assert m("ls").returncode == 0  # looking at sandboxes is not refused
    write_policy(m, "")
    os.rename(m.home / "policy.yaml", m.home / "elsewhere")
    (m.home / "policy.yaml").symlink_to("elsewhere")
    assert m("create").returncode == 3
    os.unlink(m.home / "policy.yaml")
    assert m("create", "--policy", m.home / "missing").returncode == 3
    (m.home / "one.yaml").write_text("caps: {memory: 64M}\n")
    p = m("create", "--policy", m.home / "one.yaml", "-m", "65M")
    assert p.returncode == 3 and f"{m.home}/one.yaml:1" in p.stderr.decode()


def test_init_and_show(module_msb):
    m = module_msb
    m.ok("policy", "init")
    assert m("policy", "init").returncode == 1
    m.ok("policy", "init", "--force")
    assert m.ok("policy", "init", "-") == (m.home / "policy.yaml").read_text()
    m.ok("policy", "check")
    write_policy(m, "caps: {memory: 1G}\nrules:\n- name: all\n  caps: {cpus: 2}\n")
    (m.home / "two.yaml").write_text("caps:\n  memory: 512M\n")
    j = json.loads(m.ok("policy", "show", "--policy", m.home / "two.yaml", "--format", "json"))
    assert [(s["key"], s["value"], s["line"], s["in_effect"]) for s in j["settings"]] == [
        ("memory", "1.0 GiB", 1, False), ("memory", "512 MiB", 2, True)]  # fmt: skip
    assert j["rules"][0]["name"] == "all" and j["rules"][0]["settings"][0]["key"] == "cpus"
    text = m.ok("policy", "show")
    assert f"{m.home}/policy.yaml:1" in text and "rule set 'all'" in text
    text = m.ok("policy", "show", "--policy", m.home / "two.yaml")
    assert re.search(r"policy.yaml:1 +overruled\n", text) and re.search(r"two.yaml:2\n", text)
    write_policy(m, "")


def test_the_life_of_a_sandbox(module_msb):
    """Defaults are filled in and narrowed; changes are held to the policy; one that became stricter is
    applied to what runs."""
    m = module_msb
    write_policy(m, "caps: {memory: 300M, lifetime: 1h, sandboxes: 2}\ndefaults: {cpus: 0.5}\n"
                    "egress: {allow: [pypi.org, \"*.debian.org:tcp:443\"]}\nengines: [uml]\n"
                    "security: restricted\n")  # fmt: skip
    m.ok("create", "-n", "a", "-q", "--label", "k=v")
    c = json.loads(m.ok("inspect", "a", "--format", "json"))["config"]
    assert (c["resources"]["memory_mib"], c["resources"]["cpus"]) == (300, 0.5)
    assert c["resources"]["engine"] == "uml" and c["lifecycle"]["max_duration_secs"] == 3600
    assert c["security_profile"] == "restricted"
    assert json.loads(m.ok("net", "show", "a", "--format", "json"))["rules"] == [
        "allow@pypi.org", "allow@*.debian.org:tcp:443"]  # fmt: skip
    p = m("net", "set", "a", "--net", "public")
    assert p.returncode == 3 and b"egress.allow: asked for allow@public" in p.stderr
    m.ok("net", "set", "a", "--net-rule", "allow@ftp.debian.org:tcp:443")
    m.ok("port", "add", "a", "0:80", "0:81")
    write_policy(m, "caps: {memory: 300M, ports: 2, sandboxes: 1}\nlabels: {allowed: [k=v]}\n")
    assert m("port", "add", "a", "0:82").returncode == 3
    assert m("modify", "a", "--label", "other=1").returncode == 3
    assert m("create", "-n", "b").returncode == 3  # one more than one
    # Stricter: what can change while it runs does, and the plan says so first.
    write_policy(m, "caps: {ports: 1}\negress: {allow: [pypi.org]}\n")
    plan = json.loads(m.ok("policy", "apply", "--dry-run", "--format", "json"))
    assert {(x["field"], x["action"]) for x in plan} == {
        ("caps.ports", "unpublish ports"), ("egress.allow", "narrow its network")}  # fmt: skip
    assert len(json.loads(m.ok("port", "list", "a", "--format", "json"))) == 2
    m.ok("policy", "apply")
    assert len(json.loads(m.ok("port", "list", "a", "--format", "json"))) == 1
    assert json.loads(m.ok("net", "show", "a", "--format", "json"))["rules"] == []
    assert m.status("a") == "Running" and json.loads(m.ok("policy", "apply", "--format", "json")) == []
    # What cannot change while it runs stops it; it does not start again before it is changed.
    write_policy(m, "caps: {memory: 200M}\n")
    assert m.status("a") == "Running"  # nothing happens by itself
    p = m("policy", "apply")
    assert b"stop it" in p.stdout and m.status("a") == "Stopped"
    p = m("start", "a")
    assert '"caps.memory"' in m.ok("audit", "--json")
    assert p.returncode == 3 and b"caps.memory: asked for 300 MiB, allowed is 200 MiB" in p.stderr
    assert m("exec", "a", "--", "true").returncode == 3
    m.ok("modify", "a", "--label", "k=w")  # was so before: other changes are possible
    assert m("modify", "a", "--memory", "250M").returncode == 3
    m.ok("modify", "a", "--memory", "200M")
    # A spec that was edited by hand does not start either.
    spec = m.home / "sandboxes" / "a" / "spec.json"
    j = json.loads(spec.read_text())
    j["resources"]["memory_mib"] = 1024
    spec.write_text(json.dumps(j))
    assert m("start", "a").returncode == 3
    write_policy(m, "")
    m.ok("rm", "-f", "-q", "a")


def test_what_may_stay_is_not_more(module_msb, tmp_path):
    """What a sandbox has beyond a policy that is younger may stay, and is no way to more of the same."""
    m = module_msb
    write_policy(m, "")
    for name in ("OLD", "NEW"):
        m.ok("secret", "set", "-q", name, input=b"x")
    m.ok("create", "-n", "a", "-q", "-m", "65M", "--net", "public", "-p", "0:80", "--secret", "OLD@a.test", "--label", "k=a")

    def held(policy, field, *verb):
        write_policy(m, policy + "\n")
        p = m(*verb)
        assert p.returncode == 3 and f"refused by policy: {field}: asked for " in p.stderr.decode(), (verb, p.stderr)

    for verb in (["--net-rule", "allow@public,allow@any"], ["--net", "public", "--net-default-egress", "allow"]):
        held("egress: {allow: [pypi.org]}", "egress.allow", "net", "set", "a", *verb)
    m.ok("port", "add", "a", "0:81")  # its network rules are as they were
    held("forbid: [port]", "forbid", "port", "add", "a", "0:82")
    m.ok("modify", "a", "-q", "--next-start", "--env", "A=1")
    held("forbid: [secret]", "forbid", "modify", "a", "--secret", "NEW@b.test")
    held("secrets: {allow: []}", "secrets.allow", "modify", "a", "--secret", "OLD@b.test")
    m.ok("modify", "a", "-q", "--next-start", "--env", "A=2")
    held("rules: [{match: {labels: [k=b]}}]", "rules", "net", "set", "a", "--net", "all")
    held("rules: [{match: {labels: [k=b]}}]", "rules", "cp", tmp_path, "a:/tmp")
    last = json.loads(m.ok("audit", "--json", "--verb", "refused", "--tail", "1"))
    assert (last["verb"], last["field"]) == ("copy", "rules"), last
    m.ok("modify", "a", "-q", "--label", "k=b")  # that makes it one of the set
    assert json.loads(m.ok("net", "show", "a", "--format", "json"))["rules"] == ["allow@public"]
    # The most exact of what it has counts, not what is shown of it.
    m.ok("stop", "-q", "-f", "a")
    write_policy(m, "")
    m.ok("modify", "a", "-q", "--memory", "2048M")
    held("caps: {memory: 64M}", "caps.memory", "modify", "a", "--memory", "2049M")
    # Another label makes it one more of another set.
    counted = "rules: [{match: {labels: [k=c]}, caps: {sandboxes: 0}}, {caps: {sandboxes: 1}}]"
    held(counted, "caps.sandboxes", "modify", "a", "--label", "k=c")
    m.ok("modify", "a", "-q", "--label", "k=d")
    m.ok("rm", "-q", "a")
    m.ok("secret", "rm", "-q", "OLD", "NEW")
    write_policy(m, "")


def test_sandboxes_are_counted_one_at_a_time(module_msb):
    """However many ask at the same moment, for a new one or for a label that makes one more."""
    m = module_msb

    def waits(p):
        return pathlib.Path(f"/proc/{p.pid}/syscall").read_text().split()[0] == "73"  # flock

    def at_once(commands, held=()):
        """Names that are held are let go when all wait for a lock, be it of a name or for counting."""
        locks = [(m.home / "locks" / name).open("w") for name in held]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX)
        running = [m.popen(*c, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for c in commands]
        wait_for(lambda: not held or all(map(waits, running)))
        for lock in locks:
            lock.close()
        ended = [(p.communicate()[1].decode(), p.returncode) for p in running]
        assert all(code == 0 or (code == 3 and "refused by policy: caps.sandboxes: " in said) for said, code in ended), ended
        return [i for i, (_, code) in enumerate(ended) if code == 0]

    new = [["create", "-n", f"n{i}", "-q", "-m", "64M", "--net", "none"] for i in range(4)]
    m.ok("ls")  # makes the home
    write_policy(m, "caps: {sandboxes: 1}\n")
    made = at_once(new[:2], ["n0", "n1"])
    assert len(made) == 1
    write_policy(m, "caps: {sandboxes: 2}\n")
    made += [i + 2 for i in at_once(new[2:])]
    assert len(made) == 2
    write_policy(m, "rules: [{match: {labels: [k]}, caps: {sandboxes: 1}}, {}]\n")
    assert len(at_once([["modify", f"n{i}", "-q", "--label", "k=v"] for i in made])) == 1
    m.ok("rm", "-f", "-q", *[f"n{i}" for i in made])
    write_policy(m, "")


def test_copies_and_one_command(module_msb, tmp_path):
    """Files to and from a sandbox that is there (cp, the SDK), and --policy for one command."""
    m = module_msb
    for d in ("in", "out"):
        (tmp_path / d).mkdir()
    (tmp_path / "in" / "f").write_text("x")
    (tmp_path / "in" / "way-out").symlink_to("/etc/hostname")
    m.ok("create", "-n", "c", "-q", "--net", "none")
    write_policy(m, f"paths:\n  copies: [{tmp_path}/in:ro, {tmp_path}/out]\n")
    inside, outside = tmp_path / "in", tmp_path / "out"
    c = go(client_of(m).get("c"))

    def refused(p, path, mode):
        said = f"paths.copies: asked for {path}{mode}, allowed is {inside}:ro, {outside} ({m.home}/policy.yaml:2)"
        if isinstance(p, str):
            assert said in p
        else:
            assert p.returncode == 3 and said in p.stderr.decode(), p.stderr

    m.ok("cp", inside / "f", "c:/tmp/")
    m.ok("cp", "c:/tmp/f", outside)
    go(c.files.upload(inside / "f", "/tmp/g"))
    go(c.files.download("/tmp/g", outside / "g"))
    assert (outside / "g").read_text() == "x" and m.ok("policy", "copies", "c", inside, outside) == ""
    refused(m("cp", "/etc/hostname", "c:/tmp/"), "/etc/hostname", ":ro")
    refused(m("cp", "-L", inside / "way-out", "c:/tmp/"), "/etc/hostname", ":ro")
    refused(m("cp", "c:/tmp/f", inside / "new"), inside / "new", "")
    refused(m("policy", "copies", "--write", "c", inside), inside, "")
    # Workspaces, without a sandbox.
    m.ok("workspace", "create", "-q", "w")
    m.ok("workspace", "put", inside / "f", "w:")
    m.ok("workspace", "get", "w:f", outside / "w")
    m.ok("workspace", "get", "w:f", "-")  # it has no path
    refused(m("workspace", "put", "/etc/hostname", "w:"), "/etc/hostname", ":ro")
    refused(m("workspace", "get", "w:f", inside / "new"), inside / "new", "")
    assert m.ok("workspace", "ls", "-q", "w:") == "f\n" and not (inside / "new").exists()
    with pytest.raises(sdk.PolicyRefused) as e:
        go(c.files.upload("/etc/hostname", "/tmp/h"))
    refused(str(e.value), "/etc/hostname", ":ro")
    with pytest.raises(sdk.PolicyRefused) as e:
        go(c.files.download("/tmp/f", inside / "h"))
    refused(str(e.value), inside / "h", "")
    assert m("exec", "-q", "c", "--", "ls", "/tmp/h").returncode != 0 and not (inside / "h").exists()
    assert '"paths.copies"' in m.ok("audit", "--json", "--verb", "refused")
    write_policy(m, "")
    one = tmp_path / "one.yaml"
    one.write_text("egress: {allow: [pypi.org]}\ncaps: {ports: 0, memory: 64M}\npaths: {copies: []}\n")
    for verb in (["net", "set", "c", "--net", "public"], ["port", "add", "c", "0:80"], ["cp", inside / "f", "c:/tmp/"]):
        p = m(*verb, "--policy", one)
        assert p.returncode == 3 and f"({one}:".encode() in p.stderr, (verb, p.stderr)
        m.ok(*verb)
    for verb in (["workspace", "put", inside / "f", "w:"], ["workspace", "get", "w:f", outside / "w"]):
        p = m(*verb, "--policy", one)
        assert p.returncode == 3 and b"refused by policy: paths.copies: " in p.stderr, (verb, p.stderr)
        m.ok(*verb)
    m.ok("stop", "c", "-f", "-q")
    for verb in (["start", "c"], ["modify", "c", "--memory", "100M"]):
        p = m(*verb, "--policy", one)
        assert p.returncode == 3 and b"caps.memory" in p.stderr, (verb, p.stderr)
    m.ok("rm", "-q", "c")
    m.ok("workspace", "rm", "-q", "w")


def test_what_comes_later(module_msb):
    """A secret for one command, and a volume that is made before its sandbox, are held to it, too."""
    m = module_msb
    m.ok("secret", "set", "-q", "TOKEN", input=b"x")
    m.ok("secret", "set", "-q", "CI_KEY", input=b"y")
    m.ok("create", "-n", "l", "-q", "--net", "none", "-m", "96M")
    show = ["exec", "-q", "--secret-env", "TOKEN", "--secret-env", "CI_KEY", "l", "--", "sh", "-c", "echo $TOKEN$CI_KEY"]
    assert m.ok(*show) == "xy\n"
    for policy, said in (("secrets: {allow: [\"CI_*\"]}", "secrets.allow: asked for TOKEN, allowed is CI_* ("),
                         ("forbid: [secret-env]", "forbid: asked for --secret-env, allowed is nothing of the kind (")):  # fmt: skip
        write_policy(m, policy + "\n")
        p = m(*show)
        assert p.returncode == 3 and "refused by policy: " + said in p.stderr.decode() and p.stdout == b""
        m.ok("exec", "-q", "l", "--", "true")
    write_policy(m, "secrets: {allow: [\"CI_*\"]}\ncaps: {disk: 5G}\n")
    assert m.ok("exec", "-q", "--secret-env", "CI_KEY", "l", "--", "sh", "-c", "echo $CI_KEY") == "y\n"
    record = [json.loads(x) for x in m.ok("audit", "--json", "--verb", "refused").splitlines()][-1]
    assert (record["field"], record["asked"]) == ("forbid", "--secret-env"), record
    p = m("volume", "create", "v", "--kind", "disk", "--size", "6G")
    assert p.returncode == 3 and b"caps.disk: asked for volume 'v' of 6.0 GiB, allowed is 5.0 GiB" in p.stderr
    assert m.ok("volume", "ls", "-q") == ""
    before = m.ok("audit", "--json", "--verb", "refused").count("\n")
    assert m("create", "--root-disk", "6G").returncode == 3
    assert m.ok("audit", "--json", "--verb", "refused").count("\n") == before + 1
    m.ok("volume", "create", "-q", "v", "--kind", "disk", "--size", "64M")
    m.ok("volume", "rm", "-q", "v")
    m.ok("rm", "-f", "-q", "l")
    m.ok("secret", "rm", "-q", "TOKEN", "CI_KEY")
    write_policy(m, "")


def test_output(module_msb):
    """A command that writes too much is ended, no matter who runs it; earlier output is there."""
    m, most = module_msb, 256 << 10
    write_policy(m, "caps: {output: 2M}\ndefaults: {output: 256K}\n")
    m.ok("create", "-n", "o", "-q", "--net", "none", "-m", "96M")
    assert json.loads(m.ok("inspect", "o", "--format", "json"))["config"]["resources"]["max_output_bytes"] == most
    assert len(m.ok("exec", "-q", "o", "--", "head", "-c", most, "/dev/zero")) == most
    p = m("exec", "-q", "o", "--", "sh", "-c", "sleep 1000 & yes >&2 & yes")
    said = b"error: a command wrote more than 256 KiB, the most that this sandbox allows (--max-output)\n"
    assert p.returncode == 137 and p.stderr.endswith(said)
    assert most < len(p.stdout) + len(p.stderr) - len(said) <= most + 65536
    left = ["exec", "-q", "o", "--", "sh", "-c", "cat /proc/[0-9]*/comm | grep -cxE 'yes|sleep'"]
    wait_for(lambda: m(*left).stdout == b"0\n")
    r = go(go(client_of(m).get("o")).shell("yes"))
    assert (r.exit_code, r.truncated, r.timed_out) == (137, True, False) and len(r.stdout) > most
    # Also one that is not read.
    m.ok("exec", "-q", "-d", "o", "--", "yes")
    wait_for(lambda: m(*left).stdout == b"0\n")
    assert m.ok("logs", "o", "--source", "all", "--grep", "wrote more than 256 KiB").count("\n") == 3
    m.ok("rm", "-f", "-q", "o")
    write_policy(m, "")


def test_settings_from_a_file(module_msb, tmp_path):
    """--conf is what the options would be: asked for, and overruled by the command line."""
    m = module_msb
    conf = tmp_path / "box.yaml"
    conf.write_text("memory: 1G\nlabel: {team: \"${MSB_TEST_TEAM}\"}\n")
    env = dict(m.env, MSB_TEST_TEAM="a")
    write_policy(m, "caps: {memory: 512M}\nlabels: {required: [team=a]}\n")
    p = m("create", "--conf", conf, env=env)
    assert p.returncode == 3 and b"caps.memory: asked for 1.0 GiB" in p.stderr and b"labels" not in p.stderr
    m.ok("policy", "explain", "--conf", conf, "--memory", "256M", env=env)
    p = m("create", "--conf", conf)
    assert p.returncode == 2 and f"{conf}:2:15: the variable MSB_TEST_TEAM is not set" in p.stderr.decode()
    write_policy(m, "")
    # All of them at once, each with its part.
    parts = {"conf": "image: msb/base\nmemory: 96M\nhostname: filed\nenv: {A: a}\n", "net-conf": "no-net: true\n",
             "resource-conf": "memory: 128M\npids-limit: 99\nmax_output: 1M\n", "runtime-conf": "user: \"1000\"\nworkdir: /tmp\n",
             "fs-conf": "tmpfs: [\"/t:size=1m\"]\nwrite-path: [/t]\n", "secret-conf": "secret-env: [FILED]\n",
             "script-conf": "script: {hi: echo hello}\n"}  # fmt: skip
    options = []
    for name, text in parts.items():
        (tmp_path / name).write_text(text)
        options += [f"--{name}", tmp_path / name]
    m.ok("secret", "set", "-q", "FILED", input=b"s")
    script = "hostname; echo $A$FILED; hi; id -u; pwd; ls /sys/class/net; touch /t/x; ! touch /tmp/x 2>/dev/null"
    out = m.ok("run", *options, "-H", "typed", "-q", "--", "sh", "-c", script)
    assert out.split() == ["typed", "as", "hello", "1000", "/tmp", "lo"]
    m.ok("secret", "rm", "-q", "FILED")


def test_buckets(module_msb):
    """Which buckets workspaces may be in: when one is made, and when a sandbox or a sync uses it."""
    m = module_msb
    write_policy(m, "buckets: [\"s3://team-*/agents\", \"http://127.0.0.1:9/mine\"]\n")
    for url, more in (("s3://team-a", []), ("s3://other/agents", []), ("s3://team-a/agents2", []),
                      ("s3://team-a/agents", ["--endpoint", "http://127.0.0.1:9"]),
                      ("s3://mine/x", [])):  # fmt: skip
        p = m("workspace", "create", "w", "--s3", url, "--credentials", "none", *more)
        assert p.returncode == 3 and b"refused by policy: buckets: asked for " in p.stderr, (url, p.stderr)
    assert m.ok("workspace", "list", "-q") == ""
    # One that a new sandbox would make, also where only a rule set says so.
    for policy in ("buckets: [\"s3://mine\"]", "rules: [{buckets: [\"s3://mine\"]}]"):
        write_policy(m, policy + "\n")
        for verb in (["policy", "explain"], ["create"]):
            p = m(*verb, "--workspace", "s3://other/x")
            assert p.returncode == 3 and b"s3://other/x" in p.stdout + p.stderr, p
        m.ok("policy", "explain", "--workspace", "s3://mine/x")
    assert m.ok("workspace", "list", "-q") == ""
    write_policy(m, "buckets: [\"s3://team-*/agents\", \"http://127.0.0.1:9/mine\"]\n")
    m.ok("workspace", "create", "w", "-q")
    # As if it had been made before the policy was.
    there = {"url": "s3://mine/x", "endpoint": "http://127.0.0.1:9", "credentials": "none", "max_bytes": 1 << 20}
    for endpoint, code in (("http://127.0.0.1:9", 0), ("http://127.0.0.1:8", 3)):
        (m.home / "workspaces" / "w" / "s3.json").write_text(json.dumps(dict(there, endpoint=endpoint)))
        p = m("policy", "explain", "--workspace", "w")
        assert p.returncode == code and f"{endpoint}/mine/x" in p.stdout.decode()
    p = m("create", "--workspace", "w")
    assert p.returncode == 3 and b"buckets: asked for http://127.0.0.1:8/mine/x, allowed is s3://team-*/agents" in p.stderr
    with pytest.raises(sdk.PolicyRefused, match="buckets: asked for http://127.0.0.1:8/mine/x"):
        by_sdk(m, ["--workspace", "w"], BASE)
    assert "refused by policy: buckets: asked for " in by_mcp(m, ["--workspace", "w"], BASE)
    for verb in ("sync", "status"):
        p = m("workspace", verb, "w")
        assert p.returncode == 3 and b"refused by policy: buckets: " in p.stderr, p.stderr
    write_policy(m, "buckets: [team-a]\n")
    assert b"expected s3://BUCKET[/PREFIX]" in m("policy", "check").stderr
    write_policy(m, "")
    m.ok("workspace", "rm", "-q", "w")


# --- the operator's file ------------------------------------------------------------------------------


class InOtherEtc(Msb):
    """msb where /etc/msb is a directory of the test's."""

    def __init__(self, home, etc, user=None):
        super().__init__(home)
        self.etc, self.user = etc, user

    def command(self, args):
        become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if self.user else []
        script = f"mount -t overlay o -o lowerdir={self.etc}:/etc /etc && exec \"$@\""
        return ["unshare", "-m", "sh", "-c", script, "sh", *become, *super().command(args)]


@pytest.fixture
def etc(tmp_path, shared_cache):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root")
    d = tmp_path / "etc"
    (d / "msb").mkdir(parents=True)
    m = InOtherEtc(make_home(tmp_path, shared_cache), d)
    if subprocess.run(m.command(["--version"]), capture_output=True).returncode:
        pytest.skip("cannot mount over /etc here")
    yield m
    m.etc = "/usr"  # no policy
    tear_down(m)


def test_operator(etc):
    m = etc
    policy = m.etc / "msb" / "policy.yaml"
    policy.write_text("caps:\n  memory: 256M\negress: {allow: [pypi.org]}\n")
    at = "(/etc/msb/policy.yaml:2)"
    p = m("create", "-m", "1G")
    assert p.returncode == 3 and f"asked for 1.0 GiB, allowed is 256 MiB {at}" in p.stderr.decode()
    # A user's file that allows more allows nothing more; one that allows less counts.
    write_policy(m, "caps: {memory: 8G}\negress: {allow: [any]}\n")
    assert at in m("create", "-m", "1G").stderr.decode()
    assert m("create", "--net", "all").returncode == 3
    write_policy(m, "caps: {memory: 128M}\n")
    assert f"{m.home}/policy.yaml:1" in m("create", "-m", "200M").stderr.decode()
    os.unlink(m.home / "policy.yaml")
    # An ordinary user, with a home of his own, by the CLI or by a client of his own making.
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 65534, 65534)
        check_ordinary_user(InOtherEtc(home, m.etc, user=65534), at)


def check_ordinary_user(theirs, at):
    (theirs.etc / "msb" / "wide.yaml").write_text("caps: {memory: 8G}\n")
    for extra in ([], ["--policy", "/etc/msb/wide.yaml"]):
        assert at in theirs("create", "-m", "1G", *extra).stderr.decode()
    for env in ({"HOME": "/tmp"}, {"MSB_POLICY": "/dev/null"}, {"XDG_CONFIG_HOME": "/tmp"}):
        assert at in theirs("create", "-m", "1G", env=dict(theirs.env, **env)).stderr.decode()


# A client of agent.sock that asks for whatever it likes.
HANDMADE = """
import array, asyncio, json, socket, sys
from msb import _channel, _proto as p

def ask(kind, payload, *fds):
    s = asyncio.run(_channel.connect_socket(sys.argv[1], "h"))
    s.setblocking(True)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    s.sendmsg([p.HELLO_FRAME + p.frame(kind, payload)], rights)
    reader, got = p.FrameReader(), []
    while not got:
        got = reader.feed(s.recv(65536))
    return [got[0][0], p.text(p.fields(got[0][1]), p.F_TEXT)]

def port():
    s = socket.create_server(("127.0.0.1", 0))
    s.setblocking(False)
    return ask(51, p.u32(98, 80) + p.u32(99, 6), s.fileno())

def net(**policy):
    return ask(49, p.field(105, json.dumps({"network": {"policy": policy}})))

print(json.dumps({
    "all": net(default_egress="allow"),
    "other": net(default_egress="deny", rules=["allow@example.com"]),
    "within": net(default_egress="deny", rules=["allow@pypi.org:tcp:443"]),
    "ports": [port(), port()],
    "time": ask(p.TOUCH, p.u64(p.F_TIMEOUT_MS, 3700 * 1000)),
    "less time": ask(p.TOUCH, p.u64(p.F_TIMEOUT_MS, 1800 * 1000)),
    "lift": ask(54, p.field(105, json.dumps([]))),
}))
"""


def in_a_place_of_his_own(place, etc):
    """msb as nobody: with a home and a program, wherever root keeps those of the tests."""
    assets = os.environ.get("MSB_ASSETS") or os.path.join(os.path.dirname(MSB), "../../assets")
    place.chmod(0o755)
    shutil.copytree(SDK / "msb", place / "msb")
    shutil.copytree(assets, place / "assets", ignore=shutil.ignore_patterns("*.p"))
    shutil.copy(MSB, place / "exe")
    subprocess.run(["chmod", "-R", "a+rX", place], check=True)
    (place / "home").mkdir()
    os.chown(place / "home", 65534, 65534)
    theirs = InOtherEtc(place / "home", etc, user=65534)
    theirs.exe, theirs.env["MSB_ASSETS"] = str(place / "exe"), str(place / "assets")
    return theirs


def test_handmade_client(etc):
    """An ordinary user who speaks to the sandbox's socket himself gets no further than the operator's
    policy, as it was at the start or has become since."""
    policy = etc.etc / "msb" / "policy.yaml"
    policy.write_text("caps: {ports: 1, lifetime: 1h, memory: 256M}\negress:\n  allow: [pypi.org]\n")
    with tempfile.TemporaryDirectory() as place:
        theirs = in_a_place_of_his_own(pathlib.Path(place), etc.etc)

        def handmade():
            env = dict(theirs.env, PYTHONPATH=place, PYTHONDONTWRITEBYTECODE="1")
            as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            p = subprocess.run([*as_user, sys.executable, "-c", HANDMADE, theirs.home], env=env,
                               capture_output=True, timeout=60)  # fmt: skip
            assert p.returncode == 0, p.stderr
            return json.loads(p.stdout)

        theirs.ok("create", "-n", "h", "-q", "--net-rule", "allow@pypi.org")
        try:
            said = handmade()
            at = "refused by policy: egress.allow: asked for {}, allowed is pypi.org (/etc/msb/policy.yaml:3)"
            assert said["all"] == [FAIL, at.format("allow@any")]
            assert said["other"] == [FAIL, at.format("allow@example.com")]
            assert said["within"][0] == OK and said["ports"][0][0] == OK and said["lift"][0] == OK
            assert said["ports"][1][1].startswith("refused by policy: caps.ports: asked for 2, allowed is 1 (")
            assert re.match(r"refused by policy: caps.lifetime: asked for 1h1m\d+s, allowed is 1h \(", said["time"][1])
            assert said["less time"][0] == OK
            # What was asked for by hand is cut, too, when a policy that became stricter is applied.
            policy.write_text("caps: {lifetime: 1h}\negress: {allow: []}\nforbid: [port]\n")
            theirs.ok("policy", "apply", "-q")
            assert json.loads(theirs.ok("net", "show", "h", "--format", "json"))["rules"] == []
            assert json.loads(theirs.ok("port", "list", "h", "--format", "json")) == []
            said = handmade()
            assert "allowed is nothing (/etc/msb/policy.yaml:2)" in said["within"][1]
            assert "forbid: asked for --port, allowed is nothing of the kind (" in said["ports"][0][1]
        finally:
            theirs("rm", "-f", "-q", "h")


def test_operators_file_must_be_roots(etc):
    m = etc
    policy = m.etc / "msb" / "policy.yaml"
    policy.write_text("caps: {memory: 256M}\n")
    for spoil, mend in ((lambda: policy.chmod(0o646), lambda: policy.chmod(0o644)),
                        (lambda: policy.chmod(0o664), lambda: policy.chmod(0o644)),
                        (lambda: os.chown(policy, 65534, 0), lambda: os.chown(policy, 0, 0)),
                        (lambda: policy.parent.chmod(0o777), lambda: policy.parent.chmod(0o755)),
                        (lambda: os.chown(policy.parent, 65534, 0), lambda: os.chown(policy.parent, 0, 0)),
                        (lambda: policy.write_text("caps: ["), lambda: policy.write_text(""))):  # fmt: skip
        spoil()
        p = m("create", "-m", "64M")
        assert p.returncode == 3 and b"error: policy: " in p.stderr and b"/etc/msb" in p.stderr, p.stderr
        mend()
    policy.rename(policy.parent / "elsewhere")
    policy.symlink_to("elsewhere")
    assert m("create", "-m", "64M").returncode == 3
    policy.unlink()
    policy.mkdir()
    assert m("create").returncode == 3


def test_who_may_use_which_set(etc):
    m = etc
    (m.etc / "msb" / "policy.yaml").write_text(
        "rules:\n"
        "- {name: root's, match: {users: [root], labels: [big]}, caps: {memory: 2G}}\n"
        "- {name: rest, match: {groups: [\"0\"]}, caps: {memory: 256M}}\n")
    assert m("policy", "explain", "-m", "2G", "--label", "big").returncode == 0
    p = m("create", "-m", "2G")
    assert p.returncode == 3 and b"policy.yaml:3, rule set 'rest')" in p.stderr


# --- the documentation ---------------------------------------------------------------------------------

EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOC, re.S)


def test_examples(module_msb):
    m = module_msb
    assert len(EXAMPLES) >= 2
    for i, text in enumerate(EXAMPLES):
        file = m.home / f"example{i}.yaml"
        file.write_text(text)
        m.ok("policy", "check", file)
    # The claims that the text makes about them.
    claims = re.findall(r"^    \$ msb policy explain (.*?)\n    (refused|allowed)", DOC, re.M)
    assert claims
    for line, outcome in claims:
        words = [w.replace("agents.yaml", str(m.home / "example0.yaml")) for w in line.split()]
        p = m("policy", "explain", *words)
        assert p.returncode == (3 if outcome == "refused" else 0), (line, p.stdout, p.stderr)


def test_every_field_is_documented(module_msb):
    text = module_msb.ok("policy", "init", "-")
    section = ""
    for line in text.splitlines():
        head = re.match(r"# ([a-z_]+):$", line)
        key = re.match(r"#( {3})?([a-z_]+): ", line.replace("# ", "#", 1))
        if head:
            section = head[1]
        elif key and section != "rules":
            name = f"{section}.{key[2]}" if key[1] else key[2]
            assert f"`{name}`" in DOC, name
