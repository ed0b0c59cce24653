"""What bench/files stands on: workstations in namespaces of their own, and a slow medium that they share.

A workstation is a process that sleeps in a network and a mount namespace; whatever runs on it is started there by nsenter. Its mounts, its
address and its link go with it. Links hang on a bridge in one more namespace, so that nothing of the machine's own network is touched.
Needs root. Only processes that it started are ended.
"""
import atexit, json, os, shutil, signal, subprocess, sys, tempfile, time

from harness import STAVES, TARGET

MEDIA = os.environ.get("MEDIA", os.path.join(TARGET, "release", "staves-bench-media"))
RESIDENT = ("Rss", "Pss", "Pss_Shmem")


def tell(text):
    print(text, file=sys.stderr, flush=True)


def run(command, may_be=(0,), **options):
    out = subprocess.run(command, capture_output=True, text=True, **options)
    if out.returncode not in may_be:
        sys.exit(f"{' '.join(command)}: {out.stderr or out.stdout}")
    return out.stdout


def end(child, with_signal=signal.SIGTERM):
    if child.poll() is None:
        child.send_signal(with_signal)
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def until(what, test, seconds=60):
    stop = time.time() + seconds
    while time.time() < stop:
        try:
            found = test()
        except (OSError, ValueError, KeyError):
            found = None
        if found:
            return found
        time.sleep(0.1)
    sys.exit(f"{seconds} s have passed while waiting until {what}")


def resident(pid):
    """Bytes of a process's memory: all, and with what it shares counted once."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in RESIDENT}
    return found


def drop_pages(path):
    """Lets go of the kernel's pages of a file."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


