"""What bench/volumes stands on: clusters with volumes, on loopback or in namespaces that may lie far apart, and fio.

In namespaces each node has an address and a link of its own, clients are at the bridge between them, and the bytes of links can be counted. Needs root then.
Only processes that it started are ended. A failure raises Failed: it is one figure's, not that of all.
"""
import contextlib, json, os, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

from files_lab import Place, drop_pages, end, tell
from harness import STAVES, TARGET, cpu_seconds, free_port

BLOCKS = os.environ.get("BLOCKS", os.path.join(TARGET, "release", "staves-bench-blocks"))
CHAOS = os.environ.get("CHAOS", os.path.join(TARGET, "release", "staves-chaos"))
MIB = 1 << 20
CONNECTS = """import socket, sys, time
times = []
for _ in range(40):
    began = time.perf_counter()
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).close()
    times.append(time.perf_counter() - began)
print(sorted(times)[20])"""


class Failed(Exception):
    """A figure cannot be taken; the text says why."""


def run(command, may_be=(0,), **options):
    out = subprocess.run(command, capture_output=True, text=True, **options)
    if out.returncode not in may_be:
        raise Failed(f"{' '.join(command)}: {(out.stderr or out.stdout).strip()[-1500:]}")
    return out.stdout


def until(what, test, seconds=60, every=0.1):
    stop, last = time.time() + seconds, ""
    while time.time() < stop:
        try:
            found = test()
        except (OSError, ValueError, KeyError, Failed, subprocess.TimeoutExpired) as why:
            found, last = None, f"; the last answer: {type(why).__name__}: {why}"
        if found:
            return found
        time.sleep(every)
    raise Failed(f"{seconds} s have passed while waiting until {what}{last}")


