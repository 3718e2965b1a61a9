/* The protocol between client, monitor and agent.
 *
 * Transport   A byte stream: a unix socket between client and monitor (agent.sock), a vsock
 *             stream between monitor and agent. One exec is one stream on each side; the monitor
 *             relays frames between the two, so back-pressure is the streams' own.
 *
 * Frame       8-byte header (struct proto_hdr, little endian), then `len` bytes of payload.
 *             The payload of STDIN/STDOUT/STDERR/FILE_DATA is raw bytes, at most PROTO_DATA_MAX.
 *             Every other payload is a list of fields (tag, length, bytes; see proto_next), at most
 *             PROTO_MSG_MAX for EXEC, CONFIG, NET_SET, SECRETS and LIMIT, PROTO_DATA_MAX for the rest.
 *
 * Versions    The side that opens a stream sends HELLO first. Another *major* version is refused.
 *             Within one, new message types and field tags may appear at any time: a receiver
 *             ignores those it does not know.
 *
 * Trust       The agent runs in the guest: the host treats every byte from it as hostile. The
 *             agent trusts the host.
 *
 * Streams
 *   control   agent -> monitor, vsock port PROTO_PORT_CONTROL, for the life of the guest
 *                 agent: HELLO          monitor: CONFIG       agent: READY | FAIL
 *                 monitor: SEAL         agent: SEALED | FAIL    (if it needs one)
 *                 monitor: PING         agent: PONG
 *                 monitor: ENV
 *                 monitor: SHUTDOWN     agent: DOWN (or the guest just powers off)
 *                 agent: LOG            (a line for the system log)
 *   session   client -> monitor (agent.sock), and monitor -> agent, vsock port PROTO_PORT_SESSION
 *                 client: HELLO EXEC    agent: STARTED | FAIL
 *                 client: STDIN* STDIN_EOF SIGNAL* RESIZE* [DETACH]
 *                 agent: STDOUT* STDERR* STDIN_ACK* EXIT    monitor: FAIL (OUTPUT)
 *             Another client may attach to a detached session: HELLO ATTACH, and the monitor
 *             answers STARTED or FAIL; what follows is as above, from where the output is then.
 *             Acknowledgements of what the previous client sent may come first.
 *             A client sends at most PROTO_STDIN_WINDOW bytes of STDIN beyond what STDIN_ACK has
 *             acknowledged, so that a SIGNAL never waits behind unread input. A session stream
 *             that ends without DETACH kills the process group with SIGKILL, unless the session
 *             is in the background: begun with F_BACKGROUND, or detached before.
 *   files     as a session, with FILES in place of EXEC; see "Files" below
 *   request   client -> monitor (agent.sock): HELLO, then PING, TOUCH, STOP, INFO, WAIT, NET_*,
 *             PORT_* or SECRETS, one answer
 *                 monitor: PONG | OK | FAIL
 *
 * Containers  client: HELLO CONTAINER, with F_NAME (of a TREE that is its root) and fields of CONFIG:
 *             F_HOSTNAME (absent: the pod's), F_MOUNT without shares and disks, F_MASK, F_FIXED,
 *             F_SYSCTL, F_CAPABILITIES, F_NO_NEW_PRIVS, F_OPTIONS; F_LIMIT, F_PIDS_OF. A container is
 *             a separate agent, in its own mount and cgroup namespaces, and in a pid namespace of
 *             its own or that of another one. It serves sessions like the first: IN says which. It
 *             ends, with all its processes, when this stream does, by SIGNAL, or with the container
 *             whose pid namespace it is in; EXIT says that it has ended, and that what it wrote is on
 *             the host.
 *
 * Files       client: HELLO FILES, then any number of FILE_OP, each followed by its data. The agent
 *             answers them in order, each with its data and then one FILE_OK or FILE_ERR; the
 *             stream can be reused after either. FILE_OPs may be sent ahead; the client then
 *             has to read replies meanwhile. FAIL (user, directory, state) answers FILES and ends
 *             the stream; a FILES that is accepted is not answered. There are no windows: the
 *             streams' own back-pressure is enough, since closing is the way to cancel. Operations
 *             that were not answered by then may be done, half done or not done.
 *
 *             Paths are absolute, or relative to FILES' F_CWD. Symbolic links are followed with the
 *             rights of FILES' user, except in the last component where noted.
 *
 *   STAT      F_FILE_PATH; flags NOFOLLOW, REAL
 *                 agent: FILE_OK with attributes
 *   LIST      F_FILE_PATH; F_FILE_LIMIT (entries; default and most PROTO_LIST_MAX)
 *                 agent: FILE_ENTRY* FILE_OK; F_FILE_CUT in it: there were more entries.
 *                 Attributes are those of links themselves. In no order.
 *   READ      F_FILE_PATH; F_FILE_OFFSET, F_FILE_LENGTH
 *                 agent: FILE_ENTRY FILE_DATA* FILE_OK. Regular files only (EINVAL, EISDIR).
 *   WRITE     F_FILE_PATH; F_FILE_MODE (default: unchanged; 0644 for a new file), F_FILE_UID,
 *             F_FILE_GID, F_FILE_MTIME; F_FILE_OFFSET (given: the file is not truncated);
 *             flags APPEND, EXCL, ATOMIC (a temporary file is renamed over the path at the end;
 *             not with APPEND and F_FILE_OFFSET), PARENTS (creates missing directories)
 *                 client: FILE_DATA* FILE_END
 *                 agent: FILE_OK with attributes. FILE_ERR may come early; data up to FILE_END is
 *                 then ignored.
 *   MKDIR     F_FILE_PATH; F_FILE_MODE (0755), F_FILE_UID, F_FILE_GID; flag PARENTS (also: the
 *             directory may exist)
 *   REMOVE    F_FILE_PATH; flags RECURSIVE (else: a file or an empty directory), FORCE (the file
 *             need not exist). Never follows links.
 *   RENAME    F_FILE_PATH, F_FILE_TO; flag EXCL (EEXIST instead of replacing)
 *   SET       F_FILE_PATH; any of F_FILE_MODE, F_FILE_UID, F_FILE_GID, F_FILE_MTIME, F_FILE_ATIME,
 *             F_FILE_SIZE (truncates); flag NOFOLLOW
 *   SYMLINK   F_FILE_PATH (the link), F_FILE_TO (its target); flag FORCE (replaces a file)
 *                 agent, for these five: FILE_OK
 *   WATCH     F_FILE_PATH; flag RECURSIVE (up to PROTO_WATCH_MAX directories, new ones included)
 *                 agent: FILE_OK when the watch is set up, then FILE_EVENT* until the stream is
 *                 closed. It is the last request of its stream.
 *   GET       F_FILE_PATH; flags FOLLOW (the target, if the path is a link), NO_DATA; F_FILE_LIMIT
 *             (entries; E2BIG beyond it)
 *                 agent: a tree: FILE_ENTRY of the path (a link itself unless FOLLOW), then
 *                 FILE_OK. The FILE_ENTRY of a regular file is followed by FILE_DATA*, at most
 *                 F_FILE_SIZE bytes in all; that of a directory by the same for each of its
 *                 entries, and FILE_LEAVE.
 *   PUT       F_FILE_PATH: a directory; flag OWNER (F_FILE_UID, F_FILE_GID of entries are used)
 *                 client: any number of such trees, then FILE_END. Directories that exist are
 *                 entered, and keep mode and times; files and links are replaced. Links are never
 *                 followed, even if other processes change the tree meanwhile. A file with
 *                 F_FILE_HARD has no data: it is a hard link to that path, relative to F_FILE_PATH.
 *                 agent: FILE_OK, or FILE_ERR as for WRITE
 *
 *   SYNC      F_FILE_PATH: its whole file system is on disk before the answer
 *                 agent: FILE_OK
 *   LAYER     F_FILE_PATH: /. The writable layer, as the tar of an image layer
 *                 agent: FILE_DATA*, FILE_OK
 *             Only in a stream whose FILES says so (F_FILE_OP). It is served with the agent's own
 *             rights, which reading the layer takes, and knows nothing else but STAT.
 *
 *             Attributes are F_FILE_MODE (type and permissions, as st_mode), F_FILE_SIZE,
 *             F_FILE_MTIME, F_FILE_UID, F_FILE_GID, F_FILE_TARGET of a link, F_FILE_PATH with REAL.
 */
