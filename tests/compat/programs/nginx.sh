# shellcheck shell=sh disable=SC1091,SC2016
. "$(dirname "$0")/lib.sh"
dir=$(mktemp -d)
cd "$dir" || exit 1
chmod 755 "$dir"
mkdir www
seq 200000 >www/numbers
head -c 3000000 /dev/urandom >www/big
cat >nginx.conf <<END
worker_processes 2;
pid $dir/pid;
error_log $dir/errors;
events { worker_connections 256; }
http {
    access_log $dir/access;
    sendfile on;
    aio threads;
    gzip on;
    gzip_types *;
    server { listen 8081 reuseport; root $dir/www; }
    server { listen 8082; listen unix:$dir/socket; location / { proxy_pass http://127.0.0.1:8081; } }
}
END
run() { nginx -c "$dir/nginx.conf" -e "$dir/errors" "$@"; }
get() { curl -sf "$@"; }
same() { get "$1" | cmp - "$2"; }

check 'start' run
check 'sendfile' same http://127.0.0.1:8081/big www/big
check 'proxy' same http://127.0.0.1:8082/big www/big
check 'UNIX socket' get --unix-socket socket http://localhost/big -o /dev/null
gives 'compression' '^Content-Encoding: gzip' get -D- -o /dev/null -H 'Accept-Encoding: gzip' http://127.0.0.1:8081/numbers
gives 'range' '^206$' get -o /dev/null -w '%{http_code}\n' -r 100-199 http://127.0.0.1:8081/big
many() { seq 200 | xargs -P 8 -n 25 sh -c 'for i; do curl -sf -o /dev/null http://127.0.0.1:8082/numbers?$i || exit 255; done' sh; }
check '200 requests, 8 at a time' many
check 'reload' run -s reload
check 'after the reload' patiently same http://127.0.0.1:8081/big www/big
check 'reopen logs' run -s reopen
gone() { ! get http://127.0.0.1:8081/; }
check 'quit' run -s quit
check 'is gone' patiently gone
