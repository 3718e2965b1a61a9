# shellcheck shell=sh disable=SC1091
. "$(dirname "$0")/lib.sh"
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
dir=$(mktemp -d)
cd "$dir" || exit 1
chown postgres "$dir"

as() { setpriv --reuid=postgres --regid=postgres --clear-groups env PATH="$PATH" PGHOST="$dir" PGDATA="$dir/data" "$@"; }
sql() { as psql -XAtq -c "$1" postgres; }
start() { as pg_ctl -w -t 120 -l "$dir/log" -o "-k $dir -h '' -c shared_buffers=64MB" start; }

check 'initdb' as initdb -N -A trust
check 'start' start
check 'load' as pgbench -q -i -s 2 postgres
check 'pgbench, mixed' as pgbench -n -c 4 -j 2 -t 200 postgres
check 'pgbench, reading' as pgbench -n -S -c 4 -j 2 -t 1000 -M prepared postgres
gives 'balances agree' '^t$' sql 'select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)'
gives 'parallel query' '^200000$' sql 'set min_parallel_table_scan_size=0; set parallel_setup_cost=0; select count(*) from pgbench_accounts'
gives 'sort on disk' '^500000$' sql "set work_mem='64kB'; select max(x) from (select x from generate_series(1,500000) x order by -x offset 0) s"
check 'vacuum' sql 'vacuum full analyze pgbench_accounts'
sum=$(sql 'select sum(abalance), count(*) from pgbench_accounts')
kill -9 "$(head -n 1 data/postmaster.pid)"
sleep 1
check 'start after kill -9' start
gives 'data is the same' "^${sum%|*}\|${sum#*|}$" sql 'select sum(abalance), count(*) from pgbench_accounts'
check 'stop' as pg_ctl -m fast -w stop
