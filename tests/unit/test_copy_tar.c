/* Trees out of tar streams: what a sink is told, and what is refused. */
#include "copy/tar.h"
#include "tar_builder.h"
#include "unit.h"
#include "util/buf.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes down what it is told, one line for each thing. */
struct diary {
    struct tree_sink sink;
    struct buf text;
};

static void note(struct tree_sink *s, const char *what, const struct file_attr *a)
{
    struct diary *d = (struct diary *)s;
    int r = buf_printf(&d->text, "%s %s %o %u:%u %lld", what, a->name, a->mode & 07777, a->uid,
                       a->gid, (long long)a->mtime_ns);
    if (r == 0 && a->has & (FILE_HAS_TARGET | FILE_HAS_HARD))
        r = buf_printf(&d->text, " %s %s", a->has & FILE_HAS_HARD ? "=" : "->", a->target);
    if (r == 0)
        r = buf_printf(&d->text, "\n");
    assert_int_equal(r, 0);
}

static int on_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    note(s, "dir", a);
    return 0;
}

static int on_leave(struct tree_sink *s, struct err *e)
{
    return buf_printf(&((struct diary *)s)->text, "leave\n");
}

static int on_file(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    note(s, "file", a);
    return 0;
}

static int on_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    return buf_printf(&((struct diary *)s)->text, "data %.*s\n", (int)n, (const char *)p);
}

static int on_done(struct tree_sink *s, struct err *e)
{
    return 0;
}

static int on_link(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    note(s, "link", a);
    return 0;
}

static const struct tree_sink_ops ops = {
    .dir = on_dir,
    .leave = on_leave,
    .file = on_file,
    .data = on_data,
    .done = on_done,
    .link = on_link,
};

static int run(struct tb *b, struct diary *d, struct err *e)
{
    struct tree_progress p = {0};
    AUTO_CLOSE int fd = memfd_create("tar", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, b->p, b->len), (ssize_t)b->len);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    *d = (struct diary){.sink.ops = &ops};
    buf_init(&d->text, 1 << 20);
    int r = tree_from_tar(fd, &d->sink, &p, e);
    tb_free(b);
    return r;
}

