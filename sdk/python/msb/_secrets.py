"""Values of secrets, looked up when a command is run (src/store/secret.h).

A sandbox's spec has names only. Values are read from ``$MSB_HOME/secrets/NAME``, or from the
environment variable that is named there; they go into the command's environment, and never appear
in messages.
"""
from __future__ import annotations

import json
import os
import re
import stat
from typing import Dict, Iterable

from .errors import SecretError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_FILE_MAX = 6 * 32 * 1024 + 4096


def _load(home: str, name: str) -> Dict[str, object]:
    path = os.path.join(home, "secrets", name)
    again = [f"store it again: msb secret set {name}"]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SecretError(f"there is no secret '{name}'",
                          [f"store it: msb secret set {name}"]) from None
    except OSError as e:
        raise SecretError(f"cannot read secret '{name}': {e.strerror}", again) from None
    with os.fdopen(fd, "rb") as f:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o077:
            raise SecretError(f"secret '{name}' can be read by others", again)
        try:
            doc = json.loads(f.read(_FILE_MAX))
        except ValueError:
            doc = None
    if isinstance(doc, dict) and "command" in doc:
        raise SecretError(f"secret '{name}' is minted by a command, only for requests to hosts",
                          [f"bind it: bound_secrets={{'{name}': ['HOST']}}"])
    if not isinstance(doc, dict) or ("value" in doc) == ("from_env" in doc):
        raise SecretError(f"secret '{name}' is damaged", again)
    return doc


def resolve(home: str, names: Iterable[str]) -> Dict[str, str]:
    """These secrets, as environment variables."""
    found: Dict[str, str] = {}
    for name in names:
        if not _NAME.match(name):
            raise SecretError(f"invalid secret name {name[:64]!r}")
        doc = _load(home, name)
        value = doc.get("value")
        variable = doc.get("from_env")
        if isinstance(variable, str) and _NAME.match(variable):
            value = os.environ.get(variable)
            if value is None:
                raise SecretError(f"secret '{name}': environment variable '{variable}' is not set")
        if not isinstance(value, str):
            raise SecretError(f"secret '{name}' is damaged",
                              [f"store it again: msb secret set {name}"])
        found[name] = value
    return found
