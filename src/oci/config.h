/* config.json of a bundle, as a sandbox: what its fields mean here is said in docs/oci.md.
 *
 * A field that asks for something this runtime does not do is refused by name, unless leaving it out
 * takes nothing from the container, since it has its own kernel.
 */
#pragma once

#include "oci/process.h"
#include "policy/rulebook.h"
#include "spec/spec.h"

#define OWN_KERNEL "the container has a kernel of its own"

enum oci_namespace { OCI_NS_NET, OCI_NS_IPC, OCI_NS_UTS, OCI_NS_MAX };

struct oci_namespaces {
    bool wanted[OCI_NS_MAX];
    const char *path[OCI_NS_MAX]; /* of one to join; NULL: a new one */
    bool entered[OCI_NS_MAX];     /* by the calling process: not all may make one */
    const char *pids;             /* the pid namespace to join, in a pod; NULL: it has its own */
};

struct container_config {
    json_t *j;
    char *bundle; /* absolute */
    char *rootfs;
    struct sandbox_spec spec;
    struct oci_process process;
    struct oci_namespaces ns;
    const char *cgroups_path; /* NULL: none */
    const json_t *resources;  /* of the host; NULL: none */
    void *filter;             /* linux.seccomp, of process; NULL: none */
    unsigned said;            /* enum spec_said: what a policy refuses rather than narrows */
    bool sandbox;             /* a pod's first container, whose guest the others share */
    const char *pod;          /* the id of that one, as the caller says; NULL: it does not */
    bool in_kubernetes;       /* ... and it cannot be mistaken */
    uint32_t pids_of; /* number in the pod of the container whose pid namespace ns.pids is */
};
#define AUTO_CONFIG CLEANUP(container_config_free)

/* Reads bundle/config.json. *c is zeros; on failure one to free. */
int container_config_read(struct container_config *c, const char *bundle, const char *id,
                          struct err *e);
void container_config_free(struct container_config *c);
/* Once it is known whether it is in a pod's guest or has its own: what applies only there. */
int container_config_settle(struct container_config *c, bool in_pod, struct err *e);
int refuse_namespace(const char *type, const char *path, const char *why, struct err *e);
bool is_same_file(const char *one, const char *other);
/* What is kept of it in the state. NULL: out of memory. */
json_t *container_config_state(const struct container_config *c);

/* What programs may do to their own kernel: capabilities, limits, paths that are hidden. */
int container_config_read_security(struct container_config *c, struct err *e);
/* `mounts`, as shares and tmpfs of the spec. */
int container_config_read_mounts(struct container_config *c, struct err *e);
/* The options of a mount that have an effect, for `features`. NULL: out of memory. */
json_t *container_config_mount_options(void);
/* Whether it is a pod, or in one. */
void container_config_read_pod(struct container_config *c);
/* annotations msb.*: settings of the sandbox. */
int container_config_read_annotations(struct container_config *c, struct err *e);
