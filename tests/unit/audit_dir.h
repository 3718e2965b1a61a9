/* A store with an audit log, and what the log complains about. */
#pragma once

#include "store/audit.h"
#include "util/fs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static char home[64];
static struct store store;
static char complaint[512]; /* the last one */
static unsigned complaints;

static void on_complaint(const char *text)
{
    (void)snprintf(complaint, sizeof(complaint), "%s", text);
    complaints++;
}

static int audit_setup(void **state)
{
    struct err e = {0};
    (void)snprintf(home, sizeof(home), "/tmp/msb-test-XXXXXX");
    if (!mkdtemp(home))
        return -1;
    (void)setenv("MSB_HOME", home, 1);
    (void)unsetenv("MSB_AUDIT");
    complaints = 0;
    audit_on_failure(on_complaint);
    return store_open(&store, &e);
}

static int audit_teardown(void **state)
{
    audit_configure(&(struct audit_settings){.level = -1});
    store_close(&store);
    return remove_tree_at(AT_FDCWD, home);
}
