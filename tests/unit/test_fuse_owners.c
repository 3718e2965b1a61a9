/* Owners that the FUSE server keeps in memory, for files that are not there: only their numbers count. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fuse/impl.h"
#include "fuse_client.h"
#include "unit.h"

enum { MOST = 65536, FUSE_DEVICE = 7777, OTHER_DEVICE = 8888 };

/* A server to which both devices are known, and that they have no attributes. */
static void init(struct fuse_client *c)
{
    client_init(c, &(struct fuse_options){.uid = 1, .gid = 1});
    c->s->device[0] =
        (struct device){.dev = FUSE_DEVICE, .known = true, .repeats = true, .no_xattrs = true};
    c->s->device[1] = (struct device){.dev = OTHER_DEVICE, .known = true, .no_xattrs = true};
}

static struct stat file(dev_t dev, ino_t ino)
{
    return (struct stat){.st_dev = dev, .st_ino = ino, .st_mode = S_IFREG | 0600, .st_nlink = 1};
}

static int make(struct fuse_client *c, const struct stat *st)
{
    return owner_store_new(c->s, -1, NULL, st, &(struct owner){.uid = 1000, .mode = 0600});
}

static uint32_t owner_of(struct fuse_client *c, const struct stat *st)
{
    struct owner o;
    owner_load(c->s, -1, NULL, st, &o);
    return o.uid;
}

/* A number that the guest has forgotten may never come again, and is not in the way of others. */
static void test_forgotten_numbers_of_fuse_mounts(void **state)
{
    struct fuse_client c;
    struct inode *i = NULL;
    init(&c);
    struct stat kept = file(FUSE_DEVICE, 1), other = file(OTHER_DEVICE, 1);
    assert_int_equal(make(&c, &kept), 1);
    assert_int_equal(make(&c, &other), 1);
    assert_int_equal(inode_find(c.s, NULL, NULL, &kept, &i), 0);
    i->lookups++;
    for (ino_t n = 2; n < MOST + 1000; n++) {
        struct stat st = file(FUSE_DEVICE, n);
        assert_int_equal(make(&c, &st), 1);
        assert_int_equal(owner_of(&c, &st), 1000);
    }
    assert_int_equal(owner_of(&c, &kept), 1000);
    assert_int_equal(owner_of(&c, &other), 1000);
    client_fini(&c);
}

/* What can be found again is not given up for something new. */
static void test_numbers_that_stay(void **state)
{
    struct fuse_client c;
    init(&c);
    for (ino_t n = 1; n <= MOST; n++) {
        struct stat st = file(OTHER_DEVICE, n);
        assert_int_equal(make(&c, &st), 1);
    }
    struct stat first = file(OTHER_DEVICE, 1), more = file(OTHER_DEVICE, MOST + 1);
    struct stat fuse = file(FUSE_DEVICE, 1);
    assert_int_equal(make(&c, &more), -ENOSPC);
    assert_int_equal(make(&c, &fuse), -ENOSPC);
    assert_int_equal(owner_of(&c, &first), 1000);
    owner_forget(c.s, &first);
    assert_int_equal(make(&c, &more), 1);
    client_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forgotten_numbers_of_fuse_mounts),
        cmocka_unit_test(test_numbers_that_stay),
    };
    return cmocka_run_group_tests_name("fuse_owners", tests, NULL, NULL);
}
