//! The clients of libnbd against the codec: nbdinfo, nbdcopy and nbdsh.

use std::fs;

use staves_nbd::ProtocolError;
use staves_testkit::tools::runs;
use staves_testkit::wait_until;

use crate::server::{DISK_BYTES, TestServer, outcome, output, pattern};

/// The Python for which Debian packages libnbd, whatever else is installed.
const PATH: &str = "PATH=/usr/bin:/bin";

/// True if the tools of libnbd are here; else the test is to be skipped.
fn has_tools() -> bool {
    let tools = ["nbdinfo", "nbdcopy"];
    tools.iter().all(|tool| runs(tool, &["--version"]))
}

/// Runs a script of nbdsh in which each export's address has a name; false if the test is to be skipped.
fn nbdsh(server: &TestServer, script: &str) -> bool {
    let there = runs("env", &[PATH, "nbdsh", "-c", "h.get_version()"]);
    if there {
        let names = ["one", "two", "rom", "locked", "none"];
        let uris = names.map(|name| format!("{name} = '{}'\n", server.uri(name)));
        let script = format!("{}{HELPERS}{script}", uris.concat());
        output("env", &[PATH, "nbdsh", "-c", &script]);
    }
    there
}

/// `fails` demands that a call ends with this error, or one of these.
const HELPERS: &str = "
import errno
def fails(numbers, call, *args, **words):
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    try:
        call(*args, **words)
    except nbd.Error as error:
        assert error.errnum in numbers, error
        return
    raise AssertionError('it did not fail')
";

#[test]
fn nbdinfo_describes_an_export() {
    if !has_tools() {
        return;
    }
    let server = TestServer::start();
    server.fill("one", &pattern());
    let printed = output("nbdinfo", &["--json", &server.uri("one")]);
    for line in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"TLS\": false",
        "\"structured\": true",
        "\"export-name\": \"one\"",
        "\"description\": \"the disk one\"",
        "\"base:allocation\"",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 1,",
        "\"block_size_preferred\": 4096,",
        "\"block_size_maximum\": 1048576,",
        "\"export-size\": 8388608,",
    ] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
    let printed = output("nbdinfo", &["--json", &server.uri("rom")]);
    for line in ["\"is_read_only\": true", "\"can_zero\": false"] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
    let map = output("nbdinfo", &["--map", &server.uri("one")]);
    let map: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        vec!["0", "1048576", "0", "data"],
        vec!["1048576", "2097152", "3", "hole,zero"],
        vec!["3145728", "5234688", "0", "data"],
        vec!["8380416", "8192", "3", "hole,zero"],
    ];
    assert_eq!(map, expected);
    assert_eq!(server.errors(), []);
}

#[test]
fn nbdinfo_lists_the_exports() {
    if !has_tools() {
        return;
    }
    let server = TestServer::start();
    let printed = output("nbdinfo", &["--list", "--json", &server.uri("")]);
    for name in ["one", "two", "rom"] {
        let line = format!("\"export-name\": \"{name}\"");
        assert!(printed.contains(&line), "{line} in {printed}");
    }
    for (name, text) in [
        ("locked", "a key is needed"),
        ("none", "there is no export \"none\"; list the exports"),
    ] {
        // The server's own text is shown among the debug messages only.
        let args = ["LIBNBD_DEBUG=1", "nbdinfo", &server.uri(name)];
        let (succeeded, printed) = outcome("env", &args);
        assert!(!succeeded && printed.contains(text), "{printed}");
    }
    assert_eq!(server.errors(), []);
}

#[test]
fn nbdcopy_copies_in_all_directions() {
    if !has_tools() {
        return;
    }
    let server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::write(path("in"), pattern()).expect("a file");
    let (one, two) = (server.uri("one"), server.uri("two"));
    output("nbdcopy", &["--flush", &path("in"), &one]);
    assert!(server.content("one") == pattern(), "a file to an export");
    output("nbdcopy", &["--connections=4", &one, &path("out")]);
    let copied = fs::read(path("out")).expect("a file");
    assert!(copied == pattern(), "an export to a file");
    server.fill("two", &vec![7; DISK_BYTES]);
    output("nbdcopy", &["--connections=4", &one, &two]);
    assert!(server.content("two") == pattern(), "one to another");
    output(
        "nbdcopy",
        &["--request-size=1048576", "--no-extents", &two, "null:"],
    );
    assert!(server.count("flush") > 0 && server.count("extents") > 0);
    assert!(server.count("zeroes") + server.count("fast zeroes") > 0);
    let (succeeded, _) = outcome("nbdcopy", &[&path("in"), &server.uri("rom")]);
    assert!(!succeeded, "a read-only export is not written");
    assert_eq!(server.errors(), []);
}

