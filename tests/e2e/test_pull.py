"""msb pull from the registry that everybody runs: plain, with TLS, with passwords."""
import base64
import json
import pathlib
import re
import signal
import stat
import subprocess
import termios

import pytest

import imagekit
from terminal import Terminal


def text(p):
    return p.stderr.decode(errors="replace")


@pytest.fixture(scope="module")
def tls_registry(tmp_path_factory):
    with imagekit.Registry(tmp_path_factory.mktemp("tls"), tls=True) as r:
        yield r


@pytest.fixture(scope="module")
def auth_registry(tmp_path_factory):
    with imagekit.Registry(tmp_path_factory.mktemp("auth"), tls=True, auth=True) as r:
        r.ref = r.push(imagekit.busybox(), "private/box:1")
        yield r


def cached(m, part):
    d = m.home / "cache" / part
    return sorted(p.name for p in d.iterdir()) if d.is_dir() else []


def test_pull_then_nothing_to_do(puller, registry):
    image = imagekit.layers(5)
    ref = registry.push(image, "five:1")
    p = puller("pull", ref, check=0)
    assert p.stdout == b""
    assert f"✓ Pulled       {ref}" in text(p)
    assert len(re.findall(r"  done  ", text(p))) == 5
    assert len(cached(puller, "layers")) == 5
    assert cached(puller, "partial") == []
    p = puller("pull", ref, check=0)
    assert len(re.findall(r"  exists  ", text(p))) == 5


def test_names_that_a_policy_allows(puller, registry, tmp_path):
    """A policy's rule for a name is for what its registry says it is: not for what was loaded or tagged here."""
    m, image = puller, imagekit.busybox()
    ref = registry.push(image, "allowed/box:1")
    host = ref.split("/")[0]
    other, own = f"{host}/allowed/box:2", f"{host}/allowed/own:1"
    m.ok("load", "-q", "-i", image.archive("docker", tmp_path / "box.tar", other))
    (m.home / "policy.yaml").write_text(f"images: {{allow: [\"{host}/allowed/*\"]}}\n")

    def run(name):
        return m("run", "-q", "--no-net", "--pull", "never", name, "--", "true")

    m.ok("pull", "-q", ref)
    assert run(ref).returncode == 0
    m.ok("tag", ref, own)
    for name in (other, own):
        p = run(name)
        assert p.returncode == 3 and f"asked for {name}, which was named on this host and not pulled" in text(p)
    m.ok("tag", other, ref)  # over the name that was pulled
    assert run(ref).returncode == 3
    m.ok("pull", "-q", "-f", ref)
    assert run(ref).returncode == 0
    for policy in (f"registries: [\"{host}\"]", "digest: true", f"allow: [\"{host}/allowed/own:1\"]"):
        (m.home / "policy.yaml").write_text(f"images: {{{policy}}}\n")
        assert run(own).returncode == 3
    (m.home / "policy.yaml").write_text("images: {allow: [\"*\"]}\n")
    assert run(own).returncode == 0


def test_quiet_says_nothing(puller, registry):
    ref = registry.push(imagekit.busybox(), "quiet:1")
    p = puller("pull", "-q", ref, check=0)
    assert p.stdout == b"" and p.stderr == b""
    p = puller("pull", "-q", ref + "x", check=1)
    assert text(p).startswith("error: ")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressions_share_a_layer(puller, registry, kind):
    image = imagekit.busybox()
    ref = registry.push(image.recompressed(kind), f"kinds-{kind}:1")
    puller.ok("pull", ref)
    assert [n.split(".")[0] for n in cached(puller, "layers")] == \
        [image.config()["rootfs"]["diff_ids"][0][7:]]


def test_docker_schema_2(puller, registry):
    ref = registry.push(imagekit.layers(3), "schema2:1", "--format", "v2s2")
    digest, doc = registry.manifest("schema2:1")
    assert doc["mediaType"].endswith("docker.distribution.manifest.v2+json")
    assert digest[:19] in text(puller("pull", ref, check=0))


