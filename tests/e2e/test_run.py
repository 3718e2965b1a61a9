"""`msb run`: a sandbox for one command, and the options that shape a sandbox."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from conftest import wait_for
from guest import FOREVER, PATIENCE, finish, read, sh, wait_file
from terminal import Terminal

MIB = 1024 * 1024


def pipes(**kw):
    return dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) | kw


def wait_nothing_left(m):
    """No process and no file, without any further verb that could clean up."""
    wait_for(lambda: not m.processes() and not m.leftovers(), timeout=PATIENCE)


# --- one command --------------------------------------------------------------------------------


def test_output_and_exit_code(msb):
    p = msb("run", "-q", "--", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (p.returncode, p.stdout, p.stderr) == (42, b"out\n", b"err\n")
    assert msb.leftovers() == []


@pytest.mark.parametrize("command, code", [("no-such-program", 127), ("/etc", 126)])
def test_a_command_that_does_not_start(msb, command, code):
    p = msb("run", "-q", "--", command)
    assert p.returncode == code
    assert p.stderr.startswith(f'error: failed to exec "{command}"\n'.encode())
    assert msb.leftovers() == []


def test_death_by_signal(msb):
    assert msb("run", "-q", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_timeout(msb):
    """124, partial output, and the sandbox goes too."""
    p = msb("run", "-q", "--timeout", "500ms", "--", "sh", "-c", f"echo part; sleep {FOREVER}")
    assert (p.returncode, p.stdout) == (124, b"part\n")
    assert p.stderr == b"error: exec timed out after 500ms\n"
    assert msb.leftovers() == []


def test_piped_stdin_is_forwarded(msb):
    data = bytes(range(256)) * 4096
    p = msb("run", "-q", "--", "cat", input=data)
    assert (p.returncode, p.stdout) == (0, data)


def test_no_command_and_no_terminal(msb):
    p = msb("run")
    assert (p.returncode, p.stdout) == (0, b"")
    assert p.stderr == b"warn: no command provided and stdin is not a terminal\n"
    assert msb.leftovers() == []


def test_a_shell_on_a_terminal(msb):
    """Without a command a terminal gets the shell that --shell names."""
    with Terminal([msb.exe, "run", "-q", "--shell", "/bin/bash"], msb.env) as t:
        t.type(b"echo [${BASH_VERSION%%.*}]; exit 3\r")
        t.read_until(b"[5]")
        assert t.wait() == 3
        assert t.is_restored()
    wait_nothing_left(msb)


def test_ephemeral_names(msb):
    """While it runs the sandbox can be seen and used like any other."""
    p = msb.popen("run", "-q", "--", "sh", "-c", "echo up; read x", **pipes(stdin=subprocess.PIPE))
    assert p.stdout.readline() == b"up\n"
    name = msb.ok("ls", "-q").strip()
    assert re.fullmatch(r"msb-[0-9a-f]{8}", name)
    assert msb.ok("exec", "-q", name, "--", "echo", "in") == "in\n"
    p.stdin.write(b"\n")
    assert finish(p)[0] == 0
    assert msb.leftovers() == []


def test_an_exec_in_an_ephemeral_sandbox_ends_with_it(msb):
    """The sandbox is its command: when that ends, so does everything in it."""
    p = msb.popen("run", "-q", "--", "sh", "-c", "echo up; read x", **pipes(stdin=subprocess.PIPE))
    assert p.stdout.readline() == b"up\n"
    name = msb.ok("ls", "-q").strip()
    other = msb.popen("exec", "-q", name, "--", "sh", "-c", f"echo up; sleep {FOREVER}", **pipes())
    assert other.stdout.readline() == b"up\n"
    p.stdin.write(b"\n")
    assert finish(p)[0] == 0
    assert finish(other)[0] == 1
    wait_nothing_left(msb)


@pytest.mark.parametrize("sig, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143),
                                       (signal.SIGHUP, 129)])
def test_signals_end_command_and_sandbox(msb, sig, code):
    p = msb.popen("run", "-q", "--", "sh", "-c", f"echo up; exec sleep {FOREVER}", **pipes())
    assert p.stdout.readline() == b"up\n"
    p.send_signal(sig)
    assert finish(p) == (code, b"", b"")
    assert msb.leftovers() == []


def test_a_trap_in_the_guest_chooses(msb):
    script = f"trap 'echo bye; exit 9' TERM; echo up; sleep {FOREVER} & wait"
    p = msb.popen("run", "-q", "--", "sh", "-c", script, **pipes())
    assert p.stdout.readline() == b"up\n"
    p.terminate()
    assert finish(p) == (9, b"bye\n", b"")


def test_sigkill_of_the_client_leaves_nothing(msb):
    """Only the sandbox's own processes are left to clean up, and they do."""
    p = msb.popen("run", "-q", "--", "sh", "-c", f"echo up; exec sleep {FOREVER}", **pipes())
    assert p.stdout.readline() == b"up\n"
    p.kill()
    finish(p)
    wait_nothing_left(msb)


