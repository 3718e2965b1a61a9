/* msb oci: the options before the verb, as container engines give them; and what the runtime
 * reports about itself. */
#include "cli/serve/oci.h"

#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "oci/config.h"
#include "oci/seccomp.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

struct oci_globals oci_globals;

int oci_fail(const struct err *e, int code)
{
    oci_log_error(&oci_globals, e);
    (void)ui_fail(e);
    return code;
}

static int perform(const struct args *a)
{
    AUTO_OCI struct oci_runtime rt = OCI_NONE;
    struct err e = {0};
    int r = a->cmd->check ? a->cmd->check(a, &e) : 0;
    if (r == 0)
        r = oci_open(&rt, &oci_globals, &e);
    if (r == 0)
        r = a->cmd->with_runtime(a, &rt, &e);
    return r < 0 ? oci_fail(&e, a->cmd == &cmd_oci_exec ? OCI_EXEC_FAILED : EXIT_FAILED) : r;
}

static int globals_run(const struct args *a)
{
    const char *format = args_get(a, "log-format");
    if (args_has(a, "version"))
        return ui_print_line(OCI_PROGRAM " version " MSB_VERSION "\ncommit: " MSB_VERSION
                                         "\nspec: " OCI_VERSION);
    oci_globals = (struct oci_globals){.root = args_get(a, "root"),
                                       .log = args_get(a, "log"),
                                       .log_json = format && strcmp(format, "json") == 0,
                                       .systemd_cgroup = args_has(a, "systemd-cgroup")};
    return GROUP_GOES_ON;
}

/* --- features, spec -------------------------------------------------------------------------- */

static int features_run(const struct args *a)
{
    return ui_print_json(json_pack(
        "{s:s, s:s, s:[s, s, s, s, s, s], s:o, s:{s:[s, s, s, s, s, s], s:{s:b, s:b, s:b, s:b}, "
        "s:o}, s:{s:s}}",
        "ociVersionMin", "1.0.0", "ociVersionMax", OCI_VERSION, "hooks", "prestart",
        "createRuntime", "createContainer", "startContainer", "poststart", "poststop",
        "mountOptions", container_config_mount_options(), "linux", "namespaces", "cgroup", "ipc",
        "mount", "network", "pid", "uts", "cgroup", "v1", 1, "v2", 1, "systemd", 1, "systemdUser",
        0, "seccomp", seccomp_features(), "annotations", "msb.version", MSB_VERSION));
}

const struct cmd cmd_oci_features = {
    .name = "features",
    .summary = "Print what the runtime supports, as JSON",
    .examples = "  msb oci features",
    .run = features_run,
};

/* Written verbatim, since people read and edit it. */
#define FEW_CAPS "[\"CAP_AUDIT_WRITE\", \"CAP_KILL\", \"CAP_NET_BIND_SERVICE\"]"
static const char spec_text[] =
    "{\n"
    "  \"ociVersion\": \"" OCI_VERSION "\",\n"
    "  \"process\": {\n"
    "    \"terminal\": true,\n"
    "    \"user\": {\"uid\": 0, \"gid\": 0},\n"
    "    \"args\": [\"sh\"],\n"
    "    \"env\": [\"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\", "
    "\"TERM=xterm\"],\n"
    "    \"cwd\": \"/\",\n"
    "    \"capabilities\": {\n"
    "      \"bounding\": " FEW_CAPS ",\n"
    "      \"effective\": " FEW_CAPS ",\n"
    "      \"permitted\": " FEW_CAPS ",\n"
    "      \"ambient\": " FEW_CAPS "\n"
    "    },\n"
    "    \"rlimits\": [{\"type\": \"RLIMIT_NOFILE\", \"hard\": 1024, \"soft\": 1024}],\n"
    "    \"noNewPrivileges\": true\n"
    "  },\n"
    "  \"root\": {\"path\": \"rootfs\", \"readonly\": true},\n"
    "  \"hostname\": \"msb\",\n"
    "  \"mounts\": [\n"
    "    {\"destination\": \"/proc\", \"type\": \"proc\", \"source\": \"proc\"},\n"
    "    {\"destination\": \"/dev\", \"type\": \"tmpfs\", \"source\": \"tmpfs\", \"options\": "
    "[\"nosuid\", \"mode=755\"]},\n"
    "    {\"destination\": \"/dev/pts\", \"type\": \"devpts\", \"source\": \"devpts\", "
    "\"options\": [\"nosuid\", \"noexec\"]},\n"
    "    {\"destination\": \"/dev/shm\", \"type\": \"tmpfs\", \"source\": \"shm\",\n"
    "     \"options\": [\"nosuid\", \"noexec\", \"nodev\", \"mode=1777\", \"size=65536k\"]},\n"
    "    {\"destination\": \"/dev/mqueue\", \"type\": \"mqueue\", \"source\": \"mqueue\", "
    "\"options\": [\"nosuid\", \"noexec\", \"nodev\"]},\n"
    "    {\"destination\": \"/sys\", \"type\": \"sysfs\", \"source\": \"sysfs\", \"options\": "
    "[\"nosuid\", \"noexec\", \"nodev\", \"ro\"]},\n"
    "    {\"destination\": \"/sys/fs/cgroup\", \"type\": \"cgroup\", \"source\": \"cgroup\",\n"
    "     \"options\": [\"nosuid\", \"noexec\", \"nodev\", \"ro\"]}\n"
    "  ],\n"
    "  \"linux\": {\n"
    "    \"resources\": {},\n"
    "    \"namespaces\": [{\"type\": \"pid\"}, {\"type\": \"network\"}, {\"type\": \"ipc\"}, "
    "{\"type\": \"uts\"}, {\"type\": \"mount\"}],\n"
    "    \"maskedPaths\": [\"/proc/acpi\", \"/proc/kcore\", \"/proc/keys\", \"/proc/timer_list\", "
    "\"/proc/sched_debug\",\n"
    "                    \"/proc/scsi\", \"/sys/firmware\"],\n"
    "    \"readonlyPaths\": [\"/proc/bus\", \"/proc/fs\", \"/proc/irq\", \"/proc/sys\", "
    "\"/proc/sysrq-trigger\"]\n"
    "  }\n"
    "}\n";

