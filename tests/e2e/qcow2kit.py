"""qcow2 images, valid ones as qemu-img makes them, and invalid ones."""
import struct

ZERO, COPIED, COMPRESSED = 1, 1 << 63, 1 << 62


def image(disk, version=3, cluster_bits=16, entry=lambda i, at: at | COPIED, scattered=True, **header):
    """A disk's bytes as an image: clusters of zeros are left out, the others are in reverse order; `entry` says what the
    second table has for the i-th of them; **header: fields of the header that differ."""
    size = 1 << cluster_bits
    clusters = [disk[i:i + size].ljust(size, b"\0") for i in range(0, len(disk), size)]
    per_table = size // 8
    tables = -(-len(clusters) // per_table)
    l1_at, l2_at = size, size * (1 + -(-tables * 8 // size))
    data_at = l2_at + tables * size
    used = [i for i, c in enumerate(clusters) if c != bytes(size)]
    order = used[::-1] if scattered else used
    where = {i: data_at + k * size for k, i in enumerate(order)}
    fields = {"backing": 0, "backing_size": 0, "cluster_bits": cluster_bits, "size": len(disk), "crypt": 0, "l1_size": tables,
              "l1_at": l1_at, "features": 0, **header}  # fmt: skip
    head = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", version, fields["backing"], fields["backing_size"],
                       fields["cluster_bits"], fields["size"], fields["crypt"], fields["l1_size"], fields["l1_at"],
                       0, 0, 0, 0)  # fmt: skip
    if version == 3:
        head += struct.pack(">QQQII", fields["features"], 0, 0, 4, 104)
    l1 = struct.pack(f">{tables}Q", *(l2_at + i * size | COPIED for i in range(tables)))
    l2 = struct.pack(f">{tables * per_table}Q", *(entry(i, where[i]) if i in where else 0 for i in range(tables * per_table)))
    return head.ljust(l1_at, b"\0") + l1.ljust(l2_at - l1_at, b"\0") + l2 + b"".join(clusters[i] for i in order)
