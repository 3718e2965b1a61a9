#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/sandbox.h"
#include "util/diag.h"
#include "util/loop.h"

#include <errno.h>

static int create(const struct args *a, struct sandbox_request *q, struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct spinner spin;
    int r = store_open_for(a, &s, e);
    if (r == 0 && q->named && !q->create.replace) /* rather than after a long pull */
        r = sandbox_check_free(&s, &q->spec, e);
    if (r == 0)
        r = sandbox_request_resolve(q, a, &s, e);
    if (r < 0)
        return r;
    uint64_t t0 = now_ns();
    spinner_start(&spin, "Creating", q->spec.name);
    r = sandbox_create(&s, &q->spec, &q->create, ui_warn, e);
    spinner_stop(&spin);
    if (r == 0 && cli_created)
        cli_created(&q->spec);
    diag_took("creating the sandbox", t0);
    return r;
}

static int create_run(const struct args *a)
{
    struct sandbox_request q;
    struct err e = {0};
    int code = EXIT_OK;
    int r = sandbox_request_parse(a, &q, &e);
    if (r == 0 && q.passing) {
        r = err_set(&e, EINVAL, "--rm needs a PATH to remove from the new sandbox");
        err_hint(&e, "'msb run --rm' makes a sandbox that is removed when its command ends");
        q.exit_code = EXIT_USAGE;
    }
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
    .opts = quiet_opts,
    .groups = GROUPS(SANDBOX_GROUPS),
    .pos = MAYBE("IMAGE", IMAGE_ARGUMENT_HELP),
    .details =
        "The sandbox runs in the background until it is stopped. Without --name a name is "
        "generated and printed on standard output.\n\n" NET_DETAILS "\n\n" TRAFFIC_DETAILS
        " With --vsock a program in the guest reaches a Unix socket of the host by connecting "
        "to CID 2 and PORT (AF_VSOCK); the connection is made with your rights.",
    .examples =
        "  msb create --name web -p 8080:80 nginx\n"
        "  msb create --name build --cpus 2 --memory 4G ./rootfs\n"
        "  msb create --replace --name ci --net-rule allow@pypi.org:tcp:443\n"
        "  msb create --name web -p 8080:80 -p 0.0.0.0:5353:53/udp\n"
        "  msb create --name app --net public,host --net-rule deny@any:tcp:25\n"
        "  msb create --name db --tmpfs /scratch:1G --label team=search\n"
        "  msb create --name slow --net-egress-bandwidth 1M --net-ingress-bandwidth 10M/100ms\n"
        "  PW=... msb create --proxy socks5://10.0.0.1:1080 --socks5-username me \\\n"
        "      --socks5-password-env PW\n"
        "  msb create --name pg --vsock /run/postgresql/.s.PGSQL.5432:5432",
    .run = create_run,
};
