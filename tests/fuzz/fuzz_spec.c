/* spec.json from a stranger: nothing in it may crash the reader, and what the reader accepts must
 * come out of the writer as it went in.
 *
 * The input is read as JSON where it is JSON. Otherwise it directs changes to a well-formed spec:
 * each four bytes pick a member and a value to put there, so that noise gets past the parser too.
 */
#include "proto/proto.h"
#include "spec/spec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *some_value(unsigned pick, unsigned arg)
{
    switch (pick % 12) {
    case 0:
        return json_null();
    case 1:
        return json_true();
    case 2:
        return json_integer((json_int_t)arg - 128);
    case 3:
        return json_integer(INT64_MAX - (json_int_t)arg);
    case 4:
        return json_integer(INT64_MIN + (json_int_t)arg);
    case 5:
        return json_real(((double)arg - 100) * 1e300);
    case 6:
        return json_real((double)arg / 7);
    case 7:
        return json_stringn("a\0b", arg % 4);
    case 8:
        return json_string(arg & 1 ? "/../x" : "unlimited");
    case 9:
        return json_array();
    case 10:
        return json_object();
    default:
        return json_pack("[{s:s, s:i}, i]", "key", "K", "value", (int)arg, (int)arg);
    }
}

/* Walks down from the root as the bytes say, and changes what it finds there. */
static void change(json_t *at, const uint8_t *p)
{
    unsigned way = p[0] | (unsigned)p[1] << 8;
    for (int depth = 0; depth < 8; depth++, way /= 7) {
        json_t *down = NULL;
        const char *key = NULL;
        size_t index = 0;
        if (json_is_object(at) && json_object_size(at)) {
            void *it = json_object_iter(at);
            for (size_t i = way % json_object_size(at); i > 0; i--)
                it = json_object_iter_next(at, it);
            key = json_object_iter_key(it);
            down = json_object_iter_value(it);
        } else if (json_is_array(at) && json_array_size(at)) {
            index = way % json_array_size(at);
            down = json_array_get(at, index);
        }
        if (!down)
            return;
        bool leaf = !json_is_object(down) && !json_is_array(down);
        if (leaf || (p[2] & 0x80 && depth == (p[2] & 3))) {
            if (key)
                (void)json_object_set_new(at, key, some_value(p[2], p[3]));
            else
                (void)json_array_set_new(at, index, some_value(p[2], p[3]));
            return;
        }
        at = down;
    }
}

static json_t *well_formed(void)
{
    struct sandbox_spec s;
    spec_init(&s);
    s.name = strdup("fuzz");
    s.image = strdup("./rootfs");
    s.image_kind = IMAGE_DIRECTORY;
    s.image_digest =
        strdup("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    s.pull = IMAGE_PULL_NEVER;
    s.stop_signal = strdup("SIGINT");
    s.user = strdup("nobody");
    (void)spec_add_port(&s, "80/tcp", NULL);
    (void)spec_add_volume(&s, "/data", NULL);
    s.idle_timeout_ms = 1500;
    (void)strlist_add(&s.env, "A=b");
    (void)strlist_add(&s.cmd, "sh");
    (void)spec_add_label(&s, "team=search", NULL);
    (void)spec_add_mount(&s,
                         &(struct spec_mount){.guest = (char *)"/scratch",
                                              .size = 1 << 20,
                                              .options = PROTO_MOUNT_RO},
                         NULL);
    (void)spec_add_script(&s, "hi", "#!/bin/sh\n", NULL);
    (void)spec_add_rlimit(&s, "nofile=1:2", NULL);
    (void)spec_net_set_profile(&s.net, "public,host", NULL);
    (void)spec_net_add_rules(&s.net, "allow@*.example.com:tcp:443,deny:any@10.0.0.0/8", NULL);
    (void)spec_net_add_nameserver(&s.net, "[2620:fe::fe]:53", NULL);
    (void)spec_net_add_ports(&s.net, "[::1]:8000-8001:80-81/udp", NULL);
    s.max_cpus = 2.5;
    s.max_memory_mib = 1024;
    s.placement_profile = strdup("fast");
    (void)spec_init_set_path(&s.init, "/sbin/init", NULL);
    (void)strlist_add(&s.init.args, "--unit=x");
    (void)strlist_add(&s.init.env, "container=msb");
    (void)spec_pool_parse("10.9.0.0/16", true, &s.net.pool4, NULL);
    (void)spec_pool_parse("fd00:1::/48", false, &s.net.pool6, NULL);
    json_t *j = spec_validate(&s, NULL) == 0 ? spec_to_config(&s) : NULL;
    spec_free(&s);
    return j;
}

/* Accepted: writing and reading it again must change nothing. */
static void check_stable(const struct sandbox_spec *s)
{
    struct sandbox_spec again;
    spec_init(&again);
    json_t *first = spec_to_json(s);
    if (!first || spec_from_json(&again, first, NULL) < 0)
        abort();
    json_t *second = spec_to_json(&again);
    if (!second || !json_equal(first, second))
        abort();
    json_decref(first);
    json_decref(second);
    spec_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *model;
    if (!model && !(model = well_formed()))
        abort();
    json_t *j = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    if (!j) {
        j = json_deep_copy(model);
        for (size_t i = 0; i + 4 <= size && i < 64; i += 4)
            change(j, data + i);
    }
    struct sandbox_spec s;
    struct err e = {0};
    spec_init(&s);
    if (spec_from_json(&s, j, &e) == 0)
        check_stable(&s);
    else if (!e.msg[0])
        abort();
    spec_free(&s);
    json_decref(j);
    return 0;
}
