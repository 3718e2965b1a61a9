/* Keys for a bucket: from the environment, a profile file or a secret. They are looked up when
 * they are needed, by the process that needs them, and wiped when it is done. */
#pragma once

#include "store/store.h"
#include "util/cleanup.h"

struct s3_credentials {
    char *id, *secret;
    char *token; /* of temporary credentials; NULL = none. All NULL: requests are not signed */
};

void s3_credentials_wipe(struct s3_credentials *c); /* may be called twice */
#define AUTO_S3_CREDENTIALS CLEANUP(s3_credentials_wipe)

/* source: see s3_config.credentials. */
int s3_credentials_find(const struct store *s, const char *source, struct s3_credentials *ret,
                        struct err *e);

/* Parses the text of a profile file; -ENOENT: it has no such profile, or the profile has no
 * keys. */
int s3_profile_parse(const char *text, const char *profile, struct s3_credentials *ret);
/* Parses a secret's value: "ID:SECRET[:TOKEN]" or the JSON of a credential_process. */
int s3_secret_parse(const char *text, struct s3_credentials *ret);
