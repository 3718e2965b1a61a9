/* WWW-Authenticate: how a registry wants us to authenticate. */
#pragma once

enum challenge_scheme { CHALLENGE_NONE, CHALLENGE_BASIC, CHALLENGE_BEARER };

struct challenge {
    enum challenge_scheme scheme;
    char *realm, *service, *scope; /* NULL where absent */
};

/* The best of the challenges in a header (several headers may be joined by commas): Bearer before
 * Basic; CHALLENGE_NONE if there is neither. The text is untrusted: control characters in values
 * are -EINVAL, like anything that cannot be parsed. On that, or -ENOMEM, *ret is empty. */
int challenge_parse(const char *header, struct challenge *ret);
void challenge_free(struct challenge *c);
