"""The kvm engine, where KVM works or where the nested testbed is made."""
import re
import subprocess

from runner import junit, sanitize
from runner.report import PYTHON, ROOT, configure, run

SUITE = ROOT / "tests" / "kvm" / "suite.py"


def count_evil(path, t):
    text = path.read_text(errors="replace") if path.exists() else ""
    found = re.search(r"(\d+) passed, (\d+) failed", text)
    if found:
        t.add(int(found.group(1)), int(found.group(2)))
    else:
        t.check("the evil guest ran", False, text)


def stage(args, t):
    where = run([PYTHON, SUITE, "--build", args.build, "--where"]).stdout.strip()
    if not where or not (args.build / "assets" / "linux-kvm").exists():
        t.skip("the kvm engine", "KVM does not work here, and the nested testbed or the kvm engine's kernel"
               " is not made: run make test-kvm")
        return
    reports = [args.build / f"kvm-{n}.xml" for n in (1, 2)]
    evil = args.build / "evil.txt"
    for f in (*reports, evil):
        f.unlink(missing_ok=True)
    if where == "testbed":
        p = configure(sanitize.directory(args), None, *sanitize.OPTIONS)
        if p.returncode:
            t.check("build with ASan and UBSan", False, p.stdout)
            return
    p = subprocess.run([PYTHON, SUITE, "--build", args.build], cwd=ROOT, check=False)
    for f in reports:
        junit.count(f, t)
    if where == "testbed":
        count_evil(evil, t)
    if p.returncode not in (0, 1):
        t.check("the testbed ended well", False)