static void tells(struct tb *b, const char *want)
{
    struct diary d;
    struct err e = {0};
    tb_end(b);
    if (run(b, &d, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(buf_append(&d.text, "", 1), 0);
    assert_string_equal((const char *)buf_head(&d.text), want);
    buf_free(&d.text);
}

static void refused(struct tb *b, int code, const char *why)
{
    struct diary d;
    struct err e = {0};
    assert_int_equal(run(b, &d, &e), -code);
    if (!strstr(e.msg, why))
        fail_msg("'%s' does not say '%s'", e.msg, why);
    buf_free(&d.text);
}

static void file(struct tb *b, const char *name, const char *data)
{
    tb_add(b, (struct tb_entry){
                  .name = name, .type = '0', .data = data, .size = strlen(data), .mtime = 1});
}

static void trees(void **state)
{
    struct tb b = {0};
    tb_add(&b, (struct tb_entry){.name = "./", .type = '5', .mode = 0700});
    tb_add(&b, (struct tb_entry){.name = "./d/", .type = '5', .mode = 0750, .uid = 7, .gid = 8});
    file(&b, "/d//./f", "abc");
    file(&b, "other/deep/g", "");
    tb_add(&b, (struct tb_entry){.name = "other/old/", .type = '\0', .mode = 0711});
    tb_add(&b, (struct tb_entry){.name = "other/s", .type = '2', .link = "../d"});
    tb_add(&b, (struct tb_entry){.name = "h", .type = '1', .link = "./d//f"});
    tb_add(&b, (struct tb_entry){.name = "null", .type = '3'});
    tb_pax(&b, "mtime", "-1.25", 5);
    tb_pax(&b, "uid", "4000000000", 10);
    tb_pax(&b, "path", "long", 4);
    file(&b, "short", "x");
    tells(&b, "dir d 750 7:8 0\n"
              "file f 644 0:0 1000000000\n"
              "data abc\n"
              "leave\n"
              "dir other 755 0:0 0\n"
              "dir deep 755 0:0 0\n"
              "file g 644 0:0 1000000000\n"
              "leave\n"
              "dir old 711 0:0 0\n"
              "leave\n"
              "link s 644 0:0 0 -> ../d\n"
              "leave\n"
              "link h 644 0:0 0 = d/f\n"
              "file long 644 4000000000:0 -1250000000\n"
              "data x\n");
}

/* A global header sets what all entries after it have, until another one or an entry's own PAX
 * header says otherwise; an empty value brings the field of the header back. */
static void global_headers(void **state)
{
    struct tb b = {0};
    file(&b, "before", "");
    tb_pax_global(&b, "comment", "abc");
    tb_pax_global(&b, "uid", "5");
    tb_pax_global(&b, "mtime", "7");
    file(&b, "both", "");
    tb_pax(&b, "uid", "6", 1);
    file(&b, "own", "");
    file(&b, "both-again", "");
    tb_pax(&b, "mtime", "", 0);
    file(&b, "field", "");
    tb_pax_global(&b, "mtime", "8");
    file(&b, "other", "");
    tb_pax_global(&b, "uid", "");
    file(&b, "after", "");
    tells(&b, "file before 644 0:0 1000000000\n"
              "file both 644 5:0 7000000000\n"
              "file own 644 6:0 7000000000\n"
              "file both-again 644 5:0 7000000000\n"
              "file field 644 5:0 1000000000\n"
              "file other 644 5:0 8000000000\n"
              "file after 644 0:0 8000000000\n");
    /* One between a PAX header and its entry takes nothing from the entry. */
    tb_add(&b, (struct tb_entry){.name = "x", .type = 'x', .data = "10 path=n\n", .size = 10});
    tb_pax_global(&b, "uid", "5");
    file(&b, "short", "1");
    tells(&b, "file n 644 5:0 1000000000\ndata 1\n");
    static const char *const keys[] = {"path", "linkpath", "size"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        tb_pax_global(&b, keys[i], "1");
        file(&b, "a", "1");
        refused(&b, EBADMSG, "global PAX header");
    }
    tb_pax_global(&b, "GNU.sparse.major", "1");
    refused(&b, EBADMSG, "sparse");
    tb_pax_global(&b, "uid", "x");
    refused(&b, EBADMSG, "PAX header");
}

static void hostile(void **state)
{
    struct tb b = {0};
    refused(&b, ENOMSG, "standard input is empty");
    tb_raw(&b, "text", 4);
    refused(&b, ENOMSG, "not a tar archive");
    static const char *const out[] = {"../f", "a/../../f", "/../f", "a/.."};
    for (size_t i = 0; i < ARRAY_LEN(out); i++) {
        file(&b, out[i], "x");
        refused(&b, EPERM, "unsafe path");
        tb_add(&b, (struct tb_entry){.name = "h", .type = '1', .link = out[i]});
        refused(&b, EPERM, "unsafe link target");
    }
    tb_add(&b, (struct tb_entry){.name = "s", .type = '2', .link = ""});
    refused(&b, EBADMSG, "empty link target");
    tb_add(&b, (struct tb_entry){.name = "", .type = '0'});
    refused(&b, EBADMSG, "has no name");
    tb_add(&b, (struct tb_entry){.name = "u", .type = '0', .uid = 1ULL << 32});
    refused(&b, EBADMSG, "invalid header");
    tb_pax(&b, "uid", "4294967296", 10);
    file(&b, "u", "");
    refused(&b, EBADMSG, "PAX header");
    tb_add(&b, (struct tb_entry){.name = "a", .type = 'S'});
    refused(&b, EBADMSG, "sparse");
    tb_add(&b, (struct tb_entry){.name = "cut", .type = '0', .size = 1000});
    refused(&b, EBADMSG, "truncated or corrupt archive");
    tb_add(&b, (struct tb_entry){.name = "cut", .type = '0', .size = 512});
    tb_raw(&b, "x", 1);
    refused(&b, EBADMSG, "truncated or corrupt archive");
    file(&b, "a", "x");
    tb_raw(&b, "x", 1);
    refused(&b, EBADMSG, "truncated or corrupt archive");
    char name[300];
    memset(name, 'n', sizeof(name));
    tb_pax(&b, "path", name, PROTO_NAME_MAX + 1);
    file(&b, "a", "");
    refused(&b, EBADMSG, "too long");
    static char deep[PROTO_DEPTH_MAX * 2 + 4];
    for (size_t i = 0; i < sizeof(deep) - 2; i++)
        deep[i] = i % 2 ? '/' : 'd';
    tb_pax(&b, "path", deep, strlen(deep));
    file(&b, "a", "");
    refused(&b, EBADMSG, "nested too deeply");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees),
        cmocka_unit_test(global_headers),
        cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
