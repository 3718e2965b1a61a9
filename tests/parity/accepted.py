"""Differences from microsandbox 0.6.18 that are meant, or known: a pattern, and why. parity.py fails when one of
these is not needed any more."""

ACCEPTED = [
    # not there yet
    ("verb: snap*", "there are no snapshots yet"),
    ("flag: run --from-snapshot", "there are no snapshots yet"),
    ("verb: ssh*", "there is no SSH server yet"),
    # another answer, on purpose
    ("exit: create -n x --pull sometimes {root}", "a value that does not exist is a usage error, for every option"),
    ("exit: cp a b", "a command line without a sandbox in it is a usage error"),
    # more than there
    ("json+: inspect *", "more is said about a sandbox, nothing is missing"),
    ("json+: volume inspect *", "volumes are inspected as JSON, too"),
    ("json-: volume inspect (no JSON)", "volumes are inspected as JSON, too"),
]
