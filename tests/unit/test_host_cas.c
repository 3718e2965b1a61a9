/* Certificates are extracted from the host's bundle, and nothing else of it. */
#include "launch/host_cas.h"
#include "unit.h"
#include "util/cleanup.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CERT(x) "-----BEGIN CERTIFICATE-----\n" x "\n-----END CERTIFICATE-----"

static void extracts(const char *pem, const char *want)
{
    AUTO_FREE char *got = host_cas_extract(pem);
    assert_non_null(got);
    assert_string_equal(got, want);
}

static void certificates(void **state)
{
    extracts("", "");
    extracts("nothing", "");
    extracts(CERT("a") "\n", CERT("a") "\n");
    extracts("# text\n" CERT("a") "\nmore" CERT("b"), CERT("a") "\n" CERT("b") "\n");
    extracts(CERT("a") CERT("b") CERT("c"), CERT("a") "\n" CERT("b") "\n" CERT("c") "\n");
    extracts(CERT("a") "\n-----BEGIN CERTIFICATE-----\ncut", CERT("a") "\n");
    extracts("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n" CERT("a"),
             CERT("a") "\n");
    extracts("-----END CERTIFICATE-----" CERT("a"), CERT("a") "\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(certificates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
