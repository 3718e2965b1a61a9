"""What a new user does, on a machine that has nothing: make run, make test, make install, the quick start;
or takes what others have built: a tarball, Debian packages.

Short, as part of make test: an ordinary user, who may not write to the sources, on machines on which
scripts/bootstrap has already run; the tree is built on one that has no test packages, and tested on one
that has. MSB_TEST_FRESH=full (make test-fresh): everything from nothing and all of the tests, as root on
this Debian and as a user with sudo on the next. MSB_TEST_FRESH=all: as both on both. MSB_TEST_FRESH=no: not
at all. fresh.log in the build directory has all that the machines say, as they say it.
"""
import os
import pathlib
import re
import shutil
import tempfile

from runner import machine
from runner.report import ROOT, run

# Releases that are tried where they can be had, and one with an older C library, for the tarball.
OTHERS = ["trixie"]
OLD = "bullseye"
# What a machine is tested with in full: it is a fresh one itself, and nested KVM tells nothing more there.
STAGES = "runner lint unit sanitize fuzz e2e"
# Enough to see that a sandbox works, and that signals are not those of whoever started it.
TESTS = "tests/e2e/test_smoke.py tests/e2e/test_exec_signals.py"
# Whoever started it has odd habits, and no terminal.
ODD = {"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8", "TMPDIR": "/var/tmp"}
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
# What the quick start does with images from registries, with tools of the user's own and with a terminal stays out.
NOT_HERE = re.compile(r"msb top|python|nginx|rootfs|\bdev\b|mcp|net-rule|--no-net|write-path|--s3|IMAGE|^msb run +#|^$")


def quick_start():
    """The commands of the README that need nothing but msb."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"^## Quick start\n.*?^```sh\n(.*?)^```", text, re.S | re.M)[1]
    lines = [x for x in block.splitlines() if not NOT_HERE.search(x)]
    return "\n".join(["set -e", "cd $(mktemp -d)", "mkdir src", "echo secret >key.txt", *lines])


class Trial:
    """One user's way on one machine."""

    def __init__(self, t, m, title, user):
        self.t, self.machine, self.user = t, m, user
        self.title = f"{title}, {'a user with sudo' if user else 'root'}"
        self.build = f"/home/{machine.USER}/build" if user else "/root/msb/build"
        self.ok = True

    def step(self, what, command, want="", **env):
        """One command that must succeed; after one that does not, the others tell nothing."""
        if self.ok:
            p = self.machine.run(command, self.user, **env)
            self.ok = p.returncode == 0 and bool(re.search(want, p.stdout, re.S))
            self.t.check(f"{self.title}: {what}", self.ok, f"(status {p.returncode})\n{p.stdout[-8000:]}")
            return p.stdout
        return ""

    def make(self, target):
        """A user builds outside the sources, which are read-only for him; root in a copy."""
        tree = "/tree" if self.user else "/root/msb"
        return f"make --no-print-directory -C {tree} BUILD={self.build} {target}"

    def tested(self, what, command, least, **env):
        """Tests of which none fails, and of which there are as many as there should be."""
        out = self.step(what, command, **ODD, **env)
        found = TOTALS.findall(out)
        if self.ok:
            self.ok = bool(found) and int(found[-1][0]) >= least
            self.t.check(f"{self.title}: of {what}, at least {least} pass", self.ok, out[-4000:])

    def make_run(self):
        copy = "" if self.user else "cp -r /tree /root/msb && "
        self.step("make run", copy + self.make("run"), r"msb rm demo\n.*Removed", **ODD)
        self.step("make bench builds its programs", self.make("programs") + " && "
                  f"cd {self.build}/tests && test -x bench/bare -a -x bench/netload -a -x net/tap_stack")

    def install(self):
        self.step("make install", self.make("install"), "installed msb in /usr/local/bin")
        self.step("everybody may use what is installed",
                  "! find /usr/local -path '*msb*' ! -type l ! -perm -004 | grep .")
        self.step("the README's quick start", "cd /tmp && " + self.quick(), "42.*HELLO")

    def use(self, what, files, install):
        """Something that was built elsewhere."""
        for f in files:
            shutil.copy(f, self.machine.work / "places" / "tmp")
        self.step(f"{what} is installed", f"cd /tmp && {install}")
        self.step(f"{what}: the README's quick start", "cd /tmp && PATH=$PATH:~/.local/bin && " + self.quick(),
                  "42.*HELLO")

    def quick(self):
        script = self.machine.work / "places" / "tmp" / "quick-start"
        script.write_text(quick_start())
        script.chmod(0o755)
        return "sh -x /tmp/quick-start"


