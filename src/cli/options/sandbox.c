#include "cli/options/sandbox.h"

#include "cli/core/common_opts.h"
#include "cli/options/env.h"
#include "jail/kind.h"

static const struct opt identity_opts[] = {
    {"name", 'n', "NAME", "Name of the sandbox (default: generated)", OPT_COMMON},
    {"replace", 0, NULL, "Remove an existing sandbox of that name first", OPT_DESTROYS},
    {"replace-with-timeout", 0, "TIME",
     "Like --replace, with this much time to stop (default: 10s; 0 kills it at once)",
     OPT_DESTROYS},
    {"label", 0, "KEY[=VALUE]", "Attach a label, to select sandboxes with --label", OPT_REPEAT},
    {"hostname", 'H', "NAME", "Host name of the guest (default: derived from the sandbox's name)"},
    {"stop-when-done", 0, NULL, "Stop the sandbox when its last command has ended", OPT_HIDDEN},
    {"max-duration", 0, "TIME", "Stop the sandbox this long after its start"},
    {"idle-timeout", 0, "TIME", "Stop the sandbox after it has been idle this long"},
    {"engine", 0, "ENGINE", "Engine that runs the guest's kernel (default: $MSB_ENGINE, else auto)",
     .choices = "auto|kvm|uml|uml-ptrace"},
    {"jail", 0, "JAIL",
     "Jail around the sandbox: full needs namespaces; reduced works without, for containers that "
     "refuse them; auto chooses reduced only there (default: $MSB_JAIL, else auto)",
     .choices = JAIL_KINDS},
    POLICY_OPTION,
    {"log-level", 0, "LEVEL",
     "Detail of the sandbox's system log: error, warn, info, debug, trace"},
    {0},
};
const struct opt_group identity_group = {"Sandbox", identity_opts};

static const struct opt resource_opts[] = {
    {"cpus", 'c', "N", "CPUs (default: 1); a fraction is a quota", OPT_COMMON},
    {"memory", 'm', "SIZE", "Memory, such as 1.5G (default: 512M); a bare number is MiB",
     OPT_COMMON},
    {"root-disk", 0, "SPEC",
     "Writable layer: SIZE on disk, tmpfs[:SIZE] in memory, or the PATH of an ext4 image, which is "
     "used as it is and kept (default: 4G)",
     .alias = "oci-upper-size"},
    {"disk-sync", 0, "WHEN",
     "Whether fsync in the guest waits for the host's disk; with never, synced data survives "
     "anything except a host crash (default: auto, which is never for ephemeral sandboxes)",
     .choices = "auto|always|never"},
    {"rlimit", 0, "NAME=SOFT[:HARD]", "Set a resource limit for commands: nofile=1024, nproc=64",
     OPT_REPEAT, .alias = "ulimit"},
    {"max-output", 0, "SIZE",
     "End a command that writes more than this to stdout and stderr together (default: no limit)"},
    {"cpu-placement", 0, "POLICY",
     "Host CPUs to run on: spread assigns each sandbox one in turn, compact the first ones, core "
     "also keeps other programs off that core's hardware threads, inherit uses all that msb may "
     "use, auto is spread (default: spread)",
     .choices = CPU_PLACEMENTS},
    {"placement-profile", 0, "NAME",
     "Placement profile, shown by inspect, for tools that place sandboxes; msb itself uses "
     "--cpu-placement"},
    {"max-cpus", 0, "N", "CPUs it may grow to while it runs, with 'msb modify --cpus'"},
    {"max-memory", 0, "SIZE",
     "Memory it may grow to, for inspect and policies; memory takes effect at the next start"},
    {"thp", 0, "POLICY",
     "Huge pages in the guest, with the kvm engine: always, never, or for programs that request "
     "them (default: madvise)",
     .choices = "always|madvise|never"},
    {"deployment-profile", 0, "PROFILE",
     "Who shares the host: multi-tenant keeps other programs off a sandbox's cores, if possible "
     "(default: single-tenant)",
     .choices = "single-tenant|multi-tenant"},
    {0},
};
const struct opt_group resource_group = {"Resources", resource_opts};

static const struct opt image_opts[] = {
    {"pull", 0, "WHEN", "When to pull the image (default: if-missing)",
     .choices = "always|if-missing|never"},
    PLATFORM_OPTION,
    INSECURE_OPTION,
    CA_CERTS_OPTION,
    {0},
};
const struct opt_group image_group = {"Image", image_opts};

