"""The SDK's copy of the protocol's constants is that of src/proto/proto.h."""
from protoheader import CONSTANTS
from sdkkit import sdk

# What only monitor and agent, or the msb program, need.
NOT_IN_SDK = set("""
PROTO_PORT_CONTROL PROTO_PORT_SESSION PROTO_GUEST_CID PROTO_WATCH_MAX
PROTO_CONFIG PROTO_READY PROTO_SHUTDOWN PROTO_LOG PROTO_DOWN PROTO_SEAL PROTO_SEALED PROTO_TOUCH
PROTO_NET_ASK PROTO_NET_SET PROTO_NET_SHOW PROTO_PORT_ADD PROTO_PORT_RM
F_GRACE_MS F_RLIMIT F_RESOURCE F_SOFT F_HARD
F_HOSTNAME F_LOWER_DEV F_UPPER_DEV F_UPPER_SIZE F_MOUNT F_PATH F_SIZE F_OPTIONS F_SCRIPT F_NAME
F_BODY F_DIRECTORY F_STOP_SIGNAL F_TAG F_FILE F_WRITE_PATH F_DEVICE F_FSTYPE F_UPPER_GROW F_HOST_CAS
F_NET F_NET_MTU F_NET_ADDRESS F_NET_IP F_NET_BITS F_NET_GATEWAY F_NET_RESOLVER F_NET_HOST_NAME
F_CTL_NAME F_CTL_ADDRESS F_CTL_PORT F_CTL_PROTO F_CTL_ALLOW F_CTL_WHY F_CTL_MAY_ASK F_CTL_ASK_WHY
F_CTL_PEER F_CTL_SPEC F_CTL_DROP F_CTL_CUT F_CTL_RULE F_CTL_DEFAULTS
F_FILE_ATIME F_FILE_HARD FILE_OP_SYNC FILE_NO_DATA FILE_OWNER FILE_REAL
PROTO_MOUNT_RO PROTO_MOUNT_NOEXEC PROTO_MOUNT_NOSUID PROTO_MOUNT_NODEV PROTO_FAIL_BOOT
""".split())


def test_constants_are_those_of_the_header():
    ours = {n: v for n, v in vars(sdk._proto).items() if n.isupper() and isinstance(v, int)}
    theirs = {}
    for name in ours:
        found = [n for n in (f"PROTO_{name}", name, f"FILE_{name}") if n in CONSTANTS]
        assert len(found) == 1, (name, found)
        theirs[found[0]] = ours[name]
    assert theirs == {n: v for n, v in CONSTANTS.items() if n not in NOT_IN_SDK}
