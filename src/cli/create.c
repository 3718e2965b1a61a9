#include "cli/net_more_opts.h"
#include "cli/net_opts.h"
#include "cli/sandbox_opts.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/loop.h"

static int create(const struct args *a, struct sandbox_request *q, struct err *e)
{
    struct store s;
    int r = store_open(&s, e);
    if (r == 0)
        r = sandbox_request_resolve(q, a, &s, e);
    if (r == 0) {
        struct spinner spin;
        uint64_t t0 = now_ns();
        spinner_start(&spin, "Creating", q->spec.name);
        r = sandbox_create(&s, &q->spec, &q->create, ui_warn, e);
        spinner_stop(&spin);
        ui_debug("sandbox_create took %.1f ms", (double)(now_ns() - t0) / 1e6);
    }
    store_close(&s);
    return r;
}

static int create_run(const struct args *a)
{
    struct sandbox_request q;
    struct err e = {0};
    int code = EXIT_OK;
    ui_set_quiet(args_has(a, "quiet"));
    int r = sandbox_request_parse(a, &q, &e);
    if (r == 0)
        net_note_allowlist(&q.spec.net);
    if (r == 0)
        r = create(a, &q, &e);
    if (r < 0) {
        code = sandbox_request_fail(&q, &e);
    } else {
        ui_success("Created", q.spec.name);
        code = q.named ? EXIT_OK : ui_print_line(q.spec.name);
    }
    sandbox_request_free(&q);
    return code;
}

const struct cmd cmd_create = {
    .name = "create",
    .group = GROUP_SANDBOX,
    .summary = "Create a sandbox and boot it, ready for commands",
    .opts = {sandbox_opts, net_opts, net_more_opts},
    .pos = {.name = "IMAGE",
            .help = "Directory, tar file or image to boot (default: msb/base, which is built in)"},
    .details =
        "The sandbox runs in the background until it is stopped. Without --name a name is made\n"
        "up, and printed on standard output.\n"
        "\n" NET_DETAILS "\n"
        "\n" NET_MORE_DETAILS,
    .examples =
        "  msb create --name web\n"
        "  msb create --name build --cpus 2 --memory 4G ./rootfs\n"
        "  msb create --replace --name web --tmpfs /scratch:1G --label team=search\n" NET_EXAMPLES
        "\n" NET_MORE_EXAMPLES,
    .run = create_run,
};
