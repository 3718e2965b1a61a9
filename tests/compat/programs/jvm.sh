# shellcheck shell=sh disable=SC1091
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1

cat >Work.java <<'END'
import java.net.*;
import java.net.http.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Work {
    static void compute() {
        double s = IntStream.range(1, 3_000_000).parallel().mapToDouble(Math::sqrt).sum();
        System.out.println(Math.round(s));
    }

    static void threads() throws Exception {
        var pool = Executors.newFixedThreadPool(50);
        var jobs = new ArrayList<Future<Integer>>();
        for (int i = 0; i < 2000; i++) { int n = i; jobs.add(pool.submit(() -> n % 7)); }
        int sum = 0;
        for (var j : jobs) sum += j.get();
        pool.shutdown();
        System.out.println(sum);
    }

    static void garbage() {
        var keep = new HashMap<Integer, byte[]>();
        for (int i = 0; i < 400_000; i++) keep.put(i % 5000, new byte[1 + i % 2048]);
        System.out.println(keep.size());
    }

    static void files() throws Exception {
        Path f = Files.createTempFile("w", null);
        try (var c = FileChannel.open(f, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            var m = c.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int i = 0; i < 1 << 20; i++) m.put(i, (byte) i);
            m.force();
            try (var lock = c.lock()) { System.out.println(Files.readAllBytes(f)[77]); }
        }
    }

    static void watch() throws Exception {
        Path d = Files.createTempDirectory("w");
        try (var w = d.getFileSystem().newWatchService()) {
            d.register(w, StandardWatchEventKinds.ENTRY_CREATE);
            Files.createFile(d.resolve("new"));
            System.out.println(w.poll(30, TimeUnit.SECONDS).pollEvents().get(0).context());
        }
    }

    static void http() throws Exception {
        var server = com.sun.net.httpserver.HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", e -> { e.sendResponseHeaders(200, 5); e.getResponseBody().write("hello".getBytes()); e.close(); });
        server.start();
        var uri = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/");
        System.out.println(HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).build(),
                HttpResponse.BodyHandlers.ofString()).body());
        server.stop(0);
    }

    static void process() throws Exception {
        var p = new ProcessBuilder("sh", "-c", "echo $((6 * 7)); exit 3").start();
        System.out.println(new String(p.getInputStream().readAllBytes()).trim() + " " + p.waitFor());
    }

    static void nullPointers() {
        int caught = 0;
        for (int i = 0; i < 200_000; i++)
            try { ((String) (i % 100 == 0 ? null : "x")).length(); } catch (NullPointerException e) { caught++; }
        System.out.println(caught);
    }

    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "compute": compute(); break;
            case "threads": threads(); break;
            case "garbage": garbage(); break;
            case "files": files(); break;
            case "watch": watch(); break;
            case "http": http(); break;
            case "process": process(); break;
            case "nulls": nullPointers(); break;
            default: throw new IllegalArgumentException(a[0]);
        }
    }
}
END
check 'compile' javac Work.java
gives 'computation' '^3464100749$' java Work compute
gives 'threads' '^5995$' java Work threads
for gc in Serial Parallel G1 Z Shenandoah; do
    gives "$gc collector" '^5000$' java -Xmx256m "-XX:+Use${gc}GC" Work garbage
done
gives 'mapped files and locks' '^77$' java Work files
gives 'watched directories' '^new$' java Work watch
gives 'HTTP' '^hello$' java Work http
gives 'processes' '^42 3$' java Work process
gives 'faults as exceptions' '^2000$' java Work nulls
gives 'interpreter only' '^2000$' java -Xint Work nulls
check 'shared class data' java -Xshare:dump -XX:SharedArchiveFile=cds.jsa -version
check 'its use' java -Xshare:on -XX:SharedArchiveFile=cds.jsa -version
echo 'System.out.println(6 * 7)' >in
gives 'jshell' '^42$' sh -c 'jshell -s - <in'