#pragma once

#include "util/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROTO_VERSION_MAJOR = 1,
    PROTO_VERSION_MINOR = 0,
    PROTO_HDR_LEN = 8,
    PROTO_DATA_MAX = 64 * 1024,
    PROTO_MSG_MAX = 4 * 1024 * 1024,
    PROTO_STDIN_WINDOW = 256 * 1024,
    PROTO_PORT_CONTROL = 1,    /* on the host (CID 2) */
    PROTO_PORT_SESSION = 1024, /* in the guest; plus its number, a container's */
    PROTO_CONTAINER_MAX = 65535,
    PROTO_GUEST_CID = 3,
    PROTO_PATH_MAX = 4095,    /* of F_FILE_PATH, F_FILE_TO, F_FILE_TARGET */
    PROTO_NAME_MAX = 255,     /* of F_FILE_NAME */
    PROTO_DEPTH_MAX = 256,    /* nested directories in GET and PUT */
    PROTO_LIST_MAX = 1000000, /* entries */
    PROTO_WATCH_MAX = 8192,   /* directories */
};

enum proto_type {
    PROTO_HELLO = 1, /* F_VERSION */
    /* control */
    PROTO_CONFIG = 2,   /* see enum proto_tag, "CONFIG" */
    PROTO_READY = 3,    /* no fields */
    PROTO_FAIL = 4,     /* F_KIND, F_ERRNO, F_TEXT */
    PROTO_SHUTDOWN = 5, /* F_GRACE_MS */
    PROTO_PING = 6,     /* F_COOKIE */
    PROTO_PONG = 7,     /* F_COOKIE, F_CPU_NS */
    PROTO_LOG = 8,      /* F_TEXT */
    PROTO_DOWN = 9,     /* F_CPU_NS: everything is on disk, the power may be cut */
    PROTO_SEAL = 10,    /* no fields: the set-up is complete; what restricts commands applies now */
    PROTO_SEALED = 11,  /* no fields; or FAIL */
    PROTO_OOM = 12,     /* F_KILLS: the guest had to kill processes for lack of memory */
    PROTO_ENV = 13, /* F_ENV, repeated: K=V in place of CONFIG's, or K: none, for new commands */
    /* session */
    PROTO_EXEC = 16,      /* see enum proto_tag, "EXEC" */
    PROTO_STARTED = 17,   /* F_PID */
    PROTO_STDIN = 18,     /* raw */
    PROTO_STDIN_EOF = 19, /* no fields */
    PROTO_STDIN_ACK = 20, /* F_BYTES: how many more STDIN bytes the command was given */
    PROTO_STDOUT = 21,    /* raw; the only output stream of a pty */
    PROTO_STDERR = 22,    /* raw */
    PROTO_SIGNAL = 23,    /* F_SIGNAL: to the process group; F_ALONE: only to its main process */
    PROTO_RESIZE = 24,    /* F_ROWS, F_COLS */
    PROTO_EXIT = 25,      /* F_CODE or F_SIGNAL; F_TIMED_OUT when the time limit killed it; F_OOM */
    PROTO_DETACH = 26,    /* client to monitor: the client leaves, the process keeps running */
    PROTO_ATTACH = 27,    /* client to monitor: F_SESSION, in place of EXEC */
    PROTO_CONTAINER = 28, /* in place of EXEC: see "Containers". STARTED has F_CONTAINER */
    /* request */
    PROTO_TOUCH = 32, /* restart the idle timer. F_TIMEOUT_MS: the sandbox stops this long from now,
                      * in place of its max-duration; until its next start */
    PROTO_STOP = 33,  /* F_GRACE_MS; 0 = kill at once. Answered when the stop has begun */
    PROTO_OK = 34,
    PROTO_INFO = 35, /* answered by OK: F_SESSIONS, F_TEXT (counters as JSON) */
    PROTO_WAIT = 36, /* F_SESSION, in the background; answered by OK when it ends: F_CODE, if its
                      * end is known. Without F_SESSION: never, the stream ends with the sandbox;
                      * with F_LEASH also vice versa */
    PROTO_IN =
        37, /* client to monitor, before HELLO: F_CONTAINER, with whose agent the session is */
    /* request: the network */
    PROTO_NET_ASK = 48,  /* F_CTL_NAME or F_CTL_ADDRESS, F_CTL_PORT, F_CTL_PROTO. OK: F_CTL_ALLOW,
                            F_CTL_WHY; of a name F_CTL_MAY_ASK, F_CTL_ASK_WHY, F_CTL_PEER */
    PROTO_NET_SET = 49,  /* F_CTL_SPEC, F_CTL_DROP. OK, when it is in force: F_CTL_CUT */
    PROTO_NET_SHOW = 50, /* OK: F_CTL_RULE, F_CTL_DEFAULTS, F_TEXT (counters as JSON) */
    PROTO_PORT_ADD = 51, /* F_CTL_PROTO, F_CTL_PORT (the guest's). A listening or bound socket comes
                            with it, and has the host's address */
    PROTO_PORT_RM = 52,  /* F_CTL_PROTO, F_CTL_ADDRESS, F_CTL_PORT (the host's) */
    PROTO_SECRETS = 53,  /* With a socket: the interceptor's new configuration arrives over it. With
                          * F_CTL_SPEC: new flows to its hosts are intercepted, and F_ENV, as in
                          * ENV, is passed to the agent. FAIL_STATE: there is no interceptor */
    PROTO_LIMIT = 54,    /* F_CTL_SPEC: a list of limits (policy/rulebook.h), added to the existing
                          * ones; what exceeds them is cut */
    PROTO_TREE = 55,     /* F_NAME: a directory comes with it, which the guest finds under that name
                          * in its containers' share; without one, the name is removed */
    /* files */
    PROTO_FILES = 64,      /* F_USER, F_CWD, as in EXEC; F_FILE_OP: see LAYER */
    PROTO_FILE_OP = 65,    /* F_FILE_OP and its fields */
    PROTO_FILE_DATA = 66,  /* raw */
    PROTO_FILE_END = 67,   /* no fields: the end of the data of WRITE or PUT */
    PROTO_FILE_ENTRY = 68, /* F_FILE_NAME (the last component), attributes */
    PROTO_FILE_LEAVE = 69, /* no fields: the end of a directory */
    PROTO_FILE_EVENT = 70, /* F_FILE_EVENT, F_FILE_PATH (relative to the watched one), F_COOKIE */
    PROTO_FILE_OK = 71,
    PROTO_FILE_ERR = 72, /* F_ERRNO, F_TEXT */
};

