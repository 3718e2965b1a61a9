#!/usr/bin/env python3
"""Data analysis by untrusted code: data goes in, a plot comes back as a PNG.

The analysis runs without a network and sees one file, the data. The size of the result is limited. The
script draws with Python's standard library alone, so that any image with Python will do; with an image that
has matplotlib, a model would use that.
"""
import argparse
import csv
import math
import pathlib
import random
import sys
import tempfile
import uuid

import msb
import msb.sync

# What a model might have written: a moving average of a noisy series, drawn into /out/plot.png.
ANALYSIS = r"""
import csv, json, statistics, struct, zlib

rows = [(float(r["day"]), float(r["value"])) for r in csv.DictReader(open("/data/series.csv"))]
values = [v for _, v in rows]
smooth = [statistics.fmean(values[max(0, i - 7):i + 8]) for i in range(len(values))]

W, H, M = 640, 360, 30
image = bytearray(b"\xff" * (W * H * 3))

def dot(x, y, color):
    if 0 <= x < W and 0 <= y < H:
        image[(y * W + x) * 3:(y * W + x) * 3 + 3] = bytes(color)

def line(a, b, color, width=1):
    steps = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    for i in range(int(steps) + 1):
        x, y = (a[k] + (b[k] - a[k]) * i / steps for k in (0, 1))
        for d in range(width):
            dot(round(x), round(y) + d, color)

low, high = min(values), max(values)
def place(i, v):
    return M + (W - 2 * M) * i / (len(values) - 1), H - M - (H - 2 * M) * (v - low) / (high - low)

for y in range(5):
    line((M, M + (H - 2 * M) * y / 4), (W - M, M + (H - 2 * M) * y / 4), (225, 225, 225))
line((M, M), (M, H - M), (90, 90, 90))
line((M, H - M), (W - M, H - M), (90, 90, 90))
for series, color, width in ((values, (170, 190, 220), 1), (smooth, (200, 60, 40), 2)):
    points = [place(i, v) for i, v in enumerate(series)]
    for a, b in zip(points, points[1:]):
        line(a, b, color, width)

def chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

raw = b"".join(b"\0" + image[y * W * 3:(y + 1) * W * 3] for y in range(H))
with open("/out/plot.png", "wb") as f:
    f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))
print(json.dumps({"n": len(values), "mean": round(statistics.fmean(values), 3),
                  "stdev": round(statistics.stdev(values), 3), "min": low, "max": high}))
"""


def make_data(path):
    noise = random.Random(7)
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["day", "value"])
        for day in range(365):
            out.writerow([day, round(10 + 4 * math.sin(day / 58) + noise.gauss(0, 0.8), 3)])


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("data", nargs="?", help="a CSV with the columns day and value")
    ap.add_argument("-o", "--output", default="plot.png")
    ap.add_argument("--image", default="python:3.11-slim")
    args = ap.parse_args()
    client = msb.sync.SandboxClient()
    spec = msb.SandboxSpec(name=f"analysis-{uuid.uuid4().hex[:8]}", image=args.image)
    with tempfile.TemporaryDirectory() as made, client.create(spec) as sandbox:
        data = args.data or str(pathlib.Path(made, "series.csv"))
        if args.data is None:
            make_data(data)
        sandbox.files.upload(data, "/data/series.csv")
        sandbox.files.mkdir("/out")
        result = sandbox.exec("python3", ["-c", ANALYSIS], timeout=120)
        if not result.ok:
            print(result.output, file=sys.stderr)
            return 1
        sandbox.files.download("/out/plot.png", args.output, max_bytes=10_000_000)
    print(result.stdout, end="")
    print(f"plot: {args.output} ({pathlib.Path(args.output).stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