@pytest.mark.parametrize("delay", [0.005, 0.02, 0.04, 0.08])
def test_sigkill_of_the_client_at_any_moment(msb, delay):
    """Also when it dies in the middle of the creation."""
    p = msb.popen("run", "-q", "--", "sleep", FOREVER, **pipes())
    time.sleep(delay)
    p.kill()
    finish(p)
    wait_for(lambda: not msb.processes(), timeout=PATIENCE)
    assert msb.ok("ls", "-q") == ""


def test_parallel_runs(msb):
    """None gets in another's way, and when the last has returned nothing is left."""
    for _ in range(3):
        clients = [msb.popen("run", "-q", "--", "sh", "-c", f"echo {n}; exit {n}", **pipes())
                   for n in range(12)]
        for n, p in enumerate(clients):
            assert finish(p, timeout=120) == (n, b"%d\n" % n, b"")
        assert msb.leftovers() == []


@pytest.mark.parametrize("image", ["/no/such/dir", "./nothing.tar"])
def test_an_image_that_is_not_there(msb, image):
    p = msb("run", image, "--", "true")
    assert p.returncode == 1
    assert p.stderr.startswith(b"error: ")
    assert msb.leftovers() == []


def test_a_directory_as_image(msb, tmp_path):
    """An image with next to nothing in it gets a shell, and is not written to."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "motd").write_text("from the image\n")
    p = msb("run", "-q", root, "--", "bash", "-c", "cat /etc/motd; echo new >/etc/motd; cat /etc/motd")
    assert (p.returncode, p.stdout, p.stderr) == (0, b"from the image\nnew\n", b"")
    assert (root / "etc" / "motd").read_text() == "from the image\n"


# --- names --------------------------------------------------------------------------------------

EXISTS = b"warn: sandbox 'b' already exists; creation flags ignored (use --replace to recreate)\n"


def test_a_named_sandbox_is_kept_and_used_again(msb):
    """Stopped after the command; the next run warns, starts it, and finds its files."""
    assert msb("run", "-n", "b", "--", "sh", "-c", "echo kept >/root/f; exit 4").returncode == 4
    assert msb.status("b") == "Stopped"
    p = msb("run", "-n", "b", "--memory", "1G", "--", "cat", "/root/f")
    assert (p.returncode, p.stdout, p.stderr) == (0, b"kept\n", EXISTS)
    assert msb.status("b") == "Stopped"


def test_quiet_silences_the_warning(msb):
    msb.ok("run", "-q", "-n", "b", "--", "true")
    p = msb("run", "-q", "-n", "b", "-m", "64M", "--", "true")
    assert (p.returncode, p.stdout, p.stderr) == (0, b"", b"")


def test_a_running_sandbox_is_used_and_left_running(msb):
    msb.create("b")
    p = msb("run", "-n", "b", "--", "echo", "in")
    assert (p.returncode, p.stdout, p.stderr) == (0, b"in\n", b"")
    assert msb("run", "-n", "b", "-m", "64M", "--", "true").stderr == EXISTS
    assert msb.status("b") == "Running"


def test_replace(msb):
    msb.ok("run", "-q", "-n", "b", "--", "sh", "-c", "echo old >/root/f")
    p = msb("run", "-n", "b", "--replace", "--", "sh", "-c", "cat /root/f 2>/dev/null || echo new")
    assert (p.returncode, p.stdout) == (0, b"new\n")
    assert b"already exists" not in p.stderr


def test_sigkill_of_a_named_run_keeps_the_sandbox(msb):
    """The command dies with its client; the sandbox, which has a name, does not vanish."""
    p = msb.popen("run", "-q", "-n", "b", "--", "sh", "-c",
                  f"echo x >/root/f; sync; echo up; exec sleep {FOREVER}", **pipes())
    assert p.stdout.readline() == b"up\n"
    p.kill()
    finish(p)
    assert msb.ok("exec", "-q", "b", "--", "cat", "/root/f") == "x\n"


# --- in the background --------------------------------------------------------------------------

COUNT = "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; echo line $i; sleep 0.02; done"


def test_detached(msb):
    """-d prints only the name, closes its pipes, and the command keeps running."""
    p = msb("run", "-d", "--", "sh", "-c", COUNT, timeout=PATIENCE)
    name = p.stdout.decode().strip()
    assert (p.returncode, p.stderr) == (0, b"")
    assert re.fullmatch(r"msb-[0-9a-f]{8}", name)
    seen = int(wait_file(msb, name, "/tmp/count"))
    wait_for(lambda: int(read(msb, name, "/tmp/count") or 0) > seen + 10, timeout=PATIENCE)
    msb.ok("stop", "-q", name)
    wait_nothing_left(msb)


def test_detached_with_a_name(msb):
    p = msb("run", "-d", "-q", "-n", "b", "--", "sh", "-c", COUNT)
    assert (p.returncode, p.stdout, p.stderr) == (0, b"b\n", b"")
    wait_file(msb, "b", "/tmp/count")
    msb.ok("stop", "-q", "b")
    assert msb.status("b") == "Stopped"


def test_detached_and_unnamed_vanishes_with_its_command(msb):
    name = msb.ok("run", "-d", "--", "sh", "-c",
                  "until [ -e /tmp/end ]; do sleep 0.02; done").strip()
    sh(msb, name, "true")
    assert msb.status(name) == "Running"
    sh(msb, name, ": >/tmp/end")
    wait_nothing_left(msb)


def test_detached_command_that_does_not_start(msb):
    p = msb("run", "-d", "--", "no-such-program")
    assert (p.returncode, p.stdout) == (127, b"")
    assert p.stderr.startswith(b'error: failed to exec "no-such-program"\n')
    wait_nothing_left(msb)


def test_detached_without_anything_to_run(msb):
    p = msb("run", "-d")
    assert p.returncode == 1
    assert p.stderr.startswith(b"error: ")
    assert msb.leftovers() == []


# --- what to run --------------------------------------------------------------------------------


def test_entrypoint(msb):
    """The entrypoint stays in front of what is given after the dashes."""
    assert msb.ok("run", "-q", "--entrypoint", "/bin/echo", "--", "a", "b") == "a b\n"
    assert msb.ok("run", "-q", "--entrypoint", "/bin/pwd") == "/\n"
    assert msb.ok("run", "-q", "--entrypoint", "", "--", "echo", "plain") == "plain\n"


def test_entrypoint_of_a_named_sandbox_is_remembered(msb):
    assert msb.ok("run", "-q", "-n", "b", "--entrypoint", "/bin/echo", "--", "one") == "one\n"
    assert msb.ok("run", "-q", "-n", "b", "--", "two") == "two\n"
    assert msb.ok("run", "-q", "-n", "b") == "one\n"  # the command it was created with
    assert msb.ok("exec", "-q", "b", "--", "echo", "exec has none") == "exec has none\n"


# --- scripts ------------------------------------------------------------------------------------


def test_scripts(msb, tmp_path):
    """All three ways to bring a script along; they are on PATH, before the image's programs."""
    file = tmp_path / "from-file"
    file.write_text("#!/bin/sh\necho file $1\n")
    msb.create("b", "--script", r"greet=echo one $1\necho \"two\"",
               "--script-raw", "raw=#!/bin/sh\nprintf 'a\\tb\\n'\n",
               "--script-path", f"filed:{file}",
               "--script", "ls=echo shadowed")
    run = lambda *command: msb.ok("exec", "-q", "b", "--", *command)
    assert run("greet", "x") == "one x\ntwo\n"
    assert run("raw") == "a\tb\n"
    assert run("filed", "y") == "file y\n"
    assert run("ls") == "shadowed\n"
    assert run("sh", "-c", "command -v greet") == "/.msb/scripts/greet\n"
    assert run("sh", "-c", "echo ${PATH%%:*}") == "/.msb/scripts\n"


