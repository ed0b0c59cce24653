"""What the scripts of this folder share: servers on free ports of 127.0.0.1, ended by their own ids."""
import json, os, shutil, socket, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
STAVES = os.environ.get("STAVES", os.path.join(TARGET, "release", "staves"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def said(*command):
    """The first line that a program says, or None where it does not run."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (out.stdout or out.stderr).splitlines()[0] if out.returncode == 0 else None


def cpu_seconds(children):
    """Processor time that these have taken so far, the kernel's for them included."""
    total = 0
    for child in children:
        with open(f"/proc/{child.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class Servers:
    """Started servers; leaving the block ends them and removes their folder."""

    def __init__(self):
        self.children, self.folder = [], tempfile.mkdtemp(prefix="staves-bench-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self):
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()
        self.children.clear()

    def start(self, cores, args):
        with open(os.path.join(self.folder, "log"), "a") as log:
            child = subprocess.Popen(["taskset", "-c", cores, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append(child)
        return child

    def wait(self, what, test):
        end = time.time() + 60
        while time.time() < end:
            ended = [c for c in self.children if c.poll() is not None]
            if ended:
                break
            try:
                if test():
                    return
            except (OSError, ValueError, KeyError):
                pass
            time.sleep(0.1)
        with open(os.path.join(self.folder, "log")) as log:
            why = "a server ended" if ended else "60 s have passed"
            sys.exit(f"{why} while waiting until {what}; the servers said last:\n{log.read()[-2000:]}")

    def listens(self, port):
        self.wait(f"port {port} listens", lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)

    def redis(self, cores, *more):
        port = free_port()
        self.start(cores, ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", self.folder, *more])
        self.listens(port)
        return port

    def memcached(self, cores, megabytes=2048):
        port = free_port()
        self.start(cores, ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", "-t", "1", "-m", str(megabytes)])
        self.listens(port)
        return port

    def staves(self, cores, nodes, memory="2GiB", threads=1, copies=None):
        """So many nodes with a pool 1+(nodes - 1), or 1+copies, once it is whole: their native ports and RESP ports."""
        scheme = f"1+{nodes - 1 if copies is None else copies}"
        natives, resps = [], []
        for _ in range(nodes):
            native, resp, admin = free_port(), free_port(), free_port()
            args = [STAVES, "up", "--listen", f"127.0.0.1:{native}", "--resp", f"127.0.0.1:{resp}", "--admin", f"127.0.0.1:{admin}",
                    "--data", os.path.join(self.folder, str(native)), "--memory", memory, "--threads", str(threads)]
            self.start(cores, args + (["--join", f"127.0.0.1:{natives[0]}"] if natives else []))
            natives.append(native)
            resps.append(resp)
            self.wait("the node is up", lambda: whole(natives[0], len(natives)))
        out = staves("--cluster", f"127.0.0.1:{natives[0]}", "pool", "set", "cache", "--yes", "--scheme", scheme)
        if out.returncode:
            sys.exit(f"the pool cannot be set: {out.stderr}")
        self.wait("all buckets have their copies", lambda: whole(natives[0], nodes, scheme))
        return natives, resps


def staves(*args):
    return subprocess.run([STAVES, *args], capture_output=True, text=True)


def whole(native, nodes, scheme=None):
    status = json.loads(staves("--cluster", f"127.0.0.1:{native}", "status", "-o", "json").stdout)
    pools = {p["name"]: p["scheme"] for p in status["pools"]}
    up = sum(n["up"] for n in status["nodes"])
    return status["state"] == "healthy" and up == nodes and scheme in (None, pools["cache"])