def show(title, columns, rows):
    print(f"\n{title}\n")
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in [columns, *rows]) for n in range(len(columns))]
    for row in [columns, ["---"] * len(columns), *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |", flush=True)


def median_of(runs):
    """The run of the middle rate: its figures belong together."""
    return sorted(runs, key=lambda each: each["rate"])[len(runs) // 2]


class Node:
    """One `staves up`: an address, doors, a data folder and a process."""

    def __init__(self, cluster, number, place=None):
        self.cluster, self.number, self.place, self.child = cluster, number, place, None
        self.name = f"n{number}"
        self.address = place.address if place else "127.0.0.1"
        self.ports = {door: free_port() for door in ("listen", "resp", "admin", "nbd", "grpc")}
        self.data = os.path.join(cluster.folder, self.name)
        self.log = os.path.join(cluster.folder, f"{self.name}.log")

    def at(self, door):
        return f"{self.address}:{self.ports[door]}"

    def start(self):
        args = [STAVES, "up", "--name", self.name, "--data", self.data, "--memory", self.cluster.memory, "--disk", self.cluster.disk,
                "--threads", str(self.cluster.threads), "--scheme", "1+1", "--parent-pid", str(os.getpid())]
        if self.cluster.disk_memory:
            args += ["--disk-memory", self.cluster.disk_memory]
        for door in self.ports:
            args += [f"--{door}", self.at(door)]
        # The very first begins the cluster.
        others = [other.at("listen") for other in self.cluster.nodes if other is not self and other.child]
        if others:
            args += ["--join", ",".join(others)]
        prefix = self.place.enter if self.place else []
        with open(self.log, "a") as log:
            self.child = subprocess.Popen([*prefix, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def forget(self):
        shutil.rmtree(self.data)

    def is_running(self):
        return self.child is not None and self.child.poll() is None

    def drop_pages(self):
        """Lets go of the kernel's pages of its disk: reads of what is not in the node's own memory reach the device."""
        for at, _, names in os.walk(self.data):
            for name in names:
                drop_pages(os.path.join(at, name))


class Site(Place):
    """A namespace with an address and a link to the bridge."""

    def __init__(self, hub, number):
        super().__init__()
        self.address, self.hub, self.port = f"10.79.0.{number}", hub, f"p{number}"
        pid, at = str(hub.holder.pid), str(self.holder.pid)
        run(["ip", "link", "add", self.port, "netns", pid, "type", "veth", "peer", "name", "eth0", "netns", at])
        hub.run("ip", "link", "set", self.port, "master", "br0", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def limit(self, megabits):
        """Bounds the link, each way."""
        burst = f"{max(64, megabits // 4)}kb"
        for place, device in ((self, "eth0"), (self.hub, self.port)):
            place.run("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{megabits}mbit", "burst", burst, "latency", "400ms")

    def received(self):
        """Bytes that have come over the link."""
        for line in self.run("cat", "/proc/net/dev").splitlines():
            name, _, rest = line.strip().partition(":")
            if name == "eth0":
                return int(rest.split()[0])
        raise Failed("a namespace has no link")


class Cluster:
    """So many nodes with a pool 1+1 on disk, named vols, once it is whole."""

    def __init__(self, nodes, apart=False, one_way_ms=None, link=None, disk="512MiB", disk_memory=None, memory="512MiB", threads=1, folder=None):
        self.disk, self.disk_memory, self.memory, self.threads, self.apart, self.link = disk, disk_memory, memory, threads, apart, link
        self.folder = tempfile.mkdtemp(prefix="staves-volumes-", dir=folder)
        self.nodes, self.sites, self.hub, self.wan = [], [], None, None
        try:
            self.begin(nodes, one_way_ms)
        except BaseException:
            self.close()
            raise

    def begin(self, nodes, one_way_ms):
        if self.apart:
            if os.geteuid() != 0:
                raise Failed("nodes that are apart are namespaces: run this as root")
            self.hub = Place()
            self.hub.run("ip", "link", "add", "br0", "type", "bridge")
            self.hub.run("ip", "address", "add", "10.79.0.254/24", "dev", "br0")
            self.hub.run("ip", "link", "set", "br0", "up")
        for _ in range(nodes):
            self.add()
        if one_way_ms:
            self.delay(one_way_ms)
        for node in self.nodes:
            node.start()
            until(f"{node.name} is up", lambda: self.up() >= node.number)
        self.staves("pool", "create", "vols", "--kind", "memory", "--medium", "disk", "--scheme", "1+1", "--memory", self.disk)
        until("all buckets have their copies", self.is_whole)

    def add(self):
        number = len(self.nodes) + 1
        site = None
        if self.apart:
            site = Site(self.hub, number)
            self.sites.append(site)
            if self.link:
                site.limit(self.link)
        self.nodes.append(Node(self, number, site))
        return self.nodes[-1]

    def delay(self, one_way_ms):
        """Packets between nodes take so much longer, until the cluster ends."""
        places = [f"/proc/{site.holder.pid}/ns/net={site.address}" for site in self.sites]
        command = [CHAOS, "wan", "--one-way", f"{round(one_way_ms * 1000)}us", *places]
        self.wan = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.wan.stdout.readline().strip() != "delaying":
            raise Failed(f"packets cannot be delayed: {self.wan.stderr.read().strip()}")

    def client(self):
        """What a client's command begins with: it is at the bridge, near every node."""
        return self.hub.enter if self.hub else []

    def staves(self, *args):
        alive = [node for node in self.nodes if node.is_running()]
        doors = ",".join(node.at("listen") for node in alive or self.nodes)
        return run([*self.client(), STAVES, "--cluster", doors, *args], timeout=60)

    def json(self, *args):
        return json.loads(self.staves(*args, "-o", "json"))

    def status(self):
        # Its exit code says how the cluster is; the text is whole all the same.
        return self.json("status")

    def up(self):
        return sum(node["up"] for node in self.status()["nodes"])

    def has_copies(self, status=None):
        """Every bucket has its copies, and none is on its way elsewhere."""
        return all(pool["whole"] == pool["buckets"] and not pool["changing"] for pool in (status or self.status())["pools"])

    def is_whole(self):
        """The same, all nodes that run are up, as they are now, and so are all that vote."""
        status = self.status()
        running = [node for node in self.nodes if node.is_running()]
        up = {node["native"]: node for node in status["nodes"] if node["up"]}
        if any(node.at("listen") not in up for node in running) or len(up) != len(running):
            return False
        voters = {node["id"] for node in up.values()}
        return self.has_copies(status) and set(status["directory"]["voters"]) <= voters

    def whole(self, seconds=90):
        until("every bucket has its copies", self.is_whole, seconds)

    def volume(self, name, mib):
        self.staves("volume", "create", name, "--size", f"{mib}MiB", "--pool", "vols")
        until(f"{name} is there", self.is_whole)

    def members(self, volume):
        """The nodes with the primary and with the copy of a volume's first group."""
        group = self.json("volume", "show", volume)["groups"][0]
        members = self.json("group", "show", str(group))["members"]
        by_name = {node.name: node for node in self.nodes}
        held = {member["holds"]: by_name[member["name"]] for member in members if member["up"]}
        if "primary" not in held or "copy" not in held:
            raise Failed(f"{volume} has no two members: {members}")
        return held["primary"], held["copy"]

    def places(self):
        """How many members of groups of vols each node has, and whether they are as many as there are to be: one that moves is at two nodes for a while."""
        groups = self.json("group", "list", "--pool", "vols")
        members = [member for group in groups for member in group["members"]]
        names = [member["name"] for member in members]
        return [names.count(node.name) for node in self.nodes], len(members) == 2 * len(groups) and all(member["complete"] for member in members)

    def processes(self):
        return [node.child for node in self.nodes if node.is_running()]

    def round_trip(self, one, other):
        """Seconds that a connection takes from one node's place to another's node."""
        return float(one.place.run(sys.executable, "-c", CONNECTS, other.address, str(other.ports["admin"])))

    def blocks(self, *args):
        nodes = ",".join(node.at("grpc") for node in self.nodes)
        return [*self.client(), BLOCKS, *args, "--nodes", nodes]

    def close(self):
        for node in self.nodes:
            if node.is_running():
                node.kill()
        if self.wan:
            self.wan.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wan.wait(10)
            end(self.wan)
        for place in [*self.sites, self.hub]:
            if place:
                end(place.holder, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.nodes, self.sites, self.hub, self.wan = [], [], None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Nbdkit:
    """nbdkit with a file, or with memory, on a free port of 127.0.0.1."""

    def __init__(self, folder, kind, mib):
        self.port, self.name = free_port(), f"nbdkit {kind}"
        what = ["memory", f"{mib}M"]
        if kind == "file":
            path = os.path.join(folder, "nbdkit-file")
            with open(path, "wb") as file:
                file.truncate(mib * MIB)
            what = ["file", path]
        self.child = subprocess.Popen(["nbdkit", "-f", "-i", "127.0.0.1", "-p", str(self.port), *what], stdin=subprocess.DEVNULL)
        until(f"{self.name} listens", lambda: socket.create_connection(("127.0.0.1", self.port), 1).close() is None)
        self.uri = f"nbd://127.0.0.1:{self.port}/"

    def processes(self):
        return [self.child]

    def close(self):
        end(self.child)


def fio_args(uri, rw, bs, depth, mib, *more):
    return ["fio", "--name=volume", "--ioengine=nbd", f"--uri={uri}", f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}", f"--size={mib}m",
            "--output-format=json", *more]


def uri(node, volume):
    return f"nbd://{node.at('nbd')}/{volume}"


def fio_json(text):
    """fio's document, behind what its engine says on the same stream."""
    begin = text.find("\n{") + 1 if not text.startswith("{") else 0
    return json.loads(text[begin:])


def fio(where, target, rw, bs, depth, mib, seconds, *more, servers=None):
    """Rates, times and the servers' processor time of one run."""
    command = [*where, *fio_args(target, rw, bs, depth, mib, "--time_based", f"--runtime={round(seconds * 1000)}ms", "--ramp_time=300ms", *more)]
    began = cpu_seconds(servers or [])
    job = fio_json(run(command, timeout=seconds + 120))["jobs"][0]
    cpu = cpu_seconds(servers or []) - began
    side = job["write" if "write" in rw else "read"]
    done = max(side["total_ios"], 1)
    # The ramp's operations are in the processor time, and not in the count.
    share = seconds / (seconds + 0.3)
    return {"rate": side["iops"], "mb_per_second": side["bw_bytes"] / 1e6, "p50_us": side["clat_ns"]["percentile"]["50.000000"] / 1000,
            "p99_us": side["clat_ns"]["percentile"]["99.000000"] / 1000, "max_us": side["clat_ns"]["max"] / 1000, "cpu_us": cpu * 1e6 * share / done,
            "operations": done, "errors": job["error"]}


def exact_median_us(folder, name):
    """The median of fio's log of each operation's time: its histogram has steps of 1.5 %."""
    with open(os.path.join(folder, f"{name}_clat.1.log")) as lines:
        return statistics.median(int(line.split(",")[1]) for line in lines) / 1000


def load(cluster, op, volumes, seconds, *more):
    """Rates and times of our client by gRPC."""
    began = cpu_seconds(cluster.processes())
    told = json.loads(run(cluster.blocks("load", "--op", op, "--volumes", ",".join(volumes), "--seconds", str(seconds), *more), timeout=seconds + 120))
    cpu = cpu_seconds(cluster.processes()) - began
    share = seconds / (seconds + 0.5)
    done = max(told["operations"], 1)
    return {"rate": told["per_second"], "mb_per_second": told["bytes_per_second"] / 1e6, "p50_us": told["p50_us"], "p99_us": told["p99_us"],
            "max_us": told["max_us"], "cpu_us": cpu * 1e6 * share / done, "client_cpu_us": told["client_cpu_seconds"] * 1e6 * share / done}


def fill(cluster, node, volumes, mib):
    """Writes all of these once, and waits until the nodes have saved it, for 10 s at most: that work is not the next figure's."""
    for volume in volumes:
        run([*cluster.client(), *fio_args(uri(node, volume), "write", "1m", 4, mib)], timeout=300)
    last, stop = None, time.time() + 10
    while time.time() < stop:
        disks = [disk for each in cluster.status()["nodes"] if each["facts"] for disk in each["facts"]["disks"]]
        now = [(disk["used_bytes"], disk["journal_taken_bytes"], disk["journal_written_bytes"]) for disk in disks]
        if now == last:
            return
        last = now
        time.sleep(0.3)


def note(text):
    tell(f"[{time.strftime('%H:%M:%S')}] {text}")
