"""Figures of bench/volumes that are rates: what a client gets while nothing fails."""
from volumes_lab import Cluster, Nbdkit, exact_median_us, fill, fio, fio_args, load, median_of, run, show, uri

SIZE = 64
ROWS = [("write 4 KiB, depth 1", "randwrite", "4k", 1), ("write 4 KiB, depth 32", "randwrite", "4k", 32), ("read 4 KiB, depth 1", "randread", "4k", 1),
        ("read 4 KiB, depth 32", "randread", "4k", 32), ("write 1 MiB, depth 4", "write", "1m", 4), ("read 1 MiB, depth 4", "read", "1m", 4)]


class Pair:
    """Two nodes on loopback that several figures share; made when it is first wanted, and anew after a figure failed."""

    def __init__(self, sizes):
        self.sizes, self.now, self.known = sizes, None, set()

    def volumes(self, names, mib=SIZE):
        """The cluster, with these volumes."""
        if self.now is None:
            self.now = Cluster(2, disk="3GiB", memory="1GiB", disk_memory="1GiB", folder=self.sizes.folder)
        for name in names:
            if name not in self.known:
                self.now.volume(name, mib)
                self.known.add(name)
        return self.now

    def close(self):
        if self.now is not None:
            self.now.close()
        self.now, self.known = None, set()


def cell(row, bs):
    first = f"{row['mb_per_second']:.0f} MB/s" if bs == "1m" else f"{row['rate']:,.0f}/s"
    return f"{first}, {row['p50_us']:,.0f} us, {row['cpu_us']:,.1f} us"


def rates(sizes, pair):
    """Rows turn about, so that each target sees the same machine."""
    cluster = pair.volumes(["disk"])
    node = cluster.nodes[0]
    fill(cluster, node, ["disk"], SIZE)
    others = []
    try:
        for kind in ("file", "memory"):
            others.append(Nbdkit(cluster.folder, kind, SIZE))
            run(fio_args(others[-1].uri, "write", "1m", 4, SIZE))
        targets = [("staves 1+1", uri(node, "disk"), cluster), *((each.name, each.uri, each) for each in others)]
        told, table = [], []
        for title, rw, bs, depth in ROWS:
            runs = {name: [] for name, *_ in targets}
            for _ in range(sizes.rounds):
                for name, where, servers in targets:
                    # A file without flushes is no durable write.
                    flush = [f"--fsync={depth}"] if name == "nbdkit file" and "write" in rw else []
                    runs[name].append(fio([], where, rw, bs, depth, SIZE, sizes.seconds, *flush, servers=servers.processes()))
            middle = {name: median_of(each) for name, each in runs.items()}
            told.append({"row": title, **middle})
            table.append([title, *(cell(middle[name], bs) for name, *_ in targets)])
    finally:
        for each in others:
            each.close()
    show(f"A volume of {SIZE} MiB on disk, each write durable at two nodes; nbdkit's file is flushed after each write at depth 1 and after as many as are under way else, its "
         f"p50 without the flush. Rate, p50, servers' processor time an operation; medians of {sizes.rounds}", ["", *(name for name, *_ in targets)], table)
    return {"rows": told}


def cold(sizes, _pair):
    """An eighth of the volume fits in the nodes' memory, and nothing of the disk is in the kernel's."""
    mib = sizes.data_mib
    told, table = [], []
    with Cluster(2, disk=f"{2 * mib}MiB", disk_memory=f"{mib // 8}MiB", folder=sizes.folder) as cluster:
        cluster.volume("disk", mib)
        node = cluster.nodes[0]
        fill(cluster, node, ["disk"], mib)
        for title, rw, bs, depth in ROWS[2:4] + ROWS[5:]:
            for each in cluster.nodes:
                each.drop_pages()
            before = page_reads(cluster)
            row = fio([], uri(node, "disk"), rw, bs, depth, mib, sizes.seconds, servers=cluster.processes())
            row["page_reads"] = page_reads(cluster) - before
            told.append({"row": title, **row})
            table.append([title, cell(row, bs), f"{row['page_reads']:,}"])
    show(f"A volume of {mib} MiB with {mib // 8} MiB of it in each node's memory, the kernel's pages of the disks dropped before each row (they come back as "
         "they are read)", ["", "rate, p50, processor", "pages read from disks"], table)
    return {"rows": told}


def page_reads(cluster):
    return sum(disk["page_reads"] for node in cluster.status()["nodes"] if node["facts"] for disk in node["facts"]["disks"])


