/* The settings of a sandbox.
 *
 * The spec is created once by `create`/`run`, checked once (spec_validate), and kept as spec.json
 * in the sandbox's directory; everything that later starts, shows or modifies the sandbox reads it
 * from there. It does not contain what the sandbox is doing now: that is struct sandbox_state
 * (store/store.h).
 */
#pragma once

#include "engine/kind.h"
#include "image/image.h"
#include "jail/kind.h"
#include "spec/init.h"
#include "spec/names.h"
#include "spec/net.h"
#include "spec/patch.h"
#include "spec/security.h"
#include "spec/vsock.h"
#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SPEC_HOSTNAME_MAX = 64,
    SPEC_CPUS_MAX = 255,
    SPEC_MEMORY_MIN_MIB = 32,
    SPEC_MEMORY_MAX_MIB = 1024 * 1024,
    SPEC_MOUNTS_MAX = 64, /* of all kinds */
    SPEC_SHARES_MAX = 10, /* of those, host directories, files and disks: each is a device */
    SPEC_SCRIPTS_MAX = 64,
    SPEC_SCRIPT_BODY_MAX = 1024 * 1024,
    SPEC_RLIMITS_MAX = 16,
    SPEC_LABELS_MAX = 256,
    SPEC_PORTS_MAX = 256,
    SPEC_VOLUMES_MAX = 64,
    SPEC_SECRETS_MAX = 64,
    SPEC_WRITE_PATHS_MAX = 64,
    SPEC_COVERED_MAX = 256,
};

enum root_disk_kind { ROOT_DISK_MANAGED, ROOT_DISK_TMPFS, ROOT_DISK_FILE };
enum cpu_placement {
    PLACEMENT_SPREAD,
    PLACEMENT_INHERIT,
    PLACEMENT_CORE,
    PLACEMENT_COMPACT,
    PLACEMENT_AUTO, /* the same as SPREAD, for now */
};
/* Transparent huge pages in the guest, where its kernel has them. */
enum thp_policy { THP_MADVISE, THP_ALWAYS, THP_NEVER };
/* Whether what the guest syncs to its root disk reaches the host's disk, or only its memory. AUTO:
 * the disk, unless the root disk is removed with the sandbox. */
enum disk_sync { DISK_SYNC_AUTO, DISK_SYNC_ALWAYS, DISK_SYNC_NEVER };

enum mount_kind { MOUNT_TMPFS, MOUNT_BIND, MOUNT_NAMED, MOUNT_DISK };
enum mount_cache { MOUNT_CACHE_AUTO, MOUNT_CACHE_NONE, MOUNT_CACHE_ALWAYS };

struct spec_mount {
    enum mount_kind kind;
    char *guest;      /* where; normalized */
    uint32_t options; /* enum proto_mount_option */
    uint64_t size;    /* of a tmpfs (0 = kernel default), or of a disk volume to be created */
    uint32_t mode;    /* of a tmpfs; 0 = 01777 */
    /* Host directories, files and disks. */
    char *source; /* a path: absolute, without symbolic links when the sandbox was created; or a
                   * volume's name */
    bool file;    /* it is a regular file */
    bool disk;    /* a volume that is a disk, which the guest mounts itself */
    bool qcow2;   /* of a disk image: its format, else raw */
    char *fstype; /* of a disk; NULL = ext4 */
    enum mount_cache cache;
    uint32_t uid, gid; /* the guest's view of the user who started msb; of a tmpfs, its owner */
    uint64_t quota;    /* bytes that it may take; 0 = no limit */
    bool pod;          /* instead of the source, trees added while the guest runs (PROTO_TREE) */
    bool real_owners;  /* owners are those of the host's files; uid and gid are unused */
};

/* What appears as /workspace. */
enum workspace_mode {
    WORKSPACE_FUSE,     /* a share */
    WORKSPACE_SNAPSHOT, /* copied to the guest's own disk, and back when it has stopped */
};
/* When changes go to a workspace's bucket, other than after a stop. */
enum workspace_sync {
    WORKSPACE_SYNC_STOP,  /* not before */
    WORKSPACE_SYNC_CLOSE, /* soon after they were made */
    WORKSPACE_SYNC_IDLE,  /* when there have been none for a while */
    WORKSPACE_SYNC_FSYNC, /* soon; and the guest's fsync waits for it */
};
#define SPEC_WORKSPACE_MIN (1ULL << 20)
#define SPEC_WORKSPACE_MAX_DEFAULT (1ULL << 30)

