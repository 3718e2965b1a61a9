# shellcheck shell=sh disable=SC1091,SC2016
# Docker as it starts by itself: a bridge, NAT by iptables, overlay2, limits by cgroups, devices closed by BPF, seccomp.
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1
export HOME="$PWD" PATH=/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p ctr/bin ctr/www
cp /bin/busybox ctr/bin/
ln -s busybox ctr/bin/sh
echo hello >ctr/www/index.html
tar -C ctr -c . >ctr.tar
printf 'FROM ctr\nCOPY Dockerfile /recipe\nRUN ["busybox", "touch", "/made"]\n' >Dockerfile
cp -r ctr/www www

serve() { docker run -d --name "$@" ctr busybox httpd -f -h /www; } # NAME OPTION...
status() {
    "$@"
    echo "status $?"
}
get() { timeout 10 busybox wget -q -O - "http://$1/"; }
from_container() { docker run --rm ctr busybox timeout 10 busybox wget -q -O - "http://$1/"; }
www_has() { docker inspect -f "{{range .NetworkSettings.Networks}}{{.$1}}{{end}}" www; }
in_a_network_of_its_own() {
    docker network create own && serve named --network own &&
        docker run --rm --network own ctr busybox timeout 10 busybox wget -q -O - http://named/
}

dockerd >dockerd.log 2>&1 &
daemon=$!
check 'the daemon starts' patiently docker version
gives 'stores layers with overlay2' '^overlay2$' docker info -f '{{.Driver}}'
check 'import an image' docker import ctr.tar ctr
gives 'run' '^uid=0' docker run --rm ctr busybox id
gives 'exit status' '^status 7$' status docker run --rm ctr sh -c 'exit 7'
gives 'a signal ends it' '^status 143$' status docker run --rm --init ctr sh -c 'kill -TERM $$'
gives 'memory limit' '^33554432$' docker run --rm --memory 32m ctr busybox cat /sys/fs/cgroup/memory.max
gives 'devices are closed' 'Operation not permitted' docker run --rm ctr sh -c 'busybox mknod /m b 254 0 && exec 3</m'
gives 'seccomp' '^Seccomp:.*2$' docker run --rm ctr busybox cat /proc/self/status
gives 'a share' '^hello$' docker run --rm -v "$PWD/www:/www:ro" ctr busybox cat /www/index.html

check 'a server in the background' serve www --pids-limit 33 -p 8093:80
gives 'exec' '^33$' docker exec www busybox cat /sys/fs/cgroup/pids.max
gives 'exit status of exec' '^status 5$' status docker exec www sh -c 'exit 5'
check 'its address answers' patiently get "$(www_has IPAddress)"
gives 'published port' '^hello$' get 127.0.0.1:8093
gives 'one container reaches another' '^hello$' from_container "$(www_has IPAddress)"
busybox httpd -f -p 8094 -h www &
gives 'a container reaches its host' '^hello$' from_container "$(www_has Gateway):8094"
kill $!
gives 'by name in a network of its own' '^hello$' in_a_network_of_its_own
docker exec www busybox touch /new
gives 'diff' '^A /new$' docker diff www
check 'pause and go on' sh -c 'docker pause www && docker unpause www'
check 'commit' docker commit www changed
check 'what was committed is there' docker run --rm changed busybox test -e /new
check 'build' docker build -q -t built .
check 'what was built is there' docker run --rm built busybox test -e /made -a -e /recipe
check 'stop and start again' sh -c 'docker stop -t 0 www && docker start www'
check 'remove' docker rm -f www named
kill $daemon
check 'the daemon ends' patiently sh -c "! kill -0 $daemon"
sed -n 's/.*level=\(error\|fatal\)/  dockerd| &/p' dockerd.log >&2
