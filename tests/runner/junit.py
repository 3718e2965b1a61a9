"""pytest, and the report that it writes."""
import os
import subprocess
import xml.etree.ElementTree

from runner.report import PYTHON, ROOT

# Up to so many failures are tried again, each by itself: more have one cause, and no luck would help.
FEW = 3
AGAIN = ".again"


def results(report):
    """Of each test of a report: (its name, None, "skipped" or "failed")."""
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else None
        where = case.get("classname") or "pytest"  # that one ends by itself
        yield f"{where.replace('.', '/')}.py::{case.get('name')}", outcome


def pytest(report, *args, **env):
    report.unlink(missing_ok=True)
    # A second run has a directory of its own: the first may have left what cannot be removed. Sockets' paths are short.
    base = "q" if report.suffixes[0] == AGAIN else "p"
    # Tracebacks as Python writes them: pytest's own parse the test's source, and Python 3.11 cannot do that while
    # another thread does, such as a server's that prints one itself.
    cmd = [PYTHON, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--tb=native",
           f"--basetemp={os.environ['TMPDIR']}/{base}", f"--junitxml={report}", *args]
    return subprocess.run([str(c) for c in cmd], cwd=ROOT, env={**os.environ, **env}, check=False).returncode


def unsteady(report, **env):
    """Those of a report's failures that pass when they are tried again."""
    failed = sorted({name for name, outcome in results(report) if outcome == "failed"})
    if not failed or len(failed) > FEW:
        return set()
    second = report.with_suffix(AGAIN + ".xml")
    print(f"    {len(failed)} failed; each once more:", flush=True)
    pytest(second, *failed, **env)
    again = list(results(second)) if second.exists() else []
    lost = {name for name, outcome in again if outcome}
    return {name for name, outcome in again if not outcome} & set(failed) - lost


def run(report, t, *args, again=False, **env):
    """Runs pytest, its output to ours, and counts. With `again`, a failure that was one only once is named but
    not counted: on a machine that does much else at the same time, one in thousands is to be expected, and
    somebody should look into it all the same."""
    status, failed = pytest(report, *args, **env), t.failed
    if not report.exists():
        t.check(f"pytest wrote {report.name}", False)
        return
    spared = unsteady(report, **env) if again else set()
    for name in sorted(spared):
        print(f"    UNSTEADY {name}: failed, and passed when it ran again", flush=True)
    outcomes = [None if name in spared else outcome for name, outcome in results(report)]
    t.add(outcomes.count(None), outcomes.count("failed"), outcomes.count("skipped"))
    t.account_for("pytest ended well", 0 if spared and status == 1 else status, failed)
