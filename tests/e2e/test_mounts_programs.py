"""Programs of real life on a share: git, npm, pip, SQLite, make. They are the host's own, run in the
guest by way of a share of /usr; what they leave is looked at on the host."""
import json
import shutil
import sqlite3
import subprocess
import tarfile
import zipfile

import pytest

from conftest import LARGE, need
from guest import PATIENCE


@pytest.fixture
def share(tmp_path):
    d = tmp_path / "share"
    d.mkdir()
    return d


def run_tools(msb, image, share, script, cache="auto"):
    return msb.ok("run", "-q", "-m", "1G", "-v", "/usr:/usr:ro", "-v", f"{share}:/w:cache={cache}",
                  "-w", "/w", image, "--", "/bin/sh", "-ec", script, timeout=PATIENCE * 5)  # fmt: skip


def test_git(msb, host_tools, share):
    """A repository made in the guest, sound on the host."""
    need("git")
    out = run_tools(msb, host_tools, share, """
        export HOME=/root; git config --global user.email a@b.c; git config --global user.name n
        git init -q r; cd r
        for d in 1 2 3 4 5; do mkdir $d; for f in 1 2 3 4 5 6 7 8 9 10; do echo $d$f >$d/$f; done; done
        git add -A; git commit -qm one; git checkout -qb side; git mv 1 moved; echo x >2/1
        git commit -qam two; git checkout -q -; git merge -q side; git status --porcelain
        git gc -q; git fsck --strict 2>&1 | grep -v ^dangling || true; git log --oneline | wc -l
    """)  # fmt: skip
    assert out.split() == ["2"]
    git = ["git", "-c", f"safe.directory={share}/r", "-C", share / "r"]
    subprocess.run([*git, "fsck", "--strict"], check=True, stderr=subprocess.DEVNULL)
    assert subprocess.run([*git, "status", "--porcelain"], stdout=subprocess.PIPE).stdout == b""


@pytest.mark.parametrize("cache", ["auto", "none", "always"])
def test_sqlite(msb, host_tools, share, cache):
    """Journals, locks, syncs and (WAL) shared mappings; what comes out is sound on the host."""
    need("python3")
    script = (
        "import sqlite3, os\n"
        "for mode in ('delete', 'wal'):\n"
        "    db = sqlite3.connect(mode + '.db')\n"
        "    db.execute('pragma journal_mode=' + mode)\n"
        "    db.execute('create table t (k integer primary key, v text)')\n"
        "    for i in range(30):\n"
        "        with db:\n"
        "            db.executemany('insert into t (v) values (?)', [(str(i) * 50,)] * 20)\n"
        "    other = sqlite3.connect(mode + '.db')\n"
        "    assert other.execute('select count(*) from t').fetchone() == (600,)\n"
        "    assert other.execute('pragma integrity_check').fetchone() == ('ok',)\n"
        "    other.close(); db.close()\n"
    )
    (share / "stress.py").write_text(script)
    run_tools(msb, host_tools, share, "python3 stress.py", cache)
    for mode in ("delete", "wal"):
        db = sqlite3.connect(share / f"{mode}.db")
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        assert db.execute("select count(*) from t").fetchone() == (600,)
        db.close()


def test_make_and_cc(msb, host_tools, share):
    need("make", "gcc")
    for i in range(4):
        (share / f"f{i}.c").write_text(f"int f{i}(void) {{ return {i}; }}\n")
    (share / "main.c").write_text(
        "#include <stdio.h>\nint f0(void),f1(void),f2(void),f3(void);\n"
        'int main(void) { printf("%d\\n", f0()+f1()+f2()+f3()); return 0; }\n')  # fmt: skip
    (share / "Makefile").write_text("OBJS = main.o f0.o f1.o f2.o f3.o\nprog: $(OBJS)\n\t$(CC) -o $@ $^\n")
    out = run_tools(msb, host_tools, share, "make -s -j4 CC=gcc; ./prog; make -s -q CC=gcc && echo up to date")
    assert out == "6\nup to date\n"
    assert subprocess.run([share / "prog"], stdout=subprocess.PIPE).stdout == b"6\n"


def make_repository(path, files):
    """A bare repository of so many files; git reads it from a stream, which takes no time."""
    lines = [b"commit refs/heads/main", b"committer n <a@b.c> 1700000000 +0000", b"data 3", b"one"]
    for i in range(files):
        text = b"line %d\n" % i * (i % 50 + 1)
        lines += [b"M 100644 inline dir%d/sub%d/file%d.c" % (i % 97, i % 7, i), b"data %d" % len(text),
                  text]  # fmt: skip
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", path], check=True)
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input=b"\n".join(lines) + b"\n", check=True)


