"""Figures of bench/volumes about distance and about deaths."""
import json, os, random, re, statistics, subprocess, threading, time

from harness import cpu_seconds
from volumes_lab import MIB, Cluster, Failed, exact_median_us, fill, fio, fio_args, fio_json, note, run, show, until, uri

ONE_WAY_MS = 10
# What a write in a WAN may take beyond a round trip and the time that it takes in a LAN, ms.
BEYOND_MS = 0.5
# The longest write when the copy dies, and when the primary does, s.
LONGEST = {"copy": 1.0, "primary": 3.0}


def wan(sizes, _pair):
    """A volume of one group; its client is beside the node that it writes through."""
    told, table = {}, []
    for place, one_way in (("LAN", None), ("WAN", ONE_WAY_MS)):
        with Cluster(2, apart=True, one_way_ms=one_way, folder=sizes.folder) as cluster:
            cluster.volume("disk", 64)
            primary, copy = cluster.members("disk")
            told[place] = {"round_trip_ms": cluster.round_trip(primary, copy) * 1000}
            fill(cluster, primary, ["disk"], 64)
            for door, node in (("primary", primary), ("copy", copy)):
                for op in ("write", "read"):
                    log = f"{cluster.folder}/wan"
                    row = fio(cluster.client(), uri(node, "disk"), f"rand{op}", "4k", 1, 64, sizes.seconds, f"--write_lat_log={log}", servers=cluster.processes())
                    row["p50_us"] = exact_median_us(cluster.folder, "wan")
                    told[place][f"{op} through the {door}"] = row
    added = told["WAN"]["round_trip_ms"] - told["LAN"]["round_trip_ms"]
    for name in (name for name in told["LAN"] if name != "round_trip_ms"):
        lan, far = (told[place][name]["p50_us"] / 1000 for place in ("LAN", "WAN"))
        table.append([name, f"{lan:.3f}", f"{far:.3f}", f"{far - lan:.3f}", f"{(far - lan) / added:.2f}", f"{told['WAN'][name]['cpu_us']:.0f}"])
    more = (told["WAN"]["write through the primary"]["p50_us"] - told["LAN"]["write through the primary"]["p50_us"]) / 1000
    show(f"4 KiB, one under way, p50 in ms; a round trip between the nodes takes {told['LAN']['round_trip_ms']:.3f} ms and {told['WAN']['round_trip_ms']:.3f} ms. "
         f"A write through the primary may take one round trip and {BEYOND_MS} ms more (paper: a WAN costs 20 times)",
         ["", "LAN", "WAN", "more", "round trips more", "processor, us (WAN)"], table)
    missed = [] if more <= added + BEYOND_MS else [f"a write takes {more:.3f} ms more with a round trip of {added:.3f} ms more"]
    return {**told, "round_trip_added_ms": added, "write_more_ms": more, "missed": missed}


def recovery(sizes, _pair):
    """The node that has no vote comes back with an empty folder; its pages come over its link."""
    told, table = [], []
    for place, one_way in (("LAN", None), ("WAN", ONE_WAY_MS)):
        for link in sizes.links:
            with Cluster(2, apart=True, one_way_ms=one_way, link=link, disk=f"{2 * sizes.data_mib}MiB", folder=sizes.folder) as cluster:
                cluster.volume("disk", sizes.data_mib)
                fill(cluster, cluster.nodes[0], ["disk"], sizes.data_mib)
                row = {"place": place, "link_megabits": link, "data_bytes": sizes.data_mib * MIB, **replaced(cluster)}
            if link:
                row["share_of_link"] = row["moving_bytes_per_second"] * 8 / (link * 1e6)
            told.append(row)
            table.append([place, f"{link} Mbit/s" if link else "unbounded", f"{row['bytes'] / MIB:.0f}", f"{row['bytes'] / row['data_bytes']:.2f}", f"{row['seconds']:.1f}",
                          f"{row['moving_seconds']:.1f}", f"{row['moving_bytes_per_second'] / 1e6:.0f}", f"{row['share_of_link']:.2f}" if link else "", f"{row['cpu_seconds']:.1f}"])
    show(f"A member of {sizes.data_mib} MiB is replaced by an empty one; nothing else is asked of the nodes", ["", "link", "MiB received", "by the data", "s until whole",
         "s of moving", "MB/s then", "share of the link", "processor of both, s"], table)
    return {"rows": told}