def test_scripts_use_the_shell_option(msb):
    out = msb.ok("run", "-q", "--shell", "/bin/bash", "--script", "v=echo ${BASH_VERSION:+bash}",
                 "--", "v")
    assert out == "bash\n"


def test_scripts_survive_a_restart(msb):
    msb.create("b", "--script", "hello=echo hi")
    msb.ok("stop", "-q", "b")
    assert msb.ok("exec", "-q", "b", "--", "hello") == "hi\n"


def test_a_missing_script_file(msb):
    p = msb("run", "--script-path", "x:/no/such/file", "--", "true")
    assert p.returncode == 1
    assert b"/no/such/file" in p.stderr
    assert msb.leftovers() == []


# --- tmpfs --------------------------------------------------------------------------------------


def mount_options(m, name, path):
    for line in sh(m, name, "cat /proc/mounts").splitlines():
        dev, where, kind, options = line.split()[:4]
        if where == path:
            return kind, set(options.split(","))
    return None, set()


def test_tmpfs_options(msb):
    msb.create("b", "--tmpfs", "/scratch:16M", "--tmpfs", "/opts:8M:noexec,nosuid,nodev",
               "--tmpfs", "/deep/er", "--tmpfs", "/words:size=4m,noexec")
    kind, options = mount_options(msb, "b", "/scratch")
    assert kind == "tmpfs" and "size=16384k" in options and "noexec" not in options
    kind, options = mount_options(msb, "b", "/opts")
    assert {"rw", "noexec", "nosuid", "nodev", "size=8192k"} <= options
    assert mount_options(msb, "b", "/deep/er")[0] == "tmpfs"
    assert {"noexec", "size=4096k"} <= mount_options(msb, "b", "/words")[1]
    p = msb.sh("b", "echo 'echo hi' >/opts/x; chmod 755 /opts/x; exec /opts/x")
    assert p.returncode == 126


