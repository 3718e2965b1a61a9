#include "registry/http_url.h"

#include "registry/http.h"
#include "util/cleanup.h"

#include <string.h>
#include <strings.h>

/* Copies libcurl's string; may be NULL. */
static char *take_string(const struct curl_api *curl, char *s)
{
    char *copy = s ? strdup(s) : NULL;
    curl->free(s);
    return copy;
}

char *url_part(const char *url, CURLUPart part)
{
    const struct curl_api *curl;
    if (curl_load(&curl, NULL) < 0)
        return NULL;
    CURLU *u = curl->url();
    char *got = NULL;
    if (u && curl->url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK)
        (void)curl->url_get(u, part, &got, CURLU_DEFAULT_PORT);
    curl->url_cleanup(u);
    return take_string(curl, got);
}

bool http_same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    bool same = true;
    for (size_t i = 0; same && i < ARRAY_LEN(parts); i++) {
        AUTO_FREE char *x = url_part(a, parts[i]);
        AUTO_FREE char *y = url_part(b, parts[i]);
        same = x && y && strcasecmp(x, y) == 0;
    }
    return same;
}

char *http_escape(const char *text)
{
    const struct curl_api *curl;
    if (curl_load(&curl, NULL) < 0)
        return NULL;
    return take_string(curl, curl->easy_escape(NULL, text, 0));
}

char *url_resolve(const char *from, const char *to)
{
    const struct curl_api *curl;
    if (curl_load(&curl, NULL) < 0)
        return NULL;
    CURLU *u = curl->url();
    char *got = NULL;
    if (u && curl->url_set(u, CURLUPART_URL, from, 0) == CURLUE_OK &&
        curl->url_set(u, CURLUPART_URL, to, 0) == CURLUE_OK &&
        curl->url_set(u, CURLUPART_USER, NULL, 0) == CURLUE_OK &&
        curl->url_set(u, CURLUPART_PASSWORD, NULL, 0) == CURLUE_OK &&
        curl->url_set(u, CURLUPART_FRAGMENT, NULL, 0) == CURLUE_OK)
        (void)curl->url_get(u, CURLUPART_URL, &got, 0);
    curl->url_cleanup(u);
    return take_string(curl, got);
}
