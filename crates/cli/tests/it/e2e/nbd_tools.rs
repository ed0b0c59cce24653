//! The tools that people have, on a volume on disk: nbdsh, qemu-io and fio read back through other nodes, and after a loss of power.

use staves_testkit::tools::runs;

use super::disks::{connect, make_volume, start};
use super::{Cluster, tool};

/// The Python for which Debian packages libnbd, whatever else is installed.
const PATH: &str = "PATH=/usr/bin:/bin";

/// Kills all nodes at once and starts them again.
fn cut_the_power(cluster: &mut Cluster) {
    let count = cluster.nodes.len();
    for at in 0..count {
        cluster.end(at, "-KILL");
    }
    (0..count).for_each(|at| cluster.up(at));
}

/// Runs commands of qemu-io on the volume; it demands that reads find their pattern.
fn qemu_io(port: u16, commands: &[&str]) {
    // It does not wait for a node that is not there yet.
    drop(connect(port));
    let uri = format!("nbd://127.0.0.1:{port}/disk");
    let mut args = vec!["-f", "raw", "-t", "none"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    let printed = tool("qemu-io", &[&args[..], &[&uri]].concat());
    let verified = !printed.contains("verification failed") && !printed.contains("rror");
    assert!(verified, "{printed}");
}

const WRITES: &[&str] = &[
    "write -P 0xaa 0 4M",
    "write -f -P 0xbb 1000 3000",
    "write -z 1M 1M",
    "discard 2M 64k",
    "aio_write -P 0xcc 38M 1M",
    "aio_write -P 0xdd 39M 1M",
    "aio_flush",
    "flush",
];

const READS: &[&str] = &[
    "read -P 0xaa 0 1000",
    "read -P 0xbb 1000 3000",
    "read -P 0xaa 4000 100",
    "read -P 0 1M 1M",
    "read -P 0 2M 64k",
    "read -P 0xcc 38M 1M",
    "read -P 0xdd 39M 1M",
];

/// The volume as nbdsh finds it after `WRITES`; what it does itself lies elsewhere.
const SCRIPT: &str = "
import errno
def fails(number, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errnum == number, error
        return
    raise AssertionError('it did not fail')
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.set_strict_mode(0)
h.connect_uri(uri)
size = h.get_size()
assert size == 40 << 20 and not h.can_multi_conn() and not h.is_read_only()
assert h.get_structured_replies_negotiated() and h.can_fua() and h.can_trim() and h.can_zero()
assert h.pread(4, 998) == b'\\xaa\\xaa\\xbb\\xbb'
h.pwrite(b'hello' * 1000, 10 << 20, nbd.CMD_FLAG_FUA)
h.zero(1000, (10 << 20) + 5)
assert h.pread(1010, 10 << 20) == b'hello' + bytes(1000) + b'hello'
extents = []
h.block_status(1 << 20, 0, lambda context, offset, entries, error: extents.extend(entries))
assert extents[1] == 0 and extents[0] >= 1 << 20, extents
h.trim(65536, 20 << 20)
h.flush()
fails(errno.EINVAL, h.pread, 2, size - 1)
fails(errno.ENOSPC, h.pwrite, b'xy', size - 1)
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([n] * 100000)), (20 << 20) + n * 100000) for n in range(1, 20)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for cookie in cookies:
    assert h.aio_command_completed(cookie)
assert h.pread(2, (20 << 20) + 199999) == b'\\x01\\x02'
h.shutdown()
";

const LATER: &str = "
h.connect_uri(uri)
assert h.pread(1010, 10 << 20) == b'hello' + bytes(1000) + b'hello'
for n in range(1, 20):
    assert h.pread(100000, (20 << 20) + n * 100000) == bytes([n] * 100000), n
h.shutdown()
";

fn nbdsh(port: u16, script: &str) {
    drop(connect(port));
    let script = format!("uri = 'nbd://127.0.0.1:{port}/disk'\n{script}");
    tool("env", &[PATH, "nbdsh", "-c", &script]);
}

#[test]
fn nbdsh_and_qemu_io_find_what_they_wrote_after_a_loss_of_power() {
    let there = runs("env", &[PATH, "nbdsh", "-c", "h.get_version()"]);
    if !there || !runs("qemu-io", &["--version"]) {
        return;
    }
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    qemu_io(ports[0], WRITES);
    qemu_io(ports[1], READS);
    nbdsh(ports[2], SCRIPT);
    cut_the_power(&mut cluster);
    qemu_io(ports[2], READS);
    nbdsh(ports[1], LATER);
}

/// A run of fio on the volume that verifies nothing unless told to: two such runs with one seed write the same.
fn fio(port: u16, more: &[&str]) {
    drop(connect(port));
    let uri = format!("--uri=nbd://127.0.0.1:{port}/disk");
    let common = [
        "--name=v",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--size=8m",
        "--iodepth=8",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=7",
    ];
    let printed = tool("fio", &[&common[..], more].concat());
    assert!(printed.contains("err= 0"), "{printed}");
}

#[test]
fn fio_verifies_after_a_loss_of_power_what_it_wrote_before() {
    if !runs("fio", &["--enghelp=nbd"]) {
        return;
    }
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    // Verified as it is written, without a flush.
    fio(ports[0], &["--do_verify=1"]);
    cut_the_power(&mut cluster);
    fio(ports[1], &["--verify_only=1"]);
    // Blocks of all sizes, and flushes.
    let uneven = ["--bsrange=512-64k", "--fsync=16", "--do_verify=1"];
    fio(ports[2], &uneven);
}
