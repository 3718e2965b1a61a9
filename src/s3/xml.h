/* The XML that S3 servers send: listings, results, errors.
 *
 * A strict reader of what such documents consist of: elements, attributes (checked, ignored), text,
 * the five entities and numbered characters, comments and the declaration at the top. No DTD, so
 * nothing can expand; no CDATA and no processing instructions, which no server sends. Namespace
 * prefixes are dropped. The bytes are hostile.
 */
#pragma once

#include <stddef.h>

enum { XML_DEPTH_MAX = 8, XML_PATH_MAX = 256, XML_TEXT_MAX = 8192 };

/* At the end of each element: "/ListBucketResult/Contents/Key" and the text directly in it, with
 * entities resolved (UTF-8, no NUL). A result other than 0 ends it. */
typedef int (*xml_fn)(void *ctx, const char *path, const char *text);

/* -EBADMSG: it is not such a document. */
int xml_parse(const char *p, size_t n, xml_fn fn, void *ctx);