def test_by_digest(puller, registry):
    ref = registry.push(imagekit.busybox(), "digest:1")
    digest, _ = registry.manifest("digest:1")
    name = ref.rsplit(":", 1)[0]
    assert digest[:19] in text(puller("pull", f"{name}@{digest}", check=0))
    p = puller("pull", f"{name}@sha256:{'0' * 64}", check=1)
    assert "has no manifest sha256:0000" in text(p)


def test_platforms(puller, registry):
    ref = registry.push(imagekit.multiarch(), "multi:1")
    a = text(puller("pull", "--platform", "linux/amd64", ref, check=0))
    b = text(puller("pull", "--platform", "linux/arm64", ref, check=0))
    assert re.search(r"Pulled.*(\(.*\))", a)[1] != re.search(r"Pulled.*(\(.*\))", b)[1]
    p = puller("pull", "--platform", "linux/s390x", ref, check=1)
    assert "linux/arm64" in text(p) and "linux/amd64" in text(p)
    puller("pull", "--platform", "nonsense!", ref, check=2)


def test_second_image_adds_only_its_own_layers(puller, registry):
    puller.ok("pull", registry.push(imagekit.layers(4), "four:1"))
    first = {n: (puller.home / "cache/layers" / n).stat().st_ino for n in cached(puller, "layers")}
    p = puller("pull", registry.push(imagekit.layers(6), "six:1"), check=0)
    # The first layers are the same in both.
    assert "exists" in text(p) and "done" in text(p)
    after = {n: (puller.home / "cache/layers" / n).stat().st_ino for n in cached(puller, "layers")}
    assert first.items() <= after.items()


def test_force_downloads_again(puller, registry):
    ref = registry.push(imagekit.busybox(), "force:1")
    puller.ok("pull", ref)
    [layer] = cached(puller, "layers")
    path = puller.home / "cache" / "layers" / layer
    before = path.read_bytes(), path.stat().st_ino
    p = puller("pull", "-f", ref, check=0)
    assert "exists" not in text(p) and "done" in text(p)
    assert path.read_bytes() == before[0] and path.stat().st_ino != before[1]


def test_force_undoes_what_a_forged_layer_has_done(puller, registry):
    """Also for other images that have it: their disks were made from it."""
    four, six = registry.push(imagekit.layers(4), "real:4"), registry.push(imagekit.layers(6), "real:6")

    def content(part):
        return {n: (puller.home / "cache" / part / n).read_bytes() for n in cached(puller, part)}

    puller.ok("pull", four)
    first = content("layers")
    puller.ok("pull", six)
    disks, layers = content("disks"), content("layers")
    puller.ok("image", "rm", four, six)
    assert content("layers") == {}
    victim, other = sorted(first, key=lambda n: len(first[n]))[::len(first) - 1]
    assert len(first[victim]) < len(first[other])
    (puller.home / "cache/layers" / victim).write_bytes(first[other])
    puller.ok("pull", four)
    puller.ok("pull", six)
    assert disks.keys() == content("disks").keys() and not disks.items() & content("disks").items()
    for ref in (four, six):  # what has the right size, too
        for name, was in content("disks").items():
            (puller.home / "cache/disks" / name).unlink()
            (puller.home / "cache/disks" / name).write_bytes(was[:-9] + b"forgeries")
        puller.ok("pull", "-f", ref)
        assert content("layers") == layers and content("disks") == disks
        assert {"real:4", "real:6"} <= {i.rpartition("/")[2] for i in puller.ok("image", "ls", "-q").split()}


