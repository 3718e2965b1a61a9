#include "intercept/refusal.h"

#include <stdio.h>

void refusal_make(struct refusal *r, const char *host, const char *error, const char *text)
{
    size_t n = 0;
    for (; n < sizeof(r->text) - 1 && text[n]; n++)
        r->text[n] = text[n] == '"' || text[n] == '\\' || text[n] < ' ' ? '?' : text[n];
    r->text[n] = '\0';
    (void)snprintf(r->body, sizeof(r->body),
                   "{\"error\":\"%s\",\"host\":\"%s\",\"message\":\"msb did not send this "
                   "request: %s.\"}\n",
                   error, host, r->text);
}
