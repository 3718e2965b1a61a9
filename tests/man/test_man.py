"""The man pages, as they are installed: every verb has one that says all that help says.

MSB is the program, MAN_DIR the directory with the rendered pages.
"""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

MSB = os.environ["MSB"]
MAN_DIR = pathlib.Path(os.environ["MAN_DIR"])
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "ENVIRONMENT",
            "FILES", "SEE ALSO"]


def tree(*args):
    p = subprocess.run([MSB, *args, "--tree"], stdout=subprocess.PIPE, check=True, text=True)
    return p.stdout


def verbs(*group):
    """("image list", "image ls" or None), as `msb --tree` shows them, groups and what is in them."""
    found = re.findall(r"^[├└]── ([a-z]+)(?: \(alias: ([a-z]+)\))?  ", tree(*group), re.M)
    for name, alias in found:
        path = [*group, name]
        usage = subprocess.run([MSB, *path, "--help"], stdout=subprocess.PIPE, check=True, text=True).stdout
        if f"Usage: msb {' '.join(path)} " not in usage:
            continue  # a verb of msb itself, in a group as well
        yield "-".join(path), "-".join([*group, alias]) if alias else None
        if re.search(r"[<[]COMMAND[]>]$", usage, re.M):  # a group
            yield from verbs(*path)


VERBS = list(verbs())
PAGES = ["msb"] + [f"msb-{name}" for name, _ in VERBS]


def source(page):
    """The page's roff, its escapes undone."""
    text = (MAN_DIR / f"{page}.1").read_text()
    text = re.sub(r"\\f.", "", text)
    return text.replace(r"\-", "-").replace(r"\(ti", "~").replace(r"\&", "")


def sections(page):
    parts = re.split(r'^\.SH "?([^"\n]+)"?\n', source(page), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def words(body):
    """What a reader sees: lines that are no requests."""
    return [line for line in body.splitlines() if line.strip() and not line.startswith((".", "'"))]


def test_there_are_verbs():
    assert {"run", "create", "exec", "stop", "list"} <= {name for name, _ in VERBS}


@pytest.mark.parametrize("page", PAGES)
def test_sections(page):
    found = sections(page)
    assert [s for s in found if s in SECTIONS] == SECTIONS
    for title, body in found.items():
        assert words(body), f"{page}(1): nothing under {title}"
    assert re.match(rf"{page} - [a-z]", words(found["NAME"])[0])


@pytest.mark.parametrize("verb", [name for name, _ in VERBS])
def test_options_are_those_of_the_verb(verb):
    listed = set(re.findall(r"^[├└]── (?:-., )?--([a-z-]+)", tree(*verb.split("-")), re.M))
    body = sections(f"msb-{verb}")["OPTIONS"]
    described = set(re.findall(r"^(?:-., )?--([a-z-]+)", body, re.M))
    assert described == listed


def test_every_verb_is_listed():
    body = sections("msb")["COMMANDS"]
    for name, _ in VERBS:
        if "-" in name:
            assert f"msb-{name}(1)" in sections("msb-" + name.rpartition("-")[0])["COMMANDS"]
        else:
            assert f"msb-{name}(1)" in body


@pytest.mark.parametrize("name,alias", [v for v in VERBS if v[1]])
def test_aliases_lead_to_the_page(name, alias):
    assert (MAN_DIR / f"msb-{alias}.1").read_text() == f".so man1/msb-{name}.1\n"


def test_no_page_without_a_verb():
    aliases = {f"msb-{alias}" for _, alias in VERBS if alias}
    assert {p.stem for p in MAN_DIR.glob("*.1")} == set(PAGES) | aliases


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
@pytest.mark.parametrize("page", PAGES)
def test_renders_without_warnings(page):
    p = subprocess.run(["groff", "-t", "-man", "-ww", "-z", MAN_DIR / f"{page}.1"],
                       stderr=subprocess.PIPE, text=True, check=True)
    assert p.stderr == ""
