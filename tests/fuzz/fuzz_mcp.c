/* Messages from a client of `msb mcp`: read as JSON-RPC, and as calls of `create`, whose command
 * line must never have an option that the client made up. */
#include "mcp/message.h"
#include "mcp/tools.h"
#include "util/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_allowed(const char *arg)
{
    static const char *const options[] = {"--name=",         "--label=",   "--memory=", "--cpus=",
                                          "--max-duration=", "--workdir=", "--env=",    "--pull="};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (strncmp(arg, options[i], strlen(options[i])) == 0)
            return true;
    return arg[0] != '-' || strcmp(arg, "--no-net") == 0;
}

static void create(json_t *args)
{
    static char listed[] = "ghcr.io";
    static char *registry[] = {listed, NULL};
    static const struct strlist registries = {.v = registry, .n = 1};
    static const struct mcp_config config = {
        .image = "msb/base", .registries = &registries, .lifetime_ms = 1000, .each = {1, 512, 1}};
    struct tool_run run = {.config = &config};
    struct err e = {0};
    const struct tool *t = tool_find("create");
    const char *image = json_string_value(json_object_get(args, "image"));
    if (tool_start(t, args, &run, &e) == 0) {
        bool ours = !image || strcmp(image, "msb/base") == 0 || strncmp(image, "ghcr.io/", 8) == 0;
        if (!ours && !strlist_has(&run.argv, "--pull=never"))
            abort(); /* nothing else is asked for it */
        for (size_t i = 0; i < run.argv.n; i++)
            if (!is_allowed(run.argv.v[i]))
                abort();
    }
    tool_run_free(&run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcp_message m;
    const char *why = NULL;
    int r = mcp_message_parse((const char *)data, size, &m, &why);
    if (r < 0 && !why)
        abort();
    if (r == 0 && m.params)
        create(json_object_get(m.params, "arguments"));
    if (r == 0 && m.root)
        create(m.root); /* without having to guess the way there */
    mcp_message_free(&m);
    json_t *text = mcp_text(data, size);
    if (!text || (memchr(data, 0, size) == NULL && !utf8_valid(json_string_value(text))))
        abort();
    json_decref(text);
    return 0;
}
