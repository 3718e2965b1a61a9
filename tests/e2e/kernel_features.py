"""Runs in a guest, with the host's Python: kernel features for which there is no program everywhere.

    kernel_features.py NAME

Each check prints one line.
"""
import base64
import ctypes
import os
import socket
import struct
import subprocess
import sys
import zlib

# A directory d with a file f, made by mksquashfs (zstd).
SQUASHFS = """
eNrLKC4sZmaAASYGRiDJxiDI4MDEyMACZDtAZd5A6SdQ+j8UZEL5C6D0NTT54sLSxOKM1BQuUwaNrfp/FRJSGRk+ObLxPnjJYMzAcOSi6rFpQcvs
dfx/n4/ba/9ssSQbg3abxKrXQW2NPkw3Yz6wKUG0aZ1lYGg6yMz+wbJKNMJoaVD44nWrrCSYGNZP5IlhFGhIgNrKyQD2AMMRKJ+lAUTeYxgFo2AU
jIJRMApGwSgYBaNgFIyCUTAKRjYAAHXrPsw="""

SYS_BPF = 321
BPF_PROG_LOAD, BPF_PROG_ATTACH = 5, 8
BPF_PROG_TYPE_SOCKET_FILTER, BPF_PROG_TYPE_CGROUP_DEVICE = 1, 15
BPF_CGROUP_DEVICE = 6
# r0 = 0; exit: allows nothing
NOTHING = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attr):
    attr = ctypes.create_string_buffer(attr, 128)
    r = libc.syscall(SYS_BPF, command, attr, 128)
    if r < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return r


def load(kind):
    code, license_ = ctypes.create_string_buffer(NOTHING), ctypes.create_string_buffer(b"GPL")
    return bpf(BPF_PROG_LOAD, struct.pack("<IIQQ", kind, len(NOTHING) // 8, ctypes.addressof(code),
                                          ctypes.addressof(license_)))


def bpf_devices():
    """A cgroup whose processes may open no device, which is how container engines close devices."""
    group = "/sys/fs/cgroup/closed"
    os.mkdir(group)
    directory = os.open(group, os.O_RDONLY)
    bpf(BPF_PROG_ATTACH, struct.pack("<IIII", directory, load(BPF_PROG_TYPE_CGROUP_DEVICE), BPF_CGROUP_DEVICE, 0))
    open("/dev/zero", "rb").close()
    pid = os.fork()
    if pid == 0:
        with open(f"{group}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
        try:
            os.open("/dev/zero", os.O_RDONLY)
            os._exit(0)
        except PermissionError:
            os._exit(7)
    print("refused" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7 else "opened")


def bpf_of_a_user():
    os.setuid(65534)
    try:
        load(BPF_PROG_TYPE_SOCKET_FILTER)
        print("loaded")
    except PermissionError:
        print("refused")


def mounted(kind, image, path):
    """What a file of a mounted image says."""
    os.makedirs("/tmp/m", exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", "loop,ro", image, "/tmp/m"], check=True)
    try:
        with open(f"/tmp/m/{path}") as f:
            return f.read().strip()
    finally:
        subprocess.run(["umount", "/tmp/m"], check=True)


def squashfs():
    with open("/tmp/s.img", "wb") as f:
        f.write(zlib.decompress(base64.b64decode(SQUASHFS)))
    print(mounted("squashfs", "/tmp/s.img", "d/f"))


def both(code, n):
    """A number as ISO 9660 has it, in both byte orders."""
    return struct.pack("<" + code, n) + struct.pack(">" + code, n)


def iso_entry(name, sector, size, flags):
    body = b"\0" + both("I", sector) + both("I", size) + bytes(7) + bytes([flags, 0, 0]) + both("H", 1)
    body += bytes([len(name)]) + name + bytes(1 - len(name) % 2)
    return bytes([len(body) + 1]) + body


def iso9660():
    text = b"burnt\n"
    root = iso_entry(b"\0", 18, 2048, 2)
    head = b"\1CD001\1\0" + b" " * 64 + bytes(8) + both("I", 20) + bytes(32) + both("H", 1) + both("H", 1)
    head += both("H", 2048) + both("I", 0) + bytes(16) + root
    listing = root + iso_entry(b"\1", 18, 2048, 2) + iso_entry(b"README.TXT;1", 19, len(text), 0)
    sectors = [b""] * 16 + [head.ljust(881, b" ") + b"\1", b"\xffCD001\1", listing, text]
    with open("/tmp/i.img", "wb") as f:
        f.write(b"".join(s.ljust(2048, b"\0") for s in sectors))
    print(mounted("iso9660", "/tmp/i.img", "readme.txt"))


def vsock_loopback():
    with socket.socket(socket.AF_VSOCK) as server, socket.socket(socket.AF_VSOCK) as client:
        server.bind((socket.VMADDR_CID_ANY, 5000))
        server.listen()
        client.connect((1, 5000))
        client.sendall(b"to itself")
        print(server.accept()[0].recv(100).decode())


globals()[sys.argv[1]]()