def replaced(cluster):
    keeper, lost = cluster.nodes
    lost.kill()
    lost.forget()
    # Its death is known before the new one comes.
    until("the death is known", lambda: cluster.up() == 1 and not cluster.has_copies())
    before, cpu, began = lost.place.received(), cpu_seconds([keeper.child]), time.monotonic()
    lost.start()
    samples = Samples(lost.place, before)
    # The dead one keeps its vote in the directory, for three are better than one.
    until("the new member has all", lambda: cluster.up() == 2 and cluster.has_copies(), 180)
    seconds = time.monotonic() - began
    total, moving, in_it = samples.end()
    return {"bytes": total, "seconds": seconds, "moving_seconds": moving, "moving_bytes_per_second": in_it / max(moving, 0.1),
            "cpu_seconds": cpu_seconds([keeper.child]) - cpu + cpu_seconds([lost.child])}


class Samples:
    """How many bytes a node has received, ten times a second: the time in which most of them came."""

    def __init__(self, site, before):
        self.site, self.before, self.samples, self.ends = site, before, [(time.monotonic(), 0)], threading.Event()
        self.thread = threading.Thread(target=self.take, daemon=True)
        self.thread.start()

    def take(self):
        while not self.ends.wait(0.1):
            self.samples.append((time.monotonic(), self.site.received() - self.before))

    def end(self):
        """Bytes in all; the seconds from a fortieth of them to all but a fortieth, and the bytes of that time."""
        self.ends.set()
        self.thread.join()
        total = self.site.received() - self.before
        first = [at for at in self.samples if at[1] <= total / 40][-1]
        last = next((at for at in self.samples if at[1] >= total * 39 / 40), self.samples[-1])
        return total, last[0] - first[0], last[1] - first[1]