struct spec_workspace {
    char *name; /* of a named workspace (workspace/workspace.h), or */
    char *path; /* a host directory; neither: no workspace */
    char *url;  /* of the bucket in which a named one is created if it does not exist; not stored */
    enum workspace_mode mode;
    enum workspace_sync sync;
    uint64_t max; /* bytes of a snapshot; of a shared one only if `limited`, */
    bool limited; /* ... as the mount's quota. Not stored */
};

struct spec_script {
    char *name;
    char *body; /* with its #! line */
};

struct spec_rlimit {
    uint32_t resource; /* RLIMIT_* */
    uint64_t soft, hard;
};

struct sandbox_spec {
    char *name;

    char *image; /* as the user wrote it */
    enum image_kind image_kind;
    char *image_digest;    /* "sha256:..." that it was resolved to: what the sandbox boots from */
    bool image_named_here; /* struct image */
    enum image_pull pull;

    double cpus;
    uint64_t memory_mib;
    double max_cpus;         /* up to which it may grow while it runs; 0 = as many as it has */
    uint64_t max_memory_mib; /* the same */
    enum thp_policy thp;
    char *placement_profile; /* a name, which the host need not know; NULL = none */
    bool multi_tenant;       /* the host serves several tenants */
    enum engine_kind engine;
    enum jail_kind jail;
    enum cpu_placement placement;
    bool in_pod;     /* its shares are no devices, but in a tree of another sandbox's guest; not
                  * stored */
    bool root_share; /* the mount on / is the root: there is no image, and no writable layer */
    enum root_disk_kind root_disk;
    uint64_t root_disk_bytes; /* 0 = default */
    char *root_disk_file;     /* the user's ext4 image (ROOT_DISK_FILE), else NULL */
    bool root_disk_grown;     /* its file system may still have to grow */
    enum disk_sync disk_sync;

    struct strlist env;          /* K=V: the image's, then the user's */
    struct strlist entrypoint;   /* image's, or --entrypoint */
    struct strlist cmd;          /* image's, or what came after -- on `run` */
    struct guest_init init;      /* PID 1 for commands; none = msb's agent */
    struct strlist secrets;      /* names: see store/secret.h */
    struct strlist labels;       /* K=V, V may be empty */
    struct strlist image_labels; /* keys of those from the image that the user left unchanged */
    char *workdir;               /* NULL = "/" */
    char *user;                  /* NULL = root */
    char *shell;                 /* NULL = /bin/sh */
    char *hostname;              /* never NULL after spec_validate */
    char *log_level;             /* NULL = default */
    char *stop_signal;           /* the image's: "SIGINT"; NULL = SIGTERM */
    struct strlist ports;        /* exposed by the image: "80/tcp" */
    struct strlist volumes;      /* declared by the image: directories in the guest */

    struct spec_mount *mounts; /* sorted by path, so that parents come first */
    size_t n_mounts;
    struct spec_workspace workspace;
    struct strlist write_paths; /* the rest of the guest is read-only; none = all is writable */
    struct spec_security security;
    struct strlist masked, fixed; /* guest paths that appear empty, and that are read-only */
    struct spec_vsocks vsocks;    /* host sockets that the guest can connect to */
    struct spec_script *scripts;
    size_t n_scripts;
    struct strlist script_files; /* host files from which they come; not kept */
    struct spec_rlimit rlimits[SPEC_RLIMITS_MAX];
    size_t n_rlimits;
    struct spec_net net;
    struct spec_patches patches; /* applied when it was created */

    bool ephemeral;           /* removed when it stops */
    uint64_t idle_timeout_ms; /* 0 = none */
    uint64_t max_duration_ms; /* 0 = none */
    uint64_t output_max;      /* bytes that a command may write; 0 = no limit */
    uint64_t created_ns;      /* CLOCK_REALTIME */
};

void spec_init(struct sandbox_spec *s); /* defaults: 1 CPU, 512 MiB, 4 GiB disk */
void spec_free(struct sandbox_spec *s); /* may be called twice */
#define AUTO_SPEC CLEANUP(spec_free)

/* Checks everything that can be checked without the host, fills in derived fields (hostname). */
int spec_validate(struct sandbox_spec *s, struct err *e);

#define CPU_PLACEMENTS "spread|compact|core|inherit|auto"
const char *cpu_placement_name(enum cpu_placement p);
enum cpu_placement cpu_placement_parse(const char *name); /* one of CPU_PLACEMENTS */
const char *thp_name(enum thp_policy t);
enum thp_policy thp_parse(const char *name); /* what thp_name() returns */