enum proto_tag {
    F_VERSION = 1,    /* u32: major << 16 | minor */
    F_TEXT = 2,       /* string */
    F_KIND = 3,       /* u32: enum proto_fail */
    F_ERRNO = 4,      /* u32: Linux errno */
    F_COOKIE = 5,     /* u64 */
    F_GRACE_MS = 6,   /* u64 */
    F_PID = 7,        /* u32 */
    F_BYTES = 8,      /* u64 */
    F_SIGNAL = 9,     /* u32 */
    F_CODE = 10,      /* u32, 0..255 */
    F_TIMED_OUT = 11, /* u32, 1 */
    F_ROWS = 12,      /* u32 */
    F_COLS = 13,      /* u32 */
    F_SESSIONS = 14,  /* u32: commands running */
    F_OOM = 15,       /* u32: enum proto_oom; of a command that failed */
    F_KILLS = 16,     /* u64: processes killed for lack of memory since the boot */
    F_SESSION = 17,   /* u32: its number, as in the log */
    F_ALONE = 18,     /* u32, 1 */
    F_LEASH = 19,     /* u32, 1: the sandbox is stopped when this stream ends */
    F_CPU_NS = 20,    /* u64: CPU time of the guest since its boot, as it reports */

    /* EXEC; ENV, CWD, USER, RLIMIT also in CONFIG, as the defaults that EXEC overrides */
    F_ARG = 32,        /* string, repeated, in order; the first is looked up on PATH */
    F_ENV = 33,        /* string "K=V", repeated; later wins */
    F_CWD = 34,        /* string, absolute */
    F_USER = 35,       /* string: name|uid[:group|gid], resolved in the guest */
    F_RLIMIT = 36,     /* nested: F_RESOURCE, F_SOFT, F_HARD; repeated */
    F_RESOURCE = 37,   /* u32: Linux RLIMIT_* number */
    F_SOFT = 38,       /* u64 */
    F_HARD = 39,       /* u64 */
    F_TTY = 40,        /* u32, 1: give it a pty (F_ROWS, F_COLS) */
    F_NO_STDIN = 41,   /* u32, 1: stdin is /dev/null */
    F_TIMEOUT_MS = 42, /* u64: SIGKILL to the process group after this time */
    F_BACKGROUND = 43, /* u32, 1: for the monitor: the command keeps running without its client */
    F_TERM = 44,       /* string: the kind of terminal, with F_TTY; used if the guest knows it */
    F_UMASK = 46,      /* u32: the umask, plus one */
    F_AMBIENT = 47,    /* u64: capabilities that a user other than root keeps; F_CAPABILITIES,
                          F_NO_NEW_PRIVS and F_GROUP: less than the sandbox's, and its own groups */

