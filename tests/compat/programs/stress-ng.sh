# shellcheck shell=sh disable=SC1091,SC2046
# Every stressor for a second, as root, each by itself and verified. Those that load the machine's hardware, end the
# session or need another kernel are not for sharing a machine with.
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1
leave='|bad-ioctl|binderfs|branch|clock|cpu-online|cyclic|dev|dev-shm|enosys|fault|hrtimers|l1cache|lockbus|module|mlockmany|netlink-proc|oom-pipe|opcode|physpage|pageswap|quota|ramfs|rdrand|resources|rtc|schedpolicy|smi|softlockup|spawn|sysbadaddr|sysfs|sysinval|softlockup|watchdog|x86syscall|apparmor|bigheap|brk|klog|kvm|loop|mergesort|'

[ $# -gt 0 ] || set -- $(stress-ng --stressors)
for s; do
    case $leave in *"|$s|"*) continue ;; esac
    timeout -k 5 60 stress-ng --"$s" 1 --timeout 1 --verify --oomable --no-rand-seed >/tmp/stress.out 2>&1
    status=$?
    case $status in
        0) echo "$s: ok" ;;
        3 | 4) echo "$s: not here" ;;
        124 | 137) echo "$s: does not end" ;;
        *) echo "$s: failed"
           sed "s/^/  $s| /" /tmp/stress.out | grep -E 'fail|error' | head -n 5 >&2 ;;
    esac
done
