"""Builds the wheel (PEP 517), so that pip alone can install the package: it is pure Python without
dependencies, and such a wheel is a zip archive with three additional files."""
import base64
import hashlib
import os
import pathlib
import re
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# What setuptools would read from pyproject.toml, for which Python 3.9 has no parser.
FIELDS = ("name", "version", "description", "requires-python")


def _project():
    text = (HERE / "pyproject.toml").read_text()
    return {f: re.search(rf'^{f} = "(.*)"$', text, re.M).group(1) for f in FIELDS}


def _metadata(project):
    return (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nLicense: Apache-2.0\nRequires-Python: {project['requires-python']}\n"
        f"Description-Content-Type: text/markdown\n\n{(HERE / 'README.md').read_text()}"
    )


def _write(directory, files):
    project = _project()
    stem = f"{project['name']}-{project['version']}"
    info = f"{stem}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = _metadata(project).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: msb\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)  # dated 1980: the same files give the same wheel
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    sources = sorted(p for p in (HERE / "msb").iterdir() if p.suffix == ".py" or p.name == "py.typed")
    return _write(wheel_directory, {f"msb/{p.name}": p.read_bytes() for p in sources})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, {"msb.pth": f"{HERE}\n".encode()})
