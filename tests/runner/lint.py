"""Everything that reads the code and does not run it."""
import os
import re
import shutil

from runner import tidy
from runner.report import ROOT, configure, run, sources

# Another version lays the same code out otherwise, so that one decides.
CLANG_FORMAT = "clang-format-14"


def is_shell(path):
    try:
        with (ROOT / path).open("rb") as f:
            return bool(re.match(rb"#!.*\b(ba)?sh\b", f.readline()))
    except OSError:
        return False


def check(t, name, cmd, **kw):
    p = run(cmd, **kw)
    t.check(name, p.returncode == 0, p.stdout)


def check_format(t):
    if not shutil.which(CLANG_FORMAT):
        t.skip("clang-format", f"{CLANG_FORMAT} is not installed: where the release has it, run scripts/bootstrap test")
        return
    check(t, "clang-format", [CLANG_FORMAT, "--dry-run", "-Werror", *sources("*.c", "*.h")])


CLEANED_UP = re.compile(r"\s+AUTO_\w+ (?:const )?(?:struct )?\w+ \**(\w+);")


def unset_at_a_return(text):
    """Lines with a variable that is cleaned up at the end of its block, which a return reaches before it has a value.
    No compiler or analyzer sees these."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        name = CLEANED_UP.fullmatch(line)
        for later in lines[i + 1:] if name else ():
            if re.search(rf"\b{name[1]}\b", later):
                break
            if re.match(r"\s+(.*\W)?return\b|}", later):
                yield i + 1
                break


def check_cleanups(t):
    found = [f"{path}:{n}: may be cleaned up without a value" for path in sources("*.c")
             for n in unset_at_a_return((ROOT / path).read_text())]
    t.check("values of what is cleaned up", not found, "\n".join(found))


def stage(args, t):
    check_format(t)
    check_cleanups(t)
    check(t, "layers of src/", ["tools/check-layers", "src"])
    docs = sources("*.md")
    check(t, f"files named in documentation ({len(docs)} files)", ["tools/check-docs", ".", *docs])
    scripts = [s for s in sources() if is_shell(s)]
    check(t, f"shellcheck ({len(scripts)} scripts)", ["shellcheck", *scripts])
    done = args.build / "cppcheck"
    done.mkdir(exist_ok=True)
    check(t, "cppcheck", [
        "cppcheck", "-q", "-j", os.cpu_count(), "--std=c11", "--error-exitcode=1",
        "--enable=warning,portability,performance", "--inline-suppr",
        "--suppressions-list=.cppcheck-suppressions", f"--cppcheck-build-dir={done}", "-D__x86_64__",
        "-D_GNU_SOURCE", '-DMSB_VERSION="0"', "-Isrc", "src"])
    # But for a script that a guest reads after another.
    python = [p for p in sources("sdk/*.py", "examples/*.py", "tests/*.py") if p != "tests/net/frames.py"]
    check(t, f"pyflakes ({len(python)} files)", ["pyflakes3", *python])
    check(t, "mypy --strict", ["mypy", "--no-error-summary", "--cache-dir", args.build / "mypy", "msb"],
          cwd=ROOT / "sdk" / "python")
    p = configure(args.build)  # the compiler says which headers a file reads
    if p.returncode:
        t.check("build", False, p.stdout)
        return
    tidy.check(args.build, t)