def reshuffle(sizes, _pair):
    """Half of all buckets belong to the pair that is added."""
    mib = 2 * sizes.data_mib
    with Cluster(2, apart=True, disk=f"{2 * mib}MiB", folder=sizes.folder) as cluster:
        # Volumes of one group each: as many buckets as there are.
        names = [f"disk{n}" for n in range(8)]
        for name in names:
            cluster.volume(name, mib // 8)
        fill(cluster, cluster.nodes[0], names, mib // 8)
        added = [cluster.add(), cluster.add()]
        received = [node.place.received() for node in cluster.nodes]
        began = time.monotonic()
        for node in added:
            node.start()
        until("the new nodes are up", lambda: cluster.up() == 4)
        settled, last = time.monotonic(), None
        while time.monotonic() - settled < 5:
            now, at_rest = cluster.places()
            if now != last or not at_rest or not cluster.has_copies():
                settled, last = time.monotonic(), now
            if time.monotonic() - began > 150:
                raise Failed("the buckets are still being moved after 150 s")
            time.sleep(0.2)
        moved = [node.place.received() - before for node, before in zip(cluster.nodes, received)]
    # Of both copies of everything, half.
    share = mib * MIB
    row = {"data_bytes": mib * MIB, "seconds": settled - began, "received_bytes": moved, "share_bytes": share, "moved_by_share": sum(moved[2:]) / share, "members": last}
    show(f"A pair of nodes is added to a pair with 8 volumes of one group each, {mib} MiB in all (twice); the share of the new ones is half of both copies",
         ["s until at rest", "MiB received by the new nodes", "by the former ones", "their share, MiB", "moved by share", "members of groups at each node"],
         [[f"{row['seconds']:.1f}", f"{sum(moved[2:]) / MIB:.0f}", f"{sum(moved[:2]) / MIB:.0f}", share // MIB, f"{row['moved_by_share']:.2f}", last]])
    missed = [] if all(last) else [f"some node has no member: {last}"]
    return {**row, "missed": missed}


def kills(sizes, _pair):
    """Through the node that stays: the third if the primary dies, the primary if the copy does."""
    told, table, missed = {"copy": [], "primary": []}, [], []
    with Cluster(3, folder=sizes.folder) as cluster:
        cluster.volume("disk", 64)
        fill(cluster, cluster.nodes[0], ["disk"], 64)
        for turn in range(2 * sizes.kills):
            what = ("copy", "primary")[turn % 2]
            primary, copy = cluster.members("disk")
            victim = primary if what == "primary" else copy
            door = primary if what == "copy" else next(node for node in cluster.nodes if node not in (primary, copy))
            told[what].append(killed(cluster, door, victim, sizes.after_kill))
            note(f"kill {turn + 1} of {2 * sizes.kills}: {what}, longest write {told[what][-1]['longest_s']:.3f} s")
    for what, each in told.items():
        times = sorted(one["longest_s"] for one in each)
        worst = max(each, key=lambda one: one["longest_s"])
        errors = sum(one["errors"] for one in each)
        table.append([what, len(each), f"{statistics.median(times):.3f}", f"{times[-1]:.3f}", LONGEST[what], errors, f"{worst['cpu_us']:.0f}"])
        if times[-1] > LONGEST[what] or errors:
            missed.append(f"the {what} dies: a write took {times[-1]:.3f} s, {errors} runs with errors")
    show("kill -9 under writes of 4 KiB, one under way, by NBD through a node that lives", ["the death of the", "kills", "longest write, s: median", "worst", "at most",
         "runs with errors", "processor a write, us"], table)
    return {**told, "missed": missed}


def killed(cluster, door, victim, after):
    led = next((node["name"] for node in cluster.status()["nodes"] if node["leads_directory"]), None)
    servers = [node.child for node in cluster.nodes if node is not victim]
    began = cpu_seconds(servers)
    child = subprocess.Popen(fio_args(uri(door, "disk"), "randwrite", "4k", 1, 64, "--time_based", f"--runtime={after + 1}"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    victim.kill()
    out, err = child.communicate(timeout=120)
    cpu = cpu_seconds(servers) - began
    victim.start()
    cluster.whole()
    if "{" not in out:
        raise Failed(f"fio ended without a word: {err[-500:]}")
    job = fio_json(out)["jobs"][0]
    side = job["write"]
    return {"longest_s": side["clat_ns"]["max"] / 1e9, "writes": side["total_ios"], "errors": int(job["error"] != 0), "led_directory": led == victim.name,
            "cpu_us": cpu * 1e6 / max(side["total_ios"], 1)}


def losses(sizes, _pair):
    """fio writes and verifies all the time; nodes that it does not speak to are killed in turn. Beside it our own client, which knows versions: fio takes an older
    block of its own for right, so it trims what it wrote before, first."""
    rng, done, ends, wrong = random.Random(1), {"writes": 0, "runs": 0, "reads": 0}, threading.Event(), []
    with Cluster(3, folder=sizes.folder) as cluster:
        cluster.volume("disk", 64)
        cluster.volume("record", 64)
        door = cluster.nodes[0]
        recorder = Recorder(cluster, "record", 1)
        verify = ["--verify=crc32c", "--do_verify=1", "--verify_state_save=0", "--verify_fatal=0", "--verify_dump=0"]

        def write():
            while not ends.is_set():
                trim = subprocess.run(fio_args(uri(door, "disk"), "trim", "1m", 1, 32), capture_output=True, text=True)
                if trim.returncode:
                    wrong.append(f"a trim ended with {trim.returncode}: {trim.stderr.strip()[-300:]}")
                    return
                out = subprocess.run(fio_args(uri(door, "disk"), "randwrite", "4k", 8, 32, *verify), capture_output=True, text=True)
                wrong.extend(re.findall(r"verify: .*|crc32c: .*", out.stderr + out.stdout)[:5])
                if out.returncode:
                    wrong.append(f"fio ended with {out.returncode}: {out.stderr.strip()[-300:]}")
                    return
                job = fio_json(out.stdout)["jobs"][0]
                done["writes"] += job["write"]["total_ios"]
                done["reads"] += job["read"]["total_ios"]
                done["runs"] += 1

        thread = threading.Thread(target=write)
        thread.start()
        killed_nodes = 0
        try:
            while killed_nodes < sizes.losses and thread.is_alive():
                victim = rng.choice(cluster.nodes[1:])
                time.sleep(rng.uniform(0.2, 0.8))
                victim.kill()
                killed_nodes += 1
                time.sleep(rng.uniform(0.1, 2.5))
                victim.start()
                cluster.whole()
        finally:
            ends.set()
            thread.join(240)
            recorded = recorder.end()
        # Once more, when all is over.
        last = subprocess.run(fio_args(uri(door, "disk"), "randwrite", "4k", 8, 32, *verify, "--verify_only"), capture_output=True, text=True)
        wrong.extend(re.findall(r"verify: .*|crc32c: .*", last.stderr + last.stdout)[:5])
        if last.returncode:
            wrong.append(f"the last look ended with {last.returncode}: {last.stderr.strip()[-300:]}")
    wrong.extend(recorded["wrong"])
    row = {"kills": killed_nodes, "recorded": recorded, "acknowledged_writes": done["writes"], "verified_reads": done["reads"], "runs": done["runs"], "wrong": wrong}
    show("kill -9 of nodes in turn under fio --verify=crc32c, 8 under way", ["kills", "acknowledged writes of fio", "blocks that it verified", "its runs", "writes of our client", "lost or wrong"],
         [[killed_nodes, f"{done['writes']:,}", f"{done['reads']:,}", done["runs"], f"{recorded['acknowledged']:,}", len(wrong)]])
    return {**row, "missed": wrong[:3]}


def power(sizes, _pair):
    """Our own client keeps what was acknowledged, takes the volume again by itself, and looks for all of it at the end."""
    starts = []
    with Cluster(3, folder=sizes.folder) as cluster:
        cluster.volume("disk", 64)
        recorder = Recorder(cluster, "disk", 4)
        try:
            for cut in range(sizes.cuts):
                time.sleep(1.5)
                for node in cluster.nodes:
                    node.child.kill()
                for node in cluster.nodes:
                    node.child.wait()
                starts.append(time.time())
                for node in cluster.nodes:
                    node.start()
                cluster.whole()
                note(f"cut {cut + 1} of {sizes.cuts}: whole after {time.time() - starts[-1]:.1f} s")
            time.sleep(1.5)
        finally:
            told = recorder.end()
    # A gap between two answers that goes over a start ends with the first answer after it.
    first = [min((after for before, after in told["answers"] if before < start < after), default=None) for start in starts]
    waits = [after - start for start, after in zip(starts, first) if after is not None]
    told.update(first_answer_s=waits, cuts=sizes.cuts)
    told.pop("answers")
    show("SIGKILL of all three nodes at once under writes of 4 KiB, 4 under way, by gRPC. The kernel's page cache survives SIGKILL, so this shows no sync that is missing: "
         "the simulator's disk does", ["cuts", "first acknowledged write after the start, s: median", "worst", "acknowledged", "without an answer", "lost", "torn"],
         [[sizes.cuts, f"{statistics.median(waits):.2f}" if waits else "", f"{max(waits):.2f}" if waits else "", f"{told['acknowledged']:,}", told["unanswered"], told["lost"], told["torn"]]])
    missed = told["wrong"] + ([] if len(waits) == sizes.cuts else [f"after {sizes.cuts - len(waits)} cuts no gap in the answers was seen"])
    return {**told, "missed": missed}


class Recorder:
    """Our own client, which writes all the time, keeps what was acknowledged, and looks for all of it at the end."""

    def __init__(self, cluster, volume, depth):
        command = cluster.blocks("record", "--volume", volume, "--blocks", "8192", "--depth", str(depth))
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self):
        try:
            out, err = self.child.communicate(timeout=120)
        finally:
            if self.child.poll() is None:
                self.child.kill()
                self.child.wait()
        if self.child.returncode:
            raise Failed(f"the recording client: {err.strip()[-500:]}")
        told = json.loads(out)
        told["wrong"] = [f"{told['lost']} blocks lost, {told['torn']} torn: {told['examples'][:3]}"] if told["lost"] or told["torn"] else []
        return told
