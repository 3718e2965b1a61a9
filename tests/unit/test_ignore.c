/* .msbignore: what git says about the same rules and the same files. */
#include <stdint.h>

#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "workspace/ignore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A directory ends with a slash. */
static const char *const paths[] = {
    "a",
    "b.o",
    "#x",
    "!y",
    "sp ",
    "x y",
    "[z]",
    "a*b",
    "build/",
    "build/a",
    "build/b.o",
    "foo/",
    "foo/bar",
    "foo/x/",
    "foo/x/bar",
    "foo/x/y/",
    "foo/x/y/bar",
    "foo/baz",
    "node_modules/",
    "node_modules/p/",
    "node_modules/p/index.js",
    "web/",
    "web/node_modules/",
    "web/node_modules/q",
    "web/build/",
    "web/build/c.o",
    "web/a",
    "abc/",
    "abc/def/",
    "abc/def/ghi",
    "ABC",
    "a1",
    "a2",
    "a]",
    "a-",
    "d/",
    "d/b.o",
    "d/keep.o",
    "d/e/",
    "d/e/f/",
    "d/e/f/g.txt",
    "\xc3\xbc.o",
    "xx/",
    "xx/foo/",
    "xx/foo/bar",
    "z\\",
    "deep/",
    "deep/deep/",
    "deep/deep/a",
};

static const char *const fixed[] = {
    "*.o\n!keep.o\n",
    "build\n",
    "/build\n",
    "build/\n!build/a\n",
    "node_modules/\n",
    "foo/bar\n",
    "**/foo/bar\n",
    "foo/**/bar\n",
    "abc/**\n!abc/def/ghi\n",
    "abc/*\n!abc/def/\n",
    "**\n!a\n",
    "*\n!*/\n!*.txt\n",
    "/*\n!/d\n/d/*\n!/d/e\n",
    "\\#x\n\\!y\nsp\\ \nx?y\n",
    "#x\n!y\nsp \n",
    "a[0-9]\na[]-]\n",
    "a[!0-9]\n[[]z]\n",
    "[[:upper:]]*\n",
    "[[:nonsense:]]*\na[\n[a\n",
    "a\\*b\nz\\\\\nz\\\n",
    "/\n//\n!\n*/\n",
    "\xef\xbb\xbf/a\r\nbuild\r\n",
    "**/a\na/**\ndeep/**/a\n**/deep/\n",
    "d/**/f\n",
    "?\n??\n",
    "[a-c-e]*\n[\\]]*\n[a\\-z]\n",
    "foo/*/bar\n*/x\n",
    "web/*/c.o\nw*b/b*d/*.o\n",
};

static char root[] = "/tmp/msb-ignore-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static int make_tree(void **state)
{
    char command[1024];
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        size_t n = strlen(paths[i]);
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s", root, paths[i]);
        if (paths[i][n - 1] == '/')
            assert_int_equal(mkdir(path, 0700), 0);
        else
            put(paths[i], "");
    }
    (void)snprintf(command, sizeof(command), "git -C %s init -q 2>/dev/null", root);
    FILE *f =
        popen(command, "re"); /* NOLINT(cert-env33-c): git from PATH is what is tested against */
    return f && pclose(f) == 0 ? 0 : -1;
}

static int remove_tree(void **state)
{
    return remove_tree_at(AT_FDCWD, root);
}

/* Without the slash, which git would match, too. */
static bool bare(const char *path, char out[512])
{
    size_t n = strlen(path);
    bool dir = path[n - 1] == '/';
    (void)snprintf(out, 512, "%.*s", (int)(n - dir), path);
    return dir;
}

/* Which paths git ignores. */
static void ask_git(const char *rules, bool ret[ARRAY_LEN(paths)])
{
    char command[1024], line[512];
    put(".gitignore", rules);
    (void)snprintf(command, sizeof(command), "%s/.git/asked", root);
    FILE *asked = fopen(command, "we");
    assert_non_null(asked);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        bare(paths[i], line);
        (void)fputs(line, asked);
        (void)fputc('\0', asked);
    }
    assert_int_equal(fclose(asked), 0);
    (void)snprintf(command, sizeof(command),
                   "git -C %s -c core.excludesFile=/dev/null -c core.ignoreCase=false check-ignore "
                   "--no-index -z --stdin <%s/.git/asked",
                   root, root);
    FILE *f = popen(command, "re"); /* NOLINT(cert-env33-c) */
    assert_non_null(f);
    memset(ret, 0, ARRAY_LEN(paths) * sizeof(*ret));
    for (size_t n = 0;;) {
        int c = fgetc(f);
        if (c == EOF)
            break;
        line[n++] = (char)c;
        assert_true(n < sizeof(line));
        if (c)
            continue;
        for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
            char path[512];
            bare(paths[i], path);
            ret[i] = ret[i] || strcmp(path, line) == 0;
        }
        n = 0;
    }
    assert_true(pclose(f) >= 0);
}

