/* The documents of images: what is taken from them, and what is refused. */
#include <stdint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/oci/change.h"
#include "image/oci/json.h"
#include "image/oci/oci.h"
#include "unit.h"
#include "util/buf.h"
#include "util/cleanup.h"

#define D1 "sha256:1111111111111111111111111111111111111111111111111111111111111111"
#define D2 "sha256:2222222222222222222222222222222222222222222222222222222222222222"
#define D3 "sha256:3333333333333333333333333333333333333333333333333333333333333333"
#define OCI "application/vnd.oci.image."
#define DOCKER "application/vnd.docker."
#define DESC(type, digest, size) \
    "{\"mediaType\":\"" type "\",\"digest\":\"" digest "\",\"size\":" size "}"
#define CONFIG_DESC DESC(OCI "config.v1+json", D1, "100")
#define GZIP_DESC DESC(OCI "layer.v1.tar+gzip", D2, "200")
#define MANIFEST(config, layers) \
    "{\"schemaVersion\":2,\"config\":" config ",\"layers\":[" layers "]}"

static void expect_text(const struct digest *d, const char *want)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(d, text);
    assert_string_equal(text, want);
}

/* ---- digests ---- */

static void files(void **state)
{
    static char content[200000]; /* more than one read */
    struct digest all, d;
    for (size_t i = 0; i < sizeof(content); i++)
        content[i] = (char)(i / 1000);
    all = digest_of(content, sizeof(content));
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, sizeof(content), f), sizeof(content));
    rewind(f);
    assert_int_equal(digest_of_fd(fileno(f), &d), 0);
    assert_true(digest_equal(&d, &all));
    assert_int_equal(digest_of_fd(fileno(f), &d), 0); /* from its end on */
    expect_text(&d, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(fclose(f), 0);
    assert_int_equal(digest_of_fd(-1, &d), -EBADF);
}

/* ---- manifests ---- */

static struct oci_manifest manifest(const char *doc)
{
    struct oci_manifest m = {0};
    struct err e = {0};
    if (oci_manifest_parse(doc, strlen(doc), &m, &e) < 0)
        fail_msg("%s\n%s", e.msg, doc);
    return m;
}

static void refuse_manifest(const char *doc, const char *why)
{
    struct oci_manifest m = {0};
    struct err e = {0};
    assert_true(oci_manifest_parse(doc, strlen(doc), &m, &e) < 0);
    assert_null(m.layers);
    if (!strstr(e.msg, why))
        fail_msg("'%s' does not say '%s'", e.msg, why);
    assert_true(oci_manifest_parse(doc, strlen(doc), &m, NULL) < 0);
}

static void manifests(void **state)
{
    struct oci_manifest m =
        manifest(MANIFEST(CONFIG_DESC, GZIP_DESC
                          "," DESC(OCI "layer.v1.tar+zstd", D3, "9223372036854775807") "," DESC(
                              DOCKER "image.rootfs.diff.tar", D3, "0")));
    assert_int_equal(m.n_layers, 3);
    expect_text(&m.config.digest, D1);
    expect_text(&m.layers[0].digest, D2);
    assert_int_equal(m.layers[0].compression, OCI_GZIP);
    assert_int_equal(m.layers[1].compression, OCI_ZSTD);
    assert_int_equal(m.layers[2].compression, OCI_PLAIN);
    assert_int_equal(m.layers[0].size, 200);
    assert_true(m.layers[1].size == INT64_MAX);
    assert_string_equal(m.layers[0].media_type, OCI "layer.v1.tar+gzip");
    oci_manifest_free(&m);
    oci_manifest_free(&m);
    m = manifest("{\"schemaVersion\":2,\"mediaType\":\"" DOCKER
                 "distribution.manifest.v2+json\",\"config\":" DESC(
                     DOCKER "container.image.v1+json", D1,
                     "1") ",\"layers\":[" DESC(DOCKER "image.rootfs.diff.tar.gzip", D2,
                                               "1") "],\"more\":[{}]}");
    assert_int_equal(m.n_layers, 1);
    oci_manifest_free(&m);
}

