"""What containers and programs with networks of their own ask of the guest's kernel."""
import pathlib

import pytest

from conftest import make_tools_image, need
from guest import sh

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def tools(module_msb, tmp_path_factory):
    """A sandbox with the host's programs, for all tests of this module."""
    need("python3", "unshare")
    image = make_tools_image(tmp_path_factory.mktemp("tools") / "image")
    module_msb.ok("create", "-q", "-n", "tools", "-v", "/usr:/usr:ro", "-v", f"{HERE}:/c:ro", str(image))
    return lambda script: sh(module_msb, "tools", "set -e; " + script)


def check(tools, name):
    return tools(f"python3 /c/kernel_features.py {name}")


def test_bpf_closes_the_devices_of_a_cgroup(tools):
    assert check(tools, "bpf_devices") == "refused\n"


def test_nat_behind_a_bridge(tools):
    """As container engines make networks: the host in front sees the guest's address, not the container's."""
    need("ip")
    assert tools("""
        mkdir -p /run/netns
        for n in behind front; do ip netns add $n; ip -n $n link set lo up; done
        ip link add br0 type bridge && ip link set br0 up && ip addr add 10.1.0.1/24 dev br0
        ip link add b0 type veth peer name eth0 netns behind && ip link set b0 master br0 up
        ip -n behind addr add 10.1.0.2/24 dev eth0 && ip -n behind link set eth0 up
        ip -n behind route add default via 10.1.0.1
        ip link add f0 type veth peer name eth0 netns front && ip link set f0 up && ip addr add 10.2.0.1/24 dev f0
        ip -n front addr add 10.2.0.2/24 dev eth0 && ip -n front link set eth0 up
        echo 1 >/proc/sys/net/ipv4/ip_forward
        iptables -t nat -A POSTROUTING -s 10.1.0.0/24 ! -d 10.1.0.0/24 -m comment --comment out -j MASQUERADE
        iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        iptables -t nat -A PREROUTING -p tcp --dport 81 -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.1.0.2:80
        serve="import socket; s = socket.create_server(('', 80)); print('up', flush=True); print(s.accept()[1][0])"
        call="import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)"
        for try in 'front behind 10.2.0.2 80' 'behind front 10.2.0.1 81'; do
            set -- $try
            ip netns exec $1 python3 -c "$serve" >/tmp/seen &
            until grep -q up /tmp/seen; do sleep 0.05; done
            ip netns exec $2 python3 -c "$call" $3 $4
            wait $!
            tail -n 1 /tmp/seen
        done
    """) == "10.2.0.1\n10.2.0.2\n"


def test_links_and_routes(tools):
    need("ip")
    assert tools("""
        unshare -n sh -ec '
            ip link add d0 type dummy && ip link set d0 up
            ip link add link d0 name d0.5 type vlan id 5 && ip addr add 10.5.0.1/24 dev d0.5 && ip link set d0.5 up
            ip rule add from 10.5.0.1 lookup 100 && ip route add 192.0.2.0/24 dev d0 table 100
            ip route get 192.0.2.7 from 10.5.0.1 | head -n 1 | cut -d " " -f 5'
    """) == "d0\n"


def test_netem_loses_packets(tools):
    need("ip")
    assert tools("""
        unshare -n sh -ec '
            ip link set lo up
            send="import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((\\"127.0.0.1\\", 0))
s.sendto(b\\"x\\", s.getsockname()); s.settimeout(0.2)
try: print(s.recv(9))
except OSError: print(\\"lost\\")"
            tc qdisc add dev lo root netem loss 100% && python3 -c "$send"
            tc qdisc change dev lo root netem loss 0% delay 1ms && python3 -c "$send"'
    """) == "lost\nb'x'\n"


def test_file_systems_of_images(tools):
    assert check(tools, "squashfs") == "squashed\n"
    assert check(tools, "iso9660") == "burnt\n"
    assert tools("""
        truncate -s 1M /tmp/f.img && busybox mkdosfs /tmp/f.img && mkdir -p /tmp/f && mount -t vfat -o loop /tmp/f.img /tmp/f
        echo long >"/tmp/f/A long name.text" && umount /tmp/f && mount -t vfat -o loop,ro /tmp/f.img /tmp/f
        cat "/tmp/f/A long name.text" && umount /tmp/f
    """) == "long\n"


def test_swap_in_compressed_memory(tools):
    """On request: there is no such device before."""
    assert tools("""
        ls /sys/block | grep -c zram || true
        n=$(cat /sys/class/zram-control/hot_add) && echo 16M >/sys/block/zram$n/disksize
        busybox mkswap /dev/zram$n >/dev/null && swapon /dev/zram$n && grep -c zram /proc/swaps
        swapoff /dev/zram$n && echo $n >/sys/class/zram-control/hot_remove
    """) == "0\n1\n"


def test_vsock_loopback(tools):
    assert check(tools, "vsock_loopback") == "to itself\n"


def test_what_tools_read(tools):
    out = tools("""
        zcat /proc/config.gz | grep -c ^CONFIG_NF_TABLES=y
        grep -c some /proc/pressure/memory
        mount -t securityfs securityfs /sys/kernel/security && cat /sys/kernel/security/lsm
    """)
    assert out.split() == ["1", "1", "capability,landlock"]


def test_ordinary_users_get_neither_bpf_nor_the_log(tools):
    assert check(tools, "bpf_of_a_user") == "refused\n"
    assert "not permitted" in tools("setpriv --reuid=65534 dmesg 2>&1 || true")


def test_no_interface_that_nobody_asked_for(tools):
    assert "dummy" not in tools("unshare -n ls /sys/class/net; ip -o link")
