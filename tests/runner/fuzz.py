"""Every fuzz target, for FUZZ_SECONDS each."""
import concurrent.futures
import os
import pathlib

from runner.report import ROOT, configure, run

OPTIONS = ("-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dfuzz=true", "-Dbuildtype=debugoptimized")


def fuzz(target, seconds):
    corpus = target.parent / (target.name + ".corpus")
    corpus.mkdir(exist_ok=True)
    seeds = ROOT / "tests" / "fuzz" / "corpus" / target.name[len("fuzz_"):-len("_libfuzzer")]
    return target, run([target, f"-max_total_time={seconds}", "-print_final_stats=0", "-verbosity=0",
                        "-rss_limit_mb=2048", "-timeout=20", f"-artifact_prefix={target}.crash-", corpus,
                        *([seeds] if seeds.is_dir() else [])],
                       env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"})


def stage(args, t):
    directory = pathlib.Path(f"{args.build}-fuzz")
    p = configure(directory, {"CC": "clang"}, *OPTIONS)
    if p.returncode:
        t.check("build with clang and libFuzzer", False, p.stdout)
        return
    targets = sorted(p for p in (directory / "tests" / "fuzz").glob("fuzz_*_libfuzzer") if p.is_file())
    if not targets:
        t.check("fuzz targets exist", False)
    seconds = int(os.environ.get("FUZZ_SECONDS", "3"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for target, p in pool.map(lambda x: fuzz(x, seconds), targets):
            t.check(f"{target.name} ({seconds} s)", p.returncode == 0, p.stdout)