static void bad_manifests(void **state)
{
    refuse_manifest("", "not valid JSON");
    refuse_manifest("[]", "not a JSON object");
    refuse_manifest("{}", "neither a manifest nor an index");
    refuse_manifest("{\"schemaVersion\":1,\"fsLayers\":[]}", "schema 1");
    refuse_manifest("{\"schemaVersion\":3,\"layers\":[]}", "schemaVersion is not 2");
    refuse_manifest("{\"schemaVersion\":\"2\",\"layers\":[]}", "schemaVersion is not 2");
    refuse_manifest("{\"layers\":[],\"manifests\":[]}", "a manifest and an index at once");
    refuse_manifest("{\"mediaType\":\"" OCI "index.v1+json\",\"layers\":[]}",
                    "does not match its mediaType");
    refuse_manifest("{\"mediaType\":\"" OCI "manifest.v1+json\",\"manifests\":[]}",
                    "does not match its mediaType");
    refuse_manifest("{\"manifests\":[]}", "this is an index");
    refuse_manifest("{\"mediaType\":\"application/vnd.cncf.x\",\"layers\":[]}",
                    "not a container image");
    refuse_manifest("{\"layers\":[" GZIP_DESC "]}", "does not name a configuration");
    refuse_manifest("{\"config\":" CONFIG_DESC "}", "no list of layers");
    refuse_manifest(MANIFEST(CONFIG_DESC, ""), "no layers");
    refuse_manifest(MANIFEST("7", GZIP_DESC), "descriptor");
    refuse_manifest(MANIFEST(CONFIG_DESC, "7"), "layer 1 of the manifest");
    refuse_manifest(MANIFEST(DESC("application/vnd.cncf.helm.config.v1+json", D1, "1"), GZIP_DESC),
                    "application/vnd.cncf.helm.config.v1+json");
    refuse_manifest(MANIFEST(DESC(OCI "config.v1+json", D1, "8388609"), GZIP_DESC),
                    "larger than 8 MiB");
    refuse_manifest(
        MANIFEST(CONFIG_DESC, GZIP_DESC "," DESC(OCI "layer.v1.tar+gzip+encrypted", D3, "1")),
        "layer 2 of the manifest: it is encrypted");
    refuse_manifest(MANIFEST(CONFIG_DESC, DESC("text/plain", D3, "1")), "not a file system layer");
    refuse_manifest(MANIFEST(CONFIG_DESC, DESC("text\\u001bplain", D3, "1")), "'mediaType'");
    refuse_manifest(MANIFEST(CONFIG_DESC, DESC(OCI "layer.v1.tar", "sha512:11", "1")),
                    "other than sha256");
    refuse_manifest(MANIFEST(CONFIG_DESC, DESC(OCI "layer.v1.tar", "../../x", "1")),
                    "invalid digest");
    refuse_manifest(MANIFEST(CONFIG_DESC, "{\"mediaType\":\"x\",\"size\":1}"),
                    "a descriptor has no digest");
    static const char *const sizes[] = {"-1", "1.5", "\"1\"", "null", "[]", "1e3"};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        AUTO_FREE char *doc = NULL;
        assert_true(asprintf(&doc,
                             MANIFEST(CONFIG_DESC,
                                      "{\"digest\":\"" D2 "\",\"mediaType\":\"x\",\"size\":%s}"),
                             sizes[i]) > 0);
        refuse_manifest(doc, "'size'");
    }
}