class Place:
    """A namespace of networks and mounts, alive as long as a process that sleeps in it."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/net")
        until("a namespace is there", lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != own
              and open(f"/proc/{self.holder.pid}/comm").read().strip() == "sleep")
        self.enter = ["nsenter", "-t", str(self.holder.pid), "-n", "-m"]
        self.run("ip", "link", "set", "lo", "up")

    def run(self, *command, **options):
        return run([*self.enter, *command], **options)

    def start(self, *command, **options):
        return subprocess.Popen([*self.enter, *command], **options)


class Workstation(Place):
    def __init__(self, lab, number):
        super().__init__()
        self.lab, self.number, self.address = lab, number, f"10.78.0.{number}"
        self.node = self.mount = None
        self.data = os.path.join(lab.folder, f"node{number}")
        self.dir = os.path.join(lab.folder, "mounted")
        self.log = os.path.join(lab.folder, "log")
        hub = str(lab.hub.holder.pid)
        self.port = f"p{number}"
        run(["ip", "link", "add", self.port, "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid)])
        lab.hub.run("ip", "link", "set", self.port, "master", "br0", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def see(self, from_dir, at):
        """A folder, here under another name."""
        self.run("mount", "--bind", from_dir, at)

    def up(self, memory, data=True, threads=1):
        args = [STAVES, "up", "--memory", memory, "--threads", str(threads), "--name", f"node{self.number}"]
        for door, port in (("listen", 1600), ("resp", 6379), ("admin", 1680)):
            args += [f"--{door}", f"{self.address}:{port}"]
        args += ["--data", self.data]
        first = self.lab.stations[0]
        if self.number != first.number:
            args += ["--join", f"{first.address}:1600"]
        with open(self.log, "a") as log:
            self.node = self.start(*args, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def staves(self, *args, cluster=None, **options):
        return self.run(STAVES, "--cluster", f"{cluster or self.address}:1600", *args, **options)

    def json(self, *args, **options):
        return json.loads(self.staves(*args, "-o", "json", **options))

    def nodes_up(self):
        out = subprocess.run([*self.enter, STAVES, "--cluster", f"{self.address}:1600", "status", "-o", "json"], capture_output=True, text=True)
        return sum(node["up"] for node in json.loads(out.stdout)["nodes"])

    def mounted(self, source, dataset, cluster=None, flags=()):
        """Mounts it, and gives the folder as this machine sees it from outside the namespace."""
        with open(self.log, "a") as log:
            self.mount = self.start(STAVES, "--cluster", f"{cluster or self.address}:1600", "mount", source, self.dir, "--dataset", dataset,
                                    "--foreground", *flags, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        if self.mount.stdout.readline().strip() != "serving":
            sys.exit(f"the mount does not serve: {open(self.log).read()[-2000:]}")
        return self.outside(self.dir)

    def unmount(self):
        if self.mount:
            end(self.mount)
        self.mount = None

    def outside(self, path):
        """A path of this workstation, for processes that are not on it."""
        return f"/proc/{self.holder.pid}/root{path}"

    def link(self, megabits):
        """Bounds the link in both directions; None lets it go."""
        for place, device in ((self, "eth0"), (self.lab.hub, self.port)):
            if megabits:
                burst = f"{max(32, megabits // 4)}kb"
                place.run("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{megabits}mbit", "burst", burst, "latency", "400ms")
            elif "tbf" in place.run("tc", "qdisc", "show", "dev", device):
                place.run("tc", "qdisc", "del", "dev", device, "root")


class Lab:
    def __init__(self, count):
        if os.geteuid() != 0:
            sys.exit("workstations are namespaces and mounts: run this as root")
        for need in (STAVES, MEDIA):
            if not os.path.exists(need):
                sys.exit(f"{need} is not there: cargo build --release; cargo build --release -p staves-bench-media")
        self.folder, self.media, self.stations = tempfile.mkdtemp(prefix="staves-files-"), [], []
        atexit.register(self.close)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
        for name in ("mounted", "source"):
            os.mkdir(os.path.join(self.folder, name))
        self.source = os.path.join(self.folder, "source")
        self.count = count
        self.hub = None

    def medium(self, model, source, *flags):
        """A medium with a folder for each workstation, and one for direct readers; start it before the workstations."""
        base = os.path.join(self.folder, f"{model}{len(self.media)}")
        dirs = [os.path.join(base, str(n)) for n in range(self.count + 1)]
        for name in dirs:
            os.makedirs(name)
        child = subprocess.Popen([MEDIA, "--model", model, *flags, source, *dirs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if not child.stdout.readline().startswith("serving"):
            sys.exit(f"the {model} does not serve")
        self.media.append((child, dirs))
        return Medium(child, dirs)

    def workstations(self, sees=None):
        """All of them, with the source that they all know under the same path."""
        self.hub = Place()
        self.hub.run("ip", "link", "add", "br0", "type", "bridge")
        self.hub.run("ip", "link", "set", "br0", "up")
        for number in range(1, self.count + 1):
            station = Workstation(self, number)
            self.stations.append(station)
            if sees:
                station.see(sees.dirs[number] if isinstance(sees, Medium) else sees, self.source)
        return self.stations

    def cluster(self, nodes, memory, pool_memory, buckets=None, threads=1):
        """So many nodes on the first workstations, with a pool of files that has its homes."""
        for station in self.stations[:nodes]:
            station.up(memory, threads=threads)
            first = self.stations[0]
            until("the node is up", lambda: first.nodes_up() == station.number)
        args = ["pool", "create", "files", "--kind", "files", "--memory", pool_memory]
        self.stations[0].staves(*args, *(["--buckets", str(buckets)] if buckets else []))
        until("every bucket of files has its home", lambda: self.pool()["starting"] == 0)

    def pool(self):
        """The pool of files, as a node tells it."""
        return next(pool for pool in self.stations[0].json("status")["pools"] if pool["name"] == "files")

    def used(self):
        """Bytes of blocks at each node that is up."""
        nodes = [node for node in self.stations[0].json("status")["nodes"] if node["up"] and node["facts"]]
        return {node["name"]: pool["used_bytes"] for node in nodes for pool in node["facts"]["pools"] if pool["pool"] == "files"}

    def processor_seconds(self):
        """Of each node that runs: the processor time that it has taken, user and system."""
        seconds, tick = {}, os.sysconf("SC_CLK_TCK")
        for station in self.stations:
            if station.node and station.node.poll() is None:
                with open(f"/proc/{station.node.pid}/stat") as text:
                    fields = text.read().rsplit(")", 1)[1].split()
                seconds[station.number] = (int(fields[11]) + int(fields[12])) / tick
        return seconds

    def resident(self):
        """Of all nodes and mounts: bytes of memory."""
        rows = []
        for station in self.stations:
            for what, child in (("node", station.node), ("mount", station.mount)):
                if child and child.poll() is None:
                    rows.append({"what": f"{what} {station.number}", **resident(child.pid)})
        return rows

    def close(self):
        for station in self.stations:
            station.unmount()
            if station.node:
                end(station.node)
        for place in [*self.stations, self.hub]:
            if place:
                end(place.holder, signal.SIGKILL)
        self.stations, self.hub = [], None
        for child, _ in self.media:
            end(child)
        self.media = []
        shutil.rmtree(self.folder, ignore_errors=True)


class Medium:
    def __init__(self, child, dirs):
        self.child, self.dirs = child, dirs

    def figures(self):
        """What was asked of it until now."""
        self.child.stdin.write("\n")
        return json.loads(self.child.stdout.readline())

    def since(self, before):
        return {key: value - before[key] for key, value in self.figures().items()}