static void compare(const char *rules)
{
    AUTO_IGNORE struct ignore g = {0};
    bool git[ARRAY_LEN(paths)];
    ask_git(rules, git);
    assert_int_equal(ignore_parse(rules, strlen(rules), &g), 0);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        char path[512];
        bool dir = bare(paths[i], path);
        if (ignore_covers(&g, path, dir) != git[i])
            fail_msg("'%s': git says %d with the rules:\n%s", paths[i], git[i], rules);
    }
}

static void test_known_rules(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        compare(fixed[i]);
}

/* Lists put together of pieces, always the same ones. "x**" is left out: versions of git disagree on it. */
static void test_composed_rules(void **state)
{
    static const char *const pieces[] = {
        "a", "*",    "?",   "foo", "bar", "build", "node_modules", "x",  "[a-f]", "[!a]", ".o", "d",
        "e", "deep", "*.o", "ab",  "c",   "\\*",   "[[:alpha:]]",  "web"};
    uint32_t random = 1;
    for (int round = 0; round < 120; round++) {
        char rules[1024] = "";
        size_t at = 0;
        for (int line = 0; line < 4; line++) {
            random = random * 1664525 + 1013904223;
            uint32_t r = random >> 8;
            bool keep = r % 4 == 0, top = r % 5 == 0, dir = r % 3 == 0;
            at += (size_t)snprintf(rules + at, sizeof(rules) - at, "%s%s", keep ? "!" : "",
                                   top          ? "/"
                                   : r % 7 == 0 ? "**/"
                                                : "");
            for (unsigned i = 0; i <= r / 64 % 3; i++) {
                random = random * 1664525 + 1013904223;
                at += (size_t)snprintf(rules + at, sizeof(rules) - at, "%s%s",
                                       i == 0              ? ""
                                       : random >> 30 == 0 ? "/**/"
                                                           : "/",
                                       pieces[(random >> 8) % ARRAY_LEN(pieces)]);
            }
            at += (size_t)snprintf(rules + at, sizeof(rules) - at, "%s\n",
                                   dir           ? "/"
                                   : r % 11 == 0 ? "/**"
                                                 : "");
        }
        compare(rules);
    }
}

static void test_limits(void **state)
{
    AUTO_IGNORE struct ignore g = {0};
    AUTO_FREE char *text = calloc(1, (size_t)4 * IGNORE_RULES_MAX);
    assert_non_null(text);
    const size_t most = IGNORE_RULES_MAX;
    for (size_t i = 0; i <= most; i++) {
        text[2 * i] = 'a';
        text[2 * i + 1] = '\n';
    }
    assert_int_equal(ignore_parse(text, 2 * most, &g), 0);
    assert_int_equal(g.n, IGNORE_RULES_MAX);
    ignore_free(&g);
    assert_int_equal(ignore_parse(text, 2 * most + 2, &g), -E2BIG);
    memset(text, 'a', IGNORE_RULE_MAX + 1);
    assert_int_equal(ignore_parse(text, IGNORE_RULE_MAX + 1, &g), -E2BIG);
}

/* A rule that takes exponential time with backtracking, and many of those. */
static void test_hostile_rules(void **state)
{
    char rules[256] = "", path[700];
    AUTO_IGNORE struct ignore g = {0};
    for (size_t at = 0; at < 240; at += 5)
        memcpy(rules + at, "**/a*", 6);
    strcat(rules, "/b"); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): it fits */
    memset(path, 'a', sizeof(path) - 1);
    for (size_t i = 1; i < sizeof(path) - 2; i += 2)
        path[i] = '/';
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(ignore_parse(rules, strlen(rules), &g), 0);
    assert_false(ignore_covers(&g, path, false));
    assert_true(g.steps < 100000000);
    g.steps = UINT64_MAX / 2;
    assert_int_equal(ignore_check(&g, NULL), -E2BIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_rules),
        cmocka_unit_test(test_composed_rules),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_hostile_rules),
    };
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
