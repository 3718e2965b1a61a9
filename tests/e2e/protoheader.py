"""The protocol's constants, read from src/proto/proto.h."""
import pathlib
import re

HEADER = pathlib.Path(__file__).resolve().parents[2] / "src" / "proto" / "proto.h"


def _read():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    found = {}
    for body in re.findall(r"\benum\b[^;{]*\{(.*?)\}", text, flags=re.S):
        for item in filter(None, map(str.strip, body.split(","))):
            name, value = re.fullmatch(r"(\w+) =\s+([0-9 *]+)", item).groups()
            found[name] = eval(value, {})  # digits and products only
    return found


CONSTANTS = _read()


def named(prefix, names):
    """The values of several constants."""
    return [CONSTANTS[prefix + name] for name in names.split()]