static const struct opt command_opts[] = {
    {"env", 'e', "KEY[=VALUE]", "Set an environment variable; KEY alone copies yours",
     OPT_REPEAT | OPT_COMMON},
    ENV_FILE_OPTION,
    {"secret-env", 0, "NAME", "Set a variable to a secret (see 'msb secret')", OPT_REPEAT},
    {"workdir", 'w', "DIR", "Working directory (default: the image's)", OPT_COMMON},
    {"user", 'u', "USER[:GROUP]", "User to run commands as (default: the image's)", OPT_COMMON},
    {"shell", 0, "PATH", "Shell for interactive use (default: /bin/sh)"},
    {"entrypoint", 0, "PROGRAM", "Replace the image's entrypoint; an empty value removes it"},
    {"cmd", 0, "WORD", "A word of the command that replaces the image's", OPT_REPEAT | OPT_HIDDEN},
    {"script", 0, "NAME=BODY",
     "Add a shell script to the guest's PATH; escapes such as \\n are decoded", OPT_REPEAT},
    {"script-raw", 0, "NAME=BODY", "Add a script exactly as given, including its #! line",
     OPT_REPEAT},
    {"script-path", 0, "NAME:FILE", "Add a script from a file", OPT_REPEAT},
    {0},
};
const struct opt_group command_group = {"Commands", command_opts};

static const struct opt file_opts[] = {
    {"volume", 'v', "SOURCE:DEST[:OPTIONS]",
     "Mount a host directory or file, or a volume; OPTIONS: ro, noexec, nosuid, nodev, "
     "cache=auto|none|always, uid=N,gid=N, quota=SIZE",
     OPT_REPEAT | OPT_COMMON},
    {"mount-dir", 0, "SOURCE:DEST[:OPTIONS]", "Like --volume, only for a host directory",
     OPT_REPEAT},
    {"mount-file", 0, "SOURCE:DEST[:OPTIONS]", "Like --volume, only for a host file", OPT_REPEAT},
    {"mount-named", 0, "NAME:DEST[:OPTIONS]",
     "Like --volume, only for a volume; more OPTIONS: kind=dir|disk, size=SIZE (disk)", OPT_REPEAT},
    {"mount-disk", 0, "FILE:DEST[:OPTIONS]",
     "Mount the file system in a raw disk image, or read a qcow2 image (ro); OPTIONS: ro, noexec, "
     "nosuid, nodev, format=raw|qcow2, fstype=ext4",
     OPT_REPEAT},
    {"mount", 0, "WORDS",
     "The same in Docker's syntax: type=bind|volume|tmpfs, source=, target=, readonly, tmpfs-size=",
     OPT_REPEAT},
    {"tmpfs", 0, "PATH[:SIZE][:OPTIONS]",
     "Mount an empty file system in memory; OPTIONS: ro, noexec, nosuid, nodev, size=SIZE, "
     "mode=OCTAL, uid=N, gid=N",
     OPT_REPEAT},
    {"workspace", 0, "NAME|DIR", "Mount NAME, DIR or s3://BUCKET at /workspace", OPT_COMMON},
    {"workspace-mode", 0, "MODE",
     "fuse shares the workspace; snapshot copies it in, and back after a stop (default: "
     "fuse)",
     .choices = "fuse|snapshot"},
    {"workspace-sync", 0, "WHEN",
     "When changes are uploaded to the bucket: close: soon after a file is closed; idle: after a "
     "while without changes; stop: after a stop; fsync: like close, and fsync in the guest waits "
     "for the upload (default: stop)",
     .choices = "close|idle|stop|fsync"},
    {"workspace-max", 0, "SIZE", "Size limit (default: 1G for a snapshot, none for fuse)"},
    {"persist-home", 0, NULL, "Keep /root in a volume named after the workspace or the sandbox"},
    {"write-path", 0, "PATH", "Make everything read-only except PATH", OPT_REPEAT},
    {"copy", 0, "SRC:DST", "Copy a file, or the contents of a directory, into the new sandbox",
     OPT_REPEAT},
    {"copy-file", 0, "SRC:DST", "Like --copy, only for a file", OPT_REPEAT},
    {"copy-dir", 0, "SRC:DST", "Like --copy, only for a directory", OPT_REPEAT},
    {"mkdir", 0, "PATH", "Create a directory, and its parents, in the new sandbox", OPT_REPEAT},
    {"rm", 0, "PATH",
     "Remove a file or directory from the new sandbox; 'msb run --rm' alone removes the sandbox "
     "when its command ends, even if it has a name",
     OPT_REPEAT | OPT_OPTIONAL | OPT_DESTROYS},
    {"vsock", 0, "HOST_SOCK:PORT",
     "Let the guest connect to a Unix socket of the host, as vsock port PORT of CID 2", OPT_REPEAT},
    {0},
};
const struct opt_group file_group = {"Files and host sockets", file_opts};
