/* Parses --tmpfs, --volume and --mount-*. */
#pragma once

#include "spec/spec.h"

/* PATH[:SIZE][:OPTIONS] */
int tmpfs_option(struct sandbox_spec *s, const char *arg, struct err *e);
/* SOURCE:DEST[:OPTIONS]; `option` is the name of the option. */
int mount_option(struct sandbox_spec *s, const char *option, const char *arg, struct err *e);

/* --root-disk PATH[:format=raw][,fstype=ext4] */
int root_disk_file_option(struct sandbox_spec *s, const char *arg, struct err *e);

/* A path on the host, made absolute and free of symbolic links; malloc'd. file: it should be a
 * file, not a directory. */
int mount_resolve(const char *source, bool file, char **ret, struct err *e);

/* --mount: key=value words, joined by commas. */
int mount_words_option(struct sandbox_spec *s, const char *arg, struct err *e);
