# shellcheck shell=sh disable=SC1091,SC2016
# Containers with the default network, root's and an ordinary user's.
. "$(dirname "$0")/lib.sh"
dir=$(mktemp -d)
cd "$dir" || exit 1
chmod 755 "$dir"
mkdir -p ctr/bin ctr/etc ctr/proc ctr/sys ctr/dev ctr/tmp ctr/www /home/tester
cp /bin/busybox ctr/bin/
ln -s busybox ctr/bin/sh
echo hello >ctr/www/index.html
grep -q '^tester:' /etc/subuid || {
    echo tester:100000:65536 >>/etc/subuid
    echo tester:100000:65536 >>/etc/subgid
}
mkdir -p /run/tester
chown -R 1000:1000 /home/tester /run/tester
tar -C ctr -c . >ctr.tar

rootful() { podman --cgroup-manager=cgroupfs "$@"; }
rootless() {
    (cd /home/tester && setpriv --reuid=1000 --regid=1000 --clear-groups env -i PATH="$PATH" HOME=/home/tester \
        XDG_RUNTIME_DIR=/run/tester podman --cgroup-manager=cgroupfs "$@")
}
published() { [ "$(curl -sf --max-time 5 "http://127.0.0.1:$1/")" = hello ]; }
addressed() { patiently published "$1"; }

for who in rootful rootless; do
    check "$who, import an image" $who import "$dir/ctr.tar" localhost/ctr
    gives "$who, run" '^uid=0' $who run --rm localhost/ctr busybox id
    gives "$who, default network" 'inet 10\.' $who run --rm localhost/ctr busybox ip -4 addr
    gives "$who, limits" '^33$' $who run --rm --pids-limit 33 localhost/ctr busybox cat /sys/fs/cgroup/pids.max
    gives "$who, devices are closed" 'Operation not permitted' $who run --rm --cap-add mknod localhost/ctr sh -c 'busybox mknod m b 254 0 && exec 3<m'
    port=$([ $who = rootful ] && echo 8091 || echo 8092)
    check "$who, publish a port" $who run -d --name www -p "$port:80" localhost/ctr busybox httpd -f -h /www
    check "$who, and reach it" addressed "$port"
    gives "$who, exec" '^hello$' $who exec www busybox cat /www/index.html
    check "$who, commit" $who commit -q www localhost/www
    check "$who, remove" $who rm -f -t 0 www
done
