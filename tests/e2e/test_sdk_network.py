"""The SDK's network: nothing by default, exactly the hosts that were named, ports to the inside."""
import socket

from netkit import WEB
from sdkkit import BASE, client_of, go, sdk

FETCH = """
import sys, urllib.request
try:
    print("reached", urllib.request.urlopen(sys.argv[1], timeout=20).status)
except OSError as e:
    print("failed", e)
"""


def test_egress(outside, internet):
    def asked():  # also by tests before this one
        return [internet.asked(name) for name in ("other.org", "www.example.com")]

    async def run():
        before = asked()
        spec = sdk.SandboxSpec(name="e", egress=("example.com",))
        async with await outside.create(spec) as sb:
            async def fetch(url):
                return (await sb.exec("python", ["-c", FETCH, url], timeout=60)).stdout

            assert await fetch("http://example.com/") == "reached 200\n"
            for url in ("http://other.org/", "http://www.example.com/", f"http://{WEB}:7000/",
                        "http://169.254.169.254/", "http://10.9.9.9/"):
                assert (await fetch(url)).startswith("failed"), url
            assert asked() == before
        async with await outside.create(sdk.SandboxSpec(name="n")) as sb:
            r = await sb.exec("python", ["-c", FETCH, "http://example.com/"], timeout=60)
            assert r.stdout.startswith("failed")
        async with await outside.create(sdk.SandboxSpec(name="p", network="public")) as sb:
            r = await sb.exec("python", ["-c", FETCH, "http://other.org/"], timeout=60)
            assert r.stdout == "reached 200\n"

    go(run())


def test_ports(msb):
    async def run():
        client = client_of(msb)
        spec = sdk.SandboxSpec(name="p", image=BASE, ports=("0:8080",))
        async with await client.create(spec) as sb:
            address, port = (await sb.ports())[8080]
            async with await sb.spawn("nc", ["-l", "-p", "8080"]) as p:
                while not (await sb.shell("netstat -ltn | grep :8080")).ok:
                    pass
                with socket.create_connection((address, port), timeout=20) as c:
                    c.sendall(b"hello")
                    c.shutdown(socket.SHUT_WR)
                    assert (await p.wait()).stdout == "hello"

    go(run())