/* Up to how many it may grow; at least as many as it has. */
double spec_max_cpus(const struct sandbox_spec *s);
uint64_t spec_max_memory_mib(const struct sandbox_spec *s);

/* Absolute, without empty, "." or ".." components, no '/' at the end; malloc'd; NULL if it is
 * not. */
char *spec_guest_path(const char *path);

/* Each checks, copies, and refuses the (LIMIT+1)th. Paths are normalized; a second mount on the
 * same target is refused. */
int spec_add_mount(struct sandbox_spec *s, const struct spec_mount *m, struct err *e);
int spec_add_script(struct sandbox_spec *s, const char *name, const char *body, struct err *e);
int spec_add_rlimit(struct sandbox_spec *s, const char *arg, struct err *e); /* nofile=1024:2048 */
int spec_add_label(struct sandbox_spec *s, const char *arg, struct err *e);  /* K or K=V */
int spec_add_port(struct sandbox_spec *s, const char *port, struct err *e);  /* 80/tcp */
int spec_add_volume(struct sandbox_spec *s, const char *path, struct err *e);
int spec_add_secret(struct sandbox_spec *s, const char *name, struct err *e);
int spec_validate_workspace(const struct sandbox_spec *s, struct err *e);
bool spec_has_snapshot(const struct sandbox_spec *s);
const char *workspace_mode_name(enum workspace_mode m);
/* False: unknown word. */
bool workspace_sync_parse(const char *word, enum workspace_sync *ret);
json_t *spec_workspace_json(const struct sandbox_spec *s);
int spec_read_workspace(struct sandbox_spec *s, const json_t *j, struct err *e);
void spec_workspace_free(struct spec_workspace *w);
/* A shared directory with no write path in or above it is also read-only on the host's side. */
int spec_add_write_path(struct sandbox_spec *s, const char *path, struct err *e);
void spec_protect_mounts(struct sandbox_spec *s);
/* Adds the mounts and mount options that its security profile requires; may be called twice. */
int spec_secure_mounts(struct sandbox_spec *s, struct err *e);
/* Whether programs are restricted: by write paths, or by `security`. */
bool spec_is_restricted(const struct sandbox_spec *s);
/* Whether something happens at the end of its set-up: restrictions apply, or the image's init
 * starts. */
bool spec_is_sealed(const struct sandbox_spec *s);
bool spec_path_within(const char *path, const char *dir); /* both normalized */
/* Parses RESOURCE=SOFT[:HARD] without a spec (exec --rlimit). */
int spec_parse_rlimit(const char *arg, struct spec_rlimit *ret, struct err *e);
const char *spec_rlimit_name(uint32_t resource);

/* spec.json, and what `inspect --format json` shows under "config": the same layout, with all
 * documented keys. spec_from_json reads both; *s is initialized before; free it after a failure,
 * too. */
json_t *spec_to_json(const struct sandbox_spec *s);
json_t *spec_to_config(const struct sandbox_spec *s);
int spec_from_json(struct sandbox_spec *s, const json_t *j, struct err *e);

/* Whether all labels in `want` (K or K=V) are present. */
bool spec_matches_labels(const struct sandbox_spec *s, const struct strlist *want);

/* How long an ephemeral sandbox may take to finish writing: 0 if it has no writable host directory
 * or disk. */
uint64_t spec_last_writes_ms(const struct sandbox_spec *s);
/* What AUTO means for this sandbox: ALWAYS or NEVER. */
enum disk_sync spec_disk_sync(const struct sandbox_spec *s);
/* Whether it is a directory or file that the host serves; or a block device. Neither: a tmpfs. */
bool mount_is_share(const struct spec_mount *m);
bool mount_is_disk(const struct spec_mount *m);
/* Whether the guest's kernel can mount that file system. */
bool mount_fstype_known(const char *fstype);
#define MOUNT_FSTYPES "ext4, ext3, ext2, erofs"
const char *mount_cache_name(enum mount_cache c);
bool mount_cache_parse(const char *s, enum mount_cache *ret);
/* Host name from any sandbox name: at most 63 characters of [A-Za-z0-9-], never empty; long names
 * are truncated and get a hash, so that they stay distinct. */
void spec_hostname_from(const char *name, char out[SPEC_HOSTNAME_MAX]);