def test_unknown_names_are_explained(puller, registry):
    registry.push(imagekit.busybox(), "known:1")
    p = puller("pull", f"{registry.host}/known:2", check=1)
    assert "has no tag 2 of" in text(p) and "check the spelling" in text(p)
    p = puller("pull", f"{registry.host}/unknown:1", check=1)
    assert "has no tag 1 of" in text(p) and "msb registry login" in text(p)
    p = puller("pull", "localhost:1/x:1", check=1)
    assert "cannot reach localhost:1" in text(p) and len(text(p).splitlines()) <= 3
    assert "proxy" in text(p).splitlines()[-1]
    p = puller("pull", "no-such-host.invalid/x", check=1, timeout=120)
    assert "no-such-host.invalid" in text(p)
    p = puller("pull", "UPPER/case", check=1)
    assert "lower-case" in text(p)
    p = puller("pull", "./rootfs", check=1)
    assert "msb run ./rootfs" in text(p), "what is here needs no pull"
    p = puller("pull", "msb/base", check=0)
    assert "built in" in text(p)
    p = puller("pull", "localhost:1/x", check=1, env={**puller.env, "MSB_REGISTRY_TIMEOUT": "soon"})
    assert "invalid MSB_REGISTRY_TIMEOUT 'soon'" in text(p)
    puller("pull", check=2)


def test_materialize(puller, registry):
    ref = registry.push(imagekit.busybox(), "mat:1")
    puller.ok("pull", "--materialize", "layered", ref)
    for form in ("flat", "all"):
        assert "not supported" in text(puller("pull", "--materialize", form, ref, check=1))
    puller("pull", "--materialize", "odd", ref, check=2)


def test_a_wrong_byte_fails_and_leaves_nothing(puller, registry):
    image = imagekit.layers(4)
    ref = registry.push(image, "damage/x:1")
    digest = registry.manifest("damage/x:1")[1]["layers"][0]["digest"]
    path = registry.blob_path(digest)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    path.write_bytes(bad)
    try:
        p = puller("pull", ref, check=1)
    finally:
        path.write_bytes(good)
    assert f"layer {digest[:19]}" in text(p)
    assert cached(puller, "partial") == [] and cached(puller, "refs") == []
    assert cached(puller, "images") == [] and cached(puller, "tmp") == []
    puller.ok("pull", ref)


# --- TLS ------------------------------------------------------------------------------------------


def test_tls_needs_a_known_ca(puller, tls_registry):
    ref = tls_registry.push(imagekit.busybox(), "tls:1")
    puller.ok("pull", "--ca-certs", tls_registry.ca, ref)
    # Loopback alone would do without: a CA that signed something else must not.
    other = tls_registry.dir / "other"
    other.mkdir()
    ca, _, _ = imagekit.make_ca(other)
    p = puller("pull", "--ca-certs", ca, ref, check=1)
    assert "certificate" in text(p) and "--ca-certs" in text(p)
    p = puller("pull", "--ca-certs", "/nonexistent.pem", ref, check=1)
    assert "/nonexistent.pem" in text(p)
    puller.ok("pull", "--insecure", ref)


def test_ca_from_settings(puller, tls_registry, tmp_path):
    ref = tls_registry.push(imagekit.busybox(), "tls:2")
    config = puller.home / "registries.json"
    config.write_text(json.dumps(
        {"registries": {tls_registry.host: {"ca_certs": str(tls_registry.ca)}}}))
    puller.ok("pull", ref)
    config.write_text('{"registries": {"x": {"insecur": true}}}')
    p = puller("pull", ref, check=1)
    assert "registries.json" in text(p) and "insecur" in text(p)


# --- passwords ------------------------------------------------------------------------------------


def login(m, r, password=None, **kw):
    return m("registry", "login", r.host, "-u", r.user, "--password-stdin", "--ca-certs", r.ca,
             input=(password or r.password).encode() + b"\n", **kw)


