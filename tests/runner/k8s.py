"""Pods of a real cluster, made for this; `make test-k8s` alone runs it."""
import os
import subprocess

from runner import junit
from runner.report import PYTHON, ROOT


def stage(args, t):
    if os.geteuid():
        t.skip("Kubernetes", "it needs root")
        return
    report, here = args.build / "k8s.xml", ROOT / "tests" / "k8s"
    report.unlink(missing_ok=True)
    runtime = args.build / "src" / "cli" / "msb-runtime"
    runtime.unlink(missing_ok=True)
    runtime.symlink_to("msb")
    tests = [PYTHON, "-B", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-rs", f"--basetemp={os.environ['TMPDIR']}/p",
             f"--junitxml={report}", "-o", "timeout=600", *(os.environ.get("MSB_TEST_K8S", "").split() or [here])]
    p = subprocess.run([str(c) for c in (PYTHON, "-B", here / "cluster.py", "--runtime", runtime, "--keep-logs",
                                         args.build / "k8s-logs", "--", *tests)], cwd=ROOT, check=False)
    if not report.exists():
        t.check("the cluster started", False)
        return
    failed = t.failed
    outcomes = [outcome for _, outcome in junit.results(report)]
    t.add(outcomes.count(None), outcomes.count("failed"), outcomes.count("skipped"))
    t.account_for("pytest ended well", p.returncode, failed)
