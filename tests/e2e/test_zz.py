import time, subprocess, statistics, pathlib
import test_intercept
from test_intercept import *
from test_intercept import servers, box, curl
for k in [k for k in dir(test_intercept) if k.startswith("test_")]:
    globals().pop(k, None)
def test_zz_measure(box, servers):
    net_msb = box
    pid = interceptors()[-1]
    def cpu():
        f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")",1)[1].split()
        return (int(f[11])+int(f[12]))/100
    def rss():
        return re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]
    def say(t): open("/tmp/sec-measure","a").write(t+"\n")
    r0, c0, t0 = rss(), cpu(), time.time()
    sh(box, "curl -sS -o /dev/null https://api.example.com/big?100000000")
    say(f"100MB down: {time.time()-t0:.2f}s wall, interceptor cpu {cpu()-c0:.2f}s, hwm {r0} -> {rss()} KiB")
    c0, t0 = cpu(), time.time()
    sh(box, 'head -c 30000000 /dev/zero | curl -sS -T - -H "X-Api-Key: $KEY" https://api.example.com/up -o /dev/null')
    say(f"30MB up: {time.time()-t0:.2f}s wall, interceptor cpu {cpu()-c0:.2f}s, hwm {rss()} KiB")
    a, b = [], []
    for i in range(6):
        for l, args in ((a, []), (b, ["--secret", "KEY@api.example.com"])):
            t=time.time(); net_msb.ok("run", "-q", *args, "--", "true"); l.append((time.time()-t)*1000)
    say(f"run: plain min {min(a):.1f} med {statistics.median(a):.1f} ms; with secret min {min(b):.1f} med {statistics.median(b):.1f} ms")
    c0 = cpu()
    o = box.python("box", RAW + '''
import time, http.client
c = http.client.HTTPSConnection("api.example.com")
t=[]
for i in range(300):
    a=time.perf_counter(); c.request("GET", "/x", headers={"X-Api-Key": os.environ["KEY"]}); c.getresponse().read(); t.append(time.perf_counter()-a)
t.sort(); print(t[0]*1000, t[len(t)//2]*1000)
''')
    say(f"300 requests: min/median ms {o} interceptor cpu {cpu()-c0:.2f}s")
