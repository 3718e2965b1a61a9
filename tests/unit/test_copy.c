/* Where a copy goes; what a host directory takes of a tree; what messages about files may say. */
#include "client/files.h"
#include "copy/copy.h"
#include "copy/host.h"
#include "spec/patch.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void paths(void **state)
{
    static const struct {
        const char *text, *path, *parent, *name;
        bool slash, contents;
    } cases[] = {
        {"/a/b", "/a/b", "/a", "b", false, false},
        {"/a/b/", "/a/b", "/a", "b", true, false},
        {"/a/b//", "/a/b", "/a", "b", true, false},
        {"/a/b/.", "/a/b", "/a", "b", true, true},
        {"/a/./", "/a", "/", "a", true, true},
        {"/a", "/a", "/", "a", false, false},
        {"/", "/", "/", "", true, true},
        {"/.", "/", "/", "", true, true},
        {"a", "a", ".", "a", false, false},
        {"a/", "a", ".", "a", true, false},
        {".", ".", ".", "", true, true},
        {"..", "..", ".", "", true, true},
        {"./a", "./a", ".", "a", false, false},
        {"a/..", "a/..", "a", "", true, true},
        {"a:b", "a:b", ".", "a:b", false, false},
        {"-", "-", ".", "-", false, false},
        {"./", ".", ".", "", true, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        static struct copy_path p;
        struct err e = {0};
        assert_int_equal(copy_path_parse(&p, cases[i].text, &e), 0);
        assert_string_equal(p.path, cases[i].path);
        assert_string_equal(p.parent, cases[i].parent);
        assert_string_equal(p.name, cases[i].name);
        assert_int_equal(p.slash, cases[i].slash);
        assert_int_equal(p.contents, cases[i].contents);
    }
    static struct copy_path p;
    struct err e = {0};
    static char longest[PROTO_PATH_MAX + 2];
    assert_int_equal(copy_path_parse(&p, "", &e), -ENOENT);
    memset(longest, 'x', sizeof(longest) - 1);
    assert_int_equal(copy_path_parse(&p, longest, &e), -ENAMETOOLONG);
    longest[PROTO_NAME_MAX + 1] = '\0';
    assert_int_equal(copy_path_parse(&p, longest, &e), -ENAMETOOLONG);
    longest[PROTO_NAME_MAX] = '\0';
    assert_int_equal(copy_path_parse(&p, longest, &e), 0);
}

/* The table of docker's documentation. */
static void places(void **state)
{
    enum { NONE, FILE_, DIR_ };
    static const struct {
        const char *src, *dst;
        bool src_is_dir;
        int there;
        int want;
    } cases[] = {
        {"f", "/x", false, NONE, PLACE_AS},   {"f", "/x", false, FILE_, PLACE_AS},
        {"f", "/x", false, DIR_, PLACE_IN},   {"f", "/x/", false, DIR_, PLACE_IN},
        {"f", "/x/", false, NONE, -ENOENT},   {"f", "/x/", false, FILE_, -ENOTDIR},
        {"f/", "/x", false, NONE, -ENOTDIR},  {"d", "/x", true, NONE, PLACE_AS},
        {"d", "/x/", true, NONE, PLACE_AS},   {"d/.", "/x", true, NONE, PLACE_AS},
        {"d", "/x", true, FILE_, -ENOTDIR},   {"d", "/x", true, DIR_, PLACE_IN},
        {"d/", "/x", true, DIR_, PLACE_IN},   {"d/.", "/x", true, DIR_, PLACE_MERGE},
        {".", "/x", true, DIR_, PLACE_MERGE}, {"/", "/x", true, DIR_, PLACE_MERGE},
        {"d", "/x/..", true, NONE, -ENOENT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        static struct copy_path src, dst;
        struct err e = {0};
        assert_int_equal(copy_path_parse(&src, cases[i].src, &e), 0);
        assert_int_equal(copy_path_parse(&dst, cases[i].dst, &e), 0);
        struct copy_facts f = {.src = &src,
                               .dst = &dst,
                               .src_is_dir = cases[i].src_is_dir,
                               .dst_exists = cases[i].there != NONE,
                               .dst_is_dir = cases[i].there == DIR_};
        int got = copy_place(&f, &e);
        if (got != cases[i].want)
            print_error("%s to %s: %s\n", cases[i].src, cases[i].dst, e.msg);
        assert_int_equal(got, cases[i].want);
    }
}

/* --- messages --- */

static struct proto_frame frame_of(const struct buf *b)
{
    struct proto_frame f;
    assert_int_equal(proto_peek(b, &f), 1);
    return f;
}

static void attributes(void **state)
{
    static struct file_attr a, b;
    struct buf out = {.limit = 1 << 20};
    struct proto_writer w;
    struct stat st = {.st_mode = S_IFREG | 0640, .st_size = 5, .st_uid = 7, .st_gid = 8};
    st.st_mtim = (struct timespec){.tv_sec = -2, .tv_nsec = 5};
    file_attr_of(&a, &st);
    assert_int_equal(a.mtime_ns, -1999999995);
    a.has |= FILE_HAS_NAME | FILE_HAS_TARGET | FILE_HAS_PATH;
    (void)snprintf(a.name, sizeof(a.name), "name");
    (void)snprintf(a.target, sizeof(a.target), "../x");
    (void)snprintf(a.path, sizeof(a.path), "/p");
    proto_begin(&w, &out, PROTO_FILE_ENTRY);
    file_attr_put(&w, &a);
    assert_int_equal(proto_end(&w), 0);
    struct proto_frame f = frame_of(&out);
    assert_int_equal(file_attr_parse(&b, &f), 0);
    assert_int_equal(b.has, a.has);
    assert_int_equal(b.mode, a.mode);
    assert_int_equal(b.size, 5);
    assert_int_equal(b.mtime_ns, a.mtime_ns);
    assert_string_equal(b.name, "name");
    assert_string_equal(b.target, "../x");
    assert_string_equal(b.path, "/p");
    st.st_mtim.tv_sec = INT64_MAX / 1000; /* beyond what nanoseconds can say */
    file_attr_of(&a, &st);
    assert_int_equal(a.mtime_ns, 0);
    buf_free(&out);
}

static int parse_one(uint16_t tag, const void *p, size_t n)
{
    static struct file_attr a;
    struct buf out = {.limit = 1 << 20};
    struct proto_writer w;
    proto_begin(&w, &out, PROTO_FILE_ENTRY);
    proto_bytes(&w, tag, p, n);
    assert_int_equal(proto_end(&w), 0);
    struct proto_frame f = frame_of(&out);
    int r = file_attr_parse(&a, &f);
    buf_free(&out);
    return r;
}

static void attributes_that_make_no_sense(void **state)
{
    static char longest[PROTO_PATH_MAX + 2];
    memset(longest, 'x', sizeof(longest));
    static const char *const bad[] = {"", ".", "..", "/", "a/b", "../x", "/x"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(parse_one(F_FILE_NAME, bad[i], strlen(bad[i])), -EPROTO);
    assert_int_equal(parse_one(F_FILE_NAME, "...", 3), 0);
    assert_int_equal(parse_one(F_FILE_NAME, "a\0b", 3), -EPROTO);
    assert_int_equal(parse_one(F_FILE_NAME, longest, PROTO_NAME_MAX), 0);
    assert_int_equal(parse_one(F_FILE_NAME, longest, PROTO_NAME_MAX + 1), -EPROTO);
    assert_int_equal(parse_one(F_FILE_TARGET, longest, PROTO_PATH_MAX), 0);
    assert_int_equal(parse_one(F_FILE_TARGET, longest, PROTO_PATH_MAX + 1), -EPROTO);
    assert_int_equal(parse_one(F_FILE_TARGET, "", 0), -EPROTO);
    assert_int_equal(parse_one(F_FILE_SIZE, "\xff\xff\xff\xff\xff\xff\xff\xff", 8), -EPROTO);
    assert_int_equal(parse_one(F_FILE_SIZE, "1234", 4), -EPROTO);
    assert_int_equal(parse_one(F_FILE_MODE, "12345678", 8), -EPROTO);
    assert_int_equal(parse_one(999, "whatever", 8), 0); /* of a later version */
}

static void requests(void **state)
{
    static struct file_req a, b;
    struct buf out = {.limit = 1 << 20};
    assert_int_equal(file_req_init(&a, FILE_OP_WRITE, "/x", FILE_ATOMIC), 0);
    a.has = FILE_HAS_MODE | FILE_HAS_UID | FILE_HAS_GID | FILE_HAS_SIZE | FILE_HAS_OFFSET |
            FILE_HAS_LENGTH | FILE_HAS_LIMIT | FILE_HAS_MTIME | FILE_HAS_ATIME | FILE_HAS_TO;
    a.mode = 1, a.uid = 2, a.gid = 3, a.size = 4, a.offset = 5, a.length = 6, a.limit = 7;
    a.mtime_ns = -8, a.atime_ns = 9;
    (void)snprintf(a.to, sizeof(a.to), "to");
    assert_int_equal(file_req_put(&out, &a), 0);
    struct proto_frame f = frame_of(&out);
    assert_int_equal(file_req_parse(&b, &f), 0);
    assert_int_equal(b.has, a.has | FILE_HAS_PATH);
    assert_memory_equal((char *)&b + sizeof(b.has), (char *)&a + sizeof(a.has),
                        offsetof(struct file_req, path) - sizeof(a.has));
    assert_string_equal(b.path, "/x");
    assert_string_equal(b.to, "to");
    buf_free(&out);
}

/* --- the host's side --- */

struct place {
    char path[64];
    int fd;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    *state = p;
    (void)snprintf(p->path, sizeof(p->path), "/tmp/msb-test-copy-XXXXXX");
    if (!p || !mkdtemp(p->path) || chdir(p->path) < 0)
        return -1;
    if (mkdir("dest", 0700) < 0 || mkdir("outside", 0700) < 0)
        return -1;
    p->fd = open("dest", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return p->fd < 0 ? -1 : 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    (void)close(p->fd);
    (void)!chdir("/");
    int r = remove_tree_at(AT_FDCWD, p->path);
    free(p);
    return r;
}

static struct file_attr *attr(const char *name, uint32_t mode, const char *target)
{
    static struct file_attr a;
    a = (struct file_attr){.has = FILE_HAS_NAME | FILE_HAS_MODE | FILE_HAS_MTIME,
                           .mode = mode,
                           .size = 100,
                           .mtime_ns = 1234567890};
    (void)snprintf(a.name, sizeof(a.name), "%s", name);
    if (target) {
        a.has |= FILE_HAS_TARGET;
        (void)snprintf(a.target, sizeof(a.target), "%s", target);
    }
    return &a;
}

static int put_file(struct host_sink *h, const char *name, uint32_t mode, struct err *e)
{
    struct tree_sink *s = &h->sink;
    int r = s->ops->file(s, attr(name, S_IFREG | mode, NULL), e);
    if (r == 0)
        r = s->ops->data(s, "data", 4, e);
    return r < 0 ? r : s->ops->done(s, e);
}

static struct host_sink sink;

static void links_are_not_followed(void **state)
{
    struct place *p = *state;
    struct tree_sink *s = &sink.sink;
    struct err e = {0};
    struct stat st;
    host_sink_begin(&sink, p->fd, false, false);
    assert_int_equal(s->ops->link(s, attr("l", S_IFLNK, "../outside"), &e), 0);
    assert_int_equal(s->ops->dir(s, attr("l", S_IFDIR | 0755, NULL), &e), -ENOTDIR);
    assert_int_equal(s->ops->link(s, attr("f", S_IFLNK, "../outside/f"), &e), 0);
    assert_int_equal(put_file(&sink, "f", 06755, &e), 0);
    host_sink_end(&sink);
    assert_int_equal(access("outside/f", F_OK), -1);
    assert_int_equal(lstat("dest/f", &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0755);
    assert_int_equal(st.st_mtim.tv_sec, 1);
    assert_int_equal(st.st_mtim.tv_nsec, 234567890);
}

/* The directory is replaced by a link meanwhile: we write to the one that we hold open. */
static void directories_are_held(void **state)
{
    struct place *p = *state;
    struct tree_sink *s = &sink.sink;
    struct err e = {0};
    host_sink_begin(&sink, p->fd, false, false);
    assert_int_equal(s->ops->dir(s, attr("d", S_IFDIR | 0500, NULL), &e), 0);
    assert_int_equal(rename("dest/d", "dest/moved"), 0);
    assert_int_equal(symlink("../outside", "dest/d"), 0);
    assert_int_equal(put_file(&sink, "f", 0644, &e), 0);
    assert_int_equal(s->ops->leave(s, &e), 0);
    host_sink_end(&sink);
    struct stat st;
    assert_int_equal(access("outside/f", F_OK), -1);
    assert_int_equal(access("dest/moved/f", F_OK), 0);
    assert_int_equal(stat("dest/moved", &st), 0);
    assert_int_equal(st.st_mode & 07777, 0500);
    assert_int_equal(chmod("dest/moved", 0700), 0); /* so that others than root can remove it */
}

static void files_do_not_replace_directories(void **state)
{
    struct place *p = *state;
    struct tree_sink *s = &sink.sink;
    struct err e = {0};
    assert_int_equal(mkdir("dest/d", 0711), 0);
    host_sink_begin(&sink, p->fd, false, false);
    assert_int_equal(put_file(&sink, "d", 0644, &e), -EISDIR);
    assert_int_equal(s->ops->link(s, attr("d", S_IFLNK, "x"), &e), -EISDIR);
    assert_int_equal(s->ops->dir(s, attr("d", S_IFDIR | 0777, NULL), &e), 0); /* entered */
    assert_int_equal(s->ops->leave(s, &e), 0);
    host_sink_end(&sink);
    struct stat st;
    assert_int_equal(stat("dest/d", &st), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
    AUTO_CLOSE int empty = open("dest", O_RDONLY | O_DIRECTORY);
    assert_int_equal(unlinkat(empty, "d", AT_REMOVEDIR), 0);
    assert_int_equal(rmdir("dest"), 0); /* nothing temporary stayed */
}

static void half_a_file_has_no_name(void **state)
{
    struct place *p = *state;
    struct tree_sink *s = &sink.sink;
    struct err e = {0};
    host_sink_begin(&sink, p->fd, false, false);
    assert_int_equal(s->ops->file(s, attr("f", S_IFREG, NULL), &e), 0);
    assert_int_equal(s->ops->data(s, "half", 4, &e), 0);
    host_sink_end(&sink);
    assert_int_equal(rmdir("dest"), 0);
}

static void a_merge_takes_a_directory(void **state)
{
    struct place *p = *state;
    struct tree_sink *s = &sink.sink;
    struct err e = {0};
    host_sink_begin(&sink, p->fd, true, false);
    assert_int_equal(s->ops->file(s, attr("f", S_IFREG, NULL), &e), -ENOTDIR);
    assert_int_equal(s->ops->link(s, attr("f", S_IFLNK, "x"), &e), -ENOTDIR);
    assert_int_equal(s->ops->dir(s, attr("whatever", S_IFDIR | 0777, NULL), &e), 0);
    assert_int_equal(put_file(&sink, "f", 0644, &e), 0);
    assert_int_equal(s->ops->leave(s, &e), 0);
    host_sink_end(&sink);
    assert_int_equal(access("dest/f", F_OK), 0);
}

static void trees_are_not_endless(void **state)
{
    struct place *p = *state;
    struct tree_sink *s = &sink.sink;
    struct err e = {0};
    int r = 0, depth = 0;
    host_sink_begin(&sink, p->fd, false, false);
    for (; r == 0 && depth < 1000; depth++)
        r = s->ops->dir(s, attr("d", S_IFDIR | 0700, NULL), &e);
    host_sink_end(&sink);
    assert_int_equal(r, -ELOOP);
    assert_true(depth >= PROTO_DEPTH_MAX);
}

/* Nor wide: of whatever kind, so many things and no more. */
static void trees_have_so_many_things(void **state)
{
    static const mode_t kinds[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct tree_progress p = {.entries = COPY_ENTRIES_MAX - 1};
        struct err e = {0};
        assert_int_equal(tree_note(&p, attr("x", kinds[i], NULL), &e), 0);
        assert_int_equal(tree_note(&p, attr("x", kinds[i], NULL), &e), -E2BIG);
        assert_string_equal(e.msg, "more than 20000000 files");
    }
}

/* --- frames --- */

/* Of a kind that may be long elsewhere, and longer than there is room for: it must not be waited
 * for. */
static void a_frame_that_is_too_long(void **state)
{
    struct proto_hdr h = {.len = htole32(2 << 20), .type = htole16(PROTO_EXEC)};
    struct proto_frame frame;
    struct files f;
    struct err e = {0};
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(files_open(&f, fd[0], "box", NULL, NULL, &e), 0);
    assert_int_equal(write(fd[1], &h, sizeof(h)), sizeof(h));
    (void)alarm(10);
    assert_int_equal(files_next(&f, &frame, &e), -EPROTO);
    (void)alarm(0);
    files_close(&f);
    (void)close(fd[1]);
}

/* --- names on a terminal --- */

static char warned[512];

static void keep_warning(const char *text)
{
    (void)snprintf(warned, sizeof(warned), "%s", text);
}

static void names_are_shown_without_effect(void **state)
{
    struct tree_progress p = {.warn = keep_warning};
    struct err e = {0};
    static struct file_attr a = {.mode = S_IFIFO, .name = "a\033[2Jb\xc2\x9b-\xe2\x80\xae-\xff"};
    assert_int_equal(tree_note(&p, &a, &e), 0);
    assert_non_null(strstr(warned, "'a?[2Jb?-?-?'"));
}

/* --- patches --- */

static void patches(void **state)
{
    struct spec_patches l = {0}, back = {0};
    struct err e = {0};
    assert_int_equal(spec_patches_add(&l, PATCH_COPY_FILE, "/src/f", "/etc//x/", &e), 0);
    assert_string_equal(l.v[0].path, "/etc/x/");
    assert_int_equal(spec_patches_add(&l, PATCH_COPY_DIR, "/src", "/etc/d/", &e), 0);
    assert_string_equal(l.v[1].path, "/etc/d");
    assert_int_equal(spec_patches_add(&l, PATCH_MKDIR, NULL, "/a/../b", &e), -EINVAL);
    assert_int_equal(spec_patches_add(&l, PATCH_MKDIR, NULL, "/a/b", &e), 0);
    assert_int_equal(spec_patches_add(&l, PATCH_REMOVE, NULL, "/", &e), -EINVAL);
    assert_int_equal(spec_patches_add(&l, PATCH_REMOVE, NULL, "x", &e), -EINVAL);
    assert_int_equal(spec_patches_add(&l, PATCH_COPY_FILE, "rel", "/x", &e), -EINVAL);
    assert_int_equal(spec_patches_add(&l, PATCH_COPY_FILE, NULL, "/x", &e), -EINVAL);
    json_t *j = spec_patches_to_json(&l);
    assert_int_equal(spec_patches_from_json(&back, j, &e), 0);
    assert_int_equal(back.n, l.n);
    for (size_t i = 0; i < l.n; i++) {
        assert_int_equal(back.v[i].kind, l.v[i].kind);
        assert_string_equal(back.v[i].path, l.v[i].path);
    }
    assert_string_equal(back.v[0].source, "/src/f");
    json_decref(j);
    spec_patches_free(&back);
    static const char *const bad[] = {"{}",
                                      "[1]",
                                      "[{}]",
                                      "[{\"type\":\"Mkdir\"}]",
                                      "[{\"type\":\"Nope\",\"path\":\"/x\"}]",
                                      "[{\"type\":\"CopyFile\",\"dst\":\"/x\"}]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_t *b = json_loads(bad[i], 0, NULL);
        assert_non_null(b);
        assert_int_equal(spec_patches_from_json(&back, b, &e), -EINVAL);
        json_decref(b);
        spec_patches_free(&back);
    }
    int r = 0;
    while (r == 0 && l.n <= SPEC_PATCHES_MAX)
        r = spec_patches_add(&l, PATCH_MKDIR, NULL, "/x", &e);
    assert_int_equal(r, -E2BIG);
    spec_patches_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),
        cmocka_unit_test(places),
        cmocka_unit_test(attributes),
        cmocka_unit_test(attributes_that_make_no_sense),
        cmocka_unit_test(requests),
        cmocka_unit_test_setup_teardown(links_are_not_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(directories_are_held, setup, teardown),
        cmocka_unit_test_setup_teardown(files_do_not_replace_directories, setup, teardown),
        cmocka_unit_test_setup_teardown(half_a_file_has_no_name, setup, teardown),
        cmocka_unit_test_setup_teardown(a_merge_takes_a_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(trees_are_not_endless, setup, teardown),
        cmocka_unit_test(trees_have_so_many_things),
        cmocka_unit_test(a_frame_that_is_too_long),
        cmocka_unit_test(names_are_shown_without_effect),
        cmocka_unit_test(patches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