def shards(sizes, _pair):
    """Each shard is a pair of nodes; all are on this machine's cores."""
    told, table = [], []
    for pairs in sizes.pairs:
        mib = 256 * pairs
        with Cluster(2 * pairs, disk=f"{mib}MiB", disk_memory="256MiB", folder=sizes.folder) as cluster:
            cluster.volume("disk", mib)
            row = {"shards": pairs}
            for rw in ("write", "read"):
                if rw == "read":
                    # However slow the writes were: places without bytes are read faster.
                    fill(cluster, cluster.nodes[0], ["disk"], 64 * pairs)
                run_of = fio([], uri(cluster.nodes[0], "disk"), rw, "1m", 4, 64 * pairs, sizes.seconds, servers=cluster.processes())
                row[rw] = run_of
            told.append(row)
            table.append([pairs, *(cell(row[rw], "1m") for rw in ("write", "read"))])
    for rw in ("write", "read"):
        for row, line in zip(told, table):
            line.append(f"{row[rw]['mb_per_second'] / told[0][rw]['mb_per_second']:.2f}")
    show("1 MiB in sequence, 4 under way, one client; pairs share this machine's cores (paper: a shard adds 20 to 25 % of writes, 30 % of reads)",
         ["pairs", "write: MB/s, p50, processor", "read", "writes by 1 pair", "reads by 1 pair"], table)
    return {"rows": told}


def addresses(sizes, pair):
    cluster = pair.volumes(["disk"])
    node = cluster.nodes[0]
    fill(cluster, node, ["disk"], SIZE)
    told, table = [], []
    for rw in ("randwrite", "randread"):
        row = {}
        for name, more in (("many", []), ("one", ["--size=4k", "--io_size=64g"])):
            row[name] = fio([], uri(node, "disk"), rw, "4k", 32, SIZE, sizes.seconds, *more, servers=cluster.processes())
        row["op"] = rw
        told.append(row)
        table.append([rw, cell(row["many"], "4k"), cell(row["one"], "4k"), f"{row['one']['rate'] / row['many']['rate']:.2f}"])
    show("4 KiB, 32 under way, at many places and all at one (paper: one address halves writes and takes two thirds of reads)",
         ["", "many: rate, p50, processor", "one", "one by many"], table)
    return {"rows": told}


def clients(sizes, pair):
    names = [f"client{n}" for n in range(max(sizes.clients))]
    cluster = pair.volumes(names, mib=8)
    fill(cluster, cluster.nodes[0], names, 8)
    told, table = [], []
    for count in sizes.clients:
        row = {"clients": count}
        for op in ("write", "read"):
            row[op] = load(cluster, op, names[:count], sizes.seconds, "--span", str(8 << 20), "--threads", "2")
        told.append(row)
        table.append([count, *(f"{cell(row[op], '4k')}, {row[op]['client_cpu_us']:.0f} us" for op in ("write", "read"))])
    show("4 KiB by gRPC, one under way of each client, each with a volume of its own through the first node",
         ["clients", "write: rate, p50, processor of nodes, of the client", "read"], table)
    return {"rows": told}


def unaligned(sizes, pair):
    cluster = pair.volumes(["disk"])
    node = cluster.nodes[0]
    fill(cluster, node, ["disk"], SIZE)
    told, table = [], []
    for op in ("write", "read"):
        for door in ("gRPC", "NBD"):
            runs = {"aligned": [], "unaligned": []}
            for _ in range(sizes.rounds):
                for name, shift in (("aligned", 0), ("unaligned", 512)):
                    if door == "gRPC":
                        runs[name].append(load(cluster, op, ["disk"], sizes.seconds, "--shift", str(shift)))
                    else:
                        log = f"{cluster.folder}/unaligned"
                        one = fio([], uri(node, "disk"), f"rand{op}", "4k", 1, SIZE - 1, sizes.seconds, f"--offset={shift}", f"--write_lat_log={log}",
                                  servers=cluster.processes())
                        one["p50_us"] = exact_median_us(cluster.folder, "unaligned")
                        runs[name].append(one)
            middle = {name: median_of(each) for name, each in runs.items()}
            told.append({"op": op, "door": door, **middle})
            table.append([f"{op} by {door}", *(cell(middle[name], "4k") for name in middle), f"{middle['unaligned']['p50_us'] / middle['aligned']['p50_us']:.2f}"])
    show(f"4 KiB, one under way, at multiples of 4 KiB and 512 bytes further on, where each touches two pages; both are linearizable. Medians of {sizes.rounds}",
         ["", "aligned: rate, p50, processor", "unaligned", "p50 by p50"], table)
    return {"rows": told}
