# shellcheck shell=sh disable=SC1091,SC2154
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1
export GOCACHE="$PWD/cache" GOFLAGS=-mod=mod GOTOOLCHAIN=local HOME="$PWD" CGO_ENABLED=0

cat >main.go <<'END'
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func main() {
	var wg sync.WaitGroup
	c := make(chan int, 16)
	for i := 0; i < 1000; i++ {
		wg.Add(1)
		go func(n int) { defer wg.Done(); c <- n }(i)
	}
	go func() { wg.Wait(); close(c) }()
	sum := 0
	for n := range c {
		sum += n
	}
	fmt.Println("goroutines", sum)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))
	r, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		panic(err)
	}
	b, _ := io.ReadAll(r.Body)
	fmt.Println("http", string(b))

	out, err := exec.Command("sh", "-c", "echo child").Output()
	fmt.Print("exec ", string(out))

	s := make(chan os.Signal, 1)
	signal.Notify(s, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	select {
	case <-s:
		fmt.Println("signal caught")
	case <-time.After(30 * time.Second):
		fmt.Println("signal lost")
	}
	defer func() { fmt.Println("panic", recover() != nil) }()
	var p *int
	*p = 1
}
END
check 'build' go build -o main main.go
for line in 'goroutines 499500' 'http hello' 'exec child' 'signal caught' 'panic true'; do
    gives "${line% *}" "^$line$" ./main
done
# The standard library's own tests, where they meet the kernel; with the names of what fails.
[ $# -gt 0 ] || set -- sync time os os/signal os/exec io/fs path/filepath net syscall context
for package; do
    if go test -short -timeout 15m "$package" >"$checked" 2>&1; then
        echo "test $package: ok"
    else
        echo "test $package: fails: $(sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p' "$checked" | sort | tr '\n' ' ')"
        sed "s/^/  $package| /" "$checked" | tail -n 20 >&2
    fi
done