def test_tmpfs_is_full_at_its_size(msb):
    msb.create("b", "--tmpfs", "/scratch:16M")
    p = msb.sh("b", "dd if=/dev/zero of=/scratch/f bs=1M; stat -c %s /scratch/f; rm /scratch/f; "
               "echo ok >/scratch/g && cat /scratch/g")
    assert b"No space left" in p.stderr
    assert p.stdout == b"%d\nok\n" % (16 * MIB)


def test_tmpfs_is_writable_for_all(msb):
    """Like /tmp: any user's commands may use it."""
    out = msb.ok("run", "-q", "-u", "user", "--tmpfs", "/scratch", "--", "sh", "-c",
                 "echo x >/scratch/f && cat /scratch/f")
    assert out == "x\n"


def test_tmpfs_read_only(msb):
    p = msb("run", "-q", "--tmpfs", "/scratch:ro", "--", "sh", "-c", ": >/scratch/f")
    assert p.returncode != 0 and b"Read-only" in p.stderr


def test_tmpfs_does_not_outlive_a_stop(msb):
    msb.create("b", "--tmpfs", "/scratch")
    sh(msb, "b", ": >/scratch/f; : >/root/f")
    msb.ok("stop", "-q", "b")
    assert msb.sh("b", "test -e /root/f && ! test -e /scratch/f").returncode == 0


@pytest.mark.parametrize("bad", ["relative", "/x:nonsense", "/x:ro,rw", "/x:8Q", ""])
def test_bad_tmpfs(msb, bad):
    p = msb("run", "--tmpfs", bad, "--", "true")
    assert p.returncode in (1, 2)
    assert p.stderr.startswith(b"error: ")
    assert msb.leftovers() == []


# --- root disk ----------------------------------------------------------------------------------


def root_kib(m, name):
    """Size of the root file system, as df says."""
    return int(sh(m, name, "df -k / | tail -1").split()[1])


def test_root_disk_size(msb):
    msb.create("b", "--root-disk", "300M")
    assert 200 * 1024 < root_kib(msb, "b") <= 300 * 1024
    msb.create("c")
    assert 3 * 1024 * 1024 < root_kib(msb, "c") <= 4 * 1024 * 1024


def test_full_root_disk(msb):
    """ENOSPC in the guest, a bounded file on the host, and a sandbox that keeps working."""
    msb.create("b", "--root-disk", "100M")
    p = msb.sh("b", "dd if=/dev/zero of=/root/fill bs=1M count=500; sync", timeout=120)
    assert b"No space left" in p.stderr
    blocks = sum(f.stat().st_blocks * 512 for f in (msb.home / "sandboxes" / "b").rglob("*")
                 if f.is_file())
    assert 50 * MIB < blocks < 110 * MIB
    assert msb.ok("exec", "-q", "b", "--", "echo", "alive") == "alive\n"
    sh(msb, "b", "rm /root/fill; sync; echo again >/root/f")
    msb.ok("stop", "-q", "b")
    assert msb.ok("exec", "-q", "b", "--", "cat", "/root/f") == "again\n"