static int spec_run(const struct args *a)
{
    struct err e = {0};
    const char *bundle = args_get(a, "bundle");
    AUTO_CLOSE int dir = open(bundle ? bundle : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = dir < 0 ? -errno : faccessat(dir, "config.json", F_OK, 0) == 0 ? -EEXIST : 0;
    if (r == 0)
        r = file_replace_at(dir, "config.json", spec_text, strlen(spec_text), 0644, false);
    if (r < 0) {
        (void)err_sys(&e, -r, "cannot write config.json in %s", bundle ? bundle : ".");
        return oci_fail(&e, EXIT_FAILED);
    }
    return EXIT_OK;
}

const struct cmd cmd_oci_spec = {
    .name = "spec",
    .summary = "Write a config.json to start from",
    .opts = OPTIONS({"bundle", 'b', "DIR", "Where to write it (default: the current directory)"},
                    {"rootless", 0, NULL, "No effect: the file is the same"}),
    .examples = "  msb oci spec --bundle /tmp/bundle",
    .run = spec_run,
};

/* --- the group ------------------------------------------------------------------------------- */

static const struct opt rare_opts[] = {
    {"log-format", 0, "FORMAT", "Format of that file (default: text)", .choices = "text|json"},
    {"systemd-cgroup", 0, NULL, "cgroupsPath is slice:prefix:name, as systemd writes it"},
    {"rootless", 0, "BOOL", "No effect: msb detects its privileges", OPT_OPTIONAL},
    {"criu", 0, "PATH", "No effect: there are no checkpoints", OPT_HIDDEN},
    {"version", 'v', NULL, "Print the versions of the runtime and of the specification"},
    {0},
};

static const struct opt_group rare_group = {"More", rare_opts};

const struct cmd cmd_oci = {
    .name = "oci",
    .group = GROUP_OTHER,
    .summary = "Run containers for Podman and others (an OCI runtime)",
    .opts = OPTIONS({"root", 0, "DIR", "Where containers are kept (default: /run/msb-runtime)"},
                    {"log", 0, "FILE", "Also append errors to this file"}),
    .groups = GROUPS(&rare_group),
    .subs =
        VERBS(&cmd_oci_create, &cmd_oci_start, &cmd_oci_run, &cmd_oci_exec, &cmd_oci_state,
              &cmd_oci_list, &cmd_oci_ps, &cmd_oci_kill, &cmd_oci_delete, &cmd_oci_pause,
              &cmd_oci_resume, &cmd_oci_update, &cmd_oci_events, &cmd_oci_features, &cmd_oci_spec),
    .details = "An engine calls this, as msb-runtime, in the same way as runc or crun: each "
               "container then has its own kernel. docs/oci.md says which parts of a container's "
               "configuration are honored.",
    .examples = "  podman --runtime /usr/local/bin/msb-runtime run --rm alpine uname -a\n"
                "  msb oci --root /run/msb-runtime list",
    .before = globals_run,
    .perform = perform,
};
