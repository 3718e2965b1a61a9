"""The kvm engine, where KVM works or where the nested testbed is made, which make test-kvm tests first."""
import os
import re
import subprocess

from runner import junit, sanitize
from runner.report import PYTHON, ROOT, configure, run

SUITE = ROOT / "tests" / "kvm" / "suite.py"


def count(path, t):
    """Results, a line each: of tests, as watch.py writes them, and of attacks, as evil_host prints them."""
    text = path.read_text(errors="replace") if path.exists() else ""

    def number(word):
        return len(re.findall(rf"^{word} ", text, re.M))

    t.add(number("passed") + number("ok"), number("failed") + number("FAIL"), number("skipped"))
    if not text:
        t.check(f"there are results in {path.name}", False)


def stage(args, t):
    where = run([PYTHON, SUITE, "--build", args.build, "--where"]).stdout.strip()
    if not where or not (args.build / "assets" / "linux-kvm").exists():
        t.skip("the kvm engine", "KVM does not work here, and the nested testbed or the kvm engine's kernel"
               " is not made: run make test-kvm")
        return
    if where == "testbed":
        p = configure(sanitize.directory(args), None, *sanitize.OPTIONS)
        if p.returncode:
            t.check("build with ASan and UBSan", False, p.stdout)
            return
        if os.environ.get("MSB_TEST_KVM") == "full":
            junit.run(args.build / "testbed.xml", t, "tests/kvm/test_testbed.py")
        else:
            t.skip("the testbed's own tests", "make test-kvm runs them")
    failed = t.failed
    p = subprocess.run([PYTHON, SUITE, "--build", args.build], cwd=ROOT, check=False)
    for part in ("kvm-1", "kvm-2", *(["evil"] if where == "testbed" else [])):
        count(args.build / f"{part}.txt", t)
    if p.returncode not in (0, 1):
        t.check("the testbed ended well", False)
    t.account_for("the suite ended well", p.returncode, failed)