def test_root_disk_without_inodes(msb):
    """Empty files until there is no inode left: an error in the guest, and room again once they are gone."""
    msb.create("b", "--root-disk", "32M")
    fill = "mkdir /root/n; cd /root/n; i=0; while : >$i; do i=$((i+1)); done"
    p = msb.sh("b", f"({fill}); df -i / | tail -n 1; echo x >/root/one-more", timeout=120)
    assert p.stderr.count(b"No space left") == 2, p
    free = int(p.stdout.split()[3])
    assert free == 0
    assert sum(f.stat().st_blocks * 512 for f in (msb.home / "sandboxes" / "b").rglob("*") if f.is_file()) < 40 * MIB
    sh(msb, "b", "rm -r /root/n; sync; echo again >/root/f")
    msb.ok("stop", "-q", "b")
    assert msb.ok("exec", "-q", "b", "--", "cat", "/root/f") == "again\n"


def test_root_disk_in_memory(msb):
    """tmpfs:SIZE: full at that size, and new at every start."""
    msb.create("b", "--root-disk", "tmpfs:32M")
    assert root_kib(msb, "b") == 32 * 1024
    p = msb.sh("b", "dd if=/dev/zero of=/root/fill bs=1M; rm /root/fill; echo x >/root/f; cat /root/f")
    assert b"No space left" in p.stderr and p.stdout == b"x\n"
    msb.ok("stop", "-q", "b")
    assert msb.sh("b", "cat /root/f").returncode == 1
    p = msb("run", "-q", "--root-disk", "tmpfs", "--", "sh", "-c", "echo y >/root/f; cat /root/f")
    assert p.stdout == b"y\n"


@pytest.mark.parametrize("bad", ["0", "x", "-1G", "tmpfs:", "tmpfs:x", "999999P"])
def test_bad_root_disk(msb, bad):
    p = msb("run", f"--root-disk={bad}", "--", "true")
    assert p.returncode in (1, 2)
    assert p.stderr.startswith(b"error: ")
    assert msb.leftovers() == []


# --- who and where ------------------------------------------------------------------------------


def test_hostname(msb):
    out = msb.ok("run", "-q", "-H", "web-1", "--", "sh", "-c",
                 "hostname; cat /etc/hostname; echo $HOSTNAME; grep -c web-1 /etc/hosts")
    assert out == "web-1\nweb-1\nweb-1\n1\n"


def test_hostname_from_the_name(msb):
    """A name is made fit for a host name, and cut to what the kernel takes."""
    name = "A.b_" + "x" * 100
    msb.create(name)
    host = msb.ok("exec", "-q", name, "--", "hostname").strip()
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", host)
    assert host.startswith("A-b-xxx")


def test_user_and_workdir(msb):
    msb.create("b", "-u", "user", "-w", "/usr/bin")
    assert msb.ok("exec", "-q", "b", "--", "sh", "-c", "id -un; pwd; echo $HOME") == \
        "user\n/usr/bin\n/home/user\n"
    assert msb.ok("exec", "-q", "-u", "root", "-w", "/", "b", "--", "sh", "-c", "id -un; pwd") == \
        "root\n/\n"


def test_missing_workdir_is_made(msb):
    """A sandbox's own working directory comes into being, as with Docker; exec's -w does not."""
    assert msb.ok("run", "-q", "-w", "/no/such/dir", "--", "pwd") == "/no/such/dir\n"


def test_impossible_workdir(msb):
    p = msb("run", "-q", "-w", "/etc/passwd/dir", "--", "true")
    assert p.returncode == 1
    assert b"/etc/passwd/dir" in p.stderr
    assert msb.leftovers() == []


def test_unknown_user(msb):
    p = msb("run", "-q", "-u", "no-such-user", "--", "true")
    assert p.returncode == 1
    assert p.stderr.startswith(b"error: ")
    assert msb.leftovers() == []


def test_rlimit(msb):
    out = msb.ok("run", "-q", "--rlimit", "nofile=77:99", "--", "sh", "-c", "ulimit -Sn; ulimit -Hn")
    assert out.split() == ["77", "99"]