/* What the JSON itself may not be. */
static void bad_json(void **state)
{
    refuse_manifest("{\"layers\":[],\"layers\":[]}", "duplicate object key");
    refuse_manifest("{\"mediaType\":\"a\\u0000b\"}", "not valid JSON");
    refuse_manifest("{\"a\":\"\xff\"}", "not valid JSON");
    refuse_manifest("{\"a\":9223372036854775808}", "too big integer");
    refuse_manifest("{\"a\":1e999}", "real number overflow");
    refuse_manifest("{} {}", "not valid JSON");
    refuse_manifest("{\"a\":\"", "not valid JSON");
    refuse_manifest("{\"a\":\"\\", "not valid JSON");
    struct buf b;
    buf_init(&b, 16 << 20);
    for (int i = 0; i < OCI_JSON_DEPTH + 1; i++)
        assert_int_equal(buf_append(&b, "[", 1), 0);
    struct oci_manifest m;
    struct err e = {0};
    assert_int_equal(oci_manifest_parse(buf_head(&b), buf_len(&b), &m, &e), -EBADMSG);
    assert_non_null(strstr(e.msg, "levels deep"));
    buf_reset(&b);
    assert_int_equal(buf_append(&b, "[", 1), 0);
    for (int i = 0; i < OCI_JSON_VALUES; i++)
        assert_int_equal(buf_append(&b, "{},", 3), 0);
    assert_int_equal(oci_manifest_parse(buf_head(&b), buf_len(&b), &m, &e), -EBADMSG);
    assert_non_null(strstr(e.msg, "values"));
    buf_reset(&b);
    memset(buf_reserve(&b, OCI_DOCUMENT_MAX + 1), ' ', OCI_DOCUMENT_MAX + 1);
    buf_commit(&b, OCI_DOCUMENT_MAX + 1);
    assert_int_equal(oci_manifest_parse(buf_head(&b), buf_len(&b), &m, &e), -EFBIG);
    assert_non_null(strstr(e.msg, "larger than 4 MiB"));
    buf_free(&b);
    /* Brackets in strings are no depth. */
    m = manifest(MANIFEST(CONFIG_DESC,
                          GZIP_DESC "],\"x\":[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                                    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"{{{\""));
    oci_manifest_free(&m);
}

static void layer_count(void **state)
{
    for (int n = OCI_LAYERS_MAX; n <= OCI_LAYERS_MAX + 1; n++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        assert_int_equal(buf_printf(&b, "{\"config\":" CONFIG_DESC ",\"layers\":["), 0);
        for (int i = 0; i < n; i++)
            assert_int_equal(buf_printf(&b, "%s" GZIP_DESC, i ? "," : ""), 0);
        assert_int_equal(buf_append(&b, "]}", 3), 0);
        if (n > OCI_LAYERS_MAX) {
            refuse_manifest((char *)buf_head(&b), "129 layers; at most 128");
        } else {
            struct oci_manifest m = manifest((char *)buf_head(&b));
            assert_int_equal(m.n_layers, OCI_LAYERS_MAX);
            oci_manifest_free(&m);
        }
        buf_free(&b);
    }
}

static void kinds(void **state)
{
    static const struct {
        const char *doc;
        int r;
        enum oci_kind kind;
    } t[] = {
        {MANIFEST(CONFIG_DESC, GZIP_DESC), 0, OCI_MANIFEST},
        {"{\"manifests\":[]}", 0, OCI_INDEX},
        {"{\"mediaType\":\"" DOCKER "distribution.manifest.list.v2+json\",\"manifests\":[]}", 0,
         OCI_INDEX},
        {"{\"mediaType\":\"\",\"manifests\":[]}", 0, OCI_INDEX},
        {"{\"mediaType\":\"" DOCKER "distribution.manifest.v1+prettyjws\"}", -ENOTSUP, OCI_INDEX},
        {"{\"mediaType\":7,\"manifests\":[]}", -EBADMSG, OCI_INDEX},
        {"nonsense", -EBADMSG, OCI_INDEX},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        enum oci_kind k = OCI_MANIFEST;
        assert_int_equal(oci_kind(t[i].doc, strlen(t[i].doc), &k, NULL), t[i].r);
        if (t[i].r == 0)
            assert_int_equal(k, t[i].kind);
    }
}

/* ---- platforms and indexes ---- */

static void platforms(void **state)
{
    static const struct {
        const char *in, *out;
    } t[] = {
        {"linux/amd64", "linux/amd64"},
        {"linux/arm64/v8", "linux/arm64/v8"},
        {"Linux/X86_64", "linux/amd64"},
        {"aarch64", "linux/arm64"},
        {"linux/armhf", "linux/arm/v7"},
        {"windows/amd64", "windows/amd64"},
        {"linux/amd64/", NULL},
        {"", NULL},
        {"/", NULL},
        {"linux//v8", NULL},
        {"a/b/c/d", NULL},
        {"linux/am d64", NULL},
        {"linux/\033[1m", NULL},
        {"linux/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL},
    };
    char text[OCI_PLATFORM_TEXT];
    struct oci_platform p = {0}, host;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct err e = {0};
        int r = oci_platform_parse(t[i].in, &p, &e);
        assert_int_equal(r, t[i].out ? 0 : -EINVAL);
        if (!t[i].out) {
            assert_int_equal(e.hints, 1);
            continue;
        }
        oci_platform_text(&p, text);
        assert_string_equal(text, t[i].out);
        oci_platform_free(&p);
    }
    oci_platform_host(&host);
    assert_int_equal(oci_platform_parse("linux", &p, NULL), 0);
    assert_true(oci_platform_match(&p, &host) > 0);
    oci_platform_free(&p);
    oci_platform_free(&host);
}

#define ENTRY(digest, platform) \
    "{\"mediaType\":\"" OCI "manifest.v1+json\",\"digest\":\"" digest "\",\"size\":5" platform "}"
#define ON(os, arch) ",\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch "\"}"
#define ON3(os, arch, v) \
    ",\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch "\",\"variant\":\"" v "\"}"
#define INDEX(list) "{\"schemaVersion\":2,\"manifests\":[" list "]}"

/* The digest that is picked, or the hint of the refusal. */
static void pick(const char *doc, const char *platform, const char *want, const char *hint)
{
    struct oci_platform p;
    struct oci_descriptor d = {0};
    struct err e = {0};
    assert_int_equal(oci_platform_parse(platform, &p, NULL), 0);
    int r = oci_index_pick(doc, strlen(doc), &p, &d, &e);
    if (want) {
        if (r < 0)
            fail_msg("%s", e.msg);
        expect_text(&d.digest, want);
        oci_descriptor_free(&d);
    } else {
        assert_int_equal(r, -ENOENT);
        assert_string_equal(e.hint[0], hint);
    }
    oci_platform_free(&p);
}

static void picks(void **state)
{
    const char *usual = INDEX(ENTRY(D1, ON("linux", "amd64")) "," ENTRY(
        D2, ON3("linux", "arm64", "v8")) "," ENTRY(D3, ON("unknown", "unknown")));
    pick(usual, "linux/amd64", D1, NULL);
    pick(usual, "linux/arm64", D2, NULL);
    pick(usual, "linux/arm64/v8", D2, NULL);
    pick(usual, "linux/arm64/v9", D2, NULL);
    pick(usual, "linux/amd64/v3", D1, NULL);
    pick(usual, "linux/s390x", NULL, "it is made for: linux/amd64, linux/arm64/v8");
    pick(usual, "unknown/unknown", NULL, "it is made for: linux/amd64, linux/arm64/v8");
    const char *variants = INDEX(ENTRY(D1, ON3("linux", "amd64", "v3")) "," ENTRY(
        D2, ON("linux", "amd64")) "," ENTRY(D3, ON3("linux", "amd64", "v2")));
    pick(variants, "linux/amd64", D2, NULL);
    pick(variants, "linux/amd64/v2", D3, NULL);
    pick(variants, "linux/amd64/v3", D1, NULL);
    pick(variants, "linux/amd64/v4", D1, NULL);
    const char *arm = INDEX(ENTRY(D1, ON3("linux", "arm", "v5")) "," ENTRY(
        D2, ON3("linux", "arm", "v6")) "," ENTRY(D3, ON3("linux", "arm", "odd")));
    pick(arm, "linux/arm", D2, NULL);
    pick(arm, "linux/arm/v5", D1, NULL);
    pick(arm, "linux/arm/odd", D3, NULL);
    pick(arm, "linux/arm/v4", NULL, "it is made for: linux/arm/v5, linux/arm/v6, linux/arm/odd");
    /* Entries that do not say: only when nothing says the right thing. */
    pick(INDEX(ENTRY(D1, "") "," ENTRY(D2, ON("linux", "amd64"))), "linux/amd64", D2, NULL);
    pick(INDEX(ENTRY(D1, "") "," ENTRY(D2, ON("linux", "arm"))), "linux/amd64", D1, NULL);
    pick(INDEX(""), "linux/amd64", NULL, "its index is empty");
    /* Attestations, signatures, and what is no manifest. */
    const char *none = INDEX(ENTRY(
        D1, ",\"annotations\":{\"vnd.docker.reference.type\":"
            "\"attestation-manifest\"}") "," ENTRY(D2, ",\"artifactType\":\"application/"
                                                       "vnd.x\"") "," DESC("text/plain", D3, "1"));
    pick(none, "linux/amd64", NULL, "its index is empty");
}

static void indexes(void **state)
{
    const char *doc = INDEX(ENTRY(
        D1, ",\"annotations\":{\"org.opencontainers.image.ref.name\":\"3\","
            "\"io.containerd.image.name\":\"docker.io/library/alpine:3\"}") "," ENTRY(D2, ""));
    struct oci_index x;
    assert_int_equal(oci_index_parse(doc, strlen(doc), &x, NULL), 0);
    assert_int_equal(x.n, 2);
    assert_string_equal(x.entries[0].ref_name, "3");
    assert_string_equal(x.entries[0].image_name, "docker.io/library/alpine:3");
    assert_null(x.entries[1].ref_name);
    assert_null(x.entries[1].platform.os);
    oci_index_free(&x);
    static const char *const bad[] = {
        INDEX("7"),
        INDEX(ENTRY("nonsense", "")),
        INDEX(ENTRY(D1, ",\"platform\":7")),
        INDEX(ENTRY(D1, ON("linux", "\\u001b"))),
        INDEX(ENTRY(D1, ",\"annotations\":{\"org.opencontainers.image.ref.name\":7}")),
        "{\"manifests\":{}}",
        MANIFEST(CONFIG_DESC, GZIP_DESC),
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = {0};
        assert_true(oci_index_parse(bad[i], strlen(bad[i]), &x, &e) < 0);
        assert_true(e.msg[0]);
    }
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(buf_printf(&b, "{\"manifests\":["), 0);
    for (int i = 0; i <= OCI_INDEX_MAX; i++)
        assert_int_equal(buf_printf(&b, "%s" ENTRY(D1, ""), i ? "," : ""), 0);
    assert_int_equal(buf_printf(&b, "]}"), 0);
    assert_int_equal(oci_index_parse(buf_head(&b), buf_len(&b), &x, NULL), -E2BIG);
    buf_free(&b);
}

/* ---- configurations ---- */

#define ROOTFS "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" D1 "\",\"" D2 "\"]}"

static void configs(void **state)
{
    const char *doc =
        "{\"architecture\":\"x86_64\",\"os\":\"linux\",\"created\":\"2026-01-02T03:04:05.6Z\","
        "\"config\":{\"Env\":[\"A=b=c\",\"=x\",\"NOVALUE\",\"E=\"],\"Entrypoint\":[\"/e\",\"\"],"
        "\"Cmd\":[\"c\"],\"Labels\":{\"k\":\"v=w\",\"a=b\":\"c\"},\"WorkingDir\":\"srv\","
        "\"User\":\"www:data\",\"StopSignal\":\"SIGRTMIN+3\",\"ExposedPorts\":{\"80/tcp\":{}},"
        "\"Volumes\":{\"/data\":{}}}," ROOTFS ",\"history\":[{\"empty_layer\":true}]}";
    struct oci_config c;
    struct err e = {0};
    if (oci_config_parse(doc, strlen(doc), &c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(c.n_diff_ids, 2);
    expect_text(&c.diff_ids[1], D2);
    assert_string_equal(c.os, "linux");
    assert_string_equal(c.architecture, "amd64");
    assert_null(c.variant);
    assert_string_equal(c.created, "2026-01-02T03:04:05.6Z");
    assert_string_equal(c.run.env[0], "A=b=c");
    assert_string_equal(c.run.env[1], "E=");
    assert_null(c.run.env[2]);
    assert_string_equal(c.run.entrypoint[0], "/e");
    assert_string_equal(c.run.entrypoint[1], "");
    assert_null(c.run.entrypoint[2]);
    assert_string_equal(c.run.cmd[0], "c");
    assert_string_equal(c.run.labels[0], "k=v=w");
    assert_null(c.run.labels[1]);
    assert_string_equal(c.run.workdir, "/srv");
    assert_string_equal(c.run.user, "www:data");
    assert_string_equal(c.run.stop_signal, "SIGRTMIN+3");
    assert_string_equal(c.run.exposed_ports[0], "80/tcp");
    assert_string_equal(c.run.volumes[0], "/data");
    oci_config_free(&c);
    oci_config_free(&c);
    doc = "{\"created\":\"yesterday\",\"config\":{\"Cmd\":null,\"User\":\"\"}," ROOTFS "}";
    assert_int_equal(oci_config_parse(doc, strlen(doc), &c, NULL), 0);
    assert_non_null(c.run.cmd);
    assert_null(c.run.cmd[0]);
    assert_null(c.run.user);
    assert_null(c.os);
    assert_null(c.created);
    oci_config_free(&c);
}

static void bad_configs(void **state)
{
    static const struct {
        const char *doc, *why;
    } t[] = {
        {"{}", "diff_ids"},
        {"{\"rootfs\":{\"type\":\"zip\",\"diff_ids\":[]}}", "diff_ids"},
        {"{\"rootfs\":{\"diff_ids\":[7]}}", "'diff_ids'"},
        {"{\"rootfs\":{\"diff_ids\":[\"x\"]}}", "invalid digest"},
        {"{" ROOTFS ",\"config\":[]}", "'config'"},
        {"{" ROOTFS ",\"config\":{\"Cmd\":\"sh\"}}", "'Cmd'"},
        {"{" ROOTFS ",\"config\":{\"Env\":[7]}}", "'Env'"},
        {"{" ROOTFS ",\"config\":{\"Labels\":{\"a\":7}}}", "'Labels'"},
        {"{" ROOTFS ",\"config\":{\"Labels\":[]}}", "'Labels'"},
        {"{" ROOTFS ",\"config\":{\"Volumes\":[]}}", "'Volumes'"},
        {"{" ROOTFS ",\"config\":{\"User\":\"a\\nb\"}}", "'User'"},
        {"{" ROOTFS ",\"config\":{\"WorkingDir\":7}}", "'WorkingDir'"},
        {"{" ROOTFS ",\"config\":{\"StopSignal\":\"; rm\"}}", "'StopSignal'"},
        {"{" ROOTFS ",\"os\":\"li nux\",\"architecture\":\"x\"}", "invalid platform"},
        {"{" ROOTFS "," ROOTFS "}", "duplicate"},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct oci_config c = {0};
        struct err e = {0};
        assert_true(oci_config_parse(t[i].doc, strlen(t[i].doc), &c, &e) < 0);
        if (!strstr(e.msg, t[i].why) || !strstr(e.msg, "configuration"))
            fail_msg("'%s' does not say '%s'", e.msg, t[i].why);
        assert_null(c.diff_ids);
    }
    struct buf b;
    struct oci_config c;
    buf_init(&b, 1 << 20);
    assert_int_equal(buf_printf(&b, "{" ROOTFS ",\"config\":{\"Env\":["), 0);
    for (int i = 0; i <= OCI_LIST_MAX; i++)
        assert_int_equal(buf_printf(&b, "%s\"A=%d\"", i ? "," : "", i), 0);
    assert_int_equal(buf_printf(&b, "]}}"), 0);
    assert_int_equal(oci_config_parse(buf_head(&b), buf_len(&b), &c, NULL), -E2BIG);
    buf_free(&b);
}

static void together(void **state)
{
    const char *doc = "{\"os\":\"linux\",\"architecture\":\"arm64\"," ROOTFS "}";
    struct oci_manifest one = manifest(MANIFEST(CONFIG_DESC, GZIP_DESC));
    struct oci_manifest two = manifest(MANIFEST(CONFIG_DESC, GZIP_DESC "," GZIP_DESC));
    struct oci_config c;
    struct oci_platform arm, amd;
    struct err e = {0};
    assert_int_equal(oci_config_parse(doc, strlen(doc), &c, NULL), 0);
    assert_int_equal(oci_platform_parse("arm64", &arm, NULL), 0);
    assert_int_equal(oci_platform_parse("amd64", &amd, NULL), 0);
    assert_int_equal(oci_check(&one, &c, &arm, &e), -EBADMSG);
    assert_string_equal(e.msg, "the image's manifest has 1 layers but its configuration has 2");
    assert_int_equal(oci_check(&two, &c, &arm, &e), 0);
    assert_int_equal(oci_check(&two, &c, &amd, &e), -ENOENT);
    assert_string_equal(e.msg, "the image is made for linux/arm64, not for linux/amd64");
    oci_platform_free(&arm);
    oci_platform_free(&amd);
    oci_config_free(&c);
    oci_manifest_free(&one);
    oci_manifest_free(&two);
}

/* ---- changes ---- */

static void changes(void **state)
{
    static const char *const lines[] = {
        "CMD [\"a\", \"b c\"]",
        "entrypoint run me",
        "ENV A=1 B=\"two words\" C='x \"y\"'",
        "ENV OLD  its own form",
        "ENV A=2",
        "LABEL k=v l=\\ m",
        "EXPOSE 80 53/udp",
        "VOLUME [\"/a b\", \"/c\"]",
        "VOLUME /d",
        "USER www:33",
        " WORKDIR  /srv/x y",
        "STOPSIGNAL SIGQUIT",
    };
    AUTO_JSON json_t *config = json_object();
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        if (oci_change(config, lines[i], &e) < 0)
            fail_msg("%s", e.msg);
    AUTO_FREE char *text = json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text,
                        "{\"Cmd\":[\"a\",\"b c\"],\"Entrypoint\":[\"/bin/sh\",\"-c\",\"run me\"],"
                        "\"Env\":[\"A=2\",\"B=two words\",\"C=x \\\"y\\\"\",\"OLD=its own form\"],"
                        "\"ExposedPorts\":{\"53/udp\":{},\"80/tcp\":{}},"
                        "\"Labels\":{\"k\":\"v\",\"l\":\" m\"},\"StopSignal\":\"SIGQUIT\","
                        "\"User\":\"www:33\",\"Volumes\":{\"/a b\":{},\"/c\":{},\"/d\":{}},"
                        "\"WorkingDir\":\"/srv/x y\"}");
}

static void bad_changes(void **state)
{
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"", "an instruction is"},
        {"RUN make", "an instruction is"},
        {"CMDX a", "an instruction is"},
        {"CMD [\"a\", 1]", "list of strings"},
        {"CMD [\"a\"", "'CMD [\"a\"'"},
        {"CMD \xff", "UTF-8"},
        {"ENV", "missing"},
        {"ENV A=1 =2", "'=2' is not KEY=VALUE"},
        {"ENV A=1 B", "'B' is not KEY=VALUE"},
        {"ENV A=\xff", "UTF-8"},
        {"LABEL a=\xff", "UTF-8"},
        {"EXPOSE", "missing"},
        {"VOLUME [1]", "list of strings"},
        {"USER  ", "missing"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO_JSON json_t *config = json_object();
        struct err e = {0};
        assert_true(oci_change(config, bad[i].line, &e) < 0);
        if (!strstr(e.msg, bad[i].why))
            fail_msg("'%s' does not say '%s'", e.msg, bad[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),     cmocka_unit_test(manifests),   cmocka_unit_test(bad_manifests),
        cmocka_unit_test(bad_json),  cmocka_unit_test(layer_count), cmocka_unit_test(kinds),
        cmocka_unit_test(platforms), cmocka_unit_test(picks),       cmocka_unit_test(indexes),
        cmocka_unit_test(configs),   cmocka_unit_test(bad_configs), cmocka_unit_test(together),
        cmocka_unit_test(changes),   cmocka_unit_test(bad_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
