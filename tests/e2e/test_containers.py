"""What container engines inside a sandbox need of it."""
import io
import tarfile

import pytest

import imagekit
from guest import sh


@pytest.fixture
def store_image(tmp_path):
    """A root with directories for containers: one empty, one that the image has put something into."""
    root = tmp_path / "root"
    t = imagekit.add_system(imagekit.add_shell(imagekit.Tar()))
    t.dir("var/lib")
    t.dir("var/lib/containers", 0o711)
    t.dir("var/lib/docker")
    t.add("var/lib/docker/here", "of the image\n")
    with tarfile.open(fileobj=io.BytesIO(t.bytes())) as tar:
        tar.extractall(root)
    return root


def test_devices_for_ordinary_users(msb):
    """Rootless engines mount with /dev/fuse and make networks with /dev/net/tun."""
    msb.create("a")
    assert sh(msb, "a", "stat -c %a /dev/fuse /dev/net/tun") == "666\n666\n"
    msb.ok("exec", "-q", "--user", "65534", "a", "--", "sh", "-c", "exec 3<>/dev/fuse 4<>/dev/net/tun")


def test_overlay_in_the_store(msb, store_image):
    """An overlay cannot lie on another: the store is on the file system below, and is kept there."""
    msb.ok("create", "-q", "-n", "a", str(store_image))
    script = ("cd /var/lib/containers && mkdir l u w m && echo low >l/f && "
              "mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m && echo up >m/g && rm m/f && ls m u && umount m")
    assert sh(msb, "a", script) == "m:\ng\n\nu:\nf\ng\n"
    assert sh(msb, "a", "stat -c %a /var/lib/containers; cat /var/lib/docker/here") == "711\nof the image\n"
    msb.ok("stop", "-q", "a")
    msb.ok("start", "-q", "a")
    assert sh(msb, "a", "ls /var/lib/containers/u; cat /var/lib/docker/here") == "f\ng\nof the image\n"
