# shellcheck shell=sh disable=SC1091,SC2016
# Programs that a machine with msb's tests has anyway: the short form of all this.
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1
export HOME="$PWD"

cat >prog.c <<'END'
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long sum;
static sigjmp_buf out;
static void *add(void *n)
{
    for (int i = 0; i < 10000; i++) {
        pthread_mutex_lock(&lock);
        sum += (long)n;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}
static void on_fault(int sig) { siglongjmp(out, sig); }
int main(void)
{
    pthread_t t[8];
    for (long i = 0; i < 8; i++)
        pthread_create(&t[i], NULL, add, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(t[i], NULL);
    int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0)
        _exit(*shared = 5);
    int st;
    wait(&st);
    mprotect(shared, 4096, PROT_READ);
    signal(SIGSEGV, on_fault);
    int sig = sigsetjmp(out, 1);
    if (!sig)
        *shared = 1;
    printf("%ld %d %d %d\n", sum, WEXITSTATUS(st), *shared, sig);
    return 0;
}
END
check 'cc' cc -O2 -pthread -o prog prog.c
gives 'threads, fork and faults' '^280000 5 5 11$' ./prog
gives 'strace' 'exited with 0' strace -f -e trace=clone3,mmap ./prog

cat >pool.py <<'END'
import asyncio, multiprocessing, signal, sqlite3, sys, threading
def square(n): return n * n
async def child():
    p = await asyncio.create_subprocess_exec("sh", "-c", "echo from a child", stdout=asyncio.subprocess.PIPE)
    return (await p.communicate())[0].decode().strip()
if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        total = sum(pool.map(square, range(100)))
    rang = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: rang.set())
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while not rang.is_set():
        signal.pause()
    db = sqlite3.connect("db")
    db.execute("pragma journal_mode=wal")
    db.execute("create table t (n)")
    db.executemany("insert into t values (?)", ((n,) for n in range(1000)))
    db.commit()
    print(total, asyncio.run(child()), db.execute("select sum(n) from t").fetchone()[0])
END
gives 'Python' '^328350 from a child 499500$' python3 pool.py

cat >work.js <<'END'
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (!isMainThread) { parentPort.postMessage([...Array(1000).keys()].reduce((a, b) => a + b)); } else {
    new Worker(__filename).on('message', n => {
        const server = require('http').createServer((q, r) => r.end(String(n))).listen(0, '127.0.0.1', () =>
            require('http').get(server.address(), r => r.on('data', d => {
                console.log(require('child_process').execSync('echo ' + d).toString().trim());
                server.close();
            })));
    });
}
END
gives 'Node.js' '^499500$' node work.js
gives 'Perl' '^child 3$' perl -e 'pipe(R, W); if (!fork) { print W "child "; exit 3 } close W; print <R>; wait; print $? >> 8, "\n"'
repository() {
    git init -q r && cd r && seq 20000 >f && git add f && git -c user.name=n -c user.email=e@example.com commit -qm one &&
        git gc -q && git fsck --strict
}
check 'git' repository
gives 'ps aux' '^[^ ]+ +[0-9]+ .* ps aux$' ps aux
gives 'ps -ef' '^[^ ]+ +[0-9]+ .* ps -ef$' ps -ef
gives 'top' '^ *[0-9]+ .* top$' top -bn1
gives 'vmstat' '^( *[0-9]+){17,}$' vmstat
check 'xz, by several threads' sh -c 'head -c 3000000 /bin/bash >b && xz -kT2 b && xz -dc b.xz | cmp - b'
printf 'version: 0.1\nstorage:\n  inmemory:\nhttp:\n  addr: 127.0.0.1:5099\n' >registry.yml
docker-registry serve registry.yml >/dev/null 2>&1 &
fetch() { python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:5099/v2/").read())'; }
check 'a server in Go' patiently fetch
kill $!
