/* --conf and its siblings: options from YAML files. */
#include "cli/core/verbs.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "command_line.h"

/* Parses `line` of create with the texts in files, for which it has a %s each. */
static void with_files(struct line *l, const char *line, const char *first, const char *second)
{
    char path[2][32] = {"/tmp/msb-conf-XXXXXX", "/tmp/msb-conf-XXXXXX"}, text[512];
    const char *const texts[2] = {first, second ? second : ""};
    for (int i = 0; i < 2; i++) {
        AUTO_CLOSE int fd = mkstemp(path[i]);
        assert_true(fd >= 0 && dprintf(fd, "%s", texts[i]) == (int)strlen(texts[i]));
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(text, sizeof(text), line, path[0], path[1]);
#pragma GCC diagnostic pop
    parse(l, &cmd_create, text);
    for (int i = 0; i < 2; i++)
        (void)unlink(path[i]);
}

static void conf_says(const char *line, const char *first, const char *second, const char *want)
{
    struct line l;
    char got[512] = "";
    with_files(&l, line, first, second);
    if (l.ret < 0)
        fail_msg("%s", l.e.msg);
    for (size_t i = 0; i < l.a.n_opts; i++) {
        size_t at = strlen(got);
        if (!strstr(l.a.opts[i].opt->name, "conf"))
            (void)snprintf(got + at, sizeof(got) - at, "%s%s%s;", l.a.opts[i].opt->name,
                           l.a.opts[i].value ? "=" : "",
                           l.a.opts[i].value ? l.a.opts[i].value : "");
    }
    if (l.a.n_pos)
        (void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "image %s", l.a.pos[0]);
    assert_string_equal(got, want);
    args_free(&l.a);
}

static void settings_from_files(void **state)
{
    assert_int_equal(setenv("MSB_TEST_CONF", "v:1", 1), 0);
    conf_says("--conf %s", "image: python:3\nmemory: 1G\nread_only: true\nnet-strict: false\n",
              NULL, "memory=1G;read-only;image python:3");
    conf_says("--conf %s", "env: {A: \"1\", B: \"${MSB_TEST_CONF}\"}\nvolume: [/a:/a, /b:/b]\n",
              NULL, "env=A=1;env=B=v:1;volume=/a:/a;volume=/b:/b;");
    /* The command line wins, the last file before others; the first of rules does. */
    conf_says("--memory 2G -e A=2 --conf %s alpine", "image: x\nmemory: 1G\nenv: [A=1]\n", NULL,
              "env=A=1;memory=2G;env=A=2;image alpine");
    conf_says("--conf %s --conf %s", "image: x\nmemory: 1G\nread-only: true\nenv: A=1\n",
              "image: y\nmemory: 2G\nread-only: false\nenv: A=2\n",
              "env=A=1;memory=2G;env=A=2;image y");
    conf_says("--conf %s --net-rule deny@a.org", "net-rule: [allow@a.org]\nnet: public\n", NULL,
              "net=public;net-rule=deny@a.org;net-rule=allow@a.org;");
    conf_says("--conf %s --no-net", "net-rule: [allow@a.org]\nnet: public\nport: [\"0:80\"]\n",
              NULL, "port=0:80;no-net;");
    conf_says("--conf %s --net all", "network: none\nnet-rule: [deny@a.org]\n", NULL,
              "net=all;net-rule=deny@a.org;");
    /* Each sibling has its part. */
    conf_says("--net-conf %s --resource-conf %s", "net: none\n", "cpus: 2\npids-limit: 9\n",
              "net=none;cpus=2;pids-limit=9;");
    conf_says("--fs-conf %s --secret-conf %s", "tmpfs: /t\n", "secret: [K@h.org]\nsecret-env: T\n",
              "tmpfs=/t;secret=K@h.org;secret-env=T;");
    conf_says("--script-conf %s --runtime-conf %s", "script: {a: true}\n",
              "user: me\nhostname: h\n", "script=a=true;user=me;hostname=h;");
}

static void conf_refused(const char *option, const char *text, const char *msg, const char *hint)
{
    char line[64];
    struct line l;
    (void)snprintf(line, sizeof(line), "--%s %%s", option);
    with_files(&l, line, text, NULL);
    assert_int_equal(l.ret, -EINVAL);
    if (!strstr(l.e.msg, msg) || (hint && (!l.e.hints || !strstr(l.e.hint[0], hint))))
        fail_msg("'%s': '%s', hint '%s'", text, l.e.msg, l.e.hints ? l.e.hint[0] : "");
    args_free(&l.a);
}

static void files_with_mistakes(void **state)
{
    conf_refused("conf", "memory: 1G\nmemroy: 2G\n", ":2:9: unknown key 'memroy'",
                 "did you mean 'memory'?");
    conf_refused("conf", "memory: 1G\nmemory: 2G\n", "'memory' is given twice", NULL);
    conf_refused("conf", "memory: [1G]\n", ":1:9: memory must be a single value", NULL);
    conf_refused("conf", "volume: {a: b}\n", "volume must be a value, or a list of them", NULL);
    conf_refused("conf", "env: [[a]]\n", "env must be a single value", NULL);
    conf_refused("conf", "read-only: yes\n", "read-only must be true or false", NULL);
    conf_refused("conf", "engine: qemu\n", "engine: 'qemu' is not one of auto|kvm|uml", NULL);
    conf_refused("conf", "workdir: ${MSB_TEST_UNSET}\n", "MSB_TEST_UNSET is not set", NULL);
    conf_refused("conf", "workdir: ${a b}\n", "${NAME}", NULL);
    conf_refused("conf", "memory:\n", "memory has no value", NULL);
    conf_refused("conf", "a: &x 1\n", "anchors and aliases", NULL);
    conf_refused("conf", "- a\n", "must be a map of keys", NULL);
    conf_refused("conf", "policy: /dev/null\n", "unknown key 'policy'", NULL);
    conf_refused("conf", "conf: x\n", "unknown key 'conf'", NULL);
    conf_refused("conf", "replace: true\n", "unknown key 'replace'", NULL);
    conf_refused("net-conf", "memory: 1G\n", "unknown key 'memory'", NULL);
    conf_refused("resource-conf", "image: x\n", "unknown key 'image'", NULL);
    conf_refused("secret-conf", "script: {a: b}\n", "unknown key 'script'", NULL);
    refused(&cmd_create, "--conf /nonexistent", ENOENT,
            "cannot read --conf /nonexistent: No such file or directory");
    refused(&cmd_create, "--conf /dev/null", EINVAL, "--conf /dev/null is not a regular file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_from_files),
        cmocka_unit_test(files_with_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
