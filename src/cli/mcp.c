/* msb mcp: sandboxes as tools for language models. */
#include "cli/args.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "mcp/server.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* msb, run for a tool: what it prints is the tool's result, and --debug was meant for the server. */
static int tool_main(int argc, char **argv)
{
    ui_reset();
    return cli_main(argc, argv);
}

/* A mistake in them is in the client's configuration, not the model's: report it at once. */
static int check_options(const struct args *a, struct err *e)
{
    struct args create = {0};
    int r = args_parse(&cmd_create, 0, (int)a->n_command, a->command, &create, e);
    if (r == 0 && create.n_pos > 0) {
        r = err_set(e, EINVAL, "unexpected argument '%s' found after '--'", create.pos[0]);
        err_hint(e, "give the image before the '--': msb mcp --image %s", create.pos[0]);
    }
    args_free(&create);
    return r;
}

static int mcp_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    int bad = check_options(a, &e);
    if (bad < 0)
        return bad == -ENOSYS ? ui_fail(&e) : ui_usage(&e);
    struct mcp_config c = {
        .msb = tool_main,
        .store = &s,
        .image = args_get(a, "image"),
        .options = (const char *const *)a->command,
        .n_options = a->n_command,
        .all = args_has(a, "all"),
        .keep = args_has(a, "keep"),
    };
    if (store_open(&s, &e) < 0)
        return ui_fail(&e);
    int r = getrandom(&c.id, sizeof(c.id), 0) == sizeof(c.id) ? mcp_serve(&c) : -errno;
    if (r == -EPERM) {
        err_set(&e, EPERM, "standard input must be a pipe or a socket");
        err_hint(&e, "an MCP client starts this command; see 'msb mcp --help'");
    } else if (r < 0) {
        err_sys(&e, -r, "cannot serve the client");
    }
    return r < 0 ? ui_fail(&e) : EXIT_OK;
}

static const struct opt mcp_opts[] = {
    {"image", 0, "IMAGE", "Default image of new sandboxes"},
    {"all", 0, NULL, "Offer all of your sandboxes, not only those created here"},
    {"keep", 0, NULL, "Keep the sandboxes when the client disconnects"},
    {0},
};

const struct cmd cmd_mcp = {
    .name = "mcp",
    .group = GROUP_OTHER,
    .summary = "Serve the Model Context Protocol (MCP)",
    .opts = mcp_opts,
    .command_name = "OPTIONS",
    .command_help = "Options of 'msb create' for every sandbox; clients cannot change them",
    .details =
        "An MCP client is configured to start this command and talks to it on standard input "
        "and output. Tools: create, exec, read_file, write_file, list_files, logs, list, "
        "stop, remove. No tool takes a path on the host, and what sandboxes may reach is set "
        "here, not by the client. Sandboxes are removed when the client disconnects.",
    .examples = "  msb mcp --image python:3.12-slim -- --net-rule allow@pypi.org --memory 1G\n"
                "  {\"mcpServers\": {\"msb\": {\"command\": \"msb\", \"args\": [\"mcp\"]}}}",
    .run = mcp_run,
};
