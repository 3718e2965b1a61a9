# shellcheck shell=sh disable=SC1091
# CPython's own suite, a process for each module; the network that it does not have here is not asked for.
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1
python3 -m test -j"$(nproc)" --timeout 600 -u all,-network,-urlfetch,-largefile,-audio,-gui,-cpu,-tzdata "$@" >/tmp/cpython.out 2>&1
sed -nE 's/^[0-9:.]+ (load avg: [0-9.]+ )?\[ *[0-9]+\/[0-9]+(\/[0-9]+)?\] (test_[a-z0-9_.]+) (passed|skipped|failed|crashed|timed out|run no tests).*/\3: \4/p' /tmp/cpython.out |
    sed 's/: passed$/: ok/' | sort -u
grep -E '^(FAIL|ERROR): ' /tmp/cpython.out | sed 's/^/  cpython| /' >&2
