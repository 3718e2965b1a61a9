/* jansson values that are released at the end of their scope. */
#pragma once

#include "util/cleanup.h"

#include <jansson.h>
#include <string.h>

static inline void cleanup_json_p(json_t **j)
{
    json_decref(*j);
}

#define AUTO_JSON CLEANUP(cleanup_json_p)

/* Append to an array, set a member of an object; each takes v. A failure releases the array or object
 * and leaves NULL in its place, so that nothing is silently left out. */
static inline void json_add(json_t **array, json_t *v)
{
    if (json_array_append_new(*array, v) < 0) {
        json_decref(*array);
        *array = NULL;
    }
}

static inline void json_put(json_t **object, const char *key, json_t *v)
{
    if (json_object_set_new(*object, key, v) < 0) {
        json_decref(*object);
        *object = NULL;
    }
}

/* An array of the texts in a NULL-terminated list; an empty array for NULL. */
static inline json_t *json_list(char *const *list)
{
    json_t *a = json_array();
    for (; a && list && *list; list++)
        json_add(&a, json_string(*list));
    return a;
}

/* {"K": "V"} from a NULL-terminated list of "K=V". */
static inline json_t *json_pairs(char *const *list)
{
    json_t *o = json_object();
    for (; o && list && *list; list++) {
        size_t n = strcspn(*list, "=");
        json_t *v = json_string((*list)[n] ? *list + n + 1 : "");
        if (json_object_setn_new(o, *list, n, v) < 0) {
            json_decref(o);
            o = NULL;
        }
    }
    return o;
}