#[test]
fn nbdsh_uses_every_command() {
    let server = TestServer::start();
    let script = "
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(one)
assert h.get_structured_replies_negotiated() and h.can_meta_context('base:allocation')
h.pwrite(b'hello' * 1000, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(5000, 4096) == b'hello' * 1000
chunks = []
def chunk(buf, offset, status, error):
    chunks.append((offset, len(buf), status))
assert h.pread_structured(1 << 20, 0, chunk, nbd.CMD_FLAG_DF)[4096:4101] == b'hello'
assert chunks == [(0, 1 << 20, nbd.READ_DATA)], chunks
chunks.clear()
h.pread_structured(20000, 100, chunk)
assert chunks == [(100, 3996, nbd.READ_HOLE), (4096, 8192, nbd.READ_DATA), (12288, 7812, nbd.READ_HOLE)], chunks
extents = []
def extent(context, offset, entries, error):
    extents.extend(entries)
h.block_status(20000, 100, extent)
assert extents == [3996, 3, 8192, 0, 7812, 3], extents
extents.clear()
h.block_status(20000, 100, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents == [3996, 3], extents
h.zero(1000, 5000, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(1002, 4999) == b'l' + bytes(1000) + b'o'
h.trim(8192, 4096)
h.cache(4096, 0)
h.flush()
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([n] * 100000)), n * 100000) for n in range(1, 20)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for cookie in cookies:
    assert h.aio_command_completed(cookie)
assert h.pread(2, 199999) == b'\\x01\\x02'
h.shutdown()
";
    if !nbdsh(&server, script) {
        return;
    }
    for mark in [
        "fua",
        "whole read",
        "one extent",
        "fast zeroes",
        "trim",
        "cache",
    ] {
        assert!(server.count(mark) > 0, "{mark}");
    }
    assert_eq!(server.errors(), []);
}

#[test]
fn nbdsh_meets_every_refusal() {
    let server = TestServer::start();
    let script = "
h.set_strict_mode(0)
h.connect_uri(one)
size = h.get_size()
fails(errno.EINVAL, h.pread, 2, size - 1)
fails(errno.EINVAL, h.trim, 2, size - 1)
fails(errno.ENOSPC, h.pwrite, b'xy', size - 1)
fails(errno.ENOSPC, h.zero, 2, size - 1)
fails(errno.EINVAL, h.cache, 2, size - 1)
fails(errno.EINVAL, h.trim, 0, 0)
fails(errno.EINVAL, h.flush, nbd.CMD_FLAG_DF)
fails(errno.EINVAL, h.block_status, 10, 0, lambda *args: 0)
fails(errno.EOVERFLOW, h.pread, (1 << 20) + 1, 0)
assert h.pread(1, 0) == b'\\0'
h.shutdown()
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(two)
fails(errno.ENOTSUP, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
h.shutdown()
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(rom)
assert h.is_read_only()
fails(errno.EPERM, h.pwrite, b'xy', 0)
fails(errno.EPERM, h.trim, 512, 0)
fails(errno.EPERM, h.zero, 512, 0)
assert h.pread(2, 0) == b'\\0\\0'
h.shutdown()
";
    if !nbdsh(&server, script) {
        return;
    }
    assert_eq!(server.errors(), []);
}

#[test]
fn nbdsh_speaks_the_older_forms() {
    let server = TestServer::start();
    let script = "
h.set_request_structured_replies(False)
h.connect_uri(one)
assert not h.get_structured_replies_negotiated() and not h.can_df()
h.pwrite(b'x' * 512, 4096)
assert h.pread(5000, 4096) == b'x' * 512 + bytes(4488)
h.flush()
h.set_strict_mode(0)
fails(errno.EINVAL, h.pread, (1 << 20) + 1, 0)
fails(errno.ENOSPC, h.pwrite, b'xy', h.get_size() - 1)
h.shutdown()
for flags in [0, nbd.HANDSHAKE_FLAG_NO_ZEROES, nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE]:
    h = nbd.NBD()
    h.set_handshake_flags(flags)
    h.connect_uri(one)
    assert h.pread(512, 4096) == b'x' * 512 and h.get_size() == 8 << 20
    h.shutdown()
";
    if !nbdsh(&server, script) {
        return;
    }
    assert_eq!(server.errors(), []);
    let script = "
h.set_handshake_flags(0)
try:
    h.connect_uri(none)
    raise AssertionError('there is no such export')
except nbd.Error:
    pass
";
    if !nbdsh(&server, script) {
        return;
    }
    let text = "there is no export \"none\"; list the exports".to_owned();
    let expected = [ProtocolError::ExportName(text)];
    wait_until("the connection ends", || !server.errors().is_empty());
    assert_eq!(server.errors(), expected);
}

#[test]
fn nbdsh_negotiates() {
    let server = TestServer::start();
    let script = "
h.set_opt_mode(True)
h.set_full_info(True)
h.connect_uri(none)
names = []
assert h.opt_list(lambda name, description: names.append((name, description))) == 3
assert names == [(name, 'the disk ' + name) for name in ['one', 'rom', 'two']], names
fails(errno.ENOENT, h.opt_info)
h.set_export_name('locked')
fails((errno.ENOTSUP, errno.EPERM), h.opt_info)
h.set_export_name('rom')
h.opt_info()
assert h.is_read_only() and h.get_canonical_export_name() == 'rom'
assert h.get_export_description() == 'the disk rom'
contexts = []
h.set_export_name('one')
h.add_meta_context('base:')
assert h.opt_list_meta_context(contexts.append) == 1 and contexts == ['base:allocation']
h.clear_meta_contexts()
h.add_meta_context('qemu:dirty-bitmap:x')
h.add_meta_context('base:allocation')
h.opt_info()
assert h.get_size() == 8 << 20 and h.get_block_size(nbd.SIZE_MAXIMUM) == 1 << 20
h.opt_go()
assert h.can_meta_context('base:allocation') and not h.can_meta_context('qemu:dirty-bitmap:x')
h.shutdown()
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(one)
h.opt_abort()
h = nbd.NBD()
h.set_tls(nbd.TLS_ALLOW)
h.connect_uri(one)
assert not h.get_tls_negotiated()
h.shutdown()
";
    if !nbdsh(&server, script) {
        return;
    }
    assert_eq!(server.errors(), []);
}