    F_FILTER = 48, /* bytes: struct sock_filter[], which judges the command's system calls */

    /* CONFIG */
    F_HOSTNAME = 64,    /* string, already a valid host name */
    F_LOWER_DEV = 65,   /* string: block device of the image, "/dev/vdb"; absent: the first
                           F_MOUNT is a share on /, the root, with everything in it */
    F_UPPER_DEV = 66,   /* string: block device of the writable layer; absent = tmpfs */
    F_UPPER_SIZE = 67,  /* u64: size of that tmpfs; 0 = the kernel's default */
    F_MOUNT = 68,       /* nested: F_PATH, F_OPTIONS, and F_SIZE, F_MOUNT_* of a tmpfs, or F_TAG,
                           F_FILE of a share, or F_DEVICE, F_FSTYPE of a disk; repeated, parents
                           first */
    F_PATH = 69,        /* string, absolute */
    F_SIZE = 70,        /* u64; 0 = default */
    F_OPTIONS = 71,     /* u32: enum proto_mount_option bits */
    F_SCRIPT = 72,      /* nested: F_NAME, F_BODY; goes to /.msb/scripts/NAME, mode 0755 */
    F_NAME = 73,        /* string */
    F_BODY = 74,        /* bytes */
    F_DIRECTORY = 75,   /* string, absolute; created when missing; repeated */
    F_STOP_SIGNAL = 76, /* u32: sent to commands when the sandbox stops; absent = SIGTERM */
    F_TAG = 77,         /* string: the virtio-fs device of a share */
    F_FILE = 78,        /* string: the one file of the share to mount */