def test_login_pull_logout(puller, auth_registry):
    r = auth_registry
    p = puller("pull", "--ca-certs", r.ca, r.ref, check=1)
    assert "requires credentials" in text(p) and f"msb registry login {r.host}" in text(p)
    p = login(puller, r, "wrong", check=1)
    assert "rejects" in text(p) and "wrong" not in text(p)
    assert not (puller.home / "registry" / "auth.json").exists()
    assert puller.ok("registry", "list") == "No registries configured.\n"
    login(puller, r, check=0)
    assert puller.ok("registry", "ls", "-q") == r.host + "\n"
    file = puller.home / "registry" / "auth.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert r.password.encode() not in file.read_bytes()
    assert json.loads(puller.ok("registry", "ls", "--format", "json")) == \
        [{"registry": r.host, "username": r.user}]
    assert r.user in puller.ok("regs", "list")
    puller.ok("pull", "--ca-certs", r.ca, r.ref)
    puller.ok("registry", "logout", r.host)
    p = puller("registry", "logout", r.host, check=0)
    assert text(p) == f"warn: not logged in to {r.host}\n"
    puller("pull", "-f", "--ca-certs", r.ca, r.ref, check=1)


def echoes(t):
    return bool(termios.tcgetattr(t.slave)[3] & termios.ECHO)


def test_login_asks_on_a_terminal_without_echo(puller, auth_registry):
    r = auth_registry
    t = Terminal([puller.exe, "registry", "login", r.host, "-u", r.user, "--ca-certs", str(r.ca)],
                 puller.env)
    t.read_until(b"Password for tester")
    assert not echoes(t), "whoever types as soon as it asks is heard, and not seen"
    t.type(r.password.encode() + b"\n")
    shown = t.read_until(b"Logged in")
    assert r.password.encode() not in shown
    assert t.p.wait(timeout=20) == 0
    assert echoes(t)


def test_login_asks_who_it_is(puller, auth_registry):
    r = auth_registry
    t = Terminal([puller.exe, "login", r.host, "--ca-certs", str(r.ca)], puller.env)
    t.read_until(b"User name at ")
    assert echoes(t)
    t.type(r.user.encode() + b"\n")
    t.read_until(b"Password for tester")
    assert not echoes(t)
    t.type(r.password.encode() + b"\n")
    t.read_until(b"Logged in")
    assert t.p.wait(timeout=20) == 0


def test_login_usage(puller):
    p = puller("registry", "login", "localhost:1", check=2)
    assert "--username" in text(p)
    p = puller("registry", "login", "not/a host", "-u", "x", "--password-stdin", input=b"x", check=2)
    assert "invalid registry" in text(p)
    p = puller("registry", "login", "localhost:1", "-u", "x", check=1)
    assert "--password-stdin" in text(p)
    for given, want in ((b"\n", "no password"), (b"a\0b", "NUL byte"), (b"x" * 100000, "too long")):
        p = puller("registry", "login", "localhost:1", "-u", "x", "--password-stdin", input=given, check=1)
        assert want in text(p), text(p)
    p = puller("registry", "login", "localhost:1", "-u", "x", "--password-stdin", input=b"", check=1)
    assert "no password" in text(p)


def docker_config(m, doc):
    d = pathlib.Path(m.env["DOCKER_CONFIG"])
    d.mkdir(exist_ok=True)
    (d / "config.json").write_text(json.dumps(doc) if not isinstance(doc, str) else doc)


def basic(r):
    return base64.b64encode(f"{r.user}:{r.password}".encode()).decode()


@pytest.mark.parametrize("key", ["{host}", "https://{host}", "https://{host}/v1/"])
def test_docker_config_auths(puller, auth_registry, key):
    r = auth_registry
    docker_config(puller, {"auths": {key.format(host=r.host): {"auth": basic(r)}}})
    puller.ok("pull", "--ca-certs", r.ca, r.ref)


def helper(directory, name, script):
    path = directory / f"docker-credential-{name}"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