def test_git_clone_and_status(msb, host_tools, share):
    need("git")
    files = 20000 if LARGE else 2000
    make_repository(share / "origin.git", files)
    out = run_tools(msb, host_tools, share, """
        export HOME=/root; git config --global --add safe.directory '*'
        git clone -q file:///w/origin.git clone; cd clone
        git status --porcelain; find . -name .git -prune -o -type f -print | wc -l
        echo changed >dir1/sub1/file1.c; rm dir2/sub2/file2.c; echo new >untracked
        git status --porcelain
    """)  # fmt: skip
    assert out.splitlines() == [str(files), " M dir1/sub1/file1.c", " D dir2/sub2/file2.c", "?? untracked"]
    git = ["git", "-c", f"safe.directory={share}/clone", "-C", share / "clone"]
    out = subprocess.run([*git, "status", "--porcelain"], stdout=subprocess.PIPE, check=True).stdout
    assert len(out.splitlines()) == 3
    subprocess.run([*git, "fsck", "--strict"], check=True, stderr=subprocess.DEVNULL)


def test_npm_install(msb, host_tools, share):
    """Packages from local archives: unpacked, linked, moved into place."""
    need("node", "npm")
    packages = 40 if LARGE else 4
    for i in range(packages):
        made = share / f"p{i}"
        (made / "lib").mkdir(parents=True)
        (made / "package.json").write_text(json.dumps({
            "name": f"p{i}", "version": "1.0.0", "main": "lib/0.js", "bin": {f"p{i}": "lib/0.js"}}))
        for k in range(20):
            (made / "lib" / f"{k}.js").write_text(f"#!/usr/bin/env node\nmodule.exports = {i};\n")
        with tarfile.open(share / f"p{i}.tgz", "w:gz") as t:
            t.add(made, "package")
        shutil.rmtree(made)
    (share / "package.json").write_text(json.dumps({
        "name": "top", "version": "1.0.0",
        "dependencies": {f"p{i}": f"file:p{i}.tgz" for i in range(packages)}}))  # fmt: skip
    total = " + ".join(f"require('p{i}')" for i in range(packages))
    out = run_tools(msb, host_tools, share, f"""
        export HOME=/root npm_config_cache=/w/.npm
        npm install --offline --no-audit --no-fund --loglevel=error >/dev/null
        node -e "console.log({total})"; ls node_modules/.bin | wc -l
    """)  # fmt: skip
    assert out.split() == [str(sum(range(packages))), str(packages)]
    assert len(list((share / "node_modules").glob("p*/lib/*.js"))) == packages * 20


def make_wheel(path, modules):
    names = [f"thing/m{i}.py" for i in range(modules)]
    info = "thing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("thing/__init__.py", "from .m0 import value\n")
        for i, name in enumerate(names):
            z.writestr(name, f"value = {i} + 42\n")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "".join(f"{n},,\n" for n in [*names, "thing/__init__.py"]))


def test_pip_install(msb, host_tools, share):
    need("python3")
    if subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("pip is not installed on the host")
    modules = 2000 if LARGE else 80
    make_wheel(share / "thing-1.0-py3-none-any.whl", modules)
    out = run_tools(msb, host_tools, share, """
        export HOME=/root PIP_DISABLE_PIP_VERSION_CHECK=1
        python3 -m pip install -q --no-index --no-cache-dir --root-user-action=ignore \\
            --target site thing-1.0-py3-none-any.whl
        PYTHONPATH=site python3 -c 'import thing; print(thing.value)'; ls site/thing/*.py | wc -l
    """)  # fmt: skip
    assert out.split() == ["42", str(modules + 1)]
    assert len(list((share / "site" / "thing" / "__pycache__").glob("m*.pyc"))) == modules


WAL = """
import multiprocessing, os, sqlite3, sys

def work(who, rounds):
    db = sqlite3.connect('wal.db', timeout=120, isolation_level=None)
    for i in range(rounds):
        db.execute('begin immediate')
        db.execute('insert into t (who, n, v) values (?, ?, ?)', (who, i, str(who) * 300))
        db.execute('update total set n = n + 1')
        db.execute('commit' if i % 5 else 'rollback')
        if i % 20 == 0:
            db.execute('pragma wal_checkpoint')

rounds = int(sys.argv[1])
db = sqlite3.connect('wal.db')
assert db.execute('pragma journal_mode=wal').fetchone() == ('wal',)
db.executescript('create table t (who, n, v); create index i on t (who, n); create table total (n);'
                 'insert into total values (0)')
workers = [multiprocessing.Process(target=work, args=(w, rounds)) for w in range(4)]
[w.start() for w in workers]
[w.join() for w in workers]
assert all(w.exitcode == 0 for w in workers)
print(*db.execute('pragma integrity_check').fetchone(), *db.execute('select n from total').fetchone(),
      *db.execute('select count(*) from t').fetchone())
db.execute('pragma wal_checkpoint(truncate)')
sys.stdout.flush()
os._exit(0)  # without closing: the log and its index stay
"""


@pytest.mark.parametrize("cache", ["auto", "always"])
def test_sqlite_many_writers(msb, host_tools, share, cache):
    """Four processes, one log: the index of the log is a shared mapping, locks are between them."""
    need("python3")
    rounds = 500 if LARGE else 40
    (share / "wal.py").write_text(WAL)
    (share / "wal.db").unlink(missing_ok=True)
    want = rounds * 4 - rounds // 5 * 4
    out = run_tools(msb, host_tools, share, f"python3 wal.py {rounds}", cache)
    assert out.split() == ["ok", str(want), str(want)]
    db = sqlite3.connect(share / "wal.db")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    assert db.execute("select count(*) from t").fetchone() == (want,)
    db.close()