def short(t, place, release):
    """make run with build packages alone, then tests of the same tree."""
    built = machine.Machine(release, machine.layers(release, "build"), *place)
    trial = Trial(t, built, release, True)
    trial.make_run()
    trial.machine = machine.Machine(release, machine.layers(release, "build", "test"), *place)
    trial.tested("make test, unit tests and ten of the end-to-end tests", trial.make("test STAGES='unit e2e'"), 500,
                 MSB_TEST_E2E=TESTS)
    trial.install()


def full(t, place, release, user):
    """All of it, from nothing."""
    trial = Trial(t, machine.Machine(release, machine.layers(release), *place), release, user)
    with machine.installing(release):
        trial.make_run()
        trial.tested("make test", trial.make(f"test STAGES='{STAGES}'"), 1000, FUZZ_SECONDS="1")
        trial.install()


def tarball(t, place, build, release):
    """For a user who installs nothing else."""
    p = run([ROOT / "scripts" / "package", "dist", build], env={**os.environ, "KERNELS": "uml uml-smp"})
    t.check("make dist", p.returncode == 0, p.stdout)
    trial = Trial(t, machine.Machine(release, machine.layers(release), *place), release, True)
    trial.use("the tarball", build.glob("msb-*.tar.gz*"), "sha256sum -c *.sha256 && mkdir ~/.local && "
              "tar -C ~/.local --strip-components=1 -xzf msb-*.tar.gz")


def debs(t, place, build, release):
    """For all users, by apt."""
    trial = Trial(t, machine.Machine(release, machine.layers(release), *place), release, True)
    with machine.installing(release):
        trial.use("the Debian package", (build / "packages").glob("*.deb"),
                  "sudo apt-get update -qq && sudo apt-get install -qq -y ./msb_*.deb ./python3-msb_*.deb")
    trial.step("the Python client", "python3 -c 'import msb; print(msb.__doc__)'")


def container_image(t, place, build, release):
    """packaging/container/Containerfile with that tarball, on a Debian of ours in place of a registry's."""
    if not shutil.which("podman") or not shutil.which("runc"):
        raise machine.Unavailable("podman or runc is not installed: run scripts/bootstrap test")
    base = machine.layers(release)[0]
    podman = ["podman", "--root", place[0] / "root", "--runroot", place[0] / "run", "--runtime", "runc",
              "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]  # engines.conf may ask for more than we have
    tar = place[0] / "base.tar"
    steps = {
        "its base": ["tar", "-C", base, "-c", "-f", tar, "."],
        "import": [*podman, "import", "-q", tar, "localhost/debian"],
        "build": [*podman, "build", "-q", "--isolation", "chroot", "--network", "host", "--build-arg", "BASE=localhost/debian",
                  "-f", ROOT / "packaging/container/Containerfile", "-t", "localhost/msb", build],
        "a sandbox": [*podman, "run", "--rm", "--network", "none", *limits, "localhost/msb", "run", "--", "uname", "-s"],
    }  # fmt: skip
    try:
        for what, command in steps.items():
            p = run(command)
            t.check(f"a container image: {what}", p.returncode == 0, p.stdout)
            if p.returncode:
                return
    finally:
        run([*podman, "system", "reset", "-f"])


def packages(t, args, log, releases):
    """What scripts/package makes, where it is for."""
    p = run([ROOT / "scripts" / "package", "deb", args.build], env={**os.environ, "KERNELS": "uml uml-smp"})
    t.check("make deb, and lintian has nothing to say", p.returncode == 0, p.stdout)
    for release in releases:
        attempt(t, f"packages on {release}", log, debs, args.build, release)
    attempt(t, f"a tarball on {OLD}", log, tarball, args.build, OLD)
    attempt(t, "a container image", log, container_image, args.build, releases[0])


def attempt(t, name, log, function, *args):
    """A trial in a directory of its own, or the reason why there is none."""
    work = pathlib.Path(tempfile.mkdtemp(prefix="fresh-"))
    try:
        function(t, (work, log), *args)
    except machine.Unavailable as e:
        t.skip(name, str(e))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def stage(args, t):
    how = os.environ.get("MSB_TEST_FRESH", "short")
    if how == "no":
        t.skip("a fresh machine", "MSB_TEST_FRESH says so")
        return
    try:
        own = machine.this_release()
    except machine.Unavailable as e:
        t.skip("a fresh machine", str(e))
        return
    log = args.build / "fresh.log"
    log.unlink(missing_ok=True)
    if how == "full":
        wanted = [(own, False), *((release, True) for release in OTHERS if release != own)]
    elif how == "all":
        wanted = [(release, user) for release in dict.fromkeys([own, *OTHERS]) for user in (False, True)]
    else:
        attempt(t, f"a fresh {own}", log, short, own)
        attempt(t, f"a tarball on {own}", log, tarball, args.build, own)
        return
    for release, user in wanted:
        attempt(t, f"a fresh {release}", log, full, release, user)
    packages(t, args, log, list(dict.fromkeys([own, *OTHERS])))
