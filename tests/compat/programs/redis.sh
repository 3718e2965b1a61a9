# shellcheck shell=sh disable=SC1091
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1

cli() { redis-cli -p 7001 "$@"; }

serve() { # PORT OPTIONS...
    port=$1
    shift
    mkdir -p "$port"
    redis-server --port "$port" --dir "$port" --daemonize yes --save '' "$@" >/dev/null
    patiently redis-cli -p "$port" ping
}

check 'start' serve 7001 --appendonly yes --io-threads 2
check 'benchmark' redis-benchmark -p 7001 -q -n 5000 -c 20 -P 4 -t set,get,incr,lpush,zadd,mset
cli debug populate 20000 key 100 >/dev/null
gives 'script' '^300$' cli eval 'local s = 0 for i = 1, 24 do s = s + i end return s' 0
before=$(cli debug digest)
gives 'snapshot by fork' 'started' cli bgsave
saved() { cli info persistence | grep -q 'rdb_bgsave_in_progress:0' && cli info persistence | grep -q 'rdb_last_bgsave_status:ok'; }
check 'snapshot ends' patiently saved
gives 'rewrite the log' 'started' cli bgrewriteaof
rewritten() { cli info persistence | grep -q 'aof_rewrite_in_progress:0' && cli info persistence | grep -q 'aof_last_bgrewrite_status:ok'; }
check 'rewrite ends' patiently rewritten
check 'replica' serve 7002 --replicaof '127.0.0.1 7001'
alike() { [ "$(redis-cli -p 7002 debug digest)" = "$(cli debug digest)" ]; }
check 'replica is alike' patiently alike
cli config set appendfsync always >/dev/null
kill -9 "$(cli info server | sed -n 's/process_id:\([0-9]*\).*/\1/p')"
check 'start after kill -9' serve 7001 --appendonly yes
gives 'data is the same' "^$before$" cli debug digest
redis-cli -p 7002 shutdown nosave 2>/dev/null
cli shutdown nosave 2>/dev/null
true
