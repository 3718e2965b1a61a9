# shellcheck shell=sh
# Sourced by the programs' scripts.  A line "NAME: RESULT" on standard output is
# something to compare between places; all else goes to standard error.

checked=$(mktemp)

# check NAME COMMAND...  is ok if the command succeeds.
check() {
    name=$1
    shift
    if "$@" >"$checked" 2>&1 </dev/null; then
        echo "$name: ok"
    else
        echo "$name: failed, status $?"
        sed "s/^/  $name| /" "$checked" | tail -n 20 >&2
    fi
}

# gives NAME EXPECTED COMMAND...  is ok if the command's output has a line that matches.
gives() {
    name=$1 expected=$2
    shift 2
    "$@" >"$checked" 2>&1 </dev/null
    if grep -Eq -- "$expected" "$checked"; then
        echo "$name: ok"
    else
        echo "$name: failed"
        sed "s/^/  $name| /" "$checked" | tail -n 20 >&2
    fi
}

# patiently COMMAND...  tries for a minute.
patiently() {
    tries=600
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1
    done
}
