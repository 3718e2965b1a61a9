/* msb mcp: sandboxes as tools for language models. */
#include "cli/core/args.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/sandbox.h"
#include "mcp/limits.h"
#include "mcp/server.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysinfo.h>

/* Runs msb for a tool: its output is the tool's result, and --debug was meant for the server. */
static int tool_main(int argc, char **argv)
{
    ui_reset();
    return cli_main(argc, argv);
}

enum {
    SANDBOXES_DEFAULT = 16,
    CPUS_DEFAULT = 16,
    LIFETIME_DEFAULT_MS = 24 * 3600 * 1000,
};

/* A mistake in them is in the client's configuration, not the model's: report it at once. `each` is
 * what a sandbox takes if the client asks for nothing else. */
static int check_options(const struct args *a, struct mcp_share *each, struct err *e)
{
    struct args create = {0};
    struct sandbox_request q;
    int r = args_parse(&cmd_create, 0, (int)a->n_command, a->command, &create, e);
    if (r == 0 && create.n_pos > 0) {
        r = err_set(e, EINVAL, "unexpected argument '%s' found after '--'", create.pos[0]);
        err_hint(e, "give the image before the '--': msb mcp --image %s", create.pos[0]);
    }
    if (r == 0) {
        r = sandbox_request_parse(&create, &q, e);
        *each = (struct mcp_share){1, q.spec.memory_mib, q.spec.cpus};
        sandbox_request_free(&q);
    }
    args_free(&create);
    return r;
}

static uint64_t half_of_memory(void)
{
    struct sysinfo host;
    uint64_t mib = sysinfo(&host) == 0 ? (uint64_t)host.totalram * host.mem_unit / MIB / 2 : 0;
    return MAX(mib, (uint64_t)1024);
}

static int limit_options(const struct args *a, struct mcp_config *c, struct err *e)
{
    const char *n = args_get(a, "max-sandboxes"), *memory = args_get(a, "max-memory");
    const char *cpus = args_get(a, "max-cpus"), *life = args_get(a, "max-lifetime");
    uint64_t number = SANDBOXES_DEFAULT, bytes = 0, milli = CPUS_DEFAULT * 1000ULL;
    c->lifetime_ms = LIFETIME_DEFAULT_MS;
    if (n && (parse_u64(n, &number) < 0 || number < 1 || number > MCP_SANDBOXES_MAX))
        return args_bad_value(a, "max-sandboxes", n, "expected a number from 1 to 1000", e);
    if (memory && parse_size(memory, MIB, &bytes) < 0)
        return args_bad_value(a, "max-memory", memory, PARSE_SIZE_EXAMPLES, e);
    if (cpus && parse_milli(cpus, &milli) < 0)
        return args_bad_value(a, "max-cpus", cpus, "expected a number such as 4 or 0.5", e);
    if (life && parse_duration_ms(life, &c->lifetime_ms) < 0)
        return args_bad_value(a, "max-lifetime", life, PARSE_DURATION_EXAMPLES, e);
    c->most = (struct mcp_share){(unsigned)number, memory ? bytes / MIB : half_of_memory(),
                                 (double)milli / 1000};
    if (c->each.memory_mib > c->most.memory_mib || c->each.cpus > c->most.cpus)
        return err_set(e, EINVAL,
                       "one sandbox takes %llu MiB and %g CPUs, and all of them may take %llu MiB "
                       "(--max-memory) and %g CPUs (--max-cpus)",
                       (unsigned long long)c->each.memory_mib, c->each.cpus,
                       (unsigned long long)c->most.memory_mib, c->most.cpus);
    return 0;
}

static int registry_options(const struct args *a, struct strlist *to, struct err *e)
{
    for (size_t i = 0; i < a->n_opts; i++) {
        if (!a->opts[i].opt || strcmp(a->opts[i].opt->name, "registry") != 0)
            continue;
        int r = limits_check_registry(a->opts[i].value, e);
        if (r < 0)
            return r;
        if (strlist_add(to, a->opts[i].value) < 0)
            return err_oom(e);
    }
    return 0;
}

static int serve(struct mcp_config *c, struct err *e)
{
    int r = getrandom(&c->id, sizeof(c->id), 0) == sizeof(c->id) ? mcp_serve(c) : -errno;
    if (r == -EPERM) {
        err_set(e, EPERM, "standard input must be a pipe or a socket");
        err_hint(e, "an MCP client starts this command; see 'msb mcp --help'");
    } else if (r < 0) {
        err_sys(e, -r, "cannot serve the client");
    }
    return r;
}

static int mcp_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_STRLIST struct strlist registries = {0};
    struct err e = {0};
    struct mcp_config c = {
        .msb = tool_main,
        .msb_failed = ui_failed,
        .store = &s,
        .image = args_get(a, "image"),
        .options = (const char *const *)a->command,
        .n_options = a->n_command,
        .registries = &registries,
        .all = args_has(a, "all"),
        .keep = args_has(a, "keep"),
    };
    int bad = check_options(a, &c.each, &e);
    if (bad == 0)
        bad = limit_options(a, &c, &e);
    if (bad == 0)
        bad = registry_options(a, &registries, &e);
    if (bad < 0)
        return bad == -ENOSYS ? ui_fail(&e) : ui_usage(&e);
    if (store_open(&s, &e) < 0 || serve(&c, &e) < 0)
        return ui_fail(&e);
    return EXIT_OK;
}

static const struct opt limit_opts[] = {
    {"max-sandboxes", 0, "N", "Limit on sandboxes at a time (default: 16)"},
    {"max-memory", 0, "SIZE",
     "Limit on the memory of all sandboxes (default: half of this machine's)"},
    {"max-cpus", 0, "N", "Limit on the CPUs of all sandboxes (default: 16)"},
    {"max-lifetime", 0, "TIME",
     "Stop a sandbox this long after its start (default: 24h; 0: never)"},
    {0},
};
static const struct opt_group limit_group = {"Limits", limit_opts};

const struct cmd cmd_mcp = {
    .name = "mcp",
    .group = GROUP_OTHER,
    .summary = "Serve the Model Context Protocol (MCP)",
    .opts = OPTIONS({"image", 0, "IMAGE", "Default image of new sandboxes"},
                    {"registry", 0, "HOST[:PORT]",
                     "Registry from which clients may have images pulled", OPT_REPEAT},
                    {"all", 0, NULL, "Offer all of your sandboxes, not only those created here"},
                    {"keep", 0, NULL, "Keep the sandboxes when the client disconnects"}),
    .groups = GROUPS(&limit_group),
    .command_name = "OPTIONS",
    .command_help = "Options of 'msb create' for every sandbox; clients cannot change them",
    .details =
        "An MCP client is configured to start this command and talks to it on standard input "
        "and output. Tools: create, exec, read_file, write_file, list_files, logs, list, "
        "stop, remove. No tool takes a path on the host, and what sandboxes may reach is set "
        "here, not by the client. Sandboxes are removed when the client disconnects.",
    .examples = "  msb mcp --image python:3.12-slim -- --net-rule allow@pypi.org --memory 1G\n"
                "  msb mcp --registry docker.io --registry ghcr.io --max-memory 4G\n"
                "  {\"mcpServers\": {\"msb\": {\"command\": \"msb\", \"args\": [\"mcp\"]}}}",
    .run = mcp_run,
};
