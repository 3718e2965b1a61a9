/* The on-disk format of EROFS: the parts that an uncompressed image uses.
 *
 * All numbers are little-endian. The disk is blocks of 4 KiB; the superblock sits at byte 1024 of
 * block 0. Inodes are addressed by nid: byte offset from the start of the metadata area, divided by
 * 32. An inode is followed at once by its inline extended attributes and then by its inline tail,
 * which may not cross a block boundary.
 */
#pragma once

#include <stdint.h>

#define EROFS_MAGIC 0xe0f5e1e2U
#define EROFS_SUPER_OFFSET 1024

#define EROFS_BLOCK_BITS 12
#define EROFS_BLOCK_SIZE 4096U
#define EROFS_SLOT_BITS 5
#define EROFS_SLOT_SIZE 32U

#define EROFS_COMPAT_SB_CHECKSUM 0x1U
#define EROFS_COMPAT_MTIME 0x2U

enum erofs_layout {
    EROFS_FLAT_PLAIN = 0,  /* consecutive blocks */
    EROFS_FLAT_INLINE = 2, /* the same, with the last, partial block behind the inode */
};
/* i_format: bit 0 distinguishes the 64-byte inode from the 32-byte one, bits 1..3 are the
 * layout. */
#define EROFS_FORMAT_EXTENDED 1U
#define EROFS_FORMAT_LAYOUT_SHIFT 1

struct erofs_super {
    uint32_t magic;
    uint32_t checksum; /* crc32c over the rest of the block, this field as 0 */
    uint32_t feature_compat;
    uint8_t block_bits;
    uint8_t ext_slots;
    uint16_t root_nid;
    uint64_t inos;
    uint64_t epoch; /* mtime of every compact inode */
    uint32_t epoch_nsec;
    uint32_t blocks;
    uint32_t meta_block; /* where nid 0 is */
    uint32_t xattr_block;
    uint8_t uuid[16];
    uint8_t volume_name[16];
    uint32_t feature_incompat;
    uint16_t compression;
    uint16_t extra_devices;
    uint16_t device_slot;
    uint8_t dir_block_bits;
    uint8_t reserved[37];
};

struct erofs_inode_compact {
    uint16_t format;
    uint16_t xattr_count;
    uint16_t mode;
    uint16_t nlink;
    uint32_t size;
    uint32_t mtime; /* added to epoch by newer kernels, ignored by older ones: always 0 */
    uint32_t u;     /* first block, or device number */
    uint32_t ino;
    uint16_t uid;
    uint16_t gid;
    uint32_t reserved;
};

struct erofs_inode_extended {
    uint16_t format;
    uint16_t xattr_count;
    uint16_t mode;
    uint16_t reserved;
    uint64_t size;
    uint32_t u;
    uint32_t ino;
    uint32_t uid;
    uint32_t gid;
    uint64_t mtime;
    uint32_t mtime_nsec;
    uint32_t nlink;
    uint8_t reserved2[16];
};

/* Inline attributes: this header, then entries, each padded to 4 bytes. An inode's xattr_count is
 * 0 without any, else 1 + the bytes of the entries / 4. */
struct erofs_xattr_header {
    uint32_t name_filter;
    uint8_t shared_count;
    uint8_t reserved[7];
};

struct erofs_xattr_entry {
    uint8_t name_len;
    uint8_t name_index; /* which prefix was cut off the name */
    uint16_t value_len;
};

enum erofs_xattr_index {
    EROFS_XATTR_USER = 1,
    EROFS_XATTR_ACL_ACCESS = 2,
    EROFS_XATTR_ACL_DEFAULT = 3,
    EROFS_XATTR_TRUSTED = 4,
    EROFS_XATTR_SECURITY = 6,
};

/* A directory block: entries sorted by name, then the names; the first nameoff tells how many there
 * are. */
struct erofs_dirent {
    uint64_t nid;
    uint16_t nameoff;
    uint8_t type;
    uint8_t reserved;
} __attribute__((packed));

enum erofs_file_type {
    EROFS_FT_REG = 1,
    EROFS_FT_DIR = 2,
    EROFS_FT_CHR = 3,
    EROFS_FT_BLK = 4,
    EROFS_FT_FIFO = 5,
    EROFS_FT_SOCK = 6,
    EROFS_FT_LNK = 7,
};

_Static_assert(sizeof(struct erofs_super) == 128, "superblock");
_Static_assert(sizeof(struct erofs_inode_compact) == 32, "compact inode");
_Static_assert(sizeof(struct erofs_inode_extended) == 64, "extended inode");
_Static_assert(sizeof(struct erofs_xattr_header) == 12, "xattr header");
_Static_assert(sizeof(struct erofs_xattr_entry) == 4, "xattr entry");
_Static_assert(sizeof(struct erofs_dirent) == 12, "directory entry");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures are written as they are");
