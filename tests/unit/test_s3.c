/* Signatures as AWS publishes them; documents and manifests that lie; what a sync decides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/config.h"
#include "s3/credentials.h"
#include "s3/plan.h"
#include "s3/resign.h"
#include "s3/sigv4.h"
#include "s3/work.h"
#include "s3/xml.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* --- signatures ------------------------------------------------------------------------------ */

/* Of aws-sig-v4-test-suite, and of the examples in the S3 API reference. Lists are separated by
 * '\n'. */
static const struct vector {
    const char *name, *method, *path, *query, *header, *payload, *signature;
    bool s3;
} vectors[] = {
    {"get-vanilla", "GET", "/", "", "", SIGV4_EMPTY_SHA256,
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31", false},
    {"post-vanilla", "POST", "/", "", "", SIGV4_EMPTY_SHA256,
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b", false},
    {"get-vanilla-query-order-key-case", "GET", "/", "Param2=value2\nParam1=value1", "",
     SIGV4_EMPTY_SHA256, "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500", false},
    {"get-unreserved", "GET", "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
     "", "", SIGV4_EMPTY_SHA256, "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
     false},
    {"get-utf8", "GET", "/%E1%88%B4", "", "", SIGV4_EMPTY_SHA256,
     "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85", false},
    {"get-vanilla-utf8-query", "GET", "/", "%E1%88%B4=bar", "", SIGV4_EMPTY_SHA256,
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04", false},
    {"post-x-www-form-urlencoded", "POST", "/", "",
     "content-type:application/x-www-form-urlencoded",
     "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e",
     "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a", false},
    {"s3-get-object", "GET", "/test.txt", "", "range:bytes=0-9", SIGV4_EMPTY_SHA256,
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", true},
    {"s3-put-object", "PUT", "/test%24file.text", "",
     "date:Fri, 24 May 2013 00:00:00 GMT\nx-amz-storage-class:REDUCED_REDUNDANCY",
     "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd", true},
    {"s3-bucket-lifecycle", "GET", "/", "lifecycle=", "", SIGV4_EMPTY_SHA256,
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543", true},
    {"s3-list", "GET", "/", "prefix=J\nmax-keys=2", "", SIGV4_EMPTY_SHA256,
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7", true},
};

static void split(struct strlist *l, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        assert_int_equal(strlist_take(l, strndup(text, n)), 0);
        text += n + (text[n] == '\n');
    }
}

static void check_vector(const struct vector *v)
{
    AUTO_STRLIST struct strlist query = {0}, header = {0};
    AUTO_BUF struct buf out;
    static const struct sigv4_key suite = {
        "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1", "service"};
    static const struct sigv4_key s3 = {
        "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3"};
    char line[128];
    struct sigv4_request q = {.method = v->method,
                              .path = v->path,
                              .query = &query,
                              .header = &header,
                              .payload_sha256 = v->payload};
    buf_init(&out, 4096);
    sigv4_time(v->s3 ? 1369353600 : 1440938160, q.time);
    split(&query, v->query);
    split(&header, v->header);
    split(&header, v->s3 ? "host:examplebucket.s3.amazonaws.com" : "host:example.amazonaws.com");
    (void)snprintf(line, sizeof(line), "x-amz-date:%s", q.time);
    split(&header, line);
    (void)snprintf(line, sizeof(line), "x-amz-content-sha256:%s", v->payload);
    if (v->s3)
        split(&header, line);
    assert_int_equal(sigv4_sign(&out, v->s3 ? &s3 : &suite, &q), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    const char *end = strstr((const char *)buf_head(&out), "Signature=");
    assert_non_null(end);
    if (strcmp(end + 10, v->signature) != 0)
        fail_msg("%s: %s", v->name, (const char *)buf_head(&out));
}

static void test_published_signatures(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++)
        check_vector(&vectors[i]);
}

/* The same, of a request that was signed with a key that is none. */
static void resign_vector(const struct vector *v)
{
    static struct http_head head;
    AUTO_STRLIST struct strlist query = {0}, header = {0};
    AUTO_BUF struct buf text = {.limit = 1 << 16}, out = {.limit = 1 << 16};
    const char *why = "", *t = v->s3 ? "20130524T000000Z" : "20150830T123600Z";
    bool body = strcmp(v->payload, SIGV4_EMPTY_SHA256) != 0;
    if (strchr(v->path, '%') || (body && !v->s3)) /* their raw form is not in the table */
        return;
    split(&query, v->query);
    split(&header, v->header);
    split(&header, v->s3 ? "host:examplebucket.s3.amazonaws.com" : "host:example.amazonaws.com");
    (void)buf_printf(&text, "%s %s", v->method, v->path);
    for (size_t i = 0; i < query.n; i++)
        (void)buf_printf(&text, "%c%s", i ? '&' : '?', query.v[i]);
    (void)buf_printf(&text, " HTTP/1.1\r\nX-Amz-Date: %s\r\n", t);
    if (v->s3)
        (void)buf_printf(&text, "X-Amz-Content-Sha256: %s\r\n", v->payload);
    (void)buf_printf(&text,
                     "Authorization: AWS4-HMAC-SHA256 Credential=NONE/%.8s/us-east-1/%s/"
                     "aws4_request,SignedHeaders=x-amz-date%s",
                     t, v->s3 ? "s3" : "service", v->s3 ? ";x-amz-content-sha256" : "");
    for (size_t i = 0; i < header.n; i++)
        (void)buf_printf(&text, ";%.*s", (int)strcspn(header.v[i], ":"), header.v[i]);
    (void)buf_printf(&text, ", Signature=00\r\n");
    for (size_t i = 0; i < header.n; i++)
        (void)buf_printf(&text, "%s\r\n", header.v[i]);
    (void)buf_printf(&text, "\r\n");
    if (http_request((const char *)buf_head(&text), buf_len(&text), &head, &why) < 0)
        fail_msg("%s: the request %s", v->name, why);
    int r = resign(&head,
                   v->s3 ? "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
                         : "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                   NULL, 0, &out, &why);
    const char *end = r < 0 ? NULL : strstr((const char *)buf_head(&out), "Signature=");
    if (!end || strcmp(end + 10, v->signature) != 0)
        fail_msg("%s: %d %s %s", v->name, r, why, r < 0 ? "" : (const char *)buf_head(&out));
}

static int resign_text(const char *fields, const char *body, const char **why)
{
    static struct http_head head;
    AUTO_BUF struct buf text = {.limit = 1 << 16}, out = {.limit = 1 << 16};
    *why = "";
    (void)buf_printf(&text, "POST /a//b HTTP/1.1\r\nHost: x\r\n%s\r\n", fields);
    assert_int_equal(http_request((const char *)buf_head(&text), buf_len(&text), &head, why), 0);
    return resign(&head, "ID:SECRET:TOKEN", body, body ? strlen(body) : 0, &out, why);
}

static void test_requests_are_signed_again(void **state)
{
#define SIGNED(service, names)                                                  \
    "X-Amz-Date: 20150830T123600Z\r\nAuthorization: AWS4-HMAC-SHA256 "          \
    "Credential=NONE/20150830/r/" service "/aws4_request, SignedHeaders=" names \
    ", Signature=0\r\n"
    const char *why;
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++)
        resign_vector(&vectors[i]);
    assert_int_equal(resign_text(SIGNED("s3", "host") "Content-Length: 3\r\n", NULL, &why),
                     -ENODATA);
    assert_int_equal(resign_text(SIGNED("s3", "host") "Content-Length: 3\r\n", "abc", &why), 0);
    assert_int_equal(resign_text(SIGNED("s3", "x-amz-date"), NULL, &why), -EINVAL);
    assert_string_equal(why, "has not signed its Host");
    assert_int_equal(resign_text(SIGNED("s3", "host;x-no"), NULL, &why), -EINVAL);
    assert_int_equal(resign_text(SIGNED("sqs", "host"), NULL, &why), -EINVAL);
    assert_non_null(strstr(why, "path"));
    assert_int_equal(resign_text(SIGNED("s3", "host") "X-Amz-Content-Sha256: "
                                                      "STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n",
                                 NULL, &why),
                     -EINVAL);
    assert_non_null(strstr(why, "chunk"));
    assert_int_equal(resign_text("Authorization: AWS4-HMAC-SHA256 x\r\n", NULL, &why), -EINVAL);
    assert_int_equal(resign_text("Authorization: Bearer x\r\n", NULL, &why), -EINVAL);
#undef SIGNED
}

/* '=' sorts after '-': whole pairs must not be compared as text. */
static void test_queries_are_sorted_by_name(void **state)
{
    AUTO_STRLIST struct strlist q = {0};
    AUTO_BUF struct buf out;
    buf_init(&out, 4096);
    split(&q, "a-b=1\na=2\na=1");
    assert_int_equal(sigv4_query(&out, &q), 0);
    assert_memory_equal(buf_head(&out), "a=1&a=2&a-b=1", 13);
}

/* --- XML ------------------------------------------------------------------------------------- */

static int collect(void *ctx, const char *path, const char *text)
{
    struct buf *b = ctx;
    return buf_printf(b, "%s=%s|", path, text);
}

static int parse(const char *text, char *out, size_t size)
{
    AUTO_BUF struct buf b;
    buf_init(&b, 65536);
    int r = xml_parse(text, strlen(text), collect, &b);
    (void)snprintf(out, size, "%.*s", (int)buf_len(&b), (const char *)buf_head(&b));
    return r;
}

static void test_xml(void **state)
{
    static const struct {
        const char *text, *is; /* NULL = refused */
    } docs[] = {
        {"<?xml version='1.0'?>\n<A xmlns=\"x\"><B>1 &amp; &#50;&#x33;&lt;</B><C/></A>\n",
         "/A/B=1 & 23<|/A/C=|/A=|"},
        {"<s:A><!-- > --><s:B>\xc3\xa4&#xe4;&#x1F600;</s:B></s:A>",
         "/A/B=\xc3\xa4\xc3\xa4\xf0\x9f\x98\x80|/A=|"},
        {"", NULL},
        {"text", NULL},
        {"<A>", NULL},
        {"<A></B>", NULL},
        {"<A></A><B></B>", NULL},
        {"<A>&unknown;</A>", NULL},
        {"<A>&#0;</A>", NULL},
        {"<A>&#xD800;</A>", NULL},
        {"<A>&#x110000;</A>", NULL},
        {"<A>&#99999999999999999999;</A>", NULL},
        {"<A>\xff</A>", NULL},
        {"<A b=1></A>", NULL},
        {"<A b=\"<\"></A>", NULL},
        {"<A\"></A>", NULL},
        {"<!DOCTYPE x [<!ENTITY a \"b\">]><A>&a;</A>", NULL},
        {"<A><![CDATA[x]]></A>", NULL},
        {"<A><?php x?></A>", NULL},
        {"<A><!-- </A>", NULL},
        {"<A><A><A><A><A><A><A><A><A></A></A></A></A></A></A></A></A></A>", NULL},
        {"</A>", NULL},
        {"<></>", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(docs); i++) {
        char out[1024];
        int r = parse(docs[i].text, out, sizeof(out));
        if (!docs[i].is && r != -EBADMSG)
            fail_msg("accepted: %s", docs[i].text);
        if (docs[i].is) {
            assert_int_equal(r, 0);
            assert_string_equal(out, docs[i].is);
        }
    }
}

/* --- names ----------------------------------------------------------------------------------- */

static void test_paths(void **state)
{
    char name[300] = "";
    static const char *const good[] = {"a", "a/b", ".git/HEAD", "..a", "a/.msb/x", "\xc3\xa4 b"};
    static const char *const bad[] = {"",       "/a",   "a/",    "a//b",  ".",
                                      "..",     "a/..", "./a",   "a/./b", ".msb",
                                      ".msb/x", "a\nb", "a\x7f", "\xff",  "a/../../etc/passwd"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_true(s3_path_ok(good[i]));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(s3_path_ok(bad[i]));
    memset(name, 'n', 255);
    assert_true(s3_path_ok(name));
    memset(name, 'n', 256);
    assert_false(s3_path_ok(name));
}

static void test_urls(void **state)
{
    static const struct {
        const char *url, *bucket, *prefix; /* NULL = refused */
    } urls[] = {{"s3://bucket", "bucket", ""},
                {"s3://bucket/", "bucket", ""},
                {"s3://b.c-d/x/y/", "b.c-d", "x/y/"},
                {"bucket", NULL, NULL},
                {"s3://b", NULL, NULL},
                {"s3://bucket/../x", NULL, NULL},
                {"s3://bucket/a//b", NULL, NULL},
                {"s3://buc ket", NULL, NULL},
                {"s3://user@bucket", NULL, NULL},
                {"s3://bucket/.msb", NULL, NULL}};
    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        AUTO_S3_CONFIG struct s3_config c = {0};
        struct err e = {0};
        int r = s3_config_url(&c, urls[i].url, &e);
        assert_int_equal(r, urls[i].bucket ? 0 : -EINVAL);
        if (urls[i].bucket) {
            assert_string_equal(c.bucket, urls[i].bucket);
            assert_string_equal(c.prefix, urls[i].prefix);
        }
    }
}

/* --- keys ------------------------------------------------------------------------------------ */

static void test_keys(void **state)
{
    static const char file[] = "# mine\n[default]\naws_access_key_id = A\n"
                               "aws_secret_access_key=B/+=\r\n\n[profile two]\n"
                               "aws_access_key_id=C\naws_secret_access_key=D\n"
                               "aws_session_token = T\n[half]\naws_access_key_id=E\n"
                               "[bad]\naws_access_key_id=a b\naws_secret_access_key=x\n";
    AUTO_S3_CREDENTIALS struct s3_credentials one = {0}, two = {0}, three = {0}, four = {0};
    assert_int_equal(s3_profile_parse(file, "default", &one), 0);
    assert_string_equal(one.id, "A");
    assert_string_equal(one.secret, "B/+=");
    assert_null(one.token);
    assert_int_equal(s3_profile_parse(file, "two", &two), 0);
    assert_string_equal(two.token, "T");
    assert_int_equal(s3_profile_parse(file, "half", &three), -ENOENT);
    assert_int_equal(s3_profile_parse(file, "none", &three), -ENOENT);
    assert_int_equal(s3_profile_parse(file, "bad", &three), -EINVAL);
    assert_int_equal(s3_secret_parse("ID:SECRET", &three), 0);
    assert_string_equal(three.secret, "SECRET");
    assert_int_equal(s3_secret_parse("{\"AccessKeyId\": \"I\", \"SecretAccessKey\": \"S\", "
                                     "\"SessionToken\": \"T\"}",
                                     &four),
                     0);
    assert_string_equal(four.token, "T");
    struct s3_credentials none = {0};
    assert_int_equal(s3_secret_parse("nothing", &none), -EINVAL);
    assert_int_equal(s3_secret_parse("a:b\nx-evil: 1", &none), -EINVAL);
    assert_int_equal(s3_secret_parse("a/b:c", &none), -EINVAL);
}

/* --- manifests ------------------------------------------------------------------------------- */

#define SHA "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void test_manifest(void **state)
{
    static const char text[] =
        "{\"version\":1,\"entries\":{"
        "\"b/f\":{\"type\":\"file\",\"mode\":493,\"size\":3,\"mtime_ns\":5,\"sha256\":\"" SHA
        "\",\"etag\":\"e\",\"staged\":\"0a\"},"
        "\"b\":{\"type\":\"dir\",\"mode\":493},"
        "\"../x\":{\"type\":\"dir\",\"mode\":493},"
        "\"no-sha\":{\"type\":\"file\",\"mode\":420},"
        "\"mode\":{\"type\":\"dir\",\"mode\":2541},"
        "\"size\":{\"type\":\"file\",\"size\":-1,\"sha256\":\"" SHA "\"},"
        "\"etag\":{\"type\":\"file\",\"sha256\":\"" SHA "\",\"etag\":\"a\\r\\nb\"},"
        "\"type\":{\"type\":\"socket\"},\"list\":[]},"
        "\"gone\":[\"0123456789abcdef 89abcdef/f\",\"../f\",{}],"
        "\"pending\":[\"p\",\"../q\",7,\"0123456789abcdef r\",\"0123456789abcdef /\"],"
        "\"lineage\":\"89abcdef01234567\",\"push\":\"0123456789abcdef\"}";
    AUTO_S3_TREE struct s3_tree t = {0}, again = {0};
    assert_int_equal(s3_tree_parse(text, strlen(text), &t), 0);
    assert_int_equal(t.n, 2);
    assert_int_equal(t.pending.n, 2);
    assert_string_equal(t.pending.v[0], S3_NO_MARK " p");
    assert_string_equal(t.pending.v[1], "0123456789abcdef r");
    assert_int_equal(t.gone.n, 1);
    assert_string_equal(t.gone.v[0], "0123456789abcdef 89abcdef/f");
    const struct s3_entry *f = s3_tree_find(&t, "b/f");
    assert_non_null(f);
    assert_string_equal(f->staged, "0a");
    assert_int_equal(f->mode, 0755);
    AUTO_FREE char *dump = s3_tree_dump(&t, false);
    assert_non_null(dump);
    assert_int_equal(s3_tree_parse_own(dump, strlen(dump), &again), 0);
    assert_string_equal(again.lineage, "89abcdef01234567");
    assert_string_equal(again.push, "0123456789abcdef");
    assert_true(s3_entry_same(s3_tree_find(&again, "b/f"), f));
    assert_true(strlist_same(&again.gone, &t.gone) && strlist_same(&again.pending, &t.pending));
    struct s3_tree none = {0};
    static const char *const bad[] = {"", "[]", "{}", "{\"version\":2,\"entries\":{}}",
                                      "{\"version\":1,\"entries\":{\"a\":1,\"a\":2}}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(s3_tree_parse(bad[i], strlen(bad[i]), &none), -EBADMSG);
}

/* Of the longest path and of the deepest, by either parser. */
static void test_lists_at_the_limits(void **state)
{
    enum { DEPTH = 128 };
    char path[2][S3_PATH_MAX + 1], name[S3_GONE_SIZE];
    memset(path, 'x', sizeof(path));
    for (size_t i = 200; i < S3_PATH_MAX; i += 200)
        path[0][i] = '/';
    for (size_t i = 1; i < 2 * DEPTH - 1; i += 2)
        path[1][i] = '/';
    path[0][S3_PATH_MAX] = path[1][2 * DEPTH - 1] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(path); i++) {
        AUTO_S3_TREE struct s3_tree t = {0}, own = {0}, any = {0};
        assert_true(s3_path_ok(path[i]));
        s3_gone_name("1", path[i], name);
        assert_int_equal(strlist_printf(&t.pending, "0123456789abcdef %s", path[i]), 0);
        assert_int_equal(strlist_printf(&t.gone, "0123456789abcdef %s", name), 0);
        AUTO_FREE char *text = s3_tree_dump(&t, false);
        assert_int_equal(s3_tree_parse_own(text, strlen(text), &own), 0);
        assert_int_equal(s3_tree_parse_any(text, strlen(text), &any), 0);
        assert_true(strlist_same(&own.gone, &t.gone) && strlist_same(&own.pending, &t.pending));
        assert_true(strlist_same(&any.gone, &t.gone) && strlist_same(&any.pending, &t.pending));
    }
}

static void test_marks(void **state)
{
    enum { NOW = 0x6a000000, HOUR = 3600 };
    struct s3_remote r = {.who = "00c0ffee", .now = NOW};
    AUTO_STRLIST struct strlist l = {0};
    char ours[S3_MARK + 1], theirs[S3_MARK + 1];
    static const struct {
        int age;
        bool fresh, others;
    } at[] = {{-48 * HOUR, true, false}, {-HOUR, true, true},       {0, true, true},
              {11 * HOUR, true, true},   {13 * HOUR, false, true},  {23 * HOUR, false, true},
              {24 * HOUR, false, false}, {400 * HOUR, false, false}};
    s3_mark(&r, ours);
    assert_string_equal(ours, "00c0ffee6a000000");
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        (void)snprintf(ours, sizeof(ours), "00c0ffee%08x", (unsigned)(NOW - at[i].age));
        (void)snprintf(theirs, sizeof(theirs), "0badcafe%08x", (unsigned)(NOW - at[i].age));
        assert_int_equal(s3_mark_is_fresh(&r, ours), at[i].fresh);
        assert_int_equal(s3_mark_is_others(&r, theirs), at[i].others);
        assert_false(s3_mark_is_others(&r, ours) || s3_mark_is_fresh(&r, theirs));
    }
    static const char *const old[] = {"", "0a", S3_NO_MARK, "zzzzzzzzzzzzzzzz"};
    for (size_t i = 0; i < ARRAY_LEN(old); i++)
        assert_false(s3_mark_is_others(&r, old[i]) || s3_mark_is_fresh(&r, old[i]));
    assert_null(s3_pending_find(&l, "a"));
    static const char *const pending[] = {"0000000000000002 b", "0000000000000003 a",
                                          "0000000000000001 c d"};
    for (size_t i = 0; i < ARRAY_LEN(pending); i++)
        assert_int_equal(strlist_add(&l, pending[i]), 0);
    s3_pending_sort(&l);
    assert_string_equal(l.v[0], pending[1]);
    assert_string_equal(s3_pending_find(&l, "c d"), pending[2]);
    assert_null(s3_pending_find(&l, "d"));
}

static void test_ids(void **state)
{
    char end[8 + 1], id[S3_ID + 1], of_key[S3_KEY_ID + 1], of_other[S3_KEY_ID + 1];
    s3_id_end("etag", end);
    (void)snprintf(id, sizeof(id), "00c0ffee6a0000000123456789abcdef%s", end);
    assert_int_equal(strlen(id), S3_ID);
    assert_true(s3_id_replaces(id, "etag"));
    assert_false(s3_id_replaces(id, "") || s3_id_replaces(id, "etag-2"));
    id[32] = '\0'; /* an earlier version's */
    assert_true(s3_id_replaces(id, "") && s3_id_replaces(id, "etag"));
    s3_key_id("a/b", of_key);
    s3_key_id("a/c", of_other);
    assert_int_equal(strlen(of_key), S3_KEY_ID);
    assert_string_not_equal(of_key, of_other);
}

/* An object is gone with its ETag, and only if it is a directory's where there is a file now. */
static void test_gone(void **state)
{
    AUTO_S3_REMOTE struct s3_remote r = {0};
    struct s3_entry o = {.path = (char[]){"a/b"}, .etag = "1"};
    char name[S3_GONE_SIZE];
    assert_null(s3_gone_find(&r, &o));
    s3_gone_name("1", "a/b", name);
    assert_int_equal(strlist_printf(&r.manifest.gone, "0123456789abcdef %s", name), 0);
    assert_string_equal(s3_gone_find(&r, &o), r.manifest.gone.v[0]);
    o.etag[0] = '2';
    assert_null(s3_gone_find(&r, &o));
    o.etag[0] = '1';
    assert_non_null(s3_tree_add(&r.manifest, o.path, &o));
    assert_null(s3_gone_find(&r, &o));
    o.kind = S3_KIND_DIR;
    assert_non_null(s3_gone_find(&r, &o));
}

/* A bucket can hold both "a" and "a/b"; a directory tree cannot. */
static void test_implied_directories(void **state)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    struct s3_entry file = {.kind = S3_KIND_FILE, .mode = 0644, .sha = SHA};
    static const char *const paths[] = {"a", "a-b", "a/b", "c/d/e", "c/d/f", "c/g", "h", "h/i"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        assert_non_null(s3_tree_add(&t, paths[i], &file));
    s3_tree_sort(&t);
    assert_int_equal(s3_tree_imply_dirs(&t), 0);
    assert_int_equal(t.n, 10);
    static const char *const dirs[] = {"a", "c", "c/d", "h"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        assert_int_equal(s3_tree_find(&t, dirs[i])->kind, S3_KIND_DIR);
    assert_int_equal(s3_tree_find(&t, "a-b")->kind, S3_KIND_FILE);
    assert_string_equal(t.v[s3_tree_below(&t, "a")].path, "a/b");
    assert_string_equal(t.v[s3_tree_below(&t, "c/d")].path, "c/d/e");
    assert_int_equal(s3_tree_below(&t, ""), 0);
    assert_int_equal(s3_tree_below(&t, "i"), t.n);
}

static void test_names_with_quotes(void **state)
{
    static const char path[] = "a\"b\\c\\/\u00fc";
    AUTO_S3_TREE struct s3_tree t = {0}, again = {0};
    struct s3_entry file = {.kind = S3_KIND_FILE,
                            .mode = 0644,
                            .sha = SHA,
                            .etag = "e\\",
                            .later = "0123456789abcdef",
                            .guessed = true};
    assert_non_null(s3_tree_add(&t, path, &file));
    assert_int_equal(strlist_add(&t.pending, "0123456789abcdef p\"q"), 0);
    AUTO_FREE char *dump = s3_tree_dump(&t, true), *shared = s3_tree_dump(&t, false);
    assert_int_equal(s3_tree_parse(dump, strlen(dump), &again), 0);
    assert_int_equal(again.n, 1);
    assert_string_equal(again.v[0].path, path);
    assert_string_equal(again.v[0].etag, file.etag);
    assert_string_equal(again.v[0].later, file.later);
    assert_true(again.v[0].guessed);
    assert_string_equal(again.pending.v[0], "0123456789abcdef p\"q");
    assert_string_equal(shared,
                        "{\"version\":1,\"entries\":{},\"pending\":[\"0123456789abcdef p\\\"q\"]}");
}

/* What we wrote is read in one pass, and says the same as to the library, wherever it is damaged. */
static void test_two_ways_to_read(void **state)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    static char id[] = "0a-b";
    const struct s3_entry v[] = {
        {.kind = S3_KIND_DIR, .mode = 0755, .later = "0123456789abcdef"},
        {.mode = 0644, .size = INT64_MAX, .mtime_ns = 1, .sha = SHA, .etag = "a-1", .ino = 7},
        {.kind = S3_KIND_LINK, .mode = 0777, .sha = SHA, .staged = id, .guessed = true},
    };
    static const char *const paths[] = {"a\"b", "a/\\", "\u00fc"};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_non_null(s3_tree_add(&t, paths[i], &v[i]));
    s3_tree_sort(&t);
    assert_int_equal(strlist_add(&t.pending, "0123456789abcdef p"), 0);
    assert_int_equal(strlist_add(&t.gone, "0123456789abcdef 01234567/p"), 0);
    AUTO_FREE char *text = s3_tree_dump(&t, true), *shared = s3_tree_dump(&t, false);
    AUTO_S3_TREE struct s3_tree own = {0}, theirs = {0};
    assert_int_equal(s3_tree_parse_own(text, strlen(text), &own), 0);
    assert_int_equal(s3_tree_parse_own(shared, strlen(shared), &theirs), 0);
    assert_int_equal(own.n, ARRAY_LEN(v));
    for (size_t i = 0; text[i]; i++) {
        static const char damage[] = "\"\\,}0 9x\x01\xff";
        for (size_t k = 0; k < sizeof(damage); k++) {
            AUTO_S3_TREE struct s3_tree quick = {0}, slow = {0};
            char was = text[i];
            text[i] = k < sizeof(damage) - 1 ? damage[k] : was;
            size_t n = strlen(text);
            int r = s3_tree_parse(text, n, &quick);
            assert_int_equal(s3_tree_parse_any(text, n, &slow), r);
            AUTO_FREE char *a = s3_tree_dump(&quick, true), *b = s3_tree_dump(&slow, true);
            assert_string_equal(a, b);
            text[i] = was;
        }
    }
}

/* --- decisions ------------------------------------------------------------------------------- */

/* One letter for each side: '-' nothing, 'd' a directory, '?' of unknown content, else a
 * content. */
static void add_side(struct s3_tree *t, char c)
{
    struct s3_entry a = {.kind = c == 'd' ? S3_KIND_DIR : S3_KIND_FILE, .mode = 0755};
    if (c == '-')
        return;
    if (c != 'd' && c != '?')
        (void)snprintf(a.sha, sizeof(a.sha), "%c", c);
    assert_non_null(s3_tree_add(t, "p", &a));
}

static void test_decisions(void **state)
{
    static const struct {
        const char *sides; /* base, local, remote */
        enum s3_action action;
    } cases[] = {
        {"aaa", S3_KEEP},          {"-aa", S3_KEEP},     {"abb", S3_KEEP},
        {"aba", S3_UPLOAD},        {"-a-", S3_UPLOAD},   {"ab-", S3_UPLOAD},
        {"aab", S3_DOWNLOAD},      {"--a", S3_DOWNLOAD}, {"a-b", S3_DOWNLOAD},
        {"--?", S3_DOWNLOAD},      {"aa?", S3_DOWNLOAD}, {"aa-", S3_DELETE_LOCAL},
        {"a-a", S3_DELETE_REMOTE}, {"abc", S3_CONFLICT}, {"-ab", S3_CONFLICT},
        {"-a?", S3_CONFLICT},      {"a--", S3_FORGET},   {"ddd", S3_KEEP},
        {"--d", S3_DOWNLOAD},      {"-d-", S3_UPLOAD},   {"-da", S3_CONFLICT},
        {"-ad", S3_CONFLICT},      {"dda", S3_DOWNLOAD}, {"dd-", S3_DELETE_LOCAL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_S3_TREE struct s3_tree b = {0}, l = {0}, r = {0};
        AUTO_S3_PLAN struct s3_plan p = {0};
        add_side(&b, cases[i].sides[0]);
        add_side(&l, cases[i].sides[1]);
        add_side(&r, cases[i].sides[2]);
        assert_int_equal(s3_plan_make(&b, &l, &r, &(struct ignore){0}, &p, NULL), 0);
        assert_int_equal(p.n, 1);
        if (p.v[0].action != cases[i].action)
            fail_msg("%s: %d", cases[i].sides, (int)p.v[0].action);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_signatures),
        cmocka_unit_test(test_requests_are_signed_again),
        cmocka_unit_test(test_queries_are_sorted_by_name),
        cmocka_unit_test(test_xml),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_lists_at_the_limits),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_implied_directories),
        cmocka_unit_test(test_names_with_quotes),
        cmocka_unit_test(test_two_ways_to_read),
        cmocka_unit_test(test_decisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