    /* CONFIG: the network; absent = only lo */
    F_NET = 80,          /* nested: F_NAME (of the interface) and what follows */
    F_NET_MTU = 81,      /* u32 */
    F_NET_ADDRESS = 82,  /* nested: F_NET_IP, F_NET_BITS, F_NET_GATEWAY; repeated, one per family */
    F_NET_IP = 83,       /* string */
    F_NET_BITS = 84,     /* u32: prefix length */
    F_NET_GATEWAY = 85,  /* string: of the default route; answers for F_NET_HOST_NAME */
    F_NET_RESOLVER = 86, /* string: for /etc/resolv.conf; repeated */
    F_NET_HOST_NAME = 87, /* string: the host's name in /etc/hosts */
    F_NET_MESSAGES = 88,  /* bytes: addresses, routes and neighbors as rtnetlink messages, one after
                             another; nlmsg_seq is where in a message the interface's number goes */
    /* requests about the network */
    F_CTL_NAME = 96,    /* string: a host name, normalized */
    F_CTL_ADDRESS = 97, /* string: an IP address */
    F_CTL_PORT = 98,   /* u32, 1..65535; in EXEC, without F_ARG: the command is a connection to that
                             TCP port of the guest's own, and its output is not logged */
    F_CTL_PROTO = 99,  /* u32: 6 or 17 */
    F_CTL_ALLOW = 100, /* u32, 0 or 1 */
    F_CTL_WHY = 101,   /* string */
    F_CTL_MAY_ASK = 102,  /* u32, 0 or 1: the name may be resolved */
    F_CTL_ASK_WHY = 103,  /* string */
    F_CTL_PEER = 104,     /* nested: F_CTL_ADDRESS, F_CTL_ALLOW, F_CTL_WHY; repeated */
    F_CTL_SPEC = 105,     /* string: a spec as JSON; only "network" is used; or limits */
    F_CTL_DROP = 106,     /* u32, 1: cut flows that the new policy would not allow */
    F_CTL_CUT = 107,      /* u32: how many flows were cut */
    F_CTL_RULE = 108,     /* string, repeated, in order */
    F_CTL_DEFAULTS = 109, /* u32: 1 = egress is allowed, 2 = ingress is */

