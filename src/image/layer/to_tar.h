/* One layer, the other way round: an EROFS file becomes the tar that it could have been made from.
 *
 * Entries come in the order of their names, marks as the .wh. names of image layers, hard links to
 * what lies in layers below before everything else (an entry of the same archive must not come
 * first). Directories that nobody listed are left out. Converting the tar gives the same EROFS file
 * again, and so the same tar: saving is stable from the first time on.
 */
#ifndef MSB_IMAGE_LAYER_TO_TAR_H
#define MSB_IMAGE_LAYER_TO_TAR_H

#include "image/tar/write.h"
#include "util/err.h"

/* fd: a layer's file. Flushes nothing. */
int layer_write_tar(int fd, struct tar_out *o, struct err *e);

#endif
