"""The unit tests again, under ASan and UBSan."""
import pathlib

from runner import unit

OPTIONS = ("-Db_sanitize=address,undefined", "-Dbuildtype=debug")


def directory(args):
    return pathlib.Path(f"{args.build}-asan")


def stage(args, t):
    unit.build_and_run(directory(args), t, "build with ASan and UBSan", "plain", *OPTIONS)