@pytest.mark.parametrize("how", ["credHelpers", "credsStore"])
def test_credential_helpers(puller, auth_registry, tmp_path, how):
    r = auth_registry
    answer = json.dumps({"ServerURL": r.host, "Username": r.user, "Secret": r.password})
    helper(tmp_path, "test", f"""test "$1" = get || exit 1
read host || test -n "$host"
echo "$host" >> {tmp_path}/asked
while read -r key value; do case $key in SigBlk:|SigIgn:) echo "$key $value"; esac; done \\
    < /proc/self/status > {tmp_path}/signals
if test "$host" = {r.host}; then cat <<'X'
{answer}
X
else echo "credentials not found in native keychain"; exit 1; fi
""")
    puller.env["PATH"] = f"{tmp_path}:{puller.env['PATH']}"
    docker_config(puller, {how: {r.host: "test"} if how == "credHelpers" else "test"})
    puller.ok("pull", "--ca-certs", r.ca, r.ref)
    assert (tmp_path / "asked").read_text() == f"{r.host}\n"
    # Nothing that msb blocks or ignores for itself: Ctrl-C and broken pipes are the helper's own.
    lines = (tmp_path / "signals").read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert int(line.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGINT - 1) == 0, line


def test_credential_helpers_that_fail(puller, auth_registry, tmp_path):
    r = auth_registry
    puller.env["PATH"] = f"{tmp_path}:{puller.env['PATH']}"

    def attempt(name, script, want):
        if script is not None:
            helper(tmp_path, name, script)
        docker_config(puller, {"credHelpers": {r.host: name}})
        p = puller("pull", "--ca-certs", r.ca, r.ref, check=1)
        assert want in text(p), text(p)

    attempt("missing", None, "cannot run docker-credential-missing")
    attempt("odd", "echo nothing useful", "docker-credential-odd: the answer")
    attempt("angry", "echo the vault is sealed; exit 3", "the vault is sealed")
    attempt("empty", "echo credentials not found in native keychain; exit 1", "requires credentials")
    attempt("chatty", "yes", "printed more than")
    attempt("../evil", None, "invalid credential helper name")
    docker_config(puller, "not json")
    assert "config.json" in text(puller("pull", "--ca-certs", r.ca, r.ref, check=1))


def test_real_credential_helper(puller, auth_registry, tmp_path):
    """docker-credential-pass with a separate password store and key."""
    r = auth_registry
    imagekit.need("docker-credential-pass", "pass", "gpg")
    env = {**puller.env, "GNUPGHOME": str(tmp_path / "gpg"),
           "PASSWORD_STORE_DIR": str(tmp_path / "store")}
    (tmp_path / "gpg").mkdir(mode=0o700)

    def tool(*cmd, **kw):
        subprocess.run(cmd, env=env, check=True, capture_output=True, timeout=120, **kw)

    try:
        tool("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "test@example.com",
             "default", "default", "never")
        tool("pass", "init", "test@example.com")
        secret = {"ServerURL": r.host, "Username": r.user, "Secret": r.password}
        tool("docker-credential-pass", "store", input=json.dumps(secret).encode())
        docker_config(puller, {"credsStore": "pass"})
        puller.env = env
        puller.ok("pull", "--ca-certs", r.ca, r.ref)
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env=env, capture_output=True)


# --- progress -------------------------------------------------------------------------------------


def test_bars_on_a_terminal(puller, registry):
    ref = registry.push(imagekit.layers(5), "bars:1")
    t = Terminal([puller.exe, "pull", ref], puller.env, cols=100)
    t.read_until(b"Pulled")
    assert t.p.wait(timeout=20) == 0
    t = Terminal([puller.exe, "pull", "-f", ref], puller.env, rows=5, cols=40)
    shown = t.read_until(b"Pulled")
    assert b"layers done" in shown and b"\x1b[" in shown
    for line in re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", shown).replace(b"\r", b"\n").split(b"\n"):
        assert len(line.decode(errors="replace")) <= 64
    assert t.p.wait(timeout=20) == 0


def test_missing_libcurl_is_explained(puller, tmp_path):
    """Only if a directory without it can be put first: LD_LIBRARY_PATH with an empty file."""
    (tmp_path / "libcurl.so.4").write_text("")
    puller.env["LD_LIBRARY_PATH"] = str(tmp_path)
    p = puller("pull", "localhost:1/x", check=1)
    assert "libcurl" in text(p) and "apt-get install libcurl4" in text(p)
