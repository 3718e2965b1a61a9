/* Published ports of a sandbox, running or not: list, add, remove. */
#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "net/packet.h"
#include "sandbox/net_change.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>

/* "80/tcp -> 127.0.0.1:8080" */
static void put_port(struct buf *b, const struct spec_port *p)
{
    char end[END_TEXT_MAX];
    end_format(&(struct net_end){.addr = p->bind, .port = p->host}, end);
    (void)buf_printf(b, "%u/%s -> %s\n", p->guest, p->proto == PROTO_UDP ? "udp" : "tcp", end);
}

static int print_ports(const struct spec_port *p, size_t n)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    for (size_t i = 0; i < n; i++)
        put_port(&b, &p[i]);
    return ui_print(&b);
}

static int print_json(const struct spec_port *p, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(a, spec_port_to_json(&p[i]));
    return ui_print_json(a);
}

static int port_list_run(const struct args *a)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    AUTO_FREE struct spec_port *p = NULL;
    int code = show_one(a->pos[0], &sb);
    if (code != EXIT_OK)
        return code;
    size_t n = show_ports(&sb, &p);
    if (n == 0 && !wants_json(a))
        ui_note("No ports published.");
    return wants_json(a) ? print_json(p, n) : print_ports(p, n);
}

const struct cmd cmd_port_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List the published ports of a sandbox",
    .opts = inspect_opts,
    .pos = ONE("NAME", "Sandbox whose ports to show"),
    .details = "A host port of 0 means that a free one is picked when the sandbox starts.",
    .examples = "  msb port web\n"
                "  msb port list --format json web",
    .run = port_list_run,
};

/* --- add, rm --------------------------------------------------------------------------------- */

static int port_add(const struct args *a, const struct store *s, struct err *e)
{
    AUTO_FREE struct spec_port *p = NULL;
    size_t n = 0;
    int r = 0;
    for (size_t i = 1; r == 0 && i < a->n_pos; i++)
        r = sandbox_port_add(s, a->pos[0], a->pos[i], &p, &n, e);
    int code = n && !ui_quiet() ? print_ports(p, n) : EXIT_OK;
    if (r == -EINVAL)
        return ui_usage(e);
    return r < 0 ? r : code;
}

static const struct cmd cmd_port_add = {
    .name = "add",
    .summary = "Publish ports of a sandbox",
    .opts = OPTIONS(POLICY_OPTION, QUIET_OPTION),
    .pos = ONE("NAME", "Sandbox to publish ports of"),
    .then = SOME("PORTS", "Ports to publish: [BIND:]HOST:GUEST[/udp]"),
    .details = "The syntax is that of 'msb create --port': HOST may be 0 (any free port), and HOST "
               "and GUEST may be ranges. A running sandbox publishes them at once, and so do later "
               "starts. The ports that were bound are printed. Ingress rules of the network policy "
               "apply.",
    .examples = "  msb port add web 8080:80\n"
                "  msb port add web 0:443 0.0.0.0:53:53/udp",
    .with_store = port_add,
};

static int port_remove(const struct args *a, const struct store *s, struct err *e)
{
    int code = EXIT_OK;
    for (size_t i = 1; i < a->n_pos; i++) {
        err_clear(e);
        int r = sandbox_port_remove(s, a->pos[0], a->pos[i], e);
        if (r == 0) {
            ui_success("Closed", a->pos[i]);
            continue;
        }
        ui_error(e);
        if (r == -EINVAL)
            code = EXIT_USAGE;
        else if (code == EXIT_OK)
            code = EXIT_FAILED;
    }
    return code;
}

static const struct cmd cmd_port_remove = {
    .name = "rm",
    .alias = "remove",
    .flags = CMD_DESTROYS,
    .summary = "Unpublish ports of a sandbox",
    .opts = quiet_opts,
    .pos = ONE("NAME", "Sandbox whose ports to unpublish"),
    .then = SOME("PORTS", "Host ports: [BIND:]HOST[/udp]"),
    .details = "New connections are refused; open TCP connections stay open.",
    .examples = "  msb port rm web 8080\n"
                "  msb port rm web 53/udp 127.0.0.1:8443",
    .with_store = port_remove,
};

const struct cmd cmd_port = {
    .name = "port",
    .group = GROUP_SANDBOX,
    .summary = "Manage published ports",
    .subs = VERBS(&cmd_port_list, &cmd_port_add, &cmd_port_remove),
    .otherwise = &cmd_port_list,
    .details = "Without a command, 'msb port NAME' lists the ports of a sandbox.",
    .examples = "  msb port web\n"
                "  msb port add web 8080:80\n"
                "  msb port rm web 8080",
};