    /* files */
    F_FILE_OP = 128,     /* u32: enum proto_file_op */
    F_FILE_PATH = 129,   /* string */
    F_FILE_TO = 130,     /* string */
    F_FILE_FLAGS = 131,  /* u32: enum proto_file_flag */
    F_FILE_OFFSET = 132, /* u64 */
    F_FILE_LENGTH = 133, /* u64 */
    F_FILE_MODE = 134,   /* u32 */
    F_FILE_UID = 135,    /* u32 */
    F_FILE_GID = 136,    /* u32 */
    F_FILE_MTIME = 137,  /* u64: ns since 1970; before that two's complement */
    F_FILE_ATIME = 138,  /* u64: the same */
    F_FILE_SIZE = 139,   /* u64 */
    F_FILE_NAME = 140,   /* string, one component */
    F_FILE_TARGET = 141, /* string: of a symbolic link */
    F_FILE_LIMIT = 142,  /* u64 */
    F_FILE_CUT = 143,    /* u32, 1 */
    F_FILE_EVENT = 144,  /* u32: enum proto_file_event bits */
    F_FILE_HARD = 145,   /* string: see PUT */

    /* CONFIG: write paths, disks */
    F_WRITE_PATH = 160,     /* string, absolute; repeated: everything else is read-only */
    F_DEVICE = 161,         /* string: the block device of a F_MOUNT */
    F_FSTYPE = 162,         /* string: its file system */
    F_UPPER_GROW = 163,     /* u32, 1: grow the file system on F_UPPER_DEV to its size */
    F_UPPER_VOLATILE = 164, /* u32, 1: the layer is not kept, so nothing has to be synced */
    F_HOST_CAS = 184,       /* string: the host's certificate authorities, PEM; installed in
                           PROTO_CAS_BUNDLE */

    /* CONFIG: what programs may do; all but F_GROUP and F_SYSCTL apply from SEAL on */
    F_CAPABILITIES = 200, /* u64: bits by number, the most that root may have; absent = all */
    F_NO_NEW_PRIVS = 201, /* u32, 1 */
    F_READ_ONLY = 202,    /* u32, 1: the root file system; mounts are as their F_OPTIONS say */
    F_PIDS_MAX = 203,     /* u32: processes and threads, PID 1 included */
    F_GROUP = 204,        /* string, name or number; repeated: extra groups for every command */
    F_SYSCTL = 205,       /* string "K=V"; repeated */
    F_MOUNT_MODE = 206,   /* u32: of a tmpfs; 0 = 01777 */
    F_MOUNT_UID = 207,    /* u32: its owner */
    F_MOUNT_GID = 208,    /* u32 */
    F_MASK = 209,         /* string, absolute; repeated: a path that appears empty, if it exists */
    F_FIXED = 210,        /* string, absolute; repeated: a path that is read-only, if it exists */

    /* CONTAINER */
    F_CONTAINER = 211, /* u32: its number */
    F_LIMIT = 212,     /* string "FILE=VALUE", of its cgroup; repeated */
    F_PIDS_OF = 217,   /* u32: its pid namespace is that container's; 0: the guest's; absent: new */

