"""pytest, and the report that it writes."""
import os
import subprocess
import xml.etree.ElementTree

from runner.report import PYTHON, ROOT


def count(report, t):
    if not report.exists():
        t.check(f"pytest wrote {report.name}", False)
        return
    for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
        n = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
        failed = n["failures"] + n["errors"]
        t.add(n["tests"] - failed - n["skipped"], failed, n["skipped"])


def run(report, t, *args, **env):
    """Runs pytest, its output to ours, and counts."""
    report.unlink(missing_ok=True)
    cmd = [PYTHON, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs",
           f"--basetemp={os.environ['TMPDIR']}/p", f"--junitxml={report}", *args]
    failed = t.failed
    p = subprocess.run([str(c) for c in cmd], cwd=ROOT, env={**os.environ, **env}, check=False)
    count(report, t)
    t.account_for("pytest ended well", p.returncode, failed)