# --- memory -------------------------------------------------------------------------------------


def resident_kib(m, name):
    total = 0
    for pid in m.tree(m.monitor_pid(name)):
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        found = re.search(r"VmRSS:\s+(\d+)", status)
        total += int(found.group(1)) if found else 0
    return total


def test_five_gigabytes_start_anywhere(msb):
    """Memory is promised, and taken only as the guest uses it."""
    msb.create("b", "--memory", "5120M")
    kib = int(sh(msb, "b", "grep MemTotal /proc/meminfo").split()[1])
    assert 4.5 * 1024 * 1024 < kib <= 5 * 1024 * 1024
    assert resident_kib(msb, "b") < 512 * 1024


def test_memory_limit_is_the_guests(msb):
    msb.create("b", "--memory", "256M")
    kib = int(sh(msb, "b", "grep MemTotal /proc/meminfo").split()[1])
    assert 200 * 1024 < kib <= 256 * 1024


def test_a_guest_out_of_memory_hurts_only_itself(msb):
    """The guest's kernel kills the eater; the sandbox, and another one, still answer."""
    msb.create("b", "--memory", "256M")
    msb.create("c", "--memory", "256M")
    p = msb.sh("b", "tail /dev/zero", timeout=120)
    assert p.returncode == 137
    assert msb.ok("exec", "-q", "b", "--", "echo", "alive") == "alive\n"
    assert msb.ok("exec", "-q", "c", "--", "echo", "alive") == "alive\n"
    assert msb.status("b") == "Running"


def test_a_fork_bomb_hurts_only_itself(msb):
    """Processes run out in the guest; once the bomb is gone the sandbox answers again."""
    msb.create("b", "--memory", "256M")
    p = msb("exec", "-q", "--timeout", "3s", "b", "--", "sh", "-c",
            "f() { f | f & f; }; f 2>/dev/null", timeout=120)
    assert p.returncode in (124, 2, 1, 137, 139)
    msb.ok("stop", "-q", "-t", "2", "b", timeout=PATIENCE)
    assert msb.ok("exec", "-q", "b", "--", "echo", "alive") == "alive\n"


# --- CPUs ---------------------------------------------------------------------------------------


def test_more_cpus_than_the_engine_has_warns_once(msb):
    p = msb("run", "--cpus", "2", "--", "nproc")
    assert p.returncode == 0
    warnings = [line for line in p.stderr.splitlines() if line.startswith(b"warn:")]
    if p.stdout == b"1\n":
        assert len(warnings) == 1 and b"--cpus 2" in warnings[0]
    else:
        assert (p.stdout, len(warnings)) == (b"2\n", len(os.sched_getaffinity(0)) == 1)


def test_quiet_silences_that_warning(msb):
    p = msb("run", "-q", "--cpus", "2", "--", "true")
    assert (p.returncode, p.stdout, p.stderr) == (0, b"", b"")


def cpu_seconds(m, name):
    """CPU time that a sandbox's processes have used so far."""
    ticks = 0
    for pid in m.tree(m.monitor_pid(name)):
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        ticks += sum(map(int, stat.rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def test_half_a_cpu(msb):
    """Either the quota holds, or the user is told that it will not."""
    p = msb("create", "-n", "b", "--cpus", "0.5")
    assert p.returncode == 0
    warned = any(line.startswith(b"warn:") and b"0.5" in line for line in p.stderr.splitlines())
    eater = msb.popen("exec", "-q", "b", "--", "sh", "-c", "echo up; while :; do :; done", **pipes())
    assert eater.stdout.readline() == b"up\n"
    used, since = cpu_seconds(msb, "b"), time.monotonic()
    time.sleep(2)
    share = (cpu_seconds(msb, "b") - used) / (time.monotonic() - since)
    eater.kill()
    finish(eater)
    assert warned or 0.05 < share < 0.7, (share, p.stderr)


def test_a_cpu_share_leaves_no_group(msb):
    """Whatever way a sandbox ends, its cgroup is gone with it."""
    def groups():
        return {str(p) for p in pathlib.Path("/sys/fs/cgroup").glob("**/msb-*-share*")}

    msb.ok("run", "-q", "-n", "share1", "--cpus", "0.5", "--", "true")
    msb.ok("rm", "-q", "share1")
    for i in range(10):
        msb.create("share2", "--cpus", "0.5")
        msb.ok("rm", "-f", "-q", "share2")
    assert groups() == set()