    /* CONFIG: the rest of the guest */
    F_THP = 213,      /* string: always, madvise or never; transparent huge pages */
    F_INIT = 214,     /* string: a path, or "auto"; starts with SEAL, as PID 1 of the commands */
    F_INIT_ARG = 215, /* string, repeated, in order */
    F_INIT_ENV = 216, /* string "K=V", repeated */
};

enum proto_file_op {
    FILE_OP_STAT = 1,
    FILE_OP_LIST = 2,
    FILE_OP_READ = 3,
    FILE_OP_WRITE = 4,
    FILE_OP_MKDIR = 5,
    FILE_OP_REMOVE = 6,
    FILE_OP_RENAME = 7,
    FILE_OP_SET = 8,
    FILE_OP_SYMLINK = 9,
    FILE_OP_WATCH = 10,
    FILE_OP_GET = 11,
    FILE_OP_PUT = 12,
    FILE_OP_SYNC = 13,
    FILE_OP_LAYER = 14,
};

enum proto_file_flag {
    FILE_NOFOLLOW = 1,  /* a link in the last component is not followed */
    FILE_FOLLOW = 2,    /* a link in the last component is followed */
    FILE_PARENTS = 4,   /* missing directories are created */
    FILE_RECURSIVE = 8, /* with everything below */
    FILE_FORCE = 16,    /* see REMOVE, SYMLINK */
    FILE_EXCL = 32,     /* nothing is replaced: EEXIST */
    FILE_APPEND = 64,   /* data is added at the end */
    FILE_ATOMIC = 128,  /* readers see the old file or the new one */
    FILE_NO_DATA = 256, /* names and attributes only */
    FILE_OWNER = 512,   /* set the owners of the entries */
    FILE_REAL = 1024,   /* answer with F_FILE_PATH, links resolved */
};

/* What happened to the path of a FILE_EVENT. A rename within the watched tree is a MOVED_FROM and a
 * MOVED_TO with the same F_COOKIE. */
enum proto_file_event {
    FILE_CREATED = 1,
    FILE_MODIFIED = 2, /* written to, truncated, or closed after that */
    FILE_REMOVED = 4,
    FILE_ATTRIB = 8,
    FILE_MOVED_FROM = 16,
    FILE_MOVED_TO = 32,
    FILE_OVERFLOW = 64, /* events were lost */
    FILE_IS_DIR = 128,  /* with one of the others */
};

#define PROTO_CAS_BUNDLE "/etc/ssl/certs/ca-certificates.crt"

enum proto_mount_option {
    PROTO_MOUNT_RO = 1,
    PROTO_MOUNT_NOEXEC = 2,
    PROTO_MOUNT_NOSUID = 4,
    PROTO_MOUNT_NODEV = 8,
    PROTO_MOUNT_POD = 16, /* in CONFIG: the share that has the trees of containers, which is mounted
                             nowhere; in CONTAINER: a path of the tree, or the pod's /dev/shm */
    PROTO_MOUNT_COPY = 32, /* of a tmpfs: it begins as a copy of the directory that it covers */
};

/* How a failed command is related to a lack of memory in the guest. */
enum proto_oom {
    PROTO_OOM_NONE = 0,
    PROTO_OOM_COMMAND = 1, /* its main process was killed for that */
    PROTO_OOM_OTHER = 2,   /* another process was, while it ran: possibly one that it had started */
};

/* Why an EXEC could not start, or a request was refused. */
enum proto_fail {
    PROTO_FAIL_OTHER = 0,
    PROTO_FAIL_NOT_FOUND = 1,      /* exit code 127 */
    PROTO_FAIL_NOT_EXECUTABLE = 2, /* exit code 126 */
    PROTO_FAIL_CWD = 3,
    PROTO_FAIL_USER = 4,
    PROTO_FAIL_RLIMIT = 5,
    PROTO_FAIL_LIMIT = 6,   /* too many sessions */
    PROTO_FAIL_VERSION = 7, /* HELLO of another major version */
    PROTO_FAIL_STATE = 8,   /* not ready, no room, or shutting down: try again */
    PROTO_FAIL_BOOT = 9,    /* control stream: the guest could not set itself up */
    PROTO_FAIL_OUTPUT =
        10, /* of a session, after STARTED: the command wrote too much, and was ended */
};

