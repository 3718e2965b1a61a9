/* Records of the image store from a stranger: nothing in them may crash the reader, and what it
 * accepts is within the limits that everybody relies on. */
#include "image/store/record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct record r = {0};
    struct digest d;
    char *reference = NULL;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (record_parse(text, size, &r) == 0) {
        if (r.n_layers > OCI_LAYERS_MAX)
            abort();
        for (size_t i = 0; i < r.n_layers; i++)
            if (r.layers[i].media_type && strlen(r.layers[i].media_type) > RECORD_MEDIA_TYPE_MAX)
                abort();
        record_free(&r);
    }
    /* A reference counts only under its own name, which no noise has. */
    if (ref_parse("0.json", text, size, &reference, &d, &(bool){false}) == 0)
        abort();
    free(text);
    return 0;
}