/* A frame's header on the wire, little endian; see proto_header_read(). */
struct proto_hdr {
    uint32_t len;
    uint16_t type;
    uint16_t reserved; /* sent as 0, ignored */
} __attribute__((packed));

struct proto_frame {
    uint16_t type;
    const uint8_t *data; /* points into the input buffer */
    size_t len;
};

/* --- frames --- */

/* A frame's header, in the host's byte order. */
struct proto_header {
    uint32_t len; /* of the payload */
    uint16_t type;
};

/* Decodes the PROTO_HDR_LEN bytes at p. False: the length exceeds proto_limit() of the type. *h is
 * set either way. */
bool proto_header_read(const void *p, struct proto_header *h);
/* Encodes a header into the PROTO_HDR_LEN bytes at p, for a payload that follows it. */
void proto_header_write(void *p, uint16_t type, size_t len);

/* Looks at the front of `in`. 1: *f is a whole frame (drop it with proto_consume); 0: more bytes
 * are needed; -EPROTO: the length exceeds the type's limit, and the stream is useless. */
int proto_peek(const struct buf *in, struct proto_frame *f);
void proto_consume(struct buf *in, const struct proto_frame *f);
/* The most payload a frame of this type may have. */
size_t proto_limit(uint16_t type);

/* Appends a frame with raw payload. -ENOSPC if `out` is at its limit. */
int proto_put(struct buf *out, uint16_t type, const void *p, size_t n);

/* Appends a frame field by field: begin, put fields, end. An error in between (no room) is reported
 * by proto_end, which then removes the frame. */
struct proto_writer {
    struct buf *out;
    size_t start; /* offset of the header from buf_head */
    uint16_t type;
    int err;
};
void proto_begin(struct proto_writer *w, struct buf *out, uint16_t type);
void proto_bytes(struct proto_writer *w, uint16_t tag, const void *p, size_t n);
void proto_str(struct proto_writer *w, uint16_t tag, const char *s);
void proto_u32(struct proto_writer *w, uint16_t tag, uint32_t v);
void proto_u64(struct proto_writer *w, uint16_t tag, uint64_t v);
/* Begins a nested list of fields; returns a mark for proto_nest_end. */
size_t proto_nest(struct proto_writer *w, uint16_t tag);
void proto_nest_end(struct proto_writer *w, size_t mark);
int proto_end(struct proto_writer *w);

/* Puts a FAIL; code 0: without F_ERRNO. */
int proto_put_fail(struct buf *out, enum proto_fail kind, int code, const char *text);

/* The frame that opens every stream; and whether a frame is such a one, with our major version. */
int proto_put_hello(struct buf *out);
bool proto_is_hello(const struct proto_frame *f);

/* --- fields --- */

struct proto_reader {
    const uint8_t *p, *end;
};
struct proto_field {
    uint16_t tag;
    const uint8_t *data;
    size_t len;
};
void proto_reader_init(struct proto_reader *r, const void *p, size_t n);
/* 1: *f is the next field; 0: the end; -EPROTO: malformed. */
int proto_next(struct proto_reader *r, struct proto_field *f);
/* Typed access: false if the field has another size. */
bool proto_get_u32(const struct proto_field *f, uint32_t *v);
bool proto_get_u64(const struct proto_field *f, uint64_t *v);
/* A malloc'd, NUL-terminated copy; NULL if it contains a NUL or memory is short. */
char *proto_get_str(const struct proto_field *f);

/* The first field with this tag; false: there is none. */
bool proto_find(const struct proto_frame *frame, uint16_t tag, struct proto_field *f);
/* The number in the first field with this tag, or `otherwise`. */
uint64_t proto_find_num(const struct proto_frame *f, uint16_t tag, uint64_t otherwise);
/* Copies the text field, truncated to size, with control characters replaced; "" if absent. */
void proto_find_text(const struct proto_frame *f, uint16_t tag, char *to, size_t size);
